/* Assigns the work to ranks.
 *
 * Units are the layers that are not skipped, with each group of a convolution as a separate unit; items are the
 * matrices to decompose: A and G of a unit, or their diagonal blocks. A unit is assigned to a column of the grid, its
 * items to ranks of that column:
 *
 *   round-robin      unit i to column i mod columns; the ranks of a column take turns, item by item, or
 *                    unit by unit if factors are co-located
 *   compute, memory  units by descending cost to the least loaded column; within it the unit (co-located), or each
 *                    of its items, the largest first, to the least loaded rank; cost: sum of n^3, or n^2
 *
 * Diagonal blocks are always placed one by one. Units that share an A are placed like one unit with several G, because
 * all of them need its decomposition. The second half of this file computes the bytes that each rank holds and sends,
 * for N ranks, m rows and C columns. */
#include "kfac/placement.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct builder {
    const dsc_kfac_layer *layers;
    int64_t count;
    const dsc_kfac_options *options;
    int64_t blocks;
    dsc_dtype dtype;     /* of the gradients */
    unsigned char *skip; /* [count] */
    dsc_kfac_plan *plan;
    double *column_cost; /* [columns] */
    double *rank_cost;   /* [ranks] */
} builder;

/* ---- units and items ---- */

static dsc_status check_same_input(const builder *b, int64_t i) {
    const dsc_kfac_layer *layer = &b->layers[i];
    int64_t number = layer->same_input;
    if (number == 0)
        return DSC_OK;
    if (number < 0 || number > i || b->layers[number - 1].same_input != 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "layer '%s': same_input %lld: must be 0, or 1 more than the number of an earlier layer whose "
            "same_input is 0",
            layer->name, (long long)number);
    const dsc_kfac_layer *first = &b->layers[number - 1];
    if (layer->kind != DSC_KFAC_LINEAR || first->kind != DSC_KFAC_LINEAR || layer->in_c != first->in_c ||
        !layer->bias_grad.data != !first->bias_grad.data)
        return DSC_FAIL(
            DSC_E_INVALID,
            "layers '%s' and '%s' cannot have one A: both must be linear, with as many inputs, and both "
            "with a bias or both without",
            first->name, layer->name);
    return DSC_OK;
}

/* Marks skipped layers, checks the others, and counts units. */
static dsc_status survey(builder *b) {
    const dsc_kfac_layer *first = NULL;
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *b->skip, &b->skip));
    DSC_TRY(dsc_kfac_skip(b->layers, b->count, b->options->skip_layers, b->skip));
    for (int64_t i = 0; i < b->count; i++) {
        const dsc_kfac_layer *layer = &b->layers[i];
        if (b->skip[i])
            continue;
        DSC_TRY(dsc_kfac_layer_check(layer));
        DSC_TRY(check_same_input(b, i));
        first = first ? first : layer;
        if (layer->weight_grad.dtype != first->weight_grad.dtype)
            return DSC_FAIL(DSC_E_INVALID,
                            "the gradients of layer '%s' are %s, those of '%s' %s: must be of one type",
                            first->name, dsc_dtype_name(first->weight_grad.dtype), layer->name,
                            dsc_dtype_name(layer->weight_grad.dtype));
        b->plan->unit_count += dsc_kfac_kind_of(layer)->sizes(layer).units;
    }
    if (!first && b->count > 0)
        dsc_log(DSC_LOG_WARNING,
                "K-FAC layers to skip: all layers are skipped, every gradient stays as it is");
    b->dtype = first ? first->weight_grad.dtype : DSC_F32;
    return DSC_OK;
}

/* Returns the first of the layers that read the same input as layer i. */
static int64_t first_reader(const builder *b, int64_t i) {
    return b->layers[i].same_input > 0 ? b->layers[i].same_input - 1 : i;
}

/* Returns the unit whose A a new unit of layer i uses: the first that reads the same input, which may be itself. */
static int64_t find_a(const builder *b, int64_t i, int64_t number) {
    const dsc_kfac_plan *plan = b->plan;
    for (int64_t u = 0; u < number; u++)
        if (first_reader(b, plan->units[u].layer) == first_reader(b, i))
            return plan->a_unit[u];
    return number;
}

/* Makes the units, in the order of the layers, with the groups of a layer in order. Names must differ, because
 * checkpoints use them as keys. */
static dsc_status make_units(builder *b) {
    dsc_kfac_plan *plan = b->plan;
    int64_t number = 0;
    DSC_TRY(dsc_memory_alloc(plan->unit_count, sizeof *plan->units, &plan->units));
    DSC_TRY(dsc_memory_alloc(plan->unit_count, sizeof *plan->a_unit, &plan->a_unit));
    for (int64_t i = 0; i < b->count; i++) {
        const dsc_kfac_layer *layer = &b->layers[i];
        const dsc_kfac_kind_entry *kind = dsc_kfac_kind_of(layer);
        if (b->skip[i])
            continue;
        dsc_kfac_sizes s = kind->sizes(layer);
        int64_t blocks = kind->splits ? b->blocks : 1;
        for (int64_t group = 0; group < s.units; group++, number++) {
            char *name;
            size_t size = strlen(layer->name) + 24;
            DSC_TRY(dsc_memory_alloc((int64_t)size, 1, &name));
            if (s.units > 1)
                snprintf(name, size, "%s[%lld]", layer->name, (long long)group);
            else
                snprintf(name, size, "%s", layer->name);
            int64_t a_blocks = blocks < s.a_n ? blocks : s.a_n;
            plan->a_unit[number] = s.one_a ? find_a(b, i, number) : number;
            plan->units[number] = (dsc_kfac_unit){.name = name,
                                                  .layer = i,
                                                  .group = group,
                                                  .kind = layer->kind,
                                                  .a_n = s.a_n,
                                                  .g_n = s.g_n,
                                                  .a_blocks = plan->a_unit[number] == number ? a_blocks : 0,
                                                  .g_blocks = blocks < s.g_n ? blocks : s.g_n,
                                                  .first_item = plan->item_count};
            plan->item_count += dsc_kfac_unit_items(&plan->units[number]);
            for (int64_t j = 0; j < number; j++)
                if (strcmp(name, plan->units[j].name) == 0)
                    return DSC_FAIL(DSC_E_INVALID,
                                    "K-FAC layers %lld and %lld are both named '%s': names must differ",
                                    (long long)plan->units[j].layer, (long long)i, name);
        }
    }
    return DSC_OK;
}

/* Makes the items: the blocks of A, then those of G, of floor(n / blocks) rows each; the last takes the rest. */
static dsc_status make_items(dsc_kfac_plan *plan) {
    DSC_TRY(dsc_memory_alloc(plan->item_count, sizeof *plan->items, &plan->items));
    for (int64_t u = 0; u < plan->unit_count; u++) {
        const dsc_kfac_unit *unit = &plan->units[u];
        for (int64_t i = 0; i < dsc_kfac_unit_items(unit); i++) {
            int of_a = i < unit->a_blocks;
            int64_t n = of_a ? unit->a_n : unit->g_n, blocks = of_a ? unit->a_blocks : unit->g_blocks;
            int64_t block = of_a ? i : i - unit->a_blocks, first = block * (n / blocks);
            plan->items[unit->first_item + i] =
                (dsc_kfac_item){.unit = u,
                                .side = of_a ? DSC_KFAC_A : DSC_KFAC_G,
                                .block = block,
                                .first = first,
                                .n = block + 1 < blocks ? n / blocks : n - first};
        }
    }
    return DSC_OK;
}

/* ---- placement ---- */

/* Returns 1 if all items of the unit, and of those that share its A, go to one rank. */
static int stays_together(const builder *b, int64_t unit) {
    return b->options->colocate_factors && dsc_kfac_a_blocks(b->plan, unit) == 1 &&
           b->plan->units[unit].g_blocks == 1;
}

static dsc_status place_in_turns(const builder *b) {
    dsc_kfac_plan *plan = b->plan;
    int64_t *turns, placed = 0; /* turns[columns] */
    DSC_TRY(dsc_memory_alloc(plan->columns, sizeof *turns, &turns));
    for (int64_t u = 0; u < plan->unit_count; u++) {
        dsc_kfac_unit *unit = &plan->units[u];
        dsc_kfac_item *items = plan->items + unit->first_item;
        int shares = plan->a_unit[u] != u;
        unit->column = shares ? plan->units[plan->a_unit[u]].column : (int)(placed++ % plan->columns);
        for (int64_t i = 0; i < dsc_kfac_unit_items(unit); i++) {
            items[i].owner = plan->items[dsc_kfac_a_item(plan, u)].owner;
            if ((i == 0 && !shares) || !stays_together(b, u))
                items[i].owner = (int)(turns[unit->column]++ % plan->rows) * plan->columns + unit->column;
        }
    }
    dsc_memory_free(&turns);
    return DSC_OK;
}

/* Sorted by descending cost; of equal ones the lower number comes first. */
typedef struct ranked {
    double cost;
    int64_t number;
} ranked;

static int costlier_first(const void *x, const void *y) {
    const ranked *a = x, *b = y;
    if (a->cost != b->cost)
        return a->cost < b->cost ? 1 : -1;
    return (a->number > b->number) - (a->number < b->number);
}

static double cube(int64_t n) {
    return (double)n * (double)n * (double)n;
}

static double cost_of(const builder *b, int64_t n) {
    return b->options->placement == DSC_KFAC_MEMORY ? (double)n * (double)n : cube(n);
}

/* Returns the index of the least cost among first + i stride, i < count; of equal ones the first. */
static int least_loaded(const double *cost, int first, int count, int stride) {
    int best = first;
    for (int i = 1; i < count; i++)
        if (cost[first + i * stride] < cost[best])
            best = first + i * stride;
    return best;
}

/* Assigns the items of a unit, and of those that share its A, to ranks of its column. `order` has space for them. */
static void place_items(const builder *b, int64_t unit, double cost, ranked *order) {
    const dsc_kfac_plan *plan = b->plan;
    int column = plan->units[unit].column, together = stays_together(b, unit);
    int64_t count = 0;
    for (int64_t i = plan->units[unit].first_item; i < plan->item_count; i++)
        if (plan->a_unit[plan->items[i].unit] == unit)
            order[count++] = (ranked){cost_of(b, plan->items[i].n), i};
    qsort(order, (size_t)count, sizeof *order, costlier_first);
    int rank = least_loaded(b->rank_cost, column, plan->rows, plan->columns);
    for (int64_t i = 0; i < count; i++) {
        if (!together)
            rank = least_loaded(b->rank_cost, column, plan->rows, plan->columns);
        plan->items[order[i].number].owner = rank;
        b->rank_cost[rank] += together ? 0 : order[i].cost;
    }
    b->rank_cost[rank] += together ? cost : 0;
}

static dsc_status place_by_cost(builder *b) {
    dsc_kfac_plan *plan = b->plan;
    ranked *order; /* the units, with those that share an A as one; then space for the items of one */
    DSC_TRY(dsc_memory_alloc(plan->columns, sizeof *b->column_cost, &b->column_cost));
    DSC_TRY(dsc_memory_alloc(plan->ranks, sizeof *b->rank_cost, &b->rank_cost));
    DSC_TRY(dsc_memory_alloc(plan->unit_count + plan->item_count, sizeof *order, &order));
    for (int64_t u = 0; u < plan->unit_count; u++)
        order[u] = (ranked){0, u};
    for (int64_t i = 0; i < plan->item_count; i++)
        order[plan->a_unit[plan->items[i].unit]].cost += cost_of(b, plan->items[i].n);
    qsort(order, (size_t)plan->unit_count, sizeof *order, costlier_first);
    for (int64_t i = 0; i < plan->unit_count && order[i].cost > 0; i++) {
        dsc_kfac_unit *unit = &plan->units[order[i].number];
        unit->column = least_loaded(b->column_cost, 0, plan->columns, 1);
        b->column_cost[unit->column] += order[i].cost;
        place_items(b, order[i].number, order[i].cost, order + plan->unit_count);
    }
    for (int64_t u = 0; u < plan->unit_count; u++)
        plan->units[u].column = plan->units[plan->a_unit[u]].column;
    dsc_memory_free(&order);
    return DSC_OK;
}

/* ---- what it costs ---- */

/* Bytes of one number: gradients and eigenvalues, factors, decompositions. */
typedef struct widths {
    size_t grad, factor, inverse;
} widths;

static size_t square(int64_t n) {
    return (size_t)n * (size_t)n;
}

static size_t triangle(int64_t n) {
    return (size_t)n * ((size_t)n + 1) / 2;
}

/* Adds a factor of n rows: its running average, which every rank keeps if m = N, and otherwise its owner; and its part
 * of the averaging over ranks. */
static void load_factor(const builder *b, widths w, int64_t n, int owner) {
    dsc_kfac_plan *plan = b->plan;
    int everywhere = plan->rows == plan->ranks;
    size_t sent = b->options->symmetric ? triangle(n) : square(n);
    double bytes = (double)(sent * w.factor);
    double all_reduce = 2.0 * (plan->ranks - 1) / plan->ranks * bytes;
    for (int r = 0; r < plan->ranks; r++) {
        dsc_kfac_load *load = &plan->loads[r];
        if (everywhere || r == owner)
            load->factor_bytes += triangle(n) * w.factor;
        if (plan->ranks > 1 || b->options->passes > 1 || b->options->late_factors)
            load->exchange_bytes += sent * w.grad;
        load->factors_sent += everywhere ? all_reduce : r == owner ? 0 : bytes;
    }
}

/* Adds an item, which the ranks of the column hold and its owner sends to them. */
static void load_item(const builder *b, widths w, const dsc_kfac_item *item, int column) {
    dsc_kfac_plan *plan = b->plan;
    dsc_kfac_load *owner = &plan->loads[item->owner];
    int64_t rank = dsc_kfac_planned_rank(b->options, item->n, DSC_KFAC_EXACT_ROWS);
    size_t values = (size_t)(rank + (rank < item->n)) * w.grad;
    size_t held = (size_t)item->n * (size_t)rank * w.inverse, sent = held;
    if (b->options->method == DSC_KFAC_INVERSE) {
        sent = b->options->symmetric ? triangle(item->n) * w.inverse : held;
    } else if (b->options->outer_product) {
        owner->decomposition_bytes += values;
    } else {
        held += values;
        sent += values;
    }
    for (int row = 0; row < plan->rows; row++)
        plan->loads[row * plan->columns + column].decomposition_bytes += held;
    owner->decompositions_sent += (double)(plan->rows - 1) * (double)sent;
    owner->work += cube(item->n);
    for (int r = 0; b->options->ekfac == DSC_KFAC_EKFAC_SAMPLES && r < plan->ranks; r++) {
        /* Vectors are also sent along the rows, to all other columns. */
        size_t vectors = square(item->n) * w.inverse;
        if (r % plan->columns == column)
            plan->loads[r].decompositions_sent += (double)(plan->columns - 1) * (double)vectors;
        else
            plan->loads[r].decomposition_bytes += vectors;
    }
}

/* Adds the second moments of a step's samples: averaged on all ranks, or on the only rank of the unit's column. */
static void load_samples(const builder *b, widths w, const dsc_kfac_unit *unit) {
    dsc_kfac_plan *plan = b->plan;
    size_t bytes = (size_t)unit->g_n * (size_t)unit->a_n * w.grad;
    double all_reduce = 2.0 * (plan->ranks - 1) / plan->ranks * (double)bytes;
    for (int r = 0; r < plan->ranks; r++) {
        plan->loads[r].exchange_bytes += bytes;
        plan->loads[r].factors_sent += plan->rows > 1 ? all_reduce : r == unit->column ? 0 : (double)bytes;
    }
}

/* Adds the matrices of a whole unit: 1/(vG vA' + damping) or second moments, and the preconditioned gradient. */
static void load_unit(const builder *b, widths w, const dsc_kfac_unit *unit) {
    dsc_kfac_plan *plan = b->plan;
    size_t numbers = (size_t)unit->g_n * (size_t)unit->a_n;
    for (int row = 0; row < plan->rows; row++) {
        dsc_kfac_load *load = &plan->loads[row * plan->columns + unit->column];
        if (b->options->outer_product)
            load->decomposition_bytes += numbers * w.inverse;
        if (b->options->ekfac != DSC_KFAC_EKFAC_OFF)
            load->decomposition_bytes += numbers * w.grad;
        load->preconditioned_sent += (double)(plan->columns - 1) * (double)(numbers * w.grad);
    }
    if (b->options->ekfac == DSC_KFAC_EKFAC_SAMPLES)
        load_samples(b, w, unit);
    if (b->options->outer_product)
        plan->loads[plan->items[unit->first_item].owner].decompositions_sent +=
            (double)(plan->rows - 1) * (double)(numbers * w.inverse);
}

static dsc_status count_loads(const builder *b) {
    dsc_kfac_plan *plan = b->plan;
    const dsc_kfac_options *o = b->options;
    size_t grad = dsc_dtype_size(b->dtype);
    widths w = {.grad = grad,
                .factor = o->factor_dtype == DSC_F32 ? grad : dsc_dtype_size(o->factor_dtype),
                .inverse = o->inverse_dtype == DSC_F32 ? grad : dsc_dtype_size(o->inverse_dtype)};
    DSC_TRY(dsc_memory_alloc(plan->ranks, sizeof *plan->loads, &plan->loads));
    for (int64_t u = 0; u < plan->unit_count; u++) {
        const dsc_kfac_unit *unit = &plan->units[u];
        const dsc_kfac_item *items = plan->items + unit->first_item;
        if (plan->a_unit[u] == u)
            load_factor(b, w, unit->a_n, items[0].owner);
        load_factor(b, w, unit->g_n, items[unit->a_blocks].owner);
        for (int64_t i = 0; i < dsc_kfac_unit_items(unit); i++)
            load_item(b, w, &items[i], unit->column);
        load_unit(b, w, unit);
    }
    return DSC_OK;
}

/* ---- creating and destroying ---- */

/* Refuses more blocks than the largest factor that can be split has rows. */
static dsc_status check_blocks(const builder *b) {
    const dsc_kfac_plan *plan = b->plan;
    int64_t rows = 0;
    for (int64_t u = 0; u < plan->unit_count; u++)
        if (dsc_kfac_kind_of(&b->layers[plan->units[u].layer])->splits) {
            rows = plan->units[u].a_n > rows ? plan->units[u].a_n : rows;
            rows = plan->units[u].g_n > rows ? plan->units[u].g_n : rows;
        }
    if (rows == 0 || b->blocks <= rows)
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_INVALID,
        "%lld K-FAC diagonal blocks, but the largest factor of a convolution has %lld rows: choose "
        "fewer (kfac-diag-blocks)",
        (long long)b->blocks, (long long)rows);
}

static dsc_status build(builder *b) {
    DSC_TRY(survey(b));
    DSC_TRY(make_units(b));
    DSC_TRY(make_items(b->plan));
    DSC_TRY(check_blocks(b));
    DSC_TRY(b->options->placement == DSC_KFAC_ROUND_ROBIN ? place_in_turns(b) : place_by_cost(b));
    return count_loads(b);
}

dsc_status dsc_kfac_plan_make(const dsc_kfac_layer *layers, int64_t count, int ranks,
                              const dsc_kfac_options *options, int64_t blocks, dsc_kfac_plan **out) {
    builder b = {.layers = layers, .count = count, .blocks = blocks, .options = options};
    int rows = 0;
    if (blocks != 1 && blocks != options->diag_blocks)
        return DSC_FAIL(DSC_E_INVALID,
                        "a K-FAC plan with %lld diagonal blocks: must be 1 or the %lld of the "
                        "options",
                        (long long)blocks, (long long)options->diag_blocks);
    DSC_TRY(dsc_kfac_grid_rows(options, ranks, &rows));
    DSC_TRY(dsc_memory_alloc(1, sizeof *b.plan, &b.plan));
    b.plan->ranks = ranks;
    b.plan->rows = rows;
    b.plan->columns = ranks / rows;
    dsc_status status = build(&b);
    dsc_memory_free(&b.skip);
    dsc_memory_free(&b.column_cost);
    dsc_memory_free(&b.rank_cost);
    if (status != DSC_OK) {
        dsc_kfac_plan_destroy(&b.plan);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = b.plan;
    return DSC_OK;
}

dsc_status dsc_kfac_plan_create(const dsc_kfac_layer *layers, int64_t count, int ranks,
                                const dsc_kfac_options *options, int64_t blocks, dsc_kfac_plan **out) {
    dsc_kfac_options read;
    dsc_kfac_layer *own;
    DSC_TRY(dsc_kfac_options_read(options, ranks, &read));
    DSC_TRY(dsc_kfac_layers_copy(layers, count, &own));
    dsc_status status = dsc_kfac_plan_make(own, count, ranks, &read, blocks, out);
    dsc_kfac_layers_release(&own, count);
    return status;
}

void dsc_kfac_plan_destroy(dsc_kfac_plan **plan) {
    if (!plan || !*plan)
        return;
    for (int64_t u = 0; (*plan)->units && u < (*plan)->unit_count; u++)
        dsc_memory_free(&(*plan)->units[u].name);
    dsc_memory_free(&(*plan)->units);
    dsc_memory_free(&(*plan)->a_unit);
    dsc_memory_free(&(*plan)->items);
    dsc_memory_free(&(*plan)->loads);
    dsc_memory_free(plan);
}

int64_t dsc_kfac_plan_unit_count(const dsc_kfac_plan *plan) {
    return plan->unit_count;
}

const dsc_kfac_unit *dsc_kfac_plan_units(const dsc_kfac_plan *plan) {
    return plan->units;
}

int64_t dsc_kfac_plan_item_count(const dsc_kfac_plan *plan) {
    return plan->item_count;
}

const dsc_kfac_item *dsc_kfac_plan_items(const dsc_kfac_plan *plan) {
    return plan->items;
}

int dsc_kfac_plan_rows(const dsc_kfac_plan *plan) {
    return plan->rows;
}

int dsc_kfac_plan_columns(const dsc_kfac_plan *plan) {
    return plan->columns;
}

const dsc_kfac_load *dsc_kfac_plan_loads(const dsc_kfac_plan *plan) {
    return plan->loads;
}

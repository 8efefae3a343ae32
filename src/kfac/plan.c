/* Who does what.
 *
 * Units are the layers that are not skipped, groups of a convolution one by one; items are the matrices to
 * decompose: A and G of a unit, or their diagonal blocks. A unit goes to a column of the grid, its items to
 * ranks of that column:
 *
 *   round-robin      unit i to column i mod columns; the ranks of a column take turns, item by item, or
 *                    unit by unit when factors are co-located
 *   compute, memory  units by falling cost to the least loaded column; in it the unit (co-located), or each
 *                    of its items, the largest first, to the least loaded rank; cost: sum of n^3, or n^2
 *
 * Blocks always go their own ways. What follows from that for each rank, in bytes held and sent, is in the
 * second half; N ranks, m rows, C columns, "tri" = n (n + 1) / 2. */
#include "kfac/plan.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything the plan is made from, and what is needed only while it is made. */
typedef struct builder {
    const dsc_kfac_layer *layers;
    int64_t count;
    dsc_kfac_options options;
    int64_t blocks;
    dsc_dtype dtype;     /* of the gradients */
    unsigned char *skip; /* [count] */
    dsc_kfac_plan *plan;
    double *column_cost; /* [columns] */
    double *rank_cost;   /* [ranks] */
    int64_t *turns;      /* [columns] */
} builder;

/* ---- units and items ---- */

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Marks skipped layers, checks the others, and counts units. */
static dsc_status survey(builder *b) {
    const dsc_kfac_layer *first = NULL;
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *b->skip, &b->skip));
    DSC_TRY(dsc_kfac_skip(b->layers, b->count, b->options.skip_layers, b->skip));
    for (int64_t i = 0; i < b->count; i++) {
        const dsc_kfac_layer *layer = &b->layers[i];
        if (b->skip[i])
            continue;
        DSC_TRY(dsc_kfac_layer_check(layer));
        first = first ? first : layer;
        if (layer->weight_grad.dtype != first->weight_grad.dtype)
            return DSC_FAIL(DSC_E_INVALID,
                            "the gradients of layer '%s' are %s, those of '%s' %s: must be of one type",
                            first->name, dsc_dtype_name(first->weight_grad.dtype), layer->name,
                            dsc_dtype_name(layer->weight_grad.dtype));
        b->plan->unit_count += dsc_kfac_layer_groups(layer);
    }
    if (!first && b->count > 0)
        dsc_log(DSC_LOG_WARNING, "K-FAC layers to skip: all of them are, every gradient stays as it is");
    b->dtype = first ? first->weight_grad.dtype : DSC_F32;
    return DSC_OK;
}

static dsc_status name_unit(const dsc_kfac_layer *layer, int64_t group, const char **out) {
    char *name;
    size_t size = strlen(layer->name) + 24;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, &name));
    if (dsc_kfac_layer_groups(layer) > 1)
        snprintf(name, size, "%s[%lld]", layer->name, (long long)group);
    else
        snprintf(name, size, "%s", layer->name);
    *out = name;
    return DSC_OK;
}

/* Checkpoints tell units apart by their names. */
static dsc_status check_names(const dsc_kfac_plan *plan) {
    for (int64_t i = 0; i < plan->unit_count; i++)
        for (int64_t j = 0; j < i; j++)
            if (strcmp(plan->units[i].name, plan->units[j].name) == 0)
                return DSC_FAIL(
                    DSC_E_INVALID, "K-FAC layers %lld and %lld are both named '%s': names must differ",
                    (long long)plan->units[j].layer, (long long)plan->units[i].layer, plan->units[i].name);
    return DSC_OK;
}

/* In the order of the layers, groups inside. */
static dsc_status make_units(builder *b) {
    dsc_kfac_plan *plan = b->plan;
    int64_t number = 0;
    DSC_TRY(dsc_memory_alloc(plan->unit_count, sizeof *plan->units, &plan->units));
    for (int64_t i = 0; i < b->count; i++) {
        const dsc_kfac_layer *layer = &b->layers[i];
        for (int64_t group = 0; group < dsc_kfac_layer_groups(layer) && !b->skip[i]; group++) {
            dsc_kfac_unit *unit = &plan->units[number++];
            int64_t blocks = layer->kind == DSC_KFAC_CONV2D ? b->blocks : 1;
            DSC_TRY(name_unit(layer, group, &unit->name));
            unit->layer = i;
            unit->group = group;
            unit->kind = layer->kind;
            unit->a_n = dsc_kfac_layer_a(layer);
            unit->g_n = dsc_kfac_layer_g(layer);
            unit->a_blocks = smaller(blocks, unit->a_n);
            unit->g_blocks = smaller(blocks, unit->g_n);
            unit->first_item = plan->item_count;
            plan->item_count += unit->a_blocks + unit->g_blocks;
        }
    }
    return DSC_OK;
}

/* Blocks of floor(n / blocks) rows; the last takes the rest. */
static void split_factor(dsc_kfac_item *items, int64_t unit, dsc_kfac_side side, int64_t n, int64_t blocks) {
    for (int64_t i = 0; i < blocks; i++) {
        int64_t first = i * (n / blocks);
        items[i] = (dsc_kfac_item){
            .unit = unit,
            .side = side,
            .block = i,
            .first = first,
            .n = i + 1 < blocks ? n / blocks : n - first,
        };
    }
}

static dsc_status make_items(dsc_kfac_plan *plan) {
    DSC_TRY(dsc_memory_alloc(plan->item_count, sizeof *plan->items, &plan->items));
    for (int64_t u = 0; u < plan->unit_count; u++) {
        const dsc_kfac_unit *unit = &plan->units[u];
        dsc_kfac_item *items = plan->items + unit->first_item;
        split_factor(items, u, DSC_KFAC_A, unit->a_n, unit->a_blocks);
        split_factor(items + unit->a_blocks, u, DSC_KFAC_G, unit->g_n, unit->g_blocks);
    }
    return DSC_OK;
}

/* ---- placement ---- */

static int64_t items_of(const dsc_kfac_unit *unit) {
    return unit->a_blocks + unit->g_blocks;
}

/* 1 when all items of the unit go to one rank. */
static int stays_together(const builder *b, const dsc_kfac_unit *unit) {
    return b->options.colocate_factors && items_of(unit) == 2;
}

static double cube(int64_t n) {
    return (double)n * (double)n * (double)n;
}

static double cost_of(const builder *b, int64_t n) {
    return b->options.placement == DSC_KFAC_MEMORY ? (double)n * (double)n : cube(n);
}

/* One step of round-robin: whose turn it is in a column. */
static int take_turn(builder *b, int column) {
    const dsc_kfac_plan *plan = b->plan;
    int row = (int)(b->turns[column]++ % plan->rows);
    return row * plan->columns + column;
}

static void place_in_turns(builder *b) {
    dsc_kfac_plan *plan = b->plan;
    for (int64_t u = 0; u < plan->unit_count; u++) {
        dsc_kfac_unit *unit = &plan->units[u];
        dsc_kfac_item *items = plan->items + unit->first_item;
        unit->column = (int)(u % plan->columns);
        for (int64_t i = 0; i < items_of(unit); i++)
            items[i].owner = i > 0 && stays_together(b, unit) ? items[0].owner : take_turn(b, unit->column);
    }
}

/* What is put into falling order of cost; of equal ones the lower number comes first. */
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

/* The place with the least cost among `count`, `stride` apart from `first` on; of equal ones the first. */
static int least_loaded(const double *cost, int first, int count, int stride) {
    int best = first;
    for (int i = 1; i < count; i++)
        if (cost[first + i * stride] < cost[best])
            best = first + i * stride;
    return best;
}

static int least_loaded_rank(const builder *b, int column) {
    return least_loaded(b->rank_cost, column, b->plan->rows, b->plan->columns);
}

/* The items of a unit to ranks of its column. `order` has room for them. */
static void place_items(builder *b, const dsc_kfac_unit *unit, double cost, ranked *order) {
    dsc_kfac_item *items = b->plan->items + unit->first_item;
    int64_t count = items_of(unit);
    if (stays_together(b, unit)) {
        int rank = least_loaded_rank(b, unit->column);
        items[0].owner = items[1].owner = rank;
        b->rank_cost[rank] += cost;
        return;
    }
    for (int64_t i = 0; i < count; i++)
        order[i] = (ranked){cost_of(b, items[i].n), i};
    qsort(order, (size_t)count, sizeof *order, costlier_first);
    for (int64_t i = 0; i < count; i++) {
        int rank = least_loaded_rank(b, unit->column);
        items[order[i].number].owner = rank;
        b->rank_cost[rank] += order[i].cost;
    }
}

static double unit_cost(const builder *b, const dsc_kfac_unit *unit) {
    double cost = 0;
    for (int64_t i = 0; i < items_of(unit); i++)
        cost += cost_of(b, b->plan->items[unit->first_item + i].n);
    return cost;
}

static dsc_status place_by_cost(builder *b) {
    dsc_kfac_plan *plan = b->plan;
    ranked *order; /* the units, and behind them room for the items of one */
    DSC_TRY(dsc_memory_alloc(plan->unit_count + plan->item_count, sizeof *order, &order));
    for (int64_t u = 0; u < plan->unit_count; u++)
        order[u] = (ranked){unit_cost(b, &plan->units[u]), u};
    qsort(order, (size_t)plan->unit_count, sizeof *order, costlier_first);
    for (int64_t i = 0; i < plan->unit_count; i++) {
        dsc_kfac_unit *unit = &plan->units[order[i].number];
        unit->column = least_loaded(b->column_cost, 0, plan->columns, 1);
        b->column_cost[unit->column] += order[i].cost;
        place_items(b, unit, order[i].cost, order + plan->unit_count);
    }
    dsc_memory_free(&order);
    return DSC_OK;
}

static dsc_status place(builder *b) {
    const dsc_kfac_plan *plan = b->plan;
    DSC_TRY(dsc_memory_alloc(plan->columns, sizeof *b->column_cost, &b->column_cost));
    DSC_TRY(dsc_memory_alloc(plan->ranks, sizeof *b->rank_cost, &b->rank_cost));
    DSC_TRY(dsc_memory_alloc(plan->columns, sizeof *b->turns, &b->turns));
    if (b->options.placement != DSC_KFAC_ROUND_ROBIN)
        return place_by_cost(b);
    place_in_turns(b);
    return DSC_OK;
}

/* ---- what it costs ---- */

/* Bytes of one number: gradients and values, factors, decompositions. */
typedef struct widths {
    size_t grad, factor, inverse;
} widths;

static widths widths_of(const builder *b) {
    size_t grad = dsc_dtype_size(b->dtype);
    const dsc_kfac_options *o = &b->options;
    return (widths){
        .grad = grad,
        .factor = o->factor_dtype == DSC_F32 ? grad : dsc_dtype_size(o->factor_dtype),
        .inverse = o->inverse_dtype == DSC_F32 ? grad : dsc_dtype_size(o->inverse_dtype),
    };
}

static size_t square(int64_t n) {
    return (size_t)n * (size_t)n;
}

static size_t triangle(int64_t n) {
    return (size_t)n * ((size_t)n + 1) / 2;
}

/* Numbers of a symmetric matrix that travel. */
static size_t travelling(const builder *b, int64_t n) {
    return b->options.symmetric ? triangle(n) : square(n);
}

/* A factor of n rows: its running average, kept by everybody when m = N, else by its owner; and its share in
 * the averaging over ranks. */
static void load_factor(const builder *b, int64_t n, int owner) {
    dsc_kfac_plan *plan = b->plan;
    widths w = widths_of(b);
    int everywhere = plan->rows == plan->ranks;
    double bytes = (double)(travelling(b, n) * w.factor);
    double all_reduce = 2.0 * (plan->ranks - 1) / plan->ranks * bytes;
    for (int r = 0; r < plan->ranks; r++) {
        dsc_kfac_load *load = &plan->loads[r];
        if (everywhere || r == owner)
            load->factor_bytes += triangle(n) * w.factor;
        if (plan->ranks > 1 || b->options.passes > 1 || b->options.late_factors)
            load->exchange_bytes += travelling(b, n) * w.grad;
        load->factors_sent += everywhere ? all_reduce : r == owner ? 0 : bytes;
    }
}

/* An item: held by the ranks of the column, sent there by its owner. */
static void load_item(const builder *b, const dsc_kfac_item *item, int column) {
    dsc_kfac_plan *plan = b->plan;
    dsc_kfac_load *owner = &plan->loads[item->owner];
    const dsc_kfac_options *o = &b->options;
    widths w = widths_of(b);
    size_t values = (size_t)item->n * w.grad, held = square(item->n) * w.inverse, sent = held;
    if (o->method == DSC_KFAC_INVERSE) {
        sent = travelling(b, item->n) * w.inverse;
    } else if (o->outer_product) {
        owner->decomposition_bytes += values;
    } else {
        held += values;
        sent += values;
    }
    for (int row = 0; row < plan->rows; row++)
        plan->loads[row * plan->columns + column].decomposition_bytes += held;
    owner->decompositions_sent += (double)(plan->rows - 1) * (double)sent;
    owner->work += cube(item->n);
}

/* What belongs to a unit as a whole: 1/(vG vA' + damping), and the preconditioned gradient. */
static void load_unit(const builder *b, const dsc_kfac_unit *unit) {
    dsc_kfac_plan *plan = b->plan;
    widths w = widths_of(b);
    size_t numbers = (size_t)unit->g_n * (size_t)unit->a_n;
    for (int row = 0; row < plan->rows; row++) {
        dsc_kfac_load *load = &plan->loads[row * plan->columns + unit->column];
        if (b->options.outer_product)
            load->decomposition_bytes += numbers * w.inverse;
        load->preconditioned_sent += (double)(plan->columns - 1) * (double)(numbers * w.grad);
    }
    if (b->options.outer_product)
        plan->loads[plan->items[unit->first_item].owner].decompositions_sent +=
            (double)(plan->rows - 1) * (double)(numbers * w.inverse);
}

static dsc_status count_loads(const builder *b) {
    dsc_kfac_plan *plan = b->plan;
    DSC_TRY(dsc_memory_alloc(plan->ranks, sizeof *plan->loads, &plan->loads));
    for (int64_t u = 0; u < plan->unit_count; u++) {
        const dsc_kfac_unit *unit = &plan->units[u];
        const dsc_kfac_item *items = plan->items + unit->first_item;
        load_factor(b, unit->a_n, items[0].owner);
        load_factor(b, unit->g_n, items[unit->a_blocks].owner);
        for (int64_t i = 0; i < items_of(unit); i++)
            load_item(b, &items[i], unit->column);
        load_unit(b, unit);
    }
    return DSC_OK;
}

/* ---- life ---- */

static dsc_status build(builder *b) {
    dsc_kfac_plan *plan = b->plan;
    DSC_TRY(survey(b));
    DSC_TRY(make_units(b));
    DSC_TRY(check_names(plan));
    DSC_TRY(make_items(plan));
    DSC_TRY(place(b));
    DSC_TRY(count_loads(b));
    return DSC_OK;
}

static dsc_status check_arguments(const builder *b) {
    if (b->count < 0 || (b->count > 0 && !b->layers))
        return DSC_FAIL(DSC_E_INVALID, "%lld K-FAC layers%s: must be 0 or more", (long long)b->count,
                        b->layers ? "" : " at NULL");
    if (b->blocks != 1 && b->blocks != b->options.diag_blocks)
        return DSC_FAIL(DSC_E_INVALID,
                        "a K-FAC plan with %lld diagonal blocks: must be 1 or the %lld of the "
                        "options",
                        (long long)b->blocks, (long long)b->options.diag_blocks);
    return DSC_OK;
}

dsc_status dsc_kfac_plan_create(const dsc_kfac_layer *layers, int64_t count, int ranks,
                                const dsc_kfac_options *options, int64_t blocks, dsc_kfac_plan **out) {
    builder b = {.layers = layers, .count = count, .blocks = blocks};
    DSC_TRY(dsc_kfac_options_read(options, ranks, &b.options));
    DSC_TRY(check_arguments(&b));
    int rows = 0;
    DSC_TRY(dsc_kfac_grid_rows(&b.options, ranks, &rows));
    DSC_TRY(dsc_memory_alloc(1, sizeof *b.plan, &b.plan));
    b.plan->ranks = ranks;
    b.plan->rows = rows;
    b.plan->columns = ranks / rows;
    dsc_status status = build(&b);
    dsc_memory_free(&b.skip);
    dsc_memory_free(&b.column_cost);
    dsc_memory_free(&b.rank_cost);
    dsc_memory_free(&b.turns);
    if (status != DSC_OK) {
        dsc_kfac_plan_destroy(&b.plan);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = b.plan;
    return DSC_OK;
}

void dsc_kfac_plan_destroy(dsc_kfac_plan **plan) {
    if (!plan || !*plan)
        return;
    for (int64_t u = 0; (*plan)->units && u < (*plan)->unit_count; u++)
        dsc_memory_free(&(*plan)->units[u].name);
    dsc_memory_free(&(*plan)->units);
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

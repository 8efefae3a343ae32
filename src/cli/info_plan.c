/* A K-FAC plan as tables and as JSON: the grid of ranks, which rank decomposes which factor, and the work,
 * the memory and the traffic of each rank.
 *
 * Bytes are shown in MB of 10^6; work is the sum of n^3, as a share of all ranks' work. */
#include "cli/info_plan.h"

#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_OWNERS_SHOWN = 8 }; /* of the blocks of one factor, in the table */

static double mega(double bytes) {
    return bytes / 1e6;
}

static int rank_count(const dsc_kfac_plan *plan) {
    return dsc_kfac_plan_rows(plan) * dsc_kfac_plan_columns(plan);
}

/* ---- sums over the ranks ---- */

enum {
    WORK,
    FACTORS,
    DECOMPOSITIONS,
    EXCHANGE,
    FACTORS_SENT,
    DECOMPOSITIONS_SENT,
    PRECONDITIONED_SENT,
    FIELDS
};

static const char *const field_names[FIELDS] = {
    [WORK] = "work",
    [FACTORS] = "factor_bytes",
    [DECOMPOSITIONS] = "decomposition_bytes",
    [EXCHANGE] = "exchange_bytes",
    [FACTORS_SENT] = "factors_sent",
    [DECOMPOSITIONS_SENT] = "decompositions_sent",
    [PRECONDITIONED_SENT] = "preconditioned_sent",
};

typedef struct fields {
    double of[FIELDS];
} fields;

static fields fields_of(const dsc_kfac_load *load) {
    return (fields){{
        [WORK] = load->work,
        [FACTORS] = (double)load->factor_bytes,
        [DECOMPOSITIONS] = (double)load->decomposition_bytes,
        [EXCHANGE] = (double)load->exchange_bytes,
        [FACTORS_SENT] = load->factors_sent,
        [DECOMPOSITIONS_SENT] = load->decompositions_sent,
        [PRECONDITIONED_SENT] = load->preconditioned_sent,
    }};
}

typedef struct totals {
    fields sum, least, most, mean;
} totals;

static totals total(const dsc_kfac_plan *plan) {
    totals t;
    int ranks = rank_count(plan);
    t.sum = t.least = t.most = fields_of(&dsc_kfac_plan_loads(plan)[0]);
    for (int r = 1; r < ranks; r++) {
        fields f = fields_of(&dsc_kfac_plan_loads(plan)[r]);
        for (int i = 0; i < FIELDS; i++) {
            t.sum.of[i] += f.of[i];
            t.least.of[i] = f.of[i] < t.least.of[i] ? f.of[i] : t.least.of[i];
            t.most.of[i] = f.of[i] > t.most.of[i] ? f.of[i] : t.most.of[i];
        }
    }
    for (int i = 0; i < FIELDS; i++)
        t.mean.of[i] = t.sum.of[i] / ranks;
    return t;
}

static double ratio(double x, double of) {
    return of > 0 ? x / of : 0;
}

/* ---- text ---- */

static void print_head(const dsc_kfac_plan *plan, const dsc_kfac_options *o, int64_t layer_count) {
    int rows = dsc_kfac_plan_rows(plan), columns = dsc_kfac_plan_columns(plan);
    int64_t units = dsc_kfac_plan_unit_count(plan), last = -1, layers = 0;
    for (int64_t u = 0; u < units; u++) {
        layers += dsc_kfac_plan_units(plan)[u].layer != last;
        last = dsc_kfac_plan_units(plan)[u].layer;
    }
    printf("\nK-FAC plan    %d %s, %s, method %s\n", rank_count(plan),
           rank_count(plan) == 1 ? "rank" : "ranks", dsc_kfac_strategy_name(o->strategy),
           dsc_kfac_method_name(o->method));
    printf("grid          %d x %d (rows x columns): each layer belongs to one column; rank r is in row r / "
           "%d, column "
           "r %% %d\n",
           rows, columns, columns, columns);
    printf("placement     %s, factors of a layer %s\n", dsc_kfac_placement_name(o->placement),
           o->colocate_factors ? "on one rank" : "spread");
    printf("travels as    %s%s\n", o->symmetric ? "triangles" : "whole matrices",
           o->outer_product ? ", with 1/(vG vA' + damping) for the eigenvalues" : "");
    printf("stored as     factors %s, decompositions %s\n", dsc_dtype_name(o->factor_dtype),
           dsc_dtype_name(o->inverse_dtype));
    printf("covers        %lld of %lld layers, %lld matrices to decompose\n", (long long)layers,
           (long long)layer_count, (long long)dsc_kfac_plan_item_count(plan));
}

/* "3", or "0,1,2" for blocks, with "..." after the first few. Returns `text`. */
static const char *owners_text(const dsc_kfac_item *items, int64_t count, char *text, size_t size) {
    size_t used = 0;
    if (count == 0) /* the A of an earlier layer or block */
        return "shared";
    text[0] = '\0';
    for (int64_t i = 0; i < count && i < MAX_OWNERS_SHOWN && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? "," : "", items[i].owner);
    if (count > MAX_OWNERS_SHOWN && used < size)
        snprintf(text + used, size - used, ",...");
    return text;
}

static void print_units(const dsc_kfac_plan *plan) {
    const dsc_kfac_unit *units = dsc_kfac_plan_units(plan);
    int64_t count = dsc_kfac_plan_unit_count(plan);
    char a[128], g[128];
    int width = 5, kind_width = 6;
    for (int64_t u = 0; u < count; u++) {
        int kind = (int)strlen(dsc_kfac_kind_name(units[u].kind));
        width = (int)strlen(units[u].name) > width ? (int)strlen(units[u].name) : width;
        kind_width = kind > kind_width ? kind : kind_width;
    }
    printf("\n%-*s  %-*s  %6s  %6s  %6s  %-8s  %-8s\n", width, "layer", kind_width, "kind", "A", "G",
           "column", "A's rank", "G's rank");
    for (int64_t u = 0; u < count; u++) {
        const dsc_kfac_unit *unit = &units[u];
        const dsc_kfac_item *items = dsc_kfac_plan_items(plan) + unit->first_item;
        printf("%-*s  %-*s  %6lld  %6lld  %6d  %-8s  %s\n", width, unit->name, kind_width,
               dsc_kfac_kind_name(unit->kind), (long long)unit->a_n, (long long)unit->g_n, unit->column,
               owners_text(items, unit->a_blocks, a, sizeof a),
               owners_text(items + unit->a_blocks, unit->g_blocks, g, sizeof g));
    }
}

static void print_fields(const fields *f, double all_work) {
    printf("%8.3f  %8.2f  %8.2f  %8.2f  %8.2f  %8.2f  %8.2f\n", 100 * ratio(f->of[WORK], all_work),
           mega(f->of[FACTORS]), mega(f->of[DECOMPOSITIONS]), mega(f->of[EXCHANGE]),
           mega(f->of[FACTORS_SENT]), mega(f->of[DECOMPOSITIONS_SENT]), mega(f->of[PRECONDITIONED_SENT]));
}

static void print_loads(const dsc_kfac_plan *plan) {
    const totals t = total(plan);
    int columns = dsc_kfac_plan_columns(plan);
    double all = t.sum.of[WORK];
    printf("\n%28s  %-28s  %s\n", "", "MB held", "MB sent");
    printf("%28s  %8s  %8s  %8s  %8s  %8s\n", "% of the", "", "decom-", "waiting", "a factor", "a decom-");
    printf("%4s  %4s  %6s  %8s  %8s  %8s  %8s  %8s  %8s  %8s\n", "rank", "row", "column", "work", "factors",
           "posed", "factors", "update", "position", "a step");
    for (int r = 0; r < rank_count(plan); r++) {
        fields f = fields_of(&dsc_kfac_plan_loads(plan)[r]);
        printf("%4d  %4d  %6d  ", r, r / columns, r % columns);
        print_fields(&f, all);
    }
    const struct {
        const char *name;
        const fields *f;
    } lines[] = {{"least", &t.least}, {"mean", &t.mean}, {"most", &t.most}, {"all", &t.sum}};
    printf("\n");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        printf("%-18s  ", lines[i].name);
        print_fields(lines[i].f, all);
    }
    printf("\nwork          %.3g in all; the slowest rank has %.2f times the mean\n", all,
           ratio(t.most.of[WORK], t.mean.of[WORK]));
}

void dsc_info_plan_print(const dsc_kfac_plan *plan, const dsc_kfac_options *options, int64_t layer_count) {
    print_head(plan, options, layer_count);
    print_units(plan);
    print_loads(plan);
}

/* ---- JSON ---- */

static json_t *owners_json(const dsc_kfac_item *items, int64_t count) {
    json_t *owners = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(owners, json_integer(items[i].owner));
    return owners;
}

static json_t *units_json(const dsc_kfac_plan *plan) {
    json_t *list = json_array();
    for (int64_t u = 0; u < dsc_kfac_plan_unit_count(plan); u++) {
        const dsc_kfac_unit *unit = &dsc_kfac_plan_units(plan)[u];
        const dsc_kfac_item *items = dsc_kfac_plan_items(plan) + unit->first_item;
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:I, s:I, s:i, s:o, s:o}", "name", unit->name, "kind",
                                        dsc_kfac_kind_name(unit->kind), "a", (json_int_t)unit->a_n, "g",
                                        (json_int_t)unit->g_n, "column", unit->column, "a_owners",
                                        owners_json(items, unit->a_blocks), "g_owners",
                                        owners_json(items + unit->a_blocks, unit->g_blocks)));
    }
    return list;
}

/* Whole numbers as integers, others as reals. */
static json_t *number_json(double x) {
    const double exact = 9007199254740992.0; /* 2^53 */
    return x == floor(x) && x < exact ? json_integer((json_int_t)x) : json_real(x);
}

static json_t *fields_json(const fields *f) {
    json_t *object = json_object();
    for (int i = 0; i < FIELDS; i++)
        json_object_set_new(object, field_names[i], number_json(f->of[i]));
    return object;
}

static json_t *loads_json(const dsc_kfac_plan *plan, double all_work) {
    json_t *list = json_array();
    int columns = dsc_kfac_plan_columns(plan);
    for (int r = 0; r < rank_count(plan); r++) {
        fields f = fields_of(&dsc_kfac_plan_loads(plan)[r]);
        json_t *object = fields_json(&f);
        json_object_set_new(object, "rank", json_integer(r));
        json_object_set_new(object, "row", json_integer(r / columns));
        json_object_set_new(object, "column", json_integer(r % columns));
        json_object_set_new(object, "share", json_real(ratio(f.of[WORK], all_work)));
        json_array_append_new(list, object);
    }
    return list;
}

json_t *dsc_info_plan_json(const dsc_kfac_plan *plan, const dsc_kfac_options *o) {
    totals t = total(plan);
    json_t *sums =
        json_pack("{s:o, s:o, s:o, s:o, s:f}", "sum", fields_json(&t.sum), "least", fields_json(&t.least),
                  "mean", fields_json(&t.mean), "most", fields_json(&t.most), "slowest_over_mean",
                  ratio(t.most.of[WORK], t.mean.of[WORK]));
    json_t *plan_json = json_pack(
        "{s:i, s:i, s:i, s:s, s:s, s:s, s:b, s:b, s:b, s:I, s:s, s:s, s:I}", "ranks", rank_count(plan),
        "rows", dsc_kfac_plan_rows(plan), "columns", dsc_kfac_plan_columns(plan), "strategy",
        dsc_kfac_strategy_name(o->strategy), "method", dsc_kfac_method_name(o->method), "placement",
        dsc_kfac_placement_name(o->placement), "colocate_factors", o->colocate_factors, "symmetric",
        o->symmetric, "outer_product", o->outer_product, "diag_blocks", (json_int_t)o->diag_blocks,
        "factor_dtype", dsc_dtype_name(o->factor_dtype), "inverse_dtype", dsc_dtype_name(o->inverse_dtype),
        "matrices", (json_int_t)dsc_kfac_plan_item_count(plan));
    if (!plan_json) {
        json_decref(sums);
        return NULL;
    }
    json_object_set_new(plan_json, "units", units_json(plan));
    json_object_set_new(plan_json, "loads", loads_json(plan, t.sum.of[WORK]));
    json_object_set_new(plan_json, "totals", sums);
    return plan_json;
}

/* The plan: layers divided into units, factors into items, the rank that owns each, and what that costs each rank.
 *
 * It depends only on the layers, the options and the number of ranks, so it is the same on every rank. */
#ifndef DSC_KFAC_PLACEMENT_H
#define DSC_KFAC_PLACEMENT_H

#include "kfac/kinds.h"

struct dsc_kfac_plan {
    int ranks, rows, columns;
    int64_t unit_count, item_count;
    dsc_kfac_unit *units; /* in the order of the layers; the groups of a layer in order */
    dsc_kfac_item *items; /* in the order of the units; for each, the blocks of A, then those of G */
    int64_t *a_unit;      /* [units] the unit whose A a unit uses: itself, or an earlier one */
    dsc_kfac_load *loads; /* [ranks] */
};

/* Like dsc_kfac_plan_create, for layers from dsc_kfac_layers_copy and options from dsc_kfac_options_read. */
dsc_status dsc_kfac_plan_make(const dsc_kfac_layer *layers, int64_t count, int ranks,
                              const dsc_kfac_options *options, int64_t blocks,
                              dsc_kfac_plan **out) DSC_MUST_CHECK;

/* Copies the caller's options over the defaults and checks them against each other and the number of ranks. Strings are
 * not copied: their pointers are kept. */
dsc_status dsc_kfac_options_read(const dsc_kfac_options *given, int ranks,
                                 dsc_kfac_options *out) DSC_MUST_CHECK;
/* Sets *rows to the number of rows of the grid: the gradient workers per layer. DSC_E_INVALID if N * fraction is off a
 * whole number by more than 0.01 or does not divide N; the message lists the fractions that do. */
dsc_status dsc_kfac_grid_rows(const dsc_kfac_options *options, int ranks, int *rows) DSC_MUST_CHECK;
/* Returns the hyper-parameters of a step without a schedule. */
dsc_kfac_hyper dsc_kfac_hyper_of(const dsc_kfac_options *options);
/* Checks the hyper-parameters, which a schedule may have changed. */
dsc_status dsc_kfac_hyper_check(const dsc_kfac_options *options, const dsc_kfac_hyper *hyper) DSC_MUST_CHECK;

static inline int64_t dsc_kfac_unit_items(const dsc_kfac_unit *unit) {
    return unit->a_blocks + unit->g_blocks;
}

/* These return the first item of the factor A, or G, that a unit uses. */
static inline int64_t dsc_kfac_a_item(const dsc_kfac_plan *plan, int64_t unit) {
    return plan->units[plan->a_unit[unit]].first_item;
}
static inline int64_t dsc_kfac_g_item(const dsc_kfac_plan *plan, int64_t unit) {
    return plan->units[unit].first_item + plan->units[unit].a_blocks;
}
/* Returns the number of diagonal blocks of the A that a unit uses. */
static inline int64_t dsc_kfac_a_blocks(const dsc_kfac_plan *plan, int64_t unit) {
    return plan->units[plan->a_unit[unit]].a_blocks;
}

enum { DSC_KFAC_EXACT_ROWS = 128 }; /* factors of up to this many rows are never cut or rotated */

/* Returns the number of eigenvectors that are kept at first of a factor of n rows. */
int64_t dsc_kfac_planned_rank(const dsc_kfac_options *options, int64_t n, int64_t exact_rows);

#endif

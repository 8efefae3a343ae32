/* Who does what: layers as units, factors as items, their owners, and what that costs each rank.
 *
 * A pure function of layers, options and the number of ranks, the same on every rank. */
#ifndef DSC_KFAC_PLAN_H
#define DSC_KFAC_PLAN_H

#include "descent/kfac.h"

struct dsc_kfac_plan {
    int ranks, rows, columns;
    int64_t unit_count, item_count;
    dsc_kfac_unit *units; /* in the order of the layers, groups inside */
    dsc_kfac_item *items; /* in the order of the units: the blocks of A, then those of G */
    dsc_kfac_load *loads; /* [ranks] */
};

/* The caller's options over the defaults, checked against each other and the number of ranks. Strings stay
 * the caller's. */
dsc_status dsc_kfac_options_read(const dsc_kfac_options *given, int ranks,
                                 dsc_kfac_options *out) DSC_MUST_CHECK;
/* Gradient workers of a layer: rows of the grid. DSC_E_INVALID when N * fraction is off a whole number by
 * more than 0.01 or does not divide N; the message lists the fractions that do. */
dsc_status dsc_kfac_grid_rows(const dsc_kfac_options *options, int ranks, int *rows) DSC_MUST_CHECK;
/* The hyper-parameters of a step without a schedule. */
dsc_kfac_hyper dsc_kfac_hyper_of(const dsc_kfac_options *options);
/* hyper, as a schedule left it. */
dsc_status dsc_kfac_hyper_check(const dsc_kfac_options *options, const dsc_kfac_hyper *hyper) DSC_MUST_CHECK;

/* Shapes, groups, gradients' sizes and types of one layer (of gradients only where they have memory). */
dsc_status dsc_kfac_layer_check(const dsc_kfac_layer *layer) DSC_MUST_CHECK;
/* skip[count]: 1 where options->skip_layers matches. DSC_E_INVALID names a bad expression. */
dsc_status dsc_kfac_skip(const dsc_kfac_layer *layers, int64_t count, const char *expressions,
                         unsigned char *skip) DSC_MUST_CHECK;
/* Output height and width of a convolution (1, 1 of a linear layer). */
void dsc_kfac_layer_output(const dsc_kfac_layer *layer, int64_t *out_h, int64_t *out_w);
/* Groups of a convolution; 1 of a linear layer. */
int64_t dsc_kfac_layer_groups(const dsc_kfac_layer *layer);
/* Rows of A (with the bias) and of G of one group. */
int64_t dsc_kfac_layer_a(const dsc_kfac_layer *layer);
int64_t dsc_kfac_layer_g(const dsc_kfac_layer *layer);
/* Where column j of A, ordered by input channel first, stands in weight order (kernel row, kernel column,
 * channel); the bias is last in both. */
int64_t dsc_kfac_natural_column(const dsc_kfac_layer *layer, int64_t j);

#endif

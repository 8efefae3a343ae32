/* Layer kinds: a table with one entry per kind, which holds everything K-FAC knows about a layer's geometry.
 *
 * A layer consists of one or more units (such as the groups of a convolution). Each unit has
 *
 *   A[a_n, a_n]   second moments of its inputs; the last row and column belong to the bias, if there is one; units
 *                 that read the same inputs share one A
 *   G[g_n, g_n]   second moments of the gradients at its outputs
 *   D[g_n, a_n]   its gradient: one row per output, with the bias as the last column
 *
 * To add a kind, write its entry dsc_kfac_kind_NAME in kind_NAME.c (all norms are in kind_norm.c, tied heads in
 * kind_embedding.c), a line in DSC_KFAC_KINDS (descent/kfac.h), and its tests. A kind with its own geometry adds a
 * pointer to it at the end of dsc_kfac_layer. */
#ifndef DSC_KFAC_KINDS_H
#define DSC_KFAC_KINDS_H

#include "descent/kfac.h"
#include "device/ops.h"

enum { DSC_KFAC_SIDES = 2 };

/* The number of units of a layer, and the number of rows of each unit's factors. */
typedef struct dsc_kfac_sizes {
    int64_t units, a_n, g_n;
    int one_a; /* 1: all units read the same inputs */
    int table; /* 1: an embedding or a tied head, whose weight has a_n g_n elements */
} dsc_kfac_sizes;

/* The rows whose second moments make up a factor: the patches that a convolution `desc` reads from x[n, h, w, c].
 * A plain matrix is described as a 1x1 convolution. */
typedef struct dsc_kfac_rows {
    dsc_tensor x;
    dsc_conv_desc desc;
} dsc_kfac_rows;

/* What the captured tensors of one pass contribute to the factors of a layer. */
typedef struct dsc_kfac_pass {
    dsc_kfac_rows rows[DSC_KFAC_SIDES]; /* of A and of G, for all units */
    int64_t samples, positions;         /* N and S of dsc_kfac_scaling */
    int64_t terms;                      /* terms of the loss: N, or as options.loss_terms says */
    double whole;                       /* samples of the batch / N; 1 unless options.factor_samples cut it */
    int64_t averaged; /* the number of positions that each row is the mean of; 1 unless sharing is reduce */
    /* F64 scalars by which batch factors are multiplied, for padding; no memory: 1. */
    dsc_tensor scale[DSC_KFAC_SIDES];
} dsc_kfac_pass;

/* All functions except `read` are given a layer made by dsc_kfac_layers_copy; those after `check`, one that was
 * checked. */
typedef struct dsc_kfac_kind_entry {
    const char *name; /* used in messages and reports, and matched by options.skip_layers */
    int splits;       /* 1: options.diag_blocks splits the factors */
    /* Copies the geometry that `given` points to, and sets own->in_c and out_c from it. NULL: nothing to do. */
    dsc_status (*read)(const dsc_kfac_layer *given, dsc_kfac_layer *own);
    /* Frees what `read` copied, even if it failed. NULL: nothing to do. */
    void (*release)(dsc_kfac_layer *own);
    /* Checks the geometry; in_c and out_c have been checked before. NULL: nothing to do. */
    dsc_status (*check)(const dsc_kfac_layer *layer);
    dsc_kfac_sizes (*sizes)(const dsc_kfac_layer *layer);
    /* Returns the column of D that is j-th in the order in which A is split into diagonal blocks; this order keeps
     * related columns together. */
    int64_t (*column)(const dsc_kfac_layer *layer, int64_t j);
    /* Checks captured tensors against the layer and describes what they contribute. Called in every step. */
    dsc_status (*capture)(const dsc_kfac_layer *layer, const dsc_tensor *a, const dsc_tensor *g,
                          dsc_kfac_pass *out);
    /* Returns the number of kernel positions: D's columns consist of as many equal parts, then the bias. NULL: 1. */
    int64_t (*positions)(const dsc_kfac_layer *layer);
    /* Describes where a unit's D is in the layer's gradients, in a struct of zeros: a view w of the g_n a_n elements
     * without those of the bias; b[g_n] if there is a bias; channels and strides if the elements of w are not in the
     * order of D. */
    void (*gradient)(const dsc_kfac_layer *layer, int64_t unit, dsc_join_item *out);
} dsc_kfac_kind_entry;

#define DSC_KFAC_KIND_DECLARE(constant, name) extern const dsc_kfac_kind_entry dsc_kfac_kind_##name;
DSC_KFAC_KINDS(DSC_KFAC_KIND_DECLARE)
#undef DSC_KFAC_KIND_DECLARE

/* Returns the entry of a layer's kind, or NULL if there is no such kind. */
const dsc_kfac_kind_entry *dsc_kfac_kind_of(const dsc_kfac_layer *layer);

/* Copies a caller's layers, whose structs may come from an older header, with their names and geometries. */
dsc_status dsc_kfac_layers_copy(const dsc_kfac_layer *layers, int64_t count,
                                dsc_kfac_layer **out) DSC_MUST_CHECK;
void dsc_kfac_layers_release(dsc_kfac_layer **layers, int64_t count);
/* Checks kind, geometry, sizes of factors, and the gradients that have memory. */
dsc_status dsc_kfac_layer_check(const dsc_kfac_layer *layer) DSC_MUST_CHECK;
/* Sets skip[count] to 1 for layers with leave_out, and for those that an expression of options.skip_layers matches.
 * DSC_E_INVALID names a bad expression. */
dsc_status dsc_kfac_skip(const dsc_kfac_layer *layers, int64_t count, const char *expressions,
                         unsigned char *skip) DSC_MUST_CHECK;

/* Returns the number of kernel positions of a layer. */
int64_t dsc_kfac_positions(const dsc_kfac_layer *layer);

/* Checks for entries. _size: the value is in least..2^24. _rows: a factor can have that many rows. _captured: the
 * tensor has `rows` rows (-1: any number) of `channels` elements, on the device of the layer's gradients, in their type
 * or in a half type. */
dsc_status dsc_kfac_check_size(const dsc_kfac_layer *layer, const char *what, int64_t value,
                               int64_t least) DSC_MUST_CHECK;
dsc_status dsc_kfac_check_rows(const dsc_kfac_layer *layer, char factor, int64_t rows) DSC_MUST_CHECK;
dsc_status dsc_kfac_check_captured(const dsc_kfac_layer *layer, const char *what, const dsc_tensor *t,
                                   int64_t channels, int64_t rows) DSC_MUST_CHECK;
/* For entries: returns t as a matrix of rows of `channels` elements, of which each unit reads its share. */
dsc_kfac_rows dsc_kfac_matrix_rows(const dsc_tensor *t, int64_t channels, int64_t units);
/* Returns the group of the rows that a unit reads: 0 if all units read the same rows. */
static inline int64_t dsc_kfac_rows_group(const dsc_kfac_rows *rows, int64_t unit) {
    return rows->desc.shape.groups > 1 ? unit : 0;
}
/* For entries: the function `gradient` of a weight that consists of the rows of D, unit by unit. */
void dsc_kfac_row_gradient(const dsc_kfac_layer *layer, int64_t unit, dsc_join_item *out);

/* For entries whose geometry is `conv` (kind_conv2d.c): `read` and `release`, a check of its members, and whether the
 * image size is only known from the captures. */
dsc_status dsc_kfac_conv_read(const dsc_kfac_layer *given, dsc_kfac_layer *own) DSC_MUST_CHECK;
void dsc_kfac_conv_release(dsc_kfac_layer *own);
dsc_status dsc_kfac_conv_check(const dsc_kfac_layer *layer) DSC_MUST_CHECK;
static inline int dsc_kfac_conv_any_size(const dsc_kfac_layer *layer) {
    return layer->conv->in_h == 0 && layer->conv->in_w == 0;
}

#endif

/* Padding: rows of a captured sequence that stand for no token. They enter neither A nor G, and do not count in R:
 *
 *   A = sum a a' / R over the R rows that are not padding,   G = M sum g g'
 *
 * They are marked by negative tokens. Their rows of a and g are set to 0, and the batch factors, which are formed from
 * all rows, are rescaled: A by rows / R; G, if every row is a term of the loss, by R / rows. The 1 for the bias is not
 * set to 0 in padding rows, so capture.c sets its mean square. R is known only on the device. Tables of positions have
 * a diagonal A of their own (embedding.c). */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"

/* Vectors in the scratch memory: 1, 2, ...; ones; tokens + 1/2; 1 where there is a token, else 0; indices of the rows,
 * -1 for padding. */
enum { COUNTING, ONES, TOKENS, KEEPS, ROWS, VECTORS };
/* Scalars: R; R / rows; 1; a damping that is negligible beside R / rows; rows / R. */
enum { KEPT, SHARE, ONE, LEAST, INVERSE, SCALARS };

void dsc_kfac_padding_destroy(dsc_kfac *k) {
    dsc_tensor_free(&k->padding.vectors);
    dsc_tensor_free(&k->padding.scalars);
    dsc_tensor_free(&k->padding.kept);
}

static dsc_tensor vector(const dsc_kfac *k, int which, int64_t rows) {
    const dsc_tensor *all = &k->padding.vectors;
    return dsc_tensor_slice(all, which * (dsc_tensor_count(all) / VECTORS), rows);
}

static dsc_tensor scalar(const dsc_kfac *k, int which) {
    return dsc_tensor_slice(&k->padding.scalars, which, 1);
}

/* Fills the vector 1, 2, ... in the type of the tokens. */
static dsc_status count_rows(dsc_kfac *k, dsc_queue *q, int64_t rows) {
    dsc_tensor to = vector(k, COUNTING, rows);
    void *host = NULL;
    DSC_TRY(dsc_memory_alloc(rows, dsc_dtype_size(to.dtype), &host));
    for (int64_t i = 0; i < rows; i++) {
        if (to.dtype == DSC_F64)
            ((double *)host)[i] = (double)(i + 1);
        else
            ((float *)host)[i] = (float)(i + 1);
    }
    dsc_status status = dsc_tensor_upload(q, host, dsc_tensor_bytes(&to), &to);
    if (status == DSC_OK)
        status = dsc_queue_sync(q);
    dsc_memory_free(&host);
    return status;
}

/* Makes the scratch memory large enough. It grows during the first captures. */
static dsc_status reserve(dsc_kfac *k, dsc_queue *q, dsc_dtype dtype, int64_t rows, size_t bytes) {
    dsc_kfac_padding *p = &k->padding;
    int64_t count = VECTORS * rows, scalars = SCALARS, size = (int64_t)bytes;
    if (!p->kept.data || dsc_tensor_bytes(&p->kept) < bytes) {
        dsc_tensor_free(&p->kept);
        p->kept = (dsc_tensor){0};
        DSC_TRY(dsc_tensor_alloc(k->device, DSC_U8, 1, &size, &p->kept));
    }
    if (p->vectors.data && p->vectors.dtype == dtype && dsc_tensor_count(&p->vectors) >= count)
        return DSC_OK;
    dsc_tensor_free(&p->vectors);
    dsc_tensor_free(&p->scalars);
    p->vectors = p->scalars = (dsc_tensor){0};
    DSC_TRY(dsc_tensor_alloc(k->device, dtype, 1, &count, &p->vectors));
    DSC_TRY(dsc_tensor_alloc(k->device, DSC_F64, 1, &scalars, &p->scalars));
    dsc_tensor ones = vector(k, ONES, rows), one = scalar(k, ONE), least = scalar(k, LEAST);
    DSC_TRY(dsc_op_fill(q, 1, &ones));
    DSC_TRY(dsc_op_fill(q, 1, &one));
    DSC_TRY(dsc_op_fill(q, 1e-30, &least)); /* against a division by 0 */
    return count_rows(k, q, rows);
}

static dsc_status check(const dsc_kfac *k, const dsc_kfac_layer *l, const dsc_tensor *tokens, int64_t rows) {
    if (l->kind != DSC_KFAC_LINEAR && l->kind != DSC_KFAC_TIED_HEAD && l->kind != DSC_KFAC_EMBEDDING)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC: layer '%s': tokens of a %s layer: only linear layers, tied heads and tables of "
            "positions have them",
            l->name, dsc_kfac_kind_name(l->kind));
    if (dsc_tensor_count(tokens) != rows || (tokens->dtype != DSC_F32 && tokens->dtype != DSC_F64) ||
        tokens->device != k->device)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': %lld tokens of type %s for %lld rows: one for each of them is "
                        "needed, as fp32 or fp64, on the layer's device",
                        l->name, (long long)dsc_tensor_count(tokens), dsc_dtype_name(tokens->dtype),
                        (long long)rows);
    if (l->kind != DSC_KFAC_LINEAR) /* the options below do not affect the other kinds */
        return DSC_OK;
    if (k->options.sharing == DSC_KFAC_REDUCE ||
        (k->options.ekfac == DSC_KFAC_EKFAC_SAMPLES && k->options.loss_terms == 0))
        return DSC_FAIL(
            DSC_E_UNSUPPORTED, "K-FAC: layer '%s': tokens with %s: leave them out, or choose another setting",
            l->name,
            k->options.sharing == DSC_KFAC_REDUCE ? "sharing reduce" : "ekfac samples, without loss_terms");
    return DSC_OK;
}

/* Computes the indices of the rows, and the scalars, from the tokens. */
static dsc_status read_tokens(dsc_kfac *k, dsc_queue *q, const dsc_tensor *tokens, int64_t rows) {
    dsc_tensor given = dsc_tensor_view(k->device, tokens->data, tokens->dtype, 1, &rows);
    dsc_tensor counting = vector(k, COUNTING, rows), ones = vector(k, ONES, rows),
               keeps = vector(k, KEEPS, rows);
    dsc_tensor shifted = vector(k, TOKENS, rows), numbers = vector(k, ROWS, rows);
    dsc_tensor kept = scalar(k, KEPT), share = scalar(k, SHARE), one = scalar(k, ONE),
               least = scalar(k, LEAST);
    dsc_tensor inverse = scalar(k, INVERSE), square = inverse;
    square.ndim = 2;
    square.dim[0] = square.dim[1] = 1;
    DSC_TRY(dsc_op_convert(q, &given, &shifted));
    DSC_TRY(dsc_op_axpby(q, 0.5, &ones, 1, &shifted));
    DSC_TRY(dsc_op_map(q, DSC_MAP_RELU_MASK, &shifted, &ones, 0, &keeps));
    DSC_TRY(dsc_op_map(q, DSC_MAP_RELU_MASK, &shifted, &counting, 0, &numbers));
    DSC_TRY(dsc_op_axpby(q, -1, &ones, 1, &numbers));
    DSC_TRY(dsc_op_dot(q, &keeps, &ones, 0, &kept));
    DSC_TRY(dsc_op_axpby(q, 1.0 / (double)rows, &kept, 0, &share));
    return dsc_op_outer_inverse(q, &least, &share, &one, &square);
}

dsc_status dsc_kfac_padding_keeps(dsc_kfac *k, dsc_queue *q, dsc_tensor *keeps) {
    dsc_tensor found = vector(k, KEEPS, dsc_tensor_count(keeps));
    return dsc_op_convert(q, &found, keeps);
}

/* Returns 1 if there are rows on this side: a tied head has no g, and a table no a. */
static int has_rows(const dsc_kfac_pass *pass, int side) {
    return pass->rows[side].x.data != NULL;
}

dsc_status dsc_kfac_padding_apply(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layer *l,
                                  const dsc_tensor *tokens, dsc_kfac_pass *pass) {
    int64_t rows = pass->samples;
    size_t bytes[DSC_KFAC_SIDES];
    DSC_TRY(check(k, l, tokens, rows));
    for (int side = 0; side < DSC_KFAC_SIDES; side++)
        bytes[side] = has_rows(pass, side) ? (dsc_tensor_bytes(&pass->rows[side].x) + 255) / 256 * 256 : 0;
    DSC_TRY(reserve(k, q, tokens->dtype, rows, bytes[DSC_KFAC_A] + bytes[DSC_KFAC_G]));
    DSC_TRY(read_tokens(k, q, tokens, rows));
    dsc_tensor numbers = vector(k, ROWS, rows);
    for (int side = 0; side < DSC_KFAC_SIDES; side++) {
        dsc_tensor *x = &pass->rows[side].x;
        if (!has_rows(pass, side))
            continue;
        const int64_t dim[2] = {rows, dsc_tensor_count(x) / rows};
        dsc_tensor table = dsc_tensor_view(x->device, x->data, x->dtype, 2, dim), kept = table;
        kept.data = (char *)k->padding.kept.data + (side == DSC_KFAC_G ? bytes[DSC_KFAC_A] : 0);
        DSC_TRY(dsc_op_embedding_forward(q, &numbers, &table, &kept)); /* zeros for row -1 */
        x->data = kept.data;
    }
    pass->scale[DSC_KFAC_A] = scalar(k, INVERSE);
    if (k->options.scaling == DSC_KFAC_PYTORCH) /* G is a mean over the rows, like A */
        pass->scale[DSC_KFAC_G] = scalar(k, INVERSE);
    else if (k->options.loss_terms == 0)
        pass->scale[DSC_KFAC_G] = scalar(k, SHARE);
    return DSC_OK;
}

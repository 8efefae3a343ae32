/* Front of the Gram matrix of patches, C = alpha P' P + beta C, and its composition for devices without an
 * entry of their own: slabs of patches, each a rank update. */
#include "device/checks.h"

#include "base/error.h"

/* Elements of a slab of patches, small enough for a cache. */
enum { SLAB_ELEMENTS = 1 << 16 };

static int64_t patch_width(const dsc_conv_desc *d) {
    return d->kh * d->kw * (d->c / d->groups);
}

/* 1 when the rows of x are the patches. */
static int is_direct(const dsc_conv_desc *d, int ones) {
    return d->kh == 1 && d->kw == 1 && d->stride_h == 1 && d->stride_w == 1 && d->pad_h == 0 &&
           d->pad_w == 0 && d->groups == 1 && !ones;
}

static int64_t slab_rows(int64_t positions, int64_t width) {
    int64_t rows = SLAB_ELEMENTS / width;
    if (rows < 1)
        rows = 1;
    return rows < positions ? rows : positions;
}

size_t dsc_op_patch_gram_workspace(dsc_device *device, const dsc_conv_desc *desc, int ones) {
    int64_t oh = 0, ow = 0;
    if (dsc_conv_output(desc, &oh, &ow) != DSC_OK)
        return 0; /* the call itself will say what is wrong */
    const dsc_device_table *table = dsc_device_table_for(device, desc->dtype);
    if (table->patch_gram)
        return table->patch_gram_workspace(device, desc, ones);
    int64_t width = patch_width(desc) + (ones ? 1 : 0);
    if (is_direct(desc, ones))
        return 0;
    return (size_t)(slab_rows(desc->n * oh * ow, width) * width) * dsc_dtype_size(desc->dtype);
}

/* Slab by slab; the first one takes `beta`. */
static dsc_status compose(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                          int64_t positions, const double factor[2], dsc_tensor *work, dsc_tensor *c) {
    const dsc_device_table *table = dsc_device_table_for(q->device, desc->dtype);
    int64_t width = c->dim[0], step = slab_rows(positions, width);
    if (is_direct(desc, width > patch_width(desc))) {
        const int64_t dim[] = {positions, width};
        dsc_tensor rows = dsc_tensor_view(q->device, x->data, desc->dtype, 2, dim);
        DSC_TRY(table->syrk(q, factor[0], &rows, factor[1], c));
        return DSC_OK;
    }
    for (int64_t first = 0; first < positions; first += step) {
        const int64_t dim[] = {positions - first < step ? positions - first : step, width};
        dsc_tensor slab = dsc_tensor_view(q->device, work->data, desc->dtype, 2, dim);
        DSC_TRY(table->patches(q, desc, x, group, first, &slab));
        DSC_TRY(table->syrk(q, factor[0], &slab, first == 0 ? factor[1] : 1.0, c));
    }
    return DSC_OK;
}

dsc_status dsc_op_patch_gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                             double alpha, double beta, dsc_tensor *work, dsc_tensor *c) {
    dsc_check check;
    int64_t oh = 0, ow = 0;
    DSC_TRY(dsc_conv_output(desc, &oh, &ow));
    DSC_TRY(dsc_check_begin_any(&check, "patch_gram", q));
    check.dtype = desc->dtype;
    DSC_TRY(dsc_check_real_shape(&check, "x", x, DSC_SHAPE(desc->n, desc->h, desc->w, desc->c)));
    DSC_TRY(dsc_check_real(&check, "c", c));
    DSC_TRY(dsc_check_dims(&check, "c", c, 2));
    int64_t width = patch_width(desc);
    int ones = c->dim[0] == width + 1;
    DSC_TRY(dsc_check_shape(&check, "c", c, DSC_SHAPE(width + ones, width + ones)));
    if (group < 0 || group >= desc->groups)
        return DSC_FAIL(DSC_E_INVALID, "patch_gram: group is %lld; 0 to %lld is expected", (long long)group,
                        (long long)desc->groups - 1);
    DSC_TRY(dsc_check_work(&check, work, dsc_op_patch_gram_workspace(q->device, desc, ones)));
    DSC_TRY(dsc_check_apart(&check, "c", c, "x", x));
    if (work) {
        DSC_TRY(dsc_check_apart(&check, "work", work, "x", x));
        DSC_TRY(dsc_check_apart(&check, "work", work, "c", c));
    }
    const dsc_device_table *table = dsc_device_table_for(q->device, desc->dtype);
    if (table->patch_gram)
        DSC_TRY(table->patch_gram(q, desc, x, group, alpha, beta, work, c));
    else
        DSC_TRY(compose(q, desc, x, group, desc->n * oh * ow, (const double[]){alpha, beta}, work, c));
    return DSC_OK;
}

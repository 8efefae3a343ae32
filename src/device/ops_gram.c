/* The front of the Gram matrix of patches, C = alpha P' P + beta C, and its composition for devices that do not
 * implement it: slabs of patches, and a symmetric rank-k update for each. */
#include "device/checks.h"

#include "base/error.h"

/* The elements of a slab of patches: small enough for the cache. */
enum { SLAB_ELEMENTS = 1 << 16 };

static int64_t patch_width(const dsc_conv_desc *d) {
    const dsc_conv2d_shape *s = &d->shape;
    return s->kernel_h * s->kernel_w * (s->in_c / s->groups);
}

/* Returns 1 if the rows of x are the patches. */
static int is_direct(const dsc_conv_desc *d, int ones) {
    const dsc_conv2d_shape *s = &d->shape;
    return s->kernel_h == 1 && s->kernel_w == 1 && s->stride_h == 1 && s->stride_w == 1 && s->pad_h == 0 &&
           s->pad_w == 0 && s->extra_h == 0 && s->extra_w == 0 && s->groups == 1 && !ones;
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
        return 0; /* the operation itself will report the error */
    const dsc_device_table *table = dsc_device_table_for(device, desc->dtype);
    if (table->patch_gram)
        return table->patch_gram_workspace(device, desc, ones);
    int64_t width = patch_width(desc) + (ones ? 1 : 0);
    if (is_direct(desc, ones))
        return 0;
    return (size_t)(slab_rows(desc->n * oh * ow, width) * width) * dsc_dtype_size(desc->dtype);
}

/* Computes C slab by slab: factor is alpha, and the beta of the first slab. */
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

/* Checks x and the group of both operations, and counts the output positions. */
static dsc_status check_patches(dsc_check *check, const char *op, dsc_queue *q, const dsc_conv_desc *desc,
                                const dsc_tensor *x, int64_t group, int64_t *positions) {
    const dsc_conv2d_shape *shape = &desc->shape;
    int64_t oh = 0, ow = 0;
    DSC_TRY(dsc_conv_output(desc, &oh, &ow));
    DSC_TRY(dsc_check_begin_any(check, op, q));
    DSC_TRY(dsc_check_set_half(check, "the type", desc->dtype));
    DSC_TRY(dsc_check_real_shape(check, "x", x, DSC_SHAPE(desc->n, shape->in_h, shape->in_w, shape->in_c)));
    if (group < 0 || group >= shape->groups)
        return DSC_FAIL(DSC_E_INVALID, "%s: group is %lld; 0 to %lld is expected", op, (long long)group,
                        (long long)shape->groups - 1);
    *positions = desc->n * oh * ow;
    return DSC_OK;
}

static dsc_status check_gram_work(const dsc_check *check, const dsc_tensor *work, size_t bytes,
                                  const dsc_tensor *x, const char *out_name, const dsc_tensor *out) {
    DSC_TRY(dsc_check_work(check, work, bytes));
    DSC_TRY(dsc_check_apart(check, out_name, out, "x", x));
    if (work) {
        DSC_TRY(dsc_check_apart(check, "work", work, "x", x));
        DSC_TRY(dsc_check_apart(check, "work", work, out_name, out));
    }
    return DSC_OK;
}

static dsc_status gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                       int64_t positions, const double factor[2], dsc_tensor *work, dsc_tensor *c) {
    const dsc_device_table *table = dsc_device_table_for(q->device, desc->dtype);
    if (table->patch_gram)
        DSC_TRY(table->patch_gram(q, desc, x, group, factor[0], factor[1], work, c));
    else
        DSC_TRY(compose(q, desc, x, group, positions, factor, work, c));
    return DSC_OK;
}

dsc_status dsc_op_patch_gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                             double alpha, double beta, dsc_tensor *work, dsc_tensor *c) {
    dsc_check check;
    int64_t positions = 0;
    DSC_TRY(check_patches(&check, "patch_gram", q, desc, x, group, &positions));
    DSC_TRY(dsc_check_param(&check, "c", c));
    DSC_TRY(dsc_check_dims(&check, "c", c, 2));
    int64_t width = patch_width(desc);
    int ones = c->dim[0] == width + 1;
    DSC_TRY(dsc_check_shape(&check, "c", c, DSC_SHAPE(width + ones, width + ones)));
    DSC_TRY(check_gram_work(&check, work, dsc_op_patch_gram_workspace(q->device, desc, ones), x, "c", c));
    DSC_TRY(gram(q, desc, x, group, positions, (const double[]){alpha, beta}, work, c));
    return DSC_OK;
}

/* The number of rows of a triangle with `count` elements: the width, or one more; -1 if it is neither. */
static int64_t packed_rows(int64_t width, int64_t count) {
    for (int ones = 0; ones < 2; ones++)
        if (count == (width + ones) * (width + ones + 1) / 2)
            return width + ones;
    return -1;
}

dsc_status dsc_op_patch_gram_packed(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x,
                                    int64_t group, double alpha, dsc_tensor *work, dsc_tensor *full,
                                    dsc_tensor *p) {
    dsc_check check;
    int64_t positions = 0;
    DSC_TRY(check_patches(&check, "patch_gram_packed", q, desc, x, group, &positions));
    DSC_TRY(dsc_check_param(&check, "p", p));
    DSC_TRY(dsc_check_dims(&check, "p", p, 1));
    int64_t width = patch_width(desc), n = packed_rows(width, p->dim[0]);
    if (n < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "patch_gram_packed: p is [%lld]; the triangle of %lld or %lld rows is expected",
                        (long long)p->dim[0], (long long)width, (long long)width + 1);
    DSC_TRY(
        check_gram_work(&check, work, dsc_op_patch_gram_workspace(q->device, desc, n > width), x, "p", p));
    const dsc_device_table *table = dsc_device_table_for(q->device, desc->dtype);
    if (table->patch_gram_packed) {
        DSC_TRY(table->patch_gram_packed(q, desc, x, group, alpha, work, full, p));
        return DSC_OK;
    }
    DSC_TRY(dsc_check_param(&check, "full", full));
    if (dsc_tensor_count(full) < n * n)
        return DSC_FAIL(DSC_E_INVALID, "patch_gram_packed: full has %lld elements; %lld are needed",
                        (long long)dsc_tensor_count(full), (long long)(n * n));
    DSC_TRY(check_gram_work(&check, work, 0, x, "full", full));
    DSC_TRY(dsc_check_apart(&check, "full", full, "p", p));
    dsc_tensor c = dsc_tensor_view(q->device, full->data, full->dtype, DSC_SHAPE(n, n));
    DSC_TRY(gram(q, desc, x, group, positions, (const double[]){alpha, 0}, work, &c));
    DSC_TRY(dsc_op_tri_pack(q, &c, p));
    return DSC_OK;
}

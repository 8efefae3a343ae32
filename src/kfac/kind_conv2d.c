/* Convolutions: a[n, in_h, in_w, in_c], g[n, out_h, out_w, out_c], weight[out_c, kernel_h, kernel_w, in_c /
 * groups].
 *
 * Every group is a unit. The rows of A are patches of the input: kernel_h * kernel_w * in_c / groups elements, and a 1
 * for the bias. The rows of G are the out_c / groups gradients at one position. N is the number of images, S the number
 * of output positions. */
#include "kfac/kinds.h"

#include "base/error.h"
#include "base/memory.h"

dsc_status dsc_kfac_conv_read(const dsc_kfac_layer *given, dsc_kfac_layer *own) {
    dsc_conv2d_shape *shape;
    own->conv = NULL;
    if (!given->conv)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': a %s layer needs its shape, `conv` is NULL",
                        given->name, dsc_kfac_kind_name(given->kind));
    DSC_TRY(dsc_memory_alloc(1, sizeof *shape, &shape));
    own->conv = shape;
    DSC_TRY(dsc_conv2d_shape_read(given->conv, shape));
    own->in_c = shape->in_c;
    own->out_c = shape->out_c;
    return DSC_OK;
}

void dsc_kfac_conv_release(dsc_kfac_layer *own) {
    dsc_memory_free(&own->conv);
}

dsc_status dsc_kfac_conv_check(const dsc_kfac_layer *layer) {
    const dsc_conv2d_shape *s = layer->conv;
    int any_size = dsc_kfac_conv_any_size(layer);
    const struct {
        const char *what;
        int64_t value, least;
    } sizes[] = {
        {"input height", s->in_h, !any_size},
        {"input width", s->in_w, !any_size},
        {"kernel height", s->kernel_h, 1},
        {"kernel width", s->kernel_w, 1},
        {"stride", s->stride_h, 1},
        {"stride", s->stride_w, 1},
        {"padding", s->pad_h, 0},
        {"padding", s->pad_w, 0},
        {"dilation", s->dilation_h, 1},
        {"dilation", s->dilation_w, 1},
        {"extra padding", s->extra_h, 0},
        {"extra padding", s->extra_w, 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        DSC_TRY(dsc_kfac_check_size(layer, sizes[i].what, sizes[i].value, sizes[i].least));
    if (s->groups < 1 || s->in_c % s->groups || s->out_c % s->groups)
        return DSC_FAIL(DSC_E_INVALID,
                        "layer '%s': %lld groups: must divide its %lld input and %lld output channels",
                        layer->name, (long long)s->groups, (long long)s->in_c, (long long)s->out_c);
    /* Checked before the product is multiplied by the channels, so that this cannot overflow. */
    return dsc_kfac_check_rows(layer, layer->kind == DSC_KFAC_CONV2D ? 'A' : 'G', s->kernel_h * s->kernel_w);
}

static dsc_status check(const dsc_kfac_layer *layer) {
    const dsc_conv2d_shape *s = layer->conv;
    DSC_TRY(dsc_kfac_conv_check(layer));
    if (!dsc_kfac_conv_any_size(layer) &&
        (s->in_h + 2 * s->pad_h + s->extra_h <= s->dilation_h * (s->kernel_h - 1) ||
         s->in_w + 2 * s->pad_w + s->extra_w <= s->dilation_w * (s->kernel_w - 1)))
        return DSC_FAIL(DSC_E_INVALID,
                        "layer '%s': its kernel of %lld x %lld does not fit into its input of %lld x %lld",
                        layer->name, (long long)s->kernel_h, (long long)s->kernel_w, (long long)s->in_h,
                        (long long)s->in_w);
    return DSC_OK;
}

static int64_t weight_columns(const dsc_conv2d_shape *s) {
    return s->kernel_h * s->kernel_w * (s->in_c / s->groups);
}

static int64_t positions(const dsc_kfac_layer *layer) {
    return layer->conv->kernel_h * layer->conv->kernel_w;
}

static dsc_kfac_sizes sizes(const dsc_kfac_layer *layer) {
    const dsc_conv2d_shape *s = layer->conv;
    return (dsc_kfac_sizes){.units = s->groups,
                            .a_n = weight_columns(s) + (layer->bias_grad.data != NULL),
                            .g_n = s->out_c / s->groups};
}

/* Diagonal blocks are groups of input channels, so the kernel positions of a channel are next to each other; in the
 * weights, the channels of a kernel position are next to each other. The bias is last in both orders. */
static int64_t column(const dsc_kfac_layer *layer, int64_t j) {
    const dsc_conv2d_shape *s = layer->conv;
    int64_t patch = s->kernel_h * s->kernel_w, channels = s->in_c / s->groups;
    return j < weight_columns(s) ? j % patch * channels + j / patch : j;
}

static dsc_status capture(const dsc_kfac_layer *layer, const dsc_tensor *a, const dsc_tensor *g,
                          dsc_kfac_pass *out) {
    dsc_conv2d_shape s = *layer->conv;
    int64_t out_h, out_w;
    DSC_TRY(dsc_kfac_check_captured(layer, "its input", a, s.in_c, -1));
    if (a->ndim == 4 && dsc_kfac_conv_any_size(layer)) {
        s.in_h = a->dim[1];
        s.in_w = a->dim[2];
    }
    if (a->ndim != 4 || a->dim[1] != s.in_h || a->dim[2] != s.in_w)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its input must be [n,%lld,%lld,%lld]", layer->name,
                        (long long)s.in_h, (long long)s.in_w, (long long)s.in_c);
    dsc_status status = dsc_conv2d_output(&s, &out_h, &out_w);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "K-FAC: layer '%s'", layer->name);
    DSC_TRY(
        dsc_kfac_check_captured(layer, "the gradient at its output", g, s.out_c, a->dim[0] * out_h * out_w));
    out->rows[DSC_KFAC_A] = (dsc_kfac_rows){.x = *a, .desc = {.dtype = a->dtype, .n = a->dim[0], .shape = s}};
    out->rows[DSC_KFAC_G] = dsc_kfac_matrix_rows(g, s.out_c, s.groups);
    out->samples = a->dim[0];
    out->positions = out_h * out_w;
    return DSC_OK;
}

const dsc_kfac_kind_entry dsc_kfac_kind_conv2d = {.name = "conv2d",
                                                  .splits = 1,
                                                  .read = dsc_kfac_conv_read,
                                                  .release = dsc_kfac_conv_release,
                                                  .check = check,
                                                  .sizes = sizes,
                                                  .column = column,
                                                  .capture = capture,
                                                  .positions = positions,
                                                  .gradient = dsc_kfac_row_gradient};

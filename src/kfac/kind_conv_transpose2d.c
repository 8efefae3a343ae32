/* Transposed convolutions of one group: a[n, in_h, in_w, in_c], g[n, out_h, out_w, out_c], weight[in_c, kernel_h,
 * kernel_w, out_c].
 *
 * Each pixel of the input is multiplied by the weight as a matrix, and the products are added to a patch of the output:
 * the patch that the convolution from output to input (dsc_conv_transposed) reads at this pixel. So the layer is a
 * linear layer on pixels, followed by a sum of overlapping patches. Its gradient is D = sum g a' over the pixels, with
 *
 *   a   the in_c elements of the pixel
 *   g   the kernel_h * kernel_w * out_c gradients in its patch; 0 where padding has cut off the output
 *
 * N is the number of images and S that of input positions, so with R = N S pixels and M terms of the loss the paper's
 * scaling gives A (x) G = sum a a' / R (x) M sum g g'. The weight is stored as D', from which D is gathered.
 * A bias is added at output positions, not at pixels of the input: it is not a column of D and keeps its gradient. */
#include "kfac/kinds.h"

#include "base/error.h"

static dsc_status read_layer(const dsc_kfac_layer *given, dsc_kfac_layer *own) {
    own->bias_grad = (dsc_tensor){0};
    return dsc_kfac_conv_read(given, own);
}

static dsc_status check(const dsc_kfac_layer *layer) {
    const dsc_conv2d_shape *s = layer->conv;
    dsc_conv2d_shape conv;
    DSC_TRY(dsc_kfac_conv_check(layer));
    if (s->groups != 1)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "layer '%s': a transposed convolution of %lld groups: K-FAC knows those of one group, leave "
            "it out",
            layer->name, (long long)s->groups);
    if (layer->late_gradients)
        return DSC_FAIL(
            DSC_E_UNSUPPORTED,
            "layer '%s': late_gradients of a transposed convolution: give the memory of its gradients",
            layer->name);
    dsc_status status = dsc_kfac_conv_any_size(layer) ? DSC_OK : dsc_conv_transposed(s, &conv);
    return status == DSC_OK ? DSC_OK : dsc_error_prefix(status, "layer '%s'", layer->name);
}

static dsc_kfac_sizes sizes(const dsc_kfac_layer *layer) {
    const dsc_conv2d_shape *s = layer->conv;
    return (dsc_kfac_sizes){.units = 1, .a_n = s->in_c, .g_n = s->kernel_h * s->kernel_w * s->out_c};
}

static int64_t column(const dsc_kfac_layer *layer, int64_t j) {
    (void)layer;
    return j;
}

static dsc_status capture(const dsc_kfac_layer *layer, const dsc_tensor *a, const dsc_tensor *g,
                          dsc_kfac_pass *out) {
    dsc_conv2d_shape s = *layer->conv, conv;
    DSC_TRY(dsc_kfac_check_captured(layer, "its input", a, s.in_c, -1));
    if (a->ndim == 4 && dsc_kfac_conv_any_size(layer)) {
        s.in_h = a->dim[1];
        s.in_w = a->dim[2];
    }
    if (a->ndim != 4 || a->dim[1] != s.in_h || a->dim[2] != s.in_w)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': its input must be [n,%lld,%lld,%lld]", layer->name,
                        (long long)s.in_h, (long long)s.in_w, (long long)s.in_c);
    dsc_status status = dsc_conv_transposed(&s, &conv);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "K-FAC: layer '%s'", layer->name);
    DSC_TRY(dsc_kfac_check_captured(layer, "the gradient at its output", g, s.out_c,
                                    a->dim[0] * conv.in_h * conv.in_w));
    if (g->ndim != 4 || g->dim[1] != conv.in_h || g->dim[2] != conv.in_w)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': the gradient at its output must be [n,%lld,%lld,%lld]",
                        layer->name, (long long)conv.in_h, (long long)conv.in_w, (long long)s.out_c);
    out->rows[DSC_KFAC_A] = dsc_kfac_matrix_rows(a, s.in_c, 1);
    out->rows[DSC_KFAC_G] =
        (dsc_kfac_rows){.x = *g, .desc = {.dtype = g->dtype, .n = a->dim[0], .shape = conv}};
    out->samples = a->dim[0];
    out->positions = s.in_h * s.in_w;
    return DSC_OK;
}

/* Row i and column j of D are column i and row j of the weight. */
static void gradient(const dsc_kfac_layer *layer, int64_t unit, dsc_join_item *out) {
    dsc_kfac_sizes s = sizes(layer);
    const int64_t dim[2] = {s.a_n, s.g_n};
    const dsc_tensor *w = &layer->weight_grad;
    (void)unit;
    out->w = dsc_tensor_view(w->device, w->data, w->dtype, 2, dim);
    out->channels = s.a_n;
    out->row_stride = 1;
    out->channel_stride = s.g_n;
}

const dsc_kfac_kind_entry dsc_kfac_kind_conv_transpose2d = {.name = "conv_transpose2d",
                                                            .splits = 1,
                                                            .read = read_layer,
                                                            .release = dsc_kfac_conv_release,
                                                            .check = check,
                                                            .sizes = sizes,
                                                            .column = column,
                                                            .capture = capture,
                                                            .gradient = gradient};

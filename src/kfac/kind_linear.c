/* Linear layers: a[rows, in_c], g[rows, out_c] with any number of leading dimensions, weight[out_c, in_c].
 *
 * Every row is a sample, so N is the number of rows and S is 1. There is one unit, or one for each of the layer's
 * out_blocks, which share their A. */
#include "kfac/kinds.h"

#include "base/error.h"

static int64_t blocks(const dsc_kfac_layer *layer) {
    return layer->out_blocks > 1 ? layer->out_blocks : 1;
}

static dsc_status check(const dsc_kfac_layer *layer) {
    if (layer->out_blocks < 0 || layer->out_c % blocks(layer) != 0)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC layer '%s': %lld blocks of %lld outputs: they must divide them",
                        layer->name, (long long)layer->out_blocks, (long long)layer->out_c);
    return DSC_OK;
}

static dsc_kfac_sizes sizes(const dsc_kfac_layer *layer) {
    return (dsc_kfac_sizes){.units = blocks(layer),
                            .a_n = layer->in_c + (layer->bias_grad.data != NULL),
                            .g_n = layer->out_c / blocks(layer),
                            .one_a = 1};
}

static int64_t column(const dsc_kfac_layer *layer, int64_t j) {
    (void)layer;
    return j;
}

static dsc_status capture(const dsc_kfac_layer *layer, const dsc_tensor *a, const dsc_tensor *g,
                          dsc_kfac_pass *out) {
    DSC_TRY(dsc_kfac_check_captured(layer, "its input", a, layer->in_c, -1));
    int64_t rows = dsc_tensor_count(a) / layer->in_c;
    DSC_TRY(dsc_kfac_check_captured(layer, "the gradient at its output", g, layer->out_c, rows));
    out->rows[DSC_KFAC_A] = dsc_kfac_matrix_rows(a, layer->in_c, 1);
    out->rows[DSC_KFAC_G] = dsc_kfac_matrix_rows(g, layer->out_c, blocks(layer));
    out->samples = rows;
    out->positions = 1;
    return DSC_OK;
}

const dsc_kfac_kind_entry dsc_kfac_kind_linear = {.name = "linear",
                                                  .check = check,
                                                  .sizes = sizes,
                                                  .column = column,
                                                  .capture = capture,
                                                  .gradient = dsc_kfac_row_gradient};

/* Norms: the scale of every channel, weight[in_c], and its shift, bias[in_c].
 *
 * They have no weight matrix and therefore no units with factors: norm.c preconditions them, if options.norm says so.
 * Batch norms compute their statistics over samples; layer norms (and RMS and group norms) compute them within each
 * sample, and may have no shift. */
#include "kfac/kinds.h"

#include "base/error.h"

static dsc_status read_channels(const dsc_kfac_layer *given, dsc_kfac_layer *own) {
    own->out_c = given->in_c;
    return DSC_OK;
}

static dsc_status check_shift(const dsc_kfac_layer *layer) {
    if (!layer->bias_grad.data)
        return DSC_FAIL(DSC_E_INVALID, "layer '%s': a batch norm needs the gradient of its shift, bias_grad",
                        layer->name);
    return DSC_OK;
}

static dsc_kfac_sizes sizes(const dsc_kfac_layer *layer) {
    return (dsc_kfac_sizes){.units = 0, .a_n = 2, .g_n = layer->in_c};
}

const dsc_kfac_kind_entry dsc_kfac_kind_batch_norm = {
    .name = "batch_norm", .read = read_channels, .check = check_shift, .sizes = sizes};
const dsc_kfac_kind_entry dsc_kfac_kind_layer_norm = {
    .name = "layer_norm", .read = read_channels, .sizes = sizes};

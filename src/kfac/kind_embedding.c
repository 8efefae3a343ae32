/* Embeddings: weight[in_c, out_c], a row for each of in_c tokens or positions. Tied heads: linear layers whose
 * weight[out_c, in_c] is the table of an embedding.
 *
 * An embedding is a linear layer on one-hot inputs, whose A is diagonal; a tied head has the A of its input, and no G.
 * They have no units with factors: embedding.c preconditions both, each if its own option says so. */
#include "kfac/kinds.h"

#include "base/error.h"

static dsc_status check(const dsc_kfac_layer *layer) {
    if (layer->bias_grad.data || layer->late_gradients)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "layer '%s': %s with %s: K-FAC does not know it, leave it out",
                        layer->name, layer->kind == DSC_KFAC_TIED_HEAD ? "a tied head" : "an embedding",
                        layer->late_gradients ? "late_gradients" : "a bias");
    return DSC_OK;
}

static dsc_kfac_sizes sizes(const dsc_kfac_layer *layer) {
    return (dsc_kfac_sizes){.units = 0, .a_n = layer->in_c, .g_n = layer->out_c, .table = 1};
}

const dsc_kfac_kind_entry dsc_kfac_kind_embedding = {.name = "embedding", .check = check, .sizes = sizes};
const dsc_kfac_kind_entry dsc_kfac_kind_tied_head = {.name = "tied_head", .check = check, .sizes = sizes};

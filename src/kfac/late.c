/* Late gradients: layers whose gradients may be at another address in every step, in any order.
 *
 * A row of D[g_n, a_n] of a unit holds the weights of one output in the order [kernel position, channel], then the
 * bias. Gradients that already have this order, without a bias, are used as D. All others are gathered into separate
 * memory (dsc_op_join_batch) and written back (dsc_op_split_batch) with their strides. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/versioned.h"

void dsc_kfac_gradients_init_sized(dsc_kfac_gradients *gradients, size_t size) {
    const dsc_kfac_gradients defaults = {.size = sizeof defaults};
    dsc_versioned_init(gradients, size, &defaults, sizeof defaults);
}

/* The weights of a layer as three nested loops, and their strides. A loop with a single iteration gets the stride that
 * it has in the order of D. */
typedef struct weights {
    int64_t outputs, positions, channels; /* outputs: those of all units */
    int64_t row_stride, position_stride, channel_stride;
    int in_order; /* 1: every unit's weights have the order of D */
} weights;

static weights read_weights(const dsc_kfac_layer *l, const dsc_kfac_gradients *g) {
    dsc_kfac_sizes s = dsc_kfac_kind_of(l)->sizes(l);
    int64_t columns = s.a_n - (l->bias_grad.data != NULL);
    weights w = {.outputs = s.units * s.g_n, .positions = dsc_kfac_positions(l)};
    w.channels = columns / w.positions;
    w.row_stride = w.outputs > 1 ? g->out_stride : columns;
    w.position_stride = w.positions > 1 ? g->position_stride : w.channels;
    w.channel_stride = w.channels > 1 ? g->in_stride : 1;
    int rows_follow = w.row_stride == columns || s.g_n == 1;
    w.in_order = w.channel_stride == 1 && w.position_stride == w.channels && rows_follow;
    return w;
}

/* Checks that no two weights overlap: with the loops sorted by stride, each stride must be larger than the span of the
 * loops inside it. */
static dsc_status check_strides(const dsc_kfac_layer *l, const weights *w) {
    int64_t size[3] = {w->outputs, w->positions, w->channels}, span = 0;
    int64_t stride[3] = {w->row_stride, w->position_stride, w->channel_stride};
    for (int i = 1; i < 3; i++)
        for (int j = i; j > 0 && stride[j] < stride[j - 1]; j--) {
            int64_t a = stride[j], b = size[j];
            stride[j] = stride[j - 1];
            size[j] = size[j - 1];
            stride[j - 1] = a;
            size[j - 1] = b;
        }
    for (int i = 0; i < 3; i++) {
        if (size[i] == 1)
            continue;
        if (stride[i] <= span || stride[i] > INT32_MAX)
            return DSC_FAIL(DSC_E_INVALID,
                            "K-FAC: layer '%s': gradients with strides %lld (outputs), %lld (inputs), %lld "
                            "(kernel positions) overlap or are too far apart",
                            l->name, (long long)w->row_stride, (long long)w->channel_stride,
                            (long long)w->position_stride);
        span += (size[i] - 1) * stride[i];
    }
    return DSC_OK;
}

static dsc_status check_pointers(const dsc_kfac_layer *l, const dsc_kfac_gradients *g) {
    size_t bytes = dsc_dtype_size(l->weight_grad.dtype);
    if (!g->weight && !g->bias)
        return DSC_OK;
    if (!g->weight || (l->bias_grad.data && !g->bias))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: layer '%s': the gradient of its %s is missing", l->name,
                        g->weight ? "bias" : "weight");
    if (g->bias && !l->bias_grad.data)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': a gradient of its bias, but it was described without one",
                        l->name);
    if ((uintptr_t)g->weight % bytes || (uintptr_t)g->bias % bytes)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': its gradients do not begin at a multiple of %zu bytes", l->name,
                        bytes);
    return DSC_OK;
}

/* Allocates memory, once, for D of all units of the layer, or of a batch where batches share it. */
static dsc_status reserve_joined(dsc_kfac *k, int64_t layer) {
    if (dsc_kfac_shares_d(k))
        return k->shared_d.data ? DSC_OK : dsc_kfac_alloc(k, k->dtype, k->largest_batch, &k->shared_d);
    dsc_kfac_sizes s = dsc_kfac_kind_of(&k->layers[layer])->sizes(&k->layers[layer]);
    if (k->progress[layer].joined.data)
        return DSC_OK;
    return dsc_kfac_alloc(k, k->dtype, s.units * s.g_n * s.a_n, &k->progress[layer].joined);
}

static void place_units(dsc_kfac *k, int64_t layer, const dsc_kfac_gradients *g, const weights *w) {
    size_t bytes = dsc_dtype_size(k->dtype);
    int64_t used = 0, columns = w->positions * w->channels;
    for (int64_t u = k->first_unit[layer]; u < k->first_unit[layer + 1]; u++) {
        dsc_kfac_member *m = &k->members[u];
        dsc_join_item *item = &m->gradient;
        int64_t rows = m->factor[DSC_KFAC_G].n, first = k->layouts[0].plan->units[u].group * rows;
        const int64_t dim[2] = {rows, m->factor[DSC_KFAC_A].n};
        item->w.data = (char *)g->weight + (size_t)(first * w->row_stride) * bytes;
        item->b.data = g->bias ? (char *)g->bias + (size_t)first * bytes : NULL;
        item->channels = w->in_order && (w->row_stride == columns || rows == 1) ? 0 : w->channels;
        item->row_stride = w->row_stride;
        item->position_stride = w->position_stride;
        item->channel_stride = w->channel_stride;
        m->gathered = !w->in_order || g->bias;
        dsc_tensor d = item->w;
        int64_t place = m->place;
        if (m->gathered)
            d = dsc_kfac_shares_d(k) ? dsc_kfac_carve(&k->shared_d, &place, 2, dim)
                                     : dsc_kfac_carve(&k->progress[layer].joined, &used, 2, dim);
        dsc_kfac_use_gradient(k, u, d);
    }
}

/* Prepares a layer without a gradient: its result is not used, but the products read some D, and P is valid memory. */
static void leave_out(dsc_kfac *k, int64_t layer) {
    for (int64_t u = k->first_unit[layer]; u < k->first_unit[layer + 1]; u++) {
        dsc_kfac_use_gradient(k, u, k->members[u].p);
        k->members[u].gathered = 0;
    }
}

static dsc_status set_layer(dsc_kfac *k, int64_t layer, const dsc_kfac_gradients *g) {
    const dsc_kfac_layer *l = &k->layers[layer];
    dsc_kfac_progress *p = &k->progress[layer];
    if (!l->late_gradients)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC: layer '%s': its gradients were given when it was described; describe it with "
                        "late_gradients to set them in every step",
                        l->name);
    p->set = 0;
    DSC_TRY(check_pointers(l, g));
    if (g->weight && k->first_unit[layer] < k->first_unit[layer + 1]) {
        weights w = read_weights(l, g);
        DSC_TRY(check_strides(l, &w));
        if (!w.in_order || g->bias)
            DSC_TRY(reserve_joined(k, layer));
        place_units(k, layer, g, &w);
    } else {
        leave_out(k, layer);
        DSC_TRY(dsc_kfac_norm_set_gradients(k, layer, g));
    }
    p->present = g->weight != NULL;
    p->set = 1;
    return DSC_OK;
}

dsc_status dsc_kfac_set_gradients(dsc_kfac *kfac, int64_t first, int64_t count,
                                  const dsc_kfac_gradients *gradients) {
    dsc_kfac *k = kfac;
    if (first < 0 || count < 0 || first > k->layer_count || count > k->layer_count - first)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC: gradients of %lld layers from number %lld on; there are %lld",
                        (long long)count, (long long)first, (long long)k->layer_count);
    for (int64_t i = 0; i < count; i++) {
        dsc_kfac_gradients own;
        dsc_kfac_gradients_init(&own);
        const char *given = (const char *)gradients + (gradients ? (size_t)i * gradients->size : 0);
        DSC_TRY(dsc_versioned_define("kfac_gradients", gradients ? given : NULL, sizeof own, &own));
        DSC_TRY(set_layer(k, first + i, &own));
    }
    return DSC_OK;
}

/* ---- a step ---- */

dsc_status dsc_kfac_late_check(const dsc_kfac *k) {
    for (int64_t l = 0; k->any_late && l < k->layer_count; l++)
        if (k->layers[l].late_gradients && !k->progress[l].set && dsc_kfac_covers(k, l))
            return DSC_FAIL(DSC_E_INVALID,
                            "K-FAC: step %lld: the gradients of layer '%s' were not set since the last step: "
                            "call dsc_kfac_set_gradients before dsc_kfac_step",
                            (long long)k->step, k->layers[l].name);
    return DSC_OK;
}

void dsc_kfac_late_start(dsc_kfac *k) {
    for (int64_t l = 0; k->any_late && l < k->layer_count; l++)
        if (k->layers[l].late_gradients)
            leave_out(k, l);
}

void dsc_kfac_late_finish(dsc_kfac *k) {
    for (int64_t l = 0; k->any_late && l < k->layer_count; l++)
        k->progress[l].set = 0;
}

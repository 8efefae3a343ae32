/* Checks that the same layers ran on all ranks, with one small all-reduce in every step.
 *
 * Each rank notes how often every layer ran. The ranks agree if the minimum of a layer's notes is the negative of the
 * minimum of its negated notes. Where GPU tensors are sent without the host (NCCL), the host does not wait for the
 * result: it is copied into page-locked memory, and later steps look whether it has arrived. */
#include "kfac/internal.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "device/recording.h"

/* Marks an element that the copy has not reached yet. */
static const int32_t missing = INT32_MIN;

dsc_status dsc_kfac_compare_create(dsc_kfac *k) {
    int64_t count = 2 * k->layer_count;
    DSC_TRY(dsc_kfac_alloc(k, DSC_I32, count, &k->ran));
    DSC_TRY(dsc_memory_alloc(count, sizeof *k->ran_host, &k->ran_host));
    k->compares_late = k->ranks > 1 && !dsc_device_is_host(k->device) && dsc_comm_records(k->control);
    for (int i = 0; count > 0 && k->ranks > 1 && i < DSC_KFAC_COMPARISONS; i++) {
        void *memory = NULL;
        DSC_TRY(dsc_host_alloc(k->device, (size_t)count * sizeof(int32_t), &memory));
        k->comparisons[i].notes = memory;
    }
    return DSC_OK;
}

void dsc_kfac_compare_destroy(dsc_kfac *k) {
    for (int i = 0; i < DSC_KFAC_COMPARISONS; i++) {
        void *memory = k->comparisons[i].notes;
        if (memory)
            dsc_host_free(k->device, &memory);
    }
    dsc_memory_free(&k->ran_host);
}

/* Returns what ranks compare about a layer: how often it was captured (or, with any number of uses, whether it was),
 * and whether it has a late gradient. */
static int32_t rank_note(const dsc_kfac *k, int64_t layer) {
    const dsc_kfac_progress *p = &k->progress[layer];
    int64_t captures = p->uses == 0 && p->captures > 0 ? 1 : p->captures;
    return (int32_t)(2 * captures + (k->layers[layer].late_gradients && p->present));
}

/* Returns the lowest layer whose notes differ between ranks; -1: none. */
static int64_t find_difference(const dsc_kfac *k, const int32_t *notes) {
    for (int64_t i = 0; i < k->layer_count; i++)
        if (notes[i] != -notes[k->layer_count + i])
            return i;
    return -1;
}

dsc_status dsc_kfac_refuse_difference(const dsc_kfac *k, const int32_t *notes, int64_t step, int64_t layer) {
    int least = notes[layer], most = -notes[k->layer_count + layer];
    if (least / 2 != most / 2)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC: step %lld: layer '%s' ran %d times on one rank and %d on another: a layer must "
            "run on all ranks or on none",
            (long long)step, k->layers[layer].name, least / 2, most / 2);
    return DSC_FAIL(DSC_E_INVALID,
                    "K-FAC: step %lld: layer '%s' has a gradient on one rank and none on another: a layer "
                    "must have one on all ranks or on none",
                    (long long)step, k->layers[layer].name);
}

/* ---- results that arrive later ---- */

static int has_arrived(const dsc_kfac *k, const dsc_kfac_comparison *c) {
    const volatile int32_t *notes = c->notes; /* the device writes them */
    for (int64_t i = 0; i < 2 * k->layer_count; i++)
        if (notes[i] == missing)
            return 0;
    return 1;
}

static dsc_status look_at(dsc_kfac *k, dsc_kfac_comparison *c) {
    if (!c->pending || !has_arrived(k, c))
        return DSC_OK;
    c->pending = 0;
    int64_t layer = find_difference(k, c->notes);
    return layer < 0 ? DSC_OK : dsc_kfac_refuse_difference(k, c->notes, c->step, layer);
}

dsc_status dsc_kfac_compare_arrived(dsc_kfac *k) {
    for (int i = 0; k->compares_late && i < DSC_KFAC_COMPARISONS; i++)
        DSC_TRY(look_at(k, &k->comparisons[i]));
    return DSC_OK;
}

/* Finds a place for the result of this step. If all are taken, the host is many steps ahead of the device and waits for
 * it. */
static dsc_status take_place(dsc_kfac *k, dsc_queue *q, dsc_kfac_comparison **out) {
    dsc_kfac_comparison *c = &k->comparisons[k->step % DSC_KFAC_COMPARISONS];
    if (c->pending) {
        DSC_TRY(dsc_queue_sync(q));
        DSC_TRY(look_at(k, c));
    }
    for (int64_t i = 0; i < 2 * k->layer_count; i++)
        c->notes[i] = missing;
    c->step = k->step;
    *out = c;
    return DSC_OK;
}

/* ---- the comparison ---- */

dsc_status dsc_kfac_compare(dsc_kfac *k, dsc_queue *q, int64_t *differs) {
    int64_t n = k->layer_count;
    dsc_kfac_comparison *later = NULL;
    *differs = -1;
    if (k->ranks == 1 || n == 0 || dsc_queue_is_recording(q)) /* the step before a recording compared them */
        return DSC_OK;
    for (int64_t i = 0; i < n; i++) {
        k->ran_host[i] = rank_note(k, i);
        k->ran_host[n + i] = -rank_note(k, i);
    }
    size_t bytes = dsc_tensor_bytes(&k->ran);
    if (k->compares_late)
        DSC_TRY(take_place(k, q, &later));
    DSC_TRY(dsc_tensor_upload(q, k->ran_host, bytes, &k->ran));
    if (!later)
        DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_allreduce(k->control, DSC_TRAFFIC_OTHER, DSC_MIN, &k->ran));
    DSC_TRY(dsc_tensor_download(q, &k->ran, bytes, later ? later->notes : k->ran_host));
    if (later) {
        later->pending = 1;
        return DSC_OK;
    }
    DSC_TRY(dsc_queue_sync(q));
    *differs = find_difference(k, k->ran_host);
    return DSC_OK;
}

/* The upkeep of items: what refreshes have learnt about them. The owner of an item writes it. It is sent with the
 * decompositions, so that all ranks of a column act alike and save the same, and is part of checkpoints. */
#include "base/error.h"
#include "base/memory.h"
#include "kfac/refresh.h"

#include <math.h>
#include <string.h>

enum { NUMBERS = DSC_KFAC_UPKEEP_NUMBERS };

dsc_status dsc_kfac_upkeep_create(dsc_kfac *k, dsc_kfac_layout *layout) {
    int64_t count = 0, used = 0;
    if (k->options.refresh != DSC_KFAC_WARM)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(layout->plan->item_count, sizeof *layout->upkeep, &layout->upkeep));
    DSC_TRY(dsc_memory_alloc(layout->plan->item_count, sizeof *layout->grown, &layout->grown));
    dsc_kfac_cut_plan(k, layout, DSC_KFAC_EXACT_ROWS);
    if (k->rows == 1 || dsc_kfac_is_cut(k))
        return DSC_OK;
    for (int64_t i = 0; i < layout->parcel_count; i++)
        count += NUMBERS * layout->parcels[i].count;
    DSC_TRY(dsc_kfac_alloc(k, DSC_F64, count, &layout->notes));
    DSC_TRY(dsc_memory_alloc(count, sizeof *layout->notes_host, &layout->notes_host));
    for (int64_t i = 0; i < layout->parcel_count; i++) {
        dsc_kfac_parcel *p = &layout->parcels[i];
        count = NUMBERS * p->count;
        p->notes = dsc_kfac_carve(&layout->notes, &used, 1, &count);
    }
    return DSC_OK;
}

static int64_t layer_of(const dsc_kfac_layout *layout, int64_t item) {
    return layout->plan->units[layout->plan->items[item].unit].layer;
}

static void write_numbers(const dsc_kfac *k, const dsc_kfac_layout *layout, int64_t item, double *out) {
    out[0] = (double)layout->upkeep[item].extra;
    out[1] = k->progress[layer_of(layout, item)].by_sample;
    out[2] = (double)layout->upkeep[item].rank;
    out[3] = layout->upkeep[item].whole;
}

static void read_numbers(dsc_kfac *k, dsc_kfac_layout *layout, int64_t item, const double *numbers) {
    dsc_kfac_upkeep *upkeep = &layout->upkeep[item];
    upkeep->extra = (int64_t)numbers[0];
    if (dsc_kfac_is_cut(k) && numbers[2] > 0) { /* 0: the state does not hold a rank */
        upkeep->rank = (int64_t)numbers[2];
        upkeep->whole = numbers[3] != 0;
    }
    k->progress[layer_of(layout, item)].by_sample = numbers[1] != 0;
}

/* Returns where the numbers of a parcel are on the host. */
static double *host_of(const dsc_kfac_layout *layout, const dsc_kfac_parcel *p) {
    return layout->notes_host + ((const double *)p->notes.data - (const double *)layout->notes.data);
}

dsc_status dsc_kfac_upkeep_send(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, dsc_kfac_parcel *p) {
    if (!p->notes.data)
        return DSC_OK;
    if (p->turn.root == k->my_row) {
        double *host = host_of(layout, p);
        for (int64_t i = 0; i < p->count; i++)
            write_numbers(k, layout, layout->order[p->first + i], host + NUMBERS * i);
        DSC_TRY(dsc_tensor_upload(q, host, dsc_tensor_bytes(&p->notes), &p->notes));
    }
    return dsc_comm_broadcast_begin(k->column, DSC_TRAFFIC_DECOMPOSITIONS, p->turn.root, &p->notes,
                                    &p->request[2]);
}

dsc_status dsc_kfac_upkeep_receive(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout) {
    if (!layout->notes.data)
        return DSC_OK;
    DSC_TRY(dsc_tensor_download(q, &layout->notes, dsc_tensor_bytes(&layout->notes), layout->notes_host));
    DSC_TRY(dsc_queue_sync(q));
    for (int64_t j = 0; j < layout->parcel_count; j++) {
        const dsc_kfac_parcel *p = &layout->parcels[j];
        for (int64_t i = 0; i < p->count && p->turn.root != k->my_row; i++)
            read_numbers(k, layout, layout->order[p->first + i], host_of(layout, p) + NUMBERS * i);
    }
    return DSC_OK;
}

/* ---- checkpoints ---- */

/* Gathers the numbers of all items from their owners, in gathered_host on every rank. */
static dsc_status gather_numbers(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout) {
    int64_t count = layout->plan->item_count;
    dsc_tensor t = dsc_tensor_slice(&k->gathered, 0, NUMBERS * count);
    size_t bytes = dsc_tensor_bytes(&t);
    memset(k->gathered_host, 0, bytes);
    for (int64_t i = 0; i < count; i++)
        if (layout->plan->items[i].owner == k->rank)
            write_numbers(k, layout, i, k->gathered_host + NUMBERS * i);
    DSC_TRY(dsc_tensor_upload(q, k->gathered_host, bytes, &t));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_allreduce(k->control, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    DSC_TRY(dsc_tensor_download(q, &t, bytes, k->gathered_host));
    return dsc_queue_sync(q);
}

dsc_status dsc_kfac_upkeep_gather(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_layout *layout = &k->layouts[0];
    if (layout->plan->item_count == 0 || k->ranks == 1) /* one rank need not wait for its device */
        return DSC_OK;
    DSC_TRY(gather_numbers(k, q, layout));
    for (int64_t i = 0; i < layout->plan->item_count; i++)
        if (layout->plan->items[i].owner != k->rank)
            read_numbers(k, layout, i, k->gathered_host + NUMBERS * i);
    return DSC_OK;
}

dsc_status dsc_kfac_upkeep_get(dsc_kfac *k, dsc_queue *q, int own, double *host) {
    const dsc_kfac_layout *layout = &k->layouts[k->active];
    int64_t count = layout->plan->item_count;
    for (int64_t i = 0; own && i < count; i++)
        write_numbers(k, layout, i, host + NUMBERS * i);
    if (own || count == 0)
        return DSC_OK;
    DSC_TRY(gather_numbers(k, q, layout));
    if (k->rank == 0)
        memcpy(host, k->gathered_host, (size_t)(NUMBERS * count) * sizeof *host);
    return DSC_OK;
}

/* Returns 1 if x is a whole number in least..most. */
static int is_count(double x, double least, double most) {
    return x >= least && x <= most && x == floor(x);
}

static dsc_status check_numbers(const char *name, int64_t n, const double *numbers) {
    if (is_count(numbers[0], 0, DSC_KFAC_MOST_ITERATIONS) && is_count(numbers[1], 0, 1) &&
        is_count(numbers[2], 0, (double)n) && is_count(numbers[3], 0, 1))
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_FORMAT,
        "K-FAC: state 'refresh': layer '%s': %g more iterations (must be 0 to %d), %g for one row "
        "per sample (0 or 1), %g vectors (0 to %lld), %g for a whole basis (0 or 1)",
        name, numbers[0], DSC_KFAC_MOST_ITERATIONS, numbers[1], numbers[2], (long long)n, numbers[3]);
}

dsc_status dsc_kfac_upkeep_set(dsc_kfac *k, dsc_queue *q, const double *host) {
    dsc_kfac_layout *layout = &k->layouts[k->active];
    int64_t count = layout->plan->item_count;
    dsc_tensor t = dsc_tensor_slice(&k->gathered, 0, NUMBERS * count);
    size_t bytes = dsc_tensor_bytes(&t);
    if (k->rank == 0)
        DSC_TRY(dsc_tensor_upload(q, host, bytes, &t));
    DSC_TRY(dsc_queue_sync(q));
    DSC_TRY(dsc_comm_broadcast(k->control, DSC_TRAFFIC_OTHER, 0, &t));
    DSC_TRY(dsc_tensor_download(q, &t, bytes, k->gathered_host));
    DSC_TRY(dsc_queue_sync(q));
    for (int64_t i = 0; i < count; i++) {
        const double *numbers = k->gathered_host + NUMBERS * i;
        const dsc_kfac_item *item = &layout->plan->items[i];
        DSC_TRY(check_numbers(layout->plan->units[item->unit].name, item->n, numbers));
        read_numbers(k, layout, i, numbers);
    }
    DSC_TRY(dsc_kfac_cut_resize(k, q));
    dsc_kfac_state_resize(k);
    return DSC_OK;
}

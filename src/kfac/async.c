/* Decompositions that run concurrently with the steps (options.async_steps).
 *
 * In step k, in which a decomposition is due, the averages are copied, and a thread decomposes the copies in its own
 * queue. In step k + async_steps, or in the step of the next decomposition if that comes first, all ranks wait for
 * their threads and start to use the results: which decomposition a step uses depends on the step's number alone. The
 * first decomposition, and the first of another layout, is made synchronously: before it there is none to use.
 *
 * The thread works on a twin of the preconditioner: the same layers, plan and options, with its own averages, bases and
 * scratch memory, and without gradients. It sends nothing: communication is left to the caller's thread.
 *
 * A checkpoint holds the copies of the averages and what was decided in step k; loading it starts the thread again. */
#include "kfac/internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 1024 };

struct dsc_kfac_async {
    dsc_kfac *twin;
    dsc_event *copied; /* recorded after the copy of the averages; the twin's queue waits for it */
    int running;       /* 1: the thread was started and has not been joined */
    pthread_t thread;
    int index; /* of the layout that it decomposes */
    dsc_status status;
    char message[MESSAGE_SIZE];
};

/* ---- creation ---- */

/* Creates the twin: copies what it has in common with the preconditioner, and allocates the rest. */
static dsc_status make_twin(const dsc_kfac *k, dsc_kfac *twin) {
    twin->is_twin = 1;
    twin->options = k->options;
    twin->options.ekfac = DSC_KFAC_EKFAC_OFF;
    twin->control = k->control;
    twin->column = k->column;
    twin->rank = k->rank;
    twin->ranks = k->ranks;
    twin->rows = k->rows;
    twin->columns = k->columns;
    twin->my_row = k->my_row;
    twin->my_column = k->my_column;
    twin->device = k->device;
    twin->dtype = k->dtype;
    twin->factor_dtype = k->factor_dtype;
    twin->inverse_dtype = k->inverse_dtype;
    twin->solver = k->solver;
    twin->layer_count = k->layer_count;
    twin->layers = k->layers;
    twin->first_unit = k->first_unit;
    twin->unit_count = k->unit_count;
    twin->layout_count = k->layout_count;
    for (int i = 0; i < k->layout_count; i++)
        twin->layouts[i].plan = k->layouts[i].plan;
    DSC_TRY(dsc_memory_alloc(k->layer_count, sizeof *twin->progress, &twin->progress));
    DSC_TRY(dsc_queue_create_low(k->device, &twin->queue));
    DSC_TRY(dsc_kfac_memory_create(twin));
    DSC_TRY(dsc_kfac_refresh_create(twin));
    DSC_TRY(dsc_kfac_split_create(twin));
    DSC_TRY(dsc_kfac_cut_create(twin));
    return dsc_queue_sync(twin->queue);
}

dsc_status dsc_kfac_async_create(dsc_kfac *k) {
    k->started = -1;
    if (k->options.async_steps == 0 || k->unit_count == 0)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(1, sizeof *k->async, &k->async));
    DSC_TRY(dsc_event_create(k->device, &k->async->copied));
    DSC_TRY(dsc_memory_alloc(1, sizeof *k->async->twin, &k->async->twin));
    return make_twin(k, k->async->twin);
}

static void wait_for_thread(dsc_kfac_async *a) {
    if (a->running)
        (void)pthread_join(a->thread, NULL);
    a->running = 0;
}

void dsc_kfac_async_destroy(dsc_kfac *k) {
    dsc_kfac_async *a = k->async;
    if (!a)
        return;
    wait_for_thread(a);
    dsc_kfac *twin = a->twin;
    if (twin) {
        dsc_kfac_cut_destroy(twin);
        dsc_kfac_refresh_destroy(twin);
        dsc_kfac_split_destroy(twin);
        dsc_kfac_memory_destroy(twin);
        dsc_queue_destroy(&twin->queue);
        dsc_memory_free(&twin->progress);
    }
    dsc_memory_free(&a->twin);
    dsc_event_destroy(&a->copied);
    dsc_memory_free(&k->async);
}

dsc_kfac *dsc_kfac_async_twin(const dsc_kfac *k) {
    return k->async ? k->async->twin : NULL;
}

void dsc_kfac_async_wait(dsc_kfac *k) {
    if (k->async)
        wait_for_thread(k->async);
}

/* ---- the thread ---- */

static void *work(void *context) {
    dsc_kfac_async *a = context;
    double began = dsc_clock_now();
    a->status = dsc_kfac_decompose_own(a->twin, a->twin->queue, a->index);
    if (a->status == DSC_OK)
        a->status = dsc_queue_sync(a->twin->queue);
    if (a->status != DSC_OK)
        snprintf(a->message, sizeof a->message, "%s", dsc_error_message());
    dsc_trace_span(DSC_TRACK_DECOMPOSITIONS, "decompose", began, dsc_clock_now(), "kfac step", a->twin->step);
    return NULL;
}

/* Copies a block if `to` has memory. */
static dsc_status copy_block(dsc_queue *q, const dsc_tensor *from, dsc_tensor *to) {
    return to->data ? dsc_op_convert(q, from, to) : DSC_OK;
}

static void copy_upkeep(const dsc_kfac_layout *from, dsc_kfac_layout *to) {
    if (to->upkeep)
        memcpy(to->upkeep, from->upkeep, (size_t)to->plan->item_count * sizeof *to->upkeep);
}

/* Gives the twin what a decomposition would read now. averages: 0 if the twin's averages were loaded from a
 * checkpoint. */
static dsc_status prepare_twin(dsc_kfac *k, dsc_queue *q, int averages) {
    dsc_kfac *twin = k->async->twin;
    dsc_kfac_layout *layout = &k->layouts[k->async->index], *own = &twin->layouts[k->async->index];
    dsc_tensor damping = dsc_tensor_slice(&twin->numbers, DSC_KFAC_DAMPING, 1);
    if (averages)
        DSC_TRY(copy_block(q, &k->averages, &twin->averages));
    DSC_TRY(dsc_tensor_upload(q, &twin->hyper.damping, sizeof twin->hyper.damping, &damping));
    copy_upkeep(layout, own);
    DSC_TRY(dsc_kfac_cut_resize(twin, q));
    DSC_TRY(copy_block(q, &layout->vectors, &own->vectors));
    return copy_block(q, &layout->values, &own->values);
}

/* Prepares the twin and starts the thread. Collective. */
static dsc_status start_thread(dsc_kfac *k, dsc_queue *q, int averages) {
    dsc_kfac_async *a = k->async;
    dsc_status status = prepare_twin(k, q, averages);
    status = dsc_kfac_split_damping(a->twin, q, status);
    if (status == DSC_OK)
        status = dsc_event_record(a->copied, q);
    if (status == DSC_OK)
        status = dsc_queue_wait(a->twin->queue, a->copied);
    int code = status == DSC_OK ? pthread_create(&a->thread, NULL, work, a) : 0;
    if (code != 0)
        status =
            DSC_FAIL(DSC_E_INTERNAL, "K-FAC: cannot start a thread for decompositions: %s", strerror(code));
    a->running = status == DSC_OK;
    return dsc_comm_agree(k->control, status);
}

dsc_status dsc_kfac_async_start(dsc_kfac *k, dsc_queue *q, int index) {
    dsc_kfac_async *a = k->async;
    dsc_kfac *twin = a->twin;
    a->index = index;
    twin->step = k->step;
    twin->hyper = k->hyper;
    twin->active = k->active;
    twin->decomposed = k->decomposed;
    memcpy(twin->progress, k->progress, (size_t)k->layer_count * sizeof *twin->progress);
    for (int64_t l = 0; l < k->layer_count; l++) {
        /* The twin has no gradients by which a refresh could be judged. */
        twin->progress[l].captures = twin->progress[l].present = 0;
        twin->progress[l].joined = twin->progress[l].batch = (dsc_tensor){0};
    }
    DSC_TRY(start_thread(k, q, 1));
    k->started = k->step;
    return DSC_OK;
}

int dsc_kfac_async_is_due(const dsc_kfac *k) {
    return k->started >= 0 && (k->deciding || k->step >= k->started + k->options.async_steps);
}

/* Tells all ranks the new ranks of cut bases, and resizes the bases of both objects accordingly. Collective. */
static dsc_status share_ranks(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *own,
                              dsc_kfac_layout *layout) {
    dsc_kfac *twin = k->async->twin;
    twin->gathered = k->gathered;
    twin->gathered_host = k->gathered_host;
    dsc_status status = dsc_kfac_cut_share(twin, q, DSC_OK);
    twin->gathered = (dsc_tensor){0};
    twin->gathered_host = NULL;
    DSC_TRY(status);
    copy_upkeep(own, layout);
    DSC_TRY(dsc_comm_agree(k->control, dsc_kfac_cut_resize(k, q)));
    dsc_kfac_state_resize(k);
    return DSC_OK;
}

dsc_status dsc_kfac_async_finish(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_async *a = k->async;
    dsc_kfac *twin = a->twin;
    dsc_kfac_layout *layout = &k->layouts[a->index], *own = &twin->layouts[a->index];
    wait_for_thread(a);
    dsc_status status = a->status == DSC_OK ? DSC_OK : dsc_error_adopt(a->status, a->message);
    k->started = -1;
    DSC_TRY(dsc_comm_agree(k->control, status));
    DSC_TRY(dsc_kfac_ekfac_keep(k, q));
    if (dsc_kfac_is_cut(k))
        DSC_TRY(share_ranks(k, q, own, layout));
    copy_upkeep(own, layout);
    DSC_TRY(copy_block(q, &own->vectors, &layout->vectors));
    DSC_TRY(copy_block(q, &own->values, &layout->values));
    for (int i = 0; i < DSC_KFAC_COUNTERS; i++) {
        k->counters[i] += twin->counters[i];
        twin->counters[i] = 0;
    }
    k->solve_ms = twin->solve_ms;
    k->used_damping = twin->hyper.damping;
    for (int64_t l = 0; l < k->layer_count; l++)
        k->progress[l].next_ready = twin->progress[l].contributed;
    DSC_TRY(dsc_kfac_share_decompositions(k, q, a->index));
    return dsc_kfac_put_into_use(k, q, a->index);
}

/* ---- checkpoints ---- */

dsc_status dsc_kfac_async_resume(dsc_kfac *k, dsc_queue *q) {
    dsc_kfac_async *a = k->async;
    if (!a || k->started < 0)
        return DSC_OK;
    dsc_kfac *twin = a->twin;
    a->index = k->active;
    twin->step = k->started;
    twin->active = k->active;
    twin->decomposed = 1;
    for (int64_t l = 0; l < k->layer_count; l++) {
        twin->progress[l].ready = k->progress[l].ready;
        twin->progress[l].by_sample = k->progress[l].by_sample;
    }
    return start_thread(k, q, 0);
}

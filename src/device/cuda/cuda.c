/* The GPU: opening it, copies, queues, events and recordings. Its memory is in memory.c; the operations are in the
 * other files of this folder (state.h) and are entered in the table at the end.
 *
 * A queue is a stream; a recording is a graph captured from it. An event is a pair of CUDA events: `outer` is the one
 * that the host waits for and measures, and every replay records it again; `inner` orders queues within one
 * recording. A queue that waits for an event of a recording becomes part of that recording until its end. */
#include "device/backends.h"
#include "device/cuda/current.h"
#include "device/cuda/entries.h"
#include "device/cuda/halves.h"

#include "base/hash.h"
#include "base/memory.h"
#include "descent/version.h"

#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    OLDEST_CAPABILITY = 80,
    RING_PLACES = 32,
    RING_BYTES = 64 << 10, /* of a place; larger uploads bypass the ring */
};

typedef struct mark mark;

typedef struct lane {
    dsc_cuda_queue shared; /* must be the first member: dsc_cuda_queue_of returns it */
    cudaEvent_t place_free[RING_PLACES];
    int place_used[RING_PLACES], next_place;
    cudaEvent_t moved;    /* in a wrapped queue: the end of its work in the stream that it leaves */
    dsc_queue *origin;    /* the queue whose recording this one is part of; NULL: none */
    dsc_queue *next_fork; /* the next fork of the same recording */
    dsc_queue *forks;     /* in an origin: the other queues of its recording */
    mark *marks;          /* in an origin: the events of its recording */
} lane;

/* The state of an event. */
struct mark {
    cudaEvent_t outer, inner;
    dsc_queue *origin; /* the queue in whose recording it was recorded, while that lasts */
    mark *next;
};

static lane *lane_of(const dsc_queue *q) {
    return q->state;
}

/* ---- errors ---- */

const dsc_cuda_launch *dsc_cuda_at(const dsc_queue *q) {
    return &dsc_cuda_queue_of(q)->at;
}

int dsc_cuda_ordinal(const dsc_device *device) {
    return dsc_cuda_of(device)->ordinal;
}

dsc_status dsc_cuda_use(const dsc_device *device) {
    DSC_CUDA_TRY(cudaSetDevice(dsc_cuda_of(device)->ordinal));
    return DSC_OK;
}

#ifndef DSC_EMULATED
dsc_status dsc_cuda_blas_fail(cublasStatus_t status, const char *what, const char *file, int line) {
    (void)cudaGetLastError();
    return dsc_error_raise(status == CUBLAS_STATUS_ALLOC_FAILED ? DSC_E_MEMORY : DSC_E_DEVICE, file, line,
                           "cuda: %s: %s (%s)", what, cublasGetStatusString(status),
                           cublasGetStatusName(status));
}

dsc_status dsc_cuda_dnn_fail(cudnnStatus_t status, const char *what, const char *file, int line) {
    char details[256] = "";
    (void)cudaGetLastError();
    cudnnGetLastErrorString(details, sizeof details);
    return dsc_error_raise(status == CUDNN_STATUS_ALLOC_FAILED ? DSC_E_MEMORY : DSC_E_DEVICE, file, line,
                           "cuda: %s: %s; %s", what, cudnnGetErrorString(status), details);
}
#endif

/* Returns 1 while work in the stream is captured into a graph. The default stream cannot be captured; while another
 * stream that waits for it is, the query fails because the default stream may not be used then. */
static int is_captured(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
        (void)cudaGetLastError();
        return 1;
    }
    return status != cudaStreamCaptureStatusNone;
}

int dsc_cuda_is_recorded(const dsc_queue *q) {
    const dsc_cuda_queue *own = dsc_cuda_queue_of(q);
    return own->recording || (own->wrapped && is_captured(own->stream));
}

dsc_status dsc_cuda_refuse_recording(const dsc_queue *q, const char *what) {
    const dsc_cuda_queue *own = dsc_cuda_queue_of(q);
    if (own->recording)
        return DSC_FAIL(DSC_E_INVALID, "%s: cannot be recorded; end the recording first", what);
    if (own->wrapped && is_captured(own->stream))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: cannot be captured into a CUDA graph, which the caller's stream is at present; "
                        "end the capture first, or leave this call out of it",
                        what);
    return DSC_OK;
}

/* ---- copies ---- */

/* Uploads through page-locked memory: the copy runs later, but the caller may reuse its memory at once. */
static dsc_status upload_by_ring(lane *l, const void *host, size_t bytes, void *data) {
    int i = l->next_place;
    char *place = (char *)l->shared.staging + (size_t)i * RING_BYTES;
    if (l->place_used[i])
        DSC_CUDA_TRY(cudaEventSynchronize(l->place_free[i]));
    memcpy(place, host, bytes);
    DSC_CUDA_TRY(cudaMemcpyAsync(data, place, bytes, cudaMemcpyHostToDevice, l->shared.stream));
    DSC_CUDA_TRY(cudaEventRecord(l->place_free[i], l->shared.stream));
    l->place_used[i] = 1;
    l->next_place = (i + 1) % RING_PLACES;
    return DSC_OK;
}

static dsc_status upload(dsc_queue *q, const void *host, size_t bytes, void *data) {
    lane *l = lane_of(q);
    DSC_TRY(dsc_cuda_refuse_recording(q, "a copy from the host"));
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    if (bytes <= RING_BYTES)
        return upload_by_ring(l, host, bytes, data);
    DSC_CUDA_TRY(cudaMemcpyAsync(data, host, bytes, cudaMemcpyHostToDevice, l->shared.stream));
    return DSC_OK;
}

static dsc_status download(dsc_queue *q, const void *data, size_t bytes, void *host) {
    DSC_TRY(dsc_cuda_refuse_recording(q, "a copy to the host"));
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    DSC_CUDA_TRY(cudaMemcpyAsync(host, data, bytes, cudaMemcpyDeviceToHost, lane_of(q)->shared.stream));
    return DSC_OK;
}

/* ---- the current GPU ---- */

_Static_assert(sizeof(dsc_cuda_current) <= sizeof((dsc_device_scope){0}.state), "a scope has room for ours");

static dsc_status enter(const dsc_device *device, void *state) {
    DSC_CUDA_TRY(dsc_cuda_enter(dsc_cuda_of(device)->ordinal, state));
    return DSC_OK;
}

static void leave(void *state) {
    dsc_cuda_leave(state);
}

/* ---- recordings ---- */

/* leave_queue and leave_mark take a queue or an event out of the recording that it is part of. */
static void leave_queue(dsc_queue *q) {
    lane *l = lane_of(q);
    if (l->origin && l->origin != q) {
        dsc_queue **at = &lane_of(l->origin)->forks;
        while (*at != q)
            at = &lane_of(*at)->next_fork;
        *at = l->next_fork;
    }
    l->origin = l->next_fork = NULL;
    l->shared.recording = q->recording = 0;
}

static void leave_mark(mark *m) {
    if (!m->origin)
        return;
    mark **at = &lane_of(m->origin)->marks;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    m->origin = NULL;
    m->next = NULL;
}

static void join_queue(dsc_queue *q, dsc_queue *origin) {
    lane *l = lane_of(q), *first = lane_of(origin);
    l->origin = origin;
    l->shared.recording = q->recording = 1;
    if (q != origin) {
        l->next_fork = first->forks;
        first->forks = q;
    }
}

static void join_mark(mark *m, dsc_queue *origin) {
    if (m->origin == origin)
        return;
    leave_mark(m);
    m->origin = origin;
    m->next = lane_of(origin)->marks;
    lane_of(origin)->marks = m;
}

/* Ends a recording for all queues and events that are part of it. */
static cudaError_t end_capture(dsc_queue *q, cudaGraph_t *graph) {
    lane *l = lane_of(q);
    *graph = NULL;
    cudaError_t error = cudaStreamEndCapture(l->shared.stream, graph);
    while (l->forks)
        leave_queue(l->forks);
    while (l->marks)
        leave_mark(l->marks);
    leave_queue(q);
    return error;
}

/* Captures in relaxed mode, so that libraries may load what they need and other threads are not affected. */
static dsc_status record_begin(dsc_queue *q) {
    if (lane_of(q)->shared.wrapped)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "recording: the queue's stream is the caller's (dsc_queue_wrap); "
                                           "record in a queue of the library's own");
    DSC_TRY(dsc_cuda_refuse_recording(q, "a recording"));
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    DSC_CUDA_TRY(cudaStreamBeginCapture(lane_of(q)->shared.stream, cudaStreamCaptureModeRelaxed));
    join_queue(q, q);
    return DSC_OK;
}

static dsc_status make_runnable(dsc_queue *q, cudaGraph_t graph, void **recording) {
    cudaGraphExec_t runnable;
    DSC_CUDA_TRY(cudaGraphInstantiate(&runnable, graph, 0));
    cudaError_t error = cudaGraphUpload(runnable, lane_of(q)->shared.stream);
    if (error != cudaSuccess)
        (void)cudaGraphExecDestroy(runnable);
    DSC_CUDA_TRY(error);
    *recording = runnable;
    return DSC_OK;
}

static dsc_status record_end(dsc_queue *q, void **recording) {
    cudaGraph_t graph;
    if (lane_of(q)->origin != q)
        return DSC_FAIL(DSC_E_INVALID, "recording: end it in the queue that it was begun in");
    cudaError_t error = end_capture(q, &graph);
    if (error == cudaErrorStreamCaptureUnjoined) {
        (void)cudaGetLastError();
        return DSC_FAIL(DSC_E_INVALID, "recording: a queue has waited for this one, but not the other way "
                                       "round: let this one wait for an event at the end of its work");
    }
    DSC_CUDA_TRY(error);
    dsc_status status = make_runnable(q, graph, recording);
    (void)cudaGraphDestroy(graph);
    DSC_TRY(status);
    return DSC_OK;
}

static dsc_status replay(dsc_queue *q, void *recording) {
    DSC_TRY(dsc_cuda_refuse_recording(q, "a replay"));
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    DSC_CUDA_TRY(cudaGraphLaunch(recording, lane_of(q)->shared.stream));
    return DSC_OK;
}

static void record_free(dsc_device *device, void *recording) {
    (void)device;
    if (cudaGraphExecDestroy(recording) != cudaSuccess)
        (void)cudaGetLastError();
}

/* ---- events ---- */

static void event_close(dsc_event *event) {
    mark *m = event->state;
    leave_mark(m);
    if (m->outer)
        (void)cudaEventDestroy(m->outer);
    if (m->inner)
        (void)cudaEventDestroy(m->inner);
    dsc_memory_free(&event->state);
}

static dsc_status make_events(mark *m) {
    DSC_CUDA_TRY(cudaEventCreateWithFlags(&m->outer, cudaEventDefault));
    DSC_CUDA_TRY(cudaEventCreateWithFlags(&m->inner, cudaEventDisableTiming));
    return DSC_OK;
}

static dsc_status event_open(dsc_event *event) {
    mark *m;
    DSC_CUDA_ON(dsc_cuda_of(event->device)->ordinal);
    DSC_TRY(dsc_memory_alloc(1, sizeof *m, &m));
    event->state = m;
    dsc_status status = make_events(m);
    if (status != DSC_OK)
        event_close(event);
    DSC_TRY(status);
    return DSC_OK;
}

static dsc_status event_record(dsc_event *event, dsc_queue *q) {
    lane *l = lane_of(q);
    mark *m = event->state;
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    if (!l->origin) {
        leave_mark(m);
        DSC_CUDA_TRY(cudaEventRecord(m->outer, l->shared.stream));
        return DSC_OK;
    }
    DSC_CUDA_TRY(cudaEventRecordWithFlags(m->outer, l->shared.stream, cudaEventRecordExternal));
    DSC_CUDA_TRY(cudaEventRecord(m->inner, l->shared.stream));
    join_mark(m, l->origin);
    return DSC_OK;
}

/* A queue in a recording may wait for an event from outside: then every replay waits for it. */
static dsc_status queue_wait(dsc_queue *q, dsc_event *event) {
    lane *l = lane_of(q);
    mark *m = event->state;
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    if (!m->origin) {
        DSC_CUDA_TRY(cudaStreamWaitEvent(l->shared.stream, m->outer, l->origin ? cudaEventWaitExternal : 0));
        return DSC_OK;
    }
    if (l->origin && l->origin != m->origin)
        return DSC_FAIL(DSC_E_INVALID, "event: recorded in one recording, waited for in another");
    DSC_CUDA_TRY(cudaStreamWaitEvent(l->shared.stream, m->inner, 0));
    if (!l->origin)
        join_queue(q, m->origin);
    return DSC_OK;
}

static dsc_status event_sync(dsc_event *event) {
    mark *m = event->state;
    if (m->origin)
        return DSC_FAIL(DSC_E_INVALID, "waiting for an event: cannot be recorded; end the recording first");
    DSC_CUDA_ON(dsc_cuda_of(event->device)->ordinal);
    DSC_CUDA_TRY(cudaEventSynchronize(m->outer));
    return DSC_OK;
}

static dsc_status event_elapsed(dsc_event *from, dsc_event *to, double *ms) {
    mark *first = from->state, *last = to->state;
    float time;
    DSC_CUDA_ON(dsc_cuda_of(from->device)->ordinal);
    cudaError_t error = cudaEventElapsedTime(&time, first->outer, last->outer);
    if (error == cudaErrorInvalidResourceHandle || error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return DSC_FAIL(DSC_E_INVALID, "event: %s; record both and wait for them before asking for the time",
                        error == cudaErrorNotReady ? "has not happened yet" : "was never recorded");
    }
    DSC_CUDA_TRY(error);
    *ms = (double)time;
    return DSC_OK;
}

/* ---- queues ---- */

static void free_memory_of(dsc_cuda_queue *own) {
    if (own->at.scratch)
        (void)cudaFree(own->at.scratch);
    if (own->at.tickets)
        (void)cudaFree(own->at.tickets);
    if (own->blas_workspace)
        (void)cudaFree(own->blas_workspace);
    if (own->staging)
        (void)cudaFreeHost(own->staging);
}

/* Waits before a queue's memory is freed. A wrapped stream, the caller's, may not exist any more: instead this waits
 * for the events of its uploads, and the calls that free GPU memory wait for the work that uses it. */
static void wait_for_work(lane *l) {
    if (l->shared.stream && !l->shared.wrapped)
        (void)cudaStreamSynchronize(l->shared.stream);
    for (int i = 0; l->shared.wrapped && i < RING_PLACES; i++)
        if (l->place_used[i])
            (void)cudaEventSynchronize(l->place_free[i]);
}

static void queue_close(dsc_queue *q) {
    lane *l = lane_of(q);
    dsc_cuda_queue *own = &l->shared;
    cudaGraph_t graph = NULL;
    DSC_CUDA_ON_QUIETLY(dsc_cuda_of(q->device)->ordinal);
    if (l->origin == q && end_capture(q, &graph) == cudaSuccess)
        (void)cudaGraphDestroy(graph);
    leave_queue(q);
    enum cudaStreamCaptureMode mode = dsc_cuda_capture_mode(cudaStreamCaptureModeRelaxed);
    wait_for_work(l);
    dsc_cuda_halves_close(q);
#ifndef DSC_EMULATED
    if (own->dnn)
        cudnnDestroy(own->dnn);
    if (own->blas)
        cublasDestroy(own->blas);
#endif
    for (int i = 0; i < RING_PLACES; i++)
        if (l->place_free[i])
            (void)cudaEventDestroy(l->place_free[i]);
    if (l->moved)
        (void)cudaEventDestroy(l->moved);
    free_memory_of(own);
    if (own->stream && !own->wrapped)
        (void)cudaStreamDestroy(own->stream);
    (void)dsc_cuda_capture_mode(mode);
    (void)cudaGetLastError();
    dsc_memory_free(&q->state);
}

static dsc_status make_lane(const dsc_device *device, int low, lane *l) {
    dsc_cuda_queue *own = &l->shared;
    void *tickets;
    int least = 0, greatest = 0; /* a smaller number is a higher priority */
    DSC_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    int priority = low || greatest == least ? least : least - 1;
    if (own->wrapped)
        DSC_CUDA_TRY(cudaEventCreateWithFlags(&l->moved, cudaEventDisableTiming));
    else
        DSC_CUDA_TRY(cudaStreamCreateWithPriority(&own->stream, cudaStreamNonBlocking, priority));
    own->at.stream = own->stream;
    own->at.multiprocessors = dsc_cuda_of(device)->multiprocessors;
    own->at.capability = dsc_cuda_of(device)->capability;
    DSC_CUDA_TRY(cudaMalloc(&own->at.scratch, DSC_CUDA_SCRATCH));
    DSC_TRY(dsc_cuda_take_zeroed(DSC_CUDA_TICKETS * sizeof(unsigned), &tickets));
    own->at.tickets = tickets;
    DSC_CUDA_TRY(cudaHostAlloc(&own->staging, (size_t)RING_PLACES * RING_BYTES, cudaHostAllocDefault));
    for (int i = 0; i < RING_PLACES; i++)
        DSC_CUDA_TRY(cudaEventCreateWithFlags(&l->place_free[i], cudaEventDisableTiming));
    return DSC_OK;
}

/* Sets the stream of the handles. cuBLAS forgets its workspace with every new stream. */
static dsc_status follow_stream(dsc_cuda_queue *own) {
#ifndef DSC_EMULATED
    DSC_BLAS_TRY(cublasSetStream(own->blas, own->stream));
    DSC_BLAS_TRY(cublasSetWorkspace(own->blas, own->blas_workspace, DSC_CUDA_BLAS_WORKSPACE));
    DSC_DNN_TRY(cudnnSetStream(own->dnn, own->stream));
#endif
    own->at.stream = own->stream;
    return DSC_OK;
}

/* Creates the handles. cuBLAS gets a workspace of its own, so that results do not depend on what else runs and calls
 * can be recorded; pedantic mode: float32 stays float32. */
static dsc_status make_handles(dsc_cuda_queue *own) {
#ifndef DSC_EMULATED
    DSC_BLAS_TRY(cublasCreate(&own->blas));
    DSC_CUDA_TRY(cudaMalloc(&own->blas_workspace, DSC_CUDA_BLAS_WORKSPACE));
    DSC_BLAS_TRY(cublasSetMathMode(own->blas, CUBLAS_PEDANTIC_MATH));
    DSC_BLAS_TRY(cublasSetAtomicsMode(own->blas, CUBLAS_ATOMICS_NOT_ALLOWED));
    DSC_DNN_TRY(cudnnCreate(&own->dnn));
#endif
    DSC_TRY(follow_stream(own));
    return DSC_OK;
}

static dsc_status open_lane(dsc_queue *q, int wrapped, cudaStream_t stream) {
    lane *l;
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    DSC_TRY(dsc_memory_alloc(1, sizeof *l, &l));
    q->state = l;
    l->shared.wrapped = wrapped;
    l->shared.stream = stream;
    dsc_status status = make_lane(q->device, q->low, l);
    if (status == DSC_OK)
        status = make_handles(&l->shared);
    if (status != DSC_OK)
        queue_close(q);
    DSC_TRY(status);
    return DSC_OK;
}

static dsc_status queue_open(dsc_queue *q) {
    return open_lane(q, 0, NULL);
}

static dsc_status queue_wrap(dsc_queue *q, void *stream) {
    return open_lane(q, 1, stream);
}

/* Checks that a queue may change streams while the old or the new one is being captured. Neither can wait for the
 * other, since a graph cannot depend on work outside it: the old one must not be captured, and its work must be
 * done. */
static dsc_status move_by_query(lane *l) {
    if (is_captured(l->shared.stream))
        return DSC_FAIL(DSC_E_INVALID, "queue: its stream is being captured into a CUDA graph; end the "
                                       "capture before the queue continues in another stream");
    enum cudaStreamCaptureMode mode = dsc_cuda_capture_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t error = cudaEventRecord(l->moved, l->shared.stream);
    if (error == cudaSuccess)
        error = cudaEventQuery(l->moved);
    (void)dsc_cuda_capture_mode(mode);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return DSC_FAIL(DSC_E_INVALID, "queue: the new stream is being captured into a CUDA graph while work "
                                       "of the queue is under way in the old one; wait for it "
                                       "(dsc_queue_sync) before the capture begins");
    }
    DSC_CUDA_TRY(error);
    return DSC_OK;
}

static dsc_status queue_rewrap(dsc_queue *q, void *stream) {
    lane *l = lane_of(q);
    cudaStream_t to = stream;
    if (!l->shared.wrapped)
        return DSC_FAIL(DSC_E_INVALID, "queue: only a queue made by dsc_queue_wrap changes its stream");
    if (l->shared.stream == to)
        return DSC_OK;
    if (l->origin)
        return DSC_FAIL(DSC_E_INVALID, "queue: cannot change its stream while it is part of a recording");
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    if (is_captured(to) || is_captured(l->shared.stream)) {
        DSC_TRY(move_by_query(l));
    } else {
        DSC_CUDA_TRY(cudaEventRecord(l->moved, l->shared.stream));
        DSC_CUDA_TRY(cudaStreamWaitEvent(to, l->moved, 0));
    }
    l->shared.stream = to;
    DSC_TRY(follow_stream(&l->shared));
    return DSC_OK;
}

static void *queue_stream(const dsc_queue *q) {
    return lane_of(q)->shared.stream;
}

static dsc_status queue_sync(dsc_queue *q) {
    DSC_TRY(dsc_cuda_refuse_recording(q, "waiting for a queue"));
    DSC_CUDA_ON(dsc_cuda_of(q->device)->ordinal);
    DSC_CUDA_TRY(cudaStreamSynchronize(lane_of(q)->shared.stream));
    return DSC_OK;
}

/* ---- opening ---- */

static void destroy(dsc_device *device) {
    dsc_cuda *own = dsc_cuda_of(device);
    DSC_CUDA_ON_QUIETLY(own->ordinal);
    dsc_cuda_solver_close(device);
    pthread_mutex_destroy(&own->lock);
    dsc_memory_free(&own->blocks);
    dsc_memory_free(&device->state);
}

static dsc_status conv_open(dsc_conv *conv) {
    DSC_CUDA_ON(dsc_cuda_of(conv->device)->ordinal);
    return dsc_cuda_conv_open(conv);
}

static void conv_close(dsc_conv *conv) {
    DSC_CUDA_ON_QUIETLY(dsc_cuda_of(conv->device)->ordinal);
    dsc_cuda_conv_close(conv);
}

/* The operations are filled in when the first device is opened. */
static dsc_device_table table = {.destroy = destroy,
                                 .alloc = dsc_cuda_alloc,
                                 .free = dsc_cuda_free,
                                 .upload = upload,
                                 .download = download,
                                 .check_memory = dsc_cuda_check_memory,
                                 .enter = enter,
                                 .leave = leave,
                                 .host_alloc = dsc_cuda_host_alloc,
                                 .host_free = dsc_cuda_host_free,
                                 .queue_open = queue_open,
                                 .queue_wrap = queue_wrap,
                                 .queue_rewrap = queue_rewrap,
                                 .queue_stream = queue_stream,
                                 .queue_close = queue_close,
                                 .queue_sync = queue_sync,
                                 .queue_wait = queue_wait,
                                 .event_open = event_open,
                                 .event_close = event_close,
                                 .event_record = event_record,
                                 .event_sync = event_sync,
                                 .event_elapsed = event_elapsed,
                                 .record_begin = record_begin,
                                 .record_end = record_end,
                                 .replay = replay,
                                 .record_free = record_free,
                                 .choices = dsc_cuda_choices,
                                 .preset = dsc_cuda_preset,
                                 .conv_open = conv_open,
                                 .conv_close = conv_close};

static void fill_in_operations(void) {
#define ENTRY(name) table.name = dsc_cuda_operations_on_gpu()->name;
    DSC_OPERATIONS(ENTRY, ENTRY)
#undef ENTRY
}

/* Counts the GPUs; fails, with the reason, when there is none. */
static dsc_status count_gpus(int *count) {
    int driver = 0, needed = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0)
        return DSC_OK;
    (void)cudaGetLastError();
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "device cuda: this machine shows no NVIDIA GPU (or "
                                           "CUDA_VISIBLE_DEVICES hides it); use device cpu");
    if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&needed) != cudaSuccess)
        (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "device cuda: no NVIDIA driver is installed; use device cpu");
    if (error == cudaErrorInsufficientDriver)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "device cuda: the driver knows CUDA %d.%d, this build needs %d.%d: install a newer "
                        "driver, or use device cpu",
                        driver / 1000, driver % 1000 / 10, needed / 1000, needed % 1000 / 10);
    return DSC_FAIL(DSC_E_UNSUPPORTED, "device cuda: %s (%s); use device cpu", cudaGetErrorString(error),
                    cudaGetErrorName(error));
}

static void describe(dsc_device *device, const char *name, const struct cudaDeviceProp *gpu_facts) {
    char dnn[24] = "emulated";
    int runtime = 0;
    (void)cudaRuntimeGetVersion(&runtime);
#ifndef DSC_EMULATED
    int version = (int)cudnnGetVersion();
    snprintf(dnn, sizeof dnn, "cuDNN %d.%d", version / 10000, version % 10000 / 100);
#endif
    snprintf(device->description, sizeof device->description, "%s: %.64s, %.1f GiB, CUDA %d.%d, %s%s", name,
             gpu_facts->name, (double)gpu_facts->totalGlobalMem / (1 << 30), runtime / 1000,
             runtime % 1000 / 10, dnn, device->tunes ? ", tuned" : "");
}

/* Reads the GPU's properties, checks that it is supported, and creates its context. */
static dsc_status look_at(int ordinal, dsc_cuda *own, struct cudaDeviceProp *facts) {
    DSC_CUDA_TRY(cudaGetDeviceProperties(facts, ordinal));
    own->ordinal = ordinal;
    own->capability = 10 * facts->major + facts->minor;
    own->multiprocessors = facts->multiProcessorCount;
    own->shared = facts->sharedMemPerBlockOptin;
    if (own->capability < OLDEST_CAPABILITY)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "device cuda: GPU %d (%s) has compute capability %d.%d, %d.%d or more is needed; use "
                        "device cpu",
                        ordinal, facts->name, facts->major, facts->minor, OLDEST_CAPABILITY / 10,
                        OLDEST_CAPABILITY % 10);
    DSC_CUDA_ON(ordinal);
    DSC_CUDA_TRY(cudaFree(NULL)); /* creates the GPU's context now, so that its errors appear here */
    return DSC_OK;
}

static dsc_status cuda_open(dsc_device *device, const dsc_device_options *options) {
    struct cudaDeviceProp facts;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int count, strict = strcmp(options->name, "cuda:fp32") == 0;
    dsc_cuda *own;
    pthread_once(&once, fill_in_operations);
    DSC_TRY(count_gpus(&count));
    DSC_TRY(dsc_memory_alloc(1, sizeof *own, &own));
    dsc_status status = look_at(options->ordinal % count, own, &facts);
    if (status != DSC_OK)
        dsc_memory_free(&own);
    DSC_TRY(status);
    own->strict = strict;
    pthread_mutex_init(&own->lock, NULL);
    device->table = &table;
    device->name = "cuda";
    device->is_host = 0;
    device->has_halves = 1;
    device->tunes = options->tune;
    device->threads = options->threads > 0 ? options->threads : omp_get_num_procs();
    device->identity = dsc_hash_bytes(1, &facts.uuid, sizeof facts.uuid) | 1;
    device->state = own;
    describe(device, strict ? "cuda:fp32" : "cuda", &facts);
    return DSC_OK;
}

static int cuda_count(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

const dsc_module *dsc_cuda_module(void) {
    static const dsc_cuda_functions functions = {.open = cuda_open, .count = cuda_count};
    static const dsc_module module = {.version = DSC_VERSION_STRING, .name = "cuda", .table = &functions};
    return &module;
}

/* The GPU: opening it, its memory, queues, events and recordings. Operations are in the files beside this one
 * (state.h), and listed in the table at the end.
 *
 * A queue is a stream; a recording is a graph captured from it. An event is two of CUDA's: `outer` is what
 * the host waits for and measures, and is recorded anew by every replay; `inner` orders queues within one
 * recording. A queue that waits for an event of a recording becomes part of that recording until its end. */
#include "device/backends.h"
#include "device/cuda/entries.h"
#include "device/cuda/state.h"

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
    RING_BYTES = 64 << 10, /* of a place; larger uploads do without the ring */
    BLAS_WORKSPACE = 32 << 20
};

typedef struct block {
    void *data;
    size_t bytes;
} block;

typedef struct gpu {
    dsc_cuda shared; /* first: what dsc_cuda_of returns */
    pthread_mutex_t lock;
    block *blocks; /* what is allocated */
    int64_t block_count, block_capacity;
} gpu;

typedef struct mark mark;

typedef struct lane {
    dsc_cuda_queue shared; /* first: what dsc_cuda_queue_of returns */
    cudaEvent_t place_free[RING_PLACES];
    int place_used[RING_PLACES], next_place;
    dsc_queue *origin;    /* whose recording this queue is part of; NULL: of none */
    dsc_queue *next_fork; /* of the same recording */
    dsc_queue *forks;     /* of an origin: the other queues of its recording */
    mark *marks;          /* of an origin: events of its recording */
} lane;

/* The state of an event. */
struct mark {
    cudaEvent_t outer, inner;
    dsc_queue *origin; /* whose recording it was recorded in, while that lasts */
    mark *next;
};

static lane *lane_of(const dsc_queue *q) {
    return q->state;
}

/* ---- errors ---- */

const dsc_cuda_launch *dsc_cuda_at(const dsc_queue *q) {
    return &dsc_cuda_queue_of(q)->at;
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

static dsc_status refuse_recording(const dsc_queue *q, const char *what) {
    if (lane_of(q)->shared.recording)
        return DSC_FAIL(DSC_E_INVALID, "%s: cannot be recorded; end the recording first", what);
    return DSC_OK;
}

/* ---- memory ---- */

static double gib(size_t bytes) {
    return (double)bytes / (1 << 30);
}

static dsc_status fail_alloc(const dsc_device *device, size_t bytes) {
    size_t free_bytes = 0, total = 0;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        (void)cudaGetLastError();
    return DSC_FAIL(
        DSC_E_MEMORY,
        "cannot allocate %zu bytes (%.2f GiB) of device memory: %.2f of %.2f GiB are free on GPU "
        "%d, %.2f GiB are this process's tensors; use a smaller batch, bf16, or a GPU that others "
        "do not use",
        bytes, gib(bytes), gib(free_bytes), gib(total), dsc_cuda_of(device)->ordinal,
        gib(dsc_device_bytes(device)));
}

/* Zeroed; our streams do not wait for the one that fills in the zeros, so the call does. */
static dsc_status take_zeroed(size_t bytes, void **out) {
    DSC_CUDA_TRY(cudaMalloc(out, bytes > 0 ? bytes : 1));
    cudaError_t error = cudaMemsetAsync(*out, 0, bytes > 0 ? bytes : 1, cudaStreamPerThread);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cudaStreamPerThread);
    if (error != cudaSuccess) {
        (void)cudaFree(*out);
        *out = NULL;
    }
    DSC_CUDA_TRY(error);
    return DSC_OK;
}

static dsc_status note_block(gpu *g, void *data, size_t bytes) {
    pthread_mutex_lock(&g->lock);
    dsc_status status = dsc_memory_grow(&g->blocks, &g->block_capacity, g->block_count + 1, sizeof(block));
    if (status == DSC_OK)
        g->blocks[g->block_count++] = (block){data, bytes};
    pthread_mutex_unlock(&g->lock);
    return status;
}

static size_t forget_block(gpu *g, const void *data) {
    size_t bytes = 0;
    pthread_mutex_lock(&g->lock);
    int64_t i = g->block_count - 1;
    while (i >= 0 && g->blocks[i].data != data)
        i--;
    if (i >= 0) {
        bytes = g->blocks[i].bytes;
        g->blocks[i] = g->blocks[--g->block_count];
    }
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

static dsc_status device_alloc(dsc_device *device, size_t bytes, void **out) {
    void *data = NULL;
    DSC_TRY(dsc_cuda_use(device));
    dsc_status status = bytes > (size_t)INT64_MAX ? DSC_E_MEMORY : take_zeroed(bytes, &data);
    if (status == DSC_E_MEMORY)
        return fail_alloc(device, bytes);
    DSC_TRY(status);
    status = note_block(device->state, data, bytes);
    if (status != DSC_OK)
        (void)cudaFree(data);
    DSC_TRY(status);
    dsc_device_count_alloc(device, bytes);
    *out = data;
    return DSC_OK;
}

static void device_free(dsc_device *device, void *data) {
    dsc_device_count_free(device, forget_block(device->state, data));
    if (cudaSetDevice(dsc_cuda_of(device)->ordinal) != cudaSuccess || cudaFree(data) != cudaSuccess)
        (void)cudaGetLastError(); /* of work that failed before; the next sync reports it */
}

static dsc_status host_alloc(dsc_device *device, size_t bytes, void **out) {
    DSC_TRY(dsc_cuda_use(device));
    cudaError_t error = cudaHostAlloc(out, bytes > 0 ? bytes : 1, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return DSC_FAIL(DSC_E_MEMORY, "cannot allocate %zu bytes of page-locked host memory", bytes);
    }
    DSC_CUDA_TRY(error);
    memset(*out, 0, bytes);
    return DSC_OK;
}

static void host_free(dsc_device *device, void *data) {
    (void)device;
    if (cudaFreeHost(data) != cudaSuccess)
        (void)cudaGetLastError();
}

/* Through page-locked memory: the copy runs later, the caller's memory is free at once. */
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
    DSC_TRY(refuse_recording(q, "a copy from the host"));
    DSC_TRY(dsc_cuda_use(q->device));
    if (bytes <= RING_BYTES)
        return upload_by_ring(l, host, bytes, data);
    DSC_CUDA_TRY(cudaMemcpyAsync(data, host, bytes, cudaMemcpyHostToDevice, l->shared.stream));
    return DSC_OK;
}

static dsc_status download(dsc_queue *q, const void *data, size_t bytes, void *host) {
    DSC_TRY(refuse_recording(q, "a copy to the host"));
    DSC_TRY(dsc_cuda_use(q->device));
    DSC_CUDA_TRY(cudaMemcpyAsync(host, data, bytes, cudaMemcpyDeviceToHost, lane_of(q)->shared.stream));
    return DSC_OK;
}

/* ---- recordings ---- */

/* Queue and event leave the recording that they are part of. */
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

/* The end of a recording for all who are part of it. */
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

/* Relaxed: libraries may load what they need, and other threads go on as before. */
static dsc_status record_begin(dsc_queue *q) {
    DSC_TRY(refuse_recording(q, "a recording"));
    DSC_TRY(dsc_cuda_use(q->device));
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
    DSC_TRY(refuse_recording(q, "a replay"));
    DSC_TRY(dsc_cuda_use(q->device));
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
    DSC_TRY(dsc_cuda_use(event->device));
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
    DSC_TRY(dsc_cuda_use(q->device));
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

/* In a recording, an event from outside is one that every replay waits for. */
static dsc_status queue_wait(dsc_queue *q, dsc_event *event) {
    lane *l = lane_of(q);
    mark *m = event->state;
    DSC_TRY(dsc_cuda_use(q->device));
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
    DSC_TRY(dsc_cuda_use(event->device));
    DSC_CUDA_TRY(cudaEventSynchronize(m->outer));
    return DSC_OK;
}

static dsc_status event_elapsed(dsc_event *from, dsc_event *to, double *ms) {
    mark *first = from->state, *last = to->state;
    float time;
    DSC_TRY(dsc_cuda_use(from->device));
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

static void queue_close(dsc_queue *q) {
    lane *l = lane_of(q);
    dsc_cuda_queue *own = &l->shared;
    cudaGraph_t graph = NULL;
    (void)cudaSetDevice(dsc_cuda_of(q->device)->ordinal);
    if (l->origin == q && end_capture(q, &graph) == cudaSuccess)
        (void)cudaGraphDestroy(graph);
    leave_queue(q);
    if (own->stream)
        (void)cudaStreamSynchronize(own->stream);
#ifndef DSC_EMULATED
    if (own->dnn)
        cudnnDestroy(own->dnn);
    if (own->blas)
        cublasDestroy(own->blas);
#endif
    for (int i = 0; i < RING_PLACES; i++)
        if (l->place_free[i])
            (void)cudaEventDestroy(l->place_free[i]);
    free_memory_of(own);
    if (own->stream)
        (void)cudaStreamDestroy(own->stream);
    (void)cudaGetLastError();
    dsc_memory_free(&q->state);
}

static dsc_status make_lane(const dsc_device *device, lane *l) {
    dsc_cuda_queue *own = &l->shared;
    void *tickets;
    DSC_CUDA_TRY(cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking));
    own->at.stream = own->stream;
    own->at.multiprocessors = dsc_cuda_of(device)->multiprocessors;
    DSC_CUDA_TRY(cudaMalloc(&own->at.scratch, DSC_CUDA_SCRATCH));
    DSC_TRY(take_zeroed(DSC_CUDA_TICKETS * sizeof(unsigned), &tickets));
    own->at.tickets = tickets;
    DSC_CUDA_TRY(cudaHostAlloc(&own->staging, (size_t)RING_PLACES * RING_BYTES, cudaHostAllocDefault));
    for (int i = 0; i < RING_PLACES; i++)
        DSC_CUDA_TRY(cudaEventCreateWithFlags(&l->place_free[i], cudaEventDisableTiming));
    return DSC_OK;
}

/* cuBLAS with memory of its own, so that results do not depend on what else runs and calls can be recorded;
 * pedantic: float32 stays float32. */
static dsc_status make_handles(dsc_cuda_queue *own) {
#ifndef DSC_EMULATED
    DSC_BLAS_TRY(cublasCreate(&own->blas));
    DSC_BLAS_TRY(cublasSetStream(own->blas, own->stream));
    DSC_CUDA_TRY(cudaMalloc(&own->blas_workspace, BLAS_WORKSPACE));
    DSC_BLAS_TRY(cublasSetWorkspace(own->blas, own->blas_workspace, BLAS_WORKSPACE));
    DSC_BLAS_TRY(cublasSetMathMode(own->blas, CUBLAS_PEDANTIC_MATH));
    DSC_BLAS_TRY(cublasSetAtomicsMode(own->blas, CUBLAS_ATOMICS_NOT_ALLOWED));
    DSC_DNN_TRY(cudnnCreate(&own->dnn));
    DSC_DNN_TRY(cudnnSetStream(own->dnn, own->stream));
#endif
    (void)own;
    return DSC_OK;
}

static dsc_status queue_open(dsc_queue *q) {
    lane *l;
    DSC_TRY(dsc_cuda_use(q->device));
    DSC_TRY(dsc_memory_alloc(1, sizeof *l, &l));
    q->state = l;
    dsc_status status = make_lane(q->device, l);
    if (status == DSC_OK)
        status = make_handles(&l->shared);
    if (status != DSC_OK)
        queue_close(q);
    DSC_TRY(status);
    return DSC_OK;
}

static dsc_status queue_sync(dsc_queue *q) {
    DSC_TRY(refuse_recording(q, "waiting for a queue"));
    DSC_TRY(dsc_cuda_use(q->device));
    DSC_CUDA_TRY(cudaStreamSynchronize(lane_of(q)->shared.stream));
    return DSC_OK;
}

/* ---- opening ---- */

static void destroy(dsc_device *device) {
    gpu *g = device->state;
    dsc_cuda_solver_close(device);
    pthread_mutex_destroy(&g->lock);
    dsc_memory_free(&g->blocks);
    dsc_memory_free(&device->state);
}

static const dsc_device_table table = {.destroy = destroy,
                                       .alloc = device_alloc,
                                       .free = device_free,
                                       .upload = upload,
                                       .download = download,
                                       .host_alloc = host_alloc,
                                       .host_free = host_free,
                                       .queue_open = queue_open,
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
                                       .conv_open = dsc_cuda_conv_open,
                                       .conv_close = dsc_cuda_conv_close,
#define ENTRY(name) .name = dsc_cuda_##name,
                                       DSC_OPERATIONS(ENTRY, ENTRY)
#undef ENTRY
};

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
             gpu_facts->name, gib(gpu_facts->totalGlobalMem), runtime / 1000, runtime % 1000 / 10, dnn,
             device->tunes ? ", tuned" : "");
}

/* Looks at the GPU, and makes it the thread's. */
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
    DSC_CUDA_TRY(cudaSetDevice(ordinal));
    DSC_CUDA_TRY(cudaFree(NULL)); /* creates the GPU's context now, so that its errors appear here */
    return DSC_OK;
}

static dsc_status cuda_open(dsc_device *device, const dsc_device_options *options) {
    struct cudaDeviceProp facts;
    int count, strict = strcmp(options->name, "cuda:fp32") == 0;
    gpu *g;
    DSC_TRY(count_gpus(&count));
    DSC_TRY(dsc_memory_alloc(1, sizeof *g, &g));
    dsc_status status = look_at(options->ordinal % count, &g->shared, &facts);
    if (status != DSC_OK)
        dsc_memory_free(&g);
    DSC_TRY(status);
    g->shared.strict = strict;
    pthread_mutex_init(&g->lock, NULL);
    device->table = &table;
    device->name = "cuda";
    device->is_host = 0;
    device->has_halves = 1;
    device->tunes = options->tune;
    device->threads = options->threads > 0 ? options->threads : omp_get_num_procs();
    device->identity = dsc_hash_bytes(1, &facts.uuid, sizeof facts.uuid) | 1;
    device->state = g;
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

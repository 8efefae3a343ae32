/* The CUDA runtime: streams, events and recordings. Work that is submitted has been done when the call
 * returns, or becomes part of a recording: a list that a replay goes through in the order of submission.
 * The rules for queues that enter and leave a recording are those of CUDA. */
#define _GNU_SOURCE

#include "emulator/engine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct node {
    int (*run)(void *state);
    void *state;
    struct node *next;
} node;

struct CUgraph_st {
    node *first, **end;
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
};

/* A recording that has not ended; the streams that take part. */
typedef struct capture {
    cudaGraph_t graph;
    cudaStream_t origin;
    cudaStream_t streams;
    cudaError_t error;
    uint64_t number;
    struct capture *next;
} capture;

struct CUstream_st {
    int gpu;
    capture *in;
    cudaStream_t next; /* in the same capture */
    uint64_t work;     /* how much was recorded */
    uint64_t joined;   /* so much of it is waited for by another stream of the capture */
};

struct CUevent_st {
    int gpu;
    int happened;
    struct timespec when;
    uint64_t capture; /* number of the one it was recorded in; 0: none */
    cudaStream_t stream;
    uint64_t work; /* of that stream, when it was recorded */
};

static capture *captures;
static uint64_t capture_count;

/* NULL and the runtime's own streams have small numbers and are never recorded. */
static capture *capture_of(cudaStream_t stream) {
    return (uintptr_t)stream > 4096 ? stream->in : NULL;
}

/* Its GPU; those of the runtime's own streams is the current one. */
static int gpu_of(cudaStream_t stream) {
    return (uintptr_t)stream > 4096 ? stream->gpu : dsc_emulated_gpu();
}

int dsc_emulated_is_current(cudaStream_t stream) {
    if (gpu_of(stream) == dsc_emulated_gpu())
        return 1;
    dsc_emulated_error(cudaErrorInvalidResourceHandle);
    return 0;
}

static capture *find_capture(uint64_t number) {
    capture *c = captures;
    while (c && c->number != number)
        c = c->next;
    return c;
}

static cudaError_t spoil(capture *c, cudaError_t error) {
    c->error = cudaErrorStreamCaptureInvalidated;
    return dsc_emulated_error(error);
}

static int append(capture *c, int (*run)(void *), const void *state, size_t bytes) {
    node *n = calloc(1, sizeof *n);
    void *copy = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!n || !copy) {
        free(n);
        free(copy);
        spoil(c, cudaErrorMemoryAllocation);
        return -1;
    }
    memcpy(copy, state, bytes);
    *n = (node){run, copy, NULL};
    *c->graph->end = n;
    c->graph->end = &n->next;
    return 0;
}

int dsc_emulated_submit(cudaStream_t stream, int (*run)(void *), void *state, size_t bytes) {
    capture *c = capture_of(stream);
    if (c) {
        stream->work++;
        return append(c, run, state, bytes);
    }
    dsc_emulated_open();
    int result = run(state);
    dsc_emulated_close();
    return result;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    if (*stream)
        (*stream)->gpu = dsc_emulated_gpu();
    return dsc_emulated_error(*stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

static void leave(cudaStream_t stream) {
    cudaStream_t *at = &stream->in->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    stream->in = NULL;
    stream->next = NULL;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    capture *c = capture_of(stream);
    if (c) {
        spoil(c, cudaSuccess);
        leave(stream);
    }
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    capture *c = capture_of(stream);
    return c ? spoil(c, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return cudaStreamSynchronize(stream);
}

typedef struct host_call {
    cudaHostFn_t function;
    void *argument;
} host_call;

static int run_host_call(void *state) {
    host_call *call = state;
    call->function(call->argument);
    return 0;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
    dsc_emulated_submit(stream, run_host_call, &(host_call){function, argument}, sizeof(host_call));
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    if (*event)
        (*event)->gpu = dsc_emulated_gpu();
    return dsc_emulated_error(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

static int run_event(void *state) {
    cudaEvent_t event = *(cudaEvent_t *)state;
    event->happened = 1;
    clock_gettime(CLOCK_MONOTONIC, &event->when);
    return 0;
}

/* Without `external` an event of a recording only orders streams within it. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    capture *c = capture_of(stream);
    int external = flags == cudaEventRecordExternal;
    if (event->gpu != gpu_of(stream))
        return dsc_emulated_error(cudaErrorInvalidResourceHandle);
    if (external && !c)
        return dsc_emulated_error(cudaErrorIllegalState);
    if (c && !external) {
        event->capture = c->number;
        event->stream = stream;
        event->work = stream->work;
        return cudaSuccess;
    }
    event->capture = 0;
    dsc_emulated_submit(stream, run_event, &event, sizeof event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

/* The stream takes part from here on; to have it wait is to have the event's work waited for. */
static cudaError_t wait_within(cudaStream_t stream, capture *c, cudaEvent_t event) {
    if (stream->in && stream->in != c)
        return spoil(stream->in, cudaErrorStreamCaptureMerge);
    if (!stream->in) {
        stream->in = c;
        stream->next = c->streams;
        c->streams = stream;
        stream->work = 1; /* the wait itself, which has to be joined again */
        stream->joined = 0;
    }
    if (event->stream != stream && event->work > event->stream->joined)
        event->stream->joined = event->work;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    capture *own = capture_of(stream);
    if (flags == cudaEventWaitExternal)
        return dsc_emulated_error(own ? cudaSuccess : cudaErrorIllegalState);
    if (event->capture) {
        capture *c = find_capture(event->capture);
        return c ? wait_within(stream, c, event) : dsc_emulated_error(cudaErrorInvalidValue);
    }
    return own && event->happened ? spoil(own, cudaErrorStreamCaptureIsolation) : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    capture *c = event->capture ? find_capture(event->capture) : NULL;
    return c ? spoil(c, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    if (!start->happened || !end->happened)
        return dsc_emulated_error(cudaErrorInvalidResourceHandle);
    *ms = (float)(1e3 * (double)(end->when.tv_sec - start->when.tv_sec) +
                  1e-6 * (double)(end->when.tv_nsec - start->when.tv_nsec));
    return cudaSuccess;
}

/* ---- recordings ---- */

static void free_nodes(struct CUgraph_st *graph) {
    while (graph->first) {
        node *n = graph->first;
        graph->first = n->next;
        free(n->state);
        free(n);
    }
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)mode;
    if ((uintptr_t)stream <= 4096)
        return dsc_emulated_error(cudaErrorStreamCaptureUnsupported);
    if (stream->in)
        return dsc_emulated_error(cudaErrorIllegalState);
    capture *c = calloc(1, sizeof *c);
    cudaGraph_t graph = calloc(1, sizeof *graph);
    if (!c || !graph) {
        free(c);
        free(graph);
        return dsc_emulated_error(cudaErrorMemoryAllocation);
    }
    graph->end = &graph->first;
    *c = (capture){graph, stream, stream, cudaSuccess, ++capture_count, captures};
    captures = c;
    stream->in = c;
    stream->next = NULL;
    stream->work = stream->joined = 0;
    return cudaSuccess;
}

/* All streams leave; whether one of them had work that nobody waited for. */
static int dissolve(capture *c) {
    int unjoined = 0;
    while (c->streams) {
        cudaStream_t stream = c->streams;
        unjoined |= stream != c->origin && stream->joined < stream->work;
        leave(stream);
    }
    capture **at = &captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    return unjoined;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    capture *c = capture_of(stream);
    *graph = NULL;
    if (!c)
        return dsc_emulated_error(cudaErrorIllegalState);
    cudaError_t error = c->origin == stream ? c->error : cudaErrorStreamCaptureUnmatched;
    if (dissolve(c) && error == cudaSuccess)
        error = cudaErrorStreamCaptureUnjoined;
    if (error == cudaSuccess)
        *graph = c->graph;
    else
        cudaGraphDestroy(c->graph);
    free(c);
    return dsc_emulated_error(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    capture *c = capture_of(stream);
    *status = !c                        ? cudaStreamCaptureStatusNone
              : c->error == cudaSuccess ? cudaStreamCaptureStatusActive
                                        : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    (void)mode;
    return cudaSuccess;
}

/* Takes the list over from the graph, which is then empty: enough for who destroys it next. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return dsc_emulated_error(cudaErrorMemoryAllocation);
    (*out)->graph.first = graph->first;
    graph->first = NULL;
    graph->end = &graph->first;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
    (void)graph;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    capture *c = capture_of(stream);
    int failed = 0;
    if (c)
        return spoil(c, cudaErrorNotSupported);
    dsc_emulated_open();
    for (const node *n = graph->graph.first; n && !failed; n = n->next)
        failed = n->run(n->state);
    dsc_emulated_close();
    return dsc_emulated_error(failed ? cudaErrorUnknown : cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    free_nodes(graph);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    free_nodes(&graph->graph);
    free(graph);
    return cudaSuccess;
}

/* Picks the engine of a pass: the first that works, or the fastest by timing. */
#include "device/cuda/dnn_pick.h"

#include "base/clock.h"
#include "descent/log.h"
#include "device/ops.h"

enum { MOST_LISTED = 96, MOST_TIMED = 20, LAUNCHES = 3 };

/* The heuristics, in the order in which they are asked. `timed`: when choosing by timing, the largest number of
 * candidates after each. */
static const struct {
    cudnnBackendHeurMode_t mode;
    int64_t timed;
} rounds[] = {{CUDNN_HEUR_MODE_A, 10}, {CUDNN_HEUR_MODE_B, 18}, {CUDNN_HEUR_MODE_FALLBACK, MOST_TIMED}};

enum { ROUNDS = sizeof rounds / sizeof rounds[0] };

static int open_within(const dsc_dnn_graph *graph, const dsc_dnn_choice *choice, size_t limit,
                       dsc_dnn_plan *plan) {
    if (dsc_dnn_plan_open(graph, choice, plan) != CUDNN_STATUS_SUCCESS)
        return 0;
    if (plan->workspace > limit)
        dsc_dnn_plan_close(plan);
    return plan->plan != NULL;
}

cudnnStatus_t dsc_dnn_pick_first(const dsc_dnn_graph *graph, dsc_dnn_choice *choice, dsc_dnn_plan *plan) {
    dsc_dnn_choice list[MOST_LISTED];
    int64_t count = 0, tried = 0;
    for (int i = 0; i < ROUNDS; i++) {
        (void)dsc_dnn_candidates(graph, rounds[i].mode, MOST_LISTED, list, &count); /* one may fail */
        for (; tried < count; tried++) {
            *choice = list[tried];
            if (open_within(graph, choice, DSC_DNN_WORKSPACE, plan))
                return CUDNN_STATUS_SUCCESS;
        }
    }
    for (int64_t i = 0; i < count; i++) {
        *choice = list[i];
        if (open_within(graph, choice, SIZE_MAX, plan))
            return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- by timing ---- */

typedef struct bench {
    cudnnHandle_t handle;
    cudaStream_t stream;
    cudaEvent_t from, to;
    void *x, *w, *y, *work;
    int repeat; /* runs per recording */
} bench;

static size_t tensor_bytes(dsc_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    return (size_t)(a * b * c * d) * dsc_dtype_size(dtype);
}

/* Allocates a tensor and fills it with small numbers: zeros would save power, and so time, unlike real data. */
static int make_buffer(bench *b, size_t bytes, void **out) {
    return cudaMalloc(out, bytes) == cudaSuccess &&
           cudaMemsetAsync(*out, 0x3C, bytes, b->stream) == cudaSuccess;
}

static int bench_open(const dsc_dnn_graph *graph, const dsc_dnn_problem *p, dsc_dnn_kind kind, bench *b) {
    const dsc_conv_desc *d = &p->desc;
    const dsc_conv2d_shape *s = &d->shape;
    const double large = 1e10; /* multiplications, about 0.1 ms */
    double products = (double)(d->n * p->oh * p->ow) * (double)s->out_c *
                      (double)(s->kernel_h * s->kernel_w * (s->in_c / s->groups));
    *b = (bench){.handle = graph->handle, .repeat = products > large ? 2 : 8};
    return cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaEventCreate(&b->from) == cudaSuccess && cudaEventCreate(&b->to) == cudaSuccess &&
           make_buffer(b, tensor_bytes(d->dtype, d->n, s->in_h, s->in_w, s->in_c), &b->x) &&
           make_buffer(b,
                       tensor_bytes(dsc_dnn_weight_type(p, kind), s->out_c, s->kernel_h, s->kernel_w,
                                    s->in_c / s->groups),
                       &b->w) &&
           make_buffer(b, tensor_bytes(d->dtype, d->n, p->oh, p->ow, s->out_c), &b->y) &&
           make_buffer(b, DSC_DNN_WORKSPACE + DSC_DNN_WORK_ALIGNMENT, &b->work) &&
           cudaStreamSynchronize(b->stream) == cudaSuccess &&
           cudnnSetStream(b->handle, b->stream) == CUDNN_STATUS_SUCCESS;
}

static void bench_close(bench *b) {
    (void)cudnnSetStream(b->handle, NULL);
    cudaFree(b->x);
    cudaFree(b->w);
    cudaFree(b->y);
    cudaFree(b->work);
    if (b->from)
        cudaEventDestroy(b->from);
    if (b->to)
        cudaEventDestroy(b->to);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    (void)cudaGetLastError(); /* an error of bench_open must not show up in the next call */
}

static int run(bench *b, dsc_dnn_plan *plan) {
    return dsc_dnn_plan_run(plan, b->handle, b->x, b->w, b->y, b->work) == CUDNN_STATUS_SUCCESS;
}

/* Records some runs of a plan. Training steps are replayed, so what counts is the time of a recording, without the time
 * of the calls. An engine that cannot be recorded is useless. */
static int record(bench *b, dsc_dnn_plan *plan, cudaGraphExec_t *out) {
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return 0;
    int good = 1;
    for (int i = 0; good && i < b->repeat; i++)
        good = run(b, plan);
    good = cudaStreamEndCapture(b->stream, &graph) == cudaSuccess && good && graph &&
           cudaGraphInstantiate(out, graph, 0) == cudaSuccess;
    if (graph)
        cudaGraphDestroy(graph);
    return good;
}

/* Times a launch of the recording, or one run of the plan if there is no recording. */
static int launch_timed(bench *b, dsc_dnn_plan *plan, cudaGraphExec_t recorded, float *ms) {
    return cudaEventRecord(b->from, b->stream) == cudaSuccess &&
           (recorded ? cudaGraphLaunch(recorded, b->stream) == cudaSuccess : run(b, plan)) &&
           cudaEventRecord(b->to, b->stream) == cudaSuccess && cudaEventSynchronize(b->to) == cudaSuccess &&
           cudaEventElapsedTime(ms, b->from, b->to) == cudaSuccess;
}

/* Returns 1 if a single run already shows that an engine cannot beat a recording of `best` ms: it would take seconds to
 * time the slowest ones properly. */
static int is_hopeless(bench *b, dsc_dnn_plan *plan, float best) {
    const float calls = 0.02f; /* ms */
    float ms = 0;
    return launch_timed(b, plan, NULL, &ms) && ms > 2 * best / (float)b->repeat + calls;
}

/* Sets *best to the milliseconds of the fastest launch, without the first one. Returns 0 if the plan cannot be timed,
 * or cannot be faster than `limit` (0: no limit). */
static int time_plan(bench *b, dsc_dnn_plan *plan, float limit, float *best) {
    cudaGraphExec_t recorded = NULL;
    float ms = 0;
    int good = run(b, plan) && cudaStreamSynchronize(b->stream) == cudaSuccess &&
               !(limit > 0 && is_hopeless(b, plan, limit)) && record(b, plan, &recorded) &&
               launch_timed(b, plan, recorded, &ms);
    for (int i = 0; good && i < LAUNCHES; i++) {
        good = launch_timed(b, plan, recorded, &ms);
        *best = i == 0 || ms < *best ? ms : *best;
    }
    if (recorded)
        cudaGraphExecDestroy(recorded);
    if (!good)
        (void)cudaGetLastError();
    return good;
}

/* Returns the index of the fastest engine of the list, or -1 if none could be timed. They are opened and timed one by
 * one in cuDNN's order until `patience` runs out, since an engine may take a second to compile. A later one has to be
 * faster by more than the clock's noise. */
static int64_t fastest(bench *b, const dsc_dnn_graph *graph, const dsc_dnn_choice *list, int64_t count,
                       dsc_dnn_plan *best_plan) {
    const double patience = 0.5; /* seconds */
    const float noise = 0.98f;
    double end = dsc_clock_now() + patience;
    int64_t winner = -1, i = 0;
    float first = 0, best = 0, ms = 0;
    for (; i < count && (winner < 0 || dsc_clock_now() < end); i++) {
        dsc_dnn_plan plan;
        if (!open_within(graph, &list[i], DSC_DNN_WORKSPACE, &plan))
            continue;
        if (!time_plan(b, &plan, best, &ms) || (winner >= 0 && ms >= noise * best)) {
            dsc_dnn_plan_close(&plan);
            continue;
        }
        if (winner >= 0)
            dsc_dnn_plan_close(best_plan);
        else
            first = ms;
        *best_plan = plan;
        winner = i;
        best = ms;
    }
    dsc_log(DSC_LOG_DEBUG, "conv: %lld of %lld engines timed; number %lld takes %.2f of the first's time",
            (long long)i, (long long)count, (long long)winner, winner < 0 ? 1.0 : (double)(best / first));
    return winner;
}

cudnnStatus_t dsc_dnn_pick_fastest(const dsc_dnn_graph *graph, const dsc_dnn_problem *problem,
                                   dsc_dnn_kind kind, dsc_dnn_choice *choice, dsc_dnn_plan *plan) {
    dsc_dnn_choice list[MOST_TIMED];
    int64_t count = 0, winner = -1;
    bench b;
    for (int i = 0; i < ROUNDS; i++)
        (void)dsc_dnn_candidates(graph, rounds[i].mode, rounds[i].timed, list, &count);
    if (bench_open(graph, problem, kind, &b))
        winner = fastest(&b, graph, list, count, plan);
    bench_close(&b);
    if (winner < 0)
        return dsc_dnn_pick_first(graph, choice, plan);
    *choice = list[winner];
    return CUDNN_STATUS_SUCCESS;
}

/* Convolutions: by our own kernels where these are faster (small_conv.h, narrow_conv.h), else through cuDNN.
 *
 * Every pass is planned when a convolution is opened; adding to a result is a plan of its own. If no engine sums the
 * gradient of half-precision weights into float32, it is computed in half precision, in the workspace, and converted.
 * cuDNN counts elements in 32 bits: a batch beyond that is convolved in pieces. */
#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "device/cuda/conv_choices.h"
#include "device/cuda/dnn_legacy.h"
#include "device/cuda/dnn_pick.h"
#include "device/cuda/entries.h"
#include "device/cuda/narrow_conv.h"
#include "device/cuda/small_conv.h"

#include <pthread.h>
#include <string.h>

/* One kind of pass: run by a plan or by cuDNN's older functions, or not available. */
typedef struct step {
    dsc_dnn_plan plan;
    dsc_dnn_legacy legacy;
    dsc_dnn_choice choice;
} step;

typedef struct cuda_conv {
    dsc_dnn_problem problem; /* one piece of the batch */
    int64_t pieces;
    int narrow;   /* 1: our kernels of narrow_conv.h do all passes */
    unsigned own; /* passes that our own kernels do: bits DSC_SMALL_... */
    int tune;     /* 1: engines of the other passes are chosen by timing */
    /* Workspace of the largest step, rounded up. It is followed by aligned weights, dw in half precision, dw in F32. */
    size_t work_bytes;
    step steps[DSC_DNN_KINDS];
} cuda_conv;

/* Handles for planning, by GPU; created at the first use and kept. */
enum { MOST_GPUS = 64 };
static struct {
    pthread_mutex_t mutex;
    cudnnHandle_t handles[MOST_GPUS];
} planning = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static size_t round_up(size_t bytes) {
    return (bytes + DSC_DNN_WORK_ALIGNMENT - 1) / DSC_DNN_WORK_ALIGNMENT * DSC_DNN_WORK_ALIGNMENT;
}

static cuda_conv *state_of(const dsc_conv *conv) {
    return (cuda_conv *)conv->state;
}

static int is_ready(const step *s) {
    return s->plan.plan || s->legacy.ready;
}

static size_t weight_count(const dsc_conv_desc *d) {
    const dsc_conv2d_shape *s = &d->shape;
    return (size_t)(s->out_c * s->kernel_h * s->kernel_w * (s->in_c / s->groups));
}

/* ---- planning ---- */

static dsc_status planning_handle(const dsc_cuda *gpu, cudnnHandle_t *out) {
    if (gpu->ordinal < 0 || gpu->ordinal >= MOST_GPUS)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "conv: GPU %d; 0 to %d are expected", gpu->ordinal, MOST_GPUS - 1);
    if (!planning.handles[gpu->ordinal])
        DSC_DNN_TRY(cudnnCreate(&planning.handles[gpu->ordinal]));
    *out = planning.handles[gpu->ordinal];
    return DSC_OK;
}

/* Returns 1 if our own kernels do this pass. */
static int is_own(const cuda_conv *c, dsc_dnn_kind kind) {
    static const unsigned pass[DSC_DNN_KINDS] = {
        [DSC_DNN_FORWARD] = DSC_SMALL_FORWARD,
        [DSC_DNN_DATA] = DSC_SMALL_BACKWARD_DATA,
        [DSC_DNN_DATA_ADD] = DSC_SMALL_BACKWARD_DATA,
        [DSC_DNN_WEIGHT] = DSC_SMALL_BACKWARD_WEIGHT,
        [DSC_DNN_WEIGHT_ADD] = DSC_SMALL_BACKWARD_WEIGHT,
        [DSC_DNN_WEIGHT_HALF] = DSC_SMALL_BACKWARD_WEIGHT,
    };
    return (c->own & pass[kind]) != 0;
}

static int is_timed(const cuda_conv *c, dsc_dnn_kind kind) {
    return c->tune && !is_own(c, kind);
}

/* Returns the step whose engine is tried first for this one: an engine that does a pass can usually also add to its
 * result. Adding to dx is part of every step of a residual network, so it is timed separately. */
static const step *model_of(const cuda_conv *c, dsc_dnn_kind kind) {
    if (kind == DSC_DNN_WEIGHT_ADD)
        return &c->steps[DSC_DNN_WEIGHT];
    return kind == DSC_DNN_DATA_ADD && !is_timed(c, kind) ? &c->steps[DSC_DNN_DATA] : NULL;
}

static cudnnStatus_t choose(const cuda_conv *c, const dsc_dnn_graph *graph, dsc_dnn_kind kind, step *s) {
    const step *model = model_of(c, kind);
    if (model && model->plan.plan &&
        dsc_dnn_plan_open(graph, &model->choice, &s->plan) == CUDNN_STATUS_SUCCESS) {
        s->choice = model->choice;
        return CUDNN_STATUS_SUCCESS;
    }
    if (is_timed(c, kind))
        return dsc_dnn_pick_fastest(graph, &c->problem, kind, &s->choice, &s->plan);
    return dsc_dnn_pick_first(graph, &s->choice, &s->plan);
}

/* Returns 1 if a choice for this step was kept and could be planned. */
static int plan_kept(const dsc_cuda *gpu, const cuda_conv *c, const dsc_dnn_graph *graph, dsc_dnn_kind kind,
                     step *s) {
    if (!dsc_cuda_choice_find(gpu, &c->problem, kind, is_timed(c, kind), &s->choice))
        return 0;
    if (s->choice.engine == DSC_DNN_NONE)
        return kind >= DSC_DNN_WEIGHT; /* for these there is another kind to fall back on */
    if (s->choice.engine == DSC_DNN_LEGACY)
        return dsc_dnn_legacy_open(graph->handle, &c->problem, kind, &s->legacy) == CUDNN_STATUS_SUCCESS;
    if (dsc_dnn_plan_open(graph, &s->choice, &s->plan) == CUDNN_STATUS_SUCCESS)
        return 1;
    dsc_log(DSC_LOG_WARNING, "conv: engine %lld, chosen earlier, cannot be planned: another one is chosen",
            (long long)s->choice.engine);
    return 0;
}

static int open_legacy(cudnnHandle_t handle, const cuda_conv *c, dsc_dnn_kind kind, step *s) {
    s->choice = (dsc_dnn_choice){.engine = DSC_DNN_LEGACY};
    return dsc_dnn_legacy_open(handle, &c->problem, kind, &s->legacy) == CUDNN_STATUS_SUCCESS;
}

/* Plans a step, or leaves it unplanned if cuDNN has nothing for it. Without TF32 the older functions come first: they
 * can be restricted to products and sums in float32, while an engine of the graph API that lists no numerical note
 * (28, for 5x5 taps) was found to be off by 1e-5. */
static dsc_status open_step(const dsc_cuda *gpu, cudnnHandle_t handle, cuda_conv *c, dsc_dnn_kind kind) {
    step *s = &c->steps[kind];
    dsc_dnn_graph graph;
    int found = 0;
    if (c->problem.strict && c->problem.desc.dtype == DSC_F32 && open_legacy(handle, c, kind, s))
        return dsc_cuda_choice_keep(gpu, &c->problem, kind, 0, &s->choice);
    cudnnStatus_t status = dsc_dnn_graph_open(handle, &c->problem, kind, &graph);
    if (status == CUDNN_STATUS_SUCCESS) {
        found = plan_kept(gpu, c, &graph, kind, s);
        if (!found)
            status = choose(c, &graph, kind, s);
    }
    dsc_dnn_graph_close(&graph);
    if (found)
        return DSC_OK;
    if (status != CUDNN_STATUS_SUCCESS && !open_legacy(handle, c, kind, s))
        s->choice.engine = DSC_DNN_NONE;
    return dsc_cuda_choice_keep(gpu, &c->problem, kind, is_timed(c, kind), &s->choice);
}

static dsc_status need_step(const cuda_conv *c, dsc_dnn_kind kind, const char *name) {
    const dsc_conv_desc *d = &c->problem.desc;
    const dsc_conv2d_shape *shape = &d->shape;
    char reason[256] = "";
    if (is_ready(&c->steps[kind]))
        return DSC_OK;
    cudnnGetLastErrorString(reason, sizeof reason);
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "conv: cuDNN has no deterministic engine for %s of x[%lld,%lld,%lld,%lld] and "
                    "w[%lld,%lld,%lld,%lld] in %s: try another batch size, or device cpu. %s",
                    name, (long long)d->n, (long long)shape->in_h, (long long)shape->in_w,
                    (long long)shape->in_c, (long long)shape->out_c, (long long)shape->kernel_h,
                    (long long)shape->kernel_w, (long long)(shape->in_c / shape->groups),
                    dsc_dtype_name(d->dtype), reason);
}

static dsc_status open_steps(const dsc_cuda *gpu, cuda_conv *c, dsc_conv_use use) {
    const int halves = c->problem.desc.dtype != DSC_F32;
    cudnnHandle_t handle = NULL;
    DSC_TRY(planning_handle(gpu, &handle));
    if (use == DSC_CONV_FORWARD_ONLY) {
        DSC_TRY(open_step(gpu, handle, c, DSC_DNN_FORWARD));
        return need_step(c, DSC_DNN_FORWARD, "the forward pass");
    }
    if (use == DSC_CONV_BACKWARD_DATA_ONLY) {
        DSC_TRY(open_step(gpu, handle, c, DSC_DNN_DATA));
        DSC_TRY(open_step(gpu, handle, c, DSC_DNN_DATA_ADD));
        DSC_TRY(need_step(c, DSC_DNN_DATA, "the gradient"));
        return need_step(c, DSC_DNN_DATA_ADD, "a gradient added");
    }
    for (int kind = 0; kind < DSC_DNN_WEIGHT_ADD; kind++)
        DSC_TRY(open_step(gpu, handle, c, (dsc_dnn_kind)kind));
    if (is_ready(&c->steps[DSC_DNN_WEIGHT]))
        DSC_TRY(open_step(gpu, handle, c, DSC_DNN_WEIGHT_ADD));
    if (halves && !is_ready(&c->steps[DSC_DNN_WEIGHT_ADD]))
        DSC_TRY(open_step(gpu, handle, c, DSC_DNN_WEIGHT_HALF));
    DSC_TRY(need_step(c, DSC_DNN_FORWARD, "the forward pass"));
    DSC_TRY(need_step(c, DSC_DNN_DATA, "the gradient"));
    DSC_TRY(need_step(c, DSC_DNN_DATA_ADD, "a gradient added"));
    if (is_ready(&c->steps[DSC_DNN_WEIGHT_HALF]))
        return DSC_OK;
    DSC_TRY(need_step(c, DSC_DNN_WEIGHT, "the weights' gradient"));
    DSC_TRY(need_step(c, DSC_DNN_WEIGHT_ADD, "a weights' gradient added"));
    return DSC_OK;
}

/* Returns the smallest number of equal pieces whose elements cuDNN can count and whose start is aligned as cuDNN
 * requires; 1 if there is none: then cuDNN may refuse the convolution itself. */
static int64_t count_pieces(const dsc_conv *conv) {
    const dsc_conv_desc *d = &conv->desc;
    const dsc_conv2d_shape *s = &d->shape;
    int64_t x = s->in_h * s->in_w * s->in_c, y = conv->oh * conv->ow * s->out_c, most = x > y ? x : y;
    int64_t size = (int64_t)dsc_dtype_size(d->dtype);
    if (most <= INT32_MAX / d->n)
        return 1;
    for (int64_t pieces = 2; pieces <= d->n; pieces++) {
        int64_t images = d->n / pieces;
        if (d->n % pieces == 0 && most <= INT32_MAX / images && images * x * size % DSC_DNN_ALIGNMENT == 0 &&
            images * y * size % DSC_DNN_ALIGNMENT == 0)
            return pieces;
    }
    return 1;
}

static size_t workspace_of(cuda_conv *c) {
    const step *half = &c->steps[DSC_DNN_WEIGHT_HALF];
    size_t bytes = 0, weights = weight_count(&c->problem.desc);
    for (int i = 0; i < DSC_DNN_KINDS; i++) {
        const step *s = &c->steps[i];
        size_t need = s->plan.plan ? s->plan.workspace : s->legacy.workspace;
        if (!is_own(c, (dsc_dnn_kind)i))
            bytes = need > bytes ? need : bytes;
    }
    c->work_bytes = round_up(bytes);
    bytes = c->work_bytes + round_up(weights * sizeof(float));
    if (is_ready(half))
        bytes += round_up(weights * dsc_dtype_size(c->problem.desc.dtype)) + weights * sizeof(float);
    return bytes + DSC_DNN_WORK_ALIGNMENT; /* to align the start */
}

/* Returns the passes in which our own kernels are faster. Microseconds on an H200, batch 128, forward / data / weights,
 * ours against cuDNN's: 16 channels at 32x32 12 / 12 / - against 29 / 33 / 53; 32 at 16x16 11 / 11 / - against 11 / 13
 * / 40; 64 at 8x8 17 / 17 / 16 against 8 / 10 / 32. Inputs of 3 channels, which cuDNN pads to 8, are taken at any size:
 * a step of unet-bn:width=32 on 8 images of 512x512 takes 10.50 instead of 10.85 ms. */
static unsigned own_passes(const dsc_cuda *gpu, const dsc_conv_desc *d) {
    const dsc_conv2d_shape *s = &d->shape;
    enum { MOST_PIXELS = 32 * 32, MOST_CHANNELS = 32 };
    unsigned passes =
        s->in_c == 3 || s->in_h * s->in_w <= MOST_PIXELS ? dsc_cuda_small_conv_passes(gpu, d) : 0;
    if (dsc_cuda_is_narrow_conv(d))
        return DSC_SMALL_FORWARD | DSC_SMALL_BACKWARD_DATA | DSC_SMALL_BACKWARD_WEIGHT;
    return s->in_c <= MOST_CHANNELS && s->out_c <= MOST_CHANNELS ? passes
                                                                 : passes & DSC_SMALL_BACKWARD_WEIGHT;
}

static dsc_status open_conv(dsc_conv *conv) {
    const dsc_cuda *gpu = dsc_cuda_of(conv->device);
    cuda_conv *c = state_of(conv);
    c->pieces = count_pieces(conv);
    c->problem = (dsc_dnn_problem){.desc = conv->desc, .oh = conv->oh, .ow = conv->ow, .strict = gpu->strict};
    c->problem.desc.n = conv->desc.n / c->pieces;
    c->narrow = dsc_cuda_is_narrow_conv(&conv->desc);
    c->own = own_passes(gpu, &conv->desc);
    c->tune = conv->device->tunes;
    pthread_mutex_lock(&planning.mutex);
    dsc_status status = open_steps(gpu, c, conv->use);
    pthread_mutex_unlock(&planning.mutex);
    DSC_TRY(status);
    size_t own = c->own && !c->narrow ? dsc_cuda_small_conv_workspace(gpu, &conv->desc) : 0;
    conv->workspace = workspace_of(c);
    conv->workspace = own > conv->workspace ? own : conv->workspace;
    return DSC_OK;
}

dsc_status dsc_cuda_conv_open(dsc_conv *conv) {
    cuda_conv *c;
    if (conv->desc.dtype == DSC_F64)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "conv: a GPU has no fp64 convolutions: use fp32, or device cpu");
    DSC_TRY(dsc_memory_alloc(1, sizeof *c, &c));
    conv->state = c;
    dsc_status status = open_conv(conv);
    if (status != DSC_OK) {
        dsc_cuda_conv_close(conv);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    return DSC_OK;
}

void dsc_cuda_conv_close(dsc_conv *conv) {
    cuda_conv *c = state_of(conv);
    if (!c)
        return;
    for (int i = 0; i < DSC_DNN_KINDS; i++) {
        dsc_dnn_plan_close(&c->steps[i].plan);
        dsc_dnn_legacy_close(&c->steps[i].legacy);
    }
    dsc_memory_free(&conv->state);
}

/* ---- running ---- */

/* The tensors of a piece of the batch, and the aligned workspace. */
typedef struct operands {
    char *x, *w, *y, *work;
} operands;

static char *align_work(const dsc_tensor *work) {
    char *data = (char *)work->data;
    return data + (round_up((size_t)(uintptr_t)data) - (size_t)(uintptr_t)data);
}

static int is_aligned(const void *data) {
    return (uintptr_t)data % DSC_DNN_ALIGNMENT == 0;
}

static dsc_status run_step(dsc_queue *q, step *s, const operands *o) {
    cudnnHandle_t handle = dsc_cuda_queue_of(q)->dnn;
    if (!is_aligned(o->x) || !is_aligned(o->w) || !is_aligned(o->y))
        return DSC_FAIL(DSC_E_INVALID, "conv: x, w and y are at %p, %p and %p; multiples of %d are expected",
                        (void *)o->x, (void *)o->w, (void *)o->y, DSC_DNN_ALIGNMENT);
    if (s->plan.plan)
        DSC_DNN_TRY(dsc_dnn_plan_run(&s->plan, handle, o->x, o->w, o->y, o->work));
    else
        DSC_DNN_TRY(dsc_dnn_legacy_run(&s->legacy, handle, o->x, o->w, o->y, o->work));
    return DSC_OK;
}

/* Returns the place for a copy of the weights: parameters follow each other at any alignment, so cuDNN may need one. */
static char *aligned_place(const cuda_conv *c, const operands *o) {
    return o->work + c->work_bytes;
}

static dsc_status copy_weights(dsc_queue *q, const void *from, size_t bytes, void *to) {
    DSC_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, dsc_cuda_queue_of(q)->stream));
    return DSC_OK;
}

static dsc_status take_weights(dsc_queue *q, const cuda_conv *c, const dsc_tensor *w, operands *o) {
    o->w = w->data;
    if (is_aligned(w->data))
        return DSC_OK;
    o->w = aligned_place(c, o);
    return copy_weights(q, w->data, dsc_tensor_bytes(w), o->w);
}

/* Advances x and y by one piece. */
static void next_piece(const cuda_conv *c, operands *o) {
    const dsc_conv_desc *d = &c->problem.desc;
    const dsc_conv2d_shape *s = &d->shape;
    size_t size = dsc_dtype_size(d->dtype);
    o->x += (size_t)(d->n * s->in_h * s->in_w * s->in_c) * size;
    o->y += (size_t)(d->n * c->problem.oh * c->problem.ow * s->out_c) * size;
}

dsc_status dsc_cuda_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                 const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    cuda_conv *c = state_of(conv);
    if (c->narrow)
        return dsc_cuda_narrow_conv_forward(q, x, w, bias, y);
    if (c->own & DSC_SMALL_FORWARD)
        return dsc_cuda_small_conv_forward(q, conv, x, w, bias, work, y);
    operands o = {.x = x->data, .y = y->data, .work = align_work(work)};
    DSC_TRY(take_weights(q, c, w, &o));
    for (int64_t i = 0; i < c->pieces; i++, next_piece(c, &o))
        DSC_TRY(run_step(q, &c->steps[DSC_DNN_FORWARD], &o));
    if (bias)
        DSC_TRY(dsc_cuda_bias_add(q, bias, y));
    return DSC_OK;
}

dsc_status dsc_cuda_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w,
                                       const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dx) {
    cuda_conv *c = state_of(conv);
    if (c->narrow)
        return dsc_cuda_narrow_conv_backward_data(q, w, dy, beta, dx);
    if (c->own & DSC_SMALL_BACKWARD_DATA)
        return dsc_cuda_small_conv_backward_data(q, conv, w, dy, beta, work, dx);
    operands o = {.x = dx->data, .y = dy->data, .work = align_work(work)};
    DSC_TRY(take_weights(q, c, w, &o));
    for (int64_t i = 0; i < c->pieces; i++, next_piece(c, &o))
        DSC_TRY(run_step(q, &c->steps[beta == 0 ? DSC_DNN_DATA : DSC_DNN_DATA_ADD], &o));
    return DSC_OK;
}

/* Computes dw by way of a half-precision gradient. */
static dsc_status weight_by_half(dsc_queue *q, cuda_conv *c, operands *o, double beta, dsc_tensor *dw) {
    const dsc_conv_desc *d = &c->problem.desc;
    dsc_tensor half = *dw, wide = *dw;
    half.dtype = d->dtype;
    half.data = aligned_place(c, o) + round_up(weight_count(d) * sizeof(float));
    wide.data = (char *)half.data + round_up(weight_count(d) * dsc_dtype_size(d->dtype));
    o->w = half.data;
    DSC_TRY(run_step(q, &c->steps[DSC_DNN_WEIGHT_HALF], o));
    if (beta == 0)
        return dsc_cuda_convert(q, &half, dw);
    DSC_TRY(dsc_cuda_convert(q, &half, &wide));
    return dsc_cuda_axpby(q, 1, &wide, 1, dw);
}

dsc_status dsc_cuda_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                         const dsc_tensor *dy, double beta, dsc_tensor *work,
                                         dsc_tensor *dw) {
    cuda_conv *c = state_of(conv);
    if (c->narrow)
        return dsc_cuda_narrow_conv_backward_weight(q, x, dy, beta, dw);
    if (c->own & DSC_SMALL_BACKWARD_WEIGHT)
        return dsc_cuda_small_conv_backward_weight(q, conv, x, dy, beta, work, dw);
    operands o = {.x = x->data, .w = dw->data, .y = dy->data, .work = align_work(work)};
    int by_half = is_ready(&c->steps[DSC_DNN_WEIGHT_HALF]), elsewhere = !by_half && !is_aligned(dw->data);
    if (elsewhere)
        DSC_TRY(take_weights(q, c, dw, &o));
    for (int64_t i = 0; i < c->pieces; i++, next_piece(c, &o)) {
        double keep = i == 0 ? beta : 1;
        if (by_half)
            DSC_TRY(weight_by_half(q, c, &o, keep, dw));
        else
            DSC_TRY(run_step(q, &c->steps[keep == 0 ? DSC_DNN_WEIGHT : DSC_DNN_WEIGHT_ADD], &o));
    }
    return elsewhere ? copy_weights(q, o.w, dsc_tensor_bytes(dw), dw->data) : DSC_OK;
}

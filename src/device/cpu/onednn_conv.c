/* Convolutions by oneDNN 2.x.
 *
 * Activations stay NHWC; oneDNN chooses its own layout of the weights, and each pass reorders them inside the
 * workspace, from or to OHWI. Primitives and memory objects are created once; a step only sets pointers.
 *
 * oneDNN cannot add to the gradient of the input. With beta 1 each thread computes a few images at a time by a
 * single-threaded primitive, into a buffer (a piece) that stays in its cache, and adds that to dx: this avoids both the
 * memory traffic of another whole tensor and waiting for the other threads. */
#include "device/cpu/conv.h"

#include "base/error.h"
#include "base/memory.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <omp.h>
#include <stdio.h>
#include <string.h>

enum step_kind { FORWARD, FORWARD_BIAS, DATA, DATA_PIECE, WEIGHT, STEPS };

enum { IMPLEMENTATION_BYTES = 48 };

/* Operands that concurrent runs of a primitive do not share. */
typedef struct lane {
    dnnl_memory_t x, y, scratch;
} lane;

/* One primitive with its operands. `plain` is the weights in OHWI; NULL if the primitive takes them in that order. */
typedef struct step {
    dnnl_primitive_t primitive, reorder;
    dnnl_memory_t w, bias, plain, reorder_scratch;
    lane *lanes;
    int lane_count; /* 1, or the number of threads */
    size_t w_bytes, scratch_bytes;
    char implementation[IMPLEMENTATION_BYTES]; /* "" if this step is not planned */
} step;

struct dsc_onednn_conv {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    step steps[STEPS];
    int threads;
    int64_t images, piece;            /* images in the batch, and in a piece */
    int apart;                        /* 1: one thread computes a piece; 0: all of them together */
    size_t x_bytes, y_bytes, w_bytes; /* of one image's x and y, and of the weights in OHWI */
};

/* The description of a step while it is being planned. */
typedef struct draft {
    const dsc_conv *conv;
    int64_t n;
    int lanes;
    dnnl_memory_desc_t x, w, y, bias, plain;
    dnnl_primitive_desc_t primitive;
    dnnl_primitive_attr_t attributes;
} draft;

static dsc_status failed(dnnl_status_t status, const char *what) {
    return DSC_FAIL(status == dnnl_out_of_memory ? DSC_E_MEMORY : DSC_E_DEVICE, "oneDNN: %s failed: %s", what,
                    dnnl_status2str(status));
}

#define ONEDNN_TRY(call)                                                                                     \
    do {                                                                                                     \
        dnnl_status_t onednn_status_ = (call);                                                               \
        if (onednn_status_ != dnnl_success)                                                                  \
            return failed(onednn_status_, #call);                                                            \
    } while (0)

void dsc_onednn_version(char *text, size_t size) {
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, size, "%d.%d.%d", v->major, v->minor, v->patch);
}

static size_t round_up(size_t bytes) {
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

/* ---- planning ---- */

/* Describes the weights with oneDNN's dimensions, [g, k/g, c/g, kh, kw] (no g without groups), stored as OHWI. */
static dsc_status describe_weights(draft *d) {
    const dsc_conv2d_shape *s = &d->conv->desc.shape;
    int64_t cg = s->in_c / s->groups, kg = s->out_c / s->groups, row = s->kernel_h * s->kernel_w * cg;
    dnnl_dims_t dims = {s->groups, kg, cg, s->kernel_h, s->kernel_w};
    dnnl_dims_t strides = {kg * row, row, 1, s->kernel_w * cg, cg};
    int skip = s->groups == 1;
    ONEDNN_TRY(dnnl_memory_desc_init_by_strides(&d->plain, 5 - skip, dims + skip, dnnl_f32, strides + skip));
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->w, 5 - skip, dims + skip, dnnl_f32, dnnl_format_tag_any));
    return DSC_OK;
}

static dsc_status describe_operands(draft *d) {
    const dsc_conv2d_shape *s = &d->conv->desc.shape;
    dnnl_dims_t x = {d->n, s->in_c, s->in_h, s->in_w}, y = {d->n, s->out_c, d->conv->oh, d->conv->ow},
                bias = {s->out_c};
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->x, 4, x, dnnl_f32, dnnl_nhwc));
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->y, 4, y, dnnl_f32, dnnl_nhwc));
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->bias, 1, bias, dnnl_f32, dnnl_x));
    return describe_weights(d);
}

static dsc_status describe_step(const draft *d, enum step_kind kind, dnnl_convolution_desc_t *out) {
    const dsc_conv2d_shape *s = &d->conv->desc.shape;
    dnnl_dims_t strides = {s->stride_h, s->stride_w}, dilates = {s->dilation_h - 1, s->dilation_w - 1};
    dnnl_dims_t before = {s->pad_h, s->pad_w}, after;
    after[0] = (d->conv->oh - 1) * s->stride_h + s->dilation_h * (s->kernel_h - 1) + 1 - s->in_h - s->pad_h;
    after[1] = (d->conv->ow - 1) * s->stride_w + s->dilation_w * (s->kernel_w - 1) + 1 - s->in_w - s->pad_w;
    switch (kind) {
    case FORWARD:
    case FORWARD_BIAS:
        ONEDNN_TRY(dnnl_dilated_convolution_forward_desc_init(
            out, dnnl_forward_training, dnnl_convolution_direct, &d->x, &d->w,
            kind == FORWARD ? NULL : &d->bias, &d->y, strides, dilates, before, after));
        break;
    case DATA:
    case DATA_PIECE:
        ONEDNN_TRY(dnnl_dilated_convolution_backward_data_desc_init(
            out, dnnl_convolution_direct, &d->x, &d->w, &d->y, strides, dilates, before, after));
        break;
    default:
        ONEDNN_TRY(dnnl_dilated_convolution_backward_weights_desc_init(
            out, dnnl_convolution_direct, &d->x, &d->w, NULL, &d->y, strides, dilates, before, after));
    }
    return DSC_OK;
}

static dsc_status make_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *desc, dnnl_memory_t *out) {
    ONEDNN_TRY(dnnl_memory_create(out, desc, engine, DNNL_MEMORY_NONE));
    return DSC_OK;
}

static dsc_status plan_reorder(dnnl_engine_t engine, const draft *d, enum step_kind kind,
                               const dnnl_memory_desc_t *w, step *s) {
    const dnnl_memory_desc_t *from = kind == WEIGHT ? w : &d->plain, *to = kind == WEIGHT ? &d->plain : w;
    dnnl_primitive_desc_t desc = NULL;
    ONEDNN_TRY(dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, d->attributes));
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    size_t bytes = round_up(dnnl_memory_desc_get_size(scratch));
    dsc_status status = make_memory(engine, scratch, &s->reorder_scratch);
    dnnl_status_t made = dnnl_primitive_create(&s->reorder, desc);
    dnnl_primitive_desc_destroy(desc);
    if (status != DSC_OK || made != dnnl_success)
        return status != DSC_OK ? status : failed(made, "planning the order of weights");
    if (bytes > s->scratch_bytes)
        s->scratch_bytes = bytes;
    return make_memory(engine, &d->plain, &s->plain);
}

/* Fills in a step from its primitive's description. */
static dsc_status plan_step(dnnl_engine_t engine, const draft *d, enum step_kind kind, step *s) {
    dnnl_query_t w_query = kind == WEIGHT ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    const dnnl_memory_desc_t *w = dnnl_primitive_desc_query_md(d->primitive, w_query, 0);
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(d->primitive, dnnl_query_scratchpad_md, 0);
    s->scratch_bytes = round_up(dnnl_memory_desc_get_size(scratch));
    DSC_TRY(dsc_memory_alloc(d->lanes, sizeof *s->lanes, &s->lanes));
    s->lane_count = d->lanes;
    for (int i = 0; i < s->lane_count; i++) {
        DSC_TRY(make_memory(engine, scratch, &s->lanes[i].scratch));
        DSC_TRY(make_memory(engine, &d->x, &s->lanes[i].x));
        DSC_TRY(make_memory(engine, &d->y, &s->lanes[i].y));
    }
    DSC_TRY(make_memory(engine, w, &s->w));
    if (kind == FORWARD_BIAS)
        DSC_TRY(make_memory(engine, &d->bias, &s->bias));
    ONEDNN_TRY(dnnl_primitive_create(&s->primitive, d->primitive));
    if (!dnnl_memory_desc_equal(w, &d->plain)) {
        s->w_bytes = round_up(dnnl_memory_desc_get_size(w));
        DSC_TRY(plan_reorder(engine, d, kind, w, s));
    }
    return DSC_OK;
}

/* Plans a step, but leaves it unplanned if oneDNN has only its reference code for it. */
static dsc_status open_step(dsc_onednn_conv *plan, draft *d, enum step_kind kind) {
    dnnl_convolution_desc_t desc;
    step *s = &plan->steps[kind];
    DSC_TRY(describe_step(d, kind, &desc));
    dnnl_status_t made = dnnl_primitive_desc_create(&d->primitive, &desc, d->attributes, plan->engine, NULL);
    if (made == dnnl_unimplemented)
        return DSC_OK;
    if (made != dnnl_success)
        return failed(made, "planning a convolution");
    const char *name = "";
    dsc_status status = DSC_OK;
    if (dnnl_primitive_desc_query(d->primitive, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
        strncmp(name, "ref", 3) != 0) {
        snprintf(s->implementation, sizeof s->implementation, "%s", name);
        status = plan_step(plan->engine, d, kind, s);
    }
    dnnl_primitive_desc_destroy(d->primitive);
    return status;
}

/* Chooses the number of images in a piece: the largest divisor of the batch size whose gradient fits into a cache and
 * that leaves a piece for every thread. A batch of fewer images than threads is one piece for all of them. */
static void choose_piece(dsc_onednn_conv *plan) {
    const size_t cache = 512u << 10;
    plan->apart = plan->images >= plan->threads;
    plan->piece = plan->apart ? plan->images / plan->threads : plan->images;
    while (plan->apart && plan->piece > 1 &&
           (plan->images % plan->piece != 0 || (size_t)plan->piece * plan->x_bytes > cache))
        plan->piece--;
}

/* A primitive runs on as many threads as OpenMP is set to while it is planned. */
static dsc_status open_steps(dsc_onednn_conv *plan, draft *d) {
    for (int kind = 0; kind < STEPS; kind++) {
        int apart = kind == DATA_PIECE && plan->apart;
        d->n = kind == DATA_PIECE ? plan->piece : plan->images;
        d->lanes = apart ? plan->threads : 1;
        DSC_TRY(describe_operands(d));
        if (apart)
            omp_set_num_threads(1);
        dsc_status status = open_step(plan, d, (enum step_kind)kind);
        omp_set_num_threads(plan->threads);
        DSC_TRY(status);
    }
    return DSC_OK;
}

static dsc_status open_plan(const dsc_conv *conv, dsc_onednn_conv *plan) {
    const dsc_conv_desc *c = &conv->desc;
    const dsc_conv2d_shape *s = &c->shape;
    draft d = {.conv = conv};
    plan->images = c->n;
    plan->x_bytes = (size_t)(s->in_h * s->in_w * s->in_c) * sizeof(float);
    plan->y_bytes = (size_t)(conv->oh * conv->ow * s->out_c) * sizeof(float);
    plan->w_bytes = (size_t)(s->out_c * s->kernel_h * s->kernel_w * (s->in_c / s->groups)) * sizeof(float);
    plan->threads = conv->device->threads;
    choose_piece(plan);
    ONEDNN_TRY(dnnl_engine_create(&plan->engine, dnnl_cpu, 0));
    ONEDNN_TRY(dnnl_stream_create(&plan->stream, plan->engine, dnnl_stream_default_flags));
    ONEDNN_TRY(dnnl_primitive_attr_create(&d.attributes));
    dnnl_status_t set = dnnl_primitive_attr_set_scratchpad_mode(d.attributes, dnnl_scratchpad_mode_user);
    dsc_status status = set == dnnl_success ? open_steps(plan, &d) : failed(set, "choosing a scratchpad");
    dnnl_primitive_attr_destroy(d.attributes);
    return status;
}

dsc_status dsc_onednn_conv_open(const dsc_conv *conv, dsc_onednn_conv **out) {
    dsc_onednn_conv *plan;
    DSC_TRY(dsc_memory_alloc(1, sizeof *plan, &plan));
    dsc_status status = open_plan(conv, plan);
    if (status != DSC_OK) {
        dsc_onednn_conv_close(&plan);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = plan;
    return DSC_OK;
}

static void close_memory(dnnl_memory_t memory) {
    if (memory)
        dnnl_memory_destroy(memory);
}

static void close_step(step *s) {
    for (int i = 0; i < s->lane_count; i++) {
        close_memory(s->lanes[i].x);
        close_memory(s->lanes[i].y);
        close_memory(s->lanes[i].scratch);
    }
    dsc_memory_free(&s->lanes);
    close_memory(s->w);
    close_memory(s->bias);
    close_memory(s->plain);
    close_memory(s->reorder_scratch);
    if (s->primitive)
        dnnl_primitive_destroy(s->primitive);
    if (s->reorder)
        dnnl_primitive_destroy(s->reorder);
}

void dsc_onednn_conv_close(dsc_onednn_conv **plan) {
    if (!plan || !*plan)
        return;
    for (int kind = 0; kind < STEPS; kind++)
        close_step(&(*plan)->steps[kind]);
    if ((*plan)->stream)
        dnnl_stream_destroy((*plan)->stream);
    if ((*plan)->engine)
        dnnl_engine_destroy((*plan)->engine);
    dsc_memory_free(plan);
}

/* ---- what is planned ---- */

const char *dsc_onednn_conv_implementation(const dsc_onednn_conv *plan, dsc_conv_pass pass) {
    /* oneDNN computes a pass only if all of its steps are planned. */
    static const enum step_kind first[] = {FORWARD, DATA, WEIGHT},
                                last[] = {FORWARD_BIAS, DATA_PIECE, WEIGHT};
    if (!plan->steps[first[pass]].implementation[0] || !plan->steps[last[pass]].implementation[0])
        return NULL;
    return plan->steps[first[pass]].implementation;
}

/* The workspace of a lane: its scratchpad, and the piece that it fills. */
static size_t lane_bytes(const dsc_onednn_conv *plan, enum step_kind kind) {
    size_t piece = kind == DATA_PIECE ? round_up((size_t)plan->piece * plan->x_bytes) : 0;
    return plan->steps[kind].scratch_bytes + piece;
}

static size_t step_bytes(const dsc_onednn_conv *plan, enum step_kind kind) {
    const step *s = &plan->steps[kind];
    size_t bytes = s->w_bytes + (size_t)s->lane_count * lane_bytes(plan, kind);
    if (kind == WEIGHT)
        bytes += plan->w_bytes;
    return bytes + DSC_ALIGNMENT; /* to align the start */
}

size_t dsc_onednn_conv_workspace(const dsc_onednn_conv *plan, dsc_conv_pass pass) {
    size_t a, b;
    switch (pass) {
    case DSC_CONV_FORWARD:
        a = step_bytes(plan, FORWARD);
        b = step_bytes(plan, FORWARD_BIAS);
        return a > b ? a : b;
    case DSC_CONV_BACKWARD_DATA:
        a = step_bytes(plan, DATA);
        b = step_bytes(plan, DATA_PIECE);
        return a > b ? a : b;
    default:
        return step_bytes(plan, WEIGHT);
    }
}

/* ---- running ---- */

/* Divides the workspace into the step's weights, followed by the lanes; *rest is the first byte after the first lane's
 * scratchpad. */
static dsc_status place(const dsc_onednn_conv *plan, enum step_kind kind, const dsc_tensor *work,
                        char **rest) {
    const step *s = &plan->steps[kind];
    uintptr_t start = ((uintptr_t)work->data + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
    char *at = (char *)work->data + (start - (uintptr_t)work->data);
    if (s->reorder) {
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->w, at));
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->reorder_scratch, at + s->w_bytes));
    }
    for (int i = 0; i < s->lane_count; i++)
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->lanes[i].scratch,
                                               at + s->w_bytes + (size_t)i * lane_bytes(plan, kind)));
    *rest = at + s->w_bytes + s->scratch_bytes;
    return DSC_OK;
}

static dsc_status reorder_weights(const dsc_onednn_conv *plan, step *s, enum step_kind kind, void *weights) {
    if (!s->reorder) {
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->w, weights));
        return DSC_OK;
    }
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->plain, weights));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, kind == WEIGHT ? s->w : s->plain},
                                         {DNNL_ARG_TO, kind == WEIGHT ? s->plain : s->w},
                                         {DNNL_ARG_SCRATCHPAD, s->reorder_scratch}};
    ONEDNN_TRY(dnnl_primitive_execute(s->reorder, plan->stream, 3, arguments));
    return DSC_OK;
}

dsc_status dsc_onednn_conv_forward(dsc_onednn_conv *plan, const dsc_tensor *x, const dsc_tensor *w,
                                   const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    enum step_kind kind = bias ? FORWARD_BIAS : FORWARD;
    step *s = &plan->steps[kind];
    lane *l = &s->lanes[0];
    char *rest = NULL;
    DSC_TRY(place(plan, kind, work, &rest));
    DSC_TRY(reorder_weights(plan, s, kind, w->data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(l->x, x->data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(l->y, y->data));
    if (bias)
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->bias, bias->data));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, l->x},
                                         {DNNL_ARG_WEIGHTS, s->w},
                                         {DNNL_ARG_DST, l->y},
                                         {DNNL_ARG_SCRATCHPAD, l->scratch},
                                         {DNNL_ARG_BIAS, s->bias}};
    ONEDNN_TRY(dnnl_primitive_execute(s->primitive, plan->stream, bias ? 5 : 4, arguments));
    return DSC_OK;
}

static dnnl_status_t run_data(const dsc_onednn_conv *plan, const step *s, const lane *l, char *dy, char *dx) {
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_DIFF_DST, l->y},
                                         {DNNL_ARG_WEIGHTS, s->w},
                                         {DNNL_ARG_DIFF_SRC, l->x},
                                         {DNNL_ARG_SCRATCHPAD, l->scratch}};
    dnnl_status_t status = dnnl_memory_set_data_handle(l->x, dx);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(l->y, dy);
    return status == dnnl_success ? dnnl_primitive_execute(s->primitive, plan->stream, 4, arguments) : status;
}

/* dx += the gradients of the pieces in r, computed on one lane; `piece` has room for one piece. */
static dnnl_status_t add_pieces(const dsc_onednn_conv *plan, int number, dsc_cpu_range r,
                                const dsc_cpu_kernels *k, char *piece, char *dy, char *dx) {
    const step *s = &plan->steps[DATA_PIECE];
    size_t x_bytes = (size_t)plan->piece * plan->x_bytes, y_bytes = (size_t)plan->piece * plan->y_bytes;
    for (int64_t i = r.first; i < r.first + r.count; i++) {
        dnnl_status_t status = run_data(plan, s, &s->lanes[number], dy + (size_t)i * y_bytes, piece);
        if (status != dnnl_success)
            return status;
        float *to = (void *)(dx + (size_t)i * x_bytes);
        dsc_cpu_add(k, (int64_t)(x_bytes / sizeof *to), to, (const void *)piece, to);
    }
    return dnnl_success;
}

static dsc_status add_data(dsc_queue *q, const dsc_onednn_conv *plan, const dsc_tensor *dy, char *pieces,
                           dsc_tensor *dx) {
    const dsc_cpu_kernels *k = dsc_cpu_kernels_of(q);
    int64_t count = plan->images / plan->piece;
    int parts = plan->steps[DATA_PIECE].lane_count, bad = dnnl_success;
#pragma omp parallel for num_threads(parts) schedule(static, 1) reduction(max : bad)
    for (int p = 0; p < parts; p++) {
        char *piece = pieces + (size_t)p * lane_bytes(plan, DATA_PIECE);
        int status =
            (int)add_pieces(plan, p, dsc_cpu_share(count, 1, parts, p), k, piece, dy->data, dx->data);
        bad = status > bad ? status : bad;
    }
    return bad == dnnl_success ? DSC_OK : failed((dnnl_status_t)bad, "a piece of a gradient");
}

dsc_status dsc_onednn_conv_backward_data(dsc_queue *q, dsc_onednn_conv *plan, const dsc_tensor *w,
                                         const dsc_tensor *dy, double beta, dsc_tensor *work,
                                         dsc_tensor *dx) {
    enum step_kind kind = beta == 0 ? DATA : DATA_PIECE;
    step *s = &plan->steps[kind];
    char *rest = NULL;
    DSC_TRY(place(plan, kind, work, &rest));
    DSC_TRY(reorder_weights(plan, s, kind, w->data));
    if (beta != 0)
        return add_data(q, plan, dy, rest, dx);
    ONEDNN_TRY(run_data(plan, s, &s->lanes[0], dy->data, dx->data));
    return DSC_OK;
}

dsc_status dsc_onednn_conv_backward_weight(dsc_queue *q, dsc_onednn_conv *plan, const dsc_tensor *x,
                                           const dsc_tensor *dy, double beta, dsc_tensor *work,
                                           dsc_tensor *dw) {
    step *s = &plan->steps[WEIGHT];
    lane *l = &s->lanes[0];
    char *rest = NULL;
    DSC_TRY(place(plan, WEIGHT, work, &rest));
    dsc_tensor target = *dw;
    if (beta != 0)
        target.data = rest;
    if (!s->reorder)
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->w, target.data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(l->x, x->data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(l->y, dy->data));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, l->x},
                                         {DNNL_ARG_DIFF_DST, l->y},
                                         {DNNL_ARG_DIFF_WEIGHTS, s->w},
                                         {DNNL_ARG_SCRATCHPAD, l->scratch}};
    ONEDNN_TRY(dnnl_primitive_execute(s->primitive, plan->stream, 4, arguments));
    DSC_TRY(reorder_weights(plan, s, WEIGHT, target.data));
    if (beta != 0)
        DSC_TRY(q->device->table->map(q, DSC_MAP_ADD, dw, &target, 0, dw));
    return DSC_OK;
}

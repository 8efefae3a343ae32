/* Convolutions through oneDNN 2.x.
 *
 * Activations stay NHWC; oneDNN chooses its own order of the weights, and each pass reorders them inside the
 * workspace, from or to OHWI. Primitives and memory objects are made once; a step only sets pointers.
 *
 * oneDNN cannot add to the gradient of the input. With beta 1 a primitive for a few images writes a piece
 * that stays in the cache, and we add it, piece after piece. */
#include "device/cpu/conv.h"

#include "base/error.h"
#include "base/memory.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <stdio.h>
#include <string.h>

enum step_kind { FORWARD, FORWARD_BIAS, DATA, DATA_PIECE, WEIGHT, STEPS };

enum { IMPLEMENTATION_BYTES = 48 };

/* One primitive with its operands. `plain` is OHWI; NULL when that is the order the primitive takes. */
typedef struct step {
    dnnl_primitive_t primitive, reorder;
    dnnl_memory_t x, w, y, bias, plain, scratch, reorder_scratch;
    size_t w_bytes, scratch_bytes;
    char implementation[IMPLEMENTATION_BYTES]; /* "" when this step is not planned */
} step;

struct dsc_onednn_conv {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    step steps[STEPS];
    int64_t images, piece;            /* images in the batch, and in a piece */
    size_t x_bytes, y_bytes, w_bytes; /* of one image's x and y, and of the OHWI weights */
};

/* What describes a step while it is being planned. */
typedef struct draft {
    const dsc_conv *conv;
    int64_t n;
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

/* Weights as oneDNN counts them: [g, k/g, c/g, kh, kw] (no g without groups), stored as OHWI. */
static dsc_status describe_weights(draft *d) {
    const dsc_conv_desc *c = &d->conv->desc;
    int64_t cg = c->c / c->groups, kg = c->k / c->groups, row = c->kh * c->kw * cg;
    dnnl_dims_t dims = {c->groups, kg, cg, c->kh, c->kw};
    dnnl_dims_t strides = {kg * row, row, 1, c->kw * cg, cg};
    int skip = c->groups == 1;
    ONEDNN_TRY(dnnl_memory_desc_init_by_strides(&d->plain, 5 - skip, dims + skip, dnnl_f32, strides + skip));
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->w, 5 - skip, dims + skip, dnnl_f32, dnnl_format_tag_any));
    return DSC_OK;
}

static dsc_status describe_operands(draft *d) {
    const dsc_conv_desc *c = &d->conv->desc;
    dnnl_dims_t x = {d->n, c->c, c->h, c->w}, y = {d->n, c->k, d->conv->oh, d->conv->ow}, bias = {c->k};
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->x, 4, x, dnnl_f32, dnnl_nhwc));
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->y, 4, y, dnnl_f32, dnnl_nhwc));
    ONEDNN_TRY(dnnl_memory_desc_init_by_tag(&d->bias, 1, bias, dnnl_f32, dnnl_x));
    return describe_weights(d);
}

static dsc_status describe_step(const draft *d, enum step_kind kind, dnnl_convolution_desc_t *out) {
    const dsc_conv_desc *c = &d->conv->desc;
    dnnl_dims_t strides = {c->stride_h, c->stride_w}, dilates = {c->dil_h - 1, c->dil_w - 1};
    dnnl_dims_t before = {c->pad_h, c->pad_w}, after;
    after[0] = (d->conv->oh - 1) * c->stride_h + c->dil_h * (c->kh - 1) + 1 - c->h - c->pad_h;
    after[1] = (d->conv->ow - 1) * c->stride_w + c->dil_w * (c->kw - 1) + 1 - c->w - c->pad_w;
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
    DSC_TRY(make_memory(engine, scratch, &s->scratch));
    DSC_TRY(make_memory(engine, &d->x, &s->x));
    DSC_TRY(make_memory(engine, &d->y, &s->y));
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

/* Leaves the step unplanned when oneDNN has only its reference code for it. */
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

/* Images in a piece: the largest divisor of the batch whose gradient fits into the threads' caches. */
static int64_t choose_piece(int64_t images, size_t image_bytes, int threads) {
    size_t room = (size_t)threads * (512u << 10);
    for (int64_t piece = images; piece > threads; piece--)
        if (images % piece == 0 && (size_t)piece * image_bytes <= room)
            return piece;
    return images; /* no such divisor: the whole batch is one piece */
}

static dsc_status open_steps(dsc_onednn_conv *plan, draft *d) {
    for (int kind = 0; kind < STEPS; kind++) {
        d->n = kind == DATA_PIECE ? plan->piece : plan->images;
        DSC_TRY(describe_operands(d));
        DSC_TRY(open_step(plan, d, (enum step_kind)kind));
    }
    return DSC_OK;
}

static dsc_status open_plan(const dsc_conv *conv, dsc_onednn_conv *plan) {
    const dsc_conv_desc *c = &conv->desc;
    draft d = {.conv = conv};
    plan->images = c->n;
    plan->x_bytes = (size_t)(c->h * c->w * c->c) * sizeof(float);
    plan->y_bytes = (size_t)(conv->oh * conv->ow * c->k) * sizeof(float);
    plan->w_bytes = (size_t)(c->k * c->kh * c->kw * (c->c / c->groups)) * sizeof(float);
    plan->piece = choose_piece(c->n, plan->x_bytes, conv->device->threads);
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

static void close_step(step *s) {
    dnnl_memory_t memories[] = {s->x, s->w, s->y, s->bias, s->plain, s->scratch, s->reorder_scratch};
    for (size_t i = 0; i < sizeof memories / sizeof memories[0]; i++)
        if (memories[i])
            dnnl_memory_destroy(memories[i]);
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
    /* A pass is ours unless all of its steps are planned. */
    static const enum step_kind first[] = {FORWARD, DATA, WEIGHT},
                                last[] = {FORWARD_BIAS, DATA_PIECE, WEIGHT};
    if (!plan->steps[first[pass]].implementation[0] || !plan->steps[last[pass]].implementation[0])
        return NULL;
    return plan->steps[first[pass]].implementation;
}

static size_t step_bytes(const dsc_onednn_conv *plan, enum step_kind kind) {
    const step *s = &plan->steps[kind];
    size_t bytes = s->w_bytes + s->scratch_bytes;
    if (kind == DATA_PIECE)
        bytes += (size_t)plan->piece * plan->x_bytes;
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

/* Cuts the workspace into the step's weights, its scratchpad and the rest, which is returned in *rest. */
static dsc_status place(step *s, const dsc_tensor *work, char **rest) {
    uintptr_t start = ((uintptr_t)work->data + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
    char *at = (char *)work->data + (start - (uintptr_t)work->data);
    if (s->reorder) {
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->w, at));
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->reorder_scratch, at + s->w_bytes));
    }
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->scratch, at + s->w_bytes));
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
    char *rest;
    DSC_TRY(place(s, work, &rest));
    DSC_TRY(reorder_weights(plan, s, kind, w->data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->x, x->data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->y, y->data));
    if (bias)
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->bias, bias->data));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, s->x},
                                         {DNNL_ARG_WEIGHTS, s->w},
                                         {DNNL_ARG_DST, s->y},
                                         {DNNL_ARG_SCRATCHPAD, s->scratch},
                                         {DNNL_ARG_BIAS, s->bias}};
    ONEDNN_TRY(dnnl_primitive_execute(s->primitive, plan->stream, bias ? 5 : 4, arguments));
    return DSC_OK;
}

static dsc_status run_data(const dsc_onednn_conv *plan, step *s, void *dy, void *dx) {
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->x, dx));
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->y, dy));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_DIFF_DST, s->y},
                                         {DNNL_ARG_WEIGHTS, s->w},
                                         {DNNL_ARG_DIFF_SRC, s->x},
                                         {DNNL_ARG_SCRATCHPAD, s->scratch}};
    ONEDNN_TRY(dnnl_primitive_execute(s->primitive, plan->stream, 4, arguments));
    return DSC_OK;
}

dsc_status dsc_onednn_conv_backward_data(dsc_queue *q, dsc_onednn_conv *plan, const dsc_tensor *w,
                                         const dsc_tensor *dy, double beta, dsc_tensor *work,
                                         dsc_tensor *dx) {
    enum step_kind kind = beta == 0 ? DATA : DATA_PIECE;
    step *s = &plan->steps[kind];
    char *rest;
    DSC_TRY(place(s, work, &rest));
    DSC_TRY(reorder_weights(plan, s, kind, w->data));
    if (beta == 0)
        return run_data(plan, s, dy->data, dx->data);
    int64_t elements = plan->piece * (int64_t)(plan->x_bytes / sizeof(float));
    dsc_tensor piece = dsc_tensor_view(q->device, rest, DSC_F32, 1, &elements);
    for (int64_t image = 0; image < plan->images; image += plan->piece) {
        dsc_tensor target = dsc_tensor_slice(dx, image / plan->piece * elements, elements);
        DSC_TRY(run_data(plan, s, (char *)dy->data + (size_t)image * plan->y_bytes, rest));
        DSC_TRY(q->device->table->add(q, &target, &piece, &target));
    }
    return DSC_OK;
}

dsc_status dsc_onednn_conv_backward_weight(dsc_queue *q, dsc_onednn_conv *plan, const dsc_tensor *x,
                                           const dsc_tensor *dy, double beta, dsc_tensor *work,
                                           dsc_tensor *dw) {
    step *s = &plan->steps[WEIGHT];
    char *rest;
    DSC_TRY(place(s, work, &rest));
    dsc_tensor target = *dw;
    if (beta != 0)
        target.data = rest;
    if (!s->reorder)
        ONEDNN_TRY(dnnl_memory_set_data_handle(s->w, target.data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->x, x->data));
    ONEDNN_TRY(dnnl_memory_set_data_handle(s->y, dy->data));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, s->x},
                                         {DNNL_ARG_DIFF_DST, s->y},
                                         {DNNL_ARG_DIFF_WEIGHTS, s->w},
                                         {DNNL_ARG_SCRATCHPAD, s->scratch}};
    ONEDNN_TRY(dnnl_primitive_execute(s->primitive, plan->stream, 4, arguments));
    DSC_TRY(reorder_weights(plan, s, WEIGHT, target.data));
    if (beta != 0)
        DSC_TRY(q->device->table->add(q, dw, &target, dw));
    return DSC_OK;
}

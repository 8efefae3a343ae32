/* Plans for cuDNN's backend API.
 *
 * cuDNN sees tensors as N, C, H, W with the strides of channels-last memory: x[n,h,w,c], w[k,kh,kw,c/groups],
 * y[n,oh,ow,k]. The number of groups follows from the channels of x and w. */
#include "device/cuda/dnn_plan.h"

#include <string.h>

/* Unlike DSC_DNN_TRY, returns the status and raises no error. */
#define DNN_GO(call)                                                                                         \
    do {                                                                                                     \
        cudnnStatus_t dnn_status_ = (call);                                                                  \
        if (dnn_status_ != CUDNN_STATUS_SUCCESS)                                                             \
            return dnn_status_;                                                                              \
    } while (0)

enum { UID_X = 1, UID_W, UID_Y, MOST_RESULTS = 128, MOST_COMPILED = 2 };

typedef struct operation {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, x, w, y;
} operation;

static const operation forward = {
    .type = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
    .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
    .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
    .conv = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
    .x = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
    .w = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
    .y = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
};
static const operation backward_data = {
    .type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
    .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
    .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
    .conv = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
    .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
    .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
    .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
};
static const operation backward_weight = {
    .type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
    .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
    .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
    .conv = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
    .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
    .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
    .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
};

static const operation *const operations[DSC_DNN_KINDS] = {
    [DSC_DNN_FORWARD] = &forward,
    [DSC_DNN_DATA] = &backward_data,
    [DSC_DNN_DATA_ADD] = &backward_data,
    [DSC_DNN_WEIGHT] = &backward_weight,
    [DSC_DNN_WEIGHT_ADD] = &backward_weight,
    [DSC_DNN_WEIGHT_HALF] = &backward_weight,
};

cudnnDataType_t dsc_dnn_type(dsc_dtype dtype) {
    return dtype == DSC_BF16 ? CUDNN_DATA_BFLOAT16 : dtype == DSC_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

dsc_dtype dsc_dnn_weight_type(const dsc_dnn_problem *problem, dsc_dnn_kind kind) {
    return kind == DSC_DNN_WEIGHT || kind == DSC_DNN_WEIGHT_ADD ? DSC_F32 : problem->desc.dtype;
}

int dsc_dnn_same_choice(const dsc_dnn_choice *a, const dsc_dnn_choice *b) {
    int same = a->engine == b->engine && a->count == b->count;
    for (int64_t i = 0; same && i < a->count; i++)
        same = a->knob[i].type == b->knob[i].type && a->knob[i].value == b->knob[i].value;
    return same;
}

/* ---- descriptors ---- */

static cudnnStatus_t set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    return cudnnBackendSetAttribute(d, name, type, count, values);
}

static cudnnStatus_t set_child(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                               cudnnBackendDescriptor_t child) {
    return set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &child);
}

static cudnnStatus_t set_int(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, int64_t value) {
    return set(d, name, CUDNN_TYPE_INT64, 1, &value);
}

static cudnnStatus_t get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, void *value) {
    int64_t got = 0;
    DNN_GO(cudnnBackendGetAttribute(d, name, type, 1, &got, value));
    return got == 1 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static void drop(cudnnBackendDescriptor_t *d) {
    if (*d)
        cudnnBackendDestroyDescriptor(*d);
    *d = NULL;
}

/* ---- the graph ---- */

static cudnnStatus_t make_tensor(int64_t uid, dsc_dtype dtype, const int64_t nhwc[4],
                                 cudnnBackendDescriptor_t *out) {
    cudnnDataType_t type = dsc_dnn_type(dtype);
    int64_t n = nhwc[0], h = nhwc[1], w = nhwc[2], c = nhwc[3];
    const int64_t dim[] = {n, c, h, w}, stride[] = {h * w * c, 1, w * c, c};
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
    DNN_GO(set(*out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    DNN_GO(set(*out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim));
    DNN_GO(set(*out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride));
    DNN_GO(set_int(*out, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid));
    DNN_GO(set_int(*out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, DSC_DNN_ALIGNMENT));
    return cudnnBackendFinalize(*out);
}

static cudnnStatus_t make_conv(const dsc_conv_desc *d, cudnnBackendDescriptor_t *out) {
    const dsc_conv2d_shape *s = &d->shape;
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t stride[] = {s->stride_h, s->stride_w}, pad[] = {s->pad_h, s->pad_w},
                  dilation[] = {s->dilation_h, s->dilation_w};
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, out));
    DNN_GO(set(*out, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums));
    DNN_GO(set(*out, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    DNN_GO(set_int(*out, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2));
    DNN_GO(set(*out, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride));
    DNN_GO(set(*out, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad));
    DNN_GO(set(*out, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad));
    DNN_GO(set(*out, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation));
    return cudnnBackendFinalize(*out);
}

static cudnnStatus_t make_operation(const dsc_dnn_graph *g, dsc_dnn_kind kind,
                                    cudnnBackendDescriptor_t *out) {
    const operation *o = operations[kind];
    const float alpha = 1, beta = kind == DSC_DNN_DATA_ADD || kind == DSC_DNN_WEIGHT_ADD;
    DNN_GO(cudnnBackendCreateDescriptor(o->type, out));
    DNN_GO(set(*out, o->alpha, CUDNN_TYPE_FLOAT, 1, &alpha));
    DNN_GO(set(*out, o->beta, CUDNN_TYPE_FLOAT, 1, &beta));
    DNN_GO(set_child(*out, o->conv, g->conv));
    DNN_GO(set_child(*out, o->x, g->x));
    DNN_GO(set_child(*out, o->w, g->w));
    DNN_GO(set_child(*out, o->y, g->y));
    return cudnnBackendFinalize(*out);
}

static cudnnStatus_t make_graph(dsc_dnn_graph *g) {
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->graph));
    DNN_GO(set(g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle));
    DNN_GO(set_child(g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, g->operation));
    return cudnnBackendFinalize(g->graph);
}

static unsigned forbidden_notes(const dsc_dnn_problem *p) {
    unsigned notes = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                     1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                     1u << CUDNN_NUMERICAL_NOTE_WINOGRAD | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
                     1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
                     1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    if (p->strict && p->desc.dtype == DSC_F32)
        notes |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    return notes;
}

cudnnStatus_t dsc_dnn_graph_open(cudnnHandle_t handle, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                 dsc_dnn_graph *graph) {
    const dsc_conv_desc *d = &problem->desc;
    const dsc_conv2d_shape *s = &d->shape;
    const int64_t x[] = {d->n, s->in_h, s->in_w, s->in_c},
                  w[] = {s->out_c, s->kernel_h, s->kernel_w, s->in_c / s->groups},
                  y[] = {d->n, problem->oh, problem->ow, s->out_c};
    *graph = (dsc_dnn_graph){.handle = handle, .forbidden = forbidden_notes(problem)};
    DNN_GO(make_tensor(UID_X, d->dtype, x, &graph->x));
    DNN_GO(make_tensor(UID_W, dsc_dnn_weight_type(problem, kind), w, &graph->w));
    DNN_GO(make_tensor(UID_Y, d->dtype, y, &graph->y));
    DNN_GO(make_conv(d, &graph->conv));
    DNN_GO(make_operation(graph, kind, &graph->operation));
    return make_graph(graph);
}

void dsc_dnn_graph_close(dsc_dnn_graph *graph) {
    drop(&graph->graph);
    drop(&graph->operation);
    drop(&graph->conv);
    drop(&graph->x);
    drop(&graph->w);
    drop(&graph->y);
}

/* ---- engines ---- */

static cudnnStatus_t check_notes(cudnnBackendDescriptor_t engine, unsigned forbidden, int *compiled) {
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendBehaviorNote_t habits[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t count = 0;
    DNN_GO(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                    CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes));
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if (notes[i] < 32 && forbidden >> notes[i] & 1)
            return CUDNN_STATUS_NOT_SUPPORTED;
    DNN_GO(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                    CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &count, habits));
    *compiled = 0;
    for (int64_t i = 0; i < count && i < CUDNN_BEHAVIOR_NOTE_TYPE_COUNT; i++)
        *compiled |= habits[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t read_engine(cudnnBackendDescriptor_t config, unsigned forbidden, int64_t *index,
                                 int *compiled) {
    cudnnBackendDescriptor_t engine = NULL;
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    cudnnStatus_t status = get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = check_notes(engine, forbidden, compiled);
    if (status == CUDNN_STATUS_SUCCESS)
        status = get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index);
    drop(&engine);
    return status;
}

static cudnnStatus_t read_knob(cudnnBackendDescriptor_t knob, int64_t *type, int64_t *value) {
    cudnnBackendKnobType_t which;
    DNN_GO(get(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, &which));
    *type = which;
    return get(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value);
}

static cudnnStatus_t read_knobs(cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t *knobs,
                                dsc_dnn_choice *choice) {
    for (int i = 0; i < DSC_DNN_KNOBS; i++)
        DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knobs[i]));
    DNN_GO(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    DSC_DNN_KNOBS, &choice->count, knobs));
    if (choice->count > DSC_DNN_KNOBS)
        return CUDNN_STATUS_NOT_SUPPORTED;
    for (int64_t i = 0; i < choice->count; i++)
        DNN_GO(read_knob(knobs[i], &choice->knob[i].type, &choice->knob[i].value));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t read_config(cudnnBackendDescriptor_t config, unsigned forbidden, dsc_dnn_choice *choice,
                                 int *compiled) {
    cudnnBackendDescriptor_t knobs[DSC_DNN_KNOBS] = {NULL};
    memset(choice, 0, sizeof *choice);
    DNN_GO(read_engine(config, forbidden, &choice->engine, compiled));
    cudnnStatus_t status = read_knobs(config, knobs, choice);
    for (int i = 0; i < DSC_DNN_KNOBS; i++)
        drop(&knobs[i]);
    return status;
}

static int listed(const dsc_dnn_choice *choice, const dsc_dnn_choice *list, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (dsc_dnn_same_choice(choice, &list[i]))
            return 1;
    return 0;
}

static cudnnStatus_t ask(const dsc_dnn_graph *graph, cudnnBackendHeurMode_t mode,
                         cudnnBackendDescriptor_t heuristic, cudnnBackendDescriptor_t *configs,
                         int64_t *count) {
    DNN_GO(set_child(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph->graph));
    DNN_GO(set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    DNN_GO(cudnnBackendFinalize(heuristic));
    int64_t results = 0;
    DNN_GO(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    0, &results, NULL));
    if (results > MOST_RESULTS)
        results = MOST_RESULTS;
    for (int64_t i = 0; i < results; i++)
        DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]));
    if (results > 0) /* the second call may return fewer than the first */
        DNN_GO(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, results, count, configs));
    if (*count > results)
        *count = results;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t dsc_dnn_candidates(const dsc_dnn_graph *graph, cudnnBackendHeurMode_t mode, int64_t most,
                                 dsc_dnn_choice *list, int64_t *count) {
    cudnnBackendDescriptor_t heuristic = NULL, configs[MOST_RESULTS] = {NULL};
    int64_t results = 0, compiled_so_far = 0;
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic));
    cudnnStatus_t status = ask(graph, mode, heuristic, configs, &results);
    for (int64_t i = 0; status == CUDNN_STATUS_SUCCESS && i < results && *count < most; i++) {
        dsc_dnn_choice choice;
        int compiled = 0;
        if (read_config(configs[i], graph->forbidden, &choice, &compiled) != CUDNN_STATUS_SUCCESS ||
            listed(&choice, list, *count) || (compiled && compiled_so_far == MOST_COMPILED))
            continue;
        compiled_so_far += compiled;
        list[(*count)++] = choice;
    }
    for (int i = 0; i < MOST_RESULTS; i++)
        drop(&configs[i]);
    drop(&heuristic);
    return status;
}

/* ---- plans ---- */

static cudnnStatus_t make_knob(int64_t type, int64_t value, cudnnBackendDescriptor_t *out) {
    cudnnBackendKnobType_t which = (cudnnBackendKnobType_t)type;
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, out));
    DNN_GO(set(*out, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &which));
    DNN_GO(set_int(*out, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value));
    return cudnnBackendFinalize(*out);
}

/* The descriptors that a plan is made from, which are not needed once it exists. */
typedef struct parts {
    cudnnBackendDescriptor_t engine, config, knobs[DSC_DNN_KNOBS];
} parts;

static cudnnStatus_t make_config(const dsc_dnn_graph *graph, const dsc_dnn_choice *choice, parts *p) {
    int compiled = 0;
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &p->engine));
    DNN_GO(set_child(p->engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph->graph));
    DNN_GO(set_int(p->engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, choice->engine));
    DNN_GO(cudnnBackendFinalize(p->engine));
    DNN_GO(check_notes(p->engine, graph->forbidden, &compiled));
    for (int64_t i = 0; i < choice->count; i++)
        DNN_GO(make_knob(choice->knob[i].type, choice->knob[i].value, &p->knobs[i]));
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &p->config));
    DNN_GO(set_child(p->config, CUDNN_ATTR_ENGINECFG_ENGINE, p->engine));
    if (choice->count > 0)
        DNN_GO(set(p->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, choice->count,
                   p->knobs));
    return cudnnBackendFinalize(p->config);
}

static cudnnStatus_t make_plan(const dsc_dnn_graph *graph, cudnnBackendDescriptor_t config,
                               dsc_dnn_plan *out) {
    int64_t bytes = 0;
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &out->plan));
    DNN_GO(set(out->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &graph->handle));
    DNN_GO(set_child(out->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    DNN_GO(cudnnBackendFinalize(out->plan));
    DNN_GO(get(out->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &bytes));
    out->workspace = bytes > 0 ? (size_t)bytes : 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t dsc_dnn_plan_open(const dsc_dnn_graph *graph, const dsc_dnn_choice *choice, dsc_dnn_plan *out) {
    parts p = {NULL};
    *out = (dsc_dnn_plan){NULL};
    if (choice->engine < 0 || choice->count < 0 || choice->count > DSC_DNN_KNOBS)
        return CUDNN_STATUS_BAD_PARAM;
    cudnnStatus_t status = make_config(graph, choice, &p);
    if (status == CUDNN_STATUS_SUCCESS)
        status = make_plan(graph, p.config, out);
    if (status != CUDNN_STATUS_SUCCESS)
        dsc_dnn_plan_close(out);
    drop(&p.config);
    drop(&p.engine);
    for (int i = 0; i < DSC_DNN_KNOBS; i++)
        drop(&p.knobs[i]);
    return status;
}

void dsc_dnn_plan_close(dsc_dnn_plan *plan) {
    drop(&plan->pack);
    drop(&plan->plan);
}

static cudnnStatus_t make_pack(void *const pointers[4], cudnnBackendDescriptor_t *out) {
    const int64_t uid[] = {UID_X, UID_W, UID_Y};
    DNN_GO(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, out));
    DNN_GO(set(*out, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, uid));
    DNN_GO(set(*out, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers));
    DNN_GO(set(*out, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &pointers[3]));
    return cudnnBackendFinalize(*out);
}

/* A layer's tensors stay at the same addresses from step to step, so its variant pack is made only once. */
cudnnStatus_t dsc_dnn_plan_run(dsc_dnn_plan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                               void *work) {
    void *const pointers[4] = {x, w, y, work};
    if (!plan->pack || memcmp(pointers, plan->pointers, sizeof pointers) != 0) {
        drop(&plan->pack);
        cudnnStatus_t status = make_pack(pointers, &plan->pack);
        if (status != CUDNN_STATUS_SUCCESS) {
            drop(&plan->pack);
            return status;
        }
        memcpy(plan->pointers, pointers, sizeof pointers);
    }
    return cudnnBackendExecute(handle, plan->plan, plan->pack);
}

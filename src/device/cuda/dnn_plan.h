/* One pass of a convolution through cuDNN's backend API: what is computed (a graph of one operation), engines
 * that can do it, and a plan that runs one of them.
 *
 * Functions that plan return cuDNN's status: an engine that cannot do a convolution is no error, since
 * another may. */
#ifndef DSC_DEVICE_CUDA_DNN_PLAN_H
#define DSC_DEVICE_CUDA_DNN_PLAN_H

#include "device/cuda/state.h"

/* The passes; _ADD adds to its result, _HALF leaves dw in the type of x instead of F32. */
typedef enum dsc_dnn_kind {
    DSC_DNN_FORWARD,
    DSC_DNN_DATA,
    DSC_DNN_DATA_ADD,
    DSC_DNN_WEIGHT,
    DSC_DNN_WEIGHT_ADD,
    DSC_DNN_WEIGHT_HALF,
    DSC_DNN_KINDS
} dsc_dnn_kind;

/* Workspaces are below this where an engine allows; alignment of its start, and of every tensor. */
enum { DSC_DNN_WORKSPACE = 256 << 20, DSC_DNN_WORK_ALIGNMENT = 256, DSC_DNN_ALIGNMENT = 16 };

typedef struct dsc_dnn_problem {
    dsc_conv_desc desc;
    int64_t oh, ow;
    int strict; /* 1: no TF32 */
} dsc_dnn_problem;

/* An engine and how it is set: the whole of a choice, from which its plan can be made again. */
enum { DSC_DNN_KNOBS = 16, DSC_DNN_LEGACY = -1, DSC_DNN_NONE = -2 };
typedef struct dsc_dnn_choice {
    int64_t engine; /* global index; DSC_DNN_LEGACY: dnn_legacy.h; DSC_DNN_NONE: no engine */
    int64_t count;  /* of knobs */
    struct {
        int64_t type, value;
    } knob[DSC_DNN_KNOBS];
} dsc_dnn_choice;

typedef struct dsc_dnn_graph {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t x, w, y, conv, operation, graph;
    unsigned forbidden; /* numerical notes, one bit each */
} dsc_dnn_graph;

/* Zero is a valid empty plan. */
typedef struct dsc_dnn_plan {
    cudnnBackendDescriptor_t plan, pack;
    void *pointers[4]; /* of the pack: x, w, y, work */
    size_t workspace;
} dsc_dnn_plan;

/* dw's type. */
dsc_dtype dsc_dnn_weight_type(const dsc_dnn_problem *problem, dsc_dnn_kind kind);
cudnnDataType_t dsc_dnn_type(dsc_dtype dtype);
int dsc_dnn_same_choice(const dsc_dnn_choice *a, const dsc_dnn_choice *b);

/* To be closed even after a failure. */
cudnnStatus_t dsc_dnn_graph_open(cudnnHandle_t handle, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                 dsc_dnn_graph *graph);
void dsc_dnn_graph_close(dsc_dnn_graph *graph);

/* Adds what cuDNN proposes, best first, to list[*count], up to `most` elements of it in all: engines that are
 * deterministic and as accurate as the problem asks, none twice, at most two that are compiled at run time.
 */
cudnnStatus_t dsc_dnn_candidates(const dsc_dnn_graph *graph, cudnnBackendHeurMode_t mode, int64_t most,
                                 dsc_dnn_choice *list, int64_t *count);

/* Refuses engines that dsc_dnn_candidates would not have proposed. */
cudnnStatus_t dsc_dnn_plan_open(const dsc_dnn_graph *graph, const dsc_dnn_choice *choice, dsc_dnn_plan *out);
void dsc_dnn_plan_close(dsc_dnn_plan *plan);
/* Puts the plan into the handle's stream. x, w and y are the convolution's three tensors, whichever of them
 * is the result; `work` has plan->workspace bytes. */
cudnnStatus_t dsc_dnn_plan_run(dsc_dnn_plan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                               void *work);

#endif

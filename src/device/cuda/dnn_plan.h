/* One pass of a convolution through cuDNN's backend API: what is computed (a graph of one operation), the engines
 * that can do it, and a plan that runs one of them.
 *
 * The planning functions return cuDNN's status and raise no error: if one engine cannot do a convolution, another
 * may. */
#ifndef DSC_DEVICE_CUDA_DNN_PLAN_H
#define DSC_DEVICE_CUDA_DNN_PLAN_H

#include "device/cuda/state.h"

/* The passes; _ADD adds to the result's old value, _HALF leaves dw in the type of x instead of F32. */
typedef enum dsc_dnn_kind {
    DSC_DNN_FORWARD,
    DSC_DNN_DATA,
    DSC_DNN_DATA_ADD,
    DSC_DNN_WEIGHT,
    DSC_DNN_WEIGHT_ADD,
    DSC_DNN_WEIGHT_HALF,
    DSC_DNN_KINDS
} dsc_dnn_kind;

/* The size that workspaces do not exceed where an engine allows it; the alignment of their start, and of every
 * tensor. */
enum { DSC_DNN_WORKSPACE = 256 << 20, DSC_DNN_WORK_ALIGNMENT = 256, DSC_DNN_ALIGNMENT = 16 };

typedef struct dsc_dnn_problem {
    dsc_conv_desc desc;
    int64_t oh, ow;
    int strict; /* 1: no TF32 */
} dsc_dnn_problem;

/* An engine and its knobs: all that is needed to make the same plan again. */
enum { DSC_DNN_KNOBS = 16, DSC_DNN_LEGACY = -1, DSC_DNN_NONE = -2 };
typedef struct dsc_dnn_choice {
    int64_t engine; /* global index; DSC_DNN_LEGACY: dnn_legacy.h; DSC_DNN_NONE: no engine */
    int64_t count;  /* the number of knobs */
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
    void *pointers[4]; /* in the pack: x, w, y, work */
    size_t workspace;
} dsc_dnn_plan;

/* The type of w, or of dw in a weight pass. */
dsc_dtype dsc_dnn_weight_type(const dsc_dnn_problem *problem, dsc_dnn_kind kind);
cudnnDataType_t dsc_dnn_type(dsc_dtype dtype);
int dsc_dnn_same_choice(const dsc_dnn_choice *a, const dsc_dnn_choice *b);

/* The graph must be closed even after a failure. */
cudnnStatus_t dsc_dnn_graph_open(cudnnHandle_t handle, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                 dsc_dnn_graph *graph);
void dsc_dnn_graph_close(dsc_dnn_graph *graph);

/* Appends what cuDNN proposes, best first, to a list of *count choices, which may grow to `most`: engines that are
 * deterministic and as accurate as the problem requires, without duplicates, and at most two that are compiled at
 * run time. */
cudnnStatus_t dsc_dnn_candidates(const dsc_dnn_graph *graph, cudnnBackendHeurMode_t mode, int64_t most,
                                 dsc_dnn_choice *list, int64_t *count);

/* Refuses engines that dsc_dnn_candidates would not have proposed. */
cudnnStatus_t dsc_dnn_plan_open(const dsc_dnn_graph *graph, const dsc_dnn_choice *choice, dsc_dnn_plan *out);
void dsc_dnn_plan_close(dsc_dnn_plan *plan);
/* Runs the plan in the handle's stream. x, w and y are the convolution's three tensors, whichever of them is the
 * result; `work` has plan->workspace bytes. */
cudnnStatus_t dsc_dnn_plan_run(dsc_dnn_plan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                               void *work);

#endif

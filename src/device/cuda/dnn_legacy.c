/* Convolutions with cuDNN's older functions. */
#include "device/cuda/dnn_legacy.h"

#define DNN_GO(call)                                                                                         \
    do {                                                                                                     \
        cudnnStatus_t dnn_status_ = (call);                                                                  \
        if (dnn_status_ != CUDNN_STATUS_SUCCESS)                                                             \
            return dnn_status_;                                                                              \
    } while (0)

enum { MOST_ALGORITHMS = 16 };

/* The fields that the results of the three passes' queries for algorithms have in common. */
typedef struct proposal {
    int algorithm;
    cudnnStatus_t status;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
} proposal;

#define PROPOSAL(p) ((proposal){(int)(p).algo, (p).status, (p).memory, (p).determinism, (p).mathType})

static cudnnStatus_t describe(const dsc_dnn_problem *p, dsc_dnn_legacy *l) {
    const dsc_conv_desc *d = &p->desc;
    const dsc_conv2d_shape *s = &d->shape;
    cudnnDataType_t type = dsc_dnn_type(d->dtype);
    DNN_GO(cudnnCreateTensorDescriptor(&l->x));
    DNN_GO(cudnnCreateTensorDescriptor(&l->y));
    DNN_GO(cudnnCreateFilterDescriptor(&l->w));
    DNN_GO(cudnnCreateConvolutionDescriptor(&l->conv));
    DNN_GO(cudnnSetTensor4dDescriptor(l->x, CUDNN_TENSOR_NHWC, type, (int)d->n, (int)s->in_c, (int)s->in_h,
                                      (int)s->in_w));
    DNN_GO(cudnnSetTensor4dDescriptor(l->y, CUDNN_TENSOR_NHWC, type, (int)d->n, (int)s->out_c, (int)p->oh,
                                      (int)p->ow));
    DNN_GO(cudnnSetFilter4dDescriptor(l->w, type, CUDNN_TENSOR_NHWC, (int)s->out_c,
                                      (int)(s->in_c / s->groups), (int)s->kernel_h, (int)s->kernel_w));
    DNN_GO(cudnnSetConvolution2dDescriptor(l->conv, (int)s->pad_h, (int)s->pad_w, (int)s->stride_h,
                                           (int)s->stride_w, (int)s->dilation_h, (int)s->dilation_w,
                                           CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    return cudnnSetConvolutionGroupCount(l->conv, (int)s->groups);
}

static cudnnStatus_t propose_forward(cudnnHandle_t handle, const dsc_dnn_legacy *l, proposal *list,
                                     int *count) {
    cudnnConvolutionFwdAlgoPerf_t found[MOST_ALGORITHMS];
    DNN_GO(cudnnGetConvolutionForwardAlgorithm_v7(handle, l->x, l->w, l->conv, l->y, MOST_ALGORITHMS, count,
                                                  found));
    for (int i = 0; i < *count; i++) {
        list[i] = PROPOSAL(found[i]);
        if (found[i].algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM &&
            found[i].algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM &&
            found[i].algo != CUDNN_CONVOLUTION_FWD_ALGO_GEMM)
            list[i].status = CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t propose_data(cudnnHandle_t handle, const dsc_dnn_legacy *l, proposal *list, int *count) {
    cudnnConvolutionBwdDataAlgoPerf_t found[MOST_ALGORITHMS];
    DNN_GO(cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, l->w, l->y, l->conv, l->x, MOST_ALGORITHMS,
                                                       count, found));
    for (int i = 0; i < *count; i++) {
        list[i] = PROPOSAL(found[i]);
        if (found[i].algo != CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)
            list[i].status = CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t propose_weight(cudnnHandle_t handle, const dsc_dnn_legacy *l, proposal *list,
                                    int *count) {
    cudnnConvolutionBwdFilterAlgoPerf_t found[MOST_ALGORITHMS];
    DNN_GO(cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, l->x, l->y, l->conv, l->w, MOST_ALGORITHMS,
                                                         count, found));
    for (int i = 0; i < *count; i++) {
        list[i] = PROPOSAL(found[i]);
        if (found[i].algo != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1)
            list[i].status = CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t propose(cudnnHandle_t handle, const dsc_dnn_legacy *l, proposal *list, int *count) {
    switch (l->kind) {
    case DSC_DNN_FORWARD:
        return propose_forward(handle, l, list, count);
    case DSC_DNN_DATA:
    case DSC_DNN_DATA_ADD:
        return propose_data(handle, l, list, count);
    default:
        return propose_weight(handle, l, list, count);
    }
}

static cudnnStatus_t choose(cudnnHandle_t handle, int strict, dsc_dnn_legacy *l) {
    proposal list[MOST_ALGORITHMS];
    int count = 0;
    cudnnMathType_t math = strict ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
    DNN_GO(cudnnSetConvolutionMathType(l->conv, math));
    DNN_GO(propose(handle, l, list, &count));
    for (int i = 0; i < count; i++) {
        if (list[i].status != CUDNN_STATUS_SUCCESS || list[i].determinism != CUDNN_DETERMINISTIC)
            continue;
        l->algorithm = list[i].algorithm;
        l->workspace = list[i].memory;
        l->ready = 1;
        return cudnnSetConvolutionMathType(l->conv, strict ? math : list[i].math);
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t dsc_dnn_legacy_open(cudnnHandle_t handle, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                  dsc_dnn_legacy *out) {
    *out = (dsc_dnn_legacy){.kind = kind};
    if (dsc_dnn_weight_type(problem, kind) != problem->desc.dtype)
        return CUDNN_STATUS_NOT_SUPPORTED; /* these functions need the same type for all tensors */
    cudnnStatus_t status = describe(problem, out);
    if (status == CUDNN_STATUS_SUCCESS)
        status = choose(handle, problem->strict && problem->desc.dtype == DSC_F32, out);
    if (status != CUDNN_STATUS_SUCCESS)
        dsc_dnn_legacy_close(out);
    return status;
}

void dsc_dnn_legacy_close(dsc_dnn_legacy *l) {
    if (l->x)
        cudnnDestroyTensorDescriptor(l->x);
    if (l->y)
        cudnnDestroyTensorDescriptor(l->y);
    if (l->w)
        cudnnDestroyFilterDescriptor(l->w);
    if (l->conv)
        cudnnDestroyConvolutionDescriptor(l->conv);
    *l = (dsc_dnn_legacy){.ready = 0};
}

cudnnStatus_t dsc_dnn_legacy_run(const dsc_dnn_legacy *l, cudnnHandle_t handle, void *x, void *w, void *y,
                                 void *work) {
    const float one = 1, zero = 0;
    switch (l->kind) {
    case DSC_DNN_FORWARD:
        return cudnnConvolutionForward(handle, &one, l->x, x, l->w, w, l->conv,
                                       (cudnnConvolutionFwdAlgo_t)l->algorithm, work, l->workspace, &zero,
                                       l->y, y);
    case DSC_DNN_DATA:
    case DSC_DNN_DATA_ADD:
        return cudnnConvolutionBackwardData(handle, &one, l->w, w, l->y, y, l->conv,
                                            (cudnnConvolutionBwdDataAlgo_t)l->algorithm, work, l->workspace,
                                            l->kind == DSC_DNN_DATA_ADD ? &one : &zero, l->x, x);
    default:
        return cudnnConvolutionBackwardFilter(
            handle, &one, l->x, x, l->y, y, l->conv, (cudnnConvolutionBwdFilterAlgo_t)l->algorithm, work,
            l->workspace, l->kind == DSC_DNN_WEIGHT_ADD ? &one : &zero, l->w, w);
    }
}

/* A pass of a convolution through cuDNN's older functions, where the backend API has no plan. */
#ifndef DSC_DEVICE_CUDA_DNN_LEGACY_H
#define DSC_DEVICE_CUDA_DNN_LEGACY_H

#include "device/cuda/dnn_plan.h"

typedef struct dsc_dnn_legacy {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    dsc_dnn_kind kind;
    int algorithm;
    size_t workspace;
    int ready;
} dsc_dnn_legacy;

/* Chooses a deterministic algorithm by cuDNN's heuristics. Nothing has to be closed after a failure. */
cudnnStatus_t dsc_dnn_legacy_open(cudnnHandle_t handle, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                  dsc_dnn_legacy *out);
void dsc_dnn_legacy_close(dsc_dnn_legacy *legacy);
/* Like dsc_dnn_plan_run. */
cudnnStatus_t dsc_dnn_legacy_run(const dsc_dnn_legacy *legacy, cudnnHandle_t handle, void *x, void *w,
                                 void *y, void *work);

#endif

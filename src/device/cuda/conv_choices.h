/* Remembers which engine runs which convolution on a GPU.
 *
 * Engines are chosen when a convolution is opened, by cuDNN's heuristics or, on a device that tunes, by timing. A
 * choice is kept for the life of the process, and equal convolutions share it. In text form (dsc_device_choices)
 * every choice is one line, after a first line with cuDNN's version and the GPU's compute capability. */
#ifndef DSC_DEVICE_CUDA_CONV_CHOICES_H
#define DSC_DEVICE_CUDA_CONV_CHOICES_H

#include "device/cuda/dnn_plan.h"

/* _find copies the choice kept for a pass, with `timed` only one that was timed or preset; returns 0 if there is no
 * such choice. _keep stores one and replaces an older one. */
int dsc_cuda_choice_find(const dsc_cuda *gpu, const dsc_dnn_problem *problem, dsc_dnn_kind kind, int timed,
                         dsc_dnn_choice *out);
dsc_status dsc_cuda_choice_keep(const dsc_cuda *gpu, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                int timed, const dsc_dnn_choice *choice) DSC_MUST_CHECK;

#endif

/* Which engine runs which convolution on a GPU.
 *
 * Engines are chosen when a convolution is opened, by cuDNN's rules or, with DESCENT_CONV_TUNE=1 in the
 * environment, by timing. A choice is kept for the life of the process: equal convolutions share it. Choices
 * made by timing differ from process to process, and results with them in their last bits: who wants to
 * continue a run exactly stores the choices and presets them. */
#ifndef DSC_DEVICE_CUDA_CONV_CHOICES_H
#define DSC_DEVICE_CUDA_CONV_CHOICES_H

#include "device/cuda/dnn_plan.h"

/* The choices in use on this device, one line each behind a first line that names cuDNN's version and the
 * GPU's kind. DSC_E_INVALID, with the bytes needed, when `text` (of `size` bytes) is too short. */
dsc_status dsc_cuda_conv_choices(dsc_device *device, char *text, size_t size) DSC_MUST_CHECK;
/* Convolutions opened from now on take the choices of such a text, where it has one for them, instead of
 * choosing. A text from another version of cuDNN or another kind of GPU says nothing: it is passed over, with
 * a warning. DSC_E_FORMAT when it is no such text. */
dsc_status dsc_cuda_conv_preset(dsc_device *device, const char *text) DSC_MUST_CHECK;

/* For conv.c: the choice kept for this; 0 when there is none. And keeps one, in place of an older one. */
int dsc_cuda_choice_find(const dsc_cuda *gpu, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                         dsc_dnn_choice *out);
dsc_status dsc_cuda_choice_keep(const dsc_cuda *gpu, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                const dsc_dnn_choice *choice) DSC_MUST_CHECK;

#endif

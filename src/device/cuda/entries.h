/* The functions of the cuda backend's table: its operations, from the list in device/ops.h, and those around
 * them. Arguments are those of the table; the fronts have checked them. */
#ifndef DSC_DEVICE_CUDA_ENTRIES_H
#define DSC_DEVICE_CUDA_ENTRIES_H

#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_CUDA_PROTOTYPE(name) __typeof__(dsc_op_##name) dsc_cuda_##name;
DSC_OPERATIONS(DSC_CUDA_PROTOTYPE, DSC_CUDA_PROTOTYPE)

/* conv_choices.c */
dsc_status dsc_cuda_choices(dsc_device *device, char *text, size_t size, size_t *needed);
dsc_status dsc_cuda_preset(dsc_device *device, const char *text);
/* conv.c */
dsc_status dsc_cuda_conv_open(dsc_conv *conv);
void dsc_cuda_conv_close(dsc_conv *conv);
/* solve.c: frees the solver's part of the device's state */
void dsc_cuda_solver_close(dsc_device *device);

#ifdef __cplusplus
}
#endif

#endif

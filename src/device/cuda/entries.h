/* The functions of the cuda backend's table: its operations, from the list in device/ops.h, and the functions around
 * them. They take the table's arguments, which the front functions have checked. */
#ifndef DSC_DEVICE_CUDA_ENTRIES_H
#define DSC_DEVICE_CUDA_ENTRIES_H

#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_CUDA_PROTOTYPE(name) __typeof__(dsc_op_##name) dsc_cuda_##name;
DSC_OPERATIONS(DSC_CUDA_PROTOTYPE, DSC_CUDA_PROTOTYPE)

/* operations.cu: the same operations, but with the device's GPU as the thread's current one while they run. The table
 * holds these. */
#define DSC_CUDA_MEMBER(name) __typeof__(dsc_op_##name) *name;
typedef struct dsc_cuda_operations {
    DSC_OPERATIONS(DSC_CUDA_MEMBER, DSC_CUDA_MEMBER)
} dsc_cuda_operations;
#undef DSC_CUDA_MEMBER
const dsc_cuda_operations *dsc_cuda_operations_on_gpu(void);
/* cuda.c: the number of a device's GPU. */
int dsc_cuda_ordinal(const dsc_device *device);

/* memory.c */
dsc_status dsc_cuda_alloc(dsc_device *device, size_t bytes, void **out);
void dsc_cuda_free(dsc_device *device, void *data);
dsc_status dsc_cuda_host_alloc(dsc_device *device, size_t bytes, void **out);
void dsc_cuda_host_free(dsc_device *device, void *data);
dsc_status dsc_cuda_check_memory(const dsc_device *device, const void *data);
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

/* Triangles of square matrices in float32 or float64 (triangle.c). They run on the device's threads; inside a
 * parallel region, on the calling one. */
#ifndef DSC_DEVICE_CPU_TRIANGLE_H
#define DSC_DEVICE_CPU_TRIANGLE_H

#include "device/cpu/cpu.h"

/* Copies the lower triangle of A[n,n] to the upper one. */
void dsc_cpu_mirror(const dsc_device *device, dsc_dtype dtype, int64_t n, void *a);
/* A[n,n] := A'. */
void dsc_cpu_transpose(const dsc_device *device, dsc_dtype dtype, int64_t n, void *a);

#endif

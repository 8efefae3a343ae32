/* Matrix products of the cpu device, whoever computes them. */
#ifndef DSC_DEVICE_CPU_GEMM_H
#define DSC_DEVICE_CPU_GEMM_H

#include "base/config.h"
#include "device/cpu/cpu.h"

/* By our own kernels: on the calling thread, and on the device's threads. */
void dsc_own_gemm_one(const dsc_cpu_kernels *k, const dsc_cpu_gemm *g);
void dsc_own_gemm(const dsc_device *device, const dsc_cpu_gemm *g);

#ifdef DSC_HAVE_ONEDNN
/* By oneDNN (onednn_gemm.c); each of A and B has rows or columns next to each other, and no `lower`. */
dsc_status dsc_onednn_gemm(const dsc_cpu_gemm *g) DSC_MUST_CHECK;
#endif

#endif

/* Matrix products of the cpu device, by oneDNN, OpenBLAS or our own kernels. */
#ifndef DSC_DEVICE_CPU_GEMM_H
#define DSC_DEVICE_CPU_GEMM_H

#include "base/config.h"
#include "device/cpu/cpu.h"

/* C = alpha op(A) op(B) + beta C as a description; and whether the library that would compute it can. */
dsc_cpu_gemm dsc_cpu_product(const int trans[2], double alpha, const dsc_tensor *a, const dsc_tensor *b,
                             double beta, const dsc_tensor *c);
dsc_status dsc_cpu_product_check(const dsc_cpu *cpu, const char *op, const dsc_cpu_gemm *g) DSC_MUST_CHECK;
/* By the device's library on as many threads as OpenMP is set to, which must be one for OpenBLAS (see
 * dsc_cpu_use_threads); or by our own kernels on the calling thread. */
dsc_status dsc_cpu_multiply(const dsc_cpu *cpu, const dsc_cpu_gemm *g) DSC_MUST_CHECK;

/* By our own kernels: on the calling thread, and on the device's threads. */
void dsc_own_gemm_one(const dsc_cpu_kernels *k, const dsc_cpu_gemm *g);
void dsc_own_gemm(const dsc_device *device, const dsc_cpu_gemm *g);

#ifdef DSC_HAVE_ONEDNN
/* By oneDNN (onednn_gemm.c); each of A and B has rows or columns next to each other, and no `lower`. */
dsc_status dsc_onednn_gemm(const dsc_cpu_gemm *g) DSC_MUST_CHECK;
#endif

#endif

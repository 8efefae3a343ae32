/* Matrix products of the cpu device, by oneDNN, OpenBLAS or our own kernels. */
#ifndef DSC_DEVICE_CPU_GEMM_H
#define DSC_DEVICE_CPU_GEMM_H

#include "base/config.h"
#include "device/cpu/cpu.h"

/* Describes C = alpha op(A) op(B) + beta C; and checks that the library that would compute it can do so. */
dsc_cpu_gemm dsc_cpu_product(const int trans[2], double alpha, const dsc_tensor *a, const dsc_tensor *b,
                             double beta, const dsc_tensor *c);
dsc_status dsc_cpu_product_check(const dsc_cpu *cpu, const char *op, const dsc_cpu_gemm *g) DSC_MUST_CHECK;
/* Computes a product by the device's library, on as many threads as OpenMP is set to, which must be one for OpenBLAS
 * (see dsc_cpu_use_threads); or by our own kernels, on the calling thread. */
dsc_status dsc_cpu_multiply(const dsc_cpu *cpu, const dsc_cpu_gemm *g) DSC_MUST_CHECK;

/* Compute a product by our own kernels, on the calling thread and on the device's threads. */
void dsc_own_gemm_one(const dsc_cpu_kernels *k, const dsc_cpu_gemm *g);
void dsc_own_gemm(const dsc_device *device, const dsc_cpu_gemm *g);

#ifdef DSC_HAVE_ONEDNN
/* Computes a product by oneDNN (onednn_gemm.c); A and B must have contiguous rows or columns, and `lower` must be 0. */
dsc_status dsc_onednn_gemm(const dsc_cpu_gemm *g) DSC_MUST_CHECK;
#endif

#endif

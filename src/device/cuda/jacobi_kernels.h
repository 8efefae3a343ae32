/* The kernel of jacobi.cu: eigen problems of few rows, many at once. */
#ifndef DSC_DEVICE_CUDA_JACOBI_KERNELS_H
#define DSC_DEVICE_CUDA_JACOBI_KERNELS_H

#include "device/cuda/launch.h"
#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a problem at most: a matrix and its basis in the 227 KiB of shared memory that a block of an H100 may
 * have are 168. */
enum { DSC_JACOBI_ROWS = 160, DSC_JACOBI_ITEMS = 120 };

/* A[n,n] := its eigenvectors, v[n] in ascending order, as dsc_op_syev. */
typedef struct dsc_jacobi {
    float *a, *v;
    int *failed; /* becomes 1 where A is not finite or there was no convergence, else 0 */
    int32_t n;
} dsc_jacobi;

/* Shared memory that a problem of n rows needs. */
size_t dsc_cuda_jacobi_shared(int64_t n);
/* At most DSC_JACOBI_ITEMS items; none needs more shared memory than a block may have. */
cudaError_t dsc_cuda_launch_jacobi(const dsc_cuda_launch *at, const dsc_jacobi *items, int count);

/* jacobi.c: whether an item of dsc_op_syev_batch is solved by dsc_cuda_jacobi_batch, which leaves all other items
 * of its list alone. */
int dsc_cuda_is_quick(const dsc_queue *q, const dsc_solve_item *item);
dsc_status dsc_cuda_jacobi_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif

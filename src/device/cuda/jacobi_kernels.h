/* The kernel of jacobi.cu: small eigenvalue problems, many at once. */
#ifndef DSC_DEVICE_CUDA_JACOBI_KERNELS_H
#define DSC_DEVICE_CUDA_JACOBI_KERNELS_H

#include "device/cuda/launch.h"
#include "device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most rows of a problem, and the most problems of a launch. The 227 KiB of shared memory that a block may have on
 * an H100 hold a matrix and its basis of 168 rows. */
enum { DSC_JACOBI_ROWS = 160, DSC_JACOBI_ITEMS = 120 };

/* A[n,n] := its eigenvectors, v[n] := its eigenvalues in ascending order, like dsc_op_syev. */
typedef struct dsc_jacobi {
    float *a, *v;
    int *failed; /* set to 1 if A is not finite or the method did not converge, else to 0 */
    int32_t n;
} dsc_jacobi;

/* Returns the bytes of shared memory that a problem of n rows needs. */
size_t dsc_cuda_jacobi_shared(int64_t n);
/* Solves at most DSC_JACOBI_ITEMS items, none of which may need more shared memory than a block may have. */
cudaError_t dsc_cuda_launch_jacobi(const dsc_cuda_launch *at, const dsc_jacobi *items, int count);

/* jacobi.c. Returns 1 if dsc_cuda_jacobi_batch solves this item of dsc_op_syev_batch; it leaves all other items of its
 * list alone. */
int dsc_cuda_is_quick(const dsc_queue *q, const dsc_solve_item *item);
dsc_status dsc_cuda_jacobi_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif

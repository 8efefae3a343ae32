/* Kernels that prepare matrices for cuSOLVER and bring its results back, many matrices at once. `wide`: 1 for
 * matrices of double, 0 for float. */
#ifndef DSC_DEVICE_CUDA_SOLVE_KERNELS_H
#define DSC_DEVICE_CUDA_SOLVE_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix [n,n] and its destination; values_from, values_to: n numbers that are moved with it (NULL: none). */
typedef struct dsc_cuda_solve_place {
    const void *from;
    void *to;
    const void *values_from;
    void *values_to;
    int64_t n;
    int64_t index; /* of the matrix's scale */
} dsc_cuda_solve_place;

enum { DSC_CUDA_SOLVE_PLACES = 80 };

/* The scale of a matrix: 0 if all elements are zero, DSC_CUDA_SOLVE_NOT_FINITE if one is not finite, else
 * DSC_CUDA_SOLVE_ONE + the exponent of the largest element (-1074 to 1023). */
enum { DSC_CUDA_SOLVE_ONE = 1075, DSC_CUDA_SOLVE_NOT_FINITE = 4096 };

/* The matrices of one launch. */
typedef struct dsc_cuda_solve_places {
    dsc_cuda_solve_place place[DSC_CUDA_SOLVE_PLACES];
    int count;
} dsc_cuda_solve_places;

/* scales[index] := the scale of the lower triangle of `from`; scales[index] must be 0 before. */
cudaError_t dsc_cuda_launch_solve_check(const dsc_cuda_launch *at, int wide, const dsc_cuda_solve_places *p,
                                        int *scales);
/* to := from, times the power of two that brings the largest element into [1, 2); a matrix with from == to is left as
 * it is. One that is not finite becomes the identity in either case: a solver may not terminate on NaN. */
cudaError_t dsc_cuda_launch_solve_copy(const dsc_cuda_launch *at, int wide, const dsc_cuda_solve_places *p,
                                       const int *scales);
/* to := the transpose of from, which may be the same matrix; values_to := values_from divided by that power. */
cudaError_t dsc_cuda_launch_solve_transpose(const dsc_cuda_launch *at, int wide,
                                            const dsc_cuda_solve_places *p, const int *scales);

#ifdef __cplusplus
}
#endif
#endif

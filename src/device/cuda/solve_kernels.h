/* What is done to matrices before and after cuSOLVER: many at once, `wide` (1: double, 0: float). */
#ifndef DSC_DEVICE_CUDA_SOLVE_KERNELS_H
#define DSC_DEVICE_CUDA_SOLVE_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix [n,n] and where it goes; values: n numbers that go along (NULL: none). */
typedef struct dsc_cuda_solve_place {
    const void *from;
    void *to;
    const void *values_from;
    void *values_to;
    int64_t n;
    int64_t index; /* of its scale */
} dsc_cuda_solve_place;

enum { DSC_CUDA_SOLVE_PLACES = 80 };

/* The scale of a matrix: 0 where all is zero, DSC_CUDA_SOLVE_NOT_FINITE where
 * something is not finite, else DSC_CUDA_SOLVE_ONE + the exponent of its largest element (-1074 to 1023). */
enum { DSC_CUDA_SOLVE_ONE = 1075, DSC_CUDA_SOLVE_NOT_FINITE = 4096 };

/* What one launch works on. */
typedef struct dsc_cuda_solve_places {
    dsc_cuda_solve_place place[DSC_CUDA_SOLVE_PLACES];
    int count;
} dsc_cuda_solve_places;

/* scales[index] = the scale of the lower triangle of from; it must be 0 before. */
cudaError_t dsc_cuda_launch_solve_check(const dsc_cuda_launch *at, int wide, const dsc_cuda_solve_places *p,
                                        int *scales);
/* to = from times the power of two that brings its largest element into [1, 2), unless they are one; the
 * identity for what is not finite: a solver may not terminate on NaN. */
cudaError_t dsc_cuda_launch_solve_copy(const dsc_cuda_launch *at, int wide, const dsc_cuda_solve_places *p,
                                       const int *scales);
/* to = the transpose of from, which may be the same matrix; values along, divided by that power. */
cudaError_t dsc_cuda_launch_solve_transpose(const dsc_cuda_launch *at, int wide,
                                            const dsc_cuda_solve_places *p, const int *scales);

#ifdef __cplusplus
}
#endif
#endif

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
    int64_t index; /* of its flag */
} dsc_cuda_solve_place;

enum { DSC_CUDA_SOLVE_PLACES = 80 };

/* What one launch works on. */
typedef struct dsc_cuda_solve_places {
    dsc_cuda_solve_place place[DSC_CUDA_SOLVE_PLACES];
    int count;
} dsc_cuda_solve_places;

/* to = from (unless they are one); flags[index] = 1 where an element of the lower triangle is not finite. */
cudaError_t dsc_cuda_launch_solve_check(const dsc_cuda_launch *at, int wide, const dsc_cuda_solve_places *p,
                                        int *flags);
/* to = the identity where flags[index] is set: a solver may not end on numbers that are none. */
cudaError_t dsc_cuda_launch_solve_replace(const dsc_cuda_launch *at, int wide, const dsc_cuda_solve_places *p,
                                          const int *flags);
/* to = the transpose of from, which may be the same matrix; values along. */
cudaError_t dsc_cuda_launch_solve_transpose(const dsc_cuda_launch *at, int wide,
                                            const dsc_cuda_solve_places *p);
/* The lower triangle of `to` over the upper. */
cudaError_t dsc_cuda_launch_solve_mirror(const dsc_cuda_launch *at, int wide, const dsc_cuda_solve_places *p);

#ifdef __cplusplus
}
#endif
#endif

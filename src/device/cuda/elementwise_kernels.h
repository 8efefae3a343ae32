/* Launches of elementwise.cu. Formulas in ops.h; pointers to memory of the device. Batches have at least one
 * item, and at most DSC_CUDA_DOTS or DSC_CUDA_ABSORBS. */
#ifndef DSC_DEVICE_CUDA_ELEMENTWISE_KERNELS_H
#define DSC_DEVICE_CUDA_ELEMENTWISE_KERNELS_H

#include "descent/device.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `count` elements of `size` bytes (1, 2, 4, 8), each with these bits. */
cudaError_t dsc_cuda_launch_fill(const dsc_cuda_launch *at, int size, uint64_t bits, int64_t count, void *t);
/* Equal types: any; else two of F32 F64 BF16 F16. */
cudaError_t dsc_cuda_launch_convert(const dsc_cuda_launch *at, dsc_dtype from, dsc_dtype to, int64_t count,
                                    const void *src, void *dst);
cudaError_t dsc_cuda_launch_axpby(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t count, double alpha,
                                  const void *x, double beta, void *y);
cudaError_t dsc_cuda_launch_scale_by(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t count,
                                     const double *s, void *t);
cudaError_t dsc_cuda_launch_multiply(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t count, const void *x,
                                     void *y);

enum { DSC_CUDA_DOTS = 128, DSC_CUDA_ABSORBS = 108 };

typedef struct dsc_cuda_dot_item {
    const void *x, *y;
    int64_t count;
} dsc_cuda_dot_item;
/* out[i] = beta out[i] + sum over item i. */
cudaError_t dsc_cuda_launch_dots(const dsc_cuda_launch *at, dsc_dtype dtype, const dsc_cuda_dot_item *items,
                                 int count, double beta, double *out);

typedef struct dsc_cuda_absorb_item {
    const void *x;
    double *bad;
    void *y;
    int64_t count;
} dsc_cuda_absorb_item;
/* bad[0], plus what it was where `add`, becomes the number of x's elements that are not finite. */
cudaError_t dsc_cuda_launch_counts(const dsc_cuda_launch *at, dsc_dtype dtype,
                                   const dsc_cuda_absorb_item *items, int count, int add);
cudaError_t dsc_cuda_launch_blends(const dsc_cuda_launch *at, dsc_dtype dtype, const double *decay,
                                   const dsc_cuda_absorb_item *items, int count);

cudaError_t dsc_cuda_launch_clip_factor(const dsc_cuda_launch *at, const double *sumsq, double limit,
                                        double *out);
cudaError_t dsc_cuda_launch_increment(const dsc_cuda_launch *at, int64_t count, int64_t *t);
cudaError_t dsc_cuda_launch_guard(const dsc_cuda_launch *at, const double *value, int firm, double *flag);
cudaError_t dsc_cuda_launch_loss_scale(const dsc_cuda_launch *at, const double *bad, double *scale,
                                       double *skip);

#ifdef __cplusplus
}
#endif

#endif

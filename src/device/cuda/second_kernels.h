/* Launches of second.cu. Formulas and shapes in ops.h; pointers to memory of the device. Types are F32 and
 * F64. Batches have at least one item and at most DSC_CUDA_PIECES. */
#ifndef DSC_DEVICE_CUDA_SECOND_KERNELS_H
#define DSC_DEVICE_CUDA_SECOND_KERNELS_H

#include "descent/device.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t dsc_cuda_launch_symmetrize(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n, void *a);
cudaError_t dsc_cuda_launch_tri_pack(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n, const void *a,
                                     void *p);
cudaError_t dsc_cuda_launch_tri_unpack(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n, const void *p,
                                       void *a);
cudaError_t dsc_cuda_launch_add_diagonal(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t n,
                                         const double *value, void *a);

enum { DSC_CUDA_PIECES = 80 };

/* x[count / width, width]. */
typedef struct dsc_cuda_divide_item {
    const void *rows, *columns;
    void *x;
    int64_t count, width;
} dsc_cuda_divide_item;
cudaError_t dsc_cuda_launch_divides(const dsc_cuda_launch *at, dsc_dtype dtype, const double *damping,
                                    const dsc_cuda_divide_item *items, int count);

/* d[count / width, width] = [w, b]; b is NULL where d has no such column. */
typedef struct dsc_cuda_join_item {
    void *w, *b, *d;
    int64_t count, width;
} dsc_cuda_join_item;
cudaError_t dsc_cuda_launch_joins(const dsc_cuda_launch *at, dsc_dtype dtype, const dsc_cuda_join_item *items,
                                  int count);
/* scale: NULL for 1. */
cudaError_t dsc_cuda_launch_splits(const dsc_cuda_launch *at, dsc_dtype dtype, const double *scale,
                                   const dsc_cuda_join_item *items, int count);

cudaError_t dsc_cuda_launch_outer_inverse(const dsc_cuda_launch *at, dsc_dtype dtype, int64_t m, int64_t n,
                                          const double *damping, const void *rows, const void *columns,
                                          void *out);

/* part[m,n] and whole[..., width]: part[i,j] = whole[rows[i], columns[j]], or back. */
typedef struct dsc_cuda_part {
    int64_t m, n, width;
    const int32_t *rows, *columns;
} dsc_cuda_part;
cudaError_t dsc_cuda_launch_gather(const dsc_cuda_launch *at, dsc_dtype dtype, const dsc_cuda_part *part,
                                   const void *src, void *dst);
cudaError_t dsc_cuda_launch_scatter(const dsc_cuda_launch *at, dsc_dtype dtype, const dsc_cuda_part *part,
                                    const void *src, void *dst);

cudaError_t dsc_cuda_launch_kl_clip(const dsc_cuda_launch *at, const double *sum, const double *limits,
                                    double *out);

#ifdef __cplusplus
}
#endif

#endif

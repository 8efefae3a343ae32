/* Kernels of grouped.cu: many products C = alpha op(A) op(B) + beta C in one launch. Matrices are row-major, without
 * gaps between rows. */
#ifndef DSC_DEVICE_CUDA_GROUPED_KERNELS_H
#define DSC_DEVICE_CUDA_GROUPED_KERNELS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DSC_PRODUCT_TRANS_A = 1,
    DSC_PRODUCT_TRANS_B = 2,
    DSC_PRODUCT_WIDE_A = 4,  /* every row of A begins at a multiple of 16 bytes */
    DSC_PRODUCT_WIDE_B = 8,  /* every row of B does */
    DSC_PRODUCT_PAIRS_C = 16 /* every row of C begins at a multiple of 8 bytes */
};

typedef struct dsc_product {
    const float *a, *b;
    float *c;
    int32_t m, n, k; /* C[m,n], k terms; all positive */
    int32_t first;   /* number of its first tile in the launch */
    float alpha, beta;
    int32_t flags;
} dsc_product;

enum { DSC_PRODUCTS = 70 }; /* the most in one launch, whose parameters may have 4000 bytes */

typedef struct dsc_products {
    int32_t count, tiles;
    dsc_product items[DSC_PRODUCTS];
} dsc_products;

/* The sides of the tiles; each block computes one tile. */
typedef enum dsc_product_tile { DSC_TILE_128, DSC_TILE_64, DSC_TILE_32, DSC_TILE_COUNT } dsc_product_tile;

static inline int64_t dsc_tile_side(dsc_product_tile tile) {
    return tile == DSC_TILE_128 ? 128 : tile == DSC_TILE_64 ? 64 : 32;
}

static inline int64_t dsc_tiles_along(int64_t size, int64_t side) {
    return (size + side - 1) / side;
}

/* fast: one TF32 product; else three, which give the precision of float32. */
cudaError_t dsc_cuda_launch_products(const dsc_cuda_launch *at, const dsc_products *products,
                                     dsc_product_tile tile, int fast);

/* One product in float64, not optimised for speed. */
typedef struct dsc_wide_product {
    const double *a, *b;
    double *c;
    int64_t m, n, k;
    double alpha, beta;
    int32_t trans_a, trans_b;
} dsc_wide_product;

cudaError_t dsc_cuda_launch_wide_product(const dsc_cuda_launch *at, const dsc_wide_product *product);

#ifdef __cplusplus
}
#endif

#endif

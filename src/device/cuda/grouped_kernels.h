/* Kernels of grouped.cu: many products C = alpha op(A) op(B) + beta C in one launch. Row-major, a row of a
 * matrix follows the one before. */
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
    DSC_PRODUCT_WIDE_B = 8,  /* of B */
    DSC_PRODUCT_PAIRS_C = 16 /* of C, at a multiple of 8 bytes */
};

typedef struct dsc_product {
    const float *a, *b;
    float *c;
    int32_t m, n, k; /* C[m,n], k terms; all positive */
    int32_t first;   /* its first tile of the launch */
    float alpha, beta;
    int32_t flags;
} dsc_product;

enum { DSC_PRODUCTS = 70 }; /* a launch: 4000 bytes of parameters */

typedef struct dsc_products {
    int32_t count, tiles;
    dsc_product items[DSC_PRODUCTS];
} dsc_products;

/* Sides of the tiles: one block makes one of them. */
typedef enum dsc_product_tile { DSC_TILE_128, DSC_TILE_64, DSC_TILE_32, DSC_TILE_COUNT } dsc_product_tile;

static inline int64_t dsc_tile_side(dsc_product_tile tile) {
    return tile == DSC_TILE_128 ? 128 : tile == DSC_TILE_64 ? 64 : 32;
}

static inline int64_t dsc_tiles_along(int64_t size, int64_t side) {
    return (size + side - 1) / side;
}

/* fast: one product of TF32, else three, with the precision of float32. */
cudaError_t dsc_cuda_launch_products(const dsc_cuda_launch *at, const dsc_products *products,
                                     dsc_product_tile tile, int fast);

/* One product in float64, without haste. */
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

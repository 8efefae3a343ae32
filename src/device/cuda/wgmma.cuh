/* Matrix products of a warpgroup on Hopper's tensor cores, with plain versions of the same layout for the emulator. A
 * warpgroup is four warps, the first of which has a number that is a multiple of four. Files that include this are
 * compiled for sm_90a (cmake/cuda.cmake).
 *
 * C is in registers, 16 rows per warp, in the layout of mma.cuh's products of halves: C[64,64] is c[8][4], where c[n]
 * holds columns 8 n .. 8 n + 7. B is a tile in shared memory of 64 rows of 64 halves, 128 bytes per row. The 16-byte
 * pieces of a row are permuted, so that eight rows of a column are in different banks: piece p of row r is at place
 * p ^ (r % 8). A tile is aligned to 1024 bytes. A is such a tile, too, or in registers, in mma.cuh's layout. nvcc 13.0
 * was seen to reuse registers of A that later products still needed, so pass in registers only values that are computed
 * anew for each product. The code that nvcc 13.0.88 makes of attention_hopper.cu was checked for this (docs/gpu.md).
 *
 * Products are asynchronous. All threads of the warpgroup call
 *   dsc_wgmma_begin    after writing registers that products use and before the first product;
 *   dsc_wgmma_commit   to close a group of products;
 *   dsc_wgmma_wait<N>  to wait until at most N groups are in flight;
 *   dsc_wgmma_settle   on the accumulators of a group, after waiting for it and before using them.
 * Until then the registers of A and C and the tiles must not be changed. Accumulators that are zeroed before a loop
 * must be settled there, too: otherwise nvcc 13.0 may move the zeroing into the loop, and then waits after every
 * product (its note C7515). */
#ifndef DSC_DEVICE_CUDA_WGMMA_CUH
#define DSC_DEVICE_CUDA_WGMMA_CUH

#include "device/cuda/mma.cuh"

#include <cuda_bf16.h>

enum {
    DSC_WGMMA_SIDE = 64,
    DSC_WGMMA_TILE = DSC_WGMMA_SIDE * DSC_WGMMA_SIDE
}; /* halves in a row and in a tile */

/* Returns the index in the tile of the half at (row, column), where column is a multiple of 8. */
DSC_MMA int dsc_wgmma_place(int row, int column) {
    return row * DSC_WGMMA_SIDE + (column ^ (row & 7) * 8);
}

#ifndef DSC_EMULATED

DSC_MMA void dsc_wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DSC_MMA void dsc_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> DSC_MMA void dsc_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from using the accumulators before this point. */
DSC_MMA void dsc_wgmma_settle(float (&c)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

/* Makes this thread's writes to shared memory visible to products; a barrier must follow. */
DSC_MMA void dsc_wgmma_publish(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Returns the descriptor of a tile: 1024 bytes between groups of eight rows, 128-byte swizzling. */
DSC_MMA uint64_t dsc_wgmma_describe(const void *tile) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (dsc_shared_address(tile) & 0x3FFFF) >> 4;
}

#define DSC_WGMMA_C(c)                                                                                       \
    "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), \
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]),            \
        "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]),            \
        "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]),            \
        "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]),            \
        "+f"(c[7][3])

#define DSC_WGMMA_TEXT(TYPE)                                                                                 \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                                          \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

#define DSC_WGMMA_ROWS(TYPE, c, a, b, add)                                                                   \
    asm volatile("{\n"                                                                                       \
                 ".reg .pred p;\n"                                                                           \
                 "setp.ne.b32 p, %34, 0;\n" DSC_WGMMA_TEXT(TYPE) "%32, %33, p, 1, 1, 0, 0;\n"                \
                                                                 "}\n"                                       \
                 : DSC_WGMMA_C(c)                                                                            \
                 : "l"(a), "l"(b), "r"(add)                                                                  \
                 : "memory")

#define DSC_WGMMA_COLUMNS(TYPE, c, a, b)                                                                     \
    asm volatile(DSC_WGMMA_TEXT(TYPE) "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"                             \
                 : DSC_WGMMA_C(c)                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                        \
                 : "memory")

/* c (+)= columns 16 k .. 16 k + 15 of tile `a`, times the transpose of those of tile `b`. With add 0, c is not read. */
DSC_MMA void dsc_wgmma_rows(float (&c)[8][4], const __nv_bfloat16 *a, const __nv_bfloat16 *b, int k,
                            int add) {
    uint64_t down = (uint64_t)(k * 32 >> 4);
    DSC_WGMMA_ROWS("bf16", c, dsc_wgmma_describe(a) + down, dsc_wgmma_describe(b) + down, add);
}

DSC_MMA void dsc_wgmma_rows(float (&c)[8][4], const __half *a, const __half *b, int k, int add) {
    uint64_t down = (uint64_t)(k * 32 >> 4);
    DSC_WGMMA_ROWS("f16", c, dsc_wgmma_describe(a) + down, dsc_wgmma_describe(b) + down, add);
}

/* c += A[64,16] times rows 16 k .. 16 k + 15 of tile `b`. */
DSC_MMA void dsc_wgmma_columns(float (&c)[8][4], const uint32_t (&a)[4], const __nv_bfloat16 *b, int k) {
    DSC_WGMMA_COLUMNS("bf16", c, a, dsc_wgmma_describe(b) + (uint64_t)(k * 2048 >> 4));
}

DSC_MMA void dsc_wgmma_columns(float (&c)[8][4], const uint32_t (&a)[4], const __half *b, int k) {
    DSC_WGMMA_COLUMNS("f16", c, a, dsc_wgmma_describe(b) + (uint64_t)(k * 2048 >> 4));
}

#else

DSC_MMA void dsc_wgmma_begin(void) {
}

DSC_MMA void dsc_wgmma_commit(void) {
}

template <int N> DSC_MMA void dsc_wgmma_wait(void) {
}

DSC_MMA void dsc_wgmma_settle(float (&)[8][4]) {
}

DSC_MMA void dsc_wgmma_publish(void) {
}

struct dsc_wgmma_left {
    uint32_t a[4];
};

/* Each warp multiplies its own rows. */
template <typename T> DSC_MMA void dsc_wgmma_rows(float (&c)[8][4], const T *a, const T *b, int k, int add) {
    int lane = dsc_lane(), first = (int)threadIdx.x % 128 / 32 * 16;
    __syncwarp();
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) {
            double sum = add ? c[n][i] : 0;
            for (int j = 0; j < 16; j++) {
                int row = first + dsc_c_row(lane, i), column = 8 * n + dsc_c_column(lane, i);
                int piece = 16 * k + j / 8 * 8;
                sum += (double)(float)a[dsc_wgmma_place(row, piece) + j % 8] *
                       (double)(float)b[dsc_wgmma_place(column, piece) + j % 8];
            }
            c[n][i] = dsc_mma_truncate(sum);
        }
}

template <typename T>
DSC_MMA void dsc_wgmma_columns(float (&c)[8][4], const uint32_t (&a)[4], const T *b, int k) {
    dsc_wgmma_left all[32], mine;
    int lane = dsc_lane();
    memcpy(mine.a, a, sizeof mine.a);
    dsc_emulate_warp_gather(mine, all);
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) {
            double sum = c[n][i];
            for (int j = 0; j < 16; j++) {
                uint32_t pair = all[lane / 4 * 4 + j % 8 / 2].a[(i >> 1) + j / 8 * 2];
                unsigned short bits = (unsigned short)(pair >> j % 2 * 16);
                T x;
                memcpy((void *)&x, &bits, sizeof x);
                sum += (double)(float)x *
                       (double)(float)b[dsc_wgmma_place(16 * k + j, 8 * n) + dsc_c_column(lane, i)];
            }
            c[n][i] = dsc_mma_truncate(sum);
        }
}

#endif

#endif

/* Converts images from NCHW to NHWC: y[n,h,w,c] = x[n,c,h,w], several tensors in one launch.
 *
 * Each image is a matrix [c, h w] that is transposed tile by tile: a tile is read along the positions and written along
 * the channels. Only the size of an element matters, not its type. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

namespace {

enum { MOST = 8, THREADS = 256, WARPS = THREADS / 32, TILE_C = 64 };

/* A tensor, from [images, c, positions] to [images, positions, c]; `first`: its first block in the launch. */
struct image_item {
    const void *x;
    void *y;
    int64_t c, positions;
    int64_t tiles_c, tiles; /* tiles along the channels, and of one image */
    int64_t first;
    int bytes; /* per element */
};

struct image_batch {
    image_item item[MOST];
    int items;
};

/* With at most this many channels most of a tile would be empty: then each thread moves all channels of one
 * position. */
enum { NARROW = 16 };

template <typename T> __device__ __forceinline__ void transpose_narrow(const image_item &item) {
    const int64_t number = (int64_t)blockIdx.x - item.first, image = number / item.tiles;
    const int64_t p = (number - image * item.tiles) * THREADS + threadIdx.x;
    if (p >= item.positions)
        return;
    const T *x = (const T *)item.x + image * item.c * item.positions + p;
    T *y = (T *)item.y + (image * item.positions + p) * item.c;
    for (int64_t c = 0; c < item.c; c++)
        y[c] = x[c * item.positions];
}

/* The positions of a tile: 32 for elements of 4 or 8 bytes, 64 for elements of 2. */
template <typename T> constexpr int tile_positions = sizeof(T) == 2 ? 64 : 32;

template <typename T>
__device__ __forceinline__ void transpose(const image_item &item, unsigned char *shared) {
    if (item.c <= NARROW) {
        transpose_narrow<T>(item);
        return;
    }
    constexpr int ACROSS = tile_positions<T>, PITCH = ACROSS + (sizeof(T) == 2 ? 2 : 1);
    T *tile = reinterpret_cast<T *>(shared);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t number = (int64_t)blockIdx.x - item.first, image = number / item.tiles;
    const int64_t rest = number - image * item.tiles, across = rest / item.tiles_c;
    const int64_t c0 = (rest - across * item.tiles_c) * TILE_C, p0 = across * ACROSS;
    const T *x = (const T *)item.x + image * item.c * item.positions;
    T *y = (T *)item.y + image * item.c * item.positions;
    T values[TILE_C / WARPS][ACROSS / 32]; /* all loads are in flight before the first value is used */
#pragma unroll
    for (int r = 0; r < TILE_C / WARPS; r++)
#pragma unroll
        for (int k = 0; k < ACROSS / 32; k++) {
            int64_t c = c0 + r * WARPS + warp, p = p0 + k * 32 + lane;
            values[r][k] = c < item.c && p < item.positions ? x[c * item.positions + p] : (T)0;
        }
#pragma unroll
    for (int r = 0; r < TILE_C / WARPS; r++)
#pragma unroll
        for (int k = 0; k < ACROSS / 32; k++)
            tile[(r * WARPS + warp) * PITCH + k * 32 + lane] = values[r][k];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ACROSS; r += WARPS)
#pragma unroll
        for (int k = 0; k < TILE_C; k += 32) {
            int64_t p = p0 + r + warp, c = c0 + k + lane;
            if (c < item.c && p < item.positions)
                y[p * item.c + c] = tile[(k + lane) * PITCH + r + warp];
        }
}

__global__ void __launch_bounds__(THREADS) nhwc_kernel(const __grid_constant__ image_batch b) {
    __shared__ __align__(16) unsigned char shared[TILE_C * 33 * sizeof(double)];
    int i = b.items - 1;
    while (i > 0 && b.item[i].first > (int64_t)blockIdx.x)
        i--;
    const image_item &item = b.item[i];
    if (item.bytes == 2)
        transpose<uint16_t>(item, shared);
    else if (item.bytes == 4)
        transpose<uint32_t>(item, shared);
    else
        transpose<uint64_t>(item, shared);
}

cudaError_t launch_nhwc(const dsc_cuda_launch *at, const image_batch *b, int64_t blocks) {
    DSC_LAUNCH((nhwc_kernel), dim3((unsigned)blocks), dim3(THREADS), 0, at->stream)(*b);
    return cudaGetLastError();
}

} // namespace

dsc_status dsc_cuda_nhwc_batch(dsc_queue *q, const dsc_nhwc_item *items, int64_t count) {
    for (int64_t done = 0; done < count; done += MOST) {
        image_batch b;
        int64_t blocks = 0;
        b.items = count - done < MOST ? (int)(count - done) : MOST;
        for (int i = 0; i < b.items; i++) {
            const dsc_tensor *x = &items[done + i].x;
            int bytes = (int)dsc_dtype_size(x->dtype), across = bytes == 2 ? 64 : 32;
            image_item item = {
                dsc_data(x), dsc_data(&items[done + i].y), x->dim[1], x->dim[2] * x->dim[3], 0, 0, blocks,
                bytes};
            item.tiles_c = (item.c + TILE_C - 1) / TILE_C;
            item.tiles = item.tiles_c * ((item.positions + across - 1) / across);
            if (item.c <= NARROW)
                item.tiles = (item.positions + THREADS - 1) / THREADS;
            blocks += item.tiles * x->dim[0];
            b.item[i] = item;
        }
        DSC_CUDA_TRY(launch_nhwc(dsc_cuda_at(q), &b, blocks));
    }
    return DSC_OK;
}

/* Shared by small_conv.cu and small_conv_weight.cu: element types, and the tiles of x in shared memory.
 *
 * A tile holds 16 channels of every pixel that a block of output pixels reads. If the stride is 2, the even columns of
 * a row come first, then the odd ones: the pixels that neighbouring outputs read through one tap are then neighbours in
 * shared memory, and so in different banks.
 *
 * With three channels (FIRST) a pixel of the tile holds all that its output reads in one row: 3 columns of 3 channels,
 * in the order of the weights, and zeros. There is then one tap per row. */
#ifndef DSC_DEVICE_CUDA_SMALL_CONV_CUH
#define DSC_DEVICE_CUDA_SMALL_CONV_CUH

#include "device/cuda/mma.cuh"
#include "device/cuda/small_conv_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum { DSC_SMALL_CHANNELS = 16, DSC_SMALL_ROWS = 4, DSC_SMALL_FIRST = 3 };

/* ---- elements ---- */

DSC_MMA void small_set(float &x, float value) {
    x = value;
}

DSC_MMA void small_set(dsc_half_bf16 &x, float value) {
    x.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

DSC_MMA void small_set(dsc_half_f16 &x, float value) {
    x.bits = __half_as_ushort(__float2half_rn(value));
}

/* Four elements, which one access of 16 or 8 bytes moves. */
template <class T> struct __align__(4 * sizeof(T)) small_quad {
    T at[4];
};

/* ---- tiles ---- */

/* The pixels that HEIGHT x WIDTH outputs of IMAGES images read. */
template <class T, int WIDTH_, int HEIGHT_, int IMAGES_, int STRIDE_, int FIRST_> struct small_tile {
    static constexpr int WIDTH = WIDTH_, HEIGHT = HEIGHT_, IMAGES = IMAGES_, STRIDE = STRIDE_, FIRST = FIRST_;
    static constexpr int BORDER = 1, TAPS = FIRST ? 1 : 3; /* taps per row */
    static constexpr int ROWS = STRIDE * (HEIGHT - 1) + 3;
    static constexpr int COLUMNS = FIRST ? WIDTH : STRIDE == 1 ? WIDTH + 2 : 2 * (WIDTH + 1);
    static constexpr int IMAGE = ROWS * COLUMNS, PIXELS = IMAGES * IMAGE;
    static constexpr int SIZE = PIXELS * DSC_SMALL_CHANNELS; /* elements */

    /* Returns the place of the pixel that the first output of a row reads through tap kx. */
    static __device__ __forceinline__ constexpr int tap(int kx) {
        return STRIDE == 1 ? kx : kx == 1 ? WIDTH + 1 : kx / 2;
    }

    /* Returns the column of x at place `p` of a row, counted from the first column that is read. */
    static __device__ __forceinline__ int column(int p) {
        return STRIDE == 1 ? p : p <= WIDTH ? 2 * p : 2 * (p - WIDTH - 1) + 1;
    }
};

/* The outputs themselves, as a tile. */
template <int WIDTH_, int HEIGHT_, int IMAGES_> struct small_outputs {
    static constexpr int WIDTH = WIDTH_, HEIGHT = HEIGHT_, IMAGES = IMAGES_, STRIDE = 1, BORDER = 0;
    static constexpr int ROWS = HEIGHT, COLUMNS = WIDTH;
    static constexpr int IMAGE = ROWS * COLUMNS, PIXELS = IMAGES * IMAGE;
    static constexpr int SIZE = PIXELS * DSC_SMALL_CHANNELS;

    static __device__ __forceinline__ int column(int p) {
        return p;
    }
};

/* How the outputs are cut into tiles: `across` x `down` of them per image. */
struct small_cut {
    int across, down, images; /* images: the number of groups of images */
};

template <class S> static inline small_cut small_cut_of(int n, int oh, int ow) {
    small_cut cut = {(ow + S::WIDTH - 1) / S::WIDTH, (oh + S::HEIGHT - 1) / S::HEIGHT,
                     (n + S::IMAGES - 1) / S::IMAGES};
    return cut;
}

static inline int small_cut_count(const small_cut &cut) {
    return cut.across * cut.down * cut.images;
}

/* The first output of a tile. */
struct small_place {
    int image, row, column;
};

template <class S> DSC_MMA small_place small_find(const small_cut &cut, int number) {
    small_place at;
    at.column = number % cut.across * S::WIDTH;
    at.row = number / cut.across % cut.down * S::HEIGHT;
    at.image = number / cut.across / cut.down * S::IMAGES;
    return at;
}

/* A tensor [n,h,w,c]. */
template <class T> struct small_images {
    const T *data;
    int n, h, w, c, wide;
};

/* Returns which of a pixel's 16-byte pieces is stored at position `piece`. With SWAP, the two halves of a pixel are
 * exchanged in every other pair of pixels, for the weight gradients of floats (small_conv_weight.cu). */
template <class T, int SWAP> DSC_MMA int small_piece(int piece, int place) {
    return SWAP && sizeof(T) == 4 ? piece ^ (place & 2) : piece;
}

/* Copies 16 channels of the pixels of S, tile after tile. Values that do not change from tile to tile are computed
 * once: the offsets of the thread's 16-byte pieces from the first pixel, and which columns are in the image. */
template <class T, class S, int SWAP, int THREADS> struct small_copier {
    static constexpr int PART = 16 / (int)sizeof(T), PIECES = DSC_SMALL_CHANNELS / PART;
    static constexpr int LINE = S::COLUMNS * PIECES, ALL = S::IMAGE * PIECES;
    static constexpr int COUNT = (ALL + THREADS - 1) / THREADS;

    small_images<T> x;
    int offset[COUNT];
    uint32_t inside[(COUNT + 31) / 32];
    int column0; /* the first column for which `inside` was computed */

    static __device__ __forceinline__ int place(int i) {
        return (i * THREADS + (int)threadIdx.x) / PIECES % S::COLUMNS;
    }

    __device__ __forceinline__ void aim(int column) {
        column0 = column;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            uint32_t bit = (unsigned)(column + S::column(place(i))) < (unsigned)x.w;
            inside[i / 32] = (i % 32 ? inside[i / 32] : 0) | bit << i % 32;
        }
    }

    __device__ __forceinline__ void start(const small_images<T> &images) {
        x = images;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int e = i * THREADS + (int)threadIdx.x;
            int piece = small_piece<T, SWAP>(e % PIECES, place(i));
            offset[i] = (e / LINE * x.w + S::column(place(i))) * x.c + piece * PART;
        }
        aim(-S::BORDER);
    }

    /* Copies one image. Pieces low .. high - 1 are in its rows; `origin` is the offset of the first pixel. */
    __device__ __forceinline__ void copy_image(T *to, const T *from, int origin, int low, int high) const {
        if (x.wide) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                int e = i * THREADS + (int)threadIdx.x;
                int there = e >= low && e < high && (inside[i / 32] >> i % 32 & 1u);
                if (ALL % THREADS == 0 || e < ALL)
                    dsc_async16(to + e * PART, from + (there ? origin + offset[i] : 0), there);
            }
        } else {
            for (int e = (int)threadIdx.x; e < ALL; e += THREADS) {
                int at = e / PIECES % S::COLUMNS, column = column0 + S::column(at);
                int there = e >= low && e < high && (unsigned)column < (unsigned)x.w;
                int own =
                    (e / LINE * x.w + S::column(at)) * x.c + small_piece<T, SWAP>(e % PIECES, at) * PART;
                for (int n = 0; n < PART; n++)
                    to[e * PART + n] = there ? from[origin + own + n] : T();
            }
        }
    }

    /* Starts to copy channels channel .. channel + 15 of the tile at `at`. */
    __device__ __forceinline__ void copy(T *to, const small_place &at, int channel) {
        const int row = at.row * S::STRIDE - S::BORDER, column = at.column * S::STRIDE - S::BORDER;
        const int low = max(0, -row) * LINE, high = min((int)S::ROWS, x.h - row) * LINE;
        if (column != column0)
            aim(column);
#pragma unroll
        for (int i = 0; i < S::IMAGES; i++) {
            int image = min(at.image + i, x.n - 1);
            copy_image(to + i * ALL * PART, x.data + (int64_t)image * x.h * x.w * x.c + channel,
                       (row * x.w + column) * x.c, low, image == at.image + i ? high : 0);
        }
    }
};

/* The same for three channels: the 3 columns of 3 channels of a row become 9 channels, and zeros follow. */
template <class T, class S, int SWAP, int THREADS>
DSC_MMA void small_copy_first(T *to, const small_images<T> &x, const small_place &at) {
    constexpr int COUNT = S::PIXELS * 4 / THREADS; /* quads per thread */
    static_assert(S::PIXELS * 4 % THREADS == 0, "every thread copies as much");
    static_assert(S::IMAGES == 1, "of one image");
    const T *from = x.data + (int64_t)at.image * x.h * x.w * DSC_SMALL_FIRST;
    small_quad<T> values[COUNT];
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        int e = n * THREADS + (int)threadIdx.x, pixel = e / 4;
        int quad = small_piece<T, SWAP>(e % 4, pixel % S::COLUMNS);
        int row = at.row - 1 + pixel / S::COLUMNS, column = at.column - 1 + pixel % S::COLUMNS;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int value = quad * 4 + i, seen = column + value / DSC_SMALL_FIRST;
            int inside = (unsigned)row < (unsigned)x.h && (unsigned)seen < (unsigned)x.w &&
                         value < 3 * DSC_SMALL_FIRST;
            int offset = inside ? (row * x.w + column) * DSC_SMALL_FIRST + value : 0;
            values[n].at[i] = inside ? from[offset] : T();
        }
    }
#pragma unroll
    for (int n = 0; n < COUNT; n++)
        reinterpret_cast<small_quad<T> *>(to)[n * THREADS + (int)threadIdx.x] = values[n];
}

/* Waits for the oldest of `stages` groups of copies. */
DSC_MMA void small_wait(int stages) {
    if (stages == 1)
        dsc_async_wait<0>();
    else if (stages == 2)
        dsc_async_wait<1>();
    else if (stages == 3)
        dsc_async_wait<2>();
    else
        dsc_async_wait<3>();
}

#endif

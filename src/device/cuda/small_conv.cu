/* Convolutions with 3x3 taps and few channels: the forward pass and the gradient of the data.
 *
 * A block computes 16 or 32 channels of one tile of output after the other. Its weights stay in shared memory; tiles of
 * x, 16 channels at a time, pass through a ring of buffers. A warp computes 16 channels of a strip: 4 rows of 16 pixels
 * (8 pixels of each of two images if images are 8 wide). It goes down the rows of x and multiplies what it has read for
 * all outputs that use it through one column of taps, so it reads a third of what nine separate products would read.
 *
 * Elements are ordered so that lanes access 4 of them at once: channels 4t .. 4t+3 of 16 are lane t's terms of two
 * products of 8 (tf32) or one of 16 (half), in x and in the weights; and the 16 output channels of a strip are
 * distributed over two fragments such that 4t .. 4t+3 are lane t's. */
#include "device/cuda/small_conv.cuh"

/* ---- shapes ---- */

/* A block has STRIPS x GROUPS x SLICES warps: strips of the tile, groups of 16 output channels, and slices of the input
 * channels, whose sums are added up at the end. */
template <class T_, int WIDTH, int STRIPS_, int GROUPS_, int SLICES_, int STRIDE, int FIRST>
struct conv_shape {
    typedef T_ T;
    static constexpr int STRIPS = STRIPS_, GROUPS = GROUPS_, SLICES = SLICES_;
    static constexpr int HEIGHT = WIDTH == 32 ? STRIPS * 2 : WIDTH == 16 ? STRIPS * 4 : 8;
    static constexpr int IMAGES = WIDTH == 8 ? STRIPS : 1;
    typedef small_tile<T, WIDTH, HEIGHT, IMAGES, STRIDE, FIRST> tile;
    static constexpr int WARPS = STRIPS * GROUPS * SLICES, THREADS = 32 * WARPS;
    static constexpr int OUTPUTS = 16 * GROUPS;
    static constexpr int LINES = 3 * tile::TAPS;                       /* of 16 weights per output */
    static constexpr int CHUNK = LINES * OUTPUTS * DSC_SMALL_CHANNELS; /* weights of 16 channels */
    static constexpr int STAGE = SLICES * tile::SIZE;
    static constexpr int BLOCKS = THREADS <= 128 ? 2 : 1; /* per multiprocessor */
    /* The distance from the first 8 pixels of a strip's row to the other 8. */
    static constexpr int OTHERS = (WIDTH == 8 ? tile::IMAGE : 8) * DSC_SMALL_CHANNELS;
    static constexpr int GATHER = SLICES > 1 ? STRIPS *GROUPS * 32 * DSC_SMALL_ROWS * 8 : 0; /* floats */

    static constexpr size_t bytes(int chunks, int stages) {
        return GATHER * sizeof(float) + ((size_t)chunks * CHUNK + (size_t)stages * STAGE) * sizeof(T);
    }
};

/* How a launch divides its work. */
struct conv_plan {
    small_cut cut;
    int tiles, each; /* in all; per block */
    int chunks, stages;
};

/* The part of a block's work that a warp does. */
struct conv_warp {
    int lane, strip, group, slice;
};

template <class S> DSC_MMA conv_warp conv_find_warp(void) {
    int warp = (int)threadIdx.x / 32;
    conv_warp w = {dsc_lane(), warp % S::STRIPS, warp / S::STRIPS % S::GROUPS, warp / S::STRIPS / S::GROUPS};
    return w;
}

/* Returns the first row, column and image of a strip of output within its tile. */
template <class S> DSC_MMA small_place conv_find_strip(int strip) {
    small_place at;
    at.row = (S::tile::WIDTH == 16 ? strip : strip / 2) * DSC_SMALL_ROWS;
    at.column = S::tile::WIDTH == 32 ? strip % 2 * 16 : 0;
    at.image = 0;
    if (S::tile::WIDTH == 8) {
        at.row = strip % 2 * DSC_SMALL_ROWS;
        at.image = strip / 2 * 2;
    }
    return at;
}

/* ---- weights ---- */

/* Returns the place of output channel k of 16: first the columns of one fragment, then those of the other. */
DSC_MMA int conv_output_at(int k) {
    return (k & 2) * 4 + (k >> 2) * 2 + (k & 1);
}

/* Rounds floats to tf32, and leaves halves as they are. */
DSC_MMA float conv_rounded(float x) {
    return __uint_as_float(dsc_tf32(x));
}

DSC_MMA dsc_half_bf16 conv_rounded(dsc_half_bf16 x) {
    return x;
}

DSC_MMA dsc_half_f16 conv_rounded(dsc_half_f16 x) {
    return x;
}

template <class T> DSC_MMA small_quad<T> conv_load_quad(const T *from, int wide) {
    small_quad<T> q;
    if (wide)
        return *reinterpret_cast<const small_quad<T> *>(from);
#pragma unroll
    for (int i = 0; i < 4; i++)
        q.at[i] = from[i];
    return q;
}

/* The number of quads that a thread loads at once: its part of 32 channels. */
template <class S> struct conv_batch {
    static constexpr int COUNT = 2 * S::CHUNK / 4 / S::THREADS;
    static_assert(2 * S::CHUNK / 4 % S::THREADS == 0, "every thread loads as much");
};

/* Loads the weights to to[chunk][tap][output][16 channels]. */
template <class S> DSC_MMA void conv_load_weights(typename S::T *to, const dsc_small_conv &conv, int first) {
    typedef typename S::T T;
    constexpr int COUNT = conv_batch<S>::COUNT;
    const int end = conv.c / 16 * S::CHUNK / 4;
    for (int start = (int)threadIdx.x; start < end; start += COUNT * S::THREADS) {
        small_quad<T> quads[COUNT];
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            int e = start + n * S::THREADS, line = e / 4 / S::OUTPUTS;
            int at = ((first + e / 4 % S::OUTPUTS) * 9 + line % 9) * conv.c + line / 9 * 16 + e % 4 * 4;
            if (e < end)
                quads[n] = conv_load_quad((const T *)conv.weights + at, conv.wide_w);
        }
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            int e = start + n * S::THREADS, line = e / 4 / S::OUTPUTS, output = e / 4 % S::OUTPUTS;
            int row = line * S::OUTPUTS + output / 16 * 16 + conv_output_at(output % 16);
            if (e >= end)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                quads[n].at[i] = conv_rounded(quads[n].at[i]);
            *reinterpret_cast<small_quad<T> *>(to + row * 16 + e % 4 * 4) = quads[n];
        }
    }
}

/* The same from weights [c,3,3,k]; a quad is four outputs. */
template <class S> DSC_MMA void conv_load_turned(typename S::T *to, const dsc_small_conv &conv, int first) {
    typedef typename S::T T;
    constexpr int COUNT = conv_batch<S>::COUNT, QUADS = S::OUTPUTS / 4;
    const int end = conv.c / 16 * S::CHUNK / 4;
    for (int start = (int)threadIdx.x; start < end; start += COUNT * S::THREADS) {
        small_quad<T> quads[COUNT];
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            int e = start + n * S::THREADS, line = e / 16 / QUADS, channel = line / 9 * 16 + e % 16;
            int at = (channel * 9 + 8 - line % 9) * conv.k + first + e / 16 % QUADS * 4;
            if (e < end)
                quads[n] = conv_load_quad((const T *)conv.weights + at, conv.wide_w);
        }
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            int e = start + n * S::THREADS, line = e / 16 / QUADS, output = e / 16 % QUADS * 4;
            T *rows = to + (line * S::OUTPUTS + output / 16 * 16) * 16 + e % 16;
            if (e >= end)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                rows[conv_output_at(output % 16 + i) * 16] = conv_rounded(quads[n].at[i]);
        }
    }
}

/* The same for three input channels: to[row of taps][output][3 columns x 3 channels, then zeros]. */
template <class S> DSC_MMA void conv_load_first(typename S::T *to, const dsc_small_conv &conv, int first) {
    typedef typename S::T T;
    const T *from = (const T *)conv.weights;
#pragma unroll
    for (int e = (int)threadIdx.x; e < 3 * S::OUTPUTS * 16; e += S::THREADS) {
        int value = e % 16, output = e / 16 % S::OUTPUTS, line = e / 16 / S::OUTPUTS;
        int row = line * S::OUTPUTS + output / 16 * 16 + conv_output_at(output % 16);
        int at = (first + output) * 27 + line * 9 + value;
        to[row * 16 + value] = value < 9 ? conv_rounded(from[at]) : T();
    }
}

/* ---- products ---- */

/* A lane's four channels of one pixel or output. */
template <class T> struct conv_terms {
    static constexpr int STEPS = 1; /* the number of products of which they are terms */
    uint32_t at[2];
};

template <> struct conv_terms<float> {
    static constexpr int STEPS = 2;
    uint32_t at[4];
};

template <class T> DSC_MMA conv_terms<T> conv_read(const T *from) {
    uint2 pairs = *reinterpret_cast<const uint2 *>(from);
    conv_terms<T> terms = {{pairs.x, pairs.y}};
    return terms;
}

DSC_MMA conv_terms<float> conv_read(const float *from) {
    uint4 all = *reinterpret_cast<const uint4 *>(from);
    conv_terms<float> terms = {{all.x, all.y, all.z, all.w}};
    return terms;
}

DSC_MMA void conv_round(conv_terms<float> &x) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        x.at[i] = dsc_tf32(__uint_as_float(x.at[i]));
}

template <class T> DSC_MMA void conv_round(conv_terms<T> &) {
}

DSC_MMA void conv_mma(float, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_tf32(c, a, b);
}

DSC_MMA void conv_mma(dsc_half_bf16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_bf16(c, a, b);
}

DSC_MMA void conv_mma(dsc_half_f16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_f16(c, a, b);
}

/* The sums of a strip: for each row, two fragments of 8 output channels. */
typedef float conv_sums[DSC_SMALL_ROWS][2][4];

/* Multiplies one row of x by one column of taps, for all rows of output that use it. */
template <class S>
DSC_MMA void conv_row(conv_sums &sum, int line, const typename S::T *x,
                      const conv_terms<typename S::T> (&b)[3][2]) {
    typedef typename S::T T;
    conv_terms<T> low = conv_read(x), high = conv_read(x + S::OTHERS);
    conv_round(low);
    conv_round(high);
#pragma unroll
    for (int s = 0; s < conv_terms<T>::STEPS; s++) {
        const uint32_t a[4] = {low.at[2 * s], high.at[2 * s], low.at[2 * s + 1], high.at[2 * s + 1]};
#pragma unroll
        for (int ky = 0; ky < 3; ky++) {
            const int row = (line - ky) / S::tile::STRIDE;
            if (line < ky || (line - ky) % S::tile::STRIDE != 0 || row >= DSC_SMALL_ROWS)
                continue;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t both[2] = {b[ky][j].at[2 * s], b[ky][j].at[2 * s + 1]};
                conv_mma(T(), sum[row][j], a, both);
            }
        }
    }
}

/* Adds the products of 16 input channels. x: the lane's channels in the first pixel of the strip; weights: the lane's
 * of the group. */
template <class S>
DSC_MMA void conv_multiply(conv_sums &sum, const typename S::T *x, const typename S::T *weights) {
    typedef typename S::tile tile;
    constexpr int LINES = tile::STRIDE * (DSC_SMALL_ROWS - 1) + 3;
#pragma unroll
    for (int kx = 0; kx < tile::TAPS; kx++) {
        conv_terms<typename S::T> b[3][2];
#pragma unroll
        for (int ky = 0; ky < 3; ky++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                b[ky][j] = conv_read(weights + ((ky * tile::TAPS + kx) * S::OUTPUTS + j * 8) * 16);
#pragma unroll
        for (int line = 0; line < LINES; line++)
            conv_row<S>(sum, line, x + (line * tile::COLUMNS + tile::tap(kx)) * 16, b);
    }
}

DSC_MMA void conv_clear(conv_sums &sum) {
#pragma unroll
    for (int n = 0; n < DSC_SMALL_ROWS * 8; n++)
        sum[n / 8][n / 4 % 2][n % 4] = 0;
}

/* ---- results ---- */

/* Adds the sums of the other slices to those of slice 0, in order. */
template <class S> DSC_MMA void conv_gather(float *shared, const conv_warp &w, conv_sums &sum) {
    constexpr int COUNT = DSC_SMALL_ROWS * 8;
    float *mine = shared + (w.strip * S::GROUPS + w.group) * COUNT * 32 + w.lane;
    for (int slice = 1; slice < S::SLICES; slice++) {
        if (w.slice == slice)
#pragma unroll
            for (int n = 0; n < COUNT; n++)
                mine[n * 32] = sum[n / 8][n / 4 % 2][n % 4];
        __syncthreads();
        if (w.slice == 0)
#pragma unroll
            for (int n = 0; n < COUNT; n++)
                sum[n / 8][n / 4 % 2][n % 4] += mine[n * 32];
        __syncthreads();
    }
}

template <class T> DSC_MMA void conv_store_quad(T *to, float (&value)[4], int wide, int add) {
    small_quad<T> q;
    if (add) {
        if (wide)
            q = *reinterpret_cast<const small_quad<T> *>(to);
#pragma unroll
        for (int i = 0; i < 4; i++)
            value[i] += dsc_half_value(wide ? q.at[i] : to[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        small_set(q.at[i], value[i]);
    if (wide) {
        *reinterpret_cast<small_quad<T> *>(to) = q;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = q.at[i];
    }
}

/* Stores a strip. at: its first row, column and image; channel: the first of the lane's four. */
template <class S>
DSC_MMA void conv_store(const dsc_small_conv &conv, const small_place &at, int channel, int lane,
                        const conv_sums &sum) {
    typedef typename S::T T;
    float bias[4] = {0, 0, 0, 0};
    if (conv.bias)
#pragma unroll
        for (int i = 0; i < 4; i++)
            bias[i] = conv.bias[channel + i];
#pragma unroll
    for (int high = 0; high < 2; high++) {
        int column = at.column + lane / 4 + (S::tile::WIDTH == 8 ? 0 : high * 8);
        int image = at.image + (S::tile::WIDTH == 8 ? high : 0);
        if (column >= conv.ow || image >= conv.n)
            continue;
        T *to = (T *)conv.y + (((int64_t)image * conv.oh + at.row) * conv.ow + column) * conv.k + channel;
#pragma unroll
        for (int r = 0; r < DSC_SMALL_ROWS; r++) {
            float value[4];
            if (at.row + r >= conv.oh)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                value[i] = sum[r][i / 2][2 * high + i % 2] + bias[i];
            conv_store_quad(to + (int64_t)r * conv.ow * conv.k, value, conv.wide_y, conv.add);
        }
    }
}

/* ---- the kernel ---- */

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    conv_kernel(const __grid_constant__ dsc_small_conv conv, const __grid_constant__ conv_plan plan) {
    typedef typename S::T T;
    typedef typename S::tile tile;
    DSC_SHARED(float, gather);
    T *weights = reinterpret_cast<T *>(gather + S::GATHER), *ring = weights + plan.chunks * S::CHUNK;
    const small_images<T> x = {(const T *)conv.x, conv.n, conv.h, conv.w, conv.c, conv.wide_x};
    const conv_warp w = conv_find_warp<S>();
    const small_place strip = conv_find_strip<S>(w.strip);
    const int first_output = (int)blockIdx.y * S::OUTPUTS, parts = plan.chunks / S::SLICES;
    const int first = (int)blockIdx.x * plan.each, tiles = min(plan.each, plan.tiles - first);
    const int g = w.lane / 4, t = w.lane % 4;
    const int x_at =
        w.slice * tile::SIZE + t * 4 +
        (strip.image * tile::IMAGE + strip.row * tile::STRIDE * tile::COLUMNS + strip.column + g) * 16;
    const T *weights_at = weights + (w.group * 16 + g) * 16 + t * 4;
    small_copier<T, tile, 0, S::THREADS> copier;
    conv_sums sum;

    auto copy = [&](int n) {
        T *to = ring + n % plan.stages * S::STAGE;
        if (n < tiles * parts) {
            small_place at = small_find<tile>(plan.cut, first + n / parts);
            if constexpr (tile::FIRST)
                small_copy_first<T, tile, 0, S::THREADS>(to, x, at);
            else
#pragma unroll
                for (int slice = 0; slice < S::SLICES; slice++)
                    copier.copy(to + slice * tile::SIZE, at, (n % parts * S::SLICES + slice) * 16);
        }
        dsc_async_commit();
    };

    if constexpr (!tile::FIRST)
        copier.start(x);
    for (int n = 0; n < plan.stages; n++)
        copy(n);
    if constexpr (tile::FIRST)
        conv_load_first<S>(weights, conv, first_output);
    else if (conv.turned)
        conv_load_turned<S>(weights, conv, first_output);
    else
        conv_load_weights<S>(weights, conv, first_output);
    conv_clear(sum);
    for (int n = 0; n < tiles * parts; n++) {
        small_wait(plan.stages);
        __syncthreads();
        conv_multiply<S>(sum, ring + n % plan.stages * S::STAGE + x_at,
                         weights_at + (n % parts * S::SLICES + w.slice) * S::CHUNK);
        __syncthreads(); /* all warps are done with the buffer that is filled next */
        copy(n + plan.stages);
        if (n % parts < parts - 1)
            continue;
        small_place at = small_find<tile>(plan.cut, first + n / parts);
        at.image += strip.image, at.row += strip.row, at.column += strip.column;
        if (S::SLICES > 1)
            conv_gather<S>(gather, w, sum);
        if (w.slice == 0)
            conv_store<S>(conv, at, first_output + w.group * 16 + t * 4, w.lane, sum);
        conv_clear(sum);
    }
    dsc_async_wait<0>();
}

/* ---- launches ---- */

enum { CONV_STAGES = 3 };

static int conv_chunks(const dsc_small_conv *conv) {
    return (conv->c + 15) / 16;
}

template <class S> static conv_plan conv_make_plan(const dsc_small_conv *conv, int multiprocessors) {
    conv_plan plan;
    plan.cut = small_cut_of<typename S::tile>(conv->n, conv->oh, conv->ow);
    plan.tiles = small_cut_count(plan.cut);
    plan.chunks = conv_chunks(conv);
    size_t alone = S::bytes(plan.chunks, 2) + 1024; /* the system takes 1 KiB per block */
    int fit = S::BLOCKS == 2 && 2 * alone <= conv->shared + 1024 ? 2 : 1;
    int blocks = max(1, fit * multiprocessors / (conv->k / S::OUTPUTS));
    plan.each = (plan.tiles + blocks - 1) / blocks;
    size_t limit = fit == 2 ? (conv->shared - 1024) / 2 : conv->shared;
    plan.stages = min((int)CONV_STAGES, plan.each * plan.chunks / S::SLICES);
    while (plan.stages > 1 && S::bytes(plan.chunks, plan.stages) > limit)
        plan.stages--;
    return plan;
}

/* Sets *least to the shared memory that a block needs at least. If `at` is NULL, does nothing else. */
template <class S>
static cudaError_t conv_launch(const dsc_cuda_launch *at, const dsc_small_conv *conv, size_t *least) {
    *least = S::bytes(conv_chunks(conv), 1);
    if (!at)
        return cudaSuccess;
    conv_plan plan = conv_make_plan<S>(conv, at->multiprocessors);
    size_t bytes = S::bytes(plan.chunks, plan.stages);
    cudaError_t error = cudaFuncSetAttribute((const void *)conv_kernel<S>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess)
        return error;
    dim3 grid((unsigned)((plan.tiles + plan.each - 1) / plan.each), (unsigned)(conv->k / S::OUTPUTS));
    DSC_LAUNCH((conv_kernel<S>), grid, S::THREADS, bytes, at->stream)(*conv, plan);
    return cudaGetLastError();
}

template <class T, int STRIDE>
static cudaError_t conv_choose(const dsc_cuda_launch *at, const dsc_small_conv *conv, size_t *least) {
    int pairs = conv->k % 32 == 0;
    if (conv->ow > 16)
        return pairs ? conv_launch<conv_shape<T, 32, 4, 2, 1, STRIDE, 0>>(at, conv, least)
                     : conv_launch<conv_shape<T, 32, 4, 1, 1, STRIDE, 0>>(at, conv, least);
    if (conv->ow > 8 && pairs)
        return conv_launch<conv_shape<T, 16, 4, 2, 1, STRIDE, 0>>(at, conv, least);
    if (pairs && conv->c % 32 == 0)
        return conv_launch<conv_shape<T, 8, 2, 2, 2, STRIDE, 0>>(at, conv, least);
    return conv_launch<conv_shape<T, 8, 4, 1, 1, STRIDE, 0>>(at, conv, least);
}

template <class T>
static cudaError_t conv_choose_type(const dsc_cuda_launch *at, const dsc_small_conv *conv, size_t *least) {
    if (conv->c == DSC_SMALL_FIRST)
        return conv_launch<conv_shape<T, 32, 4, 1, 1, 1, 1>>(at, conv, least);
    return conv->stride == 1 ? conv_choose<T, 1>(at, conv, least) : conv_choose<T, 2>(at, conv, least);
}

static cudaError_t conv_any(const dsc_cuda_launch *at, const dsc_small_conv *conv, size_t *least) {
    switch (conv->type) {
    case DSC_SMALL_F32:
        return conv_choose_type<float>(at, conv, least);
    case DSC_SMALL_BF16:
        return conv_choose_type<dsc_half_bf16>(at, conv, least);
    default:
        return conv_choose_type<dsc_half_f16>(at, conv, least);
    }
}

extern "C" size_t dsc_cuda_small_conv_shared(const dsc_small_conv *conv) {
    size_t least = 0;
    return conv_any(NULL, conv, &least) == cudaSuccess ? least : SIZE_MAX;
}

extern "C" cudaError_t dsc_cuda_launch_small_conv(const dsc_cuda_launch *at, const dsc_small_conv *conv) {
    size_t least;
    return conv_any(at, conv, &least);
}

/* Gradients of the weights of convolutions with 3x3 taps and few channels.
 *
 * dw[k][u][v][c] = sum over images, rows i, columns j of dy[i][j][k] x[i stride + u - 1][j stride + v - 1][c]
 *
 * A block processes 16 output channels (its "rows"), 16 input channels, and a share of the tiles of output; x and dy of
 * one tile after the other pass through a ring of buffers in shared memory. A warp holds all 16 x 9 x 16 sums of its
 * part of the tiles: strips of 8 columns and 4 rows, where the 8 columns are the terms of one product. It goes down the
 * rows of x and multiplies what it reads by all rows of dy that use it. At the end the block adds up the sums of its
 * warps and writes them to `partial`; a second kernel adds up the blocks, in order.
 *
 * All products are in tf32, which represents halves exactly.
 *
 * Lane (g,t) takes channels 2g and 2g+1 of pixels t and t+4. Eight channels of floats are one half of a pixel's 64
 * bytes. In every other pair of pixels the two halves are exchanged, so that those of four pixels lie in different
 * banks. */
#include "device/cuda/small_conv.cuh"

/* ---- shapes ---- */

template <class T_, int WIDTH, int STRIDE, int FIRST> struct weight_shape {
    typedef T_ T;
    static constexpr int WARPS = 8, THREADS = 32 * WARPS;
    static constexpr int ACROSS = WIDTH / 8; /* strips side by side in a tile */
    static constexpr int HEIGHT = WIDTH == 16 ? 16 : 8, DOWN = HEIGHT / DSC_SMALL_ROWS;
    static constexpr int IMAGES = WARPS / ACROSS / DOWN;
    static constexpr int SWAP = sizeof(T) == 4;
    typedef small_tile<T, WIDTH, HEIGHT, IMAGES, STRIDE, FIRST> tile;
    typedef small_outputs<WIDTH, HEIGHT, IMAGES> outputs;
    static constexpr int STAGE = tile::SIZE + outputs::SIZE;
    static constexpr int QUADS = 6 * tile::TAPS; /* quads of sums per lane */
    static constexpr size_t GATHER = (size_t)WARPS * QUADS * 32 * sizeof(float4);

    static constexpr size_t bytes(int stages) {
        return (size_t)stages * STAGE * sizeof(T) > GATHER ? (size_t)stages * STAGE * sizeof(T) : GATHER;
    }
};

/* How a launch divides its work among blocks (share, group), where a group is 16 x 16 channels. */
struct weight_plan {
    small_cut cut;
    int tiles, each; /* in all; per share */
    int shares, groups, stages;
};

/* ---- products ---- */

/* Channels 2g and 2g+1 of a pixel, as tf32. */
struct weight_pair {
    uint32_t at[2];
};

DSC_MMA weight_pair weight_read(const float *from) {
    float2 both = *reinterpret_cast<const float2 *>(from);
    weight_pair pair = {{dsc_tf32(both.x), dsc_tf32(both.y)}};
    return pair;
}

DSC_MMA weight_pair weight_read(const dsc_half_bf16 *from) {
    uint32_t both = *reinterpret_cast<const uint32_t *>(from);
    weight_pair pair = {{both << 16, both & 0xFFFF0000u}};
    return pair;
}

DSC_MMA weight_pair weight_read(const dsc_half_f16 *from) {
    uint32_t both = *reinterpret_cast<const uint32_t *>(from);
    dsc_half_f16 low = {(uint16_t)both}, high = {(uint16_t)(both >> 16)};
    weight_pair pair = {{__float_as_uint(dsc_half_value(low)), __float_as_uint(dsc_half_value(high))}};
    return pair;
}

/* Returns the offset of the channels of lane (g,t) in the pixel at `place` of a row. */
template <class S> DSC_MMA int weight_channels_at(int place, int g) {
    return S::SWAP ? ((g >> 2) ^ (place >> 1 & 1)) * 8 + (g & 3) * 2 : g * 2;
}

/* Sums [row of taps][column of taps][even or odd input channels]. */
template <class S> using weight_sums = float[3][S::tile::TAPS][2][4];

/* Adds the products of one strip. x, dy: its first pixel. */
template <class S>
DSC_MMA void weight_multiply(weight_sums<S> &sum, const typename S::T *x, const typename S::T *dy) {
    typedef typename S::tile tile;
    const int g = dsc_lane() / 4, t = dsc_lane() % 4;
    const int dy_at = t * 16 + weight_channels_at<S>(t, g);
    uint32_t a[DSC_SMALL_ROWS][4];
#pragma unroll
    for (int line = 0; line < tile::STRIDE * (DSC_SMALL_ROWS - 1) + 3; line++) {
        if (line % tile::STRIDE == 0 && line / tile::STRIDE < DSC_SMALL_ROWS) {
            const int row = line / tile::STRIDE;
            weight_pair near = weight_read(dy + row * tile::WIDTH * 16 + dy_at);
            weight_pair far = weight_read(dy + (row * tile::WIDTH + 4) * 16 + dy_at);
            a[row][0] = near.at[0], a[row][1] = near.at[1], a[row][2] = far.at[0], a[row][3] = far.at[1];
        }
#pragma unroll
        for (int kx = 0; kx < tile::TAPS; kx++) {
            const int place = tile::tap(kx) + t;
            const typename S::T *from =
                x + (line * tile::COLUMNS + place) * 16 + weight_channels_at<S>(place, g);
            weight_pair near = weight_read(from), far = weight_read(from + 4 * 16);
#pragma unroll
            for (int ky = 0; ky < 3; ky++) {
                const int row = (line - ky) / tile::STRIDE;
                if (line < ky || (line - ky) % tile::STRIDE != 0 || row >= DSC_SMALL_ROWS)
                    continue;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t b[2] = {near.at[j], far.at[j]};
                    dsc_mma_tf32(sum[ky][kx][j], a[row], b);
                }
            }
        }
    }
}

/* ---- the sums of a block ---- */

/* Adds up the sums of the warps. Quad 2 tap + odd of lane (g,t) is output channel 2g + odd, input channels
 * 4t .. 4t+3. */
template <class S> DSC_MMA void weight_finish(float4 *shared, const weight_sums<S> &sum, float4 *partial) {
    const int lane = dsc_lane(), warp = (int)threadIdx.x / 32;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < S::QUADS; q++) {
        const float(&s)[2][4] = sum[q / 2 / S::tile::TAPS][q / 2 % S::tile::TAPS];
        const int i = q % 2 * 2;
        shared[(warp * S::QUADS + q) * 32 + lane] = make_float4(s[0][i], s[1][i], s[0][i + 1], s[1][i + 1]);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < S::QUADS * 32; e += S::THREADS) {
        float4 all = shared[e];
#pragma unroll
        for (int n = 1; n < S::WARPS; n++) {
            float4 more = shared[n * S::QUADS * 32 + e];
            all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
        }
        partial[e] = all;
    }
}

/* ---- kernels ---- */

template <class S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    weight_kernel(const __grid_constant__ dsc_small_weight conv, const __grid_constant__ weight_plan plan) {
    typedef typename S::T T;
    typedef typename S::tile tile;
    DSC_SHARED(T, ring);
    const small_images<T> x = {(const T *)conv.x, conv.n, conv.h, conv.w, conv.c, conv.wide_x};
    const small_images<T> dy = {(const T *)conv.dy, conv.n, conv.oh, conv.ow, conv.k, conv.wide_dy};
    const int group = (int)blockIdx.x % plan.groups, share = (int)blockIdx.x / plan.groups;
    const int k0 = group % (conv.k / 16) * 16, c0 = group / (conv.k / 16) * 16;
    const int first = share * plan.each, tiles = min(plan.each, plan.tiles - first);
    const int warp = (int)threadIdx.x / 32, column = warp % S::ACROSS * 8;
    const int row = warp / S::ACROSS % S::DOWN * DSC_SMALL_ROWS, image = warp / S::ACROSS / S::DOWN;
    const int x_at = (image * tile::IMAGE + row * tile::STRIDE * tile::COLUMNS + column) * 16;
    const int dy_at = tile::SIZE + ((image * S::HEIGHT + row) * tile::WIDTH + column) * 16;
    small_copier<T, tile, S::SWAP, S::THREADS> copier;
    small_copier<T, typename S::outputs, S::SWAP, S::THREADS> dy_copier;
    weight_sums<S> sum;

    auto copy = [&](int n) {
        T *to = ring + n % plan.stages * S::STAGE;
        if (n < tiles) {
            small_place at = small_find<tile>(plan.cut, first + n);
            if constexpr (tile::FIRST)
                small_copy_first<T, tile, S::SWAP, S::THREADS>(to, x, at);
            else
                copier.copy(to, at, c0);
            dy_copier.copy(to + tile::SIZE, at, k0);
        }
        dsc_async_commit();
    };

#pragma unroll
    for (int n = 0; n < S::QUADS * 4; n++)
        sum[n / 8 / tile::TAPS][n / 8 % tile::TAPS][n / 4 % 2][n % 4] = 0;
    if constexpr (!tile::FIRST)
        copier.start(x);
    dy_copier.start(dy);
    for (int n = 0; n < plan.stages; n++)
        copy(n);
    for (int n = 0; n < tiles; n++) {
        const T *from = ring + n % plan.stages * S::STAGE;
        small_wait(plan.stages);
        __syncthreads();
        weight_multiply<S>(sum, from + x_at, from + dy_at);
        __syncthreads(); /* all warps are done with the buffer that is filled next */
        copy(n + plan.stages);
    }
    dsc_async_wait<0>();
    weight_finish<S>(reinterpret_cast<float4 *>(ring), sum,
                     reinterpret_cast<float4 *>(conv.partial) + (int64_t)blockIdx.x * S::QUADS * 32);
}

enum { WEIGHT_COLUMNS = 32, WEIGHT_LANES = 16 };

/* Writes quad `e` of a group: four input channels, or, if there are three, four of the 9 columns x channels. */
DSC_MMA void weight_put(const dsc_small_weight &conv, int group, int e, const float4 &sum) {
    const int quad = e / 32, g = e % 32 / 4, t = e % 4, k = group % (conv.k / 16) * 16 + 2 * g + quad % 2;
    const int taps = conv.c == DSC_SMALL_FIRST ? 3 : 9, width = conv.c == DSC_SMALL_FIRST ? 9 : conv.c;
    const int column = group / (conv.k / 16) * 16 + t * 4;
    float *to = conv.dw + (k * taps + quad / 2) * width + column;
    const float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (column + i < width)
            to[i] = conv.add ? to[i] + value[i] : value[i];
}

/* Adds up the shares. A block has 32 quads, with 16 threads for each. */
template <int QUADS>
static __global__ void __launch_bounds__(WEIGHT_COLUMNS *WEIGHT_LANES)
    weight_add_kernel(const __grid_constant__ dsc_small_weight conv,
                      const __grid_constant__ weight_plan plan) {
    __shared__ float4 sums[WEIGHT_LANES][WEIGHT_COLUMNS];
    const int column = (int)threadIdx.x % WEIGHT_COLUMNS, lane = (int)threadIdx.x / WEIGHT_COLUMNS;
    const int e = (int)blockIdx.x * WEIGHT_COLUMNS + column; /* counts the quads of all groups */
    const int64_t all = (int64_t)plan.groups * QUADS * 32;
    const float4 *from = reinterpret_cast<const float4 *>(conv.partial) + e;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int share = lane; share < plan.shares; share += WEIGHT_LANES) {
        float4 more = from[share * all];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    sums[lane][column] = sum;
    __syncthreads();
    if (lane > 0)
        return;
#pragma unroll
    for (int n = 1; n < WEIGHT_LANES; n++) {
        float4 more = sums[n][column];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    weight_put(conv, e / (QUADS * 32), e % (QUADS * 32), sum);
}

/* ---- launches ---- */

/* Each tile adds 4 products to a sum. So that the truncation errors of the tensor cores do not add up, a share is at
 * most WEIGHT_EACH tiles, unless that would take more than WEIGHT_BLOCKS blocks per multiprocessor. */
enum { WEIGHT_STAGES = 4, WEIGHT_EACH = 64, WEIGHT_BLOCKS = 8 };

static int weight_tiles_each(int tiles, int blocks, int groups) {
    int shares = max(1, blocks / groups);
    return (tiles - 1) / shares + 1;
}

template <class S> static weight_plan weight_make_plan(const dsc_small_weight *conv, int multiprocessors) {
    weight_plan plan;
    plan.cut = small_cut_of<typename S::tile>(conv->n, conv->oh, conv->ow);
    plan.tiles = small_cut_count(plan.cut);
    plan.groups = conv->k / 16 * ((conv->c + 15) / 16);
    int once = weight_tiles_each(plan.tiles, multiprocessors, plan.groups);
    int least = weight_tiles_each(plan.tiles, WEIGHT_BLOCKS * multiprocessors, plan.groups);
    plan.each = max(least, min(once, (int)WEIGHT_EACH));
    plan.shares = (plan.tiles + plan.each - 1) / plan.each;
    plan.stages = min((int)WEIGHT_STAGES, plan.each);
    while (plan.stages > 1 && S::bytes(plan.stages) > conv->shared)
        plan.stages--;
    return plan;
}

/* A request to a shape: to launch its kernels, or (if `at` is NULL) only to say how much memory they need. */
struct weight_call {
    const dsc_cuda_launch *at;
    const dsc_small_weight *conv;
    int multiprocessors;
    size_t shared, workspace;
};

template <class S> static cudaError_t weight_launch(weight_call *call) {
    weight_plan plan = weight_make_plan<S>(call->conv, call->multiprocessors);
    size_t bytes = S::bytes(plan.stages);
    call->shared = S::bytes(1);
    call->workspace = (size_t)plan.shares * plan.groups * S::QUADS * 32 * sizeof(float4);
    if (!call->at)
        return cudaSuccess;
    cudaError_t error = cudaFuncSetAttribute((const void *)weight_kernel<S>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess)
        return error;
    DSC_LAUNCH((weight_kernel<S>), (unsigned)(plan.shares * plan.groups), S::THREADS, bytes, call->at->stream)
    (*call->conv, plan);
    DSC_LAUNCH((weight_add_kernel<S::QUADS>), (unsigned)(plan.groups * S::QUADS),
               WEIGHT_COLUMNS * WEIGHT_LANES, 0, call->at->stream)
    (*call->conv, plan);
    return cudaGetLastError();
}

template <class T, int STRIDE> static cudaError_t weight_choose(weight_call *call) {
    if (call->conv->ow > 16)
        return weight_launch<weight_shape<T, 32, STRIDE, 0>>(call);
    return call->conv->ow > 8 ? weight_launch<weight_shape<T, 16, STRIDE, 0>>(call)
                              : weight_launch<weight_shape<T, 8, STRIDE, 0>>(call);
}

template <class T> static cudaError_t weight_choose_type(weight_call *call) {
    if (call->conv->c == DSC_SMALL_FIRST)
        return weight_launch<weight_shape<T, 32, 1, 1>>(call);
    return call->conv->stride == 1 ? weight_choose<T, 1>(call) : weight_choose<T, 2>(call);
}

static cudaError_t weight_any(weight_call *call) {
    switch (call->conv->type) {
    case DSC_SMALL_F32:
        return weight_choose_type<float>(call);
    case DSC_SMALL_BF16:
        return weight_choose_type<dsc_half_bf16>(call);
    default:
        return weight_choose_type<dsc_half_f16>(call);
    }
}

extern "C" size_t dsc_cuda_small_weight_shared(const dsc_small_weight *conv) {
    weight_call call = {NULL, conv, 1, 0, 0};
    return weight_any(&call) == cudaSuccess ? call.shared : SIZE_MAX;
}

extern "C" size_t dsc_cuda_small_weight_workspace(const dsc_small_weight *conv, int multiprocessors) {
    weight_call call = {NULL, conv, multiprocessors, 0, 0};
    return weight_any(&call) == cudaSuccess ? call.workspace : SIZE_MAX;
}

extern "C" cudaError_t dsc_cuda_launch_small_weight(const dsc_cuda_launch *at, const dsc_small_weight *conv) {
    weight_call call = {at, conv, at->multiprocessors, 0, 0};
    return weight_any(&call);
}

/* The Gram matrix of the patches of a 3x3 convolution with stride 1 and padding 1, without patches.
 *
 * The block of C for the taps T = (t,s) and T' = (t',s') of a patch is
 *   G[T,T'] = sum over v of x[v] x[v - d]',   d = T - T',   [cg,cg],
 * which depends on d alone, up to the border: for d_y = 0 taps t = 0 miss the last line and t = 2 the first,
 * for d_x = 0 the same holds for columns. So there are 13 products of cg x cg a pixel, not 45; those with
 * d_y = 0 are summed apart for first, inner and last lines, those with d_x = 0 for first, inner and last
 * columns, and a block of G is the sum of those that its taps see. Nothing is subtracted.
 *
 * A warp has 16 x 16 channels and one d_y, and walks along 8 lines at once: a step is one pixel of each line,
 * the 8 terms of a tensor-core product. The pixels of the other line (v - d for all d_x) stay in registers
 * as a window that moves with it; so a step reads one new pixel a line, and multiplies it with up to 5. The
 * lines of all images are one sequence; where v - d is in another image its line is replaced by zeros.
 *
 * Sums of a pair of channel tiles:
 *   0 to 4: d_y = 0, inner lines: first, inner, last columns of d_x = 0; d_x = 1, 2
 *   5 to 11, 12 to 18: d_y = 1, 2: first, inner, last columns of d_x = 0; d_x = -2, -1, 1, 2
 *   19 to 23, 24 to 28: d_y = 0, first and last lines */
#include "device/cuda/gram.cuh"

namespace {

enum { TILE = DSC_GRAM_CHANNELS, SLOTS = 4, STEPS = 8, HALO = 2, REACH = 2 };
enum { WARPS = 3 * SLOTS, THREADS = 32 * WARPS };
enum { LINES = DSC_GRAM_LINES, ROWS = LINES + HALO, PAD = 8, PAIR = TILE * TILE };
enum { SUMS = DSC_GRAM_MAIN + DSC_GRAM_BORDER, CLASSES = 3, EDGE = 2 * 8 * 32 };
static_assert(SLOTS * STEPS == LINES && LINES == 2 * DSC_GRAM_IMAGES, "slots are lines");

/* Elements of a line in shared memory; lanes then read from different banks. */
__host__ __device__ inline int pitch_of(int columns) {
    return (columns + 2 * REACH) * TILE + PAD;
}

/* A pixel of 8 lines, 16 channels: an A fragment, and two B fragments. */
struct pixel {
    uint32_t high[4], low[4];
};

/* This lane's lines: element 0 of its channel, in the first column of the chunk. */
template <typename T> struct lanes {
    const T *upper, *lower;

    __device__ void read(int column, T (&raw)[4]) const {
        raw[0] = upper[column * TILE];
        raw[1] = upper[column * TILE + 8];
        raw[2] = lower[column * TILE];
        raw[3] = lower[column * TILE + 8];
    }
};

template <typename T> __device__ void split(const T (&raw)[4], pixel &p) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        gram_split(raw[i], p.high[i], p.low[i]);
}

__device__ void add(float (&to)[2][4], float (&from)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[n][i] += from[n][i];
            from[n][i] = 0;
        }
}

__device__ void add_edge(float *to, float (&from)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[(n * 4 + i) * 32] += from[n][i];
            from[n][i] = 0;
        }
}

/* acc[d] += a b(x - d_x)' for all d_x; J: the step's place in the round of the window. */
template <typename T, int W, int J>
__device__ void multiply(const pixel &a, const pixel (&window)[W], float (&acc)[W][2][4]) {
    enum { LEAST = W == 5 ? -2 : 0 };
#pragma unroll
    for (int part = gram_type<T>::SPLIT ? 0 : 2; part < 3; part++)
#pragma unroll
        for (int d = 0; d < W; d++) {
            const pixel &b = window[(J - d - LEAST + W) % W];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t pair[2] = {part == 1 ? b.low[n] : b.high[n],
                                          part == 1 ? b.low[n + 2] : b.high[n + 2]};
                dsc_mma_tf32(acc[d][n], part == 0 ? a.low : a.high, pair);
            }
        }
}

/* Which columns a walk has. */
struct span {
    int columns;
    bool first, last; /* it has the image's first, last column */
};

/* What moves along: the window, and the next pixels as they are in memory. */
template <typename T, int W> struct walker {
    enum { LEAST = W == 5 ? -2 : 0, AHEAD = -LEAST, STRAIGHT = -LEAST };
    lanes<T> a, b;
    span of;
    float *edge;
    pixel window[W];
    T next_a[4], next_b[4];
    float acc[W][2][4];

    template <int J> __device__ void step(int column, float (&sum)[5][2][4]) {
        if (column >= of.columns)
            return;
        pixel mine;
        split(next_a, mine);
        split(next_b, window[(J + AHEAD) % W]);
        a.read(column + 1, next_a);
        b.read(column + 1 + AHEAD, next_b);
        bool last = of.last && column == of.columns - 1;
        if (last)
            add(sum[STRAIGHT], acc[STRAIGHT]);
        multiply<T, W, J>(mine, window, acc);
        if (J == 0 && of.first && column == 0)
            add_edge(edge, acc[STRAIGHT]);
        if (last)
            add_edge(edge + EDGE / 2, acc[STRAIGHT]);
    }

    __device__ void run(float (&sum)[5][2][4]) {
#pragma unroll
        for (int c = -REACH; c < AHEAD; c++) {
            b.read(c, next_b);
            split(next_b, window[(c + W) % W]);
        }
        a.read(0, next_a);
        b.read(AHEAD, next_b);
#pragma unroll
        for (int d = 0; d < W; d++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                acc[d][i / 4][i % 4] = 0;
        for (int column = 0; column < of.columns; column += W) {
            step<0>(column, sum);
            step<1>(column + 1, sum);
            step<2>(column + 2, sum);
            if (W == 5) {
                step<3 % W>(column + 3, sum);
                step<4 % W>(column + 4, sum);
            }
#pragma unroll
            for (int d = 0; d < W; d++)
                add(sum[d], acc[d]);
        }
    }
};

/* What a block does. */
struct job {
    int pair, part;
    int64_t tile_a, tile_b; /* first channels */
    bool border, twin;      /* twin: the tiles are one */
    int64_t first;          /* group of lines, or of images */
    int y, stages;          /* y: of the first line in its image */
};

__device__ job find_job(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan) {
    int side = (int)(p.cg / TILE), pairs = side * side, block = (int)blockIdx.x;
    job j;
    j.border = block >= pairs * plan.parts;
    if (j.border)
        block -= pairs * plan.parts;
    j.part = block / pairs;
    j.pair = block - j.part * pairs;
    j.tile_a = p.first + j.pair / side * TILE;
    j.tile_b = p.first + j.pair % side * TILE;
    j.twin = j.tile_a == j.tile_b;
    unsigned all = (unsigned)(j.border ? plan.frames : plan.groups);
    unsigned parts = (unsigned)(j.border ? plan.border : plan.parts), part = (unsigned)j.part;
    unsigned each = all / parts, rest = all - each * parts; /* the first ones have one more */
    j.first = (int64_t)each * part + min(part, rest);
    j.stages = (int)(each + (part < rest)) * plan.chunks;
    j.y = (int)(j.first * LINES % p.h);
    return j;
}

/* The line of all images' lines that is row `row` of a stage; -1: none. */
__device__ int64_t find_line(const dsc_gram_patches &p, const job &j, int64_t group, int row) {
    if (!j.border) {
        int64_t line = group * LINES + row - HALO;
        return line < p.images * p.h ? line : -1;
    }
    int mine = row - HALO;
    int64_t image = group * DSC_GRAM_IMAGES + mine % DSC_GRAM_IMAGES;
    if (mine < 0 || image >= p.images)
        return -1;
    return image * p.h + (mine < DSC_GRAM_IMAGES ? 0 : p.h - 1);
}

__device__ void copy(float *to, const float *from, int there) {
    dsc_async16(to, from, there);
}

template <typename H> __device__ void copy(H *to, const H *from, int there) {
    dsc_async8(to, from, there);
}

/* Lines of a stage to shared memory: [ROWS][columns + 4][16], zeros outside of the image's columns. */
template <typename T>
__device__ void load_tile(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, const job &j, int stage,
                          int64_t channel, T *to) {
    int64_t group = j.first + stage / plan.chunks, line_size = p.w * p.c;
    int wide = (plan.columns + 2 * REACH) * 4, step = THREADS / wide, pitch = pitch_of(plan.columns);
    int row = (int)threadIdx.x / wide, e = (int)threadIdx.x - row * wide;
    int column = stage % plan.chunks * plan.columns - REACH + (e >> 2);
    bool inside = (unsigned)column < (unsigned)p.w;
    const T *x = (const T *)p.x, *from = x + (inside ? column * p.c + channel + (e & 3) * 4 : 0);
    to += row * pitch + e * 4;
    for (row = row < step ? row : ROWS; row < ROWS; row += step, to += step * pitch) {
        int64_t line = find_line(p, j, group, row);
        bool there = inside && line >= 0;
        copy(to, there ? from + line * line_size : x, there);
    }
}

template <typename T>
__device__ void load_stage(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, const job &j,
                           int stage, T *to) {
    if (stage < j.stages) {
        load_tile(p, plan, j, stage, j.tile_a, to);
        if (!j.twin)
            load_tile(p, plan, j, stage, j.tile_b, to + ROWS * pitch_of(plan.columns));
    }
    dsc_async_commit();
}

/* One warp's lines of a stage: `tiles` has a's, then b's unless they are one; zeros: a line of them. At the
 * border, where d_y is 0, the warps of other d_y have thirds of the columns. */
template <typename T, int W>
__device__ void walk(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, const job &j, int stage,
                     const T *tiles, const T *zeros, float *edge, float (&sum)[5][2][4]) {
    int warp = (int)threadIdx.x / 32, part = warp / SLOTS, slot = warp % SLOTS, dy = j.border ? 0 : part;
    int lane = dsc_lane(), pitch = pitch_of(plan.columns), chunk = stage % plan.chunks;
    int columns = min(plan.columns, p.w - chunk * plan.columns);
    int first = j.border ? columns * part / 3 : 0, end = j.border ? columns * (part + 1) / 3 : columns;
    int in_line = (REACH + first) * TILE + (lane >> 2);
    const T *a[2], *b[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = slot * STEPS + half * 4 + (lane & 3);
        int y = (j.y + stage / plan.chunks * LINES + row) % p.h;
        bool skip_a = !j.border && dy == 0 && (y == 0 || y == p.h - 1), skip_b = !j.border && y < dy;
        const T *other = j.twin ? tiles : tiles + ROWS * pitch;
        a[half] = (skip_a ? zeros : tiles + (row + HALO) * pitch) + in_line;
        b[half] = (skip_b ? zeros : other + (row + HALO - dy) * pitch) + in_line;
    }
    walker<T, W> w;
    w.a = {a[0], a[1]};
    w.b = {b[0], b[1]};
    w.of.columns = end - first;
    w.of.first = chunk == 0 && first == 0;
    w.of.last = chunk == plan.chunks - 1 && end == columns;
    w.edge = edge + lane;
    w.run(sum);
}

/* A warp's sums: [first, inner, last column, then the other d_x][16 * 16]. */
template <int W> __device__ void put_sums(const float *edge, const float (&sum)[5][2][4], float *to) {
    enum { STRAIGHT = W == 5 ? 2 : 0 };
    int lane = dsc_lane();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *at = to + dsc_c_row(lane, i) * TILE + n * 8 + dsc_c_column(lane, i);
            at[0] = edge[(n * 4 + i) * 32 + lane];
            at[PAIR] = sum[STRAIGHT][n][i];
            at[2 * PAIR] = edge[EDGE / 2 + (n * 4 + i) * 32 + lane];
#pragma unroll
            for (int d = 0; d < W; d++)
                if (d != STRAIGHT)
                    at[(CLASSES + d - (d > STRAIGHT)) * PAIR] = sum[d][n][i];
        }
}

/* Where in a warp's slot the sums of a d_y begin. */
__device__ int sums_of(int dy) {
    return dy == 0 ? 0 : dy == 1 ? 5 : 12;
}

/* A block's sums to its part. The slots' sums are added in order, in `all`; of the border, two slots each
 * have first and last lines. */
__device__ void put_part(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, const job &j,
                         const float *edge, const float (&sum)[5][2][4], float *all) {
    enum { SLOT = DSC_GRAM_MAIN * PAIR, EACH = DSC_GRAM_BORDER / 2 };
    int warp = (int)threadIdx.x / 32, dy = warp / SLOTS, slot = warp % SLOTS;
    __syncthreads();
    if (dy == 0 || j.border)
        put_sums<3>(edge, sum, all + slot * SLOT + dy * EACH * PAIR);
    else
        put_sums<5>(edge, sum, all + slot * SLOT + sums_of(dy) * PAIR);
    __syncthreads();
    int64_t side = p.cg / TILE, pairs = side * side;
    int count = j.border ? DSC_GRAM_BORDER : DSC_GRAM_MAIN;
    float *to = plan.partial + j.part * count * pairs * PAIR + j.pair * PAIR;
    if (j.border)
        to += plan.parts * DSC_GRAM_MAIN * pairs * PAIR;
    for (int e = (int)threadIdx.x; e < count * PAIR; e += THREADS) {
        int s = e / PAIR;
        const float *at = all + (j.border ? s / EACH * 2 * SLOT + s % EACH * PAIR : s * PAIR) + e % PAIR;
        float total = 0;
        if (j.border)
            for (int i = 0; i < 6; i++)
                total += at[i / 3 * SLOT + i % 3 * EACH * PAIR];
        else
            for (int i = 0; i < SLOTS; i++)
                total += at[i * SLOT];
        to[s * pairs * PAIR + e % PAIR] = total;
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    gram_walk(const dsc_gram_patches p, const dsc_gram_shift_plan plan) {
    DSC_SHARED(float, shared);
    float *edges = shared;
    T *zeros = (T *)(edges + WARPS * EDGE);
    int pitch = pitch_of(plan.columns), warp = (int)threadIdx.x / 32;
    T *tiles = zeros + pitch + TILE + PAD; /* a walk looks one column ahead of what it needs */
    job j = find_job(p, plan);
    int stage_size = (j.twin ? 1 : 2) * ROWS * pitch;
    float *edge = edges + warp * EDGE;
    load_stage(p, plan, j, 0, tiles);
    for (int e = (int)threadIdx.x; e < WARPS * EDGE; e += THREADS)
        edges[e] = 0;
    for (int e = (int)threadIdx.x; e < pitch + TILE + PAD; e += THREADS)
        zeros[e] = T{};

    float sum[5][2][4] = {};
    for (int stage = 0; stage < j.stages; stage++) {
        dsc_async_wait<0>();
        __syncthreads();
        load_stage(p, plan, j, stage + 1, tiles + (stage + 1) % 2 * stage_size);
        const T *now = tiles + stage % 2 * stage_size;
        if (warp < SLOTS || j.border) /* d_y = 0 */
            walk<T, 3>(p, plan, j, stage, now, zeros, edge, sum);
        else
            walk<T, 5>(p, plan, j, stage, now, zeros, edge, sum);
    }

    put_part(p, plan, j, edge, sum, shared + WARPS * EDGE);
}

/* ---- from sums to the triangle ---- */

/* 1 when tap t (of a line or a column) sees this class. */
__device__ bool sees(int t, int of) {
    return !(t == 0 && of == 2) && !(t == 2 && of == 0);
}

/* G[a,b] of one pair of channels, of the sums [SUMS][stride]. */
__device__ double assemble(int a, int b, const double *sums, int stride) {
    int t = a / 3, s = a % 3, dy = t - b / 3, dx = s - b % 3;
    double total = 0;
    for (int line = 0; line < CLASSES; line++) {
        if (dy == 0 ? !sees(t, line) : line > 0)
            continue;
        int first = dy > 0 ? sums_of(dy) : line == 0 ? DSC_GRAM_MAIN : line == 1 ? 0 : DSC_GRAM_MAIN + 5;
        if (dx != 0) {
            total += sums[(first + CLASSES + (dy == 0 ? dx - 1 : dx < 0 ? dx + 2 : dx + 1)) * stride];
            continue;
        }
        for (int column = 0; column < CLASSES; column++)
            if (sees(s, column))
                total += sums[(first + column) * stride];
    }
    return total;
}

/* How a finishing block works: elements of a pair (a multiple of 4), and threads for each sum's parts. */
struct finish_shape {
    int elements, groups;
};

enum { FINISH_THREADS = 256 };

__global__ void __launch_bounds__(FINISH_THREADS)
    shift_finish(const dsc_gram_shift_plan plan, const dsc_gram_target to, int64_t cg, finish_shape shape) {
    DSC_SHARED(double, sums); /* [groups][SUMS][elements] */
    int64_t side = cg / TILE, size = side * side * PAIR, first = (int64_t)blockIdx.x * shape.elements;
    int items = SUMS * shape.elements / 4, all = SUMS * shape.elements;
    for (int e = (int)threadIdx.x; e < items * shape.groups; e += FINISH_THREADS) {
        int group = e / items, s = (e % items) / (shape.elements / 4),
            at = (e % items) % (shape.elements / 4) * 4;
        bool border = s >= DSC_GRAM_MAIN;
        int parts = border ? plan.border : plan.parts, kinds = border ? DSC_GRAM_BORDER : DSC_GRAM_MAIN;
        const float *from = plan.partial + first + at;
        from += border ? (plan.parts * DSC_GRAM_MAIN + s - DSC_GRAM_MAIN) * size : s * size;
        double total[4] = {};
#pragma unroll 4
        for (int part = group; part < parts; part += shape.groups) {
            float4 x = *(const float4 *)(from + part * kinds * size);
            total[0] += x.x;
            total[1] += x.y;
            total[2] += x.z;
            total[3] += x.w;
        }
        for (int i = 0; i < 4; i++)
            sums[group * all + s * shape.elements + at + i] = total[i];
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < all && shape.groups > 1; e += FINISH_THREADS)
        for (int group = 1; group < shape.groups; group++)
            sums[e] += sums[group * all + e];
    __syncthreads();
    for (int e = (int)threadIdx.x; e < 45 * shape.elements; e += FINISH_THREADS) {
        int taps = e / shape.elements, element = e % shape.elements, a = 0;
        while ((a + 1) * (a + 2) / 2 <= taps)
            a++;
        int b = taps - a * (a + 1) / 2;
        int at = (int)((first + element) % PAIR), pair = (int)((first + element) / PAIR), across = (int)side;
        int i = pair / across * TILE + at / TILE, k = pair % across * TILE + at % TILE;
        gram_put<float>(to, a * cg + i, b * cg + k, assemble(a, b, sums + element, shape.elements));
    }
}

/* ---- sums of x, for the column of ones ---- */

enum { ONE_LANES = FINISH_THREADS / TILE };

__device__ int class_of(int at, int size) {
    return at == 0 ? 0 : at == size - 1 ? 2 : 1;
}

/* ones[part][class of line][class of column][channel]: a block has 16 channels and a part of the pixels. */
template <typename T>
__global__ void __launch_bounds__(FINISH_THREADS)
    shift_ones(const dsc_gram_patches p, const dsc_gram_shift_plan plan) {
    __shared__ double sums[ONE_LANES][DSC_GRAM_TAPS][TILE];
    int channel = (int)threadIdx.x % TILE, mine = (int)threadIdx.x / TILE;
    int64_t tiles = p.cg / TILE, part = blockIdx.x / tiles, tile = blockIdx.x - part * tiles;
    int64_t begin = p.rows * part / plan.one_parts, end = p.rows * (part + 1) / plan.one_parts;
    const T *x = (const T *)p.x + p.first + tile * TILE + channel;
    for (int k = 0; k < DSC_GRAM_TAPS; k++)
        sums[mine][k][channel] = 0;
    for (int64_t v = begin + mine; v < end; v += ONE_LANES) {
        int64_t line = v / p.w;
        int k = class_of((int)(line % p.h), p.h) * CLASSES + class_of((int)(v - line * p.w), p.w);
        sums[mine][k][channel] += (double)dsc_half_value(x[v * p.c]);
    }
    __syncthreads();
    for (int k = mine; k < DSC_GRAM_TAPS; k += ONE_LANES) {
        double total = 0;
        for (int other = 0; other < ONE_LANES; other++)
            total += sums[other][k][channel];
        plan.ones[(part * DSC_GRAM_TAPS + k) * p.cg + tile * TILE + channel] = total;
    }
}

/* The last row: sums of the patches' columns, and the number of patches. */
__global__ void __launch_bounds__(FINISH_THREADS)
    shift_ones_finish(const dsc_gram_shift_plan plan, const dsc_gram_target to, int64_t cg, int64_t rows) {
    int64_t column = (int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x;
    if (column >= to.n)
        return;
    int tap = (int)(column / cg);
    double total = tap < DSC_GRAM_TAPS ? 0 : (double)rows;
    for (int k = 0; k < DSC_GRAM_TAPS && tap < DSC_GRAM_TAPS; k++)
        if (sees(tap / 3, k / CLASSES) && sees(tap % 3, k % CLASSES))
            for (int part = 0; part < plan.one_parts; part++)
                total += plan.ones[((int64_t)part * DSC_GRAM_TAPS + k) * cg + column % cg];
    gram_put<float>(to, to.n - 1, column, total);
}

template <typename T>
cudaError_t launch_sums(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                        const dsc_gram_shift_plan *plan) {
    int64_t side = p->cg / TILE, blocks = side * side * (plan->parts + plan->border);
    cudaError_t error = gram_allow_shared((const void *)gram_walk<T>, plan->shared);
    if (error != cudaSuccess)
        return error;
    DSC_LAUNCH((gram_walk<T>), dim3((unsigned)blocks), dim3(THREADS), plan->shared, at->stream)(*p, *plan);
    if (p->n > p->width)
        DSC_LAUNCH((shift_ones<T>), dim3((unsigned)(side * plan->one_parts)), dim3(FINISH_THREADS), 0,
                   at->stream)
    (*p, *plan);
    return cudaGetLastError();
}

} // namespace

extern "C" size_t dsc_cuda_gram_shift_shared(dsc_dtype dtype, int columns, int pairs) {
    size_t element = dtype == DSC_F32 ? 4 : 2, pitch = (size_t)pitch_of(columns);
    size_t zeros = (pitch + TILE + PAD) * element, stages = 2 * (pairs > 1 ? 2 : 1) * ROWS * pitch * element;
    size_t sums = (size_t)SLOTS * DSC_GRAM_MAIN * PAIR * sizeof(float);
    size_t rest = zeros + stages + (TILE + PAD) * element;
    return WARPS * EDGE * sizeof(float) + (rest > sums ? rest : sums);
}

extern "C" cudaError_t dsc_cuda_launch_gram_shift(const dsc_cuda_launch *at, const dsc_gram_patches *p,
                                                  const dsc_gram_shift_plan *plan,
                                                  const dsc_gram_target *to) {
    cudaError_t error = p->dtype == DSC_F32    ? launch_sums<float>(at, p, plan)
                        : p->dtype == DSC_BF16 ? launch_sums<dsc_half_bf16>(at, p, plan)
                                               : launch_sums<dsc_half_f16>(at, p, plan);
    if (error != cudaSuccess)
        return error;
    finish_shape shape = {p->cg <= 32 ? 4 : p->cg <= 64 ? 16 : 64, p->cg <= 32 ? 8 : p->cg <= 64 ? 4 : 1};
    DSC_LAUNCH((shift_finish), dim3((unsigned)(p->cg * p->cg / shape.elements)), dim3(FINISH_THREADS),
               (size_t)(shape.groups * SUMS * shape.elements) * sizeof(double), at->stream)
    (*plan, *to, p->cg, shape);
    if (p->n > p->width)
        DSC_LAUNCH((shift_ones_finish), dim3((unsigned)((p->n + FINISH_THREADS - 1) / FINISH_THREADS)),
                   dim3(FINISH_THREADS), 0, at->stream)
    (*plan, *to, p->cg, p->rows);
    return cudaGetLastError();
}

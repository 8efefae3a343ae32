/* The Gram matrix of the patches of a 3x3 convolution with stride 1 and padding 1, without forming the patches.
 *
 * The block of C for the taps T = (t,s) and T' = (t',s') of a patch is
 *   G[T,T'] = sum over v of x[v] x[v - d]',   d = T - T',   [cg,cg],
 * which depends on d alone, except at the border: for d_y = 0, taps with t = 0 miss the last line and those with
 * t = 2 the first one, and for d_x = 0 the same holds for columns. So only 13 products of cg x cg are needed per
 * pixel, not 45. Those with d_y = 0 are summed separately for first, inner and last lines, those with d_x = 0 for
 * first, inner and last columns, and a block of G is the sum of those that its taps see. Nothing is subtracted.
 *
 * A warp has 16 x 16 channels and one d_y, and walks along 16 lines at once: a step is one pixel of each line,
 * the 16 terms of a tensor-core product. The pixels of the other line (v - d for all d_x) stay in registers
 * as a sliding window, so a step reads one new pixel per line and multiplies it with up to 5. The lines of all
 * images form one sequence; where v - d is in another image, zeros take the place of its line.
 *
 * Floats are split into two fp16 numbers; of the four products of the parts, three are computed. A stage, which is what
 * a block has in shared memory at a time, is scaled by its own power of two, so that its largest element is below 2^15;
 * its sums are scaled back when they are added to those of other stages.
 *
 * Sums of a pair of channel tiles:
 *   0 to 4: d_y = 0, inner lines: first, inner, last columns of d_x = 0; d_x = 1, 2
 *   5 to 11, 12 to 18: d_y = 1, 2: first, inner, last columns of d_x = 0; d_x = -2, -1, 1, 2
 *   19 to 23, 24 to 28: d_y = 0, first and last lines */
#include "device/cuda/gram.cuh"

namespace {

enum { TILE = DSC_GRAM_CHANNELS, SLOTS = 2, STEPS = 16, HALO = 2, REACH = 2 };
enum { WARPS = 3 * SLOTS, THREADS = 32 * WARPS };
enum { LINES = DSC_GRAM_LINES, ROWS = LINES + HALO, PAIR = TILE * TILE };
enum { SUMS = DSC_GRAM_MAIN + DSC_GRAM_BORDER, CLASSES = 3, EDGE = 2 * 8 * 32 };
static_assert(SLOTS * STEPS == LINES && (int)STEPS == (int)DSC_GRAM_IMAGES, "slots are lines");

/* The elements from one line of `columns` columns to the next in shared memory, such that lanes read from different
 * banks. */
template <typename T> __host__ __device__ inline int pitch_of(int columns) {
    return columns * TILE + 32 / (int)sizeof(T);
}

/* A stage holds the lines of tile a, without the pixels around them, and then those of tile b; if both are the same
 * tile (`twin`), only b is there. */
struct stage_shape {
    int pitch_a, pitch_b, begin_b, size;
};

template <typename T> __host__ __device__ inline stage_shape shape_of(int columns, bool twin) {
    stage_shape s;
    s.pitch_a = pitch_of<T>(columns);
    s.pitch_b = pitch_of<T>(columns + 2 * REACH);
    s.begin_b = twin ? 0 : LINES * s.pitch_a;
    s.size = s.begin_b + ROWS * s.pitch_b;
    return s;
}

/* One pixel of each of 16 lines, 16 channels: an A fragment, or two B fragments. Rows g and g + 8 of A, and columns g
 * of the two B, are channels 2g and 2g + 1. */
struct pixel {
    uint32_t high[4], low[4];
};

__device__ int channel_of(int half, int number) {
    return 2 * number + half;
}

__device__ uint32_t lower_halves(uint32_t x, uint32_t y) {
    return __byte_perm(x, y, 0x5410);
}

__device__ uint32_t upper_halves(uint32_t x, uint32_t y) {
    return __byte_perm(x, y, 0x7632);
}

/* Two channels of a pixel of one line: floats that are already split (high part in the lower 16 bits), or
 * half-precision numbers. */
template <typename T> struct two { uint32_t bits; };

template <> struct alignas(8) two<float> { uint32_t bits[2]; };

__device__ void join(const two<float> (&x)[4], pixel &p) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const two<float> &first = x[i / 2 * 2], &second = x[i / 2 * 2 + 1];
        p.high[i] = lower_halves(first.bits[i % 2], second.bits[i % 2]);
        p.low[i] = upper_halves(first.bits[i % 2], second.bits[i % 2]);
    }
}

template <typename T> __device__ void join(const two<T> (&x)[4], pixel &p) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t first = x[i / 2 * 2].bits, second = x[i / 2 * 2 + 1].bits;
        p.high[i] = i % 2 ? upper_halves(first, second) : lower_halves(first, second);
        p.low[i] = 0;
    }
}

/* This lane's four lines: the offsets of its first channel in the first column of the chunk. */
template <typename T> struct lanes {
    int line[4];

    __device__ void read(const T *from, int column, two<T> (&raw)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            raw[i] = *(const two<T> *)(from + line[i] + column * TILE);
    }
};

/* Adds a stage's sums, times `scale`, and clears them. */
__device__ void add(float (&to)[2][4], float (&from)[2][4], float scale) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[n][i] += from[n][i] * scale;
            from[n][i] = 0;
        }
}

__device__ void add_edge(float *to, float (&from)[2][4], float scale) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[(n * 4 + i) * 32] += from[n][i] * scale;
            from[n][i] = 0;
        }
}

__device__ void product(float, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_f16(c, a, b);
}

__device__ void product(dsc_half_f16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_f16(c, a, b);
}

__device__ void product(dsc_half_bf16, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    dsc_mma_bf16(c, a, b);
}

/* c += a b'. */
template <typename T> __device__ void multiply(const pixel &a, const pixel &b, int part, float (&c)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint32_t pair[2] = {part == 1 ? b.low[n] : b.high[n], part == 1 ? b.low[n + 2] : b.high[n + 2]};
        product(T{}, c[n], part == 0 ? a.low : a.high, pair);
    }
}

/* Which products of the parts are computed: low high, high low and high high, or high high alone. */
template <typename T> struct parts {
    enum { FIRST = gram_type<T>::SPLIT ? 0 : 2, END = 3 };
};

/* The columns of a walk. */
struct span {
    int columns;
    bool first, last; /* includes the image's first, last column */
};

/* Walks along the lines with the window and the next pixels, as they are in memory. The products with d_x = 0 in the
 * first and the last column, which have their own sums, are computed separately, to keep the loop over columns
 * short. */
template <typename T, int W> struct walker {
    enum { LEAST = W == 5 ? -2 : 0, AHEAD = -LEAST, STRAIGHT = -LEAST };
    const T *memory;
    lanes<T> a, b;
    span of;
    float *edge, scale;
    pixel window[W];
    two<T> next_a[4], next_b[4];
    float acc[W][2][4];

    /* acc[d] += a b(x - d_x)' for all d_x; J: the step's position in the window, which is used as a ring. */
    template <int J> __device__ void step(int column) {
        pixel mine, straight;
        join(next_a, mine);
        join(next_b, window[(J + AHEAD) % W]);
        a.read(memory, column + 1, next_a);
        b.read(memory, column + 1 + AHEAD, next_b);
        bool outer = (of.first && column == 0) || (of.last && column == of.columns - 1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            straight.high[i] = outer ? 0 : mine.high[i];
            straight.low[i] = outer ? 0 : mine.low[i];
        }
#pragma unroll
        for (int part = parts<T>::FIRST; part < parts<T>::END; part++)
#pragma unroll
            for (int d = 0; d < W; d++)
                multiply<T>(d == STRAIGHT ? straight : mine, window[(J - d - LEAST + W) % W], part, acc[d]);
    }

    /* Does the steps of one round of the window, as far as there are columns. */
    __device__ void round(int column) {
        step<0>(column);
        if (column + 1 >= of.columns)
            return;
        step<1>(column + 1);
        if (column + 2 >= of.columns)
            return;
        step<2>(column + 2);
        if (W < 5 || column + 3 >= of.columns)
            return;
        step<3 % W>(column + 3);
        if (column + 4 < of.columns)
            step<4 % W>(column + 4);
    }

    __device__ void run(float (&sum)[5][2][4]) {
#pragma unroll
        for (int c = -REACH; c < AHEAD; c++) {
            b.read(memory, c, next_b);
            join(next_b, window[(c + W) % W]);
        }
        a.read(memory, 0, next_a);
        b.read(memory, AHEAD, next_b);
#pragma unroll
        for (int d = 0; d < W; d++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                acc[d][i / 4][i % 4] = 0;
#pragma unroll 1
        for (int column = 0; column < of.columns; column += W) {
            round(column);
#pragma unroll
            for (int d = 0; d < W; d++)
                add(sum[d], acc[d], scale);
        }
#pragma unroll 1
        for (int side = 0; side < 2; side++)
            if (side == 0 ? of.first : of.last)
                add_outer(side == 0 ? 0 : of.columns - 1, edge + side * EDGE / 2);
    }

    /* Adds the products with d_x = 0 in one column. */
    __device__ void add_outer(int column, float *to) {
        pixel x, y;
        a.read(memory, column, next_a);
        b.read(memory, column, next_b);
        join(next_a, x);
        join(next_b, y);
#pragma unroll
        for (int part = parts<T>::FIRST; part < parts<T>::END; part++)
            multiply<T>(x, y, part, acc[0]);
        add_edge(to, acc[0], scale);
    }
};

/* A block's work. */
struct job {
    int pair, part;
    int64_t tile_a, tile_b; /* first channels */
    bool border, twin;      /* twin: both tiles are the same */
    int stages;
};

/* The position of a stage: its group of lines or of images, its chunk of columns, and the position of its first line
 * in its image. */
struct place {
    int64_t group;
    int chunk, y;
};

/* Finds the block's work; `at` becomes the position of its first stage. */
__device__ job find_job(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, place &at) {
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
    int64_t all = (j.border ? plan.frames : plan.groups) * plan.chunks,
            parts = j.border ? plan.border : plan.parts;
    int64_t each = all / parts, rest = all - each * parts; /* the first `rest` parts have one more */
    int64_t first = each * j.part + min((int64_t)j.part, rest);
    j.stages = (int)(each + (j.part < rest));
    at.group = first / plan.chunks;
    at.chunk = (int)(first - at.group * plan.chunks);
    at.y = (int)(at.group * LINES % p.h);
    return j;
}

__device__ void move_on(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, place &at) {
    if (++at.chunk < plan.chunks)
        return;
    at.chunk = 0;
    at.group++;
    at.y = (at.y + LINES) % p.h;
}

/* Returns the line, among those of all images, that is row `row` of a border stage; -1 if there is none. */
__device__ int64_t find_line(const dsc_gram_patches &p, int64_t group, int row) {
    int mine = row - HALO;
    int64_t image = group * DSC_GRAM_IMAGES + mine % DSC_GRAM_IMAGES;
    if (mine < 0 || image >= p.images)
        return -1;
    return image * p.h + (mine < DSC_GRAM_IMAGES ? 0 : p.h - 1);
}

/* Returns the warp's number by way of a shuffle, which tells the compiler that it is the same for all its threads. */
__device__ int find_warp() {
    return __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0);
}

__device__ void copy(float *to, const float *from, int there) {
    dsc_async16(to, from, there);
}

template <typename H> __device__ void copy(H *to, const H *from, int there) {
    dsc_async8(to, from, there);
}

/* Loads a stage's lines, from line `skip` on, into shared memory, with the columns around them if `skip` is 0; zeros
 * outside the image. */
template <typename T>
__device__ void load_tile(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, const job &j, place at,
                          int64_t channel, int skip, T *to) {
    int reach = skip ? 0 : REACH, wide = (plan.columns + 2 * reach) * 4, step = THREADS / wide;
    int row = (int)threadIdx.x / wide, e = (int)threadIdx.x - row * wide,
        pitch = pitch_of<T>(plan.columns + 2 * reach);
    int column = at.chunk * plan.columns - reach + (e >> 2);
    bool inside = (unsigned)column < (unsigned)p.w;
    const T *x = (const T *)p.x, *from = x + (inside ? column * p.c + channel + (e & 3) * 4 : 0);
    int64_t line_size = p.w * p.c;
    to += row * pitch + e * 4;
    row = row < step ? skip + row : ROWS;
    if (j.border) {
        for (; row < ROWS; row += step, to += step * pitch) {
            int64_t line = find_line(p, at.group, row);
            bool there = inside && line >= 0;
            copy(to, there ? from + line * line_size : x, there);
        }
        return;
    }
    int64_t line = at.group * LINES + row - HALO, left = p.images * p.h - at.group * LINES + HALO;
    int begin = at.group == 0 ? HALO : 0, end = inside ? (int)min(left, (int64_t)ROWS) : 0;
    for (from += line * line_size; row < ROWS; row += step, to += step * pitch, from += step * line_size) {
        bool there = row >= begin && row < end;
        copy(to, there ? from : x, there);
    }
}

template <typename T>
__device__ void load_stage(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, const job &j, place at,
                           T *to) {
    if (!j.twin)
        load_tile(p, plan, j, at, j.tile_a, HALO, to);
    load_tile(p, plan, j, at, j.tile_b, 0, to + shape_of<T>(plan.columns, j.twin).begin_b);
}

/* ---- the scale of a stage ---- */

/* Clears the padding after the lines of both stages, which is never loaded but is read to find their scale. */
template <typename T> __device__ void clear_pads(const dsc_gram_shift_plan &plan, const job &j, T *tiles) {
    stage_shape shape = shape_of<T>(plan.columns, j.twin);
    int lines = (j.twin ? 0 : LINES) + ROWS, pad = pitch_of<T>(0);
    for (int e = (int)threadIdx.x; e < 2 * lines * pad; e += THREADS) {
        int line = e / pad, stage = line / lines;
        line -= stage * lines;
        bool in_b = j.twin || line >= LINES;
        int end = in_b ? shape.begin_b + (line - (j.twin ? 0 : LINES) + 1) * shape.pitch_b
                       : (line + 1) * shape.pitch_a;
        tiles[stage * shape.size + end - pad + e % pad] = T{};
    }
}

__device__ uint32_t bits_of(__half2 x) {
    return __half_as_ushort(__low2half(x)) | (uint32_t)__half_as_ushort(__high2half(x)) << 16;
}

/* Splits each of two floats into two fp16 numbers, with the high part in the lower bits. */
__device__ void split(float &x, float &y) {
    __half2 high = __floats2half2_rn(x, y);
    float2 kept = __half22float2(high);
    uint32_t upper = bits_of(high), lower = bits_of(__floats2half2_rn(x - kept.x, y - kept.y));
    x = __uint_as_float(lower_halves(upper, lower));
    y = __uint_as_float(upper_halves(upper, lower));
}

__device__ float largest_of(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/* Turns the floats of a stage into pairs of fp16; returns the factor for their products. All threads must call it,
 * after a barrier that makes the stage visible to all. */
__device__ float split_stage(float *stage, int size, float *largest) {
    enum { TOP = 14, MOST = 63 }; /* 2^(2 MOST) and 2^(-2 MOST) are normal floats */
    float4 *x = (float4 *)stage;
    float mine = 0;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < size / 4; i += THREADS)
        mine = fmaxf(mine, largest_of(x[i]));
    for (int apart = 16; apart > 0; apart /= 2)
        mine = fmaxf(mine, __shfl_xor_sync(0xFFFFFFFFu, mine, apart));
    if (dsc_lane() == 0)
        largest[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int warp = 0; warp < WARPS; warp++)
        mine = fmaxf(mine, largest[warp]);
    int exponent = (int)(__float_as_uint(mine) >> 23);
    int shift = exponent == 255 ? 0 : max(min(TOP + 127 - exponent, (int)MOST), -(int)MOST);
    float power = __uint_as_float((unsigned)(shift + 127) << 23);
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < size / 4; i += THREADS) {
        float4 v = x[i];
        v = make_float4(v.x * power, v.y * power, v.z * power, v.w * power);
        split(v.x, v.y);
        split(v.z, v.w);
        x[i] = v;
    }
    __syncthreads();
    return __uint_as_float((unsigned)(127 - 2 * shift) << 23);
}

template <typename T> __device__ float split_stage(T *, int, float *) {
    return 1;
}

/* A warp's data: a line of zeros and, after it in memory, the stage; its sums for first and last columns; and the
 * factor for the stage's products. */
template <typename T> struct material {
    const T *zeros, *now;
    float *edge, scale;
};

/* Does one warp's lines of a stage. At the border d_y is always 0: there the warps that otherwise have different d_y do
 * a third of the columns each. */
template <typename T, int W>
__device__ void walk(const dsc_gram_patches &p, const dsc_gram_shift_plan &plan, const job &j, place at,
                     const material<T> &m, float (&sum)[5][2][4]) {
    int warp = find_warp(), part = warp / SLOTS, slot = warp % SLOTS, dy = j.border ? 0 : part;
    int lane = dsc_lane(), columns = min(plan.columns, p.w - at.chunk * plan.columns);
    int first = j.border ? columns * part / 3 : 0, end = j.border ? columns * (part + 1) / 3 : columns;
    int in_line = first * TILE + channel_of(0, lane >> 2), now = (int)(m.now - m.zeros);
    int row = slot * STEPS + (lane & 3), y = (at.y + row) % p.h;
    stage_shape shape = shape_of<T>(plan.columns, j.twin);
    walker<T, W> w;
#pragma unroll
    for (int i = 0; i < 4; i++, row += 4, y += 4) {
        while (y >= p.h)
            y -= p.h;
        bool skip_a = !j.border && dy == 0 && (y == 0 || y == p.h - 1), skip_b = !j.border && y < dy;
        int b = now + shape.begin_b + REACH * TILE;
        int a = j.twin ? b + (row + HALO) * shape.pitch_b : now + row * shape.pitch_a;
        b += (row + HALO - dy) * shape.pitch_b;
        w.a.line[i] = (skip_a ? 0 : a) + in_line;
        w.b.line[i] = (skip_b ? REACH * TILE : b) + in_line;
    }
    w.memory = m.zeros;
    w.of.columns = end - first;
    w.of.first = first < end && at.chunk == 0 && first == 0;
    w.of.last = first < end && at.chunk == plan.chunks - 1 && end == columns;
    w.edge = m.edge + lane;
    w.scale = m.scale;
    w.run(sum);
}

/* Writes a warp's sums: [first, inner, last column, then the other d_x][16 * 16]. */
template <int W> __device__ void put_sums(const float *edge, const float (&sum)[5][2][4], float *to) {
    enum { STRAIGHT = W == 5 ? 2 : 0 };
    int lane = dsc_lane();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = channel_of(i / 2, lane >> 2), column = channel_of(n, dsc_c_column(lane, i));
            float *at = to + row * TILE + column;
            at[0] = edge[(n * 4 + i) * 32 + lane];
            at[PAIR] = sum[STRAIGHT][n][i];
            at[2 * PAIR] = edge[EDGE / 2 + (n * 4 + i) * 32 + lane];
#pragma unroll
            for (int d = 0; d < W; d++)
                if (d != STRAIGHT)
                    at[(CLASSES + d - (d > STRAIGHT)) * PAIR] = sum[d][n][i];
        }
}

/* The index of the first sum of a d_y in a slot. */
__device__ int sums_of(int dy) {
    return dy == 0 ? 0 : dy == 1 ? 5 : 12;
}

/* Writes a block's sums to its part. The slots' sums are first added in order, by way of `all`; at the border, one slot
 * has the first lines, the other the last ones. */
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
        const float *at = all + (j.border ? s / EACH * SLOT + s % EACH * PAIR : s * PAIR) + e % PAIR;
        float total = 0;
        if (j.border)
            for (int i = 0; i < 3; i++)
                total += at[i * EACH * PAIR];
        else
            for (int i = 0; i < SLOTS; i++)
                total += at[i * SLOT];
        to[s * pairs * PAIR + e % PAIR] = total;
    }
}

/* The floats of shared memory before the stages: the edge sums, and the warps' maxima. */
enum { HEAD = WARPS * EDGE + 8 };

template <typename T>
__global__ void __launch_bounds__(THREADS, DSC_GRAM_BLOCKS)
    gram_walk(const dsc_gram_patches p, const dsc_gram_shift_plan plan) {
    DSC_SHARED(float, shared);
    T *zeros = (T *)(shared + HEAD);
    int line = pitch_of<T>(plan.columns + 2 * REACH + 1); /* a walk reads one column more than it needs */
    T *tiles = zeros + line;
    int warp = find_warp();
    place at, next;
    job j = find_job(p, plan, next);
    int size = shape_of<T>(plan.columns, j.twin).size;
    load_stage(p, plan, j, next, tiles);
    dsc_async_commit();
    for (int e = (int)threadIdx.x; e < HEAD; e += THREADS)
        shared[e] = 0;
    for (int e = (int)threadIdx.x; e < line; e += THREADS)
        zeros[e] = T{};
    clear_pads(plan, j, tiles);

    float sum[5][2][4] = {};
    for (int stage = 0; stage < j.stages; stage++) {
        T *now = tiles + stage % 2 * size;
        dsc_async_wait<0>();
        __syncthreads();
        at = next;
        move_on(p, plan, next);
        if (stage + 1 < j.stages)
            load_stage(p, plan, j, next, tiles + (stage + 1) % 2 * size);
        dsc_async_commit();
        float scale = split_stage(now, size, shared + WARPS * EDGE);
        material<T> m = {zeros, now, shared + warp * EDGE, scale};
        if (warp < SLOTS || j.border) /* d_y = 0 */
            walk<T, 3>(p, plan, j, at, m, sum);
        else
            walk<T, 5>(p, plan, j, at, m, sum);
    }
    put_part(p, plan, j, shared + warp * EDGE, sum, shared + HEAD);
}

/* ---- from sums to the triangle ---- */

/* Returns true if tap t (of a line or a column) sees class `of`: 0 is the first line or column, 1 inner, 2 the last. */
__device__ bool sees(int t, int of) {
    return !(t == 0 && of == 2) && !(t == 2 && of == 0);
}

/* Computes G[a,b] of taps a and b for one pair of channels, from the sums [SUMS][stride]. */
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

/* The work of a finishing block: the elements of a pair that it does (a multiple of 4), and the number of groups of
 * threads that share each sum's parts. */
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

/* Computes ones[part][class of line][class of column][channel]: a block has 16 channels and a part of the pixels. */
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

/* Writes the last row of C: the sums of the patches' columns, and the number of patches. */
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

template <typename T> static size_t shared_of(int columns, int pairs) {
    size_t zeros = (size_t)pitch_of<T>(columns + 2 * REACH + 1), ahead = TILE;
    size_t stages = (zeros + 2 * (size_t)shape_of<T>(columns, pairs == 1).size + ahead) * sizeof(T);
    size_t sums = (size_t)SLOTS * DSC_GRAM_MAIN * PAIR * sizeof(float);
    return HEAD * sizeof(float) + (stages > sums ? stages : sums);
}

extern "C" size_t dsc_cuda_gram_shift_shared(dsc_dtype dtype, int columns, int pairs) {
    return dtype == DSC_F32 ? shared_of<float>(columns, pairs) : shared_of<dsc_half_f16>(columns, pairs);
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

/* Multi-head self-attention in half precision with Hopper's warpgroup products (wgmma.cuh), for heads of up to 64
 * channels; attention_half.cu is for other heads and other GPUs. Compiled for sm_90a only; the emulator runs it, too.
 *
 * A block owns a tile of 64 queries (or keys) of one head for each of its GROUPS warpgroups, and loops over tiles of 64
 * keys (or queries). These go through a ring of STAGES places in shared memory: while the block works on one tile,
 * products of the tile before may still be in flight, and the next AHEAD tiles are being copied. Scores stay in
 * registers: an accumulator has the layout of the left operand of the next product.
 *
 * The passes are those of attention_half.cu: every sum is added in a fixed order and there are no atomics. */
#include "device/cuda/attention_half.cuh"
#include "device/cuda/wgmma.cuh"

enum { SIDE = DSC_WGMMA_SIDE, TILE = DSC_WGMMA_TILE, GROUP = 128, STAGES = 4, AHEAD = STAGES - 2 };

/* ---- tiles ---- */

/* Rounds up to a multiple of 1024 bytes, where tiles have to begin. */
template <typename T> static __device__ __forceinline__ T *first_tile(unsigned char *shared) {
    return reinterpret_cast<T *>(shared + (-(uintptr_t)shared & 1023));
}

/* Copies rows of dh numbers, `stride` apart; fills up with zeros after the last of `rows` rows and the last channel. */
template <int ROWS, int THREADS, typename T>
static __device__ __forceinline__ void copy_tile(T *to, const T *from, int64_t stride, int rows, int dh) {
    constexpr int PIECES = ROWS * SIDE / 8;
    const int row = (int)(threadIdx.x / 8), column = (int)(threadIdx.x % 8 * 8);
    const T *mine = from + row * stride + column;
    to += dsc_wgmma_place(row, column); /* the swizzle of a row repeats every eight rows */
#pragma unroll
    for (int n = 0; n < (PIECES + THREADS - 1) / THREADS; n++) {
        int down = n * (THREADS / 8), there = row + down < rows && column < dh;
        if (PIECES % THREADS == 0 || row + down < ROWS)
            dsc_async16(to + down * SIDE, there ? mine + down * stride : from, there);
    }
}

/* c = one tile times the transpose of another. */
template <typename T>
static __device__ __forceinline__ void multiply_rows(const T *left, const T *right, float (&c)[SIDE / 8][4]) {
#pragma unroll
    for (int k = 0; k < SIDE / 16; k++)
        dsc_wgmma_rows(c, left, right, k, k > 0);
    dsc_wgmma_commit();
}

/* sum += w times a tile. */
template <typename T>
static __device__ __forceinline__ void multiply_add(const uint32_t (&w)[SIDE / 16][4], const T *tile,
                                                    float (&sum)[SIDE / 8][4]) {
#pragma unroll
    for (int k = 0; k < SIDE / 16; k++)
        dsc_wgmma_columns(sum, w[k], tile, k);
    dsc_wgmma_commit();
}

/* Packs the weights that dropout keeps (`bits`, as from kept_by_query), and zeros for the others. */
template <typename T, bool DROPS>
static __device__ __forceinline__ void pack_kept(const float (&s)[SIDE / 8][4], uint32_t bits,
                                                 uint32_t (&packed)[SIDE / 16][4]) {
    float kept[SIDE / 8][4];
#pragma unroll
    for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            kept[n][i] = !DROPS || bits >> (4 * n + i) & 1 ? s[n][i] : 0;
    pack<T, SIDE>(kept, packed);
}

/* Returns P (Z dP - delta), where Z is z if dropout keeps the element, else 0. */
template <bool DROPS>
static __device__ __forceinline__ float slope(float p, float dp, uint32_t keeps, float z, float delta) {
    return p * (DROPS ? (keeps & 1 ? dp * z : 0) - delta : dp - delta);
}

/* Writes 16 rows, each times its factor, from position `first` on. They go through the warp's own 16 rows of a tile in
 * shared memory, so that a lane can write 16 bytes at once. With `add` they go directly, so that sums are not rounded
 * before they are added to the old values. */
template <typename T>
static __device__ __forceinline__ void
store_through(const dsc_cuda_attention &a, T *rows, T *out, int64_t stride, int64_t first,
              const float (&sum)[SIDE / 8][4], const float (&factor)[2], int add) {
    int lane = dsc_lane();
    if (add) {
        store_rows<T, SIDE>(a, out, stride, first, sum, factor, 1);
        return;
    }
#pragma unroll
    for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            T *to = rows + dsc_wgmma_place(dsc_c_row(lane, 2 * half), 8 * n) + dsc_c_column(lane, 0);
            *reinterpret_cast<uint32_t *>(to) =
                half_math<T>::pack(sum[n][2 * half] * factor[half], sum[n][2 * half + 1] * factor[half]);
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int down = 4 * i + lane / 8, column = lane % 8 * 8;
        if (first + down < a.t && column < a.dh)
            *reinterpret_cast<uint4 *>(out + (first + down) * stride + column) =
                *reinterpret_cast<const uint4 *>(rows + dsc_wgmma_place(down, column));
    }
    __syncwarp();
}

/* The rows that a thread's warpgroup and warp own. */
struct share {
    int group; /* index of the warpgroup in the block */
    int begin; /* the warpgroup's first position */
    int own;   /* the warp's first position */
    int rows;  /* offset of the warp's rows in the block's tiles */

    /* The shuffles tell the compiler that all lanes of a warp have the same values. */
    __device__ __forceinline__ explicit share(const attention_place &at) {
        int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0);
        group = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / GROUP, 0);
        begin = (int)at.first + SIDE * group;
        own = (int)at.first + 16 * warp;
        rows = 16 * warp * SIDE;
    }
};

/* ---- by tiles of queries: rings of keys and values ---- */

template <typename T, int GROUPS> struct key_ring {
    T *ring;
    const T *keys; /* of position 0 */
    int64_t stride, d;
    int t, dh, end; /* the tiles cover positions 0 .. end - 1 */

    __device__ __forceinline__ key_ring(const dsc_cuda_attention &a, const attention_place &at, T *ring)
        : ring(ring), keys((const T *)a.x + at.x + at.d), stride(3 * at.d), d(at.d), t((int)a.t),
          dh((int)a.dh) {
        int last = (int)at.first + SIDE * GROUPS, length = (int)at.length;
        end = a.causal && last < length ? last : length;
    }

    /* Returns the end of the keys that a warpgroup with queries from `begin` on sees. */
    __device__ __forceinline__ int end_of(const dsc_cuda_attention &a, int begin) const {
        if (begin >= t)
            return 0;
        return a.causal && begin + SIDE < end ? begin + SIDE : end;
    }

    __device__ __forceinline__ T *tile(int j) const {
        return ring + j / SIDE % STAGES * 2 * TILE;
    }

    __device__ __forceinline__ void copy(int j) const {
        if (j < end) {
            copy_tile<SIDE, GROUP * GROUPS>(tile(j), keys + j * stride, stride, t - j, dh);
            copy_tile<SIDE, GROUP * GROUPS>(tile(j) + TILE, keys + d + j * stride, stride, t - j, dh);
        }
        dsc_async_commit();
    }

    __device__ __forceinline__ void start() const {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            copy(i * SIDE);
    }

    /* Waits for the tile at j and starts the next copy. All warpgroups must have waited for their products with the
     * tile at j - 2 SIDE, whose place the copy takes. */
    __device__ __forceinline__ void advance(int j) const {
        dsc_async_wait<AHEAD - 1>();
        dsc_wgmma_publish();
        __syncthreads();
        copy(j + AHEAD * SIDE);
    }

    /* After the last products: the block's tiles may be overwritten. */
    __device__ __forceinline__ void finish() const {
        dsc_async_wait<0>();
        __syncthreads();
    }
};

/* The online softmax for one tile of keys: s becomes exp(s - m), and the rows' totals are updated. m (`base`) only
 * needs to be near the maximum so far: it is raised, and `sum` and `total` rescaled, only when a weight would exceed
 * 2^8. */
static __device__ __forceinline__ void softmax_step(float scale, float (&s)[SIDE / 8][4], float (&base)[2],
                                                    float (&total)[2], float (&sum)[SIDE / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < SIDE / 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2)) * scale;
        if (most > base[half] + 8) {
            float factor = dsc_exp2(base[half] - most);
            base[half] = most;
            total[half] *= factor;
#pragma unroll
            for (int n = 0; n < SIDE / 8; n++) {
                sum[n][2 * half] *= factor;
                sum[n][2 * half + 1] *= factor;
            }
        }
        float part = 0;
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = dsc_exp2(s[n][i] * scale - base[half]);
                part += s[n][i];
            }
        total[half] += part; /* this lane's columns only; lanes are added at the end */
    }
}

template <typename T, int GROUPS, int BLOCKS, bool DROPS>
__global__ void __launch_bounds__(GROUP *GROUPS, BLOCKS) hopper_forward_kernel(const dsc_cuda_attention a) {
    DSC_SHARED(unsigned char, shared);
    T *queries = first_tile<T>(shared);
    const attention_place at(a, SIDE * GROUPS);
    const share mine(at);
    const key_ring<T, GROUPS> ring(a, at, queries + GROUPS * TILE);
    const int end = ring.end_of(a, mine.begin);
    const float scale = (float)a.scale * LOG2_E;
    float sum[SIDE / 8][4] = {}, base[2] = {-INFINITY, -INFINITY}, total[2] = {};
    uint32_t packed[SIDE / 16][4];
    copy_tile<SIDE * GROUPS, GROUP * GROUPS>(queries, ring.keys - at.d + at.first * ring.stride, ring.stride,
                                             ring.t - (int)at.first, ring.dh);
    ring.start();
    dsc_wgmma_settle(sum);
    int j = 0;
    for (; j < end; j += SIDE) {
        float s[SIDE / 8][4];
        ring.advance(j);
        dsc_wgmma_begin();
        multiply_rows(queries + mine.group * TILE, ring.tile(j), s);
        dsc_wgmma_wait<0>();
        dsc_wgmma_settle(s);
        dsc_wgmma_settle(sum);
        hide<SIDE>(a, at, mine.own, j, s);
        softmax_step(scale, s, base, total, sum);
        pack_kept<T, DROPS>(s, DROPS ? kept_by_query<SIDE>(a, at, mine.own, j) : 0, packed);
        dsc_wgmma_begin();
        multiply_add(packed, ring.tile(j) + TILE, sum);
    }
    dsc_wgmma_wait<0>();
    dsc_wgmma_settle(sum);
    for (; j < ring.end; j += SIDE) /* tiles that only other warpgroups use */
        ring.advance(j);
    ring.finish();
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float whole = total[half];
        whole += __shfl_xor_sync(0xFFFFFFFFu, whole, 1);
        whole += __shfl_xor_sync(0xFFFFFFFFu, whole, 2);
        factor[half] = end > 0 ? (DROPS ? (float)a.kept : 1) / whole : 0; /* 0: the row sees no keys */
        int64_t row = mine.own + dsc_c_row(dsc_lane(), 2 * half);
        if (a.lse && dsc_lane() % 4 == 0 && row < a.t)
            ((float *)a.lse)[at.rows + row] = end > 0 ? (base[half] + log2f(whole)) * LN_2 : 0;
    }
    store_through(a, queries + mine.rows, (T *)a.y + at.y, at.d, mine.own, sum, factor, 0);
}

/* Gets lse, for powers of 2, and delta of a lane's two of the rows from `own` on; also writes delta for the next
 * kernel. */
template <typename T>
static __device__ __forceinline__ void row_numbers(const dsc_cuda_attention &a, const attention_place &at,
                                                   const T *grads, const T *outputs, int own, float (&lse)[2],
                                                   float (&delta)[2]) {
    delta[0] = delta[1] = 0;
#pragma unroll
    for (int k = 0; k < SIDE / 16; k++) {
        int place = dsc_wgmma_place(dsc_lane() % 16, 16 * k + dsc_lane() / 16 * 8);
        uint32_t dy[4], y[4];
        dsc_ldmatrix(dy, grads + place);
        dsc_ldmatrix(y, outputs + place);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 u = half_math<T>::unpack(dy[i]), v = half_math<T>::unpack(y[i]);
            delta[i % 2] += u.x * v.x + u.y * v.y;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        delta[half] += __shfl_xor_sync(0xFFFFFFFFu, delta[half], 1);
        delta[half] += __shfl_xor_sync(0xFFFFFFFFu, delta[half], 2);
        int64_t row = own + dsc_c_row(dsc_lane(), 2 * half);
        lse[half] = row < a.t ? ((const float *)a.lse)[at.rows + row] * LOG2_E : 0;
        if (dsc_lane() % 4 == 0 && row < a.t)
            ((float *)a.delta)[at.rows + row] = delta[half];
    }
}

template <typename T, int GROUPS, int BLOCKS, bool DROPS>
__global__ void __launch_bounds__(GROUP *GROUPS, BLOCKS) hopper_query_kernel(const dsc_cuda_attention a) {
    enum { B = SIDE * GROUPS };
    static_assert(GROUPS <= 2 * (STAGES - AHEAD), "outputs are where tiles after the first will be");
    DSC_SHARED(unsigned char, shared);
    T *queries = first_tile<T>(shared), *grads = queries + GROUPS * TILE;
    const attention_place at(a, B);
    const share mine(at);
    const key_ring<T, GROUPS> ring(a, at, grads + GROUPS * TILE);
    const int end = ring.end_of(a, mine.begin), rows = ring.t - (int)at.first;
    const float scale = (float)a.scale * LOG2_E, kept = DROPS ? (float)a.kept : 1;
    const int64_t from = at.y + at.first * at.d;
    float sum[SIDE / 8][4] = {}, lse[2], delta[2];
    uint32_t packed[SIDE / 16][4];
    T *outputs = ring.tile(AHEAD * SIDE);
    copy_tile<B, GROUP * GROUPS>(queries, ring.keys - at.d + at.first * ring.stride, ring.stride, rows,
                                 ring.dh);
    copy_tile<B, GROUP * GROUPS>(grads, (const T *)a.dy + from, at.d, rows, ring.dh);
    copy_tile<B, GROUP * GROUPS>(outputs, (const T *)a.y + from, at.d, rows, ring.dh);
    dsc_async_commit();
    ring.start();
    dsc_async_wait<AHEAD>();
    __syncthreads();
    row_numbers(a, at, grads + mine.rows, outputs + mine.rows, mine.own, lse, delta);
    dsc_wgmma_settle(sum);
    int j = 0;
    for (; j < end; j += SIDE) {
        float s[SIDE / 8][4], ds[SIDE / 8][4];
        ring.advance(j);
        dsc_wgmma_begin();
        multiply_rows(queries + mine.group * TILE, ring.tile(j), s);
        multiply_rows(grads + mine.group * TILE, ring.tile(j) + TILE, ds);
        dsc_wgmma_wait<1>();
        dsc_wgmma_settle(s);
        hide<SIDE>(a, at, mine.own, j, s);
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = dsc_exp2(s[n][i] * scale - lse[i / 2]);
        uint32_t bits = DROPS ? kept_by_query<SIDE>(a, at, mine.own, j) : 0;
        dsc_wgmma_wait<0>();
        dsc_wgmma_settle(ds);
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                ds[n][i] = slope<DROPS>(s[n][i], ds[n][i], bits >> (4 * n + i), kept, delta[i / 2]);
        pack<T, SIDE>(ds, packed);
        dsc_wgmma_begin();
        multiply_add(packed, ring.tile(j), sum);
        dsc_wgmma_wait<0>(); /* else too few registers remain for two blocks per multiprocessor */
        dsc_wgmma_settle(sum);
    }
    for (; j < ring.end; j += SIDE)
        ring.advance(j);
    ring.finish();
    const float factor[2] = {(float)a.scale, (float)a.scale};
    store_through(a, queries + mine.rows, (T *)a.dx + at.x, ring.stride, mine.own, sum, factor, a.add);
}

/* ---- by tiles of keys: rings of queries, rows of dy, and the queries' lse and delta ---- */

template <typename T, int GROUPS> struct query_ring {
    T *ring;
    float *numbers;
    const T *queries, *grads; /* of position 0 */
    const float *lse, *delta;
    int64_t stride, d;
    int t, dh, begin, end; /* the tiles cover positions begin .. end - 1 */

    __device__ __forceinline__ query_ring(const dsc_cuda_attention &a, const attention_place &at, T *ring)
        : ring(ring), numbers((float *)(ring + STAGES * 2 * TILE)), queries((const T *)a.x + at.x),
          grads((const T *)a.dy + at.y), lse((const float *)a.lse + at.rows),
          delta((const float *)a.delta + at.rows), stride(3 * at.d), d(at.d), t((int)a.t), dh((int)a.dh) {
        begin = a.causal ? (int)at.first : 0;
        end = at.first < at.length ? t : begin; /* padding has gradients of 0 */
    }

    __device__ __forceinline__ int stage(int i) const {
        return (i - begin) / SIDE % STAGES;
    }

    __device__ __forceinline__ T *tile(int i) const {
        return ring + stage(i) * 2 * TILE;
    }

    /* lse of the tile at i, followed by its delta. */
    __device__ __forceinline__ float *rows(int i) const {
        return numbers + stage(i) * 2 * SIDE;
    }

    __device__ __forceinline__ void copy(int i) const {
        if (i < end) {
            copy_tile<SIDE, GROUP * GROUPS>(tile(i), queries + i * stride, stride, t - i, dh);
            copy_tile<SIDE, GROUP * GROUPS>(tile(i) + TILE, grads + i * d, d, t - i, dh);
            int r = (int)threadIdx.x, there = i + r % SIDE < t;
            const float *from = r < SIDE ? lse : delta;
            if (r < 2 * SIDE)
                dsc_async4(rows(i) + r, from + (there ? i + r % SIDE : 0), there);
        }
        dsc_async_commit();
    }

    __device__ __forceinline__ void start() const {
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            copy(begin + n * SIDE);
    }

    __device__ __forceinline__ void advance(int i) const {
        dsc_async_wait<AHEAD - 1>();
        dsc_wgmma_publish();
        __syncthreads();
        copy(i + AHEAD * SIDE);
    }

    /* After the last products: the block's tiles may be overwritten. */
    __device__ __forceinline__ void finish() const {
        dsc_async_wait<0>();
        __syncthreads();
    }
};

/* s becomes exp(s - lse), with one lse per column. */
static __device__ __forceinline__ void weigh_columns(float scale, const float *lse, float (&s)[SIDE / 8][4]) {
#pragma unroll
    for (int n = 0; n < SIDE / 8; n++) {
        float2 two = *reinterpret_cast<const float2 *>(lse + 8 * n + dsc_c_column(dsc_lane(), 0));
        two.x *= LOG2_E, two.y *= LOG2_E;
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = dsc_exp2(s[n][i] * scale - (i % 2 ? two.y : two.x));
    }
}

template <bool DROPS>
static __device__ __forceinline__ void slope_columns(const float (&s)[SIDE / 8][4], uint32_t bits, float z,
                                                     const float *delta, float (&ds)[SIDE / 8][4]) {
#pragma unroll
    for (int n = 0; n < SIDE / 8; n++) {
        float2 two = *reinterpret_cast<const float2 *>(delta + 8 * n + dsc_c_column(dsc_lane(), 0));
#pragma unroll
        for (int i = 0; i < 4; i++)
            ds[n][i] = slope<DROPS>(s[n][i], ds[n][i], bits >> (4 * n + i), z, i % 2 ? two.y : two.x);
    }
}

template <typename T, int GROUPS, int BLOCKS, bool DROPS>
__global__ void __launch_bounds__(GROUP *GROUPS, BLOCKS) hopper_key_kernel(const dsc_cuda_attention a) {
    enum { B = SIDE * GROUPS };
    DSC_SHARED(unsigned char, shared);
    T *keys = first_tile<T>(shared), *values = keys + GROUPS * TILE;
    const attention_place at(a, B);
    const share mine(at);
    const query_ring<T, GROUPS> ring(a, at, values + GROUPS * TILE);
    const int rows = ring.t - (int)at.first;
    const float scale = (float)a.scale * LOG2_E, kept = DROPS ? (float)a.kept : 1;
    float key_sum[SIDE / 8][4] = {}, value_sum[SIDE / 8][4] = {};
    uint32_t packed[SIDE / 16][4], slopes[SIDE / 16][4];
    const T *from = ring.queries + at.d + at.first * ring.stride;
    copy_tile<B, GROUP * GROUPS>(keys, from, ring.stride, rows, ring.dh);
    copy_tile<B, GROUP * GROUPS>(values, from + at.d, ring.stride, rows, ring.dh);
    ring.start();
    int i = ring.begin, first = a.causal ? mine.begin : 0; /* first tile that sees the warpgroup's keys */
    for (; i < first && i < ring.end; i += SIDE)
        ring.advance(i);
    dsc_wgmma_settle(key_sum);
    dsc_wgmma_settle(value_sum);
    for (; i < ring.end; i += SIDE) {
        float s[SIDE / 8][4], ds[SIDE / 8][4];
        ring.advance(i);
        const T *queries = ring.tile(i), *grads = queries + TILE;
        const float *lse = ring.rows(i), *delta = lse + SIDE;
        dsc_wgmma_begin();
        multiply_rows(keys + mine.group * TILE, queries, s);
        multiply_rows(values + mine.group * TILE, grads, ds);
        dsc_wgmma_wait<1>();
        dsc_wgmma_settle(s);
        hide_turned<SIDE>(a, at, i, mine.own, s);
        uint32_t bits = DROPS ? kept_by_key<SIDE>(a, at, i, mine.own) : 0;
        weigh_columns(scale, lse, s);
        pack_kept<T, DROPS>(s, bits, packed);
        dsc_wgmma_begin();
        multiply_add(packed, grads, value_sum);
        dsc_wgmma_wait<1>();
        dsc_wgmma_settle(ds);
        slope_columns<DROPS>(s, bits, kept, delta, ds);
        pack<T, SIDE>(ds, slopes);
        dsc_wgmma_begin();
        multiply_add(slopes, queries, key_sum);
    }
    dsc_wgmma_wait<0>();
    dsc_wgmma_settle(key_sum);
    dsc_wgmma_settle(value_sum);
    ring.finish();
    const float key_factor[2] = {(float)a.scale, (float)a.scale}, value_factor[2] = {kept, kept};
    T *to = (T *)a.dx + at.x + at.d;
    store_through(a, keys + mine.rows, to, ring.stride, mine.own, key_sum, key_factor, a.add);
    store_through(a, keys + mine.rows, to + at.d, ring.stride, mine.own, value_sum, value_factor, a.add);
}

/* ---- launches ---- */

template <typename Kernel>
static cudaError_t launch(const dsc_cuda_launch *at, const dsc_cuda_attention *a, Kernel kernel, int groups,
                          int tiles, int more) {
    int shared = 1024 + tiles * TILE * (int)sizeof(uint16_t) + more, side = SIDE * groups;
    cudaError_t error =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess)
        return error;
    unsigned blocks = (unsigned)((a->t + side - 1) / side * a->heads * a->n);
    DSC_LAUNCH(kernel, blocks, GROUP * groups, shared, at->stream)(*a);
    return cudaGetLastError();
}

template <typename T, int GROUPS, int BLOCKS, bool DROPS>
static cudaError_t forward_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    return launch(at, a, hopper_forward_kernel<T, GROUPS, BLOCKS, DROPS>, GROUPS, GROUPS + 2 * STAGES, 0);
}

template <typename T, int GROUPS, int BLOCKS, bool DROPS>
static cudaError_t query_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    return launch(at, a, hopper_query_kernel<T, GROUPS, BLOCKS, DROPS>, GROUPS, 2 * GROUPS + 2 * STAGES, 0);
}

template <typename T, int GROUPS, int BLOCKS, bool DROPS>
static cudaError_t key_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a) {
    return launch(at, a, hopper_key_kernel<T, GROUPS, BLOCKS, DROPS>, GROUPS, 2 * GROUPS + 2 * STAGES,
                  STAGES * 2 * SIDE * (int)sizeof(float));
}

/* The numbers of warpgroups per block and of blocks per multiprocessor are those that were fastest on an H200. More
 * warpgroups share what is copied, but wait for each other; the kernel for keys uses too many registers for more than
 * two at a time. */
template <typename T, bool DROPS>
static cudaError_t run_of(const dsc_cuda_launch *at, const dsc_cuda_attention *a, int backward) {
    if (!backward)
        return forward_of<T, 2, 2, DROPS>(at, a);
    cudaError_t error = query_of<T, 2, 2, DROPS>(at, a);
    return error == cudaSuccess ? key_of<T, 1, 2, DROPS>(at, a) : error;
}

int dsc_cuda_attention_is_hopper(const dsc_cuda_launch *at, const dsc_cuda_attention *a, dsc_dtype dtype) {
    return at->capability == 90 && dsc_cuda_attention_is_half(a, dtype) && a->dh <= SIDE && a->t < 1 << 30;
}

cudaError_t dsc_cuda_attention_hopper(const dsc_cuda_launch *at, const dsc_cuda_attention *a, dsc_dtype dtype,
                                      int backward) {
    if (dtype == DSC_BF16)
        return a->position ? run_of<__nv_bfloat16, true>(at, a, backward)
                           : run_of<__nv_bfloat16, false>(at, a, backward);
    return a->position ? run_of<__half, true>(at, a, backward) : run_of<__half, false>(at, a, backward);
}

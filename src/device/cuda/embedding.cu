/* Lengths of sequences; embeddings, which are rows of a table, and their gradients.
 *
 * For the gradients, the rows of dy are sorted by their ids with a stable radix sort, 8 bits of the ids per pass; ids
 * outside the vocabulary get the key `vocabulary` and so come last. After that the rows of an id are adjacent, in their
 * original order: a warp adds up a few of them, a block adds up many, always in the same order. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

enum {
    BITS = 8,
    DIGITS = 1 << BITS,
    TILE = DIGITS,       /* rows, and threads, of a sorting block: thread t also owns digit t */
    SCAN_THREADS = 1024, /* of the one block that adds up the counts */
    FEW = 64,            /* the most rows of an id that one warp adds up */
    GROUPS = 16          /* warps of a block that adds up more rows */
};

/* The ids of the rows. */
struct embedding_ids {
    const void *data;
    int wide; /* 1: double, 0: float */
    int64_t vocabulary;

    __device__ __forceinline__ int64_t row(int64_t i) const {
        double id = wide ? ((const double *)data)[i] : (double)((const float *)data)[i];
        return dsc_embedding_row(id, vocabulary);
    }
};

static embedding_ids ids_of(const dsc_tensor *ids, int64_t vocabulary) {
    return embedding_ids{ids->data, ids->dtype == DSC_F64, vocabulary};
}

/* ---- lengths ---- */

/* One warp per sample: searches its t numbers from the end for the last one that is not negative. */
template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    lengths_kernel(int64_t n, int64_t t, const T *ids, int32_t *lengths) {
    int lane = (int)threadIdx.x % 32;
    for (int64_t sample = dsc_flat_first() / 32; sample < n; sample += dsc_flat_step() / 32) {
        int64_t last = -1;
        for (int64_t end = t; end > 0 && last < 0; end -= 32) {
            int64_t i = end - 32 + lane;
            last = i >= 0 && ids[sample * t + i] >= 0 ? i : -1;
            for (int apart = 16; apart > 0; apart /= 2) {
                int64_t other = __shfl_xor_sync(0xFFFFFFFFu, last, apart);
                last = other > last ? other : last;
            }
        }
        if (lane == 0)
            lengths[sample] = (int32_t)(last + 1);
    }
}

template <typename T>
static cudaError_t run_lengths(const dsc_cuda_launch *at, int64_t n, int64_t t, const void *ids,
                               void *lengths) {
    DSC_LAUNCH((lengths_kernel<T>), dsc_flat_blocks(at, n * 32), DSC_FLAT_THREADS, 0, at->stream)
    (n, t, (const T *)ids, (int32_t *)lengths);
    return cudaGetLastError();
}

dsc_status dsc_cuda_sequence_lengths(dsc_queue *q, const dsc_tensor *ids, dsc_tensor *lengths) {
    int64_t n = ids->dim[0], t = dsc_tensor_count(ids) / n;
    DSC_CUDA_TRY(
        DSC_BY_REAL(ids->dtype, run_lengths, dsc_cuda_at(q), n, t, dsc_data(ids), dsc_data(lengths)));
    return DSC_OK;
}

/* ---- forward ---- */

template <typename T> struct embedding_copy {
    embedding_ids ids;
    int64_t features;
    const T *table;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        int64_t row = i, c = dsc_peel(row, features), v = ids.row(row);
        dsc_vector<T, N> value = {};
        if (v >= 0)
            value = dsc_load<T, N>(table + v * features + c);
        dsc_store<T, N>(y + i, value);
    }
};

template <typename T>
static cudaError_t run_forward(const dsc_cuda_launch *at, const embedding_ids *ids, int64_t rows,
                               int64_t features, const void *table, void *y) {
    embedding_copy<T> operation = {*ids, features, (const T *)table, (T *)y};
    return dsc_flat_run<T>(at, rows * features, dsc_fits<T>(features, table, y), operation);
}

/* ---- the order of the rows ---- */

/* The arrays in `work`. */
typedef struct dsc_cuda_sorting {
    int rows, tiles, vocabulary;
    int *keys[2],
        *order[2]; /* [rows]: ids, and the numbers of their rows; a pass reads one pair, writes the other */
    int *counts;   /* [DIGITS, tiles] */
    int *many, *many_ids; /* how many ids have more than FEW rows, and which */
} dsc_cuda_sorting;

static int tiles_of(int64_t rows) {
    return rows > 0 ? (int)((rows + TILE - 1) / TILE) : 1;
}

static dsc_cuda_sorting sorting_of(int64_t rows, int64_t vocabulary, void *work) {
    dsc_cuda_sorting s = {};
    int *next = (int *)work;
    s.rows = (int)rows;
    s.tiles = tiles_of(rows);
    s.vocabulary = (int)vocabulary;
    for (int i = 0; i < 2; i++) {
        s.keys[i] = next;
        s.order[i] = next + rows;
        next += 2 * rows;
    }
    s.counts = next;
    s.many = next + (int64_t)DIGITS * s.tiles;
    s.many_ids = s.many + 1;
    return s;
}

static int64_t ints_of(int64_t rows) {
    return 4 * rows + (int64_t)DIGITS * tiles_of(rows) + 1 + rows / FEW;
}

/* Gets the key and the row number at place i before a pass. */
__device__ __forceinline__ void before_pass(const dsc_cuda_sorting &s, const embedding_ids &ids, int pass,
                                            int i, int &key, int &row) {
    if (pass > 0) {
        key = s.keys[(pass - 1) & 1][i];
        row = s.order[(pass - 1) & 1][i];
    } else {
        int64_t v = ids.row(i);
        key = v < 0 ? s.vocabulary : (int)v;
        row = i;
    }
}

__device__ __forceinline__ int digit_of(int key, int pass) {
    return key >> (BITS * pass) & (DIGITS - 1);
}

static __global__ void __launch_bounds__(TILE)
    count_digits(const dsc_cuda_sorting s, const embedding_ids ids, int pass) {
    __shared__ int counts[DIGITS];
    int t = (int)threadIdx.x, tile = (int)blockIdx.x, i = tile * TILE + t, key, row;
    counts[t] = 0;
    __syncthreads();
    if (i < s.rows) {
        before_pass(s, ids, pass, i, key, row);
        atomicAdd(&counts[digit_of(key, pass)], 1);
    }
    __syncthreads();
    s.counts[t * s.tiles + tile] = counts[t];
    if (tile == 0 && t == 0)
        *s.many = 0;
}

/* Exclusive prefix sum: replaces each count by the sum of those before it. One block; each thread takes a range of
 * adjacent counts. */
static __global__ void __launch_bounds__(SCAN_THREADS) scan_counts(int *counts, int count) {
    __shared__ int sums[SCAN_THREADS];
    int t = (int)threadIdx.x, share = (count + SCAN_THREADS - 1) / SCAN_THREADS, sum = 0;
    int first = t * share < count ? t * share : count;
    int last = first + share < count ? first + share : count;
    for (int i = first; i < last; i++)
        sum += counts[i];
    sums[t] = sum;
    __syncthreads();
    for (int apart = 1; apart < SCAN_THREADS; apart *= 2) {
        int before = t >= apart ? sums[t - apart] : 0;
        __syncthreads();
        sums[t] += before;
        __syncthreads();
    }
    sum = t > 0 ? sums[t - 1] : 0;
    for (int i = first; i < last; i++) {
        int own = counts[i];
        counts[i] = sum;
        sum += own;
    }
}

/* Puts each row after those with lower digits, those with the same digit in earlier tiles, and those with the same
 * digit before it in its own tile. */
static __global__ void __launch_bounds__(TILE)
    place_rows(const dsc_cuda_sorting s, const embedding_ids ids, int pass) {
    __shared__ int digits[TILE];
    int t = (int)threadIdx.x, tile = (int)blockIdx.x, i = tile * TILE + t, key = 0, row = 0;
    if (i < s.rows)
        before_pass(s, ids, pass, i, key, row);
    digits[t] = digit_of(key, pass);
    __syncthreads();
    if (i >= s.rows)
        return;
    int own = digits[t], place = s.counts[own * s.tiles + tile];
    for (int other = 0; other < t; other++)
        place += digits[other] == own;
    s.keys[pass & 1][place] = key;
    s.order[pass & 1][place] = row;
}

/* Sorts the rows by id; returns which pair of arrays holds the result. */
static int sort_rows(const dsc_cuda_launch *at, const dsc_cuda_sorting *s, const embedding_ids *ids) {
    int passes = 1;
    while ((int64_t)s->vocabulary >> (BITS * passes) > 0)
        passes++;
    for (int pass = 0; pass < passes; pass++) {
        DSC_LAUNCH((count_digits), dim3((unsigned)s->tiles), dim3(TILE), 0, at->stream)(*s, *ids, pass);
        DSC_LAUNCH((scan_counts), dim3(1), dim3(SCAN_THREADS), 0, at->stream)(s->counts, DIGITS * s->tiles);
        DSC_LAUNCH((place_rows), dim3((unsigned)s->tiles), dim3(TILE), 0, at->stream)(*s, *ids, pass);
    }
    return (passes - 1) & 1;
}

/* ---- backward ---- */

template <typename T> struct embedding_grad {
    dsc_cuda_sorting s;
    const int *keys, *order; /* sorted by key */
    int64_t features;
    dsc_number<T> beta;
    const T *dy;
    dsc_number<T> *dtable;

    /* Returns the place of the first sorted row whose key is at least v. */
    __device__ __forceinline__ int first_of(int v) const {
        int low = 0, high = s.rows;
        while (low < high) {
            int middle = low + (high - low) / 2;
            if (keys[middle] < v)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    /* Adds up features c .. c + N - 1 of the sorted rows first, first + step, ... below last. */
    template <int N>
    __device__ __forceinline__ void add(int first, int last, int step, int64_t c,
                                        dsc_number<T> (&sum)[N]) const {
#pragma unroll 4
        for (int i = first; i < last; i += step) {
            dsc_vector<T, N> value = dsc_load<T, N>(dy + order[i] * features + c);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += value.get(k);
        }
    }

    template <int N>
    __device__ __forceinline__ void store(int v, int64_t c, const dsc_number<T> (&sum)[N]) const {
        dsc_number<T> *to = dtable + v * features + c;
        dsc_vector<dsc_number<T>, N> out = {};
        if (beta != 0)
            out = dsc_load<dsc_number<T>, N>(to);
#pragma unroll
        for (int k = 0; k < N; k++)
            out.set(k, beta != 0 ? beta * out.get(k) + sum[k] : sum[k]);
        dsc_store<dsc_number<T>, N>(to, out);
    }
};

/* One warp per row of the table. Rows of the table with many rows of dy are left to add_many. */
template <typename T, int N>
static __global__ void __launch_bounds__(DSC_FLAT_THREADS) add_few(const embedding_grad<T> g) {
    int lane = (int)threadIdx.x % 32;
    for (int64_t v = dsc_flat_first() / 32; v < g.s.vocabulary; v += dsc_flat_step() / 32) {
        int first = g.first_of((int)v), last = g.first_of((int)v + 1);
        if (last - first > FEW) {
            if (lane == 0)
                g.s.many_ids[atomicAdd(g.s.many, 1)] = (int)v;
            continue;
        }
        if (first == last && g.beta == 1)
            continue;
        for (int64_t c = (int64_t)lane * N; c < g.features; c += 32 * N) {
            dsc_number<T> sum[N] = {};
            g.add(first, last, 1, c, sum);
            g.store((int)v, c, sum);
        }
    }
}

/* Block column blockIdx.x has 32 N features. Warp w of a block adds up every GROUPS-th row from row w on. */
template <typename T, int N>
static __global__ void __launch_bounds__(GROUPS * 32) add_many(const embedding_grad<T> g) {
    __shared__ dsc_number<T> sums[GROUPS][32 * N];
    int lane = (int)threadIdx.x % 32, group = (int)threadIdx.x / 32, t = (int)threadIdx.x;
    int64_t c = ((int64_t)blockIdx.x * 32 + lane) * N, own = (int64_t)blockIdx.x * 32 * N + t;
    for (int i = (int)blockIdx.y; i < *g.s.many; i += (int)gridDim.y) {
        int v = g.s.many_ids[i];
        dsc_number<T> sum[N] = {};
        if (c < g.features)
            g.add(g.first_of(v) + group, g.first_of(v + 1), GROUPS, c, sum);
        for (int k = 0; k < N; k++)
            sums[group][lane * N + k] = sum[k];
        __syncthreads();
        if (t < 32 * N && own < g.features) {
            dsc_number<T> total[1] = {0};
            for (int w = 0; w < GROUPS; w++)
                total[0] += sums[w][t];
            g.store(v, own, total);
        }
        __syncthreads();
    }
}

template <typename T, int N> static void launch_sums(const dsc_cuda_launch *at, const embedding_grad<T> *g) {
    DSC_LAUNCH((add_few<T, N>), dsc_flat_blocks(at, (int64_t)g->s.vocabulary * 32), DSC_FLAT_THREADS, 0,
               at->stream)
    (*g);
    int64_t many = g->s.rows / (FEW + 1), most = 2 * (int64_t)at->multiprocessors;
    int64_t slices = (g->features + 32 * N - 1) / (32 * N);
    if (many > 0)
        DSC_LAUNCH((add_many<T, N>), dim3((unsigned)slices, (unsigned)(many < most ? many : most)),
                   dim3(GROUPS * 32), 0, at->stream)
    (*g);
}

template <typename T>
static cudaError_t run_backward(const dsc_cuda_launch *at, const embedding_ids *ids,
                                const dsc_cuda_sorting *s, const dsc_tensor *dy, double beta,
                                dsc_tensor *dtable) {
    int result = sort_rows(at, s, ids);
    embedding_grad<T> g = {
        *s,           s->keys[result], s->order[result], dtable->dim[1], (dsc_number<T>)beta,
        dsc_data(dy), dsc_data(dtable)};
    if (dsc_fits<T>(g.features, g.dy, g.dtable))
        launch_sums<T, dsc_wide<T>()>(at, &g);
    else
        launch_sums<T, 1>(at, &g);
    return cudaGetLastError();
}

/* ---- the operations ---- */

dsc_status dsc_cuda_embedding_forward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *table,
                                      dsc_tensor *y) {
    embedding_ids from = ids_of(ids, table->dim[0]);
    DSC_CUDA_TRY(DSC_BY_TYPE(table->dtype, run_forward, dsc_cuda_at(q), &from, dsc_tensor_count(ids),
                             table->dim[1], dsc_data(table), dsc_data(y)));
    return DSC_OK;
}

size_t dsc_cuda_embedding_workspace(const dsc_device *, int64_t rows, int64_t) {
    return (size_t)ints_of(rows) * sizeof(int);
}

dsc_status dsc_cuda_embedding_backward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *dy, double beta,
                                       dsc_tensor *work, dsc_tensor *dtable) {
    int64_t vocabulary = dtable->dim[0];
    embedding_ids from = ids_of(ids, vocabulary);
    dsc_cuda_sorting sorting = sorting_of(dsc_tensor_count(ids), vocabulary, dsc_data(work));
    DSC_CUDA_TRY(DSC_BY_TYPE(dy->dtype, run_backward, dsc_cuda_at(q), &from, &sorting, dy, beta, dtable));
    return DSC_OK;
}

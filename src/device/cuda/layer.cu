/* Layers that have no file of their own: bias, elementwise formulas such as ReLU and sum, shortcut, dropout; and the
 * augmentation of images. */
#include "device/cuda/entries.h"
#include "device/cuda/layer.cuh"

typedef struct dsc_cuda_shortcut_shape {
    int64_t stride;
    int64_t h, w, c;   /* of x */
    int64_t oh, ow, k; /* of y */
} dsc_cuda_shortcut_shape;

/* The stream's step is read on the device: position[0]. keep = 1 - rate; row: elements per sample. */
typedef struct dsc_cuda_dropout_call {
    dsc_dropout_stream stream;
    double keep;
    int64_t count, row;
    int add;
    const int64_t *position;
} dsc_cuda_dropout_call;

typedef struct dsc_cuda_augment_call {
    dsc_augment_desc desc;
    int64_t n, h, w, c, rh, rw;
    const uint8_t *raw;
    const int32_t *place;
} dsc_cuda_augment_call;

/* ---- bias ---- */

template <typename T> struct bias_add {
    int64_t channels;
    const dsc_number<T> *b;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        int64_t row = i, channel = dsc_peel(row, channels);
        dsc_vector<T, N> value = dsc_load<T, N>(y + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            value.set(k, value.get(k) + b[channel + k]);
        dsc_store<T, N>(y + i, value);
    }
};

template <typename T>
static cudaError_t run_bias_add(const dsc_cuda_launch *at, int64_t rows, int64_t channels, const void *b,
                                void *y) {
    bias_add<T> operation = {channels, (const dsc_number<T> *)b, (T *)y};
    return dsc_flat_run<T>(at, rows * channels, dsc_fits<T>(channels, y), operation);
}

enum { SUM_ROWS = 4 }; /* rows that a thread loads at once */

template <typename T> struct bias_grad_call {
    typedef dsc_number<T> A;
    dsc_columns at;
    int add;
    const T *dy;
    A *db;
    double *partials;
    unsigned *tickets;
};

template <typename T, int N>
static __global__ void __launch_bounds__(DSC_COLUMN_THREADS, 2) bias_grad(const bias_grad_call<T> a) {
    typedef dsc_number<T> A;
    dsc_column_place p = dsc_column_place_of<N>(a.at);
    A mine[1][N] = {};
    double sum[1] = {0};
    int64_t jump = p.step * a.at.stride, at = p.first * a.at.stride + p.channel,
            own = dsc_column_own<N>(a.at);
    for (int64_t row = p.first; row < p.end; row += SUM_ROWS * p.step, at += SUM_ROWS * jump) {
        dsc_vector<T, N> dy[SUM_ROWS];
#pragma unroll
        for (int u = 0; u < SUM_ROWS; u++)
            dy[u] = dsc_load<T, N>(a.dy + at + (row + u * p.step < p.end ? u : 0) * jump);
#pragma unroll
        for (int u = 0; u < SUM_ROWS; u++)
#pragma unroll
            for (int i = 0; i < N; i++)
                mine[0][i] += row + u * p.step < p.end ? dy[u].get(i) : 0;
    }
    dsc_block_sums<1>(a.at.lanes, mine, sum);
    if (dsc_merge_blocks<1>(a.at.lanes * N, a.partials, a.tickets, sum) && own < a.at.width)
        a.db[own] = (A)(a.add ? (double)a.db[own] + sum[0] : sum[0]);
}

template <typename T, int N>
static cudaError_t sum_columns(const dsc_cuda_launch *at, int64_t rows, int64_t channels, const T *dy,
                               int add, dsc_number<T> *db) {
    for (int64_t first = 0; first < channels; first += DSC_COLUMN_SLICE) {
        int64_t width = dsc_column_slice(channels, first);
        dsc_columns c = dsc_columns_of(rows, channels, width, N, DSC_COLUMN_THREADS, SUM_ROWS,
                                       2 * (int64_t)at->multiprocessors);
        bias_grad_call<T> a = {c, add, dy + first, db + first, (double *)at->scratch, at->tickets};
        DSC_LAUNCH((bias_grad<T, N>), dim3(c.groups, c.chunks), dim3(DSC_COLUMN_THREADS), 0, at->stream)(a);
    }
    return cudaGetLastError();
}

template <typename T>
static cudaError_t run_bias_grad(const dsc_cuda_launch *at, int64_t rows, int64_t channels, const void *dy,
                                 int add, void *db) {
    const T *from = (const T *)dy;
    dsc_number<T> *to = (dsc_number<T> *)db;
    return dsc_fits<T>(channels, dy) ? sum_columns<T, dsc_wide<T>()>(at, rows, channels, from, add, to)
                                     : sum_columns<T, 1>(at, rows, channels, from, add, to);
}

/* ---- y = beta y + f(a, b) ---- */

/* One type for each formula. */
#define MAP(NAME, name, op, a_name, b_name, y_name)                                                          \
    struct name##_map {                                                                                      \
        static constexpr bool two = (b_name) != NULL;                                                        \
        template <typename A> static __device__ __forceinline__ A run(A a, A b) {                            \
            return dsc_map_##name(a, b);                                                                     \
        }                                                                                                    \
    };
DSC_MAPS(MAP)
#undef MAP

template <typename T, class Map> struct map_operation {
    const T *a, *b;
    int add;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        dsc_vector<T, N> left = dsc_load<T, N>(a + i), right = {}, out = {};
        if (Map::two)
            right = dsc_load<T, N>(b + i);
        if (add)
            out = dsc_load<T, N>(y + i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            dsc_number<T> value = Map::run(left.get(k), right.get(k));
            out.set(k, add ? out.get(k) + value : value);
        }
        dsc_store<T, N>(y + i, out);
    }
};

template <typename T>
static cudaError_t run_map(const dsc_cuda_launch *at, dsc_map map, int64_t count, const void *a,
                           const void *b, int add, void *y) {
    int wide = dsc_fits<T>(0, a, b, y);
    switch (map) {
#define MAP(NAME, name, op, a_name, b_name, y_name)                                                          \
    case DSC_MAP_##NAME: {                                                                                   \
        map_operation<T, name##_map> operation = {(const T *)a, (const T *)b, add, (T *)y};                  \
        return dsc_flat_run<T>(at, count, wide, operation);                                                  \
    }
        DSC_MAPS(MAP)
#undef MAP
    default:
        return cudaErrorInvalidValue;
    }
}

/* ---- the parameter-free shortcut ---- */

template <typename T> struct shortcut_forward {
    dsc_cuda_shortcut_shape s;
    const T *x;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        int64_t n = i, c = dsc_peel(n, s.k) - (s.k - s.c) / 2, column = dsc_peel(n, s.ow),
                row = dsc_peel(n, s.oh);
        dsc_vector<T, N> value;
        if (c >= 0 && c < s.c)
            value = dsc_load<T, N>(x + ((n * s.h + row * s.stride) * s.w + column * s.stride) * s.c + c);
        else
#pragma unroll
            for (int k = 0; k < N; k++)
                value.set(k, 0);
        dsc_store<T, N>(y + i, value);
    }
};

template <typename T> struct shortcut_backward {
    dsc_cuda_shortcut_shape s;
    const T *dy;
    int add;
    T *dx;

    template <int N> __device__ __forceinline__ void at(int64_t i) const {
        int64_t n = i, c = dsc_peel(n, s.c) + (s.k - s.c) / 2, column = dsc_peel(n, s.w),
                row = dsc_peel(n, s.h);
        int64_t off_row = dsc_peel(row, s.stride), off_column = dsc_peel(column, s.stride);
        int taken = off_row == 0 && off_column == 0;
        dsc_vector<T, N> value;
        if (taken)
            value = dsc_load<T, N>(dy + ((n * s.oh + row) * s.ow + column) * s.k + c);
        if (add && !taken)
            return;
        dsc_vector<T, N> old = {};
        if (add)
            old = dsc_load<T, N>(dx + i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            dsc_number<T> grad = taken ? value.get(k) : 0;
            old.set(k, add ? old.get(k) + grad : grad);
        }
        dsc_store<T, N>(dx + i, old);
    }
};

template <typename T>
static int shortcut_fits(const dsc_cuda_shortcut_shape *s, const void *x, const void *y) {
    return dsc_fits<T>(s->c, x, y) && dsc_fits<T>(s->k) && dsc_fits<T>((s->k - s->c) / 2);
}

template <typename T>
static cudaError_t run_shortcut_forward(const dsc_cuda_launch *at, int64_t n,
                                        const dsc_cuda_shortcut_shape *s, const void *x, void *y) {
    shortcut_forward<T> operation = {*s, (const T *)x, (T *)y};
    return dsc_flat_run<T>(at, n * s->oh * s->ow * s->k, shortcut_fits<T>(s, x, y), operation);
}

template <typename T>
static cudaError_t run_shortcut_backward(const dsc_cuda_launch *at, int64_t n,
                                         const dsc_cuda_shortcut_shape *s, const void *dy, int add,
                                         void *dx) {
    shortcut_backward<T> operation = {*s, (const T *)dy, add, (T *)dx};
    return dsc_flat_run<T>(at, n * s->h * s->w * s->c, shortcut_fits<T>(s, dx, dy), operation);
}

/* ---- dropout ---- */

/* Drops or keeps N of the four elements of a block of random words; `words` and x begin at the first of them. */
template <typename T, int N>
__device__ __forceinline__ void drop(const dsc_dropout_stream &stream, dsc_number<T> keep,
                                     const uint32_t *words, const T *x, int add, T *y) {
    dsc_vector<T, N> from = dsc_load<T, N>(x), to = {};
    if (add)
        to = dsc_load<T, N>(y);
#pragma unroll
    for (int k = 0; k < N; k++) {
        dsc_number<T> value = dsc_dropout_keeps(&stream, words[k]) ? from.get(k) / keep : 0;
        to.set(k, add ? to.get(k) + value : value);
    }
    dsc_store<T, N>(y, to);
}

/* A thread generates the four words of a block and uses them all. The tensor's first element may lie anywhere in its
 * block. */
template <typename T>
static __global__ void __launch_bounds__(DSC_FLAT_THREADS)
    dropout(const dsc_cuda_dropout_call a, int aligned, const T *x, T *y) {
    dsc_dropout_stream stream = a.stream;
    stream.step = (uint32_t)a.position[0];
    int64_t base = a.position[1] * a.row, first = base / 4, lead = base % 4;
    dsc_number<T> keep = (dsc_number<T>)a.keep;
    for (int64_t block = dsc_flat_first(); 4 * block < lead + a.count; block += dsc_flat_step()) {
        uint32_t words[4];
        int64_t i = 4 * block - lead;
        dsc_dropout_words(&stream, first + block, words);
        if (aligned && lead == 0 && i + 4 <= a.count) {
            drop<T, 4>(stream, keep, words, x + i, a.add, y + i);
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k >= 0 && i + k < a.count)
                drop<T, 1>(stream, keep, words + k, x + i + k, a.add, y + i + k);
    }
}

template <typename T>
static cudaError_t run_dropout(const dsc_cuda_launch *at, const dsc_cuda_dropout_call *call, const void *x,
                               void *y) {
    int aligned = dsc_fits<T>(0, x, y);
    DSC_LAUNCH((dropout<T>), dsc_flat_blocks(at, call->count / 4 + 1), DSC_FLAT_THREADS, 0, at->stream)
    (*call, aligned, (const T *)x, (T *)y);
    return cudaGetLastError();
}

/* ---- images ---- */

/* A thread computes a pixel. */
template <typename T>
static __global__ void __launch_bounds__(DSC_FLAT_THREADS) augment(const dsc_cuda_augment_call a, T *x) {
    typedef dsc_number<T> A;
    for (int64_t pixel = dsc_flat_first(); pixel < a.n * a.h * a.w; pixel += dsc_flat_step()) {
        int64_t n = pixel, column = dsc_peel(n, a.w), row = dsc_peel(n, a.h);
        const int32_t *place = a.place + 3 * n;
        row += place[0];
        column = (place[2] == 1 ? a.w - 1 - column : column) + place[1];
        int exists = row >= 0 && row < a.rh && column >= 0 && column < a.rw;
        const uint8_t *from = a.raw + ((n * a.rh + row) * a.rw + column) * a.c;
        T *to = x + pixel * a.c;
#pragma unroll
        for (int ch = 0; ch < 4; ch++)
            if (ch < a.c)
                dsc_set(to[ch], exists ? dsc_pixel((A)from[ch], (A)a.desc.scale[ch], (A)a.desc.shift[ch])
                                       : (A)a.desc.outside[ch]);
    }
}

template <typename T>
static cudaError_t run_augment(const dsc_cuda_launch *at, const dsc_cuda_augment_call *call, void *x) {
    int64_t pixels = call->n * call->h * call->w;
    DSC_LAUNCH((augment<T>), dsc_flat_blocks(at, pixels), DSC_FLAT_THREADS, 0, at->stream)(*call, (T *)x);
    return cudaGetLastError();
}

/* ---- the operations ---- */

dsc_status dsc_cuda_bias_add(dsc_queue *q, const dsc_tensor *b, dsc_tensor *y) {
    int64_t channels = b->dim[0], rows = dsc_tensor_count(y) / channels;
    DSC_CUDA_TRY(
        DSC_BY_TYPE(y->dtype, run_bias_add, dsc_cuda_at(q), rows, channels, dsc_data(b), dsc_data(y)));
    return DSC_OK;
}

dsc_status dsc_cuda_bias_grad(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *db) {
    int64_t channels = db->dim[0], rows = dsc_tensor_count(dy) / channels;
    DSC_CUDA_TRY(DSC_BY_TYPE(dy->dtype, run_bias_grad, dsc_cuda_at(q), rows, channels, dsc_data(dy),
                             beta != 0, dsc_data(db)));
    return DSC_OK;
}

dsc_status dsc_cuda_map(dsc_queue *q, dsc_map map, const dsc_tensor *a, const dsc_tensor *b, double beta,
                        dsc_tensor *y) {
    DSC_CUDA_TRY(DSC_BY_TYPE(y->dtype, run_map, dsc_cuda_at(q), map, dsc_tensor_count(y), dsc_data(a),
                             dsc_data(b), beta != 0, dsc_data(y)));
    return DSC_OK;
}

static dsc_cuda_shortcut_shape shortcut_shape(int64_t stride, const dsc_tensor *x, const dsc_tensor *y) {
    return (dsc_cuda_shortcut_shape){.stride = stride,
                                     .h = x->dim[1],
                                     .w = x->dim[2],
                                     .c = x->dim[3],
                                     .oh = y->dim[1],
                                     .ow = y->dim[2],
                                     .k = y->dim[3]};
}

dsc_status dsc_cuda_shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x, dsc_tensor *y) {
    dsc_cuda_shortcut_shape shape = shortcut_shape(stride, x, y);
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_shortcut_forward, dsc_cuda_at(q), x->dim[0], &shape, dsc_data(x),
                             dsc_data(y)));
    return DSC_OK;
}

dsc_status dsc_cuda_shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                      dsc_tensor *dx) {
    dsc_cuda_shortcut_shape shape = shortcut_shape(stride, dx, dy);
    DSC_CUDA_TRY(DSC_BY_TYPE(dx->dtype, run_shortcut_backward, dsc_cuda_at(q), dx->dim[0], &shape,
                             dsc_data(dy), beta != 0, dsc_data(dx)));
    return DSC_OK;
}

dsc_status dsc_cuda_dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                            const dsc_tensor *x, double beta, dsc_tensor *y) {
    dsc_cuda_dropout_call call = {.stream = dsc_dropout_start(desc, 0),
                                  .keep = 1 - desc->rate,
                                  .count = dsc_tensor_count(x),
                                  .row = dsc_tensor_count(x) / x->dim[0],
                                  .add = beta != 0,
                                  .position = dsc_data(position)};
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_dropout, dsc_cuda_at(q), &call, dsc_data(x), dsc_data(y)));
    return DSC_OK;
}

dsc_status dsc_cuda_augment(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                            const dsc_tensor *place, dsc_tensor *x) {
    dsc_cuda_augment_call call = {.desc = *desc,
                                  .n = x->dim[0],
                                  .h = x->dim[1],
                                  .w = x->dim[2],
                                  .c = x->dim[3],
                                  .rh = raw->dim[1],
                                  .rw = raw->dim[2],
                                  .raw = dsc_data(raw),
                                  .place = dsc_data(place)};
    DSC_CUDA_TRY(DSC_BY_TYPE(x->dtype, run_augment, dsc_cuda_at(q), &call, dsc_data(x)));
    return DSC_OK;
}

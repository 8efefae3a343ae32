/* Triangular matrices, and the operations that make up a second-order step. */
#include "device/cuda/elementwise.cuh"
#include "device/cuda/entries.h"

enum { DSC_CUDA_PIECES = 80, DSC_CUDA_WEIGHTS = 56, DSC_CUDA_TRIANGLES = 100 };

/* a[n, n] from its lower triangle p; count: the number of elements in the tiles that cover the lower triangle. */
typedef struct dsc_cuda_unpack_item {
    const void *p;
    void *a;
    int64_t n, count;
} dsc_cuda_unpack_item;

/* x[count / width, width]. */
typedef struct dsc_cuda_divide_item {
    const void *rows, *columns;
    void *x;
    int64_t count, width;
} dsc_cuda_divide_item;

/* x has the same shape; see dsc_weigh_item. Pointers that are not used are NULL. */
typedef struct dsc_cuda_weigh_item {
    const void *rows, *columns, *other_row, *other_column, *from;
    void *x;
    int64_t count, width;
} dsc_cuda_weigh_item;

typedef struct dsc_cuda_moment_item {
    const double *scale; /* NULL: s is read, but not updated */
    void *s, *x;
    int64_t count;
} dsc_cuda_moment_item;

/* d[count / width, width] = [w, b]; b is NULL if d has no column for the bias. */
typedef struct dsc_cuda_join_item {
    void *w, *b, *d;
    int64_t count, width;
} dsc_cuda_join_item;

/* The same with strides for w: see dsc_join_item. */
typedef struct dsc_cuda_place_item {
    void *w, *b, *d;
    int64_t count;
    int32_t width, channels, row_stride, position_stride, channel_stride;
} dsc_cuda_place_item;

/* part[m,n] of whole[..., width]: part[i,j] = whole[rows[i], columns[j]], or the other way round. */
typedef struct dsc_cuda_part {
    int64_t m, n, width;
    const int32_t *rows, *columns;
} dsc_cuda_part;

namespace {

/* ---- triangles ----
 *
 * Packing goes row by row, with one warp per row. Unpacking and symmetrising go tile by tile: a tile of the lower
 * triangle is read by rows, and its mirror image is written by rows. */

enum { TILE = 32, TILE_ROWS = 8 };

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS) pack_kernel(int64_t n, const T *a, T *p) {
    int64_t warps = dsc_flat_step() / 32, lane = threadIdx.x % 32;
    for (int64_t i = dsc_flat_first() / 32; i < n; i += warps) {
        const T *from = a + i * n;
        T *to = p + i * (i + 1) / 2;
#pragma unroll 4
        for (int64_t j = lane; j <= i; j += 32)
            to[j] = from[j];
    }
}

/* Returns element (i, j), j <= i, of the lower triangle, which is packed or part of a square matrix. */
template <typename T, bool PACKED>
__device__ __forceinline__ T lower(const T *from, int64_t n, int64_t i, int64_t j) {
    return PACKED ? from[i * (i + 1) / 2 + j] : from[i * n + j];
}

/* Mirrors the tile in this row and column of tiles, column <= row. All threads of the block call it. */
template <typename T, bool PACKED>
__device__ __forceinline__ void mirror_tile(int64_t n, const T *from, T *a, int64_t row, int64_t column) {
    __shared__ T tile[TILE][TILE + 1];
    int64_t top = row * TILE, left = column * TILE;
    for (int r = (int)threadIdx.y; r < TILE; r += TILE_ROWS) {
        int64_t i = top + r, j = left + threadIdx.x;
        if (i >= n || j > i)
            continue;
        T value = lower<T, PACKED>(from, n, i, j);
        tile[r][threadIdx.x] = value;
        if (PACKED)
            a[i * n + j] = value;
    }
    __syncthreads();
    for (int r = (int)threadIdx.y; r < TILE; r += TILE_ROWS) { /* r: a row of the mirror image */
        int64_t i = left + r, j = top + threadIdx.x;
        if (j < n && i < j)
            a[i * n + j] = tile[threadIdx.x][r];
    }
}

template <typename T, bool PACKED>
__global__ void __launch_bounds__(TILE *TILE_ROWS) mirror_kernel(int64_t n, const T *from, T *a) {
    if (blockIdx.x <= blockIdx.y)
        mirror_tile<T, PACKED>(n, from, a, blockIdx.y, blockIdx.x);
}

typedef dsc_batch<dsc_cuda_unpack_item, DSC_CUDA_TRIANGLES> unpack_batch;
static_assert(sizeof(unpack_batch) <= 3900, "a launch takes at most 4000 bytes");
static_assert(DSC_BATCH_LEAST == TILE * TILE, "a block gets whole tiles");

/* The tiles of the lower triangle are numbered row by row. */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE_ROWS) unpack_kernel(const __grid_constant__ unpack_batch b) {
    dsc_batch_place p = dsc_batch_find(b);
    const dsc_cuda_unpack_item &item = b.item[p.item];
    int64_t tile = p.begin / (TILE * TILE), end = p.end / (TILE * TILE);
    int64_t row = (int64_t)((sqrt(8.0 * (double)tile + 1) - 1) / 2); /* exact up to rounding */
    row -= row * (row + 1) / 2 > tile;
    row += (row + 1) * (row + 2) / 2 <= tile;
    for (int64_t column = tile - row * (row + 1) / 2; tile < end; tile++) {
        mirror_tile<T, true>(item.n, (const T *)item.p, (T *)item.a, row, column);
        __syncthreads(); /* before the next tile is written to shared memory */
        if (column++ == row) {
            row++;
            column = 0;
        }
    }
}

template <typename T>
cudaError_t unpacks(const dsc_cuda_launch *at, const dsc_cuda_unpack_item *items, int count) {
    unpack_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((unpack_kernel<T>), blocks, dim3(TILE, TILE_ROWS), 0, at->stream)(b);
    return cudaGetLastError();
}

template <typename T, bool PACKED>
cudaError_t mirror(const dsc_cuda_launch *at, int64_t n, const void *from, void *a) {
    unsigned tiles = (unsigned)((n + TILE - 1) / TILE);
    DSC_LAUNCH((mirror_kernel<T, PACKED>), dim3(tiles, tiles), dim3(TILE, TILE_ROWS), 0, at->stream)
    (n, (const T *)from, (T *)a);
    return cudaGetLastError();
}

template <typename T> cudaError_t pack(const dsc_cuda_launch *at, int64_t n, const void *a, void *p) {
    DSC_LAUNCH((pack_kernel<T>), dsc_flat_blocks(at, n * 32), DSC_FLAT_THREADS, 0, at->stream)
    (n, (const T *)a, (T *)p);
    return cudaGetLastError();
}

template <typename T> struct diagonal_body {
    int64_t n;
    const double *value;
    T *a;
    double add;

    __device__ bool start() {
        add = *value;
        return true;
    }

    template <int N> __device__ void run(int64_t i) const {
        a[i * (n + 1)] = (T)((double)a[i * (n + 1)] + add);
    }
};

template <typename T>
cudaError_t add_diagonal(const dsc_cuda_launch *at, int64_t n, const double *value, void *a) {
    diagonal_body<T> body = {n, value, (T *)a, 0};
    return dsc_flat_run<1>(at, body, n, true);
}

/* ---- quotients ---- */

typedef dsc_batch<dsc_cuda_divide_item, DSC_CUDA_PIECES> divide_batch;
static_assert(sizeof(divide_batch) <= 3900, "a launch takes at most 4000 bytes");

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    divide_kernel(const __grid_constant__ divide_batch b, const double *damping) {
    dsc_batch_place p = dsc_batch_find(b);
    const T *rows = (const T *)b.item[p.item].rows, *columns = (const T *)b.item[p.item].columns;
    T *x = (T *)b.item[p.item].x, add = (T)*damping;
    int64_t width = b.item[p.item].width;
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS) {
        int64_t i = e, j = dsc_peel(i, width);
        x[e] = dsc_divide(x[e], rows[i], columns[j], add);
    }
}

template <typename T>
cudaError_t divides(const dsc_cuda_launch *at, const double *damping, const dsc_cuda_divide_item *items,
                    int count) {
    divide_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((divide_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, damping);
    return cudaGetLastError();
}

typedef dsc_batch<dsc_cuda_weigh_item, DSC_CUDA_WEIGHTS> weigh_batch;
static_assert(sizeof(weigh_batch) <= 3900, "a launch takes at most 4000 bytes");

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    weigh_kernel(const __grid_constant__ weigh_batch b, const double *damping) {
    dsc_batch_place p = dsc_batch_find(b);
    const dsc_cuda_weigh_item &item = b.item[p.item];
    const T *rows = (const T *)item.rows, *columns = (const T *)item.columns, *from = (const T *)item.from;
    T *x = (T *)item.x, add = (T)*damping;
    T row = item.other_row ? *(const T *)item.other_row : (T)0;
    T column = item.other_column ? *(const T *)item.other_column : (T)0;
    int two_rows = rows && item.other_row, two_columns = columns && item.other_column;
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS) {
        int64_t i = e, j = dsc_peel(i, item.width);
        x[e] = from[e] * dsc_weight(rows ? rows[i] : row, columns ? columns[j] : column, add, two_rows, row,
                                    two_columns, column);
    }
}

template <typename T>
cudaError_t weighs(const dsc_cuda_launch *at, const double *damping, const dsc_cuda_weigh_item *items,
                   int count) {
    weigh_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((weigh_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, damping);
    return cudaGetLastError();
}

typedef dsc_batch<dsc_cuda_moment_item, DSC_CUDA_PIECES> moment_batch;
static_assert(sizeof(moment_batch) <= 3900, "a launch takes at most 4000 bytes");

template <typename T>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    moment_divide_kernel(const __grid_constant__ moment_batch b, const double *decay, const double *damping) {
    dsc_batch_place p = dsc_batch_find(b);
    const double *scale = b.item[p.item].scale;
    T *s = (T *)b.item[p.item].s, *x = (T *)b.item[p.item].x, add = (T)*damping, keep = (T)*decay;
    T take = (T)(scale ? dsc_moment_take(*decay, *scale) : 0);
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS) {
        T moment = s[e];
        if (take > 0) {
            moment = dsc_moment(x[e], moment, keep, take);
            s[e] = moment;
        }
        x[e] = dsc_divide(x[e], moment, (T)1, add);
    }
}

template <typename T>
cudaError_t moment_divides(const dsc_cuda_launch *at, const double *decay, const double *damping,
                           const dsc_cuda_moment_item *items, int count) {
    moment_batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((moment_divide_kernel<T>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, decay, damping);
    return cudaGetLastError();
}

template <typename T> struct inverse_body {
    int64_t n;
    const double *damping;
    const T *rows, *columns;
    T *out;
    T add;

    __device__ bool start() {
        add = (T)*damping;
        return true;
    }

    template <int N> __device__ void run(int64_t e) const {
        int64_t i = e, j = dsc_peel(i, n);
        out[e] = dsc_outer_inverse(rows[i], columns[j], add);
    }
};

template <typename T>
cudaError_t outer_inverse(const dsc_cuda_launch *at, int64_t m, int64_t n, const double *damping,
                          const void *rows, const void *columns, void *out) {
    inverse_body<T> body = {n, damping, (const T *)rows, (const T *)columns, (T *)out, 0};
    return dsc_flat_run<1>(at, body, m * n, true);
}

/* ---- weights and bias as one matrix ---- */

typedef dsc_batch<dsc_cuda_join_item, DSC_CUDA_PIECES> join_batch;
static_assert(sizeof(join_batch) <= 3900, "a launch takes at most 4000 bytes");

/* Returns where element e of d belongs: in w or in b. */
template <typename T> __device__ __forceinline__ T *origin(const dsc_cuda_join_item &item, int64_t e) {
    int64_t i = e, j = dsc_peel(i, item.width);
    if (!item.b)
        return (T *)item.w + e;
    return j == item.width - 1 ? (T *)item.b + i : (T *)item.w + (e - i);
}

enum { DSC_CUDA_PLACES = 60 };
typedef dsc_batch<dsc_cuda_place_item, DSC_CUDA_PLACES> place_batch;
static_assert(sizeof(place_batch) <= 3900, "a launch takes at most 4000 bytes");

template <typename T> __device__ __forceinline__ T *origin(const dsc_cuda_place_item &item, int64_t e) {
    int64_t i = e, j = dsc_peel(i, item.width);
    if (item.b && j == item.width - 1)
        return (T *)item.b + i;
    uint32_t position = (uint32_t)j / (uint32_t)item.channels,
             channel = (uint32_t)j % (uint32_t)item.channels;
    return (T *)item.w + (i * item.row_stride + (int64_t)position * item.position_stride +
                          (int64_t)channel * item.channel_stride);
}

template <typename T, class Batch>
__global__ void __launch_bounds__(DSC_FLAT_THREADS) join_kernel(const __grid_constant__ Batch b) {
    dsc_batch_place p = dsc_batch_find(b);
    T *d = (T *)b.item[p.item].d;
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS)
        d[e] = *origin<T>(b.item[p.item], e);
}

template <typename T, class Batch>
__global__ void __launch_bounds__(DSC_FLAT_THREADS)
    split_kernel(const __grid_constant__ Batch b, const double *scale) {
    dsc_batch_place p = dsc_batch_find(b);
    const T *d = (const T *)b.item[p.item].d;
    double factor = scale ? *scale : 1;
    if (!isfinite(factor))
        return;
#pragma unroll 4
    for (int64_t e = p.begin + threadIdx.x; e < p.end; e += DSC_FLAT_THREADS)
        *origin<T>(b.item[p.item], e) = (T)factor * d[e];
}

template <typename T, class Batch, class Item>
cudaError_t join_launch(const dsc_cuda_launch *at, const Item *items, int count) {
    Batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((join_kernel<T, Batch>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b);
    return cudaGetLastError();
}

template <typename T, class Batch, class Item>
cudaError_t split_launch(const dsc_cuda_launch *at, const double *scale, const Item *items, int count) {
    Batch b;
    unsigned blocks = dsc_batch_plan(at, items, count, &b);
    DSC_LAUNCH((split_kernel<T, Batch>), blocks, DSC_FLAT_THREADS, 0, at->stream)(b, scale);
    return cudaGetLastError();
}

template <typename T>
cudaError_t joins(const dsc_cuda_launch *at, const dsc_cuda_join_item *items, int count) {
    return join_launch<T, join_batch>(at, items, count);
}

template <typename T>
cudaError_t placed_joins(const dsc_cuda_launch *at, const dsc_cuda_place_item *items, int count) {
    return join_launch<T, place_batch>(at, items, count);
}

template <typename T>
cudaError_t splits(const dsc_cuda_launch *at, const double *scale, const dsc_cuda_join_item *items,
                   int count) {
    return split_launch<T, join_batch>(at, scale, items, count);
}

template <typename T>
cudaError_t placed_splits(const dsc_cuda_launch *at, const double *scale, const dsc_cuda_place_item *items,
                          int count) {
    return split_launch<T, place_batch>(at, scale, items, count);
}

/* ---- parts of a matrix ---- */

template <typename T, bool GATHER> struct part_body {
    dsc_cuda_part part;
    const T *src;
    T *dst;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t e) const {
        int64_t i = e, j = dsc_peel(i, part.n), at = part.rows[i] * part.width + part.columns[j];
        if (GATHER)
            dst[e] = src[at];
        else
            dst[at] = src[e];
    }
};

template <typename T, bool GATHER>
cudaError_t move_part(const dsc_cuda_launch *at, const dsc_cuda_part *part, const void *src, void *dst) {
    part_body<T, GATHER> body = {*part, (const T *)src, (T *)dst};
    return dsc_flat_run<1>(at, body, part->m * part->n, true);
}

struct kl_clip_body {
    const double *sum, *limits;
    double *out;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t i) const {
        out[i] = dsc_kl_clip(sum[i], limits[0], limits[1]);
    }
};

struct damping_split_body {
    const double *damping, *traces, *rows;
    double *out;

    __device__ bool start() {
        return true;
    }

    template <int N> __device__ void run(int64_t i) const {
        int64_t j = i ^ 1;
        out[i] = dsc_split_damping(*damping, traces[i] / rows[i], traces[j] / rows[j]);
    }
};

} // namespace

/* ---- operations on triangles ---- */

dsc_status dsc_cuda_symmetrize(dsc_queue *q, dsc_tensor *a) {
    DSC_CUDA_TRY(a->dtype == DSC_F64
                     ? mirror<double, false>(dsc_cuda_at(q), a->dim[0], dsc_data(a), dsc_data(a))
                     : mirror<float, false>(dsc_cuda_at(q), a->dim[0], dsc_data(a), dsc_data(a)));
    return DSC_OK;
}

dsc_status dsc_cuda_tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) {
    DSC_CUDA_TRY(DSC_BY_REAL(a->dtype, pack, dsc_cuda_at(q), a->dim[0], dsc_data(a), dsc_data(p)));
    return DSC_OK;
}

dsc_status dsc_cuda_tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) {
    DSC_CUDA_TRY(a->dtype == DSC_F64
                     ? mirror<double, true>(dsc_cuda_at(q), a->dim[0], dsc_data(p), dsc_data(a))
                     : mirror<float, true>(dsc_cuda_at(q), a->dim[0], dsc_data(p), dsc_data(a)));
    return DSC_OK;
}

dsc_status dsc_cuda_add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a) {
    DSC_CUDA_TRY(
        DSC_BY_REAL(a->dtype, add_diagonal, dsc_cuda_at(q), a->dim[0], dsc_data(value), dsc_data(a)));
    return DSC_OK;
}

/* ---- batches: a launch takes as many items as its arguments have room for ---- */

dsc_status dsc_cuda_tri_unpack_batch(dsc_queue *q, const dsc_unpack_item *items, int64_t count) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_TRIANGLES) {
        dsc_cuda_unpack_item part[DSC_CUDA_TRIANGLES];
        int n = dsc_batch_part(count - done, DSC_CUDA_TRIANGLES);
        for (int i = 0; i < n; i++) {
            const dsc_unpack_item *item = &items[done + i];
            int64_t rows = item->a.dim[0], tiles = (rows + TILE - 1) / TILE;
            part[i] = (dsc_cuda_unpack_item){dsc_data(&item->p), dsc_data(&item->a), rows,
                                             tiles * (tiles + 1) / 2 * TILE * TILE};
        }
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].a.dtype, unpacks, dsc_cuda_at(q), part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                                 int64_t count) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_PIECES) {
        dsc_cuda_divide_item part[DSC_CUDA_PIECES];
        int n = dsc_batch_part(count - done, DSC_CUDA_PIECES);
        for (int i = 0; i < n; i++) {
            const dsc_divide_item *item = &items[done + i];
            part[i] = (dsc_cuda_divide_item){dsc_data(&item->rows), dsc_data(&item->columns),
                                             dsc_data(&item->x), dsc_tensor_count(&item->x), item->x.dim[1]};
        }
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].x.dtype, divides, dsc_cuda_at(q), dsc_data(damping), part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_weigh_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_weigh_item *items,
                                int64_t count) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_WEIGHTS) {
        dsc_cuda_weigh_item part[DSC_CUDA_WEIGHTS];
        int n = dsc_batch_part(count - done, DSC_CUDA_WEIGHTS);
        for (int i = 0; i < n; i++) {
            const dsc_weigh_item *item = &items[done + i];
            part[i] = (dsc_cuda_weigh_item){dsc_data(&item->rows),      dsc_data(&item->columns),
                                            dsc_data(&item->other_row), dsc_data(&item->other_column),
                                            dsc_data(&item->from),      dsc_data(&item->x),
                                            dsc_tensor_count(&item->x), item->x.dim[1]};
        }
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].x.dtype, weighs, dsc_cuda_at(q), dsc_data(damping), part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_moment_divide_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *damping,
                                        const dsc_moment_item *items, int64_t count) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_PIECES) {
        dsc_cuda_moment_item part[DSC_CUDA_PIECES];
        int n = dsc_batch_part(count - done, DSC_CUDA_PIECES);
        for (int i = 0; i < n; i++) {
            const dsc_moment_item *item = &items[done + i];
            part[i] = (dsc_cuda_moment_item){dsc_data(&item->scale), dsc_data(&item->s), dsc_data(&item->x),
                                             dsc_tensor_count(&item->x)};
        }
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].x.dtype, moment_divides, dsc_cuda_at(q), dsc_data(decay),
                                 dsc_data(damping), part, n));
    }
    return DSC_OK;
}

/* Writes as many of these items as fit into a launch to `part`, in the form that the kernels take. Returns their
 * number. */
static int join_part(const dsc_join_item *items, int64_t left, dsc_cuda_join_item part[DSC_CUDA_PIECES]) {
    int n = dsc_batch_part(left, DSC_CUDA_PIECES);
    for (int i = 0; i < n; i++)
        part[i] = (dsc_cuda_join_item){dsc_data(&items[i].w), dsc_data(&items[i].b), dsc_data(&items[i].d),
                                       dsc_tensor_count(&items[i].d), items[i].d.dim[1]};
    return n;
}

/* Returns 1 if one of the items has strides. */
static int has_strides(const dsc_join_item *items, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (items[i].channels > 0)
            return 1;
    return 0;
}

/* The same for a batch in which some items have strides. */
static int place_part(const dsc_join_item *items, int64_t left, dsc_cuda_place_item part[DSC_CUDA_PLACES]) {
    int n = dsc_batch_part(left, DSC_CUDA_PLACES);
    for (int i = 0; i < n; i++) {
        const dsc_join_item *item = &items[i];
        int64_t width = item->d.dim[1], columns = width - (item->b.data ? 1 : 0);
        int plain = item->channels == 0;
        part[i] = (dsc_cuda_place_item){dsc_data(&item->w),
                                        dsc_data(&item->b),
                                        dsc_data(&item->d),
                                        dsc_tensor_count(&item->d),
                                        (int32_t)width,
                                        (int32_t)(plain ? columns : item->channels),
                                        (int32_t)(plain ? columns : item->row_stride),
                                        (int32_t)item->position_stride,
                                        plain ? 1 : (int32_t)item->channel_stride};
        if (part[i].channels < 1)
            part[i].channels = 1; /* d consists of the bias alone */
    }
    return n;
}

static dsc_status join_placed(dsc_queue *q, const dsc_join_item *items, int64_t count) {
    dsc_cuda_place_item part[DSC_CUDA_PLACES];
    for (int64_t done = 0; done < count; done += DSC_CUDA_PLACES) {
        int n = place_part(items + done, count - done, part);
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].d.dtype, placed_joins, dsc_cuda_at(q), part, n));
    }
    return DSC_OK;
}

static dsc_status split_placed(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                               int64_t count) {
    dsc_cuda_place_item part[DSC_CUDA_PLACES];
    for (int64_t done = 0; done < count; done += DSC_CUDA_PLACES) {
        int n = place_part(items + done, count - done, part);
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].d.dtype, placed_splits, dsc_cuda_at(q), dsc_data(scale), part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_join_batch(dsc_queue *q, const dsc_join_item *items, int64_t count) {
    dsc_cuda_join_item part[DSC_CUDA_PIECES];
    if (has_strides(items, count))
        return join_placed(q, items, count);
    for (int64_t done = 0; done < count; done += DSC_CUDA_PIECES) {
        int n = join_part(items + done, count - done, part);
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].d.dtype, joins, dsc_cuda_at(q), part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                                int64_t count) {
    dsc_cuda_join_item part[DSC_CUDA_PIECES];
    if (has_strides(items, count))
        return split_placed(q, scale, items, count);
    for (int64_t done = 0; done < count; done += DSC_CUDA_PIECES) {
        int n = join_part(items + done, count - done, part);
        DSC_CUDA_TRY(DSC_BY_REAL(items[0].d.dtype, splits, dsc_cuda_at(q), dsc_data(scale), part, n));
    }
    return DSC_OK;
}

/* ---- one matrix ---- */

dsc_status dsc_cuda_outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                  const dsc_tensor *columns, dsc_tensor *out) {
    DSC_CUDA_TRY(DSC_BY_REAL(out->dtype, outer_inverse, dsc_cuda_at(q), out->dim[0], out->dim[1],
                             dsc_data(damping), dsc_data(rows), dsc_data(columns), dsc_data(out)));
    return DSC_OK;
}

dsc_status dsc_cuda_gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                           const dsc_tensor *columns, dsc_tensor *dst) {
    const dsc_cuda_part part = {dst->dim[0], dst->dim[1], src->dim[1], dsc_data(rows), dsc_data(columns)};
    DSC_CUDA_TRY(dst->dtype == DSC_F64
                     ? move_part<double, true>(dsc_cuda_at(q), &part, dsc_data(src), dsc_data(dst))
                     : move_part<float, true>(dsc_cuda_at(q), &part, dsc_data(src), dsc_data(dst)));
    return DSC_OK;
}

dsc_status dsc_cuda_scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                            const dsc_tensor *columns, dsc_tensor *dst) {
    const dsc_cuda_part part = {src->dim[0], src->dim[1], dst->dim[1], dsc_data(rows), dsc_data(columns)};
    DSC_CUDA_TRY(dst->dtype == DSC_F64
                     ? move_part<double, false>(dsc_cuda_at(q), &part, dsc_data(src), dsc_data(dst))
                     : move_part<float, false>(dsc_cuda_at(q), &part, dsc_data(src), dsc_data(dst)));
    return DSC_OK;
}

dsc_status dsc_cuda_kl_clip(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits, dsc_tensor *out) {
    kl_clip_body body = {dsc_data(sum), dsc_data(limits), dsc_data(out)};
    DSC_CUDA_TRY(dsc_flat_run<1>(dsc_cuda_at(q), body, dsc_tensor_count(out), true));
    return DSC_OK;
}

dsc_status dsc_cuda_damping_split(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *traces,
                                  const dsc_tensor *rows, dsc_tensor *out) {
    damping_split_body body = {dsc_data(damping), dsc_data(traces), dsc_data(rows), dsc_data(out)};
    DSC_CUDA_TRY(dsc_flat_run<1>(dsc_cuda_at(q), body, dsc_tensor_count(out), true));
    return DSC_OK;
}

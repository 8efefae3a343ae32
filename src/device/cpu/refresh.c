/* The refresh of an eigenbasis on the cpu device. Rotations and Rayleigh quotients are for float32, but computed in
 * double. Columns are made orthonormal by LAPACK and BLAS, in float32 and float64.
 *
 * Work is divided into pieces that depend only on the item's size, and one thread computes a piece, so results do not
 * depend on the number of threads. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <cblas.h>
#include <lapacke.h>
#include <limits.h>
#include <math.h>

/* ---- rotations ---- */

/* For the columns of all bases, one basis after the other: the eigenvalues, the factors of dsc_turn_pull (0 if k = n),
 * and their places in the turned basis. */
typedef struct columns {
    double *values, *pulls;
    int64_t *places;
} columns;

static columns columns_at(const columns *all, int64_t first) {
    return (columns){all->values + first, all->pulls + first, all->places + first};
}

static void find_columns(const dsc_rotation_item *item, columns to) {
    const float *b = item->b.data;
    int64_t n = item->q.dim[0], k = item->q.dim[1];
    double largest = b[0];
    for (int64_t c = 0; c < k; c++) {
        to.values[c] = b[c * (k + 1)];
        largest = fmax(largest, to.values[c]);
    }
    for (int64_t c = 0; c < k; c++) {
        int64_t place = 0;
        for (int64_t i = 0; i < k; i++)
            place += dsc_turn_before(to.values[i], i, to.values[c], c);
        to.places[c] = place;
        to.pulls[c] = k < n ? dsc_turn_pull(to.values[c], largest) : 0;
    }
}

/* The tiles in which B is transposed: as many rows as a cache line has elements. */
enum { TILE_ROWS = 16, TILE_COLUMNS = 64 };

/* Computes `count` elements of row i of x, from column `first` of Q on; across[j] is b[first + j, i]. */
static void turn_row(const dsc_rotation_item *item, columns all, int64_t i, int64_t first, int count,
                     const float *across) {
    int64_t k = item->q.dim[1];
    const float *b = (const float *)item->b.data + i * k + first;
    const double *values = all.values + first, *pulls = all.pulls + first;
    double value = all.values[i], delta = item->delta, out[TILE_COLUMNS];
    float *x = (float *)item->x.data + i * k;
#pragma omp simd
    for (int j = 0; j < count; j++) {
        double element = ((double)b[j] + (double)across[j]) / 2;
        out[j] = dsc_turn_share(element, value, values[j], delta, pulls[j], 0);
    }
    if (i >= first && i < first + count)
        out[i - first] = dsc_turn_share(b[i - first], value, value, delta, pulls[i - first], 1);
    for (int j = 0; j < count; j++)
        x[all.places[first + j]] = (float)out[j];
}

/* Computes `rows` rows of x from `first` on, at most TILE_ROWS. */
static void turn_rows(const dsc_rotation_item *item, columns all, int64_t first, int64_t rows) {
    const float *b = item->b.data;
    int64_t k = item->q.dim[1];
    float across[TILE_ROWS][TILE_COLUMNS];
    for (int64_t c = 0; c < k; c += TILE_COLUMNS) {
        int count = (int)(k - c < TILE_COLUMNS ? k - c : TILE_COLUMNS);
        for (int j = 0; j < count; j++)
            for (int64_t r = 0; r < rows; r++)
                across[r][j] = b[(c + j) * k + first + r];
        for (int64_t r = 0; r < rows; r++)
            turn_row(item, all, first + r, c, count, across[r]);
    }
}

static void move_row(const dsc_rotation_item *item, columns all, int64_t row) {
    int64_t n = item->q.dim[0], k = item->q.dim[1];
    const float *q = (const float *)item->q.data + row * k, *y = (const float *)item->y.data + row * k;
    float *z = (float *)item->z.data + row * k;
    for (int64_t c = 0; k < n && c < k; c++)
        z[all.places[c]] = (float)((double)q[c] + (double)y[c] * all.pulls[c]);
    for (int64_t c = 0; k == n && c < k; c++)
        z[all.places[c]] = q[c];
}

/* The number of pieces; a piece is some rows of x and some of z, about 2^17 elements. */
static int rotation_pieces(const dsc_rotation_item *item) {
    int64_t elements = dsc_tensor_count(&item->x) + dsc_tensor_count(&item->z);
    return (int)(elements >> 17) + 1;
}

/* Computes piece number `number` of the batch. */
static void rotate_piece(const dsc_rotation_item *items, const columns *all, int64_t number) {
    int64_t before = 0;
    for (; number >= rotation_pieces(items); items++) {
        number -= rotation_pieces(items);
        before += items->q.dim[1];
    }
    columns own = columns_at(all, before);
    int pieces = rotation_pieces(items);
    dsc_cpu_range x = dsc_cpu_share(items->q.dim[1], TILE_ROWS, pieces, (int)number);
    dsc_cpu_range z = dsc_cpu_share(items->q.dim[0], 1, pieces, (int)number);
    for (int64_t done = 0; done < x.count; done += TILE_ROWS)
        turn_rows(items, own, x.first + done, x.count - done < TILE_ROWS ? x.count - done : TILE_ROWS);
    for (int64_t row = 0; row < z.count; row++)
        move_row(items, own, z.first + row);
}

static dsc_status rotation_batch(dsc_queue *q, const dsc_rotation_item *items, int64_t count) {
    int64_t widths = 0, pieces = 0, elements = 0;
    for (int64_t i = 0; i < count; i++) {
        widths += items[i].q.dim[1];
        pieces += rotation_pieces(&items[i]);
        elements += dsc_tensor_count(&items[i].z);
    }
    int parts = dsc_cpu_parts(q->device, elements);
    char *memory;
    DSC_TRY(dsc_cpu_scratch(q, widths * (int64_t)(3 * sizeof(double)), &memory));
    columns all = {.values = (void *)memory,
                   .places = (void *)(memory + 2 * widths * (int64_t)sizeof(double))};
    all.pulls = all.values + widths;
#pragma omp parallel num_threads(parts)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; i++) {
            int64_t before = 0;
            for (int64_t j = 0; j < i; j++)
                before += items[j].q.dim[1];
            find_columns(&items[i], columns_at(&all, before));
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = 0; p < pieces; p++)
            rotate_piece(items, &all, p);
    }
    return DSC_OK;
}

/* ---- orthonormal columns ----
 *
 * BLAS is told that matrices are row-major. LAPACK is column-major, so it is told that the lower triangle is the upper
 * one: it factorises H = R'R into R, which is L = R' in row-major order. */

enum { PIECE_BITS = 25, PIECE_ROWS = 128 };

/* The number of rows of Z that one thread solves at a time: about 2^25 multiplications, but not too few rows, because
 * each call copies the triangle. */
static int64_t piece_rows(const dsc_tensor *z) {
    int64_t k = z->dim[1], rows = (((int64_t)2 << PIECE_BITS) / (k * k) / PIECE_ROWS + 1) * PIECE_ROWS;
    return rows < z->dim[0] ? rows : z->dim[0];
}

static int64_t pieces_of(const dsc_tensor *z) {
    return (z->dim[0] + piece_rows(z) - 1) / piece_rows(z);
}

/* Returns 0 if H is not finite or not positive definite: a NaN or an infinity reaches the pivot of its row. */
static int factorise(const dsc_tensor *h) {
    lapack_int k = (lapack_int)h->dim[0];
    lapack_int info = h->dtype == DSC_F32 ? LAPACKE_spotrf_work(LAPACK_COL_MAJOR, 'U', k, h->data, k)
                                          : LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', k, h->data, k);
    int finite = info == 0;
    for (int64_t i = 0; finite && i < k; i++) {
        double pivot = h->dtype == DSC_F32 ? (double)((const float *)h->data)[i * (k + 1)]
                                           : ((const double *)h->data)[i * (k + 1)];
        finite = isfinite(pivot);
    }
    return finite;
}

static void solve_piece(const dsc_orthonormal_item *item, int64_t piece) {
    const dsc_tensor *z = &item->z;
    int64_t first = piece * piece_rows(z), left = z->dim[0] - first;
    int k = (int)z->dim[1], rows = (int)(left < piece_rows(z) ? left : piece_rows(z));
    if (z->dtype == DSC_F32)
        cblas_strsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, rows, k, 1, item->h.data,
                    k, (float *)z->data + first * k, k);
    else
        cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, rows, k, 1, item->h.data,
                    k, (double *)z->data + first * k, k);
}

/* Solves piece number `number`, counted over all items that have not failed. */
static void solve_numbered(const dsc_orthonormal_item *items, int64_t number) {
    for (; items->failed || number >= pieces_of(&items->z); items++)
        number -= items->failed ? 0 : pieces_of(&items->z);
    solve_piece(items, number);
}

static dsc_status orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) {
    int64_t pieces = 0;
    for (int64_t i = 0; i < count; i++)
        if (dsc_tensor_count(&items[i].z) > INT_MAX)
            return DSC_FAIL(DSC_E_UNSUPPORTED,
                            "orthonormal_batch: Z[%lld,%lld]; this BLAS counts %d elements",
                            (long long)items[i].z.dim[0], (long long)items[i].z.dim[1], INT_MAX);
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
#pragma omp parallel for num_threads(q->device->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        items[i].failed = !factorise(&items[i].h);
    for (int64_t i = 0; i < count; i++)
        pieces += items[i].failed ? 0 : pieces_of(&items[i].z);
#pragma omp parallel for num_threads(q->device->threads) schedule(dynamic, 1)
    for (int64_t p = 0; p < pieces; p++)
        solve_numbered(items, p);
    dsc_cpu_leave_threads(before);
    return DSC_OK;
}

/* ---- Rayleigh quotients ---- */

/* The number of columns that one thread sums at a time: some cache lines of each row. */
enum { GROUP = 64 };

/* Computes the Rayleigh quotients v_j of GROUP columns from `first` on, and the squared norms |y_j - v_j q_j|^2. */
static void measure_columns(const dsc_rayleigh_item *item, int64_t first, double *values, double *rests) {
    const float *q = item->q.data, *y = item->y.data;
    int64_t n = item->q.dim[0], k = item->q.dim[1];
    int width = (int)(k - first < GROUP ? k - first : GROUP);
    double qy[GROUP] = {0}, qq[GROUP] = {0}, rest[GROUP] = {0};
    for (int64_t e = first; e < n * k; e += k) {
#pragma omp simd
        for (int j = 0; j < width; j++) {
            qy[j] += (double)q[e + j] * (double)y[e + j];
            qq[j] += (double)q[e + j] * (double)q[e + j];
        }
    }
    for (int j = 0; j < width; j++)
        qy[j] = qq[j] == 0 ? 0 : qy[j] / qq[j];
    for (int64_t e = first; e < n * k; e += k) {
#pragma omp simd
        for (int j = 0; j < width; j++) {
            double left = (double)y[e + j] - qy[j] * (double)q[e + j];
            rest[j] += left * left;
        }
    }
    for (int j = 0; j < width; j++) {
        values[first + j] = qy[j];
        rests[first + j] = rest[j];
    }
}

static void write_result(const dsc_rayleigh_item *item, const double *values, const double *rests) {
    const float *a = item->a.data;
    float *v = item->v.data;
    double *result = item->result.data, trace = 0, sum = 0, squares = 0;
    int64_t n = item->q.dim[0], k = item->q.dim[1];
    for (int64_t i = 0; i < n; i++)
        trace += (double)a[i * (n + 1)];
    for (int64_t j = 0; j < k; j++) {
        v[j] = (float)values[j];
        sum += values[j];
        squares += dsc_residual_square(rests[j], values[j], item->delta);
    }
    result[0] = trace;
    result[1] = sum;
    result[2] = sqrt(squares / (double)k);
}

static int64_t groups_of(const dsc_rayleigh_item *item) {
    return (item->q.dim[1] + GROUP - 1) / GROUP;
}

/* Measures group number `number` of the columns, counted over all items; values and rests are those of all items, one
 * after the other. */
static void measure_group(const dsc_rayleigh_item *items, int64_t number, double *values, double *rests) {
    for (; number >= groups_of(items); items++) {
        number -= groups_of(items);
        values += items->q.dim[1];
        rests += items->q.dim[1];
    }
    measure_columns(items, number * GROUP, values, rests);
}

static dsc_status rayleigh_batch(dsc_queue *q, const dsc_rayleigh_item *items, int64_t count) {
    int64_t widths = 0, groups = 0, elements = 0;
    for (int64_t i = 0; i < count; i++) {
        widths += items[i].q.dim[1];
        groups += groups_of(&items[i]);
        elements += dsc_tensor_count(&items[i].q);
    }
    int parts = dsc_cpu_parts(q->device, elements);
    double *values;
    DSC_TRY(dsc_cpu_scratch(q, 2 * widths * (int64_t)sizeof *values, &values));
#pragma omp parallel for num_threads(parts) schedule(dynamic, 1)
    for (int64_t g = 0; g < groups; g++)
        measure_group(items, g, values, values + widths);
    for (int64_t i = 0; i < count; values += items[i++].q.dim[1])
        write_result(&items[i], values, values + widths);
    return DSC_OK;
}

void dsc_cpu_table_refresh(dsc_device_table *table) {
    table->rotation_batch = rotation_batch;
    table->orthonormal_batch = orthonormal_batch;
    table->rayleigh_batch = rayleigh_batch;
}

/* Batches on the cpu device: whichever thread is free takes the next piece of work. How work is divided into pieces
 * depends on the items alone, and one thread computes a piece, so results do not depend on the number of threads. */
#include "device/cpu/gemm.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

/* ---- products ---- */

/* A piece is a whole product or, if that is large, as many of its columns as make about 2^26 multiplications; columns
 * are cut where tiles of the libraries and of our own kernels end. */
enum { PIECE_BITS = 26, PIECE_COLUMNS = 96, MAX_PIECES = 4096 };

static int pieces_of(const dsc_gemm_item *item) {
    int64_t m = item->c.dim[0], n = item->c.dim[1], k = item->a.dim[item->trans_a ? 0 : 1];
    int64_t by_work = (m * n * k) >> PIECE_BITS, by_columns = n / PIECE_COLUMNS;
    int64_t pieces = by_work < by_columns ? by_work : by_columns;
    return pieces < 1 ? 1 : pieces > MAX_PIECES ? MAX_PIECES : (int)pieces;
}

/* Finds piece number `number` of the batch. Counting from the front costs nothing compared to a product. */
static dsc_cpu_gemm find_piece(const dsc_gemm_item *items, int64_t number) {
    int64_t before = 0;
    while (number - before >= pieces_of(items))
        before += pieces_of(items++);
    dsc_cpu_gemm g = dsc_cpu_product((const int[]){items->trans_a, items->trans_b}, items->alpha, &items->a,
                                     &items->b, items->beta, &items->c);
    dsc_cpu_range columns = dsc_cpu_share(g.n, PIECE_COLUMNS, pieces_of(items), (int)(number - before));
    g.n = columns.count;
    g.b += columns.first * g.b_column;
    g.c += columns.first;
    return g;
}

static dsc_status gemm_batch(dsc_queue *q, const dsc_gemm_item *items, int64_t count) {
    const dsc_cpu *cpu = dsc_cpu_of(q);
    int64_t pieces = 0;
    int failed = 0;
    for (int64_t i = 0; i < count; i++) {
        const dsc_gemm_item *item = &items[i];
        dsc_cpu_gemm g = dsc_cpu_product((const int[]){item->trans_a, item->trans_b}, item->alpha, &item->a,
                                         &item->b, item->beta, &item->c);
        DSC_TRY(dsc_cpu_product_check(cpu, "gemm_batch", &g));
        pieces += pieces_of(item);
    }
    dsc_cpu_threads before = dsc_cpu_use_threads(1);
#pragma omp parallel for num_threads(q->device->threads) schedule(dynamic, 1) reduction(| : failed)
    for (int64_t p = 0; p < pieces; p++) {
        dsc_cpu_gemm g = find_piece(items, p);
        failed |= dsc_cpu_multiply(cpu, &g) != DSC_OK; /* the message stays in that thread */
    }
    dsc_cpu_leave_threads(before);
    if (failed)
        return DSC_FAIL(DSC_E_DEVICE, "gemm_batch: one of %lld products failed", (long long)count);
    return DSC_OK;
}

/* ---- quotients ---- */

static void divide(float damping, const dsc_divide_item *item) {
    const float *rows = item->rows.data, *columns = item->columns.data;
    int64_t n = item->x.dim[1];
    for (int64_t i = 0; i < item->x.dim[0]; i++) {
        float row = rows[i], *x = (float *)item->x.data + i * n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            x[j] = dsc_divide_f(x[j], row, columns[j], damping);
    }
}

static dsc_status divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                               int64_t count) {
    float value = (float)*(const double *)damping->data;
    int64_t elements = 0;
    for (int64_t i = 0; i < count; i++)
        elements += dsc_tensor_count(&items[i].x);
    int parts = dsc_cpu_parts(q->device, elements);
#pragma omp parallel for num_threads(parts) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        divide(value, &items[i]);
    return DSC_OK;
}

/* A missing vector is replaced by its scalar. */
static void weigh(float damping, const dsc_weigh_item *item) {
    const float *rows = item->rows.data, *columns = item->columns.data;
    const float *other_row = item->other_row.data, *other_column = item->other_column.data;
    int two_rows = rows && other_row, two_columns = columns && other_column;
    float row_rest = other_row ? *other_row : 0, column_rest = other_column ? *other_column : 0;
    int64_t n = item->x.dim[1];
    for (int64_t i = 0; i < item->x.dim[0]; i++) {
        const float *from = (const float *)item->from.data + i * n;
        float row = rows ? rows[i] : row_rest, *x = (float *)item->x.data + i * n;
        if (!columns) {
            float weight = dsc_weight_f(row, column_rest, damping, two_rows, row_rest, 0, 0);
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                x[j] = from[j] * weight;
            continue;
        }
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            x[j] = from[j] *
                   dsc_weight_f(row, columns[j], damping, two_rows, row_rest, two_columns, column_rest);
    }
}

static dsc_status weigh_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_weigh_item *items,
                              int64_t count) {
    float value = (float)*(const double *)damping->data;
    int64_t elements = 0;
    for (int64_t i = 0; i < count; i++)
        elements += dsc_tensor_count(&items[i].x);
    int parts = dsc_cpu_parts(q->device, elements);
#pragma omp parallel for num_threads(parts) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        weigh(value, &items[i]);
    return DSC_OK;
}

static void moment_divide(double decay, float damping, const dsc_moment_item *item) {
    double scale = item->scale.data ? *(const double *)item->scale.data : 0;
    float keep = (float)decay, take = (float)dsc_moment_take(decay, scale);
    float *s = item->s.data, *x = item->x.data;
    int64_t n = dsc_tensor_count(&item->x);
    if (take > 0) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            s[i] = dsc_moment_f(x[i], s[i], keep, take);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] = dsc_divide_f(x[i], s[i], 1, damping);
}

static dsc_status moment_divide_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *damping,
                                      const dsc_moment_item *items, int64_t count) {
    double keep = *(const double *)decay->data, add = *(const double *)damping->data;
    int64_t elements = 0;
    for (int64_t i = 0; i < count; i++)
        elements += dsc_tensor_count(&items[i].x);
    int parts = dsc_cpu_parts(q->device, elements);
#pragma omp parallel for num_threads(parts) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        moment_divide(keep, (float)add, &items[i]);
    return DSC_OK;
}

/* ---- weights and bias as one matrix ---- */

/* Makes row i of d from w and b. */
static void join_row(const dsc_join_item *item, int64_t i) {
    int64_t width = item->d.dim[1], n = width - (item->b.data ? 1 : 0);
    float *d = (float *)item->d.data + i * width;
    const float *w = item->w.data;
    if (item->channels == 0)
        memcpy(d, w + i * n, (size_t)n * sizeof *d);
    for (int64_t j = 0; item->channels > 0 && j < n; j += item->channels) {
        const float *from = w + i * item->row_stride + j / item->channels * item->position_stride;
        for (int64_t c = 0; c < item->channels; c++)
            d[j + c] = from[c * item->channel_stride];
    }
    if (item->b.data)
        d[n] = ((const float *)item->b.data)[i];
}

static dsc_status join_batch(dsc_queue *q, const dsc_join_item *items, int64_t count) {
    for (int64_t item = 0; item < count; item++) {
        int parts = dsc_cpu_parts(q->device, dsc_tensor_count(&items[item].d));
#pragma omp parallel for num_threads(parts) schedule(static)
        for (int64_t i = 0; i < items[item].d.dim[0]; i++)
            join_row(&items[item], i);
    }
    return DSC_OK;
}

static void split(float factor, const dsc_join_item *item) {
    int64_t width = item->d.dim[1], n = width - (item->b.data ? 1 : 0);
    for (int64_t i = 0; i < item->d.dim[0]; i++) {
        const float *d = (const float *)item->d.data + i * width;
        float *w = (float *)item->w.data + (item->channels == 0 ? i * n : i * item->row_stride);
        if (item->channels == 0) {
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                w[j] = factor * d[j];
        }
        for (int64_t j = 0; item->channels > 0 && j < n; j += item->channels)
            for (int64_t c = 0; c < item->channels; c++)
                w[j / item->channels * item->position_stride + c * item->channel_stride] = factor * d[j + c];
        if (item->b.data)
            ((float *)item->b.data)[i] = factor * d[n];
    }
}

static dsc_status split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                              int64_t count) {
    double factor = scale ? *(const double *)scale->data : 1;
    int64_t elements = 0;
    if (!isfinite(factor))
        return DSC_OK;
    for (int64_t i = 0; i < count; i++)
        elements += dsc_tensor_count(&items[i].d);
    int parts = dsc_cpu_parts(q->device, elements);
#pragma omp parallel for num_threads(parts) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        split((float)factor, &items[i]);
    return DSC_OK;
}

void dsc_cpu_table_batch(dsc_device_table *table) {
    table->gemm_batch = gemm_batch;
    table->divide_batch = divide_batch;
    table->weigh_batch = weigh_batch;
    table->moment_divide_batch = moment_divide_batch;
    table->join_batch = join_batch;
    table->split_batch = split_batch;
}

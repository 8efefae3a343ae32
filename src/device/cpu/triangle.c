/* Triangles of the cpu device: mirrors, packs and transposes them, tile by tile where rows become columns. */
#include "device/cpu/triangle.h"

#include <string.h>

enum { TILE = 32 };

/* Copies one tile of the upper triangle from its mirror image, or exchanges the two. size: the bytes of an element, a
 * constant wherever this function is inlined. */
static inline __attribute__((always_inline)) void turn_tile(const size_t size, const int exchange, int64_t n,
                                                            int64_t i0, int64_t j0, char *a) {
    int64_t i1 = i0 + TILE < n ? i0 + TILE : n, j1 = j0 + TILE < n ? j0 + TILE : n;
    for (int64_t i = i0; i < i1; i++) {
        for (int64_t j = j0 > i ? j0 : i + 1; j < j1; j++) {
            char *upper = a + (size_t)(i * n + j) * size, *lower = a + (size_t)(j * n + i) * size;
            char kept[sizeof(double)];
            memcpy(kept, upper, size);
            memcpy(upper, lower, size);
            if (exchange)
                memcpy(lower, kept, size);
        }
    }
}

/* Does this for all tiles of one row of tiles. */
static void turn_tiles(dsc_dtype dtype, int exchange, int64_t n, int64_t i0, char *a) {
    for (int64_t j0 = i0; j0 < n; j0 += TILE) {
        if (dtype == DSC_F32 && exchange)
            turn_tile(sizeof(float), 1, n, i0, j0, a);
        else if (dtype == DSC_F32)
            turn_tile(sizeof(float), 0, n, i0, j0, a);
        else if (exchange)
            turn_tile(sizeof(double), 1, n, i0, j0, a);
        else
            turn_tile(sizeof(double), 0, n, i0, j0, a);
    }
}

static void turn(const dsc_device *device, dsc_dtype dtype, int exchange, int64_t n, void *a) {
    int parts = dsc_cpu_parts(device, n * n);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int64_t i0 = 0; i0 < n; i0 += TILE)
        turn_tiles(dtype, exchange, n, i0, a);
}

void dsc_cpu_mirror(const dsc_device *device, dsc_dtype dtype, int64_t n, void *a) {
    turn(device, dtype, 0, n, a);
}

void dsc_cpu_transpose(const dsc_device *device, dsc_dtype dtype, int64_t n, void *a) {
    turn(device, dtype, 1, n, a);
}

/* ---- the operations ---- */

static dsc_status symmetrize(dsc_queue *q, dsc_tensor *a) {
    dsc_cpu_mirror(q->device, DSC_F32, a->dim[0], a->data);
    return DSC_OK;
}

static dsc_status tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) {
    int64_t n = a->dim[0];
    int parts = dsc_cpu_parts(q->device, n * n);
    const float *from = a->data;
    float *to = p->data;
#pragma omp parallel for num_threads(parts) schedule(static, 16)
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * (i + 1) / 2, from + i * n, (size_t)(i + 1) * sizeof *to);
    return DSC_OK;
}

static dsc_status tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) {
    int64_t n = a->dim[0];
    int parts = dsc_cpu_parts(q->device, n * n);
    const float *from = p->data;
    float *to = a->data;
#pragma omp parallel for num_threads(parts) schedule(static, 16)
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * n, from + i * (i + 1) / 2, (size_t)(i + 1) * sizeof *to);
    dsc_cpu_mirror(q->device, DSC_F32, n, to);
    return DSC_OK;
}

static dsc_status add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a) {
    (void)q;
    int64_t n = a->dim[0];
    float *to = a->data, added = (float)*(const double *)value->data;
    for (int64_t i = 0; i < n; i++)
        to[i * (n + 1)] += added;
    return DSC_OK;
}

void dsc_cpu_table_triangle(dsc_device_table *table) {
    table->symmetrize = symmetrize;
    table->tri_pack = tri_pack;
    table->tri_unpack = tri_unpack;
    table->add_diagonal = add_diagonal;
}

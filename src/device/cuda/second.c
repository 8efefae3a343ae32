/* Triangles, and the pieces of a second-order step: entries. Kernels in second.cu and elementwise.cu. */
#include "device/cuda/elementwise_kernels.h"
#include "device/cuda/entries.h"
#include "device/cuda/second_kernels.h"
#include "device/cuda/state.h"

/* ---- triangles ---- */

dsc_status dsc_cuda_symmetrize(dsc_queue *q, dsc_tensor *a) {
    DSC_CUDA_TRY(dsc_cuda_launch_symmetrize(dsc_cuda_at(q), a->dtype, a->dim[0], a->data));
    return DSC_OK;
}

dsc_status dsc_cuda_tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) {
    DSC_CUDA_TRY(dsc_cuda_launch_tri_pack(dsc_cuda_at(q), a->dtype, a->dim[0], a->data, p->data));
    return DSC_OK;
}

dsc_status dsc_cuda_tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) {
    DSC_CUDA_TRY(dsc_cuda_launch_tri_unpack(dsc_cuda_at(q), a->dtype, a->dim[0], p->data, a->data));
    return DSC_OK;
}

dsc_status dsc_cuda_add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a) {
    DSC_CUDA_TRY(dsc_cuda_launch_add_diagonal(dsc_cuda_at(q), a->dtype, a->dim[0], value->data, a->data));
    return DSC_OK;
}

/* ---- batches: as many items a launch as its arguments have room for ---- */

static int part_of(int64_t left, int most) {
    return left < most ? (int)left : most;
}

dsc_status dsc_cuda_divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                                 int64_t count) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_PIECES) {
        dsc_cuda_divide_item part[DSC_CUDA_PIECES];
        int n = part_of(count - done, DSC_CUDA_PIECES);
        for (int i = 0; i < n; i++) {
            const dsc_divide_item *item = &items[done + i];
            part[i] = (dsc_cuda_divide_item){item->rows.data, item->columns.data, item->x.data,
                                             dsc_tensor_count(&item->x), item->x.dim[1]};
        }
        DSC_CUDA_TRY(dsc_cuda_launch_divides(dsc_cuda_at(q), items[0].x.dtype, damping->data, part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_dot_batch(dsc_queue *q, const dsc_dot_item *items, int64_t count, dsc_tensor *out) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_DOTS) {
        dsc_cuda_dot_item part[DSC_CUDA_DOTS];
        int n = part_of(count - done, DSC_CUDA_DOTS);
        for (int i = 0; i < n; i++) {
            const dsc_dot_item *item = &items[done + i];
            part[i] = (dsc_cuda_dot_item){item->x.data, item->y.data, dsc_tensor_count(&item->x)};
        }
        DSC_CUDA_TRY(
            dsc_cuda_launch_dots(dsc_cuda_at(q), items[0].x.dtype, part, n, 0, (double *)out->data + done));
    }
    return DSC_OK;
}

/* As many of these as fit into a launch, as the kernels take them; their number. */
static int join_part(const dsc_join_item *items, int64_t left, dsc_cuda_join_item part[DSC_CUDA_PIECES]) {
    int n = part_of(left, DSC_CUDA_PIECES);
    for (int i = 0; i < n; i++)
        part[i] = (dsc_cuda_join_item){items[i].w.data, items[i].b.data, items[i].d.data,
                                       dsc_tensor_count(&items[i].d), items[i].d.dim[1]};
    return n;
}

dsc_status dsc_cuda_join_batch(dsc_queue *q, const dsc_join_item *items, int64_t count) {
    dsc_cuda_join_item part[DSC_CUDA_PIECES];
    for (int64_t done = 0; done < count; done += DSC_CUDA_PIECES) {
        int n = join_part(items + done, count - done, part);
        DSC_CUDA_TRY(dsc_cuda_launch_joins(dsc_cuda_at(q), items[0].d.dtype, part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                                int64_t count) {
    dsc_cuda_join_item part[DSC_CUDA_PIECES];
    for (int64_t done = 0; done < count; done += DSC_CUDA_PIECES) {
        int n = join_part(items + done, count - done, part);
        DSC_CUDA_TRY(
            dsc_cuda_launch_splits(dsc_cuda_at(q), items[0].d.dtype, scale ? scale->data : NULL, part, n));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_absorb_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_absorb_item *items,
                                 int64_t count) {
    for (int64_t done = 0; done < count; done += DSC_CUDA_ABSORBS) {
        dsc_cuda_absorb_item part[DSC_CUDA_ABSORBS];
        int n = part_of(count - done, DSC_CUDA_ABSORBS);
        for (int i = 0; i < n; i++) {
            const dsc_absorb_item *item = &items[done + i];
            part[i] = (dsc_cuda_absorb_item){item->x.data, item->bad.data, item->y.data,
                                             dsc_tensor_count(&item->x)};
        }
        DSC_CUDA_TRY(dsc_cuda_launch_counts(dsc_cuda_at(q), items[0].x.dtype, part, n, 0));
        DSC_CUDA_TRY(dsc_cuda_launch_blends(dsc_cuda_at(q), items[0].x.dtype, decay->data, part, n));
    }
    return DSC_OK;
}

/* ---- one matrix ---- */

dsc_status dsc_cuda_join(dsc_queue *q, const dsc_tensor *w, const dsc_tensor *b, dsc_tensor *d) {
    const dsc_join_item item = {.w = *w, .b = *b, .d = *d};
    return dsc_cuda_join_batch(q, &item, 1);
}

dsc_status dsc_cuda_outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                  const dsc_tensor *columns, dsc_tensor *out) {
    DSC_CUDA_TRY(dsc_cuda_launch_outer_inverse(dsc_cuda_at(q), out->dtype, out->dim[0], out->dim[1],
                                               damping->data, rows->data, columns->data, out->data));
    return DSC_OK;
}

dsc_status dsc_cuda_gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                           const dsc_tensor *columns, dsc_tensor *dst) {
    const dsc_cuda_part part = {dst->dim[0], dst->dim[1], src->dim[1], rows->data, columns->data};
    DSC_CUDA_TRY(dsc_cuda_launch_gather(dsc_cuda_at(q), dst->dtype, &part, src->data, dst->data));
    return DSC_OK;
}

dsc_status dsc_cuda_scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                            const dsc_tensor *columns, dsc_tensor *dst) {
    const dsc_cuda_part part = {src->dim[0], src->dim[1], dst->dim[1], rows->data, columns->data};
    DSC_CUDA_TRY(dsc_cuda_launch_scatter(dsc_cuda_at(q), dst->dtype, &part, src->data, dst->data));
    return DSC_OK;
}

dsc_status dsc_cuda_kl_clip(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits, dsc_tensor *out) {
    DSC_CUDA_TRY(dsc_cuda_launch_kl_clip(dsc_cuda_at(q), sum->data, limits->data, out->data));
    return DSC_OK;
}

/* Small eigenvalue problems, many in one launch: the items of dsc_op_syev_batch that are marked as quick. */
#include "device/cuda/jacobi_kernels.h"
#include "device/cuda/state.h"

int dsc_cuda_is_quick(const dsc_queue *q, const dsc_solve_item *item) {
    int64_t n = item->a.dim[0];
    return item->quick && item->a.dtype == DSC_F32 && n <= DSC_JACOBI_ROWS &&
           dsc_cuda_jacobi_shared(n) <= dsc_cuda_of(q->device)->shared;
}

/* Solves items[numbers[0]] to items[numbers[count - 1]]. */
static dsc_status solve(dsc_queue *q, dsc_solve_item *items, const int64_t *numbers, int count) {
    const dsc_cuda_launch *at = dsc_cuda_at(q);
    dsc_jacobi part[DSC_JACOBI_ITEMS];
    int failed[DSC_JACOBI_ITEMS], *outcomes = at->scratch;
    if (count == 0)
        return DSC_OK;
    for (int i = 0; i < count; i++) {
        const dsc_solve_item *item = &items[numbers[i]];
        part[i] = (dsc_jacobi){item->a.data, item->v.data, outcomes + i, (int32_t)item->a.dim[0]};
    }
    DSC_CUDA_TRY(dsc_cuda_launch_jacobi(at, part, count));
    DSC_CUDA_TRY(cudaMemcpyAsync(failed, outcomes, (size_t)count * sizeof *failed, cudaMemcpyDeviceToHost,
                                 at->stream));
    DSC_CUDA_TRY(cudaStreamSynchronize(at->stream));
    for (int i = 0; i < count; i++)
        items[numbers[i]].failed = failed[i];
    return DSC_OK;
}

dsc_status dsc_cuda_jacobi_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) {
    int64_t numbers[DSC_JACOBI_ITEMS];
    int found = 0;
    DSC_TRY(dsc_cuda_refuse_recording(q, "syev_batch"));
    for (int64_t i = 0; i < count; i++) {
        if (!dsc_cuda_is_quick(q, &items[i]))
            continue;
        numbers[found++] = i;
        if (found == DSC_JACOBI_ITEMS) {
            DSC_TRY(solve(q, items, numbers, found));
            found = 0;
        }
    }
    return solve(q, items, numbers, found);
}

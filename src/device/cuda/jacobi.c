/* Eigen problems of few rows, all at once in one launch: those of dsc_op_syev_batch that are marked as quick. */
#include "device/cuda/jacobi_kernels.h"
#include "device/cuda/state.h"

static int is_quick(const dsc_queue *q, const dsc_solve_item *item) {
    int64_t n = item->a.dim[0];
    return item->quick && item->a.dtype == DSC_F32 && n <= DSC_JACOBI_ROWS &&
           dsc_cuda_jacobi_shared(n) <= dsc_cuda_of(q->device)->shared;
}

static int64_t run_of(const dsc_queue *q, const dsc_solve_item *items, int64_t count, int quick) {
    int64_t length = 0;
    while (length < count && is_quick(q, &items[length]) == quick)
        length++;
    return length;
}

int64_t dsc_cuda_jacobi_run(const dsc_queue *q, const dsc_solve_item *items, int64_t count) {
    return run_of(q, items, count, 1);
}

int64_t dsc_cuda_other_run(const dsc_queue *q, const dsc_solve_item *items, int64_t count) {
    return run_of(q, items, count, 0);
}

dsc_status dsc_cuda_jacobi_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) {
    const dsc_cuda_launch *at = dsc_cuda_at(q);
    dsc_jacobi part[DSC_JACOBI_ITEMS];
    int failed[DSC_JACOBI_ITEMS], *outcomes = at->scratch;
    DSC_TRY(dsc_cuda_refuse_recording(q, "syev_batch"));
    for (int64_t done = 0; done < count;) {
        int n = count - done < DSC_JACOBI_ITEMS ? (int)(count - done) : (int)DSC_JACOBI_ITEMS;
        for (int i = 0; i < n; i++) {
            const dsc_solve_item *item = &items[done + i];
            part[i] = (dsc_jacobi){item->a.data, item->v.data, outcomes + i, (int32_t)item->a.dim[0]};
        }
        DSC_CUDA_TRY(dsc_cuda_launch_jacobi(at, part, n));
        DSC_CUDA_TRY(cudaMemcpyAsync(failed, outcomes, (size_t)n * sizeof *failed, cudaMemcpyDeviceToHost,
                                     at->stream));
        DSC_CUDA_TRY(cudaStreamSynchronize(at->stream));
        for (int i = 0; i < n; i++)
            items[done + i].failed = failed[i];
        done += n;
    }
    return DSC_OK;
}

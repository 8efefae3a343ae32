/* Matrix products by oneDNN, which may know instructions of the machine that OpenBLAS does not. */
#include "device/cpu/gemm.h"

#include "base/error.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

/* A leading dimension only matters if there is a second row, but oneDNN always wants a plausible one. */
static int64_t leading(int64_t stride, int64_t least) {
    return stride > least ? stride : least;
}

dsc_status dsc_onednn_gemm(const dsc_cpu_gemm *g) {
    int trans_a = g->a_column != 1, trans_b = g->b_column != 1;
    int64_t lda = trans_a ? leading(g->a_column, g->m) : leading(g->a_row, g->k);
    int64_t ldb = trans_b ? leading(g->b_column, g->k) : leading(g->b_row, g->n);
    dnnl_status_t status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', g->m, g->n, g->k, g->alpha,
                                      g->a, lda, g->b, ldb, g->beta, g->c, g->c_row);
    if (status != dnnl_success)
        return DSC_FAIL(DSC_E_DEVICE, "oneDNN: the matrix product [%lld,%lld,%lld] failed: %s",
                        (long long)g->m, (long long)g->n, (long long)g->k, dnnl_status2str(status));
    return DSC_OK;
}

/* Products by cuBLAS: float32 and float64 in full precision, halves on tensor cores with sums in float32, TF32 where it
 * is asked for. Small ones of float32 take the kernel of many products (grouped.c): one launch, where cuBLAS splits the
 * terms and needs two.
 *
 * cuBLAS is column-major: it is asked for C' = op(B)' op(A)', where a row-major matrix is its own
 * transpose. */
#include "device/cuda/entries.h"
#include "device/cuda/halves.h"

#include <cublasLt.h>

static cudaDataType type_of(const dsc_tensor *t) {
    switch (t->dtype) {
    case DSC_F64:
        return CUDA_R_64F;
    case DSC_BF16:
        return CUDA_R_16BF;
    case DSC_F16:
        return CUDA_R_16F;
    default:
        return CUDA_R_32F;
    }
}

static cublasOperation_t operation(int trans) {
    return trans ? CUBLAS_OP_T : CUBLAS_OP_N;
}

static cublasStatus_t multiply(cublasHandle_t blas, int trans_a, int trans_b, double alpha,
                               const dsc_tensor *a, const dsc_tensor *b, double beta, dsc_tensor *c) {
    const float alpha32 = (float)alpha, beta32 = (float)beta;
    const void *factor = a->dtype == DSC_F64 ? (const void *)&alpha : (const void *)&alpha32;
    const void *keep = a->dtype == DSC_F64 ? (const void *)&beta : (const void *)&beta32;
    cublasComputeType_t compute = a->dtype == DSC_F64   ? CUBLAS_COMPUTE_64F
                                  : a->dtype == DSC_F32 ? CUBLAS_COMPUTE_32F_PEDANTIC
                                                        : CUBLAS_COMPUTE_32F;
    return cublasGemmEx_64(blas, operation(trans_b), operation(trans_a), c->dim[1], c->dim[0],
                           a->dim[trans_a ? 0 : 1], factor, b->data, type_of(b), b->dim[1], a->data,
                           type_of(a), a->dim[1], keep, c->data, type_of(c), c->dim[1], compute,
                           CUBLAS_GEMM_DEFAULT);
}

static int is_small(const dsc_queue *q, int trans_a, const dsc_tensor *a, const dsc_tensor *c) {
    enum { SMALL = 1 << 22 };
    double work = (double)c->dim[0] * (double)c->dim[1] * (double)a->dim[trans_a ? 0 : 1];
    return c->dtype == DSC_F32 && a->dtype == DSC_F32 && !dsc_cuda_of(q->device)->strict && work <= SMALL;
}

/* The queue's handle is pedantic, which would keep halves from the tensor cores. */
static dsc_status use_tensor_cores(cublasHandle_t blas) {
    DSC_BLAS_TRY(cublasSetMathMode(
        blas, (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    return DSC_OK;
}

dsc_status dsc_cuda_gemm(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                         const dsc_tensor *b, double beta, dsc_tensor *c) {
    if (is_small(q, trans_a, a, c)) {
        const dsc_gemm_item item = {
            .trans_a = trans_a, .trans_b = trans_b, .alpha = alpha, .beta = beta, .a = *a, .b = *b, .c = *c};
        return dsc_cuda_gemm_batch(q, &item, 1);
    }
    cublasHandle_t blas = dsc_cuda_queue_of(q)->blas;
    int half = a->dtype == DSC_BF16 || a->dtype == DSC_F16;
    if (half)
        DSC_TRY(use_tensor_cores(blas));
    cublasStatus_t status = multiply(blas, trans_a, trans_b, alpha, a, b, beta, c);
    if (half)
        DSC_BLAS_TRY(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH));
    if (status != CUBLAS_STATUS_SUCCESS)
        return dsc_cuda_blas_fail(status, "cublasGemmEx", __FILE__, __LINE__);
    return DSC_OK;
}

/* ---- products that add a bias ---- */

/* cuBLASLt's descriptions of one product. */
typedef struct biased_product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
} biased_product;

/* Sums of parts of a product are float32's. */
static cublasStatus_t describe(const dsc_tensor *x, const dsc_tensor *w, const dsc_tensor *bias,
                               const dsc_tensor *y, biased_product *p) {
    const cublasOperation_t turned = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const size_t room = DSC_CUDA_BLAS_WORKSPACE;
    const uint64_t m = (uint64_t)y->dim[0], n = (uint64_t)y->dim[1], k = (uint64_t)x->dim[1];
    cublasStatus_t status = cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                sizeof epilogue);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias->data,
                                                sizeof bias->data);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&p->w, type_of(w), k, n, (int64_t)k);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&p->x, type_of(x), k, m, (int64_t)k);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&p->y, type_of(y), n, m, (int64_t)n);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceCreate(&p->preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &room, sizeof room);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(
            p->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    return status;
}

static void forget(biased_product *p) {
    if (p->preference)
        cublasLtMatmulPreferenceDestroy(p->preference);
    if (p->y)
        cublasLtMatrixLayoutDestroy(p->y);
    if (p->x)
        cublasLtMatrixLayoutDestroy(p->x);
    if (p->w)
        cublasLtMatrixLayoutDestroy(p->w);
    if (p->operation)
        cublasLtMatmulDescDestroy(p->operation);
}

static cublasStatus_t multiply_biased(const dsc_cuda_queue *own, const dsc_tensor *x, const dsc_tensor *w,
                                      const dsc_tensor *bias, dsc_tensor *y) {
    cublasLtHandle_t handle = (cublasLtHandle_t)own->blas; /* a handle of cuBLAS is one of cuBLASLt, too */
    const float alpha = 1, beta = 0;
    biased_product p = {0};
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t status = describe(x, w, bias, y, &p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(handle, p.operation, p.w, p.x, p.y, p.y, p.preference, 1,
                                                &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count == 0)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(handle, p.operation, &alpha, w->data, p.w, x->data, p.x, &beta, y->data, p.y,
                                y->data, p.y, &found.algo, own->blas_workspace, DSC_CUDA_BLAS_WORKSPACE,
                                own->stream);
    forget(&p);
    return status;
}

dsc_status dsc_cuda_linear(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w, const dsc_tensor *b,
                           const dsc_tensor *half_b, dsc_tensor *y) {
    int aligned = (uintptr_t)half_b->data % 16 == 0 && y->dim[1] % 8 == 0 && x->dim[1] % 8 == 0;
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (aligned && y->dtype == x->dtype && (x->dtype == DSC_BF16 || x->dtype == DSC_F16))
        status = multiply_biased(dsc_cuda_queue_of(q), x, w, half_b, y);
    if (status == CUBLAS_STATUS_SUCCESS)
        return DSC_OK;
    if (status != CUBLAS_STATUS_NOT_SUPPORTED)
        return dsc_cuda_blas_fail(status, "cublasLtMatmul", __FILE__, __LINE__);
    DSC_TRY(dsc_cuda_gemm(q, 0, 1, 1, x, w, 0, y));
    return dsc_cuda_bias_add(q, b, y);
}

dsc_status dsc_cuda_multiply_tf32(dsc_queue *q, const dsc_tf32_product *p) {
    cublasHandle_t blas = dsc_cuda_queue_of(q)->blas;
    DSC_TRY(use_tensor_cores(blas));
    cublasStatus_t status =
        cublasGemmEx_64(blas, CUBLAS_OP_T, CUBLAS_OP_N, p->n, p->m, p->k, &p->alpha, p->b, CUDA_R_32F,
                        p->width, p->a, CUDA_R_32F, p->width, &p->beta, p->c, CUDA_R_32F, p->width,
                        CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT);
    DSC_BLAS_TRY(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH));
    if (status != CUBLAS_STATUS_SUCCESS)
        return dsc_cuda_blas_fail(status, "cublasGemmEx", __FILE__, __LINE__);
    return DSC_OK;
}

dsc_status dsc_cuda_half_products(dsc_queue *q, const dsc_half_products *p) {
    cublasHandle_t blas = dsc_cuda_queue_of(q)->blas;
    DSC_TRY(use_tensor_cores(blas));
    cublasStatus_t status = cublasGemmStridedBatchedEx_64(
        blas, operation(p->trans_b), operation(p->trans_a), p->n, p->m, p->k, &p->alpha, p->b, CUDA_R_16F,
        p->ldb, p->step_b, p->a, CUDA_R_16F, p->lda, p->step_a, &p->beta, p->c, CUDA_R_32F, p->ldc, p->step_c,
        p->count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    DSC_BLAS_TRY(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH));
    if (status != CUBLAS_STATUS_SUCCESS)
        return dsc_cuda_blas_fail(status, "cublasGemmStridedBatchedEx", __FILE__, __LINE__);
    return DSC_OK;
}

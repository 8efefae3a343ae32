/* Products by cuBLAS: float32 and float64 in full precision, halves on tensor cores with sums in float32, and TF32 on
 * request. Small products of float32 use the kernel for many products (grouped.c), which is one launch; cuBLAS splits
 * the terms and needs two.
 *
 * cuBLAS is column-major. There our row-major matrices appear transposed, so the code asks for
 * C' = op(B)' op(A)'. */
#include "device/cuda/entries.h"
#include "device/cuda/halves.h"

#include <cublasLt.h>

static cudaDataType type_named(dsc_dtype dtype) {
    switch (dtype) {
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

static cudaDataType type_of(const dsc_tensor *t) {
    return type_named(t->dtype);
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

/* Allows tensor cores: the queue's handle is in pedantic mode, which would keep halves from them. */
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

/* ---- products with an epilogue ----
 *
 * y[m,n] = x[m,k] op(w) for halves, with the operations that cuBLASLt can apply to a tile of y before it is written. */

typedef struct fused_product {
    const dsc_tensor *x, *w;
    int turned; /* 1: w is [n,k] */
    cublasLtEpilogue_t epilogue;
    const void *bias;       /* [n] */
    const dsc_tensor *term; /* added to y; NULL: none */
    const void *inner;      /* [m,n]: the input of a GELU, written in forward and read in backward */
    dsc_tensor *y;
} fused_product;

/* The descriptors of one product for cuBLASLt. */
typedef struct product_plan {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
} product_plan;

static void set_attribute(product_plan *plan, cublasLtMatmulDescAttributes_t name, const void *value,
                          size_t size, cublasStatus_t *status) {
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatmulDescSetAttribute(plan->operation, name, value, size);
}

static void set_preference(product_plan *plan, cublasLtMatmulPreferenceAttributes_t name, const void *value,
                           size_t size, cublasStatus_t *status) {
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatmulPreferenceSetAttribute(plan->preference, name, value, size);
}

/* Describes a row-major matrix of halves as the column-major one that cuBLAS sees. */
static void set_layout(const dsc_tensor *t, cublasLtMatrixLayout_t *out, cublasStatus_t *status) {
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status =
            cublasLtMatrixLayoutCreate(out, type_of(t), (uint64_t)t->dim[1], (uint64_t)t->dim[0], t->dim[1]);
}

/* Returns the largest power of two, up to 256, of which the address is a multiple. */
static uint32_t alignment_of(const void *address) {
    uint32_t alignment = 256;
    while ((uintptr_t)address % alignment != 0)
        alignment /= 2;
    return alignment;
}

/* Describes a product to cuBLASLt. If it splits the terms, the partial sums are added in float32. */
static cublasStatus_t plan_product(const fused_product *p, product_plan *plan) {
    const cublasOperation_t turned = operation(p->turned);
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const size_t room = DSC_CUDA_BLAS_WORKSPACE;
    const int64_t pitch = p->y->dim[1];
    cublasStatus_t status = cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set_attribute(plan, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned, &status);
    set_attribute(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue, &status);
    if (p->bias)
        set_attribute(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias, &status);
    if (p->inner) {
        set_attribute(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->inner, sizeof p->inner, &status);
        set_attribute(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pitch, sizeof pitch, &status);
    }
    set_layout(p->w, &plan->w, &status);
    set_layout(p->x, &plan->x, &status);
    set_layout(p->y, &plan->y, &status);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceCreate(&plan->preference);
    set_preference(plan, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room, &status);
    set_preference(plan, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions, &status);
    /* By default cuBLASLt assumes an alignment of 256 bytes. Its A and B are w and x; C is the added term, D is y. */
    const void *added = p->term ? p->term->data : p->y->data;
    const uint32_t w = alignment_of(p->w->data), x = alignment_of(p->x->data), c = alignment_of(added),
                   y = alignment_of(p->y->data);
    set_preference(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w, sizeof w, &status);
    set_preference(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x, sizeof x, &status);
    set_preference(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c, &status);
    set_preference(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y, sizeof y, &status);
    return status;
}

static void forget_plan(product_plan *plan) {
    if (plan->preference)
        cublasLtMatmulPreferenceDestroy(plan->preference);
    if (plan->y)
        cublasLtMatrixLayoutDestroy(plan->y);
    if (plan->x)
        cublasLtMatrixLayoutDestroy(plan->x);
    if (plan->w)
        cublasLtMatrixLayoutDestroy(plan->w);
    if (plan->operation)
        cublasLtMatmulDescDestroy(plan->operation);
}

static cublasStatus_t run_plan(const dsc_cuda_queue *own, const fused_product *p, product_plan *plan) {
    cublasLtHandle_t handle = (cublasLtHandle_t)own->blas; /* a cuBLAS handle is also one for cuBLASLt */
    const float alpha = 1, beta = p->term ? 1 : 0;
    const void *term = p->term ? p->term->data : p->y->data;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t status = plan_product(p, plan);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(handle, plan->operation, plan->w, plan->x, plan->y, plan->y,
                                                plan->preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count == 0)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(handle, plan->operation, &alpha, p->w->data, plan->w, p->x->data, plan->x,
                                &beta, term, plan->y, p->y->data, plan->y, &found.algo, own->blas_workspace,
                                DSC_CUDA_BLAS_WORKSPACE, own->stream);
    return status;
}

/* Returns DSC_E_UNSUPPORTED, without a message, for products that cuBLASLt does not support. */
static dsc_status run_product(dsc_queue *q, const fused_product *p) {
    uintptr_t places = (uintptr_t)p->bias | (uintptr_t)p->inner | (uintptr_t)p->x->data |
                       (uintptr_t)p->w->data | (uintptr_t)p->y->data |
                       (uintptr_t)(p->term ? p->term->data : NULL);
    int aligned = places % 16 == 0 && p->y->dim[1] % 8 == 0 && p->x->dim[1] % 8 == 0;
    int half = p->x->dtype == DSC_BF16 || p->x->dtype == DSC_F16;
    if (!half || !aligned || p->y->dtype != p->x->dtype)
        return DSC_E_UNSUPPORTED;
    product_plan plan = {0};
    cublasStatus_t status = run_plan(dsc_cuda_queue_of(q), p, &plan);
    forget_plan(&plan);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED)
        return DSC_E_UNSUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS)
        return dsc_cuda_blas_fail(status, "cublasLtMatmul", __FILE__, __LINE__);
    return DSC_OK;
}

dsc_status dsc_cuda_linear(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w,
                           const dsc_linear_epilogue *e, dsc_tensor *y) {
    const fused_product p = {
        .x = x,
        .w = w,
        .turned = 1,
        .epilogue = e->inner ? (e->b ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                             : (e->b ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT),
        .bias = e->b ? e->half_b->data : NULL,
        .term = e->term,
        .inner = e->inner ? e->inner->data : NULL,
        .y = y};
    return run_product(q, &p);
}

dsc_status dsc_cuda_gelu_gradient(dsc_queue *q, const dsc_tensor *dy, const dsc_tensor *w,
                                  const dsc_tensor *inner, dsc_tensor *dx) {
    const fused_product p = {
        .x = dy, .w = w, .epilogue = CUBLASLT_EPILOGUE_DGELU, .inner = inner->data, .y = dx};
    return run_product(q, &p);
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
    const cudaDataType type = type_named(p->dtype);
    DSC_TRY(use_tensor_cores(blas));
    cublasStatus_t status =
        p->count == 1 /* cuBLAS can split the long sums of a single product */
            ? cublasGemmEx_64(blas, operation(p->trans_b), operation(p->trans_a), p->n, p->m, p->k, &p->alpha,
                              p->b, type, p->ldb, p->a, type, p->lda, &p->beta, p->c, CUDA_R_32F, p->ldc,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)
            : cublasGemmStridedBatchedEx_64(blas, operation(p->trans_b), operation(p->trans_a), p->n, p->m,
                                            p->k, &p->alpha, p->b, type, p->ldb, p->step_b, p->a, type,
                                            p->lda, p->step_a, &p->beta, p->c, CUDA_R_32F, p->ldc, p->step_c,
                                            p->count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    DSC_BLAS_TRY(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH));
    if (status != CUBLAS_STATUS_SUCCESS)
        return dsc_cuda_blas_fail(status, "a product of halves", __FILE__, __LINE__);
    return DSC_OK;
}

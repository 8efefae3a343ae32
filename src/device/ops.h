/* The operations of a device: the declaration of every front, and at the end the list of them all.
 *
 * What a program's own layers need is public, in descent/ops.h, and so are the rules about queues, types and
 * beta; the rest is declared here. A front (ops_*.c) checks devices, types and shapes, returns at once where
 * there is nothing to do, and calls the function of the device's table (table.h).
 *
 * Matrices are row-major; activations are NHWC, convolution weights OHWI. "Scalar" results and coefficients
 * are one-element tensors on the device, so that a step never waits for the host. Outputs come last. */
#ifndef DSC_DEVICE_OPS_H
#define DSC_DEVICE_OPS_H

#include "base/visible.h"
#include "descent/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A queue whose work gives way to that of other queues, where the device can do that. */
dsc_status dsc_queue_create_low(dsc_device *device, dsc_queue **out) DSC_MUST_CHECK;

/* ---- element-wise operations and reductions ---- */

/* Operations y = beta y + f(a, b), element by element, with the formula dsc_map_NAME in formulas.inc: all of
 * them share one front and one loop in each backend. The last four columns are the names of the operation and
 * of a, b and y in messages; b is NULL for an operation with one input. */
#define DSC_MAPS(MAP)                                                                                        \
    MAP(RELU, relu, "relu_forward", "x", NULL, "y")                                                          \
    MAP(RELU_MASK, relu_mask, "relu_backward", "y", "dy", "dx")                                              \
    MAP(GELU, gelu, "gelu_forward", "x", NULL, "y")                                                          \
    MAP(GELU_SLOPE, gelu_slope, "gelu_backward", "x", "dy", "dx")                                            \
    MAP(GELU_TANH, gelu_tanh, "gelu_tanh_forward", "x", NULL, "y")                                           \
    MAP(GELU_TANH_SLOPE, gelu_tanh_slope, "gelu_tanh_backward", "x", "dy", "dx")                             \
    MAP(SILU, silu, "silu_forward", "x", NULL, "y")                                                          \
    MAP(SILU_SLOPE, silu_slope, "silu_backward", "x", "dy", "dx")                                            \
    MAP(TANH, tanh, "tanh_forward", "x", NULL, "y")                                                          \
    MAP(TANH_SLOPE, tanh_slope, "tanh_backward", "y", "dy", "dx")                                            \
    MAP(SIGMOID, sigmoid, "sigmoid_forward", "x", NULL, "y")                                                 \
    MAP(SIGMOID_SLOPE, sigmoid_slope, "sigmoid_backward", "y", "dy", "dx")                                   \
    MAP(ADD, add, "add", "a", "b", "y")                                                                      \
    MAP(MULTIPLY, multiply, "multiply", "y", "x", "y")

typedef enum dsc_map {
#define DSC_MAP_MEMBER(NAME, name, op, a, b, y) DSC_MAP_##NAME,
    DSC_MAPS(DSC_MAP_MEMBER)
#undef DSC_MAP_MEMBER
        DSC_MAP_COUNT
} dsc_map;

/* Real or half, equal shapes; b is not read (and may be NULL) for an operation with one input. y may be a or
 * b when beta is 0. */
dsc_status dsc_op_map(dsc_queue *q, dsc_map map, const dsc_tensor *a, const dsc_tensor *b, double beta,
                      dsc_tensor *y) DSC_MUST_CHECK;

/* out[0] = min(1, limit / sqrt(sumsq[0])), 1 when sumsq is 0; F64 scalars. */
dsc_status dsc_op_clip_factor(dsc_queue *q, const dsc_tensor *sumsq, double limit,
                              dsc_tensor *out) DSC_MUST_CHECK;
/* out[0] += number of elements of t that are NaN or infinite; out: F64 scalar. */
dsc_status dsc_op_count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out) DSC_MUST_CHECK;

/* y = decay[0] y + (1 - decay[0]) x: a running average. Where bad[0] > 0 (say, the number of x's elements
 * that are not finite) y is left unchanged and bad[1] grows by 1. decay: F64 scalar, bad: F64[2]. */
dsc_status dsc_op_blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                        dsc_tensor *y) DSC_MUST_CHECK;

/* t += 1, element by element; t: I64. */
dsc_status dsc_op_increment(dsc_queue *q, dsc_tensor *t) DSC_MUST_CHECK;
/* Sets flag[0] to 2 when value[0] is not finite; with firm 0, not where flag[0] is 1, which means that the
 * step is skipped anyway. F64 scalars. For DSC_HYPER_SKIP. */
dsc_status dsc_op_guard(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag) DSC_MUST_CHECK;

/* t[0] = nanoseconds of the device's clock when the queue reaches this operation; t: I64 scalar. */
dsc_status dsc_op_timestamp(dsc_queue *q, dsc_tensor *t) DSC_MUST_CHECK;

/* A loss scale that adapts itself: F64[DSC_SCALE_COUNT] on the device. */
typedef enum dsc_scale {
    DSC_SCALE_VALUE,          /* factor of the loss */
    DSC_SCALE_INVERSE,        /* 1 / the value used by the present step, for its gradients */
    DSC_SCALE_INVERSE_SQUARE, /* for products of two of them */
    DSC_SCALE_GOOD,           /* steps since it last changed */
    DSC_SCALE_INTERVAL,       /* good steps until it is doubled; 0: it never changes */
    DSC_SCALE_COUNT
} dsc_scale;
/* For the end of a backward pass; bad[0] is its number of elements that are not finite. Sets the inverses to
 * those of VALUE, then halves VALUE (not below 1) when bad[0] > 0, or doubles it (not above 2^24) after
 * INTERVAL good steps. skip[0] becomes 1 when bad[0] > 0, else 0, unless it is 2. bad, skip: F64 scalars. */
dsc_status dsc_op_loss_scale(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale,
                             dsc_tensor *skip) DSC_MUST_CHECK;

/* ---- dense linear algebra ---- */

/* Lower triangle of C[n,n] = alpha A' A + beta C for rows A[m,n], any beta; the strict upper triangle is
 * untouched. */
dsc_status dsc_op_syrk(dsc_queue *q, double alpha, const dsc_tensor *a, double beta,
                       dsc_tensor *c) DSC_MUST_CHECK;
/* Copies the lower triangle of A[n,n] over the upper. */
dsc_status dsc_op_symmetrize(dsc_queue *q, dsc_tensor *a) DSC_MUST_CHECK;
/* Lower triangle of A[n,n], row by row, into P[n(n+1)/2]; and back, filling both triangles. */
dsc_status dsc_op_tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) DSC_MUST_CHECK;
dsc_status dsc_op_tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) DSC_MUST_CHECK;
/* A = Q diag(v) Q' of a symmetric A[n,n], of which the lower triangle is read: Q overwrites A, one
 * eigenvector a column; v[n] is in ascending order. `work`: U8 tensor of dsc_op_syev_workspace bytes at
 * least. DSC_E_NUMERIC when the solver fails or A is not finite; A is then undefined. */
size_t dsc_op_syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n);
dsc_status dsc_op_syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) DSC_MUST_CHECK;
/* A := A^-1 of a symmetric positive definite A[n,n], by Cholesky; reads the lower triangle, writes both.
 * DSC_E_NUMERIC when A is not positive definite; A is then undefined. */
dsc_status dsc_op_chol_inverse(dsc_queue *q, dsc_tensor *a) DSC_MUST_CHECK;
/* dsc_op_syev as a last resort: on the host, in double, by another algorithm (QR iteration), in memory of its
 * own. Blocks. */
DSC_MODULE_API dsc_status dsc_op_syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v) DSC_MUST_CHECK;
/* A += value[0] I for A[n,n]; value: F64 scalar. */
dsc_status dsc_op_add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a) DSC_MUST_CHECK;

/* What is done to the product of a linear layer, which a GPU can do before it writes it. */
typedef struct dsc_linear_epilogue {
    const dsc_tensor *b;      /* [n], added, in the type of parameters; NULL: none */
    const dsc_tensor *half_b; /* the same numbers in the type of y, where there are such; else NULL */
    const dsc_tensor *term;   /* [m,n], added, in the type of y; NULL: none. Not together with inner */
    dsc_tensor *inner; /* NULL, or [m,n] in the type of y: becomes the sum, and y its GELU, that with tanh */
} dsc_linear_epilogue;
/* y[m,n] = x[m,k] w[n,k]', then the epilogue; real or half. A backend may return DSC_E_UNSUPPORTED, without a message, for
 * what it cannot do in one go, in this operation and the next: the front then composes it. */
dsc_status dsc_op_linear(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w, const dsc_linear_epilogue *e,
                         dsc_tensor *y) DSC_MUST_CHECK;
/* The gradient of inner[m,n], of which a linear layer with w[k,n] reads the GELU: dx[m,n] = dy[m,k] w, times the slope of
 * the GELU at inner. */
dsc_status dsc_op_gelu_gradient(dsc_queue *q, const dsc_tensor *dy, const dsc_tensor *w,
                                const dsc_tensor *inner, dsc_tensor *dx) DSC_MUST_CHECK;

/* ---- many small problems at once ----
 *
 * Arrays of descriptions in host memory. All items have one real type, and outputs of different items do not
 * overlap. On a CPU one thread works on one item, or on one piece of a large product, whose cut depends on
 * its size alone: a result does not depend on the number of threads. Large items should come first. */

/* Each C = alpha op(A) op(B) + beta C, as dsc_op_gemm. */
typedef struct dsc_gemm_item {
    int trans_a, trans_b;
    double alpha, beta;
    dsc_tensor a, b, c;
    int fast; /* 1: TF32 inputs (relative error 1e-3) are accurate enough, where the device has them */
} dsc_gemm_item;
dsc_status dsc_op_gemm_batch(dsc_queue *q, const dsc_gemm_item *items, int64_t count) DSC_MUST_CHECK;
/* Each A := its eigenvectors and v (dsc_op_syev), or A := A^-1 (dsc_op_chol_inverse; v is not used). `failed`
 * becomes 1 where the solver failed or A is not finite (A and v are then undefined), else 0; the call itself
 * then still succeeds. `work`: U8 tensor of dsc_op_syev_batch_workspace bytes for items of at most n rows;
 * inversion needs none (NULL). Blocks until the outcome is known. */
typedef struct dsc_solve_item {
    dsc_tensor a, v;
    int failed;
    /* 1: an eigen problem of few rows may be solved by the quickest algorithm that the device has for many of
     * them, where it has one; the last bits of the result then differ. */
    int quick;
} dsc_solve_item;
DSC_MODULE_API size_t dsc_op_syev_batch_workspace(dsc_device *device, dsc_dtype dtype, int64_t n,
                                                  int64_t count);
DSC_MODULE_API dsc_status dsc_op_syev_batch(dsc_queue *q, dsc_solve_item *items, int64_t count,
                                            dsc_tensor *work) DSC_MUST_CHECK;
dsc_status dsc_op_chol_inverse_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) DSC_MUST_CHECK;
/* Each x[i,j] /= rows[i] columns[j] + damping[0], x[m,n], rows[m], columns[n]; damping: F64 scalar. */
typedef struct dsc_divide_item {
    dsc_tensor rows, columns, x;
} dsc_divide_item;
dsc_status dsc_op_divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                               int64_t count) DSC_MUST_CHECK;
/* Each s = decay[0] s + (1 - decay[0]) scale[0] x^2, a running average of second moments, then x /= s +
 * damping[0], element by element; x and s have equal shapes. An element of s keeps its value where the new one
 * would not be finite, and all of them do where scale has no memory or scale[0] is not positive. decay, damping,
 * scale: F64 scalars. */
typedef struct dsc_moment_item {
    dsc_tensor scale, s, x;
} dsc_moment_item;
dsc_status dsc_op_moment_divide_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *damping,
                                      const dsc_moment_item *items, int64_t count) DSC_MUST_CHECK;

/* Each x[i,j] = from[i,j] times a sum of w(r, c) = 1 / (r c + damping[0]), x[m,n]; `from` may be x:
 *
 *   rows[m], columns[n]   w(rows[i], columns[j]) - w(rows[i], other_column) - w(other_row, columns[j])
 *                         + w(other_row, other_column), without the terms of others that have no data
 *   rows without data     other_row in the place of rows[i], without the terms that are subtracted for it
 *   columns without data  likewise
 *
 * These are the weights of gradients in bases that keep some eigenvectors and the mean of the other eigenvalues.
 * other_row, other_column: scalars of x's type; damping: F64 scalar. */
typedef struct dsc_weigh_item {
    dsc_tensor rows, columns, other_row, other_column, from, x;
} dsc_weigh_item;
dsc_status dsc_op_weigh_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_weigh_item *items,
                              int64_t count) DSC_MUST_CHECK;

/* Each dst = src, as dsc_op_convert between fp32, fp64, bf16 and fp16; items may differ in their types. With
 * `clamp` numbers below 0 become 0; src and dst then have one shape and one real type. */
typedef struct dsc_convert_item {
    dsc_tensor src, dst;
    int clamp;
} dsc_convert_item;
dsc_status dsc_op_convert_batch(dsc_queue *q, const dsc_convert_item *items, int64_t count) DSC_MUST_CHECK;
/* Each A[n,n] from its packed lower triangle P[n(n+1)/2], as dsc_op_tri_unpack. */
typedef struct dsc_unpack_item {
    dsc_tensor p, a;
} dsc_unpack_item;
dsc_status dsc_op_tri_unpack_batch(dsc_queue *q, const dsc_unpack_item *items, int64_t count) DSC_MUST_CHECK;
/* Each out[i] = sum x_i y_i; out: F64[count]. Accumulated in double. */
typedef struct dsc_dot_item {
    dsc_tensor x, y;
} dsc_dot_item;
dsc_status dsc_op_dot_batch(dsc_queue *q, const dsc_dot_item *items, int64_t count,
                            dsc_tensor *out) DSC_MUST_CHECK;
/* Each d[m,n+1] = [w, b], with w of m n elements (any shape) as rows and b of m as the last column; d[m,n] = w
 * where b has no data. And back: w, b = scale[0] d. scale: F64 scalar, NULL: 1; where it is not finite nothing
 * is written.
 *
 * With channels > 0 the numbers of w may lie anywhere: column j of d's row i is
 *   w[i row_stride + (j / channels) position_stride + (j % channels) channel_stride]
 * The strides are at least 0 and give every number a place of its own (not checked). */
typedef struct dsc_join_item {
    dsc_tensor w, b, d;
    int64_t channels, row_stride, position_stride, channel_stride;
} dsc_join_item;
dsc_status dsc_op_join_batch(dsc_queue *q, const dsc_join_item *items, int64_t count) DSC_MUST_CHECK;
dsc_status dsc_op_split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                              int64_t count) DSC_MUST_CHECK;
/* For each item, sets bad[0] to the number of x's elements that are not finite, then blends x into y
 * (dsc_op_blend). */
typedef struct dsc_absorb_item {
    dsc_tensor x, bad, y;
} dsc_absorb_item;
dsc_status dsc_op_absorb_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_absorb_item *items,
                               int64_t count) DSC_MUST_CHECK;

/* ---- the refresh of an eigenbasis ----
 *
 * An eigenbasis Q[n,k] of a symmetric A[n,n], the leading k of n vectors or all of them (1 <= k <= n), becomes
 * that of a changed A by products and these three. Batches as above; types F32 and F64. */

/* The step between two products: turns Q towards the eigenvectors of A. In: b[k,k] = Q'AQ, of which the
 * symmetric part B counts, q, y[n,k] = A Q, delta > 0. Out: x[k,k] and z[n,k], so that the caller's product
 * Z := Z + Q X is the turned basis before orthonormalisation, its columns by descending l = diag B (ties: the
 * lower index first; NaN last). y is not read where k = n.
 *
 * With o(j) the column of Q that becomes column j, i any column of Q, g = l[o(j)] - l[i],
 * u(l) = max(l, 0) + delta and tau = 0.03:
 *   angle(i, j) = B[i,o(j)] g / (g^2 + tau^2 u(l[i]) u(l[o(j)]) + 4 B[i,o(j)]^2),  0 where i = o(j), 0/0 = 0
 *   k = n:   x[i,j] = angle(i, j);                        z[:,j] = q[:,o(j)]
 *   k < n:   s_j = 1 / max(l[o(j)], 2^-10 max l), 0 where max l <= 0;
 *            x[i,j] = angle(i, j) - B[i,o(j)] s_j;        z[:,j] = q[:,o(j)] + y[:,o(j)] s_j */
typedef struct dsc_rotation_item {
    dsc_tensor b, q, y, x, z;
    double delta;
} dsc_rotation_item;
dsc_status dsc_op_rotation_batch(dsc_queue *q, const dsc_rotation_item *items, int64_t count) DSC_MUST_CHECK;
/* Each Z[n,k] := Z R^-1 with R'R = H and R upper triangular, H[k,k] = Z'Z, of which the lower triangle is read
 * and which is overwritten: orthonormal columns, the first of which change least. `failed` becomes 1 where H is
 * not finite or not positive definite (Z is then undefined), else 0; the call itself then still succeeds.
 * Blocks until the outcome is known. */
typedef struct dsc_orthonormal_item {
    dsc_tensor h, z;
    int failed;
    int fast; /* as in dsc_gemm_item: large products of the elimination need TF32's precision only */
} dsc_orthonormal_item;
dsc_status dsc_op_orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) DSC_MUST_CHECK;
/* Rayleigh quotients and residuals of the columns of q[n,k], with y = A Q: each v[j] = q_j'y_j / q_j'q_j, 0
 * where q_j = 0. result: F64[3], the trace of a[n,n], the sum of v, and the residual, the root of the mean over
 * j of (|y_j - v_j q_j| / (max(v_j, 0) + delta))^2. delta > 0; sums in double. */
typedef struct dsc_rayleigh_item {
    dsc_tensor a, q, y, v, result;
    double delta;
} dsc_rayleigh_item;
dsc_status dsc_op_rayleigh_batch(dsc_queue *q, const dsc_rayleigh_item *items, int64_t count) DSC_MUST_CHECK;

/* ---- pieces of a second-order step ---- */

/* out[i,j] = 1 / (rows[i] columns[j] + damping[0]). */
dsc_status dsc_op_outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                const dsc_tensor *columns, dsc_tensor *out) DSC_MUST_CHECK;
/* dst[i,j] = src[rows[i], columns[j]]; and dst[rows[i], columns[j]] = src[i,j], the rest of dst untouched.
 * rows, columns: I32, in range (not checked), without repeats in scatter. */
dsc_status dsc_op_gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                         const dsc_tensor *columns, dsc_tensor *dst) DSC_MUST_CHECK;
dsc_status dsc_op_scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                          const dsc_tensor *columns, dsc_tensor *dst) DSC_MUST_CHECK;
/* Each out[i] = min(1, sqrt(limits[1] / |limits[0]^2 sum[i]|)), 1 when limits[1] or the product is 0, NaN when
 * sum[i] is not finite; limits: F64[2], the learning rate and the bound. sum, out: F64, as many elements. */
dsc_status dsc_op_kl_clip(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits,
                          dsc_tensor *out) DSC_MUST_CHECK;
/* Splits a damping over pairs of matrices by the ratio of their mean eigenvalues m = traces / rows:
 *   out[2i] = sqrt(damping[0] m[2i] / m[2i + 1]),  out[2i + 1] = sqrt(damping[0] m[2i + 1] / m[2i])
 * Both are sqrt(damping[0]) where a mean is not a positive, finite number, or the ratio is not. damping: F64
 * scalar; traces, rows, out: F64[2 pairs]. */
dsc_status dsc_op_damping_split(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *traces,
                                const dsc_tensor *rows, dsc_tensor *out) DSC_MUST_CHECK;

/* ---- convolution ---- */

/* Copies a caller's shape, which may be that of an older header: members that it lacks become the defaults.
 * DSC_E_INVALID when it is NULL or its size was never set. */
dsc_status dsc_conv2d_shape_read(const dsc_conv2d_shape *given, dsc_conv2d_shape *out) DSC_MUST_CHECK;

/* n images of one type: x[n, in_h, in_w, in_c], y[n, out_h, out_w, out_c]. */
typedef struct dsc_conv_desc {
    dsc_dtype dtype;
    int64_t n;
    dsc_conv2d_shape shape;
} dsc_conv_desc;

/* Output height and width; DSC_E_INVALID, with the reason, when no such convolution exists. Unlike
 * dsc_conv2d_output this checks the type and the element counts as well, and does not read shape.size. */
DSC_MODULE_API dsc_status dsc_conv_output(const dsc_conv_desc *desc, int64_t *oh, int64_t *ow) DSC_MUST_CHECK;

/* The convolution whose gradient of x is the forward pass of the transposed convolution `shape`: *conv maps the output of
 * the transposed convolution to its input, so that in and out are swapped, and so are x and dy in the gradient of the
 * weights [in_c, kernel_h, kernel_w, out_c / groups]; shape's extra rows and columns are part of conv's input. Does not
 * read shape.size. DSC_E_INVALID, with the reason, when there is no such convolution. */
DSC_MODULE_API dsc_status dsc_conv_transposed(const dsc_conv2d_shape *shape,
                                              dsc_conv2d_shape *conv) DSC_MUST_CHECK;

/* A planned convolution: it holds the descriptors and the algorithms chosen, so that a step plans nothing. */
typedef struct dsc_conv dsc_conv;
dsc_status dsc_conv_create(dsc_device *device, const dsc_conv_desc *desc, dsc_conv **out) DSC_MUST_CHECK;
/* The same for the forward pass alone, or for the gradient of x alone; the other passes are then refused. */
dsc_status dsc_conv_create_forward(dsc_device *device, const dsc_conv_desc *desc,
                                   dsc_conv **out) DSC_MUST_CHECK;
dsc_status dsc_conv_create_backward_data(dsc_device *device, const dsc_conv_desc *desc,
                                         dsc_conv **out) DSC_MUST_CHECK;
void dsc_conv_destroy(dsc_conv **conv);
/* Bytes of workspace that the passes need (the largest of them). */
size_t dsc_conv_workspace(const dsc_conv *conv);
/* bias may be NULL. `work`: U8 tensor of dsc_conv_workspace bytes at least. */
dsc_status dsc_op_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                               const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                     double beta, dsc_tensor *work, dsc_tensor *dx) DSC_MUST_CHECK;
dsc_status dsc_op_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                       const dsc_tensor *dy, double beta, dsc_tensor *work,
                                       dsc_tensor *dw) DSC_MUST_CHECK;
/* Patches of x for output positions [first, first + rows) of the n*oh*ow, of one group: out[rows, width],
 * width = kernel_h * kernel_w * in_c / groups in the order of the weights, or one more: then the last column
 * is 1. Used slab by slab. */
dsc_status dsc_op_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                          int64_t first, dsc_tensor *out) DSC_MUST_CHECK;

/* Lower triangle of C[n,n] = alpha P' P + beta C, any beta, for the patches P (half: of an x of half type, C
 * is F32) of one group over all output positions (n is their width, or one more: a last column of ones).
 * No more than a cache-sized slab of P exists at a time. A 1x1 kernel without stride and padding takes the
 * rows of x as they are: those of a linear layer (in_h = in_w = 1), or of a gradient. `work`: U8 tensor of
 * dsc_op_patch_gram_workspace bytes at least. */
size_t dsc_op_patch_gram_workspace(dsc_device *device, const dsc_conv_desc *desc, int ones);
dsc_status dsc_op_patch_gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                             double alpha, double beta, dsc_tensor *work, dsc_tensor *c) DSC_MUST_CHECK;

/* The same with beta 0, as packed triangle p[n(n+1)/2]. `full`: F32 or F64 scratch of n*n elements, which a
 * backend that packs by itself does not touch. */
dsc_status dsc_op_patch_gram_packed(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x,
                                    int64_t group, double alpha, dsc_tensor *work, dsc_tensor *full,
                                    dsc_tensor *p) DSC_MUST_CHECK;

/* ---- layers; all of them take halves ---- */

/* The parameter-free shortcut: y[n,oh,ow,k] = x[n, i*stride, j*stride, ch - (k-c)/2], zero where there is no
 * such channel; oh = ceil(h/stride). Backward is its transpose. */
dsc_status dsc_op_shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x,
                                   dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx) DSC_MUST_CHECK;

/* Where a part[n,h,w,c] of a larger tensor, the whole[n,H,W,C], begins: row, column and channel. */
typedef struct dsc_part_desc {
    int64_t top, left, first;
} dsc_part_desc;
/* part = beta part + what the whole has there; and back: the whole has beta times what it had there + part, its other
 * elements are left as they are. */
dsc_status dsc_op_cut(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *whole, double beta,
                      dsc_tensor *part) DSC_MUST_CHECK;
dsc_status dsc_op_paste(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *part, double beta,
                        dsc_tensor *whole) DSC_MUST_CHECK;

/* y[n,2h,2w,c] from x[n,h,w,c], in both directions alike: a line y of 2 s numbers from one x of s numbers is
 *   nearest    y[i] = x[i / 2]
 *   bilinear   y[i] = 3/4 x[i / 2] + 1/4 x[the neighbour of i / 2 that is closer to i, at the border i / 2 itself]
 * Backward is the transpose; every number of dx is a sum in a fixed order. */
dsc_status dsc_op_upsample_forward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *x,
                                   dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_upsample_backward(dsc_queue *q, dsc_upsample_kind kind, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx) DSC_MUST_CHECK;

typedef enum dsc_pool_kind { DSC_POOL_MAX, DSC_POOL_AVG } dsc_pool_kind;
typedef struct dsc_pool_desc {
    dsc_pool_kind kind;
    /* pad <= kernel / 2; an average divides by kh*kw, padding included */
    int64_t kh, kw, stride_h, stride_w, pad_h, pad_w;
} dsc_pool_desc;
dsc_status dsc_pool_output(const dsc_pool_desc *desc, int64_t h, int64_t w, int64_t *oh,
                           int64_t *ow) DSC_MUST_CHECK;
/* `index` (I32, or U8 for windows of at most 256 places, y's shape; NULL for an average, and where no backward pass
 * follows) receives the place of each maximum in its window; of equal values the first is taken. */
dsc_status dsc_op_pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                               dsc_tensor *index, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                const dsc_tensor *dy, double beta, dsc_tensor *dx) DSC_MUST_CHECK;
/* y[n,c] = mean of x[n,h,w,c] over h, w; and back. */
dsc_status dsc_op_global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta,
                                       dsc_tensor *dx) DSC_MUST_CHECK;

/* Batch norm over the last dimension c of x, fused with the operations that often follow:
 *   y = [relu]( gamma (x - mean) * invstd + shift [+ residual] ),   invstd = 1 / sqrt(var + eps), var biased.
 * Training uses the batch's statistics, saves mean[c] and invstd[c], and updates the running ones:
 *   running = (1 - momentum) running + momentum batch, with the unbiased variance (as PyTorch; one row: the
 * biased). Statistics are accumulated so that |error| stays at rounding level for |mean| >> std. y may not be
 * x. */
typedef struct dsc_norm_desc {
    double eps, momentum;
    int relu; /* 1: fused ReLU */
} dsc_norm_desc;
typedef struct dsc_norm_params {
    const dsc_tensor *gamma, *shift;        /* [c] */
    dsc_tensor *running_mean, *running_var; /* [c] */
    /* [2, c], or NULL: for dsc_norm_grads.applied. */
    dsc_tensor *applied;
} dsc_norm_params;
/* residual may be NULL. */
dsc_status dsc_op_norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *residual, const dsc_norm_params *params,
                                     dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                    const dsc_tensor *residual, const dsc_norm_params *params,
                                    dsc_tensor *y) DSC_MUST_CHECK;
/* y is read only with relu (its sign is the mask), else it may be NULL. dresidual, NULL without a residual,
 * gets the masked dy. Each output has its own beta: beta_x for dx, beta_p for dgamma and dshift. With beta_x 0 dx may be
 * dy. */
typedef struct dsc_norm_grads {
    dsc_tensor *dx, *dresidual, *dgamma, *dshift;
    double beta_x, beta_residual, beta_p;
    /* Of a norm with ReLU and without residual: what dsc_norm_params.applied was in its forward pass, or NULL. A backend
     * may write there the factors and shifts that it computes y with, and find the sign of y from x in the same way, which
     * gives the same bits, instead of reading y. */
    const dsc_tensor *applied;
} dsc_norm_grads;
dsc_status dsc_op_norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                const dsc_tensor *mean, const dsc_tensor *invstd,
                                const dsc_norm_grads *grads) DSC_MUST_CHECK;

/* Norms of single samples. x[n, ..., c] has `groups` groups of c / groups neighbouring channels; a group's numbers are
 * those of its channels at all positions of one sample:
 *   y = gamma (x - mean) invstd + shift,   invstd = 1 / sqrt(var + eps), var biased,
 * or, with `rms`, y = gamma x invstd with invstd = 1 / sqrt(mean of x^2 + eps). Layer norm: x[rows, c], one group.
 * gamma, shift: [c]; mean, invstd: [n, groups]. Statistics are accurate for |mean| >> std as those of batch norm, and
 * on a CPU no result depends on the number of threads. y may not be x. */
typedef struct dsc_group_norm_desc {
    double eps;
    int64_t groups;
    int rms;
} dsc_group_norm_desc;
/* shift may be NULL; so may mean and invstd, where no backward pass follows, and mean with rms. */
dsc_status dsc_op_group_norm_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                                     dsc_tensor *invstd, dsc_tensor *y) DSC_MUST_CHECK;
/* Any of dx, dgamma and dshift may be NULL: it is not computed then. mean may be NULL with rms. dresidual and
 * beta_residual are not used. */
dsc_status dsc_op_group_norm_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                      const dsc_tensor *invstd, const dsc_norm_grads *grads) DSC_MUST_CHECK;

/* The Fisher matrices of scale and shift, sample by sample: with u = sum over the positions of sample i of (g xhat,
 * g), out[i] = (u1 u1, u1 u2, u2 u2). x, y, dy: [n, ..., c]; out: [n, 3, c] in the type of parameters. xhat = (x -
 * mean) invstd, x invstd without mean, or x where both are NULL; g = dy, with y not NULL (a fused ReLU's output) 0 where
 * y is not positive. mean and invstd are [c] (batch norms), [n * positions, groups] (layer norms: one group) or
 * [n, groups] (group norms); groups are of equally many channels. */
dsc_status dsc_op_norm_fisher(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *dy,
                              const dsc_tensor *mean, const dsc_tensor *invstd,
                              dsc_tensor *out) DSC_MUST_CHECK;
/* For backends: where the statistic of channel ch at position p of sample i is: i * sample + p * position + ch / width. */
typedef struct dsc_norm_places {
    int64_t sample, position, width;
} dsc_norm_places;

/* Of x[n, ..., c] and its statistics in one of the forms of dsc_op_norm_fisher. */
static inline dsc_norm_places dsc_norm_places_of(const dsc_tensor *x, const dsc_tensor *statistics) {
    dsc_norm_places places = {0, 0, 1};
    if (!statistics || statistics->ndim != 2)
        return places;
    int64_t n = x->dim[0], c = x->dim[x->ndim - 1], groups = statistics->dim[1];
    int by_position = statistics->dim[0] != n;
    places.position = by_position ? groups : 0;
    places.sample = by_position ? dsc_tensor_count(x) / (n * c) * groups : groups;
    places.width = c / groups;
    return places;
}
/* Each p[2,c] = (F + damping[0] I)^-1 (gamma, shift) for every channel, in double: F = (f0 f1; f1 f2) of f[3,c], or
 * its diagonal when `full` is 0. gamma, shift: [c] gradients. damping: F64 scalar. */
typedef struct dsc_norm_solve_item {
    dsc_tensor f, gamma, shift, p;
} dsc_norm_solve_item;
dsc_status dsc_op_norm_solve_batch(dsc_queue *q, const dsc_tensor *damping, int full,
                                   const dsc_norm_solve_item *items, int64_t count) DSC_MUST_CHECK;

/* y = x * mask / (1 - rate); the mask of element i is a pure function of (seed, layer, position[0],
 * position[1] * row length + i), so backward is the same call on dy. position: I64[2] on the device: step,
 * first sample. The row length is the element count of one sample (all dimensions but the first). With
 * beta 1 the result is added to y; with 0, x and y may be one tensor. */
typedef struct dsc_dropout_desc {
    double rate;
    uint64_t seed;
    int layer;
} dsc_dropout_desc;
dsc_status dsc_op_dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                          const dsc_tensor *x, double beta, dsc_tensor *y) DSC_MUST_CHECK;

/* Multi-head self-attention over sequences: a sample is t positions of d channels in `heads` heads of dh = d / heads
 * channels each. x[n,t,1,3d] holds queries, keys and values, each d channels, head after head. For every head
 *
 *   S = Q K' / sqrt(dh),   P = softmax of its rows, with `causal` over the keys at or before the query,   Y = P V
 *
 * and y[n,t,1,d] has the heads side by side. lse[n,heads,t] (parameters' type) receives the logarithm of each row's
 * sum of exp(S), from which the backward pass computes P again; NULL where none follows. Only ref, in double, holds
 * whole rows of S; the other devices work on blocks of keys.
 *
 * Padding: of sample i only the first lengths[i] keys (at most t) are seen. Queries after them are computed like the
 * others. A row without any key gives 0, and its lse is 0.
 *
 * Dropout: Y = (P Z) V, element by element P Z, where Z is 0 for what is dropped and else 1 / (1 - rate); lse is not
 * changed by it. Whether an element is kept is a pure function (formulas.h, dsc_attention_block), so that the backward
 * pass, and a forward pass that is computed again, drop the same ones. */
typedef struct dsc_attention_desc {
    int64_t heads;
    int causal;
    dsc_dropout_desc dropout; /* of P; without effect where no position is given */
} dsc_attention_desc;
/* Tensors that change what a call computes. A call takes NULL for none of them. */
typedef struct dsc_attention_context {
    const dsc_tensor *position; /* I64[2], as dsc_op_dropout takes it; NULL: nothing is dropped */
    const dsc_tensor *lengths;  /* I32[n]; NULL: all positions of all samples */
} dsc_attention_context;
/* The d of an x of `channels` on this device; DSC_E_INVALID, or DSC_E_UNSUPPORTED for heads that the device has no
 * room for, with the reason, when there is none. */
dsc_status dsc_attention_width(const dsc_device *device, const dsc_attention_desc *desc, int64_t channels,
                               int64_t *d) DSC_MUST_CHECK;
/* Bytes of `work`, a U8 tensor, for both passes over an x of this shape and type, which needs no memory. */
size_t dsc_op_attention_workspace(dsc_device *device, const dsc_attention_desc *desc, const dsc_tensor *x);
dsc_status dsc_op_attention_forward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                    const dsc_attention_context *context, dsc_tensor *work, dsc_tensor *lse,
                                    dsc_tensor *y) DSC_MUST_CHECK;
/* dx = beta dx + the gradient. */
typedef struct dsc_attention_grads {
    double beta;
    dsc_tensor *work, *dx;
} dsc_attention_grads;
dsc_status dsc_op_attention_backward(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                     const dsc_attention_context *context, const dsc_tensor *y,
                                     const dsc_tensor *lse, const dsc_tensor *dy,
                                     const dsc_attention_grads *grads) DSC_MUST_CHECK;
/* One position of causal self-attention, for generating text. x[n,1,1,3d] holds query, key and value of position
 * `position` of n sequences, laid out as for dsc_op_attention_forward. Key and value are written to row `position` of
 * cache[n,positions,2d], d numbers each, and y[n,1,1,d] is what the forward pass over the whole sequence gives at this
 * position, from the keys and values of the cache's rows 0 .. position; later rows are not read. All are of one type.
 * desc->causal must be 1, and nothing is dropped. */
dsc_status dsc_op_attention_step(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                 int64_t position, dsc_tensor *cache, dsc_tensor *y) DSC_MUST_CHECK;

/* How many positions of each sample come before the padding at its end: lengths[i], I32[n], is 1 + the last position of
 * ids[n, ...] (F32 or F64) whose number is at least 0, and 0 where there is none. */
dsc_status dsc_op_sequence_lengths(dsc_queue *q, const dsc_tensor *ids, dsc_tensor *lengths) DSC_MUST_CHECK;

/* Rows of a table: row i of y is table[ids_i], zeros where ids_i is not one of the whole numbers 0 .. vocabulary - 1.
 * ids: any shape, F32 or F64 whatever the type of the table (whole numbers up to 2^24 are exact in F32); its numbers
 * count the rows. table[vocabulary, features], and y of its type with rows * features numbers. */
dsc_status dsc_op_embedding_forward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *table,
                                    dsc_tensor *y) DSC_MUST_CHECK;
/* Bytes of `work`, a U8 tensor, for the backward pass; it may be NULL where none are needed. */
size_t dsc_op_embedding_workspace(const dsc_device *device, int64_t rows, int64_t vocabulary);
/* dtable[vocabulary, features] = beta dtable + the sum of the rows of dy that have this id, any beta. dtable has the type
 * of parameters (F32 where dy is of half type). The sums run in an order that the ids alone determine: one call gives the
 * same bits as the next, on a CPU with any number of threads. */
dsc_status dsc_op_embedding_backward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *dy, double beta,
                                     dsc_tensor *work, dsc_tensor *dtable) DSC_MUST_CHECK;

/* The distribution that a row of logits is compared with: with label a, other label b, share s and c classes,
 *
 *   t = (1 - smoothing) ((1 - s) onehot(a) + s onehot(b)) + smoothing / c
 *
 * and the row counts (1 - s) weights[a] + s weights[b] times. */
typedef struct dsc_targets {
    const dsc_tensor *labels; /* I32[n]; a negative label leaves its row out */
    double smoothing;         /* 0 to 1 */
    /* I32[n], F32[n]: other labels and their shares, 0 to 1; a share of 0 makes the other label irrelevant.
     * Both NULL: there are none. */
    const dsc_tensor *others, *shares;
    const dsc_tensor *weights; /* F32[c], of the classes; NULL: 1 */
    /* Half types only: c, where rows of logits are longer, so that their products are aligned. What follows a row's
     * classes is not read, and its gradient is 0. 0: all of a row. */
    int64_t classes;
} dsc_targets;

/* Softmax cross-entropy of logits[n,c] against targets. Adds (sum of losses, correct at 1, correct within 5, rows
 * counted) to stats (F64[4]); correct is what ranks `labels` first. dlogits (may be NULL) = grad_scale *
 * dloss_row/dlogits, 0 for rows left out. Ties rank the lower class first, a NaN ranks before all. A label >= c, or
 * another label that is not below c or is negative, counts as NaN loss. loss_scale (F64 scalar, NULL: 1) is one more
 * factor of dlogits. */
dsc_status dsc_op_target_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_targets *targets,
                              double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                              dsc_tensor *stats) DSC_MUST_CHECK;
/* The same against labels alone. */
dsc_status dsc_op_softmax_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                               double smoothing, double grad_scale, const dsc_tensor *loss_scale,
                               dsc_tensor *dlogits, dsc_tensor *stats) DSC_MUST_CHECK;

/* Losses of single numbers, such as the pixels of a mask. Each adds (sum of losses, correct, correct, rows counted) to
 * stats (F64[4]), and dlogits or dy (may be NULL) = grad_scale * loss_scale[0] * the gradient of that sum of losses, so
 * that a grad_scale of 1 / rows makes the mean the objective. loss_scale: F64 scalar, NULL: 1.
 *
 * In the first two a row is one logit z (logits: any shape) with a label 0 or 1 (labels: I32, as many). A negative label
 * leaves its row out, with gradient 0; one above 1 counts as NaN. Correct is z > 0 for label 1, z <= 0 for label 0.
 *
 * Binary cross-entropy, with the label t: loss = max(z, 0) - z t + log(1 + exp(-|z|)), gradient sigmoid(z) - t. */
dsc_status dsc_op_bce_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                           double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                           dsc_tensor *stats) DSC_MUST_CHECK;
/* Soft Dice, one loss for all m rows of the call together: with p = sigmoid(z), I = sum p t and U = sum p + sum t,
 *
 *   loss = 1 - (2 I + 1) / (U + 1),   dloss/dz = (2 I + 1 - 2 t (U + 1)) p (1 - p) / (U + 1)^2
 *
 * m loss is what is added to stats, as if each row had this loss, and so the gradient has the factor m, too. */
dsc_status dsc_op_dice_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                            double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                            dsc_tensor *stats) DSC_MUST_CHECK;
/* Squared errors: rows y[n, ...] of c numbers each against F32 targets of the same shape; the loss of a row is the mean
 * of (y - target)^2 over its numbers, the gradient 2 (y - target) / c. No row counts as correct. */
dsc_status dsc_op_mse_loss(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *targets, double grad_scale,
                           const dsc_tensor *loss_scale, dsc_tensor *dy, dsc_tensor *stats) DSC_MUST_CHECK;

/* labels[i] (I32[n]) drawn from softmax(logits[i]), or where a row is one logit z, 1 with probability sigmoid(z) and else
 * 0. Each is drawn by one uniform number, a pure function of (seed, position[0], position[1] * rows_of_sample + i);
 * position: I64[2] on the device: step, first sample. A row has `classes` logits, and may be longer (see dsc_targets).
 * known (I32[n], NULL: none): a row with a negative label in it gets -1. */
dsc_status dsc_op_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                int64_t rows_of_sample, const dsc_tensor *logits, int64_t classes,
                                const dsc_tensor *known, dsc_tensor *labels) DSC_MUST_CHECK;

/* ---- images ---- */

/* x[n,h,w,c] (half) from images of bytes, cut out and mirrored at places of their own:
 *   x[i, row, column, ch] = scale[ch] raw[i, row + place[i,0], column' + place[i,1], ch] + shift[ch]
 * with column' = w - 1 - column where place[i,2] is 1 (mirrored), else column; outside[ch] where raw has no
 * such pixel. raw: U8[n,rh,rw,c]; place: I32[n,3]. At most 4 channels. */
typedef struct dsc_augment_desc {
    float scale[4], shift[4], outside[4];
} dsc_augment_desc;
dsc_status dsc_op_augment(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                          const dsc_tensor *place, dsc_tensor *x) DSC_MUST_CHECK;

/* Each y[n,h,w,c] = x[n,c,h,w]: images in the other order of their numbers. x and y of an item have one real
 * or half type, on devices of any kind; items may differ in it. */
typedef struct dsc_nhwc_item {
    dsc_tensor x, y;
} dsc_nhwc_item;
dsc_status dsc_op_nhwc_batch(dsc_queue *q, const dsc_nhwc_item *items, int64_t count) DSC_MUST_CHECK;

/* ---- optimisers ---- */

/* Hyper-parameters of a step: an F64[DSC_HYPER_COUNT] tensor on the device, so that schedules change values,
 * not calls. */
typedef enum dsc_hyper {
    DSC_HYPER_LR,
    DSC_HYPER_MOMENTUM,
    DSC_HYPER_DECAY,
    DSC_HYPER_BETA1,
    DSC_HYPER_BETA2,
    DSC_HYPER_EPS,
    DSC_HYPER_CORRECTION1, /* 1 - beta1^t */
    DSC_HYPER_CORRECTION2, /* 1 - beta2^t */
    DSC_HYPER_TRUST,       /* LARS's eta */
    DSC_HYPER_SKIP,        /* not 0: an update leaves everything as it is */
    DSC_HYPER_COUNT
} dsc_hyper;

/* The rules by which parameters are updated, with the number of their state tensors (m, v) and whether they
 * read norms. Every backend's loops come from this list and from the formulas dsc_update_NAME in
 * formulas.inc; lr, momentum, decay, eps and trust are hyper-parameters, c1 and c2 the corrections:
 *
 *   sgd              d = g + decay z; m = momentum m + d; x -= lr m
 *   nesterov         the same m; x -= lr (d + momentum m)
 *   adam             m, v: moments of g + decay z; x -= lr m/c1 / (sqrt(v/c2) + eps)
 *   adamw            m, v: moments of g; x -= lr (m/c1 / (sqrt(v/c2) + eps) + decay z)
 *   lars             rate = trust |z| / (|g| + decay |z|), 1 when either norm is 0;
 *                    m = momentum m + lr rate (g + decay z); x -= m. norms: those of z and g
 *   lamb_direction   m, v: moments of g; x = m/c1 / (sqrt(v/c2) + eps) + decay z
 *   lamb_apply       rate = |z| / |g|, 1 when either or decay is 0; x -= lr rate g, where g is the
 *                    direction. norms: those of z and g */
#define DSC_UPDATE_RULES(RULE)                                                                               \
    RULE(SGD, sgd, 1, 0)                                                                                     \
    RULE(NESTEROV, nesterov, 1, 0)                                                                           \
    RULE(ADAM, adam, 2, 0)                                                                                   \
    RULE(ADAMW, adamw, 2, 0)                                                                                 \
    RULE(LARS, lars, 1, 1)                                                                                   \
    RULE(LAMB_DIRECTION, lamb_direction, 2, 0)                                                               \
    RULE(LAMB_APPLY, lamb_apply, 0, 1)

typedef enum dsc_update_rule {
#define DSC_UPDATE_MEMBER(NAME, name, states, norms) DSC_UPDATE_##NAME,
    DSC_UPDATE_RULES(DSC_UPDATE_MEMBER)
#undef DSC_UPDATE_MEMBER
        DSC_UPDATE_COUNT
} dsc_update_rule;

/* The tensors of an update. Parameters are taken as flat vectors: all but hyper and norms have as many
 * elements as x. */
typedef struct dsc_update {
    const dsc_tensor *hyper;
    const dsc_tensor *norms; /* F64[2], sums of squares; NULL for rules that read none */
    /* What decay and norms read: x itself, or the de-biased parameters of push-sum; NULL for rules without
     * state. lamb_direction: not x. */
    const dsc_tensor *z;
    const dsc_tensor *g; /* the gradient; lamb_apply: the direction */
    dsc_tensor *m, *v;   /* state; NULL where the rule has none */
    dsc_tensor *x;       /* updated; lamb_direction only writes it, and it may be g */
} dsc_update;

dsc_status dsc_op_update(dsc_queue *q, dsc_update_rule rule, const dsc_update *u) DSC_MUST_CHECK;

/* ---- the list ----
 *
 * Every operation, once. The members of a backend's table, the prototypes of its functions (dsc_ref_NAME,
 * dsc_cuda_NAME) and ref's and CUDA's tables come from it; their arguments are those of the front,
 * dsc_op_NAME.
 *
 *   OP(name)         every backend has it
 *   COMPOSED(name)   ref has none: the front composes it from others, unless a backend does it better */
#define DSC_OPERATIONS(OP, COMPOSED)                                                                         \
    OP(fill)                                                                                                 \
    OP(convert)                                                                                              \
    OP(axpby)                                                                                                \
    OP(scale_by)                                                                                             \
    OP(dot)                                                                                                  \
    OP(map)                                                                                                  \
    OP(clip_factor)                                                                                          \
    OP(count_nonfinite)                                                                                      \
    OP(blend)                                                                                                \
    OP(increment)                                                                                            \
    OP(guard)                                                                                                \
    COMPOSED(timestamp)                                                                                      \
    OP(loss_scale)                                                                                           \
    OP(gemm)                                                                                                 \
    OP(syrk)                                                                                                 \
    OP(symmetrize)                                                                                           \
    OP(tri_pack)                                                                                             \
    OP(tri_unpack)                                                                                           \
    OP(syev_workspace)                                                                                       \
    OP(syev)                                                                                                 \
    OP(chol_inverse)                                                                                         \
    OP(syev_careful)                                                                                         \
    OP(add_diagonal)                                                                                         \
    COMPOSED(linear)                                                                                         \
    COMPOSED(gelu_gradient)                                                                                  \
    COMPOSED(gemm_batch)                                                                                     \
    COMPOSED(syev_batch_workspace)                                                                           \
    COMPOSED(syev_batch)                                                                                     \
    COMPOSED(chol_inverse_batch)                                                                             \
    OP(divide_batch)                                                                                         \
    OP(weigh_batch)                                                                                          \
    OP(moment_divide_batch)                                                                                  \
    COMPOSED(convert_batch)                                                                                  \
    COMPOSED(tri_unpack_batch)                                                                               \
    COMPOSED(dot_batch)                                                                                      \
    OP(join_batch)                                                                                           \
    OP(split_batch)                                                                                          \
    COMPOSED(absorb_batch)                                                                                   \
    OP(rotation_batch)                                                                                       \
    OP(orthonormal_batch)                                                                                    \
    OP(rayleigh_batch)                                                                                       \
    OP(outer_inverse)                                                                                        \
    OP(gather)                                                                                               \
    OP(scatter)                                                                                              \
    OP(kl_clip)                                                                                              \
    OP(damping_split)                                                                                        \
    OP(conv_forward)                                                                                         \
    OP(conv_backward_data)                                                                                   \
    OP(conv_backward_weight)                                                                                 \
    OP(patches)                                                                                              \
    COMPOSED(patch_gram_workspace)                                                                           \
    COMPOSED(patch_gram)                                                                                     \
    COMPOSED(patch_gram_packed)                                                                              \
    OP(bias_add)                                                                                             \
    OP(bias_grad)                                                                                            \
    OP(shortcut_forward)                                                                                     \
    OP(shortcut_backward)                                                                                    \
    OP(cut)                                                                                                  \
    OP(paste)                                                                                                \
    OP(upsample_forward)                                                                                     \
    OP(upsample_backward)                                                                                    \
    OP(pool_forward)                                                                                         \
    OP(pool_backward)                                                                                        \
    OP(global_pool_forward)                                                                                  \
    OP(global_pool_backward)                                                                                 \
    OP(norm_forward_train)                                                                                   \
    OP(norm_forward_eval)                                                                                    \
    OP(norm_backward)                                                                                        \
    OP(group_norm_forward)                                                                                   \
    OP(group_norm_backward)                                                                                  \
    OP(norm_fisher)                                                                                          \
    OP(norm_solve_batch)                                                                                     \
    OP(attention_workspace)                                                                                  \
    OP(attention_forward)                                                                                    \
    OP(attention_backward)                                                                                   \
    OP(attention_step)                                                                                       \
    OP(sequence_lengths)                                                                                     \
    OP(embedding_forward)                                                                                    \
    OP(embedding_workspace)                                                                                  \
    OP(embedding_backward)                                                                                   \
    OP(dropout)                                                                                              \
    OP(target_loss)                                                                                          \
    OP(bce_loss)                                                                                             \
    OP(dice_loss)                                                                                            \
    OP(mse_loss)                                                                                             \
    OP(sample_labels)                                                                                        \
    OP(augment)                                                                                              \
    OP(nhwc_batch)                                                                                           \
    OP(update)

#ifdef __cplusplus
}
#endif
#endif

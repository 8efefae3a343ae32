/* The operations of a device: the declarations of their front ends ("fronts"), and a list of all operations at the end.
 *
 * Operations that custom layers need are public, in descent/ops.h, together with the rules about queues, types and
 * beta; the others are declared here. A front (ops_*.c) checks devices, types and shapes, returns at once if there
 * is nothing to do, and calls the backend's function in the device's table (table.h).
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

/* Creates a low-priority queue: its work yields to that of other queues, on devices that support this. */
dsc_status dsc_queue_create_low(dsc_device *device, dsc_queue **out) DSC_MUST_CHECK;

/* ---- element-wise operations and reductions ---- */

/* Element-wise operations y = beta y + f(a, b), where f is the formula dsc_map_NAME in formulas.inc. All of
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

/* Computes y = beta y + f(a, b). Real or half, equal shapes; b is not read (and may be NULL) for an operation with one
 * input. y may be a or b when beta is 0. */
dsc_status dsc_op_map(dsc_queue *q, dsc_map map, const dsc_tensor *a, const dsc_tensor *b, double beta,
                      dsc_tensor *y) DSC_MUST_CHECK;

/* out[0] = min(1, limit / sqrt(sumsq[0])), or 1 if sumsq is 0; F64 scalars. */
dsc_status dsc_op_clip_factor(dsc_queue *q, const dsc_tensor *sumsq, double limit,
                              dsc_tensor *out) DSC_MUST_CHECK;
/* out[0] += the number of elements of t that are NaN or infinite; out: F64 scalar. */
dsc_status dsc_op_count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out) DSC_MUST_CHECK;

/* y = decay[0] y + (1 - decay[0]) x: a running average. If bad[0] > 0 (bad[0] is, for example, the number of
 * non-finite elements of x), y is left unchanged and bad[1] grows by 1. decay: F64 scalar, bad: F64[2]. */
dsc_status dsc_op_blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                        dsc_tensor *y) DSC_MUST_CHECK;

/* t += 1, element by element; t: I64. */
dsc_status dsc_op_increment(dsc_queue *q, dsc_tensor *t) DSC_MUST_CHECK;
/* Sets flag[0], which is meant to be DSC_HYPER_SKIP, to 2 if value[0] is not finite. With firm 0, a flag[0] of 1 is
 * left as it is, since the step is then skipped anyway. F64 scalars. */
dsc_status dsc_op_guard(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag) DSC_MUST_CHECK;

/* t[0] = the time of the device's clock, in nanoseconds, when the queue reaches this operation; t: I64 scalar. */
dsc_status dsc_op_timestamp(dsc_queue *q, dsc_tensor *t) DSC_MUST_CHECK;

/* A dynamic loss scale: F64[DSC_SCALE_COUNT] on the device. */
typedef enum dsc_scale {
    DSC_SCALE_VALUE,          /* the factor of the loss */
    DSC_SCALE_INVERSE,        /* 1 / the VALUE that the current step used, to unscale its gradients */
    DSC_SCALE_INVERSE_SQUARE, /* its square, to unscale products of two gradients */
    DSC_SCALE_GOOD,           /* good steps since VALUE last changed */
    DSC_SCALE_INTERVAL,       /* good steps until VALUE is doubled; 0: VALUE never changes */
    DSC_SCALE_COUNT
} dsc_scale;
/* Updates the loss scale at the end of a backward pass, in which bad[0] elements were not finite. Sets the inverses to
 * those of VALUE, then halves VALUE (not below 1) if bad[0] > 0, or doubles it (not above 2^24) after INTERVAL good
 * steps. Sets skip[0] to 1 if bad[0] > 0, else to 0, but leaves a 2 as it is. bad, skip: F64 scalars. */
dsc_status dsc_op_loss_scale(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale,
                             dsc_tensor *skip) DSC_MUST_CHECK;

/* ---- dense linear algebra ---- */

/* Computes the lower triangle of C[n,n] = alpha A' A + beta C, with A[m,n] and any beta; the strict upper triangle
 * is left unchanged. */
dsc_status dsc_op_syrk(dsc_queue *q, double alpha, const dsc_tensor *a, double beta,
                       dsc_tensor *c) DSC_MUST_CHECK;
/* Copies the lower triangle of A[n,n] to the upper one. */
dsc_status dsc_op_symmetrize(dsc_queue *q, dsc_tensor *a) DSC_MUST_CHECK;
/* Packs the lower triangle of A[n,n], row by row, into P[n(n+1)/2]; and unpacks it, filling both triangles. */
dsc_status dsc_op_tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p) DSC_MUST_CHECK;
dsc_status dsc_op_tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a) DSC_MUST_CHECK;
/* The eigendecomposition A = Q diag(v) Q' of a symmetric A[n,n], of which only the lower triangle is read. Q
 * overwrites A, with one eigenvector per column; v[n] is in ascending order. `work`: U8 tensor of at least
 * dsc_op_syev_workspace bytes. DSC_E_NUMERIC if the solver fails or A is not finite; A is then undefined. */
size_t dsc_op_syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n);
dsc_status dsc_op_syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) DSC_MUST_CHECK;
/* A := A^-1 for a symmetric positive definite A[n,n], by Cholesky; reads the lower triangle, writes both.
 * DSC_E_NUMERIC if A is not positive definite; A is then undefined. */
dsc_status dsc_op_chol_inverse(dsc_queue *q, dsc_tensor *a) DSC_MUST_CHECK;
/* Like dsc_op_syev, as a last resort: on the host, in double, by another algorithm (QR iteration), in memory that it
 * allocates. Blocks. */
DSC_MODULE_API dsc_status dsc_op_syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v) DSC_MUST_CHECK;
/* A += value[0] I, with A[n,n]; value: F64 scalar. */
dsc_status dsc_op_add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a) DSC_MUST_CHECK;

/* What is done to the product of a linear layer; a GPU can do it before it writes the product to memory. */
typedef struct dsc_linear_epilogue {
    const dsc_tensor *b;      /* [n], the bias, in the type of parameters; NULL: none */
    const dsc_tensor *half_b; /* the same numbers in the type of y, if the caller has them; else NULL */
    const dsc_tensor *term;   /* [m,n], added, in the type of y; NULL: none. Not together with inner */
    dsc_tensor *inner;        /* NULL, or [m,n] in y's type: becomes the sum, and y its tanh GELU */
} dsc_linear_epilogue;
/* y[m,n] = x[m,k] w[n,k]', then the epilogue; real or half. In this operation and the next a backend may return
 * DSC_E_UNSUPPORTED, without a message, for what it cannot do in one call: the front then composes it from others. */
dsc_status dsc_op_linear(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w, const dsc_linear_epilogue *e,
                         dsc_tensor *y) DSC_MUST_CHECK;
/* The gradient of inner[m,n], whose tanh GELU is the input of a linear layer with weights w[k,n]: dx[m,n] = dy[m,k] w,
 * times the derivative of the GELU at inner. */
dsc_status dsc_op_gelu_gradient(dsc_queue *q, const dsc_tensor *dy, const dsc_tensor *w,
                                const dsc_tensor *inner, dsc_tensor *dx) DSC_MUST_CHECK;

/* ---- many small problems at once ----
 *
 * Items are described by an array in host memory. All items have the same real type, and outputs of different items do
 * not overlap. On a CPU one thread works on one item, or on one piece of a large product; how a product is cut into
 * pieces depends only on its size, so that results do not depend on the number of threads. Large items should come
 * first. */

/* Each C = alpha op(A) op(B) + beta C, like dsc_op_gemm. */
typedef struct dsc_gemm_item {
    int trans_a, trans_b;
    double alpha, beta;
    dsc_tensor a, b, c;
    int fast; /* 1: TF32 inputs (relative error 1e-3) are accurate enough, if the device supports them */
} dsc_gemm_item;
dsc_status dsc_op_gemm_batch(dsc_queue *q, const dsc_gemm_item *items, int64_t count) DSC_MUST_CHECK;
/* For each item, replaces A by its eigenvectors and sets v (like dsc_op_syev), or replaces A by A^-1 (like
 * dsc_op_chol_inverse; v is not used). Sets `failed` to 1 if the solver failed or A is not finite (A and v are then
 * undefined), else to 0; the call itself succeeds in both cases. `work`: U8 tensor of dsc_op_syev_batch_workspace bytes
 * for items of at most n rows; the inversion needs none (NULL). Blocks until the outcome is known. */
typedef struct dsc_solve_item {
    dsc_tensor a, v;
    int failed;
    /* 1: a small eigenproblem may be solved by the device's fastest algorithm for many small problems, if it has
     * one; the last bits of the result then differ. */
    int quick;
} dsc_solve_item;
DSC_MODULE_API size_t dsc_op_syev_batch_workspace(dsc_device *device, dsc_dtype dtype, int64_t n,
                                                  int64_t count);
DSC_MODULE_API dsc_status dsc_op_syev_batch(dsc_queue *q, dsc_solve_item *items, int64_t count,
                                            dsc_tensor *work) DSC_MUST_CHECK;
dsc_status dsc_op_chol_inverse_batch(dsc_queue *q, dsc_solve_item *items, int64_t count) DSC_MUST_CHECK;
/* Each x[i,j] /= rows[i] columns[j] + damping[0], with x[m,n], rows[m], columns[n]; damping: F64 scalar. */
typedef struct dsc_divide_item {
    dsc_tensor rows, columns, x;
} dsc_divide_item;
dsc_status dsc_op_divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                               int64_t count) DSC_MUST_CHECK;
/* Each s = decay[0] s + (1 - decay[0]) scale[0] x^2, a running average of second moments, then x /= s +
 * damping[0], element by element; x and s have equal shapes. An element of s keeps its value if the new one would not
 * be finite; all elements do if scale has no memory or scale[0] is not positive. decay, damping, scale: F64
 * scalars. */
typedef struct dsc_moment_item {
    dsc_tensor scale, s, x;
} dsc_moment_item;
dsc_status dsc_op_moment_divide_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *damping,
                                      const dsc_moment_item *items, int64_t count) DSC_MUST_CHECK;

/* Each x[i,j] = from[i,j] times a weight, with x[m,n]; `from` may be x. With w(r, c) = 1 / (r c + damping[0]) the
 * weight is
 *
 *   rows[m], columns[n]   w(rows[i], columns[j]) - w(rows[i], other_column) - w(other_row, columns[j])
 *                         + w(other_row, other_column), without the terms of others that have no data
 *   rows without data     other_row in place of rows[i], without the terms that are subtracted for it
 *   columns without data  likewise
 *
 * These are the weights of gradients in bases that keep some eigenvectors and the mean of the other eigenvalues.
 * other_row, other_column: scalars of x's type; damping: F64 scalar. */
typedef struct dsc_weigh_item {
    dsc_tensor rows, columns, other_row, other_column, from, x;
} dsc_weigh_item;
dsc_status dsc_op_weigh_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_weigh_item *items,
                              int64_t count) DSC_MUST_CHECK;

/* Each dst = src, like dsc_op_convert between fp32, fp64, bf16 and fp16; the types may differ from item to item. With
 * `clamp`, numbers below 0 become 0; src and dst then have the same shape and the same real type. */
typedef struct dsc_convert_item {
    dsc_tensor src, dst;
    int clamp;
} dsc_convert_item;
dsc_status dsc_op_convert_batch(dsc_queue *q, const dsc_convert_item *items, int64_t count) DSC_MUST_CHECK;
/* Unpacks each A[n,n] from its packed lower triangle P[n(n+1)/2], like dsc_op_tri_unpack. */
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
/* Join: each d[m,n+1] = [w, b], with the m n elements of w (any shape) as rows and the m elements of b as the last
 * column; d[m,n] = w if b has no data. Split: [w, b] = scale[0] d; scale: F64 scalar, NULL: 1. If it is not finite,
 * nothing is written.
 *
 * With channels > 0 the numbers of w may lie anywhere: column j of d's row i is
 *   w[i row_stride + (j / channels) position_stride + (j % channels) channel_stride]
 * The strides are at least 0 and no two numbers share a place (not checked). */
typedef struct dsc_join_item {
    dsc_tensor w, b, d;
    int64_t channels, row_stride, position_stride, channel_stride;
} dsc_join_item;
dsc_status dsc_op_join_batch(dsc_queue *q, const dsc_join_item *items, int64_t count) DSC_MUST_CHECK;
dsc_status dsc_op_split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                              int64_t count) DSC_MUST_CHECK;
/* For each item, sets bad[0] to the number of non-finite elements of x, then blends x into y (dsc_op_blend). */
typedef struct dsc_absorb_item {
    dsc_tensor x, bad, y;
} dsc_absorb_item;
dsc_status dsc_op_absorb_batch(dsc_queue *q, const dsc_tensor *decay, const dsc_absorb_item *items,
                               int64_t count) DSC_MUST_CHECK;

/* ---- the refresh of an eigenbasis ----
 *
 * Matrix products and the following three operations update an eigenbasis Q[n,k] of a symmetric A[n,n], which has the
 * leading k of n eigenvectors or all of them (1 <= k <= n), after A has changed. Batches as above; F32 and F64. */

/* The step between two products: rotates Q towards the eigenvectors of A. Inputs: b[k,k] = Q'AQ, of which only the
 * symmetric part B is used, q[n,k], y[n,k] = A Q, delta > 0. Outputs: x[k,k] and z[n,k], from which the caller computes
 * Z := Z + Q X, the rotated basis before orthonormalisation, with its columns ordered by descending l = diag B (ties:
 * the lower index first; NaN last). y is not read if k = n.
 *
 * Let o(j) be the column of Q that becomes column j, i any column of Q, g = l[o(j)] - l[i],
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
/* Makes the columns of each Z[n,k] orthonormal, with the least change in the first ones: Z := Z R^-1, where R is upper
 * triangular and R'R = H. H[k,k] = Z'Z is given; its lower triangle is read, and it is overwritten. Sets `failed` to 1
 * if H is not finite or not positive definite (Z is then undefined), else to 0; the call itself succeeds in both cases.
 * Blocks until the outcome is known. */
typedef struct dsc_orthonormal_item {
    dsc_tensor h, z;
    int failed;
    int fast; /* like that of dsc_gemm_item: TF32 is accurate enough for the large products of the elimination */
} dsc_orthonormal_item;
dsc_status dsc_op_orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) DSC_MUST_CHECK;
/* Computes Rayleigh quotients and a residual of the columns of q[n,k], with y = A Q: each v[j] = q_j'y_j / q_j'q_j,
 * or 0 if q_j = 0. result: F64[3], the trace of a[n,n], the sum of v, and the residual, which is the square root of
 * the mean over j of (|y_j - v_j q_j| / (max(v_j, 0) + delta))^2. delta > 0; sums in double. */
typedef struct dsc_rayleigh_item {
    dsc_tensor a, q, y, v, result;
    double delta;
} dsc_rayleigh_item;
dsc_status dsc_op_rayleigh_batch(dsc_queue *q, const dsc_rayleigh_item *items, int64_t count) DSC_MUST_CHECK;

/* ---- pieces of a second-order step ---- */

/* out[i,j] = 1 / (rows[i] columns[j] + damping[0]). */
dsc_status dsc_op_outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                const dsc_tensor *columns, dsc_tensor *out) DSC_MUST_CHECK;
/* Gather: dst[i,j] = src[rows[i], columns[j]]. Scatter: dst[rows[i], columns[j]] = src[i,j], and the rest of dst is
 * left unchanged. rows, columns: I32, in range (not checked); for scatter, without duplicates. */
dsc_status dsc_op_gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                         const dsc_tensor *columns, dsc_tensor *dst) DSC_MUST_CHECK;
dsc_status dsc_op_scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                          const dsc_tensor *columns, dsc_tensor *dst) DSC_MUST_CHECK;
/* Each out[i] = min(1, sqrt(limits[1] / |limits[0]^2 sum[i]|)), but 1 if limits[1] or the product is 0, and NaN if
 * sum[i] is not finite. limits: F64[2], the learning rate and the bound; sum, out: F64, equal element counts. */
dsc_status dsc_op_kl_clip(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits,
                          dsc_tensor *out) DSC_MUST_CHECK;
/* Splits the damping between the two matrices of each pair by the ratio of their mean eigenvalues m = traces / rows:
 *   out[2i] = sqrt(damping[0] m[2i] / m[2i + 1]),  out[2i + 1] = sqrt(damping[0] m[2i + 1] / m[2i])
 * Both are sqrt(damping[0]) if a mean or the ratio is not a positive, finite number. damping: F64 scalar; traces,
 * rows, out: F64[2 pairs]. */
dsc_status dsc_op_damping_split(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *traces,
                                const dsc_tensor *rows, dsc_tensor *out) DSC_MUST_CHECK;

/* ---- convolution ---- */

/* Copies a caller's shape, which may come from an older version of the header: members that it lacks get their
 * defaults. DSC_E_INVALID if it is NULL or its size was never set. */
dsc_status dsc_conv2d_shape_read(const dsc_conv2d_shape *given, dsc_conv2d_shape *out) DSC_MUST_CHECK;

/* n images of one type: x[n, in_h, in_w, in_c], y[n, out_h, out_w, out_c]. */
typedef struct dsc_conv_desc {
    dsc_dtype dtype;
    int64_t n;
    dsc_conv2d_shape shape;
} dsc_conv_desc;

/* Computes the output's height and width; DSC_E_INVALID, with the reason, if no such convolution exists. Unlike
 * dsc_conv2d_output it also checks the type and the element counts, and does not read shape.size. */
DSC_MODULE_API dsc_status dsc_conv_output(const dsc_conv_desc *desc, int64_t *oh, int64_t *ow) DSC_MUST_CHECK;

/* Sets *conv to the convolution whose gradient of x is the forward pass of the transposed convolution `shape`. *conv
 * maps the output of the transposed convolution to its input: in and out are swapped, and so are x and dy in the
 * gradient of the weights [in_c, kernel_h, kernel_w, out_c / groups]; the extra rows and columns of `shape` are part
 * of conv's input. Does not read shape.size. DSC_E_INVALID, with the reason, if there is no such convolution. */
DSC_MODULE_API dsc_status dsc_conv_transposed(const dsc_conv2d_shape *shape,
                                              dsc_conv2d_shape *conv) DSC_MUST_CHECK;

/* A planned convolution: holds the descriptors and the chosen algorithms, so that nothing is planned during a step. */
typedef struct dsc_conv dsc_conv;
dsc_status dsc_conv_create(dsc_device *device, const dsc_conv_desc *desc, dsc_conv **out) DSC_MUST_CHECK;
/* The same for the forward pass alone, or for the gradient of x alone; other passes are refused. */
dsc_status dsc_conv_create_forward(dsc_device *device, const dsc_conv_desc *desc,
                                   dsc_conv **out) DSC_MUST_CHECK;
dsc_status dsc_conv_create_backward_data(dsc_device *device, const dsc_conv_desc *desc,
                                         dsc_conv **out) DSC_MUST_CHECK;
void dsc_conv_destroy(dsc_conv **conv);
/* The workspace in bytes that the passes need (the maximum over them). */
size_t dsc_conv_workspace(const dsc_conv *conv);
/* The passes. bias may be NULL. `work`: U8 tensor of at least dsc_conv_workspace bytes. */
dsc_status dsc_op_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                               const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                     double beta, dsc_tensor *work, dsc_tensor *dx) DSC_MUST_CHECK;
dsc_status dsc_op_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                       const dsc_tensor *dy, double beta, dsc_tensor *work,
                                       dsc_tensor *dw) DSC_MUST_CHECK;
/* Extracts the patches of x (im2col) of one group for output positions [first, first + rows) of the n*oh*ow:
 * out[rows, width], with width = kernel_h * kernel_w * in_c / groups in the order of the weights, or one more: the last
 * column is then 1. Called slab by slab. */
dsc_status dsc_op_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                          int64_t first, dsc_tensor *out) DSC_MUST_CHECK;

/* Computes the lower triangle of C[n,n] = alpha P' P + beta C, any beta, where P are the patches of one group at all
 * output positions; n is their width, or one more: a last column of ones. Real or half; C is F32 for an x of half type.
 * No more than a cache-sized slab of P exists at a time. With a 1x1 kernel without stride and padding, P is x itself:
 * the rows of a linear layer's input (in_h = in_w = 1), or those of a gradient. `work`: U8 tensor of at least
 * dsc_op_patch_gram_workspace bytes. */
size_t dsc_op_patch_gram_workspace(dsc_device *device, const dsc_conv_desc *desc, int ones);
dsc_status dsc_op_patch_gram(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                             double alpha, double beta, dsc_tensor *work, dsc_tensor *c) DSC_MUST_CHECK;

/* The same with beta 0, as a packed triangle p[n(n+1)/2]. `full`: F32 or F64 scratch of n*n elements, which a
 * backend that packs the triangle itself does not touch. */
dsc_status dsc_op_patch_gram_packed(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x,
                                    int64_t group, double alpha, dsc_tensor *work, dsc_tensor *full,
                                    dsc_tensor *p) DSC_MUST_CHECK;

/* ---- layers; all of them accept half types ---- */

/* The parameter-free shortcut: y[n,oh,ow,k] = x[n, i*stride, j*stride, ch - (k-c)/2], or 0 where there is no
 * such channel; oh = ceil(h/stride). The backward pass is its transpose. */
dsc_status dsc_op_shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x,
                                   dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx) DSC_MUST_CHECK;

/* The row, column and channel at which part[n,h,w,c] begins in a larger tensor, whole[n,H,W,C]. */
typedef struct dsc_part_desc {
    int64_t top, left, first;
} dsc_part_desc;
/* Cut: part = beta part + that part of the whole. Paste: that part of the whole = beta times itself + part; the other
 * elements of the whole are left unchanged. */
dsc_status dsc_op_cut(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *whole, double beta,
                      dsc_tensor *part) DSC_MUST_CHECK;
dsc_status dsc_op_paste(dsc_queue *q, const dsc_part_desc *desc, const dsc_tensor *part, double beta,
                        dsc_tensor *whole) DSC_MUST_CHECK;

/* Upsamples x[n,h,w,c] to y[n,2h,2w,c], along the height and the width in the same way. In one dimension:
 *   nearest    y[i] = x[i / 2]
 *   bilinear   y[i] = 3/4 x[i / 2] + 1/4 x[the neighbour of i / 2 that is closer to i, at the border i / 2 itself]
 * The backward pass is the transpose; every element of dx is a sum in a fixed order. */
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
/* `index` receives the position of each maximum within its window; of equal values the first one is taken. It has y's
 * shape and is I32, or U8 for windows of at most 256 positions; NULL for an average, or if no backward pass follows. */
dsc_status dsc_op_pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                               dsc_tensor *index, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                const dsc_tensor *dy, double beta, dsc_tensor *dx) DSC_MUST_CHECK;
/* y[n,c] = the mean of x[n,h,w,c] over h and w; and its backward pass. */
dsc_status dsc_op_global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta,
                                       dsc_tensor *dx) DSC_MUST_CHECK;

/* Batch norm over the last dimension c of x, fused with the operations that often follow:
 *   y = [relu]( gamma (x - mean) * invstd + shift [+ residual] ),   invstd = 1 / sqrt(var + eps), var biased.
 * Training uses the batch's statistics, saves mean[c] and invstd[c], and updates the running statistics:
 *   running = (1 - momentum) running + momentum batch, with the unbiased variance (like PyTorch; with one row, the
 * biased one). Statistics are accumulated so that the error stays at the level of rounding even for |mean| >> std. y
 * may not be x. */
typedef struct dsc_norm_desc {
    double eps, momentum;
    int relu; /* 1: fused ReLU */
} dsc_norm_desc;
typedef struct dsc_norm_params {
    const dsc_tensor *gamma, *shift;        /* [c] */
    dsc_tensor *running_mean, *running_var; /* [c] */
    /* [2, c], or NULL; see dsc_norm_grads.applied. */
    dsc_tensor *applied;
} dsc_norm_params;
/* residual may be NULL. */
dsc_status dsc_op_norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *residual, const dsc_norm_params *params,
                                     dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y) DSC_MUST_CHECK;
dsc_status dsc_op_norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                    const dsc_tensor *residual, const dsc_norm_params *params,
                                    dsc_tensor *y) DSC_MUST_CHECK;
/* y is read only with relu (its sign is the mask), otherwise it may be NULL. dresidual, NULL without a residual,
 * receives the masked dy. Each output has its own beta: beta_x for dx, beta_p for dgamma and dshift. If beta_x is 0, dx
 * may be dy. */
typedef struct dsc_norm_grads {
    dsc_tensor *dx, *dresidual, *dgamma, *dshift;
    double beta_x, beta_residual, beta_p;
    /* For a norm with ReLU and without residual: the dsc_norm_params.applied of its forward pass, or NULL. A backend
     * may store the factors and shifts there with which it computes y, and in the backward pass compute the sign of y
     * from x in the same way, with the same bits, instead of reading y. */
    const dsc_tensor *applied;
} dsc_norm_grads;
dsc_status dsc_op_norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                const dsc_tensor *mean, const dsc_tensor *invstd,
                                const dsc_norm_grads *grads) DSC_MUST_CHECK;

/* Group norms. x[n, ..., c] has `groups` groups of c / groups neighbouring channels; mean and variance are taken over
 * the channels of a group at all positions of one sample:
 *   y = gamma (x - mean) invstd + shift,   invstd = 1 / sqrt(var + eps), var biased,
 * or, with `rms`, y = gamma x invstd with invstd = 1 / sqrt(mean of x^2 + eps). Layer norm: x[rows, c], one group.
 * gamma, shift: [c]; mean, invstd: [n, groups]. Like those of batch norm, the statistics are accurate for |mean| >>
 * std; on a CPU no result depends on the number of threads. y may not be x. */
typedef struct dsc_group_norm_desc {
    double eps;
    int64_t groups;
    int rms;
} dsc_group_norm_desc;
/* shift may be NULL; so may mean and invstd if no backward pass follows, and mean with rms. */
dsc_status dsc_op_group_norm_forward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *gamma, const dsc_tensor *shift, dsc_tensor *mean,
                                     dsc_tensor *invstd, dsc_tensor *y) DSC_MUST_CHECK;
/* Any of dx, dgamma and dshift may be NULL and is then not computed. mean may be NULL with rms. dresidual and
 * beta_residual are not used. */
dsc_status dsc_op_group_norm_backward(dsc_queue *q, const dsc_group_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *dy, const dsc_tensor *gamma, const dsc_tensor *mean,
                                      const dsc_tensor *invstd, const dsc_norm_grads *grads) DSC_MUST_CHECK;

/* The 2x2 Fisher matrices of each channel's scale and shift, sample by sample: out[i] = (u1 u1, u1 u2, u2 u2), where
 * u = (u1, u2) is the sum of (g xhat, g) over the positions of sample i. x, y, dy: [n, ..., c]; out: [n, 3, c] in the
 * type of parameters. xhat = (x - mean) invstd, x invstd if mean is NULL, or x if both are NULL. g = dy; if y, the
 * output of a fused ReLU, is not NULL, g is 0 where y is not positive. mean and invstd are [c] (batch norms), [n *
 * positions, groups] (layer norms: one group) or [n, groups] (group norms); all groups have the same number of
 * channels. */
dsc_status dsc_op_norm_fisher(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, const dsc_tensor *dy,
                              const dsc_tensor *mean, const dsc_tensor *invstd,
                              dsc_tensor *out) DSC_MUST_CHECK;
/* For backends: the index of the statistic of channel ch at position p of sample i is
 * i * sample + p * position + ch / width. */
typedef struct dsc_norm_places {
    int64_t sample, position, width;
} dsc_norm_places;

/* The places for x[n, ..., c] and its statistics in one of the forms of dsc_op_norm_fisher. */
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
/* Each p[2,c] = (F + damping[0] I)^-1 (gamma, shift) for every channel, in double: F = (f0 f1; f1 f2) from f[3,c], or
 * only its diagonal if `full` is 0. gamma, shift: the gradients, [c]. damping: F64 scalar. */
typedef struct dsc_norm_solve_item {
    dsc_tensor f, gamma, shift, p;
} dsc_norm_solve_item;
dsc_status dsc_op_norm_solve_batch(dsc_queue *q, const dsc_tensor *damping, int full,
                                   const dsc_norm_solve_item *items, int64_t count) DSC_MUST_CHECK;

/* y = x * mask / (1 - rate). The mask of element i is a pure function of (seed, layer, position[0],
 * position[1] * row length + i), so that the backward pass is the same call on dy. position: I64[2] on the device: the
 * step and the first sample. The row length is the element count of one sample (all dimensions but the first). With
 * beta 1 the result is added to y; with beta 0, x and y may be one tensor. */
typedef struct dsc_dropout_desc {
    double rate;
    uint64_t seed;
    int layer;
} dsc_dropout_desc;
dsc_status dsc_op_dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                          const dsc_tensor *x, double beta, dsc_tensor *y) DSC_MUST_CHECK;

/* Multi-head self-attention over sequences: a sample has t positions of d channels, in `heads` heads of dh = d /
 * heads channels each. x[n,t,1,3d] holds queries, keys and values, d channels each, head after head. For every head
 *
 *   S = Q K' / sqrt(dh),   P = softmax of its rows, with `causal` over the keys at or before the query,   Y = P V
 *
 * and y[n,t,1,d] has the heads side by side. lse[n,heads,t] (in the type of parameters) receives the logarithm of
 * each row's sum of exp(S), from which the backward pass recomputes P; NULL if none follows. Only ref, in double,
 * holds whole rows of S; the other devices work on blocks of keys.
 *
 * Padding: queries attend only to the first lengths[i] keys (at most t) of their sample i. Queries in the padding are
 * computed like the others. A row without any key gives 0, and its lse is 0.
 *
 * Dropout: Y = (P Z) V with the element-wise product P Z, where Z is 0 for dropped elements and 1 / (1 - rate) for
 * the others; lse does not depend on it. Whether an element is kept is a pure function (formulas.h,
 * dsc_attention_block), so that the backward pass, and a recomputed forward pass, drop the same elements. */
typedef struct dsc_attention_desc {
    int64_t heads;
    int causal;
    dsc_dropout_desc dropout; /* of P; without effect if no position is given */
} dsc_attention_desc;
/* Optional tensors of a call. NULL instead of the struct: none of them. */
typedef struct dsc_attention_context {
    const dsc_tensor *position; /* I64[2], as dsc_op_dropout takes it; NULL: nothing is dropped */
    const dsc_tensor *lengths;  /* I32[n]; NULL: all positions of all samples */
} dsc_attention_context;
/* Sets *d to the width d for an x with `channels` channels. If there is none: DSC_E_INVALID, or DSC_E_UNSUPPORTED for
 * heads that are too large for the device, with the reason. */
dsc_status dsc_attention_width(const dsc_device *device, const dsc_attention_desc *desc, int64_t channels,
                               int64_t *d) DSC_MUST_CHECK;
/* The size in bytes of `work`, a U8 tensor, for both passes over an x of this shape and type; x's data are not read. */
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
 * cache[n,positions,2d], d numbers each. y[n,1,1,d] becomes what the forward pass over the whole sequence gives at this
 * position, computed from the cache's rows 0 .. position; later rows are not read. All tensors have the same type.
 * desc->causal must be 1, and nothing is dropped. */
dsc_status dsc_op_attention_step(dsc_queue *q, const dsc_attention_desc *desc, const dsc_tensor *x,
                                 int64_t position, dsc_tensor *cache, dsc_tensor *y) DSC_MUST_CHECK;

/* The number of positions of each sample before the padding at its end: lengths[i], I32[n], is 1 + the last position of
 * ids[n, ...] (F32 or F64) whose number is at least 0, or 0 if there is none. */
dsc_status dsc_op_sequence_lengths(dsc_queue *q, const dsc_tensor *ids, dsc_tensor *lengths) DSC_MUST_CHECK;

/* Looks up rows of a table: row i of y is table[ids_i], or zeros if ids_i is not a whole number in 0 .. vocabulary - 1.
 * ids: any shape, F32 or F64 whatever the type of the table (whole numbers up to 2^24 are exact in F32); rows is its
 * element count. table: [vocabulary, features]; y: rows * features elements of table's type. */
dsc_status dsc_op_embedding_forward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *table,
                                    dsc_tensor *y) DSC_MUST_CHECK;
/* The size in bytes of `work`, a U8 tensor, for the backward pass; `work` may be NULL if the size is 0. */
size_t dsc_op_embedding_workspace(const dsc_device *device, int64_t rows, int64_t vocabulary);
/* Row i of dtable[vocabulary, features] = beta times itself + the sum of the rows of dy whose id is i, any beta. dtable
 * has the type of parameters (F32 if dy is of half type). The ids alone determine the order of the sums: every call
 * gives the same bits, on a CPU with any number of threads. */
dsc_status dsc_op_embedding_backward(dsc_queue *q, const dsc_tensor *ids, const dsc_tensor *dy, double beta,
                                     dsc_tensor *work, dsc_tensor *dtable) DSC_MUST_CHECK;

/* The target distribution of a row of logits: with label a, other label b, share s and c classes it is
 *
 *   t = (1 - smoothing) ((1 - s) onehot(a) + s onehot(b)) + smoothing / c
 *
 * and the weight of the row is (1 - s) weights[a] + s weights[b]. */
typedef struct dsc_targets {
    const dsc_tensor *labels; /* I32[n]; a negative label leaves its row out */
    double smoothing;         /* 0 to 1 */
    /* I32[n], F32[n]: other labels and their shares, 0 to 1; with a share of 0 the other label does not matter.
     * Both NULL: there are none. */
    const dsc_tensor *others, *shares;
    const dsc_tensor *weights; /* F32[c], of the classes; NULL: all 1 */
    /* Half types only: c, if the rows of logits are longer (padded for aligned matrix products). What follows the
     * classes in a row is not read, and its gradient is 0. 0: the whole row. */
    int64_t classes;
} dsc_targets;

/* Softmax cross-entropy of logits[n,c] against targets. Adds (sum of losses, top-1 correct, top-5 correct, rows
 * counted) to stats (F64[4]); a row is correct if `labels` ranks first (or among the first 5). dlogits (may be
 * NULL) = grad_scale * dloss_row/dlogits, 0 for rows left out. Of equal logits the lower class ranks first; a NaN
 * ranks before all numbers, and every class before a label whose logit is NaN. If the label is >= c, or the other label
 * is >= c or negative, the row's loss is NaN. loss_scale (F64 scalar, NULL: 1) is one more factor of dlogits. */
dsc_status dsc_op_target_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_targets *targets,
                              double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                              dsc_tensor *stats) DSC_MUST_CHECK;
/* The same with labels only. */
dsc_status dsc_op_softmax_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                               double smoothing, double grad_scale, const dsc_tensor *loss_scale,
                               dsc_tensor *dlogits, dsc_tensor *stats) DSC_MUST_CHECK;

/* Losses of single numbers, such as the pixels of a mask. Each adds (sum of losses, correct, correct, rows counted)
 * to stats (F64[4]). dlogits or dy (may be NULL) = grad_scale * loss_scale[0] * the gradient of that sum of losses;
 * with a grad_scale of 1 / rows the objective is the mean. loss_scale: F64 scalar, NULL: 1.
 *
 * In the first two a row is one logit z (logits: any shape) with a label 0 or 1 (labels: I32, as many). A negative
 * label leaves its row out, with gradient 0; one above 1 counts as NaN. A row is correct if z > 0 (label 1) or z <= 0
 * (label 0).
 *
 * Binary cross-entropy, with the label t: loss = max(z, 0) - z t + log(1 + exp(-|z|)), gradient sigmoid(z) - t. */
dsc_status dsc_op_bce_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                           double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                           dsc_tensor *stats) DSC_MUST_CHECK;
/* Soft Dice, one loss for all m rows of the call together: with p = sigmoid(z), I = sum p t and U = sum p + sum t,
 *
 *   loss = 1 - (2 I + 1) / (U + 1),   dloss/dz = (2 I + 1 - 2 t (U + 1)) p (1 - p) / (U + 1)^2
 *
 * m times the loss is added to stats, as if each row had this loss; so the gradient has the factor m, too. */
dsc_status dsc_op_dice_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                            double grad_scale, const dsc_tensor *loss_scale, dsc_tensor *dlogits,
                            dsc_tensor *stats) DSC_MUST_CHECK;
/* Squared errors: rows y[n, ...] of c numbers each against F32 targets of the same shape; the loss of a row is the mean
 * of (y - target)^2 over its numbers, the gradient 2 (y - target) / c. No row counts as correct. */
dsc_status dsc_op_mse_loss(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *targets, double grad_scale,
                           const dsc_tensor *loss_scale, dsc_tensor *dy, dsc_tensor *stats) DSC_MUST_CHECK;

/* Draws labels[i] (I32[n]) from softmax(logits[i]) or, if a row is one logit z, draws 1 with probability sigmoid(z),
 * else 0. Each draw uses one uniform number, a pure function of (seed, position[0], position[1] * rows_of_sample +
 * i). position: I64[2] on the device: step, first sample. A row has `classes` logits, and may be longer (see
 * dsc_targets). known (I32[n], NULL: none): rows whose label in it is negative get the label -1. */
dsc_status dsc_op_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                int64_t rows_of_sample, const dsc_tensor *logits, int64_t classes,
                                const dsc_tensor *known, dsc_tensor *labels) DSC_MUST_CHECK;

/* ---- images ---- */

/* Makes x[n,h,w,c] (real or half) from images of bytes, each cropped at its own place and possibly mirrored:
 *   x[i, row, column, ch] = scale[ch] raw[i, row + place[i,0], column' + place[i,1], ch] + shift[ch]
 * with column' = w - 1 - column where place[i,2] is 1 (mirrored), else column; outside[ch] where raw has no
 * such pixel. raw: U8[n,rh,rw,c]; place: I32[n,3]. At most 4 channels. */
typedef struct dsc_augment_desc {
    float scale[4], shift[4], outside[4];
} dsc_augment_desc;
dsc_status dsc_op_augment(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                          const dsc_tensor *place, dsc_tensor *x) DSC_MUST_CHECK;

/* Each y[n,h,w,c] = x[n,c,h,w]: converts images from NCHW to NHWC. x and y of an item have the same real or half
 * type, on devices of any kind; the type may differ from item to item. */
typedef struct dsc_nhwc_item {
    dsc_tensor x, y;
} dsc_nhwc_item;
dsc_status dsc_op_nhwc_batch(dsc_queue *q, const dsc_nhwc_item *items, int64_t count) DSC_MUST_CHECK;

/* ---- optimisers ---- */

/* The hyper-parameters of a step: an F64[DSC_HYPER_COUNT] tensor on the device, so that a schedule changes values
 * in memory, not arguments of calls. */
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
    DSC_HYPER_SKIP,        /* nonzero: an update changes nothing */
    DSC_HYPER_COUNT
} dsc_hyper;

/* The rules by which parameters are updated, with the number of their state tensors (m, v) and whether they
 * read norms. Every backend's loops are generated from this list and the formulas dsc_update_NAME in
 * formulas.inc; lr, momentum, decay, eps and trust are hyper-parameters, c1 and c2 the corrections:
 *
 *   sgd              d = g + decay z; m = momentum m + d; x -= lr m
 *   nesterov         the same m; x -= lr (d + momentum m)
 *   adam             m, v: moments of g + decay z; x -= lr m/c1 / (sqrt(v/c2) + eps)
 *   adamw            m, v: moments of g; x -= lr (m/c1 / (sqrt(v/c2) + eps) + decay z)
 *   lars             rate = trust |z| / (|g| + decay |z|), 1 when either norm is 0;
 *                    m = momentum m + lr rate (g + decay z); x -= m. norms: those of z and g
 *   lamb_direction   m, v: moments of g; x = m/c1 / (sqrt(v/c2) + eps) + decay z
 *   lamb_apply       rate = |z| / |g|, 1 when either norm or decay is 0; x -= lr rate g, where g is the
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

/* The tensors of an update. Parameters are flat vectors: all tensors but hyper and norms have as many elements as
 * x. */
typedef struct dsc_update {
    const dsc_tensor *hyper;
    const dsc_tensor *norms; /* F64[2], sums of squares; NULL for rules that read no norms */
    /* The parameters that decay and norms are computed from: x itself, or the de-biased parameters of push-sum; NULL
     * for rules without state. lamb_direction: not x. */
    const dsc_tensor *z;
    const dsc_tensor *g; /* the gradient; lamb_apply: the direction */
    dsc_tensor *m, *v;   /* state; NULL if the rule has none */
    dsc_tensor *x;       /* updated; lamb_direction only writes it, and it may be g */
} dsc_update;

dsc_status dsc_op_update(dsc_queue *q, dsc_update_rule rule, const dsc_update *u) DSC_MUST_CHECK;

/* ---- the list ----
 *
 * Every operation, once. The members of a backend's table, the prototypes of its functions (dsc_ref_NAME,
 * dsc_cuda_NAME) and ref's and CUDA's tables are generated from it; the arguments are those of the front,
 * dsc_op_NAME.
 *
 *   OP(name)         every backend has it
 *   COMPOSED(name)   ref does not have it: the front composes it from other operations, unless a backend has it */
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

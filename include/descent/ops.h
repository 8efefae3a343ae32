/* Tensor operations for the forward and backward passes of custom layers (layer.h).
 *
 * Every function puts its work into `queue`. On a GPU it is asynchronous: the results are available after
 * dsc_queue_sync, and to all later work in the same queue. All tensors must be on the queue's device; they stay
 * the caller's and must live until the work is done. Nothing is allocated.
 *
 * Tensors are dense and row-major; activations are [batch, height, width, channels]. "Real" tensors are
 * DSC_F32 or DSC_F64, and all real tensors of a call have the same type. Where a comment says "half", the
 * activations may also be DSC_BF16 or DSC_F16 on a GPU; weights in matrix products then have that type, too,
 * while biases, their gradients and sums are DSC_F32.
 *
 * `beta` scales the old contents of an output: 0 overwrites them without reading them, 1 adds to them. Other
 * values are allowed only where the function says so. Tensors may have no elements.
 *
 * Each function returns DSC_E_INVALID, with the reason, when types, shapes or devices do not fit. On a given
 * device with a given number of threads, every run gives bitwise the same results. */
#ifndef DSC_OPS_H
#define DSC_OPS_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- one tensor, two tensors ---- */

/* t = value, in every element. Any type; for a tensor of integers the value must be a whole number in its range. */
DSC_API dsc_status dsc_op_fill(dsc_queue *queue, double value, dsc_tensor *t) DSC_MUST_CHECK;
/* dst = src, element by element. Both have the same number of elements; their types are equal or any two of DSC_F32,
 * DSC_F64, DSC_BF16 and DSC_F16. Rounds to nearest even. */
DSC_API dsc_status dsc_op_convert(dsc_queue *queue, const dsc_tensor *src, dsc_tensor *dst) DSC_MUST_CHECK;
/* y = alpha x + beta y, with any beta. Real or half, equal numbers of elements; x and y may be the same tensor. */
DSC_API dsc_status dsc_op_axpby(dsc_queue *queue, double alpha, const dsc_tensor *x, double beta,
                                dsc_tensor *y) DSC_MUST_CHECK;
/* t = s[0] t. t is real; s is one DSC_F64 on the device. */
DSC_API dsc_status dsc_op_scale_by(dsc_queue *queue, const dsc_tensor *s, dsc_tensor *t) DSC_MUST_CHECK;
/* y = x y, element by element. Real, equal numbers of elements; x and y may be the same tensor. */
DSC_API dsc_status dsc_op_multiply(dsc_queue *queue, const dsc_tensor *x, dsc_tensor *y) DSC_MUST_CHECK;
/* y = a + b, element by element. Real or half, equal shapes; y may be a or b. */
DSC_API dsc_status dsc_op_add(dsc_queue *queue, const dsc_tensor *a, const dsc_tensor *b,
                              dsc_tensor *y) DSC_MUST_CHECK;
/* out[0] = beta out[0] + sum of x y. x and y are real, have equal numbers of elements, and may be the same tensor; out
 * is one DSC_F64. The sum is accumulated in double precision. */
DSC_API dsc_status dsc_op_dot(dsc_queue *queue, const dsc_tensor *x, const dsc_tensor *y, double beta,
                              dsc_tensor *out) DSC_MUST_CHECK;

/* ---- products ---- */

/* C[m,n] = alpha op(A) op(B) + beta C, with any beta. op(A)[m,k] is A, or its transpose if trans_a is 1;
 * op(B)[k,n] likewise. Real, or A and B of one half type and C of that type or DSC_F32. C may not share
 * memory with A or B. */
DSC_API dsc_status dsc_op_gemm(dsc_queue *queue, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                               const dsc_tensor *b, double beta, dsc_tensor *c) DSC_MUST_CHECK;

/* Measures the peak rate of the queue's device in floating-point operations per second. On a CPU: multiply-adds in
 * registers by one thread, in float32 whatever `dtype` is, times the number of threads of the device, as if each had
 * a core of its own. On a GPU: products of large matrices of type `dtype`, for which it allocates at most 192 MiB.
 * Takes a few hundredths of a second. Blocks. */
DSC_API dsc_status dsc_device_measure_peak(dsc_queue *queue, dsc_dtype dtype,
                                           double *flops_per_s) DSC_MUST_CHECK;

/* ---- layers ---- */

/* y = y + b along the last dimension: y[..., c], b[c]. Real or half. */
DSC_API dsc_status dsc_op_bias_add(dsc_queue *queue, const dsc_tensor *b, dsc_tensor *y) DSC_MUST_CHECK;
/* db[c] = beta db + sum of dy[..., c] over all other dimensions. Real or half. */
DSC_API dsc_status dsc_op_bias_grad(dsc_queue *queue, const dsc_tensor *dy, double beta,
                                    dsc_tensor *db) DSC_MUST_CHECK;
/* y = max(x, 0). Real or half, equal shapes; x and y may be the same tensor. A NaN stays NaN. */
DSC_API dsc_status dsc_op_relu_forward(dsc_queue *queue, const dsc_tensor *x, dsc_tensor *y) DSC_MUST_CHECK;
/* dx = beta dx + dy where y > 0, and beta dx elsewhere; y is the output of the forward pass. Real or half,
 * equal shapes; dx and dy may be the same tensor if beta is 0. */
DSC_API dsc_status dsc_op_relu_backward(dsc_queue *queue, const dsc_tensor *y, const dsc_tensor *dy,
                                        double beta, dsc_tensor *dx) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

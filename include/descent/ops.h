/* Tensor operations for custom layers (layer.h): what they need for their forward and backward passes.
 *
 * Every function puts its work into `queue`. It is asynchronous on a GPU: results are there after
 * dsc_queue_sync, and for whatever follows in the same queue. All tensors must be on the queue's device, stay
 * the caller's, and live until the work is done. Nothing is allocated.
 *
 * Tensors are dense and row-major; activations are [batch, height, width, channels]. "Real" tensors are
 * DSC_F32 or DSC_F64, and all real tensors of a call have one type. Where a function says "half", its
 * activations may also be DSC_BF16 or DSC_F16 on a GPU; weights that enter products then have that type, too,
 * while biases, their gradients and sums are DSC_F32.
 *
 * `beta` scales the old contents of an output: 0 overwrites them without reading them, 1 adds to them. Other
 * values are allowed where the function says so. Tensors without elements are allowed everywhere.
 *
 * Each function returns DSC_E_INVALID, with the reason, when types, shapes or devices do not fit. For a given
 * device and number of threads, results are the same bits in every run. */
#ifndef DSC_OPS_H
#define DSC_OPS_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- one tensor, two tensors ---- */

/* t = value, in every element. Any type; a tensor of integers takes whole numbers in its range only. */
DSC_API dsc_status dsc_op_fill(dsc_queue *queue, double value, dsc_tensor *t) DSC_MUST_CHECK;
/* dst = src, element by element. Both have as many elements, and equal types or any two of DSC_F32, DSC_F64,
 * DSC_BF16 and DSC_F16; rounds to nearest even. */
DSC_API dsc_status dsc_op_convert(dsc_queue *queue, const dsc_tensor *src, dsc_tensor *dst) DSC_MUST_CHECK;
/* y = alpha x + beta y, with any beta. Real, as many elements; x and y may be one tensor. */
DSC_API dsc_status dsc_op_axpby(dsc_queue *queue, double alpha, const dsc_tensor *x, double beta,
                                dsc_tensor *y) DSC_MUST_CHECK;
/* t = s[0] t. Real; s: one DSC_F64 on the device. */
DSC_API dsc_status dsc_op_scale_by(dsc_queue *queue, const dsc_tensor *s, dsc_tensor *t) DSC_MUST_CHECK;
/* y = x y, element by element. Real, as many elements; x and y may be one tensor. */
DSC_API dsc_status dsc_op_multiply(dsc_queue *queue, const dsc_tensor *x, dsc_tensor *y) DSC_MUST_CHECK;
/* y = a + b, element by element. Real or half, equal shapes; y may be a or b. */
DSC_API dsc_status dsc_op_add(dsc_queue *queue, const dsc_tensor *a, const dsc_tensor *b,
                              dsc_tensor *y) DSC_MUST_CHECK;
/* out[0] = beta out[0] + sum of x y. Real, as many elements; x and y may be one tensor. out: one DSC_F64; the
 * sum is accumulated in double. */
DSC_API dsc_status dsc_op_dot(dsc_queue *queue, const dsc_tensor *x, const dsc_tensor *y, double beta,
                              dsc_tensor *out) DSC_MUST_CHECK;

/* ---- products ---- */

/* C[m,n] = alpha op(A) op(B) + beta C, with any beta. op(A)[m,k] is A, or its transpose if trans_a is 1;
 * op(B)[k,n] likewise. Real, or A and B of one half type and C of that type or DSC_F32. C may not share
 * memory with A or B. */
DSC_API dsc_status dsc_op_gemm(dsc_queue *queue, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                               const dsc_tensor *b, double beta, dsc_tensor *c) DSC_MUST_CHECK;

/* Measures how many floating-point operations per second a device can do at most: on a CPU multiply-adds in registers, in
 * float32, by all threads of the device, each with a core of its own; on a GPU products of large matrices of this type,
 * for which it needs 192 MiB at most. Takes a few hundredths of a second. Blocks. */
DSC_API dsc_status dsc_device_measure_peak(dsc_queue *queue, dsc_dtype dtype,
                                           double *flops_per_s) DSC_MUST_CHECK;

/* ---- layers ---- */

/* y = y + b along the last dimension: y[..., c], b[c]. Real or half. */
DSC_API dsc_status dsc_op_bias_add(dsc_queue *queue, const dsc_tensor *b, dsc_tensor *y) DSC_MUST_CHECK;
/* db[c] = beta db + sum of dy[..., c] over all other dimensions. Real or half. */
DSC_API dsc_status dsc_op_bias_grad(dsc_queue *queue, const dsc_tensor *dy, double beta,
                                    dsc_tensor *db) DSC_MUST_CHECK;
/* y = max(x, 0). Real or half, equal shapes; x and y may be one tensor. A NaN stays NaN. */
DSC_API dsc_status dsc_op_relu_forward(dsc_queue *queue, const dsc_tensor *x, dsc_tensor *y) DSC_MUST_CHECK;
/* dx = beta dx + dy where y > 0, and beta dx elsewhere; y is the output of the forward pass. Real or half,
 * equal shapes; dx and dy may be one tensor when beta is 0. */
DSC_API dsc_status dsc_op_relu_backward(dsc_queue *queue, const dsc_tensor *y, const dsc_tensor *dy,
                                        double beta, dsc_tensor *dx) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

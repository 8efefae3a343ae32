/* Checks shared by the fronts of the operations. A message names the operation, the argument, its shape or
 * type, and what is expected. */
#ifndef DSC_DEVICE_CHECKS_H
#define DSC_DEVICE_CHECKS_H

#include "device/table.h"

/* The state of the checks of one call. */
typedef struct dsc_check {
    const char *op;
    dsc_queue *q;
    dsc_dtype dtype; /* type of its real tensors */
    dsc_dtype param; /* type of parameters, statistics and sums: F32 where real tensors are of half type */
} dsc_check;

/* A shape as two arguments: number of dimensions and their array. */
#define DSC_SHAPE(...)                                                                                       \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) {                     \
        __VA_ARGS__                                                                                          \
    }

/* Starts the checks of a call. The first real tensor sets the type of the others. */
dsc_status dsc_check_begin(dsc_check *check, const char *op, dsc_queue *q, const char *name,
                           const dsc_tensor *t) DSC_MUST_CHECK;
/* The same where activations may be of half type, on devices that compute in them. */
dsc_status dsc_check_begin_half(dsc_check *check, const char *op, dsc_queue *q, const char *name,
                                const dsc_tensor *t) DSC_MUST_CHECK;
/* The type is real, or half and the device computes in it. */
dsc_status dsc_check_computes(const dsc_device *device, const char *op, const char *name,
                              dsc_dtype dtype) DSC_MUST_CHECK;
/* Sets the types of a call that has them from a description. */
dsc_status dsc_check_set_half(dsc_check *check, const char *name, dsc_dtype dtype) DSC_MUST_CHECK;
/* Starts the checks of a call without a common real type. */
dsc_status dsc_check_begin_any(dsc_check *check, const char *op, dsc_queue *q) DSC_MUST_CHECK;

/* Starts the checks of a batch of `count` items. */
dsc_status dsc_check_batch(dsc_check *check, const char *op, dsc_queue *q, const void *items,
                           int64_t count) DSC_MUST_CHECK;
/* The first real tensor of item i of a batch: that of item 0 sets the type, the others must have it. */
dsc_status dsc_check_first(dsc_check *check, int64_t i, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;

/* t is not NULL, is on the queue's device, and has a valid shape and memory; its type is the common one, a
 * given one, or any. */
dsc_status dsc_check_real(const dsc_check *check, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;
dsc_status dsc_check_typed(const dsc_check *check, const char *name, const dsc_tensor *t,
                           dsc_dtype dtype) DSC_MUST_CHECK;
dsc_status dsc_check_any(const dsc_check *check, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;

dsc_status dsc_check_dims(const dsc_check *check, const char *name, const dsc_tensor *t,
                          int ndim) DSC_MUST_CHECK;
dsc_status dsc_check_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                           const int64_t *dim) DSC_MUST_CHECK;
dsc_status dsc_check_same_shape(const dsc_check *check, const char *name, const dsc_tensor *t,
                                const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
dsc_status dsc_check_same_count(const dsc_check *check, const char *name, const dsc_tensor *t,
                                const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;

/* A matrix with as many columns as rows. */
dsc_status dsc_check_square(const dsc_check *check, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;

/* Type and shape at once, for the frequent cases. */
dsc_status dsc_check_real_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                                const int64_t *dim) DSC_MUST_CHECK;
dsc_status dsc_check_real_like(const dsc_check *check, const char *name, const dsc_tensor *t,
                               const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
dsc_status dsc_check_real_count(const dsc_check *check, const char *name, const dsc_tensor *t,
                                const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
/* A parameter, a statistic or a sum beside real tensors, or half ones. */
dsc_status dsc_check_param(const dsc_check *check, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;
dsc_status dsc_check_param_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                                 const int64_t *dim) DSC_MUST_CHECK;
/* `count` elements of F64: scalars and small vectors of coefficients. */
dsc_status dsc_check_f64(const dsc_check *check, const char *name, const dsc_tensor *t,
                         int64_t count) DSC_MUST_CHECK;

/* C = op(A) op(B), where A was checked before: B and C have the type of A, shapes fit, and C shares no memory
 * with A or B. With half types C may also be F32. */
dsc_status dsc_check_product(const dsc_check *check, const int trans[2], const dsc_tensor *a,
                             const dsc_tensor *b, const dsc_tensor *c) DSC_MUST_CHECK;

/* An output that may not share memory with an input. */
dsc_status dsc_check_apart(const dsc_check *check, const char *name, const dsc_tensor *t,
                           const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
/* The same, but both may be the same memory, because element i is read before it is written. */
dsc_status dsc_check_apart_or_same(const dsc_check *check, const char *name, const dsc_tensor *t,
                                   const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
/* beta is 0 or 1. */
dsc_status dsc_check_beta(const dsc_check *check, const char *name, double beta) DSC_MUST_CHECK;
/* `work` has `bytes` at least; may be NULL when none are needed. */
dsc_status dsc_check_work(const dsc_check *check, const dsc_tensor *work, size_t bytes) DSC_MUST_CHECK;

/* A sum over nothing: out = beta out, for the fronts of reductions (old contents are not read with 0). */
dsc_status dsc_check_empty_sum(const dsc_check *check, double beta, dsc_tensor *out) DSC_MUST_CHECK;

#endif

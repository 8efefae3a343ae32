/* Argument checks shared by the fronts of the operations. A message names the operation, the argument, its shape or
 * type, and what is expected. */
#ifndef DSC_DEVICE_CHECKS_H
#define DSC_DEVICE_CHECKS_H

#include "device/table.h"

/* The state of the checks of one call. */
typedef struct dsc_check {
    const char *op;
    dsc_queue *q;
    dsc_dtype dtype; /* the type of the call's real (or half) tensors */
    dsc_dtype param; /* the type of parameters, statistics and sums: F32 if dtype is a half type */
} dsc_check;

/* A shape as two arguments: the number of dimensions and an array of them. */
#define DSC_SHAPE(...)                                                                                       \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) {                     \
        __VA_ARGS__                                                                                          \
    }

/* Starts the checks of a call. The first real tensor sets the type of the others. */
dsc_status dsc_check_begin(dsc_check *check, const char *op, dsc_queue *q, const char *name,
                           const dsc_tensor *t) DSC_MUST_CHECK;
/* The same, for operations whose activations may be of half type, on devices that compute in half types. */
dsc_status dsc_check_begin_half(dsc_check *check, const char *op, dsc_queue *q, const char *name,
                                const dsc_tensor *t) DSC_MUST_CHECK;
/* Checks that the type is real, or is a half type in which the device computes. */
dsc_status dsc_check_computes(const dsc_device *device, const char *op, const char *name,
                              dsc_dtype dtype) DSC_MUST_CHECK;
/* Sets the types of a call whose type is given by a description, not by a tensor. */
dsc_status dsc_check_set_half(dsc_check *check, const char *name, dsc_dtype dtype) DSC_MUST_CHECK;
/* Starts the checks of a call without a common real type. */
dsc_status dsc_check_begin_any(dsc_check *check, const char *op, dsc_queue *q) DSC_MUST_CHECK;

/* Starts the checks of a batch of `count` items. */
dsc_status dsc_check_batch(dsc_check *check, const char *op, dsc_queue *q, const void *items,
                           int64_t count) DSC_MUST_CHECK;
/* Checks the first real tensor of item i of a batch: that of item 0 sets the type for the others. */
dsc_status dsc_check_first(dsc_check *check, int64_t i, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;

/* Each checks that t is not NULL, is on the queue's device, and has a valid shape and memory. Its type must be the
 * common one (real), a given one (typed), or may be any. */
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

/* Checks that t is a square matrix. */
dsc_status dsc_check_square(const dsc_check *check, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;

/* Check type and shape in one call, for frequent cases. */
dsc_status dsc_check_real_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                                const int64_t *dim) DSC_MUST_CHECK;
dsc_status dsc_check_real_like(const dsc_check *check, const char *name, const dsc_tensor *t,
                               const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
dsc_status dsc_check_real_count(const dsc_check *check, const char *name, const dsc_tensor *t,
                                const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
/* Checks a parameter, a statistic or a sum: its type must be check->param. */
dsc_status dsc_check_param(const dsc_check *check, const char *name, const dsc_tensor *t) DSC_MUST_CHECK;
dsc_status dsc_check_param_shape(const dsc_check *check, const char *name, const dsc_tensor *t, int ndim,
                                 const int64_t *dim) DSC_MUST_CHECK;
/* Checks that t has `count` elements of F64: scalars and small vectors of coefficients. */
dsc_status dsc_check_f64(const dsc_check *check, const char *name, const dsc_tensor *t,
                         int64_t count) DSC_MUST_CHECK;

/* Checks B and C of C = op(A) op(B), after A: B and C have the type of A, the shapes match, and C shares no memory
 * with A or B. With half types C may also be F32. */
dsc_status dsc_check_product(const dsc_check *check, const int trans[2], const dsc_tensor *a,
                             const dsc_tensor *b, const dsc_tensor *c) DSC_MUST_CHECK;

/* Checks an output that may not share memory with an input. */
dsc_status dsc_check_apart(const dsc_check *check, const char *name, const dsc_tensor *t,
                           const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
/* The same, but both may start at the same address, because element i is read before it is written. */
dsc_status dsc_check_apart_or_same(const dsc_check *check, const char *name, const dsc_tensor *t,
                                   const char *other_name, const dsc_tensor *other) DSC_MUST_CHECK;
/* Checks that beta is 0 or 1. */
dsc_status dsc_check_beta(const dsc_check *check, const char *name, double beta) DSC_MUST_CHECK;
/* Checks that `work` has at least `bytes` bytes; it may be NULL if `bytes` is 0. */
dsc_status dsc_check_work(const dsc_check *check, const dsc_tensor *work, size_t bytes) DSC_MUST_CHECK;

/* The result of an empty sum, for the fronts of reductions: out = beta out, with beta 0 or 1 (0 writes zeros without
 * reading out). */
dsc_status dsc_check_empty_sum(const dsc_check *check, double beta, dsc_tensor *out) DSC_MUST_CHECK;

#endif

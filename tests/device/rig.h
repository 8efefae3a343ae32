/* Devices under test, and tensors with guard words around them. */
#ifndef DSC_TESTS_DEVICE_RIG_H
#define DSC_TESTS_DEVICE_RIG_H

#include "chosen.h"

#include "device/ops.h"

/* A device under test, with a queue. */
typedef struct rig {
    dsc_device *device;
    dsc_queue *q;
    char label[32]; /* "cpu, 2 threads" */
    int loose;      /* 1: convolutions and fast products round their inputs to TF32 */
} rig;

enum { MAX_RIGS = 16, GUARD_BYTES = 64 };

/* ref and every host device, those with threads at 1 and 2 of them; or ref and the environment's device
 * (chosen.h), without TF32. ref is the first. Group set-up and tear-down, which fails when memory is left, or
 * when the tests have changed how many threads OpenMP gives to this one. */
extern rig rigs[MAX_RIGS];
extern int rig_count;
int rigs_open(void **state);
/* Adds a device to the list, which rigs_close destroys; 0 on success. */
int rig_open(const char *name, int threads);
/* With the environment's device once more as it is used, for tests of what TF32 changes. */
int rigs_open_loose(void **state);
int rigs_close(void **state);

/* A tensor in memory of its own, with guard words before and after it. */
typedef struct place {
    dsc_tensor t;
    void *block;
} place;

#define SHAPE(...)                                                                                           \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) {                     \
        __VA_ARGS__                                                                                          \
    }

/* Initialiser of a dsc_conv_desc: type, images, then the members of dsc_conv2d_shape in their order, up to
 * groups. */
#define CONV(dtype, n, ...) CONV_EXTRA(dtype, n, 0, 0, __VA_ARGS__)
/* The same with padding of h and w at the bottom and right only. */
#define CONV_EXTRA(dtype, n, h, w, ...)                                                                      \
    { dtype, n, {sizeof(dsc_conv2d_shape), __VA_ARGS__, .extra_h = h, .extra_w = w}, }

place place_make(const rig *r, dsc_dtype dtype, int ndim, const int64_t *dim);
/* The same with contents. */
place place_of(const rig *r, dsc_dtype dtype, int ndim, const int64_t *dim, const double *values);
void place_free(place *p);
void place_write(const rig *r, place *p, const double *values);
void place_fill(const rig *r, place *p, double value);
void place_read(const rig *r, const place *p, double *values);
/* Element i. */
double place_get(const rig *r, const place *p, int64_t i);
/* Fails the test when a guard word has changed. */
void place_check_guards(const rig *r, const place *p, const char *what);
/* The contents are exactly these. */
void place_expect(const rig *r, const place *p, const double *values, const char *what);
/* |got - want| <= limit, element by element, and intact guards. */
void place_expect_near(const rig *r, const place *p, const double *want, const double *limit,
                       const char *what);

/* `count` values in [-1, 1] that a float32 holds, from a stream of their own. */
void random_values(uint64_t stream, int64_t count, double *values);
/* Whole numbers in [-limit, limit]. */
void random_integers(uint64_t stream, int limit, int64_t count, double *values);

/* malloc that fails the test. */
void *test_array(int64_t count, size_t size);

/* 2^-23 or 2^-52. */
double dtype_eps(dsc_dtype dtype);

/* Products of inputs that a loose rig may have cut to 11 bits are this wrong, relative to their size. */
static const double tf32_share = 0x1p-9;

/* 1 when the device convolves in this type: a GPU does not in float64. */
int rig_convolves(const rig *r, dsc_dtype dtype);

#endif

/* The kernels for any machine of the architecture. */
#include "device/cpu/kernels.h"
#include "device/half.h"

#include <math.h>
#include <string.h>

enum { VECTOR_FLOATS = 4, TILE_ROWS = 6 };
typedef float vector __attribute__((vector_size(16)));

static inline vector broadcast(float x) {
    return (vector){x, x, x, x};
}

static inline vector multiply_add(vector a, vector b, vector c) {
    return a * b + c;
}

#define KERNELS      dsc_cpu_kernels_base
#define KERNELS_NAME "base"
#define KERNELS_F16C 0
#include "device/cpu/kernels.inc"

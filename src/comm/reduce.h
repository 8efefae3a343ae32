/* Reductions in host memory, for backends that must compute them themselves. BF16 and F16 are combined in
 * float32 and rounded after each step. */
#ifndef DSC_COMM_REDUCE_H
#define DSC_COMM_REDUCE_H

#include "descent/comm.h"
#include "device/half.h"

static inline float dsc_combine_float(float a, float b, dsc_reduction reduction) {
    switch (reduction) {
    case DSC_SUM:
        break;
    case DSC_MAX:
        return a > b ? a : b;
    case DSC_MIN:
        return a < b ? a : b;
    }
    return a + b;
}

/* Sets inout[i] to the reduction of in[i] and inout[i]. */
static inline void dsc_reduce_bf16(const uint16_t *in, uint16_t *inout, int64_t n, dsc_reduction reduction) {
    for (int64_t i = 0; i < n; i++)
        inout[i] = dsc_bf16_from_float(
            dsc_combine_float(dsc_bf16_to_float(in[i]), dsc_bf16_to_float(inout[i]), reduction));
}

static inline void dsc_reduce_f16(const uint16_t *in, uint16_t *inout, int64_t n, dsc_reduction reduction) {
    for (int64_t i = 0; i < n; i++)
        inout[i] = dsc_f16_from_float(
            dsc_combine_float(dsc_f16_to_float(in[i]), dsc_f16_to_float(inout[i]), reduction));
}

#endif

/* Gram matrices of patches on the cpu device: two algorithms, chosen by the geometry of the convolution. */
#ifndef DSC_DEVICE_CPU_GRAM_H
#define DSC_DEVICE_CPU_GRAM_H

#include "device/cpu/cpu.h"

/* One call: C[n,n] = alpha P' P + beta C, lower triangle. */
typedef struct dsc_gram_call {
    const dsc_conv_desc *d;
    const dsc_cpu_kernels *k;
    const float *x;
    int64_t group, cg; /* cg = c/groups: channels of a patch's tap */
    int64_t oh, ow;
    int64_t n; /* kh kw cg, and one more with `ones` */
    int ones;
    int threads;
    float alpha, beta;
    float *c;
} dsc_gram_call;

/* Pixels that are summed in float before they join a longer sum: few enough to keep rounding small. */
enum { DSC_GRAM_RUN = 1024 };

/* Results of the threads are kept apart and added in order up to this many floats of a result; of a larger
 * one, each thread computes its own rows. */
enum { DSC_GRAM_PRIVATE = 1 << 19 };

/* ---- gram_shift.c: 3x3 with stride 1, padding 1 ---- */
int dsc_gram_can_shift(const dsc_gram_call *call);
int64_t dsc_gram_shift_bytes(const dsc_gram_call *call);
void dsc_gram_shift(const dsc_gram_call *call, void *work);

#endif

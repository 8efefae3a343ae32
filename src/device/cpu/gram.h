/* Gram matrices of patches on the cpu device: two algorithms, chosen by the geometry of the convolution. */
#ifndef DSC_DEVICE_CPU_GRAM_H
#define DSC_DEVICE_CPU_GRAM_H

#include "device/cpu/cpu.h"

/* One call: the lower triangle of C[n,n] = alpha P' P + beta C. */
typedef struct dsc_gram_call {
    const dsc_conv_desc *d;
    const dsc_cpu_kernels *k;
    const float *x;
    int64_t group, cg; /* cg = c/groups: the channels of a patch's tap */
    int64_t oh, ow;
    int64_t n; /* kh kw cg, one more with `ones` */
    int ones;
    int threads;
    float alpha, beta;
    float *c;
} dsc_gram_call;

/* The number of pixels summed in float before they are added to a longer sum: few enough to keep rounding errors
 * small. */
enum { DSC_GRAM_RUN = 1024 };

/* Up to this many floats of a result, each thread has a result of its own, and these are added in order; of a larger
 * result each thread computes some rows. */
enum { DSC_GRAM_PRIVATE = 1 << 19 };

/* ---- gram_shift.c: 3x3 with stride 1, padding 1 ---- */
int dsc_gram_can_shift(const dsc_gram_call *call);
int64_t dsc_gram_shift_bytes(const dsc_gram_call *call);
void dsc_gram_shift(const dsc_gram_call *call, void *work);

#endif

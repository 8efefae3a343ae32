/* What the machine can do at most, measured: the measure for everything else in the table. */
#ifndef DSC_BENCH_OPS_PEAK_H
#define DSC_BENCH_OPS_PEAK_H

/* GFLOP/s of independent fused multiply-adds in registers, `threads` at once. */
double dsc_bench_peak_flops(int threads);
/* GB/s of a[i] = b[i] + s c[i] over arrays far larger than the caches, three transfers an element; negative
 * when there is no memory for it. */
double dsc_bench_peak_bandwidth(int threads);

#endif

/* Factors to measure decompositions on: the sizes of a model's factors, and matrices like those of training. Functions
 * end the program when something fails: they are only used by benchmark programs. */
#ifndef DSC_BENCH_KFAC_FACTORS_H
#define DSC_BENCH_KFAC_FACTORS_H

#include "device/ops.h"

/* Prints the error of a failed call and ends the program. */
void dsc_bench_check(const char *program, dsc_status status);

double dsc_bench_median(double *values, int count);

/* A new tensor, [rows, columns] or, with columns 0, [rows]. */
dsc_tensor dsc_bench_tensor(dsc_device *device, dsc_dtype dtype, int64_t rows, int64_t columns);

/* The numbers of rows of all factors of a model, the largest first; the caller frees *out. Returns their number. */
int64_t dsc_bench_sizes(dsc_device *device, const char *model, int64_t **out);

/* Numbers in [-1, 1]. */
void dsc_bench_random(dsc_queue *q, uint64_t stream, dsc_tensor *t);

/* A running average like those of training: products of correlated rows, not of full rank, plus a little of the
 * identity. */
void dsc_bench_draw(dsc_queue *q, uint64_t stream, dsc_tensor *a);

#endif

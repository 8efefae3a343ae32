/* Multiply-adds in registers: the peak rate of one CPU thread. */
#ifndef DSC_DEVICE_MULTIPLY_ADDS_H
#define DSC_DEVICE_MULTIPLY_ADDS_H

/* Computes float32 multiply-adds for about a millisecond, with the CPU's widest vectors, and returns the number of
 * floating-point operations. Adds a value to *sink that depends on all of them. */
double dsc_multiply_adds(float *sink);

#endif

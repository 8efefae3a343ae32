/* Multiply-adds in registers: the most that a thread of the CPU can compute. */
#ifndef DSC_DEVICE_MULTIPLY_ADDS_H
#define DSC_DEVICE_MULTIPLY_ADDS_H

/* Does about a millisecond of them in float32, with the widest vectors there are, and returns how many operations these
 * were. *sink gets a number that depends on all of them. */
double dsc_multiply_adds(float *sink);

#endif

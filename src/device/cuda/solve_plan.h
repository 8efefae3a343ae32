/* Decides how each eigen problem of a batch is solved: by the crew (threads that call cuSOLVER), by the
 * host's processors while the GPU works, or by cuSOLVER together with others of its size in one call. */
#ifndef DSC_DEVICE_CUDA_SOLVE_PLAN_H
#define DSC_DEVICE_CUDA_SOLVE_PLAN_H

#include <stdint.h>

enum {
    DSC_CUDA_CREW = 4,    /* threads that call cuSOLVER; more are no faster, and each keeps a core busy */
    DSC_CUDA_SMALL = 256, /* rows of a matrix that is always solved together with others of its size */
    DSC_CUDA_MOST_ON_HOST = 64 /* threads */
};

typedef enum dsc_cuda_method { DSC_CUDA_BY_CREW, DSC_CUDA_BY_HOST, DSC_CUDA_TOGETHER } dsc_cuda_method;

/* A problem's place in the order of work. */
typedef struct dsc_cuda_turn {
    int64_t n, item;
    dsc_cuda_method method;
} dsc_cuda_turn;

/* How long the plan expects both sides to work, in ms. */
typedef struct dsc_cuda_expected {
    double gpu, host;
} dsc_cuda_expected;

/* Threads for the host's part on a device with so many of the CPU's; 0: too few to be of use. */
int dsc_cuda_plan_threads(int cpu_threads);

/* How many of the next `left` problems, all of n rows, go into one call of cuSOLVER. */
int64_t dsc_cuda_plan_together(int64_t n, int64_t left);

/* Sets the method of each turn, for float32. Turns are sorted by size, the largest first. The plan depends
 * only on sizes and the number of threads. */
dsc_cuda_expected dsc_cuda_plan(dsc_cuda_turn *turns, int64_t count, int host_threads);

#endif

/* Decides how each eigenvalue problem of a batch is solved: by the crew (threads that call cuSOLVER), by the
 * host's processors while the GPU works, or by cuSOLVER together with others of its size in one call. */
#ifndef DSC_DEVICE_CUDA_SOLVE_PLAN_H
#define DSC_DEVICE_CUDA_SOLVE_PLAN_H

#include <stdint.h>

enum {
    DSC_CUDA_CREW = 4,    /* threads that call cuSOLVER; more are no faster, and each keeps a core busy */
    DSC_CUDA_SMALL = 256, /* up to so many rows, matrices of one size are always solved together */
    DSC_CUDA_MOST_ON_HOST = 64 /* threads */
};

typedef enum dsc_cuda_method { DSC_CUDA_BY_CREW, DSC_CUDA_BY_HOST, DSC_CUDA_TOGETHER } dsc_cuda_method;

/* A problem's place in the order of work. */
typedef struct dsc_cuda_turn {
    int64_t n, item;
    dsc_cuda_method method;
} dsc_cuda_turn;

/* How long the plan expects the GPU and the host to work, in ms. */
typedef struct dsc_cuda_expected {
    double gpu, host;
} dsc_cuda_expected;

/* Returns the number of threads for the host's part if the device has `cpu_threads` threads of the CPU; 0: too few to
 * be of use. */
int dsc_cuda_plan_threads(int cpu_threads);

/* Returns how many of the next `left` problems, all of n rows, go into one call of cuSOLVER. */
int64_t dsc_cuda_plan_together(int64_t n, int64_t left);

/* Sets the method of each turn, for float32. The turns must be sorted by size, the largest first. The plan depends
 * only on the sizes and the number of threads. */
dsc_cuda_expected dsc_cuda_plan(dsc_cuda_turn *turns, int64_t count, int host_threads);

#endif

/* Inside of the emulator of a GPU: what emulator.h (C++), engine.c and runtime.c share.
 *
 *   emulator.h   what a .cu file sees instead of nvcc's built-in names
 *   engine.c     runs the blocks of a launch one after the other, the threads of a block as fibres
 *   runtime.c    the CUDA runtime: device memory, copies, properties, errors
 *   streams.c    the CUDA runtime: streams, events, recordings
 *   backend.c    what the cuda backend takes from NVIDIA's libraries, computed by ref */
#ifndef DSC_TESTS_EMULATOR_ENGINE_H
#define DSC_TESTS_EMULATOR_ENGINE_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- runtime.c ---- */

/* Device memory may be touched between these two only. They nest; the device does one thing at a time, so
 * another thread waits meanwhile. */
void dsc_emulated_open(void);
void dsc_emulated_close(void);

/* The thread's current GPU, which it now uses. */
int dsc_emulated_gpu(void);

/* Keeps the error for cudaGetLastError, unless it is success, and returns it. */
cudaError_t dsc_emulated_error(cudaError_t error);

/* The most dynamic shared memory that this kernel may have (cudaFuncSetAttribute). */
size_t dsc_emulated_shared_limit(const void *kernel);

enum { DSC_EMULATED_SHARED = 227 << 10, DSC_EMULATED_SHARED_DEFAULT = 48 << 10, DSC_EMULATED_FILL = 0xCB };

/* ---- streams.c ---- */

/* Calls `run`, which returns 0 when all went well, with device memory open; in a stream that is recorded, at
 * each replay, with a copy of the state. Returns what `run` did, 0 when it is recorded. */
int dsc_emulated_submit(cudaStream_t stream, int (*run)(void *state), void *state, size_t bytes);

/* Whether a kernel may be launched into the stream now: it must be one of the current GPU. Sets the error for
 * cudaGetLastError. */
int dsc_emulated_is_current(cudaStream_t stream);

/* ---- engine.c ---- */

typedef struct dsc_emulated_launch {
    const char *name;     /* of the kernel, for messages */
    const void *kernel;   /* its address */
    void (*body)(void *); /* calls it, with `arguments` */
    void *arguments;
    dim3 grid, block;
    size_t shared;
} dsc_emulated_launch;

/* Whether a launch is possible; sets the error for cudaGetLastError. */
cudaError_t dsc_emulated_check(const dsc_emulated_launch *launch);
/* Runs a kernel to its end. */
void dsc_emulate_launch(const dsc_emulated_launch *launch);

/* Dynamic shared memory of the block that runs. */
extern unsigned char *dsc_emulated_shared;

/* The built-in variables of the thread that runs. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* __syncthreads and its kin: the predicates of all threads that have not returned, counted. `total` is the
 * number of those threads. */
typedef struct dsc_emulated_votes {
    int yes, total;
} dsc_emulated_votes;

dsc_emulated_votes dsc_emulate_barrier(int predicate);

/* What a lane brings to a function of its warp and what it takes away. Lanes that have returned are not
 * waited for; what comes from one, or from one that `mask` does not name, is DSC_EMULATED_FILL. */
typedef enum dsc_emulated_kind {
    DSC_EMULATED_SYNC,    /* nothing */
    DSC_EMULATED_SHUFFLE, /* out[size]: what lane `source` had brought */
    DSC_EMULATED_GATHER,  /* out[32][size]: what every lane had brought */
} dsc_emulated_kind;

typedef struct dsc_emulated_wish {
    const char *name; /* of the function, for messages */
    dsc_emulated_kind kind;
    unsigned mask;
    unsigned source;
    size_t size;
    const void *in;
    void *out;
} dsc_emulated_wish;

/* Waits until all lanes of the mask have come; returns those that did. */
unsigned dsc_emulate_warp(const dsc_emulated_wish *wish);

/* Lane of the thread that runs. */
unsigned dsc_emulated_lane(void);

#ifdef __cplusplus
}
#endif

#endif

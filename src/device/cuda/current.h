/* Switches the thread's current GPU (cudaSetDevice). Launches, allocations and new streams need the device's own GPU to
 * be current, but callers of the library must find theirs unchanged: whoever changes it restores it. If the right GPU
 * is current already, which is always so with one GPU, this costs one cudaGetDevice, a few nanoseconds. */
#ifndef DSC_DEVICE_CUDA_CURRENT_H
#define DSC_DEVICE_CUDA_CURRENT_H

#include "device/cuda/launch.h"

/* What dsc_cuda_leave restores. */
typedef struct dsc_cuda_current {
    int before; /* the GPU before; -1: nothing to restore */
    int bare;   /* 1: the thread had no context */
} dsc_cuda_current;

/* Finds a function of the driver, which our libraries do not link. Returns 1 and its address in *function, or 0. */
static inline int dsc_cuda_find_in_driver(const char *name, void **function) {
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &found) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return found == cudaDriverEntryPointSuccess;
}

/* Returns 1 if the thread has used no GPU so far. Restoring it with cudaSetDevice(0) would create a context on GPU 0,
 * a few hundred MiB for every process of a node: instead, dsc_cuda_leave unsets the context through the driver. */
static inline int dsc_cuda_is_bare(void) {
    int (*get)(void **);
    void *context = NULL;
    return dsc_cuda_find_in_driver("cuCtxGetCurrent", (void **)&get) && get(&context) == 0 && !context;
}

static inline void dsc_cuda_leave(dsc_cuda_current *c) {
    if (c->before < 0)
        return;
    int (*set)(void *);
    if (c->bare && dsc_cuda_find_in_driver("cuCtxSetCurrent", (void **)&set))
        (void)set(NULL);
    else if (cudaSetDevice(c->before) != cudaSuccess)
        (void)cudaGetLastError(); /* an error of earlier work; the next call reports it */
    c->before = -1;
}

/* Makes this GPU the thread's current one until dsc_cuda_leave. */
static inline cudaError_t dsc_cuda_enter(int ordinal, dsc_cuda_current *c) {
    int now;
    c->before = -1;
    c->bare = 0;
    cudaError_t error = cudaGetDevice(&now);
    if (error != cudaSuccess || now == ordinal)
        return error;
    c->bare = dsc_cuda_is_bare();
    error = cudaSetDevice(ordinal);
    if (error == cudaSuccess)
        c->before = now;
    return error;
}

/* Makes a GPU current until the end of the enclosing block, however that is left. DSC_CUDA_ON returns from the calling
 * function if the GPU cannot be used; DSC_CUDA_ON_QUIETLY, for functions that free, goes on. */
#define DSC_CUDA_ON(ordinal)                                                                                 \
    dsc_cuda_current dsc_current_ __attribute__((cleanup(dsc_cuda_leave)));                                  \
    DSC_CUDA_TRY(dsc_cuda_enter((ordinal), &dsc_current_))
#define DSC_CUDA_ON_QUIETLY(ordinal)                                                                         \
    dsc_cuda_current dsc_current_ __attribute__((cleanup(dsc_cuda_leave)));                                  \
    if (dsc_cuda_enter((ordinal), &dsc_current_) != cudaSuccess)                                             \
    (void)cudaGetLastError()

#endif

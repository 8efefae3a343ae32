/* Eigenvalue problems that the host's processors solve while the GPU solves others. They are copied to page-locked
 * memory, solved by a cpu device, one problem per thread, and copied back. A dedicated thread drives this, so that
 * OpenMP creates its team of threads only once. */
#ifndef DSC_DEVICE_CUDA_SOLVE_HOST_H
#define DSC_DEVICE_CUDA_SOLVE_HOST_H

#include "device/cuda/state.h"

#include <pthread.h>

typedef struct dsc_cuda_host {
    dsc_device *gpu;
    int threads; /* 0: the host solves nothing */
    /* The problems on the GPU, and their copies on the host; `failed` is set in the copies only. */
    dsc_solve_item *there, *here;
    int64_t there_capacity, here_capacity, count;
    /* The resources of the work, which grow and are kept. */
    dsc_device *cpu;
    dsc_queue *queue;
    dsc_tensor work;
    char *memory; /* page-locked */
    size_t bytes;
    cudaStream_t stream;
    cudaEvent_t ready, done; /* `ready` belongs to the caller */
    /* The thread, guarded by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    pthread_t thread;
    int started, asked, quit;
    dsc_status status;
    char message[256];
} dsc_cuda_host;

void dsc_cuda_host_open(dsc_cuda_host *h, dsc_device *gpu);
void dsc_cuda_host_close(dsc_cuda_host *h);

/* Makes room for `count` problems; the caller then fills in h->there. */
dsc_status dsc_cuda_host_reserve(dsc_cuda_host *h, int64_t count) DSC_MUST_CHECK;

/* _begin starts to solve the problems after the event `ready`, the largest first, and returns at once. _end waits for
 * the host, and makes the stream wait for the copies back; then h->here[i].failed is the outcome of problem i. */
dsc_status dsc_cuda_host_begin(dsc_cuda_host *h, cudaEvent_t ready) DSC_MUST_CHECK;
dsc_status dsc_cuda_host_end(dsc_cuda_host *h, cudaStream_t stream) DSC_MUST_CHECK;

#endif

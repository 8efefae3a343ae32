/* Shared by the files of the CUDA backend: the state of a device and of a queue, and macros that raise errors.
 *
 *   cuda.c          devices, queues, events, recordings, the table of functions;  memory.c: memory
 *   operations.cu   makes the device's GPU current for every operation (current.h)
 *   products.c      cuBLAS: single products;  grouped.c/.cu: many products at once, on tensor cores
 *   halves.c/.cu    large products, and Gram matrices of rows, as products of fp16 matrices
 *   solve.c         cuSOLVER: eigenvalue problems, many at once on streams of their own
 *   jacobi.c/.cu    small eigenvalue problems that are marked as quick, many at once
 *   cholesky.c/.cu  inverses and orthonormal columns, many at once
 *   conv.c          cuDNN: convolutions
 *   gram.c/.cu      Kronecker factors: Gram matrices of patches
 *   refresh.c/.cu   the refresh of eigenbases: rotations and Rayleigh quotients
 *   attention.cu    attention;  attention_half.cu, attention_hopper.cu: in half precision, on tensor cores
 *   small_conv.cu, small_conv_weight.cu, narrow_conv.cu   our own convolutions
 *   elementwise, second, optim, layer, norm, group_norm, pool, loss, pixel_loss, embedding, images, parts (.cu)
 *                   the other operations
 *
 * A .cu file holds kernels, the functions that launch them and, where an operation of the table does nothing else,
 * the operation itself. Code that plans, or calls libraries, is in a .c file. Everything runs in the stream of the
 * queue and is deterministic. */
#ifndef DSC_DEVICE_CUDA_STATE_H
#define DSC_DEVICE_CUDA_STATE_H

#include "base/error.h"
#include "device/cuda/launch.h"
#include "device/table.h"

#include <pthread.h>

#ifndef DSC_EMULATED
#include <cublas_v2.h>
#include <cudnn.h>
#endif

/* An allocated piece of memory. */
typedef struct dsc_cuda_block {
    void *data;
    size_t bytes;
} dsc_cuda_block;

typedef struct dsc_cuda {
    int ordinal;         /* of the GPU */
    int strict;          /* 1: float32 throughout, no TF32 in convolutions (device "cuda:fp32") */
    int capability;      /* 80, 90, ... */
    int multiprocessors; /* their number */
    size_t shared;       /* bytes of shared memory that a block may have */
    void *solver;        /* the state of solve.c, created at its first use */
    /* The allocations, which only memory.c uses; guarded by `lock`. */
    pthread_mutex_t lock;
    dsc_cuda_block *blocks;
    int64_t block_count, block_capacity;
} dsc_cuda;

enum { DSC_CUDA_SCRATCH = 16 << 20, DSC_CUDA_TICKETS = 4096, DSC_CUDA_BLAS_WORKSPACE = 32 << 20 };

typedef struct dsc_cuda_queue {
    cudaStream_t stream;
    int wrapped;        /* 1: the stream belongs to the caller */
    dsc_cuda_launch at; /* what every launch function gets */
    int recording;
#ifndef DSC_EMULATED
    cublasHandle_t blas;
    cudnnHandle_t dnn;
#endif
    void *blas_workspace;
    void *halves;       /* memory of halves.c, allocated at its first use */
    void *first_halves; /* an earlier, smaller one, which recordings may still use */
    int64_t halves_bytes;
    void *staging; /* cuda.c's pinned memory for small uploads */
} dsc_cuda_queue;

static inline dsc_cuda *dsc_cuda_of(const dsc_device *device) {
    return (dsc_cuda *)device->state;
}

static inline dsc_cuda_queue *dsc_cuda_queue_of(const dsc_queue *q) {
    return (dsc_cuda_queue *)q->state;
}

/* Makes the device's GPU the current one of a thread that the library has started. In a caller's thread it is
 * current while a function of the table runs (current.h). */
dsc_status dsc_cuda_use(const dsc_device *device) DSC_MUST_CHECK;

/* Allocates zeroed memory on the current GPU. Waits until the zeros are written, since our streams do not wait for
 * the stream that writes them. */
dsc_status dsc_cuda_take_zeroed(size_t bytes, void **out) DSC_MUST_CHECK;

/* Sets the thread's capture mode and returns the previous one. Functions that free memory may be called by a garbage
 * collector while the caller captures a stream into a graph: in relaxed mode that does not end the capture. */
enum cudaStreamCaptureMode dsc_cuda_capture_mode(enum cudaStreamCaptureMode mode);

/* Returns 1 while the library records the queue, or the caller captures its stream into a graph. */
int dsc_cuda_is_recorded(const dsc_queue *q);

/* For operations that wait, or copy from or to the host: fails while the queue is being recorded or captured. `what`
 * is the operation's name, for the message. */
dsc_status dsc_cuda_refuse_recording(const dsc_queue *q, const char *what) DSC_MUST_CHECK;

#ifndef DSC_EMULATED
/* The counterparts of DSC_CUDA_TRY for cuBLAS and cuDNN. */
dsc_status dsc_cuda_blas_fail(cublasStatus_t status, const char *what, const char *file, int line);
dsc_status dsc_cuda_dnn_fail(cudnnStatus_t status, const char *what, const char *file, int line);
#define DSC_BLAS_TRY(call)                                                                                   \
    do {                                                                                                     \
        cublasStatus_t dsc_blas_status_ = (call);                                                            \
        if (dsc_blas_status_ != CUBLAS_STATUS_SUCCESS)                                                       \
            return dsc_cuda_blas_fail(dsc_blas_status_, #call, __FILE__, __LINE__);                          \
    } while (0)
#define DSC_DNN_TRY(call)                                                                                    \
    do {                                                                                                     \
        cudnnStatus_t dsc_dnn_status_ = (call);                                                              \
        if (dsc_dnn_status_ != CUDNN_STATUS_SUCCESS)                                                         \
            return dsc_cuda_dnn_fail(dsc_dnn_status_, #call, __FILE__, __LINE__);                            \
    } while (0)
#endif

#endif

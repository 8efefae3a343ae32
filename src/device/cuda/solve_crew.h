/* The threads that call cuSOLVER: the caller of an operation, in the stream of its queue, and a crew of host threads
 * with a stream each, since an eigenvalue solve spends much of its time launching kernels and waiting. */
#ifndef DSC_DEVICE_CUDA_SOLVE_CREW_H
#define DSC_DEVICE_CUDA_SOLVE_CREW_H

#include "device/cuda/solve_host.h"
#include "device/cuda/solve_plan.h"
#include "device/cuda/state.h"

#include <cusolverDn.h>
#include <pthread.h>

typedef struct dsc_cuda_worker {
    cusolverDnHandle_t handle;
    cusolverDnParams_t params;
    cudaStream_t stream; /* of the handle; for the worker `caller` it is the queue's */
    cudaEvent_t done;
    /* Workspaces, which grow to the size of the largest problem. Memory borrowed from the caller is used first. */
    void *device_space, *host_space, *borrowed;
    size_t device_bytes, host_bytes, borrowed_bytes;
    /* Used only in the crew. */
    pthread_t thread;
    struct dsc_cuda_solver *solver;
    int number;
    dsc_status status;
    char message[256];
} dsc_cuda_worker;

/* Solves problem `i` with the worker's handle in the worker's stream. */
typedef dsc_status (*dsc_cuda_job)(dsc_cuda_worker *w, void *context, int64_t i);

typedef struct dsc_cuda_solver {
    dsc_device *device;
    pthread_mutex_t call; /* held by whoever uses the solver: one operation at a time */
    dsc_cuda_worker caller, crew[DSC_CUDA_CREW];
    /* The outcomes, on the device and in page-locked memory, and the order of work. The arrays grow. */
    int *numbers, *host_numbers;
    dsc_cuda_turn *turns;
    int64_t number_capacity, turn_capacity;
    /* Device memory for copies of large problems that are solved in one call; it grows. */
    void *room;
    size_t room_bytes;
    cudaEvent_t ready; /* recorded in the queue; the crew and the host start after it */
    dsc_cuda_host host;
    /* The crew, guarded by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    int hired, wanted, busy, quit;
    int64_t round, next, jobs; /* next: the first job that nobody has taken */
    dsc_cuda_job job;
    void *context;
} dsc_cuda_solver;

/* Locks the device's solver for the caller, and creates it at its first use. dsc_cuda_solver_leave unlocks it. */
dsc_status dsc_cuda_solver_enter(dsc_device *device, dsc_cuda_solver **out) DSC_MUST_CHECK;
void dsc_cuda_solver_leave(dsc_cuda_solver *s);

/* Makes room for two numbers and a turn for each of `count` problems. */
dsc_status dsc_cuda_solver_reserve(dsc_cuda_solver *s, int64_t count) DSC_MUST_CHECK;
/* Makes s->room at least `bytes` bytes large. */
dsc_status dsc_cuda_solver_reserve_room(dsc_cuda_solver *s, size_t bytes) DSC_MUST_CHECK;

/* Makes the worker's workspaces at least this large. *space becomes the device workspace. */
dsc_status dsc_cuda_worker_reserve(dsc_cuda_worker *w, size_t device_bytes, size_t host_bytes,
                                   void **space) DSC_MUST_CHECK;

/* _begin starts jobs 0 to count - 1 on the crew, after the event `ready`, and returns at once. _end waits until the
 * crew has launched everything, and makes the stream wait for the results. */
dsc_status dsc_cuda_crew_begin(dsc_cuda_solver *s, dsc_cuda_job job, void *context,
                               int64_t count) DSC_MUST_CHECK;
dsc_status dsc_cuda_crew_end(dsc_cuda_solver *s, cudaStream_t stream) DSC_MUST_CHECK;

dsc_status dsc_cuda_solver_fail(cusolverStatus_t status, const char *what, const char *file, int line);
#define DSC_SOLVER_TRY(call)                                                                                 \
    do {                                                                                                     \
        cusolverStatus_t dsc_solver_status_ = (call);                                                        \
        if (dsc_solver_status_ != CUSOLVER_STATUS_SUCCESS)                                                   \
            return dsc_cuda_solver_fail(dsc_solver_status_, #call, __FILE__, __LINE__);                      \
    } while (0)

#endif

/* Creates, runs and destroys the solver and its crew. Handles, streams and workspaces are created when they are first
 * needed, and kept until the device is destroyed. */
#include "device/cuda/solve_crew.h"

#include "base/memory.h"
#include "base/thread.h"
#include "device/cuda/entries.h"

dsc_status dsc_cuda_solver_fail(cusolverStatus_t status, const char *what, const char *file, int line) {
    (void)cudaGetLastError();
    return dsc_error_raise(status == CUSOLVER_STATUS_ALLOC_FAILED ? DSC_E_MEMORY : DSC_E_DEVICE, file, line,
                           "cuda: %s: cuSOLVER's status %d", what, (int)status);
}

/* ---- workers ---- */

static dsc_status make_worker(dsc_cuda_worker *w, int with_stream) {
    if (w->handle)
        return DSC_OK;
    if (with_stream && !w->stream)
        DSC_CUDA_TRY(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
    if (!w->done)
        DSC_CUDA_TRY(cudaEventCreateWithFlags(&w->done, cudaEventDisableTiming));
    if (!w->params)
        DSC_SOLVER_TRY(cusolverDnCreateParams(&w->params));
    DSC_SOLVER_TRY(cusolverDnCreate(&w->handle));
    DSC_SOLVER_TRY(cusolverDnSetDeterministicMode(w->handle, CUSOLVER_DETERMINISTIC_RESULTS));
    DSC_SOLVER_TRY(cusolverDnSetStream(w->handle, w->stream));
    return DSC_OK;
}

static void free_worker(dsc_cuda_worker *w, int with_stream) {
    if (w->handle)
        cusolverDnDestroy(w->handle);
    if (w->params)
        cusolverDnDestroyParams(w->params);
    if (w->done)
        (void)cudaEventDestroy(w->done);
    if (w->device_space)
        (void)cudaFree(w->device_space);
    dsc_memory_free(&w->host_space);
    if (with_stream && w->stream)
        (void)cudaStreamDestroy(w->stream);
}

/* Makes a device workspace `bytes` bytes large; its contents are lost. */
static dsc_status grow_device_space(void **space, size_t *capacity, size_t bytes) {
    if (*space)
        DSC_CUDA_TRY(cudaFree(*space)); /* waits for the work that uses it */
    *space = NULL;
    *capacity = 0;
    cudaError_t error = cudaMalloc(space, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return DSC_FAIL(DSC_E_MEMORY,
                        "cannot allocate %zu bytes of device memory for a decomposition; use a smaller "
                        "batch, or divide large factors into blocks",
                        bytes);
    }
    DSC_CUDA_TRY(error);
    *capacity = bytes;
    return DSC_OK;
}

dsc_status dsc_cuda_worker_reserve(dsc_cuda_worker *w, size_t device_bytes, size_t host_bytes, void **space) {
    if (host_bytes > w->host_bytes) {
        /* cuSOLVER may still use the old one */
        DSC_CUDA_TRY(cudaStreamSynchronize(w->stream));
        dsc_memory_free(&w->host_space);
        w->host_bytes = 0;
        DSC_TRY(dsc_memory_alloc((int64_t)host_bytes, 1, &w->host_space));
        w->host_bytes = host_bytes;
    }
    *space = w->borrowed;
    if (device_bytes <= w->borrowed_bytes)
        return DSC_OK;
    if (device_bytes > w->device_bytes)
        DSC_TRY(grow_device_space(&w->device_space, &w->device_bytes, device_bytes));
    *space = w->device_space;
    return DSC_OK;
}

/* ---- the crew ---- */

/* Takes and returns the next job; -1 if none is left. */
static int64_t take_job(dsc_cuda_solver *s) {
    pthread_mutex_lock(&s->lock);
    int64_t i = s->next < s->jobs ? s->next++ : -1;
    pthread_mutex_unlock(&s->lock);
    return i;
}

static dsc_status do_jobs(dsc_cuda_worker *w) {
    dsc_cuda_solver *s = w->solver;
    DSC_TRY(dsc_cuda_use(s->device));
    DSC_TRY(make_worker(w, 1));
    DSC_CUDA_TRY(cudaStreamWaitEvent(w->stream, s->ready, 0));
    for (int64_t i = take_job(s); i >= 0; i = take_job(s))
        DSC_TRY(s->job(w, s->context, i));
    DSC_CUDA_TRY(cudaEventRecord(w->done, w->stream));
    return DSC_OK;
}

/* Does a round of work, outside of the lock. Keeps the error message, which only this thread could read later. */
static void do_round(dsc_cuda_worker *w) {
    w->status = do_jobs(w);
    if (w->status == DSC_OK)
        return;
    snprintf(w->message, sizeof w->message, "%s", dsc_error_message());
    if (w->stream && cudaStreamSynchronize(w->stream) != cudaSuccess)
        (void)cudaGetLastError();
}

static void *serve(void *argument) {
    dsc_cuda_worker *w = argument;
    dsc_cuda_solver *s = w->solver;
    int64_t seen = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->quit && (s->round == seen || w->number >= s->wanted))
            pthread_cond_wait(&s->wake, &s->lock);
        if (s->quit)
            break;
        seen = s->round;
        pthread_mutex_unlock(&s->lock);
        do_round(w);
        pthread_mutex_lock(&s->lock);
        if (--s->busy == 0)
            pthread_cond_signal(&s->finished);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Starts threads, which wait for a round. One that starts now must not mistake an earlier round for a new one. */
static dsc_status hire(dsc_cuda_solver *s, int wanted) {
    while (s->hired < wanted) {
        dsc_cuda_worker *w = &s->crew[s->hired];
        w->solver = s;
        w->number = s->hired;
        DSC_TRY(dsc_thread_start(&w->thread, serve, w, "a thread for decompositions"));
        s->hired++;
    }
    return DSC_OK;
}

dsc_status dsc_cuda_crew_begin(dsc_cuda_solver *s, dsc_cuda_job job, void *context, int64_t count) {
    int wanted = count < DSC_CUDA_CREW ? (int)count : DSC_CUDA_CREW;
    DSC_TRY(hire(s, wanted));
    pthread_mutex_lock(&s->lock);
    s->job = job;
    s->context = context;
    s->next = 0;
    s->jobs = count;
    s->wanted = s->busy = wanted;
    s->round++;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return DSC_OK;
}

dsc_status dsc_cuda_crew_end(dsc_cuda_solver *s, cudaStream_t stream) {
    pthread_mutex_lock(&s->lock);
    while (s->busy > 0)
        pthread_cond_wait(&s->finished, &s->lock);
    int worked = s->wanted;
    s->wanted = 0;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < worked; i++)
        if (s->crew[i].status != DSC_OK)
            return DSC_FAIL(s->crew[i].status, "%s", s->crew[i].message);
    for (int i = 0; i < worked; i++)
        DSC_CUDA_TRY(cudaStreamWaitEvent(stream, s->crew[i].done, 0));
    return DSC_OK;
}

/* ---- the solver ---- */

static void free_numbers(dsc_cuda_solver *s) {
    if (s->numbers)
        (void)cudaFree(s->numbers);
    if (s->host_numbers)
        (void)cudaFreeHost(s->host_numbers);
    s->numbers = s->host_numbers = NULL;
    s->number_capacity = 0;
}

dsc_status dsc_cuda_solver_reserve(dsc_cuda_solver *s, int64_t count) {
    int64_t numbers = 2 * count;
    if (count > s->turn_capacity)
        DSC_TRY(dsc_memory_grow(&s->turns, &s->turn_capacity, count, sizeof *s->turns));
    if (numbers <= s->number_capacity)
        return DSC_OK;
    free_numbers(s);
    DSC_CUDA_TRY(cudaMalloc((void **)&s->numbers, (size_t)numbers * sizeof(int)));
    DSC_CUDA_TRY(
        cudaHostAlloc((void **)&s->host_numbers, (size_t)numbers * sizeof(int), cudaHostAllocDefault));
    s->number_capacity = numbers;
    return DSC_OK;
}

dsc_status dsc_cuda_solver_reserve_room(dsc_cuda_solver *s, size_t bytes) {
    if (bytes > s->room_bytes)
        DSC_TRY(grow_device_space(&s->room, &s->room_bytes, bytes));
    return DSC_OK;
}

static void destroy_solver(dsc_cuda_solver *s) {
    pthread_mutex_lock(&s->lock);
    s->quit = 1;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->hired; i++)
        pthread_join(s->crew[i].thread, NULL);
    for (int i = 0; i < DSC_CUDA_CREW; i++)
        free_worker(&s->crew[i], 1);
    free_worker(&s->caller, 0);
    dsc_cuda_host_close(&s->host);
    free_numbers(s);
    if (s->room)
        (void)cudaFree(s->room);
    if (s->ready)
        (void)cudaEventDestroy(s->ready);
    (void)cudaGetLastError();
    pthread_cond_destroy(&s->finished);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->call);
    dsc_memory_free(&s->turns);
    dsc_memory_free(&s);
}

void dsc_cuda_solver_close(dsc_device *device) {
    dsc_cuda *own = dsc_cuda_of(device);
    if (!own->solver)
        return;
    destroy_solver(own->solver);
    own->solver = NULL;
}

static dsc_status fill_in(dsc_cuda_solver *s) {
    enum { FIRST_COUNT = 256 };
    DSC_CUDA_TRY(cudaEventCreateWithFlags(&s->ready, cudaEventDisableTiming));
    DSC_TRY(make_worker(&s->caller, 0));
    DSC_TRY(dsc_cuda_solver_reserve(s, FIRST_COUNT));
    return DSC_OK;
}

static dsc_status create_solver(dsc_device *device, dsc_cuda_solver **out) {
    dsc_cuda_solver *s;
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    s->device = device;
    pthread_mutex_init(&s->call, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->finished, NULL);
    dsc_cuda_host_open(&s->host, device);
    dsc_status status = fill_in(s);
    if (status != DSC_OK)
        destroy_solver(s);
    DSC_TRY(status);
    *out = s;
    return DSC_OK;
}

/* Guards the creation of solvers: two threads may ask for one at the same time. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

dsc_status dsc_cuda_solver_enter(dsc_device *device, dsc_cuda_solver **out) {
    dsc_cuda *own = dsc_cuda_of(device);
    dsc_cuda_solver *s;
    pthread_mutex_lock(&making);
    s = own->solver;
    dsc_status status = s ? DSC_OK : create_solver(device, &s);
    if (status == DSC_OK)
        own->solver = s;
    pthread_mutex_unlock(&making);
    DSC_TRY(status);
    pthread_mutex_lock(&s->call);
    *out = s;
    return DSC_OK;
}

void dsc_cuda_solver_leave(dsc_cuda_solver *s) {
    pthread_mutex_unlock(&s->call);
}

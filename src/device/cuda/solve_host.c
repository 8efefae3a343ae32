/* The host's part of a batch of eigenvalue problems. */
#include "device/cuda/solve_host.h"

#include "base/memory.h"
#include "base/thread.h"
#include "device/cuda/solve_plan.h"

#include <stdio.h>
#include <string.h>

void dsc_cuda_host_open(dsc_cuda_host *h, dsc_device *gpu) {
    h->gpu = gpu;
    h->threads = dsc_cuda_plan_threads(dsc_device_threads(gpu));
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->wake, NULL);
    pthread_cond_init(&h->finished, NULL);
}

/* ---- memory ---- */

static size_t whole_lines(size_t bytes) {
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

dsc_status dsc_cuda_host_reserve(dsc_cuda_host *h, int64_t count) {
    if (count > h->there_capacity)
        DSC_TRY(dsc_memory_grow(&h->there, &h->there_capacity, count, sizeof *h->there));
    if (count > h->here_capacity)
        DSC_TRY(dsc_memory_grow(&h->here, &h->here_capacity, count, sizeof *h->here));
    h->count = count;
    return DSC_OK;
}

static dsc_status open_cpu(dsc_cuda_host *h) {
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = "cpu";
    options.threads = h->threads;
    if (!h->cpu)
        DSC_TRY(dsc_device_create(&options, &h->cpu));
    if (!h->queue)
        DSC_TRY(dsc_queue_create(h->cpu, &h->queue));
    if (!h->stream)
        DSC_CUDA_TRY(cudaStreamCreateWithFlags(&h->stream, cudaStreamNonBlocking));
    if (!h->done)
        DSC_CUDA_TRY(cudaEventCreateWithFlags(&h->done, cudaEventDisableTiming));
    return DSC_OK;
}

static dsc_status grow_memory(dsc_cuda_host *h, size_t bytes) {
    if (bytes <= h->bytes)
        return DSC_OK;
    if (h->memory)
        DSC_CUDA_TRY(cudaFreeHost(h->memory));
    h->memory = NULL;
    h->bytes = 0;
    DSC_CUDA_TRY(cudaHostAlloc((void **)&h->memory, bytes, cudaHostAllocPortable));
    h->bytes = bytes;
    return DSC_OK;
}

static dsc_status grow_work(dsc_cuda_host *h) {
    int64_t largest = 0;
    for (int64_t i = 0; i < h->count; i++)
        largest = h->there[i].a.dim[0] > largest ? h->there[i].a.dim[0] : largest;
    int64_t bytes = (int64_t)dsc_op_syev_batch_workspace(h->cpu, h->there[0].a.dtype, largest, h->count);
    if (h->work.data && bytes <= h->work.dim[0])
        return DSC_OK;
    dsc_tensor_free(&h->work);
    return dsc_tensor_alloc(h->cpu, DSC_U8, 1, &bytes, &h->work);
}

/* Places the copies of all matrices and values in the host memory, one after the other. */
static dsc_status place_copies(dsc_cuda_host *h) {
    size_t bytes = 0;
    for (int64_t i = 0; i < h->count; i++)
        bytes +=
            whole_lines(dsc_tensor_bytes(&h->there[i].a)) + whole_lines(dsc_tensor_bytes(&h->there[i].v));
    DSC_TRY(grow_memory(h, bytes));
    char *next = h->memory;
    for (int64_t i = 0; i < h->count; i++) {
        const dsc_tensor *a = &h->there[i].a, *v = &h->there[i].v;
        h->here[i].a = dsc_tensor_view(h->cpu, next, a->dtype, a->ndim, a->dim);
        next += whole_lines(dsc_tensor_bytes(a));
        h->here[i].v = dsc_tensor_view(h->cpu, next, v->dtype, v->ndim, v->dim);
        next += whole_lines(dsc_tensor_bytes(v));
    }
    return DSC_OK;
}

/* ---- work ---- */

static dsc_status fetch(dsc_cuda_host *h) {
    DSC_CUDA_TRY(cudaStreamWaitEvent(h->stream, h->ready, 0));
    for (int64_t i = 0; i < h->count; i++)
        DSC_CUDA_TRY(cudaMemcpyAsync(h->here[i].a.data, h->there[i].a.data, dsc_tensor_bytes(&h->here[i].a),
                                     cudaMemcpyDeviceToHost, h->stream));
    DSC_CUDA_TRY(cudaStreamSynchronize(h->stream));
    return DSC_OK;
}

static dsc_status send_back(dsc_cuda_host *h) {
    for (int64_t i = 0; i < h->count; i++) {
        const dsc_solve_item *from = &h->here[i], *to = &h->there[i];
        DSC_CUDA_TRY(cudaMemcpyAsync(to->a.data, from->a.data, dsc_tensor_bytes(&to->a),
                                     cudaMemcpyHostToDevice, h->stream));
        DSC_CUDA_TRY(cudaMemcpyAsync(to->v.data, from->v.data, dsc_tensor_bytes(&to->v),
                                     cudaMemcpyHostToDevice, h->stream));
    }
    DSC_CUDA_TRY(cudaEventRecord(h->done, h->stream));
    return DSC_OK;
}

static dsc_status do_problems(dsc_cuda_host *h) {
    DSC_TRY(dsc_cuda_use(h->gpu));
    DSC_TRY(open_cpu(h));
    DSC_TRY(place_copies(h));
    DSC_TRY(grow_work(h));
    DSC_TRY(fetch(h));
    DSC_TRY(dsc_op_syev_batch(h->queue, h->here, h->count, &h->work));
    DSC_TRY(send_back(h));
    return DSC_OK;
}

/* Solves all problems, outside of the lock. Keeps the error message, which only this thread could read later. */
static void do_round(dsc_cuda_host *h) {
    h->status = do_problems(h);
    if (h->status == DSC_OK)
        return;
    snprintf(h->message, sizeof h->message, "%s", dsc_error_message());
    if (h->stream && cudaStreamSynchronize(h->stream) != cudaSuccess)
        (void)cudaGetLastError();
}

static void *serve(void *argument) {
    dsc_cuda_host *h = argument;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (!h->quit && !h->asked)
            pthread_cond_wait(&h->wake, &h->lock);
        if (h->quit)
            break;
        pthread_mutex_unlock(&h->lock);
        do_round(h);
        pthread_mutex_lock(&h->lock);
        h->asked = 0;
        pthread_cond_signal(&h->finished);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

dsc_status dsc_cuda_host_begin(dsc_cuda_host *h, cudaEvent_t ready) {
    if (!h->started) {
        DSC_TRY(dsc_thread_start(&h->thread, serve, h, "the thread of the host's decompositions"));
        h->started = 1;
    }
    pthread_mutex_lock(&h->lock);
    h->ready = ready;
    h->asked = 1;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    return DSC_OK;
}

dsc_status dsc_cuda_host_end(dsc_cuda_host *h, cudaStream_t stream) {
    pthread_mutex_lock(&h->lock);
    while (h->asked)
        pthread_cond_wait(&h->finished, &h->lock);
    pthread_mutex_unlock(&h->lock);
    if (h->status != DSC_OK)
        return DSC_FAIL(h->status, "%s", h->message);
    DSC_CUDA_TRY(cudaStreamWaitEvent(stream, h->done, 0));
    return DSC_OK;
}

void dsc_cuda_host_close(dsc_cuda_host *h) {
    pthread_mutex_lock(&h->lock);
    h->quit = 1;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    if (h->started)
        pthread_join(h->thread, NULL);
    dsc_tensor_free(&h->work);
    dsc_queue_destroy(&h->queue);
    dsc_device_destroy(&h->cpu);
    if (h->memory)
        (void)cudaFreeHost(h->memory);
    if (h->done)
        (void)cudaEventDestroy(h->done);
    if (h->stream)
        (void)cudaStreamDestroy(h->stream);
    dsc_memory_free(&h->there);
    dsc_memory_free(&h->here);
    pthread_cond_destroy(&h->finished);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
}

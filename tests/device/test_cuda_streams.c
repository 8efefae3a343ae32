/* GPUs: queues of streams that the caller owns, also while it captures them into graphs, the check of a
 * caller's memory, and the thread's current GPU. */
#include "device/streams.h"

#include "device/recording.h"

#include <cuda_runtime_api.h>

#define CUDA_OK(call) assert_int_equal((call), cudaSuccess)

static int ordinal(void) {
    return getenv("DESCENT_TEST_GPU") ? atoi(getenv("DESCENT_TEST_GPU")) : 0;
}

/* A stream, and memory, of the test's own on the device's GPU. */
static cudaStream_t make_stream(void) {
    cudaStream_t stream;
    CUDA_OK(cudaSetDevice(ordinal()));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaSetDevice(0));
    return stream;
}

static void assert_current(int gpu) {
    int now = -1;
    CUDA_OK(cudaGetDevice(&now));
    assert_int_equal(now, gpu);
}

static void test_order(void **state) {
    (void)state;
    dsc_queue *q = NULL;
    dsc_tensor t;
    cudaStream_t stream = make_stream();
    float twos[COUNT];
    for (int i = 0; i < COUNT; i++)
        twos[i] = 2;
    assert_ok(dsc_queue_wrap(device, stream, &q));
    assert_ptr_equal(dsc_queue_stream(q), stream);
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
    /* ours, the caller's, ours */
    assert_ok(dsc_op_fill(q, 1, &t));
    CUDA_OK(cudaMemcpyAsync(t.data, twos, sizeof twos, cudaMemcpyHostToDevice, stream));
    assert_ok(dsc_op_axpby(q, 1, &t, 1, &t));
    assert_contents(q, &t, 4, 0);
    dsc_tensor_free(&t);
    dsc_queue_destroy(&q);
    CUDA_OK(cudaStreamSynchronize(stream)); /* is still there */
    CUDA_OK(cudaStreamDestroy(stream));
    assert_current(0);
}

/* Work that goes from stream to stream runs in the order in which it was put in, and so do uploads, which
 * share page-locked memory. */
static void test_rewrap(void **state) {
    (void)state;
    enum { STREAMS = 3, ROUNDS = 40 };
    dsc_queue *q = NULL;
    dsc_tensor t, more;
    cudaStream_t streams[STREAMS];
    float values[COUNT];
    for (int i = 0; i < STREAMS; i++)
        streams[i] = i == 2 ? NULL : make_stream();
    assert_ok(dsc_queue_wrap(device, streams[0], &q));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &more));
    for (int round = 0; round < ROUNDS; round++) {
        assert_ok(dsc_queue_rewrap(q, streams[round % STREAMS]));
        assert_ptr_equal(dsc_queue_stream(q), streams[round % STREAMS]);
        for (int i = 0; i < COUNT; i++)
            values[i] = (float)(round + i);
        assert_ok(dsc_tensor_upload(q, values, sizeof values, &more));
        assert_ok(dsc_queue_rewrap(q, streams[(round + 1) % STREAMS]));
        assert_ok(dsc_op_axpby(q, 1, &more, 1, &t));
    }
    assert_contents(q, &t, ROUNDS * (ROUNDS - 1) / 2, ROUNDS);
    dsc_tensor_free(&t);
    dsc_tensor_free(&more);
    for (int i = 0; i < 2; i++)
        CUDA_OK(cudaStreamDestroy(streams[i]));
    dsc_queue_destroy(&q); /* after its stream */
    assert_current(0);
}

static void test_per_thread_stream(void **state) {
    (void)state;
    dsc_queue *q = NULL;
    dsc_tensor t;
    assert_ok(dsc_queue_wrap(device, cudaStreamPerThread, &q));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
    assert_ok(dsc_op_fill(q, 5, &t));
    assert_contents(q, &t, 5, 0);
    dsc_tensor_free(&t);
    dsc_queue_destroy(&q);
}

static void test_own_queue_keeps_its_stream(void **state) {
    (void)state;
    dsc_queue *q = NULL;
    cudaStream_t stream = make_stream();
    assert_ok(dsc_queue_create(device, &q));
    assert_non_null(dsc_queue_stream(q));
    assert_int_equal(dsc_queue_rewrap(q, stream), DSC_E_INVALID);
    assert_message("only a queue made by dsc_queue_wrap");
    dsc_queue_destroy(&q);
    CUDA_OK(cudaStreamDestroy(stream));
}

/* The library does not record in the caller's stream. */
static void test_no_recording(void **state) {
    (void)state;
    dsc_queue *q = NULL;
    cudaStream_t stream = make_stream();
    assert_ok(dsc_queue_wrap(device, stream, &q));
    assert_int_equal(dsc_recording_begin(q), DSC_E_UNSUPPORTED);
    assert_message("the queue's stream is the caller's");
    dsc_queue_destroy(&q);
    CUDA_OK(cudaStreamDestroy(stream));
}

/* The caller captures: operations become part of the graph, what waits or copies is refused. */
static void test_capture_of_the_caller(void **state) {
    (void)state;
    dsc_queue *q = NULL;
    dsc_tensor t;
    cudaStream_t stream = make_stream(), other = make_stream();
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    float values[COUNT] = {0};
    assert_ok(dsc_queue_wrap(device, other, &q));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
    assert_ok(dsc_op_fill(q, 1, &t));
    assert_ok(dsc_queue_sync(q));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_ok(dsc_queue_rewrap(q, stream));
    assert_ok(dsc_op_axpby(q, 1, &t, 1, &t));
    assert_int_equal(dsc_queue_sync(q), DSC_E_INVALID);
    assert_message("captured into a CUDA graph");
    assert_int_equal(dsc_tensor_upload(q, values, sizeof values, &t), DSC_E_INVALID);
    assert_int_equal(dsc_tensor_download(q, &t, sizeof values, values), DSC_E_INVALID);
    assert_int_equal(dsc_queue_rewrap(q, other), DSC_E_INVALID);
    assert_message("end the capture");
    assert_ptr_equal(dsc_queue_stream(q), stream);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&runnable, graph, 0));
    assert_contents(q, &t, 1, 0); /* the operation has only been captured */
    CUDA_OK(cudaGraphLaunch(runnable, stream));
    CUDA_OK(cudaGraphLaunch(runnable, stream));
    assert_ok(dsc_queue_rewrap(q, other));
    assert_contents(q, &t, 4, 0);
    CUDA_OK(cudaGraphExecDestroy(runnable));
    CUDA_OK(cudaGraphDestroy(graph));
    dsc_tensor_free(&t);
    dsc_queue_destroy(&q);
    CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaStreamDestroy(other));
}

/* A garbage collector may free memory while the caller captures: the capture goes on. */
static void test_freed_during_capture(void **state) {
    (void)state;
    dsc_tensor t;
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    dsc_tensor_free(&t);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaStreamDestroy(stream));
}

static dsc_status check_at(void *data, int64_t count) {
    dsc_tensor t = dsc_tensor_view(device, data, DSC_F32, 1, &count);
    return dsc_tensor_check(&t);
}

static void test_check_of_memory(void **state) {
    (void)state;
    float here[4];
    void *memory = NULL, *host = NULL;
    assert_int_equal(check_at(here, 4), DSC_E_INVALID);
    assert_message("ordinary memory of the host, or was freed");
    CUDA_OK(cudaHostAlloc(&host, 64, cudaHostAllocDefault));
    assert_int_equal(check_at(host, 4), DSC_E_INVALID);
    assert_message("memory of the host");
    CUDA_OK(cudaFreeHost(host));
    CUDA_OK(cudaSetDevice(ordinal()));
    CUDA_OK(cudaMalloc(&memory, 4096));
    CUDA_OK(cudaSetDevice(0));
    assert_ok(check_at(memory, 1024));
    assert_int_equal(check_at(memory, (int64_t)1 << 40), DSC_E_INVALID);
    assert_message("the last of its");
    CUDA_OK(cudaFree(memory));
    if (chosen_is_emulated(device)) /* a GPU's memory may still be there for another use */
        assert_int_equal(check_at(memory, 1024), DSC_E_INVALID);
    assert_current(0);
}

static void test_check_of_another_gpu(void **state) {
    (void)state;
    int count = 0;
    void *memory = NULL;
    CUDA_OK(cudaGetDeviceCount(&count));
    if (count < 2)
        skip();
    CUDA_OK(cudaSetDevice((ordinal() + 1) % count));
    CUDA_OK(cudaMalloc(&memory, 4096));
    CUDA_OK(cudaSetDevice(0));
    assert_int_equal(check_at(memory, 16), DSC_E_INVALID);
    assert_message("is memory of GPU");
    CUDA_OK(cudaFree(memory));
}

/* Whatever GPU is current, the library works on its own and leaves the other as it was. */
static void test_current_gpu(void **state) {
    (void)state;
    int count = 0;
    CUDA_OK(cudaGetDeviceCount(&count));
    for (int gpu = 0; gpu < count; gpu++) {
        dsc_queue *q = NULL;
        dsc_event *event = NULL;
        dsc_tensor t;
        float values[COUNT] = {0};
        CUDA_OK(cudaSetDevice(gpu));
        dsc_device *another = chosen_open(chosen(), 1);
        assert_current(gpu);
        dsc_device_destroy(&another);
        assert_current(gpu);
        assert_ok(dsc_queue_create(device, &q));
        assert_current(gpu);
        assert_ok(dsc_event_create(device, &event));
        assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, (int64_t[]){COUNT}, &t));
        assert_current(gpu);
        assert_ok(dsc_op_fill(q, 1, &t));
        assert_current(gpu);
        assert_ok(dsc_event_record(event, q));
        assert_ok(dsc_queue_wait(q, event));
        assert_ok(dsc_event_sync(event));
        assert_ok(dsc_tensor_upload(q, values, sizeof values, &t));
        assert_current(gpu);
        assert_contents(q, &t, 0, 0);
        assert_ok(dsc_tensor_check(&t));
        assert_current(gpu);
        dsc_tensor_free(&t);
        dsc_event_destroy(&event);
        dsc_queue_destroy(&q);
        assert_current(gpu);
    }
    CUDA_OK(cudaSetDevice(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_rewrap),
        cmocka_unit_test(test_per_thread_stream),
        cmocka_unit_test(test_own_queue_keeps_its_stream),
        cmocka_unit_test(test_no_recording),
        cmocka_unit_test(test_capture_of_the_caller),
        cmocka_unit_test(test_freed_during_capture),
        cmocka_unit_test(test_check_of_memory),
        cmocka_unit_test(test_check_of_another_gpu),
        cmocka_unit_test(test_current_gpu),
    };
    if (!chosen())
        return 77;
    return cmocka_run_group_tests(tests, open_device, close_device);
}

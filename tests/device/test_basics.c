/* Devices, memory, queues, events, copies; allocation failures; what every operation refuses. */
#include "device/rig.h"

#include "base/memory.h"

#include <pthread.h>

static dsc_status create(const char *name, int threads, dsc_device **out) {
    dsc_device_options options;
    dsc_device_options_init(&options);
    options.name = name;
    options.threads = threads;
    return dsc_device_create(&options, out);
}

/* ---- tensors ---- */

static void test_types(void **state) {
    (void)state;
    static const struct {
        dsc_dtype dtype;
        size_t size;
        const char *name;
    } types[] = {{DSC_F32, 4, "fp32"}, {DSC_F64, 8, "fp64"}, {DSC_BF16, 2, "bf16"}, {DSC_F16, 2, "fp16"},
                 {DSC_I32, 4, "i32"},  {DSC_I64, 8, "i64"},  {DSC_U8, 1, "u8"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        assert_int_equal(dsc_dtype_size(types[i].dtype), types[i].size);
        assert_string_equal(dsc_dtype_name(types[i].dtype), types[i].name);
    }
    assert_int_equal(dsc_dtype_size((dsc_dtype)99), 0);
    assert_non_null(dsc_dtype_name((dsc_dtype)99));
}

static void test_views(void **state) {
    (void)state;
    float data[24];
    dsc_tensor t = dsc_tensor_view(rigs[0].device, data, DSC_F32, SHAPE(2, 3, 4));
    assert_int_equal(dsc_tensor_count(&t), 24);
    assert_int_equal(dsc_tensor_bytes(&t), 96);
    dsc_tensor s = dsc_tensor_slice(&t, 5, 7);
    assert_ptr_equal(s.data, data + 5);
    assert_int_equal(s.ndim, 1);
    assert_int_equal(s.dim[0], 7);
    assert_int_equal(dsc_tensor_count(&(dsc_tensor){.ndim = 0}), 1); /* a scalar */
    /* Views that make no sense are refused by whatever uses them. */
    static const int64_t bad[][2] = {{-1, 3}, {20, 5}, {25, 0}, {0, -1}, {1, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        s = dsc_tensor_slice(&t, bad[i][0], bad[i][1]);
        assert_fails(DSC_E_INVALID, "fill: t is on device (none)", dsc_op_fill(rigs[0].q, 0, &s));
    }
    s = dsc_tensor_view(rigs[0].device, data, DSC_F32, 7, (const int64_t[]){1, 1, 1, 1, 1, 1, 1});
    assert_fails(DSC_E_INVALID, "fill: t is on device (none)", dsc_op_fill(rigs[0].q, 0, &s));
}

static void test_tensor_alloc(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        dsc_device *device = rigs[r].device;
        size_t before = dsc_device_bytes(device);
        dsc_tensor t = {0};
        assert_ok(dsc_tensor_alloc(device, DSC_F64, SHAPE(3, 5), &t));
        assert_int_equal(dsc_device_bytes(device), before + 120);
        assert_int_equal((uintptr_t)t.data % 64, 0);
        double values[15];
        assert_ok(dsc_tensor_download(rigs[r].q, &t, sizeof values, values));
        assert_ok(dsc_queue_sync(rigs[r].q));
        for (int i = 0; i < 15; i++)
            assert_true(values[i] == 0);
        dsc_tensor_free(&t);
        assert_null(t.data);
        dsc_tensor_free(&t);
        dsc_tensor_free(NULL);
        assert_ok(dsc_tensor_alloc(device, DSC_F32, SHAPE(0, 5), &t));
        dsc_tensor_free(&t);
        assert_int_equal(dsc_device_bytes(device), before);
        assert_fails(DSC_E_INVALID, "dimension 1 is -2", dsc_tensor_alloc(device, DSC_F32, SHAPE(3, -2), &t));
        assert_fails(DSC_E_INVALID, "7 dimensions", dsc_tensor_alloc(device, DSC_F32, 7, NULL, &t));
        assert_fails(DSC_E_INVALID, "type 99", dsc_tensor_alloc(device, (dsc_dtype)99, SHAPE(1), &t));
        assert_fails(DSC_E_MEMORY, "exceeds 2^63",
                     dsc_tensor_alloc(device, DSC_F32, SHAPE(INT64_MAX, 2), &t));
        assert_fails(DSC_E_MEMORY, "cannot allocate", dsc_tensor_alloc(device, DSC_U8, SHAPE(INT64_MAX), &t));
        assert_null(t.data);
    }
    dsc_tensor t;
    assert_fails(DSC_E_INVALID, "no device", dsc_tensor_alloc(NULL, DSC_F32, SHAPE(1), &t));
}

/* ---- devices ---- */

/* A build may know devices that the machine lacks; only the environment's must be there. */
static int is_there(const char *name) {
    dsc_device *device = NULL;
    dsc_status status = create(name, 1, &device);
    dsc_device_destroy(&device);
    return status != DSC_E_UNSUPPORTED;
}

static void test_create(void **state) {
    (void)state;
    dsc_device *device = NULL;
    assert_fails(DSC_E_INVALID, "device 'gpu' is unknown; choose auto, ref or cpu",
                 create("gpu", 0, &device));
    assert_fails(DSC_E_INVALID, "-1 threads", create("cpu", -1, &device));
    assert_fails(DSC_E_INVALID, "no name", create(NULL, 0, &device));
    dsc_device_options raw = {0};
    assert_fails(DSC_E_INVALID, "dsc_device_options_init", dsc_device_create(&raw, &device));
    assert_null(device);
    assert_ok(dsc_device_create(NULL, &device)); /* defaults: the CPU unless there is something faster */
    assert_true(strcmp(dsc_device_name(device), "cpu") == 0 || !dsc_device_is_host(device));
    assert_true(dsc_device_threads(device) >= 1);
    dsc_device_destroy(&device);
    assert_null(device);
    dsc_device_destroy(&device);
    dsc_device_destroy(NULL);
    /* A caller of an older version knows only the name. */
    dsc_device_options older = {.size = offsetof(dsc_device_options, threads), .name = "ref", .threads = -7};
    assert_ok(dsc_device_create(&older, &device));
    assert_string_equal(dsc_device_name(device), "ref");
    dsc_device_destroy(&device);
    for (const char *const *name = dsc_device_names(); *name; name++) {
        if (!is_there(*name))
            continue;
        assert_ok(create(*name, 2, &device));
        assert_string_equal(dsc_device_name(device), *name);
        assert_true(strlen(dsc_device_description(device)) > 0);
        assert_int_equal(dsc_device_is_host(device), strcmp(*name, "cuda") != 0);
        char text[8] = "before";
        size_t needed = 0;
        assert_ok(dsc_device_choices(device, text, sizeof text, &needed)); /* it was not asked to tune */
        assert_int_equal(needed, 1);
        assert_string_equal(text, "");
        assert_false(dsc_device_tunes(device));
        assert_ok(dsc_device_preset(device, ""));
        assert_int_equal(dsc_device_threads(device), strcmp(*name, "ref") == 0 ? 1 : 2);
        dsc_device_destroy(&device);
    }
}

static void test_memory(void **state) {
    (void)state;
    for (const char *const *name = dsc_device_names(); *name; name++) {
        dsc_device *device;
        void *a = NULL, *b = NULL, *none = NULL;
        if (!is_there(*name))
            continue;
        assert_ok(create(*name, 1, &device));
        assert_ok(dsc_device_alloc(device, 1000, &a));
        assert_ok(dsc_device_alloc(device, 24, &b));
        assert_ok(dsc_device_alloc(device, 0, &none));
        assert_non_null(none);
        assert_int_equal((uintptr_t)a % 64, 0);
        assert_int_equal((uintptr_t)b % 64, 0);
        assert_int_equal(dsc_device_bytes(device), 1024);
        dsc_device_free(device, &a);
        assert_null(a);
        dsc_device_free(device, &a);
        assert_int_equal(dsc_device_bytes(device), 24);
        assert_int_equal(dsc_device_peak_bytes(device), 1024);
        dsc_device_free(device, &b);
        dsc_device_free(device, &none);
        assert_fails(DSC_E_MEMORY, "cannot allocate", dsc_device_alloc(device, SIZE_MAX, &a));
        assert_fails(DSC_E_MEMORY, "cannot allocate", dsc_device_alloc(device, SIZE_MAX / 4, &a));
        assert_null(a);
        assert_int_equal(dsc_device_bytes(device), 0);
        assert_int_equal(dsc_device_peak_bytes(device), 1024);
        dsc_device_destroy(&device);
    }
}

/* Threads allocate and free at once: the counters end where they began. */
static void *churn(void *argument) {
    dsc_device *device = argument;
    for (int i = 1; i < 200; i++) {
        void *p = NULL;
        if (dsc_device_alloc(device, (size_t)i, &p) != DSC_OK)
            return argument;
        dsc_device_free(device, &p);
    }
    return NULL;
}

static void test_memory_from_threads(void **state) {
    (void)state;
    dsc_device *device;
    pthread_t threads[3];
    assert_ok(create(chosen_or("ref"), 1, &device));
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, device), 0);
    for (int i = 0; i < 3; i++) {
        void *failed = device;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(dsc_device_bytes(device), 0);
    assert_true(dsc_device_peak_bytes(device) >= 199 && dsc_device_peak_bytes(device) <= 3 * 199);
    dsc_device_destroy(&device);
}

static void test_queues_and_events(void **state) {
    (void)state;
    dsc_queue *none = NULL;
    dsc_event *no_event = NULL;
    assert_fails(DSC_E_INVALID, "queue: no device", dsc_queue_create(NULL, &none));
    assert_fails(DSC_E_INVALID, "event: no device", dsc_event_create(NULL, &no_event));
    assert_true(!none && !no_event);
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *second = NULL;
        dsc_event *event = NULL;
        assert_ok(dsc_queue_create(rigs[r].device, &second));
        assert_ptr_equal(dsc_queue_device(second), rigs[r].device);
        assert_ok(dsc_event_create(rigs[r].device, &event));
        place p = place_make(&rigs[r], DSC_F32, SHAPE(100));
        assert_ok(dsc_op_fill(rigs[r].q, 3, &p.t));
        assert_ok(dsc_event_record(event, rigs[r].q));
        assert_ok(dsc_queue_wait(second, event));
        assert_ok(dsc_op_axpby(second, 2, &p.t, 0, &p.t));
        assert_ok(dsc_event_record(event, second));
        assert_ok(dsc_event_sync(event));
        assert_true(place_get(&rigs[r], &p, 99) == 6);
        assert_ok(dsc_queue_sync(second));
        if (r > 0) {
            assert_fails(DSC_E_INVALID, "another device", dsc_event_record(event, rigs[0].q));
            assert_fails(DSC_E_INVALID, "another device", dsc_queue_wait(rigs[0].q, event));
        }
        place_free(&p);
        dsc_event_destroy(&event);
        assert_null(event);
        dsc_event_destroy(&event);
        dsc_event_destroy(NULL);
        dsc_queue_destroy(&second);
        assert_null(second);
        dsc_queue_destroy(&second);
        dsc_queue_destroy(NULL);
    }
}

static void test_copies(void **state) {
    (void)state;
    static const float values[3] = {1, 2, 3};
    for (int r = 0; r < rig_count; r++) {
        float got[3] = {0};
        place p = place_make(&rigs[r], DSC_F32, SHAPE(3)), empty = place_make(&rigs[r], DSC_F32, SHAPE(0));
        assert_ok(dsc_tensor_upload(rigs[r].q, values, sizeof values, &p.t));
        assert_ok(dsc_tensor_download(rigs[r].q, &p.t, sizeof got, got));
        assert_ok(dsc_queue_sync(rigs[r].q));
        assert_memory_equal(got, values, sizeof got);
        place_check_guards(&rigs[r], &p, "upload");
        assert_ok(dsc_tensor_upload(rigs[r].q, NULL, 0, &empty.t));
        assert_fails(DSC_E_INVALID, "upload: 8 bytes for a tensor of 12 bytes",
                     dsc_tensor_upload(rigs[r].q, values, 8, &p.t));
        assert_fails(DSC_E_INVALID, "download: 8 bytes for a tensor of 12 bytes",
                     dsc_tensor_download(rigs[r].q, &p.t, 8, got));
        assert_fails(DSC_E_INVALID, "upload: no queue", dsc_tensor_upload(NULL, values, sizeof values, &p.t));
        assert_fails(DSC_E_INVALID, "upload: no tensor",
                     dsc_tensor_upload(rigs[r].q, values, sizeof values, NULL));
        assert_fails(DSC_E_INVALID, "upload: no host memory",
                     dsc_tensor_upload(rigs[r].q, NULL, sizeof values, &p.t));
        assert_fails(DSC_E_INVALID, "download: no queue", dsc_tensor_download(NULL, &p.t, sizeof got, got));
        assert_fails(DSC_E_INVALID, "download: no host memory",
                     dsc_tensor_download(rigs[r].q, &p.t, sizeof got, NULL));
        int other = (r + 1) % rig_count;
        assert_fails(DSC_E_INVALID, "not on the queue's device",
                     dsc_tensor_upload(rigs[other].q, values, sizeof values, &p.t));
        place_free(&p);
        place_free(&empty);
    }
}

/* ---- allocation failures: every allocation fails once, nothing leaks, nothing is handed out ---- */

typedef dsc_status (*attempt)(const rig *r);

static dsc_status try_device(const rig *r) {
    dsc_device *device = NULL;
    dsc_status status = create(dsc_device_name(r->device), 2, &device);
    if (status != DSC_OK)
        assert_null(device);
    dsc_device_destroy(&device);
    return status;
}

static dsc_status try_queue(const rig *r) {
    dsc_queue *q = NULL;
    dsc_status status = dsc_queue_create(r->device, &q);
    if (status != DSC_OK)
        assert_null(q);
    dsc_queue_destroy(&q);
    return status;
}

static dsc_status try_event(const rig *r) {
    dsc_event *event = NULL;
    dsc_status status = dsc_event_create(r->device, &event);
    if (status != DSC_OK)
        assert_null(event);
    dsc_event_destroy(&event);
    return status;
}

static dsc_status try_tensor(const rig *r) {
    dsc_tensor t = {0};
    dsc_status status = dsc_tensor_alloc(r->device, DSC_F32, SHAPE(4, 4), &t);
    if (status != DSC_OK)
        assert_null(t.data);
    dsc_tensor_free(&t);
    return status;
}

static dsc_status conv_of(const rig *r, dsc_conv_desc desc) {
    dsc_conv *conv = NULL;
    dsc_status status = dsc_conv_create(r->device, &desc, &conv);
    if (status != DSC_OK)
        assert_null(conv);
    dsc_conv_destroy(&conv);
    return status;
}

static dsc_status try_conv(const rig *r) {
    return conv_of(r, (dsc_conv_desc)CONV(DSC_F32, 2, 8, 8, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1));
}

static dsc_status try_grouped_conv(const rig *r) {
    return conv_of(r, (dsc_conv_desc)CONV(DSC_F32, 2, 9, 8, 6, 4, 3, 3, 2, 2, 1, 1, 2, 2, 2));
}

static dsc_status try_double_conv(const rig *r) {
    if (!rig_convolves(r, DSC_F64))
        return try_conv(r);
    return conv_of(r, (dsc_conv_desc)CONV(DSC_F64, 2, 8, 8, 3, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1));
}

static void test_allocation_failures(void **state) {
    (void)state;
    static const attempt attempts[] = {try_device, try_queue,        try_event,      try_tensor,
                                       try_conv,   try_grouped_conv, try_double_conv};
    for (int r = 0; r < rig_count; r++)
        for (size_t a = 0; a < sizeof attempts / sizeof attempts[0]; a++) {
            size_t before = dsc_device_bytes(rigs[r].device);
            dsc_status status = DSC_E_MEMORY;
            for (int64_t nth = 1; status != DSC_OK; nth++) {
                assert_true(nth < 1000);
                dsc_memory_fail_at(nth);
                status = attempts[a](&rigs[r]);
                dsc_memory_fail_at(0);
                if (status != DSC_OK)
                    assert_int_equal(status, DSC_E_MEMORY);
                assert_int_equal(dsc_device_bytes(rigs[r].device), before);
                assert_true(status != DSC_OK || nth > 1 ||
                            !dsc_device_is_host(rigs[r].device)); /* each allocates */
            }
        }
}

/* ---- what every front refuses ---- */

static void test_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        dsc_queue *q = rigs[r].q;
        const rig *other = &rigs[(r + 1) % rig_count];
        place x = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)), y = place_make(&rigs[r], DSC_F32, SHAPE(3, 2));
        place d = place_make(&rigs[r], DSC_F64, SHAPE(2, 3)),
              half = place_make(&rigs[r], DSC_BF16, SHAPE(2, 3));
        place c = place_make(&rigs[r], DSC_F32, SHAPE(2, 2)), far = place_make(other, DSC_F32, SHAPE(2, 3));
        place two = place_make(&rigs[r], DSC_F64, SHAPE(2)), ten = place_make(&rigs[r], DSC_F32, SHAPE(10));
        place six = place_make(&rigs[r], DSC_F32, SHAPE(6));
        dsc_tensor nowhere = x.t, negative = x.t, left = dsc_tensor_slice(&ten.t, 0, 6);
        dsc_tensor right = dsc_tensor_slice(&ten.t, 2, 6);
        nowhere.data = NULL;
        negative.dim[1] = -3;
        assert_fails(DSC_E_INVALID, "add: no queue", dsc_op_add(NULL, &x.t, &x.t, &x.t));
        assert_fails(DSC_E_INVALID, "add: a is missing", dsc_op_add(q, NULL, &x.t, &x.t));
        assert_fails(DSC_E_INVALID, "add: y is missing", dsc_op_add(q, &x.t, &x.t, NULL));
        assert_fails(DSC_E_INVALID, "add: b is on device", dsc_op_add(q, &x.t, &far.t, &x.t));
        assert_fails(DSC_E_INVALID, "add: b is fp64; fp32 is expected", dsc_op_add(q, &x.t, &d.t, &x.t));
        assert_fails(DSC_E_INVALID, "syrk: a is bf16; fp32 or fp64 is expected",
                     dsc_op_syrk(q, 1, &half.t, 0, &half.t));
        assert_fails(DSC_E_INVALID, "add: b is [3,2]; the shape of a, [2,3], is expected",
                     dsc_op_add(q, &x.t, &y.t, &x.t));
        assert_fails(DSC_E_INVALID, "add: b has no memory", dsc_op_add(q, &x.t, &nowhere, &x.t));
        assert_fails(DSC_E_INVALID, "add: a is [2,-3]", dsc_op_add(q, &negative, &x.t, &x.t));
        assert_fails(DSC_E_INVALID, "relu_forward: y shares memory with x",
                     dsc_op_relu_forward(q, &left, &right));
        assert_fails(DSC_E_INVALID, "relu_backward: dx shares memory with dy",
                     dsc_op_relu_backward(q, &six.t, &left, 1, &left));
        assert_fails(DSC_E_INVALID, "gemm: b is [2,3]; [3,3] is expected",
                     dsc_op_gemm(q, 0, 0, 1, &x.t, &x.t, 0, &c.t));
        assert_fails(DSC_E_INVALID, "gemm: c is [2,2]; [3,3] is expected",
                     dsc_op_gemm(q, 1, 0, 1, &x.t, &x.t, 0, &c.t));
        assert_fails(DSC_E_INVALID, "gemm: a is [10]; 2 dimensions are expected",
                     dsc_op_gemm(q, 0, 0, 1, &ten.t, &x.t, 0, &c.t));
        assert_fails(DSC_E_INVALID, "syrk: c is [2,2]; [3,3] is expected", dsc_op_syrk(q, 1, &x.t, 0, &c.t));
        assert_fails(DSC_E_INVALID, "symmetrize: a is [2,3]; [2,2] is expected", dsc_op_symmetrize(q, &x.t));
        assert_fails(DSC_E_INVALID, "tri_pack: p is [10]; [3] is expected", dsc_op_tri_pack(q, &c.t, &ten.t));
        assert_fails(DSC_E_INVALID, "chol_inverse: a is [3,2]", dsc_op_chol_inverse(q, &y.t));
        assert_fails(DSC_E_INVALID, "bias_add: b is [10]; [3] is expected", dsc_op_bias_add(q, &ten.t, &x.t));
        assert_fails(DSC_E_INVALID, "scale_by: s is [2]; 1 element is expected",
                     dsc_op_scale_by(q, &two.t, &x.t));
        assert_fails(DSC_E_INVALID, "axpby: y is [10]; as many elements as x, [2,3], are expected",
                     dsc_op_axpby(q, 1, &x.t, 0, &ten.t));
        place *all[] = {&x, &y, &d, &half, &c, &far, &two, &ten, &six};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            place_free(all[i]);
    }
}

static void test_dropout_refusals(void **state) {
    (void)state;
    for (int r = 0; r < rig_count; r++) {
        place x = place_make(&rigs[r], DSC_F32, SHAPE(2, 3)), at = place_make(&rigs[r], DSC_I64, SHAPE(2));
        place three = place_make(&rigs[r], DSC_I64, SHAPE(3));
        dsc_dropout_desc all = {1, 1, 0}, some = {0.5, 1, 0};
        assert_fails(DSC_E_INVALID, "dropout: the rate is 1",
                     dsc_op_dropout(rigs[r].q, &all, &at.t, &x.t, 0, &x.t));
        assert_fails(DSC_E_INVALID, "dropout: position is [3]; [2] is expected",
                     dsc_op_dropout(rigs[r].q, &some, &three.t, &x.t, 0, &x.t));
        assert_fails(DSC_E_INVALID, "dropout: y shares memory with x",
                     dsc_op_dropout(rigs[r].q, &some, &at.t, &x.t, 1, &x.t));
        place_free(&x);
        place_free(&at);
        place_free(&three);
    }
}

/* How large it is depends on the machine. */
static void test_peak(void **state) {
    (void)state;
    double peak = 0;
    for (int r = 0; r < rig_count; r++) {
        const size_t before = dsc_device_bytes(rigs[r].device);
        assert_ok(dsc_device_measure_peak(rigs[r].q, DSC_F32, &peak));
        assert_true(peak > 1e5 && peak < 1e17);
        assert_int_equal(dsc_device_bytes(rigs[r].device), before);
    }
    assert_fails(DSC_E_INVALID, "may be NULL", dsc_device_measure_peak(NULL, DSC_F32, &peak));
    assert_fails(DSC_E_INVALID, "may be NULL", dsc_device_measure_peak(rigs[0].q, DSC_F32, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_tensor_alloc),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_from_threads),
        cmocka_unit_test(test_queues_and_events),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_dropout_refusals),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}

/* Abandoning K-FAC in the middle of a step, when messages are under way that never arrive: nothing waits for
 * them. The other rank is simulated: it always has the same data as this rank, until it is gone. */
#include "kfac/net.h"

#include "descent/kfac.h"

enum { SAMPLES = 2, LAYERS = 2 };

static const net_shape shapes[LAYERS] = {
    {"conv", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .bias = 1, .in_h = 3, .in_w = 3, .kernel_h = 2,
     .kernel_w = 2},
    {"last", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 3},
};

/* The state of the simulated rank. */
static struct {
    int gone;   /* 1: messages do not arrive any more */
    int waited; /* number of waits for such messages */
    int closed; /* number of closed contexts */
    int handle;
} other;

/* Sums a message over both ranks: twice this rank's value. */
static void add_up(const dsc_comm_message *m) {
    for (int64_t i = 0; i < m->count && m->reduction == DSC_SUM; i++) {
        if (m->dtype == DSC_F64)
            ((double *)m->recv)[i] *= 2;
        else if (m->dtype == DSC_F32)
            ((float *)m->recv)[i] *= 2;
        else if (m->dtype == DSC_I64)
            ((int64_t *)m->recv)[i] *= 2;
        else if (m->dtype == DSC_I32)
            ((int32_t *)m->recv)[i] *= 2;
        else
            fail_msg("a sum of another type");
    }
}

static dsc_status start(void *context, const dsc_comm_message *message, void **handle) {
    (void)context;
    *handle = &other.handle;
    if (other.gone)
        return DSC_OK;
    size_t bytes = (size_t)message->count * dsc_dtype_size(message->dtype);
    if (message->op == DSC_COMM_ALLREDUCE)
        add_up(message);
    else if (message->op == DSC_COMM_ALLGATHER)
        for (int r = 0; r < 2; r++)
            memmove((char *)message->recv + (size_t)r * bytes, message->send, bytes);
    else if (message->op != DSC_COMM_BROADCAST && message->op != DSC_COMM_BARRIER)
        fail_msg("operation %d", (int)message->op);
    return DSC_OK;
}

static dsc_status test(void *context, void *handle, int *done) {
    (void)context;
    (void)handle;
    *done = !other.gone;
    return DSC_OK;
}

static dsc_status wait_for(void *context, void *handle) {
    (void)context;
    (void)handle;
    other.waited += other.gone;
    return DSC_OK;
}

static dsc_status split(void *context, int colour, int key, dsc_comm_functions *child) {
    (void)context;
    (void)colour;
    (void)key;
    child->ranks = child->local_ranks = 2;
    return DSC_OK;
}

static void close_context(void *context) {
    (void)context;
    other.closed++;
}

static void abandon_inside(dsc_queue *queue, int gone_after) {
    dsc_comm_functions functions;
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac_options options;
    dsc_comm *comm = NULL;
    dsc_kfac *kfac = NULL;
    net n;
    memset(&other, 0, sizeof other);
    dsc_comm_functions_init(&functions);
    functions.name = "made up";
    functions.ranks = functions.local_ranks = 2;
    functions.start = start;
    functions.test = test;
    functions.wait = wait_for;
    functions.split = split;
    functions.close = close_context;
    assert_ok(dsc_comm_create_from_functions(&functions, NULL, &comm));
    net_open(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES);
    net_describe(&n, layers);
    dsc_kfac_options_init(&options);
    options.bucket_bytes = 1; /* factors are sent at once */
    assert_ok(dsc_kfac_create(comm, queue, layers, LAYERS, &options, &kfac));
    assert_ok(net_run(&n, kfac, &(net_step){.lr = 0.5}));
    assert_ok(dsc_kfac_begin(kfac, 1));
    for (int l = LAYERS - 1; l >= 0; l--) {
        other.gone = LAYERS - 1 - l >= gone_after;
        assert_ok(dsc_kfac_capture(kfac, queue, l, &n.layers[l].a, &n.layers[l].g));
    }
    other.gone = 1;
    dsc_kfac_abandon(&kfac);
    assert_null(kfac);
    assert_int_equal(other.waited, 0);
    assert_int_equal(other.closed, 3); /* exchange, control, column */
    dsc_comm_abandon(&comm);
    assert_int_equal(other.closed, 4);
    net_close(&n);
}

static void test_inside(void **state) {
    (void)state;
    dsc_device_options options;
    dsc_device *device;
    dsc_queue *queue;
    dsc_device_options_init(&options);
    options.name = "ref";
    assert_ok(dsc_device_create(&options, &device));
    assert_ok(dsc_queue_create(device, &queue));
    abandon_inside(queue, 0);
    abandon_inside(queue, 1);
    abandon_inside(queue, 2);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

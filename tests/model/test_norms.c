/* The tensors of norms that a backward pass hands out: from these the test computes the gradients of scale and shift as
 * explicit sums, also when the ReLU or an addition is part of the operation. */
#include "test.h"

#include "model/graph.h"
#include "model/nets.h"

#include <math.h>
#include <stdlib.h>

enum { BATCH = 3, MOST = 16, CHANNELS = 256 };

static dsc_device *device;
static dsc_queue *queue;

typedef struct record {
    int count;
    int64_t norm[MOST];
    double gamma[MOST][CHANNELS], shift[MOST][CHANNELS]; /* by number */
} record;

/* The index of the statistic of element i: that of its channel, or of its group in the position or the sample. */
static int64_t statistic_at(const dsc_norm_tensors *t, int64_t i) {
    int64_t c = t->x.dim[2], positions = t->x.dim[1];
    if (t->invstd.ndim == 1)
        return i % c;
    int64_t groups = t->invstd.dim[1], group = i % c / (c / groups);
    assert_true(t->invstd.dim[0] == BATCH || t->invstd.dim[0] == BATCH * positions);
    return (t->invstd.dim[0] == BATCH ? i / (c * positions) : i / c) * groups + group;
}

static dsc_status on_norm(void *context, dsc_queue *q, int64_t norm, const dsc_norm_tensors *t) {
    record *rec = context;
    assert_in_range(norm, 0, MOST - 1);
    assert_int_equal(t->x.ndim, 3);
    assert_int_equal(t->x.dim[0], BATCH);
    int64_t c = t->x.dim[2], count = dsc_tensor_count(&t->x);
    assert_in_range(c, 1, CHANNELS);
    double *x = read_doubles(q, &t->x), *dy = read_doubles(q, &t->dy);
    double *mean = t->mean.data ? read_doubles(q, &t->mean) : NULL;
    double *invstd = read_doubles(q, &t->invstd), *y = t->y.data ? read_doubles(q, &t->y) : NULL;
    for (int64_t i = 0; i < count; i++) {
        double g = y && !(y[i] > 0) ? 0 : dy[i];
        int64_t of = statistic_at(t, i);
        rec->gamma[norm][i % c] += g * (x[i] - (mean ? mean[of] : 0)) * invstd[of];
        rec->shift[norm][i % c] += g;
    }
    rec->norm[rec->count++] = norm;
    double *all[] = {x, dy, mean, invstd, y};
    for (int i = 0; i < 5; i++)
        free(all[i]);
    return DSC_OK;
}

static void check_near(const double *want, const dsc_tensor *grad) {
    double *got = read_doubles(queue, grad);
    for (int64_t i = 0; i < dsc_tensor_count(grad); i++)
        assert_true(fabs(got[i] - want[i]) <= 1e-12 * (1 + fabs(want[i])));
    free(got);
}

static int64_t check_net(const net *what) {
    record *rec = calloc(1, sizeof *rec);
    dsc_model *m = make_model(device, what, DSC_F64, 0);
    dsc_exec *exec = NULL;
    dsc_backward_options options;
    assert_non_null(rec);
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
    dsc_tensor x = random_tensor(queue, 1, DSC_F64, 4, (int64_t[]){BATCH, what->h, what->w, what->c});
    dsc_tensor labels = random_labels(queue, 2, BATCH, NET_CLASSES);
    dsc_backward_options_init(&options);
    options.context = rec;
    options.capture_norm = on_norm;
    assert_ok(dsc_exec_forward(exec, queue, &x));
    assert_ok(dsc_exec_loss(exec, queue, &labels, 1));
    assert_ok(dsc_exec_backward(exec, queue, &options));
    assert_int_equal(rec->count, m->norm_count);
    for (int64_t i = 0; i < m->node_count; i++) {
        const dsc_node *node = &m->nodes[i];
        if (node->norm < 0)
            continue;
        check_near(rec->gamma[node->norm], &dsc_model_params(m)[node->weight].grad);
        if (node->bias >= 0)
            check_near(rec->shift[node->norm], &dsc_model_params(m)[node->bias].grad);
    }
    int64_t norms = m->norm_count;
    dsc_tensor_free(&x);
    dsc_tensor_free(&labels);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&m);
    free(rec);
    return norms;
}

static void test_tensors(void **state) {
    (void)state;
    int64_t norms = 0;
    for (const net *what = nets; what->name; what++)
        norms += check_net(what);
    assert_true(norms > 3);
}

static dsc_status fail_norm(void *context, dsc_queue *q, int64_t norm, const dsc_norm_tensors *t) {
    (void)context, (void)q, (void)norm, (void)t;
    return DSC_E_NUMERIC;
}

/* When the function fails, the pass fails with its status. */
static void test_failure(void **state) {
    (void)state;
    for (const net *what = nets; what->name; what++) {
        dsc_model *m = make_model(device, what, DSC_F64, 0);
        dsc_exec *exec = NULL;
        dsc_backward_options options;
        assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
        dsc_tensor x = random_tensor(queue, 1, DSC_F64, 4, (int64_t[]){BATCH, what->h, what->w, what->c});
        dsc_tensor labels = random_labels(queue, 2, BATCH, NET_CLASSES);
        dsc_backward_options_init(&options);
        options.capture_norm = fail_norm;
        assert_ok(dsc_exec_forward(exec, queue, &x));
        assert_ok(dsc_exec_loss(exec, queue, &labels, 1));
        dsc_status status = dsc_exec_backward(exec, queue, &options);
        assert_int_equal(status, m->norm_count > 0 ? DSC_E_NUMERIC : DSC_OK);
        dsc_tensor_free(&x);
        dsc_tensor_free(&labels);
        dsc_exec_destroy(&exec);
        dsc_model_destroy(&m);
    }
}

static int open_all(void **state) {
    (void)state;
    device = open_device("ref");
    queue = open_queue(device);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensors), cmocka_unit_test(test_failure)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}

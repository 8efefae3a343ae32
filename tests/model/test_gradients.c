/* Gradients of whole networks in double, against central differences of the loss at h and h/2.
 *
 * The difference quotient's own error is about |D(h) - D(h/2)| / 3 plus rounding, eps |L| k / h with k the
 * terms that enter the loss. Where a ReLU or a maximum switches between the two ends the quotients disagree
 * and say nothing; such elements must be rare. */
#include "chosen.h"

#include "model/own_layers.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { BATCH = 6 };

typedef struct rig {
    dsc_device *device;
    dsc_queue *q;
    dsc_model *m;
    dsc_exec *exec;
    dsc_tensor x, labels;
} rig;

static rig open_rig(const net *what, double smoothing) {
    rig r = {.device = open_device("ref")};
    r.q = open_queue(r.device);
    r.m = make_model(r.device, what, DSC_F64, smoothing);
    assert_ok(dsc_exec_create(r.m, DSC_EXEC_TRAIN, BATCH, &r.exec));
    r.x = random_tensor(r.q, 1, DSC_F64, 4, (int64_t[]){BATCH, what->h, what->w, what->c});
    r.labels = random_labels(r.q, 2, BATCH, NET_CLASSES);
    assert_ok(dsc_exec_set_position(r.exec, r.q, 3, 12));
    return r;
}

static void close_rig(rig *r) {
    dsc_tensor_free(&r->x);
    dsc_tensor_free(&r->labels);
    dsc_exec_destroy(&r->exec);
    dsc_model_destroy(&r->m);
    dsc_queue_destroy(&r->q);
    dsc_device_destroy(&r->device);
}

static double loss(rig *r) {
    double stats[DSC_STAT_COUNT];
    assert_ok(dsc_exec_clear_stats(r->exec, r->q));
    assert_ok(dsc_exec_forward(r->exec, r->q, &r->x));
    assert_ok(dsc_exec_loss(r->exec, r->q, &r->labels, 0.5));
    assert_ok(dsc_tensor_download(r->q, dsc_exec_stats(r->exec), sizeof stats, stats));
    assert_true(stats[DSC_STAT_ROWS] == BATCH);
    return 0.5 * stats[DSC_STAT_LOSS];
}

static double quotient(rig *r, dsc_tensor *element, double value, double h) {
    double up = value + h, down = value - h;
    write_doubles(r->q, &up, element);
    double above = loss(r);
    write_doubles(r->q, &down, element);
    double below = loss(r);
    write_doubles(r->q, &value, element);
    return (above - below) / (up - down);
}

static void check_net(const net *what, double smoothing) {
    const double h = 1e-4;
    rig r = open_rig(what, smoothing);
    double value = loss(&r);
    assert_ok(dsc_exec_backward(r.exec, r.q, NULL));
    dsc_tensor values = dsc_model_values(r.m), grads = dsc_model_grads(r.m);
    int64_t n = dsc_tensor_count(&values), kinks = 0;
    double *g = read_doubles(r.q, &grads), *now = read_doubles(r.q, &values);
    double rounding = 1000 * DBL_EPSILON * fabs(value) / h; /* no net has more terms in a sum */
    for (int64_t i = 0; i<n; i += n> 300 ? 3 : 1) {
        dsc_tensor element = dsc_tensor_slice(&values, i, 1);
        double rough = quotient(&r, &element, now[i], h), fine = quotient(&r, &element, now[i], h / 2);
        if (fabs(rough - fine) > 1e-6 * (1 + fabs(fine))) {
            kinks++;
            continue;
        }
        if (fabs(g[i] - fine) > fabs(rough - fine) + 2 * rounding)
            fail_msg("%s: gradient of element %lld is %.12g, the quotients are %.12g and %.12g", what->name,
                     (long long)i, g[i], rough, fine);
    }
    assert_true(largest(n, g) > 0.01);
    assert_true(kinks * 20 <= n);
    free(now);
    free(g);
    close_rig(&r);
}

static void test_networks(void **state) {
    (void)state;
    skip_on_chosen("differences need double, on ref");
    for (const net *what = nets; what->name; what++)
        check_net(what, 0);
}

/* Layers that a program defines itself, among built-in ones. */
static void test_own_layers(void **state) {
    (void)state;
    skip_on_chosen("differences need double, on ref");
    for (const net *what = own_nets; what->name; what++)
        check_net(what, 0);
}

static void test_label_smoothing(void **state) {
    (void)state;
    skip_on_chosen("differences need double, on ref");
    check_net(find_net("dense"), 0.2);
}

static void test_without_fusion(void **state) {
    (void)state;
    skip_on_chosen("differences need double, on ref");
    net_no_fusion = 1;
    for (const net *what = nets; what->name; what++)
        if (what->fused)
            check_net(what, 0);
    net_no_fusion = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_networks),
        cmocka_unit_test(test_own_layers),
        cmocka_unit_test(test_label_smoothing),
        cmocka_unit_test(test_without_fusion),
    };
    return cmocka_run_group_tests_name("model_gradients", tests, NULL, NULL);
}

#include "kfac/twin.h"

#include "device/half.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

place places[PLACES] = {{"ref", DSC_F64, DBL_EPSILON, 1, NULL, NULL},
                        {"cpu", DSC_F32, (double)FLT_EPSILON, 2, NULL, NULL}};
dsc_comm *alone;
dsc_device *host_device;
dsc_queue *host_queue;

const net_shape twin_mixed[TWIN_MIXED] = {
    {"conv", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .bias = 1, .in_h = 4, .in_w = 4, .kernel_h = 3,
     .kernel_w = 3, .pad_h = 1, .pad_w = 1},
    {"grouped", DSC_KFAC_CONV2D, .in_c = 4, .out_c = 4, .in_h = 4, .in_w = 3, .kernel_h = 2, .kernel_w = 2,
     .stride_h = 2, .groups = 2},
    {"rows", DSC_KFAC_LINEAR, .in_c = 3, .out_c = 4, .sequence = 2},
    {"last", DSC_KFAC_LINEAR, .in_c = 5, .out_c = 3, .bias = 1},
};

/* Opens the device of a place; both places use the same one when the environment names a device. */
static void open_place(place *p) {
    if (chosen())
        p->device = chosen_exact_or(NULL);
    if (chosen() && p > places) {
        p->handle = places->handle;
        p->queue = places->queue;
        return;
    }
    p->handle = chosen_open(p->device, p->threads);
    assert_ok(dsc_queue_create(p->handle, &p->queue));
}

static void close_place(place *p) {
    if (p == places || p->handle != places->handle) {
        dsc_queue_destroy(&p->queue);
        dsc_device_destroy(&p->handle);
    }
}

int places_open(void **state) {
    (void)state;
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "self";
    assert_ok(dsc_comm_create(&options, &alone));
    for (int p = 0; p < PLACES; p++)
        open_place(&places[p]);
    host_device = chosen_open("ref", 1);
    assert_ok(dsc_queue_create(host_device, &host_queue));
    if (chosen())
        assert_ok(dsc_comm_use_queue(alone, places[REF].queue));
    return 0;
}

int places_close(void **state) {
    (void)state;
    size_t left = dsc_device_bytes(host_device);
    dsc_comm_destroy(&alone);
    for (int p = PLACES - 1; p >= 0; p--) {
        left += dsc_device_bytes(places[p].handle);
        close_place(&places[p]);
    }
    dsc_queue_destroy(&host_queue);
    dsc_device_destroy(&host_device);
    if (left)
        fprintf(stderr, "%zu bytes of device memory are left\n", left);
    return left != 0;
}

dsc_kfac_options twin_options(void) {
    dsc_kfac_options options;
    dsc_kfac_options_init(&options);
    options.damping = 0.125;
    options.stat_decay = 0.5;
    options.kl_clip = 0;
    options.factor_freq = 1;
    options.update_freq = 1;
    return options;
}

void twin_open(twin *t, const place *p, const net_shape *list, int count, const dsc_kfac_options *options) {
    dsc_kfac_layer layers[NET_LAYERS];
    net_open(&t->n, p->queue, p->dtype, list, count, TWIN_SAMPLES);
    t->n.scaling = options->scaling;
    t->options = *options;
    t->eps = p->eps;
    naive_open(&t->v, &t->n, options);
    naive_gradients_open(&t->n, t->want);
    net_describe(&t->n, layers);
    t->kfac = NULL;
    assert_ok(dsc_kfac_create(alone, p->queue, layers, count, options, &t->kfac));
}

void twin_close(twin *t) {
    dsc_kfac_destroy(&t->kfac);
    assert_null(t->kfac);
    naive_gradients_close(&t->n, t->want);
    naive_close(&t->v);
    net_close(&t->n);
}

void twin_step_under(twin *t, const net_step *step, const dsc_kfac_hyper *hyper, const char *what) {
    double nu = naive_run(&t->v, &t->n, step, hyper, t->want), got;
    dsc_status status = net_run(&t->n, t->kfac, step);
    if (status != DSC_OK)
        fail_msg("%s, step %d: %s\n%s", what, (int)step->number, dsc_error_message(), dsc_error_trace());
    double excess = naive_excess(&t->v, t->want, hyper->damping, t->eps);
    if (!(excess <= 1))
        fail_msg("%s, step %d: off by %g times the bound", what, (int)step->number, excess);
    assert_ok(dsc_kfac_nu(t->kfac, t->n.queue, &got));
    double bound = 0;
    for (int l = 0; l < t->n.count; l++)
        bound = fmax(bound, naive_bound(&t->v, l, hyper->damping, t->eps));
    if (!(fabs(got - nu) <= bound * nu))
        fail_msg("%s, step %d: nu is %.17g instead of %.17g", what, (int)step->number, got, nu);
}

void twin_step(twin *t, const net_step *step, const char *what) {
    twin_step_under(t, step, HYPER(&t->options), what);
}

const dsc_kfac_report *twin_report(twin *t) {
    const dsc_kfac_report *report = NULL;
    assert_ok(dsc_kfac_get_report(t->kfac, t->n.queue, &report));
    assert_non_null(report);
    return report;
}

int64_t twin_entry(const dsc_kfac *kfac, const char *name) {
    const dsc_kfac_entry *entries = dsc_kfac_state_entries(kfac);
    for (int64_t i = 0; i < dsc_kfac_state_count(kfac); i++)
        if (strcmp(entries[i].name, name) == 0)
            return i;
    fail_msg("the state has no entry '%s'", name);
    return -1;
}

double twin_state(twin *t, const char *name, int64_t i) {
    int64_t index = twin_entry(t->kfac, name), count = 1;
    const dsc_kfac_entry *e = &dsc_kfac_state_entries(t->kfac)[index];
    for (int k = 0; k < e->ndim; k++)
        count *= e->dim[k];
    assert_true(i < count);
    void *host = net_array(count, dsc_dtype_size(e->dtype));
    assert_ok(dsc_kfac_state_get(t->kfac, t->n.queue, index, host));
    double value = e->dtype == DSC_F64    ? ((double *)host)[i]
                   : e->dtype == DSC_F32  ? (double)((float *)host)[i]
                   : e->dtype == DSC_BF16 ? (double)dsc_bf16_to_float(((uint16_t *)host)[i])
                   : e->dtype == DSC_F16  ? (double)dsc_f16_to_float(((uint16_t *)host)[i])
                   : e->dtype == DSC_I64  ? (double)((int64_t *)host)[i]
                                          : NAN;
    free(host);
    return value;
}

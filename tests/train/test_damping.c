/* K-FAC's damping adapted by the reduction of the loss: the rule, a quadratic whose answer is known, and runs. Runs
 * of other variants of K-FAC, and its alarms. */
#include "chosen.h"

#include "device/recording.h"
#include "device/table.h"
#include "kfac/kfac_parts.h"
#include "train/damping.h"
#include "train/runs.h"
#include "train/scratch.h"

#include <math.h>
#include <stdlib.h>

static dsc_comm *comm;
static dsc_device *device;
static char directory[SCRATCH_SIZE];
static const char *warnings; /* of the last noted run */

static const char *folder(const char *name, char path[SCRATCH_SIZE]) {
    snprintf(path, SCRATCH_SIZE, "%s", scratch_path(directory, name));
    return path;
}

/* lenet, 4 steps an epoch, decompositions in every third step, a trial in every second one. */
static void adapt_options(dsc_train_options *o, const char *out) {
    runs_options(o, out);
    o->model = "lenet";
    o->data = "synthetic:32";
    o->batch_size = 8;
    o->eval_every = 0;
    o->kfac_damping_adapt = 2;
    kfac_of(o)->update_freq = 3;
}

/* ---- the rule ---- */

static void test_rule(void **state) {
    (void)state;
    static const double bounds[2] = {0.001, 8};
    static const struct {
        double damping, actual, predicted;
        int64_t steps;
        double want;
    } cases[] = {
        {1, 0.8, 1, 1, 0.95},
        {1, 0.2, 1, 1, 1 / 0.95},
        {1, 0.5, 1, 1, 1},
        {1, 0.75, 1, 1, 1}, /* the limits themselves leave it */
        {1, 0.25, 1, 1, 1},
        {1, -3, 1, 1, 1 / 0.95},
        {1, 3, 1, 1, 0.95},
        {1, 0.8, 1, 2, 0.95 * 0.95},
        {1, 0.8, 1, 1000, 0.25}, /* never by more than a factor of 4 */
        {1, 0.2, 1, 1000, 4},
        {0.001, 0.8, 1, 1, 0.001},
        {8, 0.2, 1, 1, 8},
        {4, 0.2, 1, 1000, 8},
        {1, NAN, 1, 1, 1 / 0.95}, /* a step that makes the loss infinite is too long */
        {1, -INFINITY, 1, 1, 1 / 0.95},
        {1, 1, 0, 1, 1}, /* nothing predicted, nothing learnt */
        {1, 1, -1, 1, 1},
        {1, 1, NAN, 1, 1},
        {100, 0.5, 1, 1, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double got =
            dsc_damping_next(cases[i].damping, cases[i].actual, cases[i].predicted, cases[i].steps, bounds);
        if (!(fabs(got - cases[i].want) <= 1e-15 * cases[i].want))
            fail_msg("case %d: %g instead of %g", (int)i, got, cases[i].want);
    }
}

/* ---- a quadratic ---- */

/* One weight w with the loss h w^2 / 2, of which K-FAC sees the curvature F = 1 instead of h = 4: P = h w / (F +
 * damping), and a full step reduces the loss by (2 - h / (F + damping)) of what is predicted. The damping comes
 * to rest where that ratio is between 1/4 and 3/4: between h / (7/4) - 1 = 1.286 and h / (5/4) - 1 = 2.2, from
 * above and from below. */
static double rest_from(double damping) {
    static const double bounds[2] = {1e-6, 1e3};
    const double h = 4, x = 1, g = 0.5; /* two rows: A = x^2 = 1, G = 2 (g^2 + g^2) = 1 */
    const int64_t rows[2] = {2, 1}, one[2] = {1, 1};
    double w = 1, d = 0, a_host[2] = {x, x}, g_host[2] = {g, g};
    dsc_device *ref = chosen_open("ref", 1);
    dsc_queue *q = NULL;
    dsc_kfac *kfac = NULL;
    dsc_kfac_options options;
    dsc_kfac_layer layer;
    assert_ok(dsc_queue_create(ref, &q));
    dsc_tensor grad = dsc_tensor_view(ref, &d, DSC_F64, 2, one);
    dsc_tensor a = dsc_tensor_view(ref, a_host, DSC_F64, 2, rows),
               go = dsc_tensor_view(ref, g_host, DSC_F64, 2, rows);
    dsc_kfac_layer_init(&layer);
    layer.name = "w";
    layer.in_c = layer.out_c = 1;
    layer.weight_grad = grad;
    dsc_kfac_options_init(&options);
    options.stat_decay = 0;
    options.kl_clip = 0;
    options.update_freq = 1;
    assert_ok(dsc_kfac_create(comm, q, &layer, 1, &options, &kfac));
    for (int k = 0; k < 60; k++) {
        double terms[2], before = h * w * w / 2;
        dsc_kfac_hyper hyper = *dsc_kfac_hyper_now(kfac);
        hyper = (dsc_kfac_hyper){damping, 0, 0, 1, 1, 0};
        assert_ok(dsc_kfac_set_hyper(kfac, &hyper));
        d = h * w;
        assert_ok(dsc_kfac_begin(kfac, 1));
        assert_ok(dsc_kfac_capture(kfac, q, 0, &a, &go));
        assert_ok(dsc_kfac_step(kfac, q, 1));
        assert_ok(dsc_kfac_step_terms(kfac, q, terms));
        assert_true(fabs(d - h * w / (1 + damping)) <= 1e-14 * fabs(d));
        double after = h * (w - d) * (w - d) / 2, predicted = terms[0] - terms[1] / 2;
        assert_true(fabs((before - after) / predicted - (2 - h / (1 + damping))) <= 1e-9);
        damping = dsc_damping_next(damping, before - after, predicted, 5, bounds);
        w = w - d == 0 ? 1 : (w - d) / fabs(w - d); /* the ratio does not depend on w: keep its size */
    }
    dsc_kfac_destroy(&kfac);
    dsc_queue_destroy(&q);
    dsc_device_destroy(&ref);
    return damping;
}

static void test_quadratic(void **state) {
    (void)state;
    static const double starts[] = {1e-3, 0.5, 1.3, 2.1, 3, 500};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        double damping = rest_from(starts[i]);
        if (!(damping >= 4 / 1.75 - 1 && damping <= 4 / 1.25 - 1))
            fail_msg("from %g to %g", starts[i], damping);
    }
}

/* ---- runs ---- */

static void two_batches(dsc_train_options *o) {
    o->batch_size = 4;
    o->batches_per_allreduce = 2;
}

static void normed(dsc_train_options *o) {
    o->model = "resnet20";
    o->data = "synthetic:16";
    o->batch_size = 2;
    o->steps = 3;
    o->epochs = 1;
    kfac_of(o)->skip_layers = "layer[23]";
}

static void with_norms(dsc_train_options *o) {
    normed(o);
    kfac_of(o)->norm = DSC_KFAC_NORM_FULL;
}

static void plain(dsc_train_options *o) {
    (void)o;
}

/* With equal bounds, which leave the damping no choice, the trials change nothing in parameters, statistics or K-FAC,
 * and the state only has one number more. */
static void test_no_trace(void **state) {
    (void)state;
    void (*const changes[])(dsc_train_options *) = {plain, two_batches, normed, with_norms};
    for (int i = 0; i < 4; i++) {
        char with[SCRATCH_SIZE], without[SCRATCH_SIZE], name[32];
        dsc_train_options o;
        snprintf(name, sizeof name, "with-%d", i);
        adapt_options(&o, folder(name, with));
        o.kfac_damping_min = o.kfac_damping_max = kfac_of(&o)->damping;
        changes[i](&o);
        dsc_train_result result = {.size = sizeof result};
        assert_ok(dsc_train_run(comm, device, &o, &result));
        snprintf(name, sizeof name, "without-%d", i);
        o.out = folder(name, without);
        o.kfac_damping_adapt = 0;
        assert_ok(dsc_train_run(comm, device, &o, NULL));
        assert_int_equal(runs_differences(without, with, result.steps), 1);
    }
}

/* Trials move exactly the parameters that K-FAC preconditions. */
static void test_tried(void **state) {
    (void)state;
    for (int norms = 0; norms < 2; norms++) {
        dsc_train_options o;
        dsc_trainer *trainer = NULL;
        adapt_options(&o, NULL);
        normed(&o);
        kfac_of(&o)->norm = norms ? DSC_KFAC_NORM_DIAGONAL : DSC_KFAC_NORM_OFF;
        assert_ok(dsc_trainer_create_named(comm, device, &o, &trainer));
        /* The first convolution, six of layer1, and the linear layer with its bias; a batch norm for each
         * convolution. */
        assert_int_equal(trainer->damping.param_count, 7 + 2 + (norms ? 2 * 7 : 0));
        dsc_trainer_destroy(&trainer);
    }
}

/* A table that a head shares is moved only once in a trial, and only if K-FAC preconditions it. */
static void test_tried_head(void **state) {
    (void)state;
    char text[800], data[SCRATCH_SIZE + 8], file[SCRATCH_SIZE];
    int64_t params[2];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 11);
    scratch_write(folder("text", file), text, sizeof text);
    snprintf(data, sizeof data, "text:%s", file);
    for (int i = 0; i < 2; i++) {
        dsc_train_options o;
        dsc_trainer *trainer = NULL;
        adapt_options(&o, NULL);
        o.model = "gpt-mini:layers=1,heads=2,width=8,dropout=0";
        o.data = data;
        o.context = 8;
        kfac_of(&o)->embeddings = 1;
        kfac_of(&o)->tied_head = i ? DSC_KFAC_TIED_INPUT : DSC_KFAC_TIED_SKIP;
        assert_ok(dsc_trainer_create_named(comm, device, &o, &trainer));
        params[i] = trainer->damping.param_count;
        dsc_trainer_destroy(&trainer);
    }
    assert_int_equal(params[1], params[0] + 1);
}

static double damping_at(json_t *lines, int n) {
    return json_number_value(json_object_get(runs_line(lines, "kfac", n), "damping"));
}

/* Short steps are predicted well, so the damping falls by 0.95^2 after every second step, down to its bound; a
 * clip that is off and a tiny damping make steps that miss, and it rises. */
static void test_follows(void **state) {
    (void)state;
    char down[SCRATCH_SIZE], up[SCRATCH_SIZE];
    dsc_train_options o;
    adapt_options(&o, folder("down", down));
    kfac_of(&o)->update_freq = 1;
    o.kfac_damping_min = 0.00255;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    json_t *lines = runs_lines(down);
    const double w = 0.95 * 0.95, want[] = {1, 1, w, w, 0.85, 0.85, 0.85, 0.85};
    for (int i = 0; i < 8; i++)
        assert_true(fabs(damping_at(lines, i) - 0.003 * want[i]) <= 1e-12);
    json_decref(lines);
    o.out = folder("up", up);
    o.lr = 1;
    kfac_of(&o)->kl_clip = 0;
    kfac_of(&o)->damping = 1e-5;
    o.kfac_damping_min = 1e-7;
    o.steps = 4;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    lines = runs_lines(up);
    assert_true(damping_at(lines, 2) > 1.05e-5);
    json_decref(lines);
}

/* Short steps are predicted well, whatever the number of labels in a batch: the prediction comes from a gradient that
 * is divided by the expected number of masked tokens, and so must be the reduction. A batch without a label, whose
 * gradient is 0, leaves the damping as it is. */
static void test_masked_tokens(void **state) {
    (void)state;
    char data[SCRATCH_SIZE + 8], text[600];
    dsc_train_options o;
    dsc_trainer *trainer = NULL;
    int none = 0, few = 0, many = 0;
    skip_on_chosen("a GPU tells the number of labels a step later");
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "abcdefghijklmno"[(i * i + i / 7) % 15];
    scratch_write(scratch_path(directory, "text"), text, sizeof text);
    snprintf(data, sizeof data, "text:%s", scratch_path(directory, "text"));
    adapt_options(&o, NULL);
    o.model = "bert-base:layers=1,heads=2,width=8,dropout=0";
    o.data = data;
    o.context = 8;
    o.mask = 0.2;
    o.batch_size = 2; /* 3.2 labels on average */
    o.lr = 0.001;
    optim_of(&o)->momentum = 0;
    o.kfac_damping_adapt = 1;
    kfac_of(&o)->update_freq = 1;
    kfac_of(&o)->damping = 1;
    kfac_of(&o)->kl_clip = 0;
    assert_ok(dsc_trainer_create_named(comm, device, &o, &trainer));
    for (int i = 0; i < 30; i++) { /* an epoch has 32 steps */
        const double rows = trainer->state.loss_rows, factor = trainer->state.damping_factor;
        assert_ok(dsc_trainer_step(trainer, NULL));
        const double labels = trainer->state.loss_rows - rows;
        assert_true(fabs(trainer->state.damping_factor / factor - (labels > 0 ? 0.95 : 1)) <= 1e-12);
        none += labels == 0;
        few += labels > 0 && labels <= 2;
        many += labels >= 5;
    }
    assert_true(none > 0 && few > 0 && many > 0);
    dsc_trainer_destroy(&trainer);
}

/* Everything else that is off by default. */
static void split_and_warmed_up(dsc_train_options *o) {
    kfac_of(o)->method = DSC_KFAC_INVERSE;
    kfac_of(o)->damping_split = DSC_KFAC_SPLIT_PI;
    kfac_of(o)->warmup_factors = 1;
    kfac_of(o)->clip = DSC_KFAC_CLIP_LAYER;
}

static void test_resume(void **state) {
    (void)state;
    char whole[SCRATCH_SIZE], out[SCRATCH_SIZE], name[32];
    dsc_train_options o;
    for (int i = 0; i < 8; i++) {
        int stop = 3 + i % 4;
        snprintf(name, sizeof name, "whole-%d", i);
        adapt_options(&o, folder(name, whole));
        if (i >= 4)
            split_and_warmed_up(&o);
        assert_ok(dsc_train_run(comm, device, &o, NULL));
        snprintf(name, sizeof name, "stop-%d", i);
        adapt_options(&o, folder(name, out));
        if (i >= 4)
            split_and_warmed_up(&o);
        o.steps = stop;
        assert_ok(dsc_train_run(comm, device, &o, NULL));
        o.steps = 0;
        o.resume = "auto";
        assert_ok(dsc_train_run(comm, device, &o, NULL));
        assert_int_equal(runs_differences(whole, out, 8), 0);
    }
    /* A checkpoint of a run that did not adapt goes on, and one that did without adapting. */
    adapt_options(&o, folder("from-plain", out));
    o.kfac_damping_adapt = 0;
    o.steps = 4;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.kfac_damping_adapt = 2;
    o.resume = "auto";
    o.steps = 6;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.kfac_damping_adapt = 0;
    o.steps = 8;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
}

/* A device that cannot record gives the same bits. */
static void test_recorded(void **state) {
    (void)state;
    char recorded[SCRATCH_SIZE], unrecorded[SCRATCH_SIZE];
    const dsc_device_table *table = device->table;
    dsc_device_table without = *table;
    dsc_train_options o;
    if (!dsc_device_records(device))
        skip();
    adapt_options(&o, folder("recorded", recorded));
    kfac_of(&o)->skip_layers = "^fc1$"; /* the large one */
    o.batch_size = 4;
    o.epochs = 8;
    o.steps = chosen_is_emulated(device) ? 12 : 40;
    o.kfac_damping_adapt = 3;
    o.checkpoint_every = -1;
    split_and_warmed_up(&o);
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.out = folder("unrecorded", unrecorded);
    without.record_begin = NULL;
    device->table = &without;
    dsc_status status = dsc_train_run(comm, device, &o, NULL);
    device->table = table;
    assert_ok(status);
    assert_int_equal(runs_differences(recorded, unrecorded, o.steps), 0);
}

/* A damping that drowns the factors is reported once, in log and metrics; an ordinary one never. */
static void test_degenerate(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    adapt_options(&o, NULL);
    o.kfac_damping_adapt = 0;
    o.batch_size = 2;
    o.steps = 160;
    o.epochs = 100;
    kfac_of(&o)->update_freq = 25;
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_null(strstr(warnings, "K-FAC has changed nothing"));
    kfac_of(&o)->damping = 1e4;
    o.out = folder("alarm", out);
    assert_ok(runs_noting(comm, device, &o, &warnings));
    const char *first =
        strstr(warnings, "K-FAC has changed nothing but the length of the gradients since step 0");
    assert_non_null(first);
    assert_null(strstr(first + 1, "K-FAC has changed nothing"));
    json_t *lines = runs_lines(out);
    assert_int_equal(runs_count(lines, "alarm"), 1);
    const char *text = json_string_value(json_object_get(runs_line(lines, "alarm", 0), "message"));
    assert_true(text && strncmp(text, first, strlen(text)) == 0);
    json_decref(lines);
}

static void test_refusals(void **state) {
    (void)state;
    dsc_train_options o;
    adapt_options(&o, NULL);
    o.kfac_damping_min = 1;
    o.kfac_damping_max = 0.5;
    assert_fails(DSC_E_INVALID, "kfac-damping-min 1 is above kfac-damping-max 0.5: exchange them",
                 dsc_train_run(comm, device, &o, NULL));
    adapt_options(&o, NULL);
    optim_of(&o)->kind = DSC_ADAM;
    assert_fails(DSC_E_INVALID, "use sgd, or kfac-damping-adapt 0", dsc_train_run(comm, device, &o, NULL));
    adapt_options(&o, NULL);
    kfac_of(&o)->inverse_dtype = DSC_F16;
    kfac_of(&o)->method = DSC_KFAC_INVERSE;
    assert_fails(DSC_E_INVALID, "kfac-damping-min 1e-06: 1/damping does not fit into fp16",
                 dsc_train_run(comm, device, &o, NULL));
    adapt_options(&o, NULL);
    o.kfac_damping_adapt = -1;
    assert_fails(DSC_E_INVALID, "kfac-damping-adapt -1", dsc_train_run(comm, device, &o, NULL));
    adapt_options(&o, NULL);
    consensus_of(&o)->kind = DSC_CONSENSUS_SGP;
    o.kfac_scope = DSC_SCOPE_LOCAL;
    assert_fails(DSC_E_INVALID, "use allreduce, or kfac-damping-adapt 0",
                 dsc_train_run(comm, device, &o, NULL));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),          cmocka_unit_test(test_quadratic),
        cmocka_unit_test(test_tried),         cmocka_unit_test(test_tried_head),
        cmocka_unit_test(test_no_trace),      cmocka_unit_test(test_follows),
        cmocka_unit_test(test_resume),        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_degenerate),
        cmocka_unit_test(test_masked_tokens),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    scratch_make(directory);
    runs_open(&comm, &device);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    scratch_remove(directory);
    return failed;
}

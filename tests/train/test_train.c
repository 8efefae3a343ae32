/* Whole runs in one process: metrics, checkpoints, stop and resume, failures, evaluation. */
#include "chosen.h"

#include "base/memory.h"
#include "device/ops.h"
#include "train/runs.h"
#include "train/safetensors.h"
#include "train/scratch.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static dsc_comm *comm;
static dsc_device *device;
static char directory[SCRATCH_SIZE];

static const char *folder(const char *name, char path[SCRATCH_SIZE]) {
    snprintf(path, SCRATCH_SIZE, "%s", scratch_path(directory, name));
    return path;
}

/* ---- options ---- */

static void test_options(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    static const struct {
        size_t offset;
        int64_t value;
        const char *message;
    } counts[] = {
        {offsetof(dsc_train_options, epochs), 0, "epochs 0: must be at least 1"},
        {offsetof(dsc_train_options, steps), -1, "steps -1"},
        {offsetof(dsc_train_options, batch_size), 0, "batch-size 0: must be at least 1"},
        {offsetof(dsc_train_options, batch_size), 65, "64 samples, a step takes 65"},
        {offsetof(dsc_train_options, val_batch_size), -1, "val-batch-size -1: must be at least 0"},
        {offsetof(dsc_train_options, batches_per_allreduce), 0,
         "batches-per-allreduce 0: must be at least 1"},
        {offsetof(dsc_train_options, keep), -1, "keep -1: must be at least 0"},
        {offsetof(dsc_train_options, eval_every), -1, "eval-every -1: must be at least 0"},
        {offsetof(dsc_train_options, log_every), -1, "log-every -1: must be at least 0"},
        {offsetof(dsc_train_options, check_every), -1, "check-every -1: must be at least 0"},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        runs_options(&o, NULL);
        memcpy((char *)&o + counts[i].offset, &counts[i].value, sizeof counts[i].value);
        assert_fails(DSC_E_INVALID, counts[i].message, dsc_train_run(comm, device, &o, &result));
        assert_int_equal(result.steps, 0);
        assert_true(result.top1 < 0);
    }
    static const struct {
        size_t offset;
        double value;
        const char *message;
    } reals[] = {
        {offsetof(dsc_train_options, lr), -2, "lr -2: must be at least 0"},
        {offsetof(dsc_train_options, lr), NAN, "must be a finite number"},
        {offsetof(dsc_train_options, warmup_epochs), -1, "warmup-epochs -1: must be at least 0"},
        {offsetof(dsc_train_options, warmup_start), INFINITY, "warmup-start inf: must be a finite number"},
        {offsetof(dsc_train_options, lr_decay_rate), NAN, "lr-decay-rate"},
        {offsetof(dsc_train_options, label_smoothing), 1,
         "label-smoothing 1: must be at least 0 and below 1"},
    };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        runs_options(&o, NULL);
        memcpy((char *)&o + reals[i].offset, &reals[i].value, sizeof reals[i].value);
        assert_fails(DSC_E_INVALID, reals[i].message, dsc_train_run(comm, device, &o, NULL));
    }
}

static void test_more_options(void **state) {
    (void)state;
    dsc_train_options o;
    runs_options(&o, NULL);
    o.lr_decay_count = DSC_MAX_DECAYS + 1;
    assert_fails(DSC_E_INVALID, "lr-decay with 33 values: 0 to 32 are allowed",
                 dsc_train_run(comm, device, &o, NULL));
    runs_options(&o, NULL);
    o.data_threads = 0;
    assert_fails(DSC_E_INVALID, "data-threads 0: must be at least 1", dsc_train_run(comm, device, &o, NULL));
    runs_options(&o, NULL);
    o.model = "resnet21";
    assert_fails(DSC_E_INVALID, "resnet21", dsc_train_run(comm, device, &o, NULL));
    runs_options(&o, NULL);
    o.model = NULL;
    assert_fails(DSC_E_INVALID, "model", dsc_train_run(comm, device, &o, NULL));
    runs_options(&o, NULL);
    o.resume = "auto";
    assert_fails(DSC_E_INVALID, "output directory", dsc_train_run(comm, device, &o, NULL));
    runs_options(&o, NULL);
    o.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_train_options_init", dsc_train_run(comm, device, &o, NULL));
    scratch_write(scratch_path(directory, "file"), "x", 1);
    runs_options(&o, scratch_path(directory, "file"));
    assert_fails(DSC_E_INVALID, "is a file, not a directory", dsc_train_run(comm, device, &o, NULL));
}

/* ---- metrics ---- */

static double number(json_t *line, const char *key) {
    json_t *value = json_object_get(line, key);
    if (!json_is_number(value))
        fail_msg("'%s' is not a number", key);
    return json_number_value(value);
}

static const char *text(json_t *line, const char *key) {
    const char *value = json_string_value(json_object_get(line, key));
    if (!value)
        fail_msg("'%s' is not a string", key);
    return value;
}

static void check_run_line(json_t *line) {
    assert_int_equal(number(line, "ranks"), 1);
    assert_int_equal(number(line, "parameters"), 3072 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10);
    assert_int_equal(json_array_size(json_object_get(line, "devices")), 1);
    text(line, "version");
    text(line, "build");
    json_t *config = json_object_get(line, "config");
    assert_string_equal(text(config, "model"), "mlp");
    assert_string_equal(text(config, "consensus"), "allreduce");
    assert_true(number(config, "lr") == 0.02);
    assert_string_equal(text(json_object_get(config, "optimizer"), "name"), "sgd");
}

static void check_step_line(json_t *line, int i) {
    static const char *const keys[] = {
        "time_s",         "loss",         "lr",        "images_per_s", "data",
        "forward",        "backward",     "exchange",  "factor",       "decompose",
        "update",         "precondition", "gradients", "factors",      "decompositions",
        "preconditioned", "parameters"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        assert_true(number(line, keys[k]) >= 0);
    assert_int_equal(number(line, "step"), i + 1);
    assert_int_equal(number(line, "epoch"), i / 4);
    assert_true(number(line, "loss") > 0);
    assert_true(number(line, "lr") == 0.02);
    assert_true(number(line, "forward") > 0);
    assert_true(number(line, "gradients") == 0); /* one rank sends nothing */
}

/* The utilisation in a line belongs to the rate in the same line, up to its rounding to four digits. */
static void check_utilisation(json_t *run, json_t *line) {
    const double flops = number(run, "flops_per_sample"), peak = number(run, "peak_flops_per_s");
    const double expected = number(line, "images_per_s") * 3 * flops / peak;
    assert_true(flops == 2.0 * (3072 * 256 + 256 * 128 + 128 * 10) && peak > 0);
    assert_true(fabs(number(line, "mfu") - expected) < 1e-4 + 1e-6 * expected);
}

static void test_metrics(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    runs_options(&o, folder("metrics", out));
    assert_ok(dsc_train_run(comm, device, &o, &result));
    json_t *lines = runs_lines(out);
    assert_int_equal(json_array_size(lines), 1 + 8 + 2 + 2 + 2 + 1);
    assert_int_equal(runs_count(lines, "step"), 8);
    check_run_line(runs_line(lines, "run", 0));
    for (int i = 0; i < 8; i++) {
        check_step_line(runs_line(lines, "step", i), i);
        check_utilisation(runs_line(lines, "run", 0), runs_line(lines, "step", i));
    }
    for (int e = 0; e < 2; e++) {
        json_t *epoch = runs_line(lines, "epoch", e), *eval = runs_line(lines, "eval", e);
        double mean = 0;
        for (int i = 0; i < 4; i++)
            mean += number(runs_line(lines, "step", 4 * e + i), "loss") / 4;
        assert_int_equal(number(epoch, "epoch"), e);
        assert_int_equal(number(epoch, "step"), 4 * (e + 1));
        assert_true(fabs(number(epoch, "loss") - mean) < 1e-12 * mean);
        assert_int_equal(number(eval, "epoch"), e);
        assert_int_equal(number(eval, "step"), 4 * (e + 1));
        assert_int_equal(number(eval, "images"), 12); /* a fifth of the training set; the batch is 16 */
        assert_true(number(eval, "top1") <= number(eval, "top5") && number(eval, "top5") <= 1);
        assert_true(number(eval, "time_s") > 0 && number(eval, "loss") > 0);
    }
    json_t *end = runs_line(lines, "end", 0);
    assert_string_equal(text(end, "status"), "done");
    assert_int_equal(number(end, "steps"), 8);
    assert_string_equal(text(runs_line(lines, "checkpoint", 1), "file"), "checkpoint-8.safetensors");
    assert_int_equal(number(runs_line(lines, "checkpoint", 1), "epoch"), 1);
    assert_int_equal(result.steps, 8);
    assert_int_equal(result.epochs, 2);
    assert_true(result.train_loss == number(runs_line(lines, "epoch", 1), "loss"));
    assert_true(result.top1 == number(runs_line(lines, "eval", 1), "top1"));
    assert_true(result.images_per_s > 0 && result.seconds > 0);
    check_utilisation(runs_line(lines, "run", 0), runs_line(lines, "epoch", 1));
    check_utilisation(runs_line(lines, "run", 0), end);
    assert_true(fabs(result.mfu - number(end, "mfu")) < 1e-4);
    json_decref(lines);
}

static void test_log_every(void **state) {
    (void)state;
    char a[SCRATCH_SIZE], b[SCRATCH_SIZE];
    dsc_train_options o;
    runs_options(&o, folder("every-1", a));
    o.eval_every = 0;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.out = folder("every-3", b);
    o.log_every = 3;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    json_t *lines = runs_lines(b);
    assert_int_equal(runs_count(lines, "step"), 2);
    assert_int_equal(runs_count(lines, "eval"), 0);
    json_decref(lines);
    assert_int_equal(runs_differences(a, b, 8), 0);
}

/* ---- which checkpoints there are ---- */

static void test_keep(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    runs_options(&o, folder("keep", out));
    o.epochs = 3;
    o.eval_every = 0;
    o.checkpoint_every = 2;
    o.keep = 1;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_int_equal(scratch_count(out, ".state.safetensors"), 2);
    assert_true(scratch_exists(out, "checkpoint-12.safetensors"));
    assert_true(scratch_exists(out, "checkpoint-10.safetensors"));
    json_t *lines = runs_lines(out);
    assert_int_equal(runs_count(lines, "checkpoint"), 6);
    json_decref(lines);

    runs_options(&o, folder("only-last", out));
    o.checkpoint_every = -1;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_int_equal(scratch_count(out, ".state.safetensors"), 1);
    assert_true(scratch_exists(out, "checkpoint-8.safetensors"));
}

/* At a rate this high accuracy goes up and down; the best evaluation's checkpoint must be among the files. */
static void test_best(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], name[64];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    runs_options(&o, folder("best", out));
    o.epochs = 8;
    o.keep = 0;
    o.lr = 0.1;
    assert_ok(dsc_train_run(comm, device, &o, &result));
    json_t *lines = runs_lines(out);
    double best = -1;
    int64_t step = 0;
    for (int i = 0; i < 8; i++) {
        json_t *line = runs_line(lines, "eval", i);
        if (number(line, "top1") > best) {
            best = number(line, "top1");
            step = (int64_t)number(line, "step");
        }
    }
    assert_true(result.best_top1 == best);
    snprintf(name, sizeof name, "checkpoint-%lld.safetensors", (long long)step);
    assert_true(scratch_exists(out, name));
    assert_true(scratch_exists(out, "checkpoint-32.safetensors"));
    assert_int_equal(scratch_count(out, ".state.safetensors"), step == 32 ? 1 : 2);
    assert_int_equal(number(runs_line(lines, "checkpoint", 7), "best_step"), step);
    json_decref(lines);
}

/* ---- stop and resume ---- */

typedef struct recipe {
    const char *model;
    dsc_optim_kind kind;
    int64_t micro;
} recipe;

static void resume_options(dsc_train_options *o, const recipe *r, const char *out) {
    runs_options(o, out);
    o->model = r->model;
    o->data = "synthetic:40"; /* 5 steps an epoch of 8 samples, or 3 of 12 and 4 left over */
    o->batch_size = r->micro > 1 ? 4 : 8;
    o->batches_per_allreduce = r->micro;
    optim_of(o)->kind = r->kind;
    o->lr = r->kind == DSC_SGD ? 0.02 : 0.001;
    o->warmup_epochs = 1;
    o->warmup_start = 0;
    o->epochs = 2;
}

/* Stops after step `stop`, goes on, and must end with the bits of the run that never stopped. */
static void check_resume(const recipe *r, int64_t stop, const char *name, const char *whole) {
    char out[SCRATCH_SIZE], file[64];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    resume_options(&o, r, folder(name, out));
    o.progress = runs_stop_at;
    o.progress_context = &stop;
    o.resume = "auto"; /* nothing there yet */
    assert_fails(DSC_E_INTERRUPTED, "stopped after step", dsc_train_run(comm, device, &o, &result));
    assert_in_range(result.steps, stop, stop + runs_lag(device));
    snprintf(file, sizeof file, "checkpoint-%lld.safetensors", (long long)result.steps);
    assert_true(scratch_exists(out, file));
    o.progress = NULL;
    assert_ok(dsc_train_run(comm, device, &o, &result));
    assert_int_equal(runs_differences(whole, out, result.steps), 0);
    json_t *a = runs_lines(whole), *b = runs_lines(out);
    assert_int_equal(runs_count(b, "run"), 2);
    assert_int_equal(runs_count(b, "step"), result.steps);
    for (int i = 0; i < 2; i++)
        assert_true(number(runs_line(a, "epoch", i), "loss") == number(runs_line(b, "epoch", i), "loss"));
    for (int i = 0; i < result.steps; i++) {
        json_t *x = runs_line(a, "step", i), *y = runs_line(b, "step", i);
        assert_true(number(x, "loss") == number(y, "loss") && number(x, "lr") == number(y, "lr"));
    }
    assert_string_equal(text(runs_line(b, "end", 0), "status"), "interrupted");
    assert_string_equal(text(runs_line(b, "end", 1), "status"), "done");
    json_decref(a);
    json_decref(b);
}

static void test_resume(void **state) {
    (void)state;
    static const recipe recipes[] = {{"resnet20", DSC_SGD, 1}, {"mlp", DSC_ADAM, 1}, {"lenet", DSC_LAMB, 3}};
    for (int i = 0; i < 3; i++) {
        char whole[SCRATCH_SIZE], name[64];
        dsc_train_options o;
        snprintf(name, sizeof name, "whole-%d", i);
        resume_options(&o, &recipes[i], folder(name, whole));
        assert_ok(dsc_train_run(comm, device, &o, NULL));
        const int64_t epoch = recipes[i].micro == 1 ? 5 : 3, stops[] = {2, epoch - 1, epoch, epoch + 1};
        for (int k = 0; k < 4; k++) {
            snprintf(name, sizeof name, "stopped-%d-%d", i, k);
            check_resume(&recipes[i], stops[k], name, whole);
        }
    }
}

/* The smallest of these runs, once. */
static void test_small_resume(void **state) {
    (void)state;
    static const recipe r = {"lenet", DSC_SGD, 1};
    char whole[SCRATCH_SIZE];
    dsc_train_options o;
    resume_options(&o, &r, folder("whole-small", whole));
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    check_resume(&r, 3, "stopped-small", whole);
}

/* A request made before the run begins counts as well, and is used up by it. */
static void test_stop_before(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    runs_options(&o, NULL);
    dsc_train_request_stop();
    assert_fails(DSC_E_INTERRUPTED, "after step", dsc_train_run(comm, device, &o, &result));
    assert_in_range(result.steps, 1, 1 + runs_lag(device));
    o.steps = 3;
    assert_ok(dsc_train_run(comm, device, &o, &result));
    assert_int_equal(result.steps, 3);
}

/* A finished run can be continued with more steps from its last checkpoint. Without more steps nothing is done. */
static void test_extend(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], other[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    runs_options(&o, folder("extend", out));
    o.steps = 6;
    assert_ok(dsc_train_run(comm, device, &o, &result));
    assert_int_equal(result.steps, 6);
    assert_int_equal(result.epochs, 1);
    assert_true(result.top1 >= 0); /* the last state is evaluated */
    assert_fails(DSC_E_INVALID, "of an earlier run", dsc_train_run(comm, device, &o, &result));
    o.resume = "auto";
    assert_ok(dsc_train_run(comm, device, &o, &result));
    assert_int_equal(result.steps, 6);
    o.steps = 0;
    o.resume = scratch_path(out, "checkpoint-6.safetensors");
    assert_ok(dsc_train_run(comm, device, &o, &result));
    assert_int_equal(result.steps, 8);
    o.resume = out; /* its latest, into another directory */
    o.out = folder("extended", other);
    o.epochs = 3;
    assert_ok(dsc_train_run(comm, device, &o, &result));
    assert_int_equal(result.steps, 12);
    assert_fails(DSC_E_INVALID, "of an earlier run", dsc_train_run(comm, device, &o, &result));
    json_t *lines = runs_lines(out);
    assert_int_equal(runs_count(lines, "run"), 3);
    assert_int_equal(runs_count(lines, "eval"), 3); /* steps 4, 6, 8 */
    assert_int_equal(runs_count(lines, "step"), 8);
    json_decref(lines);
}

/* The rest of a line that a killed process left is cut off. */
static void test_half_line(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    runs_options(&o, folder("half", out));
    o.steps = 2;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    FILE *file = fopen(scratch_path(out, "metrics.jsonl"), "a");
    assert_non_null(file);
    fputs("{\"kind\":\"step\",\"st", file);
    fclose(file);
    o.resume = "auto";
    o.steps = 3;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    json_t *lines = runs_lines(out); /* parses every line */
    assert_int_equal(runs_count(lines, "step"), 3);
    json_decref(lines);
}

static void test_resume_refuses(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    runs_options(&o, folder("refuse", out));
    o.checkpoint_every = 4;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.resume = "auto";
    o.model = "lenet";
    assert_fails(DSC_E_INVALID, "cannot change model: it is lenet now, but was mlp",
                 dsc_train_run(comm, device, &o, NULL));
    o.model = "mlp";
    o.resume = scratch_path(out, "checkpoint-5.safetensors");
    assert_fails(DSC_E_NOT_FOUND, "checkpoint-5", dsc_train_run(comm, device, &o, NULL));
    o.resume = scratch_path(out, "checkpoint-8.state.safetensors");
    assert_fails(DSC_E_INVALID, "name the model file", dsc_train_run(comm, device, &o, NULL));
    o.resume = scratch_path(out, "none");
    assert_fails(DSC_E_INVALID, "must end in", dsc_train_run(comm, device, &o, NULL));
    scratch_write(scratch_path(out, "checkpoint-8.safetensors"), "damaged damaged", 15);
    o.resume = out;
    assert_fails(DSC_E_FORMAT, "checkpoint-4.safetensors", dsc_train_run(comm, device, &o, NULL));
    assert_non_null(strstr(dsc_error_message(), "cannot resume from"));
    assert_non_null(strstr(dsc_error_message(), "it was cut short or is not a safetensors file"));
    o.resume = scratch_path(out, "checkpoint-4.safetensors");
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    scratch_write(scratch_path(out, "checkpoint-8.safetensors"), "damaged damaged", 15);
    o.resume = "auto"; /* takes an intact one */
    assert_ok(dsc_train_run(comm, device, &o, NULL));
}

/* ---- accumulation ---- */

/* |a - b| / |b - b0| over all parameters. */
static double relative_distance(const dsc_trainer *a, const dsc_trainer *b, const float *b0) {
    dsc_tensor ta = dsc_model_values(a->model), tb = dsc_model_values(b->model);
    float *x = runs_read(a->queue, &ta), *y = runs_read(b->queue, &tb);
    double apart = 0, travelled = 0;
    for (int64_t i = 0; i < dsc_tensor_count(&ta); i++) {
        apart += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        travelled += ((double)y[i] - b0[i]) * ((double)y[i] - b0[i]);
    }
    assert_true(travelled > 0);
    free(x);
    free(y);
    return sqrt(apart / travelled);
}

static dsc_trainer *stepped_on(dsc_device *on, const dsc_train_options *o, int steps, float **start) {
    dsc_trainer *t = NULL;
    assert_ok(dsc_trainer_create_named(comm, on, o, &t));
    dsc_tensor values = dsc_model_values(t->model);
    if (start)
        *start = runs_read(t->queue, &values);
    for (int i = 0; i < steps; i++) {
        assert_ok(dsc_trainer_step(t, NULL));
        if (dsc_trainer_epoch_done(t)) {
            t->state.epoch++;
            t->state.position = 0;
        }
    }
    assert_ok(dsc_trainer_collect(t));
    return t;
}

static dsc_trainer *stepped(const dsc_train_options *o, int steps) {
    return stepped_on(device, o, steps, NULL);
}

/* m micro-batches of b are one batch of m b. A gradient is a sum of at most batch * pixels terms, added in
 * another order: its relative error is about sqrt(terms) eps, that of the sum of 20 steps at most 20 times
 * as large; 8 for the constants of forward and backward. */
static void test_accumulation(void **state) {
    (void)state;
    static const char *const models[] = {"mlp", "lenet"};
    dsc_device *exact = chosen_open(chosen_exact_or("cpu"), 1);
    for (int i = 0; i < 2; i++) {
        dsc_train_options o;
        float *start;
        runs_options(&o, NULL);
        o.model = models[i];
        o.data = "synthetic:50";
        o.batch_size = 12;
        o.eval_every = 0;
        dsc_trainer *one = stepped_on(exact, &o, 20, &start);
        o.batch_size = 4;
        o.batches_per_allreduce = 3;
        dsc_trainer *many = stepped_on(exact, &o, 20, NULL);
        double limit = 8 * 20 * sqrt(12 * 1024) * 0x1p-24;
        double distance = relative_distance(many, one, start);
        if (!(distance <= limit))
            fail_msg("%s: distance %g, limit %g", models[i], distance, limit);
        assert_true(many->report.lr == one->report.lr);
        free(start);
        dsc_trainer_destroy(&one);
        dsc_trainer_destroy(&many);
    }
    dsc_device_destroy(&exact);
}

static void test_rates(void **state) {
    (void)state;
    dsc_train_options o;
    runs_options(&o, NULL);
    o.eval_every = 0;
    o.batch_size = 4;
    o.batches_per_allreduce = 4; /* 4 steps an epoch */
    o.lr_scaling = 1;
    o.lr = 0.01;
    o.warmup_epochs = 1;
    o.lr_decay[0] = 2;
    o.lr_decay_count = 1;
    dsc_trainer *t = stepped(&o, 1);
    assert_true(t->report.lr == 0.01); /* starts with lr */
    dsc_trainer_destroy(&t);
    t = stepped(&o, 5);
    assert_true(fabs(t->report.lr - 0.04) < 1e-15); /* reaches lr * ranks * batches */
    dsc_trainer_destroy(&t);
    t = stepped(&o, 9);
    assert_true(fabs(t->report.lr - 0.004) < 1e-15);
    dsc_trainer_destroy(&t);
}

/* ---- failures ---- */

static void test_not_finite(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    runs_options(&o, folder("nan", out));
    o.lr = 1e30;
    o.checkpoint_every = 1;
    o.eval_every = 0;
    assert_fails(DSC_E_NUMERIC, "nan/checkpoint-", dsc_train_run(comm, device, &o, &result));
    assert_non_null(strstr(dsc_error_message(), "the loss of step"));
    assert_true(result.steps >= 1 && result.steps < 8);
    json_t *lines = runs_lines(out);
    assert_string_equal(text(runs_line(lines, "end", 0), "status"), "failed");
    assert_non_null(strstr(text(runs_line(lines, "end", 0), "error"), "the loss of step"));
    json_decref(lines);

    runs_options(&o, folder("inf", out));
    o.lr = 1e300;
    o.checkpoint_every = 1;
    assert_fails(DSC_E_NUMERIC, "last good checkpoint: none", dsc_train_run(comm, device, &o, &result));
    assert_int_equal(scratch_count(out, ".safetensors"), 0);
}

/* A model whose statistics are not finite is not saved, even if all its parameters are. */
static void test_bad_statistics(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_trainer *t = NULL;
    runs_options(&o, folder("statistics", out));
    o.model = "resnet20";
    o.batch_size = 4;
    assert_ok(dsc_trainer_create_named(comm, device, &o, &t));
    assert_ok(dsc_trainer_begin(t));
    dsc_tensor mean = dsc_model_buffers(t->model)[0].value;
    assert_ok(dsc_op_fill(t->queue, NAN, &mean));
    assert_fails(DSC_E_NUMERIC, "batch-norm statistics are not finite", dsc_trainer_save(t, NULL));
    assert_int_equal(scratch_count(out, ".safetensors"), 0);
    dsc_trainer_destroy(&t);
}

static dsc_status run_limited(const dsc_train_options *o, rlim_t limit) {
    struct rlimit old, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = limit;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    dsc_status status = dsc_train_run(comm, device, o, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    return status;
}

static void test_disk_full(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    runs_options(&o, folder("full", out));
    o.steps = 4;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.steps = 0;
    o.resume = "auto";
    assert_int_equal(run_limited(&o, 100000), DSC_E_IO);
    assert_non_null(strstr(dsc_error_message(), "free some space"));
    assert_non_null(strstr(dsc_error_message(), "checkpoint-8"));
    assert_int_equal(scratch_count(out, ".tmp"), 0);
    assert_int_equal(scratch_count(out, ".state.safetensors"), 1);
    assert_ok(dsc_train_run(comm, device, &o, NULL)); /* the earlier checkpoint is whole */

    runs_options(&o, folder("full-metrics", out));
    o.checkpoint_every = -1;
    assert_int_equal(run_limited(&o, 3000), DSC_E_IO);
    assert_non_null(strstr(dsc_error_message(), "metrics.jsonl"));
}

/* ---- one run in a directory ---- */

/* Another process holds the lock until its input is closed. */
static pid_t hold(const char *out, int *input) {
    int go[2], ready[2];
    char byte = 0;
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dsc_lock *lock = NULL;
        close(go[1]);
        int good = dsc_lock_take(out, &lock) == DSC_OK && write(ready[1], &byte, 1) == 1;
        _exit(good && read(go[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(go[0]);
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *input = go[1];
    return child;
}

static void test_lock(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    int input, status;
    runs_options(&o, folder("lock", out));
    pid_t child = hold(out, &input);
    assert_fails(DSC_E_INVALID, "another run is writing into", dsc_train_run(comm, device, &o, NULL));
    o.resume = "auto";
    assert_fails(DSC_E_INVALID, "choose another output directory", dsc_train_run(comm, device, &o, NULL));
    assert_true(scratch_exists(out, "lock"));
    char file[64];
    scratch_write(scratch_path(out, "latest"), "x", 1);
    assert_fails(DSC_E_INVALID, "another run is writing into", dsc_train_find_run(out, file, sizeof file));
    assert_fails(DSC_E_INVALID, "another run is writing into", dsc_train_remove_run(out));
    assert_int_equal(unlink(scratch_path(out, "latest")), 0); /* still there */
    close(input);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(scratch_exists(out, "lock")); /* as a killed run leaves it */
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_false(scratch_exists(out, "lock"));
}

/* ---- another type ---- */

static double scale_of(const dsc_train_options *o) {
    dsc_trainer *t = NULL;
    double scale[2] = {0};
    assert_ok(dsc_trainer_create_named(comm, device, o, &t));
    assert_ok(dsc_trainer_begin(t));
    assert_ok(dsc_loss_scale_get(&t->loss_scale, t->queue, scale));
    dsc_trainer_destroy(&t);
    return scale[0];
}

/* A checkpoint of fp32 knows of no loss scale: fp16 goes on from it with the one that it always starts with.
 */
static void test_scale(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    runs_options(&o, folder("scale", out));
    o.eval_every = 0;
    o.steps = 1;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.resume = "auto";
    assert_true(scale_of(&o) == 1);
    if (dsc_device_is_host(device)) /* it has no fp16 */
        return;
    o.activations = DSC_F16;
    double resumed = scale_of(&o);
    o.resume = o.out = NULL;
    assert_true(resumed > 1 && resumed == scale_of(&o));
}

/* ---- no allocation in a step ---- */

typedef struct allocation_log {
    int64_t at[16];
} allocation_log;

static void note_allocations(void *context, const dsc_progress *progress) {
    allocation_log *log = context;
    if (progress->kind == DSC_EVENT_STEP && progress->step < 16)
        log->at[progress->step] = dsc_memory_allocations();
}

static void test_allocations(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    allocation_log log = {{0}};
    runs_options(&o, folder("allocations", out));
    o.model = "resnet20";
    o.data = "synthetic:80";
    o.batch_size = 4;
    o.batches_per_allreduce = 2;
    o.steps = 10;
    o.check_every = 0;
    o.progress = note_allocations;
    o.progress_context = &log;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_true(log.at[3] > 0);
    assert_int_equal(log.at[10], log.at[3]);
}

/* Every allocation before, in and after a step fails once: an error without a leak or a hang. */
static void test_memory(void **state) {
    (void)state;
    dsc_train_options o;
    runs_options(&o, NULL);
    o.model = "lenet";
    o.data = "synthetic:10";
    o.batch_size = 2;
    o.steps = 1;
    dsc_status status = DSC_E_MEMORY;
    int64_t nth = 0, stride = dsc_device_is_host(device) ? 1 : 37; /* a GPU takes longer to get ready */
    while (status == DSC_E_MEMORY && nth < 2000) {
        dsc_memory_fail_at(nth += stride);
        status = dsc_train_run(comm, device, &o, NULL);
    }
    dsc_memory_fail_at(0);
    assert_ok(status);
    assert_true(nth > 50);
}

/* ---- evaluation of a file ---- */

static void test_eval(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result trained = {.size = sizeof trained};
    dsc_eval_options e;
    dsc_eval_result result = {.size = sizeof result};
    runs_options(&o, folder("eval", out));
    o.model = "resnet20";
    o.data = "synthetic:100";
    o.val_batch_size = 7; /* the 20 images do not divide by it */
    o.epochs = 1;
    assert_ok(dsc_train_run(comm, device, &o, &trained));
    dsc_eval_options_init(&e);
    e.checkpoint = out;
    e.data = "synthetic:100";
    e.batch_size = 7;
    assert_ok(dsc_eval_run(comm, device, &e, &result));
    assert_int_equal(result.images, 20);
    assert_true(result.loss == trained.val_loss);
    assert_true(result.top1 == trained.top1 && result.top5 == trained.top5);
    e.checkpoint = scratch_path(out, "checkpoint-6.safetensors");
    e.model = "resnet20";
    assert_ok(dsc_eval_run(comm, device, &e, &result));
    e.model = "resnet32";
    assert_fails(DSC_E_INVALID, "of model resnet20, not of resnet32",
                 dsc_eval_run(comm, device, &e, &result));
    e.model = NULL;
    e.checkpoint = directory;
    assert_fails(DSC_E_NOT_FOUND, "holds no checkpoint", dsc_eval_run(comm, device, &e, &result));
    e.checkpoint = NULL;
    assert_fails(DSC_E_INVALID, "checkpoint", dsc_eval_run(comm, device, &e, &result));
    e.checkpoint = out;
    e.batch_size = 0;
    assert_fails(DSC_E_INVALID, "batch size 0", dsc_eval_run(comm, device, &e, &result));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),        cmocka_unit_test(test_more_options),
        cmocka_unit_test(test_metrics),        cmocka_unit_test(test_log_every),
        cmocka_unit_test(test_keep),           cmocka_unit_test(test_best),
        cmocka_unit_test(test_resume),         cmocka_unit_test(test_small_resume),
        cmocka_unit_test(test_stop_before),    cmocka_unit_test(test_extend),
        cmocka_unit_test(test_half_line),      cmocka_unit_test(test_resume_refuses),
        cmocka_unit_test(test_accumulation),   cmocka_unit_test(test_rates),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_allocations),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_eval),           cmocka_unit_test(test_scale),
        cmocka_unit_test(test_bad_statistics), cmocka_unit_test(test_lock),
    };
    if (argc > 1) /* only tests whose names are like this */
        cmocka_set_test_filter(argv[1]);
    scratch_make(directory);
    runs_open(&comm, &device);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    scratch_remove(directory);
    return failed;
}

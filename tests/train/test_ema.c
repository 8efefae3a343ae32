/* The moving average of the weights against sums that are computed here from the weights after each step; and runs that
 * are stopped and resumed. */
#include "descent/descent.h"
#include "test.h"
#include "train/runs.h"
#include "train/scratch.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 24, SIDE = 4, CLASSES = 3, BATCH = 8, STEPS = 7, MOST = 1000 };

static dsc_comm *comm;
static dsc_device *device;
static char directory[SCRATCH_SIZE];
static float images[COUNT * SIDE * SIDE * 3];
static int32_t labels[COUNT];

static int setup(void **state) {
    (void)state;
    runs_open(&comm, &device);
    scratch_make(directory);
    for (int i = 0; i < COUNT; i++)
        labels[i] = i % CLASSES;
    for (int i = 0; i < COUNT * SIDE * SIDE * 3; i++)
        images[i] = (float)sin(0.7 * i);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    scratch_remove(directory);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}

static dsc_dataset *data(void) {
    dsc_memory_data d;
    dsc_dataset *set = NULL;
    dsc_memory_data_init(&d);
    d.count = COUNT;
    d.h = d.w = SIDE;
    d.c = 3;
    d.classes = CLASSES;
    d.images = images;
    d.labels = labels;
    assert_ok(dsc_dataset_from_memory(&d, &set));
    return set;
}

static dsc_model *net(void) {
    dsc_model *m = NULL;
    dsc_value x;
    dsc_conv2d_shape conv;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, SIDE, SIDE, 3, &x));
    dsc_conv2d_shape_init(&conv);
    conv.out_c = 4;
    conv.kernel_h = conv.kernel_w = 3;
    assert_ok(dsc_model_conv2d(m, "conv", x, &conv, 0, &x));
    assert_ok(dsc_model_batch_norm(m, "bn", x, &x));
    assert_ok(dsc_model_relu(m, x, &x));
    assert_ok(dsc_model_flatten(m, x, &x));
    assert_ok(dsc_model_linear(m, "linear", x, CLASSES, 1, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

/* Parameters and running statistics of a model, in a row; returns how many. */
static int64_t read_all(dsc_queue *queue, const dsc_model *m, double out[MOST]) {
    int64_t count = 0;
    for (int64_t i = 0; i < dsc_model_param_count(m) + dsc_model_buffer_count(m); i++) {
        int64_t buffer = i - dsc_model_param_count(m);
        const dsc_param *p = buffer < 0 ? &dsc_model_params(m)[i] : &dsc_model_buffers(m)[buffer];
        if (p->value.dtype != DSC_F32)
            continue;
        float *host = runs_read(queue, &p->value);
        for (int64_t k = 0; k < dsc_tensor_count(&p->value); k++) {
            assert_true(count < MOST);
            out[count++] = host[k];
        }
        free(host);
    }
    return count;
}

/* After 7 steps the file holds sum_k d^(7-k) x_k / sum_k d^(7-k), k = 1 .. 7, and training goes on from the weights
 * themselves. Each step rounds once or twice to eps |x|, so does the file. */
static void test_formula(void **state) {
    (void)state;
    static double now[MOST], sum[MOST], saved[MOST];
    const double decay = 0.75;
    double weight = 0;
    int64_t count = 0;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_trainer *trainer = NULL;
    dsc_model *model = net(), *average = net();
    dsc_dataset *set = data();
    dsc_train_options_init(&o);
    snprintf(out, sizeof out, "%s", scratch_path(directory, "formula"));
    o.batch_size = BATCH;
    o.lr = 0.2;
    o.ema = decay;
    memset(sum, 0, sizeof sum);
    assert_ok(dsc_trainer_create(comm, device, model, set, NULL, &o, &trainer));
    for (int step = 0; step < STEPS; step++) {
        assert_ok(dsc_trainer_step(trainer, NULL));
        count = read_all(dsc_trainer_queue(trainer), model, now);
        for (int64_t i = 0; i < count; i++)
            sum[i] = decay * sum[i] + now[i];
        weight = decay * weight + 1;
    }
    assert_ok(dsc_trainer_save(trainer, out));
    read_all(dsc_trainer_queue(trainer), model, saved);
    assert_memory_equal(now, saved, sizeof now);
    assert_ok(dsc_model_load(average, scratch_path(out, "checkpoint-7.ema.safetensors"), NULL, NULL));
    assert_int_equal(read_all(dsc_trainer_queue(trainer), average, saved), count);
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double bound = 4 * STEPS * FLT_EPSILON * fmax(1, fabs(sum[i] / weight));
        if (!(fabs(saved[i] - sum[i] / weight) <= bound))
            fail_msg("number %lld is %.9g instead of %.9g", (long long)i, saved[i], sum[i] / weight);
        largest = fmax(largest, fabs(saved[i] - now[i]));
    }
    assert_true(largest > 0.001); /* the weights themselves are elsewhere */
    dsc_trainer_destroy(&trainer);
    dsc_dataset_close(&set);
    dsc_model_destroy(&average);
    dsc_model_destroy(&model);
}

static void options(dsc_train_options *o, const char *out) {
    runs_options(o, out);
    o->model = "resnet20"; /* has batch norms */
    o->data = "synthetic:16";
    o->batch_size = 4;
    o->ema = 0.5;
}

/* A run that is stopped in the middle of an epoch and resumed ends with the same bits, average included. */
static void test_resume(void **state) {
    (void)state;
    char whole[SCRATCH_SIZE], parts[SCRATCH_SIZE];
    int64_t stop = 3;
    dsc_train_options o;
    snprintf(whole, sizeof whole, "%s", scratch_path(directory, "whole"));
    snprintf(parts, sizeof parts, "%s", scratch_path(directory, "parts"));
    options(&o, whole);
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    options(&o, parts);
    o.progress = runs_stop_at;
    o.progress_context = &stop;
    assert_fails(DSC_E_INTERRUPTED, "stopped after step", dsc_train_run(comm, device, &o, NULL));
    o.progress = NULL;
    o.resume = "auto";
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_true(scratch_exists(parts, "checkpoint-8.ema.safetensors"));
    assert_int_equal(runs_differences(whole, parts, 8), 0);
    json_t *a = runs_lines(whole), *b = runs_lines(parts);
    for (int i = 0; i < 2; i++) {
        static const char *const keys[] = {"ema_loss", "ema_top1", "ema_top5", "loss"};
        for (int k = 0; k < 4; k++) {
            json_t *x = json_object_get(runs_line(a, "eval", i), keys[k]);
            assert_true(json_is_real(x) && json_equal(x, json_object_get(runs_line(b, "eval", i), keys[k])));
        }
    }
    json_decref(a);
    json_decref(b);
}

/* The average changes nothing in the training; it can be switched on or off when a run is resumed. */
static void test_come_and_go(void **state) {
    (void)state;
    char with[SCRATCH_SIZE], without[SCRATCH_SIZE];
    dsc_train_options o;
    snprintf(with, sizeof with, "%s", scratch_path(directory, "with"));
    snprintf(without, sizeof without, "%s", scratch_path(directory, "without"));
    options(&o, with);
    o.epochs = 1;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    options(&o, without);
    o.ema = 0;
    o.epochs = 1;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_false(scratch_exists(without, "checkpoint-4.ema.safetensors"));
    o.ema = 0.5;
    o.epochs = 2;
    o.resume = "auto";
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_true(scratch_exists(without, "checkpoint-8.ema.safetensors"));
    options(&o, with);
    o.ema = 0;
    o.resume = "auto";
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_false(scratch_exists(with, "checkpoint-8.ema.safetensors"));
    size_t bytes[2];
    char *a = scratch_read(scratch_path(with, "checkpoint-8.safetensors"), &bytes[0]),
         *b = scratch_read(scratch_path(without, "checkpoint-8.safetensors"), &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(a, b, bytes[0]);
    free(a);
    free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_come_and_go),
    };
    return cmocka_run_group_tests_name("ema", tests, setup, teardown);
}

/* The public trainer with the caller's own model and data, used as by a program outside the library. */
#include "descent/descent.h"
#include "test.h"
#include "train/kfac_setup.h"
#include "train/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 96, FEATURES = 6, CLASSES = 3, BATCH = 16 };

static dsc_comm *comm;
static dsc_device *device;
static float images[COUNT * FEATURES];
static int32_t labels[COUNT];

static int setup(void **state) {
    dsc_comm_options o;
    dsc_device_options d;
    (void)state;
    dsc_comm_options_init(&o);
    o.kind = "self";
    assert_ok(dsc_comm_create(&o, &comm));
    dsc_device_options_init(&d);
    d.name = "cpu";
    d.threads = 1;
    assert_ok(dsc_device_create(&d, &device));
    for (int i = 0; i < COUNT; i++) { /* class i mod 3 has large values in two of the six features */
        labels[i] = i % CLASSES;
        for (int j = 0; j < FEATURES; j++)
            images[i * FEATURES + j] = (float)((j / 2 == i % CLASSES) + 0.1 * sin(7.0 * i + j));
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}

static dsc_dataset *data(int64_t count) {
    dsc_memory_data d;
    dsc_dataset *set = NULL;
    dsc_memory_data_init(&d);
    d.name = "features";
    d.count = count;
    d.h = d.w = 1;
    d.c = FEATURES;
    d.classes = CLASSES;
    d.images = images;
    d.labels = labels;
    assert_ok(dsc_dataset_from_memory(&d, &set));
    return set;
}

static dsc_model *net(void) {
    dsc_model_options o;
    dsc_model *m = NULL;
    dsc_value x;
    dsc_model_options_init(&o);
    o.name = "two-layers";
    assert_ok(dsc_model_create(device, &o, &m));
    assert_string_equal(dsc_model_name(m), "two-layers");
    assert_ok(dsc_model_input(m, 1, 1, FEATURES, &x));
    assert_ok(dsc_model_flatten(m, x, &x));
    assert_ok(dsc_model_linear(m, "hidden", x, 16, 1, &x));
    assert_ok(dsc_model_relu(m, x, &x));
    assert_ok(dsc_model_linear(m, "output", x, CLASSES, 1, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

static dsc_train_options options(void) {
    dsc_train_options o;
    dsc_train_options_init(&o);
    o.epochs = 4;
    o.batch_size = BATCH;
    o.lr = 0.05;
    return o;
}

/* A trainer with what it works on. */
typedef struct bundle {
    dsc_model *model;
    dsc_dataset *train, *val;
    dsc_trainer *trainer;
} bundle;

static bundle make(const dsc_train_options *o) {
    bundle b = {.model = net(), .train = data(COUNT), .val = data(COUNT / 2)};
    assert_ok(dsc_trainer_create(comm, device, b.model, b.train, b.val, o, &b.trainer));
    return b;
}

static void drop(bundle *b) {
    dsc_trainer_destroy(&b->trainer);
    dsc_model_destroy(&b->model);
    dsc_dataset_close(&b->val);
    dsc_dataset_close(&b->train);
}

/* All parameters, in new memory that the caller frees. */
static double *values(const bundle *b) {
    dsc_tensor t = dsc_model_values(b->model);
    float *host = malloc(dsc_tensor_bytes(&t));
    double *out = malloc((size_t)dsc_tensor_count(&t) * sizeof *out);
    assert_non_null(host);
    assert_non_null(out);
    assert_ok(dsc_tensor_download(dsc_trainer_queue(b->trainer), &t, dsc_tensor_bytes(&t), host));
    assert_ok(dsc_queue_sync(dsc_trainer_queue(b->trainer)));
    for (int64_t i = 0; i < dsc_tensor_count(&t); i++)
        out[i] = host[i];
    free(host);
    return out;
}

static void assert_same_values(const bundle *a, const bundle *b) {
    double *x = values(a), *y = values(b);
    assert_memory_equal(x, y, (size_t)dsc_model_parameter_total(a->model) * sizeof *x);
    free(x);
    free(y);
}

/* A run with the caller's own net learns, with K-FAC as well; its result agrees with what the trainer reports. */
static void test_run(void **state) {
    dsc_kfac_options kfac;
    (void)state;
    dsc_kfac_options_init(&kfac);
    for (int with_kfac = 0; with_kfac < 2; with_kfac++) {
        dsc_train_options o = options();
        dsc_train_result result = {.size = sizeof result};
        o.kfac = with_kfac ? &kfac : NULL;
        bundle b = make(&o);
        assert_int_equal(dsc_trainer_kfac(b.trainer) != NULL, with_kfac);
        assert_ok(dsc_trainer_run(b.trainer, &result));
        assert_int_equal(result.steps, 4 * (COUNT / BATCH));
        assert_int_equal(dsc_trainer_steps(b.trainer), result.steps);
        assert_true(dsc_trainer_is_done(b.trainer));
        assert_true(result.top1 > 0.9 && result.train_loss < 1);
        drop(&b);
    }
}

/* Single steps give the same bits as a run; reports count steps and epochs. */
static void test_steps(void **state) {
    dsc_train_options o = options();
    (void)state;
    bundle by_run = make(&o), by_hand = make(&o);
    dsc_step_report report = {.size = sizeof report};
    assert_ok(dsc_trainer_run(by_run.trainer, NULL));
    for (int64_t i = 1; !dsc_trainer_is_done(by_hand.trainer); i++) {
        assert_ok(dsc_trainer_step(by_hand.trainer, &report));
        assert_int_equal(report.step, i);
        assert_int_equal(report.epoch, (i - 1) / (COUNT / BATCH));
        assert_true(report.loss > 0 && isnan(report.nu) && report.seconds >= 0);
        assert_true(report.phase_ms[DSC_PHASE_FORWARD] > 0);
    }
    assert_int_equal(dsc_trainer_steps(by_hand.trainer), 4 * (COUNT / BATCH));
    assert_int_equal(dsc_trainer_epoch(by_hand.trainer), 4);
    assert_same_values(&by_run, &by_hand);
    drop(&by_run);
    drop(&by_hand);
}

/* Steps on batches that the caller hands in, without training data. */
static void test_batches(void **state) {
    const int64_t shape[4] = {BATCH, 1, 1, FEATURES};
    dsc_train_options o = options();
    dsc_step_report first = {.size = sizeof first}, last = {.size = sizeof last};
    dsc_train_result result = {.size = sizeof result};
    dsc_trainer *t = NULL;
    dsc_tensor x, y;
    (void)state;
    dsc_model *m = net();
    o.epoch_steps = 10;
    assert_ok(dsc_trainer_create(comm, device, m, NULL, NULL, &o, &t));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 4, shape, &x));
    assert_ok(dsc_tensor_alloc(device, DSC_I32, 1, shape, &y));
    assert_ok(dsc_tensor_upload(dsc_trainer_queue(t), images, dsc_tensor_bytes(&x), &x));
    assert_ok(dsc_tensor_upload(dsc_trainer_queue(t), labels, dsc_tensor_bytes(&y), &y));
    assert_ok(dsc_trainer_step_on(t, &x, &y, &first));
    for (int i = 0; i < 30; i++)
        assert_ok(dsc_trainer_step_on(t, &x, &y, &last));
    assert_int_equal(last.step, 31);
    assert_int_equal(last.epoch, 3);
    assert_true(last.loss < first.loss);
    assert_fails(DSC_E_INVALID, "without training data", dsc_trainer_step(t, NULL));
    assert_fails(DSC_E_INVALID, "without training data", dsc_trainer_run(t, &result));
    assert_int_equal(result.steps, 31);
    assert_fails(DSC_E_INVALID, "no validation set", dsc_trainer_evaluate(t, NULL, NULL));
    dsc_tensor_free(&x);
    dsc_tensor_free(&y);
    dsc_trainer_destroy(&t);
    dsc_model_destroy(&m);
}

/* A trainer that resumes goes on with the bits of the one that never stopped; evaluation of the two agrees, on
 * the validation set and on another. */
static void test_resume(void **state) {
    char folder[SCRATCH_SIZE];
    dsc_train_options o = options();
    dsc_eval_result a = {.size = sizeof a}, b = {.size = sizeof b}, other = {.size = sizeof other};
    (void)state;
    scratch_make(folder);
    bundle whole = make(&o), half = make(&o), rest = make(&o);
    for (int i = 0; i < 14; i++)
        assert_ok(dsc_trainer_step(whole.trainer, NULL));
    for (int i = 0; i < 7; i++)
        assert_ok(dsc_trainer_step(half.trainer, NULL));
    assert_ok(dsc_trainer_save(half.trainer, folder));
    assert_ok(dsc_trainer_resume(rest.trainer, folder));
    assert_int_equal(dsc_trainer_steps(rest.trainer), 7);
    for (int i = 0; i < 4; i++) { /* more than options.keep: all stay, it is not the output directory */
        assert_ok(dsc_trainer_step(half.trainer, NULL));
        assert_ok(dsc_trainer_save(half.trainer, folder));
    }
    assert_int_equal(scratch_count(folder, ".state.safetensors"), 5);
    for (int i = 0; i < 7; i++)
        assert_ok(dsc_trainer_step(rest.trainer, NULL));
    assert_same_values(&whole, &rest);
    assert_ok(dsc_trainer_evaluate(whole.trainer, NULL, &a));
    assert_ok(dsc_trainer_evaluate(rest.trainer, NULL, &b));
    assert_int_equal(a.images, COUNT / 2);
    assert_true(a.loss == b.loss && a.top1 == b.top1);
    assert_ok(dsc_trainer_evaluate(rest.trainer, rest.train, &other));
    assert_int_equal(other.images, COUNT);
    assert_ok(dsc_model_evaluate(comm, rest.model, rest.val, 7, &other));
    assert_true(other.images == COUNT / 2 && fabs(other.loss - a.loss) < 1e-6 * fabs(a.loss));
    assert_fails(DSC_E_INVALID, "has begun", dsc_trainer_resume(rest.trainer, folder));
    assert_fails(DSC_E_INVALID, "NULL", dsc_trainer_resume(half.trainer, NULL));
    drop(&whole);
    drop(&half);
    drop(&rest);
    scratch_remove(folder);
}

/* A model and data that do not fit together are refused when the trainer is created. */
static void test_refused(void **state) {
    dsc_train_options o = options();
    dsc_trainer *t = NULL;
    dsc_model *open = NULL;
    dsc_dataset *images_of_32 = NULL, *train = data(COUNT);
    (void)state;
    dsc_model *m = net();
    assert_ok(dsc_model_create(device, NULL, &open));
    assert_ok(dsc_dataset_open("synthetic:64", DSC_SPLIT_TRAIN, NULL, &images_of_32));
    assert_fails(DSC_E_INVALID, "sealed", dsc_trainer_create(comm, device, open, train, NULL, &o, &t));
    assert_fails(DSC_E_INVALID, "sealed", dsc_trainer_create(comm, device, NULL, train, NULL, &o, &t));
    assert_fails(DSC_E_INVALID, "32x32x3", dsc_trainer_create(comm, device, m, images_of_32, NULL, &o, &t));
    o.batch_size = COUNT + 1;
    assert_fails(DSC_E_INVALID, "smaller batch", dsc_trainer_create(comm, device, m, train, NULL, &o, &t));
    dsc_train_result unset = {0};
    o = options();
    assert_ok(dsc_trainer_create(comm, device, m, train, NULL, &o, &t));
    assert_fails(DSC_E_INVALID, "size", dsc_trainer_run(t, &unset));
    assert_fails(DSC_E_INVALID, "directory", dsc_trainer_save(t, NULL));
    dsc_trainer_destroy(&t);
    dsc_trainer_destroy(&t);
    dsc_trainer_destroy(NULL);
    dsc_dataset_close(&train);
    dsc_dataset_close(&images_of_32);
    dsc_model_destroy(&open);
    dsc_model_destroy(&m);
}

/* A batch that does not fit is refused before anything happens: on a GPU a recorded step would take it as it
 * is. */
static void test_wrong_batches(void **state) {
    const int64_t shape[4] = {BATCH, 1, 1, FEATURES}, half[4] = {BATCH / 2, 1, 1, FEATURES};
    dsc_train_options o = options();
    dsc_trainer *t = NULL;
    dsc_device *other = NULL;
    dsc_tensor x, y, elsewhere;
    (void)state;
    dsc_model *m = net();
    assert_ok(dsc_device_create(NULL, &other));
    assert_ok(dsc_trainer_create(comm, device, m, NULL, NULL, &o, &t));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 4, shape, &x));
    assert_ok(dsc_tensor_alloc(device, DSC_I32, 1, shape, &y));
    assert_ok(dsc_tensor_alloc(other, DSC_F32, 4, shape, &elsewhere));
    dsc_tensor short_x = dsc_tensor_view(device, x.data, DSC_F32, 4, half);
    dsc_tensor short_y = dsc_tensor_view(device, y.data, DSC_I32, 1, half);
    dsc_tensor real_y = dsc_tensor_view(device, x.data, DSC_F32, 1, shape);
    assert_ok(dsc_op_fill(dsc_trainer_queue(t), 1, &x));
    assert_ok(dsc_op_fill(dsc_trainer_queue(t), 1, &y));
    assert_fails(DSC_E_INVALID, "NULL", dsc_trainer_step_on(t, NULL, &y, NULL));
    assert_fails(DSC_E_INVALID, "NULL", dsc_trainer_step_on(t, &x, NULL, NULL));
    assert_fails(DSC_E_INVALID, "[8,1,1,6]", dsc_trainer_step_on(t, &short_x, &y, NULL));
    assert_fails(DSC_E_INVALID, "labels", dsc_trainer_step_on(t, &x, &short_y, NULL));
    assert_fails(DSC_E_INVALID, "labels", dsc_trainer_step_on(t, &x, &real_y, NULL));
    assert_fails(DSC_E_INVALID, "device", dsc_trainer_step_on(t, &elsewhere, &y, NULL));
    assert_int_equal(dsc_trainer_steps(t), 0);
    assert_ok(dsc_trainer_step_on(t, &x, &y, NULL));
    dsc_step_report unset = {0};
    assert_fails(DSC_E_INVALID, "size", dsc_trainer_step_on(t, &x, &y, &unset));
    assert_int_equal(dsc_trainer_steps(t), 1);
    dsc_tensor_free(&x);
    dsc_tensor_free(&y);
    dsc_tensor_free(&elsewhere);
    dsc_trainer_destroy(&t);
    dsc_model_destroy(&m);
    dsc_device_destroy(&other);
}

static void stop_at_5(void *context, const dsc_progress *progress) {
    (void)context;
    if (progress->kind == DSC_EVENT_STEP && progress->step == 5)
        dsc_train_request_stop();
}

/* A run that was asked to stop goes on when it is called again, and gives the bits of one that never
 * stopped. */
static void test_run_again(void **state) {
    dsc_train_options o = options();
    dsc_train_result result = {.size = sizeof result};
    (void)state;
    bundle whole = make(&o);
    o.progress = stop_at_5;
    bundle twice = make(&o);
    assert_ok(dsc_trainer_run(whole.trainer, NULL));
    assert_fails(DSC_E_INTERRUPTED, "stopped after step 6", dsc_trainer_run(twice.trainer, &result));
    assert_int_equal(result.steps, 6);
    assert_ok(dsc_trainer_run(twice.trainer, &result));
    assert_int_equal(result.steps, 4 * (COUNT / BATCH));
    assert_same_values(&whole, &twice);
    assert_ok(dsc_trainer_run(twice.trainer, &result)); /* at the end there is nothing left to do */
    assert_int_equal(result.steps, 4 * (COUNT / BATCH));
    drop(&whole);
    drop(&twice);
}

/* A request to stop ends when the trainer that has reported it is destroyed. */
static void test_stop_of_steps(void **state) {
    dsc_train_options o = options();
    dsc_step_report report = {.size = sizeof report};
    (void)state;
    for (int stop = 1; stop >= 0; stop--) {
        bundle b = make(&o);
        if (stop)
            dsc_train_request_stop();
        assert_ok(dsc_trainer_step(b.trainer, &report));
        assert_int_equal(report.stop_requested, stop);
        drop(&b);
    }
}

/* A trainer created with options.resume is at the step of the checkpoint before its own first step. */
static void test_made_to_resume(void **state) {
    char folder[SCRATCH_SIZE];
    dsc_train_options o = options();
    (void)state;
    scratch_make(folder);
    bundle first = make(&o);
    assert_ok(dsc_trainer_run(first.trainer, NULL));
    assert_ok(dsc_trainer_save(first.trainer, folder));
    o.resume = folder;
    bundle second = make(&o);
    assert_int_equal(dsc_trainer_steps(second.trainer), 4 * (COUNT / BATCH));
    assert_true(dsc_trainer_is_done(second.trainer));
    assert_same_values(&first, &second);
    drop(&first);
    drop(&second);
    scratch_remove(folder);
}

/* Attempts to resume that fail leave a trainer that can try again. */
static void test_resume_refused(void **state) {
    dsc_train_options o = options();
    (void)state;
    bundle b = make(&o);
    assert_fails(DSC_E_INVALID, "output directory", dsc_trainer_resume(b.trainer, "auto"));
    assert_fails(DSC_E_NOT_FOUND, "nowhere", dsc_trainer_resume(b.trainer, "nowhere.safetensors"));
    assert_fails(DSC_E_NOT_FOUND, "elsewhere", dsc_trainer_resume(b.trainer, "elsewhere.safetensors"));
    drop(&b);
}

static void count_differences(void *context, const dsc_progress *progress) {
    if (progress->kind == DSC_EVENT_NOTE &&
        (strstr(progress->text, "other options") || strstr(progress->text, "not compared")))
        ++*(int *)context;
}

/* Options about model and data are ignored, and the file `config` names the actual model and data. */
static void test_unused_options(void **state) {
    char folder[SCRATCH_SIZE], path[SCRATCH_SIZE + 8], line[256];
    dsc_train_options o = options();
    int found = 0, differences = 0;
    (void)state;
    scratch_make(folder);
    o.model = "not a model";
    o.data = NULL;
    o.out = folder;
    o.epochs = 1;
    bundle b = make(&o);
    assert_ok(dsc_trainer_run(b.trainer, NULL));
    drop(&b);
    snprintf(path, sizeof path, "%s/config", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        found += strcmp(line, "model = two-layers\n") == 0 || strcmp(line, "data = features\n") == 0;
    fclose(file);
    assert_int_equal(found, 2);
    o.resume = "auto"; /* which finds these options in `config` again */
    o.progress = count_differences;
    o.progress_context = &differences;
    b = make(&o);
    drop(&b);
    assert_int_equal(differences, 0);
    scratch_remove(folder);
}

/* A validation set of other images is refused at once; one that is passed to an evaluation is refused then, and
 * training can continue. */
static void test_wrong_validation(void **state) {
    dsc_train_options o = options();
    dsc_trainer *t = NULL;
    dsc_dataset *other = NULL;
    dsc_eval_result result = {.size = sizeof result};
    (void)state;
    assert_ok(dsc_dataset_open("synthetic:64", DSC_SPLIT_TRAIN, NULL, &other));
    bundle b = make(&o);
    assert_fails(DSC_E_INVALID, "32x32x3", dsc_trainer_create(comm, device, b.model, b.train, other, &o, &t));
    assert_fails(DSC_E_INVALID, "[16,32,32,3]", dsc_trainer_evaluate(b.trainer, other, &result));
    assert_ok(dsc_trainer_step(b.trainer, NULL));
    assert_ok(dsc_trainer_evaluate(b.trainer, NULL, &result));
    drop(&b);
    dsc_dataset_close(&other);
}

/* The layers of a model as K-FAC takes them. */
static void test_layers(void **state) {
    dsc_kfac_layer *layers = NULL;
    int64_t count = 0;
    (void)state;
    dsc_model *m = net();
    assert_ok(dsc_kfac_layers_of_model(m, &layers, &count));
    assert_int_equal(count, 2);
    assert_string_equal(layers[0].name, "hidden");
    assert_int_equal(layers[1].kind, DSC_KFAC_LINEAR);
    assert_true(layers[0].weight_grad.data == dsc_model_params(m)[0].grad.data);
    dsc_kfac_layers_free(&layers);
    assert_null(layers);
    dsc_kfac_layers_free(&layers);
    dsc_kfac_layers_free(NULL);
    dsc_model_destroy(&m);
}

/* Layers that read the same value share an A: BERT's queries, keys and values, and nothing else. */
static void test_same_inputs(void **state) {
    dsc_kfac_layer *layers = NULL;
    dsc_model *m = NULL;
    int64_t count = 0, query = -1, readers = 0;
    (void)state;
    assert_ok(dsc_zoo_create(device, "bert-base:layers=2,heads=2,width=8", 4, 1, 1, 11, NULL, &m));
    assert_ok(dsc_kfac_layers_of_model(m, &layers, &count));
    for (int64_t i = 0; i < count; i++) {
        int is_query = strstr(layers[i].name, "self.query") != NULL;
        int is_reader = strstr(layers[i].name, "self.key") || strstr(layers[i].name, "self.value");
        query = is_query ? i : query;
        assert_int_equal(layers[i].same_input, is_reader ? query + 1 : 0);
        assert_int_equal(layers[i].leave_out, 0);
        readers += is_reader;
    }
    assert_int_equal(readers, 4);
    dsc_kfac_layers_free(&layers);
    dsc_model_destroy(&m);
}

/* A language model's own head is left out where it has more than 1024 tokens. */
static void test_large_head(void **state) {
    (void)state;
    for (int64_t tokens = 1024; tokens <= 1025; tokens++) {
        dsc_kfac_layer *layers = NULL;
        dsc_model *m = NULL;
        dsc_value x;
        int64_t count = 0;
        assert_ok(dsc_model_create(device, NULL, &m));
        assert_ok(dsc_model_tokens(m, 3, &x));
        assert_ok(dsc_model_embedding(m, "table", x, tokens, 4, 0.02, &x));
        assert_ok(dsc_model_linear(m, "wide", x, 1100, 1, &x));
        assert_ok(dsc_model_linear(m, "head", x, tokens, 1, &x));
        assert_ok(dsc_model_seal(m, x));
        assert_ok(dsc_kfac_layers_of_model(m, &layers, &count));
        assert_int_equal(count, 2);
        assert_int_equal(layers[0].leave_out, 0);
        assert_int_equal(layers[1].leave_out, tokens > 1024);
        dsc_kfac_layers_free(&layers);
        dsc_model_destroy(&m);
    }
}

/* A model with a table of tokens and one of positions. */
enum { TOKENS = 7, LENGTH = 3, WIDTH = 4, SEQUENCES = 2 };

static dsc_model *table_net(int tied) {
    dsc_model *m = NULL;
    dsc_value x, table;
    dsc_linear_options head;
    dsc_linear_options_init(&head);
    head.bias = 0;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_tokens(m, LENGTH, &x));
    assert_ok(dsc_model_embedding(m, "wte", x, TOKENS, WIDTH, 0.02, &table));
    assert_ok(dsc_model_position_embedding(m, "wpe", table, 0.02, &x));
    if (tied)
        head.tied = table;
    assert_ok(dsc_model_linear(m, "mixed", x, WIDTH, 1, &x));
    assert_ok(dsc_model_linear_with(m, "head", x, TOKENS, &head, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

/* K-FAC gets norms and tables if the options ask for them; a table that a head shares is marked as left out. The
 * head itself is listed if it shares a table and the options ask for it. */
static void test_tables(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        int tied = i % 2, on = i / 2 % 2, heads = i / 4;
        dsc_kfac_layer *layers = NULL;
        dsc_kfac_options options;
        dsc_model *m = table_net(tied);
        int64_t count = 0, linear = dsc_model_layer_count(m);
        dsc_kfac_options_init(&options);
        options.embeddings = on;
        options.tied_head = heads ? DSC_KFAC_TIED_INPUT : DSC_KFAC_TIED_SKIP;
        assert_ok(dsc_kfac_setup_layers(m, &options, &layers, &count));
        assert_int_equal(linear, tied ? 1 : 2);
        assert_int_equal(count, linear + (on ? 2 : 0) + (heads && tied));
        if (heads && tied) {
            const dsc_kfac_layer *head = &layers[count - 1];
            assert_string_equal(head->name, "head");
            assert_int_equal(head->kind, DSC_KFAC_TIED_HEAD);
            assert_int_equal(head->in_c, WIDTH);
            assert_int_equal(head->out_c, TOKENS);
            assert_ptr_equal(head->weight_grad.data, dsc_model_params(m)[0].grad.data);
            assert_false(head->leave_out);
        }
        if (on) {
            assert_string_equal(layers[linear].name, "wte");
            assert_int_equal(layers[linear].kind, DSC_KFAC_EMBEDDING);
            assert_int_equal(layers[linear].in_c, TOKENS);
            assert_int_equal(layers[linear].leave_out, tied);
            assert_int_equal(layers[linear + 1].in_c, LENGTH);
            assert_int_equal(layers[linear + 1].out_c, WIDTH);
            assert_int_equal(layers[linear + 1].leave_out, 0);
        }
        dsc_kfac_layers_free(&layers);
        dsc_model_destroy(&m);
    }
}

/* Adds the gradients at the output of a table to its rows. */
static dsc_status on_table(void *context, dsc_queue *q, int64_t table, const dsc_tensor *tokens,
                           const dsc_tensor *dy) {
    double(*sums)[TOKENS][WIDTH] = context;
    (void)q;
    assert_int_equal(tokens == NULL, table == 1);
    assert_int_equal(dsc_tensor_count(dy), SEQUENCES * LENGTH * WIDTH);
    for (int i = 0; i < SEQUENCES * LENGTH; i++)
        for (int c = 0; c < WIDTH; c++)
            sums[table][tokens ? (int)((const float *)tokens->data)[i] : i % LENGTH][c] +=
                (double)((const float *)dy->data)[i * WIDTH + c];
    return DSC_OK;
}

/* The tensors that a backward pass hands out for tables add up to the tables' gradients. */
static void test_table_tensors(void **state) {
    double sums[2][TOKENS][WIDTH] = {{{0}}};
    dsc_model *m = table_net(0);
    dsc_exec *exec = NULL;
    dsc_queue *queue = NULL;
    dsc_tensor x, y;
    dsc_backward_options backward;
    const int64_t label_count = SEQUENCES * LENGTH;
    (void)state;
    assert_ok(dsc_queue_create(device, &queue));
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, SEQUENCES, &exec));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 4, (int64_t[]){SEQUENCES, LENGTH, 1, 1}, &x));
    assert_ok(dsc_tensor_alloc(device, DSC_I32, 1, &label_count, &y));
    for (int i = 0; i < SEQUENCES * LENGTH; i++) {
        ((float *)x.data)[i] = (float)(i * 5 % TOKENS);
        ((int32_t *)y.data)[i] = (i + 1) % TOKENS;
    }
    dsc_backward_options_init(&backward);
    backward.context = sums;
    backward.capture_table = on_table;
    assert_ok(dsc_exec_forward(exec, queue, &x));
    assert_ok(dsc_exec_loss(exec, queue, &y, 1));
    assert_ok(dsc_exec_backward(exec, queue, &backward));
    for (int table = 0; table < 2; table++) {
        const dsc_tensor *grad = &dsc_model_params(m)[table].grad;
        for (int64_t i = 0; i < dsc_tensor_count(grad); i++)
            assert_true(fabs(((const float *)grad->data)[i] - sums[table][i / WIDTH][i % WIDTH]) <= 1e-6);
        assert_true(fabs(sums[table][0][0]) > 1e-6);
    }
    dsc_tensor_free(&x);
    dsc_tensor_free(&y);
    dsc_exec_destroy(&exec);
    dsc_queue_destroy(&queue);
    dsc_model_destroy(&m);
}

static dsc_status on_capture(void *kfac, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                             const dsc_tensor *g) {
    return dsc_kfac_capture(kfac, q, layer, a, g);
}

/* K-FAC rewrites the gradients of a U-Net's weights, those of its transposed convolutions among them, and leaves their
 * biases alone. */
static void test_unet(void **state) {
    enum { SIDE = 32 };
    dsc_kfac_layer *layers = NULL;
    dsc_kfac *kfac = NULL;
    dsc_queue *queue = NULL;
    dsc_model *m = NULL;
    dsc_exec *exec = NULL;
    dsc_tensor x, y;
    int64_t count = 0, upwards = 0, positions = SIDE * SIDE;
    dsc_backward_options backward;
    (void)state;
    assert_ok(dsc_queue_create(device, &queue));
    assert_ok(dsc_zoo_create(device, "unet-bn:width=4", SIDE, SIDE, 1, 2, NULL, &m));
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, 1, &exec));
    assert_ok(dsc_kfac_layers_of_model(m, &layers, &count));
    assert_ok(dsc_kfac_create(comm, queue, layers, count, NULL, &kfac));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 4, (int64_t[]){1, SIDE, SIDE, 1}, &x));
    assert_ok(dsc_tensor_alloc(device, DSC_I32, 1, &positions, &y));
    for (int i = 0; i < SIDE * SIDE; i++) {
        ((float *)x.data)[i] = sinf((float)(i * i));
        ((int32_t *)y.data)[i] = i % 3 == 0;
    }
    dsc_backward_options_init(&backward);
    backward.context = kfac;
    backward.capture = on_capture;
    assert_ok(dsc_kfac_begin(kfac, 1));
    assert_ok(dsc_exec_forward(exec, queue, &x));
    assert_ok(dsc_exec_loss(exec, queue, &y, 1));
    assert_ok(dsc_exec_backward(exec, queue, &backward));
    assert_ok(dsc_queue_sync(queue));
    dsc_tensor grads = dsc_model_grads(m);
    float *before = malloc(dsc_tensor_bytes(&grads));
    assert_non_null(before);
    memcpy(before, grads.data, dsc_tensor_bytes(&grads));
    assert_ok(dsc_kfac_step(kfac, queue, 0.1));
    assert_ok(dsc_queue_sync(queue));
    for (int64_t i = 0; i < dsc_model_param_count(m); i++) {
        const dsc_param *p = &dsc_model_params(m)[i];
        const float *old = before + ((float *)p->grad.data - (float *)grads.data);
        int same = memcmp(old, p->grad.data, dsc_tensor_bytes(&p->grad)) == 0;
        if (strncmp(p->name, "upconv", strlen("upconv")) == 0) {
            assert_int_equal(same, strstr(p->name, ".bias") != NULL);
            upwards++;
        }
    }
    assert_int_equal(upwards, 8);
    free(before);
    dsc_tensor_free(&x);
    dsc_tensor_free(&y);
    dsc_kfac_destroy(&kfac);
    dsc_kfac_layers_free(&layers);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&m);
    dsc_queue_destroy(&queue);
}

/* The mean over the rows of w ((1 - s) CE(a) + s CE(b)), w = (1 - s) weight(a) + s weight(b), from the logits of an
 * equal net on the batch that a loader with these options gives first. */
static double mixed_loss(const dsc_dataset *set, const dsc_train_options *o, const double weights[CLASSES]) {
    dsc_model *m = net();
    dsc_queue *queue = NULL;
    dsc_exec *exec = NULL;
    dsc_loader *loader = NULL;
    dsc_loader_options l;
    dsc_batch b;
    dsc_tensor others, shares;
    float logits[BATCH * CLASSES];
    double loss = 0;
    assert_ok(dsc_queue_create(device, &queue));
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
    dsc_loader_options_init(&l);
    l.batch = BATCH;
    l.seed = o->seed;
    l.mixup = o->mixup;
    assert_ok(dsc_loader_create(set, device, &l, &loader));
    assert_ok(dsc_loader_next(loader, queue, &b));
    assert_ok(dsc_exec_forward(exec, queue, &b.x));
    assert_ok(dsc_tensor_download(queue, dsc_exec_logits(exec), sizeof logits, logits));
    assert_ok(dsc_queue_sync(queue));
    int mixed = dsc_loader_mixed_labels(loader, &others, &shares);
    for (int i = 0; i < BATCH; i++) {
        const float *z = logits + i * CLASSES;
        int32_t first = ((const int32_t *)b.labels.data)[i],
                second = mixed ? ((const int32_t *)others.data)[i] : 0;
        double s = mixed ? (double)((const float *)shares.data)[i] : 0, sum = 0;
        for (int c = 0; c < CLASSES; c++)
            sum += exp((double)z[c]);
        loss += ((1 - s) * weights[first] + s * weights[second]) *
                (log(sum) - (1 - s) * (double)z[first] - s * (double)z[second]);
    }
    dsc_loader_destroy(&loader);
    dsc_exec_destroy(&exec);
    dsc_queue_destroy(&queue);
    dsc_model_destroy(&m);
    return loss / BATCH;
}

/* The loss of a step counts both labels of mixed samples, and the weights of their classes. */
static void test_soft_labels(void **state) {
    (void)state;
    char file[SCRATCH_SIZE];
    /* A third of the samples is of each class: the mean of 1, 2, 6 is 3. */
    static const double plain[CLASSES] = {1, 1, 1}, scaled[CLASSES] = {1 / 3.0, 2 / 3.0, 2};
    scratch_make(file);
    scratch_write(scratch_path(file, "weights"), "1 2 6", 5);
    for (int kind = 0; kind < 4; kind++) {
        dsc_train_options o = options();
        dsc_step_report report = {.size = sizeof report};
        o.mixup = kind & 1 ? 1 : 0;
        o.class_weights = kind & 2 ? scratch_path(file, "weights") : NULL;
        bundle b = make(&o);
        double want = mixed_loss(b.train, &o, kind & 2 ? scaled : plain);
        assert_ok(dsc_trainer_step(b.trainer, &report));
        if (!(fabs(report.loss - want) < 1e-5))
            fail_msg("kind %d: loss %.9g instead of %.9g", kind, report.loss, want);
        drop(&b);
    }
    scratch_remove(file);
}

/* Options that depend on evaluations are refused without validation data. */
static void test_nothing_to_evaluate(void **state) {
    (void)state;
    dsc_train_options o = options();
    dsc_model *m = net();
    dsc_dataset *set = data(COUNT);
    dsc_trainer *trainer = NULL;
    o.patience = 2;
    assert_fails(DSC_E_INVALID, "this trainer has no validation set",
                 dsc_trainer_create(comm, device, m, set, NULL, &o, &trainer));
    o.patience = 0;
    o.class_weights = "balanced";
    assert_fails(DSC_E_INVALID, "this trainer has no training data to count",
                 dsc_trainer_create(comm, device, m, NULL, set, &o, &trainer));
    dsc_dataset_close(&set);
    dsc_model_destroy(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_soft_labels),
        cmocka_unit_test(test_nothing_to_evaluate),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_wrong_batches),
        cmocka_unit_test(test_run_again),
        cmocka_unit_test(test_stop_of_steps),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_made_to_resume),
        cmocka_unit_test(test_resume_refused),
        cmocka_unit_test(test_unused_options),
        cmocka_unit_test(test_wrong_validation),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_same_inputs),
        cmocka_unit_test(test_large_head),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_table_tensors),
        cmocka_unit_test(test_unet),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

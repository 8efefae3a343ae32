/* Sequences with padding in a run: more padding changes neither K-FAC's factors nor the gradients. */
#include "test.h"

#include "descent/model.h"
#include "train/runs.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 8, SHORT = 6, LONG = 11, WORDS = 13, STEPS = 5, WIDTH = 8 };

static dsc_comm *comm;
static dsc_device *device;

/* The tokens of a sample, 2 to SHORT of them, and labels of some of these; padding after them. */
static dsc_status make_sample(void *context, int64_t index, int augment, int64_t epoch, float *x,
                              int32_t *label) {
    const int64_t t = *(const int64_t *)context, length = 2 + index % (SHORT - 1);
    (void)augment, (void)epoch;
    for (int64_t i = 0; i < t; i++) {
        x[i] = i < length ? (float)((5 * i + 3 * index) % WORDS) : -1;
        label[i] = i < length && i % 3 != 1 ? (int32_t)((index + 2 * i) % WORDS) : -1;
    }
    return DSC_OK;
}

static double share_of_labels(int64_t t) {
    float x[LONG];
    int32_t label[LONG];
    int64_t labelled = 0;
    for (int64_t n = 0; n < SAMPLES; n++) {
        assert_ok(make_sample(&t, n, 0, 0, x, label));
        for (int64_t i = 0; i < t; i++)
            labelled += label[i] >= 0;
    }
    return (double)labelled / (double)(SAMPLES * t);
}

static dsc_dataset *make_data(int64_t *t, int in_memory) {
    static float x[2 * SAMPLES * LONG];
    static int32_t labels[2 * SAMPLES * LONG];
    dsc_dataset *data = NULL;
    dsc_memory_data memory;
    dsc_callback_data callback;
    for (int64_t n = 0; n < SAMPLES; n++)
        assert_ok(make_sample(t, n, 0, 0, x + n * *t, labels + n * *t));
    dsc_memory_data_init(&memory);
    memory.count = SAMPLES;
    memory.h = memory.label_count = *t;
    memory.w = memory.c = 1;
    memory.classes = WORDS;
    memory.images = x;
    memory.labels = labels;
    memory.copy = 1;
    dsc_callback_data_init(&callback);
    callback.count = SAMPLES;
    callback.h = callback.label_count = *t;
    callback.w = callback.c = 1;
    callback.classes = WORDS;
    callback.context = t;
    callback.sample = make_sample;
    callback.labelled = share_of_labels(*t);
    assert_ok(in_memory ? dsc_dataset_from_memory(&memory, &data)
                        : dsc_dataset_from_callback(&callback, &data));
    return data;
}

/* A small BERT for sequences of t positions, after some steps. */
typedef struct run {
    int64_t t;
    dsc_model *m;
    dsc_dataset *data;
    dsc_trainer *trainer;
} run;

/* Parameters that do not depend on the number of positions, as far as both models have them. */
static void fill(const run *r) {
    for (int64_t i = 0; i < dsc_model_param_count(r->m); i++) {
        dsc_tensor value = dsc_model_params(r->m)[i].value;
        int64_t count = dsc_tensor_count(&value);
        float *numbers = malloc((size_t)count * sizeof *numbers);
        assert_non_null(numbers);
        for (int64_t k = 0; k < count; k++)
            numbers[k] = 0.4F * (float)sin((double)(17 * i + 1) * (double)(k + 1));
        assert_ok(dsc_tensor_upload(r->trainer->queue, numbers, (size_t)count * sizeof *numbers, &value));
        assert_ok(dsc_queue_sync(r->trainer->queue));
        free(numbers);
    }
}

static void train(run *r, int64_t t, int in_memory, int64_t micro_batches) {
    dsc_train_options o;
    *r = (run){.t = t};
    assert_ok(
        dsc_zoo_create(device, "bert-base:layers=1,heads=2,width=8,dropout=0", t, 1, 1, WORDS, NULL, &r->m));
    r->data = make_data(&r->t, in_memory);
    runs_options(&o, NULL);
    o.batch_size = 4 / micro_batches;
    o.batches_per_allreduce = micro_batches;
    o.lr = 0.01;
    kfac_of(&o)->update_freq = 2;
    kfac_of(&o)->embeddings = 1;
    kfac_of(&o)->tied_head = DSC_KFAC_TIED_INPUT;
    kfac_of(&o)->norm = DSC_KFAC_NORM_FULL;
    kfac_of(&o)->stat_decay = 0.5;
    assert_ok(dsc_trainer_create(comm, device, r->m, r->data, NULL, &o, &r->trainer));
    fill(r);
    for (int i = 0; i < STEPS; i++)
        assert_ok(dsc_trainer_step(r->trainer, NULL));
}

static void end(run *r) {
    dsc_trainer_destroy(&r->trainer);
    dsc_model_destroy(&r->m);
    dsc_dataset_close(&r->data);
}

/* |a - b| of `count` numbers, by the largest of them. */
static double distance(int64_t count, const float *a, const float *b) {
    double most = 0, scale = 1e-3;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)a[i]));
    }
    return most / scale;
}

static float *read_entry(const run *r, int64_t i, int64_t *count) {
    const dsc_kfac_entry *e = &dsc_kfac_state_entries(r->trainer->kfac)[i];
    *count = e->dim[0] * (e->ndim == 2 ? e->dim[1] : 1);
    float *numbers = calloc((size_t)*count, sizeof(double));
    assert_non_null(numbers);
    assert_ok(dsc_kfac_state_get(r->trainer->kfac, r->trainer->queue, i, numbers));
    return numbers;
}

/* Compares the averages of factors and norms. For positions that are padding in all samples only the rest of the
 * initial identity remains. */
static int compare_factors(const run *few, const run *many) {
    int compared = 0;
    for (int64_t i = 0; i < dsc_kfac_state_count(few->trainer->kfac); i++) {
        const char *name = dsc_kfac_state_entries(few->trainer->kfac)[i].name, *part = strrchr(name, '.');
        int64_t count, more;
        if (!part || (strcmp(part, ".A") != 0 && strcmp(part, ".G") != 0 && strcmp(part, ".norm") != 0))
            continue;
        float *a = read_entry(few, i, &count), *b = read_entry(many, i, &more);
        if (!(distance(count, a, b) < 1e-4))
            fail_msg("'%s' is off by %g", name, distance(count, a, b));
        assert_true(more == count || (count == SHORT && more == LONG));
        for (int64_t k = count; k < more; k++)
            assert_true(fabs((double)b[k] - pow(0.5, STEPS)) < 1e-6);
        free(a);
        free(b);
        compared++;
    }
    return compared;
}

static void compare_params(const run *few, const run *many) {
    for (int64_t i = 0; i < dsc_model_param_count(few->m); i++) {
        const dsc_tensor *p = &dsc_model_params(few->m)[i].value, *o = &dsc_model_params(many->m)[i].value;
        float *a = runs_read(few->trainer->queue, p), *b = runs_read(many->trainer->queue, o);
        double apart = distance(dsc_tensor_count(p), a, b);
        if (!(apart < 2e-4))
            fail_msg("'%s' is off by %g", dsc_model_params(few->m)[i].name, apart);
        free(a);
        free(b);
    }
}

static void test_more_padding(void **state) {
    (void)state;
    for (int in_memory = 0; in_memory < 2; in_memory++)
        for (int64_t micro_batches = 1; micro_batches < 3; micro_batches++) {
            run few, many;
            train(&few, SHORT, in_memory, micro_batches);
            train(&many, LONG, in_memory, micro_batches);
            assert_true(compare_factors(&few, &many) >= 15);
            compare_params(&few, &many);
            end(&many);
            end(&few);
        }
}

/* Gradients are divided by the expected number of labels. */
static void test_labels(void **state) {
    (void)state;
    dsc_callback_data callback;
    dsc_dataset *data = NULL;
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        run r;
        train(&r, LONG, in_memory, 1);
        assert_true(fabs(r.trainer->labels - LONG * share_of_labels(LONG)) < 1e-12);
        end(&r);
    }
    dsc_callback_data_init(&callback);
    callback.count = callback.h = callback.w = callback.c = callback.classes = 1;
    callback.sample = make_sample;
    callback.labelled = 1.5;
    assert_fails(DSC_E_INVALID, "a share of 1.5 of its labels", dsc_dataset_from_callback(&callback, &data));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_more_padding), cmocka_unit_test(test_labels)};
    runs_open_exact(&comm, &device);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return failed;
}

/* Checkpoints on their own: layout of the state dict, files of a directory, save and load, damage, fuzz. */
#include "test.h"

#include "base/memory.h"
#include "base/output.h"
#include "base/rng.h"
#include "train/checkpoint.h"
#include "train/checkpoint_directory.h"
#include "train/checkpoint_find.h"
#include "train/runs.h"
#include "train/scratch.h"
#include "train/statedict.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static dsc_comm *comm;
static dsc_device *device;
static dsc_queue *queue;
static char directory[SCRATCH_SIZE];

/* ---- a model of a few numbers ---- */

typedef struct tiny {
    dsc_model *model;
    dsc_optim *optim;
    dsc_train_options options;
    dsc_train_state state;
} tiny;

static void tiny_open(tiny *t, uint64_t seed, int64_t classes) {
    dsc_model_options model;
    dsc_conv2d_shape conv;
    dsc_value x;
    dsc_model_options_init(&model);
    model.seed = seed;
    assert_ok(dsc_model_create(device, &model, &t->model));
    assert_ok(dsc_model_input(t->model, 4, 5, 2, &x));
    dsc_conv2d_shape_init(&conv);
    conv.out_c = 3;
    conv.kernel_h = 3;
    conv.kernel_w = 2;
    assert_ok(dsc_model_conv2d(t->model, "conv", x, &conv, 0, &x));
    assert_ok(dsc_model_batch_norm(t->model, "bn", x, &x));
    assert_ok(dsc_model_global_pool(t->model, x, &x));
    assert_ok(dsc_model_linear(t->model, "fc", x, classes, 1, &x));
    assert_ok(dsc_model_seal(t->model, x));
    runs_options(&t->options, NULL);
    t->options.data = "synthetic";
    t->options.model = "tiny";
    assert_ok(dsc_optim_create(queue, dsc_model_params(t->model), dsc_model_param_count(t->model),
                               t->options.optim, &t->optim));
    dsc_train_state_init(&t->state);
}

static void tiny_close(tiny *t) {
    dsc_optim_destroy(&t->optim);
    dsc_model_destroy(&t->model);
}

static dsc_snapshot snapshot(tiny *t) {
    return (dsc_snapshot){.comm = comm,
                          .queue = queue,
                          .model = t->model,
                          .optim = t->optim,
                          .options = &t->options,
                          .samples = 1000,
                          .state = &t->state};
}

static void fill(const dsc_tensor *t, int64_t first) {
    dsc_tensor whole = *t;
    void *host = runs_read(queue, t);
    for (int64_t i = 0; i < dsc_tensor_count(t); i++) {
        if (t->dtype == DSC_I64)
            ((int64_t *)host)[i] = first + i;
        else
            ((float *)host)[i] = (float)(first + i);
    }
    assert_ok(dsc_tensor_upload(queue, host, dsc_tensor_bytes(t), &whole));
    assert_ok(dsc_queue_sync(queue));
    free(host);
}

/* Sets everything that a checkpoint stores to different values. */
static void tiny_fill(tiny *t, int64_t step) {
    for (int64_t i = 0; i < dsc_model_param_count(t->model); i++)
        fill(&dsc_model_params(t->model)[i].value, 1000 * i);
    for (int64_t i = 0; i < dsc_model_buffer_count(t->model); i++)
        fill(&dsc_model_buffers(t->model)[i].value, -1000 * i);
    for (int64_t i = 0; i < dsc_optim_state_count(t->optim); i++)
        fill(&dsc_optim_state(t->optim)[i].value, 7 + 1000 * i);
    dsc_optim_set_steps(t->optim, step + 100);
    t->state = (dsc_train_state){step, 3,    640,      12.25, 640,  2.5, 1.5, 0.25, 0.75, 8,  0.5, 1.25,
                                 4,    33.5, {512, 7}, 2,     20.5, 1,   6,   0,    -1,   -1, -1};
}

static dsc_status write_both(const dsc_snapshot *s, const char *into, int64_t *bytes) {
    dsc_st_writer *model = NULL, *none = NULL;
    char *path = NULL;
    dsc_status status = dsc_checkpoint_path(into, s->state->step, &path);
    if (status == DSC_OK)
        status = dsc_checkpoint_write_model(s, path, &model);
    if (status == DSC_OK)
        status = dsc_checkpoint_save(s, path, &model, &none, bytes);
    if (status == DSC_OK)
        status = dsc_checkpoint_set_latest(into, s->state->step);
    dsc_memory_free(&path);
    return status;
}

static void save(tiny *t, int64_t step, const char *into) {
    dsc_snapshot s = snapshot(t);
    int64_t bytes = 0;
    tiny_fill(t, step);
    assert_ok(write_both(&s, into, &bytes));
    assert_true(bytes > 0);
}

static void make_directory(const char *name, char path[SCRATCH_SIZE]) {
    snprintf(path, SCRATCH_SIZE, "%s", scratch_path(directory, name));
    assert_ok(dsc_directory_make(path));
}

/* ---- layout ---- */

/* conv.weight is [3][3][2][2] (OHWI) here and [3][2][3][2] (OIHW) in the file. */
static void test_layout(void **state) {
    (void)state;
    tiny t;
    char path[SCRATCH_SIZE];
    float there[36];
    dsc_st_reader *r = NULL;
    make_directory("layout", path);
    tiny_open(&t, 1, 4);
    t.options.seed = UINT64_MAX;
    save(&t, 12, path);
    assert_ok(dsc_st_open(scratch_path(path, "checkpoint-12.safetensors"), &r));
    assert_int_equal(dsc_st_count(r), 8);
    const dsc_st_tensor *conv = dsc_st_find(r, "conv.weight");
    assert_int_equal(conv->ndim, 4);
    const int64_t shape[] = {3, 2, 3, 2};
    assert_memory_equal(conv->dim, shape, sizeof shape);
    assert_ok(dsc_st_read(r, conv, there, sizeof there));
    float *here = runs_read(queue, &dsc_model_params(t.model)[0].value);
    for (int o = 0; o < 3; o++)
        for (int i = 0; i < 2; i++)
            for (int h = 0; h < 3; h++)
                for (int w = 0; w < 2; w++)
                    assert_true(there[((o * 2 + i) * 3 + h) * 2 + w] == here[((o * 3 + h) * 2 + w) * 2 + i]);
    free(here);
    const dsc_st_tensor *batches = dsc_st_find(r, "bn.num_batches_tracked");
    assert_int_equal(batches->ndim, 0);
    assert_int_equal(batches->dtype, DSC_I64);
    assert_string_equal(dsc_st_metadata(r, "model"), "tiny");
    assert_string_equal(dsc_st_metadata(r, "classes"), "4");
    assert_string_equal(dsc_st_metadata(r, "format"), "pt");
    assert_string_equal(dsc_st_metadata(r, "data"), "synthetic");
    assert_string_equal(dsc_st_metadata(r, "seed"), "18446744073709551615");
    dsc_st_close(&r);
    tiny_close(&t);
}

static void assert_same(const dsc_param *a, const dsc_param *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        void *x = runs_read(queue, &a[i].value), *y = runs_read(queue, &b[i].value);
        assert_memory_equal(x, y, dsc_tensor_bytes(&a[i].value));
        free(x);
        free(y);
    }
}

static void test_round_trip(void **state) {
    (void)state;
    tiny a, b;
    char path[SCRATCH_SIZE];
    make_directory("round", path);
    tiny_open(&a, 1, 4);
    tiny_open(&b, 2, 4);
    save(&a, 12, path);
    dsc_snapshot s = snapshot(&b);
    assert_ok(dsc_checkpoint_load(&s, scratch_path(path, "checkpoint-12.safetensors"), NULL));
    assert_same(dsc_model_params(a.model), dsc_model_params(b.model), dsc_model_param_count(a.model));
    assert_same(dsc_model_buffers(a.model), dsc_model_buffers(b.model), dsc_model_buffer_count(a.model));
    assert_same(dsc_optim_state(a.optim), dsc_optim_state(b.optim), dsc_optim_state_count(a.optim));
    assert_int_equal(dsc_optim_steps(b.optim), 112);
    assert_memory_equal(&a.state, &b.state, sizeof a.state);
    assert_int_equal(scratch_count(path, ".tmp"), 0);
    tiny_close(&a);
    tiny_close(&b);
}

/* ---- the directory ---- */

static void test_names(void **state) {
    (void)state;
    char *path = NULL;
    assert_ok(dsc_checkpoint_state_path("a/checkpoint-5.safetensors", &path));
    assert_string_equal(path, "a/checkpoint-5.state.safetensors");
    dsc_memory_free(&path);
    assert_fails(DSC_E_INVALID, "name the model file",
                 dsc_checkpoint_state_path("a/checkpoint-5.state.safetensors", &path));
    assert_fails(DSC_E_INVALID, "must end in", dsc_checkpoint_state_path("a/model.pt", &path));
}

static void touch(const char *folder, int64_t step, int state_too) {
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld.safetensors", (long long)step);
    scratch_write(scratch_path(folder, name), "x", 1);
    snprintf(name, sizeof name, "checkpoint-%lld.state.safetensors", (long long)step);
    if (state_too)
        scratch_write(scratch_path(folder, name), "x", 1);
}

static void expect_steps(const char *folder, const int64_t *wanted, int64_t count) {
    int64_t *steps = NULL, found = 0;
    assert_ok(dsc_checkpoint_list(folder, &steps, &found));
    assert_int_equal(found, count);
    if (count > 0)
        assert_memory_equal(steps, wanted, (size_t)count * sizeof *steps);
    dsc_memory_free(&steps);
}

static void test_list_and_prune(void **state) {
    (void)state;
    char path[SCRATCH_SIZE];
    make_directory("list", path);
    expect_steps(scratch_path(path, "nowhere"), NULL, 0);
    expect_steps(path, NULL, 0);
    for (int64_t step = 10; step <= 100; step += 10)
        touch(path, step, 1);
    touch(path, 110, 0); /* half a checkpoint */
    scratch_write(scratch_path(path, "checkpoint-7x.safetensors"), "x", 1);
    scratch_write(scratch_path(path, "checkpoint-007.safetensors"), "x", 1);
    expect_steps(path, (int64_t[]){100, 90, 80, 70, 60, 50, 40, 30, 20, 10}, 10);
    assert_ok(dsc_checkpoint_prune(path, 90, 2, 30)); /* 100 is later than the last */
    expect_steps(path, (int64_t[]){100, 90, 80, 70, 30}, 5);
    assert_ok(dsc_checkpoint_prune(path, 100, 0, -1));
    expect_steps(path, (int64_t[]){100}, 1);
    assert_int_equal(scratch_count(path, ".state.safetensors"), 1);
    assert_true(scratch_exists(path, "checkpoint-007.safetensors"));
}

static void test_latest(void **state) {
    (void)state;
    char path[SCRATCH_SIZE], *latest = NULL;
    size_t bytes;
    make_directory("latest", path);
    assert_ok(dsc_checkpoint_latest(path, &latest));
    assert_null(latest);
    touch(path, 5, 1);
    touch(path, 30, 1);
    assert_ok(dsc_checkpoint_latest(path, &latest)); /* without `latest`: the highest */
    assert_string_equal(latest, scratch_path(path, "checkpoint-30.safetensors"));
    dsc_memory_free(&latest);
    assert_ok(dsc_checkpoint_set_latest(path, 5));
    char *text = scratch_read(scratch_path(path, "latest"), &bytes);
    assert_string_equal(text, "checkpoint-5.safetensors\n");
    free(text);
    assert_ok(dsc_checkpoint_latest(path, &latest));
    assert_string_equal(latest, scratch_path(path, "checkpoint-5.safetensors"));
    dsc_memory_free(&latest);
    assert_ok(dsc_checkpoint_set_latest(path, 6));
    assert_fails(DSC_E_NOT_FOUND, "remove 'latest'", dsc_checkpoint_latest(path, &latest));
    static const char *const bad[] = {"", "\n", "../etc/passwd\n", "checkpoint-x.safetensors",
                                      "checkpoint-5.safetensors\nmore"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        scratch_write(scratch_path(path, "latest"), bad[i], strlen(bad[i]));
        assert_fails(DSC_E_FORMAT, "is damaged", dsc_checkpoint_latest(path, &latest));
    }
    scratch_write(scratch_path(path, "latest.tmp"), "x", 1);
    scratch_write(scratch_path(path, "checkpoint-9.safetensors.tmp"), "x", 1);
    scratch_write(scratch_path(path, "mine.tmp"), "x", 1);
    dsc_checkpoint_sweep(path);
    assert_int_equal(scratch_count(path, ".tmp"), 1);
}

/* The file `best` names an existing checkpoint, or does not exist. */
static void test_best(void **state) {
    (void)state;
    char path[SCRATCH_SIZE], *best = NULL;
    size_t bytes;
    make_directory("best", path);
    assert_fails(DSC_E_NOT_FOUND, "names no best checkpoint", dsc_checkpoint_best(path, &best));
    touch(path, 5, 1);
    touch(path, 30, 1);
    touch(path, 40, 0);
    assert_ok(dsc_checkpoint_set_best(path, 5));
    char *text = scratch_read(scratch_path(path, "best"), &bytes);
    assert_string_equal(text, "checkpoint-5.safetensors\n");
    free(text);
    assert_ok(dsc_checkpoint_best(path, &best));
    assert_string_equal(best, scratch_path(path, "checkpoint-5.safetensors"));
    dsc_memory_free(&best);
    scratch_write(scratch_path(path, "best"), "x", 1); /* a damaged one is replaced */
    assert_fails(DSC_E_FORMAT, "best' is damaged", dsc_checkpoint_best(path, &best));
    assert_ok(dsc_checkpoint_set_best(path, 30));
    assert_ok(dsc_checkpoint_best(path, &best));
    assert_string_equal(best, scratch_path(path, "checkpoint-30.safetensors"));
    dsc_memory_free(&best);
    for (int64_t step = -1; step < 80; step += 41) { /* none, half a checkpoint, one that is not there */
        assert_ok(dsc_checkpoint_set_best(path, step));
        assert_false(scratch_exists(path, "best"));
    }
}

static void expect_found(const char *spec, const char *path) {
    char *found = NULL;
    assert_ok(dsc_checkpoint_find(spec, &found));
    assert_string_equal(found, path);
    dsc_memory_free(&found);
}

static void test_find(void **state) {
    (void)state;
    char path[SCRATCH_SIZE], spec[SCRATCH_SIZE * 2], *found = NULL;
    make_directory("find", path);
    assert_fails(DSC_E_NOT_FOUND, "holds no checkpoint", dsc_checkpoint_find(path, &found));
    touch(path, 5, 1);
    touch(path, 30, 1);
    assert_ok(dsc_checkpoint_set_latest(path, 30));
    assert_ok(dsc_checkpoint_set_best(path, 5));
    static const struct {
        const char *which;
        int step;
    } cases[] = {{"", 30}, {":latest", 30}, {":best", 5}, {":5", 5}, {":30", 30}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        snprintf(spec, sizeof spec, "%s%s", path, cases[i].which);
        snprintf(name, sizeof name, "checkpoint-%d.safetensors", cases[i].step);
        expect_found(spec, scratch_path(path, name));
    }
    snprintf(spec, sizeof spec, "%s:6", path);
    assert_fails(DSC_E_NOT_FOUND, "no checkpoint of step 6: there are 30, 5",
                 dsc_checkpoint_find(spec, &found));
    snprintf(spec, sizeof spec, "%s:99999999999999999999", path);
    assert_fails(DSC_E_NOT_FOUND, "no checkpoint of step 9999", dsc_checkpoint_find(spec, &found));
    assert_fails(DSC_E_NOT_FOUND, "'nowhere' is not the directory of a run",
                 dsc_checkpoint_find("nowhere:best", &found));
    expect_found("a/file.safetensors", "a/file.safetensors");
    expect_found("a:file", "a:file");          /* says nothing about which checkpoint */
    snprintf(spec, sizeof spec, "%s:5", path); /* a directory of its own with such a name */
    assert_ok(dsc_directory_make(spec));
    touch(spec, 7, 1);
    expect_found(spec, scratch_path(spec, "checkpoint-7.safetensors"));
}

/* Flips a bit in the last byte of a file. */
static void damage(const char *path) {
    size_t bytes;
    char *data = scratch_read(path, &bytes);
    data[bytes - 1] ^= 4;
    scratch_write(path, data, bytes);
    free(data);
}

/* Of the checkpoints, from the newest on, those with truncated, damaged or missing files are skipped. */
static void test_newest_intact(void **state) {
    (void)state;
    tiny t;
    char path[SCRATCH_SIZE], *found = NULL;
    make_directory("intact", path);
    assert_ok(dsc_checkpoint_newest_intact(path, &found));
    assert_null(found);
    tiny_open(&t, 1, 4);
    for (int64_t step = 12; step <= 16; step++)
        save(&t, step, path);
    tiny_close(&t);
    assert_ok(dsc_checkpoint_newest_intact(path, &found));
    assert_string_equal(found, scratch_path(path, "checkpoint-16.safetensors"));
    dsc_memory_free(&found);
    damage(scratch_path(path, "checkpoint-16.safetensors"));
    scratch_write(scratch_path(path, "checkpoint-15.state.safetensors"), "torn", 4);
    assert_int_equal(unlink(scratch_path(path, "checkpoint-14.state.safetensors")), 0);
    damage(scratch_path(path, "checkpoint-13.state.safetensors"));
    assert_ok(dsc_checkpoint_newest_intact(path, &found));
    assert_string_equal(found, scratch_path(path, "checkpoint-12.safetensors"));
    dsc_memory_free(&found);
    scratch_write(scratch_path(path, "latest"), "x", 1);
    assert_ok(dsc_checkpoint_newest_intact(path, &found));
    assert_string_equal(found, scratch_path(path, "checkpoint-12.safetensors"));
    dsc_memory_free(&found);
    damage(scratch_path(path, "checkpoint-12.safetensors"));
    assert_ok(dsc_checkpoint_set_latest(path, 16));
    assert_fails(DSC_E_FORMAT, "is intact: ", dsc_checkpoint_newest_intact(path, &found));
    assert_non_null(strstr(dsc_error_message(), "checkpoint-16.safetensors' is damaged"));
    assert_null(found);
}

/* Another process writes the same file at the same time, and is killed while it does. */
static void write_and_die(const char *path) {
    dsc_output output;
    if (dsc_output_open(path, &output) != DSC_OK || dsc_output_write(&output, "theirs", 6, 0) != DSC_OK)
        _exit(1);
    _exit(0);
}

/* Two writers of one file do not disturb each other. Temporary files of a dead process are removed, those of a process
 * that runs on this machine stay. */
static void test_two_writers(void **state) {
    (void)state;
    char path[SCRATCH_SIZE], file[SCRATCH_SIZE], name[SCRATCH_SIZE];
    dsc_output output;
    size_t bytes;
    int how = -1;
    make_directory("writers", path);
    snprintf(file, sizeof file, "%s", scratch_path(path, "checkpoint-9.safetensors"));
    assert_ok(dsc_output_open(file, &output));
    assert_ok(dsc_output_write(&output, "ours", 4, 0));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        write_and_die(file);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_int_equal(scratch_count(path, ".tmp"), 2);
    assert_ok(dsc_output_commit(&output));
    dsc_output_close(&output);
    char *text = scratch_read(file, &bytes);
    assert_string_equal(text, "ours");
    free(text);
    assert_int_equal(scratch_count(path, ".tmp"), 1);
    dsc_checkpoint_sweep(path);
    assert_int_equal(scratch_count(path, ".tmp"), 0);

    char host[64] = "";
    assert_int_equal(gethostname(host, sizeof host), 0);
    snprintf(name, sizeof name, "latest.%.60s-%ld.tmp", host, (long)getppid());
    scratch_write(scratch_path(path, name), "x", 1);
    snprintf(name, sizeof name, "latest.%.60s-%ld.tmp", host, (long)getpid()); /* of an earlier process */
    scratch_write(scratch_path(path, name), "x", 1);
    snprintf(name, sizeof name, "latest.not%.60s-%ld.tmp", host, (long)getppid());
    scratch_write(scratch_path(path, name), "x", 1);
    dsc_checkpoint_sweep(path);
    assert_int_equal(scratch_count(path, ".tmp"), 1);
}

/* ---- failures ---- */

static size_t file_size(const char *folder, const char *name) {
    size_t bytes;
    free(scratch_read(scratch_path(folder, name), &bytes));
    return bytes;
}

static void test_full_disk(void **state) {
    (void)state;
    tiny t;
    char path[SCRATCH_SIZE];
    size_t bytes;
    struct rlimit old, small;
    make_directory("full", path);
    tiny_open(&t, 1, 4);
    save(&t, 12, path);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    dsc_snapshot s = snapshot(&t);
    /* The limit falls into a header, into the model's data, into the state's data. */
    const size_t limits[] = {100, file_size(path, "checkpoint-12.safetensors") - 10,
                             file_size(path, "checkpoint-12.state.safetensors") - 10};
    for (int i = 0; i < 3; i++) {
        int64_t size;
        small = old;
        small.rlim_cur = limits[i];
        t.state.step = 13;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        dsc_status status = write_both(&s, path, &size);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, DSC_E_IO);
        assert_non_null(strstr(dsc_error_message(), "free some space"));
        assert_int_equal(scratch_count(path, ".tmp"), 0);
        assert_int_equal(scratch_count(path, "checkpoint-13.safetensors"), 0);
    }
    char *text = scratch_read(scratch_path(path, "latest"), &bytes);
    assert_string_equal(text, "checkpoint-12.safetensors\n");
    free(text);
    assert_ok(dsc_checkpoint_load(&s, scratch_path(path, "checkpoint-12.safetensors"), NULL));
    tiny_close(&t);
}

static void expect_load(tiny *t, const char *path, dsc_status wanted, const char *message) {
    dsc_snapshot s = snapshot(t);
    assert_fails(wanted, message, dsc_checkpoint_load(&s, path, NULL));
}

static void copy_file(const char *from, const char *to) {
    size_t bytes;
    char *data = scratch_read(from, &bytes);
    scratch_write(to, data, bytes);
    free(data);
}

static void test_mismatches(void **state) {
    (void)state;
    tiny t, other;
    char path[SCRATCH_SIZE], model[SCRATCH_SIZE * 2];
    make_directory("mismatch", path);
    tiny_open(&t, 1, 4);
    save(&t, 12, path);
    snprintf(model, sizeof model, "%s/checkpoint-12.safetensors", path);
    expect_load(&t, scratch_path(path, "checkpoint-1.safetensors"), DSC_E_NOT_FOUND, "checkpoint-1.");
    tiny_open(&other, 1, 5);
    expect_load(&other, model, DSC_E_INVALID, "4x5x2 images and 4 classes, this run has 4x5x2 images and 5");
    tiny_close(&other);
    t.options.model = "large";
    expect_load(&t, model, DSC_E_INVALID, "of model tiny, this run trains large");
    static const char *const own[] = {"custom", NULL}; /* a model of the caller's own may be any that fits */
    for (int i = 0; i < 2; i++) {
        dsc_snapshot as_own = snapshot(&t);
        t.options.model = own[i];
        assert_ok(dsc_checkpoint_load(&as_own, model, NULL));
    }
    t.options.model = "tiny";
    optim_of(&t.options)->kind = DSC_ADAM;
    expect_load(&t, model, DSC_E_INVALID, "with optimiser sgd, this run uses adam");
    optim_of(&t.options)->kind = DSC_SGD;
    dsc_snapshot s = snapshot(&t);
    s.samples = 999;
    assert_fails(DSC_E_INVALID, "of 1000 samples, the data set has 999",
                 dsc_checkpoint_load(&s, model, NULL));
    copy_file(model, scratch_path(path, "alone.safetensors"));
    expect_load(&t, scratch_path(path, "alone.safetensors"), DSC_E_NOT_FOUND,
                "training cannot continue from it");
    save(&t, 13, path);
    copy_file(scratch_path(path, "checkpoint-13.state.safetensors"),
              scratch_path(path, "alone.state.safetensors"));
    expect_load(&t, scratch_path(path, "alone.safetensors"), DSC_E_FORMAT, "do not belong together");
    tiny_close(&t);
}

/* Numbers that no run can have are refused with file and value, and nothing is loaded. */
static void test_bad_numbers(void **state) {
    (void)state;
    static const struct {
        double scale, best;
        const char *message;
    } cases[] = {
        {0.5, 0.5,
         "checkpoint-12.state.safetensors' is damaged: 'train.loss_scale' is 0.5: it must be finite, and 1 "
         "or more"},
        {0, 0.5, "'train.loss_scale' is 0: it must be"},
        {-4, 0.5, "'train.loss_scale' is -4: it must be"},
        {INFINITY, 0.5, "'train.loss_scale' is inf: it must be"},
        {NAN, 0.5, "'train.loss_scale' is nan: it must be"},
        {512, NAN,
         "checkpoint-12.state.safetensors' is damaged: 'train.best_top1' is nan: it must be finite"},
        {512, INFINITY, "'train.best_top1' is inf: it must be finite"},
    };
    tiny t;
    char path[SCRATCH_SIZE], model[SCRATCH_SIZE * 2];
    make_directory("numbers", path);
    snprintf(model, sizeof model, "%s/checkpoint-12.safetensors", path);
    tiny_open(&t, 1, 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dsc_snapshot s = snapshot(&t);
        int64_t bytes;
        tiny_fill(&t, 12);
        t.state.loss_scale[0] = cases[i].scale;
        t.state.best_top1 = cases[i].best;
        assert_ok(write_both(&s, path, &bytes));
        t.state.step = 77;
        expect_load(&t, model, DSC_E_FORMAT, cases[i].message);
        assert_int_equal(t.state.step, 77);
    }
    dsc_snapshot s = snapshot(&t);
    int64_t bytes;
    tiny_fill(&t, 12);
    t.state.loss_scale[0] = 1;
    t.state.best_top1 = -1; /* none */
    assert_ok(write_both(&s, path, &bytes));
    assert_ok(dsc_checkpoint_load(&s, model, NULL));
    tiny_close(&t);
}

static void spoil(const tiny *t, int64_t index) {
    dsc_tensor buffer = dsc_model_buffers(t->model)[index].value;
    float *host = runs_read(queue, &buffer);
    host[1] = NAN;
    assert_ok(dsc_tensor_upload(queue, host, dsc_tensor_bytes(&buffer), &buffer));
    assert_ok(dsc_queue_sync(queue));
    free(host);
}

/* Statistics that are not finite are refused, in either file. */
static void test_not_finite(void **state) {
    (void)state;
    tiny t;
    char good[SCRATCH_SIZE], bad[SCRATCH_SIZE];
    int64_t bytes;
    make_directory("finite", good);
    make_directory("not-finite", bad);
    tiny_open(&t, 1, 4);
    save(&t, 12, good);
    spoil(&t, 1);
    dsc_snapshot s = snapshot(&t);
    assert_ok(write_both(&s, bad, &bytes));
    expect_load(&t, scratch_path(bad, "checkpoint-12.safetensors"), DSC_E_FORMAT,
                "checkpoint-12.safetensors' is damaged: 'bn.running_var' holds numbers that are not finite");
    copy_file(scratch_path(bad, "checkpoint-12.state.safetensors"),
              scratch_path(good, "checkpoint-12.state.safetensors"));
    expect_load(&t, scratch_path(good, "checkpoint-12.safetensors"), DSC_E_FORMAT,
                "'rank.0.bn.running_var' holds numbers that are not finite");
    tiny_close(&t);
}

/* Puts another number of 8 bytes into a file. */
static void patch(const char *path, const char *name, const void *value) {
    dsc_st_reader *r = NULL;
    size_t bytes;
    uint64_t header;
    assert_ok(dsc_st_open(path, &r));
    size_t offset = dsc_st_find(r, name)->offset;
    dsc_st_close(&r);
    char *data = scratch_read(path, &bytes);
    memcpy(&header, data, sizeof header);
    memcpy(data + sizeof header + header + offset, value, 8);
    scratch_write(path, data, bytes);
    free(data);
}

/* Invalid values for the progress of a run, in a state file that was damaged after it was written. */
static void test_bad_place(void **state) {
    (void)state;
    static const struct {
        const char *name, *message;
        int64_t whole;
        double real; /* unless it is 0 */
    } cases[] = {
        {"train.step", "'train.step' is 9223372036854775807: it must be from 0 to 2^53", INT64_MAX, 0},
        {"train.step", "is of step 12, but 'train.step' is 13", 13, 0},
        {"train.epoch", "'train.epoch' is 9223372036854775807: it must be from 0 to 2^53", INT64_MAX, 0},
        {"train.epoch", "'train.epoch' is 9007199254740993: it must be from 0 to 2^53",
         (INT64_C(1) << 53) + 1, 0},
        {"train.evaluated_step", "is damaged: 'train.evaluated_step' is 9", INT64_MAX, 0},
        {"train.best_step", "is damaged: 'train.best_step' is -9", INT64_MIN, 0},
        {"train.loss_rows", "'train.loss_rows' is inf: it must be finite and not negative", 0, INFINITY},
        {"train.loss_sum", "'train.loss_sum' is nan: it must be finite", 0, NAN},
        {"train.seconds", "'train.seconds' is inf: it must be finite", 0, INFINITY},
        {"train.loss_scale_steps", "'train.loss_scale_steps' is inf: it must be finite", 0, INFINITY},
    };
    tiny t;
    char path[SCRATCH_SIZE], model[SCRATCH_SIZE * 2], file[SCRATCH_SIZE * 2];
    make_directory("place", path);
    snprintf(model, sizeof model, "%s/checkpoint-12.safetensors", path);
    snprintf(file, sizeof file, "%s/checkpoint-12.state.safetensors", path);
    tiny_open(&t, 1, 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        save(&t, 12, path);
        patch(file, cases[i].name,
              cases[i].real != 0 ? (const void *)&cases[i].real : (const void *)&cases[i].whole);
        expect_load(&t, model, DSC_E_FORMAT, "does not match its check sum");
        scratch_forget_sums(file); /* as in files of older versions */
        expect_load(&t, model, DSC_E_FORMAT, cases[i].message);
    }
    tiny_close(&t);
}

/* A file of the wrong tensors: the message has names and shapes. */
static void test_foreign_state_dict(void **state) {
    (void)state;
    tiny t, other;
    char path[SCRATCH_SIZE];
    dsc_st_reader *r = NULL;
    make_directory("foreign", path);
    tiny_open(&t, 1, 4);
    tiny_open(&other, 1, 5);
    save(&t, 12, path);
    assert_ok(dsc_st_open(scratch_path(path, "checkpoint-12.safetensors"), &r));
    assert_ok(dsc_statedict_check(t.model, "tiny", r));
    assert_fails(DSC_E_INVALID, "'fc.weight' is fp32 [4, 3], in model tiny it is fp32 [5, 3]",
                 dsc_statedict_check(other.model, "tiny", r));
    dsc_st_close(&r);
    assert_ok(dsc_st_open(scratch_path(path, "checkpoint-12.state.safetensors"), &r));
    assert_fails(DSC_E_INVALID, "lacks 'conv.weight' of model tiny", dsc_statedict_check(t.model, "tiny", r));
    dsc_st_close(&r);
    tiny_close(&t);
    tiny_close(&other);
}

/* Every allocation of save and load fails once: an error, no leak, no temporary file. */
static void test_memory(void **state) {
    (void)state;
    tiny t;
    char path[SCRATCH_SIZE];
    make_directory("memory", path);
    tiny_open(&t, 1, 4);
    tiny_fill(&t, 12);
    dsc_snapshot s = snapshot(&t);
    dsc_status status = DSC_E_MEMORY;
    int64_t bytes, nth = 0;
    while (status == DSC_E_MEMORY && nth < 1000) {
        dsc_memory_fail_at(++nth);
        status = write_both(&s, path, &bytes);
        assert_int_equal(scratch_count(path, ".tmp"), 0);
    }
    dsc_memory_fail_at(0);
    assert_ok(status);
    assert_true(nth > 10);
    status = DSC_E_MEMORY;
    for (nth = 0; status == DSC_E_MEMORY && nth < 1000;) {
        dsc_memory_fail_at(++nth);
        status = dsc_checkpoint_load(&s, scratch_path(path, "checkpoint-12.safetensors"), NULL);
    }
    dsc_memory_fail_at(0);
    assert_ok(status);
    assert_true(nth > 10);
    tiny_close(&t);
}

/* ---- fuzz ---- */

static void fuzz_one(const char *name, const dsc_snapshot *s, const char *path, uint32_t which) {
    size_t size;
    const char *victim = scratch_path(path, name), *model = scratch_path(path, "checkpoint-12.safetensors");
    char *good = scratch_read(victim, &size);
    char *bad = malloc(size);
    assert_non_null(bad);
    for (uint64_t i = 0; i < 5000; i++) {
        dsc_rng rng = dsc_rng_start(2, DSC_RNG_TEST, which, i);
        size_t length = i % 4 == 0 ? dsc_rng_below(&rng, (uint32_t)size) : size;
        memcpy(bad, good, size);
        for (uint32_t flips = i % 4 == 0 ? 0 : 1 + dsc_rng_below(&rng, 4); flips > 0; flips--)
            bad[dsc_rng_below(&rng, (uint32_t)size)] ^= (char)(1 << dsc_rng_below(&rng, 8));
        scratch_write(victim, bad, length);
        dsc_status status = dsc_checkpoint_load(s, model, NULL);
        assert_true(status == DSC_OK || status == DSC_E_FORMAT || status == DSC_E_INVALID);
    }
    scratch_write(victim, good, size);
    free(good);
    free(bad);
}

static void test_fuzz(void **state) {
    (void)state;
    tiny t;
    char path[SCRATCH_SIZE];
    make_directory("fuzz", path);
    tiny_open(&t, 1, 4);
    save(&t, 12, path);
    dsc_snapshot s = snapshot(&t);
    fuzz_one("checkpoint-12.safetensors", &s, path, 0);
    fuzz_one("checkpoint-12.state.safetensors", &s, path, 1);
    tiny_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_list_and_prune),
        cmocka_unit_test(test_latest),        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_mismatches),    cmocka_unit_test(test_foreign_state_dict),
        cmocka_unit_test(test_memory),        cmocka_unit_test(test_fuzz),
        cmocka_unit_test(test_two_writers),   cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_not_finite),    cmocka_unit_test(test_bad_place),
        cmocka_unit_test(test_best),          cmocka_unit_test(test_find),
        cmocka_unit_test(test_newest_intact),
    };
    scratch_make(directory);
    runs_open(&comm, &device);
    if (dsc_queue_create(device, &queue) != DSC_OK || dsc_comm_use_queue(comm, queue) != DSC_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dsc_comm_destroy(&comm);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    scratch_remove(directory);
    return failed;
}

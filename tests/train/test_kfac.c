/* K-FAC in runs of one process: schedules, metrics, stop and resume, checkpoints of other runs and damaged
 * ones, the sampled Fisher matrix; that it trains faster than SGD, and that it is more than a scaled
 * gradient. */
#include "chosen.h"

#include "base/memory.h"
#include "device/recording.h"
#include "device/table.h"
#include "train/kfac_setup.h"
#include "train/runs.h"
#include "train/safetensors.h"
#include "train/scratch.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS = 5, PATHS = 16 }; /* of lenet */

static dsc_comm *comm;
static dsc_device *device;
static char directory[SCRATCH_SIZE];
static const char *warnings; /* of the last noted run */

static const char *folder(const char *name, char path[SCRATCH_SIZE]) {
    snprintf(path, SCRATCH_SIZE, "%s", scratch_path(directory, name));
    return path;
}

/* lenet, 4 steps an epoch, K-FAC that decomposes every third step. */
static void kfac_options(dsc_train_options *o, const char *out) {
    runs_options(o, out);
    o->model = "lenet";
    o->data = "synthetic:32";
    o->batch_size = 8;
    o->eval_every = 0;
    kfac_of(o)->update_freq = 3;
}

/* ---- options ---- */

static void test_options(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_train_options_init(&o);
    assert_null(o.kfac);
    assert_true(o.kfac_damping_alpha == 0.5 && o.kfac_update_freq_alpha == 10);
    static const struct {
        size_t offset;
        double value;
        const char *message;
    } reals[] =
        {
            {offsetof(dsc_train_options, kfac_damping_alpha), 0, "kfac-damping-alpha 0: must be above 0"},
            {offsetof(dsc_train_options, kfac_update_freq_alpha), NAN, "kfac-update-freq-alpha"},
            {offsetof(dsc_train_options, kfac_diag_warmup), -1, "kfac-diag-warmup -1: must be at least 0"},
        },
      parts[] = {
          {offsetof(dsc_kfac_options, damping), 0, "kfac-damping 0: must be above 0"},
          {offsetof(dsc_kfac_options, stat_decay), 2, "kfac-stat-decay 2: must be"},
          {offsetof(dsc_kfac_options, kl_clip), -1, "kfac-kl-clip -1: must be at least 0"},
      };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        kfac_options(&o, NULL);
        memcpy((char *)&o + reals[i].offset, &reals[i].value, sizeof reals[i].value);
        assert_fails(DSC_E_INVALID, reals[i].message, dsc_train_run(comm, device, &o, NULL));
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        kfac_options(&o, NULL);
        memcpy((char *)kfac_of(&o) + parts[i].offset, &parts[i].value, sizeof parts[i].value);
        assert_fails(DSC_E_INVALID, parts[i].message, dsc_train_run(comm, device, &o, NULL));
    }
    kfac_options(&o, NULL);
    kfac_of(&o)->update_freq = -1;
    assert_fails(DSC_E_INVALID, "kfac-update-freq -1: must be at least 0",
                 dsc_train_run(comm, device, &o, NULL));
    kfac_options(&o, NULL);
    o.kfac_damping_decay_count = DSC_MAX_DECAYS + 1;
    assert_fails(DSC_E_INVALID, "kfac-damping-decay with 33 values: 0 to 32",
                 dsc_train_run(comm, device, &o, NULL));
    kfac_options(&o, NULL);
    o.kfac_fisher = (dsc_fisher)2;
    assert_fails(DSC_E_INVALID, "kfac-fisher 2 is unknown: choose one of empirical, sampled",
                 dsc_train_run(comm, device, &o, NULL));
    assert_fails(DSC_E_INVALID, "choose one of empirical, sampled", dsc_fisher_parse("true", &o.kfac_fisher));
    assert_ok(dsc_fisher_parse("sampled", &o.kfac_fisher));
    assert_string_equal(dsc_fisher_name(o.kfac_fisher), "sampled");
}

/* ---- schedules ---- */

/* A pure function of the epoch, however often it is asked. */
static void test_schedules(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_train_options_init(&o);
    o.kfac_damping_decay[0] = 1;
    o.kfac_damping_decay[1] = 2.5;
    o.kfac_damping_decay_count = 2;
    o.kfac_update_freq_decay[0] = 2;
    o.kfac_update_freq_decay_count = 1;
    o.kfac_diag_warmup = 3;
    const dsc_kfac_hyper base = {.damping = 0.5,
                                 .stat_decay = 0.9,
                                 .kl_clip = 0.1,
                                 .factor_freq = 3,
                                 .update_freq = 40,
                                 .diag_blocks = 4};
    static const struct {
        double epoch, damping;
        int64_t factor, update, blocks;
    } cases[] = {{0, 0.5, 3, 40, 1},    {0.9, 0.5, 3, 40, 1},     {1, 0.25, 3, 40, 1},
                 {2, 0.25, 30, 400, 1}, {2.5, 0.125, 30, 400, 1}, {3, 0.125, 30, 400, 4},
                 {9, 0.125, 30, 400, 4}};
    for (int again = 0; again < 3; again++) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            dsc_kfac_hyper h = dsc_kfac_setup_hyper(&o, base, cases[i].epoch);
            assert_true(h.damping == cases[i].damping);
            assert_int_equal(h.factor_freq, cases[i].factor);
            assert_int_equal(h.update_freq, cases[i].update);
            assert_int_equal(h.diag_blocks, cases[i].blocks);
            assert_true(h.stat_decay == 0.9 && h.kl_clip == 0.1);
        }
    }
    o.kfac_update_freq_alpha = 0.05; /* 0.15 and 2 */
    assert_int_equal(dsc_kfac_setup_hyper(&o, base, 2).factor_freq, 1);
    assert_int_equal(dsc_kfac_setup_hyper(&o, base, 2).update_freq, 2);
    o.kfac_update_freq_alpha = 1e300;
    assert_true(dsc_kfac_setup_hyper(&o, base, 2).update_freq == (int64_t)1e15);
    dsc_kfac_hyper never = base;
    never.factor_freq = 0;
    assert_int_equal(dsc_kfac_setup_hyper(&o, never, 2).factor_freq, 0);
}

static double number(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);
    if (!json_is_number(value)) {
        char *text = json_dumps(line, JSON_COMPACT);
        print_error("%s\n", text ? text : "");
        free(text);
        fail_msg("'%s' is not a number", key);
    }
    return json_number_value(value);
}

/* The caller's own schedule comes last and sees what the epochs' made. */
static dsc_status own_schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    double *seen = context;
    seen[step] = hyper->damping;
    hyper->update_freq = 1;
    hyper->kl_clip = 0;
    return DSC_OK;
}

static void test_schedules_in_run(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    double seen[16] = {0};
    kfac_options(&o, folder("schedules", out));
    o.epochs = 3;
    kfac_of(&o)->schedule = own_schedule;
    kfac_of(&o)->context = seen;
    o.kfac_damping_decay[0] = 1;
    o.kfac_damping_decay[1] = 2;
    o.kfac_damping_decay_count = 2;
    o.steps = 6;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.resume = "auto"; /* in the middle of an epoch */
    o.steps = 0;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    json_t *lines = runs_lines(out);
    assert_int_equal(runs_count(lines, "kfac"), 12);
    for (int i = 0; i < 12; i++) {
        double damping = 0.003 * pow(0.5, i / 4);
        const json_t *line = runs_line(lines, "kfac", i);
        assert_true(seen[i] == damping && number(line, "damping") == damping);
        assert_int_equal(number(line, "update_freq"), 1);
        assert_true(number(line, "nu") == 1 && number(line, "kl_clip") == 0);
    }
    json_decref(lines);
}

/* ---- metrics ---- */

static double held_factors(void) {
    static const int64_t rows[2 * LAYERS] = {76, 6, 151, 16, 577, 120, 121, 84, 85, 10};
    double bytes = 0;
    for (int i = 0; i < 2 * LAYERS; i++)
        bytes += 4.0 * (double)(rows[i] * (rows[i] + 1) / 2);
    return bytes;
}

static void check_layer(const json_t *layer) {
    assert_true(json_is_string(json_object_get(layer, "name")));
    assert_true(number(layer, "cosine") > 0 && number(layer, "cosine") <= 1 + 1e-6);
    assert_true(number(layer, "a_min") >= 0 && number(layer, "a_min") <= number(layer, "a_max"));
    assert_true(number(layer, "g_min") >= 0 && number(layer, "g_min") <= number(layer, "g_max"));
    double condition = (number(layer, "a_max") * number(layer, "g_max") + 0.003) /
                       (number(layer, "a_min") * number(layer, "g_min") + 0.003);
    assert_true(fabs(number(layer, "condition") - condition) <= 1e-6 * condition);
}

static void check_kfac_line(const json_t *line, int i) {
    static const char *const keys[] = {"time_s", "failed_solves", "retried_solves", "rejected_factors"};
    assert_int_equal(number(line, "step"), 3 * i + 1);
    assert_int_equal(number(line, "epoch"), (3 * i) / 4);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        assert_true(number(line, keys[k]) >= 0);
    assert_int_equal(number(line, "failed_solves"), 0);
    assert_true(number(line, "nu") > 0 && number(line, "nu") <= 1);
    assert_true(number(line, "damping") == 0.003 && number(line, "stat_decay") == 0.95);
    assert_int_equal(number(line, "factor_freq"), 1);
    const json_t *held = json_object_get(line, "held"), *ms = json_object_get(line, "ms");
    assert_true(number(held, "factors") == held_factors());
    assert_true(number(held, "decompositions") > number(held, "factors") && number(held, "work") > 0);
    assert_true(number(held, "exchange") == (dsc_device_is_host(device) ? 0 : held_factors()));
    assert_true(number(ms, "factor") > 0 && number(ms, "decompose") > 0 && number(ms, "precondition") > 0);
    assert_true(number(json_object_get(line, "sent"), "factors") == 0); /* one rank sends nothing */
    const json_t *load = json_array_get(json_object_get(line, "loads"), 0);
    assert_true(number(load, "share") == 1 && number(load, "work") > 0 && number(load, "solve_ms") > 0);
    const json_t *layers = json_object_get(line, "layers");
    assert_int_equal(json_array_size(layers), LAYERS);
    for (size_t k = 0; k < LAYERS; k++)
        check_layer(json_array_get(layers, k));
}

static void test_metrics(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    kfac_options(&o, folder("metrics", out));
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    json_t *lines = runs_lines(out);
    const json_t *config = json_object_get(runs_line(lines, "run", 0), "config");
    assert_int_equal(number(json_object_get(config, "kfac"), "update_freq"), 3);
    assert_int_equal(runs_count(lines, "kfac"), 3);
    for (int i = 0; i < 3; i++)
        check_kfac_line(runs_line(lines, "kfac", i), i);
    for (int i = 0; i < 8; i++) {
        const json_t *line = runs_line(lines, "step", i);
        assert_true(number(line, "nu") > 0 && number(line, "nu") <= 1);
        assert_true(number(line, "factor") > 0 && number(line, "precondition") > 0);
        assert_true((number(line, "decompose") > 1) == (i % 3 == 0)); /* milliseconds */
        assert_true(number(line, "backward") > 0);
    }
    json_decref(lines);

    kfac_options(&o, folder("no-metrics", out));
    kfac_of(&o)->update_freq = 0;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    lines = runs_lines(out);
    assert_int_equal(runs_count(lines, "kfac"), 0);
    assert_null(json_object_get(runs_line(lines, "step", 0), "nu"));
    json_decref(lines);
}

/* With the inverse the metrics have no eigenvalues; layers that are left out are missing in them. */
static void test_metrics_inverse(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    kfac_options(&o, folder("by-inverse", out));
    kfac_of(&o)->method = DSC_KFAC_INVERSE;
    kfac_of(&o)->skip_layers = "^fc3$ conv2d";
    kfac_of(&o)->kl_clip = 0;
    o.steps = 2;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    json_t *lines = runs_lines(out);
    const json_t *line = runs_line(lines, "kfac", 0), *layers = json_object_get(line, "layers");
    assert_true(number(line, "nu") == 1);
    assert_int_equal(json_array_size(layers), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(layers, 0), "name")), "fc1");
    assert_true(json_is_null(json_object_get(json_array_get(layers, 0), "a_max")));
    assert_true(number(json_array_get(layers, 0), "cosine") > 0);
    json_decref(lines);
}

/* ---- stop and resume ---- */

typedef void (*variant)(dsc_train_options *o);

static void plain(dsc_train_options *o) {
    (void)o;
}

static void rare(dsc_train_options *o) {
    kfac_of(o)->factor_freq = 2;
    kfac_of(o)->kl_clip = 0;
    kfac_of(o)->damping = 0.1;
    kfac_of(o)->outer_product = 1;
}

static void inverse(dsc_train_options *o) {
    kfac_of(o)->method = DSC_KFAC_INVERSE;
    o->kfac_fisher = DSC_FISHER_SAMPLED;
}

static void halves(dsc_train_options *o) {
    kfac_of(o)->factor_dtype = DSC_BF16;
    kfac_of(o)->inverse_dtype = DSC_BF16;
    o->batch_size = 4;
    o->batches_per_allreduce = 2;
}

static void blocks(dsc_train_options *o) {
    kfac_of(o)->diag_blocks = 2;
    o->kfac_diag_warmup = 1;
}

static void beside(dsc_train_options *o) {
    kfac_of(o)->factor_freq = 2;
    kfac_of(o)->async_steps = 2;
}

static void ekfac_batch(dsc_train_options *o) {
    kfac_of(o)->ekfac = DSC_KFAC_EKFAC_BATCH;
    kfac_of(o)->factor_freq = 2;
}

static void ekfac_samples(dsc_train_options *o) {
    kfac_of(o)->ekfac = DSC_KFAC_EKFAC_SAMPLES;
    o->kfac_fisher = DSC_FISHER_SAMPLED;
}

static void norms(dsc_train_options *o) {
    o->model = "resnet20";
    o->batch_size = 4;
    o->batches_per_allreduce = 2;
    kfac_of(o)->norm = DSC_KFAC_NORM_FULL;
    kfac_of(o)->factor_freq = 2;
    kfac_of(o)->skip_layers = "layer[23]";
}

/* Whole factors until epoch 1: step 4 and the next decomposition, at step 6, use blocks. */
static const struct {
    const char *name;
    variant change;
} variants[] = {
    {"plain", plain},   {"rare", rare},     {"inverse", inverse},         {"halves", halves},
    {"blocks", blocks}, {"beside", beside}, {"ekfac-batch", ekfac_batch}, {"ekfac-samples", ekfac_samples},
    {"norms", norms}};

static void check_resume(int which, int64_t stop, const char *whole) {
    char out[SCRATCH_SIZE], name[64];
    dsc_train_options o;
    snprintf(name, sizeof name, "%s-%lld", variants[which].name, (long long)stop);
    kfac_options(&o, folder(name, out));
    variants[which].change(&o);
    o.steps = stop;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.steps = 0;
    o.resume = "auto";
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_string_equal(warnings, "");
    assert_int_equal(runs_differences(whole, out, 8), 0);
}

static void test_resume(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof variants / sizeof variants[0]); i++) {
        char whole[SCRATCH_SIZE];
        dsc_train_options o;
        kfac_options(&o, folder(variants[i].name, whole));
        variants[i].change(&o);
        assert_ok(dsc_train_run(comm, device, &o, NULL));
        check_resume(i, 2, whole); /* between the decompositions of steps 0 and 3 */
        check_resume(i, 5, whole);
    }
}

/* ---- checkpoints of other runs ---- */

/* Makes a run of 4 steps, and options that continue it. */
static void write_one(const char *name, char out[SCRATCH_SIZE], dsc_train_options *o) {
    static char paths[PATHS][SCRATCH_SIZE + 64];
    static int next;
    char *path = paths[next++ % PATHS];
    kfac_options(o, folder(name, out));
    o->steps = 4;
    assert_ok(dsc_train_run(comm, device, o, NULL));
    snprintf(path, sizeof paths[0], "%s/checkpoint-4.safetensors", out);
    o->resume = path;
    o->out = NULL;
    o->steps = 6;
}

static void test_other_state(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    write_one("others", out, &o);
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_string_equal(warnings, "");
    kfac_of(&o)->method = DSC_KFAC_INVERSE;
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_non_null(strstr(warnings, "other decompositions"));
    kfac_of(&o)->method = DSC_KFAC_EIGEN;
    kfac_of(&o)->inverse_dtype = DSC_F16;
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_non_null(strstr(warnings, "other decompositions"));
    kfac_of(&o)->inverse_dtype = DSC_F32;
    kfac_of(&o)->factor_dtype = DSC_BF16;
    assert_fails(DSC_E_FORMAT, "of type fp32, this run has", dsc_train_run(comm, device, &o, NULL));
    kfac_of(&o)->factor_dtype = DSC_F32;
    kfac_of(&o)->skip_layers = "conv"; /* fewer than the file has */
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    kfac_of(&o)->update_freq = 0; /* the state is ignored */
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_string_equal(warnings, "");
}

/* From a file without K-FAC's state its factors start anew; a file with only a part of it is refused. */
static void test_lacking_state(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    kfac_options(&o, folder("lacking", out));
    kfac_of(&o)->update_freq = 0;
    o.steps = 4;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.resume = out;
    o.out = NULL;
    o.steps = 6;
    kfac_of(&o)->update_freq = 3;
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_non_null(strstr(warnings, "written without K-FAC"));

    kfac_options(&o, folder("lacking-layers", out));
    o.steps = 4;
    kfac_of(&o)->skip_layers = "conv";
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.resume = out;
    o.out = NULL;
    o.steps = 6;
    kfac_of(&o)->skip_layers = NULL;
    assert_fails(DSC_E_FORMAT, "lacks 'kfac.conv1.A'", dsc_train_run(comm, device, &o, NULL));
}

/* ---- how decompositions are refreshed ---- */

/* Convolutions alone, one of whose factors is large enough to be rotated. */
static void refresh_options(dsc_train_options *o, const char *out) {
    kfac_options(o, out);
    kfac_of(o)->skip_layers = "fc";
    o->batch_size = 4;
}

/* The refresh of the n-th start of a run, by its metrics. */
static const char *refresh_of(const char *out, int n, char name[16]) {
    json_t *lines = runs_lines(out);
    const json_t *config = json_object_get(runs_line(lines, "run", n), "config");
    const char *found = json_string_value(json_object_get(json_object_get(config, "kfac"), "refresh"));
    snprintf(name, 16, "%s", found ? found : "nothing");
    json_decref(lines);
    return name;
}

/* The last K-FAC line that a run printed at its start. */
static void note_kfac(void *context, const dsc_progress *progress) {
    if (progress->kind == DSC_EVENT_START && strncmp(progress->text, "K-FAC: ", 7) == 0)
        snprintf(context, 512, "%s", progress->text);
}

/* Options of a GPT, whose layers share factors A. */
static void text_options(dsc_train_options *o, const char *data, const char *out) {
    kfac_options(o, out);
    o->model = "gpt-mini:layers=1,heads=2,width=8,dropout=0";
    o->data = data;
    o->context = 8;
}

/* A run of 4 steps with this refresh, continued to step 6 with auto: it keeps what it had on any device. data: text, or
 * NULL for images. */
static void check_kept(const char *directory_name, dsc_kfac_refresh refresh, const char *data) {
    char out[SCRATCH_SIZE], name[16];
    const char *expected = dsc_kfac_refresh_name(refresh);
    dsc_train_options o;
    if (data)
        text_options(&o, data, folder(directory_name, out));
    else
        refresh_options(&o, folder(directory_name, out));
    kfac_of(&o)->refresh = refresh;
    o.steps = 4;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    kfac_of(&o)->refresh = DSC_KFAC_AUTO;
    o.resume = "auto";
    o.steps = 6;
    assert_ok(runs_noting(comm, device, &o, &warnings));
    assert_string_equal(warnings, "");
    assert_string_equal(refresh_of(out, 0, name), expected);
    assert_string_equal(refresh_of(out, 1, name), expected);
}

/* auto is warm on a GPU and exact on a CPU; the start of a run, its metrics and its file `config` say which. */
static void test_refresh(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], name_of_text[SCRATCH_SIZE], name[16], line[512] = "", wanted[64];
    const char *expected = dsc_device_is_host(device) ? "exact" : "warm";
    size_t bytes;
    dsc_train_options o;
    refresh_options(&o, folder("auto", out));
    kfac_of(&o)->refresh = DSC_KFAC_AUTO;
    o.steps = 5;
    o.progress = note_kfac;
    o.progress_context = line;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_string_equal(refresh_of(out, 0, name), expected);
    snprintf(wanted, sizeof wanted, "refresh %s", expected);
    assert_non_null(strstr(line, wanted));
    snprintf(wanted, sizeof wanted, "\nkfac-refresh = %s\n", expected);
    char *config = scratch_read(scratch_path(out, "config"), &bytes);
    config[bytes - 1] = '\0';
    assert_non_null(strstr(config, wanted));
    free(config);
    json_t *lines = runs_lines(out);
    assert_int_equal(number(runs_line(lines, "kfac", 1), "refreshed_factors") > 0,
                     !dsc_device_is_host(device));
    json_decref(lines);

    kfac_of(&o)->method = DSC_KFAC_INVERSE; /* which has no eigenvectors to rotate */
    o.out = folder("auto-inverse", out);
    o.steps = 1;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_string_equal(refresh_of(out, 0, name), "exact");

    check_kept("auto-after-exact", DSC_KFAC_EXACT, NULL);
    check_kept("auto-after-warm", DSC_KFAC_WARM, NULL);
    char text[2000], data[SCRATCH_SIZE + 8];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i / 7 % 11);
    scratch_write(folder("letters", name_of_text), text, sizeof text);
    snprintf(data, sizeof data, "text:%s", name_of_text);
    check_kept("auto-after-shared-exact", DSC_KFAC_EXACT, data);
    check_kept("auto-after-shared-warm", DSC_KFAC_WARM, data);
}

/* A run with warm refresh can continue from a checkpoint of one with exact decompositions, and vice versa. */
static void test_other_refresh(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        char out[SCRATCH_SIZE], name[16];
        dsc_train_options o;
        refresh_options(&o, folder(i ? "warm-then-exact" : "exact-then-warm", out));
        kfac_of(&o)->refresh = i ? DSC_KFAC_WARM : DSC_KFAC_EXACT;
        o.steps = 4;
        assert_ok(dsc_train_run(comm, device, &o, NULL));
        kfac_of(&o)->refresh = i ? DSC_KFAC_EXACT : DSC_KFAC_WARM;
        o.resume = "auto";
        o.steps = 0;
        assert_ok(runs_noting(comm, device, &o, &warnings));
        assert_string_equal(warnings, "");
        assert_string_equal(refresh_of(out, 1, name), i ? "exact" : "warm");
    }
}

/* ---- damaged files ---- */

/* The offset of a tensor's data in the file. */
static size_t place_of(const char *path, const char *name) {
    dsc_st_reader *reader = NULL;
    assert_ok(dsc_st_open(path, &reader));
    const dsc_st_tensor *t = dsc_st_find(reader, name);
    assert_non_null(t);
    size_t end = 0, bytes;
    for (int64_t i = 0; i < dsc_st_count(reader); i++) {
        const dsc_st_tensor *other = &dsc_st_tensors(reader)[i];
        end = other->offset + other->bytes > end ? other->offset + other->bytes : end;
    }
    size_t offset = t->offset;
    dsc_st_close(&reader);
    free(scratch_read(path, &bytes));
    return bytes - end + offset;
}

static void check_damage(const dsc_train_options *o, const char *path, const char *whole, size_t bytes,
                         const char *tensor, const void *value, size_t size, const char *message) {
    size_t at = place_of(path, tensor);
    char *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, whole, bytes);
    memcpy(copy + at, value, size);
    scratch_write(path, copy, bytes);
    scratch_forget_sums(path); /* which would tell first */
    assert_fails(DSC_E_FORMAT, message, dsc_train_run(comm, device, o, NULL));
    scratch_write(path, whole, bytes);
    free(copy);
}

static void test_damaged(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], path[SCRATCH_SIZE + 64];
    const float nan = NAN;
    const int64_t negative = -5;
    size_t bytes;
    dsc_train_options o;
    write_one("damaged", out, &o);
    snprintf(path, sizeof path, "%s/checkpoint-4.state.safetensors", out);
    char *whole = scratch_read(path, &bytes);
    check_damage(&o, path, whole, bytes, "kfac.conv2.A", &nan, sizeof nan, "not finite");
    check_damage(&o, path, whole, bytes, "kfac.fc1.G.values", &nan, sizeof nan, "not finite");
    check_damage(&o, path, whole, bytes, "kfac.step", &negative, sizeof negative, "damaged");
    for (size_t part = 1; part < 5; part++) {
        scratch_write(path, whole, bytes * part / 5);
        assert_fails(DSC_E_FORMAT, "checkpoint-4.state", dsc_train_run(comm, device, &o, NULL));
    }
    scratch_write(path, whole, bytes);
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    free(whole);
}

/* A letter of the header changed: the run goes on only when nothing it needs was hit. */
static void test_fuzzed(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], path[SCRATCH_SIZE + 64];
    size_t bytes;
    dsc_train_options o;
    write_one("fuzzed", out, &o);
    o.steps = 4; /* only loads */
    snprintf(path, sizeof path, "%s/checkpoint-4.state.safetensors", out);
    char *whole = scratch_read(path, &bytes), *first = strstr(whole + 8, "kfac.");
    assert_non_null(first);
    int refused = 0, stride = dsc_device_is_host(device) ? 1 : 4;
    for (int i = 0; i < 60; i += stride) {
        size_t at = (size_t)(first - whole) + (size_t)i * 61;
        char kept = whole[at];
        whole[at] = (char)(kept ^ (1 << i % 7));
        scratch_write(path, whole, bytes);
        dsc_status status = dsc_train_run(comm, device, &o, NULL);
        assert_true(status == DSC_OK || status == DSC_E_FORMAT || status == DSC_E_INVALID);
        refused += status != DSC_OK;
        whole[at] = kept;
    }
    assert_true(refused > 15 / stride);
    free(whole);
}

/* ---- the sampled Fisher matrix ---- */

static dsc_status idle_schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    (void)step;
    hyper->update_freq = 0;
    return DSC_OK;
}

/* The tensor `name` of the state after 4 steps; the caller frees it. */
static float *state_tensor(const char *out, const char *name, size_t *bytes) {
    dsc_st_reader *reader = NULL;
    assert_ok(dsc_st_open(scratch_path(out, "checkpoint-4.state.safetensors"), &reader));
    const dsc_st_tensor *t = dsc_st_find(reader, name);
    assert_non_null(t);
    float *values = malloc(t->bytes);
    assert_non_null(values);
    assert_ok(dsc_st_read(reader, t, values, t->bytes));
    *bytes = t->bytes;
    dsc_st_close(&reader);
    return values;
}

static int same_tensor(const char *a, const char *b, const char *name) {
    size_t bytes, others;
    float *x = state_tensor(a, name, &bytes), *y = state_tensor(b, name, &others);
    int same = bytes == others && memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}

/* While it only gathers factors, K-FAC changes neither loss nor parameters, with either Fisher matrix. The sampled one
 * has the same factors A as the empirical one but other factors G, and a second run gives the same bits. */
static void test_sampled(void **state) {
    (void)state;
    char sgd[SCRATCH_SIZE], empirical[SCRATCH_SIZE], sampled[SCRATCH_SIZE], again[SCRATCH_SIZE];
    dsc_train_options o;
    kfac_options(&o, folder("sgd", sgd));
    o.batch_size = 4;
    o.batches_per_allreduce = 2;
    o.steps = 4;
    kfac_of(&o)->update_freq = 0;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    kfac_of(&o)->update_freq = 1;
    kfac_of(&o)->schedule = idle_schedule;
    o.out = folder("empirical", empirical);
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.kfac_fisher = DSC_FISHER_SAMPLED;
    o.out = folder("sampled", sampled);
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.out = folder("again", again);
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_int_equal(runs_differences(sampled, again, 4), 0);
    static const char *const unmoved[] = {"train.epoch_loss", "train.loss_rows",
                                          "optimizer.momentum.conv1.weight", "optimizer.momentum.fc3.bias"};
    for (size_t i = 0; i < sizeof unmoved / sizeof unmoved[0]; i++) {
        assert_true(same_tensor(sgd, empirical, unmoved[i]));
        assert_true(same_tensor(sgd, sampled, unmoved[i]));
    }
    assert_true(same_tensor(empirical, sampled, "kfac.fc3.A"));
    assert_false(same_tensor(empirical, sampled, "kfac.fc3.G"));
    assert_false(same_tensor(empirical, sampled, "kfac.conv1.G"));
}

/* ---- it is K-FAC ---- */

/* The least cosine over the layers of the last decomposition whose name starts like this, or the greatest. */
static double cosine(const char *out, const char *start, int least) {
    json_t *lines = runs_lines(out);
    const json_t *layers = json_object_get(runs_line(lines, "kfac", runs_count(lines, "kfac") - 1), "layers");
    double found = least ? 2 : -2;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        const char *name = json_string_value(json_object_get(layer, "name"));
        double value = number(layer, "cosine");
        if (strncmp(name, start, strlen(start)) == 0 && (least ? value < found : value > found))
            found = value;
    }
    json_decref(lines);
    return found;
}

/* The preconditioned gradient differs in direction from the gradient; with factors that are negligible beside the
 * damping it does not. */
static void test_angle(void **state) {
    (void)state;
    char paper[SCRATCH_SIZE], pytorch[SCRATCH_SIZE];
    dsc_train_options o;
    kfac_options(&o, folder("paper", paper));
    o.epochs = 40;
    o.checkpoint_every = -1;
    kfac_of(&o)->update_freq = 10;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.out = folder("pytorch", pytorch);
    kfac_of(&o)->scaling = DSC_KFAC_PYTORCH;
    kfac_of(&o)->kl_clip = 1e-5; /* P is D / damping: at the usual one steps are so long that units die */
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    if (!(cosine(paper, "", 1) < 0.9))
        fail_msg("least cosine %g: no more than a scaled gradient", cosine(paper, "", 1));
    assert_true(cosine(paper, "conv", 1) < 0.9);
    assert_true(cosine(pytorch, "conv", 1) > 0.999);
}

/* The mean training loss of the last epoch is clearly below SGD's, for each seed; each at a rate that suits
 * it (of 0.01, 0.03, 0.05 and 0.1 SGD does best with the first). */
static void test_faster(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        dsc_train_options o;
        dsc_train_result sgd = {.size = sizeof sgd}, second = {.size = sizeof second};
        kfac_options(&o, NULL);
        o.data = "synthetic:128";
        o.batch_size = 16;
        o.epochs = 6;
        o.augment = 0;
        o.lr = 0.01;
        o.seed = seed;
        kfac_of(&o)->update_freq = 0;
        assert_ok(dsc_train_run(comm, device, &o, &sgd));
        o.lr = 0.03;
        kfac_of(&o)->update_freq = 10;
        assert_ok(dsc_train_run(comm, device, &o, &second));
        if (!(second.train_loss < 0.5 * sgd.train_loss))
            fail_msg("seed %d: K-FAC %g, SGD %g", (int)seed, second.train_loss, sgd.train_loss);
    }
}

/* ---- recorded steps ---- */

/* A device that cannot record runs every step directly, and gives the same bits. */
static void check_recorded(const char *name, variant change) {
    char recorded[SCRATCH_SIZE], plain_steps[SCRATCH_SIZE], other[64];
    const dsc_device_table *table = device->table;
    dsc_device_table without = *table;
    dsc_train_options o;
    snprintf(other, sizeof other, "%s-unrecorded", name);
    kfac_options(&o, folder(name, recorded));
    o.epochs = 8;
    o.steps = chosen_is_emulated(device) ? 10 : 30;
    o.checkpoint_every = -1;
    kfac_of(&o)->update_freq = 4;
    kfac_of(&o)->factor_freq = 2;
    kfac_of(&o)->skip_layers = "^fc1$"; /* the large one */
    o.batch_size = 4;
    change(&o);
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    o.out = folder(other, plain_steps);
    without.record_begin = NULL;
    device->table = &without;
    assert_false(dsc_device_records(device));
    dsc_status status = dsc_train_run(comm, device, &o, NULL);
    device->table = table;
    assert_ok(status);
    assert_int_equal(runs_differences(recorded, plain_steps, o.steps), 0);
}

/* Factors are cut at the second decomposition, when steps with whole ones have been recorded. */
static void late_blocks(dsc_train_options *o) {
    kfac_of(o)->diag_blocks = 2;
    o->kfac_diag_warmup = 0.5;
}

static void test_recorded(void **state) {
    (void)state;
    if (!dsc_device_records(device))
        skip();
    check_recorded("recorded", plain);
    check_recorded("recorded-blocks", late_blocks);
    check_recorded("recorded-beside", beside);
    check_recorded("recorded-ekfac-batch", ekfac_batch);
    check_recorded("recorded-ekfac-samples", ekfac_samples);
    if (!chosen_is_emulated(device)) /* a ResNet takes minutes there */
        check_recorded("recorded-norms", norms);
}

/* ---- no allocation in a step ---- */

static void note_allocations(void *context, const dsc_progress *progress) {
    int64_t *at = context;
    if (progress->kind == DSC_EVENT_STEP && progress->step < 16)
        at[progress->step] = dsc_memory_allocations();
}

static void test_allocations(void **state) {
    (void)state;
    dsc_train_options o;
    int64_t at[16] = {0};
    kfac_options(&o, NULL);
    o.epochs = 4;
    o.kfac_fisher = DSC_FISHER_SAMPLED;
    o.progress = note_allocations;
    o.progress_context = at;
    assert_ok(dsc_train_run(comm, device, &o, NULL));
    assert_true(at[4] > 0);
    assert_int_equal(at[15], at[4]);
}

/* Allocations fail once each, every seventh of them: an error without a leak, or a run that can do without. */
static void test_memory(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    write_one("memory", out, &o);
    o.steps = 5;
    dsc_status status = DSC_E_MEMORY;
    int64_t nth = -3, made = 0, stride = dsc_device_is_host(device) ? 7 : 97; /* a GPU takes longer */
    while ((status == DSC_E_MEMORY || nth <= made) && nth < 5000) {
        int64_t before = dsc_memory_allocations();
        dsc_memory_fail_at(nth += stride);
        status = dsc_train_run(comm, device, &o, NULL);
        assert_true(status == DSC_OK || status == DSC_E_MEMORY);
        made = dsc_memory_allocations() - before;
    }
    dsc_memory_fail_at(0);
    assert_ok(status);
    assert_true(nth > 100);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),          cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_schedules_in_run), cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_metrics_inverse),  cmocka_unit_test(test_resume),
        cmocka_unit_test(test_other_state),      cmocka_unit_test(test_lacking_state),
        cmocka_unit_test(test_refresh),          cmocka_unit_test(test_other_refresh),
        cmocka_unit_test(test_damaged),          cmocka_unit_test(test_fuzzed),
        cmocka_unit_test(test_sampled),          cmocka_unit_test(test_angle),
        cmocka_unit_test(test_faster),           cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_memory),           cmocka_unit_test(test_recorded),
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

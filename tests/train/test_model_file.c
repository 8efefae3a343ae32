/* Saving and loading a model: round trip, metadata, strict and partial loading with its report, types that
 * are converted, damaged files, failures that leave the model and an older file as they were. */
#include "test.h"

#include "base/memory.h"
#include "base/rng.h"
#include "descent/checkpoint.h"
#include "device/half.h"
#include "train/runs.h"
#include "train/safetensors.h"
#include "train/scratch.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

static dsc_comm *comm;
static dsc_device *device;
static dsc_queue *queue;
static char directory[SCRATCH_SIZE];

static dsc_model *zoo(const char *name, int64_t classes, uint64_t seed) {
    dsc_model_options options;
    dsc_model *model = NULL;
    dsc_model_options_init(&options);
    options.seed = seed;
    assert_ok(dsc_zoo_create(device, name, 32, 32, 3, classes, &options, &model));
    return model;
}

/* conv.weight [2][1][2][3] (OHWI), bn.*, fc.weight [2][2], fc.bias [2]. */
static dsc_model *tiny(uint64_t seed) {
    dsc_model_options options;
    dsc_conv2d_shape conv;
    dsc_model *m = NULL;
    dsc_value x;
    dsc_model_options_init(&options);
    options.seed = seed;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(dsc_model_input(m, 2, 3, 3, &x));
    dsc_conv2d_shape_init(&conv);
    conv.out_c = 2;
    conv.kernel_w = 2;
    assert_ok(dsc_model_conv2d(m, "conv", x, &conv, 0, &x));
    assert_ok(dsc_model_batch_norm(m, "bn", x, &x));
    assert_ok(dsc_model_global_pool(m, x, &x));
    assert_ok(dsc_model_linear(m, "fc", x, 2, 1, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

static const dsc_state_entry *entry(const dsc_model *m, const char *name) {
    for (int64_t i = 0; i < dsc_model_state_count(m); i++)
        if (strcmp(dsc_model_state(m)[i].name, name) == 0)
            return &dsc_model_state(m)[i];
    fail_msg("no '%s'", name);
    return NULL;
}

static int same(const dsc_model *a, const dsc_model *b, const char *name) {
    const dsc_tensor *t = entry(a, name)->tensor;
    void *x = runs_read(queue, t), *y = runs_read(queue, entry(b, name)->tensor);
    int equal = memcmp(x, y, dsc_tensor_bytes(t)) == 0;
    free(x);
    free(y);
    return equal;
}

static int all_same(const dsc_model *a, const dsc_model *b) {
    int equal = 1;
    for (int64_t i = 0; i < dsc_model_state_count(a); i++)
        equal = equal && same(a, b, dsc_model_state(a)[i].name);
    return equal;
}

static dsc_load_options partial(void) {
    dsc_load_options o;
    dsc_load_options_init(&o);
    o.partial = 1;
    return o;
}

/* ---- what works ---- */

static void test_round_trip(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "resnet20.safetensors");
    dsc_model *a = zoo("resnet20", 10, 1), *b = zoo("resnet20", 10, 2);
    dsc_load_report *report = NULL;
    dsc_st_reader *r = NULL;
    dsc_save_options o;
    assert_false(all_same(a, b));
    assert_ok(dsc_model_save(a, path, NULL));
    assert_int_equal(scratch_count(directory, ".tmp"), 0);
    assert_ok(dsc_model_load(b, path, NULL, &report));
    assert_true(all_same(a, b));
    assert_int_equal(report->loaded_count, dsc_model_state_count(a));
    assert_string_equal(report->loaded[0], "conv1.weight");
    assert_int_equal(report->skipped_count + report->missing_count, 0);
    dsc_load_report_free(&report);
    assert_null(report);
    dsc_load_report_free(&report);
    dsc_load_report_free(NULL);
    assert_ok(dsc_st_open(path, &r));
    assert_string_equal(dsc_st_metadata(r, "model"), "custom");
    assert_string_equal(dsc_st_metadata(r, "format"), "pt");
    assert_string_equal(dsc_st_metadata(r, "classes"), "10");
    assert_null(dsc_st_metadata(r, "step"));
    assert_null(dsc_st_metadata(r, "data"));
    assert_null(dsc_st_metadata(r, "seed"));
    dsc_st_close(&r);
    dsc_save_options_init(&o);
    o.model = "resnet20";
    o.data = "synthetic:64";
    o.step = 12;
    o.epoch = 3;
    o.has_seed = 1;
    o.seed = UINT64_MAX;
    assert_ok(dsc_model_save(a, path, &o)); /* replaces the older one */
    assert_ok(dsc_st_open(path, &r));
    assert_string_equal(dsc_st_metadata(r, "model"), "resnet20");
    assert_string_equal(dsc_st_metadata(r, "data"), "synthetic:64");
    assert_string_equal(dsc_st_metadata(r, "step"), "12");
    assert_string_equal(dsc_st_metadata(r, "epoch"), "3");
    assert_string_equal(dsc_st_metadata(r, "seed"), "18446744073709551615");
    dsc_st_close(&r);
    dsc_model_destroy(&a);
    dsc_model_destroy(&b);
}

/* Class names and normalisation are stored and read back exactly. */
static void test_data_facts(void **state) {
    (void)state;
    static const char *const names[] = {"cat", "a \"dog\", \\", "\xc3\xa9t\xc3\xa9"}, *const raw[] = {"\xff"};
    const double mean[] = {0.1, 1.0 / 3, -0.25}, std[] = {0.2, 1e-300, 7};
    const char *path = scratch_path(directory, "facts.safetensors");
    dsc_model *m = zoo("mlp", 10, 1);
    dsc_checkpoint_info *c = NULL;
    dsc_save_options o;
    dsc_save_options_init(&o);
    assert_ok(dsc_model_save(m, path, &o));
    assert_ok(dsc_checkpoint_read_info(path, &c));
    assert_int_equal(c->class_name_count, 0);
    assert_null(c->mean);
    assert_null(c->state_path);
    assert_int_equal(c->step, -1);
    assert_int_equal(c->resize, -1);
    dsc_checkpoint_info_free(&c);
    o.class_names = names;
    o.class_name_count = 3;
    o.mean = mean;
    o.std = std;
    o.resize = 31;
    assert_fails(DSC_E_INVALID, "31 pixels are smaller than the input of 32x32", dsc_model_save(m, path, &o));
    o.resize = 37;
    assert_ok(dsc_model_save(m, path, &o));
    assert_ok(dsc_checkpoint_read_info(path, &c));
    assert_int_equal(c->resize, 37);
    assert_int_equal(c->class_name_count, 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(c->class_names[i], names[i]);
    assert_memory_equal(c->mean, mean, sizeof mean);
    assert_memory_equal(c->std, std, sizeof std);
    assert_int_equal(c->tensors, dsc_model_state_count(m));
    assert_true(c->has_sums);
    assert_ok(dsc_checkpoint_verify(path));
    dsc_checkpoint_info_free(&c);
    dsc_checkpoint_info_free(&c);
    o.class_names = raw; /* is no reason to lose the rest */
    o.class_name_count = 1;
    assert_ok(dsc_model_save(m, path, &o));
    assert_ok(dsc_checkpoint_read_info(path, &c));
    assert_int_equal(c->class_name_count, 0);
    dsc_checkpoint_info_free(&c);
    dsc_model_destroy(&m);
}

static const struct {
    const char *metadata, *message;
} bad_facts[] = {
    {"\"class_names\":\"3\"", "'class_names' is not a JSON array of names"},
    {"\"class_names\":\"[1]\"", "'class_names' is not a JSON array of names"},
    {"\"class_names\":\"[\\\"a\\\",\\\"b\\\",\\\"c\\\"]\"", "one per class at most"},
    {"\"class_names\":\"[\"", "'class_names' is not"},
    {"\"mean\":\"[1,2]\"", "'mean' is not a JSON array of one number per channel"},
    {"\"mean\":\"[1,2,\\\"3\\\"]\"", "'mean' is not"},
    {"\"mean\":\"1\"", "'mean' is not"},
    {"\"std\":\"[1,2,0]\"", "'std' is not"},
    {"\"std\":\"[1,2,-1]\"", "'std' is not"},
    {"\"std\":\"[1,2,1e999]\"", "'std' is not"},
    {"\"height\":\"8\",\"width\":\"8\",\"resize\":\"7\"", "'resize' is not a number of pixels, at least"},
    {"\"height\":\"8\",\"width\":\"8\",\"resize\":\"65537\"", "'resize' is not"},
    {"\"resize\":\"x\"", "'resize' is 'x', not a number"},
    {"\"step\":\"x\"", "'step' is 'x', not a number"},
    {"\"seed\":\"x\"", "'seed' is 'x', not a number"},
};

static void test_bad_facts(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "bad.safetensors");
    char file[1024];
    for (size_t i = 0; i < sizeof bad_facts / sizeof bad_facts[0]; i++) {
        dsc_checkpoint_info *c = NULL;
        int length =
            snprintf(file + 8, sizeof file - 8,
                     "{\"__metadata__\":{\"classes\":\"2\",\"channels\":\"3\",%s}}", bad_facts[i].metadata);
        uint64_t header = (uint64_t)length;
        memcpy(file, &header, 8);
        scratch_write(path, file, 8 + (size_t)length);
        assert_fails(DSC_E_FORMAT, bad_facts[i].message, dsc_checkpoint_read_info(path, &c));
        assert_null(c);
    }
    assert_fails(DSC_E_INVALID, "may be NULL", dsc_checkpoint_read_info(NULL, NULL));
    assert_fails(DSC_E_INVALID, "is NULL", dsc_checkpoint_verify(NULL));
    assert_fails(DSC_E_NOT_FOUND, "nowhere", dsc_checkpoint_verify("nowhere"));
}

/* Such a file can be evaluated like that of a run. */
static void test_evaluated(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "eval.safetensors");
    dsc_model *m = zoo("mlp", 10, 1);
    dsc_save_options o;
    dsc_eval_options eval;
    dsc_eval_result result = {.size = sizeof result};
    dsc_save_options_init(&o);
    o.model = "mlp";
    o.data = "synthetic:16";
    assert_ok(dsc_model_save(m, path, &o));
    dsc_eval_options_init(&eval);
    eval.checkpoint = path;
    assert_ok(dsc_eval_run(comm, device, &eval, &result));
    assert_true(result.images > 0);
    assert_ok(dsc_model_save(m, path, NULL)); /* does not say which model it is */
    assert_fails(DSC_E_INVALID, "does not say which model it holds: name it",
                 dsc_eval_run(comm, device, &eval, &result));
    eval.model = "mlp";
    assert_ok(dsc_eval_run(comm, device, &eval, &result));
    assert_ok(dsc_comm_use_queue(comm, queue));
    dsc_model_destroy(&m);
}

/* All of a net but its last layer, which has another number of classes. */
static void test_other_head(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "ten.safetensors");
    dsc_model *ten = zoo("resnet20", 10, 1), *seven = zoo("resnet20", 7, 2), *fresh = zoo("resnet20", 7, 2);
    dsc_load_options o = partial();
    dsc_load_report *report = NULL;
    assert_ok(dsc_model_save(ten, path, NULL));
    assert_fails(DSC_E_INVALID, "'linear.weight' is fp32 [10, 64], in the model it is fp32 [7, 64]",
                 dsc_model_load(seven, path, NULL, &report));
    assert_non_null(strstr(dsc_error_message(), "partial"));
    assert_true(all_same(seven, fresh));
    assert_int_equal(report->loaded_count, 0);
    assert_int_equal(report->skipped_count, 2);
    dsc_load_report_free(&report);
    assert_ok(dsc_model_load(seven, path, &o, &report));
    assert_int_equal(report->loaded_count, dsc_model_state_count(ten) - 2);
    assert_int_equal(report->missing_count, 0);
    assert_int_equal(report->skipped_count, 2);
    assert_string_equal(report->skipped[0].name, "linear.bias");
    const dsc_load_skipped *weight = &report->skipped[1];
    assert_string_equal(weight->name, "linear.weight");
    assert_int_equal(weight->in_model, 1);
    assert_true(weight->file_ndim == 2 && weight->file_dim[0] == 10 && weight->file_dim[1] == 64);
    assert_true(weight->model_ndim == 2 && weight->model_dim[0] == 7 && weight->model_dim[1] == 64);
    for (int64_t i = 0; i < report->loaded_count; i++)
        assert_true(same(seven, ten, report->loaded[i]));
    assert_true(same(seven, fresh, "linear.weight") && same(seven, fresh, "linear.bias"));
    dsc_load_report_free(&report);
    assert_ok(dsc_model_load(seven, path, &o, NULL));
    dsc_model_destroy(&ten);
    dsc_model_destroy(&seven);
    dsc_model_destroy(&fresh);
}

/* ---- files of others ---- */

typedef struct part {
    const char *name;
    dsc_dtype dtype;
    int ndim;
    int64_t dim[4];
    const void *data;
} part;

static void write_parts(const char *path, const part *parts, int count) {
    dsc_st_writer *w = NULL;
    assert_ok(dsc_st_writer_create(path, &w));
    for (int i = 0; i < count; i++)
        assert_ok(dsc_st_writer_declare(w, parts[i].name, parts[i].dtype, parts[i].ndim, parts[i].dim));
    assert_ok(dsc_st_writer_begin(w));
    for (int i = 0; i < count; i++) {
        size_t bytes = dsc_dtype_size(parts[i].dtype);
        for (int d = 0; d < parts[i].ndim; d++)
            bytes *= (size_t)parts[i].dim[d];
        assert_ok(dsc_st_writer_write(w, i, parts[i].data, bytes));
    }
    assert_ok(dsc_st_writer_sync(w));
    assert_ok(dsc_st_writer_commit(w));
    dsc_st_writer_destroy(&w);
}

/* A file with one tensor of each type. It has conv.weight as [o][i][h][w] = [2][3][1][2]. */
static void test_types(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "types.safetensors");
    dsc_model *m = tiny(1);
    double conv[12];
    for (int i = 0; i < 12; i++)
        conv[i] = i + 0.1;
    const uint16_t norm[] = {dsc_f16_from_float(1.5f), dsc_f16_from_float(-0.25f)},
                   head[] = {dsc_bf16_from_float(3), dsc_bf16_from_float(-7), dsc_bf16_from_float(0x1p100f),
                             0};
    const float bias[] = {0.1f, 0.2f}, mean[] = {5, 6}, var[] = {7, 8};
    const int64_t batches = 9000000001;
    const part parts[] = {{"conv.weight", DSC_F64, 4, {2, 3, 1, 2}, conv},
                          {"bn.weight", DSC_F16, 1, {2}, norm},
                          {"bn.bias", DSC_F32, 1, {2}, bias},
                          {"bn.running_mean", DSC_F32, 1, {2}, mean},
                          {"bn.running_var", DSC_F32, 1, {2}, var},
                          {"bn.num_batches_tracked", DSC_I64, 0, {0}, &batches},
                          {"fc.weight", DSC_BF16, 2, {2, 2}, head},
                          {"fc.bias", DSC_F32, 1, {2}, bias}};
    write_parts(path, parts, 8);
    assert_ok(dsc_model_load(m, path, NULL, NULL));
    float *here = runs_read(queue, entry(m, "conv.weight")->tensor);
    for (int o = 0; o < 2; o++)
        for (int i = 0; i < 3; i++)
            for (int w = 0; w < 2; w++)
                assert_true(here[(o * 2 + w) * 3 + i] == (float)conv[(o * 3 + i) * 2 + w]);
    free(here);
    here = runs_read(queue, entry(m, "bn.weight")->tensor);
    assert_true(here[0] == 1.5f && here[1] == -0.25f);
    free(here);
    here = runs_read(queue, entry(m, "fc.weight")->tensor);
    assert_true(here[0] == 3 && here[1] == -7 && here[2] == 0x1p100f && here[3] == 0);
    free(here);
    int64_t *count = runs_read(queue, entry(m, "bn.num_batches_tracked")->tensor);
    assert_true(*count == 9000000001);
    free(count);
    dsc_model_destroy(&m);
}

/* Files that cannot be loaded are refused with file, tensor and value, and the model stays as it was. */
static void test_refused(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "refused.safetensors");
    dsc_model *m = tiny(1), *fresh = tiny(1);
    dsc_load_options o = partial();
    dsc_load_report *report = NULL;
    const double huge[] = {1, 1e300};
    const float nan[] = {1, NAN}, fine[] = {1, 2};
    const int32_t whole[] = {1, 2};
    const int64_t batches = 1;
    const part large = {"fc.bias", DSC_F64, 1, {2}, huge}, bad = {"fc.bias", DSC_F32, 1, {2}, nan};
    write_parts(path, &large, 1);
    assert_fails(DSC_E_FORMAT, "refused.safetensors': 'fc.bias' holds 1e+300",
                 dsc_model_load(m, path, &o, &report));
    assert_null(report);
    const part late[] = {{"bn.bias", DSC_F32, 1, {2}, fine}, bad}; /* the first is fine, the second is not */
    write_parts(path, late, 2);
    assert_fails(DSC_E_FORMAT, "'fc.bias' holds numbers that are not finite",
                 dsc_model_load(m, path, &o, NULL));
    const part odd[] = {{"bn.bias", DSC_I32, 1, {2}, whole},
                        {"bn.num_batches_tracked", DSC_I64, 1, {1}, &batches},
                        {"other", DSC_U8, 1, {2}, "ab"}};
    write_parts(path, odd, 3);
    assert_fails(DSC_E_INVALID, "holds no tensor that has the name and shape",
                 dsc_model_load(m, path, &o, &report));
    assert_int_equal(report->missing_count, 6);
    assert_string_equal(report->missing[0], "conv.weight");
    assert_int_equal(report->skipped_count, 3);
    assert_true(report->skipped[0].in_model && report->skipped[0].file_dtype == DSC_I32 &&
                report->skipped[0].model_dtype == DSC_F32);
    assert_true(report->skipped[1].in_model && report->skipped[1].file_ndim == 1 &&
                report->skipped[1].model_ndim == 0);
    assert_false(report->skipped[2].in_model);
    dsc_load_report_free(&report);
    assert_fails(DSC_E_INVALID, "lacks 'conv.weight' of the model", dsc_model_load(m, path, NULL, NULL));
    assert_fails(DSC_E_NOT_FOUND, "nowhere",
                 dsc_model_load(m, scratch_path(directory, "nowhere"), NULL, NULL));
    assert_true(all_same(m, fresh));
    dsc_model_destroy(&m);
    dsc_model_destroy(&fresh);
}

static void test_arguments(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "arguments.safetensors");
    dsc_model *m = tiny(1), *open = NULL;
    dsc_load_options load = {0};
    dsc_save_options save = {0};
    assert_fails(DSC_E_INVALID, "dsc_save_options_init", dsc_model_save(m, path, &save));
    assert_fails(DSC_E_INVALID, "dsc_load_options_init", dsc_model_load(m, path, &load, NULL));
    assert_fails(DSC_E_INVALID, "may not be NULL", dsc_model_save(NULL, path, NULL));
    assert_fails(DSC_E_INVALID, "may not be NULL", dsc_model_load(m, NULL, NULL, NULL));
    assert_fails(DSC_E_IO, "cannot write", dsc_model_save(m, scratch_path(directory, "no/file"), NULL));
    assert_ok(dsc_model_create(device, NULL, &open));
    assert_fails(DSC_E_INVALID, "seal it first", dsc_model_save(open, path, NULL));
    dsc_model_destroy(&open);
    dsc_model_destroy(&m);
}

/* ---- failures ---- */

static void test_full_disk(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "full.safetensors");
    dsc_model *m = tiny(1), *other = tiny(2);
    struct rlimit old, small;
    assert_ok(dsc_model_save(m, path, NULL));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    dsc_status status = dsc_model_save(other, path, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, DSC_E_IO);
    assert_int_equal(scratch_count(directory, ".tmp"), 0);
    assert_ok(dsc_model_load(other, path, NULL, NULL)); /* the older file is there */
    assert_true(all_same(m, other));
    dsc_model_destroy(&m);
    dsc_model_destroy(&other);
}

/* Every allocation fails once: an error, no leak, no temporary file, and the model as it was. */
static void test_memory(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "memory.safetensors");
    dsc_model *m = tiny(1), *fresh = tiny(2), *into = tiny(2);
    dsc_status status = DSC_E_MEMORY;
    for (int64_t nth = 1; status == DSC_E_MEMORY && nth < 1000; nth++) {
        dsc_memory_fail_at(nth);
        status = dsc_model_save(m, path, NULL);
        assert_int_equal(scratch_count(directory, ".tmp"), 0);
    }
    dsc_memory_fail_at(0);
    assert_ok(status);
    status = DSC_E_MEMORY;
    for (int64_t nth = 1; status == DSC_E_MEMORY && nth < 1000; nth++) {
        dsc_load_report *report = NULL;
        assert_true(all_same(into, fresh));
        dsc_memory_fail_at(nth);
        status = dsc_model_load(into, path, NULL, &report);
        dsc_load_report_free(&report);
        dsc_memory_fail_at(0);
    }
    assert_ok(status);
    assert_true(all_same(into, m));
    dsc_model_destroy(&m);
    dsc_model_destroy(&fresh);
    dsc_model_destroy(&into);
}

static void test_fuzz(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "fuzz.safetensors");
    dsc_model *m = tiny(1), *fresh = tiny(2), *into = tiny(2);
    dsc_load_options o = partial();
    dsc_tensor before = dsc_model_values(fresh), after = dsc_model_values(into);
    size_t size, bytes = dsc_tensor_bytes(&before);
    static const char *const names[] = {"one", "two"};
    const double mean[] = {0.5, 0.25, 0.125, 0}, std[] = {1, 2, 3, 4};
    dsc_save_options facts;
    dsc_save_options_init(&facts);
    facts.class_names = names;
    facts.class_name_count = 2;
    facts.mean = mean;
    facts.std = std;
    assert_ok(dsc_model_save(m, path, &facts));
    char *good = scratch_read(path, &size), *bad = malloc(size), *kept = runs_read(queue, &before);
    assert_non_null(bad);
    for (uint64_t i = 0; i < 5000; i++) {
        dsc_rng rng = dsc_rng_start(4, DSC_RNG_TEST, 0, i);
        size_t length = i % 4 == 0 ? dsc_rng_below(&rng, (uint32_t)size) : size;
        memcpy(bad, good, size);
        for (uint32_t flips = i % 4 == 0 ? 0 : 1 + dsc_rng_below(&rng, 4); flips > 0; flips--)
            bad[dsc_rng_below(&rng, (uint32_t)size)] ^= (char)(1 << dsc_rng_below(&rng, 8));
        scratch_write(path, bad, length);
        dsc_load_report *report = NULL;
        assert_ok(dsc_tensor_upload(queue, kept, bytes, &after));
        assert_ok(dsc_queue_sync(queue));
        dsc_status status = dsc_model_load(into, path, i % 3 ? NULL : &o, &report);
        assert_true(status == DSC_OK || status == DSC_E_FORMAT || status == DSC_E_INVALID);
        char *now = runs_read(queue, &after);
        assert_true(status == DSC_OK || memcmp(now, kept, bytes) == 0);
        free(now);
        dsc_load_report_free(&report);
        dsc_checkpoint_info *info = NULL;
        status = dsc_checkpoint_read_info(path, &info);
        assert_true(status == DSC_OK || status == DSC_E_FORMAT);
        dsc_checkpoint_info_free(&info);
    }
    free(good);
    free(bad);
    free(kept);
    dsc_model_destroy(&m);
    dsc_model_destroy(&fresh);
    dsc_model_destroy(&into);
}

/* ---- a model that starts as zeros ---- */

/* Weights, scales and variances are zeros until they are read; then all are those of the file. */
static void test_zeros(void **state) {
    static const char *const names[] = {"conv1.weight", "bn1.weight", "bn1.running_var"};
    const char *path = scratch_path(directory, "zeros.safetensors");
    dsc_model *drawn = zoo("resnet20", 10, 1), *zeros = NULL;
    dsc_model_options options;
    (void)state;
    dsc_model_options_init(&options);
    options.zeros = 1;
    assert_ok(dsc_zoo_create(device, "resnet20", 32, 32, 3, 10, &options, &zeros));
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        const dsc_tensor *t = entry(zeros, names[n])->tensor;
        float *values = runs_read(queue, t);
        for (int64_t i = 0; i < dsc_tensor_count(t); i++)
            assert_true(values[i] == 0);
        free(values);
    }
    assert_ok(dsc_model_save(drawn, path, NULL));
    assert_ok(dsc_model_load(zeros, path, NULL, NULL));
    assert_true(all_same(drawn, zeros));
    dsc_model_destroy(&zeros);
    dsc_model_destroy(&drawn);
}

/* ---- tied weights ---- */

/* e.weight [3][2], mid.weight [2][2], in files [in][out], and head.weight, another name for e.weight. */
static dsc_model *tied_model(uint64_t seed) {
    dsc_model_options options;
    dsc_linear_options linear;
    dsc_model *m = NULL;
    dsc_value x, table;
    dsc_model_options_init(&options);
    options.seed = seed;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(dsc_model_tokens(m, 4, &x));
    assert_ok(dsc_model_embedding(m, "e", x, 3, 2, 1, &table));
    dsc_linear_options_init(&linear);
    linear.bias = 0;
    linear.in_out = 1;
    assert_ok(dsc_model_linear_with(m, "mid", table, 2, &linear, &x));
    linear.in_out = 0;
    linear.tied = table;
    assert_ok(dsc_model_linear_with(m, "head", x, 3, &linear, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

/* A tied tensor is written twice; it is read when the file has it once or twice, and refused when the two differ. */
static void test_tied(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "tied.safetensors");
    dsc_model *a = tied_model(1), *b = tied_model(2);
    dsc_st_reader *r = NULL;
    assert_ok(dsc_model_save(a, path, NULL));
    assert_ok(dsc_st_open(path, &r));
    assert_int_equal(dsc_st_count(r), 3);
    dsc_st_close(&r);
    assert_false(all_same(a, b));
    assert_ok(dsc_model_load(b, path, NULL, NULL));
    assert_true(all_same(a, b));
    const float table[6] = {1, 2, 3, 4, 5, 6}, other[6] = {1, 2, 3, 4, 5, 7}, mid[4] = {10, 20, 30, 40};
    const part parts[] = {{"e.weight", DSC_F32, 2, {3, 2}, table},
                          {"mid.weight", DSC_F32, 2, {2, 2}, mid},
                          {"head.weight", DSC_F32, 2, {3, 2}, table},
                          {"head.weight", DSC_F32, 2, {3, 2}, other}};
    for (int count = 2; count <= 3; count++) {
        write_parts(path, parts, count);
        assert_ok(dsc_model_load(b, path, NULL, NULL));
        float *here = runs_read(queue, entry(b, "mid.weight")->tensor);
        assert_true(here[0] == 10 && here[1] == 30 && here[2] == 20 && here[3] == 40);
        free(here);
        here = runs_read(queue, entry(b, "head.weight")->tensor);
        assert_memory_equal(here, table, sizeof table);
        free(here);
    }
    const part wrong[] = {parts[0], parts[1], parts[3]};
    write_parts(path, wrong, 3);
    assert_fails(DSC_E_FORMAT, "'head.weight' differs from 'e.weight'", dsc_model_load(b, path, NULL, NULL));
    dsc_model_destroy(&a);
    dsc_model_destroy(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_evaluated),
        cmocka_unit_test(test_other_head), cmocka_unit_test(test_types),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_full_disk),  cmocka_unit_test(test_memory),
        cmocka_unit_test(test_fuzz),       cmocka_unit_test(test_data_facts),
        cmocka_unit_test(test_bad_facts),  cmocka_unit_test(test_tied),
        cmocka_unit_test(test_zeros),
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

/* Files of the Hugging Face hub: the names that GPT-2 and BERT have there, what is ignored, what stays an error, and
 * damage. The files are made from the models' own. */
#include "test.h"

#include "base/rng.h"
#include "descent/checkpoint.h"
#include "train/runs.h"
#include "train/safetensors.h"
#include "train/scratch.h"

#include <stdlib.h>

enum { CONTEXT = 4, VOCABULARY = 5, NAME = 128, MOST = 64 };

static dsc_comm *comm;
static dsc_device *device;
static dsc_queue *queue;
static char directory[SCRATCH_SIZE];

static dsc_model *zoo(const char *spec, uint64_t seed) {
    dsc_model_options options;
    dsc_model *model = NULL;
    dsc_model_options_init(&options);
    options.seed = seed;
    assert_ok(dsc_zoo_create(device, spec, CONTEXT, 1, 1, VOCABULARY, &options, &model));
    return model;
}

static dsc_model *gpt2(uint64_t seed) {
    return zoo("gpt2:layers=2,heads=1,width=2", seed);
}

static dsc_model *bert(uint64_t seed) {
    return zoo("bert-base:layers=2,heads=1,width=2", seed);
}

/* Moves all numbers of a model away from 0 and 1, so that tensors in the wrong places are noticed. */
static void spread(const dsc_model *m) {
    dsc_tensor all = dsc_model_values(m);
    float *values = runs_read(queue, &all);
    dsc_rng rng = dsc_rng_start(9, DSC_RNG_TEST, 0, 0);
    for (int64_t i = 0; i < dsc_tensor_count(&all); i++)
        values[i] = (float)dsc_rng_uniform(&rng);
    assert_ok(dsc_tensor_upload(queue, values, dsc_tensor_bytes(&all), &all));
    assert_ok(dsc_queue_sync(queue));
    free(values);
}

static int same(const dsc_model *a, const dsc_model *b) {
    dsc_tensor x = dsc_model_values(a), y = dsc_model_values(b);
    void *p = runs_read(queue, &x), *q = runs_read(queue, &y);
    int equal = memcmp(p, q, dsc_tensor_bytes(&x)) == 0;
    free(p);
    free(q);
    return equal;
}

/* Gives a tensor of the model's file its name in the new one, or returns 0 to leave it out. */
typedef int (*renaming)(const char *name, char out[NAME]);

/* An additional tensor of the new file. */
typedef struct extra {
    const char *name;
    dsc_dtype dtype;
    int ndim;
    int64_t dim[4];
} extra;

/* Writes the model's file, renamed and with `extras`, which are terminated by a name NULL and hold zeros. */
static const char *write_file(const dsc_model *m, const char *name, renaming rename, const extra *extras) {
    static const char zeros[1024];
    const char *from = scratch_path(directory, "own.safetensors"), *path = scratch_path(directory, name);
    const dsc_st_tensor *kept[MOST];
    dsc_st_reader *r = NULL;
    dsc_st_writer *w = NULL;
    char other[NAME];
    int64_t count = 0;
    assert_ok(dsc_model_save(m, from, NULL));
    assert_ok(dsc_st_open(from, &r));
    assert_ok(dsc_st_writer_create(path, &w));
    for (int64_t i = 0; i < dsc_st_count(r); i++) {
        const dsc_st_tensor *t = &dsc_st_tensors(r)[i];
        if (!rename(t->name, other))
            continue;
        assert_ok(dsc_st_writer_declare(w, other, t->dtype, t->ndim, t->dim));
        kept[count++] = t;
        assert_true(count < MOST);
    }
    for (int i = 0; extras && extras[i].name; i++)
        assert_ok(dsc_st_writer_declare(w, extras[i].name, extras[i].dtype, extras[i].ndim, extras[i].dim));
    assert_ok(dsc_st_writer_begin(w));
    for (int64_t i = 0; i < count; i++) {
        char *data = malloc(kept[i]->bytes);
        assert_non_null(data);
        assert_ok(dsc_st_read(r, kept[i], data, kept[i]->bytes));
        assert_ok(dsc_st_writer_write(w, i, data, kept[i]->bytes));
        free(data);
    }
    for (int i = 0; extras && extras[i].name; i++) {
        size_t bytes = dsc_dtype_size(extras[i].dtype);
        for (int d = 0; d < extras[i].ndim; d++)
            bytes *= (size_t)extras[i].dim[d];
        assert_ok(dsc_st_writer_write(w, count + i, zeros, bytes));
    }
    assert_ok(dsc_st_writer_sync(w));
    assert_ok(dsc_st_writer_commit(w));
    dsc_st_writer_destroy(&w);
    dsc_st_close(&r);
    return path;
}

/* Replaces the first `old` in the header of a file by `new`. */
static void edit_header(const char *path, const char *old, const char *new) {
    size_t size, before = strlen(old), after = strlen(new);
    char *data = scratch_read(path, &size), *edited = malloc(size + after);
    uint64_t header;
    assert_non_null(edited);
    memcpy(&header, data, 8);
    size_t at = 8;
    while (memcmp(data + at, old, before) != 0)
        assert_true(++at < 8 + header);
    memcpy(edited, data, at);
    memcpy(edited + at, new, after);
    memcpy(edited + at + after, data + at + before, size - at - before);
    header += after - before;
    memcpy(edited, &header, 8);
    scratch_write(path, edited, size - before + after);
    free(data);
    free(edited);
}

/* ---- names ---- */

static int keep(const char *name, char out[NAME]) {
    snprintf(out, NAME, "%s", name);
    return 1;
}

/* GPT2Model: no head, no prefix. */
static int as_gpt2_model(const char *name, char out[NAME]) {
    const size_t prefix = strlen("transformer.");
    if (strcmp(name, "lm_head.weight") == 0)
        return 0;
    assert_memory_equal(name, "transformer.", prefix);
    snprintf(out, NAME, "%s", name + prefix);
    return 1;
}

/* BertForPreTraining, converted from TensorFlow. */
static int as_old_bert(const char *name, char out[NAME]) {
    const char *norm = strstr(name, "LayerNorm.");
    if (strncmp(name, "cls.predictions.decoder.", strlen("cls.predictions.decoder.")) == 0)
        return 0;
    snprintf(out, NAME, "%s", name);
    if (norm)
        snprintf(out, NAME, "%.*s%s", (int)(norm + strlen("LayerNorm.") - name), name,
                 strstr(norm, "weight") ? "gamma" : "beta");
    return 1;
}

/* BertModel's names; the head keeps its own. */
static int as_bert_model(const char *name, char out[NAME]) {
    snprintf(out, NAME, "%s", strncmp(name, "bert.", 5) == 0 ? name + 5 : name);
    return 1;
}

static int only_the_head(const char *name, char out[NAME]) {
    snprintf(out, NAME, "%s", name);
    return !strstr(name, "word_embeddings") && strcmp(name, "cls.predictions.bias") != 0;
}

static int without_norm(const char *name, char out[NAME]) {
    return strcmp(name, "transformer.h.1.ln_2.bias") != 0 && as_gpt2_model(name, out);
}

/* ---- what is read ---- */

static const extra masks[] = {{"h.0.attn.bias", DSC_F32, 4, {1, 1, CONTEXT, CONTEXT}},
                              {"h.1.attn.bias", DSC_U8, 4, {1, 1, CONTEXT, CONTEXT}},
                              {"h.1.attn.masked_bias", DSC_F32, 0, {0}},
                              {.name = NULL}};
static const extra heads[] = {{"bert.embeddings.position_ids", DSC_I64, 2, {1, CONTEXT}},
                              {"bert.pooler.dense.weight", DSC_F32, 2, {2, 2}},
                              {"bert.pooler.dense.bias", DSC_F32, 1, {2}},
                              {"cls.seq_relationship.weight", DSC_F32, 2, {2, 2}},
                              {"cls.seq_relationship.bias", DSC_F32, 1, {2}},
                              {.name = NULL}};

static void check_read(dsc_model *(*make)(uint64_t), renaming rename, const extra *extras, int64_t skipped) {
    dsc_model *a = make(1), *b = make(2);
    dsc_load_report *report = NULL;
    spread(a);
    const char *path = write_file(a, "hub.safetensors", rename, extras);
    scratch_forget_sums(path);
    assert_ok(dsc_model_load(b, path, NULL, &report));
    assert_true(same(a, b));
    assert_int_equal(report->missing_count, 0);
    assert_int_equal(report->skipped_count, skipped);
    for (int64_t i = 0; i < skipped; i++)
        assert_false(report->skipped[i].in_model);
    dsc_load_report_free(&report);
    dsc_model_destroy(&a);
    dsc_model_destroy(&b);
}

static void test_gpt2(void **state) {
    (void)state;
    static const extra long_names[] = {{"transformer.h.0.attn.bias", DSC_F32, 4, {1, 1, CONTEXT, CONTEXT}},
                                       {"transformer.h.10.attn.masked_bias", DSC_F32, 0, {0}},
                                       {.name = NULL}};
    check_read(gpt2, keep, NULL, 0);
    check_read(gpt2, as_gpt2_model, NULL, 0);
    check_read(gpt2, as_gpt2_model, masks, 3);
    check_read(gpt2, keep, long_names, 2);
}

static void test_bert(void **state) {
    (void)state;
    check_read(bert, keep, heads, 5);
    check_read(bert, as_old_bert, NULL, 0);
    check_read(bert, as_old_bert, heads, 5);
    check_read(bert, as_bert_model, NULL, 0);
    check_read(bert, only_the_head, NULL, 0); /* the other names of tied tensors */
}

/* Masks that torch stored as truth values. */
static void test_bool(void **state) {
    (void)state;
    dsc_model *a = gpt2(1), *b = gpt2(2);
    const char *path = write_file(a, "bool.safetensors", as_gpt2_model, masks);
    edit_header(path, "\"U8\"", "\"BOOL\"");
    assert_ok(dsc_model_load(b, path, NULL, NULL));
    assert_true(same(a, b));
    edit_header(path, "\"BOOL\"", "\"BOOK\"");
    assert_fails(DSC_E_FORMAT, "dtype 'BOOK'", dsc_model_load(b, path, NULL, NULL));
    dsc_model_destroy(&a);
    dsc_model_destroy(&b);
}

/* ---- what stays an error ---- */

static void check_refused(const dsc_model *m, renaming rename, const extra *one, const char *message) {
    const extra extras[] = {*one, {.name = NULL}};
    const char *path = write_file(m, "refused.safetensors", rename, extras);
    dsc_model *into = zoo("gpt2:layers=2,heads=1,width=2", 3), *fresh = gpt2(3);
    assert_fails(DSC_E_INVALID, message, dsc_model_load(into, path, NULL, NULL));
    assert_true(same(into, fresh));
    dsc_model_destroy(&into);
    dsc_model_destroy(&fresh);
}

static void test_refused(void **state) {
    (void)state;
    static const extra none = {.name = NULL};
    static const struct {
        extra extra;
        const char *message;
    } cases[] = {
        {{"h.0.attn.rotary", DSC_F32, 1, {2}}, "holds 'h.0.attn.rotary', which the model does not have"},
        {{"h..attn.bias", DSC_F32, 1, {2}}, "holds 'h..attn.bias'"},
        {{"h.0.attn.bias2", DSC_F32, 1, {2}}, "holds 'h.0.attn.bias2'"},
        {{"h.0x.attn.bias", DSC_F32, 1, {2}}, "holds 'h.0x.attn.bias'"},
        {{"bert.pooler.dense.bias", DSC_F32, 1, {2}}, "holds 'bert.pooler.dense.bias'"},
        {{"transformer.wte.weight", DSC_F32, 2, {VOCABULARY, 2}}, "holds 'wte.weight'"}, /* twice there */
        {{"lm_head.weight", DSC_F32, 2, {VOCABULARY, 3}}, "'lm_head.weight' is fp32 [5, 3]"},
    };
    dsc_model *m = gpt2(1), *b = bert(1), *into = bert(2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(m, as_gpt2_model, &cases[i].extra, cases[i].message);
    check_refused(m, without_norm, &none, "lacks 'transformer.h.1.ln_2.bias' of the model");
    const extra mask[] = {masks[0], {.name = NULL}},
                sizes[] = {{"wte.weight", DSC_F32, 2, {6, 2}}, {.name = NULL}};
    assert_fails(DSC_E_INVALID, "holds 'h.0.attn.bias'",
                 dsc_model_load(into, write_file(b, "mask.safetensors", as_old_bert, mask), NULL, NULL));
    assert_fails(DSC_E_INVALID, "holds 'wte.weight'",
                 dsc_model_load(into, write_file(b, "sizes.safetensors", keep, sizes), NULL, NULL));
    dsc_model_destroy(&m);
    dsc_model_destroy(&b);
    dsc_model_destroy(&into);
}

/* Under the hub's names, too, it is detected when the two names of a tied tensor have different values. */
static void test_untied(void **state) {
    (void)state;
    static const extra head[] = {{"lm_head.weight", DSC_F32, 2, {VOCABULARY, 2}}, {.name = NULL}};
    dsc_model *m = gpt2(1);
    spread(m);
    assert_fails(DSC_E_FORMAT, "'lm_head.weight' differs from 'transformer.wte.weight'",
                 dsc_model_load(m, write_file(m, "untied.safetensors", as_gpt2_model, head), NULL, NULL));
    dsc_model_destroy(&m);
}

/* A partial load from BertModel's file into other models: the tensors it has are loaded, the others are reported. */
static void test_partial(void **state) {
    (void)state;
    dsc_model *a = gpt2(1), *b = gpt2(2);
    dsc_load_options o;
    dsc_load_report *report = NULL;
    dsc_load_options_init(&o);
    o.partial = 1;
    assert_ok(dsc_model_load(b, write_file(a, "part.safetensors", without_norm, masks), &o, &report));
    assert_int_equal(report->missing_count, 1);
    assert_string_equal(report->missing[0], "transformer.h.1.ln_2.bias");
    assert_int_equal(report->loaded_count, dsc_model_state_count(a) - 2); /* the head is tied */
    assert_int_equal(report->skipped_count, 3);
    dsc_load_report_free(&report);
    dsc_model_destroy(&a);
    dsc_model_destroy(&b);
}

/* ---- tables of positions of another length ---- */

static dsc_model *gpt2_of(int64_t context, uint64_t seed) {
    dsc_model_options options;
    dsc_model *model = NULL;
    dsc_model_options_init(&options);
    options.seed = seed;
    assert_ok(
        dsc_zoo_create(device, "gpt2:layers=1,heads=1,width=2", context, 1, 1, VOCABULARY, &options, &model));
    return model;
}

static const dsc_tensor *positions_of(const dsc_model *m) {
    for (int64_t i = 0; i < dsc_model_state_count(m); i++)
        if (strcmp(dsc_model_state(m)[i].name, "transformer.wpe.weight") == 0)
            return dsc_model_state(m)[i].tensor;
    return NULL;
}

/* The first rows are the file's, the others stay; all other tensors are the file's. Strictly, it does not fit. */
static void check_positions(int64_t in_file, int64_t in_model) {
    dsc_model *a = gpt2_of(in_file, 1), *b = gpt2_of(in_model, 2), *fresh = gpt2_of(in_model, 2);
    const int64_t rows = in_file < in_model ? in_file : in_model;
    dsc_load_options o;
    dsc_load_report *report = NULL;
    dsc_load_options_init(&o);
    spread(a);
    const char *path = write_file(a, "positions.safetensors", keep, NULL);
    assert_fails(DSC_E_INVALID, "'transformer.wpe.weight' is fp32", dsc_model_load(b, path, NULL, NULL));
    assert_true(same(b, fresh));
    o.partial = 1;
    assert_ok(dsc_model_load(b, path, &o, &report));
    assert_int_equal(report->loaded_count, dsc_model_state_count(b));
    assert_int_equal(report->skipped_count, 0);
    assert_int_equal(report->resized_count, 1);
    assert_string_equal(report->resized[0].name, "transformer.wpe.weight");
    assert_int_equal(report->resized[0].file_dim[0], in_file);
    assert_int_equal(report->resized[0].model_dim[0], in_model);
    float *of_file = runs_read(queue, positions_of(a)), *now = runs_read(queue, positions_of(b)),
          *before = runs_read(queue, positions_of(fresh));
    assert_memory_equal(now, of_file, (size_t)(2 * rows) * sizeof *now);
    assert_memory_equal(now + 2 * rows, before + 2 * rows, (size_t)(2 * (in_model - rows)) * sizeof *now);
    free(of_file);
    free(now);
    free(before);
    for (int64_t i = 0; i < dsc_model_state_count(a); i++) {
        const dsc_tensor *x = dsc_model_state(a)[i].tensor, *y = dsc_model_state(b)[i].tensor;
        void *p = runs_read(queue, x), *q = runs_read(queue, y);
        assert_true(x == positions_of(a) || memcmp(p, q, dsc_tensor_bytes(x)) == 0);
        free(p);
        free(q);
    }
    dsc_load_report_free(&report);
    dsc_model_destroy(&a);
    dsc_model_destroy(&b);
    dsc_model_destroy(&fresh);
}

static void test_positions(void **state) {
    (void)state;
    check_positions(9, CONTEXT);
    check_positions(CONTEXT, 9);
    check_positions(400, 3); /* the file's table is larger than any tensor of the model */
}

/* ---- damage ---- */

static void fuzz(dsc_model *(*make)(uint64_t), renaming rename, const extra *extras, uint64_t seed) {
    dsc_model *a = make(1), *into = make(2);
    dsc_tensor after = dsc_model_values(into);
    size_t size, bytes = dsc_tensor_bytes(&after);
    char *kept = runs_read(queue, &after);
    const char *path = write_file(a, "fuzz.safetensors", rename, extras);
    scratch_forget_sums(path);
    char *good = scratch_read(path, &size), *bad = malloc(size);
    uint64_t header;
    assert_non_null(bad);
    memcpy(&header, good, 8);
    for (uint64_t i = 0; i < 2000; i++) {
        dsc_rng rng = dsc_rng_start(seed, DSC_RNG_TEST, 0, i);
        size_t length = i % 4 == 0 ? dsc_rng_below(&rng, (uint32_t)size) : size;
        memcpy(bad, good, size);
        for (uint32_t flips = i % 4 == 0 ? 0 : 1 + dsc_rng_below(&rng, 4); flips > 0; flips--)
            bad[dsc_rng_below(&rng, (uint32_t)header + 8)] ^= (char)(1 << dsc_rng_below(&rng, 8));
        scratch_write(path, bad, length);
        assert_ok(dsc_tensor_upload(queue, kept, bytes, &after));
        assert_ok(dsc_queue_sync(queue));
        dsc_load_report *report = NULL;
        dsc_status status = dsc_model_load(into, path, NULL, &report);
        assert_true(status == DSC_OK || status == DSC_E_FORMAT || status == DSC_E_INVALID);
        char *now = runs_read(queue, &after);
        assert_true(status == DSC_OK || memcmp(now, kept, bytes) == 0);
        assert_true(i % 4 != 0 || status == DSC_E_FORMAT); /* cut short */
        free(now);
        dsc_load_report_free(&report);
    }
    free(good);
    free(bad);
    free(kept);
    dsc_model_destroy(&a);
    dsc_model_destroy(&into);
}

static void test_fuzz(void **state) {
    (void)state;
    fuzz(gpt2, as_gpt2_model, masks, 1);
    fuzz(bert, as_old_bert, heads, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),    cmocka_unit_test(test_bert),      cmocka_unit_test(test_bool),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_untied),    cmocka_unit_test(test_partial),
        cmocka_unit_test(test_fuzz),    cmocka_unit_test(test_positions),
    };
    scratch_make(directory);
    runs_open(&comm, &device);
    if (dsc_queue_create(device, &queue) != DSC_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dsc_comm_destroy(&comm);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    scratch_remove(directory);
    return failed;
}

/* The tokenizer in a model's file: all kinds are stored completely, text is generated with them without the data, and
 * invalid ones are refused. */
#include "test.h"

#include "base/rng.h"
#include "data/vocabulary.h"
#include "descent/checkpoint.h"
#include "descent/generate.h"
#include "train/runs.h"
#include "train/scratch.h"

#include <stdlib.h>

enum { CONTEXT = 8, TEXT = 256 };

static dsc_comm *comm;
static dsc_device *device;
static char directory[SCRATCH_SIZE];
static const char sample[] = "hello world, hello you; 12 a";

/* Saves a small GPT for `vocabulary` tokens with this tokenizer. */
static const char *save(const char *name, const dsc_tokenizer *tokenizer, int64_t vocabulary) {
    const char *path = scratch_path(directory, name), *spec = "gpt-mini:layers=1,heads=1,width=4,dropout=0";
    dsc_model *model = NULL;
    dsc_save_options o;
    dsc_save_options_init(&o);
    o.model = spec;
    o.tokenizer = tokenizer;
    assert_ok(dsc_zoo_create(device, spec, CONTEXT, 1, 1, vocabulary, NULL, &model));
    assert_ok(dsc_model_save(model, path, &o));
    dsc_model_destroy(&model);
    return path;
}

typedef struct generated {
    char bytes[TEXT];
    int64_t count;
} generated;

static int keep(void *context, const void *bytes, int64_t count) {
    generated *g = context;
    assert_true(g->count + count <= TEXT);
    memcpy(g->bytes + g->count, bytes, (size_t)count);
    g->count += count;
    return 0;
}

static dsc_status generate(const char *path, const char *data, generated *out) {
    dsc_generate_options o;
    dsc_generate_options_init(&o);
    o.checkpoint = path;
    o.data = data;
    o.prompt = "hello";
    o.tokens = 12;
    *out = (generated){.count = 0};
    return dsc_generate_run(device, &o, keep, out, NULL);
}

/* ---- what is stored ---- */

static void check_same(const dsc_tokenizer *a, const dsc_tokenizer *b) {
    int32_t tokens[2][sizeof sample];
    int64_t count[2];
    assert_string_equal(dsc_tokenizer_kind(a), dsc_tokenizer_kind(b));
    assert_int_equal(dsc_tokenizer_vocabulary(a), dsc_tokenizer_vocabulary(b));
    assert_int_equal(dsc_tokenizer_end_of_text(a), dsc_tokenizer_end_of_text(b));
    const int64_t length = (int64_t)sizeof sample - 1;
    assert_ok(dsc_tokenizer_encode(a, sample, length, 0, tokens[0], &count[0]));
    assert_ok(dsc_tokenizer_encode(b, sample, length, 0, tokens[1], &count[1]));
    assert_int_equal(count[0], count[1]);
    assert_memory_equal(tokens[0], tokens[1], (size_t)count[0] * sizeof tokens[0][0]);
    for (int32_t i = 0; i < dsc_tokenizer_vocabulary(a); i++) {
        int64_t x = 0, y = 0;
        const uint8_t *p = dsc_tokenizer_token(a, i, &x), *q = dsc_tokenizer_token(b, i, &y);
        assert_int_equal(x, y);
        assert_memory_equal(p, q, (size_t)x);
    }
}

/* Stored, described, and used as the original is; `data`: where the original comes from. */
static void check_stored(dsc_tokenizer *tokenizer, const char *data) {
    const int64_t vocabulary = dsc_tokenizer_vocabulary(tokenizer);
    const char *path = save("stored.safetensors", tokenizer, vocabulary);
    dsc_checkpoint_info *info = NULL;
    generated own, given;
    assert_ok(dsc_checkpoint_read_info(path, &info));
    assert_non_null(info->tokenizer);
    check_same(tokenizer, info->tokenizer);
    dsc_checkpoint_info_free(&info);
    assert_ok(generate(path, NULL, &own));
    assert_ok(generate(path, data, &given));
    assert_true(own.count >= 12);
    assert_int_equal(own.count, given.count);
    assert_memory_equal(own.bytes, given.bytes, (size_t)own.count);
    assert_ok(generate(save("more.safetensors", tokenizer, vocabulary + 3), NULL, &own));
    dsc_tokenizer_destroy(&tokenizer);
}

static void test_stored(void **state) {
    (void)state;
    const char *path = scratch_path(directory, "text");
    char text[40 * sizeof sample] = "", data[SCRATCH_SIZE + 64], folder[SCRATCH_SIZE + 8];
    dsc_tokenizer *tokenizer = NULL;
    dsc_tokenize_options o;
    for (int i = 0; i < 40; i++)
        memcpy(text + (size_t)i * (sizeof sample - 1), sample, sizeof sample);
    scratch_write(path, text, strlen(text));
    snprintf(data, sizeof data, "text:bytes:%s", path);
    assert_ok(dsc_tokenizer_bytes(&tokenizer));
    check_stored(tokenizer, data);
    snprintf(data, sizeof data, "text:%s", path);
    assert_ok(dsc_tokenizer_chars(text, (int64_t)strlen(text), &tokenizer));
    check_stored(tokenizer, data);
    test_write_vocabulary(directory);
    assert_ok(dsc_tokenizer_bpe(scratch_path(directory, "vocab.json"), scratch_path(directory, "merges.txt"),
                                &tokenizer));
    snprintf(folder, sizeof folder, "%s/tokens", directory);
    dsc_tokenize_options_init(&o);
    assert_ok(dsc_tokenize(tokenizer, &path, 1, folder, &o, NULL));
    snprintf(data, sizeof data, "tokens:%s", folder);
    check_stored(tokenizer, data);
}

/* Files without one, as older versions wrote them, need the data. */
static void test_none(void **state) {
    (void)state;
    generated g;
    dsc_checkpoint_info *info = NULL;
    const char *path = save("none.safetensors", NULL, 256);
    assert_ok(dsc_checkpoint_read_info(path, &info));
    assert_null(info->tokenizer);
    dsc_checkpoint_info_free(&info);
    assert_fails(DSC_E_INVALID, "holds no tokenizer and does not say which data", generate(path, NULL, &g));
}

/* The tokenizer is read from files beside the model's, as in a folder of the hub. */
static void test_beside(void **state) {
    (void)state;
    generated g, given;
    dsc_tokenizer *tokenizer = NULL;
    const char *vocab = scratch_path(directory, "vocab.json"),
               *merges = scratch_path(directory, "merges.txt");
    test_write_vocabulary(directory);
    assert_ok(dsc_tokenizer_bpe(vocab, merges, &tokenizer));
    const int64_t count = dsc_tokenizer_vocabulary(tokenizer);
    const char *path = save("beside.safetensors", NULL, count),
               *with = save("with.safetensors", tokenizer, count);
    dsc_tokenizer_destroy(&tokenizer);
    assert_ok(generate(path, NULL, &g));
    assert_ok(generate(with, NULL, &given));
    assert_int_equal(g.count, given.count);
    assert_memory_equal(g.bytes, given.bytes, (size_t)g.count);
    assert_int_equal(remove(vocab), 0);
    assert_fails(DSC_E_INVALID, "put vocab.json and merges.txt beside it", generate(path, NULL, &g));
    scratch_write(vocab, "{}", 2);
    assert_fails(DSC_E_FORMAT, "vocab.json' holds no object", generate(path, NULL, &g));
    assert_int_equal(remove(vocab), 0);
    assert_int_equal(remove(merges), 0);
}

/* ---- what is refused ---- */

static void test_bad(void **state) {
    (void)state;
    static const struct {
        const char *metadata, *message;
    } cases[] = {
        {"\"tokenizer\":\"{\"", "the tokenizer in '"},
        {"\"tokenizer\":\"{\"", "its description is not JSON"},
        {"\"tokenizer\":\"[]\"", "its kind is '', not one of bytes, chars, bpe"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"words\\\"}\"", "its kind is 'words'"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"bytes\\\"}\"",
         "its vocabulary is missing: must be a number of tokens, 1 or more"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"bytes\\\",\\\"vocabulary\\\":255}\"",
         "its vocabulary should have 255 tokens, but has 256"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"chars\\\",\\\"vocabulary\\\":1}\"", "it has no characters"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"chars\\\",\\\"vocabulary\\\":2,\\\"characters\\\":[9,9]}\"",
         "its characters are not ascending bytes"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"bpe\\\",\\\"vocabulary\\\":2}\"", "there is no vocab.json"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"bpe\\\",\\\"vocabulary\\\":2}\",\"vocab.json\":\"{}\"",
         "or no merges.txt"},
        {"\"tokenizer\":\"{\\\"kind\\\":\\\"bpe\\\",\\\"vocabulary\\\":2}\",\"vocab.json\":\"{}\","
         "\"merges.txt\":\"\"",
         "'vocab.json' holds no object with the number of each token"},
    };
    const char *path = scratch_path(directory, "bad.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char file[1024];
        dsc_checkpoint_info *info = NULL;
        generated g;
        int length = snprintf(file + 8, sizeof file - 8, "{\"__metadata__\":{\"model\":\"gpt-mini\",%s}}",
                              cases[i].metadata);
        uint64_t header = (uint64_t)length;
        memcpy(file, &header, 8);
        scratch_write(path, file, 8 + (size_t)length);
        assert_fails(DSC_E_FORMAT, cases[i].message, dsc_checkpoint_read_info(path, &info));
        assert_fails(DSC_E_FORMAT, cases[i].message, generate(path, NULL, &g));
    }
}

/* A model may have more tokens than its tokenizer, which have no text and are never drawn. */
static void test_unused_tokens(void **state) {
    (void)state;
    dsc_tokenizer *tokenizer = NULL;
    generated g;
    assert_ok(dsc_tokenizer_chars("helo", 4, &tokenizer));
    assert_ok(generate(save("unused.safetensors", tokenizer, 300), NULL, &g));
    assert_int_equal(g.count, 12);
    dsc_tokenizer_destroy(&tokenizer);
}

static void test_too_few(void **state) {
    (void)state;
    dsc_tokenizer *tokenizer = NULL;
    generated g;
    assert_ok(dsc_tokenizer_bytes(&tokenizer));
    assert_fails(DSC_E_FORMAT, "the model has 100 tokens, fewer than the 256 of its tokenizer",
                 generate(save("few.safetensors", tokenizer, 100), NULL, &g));
    dsc_tokenizer_destroy(&tokenizer);
}

/* The metadata truncated and with flipped bits, with and without check sums. */
static void test_fuzz(void **state) {
    (void)state;
    dsc_tokenizer *tokenizer = NULL;
    size_t size;
    int used = 0, refused = 0;
    test_write_vocabulary(directory);
    assert_ok(dsc_tokenizer_bpe(scratch_path(directory, "vocab.json"), scratch_path(directory, "merges.txt"),
                                &tokenizer));
    const char *path = save("fuzz.safetensors", tokenizer, dsc_tokenizer_vocabulary(tokenizer));
    dsc_tokenizer_destroy(&tokenizer);
    for (int sums = 1; sums >= 0; sums--) {
        if (!sums)
            scratch_forget_sums(path);
        char *good = scratch_read(path, &size), *bad = malloc(size);
        uint64_t header;
        assert_non_null(bad);
        memcpy(&header, good, 8);
        for (uint64_t i = 0; i < 600; i++) {
            dsc_rng rng = dsc_rng_start(5, DSC_RNG_TEST, (uint64_t)sums, i);
            generated g;
            memcpy(bad, good, size);
            for (uint32_t flips = i % 4 == 0 ? 0 : 1 + dsc_rng_below(&rng, 3); flips > 0; flips--)
                bad[8 + dsc_rng_below(&rng, (uint32_t)header)] ^= (char)(1 << dsc_rng_below(&rng, 8));
            scratch_write(path, bad, i % 4 == 0 ? dsc_rng_below(&rng, (uint32_t)size) : size);
            dsc_status status = generate(path, NULL, &g);
            assert_true(status == DSC_OK || status == DSC_E_FORMAT || status == DSC_E_INVALID ||
                        status == DSC_E_NOT_FOUND);
            used += status == DSC_OK;
            refused += status != DSC_OK;
        }
        scratch_write(path, good, size);
        free(good);
        free(bad);
    }
    assert_true(used > 10 && refused > 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),          cmocka_unit_test(test_beside),  cmocka_unit_test(test_stored),
        cmocka_unit_test(test_bad),           cmocka_unit_test(test_too_few), cmocka_unit_test(test_fuzz),
        cmocka_unit_test(test_unused_tokens),
    };
    scratch_make(directory);
    runs_open(&comm, &device);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dsc_comm_destroy(&comm);
    dsc_device_destroy(&device);
    scratch_remove(directory);
    return failed;
}

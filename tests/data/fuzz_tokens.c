/* The readers of vocab.json, merges.txt, files of tokens and tokens.json against broken inputs: valid small files,
 * truncated and with flipped bits. They may be accepted or refused; they must not crash, leak, hang, or be refused
 * without a message. Sanitizers see the rest. */
#include "test.h"

#include "base/rng.h"
#include "data/fixture.h"
#include "data/vocabulary.h"
#include "descent/data.h"

enum { INPUTS = 1000, ROOM = TEST_VOCABULARY_ROOM };

static char folder[TEST_PATH], vocab[ROOM], merges[ROOM];
static uint8_t broken[ROOM];

static const char *in_folder(const char *name) {
    static char path[2][TEST_PATH + 64];
    static int next;
    char *p = path[next++ % 2];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

/* Writes the contents to `name` with one to four flipped bits, or cut off, or both. */
static void write_broken(const char *name, const void *contents, size_t size, uint32_t stream, uint64_t i) {
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, stream, i);
    uint32_t choice = dsc_rng_below(&rng, 4);
    memcpy(broken, contents, size);
    for (uint32_t n = choice ? 1 + dsc_rng_below(&rng, 4) : 0; n > 0; n--)
        broken[dsc_rng_below(&rng, (uint32_t)size)] ^= (uint8_t)(1u << dsc_rng_below(&rng, 8));
    test_write(folder, name, broken, choice <= 1 ? dsc_rng_below(&rng, (uint32_t)size + 1) : size);
}

static int check(dsc_status status) {
    if (status != DSC_OK)
        assert_true(strlen(dsc_error_message()) > 10);
    return status == DSC_OK;
}

/* A tokenizer that is read from broken files must still give back every text. */
static int try_tokenizer(void) {
    static const uint8_t text[] =
        "hello world, aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \xD0\xBF\xF0\x9F\x98\x80 12\xFF";
    int32_t tokens[sizeof text];
    uint8_t back[sizeof text];
    int64_t count, bytes;
    dsc_tokenizer *t = NULL;
    if (!check(dsc_tokenizer_bpe(in_folder("vocab.json"), in_folder("merges.txt"), &t)))
        return 0;
    assert_ok(dsc_tokenizer_encode(t, text, sizeof text, DSC_ENCODE_SPECIAL, tokens, &count));
    assert_ok(dsc_tokenizer_decode(t, tokens, count, NULL, 0, &bytes));
    if (bytes == (int64_t)sizeof text) { /* a broken vocabulary may give a merged token other bytes */
        assert_ok(dsc_tokenizer_decode(t, tokens, count, back, sizeof back, &bytes));
        assert_memory_equal(back, text, sizeof text);
    }
    dsc_tokenizer_destroy(&t);
    return 1;
}

static void test_vocabularies(void **state) {
    (void)state;
    int accepted = 0;
    test_vocabulary(vocab, merges);
    for (uint64_t i = 0; i < INPUTS; i++) {
        test_write(folder, "merges.txt", merges, strlen(merges));
        write_broken("vocab.json", vocab, strlen(vocab), 31, i);
        accepted += try_tokenizer();
        test_write(folder, "vocab.json", vocab, strlen(vocab));
        write_broken("merges.txt", merges, strlen(merges), 32, i);
        accepted += try_tokenizer();
    }
    assert_in_range(accepted, INPUTS / 100, 2 * INPUTS - 1);
}

/* The same through a data set: all windows of both splits. */
static void try_set(int64_t vocabulary) {
    char spec[TEST_PATH + 64];
    dsc_data_options o;
    dsc_data_options_init(&o);
    o.context = 3;
    o.vocabulary = vocabulary;
    snprintf(spec, sizeof spec, "tokens:%s", in_folder("train.bin"));
    for (dsc_split split = DSC_SPLIT_TRAIN; split <= DSC_SPLIT_VAL; split++) {
        dsc_dataset *set = NULL;
        if (!check(dsc_dataset_open(spec, split, &o, &set)))
            continue;
        dsc_dataset_info info = dsc_dataset_get_info(set);
        for (int64_t i = 0; i < info.count; i++) {
            float x[3];
            int32_t label[3];
            if (!check(dsc_dataset_sample(set, i, 1, i, x, label)))
                continue;
            for (int k = 0; k < 3; k++)
                assert_true(label[k] >= 0 && label[k] < info.classes && x[k] >= 0 &&
                            x[k] < (float)info.classes);
        }
        dsc_dataset_close(&set);
    }
}

/* Opens a file of tokens and reads all of it. */
static int try_file(int wide, int64_t vocabulary) {
    dsc_token_file_options o;
    dsc_token_file *f = NULL;
    dsc_tokenizer *t = NULL;
    static int32_t tokens[ROOM];
    dsc_token_file_options_init(&o);
    o.uint32 = wide;
    o.vocabulary = vocabulary;
    try_set(vocabulary);
    if (check(dsc_tokenizer_of_file(in_folder("train.bin"), &t)))
        dsc_tokenizer_destroy(&t);
    if (!check(dsc_token_file_open(in_folder("train.bin"), &o, &f)))
        return 0;
    assert_in_range(dsc_token_file_count(f), 1, ROOM);
    int whole = check(dsc_token_file_read(f, 0, dsc_token_file_count(f), tokens));
    dsc_token_file_close(&f);
    return whole;
}

static void test_token_files(void **state) {
    (void)state;
    static uint8_t file[1024 + 200];
    int accepted = 0;
    const uint32_t start[3] = {20240520, 1, 100};
    for (size_t i = 0; i < sizeof file; i++)
        file[i] = i < 12 ? (uint8_t)(start[i / 4] >> i % 4 * 8) : i < 1024 ? 0 : (uint8_t)(i % 2 ? 0 : i);
    for (uint64_t i = 0; i < INPUTS; i++) {
        int header = i % 2 == 0;
        write_broken("train.bin", header ? file : file + 1024, header ? sizeof file : 200, 33, i);
        accepted += try_file(i % 4 == 1, 256);
    }
    assert_in_range(accepted, INPUTS / 100, INPUTS - 1);
}

static void test_descriptions(void **state) {
    (void)state;
    const char *const text[] = {"the quick brown fox", in_folder("text")};
    dsc_tokenizer *t;
    dsc_tokenize_options o;
    char json[ROOM] = "";
    int accepted = 0;
    test_write(folder, "text", text[0], strlen(text[0]));
    dsc_tokenize_options_init(&o);
    o.overwrite = 1;
    assert_ok(dsc_tokenizer_chars(text[0], (int64_t)strlen(text[0]), &t));
    assert_ok(dsc_tokenize(t, text + 1, 1, folder, &o, NULL));
    dsc_tokenizer_destroy(&t);
    FILE *file = fopen(in_folder("tokens.json"), "rb");
    assert_non_null(file);
    size_t size = fread(json, 1, sizeof json - 1, file);
    fclose(file);
    assert_true(try_file(0, 0));
    for (uint64_t i = 0; i < INPUTS; i++) {
        write_broken("tokens.json", json, size, 34, i);
        accepted += try_file(0, 0);
    }
    assert_in_range(accepted, INPUTS / 100, INPUTS - 1);
}

static int setup(void **state) {
    (void)state;
    test_make_folder(folder);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_remove(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocabularies),
        cmocka_unit_test(test_token_files),
        cmocka_unit_test(test_descriptions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* Sequences of tokens: the windows of a text that are samples, their labels, and loaders of them. */
#include "chosen.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/fixture.h"
#include "data/sampler.h"
#include "data/sequences.h"
#include "data/vocabulary.h"

#include <stdlib.h>
#include <unistd.h>

enum { LENGTH = 1000, CONTEXT = 7, SEED = 11, BATCH = 4 };

static dsc_device *device;
static dsc_queue *queue;
static char folder[TEST_PATH];
static uint8_t text[LENGTH];

static const char *spec_of(const char *kind, const char *name) {
    static char spec[TEST_PATH + 64];
    snprintf(spec, sizeof spec, "%s:%s/%s", kind, folder, name);
    return spec;
}

static dsc_data_options options_of(int64_t context) {
    dsc_data_options o;
    dsc_data_options_init(&o);
    o.context = context;
    o.seed = SEED;
    return o;
}

static dsc_dataset *open_set(const char *spec, dsc_split split, const dsc_data_options *o) {
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, split, o, &set));
    return set;
}

static int setup(void **state) {
    (void)state;
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    test_make_folder(folder);
    static const char *const words[] = {"hello ", "world ", "figs ", "us\n"};
    for (int used = 0, n = 1; used < LENGTH; n = n * 21 % 1009) { /* 14 different characters */
        const char *word = words[n % 4];
        for (; *word && used < LENGTH; word++)
            text[used++] = (uint8_t)*word;
    }
    text[LENGTH - 1] = 'Z'; /* only in the part for validation, but in the vocabulary of both */
    test_write(folder, "text.txt", text, LENGTH);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_remove(folder);
    assert_int_equal(dsc_device_bytes(device), 0);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

/* The number of a character among the distinct ones of the text. */
static int char_token(uint8_t c) {
    int token = 0;
    for (int b = 0; b < c; b++)
        token += memchr(text, b, LENGTH) != NULL;
    return token;
}

/* ---- windows ---- */

/* Every sample of the set is tokens[at + i T ...] and the labels the same, one later. tokens[count] are its split's. */
static void check_windows(const dsc_dataset *set, int augment, int64_t epoch, const int32_t *tokens,
                          int64_t count) {
    const dsc_dataset_info info = dsc_dataset_get_info(set);
    const int64_t at =
        augment && set->split == DSC_SPLIT_TRAIN ? dsc_sequences_offset(SEED, epoch, info.h) : 0;
    float *x = malloc((size_t)info.h * sizeof *x);
    int32_t *label = malloc((size_t)info.h * sizeof *label);
    assert_true(x && label);
    assert_int_equal(info.w, 1);
    assert_int_equal(info.c, 1);
    assert_int_equal(dsc_dataset_label_count(set), info.h);
    assert_in_range(at, 0, info.h - 1);
    for (int64_t i = 0; i < info.count; i++) {
        assert_ok(dsc_dataset_sample(set, i, augment, epoch, x, label));
        assert_true(at + i * info.h + info.h < count);
        for (int64_t k = 0; k < info.h; k++) {
            assert_true(x[k] == (float)tokens[at + i * info.h + k]);
            assert_int_equal(label[k], tokens[at + i * info.h + k + 1]);
        }
    }
    free(x);
    free(label);
}

static void test_text(void **state) {
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        int32_t tokens[LENGTH];
        dsc_data_options o = options_of(CONTEXT);
        for (int i = 0; i < LENGTH; i++)
            tokens[i] = bytes ? text[i] : char_token(text[i]);
        const char *spec = spec_of(bytes ? "text:bytes" : "text", "text.txt");
        dsc_dataset *train = open_set(spec, DSC_SPLIT_TRAIN, &o), *val = open_set(spec, DSC_SPLIT_VAL, &o);
        assert_int_equal(dsc_dataset_get_info(train).count, (900 - CONTEXT) / CONTEXT);
        assert_int_equal(dsc_dataset_get_info(val).count, (100 - 1) / CONTEXT);
        assert_int_equal(dsc_dataset_get_info(val).classes, bytes ? 256 : 15);
        assert_int_equal(dsc_dataset_get_info(train).classes, bytes ? 256 : 15);
        assert_string_equal(dsc_tokenizer_kind(dsc_dataset_tokenizer(train)), bytes ? "bytes" : "chars");
        assert_true(dsc_dataset_bytes_per_token(val) == 1);
        for (int64_t epoch = 0; epoch < 5; epoch++) {
            check_windows(train, 1, epoch, tokens, 900);
            check_windows(train, 0, epoch, tokens, 900);
            check_windows(val, 1, epoch, tokens + 900, 100);
        }
        dsc_dataset_close(&train);
        dsc_dataset_close(&val);
    }
    dsc_dataset *named = open_set(spec_of("text:chars", "text.txt"), DSC_SPLIT_TRAIN, NULL);
    assert_int_equal(dsc_dataset_get_info(named).h, 256);
    assert_int_equal(dsc_dataset_get_info(named).classes, 15);
    assert_null(dsc_dataset_tokenizer(NULL));
    assert_true(dsc_dataset_bytes_per_token(NULL) == 0);
    dsc_dataset_close(&named);
}

/* Offsets are spread over all of 0 to T - 1, differ from epoch to epoch, and depend on the seed. */
static void test_offsets(void **state) {
    (void)state;
    int seen[CONTEXT] = {0}, changes = 0, differ = 0;
    for (int64_t epoch = 0; epoch < 200; epoch++) {
        int64_t offset = dsc_sequences_offset(SEED, epoch, CONTEXT);
        assert_in_range(offset, 0, CONTEXT - 1);
        seen[offset]++;
        changes += offset != dsc_sequences_offset(SEED, epoch + 1, CONTEXT);
        differ += offset != dsc_sequences_offset(SEED + 1, epoch, CONTEXT);
    }
    for (int i = 0; i < CONTEXT; i++)
        assert_in_range(seen[i], 10, 60); /* 28.6 are expected, with a deviation of 5 */
    assert_in_range(changes, 140, 199);
    assert_in_range(differ, 140, 199);
}

/* A folder is one text: its files one after the other by name; a split may lie across them. */
static void test_folder(void **state) {
    (void)state;
    int32_t tokens[LENGTH];
    dsc_data_options o = options_of(CONTEXT);
    const int parts[] = {0, 300, 301, 860, LENGTH};
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = text[i];
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "parts/%c.txt", 'a' + i);
        test_write(folder, name, text + parts[i], (size_t)(parts[i + 1] - parts[i]));
    }
    o.val_split = 0.5;
    dsc_dataset *train = open_set(spec_of("text:bytes", "parts"), DSC_SPLIT_TRAIN, &o);
    dsc_dataset *val = open_set(spec_of("text:bytes", "parts"), DSC_SPLIT_VAL, &o);
    check_windows(train, 1, 3, tokens, 500);
    check_windows(val, 1, 3, tokens + 500, 500);
    assert_int_equal(dsc_dataset_get_info(train).count, 500 / CONTEXT - 1);
    assert_int_equal(dsc_dataset_get_info(val).count, 499 / CONTEXT);
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);
}

/* The shortest texts, and those that are too short. */
static void test_lengths(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(10);
    o.val_split = 0.5;
    test_write(folder, "short.txt", text, 40);
    set = open_set(spec_of("text", "short.txt"), DSC_SPLIT_TRAIN, &o);
    assert_int_equal(dsc_dataset_get_info(set).count, 1);
    for (int64_t epoch = 0; epoch < 100; epoch++) { /* whatever the offset, the window ends inside the text */
        float x[10];
        int32_t label[10];
        assert_ok(dsc_dataset_sample(set, 0, 1, epoch, x, label));
    }
    dsc_dataset_close(&set);
    o.context = 11;
    assert_fails(DSC_E_INVALID,
                 "short.txt' has 20 tokens for training, too few for sequences of 11: take a longer text, "
                 "or a context of at most 10",
                 dsc_dataset_open(spec_of("text", "short.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o.context = 29;
    o.val_split = 0.2; /* 32 tokens and 8 */
    assert_fails(DSC_E_INVALID, "or a context of at most 7 (",
                 dsc_dataset_open(spec_of("text", "short.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o.val_split = 0.5;
    o.context = 19;
    set = open_set(spec_of("text", "short.txt"), DSC_SPLIT_VAL, &o);
    assert_int_equal(dsc_dataset_get_info(set).count, 1);
    dsc_dataset_close(&set);
    o.context = 20;
    assert_fails(DSC_E_INVALID,
                 "has 20 tokens for validation, too few for sequences of 20: take a longer text, or a "
                 "context of at most 19",
                 dsc_dataset_open(spec_of("text", "short.txt"), DSC_SPLIT_VAL, &o, &set));
    test_write(folder, "short.txt", text, 1);
    assert_fails(DSC_E_INVALID, "has 0 tokens for training, too few for any sequence",
                 dsc_dataset_open(spec_of("text", "short.txt"), DSC_SPLIT_TRAIN, &o, &set));
    test_write(folder, "short.txt", text, 0);
    assert_fails(DSC_E_FORMAT, "text: '",
                 dsc_dataset_open(spec_of("text", "short.txt"), DSC_SPLIT_TRAIN, &o, &set));
    assert_non_null(strstr(dsc_error_message(), "short.txt' is empty"));
    assert_null(set);
}

static void test_bad_options(void **state) {
    (void)state;
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(-1);
    assert_fails(DSC_E_INVALID, "a context of -1 tokens",
                 dsc_dataset_open(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o = options_of(CONTEXT);
    o.mask = 1.5;
    assert_fails(DSC_E_INVALID, "mask 1.5: must be a probability",
                 dsc_dataset_open(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o.mask = 0.15;
    o.mask_token = 15;
    assert_fails(DSC_E_INVALID, "mask token 15: with a vocabulary of 15 it must be 0 to 14",
                 dsc_dataset_open(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o.mask_token = 3;
    assert_fails(DSC_E_INVALID, "text: mask token 3 is the character '",
                 dsc_dataset_open(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o.mask_token = 14;
    assert_fails(DSC_E_INVALID, "make the vocabulary larger than 15 and take one from 15 on",
                 dsc_dataset_open(spec_of("text", "text.txt"), DSC_SPLIT_VAL, &o, &set));
    o.mask_token = -1;
    o.vocabulary = 14;
    assert_fails(DSC_E_INVALID, "has 15 different characters, more than the vocabulary of 14 tokens",
                 dsc_dataset_open(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o.vocabulary = 1 << 24;
    assert_fails(DSC_E_INVALID, "a vocabulary of 16777216 tokens",
                 dsc_dataset_open(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o, &set));
    o.vocabulary = 64;
    o.mask = 0;
    set = open_set(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o);
    assert_int_equal(dsc_dataset_get_info(set).classes, 64);
    dsc_dataset_close(&set);
    assert_fails(DSC_E_NOT_FOUND, "nothing.txt",
                 dsc_dataset_open(spec_of("text", "nothing.txt"), DSC_SPLIT_TRAIN, NULL, &set));
    assert_fails(DSC_E_INVALID, "'text': needs an argument, as in 'text:[bytes:|chars:]PATH'",
                 dsc_dataset_open("text", DSC_SPLIT_TRAIN, NULL, &set));
    assert_null(set);
}

/* ---- files of tokens ---- */

/* Writes the text as files of tokens into folder/name with a byte-pair encoding, whose tokens it returns. */
static int64_t write_tokens(const char *name, double val_split, int32_t tokens[LENGTH], int64_t *train) {
    char out[TEST_PATH + 32], path[TEST_PATH + 64], vocab[TEST_PATH + 32], merges[TEST_PATH + 32];
    dsc_tokenize_options o;
    dsc_tokenize_result r = {.size = sizeof r};
    dsc_tokenizer *t = NULL;
    test_write_vocabulary(folder);
    snprintf(out, sizeof out, "%s/%s", folder, name);
    snprintf(path, sizeof path, "%s/text.txt", folder);
    snprintf(vocab, sizeof vocab, "%s/vocab.json", folder);
    snprintf(merges, sizeof merges, "%s/merges.txt", folder);
    assert_ok(dsc_tokenizer_bpe(vocab, merges, &t));
    dsc_tokenize_options_init(&o);
    o.val_split = val_split;
    assert_ok(dsc_tokenize(t, (const char *const[]){path}, 1, out, &o, &r));
    dsc_tokenizer_destroy(&t);
    *train = r.train_tokens;
    for (int i = 0; i < 2; i++) {
        dsc_token_file *f = NULL;
        snprintf(path, sizeof path, "%s/%s", out, i ? "val.bin" : "train.bin");
        if (access(path, F_OK) != 0)
            continue;
        assert_ok(dsc_token_file_open(path, NULL, &f));
        assert_ok(dsc_token_file_read(f, 0, dsc_token_file_count(f), tokens + (i ? r.train_tokens : 0)));
        dsc_token_file_close(&f);
    }
    return r.train_tokens + r.val_tokens;
}

static void test_files(void **state) {
    (void)state;
    int32_t tokens[LENGTH];
    int64_t train_count, count = write_tokens("bpe", 0.3, tokens, &train_count);
    dsc_data_options o = options_of(CONTEXT);
    dsc_dataset *train = open_set(spec_of("tokens", "bpe"), DSC_SPLIT_TRAIN, &o);
    dsc_dataset *val = open_set(spec_of("tokens", "bpe"), DSC_SPLIT_VAL, &o);
    check_windows(train, 1, 4, tokens, train_count);
    check_windows(val, 1, 4, tokens + train_count, count - train_count);
    assert_int_equal(dsc_dataset_get_info(train).count, (train_count - CONTEXT) / CONTEXT);
    assert_int_equal(dsc_dataset_get_info(val).count, (count - train_count - 1) / CONTEXT);
    assert_string_equal(dsc_tokenizer_kind(dsc_dataset_tokenizer(val)), "bpe");
    assert_int_equal(dsc_dataset_get_info(val).classes, dsc_tokenizer_vocabulary(dsc_dataset_tokenizer(val)));
    assert_true(dsc_dataset_bytes_per_token(train) > 1 && dsc_dataset_bytes_per_token(train) < 10);
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);

    o.val_split = 0.25; /* of train.bin, which is divided in place of the text */
    train = open_set(spec_of("tokens", "bpe"), DSC_SPLIT_TRAIN, &o);
    val = open_set(spec_of("tokens", "bpe"), DSC_SPLIT_VAL, &o);
    int64_t part = (int64_t)((double)train_count * 0.75);
    check_windows(train, 1, 4, tokens, part);
    check_windows(val, 1, 4, tokens + part, train_count - part);
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);

    o.val_split = 0; /* a file alone is divided as text is */
    part = (int64_t)((double)train_count * 0.9);
    val = open_set(spec_of("tokens", "bpe/train.bin"), DSC_SPLIT_VAL, &o);
    check_windows(val, 1, 4, tokens + part, train_count - part);
    assert_string_equal(dsc_tokenizer_kind(dsc_dataset_tokenizer(val)), "bpe");
    dsc_dataset_close(&val);
}

static void test_bad_files(void **state) {
    (void)state;
    int32_t tokens[LENGTH];
    int64_t train_count;
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(CONTEXT);
    write_tokens("whole", 0, tokens, &train_count);
    assert_fails(DSC_E_NOT_FOUND,
                 "has no val.bin: make it of text with 'descent tokenize --val-split 0.1', or take the "
                 "end of train.bin",
                 dsc_dataset_open(spec_of("tokens", "whole"), DSC_SPLIT_VAL, &o, &set));
    test_write(folder, "other/readme", "x", 1);
    assert_fails(DSC_E_NOT_FOUND, "has no train.bin: make it of text with 'descent tokenize --out",
                 dsc_dataset_open(spec_of("tokens", "other"), DSC_SPLIT_TRAIN, &o, &set));
    assert_fails(DSC_E_NOT_FOUND, "missing.bin",
                 dsc_dataset_open(spec_of("tokens", "missing.bin"), DSC_SPLIT_TRAIN, &o, &set));
    o.vocabulary = 100;
    assert_fails(DSC_E_INVALID, "and not 100: these are too few",
                 dsc_dataset_open(spec_of("tokens", "whole"), DSC_SPLIT_TRAIN, &o, &set));
    o.vocabulary = 0;
    test_write(folder, "empty.bin", "", 0);
    assert_fails(DSC_E_FORMAT, "empty.bin' is empty: it should hold tokens",
                 dsc_dataset_open(spec_of("tokens", "empty.bin"), DSC_SPLIT_TRAIN, &o, &set));
    test_write(folder, "odd.bin", text, 333);
    assert_fails(DSC_E_FORMAT, "odd.bin' has 333 bytes, which is no whole number of tokens",
                 dsc_dataset_open(spec_of("tokens", "odd.bin"), DSC_SPLIT_TRAIN, &o, &set));
    test_write(folder, "whole/train.bin", text, 100);
    assert_fails(DSC_E_FORMAT, "beside it says",
                 dsc_dataset_open(spec_of("tokens", "whole"), DSC_SPLIT_TRAIN, &o, &set));
    assert_null(set);
}

static void test_one_character(void **state) {
    (void)state;
    char same[LENGTH];
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(CONTEXT);
    memset(same, 'a', sizeof same);
    test_write(folder, "same.txt", same, sizeof same);
    assert_fails(DSC_E_INVALID, "same.txt' has one distinct character",
                 dsc_dataset_open(spec_of("text", "same.txt"), DSC_SPLIT_TRAIN, &o, &set));
    set = open_set(spec_of("text:bytes", "same.txt"), DSC_SPLIT_TRAIN, &o);
    dsc_dataset_close(&set);
}

/* A folder of tokens whose vocabulary is missing is an error, unlike a folder without a description. */
static void test_lost_vocabulary(void **state) {
    (void)state;
    static const char *const names[] = {"merges.txt", "vocab.json"};
    int32_t tokens[LENGTH];
    int64_t train_count;
    dsc_dataset *set = NULL;
    dsc_data_options o = options_of(CONTEXT);
    write_tokens("lost", 0.3, tokens, &train_count);
    for (int i = 0; i < 2; i++) {
        char path[TEST_PATH + 64], missing[64];
        snprintf(path, sizeof path, "%s/lost/%s", folder, names[i]);
        test_remove(path);
        snprintf(missing, sizeof missing, "lost/%s', which is missing: copy it there", names[i]);
        assert_fails(DSC_E_FORMAT, missing,
                     dsc_dataset_open(spec_of("tokens", "lost"), DSC_SPLIT_TRAIN, &o, &set));
    }
    assert_null(set);
}

/* Token numbers that are not in the vocabulary, which for files without a description is GPT-2's or the caller's. */
static void test_bad_tokens(void **state) {
    (void)state;
    enum { N = 200, BAD = 123 };
    uint8_t file[2 * N];
    float x[CONTEXT];
    int32_t label[CONTEXT];
    int64_t bad = 0;
    dsc_data_options o = options_of(CONTEXT);
    for (int i = 0; i < N; i++) {
        int token = i == BAD ? 50257 : i;
        file[2 * i] = (uint8_t)token;
        file[2 * i + 1] = (uint8_t)(token >> 8);
    }
    test_write(folder, "gpt2.bin", file, sizeof file);
    dsc_dataset *set = open_set(spec_of("tokens", "gpt2.bin"), DSC_SPLIT_TRAIN, &o);
    assert_int_equal(dsc_dataset_get_info(set).classes, 50257);
    assert_null(dsc_dataset_tokenizer(set));
    assert_true(dsc_dataset_bytes_per_token(set) == 0);
    assert_ok(dsc_dataset_sample(set, BAD / CONTEXT - 1, 0, 0, x, label));
    assert_fails(DSC_E_FORMAT, "gpt2.bin': token 123 is 50257, but the vocabulary has 50257 tokens",
                 dsc_dataset_sample(set, BAD / CONTEXT, 0, 0, x, label));
    assert_ok(dsc_dataset_check(set, NULL, &bad));
    assert_int_equal(bad, 1);
    /* It is not passed over like a broken image. */
    dsc_loader_options lo;
    dsc_loader *loader;
    dsc_batch batch;
    dsc_loader_options_init(&lo);
    lo.batch = 1;
    lo.shuffle = lo.augment = 0;
    lo.skip_bad = 1;
    assert_ok(dsc_loader_create(set, device, &lo, &loader));
    for (int i = 0; i < BAD / CONTEXT; i++)
        assert_ok(dsc_loader_next(loader, queue, &batch));
    assert_fails(DSC_E_FORMAT, "token 123 is 50257", dsc_loader_next(loader, queue, &batch));
    dsc_loader_destroy(&loader);
    dsc_dataset_close(&set);
    o.vocabulary = 50304;
    set = open_set(spec_of("tokens", "gpt2.bin"), DSC_SPLIT_TRAIN, &o);
    assert_int_equal(dsc_dataset_get_info(set).classes, 50304);
    assert_ok(dsc_dataset_check(set, NULL, &bad));
    assert_int_equal(bad, 0);
    dsc_dataset_close(&set);
}

/* Every allocation fails once: an error, and nothing leaks. */
static void test_memory(void **state) {
    (void)state;
    int32_t tokens[LENGTH];
    int64_t train_count;
    dsc_data_options o = options_of(CONTEXT);
    write_tokens("memory", 0.3, tokens, &train_count);
    for (int i = 0; i < 2; i++) {
        const char *spec = i ? spec_of("tokens", "memory") : spec_of("text", "text.txt");
        dsc_status status = DSC_E_MEMORY;
        for (int64_t n = 1; status != DSC_OK; n++) {
            dsc_dataset *set = NULL;
            dsc_memory_fail_at(n);
            status = dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &o, &set);
            dsc_memory_fail_at(0);
            assert_true(status == DSC_OK ? set != NULL : status == DSC_E_MEMORY && !set);
            dsc_dataset_close(&set);
        }
    }
}

/* ---- masked tokens ---- */

static void test_masked(void **state) {
    (void)state;
    enum { WINDOW = 50 };
    dsc_data_options o = options_of(WINDOW);
    int chosen = 0, masked = 0, kept = 0, total = 0, changed = 0;
    o.mask = 0.15;
    dsc_dataset *set = open_set(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &o);
    assert_int_equal(dsc_dataset_get_info(set).classes, 16); /* with the mask's own token, 15 */
    for (int64_t epoch = 0; epoch < 40; epoch++)
        for (int64_t i = 0; i < dsc_dataset_get_info(set).count; i++) {
            float x[WINDOW], again[WINDOW], other[WINDOW];
            int32_t label[WINDOW], label_again[WINDOW], label_other[WINDOW];
            const int64_t at = dsc_sequences_offset(SEED, epoch, WINDOW) + i * WINDOW;
            assert_ok(dsc_dataset_sample(set, i, 1, epoch, x, label));
            assert_ok(dsc_dataset_sample(set, i, 1, epoch, again, label_again));
            assert_ok(dsc_dataset_sample(set, i, 1, epoch + 1, other, label_other));
            assert_memory_equal(x, again, sizeof x);
            assert_memory_equal(label, label_again, sizeof label);
            for (int k = 0; k < WINDOW; k++) {
                const int token = char_token(text[at + k]);
                assert_true(label[k] == token || (label[k] == -1 && x[k] == (float)token));
                total++;
                chosen += label[k] >= 0;
                masked += x[k] == 15;
                kept += label[k] >= 0 && x[k] == (float)token;
                changed += (label[k] < 0) != (label_other[k] < 0);
                assert_in_range(x[k], 0, 15);
            }
        }
    assert_in_range(chosen, total * 0.14, total * 0.16);
    assert_in_range(masked, chosen * 0.77, chosen * 0.83);
    assert_in_range(kept, chosen * 0.08,
                    chosen * 0.14); /* 10 %, and a fifteenth of the 10 % that are drawn */
    assert_true(changed > total / 10);
    dsc_dataset_close(&set);

    o.mask_token = 15;
    o.vocabulary = 17;
    set = open_set(spec_of("text", "text.txt"), DSC_SPLIT_VAL, &o); /* the same in every epoch */
    assert_int_equal(dsc_dataset_get_info(set).classes, 17);
    float a[WINDOW], b[WINDOW];
    int32_t la[WINDOW], lb[WINDOW];
    assert_ok(dsc_dataset_sample(set, 0, 0, 0, a, la));
    assert_ok(dsc_dataset_sample(set, 0, 1, 5, b, lb));
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(la, lb, sizeof la);
    dsc_dataset_close(&set);
}

/* ---- loaders ---- */

static void check_batch(const dsc_dataset *set, const dsc_loader_options *o, const dsc_batch *batch,
                        int *seen) {
    const int64_t count = dsc_dataset_get_info(set).count;
    uint32_t order[LENGTH];
    float x[BATCH * CONTEXT], wanted[CONTEXT];
    int32_t labels[BATCH * CONTEXT], label[CONTEXT];
    dsc_sampler_permute(o->seed, batch->epoch, count, order);
    assert_int_equal(batch->x.dim[1], CONTEXT);
    assert_int_equal(batch->x.dtype, DSC_F32);
    assert_int_equal(batch->labels.dim[0], BATCH * CONTEXT);
    assert_ok(dsc_tensor_download(queue, &batch->x, sizeof x, x));
    assert_ok(dsc_tensor_download(queue, &batch->labels, sizeof labels, labels));
    assert_ok(dsc_queue_sync(queue));
    for (int i = 0; i < BATCH; i++) {
        int64_t place = batch->position + o->rank * BATCH + i;
        if (place >= count) {
            for (int k = 0; k < CONTEXT; k++)
                assert_int_equal(labels[i * CONTEXT + k], -1);
            continue;
        }
        const int64_t sample = o->shuffle ? (int64_t)order[place] : place;
        assert_ok(dsc_dataset_sample(set, sample, o->augment, batch->epoch, wanted, label));
        assert_memory_equal(x + i * CONTEXT, wanted, sizeof wanted);
        assert_memory_equal(labels + i * CONTEXT, label, sizeof label);
        seen[sample]++;
    }
}

/* With one to three ranks and one or four threads, each window occurs once an epoch, on some rank. */
static void test_loaders(void **state) {
    (void)state;
    dsc_data_options data = options_of(CONTEXT);
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        dsc_dataset *set =
            open_set(spec_of("text", "text.txt"), evaluates ? DSC_SPLIT_VAL : DSC_SPLIT_TRAIN, &data);
        for (int ranks = 1; ranks <= 3; ranks++) {
            int seen[LENGTH] = {0};
            int64_t used = 0;
            for (int rank = 0; rank < ranks; rank++) {
                dsc_loader_options o;
                dsc_loader *loader = NULL;
                dsc_batch batch;
                dsc_loader_options_init(&o);
                o.batch = BATCH;
                o.rank = rank;
                o.ranks = ranks;
                o.threads = 1 + 3 * (rank % 2);
                o.shuffle = o.augment = !evaluates;
                o.keep_last = evaluates;
                assert_ok(dsc_loader_create(set, device, &o, &loader));
                assert_ok(dsc_loader_seek(loader, 3, 0));
                for (int64_t b = 0; b < dsc_loader_batches(loader); b++) {
                    assert_ok(dsc_loader_next(loader, queue, &batch));
                    assert_int_equal(batch.epoch, 3);
                    check_batch(set, &o, &batch, seen);
                }
                dsc_loader_destroy(&loader);
            }
            for (int64_t i = 0; i < dsc_dataset_get_info(set).count; i++) {
                assert_in_range(seen[i], evaluates, 1);
                used += seen[i];
            }
            const int64_t count = dsc_dataset_get_info(set).count;
            assert_int_equal(used, evaluates ? count : count / (ranks * BATCH) * ranks * BATCH);
        }
        dsc_dataset_close(&set);
    }
}

/* Continuing at (epoch, position) gives the batches that would have come. */
static void test_resume(void **state) {
    (void)state;
    dsc_data_options data = options_of(CONTEXT);
    dsc_dataset *set = open_set(spec_of("text", "text.txt"), DSC_SPLIT_TRAIN, &data);
    dsc_loader *loader = NULL, *resumed = NULL;
    dsc_loader_options o;
    dsc_batch batch;
    int64_t epoch = 0, position = 0;
    int seen[LENGTH] = {0};
    dsc_loader_options_init(&o);
    o.batch = BATCH;
    assert_ok(dsc_loader_create(set, device, &o, &loader));
    for (int64_t b = 0; b < dsc_loader_batches(loader) + 3; b++) {
        assert_ok(dsc_loader_next(loader, queue, &batch));
        check_batch(set, &o, &batch, seen);
        epoch = batch.epoch;
        position = batch.position + BATCH;
    }
    assert_int_equal(epoch, 1);
    assert_ok(dsc_loader_create(set, device, &o, &resumed));
    assert_ok(dsc_loader_seek(resumed, epoch, position));
    assert_ok(dsc_loader_next(resumed, queue, &batch));
    assert_int_equal(batch.epoch, epoch);
    assert_int_equal(batch.position, position);
    check_batch(set, &o, &batch, seen);
    dsc_loader_destroy(&resumed);
    dsc_loader_destroy(&loader);
    o.dtype = DSC_BF16;
    assert_fails(DSC_E_INVALID, "the tokens of text need fp32", dsc_loader_create(set, device, &o, &loader));
    dsc_dataset_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_tokens),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_masked),
        cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_lost_vocabulary),
        cmocka_unit_test(test_one_character),
    };
    return cmocka_run_group_tests_name("data-sequences", tests, setup, teardown);
}

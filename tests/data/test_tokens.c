/* Tokenizers and files of tokens. */
#include "test.h"

#include "base/memory.h"
#include "base/rng.h"
#include "data/fixture.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"
#include "descent/log.h"

#include <stdlib.h>

enum { ROOM = 4096 };

static char folder[TEST_PATH];
static dsc_tokenizer *bpe;

static const char *in_folder(const char *name) {
    static char path[4][TEST_PATH + 64];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static int setup(void **state) {
    (void)state;
    test_make_folder(folder);
    test_write_vocabulary(folder);
    return dsc_tokenizer_bpe(in_folder("vocab.json"), in_folder("merges.txt"), &bpe) == DSC_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    dsc_tokenizer_destroy(&bpe);
    test_remove(folder);
    return 0;
}

/* ---- words ---- */

/* The words of a text, each after a '|', where the text has none of its own. */
static void test_words(void **state) {
    (void)state;
    static const char *const cases[] = {
        "|hello| world",
        "|I|'m| you|'re| we|'ve| they|'ll| he|'d| can|'t| it|'s",
        "|I|'|M|'|S", /* only small letters are contractions */
        "|'s|o|'ll|a|'|l| '|s",
        "|a| | b|  | c",
        "|a|\n|b|\n|\n|c|\r|\n|d",
        "|x| \n|\n|y",
        "|end|  ",
        "|  ",
        "|  | a",
        "|\t|\t|a| |\t|b", /* a tab is never part of a word */
        "|abc|123|abc| 42|.|5|!\?\?!...(|x|)",
        "|\xD0\xBF\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82| \xD0\xBC\xD0\xB8\xD1\x80", /* Cyrillic */
        "|\xE4\xBD\xA0\xE5\xA5\xBD|\xEF\xBC\x8C|\xE4\xB8\x96\xE7\x95\x8C", /* Chinese, full-width comma */
        "|x|\xC2\xB2|y| \xD9\xA3\xD9\xA4", /* superscript two, Arabic digits */
        "|\xF0\x9F\x98\x80\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD| \xF0\x9F\x98\x80|ok", /* emoji */
        "|a|\xC2\xA0|b|\xE3\x80\x80|c|\xC2\x85|d",                                /* other white space */
        "|e|\xCC\x81|a",                                                          /* a combining accent */
        "|a|\x80\xFF|b| \xC3(",
        "|a|\xED\xA0\x80|b",
        "|a|\xC0\xAF|b",
        "|a|\xF4\x90\x80\x80|b", /* not UTF-8 */
        "|a|\x1C|b",
        "|\xE2\x82",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t text[256];
        char got[512] = "";
        int64_t bytes = 0;
        for (const char *p = cases[i]; *p; p++)
            if (*p != '|')
                text[bytes++] = (uint8_t)*p;
        for (int64_t at = 0, n; at < bytes; at += n) {
            n = dsc_word_length(text + at, bytes - at);
            assert_in_range(n, 1, bytes - at);
            size_t used = strlen(got);
            snprintf(got + used, sizeof got - used, "|%.*s", (int)n, (const char *)text + at);
        }
        assert_string_equal(got, cases[i]);
    }
}

static void test_classes(void **state) {
    (void)state;
    assert_int_equal(dsc_char_class_of('a'), DSC_CHAR_LETTER);
    assert_int_equal(dsc_char_class_of('7'), DSC_CHAR_NUMBER);
    assert_int_equal(dsc_char_class_of('_'), DSC_CHAR_OTHER);
    assert_int_equal(dsc_char_class_of(0x2028), DSC_CHAR_SPACE);
    assert_int_equal(dsc_char_class_of(0x200B), DSC_CHAR_OTHER); /* zero width space: a format character */
    assert_int_equal(dsc_char_class_of(0xBD), DSC_CHAR_NUMBER);  /* one half */
    assert_int_equal(dsc_char_class_of(0x10400), DSC_CHAR_LETTER);
    assert_int_equal(dsc_char_class_of(0x1D7CE), DSC_CHAR_NUMBER);
    assert_int_equal(dsc_char_class_of(0x1F600), DSC_CHAR_OTHER);
    assert_int_equal(dsc_char_class_of(0x10FFFF), DSC_CHAR_OTHER);
    assert_int_equal(dsc_char_class_of(0x4E00), DSC_CHAR_LETTER);
    assert_int_equal(dsc_char_class_of(0x9FFF), DSC_CHAR_LETTER);
}

/* ---- tokens ---- */

/* The text encodes to these tokens, which end with -1, and back. */
static void check_tokens(const char *text, unsigned flags, const int32_t *wanted) {
    int32_t tokens[256];
    char back[256];
    int64_t count, bytes, length = (int64_t)strlen(text);
    assert_ok(dsc_tokenizer_encode(bpe, text, length, flags, tokens, &count));
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(tokens[i], wanted[i]);
    assert_int_equal(wanted[count], -1);
    assert_ok(dsc_tokenizer_decode(bpe, tokens, count, back, sizeof back, &bytes));
    assert_int_equal(bytes, length);
    assert_memory_equal(back, text, (size_t)length);
}

static void test_bpe(void **state) {
    (void)state;
    assert_int_equal(dsc_tokenizer_vocabulary(bpe), 272);
    assert_int_equal(dsc_tokenizer_end_of_text(bpe), 271);
    assert_string_equal(dsc_tokenizer_kind(bpe), "bpe");
    check_tokens("hello world", 0, (const int32_t[]){260, 269, 'r', 'l', 'd', -1});
    check_tokens("hell he", 0, (const int32_t[]){259, ' ', 256, -1});
    check_tokens("aaaaaaa", 0, (const int32_t[]){262, 261, 'a', -1});
    check_tokens("aba", 0, (const int32_t[]){263, 'a', -1}); /* a b has the lower rank */
    check_tokens("\xD0\xBF\xF0\x9F\x98\x80", 0, (const int32_t[]){264, 265, 0x98, 0x80, -1});
    check_tokens("   x", 0, (const int32_t[]){267, ' ', 'x', -1});
    check_tokens("", 0, (const int32_t[]){-1});
    check_tokens("a<|endoftext|>", 0,
                 (const int32_t[]){'a', '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>', -1});
    check_tokens("a<|endoftext|><|endoftext|> <|endoftext|", DSC_ENCODE_SPECIAL,
                 (const int32_t[]){'a', 271, 271, ' ', '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't',
                                   '|', -1});
    int64_t bytes;
    assert_non_null(dsc_tokenizer_token(bpe, 260, &bytes));
    assert_int_equal(bytes, 5);
    assert_null(dsc_tokenizer_token(bpe, 272, &bytes));
    assert_null(dsc_tokenizer_token(bpe, -1, &bytes));
}

/* Any bytes are decoded to themselves; text that is cut where that is allowed has the same tokens, with and without the
 * cache. */
static void test_round_trip(void **state) {
    (void)state;
    static const char letters[] = "aabb hello  \n\n'll12\xD0\xBF\xF0\x9F\x98\x80\xE3\x80\x80";
    static uint8_t text[ROOM], back[ROOM];
    static int32_t tokens[ROOM], again[ROOM];
    dsc_encoder *cached;
    assert_ok(dsc_encoder_create(bpe, 1, &cached));
    for (uint64_t n = 0; n < 2000; n++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 21, n);
        int64_t bytes = dsc_rng_below(&rng, n % 50 ? 200 : ROOM), count, more, length;
        for (int64_t i = 0; i < bytes; i++)
            text[i] = (uint8_t)(n % 2 ? dsc_rng_below(&rng, 256)
                                      : (uint8_t)letters[dsc_rng_below(&rng, sizeof letters - 1)]);
        assert_ok(dsc_tokenizer_encode(bpe, text, bytes, 0, tokens, &count));
        assert_ok(dsc_tokenizer_decode(bpe, tokens, count, back, ROOM, &length));
        assert_int_equal(length, bytes);
        assert_memory_equal(back, text, (size_t)bytes);
        assert_ok(dsc_encoder_run(cached, text, bytes, 0, again, &more));
        assert_int_equal(more, count);
        assert_memory_equal(again, tokens, (size_t)count * sizeof *tokens);
        for (int64_t at = 1; at < bytes && n < 400; at++) {
            int64_t first, second;
            if (!dsc_is_cut(text, bytes, at))
                continue;
            assert_ok(dsc_tokenizer_encode(bpe, text, at, 0, again, &first));
            assert_ok(dsc_tokenizer_encode(bpe, text + at, bytes - at, 0, again + first, &second));
            assert_int_equal(first + second, count);
            assert_memory_equal(again, tokens, (size_t)count * sizeof *tokens);
        }
    }
    dsc_encoder_destroy(&cached);
}

/* The definition: the pair of the lowest rank, the leftmost of equal ones, is merged, until none can be. */
static int64_t merge_plainly(const uint8_t *word, int64_t n, int32_t *tokens) {
    for (int64_t i = 0; i < n; i++)
        tokens[i] = bpe->bpe->byte_token[word[i]];
    for (;;) {
        const dsc_merge *best = NULL;
        int64_t where = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            const dsc_merge *m = &bpe->bpe->merges[dsc_merge_place(bpe->bpe, tokens[i], tokens[i + 1])];
            if (m->left >= 0 && (!best || m->rank < best->rank)) {
                best = m;
                where = i;
            }
        }
        if (!best)
            return n;
        tokens[where] = best->whole;
        memmove(tokens + where + 1, tokens + where + 2, (size_t)(n - where - 2) * sizeof *tokens);
        n--;
    }
}

static void test_long_words(void **state) {
    (void)state;
    static uint8_t word[300];
    static int32_t tokens[300], wanted[300];
    for (uint64_t n = 0; n < 300; n++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 22, n);
        int64_t bytes = 1 + dsc_rng_below(&rng, sizeof word), count;
        for (int64_t i = 0; i < bytes; i++)
            word[i] = (uint8_t) "aaabhelo"[dsc_rng_below(&rng, 8)];
        assert_ok(dsc_tokenizer_encode(bpe, word, bytes, 0, tokens, &count));
        assert_int_equal(count, merge_plainly(word, bytes, wanted));
        assert_memory_equal(tokens, wanted, (size_t)count * sizeof *tokens);
    }
    enum { LETTERS = 1000000 }; /* takes an hour if the time is quadratic */
    uint8_t *text = malloc(LETTERS);
    int32_t *many = malloc(LETTERS * sizeof *many);
    int64_t count;
    assert_true(text && many);
    memset(text, 'a', LETTERS);
    assert_ok(dsc_tokenizer_encode(bpe, text, LETTERS, 0, many, &count));
    assert_int_equal(count, LETTERS / 8);
    free(text);
    free(many);
}

/* A token with a character of three bytes is not written in the files' alphabet, though each of these bytes is the
 * number of one of its characters. */
static void test_other_characters(void **state) {
    (void)state;
    static const char token[] = "\xE3\xA1\xA2\xC4\xA0";
    static char vocab[TEST_VOCABULARY_ROOM], merges[TEST_VOCABULARY_ROOM];
    dsc_tokenizer *t;
    int64_t bytes;
    test_vocabulary(vocab, merges);
    char *end = strrchr(vocab, '}');
    snprintf(end, sizeof vocab - (size_t)(end - vocab), ", \"%s\": 272}", token);
    test_write(folder, "v", vocab, strlen(vocab));
    assert_ok(dsc_tokenizer_bpe(in_folder("v"), in_folder("merges.txt"), &t));
    const uint8_t *text = dsc_tokenizer_token(t, 272, &bytes);
    assert_int_equal(bytes, sizeof token - 1);
    assert_memory_equal(text, token, sizeof token - 1);
    dsc_tokenizer_destroy(&t);
}

static void test_simple(void **state) {
    (void)state;
    dsc_tokenizer *t;
    int32_t tokens[256];
    uint8_t all[256], back[256];
    int64_t count, bytes;
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)(255 - i);
    assert_ok(dsc_tokenizer_bytes(&t));
    assert_int_equal(dsc_tokenizer_vocabulary(t), 256);
    assert_ok(dsc_tokenizer_encode(t, all, 256, 0, tokens, &count));
    assert_int_equal(tokens[0], 255);
    assert_ok(dsc_tokenizer_decode(t, tokens, count, back, sizeof back, &bytes));
    assert_memory_equal(all, back, 256);
    assert_fails(DSC_E_INVALID, "does not fit into 255 bytes",
                 dsc_tokenizer_decode(t, tokens, count, back, 255, &bytes));
    tokens[7] = 256;
    assert_fails(DSC_E_INVALID, "token 7 is 256, but the vocabulary has 256",
                 dsc_tokenizer_decode(t, tokens, count, NULL, 0, &bytes));
    dsc_tokenizer_destroy(&t);
    assert_ok(dsc_tokenizer_chars("banana\n", 7, &t));
    assert_int_equal(dsc_tokenizer_vocabulary(t), 4);
    assert_int_equal(dsc_tokenizer_end_of_text(t), -1);
    assert_ok(dsc_tokenizer_encode(t, "nba\n", 4, 0, tokens, &count));
    assert_int_equal(count, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(tokens[i], 3 - i);
    assert_fails(DSC_E_INVALID, "the byte 0x63 at position 2 is not among the 4",
                 dsc_tokenizer_encode(t, "abc", 3, 0, tokens, &count));
    dsc_tokenizer_destroy(&t);
    assert_fails(DSC_E_INVALID, "empty", dsc_tokenizer_chars("", 0, &t));
}

/* ---- broken vocabularies ---- */

static void refuse(const char *vocab, const char *merges, const char *text) {
    dsc_tokenizer *t;
    if (vocab)
        test_write(folder, "v", vocab, strlen(vocab));
    if (merges)
        test_write(folder, "m", merges, strlen(merges));
    assert_fails(
        DSC_E_FORMAT, text,
        dsc_tokenizer_bpe(in_folder(vocab ? "v" : "vocab.json"), in_folder(merges ? "m" : "merges.txt"), &t));
}

static void test_broken(void **state) {
    (void)state;
    dsc_tokenizer *t;
    refuse("", NULL, "v', line");
    refuse("[1]", NULL, "holds no object");
    refuse("{\"a\": 0, \"a\": 1}", NULL, "line 1");
    refuse("{\"a\": 0, \"b\": 2}", NULL,
           "the number of token 'b' is 2: the 2 tokens must have the numbers 0 to 1");
    refuse("{\"a\": 0, \"b\": \"x\"}", NULL, "the number of token 'b' is \"x\": ");
    refuse("{\"a\": 0, \"b\": 0}", NULL, "tokens 'a' and 'b' have the same number 0");
    refuse("{\"a\": 0, \"b\": 1}", NULL, "no token for the byte 0x00");
    refuse(NULL, "h e\nabc\n", "line 2: 'abc' is not two tokens");
    refuse(NULL, "h e \n", "is not two tokens");
    refuse(NULL, "#version: 0.2\nx y\n", "line 2: token 'xy' is not in");
    refuse(NULL, "hel lo\n", "token 'hel' is not in");
    assert_fails(DSC_E_NOT_FOUND, "nowhere", dsc_tokenizer_bpe("/nowhere/v", in_folder("merges.txt"), &t));
    assert_fails(DSC_E_NOT_FOUND, "nowhere", dsc_tokenizer_bpe(in_folder("vocab.json"), "/nowhere/m", &t));
    test_write(folder, "m", "h e\r\n\r\nl l\r\n", 12); /* line ends of another system */
    assert_ok(dsc_tokenizer_bpe(in_folder("vocab.json"), in_folder("m"), &t));
    dsc_tokenizer_destroy(&t);
}

/* ---- files ---- */

static void write_tokens(const char *name, dsc_token_format format, const int32_t *tokens, int64_t count) {
    dsc_token_writer *w;
    assert_ok(dsc_token_writer_create(in_folder(name), format, &w));
    assert_ok(dsc_token_writer_append(w, tokens, count / 2));
    assert_ok(dsc_token_writer_append(w, tokens + count / 2, count - count / 2));
    assert_ok(dsc_token_writer_commit(w));
    dsc_token_writer_destroy(&w);
}

static void test_files(void **state) {
    (void)state;
    enum { COUNT = 200001 };
    static int32_t tokens[COUNT], back[COUNT];
    dsc_token_file *f;
    dsc_token_file_options o;
    for (int i = 0; i < COUNT; i++)
        tokens[i] = i * 7 % 65536;
    for (int format = DSC_TOKENS_UINT16; format <= DSC_TOKENS_LLMC; format++) {
        tokens[5] = format == DSC_TOKENS_UINT32 ? 1 << 30 : 65535;
        write_tokens("t.bin", (dsc_token_format)format, tokens, COUNT);
        dsc_token_file_options_init(&o);
        o.uint32 = format == DSC_TOKENS_UINT32;
        assert_ok(dsc_token_file_open(in_folder("t.bin"), &o, &f));
        assert_int_equal(dsc_token_file_format(f), format);
        assert_int_equal(dsc_token_file_count(f), COUNT);
        assert_int_equal(dsc_token_file_vocabulary(f), 0);
        assert_ok(dsc_token_file_read(f, 0, COUNT, back));
        assert_memory_equal(back, tokens, sizeof tokens);
        assert_ok(dsc_token_file_read(f, COUNT - 1, 1, back));
        assert_int_equal(back[0], tokens[COUNT - 1]);
        assert_ok(dsc_token_file_read(f, COUNT, 0, back));
        assert_fails(DSC_E_INVALID, "there are no 2 from 200000 on",
                     dsc_token_file_read(f, COUNT - 1, 2, back));
        assert_fails(DSC_E_INVALID, "there are no", dsc_token_file_read(f, -1, 2, back));
        assert_fails(DSC_E_INVALID, "there are no", dsc_token_file_read(f, 1, INT64_MAX, back));
        dsc_token_file_close(&f);
        o.vocabulary = 65535;
        assert_ok(dsc_token_file_open(in_folder("t.bin"), &o, &f));
        assert_fails(DSC_E_FORMAT, "token 5 is", dsc_token_file_read(f, 3, 10, back));
        dsc_token_file_close(&f);
    }
    dsc_token_writer *w;
    assert_ok(dsc_token_writer_create(in_folder("u.bin"), DSC_TOKENS_UINT16, &w));
    assert_fails(DSC_E_INVALID, "token 1 is 65536, which 16 bits cannot hold",
                 dsc_token_writer_append(w, (const int32_t[]){1, 65536}, 2));
    dsc_token_writer_destroy(&w);
    assert_fails(DSC_E_NOT_FOUND, "u.bin", dsc_token_file_open(in_folder("u.bin"), NULL, &f));
}

static void test_broken_files(void **state) {
    (void)state;
    static uint8_t header[1024 + 4];
    dsc_token_file *f;
    dsc_token_file_options o;
    int32_t token;
    test_write(folder, "x.bin", "abc", 3);
    assert_fails(DSC_E_FORMAT, "has 3 bytes, which is no whole number of tokens of 2",
                 dsc_token_file_open(in_folder("x.bin"), NULL, &f));
    test_write(folder, "x.bin", "abcdef", 6);
    dsc_token_file_options_init(&o);
    o.uint32 = 1;
    assert_fails(DSC_E_FORMAT, "tokens of 4 bytes", dsc_token_file_open(in_folder("x.bin"), &o, &f));
    test_write(folder, "x.bin", "\xFF\xFF\xFF\xFF", 4); /* no token that an int32_t holds */
    assert_ok(dsc_token_file_open(in_folder("x.bin"), &o, &f));
    assert_fails(DSC_E_FORMAT, "token 0 is 4294967295", dsc_token_file_read(f, 0, 1, &token));
    dsc_token_file_close(&f);
    test_write(folder, "x.bin", "", 0);
    assert_fails(DSC_E_FORMAT, "is empty", dsc_token_file_open(in_folder("x.bin"), NULL, &f));
    assert_fails(DSC_E_FORMAT, "not a regular file", dsc_token_file_open(folder, NULL, &f));
    const uint32_t start[3] = {20240520, 1, 3}; /* two follow */
    for (int i = 0; i < 12; i++)
        header[i] = (uint8_t)(start[i / 4] >> i % 4 * 8);
    test_write(folder, "x.bin", header, sizeof header);
    assert_fails(DSC_E_FORMAT, "says that there are 3 tokens, but 4 bytes follow",
                 dsc_token_file_open(in_folder("x.bin"), NULL, &f));
    test_write(folder, "x.bin", header, 1000);
    assert_fails(DSC_E_FORMAT, "ends after 1000 of the 1024 bytes",
                 dsc_token_file_open(in_folder("x.bin"), NULL, &f));
    header[8] = 2;
    test_write(folder, "x.bin", header, sizeof header);
    assert_ok(dsc_token_file_open(in_folder("x.bin"), NULL, &f));
    assert_int_equal(dsc_token_file_count(f), 2);
    dsc_token_file_close(&f);
    memset(header + 8, 0xFF, 4);
    test_write(folder, "x.bin", header, sizeof header);
    assert_fails(DSC_E_FORMAT, "says that there are 4294967295 tokens",
                 dsc_token_file_open(in_folder("x.bin"), NULL, &f));
}

/* A header of llm.c is not read as tokens. */
static void test_other_version(void **state) {
    (void)state;
    static const uint8_t header[1024 + 4] = {0x88, 0xD8, 0x34, 0x01, 2, 0, 0, 0, 2};
    dsc_token_file *f;
    test_write(folder, "x.bin", header, sizeof header);
    assert_fails(DSC_E_FORMAT, "x.bin' has llm.c's header of version 2: only version 1 is read",
                 dsc_token_file_open(in_folder("x.bin"), NULL, &f));
}

/* A tokens.json that differs from what descent tokenize writes is refused with the value, both when the tokenizer is
 * made from it and when the file of tokens is opened. */
static void refuse_description(const char *json, const char *with_tokenizer, const char *with_file) {
    dsc_tokenizer *t = NULL;
    dsc_token_file *f = NULL;
    test_write(folder, "described/tokens.json", json, strlen(json));
    assert_fails(DSC_E_FORMAT, with_tokenizer, dsc_tokenizer_of_file(in_folder("described/train.bin"), &t));
    assert_fails(DSC_E_FORMAT, with_file, dsc_token_file_open(in_folder("described/train.bin"), NULL, &f));
    assert_true(!t && !f);
}

static void test_descriptions(void **state) {
    (void)state;
    static const char *const sizes[] = {"2147483648", "4294967301", "9223372036854775807", "-5", "0", "2.5"};
    static const char form[] = "{\"version\": 1, \"kind\": \"bytes\", \"vocabulary\": %s, \"format\": "
                               "\"uint16\", \"files\": {\"train.bin\": {\"tokens\": 2, \"bytes\": 2}}}";
    char json[256], number[64];
    test_write(folder, "described/train.bin", "\1\0\2\0", 4);
    for (int i = 0; i < 6; i++) {
        snprintf(json, sizeof json, form, sizes[i]);
        snprintf(number, sizeof number, "'vocabulary' is %s: must be 1 to 2147483647", sizes[i]);
        refuse_description(json, i < 3 ? sizes[i] : "must be a number of tokens, 1 or more", number);
        assert_non_null(strstr(dsc_error_message(), "run descent tokenize again"));
    }
    static const char *const others[][2] = {
        {"{}", "described/tokens.json': its version is missing: must be 1; run descent tokenize again"},
        {"[1]", "its version is missing"},
        {"{\"version\": \"1\"}", "its version is \"1\": must be 1"},
        {"{\"version\": 0}", "its version is 0: must be 1"},
        {"{\"version\": 2}", "its version is 2, but this descent reads version 1: use a newer descent"},
        {"{\"version\": 1}", "its format is missing: must be uint16, uint32 or llm.c"},
        {"{\"version\": 1, \"format\": \"uint64\"}", "its format is \"uint64\": must be uint16"},
        {"{\"version\": 1, \"format\": \"uint16\"}", "its list of files is missing: must be an object"},
        {"{\"version\": 1, \"format\": \"uint16\", \"files\": {\"train.bin\": 7}}",
         "of its files, train.bin is 7: must be an object"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        refuse_description(others[i][0], others[i][1], others[i][1]);
}

/* What the first version of descent tokenize wrote, with its order of keys. */
static void test_first_description(void **state) {
    (void)state;
    static const char json[] =
        "{\"version\": 1, \"kind\": \"chars\", \"vocabulary\": 3, \"format\": "
        "\"uint16\", \"end_of_text\": null, \"sources\": [\"text\"], \"source_files\": 1, "
        "\"files\": {\"train.bin\": {\"tokens\": 2, \"bytes\": 2}}, \"characters\": "
        "[97, 98, 99]}";
    dsc_tokenizer *t;
    dsc_token_file *f;
    test_write(folder, "first/train.bin", "\1\0\2\0", 4);
    test_write(folder, "first/tokens.json", json, sizeof json - 1);
    assert_ok(dsc_tokenizer_of_file(in_folder("first/train.bin"), &t));
    assert_ok(dsc_token_file_open(in_folder("first/train.bin"), NULL, &f));
    assert_int_equal(dsc_token_file_vocabulary(f), 3);
    dsc_token_file_close(&f);
    dsc_tokenizer_destroy(&t);
}

/* ---- incomplete merges ---- */

static char logged[512];

static void keep_log(void *context, dsc_log_level level, const char *text) {
    (void)context;
    assert_int_equal(level, DSC_LOG_WARNING);
    snprintf(logged, sizeof logged, "%s", text);
}

static void read_bpe(const char *vocab, const char *merges) {
    dsc_tokenizer *t;
    logged[0] = '\0';
    dsc_log_set_handler(keep_log, NULL);
    assert_ok(dsc_tokenizer_bpe(in_folder(vocab), in_folder(merges), &t));
    dsc_log_set_handler(NULL, NULL);
    dsc_tokenizer_destroy(&t);
}

/* A file of merges that is cut at the end of a line is noticed, because no merge makes some tokens. Special tokens,
 * which no merge makes either, do not count. */
static void test_cut_merges(void **state) {
    (void)state;
    static char vocab[TEST_VOCABULARY_ROOM], merges[TEST_VOCABULARY_ROOM];
    const int count = test_vocabulary(vocab, merges);
    char wanted[64];
    read_bpe("vocab.json", "merges.txt");
    assert_string_equal(logged, "");
    for (int lines = count - 1; lines >= 0; lines -= 7) {
        char *end = strchr(merges, '\n') + 1; /* after the version */
        for (int i = 0; i < lines; i++)
            end = strchr(end, '\n') + 1;
        test_write(folder, "m2.txt", merges, (size_t)(end - merges));
        read_bpe("vocab.json", "m2.txt");
        snprintf(wanted, sizeof wanted, "m2.txt' makes %d of the %d tokens of '", lines, count);
        assert_non_null(strstr(logged, wanted));
        assert_non_null(strstr(logged, "is it complete?"));
    }
    char *end = strrchr(vocab, '}');
    snprintf(end, sizeof vocab - (size_t)(end - vocab), ", \"<pad>\": 272, \"[ab]\": 273, \"word0\": 274}");
    test_write(folder, "special.json", vocab, strlen(vocab));
    read_bpe("special.json", "merges.txt");
    assert_string_equal(logged, "");
}

/* ---- files of text ---- */

static void read_all(const char *name, int32_t *tokens, int64_t *count) {
    dsc_token_file *f;
    assert_ok(dsc_token_file_open(in_folder(name), NULL, &f));
    *count = dsc_token_file_count(f);
    assert_int_equal(dsc_token_file_vocabulary(f), 272);
    assert_true(dsc_token_file_text_bytes(f) > 0);
    assert_ok(dsc_token_file_read(f, 0, *count, tokens));
    dsc_token_file_close(&f);
}

static void test_no_objects(void **state) {
    (void)state;
    dsc_tokenizer *t = NULL;
    dsc_token_file *f = NULL;
    dsc_token_writer *w = NULL;
    dsc_tokenizer_destroy(NULL);
    dsc_tokenizer_destroy(&t);
    dsc_token_file_close(NULL);
    dsc_token_file_close(&f);
    dsc_token_writer_destroy(NULL);
    dsc_token_writer_destroy(&w);
}

/* Text of several chunks has the same tokens as the text encoded as a whole. */
static void test_chunks(void **state) {
    (void)state;
    enum { BYTES = 2500000 };
    uint8_t *text = malloc(BYTES);
    int32_t *whole = malloc(BYTES * sizeof *whole), *parts = malloc(BYTES * sizeof *parts);
    const char *const path = in_folder("text");
    dsc_tokenize_result result = {.size = sizeof result};
    dsc_tokenize_options o;
    int64_t count, first, second;
    assert_true(text && whole && parts);
    for (int64_t i = 0; i < BYTES; i++)
        text[i] = (uint8_t)((i + 1024) % 4096 < 2048 ? "hello "[i % 6] : "aaaabbhello  \n"[i * i / 7 % 14]);
    test_write(folder, "text", text, BYTES);
    assert_ok(dsc_tokenizer_encode(bpe, text, BYTES, 0, whole, &count));
    dsc_tokenize_options_init(&o);
    o.threads = 3;
    assert_ok(dsc_tokenize(bpe, &path, 1, in_folder("made"), &o, &result));
    read_all("made/train.bin", parts, &first);
    read_all("made/val.bin", parts + first, &second);
    assert_int_equal(first + second, count);
    assert_memory_equal(whole, parts, (size_t)count * sizeof *whole);
    assert_int_equal(result.files, 1);
    assert_int_equal(result.train_tokens, first);
    assert_int_equal(result.val_tokens, second);
    assert_int_equal(result.train_bytes + result.val_bytes, BYTES);
    assert_in_range(result.train_bytes, BYTES / 10 * 9, BYTES / 10 * 9 + 100);
    free(text);
    free(whole);
    free(parts);
}

/* Every allocation fails once. */
static void test_no_memory(void **state) {
    (void)state;
    const char *const path = in_folder("little");
    char made[TEST_PATH + 64];
    snprintf(made, sizeof made, "%s/little-made", folder);
    test_write(folder, "little", "hello world, hello world", 24);
    dsc_tokenize_options o;
    dsc_tokenize_options_init(&o);
    o.overwrite = 1; /* some files have their names already when the last allocations fail */
    dsc_status status = DSC_E_MEMORY;
    for (int64_t n = 1; status == DSC_E_MEMORY; n++) {
        dsc_tokenizer *t = NULL;
        dsc_memory_fail_at(n);
        status = dsc_tokenizer_bpe(in_folder("vocab.json"), in_folder("merges.txt"), &t);
        if (status == DSC_OK)
            status = dsc_tokenize(t, &path, 1, made, &o, NULL);
        if (status == DSC_OK) {
            dsc_tokenizer *again = NULL;
            status = dsc_tokenizer_of_file(in_folder("little-made/val.bin"), &again);
            dsc_tokenizer_destroy(&again);
        }
        dsc_memory_fail_at(0);
        dsc_tokenizer_destroy(&t);
        if (status != DSC_OK && status != DSC_E_MEMORY)
            fail_msg("allocation %lld: %s", (long long)n, dsc_error_message());
        assert_true(n < 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_simple),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_no_objects),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_descriptions),
        cmocka_unit_test(test_first_description),
        cmocka_unit_test(test_cut_merges),
        cmocka_unit_test(test_other_characters),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

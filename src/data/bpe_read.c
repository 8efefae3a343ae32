/* Reads the two files of a byte-pair encoding.
 *
 * Both write bytes as visible characters: the bytes ! to ~, 0xA1 to 0xAC and 0xAE to 0xFF become the characters of the
 * same number, the others become, in their order, the characters from 256 on. A token of vocab.json with other
 * characters is a special one; its text stands for itself. */
#include "base/error.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 1 << 26, ALPHABET = 324, SHOWN = 60, LONGEST_JOINED = 512 };

/* The state while the files are read. */
typedef struct reading {
    const char *vocab, *merges; /* names of the files */
    json_t *numbers;            /* token -> number */
    const char **names;         /* number -> token */
    int16_t byte_of[ALPHABET];  /* -1: the character is not in the alphabet */
    dsc_bytes text, whole;      /* the text of merges.txt; two tokens together */
    uint8_t *made;              /* number -> 1: a merge makes the token */
    dsc_tokenizer *tokenizer;
} reading;

static void fill_alphabet(int16_t byte_of[ALPHABET]) {
    int next = 256;
    for (int c = 0; c < ALPHABET; c++)
        byte_of[c] = -1;
    for (int b = 0; b < 256; b++) {
        int seen = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        byte_of[seen ? b : next++] = (int16_t)b;
    }
}

/* Converts a token of vocab.json, in UTF-8, to the bytes it stands for. out[] must have at least the token's length.
 * Returns the number of bytes; *special is 1 when the token has characters that are not in the alphabet. */
static int64_t bytes_of(const reading *r, const char *name, uint8_t *out, int *special) {
    int64_t length = (int64_t)strlen(name), count = 0;
    *special = 0;
    for (int64_t i = 0; i < length; count++) {
        uint32_t code = (uint8_t)name[i++];
        if (code >= 0xC2 && code <= 0xDF) /* the name is UTF-8: one more byte follows */
            code = (code & 0x1F) << 6 | ((uint8_t)name[i++] & 0x3Fu);
        else if (code >= 0x80) /* the alphabet has no characters of three bytes */
            code = ALPHABET;
        if (code >= ALPHABET || r->byte_of[code] < 0) {
            memcpy(out, name, (size_t)length);
            *special = 1;
            return length;
        }
        out[count] = (uint8_t)r->byte_of[code];
    }
    return count;
}

static dsc_status read_numbers(reading *r) {
    json_error_t error;
    const char *name;
    char text[DSC_JSON_VALUE];
    json_t *number;
    r->numbers = json_loads(r->tokenizer->bpe->vocab_text, JSON_REJECT_DUPLICATES, &error);
    if (!r->numbers)
        return DSC_FAIL(DSC_E_FORMAT, "'%s', line %d: %s; it should be GPT-2's vocab.json", r->vocab,
                        error.line, error.text);
    int64_t count = (int64_t)json_object_size(r->numbers); /* 0 when it is no object */
    if (count == 0)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' holds no object with the number of each token", r->vocab);
    DSC_TRY(dsc_memory_alloc(count, sizeof *r->names, &r->names));
    json_object_foreach(r->numbers, name, number) {
        json_int_t value = json_is_integer(number) ? json_integer_value(number) : -1;
        if (value < 0 || value >= count)
            return DSC_FAIL(DSC_E_FORMAT,
                            "'%s': the number of token '%.*s' is %s: the %lld tokens must have the numbers 0 "
                            "to %lld, each once; is the file complete?",
                            r->vocab, SHOWN, name, dsc_json_value_text(number, text), (long long)count,
                            (long long)count - 1);
        if (r->names[value])
            return DSC_FAIL(DSC_E_FORMAT, "'%s': tokens '%.*s' and '%.*s' have the same number %lld",
                            r->vocab, SHOWN, r->names[value], SHOWN, name, (long long)value);
        r->names[value] = name;
    }
    r->tokenizer->vocabulary = count;
    return DSC_OK;
}

/* Fills in the bytes of all tokens, and the tokens of single bytes. */
static dsc_status fill_tokens(reading *r) {
    dsc_tokenizer *t = r->tokenizer;
    int64_t total = 0;
    for (int64_t i = 0; i < t->vocabulary; i++)
        total += (int64_t)strlen(r->names[i]);
    DSC_TRY(dsc_memory_alloc(t->vocabulary + 1, sizeof *t->offset, &t->offset));
    DSC_TRY(dsc_memory_alloc(total, 1, &t->bytes));
    for (int b = 0; b < 256; b++)
        t->bpe->byte_token[b] = -1;
    for (int64_t i = 0; i < t->vocabulary; i++) {
        int special;
        int64_t at = t->offset[i], bytes = bytes_of(r, r->names[i], t->bytes + at, &special);
        t->offset[i + 1] = at + bytes;
        if (bytes == 1 && !special)
            t->bpe->byte_token[t->bytes[at]] = (int32_t)i;
    }
    for (int b = 0; b < 256; b++)
        if (t->bpe->byte_token[b] < 0)
            return DSC_FAIL(
                DSC_E_FORMAT,
                "'%s' has no token for the byte 0x%02x: a byte-level vocabulary has all 256 of them",
                r->vocab, (unsigned)b);
    json_t *end = json_object_get(r->numbers, DSC_END_OF_TEXT);
    t->end_of_text = end ? (int32_t)json_integer_value(end) : -1;
    return DSC_OK;
}

static dsc_status find_token(const reading *r, const char *name, int64_t line, int32_t *out) {
    const json_t *number = json_object_get(r->numbers, name);
    if (!number)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s', line %lld: token '%.*s' is not in '%s'; do the two files belong together?",
                        r->merges, (long long)line, SHOWN, name, r->vocab);
    *out = (int32_t)json_integer_value(number);
    return DSC_OK;
}

/* Adds the merge of one line: two tokens with a blank between them. `text` ends with a 0 and is changed. */
static dsc_status add_merge(reading *r, char *text, int64_t line, int32_t rank) {
    char *blank = strchr(text, ' ');
    if (!blank || blank == text || !blank[1] || strchr(blank + 1, ' '))
        return DSC_FAIL(DSC_E_FORMAT, "'%s', line %lld: '%.*s' is not two tokens with a blank between them",
                        r->merges, (long long)line, SHOWN, text);
    size_t size = strlen(text); /* one less for the blank, one more for the 0 */
    dsc_merge merge = {.rank = rank};
    *blank = '\0';
    DSC_TRY(dsc_bytes_reserve(&r->whole, (int64_t)size));
    snprintf((char *)r->whole.data, size, "%s%s", text, blank + 1);
    DSC_TRY(find_token(r, text, line, &merge.left));
    DSC_TRY(find_token(r, blank + 1, line, &merge.right));
    DSC_TRY(find_token(r, (const char *)r->whole.data, line, &merge.whole));
    dsc_bpe *bpe = r->tokenizer->bpe;
    bpe->merges[dsc_merge_place(bpe, merge.left, merge.right)] =
        merge; /* of equal pairs the last one counts */
    r->made[merge.whole] = 1;
    return DSC_OK;
}

static dsc_status alloc_table(dsc_bpe *bpe, int64_t lines) {
    int64_t size = 16;
    while (size < 2 * lines)
        size *= 2;
    DSC_TRY(dsc_memory_alloc(size, sizeof *bpe->merges, &bpe->merges));
    for (int64_t i = 0; i < size; i++)
        bpe->merges[i].left = -1;
    bpe->mask = (uint32_t)size - 1;
    return DSC_OK;
}

static dsc_status read_merges(reading *r) {
    int64_t size = (int64_t)strlen(r->tokenizer->bpe->merges_text), lines = 1;
    int32_t rank = 0;
    DSC_TRY(dsc_bytes_reserve(&r->text, size + 1));
    memcpy(r->text.data, r->tokenizer->bpe->merges_text, (size_t)size + 1);
    char *text = (char *)r->text.data, *end = text + size;
    for (char *p = text; (p = strchr(p, '\n')); p++)
        lines += p - text > 0 && p[-1] != '\n'; /* empty lines need no place */
    DSC_TRY(alloc_table(r->tokenizer->bpe, lines));
    int64_t line = 1;
    for (char *next, *start = text; start < end; start = next, line++) {
        size_t length = strcspn(start, "\n");
        next = start + length + 1;
        start[length] = '\0';
        if (length > 0 && start[length - 1] == '\r')
            start[length - 1] = '\0';
        if (*start && strncmp(start, "#version", 8) != 0)
            DSC_TRY(add_merge(r, start, line, rank++));
    }
    return DSC_OK;
}

/* 1 when this token consists of two others. Tokens that vocabularies add, such as <|endoftext|>, do not. */
static int is_joined(reading *r, const char *name) {
    const size_t length = strlen(name);
    const char last = length > 0 ? name[length - 1] : 0;
    if (length > LONGEST_JOINED || (name[0] == '<' && last == '>') || (name[0] == '[' && last == ']') ||
        dsc_bytes_reserve(&r->whole, LONGEST_JOINED + 1) != DSC_OK)
        return 0;
    char *left = (char *)r->whole.data;
    for (size_t i = 1; i < length; i++) {
        snprintf(left, LONGEST_JOINED + 1, "%.*s", (int)i, name);
        if ((name[i] & 0xC0) != 0x80 && json_object_get(r->numbers, left) &&
            json_object_get(r->numbers, name + i))
            return 1;
    }
    return 0;
}

/* Counts the tokens that merges make, and those that should be made by one that is missing. */
static void count_made(reading *r) {
    dsc_bpe *bpe = r->tokenizer->bpe;
    for (int64_t i = 0; i < r->tokenizer->vocabulary; i++) {
        bpe->made += r->made[i];
        bpe->unmade += !r->made[i] && is_joined(r, r->names[i]);
    }
}

/* Parses the texts that the tokenizer holds. `vocab` and `merges` are their names in messages. */
static dsc_status parse(const char *vocab, const char *merges, dsc_tokenizer *tokenizer) {
    reading r = {.vocab = vocab, .merges = merges, .tokenizer = tokenizer};
    fill_alphabet(r.byte_of);
    dsc_status status = read_numbers(&r);
    if (status == DSC_OK)
        status = fill_tokens(&r);
    if (status == DSC_OK)
        status = dsc_memory_alloc(tokenizer->vocabulary, 1, &r.made);
    if (status == DSC_OK)
        status = read_merges(&r);
    if (status == DSC_OK)
        count_made(&r);
    json_decref(r.numbers);
    dsc_memory_free(&r.names);
    dsc_memory_free(&r.made);
    dsc_bytes_free(&r.text);
    dsc_bytes_free(&r.whole);
    return status;
}

dsc_status dsc_bpe_parse(const char *vocab, const char *merges, dsc_tokenizer *tokenizer) {
    DSC_TRY(dsc_memory_alloc(1, sizeof *tokenizer->bpe, &tokenizer->bpe));
    DSC_TRY(dsc_memory_strdup(vocab, &tokenizer->bpe->vocab_text));
    DSC_TRY(dsc_memory_strdup(merges, &tokenizer->bpe->merges_text));
    return parse(DSC_VOCAB_JSON, DSC_MERGES_TXT, tokenizer);
}

/* Reads a whole file into new memory, which the caller frees. */
static dsc_status read_text(const char *path, char **out) {
    int64_t size;
    DSC_TRY(dsc_file_size(path, &size));
    if (size > MOST_BYTES)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' has %lld bytes: too many for a vocabulary and its merges", path,
                        (long long)size);
    DSC_TRY(dsc_memory_alloc(size + 1, 1, out));
    DSC_TRY(dsc_file_read(path, size, (uint8_t *)*out));
    if (memchr(*out, 0, (size_t)size))
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is not text: it has a zero byte", path);
    return DSC_OK;
}

dsc_status dsc_bpe_read(const char *vocab, const char *merges, dsc_tokenizer *tokenizer) {
    DSC_TRY(dsc_memory_alloc(1, sizeof *tokenizer->bpe, &tokenizer->bpe));
    dsc_bpe *bpe = tokenizer->bpe;
    DSC_TRY(dsc_memory_strdup(vocab, &bpe->vocab_path));
    DSC_TRY(dsc_memory_strdup(merges, &bpe->merges_path));
    DSC_TRY(read_text(vocab, &bpe->vocab_text));
    DSC_TRY(read_text(merges, &bpe->merges_text));
    return parse(vocab, merges, tokenizer);
}

void dsc_bpe_destroy(dsc_bpe **bpe) {
    if (!*bpe)
        return;
    dsc_memory_free(&(*bpe)->merges);
    dsc_memory_free(&(*bpe)->vocab_text);
    dsc_memory_free(&(*bpe)->merges_text);
    dsc_memory_free(&(*bpe)->vocab_path);
    dsc_memory_free(&(*bpe)->merges_path);
    dsc_memory_free(bpe);
}

/* Tokenizers: creation, decoding, and descriptions. */
#include "data/tokenizer.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/path_list.h"
#include "descent/log.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_FROM = 1 << 16, READ_BYTES = 1 << 18 };

/* ---- bytes and chars ---- */

/* Creates a tokenizer with a token for each marked byte, in the order of the bytes. */
static dsc_status create_simple(const char *kind, const uint8_t marked[256], dsc_tokenizer **out) {
    dsc_tokenizer *t;
    DSC_TRY(dsc_memory_alloc(1, sizeof *t, &t));
    t->kind = kind;
    t->end_of_text = -1;
    dsc_status status = dsc_memory_alloc(257, sizeof *t->offset, &t->offset);
    if (status == DSC_OK)
        status = dsc_memory_alloc(256, 1, &t->bytes);
    if (status != DSC_OK) {
        dsc_tokenizer_destroy(&t);
        return status;
    }
    for (int b = 0; b < 256; b++) {
        t->token_of[b] = marked[b] ? (int32_t)t->vocabulary : -1;
        if (!marked[b])
            continue;
        t->bytes[t->vocabulary++] = (uint8_t)b;
        t->offset[t->vocabulary] = t->vocabulary;
    }
    *out = t;
    return DSC_OK;
}

dsc_status dsc_tokenizer_bytes(dsc_tokenizer **out) {
    uint8_t all[256];
    memset(all, 1, sizeof all);
    return create_simple("bytes", all, out);
}

dsc_status dsc_tokenizer_chars(const void *text, int64_t bytes, dsc_tokenizer **out) {
    const uint8_t *p = text;
    uint8_t marked[256] = {0};
    if (bytes < 1)
        return DSC_FAIL(DSC_E_INVALID, "the text is empty: its characters are the vocabulary");
    for (int64_t i = 0; i < bytes; i++)
        marked[p[i]] = 1;
    return create_simple("chars", marked, out);
}

static dsc_status mark_file(const char *path, uint8_t *buffer, uint8_t marked[256]) {
    int64_t size;
    DSC_TRY(dsc_file_size(path, &size)); /* only regular files, so that a pipe cannot make this wait */
    FILE *file = fopen(path, "rb");
    if (!file)
        return DSC_FAIL(errno == ENOENT ? DSC_E_NOT_FOUND : DSC_E_IO, "cannot read '%s': %s", path,
                        strerror(errno));
    size_t got;
    while ((got = fread(buffer, 1, READ_BYTES, file)) > 0)
        for (size_t i = 0; i < got; i++)
            marked[buffer[i]] = 1;
    int failed = ferror(file), reason = errno;
    fclose(file);
    return failed ? DSC_FAIL(DSC_E_IO, "cannot read '%s': %s", path, strerror(reason)) : DSC_OK;
}

dsc_status dsc_fail_no_text(const dsc_path_list *list) {
    char others[64] = "";
    if (list->count == 0)
        return DSC_FAIL(DSC_E_INVALID, "there is no text: name files or folders");
    if (list->count > 1)
        snprintf(others, sizeof others, " and %lld other file%s are", (long long)list->count - 1,
                 list->count == 2 ? "" : "s");
    return DSC_FAIL(DSC_E_INVALID, "there is no text: '%s'%s empty; name files that hold some", list->text,
                    list->count > 1 ? others : " is");
}

dsc_status dsc_tokenizer_chars_of_files(const char *const *paths, int64_t count, dsc_tokenizer **out) {
    dsc_path_list list = {0};
    uint8_t marked[256] = {0}, *buffer = NULL;
    dsc_status status = dsc_memory_alloc(READ_BYTES, 1, &buffer);
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        status = dsc_path_list_add(&list, paths[i], NULL, "files");
    const char *path = list.text;
    for (int64_t i = 0; i < list.count && status == DSC_OK; i++, path += strlen(path) + 1)
        status = mark_file(path, buffer, marked);
    if (status == DSC_OK && !memchr(marked, 1, sizeof marked))
        status = dsc_fail_no_text(&list);
    if (status == DSC_OK)
        status = create_simple("chars", marked, out);
    dsc_path_list_free(&list);
    dsc_memory_free(&buffer);
    return status;
}

/* Creates a tokenizer that `fill`, which is dsc_bpe_read or dsc_bpe_parse, fills in. */
static dsc_status create_bpe(dsc_status (*fill)(const char *, const char *, dsc_tokenizer *),
                             const char *vocab, const char *merges, dsc_tokenizer **out) {
    dsc_tokenizer *t;
    DSC_TRY(dsc_memory_alloc(1, sizeof *t, &t));
    t->kind = "bpe";
    dsc_status status = fill(vocab, merges, t);
    if (status != DSC_OK) {
        dsc_tokenizer_destroy(&t);
        return status;
    }
    *out = t;
    return DSC_OK;
}

dsc_status dsc_tokenizer_bpe(const char *vocab, const char *merges, dsc_tokenizer **out) {
    DSC_TRY(create_bpe(dsc_bpe_read, vocab, merges, out));
    const dsc_bpe *bpe = (*out)->bpe;
    if (bpe->unmade > 0)
        dsc_log(DSC_LOG_WARNING,
                "'%s' makes %lld of the %lld tokens of '%s' that consist of two others: is it complete?",
                merges, (long long)bpe->made, (long long)(bpe->made + bpe->unmade), vocab);
    return DSC_OK;
}

void dsc_tokenizer_destroy(dsc_tokenizer **tokenizer) {
    if (!tokenizer || !*tokenizer)
        return;
    dsc_bpe_destroy(&(*tokenizer)->bpe);
    dsc_memory_free(&(*tokenizer)->offset);
    dsc_memory_free(&(*tokenizer)->bytes);
    dsc_memory_free(tokenizer);
}

/* ---- descriptions ---- */

char *dsc_json_value_text(const json_t *value, char text[DSC_JSON_VALUE]) {
    char *all = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    snprintf(text, DSC_JSON_VALUE, "%s", value ? all ? all : "?" : "missing");
    free(all);
    return text;
}

/* Checks the parts of a tokens.json that every version of descent tokenize writes. `name`: the file of tokens. */
static dsc_status check_description(const char *path, const json_t *json, const char *name) {
    static const char *const formats[] = {"uint16", "uint32", "llm.c"};
    const json_t *version = json_object_get(json, "version"), *files = json_object_get(json, "files"),
                 *entry = json_object_get(files, name);
    const char *format = json_string_value(json_object_get(json, "format"));
    char value[DSC_JSON_VALUE];
    int known = 0;
    if (!json_is_integer(version) || json_integer_value(version) < 1)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s': its version is %s: must be %d; run descent tokenize again, or remove the file "
                        "if another program wrote it",
                        path, dsc_json_value_text(version, value), DSC_TOKENS_JSON_VERSION);
    if (json_integer_value(version) > DSC_TOKENS_JSON_VERSION)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s': its version is %s, but this descent reads version %d: use a newer descent, or "
                        "run descent tokenize again with this one",
                        path, dsc_json_value_text(version, value), DSC_TOKENS_JSON_VERSION);
    for (size_t i = 0; format && i < sizeof formats / sizeof *formats; i++)
        known |= strcmp(format, formats[i]) == 0;
    if (!known)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s': its format is %s: must be uint16, uint32 or llm.c; run descent tokenize again",
                        path, dsc_json_value_text(json_object_get(json, "format"), value));
    if (!json_is_object(files) || (entry && !json_is_object(entry)))
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s': %s%s is %s: must be an object; repair it, or run descent tokenize again", path,
                        entry ? "of its files, " : "its list of files", entry ? name : "",
                        dsc_json_value_text(entry ? entry : files, value));
    return DSC_OK;
}

dsc_status dsc_tokens_json_read(const char *path, json_t **out) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0, size = folder + sizeof DSC_TOKENS_JSON;
    char *beside;
    json_error_t error;
    dsc_status status = DSC_OK;
    int64_t bytes;
    *out = NULL;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, &beside));
    snprintf(beside, size, "%.*s" DSC_TOKENS_JSON, (int)folder, path);
    status = dsc_file_size(beside, &bytes);
    if (status == DSC_OK) {
        json_t *json = json_load_file(beside, JSON_REJECT_DUPLICATES, &error);
        if (!json)
            status = DSC_FAIL(DSC_E_FORMAT, "'%s', line %d: %s; repair it, or run descent tokenize again",
                              beside, error.line, error.text);
        else
            status = check_description(beside, json, name);
        if (status == DSC_OK && json_object_get(json_object_get(json, "files"), name))
            *out = json;
        else
            json_decref(json);
    } else if (status == DSC_E_NOT_FOUND) {
        status = DSC_OK;
    }
    dsc_memory_free(&beside);
    return status;
}

static dsc_status chars_of_json(const json_t *list, dsc_tokenizer **out) {
    uint8_t marked[256] = {0};
    json_int_t before = -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;
        if (value <= before || value > 255)
            return DSC_FAIL(DSC_E_FORMAT, "its characters are not ascending bytes");
        marked[value] = 1;
        before = value;
    }
    if (before < 0)
        return DSC_FAIL(DSC_E_FORMAT, "it has no characters");
    return create_simple("chars", marked, out);
}

/* Reads the files of the vocabulary beside the file of tokens `path`. */
static dsc_status bpe_beside(const char *path, dsc_tokenizer **out) {
    const char *slash = strrchr(path, '/');
    char *folder = NULL, *vocab = NULL, *merges = NULL;
    int64_t size;
    DSC_TRY(dsc_memory_strdup(slash ? path : ".", &folder));
    if (slash)
        folder[slash == path ? 1 : slash - path] = '\0';
    dsc_status status = dsc_path_join(folder, DSC_VOCAB_JSON, &vocab);
    if (status == DSC_OK)
        status = dsc_path_join(folder, DSC_MERGES_TXT, &merges);
    if (status == DSC_OK)
        status = create_bpe(dsc_bpe_read, vocab, merges, out);
    /* Not DSC_E_NOT_FOUND, which says that no tokens.json describes the file of tokens. */
    if (status == DSC_E_NOT_FOUND)
        status =
            DSC_FAIL(DSC_E_FORMAT,
                     "its vocabulary needs '%s', which is missing: copy it there, or run descent tokenize "
                     "again",
                     dsc_file_size(vocab, &size) == DSC_E_NOT_FOUND ? vocab : merges);
    dsc_memory_free(&folder);
    dsc_memory_free(&vocab);
    dsc_memory_free(&merges);
    return status;
}

/* Where the vocabulary and merges of a byte-pair encoding are: beside the file `path`, or these texts. */
typedef struct bpe_source {
    const char *path, *vocab, *merges;
} bpe_source;

static dsc_status bpe_of_source(const bpe_source *source, dsc_tokenizer **out) {
    if (source->path)
        return bpe_beside(source->path, out);
    if (!source->vocab || !source->merges)
        return DSC_FAIL(DSC_E_FORMAT, "its kind is bpe, but there is no " DSC_VOCAB_JSON
                                      " or no " DSC_MERGES_TXT " with it");
    return create_bpe(dsc_bpe_parse, source->vocab, source->merges, out);
}

static dsc_status create_of_json(const json_t *json, const bpe_source *source, dsc_tokenizer **out) {
    const char *kind = json_string_value(json_object_get(json, "kind"));
    const json_t *size = json_object_get(json, "vocabulary");
    char value[DSC_JSON_VALUE];
    if (kind && strcmp(kind, "bytes") == 0)
        DSC_TRY(dsc_tokenizer_bytes(out));
    else if (kind && strcmp(kind, "chars") == 0)
        DSC_TRY(chars_of_json(json_object_get(json, "characters"), out));
    else if (kind && strcmp(kind, "bpe") == 0)
        DSC_TRY(bpe_of_source(source, out));
    else
        return DSC_FAIL(DSC_E_FORMAT, "its kind is '%.40s', not one of bytes, chars, bpe", kind ? kind : "");
    if (!json_is_integer(size) || json_integer_value(size) < 1) {
        dsc_tokenizer_destroy(out);
        return DSC_FAIL(DSC_E_FORMAT, "its vocabulary is %s: must be a number of tokens, 1 or more%s",
                        dsc_json_value_text(size, value), source->path ? "; run descent tokenize again" : "");
    }
    if (json_integer_value(size) != (*out)->vocabulary) {
        const int64_t count = (*out)->vocabulary;
        dsc_tokenizer_destroy(out);
        return DSC_FAIL(DSC_E_FORMAT, "its vocabulary should have %lld tokens, but has %lld%s",
                        (long long)json_integer_value(size), (long long)count,
                        source->path ? ": run descent tokenize again" : "");
    }
    return DSC_OK;
}

json_t *dsc_tokenizer_json(const dsc_tokenizer *t) {
    json_t *json = json_pack("{s:s, s:I}", "kind", t->kind, "vocabulary", (json_int_t)t->vocabulary);
    if (!json || strcmp(t->kind, "chars") != 0)
        return json;
    json_t *characters = json_array();
    for (int64_t i = 0; i < t->vocabulary; i++)
        json_array_append_new(characters, json_integer(t->bytes[i]));
    json_object_set_new(json, "characters", characters);
    return json;
}

dsc_status dsc_tokenizer_of_text(const char *text, const char *vocab, const char *merges,
                                 dsc_tokenizer **out) {
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json)
        return DSC_FAIL(DSC_E_FORMAT, "its description is not JSON: %s", error.text);
    dsc_status status = create_of_json(json, &(bpe_source){.vocab = vocab, .merges = merges}, out);
    json_decref(json);
    return status;
}

dsc_status dsc_tokenizer_of_file(const char *path, dsc_tokenizer **out) {
    json_t *json;
    DSC_TRY(dsc_tokens_json_read(path, &json));
    if (!json)
        return DSC_FAIL(DSC_E_NOT_FOUND,
                        "'%s': there is no " DSC_TOKENS_JSON " beside it that says what its tokens mean",
                        path);
    dsc_status status = create_of_json(json, &(bpe_source){.path = path}, out);
    json_decref(json);
    return status == DSC_OK ? DSC_OK : dsc_error_prefix(status, "the " DSC_TOKENS_JSON " beside '%s'", path);
}

/* ---- use ---- */

const char *dsc_tokenizer_kind(const dsc_tokenizer *tokenizer) {
    return tokenizer->kind;
}

int64_t dsc_tokenizer_vocabulary(const dsc_tokenizer *tokenizer) {
    return tokenizer->vocabulary;
}

int32_t dsc_tokenizer_end_of_text(const dsc_tokenizer *tokenizer) {
    return tokenizer->end_of_text;
}

const uint8_t *dsc_tokenizer_token(const dsc_tokenizer *t, int32_t token, int64_t *bytes) {
    if (token < 0 || token >= t->vocabulary)
        return NULL;
    *bytes = t->offset[token + 1] - t->offset[token];
    return t->bytes + t->offset[token];
}

int dsc_tokenizer_is_same(const dsc_tokenizer *a, const dsc_tokenizer *b) {
    const int64_t count = a->vocabulary;
    return count == b->vocabulary &&
           memcmp(a->offset, b->offset, (size_t)(count + 1) * sizeof *a->offset) == 0 &&
           memcmp(a->bytes, b->bytes, (size_t)a->offset[count]) == 0;
}

dsc_status dsc_tokenizer_encode(const dsc_tokenizer *tokenizer, const void *text, int64_t bytes,
                                unsigned flags, int32_t *tokens, int64_t *count) {
    dsc_encoder *encoder;
    if (bytes < 0 || flags & ~(unsigned)DSC_ENCODE_SPECIAL)
        return DSC_FAIL(DSC_E_INVALID, "%lld bytes to encode, flags %u: there are no such", (long long)bytes,
                        flags);
    DSC_TRY(dsc_encoder_create(tokenizer, bytes >= CACHE_FROM, &encoder));
    dsc_status status = dsc_encoder_run(encoder, text, bytes, flags, tokens, count);
    dsc_encoder_destroy(&encoder);
    return status;
}

dsc_status dsc_tokenizer_decode(const dsc_tokenizer *t, const int32_t *tokens, int64_t count, void *text,
                                int64_t capacity, int64_t *bytes) {
    uint8_t *out = text;
    int64_t made = 0, length;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *token = dsc_tokenizer_token(t, tokens[i], &length);
        if (!token)
            return DSC_FAIL(DSC_E_INVALID, "token %lld is %d, but the vocabulary has %lld tokens",
                            (long long)i, tokens[i], (long long)t->vocabulary);
        if (out && length > capacity - made)
            return DSC_FAIL(DSC_E_INVALID, "the text of %lld tokens does not fit into %lld bytes",
                            (long long)count, (long long)capacity);
        if (out)
            memcpy(out + made, token, (size_t)length);
        made += length;
    }
    *bytes = made;
    return DSC_OK;
}

/* The directory that dsc_tokenize writes: train.bin, val.bin, copies of a vocabulary's files, and tokens.json, which
 * describes them. Everything is written under temporary names; they are renamed at the end, tokens.json last. */
#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "data/files.h"
#include "data/tokenizer.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRAIN, VAL, VOCAB, MERGES, JSON, FILES };
static const char *const names[FILES] = {"train.bin", "val.bin", DSC_VOCAB_JSON, DSC_MERGES_TXT,
                                         DSC_TOKENS_JSON};

struct dsc_token_folder {
    const dsc_tokenizer *tokenizer;
    dsc_token_format format;
    char *paths[FILES];
    dsc_token_writer *writers[2];
    dsc_output outputs[FILES]; /* of the other files; fd -1: not open */
};

static int exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

/* The text to write into one of the vocabulary's files; NULL: the file is not written, because there is none or because
 * it is the one that was read. */
static const char *text_of(const dsc_token_folder *f, int file) {
    const dsc_bpe *bpe = f->tokenizer->bpe;
    if (!bpe)
        return NULL;
    const char *path = file == VOCAB ? bpe->vocab_path : bpe->merges_path;
    if (path && dsc_file_is_same(path, f->paths[file]))
        return NULL;
    return file == VOCAB ? bpe->vocab_text : bpe->merges_text;
}

static dsc_status check_free(const dsc_token_folder *f, const char *path) {
    for (int i = 0; i < FILES; i++) {
        if ((i == VOCAB || i == MERGES) && !text_of(f, i))
            continue;
        if (exists(f->paths[i]))
            return DSC_FAIL(DSC_E_INVALID,
                            "'%s' has a %s already: choose another directory, or allow it with --overwrite",
                            path, names[i]);
    }
    return DSC_OK;
}

static dsc_status open_folder(dsc_token_folder *f, const char *path, int val, int overwrite) {
    for (int i = 0; i < FILES; i++)
        DSC_TRY(dsc_output_path(path, names[i], &f->paths[i]));
    if (!overwrite)
        DSC_TRY(check_free(f, path));
    DSC_TRY(dsc_directory_make(path));
    for (int i = 0; i < 1 + val; i++)
        DSC_TRY(dsc_token_writer_create(f->paths[i], f->format, &f->writers[i]));
    return DSC_OK;
}

dsc_status dsc_token_folder_open(const char *path, const dsc_tokenizer *tokenizer, dsc_token_format format,
                                 int val, int overwrite, dsc_token_folder **out) {
    dsc_token_folder *f;
    DSC_TRY(dsc_memory_alloc(1, sizeof *f, &f));
    f->tokenizer = tokenizer;
    f->format = format;
    for (int i = 0; i < FILES; i++)
        f->outputs[i].fd = -1;
    dsc_status status = open_folder(f, path, val, overwrite);
    if (status != DSC_OK) {
        dsc_token_folder_close(&f);
        return status;
    }
    *out = f;
    return DSC_OK;
}

void dsc_token_folder_writers(const dsc_token_folder *folder, dsc_token_writer *writers[2]) {
    for (int i = 0; i < 2; i++)
        writers[i] = folder->writers[i];
}

void dsc_token_folder_close(dsc_token_folder **folder) {
    if (!*folder)
        return;
    for (int i = 0; i < 2; i++)
        dsc_token_writer_destroy(&(*folder)->writers[i]);
    for (int i = 0; i < FILES; i++) {
        dsc_output_close(&(*folder)->outputs[i]);
        dsc_memory_free(&(*folder)->paths[i]);
    }
    dsc_memory_free(folder);
}

/* ---- committing ---- */

static dsc_status write_whole(dsc_token_folder *f, int file, const void *data, size_t bytes) {
    DSC_TRY(dsc_output_open(f->paths[file], &f->outputs[file]));
    DSC_TRY(dsc_output_write(&f->outputs[file], data, bytes, 0));
    return dsc_output_sync(&f->outputs[file]);
}

static dsc_status write_vocabulary(dsc_token_folder *f, int file) {
    const char *text = text_of(f, file);
    return text ? write_whole(f, file, text, strlen(text)) : DSC_OK;
}

/* A file's name as JSON. If it is not UTF-8, bytes beyond ASCII become question marks. */
static json_t *name_of(const char *path) {
    char *plain;
    json_t *name = json_string(path);
    if (name || dsc_memory_strdup(path, &plain) != DSC_OK)
        return name;
    for (char *p = plain; *p; p++)
        *p = (unsigned char)*p >= 0x80 ? '?' : *p;
    name = json_string(plain);
    dsc_memory_free(&plain);
    return name;
}

static json_t *describe(const dsc_token_folder *f, const dsc_tokenize_result *r, const char *const *sources,
                        int64_t count) {
    static const char *const formats[] = {"uint16", "uint32", "llm.c"};
    const dsc_tokenizer *t = f->tokenizer;
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, name_of(sources[i]));
    json_t *rest = json_pack("{s:s, s:o, s:o, s:I, s:{s:{s:I, s:I}}}", "format", formats[f->format],
                             "end_of_text", t->end_of_text < 0 ? json_null() : json_integer(t->end_of_text),
                             "sources", list, "source_files", (json_int_t)r->files, "files", names[TRAIN],
                             "tokens", (json_int_t)r->train_tokens, "bytes", (json_int_t)r->train_bytes);
    if (f->writers[VAL])
        json_object_set_new(
            json_object_get(rest, "files"), names[VAL],
            json_pack("{s:I, s:I}", "tokens", (json_int_t)r->val_tokens, "bytes", (json_int_t)r->val_bytes));
    json_t *json = json_pack("{s:i}", "version", DSC_TOKENS_JSON_VERSION), *own = dsc_tokenizer_json(t);
    int complete = own && rest && json_object_update(json, own) == 0 && json_object_update(json, rest) == 0;
    json_decref(own);
    json_decref(rest);
    if (complete)
        return json;
    json_decref(json);
    return NULL;
}

static dsc_status write_json(dsc_token_folder *f, const dsc_tokenize_result *r, const char *const *sources,
                             int64_t count) {
    json_t *json = describe(f, r, sources, count);
    char *text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (!text)
        return DSC_FAIL(DSC_E_MEMORY, "not enough memory for " DSC_TOKENS_JSON);
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the 0 */
    dsc_status status = write_whole(f, JSON, text, length + 1);
    free(text);
    return status;
}

static dsc_status remove_old(const char *path) {
    if (unlink(path) == 0 || errno == ENOENT)
        return DSC_OK;
    return DSC_FAIL(DSC_E_IO, "cannot remove the old '%s': %s", path, strerror(errno));
}

dsc_status dsc_token_folder_commit(dsc_token_folder *f, const dsc_tokenize_result *result,
                                   const char *const *sources, int64_t count) {
    for (int i = 0; i < 2; i++)
        if (f->writers[i])
            DSC_TRY(dsc_token_writer_finish(f->writers[i]));
    DSC_TRY(write_vocabulary(f, VOCAB));
    DSC_TRY(write_vocabulary(f, MERGES));
    DSC_TRY(write_json(f, result, sources, count));
    DSC_TRY(remove_old(f->paths[JSON])); /* it does not describe the new files */
    if (!f->writers[VAL])
        DSC_TRY(remove_old(f->paths[VAL]));
    for (int i = 0; i < FILES; i++) {
        if (i < 2 && f->writers[i])
            DSC_TRY(dsc_token_writer_commit(f->writers[i]));
        else if (f->outputs[i].fd >= 0)
            DSC_TRY(dsc_output_commit(&f->outputs[i]));
    }
    return DSC_OK;
}

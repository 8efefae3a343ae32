/* The data sets "tokens", files of tokens, and "text", which is tokenised when it is opened. */
#include "base/error.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/path_list.h"
#include "data/sequences.h"
#include "descent/log.h"

#include <string.h>

/* The share of a text that is for validation, if it is not divided yet. */
static const double default_val_split = 0.1;

/* The vocabulary of files that nothing describes: GPT-2's, which the scripts of nanoGPT and llm.c write. */
enum { DEFAULT_VOCABULARY = 50257 };

/* ---- files of tokens ---- */

/* The file that the split is in, and whether it has to be divided. */
static dsc_status find_file(const char *argument, dsc_split split, const dsc_data_options *options,
                            char **path, int *divided) {
    int64_t size;
    *divided = options->val_split > 0 || !dsc_file_is_directory(argument);
    if (!dsc_file_is_directory(argument))
        return dsc_memory_strdup(argument, path);
    const char *name = *divided || split == DSC_SPLIT_TRAIN ? "train.bin" : "val.bin";
    DSC_TRY(dsc_path_join(argument, name, path));
    if (dsc_file_size(*path, &size) != DSC_E_NOT_FOUND)
        return DSC_OK;
    dsc_memory_free(path);
    if (*divided || split == DSC_SPLIT_TRAIN)
        return DSC_FAIL(
            DSC_E_NOT_FOUND,
            "tokens: '%s' has no train.bin: make it of text with 'descent tokenize --out %s FILE', "
            "or give the name of a file of tokens",
            argument, argument);
    return DSC_FAIL(
        DSC_E_NOT_FOUND,
        "tokens: '%s' has no val.bin: make it of text with 'descent tokenize --val-split 0.1', or take "
        "the end of train.bin for validation (val-split 0.1)",
        argument);
}

/* Opens the file. options->vocabulary may be larger than the file's vocabulary, for models with additional tokens. */
static dsc_status fill_source(const char *path, dsc_split split, const dsc_data_options *options,
                              dsc_token_source *source) {
    dsc_token_file_options o;
    dsc_token_file_options_init(&o);
    dsc_status status = dsc_tokenizer_of_file(path, &source->tokenizer);
    const int described = status != DSC_E_NOT_FOUND;
    if (described)
        DSC_TRY(status);
    else
        o.vocabulary = options->vocabulary > 0 ? options->vocabulary : DEFAULT_VOCABULARY;
    DSC_TRY(dsc_token_file_open(path, &o, &source->file));
    if (!described && options->vocabulary == 0 &&
        split == DSC_SPLIT_TRAIN) /* once, where both splits are opened */
        dsc_log(DSC_LOG_WARNING,
                "'%s': no tokens.json describes it, so its tokens are taken for GPT-2's (vocabulary %d): if "
                "they are not, say how many there are (vocabulary N)",
                path, DEFAULT_VOCABULARY);
    const int64_t own = dsc_token_file_vocabulary(source->file);
    if (options->vocabulary > 0 && options->vocabulary < own)
        return DSC_FAIL(DSC_E_INVALID,
                        "tokens: '%s' was made with a vocabulary of %lld tokens, and not %lld: these are too "
                        "few; use at least %lld, or leave the vocabulary out",
                        path, (long long)own, (long long)options->vocabulary, (long long)own);
    source->vocabulary = options->vocabulary > own ? options->vocabulary : own;
    source->count = dsc_token_file_count(source->file);
    source->bytes_per_token = (double)dsc_token_file_text_bytes(source->file) / (double)source->count;
    return DSC_OK;
}

static dsc_status open_tokens(void *context, const char *argument, dsc_split split,
                              const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    char *path = NULL;
    int divided;
    dsc_token_source source = {.file = NULL};
    DSC_TRY(find_file(argument, split, options, &path, &divided));
    dsc_status status = fill_source(path, split, options, &source);
    if (status == DSC_OK && divided) {
        source.whole = source.count;
        dsc_token_source_divide(source.count, options->val_split > 0 ? options->val_split : default_val_split,
                                split, &source.first, &source.count);
    }
    if (status == DSC_OK)
        status = dsc_sequences_create(&source, "tokens", path, split, options, out);
    dsc_token_source_free(&source);
    dsc_memory_free(&path);
    return status;
}

/* ---- text ---- */

/* Reads bytes [first, first + count) of all files together. */
static dsc_status read_part(const dsc_path_list *list, int64_t first, int64_t count, uint8_t *text) {
    const char *path = list->text;
    int64_t before = 0, size;
    for (int64_t i = 0; i < list->count; i++, path += strlen(path) + 1, before += size) {
        DSC_TRY(dsc_file_size(path, &size));
        const int64_t from = first > before ? first : before;
        const int64_t end = first + count < before + size ? first + count : before + size;
        if (from < end)
            DSC_TRY(dsc_file_read_at(path, from - before, end - from, text + (from - first)));
    }
    return DSC_OK;
}

static dsc_status count_bytes(const dsc_path_list *list, int64_t *total) {
    const char *path = list->text;
    int64_t size;
    *total = 0;
    for (int64_t i = 0; i < list->count; i++, path += strlen(path) + 1, *total += size)
        DSC_TRY(dsc_file_size(path, &size));
    return DSC_OK;
}

/* Checks that all characters are in the vocabulary: a file may have changed since its characters were counted. */
static dsc_status check_text(const dsc_token_source *source, const char *path) {
    int64_t i = 0;
    while (i < source->count && source->tokenizer->token_of[source->text[i]] >= 0)
        i++;
    if (i == source->count)
        return DSC_OK;
    return DSC_FAIL(DSC_E_IO, "text: '%s' changed while it was read: open it again", path);
}

static dsc_status fill_text(const char *path, const dsc_path_list *list, int bytes, dsc_split split,
                            double share, dsc_token_source *source) {
    int64_t total, first;
    DSC_TRY(count_bytes(list, &total));
    if (total == 0)
        return DSC_FAIL(DSC_E_FORMAT, "text: '%s' is empty: it should hold text", path);
    if (bytes)
        DSC_TRY(dsc_tokenizer_bytes(&source->tokenizer));
    else
        DSC_TRY(dsc_tokenizer_chars_of_files(&path, 1, &source->tokenizer));
    if (total > 1 && source->tokenizer->vocabulary < 2)
        return DSC_FAIL(
            DSC_E_INVALID,
            "text: '%s' has one distinct character, so there is nothing to learn: use other text, "
            "or text:bytes:%s",
            path, path);
    dsc_token_source_divide(total, share, split, &first, &source->count);
    source->whole = total;
    DSC_TRY(dsc_memory_alloc(source->count > 0 ? source->count : 1, 1, &source->text));
    DSC_TRY(read_part(list, first, source->count, source->text));
    DSC_TRY(check_text(source, path));
    source->vocabulary = source->tokenizer->vocabulary;
    source->bytes_per_token = 1;
    return DSC_OK;
}

static dsc_status open_text(void *context, const char *argument, dsc_split split,
                            const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    const int bytes = strncmp(argument, "bytes:", 6) == 0, chars = strncmp(argument, "chars:", 6) == 0;
    const char *path = bytes || chars ? argument + 6 : argument;
    dsc_path_list list = {0};
    dsc_token_source source = {.file = NULL};
    dsc_status status = dsc_path_list_add(&list, path, NULL, "text");
    if (status == DSC_OK)
        status = fill_text(path, &list, bytes, split,
                           options->val_split > 0 ? options->val_split : default_val_split, &source);
    if (status == DSC_OK && options->vocabulary > 0 && options->vocabulary < source.vocabulary)
        status = DSC_FAIL(
            DSC_E_INVALID,
            "text: '%s' has %lld %s, more than the vocabulary of %lld tokens: use at least %lld, or "
            "leave the vocabulary out",
            path, (long long)source.vocabulary, bytes ? "tokens, one for each byte" : "different characters",
            (long long)options->vocabulary, (long long)source.vocabulary);
    if (status == DSC_OK && options->vocabulary > 0)
        source.vocabulary = options->vocabulary;
    if (status == DSC_OK)
        status = dsc_sequences_create(&source, "text", path, split, options, out);
    dsc_token_source_free(&source);
    dsc_path_list_free(&list);
    return status;
}

const dsc_dataset_kind dsc_kind_tokens = {
    sizeof(dsc_dataset_kind), "tokens", "tokens:DIR|FILE", 1, NULL, open_tokens, 1};
const dsc_dataset_kind dsc_kind_text = {
    sizeof(dsc_dataset_kind), "text", "text:[bytes:|chars:]PATH", 1, NULL, open_text, 1};

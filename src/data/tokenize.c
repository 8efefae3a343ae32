/* Files of text into files of tokens.
 *
 * The calling thread reads the text in chunks and writes their tokens; other threads encode. A chunk ends where the
 * text can be cut without changing its tokens, which the text alone decides, so the result does not depend on the
 * number of threads. At most two chunks per thread are in memory. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread.h"
#include "base/versioned.h"
#include "data/files.h"
#include "data/path_list.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <string.h>

enum {
    CHUNK_BYTES = 1 << 20,
    LONGEST_CHUNK = 1 << 24, /* text without a place to cut is cut after this many bytes */
    SPLIT_SEARCH = 1 << 20,  /* bytes in which such a place for the beginning of val.bin is looked for */
    MAX_THREADS = 1024,
    MESSAGE_SIZE = 2048
};
static const double report_seconds = 0.1;

typedef enum chunk_state { FREE, READ, ENCODED } chunk_state;

typedef struct chunk {
    chunk_state state;
    int part;      /* 0: train, 1: val */
    int ends_file; /* the last of its file */
    const char *path;
    int64_t offset, bytes, count;
    dsc_bytes text, tokens;
} chunk;

typedef struct tokenizing {
    const dsc_tokenizer *tokenizer;
    dsc_tokenize_options o;
    dsc_token_format format;
    dsc_path_list list;
    int64_t *sizes;               /* [list.count] */
    int64_t total, split;         /* bytes; val.bin begins at byte `split` of all files together */
    dsc_token_writer *writers[2]; /* of train.bin and val.bin */
    dsc_tokenize_result result;
    /* The next chunk to be read: */
    int64_t file, at, before; /* its number, offset; bytes of the files before */
    const char *path;
    /* The chunks, a ring; chunk number n is at n % slots. Under the mutex: */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    chunk *chunks;
    int64_t slots, read, taken, written; /* how many chunks were read, taken by a thread, written */
    int ending;
    dsc_status status; /* of a thread */
    char message[MESSAGE_SIZE];
} tokenizing;

void dsc_tokenize_options_init_sized(dsc_tokenize_options *options, size_t size) {
    const dsc_tokenize_options defaults = {.val_split = 0.1, .threads = 1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* ---- encoding threads ---- */

static dsc_status encode_chunk(const tokenizing *w, dsc_encoder *encoder, chunk *c) {
    DSC_TRY(dsc_bytes_reserve(&c->tokens, (c->bytes + 1) * (int64_t)sizeof(int32_t)));
    int32_t *tokens = (int32_t *)c->tokens.data;
    dsc_status status = dsc_encoder_run(encoder, c->text.data, c->bytes, w->o.flags, tokens, &c->count);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "'%s' from byte %lld on", c->path, (long long)c->offset);
    if (c->ends_file && w->o.end_of_text)
        tokens[c->count++] = w->tokenizer->end_of_text;
    return DSC_OK;
}

static void *encode(void *argument) {
    tokenizing *w = argument;
    dsc_encoder *encoder = NULL;
    dsc_status status = dsc_encoder_create(w->tokenizer, 1, &encoder);
    pthread_mutex_lock(&w->mutex);
    while (status == DSC_OK && !w->ending) {
        if (w->taken == w->read) {
            pthread_cond_wait(&w->changed, &w->mutex);
            continue;
        }
        chunk *c = &w->chunks[w->taken++ % w->slots];
        pthread_mutex_unlock(&w->mutex);
        status = encode_chunk(w, encoder, c);
        pthread_mutex_lock(&w->mutex);
        c->state = ENCODED;
        pthread_cond_broadcast(&w->changed);
    }
    if (status != DSC_OK && w->status == DSC_OK) {
        w->status = status;
        snprintf(w->message, sizeof w->message, "%s", dsc_error_message());
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    dsc_encoder_destroy(&encoder);
    return NULL;
}

/* ---- reading ---- */

/* Reads the text from w->at to `end`, or to the last place before it where it can be cut. */
static dsc_status read_chunk(const tokenizing *w, int64_t end, chunk *c) {
    for (int64_t most = CHUNK_BYTES;; most *= 2) {
        int64_t left = end - w->at, bytes = left < most ? left : most;
        DSC_TRY(dsc_bytes_reserve(&c->text, bytes));
        DSC_TRY(dsc_file_read_at(w->path, w->at, bytes, c->text.data));
        c->bytes = bytes;
        if (bytes == left || !w->tokenizer->bpe)
            return DSC_OK;
        c->bytes = dsc_last_cut(c->text.data, bytes);
        if (c->bytes > 0)
            return DSC_OK;
        c->bytes = bytes;
        if (most == LONGEST_CHUNK)
            return DSC_OK;
    }
}

/* Fills the next chunk of the text. */
static dsc_status next_chunk(tokenizing *w, chunk *c) {
    int64_t size = w->sizes[w->file];
    c->part = w->before + w->at >= w->split;
    int64_t end = !c->part && w->before + size > w->split ? w->split - w->before : size;
    c->path = w->path;
    c->offset = w->at;
    DSC_TRY(read_chunk(w, end, c));
    w->at += c->bytes;
    c->ends_file = w->at == size;
    return DSC_OK;
}

/* Goes to the next file that is not empty once the present one has been read. 0: there is none. */
static int find_text(tokenizing *w) {
    while (w->file < w->list.count && w->at == w->sizes[w->file]) {
        w->before += w->sizes[w->file++];
        w->path += strlen(w->path) + 1;
        w->at = 0;
    }
    return w->file < w->list.count;
}

/* ---- the loop ---- */

static dsc_status write_chunk(tokenizing *w, chunk *c) {
    int64_t *tokens = c->part ? &w->result.val_tokens : &w->result.train_tokens;
    int64_t *bytes = c->part ? &w->result.val_bytes : &w->result.train_bytes;
    *tokens += c->count;
    *bytes += c->bytes;
    return dsc_token_writer_append(w->writers[c->part], (const int32_t *)c->tokens.data, c->count);
}

static dsc_status report(const tokenizing *w, double *last) {
    const dsc_tokenize_progress p = {w->result.train_bytes + w->result.val_bytes, w->total,
                                     w->result.train_tokens + w->result.val_tokens};
    if (!w->o.progress || dsc_clock_now() - *last < report_seconds)
        return DSC_OK;
    *last = dsc_clock_now();
    return w->o.progress(w->o.context, &p) ? DSC_FAIL(DSC_E_INTERRUPTED, "stopped; no file was written")
                                           : DSC_OK;
}

/* Waits until the oldest chunk has been encoded, or until it is time for a report: *done is 1 in the first case. */
static dsc_status wait_for_oldest(tokenizing *w, int *done) {
    dsc_status status;
    pthread_mutex_lock(&w->mutex);
    const chunk *oldest = &w->chunks[w->written % w->slots];
    double deadline = dsc_clock_now() + report_seconds;
    while (w->status == DSC_OK && oldest->state != ENCODED &&
           dsc_condition_wait(&w->changed, &w->mutex, deadline))
        ;
    *done = oldest->state == ENCODED;
    status = w->status;
    pthread_mutex_unlock(&w->mutex);
    return status == DSC_OK ? DSC_OK : dsc_error_adopt(status, w->message);
}

static dsc_status run_all(tokenizing *w) {
    double last = dsc_clock_now();
    w->path = w->list.text;
    while (find_text(w) || w->written < w->read) {
        if (w->file < w->list.count && w->read - w->written < w->slots) {
            chunk *c = &w->chunks[w->read % w->slots];
            DSC_TRY(next_chunk(w, c));
            pthread_mutex_lock(&w->mutex);
            c->state = READ;
            w->read++;
            pthread_cond_broadcast(&w->changed);
            pthread_mutex_unlock(&w->mutex);
            continue;
        }
        int done;
        DSC_TRY(wait_for_oldest(w, &done));
        if (done) {
            chunk *c = &w->chunks[w->written % w->slots];
            DSC_TRY(write_chunk(w, c));
            c->state = FREE;
            w->written++;
        }
        DSC_TRY(report(w, &last));
    }
    return DSC_OK;
}

/* Runs the loop with threads beside it. */
static dsc_status run_threads(tokenizing *w) {
    pthread_t *threads;
    int started = 0;
    DSC_TRY(dsc_memory_alloc(w->o.threads, sizeof *threads, &threads));
    dsc_status status = DSC_OK;
    for (; started < w->o.threads && status == DSC_OK; started += status == DSC_OK)
        status = dsc_thread_start(&threads[started], encode, w, "a thread that encodes text");
    if (status == DSC_OK)
        status = run_all(w);
    pthread_mutex_lock(&w->mutex);
    w->ending = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    dsc_memory_free(&threads);
    return status;
}

/* ---- preparing and finishing ---- */

static dsc_status list_files(tokenizing *w, const char *const *paths, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        DSC_TRY(dsc_path_list_add(&w->list, paths[i], NULL, "files"));
    DSC_TRY(dsc_memory_alloc(w->list.count, sizeof *w->sizes, &w->sizes));
    const char *path = w->list.text;
    for (int64_t i = 0; i < w->list.count; i++, path += strlen(path) + 1) {
        DSC_TRY(dsc_file_size(path, &w->sizes[i]));
        w->total += w->sizes[i];
    }
    w->result.files = w->list.count;
    if (w->total == 0)
        return dsc_fail_no_text(&w->list);
    return DSC_OK;
}

/* Finds where val.bin begins: after the given part of the text or, with bpe, at the next place where the text can be
 * cut, or at the end of that file. Where the next SPLIT_SEARCH bytes, or the last file, hold no such place, a word
 * is cut. */
static dsc_status find_split(tokenizing *w) {
    int64_t before = 0, file = 0, bytes, at = 0;
    dsc_bytes text = {0};
    const char *path = w->list.text;
    w->split = w->o.val_split > 0 ? (int64_t)((double)w->total * (1 - w->o.val_split)) : w->total;
    if (!w->tokenizer->bpe)
        return DSC_OK;
    for (; file < w->list.count && before + w->sizes[file] <= w->split; path += strlen(path) + 1)
        before += w->sizes[file++];
    if (file == w->list.count || before == w->split)
        return DSC_OK;
    int64_t offset = w->split - before > 4 ? w->split - before - 4 : 0; /* with the character before */
    bytes = w->sizes[file] - offset < SPLIT_SEARCH ? w->sizes[file] - offset : SPLIT_SEARCH;
    dsc_status status = dsc_bytes_reserve(&text, bytes);
    if (status == DSC_OK)
        status = dsc_file_read_at(path, offset, bytes, text.data);
    for (at = w->split - before - offset; status == DSC_OK && at < bytes; at++)
        if (dsc_is_cut(text.data, bytes, at))
            break;
    if (status == DSC_OK &&
        (at < bytes || (offset + bytes == w->sizes[file] && before + offset + at < w->total)))
        w->split = before + offset + at;
    dsc_bytes_free(&text);
    return status;
}

static dsc_status check(tokenizing *w) {
    int64_t most = UINT16_MAX + 1;
    if (w->o.threads < 1 || w->o.threads > MAX_THREADS)
        return DSC_FAIL(DSC_E_INVALID, "%d threads that encode: must be 1 to %d", w->o.threads, MAX_THREADS);
    if (!(w->o.val_split >= 0 && w->o.val_split < 1))
        return DSC_FAIL(DSC_E_INVALID, "val-split %g: must be at least 0 and below 1", w->o.val_split);
    if (w->o.end_of_text && w->tokenizer->end_of_text < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "the vocabulary (%s) has no token " DSC_END_OF_TEXT " to put after files",
                        w->tokenizer->kind);
    w->format = w->o.format;
    if (w->format == DSC_TOKENS_UINT16 && w->tokenizer->vocabulary > most)
        w->format = DSC_TOKENS_UINT32;
    if (w->format == DSC_TOKENS_LLMC && w->tokenizer->vocabulary > most)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "llm.c's files have tokens of 16 bits, but the vocabulary has %lld tokens",
                        (long long)w->tokenizer->vocabulary);
    return DSC_OK;
}

/* Finds the text and its parts. */
static dsc_status find_parts(tokenizing *w, const char *const *paths, int64_t count) {
    DSC_TRY(check(w));
    DSC_TRY(list_files(w, paths, count));
    DSC_TRY(find_split(w));
    if (w->o.val_split > 0 && (w->split <= 0 || w->split >= w->total))
        return DSC_FAIL(
            DSC_E_INVALID,
            "a text of %lld bytes cannot be split into train.bin and val.bin with val-split %g: give "
            "more text, or 0",
            (long long)w->total, w->o.val_split);
    return DSC_OK;
}

/* Encodes all text. */
static dsc_status write_all(tokenizing *w) {
    w->slots = 2 * (int64_t)w->o.threads;
    DSC_TRY(dsc_memory_alloc(w->slots, sizeof *w->chunks, &w->chunks));
    if (pthread_mutex_init(&w->mutex, NULL) != 0)
        return DSC_FAIL(DSC_E_MEMORY, "cannot create a lock");
    dsc_status status = DSC_OK;
    if (!dsc_condition_init(&w->changed)) {
        status = DSC_FAIL(DSC_E_MEMORY, "cannot create a lock");
    } else {
        status = run_threads(w);
        pthread_cond_destroy(&w->changed);
    }
    pthread_mutex_destroy(&w->mutex);
    return status;
}

static void free_all(tokenizing *w) {
    for (int64_t i = 0; w->chunks && i < w->slots; i++) {
        dsc_bytes_free(&w->chunks[i].text);
        dsc_bytes_free(&w->chunks[i].tokens);
    }
    dsc_memory_free(&w->chunks);
    dsc_memory_free(&w->sizes);
    dsc_path_list_free(&w->list);
}

dsc_status dsc_tokenize(const dsc_tokenizer *tokenizer, const char *const *paths, int64_t count,
                        const char *out, const dsc_tokenize_options *options, dsc_tokenize_result *result) {
    tokenizing w = {.tokenizer = tokenizer, .result.size = sizeof w.result};
    dsc_token_folder *folder = NULL;
    dsc_tokenize_options_init(&w.o);
    DSC_TRY(dsc_versioned_read("tokenize", options, sizeof w.o, &w.o));
    if (result)
        DSC_TRY(dsc_versioned_check("dsc_tokenize_result", result, sizeof *result));
    dsc_status status = find_parts(&w, paths, count);
    if (status == DSC_OK)
        status = dsc_token_folder_open(out, tokenizer, w.format, w.o.val_split > 0, w.o.overwrite, &folder);
    if (status == DSC_OK) {
        dsc_token_folder_writers(folder, w.writers);
        status = write_all(&w);
    }
    if (status == DSC_OK)
        status = dsc_token_folder_commit(folder, &w.result, paths, count);
    dsc_token_folder_close(&folder);
    free_all(&w);
    if (status == DSC_OK)
        dsc_versioned_write(&w.result, result);
    return status;
}

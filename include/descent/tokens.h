/* Text as tokens: tokenizers, files of tokens, and converting text to such files.
 *
 * A token is a number from 0 to the size of the vocabulary minus 1, and stands for a sequence of bytes. There are three
 * kinds of tokenizer: `bytes` (one token per byte), `chars` (one token per distinct byte of some text, in the order of
 * their values, like nanoGPT's characters) and `bpe`, GPT-2's byte-level byte-pair encoding. Text is any sequence of
 * bytes; decoding what was encoded gives the same bytes.
 *
 * With `bpe`, UTF-8 text gives the same tokens as Hugging Face's tokenizers. Bytes that are not valid UTF-8, which
 * those never see, count as characters of their own that are neither letters, numbers nor white space. */
#ifndef DSC_TOKENS_H
#define DSC_TOKENS_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizers ---- */

/* A tokenizer never changes after its creation: any number of threads may use it at once. */
typedef struct dsc_tokenizer dsc_tokenizer;

/* Creates a tokenizer with 256 tokens, one for each byte. As with the functions below, the caller destroys it with
 * dsc_tokenizer_destroy. */
DSC_API dsc_status dsc_tokenizer_bytes(dsc_tokenizer **out) DSC_MUST_CHECK;
/* Creates a tokenizer with one token for each distinct byte of text[bytes], in the order of their values. The text must
 * have at least one byte. */
DSC_API dsc_status dsc_tokenizer_chars(const void *text, int64_t bytes, dsc_tokenizer **out) DSC_MUST_CHECK;
/* The same for the text of paths[count], which are files, and folders, all of whose files are read. */
DSC_API dsc_status dsc_tokenizer_chars_of_files(const char *const *paths, int64_t count,
                                                dsc_tokenizer **out) DSC_MUST_CHECK;
/* Creates the tokenizer of GPT-2's byte-pair encoding from the paths of its two files: `vocab` (vocab.json), an object
 * with the number of each token, and `merges` (merges.txt), one pair of tokens per line, in the order in which pairs
 * are merged. */
DSC_API dsc_status dsc_tokenizer_bpe(const char *vocab, const char *merges,
                                     dsc_tokenizer **out) DSC_MUST_CHECK;
/* Creates the tokenizer that the file of tokens `path` was made with, according to the file tokens.json beside it.
 * DSC_E_NOT_FOUND if there is no such file. */
DSC_API dsc_status dsc_tokenizer_of_file(const char *path, dsc_tokenizer **out) DSC_MUST_CHECK;
/* Destroys a tokenizer and sets *tokenizer to NULL. Accepts NULL and *tokenizer == NULL. */
DSC_API void dsc_tokenizer_destroy(dsc_tokenizer **tokenizer);

/* Returns "bytes", "chars" or "bpe", a static string. */
DSC_API const char *dsc_tokenizer_kind(const dsc_tokenizer *tokenizer);
/* Returns the number of tokens in the vocabulary. */
DSC_API int64_t dsc_tokenizer_vocabulary(const dsc_tokenizer *tokenizer);
/* Returns the token <|endoftext|>; -1 if the vocabulary has none. */
DSC_API int32_t dsc_tokenizer_end_of_text(const dsc_tokenizer *tokenizer);
/* Returns the bytes that a token stands for, which belong to the tokenizer, and writes their number to *bytes; NULL if
 * there is no such token. */
DSC_API const uint8_t *dsc_tokenizer_token(const dsc_tokenizer *tokenizer, int32_t token, int64_t *bytes);

enum {
    DSC_ENCODE_SPECIAL =
        1 /* "<|endoftext|>" in the text becomes the token of this name, where there is one */
};

/* Encodes text[bytes]: writes the tokens to `tokens` and their number to *count. `tokens` must have room for as many
 * tokens as there are bytes, which is the most there can be. `flags`: 0 or DSC_ENCODE_SPECIAL. DSC_E_INVALID if the
 * text has a byte that a tokenizer of kind `chars` does not know. */
DSC_API dsc_status dsc_tokenizer_encode(const dsc_tokenizer *tokenizer, const void *text, int64_t bytes,
                                        unsigned flags, int32_t *tokens, int64_t *count) DSC_MUST_CHECK;
/* Writes the text of tokens[count] to text[capacity], without a final zero, and its length to *bytes. If text is NULL,
 * only the length is computed. DSC_E_INVALID if a token is not in the vocabulary, or if the text does not fit. */
DSC_API dsc_status dsc_tokenizer_decode(const dsc_tokenizer *tokenizer, const int32_t *tokens, int64_t count,
                                        void *text, int64_t capacity, int64_t *bytes) DSC_MUST_CHECK;

/* ---- files of tokens ---- */

typedef enum dsc_token_format {
    DSC_TOKENS_UINT16, /* nothing but tokens of 16 bits each, little-endian: nanoGPT's files */
    DSC_TOKENS_UINT32, /* the same with 32 bits */
    DSC_TOKENS_LLMC /* llm.c's: 256 numbers of 32 bits (20240520, 1, token count, 0 ...), then 16 bits each */
} dsc_token_format;

/* A file of tokens, mapped into memory. Any number of threads may read it at once. */
typedef struct dsc_token_file dsc_token_file;

typedef struct dsc_token_file_options {
    size_t size;
    /* 1: the file has no header, and its tokens have 32 bits; default 0. Not needed if a tokens.json describes the
     * file. */
    int uint32;
    /* The size of the vocabulary that tokens must be below; 0 (default): that in the tokens.json beside the file, or no
     * limit if there is none. DSC_E_INVALID if tokens.json says another size. */
    int64_t vocabulary;
} dsc_token_file_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_token_file_options_init_sized(dsc_token_file_options *options, size_t size);
#define dsc_token_file_options_init(options) dsc_token_file_options_init_sized((options), sizeof *(options))

/* Opens a file, which the caller closes with dsc_token_file_close. options may be NULL: the defaults. DSC_E_FORMAT if
 * the size of the file is wrong for its format, or differs from what tokens.json says. The file must not be truncated
 * while it is open. */
DSC_API dsc_status dsc_token_file_open(const char *path, const dsc_token_file_options *options,
                                       dsc_token_file **out) DSC_MUST_CHECK;
/* Closes a file and sets *file to NULL. Accepts NULL and *file == NULL. */
DSC_API void dsc_token_file_close(dsc_token_file **file);
/* Returns the number of tokens in the file. */
DSC_API int64_t dsc_token_file_count(const dsc_token_file *file);
/* Returns the size of the vocabulary; 0: unknown. */
DSC_API int64_t dsc_token_file_vocabulary(const dsc_token_file *file);
/* Returns the number of bytes of text that the tokens stand for; 0: unknown. */
DSC_API int64_t dsc_token_file_text_bytes(const dsc_token_file *file);
/* Returns the format of the file. */
DSC_API dsc_token_format dsc_token_file_format(const dsc_token_file *file);
/* Copies the tokens first .. first + count - 1 to tokens[count]. DSC_E_FORMAT if one is not below the size of the
 * vocabulary. */
DSC_API dsc_status dsc_token_file_read(const dsc_token_file *file, int64_t first, int64_t count,
                                       int32_t *tokens) DSC_MUST_CHECK;

/* A file of tokens that is being written, under a temporary name until it is complete. */
typedef struct dsc_token_writer dsc_token_writer;

/* Creates a file of tokens. The caller frees *out with dsc_token_writer_destroy. */
DSC_API dsc_status dsc_token_writer_create(const char *path, dsc_token_format format,
                                           dsc_token_writer **out) DSC_MUST_CHECK;
/* Appends tokens[count]. DSC_E_INVALID if the format cannot represent a token. */
DSC_API dsc_status dsc_token_writer_append(dsc_token_writer *writer, const int32_t *tokens,
                                           int64_t count) DSC_MUST_CHECK;
/* Completes the file and renames it to `path`, replacing an older file. */
DSC_API dsc_status dsc_token_writer_commit(dsc_token_writer *writer) DSC_MUST_CHECK;
/* Frees a writer and sets *writer to NULL; removes the file unless it was committed. Accepts NULL and
 * *writer == NULL. */
DSC_API void dsc_token_writer_destroy(dsc_token_writer **writer);

/* ---- files of text into files of tokens ---- */

/* The progress of dsc_tokenize. */
typedef struct dsc_tokenize_progress {
    int64_t bytes_done, bytes_total;
    int64_t tokens; /* so far */
} dsc_tokenize_progress;

typedef struct dsc_tokenize_options {
    size_t size;
    double val_split; /* this fraction, the end of the text, becomes val.bin; 0: no val.bin. Default 0.1 */
    dsc_token_format format; /* UINT16 (default) becomes UINT32 if the vocabulary needs it */
    unsigned flags;          /* those of dsc_tokenizer_encode */
    int end_of_text;         /* 1: the token <|endoftext|> is appended to the text of every file */
    int overwrite;           /* 1: the files of an earlier call are replaced */
    int threads;             /* threads that encode; default 1. Their number does not change the result */
    /* Called now and then in the calling thread; a result other than 0 ends the work with DSC_E_INTERRUPTED. May be
     * NULL. */
    int (*progress)(void *context, const dsc_tokenize_progress *progress);
    void *context; /* passed to progress */
} dsc_tokenize_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_tokenize_options_init_sized(dsc_tokenize_options *options, size_t size);
#define dsc_tokenize_options_init(options) dsc_tokenize_options_init_sized((options), sizeof *(options))

/* The caller sets `size` to sizeof(dsc_tokenize_result). */
typedef struct dsc_tokenize_result {
    size_t size;
    int64_t files; /* the number of text files read */
    int64_t train_bytes, train_tokens;
    int64_t val_bytes, val_tokens;
} dsc_tokenize_result;

/* Encodes the text of paths[count] in the order given. They are files, and folders, all of whose files are read, sorted
 * by name and without hidden ones. Writes train.bin, val.bin and tokens.json, which describes them, to the directory
 * `out`; with `bpe` also copies of vocab.json and merges.txt. The files appear when everything is done, tokens.json
 * last. options may be NULL: the defaults. result may be NULL. */
DSC_API dsc_status dsc_tokenize(const dsc_tokenizer *tokenizer, const char *const *paths, int64_t count,
                                const char *out, const dsc_tokenize_options *options,
                                dsc_tokenize_result *result) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

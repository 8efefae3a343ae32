/* Text as tokens: tokenizers, files of tokens, and making such files of text.
 *
 * A token is a number from 0 to the size of the vocabulary less 1, and stands for a sequence of bytes. Three kinds of
 * tokenizer are there: `bytes` (a token per byte), `chars` (a token per distinct byte of some text, in their order: the
 * characters of nanoGPT) and `bpe`, GPT-2's byte-level byte-pair encoding. Text is any sequence of bytes; decoding what
 * was encoded gives the same bytes.
 *
 * With `bpe`, text that is UTF-8 gives the tokens of Hugging Face's tokenizers. Bytes that are not UTF-8, which they
 * never see, count as characters of their own that are neither letter, number nor white space. */
#ifndef DSC_TOKENS_H
#define DSC_TOKENS_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizers ---- */

/* Constant after it was made: any number of threads may use it at once. */
typedef struct dsc_tokenizer dsc_tokenizer;

/* 256 tokens, the bytes. */
DSC_API dsc_status dsc_tokenizer_bytes(dsc_tokenizer **out) DSC_MUST_CHECK;
/* The distinct bytes of a text, in the order of their values; at least one. */
DSC_API dsc_status dsc_tokenizer_chars(const void *text, int64_t bytes, dsc_tokenizer **out) DSC_MUST_CHECK;
/* The same for the text of files, and of all files in folders. */
DSC_API dsc_status dsc_tokenizer_chars_of_files(const char *const *paths, int64_t count,
                                                dsc_tokenizer **out) DSC_MUST_CHECK;
/* GPT-2's byte-pair encoding from its two files: `vocab` (vocab.json), an object with the number of each token, and
 * `merges` (merges.txt), a pair of tokens per line, the first to be merged first. */
DSC_API dsc_status dsc_tokenizer_bpe(const char *vocab, const char *merges,
                                     dsc_tokenizer **out) DSC_MUST_CHECK;
/* The tokenizer that the file of tokens `path` was made with, as the file tokens.json beside it says.
 * DSC_E_NOT_FOUND when there is none. */
DSC_API dsc_status dsc_tokenizer_of_file(const char *path, dsc_tokenizer **out) DSC_MUST_CHECK;
DSC_API void dsc_tokenizer_destroy(dsc_tokenizer **tokenizer);

/* "bytes", "chars" or "bpe". */
DSC_API const char *dsc_tokenizer_kind(const dsc_tokenizer *tokenizer);
/* The number of tokens. */
DSC_API int64_t dsc_tokenizer_vocabulary(const dsc_tokenizer *tokenizer);
/* The token <|endoftext|>; -1: the vocabulary has none. */
DSC_API int32_t dsc_tokenizer_end_of_text(const dsc_tokenizer *tokenizer);
/* The bytes that a token stands for, owned by the tokenizer; NULL when there is no such token. */
DSC_API const uint8_t *dsc_tokenizer_token(const dsc_tokenizer *tokenizer, int32_t token, int64_t *bytes);

enum {
    DSC_ENCODE_SPECIAL =
        1 /* "<|endoftext|>" in the text becomes the token of this name, where there is one */
};

/* Encodes `bytes` bytes of text. `tokens` has room for as many tokens as there are bytes, which is the most there can
 * be. `flags`: 0 or DSC_ENCODE_SPECIAL. Fails with DSC_E_INVALID on a byte that `chars` does not have. */
DSC_API dsc_status dsc_tokenizer_encode(const dsc_tokenizer *tokenizer, const void *text, int64_t bytes,
                                        unsigned flags, int32_t *tokens, int64_t *count) DSC_MUST_CHECK;
/* Writes the text of tokens to text[capacity] and its length to *bytes. With text NULL only the length is computed.
 * DSC_E_INVALID when a token is not in the vocabulary, or when the text does not fit. */
DSC_API dsc_status dsc_tokenizer_decode(const dsc_tokenizer *tokenizer, const int32_t *tokens, int64_t count,
                                        void *text, int64_t capacity, int64_t *bytes) DSC_MUST_CHECK;

/* ---- files of tokens ---- */

typedef enum dsc_token_format {
    DSC_TOKENS_UINT16, /* nothing but tokens, 16 bits each, the low byte first: nanoGPT's files */
    DSC_TOKENS_UINT32, /* the same with 32 bits */
    DSC_TOKENS_LLMC /* llm.c's: 256 numbers of 32 bits (20240520, 1, how many tokens, 0 ...), then 16 bits each */
} dsc_token_format;

/* A file of tokens, mapped into memory. Any number of threads may read it at once. */
typedef struct dsc_token_file dsc_token_file;

typedef struct dsc_token_file_options {
    size_t size;
    /* 1: the file has no header, and its tokens have 32 bits. A file that tokens.json describes needs no hint. */
    int uint32;
    /* Size of the vocabulary that tokens are compared with; 0: that of tokens.json beside the file, if it is there,
     * else any. DSC_E_INVALID when tokens.json has another. */
    int64_t vocabulary;
} dsc_token_file_options;

DSC_API void dsc_token_file_options_init_sized(dsc_token_file_options *options, size_t size);
#define dsc_token_file_options_init(options) dsc_token_file_options_init_sized((options), sizeof *(options))

/* Opens a file; options NULL: the defaults. DSC_E_FORMAT when its size is wrong for its format, or differs from what
 * tokens.json says. The file must not become shorter while it is open. */
DSC_API dsc_status dsc_token_file_open(const char *path, const dsc_token_file_options *options,
                                       dsc_token_file **out) DSC_MUST_CHECK;
DSC_API void dsc_token_file_close(dsc_token_file **file);
DSC_API int64_t dsc_token_file_count(const dsc_token_file *file);
/* Size of the vocabulary; 0: unknown. */
DSC_API int64_t dsc_token_file_vocabulary(const dsc_token_file *file);
/* How many bytes of text the tokens stand for; 0: unknown. */
DSC_API int64_t dsc_token_file_text_bytes(const dsc_token_file *file);
DSC_API dsc_token_format dsc_token_file_format(const dsc_token_file *file);
/* Copies tokens [first, first + count). DSC_E_FORMAT when one is not below the vocabulary's size. */
DSC_API dsc_status dsc_token_file_read(const dsc_token_file *file, int64_t first, int64_t count,
                                       int32_t *tokens) DSC_MUST_CHECK;

/* A file of tokens that is being written, under a temporary name until it is complete. */
typedef struct dsc_token_writer dsc_token_writer;

DSC_API dsc_status dsc_token_writer_create(const char *path, dsc_token_format format,
                                           dsc_token_writer **out) DSC_MUST_CHECK;
/* DSC_E_INVALID for a token that the format cannot hold. */
DSC_API dsc_status dsc_token_writer_append(dsc_token_writer *writer, const int32_t *tokens,
                                           int64_t count) DSC_MUST_CHECK;
/* Completes the file and gives it its name, replacing an older one. */
DSC_API dsc_status dsc_token_writer_commit(dsc_token_writer *writer) DSC_MUST_CHECK;
/* Removes the file unless it was committed. */
DSC_API void dsc_token_writer_destroy(dsc_token_writer **writer);

/* ---- files of text into files of tokens ---- */

/* How far dsc_tokenize is. */
typedef struct dsc_tokenize_progress {
    int64_t bytes_done, bytes_total;
    int64_t tokens; /* so far */
} dsc_tokenize_progress;

typedef struct dsc_tokenize_options {
    size_t size;
    double val_split; /* this fraction of the text, its end, becomes val.bin; 0: there is none. Default 0.1 */
    dsc_token_format format; /* UINT16 becomes UINT32 when the vocabulary needs it */
    unsigned flags;          /* of dsc_tokenizer_encode */
    int end_of_text;         /* 1: the token <|endoftext|> follows the text of every file */
    int overwrite;           /* 1: replaces the files of an earlier call */
    int threads;             /* that encode; default 1. The result is the same for every number */
    /* Called by the calling thread now and then; a result other than 0 ends the work with DSC_E_INTERRUPTED. */
    int (*progress)(void *context, const dsc_tokenize_progress *progress);
    void *context;
} dsc_tokenize_options;

DSC_API void dsc_tokenize_options_init_sized(dsc_tokenize_options *options, size_t size);
#define dsc_tokenize_options_init(options) dsc_tokenize_options_init_sized((options), sizeof *(options))

/* The caller sets `size` to sizeof(dsc_tokenize_result). */
typedef struct dsc_tokenize_result {
    size_t size;
    int64_t files; /* of text */
    int64_t train_bytes, train_tokens;
    int64_t val_bytes, val_tokens;
} dsc_tokenize_result;

/* Encodes the text of files, and of all files in folders (sorted by name, without hidden ones), in the order given, and
 * writes train.bin, val.bin and tokens.json, which describes them, to the directory `out`; with `bpe` also copies of
 * vocab.json and merges.txt. The files appear when all is done, tokens.json last. result NULL: none. */
DSC_API dsc_status dsc_tokenize(const dsc_tokenizer *tokenizer, const char *const *paths, int64_t count,
                                const char *out, const dsc_tokenize_options *options,
                                dsc_tokenize_result *result) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

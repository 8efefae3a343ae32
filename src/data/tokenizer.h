/* Declarations that the source files of the tokenizers share. */
#ifndef DSC_DATA_TOKENIZER_H
#define DSC_DATA_TOKENIZER_H

#include "data/unicode_classes.h"
#include "descent/tokens.h"

/* The name of the file that describes the files of tokens beside it, and those of the copied vocabulary. */
#define DSC_TOKENS_JSON "tokens.json"
#define DSC_VOCAB_JSON  "vocab.json"
#define DSC_MERGES_TXT  "merges.txt"
#define DSC_END_OF_TEXT "<|endoftext|>"

/* A pair of tokens that is merged. The table of them is an open hash. */
typedef struct dsc_merge {
    int32_t left, right; /* left -1: an empty place */
    int32_t rank;        /* low ranks are merged first */
    int32_t whole;       /* the token of both together */
} dsc_merge;

typedef struct dsc_bpe {
    dsc_merge *merges; /* [mask + 1] */
    uint32_t mask;
    int32_t byte_token[256];
    int64_t made,
        unmade; /* tokens that a merge makes; tokens that consist of two others, but that none makes */
    char *vocab_text, *merges_text; /* the contents of the two files */
    char *vocab_path, *merges_path; /* NULL: it was not read from files */
} dsc_bpe;

struct dsc_tokenizer {
    const char *kind;
    int64_t vocabulary;
    int32_t end_of_text; /* -1: none */
    int64_t *offset;     /* [vocabulary + 1]: token i is bytes[offset[i] .. offset[i + 1]) */
    uint8_t *bytes;
    int32_t token_of[256]; /* by byte, for the kinds bytes and chars; -1: none */
    dsc_bpe *bpe;          /* NULL: another kind */
};

/* Reads both files into `tokenizer`, which is zeroed. */
dsc_status dsc_bpe_read(const char *vocab, const char *merges, dsc_tokenizer *tokenizer) DSC_MUST_CHECK;
/* The same for the text of both files; messages call them vocab.json and merges.txt. */
dsc_status dsc_bpe_parse(const char *vocab, const char *merges, dsc_tokenizer *tokenizer) DSC_MUST_CHECK;
void dsc_bpe_destroy(dsc_bpe **bpe);
/* The place in the table where this pair is, or would be. */
static inline uint32_t dsc_merge_place(const dsc_bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t at = (uint32_t)(key * 0x9E3779B97F4A7C15u >> 32) & bpe->mask;
    while (bpe->merges[at].left >= 0 && (bpe->merges[at].left != left || bpe->merges[at].right != right))
        at = (at + 1) & bpe->mask;
    return at;
}

/* 1 when every token stands for the same bytes in both. */
int dsc_tokenizer_is_same(const dsc_tokenizer *a, const dsc_tokenizer *b);

/* ---- words ---- */

/* The character at text[0], of `left` > 0 bytes: returns its length in bytes and sets its class. A byte that begins no
 * valid UTF-8 is a character of one byte and of class other. */
int dsc_utf8_next(const uint8_t *text, int64_t left, dsc_char_class *kind);
/* The length of the first match of GPT-2's pattern in text[0 .. left), left > 0. */
int64_t dsc_word_length(const uint8_t *text, int64_t left);
/* The last place in (0, bytes) where the text can be cut without changing its tokens, that is where white space follows
 * something else; 0: there is none. */
int64_t dsc_last_cut(const uint8_t *text, int64_t bytes);
/* 1 when `at`, inside the text, is such a place. */
int dsc_is_cut(const uint8_t *text, int64_t bytes, int64_t at);

struct dsc_path_list;
/* Fails with the message that none of the files in the list contains text. */
dsc_status dsc_fail_no_text(const struct dsc_path_list *list) DSC_MUST_CHECK;

/* ---- encoding with reused memory ---- */

/* Memory for encoding and a cache of words. */
typedef struct dsc_encoder dsc_encoder;

/* `cached` 1: with the cache, which pays for long texts. The tokenizer must outlive the encoder. */
dsc_status dsc_encoder_create(const dsc_tokenizer *tokenizer, int cached, dsc_encoder **out) DSC_MUST_CHECK;
void dsc_encoder_destroy(dsc_encoder **encoder);
/* dsc_tokenizer_encode; not to be called by two threads at once. */
dsc_status dsc_encoder_run(dsc_encoder *encoder, const uint8_t *text, int64_t bytes, unsigned flags,
                           int32_t *tokens, int64_t *count) DSC_MUST_CHECK;

/* ---- the directory that dsc_tokenize writes ---- */

/* Completes the file under its temporary name, so that a commit has nothing left to write. */
dsc_status dsc_token_writer_finish(dsc_token_writer *writer) DSC_MUST_CHECK;

typedef struct dsc_token_folder dsc_token_folder;

/* Makes the directory; refuses one that has such files already, unless `overwrite` is 1. `val` 1: with a val.bin. The
 * tokenizer must outlive it. */
dsc_status dsc_token_folder_open(const char *path, const dsc_tokenizer *tokenizer, dsc_token_format format,
                                 int val, int overwrite, dsc_token_folder **out) DSC_MUST_CHECK;
/* The writers of train.bin and val.bin (NULL: there is none); they stay the folder's. */
void dsc_token_folder_writers(const dsc_token_folder *folder, dsc_token_writer *writers[2]);
/* Gives all files their names, tokens.json last. `result` and `sources` are written into tokens.json. */
dsc_status dsc_token_folder_commit(dsc_token_folder *folder, const dsc_tokenize_result *result,
                                   const char *const *sources, int64_t count) DSC_MUST_CHECK;
/* Removes what was not committed. */
void dsc_token_folder_close(dsc_token_folder **folder);

/* ---- descriptions ---- */

struct json_t;
enum { DSC_TOKENS_JSON_VERSION = 1, DSC_JSON_VALUE = 48 };
/* A value of a description for messages, cut off where it is long; "missing" for NULL. Returns `text`. */
char *dsc_json_value_text(const struct json_t *value, char text[DSC_JSON_VALUE]);
/* An object with the keys kind, vocabulary and, for chars, characters; NULL when there is no memory. */
struct json_t *dsc_tokenizer_json(const dsc_tokenizer *tokenizer);
/* Makes a tokenizer from the text of such an object and, for bpe, of its two files, which are NULL for other kinds.
 * DSC_E_FORMAT when they are not valid. */
dsc_status dsc_tokenizer_of_text(const char *json, const char *vocab, const char *merges,
                                 dsc_tokenizer **out) DSC_MUST_CHECK;
/* Reads the tokens.json beside the file `path`. *out, which the caller releases, is NULL when there is none, or when
 * it does not name that file. DSC_E_FORMAT where version, format or the list of files is not what descent tokenize
 * writes. */
dsc_status dsc_tokens_json_read(const char *path, struct json_t **out) DSC_MUST_CHECK;

#endif

/* Data sets of token sequences, for language models.
 *
 * A sample is T tokens (h = T, w = 1, c = 1; their numbers as floats) of a longer row of tokens, and its labels are
 * the tokens that follow each of them. Windows lie next to each other: sample i begins at token offset + i T. In
 * training the offset, 0 to T - 1, is another one in every epoch, so that every token comes at every place of a
 * window. */
#ifndef DSC_DATA_SEQUENCES_H
#define DSC_DATA_SEQUENCES_H

#include "data/dataset.h"
#include "data/tokenizer.h"

/* The row of tokens that the samples are cut from: a part of a file of tokens, which stays mapped, or text with a token
 * for each byte. */
typedef struct dsc_token_source {
    dsc_token_file *file; /* NULL: text */
    int64_t first;        /* index of the first token in the file */
    uint8_t *text;        /* [count] */
    int64_t count;        /* tokens */
    int64_t whole; /* tokens of both splits together, where they are parts of one row; 0: they are not */
    dsc_tokenizer *tokenizer; /* NULL: unknown; needed for text */
    int64_t vocabulary;
    double bytes_per_token; /* 0: unknown */
} dsc_token_source;

void dsc_token_source_free(dsc_token_source *source);

/* Where the part for `split` lies when the last `share` of `count` tokens is for validation. */
void dsc_token_source_divide(int64_t count, double share, dsc_split split, int64_t *first,
                             int64_t *part_count);

/* A data set of the tokens of `source`. On success it takes over the contents of `source`, which is empty then. `kind`
 * and `path` are for messages. */
dsc_status dsc_sequences_create(dsc_token_source *source, const char *kind, const char *path, dsc_split split,
                                const dsc_data_options *options, dsc_dataset **out) DSC_MUST_CHECK;

/* The number of tokens before the first window of an epoch: 0 to context - 1. */
int64_t dsc_sequences_offset(uint64_t seed, int64_t epoch, int64_t context);

#endif

/* Using a model of sequences: text that goes on after a prompt. */
#ifndef DSC_GENERATE_H
#define DSC_GENERATE_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number or word by itself in a comment is the default. */
typedef struct dsc_generate_options {
    size_t size;
    const char *checkpoint; /* a model file, or DIR[:best|:latest|:STEP] (dsc_checkpoint_read_info) */
    const char *model;      /* NULL: as the checkpoint says */
    /* The data whose tokenizer is used, as for dsc_dataset_open. NULL: the tokenizer that the checkpoint holds, or, where
     * it holds none, that of the data it names, or, where it names none, that of the files vocab.json and merges.txt
     * beside it. */
    const char *data;
    /* NULL: the token that ends a text, where the tokenizer has one, or else a line feed, or else the first token. */
    const char *prompt;
    int64_t tokens;     /* to generate, 200 */
    double temperature; /* 1: logits are divided by it; 0: always the most probable token */
    int64_t top_k;      /* 0: all; only the k most probable tokens are drawn */
    double top_p;  /* 1: all; only the most probable tokens are drawn that together have this probability */
    uint64_t seed; /* 42 */
    /* 1: generating ends with the token that ends a text; 0. */
    int stop_at_end;
} dsc_generate_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_generate_options_init_sized(dsc_generate_options *options, size_t size);
#define dsc_generate_options_init(options) dsc_generate_options_init_sized((options), sizeof *(options))

/* Gets the bytes of a new token, which may be a part of a character. A result other than 0 ends the generation. */
typedef int (*dsc_text_function)(void *context, const void *bytes, int64_t count);

/* The caller sets `size` to sizeof(dsc_generate_result). */
typedef struct dsc_generate_result {
    size_t size;
    int64_t prompt_tokens, tokens; /* of the prompt; generated */
    double seconds;                /* for both, without loading the model */
} dsc_generate_result;

/* Generates text: token after token is drawn from the model's distribution, given the tokens before it. Keys and values
 * of attention are kept, so that a token costs one position. When the model's context is full, its second half becomes
 * the new beginning. The same seed gives the same text on the same kind of device. `result` may be NULL. Blocks. */
DSC_API dsc_status dsc_generate_run(dsc_device *device, const dsc_generate_options *options,
                                    dsc_text_function function, void *context,
                                    dsc_generate_result *result) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

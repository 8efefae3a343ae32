/* Using a model of sequences: generating text that continues a prompt. */
#ifndef DSC_GENERATE_H
#define DSC_GENERATE_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A number by itself in a comment is the default; pointers are NULL by default. */
typedef struct dsc_generate_options {
    size_t size;
    const char *checkpoint; /* a model file, or DIR[:best|:latest|:STEP] (dsc_checkpoint_read_info) */
    const char *model;      /* the name of the model; NULL: as the checkpoint says */
    /* The data whose tokenizer is used, a spec for dsc_dataset_open. NULL: the tokenizer stored in the checkpoint; if
     * there is none, that of the data the checkpoint names; if it names none, that of the files vocab.json and
     * merges.txt beside it. */
    const char *data;
    /* NULL: the token that ends a text if the tokenizer has one, or else a line feed, or else the first token. */
    const char *prompt;
    int64_t tokens;     /* the number of tokens to generate, 200 */
    double temperature; /* logits are divided by this, 1; 0: always the most probable token */
    int64_t top_k;      /* only the k most probable tokens can be drawn; 0 (default): all */
    double top_p;  /* only the most probable tokens with together this probability can be drawn; 1: all */
    uint64_t seed; /* 42 */
    /* 1: generation ends after the token that ends a text; 0 (default): it goes on. */
    int stop_at_end;
} dsc_generate_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_generate_options_init_sized(dsc_generate_options *options, size_t size);
#define dsc_generate_options_init(options) dsc_generate_options_init_sized((options), sizeof *(options))

/* Receives the bytes of a new token, which may be only part of a character. A result other than 0 ends generation. */
typedef int (*dsc_text_function)(void *context, const void *bytes, int64_t count);

/* The caller sets `size` to sizeof(dsc_generate_result). */
typedef struct dsc_generate_result {
    size_t size;
    int64_t prompt_tokens, tokens; /* the number of tokens in the prompt, and of generated ones */
    double seconds;                /* for both, without loading the model */
} dsc_generate_result;

/* Generates text: each token is drawn from the model's distribution given the tokens before it, and passed to
 * `function` with `context`; `function` may be NULL. The keys and values of attention are cached, so that a token costs
 * one position. When the model's context is full, its second half becomes the new beginning. The same seed gives the
 * same text on the same kind of device. `result` may be NULL. Blocks. */
DSC_API dsc_status dsc_generate_run(dsc_device *device, const dsc_generate_options *options,
                                    dsc_text_function function, void *context,
                                    dsc_generate_result *result) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

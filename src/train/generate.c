/* Text by a model of sequences.
 *
 * The next token is drawn from softmax(logits / temperature), cut to the top_k most probable tokens and then to the
 * most probable ones that together have the probability top_p. Its random number is a pure function of the seed and
 * of the number of the token. */
#include "descent/generate.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/rng.h"
#include "base/versioned.h"
#include "data/dataset.h"
#include "data/files.h"
#include "data/tokenizer.h"
#include "descent/checkpoint.h"
#include "descent/model.h"
#include "descent/options.h"
#include "descent/tokens.h"
#include "device/scope.h"
#include "train/statedict.h"
#include "train/stored_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- options ---- */

#define AT(member) offsetof(dsc_generate_options, member)
static const dsc_option table[] = {
    {.name = "checkpoint",
     .kind = DSC_OPTION_STRING,
     .offset = AT(checkpoint),
     .placeholder = "FILE|DIR[:best|:latest|:STEP]",
     .default_text = "",
     .help =
         "a model file, or the directory of a run and which of its checkpoints; latest unless it is given",
     .group = "What to use"},
    {.name = "model",
     .kind = DSC_OPTION_STRING,
     .offset = AT(model),
     .placeholder = "NAME",
     .default_text = "what the checkpoint says",
     .help = "model of the zoo"},
    {.name = "data",
     .kind = DSC_OPTION_STRING,
     .offset = AT(data),
     .placeholder = "SPEC",
     .default_text = "the checkpoint's own tokenizer",
     .help = "text:PATH or tokens:DIR, whose tokenizer is used"},
    {.name = "prompt",
     .kind = DSC_OPTION_STRING,
     .offset = AT(prompt),
     .placeholder = "TEXT",
     .default_text = "the end of a text, a line feed, or the first token",
     .help = "text to go on with",
     .group = "What to write"},
    {.name = "tokens",
     .kind = DSC_OPTION_INT64,
     .offset = AT(tokens),
     .value = "200",
     .placeholder = "N",
     .range = "[0, 1e12]",
     .help = "tokens to generate"},
    {.name = "temperature",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(temperature),
     .value = "1",
     .placeholder = "X",
     .range = "[0, 1000]",
     .help = "number that logits are divided by; 0: always the most probable token"},
    {.name = "top-k",
     .kind = DSC_OPTION_INT64,
     .offset = AT(top_k),
     .value = "0",
     .placeholder = "K",
     .range = "[0, 1e9]",
     .default_text = "all",
     .help = "draw among the K most probable tokens"},
    {.name = "top-p",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(top_p),
     .value = "1",
     .placeholder = "P",
     .range = "(0, 1]",
     .help = "draw among the most probable tokens that together have the probability P"},
    {.name = "seed",
     .kind = DSC_OPTION_UINT64,
     .offset = AT(seed),
     .value = "42",
     .placeholder = "N",
     .help = "seed of the draws"},
    {.name = "stop-at-end",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(stop_at_end),
     .help = "end with the token that ends a text"},
    {.name = NULL},
};
#undef AT

const dsc_option *dsc_generate_option_table(void) {
    return table;
}

void dsc_generate_options_init_sized(dsc_generate_options *options, size_t size) {
    dsc_generate_options defaults = {0};
    dsc_option_defaults(table, &defaults);
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* ---- what a run needs ---- */

/* A token and its probability. */
typedef struct candidate {
    double probability;
    int32_t token;
} candidate;

typedef struct session {
    dsc_generate_options options;
    dsc_device *device;
    dsc_queue *queue;
    dsc_st_reader *reader;
    dsc_model_facts facts;
    dsc_tokenizer *own; /* that of the checkpoint; NULL: none, or it is not used */
    dsc_dataset *set;   /* whose tokenizer is used instead; NULL: none */
    const dsc_tokenizer *tokenizer;
    dsc_model *model;
    dsc_exec *exec;
    dsc_tensor x; /* the token */
    int64_t context, vocabulary;
    int64_t position;      /* of the next token in the context */
    int32_t *window;       /* [context]: the tokens of the positions so far */
    float *logits;         /* [vocabulary] */
    candidate *candidates; /* [vocabulary] */
} session;

static void close_session(session *s) {
    dsc_tensor_free(&s->x);
    dsc_exec_destroy(&s->exec);
    dsc_model_destroy(&s->model);
    dsc_dataset_close(&s->set);
    dsc_tokenizer_destroy(&s->own);
    dsc_queue_destroy(&s->queue);
    dsc_st_close(&s->reader);
    dsc_memory_free(&s->window);
    dsc_memory_free(&s->logits);
    dsc_memory_free(&s->candidates);
}

static dsc_status read_options(const dsc_generate_options *given, dsc_generate_options *out) {
    dsc_generate_options_init(out);
    DSC_TRY(dsc_versioned_read("generate", given, sizeof *out, out));
    if (!out->checkpoint)
        return DSC_FAIL(DSC_E_INVALID, "checkpoint may not be NULL");
    return dsc_option_check_values(table, out, "");
}

/* The tokenizer of the files vocab.json and merges.txt beside the model's file, if both exist, as in a folder of the
 * Hugging Face hub. */
static dsc_status read_beside(session *s) {
    const char *path = dsc_st_path(s->reader);
    char folder[DSC_DATA_SIZE], *vocab = NULL, *merges = NULL;
    DSC_TRY(dsc_checkpoint_directory(path, folder, sizeof folder));
    dsc_status status = dsc_path_join(folder, DSC_VOCAB_JSON, &vocab);
    if (status == DSC_OK)
        status = dsc_path_join(folder, DSC_MERGES_TXT, &merges);
    if (status == DSC_OK && access(vocab, F_OK) == 0 && access(merges, F_OK) == 0)
        status = dsc_tokenizer_bpe(vocab, merges, &s->own);
    dsc_memory_free(&vocab);
    dsc_memory_free(&merges);
    return status;
}

/* A model may have more tokens than its tokenizer, never fewer. */
static dsc_status use_own(session *s) {
    int64_t tokens = dsc_tokenizer_vocabulary(s->own);
    s->tokenizer = s->own;
    s->vocabulary = s->facts.classes > 0 ? s->facts.classes : tokens;
    if (s->vocabulary < tokens)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': the model has %lld tokens, fewer than the %lld of its tokenizer",
                        dsc_st_path(s->reader), (long long)s->vocabulary, (long long)tokens);
    return DSC_OK;
}

/* The checkpoint's own tokenizer, or that of a data set, which is opened for it alone: the one that the caller names,
 * or, where older files have no tokenizer, the one that they were trained on. */
static dsc_status open_tokenizer(session *s) {
    const char *data = s->options.data ? s->options.data : s->facts.data;
    dsc_data_options options;
    if (!s->options.data)
        DSC_TRY(dsc_model_file_tokenizer(s->reader, &s->own));
    if (!s->own && !data[0])
        DSC_TRY(read_beside(s));
    if (s->own)
        return use_own(s);
    if (!data[0])
        return DSC_FAIL(DSC_E_INVALID,
                        "'%s' holds no tokenizer and does not say which data it was trained on: name the "
                        "text or the tokens with data, or put " DSC_VOCAB_JSON " and " DSC_MERGES_TXT
                        " beside it",
                        s->options.checkpoint);
    dsc_data_options_init(&options);
    options.context = 1;
    options.vocabulary = s->facts.vocabulary > 0 ? s->facts.vocabulary : 0;
    DSC_TRY(dsc_dataset_open(data, DSC_SPLIT_TRAIN, &options, &s->set));
    s->tokenizer = dsc_dataset_tokenizer(s->set);
    if (!s->tokenizer)
        return DSC_FAIL(DSC_E_INVALID,
                        "data '%s' has no tokenizer: generating text needs text:PATH, or tokens:DIR with a "
                        "tokens.json",
                        data);
    s->vocabulary = dsc_dataset_get_info(s->set).classes;
    return DSC_OK;
}

static dsc_status make_model(session *s) {
    const dsc_model_facts *f = &s->facts;
    int64_t side, channels, classes;
    DSC_TRY(dsc_zoo_default_input(f->model, &side, &channels, &classes));
    s->context = f->height > 0 ? f->height : side;
    if (f->width > 1 || f->channels > 1)
        return DSC_FAIL(DSC_E_INVALID, "model %s is one of images: it cannot generate text", f->model);
    if (f->classes > 0 && f->classes != s->vocabulary)
        return DSC_FAIL(DSC_E_INVALID,
                        "the model of '%s' has a vocabulary of %lld tokens, the tokenizer of the data one of "
                        "%lld: name the data that it was trained on",
                        s->options.checkpoint, (long long)f->classes, (long long)s->vocabulary);
    if (s->set) {
        const char *data = s->options.data ? s->options.data : f->data;
        DSC_TRY(dsc_stored_model_check_vocabulary(f, s->tokenizer, data));
        DSC_TRY(dsc_model_file_check_tokenizer(s->reader, s->tokenizer, data));
    }
    DSC_TRY(dsc_stored_model_create(s->device, f, s->context, 1, 1, s->vocabulary, &s->model));
    if (!dsc_model_takes_tokens(s->model))
        return DSC_FAIL(DSC_E_INVALID, "model %s is one of images: it cannot generate text", f->model);
    DSC_TRY(dsc_statedict_check(s->model, f->model, s->reader));
    return dsc_statedict_read(s->model, s->queue, s->reader);
}

static dsc_status open_session(session *s, const dsc_generate_options *options) {
    const int64_t one[4] = {1, 1, 1, 1};
    DSC_TRY(read_options(options, &s->options));
    DSC_TRY(dsc_queue_create(s->device, &s->queue));
    DSC_TRY(dsc_stored_model_open(s->options.checkpoint, s->options.model, &s->reader, &s->facts));
    DSC_TRY(dsc_stored_model_read_tables(s->device, s->reader, &s->facts));
    if (s->facts.mask > 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "the model of '%s' was trained to fill in masked tokens, not to predict the next one: it "
            "cannot generate text",
            s->options.checkpoint);
    DSC_TRY(open_tokenizer(s));
    DSC_TRY(make_model(s));
    DSC_TRY(dsc_exec_create_decoder(s->model, 1, &s->exec));
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_F32, 4, one, &s->x));
    DSC_TRY(dsc_memory_alloc(s->context, sizeof *s->window, &s->window));
    DSC_TRY(dsc_memory_alloc(s->vocabulary, sizeof *s->logits, &s->logits));
    return dsc_memory_alloc(s->vocabulary, sizeof *s->candidates, &s->candidates);
}

/* ---- one token ---- */

static dsc_status decode(session *s, int32_t token) {
    const float x = (float)token;
    DSC_TRY(dsc_tensor_upload(s->queue, &x, sizeof x, &s->x));
    DSC_TRY(dsc_exec_decode(s->exec, s->queue, &s->x, s->position));
    s->window[s->position++] = token;
    return DSC_OK;
}

/* Gives the model one more token. A full context goes on with its second half. */
static dsc_status push(session *s, int32_t token) {
    if (s->position == s->context) {
        int64_t kept = s->context / 2, first = s->context - kept;
        s->position = 0;
        for (int64_t i = 0; i < kept; i++)
            DSC_TRY(decode(s, s->window[first + i])); /* decode writes window[i], in the first half */
    }
    return decode(s, token);
}

static int by_probability(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->probability != y->probability)
        return x->probability < y->probability ? 1 : -1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* Turns the logits of the tokenizer's tokens into candidates, the most probable first. Returns how many of them may be
 * drawn; *sum is the sum of their probabilities, which are not normalised. */
static int64_t weigh(session *s, double *sum) {
    const dsc_generate_options *o = &s->options;
    double largest = -INFINITY, total = 0;
    int64_t count =
        dsc_tokenizer_vocabulary(s->tokenizer); /* a model may have more tokens, which have no text */
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, s->logits[i]);
    for (int64_t i = 0; i < count; i++) {
        double scaled = o->temperature > 0 ? (s->logits[i] - largest) / o->temperature : 0;
        double p = o->temperature > 0 ? exp(scaled) : s->logits[i] == largest;
        s->candidates[i] = (candidate){p, (int32_t)i};
        total += p;
    }
    qsort(s->candidates, (size_t)count, sizeof *s->candidates, by_probability);
    if (o->top_k > 0 && o->top_k < count)
        count = o->top_k;
    double kept = 0;
    for (int64_t i = 0; i < count; i++) {
        kept += s->candidates[i].probability;
        if (kept >= o->top_p * total && o->top_p < 1)
            count = i + 1;
    }
    *sum = kept;
    return count;
}

static dsc_status draw(session *s, int64_t number, int32_t *token) {
    const dsc_generate_options *o = &s->options;
    DSC_TRY(dsc_tensor_download(s->queue, dsc_exec_logits(s->exec), (size_t)s->vocabulary * sizeof *s->logits,
                                s->logits));
    DSC_TRY(dsc_queue_sync(s->queue));
    for (int64_t i = 0; i < s->vocabulary; i++)
        if (!isfinite(s->logits[i]))
            return DSC_FAIL(DSC_E_NUMERIC, "the logit of token %lld is %g: the model is damaged",
                            (long long)i, (double)s->logits[i]);
    double sum = 0;
    int64_t count = weigh(s, &sum), chosen = 0;
    dsc_rng rng = dsc_rng_start(o->seed, DSC_RNG_GENERATE, 0, (uint64_t)number);
    double left = dsc_rng_uniform(&rng) * sum;
    while (chosen < count - 1 && left >= s->candidates[chosen].probability)
        left -= s->candidates[chosen++].probability;
    *token = s->candidates[o->temperature > 0 ? chosen : 0].token;
    return DSC_OK;
}

/* ---- the whole text ---- */

/* The token that a text without a prompt begins with: the end of the text before, a line feed, or the first token. */
static int32_t first_token(const dsc_tokenizer *tokenizer) {
    int32_t token = dsc_tokenizer_end_of_text(tokenizer);
    int64_t count;
    if (token < 0 && dsc_tokenizer_encode(tokenizer, "\n", 1, 0, &token, &count) != DSC_OK)
        token = 0;
    return token;
}

/* Feeds the prompt; *count is its number of tokens. */
static dsc_status feed_prompt(session *s, int64_t *count) {
    const char *prompt = s->options.prompt;
    int32_t *tokens = NULL;
    if (!prompt || !prompt[0]) {
        *count = 1;
        return push(s, first_token(s->tokenizer));
    }
    int64_t bytes = (int64_t)strlen(prompt);
    DSC_TRY(dsc_memory_alloc(bytes, sizeof *tokens, &tokens));
    dsc_status status = dsc_tokenizer_encode(s->tokenizer, prompt, bytes, DSC_ENCODE_SPECIAL, tokens, count);
    if (status != DSC_OK)
        dsc_error_prefix(status, "the prompt (give one of characters that the model was trained on)");
    for (int64_t i = 0; i < *count && status == DSC_OK; i++)
        status = push(s, tokens[i]);
    dsc_memory_free(&tokens);
    return status;
}

static dsc_status generate(session *s, dsc_text_function function, void *context,
                           dsc_generate_result *result) {
    const dsc_generate_options *o = &s->options;
    const int32_t end = dsc_tokenizer_end_of_text(s->tokenizer);
    if (o->stop_at_end && end < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "stop-at-end: the vocabulary of '%s' has no token that ends a text; leave it out",
                        o->checkpoint);
    DSC_TRY(feed_prompt(s, &result->prompt_tokens));
    while (result->tokens < o->tokens) {
        int32_t token = 0;
        int64_t bytes = 0;
        DSC_TRY(draw(s, result->tokens, &token));
        if (o->stop_at_end && token == end)
            return DSC_OK;
        result->tokens++;
        const uint8_t *text = dsc_tokenizer_token(s->tokenizer, token, &bytes);
        if (function && function(context, text, bytes) != 0)
            return DSC_OK;
        if (result->tokens < o->tokens)
            DSC_TRY(push(s, token));
    }
    return DSC_OK;
}

dsc_status dsc_generate_run(dsc_device *device, const dsc_generate_options *options,
                            dsc_text_function function, void *context, dsc_generate_result *result) {
    session s = {.device = device};
    dsc_generate_result own = {0};
    if (result)
        DSC_TRY(dsc_versioned_check("dsc_generate_result", result, sizeof own));
    DSC_ON_DEVICE(device);
    dsc_status status = open_session(&s, options);
    double began = dsc_clock_now();
    if (status == DSC_OK)
        status = generate(&s, function, context, &own);
    own.seconds = dsc_clock_now() - began;
    close_session(&s);
    if (result)
        dsc_versioned_write(&own, result);
    return status;
}

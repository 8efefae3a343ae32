#include "data/sequences.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_CONTEXT = 256,
    MAX_CONTEXT = 1 << 24,
    MAX_VOCABULARY = 1 << 24 /* whole numbers up to here are exact as floats */
};

typedef struct sequences {
    dsc_token_source source;
    double mask; /* probability that a token is to be predicted; 0: the next token is */
    int32_t mask_token;
} sequences;

void dsc_token_source_free(dsc_token_source *source) {
    if (source->file)
        dsc_token_file_close(&source->file);
    dsc_tokenizer_destroy(&source->tokenizer);
    dsc_memory_free(&source->text);
    *source = (dsc_token_source){.file = NULL};
}

void dsc_token_source_divide(int64_t count, double share, dsc_split split, int64_t *first,
                             int64_t *part_count) {
    const int64_t train = (int64_t)((double)count * (1 - share));
    *first = split == DSC_SPLIT_TRAIN ? 0 : train;
    *part_count = split == DSC_SPLIT_TRAIN ? train : count - train;
}

/* ---- samples ---- */

int64_t dsc_sequences_offset(uint64_t seed, int64_t epoch, int64_t context) {
    dsc_rng rng = dsc_rng_start(seed, DSC_RNG_WINDOW, (uint32_t)epoch, 0);
    return dsc_rng_below(&rng, (uint32_t)context);
}

static dsc_status read_tokens(const dsc_token_source *s, int64_t first, int64_t count, int32_t *tokens) {
    if (s->file)
        return dsc_token_file_read(s->file, s->first + first, count, tokens);
    for (int64_t i = 0; i < count; i++)
        tokens[i] = s->tokenizer->token_of[s->text[first + i]];
    return DSC_OK;
}

/* The tokens that are to be predicted keep their label, all others get none. In x, 80 % of them become the mask token,
 * 10 % a token of the vocabulary, and 10 % stay (BERT). label[T] holds the tokens. */
static void mask_tokens(const sequences *s, dsc_rng *rng, int64_t context, float *x, int32_t *label) {
    for (int64_t i = 0; i < context; i++) {
        x[i] = (float)label[i];
        if (!((double)dsc_rng_uniform(rng) < s->mask)) {
            label[i] = -1;
            continue;
        }
        const uint32_t choice = dsc_rng_below(rng, 10);
        if (choice < 8)
            x[i] = (float)s->mask_token;
        else if (choice == 8)
            x[i] = (float)dsc_rng_below(rng, (uint32_t)s->source.vocabulary);
    }
}

/* The tokens of the window are read as labels, which are one token ahead, so no other memory is needed. */
static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label) {
    (void)scratch;
    const sequences *s = dataset->state;
    const int64_t context = dataset->info.h;
    const int varies = augment && dataset->split == DSC_SPLIT_TRAIN;
    const int64_t offset = varies ? dsc_sequences_offset(dataset->options.seed, epoch, context) : 0;
    const int64_t first = offset + index * context;
    if (s->mask > 0) {
        dsc_rng rng =
            dsc_rng_start(dataset->options.seed, DSC_RNG_MASK, varies ? (uint32_t)epoch : 0, (uint64_t)index);
        DSC_TRY(read_tokens(&s->source, first, context, label));
        mask_tokens(s, &rng, context, x, label);
        return DSC_OK;
    }
    DSC_TRY(read_tokens(&s->source, first, 1, label));
    x[0] = (float)label[0];
    DSC_TRY(read_tokens(&s->source, first + 1, context, label));
    for (int64_t i = 1; i < context; i++)
        x[i] = (float)label[i - 1];
    return DSC_OK;
}

static void close_set(dsc_dataset *dataset) {
    sequences *s = dataset->state;
    dsc_token_source_free(&s->source);
    dsc_memory_free(&s);
}

/* A file may hold numbers that are not in the vocabulary, which is seen when they are read. It is then the wrong
 * file, and ends a run instead of being passed over like a broken image. */
static const dsc_dataset_type sequences_type = {.close = close_set, .sample = sample};

/* ---- the data set ---- */

/* The number of samples that n tokens make: in training a whole window is kept for the offset. */
static dsc_status count_samples(const dsc_token_source *source, const char *kind, const char *path,
                                dsc_split split, int64_t context, int64_t *count) {
    const int train = split == DSC_SPLIT_TRAIN;
    const int64_t longest = train ? source->count / 2 : source->count - 1;
    *count = train ? (source->count - context) / context : (source->count - 1) / context;
    if (context <= longest)
        return DSC_OK;
    if (longest < 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: '%s' has %lld token%s for %s, too few for any sequence: take a longer text",
                        kind, path, (long long)source->count, source->count == 1 ? "" : "s",
                        train ? "training" : "validation");
    const int64_t other = source->whole - source->count - 1; /* the longest for validation, if positive */
    const int64_t most = train && other >= 1 && other < longest ? other : longest;
    return DSC_FAIL(
        DSC_E_INVALID,
        "%s: '%s' has %lld token%s for %s, too few for sequences of %lld: take a longer text, or "
        "a context of at most %lld (a batch of B sequences needs B + 1 times as many tokens for training)",
        kind, path, (long long)source->count, source->count == 1 ? "" : "s",
        train ? "training" : "validation", (long long)context, (long long)most);
}

/* Refuses a mask token that is a character of the text: the two could not be distinguished. */
static dsc_status check_mask_token(const char *kind, const dsc_data_options *o,
                                   const dsc_token_source *source) {
    const dsc_tokenizer *t = source->tokenizer;
    if (!(o->mask > 0) || o->mask_token < 0 || !t || strcmp(t->kind, "chars") != 0 ||
        o->mask_token >= t->vocabulary)
        return DSC_OK;
    const uint8_t byte = t->bytes[o->mask_token];
    char character[8];
    snprintf(character, sizeof character, byte > ' ' && byte < 0x7F ? "'%c'" : "0x%02x", (unsigned)byte);
    return DSC_FAIL(
        DSC_E_INVALID,
        "%s: mask token %lld is the character %s of the text: leave it out for a token of its own, or "
        "make the vocabulary larger than %lld and take one from %lld on",
        kind, (long long)o->mask_token, character, (long long)t->vocabulary, (long long)t->vocabulary);
}

static dsc_status check_options(const char *kind, const dsc_data_options *o, int64_t vocabulary) {
    if (o->context < 0 || o->context > MAX_CONTEXT)
        return DSC_FAIL(DSC_E_INVALID, "%s: a context of %lld tokens: must be 1 to %d, or 0 for %d", kind,
                        (long long)o->context, MAX_CONTEXT, DEFAULT_CONTEXT);
    if (!(o->mask >= 0 && o->mask <= 1))
        return DSC_FAIL(DSC_E_INVALID, "%s: mask %g: must be a probability, 0 to 1", kind, o->mask);
    if (vocabulary < 1 || vocabulary >= MAX_VOCABULARY)
        return DSC_FAIL(DSC_E_INVALID, "%s: a vocabulary of %lld tokens: must be 1 to %d", kind,
                        (long long)vocabulary, MAX_VOCABULARY - 1);
    if (o->mask_token < -1 || o->mask_token >= vocabulary)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s: mask token %lld: with a vocabulary of %lld it must be 0 to %lld, or -1 for a token of "
            "its own",
            kind, (long long)o->mask_token, (long long)vocabulary, (long long)vocabulary - 1);
    return DSC_OK;
}

dsc_status dsc_sequences_create(dsc_token_source *source, const char *kind, const char *path, dsc_split split,
                                const dsc_data_options *options, dsc_dataset **out) {
    const int64_t context = options->context > 0 ? options->context : DEFAULT_CONTEXT;
    int64_t count;
    sequences *s;
    dsc_dataset *dataset = NULL;
    DSC_TRY(check_options(kind, options, source->vocabulary));
    DSC_TRY(check_mask_token(kind, options, source));
    DSC_TRY(count_samples(source, kind, path, split, context, &count));
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    dsc_status status = dsc_dataset_create(&sequences_type, kind, split, options, &dataset);
    if (status != DSC_OK) {
        dsc_memory_free(&s);
        return status;
    }
    const int own_mask = options->mask > 0 && options->mask_token < 0; /* a token after the vocabulary */
    *s = (sequences){.source = *source, .mask = options->mask};
    s->mask_token = (int32_t)(own_mask ? source->vocabulary : options->mask_token);
    *source = (dsc_token_source){.file = NULL};
    dataset->info =
        (dsc_dataset_info){count, context, 1, 1, s->source.vocabulary + own_mask, dataset->info.name};
    dataset->label_count = context;
    dataset->whole_numbers = 1;
    dataset->tokenizer = s->source.tokenizer;
    dataset->bytes_per_token = s->source.bytes_per_token;
    dataset->mask = dataset->labelled = s->mask;
    dataset->state = s;
    *out = dataset;
    return DSC_OK;
}

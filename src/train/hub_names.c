/* The names of the hub: see hub_names.h. */
#include "train/hub_names.h"

#include <stdio.h>
#include <string.h>

enum { NAME = 256 };

/* Files of GPT2Model and BertModel, the models without a head, lack these beginnings. */
static const char *const prefixes[] = {"transformer.", "bert."};

/* Old files of BERT have the names of TensorFlow in layer norms. */
static const struct {
    const char *ours, *theirs;
} endings[] = {{".LayerNorm.weight", ".LayerNorm.gamma"}, {".LayerNorm.bias", ".LayerNorm.beta"}};

/* What a model that has the tensor `known` does not read; # stands for a number, and the prefix may be absent. */
static const struct {
    const char *known, *prefix, *pattern;
} ignored[] = {
    {"transformer.wte.weight", "transformer.", "h.#.attn.bias"}, /* the causal mask */
    {"transformer.wte.weight", "transformer.", "h.#.attn.masked_bias"},
    {"bert.embeddings.word_embeddings.weight", "bert.", "embeddings.position_ids"}, /* 0, 1, 2, ... */
    {"bert.embeddings.word_embeddings.weight", "bert.", "pooler.dense.weight"},
    {"bert.embeddings.word_embeddings.weight", "bert.", "pooler.dense.bias"},
    {"bert.embeddings.word_embeddings.weight", "", "cls.seq_relationship.weight"}, /* next sentence */
    {"bert.embeddings.word_embeddings.weight", "", "cls.seq_relationship.bias"},
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* The name without its prefix; NULL when it has none. */
static const char *without_prefix(const char *name) {
    for (size_t i = 0; i < COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return NULL;
}

/* Writes the name with TensorFlow's ending; 0 when it has no such ending, or is too long for one of the hub. */
static int with_old_ending(const char *name, char out[NAME]) {
    size_t length = strlen(name);
    for (size_t i = 0; i < COUNT(endings); i++) {
        size_t ending = strlen(endings[i].ours);
        if (length > ending && length < NAME && strcmp(name + length - ending, endings[i].ours) == 0) {
            snprintf(out, NAME, "%.*s%s", (int)(length - ending), name, endings[i].theirs);
            return 1;
        }
    }
    return 0;
}

const dsc_st_tensor *dsc_hub_find(const dsc_st_reader *reader, const char *name) {
    const char *spellings[] = {name, without_prefix(name)};
    const dsc_st_tensor *found = NULL;
    char old[NAME];
    for (size_t i = 0; i < COUNT(spellings) && !found; i++) {
        if (!spellings[i])
            continue;
        found = dsc_st_find(reader, spellings[i]);
        if (!found && with_old_ending(spellings[i], old))
            found = dsc_st_find(reader, old);
    }
    return found;
}

static int matches(const char *pattern, const char *name) {
    for (; *pattern; pattern++) {
        size_t length = *pattern == '#' ? strspn(name, "0123456789") : *name == *pattern;
        if (length == 0)
            return 0;
        name += length;
    }
    return *name == '\0';
}

static int has(const dsc_model *model, const char *name) {
    for (int64_t i = 0; i < dsc_model_state_count(model); i++)
        if (strcmp(dsc_model_state(model)[i].name, name) == 0)
            return 1;
    return 0;
}

int dsc_hub_is_ignored(const dsc_model *model, const char *name) {
    for (size_t i = 0; i < COUNT(ignored); i++) {
        size_t prefix = strlen(ignored[i].prefix);
        const char *rest = strncmp(name, ignored[i].prefix, prefix) == 0 ? name + prefix : name;
        if (matches(ignored[i].pattern, rest) && has(model, ignored[i].known))
            return 1;
    }
    return 0;
}

/* The table of models by name: built-in and registered ones. */
#include "model/zoo/zoo.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/registry.h"
#include "base/versioned.h"
#include "model/graph.h"
#include "model/zoo/spec.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* An entry and the keys of its spec. If it has keys, its context is the design with their defaults. */
typedef struct zoo_model {
    dsc_zoo_entry entry;
    const dsc_option *keys;
    size_t design_bytes;
    /* Adapts the entry to the design; NULL: only the layers depend on the design. */
    void (*adapt)(const void *design, dsc_zoo_entry *entry);
} zoo_model;

/* A model that was looked up: its entry, adapted to the design of the spec, which is the context for `build`. */
typedef struct chosen_model {
    dsc_zoo_entry entry;
    union {
        dsc_zoo_unet_design unet;
        dsc_zoo_gpt_design gpt;
        dsc_zoo_bert_design bert;
    } design;
} chosen_model;

#define MODEL(name, side, channels, classes, depth, build)                                                   \
    { {sizeof(dsc_zoo_entry), name, side, channels, classes, depth, build, 0, 0}, NULL, 0, NULL }
#define UNET(name, side, channels, classes, margin, ...)                                                     \
    {                                                                                                        \
        {sizeof(dsc_zoo_entry), name, side,  channels, classes, &(dsc_zoo_unet_design){__VA_ARGS__},         \
         dsc_zoo_unet,          0,    margin},                                                               \
            dsc_zoo_unet_keys, sizeof(dsc_zoo_unet_design), dsc_zoo_unet_adapt                               \
    }
#define GPT(name, positions, vocabulary, ...)                                                                \
    {                                                                                                        \
        {sizeof(dsc_zoo_entry), name, positions, 1, vocabulary, &(dsc_zoo_gpt_design){__VA_ARGS__},          \
         dsc_zoo_gpt,           1,    0},                                                                    \
            dsc_zoo_gpt_keys, sizeof(dsc_zoo_gpt_design), NULL                                               \
    }
#define BERT(name, layers, heads, width)                                                                     \
    {                                                                                                        \
        {sizeof(dsc_zoo_entry), name, 512, 1, 30522, &(dsc_zoo_bert_design){layers, heads, width, 0.1},      \
         dsc_zoo_bert,          1,    0},                                                                    \
            dsc_zoo_bert_keys, sizeof(dsc_zoo_bert_design), NULL                                             \
    }
#define GPT2(name, layers, heads, width) GPT(name, 1024, 50257, layers, heads, width, 0.1, 1, 1)

static const zoo_model models[] = {
    MODEL("mlp", 28, 1, 10, NULL, dsc_zoo_mlp),
    MODEL("lenet", 28, 1, 10, NULL, dsc_zoo_lenet),
    MODEL("resnet20", 32, 3, 10, &(int){20}, dsc_zoo_resnet_cifar),
    MODEL("resnet32", 32, 3, 10, &(int){32}, dsc_zoo_resnet_cifar),
    MODEL("resnet44", 32, 3, 10, &(int){44}, dsc_zoo_resnet_cifar),
    MODEL("resnet56", 32, 3, 10, &(int){56}, dsc_zoo_resnet_cifar),
    MODEL("resnet110", 32, 3, 10, &(int){110}, dsc_zoo_resnet_cifar),
    MODEL("resnet18", 224, 3, 1000, &(int){18}, dsc_zoo_resnet_imagenet),
    MODEL("resnet34", 224, 3, 1000, &(int){34}, dsc_zoo_resnet_imagenet),
    MODEL("resnet50", 224, 3, 1000, &(int){50}, dsc_zoo_resnet_imagenet),
    MODEL("resnet101", 224, 3, 1000, &(int){101}, dsc_zoo_resnet_imagenet),
    MODEL("resnet152", 224, 3, 1000, &(int){152}, dsc_zoo_resnet_imagenet),
    UNET("unet", 572, 1, 2, 92, .width = 64, .depth = 4, .dropout = 0.5),
    UNET("unet-bn", 256, 3, 1, 0, .width = 32, .depth = 4, .batch_norm = 1),
    GPT2("gpt2", 12, 12, 768),
    GPT2("gpt2-medium", 24, 16, 1024),
    GPT2("gpt2-large", 36, 20, 1280),
    GPT2("gpt2-xl", 48, 25, 1600),
    GPT("gpt-mini", 256, 65, .layers = 6, .heads = 6, .width = 384, .dropout = 0.2),
    BERT("bert-base", 12, 12, 768),
    BERT("bert-large", 24, 16, 1024),
    {{0}, NULL, 0, NULL}, /* terminates the list */
};

static const char *built_in(int i, const void **entry) {
    *entry = &models[i];
    return models[i].entry.name;
}

static dsc_registry zoo = DSC_REGISTRY("model", built_in);

void dsc_zoo_entry_init_sized(dsc_zoo_entry *entry, size_t size) {
    const dsc_zoo_entry defaults = {0};
    dsc_versioned_init(entry, size, &defaults, sizeof defaults);
}

dsc_status dsc_zoo_register(const dsc_zoo_entry *entry) {
    dsc_zoo_entry given;
    zoo_model *copy = NULL;
    char *name = NULL;
    dsc_zoo_entry_init(&given);
    DSC_TRY(dsc_versioned_define("zoo_entry", entry, sizeof given, &given));
    const char *label = given.name ? given.name : "";
    if (!given.build)
        return DSC_FAIL(DSC_E_INVALID, "model '%s' cannot be registered: it has no function `build`", label);
    if (given.side < 1 || given.channels < 1 || given.classes < 1)
        return DSC_FAIL(
            DSC_E_INVALID,
            "model '%s' cannot be registered: it is made for a side of %lld, %lld channels and %lld "
            "classes, but each must be at least 1",
            label, (long long)given.side, (long long)given.channels, (long long)given.classes);
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc(1, sizeof *copy, &copy), fail);
    DSC_TRY_GOTO(status, dsc_memory_strdup(label, &name), fail);
    copy->entry = given;
    copy->entry.name = name;
    DSC_TRY_GOTO(status, dsc_registry_add(&zoo, name, copy), fail);
    return DSC_OK;
fail:
    dsc_memory_free(&name);
    dsc_memory_free(&copy);
    return status;
}

const char *const *dsc_zoo_names(void) {
    return dsc_registry_names(&zoo);
}

static const zoo_model *find(const char *spec) {
    return dsc_registry_find(&zoo, spec, dsc_zoo_spec_name_length(spec));
}

const dsc_option *dsc_zoo_keys(const char *name, const void **defaults) {
    const zoo_model *found = name ? find(name) : NULL;
    const dsc_option *keys = found ? found->keys : NULL;
    if (defaults)
        *defaults = keys ? found->entry.context : NULL;
    return keys;
}

/* Finds the model of a spec and reads its keys. */
static dsc_status choose(const char *spec, chosen_model *out) {
    spec = spec ? spec : "";
    const zoo_model *found = find(spec);
    char known[1024];
    if (!found)
        return DSC_FAIL(DSC_E_INVALID, "model '%s' is unknown; known are %s", spec,
                        dsc_registry_list(dsc_zoo_names(), known, sizeof known));
    *out = (chosen_model){.entry = found->entry};
    if (found->keys) {
        memcpy(&out->design, found->entry.context, found->design_bytes);
        out->entry.context = &out->design;
    }
    DSC_TRY(dsc_zoo_spec_read(spec, found->keys, &out->design));
    if (found->adapt)
        found->adapt(&out->design, &out->entry);
    return DSC_OK;
}

dsc_status dsc_zoo_default_input(const char *name, int64_t *side, int64_t *channels, int64_t *classes) {
    chosen_model chosen;
    DSC_TRY(choose(name, &chosen));
    const dsc_zoo_entry *entry = &chosen.entry;
    if (side)
        *side = entry->side;
    if (channels)
        *channels = entry->channels;
    if (classes)
        *classes = entry->classes;
    return DSC_OK;
}

int dsc_zoo_takes_tokens(const char *name) {
    chosen_model chosen;
    return choose(name, &chosen) == DSC_OK && chosen.entry.sequence;
}

int64_t dsc_zoo_margin(const char *name) {
    chosen_model chosen;
    return choose(name, &chosen) == DSC_OK ? chosen.entry.margin : 0;
}

/* Adds the input. Callers that know only a model's default side ask for a square; sequences then ignore the width. */
static dsc_status add_input(dsc_model *m, const char *spec, int sequence, const int64_t shape[3],
                            dsc_value *x) {
    if (!sequence)
        return dsc_model_input(m, shape[0], shape[1], shape[2], x);
    if ((shape[1] != 1 && shape[1] != shape[0]) || shape[2] != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "model %s for %lldx%lldx%lld: it takes sequences of tokens, positions x 1 x 1; use a "
                        "data set of text",
                        spec, (long long)shape[0], (long long)shape[1], (long long)shape[2]);
    return dsc_model_tokens(m, shape[0], x);
}

dsc_status dsc_zoo_build(dsc_model *m, const char *spec, const int64_t shape[3], int64_t classes,
                         dsc_value *logits) {
    chosen_model chosen;
    dsc_value x;
    DSC_TRY(choose(spec, &chosen));
    DSC_TRY(add_input(m, spec, chosen.entry.sequence, shape, &x));
    unsigned errors = dsc_error_count();
    dsc_status status = chosen.entry.build(chosen.entry.context, m, x, classes, logits);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "build", "model %s for %lldx%lldx%lld and %lld classes",
                                  spec, (long long)shape[0], (long long)shape[1], (long long)shape[2],
                                  (long long)classes);
    return DSC_OK;
}

dsc_status dsc_zoo_create(dsc_device *device, const char *name, int64_t h, int64_t w, int64_t c,
                          int64_t classes, const dsc_model_options *options, dsc_model **out) {
    dsc_model *m;
    dsc_value logits = -1;
    DSC_TRY(dsc_model_create(device, options, &m));
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_zoo_build(m, name, (int64_t[]){h, w, c}, classes, &logits), fail);
    DSC_TRY_GOTO(status, dsc_model_seal(m, logits), fail);
    if (strcmp(m->name, "custom") == 0) /* the caller gave no name */
        snprintf(m->name, sizeof m->name, "%s", name);
    if (dsc_model_classes(m) != classes) {
        status = DSC_FAIL(DSC_E_INVALID, "model %s gives %lld logits, but there are %lld classes", name,
                          (long long)dsc_model_classes(m), (long long)classes);
        goto fail;
    }
    *out = m;
    return DSC_OK;
fail:
    dsc_model_destroy(&m);
    return status;
}

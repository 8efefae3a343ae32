/* The table of models, by name. */
#include "model/zoo/zoo.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

typedef struct entry {
    const char *name;
    dsc_zoo_builder build;
    int depth;
    int64_t side, channels, classes; /* the input it is made for */
} entry;

static const entry entries[] = {
    {"mlp", dsc_zoo_mlp, 0, 28, 1, 10},
    {"lenet", dsc_zoo_lenet, 0, 28, 1, 10},
    {"resnet20", dsc_zoo_resnet_cifar, 20, 32, 3, 10},
    {"resnet32", dsc_zoo_resnet_cifar, 32, 32, 3, 10},
    {"resnet44", dsc_zoo_resnet_cifar, 44, 32, 3, 10},
    {"resnet56", dsc_zoo_resnet_cifar, 56, 32, 3, 10},
    {"resnet110", dsc_zoo_resnet_cifar, 110, 32, 3, 10},
    {"resnet18", dsc_zoo_resnet_imagenet, 18, 224, 3, 1000},
    {"resnet34", dsc_zoo_resnet_imagenet, 34, 224, 3, 1000},
    {"resnet50", dsc_zoo_resnet_imagenet, 50, 224, 3, 1000},
    {"resnet101", dsc_zoo_resnet_imagenet, 101, 224, 3, 1000},
    {"resnet152", dsc_zoo_resnet_imagenet, 152, 224, 3, 1000},
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

static const char *const names[] = {"mlp",       "lenet",     "resnet20", "resnet32", "resnet44",
                                    "resnet56",  "resnet110", "resnet18", "resnet34", "resnet50",
                                    "resnet101", "resnet152", NULL};
_Static_assert(sizeof names / sizeof names[0] == ENTRIES + 1, "one name an entry");

const char *const *dsc_zoo_names(void) {
    return names;
}

static dsc_status find(const char *name, const entry **out) {
    name = name ? name : "";
    for (int i = 0; i < ENTRIES; i++)
        if (strcmp(entries[i].name, name) == 0) {
            *out = &entries[i];
            return DSC_OK;
        }
    char known[200] = "";
    size_t used = 0;
    for (int i = 0; i < ENTRIES && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", entries[i].name);
    return DSC_FAIL(DSC_E_INVALID, "model '%s' is unknown; known are %s", name, known);
}

dsc_status dsc_zoo_default_input(const char *name, int64_t *side, int64_t *channels, int64_t *classes) {
    const entry *found = NULL;
    DSC_TRY(find(name, &found));
    *side = found->side;
    *channels = found->channels;
    *classes = found->classes;
    return DSC_OK;
}

dsc_status dsc_zoo_build(dsc_model *m, const char *name, const int64_t shape[3], int64_t classes,
                         dsc_value *logits) {
    const entry *found = NULL;
    dsc_value x;
    DSC_TRY(find(name, &found));
    DSC_TRY(dsc_model_input(m, shape[0], shape[1], shape[2], &x));
    dsc_status status = found->build(m, found->depth, x, classes, logits);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "model %s for %lldx%lldx%lld and %lld classes", name,
                                (long long)shape[0], (long long)shape[1], (long long)shape[2],
                                (long long)classes);
    return DSC_OK;
}

dsc_status dsc_zoo_create(dsc_device *device, const char *name, int64_t h, int64_t w, int64_t c,
                          int64_t classes, const dsc_model_options *options, dsc_model **out) {
    dsc_model *m;
    dsc_value logits;
    DSC_TRY(dsc_model_create(device, options, &m));
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_zoo_build(m, name, (int64_t[]){h, w, c}, classes, &logits), fail);
    DSC_TRY_GOTO(status, dsc_model_seal(m, logits), fail);
    *out = m;
    return DSC_OK;
fail:
    dsc_model_destroy(&m);
    return status;
}

/* Data sets by name: the table of kinds, which parses "kind:argument"; and what all data sets share. */
#include "data/dataset.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/registry.h"
#include "base/versioned.h"

#include <string.h>

static const char *built_in(int i, const void **entry) {
    static const dsc_dataset_kind *const kind[] = {
        &dsc_kind_synthetic,  &dsc_kind_cifar10, &dsc_kind_cifar100, &dsc_kind_idx,   &dsc_kind_imagefolder,
        &dsc_kind_webdataset, &dsc_kind_tokens,  &dsc_kind_text,     &dsc_kind_masks, NULL};
    *entry = kind[i];
    return kind[i] ? kind[i]->name : NULL;
}

static dsc_registry kinds = DSC_REGISTRY("data set", built_in);

void dsc_data_options_init_sized(dsc_data_options *options, size_t size) {
    const dsc_data_options defaults = {.seed = 42, .image_size = 0, .val_split = 0, .mask_token = -1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

void dsc_scratch_free(dsc_scratch *scratch) {
    dsc_bytes_free(&scratch->file);
    dsc_bytes_free(&scratch->image);
    dsc_bytes_free(&scratch->resample);
}

/* ---- kinds ---- */

void dsc_dataset_kind_init_sized(dsc_dataset_kind *kind, size_t size) {
    const dsc_dataset_kind defaults = {0};
    dsc_versioned_init(kind, size, &defaults, sizeof defaults);
}

dsc_status dsc_dataset_register(const dsc_dataset_kind *kind) {
    dsc_dataset_kind given;
    dsc_dataset_kind_init(&given);
    DSC_TRY(dsc_versioned_define("dataset_kind", kind, sizeof given, &given));
    if (!given.open)
        return DSC_FAIL(DSC_E_INVALID, "data set '%s' cannot be registered: it has no function `open`",
                        given.name ? given.name : "");
    dsc_dataset_kind *copy = NULL;
    char *name = NULL, *usage = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc(1, sizeof *copy, &copy), fail);
    DSC_TRY_GOTO(status, dsc_memory_strdup(given.name ? given.name : "", &name), fail);
    DSC_TRY_GOTO(status, dsc_memory_strdup(given.usage ? given.usage : name, &usage), fail);
    *copy = given;
    copy->name = name;
    copy->usage = usage;
    DSC_TRY_GOTO(status, dsc_registry_add(&kinds, name, copy), fail);
    return DSC_OK;
fail:
    dsc_memory_free(&usage);
    dsc_memory_free(&name);
    dsc_memory_free(&copy);
    return status;
}

const char *const *dsc_dataset_names(void) {
    return dsc_registry_names(&kinds);
}

const char *dsc_dataset_usage(const char *name) {
    const dsc_dataset_kind *kind = name ? dsc_registry_find(&kinds, name, strlen(name)) : NULL;
    return kind ? kind->usage : "";
}

static dsc_status find_kind(const char *spec, size_t length, const dsc_dataset_kind **out) {
    *out = dsc_registry_find(&kinds, spec, length);
    if (*out)
        return DSC_OK;
    char known[1024];
    const char *usages[DSC_REGISTRY_ROOM + 1] = {NULL};
    for (int i = 0; kinds.names[i]; i++)
        usages[i] = ((const dsc_dataset_kind *)kinds.entries[i])->usage;
    return DSC_FAIL(DSC_E_INVALID, "data set '%s': unknown kind '%.*s'; known are %s", spec, (int)length,
                    spec, dsc_registry_list(usages, known, sizeof known));
}

dsc_status dsc_dataset_open(const char *spec, dsc_split split, const dsc_data_options *options,
                            dsc_dataset **out) {
    spec = spec ? spec : "";
    const char *colon = strchr(spec, ':');
    const char *argument = colon ? colon + 1 : NULL;
    const dsc_dataset_kind *kind = NULL;
    DSC_TRY(find_kind(spec, colon ? (size_t)(colon - spec) : strlen(spec), &kind));
    if (kind->needs_argument && (!argument || !*argument))
        return DSC_FAIL(DSC_E_INVALID, "data set '%s': needs %s, as in '%s'", spec,
                        strstr(kind->usage, ":DIR") ? "a folder" : "an argument", kind->usage);
    dsc_data_options chosen;
    dsc_data_options_init(&chosen);
    DSC_TRY(dsc_versioned_read("data", options, sizeof chosen, &chosen));
    if (!(chosen.val_split >= 0 && chosen.val_split < 1))
        return DSC_FAIL(DSC_E_INVALID, "val-split %g: must be 0, or a part below 1", chosen.val_split);
    dsc_dataset *dataset = NULL;
    const int divided = chosen.val_split > 0 && !kind->own_val_split;
    unsigned errors = dsc_error_count();
    dsc_status status =
        kind->open(kind->context, argument, divided ? DSC_SPLIT_TRAIN : split, &chosen, &dataset);
    if (status != DSC_OK && dsc_error_count() == errors)
        return dsc_error_callback(status, errors, "open", "data set '%s'", spec);
    DSC_TRY(status);
    if (!dataset)
        return DSC_FAIL(DSC_E_INTERNAL, "data set '%s': opening it succeeded but gave no data set", spec);
    if (divided) {
        status = dsc_subset_open(&dataset, split, &chosen, out);
        dsc_dataset_close(&dataset);
        return status;
    }
    *out = dataset;
    return DSC_OK;
}

/* ---- creating and destroying ---- */

dsc_status dsc_dataset_create(const dsc_dataset_type *type, const char *name, dsc_split split,
                              const dsc_data_options *options, dsc_dataset **out) {
    dsc_dataset *dataset;
    char *copy = NULL;
    DSC_TRY(dsc_memory_alloc(1, sizeof *dataset, &dataset));
    dsc_status status = dsc_memory_strdup(name, &copy);
    if (status != DSC_OK) {
        dsc_memory_free(&dataset);
        return status;
    }
    *dataset =
        (dsc_dataset){.type = type, .split = split, .options = *options, .info.name = copy, .label_count = 1};
    dataset->options.mean = dataset->options.std = NULL; /* the caller's; the data set has a copy */
    *out = dataset;
    return DSC_OK;
}

void dsc_dataset_close(dsc_dataset **dataset) {
    if (!dataset || !*dataset)
        return;
    (*dataset)->type->close(*dataset);
    dsc_memory_free(&(*dataset)->info.name);
    dsc_memory_free(dataset);
}

dsc_dataset_info dsc_dataset_get_info(const dsc_dataset *dataset) {
    return dataset ? dataset->info : (dsc_dataset_info){.name = ""};
}

int64_t dsc_dataset_pictures(const dsc_dataset *dataset) {
    return dataset ? dataset->pictures : 0;
}

int64_t dsc_dataset_label_count(const dsc_dataset *dataset) {
    return dataset ? dataset->label_count : 0;
}

const dsc_tokenizer *dsc_dataset_tokenizer(const dsc_dataset *dataset) {
    return dataset ? dataset->tokenizer : NULL;
}

double dsc_dataset_bytes_per_token(const dsc_dataset *dataset) {
    return dataset ? dataset->bytes_per_token : 0;
}

const char *dsc_dataset_class_name(const dsc_dataset *dataset, int64_t index) {
    if (!dataset || !dataset->class_names || index < 0 || index >= dataset->info.classes)
        return NULL;
    return dataset->class_names[index];
}

void dsc_dataset_note_normalisation(dsc_dataset *dataset, const double *mean, const double *std) {
    for (int64_t c = 0; c < dataset->info.c && c < DSC_PIXEL_CHANNELS; c++) {
        dataset->mean[c] = mean[c];
        dataset->std[c] = std[c];
    }
}

int dsc_dataset_normalisation(const dsc_dataset *dataset, double *mean, double *std) {
    if (!dataset || !mean || !std || !(dataset->std[0] > 0))
        return 0;
    for (int64_t c = 0; c < dataset->info.c; c++) {
        mean[c] = dataset->mean[c];
        std[c] = dataset->std[c];
    }
    return 1;
}

dsc_status dsc_dataset_sample_with(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                                   dsc_scratch *scratch, float *x, int32_t *label) {
    if (index < 0 || index >= dataset->info.count)
        return DSC_FAIL(DSC_E_INVALID, "%s: sample %lld of %lld does not exist", dataset->info.name,
                        (long long)index, (long long)dataset->info.count);
    if (epoch < 0 || epoch > UINT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "%s: epoch %lld: must be in 0 to %lld", dataset->info.name,
                        (long long)epoch, (long long)UINT32_MAX);
    DSC_TRY(dataset->type->sample(dataset, index, augment, epoch, scratch, x, label));
    return DSC_OK;
}

dsc_status dsc_dataset_sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch, float *x,
                              int32_t *label) {
    if (!dataset || !x || !label)
        return DSC_FAIL(DSC_E_INVALID, "sample: no %s",
                        !dataset ? "data set"
                        : !x     ? "room for it"
                                 : "room for its label");
    dsc_scratch scratch = {{0}, {0}, {0}};
    dsc_status status = dsc_dataset_sample_with(dataset, index, augment, epoch, &scratch, x, label);
    dsc_scratch_free(&scratch);
    if (status != DSC_OK)
        return dsc_error_pass(status, __FILE__, __LINE__);
    return DSC_OK;
}

/* Data sets by name: parses "kind:argument" and dispatches to the kind's table. */
#include "data/dataset.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"

#include <string.h>

static const dsc_dataset_kind *const kinds[] = {&dsc_kind_synthetic, &dsc_kind_cifar10, &dsc_kind_cifar100,
                                                &dsc_kind_idx, &dsc_kind_imagefolder};

enum { KINDS = sizeof kinds / sizeof *kinds };

void dsc_data_options_init(dsc_data_options *options) {
    *options = (dsc_data_options){.size = sizeof *options, .seed = 42, .image_size = 0};
}

void dsc_scratch_free(dsc_scratch *scratch) {
    dsc_bytes_free(&scratch->file);
    dsc_bytes_free(&scratch->image);
    dsc_bytes_free(&scratch->resample);
}

static dsc_status find_kind(const char *spec, size_t length, const dsc_dataset_kind **out) {
    for (int i = 0; i < KINDS; i++) {
        if (strlen(kinds[i]->name) == length && strncmp(kinds[i]->name, spec, length) == 0) {
            *out = kinds[i];
            return DSC_OK;
        }
    }
    char known[256] = "";
    for (int i = 0; i < KINDS; i++) {
        strncat(known, i ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, kinds[i]->usage, sizeof known - strlen(known) - 1);
    }
    return DSC_FAIL(DSC_E_INVALID, "data set '%s': unknown kind '%.*s'; known are %s", spec, (int)length,
                    spec, known);
}

dsc_status dsc_dataset_open(const char *spec, dsc_split split, const dsc_data_options *options,
                            dsc_dataset **out) {
    spec = spec ? spec : "";
    const char *colon = strchr(spec, ':');
    const char *argument = colon ? colon + 1 : NULL;
    const dsc_dataset_kind *kind = NULL;
    DSC_TRY(find_kind(spec, colon ? (size_t)(colon - spec) : strlen(spec), &kind));
    if (kind->needs_argument && (!argument || !*argument))
        return DSC_FAIL(DSC_E_INVALID, "data set '%s': needs a folder, as in '%s'", spec, kind->usage);
    dsc_data_options chosen;
    dsc_data_options_init(&chosen);
    DSC_TRY(dsc_versioned_read("data", options, sizeof chosen, &chosen));
    dsc_dataset *dataset;
    DSC_TRY(dsc_memory_alloc(1, sizeof *dataset, &dataset));
    dataset->kind = kind;
    dataset->options = chosen;
    dataset->split = split;
    dataset->info.name = kind->name;
    dsc_status status = kind->open(dataset, argument);
    if (status != DSC_OK) {
        dsc_memory_free(&dataset);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = dataset;
    return DSC_OK;
}

void dsc_dataset_close(dsc_dataset **dataset) {
    if (!dataset || !*dataset)
        return;
    (*dataset)->kind->close(*dataset);
    dsc_memory_free(dataset);
}

dsc_dataset_info dsc_dataset_get_info(const dsc_dataset *dataset) {
    return dataset->info;
}

dsc_status dsc_dataset_sample_with(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                                   dsc_scratch *scratch, float *x, int32_t *label) {
    if (index < 0 || index >= dataset->info.count)
        return DSC_FAIL(DSC_E_INVALID, "%s: sample %lld of %lld does not exist", dataset->info.name,
                        (long long)index, (long long)dataset->info.count);
    if (epoch < 0 || epoch > UINT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "%s: epoch %lld: must be in 0 to %lld", dataset->info.name,
                        (long long)epoch, (long long)UINT32_MAX);
    DSC_TRY(dataset->kind->sample(dataset, index, augment, epoch, scratch, x, label));
    return DSC_OK;
}

dsc_status dsc_dataset_sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch, float *x,
                              int32_t *label) {
    dsc_scratch scratch = {{0}, {0}, {0}};
    dsc_status status = dsc_dataset_sample_with(dataset, index, augment, epoch, &scratch, x, label);
    dsc_scratch_free(&scratch);
    if (status != DSC_OK)
        return dsc_error_pass(status, __FILE__, __LINE__);
    return DSC_OK;
}

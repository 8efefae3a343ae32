/* A part of another data set: the training or the validation samples of a set that has no validation split of its
 * own.
 *
 * Of the n samples of each class, shuffled by the seed, the first round(n share), but at least 1 and at most
 * n - 1, are for validation; the only sample of a class is for training. Samples with a label for each position have
 * no class, and count as samples of one. Both parts keep the order of the set. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"

#include <string.h>

#include <math.h>

typedef struct subset {
    dsc_dataset_type type; /* implements only the functions that the base set has, too */
    dsc_dataset *base;
    int64_t *index; /* [count], indices of its samples in `base` */
} subset;

static void close_subset(dsc_dataset *dataset) {
    subset *s = dataset->state;
    dsc_dataset_close(&s->base);
    dsc_memory_free(&s->index);
    dsc_memory_free(&s);
}

/* Augmentation is keyed by the sample's index in the whole set. */
static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label) {
    const subset *s = dataset->state;
    return s->base->type->sample(s->base, s->index[index], augment, epoch, scratch, x, label);
}

static void raw(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch, dsc_raw_sample *out) {
    const subset *s = dataset->state;
    s->base->type->raw(s->base, s->index[index], augment, epoch, out);
}

static void raw_desc(const dsc_dataset *dataset, dsc_augment_desc *desc) {
    const subset *s = dataset->state;
    s->base->type->raw_desc(s->base, desc);
}

static int32_t label_of(const dsc_dataset *dataset, int64_t index) {
    const subset *s = dataset->state;
    return s->base->type->label(s->base, s->index[index]);
}

static int64_t group_of(const dsc_dataset *dataset, int64_t index) {
    const subset *s = dataset->state;
    return s->base->type->group(s->base, s->index[index]);
}

/* ---- which samples ---- */

dsc_status dsc_dataset_read_labels(const dsc_dataset *base, int32_t *label) {
    const dsc_dataset_info info = base->info;
    dsc_scratch scratch = {{0}, {0}, {0}};
    float *x = NULL;
    dsc_status status = DSC_OK;
    if (base->label_count > 1)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s: its samples have %lld labels each, so they belong to no class: leave class weights out "
            "(class-weights)",
            info.name, (long long)base->label_count);
    if (!base->type->label)
        DSC_TRY(dsc_memory_alloc(info.h * info.w * info.c, sizeof *x, &x));
    for (int64_t i = 0; i < info.count && status == DSC_OK; i++) {
        if (base->type->label)
            label[i] = base->type->label(base, i);
        else
            status = dsc_dataset_sample_with(base, i, 0, 0, &scratch, x, &label[i]);
        if (status == DSC_OK && (label[i] < 0 || label[i] >= info.classes))
            status = DSC_FAIL(DSC_E_FORMAT, "%s: sample %lld has label %d of %lld classes", info.name,
                              (long long)i, label[i], (long long)info.classes);
    }
    dsc_scratch_free(&scratch);
    dsc_memory_free(&x);
    return status;
}

/* Sets chosen[i] to 1 for the samples of class `class` that are for validation: members[count] are its samples,
 * which are shuffled. */
static void choose(int64_t *members, int64_t count, int64_t class, const dsc_data_options *options,
                   char *chosen) {
    int64_t wanted = llround((double)count * options->val_split);
    wanted = wanted < 1 ? 1 : wanted;
    wanted = wanted > count - 1 ? count - 1 : wanted;
    for (int64_t i = 0; i < wanted; i++) {
        dsc_rng rng = dsc_rng_start(options->seed, DSC_RNG_SPLIT, (uint32_t) class, (uint64_t)i);
        int64_t j = i + dsc_rng_below(&rng, (uint32_t)(count - i));
        int64_t swap = members[i];
        members[i] = members[j];
        members[j] = swap;
        chosen[members[i]] = 1;
    }
}

/* chosen[count]: 1 for validation. */
static dsc_status choose_all(const dsc_dataset *base, const dsc_data_options *options, char *chosen) {
    const int64_t count = base->info.count, classes = base->label_count > 1 ? 1 : base->info.classes;
    int32_t *label = NULL;
    int64_t *members = NULL, *start = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc(count, sizeof *label, &label), done);
    DSC_TRY_GOTO(status, dsc_memory_alloc(count, sizeof *members, &members), done);
    DSC_TRY_GOTO(status, dsc_memory_alloc(classes + 1, sizeof *start, &start), done);
    if (base->label_count == 1) /* else all are 0 */
        DSC_TRY_GOTO(status, dsc_dataset_read_labels(base, label), done);
    for (int64_t i = 0; i < count; i++)
        start[label[i] + 1]++;
    for (int64_t c = 0; c < classes; c++)
        start[c + 1] += start[c];
    for (int64_t i = 0; i < count; i++)
        members[start[label[i]]++] = i; /* afterwards start[c] is where class c ends */
    for (int64_t c = 0; c < classes; c++) {
        int64_t first = c > 0 ? start[c - 1] : 0;
        choose(members + first, start[c] - first, c, options, chosen);
    }
done:
    dsc_memory_free(&label);
    dsc_memory_free(&members);
    dsc_memory_free(&start);
    return status;
}

/* ---- the data set ---- */

static dsc_status fill(subset *s, const dsc_data_options *options, int wanted, int64_t *count) {
    char *chosen;
    dsc_status status;
    DSC_TRY(dsc_memory_alloc(s->base->info.count, 1, &chosen));
    DSC_TRY_GOTO(status, dsc_memory_alloc(s->base->info.count, sizeof *s->index, &s->index), done);
    DSC_TRY_GOTO(status, choose_all(s->base, options, chosen), done);
    *count = 0;
    for (int64_t i = 0; i < s->base->info.count; i++)
        if (chosen[i] == wanted)
            s->index[(*count)++] = i;
    if (*count == 0)
        status = DSC_FAIL(DSC_E_INVALID,
                          "%s: val-split %g leaves no validation images: every class has one image only",
                          s->base->info.name, options->val_split);
done:
    dsc_memory_free(&chosen);
    return status;
}

dsc_status dsc_subset_open(dsc_dataset **base, dsc_split split, const dsc_data_options *options,
                           dsc_dataset **out) {
    subset *s;
    dsc_dataset *dataset = NULL;
    int64_t count = 0;
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    s->base = *base;
    dsc_status status = fill(s, options, split == DSC_SPLIT_VAL, &count);
    if (status == DSC_OK)
        status = dsc_dataset_create(&s->type, s->base->info.name, split, options, &dataset);
    if (status != DSC_OK) {
        dsc_memory_free(&s->index);
        dsc_memory_free(&s);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    const dsc_dataset_type *below = s->base->type;
    s->type = (dsc_dataset_type){.close = close_subset,
                                 .sample = sample,
                                 .raw = below->raw ? raw : NULL,
                                 .raw_desc = below->raw_desc ? raw_desc : NULL,
                                 .label = below->label ? label_of : NULL,
                                 .group = below->group ? group_of : NULL,
                                 .reads_files = below->reads_files};
    const char *name = dataset->info.name;
    dataset->info = s->base->info;
    dataset->info.name = name;
    dataset->info.count = count;
    dataset->label_count = s->base->label_count;
    dataset->class_names = s->base->class_names;
    if (split == DSC_SPLIT_TRAIN) /* the other part has the same files */
        memcpy(dataset->passed_over, s->base->passed_over, sizeof dataset->passed_over);
    dsc_dataset_note_normalisation(dataset, s->base->mean, s->base->std);
    dataset->resize = s->base->resize;
    dataset->whole_numbers = s->base->whole_numbers;
    dataset->tokenizer = s->base->tokenizer;
    dataset->bytes_per_token = s->base->bytes_per_token;
    dataset->labelled = s->base->labelled;
    dataset->mask = s->base->mask;
    dataset->state = s;
    *base = NULL;
    *out = dataset;
    return DSC_OK;
}

/* Data sets of the caller's own: images in memory, bytes or floats, and a callback that makes samples. */
#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "data/dataset.h"

#include <string.h>

/* Fails unless there is at least one sample, class and label, and all numbers can be counted. */
static dsc_status check_info(const dsc_dataset_info *info, int64_t label_count) {
    int64_t numbers;
    const int64_t shape[] = {info->count, info->h, info->w, info->c, info->classes};
    for (int i = 0; i < 5; i++)
        if (shape[i] < 1)
            return DSC_FAIL(
                DSC_E_INVALID,
                "data set '%s': %lld samples of %lldx%lldx%lld in %lld classes, but each of these "
                "numbers must be at least 1",
                info->name, (long long)info->count, (long long)info->h, (long long)info->w,
                (long long)info->c, (long long)info->classes);
    if (__builtin_mul_overflow(info->h, info->w, &numbers) ||
        __builtin_mul_overflow(numbers, info->c, &numbers) || numbers > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID,
                        "data set '%s': samples of %lldx%lldx%lld, but one may have at most %d numbers",
                        info->name, (long long)info->h, (long long)info->w, (long long)info->c, INT32_MAX);
    if (info->count > UINT32_MAX || info->classes > INT32_MAX)
        return DSC_FAIL(
            DSC_E_INVALID, "data set '%s': %lld samples in %lld classes, but at most %lld and %d work",
            info->name, (long long)info->count, (long long)info->classes, (long long)UINT32_MAX, INT32_MAX);
    if (label_count < 1 || label_count > INT32_MAX)
        return DSC_FAIL(DSC_E_INVALID, "data set '%s': %lld labels per sample: must be 1 to %d", info->name,
                        (long long)label_count, INT32_MAX);
    return DSC_OK;
}

/* Checks the labels of one sample. In samples with several labels, -1 stands for none. */
static dsc_status check_labels(const dsc_dataset_info *info, int64_t index, const int32_t *label,
                               int64_t label_count) {
    const int32_t least = label_count > 1 ? -1 : 0;
    int64_t bad = 0;
    while (bad < label_count && label[bad] >= least && label[bad] < info->classes)
        bad++;
    if (bad == label_count)
        return DSC_OK;
    return DSC_FAIL(DSC_E_INVALID,
                    "data set '%s': sample %lld has label %d, but with %lld classes they are %d to %lld",
                    info->name, (long long)index, label[bad], (long long)info->classes, least,
                    (long long)info->classes - 1);
}

/* ---- memory ---- */

void dsc_memory_data_init_sized(dsc_memory_data *data, size_t size) {
    const dsc_memory_data defaults = {.dtype = DSC_F32, .seed = 42};
    dsc_versioned_init(data, size, &defaults, sizeof defaults);
}

static dsc_status check_pixels(const dsc_memory_data *d) {
    if (d->c > DSC_PIXEL_CHANNELS)
        return DSC_FAIL(DSC_E_INVALID,
                        "data set '%s': bytes in %lld channels, at most %d work: convert them to "
                        "floats (DSC_F32)",
                        d->name, (long long)d->c, DSC_PIXEL_CHANNELS);
    if (d->pad < 0 || d->pad > d->h || d->pad > d->w)
        return DSC_FAIL(DSC_E_INVALID,
                        "data set '%s': a border of %lld pixels around %lldx%lld: must be 0 to the "
                        "smaller side",
                        d->name, (long long)d->pad, (long long)d->h, (long long)d->w);
    if (d->label_count > 1 && (d->pad || d->flip))
        return DSC_FAIL(
            DSC_E_INVALID,
            "data set '%s': pad and flip move pixels, but not the %lld labels of a sample: leave them "
            "off",
            d->name, (long long)d->label_count);
    for (int64_t c = 0; d->std && c < d->c; c++)
        if (!(d->std[c] > 0))
            return DSC_FAIL(DSC_E_INVALID, "data set '%s': std of channel %lld is %g, but must be positive",
                            d->name, (long long)c, d->std[c]);
    return DSC_OK;
}

static dsc_status check_memory(const dsc_memory_data *d) {
    dsc_dataset_info info = {d->count, d->h, d->w, d->c, d->classes, d->name};
    DSC_TRY(check_info(&info, d->label_count));
    if (!d->images || !d->labels)
        return DSC_FAIL(DSC_E_INVALID, "data set '%s': `%s` is NULL", d->name,
                        d->images ? "labels" : "images");
    if (d->dtype == DSC_U8)
        DSC_TRY(check_pixels(d));
    else if (d->dtype != DSC_F32)
        return DSC_FAIL(DSC_E_INVALID, "data set '%s': images of type %s, but they must be %s or %s", d->name,
                        dsc_dtype_name(d->dtype), dsc_dtype_name(DSC_F32), dsc_dtype_name(DSC_U8));
    else if (d->mean || d->std || d->pad || d->flip)
        return DSC_FAIL(DSC_E_INVALID,
                        "data set '%s': mean, std, pad and flip are for bytes (DSC_U8); floats are "
                        "taken as they are",
                        d->name);
    for (int64_t i = 0; i < d->count; i++)
        DSC_TRY(check_labels(&info, i, d->labels + i * d->label_count, d->label_count));
    return DSC_OK;
}

/* The share of labels that are not -1. */
static double find_labelled(const dsc_memory_data *d) {
    const int64_t all = d->count * d->label_count;
    int64_t labelled = 0;
    for (int64_t i = 0; i < all; i++)
        labelled += d->labels[i] >= 0;
    return (double)labelled / (double)all;
}

/* Takes the caller's images and labels, or (copy 1) copies them into new memory. */
static dsc_status take(const dsc_memory_data *d, void **images, int32_t **labels) {
    const size_t sample = (size_t)(d->h * d->w * d->c) * dsc_dtype_size(d->dtype);
    const size_t row = (size_t)d->label_count * sizeof **labels;
    *images = (void *)(uintptr_t)d->images;
    *labels = (int32_t *)(uintptr_t)d->labels;
    if (!d->copy)
        return DSC_OK;
    *images = NULL;
    *labels = NULL;
    DSC_TRY(dsc_memory_alloc(d->count, sample, images));
    DSC_TRY(dsc_memory_alloc(d->count, row, labels));
    memcpy(*images, d->images, (size_t)d->count * sample);
    memcpy(*labels, d->labels, (size_t)d->count * row);
    return DSC_OK;
}

typedef struct floats {
    int borrowed;
    void *images;
    int32_t *labels;
} floats;

static void close_floats(dsc_dataset *dataset) {
    floats *f = dataset->state;
    if (f && !f->borrowed) {
        dsc_memory_free(&f->images);
        dsc_memory_free(&f->labels);
    }
    dsc_memory_free(&f);
}

static dsc_status sample_floats(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                                dsc_scratch *scratch, float *x, int32_t *label) {
    (void)augment;
    (void)epoch;
    (void)scratch;
    const floats *f = dataset->state;
    int64_t numbers = dataset->info.h * dataset->info.w * dataset->info.c;
    memcpy(x, (const float *)f->images + index * numbers, (size_t)numbers * sizeof *x);
    memcpy(label, f->labels + index * dataset->label_count, (size_t)dataset->label_count * sizeof *label);
    return DSC_OK;
}

static const dsc_dataset_type floats_type = {.close = close_floats, .sample = sample_floats};

static dsc_status open_floats(const dsc_memory_data *d, dsc_dataset *dataset) {
    floats *f;
    DSC_TRY(dsc_memory_alloc(1, sizeof *f, &f));
    dataset->state = f;
    f->borrowed = !d->copy;
    return take(d, &f->images, &f->labels);
}

static dsc_status open_pixels(const dsc_memory_data *d, const dsc_data_options *options, dsc_dataset **out) {
    double mean[DSC_PIXEL_CHANNELS] = {0}, std[DSC_PIXEL_CHANNELS] = {1, 1, 1, 1};
    dsc_pixels *pixels;
    void *images;
    dsc_status status;
    DSC_TRY(dsc_memory_alloc(1, sizeof *pixels, &pixels));
    *pixels =
        (dsc_pixels){.count = d->count, .h = d->h, .w = d->w, .c = d->c, .pad = d->pad, .flip = d->flip};
    pixels->borrowed = !d->copy;
    status = take(d, &images, &pixels->labels);
    pixels->data = images;
    if (status != DSC_OK)
        goto fail;
    for (int64_t c = 0; c < d->c; c++) {
        mean[c] = d->mean ? d->mean[c] : mean[c];
        std[c] = d->std ? d->std[c] : std[c];
    }
    dsc_normalise_init(&pixels->normalise, (int)d->c, mean, std);
    DSC_TRY_GOTO(status, dsc_pixels_dataset(&pixels, d->name, DSC_SPLIT_TRAIN, d->classes, options, out),
                 fail);
    (*out)->label_count = d->label_count;
    (*out)->labelled = find_labelled(d);
    return DSC_OK;
fail:
    dsc_pixels_destroy(&pixels);
    return status;
}

dsc_status dsc_dataset_from_memory(const dsc_memory_data *data, dsc_dataset **out) {
    dsc_memory_data d;
    dsc_data_options options;
    dsc_memory_data_init(&d);
    dsc_data_options_init(&options);
    DSC_TRY(dsc_versioned_define("memory_data", data, sizeof d, &d));
    d.name = d.name ? d.name : "memory";
    d.label_count = d.label_count ? d.label_count : 1;
    options.seed = d.seed;
    DSC_TRY(check_memory(&d));
    if (d.dtype == DSC_U8)
        return open_pixels(&d, &options, out);
    dsc_dataset *dataset = NULL;
    DSC_TRY(dsc_dataset_create(&floats_type, d.name, DSC_SPLIT_TRAIN, &options, &dataset));
    dsc_status status = open_floats(&d, dataset);
    if (status != DSC_OK) {
        dsc_dataset_close(&dataset);
        return status;
    }
    dataset->info = (dsc_dataset_info){d.count, d.h, d.w, d.c, d.classes, dataset->info.name};
    dataset->label_count = d.label_count;
    dataset->labelled = find_labelled(&d);
    *out = dataset;
    return DSC_OK;
}

/* ---- a callback ---- */

void dsc_callback_data_init_sized(dsc_callback_data *data, size_t size) {
    const dsc_callback_data defaults = {0};
    dsc_versioned_init(data, size, &defaults, sizeof defaults);
}

static void close_callback(dsc_dataset *dataset) {
    dsc_callback_data *d = dataset->state;
    if (d && d->destroy)
        d->destroy(d->context);
    dsc_memory_free(&d);
}

static dsc_status sample_callback(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                                  dsc_scratch *scratch, float *x, int32_t *label) {
    (void)scratch;
    const dsc_callback_data *d = dataset->state;
    unsigned errors = dsc_error_count();
    dsc_status status = d->sample(d->context, index, augment, epoch, x, label);
    if (status != DSC_OK)
        return dsc_error_callback(status, errors, "sample", "data set '%s': sample %lld", dataset->info.name,
                                  (long long)index);
    return check_labels(&dataset->info, index, label, dataset->label_count);
}

static const dsc_dataset_type callback_type = {.close = close_callback, .sample = sample_callback};

dsc_status dsc_dataset_from_callback(const dsc_callback_data *data, dsc_dataset **out) {
    dsc_callback_data given, *state;
    dsc_data_options options;
    dsc_callback_data_init(&given);
    dsc_data_options_init(&options);
    DSC_TRY(dsc_versioned_define("callback_data", data, sizeof given, &given));
    given.name = given.name ? given.name : "callback";
    given.label_count = given.label_count ? given.label_count : 1;
    dsc_dataset_info info = {given.count, given.h, given.w, given.c, given.classes, given.name};
    DSC_TRY(check_info(&info, given.label_count));
    if (!(given.labelled >= 0 && given.labelled <= 1))
        return DSC_FAIL(DSC_E_INVALID, "data set '%s': a share of %g of its labels: must be 0 to 1",
                        given.name, given.labelled);
    if (given.label_count == 1 && given.labelled > 0 && given.labelled < 1)
        return DSC_FAIL(
            DSC_E_INVALID,
            "data set '%s': a share of %g of its labels, but samples with one label always have it: "
            "leave `labelled` out",
            given.name, given.labelled);
    if (!given.sample)
        return DSC_FAIL(DSC_E_INVALID, "data set '%s': it has no function `sample`", given.name);
    DSC_TRY(dsc_memory_alloc(1, sizeof *state, &state));
    dsc_dataset *dataset = NULL;
    dsc_status status = dsc_dataset_create(&callback_type, given.name, DSC_SPLIT_TRAIN, &options, &dataset);
    if (status != DSC_OK) {
        dsc_memory_free(&state);
        return status;
    }
    info.name = dataset->info.name;
    dataset->info = info;
    dataset->label_count = given.label_count;
    dataset->labelled = given.labelled;
    dataset->state = state;
    *state = given;
    state->name = info.name;
    *out = dataset;
    return DSC_OK;
}

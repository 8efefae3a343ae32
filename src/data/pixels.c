/* Images held in memory as bytes, normalised and augmented sample by sample. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"

#include <string.h>

dsc_status dsc_pixels_create(int64_t count, int64_t h, int64_t w, int64_t c, dsc_pixels **out) {
    dsc_status status;
    dsc_pixels *pixels;
    DSC_TRY(dsc_memory_alloc(1, sizeof *pixels, &pixels));
    pixels->count = count;
    pixels->h = h;
    pixels->w = w;
    pixels->c = c;
    DSC_TRY_GOTO(status, dsc_memory_alloc(count, (size_t)(h * w * c), &pixels->data), fail);
    DSC_TRY_GOTO(status, dsc_memory_alloc(count, sizeof *pixels->labels, &pixels->labels), fail);
    *out = pixels;
    return DSC_OK;
fail:
    dsc_pixels_destroy(&pixels);
    return status;
}

void dsc_pixels_destroy(dsc_pixels **pixels) {
    if (!*pixels)
        return;
    if (!(*pixels)->borrowed) {
        dsc_memory_free(&(*pixels)->data);
        dsc_memory_free(&(*pixels)->labels);
    }
    dsc_memory_free(pixels);
}

static dsc_crop crop_of(const dsc_dataset *dataset, const dsc_pixels *pixels, dsc_sample_key key) {
    dsc_crop crop = {0, 0, 0};
    if (key.augment && (pixels->pad > 0 || pixels->flip)) {
        dsc_rng rng = dsc_augment_rng(dataset->options.seed, key);
        crop = dsc_crop_draw(&rng, pixels->pad);
        crop.flip = crop.flip && pixels->flip;
    }
    return crop;
}

void dsc_pixels_present(const dsc_dataset *dataset, const dsc_pixels *pixels, const uint8_t *image,
                        dsc_sample_key key, float *x) {
    dsc_crop crop = crop_of(dataset, pixels, key);
    dsc_crop_apply(image, pixels->h, pixels->w, pixels->c, crop, &pixels->normalise, x);
}

static void copy_labels(const dsc_dataset *dataset, int64_t index, int32_t *label) {
    const dsc_pixels *pixels = dataset->state;
    memcpy(label, pixels->labels + index * dataset->label_count,
           (size_t)dataset->label_count * sizeof *label);
}

static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label) {
    (void)scratch;
    const dsc_pixels *pixels = dataset->state;
    const uint8_t *image = pixels->data + index * pixels->h * pixels->w * pixels->c;
    dsc_pixels_present(dataset, pixels, image, (dsc_sample_key){index, epoch, augment}, x);
    copy_labels(dataset, index, label);
    return DSC_OK;
}

/* ---- for devices that augment by themselves ---- */

void dsc_pixels_place(const dsc_dataset *dataset, const dsc_pixels *pixels, dsc_sample_key key,
                      int32_t place[3]) {
    dsc_crop crop = crop_of(dataset, pixels, key);
    place[0] = (int32_t)crop.top;
    place[1] = (int32_t)crop.left;
    place[2] = crop.flip;
}

static void raw(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch, dsc_raw_sample *out) {
    const dsc_pixels *pixels = dataset->state;
    int64_t bytes = pixels->h * pixels->w * pixels->c;
    memcpy(out->image, pixels->data + index * bytes, (size_t)bytes);
    dsc_pixels_place(dataset, pixels, (dsc_sample_key){index, epoch, augment}, out->place);
    copy_labels(dataset, index, out->label);
}

/* The table of normalised values is linear, so two of its entries give scale and shift. */
void dsc_pixels_desc(const dsc_pixels *pixels, dsc_augment_desc *desc) {
    *desc = (dsc_augment_desc){{0}, {0}, {0}};
    for (int64_t c = 0; c < pixels->c; c++) {
        const float *value = pixels->normalise.value[c];
        desc->scale[c] = (float)(((double)value[255] - (double)value[0]) / 255);
        desc->shift[c] = desc->outside[c] = value[0];
    }
}

static void raw_desc(const dsc_dataset *dataset, dsc_augment_desc *desc) {
    dsc_pixels_desc(dataset->state, desc);
}

static int32_t label_of(const dsc_dataset *dataset, int64_t index) {
    const dsc_pixels *pixels = dataset->state;
    return pixels->labels[index];
}

/* ---- the data set ---- */

static void close_set(dsc_dataset *dataset) {
    dsc_pixels *pixels = dataset->state;
    dsc_pixels_destroy(&pixels);
}

static const dsc_dataset_type pixels_type = {
    .close = close_set, .sample = sample, .raw = raw, .raw_desc = raw_desc, .label = label_of};

dsc_status dsc_pixels_dataset(dsc_pixels **pixels, const char *name, dsc_split split, int64_t classes,
                              const dsc_data_options *options, dsc_dataset **out) {
    DSC_TRY(dsc_dataset_create(&pixels_type, name, split, options, out));
    const dsc_pixels *p = *pixels;
    dsc_dataset_info *info = &(*out)->info;
    info->count = p->count;
    info->h = p->h;
    info->w = p->w;
    info->c = p->c;
    info->classes = classes;
    dsc_dataset_note_normalisation(*out, p->normalise.mean, p->normalise.std);
    (*out)->state = *pixels;
    *pixels = NULL;
    return DSC_OK;
}

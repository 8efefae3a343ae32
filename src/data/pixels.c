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
    pixels->pad = -1;
    DSC_TRY_GOTO(status, dsc_memory_alloc(count, (size_t)(h * w * c), &pixels->data), fail);
    DSC_TRY_GOTO(status, dsc_memory_alloc(count, 1, &pixels->labels), fail);
    *out = pixels;
    return DSC_OK;
fail:
    dsc_pixels_destroy(&pixels);
    return status;
}

void dsc_pixels_destroy(dsc_pixels **pixels) {
    if (!*pixels)
        return;
    dsc_memory_free(&(*pixels)->data);
    dsc_memory_free(&(*pixels)->labels);
    dsc_memory_free(pixels);
}

void dsc_pixels_set_info(const dsc_pixels *pixels, int64_t classes, dsc_dataset *dataset) {
    dataset->info.count = pixels->count;
    dataset->info.h = pixels->h;
    dataset->info.w = pixels->w;
    dataset->info.c = pixels->c;
    dataset->info.classes = classes;
}

void dsc_pixels_close(dsc_dataset *dataset) {
    dsc_pixels *pixels = dataset->state;
    dsc_pixels_destroy(&pixels);
    dataset->state = NULL;
}

static dsc_crop crop_of(const dsc_dataset *dataset, const dsc_pixels *pixels, dsc_sample_key key) {
    dsc_crop crop = {0, 0, 0};
    if (key.augment && pixels->pad >= 0) {
        dsc_rng rng = dsc_augment_rng(dataset->options.seed, key);
        crop = dsc_crop_draw(&rng, pixels->pad);
    }
    return crop;
}

void dsc_pixels_present(const dsc_dataset *dataset, const dsc_pixels *pixels, const uint8_t *image,
                        dsc_sample_key key, float *x) {
    dsc_crop crop = crop_of(dataset, pixels, key);
    dsc_crop_apply(image, pixels->h, pixels->w, pixels->c, crop, &pixels->normalise, x);
}

dsc_status dsc_pixels_sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                             dsc_scratch *scratch, float *x, int32_t *label) {
    (void)scratch;
    const dsc_pixels *pixels = dataset->state;
    const uint8_t *image = pixels->data + index * pixels->h * pixels->w * pixels->c;
    dsc_pixels_present(dataset, pixels, image, (dsc_sample_key){index, epoch, augment}, x);
    *label = pixels->labels[index];
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

void dsc_pixels_raw(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                    dsc_raw_sample *out) {
    const dsc_pixels *pixels = dataset->state;
    int64_t bytes = pixels->h * pixels->w * pixels->c;
    memcpy(out->image, pixels->data + index * bytes, (size_t)bytes);
    dsc_pixels_place(dataset, pixels, (dsc_sample_key){index, epoch, augment}, out->place);
    *out->label = pixels->labels[index];
}

/* The table of normalised values is a line through its ends. */
void dsc_pixels_desc(const dsc_pixels *pixels, dsc_augment_desc *desc) {
    *desc = (dsc_augment_desc){{0}, {0}, {0}};
    for (int64_t c = 0; c < pixels->c; c++) {
        const float *value = pixels->normalise.value[c];
        desc->scale[c] = (float)(((double)value[255] - (double)value[0]) / 255);
        desc->shift[c] = desc->outside[c] = value[0];
    }
}

void dsc_pixels_raw_desc(const dsc_dataset *dataset, dsc_augment_desc *desc) {
    dsc_pixels_desc(dataset->state, desc);
}

/* Images held in memory as bytes, normalised and augmented sample by sample. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"

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

void dsc_pixels_present(const dsc_dataset *dataset, const dsc_pixels *pixels, const uint8_t *image,
                        dsc_sample_key key, float *x) {
    dsc_crop crop = {0, 0, 0};
    if (key.augment && pixels->pad >= 0) {
        dsc_rng rng = dsc_augment_rng(dataset->options.seed, key);
        crop = dsc_crop_draw(&rng, pixels->pad);
    }
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

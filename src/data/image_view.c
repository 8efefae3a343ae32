/* Crops of encoded images. */
#include "data/image_view.h"

#include "base/error.h"
#include "data/resample.h"

#include <math.h>
#include <string.h>
#include <strings.h>

enum { DEFAULT_SIZE = 224, MAX_SIZE = 4096 };

const double dsc_image_mean[3] = {0.485, 0.456, 0.406}, dsc_image_std[3] = {0.229, 0.224, 0.225};

int dsc_image_has_name(const char *name) {
    static const char *const endings[] = {".jpg", ".jpeg", ".png", ".webp"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return 1;
    return 0;
}

dsc_status dsc_image_side(const char *kind, const dsc_data_options *options, int64_t *side) {
    *side = options->image_size ? options->image_size : DEFAULT_SIZE;
    if (*side < 1 || *side > MAX_SIZE)
        return DSC_FAIL(DSC_E_INVALID, "%s: image size %lld: must be 1 to %d", kind, (long long)*side,
                        MAX_SIZE);
    return DSC_OK;
}

/* What to cut out of an image of h x w, and how large it becomes. */
typedef struct view {
    dsc_box box;
    int64_t total_h, total_w, top, left;
    int flip;
} view;

static view training_view(dsc_rng *rng, int64_t h, int64_t w, int64_t size) {
    view v = {dsc_box_draw(rng, h, w), size, size, 0, 0, 0};
    v.flip = (int)(dsc_rng_u32(rng) >> 31);
    return v;
}

static view evaluation_view(int64_t h, int64_t w, int64_t size) {
    int64_t side = llround((double)size * 256 / 224);
    view v = {{0, 0, (double)w, (double)h}, side, side, 0, 0, 0};
    if (h < w)
        v.total_w = side * w / h;
    else
        v.total_h = side * h / w;
    v.top = llrint((double)(v.total_h - size) / 2);
    v.left = llrint((double)(v.total_w - size) / 2);
    return v;
}

/* The largest reduction in decoding that leaves at least the wanted number of pixels. */
static int choose_shrink(const view *v) {
    int shrink = 8;
    while (shrink > 1 && (v->box.h / shrink < (double)v->total_h || v->box.w / shrink < (double)v->total_w))
        shrink /= 2;
    return shrink;
}

/* Bytes to normalised floats, flipped where the view says so. */
static void finish(int64_t size, int flip, float *x) {
    const float mean[3] = {(float)dsc_image_mean[0], (float)dsc_image_mean[1], (float)dsc_image_mean[2]};
    const float std[3] = {(float)dsc_image_std[0], (float)dsc_image_std[1], (float)dsc_image_std[2]};
    for (int64_t y = 0; y < size; y++) {
        float *row = x + y * size * 3;
        for (int64_t i = 0; flip && i < size / 2; i++) {
            float *a = row + 3 * i, *b = row + 3 * (size - 1 - i);
            for (int c = 0; c < 3; c++) {
                float swap = a[c];
                a[c] = b[c];
                b[c] = swap;
            }
        }
        for (int64_t i = 0; i < size; i++)
            for (int c = 0; c < 3; c++)
                row[3 * i + c] = (row[3 * i + c] / 255 - mean[c]) / std[c];
    }
}

dsc_status dsc_image_present(const dsc_dataset *dataset, const dsc_encoded *encoded, dsc_sample_key key,
                             dsc_scratch *scratch, float *x) {
    int64_t h = 0, w = 0, got_h = 0, got_w = 0, size = dataset->info.h;
    DSC_TRY(dsc_image_size(encoded, &h, &w));
    dsc_rng rng = dsc_augment_rng(dataset->options.seed, key);
    view v = key.augment ? training_view(&rng, h, w, size) : evaluation_view(h, w, size);
    DSC_TRY(dsc_image_decode(encoded, choose_shrink(&v), &scratch->image, &got_h, &got_w));
    double by_h = (double)got_h / (double)h, by_w = (double)got_w / (double)w;
    dsc_resample_axis down = {got_h, v.box.y * by_h, v.box.h * by_h, v.total_h, v.top, size};
    dsc_resample_axis across = {got_w, v.box.x * by_w, v.box.w * by_w, v.total_w, v.left, size};
    DSC_TRY(dsc_resample(scratch->image.data, &down, &across, &scratch->resample, x));
    finish(size, v.flip, x);
    return DSC_OK;
}

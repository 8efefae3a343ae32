/* Crops of encoded images. */
#include "data/image_view.h"

#include "base/error.h"
#include "data/resample.h"

#include <math.h>
#include <string.h>
#include <strings.h>

enum { DEFAULT_SIZE = 224, MAX_SIZE = 4096, MAX_RESIZE = 1 << 16 };

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
    if (options->resize != 0 && (options->resize < *side || options->resize > MAX_RESIZE))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s: images scaled to %lld pixels: must be 0, or %lld (their size) to %d", kind,
                        (long long)options->resize, (long long)*side, MAX_RESIZE);
    if (!options->mean != !options->std)
        return DSC_FAIL(DSC_E_INVALID, "%s: mean without std, or std without mean: give both or none", kind);
    for (int c = 0; options->std && c < 3; c++)
        if (!(options->std[c] > 0) || !isfinite(options->std[c]) || !isfinite(options->mean[c]))
            return DSC_FAIL(DSC_E_INVALID, "%s: mean %g, std %g: must be finite, and std above 0", kind,
                            options->mean[c], options->std[c]);
    return DSC_OK;
}

void dsc_image_form_samples(dsc_dataset *dataset, const dsc_data_options *options, int64_t side) {
    dataset->info.h = dataset->info.w = side;
    dataset->info.c = 3;
    dataset->resize = options->resize ? options->resize : dsc_image_evaluation_side(side);
    dsc_dataset_note_normalisation(dataset, options->mean ? options->mean : dsc_image_mean,
                                   options->std ? options->std : dsc_image_std);
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

int64_t dsc_image_evaluation_side(int64_t size) {
    return llround((double)size * 256 / 224);
}

static view evaluation_view(int64_t h, int64_t w, int64_t size, int64_t side) {
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
static void finish(const dsc_dataset *dataset, int flip, float *x) {
    const int64_t size = dataset->info.h;
    const double *m = dataset->mean, *s = dataset->std;
    const float mean[3] = {(float)m[0], (float)m[1], (float)m[2]};
    const float std[3] = {(float)s[0], (float)s[1], (float)s[2]};
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

/* Decodes an image of h x w pixels, and scales the view of it to x[size,size,3], from 0 to 255. If `grey`, the result
 * is in scratch->file instead, which may hold the encoded image before. *out points to the result. */
static dsc_status cut_out(const dsc_encoded *encoded, const int64_t hw[2], const view *v, int64_t size,
                          int grey, dsc_scratch *scratch, float *x, float **out) {
    int64_t got_h = 0, got_w = 0;
    *out = x;
    DSC_TRY(dsc_image_decode(encoded, choose_shrink(v), &scratch->image, &got_h, &got_w));
    if (grey) {
        DSC_TRY(dsc_bytes_reserve(&scratch->file, size * size * 3 * (int64_t)sizeof *x));
        *out = (float *)(void *)scratch->file.data;
    }
    double by_h = (double)got_h / (double)hw[0], by_w = (double)got_w / (double)hw[1];
    dsc_resample_axis down = {got_h, v->box.y * by_h, v->box.h * by_h, v->total_h, v->top, size};
    dsc_resample_axis across = {got_w, v->box.x * by_w, v->box.w * by_w, v->total_w, v->left, size};
    return dsc_resample(scratch->image.data, &down, &across, &scratch->resample, *out);
}

dsc_status dsc_image_present(const dsc_dataset *dataset, const dsc_encoded *encoded, dsc_sample_key key,
                             dsc_scratch *scratch, float *x) {
    int64_t hw[2] = {0, 0}, size = dataset->info.h;
    DSC_TRY(dsc_image_size(encoded, &hw[0], &hw[1]));
    dsc_rng rng = dsc_augment_rng(dataset->options.seed, key);
    view v = key.augment ? training_view(&rng, hw[0], hw[1], size)
                         : evaluation_view(hw[0], hw[1], size, dataset->resize);
    DSC_TRY(cut_out(encoded, hw, &v, size, 0, scratch, x, &x));
    finish(dataset, v.flip, x);
    return DSC_OK;
}

dsc_status dsc_image_evaluate(const dsc_encoded *encoded, const dsc_image_form *form, dsc_scratch *scratch,
                              float *x) {
    int64_t hw[2] = {0, 0};
    float *colours = NULL;
    const int channels = form->channels;
    DSC_TRY(dsc_image_size(encoded, &hw[0], &hw[1]));
    view v = evaluation_view(hw[0], hw[1], form->size, form->side);
    DSC_TRY(cut_out(encoded, hw, &v, form->size, channels == 1, scratch, x, &colours));
    for (int64_t i = 0; i < form->size * form->size; i++) {
        float *p = colours + 3 * i;
        if (channels == 1) /* exact where the colours are equal */
            p[0] = p[1] + 0.299f * (p[0] - p[1]) + 0.114f * (p[2] - p[1]);
        for (int c = 0; c < channels; c++)
            x[i * channels + c] = (p[c] / 255 - (float)form->mean[c]) / (float)form->std[c];
    }
    return DSC_OK;
}

#include "data/mix.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

dsc_status dsc_mix_check(const dsc_loader_options *o, const dsc_dataset *dataset) {
    double mean[DSC_PIXEL_CHANNELS], std[DSC_PIXEL_CHANNELS];
    if (!(o->mixup >= 0 && o->mixup <= 100) || !(o->cutmix >= 0 && o->cutmix <= 100))
        return DSC_FAIL(DSC_E_INVALID, "mixup %g, cutmix %g: must be 0 to 100", o->mixup, o->cutmix);
    if (!(o->random_erasing >= 0 && o->random_erasing <= 1))
        return DSC_FAIL(DSC_E_INVALID, "random erasing %g: must be a probability, 0 to 1", o->random_erasing);
    if (!(o->randaugment >= 0 && o->randaugment <= 30) || o->randaugment_ops < 0 || o->randaugment_ops > 100)
        return DSC_FAIL(DSC_E_INVALID, "randaugment %g with %d operations: must be 0 to 30, and 0 to 100",
                        o->randaugment, o->randaugment_ops);
    if (dsc_mix_is_on(o) && dataset->label_count > 1)
        return DSC_FAIL(
            DSC_E_INVALID,
            "mixup, cutmix, random erasing and randaugment need one label per sample, and those of %s "
            "have %lld: turn these options off",
            dataset->info.name, (long long)dataset->label_count);
    if (o->randaugment > 0 && !dsc_dataset_normalisation(dataset, mean, std))
        return DSC_FAIL(DSC_E_INVALID,
                        "randaugment needs images made of bytes, and the samples of %s are not",
                        dataset->info.name);
    return DSC_OK;
}

int dsc_mix_mixes(const dsc_loader_options *o) {
    return o->mixup > 0 || o->cutmix > 0;
}

int dsc_mix_is_on(const dsc_loader_options *o) {
    return dsc_mix_mixes(o) || o->random_erasing > 0 || o->randaugment > 0;
}

/* ---- one sample ---- */

/* Applies RandAugment to a sample, which is converted back to bytes for it: x = (byte / 255 - mean) / std. */
static dsc_status vary_bytes(const dsc_loader_options *o, const dsc_dataset *dataset, dsc_rng *rng,
                             dsc_bytes *image, float *x) {
    const dsc_dataset_info *info = &dataset->info;
    const int64_t size = info->h * info->w * info->c;
    double mean[DSC_PIXEL_CHANNELS] = {0}, std[DSC_PIXEL_CHANNELS] = {0};
    DSC_TRY(dsc_bytes_reserve(image, 2 * size));
    dsc_dataset_normalisation(dataset, mean, std);
    for (int64_t i = 0; i < size; i++) {
        int64_t k = i % info->c;
        double value = round(255 * ((double)x[i] * std[k] + mean[k]));
        image->data[i] = (uint8_t)fmin(fmax(value, 0), 255);
    }
    dsc_randaugment(rng, o->randaugment_ops, o->randaugment, info->h, info->w, info->c, image->data,
                    image->data + size);
    for (int64_t i = 0; i < size; i++) {
        int64_t k = i % info->c;
        x[i] = (float)((image->data[i] / 255.0 - mean[k]) / std[k]);
    }
    return DSC_OK;
}

/* A box of 2 to 33 % of the area and an aspect ratio of 0.3 to 3.3 becomes 0, the mean; after ten boxes that do not
 * fit the sample stays as it is. */
static void erase(const dsc_dataset_info *info, dsc_rng *rng, float *x) {
    for (int i = 0; i < 10; i++) {
        double area = (double)(info->h * info->w) * (0.02 + 0.31 * (double)dsc_rng_uniform(rng));
        double ratio = exp(log(0.3) + (log(3.3) - log(0.3)) * (double)dsc_rng_uniform(rng));
        int64_t h = llround(sqrt(area * ratio)), w = llround(sqrt(area / ratio));
        if (h < 1 || w < 1 || h >= info->h || w >= info->w)
            continue;
        int64_t top = dsc_rng_below(rng, (uint32_t)(info->h - h + 1));
        int64_t left = dsc_rng_below(rng, (uint32_t)(info->w - w + 1));
        for (int64_t y = top; y < top + h; y++)
            memset(x + (y * info->w + left) * info->c, 0, (size_t)(w * info->c) * sizeof *x);
        return;
    }
}

dsc_status dsc_mix_vary(const dsc_loader_options *o, const dsc_dataset *dataset, int64_t epoch, int64_t index,
                        dsc_bytes *image, float *x) {
    dsc_rng rng = dsc_rng_start(o->seed, DSC_RNG_VARY, (uint32_t)epoch, (uint64_t)index);
    if (o->randaugment > 0)
        DSC_TRY(vary_bytes(o, dataset, &rng, image, x));
    if (o->random_erasing > 0 && (double)dsc_rng_uniform(&rng) < o->random_erasing)
        erase(&dataset->info, &rng, x);
    return DSC_OK;
}

/* ---- two samples ---- */

/* Gamma(a, 1) by Marsaglia and Tsang 2000; a < 1 by way of a + 1. */
static double draw_gamma(dsc_rng *rng, double a) {
    if (a < 1) {
        double u = (double)dsc_rng_uniform(rng);
        return draw_gamma(rng, a + 1) * pow(u, 1 / a);
    }
    const double d = a - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = dsc_rng_normal(rng), v = 1 + c * x, u = (double)dsc_rng_uniform(rng);
        v = v * v * v;
        if (v > 0 && log(u) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v;
    }
}

/* min(lambda, 1 - lambda) for lambda from Beta(alpha, alpha). */
static double draw_share(dsc_rng *rng, double alpha) {
    double a = draw_gamma(rng, alpha), b = draw_gamma(rng, alpha);
    return a + b > 0 ? fmin(a, b) / (a + b) : 0;
}

static void draw_box(const dsc_dataset_info *info, dsc_rng *rng, dsc_mix_choice *m) {
    m->h = llround((double)info->h * sqrt(m->share));
    m->w = llround((double)info->w * sqrt(m->share));
    m->top = dsc_rng_below(rng, (uint32_t)(info->h - m->h + 1));
    m->left = dsc_rng_below(rng, (uint32_t)(info->w - m->w + 1));
    m->share = (double)(m->h * m->w) / (double)(info->h * info->w);
}

dsc_mix_choice dsc_mix_draw(const dsc_loader_options *o, const dsc_dataset_info *info, int64_t places,
                            int64_t epoch, int64_t index) {
    dsc_rng rng = dsc_rng_start(o->seed, DSC_RNG_MIX, (uint32_t)epoch, (uint64_t)index);
    dsc_mix_choice m = {.other = dsc_rng_below(&rng, (uint32_t)places)};
    m.cut = dsc_rng_u32(&rng) >> 31;
    if (o->mixup <= 0 || o->cutmix <= 0) /* else each of them half of the time */
        m.cut = o->cutmix > 0;
    m.share = draw_share(&rng, m.cut ? o->cutmix : o->mixup);
    if (m.cut)
        draw_box(info, &rng, &m);
    return m;
}

void dsc_mix_apply(const dsc_mix_choice *choice, const dsc_dataset_info *info, const float *other, float *x) {
    if (choice->cut) {
        for (int64_t y = choice->top; y < choice->top + choice->h; y++) {
            int64_t at = (y * info->w + choice->left) * info->c;
            memcpy(x + at, other + at, (size_t)(choice->w * info->c) * sizeof *x);
        }
        return;
    }
    const float share = (float)choice->share, rest = (float)(1 - choice->share);
    for (int64_t i = 0; i < info->h * info->w * info->c; i++)
        x[i] = rest * x[i] + share * other[i];
}

/* RandAugment (Cubuk et al. 2020): operations on images of bytes, with one magnitude for all of them. */
#include "data/mix.h"

#include <math.h>
#include <string.h>

/* An image, and memory of the same size. */
typedef struct canvas {
    int64_t h, w, c;
    uint8_t *image, *work;
} canvas;

static uint8_t to_byte(double value) {
    return (uint8_t)fmin(fmax(round(value), 0), 255);
}

/* ---- geometry ---- */

/* Pixel (x, y), counted from the centre, becomes that at (a x + b y + e, c x + d y + f); black outside. */
static void transform(const canvas *v, const double m[6]) {
    const double cx = (double)(v->w - 1) / 2, cy = (double)(v->h - 1) / 2;
    memcpy(v->work, v->image, (size_t)(v->h * v->w * v->c));
    for (int64_t y = 0; y < v->h; y++)
        for (int64_t x = 0; x < v->w; x++) {
            double dx = (double)x - cx, dy = (double)y - cy;
            int64_t from_x = llround(m[0] * dx + m[1] * dy + m[4] + cx);
            int64_t from_y = llround(m[2] * dx + m[3] * dy + m[5] + cy);
            int inside = from_x >= 0 && from_x < v->w && from_y >= 0 && from_y < v->h;
            uint8_t *to = v->image + (y * v->w + x) * v->c;
            if (inside)
                memcpy(to, v->work + (from_y * v->w + from_x) * v->c, (size_t)v->c);
            else
                memset(to, 0, (size_t)v->c);
        }
}

/* ---- colours ---- */

static double grey(const canvas *v, const uint8_t *pixel) {
    return v->c < 3 ? pixel[0] : round(0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]);
}

static double mean_grey(const canvas *v) {
    double sum = 0;
    for (int64_t i = 0; i < v->h * v->w; i++)
        sum += grey(v, v->image + i * v->c);
    return round(sum / (double)(v->h * v->w));
}

/* A value of the smoothed image, in which each pixel p but those of the border is (5 p + the sum of its 8 neighbours)
 * / 13. */
static double smoothed(const canvas *v, int64_t y, int64_t x, int64_t k) {
    double sum = 4.0 * v->work[(y * v->w + x) * v->c + k];
    if (y == 0 || x == 0 || y == v->h - 1 || x == v->w - 1)
        return v->work[(y * v->w + x) * v->c + k];
    for (int64_t i = y - 1; i <= y + 1; i++)
        for (int64_t j = x - 1; j <= x + 1; j++)
            sum += v->work[(i * v->w + j) * v->c + k];
    return round(sum / 13);
}

/* value = base + factor (value - base), where the base is black, the grey pixel, the mean grey or the smoothed image,
 * by operation. */
static void blend(const canvas *v, dsc_vary_op op, double factor) {
    const double middle = op == DSC_VARY_CONTRAST ? mean_grey(v) : 0;
    memcpy(v->work, v->image, (size_t)(v->h * v->w * v->c));
    for (int64_t y = 0; y < v->h; y++)
        for (int64_t x = 0; x < v->w; x++) {
            uint8_t *pixel = v->image + (y * v->w + x) * v->c;
            double base = op == DSC_VARY_COLOUR ? grey(v, pixel) : middle;
            for (int64_t k = 0; k < v->c; k++) {
                if (op == DSC_VARY_SHARPNESS)
                    base = smoothed(v, y, x, k);
                pixel[k] = to_byte(base + factor * (pixel[k] - base));
            }
        }
}

/* ---- tables: every value becomes another, by channel ---- */

static void look_up(const canvas *v, int64_t channel, const uint8_t table[256]) {
    for (int64_t i = 0; i < v->h * v->w; i++)
        v->image[i * v->c + channel] = table[v->image[i * v->c + channel]];
}

/* The darkest value becomes 0, the lightest 255. */
static void stretch(const int64_t histogram[256], uint8_t table[256]) {
    int low = 0, high = 255;
    while (low < 255 && !histogram[low])
        low++;
    while (high > 0 && !histogram[high])
        high--;
    for (int i = 0; i < 256; i++)
        table[i] = low < high ? to_byte(255.0 * (i - low) / (high - low)) : (uint8_t)i;
}

/* Makes the values about equally frequent, as PIL does: a step of the last value's rank is one level. */
static void equalize(const int64_t histogram[256], uint8_t table[256]) {
    int64_t sum = 0, last = 0, used = 0;
    for (int i = 0; i < 256; i++) {
        sum += histogram[i];
        last = histogram[i] ? histogram[i] : last;
        used += histogram[i] > 0;
    }
    const int64_t step = (sum - last) / 255;
    int64_t before = step / 2;
    for (int i = 0; i < 256; i++) {
        int64_t level = step > 0 && used > 1 ? before / step : i;
        table[i] = (uint8_t)(level < 255 ? level : 255);
        before += histogram[i];
    }
}

static void fill_table(dsc_vary_op op, double strength, const int64_t histogram[256], uint8_t table[256]) {
    if (op == DSC_VARY_AUTOCONTRAST)
        stretch(histogram, table);
    else if (op == DSC_VARY_EQUALIZE)
        equalize(histogram, table);
    else
        for (int i = 0; i < 256; i++)
            table[i] = (uint8_t)(op == DSC_VARY_POSTERIZE      ? i & (0xFF << (int)strength)
                                 : (double)i >= 256 - strength ? 255 - i
                                                               : i);
}

static void change_levels(const canvas *v, dsc_vary_op op, double strength) {
    for (int64_t k = 0; k < v->c; k++) {
        int64_t histogram[256] = {0};
        uint8_t table[256];
        for (int64_t i = 0; i < v->h * v->w; i++)
            histogram[v->image[i * v->c + k]]++;
        fill_table(op, strength, histogram, table);
        look_up(v, k, table);
    }
}

/* ---- all of them ---- */

void dsc_vary_apply(dsc_vary_op op, double strength, int64_t h, int64_t w, int64_t c, uint8_t *image,
                    uint8_t *work) {
    const canvas v = {h, w, c, image, work};
    const double angle = strength * 3.14159265358979323846 / 180;
    switch (op) {
    case DSC_VARY_SHEAR_X:
        transform(&v, (const double[6]){1, strength, 0, 1, 0, 0});
        break;
    case DSC_VARY_SHEAR_Y:
        transform(&v, (const double[6]){1, 0, strength, 1, 0, 0});
        break;
    case DSC_VARY_TRANSLATE_X:
        transform(&v, (const double[6]){1, 0, 0, 1, strength * (double)w, 0});
        break;
    case DSC_VARY_TRANSLATE_Y:
        transform(&v, (const double[6]){1, 0, 0, 1, 0, strength * (double)h});
        break;
    case DSC_VARY_ROTATE:
        transform(&v, (const double[6]){cos(angle), sin(angle), -sin(angle), cos(angle), 0, 0});
        break;
    case DSC_VARY_BRIGHTNESS:
    case DSC_VARY_COLOUR:
    case DSC_VARY_CONTRAST:
    case DSC_VARY_SHARPNESS:
        blend(&v, op, 1 + strength);
        break;
    case DSC_VARY_POSTERIZE:
    case DSC_VARY_SOLARIZE:
    case DSC_VARY_AUTOCONTRAST:
    case DSC_VARY_EQUALIZE:
        change_levels(&v, op, strength);
        break;
    case DSC_VARY_IDENTITY:
    case DSC_VARY_COUNT:
        break;
    }
}

void dsc_randaugment(dsc_rng *rng, int ops, double magnitude, int64_t h, int64_t w, int64_t c, uint8_t *image,
                     uint8_t *work) {
    /* Strength at magnitude 30; has_sign 1: the sign is drawn at random. */
    static const struct {
        double most;
        int has_sign;
    } table[DSC_VARY_COUNT] = {
        [DSC_VARY_SHEAR_X] = {0.3, 1},
        [DSC_VARY_SHEAR_Y] = {0.3, 1},
        [DSC_VARY_TRANSLATE_X] = {150.0 / 331, 1},
        [DSC_VARY_TRANSLATE_Y] = {150.0 / 331, 1},
        [DSC_VARY_ROTATE] = {30, 1},
        [DSC_VARY_BRIGHTNESS] = {0.9, 1},
        [DSC_VARY_COLOUR] = {0.9, 1},
        [DSC_VARY_CONTRAST] = {0.9, 1},
        [DSC_VARY_SHARPNESS] = {0.9, 1},
        [DSC_VARY_POSTERIZE] = {4, 0},
        [DSC_VARY_SOLARIZE] = {256, 0},
    };
    for (int i = 0; i < ops; i++) {
        dsc_vary_op op = (dsc_vary_op)dsc_rng_below(rng, DSC_VARY_COUNT);
        int negative = (int)(dsc_rng_u32(rng) >> 31) && table[op].has_sign;
        double strength = table[op].most * magnitude / 30;
        if (op == DSC_VARY_POSTERIZE)
            strength = round(strength);
        dsc_vary_apply(op, negative ? -strength : strength, h, w, c, image, work);
    }
}

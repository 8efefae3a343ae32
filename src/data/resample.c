/* Separable resampling with a triangle filter.
 *
 * With s = length / total, output o has its centre at m = start + (o + 1/2) s and is the mean of the pixels k
 * weighted by max(0, 1 - |k + 1/2 - m| / max(s, 1)), pixels outside the stretch left out. For s <= 1 this is
 * bilinear interpolation, for s = 1 and whole numbers the identity. First along x, for the rows that the
 * second pass needs, then along y. */
#include "data/resample.h"

#include "base/error.h"

#include <math.h>

/* The weights of one axis: output i is the sum of weight[i * taps + k] * input[first[i] + k], k < number[i].
 */
typedef struct filter {
    int64_t taps;
    int64_t *first, *number;
    float *weight;
} filter;

static int64_t taps_of(const dsc_resample_axis *axis) {
    double scale = axis->length / (double)axis->total;
    return 2 * (int64_t)ceil(scale > 1 ? scale : 1) + 2;
}

static size_t filter_bytes(const dsc_resample_axis *axis) {
    size_t rows = (size_t)axis->count;
    return rows * (2 * sizeof(int64_t) + (size_t)taps_of(axis) * sizeof(float) + sizeof(int64_t));
}

static void fill_filter(const dsc_resample_axis *axis, filter *f) {
    double scale = axis->length / (double)axis->total;
    double width = scale > 1 ? scale : 1;
    double low = fmax(floor(axis->start), 0), high = fmin(ceil(axis->start + axis->length), (double)axis->in);
    for (int64_t i = 0; i < axis->count; i++) {
        double centre = axis->start + ((double)(axis->first + i) + 0.5) * scale;
        int64_t first = (int64_t)fmax(floor(centre - width + 0.5), low);
        int64_t end = (int64_t)fmin(floor(centre + width + 0.5), high);
        if (first >= end) /* rounding at the far edge */
            first = end - 1;
        float *weight = f->weight + i * f->taps;
        double sum = 0;
        for (int64_t k = first; k < end; k++)
            sum += fmax(0, 1 - fabs((double)k + 0.5 - centre) / width);
        for (int64_t k = first; k < end; k++)
            weight[k - first] = (float)(fmax(0, 1 - fabs((double)k + 0.5 - centre) / width) / sum);
        f->first[i] = first;
        f->number[i] = end - first;
    }
}

/* Takes the filter's arrays from `place` and returns what follows them. */
static uint8_t *make_filter(const dsc_resample_axis *axis, uint8_t *place, filter *f) {
    f->taps = taps_of(axis);
    f->first = (int64_t *)(void *)place;
    f->number = f->first + axis->count;
    f->weight = (float *)(void *)(f->number + axis->count);
    fill_filter(axis, f);
    return place + (filter_bytes(axis) + 7) / 8 * 8;
}

/* row[count, 3] = filtered line[in, 3]. */
static void filter_line(const uint8_t *line, const filter *f, int64_t count, float *row) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *pixel = line + 3 * f->first[i];
        const float *weight = f->weight + i * f->taps;
        float r = 0, g = 0, b = 0;
        for (int64_t k = 0; k < f->number[i]; k++) {
            r += weight[k] * pixel[3 * k];
            g += weight[k] * pixel[3 * k + 1];
            b += weight[k] * pixel[3 * k + 2];
        }
        row[3 * i] = r;
        row[3 * i + 1] = g;
        row[3 * i + 2] = b;
    }
}

dsc_status dsc_resample(const uint8_t *image, const dsc_resample_axis *y, const dsc_resample_axis *x,
                        dsc_bytes *scratch, float *out) {
    int64_t width = x->count * 3;
    double scale = y->length / (double)y->total;
    int64_t most_rows = (int64_t)ceil((double)y->count * scale + 2 * fmax(scale, 1)) + 3;
    size_t bytes = filter_bytes(x) + filter_bytes(y) + 16;
    DSC_TRY(dsc_bytes_reserve(scratch, (int64_t)bytes + most_rows * width * (int64_t)sizeof(float)));
    filter across, down;
    uint8_t *rest = make_filter(x, scratch->data, &across);
    float *rows = (float *)(void *)make_filter(y, rest, &down);
    int64_t top = down.first[0];
    int64_t bottom = down.first[y->count - 1] + down.number[y->count - 1];
    for (int64_t i = top; i < bottom; i++)
        filter_line(image + i * x->in * 3, &across, x->count, rows + (i - top) * width);
    for (int64_t i = 0; i < y->count; i++) {
        const float *from = rows + (down.first[i] - top) * width;
        float *to = out + i * width;
        for (int64_t j = 0; j < width; j++)
            to[j] = down.weight[i * down.taps] * from[j];
        for (int64_t k = 1; k < down.number[i]; k++)
            for (int64_t j = 0; j < width; j++)
                to[j] += down.weight[i * down.taps + k] * from[k * width + j];
    }
    return DSC_OK;
}

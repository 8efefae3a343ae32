/* The U-Net (Ronneberger et al. 2015): `depth` times a block of two 3x3 convolutions and 2x2 max pooling, a block at
 * the bottom, then `depth` times a transposed convolution that doubles the map, a concatenation with the output of the
 * block at the same level on the way down, and a block. Blocks have width, 2 width, 4 width, ... and at the bottom
 * 2^depth width channels. A 1x1 convolution gives the logits of every pixel. The published depth is 4.
 *
 * As published, convolutions are not padded, so the outputs of the blocks on the way down are cropped, and the output
 * is smaller than the input. With b, the side of the bottom block's output, the sides are
 *   input 2^depth (b + 8) - 4,   output 2^depth (b - 4) + 4,
 * so that a margin of 6 2^depth - 4 pixels at each side is lost, 92 at depth 4. With batch_norm convolutions are padded
 * and have batch norm instead of biases, and the output is as large as the input: this is the variant for brain MRI of
 * Buda et al. 2019, from which both variants take their names of layers. The initial weights of this variant have the
 * variance of PyTorch's default, 1/3 over the fan-in, which is a sixth of He's. A batch norm cancels the scale of the
 * weights before it, so with smaller weights Adam's steps, whose size does not depend on that scale, have more effect:
 * that trains better (docs/results.md). */
#include "base/error.h"
#include "model/zoo/zoo.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

enum { MAX_DEPTH = 6, NAME = 64 };

const dsc_option dsc_zoo_unet_keys[] = {
    {.name = "width",
     .kind = DSC_OPTION_INT64,
     .offset = offsetof(dsc_zoo_unet_design, width),
     .help = "channels of the first block; each further block on the way down has twice as many",
     .range = "[1, 4096]"},
    {.name = "depth",
     .kind = DSC_OPTION_INT64,
     .offset = offsetof(dsc_zoo_unet_design, depth),
     .help = "how often the map is halved",
     .range = "[1, 6]"}, /* MAX_DEPTH */
    {.name = "dropout",
     .kind = DSC_OPTION_DOUBLE,
     .offset = offsetof(dsc_zoo_unet_design, dropout),
     .help = "rate of dropout after the two blocks of the smallest maps",
     .range = "[0, 1)"},
    {.name = NULL},
};

/* The difference between two consecutive sides of the input that are possible: every map that is halved must have an
 * even height and width. */
static int64_t step_of(const dsc_zoo_unet_design *d) {
    return (int64_t)1 << d->depth;
}

/* The smallest possible side. Without padding it is the smallest whose output is not empty: b is 4, or 3 at depth 1. */
static int64_t smallest_side(const dsc_zoo_unet_design *d) {
    return d->batch_norm ? step_of(d) : step_of(d) * ((d->depth == 1 ? 3 : 4) + 8) - 4;
}

/* The largest possible side that is at most `side`, or the smallest possible side if there is none. */
static int64_t side_below(const dsc_zoo_unet_design *d, int64_t side) {
    const int64_t smallest = smallest_side(d);
    return side < smallest ? smallest : side - (side - smallest) % step_of(d);
}

void dsc_zoo_unet_adapt(const void *design, dsc_zoo_entry *entry) {
    const dsc_zoo_unet_design *d = design;
    const int64_t margin = d->batch_norm ? 0 : 6 * step_of(d) - 4;
    entry->side += 2 * (margin - entry->margin);
    entry->margin = margin;
}

static dsc_status check_side(const dsc_zoo_unet_design *d, const char *what, int64_t side) {
    const int64_t below = side_below(d, side);
    if (side == below)
        return DSC_OK;
    return DSC_FAIL(DSC_E_INVALID,
                    "the input's %s is %lld, but it must be %lld or a multiple of %lld more; the nearest are "
                    "%lld and %lld",
                    what, (long long)side, (long long)smallest_side(d), (long long)step_of(d),
                    (long long)below, (long long)(below + step_of(d)));
}

/* Sets the initial weights of a layer in the variant with batch norm; fan_in: the number of inputs of an output. */
static dsc_status start_weights(dsc_model *m, const dsc_zoo_unet_design *d, const char *layer,
                                int64_t fan_in) {
    char name[NAME + 8];
    if (!d->batch_norm)
        return DSC_OK;
    snprintf(name, sizeof name, "%s.weight", layer);
    return dsc_model_set_std(m, name, 1 / sqrt(3 * (double)fan_in));
}

/* Two 3x3 convolutions, each followed by ReLU. */
static dsc_status add_block(dsc_model *m, const dsc_zoo_unet_design *d, const char *prefix, int64_t channels,
                            dsc_value x, dsc_value *y) {
    char name[NAME];
    dsc_shape input;
    dsc_conv2d_shape conv;
    dsc_conv2d_shape_init(&conv);
    conv.out_c = channels;
    conv.kernel_h = conv.kernel_w = 3;
    conv.pad_h = conv.pad_w = d->batch_norm ? 1 : 0;
    *y = x;
    for (int i = 1; i <= 2; i++) {
        snprintf(name, sizeof name, "%sconv%d", prefix, i);
        DSC_TRY(dsc_model_value_shape(m, *y, &input));
        DSC_TRY(dsc_model_conv2d(m, name, *y, &conv, !d->batch_norm, y));
        DSC_TRY(start_weights(m, d, name, 9 * input.c));
        if (d->batch_norm) {
            snprintf(name, sizeof name, "%snorm%d", prefix, i);
            DSC_TRY(dsc_model_batch_norm(m, name, *y, y));
        }
        DSC_TRY(dsc_model_relu(m, *y, y));
    }
    return DSC_OK;
}

/* Doubles the map, concatenates it with the middle of `skip`, and adds a block. */
static dsc_status add_decoder(dsc_model *m, const dsc_zoo_unet_design *d, int level, dsc_value skip,
                              dsc_value *x) {
    char name[NAME];
    dsc_shape doubled;
    dsc_conv2d_shape up;
    dsc_conv2d_shape_init(&up);
    up.out_c = d->width << (level - 1);
    up.kernel_h = up.kernel_w = up.stride_h = up.stride_w = 2;
    snprintf(name, sizeof name, "upconv%d", level);
    DSC_TRY(dsc_model_conv_transpose2d(m, name, *x, &up, 1, x));
    DSC_TRY(start_weights(m, d, name, 2 * up.out_c)); /* one tap of four reaches an output */
    DSC_TRY(dsc_model_value_shape(m, *x, &doubled));
    if (!d->batch_norm)
        DSC_TRY(dsc_model_crop(m, skip, doubled.h, doubled.w, &skip));
    DSC_TRY(dsc_model_concat(m, *x, skip, x));
    snprintf(name, sizeof name, "decoder%d.dec%d", level, level);
    return add_block(m, d, name, up.out_c, *x, x);
}

dsc_status dsc_zoo_unet(void *design, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits) {
    const dsc_zoo_unet_design *d = design;
    dsc_value skips[MAX_DEPTH];
    char name[NAME];
    dsc_shape input;
    DSC_TRY(dsc_model_value_shape(m, x, &input));
    DSC_TRY(check_side(d, "height", input.h));
    DSC_TRY(check_side(d, "width", input.w));
    for (int level = 1; level <= d->depth; level++) {
        snprintf(name, sizeof name, "encoder%d.enc%d", level, level);
        DSC_TRY(add_block(m, d, name, d->width << (level - 1), x, &x));
        if (level == d->depth && d->dropout > 0)
            DSC_TRY(dsc_model_dropout(m, x, d->dropout, &x));
        skips[level - 1] = x;
        DSC_TRY(dsc_model_max_pool(m, x, 2, 2, 0, &x));
    }
    DSC_TRY(add_block(m, d, "bottleneck.bottleneck", d->width << d->depth, x, &x));
    if (d->dropout > 0)
        DSC_TRY(dsc_model_dropout(m, x, d->dropout, &x));
    for (int level = (int)d->depth; level >= 1; level--)
        DSC_TRY(add_decoder(m, d, level, skips[level - 1], &x));
    dsc_conv2d_shape last;
    dsc_conv2d_shape_init(&last);
    last.out_c = classes;
    last.kernel_h = last.kernel_w = 1;
    DSC_TRY(dsc_model_conv2d(m, "conv", x, &last, 1, logits));
    return start_weights(m, d, "conv", d->width);
}

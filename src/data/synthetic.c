/* The built-in data set: ten shapes, drawn by the program.
 *
 * The class of an image is the kind of its one large shape: disc, square, diamond, ring, frame, plus, saltire,
 * two lying bars, two standing bars, triangle. Place, size, colours (and with them which of shape and
 * background is the brighter one) are random, the background has a gradient, small distractors lie about and
 * noise covers all. The mean image of every class is therefore the same grey, and a linear model, which can
 * only compare with one template a class, learns next to nothing. Every shape is its own mirror image and
 * keeps its name when moved, so the usual crop and flip leave the class as it is.
 *
 * All arithmetic is in integers (lengths in 1/16 pixel), so an image is the same on every machine. It is
 * drawn when it is first asked for, and kept. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIDE = 32,
    CHANNELS = 3,
    BYTES = SIDE * SIDE * CHANNELS,
    CLASSES = 10,
    DEFAULT_COUNT = 10000,
    MAX_COUNT = 10000000,
    UNIT = 16, /* lengths per pixel */
    DISTRACTORS = 3,
    NOISE = 44 /* largest deviation of a pixel */
};

/* ---- shapes ----
 * The distance of (u, v) from the edge of a shape of radius r around the origin: negative inside. Exact near
 * the edge, which is all that matters. t is the thickness of strokes. */
static int larger(int a, int b) {
    return a > b ? a : b;
}

static int smaller(int a, int b) {
    return a < b ? a : b;
}

static int disc(int u, int v, int r) {
    return (u * u + v * v - r * r) / (2 * r);
}

static int square(int u, int v, int r) {
    return larger(abs(u), abs(v)) - r;
}

static int plus(int u, int v, int r, int t) {
    return smaller(larger(abs(u) - t, abs(v) - r), larger(abs(v) - t, abs(u) - r));
}

static int bars(int along, int across, int r, int t) {
    return larger(abs(along) - r, abs(abs(across) - r + t) - t);
}

static int triangle(int u, int v, int r) {
    int side = ((abs(u) * 229 - v * 115) >> 8) - r / 2; /* the normal is (0.89, -0.45) */
    return larger(v - r * 7 / 8, side);
}

static int turned(int a) {
    return a * 181 / 256; /* by 45 degrees: over sqrt 2 */
}

static int edge_distance(int kind, int u, int v, int r) {
    int t = larger(r / 4, UNIT);
    switch (kind) {
    case 0:
        return disc(u, v, r);
    case 1:
        return square(u, v, r * 7 / 8);
    case 2:
        return turned(abs(u) + abs(v)) - r * 7 / 8;
    case 3:
        return abs(disc(u, v, r - t)) - t;
    case 4:
        return abs(square(u, v, r * 7 / 8 - t)) - t;
    case 5:
        return plus(u, v, r, t);
    case 6:
        return plus(turned(u + v), turned(u - v), r, t);
    case 7:
        return bars(u, v, r * 7 / 8, t);
    case 8:
        return bars(v, u, r * 7 / 8, t);
    default:
        return triangle(u, v, r);
    }
}

/* ---- painting ---- */
typedef struct shape {
    int kind, x, y, r;
    int colour[CHANNELS];
} shape;

static int between(dsc_rng *rng, int low, int high) {
    return low + (int)dsc_rng_below(rng, (uint32_t)(high - low + 1));
}

/* Blends the shape's colour in, with an edge one pixel wide. */
static void paint(const shape *s, int canvas[SIDE][SIDE][CHANNELS]) {
    int reach = s->r * 3 / 2 + UNIT;
    int top = larger((s->y - reach) / UNIT, 0), bottom = smaller((s->y + reach) / UNIT, SIDE - 1);
    int left = larger((s->x - reach) / UNIT, 0), right = smaller((s->x + reach) / UNIT, SIDE - 1);
    for (int y = top; y <= bottom; y++) {
        for (int x = left; x <= right; x++) {
            int distance = edge_distance(s->kind, x * UNIT - s->x, y * UNIT - s->y, s->r);
            int cover = smaller(larger(UNIT / 2 - distance, 0), UNIT);
            for (int c = 0; c < CHANNELS; c++)
                canvas[y][x][c] += (s->colour[c] - canvas[y][x][c]) * cover / UNIT;
        }
    }
}

/* Background and foreground colours: any background, and a foreground that differs from it by a step whose
 * largest part is 64 to 112. */
static void draw_colours(dsc_rng *rng, int background[CHANNELS], int foreground[CHANNELS]) {
    int strongest = between(rng, 0, CHANNELS - 1);
    for (int c = 0; c < CHANNELS; c++) {
        background[c] = between(rng, 48, 207);
        int step = c == strongest ? between(rng, 64, 112) : between(rng, 0, 96);
        int room_up = 255 - background[c], room_down = background[c];
        int up = (int)(dsc_rng_u32(rng) & 1);
        if (up ? step > room_up : step > room_down)
            up = !up;
        foreground[c] = up ? smaller(background[c] + step, 255) : larger(background[c] - step, 0);
    }
}

static void paint_background(dsc_rng *rng, const int colour[CHANNELS], int canvas[SIDE][SIDE][CHANNELS]) {
    int slope_x[CHANNELS], slope_y[CHANNELS];
    for (int c = 0; c < CHANNELS; c++) {
        slope_x[c] = between(rng, -32, 32);
        slope_y[c] = between(rng, -32, 32);
    }
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int c = 0; c < CHANNELS; c++)
                canvas[y][x][c] = colour[c] + (slope_x[c] * (x - SIDE / 2) + slope_y[c] * (y - SIDE / 2)) / SIDE;
}

static void add_noise(dsc_rng *rng, int canvas[SIDE][SIDE][CHANNELS], uint8_t *pixels) {
    const int *flat = &canvas[0][0][0];
    for (int i = 0; i < BYTES; i += 4) {
        uint32_t word = dsc_rng_u32(rng);
        for (int k = 0; k < 4; k++) {
            int noise = ((int)(word >> (8 * k) & 255) - 128) * NOISE / 128;
            pixels[i + k] = (uint8_t)smaller(larger(flat[i + k] + noise, 0), 255);
        }
    }
}

int dsc_synthetic_draw(uint64_t seed, dsc_split split, int64_t index, uint8_t *pixels) {
    dsc_rng rng = dsc_rng_start(seed, DSC_RNG_SYNTHETIC, (uint32_t)split, (uint64_t)index);
    int canvas[SIDE][SIDE][CHANNELS];
    int background[CHANNELS];
    shape main_shape = {(int)(index % CLASSES), 0, 0, between(&rng, 6 * UNIT, 11 * UNIT), {0}};
    int r = main_shape.r;
    main_shape.x = between(&rng, r, SIDE * UNIT - UNIT - r);
    main_shape.y = between(&rng, r, SIDE * UNIT - UNIT - r);
    draw_colours(&rng, background, main_shape.colour);
    paint_background(&rng, background, canvas);
    paint(&main_shape, canvas);
    for (int i = 0; i < DISTRACTORS; i++) {
        shape small = {between(&rng, 0, 1), between(&rng, 0, SIDE * UNIT), between(&rng, 0, SIDE * UNIT),
                       between(&rng, UNIT, 5 * UNIT / 2),
                       {between(&rng, 0, 255), between(&rng, 0, 255), between(&rng, 0, 255)}};
        paint(&small, canvas);
    }
    add_noise(&rng, canvas, pixels);
    return main_shape.kind;
}

/* The Gram matrix of the patches of a 3x3 convolution with stride 1 and padding 1, computed without extracting patches.
 *
 * The block of C for the taps T = (t,s) and T' = (t',s') of a patch is
 *   G[T,T'] = sum over v of x[v] x[v - d]',   d = T - T',   [cg,cg],
 * over the pixels v that T sees and for which v and v - d are inside the image. Except at the border this depends on d
 * alone: for d_y != 0 every pair of taps sees the same lines; for d_y = 0, taps with t = 0 do not see the last line and
 * taps with t = 2 not the first. The same holds for columns. The lower triangle has d_y > 0, or d_y = 0 and d_x not
 * negative: 13 products of cg x cg per pixel instead of 45.
 *
 * There are sums for each d: separate ones for the first, inner and last lines if d_y = 0, and for the first, inner and
 * last columns if d_x = 0 (classes 0, 1, 2). A block of G is the total of those sums that its taps see. Nothing is
 * subtracted, so nothing cancels.
 *
 * The sums are blocks of columns of a matrix [cg, SUMS cg], at these places:
 *   d_y = 0, lines l:  d = (0,0) column class k: 3 l + k;   d_x = 2, 1: 9 + 2 l, 10 + 2 l
 *   d_y = 1, 2, from f = 15 or 22 on:  d_x = 0, class k: f + k;  d_x = 2, 1, -1, -2: f + 3 to f + 6
 * Pixels that are neighbours in memory (v - 2, v - 1 and v + 1, v + 2) have adjacent places, so that one product
 * computes both. */
#include "device/cpu/gram.h"

#include <string.h>

enum { TAPS = 9, SUMS = 29, FIRST_LOWER = 15, PER_LOWER = 7, CLASSES = 3, LEAST_CHANNELS = 3 };

/* The number of floats of x that are processed at a time, to fit into the cache. */
enum { CHUNK_FLOATS = 1 << 16 };

/* The number of multiplications of one product below which starting threads would cost more than it saves. */
enum { FEW_PRODUCTS = 1 << 16 };

typedef struct shift {
    const dsc_gram_call *call;
    int64_t lines, images; /* of a chunk */
    int64_t image;         /* floats of an image */
    int64_t sum;           /* floats of a part's sums */
    int64_t ones;          /* doubles of a part's sums of x: [class of line][class of column][c] */
    int64_t copy;          /* floats of the copy of the last image; 0: no copy is needed */
    int apart, parts;
} shift;

/* Lines [y0, y0 + lines) of images, the first of which is at x. */
typedef struct chunk {
    const float *x;
    int64_t images, y0, lines;
} chunk;

/* A thread's share: strips `first`, `first + step`, ... of every product. */
typedef struct turn {
    int64_t first, step;
    float *sums;
    float *row;   /* [c], scratch memory */
    double *ones; /* NULL: another thread sums the pixels, or none does */
} turn;

int dsc_gram_can_shift(const dsc_gram_call *call) {
    const dsc_conv_desc *d = call->d;
    const dsc_conv2d_shape *s = &d->shape;
    return s->kernel_h == 3 && s->kernel_w == 3 && s->stride_h == 1 && s->stride_w == 1 && s->pad_h == 1 &&
           s->pad_w == 1 && s->dilation_h == 1 && s->dilation_w == 1 && s->extra_h == 0 && s->extra_w == 0 &&
           s->in_h >= 2 && s->in_w >= 2 && s->in_h * s->in_w * s->in_c >= DSC_GRAM_SLACK &&
           (s->groups == 1 || call->cg >= LEAST_CHANNELS);
}

static int64_t at_least_one(int64_t a) {
    return a > 1 ? a : 1;
}

static shift make_shift(const dsc_gram_call *call) {
    const dsc_conv_desc *d = call->d;
    const dsc_conv2d_shape *shape = &d->shape;
    int64_t pixels = at_least_one(CHUNK_FLOATS / shape->in_c);
    if (pixels > DSC_GRAM_RUN)
        pixels = DSC_GRAM_RUN;
    shift s = {
        .call = call, .image = shape->in_h * shape->in_w * shape->in_c, .sum = SUMS * call->cg * call->cg};
    s.lines = at_least_one(pixels / shape->in_w);
    if (s.lines > shape->in_h)
        s.lines = shape->in_h;
    s.images = s.lines < shape->in_h ? 1 : at_least_one(pixels / (shape->in_h * shape->in_w));
    s.ones = call->ones ? CLASSES * CLASSES * shape->in_c : 0;
    s.copy = call->cg % DSC_GRAM_SLACK ? s.image + DSC_GRAM_SLACK : 0;
    s.parts = d->n * s.image * call->cg < FEW_PRODUCTS ? 1 : call->threads;
    s.apart = s.sum <= DSC_GRAM_PRIVATE;
    return s;
}

static int64_t count_sums(const shift *s) {
    return s->apart ? s->parts : 1;
}

int64_t dsc_gram_shift_bytes(const dsc_gram_call *call) {
    shift s = make_shift(call);
    int64_t floats = count_sums(&s) * s.sum + s.copy + s.parts * call->d->shape.in_c;
    return floats * (int64_t)sizeof(float) + count_sums(&s) * s.ones * (int64_t)sizeof(double);
}

/* ---- products ---- */

/* sums[at ..] += the sum of x[v] x[v - d]' for d_x from `dx` down to dx - count + 1, over columns [x0, x1) of
 * `lines` lines from y0 on. */
typedef struct product {
    int64_t y0, lines, x0, x1, dy, dx, count, at;
    int lower;
} product;

static void multiply(const shift *s, const chunk *c, const turn *t, const product *p) {
    const dsc_gram_call *call = s->call;
    const dsc_conv_desc *d = call->d;
    const dsc_conv2d_shape *shape = &d->shape;
    int64_t line = shape->in_w * shape->in_c;
    if (p->lines <= 0 || p->x0 >= p->x1)
        return;
    const float *v = c->x + p->y0 * line + p->x0 * shape->in_c + call->group * call->cg;
    dsc_cpu_gram g = {.m = call->cg,
                      .n = p->count * call->cg,
                      .a = v,
                      .b = v - p->dy * line - p->dx * shape->in_c,
                      .images = c->images,
                      .lines = p->lines,
                      .pixels = p->x1 - p->x0,
                      .image_pitch = s->image,
                      .line_pitch = line,
                      .pixel_pitch = shape->in_c,
                      .c = t->sums + p->at * call->cg,
                      .c_row = SUMS * call->cg,
                      .alpha = 1,
                      .lower = p->lower};
    if (g.pixels == 1) { /* treats a column as a line whose pixels are far apart */
        g.pixels = g.lines;
        g.pixel_pitch = line;
        g.lines = 1;
    }
    for (int64_t i = t->first * call->k->gram_rows; i < g.m; i += t->step * call->k->gram_rows)
        call->k->gram_strip(&g, i);
}

/* d_x = 0: one product per class of columns. */
static void multiply_straight(const shift *s, const chunk *c, const turn *t, product p) {
    const int64_t w = s->call->d->shape.in_w, edge[CLASSES + 1] = {0, 1, w - 1, w};
    p.dx = 0;
    p.count = 1;
    for (int64_t k = 0; k < CLASSES; k++, p.at++) {
        p.x0 = edge[k];
        p.x1 = edge[k + 1];
        multiply(s, c, t, &p);
    }
}

/* d_x = 2 and 1 (side 1), or -1 and -2 (side -1): both together where both neighbours are inside the image, then the
 * nearer one alone. With groups, the neighbours' channels are not contiguous, and each takes a product of its own. */
static void multiply_side(const shift *s, const chunk *c, const turn *t, product p, int64_t side) {
    const int64_t w = s->call->d->shape.in_w, at = p.at;
    p.x0 = side > 0 ? 2 : 0;
    p.x1 = side > 0 ? w : w - 2;
    p.dx = side > 0 ? 2 : -1;
    p.count = 2;
    if (s->call->d->shape.groups == 1) {
        multiply(s, c, t, &p);
    } else {
        p.count = 1;
        multiply(s, c, t, &p);
        p.dx--;
        p.at++;
        multiply(s, c, t, &p);
    }
    p.x0 = side > 0 ? 1 : w - 2;
    p.x1 = p.x0 + 1;
    p.dx = side;
    p.count = 1;
    p.at = side > 0 ? at + 1 : at;
    multiply(s, c, t, &p);
}

/* Those of lines [first, last) that are in the chunk. */
static product lines_of(const chunk *c, int64_t first, int64_t last) {
    int64_t end = c->y0 + c->lines;
    first = first > c->y0 ? first : c->y0;
    last = last < end ? last : end;
    return (product){.y0 = first, .lines = last - first};
}

static void multiply_chunk(const shift *s, const chunk *c, const turn *t) {
    const int64_t h = s->call->d->shape.in_h, edge[CLASSES + 1] = {0, 1, h - 1, h};
    for (int64_t l = 0; l < CLASSES; l++) {
        product p = lines_of(c, edge[l], edge[l + 1]);
        p.at = CLASSES * l;
        p.lower = 1;
        multiply_straight(s, c, t, p);
        p.at = CLASSES * CLASSES + 2 * l;
        p.lower = 0;
        multiply_side(s, c, t, p, 1);
    }
    for (int64_t dy = 1; dy <= 2; dy++) {
        product p = lines_of(c, dy, h);
        p.dy = dy;
        p.at = FIRST_LOWER + PER_LOWER * (dy - 1);
        multiply_straight(s, c, t, p);
        p.at += CLASSES;
        multiply_side(s, c, t, p, 1);
        p.at += 2;
        multiply_side(s, c, t, p, -1);
    }
}

/* ---- sums of x, for the column of ones ---- */

/* ones[class of line][class of column][c] += the sum of the chunk's pixels; temporary: [c]. */
static void sum_pixels(const shift *s, const chunk *c, float *temporary, double *ones) {
    const dsc_conv_desc *d = s->call->d;
    const dsc_conv2d_shape *shape = &d->shape;
    const int64_t edge[CLASSES + 1] = {0, 1, shape->in_w - 1, shape->in_w};
    for (int64_t image = 0; image < c->images; image++) {
        for (int64_t y = c->y0; y < c->y0 + c->lines; y++) {
            int64_t l = y == 0 ? 0 : y == shape->in_h - 1 ? 2 : 1;
            const float *line = c->x + image * s->image + y * shape->in_w * shape->in_c;
            for (int64_t k = 0; k < CLASSES; k++)
                s->call->k->column_sums((edge[k + 1] - edge[k]) * shape->in_c, shape->in_c,
                                        line + edge[k] * shape->in_c, temporary,
                                        ones + (CLASSES * l + k) * shape->in_c);
        }
    }
}

/* ---- the triangle ---- */

/* Returns 1 if tap t (a kernel row or column) sees this class of lines or columns. */
static int sees(int64_t t, int64_t class) {
    return !(t == 0 && class == 2) && !(t == 2 && class == 0);
}

/* Writes to `at` the places of the sums that taps a >= b see; returns their number. */
static int find_sums(int64_t a, int64_t b, int64_t at[TAPS]) {
    int64_t t = a / 3, u = a % 3, dy = t - b / 3, dx = u - b % 3, place = dx > 0 ? 2 - dx : 1 - dx;
    int count = 0;
    for (int64_t l = 0; l < CLASSES; l++) {
        if (dy == 0 ? !sees(t, l) : l > 0)
            continue;
        int64_t f = FIRST_LOWER + PER_LOWER * (dy - 1);
        for (int64_t k = 0; dx == 0 && k < CLASSES; k++)
            if (sees(u, k))
                at[count++] = dy == 0 ? CLASSES * l + k : f + k;
        if (dx != 0)
            at[count++] = dy == 0 ? CLASSES * CLASSES + 2 * l + place : f + CLASSES + place;
    }
    return count;
}

/* Writes the row of C for tap a, channel i: C = alpha G + beta C; row: [cg], scratch memory. */
static void put_row(const shift *s, const float *sums, int64_t a, int64_t i, float *row) {
    const dsc_gram_call *call = s->call;
    const dsc_cpu_kernels *k = call->k;
    const float *from = sums + i * SUMS * call->cg;
    float *to = call->c + (a * call->cg + i) * call->n;
    for (int64_t b = 0; b <= a; b++) {
        int64_t at[TAPS], columns = b < a ? call->cg : i + 1;
        int count = find_sums(a, b, at);
        memcpy(row, from + at[0] * call->cg, (size_t)columns * sizeof *row);
        for (int j = 1; j < count; j++)
            dsc_cpu_add(k, columns, row, from + at[j] * call->cg, row);
        k->axpby(columns, call->alpha, row, call->beta, to + b * call->cg);
    }
}

/* Writes the last row: the sums of the patches' columns, and the number of patches. */
static void put_ones(const shift *s, const double *ones) {
    const dsc_gram_call *call = s->call;
    const dsc_conv_desc *d = call->d;
    const dsc_conv2d_shape *shape = &d->shape;
    float *to = call->c + (call->n - 1) * call->n;
    for (int64_t j = 0; j < call->n; j++) {
        int64_t tap = j / call->cg, channel = call->group * call->cg + j % call->cg;
        double sum = j < call->n - 1 ? 0 : (double)(d->n * shape->in_h * shape->in_w);
        for (int64_t l = 0; j < call->n - 1 && l < TAPS; l++)
            if (sees(tap / 3, l / CLASSES) && sees(tap % 3, l % CLASSES))
                sum += ones[l * shape->in_c + channel];
        sum *= (double)call->alpha;
        to[j] = (float)(call->beta == 0 ? sum : sum + (double)call->beta * (double)to[j]);
    }
}

/* ---- the call ---- */

/* Processes images [r.first, r.first + r.count) chunk by chunk; the last image of x is read from its copy, if any. */
static void run_images(const shift *s, dsc_cpu_range r, const float *copy, const turn *t) {
    const dsc_conv_desc *d = s->call->d;
    const dsc_conv2d_shape *shape = &d->shape;
    int64_t whole = s->copy ? d->n - 1 : d->n, end = r.first + r.count;
    chunk c = {0};
    for (int64_t n = r.first; n < end; n += c.images) {
        int64_t left = (n < whole && end > whole ? whole : end) - n;
        c.images = left < s->images ? left : s->images;
        c.x = n < whole ? s->call->x + n * s->image : copy;
        for (c.y0 = 0; c.y0 < shape->in_h; c.y0 += c.lines) {
            c.lines = shape->in_h - c.y0 < s->lines ? shape->in_h - c.y0 : s->lines;
            multiply_chunk(s, &c, t);
            if (t->ones)
                sum_pixels(s, &c, t->row, t->ones);
        }
    }
}

/* Computes one part of the products: all strips of its images, or its strips of all images. */
static void run_part(const shift *s, int part, const float *copy, turn t) {
    const dsc_conv_desc *d = s->call->d;
    dsc_cpu_range images = s->apart ? dsc_cpu_share(d->n, 1, s->parts, part) : (dsc_cpu_range){0, d->n};
    if (s->apart)
        memset(t.sums, 0, (size_t)s->sum * sizeof *t.sums);
    if (t.ones)
        memset(t.ones, 0, (size_t)s->ones * sizeof *t.ones);
    run_images(s, images, copy, &t);
}

/* Adds the sums of all parts to those of the first, in order, and writes C. */
static void finish(const shift *s, float *sums, float *rows, double *ones) {
    const dsc_gram_call *call = s->call;
    int64_t count = count_sums(s);
#pragma omp parallel for num_threads(s->parts) schedule(static, 1)
    for (int part = 0; part < s->parts; part++) {
        dsc_cpu_range r = dsc_cpu_share(s->sum, 16, s->parts, part);
        for (int64_t other = 1; other < count; other++)
            dsc_cpu_add(call->k, r.count, sums + r.first, sums + other * s->sum + r.first, sums + r.first);
    }
#pragma omp parallel for num_threads(s->parts) schedule(static, 1)
    for (int part = 0; part < s->parts; part++)
        for (int64_t row = part; row < TAPS * call->cg; row += s->parts)
            put_row(s, sums, row / call->cg, row % call->cg, rows + part * call->d->shape.in_c);
    for (int64_t i = s->ones; i < count * s->ones; i++)
        ones[i % s->ones] += ones[i];
    if (call->ones)
        put_ones(s, ones);
}

void dsc_gram_shift(const dsc_gram_call *call, void *work) {
    shift s = make_shift(call);
    int64_t count = count_sums(&s), c = call->d->shape.in_c;
    double *ones = work;
    float *sums = (float *)(void *)(ones + count * s.ones), *rows = sums + count * s.sum;
    float *copy = rows + s.parts * c;
    if (s.copy) {
        memcpy(copy, call->x + (call->d->n - 1) * s.image, (size_t)s.image * sizeof *copy);
        memset(copy + s.image, 0, DSC_GRAM_SLACK * sizeof *copy);
    }
    if (!s.apart)
        memset(sums, 0, (size_t)s.sum * sizeof *sums);
#pragma omp parallel for num_threads(s.parts) schedule(static, 1)
    for (int part = 0; part < s.parts; part++) {
        turn t = {.step = 1, .sums = sums, .row = rows + part * c};
        if (s.apart)
            t.sums += part * s.sum;
        else
            t = (turn){.first = part, .step = s.parts, .sums = sums, .row = t.row};
        if (call->ones && part < count)
            t.ones = ones + part * s.ones;
        run_part(&s, part, copy, t);
    }
    finish(&s, sums, rows, ones);
}

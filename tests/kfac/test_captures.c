/* Captures: images in either order and of any size, padding at the bottom and right only, 16-bit types, layers that
 * are used several times in a pass, several passes; and hyper-parameters that are set from outside.
 *
 * With a decay of 0 the running averages are the batch factors, which the state shows. */
#include "kfac/twin.h"

#include "device/half.h"
#include "kfac/internal.h"
#include "kfac/kfac_parts.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 16384 };

/* ---- helpers ---- */

static dsc_kfac_options batch_options(void) {
    dsc_kfac_options options = twin_options();
    options.stat_decay = 0;
    return options;
}

/* Reads an entry of the state as doubles; returns the number of elements. */
static int64_t read_entry(dsc_kfac *kfac, dsc_queue *q, const char *name, double *out) {
    static double host[MOST];
    int64_t index = twin_entry(kfac, name), count = 1;
    const dsc_kfac_entry *e = &dsc_kfac_state_entries(kfac)[index];
    for (int k = 0; k < e->ndim; k++)
        count *= e->dim[k];
    assert_true(count <= MOST);
    assert_ok(dsc_kfac_state_get(kfac, q, index, host));
    for (int64_t i = 0; i < count; i++)
        out[i] = e->dtype == DSC_F64 ? host[i] : (double)((const float *)(const void *)host)[i];
    return count;
}

/* |x - y| <= c eps |y|, in the largest norm; c 0: the same bits. */
static void expect_close(const double *x, const double *y, int64_t count, double c, double eps,
                         const char *what) {
    double most = 0, off = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs(y[i]));
        off = fmax(off, fabs(x[i] - y[i]));
    }
    if (!(off <= c * eps * most))
        fail_msg("%s: off by %g of %g", what, off, most);
}

/* A and G of every unit of two preconditioners. */
static void expect_same_factors(dsc_kfac *x, dsc_kfac *y, dsc_queue *q, double c, double eps,
                                const char *what) {
    static double a[MOST], b[MOST];
    for (int64_t i = 0; i < dsc_kfac_state_count(x); i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(x)[i];
        if (e->ndim == 0 || e->optional)
            continue;
        int64_t count = read_entry(x, q, e->name, a);
        read_entry(y, q, e->name, b);
        expect_close(a, b, count, c, eps, what);
    }
}

/* Makes a tensor of the given type in device memory, with these values. */
static dsc_tensor make(const place *p, dsc_dtype dtype, const int64_t dim[4], const double *values) {
    dsc_tensor t;
    int64_t count = dim[0] * dim[1] * dim[2] * dim[3];
    char *host = net_array(count + 1, sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        if (dtype == DSC_F64)
            ((double *)(void *)host)[i] = values[i];
        else if (dtype == DSC_F32)
            ((float *)(void *)host)[i] = (float)values[i];
        else if (dtype == DSC_BF16)
            ((uint16_t *)(void *)host)[i] = dsc_bf16_from_float((float)values[i]);
        else
            ((uint16_t *)(void *)host)[i] = dsc_f16_from_float((float)values[i]);
    }
    assert_ok(dsc_tensor_alloc(p->handle, dtype, 4, dim, &t));
    assert_ok(dsc_tensor_upload(p->queue, host, dsc_tensor_bytes(&t), &t));
    assert_ok(dsc_queue_sync(p->queue));
    free(host);
    return t;
}

/* Multiples of 1/8 in [-1, 1], exact in every type. */
static void draw(int seed, int64_t count, double *values) {
    uint32_t x = (uint32_t)seed * 2654435761u + 12345u;
    for (int64_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        values[i] = ((double)(x >> 24) - 128) / 128;
        values[i] = floor(values[i] * 8) / 8;
    }
}

/* values[n, h, w, c] as [n, c, h, w]. */
static void to_nchw(const int64_t dim[4], const double *values, double *out) {
    int64_t positions = dim[1] * dim[2], c = dim[3];
    for (int64_t i = 0; i < dim[0] * positions * c; i++)
        out[(i / (positions * c) * c + i % c) * positions + i / c % positions] = values[i];
}

/* A preconditioner with one convolution, on images of its own. */
typedef struct trial {
    const place *p;
    dsc_conv2d_shape shape;
    dsc_kfac *kfac;
    dsc_tensor weight_grad, bias_grad;
} trial;

/* sized 0: images of any size. */
static trial trial_open(const place *p, const dsc_conv2d_shape *shape, int sized, int bias,
                        const dsc_kfac_options *options) {
    trial t = {.p = p, .shape = *shape};
    dsc_kfac_layer layer;
    int64_t weights = shape->out_c * shape->kernel_h * shape->kernel_w * shape->in_c / shape->groups;
    if (!sized)
        t.shape.in_h = t.shape.in_w = 0;
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 1, &weights, &t.weight_grad));
    assert_ok(dsc_tensor_alloc(p->handle, p->dtype, 1, &shape->out_c, &t.bias_grad));
    dsc_kfac_layer_init(&layer);
    layer.name = "conv";
    layer.kind = DSC_KFAC_CONV2D;
    layer.conv = &t.shape;
    layer.weight_grad = t.weight_grad;
    if (bias)
        layer.bias_grad = t.bias_grad;
    assert_ok(dsc_kfac_create(alone, p->queue, &layer, 1, options, &t.kfac));
    return t;
}

static void trial_close(trial *t) {
    dsc_kfac_destroy(&t->kfac);
    dsc_tensor_free(&t->weight_grad);
    dsc_tensor_free(&t->bias_grad);
}

/* The parameters of one capture. */
typedef struct shot {
    int64_t n, h, w;
    int seed;
    dsc_dtype a_type, g_type;
    dsc_image_layout a_layout, g_layout;
} shot;

static shot plain_shot(const place *p, int64_t n, int64_t h, int64_t w, int seed) {
    return (shot){n, h, w, seed, p->dtype, p->dtype, DSC_NHWC, DSC_NHWC};
}

static void trial_capture(trial *t, const shot *s) {
    dsc_conv2d_shape shape = t->shape;
    shape.in_h = s->h;
    shape.in_w = s->w;
    int64_t oh, ow;
    assert_ok(dsc_conv2d_output(&shape, &oh, &ow));
    const int64_t dims[2][4] = {{s->n, s->h, s->w, shape.in_c}, {s->n, oh, ow, shape.out_c}};
    const dsc_image_layout layouts[2] = {s->a_layout, s->g_layout};
    dsc_tensor tensors[2];
    for (int i = 0; i < 2; i++) {
        const int64_t *d = dims[i], turned[4] = {d[0], d[3], d[1], d[2]};
        int64_t count = d[0] * d[1] * d[2] * d[3];
        double *values = net_array(count, sizeof *values), *other = net_array(count, sizeof *other);
        draw(2 * s->seed + i, count, values);
        to_nchw(d, values, other);
        tensors[i] = layouts[i] == DSC_NCHW ? make(t->p, i ? s->g_type : s->a_type, turned, other)
                                            : make(t->p, i ? s->g_type : s->a_type, d, values);
        free(values);
        free(other);
    }
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.a = tensors[0];
    sample.g = tensors[1];
    sample.a_layout = s->a_layout;
    sample.g_layout = s->g_layout;
    assert_ok(dsc_kfac_capture_sample(t->kfac, t->p->queue, 0, &sample));
    assert_ok(dsc_queue_sync(t->p->queue));
    dsc_tensor_free(&tensors[0]);
    dsc_tensor_free(&tensors[1]);
}

static void trial_step(trial *t, const shot *s) {
    assert_ok(dsc_kfac_begin(t->kfac, 1));
    trial_capture(t, s);
    assert_ok(dsc_kfac_step(t->kfac, t->p->queue, 0.5));
}

static dsc_conv2d_shape conv_shape(int64_t in_c, int64_t out_c, int64_t kernel, int64_t pad) {
    dsc_conv2d_shape s;
    dsc_conv2d_shape_init(&s);
    s.in_c = in_c;
    s.out_c = out_c;
    s.kernel_h = s.kernel_w = kernel;
    s.pad_h = s.pad_w = pad;
    return s;
}

/* ---- beside the caller's work ---- */

/* On a GPU captures run in a queue of their own; elsewhere asking for that changes nothing. */
static void test_beside(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = twin_options();
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        assert_ok(dsc_kfac_capture_beside(t.kfac));
        assert_int_equal(t.kfac->beside.queue != NULL, !dsc_device_is_host(places[p].handle));
        for (int64_t k = 0; k < 4; k++) {
            twin_step(&t, &(net_step){.number = k, .lr = 0.5}, "captures beside the caller's work");
            assert_int_equal(t.kfac->beside.count, 0);
        }
        twin_close(&t);
    }
}

/* A skipped layer also counts as a capture for callers that keep tensors until the second next capture. */
static void test_beside_skipped(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        twin t;
        dsc_kfac_options options = twin_options();
        options.skip_layers = "conv"; /* by kind */
        twin_open(&t, &places[p], twin_mixed, TWIN_MIXED, &options);
        assert_ok(dsc_kfac_capture_beside(t.kfac));
        assert_ok(dsc_kfac_begin(t.kfac, 1));
        int64_t skipped = 0;
        for (int64_t l = 0; l < t.n.count; l++) {
            skipped += t.kfac->first_unit[l] == t.kfac->first_unit[l + 1];
            assert_ok(dsc_kfac_capture(t.kfac, t.n.queue, l, &t.n.layers[l].a, &t.n.layers[l].g));
            assert_int_equal(t.kfac->beside.count, t.kfac->beside.queue ? l + 1 : 0);
        }
        assert_in_range(skipped, 1, t.n.count - 1);
        assert_ok(dsc_queue_sync(t.n.queue));
        twin_close(&t);
    }
}

/* ---- order, size, padding, type ---- */

static void test_orders(void **state) {
    (void)state;
    static const int64_t channels[][2] = {{3, 5}, {1, 4}, {4, 1}, {70, 3}};
    for (int p = 0; p < PLACES; p++)
        for (int c = 0; c < 4; c++)
            for (int form = 1; form < 4; form++) {
                dsc_conv2d_shape s = conv_shape(channels[c][0], channels[c][1], c == 3 ? 1 : 3, c != 3);
                dsc_kfac_options options = batch_options();
                trial x = trial_open(&places[p], &s, 0, 1, &options),
                      y = trial_open(&places[p], &s, 0, 1, &options);
                for (int64_t size = 1; size < 6; size += 2) {
                    shot one = plain_shot(&places[p], 2, size, size + 1, (int)size);
                    trial_step(&x, &one);
                    one.a_layout = form & 1 ? DSC_NCHW : DSC_NHWC;
                    one.g_layout = form & 2 ? DSC_NCHW : DSC_NHWC;
                    trial_step(&y, &one);
                    expect_same_factors(x.kfac, y.kfac, places[p].queue, 0, 0, "NCHW");
                }
                trial_close(&x);
                trial_close(&y);
            }
}

/* Images of any size give what a layer of that size gives. */
static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{4, 4}, {7, 3}, {2, 2}, {9, 11}, {4, 4}};
    for (int p = 0; p < PLACES; p++) {
        dsc_conv2d_shape s = conv_shape(4, 3, 3, 1);
        dsc_kfac_options options = batch_options();
        trial any = trial_open(&places[p], &s, 0, 1, &options);
        for (int i = 0; i < 5; i++) {
            s.in_h = sizes[i][0];
            s.in_w = sizes[i][1];
            trial fixed = trial_open(&places[p], &s, 1, 1, &options);
            shot one = plain_shot(&places[p], 1 + i, s.in_h, s.in_w, i);
            trial_step(&any, &one);
            trial_step(&fixed, &one);
            expect_same_factors(any.kfac, fixed.kfac, places[p].queue, 0, 0, "size");
            trial_close(&fixed);
        }
        trial_close(&any);
    }
}

/* Zeros at the bottom and right, against an input that has them. */
static void test_extra_padding(void **state) {
    (void)state;
    static const struct {
        int64_t kernel, pad, stride, dilation, extra_h, extra_w, h, w, in_c, groups;
    } cases[] = {
        {2, 0, 1, 1, 1, 1, 4, 5, 3, 1},  {4, 1, 1, 1, 1, 1, 5, 4, 2, 1}, {3, 1, 1, 1, 1, 2, 4, 4, 4, 1},
        {1, 0, 1, 1, 1, 0, 3, 3, 5, 1},  {1, 0, 1, 1, 1, 0, 3, 3, 5, 1}, {2, 0, 2, 1, 1, 0, 5, 4, 4, 2},
        {2, 0, 1, 2, 2, 2, 4, 4, 4, 4},  {2, 0, 1, 1, 1, 1, 1, 1, 4, 1}, {2, 0, 1, 1, 1, 1, 1, 1, 3, 1},
        {3, 1, 1, 1, 0, 1, 6, 6, 16, 1},
    };
    for (int p = 0; p < PLACES; p++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            int64_t h = cases[i].h, w = cases[i].w, c = cases[i].in_c, pad = cases[i].pad;
            int64_t tall = h + 2 * pad + cases[i].extra_h, wide = w + 2 * pad + cases[i].extra_w, oh, ow;
            dsc_conv2d_shape s = conv_shape(c, 4, cases[i].kernel, pad), padded;
            s.stride_h = s.stride_w = cases[i].stride;
            s.dilation_h = s.dilation_w = cases[i].dilation;
            s.groups = cases[i].groups;
            padded = s;
            padded.pad_h = padded.pad_w = 0;
            s.extra_h = cases[i].extra_h;
            s.extra_w = cases[i].extra_w;
            s.in_h = h;
            s.in_w = w;
            assert_ok(dsc_conv2d_output(&s, &oh, &ow));
            dsc_kfac_options options = batch_options();
            int bias = (int)(i % 2);
            trial x = trial_open(&places[p], &s, 1, bias, &options),
                  y = trial_open(&places[p], &padded, 0, bias, &options);
            const int64_t a_dim[4] = {2, h, w, c}, b_dim[4] = {2, tall, wide, c}, g_dim[4] = {2, oh, ow, 4};
            double *a = net_array(2 * h * w * c, sizeof *a), *b = net_array(2 * tall * wide * c, sizeof *b);
            double *g = net_array(2 * oh * ow * 4, sizeof *g);
            draw(1, 2 * h * w * c, a);
            draw(2, 2 * oh * ow * 4, g);
            for (int64_t e = 0; e < 2 * h * w * c; e++) {
                int64_t image = e / (h * w * c), row = e / (w * c) % h + pad, column = e / c % w + pad;
                b[((image * tall + row) * wide + column) * c + e % c] = a[e];
            }
            dsc_tensor ta = make(&places[p], places[p].dtype, a_dim, a);
            dsc_tensor tb = make(&places[p], places[p].dtype, b_dim, b);
            dsc_tensor tg = make(&places[p], places[p].dtype, g_dim, g);
            assert_ok(dsc_kfac_begin(x.kfac, 1));
            assert_ok(dsc_kfac_begin(y.kfac, 1));
            assert_ok(dsc_kfac_capture(x.kfac, places[p].queue, 0, &ta, &tg));
            assert_ok(dsc_kfac_capture(y.kfac, places[p].queue, 0, &tb, &tg));
            assert_ok(dsc_kfac_step(x.kfac, places[p].queue, 0.5));
            assert_ok(dsc_kfac_step(y.kfac, places[p].queue, 0.5));
            expect_same_factors(x.kfac, y.kfac, places[p].queue, 4 * (double)(oh * ow), places[p].eps,
                                "extra padding");
            dsc_tensor_free(&ta);
            dsc_tensor_free(&tb);
            dsc_tensor_free(&tg);
            free(a);
            free(b);
            free(g);
            trial_close(&x);
            trial_close(&y);
        }
}

/* a and g may have types of their own. The numbers are exact in all of them. */
static void test_types(void **state) {
    (void)state;
    static const dsc_dtype types[][2] = {
        {DSC_BF16, DSC_F32}, {DSC_F32, DSC_F16}, {DSC_F16, DSC_F16}, {DSC_BF16, DSC_F16}};
    const place *p = &places[CPU];
    for (int i = 0; i < 4; i++)
        for (int turned = 0; turned < 2; turned++) {
            dsc_conv2d_shape s = conv_shape(3, 5, 3, 1);
            dsc_kfac_options options = batch_options();
            trial x = trial_open(p, &s, 0, 1, &options), y = trial_open(p, &s, 0, 1, &options);
            shot one = plain_shot(p, 2, 5, 4, i);
            trial_step(&x, &one);
            one.a_type = types[i][0];
            one.g_type = types[i][1];
            one.a_layout = one.g_layout = turned ? DSC_NCHW : DSC_NHWC;
            trial_step(&y, &one);
            expect_same_factors(x.kfac, y.kfac, p->queue, 64, p->eps, "types");
            trial_close(&x);
            trial_close(&y);
        }
}

/* ---- uses and passes ---- */

/* Captures in one step: passes of captures each. */
typedef struct plan {
    int64_t passes; /* of the step */
    int uses;       /* the uses that are announced; 0: none are */
    int came[3];    /* captures in each pass */
} plan;

/* A is the mean over all captures, G the sum over the captures of a pass, and the mean over the passes. */
static void check_uses(const place *p, const plan *calls, int by_option) {
    static double one[MOST], a[MOST], g[MOST], got[MOST];
    dsc_conv2d_shape s = conv_shape(3, 4, 2, 0);
    dsc_kfac_options options = batch_options();
    int64_t a_count = 0, g_count = 0;
    int captures = 0, ran = 0, seed = 0;
    memset(a, 0, sizeof a);
    memset(g, 0, sizeof g);
    trial single = trial_open(p, &s, 0, 1, &options);
    for (int i = 0; i < calls->passes; i++) {
        ran += calls->came[i] > 0;
        for (int j = 0; j < calls->came[i]; j++, captures++) {
            shot next = plain_shot(p, 1 + j, 3 + i, 4 + j, ++seed);
            trial_step(&single, &next);
            a_count = read_entry(single.kfac, p->queue, "conv.A", one);
            for (int64_t e = 0; e < a_count; e++)
                a[e] += one[e];
            g_count = read_entry(single.kfac, p->queue, "conv.G", one);
            for (int64_t e = 0; e < g_count; e++)
                g[e] += one[e];
        }
    }
    if (calls->uses == 0)
        ran = (int)calls->passes; /* it is not known in how many passes it ran */
    for (int64_t e = 0; e < a_count; e++)
        a[e] /= captures;
    for (int64_t e = 0; e < g_count; e++)
        g[e] /= ran;
    options.passes = by_option ? calls->passes : 1;
    trial t = trial_open(p, &s, 0, 1, &options);
    assert_ok(dsc_kfac_set_passes(t.kfac, calls->passes));
    assert_ok(dsc_kfac_set_uses(t.kfac, 0, calls->uses));
    for (int again = 0; again < 2; again++) {
        seed = 0;
        assert_ok(dsc_kfac_begin(t.kfac, 1));
        for (int i = 0; i < calls->passes; i++)
            for (int j = 0; j < calls->came[i]; j++) {
                shot next = plain_shot(p, 1 + j, 3 + i, 4 + j, ++seed);
                trial_capture(&t, &next);
            }
        assert_ok(dsc_kfac_step(t.kfac, p->queue, 0.5));
        read_entry(t.kfac, p->queue, "conv.A", got);
        expect_close(got, a, a_count, 16, p->eps, "A of several uses");
        read_entry(t.kfac, p->queue, "conv.G", got);
        expect_close(got, g, g_count, 16, p->eps, "G of several uses");
    }
    assert_int_equal(dsc_kfac_steps(t.kfac), 2);
    trial_close(&single);
    trial_close(&t);
}

static void test_uses(void **state) {
    (void)state;
    static const plan plans[] = {{1, 1, {1}},       {1, 2, {2}},       {1, 3, {3}},    {2, 2, {2, 2}},
                                 {3, 1, {1, 1, 1}}, {3, 2, {2, 2, 2}}, {3, 1, {1, 1}}, {3, 2, {2, 2}},
                                 {1, 0, {1}},       {1, 0, {3}},       {2, 0, {3, 1}}, {3, 0, {1, 2, 3}}};
    for (int p = 0; p < PLACES; p++)
        for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++)
            for (int by_option = 0; by_option < 2; by_option++)
                check_uses(&places[p], &plans[i], by_option);
}

/* m passes over parts of a batch are one pass over all of it: with the loss averaged over each part, and
 * gradients added up after division by m, which the loss scale 1/m says. */
static void test_passes_are_a_batch(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        const place *at = &places[p];
        dsc_kfac_options options = batch_options();
        dsc_kfac_layer layer;
        dsc_kfac *whole, *parts;
        double a[8 * 3], g[8 * 2], half[8];
        const int64_t weights = 6;
        dsc_tensor grad, t[6];
        draw(1, 24, a);
        draw(2, 16, g);
        assert_ok(dsc_tensor_alloc(at->handle, at->dtype, 1, &weights, &grad));
        dsc_kfac_layer_init(&layer);
        layer.name = "linear";
        layer.in_c = 3;
        layer.out_c = 2;
        layer.weight_grad = grad;
        assert_ok(dsc_kfac_create(alone, at->queue, &layer, 1, &options, &whole));
        assert_ok(dsc_kfac_create(alone, at->queue, &layer, 1, &options, &parts));
        assert_ok(dsc_kfac_set_passes(parts, 2));
        t[0] = make(at, at->dtype, (const int64_t[]){1, 1, 8, 3}, a);
        t[1] = make(at, at->dtype, (const int64_t[]){1, 1, 8, 2}, g);
        assert_ok(dsc_kfac_begin(whole, 1));
        assert_ok(dsc_kfac_capture(whole, at->queue, 0, &t[0], &t[1]));
        assert_ok(dsc_kfac_step(whole, at->queue, 0.5));
        assert_ok(dsc_kfac_begin(parts, 0.5));
        for (int i = 0; i < 2; i++) {
            /* g of a loss averaged over half as many rows is twice as large, which the loss scale of 1/2 undoes */
            for (int e = 0; e < 8; e++)
                half[e] = g[8 * i + e];
            t[2 + 2 * i] = make(at, at->dtype, (const int64_t[]){1, 1, 4, 3}, a + 12 * i);
            t[3 + 2 * i] = make(at, at->dtype, (const int64_t[]){1, 1, 4, 2}, half);
            assert_ok(dsc_kfac_capture(parts, at->queue, 0, &t[2 + 2 * i], &t[3 + 2 * i]));
        }
        assert_ok(dsc_kfac_step(parts, at->queue, 0.5));
        expect_same_factors(parts, whole, at->queue, 16, at->eps, "passes");
        for (int i = 0; i < 6; i++)
            dsc_tensor_free(&t[i]);
        dsc_tensor_free(&grad);
        dsc_kfac_destroy(&whole);
        dsc_kfac_destroy(&parts);
    }
}

static void test_uses_refused(void **state) {
    (void)state;
    const place *p = &places[REF];
    dsc_conv2d_shape s = conv_shape(3, 4, 2, 0);
    dsc_kfac_options options = batch_options();
    trial t = trial_open(p, &s, 0, 1, &options);
    shot one = plain_shot(p, 1, 4, 4, 1);
    assert_fails(DSC_E_INVALID, "layer 'conv': -1 uses in a pass", dsc_kfac_set_uses(t.kfac, 0, -1));
    assert_fails(DSC_E_INVALID, "K-FAC: layer 1; there are 0 to 0", dsc_kfac_set_uses(t.kfac, 1, 1));
    assert_fails(DSC_E_INVALID, "0 passes of a K-FAC step", dsc_kfac_set_passes(t.kfac, 0));
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    trial_capture(&t, &one);
    assert_fails(DSC_E_INVALID, "its uses in a pass change from 1 to 2 after captures",
                 dsc_kfac_set_uses(t.kfac, 0, 2));
    assert_ok(dsc_kfac_set_uses(t.kfac, 0, 1));
    assert_fails(DSC_E_INVALID, "layer 'conv' was captured more than 1 times in a step",
                 dsc_kfac_capture(t.kfac, p->queue, 0, NULL, NULL));
    assert_ok(dsc_kfac_step(t.kfac, p->queue, 0.5));
    trial_close(&t);
}

/* ---- hyper-parameters ---- */

static const dsc_kfac_hyper later = {
    .damping = 0.5, .stat_decay = 0.25, .kl_clip = 0.01, .factor_freq = 2, .update_freq = 4};

static dsc_status change_at_two(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    if (step >= 2) {
        int64_t blocks = hyper->diag_blocks;
        *hyper = later;
        hyper->diag_blocks = blocks;
    }
    return DSC_OK;
}

/* Hyper-parameters that are set directly give the same bits as the same values from a schedule. */
static void test_set_hyper(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        dsc_kfac_options options = twin_options();
        twin x, y;
        twin_open(&y, &places[p], twin_mixed, TWIN_MIXED, &options);
        options.schedule = change_at_two;
        twin_open(&x, &places[p], twin_mixed, TWIN_MIXED, &options);
        for (int k = 0; k < 6; k++) {
            net_step step = {.number = k, .lr = 0.5};
            if (k == 2)
                assert_ok(dsc_kfac_set_hyper(y.kfac, &later));
            assert_ok(net_run(&x.n, x.kfac, &step));
            assert_ok(net_run(&y.n, y.kfac, &step));
            assert_int_equal(dsc_kfac_steps(y.kfac), k + 1);
            for (int l = 0; l < TWIN_MIXED; l++) {
                double *d = net_array(net_gradient_count(&x.n, l), sizeof *d);
                net_read(&x.n, l, d);
                assert_true(net_gradient_is(&y.n, l, d));
                free(d);
            }
        }
        assert_true(dsc_kfac_hyper_now(y.kfac)->damping == 0.5);
        dsc_kfac_hyper bad = later;
        bad.damping = 0;
        assert_fails(DSC_E_INVALID, "K-FAC damping 0", dsc_kfac_set_hyper(y.kfac, &bad));
        bad = later;
        bad.diag_blocks = 3;
        assert_fails(DSC_E_INVALID, "3 K-FAC diagonal blocks in a step", dsc_kfac_set_hyper(y.kfac, &bad));
        twin_close(&x);
        twin_close(&y);
    }
}

/* ---- bad input ---- */

static void test_samples_refused(void **state) {
    (void)state;
    const place *p = &places[REF];
    dsc_conv2d_shape s = conv_shape(3, 4, 2, 0);
    dsc_kfac_options options = batch_options();
    trial t = trial_open(p, &s, 0, 1, &options);
    double values[200];
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    draw(1, 200, values);
    dsc_tensor a = make(p, p->dtype, (const int64_t[]){1, 3, 4, 4}, values);
    dsc_tensor g = make(p, p->dtype, (const int64_t[]){1, 4, 3, 3}, values);
    dsc_tensor tiny = make(p, p->dtype, (const int64_t[]){1, 3, 1, 1}, values);
    dsc_tensor half = make(p, DSC_BF16, (const int64_t[]){1, 3, 4, 4}, values);
    assert_ok(dsc_kfac_begin(t.kfac, 1));
    sample.a = a;
    sample.g = g;
    assert_fails(DSC_E_INVALID, "the last dimension of its input is 4, expected 3",
                 dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    sample.a_layout = DSC_NCHW;
    assert_fails(DSC_E_INVALID, "images seen as [n,h,w,channels]",
                 dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    sample.g_layout = (dsc_image_layout)7;
    assert_fails(DSC_E_INVALID, "image layout 7: must be DSC_NHWC (0) or DSC_NCHW (1)",
                 dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    sample.g_layout = DSC_NCHW;
    sample.a = tiny;
    assert_fails(DSC_E_INVALID, "K-FAC: layer 'conv': conv: the kernel reaches over 2 elements in height",
                 dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    sample.a = half;
    assert_fails(DSC_E_INVALID, "its input is bf16 on",
                 dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    sample.a.data = NULL;
    assert_fails(DSC_E_INVALID, "this step needs its input, which is missing",
                 dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    sample.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_kfac_sample_init",
                 dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    dsc_kfac_sample_init(&sample);
    sample.a = a;
    sample.g = g;
    sample.a_layout = sample.g_layout = DSC_NCHW;
    assert_ok(dsc_kfac_capture_sample(t.kfac, p->queue, 0, &sample));
    assert_ok(dsc_kfac_step(t.kfac, p->queue, 0.5));
    dsc_tensor_free(&a);
    dsc_tensor_free(&g);
    dsc_tensor_free(&tiny);
    dsc_tensor_free(&half);
    trial_close(&t);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside),
        cmocka_unit_test(test_beside_skipped),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_extra_padding),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_uses),
        cmocka_unit_test(test_passes_are_a_batch),
        cmocka_unit_test(test_uses_refused),
        cmocka_unit_test(test_set_hyper),
        cmocka_unit_test(test_samples_refused),
    };
    return cmocka_run_group_tests_name("kfac captures", tests, places_open, places_close);
}

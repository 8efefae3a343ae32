#include "kfac/net.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

void *net_array(int64_t count, size_t size) {
    void *p = calloc((size_t)(count > 0 ? count : 1), size);
    assert_non_null(p);
    return p;
}

/* ---- memory ---- */

static int64_t at_least_one(int64_t n) {
    return n > 0 ? n : 1;
}

static void fill_in(net_shape *s) {
    s->stride_h = at_least_one(s->stride_h);
    s->stride_w = at_least_one(s->stride_w);
    s->dilation_h = at_least_one(s->dilation_h);
    s->dilation_w = at_least_one(s->dilation_w);
    s->kernel_h = at_least_one(s->kernel_h);
    s->kernel_w = at_least_one(s->kernel_w);
    s->groups = at_least_one(s->groups);
    s->blocks = at_least_one(s->blocks);
    if (s->kind == DSC_KFAC_CONV_TRANSPOSE2D)
        s->bias = 0;
}

/* Sizes of a transposed convolution; `measure` has done the rest. */
static void measure_transposed(net_layer *l) {
    const net_shape *s = &l->shape;
    l->out_h = (s->in_h - 1) * s->stride_h - 2 * s->pad_h + s->dilation_h * (s->kernel_h - 1) + 1;
    l->out_w = (s->in_w - 1) * s->stride_w - 2 * s->pad_w + s->dilation_w * (s->kernel_w - 1) + 1;
    l->positions = s->in_h * s->in_w;
    l->a_size = s->in_c * l->positions;
    l->g_size = s->out_c * l->out_h * l->out_w;
    l->rows = s->kernel_h * s->kernel_w * s->out_c;
    l->columns = s->in_c;
}

static void measure(net_layer *l) {
    const net_shape *s = &l->shape;
    int conv = s->kind == DSC_KFAC_CONV2D;
    l->out_h = conv ? (s->in_h + 2 * s->pad_h - s->dilation_h * (s->kernel_h - 1) - 1) / s->stride_h + 1 : 1;
    l->out_w = conv ? (s->in_w + 2 * s->pad_w - s->dilation_w * (s->kernel_w - 1) - 1) / s->stride_w + 1 : 1;
    l->positions = l->out_h * l->out_w;
    l->a_size = s->in_c * (conv ? s->in_h * s->in_w : at_least_one(s->sequence));
    l->g_size = s->out_c * (conv ? l->positions : at_least_one(s->sequence));
    l->rows = s->out_c;
    l->columns = s->kernel_h * s->kernel_w * s->in_c / s->groups + (s->bias != 0);
    l->conv = (dsc_conv2d_shape){.size = sizeof l->conv,
                                 .in_h = s->in_h,
                                 .in_w = s->in_w,
                                 .in_c = s->in_c,
                                 .out_c = s->out_c,
                                 .kernel_h = s->kernel_h,
                                 .kernel_w = s->kernel_w,
                                 .stride_h = s->stride_h,
                                 .stride_w = s->stride_w,
                                 .pad_h = s->pad_h,
                                 .pad_w = s->pad_w,
                                 .dilation_h = s->dilation_h,
                                 .dilation_w = s->dilation_w,
                                 .groups = s->groups};
    if (s->kind == DSC_KFAC_CONV_TRANSPOSE2D)
        measure_transposed(l);
}

/* a or g: [samples, ..., channels]. */
static dsc_tensor make_rows(dsc_queue *queue, dsc_dtype dtype, const net_layer *l, int64_t samples, int out) {
    const net_shape *s = &l->shape;
    int64_t channels = out ? s->out_c : s->in_c;
    int64_t height = out ? l->out_h : s->in_h, width = out ? l->out_w : s->in_w;
    dsc_tensor t;
    if (s->kind != DSC_KFAC_LINEAR)
        assert_ok(dsc_tensor_alloc(dsc_queue_device(queue), dtype, 4,
                                   (const int64_t[]){samples, height, width, channels}, &t));
    else if (s->sequence)
        assert_ok(dsc_tensor_alloc(dsc_queue_device(queue), dtype, 3,
                                   (const int64_t[]){samples, s->sequence, channels}, &t));
    else
        assert_ok(
            dsc_tensor_alloc(dsc_queue_device(queue), dtype, 2, (const int64_t[]){samples, channels}, &t));
    return t;
}

static void open_layer(net *n, net_layer *l) {
    const net_shape *s = &l->shape;
    dsc_device *device = dsc_queue_device(n->queue);
    int64_t share = n->samples / n->ranks;
    l->a = make_rows(n->queue, n->dtype, l, share, 0);
    l->g = make_rows(n->queue, n->dtype, l, share, 1);
    int64_t dim[4] = {s->out_c, s->kernel_h, s->kernel_w, s->in_c / s->groups};
    if (s->kind == DSC_KFAC_CONV_TRANSPOSE2D) {
        dim[0] = s->in_c;
        dim[3] = s->out_c;
    }
    assert_ok(dsc_tensor_alloc(device, n->dtype, 4, dim, &l->weight_grad));
    if (s->bias)
        assert_ok(dsc_tensor_alloc(device, n->dtype, 1, &s->out_c, &l->bias_grad));
    l->whole_a = net_array(n->samples * l->a_size, sizeof(double));
    l->whole_g = net_array(n->samples * l->g_size, sizeof(double));
    l->d = net_array(l->rows * l->columns, sizeof(double));
}

static void open_all(net *n, const net_shape *shapes) {
    int64_t most = 0;
    assert_true(n->count <= NET_LAYERS && n->samples % n->ranks == 0);
    for (int i = 0; i < n->count; i++) {
        n->layers[i].shape = shapes[i];
        fill_in(&n->layers[i].shape);
        measure(&n->layers[i]);
        open_layer(n, &n->layers[i]);
        const net_layer *l = &n->layers[i];
        int64_t sizes[] = {n->samples * l->a_size, n->samples * l->g_size, l->rows * l->columns};
        for (int k = 0; k < 3; k++)
            most = sizes[k] > most ? sizes[k] : most;
    }
    n->scratch[0] = net_array(most, sizeof(double));
    n->scratch[1] = net_array(most, sizeof(double));
    n->narrow = net_array(most, sizeof(float));
}

void net_open(net *n, dsc_queue *queue, dsc_dtype dtype, const net_shape *shapes, int count,
              int64_t samples) {
    *n = (net){.queue = queue, .dtype = dtype, .ranks = 1, .samples = samples, .count = count};
    open_all(n, shapes);
}

void net_open_share(net *n, dsc_queue *queue, dsc_dtype dtype, const net_shape *shapes, int count,
                    int64_t samples, const dsc_comm *comm) {
    *n = (net){.queue = queue,
               .dtype = dtype,
               .rank = dsc_comm_rank(comm),
               .ranks = dsc_comm_size(comm),
               .samples = samples,
               .count = count};
    open_all(n, shapes);
}

void net_close(net *n) {
    for (int i = 0; i < n->count; i++) {
        net_layer *l = &n->layers[i];
        dsc_tensor_free(&l->a);
        dsc_tensor_free(&l->g);
        dsc_tensor_free(&l->weight_grad);
        if (l->bias_grad.data)
            dsc_tensor_free(&l->bias_grad);
        free(l->whole_a);
        free(l->whole_g);
        free(l->d);
    }
    free(n->scratch[0]);
    free(n->scratch[1]);
    free(n->narrow);
    n->count = 0;
}

void net_describe(const net *n, dsc_kfac_layer *layers) {
    for (int i = 0; i < n->count; i++) {
        const net_shape *s = &n->layers[i].shape;
        dsc_kfac_layer_init(&layers[i]);
        layers[i].name = s->name;
        layers[i].kind = s->kind;
        layers[i].in_c = s->in_c;
        layers[i].out_c = s->out_c;
        layers[i].out_blocks = s->blocks;
        layers[i].same_input = s->reads;
        layers[i].weight_grad = n->layers[i].weight_grad;
        layers[i].bias_grad = n->layers[i].bias_grad;
        if (s->kind != DSC_KFAC_LINEAR)
            layers[i].conv = &n->layers[i].conv;
    }
}

/* ---- data ---- */

/* Uploads values to the device, converted to the net's type. */
static void upload(const net *n, const double *values, dsc_tensor *t) {
    int64_t count = dsc_tensor_count(t);
    if (n->dtype == DSC_F64) {
        assert_ok(dsc_tensor_upload(n->queue, values, dsc_tensor_bytes(t), t));
        assert_ok(dsc_queue_sync(n->queue));
        return;
    }
    for (int64_t i = 0; i < count; i++)
        n->narrow[i] = (float)values[i];
    assert_ok(dsc_tensor_upload(n->queue, n->narrow, dsc_tensor_bytes(t), t));
    assert_ok(dsc_queue_sync(n->queue));
}

static void download(const net *n, const dsc_tensor *t, double *values) {
    int64_t count = dsc_tensor_count(t);
    if (n->dtype == DSC_F64) {
        assert_ok(dsc_tensor_download(n->queue, t, dsc_tensor_bytes(t), values));
        assert_ok(dsc_queue_sync(n->queue));
        return;
    }
    assert_ok(dsc_tensor_download(n->queue, t, dsc_tensor_bytes(t), n->narrow));
    assert_ok(dsc_queue_sync(n->queue));
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)n->narrow[i];
}

/* Draws `count` values scale * (k / 256 + offset), k in [-256, 256]; `which` selects the tensor of the layer. */
static void draw(int64_t number, int layer, int which, double offset, double scale, int64_t count,
                 double *values) {
    dsc_rng rng = dsc_rng_start(11, DSC_RNG_TEST, (uint32_t)number, (uint64_t)(layer * 4 + which));
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * (((double)dsc_rng_below(&rng, 513) - 256) / 256 + offset);
}

/* The power of two nearest to x. */
static double power_near(double x) {
    return exp2(round(log2(x)));
}

/* The size of inputs that makes A come out near 1, as g_scale does for G: paper A = sum a a'/(N S^2), G = N S sum g g';
 * kfac-pytorch A = sum a a'/(N S^3), G = sum g g'/(N S^3), over N S rows. */
static double a_scale(const net *n, const net_layer *l) {
    double s = (double)l->positions;
    return power_near(n->scaling == DSC_KFAC_PAPER ? sqrt(s) : s);
}

static double g_scale(const net *n, const net_layer *l) {
    double s = (double)l->positions, rows = (double)(n->samples * at_least_one(l->shape.sequence));
    return power_near(n->scaling == DSC_KFAC_PAPER ? 1 / (rows * s) : s);
}

void net_draw(net *n, int64_t step, int64_t pass, double loss_scale) {
    for (int i = 0; i < n->count; i++) {
        net_layer *l = &n->layers[i];
        int64_t a_count = n->samples * l->a_size, g_count = n->samples * l->g_size;
        int64_t a_share = a_count / n->ranks, g_share = g_count / n->ranks;
        int source = l->shape.reads > 0 ? (int)l->shape.reads - 1 : i;
        draw(step * 8 + pass, source, 0, 0.5, a_scale(n, l), a_count, l->whole_a);
        draw(step * 8 + pass, i, 1, 0.25, g_scale(n, l), g_count, l->whole_g);
        upload(n, l->whole_a + n->rank * a_share, &l->a);
        /* A loss averaged over the share has gradients that are `ranks` times those of the whole. */
        double *share = n->scratch[0];
        for (int64_t k = 0; k < g_share; k++)
            share[k] = l->whole_g[n->rank * g_share + k] * n->ranks * loss_scale;
        upload(n, share, &l->g);
    }
}

int64_t net_gradient_count(const net *n, int l) {
    return n->layers[l].rows * n->layers[l].columns;
}

/* The index in device memory of the weight of output o and input j: rows are outputs or, if transposed, inputs. */
static int64_t weight_at(const net_layer *l, int64_t o, int64_t j) {
    int64_t width = l->columns - (l->shape.bias != 0);
    return l->shape.kind == DSC_KFAC_CONV_TRANSPOSE2D ? j * l->rows + o : o * width + j;
}

/* Splits D into weights and bias, in the layout that the device has. */
static void split(const net_layer *l, const double *d, double *w, double *b) {
    int64_t bias = l->shape.bias != 0, width = l->columns - bias;
    for (int64_t o = 0; o < l->rows; o++) {
        for (int64_t j = 0; j < width; j++)
            w[weight_at(l, o, j)] = d[o * l->columns + j];
        if (bias)
            b[o] = d[o * l->columns + width];
    }
}

void net_draw_gradients(net *n, int64_t step) {
    for (int i = 0; i < n->count; i++) {
        net_layer *l = &n->layers[i];
        int64_t count = net_gradient_count(n, i);
        draw(step, i, 2, 0, 1, count, l->d);
        split(l, l->d, n->scratch[0], n->scratch[1]);
        upload(n, n->scratch[0], &l->weight_grad);
        if (l->shape.bias)
            upload(n, n->scratch[1], &l->bias_grad);
    }
}

void net_read(const net *n, int index, double *d) {
    const net_layer *l = &n->layers[index];
    int64_t bias = l->shape.bias != 0, width = l->columns - bias;
    double *w = n->scratch[0], *b = n->scratch[1];
    download(n, &l->weight_grad, w);
    if (bias)
        download(n, &l->bias_grad, b);
    for (int64_t o = 0; o < l->rows; o++) {
        for (int64_t j = 0; j < width; j++)
            d[o * l->columns + j] = w[weight_at(l, o, j)];
        if (bias)
            d[o * l->columns + width] = b[o];
    }
}

int net_gradient_is(const net *n, int l, const double *d) {
    int64_t count = net_gradient_count(n, l);
    double *got = net_array(count, sizeof *got);
    net_read(n, l, got);
    int same = memcmp(got, d, (size_t)count * sizeof *got) == 0;
    free(got);
    return same;
}

int net_gradients_finite(const net *n) {
    int finite = 1;
    for (int l = 0; l < n->count; l++) {
        int64_t count = net_gradient_count(n, l);
        double *got = net_array(count, sizeof *got);
        net_read(n, l, got);
        for (int64_t i = 0; i < count; i++)
            finite &= isfinite(got[i]) != 0;
        free(got);
    }
    return finite;
}

double net_get(const net *n, const dsc_tensor *t, int64_t i) {
    dsc_tensor one = dsc_tensor_slice(t, i, 1);
    double value;
    download(n, &one, &value);
    return value;
}

void net_set(const net *n, dsc_tensor *t, int64_t i, double value) {
    dsc_tensor one = dsc_tensor_slice(t, i, 1);
    upload(n, &value, &one);
}

/* ---- a step ---- */

dsc_status net_run(net *n, dsc_kfac *kfac, const net_step *step) {
    double loss_scale = step->loss_scale > 0 ? step->loss_scale : 1;
    DSC_TRY(dsc_kfac_begin(kfac, loss_scale));
    for (int64_t pass = 0; pass < at_least_one(step->passes); pass++) {
        net_draw(n, step->number, pass, loss_scale);
        for (int l = n->count - 1; l >= 0; l--)
            if (!(step->absent >> l & 1))
                DSC_TRY(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
    }
    net_draw_gradients(n, step->number);
    DSC_TRY(dsc_kfac_step(kfac, n->queue, step->lr));
    return dsc_queue_sync(n->queue);
}

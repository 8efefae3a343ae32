#include "model/nets.h"

#include "base/error.h"
#include "base/rng.h"
#include "chosen.h"

#include <math.h>
#include <stdlib.h>

int net_no_fusion;
int net_recompute;

/* ---- networks ---- */

static dsc_status net_norm(dsc_model *m, const char *name, dsc_value x, dsc_value *y) {
    DSC_TRY(dsc_model_batch_norm(m, name, x, y));
    return net_no_fusion ? dsc_model_dropout(m, *y, 0, y) : DSC_OK;
}

static dsc_status net_add(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) {
    DSC_TRY(dsc_model_add(m, a, b, y));
    return net_no_fusion ? dsc_model_dropout(m, *y, 0, y) : DSC_OK;
}

dsc_conv2d_shape square_conv(int64_t channels, int64_t kernel) {
    dsc_conv2d_shape shape;
    dsc_conv2d_shape_init(&shape);
    shape.out_c = channels;
    shape.kernel_h = shape.kernel_w = kernel;
    return shape;
}

static dsc_status net_conv(dsc_model *m, const char *name, dsc_value x, int64_t channels, int64_t stride,
                           dsc_value *y) {
    dsc_conv2d_shape conv = square_conv(channels, 3);
    conv.stride_h = conv.stride_w = stride;
    conv.pad_h = conv.pad_w = 1;
    return dsc_model_conv2d(m, name, x, &conv, 0, y);
}

static dsc_status head(dsc_model *m, dsc_value x, dsc_value *logits) {
    DSC_TRY(dsc_model_global_pool(m, x, &x));
    return dsc_model_linear(m, "fc", x, NET_CLASSES, 1, logits);
}

/* A hidden value with two readers, an addition that cannot be fused, one layer without bias. */
static dsc_status build_dense(dsc_model *m, dsc_value *logits) {
    dsc_value x, r, a;
    DSC_TRY(dsc_model_input(m, 2, 3, 2, &x));
    DSC_TRY(dsc_model_flatten(m, x, &x));
    DSC_TRY(dsc_model_linear(m, "fc1", x, 7, 1, &r));
    DSC_TRY(dsc_model_relu(m, r, &r));
    DSC_TRY(dsc_model_linear(m, "fc2", r, 7, 0, &a));
    DSC_TRY(dsc_model_add(m, a, r, &a));
    DSC_TRY(dsc_model_relu(m, a, &a));
    return dsc_model_linear(m, "fc3", a, NET_CLASSES, 1, logits);
}

/* Convolutions with every option, all poolings, a linear layer after a flattened map. */
static dsc_status build_conv(dsc_model *m, dsc_value *logits) {
    dsc_value x;
    DSC_TRY(dsc_model_input(m, 9, 8, 2, &x));
    dsc_conv2d_shape conv = square_conv(4, 3);
    conv.kernel_w = 2;
    conv.pad_h = 1;
    conv.pad_w = 2;
    conv.stride_w = 2;
    DSC_TRY(dsc_model_conv2d(m, "conv1", x, &conv, 1, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(dsc_model_max_pool(m, x, 3, 2, 1, &x));
    conv = square_conv(6, 3);
    conv.groups = 2;
    conv.dilation_h = 2;
    conv.pad_h = conv.pad_w = 2;
    DSC_TRY(dsc_model_conv2d(m, "conv2", x, &conv, 0, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(dsc_model_avg_pool(m, x, 2, 2, 1, &x));
    DSC_TRY(dsc_model_flatten(m, x, &x));
    return dsc_model_linear(m, "fc", x, NET_CLASSES, 1, logits);
}

/* A residual block with an identity, and one with the parameter-free shortcut, which starts before the first
 * block: the identity's gradient is then not the first to arrive. */
static dsc_status build_residual(dsc_model *m, dsc_value *logits) {
    dsc_value x, y, s;
    DSC_TRY(dsc_model_input(m, 5, 5, 3, &x));
    DSC_TRY(net_conv(m, "conv0", x, 4, 1, &x));
    DSC_TRY(net_norm(m, "bn0", x, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(net_conv(m, "conv1", x, 4, 1, &y));
    DSC_TRY(net_norm(m, "bn1", y, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    DSC_TRY(net_conv(m, "conv2", y, 4, 1, &y));
    DSC_TRY(net_norm(m, "bn2", y, &y));
    DSC_TRY(net_add(m, y, x, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    DSC_TRY(net_conv(m, "conv3", y, 6, 2, &y));
    DSC_TRY(net_norm(m, "bn3", y, &y));
    DSC_TRY(dsc_model_shortcut(m, x, 2, 6, &s));
    DSC_TRY(net_add(m, s, y, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    return head(m, y, logits);
}

/* Both terms of the addition are batch norms; `swapped` builds the shortcut's layers first. */
static dsc_status downsample(dsc_model *m, int swapped, dsc_value *logits) {
    dsc_value x, y[2];
    DSC_TRY(dsc_model_input(m, 4, 4, 2, &x));
    DSC_TRY(net_conv(m, "conv0", x, 3, 1, &x));
    DSC_TRY(net_norm(m, "bn0", x, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(net_conv(m, "branch.conv", x, 4, 2, &y[0]));
    DSC_TRY(net_norm(m, "branch.bn", y[0], &y[0]));
    DSC_TRY(net_conv(m, "downsample.0", x, 4, 2, &y[1]));
    DSC_TRY(net_norm(m, "downsample.1", y[1], &y[1]));
    DSC_TRY(net_add(m, y[swapped], y[1 - swapped], &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    return head(m, x, logits);
}

static dsc_status build_downsample(dsc_model *m, dsc_value *logits) {
    return downsample(m, 0, logits);
}

static dsc_status build_downsample_swapped(dsc_model *m, dsc_value *logits) {
    return downsample(m, 1, logits);
}

/* A fused batch norm before other layers with parameters: its gradients are final before those of later layers. */
static dsc_status build_out_of_order(dsc_model *m, dsc_value *logits) {
    dsc_value x, a, b;
    DSC_TRY(dsc_model_input(m, 4, 4, 2, &x));
    DSC_TRY(net_conv(m, "conv0", x, 3, 1, &x));
    DSC_TRY(net_norm(m, "bn", x, &a));
    DSC_TRY(net_conv(m, "conv1", x, 3, 1, &b));
    DSC_TRY(net_add(m, a, b, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    return head(m, x, logits);
}

/* Batch norm on the input and on vectors; dropout; a norm added to its own input, which may not be fused. */
static dsc_status build_norms(dsc_model *m, dsc_value *logits) {
    dsc_value x, y;
    DSC_TRY(dsc_model_input(m, 3, 2, 2, &x));
    DSC_TRY(net_norm(m, "bn0", x, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(dsc_model_flatten(m, x, &x));
    DSC_TRY(dsc_model_linear(m, "fc1", x, 20, 1, &x));
    DSC_TRY(net_norm(m, "bn1", x, &y));
    DSC_TRY(net_add(m, y, x, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    DSC_TRY(dsc_model_dropout(m, y, 0.4, &y));
    DSC_TRY(dsc_model_linear(m, "fc2", y, 6, 1, &y));
    DSC_TRY(dsc_model_dropout(m, y, 0.3, &y));
    return dsc_model_linear(m, "fc3", y, NET_CLASSES, 1, logits);
}

/* Values with many readers: a flattened map that is also pooled, a value added to itself, a batch norm and
 * its input that additions read, too; a ReLU whose only reader could work in place, a ReLU of the input. */
static dsc_status build_shared(dsc_model *m, dsc_value *logits) {
    dsc_value x, y, r, f, g;
    DSC_TRY(dsc_model_input(m, 4, 4, 2, &x));
    DSC_TRY(dsc_model_relu(m, x, &x));
    DSC_TRY(net_conv(m, "conv0", x, 3, 1, &x));
    DSC_TRY(net_norm(m, "bn0", x, &y));
    DSC_TRY(dsc_model_relu(m, y, &r));
    DSC_TRY(net_add(m, r, x, &r));
    DSC_TRY(net_add(m, r, y, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    DSC_TRY(dsc_model_add(m, y, y, &y));
    DSC_TRY(dsc_model_flatten(m, y, &f));
    DSC_TRY(dsc_model_relu(m, f, &f));
    DSC_TRY(dsc_model_linear(m, "fc1", f, NET_CLASSES, 1, &f));
    DSC_TRY(dsc_model_global_pool(m, y, &g));
    DSC_TRY(dsc_model_linear(m, "fc2", g, NET_CLASSES, 1, &g));
    return dsc_model_add(m, f, g, logits);
}

/* Parts and sizes of maps: concatenation, also of a value with itself and with the input; crops of a value that
 * others read, before and after them; both kinds of upsampling. */
static dsc_status build_hourglass(dsc_model *m, dsc_value *logits) {
    dsc_value in, x, y, skip;
    DSC_TRY(dsc_model_input(m, 7, 6, 2, &in));
    DSC_TRY(net_conv(m, "conv0", in, 3, 1, &x));
    DSC_TRY(dsc_model_crop(m, x, 6, 3, &skip));
    DSC_TRY(dsc_model_max_pool(m, x, 2, 2, 0, &y));
    DSC_TRY(net_conv(m, "conv1", y, 4, 1, &y));
    DSC_TRY(dsc_model_upsample(m, y, DSC_UPSAMPLE_BILINEAR, &y));
    DSC_TRY(dsc_model_crop(m, y, 6, 3, &y));
    DSC_TRY(dsc_model_concat(m, y, skip, &y));
    DSC_TRY(net_conv(m, "conv2", y, 4, 2, &y));
    DSC_TRY(dsc_model_concat(m, y, y, &y));
    DSC_TRY(dsc_model_upsample(m, y, DSC_UPSAMPLE_NEAREST, &y));
    DSC_TRY(dsc_model_crop(m, x, 6, 4, &x));
    DSC_TRY(dsc_model_concat(m, x, y, &y));
    DSC_TRY(dsc_model_crop(m, in, 6, 4, &in));
    DSC_TRY(dsc_model_concat(m, in, y, &y));
    DSC_TRY(net_conv(m, "conv3", y, 4, 1, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    return head(m, y, logits);
}

/* Every activation, on maps and vectors, at values with one reader and with two. */
static dsc_status build_activations(dsc_model *m, dsc_value *logits) {
    dsc_value x, y;
    DSC_TRY(dsc_model_input(m, 3, 3, 2, &x));
    DSC_TRY(dsc_model_activation(m, x, DSC_ACTIVATION_SIGMOID, &x));
    DSC_TRY(net_conv(m, "conv0", x, 3, 1, &x));
    DSC_TRY(dsc_model_activation(m, x, DSC_ACTIVATION_GELU, &x));
    DSC_TRY(net_conv(m, "conv1", x, 3, 1, &x));
    DSC_TRY(dsc_model_activation(m, x, DSC_ACTIVATION_SILU, &y));
    DSC_TRY(dsc_model_add(m, x, y, &x));
    DSC_TRY(dsc_model_flatten(m, x, &x));
    DSC_TRY(dsc_model_linear(m, "fc1", x, 8, 1, &x));
    DSC_TRY(dsc_model_activation(m, x, DSC_ACTIVATION_GELU_TANH, &x));
    DSC_TRY(dsc_model_linear(m, "fc2", x, 8, 1, &x));
    DSC_TRY(dsc_model_activation(m, x, DSC_ACTIVATION_TANH, &x));
    DSC_TRY(dsc_model_activation(m, x, DSC_ACTIVATION_SIGMOID, &y));
    DSC_TRY(dsc_model_add(m, y, x, &x));
    DSC_TRY(dsc_model_activation(m, x, DSC_ACTIVATION_RELU, &x));
    return dsc_model_linear(m, "fc3", x, NET_CLASSES, 1, logits);
}

/* Transposed convolutions: one with every option and no bias, on a value that others read before and after it, and
 * one as U-Nets have it. */
static dsc_status build_transposed(dsc_model *m, dsc_value *logits) {
    dsc_value x, y, z;
    DSC_TRY(dsc_model_input(m, 4, 3, 2, &x));
    DSC_TRY(net_conv(m, "conv0", x, 4, 1, &x));
    dsc_conv2d_shape conv = square_conv(6, 3);
    conv.kernel_w = 2;
    conv.stride_h = 2;
    conv.stride_w = 3;
    conv.pad_h = 2;
    conv.dilation_h = 2;
    conv.groups = 2;
    conv.extra_h = 1;
    conv.extra_w = 2;
    DSC_TRY(dsc_model_upsample(m, x, DSC_UPSAMPLE_NEAREST, &z));
    DSC_TRY(dsc_model_conv_transpose2d(m, "up0", x, &conv, 0, &y));
    DSC_TRY(dsc_model_crop(m, y, 4, 3, &y));
    DSC_TRY(dsc_model_concat(m, x, y, &y));
    conv = square_conv(3, 2);
    conv.stride_h = conv.stride_w = 2;
    DSC_TRY(dsc_model_conv_transpose2d(m, "up1", y, &conv, 1, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    DSC_TRY(dsc_model_concat(m, y, z, &y));
    return head(m, y, logits);
}

static dsc_status net_attention(dsc_model *m, dsc_value x, int64_t heads, int causal, double dropout,
                                dsc_value *y) {
    dsc_attention_options options;
    dsc_attention_options_init(&options);
    options.heads = heads;
    options.causal = causal;
    options.dropout = dropout;
    return dsc_model_attention(m, x, &options, y);
}

/* A sequence of 7 positions: two attentions read one projection, so that one gradient is added to the other's. */
static dsc_status attention_pair(dsc_model *m, double dropout, dsc_value *logits) {
    dsc_value x, y[2];
    dsc_conv2d_shape conv = square_conv(12, 1);
    DSC_TRY(dsc_model_input(m, 7, 1, 3, &x));
    DSC_TRY(dsc_model_conv2d(m, "in", x, &conv, 1, &x));
    DSC_TRY(net_attention(m, x, 2, 1, dropout, &y[0]));
    DSC_TRY(net_attention(m, x, 1, 0, dropout, &y[1]));
    DSC_TRY(dsc_model_add(m, y[0], y[1], &x));
    conv = square_conv(6, 1);
    DSC_TRY(dsc_model_conv2d(m, "out", x, &conv, 1, &x));
    return head(m, x, logits);
}

static dsc_status build_attention(dsc_model *m, dsc_value *logits) {
    return attention_pair(m, 0, logits);
}

static dsc_status build_dropped_attention(dsc_model *m, dsc_value *logits) {
    return attention_pair(m, 0.3, logits);
}

/* Norms of single samples: of the input, maps, a flattened map and a vector, one added to its own input. */
static dsc_status build_sample_norms(dsc_model *m, dsc_value *logits) {
    dsc_value x, y;
    DSC_TRY(dsc_model_input(m, 3, 4, 2, &x));
    DSC_TRY(dsc_model_layer_norm(m, "ln0", x, 0.1, 1, &x));
    DSC_TRY(net_conv(m, "conv0", x, 6, 1, &x));
    DSC_TRY(dsc_model_group_norm(m, "gn", x, 3, 1e-2, &y));
    DSC_TRY(dsc_model_add(m, y, x, &x));
    DSC_TRY(dsc_model_rms_norm(m, "rms", x, 1e-2, &x));
    DSC_TRY(net_conv(m, "conv1", x, 2, 1, &x));
    DSC_TRY(dsc_model_flatten(m, x, &x));
    DSC_TRY(dsc_model_layer_norm(m, "ln1", x, 1e-5, 0, &x));
    DSC_TRY(dsc_model_linear(m, "fc1", x, 8, 1, &x));
    DSC_TRY(dsc_model_group_norm(m, "gn1", x, 2, 1e-2, &x));
    return dsc_model_linear(m, "fc2", x, NET_CLASSES, 1, logits);
}

const net nets[] = {{"dense", build_dense, 2, 3, 2, 0, 0},
                    {"conv", build_conv, 9, 8, 2, 0, 0},
                    {"residual", build_residual, 5, 5, 3, 4, 0},
                    {"downsample", build_downsample, 4, 4, 2, 2, 0},
                    {"downsample, swapped", build_downsample_swapped, 4, 4, 2, 2, 0},
                    {"out of order", build_out_of_order, 4, 4, 2, 1, 0},
                    {"norms", build_norms, 3, 2, 2, 1, 1},
                    {"shared", build_shared, 4, 4, 2, 0, 0},
                    {"hourglass", build_hourglass, 7, 6, 2, 0, 0},
                    {"activations", build_activations, 3, 3, 2, 0, 0},
                    {"transposed", build_transposed, 4, 3, 2, 0, 0},
                    {"attention", build_attention, 7, 1, 3, 0, 0},
                    {"dropped attention", build_dropped_attention, 7, 1, 3, 0, 1},
                    {"sample norms", build_sample_norms, 3, 4, 2, 0, 0},
                    {NULL, NULL, 0, 0, 0, 0, 0}};

const net *find_net(const char *name) {
    const net *found = nets;
    while (found->name && strcmp(found->name, name) != 0)
        found++;
    assert_non_null(found->name);
    return found;
}

/* ---- helpers ---- */

dsc_device *open_device(const char *name) {
    return chosen_open(name, 1);
}

dsc_queue *open_queue(dsc_device *device) {
    dsc_queue *q = NULL;
    assert_ok(dsc_queue_create(device, &q));
    return q;
}

void random_doubles(uint32_t seed, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) {
        dsc_rng rng = dsc_rng_start(7, DSC_RNG_TEST, seed, (uint64_t)i);
        out[i] = dsc_rng_normal(&rng);
    }
}

double *read_doubles(dsc_queue *q, const dsc_tensor *t) {
    int64_t n = dsc_tensor_count(t);
    double *out = malloc((size_t)n * sizeof *out + 1);
    assert_non_null(out);
    assert_ok(dsc_tensor_download(q, t, dsc_tensor_bytes(t), out));
    assert_ok(dsc_queue_sync(q));
    if (t->dtype == DSC_F32)
        for (int64_t i = n - 1; i >= 0; i--) { /* spread in place, from the end */
            float x;
            memcpy(&x, (const char *)out + (size_t)i * sizeof x, sizeof x);
            out[i] = x;
        }
    return out;
}

void write_doubles(dsc_queue *q, const double *host, dsc_tensor *t) {
    int64_t n = dsc_tensor_count(t);
    float *single = malloc((size_t)n * sizeof *single + 1);
    assert_non_null(single);
    for (int64_t i = 0; i < n; i++)
        single[i] = (float)host[i];
    assert_ok(
        dsc_tensor_upload(q, t->dtype == DSC_F32 ? (const void *)single : host, dsc_tensor_bytes(t), t));
    assert_ok(dsc_queue_sync(q));
    free(single);
}

dsc_tensor random_tensor(dsc_queue *q, uint32_t seed, dsc_dtype dtype, int ndim, const int64_t *dim) {
    dsc_tensor t;
    assert_ok(dsc_tensor_alloc(dsc_queue_device(q), dtype, ndim, dim, &t));
    int64_t n = dsc_tensor_count(&t);
    double *host = malloc((size_t)n * sizeof *host + 1);
    assert_non_null(host);
    random_doubles(seed, n, host);
    write_doubles(q, host, &t);
    free(host);
    return t;
}

dsc_tensor random_labels(dsc_queue *q, uint32_t seed, int64_t n, int64_t classes) {
    dsc_tensor t;
    assert_ok(dsc_tensor_alloc(dsc_queue_device(q), DSC_I32, 1, &n, &t));
    int32_t *host = malloc((size_t)n * sizeof *host + 1);
    assert_non_null(host);
    for (int64_t i = 0; i < n; i++) {
        dsc_rng rng = dsc_rng_start(8, DSC_RNG_TEST, seed, (uint64_t)i);
        host[i] = (int32_t)dsc_rng_below(&rng, (uint32_t)classes);
    }
    assert_ok(dsc_tensor_upload(q, host, dsc_tensor_bytes(&t), &t));
    assert_ok(dsc_queue_sync(q));
    free(host);
    return t;
}

dsc_model *make_model(dsc_device *device, const net *what, dsc_dtype dtype, double label_smoothing) {
    dsc_model_options options;
    dsc_model_options_init(&options);
    options.dtype = dtype;
    options.label_smoothing = label_smoothing;
    options.recompute = net_recompute;
    dsc_model *m = NULL;
    dsc_value logits = -1;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(what->build(m, &logits));
    assert_ok(dsc_model_seal(m, logits));
    dsc_queue *q = open_queue(device);
    dsc_tensor values = dsc_model_values(m);
    int64_t n = dsc_tensor_count(&values);
    double *now = read_doubles(q, &values), *noise = malloc((size_t)n * sizeof *noise);
    assert_non_null(noise);
    random_doubles(99, n, noise);
    for (int64_t i = 0; i < n; i++)
        now[i] += 0.2 * noise[i];
    write_doubles(q, now, &values);
    free(noise);
    free(now);
    dsc_queue_destroy(&q);
    return m;
}

double largest_difference(int64_t n, const double *a, const double *b) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = isnan(a[i] - b[i]) ? INFINITY : fmax(most, fabs(a[i] - b[i]));
    return most;
}

double largest(int64_t n, const double *a) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(a[i]));
    return most;
}

/* Building models: refusals and their messages, initial values, the state dict, layer lists. */
#include "chosen.h"

#include "base/memory.h"
#include "base/rng.h"
#include "model/graph.h"
#include "model/nets.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static dsc_device *device;
static dsc_queue *queue;

static int setup(void **state) {
    (void)state;
    device = open_device(chosen_or("ref"));
    queue = open_queue(device);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

static dsc_model *empty_model(dsc_value *x) {
    dsc_model *m = NULL;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, 8, 6, 4, x));
    return m;
}

static void test_options(void **state) {
    (void)state;
    dsc_model_options options;
    dsc_model *m = NULL;
    dsc_model_options_init(&options);
    assert_int_equal(options.seed, 42);
    options.dtype = DSC_I32;
    assert_fails(DSC_E_UNSUPPORTED, "i32", dsc_model_create(device, &options, &m));
    dsc_model_options_init(&options);
    options.label_smoothing = 1;
    assert_fails(DSC_E_INVALID, "label smoothing 1", dsc_model_create(device, &options, &m));
    assert_fails(DSC_E_INVALID, "model: no device", dsc_model_create(NULL, NULL, &m));
    options.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_model_options_init", dsc_model_create(device, &options, &m));
    assert_null(m);
    dsc_model_destroy(NULL);
    dsc_model_destroy(&m);
}

static void test_shape_errors(void **state) {
    (void)state;
    dsc_value x, y, v, a;
    dsc_model *m = empty_model(&x);
    dsc_conv2d_shape conv = square_conv(8, 7);
    assert_fails(DSC_E_INVALID, "conv2d 'stem' on 8x6x4", dsc_model_conv2d(m, "stem", x, &conv, 0, &y));
    conv = square_conv(8, 3);
    conv.groups = 3;
    assert_fails(DSC_E_INVALID, "conv2d 'stem' on 8x6x4", dsc_model_conv2d(m, "stem", x, &conv, 0, &y));
    conv = square_conv(0, 3);
    assert_fails(DSC_E_INVALID, "conv2d 'stem'", dsc_model_conv2d(m, "stem", x, &conv, 0, &y));
    assert_fails(DSC_E_INVALID, "conv2d 'stem'", dsc_model_conv2d(m, "stem", x, NULL, 0, &y));
    assert_fails(DSC_E_INVALID, "relu: no model", dsc_model_relu(NULL, x, &y));
    conv.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_conv2d_shape_init", dsc_model_conv2d(m, "stem", x, &conv, 0, &y));
    assert_fails(DSC_E_INVALID, "linear 'fc': the input is 8x6x4, but a vector is needed",
                 dsc_model_linear(m, "fc", x, 3, 1, &y));
    assert_fails(DSC_E_INVALID, "max_pool (value 1) on 8x6x4", dsc_model_max_pool(m, x, 9, 1, 0, &y));
    assert_fails(DSC_E_INVALID, "shortcut (value 1) on 8x6x4: 3 output channels",
                 dsc_model_shortcut(m, x, 2, 3, &y));
    assert_fails(DSC_E_INVALID, "stride 0", dsc_model_shortcut(m, x, 0, 4, &y));
    assert_fails(DSC_E_INVALID, "crop (value 1) on 8x6x4: 8x7 pixels, but 1x1 to 8x6 is possible",
                 dsc_model_crop(m, x, 8, 7, &y));
    assert_fails(DSC_E_INVALID, "crop (value 1) on 8x6x4: 0x6 pixels", dsc_model_crop(m, x, 0, 6, &y));
    assert_fails(DSC_E_INVALID, "upsample (value 1): kind 7",
                 dsc_model_upsample(m, x, (dsc_upsample_kind)7, &y));
    conv = square_conv(8, 2);
    conv.stride_h = conv.extra_h = 2;
    assert_fails(DSC_E_INVALID,
                 "conv_transpose2d 'up' on 8x6x4: conv: 2 more elements of output in height; with stride 2",
                 dsc_model_conv_transpose2d(m, "up", x, &conv, 0, &y));
    conv = square_conv(8, 2);
    conv.pad_w = 4;
    assert_fails(DSC_E_INVALID, "conv: the output would have -1 elements in width",
                 dsc_model_conv_transpose2d(m, "up", x, &conv, 0, &y));
    conv.pad_w = 0;
    conv.stride_h = INT64_MAX;
    assert_fails(DSC_E_INVALID, "stride_h is", dsc_model_conv_transpose2d(m, "up", x, &conv, 0, &y));
    conv.stride_h = INT32_MAX;
    assert_fails(DSC_E_INVALID, "elements in height", dsc_model_conv_transpose2d(m, "up", x, &conv, 0, &y));
    conv = square_conv(9, 2);
    conv.groups = 4;
    assert_fails(DSC_E_INVALID, "multiples of 4 groups",
                 dsc_model_conv_transpose2d(m, "up", x, &conv, 0, &y));
    assert_fails(DSC_E_INVALID, "conv_transpose2d 'up'", dsc_model_conv_transpose2d(m, "up", x, NULL, 0, &y));
    conv = square_conv(8, 2);
    assert_fails(DSC_E_INVALID, "parameters need one", dsc_model_conv_transpose2d(m, NULL, x, &conv, 0, &y));
    assert_ok(dsc_model_flatten(m, x, &v));
    assert_fails(DSC_E_INVALID, "the input is a vector of 192, but a map",
                 dsc_model_conv_transpose2d(m, "up", v, &conv, 0, &y));
    assert_fails(DSC_E_INVALID, "the input is a vector of 192, but a map", dsc_model_crop(m, v, 1, 1, &y));
    assert_fails(DSC_E_INVALID, "the input is a vector of 192, but a map",
                 dsc_model_upsample(m, v, DSC_UPSAMPLE_NEAREST, &y));
    assert_fails(DSC_E_INVALID,
                 "concat (value 2): the inputs are 8x6x4 (value 0) and a vector of 192 (value 1)",
                 dsc_model_concat(m, x, v, &y));
    assert_fails(DSC_E_INVALID, "the input is a vector of 192, but a map", dsc_model_global_pool(m, v, &y));
    conv = square_conv(8, 3);
    assert_fails(DSC_E_INVALID, "conv2d 'c': the input is a vector of 192",
                 dsc_model_conv2d(m, "c", v, &conv, 0, &y));
    assert_fails(DSC_E_INVALID, "8x6x4 (value 0) and a vector of 192 (value 1)", dsc_model_add(m, x, v, &y));
    assert_ok(dsc_model_linear(m, "fc", v, 192, 1, &a));
    assert_fails(DSC_E_INVALID, "flattened from maps of different shapes", dsc_model_add(m, v, a, &y));
    assert_fails(DSC_E_INVALID, "linear 'fc': another layer has this name",
                 dsc_model_linear(m, "fc", a, 192, 1, &y));
    dsc_model_destroy(&m);
}

static void test_other_errors(void **state) {
    (void)state;
    dsc_value x, y, v;
    dsc_model *m = empty_model(&x);
    dsc_exec *exec = NULL;
    assert_fails(DSC_E_INVALID, "input: the model has one already", dsc_model_input(m, 1, 1, 1, &y));
    assert_fails(DSC_E_INVALID, "input 0 is value 7, but the model has values 0 to 0",
                 dsc_model_relu(m, 7, &y));
    assert_fails(DSC_E_INVALID, "value -1", dsc_model_add(m, x, -1, &y));
    assert_fails(DSC_E_INVALID, "rate 1", dsc_model_dropout(m, x, 1, &y));
    assert_fails(DSC_E_INVALID, "layer_norm 'ln': eps is 0, but", dsc_model_layer_norm(m, "ln", x, 0, 1, &y));
    assert_fails(DSC_E_INVALID, "rms_norm 'r': eps is -1, but", dsc_model_rms_norm(m, "r", x, -1, &y));
    assert_fails(DSC_E_INVALID, "group_norm 'g': 3 groups, but they must divide the 4 channels",
                 dsc_model_group_norm(m, "g", x, 3, 1e-5, &y));
    assert_fails(DSC_E_INVALID, "group_norm 'g': 0 groups", dsc_model_group_norm(m, "g", x, 0, 1e-5, &y));
    assert_fails(DSC_E_INVALID, "activation: number 6 is unknown; 0 to 5",
                 dsc_model_activation(m, x, (dsc_activation)6, &y));
    assert_fails(DSC_E_INVALID, "gelu: no model", dsc_model_activation(NULL, x, DSC_ACTIVATION_GELU, &y));
    assert_fails(DSC_E_INVALID, "not sealed", dsc_exec_create(m, DSC_EXEC_TRAIN, 1, &exec));
    assert_fails(DSC_E_INVALID, "logits are value 9", dsc_model_seal(m, 9));
    assert_fails(DSC_E_INVALID, "seal: no model", dsc_model_seal(NULL, 0));
    assert_ok(dsc_model_flatten(m, x, &v));
    assert_fails(DSC_E_INVALID, "no parameters", dsc_model_seal(m, v));
    assert_fails(DSC_E_INVALID, "put the norm before the flatten",
                 dsc_model_group_norm(m, "g", v, 2, 1e-5, &y));
    assert_fails(DSC_E_INVALID, "name is empty", dsc_model_linear(m, "", v, 3, 1, &y));
    assert_fails(DSC_E_INVALID, "name is empty", dsc_model_linear(m, NULL, v, 3, 1, &y));
    assert_fails(DSC_E_INVALID, "-3 output features", dsc_model_linear(m, "fc", v, -3, 1, &y));
    assert_fails(DSC_E_INVALID, "at most", dsc_model_linear(m, "fc", v, INT64_MAX / 2, 1, &y));
    assert_ok(dsc_model_linear(m, "unused", v, 3, 1, &y));
    assert_ok(dsc_model_linear(m, "fc", v, 3, 1, &y));
    assert_fails(DSC_E_INVALID, "linear 'unused': its output is never used", dsc_model_seal(m, y));
    assert_ok(dsc_model_add(m, y, y - 1, &y));
    assert_ok(dsc_model_seal(m, y));
    assert_fails(DSC_E_INVALID, "sealed", dsc_model_seal(m, y));
    assert_fails(DSC_E_INVALID, "sealed", dsc_model_relu(m, y, &y));
    assert_fails(DSC_E_INVALID, "batch of 0", dsc_exec_create(m, DSC_EXEC_TRAIN, 0, &exec));
    assert_null(exec);
    dsc_model_destroy(&m);
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_fails(DSC_E_INVALID, "at least 1", dsc_model_input(m, 0, 2, 3, &x));
    assert_fails(DSC_E_INVALID, "at most", dsc_model_input(m, INT64_MAX / 2, 3, 3, &x));
    dsc_model_destroy(&m);
}

/* Values and gradients lie in graph order, without gaps. */
static void test_blocks(void **state) {
    (void)state;
    dsc_model *m = make_model(device, find_net("residual"), DSC_F32, 0);
    const dsc_param *params = dsc_model_params(m);
    dsc_tensor values = dsc_model_values(m), grads = dsc_model_grads(m);
    char *value = values.data, *grad = grads.data;
    const char *first[] = {"conv0.weight", "bn0.weight", "bn0.bias", "conv1.weight"};
    for (int i = 0; i < 4; i++)
        assert_string_equal(params[i].name, first[i]);
    for (int64_t i = 0; i < dsc_model_param_count(m); i++) {
        assert_ptr_equal(params[i].value.data, value);
        assert_ptr_equal(params[i].grad.data, grad);
        value += dsc_tensor_bytes(&params[i].value);
        grad += dsc_tensor_bytes(&params[i].grad);
    }
    assert_ptr_equal(value, (char *)values.data + dsc_tensor_bytes(&values));
    assert_ptr_equal(grad, (char *)grads.data + dsc_tensor_bytes(&grads));
    assert_int_equal(dsc_tensor_count(&values), dsc_model_parameter_total(m));
    assert_int_equal(dsc_model_buffer_count(m), 4 * 3);
    assert_ptr_equal(dsc_model_buffers(m)[0].grad.data, NULL);
    dsc_model_destroy(&m);
}

/* fc[features] on h x w x c; the model is sealed. */
static dsc_model *one_layer(uint64_t seed, dsc_dtype dtype, int64_t features) {
    dsc_model_options options;
    dsc_model_options_init(&options);
    options.seed = seed;
    options.dtype = dtype;
    dsc_model *m = NULL;
    dsc_value x;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(dsc_model_input(m, 4, 4, 8, &x));
    dsc_conv2d_shape conv = square_conv(400, 3);
    conv.groups = 2;
    assert_ok(dsc_model_conv2d(m, "conv", x, &conv, 1, &x));
    assert_ok(dsc_model_batch_norm(m, "bn", x, &x));
    assert_ok(dsc_model_global_pool(m, x, &x));
    assert_ok(dsc_model_linear(m, "fc", x, features, 1, &x));
    assert_ok(dsc_model_seal(m, x));
    return m;
}

static void assert_constant(const dsc_tensor *t, double expected) {
    double *x = read_doubles(queue, t);
    for (int64_t i = 0; i < dsc_tensor_count(t); i++)
        assert_true(x[i] == expected);
    free(x);
}

/* Mean 0 and variance 2 / fan-in, to 5 standard errors. */
static void assert_he(const dsc_tensor *t, double fan_in) {
    double *x = read_doubles(queue, t), sum = 0, square = 0, n = (double)dsc_tensor_count(t);
    for (int64_t i = 0; i < dsc_tensor_count(t); i++) {
        sum += x[i];
        square += x[i] * x[i];
    }
    assert_true(fabs(sum / n) < 5 * sqrt(2 / fan_in / n));
    assert_true(fabs(square / n * fan_in / 2 - 1) < 5 * sqrt(2 / n));
    free(x);
}

/* Element i of parameter `number` is a pure function of seed, number and i. */
static void assert_drawn(const dsc_tensor *t, uint32_t number, double fan_in) {
    double *x = read_doubles(queue, t);
    for (int64_t i = 0; i < dsc_tensor_count(t); i++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_INIT, number, (uint64_t)i);
        double expected = sqrt(2 / fan_in) * dsc_rng_normal(&rng);
        assert_true(fabs(x[i] - expected) <= FLT_EPSILON * fabs(expected));
    }
    free(x);
}

static void test_initial_values(void **state) {
    (void)state;
    dsc_model *m = one_layer(1, DSC_F32, 30);
    const dsc_param *p = dsc_model_params(m);
    assert_he(&p[0].value, 3 * 3 * 4); /* conv.weight, two groups */
    assert_drawn(&p[0].value, 0, 3 * 3 * 4);
    assert_drawn(&p[4].value, 4, 400);
    assert_constant(&p[1].value, 0);
    assert_constant(&p[2].value, 1); /* bn */
    assert_constant(&p[3].value, 0);
    assert_he(&p[4].value, 400); /* fc.weight */
    assert_constant(&p[5].value, 0);
    assert_constant(&dsc_model_buffers(m)[0].value, 0);
    assert_constant(&dsc_model_buffers(m)[1].value, 1);
    dsc_tensor grads = dsc_model_grads(m);
    assert_constant(&grads, 0);
    dsc_model_destroy(&m);
}

static void test_chosen_deviation(void **state) {
    (void)state;
    dsc_model *m = NULL;
    dsc_model_options options;
    dsc_value x, y;
    dsc_model_options_init(&options);
    options.seed = 1;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(dsc_model_input(m, 1, 1, 100, &x));
    assert_ok(dsc_model_flatten(m, x, &x));
    assert_ok(dsc_model_linear(m, "fc", x, 90, 1, &y));
    assert_fails(DSC_E_NOT_FOUND, "initial values of 'fc.wait': the model has no such parameter",
                 dsc_model_set_std(m, "fc.wait", 1));
    assert_fails(DSC_E_INVALID,
                 "initial values of 'fc.weight': standard deviation -1, but it must be in [0, 1e6)",
                 dsc_model_set_std(m, "fc.weight", -1));
    assert_fails(DSC_E_INVALID, "standard deviation nan", dsc_model_set_std(m, "fc.weight", (double)NAN));
    assert_fails(DSC_E_INVALID, "no model or no name", dsc_model_set_std(NULL, "fc.weight", 1));
    assert_ok(dsc_model_set_std(m, "fc.weight", 0));
    assert_ok(dsc_model_set_std(m, "fc.bias", sqrt(2.0 / 25))); /* He's value for a fan-in of 25 */
    assert_ok(dsc_model_seal(m, y));
    assert_constant(&dsc_model_params(m)[0].value, 0);
    assert_drawn(&dsc_model_params(m)[1].value, 1, 25);
    assert_fails(DSC_E_INVALID, "the model is sealed", dsc_model_set_std(m, "fc.weight", 1));
    dsc_model_destroy(&m);
}

/* Equal for equal seeds, in both types where there are two; different for another seed; a parameter's values
 * depend on its number and not on what else is in the model. */
static void test_seeds(void **state) {
    (void)state;
    const dsc_dtype other = dsc_device_is_host(device) ? DSC_F64 : DSC_F32;
    dsc_model *models[] = {one_layer(1, DSC_F32, 30), one_layer(1, DSC_F32, 30), one_layer(2, DSC_F32, 30),
                           one_layer(1, other, 40)};
    double *x[4];
    for (int i = 0; i < 4; i++)
        x[i] = read_doubles(queue, &dsc_model_params(models[i])[4].value);
    int64_t n = 30 * 400, equal = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(x[0][i] == x[1][i]);
        assert_true(x[0][i] == (double)(float)x[3][i]);
        equal += x[0][i] == x[2][i];
    }
    assert_true(equal < 3);
    for (int i = 0; i < 4; i++) {
        free(x[i]);
        dsc_model_destroy(&models[i]);
    }
}

static void test_state_layout(void **state) {
    (void)state;
    dsc_model *m = one_layer(1, DSC_F32, 30);
    const char *names[] = {"conv.weight",
                           "conv.bias",
                           "bn.weight",
                           "bn.bias",
                           "bn.running_mean",
                           "bn.running_var",
                           "bn.num_batches_tracked",
                           "fc.weight",
                           "fc.bias"};
    const dsc_state_entry *s = dsc_model_state(m);
    assert_int_equal(dsc_model_state_count(m), 9);
    for (int i = 0; i < 9; i++)
        assert_string_equal(s[i].name, names[i]);
    assert_int_equal(s[0].ndim, 4);
    assert_memory_equal(s[0].dim, ((int64_t[]){400, 4, 3, 3}), 4 * sizeof(int64_t));
    assert_true(s[0].permuted);
    assert_memory_equal(s[0].ohwc, ((int64_t[]){400, 3, 3, 4}), 4 * sizeof(int64_t));
    assert_ptr_equal(s[0].tensor, &dsc_model_params(m)[0].value);
    assert_ptr_equal(s[4].tensor, &dsc_model_buffers(m)[0].value);
    assert_int_equal(s[6].ndim, 0);
    assert_int_equal(s[6].tensor->dtype, DSC_I64);
    assert_int_equal(dsc_tensor_count(s[6].tensor), 1);
    assert_int_equal(s[7].ndim, 2);
    assert_false(s[7].permuted); /* after a global pool */
    dsc_model_destroy(&m);
}

/* The order h, w, c of a flattened map reaches through layers that keep the shape. */
static void test_state_flattened(void **state) {
    (void)state;
    dsc_value x;
    dsc_model *m = empty_model(&x);
    assert_ok(dsc_model_flatten(m, x, &x));
    assert_ok(dsc_model_batch_norm(m, "bn", x, &x));
    assert_ok(dsc_model_relu(m, x, &x));
    assert_ok(dsc_model_dropout(m, x, 0.5, &x));
    assert_ok(dsc_model_flatten(m, x, &x));
    assert_ok(dsc_model_linear(m, "fc1", x, 5, 0, &x));
    assert_ok(dsc_model_linear(m, "fc2", x, 3, 0, &x));
    assert_ok(dsc_model_seal(m, x));
    const dsc_state_entry *s = dsc_model_state(m);
    assert_true(s[0].permuted);
    assert_int_equal(s[0].dim[0], 8 * 6 * 4);
    assert_memory_equal(s[0].ohwc, ((int64_t[]){1, 8, 6, 4}), 4 * sizeof(int64_t));
    assert_true(s[2].permuted);
    assert_true(s[5].permuted);
    assert_int_equal(s[5].ndim, 2);
    assert_memory_equal(s[5].dim, ((int64_t[]){5, 192}), 2 * sizeof(int64_t));
    assert_memory_equal(s[5].ohwc, ((int64_t[]){5, 8, 6, 4}), 4 * sizeof(int64_t));
    assert_false(s[6].permuted);
    dsc_model_destroy(&m);
}

/* PyTorch has [in, out / groups, kernel_h, kernel_w]. K-FAC sees the layer of one group, without its bias. */
static void test_state_transposed(void **state) {
    (void)state;
    dsc_model *m = make_model(device, find_net("transposed"), DSC_F32, 0);
    const dsc_state_entry *s = dsc_model_state(m);
    assert_int_equal(dsc_model_state_count(m), 6);
    assert_string_equal(s[1].name, "up0.weight");
    assert_memory_equal(s[1].dim, ((int64_t[]){4, 3, 3, 2}), 4 * sizeof(int64_t));
    assert_true(s[1].permuted);
    assert_memory_equal(s[1].ohwc, ((int64_t[]){4, 3, 2, 3}), 4 * sizeof(int64_t));
    assert_string_equal(s[2].name, "up1.weight");
    assert_memory_equal(s[2].dim, ((int64_t[]){10, 3, 2, 2}), 4 * sizeof(int64_t));
    assert_string_equal(s[3].name, "up1.bias");
    assert_int_equal(dsc_tensor_count(s[3].tensor), 3);
    const dsc_layer_info *l = dsc_model_layers(m);
    assert_int_equal(dsc_model_layer_count(m), 3);
    assert_string_equal(l[1].name, "up1");
    assert_int_equal(l[1].kind, DSC_LAYER_CONV_TRANSPOSE2D);
    assert_memory_equal(&l[1].shape->in_h, ((int64_t[]){4, 3, 10, 3}), 4 * sizeof(int64_t));
    assert_memory_equal(&l[1].out_h, ((int64_t[]){8, 6}), 2 * sizeof(int64_t));
    assert_string_equal(dsc_model_params(m)[l[1].weight].name, "up1.weight");
    assert_int_equal(l[1].bias, -1);
    assert_string_equal(l[2].name, "fc");
    dsc_model_destroy(&m);
}

static void test_layer_list(void **state) {
    (void)state;
    dsc_model *m = make_model(device, find_net("conv"), DSC_F32, 0);
    const dsc_layer_info *l = dsc_model_layers(m);
    assert_int_equal(dsc_model_layer_count(m), 3);
    assert_string_equal(l[0].name, "conv1");
    assert_int_equal(l[0].kind, DSC_LAYER_CONV2D);
    assert_memory_equal(&l[0].shape->in_h, ((int64_t[]){9, 8, 2, 4}), 4 * sizeof(int64_t));
    assert_memory_equal(&l[0].out_h, ((int64_t[]){9, 6}), 2 * sizeof(int64_t));
    assert_int_equal(l[0].shape->stride_w, 2);
    assert_int_equal(l[0].weight, 0);
    assert_int_equal(l[0].bias, 1);
    assert_int_equal(l[1].shape->groups, 2);
    assert_int_equal(l[1].bias, -1);
    assert_int_equal(l[2].kind, DSC_LAYER_LINEAR);
    assert_memory_equal(&l[2].shape->in_h, ((int64_t[]){1, 1}), 2 * sizeof(int64_t));
    assert_memory_equal(&l[2].out_h, ((int64_t[]){1, 1}), 2 * sizeof(int64_t));
    assert_int_equal(l[2].shape->out_c, NET_CLASSES);
    assert_int_equal(l[2].weight, 3);
    assert_int_equal(dsc_tensor_count(&dsc_model_params(m)[3].value), l[2].shape->in_c * l[2].shape->out_c);
    int64_t shape[3];
    dsc_model_input_shape(m, shape);
    assert_memory_equal(shape, ((int64_t[]){9, 8, 2}), sizeof shape);
    assert_int_equal(dsc_model_classes(m), NET_CLASSES);
    assert_ptr_equal(dsc_model_device(m), device);
    dsc_model_destroy(&m);
}

/* Dropouts are numbered, so that each has its own mask. */
static void test_dropout_numbers(void **state) {
    (void)state;
    dsc_value x;
    dsc_model *m = empty_model(&x);
    for (int i = 0; i < 3; i++) {
        assert_ok(dsc_model_dropout(m, x, 0.5, &x));
        const dsc_dropout_desc *desc = m->nodes[x].attributes;
        assert_int_equal(desc->layer, i);
        assert_int_equal(desc->seed, 42);
    }
    dsc_model_destroy(&m);
}

/* Builds, seals and plans; stops at the first failure. */
static dsc_status build_all(dsc_model **m, dsc_exec **exec) {
    dsc_value logits = -1;
    dsc_status status = dsc_model_create(device, NULL, m);
    if (status == DSC_OK)
        status = find_net("downsample")->build(*m, &logits);
    if (status == DSC_OK)
        status = dsc_model_seal(*m, logits);
    if (status == DSC_OK)
        status = dsc_exec_create(*m, DSC_EXEC_TRAIN, 2, exec);
    return status;
}

/* Every allocation fails once: the failure is reported and nothing is lost. */
static void test_out_of_memory(void **state) {
    (void)state;
    size_t before = dsc_device_bytes(device);
    dsc_status status = DSC_E_MEMORY;
    for (int64_t nth = 1; status != DSC_OK; nth++) {
        dsc_model *m = NULL;
        dsc_exec *exec = NULL;
        dsc_memory_fail_at(nth);
        status = build_all(&m, &exec);
        dsc_memory_fail_at(0);
        if (status != DSC_OK) {
            assert_int_equal(status, DSC_E_MEMORY);
            assert_null(exec);
        }
        dsc_exec_destroy(&exec);
        dsc_model_destroy(&m);
        assert_int_equal(dsc_device_bytes(device), before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),         cmocka_unit_test(test_shape_errors),
        cmocka_unit_test(test_other_errors),    cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_initial_values),  cmocka_unit_test(test_chosen_deviation),
        cmocka_unit_test(test_seeds),           cmocka_unit_test(test_state_layout),
        cmocka_unit_test(test_state_flattened), cmocka_unit_test(test_state_transposed),
        cmocka_unit_test(test_layer_list),      cmocka_unit_test(test_dropout_numbers),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("model_graph", tests, setup, teardown);
}

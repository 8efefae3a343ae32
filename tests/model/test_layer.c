/* Layers that a program defines itself (descent/layer.h): a dense layer that gives the same bits as the built-in one,
 * memory and betas (through the networks of own_layers.h, whose gradients are checked in test_gradients.c), captures
 * for K-FAC, and invalid definitions. */
#include "chosen.h"

#include "base/memory.h"
#include "model/own_layers.h"

#include <stdlib.h>

enum { BATCH = 6 };

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

/* ---- a dense layer, built in and own ---- */

typedef dsc_status (*dense_builder)(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias,
                                    dsc_value *y);

/* Two layers that share an input, one without bias. With `flatten` 0 the first layer reads the map itself. */
static dsc_model *perceptron(dense_builder dense, int flatten) {
    dsc_model *m = NULL;
    dsc_value x, a, b;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, 3, 4, 2, &x));
    if (flatten)
        assert_ok(dsc_model_flatten(m, x, &x));
    assert_ok(dense(m, "fc1", x, 17, 1, &a));
    assert_ok(dsc_model_relu(m, a, &a));
    assert_ok(dense(m, "fc2", a, 17, 0, &b));
    assert_ok(dsc_model_add(m, a, b, &a));
    assert_ok(dense(m, "fc3", a, NET_CLASSES, 1, &a));
    assert_ok(dsc_model_seal(m, a));
    return m;
}

enum { LAYERS = 3 };

typedef struct captures {
    int64_t count;
    double *a[LAYERS], *g[LAYERS];
    int64_t a_count[LAYERS], g_count[LAYERS];
} captures;

static dsc_status capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g) {
    captures *c = context;
    assert_int_equal(a->ndim, 2);
    assert_int_equal(g->ndim, 2);
    c->a[layer] = read_doubles(q, a);
    c->g[layer] = read_doubles(q, g);
    c->a_count[layer] = dsc_tensor_count(a);
    c->g_count[layer] = dsc_tensor_count(g);
    c->count++;
    return DSC_OK;
}

static void assert_same(const dsc_tensor *x, const dsc_tensor *y) {
    double *a = read_doubles(queue, x), *b = read_doubles(queue, y);
    assert_int_equal(dsc_tensor_count(x), dsc_tensor_count(y));
    assert_memory_equal(a, b, (size_t)dsc_tensor_count(x) * sizeof *a);
    free(a);
    free(b);
}

/* Parameters, layers as K-FAC sees them, logits, gradients (written and added) and captures are the same. */
static void check_dense(int flatten) {
    const dense_builder builders[2] = {dsc_model_linear, own_dense};
    dsc_model *m[2];
    dsc_exec *exec[2] = {NULL, NULL};
    captures seen[2] = {{0}, {0}};
    dsc_tensor x = random_tensor(queue, 1, DSC_F32, 4, (int64_t[]){BATCH, 3, 4, 2});
    dsc_tensor labels = random_labels(queue, 2, BATCH, NET_CLASSES);
    for (int i = 0; i < 2; i++) {
        m[i] = perceptron(builders[i], i == 0 || flatten);
        assert_ok(dsc_exec_create(m[i], DSC_EXEC_TRAIN, BATCH, &exec[i]));
        dsc_backward_options options;
        dsc_backward_options_init(&options);
        options.context = &seen[i];
        options.capture = capture;
        for (int pass = 0; pass < 2; pass++) {
            assert_ok(dsc_exec_forward(exec[i], queue, &x));
            assert_ok(dsc_exec_loss(exec[i], queue, &labels, 1.0 / BATCH));
            assert_ok(dsc_exec_backward(exec[i], queue, &options));
            options.accumulate = 1;
            options.capture = NULL;
        }
        assert_int_equal(seen[i].count, LAYERS);
    }
    dsc_tensor values[2] = {dsc_model_values(m[0]), dsc_model_values(m[1])};
    dsc_tensor grads[2] = {dsc_model_grads(m[0]), dsc_model_grads(m[1])};
    assert_same(&values[0], &values[1]);
    assert_same(&grads[0], &grads[1]);
    assert_same(dsc_exec_logits(exec[0]), dsc_exec_logits(exec[1]));
    assert_int_equal(dsc_model_param_count(m[1]), 5);
    for (int64_t i = 0; i < 5; i++)
        assert_string_equal(dsc_model_params(m[0])[i].name, dsc_model_params(m[1])[i].name);
    assert_int_equal(dsc_model_layer_count(m[1]), LAYERS);
    for (int64_t i = 0; i < LAYERS; i++) {
        const dsc_layer_info *a = &dsc_model_layers(m[0])[i], *b = &dsc_model_layers(m[1])[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->kind, b->kind);
        assert_memory_equal(a->shape, b->shape, sizeof *a->shape);
        assert_memory_equal(&a->out_h, &b->out_h, 4 * sizeof(int64_t)); /* to the end of the struct */
        assert_int_equal(seen[0].a_count[i], seen[1].a_count[i]);
        assert_memory_equal(seen[0].a[i], seen[1].a[i], (size_t)seen[0].a_count[i] * sizeof(double));
        assert_memory_equal(seen[0].g[i], seen[1].g[i], (size_t)seen[0].g_count[i] * sizeof(double));
        for (int k = 0; k < 2; k++) {
            free(seen[k].a[i]);
            free(seen[k].g[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        dsc_exec_destroy(&exec[i]);
        dsc_model_destroy(&m[i]);
    }
    dsc_tensor_free(&x);
    dsc_tensor_free(&labels);
}

static void test_dense(void **state) {
    (void)state;
    check_dense(1);
}

/* A layer that reads a map as one vector: K-FAC sees the vector, too. */
static void test_dense_of_a_map(void **state) {
    (void)state;
    check_dense(0);
}

/* ---- evaluation ---- */

/* Without layers whose statistics differ, evaluation computes what training computes, with its saved tensors
 * in valid memory although no backward follows, and needs less memory. */
static void test_evaluation(void **state) {
    (void)state;
    if (!dsc_device_is_host(device))
        return;
    const net *what = &own_nets[0];
    dsc_model *m = make_model(device, what, DSC_F32, 0);
    dsc_exec *exec[2] = {NULL, NULL};
    dsc_tensor x = random_tensor(queue, 1, DSC_F32, 4, (int64_t[]){BATCH, what->h, what->w, what->c});
    for (int i = 0; i < 2; i++) {
        assert_ok(dsc_exec_create(m, i ? DSC_EXEC_EVAL : DSC_EXEC_TRAIN, BATCH, &exec[i]));
        assert_ok(dsc_exec_forward(exec[i], queue, &x));
    }
    assert_same(dsc_exec_logits(exec[0]), dsc_exec_logits(exec[1]));
    assert_true(dsc_exec_bytes(exec[1]) < dsc_exec_bytes(exec[0]));
    dsc_exec_destroy(&exec[0]);
    dsc_exec_destroy(&exec[1]);
    dsc_tensor_free(&x);
    dsc_model_destroy(&m);
}

/* ---- definitions that make no sense ---- */

typedef enum fault {
    NONE,
    SILENT,
    LOUD,
    NO_SHAPE,
    TWICE,
    NO_NAME,
    NO_SIZE,
    NO_DIMS,
    BAD_STD,
    TOO_MANY,
    TOO_MANY_SAVED,
    KFAC_SHAPE,
    KFAC_NUMBER,
    KFAC_BIAS,
    FAULTS
} fault;

static dsc_status faulty_declare(dsc_layer_declaration *d) {
    const int64_t four = 4, zero = 0, square[2] = {4, 4}, wide[2] = {4, 5};
    dsc_status status = DSC_OK;
    fault f = *(fault *)d->attributes;
    d->y = d->x[0];
    switch (f) {
    case SILENT:
        return DSC_E_NUMERIC;
    case LOUD:
        return dsc_error_set(DSC_E_UNSUPPORTED, "not on a %s", "Sunday");
    case NO_SHAPE:
        d->y = (dsc_shape){0};
        return DSC_OK;
    case TWICE:
        status = dsc_layer_declare_param(d, "w", 1, &four, 0, 0);
        return status == DSC_OK ? dsc_layer_declare_param(d, "w", 1, &four, 0, 0) : status;
    case NO_NAME:
        return dsc_layer_declare_param(d, "", 1, &four, 0, 0);
    case NO_SIZE:
        return dsc_layer_declare_param(d, "w", 1, &zero, 0, 0);
    case NO_DIMS:
        return dsc_layer_declare_param(d, "w", 0, &four, 0, 0);
    case BAD_STD:
        return dsc_layer_declare_param(d, "w", 1, &four, -1, 0);
    case TOO_MANY:
        for (int i = 0; status == DSC_OK; i++)
            status = dsc_layer_declare_param(d, (const char[]){(char)('a' + i), 0}, 1, &four, 0, 0);
        return status;
    case TOO_MANY_SAVED:
        while (status == DSC_OK)
            status = dsc_layer_declare_saved(d, DSC_F32, 1, 1, &four);
        return status;
    case KFAC_SHAPE:
        d->kfac = DSC_KFAC_AS_LINEAR;
        return dsc_layer_declare_param(d, "w", 2, wide, 0, 0);
    case KFAC_NUMBER:
        d->kfac = DSC_KFAC_AS_LINEAR;
        d->kfac_weight = 1;
        return dsc_layer_declare_param(d, "w", 2, square, 0, 0);
    case KFAC_BIAS:
        d->kfac = DSC_KFAC_AS_LINEAR;
        d->kfac_bias = 0;
        return dsc_layer_declare_param(d, "w", 2, square, 0, 0);
    default:
        return dsc_layer_declare_param(d, "w", 2, square, 0, 0);
    }
}

static dsc_status silent_run(dsc_queue *q, const dsc_layer_call *call) {
    (void)q;
    return *(const fault *)call->attributes == NONE ? DSC_E_DEVICE : DSC_OK;
}

static dsc_layer_def faulty_def(void) {
    dsc_layer_def def;
    dsc_layer_def_init(&def);
    def.kind = "faulty";
    def.attribute_bytes = sizeof(fault);
    def.declare = faulty_declare;
    def.forward = silent_run;
    def.backward = silent_run;
    return def;
}

static void test_bad_declarations(void **state) {
    (void)state;
    static const struct {
        dsc_status status;
        const char *message;
    } expected[FAULTS] = {
        [SILENT] = {DSC_E_NUMERIC,
                    "faulty 'f': the caller's function `declare` returned DSC_E_NUMERIC (numerical failure)"},
        [LOUD] = {DSC_E_UNSUPPORTED, "faulty 'f': not on a Sunday"},
        [NO_SHAPE] = {DSC_E_INVALID, "the output would be 0x0x0"},
        [TWICE] = {DSC_E_INVALID, "faulty 'f': faulty parameter 'w' is declared twice"},
        [NO_NAME] = {DSC_E_INVALID, "its name must have 1 to 63 characters"},
        [NO_SIZE] = {DSC_E_INVALID, "parameter 'w': dimension 0 is 0, but must be at least 1"},
        [NO_DIMS] = {DSC_E_INVALID, "parameter 'w' has 0 dimensions"},
        [BAD_STD] = {DSC_E_INVALID, "initial values of deviation -1"},
        [TOO_MANY] = {DSC_E_INVALID, "parameter 'i': a layer has at most 8"},
        [TOO_MANY_SAVED] = {DSC_E_INVALID, "saved tensor 4: a layer has at most 4"},
        [KFAC_SHAPE] = {DSC_E_INVALID, "to be linear for K-FAC it must have one input, a weight [4, 4]"},
        [KFAC_NUMBER] = {DSC_E_INVALID, "to be linear for K-FAC"},
        [KFAC_BIAS] = {DSC_E_INVALID, "to be linear for K-FAC"},
    };
    dsc_model *m = NULL;
    dsc_value x, y = -1;
    dsc_layer_def def = faulty_def();
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, 1, 1, 4, &x));
    for (fault f = SILENT; f < FAULTS; f++) {
        assert_fails(expected[f].status, expected[f].message, dsc_model_layer(m, "f", &def, &x, 1, &f, &y));
        assert_int_equal(dsc_model_param_count(m), 0);
        assert_int_equal(dsc_model_layer_count(m), 0);
    }
    fault none = NONE;
    assert_fails(DSC_E_INVALID, "faulty: the name is empty, but parameters need one",
                 dsc_model_layer(m, NULL, &def, &x, 1, &none, &y));
    assert_int_equal(y, -1);
    dsc_model_destroy(&m);
}

static void test_bad_definitions(void **state) {
    (void)state;
    dsc_model *m = NULL;
    dsc_value x, y;
    fault none = NONE;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, 1, 1, 4, &x));
    dsc_layer_def def = faulty_def();
    assert_fails(DSC_E_INVALID, "dsc_layer_def_init", dsc_model_layer(m, "f", NULL, &x, 1, &none, &y));
    assert_fails(DSC_E_INVALID, "faulty: no model", dsc_model_layer(NULL, "f", &def, &x, 1, &none, &y));
    assert_fails(DSC_E_INVALID, "faulty: 0 inputs, but there must be 1 to 8",
                 dsc_model_layer(m, "f", &def, NULL, 1, &none, &y));
    assert_fails(DSC_E_INVALID, "faulty: 9 inputs", dsc_model_layer(m, "f", &def, &x, 9, &none, &y));
    assert_fails(DSC_E_INVALID, "bytes of attributes are NULL",
                 dsc_model_layer(m, "f", &def, &x, 1, NULL, &y));
    assert_fails(DSC_E_INVALID, "input 0 is value 7",
                 dsc_model_layer(m, "f", &def, (dsc_value[]){7}, 1, &none, &y));
    def.in_place = 1;
    assert_fails(DSC_E_INVALID, "in_place is for one input and needs_x = 0",
                 dsc_model_layer(m, "f", &def, &x, 1, &none, &y));
    def = faulty_def();
    def.kind = NULL;
    assert_fails(DSC_E_INVALID, "the name must have 1 to 63",
                 dsc_model_layer(m, "f", &def, &x, 1, &none, &y));
    def = faulty_def();
    def.forward = NULL;
    assert_fails(DSC_E_INVALID, "no function `forward`", dsc_model_layer(m, "f", &def, &x, 1, &none, &y));
    def = faulty_def();
    def.backward = NULL;
    assert_fails(DSC_E_INVALID, "no function `backward`", dsc_model_layer(m, "f", &def, &x, 1, &none, &y));
    def = faulty_def();
    def.declare = NULL;
    assert_fails(DSC_E_INVALID, "no function `declare`", dsc_model_layer(m, "f", &def, &x, 1, &none, &y));
    dsc_model_destroy(&m);
}

/* A layer whose forward fails is named in the message; allocations may fail while a layer is added. */
static void test_failures(void **state) {
    (void)state;
    dsc_model *m = NULL;
    dsc_exec *exec = NULL;
    dsc_value x, y;
    fault none = NONE;
    dsc_layer_def def = faulty_def();
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_input(m, 1, 1, 4, &x));
    assert_ok(dsc_model_flatten(m, x, &x));
    dsc_status status = DSC_E_MEMORY;
    for (int nth = 1; status == DSC_E_MEMORY; nth++) {
        dsc_memory_fail_at(nth);
        status = dsc_model_layer(m, "f", &def, &x, 1, &none, &y);
    }
    dsc_memory_fail_at(0);
    assert_ok(status);
    assert_int_equal(dsc_model_param_count(m), 1);
    assert_ok(dsc_model_seal(m, y));
    assert_ok(dsc_exec_create(m, DSC_EXEC_EVAL, 2, &exec));
    dsc_tensor data = random_tensor(queue, 1, DSC_F32, 4, (int64_t[]){2, 1, 1, 4});
    assert_fails(
        DSC_E_DEVICE,
        "forward of faulty 'f': the caller's function `forward` returned DSC_E_DEVICE (device failure)",
        dsc_exec_forward(exec, queue, &data));
    dsc_tensor_free(&data);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),           cmocka_unit_test(test_dense_of_a_map),
        cmocka_unit_test(test_evaluation),      cmocka_unit_test(test_bad_declarations),
        cmocka_unit_test(test_bad_definitions), cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests_name("model_layer", tests, setup, teardown);
}

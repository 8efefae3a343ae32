/* The zoo: names, sizes, state dicts as PyTorch has them. */
#include "chosen.h"

#include "model/graph.h"
#include "model/nets.h"
#include "model/zoo/zoo.h"

#include <math.h>
#include <stdlib.h>

enum { MODELS = 21 }; /* built in */

static dsc_device *device;

static int setup(void **state) {
    (void)state;
    device = open_device(chosen_or("ref"));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_device_destroy(&device);
    return 0;
}

static int takes_tokens(const char *name) {
    return strncmp(name, "gpt", 3) == 0 || strncmp(name, "bert", 4) == 0;
}

/* Built but not sealed: no memory, no initial values for up to a billion and a half parameters. */
static dsc_model *build_unsealed(const char *name, int64_t side, int64_t classes) {
    int64_t own_side, channels, own_classes;
    dsc_model *m = NULL;
    dsc_value logits;
    assert_ok(dsc_zoo_default_input(name, &own_side, &channels, &own_classes));
    side = side ? side : own_side;
    assert_ok(dsc_model_create(device, NULL, &m));
    const int64_t shape[] = {side, takes_tokens(name) ? 1 : side, channels};
    assert_ok(dsc_zoo_build(m, name, shape, classes ? classes : own_classes, &logits));
    return m;
}

static void test_sizes(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t parameters, layers;
    } expected[] = {
        {"mlp", 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10, 3},
        {"lenet", 61706, 5},
        {"resnet20", 269722, 20},
        {"resnet32", 464154, 32},
        {"resnet44", 658586, 44},
        {"resnet56", 853018, 56},
        {"resnet110", 1727962, 110},
        {"resnet18", 11689512, 21},
        {"resnet34", 21797672, 37},
        {"resnet50", 25557032, 54},
        {"resnet101", 44549160, 105},
        {"resnet152", 60192808, 156},
        {"unet", 31030658, 23},
        {"unet-bn", 7763041, 23},
        {"gpt2", 124439808, 48},
        {"gpt2-medium", 354823168, 96},
        {"gpt2-large", 774030080, 144},
        {"gpt2-xl", 1557611200, 192},
        {"gpt-mini", 10745088, 24},
        {"bert-base", 109514298, 73},
        {"bert-large", 335174458, 145},
    };
    int count = 0;
    for (; dsc_zoo_names()[count]; count++) {
        const char *name = dsc_zoo_names()[count];
        assert_string_equal(name, expected[count].name);
        dsc_model *m = build_unsealed(name, 0, 0);
        assert_int_equal(dsc_model_parameter_total(m), expected[count].parameters);
        assert_int_equal(dsc_model_layer_count(m), expected[count].layers);
        dsc_model_destroy(&m);
    }
    assert_int_equal(count, MODELS);
}

static void test_errors(void **state) {
    (void)state;
    dsc_model *m = NULL;
    int64_t a, b, c;
    assert_fails(DSC_E_INVALID, "model 'resnet19' is unknown; known are mlp, lenet, resnet20",
                 dsc_zoo_create(device, "resnet19", 32, 32, 3, 10, NULL, &m));
    assert_non_null(strstr(dsc_error_message(), "resnet152"));
    assert_fails(DSC_E_INVALID, "unknown", dsc_zoo_default_input("", &a, &b, &c));
    assert_fails(DSC_E_INVALID, "model '' is unknown; known are mlp, lenet",
                 dsc_zoo_create(device, NULL, 32, 32, 3, 10, NULL, &m));
    assert_fails(DSC_E_INVALID, "model '' is unknown", dsc_zoo_default_input(NULL, &a, &b, &c));
    assert_fails(DSC_E_INVALID, "model lenet for 6x6x1 and 10 classes: conv2d 'conv2' on 3x3x6",
                 dsc_zoo_create(device, "lenet", 6, 6, 1, 10, NULL, &m));
    assert_fails(DSC_E_INVALID, "linear 'linear': 0 output features",
                 dsc_zoo_create(device, "resnet20", 8, 8, 3, 0, NULL, &m));
    assert_null(m);
}

static void test_spec_errors(void **state) {
    (void)state;
    const struct {
        const char *spec, *message;
    } wrong[] = {
        {"unet:levels=3",
         "model 'unet:levels=3' (keys of unet and their defaults: width=64, depth=4, dropout=0.5): "
         "there is no key 'levels'"},
        {"unet-bn:width=0",
         "(keys of unet-bn and their defaults: width=32, depth=4, dropout=0): width 0: must be at least 1"},
        {"unet:depth=0", "depth 0: must be at least 1 and at most 6"},
        {"unet-bn:depth=7", "depth 7: must be at least 1 and at most 6"},
        {"unet:width=8x", "width 8x: is not a whole number"},
        {"unet:width=", "'width=' is not of the form key=value"},
        {"unet:width", "'width' is not of the form key=value"},
        {"unet:=8", "'=8' is not of the form key=value"},
        {"unet:", "'' is not of the form key=value"},
        {"unet:width=8,", "'' is not of the form key=value"},
        {"unet:width=8,,dropout=0", "'' is not of the form key=value"},
        {"unet:width=8,dropout=1",
         "defaults: width=64, depth=4, dropout=0.5): dropout 1: must be at least 0 and below 1"},
        {"unet:dropout=nan", "dropout nan: is not a number"},
        {"unet:width=8,width=8", "width is given twice"},
        {"unet:width=99999999999999999999", "does not fit into 64 bits"},
        {"gpt-mini:context=64",
         "(keys of gpt-mini and their defaults: layers=6, heads=6, width=384, dropout=0.2, bias=0): "
         "there is no key 'context'"},
        {"gpt2:bias=2", "(keys of gpt2 and their defaults: layers=12, heads=12, width=768, dropout=0.1, "
                        "bias=1): bias 2: must"},
        {"gpt2:layers=0", "layers 0: must be at least 1"},
        {"bert-base:bias=0",
         "(keys of bert-base and their defaults: layers=12, heads=12, width=768, dropout=0.1): there is no"},
        {"lenet:width=8", "model 'lenet:width=8' (lenet has no keys): there is no key 'width'"},
        {"lenet:", "model 'lenet:' (lenet has no keys): '' is not of the form"},
        {":width=8", "model ':width=8' is unknown"},
        {"unet :width=8", "is unknown"},
        {"unet:width=8,dropout=0.00000000000000000000000000000000000000001",
         "the name has 64 characters, but at most 63 are possible"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        dsc_model *m = NULL;
        assert_fails(DSC_E_INVALID, wrong[i].message, dsc_zoo_default_input(wrong[i].spec, NULL, NULL, NULL));
        assert_fails(DSC_E_INVALID, wrong[i].message,
                     dsc_zoo_create(device, wrong[i].spec, 188, 188, 1, 2, NULL, &m));
        assert_null(m);
    }
}

/* The tables of keys, and the defaults in them, are those that specs are read with. */
static void test_keys(void **state) {
    (void)state;
    const void *defaults = &state;
    char text[32];
    assert_null(dsc_zoo_keys("lenet", &defaults));
    assert_null(defaults);
    assert_null(dsc_zoo_keys("nothing", NULL));
    assert_null(dsc_zoo_keys(NULL, NULL));
    for (const char *const *name = dsc_zoo_names(); *name; name++) {
        const dsc_option *keys = dsc_zoo_keys(*name, &defaults);
        for (const dsc_option *key = keys; key && key->name; key++) {
            char spec[64];
            assert_true(key->help && key->range);
            snprintf(spec, sizeof spec, "%s:%s=%s", *name, key->name,
                     dsc_option_get_value(key, defaults, text, sizeof text));
            assert_ok(dsc_zoo_default_input(spec, NULL, NULL, NULL));
        }
    }
    const dsc_option *keys = dsc_zoo_keys("unet-bn", &defaults);
    assert_string_equal(dsc_option_get_value(dsc_option_find(keys, "width"), defaults, text, sizeof text),
                        "32");
    keys = dsc_zoo_keys("gpt-mini", &defaults);
    assert_string_equal(dsc_option_get_value(dsc_option_find(keys, "dropout"), defaults, text, sizeof text),
                        "0.2");
}

/* Specs that are cut off or have a wrong character are read or refused, and never anything else. */
static void test_spec_fuzz(void **state) {
    (void)state;
    static const char spec[] = "unet-bn:width=8,dropout=0.25";
    char text[sizeof spec];
    for (size_t length = 0; length < sizeof spec; length++)
        for (int bit = -1; bit < 8 && (bit < 0 || length > 0); bit++) {
            memcpy(text, spec, length);
            text[length] = '\0';
            if (bit >= 0)
                text[length - 1] = (char)(text[length - 1] ^ 1 << bit);
            dsc_status status = dsc_zoo_default_input(text, NULL, NULL, NULL);
            assert_true(status == DSC_OK || status == DSC_E_INVALID);
        }
    assert_ok(dsc_zoo_default_input(spec, NULL, NULL, NULL));
}

/* Builds one layer; for 7 classes it fails without a message, for 8 with one, and for 9 it builds wrong logits. */
static dsc_status build_own(void *context, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits) {
    ++*(int *)context;
    if (classes == 7)
        return DSC_E_UNSUPPORTED;
    if (classes == 8)
        return dsc_error_set(DSC_E_UNSUPPORTED, "eight is too many");
    dsc_status status = dsc_model_flatten(m, x, &x);
    return status != DSC_OK ? status : dsc_model_linear(m, "fc", x, classes == 9 ? 2 : classes, 1, logits);
}

static void test_registered(void **state) {
    (void)state;
    static int built;
    dsc_model *m = NULL;
    dsc_zoo_entry entry;
    int64_t side, channels, classes;
    char name[] = "perceptron";
    dsc_zoo_entry_init(&entry);
    assert_fails(DSC_E_INVALID, "dsc_zoo_entry_init", dsc_zoo_register(NULL));
    entry.name = name;
    assert_fails(DSC_E_INVALID, "'perceptron' cannot be registered: it has no function `build`",
                 dsc_zoo_register(&entry));
    entry.build = build_own;
    entry.context = &built;
    assert_fails(DSC_E_INVALID, "each must be at least 1", dsc_zoo_register(&entry));
    entry.side = 4;
    entry.channels = 2;
    entry.classes = 3;
    assert_ok(dsc_zoo_register(&entry));
    name[0] = 'x'; /* the name was copied */
    assert_string_equal(dsc_zoo_names()[MODELS], "perceptron");
    assert_null(dsc_zoo_names()[MODELS + 1]);
    assert_ok(dsc_zoo_default_input("perceptron", &side, &channels, &classes));
    assert_int_equal(side * 100 + channels * 10 + classes, 423);
    assert_ok(dsc_zoo_create(device, "perceptron", 4, 4, 2, 5, NULL, &m));
    assert_int_equal(dsc_model_parameter_total(m), 4 * 4 * 2 * 5 + 5);
    dsc_model_destroy(&m);
    assert_fails(
        DSC_E_UNSUPPORTED,
        "model perceptron for 4x4x2 and 7 classes: the caller's function `build` returned DSC_E_UNSUPPORTED",
        dsc_zoo_create(device, "perceptron", 4, 4, 2, 7, NULL, &m));
    assert_fails(DSC_E_UNSUPPORTED, "8 classes: eight is too many",
                 dsc_zoo_create(device, "perceptron", 4, 4, 2, 8, NULL, &m));
    assert_fails(DSC_E_INVALID, "model perceptron gives 2 logits, but there are 9 classes",
                 dsc_zoo_create(device, "perceptron", 4, 4, 2, 9, NULL, &m));
    assert_int_equal(built, 4);
    assert_fails(DSC_E_INVALID, "bert-large, perceptron", dsc_zoo_create(device, "?", 4, 4, 2, 9, NULL, &m));
    assert_null(m);
    entry.name = "resnet20";
    assert_fails(DSC_E_INVALID, "there is one of this name already", dsc_zoo_register(&entry));
    entry.name = "a/b";
    assert_fails(DSC_E_INVALID, "made of letters", dsc_zoo_register(&entry));
}

/* A list of names and shapes, built by the test. */
typedef struct list {
    struct {
        char name[64];
        int ndim;
        int64_t dim[4];
    } item[210];
    int count;
} list;

static void expect(list *l, const char *prefix, const char *suffix, int ndim, const int64_t *dim) {
    snprintf(l->item[l->count].name, sizeof l->item[0].name, "%s.%s", prefix, suffix);
    l->item[l->count].ndim = ndim;
    memcpy(l->item[l->count].dim, dim, (size_t)ndim * sizeof *dim);
    l->count++;
}

static void expect_conv_norm(list *l, const char *conv, const char *norm, int64_t out, int64_t in,
                             int64_t k) {
    const char *of_norm[] = {"weight", "bias", "running_mean", "running_var"};
    expect(l, conv, "weight", 4, (int64_t[]){out, in, k, k});
    for (int i = 0; i < 4; i++)
        expect(l, norm, of_norm[i], 1, &out);
    expect(l, norm, "num_batches_tracked", 0, &out);
}

/* Compares the list with the tensors of a model that is built but not sealed. */
static void assert_tensors(const dsc_model *m, const list *l) {
    assert_int_equal(m->tensor_count, l->count);
    for (int i = 0; i < l->count; i++) {
        const dsc_state_entry *there = &m->tensors[i].entry;
        assert_string_equal(m->tensors[i].name, l->item[i].name);
        assert_int_equal(there->ndim, l->item[i].ndim);
        for (int d = 0; d < there->ndim; d++)
            assert_int_equal(there->dim[d], l->item[i].dim[d]);
    }
}

/* Compares the list with the state dict of a sealed model. */
static void assert_state(const dsc_model *m, const list *l) {
    const dsc_state_entry *s = dsc_model_state(m);
    assert_tensors(m, l);
    assert_int_equal(dsc_model_state_count(m), l->count);
    for (int i = 0; i < l->count; i++) {
        assert_string_equal(s[i].name, l->item[i].name);
        assert_int_equal(s[i].ndim, l->item[i].ndim);
        assert_memory_equal(s[i].dim, l->item[i].dim, (size_t)s[i].ndim * sizeof s[i].dim[0]);
    }
}

static void test_resnet18_state(void **state) {
    (void)state;
    static list l;
    l.count = 0;
    expect_conv_norm(&l, "conv1", "bn1", 64, 3, 7);
    for (int stage = 1; stage <= 4; stage++)
        for (int block = 0; block < 2; block++) {
            int64_t out = 32 << stage, in = block == 0 && stage > 1 ? out / 2 : out;
            char conv[32], norm[32];
            for (int i = 1; i <= 2; i++) {
                snprintf(conv, sizeof conv, "layer%d.%d.conv%d", stage, block, i);
                snprintf(norm, sizeof norm, "layer%d.%d.bn%d", stage, block, i);
                expect_conv_norm(&l, conv, norm, out, i == 1 ? in : out, 3);
            }
            if (in == out)
                continue;
            snprintf(conv, sizeof conv, "layer%d.%d.downsample.0", stage, block);
            snprintf(norm, sizeof norm, "layer%d.%d.downsample.1", stage, block);
            expect_conv_norm(&l, conv, norm, out, in, 1);
        }
    expect(&l, "fc", "weight", 2, (int64_t[]){7, 512});
    expect(&l, "fc", "bias", 1, (int64_t[]){7});
    assert_int_equal(l.count, 122);
    dsc_model *m = build_unsealed("resnet18", 32, 7);
    assert_tensors(m, &l);
    dsc_model_destroy(&m);
}

static void test_resnet20_state(void **state) {
    (void)state;
    static list l;
    l.count = 0;
    expect_conv_norm(&l, "conv1", "bn1", 16, 3, 3);
    for (int stage = 1; stage <= 3; stage++)
        for (int block = 0; block < 3; block++)
            for (int i = 1; i <= 2; i++) {
                int64_t out = 8 << stage;
                int halves = stage > 1 && block == 0 && i == 1;
                char conv[40], norm[40];
                snprintf(conv, sizeof conv, "layer%d.%d.conv%d", stage, block, i);
                snprintf(norm, sizeof norm, "layer%d.%d.bn%d", stage, block, i);
                expect_conv_norm(&l, conv, norm, out, halves ? out / 2 : out, 3);
            }
    expect(&l, "linear", "weight", 2, (int64_t[]){10, 64});
    expect(&l, "linear", "bias", 1, (int64_t[]){10});
    dsc_model *m = NULL;
    assert_ok(dsc_zoo_create(device, "resnet20", 32, 32, 3, 10, NULL, &m));
    assert_state(m, &l);
    dsc_model_destroy(&m);
}

static void test_lenet_state(void **state) {
    (void)state;
    static list l;
    l.count = 0;
    const struct {
        const char *name;
        int64_t out, in, k;
    } layers[] = {{"conv1", 6, 3, 5},
                  {"conv2", 16, 6, 5},
                  {"fc1", 120, 576, 0},
                  {"fc2", 84, 120, 0},
                  {"fc3", 10, 84, 0}};
    for (int i = 0; i < 5; i++) {
        expect(&l, layers[i].name, "weight", layers[i].k ? 4 : 2,
               (int64_t[]){layers[i].out, layers[i].in, layers[i].k, layers[i].k});
        expect(&l, layers[i].name, "bias", 1, &layers[i].out);
    }
    dsc_model *m = NULL;
    assert_ok(dsc_zoo_create(device, "lenet", 32, 32, 3, 10, NULL, &m));
    assert_state(m, &l);
    const dsc_state_entry *fc1 = &dsc_model_state(m)[4];
    assert_true(fc1->permuted);
    assert_memory_equal(fc1->ohwc, ((int64_t[]){120, 6, 6, 16}), 4 * sizeof(int64_t));
    assert_false(dsc_model_state(m)[6].permuted);
    dsc_model_destroy(&m);
}

/* Bottlenecks: names, channels, and the stride on the 3x3. */
static void test_resnet50_layers(void **state) {
    (void)state;
    dsc_model *m = build_unsealed("resnet50", 64, 10);
    int found = 0;
    for (int64_t i = 0; i < m->node_count; i++) {
        const dsc_node *node = &m->nodes[i];
        if (node->layer < 0)
            continue;
        const dsc_shape *x = &m->nodes[node->in[0]].shape, *y = &node->shape;
        const int64_t now[] = {x->h, x->c, y->h, y->c};
        if (strcmp(node->name, "layer2.0.conv1") == 0) {
            assert_memory_equal(now, ((int64_t[]){16, 256, 16, 128}), sizeof now);
            found++;
        } else if (strcmp(node->name, "layer2.0.conv2") == 0) {
            assert_memory_equal(now, ((int64_t[]){16, 128, 8, 128}), sizeof now);
            found++;
        } else if (strcmp(node->name, "layer2.0.conv3") == 0) {
            assert_memory_equal(now, ((int64_t[]){8, 128, 8, 512}), sizeof now);
            found++;
        } else if (strcmp(node->name, "layer2.0.downsample.0") == 0) {
            assert_memory_equal(now, ((int64_t[]){16, 256, 8, 512}), sizeof now);
            found++;
        }
    }
    assert_int_equal(found, 4);
    assert_int_equal(dsc_model_state_count(m), 53 * 6 + 2);
    dsc_model_destroy(&m);
}

static void expect_unet_block(list *l, const char *prefix, int64_t out, int64_t in, int batch_norm) {
    char conv[40], norm[40];
    for (int i = 1; i <= 2; i++) {
        snprintf(conv, sizeof conv, "%sconv%d", prefix, i);
        snprintf(norm, sizeof norm, "%snorm%d", prefix, i);
        if (batch_norm) {
            expect_conv_norm(l, conv, norm, out, i == 1 ? in : out, 3);
        } else {
            expect(l, conv, "weight", 4, (int64_t[]){out, i == 1 ? in : out, 3, 3});
            expect(l, conv, "bias", 1, &out);
        }
    }
}

/* What a U-Net's spec says. */
typedef struct unet_size {
    int64_t width;
    int depth, batch_norm;
} unet_size;

static unet_size size_of(const char *spec) {
    const char *width = strstr(spec, "width="), *depth = strstr(spec, "depth=");
    unet_size s = {.batch_norm = strncmp(spec, "unet-bn", 7) == 0};
    s.width = width ? atoll(width + 6) : s.batch_norm ? 32 : 64;
    s.depth = depth ? atoi(depth + 6) : 4;
    return s;
}

/* Two 3x3 convolutions, each with a bias or with scale and shift of a batch norm. */
static int64_t block_parameters(int64_t in, int64_t out, int batch_norm) {
    return 9 * in * out + 9 * out * out + 2 * (batch_norm ? 2 * out : out);
}

static int64_t unet_parameters(unet_size s, int64_t channels, int64_t classes) {
    int64_t sum = 0;
    for (int level = 0; level < s.depth; level++) {
        const int64_t out = s.width << level, in = level ? out / 2 : channels;
        sum += block_parameters(in, out, s.batch_norm) + block_parameters(2 * out, out, s.batch_norm);
        sum += 2 * out * out * 4 + out; /* transposed, 2x2 */
    }
    const int64_t bottom = s.width << s.depth;
    return sum + block_parameters(bottom / 2, bottom, s.batch_norm) + classes * s.width + classes;
}

static void expect_unet(list *l, unet_size s, int64_t channels, int64_t classes) {
    const int64_t width = s.width;
    const int batch_norm = s.batch_norm;
    char name[40];
    l->count = 0;
    for (int level = 1; level <= s.depth; level++) {
        int64_t out = width << (level - 1);
        snprintf(name, sizeof name, "encoder%d.enc%d", level, level);
        expect_unet_block(l, name, out, level == 1 ? channels : out / 2, batch_norm);
    }
    expect_unet_block(l, "bottleneck.bottleneck", width << s.depth, width << (s.depth - 1), batch_norm);
    for (int level = s.depth; level >= 1; level--) {
        int64_t out = width << (level - 1);
        snprintf(name, sizeof name, "upconv%d", level);
        expect(l, name, "weight", 4, (int64_t[]){2 * out, out, 2, 2});
        expect(l, name, "bias", 1, &out);
        snprintf(name, sizeof name, "decoder%d.dec%d", level, level);
        expect_unet_block(l, name, out, 2 * out, batch_norm);
    }
    expect(l, "conv", "weight", 4, (int64_t[]){classes, width, 1, 1});
    expect(l, "conv", "bias", 1, &classes);
}

/* parameters: a number that is known from elsewhere, or 0. */
static void assert_unet(const char *spec, const int64_t shape[3], const int64_t output[3],
                        int64_t parameters) {
    const unet_size size = size_of(spec);
    static list l;
    dsc_model *m = NULL;
    dsc_value logits;
    dsc_shape s;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_zoo_build(m, spec, shape, output[2], &logits));
    assert_ok(dsc_model_value_shape(m, logits, &s));
    assert_false(s.flat);
    assert_memory_equal(((int64_t[]){s.h, s.w, s.c}), output, 3 * sizeof *output);
    if (parameters)
        assert_int_equal(dsc_model_parameter_total(m), parameters);
    assert_int_equal(dsc_model_parameter_total(m), unet_parameters(size, shape[2], output[2]));
    expect_unet(&l, size, shape[2], output[2]);
    assert_tensors(m, &l);
    dsc_model_destroy(&m);
}

static void test_unet_shapes(void **state) {
    (void)state;
    assert_unet("unet", (int64_t[]){572, 572, 1}, (int64_t[]){388, 388, 2}, 31030658);
    assert_unet("unet:width=16", (int64_t[]){572, 572, 1}, (int64_t[]){388, 388, 2}, 1940834);
    assert_unet("unet:dropout=0,width=8", (int64_t[]){188, 204, 1}, (int64_t[]){4, 20, 2}, 485682);
    assert_unet("unet-bn", (int64_t[]){256, 256, 3}, (int64_t[]){256, 256, 1}, 7763041);
    assert_unet("unet-bn:width=3,dropout=0.5", (int64_t[]){16, 48, 2}, (int64_t[]){16, 48, 5}, 0);
    assert_unet("unet:depth=1,width=5", (int64_t[]){18, 32, 1}, (int64_t[]){2, 16, 2}, 0);
    assert_unet("unet:width=3,depth=3", (int64_t[]){92, 100, 3}, (int64_t[]){4, 12, 2}, 0);
    assert_unet("unet-bn:depth=6,width=2", (int64_t[]){64, 128, 1}, (int64_t[]){64, 128, 1}, 0);
    assert_unet("unet-bn:depth=2", (int64_t[]){36, 4, 1}, (int64_t[]){36, 4, 2}, 0);
}

/* The side of a U-Net's output, by going through its maps; 0: an input of this side is impossible. */
static int64_t output_side(unet_size s, int64_t side) {
    const int64_t lost = s.batch_norm ? 0 : 4; /* by a block */
    for (int level = 0; level < s.depth; level++) {
        side -= lost;
        if (side <= 0 || side % 2)
            return 0;
        side /= 2;
    }
    side -= lost;
    for (int level = 0; level < s.depth && side > 0; level++)
        side = 2 * side - lost;
    return side > 0 ? side : 0;
}

/* Builds a U-Net for square images, and returns the side of its output; 0: it is refused. */
static int64_t build_unet(const char *spec, int64_t side) {
    dsc_model *m = NULL;
    dsc_value logits;
    dsc_shape s = {0};
    assert_ok(dsc_model_create(device, NULL, &m));
    dsc_status status = dsc_zoo_build(m, spec, (int64_t[]){side, side, 1}, 2, &logits);
    if (status == DSC_OK)
        assert_ok(dsc_model_value_shape(m, logits, &s));
    else
        assert_int_equal(status, DSC_E_INVALID);
    dsc_model_destroy(&m);
    return s.h;
}

/* At every depth: the sides that are accepted, those that a message names, the margin, and the default side. */
static void test_unet_sides(void **state) {
    (void)state;
    for (int depth = 1; depth <= 6; depth++)
        for (int batch_norm = 0; batch_norm < 2; batch_norm++) {
            char spec[40];
            long long below, above;
            int64_t own, channels;
            snprintf(spec, sizeof spec, "%s:width=1,depth=%d", batch_norm ? "unet-bn" : "unet", depth);
            const unet_size size = size_of(spec);
            for (int64_t side = 1; side <= 900; side += side > 40 ? 7 : 1) {
                const int64_t output = build_unet(spec, side);
                assert_int_equal(output, output_side(size, side));
                if (output) {
                    assert_int_equal(side - output, 2 * dsc_zoo_margin(spec));
                    continue;
                }
                const char *nearest = strstr(dsc_error_message(), "the nearest are ");
                assert_non_null(nearest);
                assert_int_equal(sscanf(nearest, "the nearest are %lld and %lld", &below, &above), 2);
                assert_true(above - below == 1 << depth && side < above);
                assert_true(output_side(size, below) > 0 && output_side(size, above) > 0);
                assert_true(side > below || output_side(size, below - (1 << depth)) == 0);
            }
            assert_ok(dsc_zoo_default_input(spec, &own, &channels, NULL));
            assert_int_equal(output_side(size, own), batch_norm ? 256 : 388);
        }
    assert_int_equal(dsc_zoo_margin("unet"), 92);
    assert_int_equal(dsc_zoo_margin("unet:depth=2"), 20);
}

/* Initial values as published by He; before batch norms a sixth of that variance. */
static void test_unet_initial_values(void **state) {
    (void)state;
    const struct {
        const char *spec, *name;
        double variance;
    } expected[] = {
        {"unet:width=8", "encoder2.enc2conv1.weight", 2.0 / (9 * 8)},
        {"unet:width=8", "upconv2.weight", 2.0 / 32},
        {"unet:width=8", "conv.weight", 2.0 / 8},
        {"unet-bn:width=8", "encoder2.enc2conv1.weight", 1.0 / (3 * 9 * 8)},
        {"unet-bn:width=8", "decoder2.dec2conv1.weight", 1.0 / (3 * 9 * 32)},
        {"unet-bn:width=8", "upconv2.weight", 1.0 / (3 * 32)},
        {"unet-bn:width=8", "conv.weight", 1.0 / (3 * 8)},
        {"unet-bn:width=8", "conv.bias", 0},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        dsc_model *m = NULL;
        dsc_value logits;
        assert_ok(dsc_model_create(device, NULL, &m));
        assert_ok(dsc_zoo_build(m, expected[i].spec, (int64_t[]){188 + 4 * (i > 2), 188 + 4 * (i > 2), 1}, 2,
                                &logits));
        int64_t t = 0;
        while (t < m->tensor_count && strcmp(m->tensors[t].name, expected[i].name) != 0)
            t++;
        assert_true(t < m->tensor_count);
        assert_true(fabs(m->tensors[t].std - sqrt(expected[i].variance)) < 1e-15);
        dsc_model_destroy(&m);
    }
}

static void assert_unet_refuses(const char *spec, int64_t h, int64_t w, const char *message) {
    dsc_model *m = NULL;
    dsc_value logits;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_fails(DSC_E_INVALID, message, dsc_zoo_build(m, spec, (int64_t[]){h, w, 1}, 2, &logits));
    dsc_model_destroy(&m);
}

static void test_unet_errors(void **state) {
    (void)state;
    assert_unet_refuses(
        "unet", 570, 572,
        "model unet for 570x572x1 and 2 classes: the input's height is 570, but it must be 188 or a "
        "multiple of 16 more; the nearest are 556 and 572");
    assert_unet_refuses("unet", 572, 172,
                        "the input's width is 172, but it must be 188 or a multiple of 16 more");
    assert_unet_refuses("unet-bn", 0x100, 250,
                        "width is 250, but it must be 16 or a multiple of 16 more; the nearest are 240");
    assert_unet_refuses("unet-bn", 8, 16, "the input's height is 8");
    assert_unet_refuses("unet:depth=2", 46, 48,
                        "height is 46, but it must be 44 or a multiple of 4 more; the nearest are 44 and 48");
}

/* Dropout stands after the last two blocks on the way down, and nowhere when its rate is 0. */
static void test_unet_dropout(void **state) {
    (void)state;
    dsc_model *m = build_unsealed("unet:width=1", 188, 0);
    assert_int_equal(m->dropout_count, 2);
    dsc_model_destroy(&m);
    m = build_unsealed("unet:width=1,depth=2", 44, 0);
    assert_int_equal(m->dropout_count, 2);
    dsc_model_destroy(&m);
    m = build_unsealed("unet:width=1,dropout=0", 188, 0);
    assert_int_equal(m->dropout_count, 0);
    dsc_model_destroy(&m);
}

/* A linear layer, or (out 0) a norm over `in` channels. in_out: weights are [in, out], as in GPT-2's files. */
static void expect_gpt_layer(list *l, const char *name, int64_t in, int64_t out, int in_out, int bias) {
    expect(l, name, "weight", out ? 2 : 1, (int64_t[]){out && !in_out ? out : in, in_out ? out : in});
    if (bias)
        expect(l, name, "bias", 1, out ? &out : &in);
}

static void expect_gpt(list *l, int64_t layers, int64_t d, int64_t positions, int64_t vocabulary, int in_out,
                       int bias) {
    const struct {
        const char *name;
        int64_t in, out;
    } parts[] = {{"ln_1", d, 0}, {"attn.c_attn", d, 3 * d}, {"attn.c_proj", d, d},
                 {"ln_2", d, 0}, {"mlp.c_fc", d, 4 * d},    {"mlp.c_proj", 4 * d, d}};
    l->count = 0;
    expect(l, "transformer.wte", "weight", 2, (int64_t[]){vocabulary, d});
    expect(l, "transformer.wpe", "weight", 2, (int64_t[]){positions, d});
    for (int i = 0; i < layers; i++)
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            char name[40];
            snprintf(name, sizeof name, "transformer.h.%d.%s", i, parts[k].name);
            expect_gpt_layer(l, name, parts[k].in, parts[k].out, in_out, bias);
        }
    expect_gpt_layer(l, "transformer.ln_f", d, 0, in_out, bias);
    expect(l, "lm_head", "weight", 2, (int64_t[]){vocabulary, d});
}

static void test_gpt_state(void **state) {
    (void)state;
    static list l;
    dsc_model *m = build_unsealed("gpt2", 0, 0);
    expect_gpt(&l, 12, 768, 1024, 50257, 1, 1);
    assert_int_equal(l.count, 149);
    assert_tensors(m, &l);
    assert_true(dsc_model_state_is_alias(m, 148));
    assert_false(dsc_model_state_is_alias(m, 0));
    dsc_model_destroy(&m);
    m = build_unsealed("gpt-mini", 0, 0);
    expect_gpt(&l, 6, 384, 256, 65, 0, 0);
    assert_tensors(m, &l);
    dsc_model_destroy(&m);
    m = build_unsealed("gpt-mini:layers=1,bias=1,heads=2,width=4", 3, 5);
    expect_gpt(&l, 1, 4, 3, 5, 0, 1);
    assert_tensors(m, &l);
    dsc_model_destroy(&m);
}

static void test_gpt_sizes(void **state) {
    (void)state;
    const struct {
        const char *spec;
        int64_t positions, vocabulary, parameters;
        int dropouts;
    } expected[] = {
        {"gpt-mini", 256, 256, 10818432, 19},
        {"gpt-mini:layers=4,heads=4,width=128,dropout=0", 64, 65, 804096, 0},
        {"gpt-mini:layers=4,heads=4,width=128,dropout=0", 64, 256, 828544, 0},
        {"gpt-mini:layers=12,heads=12,width=768", 1024, 50304, 124373760, 37},
        {"gpt-mini:layers=12,heads=12,width=768,bias=1", 1024, 50304, 124475904, 37},
        {"gpt2:layers=1", 1024, 50257, 124439808 - 11 * 7087872, 4},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        dsc_model *m = build_unsealed(expected[i].spec, expected[i].positions, expected[i].vocabulary);
        assert_int_equal(dsc_model_parameter_total(m), expected[i].parameters);
        assert_int_equal(m->dropout_count, expected[i].dropouts);
        dsc_model_destroy(&m);
    }
}

/* The standard deviation is 0.02; that of projections into the sum of the blocks falls with the number of blocks. */
static void test_gpt_initial_values(void **state) {
    (void)state;
    dsc_model *m = build_unsealed("gpt2", 0, 0);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const dsc_state_tensor *t = &m->tensors[i];
        int matrix = t->tensor.ndim == 2, projection = strstr(t->name, "c_proj") != NULL;
        assert_true(t->std == (!matrix ? 0 : projection ? 0.02 / sqrt(24) : 0.02));
        assert_true(t->std > 0 || t->start == (strstr(t->name, "weight") ? 1 : 0));
    }
    dsc_model_destroy(&m);
}

static void test_gpt_errors(void **state) {
    (void)state;
    dsc_model *m = NULL;
    assert_fails(DSC_E_INVALID,
                 "model gpt-mini:heads=5 for 8x1x1 and 65 classes: width 384 cannot be divided into 5 heads",
                 dsc_zoo_create(device, "gpt-mini:heads=5", 8, 1, 1, 65, NULL, &m));
    assert_fails(DSC_E_INVALID, "model gpt-mini for 32x32x3: it takes sequences of tokens, positions x 1 x 1",
                 dsc_zoo_create(device, "gpt-mini", 32, 32, 3, 10, NULL, &m));
    assert_fails(DSC_E_INVALID, "width 768 cannot be divided into 7 heads",
                 dsc_zoo_create(device, "bert-base:heads=7", 8, 1, 1, 65, NULL, &m));
    assert_fails(DSC_E_INVALID, "model gpt-mini for 32x8x1: it takes sequences",
                 dsc_zoo_create(device, "gpt-mini", 32, 8, 1, 10, NULL, &m));
    assert_null(m);
}

static void expect_linear(list *l, const char *name, int64_t out, int64_t in) {
    expect_gpt_layer(l, name, in, out, 0, 1);
}

static void expect_bert_block(list *l, int number, int64_t d) {
    const struct {
        const char *name;
        int64_t out, in; /* out 0: a norm */
    } parts[] = {{"attention.self.query", d, d},       {"attention.self.key", d, d},
                 {"attention.self.value", d, d},       {"attention.output.dense", d, d},
                 {"attention.output.LayerNorm", 0, d}, {"intermediate.dense", 4 * d, d},
                 {"output.dense", d, 4 * d},           {"output.LayerNorm", 0, d}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[56];
        snprintf(name, sizeof name, "bert.encoder.layer.%d.%s", number, parts[i].name);
        expect_linear(l, name, parts[i].out, parts[i].in);
    }
}

static void test_bert_state(void **state) {
    (void)state;
    static list l;
    const int64_t d = 768, v = 30522;
    l.count = 0;
    expect(&l, "bert.embeddings.word_embeddings", "weight", 2, (int64_t[]){v, d});
    expect(&l, "bert.embeddings.position_embeddings", "weight", 2, (int64_t[]){512, d});
    expect(&l, "bert.embeddings.token_type_embeddings", "weight", 2, (int64_t[]){2, d});
    expect_linear(&l, "bert.embeddings.LayerNorm", 0, d);
    for (int i = 0; i < 12; i++)
        expect_bert_block(&l, i, d);
    expect_linear(&l, "cls.predictions.transform.dense", d, d);
    expect_linear(&l, "cls.predictions.transform.LayerNorm", 0, d);
    expect(&l, "cls.predictions.decoder", "weight", 2, (int64_t[]){v, d});
    expect(&l, "cls.predictions", "bias", 1, &v);
    expect(&l, "cls.predictions.decoder", "bias", 1, &v);
    assert_int_equal(l.count, 204);
    dsc_model *m = build_unsealed("bert-base", 0, 0);
    assert_tensors(m, &l);
    for (int i = 0; i < l.count; i++)
        assert_int_equal(dsc_model_state_is_alias(m, i), i == 201 || i == 203);
    dsc_model_destroy(&m);
}

/* The whole spec is the model's name. */
static void test_created(void **state) {
    (void)state;
    static const char gpt[] = "gpt-mini:layers=1,heads=2,width=4,dropout=0", unet[] = "unet-bn:width=1";
    dsc_model *m = NULL;
    assert_ok(dsc_zoo_create(device, gpt, 6, 1, 1, 9, NULL, &m));
    assert_string_equal(dsc_model_name(m), gpt);
    assert_int_equal(dsc_model_classes(m), 9);
    assert_int_equal(dsc_model_positions(m), 6);
    assert_true(dsc_model_takes_tokens(m));
    dsc_model_destroy(&m);
    assert_ok(dsc_zoo_create(device, unet, 16, 32, 3, 2, NULL, &m));
    assert_string_equal(dsc_model_name(m), unet);
    assert_int_equal(dsc_model_classes(m), 2);
    assert_int_equal(dsc_model_positions(m), 16 * 32);
    assert_false(dsc_model_takes_tokens(m));
    dsc_model_destroy(&m);
}

/* Explicit counts of operations: 2 for every weight at every position, and 4 positions^2 width in attention. */
static void test_flops(void **state) {
    (void)state;
    const struct {
        const char *spec;
        int64_t side, classes;
        double flops;
    } expected[] = {
        {"mlp", 4, 10, 2.0 * (4 * 4 * 3 * 256 + 256 * 128 + 128 * 10)},
        {"lenet", 28, 10,
         2.0 * (28 * 28 * 6 * 25 * 3 + 10 * 10 * 16 * 25 * 6 + 400 * 120 + 120 * 84 + 84 * 10)},
        {"gpt-mini:layers=2,heads=2,width=8,dropout=0", 5, 11,
         5 * 2.0 * (2 * 12 * 8 * 8 + 8 * 11) + 2 * 4 * 25 * 8},
        {"bert-base:layers=2,heads=2,width=8", 5, 11,
         5 * 2.0 * (2 * 12 * 8 * 8 + 8 * 8 + 8 * 11) + 2 * 4 * 25 * 8},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        dsc_model *m = NULL;
        const int64_t side = expected[i].side, tokens = dsc_zoo_takes_tokens(expected[i].spec);
        assert_ok(dsc_zoo_create(device, expected[i].spec, side, tokens ? 1 : side, tokens ? 1 : 3,
                                 expected[i].classes, NULL, &m));
        if (dsc_model_flops(m) != expected[i].flops)
            fail_msg("%s: %g instead of %g", expected[i].spec, dsc_model_flops(m), expected[i].flops);
        dsc_model_destroy(&m);
    }
    dsc_model *m = NULL, *half = NULL; /* a transposed convolution works on the pixels of its input */
    assert_ok(dsc_zoo_create(device, "unet-bn:width=1", 32, 32, 1, 1, NULL, &m));
    double convs = 0, h = 32;
    for (int level = 0; level < 4; level++, h /= 2) {
        double w = 1 << level, before = level ? w / 2 : 1;
        convs += 2 * h * h * (9 * (before * w + w * w) + 9 * (2 * w * w + w * w)); /* down, and up again */
        convs += 2 * h / 2 * h / 2 * 2 * w * w * 4;                                /* transposed */
    }
    convs += 2 * h * h * 9 * (8 * 16 + 16 * 16) + 2 * 32 * 32;
    assert_true(dsc_model_flops(m) == convs);
    assert_ok(dsc_model_create(device, NULL, &half));
    assert_true(dsc_model_flops(half) == 0); /* not sealed */
    dsc_model_destroy(&half);
    dsc_model_destroy(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_resnet18_state),
        cmocka_unit_test(test_resnet20_state),
        cmocka_unit_test(test_lenet_state),
        cmocka_unit_test(test_resnet50_layers),
        cmocka_unit_test(test_spec_errors),
        cmocka_unit_test(test_spec_fuzz),
        cmocka_unit_test(test_unet_shapes),
        cmocka_unit_test(test_unet_sides),
        cmocka_unit_test(test_unet_errors),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_unet_initial_values),
        cmocka_unit_test(test_unet_dropout),
        cmocka_unit_test(test_gpt_state),
        cmocka_unit_test(test_gpt_sizes),
        cmocka_unit_test(test_gpt_initial_values),
        cmocka_unit_test(test_gpt_errors),
        cmocka_unit_test(test_bert_state),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_created),
        cmocka_unit_test(test_registered), /* last: it adds to the names */
    };
    return cmocka_run_group_tests_name("model_zoo", tests, setup, teardown);
}

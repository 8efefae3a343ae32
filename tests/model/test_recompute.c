/* Executors that need less memory: those that compute values again in the backward pass, and those that run it once and
 * write gradients over values that it has used (DSC_EXEC_TRAIN_ONCE). The bits of gradients, captures and running
 * statistics are those of executors that keep all values, with recompute also when the backward pass is repeated. */
#include "chosen.h"

#include "model/nets.h"
#include "model/own_layers.h"

#include "model/exec.h"

#include <stdlib.h>

enum { BATCH = 3, STEPS = 2 };

static dsc_device *device;
static dsc_queue *queue;

static int setup(void **state) {
    (void)state;
    device = open_device(chosen_or("cpu"));
    queue = open_queue(device);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return 0;
}

/* A model of the zoo, and the largest shares of the memory of its training that recompute and a single backward pass
 * may leave. */
typedef struct zoo_case {
    const char *spec;
    int64_t h, w, c, classes;
    double share, once_share;
} zoo_case;

static const zoo_case models[] = {
    {"gpt-mini:layers=12,heads=2,width=16", 24, 1, 1, 13, 0.35, 0.995},
    {"bert-base:layers=8,heads=2,width=16", 24, 1, 1, 13, 0.45, 0.98},
    {"resnet20", 8, 8, 3, 10, 0.8, 0.98}, /* without oneDNN convolutions need a workspace */
    {"resnet50", 32, 32, 3, 10, 0.9, 0.99},
    {"unet-bn:width=4", 32, 32, 3, 2, 0.95, 0.93},
    {"lenet", 28, 28, 1, 10, 1, 0.9},
    {"mlp", 4, 4, 1, 5, 1, 0.9},
};
enum { MODELS = sizeof models / sizeof models[0] };

static dsc_model *make_zoo(const zoo_case *z, int recompute) {
    dsc_model_options options;
    dsc_model *m;
    dsc_model_options_init(&options);
    options.recompute = recompute;
    assert_ok(dsc_zoo_create(device, z->spec, z->h, z->w, z->c, z->classes, &options, &m));
    return m;
}

static dsc_model *make_net(const net *what, int recompute) {
    net_recompute = recompute;
    dsc_model *m = make_model(device, what, DSC_F32, 0);
    net_recompute = 0;
    return m;
}

/* Check sums of the captured tensors at the capture, and again when the second next capture is called. */
typedef struct captured {
    int64_t count; /* of this pass */
    int64_t total;
    int64_t changed;
    uint64_t sums;
    dsc_tensor tensors[DSC_EXEC_CAPTURES][2];
    uint64_t then[DSC_EXEC_CAPTURES][2];
} captured;

static uint64_t sum_of(uint64_t sum, const dsc_tensor *t) {
    double *numbers = read_doubles(queue, t);
    for (int64_t i = 0; i < dsc_tensor_count(t); i++) {
        uint64_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        sum = (sum ^ bits) * 1099511628211u;
        sum ^= sum >> 32;
    }
    free(numbers);
    return sum;
}

static void look_back(captured *c, int64_t number) {
    int64_t at = number % DSC_EXEC_CAPTURES;
    for (int i = 0; i < 2; i++)
        c->changed += sum_of(0, &c->tensors[at][i]) != c->then[at][i];
}

static dsc_status capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g) {
    captured *c = context;
    (void)q;
    if (c->count >= DSC_EXEC_CAPTURES)
        look_back(c, c->count - DSC_EXEC_CAPTURES);
    int64_t at = c->count++ % DSC_EXEC_CAPTURES;
    c->tensors[at][0] = *a;
    c->tensors[at][1] = *g;
    for (int i = 0; i < 2; i++)
        c->then[at][i] = sum_of(0, &c->tensors[at][i]);
    c->total++;
    c->sums = sum_of(sum_of(c->sums + (uint64_t)layer, a), g);
    return DSC_OK;
}

static dsc_status capture_norm(void *context, dsc_queue *q, int64_t norm, const dsc_norm_tensors *t) {
    captured *c = context;
    (void)q;
    c->sums = sum_of(sum_of(c->sums + (uint64_t)norm, &t->x), &t->dy);
    c->sums = sum_of(c->sums, &t->invstd);
    if (t->mean.data) /* RMS norms have none */
        c->sums = sum_of(c->sums, &t->mean);
    if (t->y.data)
        c->sums = sum_of(c->sums, &t->y);
    return DSC_OK;
}

static dsc_tensor make_input(const dsc_model *m) {
    int64_t shape[3];
    dsc_model_input_shape(m, shape);
    const int64_t dim[4] = {BATCH, shape[0], shape[1], shape[2]};
    dsc_tensor x = random_tensor(queue, 1, DSC_F32, 4, dim);
    if (!dsc_model_takes_tokens(m))
        return x;
    double *tokens = read_doubles(queue, &x);
    for (int64_t i = 0; i < dsc_tensor_count(&x); i++) /* the last sample is padded */
        tokens[i] = i >= dsc_tensor_count(&x) - 5 ? -1 : (double)(i * 7 % dsc_model_classes(m));
    write_doubles(queue, tokens, &x);
    free(tokens);
    return x;
}

/* How an executor is run: with repeated passes each step has a backward pass for captures alone, one for gradients
 * and one that adds to these, all after one forward pass; else one backward pass for captures and gradients. */
typedef struct plan {
    dsc_exec_mode mode;
    int lasting, repeated;
} plan;

/* Results of an executor after some steps. */
typedef struct result {
    uint64_t sums[STEPS]; /* of logits and gradients */
    captured seen;
    uint64_t buffers;
    size_t bytes, without;
} result;

static result run(dsc_model *m, plan p) {
    result r = {0};
    dsc_exec *exec;
    dsc_tensor x = make_input(m), grads = dsc_model_grads(m);
    int64_t rows = BATCH * dsc_model_positions(m);
    dsc_tensor labels = random_labels(queue, 2, rows, dsc_model_classes(m));
    assert_ok(p.lasting ? dsc_exec_create_lasting(m, p.mode, BATCH, &exec)
                        : dsc_exec_create(m, p.mode, BATCH, &exec));
    for (int step = 0; step < STEPS; step++) {
        dsc_backward_options first, more;
        dsc_backward_options_init(&first);
        dsc_backward_options_init(&more);
        first.param_grads = !p.repeated;
        first.capture = capture;
        first.capture_norm = capture_norm;
        first.context = &r.seen;
        more.accumulate = 1;
        assert_ok(dsc_exec_set_position(exec, queue, step, 5));
        assert_ok(dsc_exec_forward(exec, queue, &x));
        const dsc_backward_options *passes[] = {&first, NULL, &more};
        r.sums[step] = sum_of(0, dsc_exec_logits(exec));
        for (int i = 0; i < (p.repeated ? 3 : 1); i++) {
            assert_ok(dsc_exec_loss(exec, queue, &labels, 1.0 / (double)rows));
            assert_ok(dsc_exec_backward(exec, queue, passes[i]));
            for (int64_t k = 0; k < DSC_EXEC_CAPTURES && k < r.seen.count; k++)
                look_back(&r.seen, r.seen.count - 1 - k);
            r.seen.count = 0;
            r.sums[step] = sum_of(r.sums[step], &grads);
            if (p.repeated)
                r.sums[step] = sum_of(r.sums[step], dsc_exec_logits(exec));
        }
    }
    for (int64_t i = 0; i < dsc_model_buffer_count(m); i++)
        if (dsc_model_buffers(m)[i].value.dtype == DSC_F32)
            r.buffers = sum_of(r.buffers, &dsc_model_buffers(m)[i].value);
    r.bytes = dsc_exec_bytes(exec);
    r.without = dsc_exec_bytes_without_recompute(exec);
    dsc_tensor_free(&x);
    dsc_tensor_free(&labels);
    dsc_exec_destroy(&exec);
    return r;
}

static void expect_same_bits(const char *name, const result *kept, const result *again) {
    for (int step = 0; step < STEPS; step++)
        if (kept->sums[step] != again->sums[step])
            fail_msg("%s: logits or gradients of step %d differ", name, step);
    if (kept->seen.total != again->seen.total || kept->seen.sums != again->seen.sums)
        fail_msg("%s: captures differ", name);
    if (kept->buffers != again->buffers)
        fail_msg("%s: running statistics differ", name);
    assert_int_equal(kept->seen.total > 0, 1);
}

static void expect_same(const char *name, const result *kept, const result *again) {
    expect_same_bits(name, kept, again);
    assert_int_equal(kept->without, kept->bytes);
    assert_int_equal(again->without, kept->bytes);
    assert_true(again->bytes <= kept->bytes);
}

/* Compares both kinds of executors, with captures that are used at once and with captures that must stay valid
 * longer. */
static void compare_net(const net *what) {
    for (int lasting = 0; lasting < 2; lasting++) {
        const plan p = {DSC_EXEC_TRAIN, lasting, 1};
        dsc_model *m = make_net(what, 0), *other = make_net(what, 1);
        result kept = run(m, p), again = run(other, p);
        expect_same(what->name, &kept, &again);
        if (lasting)
            assert_int_equal(again.seen.changed, 0);
        dsc_model_destroy(&m);
        dsc_model_destroy(&other);
    }
}

static void test_nets(void **state) {
    (void)state;
    for (const net *n = nets; n->name; n++)
        compare_net(n);
    for (const net *n = own_nets; n->name && dsc_device_is_host(device); n++)
        compare_net(n);
}

static void test_zoo(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int lasting = 0; lasting < 2; lasting++) {
            const zoo_case *z = &models[i];
            if ((z->h == 32 && lasting) || (chosen_is_emulated(device) && (z->c == 3 || lasting)))
                continue; /* too much work */
            const plan p = {DSC_EXEC_TRAIN, lasting, 1};
            dsc_model *m = make_zoo(z, 0), *other = make_zoo(z, 1);
            result kept = run(m, p), again = run(other, p);
            expect_same(z->spec, &kept, &again);
            if (lasting)
                assert_int_equal(again.seen.changed, 0);
            if ((double)again.bytes > z->share * (double)kept.bytes)
                fail_msg("%s: %zu of %zu bytes are left", z->spec, again.bytes, kept.bytes);
            dsc_model_destroy(&m);
            dsc_model_destroy(&other);
        }
}

/* ---- one backward pass ---- */

/* Compares executors with and without the right to repeat the backward pass; the models are equal. Returns the share of
 * the memory that one pass needs. */
static double compare_once(const char *name, dsc_model *m, dsc_model *other, int lasting) {
    result kept = run(m, (plan){DSC_EXEC_TRAIN, lasting, 0}),
           once = run(other, (plan){DSC_EXEC_TRAIN_ONCE, lasting, 0});
    expect_same_bits(name, &kept, &once);
    if (lasting)
        assert_int_equal(once.seen.changed, 0);
    assert_true(once.bytes <= once.without);
    dsc_model_destroy(&m);
    dsc_model_destroy(&other);
    return (double)once.bytes / (double)kept.bytes;
}

static void test_once_nets(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        int recompute = i % 2, lasting = i / 2;
        for (const net *n = nets; n->name; n++)
            compare_once(n->name, make_net(n, recompute), make_net(n, recompute), lasting);
        for (const net *n = own_nets; n->name && dsc_device_is_host(device); n++)
            compare_once(n->name, make_net(n, recompute), make_net(n, recompute), lasting);
    }
}

static void test_once_zoo(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int k = 0; k < 4; k++) {
            const zoo_case *z = &models[i];
            int recompute = k % 2, lasting = k / 2;
            if ((z->h == 32 && lasting) || (chosen_is_emulated(device) && (z->c == 3 || lasting)))
                continue; /* too much work */
            double share = compare_once(z->spec, make_zoo(z, recompute), make_zoo(z, recompute), lasting);
            if (!recompute && !lasting && share > z->once_share)
                fail_msg("%s: %g of the memory is left", z->spec, share);
        }
}

/* After the single backward pass of DSC_EXEC_TRAIN_ONCE the executor refuses to use the overwritten forward pass
 * again. */
static void test_once_refuses(void **state) {
    (void)state;
    dsc_model *m = make_zoo(&models[2], 0);
    dsc_exec *exec;
    dsc_tensor x = make_input(m), labels = random_labels(queue, 2, BATCH, 10);
    assert_fails(DSC_E_INVALID, "no mode 3", dsc_exec_create(m, (dsc_exec_mode)3, BATCH, &exec));
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN_ONCE, BATCH, &exec));
    for (int step = 0; step < 2; step++) {
        assert_ok(dsc_exec_forward(exec, queue, &x));
        assert_ok(dsc_exec_loss(exec, queue, &labels, 1));
        assert_ok(
            dsc_exec_loss(exec, queue, &labels, 1)); /* backward computes the gradients of the last one */
        assert_ok(dsc_exec_backward(exec, queue, NULL));
        assert_fails(DSC_E_INVALID, "one backward pass after each forward",
                     dsc_exec_loss(exec, queue, &labels, 1));
        assert_fails(DSC_E_INVALID, "no loss before it", dsc_exec_backward(exec, queue, NULL));
    }
    dsc_tensor_free(&x);
    dsc_tensor_free(&labels);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&m);
}

/* The activations of a deep GPT grow with its number of blocks; with recompute only the sums passed between blocks
 * do. */
static void test_depth(void **state) {
    (void)state;
    const zoo_case few = {"gpt-mini:layers=8,heads=2,width=16,dropout=0", 64, 1, 1, 13, 1, 1},
                   many = {"gpt-mini:layers=24,heads=2,width=16,dropout=0", 64, 1, 1, 13, 1, 1};
    size_t bytes[2][2];
    for (int recompute = 0; recompute < 2; recompute++)
        for (int deep = 0; deep < 2; deep++) {
            dsc_model *m = make_zoo(deep ? &many : &few, recompute);
            dsc_exec *exec;
            assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, 16, &exec));
            bytes[recompute][deep] = dsc_exec_bytes(exec);
            dsc_exec_destroy(&exec);
            dsc_model_destroy(&m);
        }
    size_t block = (bytes[0][1] - bytes[0][0]) / 16, kept = (bytes[1][1] - bytes[1][0]) / 16;
    const size_t sum = 16 * 64 * 16 * sizeof(float); /* the sum that passes between blocks */
    assert_true(block > 15 * sum);
    assert_true(kept <= 2 * sum);
}

/* Evaluation keeps no values for a backward pass, so recompute changes nothing. */
static void test_evaluation(void **state) {
    (void)state;
    size_t bytes[2];
    for (int recompute = 0; recompute < 2; recompute++) {
        dsc_model *m = make_zoo(&models[0], recompute);
        dsc_exec *exec;
        assert_ok(dsc_exec_create(m, DSC_EXEC_EVAL, BATCH, &exec));
        bytes[recompute] = dsc_exec_bytes(exec);
        dsc_exec_destroy(&exec);
        dsc_model_destroy(&m);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nets),         cmocka_unit_test(test_zoo),
        cmocka_unit_test(test_once_nets),    cmocka_unit_test(test_once_zoo),
        cmocka_unit_test(test_once_refuses), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_evaluation),
    };
    return cmocka_run_group_tests_name("model_recompute", tests, setup, teardown);
}

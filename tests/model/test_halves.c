/* Nets of the zoo in bf16 and fp16: all their operations accept 16-bit types, and loss and gradients are those of
 * float32 up to the rounding of these types. */
#include "chosen.h"

#include "model/nets.h"

#include <math.h>
#include <stdlib.h>

typedef struct half_case {
    const char *name;
    int64_t side, channels, classes;
    double
        most; /* by which the gradients in bf16 may differ: batch norms over few numbers enlarge rounding errors */
} half_case;

/* Heads of 16 and of 40 channels; maps, tokens, tied heads, types of tokens. */
static const half_case cases[] = {
    {"gpt2:layers=2,heads=2,width=32,dropout=0", 9, 1, 43, 0.02},
    {"gpt-mini:layers=1,heads=1,width=40,dropout=0", 17, 1, 24, 0.02},
    {"bert-base:layers=1,heads=2,width=32,dropout=0", 12, 1, 30, 0.02},
    {"unet-bn:width=8", 32, 1, 2, 0.7},
    {"resnet20", 32, 3, 10, 0.4},
};
enum { CASES = sizeof cases / sizeof cases[0], BATCH = 2 };

static int takes_tokens(const half_case *c) {
    return dsc_zoo_takes_tokens(c->name);
}

/* Makes the input of a case: tokens, as floats, or pixels. */
static dsc_tensor make_input(dsc_queue *q, const half_case *c) {
    const int64_t dim[4] = {BATCH, c->side, takes_tokens(c) ? 1 : c->side, c->channels};
    dsc_tensor x = random_tensor(q, 5, DSC_F32, 4, dim);
    if (!takes_tokens(c))
        return x;
    int64_t n = dsc_tensor_count(&x);
    double *tokens = read_doubles(q, &x);
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (double)((i * 7 + i / 3) % c->classes);
    write_doubles(q, tokens, &x);
    free(tokens);
    return x;
}

/* Returns the loss of a training pass; *grads gets the gradients, and is freed with free(). For tokens they are the
 * sum of two passes, with rows of logits of a length that tensor cores accept. */
static double train_once(dsc_device *device, dsc_queue *q, const half_case *c, dsc_dtype activations,
                         int64_t *n, double **grads) {
    dsc_model_options options;
    dsc_model *m;
    dsc_exec *exec;
    double stats[DSC_STAT_COUNT];
    dsc_model_options_init(&options);
    options.activations = activations;
    assert_ok(dsc_zoo_create(device, c->name, c->side, takes_tokens(c) ? 1 : c->side, c->channels, c->classes,
                             &options, &m));
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
    int64_t rows = BATCH * dsc_model_positions(m);
    dsc_tensor x = make_input(q, c), labels = random_labels(q, 6, rows, c->classes), all = dsc_model_grads(m);
    assert_ok(dsc_exec_clear_stats(exec, q));
    assert_ok(dsc_exec_forward(exec, q, &x));
    assert_ok(dsc_exec_loss(exec, q, &labels, 1 / (double)rows));
    assert_ok(dsc_exec_backward(exec, q, NULL));
    if (takes_tokens(c)) {
        dsc_backward_options again;
        dsc_backward_options_init(&again);
        again.accumulate = 1;
        assert_true(activations == DSC_F32 || dsc_exec_logits(exec)->dim[1] == (c->classes + 7) / 8 * 8);
        assert_ok(dsc_exec_clear_stats(exec, q));
        assert_ok(dsc_exec_forward(exec, q, &x));
        assert_ok(dsc_exec_loss(exec, q, &labels, 1 / (double)rows));
        assert_ok(dsc_exec_backward(exec, q, &again));
    }
    assert_ok(dsc_tensor_download(q, dsc_exec_stats(exec), sizeof stats, stats));
    assert_ok(dsc_queue_sync(q));
    *n = dsc_tensor_count(&all);
    *grads = read_doubles(q, &all);
    dsc_tensor_free(&x);
    dsc_tensor_free(&labels);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&m);
    return stats[DSC_STAT_LOSS] / (double)rows;
}

static double norm_of(int64_t n, const double *x) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void compare(dsc_device *device, dsc_queue *q, const half_case *c, dsc_dtype half, double most) {
    int64_t n;
    double *wanted, *found;
    double wanted_loss = train_once(device, q, c, DSC_F32, &n, &wanted);
    double found_loss = train_once(device, q, c, half, &n, &found), size = norm_of(n, wanted);
    for (int64_t i = 0; i < n; i++)
        found[i] -= wanted[i];
    double error = norm_of(n, found) / size;
    if (!(fabs(found_loss - wanted_loss) < 0.01 * wanted_loss) || !(error < most) || !(size > 0))
        fail_msg("%s: loss %g, in halves %g; the gradients differ by %g of %g", c->name, wanted_loss,
                 found_loss, error, size);
    free(wanted);
    free(found);
}

static void test_nets(void **state) {
    (void)state;
    if (!chosen() || strcmp(chosen(), "cuda") != 0)
        skip(); /* only GPUs have 16-bit types */
    dsc_device *device = open_device("cuda");
    dsc_queue *q = open_queue(device);
    for (int i = 0; i < CASES; i++) {
        compare(device, q, &cases[i], DSC_BF16, cases[i].most);
        compare(device, q, &cases[i], DSC_F16, cases[i].most / 2);
    }
    dsc_queue_destroy(&q);
    dsc_device_destroy(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Models of sequences: embeddings, linear layers at every position, tied heads, a loss at every position. Gradients in
 * double against central differences, results of other devices against ref, names in files, refusals. */
#include "chosen.h"

#include "model/graph.h"
#include "model/nets.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, POSITIONS = 5, VOCABULARY = 7, WIDTH = 4, ROWS = BATCH * POSITIONS };

static dsc_linear_options linear_options(int bias, double std, int in_out, dsc_value tied) {
    dsc_linear_options options;
    dsc_linear_options_init(&options);
    options.bias = bias;
    options.std = std;
    options.in_out = in_out;
    options.tied = tied;
    return options;
}

/* One block of a transformer, as GPT-2 has it, with a tied or an own head, or, PADDED, with attention to all tokens
 * but the padding and with dropout of its probabilities, or, BESIDE, with the input beside the output of attention
 * instead of added to it. */
enum { OWN, TIED, PADDED, BESIDE, KINDS };

static dsc_model *make_gpt(dsc_device *device, dsc_dtype dtype, int kind) {
    const int tied = kind == TIED || kind == PADDED;
    dsc_model_options options;
    dsc_model *m;
    dsc_value tokens, table, x, h, y;
    dsc_attention_options attention;
    dsc_model_options_init(&options);
    options.dtype = dtype;
    assert_ok(dsc_model_create(device, &options, &m));
    assert_ok(dsc_model_tokens(m, POSITIONS, &tokens));
    assert_ok(dsc_model_embedding(m, "wte", tokens, VOCABULARY, WIDTH, 0.5, &table));
    assert_ok(dsc_model_position_embedding(m, "wpe", table, 0.5, &x));
    assert_ok(dsc_model_layer_norm(m, "ln_1", x, 1e-5, 1, &h));
    dsc_linear_options in_out = linear_options(1, 0.4, 1, -1), head = linear_options(!tied, 0, 0, -1);
    if (tied)
        head.tied = table;
    assert_ok(dsc_model_linear_with(m, "c_attn", h, 3 * WIDTH, &in_out, &h));
    dsc_attention_options_init(&attention);
    attention.heads = 2;
    attention.causal = kind != PADDED;
    attention.padded = kind == PADDED;
    attention.dropout = kind == PADDED ? 0.3 : 0;
    assert_ok(dsc_model_attention(m, h, &attention, &h));
    assert_ok(dsc_model_linear(m, "c_proj", h, WIDTH, 1, &h));
    if (kind == BESIDE)
        assert_ok(dsc_model_concat(m, x, h, &y));
    else
        assert_ok(dsc_model_add(m, x, h, &y));
    assert_ok(dsc_model_linear_with(m, "lm_head", y, VOCABULARY, &head, &y));
    assert_ok(dsc_model_seal(m, y));
    return m;
}

typedef struct rig {
    dsc_device *device;
    dsc_queue *q;
    dsc_model *m;
    dsc_exec *exec;
    dsc_tensor x, labels;
    int labelled; /* rows with a label */
} rig;

static rig open_rig(const char *device, dsc_dtype dtype, int kind) {
    const int lengths[BATCH] = {POSITIONS, 3, 1};
    rig r = {.device = open_device(device)};
    const int64_t dim[4] = {BATCH, POSITIONS, 1, 1}, rows = ROWS;
    double tokens[ROWS];
    int32_t labels[ROWS];
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (i * 5 + i / 4) % VOCABULARY;
        labels[i] = i % 4 == 1 ? -1 : (i * 3) % VOCABULARY;
        if (kind == PADDED && i % POSITIONS >= lengths[i / POSITIONS])
            tokens[i] = labels[i] = -1;
    }
    r.q = open_queue(r.device);
    r.m = make_gpt(r.device, dtype, kind);
    assert_ok(dsc_exec_create(r.m, DSC_EXEC_TRAIN, BATCH, &r.exec));
    assert_ok(dsc_tensor_alloc(r.device, dtype, 4, dim, &r.x));
    assert_ok(dsc_tensor_alloc(r.device, DSC_I32, 1, &rows, &r.labels));
    write_doubles(r.q, tokens, &r.x);
    assert_ok(dsc_tensor_upload(r.q, labels, sizeof labels, &r.labels));
    assert_ok(dsc_exec_set_position(r.exec, r.q, 3, 12));
    r.labelled = 0;
    for (int i = 0; i < ROWS; i++)
        r.labelled += labels[i] >= 0;
    assert_ok(dsc_queue_sync(r.q));
    return r;
}

static void close_rig(rig *r) {
    dsc_tensor_free(&r->x);
    dsc_tensor_free(&r->labels);
    dsc_exec_destroy(&r->exec);
    dsc_model_destroy(&r->m);
    dsc_queue_destroy(&r->q);
    dsc_device_destroy(&r->device);
}

static double loss(rig *r) {
    double stats[DSC_STAT_COUNT];
    assert_ok(dsc_exec_clear_stats(r->exec, r->q));
    assert_ok(dsc_exec_forward(r->exec, r->q, &r->x));
    assert_ok(dsc_exec_loss(r->exec, r->q, &r->labels, 0.5));
    assert_ok(dsc_tensor_download(r->q, dsc_exec_stats(r->exec), sizeof stats, stats));
    assert_ok(dsc_queue_sync(r->q));
    assert_true(stats[DSC_STAT_ROWS] == r->labelled);
    return 0.5 * stats[DSC_STAT_LOSS];
}

static double quotient(rig *r, dsc_tensor *element, double value, double h) {
    double up = value + h, down = value - h;
    write_doubles(r->q, &up, element);
    double above = loss(r);
    write_doubles(r->q, &down, element);
    double below = loss(r);
    write_doubles(r->q, &value, element);
    return (above - below) / (2 * h);
}

/* Checks gradients after two passes: the second one adds to the gradients of the first. */
static void check_gradients(int kind) {
    const double h = 1e-5;
    rig r = open_rig("ref", DSC_F64, kind);
    dsc_backward_options again;
    dsc_tensor values = dsc_model_values(r.m), grads = dsc_model_grads(r.m);
    double value = loss(&r);
    assert_ok(dsc_exec_backward(r.exec, r.q, NULL));
    double *once = read_doubles(r.q, &grads), *now = read_doubles(r.q, &values);
    dsc_backward_options_init(&again);
    again.accumulate = 1;
    loss(&r);
    assert_ok(dsc_exec_backward(r.exec, r.q, &again));
    double *twice = read_doubles(r.q, &grads), rounding = 1000 * DBL_EPSILON * fabs(value) / h;
    int64_t n = dsc_tensor_count(&values);
    for (int64_t i = 0; i < n; i++) {
        dsc_tensor element = dsc_tensor_slice(&values, i, 1);
        double rough = quotient(&r, &element, now[i], h), fine = quotient(&r, &element, now[i], h / 2);
        if (fabs(once[i] - fine) > fabs(rough - fine) + 2 * rounding)
            fail_msg("kind %d: gradient %lld is %.12g, the quotients are %.12g and %.12g", kind, (long long)i,
                     once[i], rough, fine);
        assert_true(fabs(twice[i] - 2 * once[i]) <= 16 * DBL_EPSILON * fabs(once[i]) + 1e-15);
    }
    assert_true(largest(n, once) > 0.01);
    free(once);
    free(twice);
    free(now);
    close_rig(&r);
}

static void test_gradients(void **state) {
    (void)state;
    skip_on_chosen("differences need double, on ref");
    for (int kind = 0; kind < KINDS; kind++)
        check_gradients(kind);
}

/* The chosen device gives what ref gives, up to float32's rounding. */
static void test_devices(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        rig exact = open_rig("ref", DSC_F64, kind), r = open_rig(chosen_exact_or("cpu"), DSC_F32, kind);
        dsc_tensor from = dsc_model_values(exact.m), to = dsc_model_values(r.m);
        dsc_tensor g0 = dsc_model_grads(exact.m), g1 = dsc_model_grads(r.m);
        double *values = read_doubles(exact.q, &from);
        write_doubles(r.q, values, &to);
        double wanted = loss(&exact), found = loss(&r);
        assert_true(fabs(wanted - found) < 1e-4 * fabs(wanted));
        assert_ok(dsc_exec_backward(exact.exec, exact.q, NULL));
        assert_ok(dsc_exec_backward(r.exec, r.q, NULL));
        double *a = read_doubles(exact.q, &g0), *b = read_doubles(r.q, &g1);
        int64_t n = dsc_tensor_count(&g0);
        assert_true(largest_difference(n, a, b) < 2e-4 * largest(n, a));
        free(values);
        free(a);
        free(b);
        close_rig(&exact);
        close_rig(&r);
    }
}

/* ---- padding ---- */

enum { SAMPLES = 2, SHORT = 6, LONG = 11, WORDS = 13 };

/* A small BERT without dropout for sequences of t positions, after a forward and a backward pass over samples of 6 and
 * 4 tokens. */
typedef struct bert {
    dsc_device *device;
    dsc_queue *q;
    dsc_model *m;
    double *logits;
    double loss;
} bert;

/* Fills every row of parameter i with values that depend on i and the row, not on the number of rows. */
static void fill_params(bert *b) {
    for (int64_t i = 0; i < dsc_model_param_count(b->m); i++) {
        dsc_tensor value = dsc_model_params(b->m)[i].value;
        double *numbers = calloc((size_t)dsc_tensor_count(&value), sizeof *numbers);
        assert_non_null(numbers);
        random_doubles((uint32_t)i, dsc_tensor_count(&value), numbers);
        for (int64_t k = 0; k < dsc_tensor_count(&value); k++)
            numbers[k] *= 0.3;
        write_doubles(b->q, numbers, &value);
        free(numbers);
    }
}

static bert open_bert(const char *device, dsc_dtype dtype, int64_t t) {
    bert b = {.device = open_device(device)};
    const int64_t dim[4] = {SAMPLES, t, 1, 1}, rows = SAMPLES * t;
    double tokens[SAMPLES * LONG], stats[DSC_STAT_COUNT];
    int32_t labels[SAMPLES * LONG];
    dsc_model_options options;
    dsc_exec *exec;
    dsc_tensor x, y;
    for (int n = 0; n < SAMPLES; n++)
        for (int i = 0; i < t; i++) {
            int real = i < (n == 0 ? SHORT : 4);
            tokens[n * t + i] = real ? (n + 5 * i) % WORDS : -1 - i % 3;
            labels[n * t + i] = real && i % 3 != 1 ? (3 * n + i) % WORDS : -1;
        }
    b.q = open_queue(b.device);
    dsc_model_options_init(&options);
    options.dtype = dtype;
    assert_ok(dsc_zoo_create(b.device, "bert-base:layers=2,heads=2,width=8,dropout=0", t, 1, 1, WORDS,
                             &options, &b.m));
    fill_params(&b);
    assert_ok(dsc_exec_create(b.m, DSC_EXEC_TRAIN, SAMPLES, &exec));
    assert_ok(dsc_tensor_alloc(b.device, dtype, 4, dim, &x));
    assert_ok(dsc_tensor_alloc(b.device, DSC_I32, 1, &rows, &y));
    write_doubles(b.q, tokens, &x);
    assert_ok(dsc_tensor_upload(b.q, labels, (size_t)rows * sizeof labels[0], &y));
    assert_ok(dsc_exec_clear_stats(exec, b.q));
    assert_ok(dsc_exec_forward(exec, b.q, &x));
    assert_ok(dsc_exec_loss(exec, b.q, &y, 0.5));
    assert_ok(dsc_exec_backward(exec, b.q, NULL));
    assert_ok(dsc_tensor_download(b.q, dsc_exec_stats(exec), sizeof stats, stats));
    assert_ok(dsc_queue_sync(b.q));
    b.loss = stats[DSC_STAT_LOSS];
    b.logits = read_doubles(b.q, dsc_exec_logits(exec));
    dsc_tensor_free(&x);
    dsc_tensor_free(&y);
    dsc_exec_destroy(&exec);
    return b;
}

static void close_bert(bert *b) {
    free(b->logits);
    dsc_model_destroy(&b->m);
    dsc_queue_destroy(&b->q);
    dsc_device_destroy(&b->device);
}

/* Five more positions of padding change neither logits nor gradients, and the padding's own gradients are 0. */
static void check_padding(const char *device, dsc_dtype dtype, double limit) {
    bert few = open_bert(device, dtype, SHORT), many = open_bert(device, dtype, LONG);
    assert_true(few.loss > 1 && fabs(few.loss - many.loss) < limit * few.loss);
    for (int n = 0; n < SAMPLES; n++) {
        const double *a = few.logits + n * SHORT * WORDS, *b = many.logits + n * LONG * WORDS;
        int64_t count = (n == 0 ? SHORT : 4) * WORDS;
        assert_true(largest_difference(count, a, b) < limit * largest(count, a));
    }
    for (int64_t i = 0; i < dsc_model_param_count(few.m); i++) {
        const dsc_param *p = &dsc_model_params(few.m)[i], *other = &dsc_model_params(many.m)[i];
        int64_t count = dsc_tensor_count(&p->grad), more = dsc_tensor_count(&other->grad);
        double *a = read_doubles(few.q, &p->grad), *b = read_doubles(many.q, &other->grad);
        assert_true(more == count || (more == LONG * 8 && count == SHORT * 8));
        assert_true(largest_difference(count, a, b) <= limit * (1 + largest(count, a)));
        assert_true(largest(more - count, b + count) == 0);
        free(a);
        free(b);
    }
    close_bert(&few);
    close_bert(&many);
}

static void test_padding(void **state) {
    (void)state;
    if (!chosen())
        check_padding("ref", DSC_F64, 1e-13);
    check_padding(chosen_exact_or("cpu"), DSC_F32, 1e-4);
}

static void test_names(void **state) {
    (void)state;
    dsc_device *device = open_device("cpu");
    dsc_model *m = make_gpt(device, DSC_F32, 1);
    const dsc_state_entry *entries = dsc_model_state(m);
    int64_t count = dsc_model_state_count(m);
    assert_int_equal(dsc_model_param_count(m), 8);
    assert_int_equal(count, 9);
    assert_string_equal(entries[count - 1].name, "lm_head.weight");
    assert_true(dsc_model_state_is_alias(m, count - 1) && !dsc_model_state_is_alias(m, 0));
    assert_true(entries[count - 1].tensor == entries[0].tensor);
    assert_string_equal(entries[4].name, "c_attn.weight"); /* [in, out] in files */
    assert_true(entries[4].permuted && entries[4].dim[0] == WIDTH && entries[4].dim[1] == 3 * WIDTH);
    assert_int_equal(dsc_model_classes(m), VOCABULARY);
    assert_int_equal(dsc_model_positions(m), POSITIONS);
    assert_true(dsc_model_takes_tokens(m));
    assert_int_equal(dsc_model_layer_count(m), 2); /* the tied head is none */
    assert_int_equal(dsc_model_layers(m)[0].shape->in_c, WIDTH);
    assert_int_equal(dsc_model_layers(m)[0].shape->out_c, 3 * WIDTH);
    dsc_model_destroy(&m);
    dsc_device_destroy(&device);
}

/* Records the tensors that captures of a linear layer on a sequence get. */
static dsc_status see(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a, const dsc_tensor *g) {
    (void)q;
    assert_true(a->ndim == 3 && a->dim[0] == BATCH && a->dim[1] == POSITIONS && a->dim[2] == WIDTH);
    assert_true(g->ndim == 3 && g->dim[1] == POSITIONS && g->dim[2] == (layer == 0 ? 3 * WIDTH : WIDTH));
    ++*(int *)context;
    return DSC_OK;
}

static void test_captures(void **state) {
    (void)state;
    rig r = open_rig(chosen_exact_or("cpu"), DSC_F32, 1);
    int seen = 0;
    dsc_backward_options backward;
    dsc_backward_options_init(&backward);
    backward.context = &seen;
    backward.capture = see;
    loss(&r);
    assert_ok(dsc_exec_backward(r.exec, r.q, &backward));
    assert_int_equal(seen, 2);
    close_rig(&r);
}

/* Records the tables that captures get: 1 with tokens, 2 without. */
static dsc_status see_table(void *context, dsc_queue *q, int64_t table, const dsc_tensor *tokens,
                            const dsc_tensor *dy) {
    (void)q;
    assert_true(dy->ndim == 3 && dy->dim[0] == BATCH && dy->dim[1] == POSITIONS);
    assert_true(!tokens || (tokens->ndim == 2 && tokens->dim[0] == BATCH && tokens->dim[1] == POSITIONS));
    ((int *)context)[table] = tokens ? 1 : 2;
    return DSC_OK;
}

/* Positions of vectors that no table made, or of the numbers of the tokens themselves: their table has no tokens. */
static void check_positions(int tokens) {
    dsc_device *device = open_device(chosen_exact_or("cpu"));
    dsc_queue *q = open_queue(device);
    dsc_model *m;
    dsc_exec *exec;
    dsc_value x;
    dsc_backward_options backward;
    const int64_t dim[4] = {BATCH, POSITIONS, 1, tokens ? 1 : WIDTH};
    int seen[2] = {0};
    assert_ok(dsc_model_create(device, NULL, &m));
    if (tokens)
        assert_ok(dsc_model_tokens(m, POSITIONS, &x));
    else
        assert_ok(dsc_model_input(m, POSITIONS, 1, WIDTH, &x));
    assert_ok(dsc_model_position_embedding(m, "wpe", x, 0.5, &x));
    assert_ok(dsc_model_linear(m, "head", x, VOCABULARY, 1, &x));
    assert_ok(dsc_model_seal(m, x));
    assert_ok(dsc_exec_create(m, DSC_EXEC_TRAIN, BATCH, &exec));
    dsc_tensor in = random_tensor(q, 1, DSC_F32, 4, dim), labels = random_labels(q, 2, ROWS, VOCABULARY);
    assert_ok(dsc_exec_forward(exec, q, &in));
    assert_ok(dsc_exec_loss(exec, q, &labels, 1));
    dsc_backward_options_init(&backward);
    backward.context = seen;
    backward.capture_table = see_table;
    assert_ok(dsc_exec_backward(exec, q, &backward));
    assert_int_equal(seen[0], 2);
    dsc_tensor_free(&in);
    dsc_tensor_free(&labels);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&m);
    dsc_queue_destroy(&q);
    dsc_device_destroy(&device);
}

static void test_captured_tables(void **state) {
    (void)state;
    rig r = open_rig(chosen_exact_or("cpu"), DSC_F32, TIED);
    int seen[2] = {0};
    dsc_backward_options backward;
    dsc_backward_options_init(&backward);
    backward.context = seen;
    backward.capture_table = see_table;
    loss(&r);
    assert_ok(dsc_exec_backward(r.exec, r.q, &backward));
    assert_true(seen[0] == 1 && seen[1] == 2);
    close_rig(&r);
    check_positions(0);
    check_positions(1);
}

/* The tensor that captures of a tied head get, and the number of captures. */
typedef struct tied_input {
    double *a;
    int64_t count;
    int seen;
} tied_input;

static dsc_status see_tied(void *context, dsc_queue *q, int64_t head, const dsc_tensor *a) {
    tied_input *input = context;
    assert_int_equal(head, 0);
    assert_true(a->ndim == 3 && a->dim[0] == BATCH && a->dim[1] == POSITIONS && a->dim[2] == WIDTH);
    input->a = read_doubles(q, a);
    input->seen++;
    return DSC_OK;
}

/* The captured input times the table is the output of the head, also when memory is reused within one backward pass. */
static void check_tied(int kind, dsc_exec_mode mode) {
    rig r = open_rig(chosen_exact_or("cpu"), DSC_F32, kind);
    tied_input input = {0};
    dsc_backward_options backward;
    dsc_exec_destroy(&r.exec);
    assert_ok(dsc_exec_create(r.m, mode, BATCH, &r.exec));
    dsc_backward_options_init(&backward);
    backward.context = &input;
    backward.capture_tied = see_tied;
    loss(&r);
    double *logits = read_doubles(r.q, dsc_exec_logits(r.exec));
    assert_ok(dsc_exec_backward(r.exec, r.q, &backward));
    assert_int_equal(input.seen, kind == TIED || kind == PADDED);
    if (input.seen) {
        double *table = read_doubles(r.q, &dsc_model_params(r.m)[0].value);
        for (int i = 0; i < ROWS * VOCABULARY; i++) {
            double sum = 0;
            for (int c = 0; c < WIDTH; c++)
                sum += input.a[i / VOCABULARY * WIDTH + c] * table[i % VOCABULARY * WIDTH + c];
            assert_true(fabs(sum - logits[i]) < 1e-5);
        }
        free(table);
    }
    free(input.a);
    free(logits);
    close_rig(&r);
}

static void test_captured_tied(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        check_tied(kind, DSC_EXEC_TRAIN);
        check_tied(kind, DSC_EXEC_TRAIN_ONCE);
    }
}

/* Decoding position by position, with a cache, gives the logits of the whole sequence; also after a new start. */
static void check_decoder(int kind) {
    rig r = open_rig(chosen_exact_or("cpu"), DSC_F32, kind);
    dsc_exec *whole, *decoder;
    dsc_tensor x;
    const int64_t dim[4] = {BATCH, 1, 1, 1};
    assert_true(dsc_graph_is_causal(r.m));
    assert_ok(dsc_exec_create(r.m, DSC_EXEC_EVAL, BATCH, &whole));
    assert_ok(dsc_exec_forward(whole, r.q, &r.x));
    assert_ok(dsc_exec_create_decoder(r.m, BATCH, &decoder));
    assert_ok(dsc_tensor_alloc(r.device, DSC_F32, 4, dim, &x));
    double *tokens = read_doubles(r.q, &r.x), *wanted = read_doubles(r.q, dsc_exec_logits(whole));
    for (int t = 0; t < 2 * POSITIONS; t++) {
        int position = t % POSITIONS;
        double now[BATCH];
        for (int n = 0; n < BATCH; n++)
            now[n] = tokens[n * POSITIONS + position];
        write_doubles(r.q, now, &x);
        assert_ok(dsc_exec_decode(decoder, r.q, &x, position));
        double *found = read_doubles(r.q, dsc_exec_logits(decoder));
        for (int n = 0; n < BATCH; n++)
            assert_true(largest_difference(VOCABULARY, found + n * VOCABULARY,
                                           wanted + (n * POSITIONS + position) * VOCABULARY) < 2e-5);
        free(found);
    }
    assert_fails(DSC_E_INVALID, "outside", dsc_exec_decode(decoder, r.q, &x, POSITIONS));
    assert_fails(DSC_E_INVALID, "no decoder", dsc_exec_decode(whole, r.q, &x, 0));
    free(tokens);
    free(wanted);
    dsc_tensor_free(&x);
    dsc_exec_destroy(&decoder);
    dsc_exec_destroy(&whole);
    close_rig(&r);
}

static void test_decoder(void **state) {
    (void)state;
    check_decoder(TIED);
    check_decoder(BESIDE);
}

/* A model whose positions depend on later ones. */
static void test_no_decoder(void **state) {
    (void)state;
    dsc_device *device = open_device("cpu");
    dsc_model *m;
    dsc_exec *exec;
    dsc_value x;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_tokens(m, POSITIONS, &x));
    assert_ok(dsc_model_embedding(m, "e", x, VOCABULARY, 6, 1, &x));
    assert_ok(dsc_model_attention(m, x, NULL, &x));
    assert_ok(dsc_model_linear(m, "head", x, VOCABULARY, 1, &x));
    assert_ok(dsc_model_seal(m, x));
    assert_false(dsc_graph_is_causal(m));
    assert_fails(DSC_E_INVALID, "uses later positions", dsc_exec_create_decoder(m, 1, &exec));
    dsc_model_destroy(&m);
    dsc_device_destroy(&device);
}

static void test_refusals(void **state) {
    (void)state;
    dsc_device *device = open_device("cpu");
    dsc_model *m;
    dsc_value tokens, table, y;
    assert_ok(dsc_model_create(device, NULL, &m));
    assert_ok(dsc_model_tokens(m, POSITIONS, &tokens));
    assert_fails(DSC_E_INVALID, "a table of 0 tokens", dsc_model_embedding(m, "e", tokens, 0, 4, 1, &y));
    assert_fails(DSC_E_INVALID, "deviation 0", dsc_model_embedding(m, "e", tokens, 5, 4, 0, &y));
    assert_ok(dsc_model_embedding(m, "e", tokens, 5, 4, 1, &table));
    assert_fails(DSC_E_INVALID, "its input must be the tokens",
                 dsc_model_embedding(m, "f", table, 5, 4, 1, &y));
    dsc_linear_options tied = linear_options(0, 0, 0, table), none = linear_options(0, 0, 0, tokens);
    assert_fails(DSC_E_INVALID, "is [5, 4], but the weight of the layer [6, 4]",
                 dsc_model_linear_with(m, "h", table, 6, &tied, &y));
    assert_fails(DSC_E_INVALID, "is no embedding's", dsc_model_linear_with(m, "h", table, 5, &none, &y));
    assert_int_equal(dsc_model_state_count(m), 1); /* a refused layer leaves nothing */
    assert_ok(dsc_model_linear_with(m, "h", table, 5, &tied, &y));
    assert_fails(DSC_E_INVALID, "has another user already",
                 dsc_model_linear_with(m, "i", table, 5, &tied, &y));
    assert_ok(dsc_model_seal(m, y));
    dsc_model_destroy(&m);
    dsc_device_destroy(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),       cmocka_unit_test(test_devices),
        cmocka_unit_test(test_names),           cmocka_unit_test(test_captures),
        cmocka_unit_test(test_decoder),         cmocka_unit_test(test_no_decoder),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_captured_tables), cmocka_unit_test(test_captured_tied),
    };
    return cmocka_run_group_tests_name("model_sequences", tests, NULL, NULL);
}

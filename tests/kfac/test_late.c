/* Late gradients, whose memory is only known in the step: with any strides they give the same bits as gradients that
 * were described at creation, for every strategy; layers without a gradient are left out; layers that were never
 * captured keep theirs. */
#include "kfac/crew.h"

/* ---- gradients somewhere in memory ---- */

enum { PATTERNS = 5, STEPS = 5 };
static const char *const pattern_names[PATTERNS] = {"as D", "OIHW", "[in, kernel, out]", "with gaps",
                                                    "as D, one number further"};

/* The strides of pattern number `pattern` for a layer, and where its first weight is. */
typedef struct form {
    int64_t out, in, position, first, count; /* count: elements of memory */
} form;

static int64_t positions_of(const net_shape *s) {
    return s->kind == DSC_KFAC_CONV2D ? s->kernel_h * s->kernel_w : 1;
}

static form form_of(const net_layer *l, int pattern) {
    int64_t positions = positions_of(&l->shape), columns = l->columns - (l->shape.bias != 0);
    int64_t channels = columns / positions, out = l->shape.out_c;
    form f = {columns, 1, channels, 0, out * columns};
    if (pattern == 1)
        f = (form){columns, positions, 1, 0, out * columns};
    else if (pattern == 2)
        f = (form){1, positions * out, out, 0, out * columns};
    else if (pattern == 3)
        f = (form){2 * columns + 3, 2, 2 * channels, 1, out * (2 * columns + 3) + 1};
    else if (pattern == 4)
        f = (form){columns, 1, channels, 1, out * columns + 1};
    return f;
}

/* Memory of the gradients of one layer. */
typedef struct late {
    dsc_tensor weight, bias;
    form f;
} late;

static void write_all(const net *n, dsc_tensor *t, const double *values) {
    for (int64_t i = 0; i < dsc_tensor_count(t); i++)
        net_set(n, t, i, values[i]);
}

/* The gradients of layer l of the net, in the order of `pattern`; numbers between them are 77. */
static late late_open(const net *n, int l, int pattern) {
    const net_layer *layer = &n->layers[l];
    dsc_device *device = dsc_queue_device(n->queue);
    int64_t width = layer->columns - (layer->shape.bias != 0), channels = width / positions_of(&layer->shape);
    late t = {.f = form_of(layer, pattern)};
    double *values = net_array(t.f.count, sizeof *values),
           *d = net_array(net_gradient_count(n, l), sizeof *d);
    double *bias = net_array(layer->shape.out_c, sizeof *bias);
    net_read(n, l, d);
    for (int64_t i = 0; i < t.f.count; i++)
        values[i] = 77;
    for (int64_t o = 0; o < layer->shape.out_c; o++) {
        for (int64_t j = 0; j < width; j++)
            values[t.f.first + o * t.f.out + j / channels * t.f.position + j % channels * t.f.in] =
                d[o * layer->columns + j];
        bias[o] = d[(o + 1) * layer->columns - 1];
    }
    assert_ok(dsc_tensor_alloc(device, n->dtype, 1, &t.f.count, &t.weight));
    assert_ok(dsc_tensor_alloc(device, n->dtype, 1, &layer->shape.out_c, &t.bias));
    write_all(n, &t.weight, values);
    write_all(n, &t.bias, bias);
    free(values);
    free(d);
    free(bias);
    return t;
}

static dsc_kfac_gradients late_gradients(const net *n, int l, const late *t) {
    dsc_kfac_gradients g;
    dsc_kfac_gradients_init(&g);
    g.weight = (char *)t->weight.data + (size_t)t->f.first * dsc_dtype_size(n->dtype);
    g.bias = n->layers[l].shape.bias ? t->bias.data : NULL;
    g.out_stride = t->f.out;
    g.in_stride = t->f.in;
    g.position_stride = n->layers[l].shape.kind == DSC_KFAC_CONV2D ? t->f.position : 0;
    return g;
}

/* 1 when the numbers are d, and those between them are as they were; frees the memory. */
static int late_close(const net *n, int l, late *t, const double *d) {
    const net_layer *layer = &n->layers[l];
    int64_t width = layer->columns - (layer->shape.bias != 0), channels = width / positions_of(&layer->shape);
    double *want = net_array(t->f.count, sizeof *want);
    int same = 1;
    for (int64_t i = 0; i < t->f.count; i++)
        want[i] = 77;
    for (int64_t o = 0; o < layer->shape.out_c; o++) {
        for (int64_t j = 0; j < width; j++)
            want[t->f.first + o * t->f.out + j / channels * t->f.position + j % channels * t->f.in] =
                d[o * layer->columns + j];
        if (layer->shape.bias)
            same &= net_get(n, &t->bias, o) == d[(o + 1) * layer->columns - 1];
    }
    for (int64_t i = 0; i < t->f.count; i++)
        same &= net_get(n, &t->weight, i) == want[i];
    free(want);
    dsc_tensor_free(&t->weight);
    dsc_tensor_free(&t->bias);
    return same;
}

static dsc_kfac *create_late(const config *c, const dsc_kfac_options *options) {
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    net_describe(&nets[c->place], layers);
    for (int l = 0; l < LAYERS; l++) {
        layers[l].late_gradients = 1;
        layers[l].weight_grad.data = NULL;
        layers[l].bias_grad.data = NULL; /* its dimension says that there is a bias */
    }
    EXPECT_OK(dsc_kfac_create(comm, places[c->place].queue, layers, LAYERS, options, &kfac));
    if (!kfac)
        expect(0, c, 0, "cannot be created");
    return kfac;
}

/* One step with late gradients. absent: layers without a gradient; uncaptured: layers that are not
 * captured. */
typedef struct late_step {
    int64_t number;
    unsigned absent, uncaptured;
    int pattern; /* of layer 0; the next layer has the next one */
} late_step;

/* Runs it; want[l]: D as it must be afterwards. */
static void run_late(const config *c, dsc_kfac *kfac, const late_step *s, double *const *want) {
    net *n = &nets[c->place];
    late t[LAYERS];
    net_draw(n, s->number, 0, 1);
    net_draw_gradients(n, s->number);
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    for (int l = LAYERS - 1; l >= 0; l--)
        if (!(s->uncaptured >> l & 1))
            EXPECT_OK(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
    for (int l = 0; l < LAYERS; l++) {
        t[l] = late_open(n, l, (s->pattern + l) % PATTERNS);
        dsc_kfac_gradients g = late_gradients(n, l, &t[l]);
        if (s->absent >> l & 1)
            g.weight = g.bias = NULL;
        EXPECT_OK(dsc_kfac_set_gradients(kfac, l, 1, &g));
    }
    EXPECT_OK(dsc_kfac_step(kfac, n->queue, 0.5));
    EXPECT_OK(dsc_queue_sync(n->queue));
    for (int l = 0; l < LAYERS; l++)
        if (!late_close(n, l, &t[l], want[l])) {
            char line[120];
            snprintf(line, sizeof line, "layer %s, %s: other numbers", n->layers[l].shape.name,
                     pattern_names[(s->pattern + l) % PATTERNS]);
            expect(0, c, s->number, line);
        }
}

/* The same layers with described gradients, beside it, give the expected numbers. */
static void check_patterns(const config *c, const dsc_kfac_options *options, int first) {
    net *n = &nets[c->place];
    double *want[NET_LAYERS];
    dsc_kfac *plain = create(c, options), *kfac = create_late(c, options);
    naive_gradients_open(n, want);
    for (int k = 0; plain && kfac && k < STEPS; k++) {
        net_step step = step_of(k);
        unsigned absent = k == 3 ? 1u << 1 | 1u << 4 : 0;
        step.absent = absent;
        EXPECT_OK(net_run(n, plain, &step));
        for (int l = 0; l < LAYERS; l++)
            net_read(n, l, want[l]);
        run_late(c, kfac, &(late_step){k, absent, absent, first + k}, want);
    }
    naive_gradients_close(n, want);
    dsc_kfac_destroy(&plain);
    dsc_kfac_destroy(&kfac);
}

static void test_patterns(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int p = 0; p < PLACES; p++)
        for (int i = 0; i < count; i++) {
            config c = list[i];
            c.place = p;
            dsc_kfac_options options = options_of(&c);
            check_patterns(&c, &options, i);
            options.update_freq = 1;
            check_patterns(&c, &options, i + 3);
            options.bucket_bytes = 20; /* several batches, which share the memory of D */
            check_patterns(&c, &options, i + 1);
        }
    all_fine(comm);
}

/* Diagonal blocks gather pieces of D. */
static void test_blocks(void **state) {
    (void)state;
    config c = *some_configs(&(int){0});
    dsc_kfac_options options = options_of(&c);
    options.diag_blocks = 2;
    check_patterns(&c, &options, 1);
    options.bucket_bytes = 20;
    check_patterns(&c, &options, 2);
    all_fine(comm);
}

/* ---- layers that are not captured ---- */

/* Layer 1 is captured from step 2 on, and the next decomposition is in step 3: until then its gradient stays
 * as it is; the others are as if it did not exist. Afterwards it is preconditioned. */
static void test_ready(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++) {
        const config *c = &list[i];
        net *n = &nets[c->place];
        dsc_kfac_options options = options_of(c);
        double *want[NET_LAYERS];
        dsc_kfac *plain = create(c, &options), *kfac = create_late(c, &options);
        naive_gradients_open(n, want);
        for (int k = 0; plain && kfac && k < 6; k++) {
            net_step step = step_of(k);
            unsigned uncaptured = k < 2 || k % 2 == 1 ? 1u << 1 : 0;
            step.absent = k < 2 ? 1u << 1 : 0;
            EXPECT_OK(net_run(n, plain, &step));
            for (int l = 0; l < LAYERS; l++)
                net_read(n, l, want[l]);
            if (k < 3)
                expect(memcmp(want[1], n->layers[1].d, (size_t)net_gradient_count(n, 1) * sizeof **want) == 0,
                       c, k, "a layer that was never decomposed changed");
            else
                expect(memcmp(want[1], n->layers[1].d, (size_t)net_gradient_count(n, 1) * sizeof **want) != 0,
                       c, k, "a layer that was decomposed did not change");
            run_late(c, kfac, &(late_step){k, 0, uncaptured, i}, want);
        }
        naive_gradients_close(n, want);
        dsc_kfac_destroy(&plain);
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* ---- state ---- */

static void copy_state(dsc_kfac *from, dsc_kfac *to, dsc_queue *q) {
    static double host[4096];
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < dsc_kfac_state_count(from); i++) {
            if (dsc_kfac_state_entries(from)[i].optional != pass)
                continue;
            EXPECT_OK(dsc_kfac_state_get(from, q, i, host));
            EXPECT_OK(dsc_kfac_state_set(to, q, i, host));
        }
    EXPECT_OK(dsc_kfac_state_done(to, q, 1));
}

/* A loaded state remembers which layers were ever captured, and which were decomposed: it continues with the same bits
 * as the run that saved it. */
static void test_state(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++)
        for (int after = 1; after < 4; after++) {
            const config *c = &list[i];
            net *n = &nets[c->place];
            dsc_kfac_options options = options_of(c);
            double *want[NET_LAYERS];
            dsc_kfac *from = create(c, &options), *to = create_late(c, &options);
            naive_gradients_open(n, want);
            for (int k = 0; from && to && k < 6; k++) {
                net_step step = step_of(k);
                step.absent = k < 2 ? 1u << 2 : 0; /* 2: captured, but not decomposed before step 3 */
                if (k == after)
                    copy_state(from, to, n->queue);
                EXPECT_OK(net_run(n, from, &step));
                for (int l = 0; l < LAYERS; l++)
                    net_read(n, l, want[l]);
                if (k >= after)
                    run_late(c, to, &(late_step){k, step.absent, step.absent, k}, want);
            }
            naive_gradients_close(n, want);
            dsc_kfac_destroy(&from);
            dsc_kfac_destroy(&to);
        }
    all_fine(comm);
}

/* ---- bad input ---- */

static void test_refusals(void **state) {
    (void)state;
    const config *c = some_configs(&(int){0});
    net *n = &nets[c->place];
    dsc_kfac_options options = options_of(c);
    dsc_kfac *kfac = create_late(c, &options), *plain = create(c, &options);
    dsc_kfac_gradients g;
    net_draw(n, 0, 0, 1);
    net_draw_gradients(n, 0);
    late t = late_open(n, 0, 1);
    g = late_gradients(n, 0, &t);
    EXPECT_FAILS(DSC_E_INVALID, "layer 'first': its gradients were given when it was described",
                 dsc_kfac_set_gradients(plain, 0, 1, &g));
    EXPECT_FAILS(DSC_E_INVALID, "gradients of 2 layers from number 4 on; there are 5",
                 dsc_kfac_set_gradients(kfac, 4, 2, &g));
    EXPECT_FAILS(DSC_E_INVALID, "gradients of -1 layers", dsc_kfac_set_gradients(kfac, 4, -1, &g));
    EXPECT_FAILS(DSC_E_INVALID, "kfac_gradients", dsc_kfac_set_gradients(kfac, 0, 1, NULL));
    g.size = 8;
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    g = late_gradients(n, 0, &t);
    g.bias = NULL;
    EXPECT_FAILS(DSC_E_INVALID, "layer 'first': the gradient of its bias is missing",
                 dsc_kfac_set_gradients(kfac, 0, 1, &g));
    g = late_gradients(n, 0, &t);
    EXPECT_FAILS(DSC_E_INVALID, "layer 'grouped': a gradient of its bias, but it was described without one",
                 dsc_kfac_set_gradients(kfac, 1, 1, &g));
    g.weight = NULL;
    EXPECT_FAILS(DSC_E_INVALID, "the gradient of its weight is missing",
                 dsc_kfac_set_gradients(kfac, 0, 1, &g));
    g = late_gradients(n, 0, &t);
    g.out_stride = 0;
    EXPECT_FAILS(DSC_E_INVALID, "overlap or are too far apart", dsc_kfac_set_gradients(kfac, 0, 1, &g));
    g = late_gradients(n, 0, &t);
    g.in_stride = -9;
    EXPECT_FAILS(DSC_E_INVALID, "overlap or are too far apart", dsc_kfac_set_gradients(kfac, 0, 1, &g));
    g = late_gradients(n, 0, &t);
    g.weight = (char *)g.weight + 1;
    EXPECT_FAILS(DSC_E_INVALID, "do not begin at a multiple of", dsc_kfac_set_gradients(kfac, 0, 1, &g));
    g = late_gradients(n, 0, &t);
    EXPECT_OK(dsc_kfac_set_gradients(kfac, 0, 1, &g));
    EXPECT_FAILS(DSC_E_INVALID,
                 "K-FAC: step 0: the gradients of layer 'grouped' were not set since the last step",
                 dsc_kfac_step(kfac, n->queue, 0.5));
    dsc_tensor_free(&t.weight);
    dsc_tensor_free(&t.bias);
    dsc_kfac_destroy(&kfac);
    dsc_kfac_destroy(&plain);
    all_fine(comm);
}

/* A gradient on some ranks only is refused on all, and the next step works. */
static void test_some_ranks(void **state) {
    (void)state;
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; ranks > 1 && i < count; i++) {
        const config *c = &list[i];
        net *n = &nets[c->place];
        dsc_kfac_options options = options_of(c);
        dsc_kfac *kfac = create_late(c, &options);
        late t[LAYERS];
        dsc_kfac_gradients g;
        net_draw(n, 0, 0, 1);
        net_draw_gradients(n, 0);
        for (int turn = 0; kfac && turn < 2; turn++) {
            EXPECT_OK(dsc_kfac_begin(kfac, 1));
            for (int l = LAYERS - 1; l >= 0; l--)
                EXPECT_OK(dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g));
            for (int l = 0; l < LAYERS; l++) {
                t[l] = late_open(n, l, 0);
                g = late_gradients(n, l, &t[l]);
                if (turn == 0 && l == 2 && rank == ranks - 1)
                    g.weight = g.bias = NULL;
                EXPECT_OK(dsc_kfac_set_gradients(kfac, l, 1, &g));
            }
            if (turn == 0)
                EXPECT_FAILS(DSC_E_INVALID,
                             "layer 'pointwise' has a gradient on one rank and none on another",
                             dsc_kfac_step(kfac, n->queue, 0.5));
            else
                EXPECT_OK(dsc_kfac_step(kfac, n->queue, 0.5));
            EXPECT_OK(dsc_queue_sync(n->queue));
            for (int l = 0; l < LAYERS; l++) {
                dsc_tensor_free(&t[l].weight);
                dsc_tensor_free(&t[l].bias);
            }
        }
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns), cmocka_unit_test(test_blocks),   cmocka_unit_test(test_ready),
        cmocka_unit_test(test_state),    cmocka_unit_test(test_refusals), cmocka_unit_test(test_some_ranks),
    };
    return cmocka_run_group_tests_name("kfac late gradients", tests, open_crew, close_crew);
}

/* Tied heads: P = D (A + damping I)^-1 with A of the head's input, against the same in double for the whole batch, on
 * any number of ranks. */
#include "kfac/internal.h"
#include "kfac/numbers.h"
#include "kfac/states.h"

enum {
    V = 6,
    T = 3,
    WIDTH = 4,
    IN = 3,
    OUT = 2,
    WHOLE = 12,
    STEPS = 7,
    TABLE = V * WIDTH,
    SQUARE = WIDTH * WIDTH
};

/* How a run differs from others. */
typedef struct variant {
    int padded; /* 1: some rows have no token */
    int half;   /* 1: the input is in bfloat16 where gradients are in float32 */
    int64_t passes;
    double loss_scale, clip;
    dsc_kfac_strategy strategy;
    dsc_kfac_method method;
    dsc_kfac_sharing sharing;
    int64_t async_steps;
    int absent_step; /* the head does not run in it; -1: none */
} variant;

/* A linear layer and a tied head, and what the head's gradient should become. */
typedef struct rig {
    const place *at;
    const variant *v;
    int64_t n;                      /* samples of this rank */
    dsc_tensor a, g, weight;        /* of the linear layer */
    dsc_tensor ids, x, half, table; /* of the head: tokens, input, the same in bfloat16, gradient */
    dsc_kfac_layer layers[2];
    dsc_kfac *kfac;
    double average[SQUARE], solved[SQUARE]; /* A, and that of the last decomposition */
} rig;

static dsc_kfac_options options_for(const variant *v) {
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    o.damping = 0.125;
    o.stat_decay = 0.5;
    o.kl_clip = v->clip;
    o.factor_freq = 2;
    o.update_freq = 3;
    o.passes = v->passes;
    o.loss_terms = T;
    o.strategy = v->strategy;
    o.method = v->method;
    o.sharing = v->sharing;
    o.async_steps = v->async_steps;
    o.bucket_bytes = 700;
    o.tied_head = DSC_KFAC_TIED_INPUT;
    return o;
}

static void rig_open(rig *r, const place *at, const variant *v) {
    *r = (rig){.at = at, .v = v, .n = WHOLE / ranks};
    const int64_t a[2] = {r->n, IN}, g[2] = {r->n, OUT}, w[2] = {OUT, IN}, ids[2] = {r->n, T};
    const int64_t x[3] = {r->n, T, WIDTH}, table[2] = {V, WIDTH};
    r->a = space(r->at, at->dtype, 2, a);
    r->g = space(r->at, at->dtype, 2, g);
    r->weight = space(r->at, at->dtype, 2, w);
    r->ids = space(r->at, at->dtype, 2, ids);
    r->x = space(r->at, at->dtype, 3, x);
    r->half = space(r->at, DSC_BF16, 3, x);
    r->table = space(r->at, at->dtype, 2, table);
    for (int i = 0; i < 2; i++)
        dsc_kfac_layer_init(&r->layers[i]);
    r->layers[0].name = "fc";
    r->layers[0].kind = DSC_KFAC_LINEAR;
    r->layers[0].in_c = IN;
    r->layers[0].out_c = OUT;
    r->layers[0].weight_grad = r->weight;
    r->layers[1].name = "head";
    r->layers[1].kind = DSC_KFAC_TIED_HEAD;
    r->layers[1].in_c = WIDTH;
    r->layers[1].out_c = V;
    r->layers[1].weight_grad = r->table;
    for (int i = 0; i < WIDTH; i++)
        r->average[i * WIDTH + i] = 1;
    dsc_kfac_options options = options_for(v);
    EXPECT_OK(dsc_kfac_create(comm, at->queue, r->layers, 2, &options, &r->kfac));
}

static void rig_close(rig *r) {
    dsc_tensor *const all[] = {&r->a, &r->g, &r->weight, &r->ids, &r->x, &r->half, &r->table};
    dsc_kfac_destroy(&r->kfac);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        dsc_tensor_free(all[i]);
}

/* Row (n, t) of the whole batch. */
static int is_padding(const variant *v, int64_t n, int64_t t) {
    return v->padded && t > n % T;
}

/* Component c of the input in this row: a multiple of 1/64, which bfloat16 holds. */
static double input_at(int64_t step, int64_t pass, int64_t n, int64_t t, int64_t c) {
    return drawn(step, pass, 3, (n * T + t) * WIDTH + c);
}

static void draw(rig *r, int64_t step, int64_t pass) {
    double a[WHOLE * IN], g[WHOLE * OUT], ids[WHOLE * T], x[WHOLE * T * WIDTH];
    int64_t first = rank * r->n;
    for (int64_t i = 0; i < r->n * IN; i++)
        a[i] = drawn(step, pass, 1, first * IN + i);
    for (int64_t i = 0; i < r->n * OUT; i++)
        g[i] = r->v->loss_scale * drawn(step, pass, 2, first * OUT + i) / 8;
    for (int64_t i = 0; i < r->n * T; i++) {
        ids[i] = is_padding(r->v, first + i / T, i % T) ? -1 : (double)(i % V);
        for (int64_t c = 0; c < WIDTH; c++)
            x[i * WIDTH + c] = input_at(step, pass, first + i / T, i % T, c);
    }
    put(r->at, &r->a, a);
    put(r->at, &r->g, g);
    put(r->at, &r->ids, ids);
    put(r->at, &r->x, x);
    EXPECT_OK(dsc_op_convert(r->at->queue, &r->x, &r->half));
}

/* D of the head, then of the other layer. */
static void gradients_of(int64_t step, double *table, double *weight) {
    for (int64_t i = 0; i < TABLE; i++)
        table[i] = drawn(step, 5, 11, i);
    for (int64_t i = 0; i < OUT * IN; i++)
        weight[i] = drawn(step, 5, 12, i);
}

static void put_gradients(rig *r, int64_t step) {
    double table[TABLE], weight[OUT * IN];
    gradients_of(step, table, weight);
    put(r->at, &r->table, table);
    put(r->at, &r->weight, weight);
}

static void run(rig *r, int64_t step) {
    EXPECT_OK(dsc_kfac_begin(r->kfac, r->v->loss_scale));
    for (int64_t pass = 0; pass < r->v->passes; pass++) {
        dsc_kfac_sample sample;
        dsc_kfac_sample_init(&sample);
        draw(r, step, pass);
        sample.a = r->v->half && r->at->dtype == DSC_F32 ? r->half : r->x;
        if (r->v->padded)
            sample.tokens = r->ids;
        if (step == r->v->absent_step)
            ;
        else if (r->v->padded)
            EXPECT_OK(dsc_kfac_capture_sample(r->kfac, r->at->queue, 1, &sample));
        else
            EXPECT_OK(dsc_kfac_capture(r->kfac, r->at->queue, 1, &sample.a, NULL));
        EXPECT_OK(dsc_kfac_capture(r->kfac, r->at->queue, 0, &r->a, &r->g));
    }
    put_gradients(r, step);
    EXPECT_OK(dsc_kfac_step(r->kfac, r->at->queue, 0.5));
}

/* ---- the same in double ---- */

/* Adds the second moments of the input in one pass, the mean over the rows of each rank that are no padding. */
static void add_rows(const rig *r, int64_t step, int64_t pass, double *sum) {
    for (int owner = 0; owner < ranks; owner++) {
        double moments[SQUARE] = {0}, rows = 0;
        for (int64_t n = owner * r->n; n < (owner + 1) * r->n; n++)
            for (int64_t t = 0; t < T; t++) {
                if (is_padding(r->v, n, t))
                    continue;
                rows++;
                for (int i = 0; i < SQUARE; i++)
                    moments[i] +=
                        input_at(step, pass, n, t, i / WIDTH) * input_at(step, pass, n, t, i % WIDTH);
            }
        for (int i = 0; i < SQUARE; i++)
            sum[i] += moments[i] / rows / (double)ranks / (double)r->v->passes;
    }
}

/* row = row (A + damping I)^-1, by Gaussian elimination of the symmetric system. */
static void solve_row(const double *a, double damping, double *row) {
    double m[WIDTH][WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) {
        for (int j = 0; j < WIDTH; j++)
            m[i][j] = a[i * WIDTH + j] + (i == j ? damping : 0);
        m[i][WIDTH] = row[i];
    }
    for (int i = 0; i < WIDTH; i++)
        for (int k = 0; k < WIDTH; k++) {
            double factor = k == i ? 0 : m[k][i] / m[i][i];
            for (int j = i; j <= WIDTH; j++)
                m[k][j] -= factor * m[i][j];
        }
    for (int i = 0; i < WIDTH; i++)
        row[i] = m[i][WIDTH] / m[i][i];
}

/* What the gradient of the head should be after step k, before the clip. */
static void expected(rig *r, int64_t k, double *p) {
    const dsc_kfac_options o = options_for(r->v);
    double weight[OUT * IN], batch[SQUARE] = {0};
    const int ran = k != r->v->absent_step;
    gradients_of(k, p, weight);
    for (int64_t pass = 0; pass < r->v->passes && ran; pass++)
        add_rows(r, k, pass, batch);
    for (int i = 0; i < SQUARE && ran && k % o.factor_freq == 0; i++)
        r->average[i] = o.stat_decay * r->average[i] + (1 - o.stat_decay) * batch[i];
    if (k % o.update_freq == 0)
        memcpy(r->solved, r->average, sizeof r->solved);
    for (int v = 0; v < V && ran; v++)
        solve_row(r->solved, o.damping, p + v * WIDTH);
}

/* The expected nu, computed from the preconditioned gradients of both layers, which it has multiplied already. */
static double clip_of(const rig *r, int64_t k, const double *table, double nu) {
    double d[TABLE], other[OUT * IN], weight[OUT * IN], sum = 0;
    gradients_of(k, d, other);
    take(r->at, &r->weight, weight);
    for (int i = 0; i < TABLE && k != r->v->absent_step; i++)
        sum += table[i] * d[i];
    for (int i = 0; i < OUT * IN; i++)
        sum += weight[i] * other[i];
    return fmin(1, sqrt(r->v->clip / (0.25 * sum / nu)));
}

static const variant variants[] = {
    {0, 0, 1, 1, 0, DSC_KFAC_COMM_OPT, DSC_KFAC_EIGEN, DSC_KFAC_EXPAND, 0, -1},
    {0, 0, 2, 8, 0.001, DSC_KFAC_MEM_OPT, DSC_KFAC_EIGEN, DSC_KFAC_EXPAND, 0, -1},
    {1, 0, 1, 1, 0, DSC_KFAC_MEM_OPT, DSC_KFAC_INVERSE, DSC_KFAC_EXPAND, 0, 2},
    {1, 0, 2, 4, 0.001, DSC_KFAC_COMM_OPT, DSC_KFAC_EIGEN, DSC_KFAC_REDUCE, 0, -1},
    {0, 1, 1, 1, 0, DSC_KFAC_COMM_OPT, DSC_KFAC_EIGEN, DSC_KFAC_EXPAND, 0, 4},
    {1, 1, 1, 1, 0.001, DSC_KFAC_COMM_OPT, DSC_KFAC_EIGEN, DSC_KFAC_EXPAND, 1, -1},
};

static void check_step(rig *r, int64_t k) {
    double got[TABLE] = {0}, want[TABLE], nu = 0, limit = r->at->dtype == DSC_F64 ? 1e-12 : 1e-5;
    run(r, k);
    EXPECT_OK(dsc_kfac_nu(r->kfac, r->at->queue, &nu));
    expected(r, k, want);
    take(r->at, &r->table, got);
    for (int i = 0; i < TABLE && k != r->v->absent_step; i++)
        want[i] *= nu;
    EXPECT(naive_distance(got, want, TABLE) <= limit);
    EXPECT((nu < 1) == (r->v->clip > 0));
    if (r->v->clip > 0)
        EXPECT(fabs(clip_of(r, k, got, nu) / nu - 1) <= 10 * limit);
}

static void test_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        for (int p = 0; p < PLACES; p++) {
            rig r;
            rig_open(&r, &places[p], &variants[i]);
            for (int64_t k = 0; k < STEPS && r.kfac; k++)
                check_step(&r, k);
            rig_close(&r);
        }
    all_fine(comm);
}

/* ---- the rest ---- */

/* A state that is loaded between two decompositions continues with the same bits. */
static void test_resume(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        rig r, again;
        rig_open(&r, &places[p], &variants[1]);
        rig_open(&again, &places[p], &variants[1]);
        for (int64_t k = 0; k < STEPS; k++) {
            double got[TABLE] = {0}, want[TABLE] = {0};
            run(&r, k);
            take(r.at, &r.table, want);
            if (k == 4)
                copy_state(r.kfac, again.kfac, places[p].queue);
            if (k <= 4)
                continue;
            run(&again, k);
            take(again.at, &again.table, got);
            EXPECT(memcmp(got, want, sizeof got) == 0);
        }
        rig_close(&again);
        rig_close(&r);
    }
    all_fine(comm);
}

/* The state has A and its decomposition, and no G; its memory counts as that of A. */
static void test_state(void **state) {
    (void)state;
    rig r;
    static const char *const names[] = {"head.A", "head.A.vectors", "head.A.values"};
    int found = 0, others = 0;
    dsc_kfac_memory memory = {.size = sizeof memory};
    const size_t number = sizeof(double), packed = WIDTH * (WIDTH + 1) / 2;
    rig_open(&r, &places[REF], &variants[0]);
    for (int64_t i = 0; i < dsc_kfac_state_count(r.kfac); i++) {
        const char *name = dsc_kfac_state_entries(r.kfac)[i].name;
        int known = 0;
        for (int j = 0; j < 3; j++)
            known |= strcmp(name, names[j]) == 0;
        found += known;
        others += !known && strncmp(name, "head", 4) == 0;
    }
    EXPECT(found == 3 && others == 0);
    EXPECT_OK(dsc_kfac_get_memory(r.kfac, &memory));
    EXPECT(memory.factors[DSC_KFAC_A] == number * (packed + IN * (IN + 1) / 2));
    EXPECT(memory.factors[DSC_KFAC_G] == number * OUT * (OUT + 1) / 2);
    rig_close(&r);
    all_fine(comm);
}

/* Ranks that use the head a different number of times: A is the mean over ranks of the mean over their uses. */
static void test_uneven_uses(void **state) {
    (void)state;
    rig r;
    double got[TABLE] = {0}, want[TABLE];
    rig_open(&r, &places[REF], &variants[0]);
    EXPECT_OK(dsc_kfac_set_uses(r.kfac, 1, 0));
    EXPECT_OK(dsc_kfac_begin(r.kfac, 1));
    draw(&r, 0, 0);
    for (int use = 0; use <= rank; use++) /* of the same rows: the mean over the uses is that of one */
        EXPECT_OK(dsc_kfac_capture(r.kfac, r.at->queue, 1, &r.x, NULL));
    EXPECT_OK(dsc_kfac_capture(r.kfac, r.at->queue, 0, &r.a, &r.g));
    put_gradients(&r, 0);
    EXPECT_OK(dsc_kfac_step(r.kfac, r.at->queue, 0.5));
    expected(&r, 0, want);
    take(r.at, &r.table, got);
    EXPECT(naive_distance(got, want, TABLE) <= 1e-12);
    rig_close(&r);
    all_fine(comm);
}

/* A head that ran in one of two passes: A is that of this pass. */
static void test_one_pass(void **state) {
    (void)state;
    rig r;
    double got[TABLE] = {0}, want[TABLE];
    rig_open(&r, &places[REF], &variants[0]);
    dsc_kfac_destroy(&r.kfac);
    dsc_kfac_options options = options_for(&variants[0]);
    options.passes = 2;
    EXPECT_OK(dsc_kfac_create(comm, r.at->queue, r.layers, 2, &options, &r.kfac));
    EXPECT_OK(dsc_kfac_begin(r.kfac, 1));
    draw(&r, 0, 0);
    EXPECT_OK(dsc_kfac_capture(r.kfac, r.at->queue, 1, &r.x, NULL));
    for (int pass = 0; pass < 2; pass++)
        EXPECT_OK(dsc_kfac_capture(r.kfac, r.at->queue, 0, &r.a, &r.g));
    put_gradients(&r, 0);
    EXPECT_OK(dsc_kfac_step(r.kfac, r.at->queue, 0.5));
    expected(&r, 0, want);
    take(r.at, &r.table, got);
    EXPECT(naive_distance(got, want, TABLE) <= 1e-12);
    rig_close(&r);
    all_fine(comm);
}

/* An input that is not finite does not enter the average. */
static void test_not_finite(void **state) {
    (void)state;
    rig r;
    double got[TABLE] = {0}, want[TABLE], bad[WHOLE * T * WIDTH];
    rig_open(&r, &places[REF], &variants[0]);
    check_step(&r, 0);
    check_step(&r, 1);
    for (int i = 0; i < WHOLE * T * WIDTH; i++)
        bad[i] = NAN;
    EXPECT_OK(dsc_kfac_begin(r.kfac, 1));
    draw(&r, 2, 0);
    put(r.at, &r.x, bad);
    EXPECT_OK(dsc_kfac_capture(r.kfac, r.at->queue, 1, &r.x, NULL));
    EXPECT_OK(dsc_kfac_capture(r.kfac, r.at->queue, 0, &r.a, &r.g));
    put_gradients(&r, 2);
    EXPECT_OK(dsc_kfac_step(r.kfac, r.at->queue, 0.5));
    run(&r, 3);
    expected(&r, 3, want); /* step 3 decomposes the average of step 0 */
    take(r.at, &r.table, got);
    EXPECT(naive_distance(got, want, TABLE) <= 1e-12);
    rig_close(&r);
    all_fine(comm);
}

/* A head that is left out by default, or by name or kind in skip_layers: not a bit of its gradient changes. */
static void test_left_out(void **state) {
    (void)state;
    static const char *const expressions[] = {NULL, "^head$", "tied_head"};
    for (int i = 0; i < 3; i++) {
        rig r;
        double before[TABLE], after[TABLE], weight[OUT * IN];
        dsc_kfac_options usual;
        dsc_kfac_options_init(&usual);
        rig_open(&r, &places[REF], &variants[0]);
        dsc_kfac_destroy(&r.kfac);
        dsc_kfac_options options = options_for(&variants[0]);
        options.skip_layers = expressions[i];
        if (i == 0)
            options.tied_head = usual.tied_head;
        EXPECT_OK(dsc_kfac_create(comm, r.at->queue, r.layers, 2, &options, &r.kfac));
        run(&r, 0);
        take(r.at, &r.table, after);
        gradients_of(0, before, weight);
        EXPECT(memcmp(before, after, sizeof before) == 0);
        rig_close(&r);
    }
    all_fine(comm);
}

static void test_refusals(void **state) {
    (void)state;
    rig r;
    dsc_kfac *kfac = NULL;
    rig_open(&r, &places[REF], &variants[0]);
    dsc_kfac_options options = options_for(&variants[0]);
    options.clip = DSC_KFAC_CLIP_LAYER;
    EXPECT_FAILS(DSC_E_INVALID, "clip layer with tied head input",
                 dsc_kfac_create(comm, r.at->queue, r.layers, 2, &options, &kfac));
    options.clip = DSC_KFAC_CLIP_GLOBAL;
    rig bad = r;
    bad.layers[1].bias_grad = r.weight;
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "a tied head with a bias",
                 dsc_kfac_create(comm, r.at->queue, bad.layers, 2, &options, &kfac));
    bad = r;
    bad.layers[1].out_c = V + 1;
    EXPECT_FAILS(DSC_E_INVALID, "has 24 numbers: must be 28",
                 dsc_kfac_create(comm, r.at->queue, bad.layers, 2, &options, &kfac));
    EXPECT_OK(dsc_kfac_begin(r.kfac, 1));
    draw(&r, 0, 0);
    EXPECT_FAILS(DSC_E_INVALID, "the last dimension of its input is 3, expected 4",
                 dsc_kfac_capture(r.kfac, r.at->queue, 1, &r.a, NULL));
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.a = r.x;
    sample.tokens = r.weight;
    dsc_kfac_tied_choice choice = DSC_KFAC_TIED_SKIP;
    EXPECT_OK(dsc_kfac_tied_parse("input", &choice));
    EXPECT(choice == DSC_KFAC_TIED_INPUT && strcmp(dsc_kfac_tied_name(DSC_KFAC_TIED_SKIP), "skip") == 0);
    EXPECT_FAILS(DSC_E_INVALID, "6 tokens of type fp64 for",
                 dsc_kfac_capture_sample(r.kfac, r.at->queue, 1, &sample));
    rig_close(&r);
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values),      cmocka_unit_test(test_resume),
                                       cmocka_unit_test(test_state),       cmocka_unit_test(test_left_out),
                                       cmocka_unit_test(test_uneven_uses), cmocka_unit_test(test_one_pass),
                                       cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests_name("kfac-tied-head", tests, open_crew, close_crew);
}

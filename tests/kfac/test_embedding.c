/* Tables of embeddings: an embedding is a linear layer on inputs with a single 1, and must be preconditioned as such a
 * layer, on any number of ranks. Its diagonal A is compared with the whole one of the linear layer by the result. */
#include "kfac/internal.h"
#include "kfac/numbers.h"
#include "kfac/states.h"

enum { V = 6, T = 3, WIDTH = 4, IN = 3, OUT = 2, WHOLE = 12, STEPS = 7, TABLE = V * WIDTH };

/* How a run differs from others. */
typedef struct variant {
    int positions; /* 1: the table is that of T positions, else of V tokens */
    int padded;    /* 1: some rows have no token */
    int64_t passes, terms;
    double loss_scale, clip;
    dsc_kfac_strategy strategy;
    int absent_step; /* the table does not run in it; -1: none */
} variant;

/* A linear layer, and a table as an embedding or as a linear layer. */
typedef struct rig {
    const place *at;
    const variant *v;
    int as_linear;
    int64_t rows, n;                    /* of the table; samples of this rank */
    dsc_tensor a, g, weight;            /* of the linear layer */
    dsc_tensor ids, one_hot, dy, table; /* of the table; `table`: its gradient */
    dsc_kfac_layer layers[2];
    dsc_kfac *kfac;
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
    o.loss_terms = v->terms;
    o.strategy = v->strategy;
    o.bucket_bytes = 700;
    o.embeddings = 1;
    return o;
}

static void rig_open(rig *r, const place *at, const variant *v, int as_linear) {
    *r = (rig){.at = at, .v = v, .as_linear = as_linear, .rows = v->positions ? T : V, .n = WHOLE / ranks};
    const int64_t a[2] = {r->n, IN}, g[2] = {r->n, OUT}, w[2] = {OUT, IN}, ids[2] = {r->n, T};
    const int64_t hot[3] = {r->n, T, r->rows}, dy[3] = {r->n, T, WIDTH};
    const int64_t table[2] = {as_linear ? WIDTH : r->rows, as_linear ? r->rows : WIDTH};
    r->a = space(r->at, r->at->dtype, 2, a);
    r->g = space(r->at, r->at->dtype, 2, g);
    r->weight = space(r->at, r->at->dtype, 2, w);
    r->ids = space(r->at, r->at->dtype, 2, ids);
    r->one_hot = space(r->at, r->at->dtype, 3, hot);
    r->dy = space(r->at, r->at->dtype, 3, dy);
    r->table = space(r->at, r->at->dtype, 2, table);
    for (int i = 0; i < 2; i++)
        dsc_kfac_layer_init(&r->layers[i]);
    r->layers[0].name = "fc";
    r->layers[0].kind = DSC_KFAC_LINEAR;
    r->layers[0].in_c = IN;
    r->layers[0].out_c = OUT;
    r->layers[0].weight_grad = r->weight;
    r->layers[1].name = "table";
    r->layers[1].kind = as_linear ? DSC_KFAC_LINEAR : DSC_KFAC_EMBEDDING;
    r->layers[1].in_c = r->rows;
    r->layers[1].out_c = WIDTH;
    r->layers[1].weight_grad = r->table;
    dsc_kfac_options options = options_for(v);
    EXPECT_OK(dsc_kfac_create(comm, at->queue, r->layers, 2, &options, &r->kfac));
}

static void rig_close(rig *r) {
    dsc_tensor *const all[] = {&r->a, &r->g, &r->weight, &r->ids, &r->one_hot, &r->dy, &r->table};
    dsc_kfac_destroy(&r->kfac);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        dsc_tensor_free(all[i]);
}

/* The token of row (n, t) of the whole batch; the last one of the vocabulary never occurs. */
static int64_t token_at(const variant *v, int64_t step, int64_t pass, int64_t n, int64_t t) {
    if (v->padded && t > n % T)
        return -1;
    return v->positions ? t : (int64_t)(drawn(step, pass, 9, n * T + t) * 64 + 32) % (V - 1);
}

static void draw(rig *r, int64_t step, int64_t pass) {
    double a[WHOLE * IN], g[WHOLE * OUT], ids[WHOLE * T], hot[WHOLE * T * V] = {0}, dy[WHOLE * T * WIDTH];
    int64_t first = rank * r->n;
    for (int64_t i = 0; i < r->n * IN; i++)
        a[i] = drawn(step, pass, 1, first * IN + i);
    for (int64_t i = 0; i < r->n * OUT; i++)
        g[i] = r->v->loss_scale * drawn(step, pass, 2, first * OUT + i) / 8;
    for (int64_t i = 0; i < r->n * T; i++) {
        int64_t token = token_at(r->v, step, pass, first + i / T, i % T);
        ids[i] = (double)token;
        if (token >= 0)
            hot[i * r->rows + token] = 1;
        for (int64_t c = 0; c < WIDTH; c++)
            dy[i * WIDTH + c] = r->v->loss_scale * drawn(step, pass, 3, (first * T + i) * WIDTH + c) / 8;
    }
    put(r->at, &r->a, a);
    put(r->at, &r->g, g);
    put(r->at, &r->ids, ids);
    put(r->at, &r->one_hot, hot);
    put(r->at, &r->dy, dy);
}

/* D of the table as [rows, WIDTH], of the other layer after it. */
static void put_gradients(rig *r, int64_t step) {
    double table[TABLE], weight[OUT * IN];
    for (int64_t i = 0; i < r->rows * WIDTH; i++)
        table[r->as_linear ? i % WIDTH * r->rows + i / WIDTH : i] = drawn(step, 5, 11, i);
    for (int64_t i = 0; i < OUT * IN; i++)
        weight[i] = drawn(step, 5, 12, i);
    put(r->at, &r->table, table);
    put(r->at, &r->weight, weight);
}

static int64_t take_gradients(const rig *r, double *out) {
    double table[TABLE];
    take(r->at, &r->table, table);
    for (int64_t i = 0; i < r->rows * WIDTH; i++)
        out[i] = table[r->as_linear ? i % WIDTH * r->rows + i / WIDTH : i];
    take(r->at, &r->weight, out + r->rows * WIDTH);
    return r->rows * WIDTH + OUT * IN;
}

static void run(rig *r, int64_t step) {
    EXPECT_OK(dsc_kfac_begin(r->kfac, r->v->loss_scale));
    for (int64_t pass = 0; pass < r->v->passes; pass++) {
        dsc_kfac_sample sample;
        dsc_kfac_sample_init(&sample);
        draw(r, step, pass);
        sample.g = r->dy;
        if (r->as_linear)
            sample.a = r->one_hot;
        else if (!r->v->positions)
            sample.a = r->ids;
        if (r->v->padded && (r->as_linear || r->v->positions))
            sample.tokens = r->ids;
        if (step != r->v->absent_step)
            EXPECT_OK(dsc_kfac_capture_sample(r->kfac, r->at->queue, 1, &sample));
        EXPECT_OK(dsc_kfac_capture(r->kfac, r->at->queue, 0, &r->a, &r->g));
    }
    put_gradients(r, step);
    EXPECT_OK(dsc_kfac_step(r->kfac, r->at->queue, 0.5));
}

static const variant variants[] = {
    {0, 0, 1, T, 1, 0, DSC_KFAC_COMM_OPT, -1},     {0, 0, 2, T, 8, 0.001, DSC_KFAC_MEM_OPT, -1},
    {0, 0, 1, 0, 1, 0.001, DSC_KFAC_COMM_OPT, 2},  {0, 1, 1, T, 4, 0, DSC_KFAC_MEM_OPT, -1},
    {1, 0, 1, T, 1, 0.001, DSC_KFAC_COMM_OPT, 4},  {1, 0, 2, 1, 1, 0, DSC_KFAC_MEM_OPT, -1},
    {0, 1, 2, 0, 2, 0.001, DSC_KFAC_COMM_OPT, -1}, {1, 1, 1, T, 1, 0.001, DSC_KFAC_COMM_OPT, -1},
    {1, 1, 2, 0, 2, 0, DSC_KFAC_MEM_OPT, 4},
};

static void test_one_hot(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        for (int p = 0; p < PLACES; p++) {
            rig embedding, linear;
            rig_open(&embedding, &places[p], &variants[i], 0);
            rig_open(&linear, &places[p], &variants[i], 1);
            for (int64_t k = 0; k < STEPS && embedding.kfac && linear.kfac; k++) {
                double got[TABLE + OUT * IN], want[TABLE + OUT * IN];
                double limit = places[p].dtype == DSC_F64 ? 1e-11 : 1e-4;
                run(&embedding, k);
                run(&linear, k);
                int64_t count = take_gradients(&linear, want);
                take_gradients(&embedding, got);
                EXPECT(naive_distance(got, want, count) <= limit);
            }
            rig_close(&linear);
            rig_close(&embedding);
        }
    all_fine(comm);
}

/* A state that is loaded between two decompositions continues with the same bits. */
static void test_resume(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        rig r, again;
        rig_open(&r, &places[p], &variants[1], 0);
        rig_open(&again, &places[p], &variants[1], 0);
        for (int64_t k = 0; k < STEPS; k++) {
            double got[TABLE + OUT * IN] = {0}, want[TABLE + OUT * IN] = {0};
            run(&r, k);
            take_gradients(&r, want);
            if (k == 4)
                copy_state(r.kfac, again.kfac, places[p].queue);
            if (k <= 4)
                continue;
            run(&again, k);
            take_gradients(&again, got);
            EXPECT(memcmp(got, want, sizeof got) == 0);
        }
        rig_close(&again);
        rig_close(&r);
    }
    all_fine(comm);
}

/* Makes the average G of the table something that no solver decomposes, or the identity. */
static void spoil(rig *r, int bad) {
    dsc_kfac_table *t = &r->kfac->tables.list[0];
    EXPECT_OK(dsc_op_fill(r->at->queue, bad ? NAN : 0, &t->g));
    for (int64_t i = 0; i < WIDTH && !bad; i++) { /* its packed triangle */
        dsc_tensor one = dsc_tensor_slice(&t->g, i * (i + 3) / 2, 1);
        EXPECT_OK(dsc_op_fill(r->at->queue, 1, &one));
    }
    EXPECT_OK(dsc_queue_sync(r->at->queue));
}

/* 1 when the table has the gradient that step k gave it, to the bit. */
static int is_plain(rig *r, int64_t k) {
    double after[TABLE] = {0}, before[TABLE] = {0};
    take(r->at, &r->table, after);
    put_gradients(r, k);
    take(r->at, &r->table, before);
    return memcmp(before, after, sizeof before) == 0;
}

/* The first decomposition fails: the table keeps its gradient, in the run and in one that its state is loaded into,
 * until one succeeds. */
static void test_first_solve_fails(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        rig r, again;
        const dsc_kfac_report *report = NULL;
        rig_open(&r, &places[p], &variants[0], 0);
        rig_open(&again, &places[p], &variants[0], 0);
        spoil(&r, 1);
        for (int64_t k = 0; k < STEPS; k++) {
            run(&r, k);
            EXPECT(is_plain(&r, k) == (k < 3)); /* step 3 decomposes again */
            if (k == 0) {
                spoil(&r, 0);
                copy_state(r.kfac, again.kfac, places[p].queue);
                continue;
            }
            run(&again, k);
            EXPECT(is_plain(&again, k) == (k < 3));
        }
        EXPECT_OK(dsc_kfac_get_report(r.kfac, r.at->queue, &report));
        EXPECT(report && report->failed_solves == 1 && report->retried_solves == 1);
        rig_close(&again);
        rig_close(&r);
    }
    all_fine(comm);
}

/* A later decomposition fails: the table is preconditioned as if there had been none. */
static void test_later_solve_fails(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        rig r, once;
        rig_open(&r, &places[p], &variants[0], 0);
        rig_open(&once, &places[p], &variants[0], 0);
        dsc_kfac_destroy(&once.kfac);
        dsc_kfac_options options = options_for(&variants[0]);
        options.update_freq = 100;
        EXPECT_OK(dsc_kfac_create(comm, once.at->queue, once.layers, 2, &options, &once.kfac));
        for (int64_t k = 0; k < 6; k++) {
            double got[TABLE + OUT * IN] = {0}, want[TABLE + OUT * IN] = {0};
            if (k == 3)
                spoil(&r, 1);
            run(&r, k);
            run(&once, k);
            take_gradients(&r, got);
            take_gradients(&once, want);
            EXPECT(memcmp(got, want, TABLE * sizeof *got) == 0);
            EXPECT((memcmp(got, want, sizeof got) == 0) == (k < 3)); /* the other layer was decomposed */
        }
        rig_close(&once);
        rig_close(&r);
    }
    all_fine(comm);
}

/* Ranks that use a table a different number of times: A is the mean over ranks of the mean over their uses, and the
 * same on all of them. */
static void test_uneven_uses(void **state) {
    (void)state;
    rig r;
    double a[V] = {0}, want[V];
    dsc_kfac_sample sample;
    rig_open(&r, &places[REF], &variants[2], 0);
    EXPECT_OK(dsc_kfac_set_uses(r.kfac, 1, 0));
    EXPECT_OK(dsc_kfac_begin(r.kfac, 1));
    draw(&r, 0, 0);
    dsc_kfac_sample_init(&sample);
    sample.a = r.ids;
    sample.g = r.dy;
    for (int use = 0; use <= rank; use++) /* of the same tokens: the mean over the uses is that of one */
        EXPECT_OK(dsc_kfac_capture_sample(r.kfac, r.at->queue, 1, &sample));
    EXPECT_OK(dsc_kfac_capture(r.kfac, r.at->queue, 0, &r.a, &r.g));
    put_gradients(&r, 0);
    EXPECT_OK(dsc_kfac_step(r.kfac, r.at->queue, 0.5));
    for (int64_t i = 0; i < dsc_kfac_state_count(r.kfac); i++) {
        int held;
        if (strcmp(dsc_kfac_state_entries(r.kfac)[i].name, "table.A") == 0)
            EXPECT_OK(dsc_kfac_state_get_own(r.kfac, r.at->queue, i, a, &held));
    }
    for (int v = 0; v < V; v++)
        want[v] = 0.5; /* the identity's part, at a decay of a half */
    for (int64_t i = 0; i < WHOLE * T; i++)
        want[token_at(r.v, 0, 0, i / T, i % T)] += 0.5 / (double)(WHOLE * T);
    EXPECT(naive_distance(a, want, V) <= 1e-12);
    rig_close(&r);
    all_fine(comm);
}

/* A table that is switched off, or named by name or kind in skip_layers: not a bit of its gradient changes. */
static void test_left_out(void **state) {
    (void)state;
    static const char *const expressions[] = {NULL, "^table$", "embedding"};
    for (int i = 0; i < 3; i++) {
        rig r;
        double before[TABLE], after[TABLE];
        rig_open(&r, &places[REF], &variants[0], 0);
        dsc_kfac_destroy(&r.kfac);
        dsc_kfac_options options = options_for(&variants[0]);
        options.embeddings = i > 0;
        options.skip_layers = expressions[i];
        EXPECT_OK(dsc_kfac_create(comm, r.at->queue, r.layers, 2, &options, &r.kfac));
        run(&r, 0);
        take(r.at, &r.table, after);
        put_gradients(&r, 0);
        take(r.at, &r.table, before);
        EXPECT(memcmp(before, after, sizeof before) == 0);
        rig_close(&r);
    }
    all_fine(comm);
}

static void test_refusals(void **state) {
    (void)state;
    rig r;
    dsc_kfac *kfac = NULL;
    rig_open(&r, &places[REF], &variants[0], 0);
    dsc_kfac_options options = options_for(&variants[0]);
    options.clip = DSC_KFAC_CLIP_LAYER;
    EXPECT_FAILS(DSC_E_INVALID, "clip layer with embeddings",
                 dsc_kfac_create(comm, r.at->queue, r.layers, 2, &options, &kfac));
    options.clip = DSC_KFAC_CLIP_GLOBAL;
    rig bad = r;
    bad.layers[1].bias_grad = r.weight;
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "an embedding with a bias",
                 dsc_kfac_create(comm, r.at->queue, bad.layers, 2, &options, &kfac));
    bad = r;
    bad.layers[1].in_c = V + 1;
    EXPECT_FAILS(DSC_E_INVALID, "has 24 numbers: must be 28",
                 dsc_kfac_create(comm, r.at->queue, bad.layers, 2, &options, &kfac));
    EXPECT_OK(dsc_kfac_begin(r.kfac, 1));
    draw(&r, 0, 0);
    EXPECT_FAILS(DSC_E_INVALID, "rows of gradients: one for each of them",
                 dsc_kfac_capture(r.kfac, r.at->queue, 1, &r.weight, &r.dy));
    rig_close(&r);
    rig_open(&r, &places[REF], &variants[4], 0); /* a table of positions */
    EXPECT_OK(dsc_kfac_begin(r.kfac, 1));
    draw(&r, 0, 0);
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.g = r.dy;
    sample.tokens = r.weight;
    EXPECT_FAILS(DSC_E_INVALID, "6 tokens of type fp64 for",
                 dsc_kfac_capture_sample(r.kfac, r.at->queue, 1, &sample));
    rig_close(&r);
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_hot),          cmocka_unit_test(test_resume),
        cmocka_unit_test(test_left_out),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_uneven_uses),      cmocka_unit_test(test_first_solve_fails),
        cmocka_unit_test(test_later_solve_fails)};
    return cmocka_run_group_tests_name("kfac-embedding", tests, open_crew, close_crew);
}

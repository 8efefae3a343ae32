/* Scale and shift of norms against explicit computations in double: Fisher matrices of single samples, their
 * averages over passes, ranks and steps, the solution, the common clip; state and refusals. */
#include "kfac/numbers.h"
#include "kfac/states.h"

#include <stdlib.h>

enum { CHANNELS = 4, POSITIONS = 3, WHOLE = 12, IN = 3, OUT = 2, FC = OUT * (IN + 1), MOST_PASSES = 2 };

static const double damping = 0.125, decay = 0.5;

/* The norms: statistics of each channel, of each position, of each position without mean and shift, of two groups of
 * channels in each sample. */
typedef enum form { BATCH, LAYER, RMS, GROUP, FORMS } form;

/* A linear layer and a norm on one device, with this rank's share of the samples. */
typedef struct rig {
    const place *at;
    form form;
    int64_t samples;               /* of this rank */
    dsc_tensor a, g, weight, bias; /* of the linear layer */
    dsc_tensor x, y, dy, mean, invstd, gamma, shift;
    dsc_kfac_layer layers[2];
    double f[3][CHANNELS]; /* what the averages should be */
} rig;

/* Where the statistic of an element is; n counts samples. */
static int64_t statistic_at(form f, int64_t n, int p, int c) {
    return f == BATCH ? c : f == GROUP ? 2 * n + c / (CHANNELS / 2) : n * POSITIONS + p;
}

static void rig_open_form(rig *r, const place *at, form f) {
    *r = (rig){.at = at, .form = f, .samples = WHOLE / ranks};
    const int64_t n = r->samples, rows_a[2] = {n, IN}, rows_g[2] = {n, OUT}, weights[2] = {OUT, IN},
                  out[1] = {OUT};
    const int64_t map[3] = {n, POSITIONS, CHANNELS}, c[1] = {CHANNELS};
    r->a = space(r->at, r->at->dtype, 2, rows_a);
    r->g = space(r->at, r->at->dtype, 2, rows_g);
    r->weight = space(r->at, r->at->dtype, 2, weights);
    r->bias = space(r->at, r->at->dtype, 1, out);
    dsc_tensor *const maps[] = {&r->x, &r->y, &r->dy}, *const vectors[] = {&r->mean, &r->invstd, &r->gamma,
                                                                           &r->shift};
    for (int i = 0; i < 3; i++)
        *maps[i] = space(r->at, r->at->dtype, 3, map);
    const int64_t statistics[FORMS][2] = {{CHANNELS}, {n * POSITIONS, 1}, {n * POSITIONS, 1}, {n, 2}};
    for (int i = 0; i < 4; i++)
        *vectors[i] = i < 2 && f != BATCH ? space(r->at, r->at->dtype, 2, statistics[f])
                                          : space(r->at, r->at->dtype, 1, c);
    for (int i = 0; i < 2; i++)
        dsc_kfac_layer_init(&r->layers[i]);
    r->layers[0].name = "fc";
    r->layers[0].kind = DSC_KFAC_LINEAR;
    r->layers[0].in_c = IN;
    r->layers[0].out_c = OUT;
    r->layers[0].weight_grad = r->weight;
    r->layers[0].bias_grad = r->bias;
    r->layers[1].name = "bn";
    r->layers[1].kind = f == BATCH ? DSC_KFAC_BATCH_NORM : DSC_KFAC_LAYER_NORM;
    r->layers[1].in_c = CHANNELS;
    r->layers[1].weight_grad = r->gamma;
    if (f != RMS)
        r->layers[1].bias_grad = r->shift;
    for (int i = 0; i < CHANNELS; i++)
        r->f[0][i] = r->f[2][i] = 1;
}

static void rig_open(rig *r, const place *at) {
    rig_open_form(r, at, BATCH);
}

static void rig_close(rig *r) {
    dsc_tensor *const all[] = {&r->a,  &r->g,    &r->weight, &r->bias,  &r->x,    &r->y,
                               &r->dy, &r->mean, &r->invstd, &r->gamma, &r->shift};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        dsc_tensor_free(all[i]);
}

/* The data of one pass; `masked`: with a ReLU in the operation; `scale`: of the loss. */
typedef struct pass_data {
    double x[WHOLE][POSITIONS][CHANNELS], y[WHOLE][POSITIONS][CHANNELS], dy[WHOLE][POSITIONS][CHANNELS];
    double mean[WHOLE * CHANNELS], invstd[WHOLE * CHANNELS]; /* of all samples */
} pass_data;

static void draw(const rig *r, int64_t step, int64_t pass, double scale, pass_data *d) {
    static double a[WHOLE * IN], g[WHOLE * OUT], mine[WHOLE * POSITIONS * CHANNELS];
    int64_t first = rank * r->samples, n = r->samples;
    for (int64_t i = 0; i < n * IN; i++)
        a[i] = drawn(step, pass, 1, first * IN + i);
    for (int64_t i = 0; i < n * OUT; i++)
        g[i] = scale * drawn(step, pass, 2, first * OUT + i) / 8;
    put(r->at, (dsc_tensor *)&r->a, a);
    put(r->at, (dsc_tensor *)&r->g, g);
    for (int64_t i = 0; i < WHOLE * POSITIONS * CHANNELS; i++) {
        (&d->x[0][0][0])[i] = drawn(step, pass, 3, i);
        (&d->y[0][0][0])[i] = drawn(step, pass, 4, i);
        (&d->dy[0][0][0])[i] = drawn(step, pass, 5, i) / 8; /* of the mean loss over this rank's samples */
    }
    for (int i = 0; i < WHOLE * CHANNELS; i++) {
        d->mean[i] = drawn(step, pass, 6, i);
        d->invstd[i] = 1.5 + drawn(step, pass, 7, i);
    }
    int64_t size = POSITIONS * CHANNELS;
    put(r->at, (dsc_tensor *)&r->x, &d->x[first][0][0]);
    put(r->at, (dsc_tensor *)&r->y, &d->y[first][0][0]);
    for (int64_t i = 0; i < n * size; i++)
        mine[i] = scale * (&d->dy[first][0][0])[i];
    put(r->at, (dsc_tensor *)&r->dy, mine);
    int64_t statistics = r->form == BATCH ? 0 : statistic_at(r->form, first, 0, 0);
    put(r->at, (dsc_tensor *)&r->mean, d->mean + statistics);
    put(r->at, (dsc_tensor *)&r->invstd, d->invstd + statistics);
}

/* f += the matrices of the whole batch / passes: mean over ranks of M sum u u', M `terms` for every sample. */
static void add_matrices(const rig *r, const pass_data *d, int masked, int normalised, double terms,
                         double f[3][CHANNELS]) {
    for (int64_t i = 0; i < WHOLE; i++)
        for (int c = 0; c < CHANNELS; c++) {
            double u[2] = {0, 0};
            for (int p = 0; p < POSITIONS; p++) {
                int64_t of = statistic_at(r->form, i, p, c);
                double mean = r->form == RMS ? 0 : d->mean[of];
                double xhat = normalised ? d->x[i][p][c] : (d->x[i][p][c] - mean) * d->invstd[of];
                double g = masked && !(d->y[i][p][c] > 0) ? 0 : d->dy[i][p][c];
                u[0] += g * xhat;
                u[1] += g;
            }
            double weight = (double)r->samples / (double)ranks * terms;
            f[0][c] += weight * u[0] * u[0];
            f[1][c] += weight * u[0] * u[1];
            f[2][c] += weight * u[1] * u[1];
        }
}

typedef struct gradients {
    double fc[OUT * IN], bias[OUT], gamma[CHANNELS], shift[CHANNELS];
} gradients;

static void put_gradients(const rig *r, int64_t step, gradients *d) {
    double *const all[] = {d->fc, d->bias, d->gamma, d->shift};
    const int64_t counts[] = {OUT * IN, OUT, CHANNELS, CHANNELS};
    const dsc_tensor *const to[] = {&r->weight, &r->bias, &r->gamma, &r->shift};
    for (int t = 0; t < 4; t++) {
        for (int64_t i = 0; i < counts[t]; i++)
            all[t][i] = drawn(step, 9, 10 + t, i);
        put(r->at, (dsc_tensor *)to[t], all[t]);
    }
}

static void take_gradients(const rig *r, gradients *d) {
    take(r->at, &r->weight, d->fc);
    take(r->at, &r->bias, d->bias);
    take(r->at, &r->gamma, d->gamma);
    take(r->at, &r->shift, d->shift);
}

/* How a run differs from the others. */
typedef struct variant {
    dsc_kfac_norm_choice norm;
    int masked, normalised;
    int64_t passes;
    double loss_scale;
    int absent_step; /* the norm does not run in it; -1: none */
    form form;
    int64_t terms; /* options.loss_terms */
} variant;

static dsc_status run(const rig *r, dsc_kfac *kfac, int64_t step, const variant *v, double f[3][CHANNELS]) {
    static pass_data d;
    dsc_status status = dsc_kfac_begin(kfac, v->loss_scale);
    for (int64_t pass = 0; pass < v->passes && status == DSC_OK; pass++) {
        dsc_kfac_sample sample;
        dsc_kfac_sample_init(&sample);
        draw(r, step, pass, v->loss_scale, &d);
        if (f)
            add_matrices(r, &d, v->masked, v->normalised,
                         (v->terms > 0 ? (double)v->terms : 1) / (double)v->passes, f);
        sample.a = r->x;
        sample.g = r->dy;
        if (v->masked)
            sample.y = r->y;
        if (!v->normalised) {
            if (r->form != RMS)
                sample.mean = r->mean;
            sample.invstd = r->invstd;
        }
        if (step != v->absent_step)
            status = dsc_kfac_capture_sample(kfac, r->at->queue, 1, &sample);
        if (status == DSC_OK)
            status = dsc_kfac_capture(kfac, r->at->queue, 0, &r->a, &r->g);
    }
    return status == DSC_OK ? dsc_kfac_step(kfac, r->at->queue, 0.5) : status;
}

static dsc_kfac_options options_for(const variant *v, double clip) {
    dsc_kfac_options options;
    dsc_kfac_options_init(&options);
    options.damping = damping;
    options.stat_decay = decay;
    options.kl_clip = clip;
    options.factor_freq = 2;
    options.update_freq = 3;
    options.norm = v->norm;
    options.passes = v->passes;
    options.loss_terms = v->terms;
    options.bucket_bytes = 700;
    return options;
}

/* (F + damping I)^-1 d of channel c. */
static void solve(const rig *r, const variant *v, int c, const gradients *d, double p[2]) {
    double a = r->f[0][c] + damping, b = v->norm == DSC_KFAC_NORM_FULL ? r->f[1][c] : 0,
           e = r->f[2][c] + damping;
    if (r->form == RMS) {
        p[0] = d->gamma[c] / a;
        p[1] = 0;
        return;
    }
    p[0] = (e * d->gamma[c] - b * d->shift[c]) / (a * e - b * b);
    p[1] = (a * d->shift[c] - b * d->gamma[c]) / (a * e - b * b);
}

static int near(const rig *r, double got, double want) {
    return fabs(got - want) <= (r->at->dtype == DSC_F64 ? 1e-12 : 2e-5) * (1 + fabs(want));
}

/* One step of both objects: `alone` preconditions the linear layer only, and does not clip. */
static void step_both(rig *r, dsc_kfac *kfac, dsc_kfac *alone, int64_t step, const variant *v, double clip) {
    double f[3][CHANNELS] = {{0}}, p[CHANNELS][2], sum = 0, got_nu = 0;
    gradients d, plain, got;
    variant without = *v;
    without.absent_step = (int)step;
    put_gradients(r, step, &d);
    EXPECT_OK(run(r, alone, step, &without, NULL));
    take_gradients(r, &plain);
    put_gradients(r, step, &d);
    EXPECT_OK(run(r, kfac, step, v, f));
    take_gradients(r, &got);
    int ran = step != v->absent_step;
    for (int c = 0; c < CHANNELS; c++) {
        for (int plane = 0; plane < 3 && ran && step % 2 == 0; plane++)
            r->f[plane][c] = decay * r->f[plane][c] + (1 - decay) * f[plane][c];
        solve(r, v, c, &d, p[c]);
        sum += ran ? p[c][0] * d.gamma[c] + p[c][1] * d.shift[c] : 0;
    }
    for (int i = 0; i < OUT * IN; i++)
        sum += plain.fc[i] * d.fc[i];
    for (int i = 0; i < OUT; i++)
        sum += plain.bias[i] * d.bias[i];
    double nu = clip > 0 ? fmin(1, sqrt(clip / (0.25 * fabs(sum)))) : 1;
    EXPECT_OK(dsc_kfac_nu(kfac, r->at->queue, &got_nu));
    EXPECT(near(r, got_nu, nu));
    for (int c = 0; c < CHANNELS; c++) {
        EXPECT(near(r, got.gamma[c], ran ? nu * p[c][0] : d.gamma[c]));
        EXPECT(near(r, got.shift[c], ran && r->form != RMS ? nu * p[c][1] : d.shift[c]));
    }
    for (int i = 0; i < OUT * IN; i++)
        EXPECT(near(r, got.fc[i], nu * plain.fc[i]));
}

static dsc_kfac *make(const rig *r, const dsc_kfac_options *options) {
    dsc_kfac *kfac = NULL;
    EXPECT_OK(dsc_kfac_create(comm, r->at->queue, r->layers, 2, options, &kfac));
    return kfac;
}

static void check_variant(const place *at, const variant *v, dsc_kfac_strategy strategy, double clip) {
    rig r;
    rig_open_form(&r, at, v->form);
    dsc_kfac_options options = options_for(v, clip), plain = options_for(v, 0);
    options.strategy = plain.strategy = strategy;
    plain.norm = DSC_KFAC_NORM_OFF;
    dsc_kfac *kfac = make(&r, &options), *alone = make(&r, &plain);
    for (int64_t k = 0; k < 7 && kfac && alone; k++)
        step_both(&r, kfac, alone, k, v, clip);
    dsc_kfac_destroy(&alone);
    dsc_kfac_destroy(&kfac);
    rig_close(&r);
}

/* ---- tests ---- */

static void test_steps(void **state) {
    (void)state;
    static const variant variants[] = {
        {DSC_KFAC_NORM_FULL, 0, 0, 1, 1, -1, BATCH, 0},
        {DSC_KFAC_NORM_FULL, 1, 0, 1, 1, 4, BATCH, 0},
        {DSC_KFAC_NORM_DIAGONAL, 1, 0, 2, 1, -1, BATCH, 0},
        {DSC_KFAC_NORM_FULL, 0, 1, 2, 8, 2, BATCH, 0},
        {DSC_KFAC_NORM_DIAGONAL, 0, 0, 1, 4, 3, BATCH, POSITIONS},
        {DSC_KFAC_NORM_FULL, 0, 0, 1, 1, 4, LAYER, POSITIONS},
        {DSC_KFAC_NORM_DIAGONAL, 0, 0, 2, 8, -1, LAYER, 0},
        {DSC_KFAC_NORM_FULL, 0, 0, 1, 4, -1, RMS, POSITIONS},
        {DSC_KFAC_NORM_FULL, 0, 1, 1, 1, 2, LAYER, 1},
        {DSC_KFAC_NORM_FULL, 0, 0, 2, 1, -1, GROUP, 0},
    };
    static const dsc_kfac_strategy strategies[] = {DSC_KFAC_COMM_OPT, DSC_KFAC_MEM_OPT};
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        for (int p = 0; p < PLACES; p++)
            check_variant(&places[p], &variants[i], strategies[i % 2], i % 2 ? 0.001 : 0);
    all_fine(comm);
}

static const variant usual = {DSC_KFAC_NORM_FULL, 1, 0, 1, 1, -1, BATCH, 0};

/* A norm that is switched off, or named by name or kind in skip_layers: not a bit of its gradients changes. */
static void test_left_out(void **state) {
    (void)state;
    static const char *const expressions[] = {NULL, "^bn$", "batch_norm"};
    for (int i = 0; i < 3; i++) {
        rig r;
        gradients d, got;
        rig_open(&r, &places[REF]);
        dsc_kfac_options options = options_for(&usual, 0.001);
        options.norm = i ? DSC_KFAC_NORM_FULL : DSC_KFAC_NORM_OFF;
        options.skip_layers = expressions[i];
        dsc_kfac *kfac = make(&r, &options);
        put_gradients(&r, 0, &d);
        EXPECT_OK(run(&r, kfac, 0, &usual, NULL));
        take_gradients(&r, &got);
        EXPECT(memcmp(got.gamma, d.gamma, sizeof d.gamma) == 0);
        EXPECT(memcmp(got.shift, d.shift, sizeof d.shift) == 0);
        EXPECT(memcmp(got.fc, d.fc, sizeof d.fc) != 0);
        dsc_kfac_destroy(&kfac);
        rig_close(&r);
    }
    all_fine(comm);
}

/* A batch that is not finite does not enter the averages. */
static void test_not_finite(void **state) {
    (void)state;
    rig r;
    gradients d;
    static pass_data data;
    double before[3 * CHANNELS], after[3 * CHANNELS];
    rig_open(&r, &places[REF]);
    dsc_kfac_options options = options_for(&usual, 0);
    options.factor_freq = 1;
    dsc_kfac *kfac = make(&r, &options);
    for (int64_t k = 0; k < 2; k++) {
        dsc_kfac_sample sample;
        dsc_kfac_sample_init(&sample);
        EXPECT_OK(dsc_kfac_begin(kfac, 1));
        draw(&r, k, 0, 1, &data);
        data.dy[rank * r.samples][0][0] = k ? INFINITY : 1;
        put(r.at, &r.dy, &data.dy[rank * r.samples][0][0]);
        sample.a = r.x;
        sample.g = r.dy;
        EXPECT_OK(dsc_kfac_capture_sample(kfac, r.at->queue, 1, &sample));
        EXPECT_OK(dsc_kfac_capture(kfac, r.at->queue, 0, &r.a, &r.g));
        put_gradients(&r, k, &d);
        EXPECT_OK(dsc_kfac_step(kfac, r.at->queue, 0.5));
        for (int64_t i = 0; i < dsc_kfac_state_count(kfac); i++)
            if (strcmp(dsc_kfac_state_entries(kfac)[i].name, "bn.norm") == 0)
                EXPECT_OK(dsc_kfac_state_get(kfac, r.at->queue, i, rank ? NULL : k ? after : before));
    }
    if (rank == 0)
        EXPECT(memcmp(before, after, sizeof before) == 0);
    dsc_kfac_destroy(&kfac);
    rig_close(&r);
    all_fine(comm);
}

/* A state saved after some steps and loaded into another object gives the same bits from then on. */
static void test_resume(void **state) {
    (void)state;
    for (int warmup = 0; warmup < 2; warmup++) {
        rig r;
        gradients d, want[3], got;
        static char memory[64][4096];
        rig_open(&r, &places[CPU]);
        dsc_kfac_options options = options_for(&usual, 0.001);
        options.warmup_factors = warmup;
        dsc_kfac *kfac = make(&r, &options), *again = make(&r, &options);
        for (int64_t k = 0; k < 5; k++) {
            put_gradients(&r, k, &d);
            EXPECT_OK(run(&r, kfac, k, &usual, NULL));
        }
        int64_t count = dsc_kfac_state_count(kfac);
        assert_in_range(count, 1, 64);
        for (int64_t i = 0; i < count; i++)
            EXPECT_OK(dsc_kfac_state_get(kfac, r.at->queue, i, rank ? NULL : memory[i]));
        for (int optional = 0; optional < 2; optional++)
            for (int64_t i = 0; i < count; i++)
                if ((dsc_kfac_state_entries(again)[i].optional == 1) == optional)
                    EXPECT_OK(dsc_kfac_state_set(again, r.at->queue, i, rank ? NULL : memory[i]));
        EXPECT_OK(dsc_kfac_state_done(again, r.at->queue, 1));
        for (int64_t k = 5; k < 8; k++) {
            put_gradients(&r, k, &d);
            EXPECT_OK(run(&r, kfac, k, &usual, NULL));
            memset(&want[k - 5], 0, sizeof want[0]);
            take_gradients(&r, &want[k - 5]);
        }
        for (int64_t k = 5; k < 8; k++) {
            put_gradients(&r, k, &d);
            EXPECT_OK(run(&r, again, k, &usual, NULL));
            memset(&got, 0, sizeof got);
            take_gradients(&r, &got);
            EXPECT(memcmp(&got, &want[k - 5], sizeof got) == 0);
        }
        dsc_kfac_destroy(&again);
        dsc_kfac_destroy(&kfac);
        rig_close(&r);
    }
    all_fine(comm);
}

/* Where the gradients of a rig are, for layers that are described as late. absent: the batch norm has none. */
static void set_gradients(const rig *r, dsc_kfac *kfac, int absent) {
    dsc_kfac_gradients g[2];
    for (int i = 0; i < 2; i++)
        dsc_kfac_gradients_init(&g[i]);
    g[0].weight = r->weight.data;
    g[0].bias = r->bias.data;
    g[0].out_stride = IN;
    g[0].in_stride = g[1].out_stride = 1;
    g[1].weight = absent ? NULL : r->gamma.data;
    g[1].bias = absent ? NULL : r->shift.data;
    EXPECT_OK(dsc_kfac_set_gradients(kfac, 0, 2, g));
}

/* One step with late gradients, which are captured only where the averages are updated. */
static void late_step(const rig *r, dsc_kfac *kfac, int64_t step, int absent, gradients *got) {
    static pass_data d;
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    if (step % 2 == 0) {
        dsc_kfac_sample sample;
        dsc_kfac_sample_init(&sample);
        draw(r, step, 0, 1, &d);
        sample.a = r->x;
        sample.y = r->y;
        sample.g = r->dy;
        sample.mean = r->mean;
        sample.invstd = r->invstd;
        if (!absent)
            EXPECT_OK(dsc_kfac_capture_sample(kfac, r->at->queue, 1, &sample));
        EXPECT_OK(dsc_kfac_capture(kfac, r->at->queue, 0, &r->a, &r->g));
    }
    put_gradients(r, step, got);
    set_gradients(r, kfac, absent);
    EXPECT_OK(dsc_kfac_step(kfac, r->at->queue, 0.5));
    take_gradients(r, got);
}

static int is_near(const rig *r, const gradients *got, const gradients *want) {
    const double *a = (const double *)got, *b = (const double *)want;
    int fine = 1;
    for (size_t i = 0; i < sizeof *got / sizeof *a; i++)
        fine &= near(r, a[i], b[i]);
    return fine;
}

/* Gradients whose memory differs from step to step are preconditioned as those that stay where they are. They are also
 * preconditioned in steps that do not capture, but not before the first capture, nor where there are none. */
static void test_late(void **state) {
    (void)state;
    for (int p = 0; p < PLACES; p++) {
        rig r, other;
        gradients d, want, got;
        rig_open(&r, &places[p]);
        rig_open(&other, &places[p]);
        const variant v = {DSC_KFAC_NORM_FULL, 1, 0, 1, 1, 4, BATCH, 0};
        dsc_kfac_options options = options_for(&v, 0.001);
        dsc_kfac *plain = make(&r, &options);
        rig late = r;
        late.layers[0].late_gradients = late.layers[1].late_gradients = 1;
        dsc_kfac *kfac = make(&late, &options);
        for (int64_t k = 0; k < 7 && plain && kfac; k++) {
            put_gradients(&r, k, &d);
            EXPECT_OK(run(&r, plain, k, &v, NULL));
            take_gradients(&r, &want);
            late_step(k % 2 ? &other : &r, kfac, k, k == v.absent_step, &got);
            EXPECT(is_near(&r, &got, &want));
        }
        dsc_kfac_destroy(&kfac);
        kfac = make(&late, &options);
        for (int64_t k = 0; k < 2 && kfac; k++) { /* has a gradient, but was never captured */
            late_step(&r, kfac, 2 * k, 1, &got);
            late_step(&r, kfac, 2 * k + 1, 0, &got);
            put_gradients(&r, 2 * k + 1, &d);
            EXPECT(memcmp(got.gamma, d.gamma, sizeof d.gamma) == 0);
            EXPECT(memcmp(got.shift, d.shift, sizeof d.shift) == 0);
        }
        dsc_kfac_destroy(&kfac);
        dsc_kfac_destroy(&plain);
        rig_close(&other);
        rig_close(&r);
    }
    all_fine(comm);
}

/* Late gradients of a batch norm must be set, and be contiguous. */
static void refuse_late(const rig *r, const dsc_kfac_options *options) {
    rig late = *r;
    late.layers[0].late_gradients = late.layers[1].late_gradients = 1;
    dsc_kfac *kfac = make(&late, options);
    dsc_kfac_gradients g[2];
    for (int i = 0; i < 2; i++)
        dsc_kfac_gradients_init(&g[i]);
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    EXPECT_OK(dsc_kfac_set_gradients(kfac, 0, 1, g));
    EXPECT_FAILS(DSC_E_INVALID, "the gradients of layer 'bn' were not set",
                 dsc_kfac_step(kfac, r->at->queue, 0.5));
    g[1].weight = r->gamma.data;
    g[1].bias = r->shift.data;
    g[1].out_stride = 2;
    EXPECT_FAILS(DSC_E_INVALID, "must lie next to each other", dsc_kfac_set_gradients(kfac, 1, 1, g + 1));
    g[1].bias = NULL;
    EXPECT_FAILS(DSC_E_INVALID, "the gradient of its bias is missing",
                 dsc_kfac_set_gradients(kfac, 1, 1, g + 1));
    dsc_kfac_destroy(&kfac);
}

static void test_refusals(void **state) {
    (void)state;
    rig r;
    dsc_kfac *kfac = NULL;
    rig_open(&r, &places[REF]);
    dsc_kfac_options options = options_for(&usual, 0);
    options.norm = (dsc_kfac_norm_choice)7;
    EXPECT_FAILS(DSC_E_INVALID, "norm", dsc_kfac_create(comm, r.at->queue, r.layers, 2, &options, &kfac));
    options.norm = DSC_KFAC_NORM_FULL;
    rig bad = r;
    bad.layers[1].bias_grad = (dsc_tensor){0};
    EXPECT_FAILS(DSC_E_INVALID, "needs the gradient of its shift",
                 dsc_kfac_create(comm, r.at->queue, bad.layers, 2, &options, &kfac));
    bad = r;
    bad.layers[1].in_c = CHANNELS + 1;
    EXPECT_FAILS(DSC_E_INVALID, "has 4 numbers: must be 5",
                 dsc_kfac_create(comm, r.at->queue, bad.layers, 2, &options, &kfac));
    kfac = make(&r, &options);
    dsc_kfac_sample sample;
    dsc_kfac_sample_init(&sample);
    sample.a = r.x;
    sample.g = r.dy;
    sample.mean = r.mean;
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    EXPECT_FAILS(DSC_E_INVALID, "mean and invstd come together",
                 dsc_kfac_capture_sample(kfac, r.at->queue, 1, &sample));
    sample.g = r.g;
    EXPECT_FAILS(DSC_E_INVALID, "the last dimension of the gradient at its output is 2, expected 4",
                 dsc_kfac_capture_sample(kfac, r.at->queue, 1, &sample));
    dsc_kfac_destroy(&kfac);
    refuse_late(&r, &options);
    rig_close(&r);
    all_fine(comm);
}

/* The matrices of the norm. */
static void read_matrices(const rig *r, dsc_kfac *kfac, double to[3 * CHANNELS]) {
    for (int64_t i = 0; i < dsc_kfac_state_count(kfac); i++)
        if (strcmp(dsc_kfac_state_entries(kfac)[i].name, "bn.norm") == 0)
            EXPECT_OK(dsc_kfac_state_get(kfac, r->at->queue, i, rank ? NULL : to));
}

/* The matrices of norms belong to the averages: a run with another method continues with them. After loading a state
 * that was saved without norms they start as the identity. */
static void test_other_method(void **state) {
    (void)state;
    for (int lacking = 0; lacking < 2; lacking++) {
        rig r;
        gradients d;
        double want[3 * CHANNELS], got[3 * CHANNELS] = {0};
        rig_open(&r, &places[REF]);
        dsc_kfac_options options = options_for(&usual, 0.001);
        options.norm = lacking ? DSC_KFAC_NORM_OFF : usual.norm;
        dsc_kfac *kfac = make(&r, &options);
        options.norm = usual.norm;
        options.method = DSC_KFAC_INVERSE;
        dsc_kfac *again = make(&r, &options);
        for (int i = 0; i < 3 * CHANNELS; i++)
            want[i] = i / CHANNELS != 1;
        for (int64_t k = 0; k < 5; k++) {
            put_gradients(&r, k, &d);
            EXPECT_OK(run(&r, kfac, k, &usual, NULL));
        }
        if (!lacking)
            read_matrices(&r, kfac, want);
        copy_averages(kfac, again, r.at->queue);
        read_matrices(&r, again, got);
        EXPECT(rank != 0 || memcmp(got, want, sizeof got) == 0);
        dsc_kfac_destroy(&again);
        dsc_kfac_destroy(&kfac);
        rig_close(&r);
    }
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_not_finite),   cmocka_unit_test(test_resume),
        cmocka_unit_test(test_late),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_other_method),
    };
    return cmocka_run_group_tests(tests, open_crew, close_crew);
}

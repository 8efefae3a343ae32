/* EKFAC against explicit computations in double: second moments of per-sample gradients, one by one, in the bases
 * that the state holds; how they follow a basis; the preconditioned gradient they give; their scale. */
#include "kfac/crew.h"

#include "base/memory.h"
#include "device/half.h"
#include "kfac/kfac_parts.h"

#include <stdlib.h>

enum { MOST = 64 * 64, UNITS = 8 };

/* A unit of the net, with the expected values of all its state on the device. */
typedef struct unit {
    char name[32], a_name[40];
    int layer;
    int64_t group, g_n, a_n;
    double *qa, *qg, *old_a, *old_g; /* bases of the last decomposition, and of the one before */
    double *s, *batch;               /* [g_n, a_n] */
} unit;

typedef struct model {
    net *n;
    dsc_kfac_options options;
    int count, decomposed;
    double told_scale; /* the loss scale passed to dsc_kfac_begin; 0: the step's */
    unit units[UNITS];
} model;

static void model_open(model *m, net *n, const dsc_kfac_options *options) {
    *m = (model){.n = n, .options = *options};
    for (int l = 0; l < n->count; l++)
        for (int64_t group = 0; group < n->layers[l].shape.groups * n->layers[l].shape.blocks; group++) {
            const net_layer *layer = &n->layers[l];
            int64_t parts = layer->shape.groups * layer->shape.blocks;
            unit *u = &m->units[m->count++];
            *u = (unit){.layer = l, .group = group, .g_n = layer->shape.out_c / parts, .a_n = layer->columns};
            snprintf(u->name, sizeof u->name, parts > 1 ? "%s[%d]" : "%s", layer->shape.name, (int)group);
            snprintf(u->a_name, sizeof u->a_name, "%s%s",
                     layer->shape.blocks > 1 ? layer->shape.name : u->name,
                     layer->shape.blocks > 1 ? "[0]" : ""); /* all blocks have the A of the first */
            double **arrays[] = {&u->qa, &u->qg, &u->old_a, &u->old_g, &u->s, &u->batch};
            for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
                *arrays[i] = net_array(MOST, sizeof(double));
        }
}

static void model_close(model *m) {
    for (int i = 0; i < m->count; i++) {
        unit *u = &m->units[i];
        double *arrays[] = {u->qa, u->qg, u->old_a, u->old_g, u->s, u->batch};
        for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++)
            free(arrays[k]);
    }
}

/* An entry UNIT.WHAT of the state on every rank, as double. Collective. */
static void read_state(dsc_kfac *kfac, dsc_queue *queue, const char *name, const char *what, double *out) {
    static double numbers[MOST];
    char full[64];
    int64_t count = 1;
    snprintf(full, sizeof full, "%s.%s", name, what);
    for (int64_t i = 0; i < dsc_kfac_state_count(kfac); i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(kfac)[i];
        if (strcmp(e->name, full) != 0)
            continue;
        for (int d = 0; d < e->ndim; d++)
            count *= e->dim[d];
        assert_in_range(count, 1, MOST);
        EXPECT_OK(dsc_kfac_state_get(kfac, queue, i, rank == 0 ? numbers : NULL));
        for (int64_t j = 0; j < count && rank == 0; j++)
            out[j] = e->dtype == DSC_F64    ? numbers[j]
                     : e->dtype == DSC_F32  ? (double)((float *)numbers)[j]
                     : e->dtype == DSC_BF16 ? (double)dsc_bf16_to_float(((uint16_t *)numbers)[j])
                                            : (double)dsc_f16_to_float(((uint16_t *)numbers)[j]);
        dsc_tensor t = dsc_tensor_view(host_device, out, DSC_F64, 1, &count);
        EXPECT_OK(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, 0, &t));
        return;
    }
    remember(__FILE__, __LINE__, full);
}

/* ---- the computation ---- */

/* out = QG' d QA. */
static void project(const unit *u, const double *d, double *out) {
    for (int64_t i = 0; i < u->g_n; i++)
        for (int64_t j = 0; j < u->a_n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < u->g_n; k++)
                for (int64_t l = 0; l < u->a_n; l++)
                    sum += u->qg[k * u->g_n + i] * d[k * u->a_n + l] * u->qa[l * u->a_n + j];
            out[i * u->a_n + j] = sum;
        }
}

/* Element j of the row that a sample's input makes at output position p. */
static double input_at(const net_layer *l, const unit *u, const double *a, int64_t p, int64_t j) {
    const net_shape *s = &l->shape;
    int64_t channels = s->in_c / s->groups;
    if (s->bias && j == u->a_n - 1)
        return 1;
    if (s->kind == DSC_KFAC_LINEAR)
        return a[j];
    int64_t tap = j / channels, y = p / l->out_w * s->stride_h - s->pad_h + tap / s->kernel_w * s->dilation_h;
    int64_t x = p % l->out_w * s->stride_w - s->pad_w + tap % s->kernel_w * s->dilation_w;
    int inside = y >= 0 && y < s->in_h && x >= 0 && x < s->in_w;
    return inside ? a[(y * s->in_w + x) * s->in_c + u->group * channels + j % channels] : 0;
}

/* batch += the mean over all samples of (QG' D_n QA)^2, D_n the gradient of the sample's own loss. */
static void add_samples(const model *m, unit *u) {
    const net_layer *l = &m->n->layers[u->layer];
    int64_t rows = l->shape.kind == DSC_KFAC_LINEAR && l->shape.sequence > 0 ? l->shape.sequence : 1;
    int64_t samples = m->n->samples * rows;
    static double d[MOST], x[MOST];
    for (int64_t n = 0; n < samples; n++) {
        const double *a = l->whole_a + n * (l->a_size / rows), *g = l->whole_g + n * (l->g_size / rows);
        memset(d, 0, sizeof d);
        for (int64_t p = 0; p < l->positions; p++)
            for (int64_t i = 0; i < u->g_n; i++)
                for (int64_t j = 0; j < u->a_n; j++)
                    d[i * u->a_n + j] += (double)samples * g[p * l->shape.out_c + u->group * u->g_n + i] *
                                         input_at(l, u, a, p, j);
        project(u, d, x);
        for (int64_t i = 0; i < u->g_n * u->a_n; i++)
            u->batch[i] += x[i] * x[i] / (double)samples;
    }
}

/* s in the new basis: the diagonal of Q_new' Q_old diag(s) Q_old' Q_new. */
static void follow(unit *u) {
    static double old[MOST], rg[MOST], ra[MOST];
    memcpy(old, u->s, sizeof old);
    for (int64_t i = 0; i < u->g_n * u->g_n; i++) {
        rg[i] = 0;
        for (int64_t k = 0; k < u->g_n; k++)
            rg[i] += u->qg[k * u->g_n + i / u->g_n] * u->old_g[k * u->g_n + i % u->g_n];
    }
    for (int64_t i = 0; i < u->a_n * u->a_n; i++) {
        ra[i] = 0;
        for (int64_t k = 0; k < u->a_n; k++)
            ra[i] += u->qa[k * u->a_n + i / u->a_n] * u->old_a[k * u->a_n + i % u->a_n];
    }
    for (int64_t i = 0; i < u->g_n; i++)
        for (int64_t j = 0; j < u->a_n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < u->g_n; k++)
                for (int64_t l = 0; l < u->a_n; l++) {
                    double turned = rg[i * u->g_n + k] * ra[j * u->a_n + l];
                    sum += turned * turned * old[k * u->a_n + l];
                }
            u->s[i * u->a_n + j] = sum;
        }
}

static void blend(double decay, const unit *u, const double *x) {
    for (int64_t i = 0; i < u->g_n * u->a_n; i++)
        u->s[i] = decay * u->s[i] + (1 - decay) * x[i];
}

/* After the device's step: the new bases, and what s becomes with them. Collective. */
static void take_bases(model *m, dsc_kfac *kfac, unit *u) {
    static double va[MOST], vg[MOST];
    memcpy(u->old_a, u->qa, MOST * sizeof(double));
    memcpy(u->old_g, u->qg, MOST * sizeof(double));
    read_state(kfac, m->n->queue, u->a_name, "A.vectors", u->qa);
    read_state(kfac, m->n->queue, u->name, "G.vectors", u->qg);
    if (m->decomposed) {
        follow(u);
        return;
    }
    read_state(kfac, m->n->queue, u->a_name, "A.values", va);
    read_state(kfac, m->n->queue, u->name, "G.values", vg);
    for (int64_t i = 0; i < u->g_n * u->a_n; i++)
        u->s[i] = vg[i / u->a_n] * va[i % u->a_n];
}

/* p = QG [(QG' d QA) / (s + damping)] QA', after s was updated with d. Returns <p, d>. */
static double precondition(const model *m, unit *u, int64_t samples, const double *d, double *p) {
    static double x[MOST], square[MOST];
    double inner = 0;
    project(u, d, x);
    for (int64_t i = 0; i < u->g_n * u->a_n; i++)
        square[i] = (double)samples * x[i] * x[i];
    if (m->options.ekfac == DSC_KFAC_EKFAC_BATCH)
        blend(m->options.stat_decay, u, square);
    for (int64_t i = 0; i < u->g_n * u->a_n; i++)
        x[i] /= u->s[i] + m->options.damping;
    for (int64_t i = 0; i < u->g_n; i++)
        for (int64_t j = 0; j < u->a_n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < u->g_n; k++)
                for (int64_t l = 0; l < u->a_n; l++)
                    sum += u->qg[i * u->g_n + k] * x[k * u->a_n + l] * u->qa[j * u->a_n + l];
            p[i * u->a_n + j] = sum;
            inner += sum * d[i * u->a_n + j];
        }
    return inner;
}

/* Largest distance of two vectors, in proportion to the largest number of `want`. */
static double distance(const double *got, const double *want, int64_t count) {
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double off = fabs(got[i] - want[i]);
        largest = fmax(largest, fabs(want[i]));
        worst = off <= worst ? worst : off;
    }
    return worst / largest;
}

/* net_run with the loss scale that the model names. */
static dsc_status run(const model *m, dsc_kfac *kfac, const net_step *step) {
    net *n = m->n;
    if (m->told_scale == 0)
        return net_run(n, kfac, step);
    dsc_status status = dsc_kfac_begin(kfac, m->told_scale);
    net_draw(n, step->number, 0, step->loss_scale);
    for (int l = n->count - 1; l >= 0 && status == DSC_OK; l--)
        status = dsc_kfac_capture(kfac, n->queue, l, &n->layers[l].a, &n->layers[l].g);
    net_draw_gradients(n, step->number);
    return status == DSC_OK ? dsc_kfac_step(kfac, n->queue, step->lr) : status;
}

/* One step of both; compares moments and gradients. Collective. */
static void step_both(const config *c, model *m, dsc_kfac *kfac, const net_step *step) {
    const dsc_kfac_options *o = &m->options;
    net *n = m->n;
    double limit = (c->place == REF ? 1e-11 : 2e-4), sum = 0;
    static double p[UNITS][MOST], got[MOST];
    int update = step->number % o->factor_freq == 0, decompose = step->number % o->update_freq == 0;
    int64_t passes = step->passes ? step->passes : 1;
    for (int64_t pass = 0; pass < passes; pass++) {
        net_draw(n, step->number, pass, step->loss_scale > 0 ? step->loss_scale : 1);
        for (int i = 0; i < m->count; i++) {
            if (pass == 0)
                memset(m->units[i].batch, 0, MOST * sizeof(double));
            if (!(step->absent >> m->units[i].layer & 1))
                add_samples(m, &m->units[i]);
        }
    }
    for (int i = 0; i < m->count && update && o->ekfac == DSC_KFAC_EKFAC_SAMPLES; i++) {
        unit *u = &m->units[i];
        for (int64_t j = 0; j < u->g_n * u->a_n; j++)
            u->batch[j] /= (double)passes;
        if (!(step->absent >> u->layer & 1))
            blend(o->stat_decay, u, u->batch);
    }
    EXPECT_OK(run(m, kfac, step));
    for (int i = 0; i < m->count; i++) {
        unit *u = &m->units[i];
        const net_layer *l = &n->layers[u->layer];
        int64_t rows = l->shape.kind == DSC_KFAC_LINEAR && l->shape.sequence > 0 ? l->shape.sequence : 1;
        if (decompose)
            take_bases(m, kfac, u);
        if (!(step->absent >> u->layer & 1))
            sum += precondition(m, u, passes * n->samples * rows, l->d + u->group * u->g_n * u->a_n, p[i]);
        read_state(kfac, n->queue, u->name, "moments", got);
        expect(distance(got, u->s, u->g_n * u->a_n) <= limit, c, step->number, u->name);
    }
    m->decomposed = 1;
    double product = step->lr * step->lr * fabs(sum);
    double nu = o->kl_clip > 0 && product > 0 ? fmin(1, sqrt(o->kl_clip / product)) : 1;
    for (int i = 0; i < m->count; i++) {
        unit *u = &m->units[i];
        if (step->absent >> u->layer & 1)
            continue;
        for (int64_t j = 0; j < u->g_n * u->a_n; j++)
            p[i][j] *= nu;
        net_read(n, u->layer, got);
        expect(distance(got + u->group * u->g_n * u->a_n, p[i], u->g_n * u->a_n) <= limit, c, step->number,
               "another gradient");
    }
    expect(ranks_agree(n), c, step->number, "ranks differ");
}

static void check_config(const config *c, dsc_kfac_ekfac ekfac, int64_t passes, dsc_kfac_refresh refresh) {
    dsc_kfac_options options = options_of(c);
    model m;
    options.ekfac = ekfac;
    options.outer_product = 0;
    options.method = DSC_KFAC_EIGEN;
    options.passes = passes;
    options.refresh = refresh;
    model_open(&m, &nets[c->place], &options);
    dsc_kfac *kfac = create(c, &options);
    for (int64_t k = 0; kfac && k < 8; k++) {
        net_step step = {.number = k, .lr = 0.5, .passes = passes, .absent = k == 4 ? 5 : 0};
        step_both(c, &m, kfac, &step);
    }
    dsc_kfac_destroy(&kfac);
    model_close(&m);
}

/* ---- tests ---- */

static void test_batch(void **state) {
    (void)state;
    int count;
    const config *configs = some_configs(&count);
    for (int i = 0; i < count; i++)
        for (int p = 0; p < PLACES; p++) {
            config c = configs[i];
            c.place = p;
            check_config(&c, DSC_KFAC_EKFAC_BATCH, 1 + i % 2, i % 2 ? DSC_KFAC_WARM : DSC_KFAC_EXACT);
        }
    all_fine(comm);
}

static void test_samples(void **state) {
    (void)state;
    config c = {.strategy = DSC_KFAC_COMM_OPT, .rows = ranks, .bucket_bytes = 700, .symmetric = 1};
    for (int p = 0; p < PLACES; p++)
        for (int turn = 0; turn < 2; turn++) {
            c.place = p;
            c.colocate = turn;
            check_config(&c, DSC_KFAC_EKFAC_SAMPLES, 1 + turn, turn ? DSC_KFAC_EXACT : DSC_KFAC_WARM);
        }
    all_fine(comm);
}

/* Ranks that have bases of some layers only: one worker a layer, two, and half of the ranks. */
static void test_samples_in_columns(void **state) {
    (void)state;
    int count;
    const config *configs = some_configs(&count);
    for (int i = 1; i < count; i++)
        for (int p = 0; p < PLACES; p++) {
            config c = configs[i];
            c.place = p;
            check_config(&c, DSC_KFAC_EKFAC_SAMPLES, 1 + i % 2, i % 2 ? DSC_KFAC_WARM : DSC_KFAC_EXACT);
        }
    all_fine(comm);
}

/* Checks that a step sends the bytes that the plan says; a message may be rounded by a byte. */
static void check_sent(const config *c, dsc_traffic kind, uint64_t before, double planned, int64_t step) {
    double sent = (double)(dsc_comm_bytes(comm, kind) - before);
    expect(fabs(sent - planned) <= (planned > 0 ? 4 * UNITS : 0), c, step, dsc_traffic_name(kind));
}

/* The plan includes the messages and the memory that bases and moments of samples add. */
static void test_plan_of_samples(void **state) {
    (void)state;
    int count;
    const config *configs = some_configs(&count);
    for (int i = 0; i < count; i++) {
        config c = configs[i];
        dsc_kfac_options options = options_of(&c);
        dsc_kfac_layer layers[NET_LAYERS];
        dsc_kfac_plan *plan = NULL;
        const dsc_kfac_report *report = NULL;
        options.ekfac = DSC_KFAC_EKFAC_SAMPLES;
        options.outer_product = 0;
        options.method = DSC_KFAC_EIGEN;
        net_describe(&nets[REF], layers);
        assert_ok(dsc_kfac_plan_create(layers, LAYERS, ranks, &options, 1, &plan));
        const dsc_kfac_load *load = &dsc_kfac_plan_loads(plan)[rank];
        dsc_kfac *kfac = create(&c, &options);
        for (int64_t k = 0; kfac && k < 7; k++) {
            net_step step = step_of(k);
            uint64_t factors = dsc_comm_bytes(comm, DSC_TRAFFIC_FACTORS);
            uint64_t solved = dsc_comm_bytes(comm, DSC_TRAFFIC_DECOMPOSITIONS);
            EXPECT_OK(net_run(&nets[REF], kfac, &step));
            check_sent(&c, DSC_TRAFFIC_FACTORS, factors, k % 2 ? 0 : load->factors_sent, k);
            check_sent(&c, DSC_TRAFFIC_DECOMPOSITIONS, solved, k % 3 ? 0 : load->decompositions_sent, k);
        }
        if (kfac)
            EXPECT_OK(dsc_kfac_get_report(kfac, nets[REF].queue, &report));
        if (report) {
            expect(report->decomposition_bytes == load->decomposition_bytes, &c, 7, "decomposition_bytes");
            /* One rank with a GPU has a step's factors until its recording ends, which the plan does not know. */
            if (ranks > 1 || dsc_device_is_host(dsc_queue_device(nets[REF].queue)))
                expect(report->exchange_bytes == load->exchange_bytes, &c, 7, "exchange_bytes");
        }
        dsc_kfac_destroy(&kfac);
        dsc_kfac_plan_destroy(&plan);
    }
    all_fine(comm);
}

static void test_half(void **state) {
    (void)state;
    static const dsc_dtype types[] = {DSC_BF16, DSC_F16};
    for (int i = 0; i < 6; i++) {
        config c = {.strategy = i / 2 == 1 ? DSC_KFAC_COMM_OPT : DSC_KFAC_MEM_OPT,
                    .rows = i / 2 == 1 ? ranks : 1,
                    .colocate = 1,
                    .symmetric = 1,
                    .bucket_bytes = 700,
                    .place = CPU,
                    .factor_dtype = types[i % 2],
                    .inverse_dtype = types[1 - i % 2]};
        check_config(&c, i / 2 ? DSC_KFAC_EKFAC_SAMPLES : DSC_KFAC_EKFAC_BATCH, 1, DSC_KFAC_EXACT);
    }
    all_fine(comm);
}

/* The loss scale is divided out of the moments, both the step's number and the device's factor. */
static void test_loss_scale(void **state) {
    (void)state;
    config c = {.strategy = DSC_KFAC_COMM_OPT, .rows = ranks, .bucket_bytes = 700, .symmetric = 1};
    dsc_kfac_options options = options_of(&c);
    net *n = &nets[REF];
    int64_t one = 1;
    double eighth = 0.125 * 0.125;
    for (int turn = 0; turn < 2; turn++) {
        model m;
        dsc_tensor scale;
        options.ekfac = DSC_KFAC_EKFAC_SAMPLES;
        model_open(&m, n, &options);
        dsc_kfac *kfac = create(&c, &options);
        assert_ok(dsc_tensor_alloc(places[REF].device, DSC_F64, 1, &one, &scale));
        assert_ok(dsc_tensor_upload(n->queue, &eighth, sizeof eighth, &scale));
        if (turn) { /* the device's factor takes out what dsc_kfac_begin does not know */
            dsc_kfac_scale_g(kfac, &scale);
            m.told_scale = 1;
        }
        for (int64_t k = 0; k < 4 && kfac; k++) {
            net_step step = {.number = k, .lr = 0.5, .loss_scale = 8};
            step_both(&c, &m, kfac, &step);
        }
        dsc_kfac_destroy(&kfac);
        dsc_tensor_free(&scale);
        model_close(&m);
    }
    all_fine(comm);
}

/* After the first steps no step allocates anything. */
static void test_no_allocations(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        config c = {.strategy = i == 2 ? DSC_KFAC_MEM_OPT : DSC_KFAC_COMM_OPT,
                    .rows = i == 2 ? 1 : ranks,
                    .colocate = 1,
                    .bucket_bytes = 700,
                    .place = CPU};
        dsc_kfac_options options = options_of(&c);
        options.ekfac = i ? DSC_KFAC_EKFAC_SAMPLES : DSC_KFAC_EKFAC_BATCH;
        dsc_kfac *kfac = create(&c, &options);
        int64_t before = 0;
        for (int64_t k = 0; k < 12 && kfac; k++) {
            net_step step = step_of(k);
            EXPECT_OK(net_run(&nets[CPU], kfac, &step));
            if (k == 5)
                before = (int64_t)dsc_device_bytes(places[CPU].device);
        }
        EXPECT((int64_t)dsc_device_bytes(places[CPU].device) == before);
        dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* ---- scale ---- */

enum { A_CHOICES = 3, G_CHOICES = 2, IN = 2, OUT = 2, SIGNS = 4 };

/* A single layer for exact expectations: its inputs and output gradients are independent. */
typedef struct exact {
    dsc_tensor a, g, weight, bias;
    dsc_kfac *kfac;
    const place *at;
    int64_t samples, positions;
} exact;

/* A tensor of the place's device in any type, with numbers that it can hold. */
static void upload(const place *at, dsc_dtype dtype, dsc_tensor *t, int ndim, const int64_t *dim,
                   const double *from) {
    assert_ok(dsc_tensor_alloc(at->device, dtype, ndim, dim, t));
    int64_t count = dsc_tensor_count(t);
    double *memory = net_array(count, sizeof *memory);
    for (int64_t i = 0; i < count; i++) {
        if (dtype == DSC_F64)
            memory[i] = from[i];
        else if (dtype == DSC_F32)
            ((float *)memory)[i] = (float)from[i];
        else
            ((uint16_t *)memory)[i] = dsc_bf16_from_double(from[i]);
    }
    assert_ok(dsc_tensor_upload(at->queue, memory, dsc_tensor_bytes(t), t));
    assert_ok(dsc_queue_sync(at->queue));
    free(memory);
}

/* Every input comes with every output gradient; with several positions also with all signs of the gradients at
 * them, so that products of different positions vanish in the mean. All of this is repeated `copies` times. */
static void exact_open(exact *e, const place *at, dsc_dtype captured, int64_t positions, int64_t copies,
                       const dsc_kfac_options *options) {
    static const double inputs[A_CHOICES][IN] = {{1, 0.5}, {-0.25, 2}, {0.75, -1}};
    static const double outputs[G_CHOICES][OUT] = {{0.5, -1}, {2, 0.25}};
    static const double zeros[OUT * IN];
    int64_t signs = positions > 1 ? SIGNS : 1, filled = 0, used = 0;
    *e = (exact){.at = at, .samples = A_CHOICES * G_CHOICES * signs * copies, .positions = positions};
    double *a = net_array(e->samples * positions * IN, sizeof *a);
    double *g = net_array(e->samples * positions * OUT, sizeof *g);
    for (int64_t i = 0; i < e->samples * positions; i++) {
        int64_t sample = i / positions, sign = sample % signs >> i % positions & 1;
        for (int j = 0; j < IN; j++)
            a[filled++] = inputs[sample / signs % A_CHOICES][j];
        for (int j = 0; j < OUT; j++)
            g[used++] = (sign ? -1 : 1) * outputs[sample / signs / A_CHOICES % G_CHOICES][j];
    }
    const int64_t a_dim[4] = {e->samples, 1, positions, IN}, g_dim[4] = {e->samples, 1, positions, OUT};
    const int64_t w_dim[2] = {OUT, IN}, b_dim[1] = {OUT};
    upload(at, captured, &e->a, 4, a_dim, a);
    upload(at, captured, &e->g, 4, g_dim, g);
    upload(at, at->dtype, &e->weight, 2, w_dim, zeros);
    upload(at, at->dtype, &e->bias, 1, b_dim, zeros);
    free(a);
    free(g);
    dsc_kfac_layer layer;
    dsc_conv2d_shape conv;
    dsc_kfac_layer_init(&layer);
    dsc_conv2d_shape_init(&conv);
    conv.in_h = 1;
    conv.in_w = positions;
    conv.in_c = IN;
    conv.out_c = OUT;
    conv.kernel_h = conv.kernel_w = 1;
    layer.name = "layer";
    layer.kind = positions > 1 ? DSC_KFAC_CONV2D : DSC_KFAC_LINEAR;
    layer.conv = &conv;
    layer.in_c = IN;
    layer.out_c = OUT;
    layer.weight_grad = e->weight;
    layer.bias_grad = e->bias;
    assert_ok(dsc_kfac_create(comm, at->queue, &layer, 1, options, &e->kfac));
}

static void exact_close(exact *e) {
    dsc_kfac_destroy(&e->kfac);
    dsc_tensor *all[] = {&e->a, &e->g, &e->weight, &e->bias};
    for (int i = 0; i < 4; i++)
        dsc_tensor_free(all[i]);
}

/* g is the gradient of the sum of the losses: the loss scale turns it into that of the mean. */
static void exact_step(exact *e) {
    EXPECT_OK(dsc_kfac_begin(e->kfac, (double)e->samples));
    EXPECT_OK(dsc_kfac_capture(e->kfac, e->at->queue, 0, &e->a, &e->g));
    EXPECT_OK(dsc_kfac_step(e->kfac, e->at->queue, 0.1));
}

static dsc_kfac_options exact_options(dsc_kfac_ekfac ekfac) {
    dsc_kfac_options options;
    dsc_kfac_options_init(&options);
    options.ekfac = ekfac;
    options.stat_decay = 0;
    options.update_freq = 100;
    return options;
}

/* vG vA' of the decomposition. */
static void outer_of(exact *e, double *out) {
    double va[IN + 1], vg[OUT];
    read_state(e->kfac, e->at->queue, "layer", "A.values", va);
    read_state(e->kfac, e->at->queue, "layer", "G.values", vg);
    for (int i = 0; i < OUT * (IN + 1); i++)
        out[i] = vg[i / (IN + 1)] * va[i % (IN + 1)];
}

/* When a and g are independent the Fisher matrix is a Kronecker product: the moments of samples must be vG vA'. This
 * holds in 16-bit types, too, which represent these values exactly. */
static void test_scale_of_samples(void **state) {
    (void)state;
    for (int turn = 0; turn < 8; turn++) {
        /* With the copies there are more samples than are worked on at a time. */
        int64_t positions = 1 + turn % 2, copies = turn % 4 < 2 ? 1 : positions > 1 ? 16 : 70001;
        int half = turn >= 4;
        exact e;
        double want[OUT * (IN + 1)], got[OUT * (IN + 1)];
        dsc_kfac_options options = exact_options(DSC_KFAC_EKFAC_SAMPLES);
        if (half && copies > 16) /* sums of float32 */
            continue;
        exact_open(&e, &places[half ? CPU : REF], half ? DSC_BF16 : DSC_F64, positions, copies, &options);
        exact_step(&e);
        exact_step(&e);
        outer_of(&e, want);
        read_state(e.kfac, e.at->queue, "layer", "moments", got);
        EXPECT(distance(got, want, OUT * (IN + 1)) <= (half ? 1e-5 : 1e-11));
        exact_close(&e);
    }
    all_fine(comm);
}

/* The gradient of a batch in which each sample's gradient has any sign: over all of these N D^2 has the mean of
 * the samples' squares, which is vG vA'. */
static void test_scale_of_batches(void **state) {
    (void)state;
    dsc_queue *q = places[REF].queue;
    exact e;
    enum { N = A_CHOICES * G_CHOICES, COUNT = OUT * (IN + 1) };
    double want[COUNT], got[COUNT], mean[COUNT] = {0}, a[N * IN], g[N * OUT];
    dsc_kfac_options options = exact_options(DSC_KFAC_EKFAC_BATCH);
    exact_open(&e, &places[REF], DSC_F64, 1, 1, &options);
    assert_ok(dsc_tensor_download(q, &e.a, sizeof a, a));
    assert_ok(dsc_tensor_download(q, &e.g, sizeof g, g));
    assert_ok(dsc_queue_sync(q));
    for (int signs = 0; signs < 1 << N; signs++) {
        double weight[OUT * IN] = {0}, bias[OUT] = {0};
        for (int s = 0; s < N; s++)
            for (int i = 0; i < OUT; i++) {
                double value = (signs >> s & 1 ? -1 : 1) * g[s * OUT + i] / N;
                for (int j = 0; j < IN; j++)
                    weight[i * IN + j] += value * a[s * IN + j];
                bias[i] += value;
            }
        assert_ok(dsc_tensor_upload(q, weight, sizeof weight, &e.weight));
        assert_ok(dsc_tensor_upload(q, bias, sizeof bias, &e.bias));
        exact_step(&e);
        read_state(e.kfac, q, "layer", "moments", got);
        for (int i = 0; i < COUNT; i++)
            mean[i] +=
                got[i] / (1 << N) / ranks; /* every rank has a whole batch: N is `ranks` times as large */
    }
    outer_of(&e, want);
    EXPECT(distance(mean, want, COUNT) <= 1e-13);
    exact_close(&e);
    all_fine(comm);
}

/* ---- refusals ---- */

static void refuse(const dsc_kfac_options *options, const char *message) {
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    net_describe(&nets[REF], layers);
    EXPECT_FAILS(DSC_E_INVALID, message,
                 dsc_kfac_create(comm, places[REF].queue, layers, LAYERS, options, &kfac));
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        dsc_kfac_options options;
        const char *message;
    } cases[] = {
        {{.method = DSC_KFAC_INVERSE}, "choose method eigen, or turn ekfac off"},
        {{.scaling = DSC_KFAC_PYTORCH}, "choose paper, or turn ekfac off"},
        {{.outer_product = 1}, "turn one of them off"},
        {{.diag_blocks = 2}, "choose 1 block, or turn ekfac off"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dsc_kfac_options options = base_options(0);
        options.ekfac = i % 2 ? DSC_KFAC_EKFAC_SAMPLES : DSC_KFAC_EKFAC_BATCH;
        options.method = cases[i].options.method;
        options.scaling = cases[i].options.scaling;
        options.outer_product = cases[i].options.outer_product;
        options.diag_blocks = cases[i].options.diag_blocks > 1 ? 2 : 1;
        refuse(&options, cases[i].message);
    }
    dsc_kfac_options options = base_options(0);
    options.ekfac = (dsc_kfac_ekfac)3;
    refuse(&options, "ekfac");
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_samples_in_columns),
        cmocka_unit_test(test_plan_of_samples),
        cmocka_unit_test(test_half),
        cmocka_unit_test(test_loss_scale),
        cmocka_unit_test(test_no_allocations),
        cmocka_unit_test(test_scale_of_samples),
        cmocka_unit_test(test_scale_of_batches),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_crew, close_crew);
}

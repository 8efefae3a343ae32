/* Saving and loading: a resumed run has the same bits under the same strategy, and is equal up to rounding
 * under another strategy or on another number of ranks; damaged states are refused by all ranks. */
#include "chosen.h"
#include "comm/parallel.h"
#include "kfac/naive.h"

#include <float.h>
#include <math.h>

enum { LAYERS = 4, SAMPLES = 12, WATCHDOG_S = 280, MAX_ENTRIES = 200 };

static const net_shape shapes[LAYERS] = {
    {"conv", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .bias = 1, .in_h = 3, .in_w = 3, .kernel_h = 3,
     .kernel_w = 3, .pad_h = 1, .pad_w = 1},
    {"grouped", DSC_KFAC_CONV2D, .in_c = 4, .out_c = 4, .in_h = 3, .in_w = 2, .kernel_h = 2, .kernel_w = 2,
     .pad_w = 1, .groups = 2},
    {"rows", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 6, .sequence = 2, .blocks = 3},
    {"last", DSC_KFAC_LINEAR, .in_c = 5, .out_c = 4, .bias = 1},
};

static dsc_comm *comm;
/* ref and cpu, or for both the device that the environment names (chosen.h); and a device for the test's own memory. */
static dsc_device *device, *fast, *host_device;
static dsc_queue *queue, *fast_queue;
static int rank, ranks;

static dsc_kfac_options make_options(int method) {
    dsc_kfac_options options;
    dsc_kfac_options_init(&options);
    options.damping = 0.125;
    options.stat_decay = 0.5;
    options.kl_clip = 0.001;
    options.factor_freq = 2;
    options.update_freq = 3;
    options.method = method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
    options.outer_product = method == 1;
    options.bucket_bytes = 700;
    return options;
}

/* Strategy number s of 3: comm-opt, mem-opt, half of the ranks. */
static void set_strategy(dsc_kfac_options *options, int s, int size) {
    static const dsc_kfac_strategy strategies[] = {DSC_KFAC_COMM_OPT, DSC_KFAC_MEM_OPT, DSC_KFAC_HYBRID_OPT};
    options->strategy = strategies[s];
    options->grad_worker_fraction = size % 2 == 0 ? 0.5 : 1;
    options->symmetric = s != 1;
}

static dsc_kfac *create(dsc_comm *c, net *n, const dsc_kfac_options *options) {
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    net_describe(n, layers);
    EXPECT_OK(dsc_kfac_create(c, n->queue, layers, LAYERS, options, &kfac));
    return kfac;
}

static dsc_status run(dsc_kfac *kfac, net *n, int64_t k) {
    return net_run(n, kfac, &(net_step){.number = k, .lr = 0.5});
}

/* ---- states as files would hold them ---- */

typedef struct image {
    int64_t count;
    char names[MAX_ENTRIES][64];
    dsc_kfac_entry entries[MAX_ENTRIES];
    void *data[MAX_ENTRIES]; /* contents on rank 0, memory on every rank */
} image;

static size_t entry_bytes(const dsc_kfac_entry *e) {
    size_t count = 1;
    for (int d = 0; d < e->ndim; d++)
        count *= (size_t)e->dim[d];
    return count * dsc_dtype_size(e->dtype);
}

/* Saves everything in memory of rank 0. Collective. */
static image *save(dsc_kfac *kfac, net *n) {
    image *im = net_array(1, sizeof *im);
    im->count = dsc_kfac_state_count(kfac);
    assert_in_range(im->count, 1, MAX_ENTRIES);
    for (int64_t i = 0; i < im->count; i++) {
        im->entries[i] = dsc_kfac_state_entries(kfac)[i];
        snprintf(im->names[i], sizeof im->names[i], "%s", im->entries[i].name);
        int64_t bytes = (int64_t)entry_bytes(&im->entries[i]);
        im->data[i] = net_array(bytes, 1);
        EXPECT_OK(dsc_kfac_state_get(kfac, n->queue, i, rank == 0 ? im->data[i] : NULL));
    }
    return im;
}

/* Hands rank 0's contents to all ranks. Collective. */
static void hand_out(image *im) {
    for (int64_t i = 0; i < im->count; i++) {
        int64_t bytes = (int64_t)entry_bytes(&im->entries[i]);
        dsc_tensor t = dsc_tensor_view(host_device, im->data[i], DSC_U8, 1, &bytes);
        EXPECT_OK(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, 0, &t));
    }
}

static void drop(image **im) {
    for (int64_t i = 0; i < (*im)->count; i++)
        free((*im)->data[i]);
    free(*im);
    *im = NULL;
}

/* Number of the entry of that name; -1 when there is none. */
static int64_t find(const image *im, const char *name) {
    for (int64_t i = 0; i < im->count; i++)
        if (strcmp(im->names[i], name) == 0)
            return i;
    return -1;
}

/* Loads the whole image into `kfac`, whose communicator is c, by name: the required entries first, because the list of
 * the others may depend on them. Collective in c; stops at the first failure. */
static dsc_status load(dsc_comm *c, dsc_kfac *kfac, net *n, const image *im, int with_decompositions) {
    for (int optional = 0; optional <= with_decompositions; optional++) {
        const dsc_kfac_entry *entries = dsc_kfac_state_entries(kfac);
        int64_t count = dsc_kfac_state_count(kfac);
        for (int64_t i = 0; i < count; i++) {
            if ((entries[i].optional != 0) != optional)
                continue;
            int64_t from = find(im, entries[i].name);
            if (from < 0 || entry_bytes(&entries[i]) != entry_bytes(&im->entries[from]))
                return DSC_FAIL(DSC_E_INTERNAL, "the saved state has no '%s' of that size", entries[i].name);
            DSC_TRY(dsc_kfac_state_set(kfac, n->queue, i, dsc_comm_rank(c) == 0 ? im->data[from] : NULL));
        }
    }
    return dsc_kfac_state_done(kfac, n->queue, with_decompositions);
}

/* ---- comparison ---- */

static int64_t total_count(const net *n) {
    int64_t count = 0;
    for (int l = 0; l < n->count; l++)
        count += net_gradient_count(n, l);
    return count;
}

/* All gradients, one layer after the other. */
static void read_all(const net *n, double *d) {
    for (int l = 0; l < n->count; l++) {
        net_read(n, l, d);
        d += net_gradient_count(n, l);
    }
}

enum { LATER = 4 };

/* Steps [first, last) of a run, gradients of each into d[k - first]. */
static void run_and_keep(dsc_kfac *kfac, net *n, int64_t first, int64_t last, double **d) {
    for (int64_t k = first; k < last; k++) {
        EXPECT_OK(run(kfac, n, k));
        d[k - first] = net_array(total_count(n), sizeof(double));
        read_all(n, d[k - first]);
    }
}

/* The same steps again; gradients are within `bound` of those kept (0: the same bits). */
static void run_and_compare(dsc_kfac *kfac, net *n, int64_t first, int64_t last, double **d, double bound) {
    double *got = net_array(total_count(n), sizeof *got);
    for (int64_t k = first; k < last; k++) {
        EXPECT_OK(run(kfac, n, k));
        read_all(n, got);
        if (bound > 0)
            EXPECT(naive_distance(got, d[k - first], total_count(n)) <= bound);
        else
            EXPECT(memcmp(got, d[k - first], (size_t)total_count(n) * sizeof *got) == 0);
    }
    free(got);
}

static void forget(double **d, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        free(d[k]);
}

/* Saves after `first` steps and continues to `last`; then continues from the saved state and compares. */
static void check_resume(net *n, const dsc_kfac_options *options, int64_t first, int64_t last) {
    double *d[16];
    dsc_kfac *kfac = create(comm, n, options), *again;
    for (int64_t k = 0; k < first; k++)
        EXPECT_OK(run(kfac, n, k));
    image *im = save(kfac, n);
    run_and_keep(kfac, n, first, last, d);
    image *end = save(kfac, n);
    dsc_kfac_destroy(&kfac);
    again = create(comm, n, options);
    EXPECT_OK(load(comm, again, n, im, 1));
    run_and_compare(again, n, first, last, d, 0);
    image *end_again = save(again, n);
    for (int64_t i = 0; i < end->count; i++)
        if (memcmp(end->data[i], end_again->data[i], entry_bytes(&end->entries[i])) != 0)
            remember(__FILE__, __LINE__, end->names[i]);
    dsc_kfac_destroy(&again);
    forget(d, last - first);
    drop(&im);
    drop(&end);
    drop(&end_again);
}

static void test_bit_equal(void **state) {
    (void)state;
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int s = 0; s < 3; s++)
        for (int method = 0; method < 3; method++) {
            dsc_kfac_options options = make_options(method);
            set_strategy(&options, s, ranks);
            check_resume(&n, &options, 4, 4 + LATER); /* between updates */
            if (s == method)
                check_resume(&n, &options, 0, 2); /* before the first step */
        }
    net_close(&n);
    all_fine(comm);
}

static void test_bit_equal_half(void **state) {
    (void)state;
    net n;
    net_open_share(&n, fast_queue, DSC_F32, shapes, LAYERS, SAMPLES, comm);
    static const dsc_dtype types[] = {DSC_BF16, DSC_F16, DSC_F32};
    for (int s = 0; s < 3; s++) {
        dsc_kfac_options options = make_options(s);
        set_strategy(&options, s, ranks);
        options.factor_dtype = types[s];
        options.inverse_dtype = types[(s + 1) % 3];
        check_resume(&n, &options, 5, 8);
    }
    net_close(&n);
    all_fine(comm);
}

/* EKFAC's moments and its number of samples are part of the state. */
static void test_bit_equal_ekfac(void **state) {
    (void)state;
    net n, narrow;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    net_open_share(&narrow, fast_queue, DSC_F32, shapes, LAYERS, SAMPLES, comm);
    for (int s = 0; s < 6; s++) {
        dsc_kfac_options options = make_options(0);
        set_strategy(&options, s % 3, ranks);
        options.ekfac = s >= 3 ? DSC_KFAC_EKFAC_SAMPLES : DSC_KFAC_EKFAC_BATCH;
        check_resume(&n, &options, 4, 4 + LATER);
        check_resume(&n, &options, 3, 6); /* decomposes before it captures */
        check_resume(&n, &options, 0, 4);
        options.inverse_dtype = DSC_BF16;
        check_resume(&narrow, &options, 5, 8);
    }
    net_close(&narrow);
    net_close(&n);
    all_fine(comm);
}

/* The damping changes from step to step, so that the last decomposition had another one. */
static dsc_status growing_damping(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    hyper->damping = 0.125 * (double)(1 + step);
    return DSC_OK;
}

static void test_bit_equal_damping(void **state) {
    (void)state;
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int method = 0; method < 3; method++) {
        dsc_kfac_options options = make_options(method);
        set_strategy(&options, (method + 2) % 3, ranks);
        options.schedule = growing_damping;
        check_resume(&n, &options, 5, 8);
    }
    net_close(&n);
    all_fine(comm);
}

/* The numbers of updates are part of the state: the next decay depends on them. A state without them, of a run
 * whose averages started as the identity, is loaded without its decompositions, and its averages go on as those
 * of that run. */
static void test_bit_equal_warmup(void **state) {
    (void)state;
    net n;
    double *d[LATER];
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int s = 0; s < 3; s++) {
        dsc_kfac_options options = make_options(s), plain = options;
        set_strategy(&options, s, ranks);
        options.stat_decay = 0.95;
        options.warmup_factors = 1;
        check_resume(&n, &options, 4, 4 + LATER);
        check_resume(&n, &options, 0, 2);
        plain = options;
        plain.warmup_factors = 0;
        dsc_kfac *kfac = create(comm, &n, &plain), *again = create(comm, &n, &options);
        for (int64_t k = 0; k < 3; k++)
            EXPECT_OK(run(kfac, &n, k));
        image *im = save(kfac, &n);
        EXPECT(find(im, "last.updates") < 0);
        EXPECT_OK(load(comm, again, &n, im, 0));
        run_and_keep(kfac, &n, 3, 3 + LATER, d); /* decomposes in its first step, too */
        run_and_compare(again, &n, 3, 3 + LATER, d, 0);
        forget(d, LATER);
        drop(&im);
        dsc_kfac_destroy(&kfac);
        dsc_kfac_destroy(&again);
    }
    net_close(&n);
    all_fine(comm);
}

static dsc_status blocks_later(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    hyper->diag_blocks = step < 5 ? 1 : 2;
    return DSC_OK;
}

/* Saved with whole factors, after the schedule changed to blocks but before the next decomposition, and with
 * blocks. */
static void test_bit_equal_blocks(void **state) {
    (void)state;
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int method = 0; method < 3; method += 2) {
        dsc_kfac_options options = make_options(method);
        options.strategy = DSC_KFAC_COMM_OPT;
        options.diag_blocks = 2;
        options.schedule = blocks_later;
        check_resume(&n, &options, 4, 8);
        check_resume(&n, &options, 5, 8);
        check_resume(&n, &options, 7, 10);
    }
    net_close(&n);
    all_fine(comm);
}

/* Without decompositions at first: a state without any is not mistaken for one with them. */
static dsc_status off_at_first(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    (void)context;
    hyper->update_freq = step < 3 ? 0 : 4;
    return DSC_OK;
}

static void test_bit_equal_undecomposed(void **state) {
    (void)state;
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int s = 0; s < 3; s++) {
        dsc_kfac_options options = make_options((s + 1) % 3);
        set_strategy(&options, s, ranks);
        options.schedule = off_at_first;
        check_resume(&n, &options, 2, 6);
    }
    net_close(&n);
    all_fine(comm);
}

/* Bound for a gradient after steps whose rounding differs: condition times terms times eps, with a margin. */
static const double rounding = 1e5 * DBL_EPSILON;

static void test_other_strategy(void **state) {
    (void)state;
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int pair = 0; pair < 9; pair++) {
        int method = (pair + pair / 3) % 3;
        double *d[LATER];
        dsc_kfac_options options = make_options(method), other = make_options(method);
        dsc_kfac_ekfac source = pair % 2 ? DSC_KFAC_EKFAC_SAMPLES : DSC_KFAC_EKFAC_BATCH;
        options.ekfac = other.ekfac = method == 0 ? source : DSC_KFAC_EKFAC_OFF;
        set_strategy(&options, pair / 3, ranks);
        set_strategy(&other, pair % 3, ranks);
        other.placement = pair % 2 ? DSC_KFAC_ROUND_ROBIN : DSC_KFAC_MEMORY;
        dsc_kfac *kfac = create(comm, &n, &options);
        for (int64_t k = 0; k < 4; k++)
            EXPECT_OK(run(kfac, &n, k));
        image *im = save(kfac, &n);
        run_and_keep(kfac, &n, 4, 4 + LATER, d);
        dsc_kfac_destroy(&kfac);
        kfac = create(comm, &n, &other);
        EXPECT_OK(load(comm, kfac, &n, im, 1));
        run_and_compare(kfac, &n, 4, 4 + LATER, d, rounding);
        dsc_kfac_destroy(&kfac);
        forget(d, LATER);
        drop(&im);
    }
    net_close(&n);
    all_fine(comm);
}

/* The last rank continues by itself, the others together; each of the two groups has the whole batch. */
static void test_other_ranks(void **state) {
    (void)state;
    for (int turn = 0; turn < 3 && ranks > 1; turn++) {
        int method = turn;
        double *d[LATER];
        net whole, part;
        dsc_kfac_options options = make_options(method);
        dsc_comm *some = NULL;
        options.ekfac = method == 0 ? DSC_KFAC_EKFAC_BATCH : DSC_KFAC_EKFAC_OFF;
        net_open_share(&whole, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
        set_strategy(&options, turn, ranks);
        dsc_kfac *kfac = create(comm, &whole, &options);
        for (int64_t k = 0; k < 4; k++)
            EXPECT_OK(run(kfac, &whole, k));
        image *im = save(kfac, &whole);
        hand_out(im);
        run_and_keep(kfac, &whole, 4, 4 + LATER, d);
        dsc_kfac_destroy(&kfac);
        assert_ok(dsc_comm_split(comm, rank == ranks - 1, rank, &some));
        net_open_share(&part, queue, DSC_F64, shapes, LAYERS, SAMPLES, some);
        set_strategy(&options, (turn + 1) % 3, dsc_comm_size(some));
        kfac = create(some, &part, &options);
        EXPECT_OK(load(some, kfac, &part, im, 1));
        run_and_compare(kfac, &part, 4, 4 + LATER, d, rounding);
        dsc_kfac_destroy(&kfac);
        net_close(&part);
        net_close(&whole);
        dsc_comm_destroy(&some);
        forget(d, LATER);
        drop(&im);
    }
    all_fine(comm);
}

/* Without decompositions the next step makes them, whatever its number. */
static void test_without_decompositions(void **state) {
    (void)state;
    net n;
    double *want[NET_LAYERS];
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    naive_gradients_open(&n, want);
    for (int turn = 0; turn < 3; turn++) {
        dsc_kfac_options options = make_options((turn + 2) % 3);
        naive v;
        set_strategy(&options, turn, ranks);
        dsc_kfac *kfac = create(comm, &n, &options);
        naive_open(&v, &n, &options);
        for (int64_t k = 0; k < 4; k++) {
            naive_run(&v, &n, &(net_step){.number = k, .lr = 0.5}, HYPER(&options), want);
            EXPECT_OK(run(kfac, &n, k));
        }
        image *im = save(kfac, &n);
        dsc_kfac_destroy(&kfac);
        kfac = create(comm, &n, &options);
        EXPECT_OK(load(comm, kfac, &n, im, 0));
        net_draw(&n, 4, 0, 1);
        net_draw_gradients(&n, 4);
        naive_capture(&v, 0);
        for (int l = 0; l < LAYERS; l++)
            memcpy(want[l], n.layers[l].d, (size_t)net_gradient_count(&n, l) * sizeof(double));
        naive_step(&v, HYPER(&options), 1, 1, 0.5, want);
        EXPECT_OK(run(kfac, &n, 4));
        EXPECT(dsc_kfac_decomposed(kfac));
        EXPECT(naive_excess(&v, want, options.damping, DBL_EPSILON) <= 1);
        EXPECT_OK(run(kfac, &n, 5));
        EXPECT(!dsc_kfac_decomposed(kfac));
        dsc_kfac_destroy(&kfac);
        naive_close(&v);
        drop(&im);
    }
    naive_gradients_close(&n, want);
    net_close(&n);
    all_fine(comm);
}

/* ---- the list ---- */

/* The entries that a state must have. */
static void check_list(const dsc_kfac *kfac) {
    static const struct {
        const char *name;
        int64_t n;
    } factors[] = {{"conv.A", 19},      {"conv.G", 3},    {"grouped[0].A", 8}, {"grouped[0].G", 2},
                   {"grouped[1].A", 8}, {"rows[0].A", 4}, {"rows[1].G", 2},    {"rows[2].G", 2},
                   {"last.A", 6},       {"last.G", 4}};
    const dsc_kfac_entry *e = dsc_kfac_state_entries(kfac);
    int64_t count = dsc_kfac_state_count(kfac);
    int found = 0, optional = 0;
    for (int64_t i = 0; i < count; i++) {
        for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++)
            if (strcmp(e[i].name, factors[f].name) == 0) {
                EXPECT(e[i].ndim == 1 && e[i].dim[0] == factors[f].n * (factors[f].n + 1) / 2);
                EXPECT(e[i].dtype == DSC_F64 && !e[i].optional);
                found++;
            }
        found += strcmp(e[i].name, "step") == 0 && !e[i].optional;
        optional += e[i].optional != 0;
        for (int64_t j = 0; j < i; j++)
            EXPECT(strcmp(e[i].name, e[j].name) != 0);
        EXPECT(strncmp(e[i].name, "rows[1].A", 9) != 0); /* the A of rows[0] */
    }
    EXPECT(found == 11 && optional >= 10);
}

/* The same for every strategy. */
static void test_list(void **state) {
    (void)state;
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int method = 0; method < 3; method++) {
        dsc_kfac_options options = make_options(method);
        image *first = NULL;
        for (int s = 0; s < 3; s++) {
            set_strategy(&options, s, ranks);
            dsc_kfac *kfac = create(comm, &n, &options);
            check_list(kfac);
            EXPECT_OK(run(kfac, &n, 0));
            image *im = save(kfac, &n);
            for (int64_t i = 0; first && i < im->count; i++) {
                const dsc_kfac_entry *a = &im->entries[i], *b = &first->entries[i];
                EXPECT(im->count == first->count && strcmp(im->names[i], first->names[i]) == 0);
                EXPECT(a->dtype == b->dtype && a->ndim == b->ndim && a->dim[0] == b->dim[0]);
                EXPECT(a->optional == b->optional && (a->ndim < 2 || a->dim[1] == b->dim[1]));
            }
            if (!first)
                first = im;
            else
                drop(&im);
            dsc_kfac_destroy(&kfac);
        }
        drop(&first);
    }
    net_close(&n);
    all_fine(comm);
}

/* Factors in the state are the running averages themselves. */
static void test_values(void **state) {
    (void)state;
    net n;
    double *want[NET_LAYERS];
    naive v;
    dsc_kfac_options options = make_options(0);
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    naive_gradients_open(&n, want);
    naive_open(&v, &n, &options);
    set_strategy(&options, 1, ranks);
    dsc_kfac *kfac = create(comm, &n, &options);
    for (int64_t k = 0; k < 3; k++) {
        naive_run(&v, &n, &(net_step){.number = k, .lr = 0.5}, HYPER(&options), want);
        EXPECT_OK(run(kfac, &n, k));
    }
    image *im = save(kfac, &n);
    hand_out(im);
    int64_t a = find(im, "conv.A"), g = find(im, "last.G"), step = find(im, "step");
    assert_true(a >= 0 && g >= 0 && step >= 0);
    const double *packed = im->data[a];
    for (int64_t i = 0; i < 19; i++)
        for (int64_t j = 0; j <= i; j++)
            EXPECT(fabs(*packed++ - v.units[0].a[i * 19 + j]) <= 1e-13);
    packed = im->data[g];
    for (int64_t i = 0; i < 4; i++)
        for (int64_t j = 0; j <= i; j++)
            EXPECT(fabs(*packed++ - v.units[v.count - 1].g[i * 4 + j]) <= 1e-13);
    EXPECT(im->entries[step].dtype == DSC_I64 && *(int64_t *)im->data[step] == 3);
    drop(&im);
    dsc_kfac_destroy(&kfac);
    naive_close(&v);
    naive_gradients_close(&n, want);
    net_close(&n);
    all_fine(comm);
}

/* Counters of failures are part of the state. */
static void test_counters(void **state) {
    (void)state;
    net n;
    dsc_kfac_options options = make_options(0);
    const dsc_kfac_report *report = NULL;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    dsc_kfac *kfac = create(comm, &n, &options);
    EXPECT_OK(dsc_kfac_begin(kfac, 1));
    net_draw(&n, 0, 0, 1);
    net_draw_gradients(&n, 0);
    net_set(&n, &n.layers[2].g, 1, NAN);
    for (int l = LAYERS - 1; l >= 0; l--)
        EXPECT_OK(dsc_kfac_capture(kfac, n.queue, l, &n.layers[l].a, &n.layers[l].g));
    EXPECT_OK(dsc_kfac_step(kfac, n.queue, 0.5));
    EXPECT_OK(dsc_kfac_get_report(kfac, n.queue, &report));
    int64_t rejected = report ? report->rejected_factors : 0;
    EXPECT(rejected > 0);
    image *im = save(kfac, &n);
    dsc_kfac_destroy(&kfac);
    kfac = create(comm, &n, &options);
    EXPECT_OK(load(comm, kfac, &n, im, 1));
    EXPECT_OK(dsc_kfac_get_report(kfac, n.queue, &report));
    EXPECT(report && report->rejected_factors == rejected && report->step == 1);
    drop(&im);
    dsc_kfac_destroy(&kfac);
    net_close(&n);
    all_fine(comm);
}

/* ---- damage ---- */

static void test_damaged(void **state) {
    (void)state;
    static const struct {
        const char *entry;
        double value;
    } cases[] = {{"step", -1},    {"step", 0x1p62},     {"rejected_factors", 0x1p62},
                 {"conv.A", NAN}, {"last.G", INFINITY}, {"grouped[1].A", -INFINITY}};
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (int s = 0; s < 3; s++) {
        dsc_kfac_options options = make_options(0);
        set_strategy(&options, s, ranks);
        dsc_kfac *kfac = create(comm, &n, &options);
        EXPECT_OK(run(kfac, &n, 0));
        image *im = save(kfac, &n);
        dsc_kfac_destroy(&kfac);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            int64_t at = find(im, cases[i].entry);
            assert_true(at >= 0);
            size_t bytes = entry_bytes(&im->entries[at]);
            void *kept = net_array((int64_t)bytes, 1);
            memcpy(kept, im->data[at], bytes);
            if (im->entries[at].dtype == DSC_I64)
                *(int64_t *)im->data[at] = (int64_t)cases[i].value;
            else
                ((double *)im->data[at])[1] = cases[i].value;
            kfac = create(comm, &n, &options);
            dsc_status status = load(comm, kfac, &n, im, 1);
            EXPECT(status == DSC_E_INVALID || status == DSC_E_FORMAT || status == DSC_E_NUMERIC);
            EXPECT(strstr(dsc_error_message(), cases[i].entry) != NULL);
            dsc_kfac_destroy(&kfac);
            memcpy(im->data[at], kept, bytes);
            free(kept);
        }
        drop(&im);
    }
    net_close(&n);
    all_fine(comm);
}

/* Decompositions that are not finite are refused, too. */
static void test_damaged_decompositions(void **state) {
    (void)state;
    static const struct {
        const char *entry;
        int method;
        double value;
    } cases[] = {{"conv.A.vectors", 0, NAN},
                 {"last.G.values", 0, NAN},
                 {"grouped[1].A.values", 0, -0.5},
                 {"rows[0].A.inverse", 2, NAN}};
    net n;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsc_kfac_options options = make_options(cases[i].method);
        dsc_kfac *kfac = create(comm, &n, &options);
        EXPECT_OK(run(kfac, &n, 0));
        image *im = save(kfac, &n);
        dsc_kfac_destroy(&kfac);
        int64_t at = find(im, cases[i].entry);
        EXPECT(at >= 0);
        if (at >= 0) {
            EXPECT(im->entries[at].optional);
            ((double *)im->data[at])[1] = cases[i].value;
            kfac = create(comm, &n, &options);
            dsc_status status = load(comm, kfac, &n, im, 1);
            EXPECT(status == DSC_E_INVALID || status == DSC_E_FORMAT || status == DSC_E_NUMERIC);
            dsc_kfac_destroy(&kfac);
        }
        drop(&im);
    }
    net_close(&n);
    all_fine(comm);
}

/* The same where they are stored in a half type, whichever number of them it is. */
static void test_damaged_half(void **state) {
    (void)state;
    const uint16_t nan = 0x7FC0;
    int damaged = 0;
    net n;
    net_open_share(&n, fast_queue, DSC_F32, shapes, LAYERS, SAMPLES, comm);
    dsc_kfac_options options = make_options(0);
    options.inverse_dtype = DSC_BF16;
    dsc_kfac *kfac = create(comm, &n, &options);
    EXPECT_OK(run(kfac, &n, 0));
    image *im = save(kfac, &n);
    dsc_kfac_destroy(&kfac);
    for (int64_t i = 0; i < im->count; i++) {
        uint16_t *last = (uint16_t *)im->data[i] + entry_bytes(&im->entries[i]) / sizeof *last - 1,
                 kept = *last;
        if (im->entries[i].dtype != DSC_BF16)
            continue;
        *last = nan;
        kfac = create(comm, &n, &options);
        EXPECT_FAILS(DSC_E_FORMAT, "1 of its numbers are not finite", load(comm, kfac, &n, im, 1));
        EXPECT(strstr(dsc_error_message(), im->names[i]) != NULL);
        dsc_kfac_destroy(&kfac);
        *last = kept;
        damaged++;
    }
    EXPECT(damaged > 0);
    drop(&im);
    net_close(&n);
    all_fine(comm);
}

static void test_misuse(void **state) {
    (void)state;
    net n;
    dsc_kfac_options options = make_options(0);
    double number = 0;
    net_open_share(&n, queue, DSC_F64, shapes, LAYERS, SAMPLES, comm);
    dsc_kfac *kfac = create(comm, &n, &options);
    void *host = rank == 0 ? &number : NULL;
    EXPECT_FAILS(DSC_E_INVALID, "", dsc_kfac_state_get(kfac, n.queue, -1, host));
    EXPECT_FAILS(DSC_E_INVALID, "", dsc_kfac_state_get(kfac, n.queue, dsc_kfac_state_count(kfac), host));
    EXPECT_FAILS(DSC_E_INVALID, "", dsc_kfac_state_set(kfac, n.queue, -1, host));
    EXPECT_FAILS(DSC_E_INVALID, "", dsc_kfac_state_set(kfac, n.queue, dsc_kfac_state_count(kfac), host));
    dsc_kfac_destroy(&kfac);
    net_close(&n);
    all_fine(comm);
}

static void open_devices(void) {
    host_device = chosen_open("ref", 1);
    device = chosen_open(chosen_exact_or("ref"), 1);
    assert_ok(dsc_queue_create(device, &queue));
    fast = chosen() ? device : chosen_open("cpu", 1);
    if (chosen())
        fast_queue = queue;
    else
        assert_ok(dsc_queue_create(fast, &fast_queue));
    if (chosen())
        assert_ok(dsc_comm_use_queue(comm, queue));
}

static int open_group(void **state) {
    (void)state;
    start_watchdog(WATCHDOG_S);
    assert_ok(dsc_comm_create(NULL, &comm));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    open_devices();
    silence_other_ranks(comm);
    return 0;
}

static int close_group(void **state) {
    (void)state;
    int leaked = dsc_device_bytes(device) != 0 || dsc_device_bytes(fast) != 0;
    dsc_comm_destroy(&comm);
    if (fast != device) {
        dsc_queue_destroy(&fast_queue);
        dsc_device_destroy(&fast);
    }
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    dsc_device_destroy(&host_device);
    return leaked;
}

int main(void) {
    chosen_or_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bit_equal),
        cmocka_unit_test(test_bit_equal_half),
        cmocka_unit_test(test_bit_equal_ekfac),
        cmocka_unit_test(test_bit_equal_damping),
        cmocka_unit_test(test_bit_equal_warmup),
        cmocka_unit_test(test_bit_equal_blocks),
        cmocka_unit_test(test_bit_equal_undecomposed),
        cmocka_unit_test(test_other_strategy),
        cmocka_unit_test(test_other_ranks),
        cmocka_unit_test(test_without_decompositions),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_damaged_half),
        cmocka_unit_test(test_damaged_decompositions),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests_name("kfac state", tests, open_group, close_group);
}

/* Several ranks with a net, for tests of K-FAC over ranks: configurations, and steps that are compared with a
 * naive run. */
#ifndef DSC_TESTS_KFAC_CREW_H
#define DSC_TESTS_KFAC_CREW_H

#include "chosen.h"
#include "comm/parallel.h"
#include "kfac/naive.h"

#include <float.h>
#include <math.h>

enum { LAYERS = 5, SAMPLES = 12, METHODS = 3, WATCHDOG_S = 280 };

static const net_shape shapes[LAYERS] = {
    {"first", DSC_KFAC_CONV2D, .in_c = 2, .out_c = 3, .bias = 1, .in_h = 4, .in_w = 4, .kernel_h = 3,
     .kernel_w = 3, .pad_h = 1, .pad_w = 1},
    {"grouped", DSC_KFAC_CONV2D, .in_c = 4, .out_c = 4, .in_h = 3, .in_w = 3, .kernel_h = 2, .kernel_w = 2,
     .stride_h = 2, .stride_w = 2, .pad_h = 1, .groups = 2},
    {"pointwise", DSC_KFAC_CONV2D, .in_c = 3, .out_c = 5, .bias = 1, .in_h = 2, .in_w = 2},
    {"rows", DSC_KFAC_LINEAR, .in_c = 4, .out_c = 9, .sequence = 2, .blocks = 3},
    {"last", DSC_KFAC_LINEAR, .in_c = 5, .out_c = 4, .bias = 1},
};

/* Device and type of a run: those below, or the device that the environment names in both types
 * (chosen.h). */
typedef struct place {
    const char *name;
    dsc_dtype dtype;
    double eps;
    dsc_device *device;
    dsc_queue *queue;
} place;

enum { REF, CPU, PLACES };
static place places[PLACES] = {{"ref", DSC_F64, DBL_EPSILON, NULL, NULL},
                               {"cpu", DSC_F32, (double)FLT_EPSILON, NULL, NULL}};

static dsc_comm *comm;
static dsc_device *host_device; /* for tensors in the test's own memory */
static int rank, ranks;
static net nets[PLACES];

/* Frequencies that give steps of all four kinds: with factors and decompositions, with one of them, with
 * neither. */
static inline dsc_kfac_options base_options(int method) {
    dsc_kfac_options options;
    dsc_kfac_options_init(&options);
    options.damping = 0.125;
    options.stat_decay = 0.5;
    options.kl_clip = 0.001;
    options.factor_freq = 2;
    options.update_freq = 3;
    options.method = method == 2 ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
    options.outer_product = method == 1;
    return options;
}

static inline net_step step_of(int64_t k) {
    return (net_step){.number = k, .lr = 0.5};
}

/* ---- configurations ---- */

/* How K-FAC is run; rows: the number of gradient workers of a layer. */
typedef struct config {
    dsc_kfac_strategy strategy;
    dsc_kfac_placement placement;
    int rows, colocate, symmetric, method;
    size_t bucket_bytes;
    int place;
    dsc_dtype factor_dtype, inverse_dtype;
} config;

static inline dsc_kfac_options options_of(const config *c) {
    dsc_kfac_options options = base_options(c->method);
    options.strategy = c->strategy;
    options.placement = c->placement;
    options.grad_worker_fraction = (double)c->rows / ranks;
    options.colocate_factors = c->colocate;
    options.symmetric = c->symmetric;
    options.bucket_bytes = c->bucket_bytes;
    options.factor_dtype = c->factor_dtype;
    options.inverse_dtype = c->inverse_dtype;
    return options;
}

static inline const char *text_of(const config *c) {
    static char text[200];
    snprintf(text, sizeof text,
             "%s, %s, %d of %d workers, %s, colocate %d, symmetric %d, method %d, buckets of %zu, %s/%s",
             places[c->place].name, dsc_kfac_strategy_name(c->strategy), c->rows, ranks,
             dsc_kfac_placement_name(c->placement), c->colocate, c->symmetric, c->method, c->bucket_bytes,
             dsc_dtype_name(c->factor_dtype), dsc_dtype_name(c->inverse_dtype));
    return text;
}

/* Remembers a failure of a configuration. */
static inline void expect(int fine, const config *c, int64_t step, const char *what) {
    if (fine)
        return;
    char line[400];
    snprintf(line, sizeof line, "rank %d, %s, step %d: %s", rank, text_of(c), (int)step, what);
    remember(__FILE__, __LINE__, line);
}

/* 1 when the gradients have the same bits on all ranks. Collective. */
static inline int ranks_agree(const net *n) {
    double low[400] = {0}, high[400];
    int64_t count = 0;
    for (int l = 0; l < n->count; l++) {
        assert_true(count + net_gradient_count(n, l) <= 400);
        net_read(n, l, low + count);
        count += net_gradient_count(n, l);
    }
    memcpy(high, low, sizeof high);
    dsc_tensor a = dsc_tensor_view(host_device, low, DSC_F64, 1, &count);
    dsc_tensor b = dsc_tensor_view(host_device, high, DSC_F64, 1, &count);
    EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_MIN, &a));
    EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_MAX, &b));
    return memcmp(low, high, (size_t)count * sizeof *low) == 0;
}

static inline dsc_kfac *create(const config *c, const dsc_kfac_options *options) {
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    net_describe(&nets[c->place], layers);
    EXPECT_OK(dsc_kfac_create(comm, places[c->place].queue, layers, LAYERS, options, &kfac));
    if (!kfac)
        expect(0, c, 0, "cannot be created");
    return kfac;
}

/* The extremes of the strategies, for tests that look at one property. */
static inline const config *some_configs(int *count) {
    static config list[4];
    list[0] = (config){.strategy = DSC_KFAC_COMM_OPT, .rows = ranks, .colocate = 0, .symmetric = 1};
    list[1] = (config){.strategy = DSC_KFAC_MEM_OPT, .rows = 1, .colocate = 1, .symmetric = 1};
    list[2] = (config){.strategy = DSC_KFAC_HYBRID_OPT,
                       .rows = ranks % 2 == 0 ? ranks / 2 : ranks,
                       .colocate = 1,
                       .symmetric = 0,
                       .method = 1};
    list[3] = (config){.strategy = DSC_KFAC_HYBRID_OPT,
                       .rows = ranks % 2 == 0 ? 2 : 1,
                       .colocate = 1,
                       .symmetric = 1,
                       .method = 2};
    for (int i = 0; i < 4; i++) {
        list[i].placement = DSC_KFAC_COMPUTE;
        list[i].bucket_bytes = 700;
    }
    *count = 4;
    return list;
}

/* Runs `steps` of a configuration beside a naive run of its own, under changed options. */
static inline void run_beside(const config *c, const dsc_kfac_options *options, const net_step *steps,
                              int count, double g_factor) {
    net *n = &nets[REF];
    double *want[NET_LAYERS];
    naive v;
    dsc_kfac *kfac = create(c, options);
    n->scaling = options->scaling;
    naive_open(&v, n, options);
    v.g_factor = g_factor;
    naive_gradients_open(n, want);
    for (int i = 0; kfac && i < count; i++) {
        naive_run(&v, n, &steps[i], HYPER(options), want);
        EXPECT_OK(net_run(n, kfac, &steps[i]));
        double excess = naive_excess(&v, want, options->damping, DBL_EPSILON);
        expect(excess <= 1, c, steps[i].number, "another gradient than one rank's");
        expect(ranks_agree(n), c, steps[i].number, "ranks differ");
    }
    n->scaling = DSC_KFAC_PAPER;
    naive_gradients_close(n, want);
    naive_close(&v);
    dsc_kfac_destroy(&kfac);
}

static inline void open_place(place *p) {
    p->name = chosen_exact_or(p->name);
    p->device = chosen() && p > places ? places->device : chosen_open(p->name, 1);
    if (p->device == places->device && p > places)
        p->queue = places->queue;
    else
        assert_ok(dsc_queue_create(p->device, &p->queue));
}

/* Communicator, devices and nets. Collective. */
static inline void crew_open(void) {
    start_watchdog(WATCHDOG_S);
    assert_ok(dsc_comm_create(NULL, &comm));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    host_device = chosen_open("ref", 1);
    for (int p = 0; p < PLACES; p++) {
        open_place(&places[p]);
        net_open_share(&nets[p], places[p].queue, places[p].dtype, shapes, LAYERS, SAMPLES, comm);
    }
    if (chosen())
        assert_ok(dsc_comm_use_queue(comm, places[REF].queue));
    silence_other_ranks(comm);
}

/* Frees everything; returns 1 when device memory is left. Collective. */
static inline int crew_close(void) {
    size_t left = dsc_device_bytes(host_device);
    dsc_comm_destroy(&comm);
    for (int p = PLACES - 1; p >= 0; p--) {
        net_close(&nets[p]);
        if (p > 0 && places[p].device == places->device)
            continue;
        left += dsc_device_bytes(places[p].device);
        dsc_queue_destroy(&places[p].queue);
        dsc_device_destroy(&places[p].device);
    }
    dsc_device_destroy(&host_device);
    return left != 0;
}

/* Group set-up and tear-down of programs that need nothing else. */
static inline int open_crew(void **state) {
    (void)state;
    crew_open();
    return 0;
}

static inline int close_crew(void **state) {
    (void)state;
    return crew_close();
}

#endif

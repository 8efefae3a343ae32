/* Ranks for tests of gossip: communicator, device and queue of a program, vectors with a copy on the host,
 * and a naive model that holds the values of all ranks and follows the graph's matrices in double. */
#ifndef DSC_TESTS_CONSENSUS_RANKS_H
#define DSC_TESTS_CONSENSUS_RANKS_H

#include "chosen.h"
#include "comm/parallel.h"

#include "base/memory.h"
#include "base/rng.h"
#include "consensus/average.h"
#include "descent/consensus.h"

#include <math.h>
#include <time.h>

enum { WATCHDOG_S = 240, MOST_RANKS = 8, MOST_LENGTH = 64 };

static dsc_comm *comm;
static dsc_device *device;
static dsc_queue *queue;
static int rank, ranks;

static inline int open_ranks(void **state) {
    (void)state;
    start_watchdog(WATCHDOG_S);
    assert_ok(dsc_comm_create(NULL, &comm));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    assert_true(ranks <= MOST_RANKS);
    device = chosen_open(chosen_or("ref"), 0);
    assert_ok(dsc_queue_create(device, &queue));
    assert_ok(dsc_comm_use_queue(comm, queue));
    silence_other_ranks(comm);
    return 0;
}

static inline int close_ranks(void **state) {
    (void)state;
    int leaked = dsc_device_bytes(device) != 0;
    dsc_comm_destroy(&comm);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return leaked;
}

static inline void push(dsc_tensor *t, const float *host) {
    EXPECT_OK(dsc_tensor_upload(queue, host, dsc_tensor_bytes(t), t));
    EXPECT_OK(dsc_queue_sync(queue));
}

static inline void pull(const dsc_tensor *t, float *host) {
    EXPECT_OK(dsc_tensor_download(queue, t, dsc_tensor_bytes(t), host));
    EXPECT_OK(dsc_queue_sync(queue));
}

/* The sum over all ranks. Collective. */
static inline double sum_of(double value) {
    const int64_t one = 1;
    dsc_tensor t = {0};
    assert_ok(dsc_tensor_alloc(device, DSC_F64, 1, &one, &t));
    EXPECT_OK(dsc_tensor_upload(queue, &value, sizeof value, &t));
    EXPECT_OK(dsc_queue_sync(queue));
    EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    EXPECT_OK(dsc_tensor_download(queue, &t, sizeof value, &value));
    EXPECT_OK(dsc_queue_sync(queue));
    dsc_tensor_free(&t);
    return value;
}

/* ---- the naive model ---- */

typedef struct model {
    int ranks, length;
    double x[MOST_RANKS][MOST_LENGTH], w[MOST_RANKS];
} model;

/* Small integers: each rank and element another one. */
static inline double first_value(int r, int i) {
    return (double)((7 * r + 3 * i) % 16 - 5);
}

static inline void model_start(model *m, int n, int length) {
    *m = (model){.ranks = n, .length = length};
    for (int r = 0; r < n; r++) {
        m->w[r] = 1;
        for (int i = 0; i < length; i++)
            m->x[r][i] = first_value(r, i);
    }
}

/* x <- W x, w <- W w with the matrix of a step. */
static inline void model_mix(model *m, const dsc_topology *topology, int64_t step) {
    model old = *m;
    dsc_edge edges[MOST_RANKS];
    memset(m->x, 0, sizeof m->x);
    memset(m->w, 0, sizeof m->w);
    for (int r = 0; r < m->ranks; r++) {
        double self;
        int count = dsc_topology_out(topology, r, step, edges, &self);
        for (int e = 0; e <= count; e++) {
            int to = e < count ? edges[e].rank : r;
            double share = e < count ? edges[e].share : self;
            m->w[to] += share * old.w[r];
            for (int i = 0; i < m->length; i++)
                m->x[to][i] += share * old.x[r][i];
        }
    }
}

static inline double model_mean(const model *m, int i) {
    double sum = 0;
    for (int r = 0; r < m->ranks; r++)
        sum += m->x[r][i];
    return sum / m->ranks;
}

/* Elements that are further away than `tolerance` from the model's values of rank r, divided by its weight
 * where debiased. */
static inline int differing(const model *m, int r, const float *host, int debiased, double tolerance) {
    int wrong = 0;
    for (int i = 0; i < m->length; i++)
        wrong += !(fabs(host[i] - m->x[r][i] / (debiased ? m->w[r] : 1)) <= tolerance);
    return wrong;
}

/* A graph that is not regular, in a file that all ranks name alike: rank 0 to everybody, then a ring in
 * unequal shares. Collective; needs three ranks. */
static inline void write_graph_file(char *path, size_t size) {
    snprintf(path, size, "/tmp/descent-test-%ld.graph", (long)getppid());
    if (rank == 0) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "ranks %d\nstep\n", ranks);
        for (int r = 1; r < ranks; r++)
            fprintf(file, "0 %d %.17g\n", r, 0.5 / (ranks - 1));
        fprintf(file, "step\n");
        for (int r = 0; r < ranks; r++)
            fprintf(file, "%d %d 0.25\n", r, (r + 1) % ranks);
        fclose(file);
    }
    EXPECT_OK(dsc_comm_barrier(comm));
}

/* By the one who writes the next one. */
static inline void remove_graph_file(const char *path) {
    if (rank == 0)
        remove(path);
}

/* ---- delays ---- */

static dsc_rng delay_rng;

static inline void delay_at_random(void) {
    uint32_t draw = dsc_rng_u32(&delay_rng);
    const struct timespec moment = {.tv_nsec = (long)(draw % 64) * 2000};
    if (draw >> 30 == 0)
        nanosleep(&moment, NULL);
}

static inline void start_delays(uint64_t seed) {
    delay_rng = dsc_rng_start(seed, DSC_RNG_TEST, (uint32_t)rank, 0);
    dsc_average_hook = delay_at_random;
}

static inline void stop_delays(void) {
    dsc_average_hook = NULL;
}

#endif

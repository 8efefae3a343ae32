/* Shared by the tests of training by gossip: the ranks, small runs, and checks of their results. */
#ifndef DSC_TESTS_TRAIN_TEST_GOSSIP_H
#define DSC_TESTS_TRAIN_TEST_GOSSIP_H

#include "chosen.h"
#include "comm/parallel.h"

#include "train/runs.h"
#include "train/safetensors.h"
#include "train/scratch.h"
#include "train/share.h"
#include "train/sync.h"
#include "train/trainer_internal.h"

#include <math.h>

enum { WATCHDOG_S = 240 };

static dsc_comm *comm, *alone; /* all ranks; this process by itself */
static dsc_device *device;
static dsc_queue *queue;
static int rank, ranks;
static char directory[SCRATCH_SIZE]; /* the same on every rank */

static inline const char *folder(const char *name, char path[SCRATCH_SIZE]) {
    snprintf(path, SCRATCH_SIZE, "%s", scratch_path(directory, name));
    return path;
}

typedef struct way {
    const char *name;
    dsc_consensus_kind kind;
    int64_t synch_freq;
    int exact; /* resumes bit for bit */
    const char *graph;
} way;

static const way ways[] = {
    {"sgp", DSC_CONSENSUS_SGP, 0, 1, NULL},       {"osgp", DSC_CONSENSUS_OSGP, 0, 1, NULL},
    {"dpsgd", DSC_CONSENSUS_DPSGD, 0, 1, NULL},   {"osgp-2", DSC_CONSENSUS_OSGP, 2, 0, NULL},
    {"adpsgd", DSC_CONSENSUS_ADPSGD, 0, 0, NULL},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

/* 1 when the algorithm works with this number of ranks: adpsgd pairs ranks, so it needs an even number. */
static inline int possible(const way *w) {
    return w->kind != DSC_CONSENSUS_ADPSGD || ranks % 2 == 0 || ranks == 1;
}

static inline void follow(const way *w, dsc_train_options *o) {
    consensus_of(o)->kind = w->kind;
    consensus_of(o)->synch_freq = w->synch_freq;
    consensus_of(o)->graph = w->graph;
}

/* lenet, batch 4, 4 steps an epoch, 2 epochs, no evaluation. */
static inline void gossip_options(dsc_train_options *o, const way *w, const char *out) {
    static char data[32];
    snprintf(data, sizeof data, "synthetic:%d", ranks * 4 * 4);
    runs_options(o, out);
    o->model = "lenet";
    o->data = data;
    o->batch_size = 4;
    o->eval_every = 0;
    follow(w, o);
}

/* A trainer that has done `steps` steps. Collective. */
static inline dsc_trainer *stepped(dsc_comm *with, const dsc_train_options *o, int steps) {
    dsc_trainer *t = NULL;
    EXPECT_OK(dsc_trainer_create_named(with, device, o, &t));
    EXPECT_OK(dsc_trainer_begin(t));
    for (int i = 0; t && i < steps; i++) {
        EXPECT_OK(dsc_trainer_step(t, NULL));
        if (dsc_trainer_epoch_done(t)) {
            t->state.epoch++;
            t->state.position = 0;
        }
    }
    EXPECT_OK(dsc_trainer_collect(t));
    if (!t->collective)
        EXPECT_OK(dsc_sync_synchronise(t));
    return t;
}

/* |a - b| / |b - start|, over all parameters. */
static inline double apart(const dsc_trainer *a, const dsc_trainer *b, const dsc_trainer *start) {
    dsc_tensor ta = dsc_model_values(a->model), tb = dsc_model_values(b->model),
               t0 = dsc_model_values(start->model);
    float *x = runs_read(a->queue, &ta), *y = runs_read(b->queue, &tb), *z = runs_read(start->queue, &t0);
    double between = 0, travelled = 0;
    for (int64_t i = 0; i < dsc_tensor_count(&ta); i++) {
        between += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        travelled += ((double)y[i] - z[i]) * ((double)y[i] - z[i]);
    }
    free(x);
    free(y);
    free(z);
    return sqrt(between / travelled);
}

static inline double number(json_t *line, const char *key) {
    json_t *value = json_object_get(line, key);
    EXPECT(json_is_number(value));
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static inline void open_all(void) {
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.thread_multiple = 1;
    assert_ok(dsc_comm_create(&options, &comm));
    runs_open_exact(&alone, &device);
    assert_ok(dsc_queue_create(device, &queue));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    if (rank == 0)
        scratch_make(directory);
    assert_ok(dsc_comm_use_queue(comm, queue));
    assert_ok(dsc_share_bytes(comm, queue, directory, sizeof directory));
    silence_other_ranks(comm);
}

static inline void close_all(void) {
    if (rank == 0)
        scratch_remove(directory);
    dsc_comm_destroy(&alone);
    dsc_comm_destroy(&comm);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
}

#endif

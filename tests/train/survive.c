/* For survive.sh: ranks at different steps continue together, as after the loss of another rank. Every rank whose
 * checks have passed says so on stdout. MPI is not finalised, because that would wait for the lost rank. */
#include "train/survive.h"
#include "base/error.h"
#include "train/sync.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int rank;

static void quit(const char *what) {
    fprintf(stderr, "rank %d: not so: %s: %s\n", rank, what, dsc_error_message());
    fflush(stderr);
    _exit(1);
}

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            quit(#condition);                                                                                \
    } while (0)

static dsc_train_options options_of_run(void) {
    static dsc_consensus_options consensus;
    static dsc_kfac_options kfac;
    dsc_train_options o;
    dsc_train_options_init(&o);
    dsc_consensus_options_init(&consensus);
    dsc_kfac_options_init(&kfac);
    o.consensus = &consensus;
    o.kfac = &kfac;
    o.model = "mlp";
    o.data = "synthetic:256";
    o.batch_size = 4;
    o.eval_every = 0;
    consensus.kind = DSC_CONSENSUS_SGP;
    consensus.peer_timeout = 60; /* a decomposition takes seconds on a busy machine */
    o.on_peer_loss = DSC_PEER_LOSS_CONTINUE;
    kfac.update_freq = 3;
    o.kfac_scope = DSC_SCOPE_GOSSIP;
    return o;
}

static int64_t kfac_step_entry(const dsc_kfac *kfac) {
    int64_t i = 0;
    while (strcmp(dsc_kfac_state_entries(kfac)[i].name, "step") != 0)
        i++;
    return i;
}

/* Moves the ranks apart: rank r has done 2 r steps more than rank 0, and K-FAC began one step later. Rank 0 believes
 * that the metrics of another rank have failed. */
static void part(dsc_trainer *t) {
    int64_t step = 10 + 2 * rank, kfac_step = step - 1;
    t->state.step = step;
    t->state.position = step * t->step_images;
    CHECK(dsc_kfac_state_set(t->kfac, t->queue, kfac_step_entry(t->kfac), &kfac_step) == DSC_OK);
    t->agreed.failed = rank == 0;
}

static void check_together(dsc_trainer *t, int ranks) {
    int64_t step = 10 + 2 * (ranks - 1), kfac_step = 0;
    CHECK(t->ranks == ranks && t->state.step == step && t->state.position == step * t->step_images);
    CHECK(dsc_kfac_state_get(t->kfac, t->queue, kfac_step_entry(t->kfac), &kfac_step) == DSC_OK);
    CHECK(kfac_step == step - 1);
    CHECK(t->agreed.failed == 0 && t->agreed.stop == 0 && t->alone == 0);
}

int main(void) {
    dsc_comm_options comm_options;
    dsc_device_options device_options;
    const dsc_train_options options = options_of_run();
    dsc_comm *comm = NULL;
    dsc_device *device = NULL;
    dsc_trainer *t = NULL;
    dsc_comm_options_init(&comm_options);
    comm_options.survive = 1;
    CHECK(dsc_comm_create(&comm_options, &comm) == DSC_OK);
    rank = dsc_comm_rank(comm);
    int ranks = dsc_comm_size(comm);
    dsc_device_options_init(&device_options);
    device_options.threads = 1;
    CHECK(dsc_device_create(&device_options, &device) == DSC_OK);
    CHECK(dsc_trainer_create_named(comm, device, &options, &t) == DSC_OK);
    CHECK(dsc_trainer_begin(t) == DSC_OK);
    part(t);
    CHECK(dsc_survive(t) == DSC_OK);
    check_together(t, ranks);
    for (int i = 0; i < 3; i++)
        CHECK(dsc_trainer_step(t, NULL) == DSC_OK);
    CHECK(dsc_trainer_collect(t) == DSC_OK && dsc_sync_synchronise(t) == DSC_OK);
    printf("rank %d fine\n", rank);
    fflush(stdout);
    _exit(0);
}

/* Trains your own network on your own data with K-FAC and gossip, with checkpoints and resume:
 *
 *   own_net [EPOCHS]          or, on four ranks, mpirun -n 4 own_net 20
 *
 * The data are points on three spiral arms, computed by a function; the net is three linear layers. The run
 * writes its metrics and checkpoints into own_net_run. Started again, it continues from there, so
 * `own_net 10` followed by `own_net 20` gives the same bits as `own_net 20` alone. */
#include <descent/descent.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ARMS = 3, POINTS = 6000 };

static dsc_comm *comm;

/* If a call has failed, prints why and ends the whole job, so that no other rank waits for this one. */
static void check(dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "own_net: %s\n", dsc_error_message());
    dsc_comm_abort(comm, 1);
}

/* Computes point `index` of the spirals: a pure function, because threads ask for points in any order, repeatedly. */
static dsc_status sample(void *context, int64_t index, int augment, int64_t epoch, float *x, int32_t *label) {
    double along = fmod((double)(index + *(int64_t *)context) * 0.6180339887, 1),
           noise = sin(991.0 * (double)index);
    double angle = 4 * along + 2 * 3.14159265 / ARMS * (double)(index % ARMS) + 0.15 * noise;
    (void)augment, (void)epoch;
    x[0] = (float)(2 * along * cos(angle));
    x[1] = (float)(2 * along * sin(angle));
    *label = (int32_t)(index % ARMS);
    return DSC_OK;
}

static dsc_dataset *open_data(int64_t count, int64_t *first) {
    dsc_callback_data data;
    dsc_dataset *set;
    dsc_callback_data_init(&data);
    data.name = "spirals";
    data.count = count;
    data.h = data.w = 1;
    data.c = 2;
    data.classes = ARMS;
    data.sample = sample;
    data.context = first;
    check(dsc_dataset_from_callback(&data, &set));
    return set;
}

static dsc_model *build(dsc_device *device) {
    dsc_model *m;
    dsc_value x;
    check(dsc_model_create(device, NULL, &m));
    check(dsc_model_input(m, 1, 1, 2, &x));
    check(dsc_model_flatten(m, x, &x));
    check(dsc_model_linear(m, "hidden1", x, 64, 1, &x));
    check(dsc_model_relu(m, x, &x));
    check(dsc_model_linear(m, "hidden2", x, 64, 1, &x));
    check(dsc_model_relu(m, x, &x));
    check(dsc_model_linear(m, "output", x, ARMS, 1, &x));
    check(dsc_model_seal(m, x));
    return m;
}

int main(int argc, char **argv) {
    int64_t first_train = 0, first_val = POINTS;
    check(dsc_comm_create(NULL, &comm)); /* MPI under a launcher, a single process without one */
    dsc_device *device;
    check(dsc_device_create(NULL, &device));
    dsc_dataset *train = open_data(POINTS, &first_train), *val = open_data(POINTS / 6, &first_val);
    dsc_model *model = build(device);

    dsc_consensus_options gossip;
    dsc_consensus_options_init(&gossip);
    gossip.kind = DSC_CONSENSUS_SGP;
    dsc_kfac_options kfac;
    dsc_kfac_options_init(&kfac); /* factors in every step, decompositions in every tenth */
    dsc_train_options options;
    dsc_train_options_init(&options);
    options.epochs = argc > 1 ? strtol(argv[1], NULL, 10) : 10;
    options.batch_size = 100;
    options.lr = 0.02;
    options.consensus = &gossip;
    options.kfac = &kfac;
    options.out = "own_net_run";
    options.resume = "auto"; /* continues from the last checkpoint, if there is one */

    dsc_trainer *trainer;
    dsc_train_result result = {.size = sizeof result};
    check(dsc_trainer_create(comm, device, model, train, val, &options, &trainer));
    check(dsc_trainer_run(trainer, &result));
    if (dsc_comm_rank(comm) == 0)
        printf("%lld epochs, %lld steps: training loss %.4f, validation loss %.4f, accuracy %.1f %%\n",
               (long long)result.epochs, (long long)result.steps, result.train_loss, result.val_loss,
               100 * result.top1);

    dsc_trainer_destroy(&trainer);
    dsc_model_destroy(&model);
    dsc_dataset_close(&val);
    dsc_dataset_close(&train);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}

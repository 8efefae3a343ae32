/* Builds a small network, trains and evaluates it on all ranks, through descent's public headers only:
 *
 *   train_small [DATA [EPOCHS]]       or, on four ranks, mpirun -n 4 train_small cifar10:DIR 10
 *
 * Every rank takes its part of each batch; gradients are averaged while the backward pass still runs. */
#include <descent/descent.h>

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 32 }; /* on every rank */

static dsc_comm *comm;           /* the ranks */
static dsc_device *device;       /* where memory lives and work runs */
static dsc_queue *queue;         /* what it works through, in order */
static dsc_model *model;         /* layers, parameters, gradients */
static dsc_consensus *consensus; /* how the ranks' parameters stay equal */
static dsc_optim *optim;

/* A failing rank says why and ends the whole job, so that no other rank waits for it. */
static void check(dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "train_small: %s\n", dsc_error_message());
    dsc_comm_abort(comm, 1);
}

/* Four times convolution, batch norm, ReLU and pooling; then a linear layer on the mean over the image. */
static void build(dsc_dataset_info info) {
    static const char *const names[][2] = {
        {"conv1", "bn1"}, {"conv2", "bn2"}, {"conv3", "bn3"}, {"conv4", "bn4"}};
    dsc_conv2d_shape conv;
    dsc_conv2d_shape_init(&conv);
    conv.kernel_h = conv.kernel_w = 3;
    conv.pad_h = conv.pad_w = 1;
    dsc_value x;
    check(dsc_model_create(device, NULL, &model));
    check(dsc_model_input(model, info.h, info.w, info.c, &x));
    for (int i = 0; i < 4; i++) {
        conv.out_c = 16 << i;
        check(dsc_model_conv2d(model, names[i][0], x, &conv, 0, &x));
        check(dsc_model_batch_norm(model, names[i][1], x, &x));
        check(dsc_model_relu(model, x, &x));
        check(dsc_model_max_pool(model, x, 2, 2, 0, &x));
    }
    check(dsc_model_global_pool(model, x, &x));
    check(dsc_model_linear(model, "linear", x, info.classes, 1, &x));
    check(dsc_model_seal(model, x));
}

/* What the backward pass calls back. */
static dsc_status grad_ready(void *context, dsc_queue *q, int64_t param) {
    return dsc_consensus_grad_ready(context, q, param);
}

/* One pass over a data set, training when there is a schedule; prints means over all ranks. */
static void run_epoch(const dsc_schedule *schedule, int epoch, dsc_loader *loader, dsc_exec *exec) {
    dsc_backward_options backward;
    dsc_backward_options_init(&backward);
    backward.context = consensus;
    backward.grad_ready = grad_ready;
    for (int64_t i = 0, batches = dsc_loader_batches(loader); i < batches; i++) {
        dsc_batch batch;
        check(dsc_loader_next(loader, queue, &batch));
        if (schedule)
            check(dsc_consensus_before_forward(consensus, queue));
        check(dsc_exec_forward(exec, queue, &batch.x));
        check(dsc_exec_loss(exec, queue, &batch.labels, 1.0 / BATCH));
        if (schedule) {
            const dsc_tensor *read; /* NULL with all-reduce; gossip's weight decay reads other values */
            check(dsc_exec_backward(exec, queue, &backward));
            check(dsc_consensus_after_backward(consensus, queue)); /* gradients are the ranks' mean now */
            check(dsc_consensus_update_begin(consensus, queue, &read));
            check(dsc_optim_step(optim, queue, dsc_schedule_rate(schedule, epoch * batches + i), read));
            check(dsc_consensus_update_end(consensus, queue));
        }
    }
    dsc_tensor stats = *dsc_exec_stats(exec);
    double sums[4]; /* of losses, correct answers, correct within five, samples */
    check(dsc_queue_sync(queue));
    check(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &stats));
    check(dsc_tensor_download(queue, &stats, sizeof sums, sums));
    check(dsc_exec_clear_stats(exec, queue));
    check(dsc_queue_sync(queue));
    if (dsc_comm_rank(comm) == 0)
        printf("epoch %d  %s  loss %.3f  accuracy %.1f %%\n", epoch + 1,
               schedule ? "training  " : "validation", sums[0] / sums[3], 100 * sums[1] / sums[3]);
}

/* A whole number from 1 on; 0 for anything else. */
static int read_count(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value > 0 && value <= 1000000 ? (int)value : 0;
}

int main(int argc, char **argv) {
    const char *spec = argc > 1 ? argv[1] : "synthetic:4000";
    dsc_schedule schedule = {.kind = DSC_SCHEDULE_COSINE, .target = 0.003};
    schedule.epochs = argc > 2 ? read_count(argv[2]) : 8;
    if (argc > 3 || schedule.epochs == 0) {
        fprintf(stderr, "usage: train_small [DATA [EPOCHS]], EPOCHS from 1 to 1000000\n");
        return 2;
    }

    check(dsc_comm_create(NULL, &comm)); /* MPI under a launcher, one process without */
    dsc_device_options device_options;
    dsc_device_options_init(&device_options);
    device_options.threads = dsc_comm_threads(comm);
    check(dsc_device_create(&device_options, &device));
    check(dsc_queue_create(device, &queue));

    dsc_dataset *data[2]; /* training, validation */
    dsc_loader *loader[2];
    dsc_exec *exec[2];
    check(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &data[0]));
    check(dsc_dataset_open(spec, DSC_SPLIT_VAL, NULL, &data[1]));
    build(dsc_dataset_get_info(data[0]));
    for (int val = 0; val < 2; val++) {
        dsc_loader_options options;
        dsc_loader_options_init(&options);
        options.batch = BATCH;
        options.rank = dsc_comm_rank(comm);
        options.ranks = dsc_comm_size(comm);
        options.shuffle = options.augment = !val;
        options.keep_last = val; /* every validation image counts, once */
        check(dsc_loader_create(data[val], device, &options, &loader[val]));
        check(dsc_exec_create(model, val ? DSC_EXEC_EVAL : DSC_EXEC_TRAIN, BATCH, &exec[val]));
    }
    const dsc_param *params = dsc_model_params(model);
    int64_t count = dsc_model_param_count(model);
    check(dsc_consensus_create(comm, queue, params, count, NULL, &consensus)); /* all-reduce */
    dsc_optim_options optim_options;
    dsc_optim_options_init(&optim_options);
    optim_options.kind = DSC_ADAMW;
    check(dsc_optim_create(queue, params, count, &optim_options, &optim));

    schedule.steps_per_epoch = dsc_loader_batches(loader[0]);
    check(dsc_consensus_start(consensus)); /* everybody begins with rank 0's weights */
    for (int epoch = 0; epoch < schedule.epochs; epoch++) {
        run_epoch(&schedule, epoch, loader[0], exec[0]);
        run_epoch(NULL, epoch, loader[1], exec[1]);
    }
    check(dsc_consensus_check(consensus, queue)); /* and still has the same ones */

    dsc_optim_destroy(&optim);
    dsc_consensus_destroy(&consensus);
    for (int i = 0; i < 2; i++) {
        dsc_exec_destroy(&exec[i]);
        dsc_loader_destroy(&loader[i]);
        dsc_dataset_close(&data[i]);
    }
    dsc_model_destroy(&model);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}

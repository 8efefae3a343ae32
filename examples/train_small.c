/* Builds a small convolutional network, trains and evaluates it on all ranks, through descent's public headers
 * only:
 *
 *   train_small [DATA [EPOCHS]]       or, on four ranks, mpirun -n 4 train_small cifar10:DIR 10
 *
 * Every rank takes its part of each batch; gradients are averaged while the backward pass is still running. */
#include <descent/descent.h>

#include <stdio.h>
#include <stdlib.h>

static dsc_comm *comm;     /* the ranks */
static dsc_device *device; /* where memory lives and work runs */

/* If a call has failed, prints why and ends the whole job, so that no other rank waits for this one. */
static void check(dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "train_small: %s\n", dsc_error_message());
    dsc_comm_abort(comm, 1);
}

/* Builds the network: four times convolution, batch norm, ReLU and pooling; then a linear layer on the mean over the
 * image. */
static dsc_model *build(dsc_dataset_info info) {
    static const char *const names[][2] = {
        {"conv1", "bn1"}, {"conv2", "bn2"}, {"conv3", "bn3"}, {"conv4", "bn4"}};
    dsc_model *model;
    dsc_conv2d_shape conv;
    dsc_value x;
    dsc_conv2d_shape_init(&conv);
    conv.kernel_h = conv.kernel_w = 3;
    conv.pad_h = conv.pad_w = 1;
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
    return model;
}

/* Called on rank 0 to report the progress of the training. */
static void print_progress(void *context, const dsc_progress *p) {
    (void)context;
    if (p->kind == DSC_EVENT_EPOCH)
        printf("epoch %lld  training    loss %.3f\n", (long long)p->epoch + 1, p->loss);
    if (p->kind == DSC_EVENT_EVAL)
        printf("epoch %lld  validation  loss %.3f  accuracy %.1f %%\n", (long long)p->epoch + 1, p->loss,
               100 * p->top1);
}

int main(int argc, char **argv) {
    const char *spec = argc > 1 ? argv[1] : "synthetic:4000";
    char *end = "";
    long epochs = argc > 2 ? strtol(argv[2], &end, 10) : 8;
    if (argc > 3 || *end || epochs < 1 || epochs > 1000000) {
        fprintf(stderr, "usage: train_small [DATA [EPOCHS]], EPOCHS from 1 to 1000000\n");
        return 2;
    }
    check(dsc_comm_create(NULL, &comm)); /* MPI under a launcher, a single process without one */
    dsc_device_options device_options;
    dsc_device_options_init(&device_options);
    device_options.threads = dsc_comm_threads(comm);
    check(dsc_device_create(&device_options, &device));

    dsc_dataset *train, *val;
    check(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, NULL, &train));
    check(dsc_dataset_open(spec, DSC_SPLIT_VAL, NULL, &val));
    dsc_model *model = build(dsc_dataset_get_info(train));

    dsc_optim_options optim;
    dsc_optim_options_init(&optim);
    optim.kind = DSC_ADAMW;
    dsc_train_options options;
    dsc_train_options_init(&options);
    options.epochs = epochs;
    options.batch_size = 32; /* on every rank */
    options.optim = &optim;
    options.lr = 0.003;
    options.lr_scaling = 0;
    options.lr_schedule = DSC_SCHEDULE_COSINE;
    options.warmup_epochs = 0;
    options.progress = print_progress;

    dsc_trainer *trainer;
    check(dsc_trainer_create(comm, device, model, train, val, &options, &trainer));
    check(dsc_trainer_run(trainer, NULL));

    dsc_trainer_destroy(&trainer);
    dsc_model_destroy(&model);
    dsc_dataset_close(&val);
    dsc_dataset_close(&train);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}

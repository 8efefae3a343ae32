/* A program of the first version of this soname: it uses every struct that starts with its size, and checks what
 * the library makes of it. Compiled with headers/, it must work with every later library of the same soname.
 *
 *   program DIRECTORY     a directory for a training run; it is created
 *
 * Every such struct has guard bytes after it, which the library must not touch, and is set before its
 * initialiser is called: a default that is not written shows. */
#include <descent/descent.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, PATTERN = 0xA5 };

static int failures;

static void complain(int line, const char *what) {
    fprintf(stderr, "program.c:%d: %s\n", line, what);
    failures++;
}

static int guard_is_whole(const unsigned char *guard) {
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != PATTERN)
            return 0;
    return 1;
}

/* A struct of type T named `name`, filled with the pattern and followed by guard bytes. */
#define GUARDED(T, name)                                                                                     \
    struct {                                                                                                 \
        T o;                                                                                                 \
        unsigned char guard[GUARD];                                                                          \
    } name;                                                                                                  \
    memset(&name, PATTERN, sizeof name)
#define CHECK(condition)                                                                                     \
    do                                                                                                       \
        if (!(condition))                                                                                    \
            complain(__LINE__, #condition " does not hold");                                                 \
    while (0)
#define WHOLE(name) CHECK((name).o.size == sizeof(name).o && guard_is_whole((name).guard))
/* Without the object that a call should have made nothing else can be checked. */
#define MUST(call)                                                                                           \
    do                                                                                                       \
        if ((call) != DSC_OK) {                                                                              \
            fprintf(stderr, "program.c:%d: " #call ": %s\n", __LINE__, dsc_error_message());                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    while (0)

static dsc_device *device;
static dsc_queue *queue;
static dsc_comm *comm;

static dsc_tensor vector(float *data, int64_t count) {
    return dsc_tensor_view(device, data, DSC_F32, 1, &count);
}

/* ---- device, communicator, buckets ---- */

static void open_device(void) {
    GUARDED(dsc_device_options, options);
    dsc_device_options_init(&options.o);
    WHOLE(options);
    CHECK(strcmp(options.o.name, "auto") == 0 && options.o.threads == 0 && options.o.ordinal == 0);
    CHECK(options.o.tune == 0);
    options.o.name = "cpu";
    options.o.threads = 1;
    options.o.tune = 1; /* which a CPU does not look at */
    MUST(dsc_device_create(&options.o, &device));
    CHECK(strcmp(dsc_device_name(device), "cpu") == 0 && dsc_device_threads(device) == 1);
    options.o.name = "no such device";
    dsc_device *none = NULL;
    CHECK(dsc_device_create(&options.o, &none) == DSC_E_INVALID);
    WHOLE(options);
    MUST(dsc_queue_create(device, &queue));
}

static void open_comm(void) {
    GUARDED(dsc_comm_options, options);
    dsc_comm_options_init(&options.o);
    WHOLE(options);
    CHECK(strcmp(options.o.kind, "auto") == 0 && options.o.thread_multiple == 0);
    CHECK(options.o.message_limit == 0 && options.o.survive == 0);
    options.o.kind = "self";
    options.o.message_limit = -1;
    CHECK(dsc_comm_create(&options.o, &comm) == DSC_E_INVALID);
    options.o.message_limit = 1000;
    options.o.survive = 1;
    MUST(dsc_comm_create(&options.o, &comm));
    WHOLE(options);
    CHECK(strcmp(dsc_comm_name(comm), "self") == 0 && dsc_comm_size(comm) == 1);
}

static void use_buckets(void) {
    float data[3][16] = {{1}, {2}, {3}};
    dsc_tensor tensors[3] = {vector(data[0], 16), vector(data[1], 16), vector(data[2], 16)};
    const int roots[3] = {0, 0, 7}; /* the last rank does not exist */
    dsc_buckets *buckets = NULL;
    GUARDED(dsc_bucket_options, options);
    dsc_bucket_options_init(&options.o);
    WHOLE(options);
    CHECK(options.o.bytes == 4 << 20 && options.o.wire == DSC_F32 && options.o.divide_first == 0);
    CHECK(options.o.traffic == DSC_TRAFFIC_GRADIENTS && options.o.roots == NULL);
    options.o.bytes = 64;
    options.o.roots = roots;
    CHECK(dsc_buckets_create(comm, queue, tensors, 3, &options.o, &buckets) == DSC_E_INVALID);
    options.o.roots = NULL;
    MUST(dsc_buckets_create(comm, queue, tensors, 3, &options.o, &buckets));
    WHOLE(options);
    CHECK(dsc_buckets_count(buckets) == 3);
    for (int i = 0; i < 3; i++)
        MUST(dsc_buckets_ready(buckets, i));
    MUST(dsc_buckets_wait(buckets));
    CHECK(data[1][0] == 2);
    dsc_buckets_destroy(&buckets);
}

/* ---- graphs and averages ---- */

static void use_topology(void) {
    GUARDED(dsc_topology_options, options);
    dsc_topology *topology = NULL;
    dsc_topology_options_init(&options.o);
    WHOLE(options);
    CHECK(options.o.peers == 1);
    options.o.peers = 2;
    MUST(dsc_topology_create("exponential", 8, &options.o, &topology));
    WHOLE(options);
    CHECK(dsc_topology_most_peers(topology) == 2 && dsc_topology_ranks(topology) == 8);
    dsc_topology_destroy(&topology);
}

/* A graph of the program's own: a ring. */
static dsc_status ring_period(void *context, int ranks, int peers, int64_t *period) {
    (void)ranks, (void)peers;
    *period = *(const int *)context;
    return DSC_OK;
}

static dsc_status ring_out(void *context, int ranks, int peers, int64_t step, int rank, dsc_edge *edges,
                           int *count) {
    (void)context, (void)peers, (void)step;
    edges[0].rank = (rank + 1) % ranks;
    *count = 1;
    return DSC_OK;
}

static void register_graph(void) {
    static int period = 1;
    dsc_topology *topology = NULL;
    GUARDED(dsc_topology_def, def);
    dsc_topology_def_init(&def.o);
    WHOLE(def);
    CHECK(def.o.name == NULL && def.o.period == NULL && def.o.out == NULL);
    def.o.name = "one-way";
    def.o.context = &period;
    def.o.period = ring_period;
    CHECK(dsc_topology_register(&def.o) == DSC_E_INVALID);
    def.o.out = ring_out;
    MUST(dsc_topology_register(&def.o));
    WHOLE(def);
    MUST(dsc_topology_create("one-way", 5, NULL, &topology));
    CHECK(dsc_topology_period(topology) == 1 && dsc_topology_is_regular(topology) == 1);
    dsc_topology_destroy(&topology);
}

static void use_average(void) {
    float data[4] = {1, 2, 3, 4};
    dsc_tensor tensor = vector(data, 4);
    dsc_average *average = NULL;
    GUARDED(dsc_average_options, options);
    dsc_average_options_init(&options.o);
    WHOLE(options);
    CHECK(options.o.graph == NULL && options.o.peers == 1 && options.o.pairwise == 0);
    CHECK(options.o.bucket_bytes == 4 << 20 && options.o.wire == DSC_F32 && options.o.timeout == 0);
    CHECK(options.o.traffic == DSC_TRAFFIC_PARAMETERS);
    options.o.timeout = -1;
    CHECK(dsc_average_create(comm, queue, &tensor, 1, &options.o, &average) == DSC_E_INVALID);
    options.o.timeout = 5;
    MUST(dsc_average_create(comm, queue, &tensor, 1, &options.o, &average));
    WHOLE(options);
    MUST(dsc_average_begin(average, queue));
    MUST(dsc_average_end(average, queue));
    MUST(dsc_average_settle(average, queue));
    CHECK(data[3] == 4 && dsc_average_weight(average) == 1 && dsc_average_rounds(average) == 1);
    dsc_average_destroy(&average);
}

/* ---- optimiser and consensus: one step of Adam, whose first step is lr wide ---- */

static void use_optim(void) {
    float value[2] = {1, 2}, grad[2] = {3, -4};
    dsc_param param = {"w", vector(value, 2), vector(grad, 2)};
    const dsc_tensor *read = NULL;
    dsc_consensus *consensus = NULL;
    dsc_optim *optim = NULL;
    GUARDED(dsc_consensus_options, agree);
    GUARDED(dsc_optim_options, options);
    dsc_consensus_options_init(&agree.o);
    dsc_optim_options_init(&options.o);
    WHOLE(agree);
    WHOLE(options);
    CHECK(agree.o.kind == DSC_CONSENSUS_ALLREDUCE && agree.o.bucket_bytes == 4 << 20 && agree.o.peers == 1);
    CHECK(agree.o.group == 1 && agree.o.slow_rate == 1 && agree.o.peer_timeout == 0);
    CHECK(options.o.kind == DSC_SGD && options.o.momentum == 0.9 && options.o.weight_decay == 5e-4);
    CHECK(options.o.beta2 == 0.999 && options.o.eps < 0 && options.o.trust == 0.001);
    CHECK(options.o.clip_norm == 0);
    agree.o.peer_timeout = -1;
    CHECK(dsc_consensus_create(comm, queue, &param, 1, &agree.o, &consensus) == DSC_E_INVALID);
    agree.o.peer_timeout = 0;
    options.o.kind = DSC_ADAM;
    options.o.weight_decay = 0;
    options.o.clip_norm = 2.5; /* of 5: gradients are halved */
    MUST(dsc_consensus_create(comm, queue, &param, 1, &agree.o, &consensus));
    MUST(dsc_optim_create(queue, &param, 1, &options.o, &optim));
    WHOLE(agree);
    WHOLE(options);
    MUST(dsc_consensus_start(consensus));
    MUST(dsc_consensus_before_forward(consensus, queue));
    MUST(dsc_consensus_grad_ready(consensus, queue, 0));
    MUST(dsc_consensus_after_backward(consensus, queue));
    MUST(dsc_consensus_update_begin(consensus, queue, &read));
    MUST(dsc_optim_step(optim, queue, 0.125, read));
    MUST(dsc_consensus_update_end(consensus, queue));
    MUST(dsc_queue_sync(queue));
    CHECK(fabsf(value[0] - 0.875f) < 1e-5f && fabsf(value[1] - 2.125f) < 1e-5f);
    CHECK(fabsf(grad[0] - 1.5f) < 1e-5f && fabsf(grad[1] + 2) < 1e-5f);
    dsc_optim_destroy(&optim);
    dsc_consensus_destroy(&consensus);
}

/* ---- K-FAC: an array of two equal layers, one sample; eigenvalues are known ---- */

static void use_kfac(void) {
    float a[2] = {2, 0}, g[2] = {0, 1}, grad[2][4] = {{0, 0, 2, 0}, {0, 0, 1, 0}};
    const int64_t row[2] = {1, 2}, square[2] = {2, 2};
    dsc_tensor ta = dsc_tensor_view(device, a, DSC_F32, 2, row);
    dsc_tensor tg = dsc_tensor_view(device, g, DSC_F32, 2, row);
    struct {
        dsc_kfac_layer o[2];
        unsigned char guard[GUARD];
    } layers;
    dsc_kfac *kfac = NULL;
    dsc_kfac_plan *plan = NULL;
    GUARDED(dsc_kfac_options, options);
    memset(&layers, PATTERN, sizeof layers);
    for (int i = 0; i < 2; i++) {
        dsc_kfac_layer_init(&layers.o[i]);
        CHECK(layers.o[i].size == sizeof layers.o[i] && layers.o[i].bias_grad.data == NULL);
        layers.o[i].name = i ? "second" : "first";
        layers.o[i].kind = DSC_KFAC_LINEAR;
        layers.o[i].in_c = layers.o[i].out_c = 2;
        layers.o[i].weight_grad = dsc_tensor_view(device, grad[i], DSC_F32, 2, square);
    }
    CHECK(guard_is_whole(layers.guard));
    dsc_kfac_options_init(&options.o);
    WHOLE(options);
    CHECK(options.o.damping == 0.003 && options.o.stat_decay == 0.95 && options.o.kl_clip == 0.001);
    CHECK(options.o.factor_freq == 1 && options.o.update_freq == 10 && options.o.passes == 1);
    CHECK(options.o.symmetric == 1 && options.o.bucket_bytes == 4 << 20 && options.o.late_factors == 0);
    options.o.damping = options.o.stat_decay = 0.5;
    options.o.kl_clip = 0;
    options.o.update_freq = 1;
    options.o.passes = 0;
    CHECK(dsc_kfac_create(comm, queue, layers.o, 2, &options.o, &kfac) == DSC_E_INVALID);
    options.o.passes = 1;
    options.o.late_factors = 1;
    MUST(dsc_kfac_plan_create(layers.o, 2, 2, &options.o, 1, &plan));
    CHECK(dsc_kfac_plan_unit_count(plan) == 2 && strcmp(dsc_kfac_plan_units(plan)[1].name, "second") == 0);
    dsc_kfac_plan_destroy(&plan);
    MUST(dsc_kfac_create(comm, queue, layers.o, 2, &options.o, &kfac));
    WHOLE(options);
    CHECK(guard_is_whole(layers.guard));
    MUST(dsc_kfac_begin(kfac, 1));
    MUST(dsc_kfac_capture(kfac, queue, 1, &ta, &tg));
    MUST(dsc_kfac_capture(kfac, queue, 0, &ta, &tg));
    MUST(dsc_kfac_step(kfac, queue, 1));
    MUST(dsc_queue_sync(queue));
    CHECK(dsc_kfac_hyper_now(kfac)->damping == 0.5 && dsc_kfac_hyper_now(kfac)->update_freq == 1);
    /* D / (vG vA + damping); vA = (1 + 4) / 2, vG = 1 */
    CHECK(fabsf(grad[0][2] - 2 / 3.0f) < 1e-5f && fabsf(grad[1][2] - 1 / 3.0f) < 1e-5f);
    dsc_kfac_destroy(&kfac);
}

/* ---- data and models ---- */

typedef struct counts {
    int captured, ready;
} counts;

static dsc_status count_capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                                const dsc_tensor *g) {
    (void)q, (void)layer, (void)a, (void)g;
    ((counts *)context)->captured++;
    return DSC_OK;
}

static dsc_status count_ready(void *context, dsc_queue *q, int64_t param) {
    (void)q, (void)param;
    ((counts *)context)->ready++;
    return DSC_OK;
}

/* ---- a layer of the program's own: y = factor x ---- */

typedef struct doubling {
    double factor;
} doubling;

/* y = beta y + factor x; y holds anything where beta is 0. */
static dsc_status scale(double factor, const dsc_tensor *x, double beta, dsc_tensor *y) {
    const float *from = x->data;
    float *to = y->data;
    for (int64_t i = 0; i < dsc_tensor_count(x); i++)
        to[i] = (float)factor * from[i] + (beta == 0 ? 0 : to[i]);
    return DSC_OK;
}

static dsc_status declare_doubling(dsc_layer_declaration *declaration) {
    CHECK(declaration->size >= sizeof *declaration && declaration->inputs == 1);
    CHECK(declaration->kfac == DSC_KFAC_AS_NONE && declaration->kfac_bias == -1);
    declaration->y = declaration->x[0];
    return DSC_OK;
}

static dsc_status forward_doubling(dsc_queue *q, const dsc_layer_call *call) {
    const doubling *d = call->attributes;
    CHECK(call->size >= sizeof *call && call->training == 1 && call->params == 0);
    (void)q;
    return scale(d->factor, call->x[0], 0, call->y);
}

static dsc_status backward_doubling(dsc_queue *q, const dsc_layer_call *call) {
    const doubling *d = call->attributes;
    CHECK(call->dparam_beta == 0);
    (void)q;
    return scale(d->factor, call->dy, call->dx_beta[0], call->dx[0]);
}

static dsc_value add_doubling(dsc_model *model, dsc_value x) {
    const doubling attributes = {2};
    dsc_value y;
    GUARDED(dsc_layer_def, def);
    dsc_layer_def_init(&def.o);
    WHOLE(def);
    CHECK(def.o.needs_x == 1 && def.o.needs_y == 1 && def.o.in_place == 0 && def.o.backward == NULL);
    def.o.kind = "doubling";
    def.o.attribute_bytes = sizeof attributes;
    def.o.declare = declare_doubling;
    def.o.forward = forward_doubling;
    CHECK(dsc_model_layer(model, "double", &def.o, &x, 1, &attributes, &y) == DSC_E_INVALID);
    def.o.backward = backward_doubling;
    MUST(dsc_model_layer(model, "double", &def.o, &x, 1, &attributes, &y));
    WHOLE(def);
    return y;
}

/* The library makes an array whose elements are as large as this program expects. */
static void list_layers(const dsc_model *model) {
    dsc_kfac_layer *layers = NULL;
    int64_t count = 0;
    MUST(dsc_kfac_layers_of_model(model, &layers, &count));
    CHECK(count == 2 && strcmp(layers[0].name, "conv") == 0 && strcmp(layers[1].name, "fc") == 0);
    CHECK(layers[0].conv->kernel_h == 4 && layers[1].bias_grad.data != NULL);
    dsc_kfac_layers_free(&layers);
    CHECK(layers == NULL);
}

static dsc_model *make_model(const dsc_dataset_info *info) {
    dsc_model *model = NULL;
    dsc_value x, y;
    int64_t h = 0, w = 0;
    GUARDED(dsc_model_options, options);
    GUARDED(dsc_conv2d_shape, shape);
    dsc_model_options_init(&options.o);
    dsc_conv2d_shape_init(&shape.o);
    WHOLE(options);
    WHOLE(shape);
    CHECK(options.o.seed == 42 && options.o.dtype == DSC_F32 && options.o.label_smoothing == 0);
    CHECK(options.o.activations == DSC_F32 && options.o.name == NULL);
    CHECK(shape.o.kernel_h == 1 && shape.o.stride_w == 1 && shape.o.groups == 1 && shape.o.pad_h == 0);
    shape.o.in_h = info->h;
    shape.o.in_w = info->w;
    shape.o.in_c = info->c;
    shape.o.out_c = 2;
    shape.o.kernel_h = shape.o.kernel_w = 4;
    shape.o.stride_h = shape.o.stride_w = 4;
    MUST(dsc_conv2d_output(&shape.o, &h, &w));
    CHECK(h == info->h / 4 && w == info->w / 4);
    shape.o.groups = 3; /* does not divide 2 */
    CHECK(dsc_conv2d_output(&shape.o, &h, &w) == DSC_E_INVALID);
    shape.o.groups = 1;
    options.o.activations = DSC_U8;
    CHECK(dsc_model_create(device, &options.o, &model) != DSC_OK);
    options.o.activations = DSC_F32;
    options.o.label_smoothing = 0.1;
    options.o.name = "striped";
    MUST(dsc_model_create(device, &options.o, &model));
    MUST(dsc_model_input(model, info->h, info->w, info->c, &x));
    MUST(dsc_model_conv2d(model, "conv", x, &shape.o, 1, &y));
    MUST(dsc_model_relu(model, y, &y));
    y = add_doubling(model, y);
    MUST(dsc_model_flatten(model, y, &y));
    MUST(dsc_model_linear(model, "fc", y, info->classes, 1, &y));
    MUST(dsc_model_seal(model, y));
    WHOLE(options);
    WHOLE(shape);
    CHECK(strcmp(dsc_model_name(model), "striped") == 0);
    CHECK(dsc_model_param_count(model) == 4 && dsc_model_layer_count(model) == 2);
    CHECK(dsc_model_layers(model)[1].shape->out_c == info->classes);
    return model;
}

static void run_model(dsc_model *model, dsc_loader *loader, int64_t batch) {
    dsc_exec *exec = NULL;
    dsc_batch data;
    double stats[4];
    counts seen = {0, 0};
    GUARDED(dsc_backward_options, options);
    dsc_backward_options_init(&options.o);
    WHOLE(options);
    CHECK(options.o.accumulate == 0 && options.o.param_grads == 1 && options.o.context == NULL);
    CHECK(options.o.capture == NULL && options.o.grad_ready == NULL);
    options.o.context = &seen;
    options.o.capture = count_capture;
    options.o.grad_ready = count_ready;
    MUST(dsc_exec_create(model, DSC_EXEC_TRAIN, batch, &exec));
    MUST(dsc_loader_next(loader, queue, &data));
    MUST(dsc_exec_clear_stats(exec, queue));
    MUST(dsc_exec_forward(exec, queue, &data.x));
    MUST(dsc_exec_loss(exec, queue, &data.labels, 1.0 / (double)batch));
    MUST(dsc_exec_backward(exec, queue, &options.o));
    MUST(dsc_tensor_download(queue, dsc_exec_stats(exec), sizeof stats, stats));
    MUST(dsc_queue_sync(queue));
    WHOLE(options);
    CHECK(seen.captured == 2 && seen.ready == 4);
    CHECK(stats[3] == (double)batch && stats[0] > 0);
    dsc_exec_destroy(&exec);
}

/* Of the first image. */
static float first_number(const dsc_dataset *dataset) {
    dsc_dataset_info info = dsc_dataset_get_info(dataset);
    float *image = calloc((size_t)(info.h * info.w * info.c), sizeof *image), number;
    int32_t label;
    MUST(dsc_dataset_sample(dataset, 0, 0, 0, image, &label));
    number = image[0];
    free(image);
    return number;
}

static void save_and_load(dsc_model *model, const char *path) {
    dsc_load_report *report = NULL;
    GUARDED(dsc_save_options, save);
    GUARDED(dsc_load_options, load);
    dsc_save_options_init(&save.o);
    dsc_load_options_init(&load.o);
    WHOLE(save);
    WHOLE(load);
    CHECK(save.o.model == NULL && save.o.data == NULL && save.o.step == -1 && save.o.has_seed == 0);
    CHECK(load.o.partial == 0);
    save.o.step = 3;
    save.o.has_seed = 1;
    save.o.seed = 7;
    load.o.partial = 1;
    MUST(dsc_model_save(model, path, &save.o));
    MUST(dsc_model_load(model, path, &load.o, &report));
    WHOLE(save);
    WHOLE(load);
    CHECK(report->loaded_count == 4 && report->skipped_count == 0 && report->missing_count == 0);
    CHECK(strcmp(report->loaded[3], "fc.bias") == 0);
    dsc_load_report_free(&report);
}

static void use_model(const char *path) {
    enum { BATCH = 6 };
    dsc_dataset *dataset = NULL;
    dsc_loader *loader = NULL;
    GUARDED(dsc_data_options, options);
    GUARDED(dsc_loader_options, order);
    dsc_data_options_init(&options.o);
    dsc_loader_options_init(&order.o);
    WHOLE(options);
    WHOLE(order);
    CHECK(options.o.seed == 42 && options.o.image_size == 0);
    CHECK(order.o.batch == 128 && order.o.rank == 0 && order.o.ranks == 1 && order.o.threads == 1);
    CHECK(order.o.depth == 3 && order.o.seed == 42 && order.o.shuffle == 1 && order.o.augment == 1);
    CHECK(order.o.keep_last == 0 && order.o.dtype == DSC_F32);
    MUST(dsc_dataset_open("synthetic:20", DSC_SPLIT_TRAIN, &options.o, &dataset));
    float usual = first_number(dataset);
    dsc_dataset_close(&dataset);
    options.o.seed = 43;
    MUST(dsc_dataset_open("synthetic:20", DSC_SPLIT_TRAIN, &options.o, &dataset));
    CHECK(first_number(dataset) != usual);
    order.o.batch = BATCH;
    order.o.keep_last = 1;
    order.o.dtype = DSC_U8;
    CHECK(dsc_loader_create(dataset, device, &order.o, &loader) != DSC_OK);
    order.o.dtype = DSC_F32;
    MUST(dsc_loader_create(dataset, device, &order.o, &loader));
    WHOLE(options);
    WHOLE(order);
    CHECK(dsc_loader_batches(loader) == 4); /* 6 + 6 + 6 + 2 */
    dsc_dataset_info info = dsc_dataset_get_info(dataset);
    CHECK(info.count == 20);
    dsc_model *model = make_model(&info);
    run_model(model, loader, BATCH);
    save_and_load(model, path);
    list_layers(model);
    dsc_model_destroy(&model);
    dsc_loader_destroy(&loader);
    dsc_dataset_close(&dataset);
}

/* ---- data sets and models of the program's own ---- */

enum { POINTS = 24 };

static float points[POINTS];
static int32_t classes[POINTS];
static int destroyed;

static dsc_status write_point(void *context, int64_t index, int augment, int64_t epoch, float *x,
                              int32_t *label) {
    (void)augment, (void)epoch;
    *x = ((const float *)context)[index];
    *label = (int32_t)(index % 2);
    return DSC_OK;
}

static void note_end(void *context) {
    (void)context;
    destroyed++;
}

static void use_callback_data(void) {
    dsc_dataset *dataset = NULL;
    GUARDED(dsc_callback_data, data);
    dsc_callback_data_init(&data.o);
    WHOLE(data);
    CHECK(data.o.name == NULL && data.o.sample == NULL && data.o.destroy == NULL);
    data.o.count = POINTS;
    data.o.h = data.o.w = data.o.c = 1;
    data.o.classes = 2;
    data.o.context = points;
    data.o.sample = write_point;
    data.o.destroy = note_end;
    MUST(dsc_dataset_from_callback(&data.o, &dataset));
    WHOLE(data);
    CHECK(first_number(dataset) == points[0]);
    dsc_dataset_close(&dataset);
    CHECK(destroyed == 1);
}

static dsc_status open_points(void *context, const char *argument, dsc_split split,
                              const dsc_data_options *options, dsc_dataset **out) {
    GUARDED(dsc_memory_data, data);
    CHECK(context == points && strcmp(argument, "line") == 0 && options->size >= sizeof *options);
    (void)split;
    dsc_memory_data_init(&data.o);
    WHOLE(data);
    CHECK(data.o.dtype == DSC_F32 && data.o.copy == 0 && data.o.flip == 0 && data.o.seed == 42);
    data.o.count = POINTS;
    data.o.h = data.o.w = data.o.c = 1;
    data.o.classes = 2;
    data.o.images = points;
    data.o.labels = classes;
    dsc_status status = dsc_dataset_from_memory(&data.o, out);
    WHOLE(data);
    return status;
}

static dsc_status build_line(void *context, dsc_model *m, dsc_value x, int64_t count, dsc_value *logits) {
    dsc_status status;
    CHECK(context == points);
    status = dsc_model_flatten(m, x, &x);
    return status == DSC_OK ? dsc_model_linear(m, "line", x, count, 1, logits) : status;
}

static void register_own(void) {
    GUARDED(dsc_dataset_kind, kind);
    GUARDED(dsc_zoo_entry, entry);
    for (int i = 0; i < POINTS; i++) {
        points[i] = i % 2 ? 1.5f : -0.5f;
        classes[i] = i % 2;
    }
    dsc_dataset_kind_init(&kind.o);
    dsc_zoo_entry_init(&entry.o);
    WHOLE(kind);
    WHOLE(entry);
    CHECK(kind.o.needs_argument == 0 && kind.o.open == NULL && entry.o.build == NULL);
    kind.o.name = "points";
    kind.o.needs_argument = 1;
    kind.o.context = points;
    CHECK(dsc_dataset_register(&kind.o) == DSC_E_INVALID);
    kind.o.open = open_points;
    MUST(dsc_dataset_register(&kind.o));
    entry.o.name = "line";
    entry.o.side = entry.o.channels = 1;
    entry.o.classes = 2;
    entry.o.context = points;
    entry.o.build = build_line;
    MUST(dsc_zoo_register(&entry.o));
    WHOLE(kind);
    WHOLE(entry);
}

/* ---- training and evaluation ---- */

static void train(const char *out) {
    GUARDED(dsc_train_options, options);
    GUARDED(dsc_optim_options, optim);
    GUARDED(dsc_consensus_options, agree);
    GUARDED(dsc_kfac_options, kfac);
    GUARDED(dsc_train_result, result);
    dsc_train_options_init(&options.o);
    dsc_optim_options_init(&optim.o);
    dsc_consensus_options_init(&agree.o);
    dsc_kfac_options_init(&kfac.o);
    WHOLE(options);
    CHECK(options.o.epochs == 100 && options.o.batch_size == 128 && options.o.kfac == NULL);
    CHECK(options.o.keep == 2 && options.o.eval_every == 1 && options.o.kfac_damping_alpha == 0.5);
    CHECK(options.o.on_peer_loss == DSC_PEER_LOSS_STOP);
    options.o.model = "line";
    options.o.data = "points:line";
    options.o.batch_size = 8;
    options.o.steps = 3;
    options.o.out = out;
    options.o.optim = &optim.o;
    options.o.consensus = &agree.o;
    options.o.kfac = &kfac.o;
    optim.o.kind = DSC_ADAMW;
    kfac.o.update_freq = 2;
    result.o.size = sizeof result.o;
    options.o.on_peer_loss = DSC_PEER_LOSS_CONTINUE; /* which all-reduce cannot do */
    CHECK(dsc_train_run(comm, device, &options.o, &result.o) == DSC_E_INVALID);
    options.o.on_peer_loss = DSC_PEER_LOSS_STOP;
    MUST(dsc_train_run(comm, device, &options.o, &result.o));
    WHOLE(options);
    WHOLE(optim);
    WHOLE(agree);
    WHOLE(kfac);
    WHOLE(result);
    CHECK(result.o.steps == 3 && result.o.ranks == 1 && result.o.rank == 0 && result.o.train_loss > 0);
}

/* Tables of options, whose entries for members after the end of the caller's struct are left out. */
static void use_option_tables(void) {
    static dsc_option table[256], some[256];
    GUARDED(dsc_train_options, options);
    dsc_train_options_init(&options.o);
    MUST(dsc_option_join(table, 256, dsc_train_option_table(), 0, sizeof options.o, NULL));
    dsc_option_defaults(table, &options.o);
    MUST(dsc_option_set_value(table, &options.o, "batch-size", "7"));
    WHOLE(options);
    CHECK(options.o.batch_size == 7 && options.o.epochs == 100);
    MUST(dsc_option_join(some, 256, dsc_train_option_table(), 0, offsetof(dsc_train_options, batch_size),
                         NULL));
    CHECK(dsc_option_find(table, "batch-size") != NULL && dsc_option_find(some, "batch-size") == NULL);
    CHECK(dsc_option_find(some, "epochs") != NULL);
}

/* Steps of a trainer around a model and data of the program's own. */
static void use_trainer(void) {
    dsc_dataset *dataset = NULL;
    dsc_model *model = NULL;
    dsc_trainer *trainer = NULL;
    GUARDED(dsc_train_options, options);
    GUARDED(dsc_step_report, report);
    dsc_train_options_init(&options.o);
    options.o.batch_size = 8;
    options.o.steps = 2;
    report.o.size = sizeof report.o;
    MUST(dsc_dataset_open("points:line", DSC_SPLIT_TRAIN, NULL, &dataset));
    MUST(dsc_zoo_create(device, "line", 1, 1, 1, 2, NULL, &model));
    MUST(dsc_trainer_create(comm, device, model, dataset, NULL, &options.o, &trainer));
    MUST(dsc_trainer_step(trainer, &report.o));
    MUST(dsc_trainer_step(trainer, &report.o));
    MUST(dsc_trainer_finish(trainer, &report.o));
    WHOLE(options);
    WHOLE(report);
    CHECK(report.o.step == 2 && report.o.loss > 0 && report.o.loss_scale == 1 && report.o.skipped == 0);
    CHECK(dsc_trainer_steps(trainer) == 2 && dsc_trainer_is_done(trainer) == 1);
    dsc_trainer_destroy(&trainer);
    dsc_model_destroy(&model);
    dsc_dataset_close(&dataset);
}

static void evaluate(const char *out) {
    GUARDED(dsc_eval_options, options);
    GUARDED(dsc_eval_result, result);
    dsc_eval_options_init(&options.o);
    WHOLE(options);
    CHECK(options.o.checkpoint == NULL && options.o.batch_size == 128 && options.o.data_threads == 1);
    CHECK(options.o.seed == DSC_SEED_OF_CHECKPOINT);
    options.o.checkpoint = out;
    options.o.data_threads = 0;
    result.o.size = sizeof result.o;
    CHECK(dsc_eval_run(comm, device, &options.o, &result.o) == DSC_E_INVALID);
    options.o.data_threads = 2;
    MUST(dsc_eval_run(comm, device, &options.o, &result.o));
    WHOLE(options);
    WHOLE(result);
    CHECK(result.o.images > 0 && result.o.loss > 0 && strcmp(result.o.data, "points:line") == 0);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    open_device();
    open_comm();
    use_buckets();
    use_topology();
    register_graph();
    use_average();
    use_optim();
    use_kfac();
    char path[4096];
    snprintf(path, sizeof path, "%s.safetensors", argv[1]);
    use_model(path);
    register_own();
    use_callback_data();
    train(argv[1]);
    use_option_tables();
    use_trainer();
    evaluate(argv[1]);
    dsc_queue_destroy(&queue);
    dsc_comm_destroy(&comm);
    dsc_device_destroy(&device);
    printf("compiled with %s, runs with %s: %d failures\n", DSC_VERSION_STRING, dsc_version(), failures);
    return failures > 0;
}

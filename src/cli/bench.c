/* descent bench: seconds per training step on random input in memory.
 *
 * The step is that of a training without data loading: forward, loss, backward with the exchange of gradients
 * under way, update. Every phase ends with a wait for the queue, so that its time is its own. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "descent/consensus.h"
#include "descent/model.h"
#include "descent/optim.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { WARM_UP = 2, SEED = 42 };
enum { FORWARD, BACKWARD, EXCHANGE, UPDATE, PHASES };

typedef struct bench_values {
    dsc_cli_common common;
    const char *model, *device;
    int64_t batch, steps;
    int threads, json;
} bench_values;

#define AT(member) offsetof(bench_values, member)

static const dsc_option options[] = {
    {.name = "model",
     .kind = DSC_OPTION_STRING,
     .offset = AT(model),
     .placeholder = "NAME",
     .help = "model of the zoo, at the input it is made for",
     .group = "Benchmark"},
    {.name = "batch-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(batch),
     .placeholder = "N",
     .range = "[1, 1e9]",
     .help = "images per rank and step"},
    {.name = "steps",
     .kind = DSC_OPTION_INT64,
     .offset = AT(steps),
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "steps that are timed, after 2 that are not"},
    {.name = "device",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(device),
     .choices = "auto|ref|cpu",
     .help = "where to compute"},
    {.name = "threads",
     .kind = DSC_OPTION_INT,
     .offset = AT(threads),
     .placeholder = "N",
     .range = "[0, 4096]",
     .shown = "the CPUs of this rank",
     .help = "CPU threads per rank"},
    {.name = "json", .kind = DSC_OPTION_FLAG, .offset = AT(json), .help = "print one JSON object"},
    DSC_CLI_COMMON_OPTIONS,
};

/* Everything a step needs. */
typedef struct bench {
    dsc_comm *comm;
    dsc_device *device;
    dsc_queue *queue;
    dsc_model *model;
    dsc_exec *exec;
    dsc_consensus *consensus;
    dsc_optim *optim;
    dsc_tensor x, labels;
    int64_t batch, steps;
    double exchange;       /* seconds of exchange inside the backward pass under way */
    double *total;         /* seconds of each timed step */
    double *phase[PHASES]; /* and of its phases */
} bench;

static void init(void *values) {
    bench_values *v = values;
    memset(v, 0, sizeof *v);
    v->model = "resnet20";
    v->device = "auto";
    v->batch = 128;
    v->steps = 20;
}

/* ---- setting up ---- */

static dsc_status create_model(bench *b, const char *name) {
    int64_t side, channels, classes;
    dsc_model_options o;
    dsc_model_options_init(&o);
    DSC_TRY(dsc_zoo_default_input(name, &side, &channels, &classes));
    DSC_TRY(dsc_zoo_create(b->device, name, side, side, channels, classes, &o, &b->model));
    DSC_TRY(dsc_exec_create(b->model, DSC_EXEC_TRAIN, b->batch, &b->exec));
    return DSC_OK;
}

static dsc_status create_rest(bench *b) {
    dsc_consensus_options consensus;
    dsc_optim_options optim;
    dsc_consensus_options_init(&consensus);
    dsc_optim_options_init(&optim);
    const dsc_param *params = dsc_model_params(b->model);
    int64_t count = dsc_model_param_count(b->model);
    DSC_TRY(dsc_consensus_create(b->comm, b->queue, params, count, &consensus, &b->consensus));
    DSC_TRY(dsc_optim_create(b->queue, params, count, &optim, &b->optim));
    DSC_TRY(dsc_consensus_start(b->consensus));
    DSC_TRY(dsc_memory_alloc(b->steps, sizeof *b->total, &b->total));
    for (int i = 0; i < PHASES; i++)
        DSC_TRY(dsc_memory_alloc(b->steps, sizeof *b->phase[i], &b->phase[i]));
    return DSC_OK;
}

static dsc_status upload_images(bench *b, dsc_rng *rng) {
    float *host;
    int64_t count = dsc_tensor_count(&b->x);
    DSC_TRY(dsc_memory_alloc(count, sizeof *host, &host));
    for (int64_t i = 0; i < count; i++)
        host[i] = 2 * dsc_rng_uniform(rng) - 1;
    dsc_status status = dsc_tensor_upload(b->queue, host, dsc_tensor_bytes(&b->x), &b->x);
    if (status == DSC_OK)
        status = dsc_queue_sync(b->queue);
    dsc_memory_free(&host);
    return status;
}

static dsc_status upload_labels(bench *b, dsc_rng *rng) {
    int32_t *host;
    DSC_TRY(dsc_memory_alloc(b->batch, sizeof *host, &host));
    for (int64_t i = 0; i < b->batch; i++)
        host[i] = (int32_t)dsc_rng_below(rng, (uint32_t)dsc_model_classes(b->model));
    dsc_status status = dsc_tensor_upload(b->queue, host, dsc_tensor_bytes(&b->labels), &b->labels);
    if (status == DSC_OK)
        status = dsc_queue_sync(b->queue);
    dsc_memory_free(&host);
    return status;
}

static dsc_status create_input(bench *b) {
    int64_t dim[4] = {b->batch, 0, 0, 0};
    dsc_rng rng = dsc_rng_start(SEED, DSC_RNG_TEST, 0, (uint64_t)dsc_comm_rank(b->comm));
    dsc_model_input_shape(b->model, dim + 1);
    DSC_TRY(dsc_tensor_alloc(b->device, DSC_F32, 4, dim, &b->x));
    DSC_TRY(dsc_tensor_alloc(b->device, DSC_I32, 1, dim, &b->labels));
    DSC_TRY(upload_images(b, &rng));
    DSC_TRY(upload_labels(b, &rng));
    return DSC_OK;
}

static void destroy(bench *b) {
    for (int i = 0; i < PHASES; i++)
        dsc_memory_free(&b->phase[i]);
    dsc_memory_free(&b->total);
    dsc_tensor_free(&b->labels);
    dsc_tensor_free(&b->x);
    dsc_optim_destroy(&b->optim);
    dsc_consensus_destroy(&b->consensus);
    dsc_exec_destroy(&b->exec);
    dsc_model_destroy(&b->model);
    dsc_queue_destroy(&b->queue);
}

/* ---- the step ---- */

static dsc_status grad_ready(void *context, dsc_queue *queue, int64_t param) {
    bench *b = context;
    double start = dsc_clock_now();
    DSC_TRY(dsc_consensus_grad_ready(b->consensus, queue, param));
    b->exchange += dsc_clock_now() - start;
    return DSC_OK;
}

static dsc_status update(void *context, dsc_queue *queue, const dsc_tensor *read) {
    bench *b = context;
    return dsc_optim_step(b->optim, queue, 0.01, read);
}

static dsc_status forward(bench *b, int64_t step) {
    int64_t first = (int64_t)dsc_comm_rank(b->comm) * b->batch;
    DSC_TRY(dsc_exec_set_position(b->exec, b->queue, step, first));
    DSC_TRY(dsc_consensus_before_forward(b->consensus, b->queue));
    DSC_TRY(dsc_exec_forward(b->exec, b->queue, &b->x));
    DSC_TRY(dsc_exec_loss(b->exec, b->queue, &b->labels, 1.0 / (double)b->batch));
    return dsc_queue_sync(b->queue);
}

static dsc_status backward(bench *b) {
    dsc_backward_options o;
    dsc_backward_options_init(&o);
    o.context = b;
    o.grad_ready = grad_ready;
    b->exchange = 0;
    DSC_TRY(dsc_exec_backward(b->exec, b->queue, &o));
    return dsc_queue_sync(b->queue);
}

/* seconds[]: of the phases. */
static dsc_status run_step(bench *b, int64_t step, double seconds[PHASES]) {
    double at[PHASES + 1];
    at[0] = dsc_clock_now();
    DSC_TRY(forward(b, step));
    at[1] = dsc_clock_now();
    DSC_TRY(backward(b));
    at[2] = dsc_clock_now();
    DSC_TRY(dsc_consensus_after_backward(b->consensus, b->queue));
    DSC_TRY(dsc_queue_sync(b->queue));
    at[3] = dsc_clock_now();
    DSC_TRY(dsc_consensus_update(b->consensus, b->queue, update, b));
    DSC_TRY(dsc_queue_sync(b->queue));
    at[4] = dsc_clock_now();
    for (int i = 0; i < PHASES; i++)
        seconds[i] = at[i + 1] - at[i];
    seconds[BACKWARD] -= b->exchange;
    seconds[EXCHANGE] += b->exchange;
    return DSC_OK;
}

static dsc_status measure(bench *b, const char *model) {
    double seconds[PHASES] = {0};
    DSC_TRY(dsc_queue_create(b->device, &b->queue));
    DSC_TRY(create_model(b, model));
    DSC_TRY(create_rest(b));
    DSC_TRY(create_input(b));
    for (int64_t step = -WARM_UP; step < b->steps; step++) {
        double start = dsc_clock_now();
        DSC_TRY(run_step(b, step + WARM_UP, seconds));
        if (step < 0)
            continue;
        b->total[step] = dsc_clock_now() - start;
        for (int i = 0; i < PHASES; i++)
            b->phase[i][step] = seconds[i];
    }
    return DSC_OK;
}

/* ---- results ---- */

static int compare(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Sorts the values. */
static double median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Of the largest rank, in MB of 10^6 bytes. */
static dsc_status peak_rss(bench *b, double *out) {
    struct rusage usage;
    dsc_tensor t = {0};
    int64_t one = 1;
    getrusage(RUSAGE_SELF, &usage);
    *out = (double)usage.ru_maxrss * 1024.0 / 1e6;
    DSC_TRY(dsc_tensor_alloc(b->device, DSC_F64, 1, &one, &t));
    dsc_status status = dsc_tensor_upload(b->queue, out, sizeof *out, &t);
    if (status == DSC_OK)
        status = dsc_comm_allreduce(b->comm, DSC_TRAFFIC_OTHER, DSC_MAX, &t);
    if (status == DSC_OK)
        status = dsc_tensor_download(b->queue, &t, sizeof *out, out);
    if (status == DSC_OK)
        status = dsc_queue_sync(b->queue);
    dsc_tensor_free(&t);
    return status;
}

static dsc_status print_results(bench *b, const bench_values *v, double rss) {
    double middle = median(b->total, b->steps), least = b->total[0];
    int ranks = dsc_comm_size(b->comm), threads = dsc_device_threads(b->device);
    double rate = (double)b->batch * ranks / middle;
    if (v->json) {
        json_t *object =
            json_pack("{s:s, s:I, s:i, s:i, s:I, s:f, s:f, s:f, s:f}", "model", v->model, "batch_size",
                      (json_int_t)b->batch, "threads", threads, "ranks", ranks, "steps", (json_int_t)b->steps,
                      "median_s", middle, "min_s", least, "images_per_s", rate, "peak_rss_mb", rss);
        if (!object)
            return DSC_FAIL(DSC_E_MEMORY, "cannot build the JSON text");
        json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        printf("\n");
        json_decref(object);
        return DSC_OK;
    }
    printf("model    %s, batch %lld on each of %d %s\n", v->model, (long long)b->batch, ranks,
           ranks == 1 ? "rank" : "ranks");
    printf("device   %s\n", dsc_device_description(b->device));
    printf("step     median %.4f s, least %.4f s of %lld steps\n", middle, least, (long long)b->steps);
    printf("phases   forward %.4f s, backward %.4f s, exchange %.4f s, update %.4f s\n",
           median(b->phase[FORWARD], b->steps), median(b->phase[BACKWARD], b->steps),
           median(b->phase[EXCHANGE], b->steps), median(b->phase[UPDATE], b->steps));
    printf("rate     %.1f images/s\n", rate);
    printf("memory   peak of the process %.0f MB, of the device %.0f MB\n", rss,
           (double)dsc_device_peak_bytes(b->device) / 1e6);
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const bench_values *v = values;
    int64_t side, channels, classes;
    double rss = 0;
    (void)set;
    DSC_TRY(dsc_zoo_default_input(v->model, &side, &channels, &classes));
    DSC_TRY(dsc_cli_open(session, v->device, v->threads));
    bench b = {.comm = session->comm, .device = session->device, .batch = v->batch, .steps = v->steps};
    dsc_status status = measure(&b, v->model);
    if (status == DSC_OK)
        status = peak_rss(&b, &rss);
    if (status == DSC_OK && dsc_cli_prints(session))
        status = print_results(&b, v, rss);
    destroy(&b);
    return status;
}

const dsc_cli_command dsc_cli_bench = {
    .name = "bench",
    .summary = "time training steps on random input",
    .description =
        "Trains on random images in memory, 2 steps to warm up and then --steps that are timed, and prints "
        "the "
        "median and the least time of a step, the images per second of all ranks together, and memory. Times "
        "are those of rank 0, memory is that of the largest rank; MB are 10^6 bytes.\n\n"
        "With --json the result is one object with the keys model, batch_size, threads, ranks, steps, "
        "median_s, min_s, images_per_s and peak_rss_mb.",
    .examples = "descent bench --model resnet32 --batch-size 128 --threads 2 --steps 20\n"
                "mpirun -n 2 descent bench --model resnet32 --threads 1 --json\n",
    .options = options,
    .values_size = sizeof(bench_values),
    .init = init,
    .run = run,
};

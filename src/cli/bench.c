/* descent bench: seconds per training step on random input in memory.
 *
 * The step is that of a trainer (dsc_trainer_step_on), without data loading. On a GPU a time is that of a
 * group of steps put into the queue one after the other, as in a training, divided by their number; phases
 * are those of other steps, because measuring them takes time of the device.
 *
 * With --kfac every round has four kinds of steps, so that all of them see the same machine: plain ones, then
 * steps with K-FAC that only precondition, that also update the factors, and that also decompose them. The
 * plain ones are those of a second trainer on the same model. */
#include "cli/cli.h"
#include "cli/support.h"
#include "descent/log.h"
#include "descent/ops.h"
#include "descent/random.h"
#include "descent/trainer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { WARM_UP = 2, SEED = 42, PURPOSE = 6 }; /* PURPOSE: of the random numbers */
/* Steps timed together on a GPU; fewer of long ones, of more operations than this, about 10 ms. */
enum { GROUP = 10, LONG_GROUP = 5 };
static const double LONG_STEP = 5e12;
/* So small that the steps that came before hardly change what a step computes, such as the ranks of cut bases. */
static const double RATE = 1e-6;
enum { PLAIN, PRECONDITION, FACTORS, DECOMPOSE, KINDS }; /* of steps; each does what those before it do */
/* The kinds of steps with K-FAC; the name of the first is that of the optimiser. */
static const char *const kind_names[KINDS] = {"", "K-FAC, no update", "+ factors",
                                              "+ factors and decomposition"};

typedef struct bench_values {
    dsc_cli_common common;
    const char *model, *device, *optimizer, *kfac_with;
    dsc_dtype precision;
    int64_t batch, steps, context, image_size;
    double clip_norm;
    int threads, tune, kfac, json;
} bench_values;

#define AT(member) offsetof(bench_values, member)

static const dsc_option options[] = {
    {.name = "model",
     .kind = DSC_OPTION_STRING,
     .offset = AT(model),
     .placeholder = "NAME",
     .help = "model of the zoo",
     .group = "Benchmark"},
    {DSC_CLI_BATCH_SIZE(AT(batch)), .help = "images, or sequences, per rank and step"},
    {.name = "context",
     .kind = DSC_OPTION_INT64,
     .offset = AT(context),
     .placeholder = "N",
     .range = "[0, 1e6]",
     .default_text = "what the model is made for",
     .help = "tokens of a sequence, for models of sequences"},
    {.name = "image-size",
     .kind = DSC_OPTION_INT64,
     .offset = AT(image_size),
     .placeholder = "N",
     .range = "[0, 1e5]",
     .default_text = "what the model is made for",
     .help = "height and width of the images, for models of images"},
    {.name = "steps",
     .kind = DSC_OPTION_INT64,
     .offset = AT(steps),
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "steps that are timed, after 2 that are not"},
    {.name = "optimizer",
     .kind = DSC_OPTION_STRING,
     .offset = AT(optimizer),
     .placeholder = "NAME",
     .help = "sgd, adam, adamw, lars or lamb"},
    {.name = "clip-norm",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(clip_norm),
     .placeholder = "X",
     .range = "[0, inf)",
     .default_text = "off",
     .help = "scale gradients down so that their joint norm is at most X"},
    {DSC_CLI_DEVICE(AT(device)), .help = "where to compute"},
    {DSC_CLI_THREADS(AT(threads))},
    {.name = "precision",
     DSC_CLI_FLOAT_TYPE(AT(precision)),
     .help = "type of the activations; bf16 and fp16 need a GPU"},
    {.name = "tune",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(tune),
     .help = "on a GPU, first time the algorithms for each convolution and keep the fastest"},
    {.name = "kfac",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(kfac),
     .help = "also time steps with K-FAC: without updates, with factors, with factors and decompositions"},
    {.name = "kfac-with",
     .kind = DSC_OPTION_STRING,
     .offset = AT(kfac_with),
     .placeholder = "\"NAME=VALUE...\"",
     .help = "options of train's --kfac-NAME for that, as in \"refresh=warm rank=1/4\"",
     .default_text = "none"},
    {DSC_CLI_JSON(AT(json))},
    DSC_CLI_COMMON_OPTIONS,
};

/* What K-FAC's report counts about refreshed decompositions. */
enum { REFRESHED, EXTRA_ITERATIONS, FALLBACKS, REFRESH_COUNTS };
static const char *const refresh_keys[REFRESH_COUNTS] = {"refreshed_factors", "extra_iterations",
                                                         "exact_fallbacks"};

/* Everything a step needs. */
typedef struct bench {
    dsc_comm *comm;
    dsc_device *device;
    dsc_model *model;
    dsc_trainer *trainers[2]; /* without K-FAC, and with it (NULL without --kfac) */
    dsc_tensor x, labels;
    dsc_optim_options optim;
    int64_t batch, steps;
    dsc_dtype activations;
    int warm;                          /* 1: K-FAC refreshes its decompositions */
    int64_t refreshes[REFRESH_COUNTS]; /* in the timed rounds, over all ranks */
    int kind;                          /* of the step under way */
    int64_t group;                     /* steps timed together */
    double *total[KINDS];              /* seconds of each timed step; without K-FAC, only of the plain ones */
    double *phase[KINDS][DSC_PHASE_COUNT]; /* milliseconds */
    double *extra;                         /* scratch memory for differences of as many steps */
    double peak_flops;                     /* per second, of this rank's device */
    double device_bytes;                   /* the most that the steps had on the device */
} bench;

static void init(void *values) {
    bench_values *v = values;
    memset(v, 0, sizeof *v);
    v->model = "resnet20";
    v->device = "auto";
    v->optimizer = "sgd";
    v->precision = DSC_F32;
    v->batch = 128;
    v->steps = 20;
}

/* ---- setting up ---- */

static dsc_status create_model(bench *b, const bench_values *v) {
    const char *name = v->model;
    int64_t side, channels, classes, context = v->context;
    dsc_model_options o;
    dsc_model_options_init(&o);
    o.activations = b->activations;
    DSC_CLI_TRY(dsc_zoo_default_input(name, &side, &channels, &classes));
    if (context > 0 || v->image_size > 0)
        side = context > 0 ? context : v->image_size;
    DSC_CLI_TRY(dsc_zoo_create(b->device, name, side, side, channels, classes, &o, &b->model));
    if (context > 0 && !dsc_model_takes_tokens(b->model))
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "--context %lld: model %s is one of images; leave it out, or use a model of "
                            "sequences such as gpt-mini",
                            (long long)context, name);
    if (v->image_size > 0 && dsc_model_takes_tokens(b->model))
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "--image-size %lld: model %s is one of sequences; --context is their length",
                            (long long)v->image_size, name);
    return DSC_OK;
}

static dsc_status create_results(bench *b) {
    for (int i = 0; i < KINDS; i++)
        DSC_CLI_TRY(dsc_cli_alloc(b->steps, sizeof *b->total[i], &b->total[i]));
    for (int i = 0; i < KINDS * DSC_PHASE_COUNT; i++) {
        double **phase = &b->phase[i / DSC_PHASE_COUNT][i % DSC_PHASE_COUNT];
        DSC_CLI_TRY(dsc_cli_alloc(b->steps, sizeof **phase, phase));
    }
    DSC_CLI_TRY(dsc_cli_alloc(b->steps, sizeof *b->extra, &b->extra));
    return DSC_OK;
}

/* K-FAC updates factors and decompositions in steps whose number is a multiple of their frequency: 1 turns an
 * update on, step + 1 turns it off. The first step does everything. */
static dsc_status schedule(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    const bench *b = context;
    hyper->factor_freq = b->kind >= FACTORS ? 1 : step + 1;
    hyper->update_freq = b->kind >= DECOMPOSE ? 1 : step + 1;
    return DSC_OK;
}

/* Sets K-FAC's options from words NAME=VALUE in `room`, which must outlive the options. */
static dsc_status read_kfac_options(char *room, dsc_kfac_options *kfac) {
    const dsc_option *table = dsc_kfac_option_table();
    for (char *word = strtok(room, " "); word; word = strtok(NULL, " ")) {
        char name[64], *value = strchr(word, '=');
        if (!value)
            return DSC_CLI_FAIL(DSC_E_INVALID, "--kfac-with: '%s' is not NAME=VALUE", word);
        *value++ = '\0';
        snprintf(name, sizeof name, "kfac-%s", word);
        DSC_CLI_TRY(dsc_option_set_value(table, kfac, name, value));
    }
    return DSC_OK;
}

static dsc_status create_trainer(bench *b, const char *kfac_with, int with_kfac) {
    dsc_train_options o;
    dsc_kfac_options kfac;
    char *room = NULL;
    dsc_status status = DSC_OK;
    dsc_train_options_init(&o);
    o.batch_size = b->batch;
    o.lr = RATE;
    o.optim = &b->optim;
    o.lr_scaling = 0;
    o.warmup_epochs = 0;
    o.check_every = 0;
    if (with_kfac) {
        dsc_kfac_options_init(&kfac);
        if (kfac_with) {
            DSC_CLI_TRY(dsc_cli_alloc((int64_t)strlen(kfac_with) + 1, 1, &room));
            status = read_kfac_options(strcpy(room, kfac_with), &kfac);
        }
        b->warm = kfac.refresh == DSC_KFAC_WARM;
        kfac.schedule = schedule;
        kfac.context = b;
        o.kfac = &kfac;
    }
    if (status == DSC_OK)
        status = dsc_trainer_create(b->comm, b->device, b->model, NULL, NULL, &o, &b->trainers[with_kfac]);
    free(room);
    return status;
}

/* Copies `host` to `out`, which has as many bytes. */
static dsc_status upload(dsc_queue *queue, const void *host, dsc_tensor *out) {
    DSC_CLI_TRY(dsc_tensor_upload(queue, host, dsc_tensor_bytes(out), out));
    return dsc_queue_sync(queue);
}

/* Fills the input with images uniform in [-1, 1) or with tokens, and the labels, from the words of one random sequence;
 * overwrites the words. */
static dsc_status fill_input(bench *b, uint32_t *words) {
    dsc_queue *queue = dsc_trainer_queue(b->trainers[0]);
    int64_t count = dsc_tensor_count(&b->x), labels = dsc_tensor_count(&b->labels);
    uint32_t classes = (uint32_t)dsc_model_classes(b->model);
    int tokens = dsc_model_takes_tokens(b->model);
    dsc_random_words(SEED, PURPOSE, 0, (uint64_t)dsc_comm_rank(b->comm), count + labels, words);
    for (int64_t i = 0; i < count; i++) {
        float value = tokens ? (float)(words[i] % classes) : 2 * ((float)(words[i] >> 8) * 0x1p-24f) - 1;
        memcpy(&words[i], &value, sizeof value);
    }
    DSC_CLI_TRY(upload(queue, words, &b->x));
    for (int64_t i = 0; i < labels; i++)
        words[count + i] %= classes;
    return upload(queue, words + count, &b->labels);
}

static dsc_status create_input(bench *b) {
    int64_t dim[4] = {b->batch, 0, 0, 0}, labels = b->batch * dsc_model_positions(b->model);
    uint32_t *words;
    dsc_model_input_shape(b->model, dim + 1);
    DSC_CLI_TRY(dsc_tensor_alloc(b->device, DSC_F32, 4, dim, &b->x));
    DSC_CLI_TRY(dsc_tensor_alloc(b->device, DSC_I32, 1, &labels, &b->labels));
    DSC_CLI_TRY(dsc_cli_alloc(dsc_tensor_count(&b->x) + labels, sizeof *words, &words));
    dsc_status status = fill_input(b, words);
    dsc_cli_free(&words);
    return status;
}

static void destroy(bench *b) {
    for (int i = 0; i < KINDS * DSC_PHASE_COUNT; i++)
        dsc_cli_free(&b->phase[i / DSC_PHASE_COUNT][i % DSC_PHASE_COUNT]);
    for (int i = 0; i < KINDS; i++)
        dsc_cli_free(&b->total[i]);
    dsc_cli_free(&b->extra);
    dsc_tensor_free(&b->labels);
    dsc_tensor_free(&b->x);
    dsc_trainer_destroy(&b->trainers[1]);
    dsc_trainer_destroy(&b->trainers[0]);
    dsc_model_destroy(&b->model);
}

/* ---- the step ---- */

/* Runs `count` steps of the kind b->kind and waits for their end; *report is that of the last step. */
static dsc_status run_group(bench *b, int timed, int64_t count, dsc_step_report *report) {
    dsc_trainer *t = b->trainers[b->kind != PLAIN];
    dsc_trainer_time_phases(t, timed);
    for (int64_t i = 0; i < count; i++)
        DSC_CLI_TRY(dsc_trainer_step_on(t, &b->x, &b->labels, NULL));
    report->size = sizeof *report;
    return dsc_trainer_finish(t, report);
}

/* Steps of each kind; round < 0: not timed. */
static dsc_status run_round(bench *b, int64_t round) {
    int host = dsc_device_is_host(b->device);
    for (b->kind = PLAIN; b->kind < (b->trainers[1] ? KINDS : PLAIN + 1); b->kind++) {
        dsc_step_report report;
        int64_t count = b->kind == DECOMPOSE ? 1 : b->group; /* it waits for the device anyway */
        double start = dsc_cli_now();
        DSC_CLI_TRY(run_group(b, 0, count, &report));
        double seconds = (dsc_cli_now() - start) / (double)count;
        dsc_log(DSC_LOG_INFO, "round %lld of %lld: %.4f s a step%s%s", (long long)(round + WARM_UP + 1),
                (long long)(b->steps + WARM_UP), seconds, b->kind == PLAIN ? "" : ", ", kind_names[b->kind]);
        if (!host)
            DSC_CLI_TRY(run_group(b, 1, 1, &report));
        if (round < 0)
            continue;
        b->total[b->kind][round] = seconds;
        for (int i = 0; i < DSC_PHASE_COUNT; i++)
            b->phase[b->kind][i][round] = report.phase_ms[i];
    }
    return DSC_OK;
}

/* Adds (sign 1) or subtracts (-1) the counts of K-FAC's report so far. Collective. */
static dsc_status count_refreshes(bench *b, int sign) {
    const dsc_kfac_report *r;
    if (!b->warm)
        return DSC_OK;
    DSC_CLI_TRY(dsc_kfac_get_report(dsc_trainer_kfac(b->trainers[1]), dsc_trainer_queue(b->trainers[1]), &r));
    b->refreshes[REFRESHED] += sign * r->refreshed_factors;
    b->refreshes[EXTRA_ITERATIONS] += sign * r->extra_iterations;
    b->refreshes[FALLBACKS] += sign * r->exact_fallbacks;
    return DSC_OK;
}

static dsc_status measure(bench *b, const bench_values *v) {
    DSC_CLI_TRY(create_model(b, v));
    const int is_long = 3 * dsc_model_flops(b->model) * (double)b->batch > LONG_STEP;
    b->group = dsc_device_is_host(b->device) ? 1 : is_long ? LONG_GROUP : GROUP;
    DSC_CLI_TRY(create_results(b));
    for (int with_kfac = 0; with_kfac <= v->kfac; with_kfac++)
        DSC_CLI_TRY(create_trainer(b, v->kfac_with, with_kfac));
    DSC_CLI_TRY(create_input(b));
    for (int64_t round = -WARM_UP; round < b->steps; round++) {
        if (round == 0)
            DSC_CLI_TRY(count_refreshes(b, -1));
        DSC_CLI_TRY(run_round(b, round));
    }
    DSC_CLI_TRY(count_refreshes(b, 1));
    b->device_bytes = (double)dsc_device_peak_bytes(b->device);
    return dsc_device_measure_peak(dsc_trainer_queue(b->trainers[0]), b->activations, &b->peak_flops);
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

/* The largest resident set of any rank, in MB of 10^6 bytes. */
static dsc_status peak_rss(bench *b, double *out) {
    dsc_queue *queue = dsc_trainer_queue(b->trainers[0]);
    struct rusage usage;
    dsc_tensor t = {0};
    int64_t one = 1;
    getrusage(RUSAGE_SELF, &usage);
    *out = (double)usage.ru_maxrss * 1024.0 / 1e6;
    DSC_CLI_TRY(dsc_tensor_alloc(b->device, DSC_F64, 1, &one, &t));
    dsc_status status = dsc_tensor_upload(queue, out, sizeof *out, &t);
    if (status == DSC_OK)
        status = dsc_comm_allreduce(b->comm, DSC_TRAFFIC_OTHER, DSC_MAX, &t);
    if (status == DSC_OK)
        status = dsc_tensor_download(queue, &t, sizeof *out, out);
    if (status == DSC_OK)
        status = dsc_queue_sync(queue);
    dsc_tensor_free(&t);
    return status;
}

/* The numbers that are printed; times in seconds. */
typedef struct results {
    double median[KINDS];
    double phase[KINDS][DSC_PHASE_COUNT]; /* milliseconds */
    double extra[KINDS];                  /* median of the difference to the kind before, round by round */
    double least, rate, rss;
    double flops, mfu; /* operations of forward and backward passes per second; their share of the peak */
    int64_t tokens;    /* per sample; 0: the samples are images */
    int ranks, threads, kinds;
} results;

static results summarise(bench *b, double rss) {
    results r = {.ranks = dsc_comm_size(b->comm),
                 .threads = dsc_device_threads(b->device),
                 .kinds = b->trainers[1] ? KINDS : 1,
                 .rss = rss};
    r.tokens = dsc_model_takes_tokens(b->model) ? dsc_model_positions(b->model) : 0;
    for (int i = r.kinds - 1; i >= 0; i--) { /* from the last on: a median sorts */
        for (int64_t j = 0; i > 0 && j < b->steps; j++)
            b->extra[j] = b->total[i][j] - b->total[i - 1][j];
        r.extra[i] = i > 0 ? median(b->extra, b->steps) : 0;
        r.median[i] = median(b->total[i], b->steps);
    }
    for (int i = 0; i < r.kinds; i++)
        for (int j = 0; j < DSC_PHASE_COUNT; j++)
            r.phase[i][j] = median(b->phase[i][j], b->steps);
    r.least = b->total[PLAIN][0];
    r.rate = (double)b->batch * r.ranks / r.median[PLAIN];
    r.flops = r.rate * 3 * dsc_model_flops(b->model);
    r.mfu = b->peak_flops > 0 ? r.flops / (b->peak_flops * r.ranks) : 0;
    return r;
}

/* The phases of a kind of steps that took any time. */
static json_t *phases_json(const results *r, int kind) {
    json_t *phases = json_object();
    for (int i = 0; i < DSC_PHASE_COUNT; i++)
        if (r->phase[kind][i] > 0)
            json_object_set_new(phases, dsc_phase_name((dsc_phase)i), json_real(r->phase[kind][i]));
    return phases;
}

static void print_phases(const results *r, int kind, const char *head) {
    printf("%s", head);
    for (int i = 0, first = 1; i < DSC_PHASE_COUNT; i++)
        if (i != DSC_PHASE_DATA && r->phase[kind][i] > 0) {
            printf("%s%s %.4f s", first ? "" : ", ", dsc_phase_name((dsc_phase)i), r->phase[kind][i] / 1000);
            first = 0;
        }
    printf("\n");
}

static const char *const kind_keys[KINDS] = {"sgd_s", "precondition_s", "factors_s", "decompose_s"};
static const char *const extra_keys[KINDS] = {NULL, "precondition_extra_s", "factors_extra_s",
                                              "decompose_extra_s"};

static dsc_status print_json(const bench *b, const bench_values *v, const results *r) {
    json_t *kfac = json_object();
    json_t *object = json_pack("{s:s, s:I, s:i, s:i, s:I, s:f, s:f, s:f, s:f}", "model", v->model,
                               "batch_size", (json_int_t)b->batch, "threads", r->threads, "ranks", r->ranks,
                               "steps", (json_int_t)b->steps, "median_s", r->median[PLAIN], "min_s", r->least,
                               "images_per_s", r->rate, "peak_rss_mb", r->rss);
    if (r->tokens > 0)
        json_object_set_new(object, "tokens_per_s", json_real(r->rate * (double)r->tokens));
    json_object_set_new(object, "parameters", json_integer(dsc_model_parameter_total(b->model)));
    json_object_set_new(object, "flops_per_sample", json_real(dsc_model_flops(b->model)));
    json_object_set_new(object, "flops_per_s", json_real(r->flops));
    json_object_set_new(object, "peak_flops_per_s", json_real(b->peak_flops * r->ranks));
    json_object_set_new(object, "mfu", json_real(r->mfu));
    json_object_set_new(object, "device_peak_mb", json_real(b->device_bytes / 1e6));
    json_object_set_new(object, "phases_ms", phases_json(r, r->kinds - 1));
    for (int i = 0; i < r->kinds; i++) {
        json_object_set_new(kfac, kind_keys[i], json_real(r->median[i]));
        if (i > 0)
            json_object_set_new(kfac, extra_keys[i], json_real(r->extra[i]));
    }
    for (int i = 0; b->warm && i < REFRESH_COUNTS; i++)
        json_object_set_new(kfac, refresh_keys[i], json_integer((json_int_t)b->refreshes[i]));
    if (b->trainers[1])
        json_object_set(object, "kfac", kfac);
    json_decref(kfac);
    if (!object)
        return DSC_CLI_FAIL(DSC_E_MEMORY, "cannot build the JSON text");
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(object);
    return DSC_OK;
}

static void print_kfac(const bench *b, const results *r) {
    static const char *const optimizers[] = {"SGD", "Adam", "AdamW", "LARS", "LAMB"}; /* as dsc_optim_kind */
    const char *plain = optimizers[b->optim.kind];
    for (int i = 0; i < r->kinds; i++)
        printf("%s%-28s median %.4f s, %.3f of an %s step\n", i == 0 ? "kfac     " : "         ",
               i == PLAIN ? plain : kind_names[i], r->median[i], r->median[i] / r->median[PLAIN], plain);
    for (int i = PRECONDITION; i < r->kinds; i++)
        print_phases(r, i, "         ");
    if (b->warm)
        printf("refresh  %lld factors rotated, %lld extra iterations, %lld solved exactly after a refusal\n",
               (long long)b->refreshes[REFRESHED], (long long)b->refreshes[EXTRA_ITERATIONS],
               (long long)b->refreshes[FALLBACKS]);
}

static void print_text(const bench *b, const bench_values *v, const results *r) {
    printf("model    %s, batch %lld on each of %d %s\n", v->model, (long long)b->batch, r->ranks,
           r->ranks == 1 ? "rank" : "ranks");
    if (r->tokens > 0)
        printf("tokens   %lld in a sequence, vocabulary %lld\n", (long long)r->tokens,
               (long long)dsc_model_classes(b->model));
    printf("device   %s\n", dsc_device_description(b->device));
    printf("step     median %.4f s, least %.4f s of %lld steps\n", r->median[PLAIN], r->least,
           (long long)b->steps);
    print_phases(r, PLAIN, "phases   ");
    if (b->trainers[1])
        print_kfac(b, r);
    if (r->tokens > 0)
        printf("rate     %.1f tokens/s\n", r->rate * (double)r->tokens);
    else
        printf("rate     %.1f images/s\n", r->rate);
    printf("use      %.4g GFLOP/s in forward and backward passes, %.1f %% of the peak of %.4g GFLOP/s\n",
           r->flops * 1e-9, 100 * r->mfu, b->peak_flops * r->ranks * 1e-9);
    printf("memory   peak of the process %.0f MB, of the device %.0f MB\n", r->rss, b->device_bytes / 1e6);
}

static dsc_status print_results(bench *b, const bench_values *v, double rss) {
    results r = summarise(b, rss);
    if (v->json)
        return print_json(b, v, &r);
    print_text(b, v, &r);
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const bench_values *v = values;
    int64_t side, channels, classes;
    double rss = 0;
    (void)set;
    DSC_CLI_TRY(dsc_zoo_default_input(v->model, &side, &channels, &classes));
    bench b = {.batch = v->batch, .steps = v->steps, .activations = v->precision};
    dsc_optim_options_init(&b.optim);
    DSC_CLI_TRY(dsc_optim_parse(v->optimizer, &b.optim.kind));
    b.optim.clip_norm = v->clip_norm;
    session->tune = v->tune;
    DSC_CLI_TRY(dsc_cli_open(session, v->device, v->threads, "auto"));
    b.comm = session->comm;
    b.device = session->device;
    dsc_status status = measure(&b, v);
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
        "Trains on random images, or tokens, in memory: 2 steps to warm up, then --steps that are timed. "
        "Prints "
        "the median and the shortest time of a step, the images or tokens per second of all ranks together, "
        "how much of the devices' peak that is, and memory. Times are those of rank 0, memory is that of the "
        "largest rank; MB are 10^6 bytes. The peak is measured: on a CPU multiply-adds in registers, on a "
        "GPU "
        "products of large matrices in the same precision.\n\n"
        "With --kfac three more kinds of steps are timed: K-FAC that only preconditions the gradient, that "
        "also updates its factors, and that also decomposes them. Plain steps take turns with these; "
        "memory is that of both trainers.\n\n"
        "With --json the result is one object with the keys model, batch_size, threads, ranks, steps, "
        "median_s, min_s, images_per_s (sequences count as images, and tokens_per_s is added), peak_rss_mb, "
        "parameters, flops_per_sample (of the forward pass), flops_per_s (of three times as many), "
        "peak_flops_per_s, mfu (their quotient), device_peak_mb and phases_ms (of the steps that do most); "
        "with --kfac also kfac, with "
        "the medians sgd_s (of plain steps, whatever the optimiser), precondition_s, factors_s and "
        "decompose_s, "
        "and with refresh=warm the counts refreshed_factors, extra_iterations and exact_fallbacks.",
    .examples = "descent bench --model resnet32 --batch-size 128 --threads 2 --steps 20\n"
                "descent bench --model resnet32 --kfac --steps 5\n"
                "mpirun -n 2 descent bench --model resnet32 --threads 1 --json\n"
                "descent bench --device cuda --model resnet50 --batch-size 256 --precision bf16\n"
                "descent bench --model gpt-mini --context 64 --batch-size 12 --optimizer adamw\n",
    .options = options,
    .values_size = sizeof(bench_values),
    .computes = 1,
    .init = init,
    .run = run,
};

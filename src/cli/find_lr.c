/* descent find-lr: a rate range test. Trains for some steps while the learning rate rises from step to step, and
 * reports the rate at which the loss falls fastest. */
#include "cli/cli.h"
#include "cli/files.h"
#include "cli/plot.h"
#include "cli/range_test.h"
#include "cli/signals.h"
#include "cli/support.h"
#include "cli/terminal.h"
#include "cli/train_options.h"
#include "descent/trainer.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct find_lr_values {
    dsc_cli_train_values train; /* begins with the common options */
    double min, max;
    int json;
    int writes; /* 1: --out was given */
} find_lr_values;

#define AT(member) offsetof(find_lr_values, member)

enum { MAX_OPTIONS = 264, STEPS = 100, LEAST_STEPS = 10 };

static const dsc_option own_options[] = {
    {.name = "min",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(min),
     .value = "1e-5",
     .placeholder = "X",
     .range = "(0, 1e9]",
     .help = "{lr} of the first step",
     .group = "Range test"},
    {.name = "max",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(max),
     .value = "10",
     .placeholder = "X",
     .range = "(0, 1e9]",
     .help = "{lr} of the last step"},
    {DSC_CLI_JSON(AT(json))},
    {.name = NULL},
};

static dsc_option options[MAX_OPTIONS]; /* filled in by init */

/* 1 for options of train that a test does not have. */
static int is_left_out(const char *name) {
    return strcmp(name, "dry-run") == 0 || strcmp(name, "print-config") == 0;
}

/* The options are those of train; two of them have another meaning here. */
static void init(void *values) {
    find_lr_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_cli_train_init(&v->train);
    options[0].name = NULL;
    if (dsc_option_join(options, MAX_OPTIONS, own_options, 0, SIZE_MAX, NULL) != DSC_OK ||
        dsc_option_join(options, MAX_OPTIONS, dsc_cli_train_options, 0, SIZE_MAX, NULL) != DSC_OK)
        return;
    int count = 0;
    for (const dsc_option *o = options; o->name; o++)
        if (!is_left_out(o->name))
            options[count++] = *o;
    options[count].name = NULL;
    for (dsc_option *o = options; o->name; o++)
        if (strcmp(o->name, "steps") == 0) {
            o->help = "steps of the test";
            o->default_text = "100";
        } else if (strcmp(o->name, "out") == 0) {
            o->help = "write the result to DIR/find-lr.json; none: write nothing";
            o->default_text = "none";
        }
    dsc_option_defaults(own_options, v);
}

/* ---- the test ---- */

/* The context of the test on one rank. */
typedef struct test_run {
    dsc_cli_session *session;
    dsc_trainer *trainer;
    dsc_range_test *test;
    int gossip;           /* 1: every rank has a loss of its own */
    dsc_tensor numbers;   /* F64[2], for their mean */
    double shown;         /* when progress was printed last */
    int64_t reported;     /* the last step whose loss was added */
    int stopped, is_over; /* a signal came; all steps are done or the loss exploded */
} test_run;

static void show_progress(test_run *r, const dsc_step_report *report) {
    int terminal = dsc_terminal_is(stderr);
    if (!dsc_cli_prints(r->session) || dsc_cli_now() - r->shown < (terminal ? 0.2 : 10))
        return;
    r->shown = dsc_cli_now();
    fprintf(stderr, "%sstep %lld/%lld: rate %.3g, loss %.4f%s", terminal ? "\r" : "",
            (long long)r->test->count, (long long)r->test->planned, report->lr, report->loss,
            terminal ? "\033[K" : "\n");
    fflush(stderr);
}

/* With gossip: averages the losses over the ranks, and stops all ranks if one was asked to stop. Collective. */
static dsc_status share(test_run *r, dsc_step_report *report) {
    dsc_queue *q = dsc_trainer_queue(r->trainer);
    double own[2] = {report->loss / dsc_comm_size(r->session->comm), report->stop_requested};
    DSC_CLI_TRY(dsc_tensor_upload(q, own, sizeof own, &r->numbers));
    DSC_CLI_TRY(dsc_comm_allreduce(r->session->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &r->numbers));
    DSC_CLI_TRY(dsc_tensor_download(q, &r->numbers, sizeof own, own));
    DSC_CLI_TRY(dsc_queue_sync(q));
    report->loss = own[0];
    report->stop_requested = own[1] > 0;
    return DSC_OK;
}

/* Adds the newest result, unless it was added before. On a GPU it is that of the step before the last one. */
static dsc_status take_report(test_run *r, dsc_step_report *report) {
    if (r->gossip)
        DSC_CLI_TRY(share(r, report));
    r->stopped = report->stop_requested;
    if (report->step == 0 || report->step == r->reported)
        return DSC_OK;
    r->reported = report->step;
    r->is_over = dsc_range_test_add(r->test, report->loss);
    show_progress(r, report);
    return DSC_OK;
}

/* Handles the status of a failed step. A loss that is not finite ends the test, as all ranks see the same loss. With
 * gossip only one rank may see it, so there it is a failure. */
static dsc_status step_failed(test_run *r, dsc_status status) {
    if (status != DSC_E_NUMERIC || r->gossip)
        return status;
    r->is_over = dsc_range_test_add(r->test, INFINITY);
    return DSC_OK;
}

static dsc_status run_steps(test_run *r) {
    dsc_step_report report = {.size = sizeof report};
    for (int64_t i = 0; i < r->test->planned && !r->is_over && !r->stopped; i++) {
        dsc_trainer_set_lr(r->trainer, r->test->lr[i]);
        dsc_status status = dsc_trainer_step(r->trainer, &report);
        DSC_CLI_TRY(status == DSC_OK ? take_report(r, &report) : step_failed(r, status));
    }
    if (!r->is_over && !r->stopped) {
        dsc_status status = dsc_trainer_finish(r->trainer, &report);
        DSC_CLI_TRY(status == DSC_OK ? take_report(r, &report) : step_failed(r, status));
    }
    if (dsc_cli_prints(r->session) && dsc_terminal_is(stderr))
        fprintf(stderr, "\r\033[K");
    if (r->stopped)
        return DSC_CLI_FAIL(DSC_E_INTERRUPTED,
                            "stopped after step %lld of the test, as asked; nothing was written",
                            (long long)r->test->count);
    return DSC_OK;
}

static dsc_status run_test(dsc_cli_session *session, const find_lr_values *v, dsc_range_test *test) {
    const int64_t two = 2;
    test_run r = {.session = session, .test = test, .shown = dsc_cli_now(), .reported = -1};
    r.gossip = v->train.consensus.kind != DSC_CONSENSUS_ALLREDUCE && dsc_comm_size(session->comm) > 1;
    DSC_CLI_TRY(dsc_cli_agree(session, dsc_tensor_alloc(session->device, DSC_F64, 1, &two, &r.numbers)));
    dsc_status status = dsc_trainer_create_named(session->comm, session->device, &v->train.o, &r.trainer);
    if (status == DSC_OK)
        status = run_steps(&r);
    dsc_trainer_destroy(&r.trainer);
    dsc_tensor_free(&r.numbers);
    return status;
}

/* ---- the result ---- */

/* The geometric mean of the rates where the loss falls fastest and where it rises again (or is lowest, if it does not
 * rise), but at most a quarter of the latter: the two may be close. NaN when the loss did not fall. */
static double suggest(const dsc_range_rates *rates) {
    double high = isfinite(rates->rises) ? rates->rises : rates->lowest;
    return fmin(sqrt(rates->steepest * high), isfinite(rates->rises) ? high / 4 : high);
}

static void print_rate(const char *text, double rate) {
    if (isfinite(rate))
        printf("%-38s %.2g\n", text, rate);
}

static dsc_status print_plot(const dsc_range_test *test, double suggestion) {
    dsc_plot_options plot = {.title = "smoothed training loss",
                             .x_label = "--lr",
                             .width = dsc_terminal_width(stdout) < 100 ? dsc_terminal_width(stdout) : 100,
                             .height = 17,
                             .utf8 = dsc_terminal_utf8(),
                             .x_is_log10 = 1};
    double *points, at = log10(suggestion), there = NAN;
    DSC_CLI_TRY(dsc_cli_alloc(2 * test->count, sizeof *points, &points));
    double *x = points, *y = points + test->count, low = INFINITY;
    for (int64_t i = 0; i < test->count; i++)
        low = fmin(low, test->smoothed[i]);
    for (int64_t i = 0; i < test->count; i++) {
        x[i] = log10(test->lr[i]);
        y[i] = test->smoothed[i];
        if (y[i] > 2 * test->smoothed[0] - low)
            y[i] = NAN; /* an explosion would press the rest flat */
        if (isfinite(suggestion) && test->lr[i] <= suggestion)
            there = test->smoothed[i];
    }
    const dsc_plot_series series[] = {{"loss", x, y, test->count}, {"suggested rate", &at, &there, 1}};
    dsc_status status = dsc_plot_draw(stdout, series, isfinite(suggestion) ? 2 : 1, &plot);
    dsc_cli_free(&points);
    return status;
}

static dsc_status print_text(const find_lr_values *v, const dsc_range_test *test,
                             const dsc_range_rates *rates) {
    double suggestion = suggest(rates);
    DSC_CLI_TRY(print_plot(test, suggestion));
    printf("\n%lld of %lld steps, --lr %.3g to %.3g%s\n", (long long)test->count, (long long)test->planned,
           test->lr[0], test->lr[test->count > 0 ? test->count - 1 : 0],
           test->exploded ? "; then the loss exploded" : "");
    if (!isfinite(rates->steepest)) {
        printf("The loss did not fall at any of these rates, so there is no suggestion: try other rates "
               "(--min, --max) or more steps (--steps).\n");
        return DSC_OK;
    }
    print_rate("The loss falls fastest at", rates->steepest);
    print_rate("The loss is lowest at", rates->lowest);
    print_rate("The loss rises again from", rates->rises);
    if (!isfinite(rates->rises))
        printf("The loss did not rise again up to --max %g: a higher one may show where it does.\n", v->max);
    printf("\nsuggested: --lr %.2g\n", suggestion);
    return DSC_OK;
}

/* NULL stands for a rate that was not found. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static char *make_json(const find_lr_values *v, const dsc_range_test *test, const dsc_range_rates *rates,
                       int ranks) {
    char *text = NULL;
    json_t *steps = json_array();
    for (int64_t i = 0; i < test->count; i++)
        json_array_append_new(steps, json_pack("{s:f, s:f, s:f}", "lr", test->lr[i], "loss", test->loss[i],
                                               "smoothed", test->smoothed[i]));
    json_t *object = json_pack("{s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:b, s:o}", "model", v->train.o.model,
                               "data", v->train.o.data, "ranks", ranks, "suggestion", number(suggest(rates)),
                               "steepest", number(rates->steepest), "lowest", number(rates->lowest), "rises",
                               number(rates->rises), "exploded", test->exploded, "steps", steps);
    if (object)
        text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    return text;
}

static dsc_status write_json(const char *directory, const char *text) {
    char path[4096];
    DSC_CLI_TRY(dsc_cli_make_directory(directory));
    if (snprintf(path, sizeof path, "%s/find-lr.json", directory) >= (int)sizeof path)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--out %.60s...: the name is too long", directory);
    return dsc_cli_write_file(path, text);
}

static dsc_status show(dsc_cli_session *session, const find_lr_values *v, const char *out,
                       dsc_range_test *test) {
    dsc_range_rates rates = dsc_range_test_rates(test);
    char *json = make_json(v, test, &rates, dsc_comm_size(session->comm));
    dsc_status status = json ? DSC_OK : DSC_CLI_FAIL(DSC_E_MEMORY, "no memory for the result as JSON");
    if (status == DSC_OK && v->json)
        printf("%s\n", json);
    else if (status == DSC_OK)
        status = print_text(v, test, &rates);
    if (status == DSC_OK && out)
        status = write_json(out, json);
    free(json);
    return status;
}

/* ---- the command ---- */

/* With --resume DIR: takes over the options of the run in DIR, except those that have another meaning, or none,
 * here. */
static dsc_status restore(void *values, dsc_option_set *set) {
    find_lr_values *v = values;
    dsc_train_options *o = &v->train.o;
    int steps_given = dsc_option_given(set, "steps"), peers_given = dsc_option_given(set, "on-peer-loss");
    v->writes = dsc_option_given(set, "out");
    DSC_CLI_TRY(dsc_cli_train_restore(&v->train, set));
    if (!steps_given)
        o->steps = 0;
    if (!peers_given)
        o->on_peer_loss = DSC_PEER_LOSS_STOP;
    return DSC_OK;
}

/* Turns off what a test does not need: files and evaluations. */
static dsc_status prepare(find_lr_values *v, const dsc_option_set *set, const char **out) {
    dsc_train_options *o = &v->train.o;
    DSC_CLI_TRY(dsc_cli_train_finish(&v->train, set));
    if (!(v->min < v->max))
        return DSC_CLI_FAIL(DSC_E_INVALID, "--min %g --max %g: the first rate must be below the last", v->min,
                            v->max);
    if (o->steps == 0)
        o->steps = STEPS;
    if (o->steps < LEAST_STEPS || o->steps > 1000000)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--steps %lld: a range test takes %d to 1000000 steps",
                            (long long)o->steps, (int)LEAST_STEPS);
    if (o->on_peer_loss == DSC_PEER_LOSS_CONTINUE)
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "--on-peer-loss continue: a range test needs all of its ranks; leave it out");
    if (o->resume && strcmp(o->resume, "auto") == 0) {
        v->train.dry_run = 1; /* makes no directory */
        DSC_CLI_TRY(dsc_cli_train_choose_out(&v->train));
        o->resume = o->out; /* its latest checkpoint */
    }
    *out = v->writes ? o->out : NULL;
    o->out = o->tensorboard = o->stop_at = NULL;
    o->eval_every = o->distance_every = o->patience = 0;
    o->eval_ranks = 0;
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    find_lr_values *v = values;
    const char *out = NULL;
    dsc_range_test test = {0};
    DSC_CLI_TRY(prepare(v, set, &out));
    DSC_CLI_TRY(dsc_cli_catch_signals());
    DSC_CLI_TRY(dsc_cli_train_open(session, &v->train));
    dsc_status status =
        dsc_cli_agree(session, dsc_range_test_create(v->min, v->max, v->train.o.steps, &test));
    v->train.o.steps = 0; /* the trainer has no end of its own */
    if (status == DSC_OK)
        status = run_test(session, v, &test);
    if (status == DSC_OK)
        status = dsc_cli_agree(session, dsc_cli_prints(session) ? show(session, v, out, &test) : DSC_OK);
    dsc_range_test_free(&test);
    return status;
}

const dsc_cli_command dsc_cli_find_lr = {
    .name = "find-lr",
    .summary = "find a learning rate by a range test",
    .description =
        "Trains for --steps steps while the rate rises by the same factor in every step, from --min to "
        "--max, and ends early when the loss is not finite or four times that of the first step. Takes all "
        "options of train, so that model, data, optimiser, K-FAC, consensus and ranks are those of the "
        "training that the rate is for; those for epochs, schedules, evaluations and checkpoints have no "
        "effect. Rates are values of --lr: with --lr-scaling ranks the rate itself is that times the number "
        "of ranks.\n\n"
        "The losses are smoothed (each is the mean over N/10 steps around it, of N). The loss falls fastest "
        "where the line that fits N/5 steps best is steepest over the logarithm of the rate, up to the "
        "lowest loss. It rises again from the rate on after which it stays above the lowest by a tenth of "
        "what it had fallen. The suggestion is the geometric mean of the two, the middle between them in "
        "the plot, but at most a quarter of the rate from which the loss rises; where it never rises, the "
        "rate of the lowest loss takes its place.\n\n"
        "Nothing stays of the training: the model starts anew (or, with --resume, from that checkpoint and "
        "with the options of its run where no others are given), and no file is written without --out, with "
        "which the result is written to "
        "DIR/find-lr.json as --json prints it: suggestion, steepest, lowest, rises (null: not found), "
        "exploded, and lr, loss and smoothed loss of each step.",
    .examples =
        "descent find-lr --model lenet --data synthetic:4000 --batch-size 64\n"
        "mpirun -n 4 descent find-lr --model resnet32 --data cifar10:data --kfac-update-freq 10 --max 1\n"
        "descent find-lr --config runs/first/config --steps 200 --json\n"
        "descent find-lr --resume runs/first --max 0.1\n",
    .options = options,
    .values_size = sizeof(find_lr_values),
    .computes = 1,
    .init = init,
    .restore = restore,
    .run = run,
};

/* descent report: runs side by side. */
#include "cli/cli.h"
#include "cli/report_parts.h"
#include "cli/support.h"
#include "cli/terminal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct report_values {
    dsc_cli_common common;
    int no_plot, csv, json;
    int plot, over; /* dsc_report_y, dsc_report_x */
    double target;  /* in percent; 0: that of each run */
    const char *html;
} report_values;

#define AT(member) offsetof(report_values, member)

static const dsc_option options[] = {
    {.name = "plot",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(plot),
     .value = "auto",
     .choices = DSC_CLI_CHOICES("auto", "top1", "top5", "loss", "train-loss", "lr"),
     .help = "what to plot: accuracy or loss on the validation set, training loss, learning rate; auto: "
             "accuracy, or "
             "the loss of models of text and pixels",
     .group = "Report"},
    {.name = "over",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(over),
     .value = "epoch",
     .choices = DSC_CLI_CHOICES("epoch", "step", "time"),
     .help = "what to plot it over"},
    {.name = "target",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(target),
     .placeholder = "X",
     .range = "(0, 100]",
     .default_text = "that of --stop-at",
     .help = "show the time until each run reached this top-1 accuracy, in percent"},
    {.name = "no-plot", .kind = DSC_OPTION_FLAG, .offset = AT(no_plot), .help = "print the table only"},
    {.name = "csv",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(csv),
     .help = "print the table as comma-separated values; accuracies are fractions, times seconds"},
    {DSC_CLI_JSON(AT(json))},
    {.name = "html",
     .kind = DSC_OPTION_STRING,
     .offset = AT(html),
     .placeholder = "FILE",
     .help = "write a page with interactive figures instead, which a browser shows without a network"},
    DSC_CLI_COMMON_OPTIONS,
};

static void init(void *values) {
    memset(values, 0, sizeof(report_values));
}

/* ---- finding runs ---- */

static void pass_over(const char *name, const char *why) {
    fprintf(stderr, "descent: passed over '%s': %s\n", name, why);
}

static int has_metrics(const char *directory) {
    struct stat info;
    char path[4096];
    return snprintf(path, sizeof path, "%s/metrics.jsonl", directory) < (int)sizeof path &&
           stat(path, &info) == 0;
}

static dsc_status add_run(dsc_report_runs *runs, const char *name) {
    if (runs->count == runs->capacity) {
        int64_t capacity = runs->capacity > 0 ? 2 * runs->capacity : 16;
        dsc_runlog **larger;
        DSC_CLI_TRY(dsc_cli_alloc(capacity, sizeof *larger, &larger));
        if (runs->count > 0)
            memcpy(larger, runs->logs, (size_t)runs->count * sizeof *larger);
        dsc_cli_free(&runs->logs);
        runs->logs = larger;
        runs->capacity = capacity;
    }
    dsc_status status = dsc_runlog_read(name, &runs->logs[runs->count]);
    if (status == DSC_OK)
        runs->count++;
    else if (status == DSC_E_FORMAT || status == DSC_E_NOT_FOUND || status == DSC_E_IO)
        pass_over(name, dsc_error_message());
    else
        return status;
    return DSC_OK;
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* Adds the runs in the directories that `directory` holds, by their names. */
static dsc_status add_below(dsc_report_runs *runs, const char *directory) {
    struct dirent **entries = NULL;
    dsc_status status = DSC_OK;
    int count = scandir(directory, &entries, is_visible, alphasort), found = 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name) < (int)sizeof path &&
            status == DSC_OK && has_metrics(path)) {
            status = add_run(runs, path);
            found = 1;
        }
        free(entries[i]);
    }
    free(entries);
    if (!found)
        pass_over(directory, "it has no metrics.jsonl, nor has a directory in it");
    return status;
}

/* Adds the runs of `name`: the directory of a run, a file of metrics, or a directory with directories of runs. */
static dsc_status add_named(dsc_report_runs *runs, const char *name) {
    struct stat info;
    char trimmed[4096];
    int length = snprintf(trimmed, sizeof trimmed, "%s", name);
    while (length > 1 && length < (int)sizeof trimmed && trimmed[length - 1] == '/')
        trimmed[--length] = '\0';
    if (length >= (int)sizeof trimmed || lstat(trimmed, &info) != 0)
        return dsc_runlog_read(name, &(dsc_runlog *){NULL}); /* fails, and says why */
    if (stat(trimmed, &info) == 0 && S_ISDIR(info.st_mode) && !has_metrics(trimmed))
        return add_below(runs, trimmed);
    return add_run(runs, trimmed);
}

/* ---- showing them ---- */

static void print_notes(const dsc_report_runs *runs) {
    for (int64_t i = 0; i < runs->count; i++) {
        const dsc_runlog *log = runs->logs[i];
        if (*log->error)
            printf("%s: %s: %s\n", log->label, log->status, log->error);
        for (int j = 0; j < log->alarm_count; j++)
            printf("%s: %s\n", log->label, log->alarms[j]);
    }
}

static dsc_status print_text(const dsc_report_runs *runs, const report_values *v) {
    DSC_CLI_TRY(dsc_report_print_table(stdout, runs, dsc_terminal_width(stdout)));
    print_notes(runs);
    if (v->no_plot)
        return DSC_OK;
    printf("\n");
    return dsc_report_plot(stdout, runs->logs, runs->count, (dsc_report_y)v->plot, (dsc_report_x)v->over);
}

static dsc_status show(const dsc_report_runs *runs, const report_values *v) {
    const dsc_runlog *bad = NULL;
    if (runs->count == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID, "none of these is a run: name the --out directories of runs");
    if (v->html) {
        DSC_CLI_TRY(dsc_report_write_html(v->html, runs));
        printf("written: %s\n", v->html);
    } else if (v->json)
        DSC_CLI_TRY(dsc_report_print_json(stdout, runs));
    else if (v->csv)
        DSC_CLI_TRY(dsc_report_print_csv(stdout, runs));
    else
        DSC_CLI_TRY(print_text(runs, v));
    for (int64_t i = 0; i < runs->count; i++)
        if (runs->logs[i]->bad_lines > 0 && !bad)
            bad = runs->logs[i];
    if (bad)
        return DSC_CLI_FAIL(DSC_E_FORMAT, "%s (%lld such lines were skipped)", bad->first_bad,
                            (long long)bad->bad_lines);
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const report_values *v = values;
    int64_t count = dsc_option_positional_count(set);
    dsc_report_runs runs = {.target = v->target};
    dsc_status status = DSC_OK;
    if (count == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID, "report needs at least one run: descent report OUT [OUT...]");
    if (v->csv + v->json + (v->html != NULL) > 1)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--csv, --json and --html: choose one of them");
    if (!dsc_cli_prints(session))
        return DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        status = add_named(&runs, dsc_option_positional(set, i));
    for (int64_t i = 0; i < runs.count && v->target > 0; i++)
        runs.logs[i]->target_s = dsc_runlog_time_to(runs.logs[i], v->target);
    if (status == DSC_OK)
        status = show(&runs, v);
    for (int64_t i = 0; i < runs.count; i++)
        dsc_runlog_destroy(&runs.logs[i]);
    dsc_cli_free(&runs.logs);
    return status;
}

const dsc_cli_command dsc_cli_report = {
    .name = "report",
    .summary = "show runs side by side, with a plot of their accuracy",
    .arguments = "OUT [OUT...]",
    .description =
        "Reads the metrics.jsonl of each run (OUT is its directory, the file, or a directory that holds "
        "those of several runs) and prints one table and one plot. What is no run is passed over with a "
        "note. Runs that have not ended yet can be shown, too.\n\n"
        "The table has the status of each run (done, running, stopped by a signal, diverged, failed for "
        "another reason, or died without a word), the best and the last accuracy, the loss of the last "
        "evaluation, the time until the run reached its target (--stop-at, or --target of this command), the "
        "whole time, and a column for every option in which the runs differ; a dash stands for "
        "an option that a run does not use. Columns for which the terminal is too narrow follow below. "
        "Errors, and alarms that a run gave (about K-FAC), follow the table.\n\n"
        "--html writes one file that holds everything it needs: curves over epochs, steps or time, with "
        "values under the pointer, zoom, and runs switched on and off; the time of each phase; what ranks "
        "send; K-FAC's eigenvalues, cosines and nu of each layer; the distance of ranks that gossip.\n\n"
        "Lines that cannot be read are skipped; the first of them is named at the end, with exit status 2.",
    .examples = "descent report runs/lenet-synthetic-1\n"
                "descent report runs --plot loss --over time\n"
                "descent report runs --target 90\n"
                "descent report runs/one-process runs/two-ranks --csv\n"
                "descent report runs --html report.html\n",
    .options = options,
    .values_size = sizeof(report_values),
    .init = init,
    .run = run,
};

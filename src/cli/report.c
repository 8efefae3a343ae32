/* descent report: runs side by side. */
#include "cli/cli.h"
#include "cli/runlog.h"
#include "cli/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct report_values {
    dsc_cli_common common;
    int no_plot;
} report_values;

static const dsc_option options[] = {
    {.name = "no-plot",
     .kind = DSC_OPTION_FLAG,
     .offset = offsetof(report_values, no_plot),
     .help = "print the table only",
     .group = "Report"},
    DSC_CLI_COMMON_OPTIONS,
};

static void init(void *values) {
    memset(values, 0, sizeof(report_values));
}

/* A number, or a dash where there is none. */
static const char *cell(double value, int digits, char *text, size_t size) {
    if (isfinite(value))
        snprintf(text, size, "%.*f", digits, value);
    else
        snprintf(text, size, "-");
    return text;
}

static void print_table(dsc_runlog *const *logs, int64_t count) {
    int width = 3;
    char top1[32], loss[32], rate[32], seconds[32];
    for (int64_t i = 0; i < count; i++)
        width = (int)strlen(logs[i]->name) > width ? (int)strlen(logs[i]->name) : width;
    printf("%-*s  %5s  %6s  %10s  %10s  %9s  %9s\n", width, "run", "ranks", "epochs", "best top-1",
           "final loss", "images/s", "seconds");
    for (int64_t i = 0; i < count; i++) {
        const dsc_runlog *log = logs[i];
        printf("%-*s  %5lld  %6lld  %8s %%  %10s  %9s  %9s\n", width, log->name, (long long)log->ranks,
               (long long)log->epochs, cell(log->best_top1, 2, top1, sizeof top1),
               cell(log->loss, 4, loss, sizeof loss), cell(log->images_per_s, 0, rate, sizeof rate),
               cell(log->seconds, 1, seconds, sizeof seconds));
    }
}

static void print_alarms(dsc_runlog *const *logs, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        for (int j = 0; j < logs[i]->alarm_count; j++)
            printf("%s: %s\n", logs[i]->name, logs[i]->alarms[j]);
}

static dsc_status show(dsc_runlog *const *logs, int64_t count, int plot) {
    const dsc_runlog *bad = NULL;
    print_table(logs, count);
    print_alarms(logs, count);
    for (int64_t i = 0; i < count; i++)
        if (logs[i]->bad_lines > 0 && !bad)
            bad = logs[i];
    if (plot) {
        printf("\n");
        DSC_CLI_TRY(dsc_runlog_plot(stdout, logs, count));
    }
    if (bad)
        return DSC_CLI_FAIL(DSC_E_FORMAT, "%s (%lld such lines were skipped)", bad->first_bad,
                            (long long)bad->bad_lines);
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const report_values *v = values;
    int64_t count = dsc_option_positional_count(set);
    dsc_runlog **logs;
    dsc_status status = DSC_OK;
    if (count == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID, "report needs at least one run: descent report OUT [OUT...]");
    if (!dsc_cli_prints(session))
        return DSC_OK;
    DSC_CLI_TRY(dsc_cli_alloc(count, sizeof *logs, &logs));
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        status = dsc_runlog_read(dsc_option_positional(set, i), &logs[i]);
    if (status == DSC_OK)
        status = show(logs, count, !v->no_plot);
    for (int64_t i = 0; i < count; i++)
        dsc_runlog_destroy(&logs[i]);
    dsc_cli_free(&logs);
    return status;
}

const dsc_cli_command dsc_cli_report = {
    .name = "report",
    .summary = "show runs side by side, with a plot of their accuracy",
    .arguments = "OUT [OUT...]",
    .description = "Reads the metrics.jsonl of each run (OUT is its directory or the file) and prints one "
                   "table and one plot of the top-1 accuracy on the validation set over epochs. Runs that "
                   "have not ended yet can be shown, too.\n\n"
                   "Alarms that a run gave (about K-FAC) follow the table.\n\n"
                   "The final loss is that of the last evaluation. Lines that cannot be read are skipped; "
                   "the first of them is named at the end, with exit status 2.",
    .examples = "descent report runs/lenet-synthetic-42\n"
                "descent report runs/one-process runs/two-ranks --no-plot\n",
    .options = options,
    .values_size = sizeof(report_values),
    .init = init,
    .run = run,
};

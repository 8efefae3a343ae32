/* The plot of `descent report` in the terminal. */
#include "cli/plot.h"
#include "cli/report_parts.h"
#include "cli/support.h"
#include "cli/terminal.h"

#include <math.h>

/* What can be plotted: where it is, and the title. Runs with few lines of epochs plot their steps. */
static const struct {
    int table;
    const char *key, *title;
    double factor;
} values[] = {
    [DSC_REPORT_TOP1] = {DSC_RUNLOG_EVALS, "top1", "top-1 accuracy on the validation set, %", 100},
    [DSC_REPORT_TOP5] = {DSC_RUNLOG_EVALS, "top5", "top-5 accuracy on the validation set, %", 100},
    [DSC_REPORT_LOSS] = {DSC_RUNLOG_EVALS, "loss", "loss on the validation set", 1},
    [DSC_REPORT_TRAIN_LOSS] = {DSC_RUNLOG_EPOCHS, "loss", "training loss, means of epochs", 1},
    [DSC_REPORT_LR] = {DSC_RUNLOG_STEPS, "lr", "learning rate", 1},
};

/* The unit of time in which the longest run has a handy number. */
static double time_unit(dsc_runlog *const *logs, int64_t count, const char **label) {
    double longest = 0;
    for (int64_t i = 0; i < count; i++)
        longest = fmax(longest, logs[i]->seconds); /* which ignores NaN */
    *label = longest < 300 ? "seconds" : longest < 3 * 3600 ? "minutes" : "hours";
    return longest < 300 ? 1 : longest < 3 * 3600 ? 60 : 3600;
}

/* One curve; its memory is at *points. */
static dsc_status make_series(const dsc_runlog *log, dsc_report_y y, dsc_report_x x, double unit,
                              double **points, dsc_plot_series *out) {
    const dsc_runlog_table *table = &log->tables[values[y].table];
    int64_t key = dsc_runlog_column(table, values[y].key);
    DSC_CLI_TRY(dsc_cli_alloc(2 * table->rows, sizeof **points, points));
    for (int64_t i = 0; i < table->rows; i++) {
        const double *row = table->values + i * table->columns;
        (*points)[i] = row[x == DSC_REPORT_EPOCH  ? DSC_RUNLOG_EPOCH
                           : x == DSC_REPORT_STEP ? DSC_RUNLOG_STEP
                                                  : DSC_RUNLOG_TIME] /
                       unit;
        (*points)[table->rows + i] = values[y].factor * row[key];
    }
    *out = (dsc_plot_series){log->label, *points, *points + table->rows, table->rows};
    return DSC_OK;
}

dsc_status dsc_report_plot(FILE *out, dsc_runlog *const *logs, int64_t count, dsc_report_y y,
                           dsc_report_x x) {
    dsc_plot_series *series = NULL;
    double **points = NULL, unit = 1;
    dsc_plot_options options = {.title = values[y].title,
                                .x_label = x == DSC_REPORT_EPOCH ? "epoch" : "step",
                                .width = dsc_terminal_width(out),
                                .height = 17,
                                .utf8 = dsc_terminal_utf8()};
    if (options.width > 100)
        options.width = 100;
    if (x == DSC_REPORT_TIME)
        unit = time_unit(logs, count, &options.x_label);
    dsc_status status = dsc_cli_alloc(count, sizeof *series, &series);
    if (status == DSC_OK)
        status = dsc_cli_alloc(count, sizeof *points, &points);
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        status = make_series(logs[i], y, x, unit, &points[i], &series[i]);
    if (status == DSC_OK)
        status = dsc_plot_draw(out, series, count, &options);
    for (int64_t i = 0; i < count && points; i++)
        dsc_cli_free(&points[i]);
    dsc_cli_free(&points);
    dsc_cli_free(&series);
    return status;
}

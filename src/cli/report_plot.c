/* The plot of `descent report` in the terminal. */
#include "cli/plot.h"
#include "cli/report_parts.h"
#include "cli/support.h"
#include "cli/terminal.h"

#include <math.h>
#include <string.h>

/* The values that can be plotted: table and key, the key for the average of the weights (NULL: none), and title. */
static const struct {
    int table;
    const char *key, *ema_key, *title;
    double factor;
} values[] = {
    [DSC_REPORT_TOP1] = {DSC_RUNLOG_EVALS, "top1", "ema_top1", "top-1 accuracy on the validation set, %",
                         100},
    [DSC_REPORT_TOP5] = {DSC_RUNLOG_EVALS, "top5", "ema_top5", "top-5 accuracy on the validation set, %",
                         100},
    [DSC_REPORT_LOSS] = {DSC_RUNLOG_EVALS, "loss", "ema_loss", "loss on the validation set", 1},
    [DSC_REPORT_TRAIN_LOSS] = {DSC_RUNLOG_EPOCHS, "loss", NULL, "training loss, means of epochs", 1},
    [DSC_REPORT_LR] = {DSC_RUNLOG_STEPS, "lr", NULL, "learning rate", 1},
};

/* The unit of time in which the longest run has a handy number. */
static double time_unit(dsc_runlog *const *logs, int64_t count, const char **label) {
    double longest = 0;
    for (int64_t i = 0; i < count; i++)
        longest = fmax(longest, logs[i]->seconds); /* fmax ignores NaN */
    *label = longest < 300 ? "seconds" : longest < 3 * 3600 ? "minutes" : "hours";
    return longest < 300 ? 1 : longest < 3 * 3600 ? 60 : 3600;
}

/* The memory of one curve: x, y and the text of the legend. */
typedef struct curve {
    double *points;
    char *label;
} curve;

static int has_values(const dsc_runlog_table *table, int64_t column) {
    int found = 0;
    for (int64_t i = 0; i < table->rows && column >= 0; i++)
        found |= isfinite(table->values[i * table->columns + column]);
    return found;
}

/* The curve of a key of a run. The average of the weights is marked in the legend. */
static dsc_status make_series(const dsc_runlog *log, dsc_report_y y, dsc_report_x x, int ema, double unit,
                              curve *made, dsc_plot_series *out) {
    const dsc_runlog_table *table = &log->tables[values[y].table];
    const int64_t key = dsc_runlog_column(table, ema ? values[y].ema_key : values[y].key);
    const int64_t size = (int64_t)strlen(log->label) + 16;
    DSC_CLI_TRY(dsc_cli_alloc(2 * table->rows, sizeof *made->points, &made->points));
    DSC_CLI_TRY(dsc_cli_alloc(size, 1, &made->label));
    snprintf(made->label, (size_t)size, "%s%s", log->label, ema ? " (EMA)" : "");
    for (int64_t i = 0; i < table->rows; i++) {
        const double *row = table->values + i * table->columns;
        made->points[i] = row[x == DSC_REPORT_EPOCH  ? DSC_RUNLOG_EPOCH
                              : x == DSC_REPORT_STEP ? DSC_RUNLOG_STEP
                                                     : DSC_RUNLOG_TIME] /
                          unit;
        made->points[table->rows + i] = values[y].factor * row[key];
    }
    *out = (dsc_plot_series){made->label, made->points, made->points + table->rows, table->rows};
    return DSC_OK;
}

static dsc_report_y choose(dsc_runlog *const *logs, int64_t count) {
    int by_loss = count > 0;
    for (int64_t i = 0; i < count; i++)
        by_loss &= logs[i]->by_loss;
    return by_loss ? DSC_REPORT_LOSS : DSC_REPORT_TOP1;
}

dsc_status dsc_report_plot(FILE *out, dsc_runlog *const *logs, int64_t count, dsc_report_y wanted,
                           dsc_report_x x) {
    const dsc_report_y y = wanted == DSC_REPORT_AUTO ? choose(logs, count) : wanted;
    dsc_plot_series *series = NULL;
    curve *curves = NULL;
    int64_t drawn = 0;
    double unit = 1;
    dsc_plot_options options = {.title = values[y].title,
                                .x_label = x == DSC_REPORT_EPOCH ? "epoch" : "step",
                                .width = dsc_terminal_width(out),
                                .height = 17,
                                .utf8 = dsc_terminal_utf8()};
    if (options.width > 100)
        options.width = 100;
    if (x == DSC_REPORT_TIME)
        unit = time_unit(logs, count, &options.x_label);
    dsc_status status = dsc_cli_alloc(2 * count, sizeof *series, &series);
    if (status == DSC_OK)
        status = dsc_cli_alloc(2 * count, sizeof *curves, &curves);
    for (int64_t i = 0; i < 2 * count && status == DSC_OK; i++) {
        const dsc_runlog *log = logs[i / 2];
        const dsc_runlog_table *table = &log->tables[values[y].table];
        const int ema = (int)(i % 2);
        if (ema && (!values[y].ema_key || !has_values(table, dsc_runlog_column(table, values[y].ema_key))))
            continue;
        status = make_series(log, y, x, ema, unit, &curves[drawn], &series[drawn]);
        drawn++;
    }
    if (status == DSC_OK)
        status = dsc_plot_draw(out, series, drawn, &options);
    for (int64_t i = 0; i < drawn; i++) {
        dsc_cli_free(&curves[i].points);
        dsc_cli_free(&curves[i].label);
    }
    dsc_cli_free(&curves);
    dsc_cli_free(&series);
    return status;
}

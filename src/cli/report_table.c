/* Runs as a table, as CSV and as JSON. */
#include "cli/cli.h"
#include "cli/json_out.h"
#include "cli/report_parts.h"
#include "cli/support.h"

#include <math.h>
#include <string.h>

/* ---- columns ---- */

/* The results of a run: the title in the table, the key in CSV and JSON, and the value. Accuracies are in
 * percent in the table, fractions elsewhere, as in the metrics. */
static const struct result {
    const char *title, *key;
    size_t offset;
    int digits; /* after the point in the table; -1: a whole number, -2: a duration */
    double factor;
    int is_rare; /* 1: the table has the column only where a run has the value */
} results[] = {
    {"epochs", "epochs", offsetof(dsc_runlog, epochs), -1, 1, 0},
    {NULL, "steps", offsetof(dsc_runlog, steps), -1, 1, 0},
    {"best loss", "best_loss", offsetof(dsc_runlog, best_loss), 4, 1, 1},
    {"best top-1", "best_top1", offsetof(dsc_runlog, best_top1), 2, 0.01, 0},
    {NULL, "best_epoch", offsetof(dsc_runlog, best_epoch), 2, 1, 0},
    {"top-1", "top1", offsetof(dsc_runlog, top1), 2, 0.01, 0},
    {"pixel error", "pixel_error", offsetof(dsc_runlog, pixel_error), 2, 0.01, 1},
    {"EMA top-1", "ema_top1", offsetof(dsc_runlog, ema_top1), 2, 0.01, 1},
    {"loss", "loss", offsetof(dsc_runlog, loss), 4, 1, 0},
    {"to target", "target_s", offsetof(dsc_runlog, target_s), -2, 1, 1},
    {"time", "time_s", offsetof(dsc_runlog, seconds), -2, 1, 0},
    {"images/s", "images_per_s", offsetof(dsc_runlog, images_per_s), 0, 1, 0},
    {"tokens/s", "tokens_per_s", offsetof(dsc_runlog, tokens_per_s), 0, 1, 1},
    {"mfu", "mfu", offsetof(dsc_runlog, mfu), 1, 0.01, 1},
};
enum { RESULTS = sizeof results / sizeof results[0] };

static double result_value(const dsc_runlog *log, const struct result *r) {
    const void *value = (const char *)log + r->offset;
    return r->digits == -1 ? (double)*(const int64_t *)value : *(const double *)value;
}

/* 1 when the table shows this result of a run: images per second not for models of tokens, and accuracies not for
 * models of pixels, which have the share of wrong pixels instead. */
static int is_told(const dsc_runlog *log, const struct result *r) {
    if (r->offset == offsetof(dsc_runlog, images_per_s))
        return log->tokens == 0;
    if (strstr(r->key, "top1"))
        return !isfinite(log->pixel_error);
    return 1;
}

/* A number of the table, or a dash where there is none. */
static const char *result_text(const dsc_runlog *log, const struct result *r, char *text, size_t size) {
    double value = result_value(log, r);
    if (!isfinite(value) || !is_told(log, r))
        snprintf(text, size, "-");
    else if (r->digits == -2)
        dsc_cli_duration(value, text, size);
    else if (fabs(value) >= 1e6 || (r->digits > 2 && fabs(value) >= 1e4))
        snprintf(text, size, "%.3g", value);
    else
        snprintf(text, size, "%.*f%s", r->digits < 0 ? 0 : r->digits, value, r->factor == 0.01 ? " %" : "");
    return text;
}

void dsc_report_each_result(const dsc_runlog *log, FILE *out, void (*write)(FILE *out, double value)) {
    for (int r = 0; r < RESULTS; r++) {
        fprintf(out, ",\"%s\":", results[r].key);
        write(out, result_value(log, &results[r]) * results[r].factor);
    }
}

static int is_target(const struct result *r) {
    return r->offset == offsetof(dsc_runlog, target_s);
}

/* 1 when the table has the column: some run shows it, and rare columns need a run that has a value. */
static int is_shown(const dsc_report_runs *runs, const struct result *r) {
    int found = (is_target(r) && runs->target > 0) || runs->count == 0;
    for (int64_t i = 0; i < runs->count && !found; i++)
        found = is_told(runs->logs[i], r) && (!r->is_rare || isfinite(result_value(runs->logs[i], r)));
    return r->title && found;
}

static dsc_status add_results(const dsc_report_runs *runs, dsc_report_columns *columns) {
    dsc_report_column *column;
    DSC_CLI_TRY(dsc_report_add_column(columns, "run", 0, &column));
    for (int64_t i = 0; i < runs->count; i++)
        DSC_CLI_TRY(dsc_report_set_cell(column, i, runs->logs[i]->label));
    DSC_CLI_TRY(dsc_report_add_column(columns, "status", 0, &column));
    for (int64_t i = 0; i < runs->count; i++)
        DSC_CLI_TRY(dsc_report_set_cell(column, i, *runs->logs[i]->status ? runs->logs[i]->status : "-"));
    for (int r = 0; r < RESULTS; r++) {
        char text[32];
        if (!is_shown(runs, &results[r]))
            continue;
        snprintf(text, sizeof text, "to %g %%", runs->target);
        DSC_CLI_TRY(dsc_report_add_column(
            columns, is_target(&results[r]) && runs->target > 0 ? text : results[r].title, 1, &column));
        for (int64_t i = 0; i < runs->count; i++)
            DSC_CLI_TRY(
                dsc_report_set_cell(column, i, result_text(runs->logs[i], &results[r], text, sizeof text)));
    }
    return DSC_OK;
}

/* ---- the table ---- */

/* The characters of a text in UTF-8. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static int column_width(const dsc_report_column *column, int64_t rows) {
    int width = width_of(column->title);
    for (int64_t i = 0; i < rows; i++)
        if (width_of(column->cells[i]) > width)
            width = width_of(column->cells[i]);
    return width;
}

/* Prints row `row` (-1: the titles) of the first column and of the columns first .. last - 1. */
static void print_row(FILE *out, const dsc_report_columns *columns, int64_t row, int64_t first,
                      int64_t last) {
    for (int64_t i = 0; i < last; i = i == 0 ? first : i + 1) {
        const dsc_report_column *column = &columns->list[i];
        const char *text = row < 0 ? column->title : column->cells[row];
        int gap = column_width(column, columns->rows) - width_of(text);
        fprintf(out, "%s", i == 0 ? "" : "  ");
        if (column->right)
            fprintf(out, "%*s%s", gap, "", text);
        else
            fprintf(out, "%s%*s", text, i == last - 1 ? 0 : gap, "");
    }
    fputc('\n', out);
}

/* The first `together` columns begin one block and the others the next, unless all fit side by side. */
static void print_columns(FILE *out, const dsc_report_columns *columns, int64_t together, int width) {
    int name = column_width(&columns->list[0], columns->rows), all = name;
    for (int64_t i = 1; i < columns->count; i++)
        all += 2 + column_width(&columns->list[i], columns->rows);
    for (int64_t first = 1; first < columns->count;) {
        int used = name + 2 + column_width(&columns->list[first], columns->rows);
        int64_t last = first + 1, end = all > width && first < together ? together : columns->count;
        while (last < end && used + 2 + column_width(&columns->list[last], columns->rows) <= width)
            used += 2 + column_width(&columns->list[last++], columns->rows);
        if (first > 1)
            fputc('\n', out);
        for (int64_t row = -1; row < columns->rows; row++)
            print_row(out, columns, row, first, last);
        first = last;
    }
}

dsc_status dsc_report_print_table(FILE *out, const dsc_report_runs *runs, int width) {
    dsc_report_columns columns = {.rows = runs->count};
    dsc_status status = add_results(runs, &columns);
    int64_t results_count = columns.count;
    if (status == DSC_OK)
        status = dsc_report_add_differences(runs, &columns);
    if (status == DSC_OK)
        print_columns(out, &columns, results_count, width);
    dsc_report_columns_free(&columns);
    return status;
}

/* ---- CSV ---- */

static void print_csv(FILE *out, const dsc_report_runs *runs, const dsc_report_columns *columns) {
    fputs("run,status", out);
    for (int r = 0; r < RESULTS; r++)
        fprintf(out, ",%s", results[r].key);
    for (int64_t c = 0; c < columns->count; c++) {
        fputc(',', out);
        dsc_cli_print_csv(out, columns->list[c].title);
    }
    fputc('\n', out);
    for (int64_t i = 0; i < runs->count; i++) {
        dsc_cli_print_csv(out, runs->logs[i]->name);
        fputc(',', out);
        dsc_cli_print_csv(out, runs->logs[i]->status);
        for (int r = 0; r < RESULTS; r++) {
            double value = result_value(runs->logs[i], &results[r]) * results[r].factor;
            fprintf(out, isfinite(value) ? ",%.10g" : ",", value);
        }
        for (int64_t c = 0; c < columns->count; c++) {
            const char *cell = columns->list[c].cells[i];
            fputc(',', out);
            dsc_cli_print_csv(out, strcmp(cell, "-") == 0 ? "" : cell);
        }
        fputc('\n', out);
    }
}

dsc_status dsc_report_print_csv(FILE *out, const dsc_report_runs *runs) {
    dsc_report_columns columns = {.rows = runs->count};
    dsc_status status = dsc_report_add_differences(runs, &columns);
    if (status == DSC_OK)
        print_csv(out, runs, &columns);
    dsc_report_columns_free(&columns);
    return status;
}

/* ---- JSON ---- */

static json_t *number(double value) {
    if (!isfinite(value))
        return json_null();
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *list_evals(const dsc_runlog *log) {
    const dsc_runlog_table *evals = &log->tables[DSC_RUNLOG_EVALS];
    json_t *list = json_array();
    for (int64_t i = 0; i < evals->rows; i++) {
        json_t *eval = json_object();
        for (int64_t c = 0; c < evals->columns; c++) {
            double value = evals->values[i * evals->columns + c];
            if (isfinite(value) || c < DSC_RUNLOG_TIME + 3)
                json_object_set_new(eval, evals->keys[c], number(value));
        }
        json_array_append_new(list, eval);
    }
    return list;
}

static void describe_run(const dsc_runlog *log, json_t *run) {
    static const char *const facts[] = {"version", "device", "ranks", "parameters", "samples", "config"};
    json_t *name = json_string(log->name); /* NULL for a name that is not UTF-8 */
    json_object_set_new(run, "run", name ? name : json_string(log->label));
    json_object_set_new(run, "status", json_string(log->status));
    json_object_set_new(run, "error", *log->error ? json_string(log->error) : json_null());
    for (int r = 0; r < RESULTS; r++)
        json_object_set_new(run, results[r].key, number(result_value(log, &results[r]) * results[r].factor));
    json_t *alarms = json_array();
    for (int i = 0; i < log->alarm_count; i++)
        json_array_append_new(alarms, json_string(log->alarms[i]));
    json_object_set_new(run, "alarms", alarms);
    json_object_set_new(run, "evals", list_evals(log));
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        json_t *value = json_object_get(log->run, facts[i]);
        json_object_set(run, facts[i], value ? value : json_null());
    }
}

dsc_status dsc_report_print_json(FILE *out, const dsc_report_runs *runs) {
    json_t *all = json_object(), *list = json_array();
    dsc_report_columns columns = {.rows = runs->count};
    dsc_status status = dsc_report_add_differences(runs, &columns);
    for (int64_t i = 0; i < runs->count && status == DSC_OK; i++) {
        json_t *run = json_object(), *differs = json_object();
        describe_run(runs->logs[i], run);
        for (int64_t c = 0; c < columns.count; c++)
            json_object_set_new(differs, columns.list[c].title, json_string(columns.list[c].cells[i]));
        json_object_set_new(run, "differs", differs);
        json_array_append_new(list, run);
    }
    json_object_set_new(all, "runs", list);
    if (status == DSC_OK)
        dsc_cli_print_json(all, out);
    dsc_report_columns_free(&columns);
    json_decref(all);
    return status;
}

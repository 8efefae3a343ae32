/* Reads metrics.jsonl line by line. Lines that are damaged are skipped and counted, values of a wrong type
 * are ignored. */
#include "cli/runlog.h"

#include "cli/plot.h"
#include "cli/support.h"
#include "cli/terminal.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void dsc_runlog_destroy(dsc_runlog **log) {
    if (!log || !*log)
        return;
    dsc_cli_free(&(*log)->eval_epoch);
    dsc_cli_free(&(*log)->eval_top1);
    dsc_cli_free(&(*log)->name);
    dsc_cli_free(log);
}

/* ---- one line ---- */

static void mark_bad(dsc_runlog *log, const char *file, int64_t line, const char *why) {
    if (log->bad_lines++ == 0)
        snprintf(log->first_bad, sizeof log->first_bad, "%.300s:%lld: %.150s", file, (long long)line, why);
}

static int get_number(const json_t *line, const char *key, double *out) {
    const json_t *value = json_object_get(line, key);
    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        return 0;
    *out = json_number_value(value);
    return 1;
}

/* A whole number that is at least 0, and small enough for sums not to overflow. */
static int get_count(const json_t *line, const char *key, int64_t *out) {
    const json_t *value = json_object_get(line, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT64_MAX / 2)
        return 0;
    *out = (int64_t)json_integer_value(value);
    return 1;
}

/* Room for twice as many evaluations. */
static dsc_status grow(dsc_runlog *log) {
    double **const arrays[] = {&log->eval_epoch, &log->eval_top1};
    int64_t capacity = log->capacity > 0 ? 2 * log->capacity : 8;
    for (int i = 0; i < 2; i++) {
        double *larger;
        DSC_CLI_TRY(dsc_cli_alloc(capacity, sizeof *larger, &larger));
        for (int64_t j = 0; j < log->evals; j++)
            larger[j] = (*arrays[i])[j];
        dsc_cli_free(arrays[i]);
        *arrays[i] = larger;
    }
    log->capacity = capacity;
    return DSC_OK;
}

/* A resumed run repeats the epochs after its checkpoint: their new evaluations replace the old ones. */
static dsc_status add_eval(dsc_runlog *log, double epoch, double top1) {
    while (log->evals > 0 && log->eval_epoch[log->evals - 1] >= epoch)
        log->evals--;
    if (log->evals == log->capacity)
        DSC_CLI_TRY(grow(log));
    log->eval_epoch[log->evals] = epoch;
    log->eval_top1[log->evals++] = top1;
    return DSC_OK;
}

/* Sets *why when the line is wrong. */
static dsc_status take_eval(dsc_runlog *log, const json_t *line, const char **why) {
    double epoch, top1, loss;
    if (!get_number(line, "epoch", &epoch) || !get_number(line, "top1", &top1)) {
        *why = "an eval line without epoch and top1";
        return DSC_OK;
    }
    if (get_number(line, "loss", &loss)) {
        log->loss = loss;
        log->loss_is_eval = 1;
    }
    return add_eval(log, epoch + 1, 100 * top1);
}

static void take_run(dsc_runlog *log, const json_t *line) {
    const char *model = json_string_value(json_object_get(json_object_get(line, "config"), "model"));
    get_count(line, "ranks", &log->ranks);
    if (model)
        snprintf(log->model, sizeof log->model, "%s", model);
}

static void take_alarm(dsc_runlog *log, const json_t *line) {
    const int most = (int)(sizeof log->alarms / sizeof log->alarms[0]);
    const char *message = json_string_value(json_object_get(line, "message"));
    if (!message || log->alarm_count == most)
        return;
    char *to = log->alarms[log->alarm_count];
    snprintf(to, sizeof log->alarms[0], "%s", message);
    for (int i = 0; i < log->alarm_count; i++)
        if (strcmp(log->alarms[i], to) == 0)
            return;
    log->alarm_count++;
}

static dsc_status take_line(dsc_runlog *log, const json_t *line, const char **why) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    double loss;
    int64_t epoch;
    if (!kind) {
        *why = "has no kind";
        return DSC_OK;
    }
    get_number(line, "time_s", &log->seconds);
    get_number(line, "images_per_s", &log->images_per_s);
    get_count(line, strcmp(kind, "end") == 0 ? "steps" : "step", &log->steps);
    if (strcmp(kind, "run") == 0)
        take_run(log, line);
    else if (strcmp(kind, "alarm") == 0)
        take_alarm(log, line);
    else if (strcmp(kind, "eval") == 0)
        return take_eval(log, line, why);
    else if (strcmp(kind, "epoch") == 0 && get_count(line, "epoch", &epoch))
        log->epochs = epoch + 1;
    if (!log->loss_is_eval && get_number(line, "loss", &loss))
        log->loss = loss;
    return DSC_OK;
}

static dsc_status parse_line(dsc_runlog *log, const char *file, int64_t number, const char *text,
                             size_t length) {
    json_error_t error;
    const char *why = "";
    int whole = length > 0 && text[length - 1] == '\n';
    json_t *line = json_loadb(text, length, 0, &error);
    if (!json_is_object(line)) {
        json_decref(line);
        if (whole)
            mark_bad(log, file, number, line ? "is not a JSON object" : error.text);
        return DSC_OK;
    }
    dsc_status status = take_line(log, line, &why);
    json_decref(line);
    if (*why)
        mark_bad(log, file, number, why);
    else
        log->lines++;
    return status;
}

/* ---- the file ---- */

static dsc_status read_lines(dsc_runlog *log, const char *file, FILE *stream) {
    char *text = NULL;
    size_t capacity = 0;
    int64_t number = 0;
    dsc_status status = DSC_OK;
    errno = 0;
    for (ssize_t length; status == DSC_OK && (length = getline(&text, &capacity, stream)) > 0;)
        status = parse_line(log, file, ++number, text, (size_t)length);
    if (status == DSC_OK && ferror(stream))
        status = DSC_CLI_FAIL(DSC_E_IO, "cannot read '%s': %s", file, strerror(errno));
    free(text);
    if (status == DSC_OK && log->lines == 0)
        status = DSC_CLI_FAIL(DSC_E_FORMAT, "'%s' holds no line of metrics%s%s", file,
                              log->bad_lines ? "; " : "", log->first_bad);
    return status;
}

dsc_status dsc_runlog_read_stream(const char *name, const char *file, FILE *stream, dsc_runlog **out) {
    dsc_runlog *log = NULL;
    DSC_CLI_TRY(dsc_cli_alloc(1, sizeof *log, &log));
    log->loss = log->images_per_s = log->seconds = log->best_top1 = NAN;
    dsc_status status = dsc_cli_alloc((int64_t)strlen(name) + 1, 1, &log->name);
    if (status == DSC_OK) {
        strcpy(log->name, name);
        status = read_lines(log, file, stream);
    }
    if (status != DSC_OK) {
        dsc_runlog_destroy(&log);
        return status;
    }
    for (int64_t i = 0; i < log->evals; i++)
        log->best_top1 = i == 0 ? log->eval_top1[0] : fmax(log->best_top1, log->eval_top1[i]);
    *out = log;
    return DSC_OK;
}

dsc_status dsc_runlog_read(const char *run, dsc_runlog **out) {
    struct stat info;
    char path[4096];
    int is_directory = stat(run, &info) == 0 && S_ISDIR(info.st_mode);
    int length = snprintf(path, sizeof path, is_directory ? "%s/metrics.jsonl" : "%s", run);
    if (length >= (int)sizeof path)
        return DSC_CLI_FAIL(DSC_E_INVALID, "'%.60s...': the name is too long", run);
    FILE *stream = fopen(path, "r");
    if (!stream)
        return DSC_CLI_FAIL(DSC_E_NOT_FOUND, "cannot read '%s': %s; name the --out directory of a run", path,
                            strerror(errno));
    dsc_status status = dsc_runlog_read_stream(run, path, stream, out);
    fclose(stream);
    return status;
}

dsc_status dsc_runlog_plot(FILE *out, dsc_runlog *const *logs, int64_t count) {
    dsc_plot_series *series;
    dsc_plot_options options = {.title = "top-1 accuracy on the validation set, %",
                                .x_label = "epoch",
                                .width = dsc_terminal_width(out),
                                .height = 17,
                                .utf8 = dsc_terminal_utf8()};
    if (options.width > 100)
        options.width = 100;
    DSC_CLI_TRY(dsc_cli_alloc(count, sizeof *series, &series));
    for (int64_t i = 0; i < count; i++)
        series[i] = (dsc_plot_series){logs[i]->name, logs[i]->eval_epoch, logs[i]->eval_top1, logs[i]->evals};
    dsc_status status = dsc_plot_draw(out, series, count, &options);
    dsc_cli_free(&series);
    return status;
}

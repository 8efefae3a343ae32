/* Reads metrics.jsonl line by line. Lines that are damaged are skipped and counted, values of a wrong type
 * are ignored. */
#include "cli/runlog.h"

#include "cli/cli.h"
#include "cli/support.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMON_KEYS "step", "epoch", "time_s"

/* Milliseconds by phase, and bytes sent by kind. */
#define LOAD_KEYS                                                                                            \
    "data", "forward", "backward", "exchange", "factor", "decompose", "precondition", "update", "gradients", \
        "factors", "decompositions", "preconditioned", "parameters"

static const char *const step_keys[] = {COMMON_KEYS, "loss", "lr",      "images_per_s",
                                        "mfu",       "nu",   LOAD_KEYS, NULL};
static const char *const epoch_keys[] = {COMMON_KEYS, "loss", "lr", "images_per_s", "mfu", NULL};
static const char *const eval_keys[] = {COMMON_KEYS, "loss",     "top1",     "top5", "ema_loss",
                                        "ema_top1",  "ema_top5", "distance", "norm", NULL};
static const char *const consensus_keys[] = {COMMON_KEYS, "distance", "norm", "mass", "weight", NULL};
static const char *const kfac_keys[] = {COMMON_KEYS, "nu", "damping", NULL};
const char *const dsc_runlog_layer_keys[] = {"cosine", "a_min",     "a_max", "g_min",
                                             "g_max",  "condition", "nu",    NULL};
const char *const dsc_runlog_solve_keys[] = {"work", "share", "solve_ms", NULL};
const char *const dsc_runlog_rank_keys[] = {LOAD_KEYS, NULL};
static const char *const load_keys[] = {COMMON_KEYS, NULL};

static const struct {
    const char *kind;
    const char *const *keys;
} kinds[DSC_RUNLOG_TABLES] = {
    [DSC_RUNLOG_STEPS] = {"step", step_keys}, [DSC_RUNLOG_EPOCHS] = {"epoch", epoch_keys},
    [DSC_RUNLOG_EVALS] = {"eval", eval_keys}, [DSC_RUNLOG_CONSENSUS] = {"consensus", consensus_keys},
    [DSC_RUNLOG_KFAC] = {"kfac", kfac_keys},  [DSC_RUNLOG_LOAD] = {"load", load_keys},
};

void dsc_runlog_destroy(dsc_runlog **log) {
    if (!log || !*log)
        return;
    for (int i = 0; i < DSC_RUNLOG_TABLES; i++)
        dsc_cli_free(&(*log)->tables[i].values);
    json_decref((*log)->run);
    json_decref((*log)->layer_names);
    dsc_cli_free(&(*log)->name);
    dsc_cli_free(&(*log)->label);
    dsc_cli_free(log);
}

int64_t dsc_runlog_column(const dsc_runlog_table *table, const char *key) {
    for (int64_t i = 0; i < table->columns; i++)
        if (strcmp(table->keys[i], key) == 0)
            return i;
    return -1;
}

const json_t *dsc_runlog_config(const dsc_runlog *log, const char *place) {
    const char *dot = strchr(place, '.');
    const json_t *config = json_object_get(log->run, "config");
    char object[32];
    if (!dot)
        return json_object_get(config, place);
    snprintf(object, sizeof object, "%.*s", (int)(dot - place), place);
    return json_object_get(json_object_get(config, object), dot + 1);
}

/* ---- tables ---- */

/* A new row, of NaN. */
static dsc_status add_row(dsc_runlog_table *table, double **row) {
    if (table->rows == table->capacity) {
        int64_t capacity = table->capacity > 0 ? 2 * table->capacity : 8;
        double *larger;
        DSC_CLI_TRY(dsc_cli_alloc(capacity * table->columns, sizeof *larger, &larger));
        if (table->rows > 0)
            memcpy(larger, table->values, (size_t)(table->rows * table->columns) * sizeof *larger);
        dsc_cli_free(&table->values);
        table->values = larger;
        table->capacity = capacity;
    }
    *row = table->values + table->rows++ * table->columns;
    for (int64_t i = 0; i < table->columns; i++)
        (*row)[i] = NAN;
    return DSC_OK;
}

static const double *last_row(const dsc_runlog_table *table) {
    return table->rows > 0 ? table->values + (table->rows - 1) * table->columns : NULL;
}

/* The table whose rows have one in a table of layers or ranks. */
static int owner_of(int which) {
    return which == DSC_RUNLOG_RANKS ? DSC_RUNLOG_LOAD : DSC_RUNLOG_KFAC;
}

/* Drops the rows at the end whose value in `column` is at least `limit`. */
static void drop_from(dsc_runlog *log, int which, int column, double limit) {
    dsc_runlog_table *table = &log->tables[which];
    while (table->rows > 0 && last_row(table)[column] >= limit)
        table->rows--;
    for (int i = DSC_RUNLOG_LAYERS; i < DSC_RUNLOG_TABLES; i++)
        if (owner_of(i) == which && log->tables[i].rows > table->rows)
            log->tables[i].rows = table->rows;
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

static void get_text(const json_t *line, const char *key, char *text, size_t size) {
    const char *value = json_string_value(json_object_get(line, key));
    dsc_cli_clean(value ? value : "", text, size);
}

/* The epochs done at a line that gives the number of its epoch. At the end of an epoch that is one more; in
 * the middle the fraction follows from the steps since the last epoch ended. */
static double epochs_done(const dsc_runlog *log, int which, double epoch, double step) {
    const double *ended = last_row(&log->tables[DSC_RUNLOG_EPOCHS]);
    int64_t length = 0;
    if (which == DSC_RUNLOG_EPOCHS || (which == DSC_RUNLOG_EVALS && ended && ended[DSC_RUNLOG_EPOCH] > epoch))
        return epoch + 1;
    if (!get_count(log->run, "steps_per_epoch", &length) || length == 0 || isnan(step))
        return epoch + 1;
    double begin = ended && ended[DSC_RUNLOG_EPOCH] == epoch && isfinite(ended[DSC_RUNLOG_STEP])
                       ? ended[DSC_RUNLOG_STEP]
                       : epoch * (double)length;
    return epoch + fmin(1, fmax(0, (step - begin) / (double)length));
}

/* A resumed run repeats the steps after its checkpoint: their new lines replace the old ones. */
static dsc_status add_line(dsc_runlog *log, int which, const json_t *line, double **out) {
    dsc_runlog_table *table = &log->tables[which];
    double step = NAN, epoch = NAN, *row;
    get_number(line, "step", &step);
    if (get_number(line, "epoch", &epoch))
        epoch = epochs_done(log, which, epoch, step);
    if (which == DSC_RUNLOG_EVALS || which == DSC_RUNLOG_EPOCHS)
        drop_from(log, which, DSC_RUNLOG_EPOCH, epoch);
    drop_from(log, which, DSC_RUNLOG_STEP, step);
    DSC_CLI_TRY(add_row(table, &row));
    for (int64_t i = 0; i < table->columns; i++)
        get_number(line, table->keys[i], &row[i]);
    row[DSC_RUNLOG_EPOCH] = epoch;
    *out = row;
    return DSC_OK;
}

/* Sets *why when the line is wrong. */
static dsc_status take_eval(dsc_runlog *log, const json_t *line, const char **why) {
    double epoch, top1, loss, *row;
    if (!get_number(line, "epoch", &epoch) || !get_number(line, "top1", &top1)) {
        *why = "an eval line without epoch and top1";
        return DSC_OK;
    }
    if (get_number(line, "loss", &loss)) {
        log->loss = loss;
        log->loss_is_eval = 1;
    }
    return add_line(log, DSC_RUNLOG_EVALS, line, &row);
}

/* Takes `values` numbers from each object of a list inside a line. The first line decides how many objects there
 * are; a list of another length is dropped. */
static dsc_status take_list(dsc_runlog *log, int which, const json_t *list, const char *const *keys,
                            int64_t *count, int values) {
    dsc_runlog_table *table = &log->tables[which];
    double *row;
    if (*count == 0 && json_array_size(list) > 0) {
        *count = (int64_t)json_array_size(list);
        table->columns = *count * values;
    }
    if (*count == 0)
        return DSC_OK;
    while (table->rows < log->tables[owner_of(which)].rows)
        DSC_CLI_TRY(add_row(table, &row));
    for (int64_t i = 0; (int64_t)json_array_size(list) == *count && i < *count; i++)
        for (int j = 0; j < values; j++)
            get_number(json_array_get(list, (size_t)i), keys[j],
                       &table->values[(table->rows - 1) * table->columns + i * values + j]);
    return DSC_OK;
}

/* With one nu for all layers the line has it once: every layer in the last row gets it. */
static void spread_nu(dsc_runlog *log, const json_t *line) {
    const dsc_runlog_table *table = &log->tables[DSC_RUNLOG_LAYERS];
    double nu;
    if (table->rows == 0 || !get_number(line, "nu", &nu))
        return;
    double *row = table->values + (table->rows - 1) * table->columns;
    for (int64_t i = DSC_RUNLOG_LAYER_NU; i < table->columns; i += DSC_RUNLOG_LAYER_VALUES)
        if (isnan(row[i]))
            row[i] = nu;
}

static dsc_status take_kfac(dsc_runlog *log, const json_t *line) {
    const json_t *layers = json_object_get(line, "layers");
    double *row;
    if (!log->layer_names && json_array_size(layers) > 0) {
        log->layer_names = json_array();
        for (size_t i = 0; i < json_array_size(layers); i++) {
            json_t *name = json_object_get(json_array_get(layers, i), "name");
            json_array_append_new(log->layer_names, json_is_string(name) ? json_incref(name) : json_null());
        }
    }
    DSC_CLI_TRY(add_line(log, DSC_RUNLOG_KFAC, line, &row));
    DSC_CLI_TRY(take_list(log, DSC_RUNLOG_LAYERS, layers, dsc_runlog_layer_keys, &log->layers,
                          DSC_RUNLOG_LAYER_VALUES));
    spread_nu(log, line);
    return take_list(log, DSC_RUNLOG_SOLVES, json_object_get(line, "loads"), dsc_runlog_solve_keys,
                     &log->solves, DSC_RUNLOG_SOLVE_VALUES);
}

static dsc_status take_load(dsc_runlog *log, const json_t *line) {
    double *row;
    DSC_CLI_TRY(add_line(log, DSC_RUNLOG_LOAD, line, &row));
    return take_list(log, DSC_RUNLOG_RANKS, json_object_get(line, "ranks"), dsc_runlog_rank_keys,
                     &log->loaded, DSC_RUNLOG_RANK_VALUES);
}

/* Drops the tables of ranks when a run continues with another number of ranks. */
static void forget_ranks(dsc_runlog *log) {
    dsc_cli_free(&log->tables[DSC_RUNLOG_RANKS].values);
    log->tables[DSC_RUNLOG_RANKS] = (dsc_runlog_table){0};
    log->tables[DSC_RUNLOG_LOAD].rows = 0;
    log->loaded = 0;
}

/* Takes a `run` line: a start, or a resumption, which drops the lines of steps after its checkpoint. */
static void take_run(dsc_runlog *log, json_t *line) {
    const char *model = json_string_value(json_object_get(json_object_get(line, "config"), "model"));
    double step;
    int64_t positions;
    json_decref(log->run);
    log->run = json_incref(line);
    log->status[0] = log->error[0] = '\0';
    log->target_s = NAN;
    get_count(line, "ranks", &log->ranks);
    log->tokens = 0;
    get_count(line, "tokens", &log->tokens);
    log->by_loss = get_count(line, "positions", &positions) && positions > 1;
    if (model)
        snprintf(log->model, sizeof log->model, "%s", model);
    for (int i = 0; i < DSC_RUNLOG_LAYERS && get_number(line, "step", &step); i++)
        drop_from(log, i, DSC_RUNLOG_STEP, step + 1);
    if (log->loaded != log->ranks)
        forget_ranks(log);
}

static void take_alarm(dsc_runlog *log, const json_t *line) {
    const int most = (int)(sizeof log->alarms / sizeof log->alarms[0]);
    if (!json_is_string(json_object_get(line, "message")) || log->alarm_count == most)
        return;
    char *to = log->alarms[log->alarm_count];
    get_text(line, "message", to, sizeof log->alarms[0]);
    for (int i = 0; i < log->alarm_count; i++)
        if (strcmp(log->alarms[i], to) == 0)
            return;
    log->alarm_count++;
}

static void take_end(dsc_runlog *log, const json_t *line) {
    get_text(line, "status", log->status, sizeof log->status);
    get_text(line, "error", log->error, sizeof log->error);
    get_number(line, "target_s", &log->target_s);
    if (strcmp(log->status, "interrupted") == 0)
        strcpy(log->status, "stopped");
    else if (strcmp(log->status, "failed") == 0 &&
             (strstr(log->error, "not a number") || strstr(log->error, "not finite")))
        strcpy(log->status, "diverged");
}

static dsc_status take_line(dsc_runlog *log, json_t *line, const char **why) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    double loss, share, *row;
    int64_t epoch;
    if (!kind) {
        *why = "has no kind";
        return DSC_OK;
    }
    get_number(line, "time_s", &log->seconds);
    get_number(line, "images_per_s", &log->images_per_s);
    if (get_number(line, "mfu", &share))
        log->mfu = 100 * share;
    get_count(line, strcmp(kind, "end") == 0 ? "steps" : "step", &log->steps);
    if (strcmp(kind, "run") == 0)
        take_run(log, line);
    else if (strcmp(kind, "alarm") == 0)
        take_alarm(log, line);
    else if (strcmp(kind, "eval") == 0)
        return take_eval(log, line, why);
    else if (strcmp(kind, "kfac") == 0)
        return take_kfac(log, line);
    else if (strcmp(kind, "load") == 0)
        return take_load(log, line);
    else if (strcmp(kind, "end") == 0)
        take_end(log, line);
    if (strcmp(kind, "epoch") == 0 && get_count(line, "epoch", &epoch))
        log->epochs = epoch + 1;
    if (!log->loss_is_eval && get_number(line, "loss", &loss))
        log->loss = loss;
    for (int i = 0; i < DSC_RUNLOG_KFAC; i++)
        if (strcmp(kind, kinds[i].kind) == 0)
            return add_line(log, i, line, &row);
    return DSC_OK;
}

static dsc_status parse_line(dsc_runlog *log, const char *file, int64_t number, const char *text,
                             size_t length) {
    json_error_t error;
    const char *why = "";
    int whole = length > 0 && text[length - 1] == '\n';
    json_t *line = json_loadb(text, length, 0, &error);
    if (!json_is_object(line)) {
        if (whole)
            mark_bad(log, file, number, line ? "is not a JSON object" : error.text);
        json_decref(line);
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

/* The higher top-1 of an evaluation in percent, of the weights and their average. One without a finite loss does not
 * count; NaN: neither has one. */
static double best_of(const dsc_runlog_table *evals, const double *row) {
    double top1 = row[dsc_runlog_column(evals, "top1")], ema = row[dsc_runlog_column(evals, "ema_top1")];
    if (!isfinite(row[dsc_runlog_column(evals, "loss")]))
        top1 = NAN;
    if (!isfinite(row[dsc_runlog_column(evals, "ema_loss")]))
        ema = NAN;
    return 100 * fmax(top1, ema); /* fmax ignores NaN */
}

double dsc_runlog_loss(const dsc_runlog_table *evals, const double *row) {
    const double loss = row[dsc_runlog_column(evals, "loss")],
                 ema = row[dsc_runlog_column(evals, "ema_loss")];
    return fmin(isfinite(loss) ? loss : NAN, isfinite(ema) ? ema : NAN); /* fmin ignores NaN */
}

/* Finds the results of the best and of the last evaluation. */
static void judge(dsc_runlog *log) {
    const dsc_runlog_table *evals = &log->tables[DSC_RUNLOG_EVALS];
    for (int64_t i = 0; i < evals->rows; i++) {
        const double *row = evals->values + i * evals->columns;
        const double best = best_of(evals, row), loss = dsc_runlog_loss(evals, row);
        const int higher = !isnan(best) && !(best <= log->best_top1);
        const int lower = log->by_loss && !isnan(loss) && !(loss >= log->best_loss);
        log->top1 = 100 * row[dsc_runlog_column(evals, "top1")];
        log->ema_top1 = 100 * row[dsc_runlog_column(evals, "ema_top1")];
        if (higher)
            log->best_top1 = best;
        if (lower)
            log->best_loss = loss;
        if (log->by_loss ? lower : higher)
            log->best_epoch = row[DSC_RUNLOG_EPOCH];
    }
    if (log->by_loss && log->tokens == 0)
        log->pixel_error = 100 - log->top1;
    if (log->tokens > 0)
        log->tokens_per_s = log->images_per_s * (double)log->tokens;
}

double dsc_runlog_time_to(const dsc_runlog *log, double top1) {
    const dsc_runlog_table *evals = &log->tables[DSC_RUNLOG_EVALS];
    for (int64_t i = 0; i < evals->rows; i++)
        if (best_of(evals, evals->values + i * evals->columns) >= top1)
            return evals->values[i * evals->columns + DSC_RUNLOG_TIME];
    return NAN;
}

dsc_status dsc_runlog_read_stream(const char *name, const char *file, FILE *stream, dsc_runlog **out) {
    dsc_runlog *log = NULL;
    DSC_CLI_TRY(dsc_cli_alloc(1, sizeof *log, &log));
    log->loss = log->best_loss = log->images_per_s = log->tokens_per_s = log->seconds = log->target_s = NAN;
    log->mfu = log->best_top1 = log->best_epoch = log->top1 = log->ema_top1 = log->pixel_error = NAN;
    for (int i = 0; i < DSC_RUNLOG_LAYERS; i++) {
        log->tables[i].keys = kinds[i].keys;
        while (kinds[i].keys[log->tables[i].columns])
            log->tables[i].columns++;
    }
    int64_t length = (int64_t)strlen(name);
    dsc_status status = dsc_cli_alloc(length + 1, 1, &log->name);
    if (status == DSC_OK)
        status = dsc_cli_alloc(3 * length + 1, 1, &log->label);
    if (status == DSC_OK) {
        strcpy(log->name, name);
        dsc_cli_clean(name, log->label, (size_t)(3 * length + 1));
        status = read_lines(log, file, stream);
    }
    if (status != DSC_OK) {
        dsc_runlog_destroy(&log);
        return status;
    }
    judge(log);
    *out = log;
    return DSC_OK;
}

/* 1 when a process, on this or another machine, holds the lock of the run. */
static int is_locked(const char *metrics) {
    const char *slash = strrchr(metrics, '/');
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[4096];
    snprintf(path, sizeof path, "%.*slock", slash ? (int)(slash + 1 - metrics) : 0, metrics);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int locked = fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return locked;
}

dsc_status dsc_runlog_read(const char *run, dsc_runlog **out) {
    struct stat info;
    char path[4096];
    int is_directory = stat(run, &info) == 0 && S_ISDIR(info.st_mode);
    int length = snprintf(path, sizeof path, is_directory ? "%s/metrics.jsonl" : "%s", run);
    if (length >= (int)sizeof path - 8)
        return DSC_CLI_FAIL(DSC_E_INVALID, "'%.60s...': the name is too long", run);
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) /* a pipe would wait for its writer */
        return DSC_CLI_FAIL(DSC_E_FORMAT, "'%s' is not a regular file", path);
    FILE *stream = fopen(path, "r");
    if (!stream)
        return DSC_CLI_FAIL(DSC_E_NOT_FOUND, "cannot read '%s': %s; name the --out directory of a run", path,
                            strerror(errno));
    int locked = is_locked(path);
    dsc_status status = dsc_runlog_read_stream(run, path, stream, out);
    fclose(stream);
    if (status == DSC_OK && !*(*out)->status)
        strcpy((*out)->status, locked ? "running" : "died");
    return status;
}

/* descent report --html: one page that needs no network. Its text is in src/cli/page, and CMake puts it into the
 * program; the data go into it as JSON. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "cli/report_parts.h"
#include "cli/support.h"
#include "descent/version.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* cmake/page.cmake */
extern const unsigned char dsc_page_report_html[], dsc_page_report_css[], dsc_page_chart_js[],
    dsc_page_report_js[];

/* Curves have at most so many points: where there are more lines, a point is the mean of several. Heat maps
 * have at most so many columns, each one decomposition. */
enum { MAX_POINTS = 1000, MAX_HEAT_COLUMNS = 160 };

/* ---- JSON inside of a page ---- */

/* Passes JSON on with <, > and & as escape sequences, so that no text in it can end the script element. They
 * occur in strings only. */
static int write_escaped(const char *text, size_t length, void *out) {
    for (size_t i = 0; i < length; i++)
        if (text[i] == '<' || text[i] == '>' || text[i] == '&')
            fprintf(out, "\\u%04x", (unsigned)text[i]);
        else
            fputc(text[i], out);
    return 0;
}

static void write_json(FILE *out, const json_t *value) {
    if (!value || json_dump_callback(value, write_escaped, out,
                                     JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY) != 0)
        fputs("null", out);
}

static void write_text(FILE *out, const char *text) {
    json_t *value = json_string(text);
    write_json(out, value);
    json_decref(value);
}

static void write_number(FILE *out, double value) {
    if (!isfinite(value))
        fputs("null", out);
    else
        fprintf(out, value == floor(value) && fabs(value) < 1e15 ? "%.0f" : "%.7g", value);
}

/* ---- tables ---- */

/* The mean of rows first .. last - 1 of a column, of those that have a number. */
static double mean_of(const dsc_runlog_table *table, int64_t column, int64_t first, int64_t last) {
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = first; i < last; i++) {
        double value = table->values[i * table->columns + column];
        sum += isfinite(value) ? value : 0;
        count += isfinite(value) != 0;
    }
    return count > 0 ? sum / (double)count : NAN;
}

/* ,"name":{"key":[...],...} for the columns that hold a number. Points of several rows have the last row's
 * step, epoch and time, and the mean of the other columns. */
static void write_table(FILE *out, const char *name, const dsc_runlog_table *table) {
    int64_t each = (table->rows + MAX_POINTS - 1) / MAX_POINTS;
    if (table->rows == 0)
        return;
    fprintf(out, ",\n\"%s\":{\"rows_per_point\":%lld", name, (long long)each);
    for (int64_t c = 0; c < table->columns; c++) {
        if (c > DSC_RUNLOG_TIME && isnan(mean_of(table, c, 0, table->rows)))
            continue;
        fprintf(out, ",\"%s\":[", table->keys[c]);
        for (int64_t first = 0; first < table->rows; first += each) {
            int64_t last = first + each < table->rows ? first + each : table->rows;
            if (first > 0)
                fputc(',', out);
            write_number(out, c <= DSC_RUNLOG_TIME ? table->values[(last - 1) * table->columns + c]
                                                   : mean_of(table, c, first, last));
        }
        fputc(']', out);
    }
    fputc('}', out);
}

/* The means of phases and bytes over all lines of steps. */
static void write_means(FILE *out, const dsc_runlog *log) {
    const dsc_runlog_table *steps = &log->tables[DSC_RUNLOG_STEPS];
    if (steps->rows == 0)
        return;
    fputs(",\n\"means\":{", out);
    for (int64_t c = dsc_runlog_column(steps, "data"), first = c; c < steps->columns; c++) {
        fprintf(out, "%s\"%s\":", c > first ? "," : "", steps->keys[c]);
        write_number(out, mean_of(steps, c, 0, steps->rows));
    }
    fputc('}', out);
}

/* ,"layers":{"cosine":[[layer 0 ...], ...], ...}: every value as a matrix of layers and decompositions. */
static void write_layers(FILE *out, const dsc_runlog *log, int64_t each) {
    const dsc_runlog_table *table = &log->tables[DSC_RUNLOG_LAYERS];
    fputs(",\"layers\":{", out);
    for (int v = 0; v < DSC_RUNLOG_LAYER_VALUES; v++) {
        fprintf(out, "%s\"%s\":[", v > 0 ? "," : "", dsc_runlog_layer_keys[v]);
        for (int64_t layer = 0; layer < log->layers; layer++) {
            fputs(layer > 0 ? ",[" : "[", out);
            for (int64_t row = 0; row < log->tables[DSC_RUNLOG_KFAC].rows; row += each) {
                if (row > 0)
                    fputc(',', out);
                write_number(out,
                             row < table->rows
                                 ? table->values[row * table->columns + layer * DSC_RUNLOG_LAYER_VALUES + v]
                                 : NAN);
            }
            fputc(']', out);
        }
        fputc(']', out);
    }
    fputc('}', out);
}

static void write_kfac(FILE *out, const dsc_runlog *log) {
    const dsc_runlog_table *kfac = &log->tables[DSC_RUNLOG_KFAC];
    int64_t each = (kfac->rows + MAX_HEAT_COLUMNS - 1) / MAX_HEAT_COLUMNS;
    write_table(out, "kfac", kfac);
    if (log->layers == 0 || kfac->rows == 0)
        return;
    fputs(",\n\"heat\":{\"names\":", out);
    write_json(out, log->layer_names);
    fputs(",\"step\":[", out);
    for (int64_t row = 0; row < kfac->rows; row += each) {
        if (row > 0)
            fputc(',', out);
        write_number(out, kfac->values[row * kfac->columns]);
    }
    fputc(']', out);
    write_layers(out, log, each);
    fputc('}', out);
}

/* ,"name":[{"key":mean, ...}, ...]: the means over all rows of a table of ranks. */
static void write_ranks(FILE *out, const char *name, const dsc_runlog_table *table, int64_t ranks,
                        const char *const *keys) {
    if (ranks == 0 || table->rows == 0)
        return;
    const int64_t values = table->columns / ranks;
    fprintf(out, ",\n\"%s\":[", name);
    for (int64_t rank = 0; rank < ranks; rank++) {
        fputs(rank > 0 ? ",{" : "{", out);
        for (int64_t v = 0; v < values; v++) {
            fprintf(out, "%s\"%s\":", v > 0 ? "," : "", keys[v]);
            write_number(out, mean_of(table, rank * values + v, 0, table->rows));
        }
        fputc('}', out);
    }
    fputc(']', out);
}

/* ---- runs ---- */

static void write_facts(FILE *out, const dsc_runlog *log) {
    static const char *const facts[] = {"version", "build",      "comm",    "ranks",
                                        "device",  "parameters", "samples", "steps_per_epoch"};
    fputs(",\n\"facts\":{", out);
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        fprintf(out, "%s\"%s\":", i > 0 ? "," : "", facts[i]);
        write_json(out, json_object_get(log->run, facts[i]));
    }
    fputs("},\n\"config\":", out);
    write_json(out, json_object_get(log->run, "config"));
}

static void write_run(FILE *out, const dsc_runlog *log, const dsc_report_columns *columns, int64_t row) {
    const dsc_runlog_table *consensus = &log->tables[DSC_RUNLOG_CONSENSUS],
                           *evals = &log->tables[DSC_RUNLOG_EVALS];
    fputs("{\"name\":", out);
    write_text(out, log->label);
    fputs(",\"status\":", out);
    write_text(out, log->status);
    fputs(",\"error\":", out);
    write_text(out, log->error);
    fputs(",\"alarms\":[", out);
    for (int i = 0; i < log->alarm_count; i++) {
        fputs(i > 0 ? "," : "", out);
        write_text(out, log->alarms[i]);
    }
    fputs("],\"differs\":{", out);
    for (int64_t c = 0; c < columns->count; c++) {
        fputs(c > 0 ? "," : "", out);
        write_text(out, columns->list[c].title);
        fputc(':', out);
        write_text(out, columns->list[c].cells[row]);
    }
    fputc('}', out);
    dsc_report_each_result(log, out, write_number);
    write_facts(out, log);
    write_means(out, log);
    write_table(out, "steps", &log->tables[DSC_RUNLOG_STEPS]);
    write_table(out, "by_epoch", &log->tables[DSC_RUNLOG_EPOCHS]);
    write_table(out, "evals", evals);
    write_table(out, "consensus", consensus->rows > 0 ? consensus : evals);
    write_kfac(out, log);
    write_ranks(out, "loads", &log->tables[DSC_RUNLOG_SOLVES], log->solves, dsc_runlog_solve_keys);
    write_ranks(out, "rank_means", &log->tables[DSC_RUNLOG_RANKS], log->loaded, dsc_runlog_rank_keys);
    fputc('}', out);
}

static dsc_status write_data(FILE *out, const dsc_report_runs *runs) {
    dsc_report_columns columns = {.rows = runs->count};
    char made[64] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(made, sizeof made, "%Y-%m-%d %H:%M UTC", &utc);
    dsc_status status = dsc_report_add_differences(runs, &columns);
    if (status == DSC_OK) {
        fprintf(out, "{\"version\":\"%s\",\"made\":\"%s\",\"target\":", dsc_version(), made);
        write_number(out, runs->target > 0 ? runs->target / 100 : NAN);
        fputs(",\"phases\":[\"data\",\"forward\",\"backward\",\"exchange\",\"factor\",\"decompose\","
              "\"precondition\",\"update\"]",
              out);
        fputs(",\"traffic\":[\"gradients\",\"factors\",\"decompositions\",\"preconditioned\",\"parameters\"]",
              out);
        fputs(",\"runs\":[", out);
        for (int64_t i = 0; i < runs->count; i++) {
            fputs(i > 0 ? ",\n" : "\n", out);
            write_run(out, runs->logs[i], &columns, i);
        }
        fputs("]}", out);
    }
    dsc_report_columns_free(&columns);
    return status;
}

/* ---- the page ---- */

dsc_status dsc_report_write_page(FILE *out, const dsc_report_runs *runs) {
    const char *rest = (const char *)dsc_page_report_html;
    while (*rest) {
        const char *at = strchr(rest, '@');
        size_t length = at ? (size_t)(at - rest) : strlen(rest);
        fwrite(rest, 1, length, out);
        rest += length;
        if (strncmp(rest, "@STYLE@", 7) == 0) {
            fputs((const char *)dsc_page_report_css, out);
            rest += 7;
        } else if (strncmp(rest, "@SCRIPT@", 8) == 0) {
            fputs((const char *)dsc_page_chart_js, out);
            fputs((const char *)dsc_page_report_js, out);
            rest += 8;
        } else if (strncmp(rest, "@DATA@", 6) == 0) {
            DSC_CLI_TRY(write_data(out, runs));
            rest += 6;
        } else if (*rest) {
            fputc(*rest++, out);
        }
    }
    return DSC_OK;
}

static dsc_status cannot_write(const char *path) {
    return DSC_CLI_FAIL(DSC_E_INVALID, "--html: cannot write '%s': %s; name a file that can be written", path,
                        strerror(errno));
}

/* Writes the page and closes the stream. */
static dsc_status finish_page(FILE *out, const char *path, const dsc_report_runs *runs) {
    dsc_status status = dsc_report_write_page(out, runs);
    errno = 0;
    int failed = fflush(out) != 0 || ferror(out);
    int error = errno;
    failed |= fclose(out) != 0;
    if (status == DSC_OK && failed)
        status = DSC_CLI_FAIL(DSC_E_IO, "--html: cannot write '%s': %s", path, strerror(error ? error : EIO));
    return status;
}

/* Writes the page to a temporary name beside the file, then renames it. */
static dsc_status replace_file(const char *path, const dsc_report_runs *runs) {
    char temporary[4200];
    if (snprintf(temporary, sizeof temporary, "%s.%ld.new", path, (long)getpid()) >= (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return cannot_write(path);
    }
    FILE *out = fopen(temporary, "wx");
    if (!out)
        return cannot_write(path);
    dsc_status status = finish_page(out, path, runs);
    if (status == DSC_OK && rename(temporary, path) != 0)
        status = cannot_write(path);
    if (status != DSC_OK)
        unlink(temporary);
    return status;
}

dsc_status dsc_report_write_html(const char *path, const dsc_report_runs *runs) {
    struct stat info;
    int there = stat(path, &info) == 0;
    if (there && !S_ISREG(info.st_mode)) { /* a directory fails, a pipe or a terminal does not */
        FILE *out = fopen(path, "w");
        return out ? finish_page(out, path, runs) : cannot_write(path);
    }
    char *real = there ? realpath(path, NULL) : NULL; /* a link stays */
    dsc_status status = replace_file(real ? real : path, runs);
    free(real);
    return status;
}

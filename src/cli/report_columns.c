/* Columns of the table of `descent report`: the options in which runs differ. */
#include "cli/cli.h"
#include "cli/report_parts.h"
#include "cli/support.h"
#include "descent/options.h"

#include <stdlib.h>
#include <string.h>

dsc_status dsc_report_add_column(dsc_report_columns *columns, const char *title, int right,
                                 dsc_report_column **out) {
    if (columns->count == columns->capacity) {
        int64_t capacity = columns->capacity > 0 ? 2 * columns->capacity : 16;
        dsc_report_column *larger;
        DSC_CLI_TRY(dsc_cli_alloc(capacity, sizeof *larger, &larger));
        if (columns->count > 0)
            memcpy(larger, columns->list, (size_t)columns->count * sizeof *larger);
        dsc_cli_free(&columns->list);
        columns->list = larger;
        columns->capacity = capacity;
    }
    dsc_report_column *column = &columns->list[columns->count];
    snprintf(column->title, sizeof column->title, "%s", title);
    column->right = right;
    DSC_CLI_TRY(dsc_cli_alloc(columns->rows, sizeof *column->cells, &column->cells));
    columns->count++;
    *out = column;
    return DSC_OK;
}

dsc_status dsc_report_set_cell(dsc_report_column *column, int64_t row, const char *text) {
    dsc_cli_free(&column->cells[row]);
    DSC_CLI_TRY(dsc_cli_alloc((int64_t)strlen(text) + 1, 1, &column->cells[row]));
    strcpy(column->cells[row], text);
    return DSC_OK;
}

static void drop_column(dsc_report_columns *columns) {
    dsc_report_column *last = &columns->list[--columns->count];
    for (int64_t i = 0; i < columns->rows; i++)
        dsc_cli_free(&last->cells[i]);
    dsc_cli_free(&last->cells);
}

void dsc_report_columns_free(dsc_report_columns *columns) {
    while (columns->count > 0)
        drop_column(columns);
    dsc_cli_free(&columns->list);
}

/* ---- options ---- */

/* The option at this place of a run's configuration; NULL: this version does not have it. */
static const dsc_option *find_option(const char *place) {
    const dsc_option *const tables[] = {dsc_train_option_table(), dsc_optim_option_table(),
                                        dsc_consensus_option_table(), dsc_kfac_option_table()};
    for (int i = 0; i < 4; i++)
        for (const dsc_option *o = tables[i]; o->name; o++)
            if (o->json && strcmp(o->json, place) == 0)
                return o;
    return NULL;
}

/* Appends a value as the command line takes it. */
static void append_value(const json_t *value, const char *separator, double unit, char *text, size_t size) {
    size_t used = strlen(text);
    char *to = text + used;
    size -= used;
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value) && strlen(text) + 32 < used + size; i++) {
            if (i > 0)
                strcat(text, separator);
            append_value(json_array_get(value, i), ":", unit, text, used + size);
        }
    } else if (json_is_boolean(value)) {
        snprintf(to, size, "%s", json_is_true(value) ? "on" : "off");
    } else if (json_is_number(value)) {
        snprintf(to, size, "%.8g", json_number_value(value) / unit);
    } else if (json_is_string(value)) {
        snprintf(to, size, "%s", json_string_value(value));
    }
}

static int is_off(const json_t *value) {
    return !value || (json_is_number(value) && json_number_value(value) == 0);
}

/* 1 when the run does not use the option at this place. */
static int is_idle(const dsc_runlog *log, const char *place) {
    const char *consensus = json_string_value(dsc_runlog_config(log, "consensus"));
    if (strcmp(place, "kfac.update_freq") == 0)
        return 0;
    if (strncmp(place, "kfac.", 5) == 0)
        return is_off(dsc_runlog_config(log, "kfac.update_freq"));
    if (strncmp(place, "gossip.", 7) == 0)
        return consensus && strcmp(consensus, "allreduce") == 0;
    if (strcmp(place, "warmup_start") == 0) /* the default is the rate itself */
        return json_equal(dsc_runlog_config(log, place), dsc_runlog_config(log, "lr"));
    return 0;
}

/* 1 when `text` is the default of the option, or may be the value that the default "auto" stood for. */
static int is_default(const dsc_option *option, const char *text) {
    const char *value = option && option->value ? option->value : "";
    char *end;
    double number = strtod(text, &end);
    if (strcmp(value, "auto") == 0)
        return 1;
    if (strcmp(text, *value ? value : "-") == 0 || (!*value && strcmp(text, "off") == 0))
        return 1;
    return option && end != text && *end == '\0' && number == (*value ? strtod(value, NULL) : 0);
}

/* The cell of a run: the value as the command line takes it, or "-" for none. */
static dsc_status set_value(dsc_report_column *column, int64_t row, const json_t *value, double unit) {
    char text[512] = "", clean[512];
    append_value(value, ",", unit, text, sizeof text);
    dsc_cli_clean(text, clean, sizeof clean);
    column->right &= !json_is_string(value) && !json_is_boolean(value);
    return dsc_report_set_cell(column, row, *clean ? clean : "-");
}

/* Adds the column of one option if the runs that use it differ or, where others do not use it, if it is not
 * the default. */
static dsc_status add_option(const dsc_report_runs *runs, const char *place, dsc_report_columns *columns) {
    const dsc_option *option = find_option(place);
    const double unit = option && option->kind == DSC_OPTION_MIB ? 1024 * 1024 : 1;
    const char *first = NULL;
    dsc_report_column *column;
    int differ = 0, idle = 0, changed = 0;
    if (option && (option->flags & DSC_OPTION_OWN))
        return DSC_OK;
    DSC_CLI_TRY(dsc_report_add_column(columns, option ? option->name : place, 1, &column));
    for (int64_t i = 0; i < runs->count; i++) {
        int unused = is_idle(runs->logs[i], place);
        DSC_CLI_TRY(set_value(column, i, unused ? NULL : dsc_runlog_config(runs->logs[i], place), unit));
        idle |= unused;
        if (unused)
            continue;
        first = first ? first : column->cells[i];
        differ |= strcmp(column->cells[i], first) != 0;
        changed |= !is_default(option, column->cells[i]);
    }
    if (!differ && !(idle && changed))
        drop_column(columns);
    return DSC_OK;
}

/* The options that tell runs apart at a glance come first. */
static const char *const first_places[] = {"model",      "data",      "optimizer.name",   "lr",
                                           "batch_size", "consensus", "kfac.update_freq", NULL};

/* Adds the options of one object of a run's configuration, except those that an earlier run has as well. */
static dsc_status add_object(const dsc_report_runs *runs, int64_t run, const char *object,
                             dsc_report_columns *columns) {
    json_t *config = json_object_get(runs->logs[run]->run, "config"), *value;
    const char *key;
    json_object_foreach(*object ? json_object_get(config, object) : config, key, value) {
        char place[128];
        int seen = 0;
        if (json_is_object(value)) {
            if (!*object)
                DSC_CLI_TRY(add_object(runs, run, key, columns));
            continue;
        }
        if (snprintf(place, sizeof place, "%s%s%s", object, *object ? "." : "", key) >= (int)sizeof place)
            continue;
        for (int i = 0; first_places[i]; i++)
            seen |= strcmp(place, first_places[i]) == 0;
        for (int64_t i = 0; i < run && !seen; i++)
            seen = dsc_runlog_config(runs->logs[i], place) != NULL;
        if (!seen)
            DSC_CLI_TRY(add_option(runs, place, columns));
    }
    return DSC_OK;
}

/* Adds a column for a fact in the first line of a run, such as its ranks or its device. */
static dsc_status add_fact(const dsc_report_runs *runs, const char *key, dsc_report_columns *columns) {
    dsc_report_column *column;
    int differ = 0;
    DSC_CLI_TRY(dsc_report_add_column(columns, key, 1, &column));
    for (int64_t i = 0; i < runs->count; i++) {
        const json_t *value = json_object_get(runs->logs[i]->run, key);
        DSC_CLI_TRY(set_value(column, i, value, 1));
        if (json_is_string(value)) /* "cpu: 8 threads, ..." */
            column->cells[i][strcspn(column->cells[i], ":")] = '\0';
        differ |= strcmp(column->cells[i], column->cells[0]) != 0;
    }
    if (!differ)
        drop_column(columns);
    return DSC_OK;
}

dsc_status dsc_report_add_differences(const dsc_report_runs *runs, dsc_report_columns *columns) {
    DSC_CLI_TRY(add_fact(runs, "ranks", columns));
    DSC_CLI_TRY(add_fact(runs, "device", columns));
    for (int i = 0; first_places[i]; i++)
        DSC_CLI_TRY(add_option(runs, first_places[i], columns));
    for (int64_t i = 0; i < runs->count; i++)
        DSC_CLI_TRY(add_object(runs, i, "", columns));
    return DSC_OK;
}

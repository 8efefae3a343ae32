/* Parser of option tables: command lines and configuration files. */
#include "base/option.h"

#include "base/error.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CANDIDATES = 128,      /* names compared with a misspelt one */
    MAX_WORD = 64,             /* longer words get no suggestion */
    MAX_CONFIG_BYTES = 1 << 20 /* a longer file is not a configuration */
};

struct dsc_option_set {
    const dsc_option *table;
    int *given;   /* one per option of the table */
    char **texts; /* configuration files; stored strings point into them */
    int64_t text_count, text_capacity;
    const char **positional;
    int64_t positional_count, positional_capacity;
};

/* Where a value stands, for messages: a line of a file, or (file NULL) the command line. */
typedef struct place {
    const char *file;
    int line;
} place;

/* ---- words that look alike ---- */

static int min3(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Least number of letters inserted, deleted, replaced or swapped with their neighbour. */
static int edit_distance(const char *a, const char *b) {
    int la = (int)strlen(a), lb = (int)strlen(b);
    if (la >= MAX_WORD || lb >= MAX_WORD)
        return MAX_WORD;
    int d[MAX_WORD + 1][MAX_WORD + 1];
    for (int i = 0; i <= la; i++)
        d[i][0] = i;
    for (int j = 0; j <= lb; j++)
        d[0][j] = j;
    for (int i = 1; i <= la; i++)
        for (int j = 1; j <= lb; j++) {
            int differs = a[i - 1] != b[j - 1];
            d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + differs);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i][j] > d[i - 2][j - 2] + 1)
                d[i][j] = d[i - 2][j - 2] + 1;
        }
    return d[la][lb];
}

const char *dsc_option_nearest(const char *word, const char *const *candidates, int64_t count) {
    const char *best = NULL;
    size_t length = strlen(word);
    int limit = length < 3 ? 1 : 1 + (int)(length / 4); /* a third of a short word may be wrong, no more */
    int best_distance = limit + 1;
    if (length >= MAX_WORD)
        return NULL;
    for (int64_t i = 0; i < count; i++) {
        int distance = edit_distance(word, candidates[i]);
        size_t common = strlen(candidates[i]) < length ? strlen(candidates[i]) : length;
        if (common >= 3 && strncmp(word, candidates[i], common) == 0 && distance > limit)
            distance = limit; /* one is the beginning of the other */
        if (distance < best_distance) {
            best_distance = distance;
            best = candidates[i];
        }
    }
    return best;
}

static const char *nearest_option(const dsc_option *table, const char *word) {
    const char *names[MAX_CANDIDATES];
    int64_t count = 0;
    for (const dsc_option *o = table; o->name && count < MAX_CANDIDATES; o++)
        names[count++] = o->name;
    return dsc_option_nearest(word, names, count);
}

/* ---- messages ---- */

/* "--batch-size" or "train.conf:3: batch-size", the way a message starts. Returns `text`. */
static const char *where(const dsc_option *option, place at, char *text, size_t size) {
    if (at.file)
        snprintf(text, size, "%s:%d: %s", at.file, at.line, option->name);
    else
        snprintf(text, size, "--%s", option->name);
    return text;
}

static dsc_status bad_value(const dsc_option *option, place at, const char *value, const char *why) {
    char head[512];
    return DSC_FAIL(DSC_E_INVALID, "%s %s: %s", where(option, at, head, sizeof head),
                    *value ? value : "(empty)", why);
}

static dsc_status unknown_option(const dsc_option *table, const char *name, place at) {
    char head[512], hint[128] = "";
    const char *dashes = at.file ? "" : "--";
    const char *nearest = nearest_option(table, name);
    if (nearest)
        snprintf(hint, sizeof hint, " (did you mean %s%s?)", dashes, nearest);
    if (at.file)
        snprintf(head, sizeof head, "%s:%d: unknown key", at.file, at.line);
    else
        snprintf(head, sizeof head, "unknown option");
    return DSC_FAIL(DSC_E_INVALID, "%s %s%.200s%s", head, dashes, name, hint);
}

static dsc_status missing_value(const dsc_option *option, place at) {
    char head[512];
    const char *what = option->kind == DSC_OPTION_CHOICE   ? option->choices
                       : option->kind == DSC_OPTION_ON_OFF ? "on|off"
                                                           : option->placeholder;
    return DSC_FAIL(DSC_E_INVALID, "%s needs a value: %s%s%s%s", where(option, at, head, sizeof head),
                    at.file ? "" : "--", option->name, at.file ? " = " : " ", what);
}

/* ---- values ---- */

typedef struct interval {
    double low, high;
    int low_open, high_open;
} interval;

static interval parse_range(const char *range) {
    interval r = {-HUGE_VAL, HUGE_VAL, 0, 0};
    if (!range)
        return r;
    char *end;
    r.low_open = range[0] == '(';
    r.low = strtod(range + 1, &end);
    r.high = strtod(end + 1, &end);
    r.high_open = *end == ')';
    return r;
}

const char *dsc_option_range_text(const char *range, char *text, size_t size) {
    interval r = parse_range(range);
    const char *above = r.low_open ? "above" : "at least";
    const char *below = r.high_open ? "below" : "at most";
    if (!range)
        snprintf(text, size, "%s", "");
    else if (isinf(r.low))
        snprintf(text, size, "%s %g", below, r.high);
    else if (isinf(r.high))
        snprintf(text, size, "%s %g", above, r.low);
    else
        snprintf(text, size, "%s %g and %s %g", above, r.low, below, r.high);
    return text;
}

static dsc_status check_range(const dsc_option *option, place at, const char *value, double x) {
    interval r = parse_range(option->range);
    if (x > r.low && x < r.high)
        return DSC_OK;
    if ((x == r.low && !r.low_open) || (x == r.high && !r.high_open))
        return DSC_OK;
    char why[128], range[96];
    snprintf(why, sizeof why, "must be %s", dsc_option_range_text(option->range, range, sizeof range));
    return bad_value(option, at, value, why);
}

/* strtod and strtoll would also take leading blanks, "nan" and "inf". */
static int is_plain_number_start(const char *value) {
    return isdigit((unsigned char)*value) || (*value && strchr("+-.", *value));
}

static dsc_status parse_double(const dsc_option *option, place at, const char *value, double *out) {
    char *end;
    double x = strtod(value, &end);
    if (!is_plain_number_start(value) || *end || !isfinite(x))
        return bad_value(option, at, value, "is not a number");
    DSC_TRY(check_range(option, at, value, x));
    *out = x;
    return DSC_OK;
}

static dsc_status parse_int64(const dsc_option *option, place at, const char *value, int64_t *out) {
    char *end;
    errno = 0;
    long long x = strtoll(value, &end, 10);
    if (!is_plain_number_start(value) || *end)
        return bad_value(option, at, value, "is not a whole number");
    if (errno == ERANGE)
        return bad_value(option, at, value, "does not fit into 64 bits");
    DSC_TRY(check_range(option, at, value, (double)x));
    *out = (int64_t)x;
    return DSC_OK;
}

static dsc_status parse_uint64(const dsc_option *option, place at, const char *value, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long x = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)*value) || *end)
        return bad_value(option, at, value, "is not a whole number of 0 or more");
    if (errno == ERANGE)
        return bad_value(option, at, value, "does not fit into 64 bits");
    *out = (uint64_t)x;
    return DSC_OK;
}

static dsc_status parse_on_off(const dsc_option *option, place at, const char *value, int *out) {
    if (strcmp(value, "on") == 0)
        *out = 1;
    else if (strcmp(value, "off") == 0)
        *out = 0;
    else
        return bad_value(option, at, value, "must be on or off");
    return DSC_OK;
}

static dsc_status check_choice(const dsc_option *option, place at, const char *value) {
    char list[512], known[600], why[800];
    const char *names[MAX_CANDIDATES];
    int64_t count = 0;
    snprintf(list, sizeof list, "%s", option->choices);
    size_t used = 0;
    for (char *rest = list, *word; rest && count < MAX_CANDIDATES;) {
        word = rest;
        rest = strchr(word, '|');
        if (rest)
            *rest++ = '\0';
        if (strcmp(word, value) == 0)
            return DSC_OK;
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", count ? ", " : "", word);
        names[count++] = word;
    }
    const char *nearest = dsc_option_nearest(value, names, count);
    snprintf(why, sizeof why, "must be %s%s%s%s%s", count > 1 ? "one of " : "", known,
             nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
    return bad_value(option, at, value, why);
}

/* Splits the words (each may hold several numbers, apart by blanks or commas) into the list. */
static dsc_status apply_list(const dsc_option *option, place at, const char *const *words, int count,
                             void *values) {
    void *target = (char *)values + option->offset;
    double *list = target;
    int found = 0;
    for (int i = 0; i < count; i++) {
        const char *p = words[i];
        while (*(p += strspn(p, " \t,"))) {
            char number[64];
            size_t length = strcspn(p, " \t,");
            snprintf(number, sizeof number, "%.*s", (int)(length < 63 ? length : 63), p);
            p += length;
            if (found == option->capacity) {
                char why[64];
                snprintf(why, sizeof why, "more than %d numbers", option->capacity);
                return bad_value(option, at, number, why);
            }
            DSC_TRY(parse_double(option, at, number, &list[found]));
            found++;
        }
    }
    *(int *)((char *)values + option->count_offset) = found;
    return DSC_OK;
}

static dsc_status apply_int(const dsc_option *option, place at, const char *value, int *out) {
    int64_t x;
    DSC_TRY(parse_int64(option, at, value, &x));
    if (x > INT_MAX || x < INT_MIN)
        return bad_value(option, at, value, "does not fit into 32 bits");
    *out = (int)x;
    return DSC_OK;
}

static dsc_status apply_mib(const dsc_option *option, place at, const char *value, size_t *out) {
    double x;
    DSC_TRY(parse_double(option, at, value, &x));
    if (x < 0 || x > 1e12)
        return bad_value(option, at, value, "is not a size");
    *out = (size_t)(x * 1048576.0);
    return DSC_OK;
}

static dsc_status apply_flag(const dsc_option *option, place at, const char *value, int *out) {
    int on = 0;
    DSC_TRY(parse_on_off(option, at, value, &on));
    *out = option->kind == DSC_OPTION_NO_FLAG ? !on : on;
    return DSC_OK;
}

static dsc_status apply(const dsc_option *option, place at, const char *value, void *values) {
    void *target = (char *)values + option->offset;
    switch (option->kind) {
    case DSC_OPTION_FLAG:
    case DSC_OPTION_NO_FLAG:
    case DSC_OPTION_ON_OFF:
        return apply_flag(option, at, value, target);
    case DSC_OPTION_INT:
        return apply_int(option, at, value, target);
    case DSC_OPTION_INT64:
        return parse_int64(option, at, value, target);
    case DSC_OPTION_UINT64:
        return parse_uint64(option, at, value, target);
    case DSC_OPTION_DOUBLE:
        return parse_double(option, at, value, target);
    case DSC_OPTION_MIB:
        return apply_mib(option, at, value, target);
    case DSC_OPTION_LIST:
        return apply_list(option, at, &value, 1, values);
    case DSC_OPTION_CHOICE:
        DSC_TRY(check_choice(option, at, value));
        *(const char **)target = value;
        return DSC_OK;
    case DSC_OPTION_STRING:
    case DSC_OPTION_CONFIG:
        *(const char **)target = value;
        return DSC_OK;
    }
    return DSC_FAIL(DSC_E_INTERNAL, "option %s: kind %d", option->name, (int)option->kind);
}

/* ---- the default, for people ---- */

static void list_text(const double *list, int count, char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%g", i ? " " : "", list[i]);
}

const char *dsc_option_default_text(const dsc_option *option, const void *values, char *text, size_t size) {
    const void *value = (const char *)values + option->offset;
    const char *string;
    text[0] = '\0';
    if (option->shown) {
        snprintf(text, size, "%s", option->shown);
        return text;
    }
    switch (option->kind) {
    case DSC_OPTION_FLAG:
    case DSC_OPTION_NO_FLAG:
        break;
    case DSC_OPTION_ON_OFF:
        snprintf(text, size, "%s", *(const int *)value ? "on" : "off");
        break;
    case DSC_OPTION_INT:
        snprintf(text, size, "%d", *(const int *)value);
        break;
    case DSC_OPTION_INT64:
        snprintf(text, size, "%lld", (long long)*(const int64_t *)value);
        break;
    case DSC_OPTION_UINT64:
        snprintf(text, size, "%llu", (unsigned long long)*(const uint64_t *)value);
        break;
    case DSC_OPTION_DOUBLE:
        snprintf(text, size, "%g", *(const double *)value);
        break;
    case DSC_OPTION_MIB:
        snprintf(text, size, "%g", (double)*(const size_t *)value / 1048576.0);
        break;
    case DSC_OPTION_LIST:
        list_text(value, *(const int *)((const char *)values + option->count_offset), text, size);
        break;
    case DSC_OPTION_CHOICE:
    case DSC_OPTION_STRING:
    case DSC_OPTION_CONFIG:
        string = *(const char *const *)value;
        snprintf(text, size, "%s", string ? string : "");
        break;
    }
    return text;
}

/* ---- the set ---- */

static dsc_status set_create(const dsc_option *table, dsc_option_set **out) {
    dsc_option_set *set;
    int64_t count = 0;
    while (table[count].name)
        count++;
    DSC_TRY(dsc_memory_alloc(1, sizeof *set, &set));
    set->table = table;
    dsc_status status = dsc_memory_alloc(count, sizeof *set->given, &set->given);
    if (status != DSC_OK) {
        dsc_option_set_destroy(&set);
        return status;
    }
    *out = set;
    return DSC_OK;
}

void dsc_option_set_destroy(dsc_option_set **set) {
    if (!set || !*set)
        return;
    for (int64_t i = 0; i < (*set)->text_count; i++)
        dsc_memory_free(&(*set)->texts[i]);
    dsc_memory_free(&(*set)->texts);
    dsc_memory_free(&(*set)->positional);
    dsc_memory_free(&(*set)->given);
    dsc_memory_free(set);
}

static int64_t find_option(const dsc_option *table, const char *name, size_t length) {
    for (int64_t i = 0; table[i].name; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0)
            return i;
    return -1;
}

static int64_t find_letter(const dsc_option *table, char letter) {
    for (int64_t i = 0; table[i].name; i++)
        if (letter && table[i].letter == letter)
            return i;
    return -1;
}

int dsc_option_given(const dsc_option_set *set, const char *name) {
    int64_t i = find_option(set->table, name, strlen(name));
    return i >= 0 && set->given[i];
}

int64_t dsc_option_positional_count(const dsc_option_set *set) {
    return set->positional_count;
}

const char *dsc_option_positional(const dsc_option_set *set, int64_t index) {
    return index >= 0 && index < set->positional_count ? set->positional[index] : NULL;
}

static dsc_status add_positional(dsc_option_set *set, const char *word) {
    DSC_TRY(dsc_memory_grow(&set->positional, &set->positional_capacity, set->positional_count + 1,
                            sizeof *set->positional));
    set->positional[set->positional_count++] = word;
    return DSC_OK;
}

static int is_flag(const dsc_option *option) {
    return option->kind == DSC_OPTION_FLAG || option->kind == DSC_OPTION_NO_FLAG;
}

/* What the option means when nothing follows it; NULL when something must. */
static const char *bare_value(const dsc_option *option) {
    return is_flag(option) ? "on" : option->bare;
}

/* ---- configuration files ---- */

/* Cuts blanks off both ends, in place. */
static char *trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    return text;
}

/* Ends the line at a # that starts it or follows a blank, unless it stands between quotes. */
static void cut_comment(char *line) {
    int quoted = 0;
    for (char *p = line; *p; p++) {
        if (*p == '"')
            quoted = !quoted;
        else if (*p == '#' && !quoted && (p == line || isspace((unsigned char)p[-1]))) {
            *p = '\0';
            return;
        }
    }
}

static char *unquote(char *value) {
    size_t length = strlen(value);
    if (length >= 2 && value[0] == '"' && value[length - 1] == '"') {
        value[length - 1] = '\0';
        return value + 1;
    }
    return value;
}

static dsc_status parse_line(dsc_option_set *set, char *line, place at, void *values) {
    cut_comment(line);
    char *key = trim(line);
    if (!*key)
        return DSC_OK;
    char *equals = strchr(key, '=');
    const char *value = NULL;
    if (equals) {
        *equals = '\0';
        key = trim(key);
        value = unquote(trim(equals + 1));
    }
    int64_t index = find_option(set->table, key, strlen(key));
    if (index < 0)
        return unknown_option(set->table, key, at);
    const dsc_option *option = &set->table[index];
    if (option->kind == DSC_OPTION_CONFIG)
        return DSC_FAIL(DSC_E_INVALID, "%s:%d: a configuration file cannot name another one", at.file,
                        at.line);
    if (!value || !*value)
        value = bare_value(option) ? bare_value(option) : value;
    if (!value || (!*value && option->kind != DSC_OPTION_LIST))
        return missing_value(option, at);
    DSC_TRY(apply(option, at, value, values));
    set->given[index] = 1;
    return DSC_OK;
}

/* Takes over `text`, which has a 0 at text[length]. */
static dsc_status parse_text(dsc_option_set *set, const char *file, char *text, size_t length, void *values) {
    dsc_status status =
        dsc_memory_grow(&set->texts, &set->text_capacity, set->text_count + 1, sizeof *set->texts);
    if (status != DSC_OK) {
        dsc_memory_free(&text);
        return status;
    }
    set->texts[set->text_count++] = text;
    place at = {file, 0};
    for (char *line = text, *end = text + length; line && line <= end;) {
        at.line++;
        char *newline = memchr(line, '\n', (size_t)(end - line));
        char *stop = newline ? newline : end;
        if (memchr(line, '\0', (size_t)(stop - line)))
            return DSC_FAIL(DSC_E_INVALID, "%s:%d: holds a byte 0: not a text file", file, at.line);
        *stop = '\0';
        DSC_TRY(parse_line(set, line, at, values));
        line = newline ? newline + 1 : NULL;
    }
    return DSC_OK;
}

static dsc_status read_file(const char *path, char **out, size_t *length) {
    char *text = NULL;
    FILE *file = fopen(path, "rb");
    if (!file)
        return DSC_FAIL(errno == ENOENT ? DSC_E_NOT_FOUND : DSC_E_INVALID, "--config %s: %s", path,
                        strerror(errno));
    dsc_status status = dsc_memory_alloc(MAX_CONFIG_BYTES + 2, 1, &text);
    if (status == DSC_OK) {
        errno = 0;
        *length = fread(text, 1, MAX_CONFIG_BYTES + 1, file);
        if (ferror(file))
            status = DSC_FAIL(DSC_E_INVALID, "--config %s: %s", path, strerror(errno));
        else if (*length > MAX_CONFIG_BYTES)
            status = DSC_FAIL(DSC_E_INVALID, "--config %s: longer than %d bytes: not a configuration file",
                              path, (int)MAX_CONFIG_BYTES);
    }
    fclose(file);
    if (status != DSC_OK) {
        dsc_memory_free(&text);
        return status;
    }
    text[*length] = '\0';
    *out = text;
    return DSC_OK;
}

static dsc_status parse_file(dsc_option_set *set, const char *path, void *values) {
    char *text = NULL;
    size_t length = 0;
    DSC_TRY(read_file(path, &text, &length));
    DSC_TRY(parse_text(set, path, text, length, values));
    return DSC_OK;
}

dsc_status dsc_option_parse_text(const dsc_option *table, const char *file, const char *text, size_t length,
                                 void *values, dsc_option_set **out) {
    dsc_option_set *set;
    char *copy;
    DSC_TRY(set_create(table, &set));
    dsc_status status = dsc_memory_alloc((int64_t)length + 1, 1, &copy);
    if (status == DSC_OK) {
        memcpy(copy, text, length);
        status = parse_text(set, file, copy, length, values);
    }
    if (status != DSC_OK) {
        dsc_option_set_destroy(&set);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = set;
    return DSC_OK;
}

/* ---- command lines ---- */

/* One option as it stands on the command line. */
typedef struct found {
    int64_t option;
    const char *value; /* NULL: bare */
    const char *const *more;
    int more_count; /* list: further words */
} found;

static int starts_number(const char *word) {
    if (*word == '+' || *word == '-')
        word++;
    return isdigit((unsigned char)*word) || *word == '.' || *word == ',';
}

/* A word that can only be an option, never the value of the one before it. */
static int looks_like_option(const char *word) {
    return word[0] == '-' && word[1] != '\0' && !starts_number(word);
}

/* Reads the option at argv[*at] with its value(s) and moves *at behind them. */
static dsc_status scan_option(const dsc_option *table, int argc, char *const *argv, int *at, found *out) {
    const char *word = argv[*at];
    const place here = {NULL, 0};
    const char *name = word + (word[1] == '-' ? 2 : 1);
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    memset(out, 0, sizeof *out);
    out->option = word[1] == '-' ? find_option(table, name, length)
                  : length == 1  ? find_letter(table, *name)
                                 : -1;
    if (out->option < 0) {
        char copy[256];
        snprintf(copy, sizeof copy, "%.*s", (int)(length < 255 ? length : 255), name);
        return unknown_option(table, copy, here);
    }
    const dsc_option *option = &table[out->option];
    ++*at;
    if (equals)
        out->value = equals + 1;
    else if (!is_flag(option) && *at < argc && !looks_like_option(argv[*at]))
        out->value = argv[(*at)++];
    else if (bare_value(option))
        out->value = bare_value(option);
    else
        return missing_value(option, here);
    out->more = (const char *const *)argv + *at;
    while (option->kind == DSC_OPTION_LIST && *at < argc && starts_number(argv[*at])) {
        ++*at;
        out->more_count++;
    }
    if (!*out->value && bare_value(option))
        out->value = bare_value(option);
    if (!*out->value && option->kind != DSC_OPTION_LIST && option->kind != DSC_OPTION_STRING)
        return missing_value(option, here);
    return DSC_OK;
}

static dsc_status apply_found(dsc_option_set *set, const found *f, void *values) {
    const dsc_option *option = &set->table[f->option];
    const place here = {NULL, 0};
    set->given[f->option] = 1;
    if (option->kind != DSC_OPTION_LIST)
        return apply(option, here, f->value, values);
    const char **words;
    DSC_TRY(dsc_memory_alloc(f->more_count + 1, sizeof *words, &words));
    words[0] = f->value;
    for (int i = 0; i < f->more_count; i++)
        words[i + 1] = f->more[i];
    dsc_status status = apply_list(option, here, words, f->more_count + 1, values);
    dsc_memory_free(&words);
    return status;
}

/* Goes over the command line once: the first pass reads configuration files, the second takes all the rest.
 */
static dsc_status pass_over(dsc_option_set *set, int argc, char *const *argv, int second, void *values) {
    int options_end = 0;
    for (int at = 0; at < argc;) {
        if (options_end || argv[at][0] != '-' || argv[at][1] == '\0') {
            if (second)
                DSC_TRY(add_positional(set, argv[at]));
            at++;
            continue;
        }
        if (strcmp(argv[at], "--") == 0) {
            options_end = 1;
            at++;
            continue;
        }
        found f;
        DSC_TRY(scan_option(set->table, argc, argv, &at, &f));
        if (second)
            DSC_TRY(apply_found(set, &f, values));
        else if (set->table[f.option].kind == DSC_OPTION_CONFIG)
            DSC_TRY(parse_file(set, f.value, values));
    }
    return DSC_OK;
}

dsc_status dsc_option_parse(const dsc_option *table, int argc, char *const *argv, void *values,
                            dsc_option_set **out) {
    dsc_option_set *set;
    DSC_TRY(set_create(table, &set));
    dsc_status status = pass_over(set, argc, argv, 0, values);
    if (status == DSC_OK)
        status = pass_over(set, argc, argv, 1, values);
    if (status != DSC_OK) {
        dsc_option_set_destroy(&set);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = set;
    return DSC_OK;
}

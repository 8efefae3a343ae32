/* Sweep files: lines `key = value` as --config reads them, where a value may be a list or a range.
 *
 *   lr = grid 0.05 0.1 0.2         every one of these, in combination with all other grids
 *   momentum = pick 0.8 0.9        one of these, drawn for each sample
 *   weight-decay = log 1e-5 1e-2   a number between these, its logarithm drawn evenly
 *   label-smoothing = uniform 0 0.2
 *   warmup-epochs = int 0 5        a whole number from 0 to 5
 *   samples = 20                   how many samples are drawn
 *   draw-seed = 1                  another seed draws other samples
 *
 * The value that sample s draws for a key depends on draw-seed, the key and s alone: more samples leave the first
 * ones as they are, and every point of the grids gets the same samples. */
#include "cli/sweep_plan.h"
#include "cli/support.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 4096, MAX_LINES = 1000, MAX_WORDS = 1000, NAME_LENGTH = 100, VALUE_LENGTH = 32 };

typedef enum axis_kind { FIXED, GRID, PICK, UNIFORM, LOG, INT } axis_kind;

/* One line of the file. Texts point into that of the file. */
typedef struct axis {
    const char *key, *value; /* value NULL: the key stands alone */
    char **words;            /* GRID, PICK */
    int64_t count;
    int line;
    axis_kind kind;
    double low, high; /* UNIFORM, LOG, INT */
} axis;

typedef struct sweep_file {
    const char *name;
    axis *axes; /* in the order of the file */
    int64_t count;
    int64_t samples;             /* 0: not given */
    int samples_line, seed_line; /* where these were given; 0: they were not */
    uint64_t draw_seed;
} sweep_file;

/* ---- lines ---- */

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

/* Cuts the next word off *text: up to a blank, or between quotes. NULL at the end. */
static char *next_word(char **text) {
    char *word = *text + strspn(*text, " \t");
    if (!*word)
        return NULL;
    char *end;
    if (*word == '"') {
        word++;
        end = word + strcspn(word, "\"");
    } else {
        end = word + strcspn(word, " \t");
    }
    *text = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

static int is_number(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return (isdigit((unsigned char)*text) || (*text && strchr("+-.", *text))) && !*end && isfinite(*out);
}

static dsc_status read_count(const char *file, const axis *a, uint64_t low, uint64_t high, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    *out = a->value ? strtoull(a->value, &end, 10) : 0;
    if (!a->value || !isdigit((unsigned char)*a->value) || *end || errno != 0 || *out < low || *out > high)
        return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s %.60s: must be a whole number from %llu to %llu", file,
                            a->line, a->key, a->value ? a->value : "(nothing)", (unsigned long long)low,
                            (unsigned long long)high);
    return DSC_OK;
}

/* ---- values that vary ---- */

static dsc_status take_words(const char *file, axis *a, char *text) {
    int64_t capacity = 1;
    for (const char *p = text; *p; p++)
        capacity += *p == ' ' || *p == '\t';
    if (capacity > MAX_WORDS)
        capacity = MAX_WORDS;
    DSC_CLI_TRY(dsc_cli_alloc(capacity, sizeof *a->words, &a->words));
    for (char *word; (word = next_word(&text)) != NULL;) {
        if (a->count == capacity)
            return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s: more than %d values", file, a->line, a->key,
                                (int)MAX_WORDS);
        if (!*word || strchr(word, '"'))
            return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s: a value is empty or has a quotation mark in it",
                                file, a->line, a->key);
        a->words[a->count++] = word;
    }
    return DSC_OK;
}

static dsc_status take_range(const char *file, axis *a, char *text) {
    const char *low = next_word(&text), *high = next_word(&text);
    int good = low && high && !next_word(&text) && is_number(low, &a->low) && is_number(high, &a->high);
    if (!good || !(a->low < a->high))
        return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s: a range is two numbers, the lower first", file,
                            a->line, a->key);
    if (a->kind == LOG && !(a->low > 0))
        return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s: log %g %g: both numbers must be above 0", file,
                            a->line, a->key, a->low, a->high);
    if (a->kind == INT &&
        (floor(a->low) != a->low || floor(a->high) != a->high || fabs(a->low) > 1e15 || a->high > 1e15))
        return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s: int %g %g: both must be whole numbers", file, a->line,
                            a->key, a->low, a->high);
    return DSC_OK;
}

/* Reads a value. It varies if its first word is grid, pick, ..., and more words follow. */
static dsc_status take_value(const char *file, axis *a, char *value) {
    static const char *const words[] = {"", "grid", "pick", "uniform", "log", "int"};
    size_t length = strcspn(value, " \t");
    a->value = value;
    for (int k = GRID; k <= INT && value[length]; k++)
        if (strlen(words[k]) == length && strncmp(words[k], value, length) == 0)
            a->kind = (axis_kind)k;
    if (a->kind == GRID || a->kind == PICK)
        return take_words(file, a, value + length);
    return a->kind == FIXED ? DSC_OK : take_range(file, a, value + length);
}

/* ---- the file ---- */

static dsc_status check_key(const sweep_file *f, const axis *a) {
    static const char *const refused[] = {"out", "resume", "overwrite", "config", "help", NULL};
    if (!*a->key || a->key[strspn(a->key, "abcdefghijklmnopqrstuvwxyz0123456789-")])
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "%s:%d: '%.60s' is no key: lines are key = value, # starts a comment", f->name,
                            a->line, a->key);
    for (int i = 0; refused[i]; i++)
        if (strcmp(a->key, refused[i]) == 0)
            return DSC_CLI_FAIL(DSC_E_INVALID,
                                "%s:%d: %s: not in a sweep file, which sets it for each run itself", f->name,
                                a->line, a->key);
    for (int64_t i = 0; i < f->count; i++)
        if (strcmp(f->axes[i].key, a->key) == 0)
            return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s stands in line %d, too", f->name, a->line, a->key,
                                f->axes[i].line);
    return DSC_OK;
}

static dsc_status take_line(sweep_file *f, char *line, int number) {
    axis *a = &f->axes[f->count];
    uint64_t whole = 0;
    cut_comment(line);
    char *key = trim(line);
    if (!*key)
        return DSC_OK;
    if (f->count == MAX_LINES)
        return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: more than %d keys", f->name, number, (int)MAX_LINES);
    char *equals = strchr(key, '='), *value = NULL;
    if (equals) {
        *equals = '\0';
        key = trim(key);
        value = trim(equals + 1);
    }
    *a = (axis){.key = key, .line = number, .value = value};
    DSC_CLI_TRY(check_key(f, a));
    int is_samples = strcmp(key, "samples") == 0, is_seed = strcmp(key, "draw-seed") == 0;
    int *before = is_samples ? &f->samples_line : &f->seed_line;
    if ((is_samples || is_seed) && *before)
        return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: %s stands in line %d, too", f->name, number, key, *before);
    if (is_samples || is_seed)
        *before = number;
    if (is_seed)
        return read_count(f->name, a, 0, UINT64_MAX, &f->draw_seed);
    if (is_samples) {
        dsc_status status = read_count(f->name, a, 1, MAX_RUNS, &whole);
        f->samples = (int64_t)whole;
        return status;
    }
    f->count++; /* from here on the axis and its words are freed with the file */
    return value ? take_value(f->name, a, value) : DSC_OK;
}

static dsc_status take_lines(sweep_file *f, char *text, size_t length) {
    char *end = text + length;
    int number = 0;
    for (char *line = text; line && line <= end;) {
        char *newline = memchr(line, '\n', (size_t)(end - line)), *stop = newline ? newline : end;
        number++;
        for (const char *p = line; p < stop; p++)
            if ((unsigned char)*p < ' ' && *p != '\t' && *p != '\r')
                return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: holds a byte %d: not a text file", f->name, number,
                                    *p);
        *stop = '\0';
        DSC_CLI_TRY(take_line(f, line, number));
        line = newline ? newline + 1 : NULL;
    }
    return DSC_OK;
}

/* ---- drawing ---- */

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static uint64_t hash_text(const char *text, uint64_t start) {
    uint64_t h = mix(start + 1);
    for (; *text; text++)
        h = mix(h + (unsigned char)*text + 1);
    return h;
}

/* The value of an axis in a run: `point` counts the points of its grid, `sample` the samples. Numbers have three
 * digits, so that what a run's name says is what it has. */
static const char *value_of(const sweep_file *f, const axis *a, int64_t point, int64_t sample, char *text) {
    uint64_t random = mix(hash_text(a->key, f->draw_seed) + (uint64_t)sample);
    double share = (double)(random >> 11) / 9007199254740992.0; /* 2^53: in [0, 1) */
    double x = a->low + share * (a->high - a->low);
    switch (a->kind) {
    case GRID:
        return a->words[point];
    case PICK:
        return a->words[(int64_t)(share * (double)a->count)];
    case INT:
        snprintf(text, VALUE_LENGTH, "%.0f", a->low + floor(share * (a->high - a->low + 1)));
        return text;
    case LOG:
        x = a->low * pow(a->high / a->low, share);
        break;
    case UNIFORM:
    case FIXED:
        break;
    }
    snprintf(text, VALUE_LENGTH, "%.3g", x);
    if (strtod(text, NULL) < a->low || strtod(text, NULL) > a->high) /* rounded out of the range */
        snprintf(text, VALUE_LENGTH, "%.9g", x);
    return text;
}

/* ---- runs ---- */

static int varies(const axis *a) {
    return a->kind > GRID || (a->kind == GRID && a->count > 1);
}

/* The values of all axes in one run; `texts` holds those that are drawn. */
typedef struct point {
    const char *values[MAX_LINES]; /* NULL: the key alone */
    char texts[MAX_LINES][VALUE_LENGTH];
} point;

static void set_point(const sweep_file *f, int64_t grid, int64_t sample, point *p) {
    for (int64_t i = f->count - 1; i >= 0; i--) { /* the last grid changes fastest */
        const axis *a = &f->axes[i];
        p->values[i] = a->kind == FIXED
                           ? a->value
                           : value_of(f, a, a->kind == GRID ? grid % a->count : 0, sample, p->texts[i]);
        if (a->kind == GRID)
            grid /= a->count;
    }
}

/* "lr=0.1,seed=2". A name that had to be changed or cut ends with a hash of the whole. */
static dsc_status make_name(const sweep_file *f, const point *p, char **out) {
    char *name = NULL;
    size_t size = 0, length;
    FILE *stream = open_memstream(&name, &size);
    if (!stream)
        return DSC_CLI_FAIL(DSC_E_MEMORY, "no memory for the name of a run");
    for (int64_t i = 0, first = 1; i < f->count; i++)
        if (varies(&f->axes[i])) {
            fprintf(stream, "%s%s=%s", first ? "" : ",", f->axes[i].key, p->values[i]);
            first = 0;
        }
    if (ftell(stream) == 0)
        fputs("run", stream);
    if (fclose(stream) != 0)
        return DSC_CLI_FAIL(DSC_E_MEMORY, "no memory for the name of a run");
    uint64_t hash = hash_text(name, 0);
    int changed = 0;
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._=,+-", *c)) {
            *c = '_';
            changed = 1;
        }
    length = strlen(name);
    changed |= length > NAME_LENGTH;
    dsc_status status = dsc_cli_alloc(NAME_LENGTH + 16, 1, out);
    if (status == DSC_OK && changed)
        snprintf(*out, NAME_LENGTH + 16, "%.*s-%08x", (int)NAME_LENGTH, name, (unsigned)(hash >> 32));
    else if (status == DSC_OK)
        snprintf(*out, NAME_LENGTH + 16, "%s", name);
    free(name);
    return status;
}

static void write_option(FILE *stream, const axis *a, const char *value) {
    const char *quote = a->kind != FIXED && value && strpbrk(value, " \t#") ? "\"" : "";
    if (value)
        fprintf(stream, "%s = %s%s%s", a->key, quote, value, quote);
    else
        fputs(a->key, stream);
}

/* The line with the next key after `after` (NULL: the first key) in the order of keys; -1: none. */
static int64_t next_key(const sweep_file *f, const char *after) {
    int64_t next = -1;
    for (int64_t i = 0; i < f->count; i++)
        if ((!after || strcmp(f->axes[i].key, after) > 0) &&
            (next < 0 || strcmp(f->axes[i].key, f->axes[next].key) < 0))
            next = i;
    return next;
}

/* The options as text: by key, or each on its line of the file. */
static dsc_status make_config(const sweep_file *f, const point *p, int lined, char **out) {
    size_t size = 0;
    FILE *stream = open_memstream(out, &size);
    if (!stream)
        return DSC_CLI_FAIL(DSC_E_MEMORY, "no memory for the options of a run");
    int line = 1;
    for (int64_t i = 0; lined && i < f->count; i++) {
        for (; line < f->axes[i].line; line++)
            fputc('\n', stream);
        write_option(stream, &f->axes[i], p->values[i]);
    }
    for (int64_t i = lined ? -1 : next_key(f, NULL); i >= 0; i = next_key(f, f->axes[i].key)) {
        write_option(stream, &f->axes[i], p->values[i]);
        fputc('\n', stream);
    }
    return fclose(stream) == 0 ? DSC_OK : DSC_CLI_FAIL(DSC_E_MEMORY, "no memory for the options of a run");
}

static int is_known(const dsc_sweep_plan *plan, const char *name) {
    for (int64_t i = 0; i < plan->count; i++)
        if (strcmp(plan->runs[i].name, name) == 0)
            return 1;
    return 0;
}

static dsc_status add_run(const sweep_file *f, const point *p, dsc_sweep_plan *plan) {
    char *name = NULL;
    DSC_CLI_TRY(make_name(f, p, &name));
    if (is_known(plan, name)) {
        plan->repeated++;
        dsc_cli_free(&name);
        return DSC_OK;
    }
    dsc_sweep_run *run = &plan->runs[plan->count++];
    run->name = name;
    DSC_CLI_TRY(make_config(f, p, 0, &run->config));
    return make_config(f, p, 1, &run->lined);
}

/* The number of points of the grids, times the samples. */
static dsc_status count_runs(const sweep_file *f, int64_t *points, int64_t *samples) {
    const axis *drawn = NULL;
    *points = 1;
    for (int64_t i = 0; i < f->count; i++) {
        const axis *a = &f->axes[i];
        drawn = a->kind > GRID && !drawn ? a : drawn;
        if (a->kind == GRID && (*points *= a->count) > MAX_RUNS)
            return DSC_CLI_FAIL(DSC_E_INVALID, "%s:%d: the grids have more than %d points", f->name, a->line,
                                (int)MAX_RUNS);
    }
    if (drawn && f->samples == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "%s:%d: %s is drawn at random: say how often, in a line samples = N", f->name,
                            drawn->line, drawn->key);
    if (!drawn && f->samples > 0)
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "%s:%d: samples %lld, but no value is drawn (pick, uniform, log or int)", f->name,
                            f->samples_line, (long long)f->samples);
    *samples = drawn ? f->samples : 1;
    if (*points * *samples > MAX_RUNS)
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "%s: %lld points of the grids times %lld samples: more than %d runs", f->name,
                            (long long)*points, (long long)*samples, (int)MAX_RUNS);
    return DSC_OK;
}

static dsc_status make_runs(const sweep_file *f, dsc_sweep_plan *plan) {
    int64_t points = 0, samples = 0;
    point *p = NULL;
    DSC_CLI_TRY(count_runs(f, &points, &samples));
    DSC_CLI_TRY(dsc_cli_alloc(points * samples, sizeof *plan->runs, &plan->runs));
    dsc_status status = dsc_cli_alloc(1, sizeof *p, &p);
    for (int64_t s = 0; s < samples && status == DSC_OK; s++)
        for (int64_t g = 0; g < points && status == DSC_OK; g++) {
            set_point(f, g, s, p);
            status = add_run(f, p, plan);
        }
    dsc_cli_free(&p);
    return status;
}

dsc_status dsc_sweep_plan_parse(const char *file, char *text, size_t length, dsc_sweep_plan *out) {
    sweep_file f = {.name = file, .draw_seed = 1};
    *out = (dsc_sweep_plan){0};
    DSC_CLI_TRY(dsc_cli_alloc(MAX_LINES + 1, sizeof *f.axes, &f.axes));
    dsc_status status = take_lines(&f, text, length);
    if (status == DSC_OK && f.count == 0)
        status = DSC_CLI_FAIL(DSC_E_INVALID,
                              "%s: says nothing: lines are key = value, such as lr = grid 0.05 0.1", file);
    if (status == DSC_OK)
        status = make_runs(&f, out);
    for (int64_t i = 0; i < f.count; i++)
        dsc_cli_free(&f.axes[i].words);
    dsc_cli_free(&f.axes);
    if (status != DSC_OK)
        dsc_sweep_plan_free(out);
    return status;
}

void dsc_sweep_plan_free(dsc_sweep_plan *plan) {
    for (int64_t i = 0; i < plan->count; i++) {
        dsc_cli_free(&plan->runs[i].name);
        dsc_cli_free(&plan->runs[i].config);
        dsc_cli_free(&plan->runs[i].lined);
    }
    dsc_cli_free(&plan->runs);
    *plan = (dsc_sweep_plan){0};
}

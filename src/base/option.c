/* Values of options: conversion from and to text, checks, rules, defaults. */
#include "base/option.h"

#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 64 }; /* longer words get no suggestion */

/* ---- similar words ---- */

static int min3(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Returns the least number of letters to insert, delete, replace or swap with their neighbour to turn a into b. */
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
    int limit = length < 3 ? 1 : 1 + (int)(length / 4); /* how many letters may be wrong */
    int best_distance = limit + 1;
    if (length >= MAX_WORD)
        return NULL;
    for (int64_t i = 0; i < count; i++) {
        int distance = edit_distance(word, candidates[i]);
        size_t common = strlen(candidates[i]) < length ? strlen(candidates[i]) : length;
        if (common >= 3 && strncmp(word, candidates[i], common) == 0 && distance > limit)
            distance = limit; /* one is a prefix of the other */
        if (distance < best_distance) {
            best_distance = distance;
            best = candidates[i];
        }
    }
    return best;
}

/* ---- messages ---- */

const char *dsc_option_where(const dsc_option *option, dsc_option_place at, char *text, size_t size) {
    if (at.file)
        snprintf(text, size, "%s:%d: %s", at.file, at.line, option->name);
    else
        snprintf(text, size, "%s%s", at.prefix, option->name);
    return text;
}

static dsc_status bad_value(const dsc_option *option, dsc_option_place at, const char *value,
                            const char *why) {
    char head[512];
    return DSC_FAIL(DSC_E_INVALID, "%s %s: %s", dsc_option_where(option, at, head, sizeof head),
                    *value ? value : "(empty)", why);
}

dsc_status dsc_option_unknown(const dsc_option *table, const char *name, dsc_option_place at) {
    char head[512], hint[128] = "";
    const char *prefix = at.file ? "" : at.prefix, *names[DSC_OPTION_CANDIDATES];
    int64_t count = 0;
    for (const dsc_option *o = table; o->name && count < DSC_OPTION_CANDIDATES; o++)
        names[count++] = o->name;
    const char *nearest = dsc_option_nearest(name, names, count);
    if (nearest)
        snprintf(hint, sizeof hint, " (did you mean %s%s?)", prefix, nearest);
    if (at.file)
        snprintf(head, sizeof head, "%s:%d: unknown key", at.file, at.line);
    else
        snprintf(head, sizeof head, "unknown option");
    return DSC_FAIL(DSC_E_INVALID, "%s %s%.200s%s", head, prefix, name, hint);
}

static const char *list_choices(const char *const *choices, const char *between, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; choices[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? between : "", choices[i]);
    return text;
}

const char *dsc_option_value_text(const dsc_option *option, char *text, size_t size) {
    if (option->kind == DSC_OPTION_CHOICE || option->kind == DSC_OPTION_WORD)
        return list_choices(option->choices, "|", text, size);
    snprintf(text, size, "%s", option->kind == DSC_OPTION_ON_OFF ? "on|off" : option->placeholder);
    return text;
}

const char *dsc_option_expand(const char *source, const char *prefix, char *text, size_t size) {
    size_t used = 0;
    for (const char *p = source; *p && used + 1 < size; p++) {
        if (*p == '{')
            used += (size_t)snprintf(text + used, size - used, "%s", prefix);
        else if (*p != '}')
            text[used++] = *p;
        used = used < size ? used : size - 1;
    }
    text[used] = '\0';
    return text;
}

/* ---- ranges ---- */

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
        snprintf(text, size, "%s %.10g", below, r.high);
    else if (isinf(r.high))
        snprintf(text, size, "%s %.10g", above, r.low);
    else
        snprintf(text, size, "%s %.10g and %s %.10g", above, r.low, below, r.high);
    return text;
}

static dsc_status check_range(const dsc_option *option, dsc_option_place at, const char *value, double x) {
    interval r = parse_range(option->range);
    if (x > r.low && x < r.high)
        return DSC_OK;
    if ((x == r.low && !r.low_open) || (x == r.high && !r.high_open))
        return DSC_OK;
    char why[128], range[96];
    snprintf(why, sizeof why, "must be %s", dsc_option_range_text(option->range, range, sizeof range));
    return bad_value(option, at, value, why);
}

/* ---- text to value ---- */

/* Returns 1 if `value` may be a number: strtod and strtoll would also accept leading blanks, "nan" and "inf". */
static int is_plain_number_start(const char *value) {
    return isdigit((unsigned char)*value) || (*value && strchr("+-.", *value));
}

static dsc_status parse_double(const dsc_option *option, dsc_option_place at, const char *value,
                               double *out) {
    char *end;
    double x = strtod(value, &end);
    if (!is_plain_number_start(value) || *end || !isfinite(x))
        return bad_value(option, at, value, "is not a number");
    DSC_TRY(check_range(option, at, value, x));
    *out = x;
    return DSC_OK;
}

static dsc_status parse_int64(const dsc_option *option, dsc_option_place at, const char *value,
                              int64_t *out) {
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

static dsc_status parse_uint64(const dsc_option *option, dsc_option_place at, const char *value,
                               uint64_t *out) {
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

/* Parses "0.25" or "1/4". */
static dsc_status parse_fraction(const dsc_option *option, dsc_option_place at, const char *value,
                                 double *out) {
    char *end = NULL;
    double above = strtod(value, &end), below = 1;
    int good = isdigit((unsigned char)*value) || *value == '.';
    if (good && *end == '/') {
        const char *rest = end + 1;
        good = isdigit((unsigned char)*rest) || *rest == '.';
        below = strtod(rest, &end);
    }
    if (!good || *end || !(below > 0) || !(above <= below))
        return bad_value(option, at, value, "must be a number from 0 to 1, as 0.25 or 1/4");
    *out = above / below;
    return DSC_OK;
}

static dsc_status parse_choice(const dsc_option *option, dsc_option_place at, const char *value, int *index) {
    char known[512], why[800];
    int64_t count = 0;
    for (; option->choices[count]; count++)
        if (strcmp(option->choices[count], value) == 0) {
            *index = (int)count;
            return DSC_OK;
        }
    const char *nearest = dsc_option_nearest(value, option->choices, count);
    snprintf(why, sizeof why, "must be %s%s%s%s%s", count > 1 ? "one of " : "",
             list_choices(option->choices, ", ", known, sizeof known), nearest ? " (did you mean " : "",
             nearest ? nearest : "", nearest ? "?)" : "");
    return bad_value(option, at, value, why);
}

/* Reads a whole number up to `high`, digits only, at *text, and moves *text past it. Returns 0 if there is none. */
static int read_count(const char **text, long high, long *out) {
    char *end;
    if (!isdigit((unsigned char)**text))
        return 0;
    errno = 0;
    *out = strtol(*text, &end, 10);
    *text = end;
    return errno == 0 && *out <= high;
}

/* Parses pairs such as "0:1 30:2", with commas or blanks between them; the first numbers increase, the second are at
 * least 1. */
static dsc_status parse_pairs(const dsc_option *option, dsc_option_place at, const char *value,
                              void *values) {
    static const char blanks[] = ", \t";
    int64_t *first = (int64_t *)(void *)((char *)values + option->offset);
    int *second = (int *)(void *)((char *)values + option->second_offset), count = 0;
    char why[128];
    for (const char *p = value + strspn(value, blanks); *p; p += strspn(p, blanks)) {
        long epoch = 0, number = 0;
        int good = read_count(&p, 1000000000L, &epoch) && *p == ':';
        p += good;
        if (!good || !read_count(&p, INT_MAX, &number) || number < 1 || (*p && !strchr(blanks, *p)))
            return bad_value(option, at, value,
                             "must be pairs EPOCH:NUMBER of whole numbers, as '0:1 30:2' or 0:1,30:2, with "
                             "numbers of 1 or more");
        if (count > 0 && epoch <= first[count - 1]) {
            snprintf(why, sizeof why, "epoch %ld does not come after epoch %lld", epoch,
                     (long long)first[count - 1]);
            return bad_value(option, at, value, why);
        }
        if (count == option->capacity) {
            snprintf(why, sizeof why, "more than %d pairs", option->capacity);
            return bad_value(option, at, value, why);
        }
        first[count] = epoch;
        second[count++] = (int)number;
    }
    if (count == 0)
        return bad_value(option, at, "", "must be pairs EPOCH:NUMBER, as '0:1 30:2'");
    *(int *)(void *)((char *)values + option->count_offset) = count;
    return DSC_OK;
}

/* Parses the words, each of which may hold several numbers separated by blanks or commas, into the list. */
static dsc_status parse_list(const dsc_option *option, dsc_option_place at, const char *const *words,
                             int count, void *values) {
    double *list = (double *)(void *)((char *)values + option->offset);
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
    *(int *)(void *)((char *)values + option->count_offset) = found;
    return DSC_OK;
}

void dsc_option_set_default(const dsc_option *option, void *values) {
    dsc_option alone[2] = {*option, {.name = NULL}};
    dsc_option_defaults(alone, values);
}

dsc_status dsc_option_apply(const dsc_option *option, dsc_option_place at, const char *const *words,
                            int count, void *values) {
    void *target = (char *)values + option->offset;
    const char *value = words[0];
    int64_t whole = 0;
    double x = 0;
    int index = 0;
    if (option->default_text && strcmp(option->default_text, "none") == 0 && strcmp(value, "none") == 0) {
        dsc_option_set_default(option, values);
        return DSC_OK;
    }
    switch (option->kind) {
    case DSC_OPTION_FLAG:
    case DSC_OPTION_NO_FLAG:
    case DSC_OPTION_ON_OFF:
        if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
            return bad_value(option, at, value, "must be on or off");
        *(int *)target = (strcmp(value, "on") == 0) != (option->kind == DSC_OPTION_NO_FLAG);
        return DSC_OK;
    case DSC_OPTION_INT:
        DSC_TRY(parse_int64(option, at, value, &whole));
        if (whole > INT_MAX || whole < INT_MIN)
            return bad_value(option, at, value, "does not fit into 32 bits");
        *(int *)target = (int)whole;
        return DSC_OK;
    case DSC_OPTION_INT64:
        return parse_int64(option, at, value, target);
    case DSC_OPTION_UINT64:
        return parse_uint64(option, at, value, target);
    case DSC_OPTION_DOUBLE:
        return parse_double(option, at, value, target);
    case DSC_OPTION_FRACTION:
        return parse_fraction(option, at, value, target);
    case DSC_OPTION_MIB:
        DSC_TRY(parse_double(option, at, value, &x));
        if (x < 0 || x > 1e12)
            return bad_value(option, at, value, "is not a size");
        *(size_t *)target = (size_t)(x * 1048576.0);
        return DSC_OK;
    case DSC_OPTION_LIST:
        return parse_list(option, at, words, count, values);
    case DSC_OPTION_PAIRS:
        return parse_pairs(option, at, value, values);
    case DSC_OPTION_CHOICE:
        DSC_TRY(parse_choice(option, at, value, &index));
        *(int *)target = option->values ? option->values[index] : index;
        return DSC_OK;
    case DSC_OPTION_WORD:
        DSC_TRY(parse_choice(option, at, value, &index));
        *(const char **)target = option->choices[index];
        return DSC_OK;
    case DSC_OPTION_STRING:
    case DSC_OPTION_CONFIG:
        *(const char **)target = value;
        return DSC_OK;
    }
    return DSC_FAIL(DSC_E_INTERNAL, "option %s: kind %d", option->name, (int)option->kind);
}

dsc_status dsc_option_set_value(const dsc_option *table, void *values, const char *name, const char *text) {
    const dsc_option_place here = {NULL, "", 0};
    const dsc_option *option = dsc_option_find(table, name);
    if (!option)
        return dsc_option_unknown(table, name, here);
    return dsc_option_apply(option, here, &text, 1, values);
}

/* ---- tables ---- */

const dsc_option *dsc_option_find(const dsc_option *table, const char *name) {
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

/* Returns 1 if `word` is one of the words in `list`, which are separated by blanks. */
static int is_listed(const char *word, const char *list) {
    size_t length = strlen(word);
    for (const char *p = list; (p = strstr(p, word)) != NULL; p += length)
        if ((p == list || p[-1] == ' ') && (p[length] == ' ' || p[length] == '\0'))
            return 1;
    return 0;
}

dsc_status dsc_option_join(dsc_option *out, int64_t capacity, const dsc_option *table, size_t offset,
                           size_t size, const char *only) {
    const char *group = NULL;
    int64_t count = 0;
    while (out[count].name)
        count++;
    for (; table->name; table++) {
        group = table->group ? table->group : group;
        if (table->offset >= size || (only && !is_listed(table->name, only)))
            continue;
        if (count + 1 >= capacity)
            return DSC_FAIL(DSC_E_INTERNAL, "more than %lld options", (long long)capacity - 1);
        out[count] = *table;
        out[count].group = group;
        out[count].offset += offset;
        out[count].count_offset += offset;
        out[count++].second_offset += offset;
    }
    out[count].name = NULL;
    return DSC_OK;
}

void dsc_option_defaults(const dsc_option *table, void *values) {
    for (; table->name; table++) {
        dsc_option any = *table;
        any.range = NULL; /* a default may be a special value that nobody can give */
        char *target = (char *)values + table->offset;
        if (table->kind == DSC_OPTION_LIST || table->kind == DSC_OPTION_PAIRS)
            *(int *)(void *)((char *)values + table->count_offset) = 0;
        else if (table->kind == DSC_OPTION_STRING || table->kind == DSC_OPTION_CONFIG ||
                 table->kind == DSC_OPTION_WORD)
            *(const char **)(void *)target = table->value;
        else if (!table->value ||
                 dsc_option_apply(&any, (dsc_option_place){NULL, "", 0}, &table->value, 1, values) != DSC_OK)
            memset(target, 0,
                   table->kind == DSC_OPTION_INT64 || table->kind == DSC_OPTION_UINT64      ? sizeof(int64_t)
                   : table->kind == DSC_OPTION_DOUBLE || table->kind == DSC_OPTION_FRACTION ? sizeof(double)
                   : table->kind == DSC_OPTION_MIB                                          ? sizeof(size_t)
                                                                                            : sizeof(int));
    }
}

/* ---- value to text ---- */

/* Writes the shortest text that is read back as the same number; returns its length. */
static int number_text(double x, char *text, size_t size) {
    int length = 0;
    for (int digits = 6; digits <= 17; digits++) {
        length = snprintf(text, size, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    return length;
}

static void list_text(const dsc_option *option, const void *values, char *text, size_t size) {
    int count = *(const int *)(const void *)((const char *)values + option->count_offset);
    const char *first = (const char *)values + option->offset;
    const int *second = (const int *)(const void *)((const char *)values + option->second_offset);
    size_t used = 0;
    for (int i = 0; i < count && i < option->capacity && used + 1 < size; i++) {
        if (i > 0)
            text[used++] = ' ';
        if (option->kind == DSC_OPTION_LIST)
            used += (size_t)number_text(((const double *)(const void *)first)[i], text + used, size - used);
        else
            used += (size_t)snprintf(text + used, size - used, "%lld:%d",
                                     (long long)((const int64_t *)(const void *)first)[i], second[i]);
    }
}

static int choice_index(const dsc_option *option, int value) {
    for (int i = 0; option->choices[i]; i++)
        if ((option->values ? option->values[i] : i) == value)
            return i;
    return -1;
}

const char *dsc_option_get_value(const dsc_option *option, const void *values, char *text, size_t size) {
    const void *value = (const char *)values + option->offset;
    const char *string = NULL;
    int index;
    text[0] = '\0';
    switch (option->kind) {
    case DSC_OPTION_FLAG:
    case DSC_OPTION_NO_FLAG:
    case DSC_OPTION_ON_OFF:
        string = (*(const int *)value != 0) != (option->kind == DSC_OPTION_NO_FLAG) ? "on" : "off";
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
    case DSC_OPTION_FRACTION:
        number_text(*(const double *)value, text, size);
        break;
    case DSC_OPTION_MIB:
        number_text((double)*(const size_t *)value / 1048576.0, text, size);
        break;
    case DSC_OPTION_LIST:
    case DSC_OPTION_PAIRS:
        list_text(option, values, text, size);
        break;
    case DSC_OPTION_CHOICE:
        index = choice_index(option, *(const int *)value);
        string = index >= 0 ? option->choices[index] : "unknown";
        break;
    case DSC_OPTION_WORD:
    case DSC_OPTION_STRING:
    case DSC_OPTION_CONFIG:
        string = *(const char *const *)value;
        break;
    }
    if (string)
        snprintf(text, size, "%s", string);
    return text;
}

const char *dsc_option_default_text(const dsc_option *option, const void *values, const char *prefix,
                                    char *text, size_t size) {
    if (option->default_text)
        return dsc_option_expand(option->default_text, prefix, text, size);
    if (option->kind == DSC_OPTION_FLAG || option->kind == DSC_OPTION_NO_FLAG)
        text[0] = '\0';
    else
        dsc_option_get_value(option, values, text, size);
    return text;
}

/* ---- names of enums ---- */

dsc_status dsc_option_choice_parse(const char *what, const char *const *choices, const char *name, int *out) {
    char known[256];
    name = name ? name : "";
    for (int i = 0; choices[i]; i++)
        if (strcmp(name, choices[i]) == 0) {
            *out = i;
            return DSC_OK;
        }
    return DSC_FAIL(DSC_E_INVALID, "%s '%s' is unknown: choose one of %s", what, name,
                    list_choices(choices, ", ", known, sizeof known));
}

const char *dsc_option_choice_name(const char *const *choices, int value) {
    for (int i = 0; choices[i]; i++)
        if (i == value)
            return choices[i];
    return "unknown";
}

/* ---- rules ---- */

/* Returns the option that a rule asks about, and writes its value to `value`; NULL if the table does not have it. */
static const dsc_option *rule_subject(const dsc_option *table, const char *when, const void *values,
                                      char *value, size_t size) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(when, "=>"), when);
    const dsc_option *subject = dsc_option_find(table, name);
    if (subject)
        dsc_option_get_value(subject, values, value, size);
    return subject;
}

int dsc_option_rule_holds(const dsc_option *table, const dsc_option_rule *rule, const void *values,
                          const dsc_option_set *given) {
    char value[64];
    const dsc_option *subject = rule_subject(table, rule->when, values, value, sizeof value);
    const char *test = rule->when + strcspn(rule->when, "=>");
    if (!subject)
        return 1;
    if (*test == '>')
        return strtod(value, NULL) > 0;
    if (*test == '\0')
        return !given || dsc_option_given(given, subject->name) || strtod(value, NULL) > 0;
    size_t length = strlen(value);
    for (const char *word = test + 1; word; word = strchr(word, '|')) {
        word += *word == '|';
        if (strncmp(word, value, length) == 0 && (word[length] == '|' || word[length] == '\0'))
            return 1;
    }
    return 0;
}

dsc_status dsc_option_rule_broken(const dsc_option *table, const dsc_option *option,
                                  const dsc_option_rule *rule, const void *values, const char *prefix) {
    char value[64], why[256], choices[128];
    const dsc_option *subject = rule_subject(table, rule->when, values, value, sizeof value);
    const char *test = rule->when + strcspn(rule->when, "=>");
    dsc_option_expand(rule->why, prefix, why, sizeof why);
    if (*test == '>')
        return DSC_FAIL(DSC_E_INVALID, "%s%s with %s%s %s: %s; give %s%s %s, or leave %s%s out", prefix,
                        option->name, prefix, subject->name, value, why, prefix, subject->name,
                        subject->placeholder, prefix, option->name);
    if (*test == '\0')
        return DSC_FAIL(DSC_E_INVALID, "%s%s needs %s%s: %s; give %s%s %s, too, or leave %s%s out", prefix,
                        option->name, prefix, subject->name, why, prefix, subject->name, subject->placeholder,
                        prefix, option->name);
    size_t used = 0;
    for (const char *p = test + 1; *p && used + 3 < sizeof choices; p++) {
        if (*p == '|')
            choices[used++] = ',';
        choices[used++] = *p == '|' ? ' ' : *p;
    }
    choices[used] = '\0';
    return DSC_FAIL(DSC_E_INVALID, "%s%s does not go with %s%s %s: %s; choose %s%s or leave it out", prefix,
                    option->name, prefix, subject->name, value, why, strchr(choices, ',') ? "one of " : "",
                    choices);
}

/* ---- checks ---- */

int dsc_option_is_default(const dsc_option *option, const void *values) {
    union {
        int i;
        int64_t l;
        uint64_t u;
        double d;
        size_t s;
        const char *p;
    } own;
    char text[512], standard[512];
    dsc_option alone = *option;
    dsc_option_get_value(option, values, text, sizeof text);
    if (option->kind == DSC_OPTION_LIST || option->kind == DSC_OPTION_PAIRS)
        return *(const int *)(const void *)((const char *)values + option->count_offset) == 0;
    alone.offset = 0;
    memset(&own, 0, sizeof own);
    dsc_option table[2] = {alone, {.name = NULL}};
    dsc_option_defaults(table, &own);
    return strcmp(text, dsc_option_get_value(&alone, &own, standard, sizeof standard)) == 0;
}

static dsc_status check_number(const dsc_option *option, const char *prefix, double x) {
    char text[64];
    number_text(x, text, sizeof text);
    if (!isfinite(x))
        return bad_value(option, (dsc_option_place){NULL, prefix, 0}, text, "must be a finite number");
    return check_range(option, (dsc_option_place){NULL, prefix, 0}, text, x);
}

static dsc_status check_many(const dsc_option *option, const void *values, const char *prefix) {
    int count = *(const int *)(const void *)((const char *)values + option->count_offset);
    const void *first = (const char *)values + option->offset;
    const int *second = (const int *)(const void *)((const char *)values + option->second_offset);
    if (count < 0 || count > option->capacity)
        return DSC_FAIL(DSC_E_INVALID, "%s%s with %d values: 0 to %d are allowed", prefix, option->name,
                        count, option->capacity);
    for (int i = 0; i < count && option->kind == DSC_OPTION_LIST; i++)
        DSC_TRY(check_number(option, prefix, ((const double *)first)[i]));
    for (int i = 0; i < count && option->kind == DSC_OPTION_PAIRS; i++) {
        const int64_t *epochs = first;
        if (epochs[i] < (i ? epochs[i - 1] + 1 : 0) || second[i] < 1)
            return DSC_FAIL(DSC_E_INVALID,
                            "%s%s %lld:%d: epochs must rise, from 0 on, and the numbers be 1 at least",
                            prefix, option->name, (long long)epochs[i], second[i]);
    }
    return DSC_OK;
}

static dsc_status check_value(const dsc_option *option, const void *values, const char *prefix) {
    const void *value = (const char *)values + option->offset;
    char known[512];
    switch (option->kind) {
    case DSC_OPTION_INT:
        return check_number(option, prefix, *(const int *)value);
    case DSC_OPTION_INT64:
        return check_number(option, prefix, (double)*(const int64_t *)value);
    case DSC_OPTION_DOUBLE:
        return check_number(option, prefix, *(const double *)value);
    case DSC_OPTION_MIB:
        return check_number(option, prefix, (double)*(const size_t *)value / 1048576.0);
    case DSC_OPTION_LIST:
    case DSC_OPTION_PAIRS:
        return check_many(option, values, prefix);
    case DSC_OPTION_CHOICE:
        if (choice_index(option, *(const int *)value) >= 0)
            return DSC_OK;
        return DSC_FAIL(DSC_E_INVALID, "%s%s %d is unknown: choose one of %s", prefix, option->name,
                        *(const int *)value, list_choices(option->choices, ", ", known, sizeof known));
    default:
        return DSC_OK;
    }
}

dsc_status dsc_option_check_values(const dsc_option *table, const void *values, const char *prefix) {
    for (const dsc_option *o = table; o->name; o++)
        if (!dsc_option_is_default(o, values))
            DSC_TRY(check_value(o, values, prefix));
    return DSC_OK;
}

dsc_status dsc_option_check(const dsc_option *table, const void *values, const char *prefix) {
    DSC_TRY(dsc_option_check_values(table, values, prefix));
    for (const dsc_option *o = table; o->name; o++) {
        if (dsc_option_is_default(o, values))
            continue;
        for (int i = 0; i < DSC_OPTION_RULES && o->rules[i].when; i++)
            if (!dsc_option_rule_holds(table, &o->rules[i], values, NULL))
                return dsc_option_rule_broken(table, o, &o->rules[i], values, prefix);
    }
    return DSC_OK;
}

/* ---- writing ---- */

/* Returns 1 if a line `key = text` of a configuration file would be read as this value. */
static int can_be_read(const dsc_option *option, const void *values, const char *text) {
    if (!*text || strpbrk(text, "\n\r\""))
        return 0;
    return !dsc_option_is_default(option, values) || check_value(option, values, "") == DSC_OK;
}

int dsc_option_applies(const dsc_option *table, const dsc_option *o, const void *values) {
    for (int i = 0; i < DSC_OPTION_RULES && o->rules[i].when; i++) {
        dsc_option_rule rule = o->rules[i];
        char positive[64];
        snprintf(positive, sizeof positive, "%s>0", rule.when); /* here it is not known what was given */
        if (!strpbrk(rule.when, "=>"))
            rule.when = positive;
        if (!dsc_option_rule_holds(table, &rule, values, NULL))
            return 0;
    }
    return 1;
}

/* Writes "key = value", or a comment if that could not be read back or the option does not apply. */
static void write_line(const dsc_option *table, const dsc_option *o, const void *values, FILE *out) {
    char text[4096], words[128], line[4300];
    dsc_option_get_value(o, values, text, sizeof text);
    if (!can_be_read(o, values, text)) {
        snprintf(line, sizeof line, "# %s: %s\n", o->name,
                 o->default_text ? dsc_option_expand(o->default_text, "", words, sizeof words) : "none");
    } else {
        int quoted = strchr(text, '#') || isspace((unsigned char)text[0]) ||
                     isspace((unsigned char)text[strlen(text) - 1]);
        snprintf(line, sizeof line, quoted ? "%s%s = \"%s\"\n" : "%s%s = %s\n",
                 dsc_option_applies(table, o, values) ? "" : "# ", o->name, text);
    }
    fputs(line, out);
}

static void write_heading(const char *group, FILE *out) {
    fputs("\n# ", out);
    fputs(group, out);
    fputc('\n', out);
}

void dsc_option_write(const dsc_option *table, const void *values, FILE *out) {
    for (const dsc_option *head = table; head->name; head++) {
        int lines = 0;
        for (const dsc_option *before = table; before < head && lines == 0; before++)
            lines = !head->group || (before->group && strcmp(before->group, head->group) == 0);
        if (lines > 0) /* it was written with the first option of its group */
            continue;
        const char *group = head->group;
        for (const dsc_option *o = head; o->name; o++) {
            group = o->group ? o->group : group;
            if (o->flags & DSC_OPTION_NOT_SAVED || (group && strcmp(group, head->group) != 0))
                continue;
            if (group && lines++ == 0)
                write_heading(group, out);
            write_line(table, o, values, out);
        }
    }
}

/* Parses command lines and configuration files by tables of options. */
#include "base/option.h"

#include "base/error.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 1 << 20 }; /* a longer file is not a configuration */
enum { ON_COMMAND_LINE = 1, IN_FILE, RESTORED };

struct dsc_option_set {
    const dsc_option *table;
    int *given; /* one per option of the table: 0, or how it was given */
    int restoring;
    char **texts; /* texts of configuration files; stored strings point into them */
    int64_t text_count, text_capacity;
    const char **positional;
    int64_t positional_count, positional_capacity;
};

static const dsc_option_place command_line = {NULL, "--", 0};

static dsc_status missing_value(const dsc_option *option, dsc_option_place at) {
    char head[512], value[256];
    return DSC_FAIL(DSC_E_INVALID, "%s needs a value: %s%s%s%s",
                    dsc_option_where(option, at, head, sizeof head), at.file ? "" : at.prefix, option->name,
                    at.file ? " = " : " ", dsc_option_value_text(option, value, sizeof value));
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

/* Returns the value that an option has if none is given; NULL if one must be given. */
static const char *bare_value(const dsc_option *option) {
    return is_flag(option) ? "on" : option->bare;
}

/* ---- configuration files ---- */

/* Removes white space at both ends, in place. */
static char *trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    return text;
}

/* Cuts the line off at a # that begins it or follows white space, unless it is in quotes. */
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

static dsc_status parse_line(dsc_option_set *set, char *line, dsc_option_place at, void *values) {
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
        return dsc_option_unknown(set->table, key, at);
    const dsc_option *option = &set->table[index];
    if (option->kind == DSC_OPTION_CONFIG)
        return DSC_FAIL(DSC_E_INVALID, "%s:%d: a configuration file cannot name another one", at.file,
                        at.line);
    if (set->restoring && set->given[index])
        return DSC_OK;
    if (!value || !*value)
        value = bare_value(option) ? bare_value(option) : value;
    if (!value || (!*value && option->kind != DSC_OPTION_LIST))
        return missing_value(option, at);
    DSC_TRY(dsc_option_apply(option, at, &value, 1, values));
    set->given[index] = set->restoring ? RESTORED : IN_FILE;
    return DSC_OK;
}

/* Parses `text`, which has a 0 at text[length]; the set owns it from then on. */
static dsc_status parse_text(dsc_option_set *set, const char *file, char *text, size_t length, void *values) {
    dsc_status status =
        dsc_memory_grow(&set->texts, &set->text_capacity, set->text_count + 1, sizeof *set->texts);
    if (status != DSC_OK) {
        dsc_memory_free(&text);
        return status;
    }
    set->texts[set->text_count++] = text;
    dsc_option_place at = {file, "", 0};
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

/* Resets restored options that do not apply to their default values; returns the number of such options. */
static int drop_restored(dsc_option_set *set, void *values) {
    int dropped = 0;
    for (int64_t i = 0; set->table[i].name; i++) {
        const dsc_option *o = &set->table[i];
        int holds = 1;
        for (int r = 0; r < DSC_OPTION_RULES && o->rules[r].when; r++)
            holds = holds && dsc_option_rule_holds(set->table, &o->rules[r], values, NULL);
        if (set->given[i] != RESTORED || holds)
            continue;
        dsc_option_set_default(o, values);
        set->given[i] = 0;
        dropped++;
    }
    return dropped;
}

dsc_status dsc_option_restore(dsc_option_set *set, const char *file, const char *text, size_t length,
                              void *values) {
    char *copy;
    DSC_TRY(dsc_memory_alloc((int64_t)length + 1, 1, &copy));
    memcpy(copy, text, length);
    set->restoring = 1;
    dsc_status status = parse_text(set, file, copy, length, values);
    set->restoring = 0;
    DSC_TRY(status);
    while (drop_restored(set, values) > 0) /* others may depend on the options that were reset */
        continue;
    return DSC_OK;
}

/* ---- command lines ---- */

/* One option as found on the command line. */
typedef struct found {
    int64_t option;
    const char *value; /* the one given, or what a bare option means */
    const char *const *more;
    int more_count; /* lists: number of further words */
} found;

static int starts_number(const char *word) {
    if (*word == '+' || *word == '-')
        word++;
    return isdigit((unsigned char)*word) || *word == '.' || *word == ',';
}

/* Returns 1 for a word that can only be an option, never the value of the option before it. */
static int looks_like_option(const char *word) {
    return word[0] == '-' && word[1] != '\0' && !starts_number(word);
}

/* Reads the option at argv[*at] with its values, and moves *at past them. */
static dsc_status scan_option(const dsc_option *table, int argc, char *const *argv, int *at, found *out) {
    const char *word = argv[*at];
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
        return dsc_option_unknown(table, copy, command_line);
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
        return missing_value(option, command_line);
    out->more = (const char *const *)argv + *at;
    while (option->kind == DSC_OPTION_LIST && *at < argc && starts_number(argv[*at])) {
        ++*at;
        out->more_count++;
    }
    if (!*out->value && bare_value(option))
        out->value = bare_value(option);
    if (!*out->value && option->kind != DSC_OPTION_LIST && option->kind != DSC_OPTION_STRING)
        return missing_value(option, command_line);
    return DSC_OK;
}

static dsc_status apply_found(dsc_option_set *set, const found *f, void *values) {
    const dsc_option *option = &set->table[f->option];
    set->given[f->option] = ON_COMMAND_LINE;
    if (option->kind != DSC_OPTION_LIST)
        return dsc_option_apply(option, command_line, &f->value, 1, values);
    const char **words;
    DSC_TRY(dsc_memory_alloc(f->more_count + 1, sizeof *words, &words));
    words[0] = f->value;
    for (int i = 0; i < f->more_count; i++)
        words[i + 1] = f->more[i];
    dsc_status status = dsc_option_apply(option, command_line, words, f->more_count + 1, values);
    dsc_memory_free(&words);
    return status;
}

/* Goes through the command line once: the first pass reads configuration files, the second does everything else. */
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

dsc_status dsc_option_check_given(const dsc_option_set *set, const void *values, const char *prefix) {
    for (int64_t i = 0; set->table[i].name; i++) {
        const dsc_option *o = &set->table[i];
        /* Files hold all options of a run, also one with its default value that depends on something turned off. */
        int usual = set->given[i] == IN_FILE && dsc_option_is_default(o, values);
        for (int r = 0; set->given[i] && r < DSC_OPTION_RULES && o->rules[r].when; r++)
            if (!(usual && strchr(o->rules[r].when, '>')) &&
                !dsc_option_rule_holds(set->table, &o->rules[r], values, set))
                return dsc_option_rule_broken(set->table, o, &o->rules[r], values, prefix);
    }
    return DSC_OK;
}

/* Both runs are compared as their files `config` describe them, read by the same table, so that options that
 * do not apply (they are comments in the file) count as equal. Nothing that is wrong with the saved file
 * prevents a run from being resumed: it is reported instead. */
#include "train/resume_note.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 18, VALUE_SIZE = 4096, WORDS_SIZE = 256 };

/* Options as a file gives them; the set owns the strings. */
typedef struct reading {
    dsc_settings values;
    dsc_option_set *set;
} reading;

/* Overwrites the lines of other keys with blanks: a program may have options of its own in the file
 * (config_lines), which this table does not have. */
static void blank_unknown(const dsc_option *table, char *text, size_t length) {
    for (char *line = text, *end; line < text + length; line = end + 1) {
        char key[64];
        end = memchr(line, '\n', (size_t)(text + length - line));
        end = end ? end : text + length;
        snprintf(key, sizeof key, "%.*s", (int)strcspn(line, " \t=\r\n"), line);
        if (!dsc_option_find(table, key))
            memset(line, ' ', (size_t)(end - line));
    }
}

static dsc_status read_text(const dsc_option *table, const char *path, char *text, size_t length,
                            reading *out) {
    DSC_TRY(dsc_settings_read(NULL, &out->values));
    blank_unknown(table, text, length);
    return dsc_option_parse_text(table, path, text, length, &out->values, &out->set);
}

static void clear(reading *r) {
    dsc_option_set_destroy(&r->set);
    dsc_settings_clear(&r->values);
}

static dsc_status read_own(const dsc_option *table, const dsc_settings *settings, reading *out) {
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream)
        dsc_option_write(table, settings, stream);
    dsc_status status = stream && fclose(stream) == 0
                            ? read_text(table, "config", text, length, out)
                            : DSC_FAIL(DSC_E_MEMORY, "no memory to write the options of this run");
    free(text);
    return status;
}

/* *found = 0 when there is no such file. */
static dsc_status read_saved(const dsc_option *table, const char *path, reading *out, int *found) {
    char *text = NULL;
    FILE *file = fopen(path, "rb");
    *found = file != NULL;
    if (!file)
        return DSC_OK;
    dsc_status status = dsc_memory_alloc(FILE_LIMIT + 1, 1, &text);
    if (status == DSC_OK) {
        size_t length = fread(text, 1, FILE_LIMIT, file);
        status = read_text(table, path, text, length, out);
    }
    fclose(file);
    dsc_memory_free(&text);
    return status;
}

/* The value, or what its default means ("the model's own size" rather than 0). A default that depends on other
 * options, of which the table has a negative number, has a value of its own by now. `value` must outlive what is
 * returned. */
static const char *in_words(const dsc_option *option, const char *value, const dsc_settings *defaults,
                            char words[WORDS_SIZE]) {
    char usual[VALUE_SIZE];
    dsc_settings_shared_value(option, defaults, usual, sizeof usual);
    int mark = option->value && option->value[0] == '-';
    if (option->default_text && strcmp(value, usual) == 0 && (!mark || value[0] == '-'))
        return dsc_option_expand(option->default_text, "", words, WORDS_SIZE);
    return *value ? value : "none";
}

static char *list_differences(const dsc_option *table, const dsc_settings *saved, const dsc_settings *now,
                              const dsc_settings *defaults) {
    const unsigned skipped = DSC_OPTION_NOT_SAVED | DSC_OPTION_OWN | DSC_OPTION_MAY_CHANGE;
    char before[VALUE_SIZE], after[VALUE_SIZE], words[WORDS_SIZE], *text = NULL;
    size_t length = 0;
    int count = 0;
    FILE *out = open_memstream(&text, &length);
    for (const dsc_option *o = table; out && o->name; o++) {
        dsc_settings_shared_value(o, saved, before, sizeof before);
        dsc_settings_shared_value(o, now, after, sizeof after);
        if (o->flags & skipped || strcmp(before, after) == 0)
            continue;
        fputs(count++ == 0 ? "resumed with other options than the saved run: " : ", ", out);
        fputs(o->name, out);
        fputc(' ', out);
        fputs(in_words(o, after, defaults, words), out);
        fputs(" instead of ", out);
        fputs(in_words(o, before, defaults, words), out);
    }
    if (out && fclose(out) == 0 && count > 0)
        return text;
    free(text);
    return NULL;
}

/* 1 when one of the models is the caller's own ("custom"): then any model that fits may continue. */
static int is_custom(const dsc_option *o, const char *before, const char *after) {
    return strcmp(o->name, "model") == 0 && (strcmp(before, "custom") == 0 || strcmp(after, "custom") == 0);
}

/* What the user calls an option: the image size of sequences is their context. */
static const char *name_of(const dsc_option *o, const reading *saved, const reading *own) {
    const int sequences = saved->values.train.context > 0 || own->values.train.context > 0;
    return sequences && strcmp(o->name, "image-size") == 0 ? "context" : o->name;
}

/* Options that do not apply are not in the sets. */
static dsc_status refuse_fixed(const dsc_option *table, const reading *saved, const reading *own,
                               const dsc_settings *defaults, const char *directory) {
    char before[VALUE_SIZE], after[VALUE_SIZE], was[WORDS_SIZE], is[WORDS_SIZE];
    for (const dsc_option *o = table; o->name; o++) {
        if (!(o->flags & DSC_OPTION_FIXED) || !dsc_option_given(saved->set, o->name) ||
            !dsc_option_given(own->set, o->name))
            continue;
        dsc_settings_shared_value(o, &saved->values, before, sizeof before);
        dsc_settings_shared_value(o, &own->values, after, sizeof after);
        if (strcmp(before, after) != 0 && !is_custom(o, before, after))
            return DSC_FAIL(
                DSC_E_INVALID,
                "a run that is resumed cannot change %s: it is %.200s now, but was %.200s in '%s'; "
                "leave it as it was, or start another run in another directory",
                name_of(o, saved, own), in_words(o, after, defaults, is), in_words(o, before, defaults, was),
                directory);
    }
    return DSC_OK;
}

static char *describe_failure(void) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return NULL;
    fputs("the options of the saved run are not compared with those of this one: ", out);
    fputs(dsc_error_message(), out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

dsc_status dsc_resume_compare(const dsc_settings *now, const char *directory, char **note) {
    dsc_option table[DSC_SETTINGS_OPTIONS];
    reading saved = {.set = NULL}, own = {.set = NULL}, defaults = {.set = NULL};
    char *path = NULL;
    int found = 0;
    *note = NULL;
    dsc_status refused = DSC_OK, status = dsc_settings_table(table);
    if (status == DSC_OK)
        status = dsc_output_path(directory, "config", &path);
    if (status == DSC_OK)
        status = read_saved(table, path, &saved, &found);
    if (status == DSC_OK && found)
        status = read_own(table, now, &own);
    if (status == DSC_OK && found)
        status = dsc_settings_read(NULL, &defaults.values);
    defaults.values.train.image_size =
        0; /* it is that of the default's model, and runs have one of their own */
    if (status != DSC_OK)
        *note = describe_failure();
    else if (found)
        refused = refuse_fixed(table, &saved, &own, &defaults.values, directory);
    if (status == DSC_OK && refused == DSC_OK && found)
        *note = list_differences(table, &saved.values, &own.values, &defaults.values);
    clear(&saved);
    clear(&own);
    clear(&defaults);
    dsc_memory_free(&path);
    return refused;
}

/* Output directories that are not given: runs/MODEL-DATA-...-N. */
#include "cli/support.h"
#include "cli/train_options.h"
#include "descent/model.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_LENGTH = 80, VALUE_SIZE = 4096, TRIES = 1000 };

#define PARENT "runs"

/* ---- the name ---- */

/* Appends `text`, with all but letters, digits, '.', '-' and '+' replaced. */
static void append(char *name, size_t size, const char *text) {
    size_t used = strlen(name);
    for (; *text && used + 1 < size; text++)
        name[used++] = isalnum((unsigned char)*text) || strchr(".-+", *text) ? *text : '_';
    name[used] = '\0';
}

/* "lr0.05", "adam", "lr-schedule-cosine", "nesterov", "bn-average-off", "init-resnet18.safetensors" */
static void describe(const dsc_option *o, const char *value, char *part, size_t size) {
    int flag = o->kind == DSC_OPTION_FLAG || o->kind == DSC_OPTION_NO_FLAG;
    int word = o->kind == DSC_OPTION_CHOICE || o->kind == DSC_OPTION_WORD;
    if (o->kind == DSC_OPTION_STRING && strrchr(value, '/'))
        value = strrchr(value, '/') + 1; /* the last name of a path */
    part[0] = '\0';
    if (word && !strchr(o->name, '-')) {
        append(part, size, value);
        return;
    }
    append(part, size, o->name);
    if (flag && strcmp(value, "on") == 0)
        return;
    if (flag || word || o->kind == DSC_OPTION_ON_OFF || o->kind == DSC_OPTION_STRING)
        append(part, size, "-");
    append(part, size, value);
}

/* 1 for options whose value makes it another experiment. */
static int counts(const dsc_option *o) {
    const unsigned other = DSC_OPTION_NOT_SAVED | DSC_OPTION_OWN | DSC_OPTION_MAY_CHANGE;
    return !(o->flags & other) && strcmp(o->name, "model") != 0 && strcmp(o->name, "data") != 0;
}

/* The image size where it can be chosen, else 0. A run stores it where it was not given. */
static int64_t image_size(const dsc_cli_train_values *v) {
    int64_t side = v->o.image_size, channels, classes;
    if (strncmp(v->o.data, "imagefolder", 11) != 0 && strncmp(v->o.data, "webdataset", 10) != 0)
        return 0;
    if (side == 0 && dsc_zoo_default_input(v->o.model, &side, &channels, &classes) != DSC_OK)
        return 0;
    return side;
}

void dsc_cli_train_name(dsc_cli_train_values *v, const dsc_option_set *set) {
    char value[VALUE_SIZE], usual[VALUE_SIZE], part[NAME_LENGTH + 1], data[64], *name = v->out_name;
    dsc_cli_train_values *defaults = NULL;
    int left_out = 0;
    if (v->o.out) /* given, or that of the run to be resumed */
        return;
    snprintf(data, sizeof data, "%.*s", (int)strcspn(v->o.data, ":"), v->o.data);
    snprintf(name, sizeof v->out_name, PARENT "/");
    append(name, NAME_LENGTH, v->o.model);
    append(name, NAME_LENGTH, "-");
    append(name, NAME_LENGTH, data);
    if (dsc_cli_alloc(1, sizeof *defaults, &defaults) != DSC_OK)
        return; /* a shorter name will do */
    dsc_cli_train_init(defaults);
    defaults->o.model = v->o.model; /* it determines the image size */
    defaults->o.data = v->o.data;
    for (const dsc_option *o = dsc_cli_train_options; o->name; o++) {
        dsc_option_get_value(o, v, value, sizeof value);
        dsc_option_get_value(o, defaults, usual, sizeof usual);
        if (!counts(o) || !dsc_option_given(set, o->name) || strcmp(value, usual) == 0 ||
            (strcmp(o->name, "image-size") == 0 && image_size(v) == image_size(defaults)))
            continue;
        describe(o, value, part, sizeof part);
        if (strlen(name) + 1 + strlen(part) > NAME_LENGTH) {
            left_out++;
            continue;
        }
        append(name, sizeof v->out_name, "-");
        append(name, sizeof v->out_name, part);
    }
    dsc_cli_free(&defaults);
    if (left_out > 0) {
        snprintf(part, sizeof part, "-and-%d-more", left_out);
        append(name, sizeof v->out_name, part);
    }
}

/* ---- which number ---- */

/* The number in NAME-N, for a name without the directory above it; -1 for any other name. */
static int64_t number_of(const char *entry, const char *name) {
    size_t length = strlen(name);
    if (strncmp(entry, name, length) != 0 || entry[length] != '-' ||
        !isdigit((unsigned char)entry[length + 1]) || entry[length + 1] == '0' ||
        strlen(entry + length + 1) > 9 ||
        strspn(entry + length + 1, "0123456789") != strlen(entry + length + 1))
        return -1;
    return strtoll(entry + length + 1, NULL, 10);
}

/* The highest number below `below` that a directory of this name has; 0 when there is none. */
static int64_t highest(const char *name, int64_t below) {
    int64_t found = 0;
    DIR *entries = opendir(PARENT);
    for (const struct dirent *e; entries && (e = readdir(entries));) {
        int64_t number = number_of(e->d_name, name + strlen(PARENT "/"));
        found = number > found && number < below ? number : found;
    }
    if (entries)
        closedir(entries);
    return found;
}

/* ---- configurations ---- */

/* The options as a run with them stores them, read back: options that do not apply have their defaults. */
static dsc_status read_own(const dsc_cli_train_values *v, dsc_cli_train_values *out, dsc_option_set **set) {
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream)
        dsc_option_write(dsc_cli_train_options, v, stream);
    dsc_cli_train_init(out);
    dsc_status status = stream && fclose(stream) == 0
                            ? dsc_option_parse_text(dsc_cli_train_options, "config", text, length, out, set)
                            : DSC_CLI_FAIL(DSC_E_MEMORY, "no memory to compare configurations");
    free(text);
    return status;
}

/* 1 when both have the same options. a: those of a run; b: those of the command line. */
static int is_same(const dsc_cli_train_values *a, const dsc_cli_train_values *b) {
    char x[VALUE_SIZE], y[VALUE_SIZE];
    for (const dsc_option *o = dsc_cli_train_options; o->name; o++) {
        int named = strcmp(o->name, "model") == 0 || strcmp(o->name, "data") == 0;
        if ((!counts(o) && !named) || strcmp(o->name, "image-size") == 0)
            continue;
        if (strcmp(o->name, "kfac-refresh") == 0 && b->kfac.refresh == DSC_KFAC_AUTO)
            continue; /* a run stores what auto stands for */
        if (strcmp(dsc_option_get_value(o, a, x, sizeof x), dsc_option_get_value(o, b, y, sizeof y)) != 0)
            return 0;
    }
    return image_size(a) == image_size(b);
}

/* 1 when the run in `directory` was started with the options of `own`; 0 also for a run that cannot be read. */
static int holds(const char *directory, const dsc_cli_train_values *own, dsc_cli_train_values *scratch) {
    dsc_option_set *set = NULL;
    int found = 0;
    int same =
        dsc_cli_train_read(directory, scratch, &set, &found) == DSC_OK && found && is_same(scratch, own);
    dsc_option_set_destroy(&set);
    return same;
}

/* The newest directory of a run with these options; "" when there is none. */
static dsc_status find_run(const dsc_cli_train_values *v, char directory[DSC_CLI_OUT_SIZE]) {
    dsc_cli_train_values *two = NULL; /* own options, and those of a directory */
    dsc_option_set *set = NULL;
    DSC_CLI_TRY(dsc_cli_alloc(2, sizeof *two, &two));
    dsc_status status = read_own(v, &two[0], &set);
    int64_t number = INT64_MAX;
    directory[0] = '\0';
    while (status == DSC_OK && !directory[0] && (number = highest(v->out_name, number)) > 0) {
        char path[DSC_CLI_OUT_SIZE];
        snprintf(path, sizeof path, "%.1000s-%lld", v->out_name, (long long)number);
        if (holds(path, &two[0], &two[1]))
            snprintf(directory, DSC_CLI_OUT_SIZE, "%s", path);
    }
    dsc_option_set_destroy(&set);
    dsc_cli_free(&two);
    return status;
}

/* ---- choosing ---- */

static dsc_status refuse(const char *path) {
    return DSC_CLI_FAIL(DSC_E_INVALID,
                        "cannot make directory '%s': %s; name a directory that can be written (--out DIR)",
                        path, strerror(errno));
}

/* Makes the directory of the next free number, so that no other run takes it. */
static dsc_status make_next(dsc_cli_train_values *v) {
    char path[DSC_CLI_OUT_SIZE];
    int64_t number = highest(v->out_name, INT64_MAX) + 1;
    v->out_made = v->dry_run ? 0 : 1;
    if (!v->dry_run && mkdir(PARENT, 0777) == 0)
        v->out_made = 2;
    else if (!v->dry_run && errno != EEXIST)
        return refuse(PARENT);
    for (int tries = 0; tries < TRIES; tries++, number++) {
        snprintf(path, sizeof path, "%.1000s-%lld", v->out_name, (long long)number);
        if (v->dry_run || mkdir(path, 0777) == 0)
            break;
        if (errno != EEXIST || tries == TRIES - 1) {
            v->out_made = 0;
            return refuse(path);
        }
    }
    snprintf(v->out_name, sizeof v->out_name, "%s", path);
    return DSC_OK;
}

dsc_status dsc_cli_train_choose_out(dsc_cli_train_values *v) {
    char found[DSC_CLI_OUT_SIZE] = "";
    if (!v->out_is_default)
        return DSC_OK;
    if (v->o.resume && strcmp(v->o.resume, "auto") == 0)
        DSC_CLI_TRY(find_run(v, found));
    if (!found[0])
        return make_next(v);
    snprintf(v->out_name, sizeof v->out_name, "%s", found);
    return DSC_OK;
}

void dsc_cli_train_discard_out(const dsc_cli_train_values *v) {
    if (v->out_made > 0 && rmdir(v->out_name) == 0 && v->out_made > 1)
        rmdir(PARENT);
}

/* descent train --resume DIR: the options of the run in DIR, where the command line gives no others. */
#include "cli/support.h"
#include "cli/train_options.h"
#include "descent/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_LIMIT = 1 << 20, VALUE_SIZE = 4096 };

/* Reads DIRECTORY/config; *text is NULL when there is no such file, else the caller frees it with free(). */
static dsc_status read_config(const char *directory, char path[DSC_CLI_OUT_SIZE + 8], char **text,
                              size_t *length) {
    *text = NULL;
    snprintf(path, DSC_CLI_OUT_SIZE + 8, "%s/config", directory);
    FILE *file = fopen(path, "rb");
    if (!file && (errno == ENOENT || errno == ENOTDIR))
        return DSC_OK;
    if (!file)
        return DSC_CLI_FAIL(DSC_E_INVALID, "cannot read '%s': %s", path, strerror(errno));
    dsc_status status = DSC_OK;
    *text = calloc(1, CONFIG_LIMIT + 1);
    *length = *text ? fread(*text, 1, CONFIG_LIMIT + 1, file) : 0;
    if (!*text)
        status = DSC_CLI_FAIL(DSC_E_MEMORY, "no memory to read '%s'", path);
    else if (*length > CONFIG_LIMIT || ferror(file))
        status = DSC_CLI_FAIL(DSC_E_INVALID, "'%s' cannot be read, or is longer than %d bytes", path,
                              (int)CONFIG_LIMIT);
    fclose(file);
    if (status != DSC_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

dsc_status dsc_cli_train_read(const char *directory, dsc_cli_train_values *out, dsc_option_set **set,
                              int *found) {
    char path[DSC_CLI_OUT_SIZE + 8], *text = NULL;
    size_t length = 0;
    *set = NULL;
    dsc_cli_train_init(out);
    DSC_CLI_TRY(read_config(directory, path, &text, &length));
    *found = text != NULL;
    dsc_status status =
        text ? dsc_option_parse_text(dsc_cli_train_options, path, text, length, out, set) : DSC_OK;
    free(text);
    return status;
}

/* Lists in v->changes which options of the saved run the command line changes, of those that a continuation may
 * change: the library reports the others. */
static void list_changes(dsc_cli_train_values *v, const dsc_option_set *set,
                         const dsc_cli_train_values *saved, const dsc_option_set *saved_set) {
    char before[VALUE_SIZE], after[VALUE_SIZE];
    size_t used = 0;
    for (const dsc_option *o = dsc_cli_train_options; o->name; o++) {
        if (!(o->flags & DSC_OPTION_MAY_CHANGE) || !dsc_option_given(set, o->name) ||
            strcmp(o->name, "out") == 0)
            continue;
        dsc_option_get_value(o, v, after, sizeof after);
        dsc_option_get_value(o, saved, before, sizeof before);
        if (strcmp(before, after) == 0 || used >= sizeof v->changes)
            continue;
        used += (size_t)snprintf(v->changes + used, sizeof v->changes - used, "%s%s %.100s instead of %.100s",
                                 used ? ", " : "", o->name, *after ? after : "none",
                                 dsc_option_given(saved_set, o->name) ? before : "the default");
    }
}

static dsc_status restore(dsc_cli_train_values *v, dsc_option_set *set, const char *directory) {
    char path[DSC_CLI_OUT_SIZE + 8], *text = NULL;
    size_t length = 0;
    dsc_cli_train_values *saved = NULL;
    dsc_option_set *saved_set = NULL;
    int found = 0;
    DSC_CLI_TRY(dsc_cli_alloc(1, sizeof *saved, &saved));
    dsc_status status = dsc_cli_train_read(directory, saved, &saved_set, &found);
    if (status == DSC_OK && found) {
        list_changes(v, set, saved, saved_set);
        status = read_config(directory, path, &text, &length);
    }
    if (status == DSC_OK && text) {
        status = dsc_option_restore(set, path, text, length, v);
        snprintf(v->resume_directory, sizeof v->resume_directory, "%s", directory);
    }
    free(text);
    dsc_option_set_destroy(&saved_set);
    dsc_cli_free(&saved);
    return status;
}

dsc_status dsc_cli_train_restore(void *values, dsc_option_set *set) {
    dsc_cli_train_values *v = values;
    char directory[DSC_CLI_OUT_SIZE];
    struct stat info;
    int out_given = dsc_option_given(set, "out");
    if (!v->o.resume || strcmp(v->o.resume, "auto") == 0)
        return DSC_OK;
    DSC_CLI_TRY(dsc_checkpoint_directory(v->o.resume, directory, sizeof directory));
    DSC_CLI_TRY(restore(v, set, directory));
    if (out_given)
        return DSC_OK;
    v->o.out = NULL; /* a run resumed from a FILE is a new run with its own directory */
    size_t length = strlen(directory);
    const char *rest = strncmp(v->o.resume, directory, length) == 0 ? v->o.resume + length : "FILE";
    rest += strspn(rest, "/");
    if (stat(directory, &info) == 0 && S_ISDIR(info.st_mode) && (*rest == ':' || *rest == '\0')) {
        snprintf(v->out_name, sizeof v->out_name, "%s", directory);
        v->o.out = v->out_name;
    }
    return DSC_OK;
}

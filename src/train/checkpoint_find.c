/* Finding checkpoints by name, and checking that they are intact. */
#include "train/checkpoint_find.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "train/checkpoint_directory.h"
#include "train/safetensors.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LISTED = 8 }; /* steps in a message, at most */

/* ---- by name ---- */

static int is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

/* The part after the last colon when it says which checkpoint of a directory is meant; else NULL. A file or
 * directory whose own name has such an end is taken as it is. */
static const char *which_of(const char *spec) {
    const char *colon = strrchr(spec, ':');
    const char *which = colon ? colon + 1 : "";
    int number = *which && strspn(which, "0123456789") == strlen(which);
    if (!number && strcmp(which, "best") != 0 && strcmp(which, "latest") != 0)
        return NULL;
    return exists(spec) ? NULL : which;
}

int dsc_checkpoint_spec_is_directory(const char *spec, size_t *length) {
    const char *which = which_of(spec);
    *length = which ? (size_t)(which - spec) - 1 : strlen(spec);
    return which || is_directory(spec);
}

/* "steps 30, 20 and 10 are there" for a message. */
static void list_steps(const char *directory, char *text, size_t size) {
    int64_t *steps = NULL, count = 0;
    size_t used = 0;
    text[0] = '\0';
    if (dsc_checkpoint_list(directory, &steps, &count) != DSC_OK || count == 0) {
        snprintf(text, size, "it holds no checkpoint");
    } else {
        used = (size_t)snprintf(text, size, "there %s", count == 1 ? "is only" : "are");
        for (int64_t i = 0; i < count && i < LISTED && used < size; i++)
            used += (size_t)snprintf(text + used, size - used, "%s %lld", i ? "," : "", (long long)steps[i]);
        if (count > LISTED && used < size)
            snprintf(text + used, size - used, ", ...");
    }
    dsc_memory_free(&steps);
}

static dsc_status find_step(const char *directory, const char *which, char **out) {
    char known[256];
    errno = 0;
    long long step = strtoll(which, NULL, 10);
    if (errno == 0)
        DSC_TRY(dsc_checkpoint_path(directory, step, out));
    if (*out && exists(*out))
        return DSC_OK;
    dsc_memory_free(out);
    list_steps(directory, known, sizeof known);
    return DSC_FAIL(DSC_E_NOT_FOUND, "'%s' has no checkpoint of step %s: %s", directory, which, known);
}

static dsc_status find_latest(const char *directory, char **out) {
    DSC_TRY(dsc_checkpoint_latest(directory, out));
    if (!*out)
        return DSC_FAIL(DSC_E_NOT_FOUND, "directory '%s' holds no checkpoint", directory);
    return DSC_OK;
}

static dsc_status find_in(const char *directory, const char *which, char **out) {
    if (!is_directory(directory))
        return DSC_FAIL(DSC_E_NOT_FOUND, "'%s' is not the directory of a run: '%s' of it cannot be found",
                        directory, which);
    if (strcmp(which, "latest") == 0)
        return find_latest(directory, out);
    return strcmp(which, "best") == 0 ? dsc_checkpoint_best(directory, out)
                                      : find_step(directory, which, out);
}

dsc_status dsc_checkpoint_find(const char *spec, char **out) {
    size_t length;
    char *directory;
    *out = NULL;
    if (!dsc_checkpoint_spec_is_directory(spec, &length))
        return dsc_memory_strdup(spec, out);
    DSC_TRY(dsc_memory_strdup(spec, &directory));
    directory[length] = '\0';
    dsc_status status = find_in(directory, spec[length] ? spec + length + 1 : "latest", out);
    dsc_memory_free(&directory);
    return status;
}

/* ---- intact ---- */

/* Checks a file. `finite`: all its values must be finite, as the model's must be; those of the state need not be. */
static dsc_status check_file(const char *path, int finite) {
    dsc_st_reader *reader = NULL;
    DSC_TRY(dsc_st_open(path, &reader));
    dsc_status status = dsc_st_verify(reader, finite);
    dsc_st_close(&reader);
    return status;
}

dsc_status dsc_checkpoint_check(const char *path, int model_alone) {
    char *state = NULL;
    DSC_TRY(check_file(path, 1));
    dsc_status status = dsc_checkpoint_state_path(path, &state);
    if (status != DSC_OK && model_alone)
        return DSC_OK; /* a file of another program, whose name allows no state file beside it */
    if (status == DSC_OK && (!model_alone || exists(state)))
        status = check_file(state, 0);
    dsc_memory_free(&state);
    return status;
}

static int is_damage(dsc_status status) {
    return status == DSC_E_FORMAT || status == DSC_E_NOT_FOUND;
}

/* Tries the checkpoints of all steps, newest first; `first`, the one that `latest` names, is known to be
 * damaged (NULL: there is no such name). */
static dsc_status find_earlier(const char *directory, const char *first, char **out) {
    int64_t *steps = NULL, count = 0;
    dsc_status status = dsc_checkpoint_list(directory, &steps, &count);
    for (int64_t i = 0; i < count && status == DSC_OK && !*out; i++) {
        char *path = NULL;
        status = dsc_checkpoint_path(directory, steps[i], &path);
        if (status == DSC_OK && !(first && strcmp(first, path) == 0)) {
            status = dsc_checkpoint_check(path, 0);
            if (status == DSC_OK) {
                *out = path;
                path = NULL;
            } else if (is_damage(status)) {
                dsc_log(DSC_LOG_WARNING, "%s", dsc_error_message());
                status = DSC_OK;
            }
        }
        dsc_memory_free(&path);
    }
    dsc_memory_free(&steps);
    return status;
}

dsc_status dsc_checkpoint_newest_intact(const char *directory, char **out) {
    char *first = NULL, *damage = NULL;
    *out = NULL;
    dsc_status status = dsc_checkpoint_latest(directory, &first);
    if (status == DSC_OK && !first)
        return DSC_OK;
    if (status == DSC_OK)
        status = dsc_checkpoint_check(first, 0);
    if (status == DSC_OK) {
        *out = first;
        return DSC_OK;
    }
    dsc_status reason = status;
    if (is_damage(reason))
        status = dsc_memory_strdup(dsc_error_message(), &damage);
    if (is_damage(reason) && status == DSC_OK)
        status = find_earlier(directory, first, out);
    if (status == DSC_OK && *out)
        dsc_log(DSC_LOG_WARNING,
                "the run goes back to '%s', because the newest checkpoint cannot be used: %s", *out, damage);
    else if (status == DSC_OK)
        status = DSC_FAIL(reason, "no checkpoint in '%s' is intact: %s", directory, damage);
    dsc_memory_free(&damage);
    dsc_memory_free(&first);
    return status;
}

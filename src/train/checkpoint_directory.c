/* The checkpoints of an output directory. */
#include "train/checkpoint_directory.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "descent/log.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX    "checkpoint-"
#define EXTENSION ".safetensors"
#define STATE     ".state.safetensors"
#define EMA       ".ema.safetensors"

enum { NAME_SIZE = 80 };

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static void model_name(int64_t step, char name[NAME_SIZE]) {
    snprintf(name, NAME_SIZE, PREFIX "%" PRId64 EXTENSION, step);
}

/* The step of "checkpoint-STEP.safetensors", -1 for any other name. */
static int64_t step_of(const char *name) {
    char exact[NAME_SIZE], *end;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return -1;
    errno = 0;
    long long step = strtoll(name + strlen(PREFIX), &end, 10);
    if (errno || step < 0)
        return -1;
    model_name(step, exact);
    return strcmp(exact, name) == 0 ? (int64_t)step : -1;
}

dsc_status dsc_checkpoint_path(const char *directory, int64_t step, char **out) {
    char name[NAME_SIZE];
    model_name(step, name);
    return dsc_output_path(directory, name, out);
}

/* The file beside X.safetensors that ends in `end`. */
static dsc_status path_beside(const char *model_path, const char *end, char **out) {
    if (ends_with(model_path, STATE))
        return DSC_FAIL(
            DSC_E_INVALID,
            "'%s' is the state file of a checkpoint: name the model file beside it, which ends in "
            "'" EXTENSION "' alone",
            model_path);
    if (!ends_with(model_path, EXTENSION))
        return DSC_FAIL(DSC_E_INVALID, "'%s' is no checkpoint: its name must end in '" EXTENSION "'",
                        model_path);
    size_t stem = strlen(model_path) - strlen(EXTENSION);
    size_t size = stem + strlen(end) + 1;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    memcpy(*out, model_path, stem);
    memcpy(*out + stem, end, strlen(end) + 1);
    return DSC_OK;
}

dsc_status dsc_checkpoint_state_path(const char *model_path, char **out) {
    return path_beside(model_path, STATE, out);
}

dsc_status dsc_checkpoint_ema_path(const char *model_path, char **out) {
    return path_beside(model_path, EMA, out);
}

/* *complete = 1 when both files exist. */
static dsc_status is_complete(const char *directory, int64_t step, int *complete) {
    char *model = NULL, *state = NULL;
    DSC_TRY(dsc_checkpoint_path(directory, step, &model));
    dsc_status status = dsc_checkpoint_state_path(model, &state);
    if (status == DSC_OK)
        *complete = access(model, F_OK) == 0 && access(state, F_OK) == 0;
    dsc_memory_free(&state);
    dsc_memory_free(&model);
    return status;
}

static int descending(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

static dsc_status collect(const char *directory, DIR *entries, int64_t **steps, int64_t *count) {
    int64_t capacity = 0;
    const struct dirent *e;
    while ((e = readdir(entries)) != NULL) {
        int complete = 0;
        int64_t step = step_of(e->d_name);
        if (step < 0)
            continue;
        DSC_TRY(is_complete(directory, step, &complete));
        if (!complete)
            continue;
        DSC_TRY(dsc_memory_grow(steps, &capacity, *count + 1, sizeof **steps));
        (*steps)[(*count)++] = step;
    }
    return DSC_OK;
}

dsc_status dsc_checkpoint_list(const char *directory, int64_t **out, int64_t *count) {
    int64_t *steps = NULL;
    *out = NULL;
    *count = 0;
    DIR *entries = opendir(directory);
    if (!entries && errno == ENOENT)
        return DSC_OK;
    if (!entries)
        return DSC_FAIL(DSC_E_IO, "cannot read directory '%s': %s", directory, strerror(errno));
    dsc_status status = collect(directory, entries, &steps, count);
    closedir(entries);
    if (status != DSC_OK) {
        dsc_memory_free(&steps);
        *count = 0;
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    if (*count > 1)
        qsort(steps, (size_t)*count, sizeof *steps, descending);
    *out = steps;
    return DSC_OK;
}

static dsc_status newest(const char *directory, char **out) {
    int64_t *steps, count;
    DSC_TRY(dsc_checkpoint_list(directory, &steps, &count));
    dsc_status status = count > 0 ? dsc_checkpoint_path(directory, steps[0], out) : DSC_OK;
    dsc_memory_free(&steps);
    return status;
}

/* The checkpoint that DIRECTORY/WORD names. */
static dsc_status follow(const char *directory, const char *word, FILE *file, char **out) {
    char name[NAME_SIZE];
    size_t length = fread(name, 1, sizeof name - 1, file);
    name[length] = '\0';
    if (length > 0 && name[length - 1] == '\n')
        name[length - 1] = '\0';
    if (step_of(name) < 0)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s/%s' is damaged (it names no checkpoint): remove it to take the newest "
                        "checkpoint there, or name one",
                        directory, word);
    DSC_TRY(dsc_output_path(directory, name, out));
    if (access(*out, F_OK) == 0)
        return DSC_OK;
    dsc_memory_free(out);
    return DSC_FAIL(DSC_E_NOT_FOUND,
                    "'%s/%s' names '%s', which is not there: remove '%s' to take the newest "
                    "checkpoint there, or name one",
                    directory, word, name, word);
}

/* *found = 0, and *out stays NULL, when there is no file DIRECTORY/WORD. */
static dsc_status read_word(const char *directory, const char *word, char **out, int *found) {
    char *path;
    *out = NULL;
    DSC_TRY(dsc_output_path(directory, word, &path));
    FILE *file = fopen(path, "r");
    int error = file ? 0 : errno;
    dsc_memory_free(&path);
    *found = error != ENOENT;
    if (error == ENOENT)
        return DSC_OK;
    if (error)
        return DSC_FAIL(DSC_E_IO, "cannot read '%s/%s': %s", directory, word, strerror(error));
    dsc_status status = follow(directory, word, file, out);
    fclose(file);
    return status;
}

dsc_status dsc_checkpoint_latest(const char *directory, char **out) {
    int found;
    DSC_TRY(read_word(directory, "latest", out, &found));
    return found ? DSC_OK : newest(directory, out);
}

dsc_status dsc_checkpoint_best(const char *directory, char **out) {
    int found;
    DSC_TRY(read_word(directory, "best", out, &found));
    if (!found)
        return DSC_FAIL(
            DSC_E_NOT_FOUND,
            "'%s' names no best checkpoint: nothing was evaluated, or the best step was not saved; "
            "take '%s:latest'",
            directory, directory);
    return DSC_OK;
}

static dsc_status write_word(dsc_output *output, int64_t step) {
    char name[NAME_SIZE + 1];
    model_name(step, name);
    size_t length = strlen(name);
    name[length] = '\n';
    DSC_TRY(dsc_output_write(output, name, length + 1, 0));
    DSC_TRY(dsc_output_sync(output));
    return dsc_output_commit(output);
}

static dsc_status set_word(const char *directory, const char *word, int64_t step) {
    char *path;
    dsc_output output;
    DSC_TRY(dsc_output_path(directory, word, &path));
    dsc_status status = dsc_output_open(path, &output);
    dsc_memory_free(&path);
    DSC_TRY(status);
    status = write_word(&output, step);
    dsc_output_close(&output);
    return status;
}

dsc_status dsc_checkpoint_set_latest(const char *directory, int64_t step) {
    return set_word(directory, "latest", step);
}

static void remove_file(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT)
        dsc_log(DSC_LOG_WARNING, "cannot remove '%s': %s", path, strerror(errno));
}

dsc_status dsc_checkpoint_set_best(const char *directory, int64_t step) {
    char *path = NULL, *before = NULL, *now = NULL;
    int complete = 0, found;
    if (step >= 0)
        DSC_TRY(is_complete(directory, step, &complete));
    DSC_TRY(dsc_output_path(directory, "best", &path));
    dsc_status status = DSC_OK;
    if (!complete) {
        remove_file(path);
    } else {
        status = dsc_checkpoint_path(directory, step, &now);
        if (status == DSC_OK &&
            (read_word(directory, "best", &before, &found) != DSC_OK || !found || strcmp(before, now) != 0))
            status = set_word(directory, "best", step);
    }
    dsc_memory_free(&now);
    dsc_memory_free(&before);
    dsc_memory_free(&path);
    return status;
}

/* The model file goes first: a state file alone is not a checkpoint, so that a crash in between never leaves
 * half of one. */
static dsc_status remove_checkpoint(const char *directory, int64_t step) {
    char *model = NULL, *state = NULL, *ema = NULL;
    DSC_TRY(dsc_checkpoint_path(directory, step, &model));
    dsc_status status = dsc_checkpoint_state_path(model, &state);
    if (status == DSC_OK)
        status = dsc_checkpoint_ema_path(model, &ema);
    if (status == DSC_OK) {
        remove_file(model);
        remove_file(ema); /* most runs have none */
        remove_file(state);
    }
    dsc_memory_free(&ema);
    dsc_memory_free(&state);
    dsc_memory_free(&model);
    return status;
}

dsc_status dsc_checkpoint_prune(const char *directory, int64_t step, int64_t keep, int64_t best) {
    int64_t *steps, count, kept = 0;
    DSC_TRY(dsc_checkpoint_list(directory, &steps, &count));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++) {
        if (steps[i] >= step || steps[i] == best)
            continue;
        if (kept++ >= keep)
            status = remove_checkpoint(directory, steps[i]);
    }
    dsc_memory_free(&steps);
    return status;
}

void dsc_checkpoint_sweep(const char *directory) {
    DIR *entries = opendir(directory);
    if (!entries)
        return;
    const struct dirent *e;
    while ((e = readdir(entries)) != NULL) {
        char *path;
        int ours = strncmp(e->d_name, PREFIX, strlen(PREFIX)) == 0 || strncmp(e->d_name, "latest.", 7) == 0 ||
                   strncmp(e->d_name, "best.", 5) == 0;
        if (!ours || !ends_with(e->d_name, DSC_TEMPORARY_SUFFIX) || dsc_temporary_is_used(e->d_name))
            continue;
        if (dsc_output_path(directory, e->d_name, &path) == DSC_OK)
            remove_file(path);
        dsc_memory_free(&path);
    }
    closedir(entries);
}

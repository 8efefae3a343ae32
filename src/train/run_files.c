/* The files of a run in its output directory, found by their names. */
#include "train/run_files.h"

#include "base/error.h"
#include "base/output.h"
#include "base/versioned.h"
#include "descent/train.h"
#include "train/event_file.h"
#include "train/lock.h"
#include "train/trace_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int ends_with(const char *name, const char *end) {
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* 1 for metrics.jsonl, latest, best, checkpoint-*.safetensors, event files, and temporary files that a killed run was
 * writing. A file `config` alone is not a run: a user may have written it. */
static int belongs_to_run(const char *name) {
    if (strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "latest") == 0 || strcmp(name, "best") == 0)
        return 1;
    if (strncmp(name, DSC_EVENT_FILE_PREFIX, sizeof DSC_EVENT_FILE_PREFIX - 1) == 0)
        return 1;
    if (strncmp(name, "latest.", 7) == 0 || strncmp(name, "best.", 5) == 0 ||
        strncmp(name, "config.", 7) == 0)
        return ends_with(name, DSC_TEMPORARY_SUFFIX);
    return strncmp(name, "checkpoint-", 11) == 0 &&
           (ends_with(name, ".safetensors") || ends_with(name, DSC_TEMPORARY_SUFFIX));
}

/* *out is NULL when there is no such directory. */
static dsc_status open_directory(const char *directory, DIR **out) {
    if (!directory)
        return DSC_FAIL(DSC_E_INVALID, "no directory of a run: directory is NULL");
    *out = opendir(directory);
    if (!*out && errno != ENOENT)
        return dsc_output_refused("open", directory, errno);
    return DSC_OK;
}

dsc_status dsc_train_find_run(const char *directory, char *file, size_t size) {
    DIR *entries = NULL;
    dsc_lock *lock = NULL;
    int found = 0;
    if (!file || size == 0)
        return DSC_FAIL(DSC_E_INVALID, "no place for the name of a file: file is NULL or size is 0");
    file[0] = '\0';
    DSC_TRY(open_directory(directory, &entries));
    if (!entries)
        return DSC_OK;
    for (const struct dirent *entry; !found && (entry = readdir(entries));) {
        found = belongs_to_run(entry->d_name);
        if (found)
            snprintf(file, size, "%s", entry->d_name);
    }
    closedir(entries);
    if (!found)
        return DSC_OK;
    DSC_TRY(dsc_lock_take(directory, &lock));
    dsc_lock_release(&lock);
    return DSC_OK;
}

dsc_status dsc_run_files_remove(const char *directory) {
    DIR *entries = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY(open_directory(directory, &entries));
    for (const struct dirent *entry; entries && status == DSC_OK && (entry = readdir(entries));)
        if ((belongs_to_run(entry->d_name) || strcmp(entry->d_name, "config") == 0) &&
            unlinkat(dirfd(entries), entry->d_name, 0) != 0)
            status =
                DSC_FAIL(DSC_E_IO, "cannot remove '%s/%s': %s", directory, entry->d_name, strerror(errno));
    if (entries)
        closedir(entries);
    return status;
}

dsc_status dsc_train_probe_files(const dsc_train_options *options, int rank) {
    dsc_train_options o;
    dsc_train_options_init(&o);
    DSC_TRY(dsc_versioned_read("train", options, sizeof o, &o));
    dsc_status status = DSC_OK;
    if (o.out && rank == 0)
        DSC_TRY(dsc_directory_probe(o.out));
    if (o.tensorboard && strcmp(o.tensorboard, "auto") != 0 && rank == 0) {
        status = dsc_directory_probe(o.tensorboard);
        if (status != DSC_OK)
            dsc_error_prefix(status, "tensorboard %s", o.tensorboard);
    }
    if (status == DSC_OK && o.trace) {
        status = dsc_trace_file_probe(o.trace, rank);
        if (status != DSC_OK)
            dsc_error_prefix(status, "trace %s", o.trace);
    }
    return status;
}

dsc_status dsc_train_remove_run(const char *directory) {
    DIR *entries = NULL;
    dsc_lock *lock = NULL;
    DSC_TRY(open_directory(directory, &entries));
    if (!entries)
        return DSC_OK;
    closedir(entries);
    DSC_TRY(dsc_lock_take(directory, &lock));
    dsc_status status = dsc_run_files_remove(directory);
    dsc_lock_release(&lock);
    return status;
}

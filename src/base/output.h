/* Files that appear complete or not at all: they are written under a temporary name in the same directory, synced
 * and then renamed. */
#ifndef DSC_BASE_OUTPUT_H
#define DSC_BASE_OUTPUT_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

/* The suffix of a file's name until the file is complete. */
#define DSC_TEMPORARY_SUFFIX ".tmp"

typedef struct dsc_output {
    int fd;                 /* -1: closed */
    char *path, *temporary; /* owned */
} dsc_output;

/* Sets *out to DIRECTORY/NAME in new memory, which the caller frees with dsc_memory_free. */
dsc_status dsc_output_path(const char *directory, const char *name, char **out) DSC_MUST_CHECK;
/* Raises the error for an `action` ("open") on `path` that failed with errno `error` at the start of a run:
 * DSC_E_INVALID if the path or its permissions are wrong, otherwise DSC_E_IO. */
dsc_status dsc_output_refused(const char *action, const char *path, int error);
/* Creates the directory and its parents, unless they exist. */
dsc_status dsc_directory_make(const char *path) DSC_MUST_CHECK;
/* Returns the length of the longest leading part of a path that exists; 0 if not even its first folder does. Changes
 * `path` temporarily. */
size_t dsc_directory_existing(char *path);
/* Removes a directory and its parents, as long as they are empty and their path is longer than `kept`, the length
 * that dsc_directory_existing returned before they were created. Shortens `path` by what was removed. */
void dsc_directory_remove_made(char *path, size_t kept);
/* Checks that files can be written into a directory, which need not exist: creates it and a file in it, and removes
 * what it has created. */
dsc_status dsc_directory_probe(const char *path) DSC_MUST_CHECK;

/* Returns 1 if another process that runs on this machine may be writing the file with this temporary name. */
int dsc_temporary_is_used(const char *name);

/* Opens a temporary file for `path`, whose name contains the host and the process id; an older one is overwritten. */
dsc_status dsc_output_open(const char *path, dsc_output *out) DSC_MUST_CHECK;
/* Writes all of `data` at `offset`. */
dsc_status dsc_output_write(dsc_output *output, const void *data, size_t bytes,
                            int64_t offset) DSC_MUST_CHECK;
/* Makes sure that everything written so far is on the disk. */
dsc_status dsc_output_sync(dsc_output *output) DSC_MUST_CHECK;
/* Gives the file its final name, replacing an older file, and syncs the directory. Call dsc_output_sync first. */
dsc_status dsc_output_commit(dsc_output *output) DSC_MUST_CHECK;
/* Closes the file, and removes it unless it was committed. Accepts an output that was never opened (fd -1,
 * NULL names). */
void dsc_output_close(dsc_output *output);

#endif

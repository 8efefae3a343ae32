/* Files that appear whole or not at all: written under a temporary name in the same directory, synced,
 * renamed. */
#ifndef DSC_BASE_OUTPUT_H
#define DSC_BASE_OUTPUT_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

/* End of a file's name until it is complete. */
#define DSC_TEMPORARY_SUFFIX ".tmp"

typedef struct dsc_output {
    int fd;                 /* -1: closed */
    char *path, *temporary; /* owned */
} dsc_output;

/* DIRECTORY/NAME in new memory; the caller frees it with dsc_memory_free. */
dsc_status dsc_output_path(const char *directory, const char *name, char **out) DSC_MUST_CHECK;
/* Raises the error for an `action` ("open") on `path` that failed with errno `error` when a run starts:
 * DSC_E_INVALID where the path or its permissions are wrong, else DSC_E_IO. */
dsc_status dsc_output_refused(const char *action, const char *path, int error);
/* Makes the directory and those above it, unless they exist. */
dsc_status dsc_directory_make(const char *path) DSC_MUST_CHECK;
/* The length of the longest part of a path that exists; 0 when its first folder does not. Changes `path` for a
 * moment. */
size_t dsc_directory_existing(char *path);
/* Removes a directory and those above it, as far as they are empty and longer than `kept`, a length that
 * dsc_directory_existing returned before they were made. Shortens `path` by what was removed. */
void dsc_directory_remove_made(char *path, size_t kept);
/* Whether files can be written into a directory, which need not exist. Makes it and a file in it, and removes
 * both. */
dsc_status dsc_directory_probe(const char *path) DSC_MUST_CHECK;

/* 1 when another process that runs on this machine may be writing the file of this temporary name. */
int dsc_temporary_is_used(const char *name);

/* Opens a temporary file for `path`, whose name holds host and process; an older one is overwritten. */
dsc_status dsc_output_open(const char *path, dsc_output *out) DSC_MUST_CHECK;
/* Writes all of `data` at `offset`. */
dsc_status dsc_output_write(dsc_output *output, const void *data, size_t bytes,
                            int64_t offset) DSC_MUST_CHECK;
/* Makes sure that everything written so far is on the disk. */
dsc_status dsc_output_sync(dsc_output *output) DSC_MUST_CHECK;
/* Gives the file its name, replacing an older one, and syncs the directory. Call dsc_output_sync before. */
dsc_status dsc_output_commit(dsc_output *output) DSC_MUST_CHECK;
/* Closes the file, and removes it unless it was committed. Accepts an output that was never opened (fd -1,
 * NULL names). */
void dsc_output_close(dsc_output *output);

#endif

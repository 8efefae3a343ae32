/* Directories and small files that commands write. */
#ifndef DSC_CLI_FILES_H
#define DSC_CLI_FILES_H

#include "descent/status.h"

#include <stddef.h>

/* Makes the directory, and those above it, if they are missing. */
dsc_status dsc_cli_make_directory(const char *path) DSC_MUST_CHECK;
/* Writes the text to a temporary name and renames it, so that the file appears whole or not at all. */
dsc_status dsc_cli_write_file(const char *path, const char *text) DSC_MUST_CHECK;
/* Reads a file of at most `limit` bytes. *out ends with a 0 that *length does not count; the caller frees it with
 * dsc_cli_free. `what` describes the file in messages. DSC_E_NOT_FOUND when there is none. */
dsc_status dsc_cli_read_file(const char *path, const char *what, size_t limit, char **out,
                             size_t *length) DSC_MUST_CHECK;

#endif

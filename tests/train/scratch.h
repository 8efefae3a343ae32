/* Directories that tests write into, and whole files in memory. Every call fails the test by itself. */
#ifndef DSC_TESTS_TRAIN_SCRATCH_H
#define DSC_TESTS_TRAIN_SCRATCH_H

#include <stddef.h>

enum { SCRATCH_SIZE = 512 };

/* scratch_make makes a new directory and returns its path; scratch_remove removes it with its contents. */
void scratch_make(char path[SCRATCH_SIZE]);
void scratch_remove(const char *path);
/* directory/name, in memory that stays valid for the next seven calls. */
const char *scratch_path(const char *directory, const char *name);
int scratch_exists(const char *directory, const char *name);
/* Files in the directory whose name ends in `end`. */
int scratch_count(const char *directory, const char *end);
/* Reads a whole file into new memory, which the caller frees. */
char *scratch_read(const char *path, size_t *bytes);
void scratch_write(const char *path, const void *data, size_t bytes);
/* Renames the keys of the check sums in a safetensors file: it is then one without them. */
void scratch_forget_sums(const char *path);

#endif

/* Reading files, and buffers that grow. */
#ifndef DSC_DATA_FILES_H
#define DSC_DATA_FILES_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

/* A reusable buffer that grows as needed. Starts as {0}. */
typedef struct dsc_bytes {
    uint8_t *data;
    int64_t capacity;
} dsc_bytes;

/* Makes the buffer hold at least `size` bytes; its contents may be lost. */
dsc_status dsc_bytes_reserve(dsc_bytes *bytes, int64_t size) DSC_MUST_CHECK;
void dsc_bytes_free(dsc_bytes *bytes);

/* 1 when `path` is a directory. */
int dsc_file_is_directory(const char *path);
/* 1 when both are the same file or folder, also through links. */
int dsc_file_is_same(const char *a, const char *b);
/* Size of the regular file `path`. DSC_E_NOT_FOUND when it is not there. */
dsc_status dsc_file_size(const char *path, int64_t *size) DSC_MUST_CHECK;
/* Reads the first `size` bytes of `path` into `data`; DSC_E_FORMAT when there are fewer. */
dsc_status dsc_file_read(const char *path, int64_t size, uint8_t *data) DSC_MUST_CHECK;
/* The same from byte `offset` on. */
dsc_status dsc_file_read_at(const char *path, int64_t offset, int64_t size, uint8_t *data) DSC_MUST_CHECK;
/* "folder/name", allocated. */
dsc_status dsc_path_join(const char *folder, const char *name, char **out) DSC_MUST_CHECK;

#endif

/* Reading files whole; only regular files, so that a pipe of the right name cannot make a reader wait. */
#include "data/files.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

dsc_status dsc_bytes_reserve(dsc_bytes *bytes, int64_t size) {
    if (size <= bytes->capacity)
        return DSC_OK;
    dsc_bytes_free(bytes);
    DSC_TRY(dsc_memory_alloc(size, 1, &bytes->data));
    bytes->capacity = size;
    return DSC_OK;
}

void dsc_bytes_free(dsc_bytes *bytes) {
    dsc_memory_free(&bytes->data);
    bytes->capacity = 0;
}

int dsc_file_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int dsc_file_is_same(const char *a, const char *b) {
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

dsc_status dsc_file_size(const char *path, int64_t *size) {
    struct stat info;
    if (stat(path, &info) != 0)
        return DSC_FAIL(errno == ENOENT || errno == ENOTDIR ? DSC_E_NOT_FOUND : DSC_E_IO,
                        "cannot read '%s': %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is not a regular file", path);
    *size = (int64_t)info.st_size;
    return DSC_OK;
}

dsc_status dsc_file_read(const char *path, int64_t size, uint8_t *data) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return DSC_FAIL(errno == ENOENT ? DSC_E_NOT_FOUND : DSC_E_IO, "cannot read '%s': %s", path,
                        strerror(errno));
    size_t got = fread(data, 1, (size_t)size, file);
    int failed = ferror(file);
    int reason = errno;
    fclose(file);
    if (failed)
        return DSC_FAIL(DSC_E_IO, "cannot read '%s': %s", path, strerror(reason));
    if ((int64_t)got < size)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' ends after %zu of %lld bytes", path, got, (long long)size);
    return DSC_OK;
}

dsc_status dsc_file_read_at(const char *path, int64_t offset, int64_t size, uint8_t *data) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return DSC_FAIL(errno == ENOENT ? DSC_E_NOT_FOUND : DSC_E_IO, "cannot read '%s': %s", path,
                        strerror(errno));
    int64_t got = 0;
    ssize_t n = 1;
    while (got < size && (n > 0 || (n < 0 && errno == EINTR))) {
        n = pread(file, data + got, (size_t)(size - got), (off_t)(offset + got));
        got += n > 0 ? n : 0;
    }
    int reason = errno;
    close(file);
    if (n < 0)
        return DSC_FAIL(DSC_E_IO, "cannot read '%s': %s", path, strerror(reason));
    if (got < size)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' ends after %lld of %lld bytes", path, (long long)(offset + got),
                        (long long)(offset + size));
    return DSC_OK;
}

dsc_status dsc_path_join(const char *folder, const char *name, char **out) {
    size_t size = strlen(folder) + strlen(name) + 2;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    snprintf(*out, size, "%s/%s", folder, name);
    return DSC_OK;
}

/* Files that appear complete or not at all. */
#include "base/output.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOST_SIZE = 65 };

dsc_status dsc_output_path(const char *directory, const char *name, char **out) {
    size_t length = strlen(directory);
    int slash = length > 0 && directory[length - 1] != '/';
    size_t size = length + strlen(name) + 2;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    snprintf(*out, size, "%s%s%s", directory, slash ? "/" : "", name);
    return DSC_OK;
}

dsc_status dsc_output_refused(const char *action, const char *path, int error) {
    static const int lasting[] = {EACCES, EPERM, EROFS, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG};
    dsc_status status = DSC_E_IO;
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++)
        if (error == lasting[i])
            status = DSC_E_INVALID;
    return DSC_FAIL(status, "cannot %s '%s': %s; name a directory that can be written", action, path,
                    strerror(error));
}

static dsc_status make_one(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0)
        return DSC_OK;
    int error = errno;
    if (stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return DSC_OK;
        return DSC_FAIL(DSC_E_INVALID, "'%s' is a file, not a directory: choose another output directory",
                        path);
    }
    return dsc_output_refused("make directory", path, error);
}

dsc_status dsc_directory_make(const char *path) {
    char *copy;
    if (path[0] == '\0')
        return DSC_FAIL(DSC_E_INVALID, "the name of the output directory is empty");
    DSC_TRY(dsc_memory_strdup(path, &copy));
    dsc_status status = DSC_OK;
    for (char *c = copy + 1; *c && status == DSC_OK; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        status = make_one(copy);
        *c = '/';
    }
    if (status == DSC_OK)
        status = make_one(copy);
    dsc_memory_free(&copy);
    return status;
}

/* Returns the length of a path without its last component and the slashes before it. */
static size_t length_above(const char *path, size_t length) {
    while (length > 0 && path[length - 1] != '/')
        length--;
    while (length > 0 && path[length - 1] == '/')
        length--;
    return length;
}

size_t dsc_directory_existing(char *path) {
    struct stat info;
    size_t length = strlen(path);
    for (; length > 0; length = length_above(path, length)) {
        char end = path[length];
        path[length] = '\0';
        int exists = stat(path, &info) == 0;
        path[length] = end;
        if (exists)
            break;
    }
    return length;
}

void dsc_directory_remove_made(char *path, size_t kept) {
    size_t length = strlen(path);
    while (length > kept && (rmdir(path) == 0 || errno == ENOENT || errno == ENOTDIR)) {
        length = length_above(path, length);
        path[length > kept ? length : kept] = '\0';
    }
}

static dsc_status probe_file(const char *directory) {
    char *path = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_output_path(directory, "probe-XXXXXX", &path));
    int fd = mkstemp(path);
    if (fd < 0) {
        status = dsc_output_refused("write into", directory, errno);
    } else {
        close(fd);
        unlink(path);
    }
    dsc_memory_free(&path);
    return status;
}

dsc_status dsc_directory_probe(const char *path) {
    char *copy = NULL;
    DSC_TRY(dsc_memory_strdup(path, &copy));
    size_t kept = dsc_directory_existing(copy);
    dsc_status status = dsc_directory_make(path);
    if (status == DSC_OK)
        status = probe_file(path);
    dsc_directory_remove_made(copy, kept);
    dsc_memory_free(&copy);
    return status;
}

static dsc_status write_failed(const dsc_output *output, int error) {
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        return DSC_FAIL(DSC_E_IO, "cannot write '%s': %s; free some space or choose another output directory",
                        output->path, strerror(error));
    return DSC_FAIL(DSC_E_IO, "cannot write '%s': %s", output->path, strerror(error));
}

/* ---- temporary names: NAME.HOST-PROCESS.tmp ---- */

static void host_name(char host[HOST_SIZE]) {
    if (gethostname(host, HOST_SIZE) != 0)
        snprintf(host, HOST_SIZE, "host");
    host[HOST_SIZE - 1] = '\0';
    for (char *c = host; *c; c++)
        if (*c == '/')
            *c = '_';
}

int dsc_temporary_is_used(const char *name) {
    char host[HOST_SIZE], *end;
    const char *dash = strrchr(name, '-');
    host_name(host);
    size_t length = strlen(host);
    if (!dash || (size_t)(dash - name) <= length || dash[-(ptrdiff_t)length - 1] != '.' ||
        strncmp(dash - length, host, length) != 0)
        return 0;
    long process = strtol(dash + 1, &end, 10);
    if (strcmp(end, DSC_TEMPORARY_SUFFIX) != 0 || process <= 0 || process > INT_MAX ||
        process == (long)getpid())
        return 0;
    return kill((pid_t)process, 0) == 0 || errno == EPERM;
}

/* ---- writing ---- */

/* Opens a temporary file with a name of this process's own: another process may be writing the same file, for
 * example a rank that the others have given up. */
static dsc_status open_temporary(const char *path, dsc_output *out) {
    char host[HOST_SIZE];
    host_name(host);
    DSC_TRY(dsc_memory_strdup(path, &out->path));
    size_t size = strlen(path) + strlen(host) + 32;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, &out->temporary));
    snprintf(out->temporary, size, "%s.%s-%ld" DSC_TEMPORARY_SUFFIX, path, host, (long)getpid());
    out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0)
        return write_failed(out, errno);
    return DSC_OK;
}

dsc_status dsc_output_open(const char *path, dsc_output *out) {
    dsc_output output = {.fd = -1};
    dsc_status status = open_temporary(path, &output);
    if (status != DSC_OK) {
        dsc_output_close(&output);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = output;
    return DSC_OK;
}

dsc_status dsc_output_write(dsc_output *output, const void *data, size_t bytes, int64_t offset) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t done = pwrite(output->fd, from, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return write_failed(output, done < 0 ? errno : ENOSPC);
        from += done;
        bytes -= (size_t)done;
        offset += done;
    }
    return DSC_OK;
}

dsc_status dsc_output_sync(dsc_output *output) {
    if (fsync(output->fd) != 0)
        return write_failed(output, errno);
    return DSC_OK;
}

/* Ignores EINVAL, which file systems that cannot sync directories return: nothing more can be done there. */
static dsc_status sync_directory_of(const dsc_output *output) {
    char *directory;
    DSC_TRY(dsc_memory_strdup(output->path, &directory));
    char *slash = strrchr(directory, '/');
    if (slash == directory)
        slash++;
    if (slash)
        *slash = '\0';
    int fd = open(slash ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    dsc_memory_free(&directory);
    if (fd < 0)
        return write_failed(output, errno);
    int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error == 0 || error == EINVAL ? DSC_OK : write_failed(output, error);
}

dsc_status dsc_output_commit(dsc_output *output) {
    int fd = output->fd;
    output->fd = -1;
    if (close(fd) != 0)
        return write_failed(output, errno);
    if (rename(output->temporary, output->path) != 0)
        return write_failed(output, errno);
    dsc_memory_free(&output->temporary);
    return sync_directory_of(output);
}

void dsc_output_close(dsc_output *output) {
    if (output->fd >= 0)
        close(output->fd);
    output->fd = -1;
    if (output->temporary)
        unlink(output->temporary);
    dsc_memory_free(&output->temporary);
    dsc_memory_free(&output->path);
}

/* Opening and closing the trace of a rank. */
#include "train/trace_file.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/trace.h"
#include "descent/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Viewers do not open larger ones. */
static const int64_t most_bytes = (int64_t)400 << 20;
/* The first characters of every trace, which dsc_trace_start writes. */
static const char beginning[] = "[\n{\"pid\":";

static dsc_status make_path(const char *file, int rank, char **out) {
    size_t size = strlen(file) + 32;
    const char *slash = strrchr(file, '/'), *dot = strrchr(file, '.');
    int stem = dot && (!slash || dot > slash + 1) && dot > file ? (int)(dot - file) : (int)strlen(file);
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    if (rank == 0)
        snprintf(*out, size, "%s", file);
    else
        snprintf(*out, size, "%.*s.rank-%d%s", stem, file, rank, file + stem);
    return DSC_OK;
}

/* The directory that a path lies in. */
static dsc_status find_parent(const char *path, char **out) {
    char *parent;
    DSC_TRY(dsc_memory_strdup(*path ? path : ".", &parent));
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0';
    else
        snprintf(parent, strlen(parent) + 1, ".");
    *out = parent;
    return DSC_OK;
}

static dsc_status refuse(const char *path, int error) {
    return DSC_FAIL(DSC_E_INVALID, "cannot open '%s' for a trace: %s; name a file that can be written", path,
                    strerror(error));
}

/* A file that was there may be an earlier trace, or empty. */
static dsc_status check_is_trace(const char *path, int fd) {
    char start[sizeof beginning] = "";
    struct stat info;
    ssize_t size = read(fd, start, sizeof start - 1);
    int other = fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
                (size != 0 && (size != sizeof start - 1 || memcmp(start, beginning, sizeof start - 1) != 0));
    if (other)
        return DSC_FAIL(DSC_E_INVALID, "'%s' is there and is no trace: name another file", path);
    return DSC_OK;
}

/* *is_new: there was no such file. */
static dsc_status open_file(const char *path, int *fd, int *is_new) {
    char *parent = NULL;
    *is_new = 0;
    DSC_TRY(find_parent(path, &parent));
    dsc_status status = dsc_directory_make(parent);
    dsc_memory_free(&parent);
    DSC_TRY(status);
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    *is_new = *fd >= 0;
    if (*fd < 0 && errno == EEXIST)
        *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return refuse(path, errno);
    DSC_TRY(check_is_trace(path, *fd));
    if (ftruncate(*fd, 0) != 0 || lseek(*fd, 0, SEEK_SET) != 0)
        return DSC_FAIL(DSC_E_IO, "cannot empty '%s': %s", path, strerror(errno));
    return DSC_OK;
}

static dsc_status probe_path(const char *path) {
    char *parent = NULL;
    if (path[0] == '\0')
        return DSC_FAIL(DSC_E_INVALID, "the name of the trace is empty: name a file");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
        return refuse(path, errno);
    if (fd >= 0) {
        dsc_status status = check_is_trace(path, fd);
        close(fd);
        return status;
    }
    DSC_TRY(find_parent(path, &parent));
    dsc_status status = dsc_directory_probe(parent);
    dsc_memory_free(&parent);
    return status;
}

dsc_status dsc_trace_file_probe(const char *file, int rank) {
    char *path = NULL;
    DSC_TRY(make_path(file, rank, &path));
    dsc_status status = probe_path(path);
    dsc_memory_free(&path);
    return status;
}

dsc_status dsc_trace_file_open(dsc_trainer *t) {
    char *path = NULL, host[128] = "";
    int fd = -1, is_new = 0;
    if (!t->options.trace)
        return DSC_OK;
    dsc_status status = make_path(t->options.trace, t->rank, &path);
    if (status == DSC_OK)
        status = open_file(path, &fd, &is_new);
    status = dsc_comm_agree(t->comm, status);
    if (status == DSC_OK) {
        gethostname(host, sizeof host - 1);
        for (char *c = host; *c; c++)
            if (*c < ' ' || *c == '"' || *c == '\\' || *c > '~')
                *c = '_';
        status = dsc_trace_start(fd, t->rank, host, most_bytes);
        fd = -1;
        t->phases.traced = status == DSC_OK;
        status = dsc_comm_agree(t->comm, status);
    }
    if (status != DSC_OK) {
        dsc_trace_file_close(t);
        if (fd >= 0)
            close(fd);
        if (is_new)
            unlink(path);
    }
    dsc_memory_free(&path);
    return status;
}

void dsc_trace_file_close(dsc_trainer *t) {
    int64_t dropped = 0;
    if (!t->phases.traced)
        return;
    t->phases.traced = 0;
    if (dsc_trace_stop(&dropped) != DSC_OK)
        dsc_log(DSC_LOG_WARNING, "the trace '%s' is not complete: %s", t->options.trace, dsc_error_message());
    else if (dropped > 0)
        dsc_log(
            DSC_LOG_WARNING,
            "the trace '%s' is not complete: %lld spans were dropped, because there were too many at a time "
            "or in all; trace fewer steps",
            t->options.trace, (long long)dropped);
}

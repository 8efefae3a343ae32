/* Records with lengths and check sums. */
#include "train/event_file.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { NAME_SIZE = 400, HOST_SIZE = 256, MOST_FILES = 1000 };

struct dsc_event_file {
    FILE *stream;
    char *path;
    int error;
};

/* The polynomial 0x1edc6f41 with its bits reversed, one byte at a time. */
uint32_t dsc_crc32c(const void *data, size_t bytes) {
    static const uint32_t polynomial = 0x82f63b78u;
    const unsigned char *at = data;
    uint32_t crc = ~(uint32_t)0;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t bytes) {
    uint32_t crc = dsc_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Two runs of one second, for example of a test, need different names: the last part is a counter. */
static dsc_status open_new(dsc_event_file *f, const char *directory) {
    char host[HOST_SIZE] = "host", name[NAME_SIZE];
    int fd = -1, error = EEXIST;
    gethostname(host, sizeof host - 1);
    for (char *c = host; *c; c++)
        if (*c == '/')
            *c = '_';
    long long now = (long long)time(NULL);
    for (int i = 0; i < MOST_FILES && fd < 0 && error == EEXIST; i++) {
        snprintf(name, sizeof name, DSC_EVENT_FILE_PREFIX "%010lld.%s.%ld.%d", now, host, (long)getpid(), i);
        dsc_memory_free(&f->path);
        DSC_TRY(dsc_output_path(directory, name, &f->path));
        fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        error = fd < 0 ? errno : 0;
    }
    if (fd >= 0 && !(f->stream = fdopen(fd, "w"))) {
        error = errno;
        close(fd);
    }
    return error ? dsc_output_refused("open", f->path, error) : DSC_OK;
}

dsc_status dsc_event_file_open(const char *directory, dsc_event_file **out) {
    dsc_event_file *f;
    DSC_TRY(dsc_memory_alloc(1, sizeof *f, &f));
    dsc_status status = open_new(f, directory);
    if (status != DSC_OK) {
        dsc_event_file_close(&f);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = f;
    return DSC_OK;
}

void dsc_event_file_close(dsc_event_file **file) {
    if (!file || !*file)
        return;
    if ((*file)->stream)
        fclose((*file)->stream);
    dsc_memory_free(&(*file)->path);
    dsc_memory_free(file);
}

static void put(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

void dsc_event_file_write(dsc_event_file *f, const void *data, size_t bytes) {
    unsigned char head[12], tail[4];
    if (f->error)
        return;
    put(head, bytes, 8);
    put(head + 8, masked(head, 8), 4);
    put(tail, masked(data, bytes), 4);
    errno = 0;
    int good = fwrite(head, sizeof head, 1, f->stream) == 1 && fwrite(data, bytes, 1, f->stream) == 1 &&
               fwrite(tail, sizeof tail, 1, f->stream) == 1;
    good &= fflush(f->stream) == 0;
    if (!good)
        f->error = errno ? errno : EIO;
}

int dsc_event_file_error(const dsc_event_file *file) {
    return file->error;
}

const char *dsc_event_file_path(const dsc_event_file *file) {
    return file->path;
}

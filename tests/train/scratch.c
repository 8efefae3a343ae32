/* Directories that tests write into, and whole files in memory. */
#include "train/scratch.h"

#include "test.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void scratch_make(char path[SCRATCH_SIZE]) {
    const char *base = getenv("TMPDIR");
    if (!base)
        base = getenv("DESCENT_BINARY_DIR");
    snprintf(path, SCRATCH_SIZE, "%s/scratch-XXXXXX", base ? base : ".");
    assert_non_null(mkdtemp(path));
}

void scratch_remove(const char *path) {
    DIR *entries = opendir(path);
    assert_non_null(entries);
    const struct dirent *e;
    while ((e = readdir(entries)) != NULL) {
        struct stat info;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        char inner[SCRATCH_SIZE + 256];
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        assert_int_equal(stat(inner, &info), 0);
        if (S_ISDIR(info.st_mode))
            scratch_remove(inner);
        else
            assert_int_equal(unlink(inner), 0);
    }
    closedir(entries);
    assert_int_equal(rmdir(path), 0);
}

const char *scratch_path(const char *directory, const char *name) {
    static char paths[8][SCRATCH_SIZE + 256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

int scratch_exists(const char *directory, const char *name) {
    return access(scratch_path(directory, name), F_OK) == 0;
}

int scratch_count(const char *directory, const char *end) {
    int count = 0;
    DIR *entries = opendir(directory);
    assert_non_null(entries);
    const struct dirent *e;
    while ((e = readdir(entries)) != NULL) {
        size_t length = strlen(e->d_name), tail = strlen(end);
        count += length >= tail && strcmp(e->d_name + length - tail, end) == 0;
    }
    closedir(entries);
    return count;
}

char *scratch_read(const char *path, size_t *bytes) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open '%s'", path);
    assert_int_equal(fstat(fileno(file), &info), 0);
    *bytes = (size_t)info.st_size;
    char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

/* The old file goes first: some file systems wait for the disk when a file is emptied and written again. */
void scratch_write(const char *path, const void *data, size_t bytes) {
    unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void scratch_forget_sums(const char *path) {
    size_t bytes, length = strlen("crc32\":");
    char *data = scratch_read(path, &bytes);
    for (size_t i = 0; i + length < bytes; i++)
        if (memcmp(data + i, "crc32\":", length) == 0)
            data[i] = 'x';
    scratch_write(path, data, bytes);
    free(data);
}

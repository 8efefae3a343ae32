#include "data/fixture.h"

#include "test.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

void test_make_folder(char folder[TEST_PATH]) {
    const char *base = getenv("TMPDIR");
    if (access("/dev/shm", W_OK) == 0)
        base = "/dev/shm";
    snprintf(folder, TEST_PATH, "%s/descent-test-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
}

void test_remove(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0)
        return;
    if (!S_ISDIR(info.st_mode)) {
        assert_int_equal(unlink(path), 0);
        return;
    }
    DIR *directory = opendir(path);
    assert_non_null(directory);
    const struct dirent *entry;
    while ((entry = readdir(directory))) {
        char inner[2 * TEST_PATH];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        test_remove(inner);
    }
    closedir(directory);
    assert_int_equal(rmdir(path), 0);
}

static void full_path(const char *folder, const char *name, char path[2 * TEST_PATH]) {
    snprintf(path, 2 * TEST_PATH, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

void test_write(const char *folder, const char *name, const void *data, size_t size) {
    char path[2 * TEST_PATH];
    full_path(folder, name, path);
    FILE *file = fopen(path, "wb");
    if (!file)
        fail_msg("cannot write '%s'", path);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void test_write_gz(const char *folder, const char *name, const void *data, size_t size) {
    char path[2 * TEST_PATH];
    full_path(folder, name, path);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
}

void test_spec(const char *kind, const char *folder, char spec[TEST_PATH + 32]) {
    snprintf(spec, TEST_PATH + 32, "%s:%s", kind, folder);
}

size_t test_idx(int dims, const uint32_t *dim, int first, int modulo, uint8_t *out) {
    size_t size = 1, at = 4 + 4 * (size_t)dims;
    memcpy(out, (uint8_t[]){0, 0, 8, (uint8_t)dims}, 4);
    for (int i = 0; i < dims; i++) {
        for (int k = 0; k < 4; k++)
            out[4 + 4 * i + k] = (uint8_t)(dim[i] >> (24 - 8 * k));
        size *= dim[i];
    }
    for (size_t i = 0; i < size; i++)
        out[at++] = (uint8_t)(((size_t)first + i) % (size_t)modulo);
    return at;
}

size_t test_cifar(int count, int label_bytes, int classes, uint8_t *out) {
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        if (label_bytes == 2)
            out[at++] = (uint8_t)(i % 20);
        out[at++] = (uint8_t)(i % classes);
        for (int p = 0; p < 3072; p++)
            out[at++] = (uint8_t)(p * 7 + p / 251 + i * 13);
    }
    return at;
}

size_t test_tar_member(const char *name, const void *data, size_t size, uint8_t *out) {
    char head[512] = {0};
    unsigned sum = 0;
    assert_true(strlen(name) < 100);
    memcpy(head, name, strlen(name));
    memcpy(head + 100,
           "0000644\0"
           "0000000\0"
           "0000000\0",
           24);
    snprintf(head + 124, 12, "%011zo", size);
    memcpy(head + 136, "00000000000", 11);
    memcpy(head + 148, "        ", 8);
    head[156] = '0';
    memcpy(head + 257, "ustar\00000", 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
    memcpy(out, head, 512);
    memset(out + 512, 0, (size + 511) / 512 * 512);
    memcpy(out + 512, data, size);
    return 512 + (size + 511) / 512 * 512;
}

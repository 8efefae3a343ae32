/* Temporary folders and small files for tests. Failures fail the test. */
#ifndef DSC_TESTS_DATA_FIXTURE_H
#define DSC_TESTS_DATA_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

enum { TEST_PATH = 512 };

/* Makes an empty folder under /dev/shm, $TMPDIR or /tmp. */
void test_make_folder(char folder[TEST_PATH]);
/* Removes `path` and all below it. */
void test_remove(const char *path);
/* Writes folder/name, making the folders in between. */
void test_write(const char *folder, const char *name, const void *data, size_t size);
/* The same, gzipped. */
void test_write_gz(const char *folder, const char *name, const void *data, size_t size);
/* "kind:folder" */
void test_spec(const char *kind, const char *folder, char spec[TEST_PATH + 32]);

/* An IDX file of `dims` dimensions, whose elements count up from `first`, modulo `modulo`. Returns its size. */
size_t test_idx(int dims, const uint32_t *dim, int first, int modulo, uint8_t *out);
/* `count` CIFAR records, label_bytes labels each: labels i % classes, pixels from a fixed formula. */
size_t test_cifar(int count, int label_bytes, int classes, uint8_t *out);

/* A member of a tar file, padded to whole blocks. Returns its size; a file ends with 1024 zero bytes. */
size_t test_tar_member(const char *name, const void *data, size_t size, uint8_t *out);

#endif

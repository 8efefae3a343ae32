/* The safetensors format: named tensors in one file.
 *
 *   8 bytes    length n of the header, little endian
 *   n bytes    JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *              "__metadata__": {"KEY": "VALUE", ...}}, padded with spaces
 *   the rest   the data; offsets count from its start, tensors cover it without gap or overlap
 *
 * Numbers are little endian, as on every machine this runs on.
 *
 * Files that are written here have check sums in their metadata:
 *
 *   "crc32"             a JSON object as text: the CRC-32 of every tensor's data, 8 hexadecimal digits by name
 *   "metadata_crc32"    "HEX KEY KEY ...": the CRC-32 of "KEY=VALUE\n" for these keys of the metadata, in
 *                       this order; "crc32" is one of them
 *
 * They are verified when a file is opened and when a tensor is read. Files without them can be read, too. */
#ifndef DSC_TRAIN_SAFETENSORS_H
#define DSC_TRAIN_SAFETENSORS_H

#include "descent/device.h"

typedef struct dsc_st_tensor {
    const char *name; /* stays the reader's */
    dsc_dtype dtype;
    int ndim; /* 0: one number */
    int64_t dim[DSC_MAX_DIMS];
    size_t offset, bytes; /* in the data */
    int has_sum;          /* the file has a check sum of its data, `sum` */
    uint32_t sum;
} dsc_st_tensor;

/* ---- reading ---- */
typedef struct dsc_st_reader dsc_st_reader;

/* Opens a file and checks all of its header. DSC_E_NOT_FOUND, DSC_E_IO, or DSC_E_FORMAT with the offending
 * value. */
dsc_status dsc_st_open(const char *path, dsc_st_reader **out) DSC_MUST_CHECK;
void dsc_st_close(dsc_st_reader **reader);
const char *dsc_st_path(const dsc_st_reader *reader);
int64_t dsc_st_count(const dsc_st_reader *reader);
/* Sorted by name; they stay the reader's. */
const dsc_st_tensor *dsc_st_tensors(const dsc_st_reader *reader);
/* NULL when no tensor has this name. */
const dsc_st_tensor *dsc_st_find(const dsc_st_reader *reader, const char *name);
/* NULL when there is no such key. Stays the reader's. */
const char *dsc_st_metadata(const dsc_st_reader *reader, const char *key);
/* The value as a number; -1 when there is no such key, DSC_E_FORMAT when it is not a number. */
dsc_status dsc_st_metadata_number(const dsc_st_reader *reader, const char *key, int64_t *out) DSC_MUST_CHECK;
/* Reads the data of a tensor; bytes must be tensor->bytes. */
dsc_status dsc_st_read(const dsc_st_reader *reader, const dsc_st_tensor *tensor, void *out,
                       size_t bytes) DSC_MUST_CHECK;
/* The same; DSC_E_FORMAT when it holds floating-point numbers that are not finite. */
dsc_status dsc_st_read_finite(const dsc_st_reader *reader, const dsc_st_tensor *tensor, void *out,
                              size_t bytes) DSC_MUST_CHECK;

/* 1 when the file has a check sum of every tensor. */
int dsc_st_has_sums(const dsc_st_reader *reader);
/* Reads all tensors and compares their check sums, if there are any. `finite`: also that no floating-point
 * number is infinite or NaN. DSC_E_FORMAT names the first tensor that is damaged. */
dsc_status dsc_st_verify(const dsc_st_reader *reader, int finite) DSC_MUST_CHECK;

/* ---- writing: create, declare everything, begin, write every tensor once in any order, sync, commit ---- */
typedef struct dsc_st_writer dsc_st_writer;

dsc_status dsc_st_writer_create(const char *path, dsc_st_writer **out) DSC_MUST_CHECK;
/* Removes the temporary file unless it was committed. */
void dsc_st_writer_destroy(dsc_st_writer **writer);
dsc_status dsc_st_writer_metadata(dsc_st_writer *writer, const char *key, const char *value) DSC_MUST_CHECK;
/* Tensors are numbered from 0 in the order they are declared. */
dsc_status dsc_st_writer_declare(dsc_st_writer *writer, const char *name, dsc_dtype dtype, int ndim,
                                 const int64_t *dim) DSC_MUST_CHECK;
/* Writes the header; dsc_st_writer_sync fills in its check sums. Wider types come first in the data, so that everything
 * is aligned. */
dsc_status dsc_st_writer_begin(dsc_st_writer *writer) DSC_MUST_CHECK;
dsc_status dsc_st_writer_write(dsc_st_writer *writer, int64_t index, const void *data,
                               size_t bytes) DSC_MUST_CHECK;
/* Checks that every tensor was written, writes the check sums, and syncs the file. */
dsc_status dsc_st_writer_sync(dsc_st_writer *writer) DSC_MUST_CHECK;
/* Gives the file its name. */
dsc_status dsc_st_writer_commit(dsc_st_writer *writer) DSC_MUST_CHECK;
/* Bytes of the whole file; known after begin. */
int64_t dsc_st_writer_bytes(const dsc_st_writer *writer);

#endif

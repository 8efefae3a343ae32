/* A file of records as TensorBoard reads them. A record is
 *
 *   8 bytes  length of the data, lowest byte first
 *   4 bytes  masked CRC-32C of these 8 bytes
 *   length   data
 *   4 bytes  masked CRC-32C of the data
 *
 * and the mask of a check sum c is (c rotated right by 15 bits) + 0xa282ead8, modulo 2^32. */
#ifndef DSC_TRAIN_EVENT_FILE_H
#define DSC_TRAIN_EVENT_FILE_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct dsc_event_file dsc_event_file;

/* The beginning of the files' names, by which TensorBoard finds them. */
#define DSC_EVENT_FILE_PREFIX "events.out.tfevents."

/* CRC-32C (Castagnoli) of `bytes` bytes; that of "123456789" is 0xe3069283. */
uint32_t dsc_crc32c(const void *data, size_t bytes);

/* Makes a new file in `directory`, which must exist. Its name holds time, host and process, so that files of
 * one directory are read in the order in which they were made. */
dsc_status dsc_event_file_open(const char *directory, dsc_event_file **out) DSC_MUST_CHECK;
void dsc_event_file_close(dsc_event_file **file);
/* Writes and flushes a record. The first failure is remembered; nothing is written after it. */
void dsc_event_file_write(dsc_event_file *file, const void *data, size_t bytes);
/* errno of the first failure, 0: none. */
int dsc_event_file_error(const dsc_event_file *file);
const char *dsc_event_file_path(const dsc_event_file *file);

#endif

/* Names of element types in safetensors files; shared by reader and writer. */
#ifndef DSC_TRAIN_SAFETENSORS_TYPES_H
#define DSC_TRAIN_SAFETENSORS_TYPES_H

#include "descent/device.h"

#define DSC_ST_METADATA     "__metadata__"
#define DSC_ST_SUMS         "crc32"
#define DSC_ST_METADATA_SUM "metadata_crc32"

enum { DSC_ST_HEADER_LIMIT = 100 * 1000 * 1000 }; /* bytes; the format's own limit */

enum { DSC_ST_SUM_SIZE = 9 }; /* characters of a check sum as text, with the terminating 0 */

/* CRC-32 (the one of zlib, PNG and Ethernet), continued from `sum`, 0 at the start. */
uint32_t dsc_st_sum(uint32_t sum, const void *data, size_t bytes);
/* Writes a check sum as 8 hexadecimal digits; reads it back, and returns 1 when the text is one. */
void dsc_st_sum_text(uint32_t sum, char text[DSC_ST_SUM_SIZE]);
int dsc_st_sum_parse(const char *text, uint32_t *out);

/* "F32", ...; NULL for a type the format lacks. */
const char *dsc_st_type_name(dsc_dtype dtype);
/* Returns 1 and sets *out when the name is known, else returns 0. */
int dsc_st_type_parse(const char *name, dsc_dtype *out);
/* Bytes of a tensor; 0, with *ok = 0, when the product overflows or a dimension is negative. */
size_t dsc_st_bytes(dsc_dtype dtype, int ndim, const int64_t *dim, int *ok);

#endif

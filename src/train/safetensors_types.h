/* Names of element types in safetensors files; shared by reader and writer. */
#ifndef DSC_TRAIN_SAFETENSORS_TYPES_H
#define DSC_TRAIN_SAFETENSORS_TYPES_H

#include "descent/device.h"

#define DSC_ST_METADATA "__metadata__"

enum { DSC_ST_HEADER_LIMIT = 100 * 1000 * 1000 }; /* bytes; the format's own limit */

/* "F32", ...; NULL for a type the format lacks. */
const char *dsc_st_type_name(dsc_dtype dtype);
/* 1 and *out when the name is known. */
int dsc_st_type_parse(const char *name, dsc_dtype *out);
/* Bytes of a tensor; 0 when the product does not fit or a dimension is negative (*ok = 0). */
size_t dsc_st_bytes(dsc_dtype dtype, int ndim, const int64_t *dim, int *ok);

#endif

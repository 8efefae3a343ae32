/* A 64-bit hash of bytes, for comparing data between ranks. It depends on the byte order of the machine,
 * so it must not be stored. */
#ifndef DSC_BASE_HASH_H
#define DSC_BASE_HASH_H

#include "base/visible.h"

#include <stddef.h>
#include <stdint.h>

/* Returns `hash` (0 at the start) extended by `bytes` bytes. Data may be hashed in pieces if the lengths of all but the
 * last are multiples of 8 bytes. */
DSC_MODULE_API uint64_t dsc_hash_bytes(uint64_t hash, const void *data, size_t bytes);

#endif

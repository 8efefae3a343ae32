/* A 64-bit hash of bytes, for comparing data between ranks. It depends on the byte order of the machine,
 * so it must not be stored. */
#ifndef DSC_BASE_HASH_H
#define DSC_BASE_HASH_H

#include "base/visible.h"

#include <stddef.h>
#include <stdint.h>

/* Continues `hash` (0 at the start) with `bytes` bytes. Data may come in pieces when all but the last are a
 * multiple of 8 bytes long. */
DSC_MODULE_API uint64_t dsc_hash_bytes(uint64_t hash, const void *data, size_t bytes);

#endif

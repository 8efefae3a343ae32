/* A 64-bit fingerprint of bytes, for comparing what ranks hold. Not for keeping: it differs between machines
 * of different byte order. */
#ifndef DSC_BASE_HASH_H
#define DSC_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Continues `hash` (0 at the start) with `bytes` bytes. Data may come in pieces when all but the last are a
 * multiple of 8 bytes long. */
uint64_t dsc_hash_bytes(uint64_t hash, const void *data, size_t bytes);

#endif

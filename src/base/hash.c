/* FNV-1a's scheme (exclusive or, then multiply) on 64-bit words, with one change: the high half is folded
 * into the low one after each multiplication. A product mod 2^64 only carries upwards: without the folding, flips
 * of the sign bits at the top of two words would cancel. For a fixed hash each step is a bijection of the word, and
 * for a fixed word a bijection of the hash, so changing a single word always changes the result. */
#include "base/hash.h"

#include <string.h>

static uint64_t step(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio, odd */
    return hash ^ (hash >> 32);
}

uint64_t dsc_hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    const char *p = data;
    uint64_t word;
    for (; bytes >= sizeof word; p += sizeof word, bytes -= sizeof word) {
        memcpy(&word, p, sizeof word);
        hash = step(hash, word);
    }
    if (bytes) {
        word = 0;
        memcpy(&word, p, bytes);
        hash = step(hash, word);
    }
    return hash;
}

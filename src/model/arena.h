/* A memory planner: places blocks with known lifetimes in as little memory as it can. */
#ifndef DSC_MODEL_ARENA_H
#define DSC_MODEL_ARENA_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct dsc_interval {
    size_t bytes;
    int64_t first, last; /* the block is needed from `first` to `last`, both included */
    size_t offset;       /* the result: a multiple of DSC_ALIGNMENT */
    /* Unless again_last is 0: the block is needed again from again_first to again_last, both included. In between, its
     * contents may be overwritten. */
    int64_t again_first, again_last;
} dsc_interval;

/* Sets the offsets so that no two blocks that are needed at the same time overlap, and *total to the bytes of all. */
dsc_status dsc_arena_place(dsc_interval *list, int64_t count, size_t *total) DSC_MUST_CHECK;

#endif

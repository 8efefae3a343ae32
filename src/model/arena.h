/* A memory planner: puts blocks that are needed at known times into as little memory as it can. */
#ifndef DSC_MODEL_ARENA_H
#define DSC_MODEL_ARENA_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct dsc_interval {
    size_t bytes;
    int64_t first, last; /* times at which it is needed, both included */
    size_t offset;       /* the result: a multiple of DSC_ALIGNMENT */
    /* Unless again_last is 0: later times at which it is needed again, both included. What is in it between `last` and
     * again_first may be overwritten. */
    int64_t again_first, again_last;
} dsc_interval;

/* Sets the offsets so that no two blocks with a common time overlap, and *total to the end of the last. */
dsc_status dsc_arena_place(dsc_interval *list, int64_t count, size_t *total) DSC_MUST_CHECK;

#endif

/* Greedy by size: from the largest block to the smallest, each is put into the smallest gap that it fits into
 * between those blocks placed before it whose lifetimes overlap its own, or else after them. So large blocks,
 * which decide the total, are stacked tightly, and small ones fill the gaps. Ties are broken by time, then by
 * position in the list, so the plan is a pure function of the list. */
#include "model/arena.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>

static size_t rounded(size_t bytes) {
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

static int compare(const void *a, const void *b) {
    const dsc_interval *x = *(dsc_interval *const *)a, *y = *(dsc_interval *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int overlap(int64_t a_first, int64_t a_last, int64_t b_first, int64_t b_last) {
    return a_first <= b_last && b_first <= a_last;
}

static int share_time(const dsc_interval *a, const dsc_interval *b) {
    const int twice_a = a->again_last > 0, twice_b = b->again_last > 0;
    return overlap(a->first, a->last, b->first, b->last) ||
           (twice_a && overlap(a->again_first, a->again_last, b->first, b->last)) ||
           (twice_b && overlap(a->first, a->last, b->again_first, b->again_last)) ||
           (twice_a && twice_b && overlap(a->again_first, a->again_last, b->again_first, b->again_last));
}

/* Returns the offset for `block`. `placed` is sorted by offset. */
static size_t find_offset(dsc_interval *const *placed, int64_t count, const dsc_interval *block) {
    size_t need = rounded(block->bytes), end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    for (int64_t i = 0; i < count; i++) {
        const dsc_interval *other = placed[i];
        if (!share_time(block, other))
            continue;
        if (other->offset > end && other->offset - end >= need && other->offset - end < best_gap) {
            best = end;
            best_gap = other->offset - end;
        }
        size_t other_end = other->offset + rounded(other->bytes);
        end = other_end > end ? other_end : end;
    }
    return best != SIZE_MAX ? best : end;
}

static void insert(dsc_interval **placed, int64_t count, dsc_interval *block) {
    int64_t i = count;
    for (; i > 0 && placed[i - 1]->offset > block->offset; i--)
        placed[i] = placed[i - 1];
    placed[i] = block;
}

dsc_status dsc_arena_place(dsc_interval *list, int64_t count, size_t *total) {
    size_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        if (list[i].bytes > SIZE_MAX / 4 || __builtin_add_overflow(sum, rounded(list[i].bytes), &sum))
            return DSC_FAIL(DSC_E_MEMORY, "a memory plan of %lld blocks is too large to address",
                            (long long)count);
    dsc_interval **order, **placed = NULL;
    DSC_TRY(dsc_memory_alloc(count, sizeof *order, &order));
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_memory_alloc(count, sizeof *placed, &placed), end);
    for (int64_t i = 0; i < count; i++)
        order[i] = &list[i];
    qsort(order, (size_t)count, sizeof *order, compare);
    *total = 0;
    for (int64_t i = 0; i < count; i++) {
        dsc_interval *block = order[i];
        block->offset = find_offset(placed, i, block);
        insert(placed, i, block);
        size_t block_end = block->offset + rounded(block->bytes);
        *total = block_end > *total ? block_end : *total;
    }
end:
    dsc_memory_free(&placed);
    dsc_memory_free(&order);
    return status;
}

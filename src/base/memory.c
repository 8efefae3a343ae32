/* Large blocks are given huge pages if possible: a training step uses hundreds of megabytes, and with pages of
 * 4 KiB address translation takes more than a tenth of its time, above all in virtual machines. */
#define _DEFAULT_SOURCE /* madvise */
#include "base/memory.h"

#include "base/error.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_llong allocations;
static atomic_llong fail_countdown;

int64_t dsc_memory_allocations(void) {
    return atomic_load(&allocations);
}

void dsc_memory_fail_at(int64_t nth) {
    atomic_store(&fail_countdown, nth);
}

enum { LARGE_PAGE = 2 << 20 };

/* Allocates `bytes` > 0 bytes, uninitialised; returns NULL on failure. */
static void *take(size_t bytes) {
    size_t alignment = bytes >= 2 * (size_t)LARGE_PAGE ? LARGE_PAGE : DSC_ALIGNMENT;
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void *p = aligned_alloc(alignment, rounded);
#ifdef MADV_HUGEPAGE
    if (p && alignment == LARGE_PAGE)
        (void)madvise(p, rounded, MADV_HUGEPAGE); /* may fail: everything still works, only slower */
#endif
    return p;
}

static int shall_fail(void) {
    return atomic_load(&fail_countdown) > 0 && atomic_fetch_sub(&fail_countdown, 1) == 1;
}

dsc_status dsc_memory_alloc(int64_t count, size_t size, void *out) {
    atomic_fetch_add(&allocations, 1);
    *(void **)out = NULL;
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow((size_t)count, size, &bytes) || bytes > SIZE_MAX / 2)
        return DSC_FAIL(DSC_E_MEMORY, "cannot allocate %lld elements of %zu bytes", (long long)count, size);
    void *p = shall_fail() ? NULL : take(bytes > 0 ? bytes : 1);
    if (!p)
        return DSC_FAIL(DSC_E_MEMORY, "cannot allocate %zu bytes of host memory", bytes);
    memset(p, 0, bytes);
    *(void **)out = p;
    return DSC_OK;
}

void dsc_memory_keep(void *p) {
    typedef struct node {
        void *p;
        struct node *next;
    } node;
    static _Atomic(node *) kept;
    node *n = malloc(sizeof *n);
    if (!n) /* leak checkers then report the memory, with no other consequence */
        return;
    n->p = p;
    n->next = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &n->next, n))
        ;
}

void dsc_memory_free(void *p) {
    void **address = p;
    free(*address);
    *address = NULL;
}

dsc_status dsc_memory_strdup(const char *text, char **out) {
    size_t size = strlen(text) + 1;
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    memcpy(*out, text, size);
    return DSC_OK;
}

dsc_status dsc_memory_grow(void *array, int64_t *capacity, int64_t needed, size_t size) {
    if (needed <= *capacity)
        return DSC_OK;
    int64_t wanted = *capacity * 2 > needed ? *capacity * 2 : needed;
    if (wanted < 8)
        wanted = 8;
    void *bigger;
    DSC_TRY(dsc_memory_alloc(wanted, size, &bigger));
    void **address = array;
    if (*address)
        memcpy(bigger, *address, (size_t)*capacity * size);
    free(*address);
    *address = bigger;
    *capacity = wanted;
    return DSC_OK;
}

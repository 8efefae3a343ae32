/* Host memory: every allocation of the library goes through here, so that tests can count allocations and make
 * them fail. Failures are reported as DSC_E_MEMORY with the requested number of bytes. */
#ifndef DSC_BASE_MEMORY_H
#define DSC_BASE_MEMORY_H

#include "base/visible.h"
#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

enum { DSC_ALIGNMENT = 64 };

/* Allocates `count` zeroed elements of `size` bytes, aligned to DSC_ALIGNMENT; count 0 gives a valid pointer. */
DSC_MODULE_API dsc_status dsc_memory_alloc(int64_t count, size_t size, void *out) DSC_MUST_CHECK;
/* Frees *p (p is the address of a pointer; *p may be NULL) and sets it to NULL. */
DSC_MODULE_API void dsc_memory_free(void *p);
/* Keeps a pointer to memory that can never be freed, because MPI may still write to it, so that leak checkers
 * do not report it. */
void dsc_memory_keep(void *p);
/* Sets *out to a copy of `text`, which the caller frees with dsc_memory_free. */
dsc_status dsc_memory_strdup(const char *text, char **out) DSC_MUST_CHECK;
/* Grows *array from *capacity to at least `needed` elements of `size` bytes, keeping its contents. */
DSC_MODULE_API dsc_status dsc_memory_grow(void *array, int64_t *capacity, int64_t needed,
                                          size_t size) DSC_MUST_CHECK;

/* For tests: the first returns the number of allocations so far; the second makes one of those that follow fail
 * (1: the next, 0: none). */
int64_t dsc_memory_allocations(void);
void dsc_memory_fail_at(int64_t nth);

#endif

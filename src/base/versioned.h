/* Public structs of options and results start with their size, so that they can grow at their end: a program
 * that was compiled with an older header passes a shorter struct, and nothing after its end is touched. */
#ifndef DSC_BASE_VERSIONED_H
#define DSC_BASE_VERSIONED_H

#include "descent/status.h"

#include <stddef.h>

/* Fills the caller's struct of `size` bytes from `defaults`, the whole struct of `known` bytes; its first
 * member becomes `size`. */
void dsc_versioned_init(void *options, size_t size, const void *defaults, size_t known);
/* Copies what `given` (NULL: nothing) holds over the defaults in `out`, a struct of `known` bytes. Both start
 * with their size; out's stays. DSC_E_INVALID when given's was never set, or is larger than this library
 * knows; `name` as in dsc_NAME_options_init, for the message. */
dsc_status dsc_versioned_read(const char *name, const void *given, size_t known, void *out) DSC_MUST_CHECK;

/* The same for a struct that defines something: `type` as in dsc_TYPE and dsc_TYPE_init. NULL is refused. */
dsc_status dsc_versioned_define(const char *type, const void *given, size_t known, void *out) DSC_MUST_CHECK;

/* Results: DSC_E_INVALID unless the size of the caller's struct (NULL: none) was set, and is at most `known`;
 * `type` names it in the message. */
dsc_status dsc_versioned_check(const char *type, const void *result, size_t known) DSC_MUST_CHECK;
/* Copies `own`, the whole struct, into the caller's, up to the caller's size, which stays. NULL: does
 * nothing. */
void dsc_versioned_write(const void *own, void *result);

#endif

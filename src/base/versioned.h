/* Public structs of options and results start with their size, so that they can grow at their end: a program
 * that was compiled with an older header passes a shorter struct, and nothing after its end is touched. */
#ifndef DSC_BASE_VERSIONED_H
#define DSC_BASE_VERSIONED_H

#include "descent/status.h"

#include <stddef.h>

/* Fills the caller's struct of `size` bytes from `defaults`, this library's struct of `known` bytes, and sets its
 * first member to `size`. */
void dsc_versioned_init(void *options, size_t size, const void *defaults, size_t known);
/* Copies the members of `given` (NULL: none) over the defaults in `out`, a struct of `known` bytes. Both start with
 * their size; that of `out` is kept. DSC_E_INVALID if that of `given` was never set, or is larger than `known`.
 * `name`, for the message, is the NAME in dsc_NAME_options_init. */
dsc_status dsc_versioned_read(const char *name, const void *given, size_t known, void *out) DSC_MUST_CHECK;

/* Does the same for a struct that defines an object: `type` is the TYPE in dsc_TYPE and dsc_TYPE_init. NULL is an
 * error. */
dsc_status dsc_versioned_define(const char *type, const void *given, size_t known, void *out) DSC_MUST_CHECK;

/* Checks the caller's struct for results (NULL: none): DSC_E_INVALID unless its size was set and is at most `known`.
 * `type` names it in the message. */
dsc_status dsc_versioned_check(const char *type, const void *result, size_t known) DSC_MUST_CHECK;
/* Copies `own`, this library's struct, into the caller's `result`, up to the caller's size, which is kept. Does
 * nothing if `result` is NULL. */
void dsc_versioned_write(const void *own, void *result);

#endif

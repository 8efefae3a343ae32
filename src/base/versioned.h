/* Public structs of options start with their size, so that they can grow: a program compiled against an older
 * header passes a shorter one. */
#ifndef DSC_BASE_VERSIONED_H
#define DSC_BASE_VERSIONED_H

#include "descent/status.h"

#include <stddef.h>

/* Copies what `given` (NULL: nothing) holds over the defaults in `out`, a struct of `known` bytes. Both start
 * with their size; out's stays. DSC_E_INVALID when given's was never set, or is larger than this library
 * knows; `name` as in dsc_NAME_options_init, for the message. */
dsc_status dsc_versioned_read(const char *name, const void *given, size_t known, void *out) DSC_MUST_CHECK;

#endif

/* The spec of a model of the zoo: "NAME" or "NAME:key=value,key=value", for example "unet:width=8".
 *
 * A model with keys has a design, a struct that is passed to its `build` as context; the table of its keys describes
 * members of that struct. Reading a spec changes a copy of the design. */
#ifndef DSC_MODEL_ZOO_SPEC_H
#define DSC_MODEL_ZOO_SPEC_H

#include "descent/options.h"

/* The number of characters before the colon, or of the whole spec when it has none. */
size_t dsc_zoo_spec_name_length(const char *spec);

/* Reads the keys of `spec` into the design, which holds the defaults. `keys` is NULL for a model without keys. A spec
 * that is too long for a model's name, an unknown key, a key given twice or a value out of range is DSC_E_INVALID; for
 * keys and values the message lists the keys and their defaults. */
dsc_status dsc_zoo_spec_read(const char *spec, const dsc_option *keys, void *design) DSC_MUST_CHECK;

#endif

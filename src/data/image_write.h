/* Writing images. */
#ifndef DSC_DATA_IMAGE_WRITE_H
#define DSC_DATA_IMAGE_WRITE_H

#include "descent/status.h"

#include <stdint.h>

/* Writes pixels[h, w] as an 8-bit grey PNG, replacing an older file; the file appears whole or not at all.
 * DSC_E_UNSUPPORTED when the build lacks libpng. */
dsc_status dsc_png_write_grey(const char *path, const uint8_t *pixels, int64_t h, int64_t w) DSC_MUST_CHECK;
/* Fails with DSC_E_UNSUPPORTED when dsc_png_write_grey would. */
dsc_status dsc_png_can_write(void) DSC_MUST_CHECK;

#endif

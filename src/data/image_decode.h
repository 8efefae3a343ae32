/* JPEG and PNG files in memory to RGB bytes. */
#ifndef DSC_DATA_IMAGE_DECODE_H
#define DSC_DATA_IMAGE_DECODE_H

#include "data/files.h"

/* An encoded image; `name` is for messages. */
typedef struct dsc_encoded {
    const char *name;
    const uint8_t *data;
    int64_t size;
} dsc_encoded;

/* Height and width from the header. DSC_E_FORMAT when it is neither JPEG nor PNG, broken, or absurdly large;
 * DSC_E_UNSUPPORTED when the build lacks the library. */
dsc_status dsc_image_size(const dsc_encoded *encoded, int64_t *h, int64_t *w) DSC_MUST_CHECK;

/* Decodes to out[h,w,3] bytes. Grey is spread over three channels, CMYK converted, 16 bits scaled to 8, alpha
 * dropped, EXIF orientation ignored. A JPEG may be decoded at 1/shrink of its size (1, 2, 4, 8; rounded up),
 * which is faster; h and w are those of `out`. */
dsc_status dsc_image_decode(const dsc_encoded *encoded, int shrink, dsc_bytes *out, int64_t *h,
                            int64_t *w) DSC_MUST_CHECK;

#endif

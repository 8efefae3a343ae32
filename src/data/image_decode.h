/* Decodes JPEG, PNG and WebP files in memory to RGB bytes. */
#ifndef DSC_DATA_IMAGE_DECODE_H
#define DSC_DATA_IMAGE_DECODE_H

#include "data/files.h"

/* An encoded image; `name` is for messages. */
typedef struct dsc_encoded {
    const char *name;
    const uint8_t *data;
    int64_t size;
} dsc_encoded;

/* Height and width from the header. DSC_E_FORMAT when it is no JPEG, PNG or WebP, broken, or absurdly large;
 * DSC_E_UNSUPPORTED when the build lacks the library. */
dsc_status dsc_image_size(const dsc_encoded *encoded, int64_t *h, int64_t *w) DSC_MUST_CHECK;

/* The number of bits per value of the image in the file. */
int dsc_image_bits(const dsc_encoded *encoded);

/* Decodes to out[h,w,3] bytes. Grey is spread over three channels, CMYK converted, 16 bits scaled to 8, alpha
 * dropped, EXIF orientation ignored. A JPEG may be decoded at 1/shrink of its size (1, 2, 4, 8; rounded up),
 * which is faster; a very large one is decoded at a smaller size than that, so that it fits into memory. h and w
 * are those of `out`. */
dsc_status dsc_image_decode(const dsc_encoded *encoded, int shrink, dsc_bytes *out, int64_t *h,
                            int64_t *w) DSC_MUST_CHECK;

/* The largest image that is decoded: pixels per side, and in total. */
enum { DSC_IMAGE_SIDE = 20000, DSC_IMAGE_PIXELS = 100000000 };

/* Recognises a WebP file, reads its size, and decodes it to out[h,w,3] after the caller has checked the size
 * (image_webp.c). */
int dsc_webp_is(const dsc_encoded *encoded);
dsc_status dsc_webp_size(const dsc_encoded *encoded, int64_t *h, int64_t *w) DSC_MUST_CHECK;
dsc_status dsc_webp_decode(const dsc_encoded *encoded, int64_t h, int64_t w, uint8_t *out) DSC_MUST_CHECK;

#endif

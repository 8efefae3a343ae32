/* Which characters are letters, numbers and white space. */
#ifndef DSC_DATA_UNICODE_CLASSES_H
#define DSC_DATA_UNICODE_CLASSES_H

#include <stdint.h>

typedef enum dsc_char_class {
    DSC_CHAR_OTHER,
    DSC_CHAR_LETTER, /* general categories L* */
    DSC_CHAR_NUMBER, /* N* */
    DSC_CHAR_SPACE   /* the property White_Space */
} dsc_char_class;

/* The tables, in a file that is made by scripts/unicode-classes. */
extern const uint8_t dsc_unicode_blocks[], dsc_unicode_packed[];

/* The class of a code point below 0x110000. */
static inline dsc_char_class dsc_char_class_of(uint32_t code) {
    uint32_t packed = dsc_unicode_packed[dsc_unicode_blocks[code >> 8] * 64u + (code & 255) / 4];
    return (dsc_char_class)(packed >> code % 4 * 2 & 3);
}

#endif

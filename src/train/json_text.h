/* JSON with numbers in their shortest form. */
#ifndef DSC_TRAIN_JSON_TEXT_H
#define DSC_TRAIN_JSON_TEXT_H

#include <stdio.h>

struct json_t;

enum { DSC_JSON_NUMBER_SIZE = 32 };

/* Writes the shortest decimal number that reads back as the same double, with a '.' or an exponent; `text` has
 * DSC_JSON_NUMBER_SIZE bytes. Finite numbers only. Returns `text`. */
const char *dsc_json_number(double value, char *text);
/* Writes the value in one line, without blanks. Returns 0, or -1 after a failure. */
int dsc_json_write(const struct json_t *value, FILE *out);

#endif

/* jansson writes doubles with 17 digits, 0.1 as 0.10000000000000001; versions before 2.15 have no other form that
 * reads back as the same number. */
#include "train/json_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

const char *dsc_json_number(double value, char *text) {
    for (int digits = 15; digits <= 17; digits++) { /* fewer than 15 show as these without zeros at the end */
        snprintf(text, DSC_JSON_NUMBER_SIZE - 2, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    char *point = text + strspn(text, "+-0123456789");
    if (*point == '\0')
        memcpy(point, ".0", 3);
    else if (*point != 'e')
        *point = '.'; /* whatever the locale has there */
    char *exponent = strchr(text, 'e');
    if (exponent) { /* e-07 and e+20 as e-7 and e20 */
        char *from = exponent + 1, *to = exponent + 1;
        if (*from == '-')
            *to++ = '-';
        from += strspn(from, "+-");
        from += strspn(from, "0");
        memmove(to, from, strlen(from) + 1);
    }
    return text;
}

static int write_members(const json_t *object, FILE *out) {
    json_t *all = (json_t *)object; /* jansson's iterators take no const, and change nothing */
    int bad = fputc('{', out) == EOF;
    for (void *at = json_object_iter(all); at && !bad; at = json_object_iter_next(all, at)) {
        json_t *key = json_string(json_object_iter_key(at));
        if (at != json_object_iter(all))
            bad |= fputc(',', out) == EOF;
        bad |= !key || json_dumpf(key, out, JSON_ENCODE_ANY) != 0 || fputc(':', out) == EOF;
        bad |= dsc_json_write(json_object_iter_value(at), out) != 0;
        json_decref(key);
    }
    return bad || fputc('}', out) == EOF ? -1 : 0;
}

static int write_items(const json_t *array, FILE *out) {
    int bad = fputc('[', out) == EOF;
    for (size_t i = 0; i < json_array_size(array) && !bad; i++) {
        if (i > 0)
            bad |= fputc(',', out) == EOF;
        bad |= dsc_json_write(json_array_get(array, i), out) != 0;
    }
    return bad || fputc(']', out) == EOF ? -1 : 0;
}

int dsc_json_write(const json_t *value, FILE *out) {
    char text[DSC_JSON_NUMBER_SIZE];
    if (json_is_object(value))
        return write_members(value, out);
    if (json_is_array(value))
        return write_items(value, out);
    if (json_is_real(value))
        return fputs(dsc_json_number(json_real_value(value), text), out) == EOF ? -1 : 0;
    return json_dumpf(value, out, JSON_ENCODE_ANY | JSON_COMPACT);
}

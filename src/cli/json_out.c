#include "cli/json_out.h"

#include "cli/support.h"

#include <stdlib.h>
#include <string.h>

enum { NUMBER_SIZE = 40 };

/* The end of the string that begins at `text`, a quotation mark. */
static const char *skip_string(const char *text) {
    for (text++; *text && *text != '"'; text++)
        if (*text == '\\')
            text++;
    return *text ? text + 1 : text;
}

/* Prints a number of `length` characters, with fewer digits where these read back as the same double: jansson writes 17
 * digits of a number that is not whole. */
static void print_number(const char *text, size_t length, FILE *out) {
    char given[NUMBER_SIZE], shorter[NUMBER_SIZE];
    snprintf(given, sizeof given, "%.*s", (int)length, text);
    if (length < sizeof given && strpbrk(given, ".eE"))
        for (int digits = 15; digits <= 16; digits++) {
            snprintf(shorter, sizeof shorter, "%.*g", digits, strtod(given, NULL));
            if (strlen(shorter) < length && strpbrk(shorter, ".e") &&
                strtod(shorter, NULL) == strtod(given, NULL)) {
                fputs(shorter, out);
                return;
            }
        }
    fwrite(text, 1, length, out);
}

void dsc_cli_print_json(const json_t *value, FILE *out) {
    char *text = json_dumps(value, JSON_INDENT(2));
    for (const char *at = text; at && *at;) {
        size_t length = strspn(at, "+-.0123456789eE");
        if (*at == '"') {
            const char *end = skip_string(at);
            fwrite(at, 1, (size_t)(end - at), out);
            at = end;
        } else if (length > 0 && strchr("-0123456789", *at)) {
            print_number(at, length, out);
            at += length;
        } else {
            fputc(*at++, out);
        }
    }
    fputc('\n', out);
    free(text);
}

json_t *dsc_cli_json_text(const char *text) {
    json_t *string = json_string(text);
    char *plain;
    if (string || dsc_cli_alloc((int64_t)strlen(text) + 1, 1, &plain) != DSC_OK)
        return string;
    for (size_t i = 0; text[i]; i++)
        plain[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
    string = json_string(plain);
    dsc_cli_free(&plain);
    return string;
}

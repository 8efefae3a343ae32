/* JSON that commands print. */
#ifndef DSC_CLI_JSON_OUT_H
#define DSC_CLI_JSON_OUT_H

#include <jansson.h>
#include <stdio.h>

/* Prints the value, indented, and ends the line. Numbers that are not whole have the fewest digits that read back as
 * the same double, where jansson writes 17 of them. */
void dsc_cli_print_json(const json_t *value, FILE *out);
/* A new string. If the text is not UTF-8, as names of files may be, all bytes beyond ASCII become question marks. NULL
 * when there is no memory. */
json_t *dsc_cli_json_text(const char *text);

#endif

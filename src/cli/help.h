/* Help texts and manual pages, written from the commands' descriptions and option tables. */
#ifndef DSC_CLI_HELP_H
#define DSC_CLI_HELP_H

#include "cli/cli.h"

#include <stdio.h>

/* Writes text, wrapped between words, in lines of at most `width` characters. The first line begins at column `at`,
 * later ones at column `indent`. */
void dsc_help_wrapped(FILE *out, const char *text, int at, int indent, int width);

/* Print what `descent --help` and `descent COMMAND --help` show. `values` holds the defaults. */
void dsc_help_program(FILE *out);
void dsc_help_command(FILE *out, const dsc_cli_command *command, const void *values, int width);

/* Print the manual pages descent.1 and descent-COMMAND.1, in roff. */
void dsc_man_program(FILE *out);
void dsc_man_command(FILE *out, const dsc_cli_command *command, const void *values);

#endif

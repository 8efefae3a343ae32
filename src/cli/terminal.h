/* What the terminal, if there is one, can show. */
#ifndef DSC_CLI_TERMINAL_H
#define DSC_CLI_TERMINAL_H

#include <stdio.h>

/* 1 when `stream` is a terminal that understands cursor control. */
int dsc_terminal_is(FILE *stream);
/* Columns of the terminal behind `stream`; 80 when it is none or does not say. */
int dsc_terminal_width(FILE *stream);
/* 1 when the locale's characters are UTF-8. */
int dsc_terminal_utf8(void);

#endif

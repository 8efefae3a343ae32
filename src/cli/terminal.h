/* Whether there is a terminal, its width and its character set. */
#ifndef DSC_CLI_TERMINAL_H
#define DSC_CLI_TERMINAL_H

#include <stdio.h>

/* 1 when `stream` is a terminal that understands cursor control. */
int dsc_terminal_is(FILE *stream);
/* 1 when `stream` may get colours: it is such a terminal, and NO_COLOR is not set in the environment. */
int dsc_terminal_colour(FILE *stream);
/* Columns of the terminal that `stream` writes to; 80 when it is no terminal or its width is unknown. */
int dsc_terminal_width(FILE *stream);
/* 1 when the locale's characters are UTF-8. */
int dsc_terminal_utf8(void);

#endif

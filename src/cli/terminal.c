/* Properties of the terminal, from the environment, the kernel and the locale. */
#include "cli/terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int dsc_terminal_is(FILE *stream) {
    const char *term = getenv("TERM");
    return isatty(fileno(stream)) && !(term && strcmp(term, "dumb") == 0);
}

/* Open MPI connects a terminal of its own to the standard output of the ranks, even where it writes to a
 * file, but not to their standard error. */
int dsc_terminal_colour(FILE *stream) {
    const char *no = getenv("NO_COLOR");
    return dsc_terminal_is(stream) && dsc_terminal_is(stderr) && !(no && *no);
}

int dsc_terminal_width(FILE *stream) {
    struct winsize size;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
        return size.ws_col;
    return 80;
}

int dsc_terminal_utf8(void) {
    setlocale(LC_CTYPE, "");
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

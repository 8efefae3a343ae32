/* Shows the progress of training: a bar on a terminal, plain lines elsewhere. */
#ifndef DSC_CLI_PROGRESS_BAR_H
#define DSC_CLI_PROGRESS_BAR_H

#include "descent/train.h"

#include <stdio.h>

typedef struct dsc_cli_progress {
    FILE *lines; /* the description of the run, epochs and notes */
    FILE *bar;   /* NULL: no bar, a plain line now and then instead */
    int utf8, verbose;
    int colour;         /* of `lines` */
    int bar_colour;     /* of `bar` */
    double every;       /* seconds between two lines about steps; 0: none */
    int drawn;          /* 1: the bar is on the terminal's current line */
    double last;        /* time of the last drawing of the bar, or of the last line */
    double epoch_start; /* when the epoch began */
    int pending;        /* 1: `epoch` is printed together with its evaluation, which may follow */
    dsc_progress epoch; /* the last DSC_EVENT_EPOCH; its text is no longer valid */
    double epoch_seconds;
} dsc_cli_progress;

/* Lines go to the standard output, the bar to the standard error if that is a terminal. Without a terminal
 * there is a line about the steps every `every` seconds, 0: never. */
void dsc_cli_progress_init(dsc_cli_progress *progress, int verbose, double every);
/* A dsc_progress_function; context: the dsc_cli_progress. */
void dsc_cli_progress_event(void *context, const dsc_progress *event);
/* Prints an epoch that is still pending and erases the bar. */
void dsc_cli_progress_end(dsc_cli_progress *progress);

#endif

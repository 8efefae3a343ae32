/* Line plots for a terminal, in braille dots or, where UTF-8 is missing, in ASCII. */
#ifndef DSC_CLI_PLOT_H
#define DSC_CLI_PLOT_H

#include "descent/status.h"

#include <stdint.h>
#include <stdio.h>

/* One curve; points that are not finite are left out. The caller keeps ownership of everything. */
typedef struct dsc_plot_series {
    const char *label;
    const double *x, *y;
    int64_t count;
} dsc_plot_series;

typedef struct dsc_plot_options {
    const char *title;   /* above the plot */
    const char *x_label; /* below the axis */
    int width, height;   /* characters of the whole plot, rows of the curve's field */
    int utf8;
    int x_is_log10; /* 1: x is the logarithm of what the axis shows */
} dsc_plot_options;

/* Draws the curves into one frame, each with its own mark and a line in the legend. Without any point it
 * prints a note instead. */
dsc_status dsc_plot_draw(FILE *out, const dsc_plot_series *series, int64_t count,
                         const dsc_plot_options *options) DSC_MUST_CHECK;

#endif

/* The parts of `descent report`: columns of its table, the plot in the terminal, the other formats. */
#ifndef DSC_CLI_REPORT_PARTS_H
#define DSC_CLI_REPORT_PARTS_H

#include "cli/runlog.h"

/* The runs of a report, in the order of the command line. */
typedef struct dsc_report_runs {
    dsc_runlog **logs;
    int64_t count, capacity;
    double target; /* top-1 in percent that target_s of all runs belongs to; 0: each has its own */
} dsc_report_runs;

/* A column of the table, and its cells as texts: one for each run. */
typedef struct dsc_report_column {
    char title[64];
    int right; /* 1: aligned to the right */
    char **cells;
} dsc_report_column;

typedef struct dsc_report_columns {
    dsc_report_column *list;
    int64_t count, capacity;
    int64_t rows;
} dsc_report_columns;

/* Adds the options in which the runs differ, in the order in which the runs have them. An option that a run
 * does not use, such as K-FAC's damping in a run without K-FAC, is "-". */
dsc_status dsc_report_add_differences(const dsc_report_runs *runs,
                                      dsc_report_columns *columns) DSC_MUST_CHECK;
/* Adds a column of empty cells; texts for them are made by dsc_report_set_cell. */
dsc_status dsc_report_add_column(dsc_report_columns *columns, const char *title, int right,
                                 dsc_report_column **out) DSC_MUST_CHECK;
dsc_status dsc_report_set_cell(dsc_report_column *column, int64_t row, const char *text) DSC_MUST_CHECK;
void dsc_report_columns_free(dsc_report_columns *columns);

/* The table: as many columns side by side as fit in `width` characters, the others below them. */
dsc_status dsc_report_print_table(FILE *out, const dsc_report_runs *runs, int width) DSC_MUST_CHECK;
dsc_status dsc_report_print_csv(FILE *out, const dsc_report_runs *runs) DSC_MUST_CHECK;
dsc_status dsc_report_print_json(FILE *out, const dsc_report_runs *runs) DSC_MUST_CHECK;

/* Writes ,"key": and the value of each result, as a part of a JSON object. */
void dsc_report_each_result(const dsc_runlog *log, FILE *out, void (*write)(FILE *out, double value));

/* Write the HTML page into a stream, or into a file, which appears whole or not at all. */
dsc_status dsc_report_write_page(FILE *out, const dsc_report_runs *runs) DSC_MUST_CHECK;
dsc_status dsc_report_write_html(const char *path, const dsc_report_runs *runs) DSC_MUST_CHECK;

/* The quantities on the y and the x axis of the plot. */
typedef enum dsc_report_y {
    DSC_REPORT_AUTO, /* the loss of runs whose best model is chosen by it, top-1 of others */
    DSC_REPORT_TOP1,
    DSC_REPORT_TOP5,
    DSC_REPORT_LOSS,
    DSC_REPORT_TRAIN_LOSS,
    DSC_REPORT_LR
} dsc_report_y;
typedef enum dsc_report_x { DSC_REPORT_EPOCH, DSC_REPORT_STEP, DSC_REPORT_TIME } dsc_report_x;

dsc_status dsc_report_plot(FILE *out, dsc_runlog *const *logs, int64_t count, dsc_report_y y,
                           dsc_report_x x) DSC_MUST_CHECK;

#endif

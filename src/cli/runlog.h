/* Reads the metrics.jsonl of a run, for `descent report` and the plot at the end of a training. */
#ifndef DSC_CLI_RUNLOG_H
#define DSC_CLI_RUNLOG_H

#include "descent/status.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The numbers of all lines of one kind: a row per line, NaN where the line has no such number. */
typedef struct dsc_runlog_table {
    const char *const *keys; /* the keys of the columns; NULL for layers, decompositions and ranks */
    int64_t columns;
    double *values; /* [rows][columns] */
    int64_t rows, capacity;
} dsc_runlog_table;

/* The tables of a run. Those of layers and of decompositions have a row for each row of DSC_RUNLOG_KFAC: with the
 * DSC_RUNLOG_LAYER_VALUES numbers of each layer, and with the DSC_RUNLOG_SOLVE_VALUES of each rank. That of ranks
 * has a row for each row of DSC_RUNLOG_LOAD, with the DSC_RUNLOG_RANK_VALUES of each rank. */
enum {
    DSC_RUNLOG_STEPS,
    DSC_RUNLOG_EPOCHS,
    DSC_RUNLOG_EVALS,
    DSC_RUNLOG_CONSENSUS,
    DSC_RUNLOG_KFAC,
    DSC_RUNLOG_LOAD,
    DSC_RUNLOG_LAYERS,
    DSC_RUNLOG_SOLVES,
    DSC_RUNLOG_RANKS,
    DSC_RUNLOG_TABLES
};

/* The first columns of every table that has keys. The epoch is the number of epochs done, with a fraction. */
enum { DSC_RUNLOG_STEP, DSC_RUNLOG_EPOCH, DSC_RUNLOG_TIME };

enum { DSC_RUNLOG_LAYER_VALUES = 7, DSC_RUNLOG_SOLVE_VALUES = 3, DSC_RUNLOG_RANK_VALUES = 13 };
enum { DSC_RUNLOG_LAYER_NU = 6 }; /* the place of nu among the values of a layer */
extern const char *const dsc_runlog_layer_keys[], *const dsc_runlog_solve_keys[],
                                                      *const dsc_runlog_rank_keys[];

typedef struct dsc_runlog {
    char *name;      /* of the run: its directory */
    char *label;     /* the same for a terminal: dsc_cli_clean */
    char model[64];  /* "" when the file does not say */
    char status[16]; /* done, running, stopped, diverged, failed, died; "" before it is known */
    char error[512]; /* message of a run that failed; "" otherwise */
    json_t *run;     /* the last line of kind `run`; NULL: none */
    int64_t ranks;   /* 0: unknown */
    int64_t epochs;  /* done in full */
    int64_t steps;   /* done */
    int by_loss; /* 1: the model predicts pixels or tokens, and the lowest loss is the best; else the highest top-1 */
    int64_t tokens;      /* of a sample; 0: images */
    double best_top1;    /* in percent, of the weights or their average; NaN: never evaluated */
    double best_loss;    /* the lowest loss of an evaluation, with by_loss; NaN otherwise */
    double best_epoch;   /* epochs done at the best evaluation */
    double top1;         /* of the last evaluation, in percent; NaN: none */
    double pixel_error;  /* of models of pixels: 100 - top1; NaN for others */
    double ema_top1;     /* the same of the average of the weights; NaN: there is none */
    double loss;         /* of the last evaluation; before the first, the last training loss; NaN: none */
    int loss_is_eval;    /* 1: it is that of an evaluation */
    double images_per_s; /* the last that was written; NaN: none */
    double tokens_per_s; /* NaN for images */
    double mfu;          /* utilisation in percent, the last that was written; NaN: none */
    double seconds;      /* since the run began; NaN: none */
    double target_s;     /* seconds until the run reached its target (--stop-at); NaN: it did not */
    dsc_runlog_table tables[DSC_RUNLOG_TABLES];
    int64_t layers, solves; /* layers and ranks in each line of K-FAC */
    int64_t loaded;         /* ranks in each `load` line */
    json_t *layer_names;    /* an array of texts; NULL: none */
    char alarms[4][512];    /* messages of alarms, each once; later ones are left out */
    int alarm_count;
    int64_t lines, bad_lines; /* read, and skipped */
    char first_bad[512];      /* "FILE:LINE: why" of the first line skipped */
} dsc_runlog;

/* Reads `run`, a directory with a metrics.jsonl or such a file. Lines that are not what they should be are
 * counted in bad_lines and skipped; an incomplete last line is not counted (the run is still writing it).
 * Where a resumed run has repeated steps, only the last line of a step counts. DSC_E_NOT_FOUND when there is
 * no such file, DSC_E_FORMAT when it is no file or holds no line of metrics. The caller destroys *out. */
dsc_status dsc_runlog_read(const char *run, dsc_runlog **out) DSC_MUST_CHECK;
/* The same from a stream; `file` is its name in messages. A run without an end has no status. */
dsc_status dsc_runlog_read_stream(const char *name, const char *file, FILE *stream,
                                  dsc_runlog **out) DSC_MUST_CHECK;
/* Accepts NULL and *log == NULL. */
void dsc_runlog_destroy(dsc_runlog **log);

/* The seconds until the first evaluation with this top-1 accuracy in percent, of the weights or their average;
 * NaN: there is none. */
double dsc_runlog_time_to(const dsc_runlog *log, double top1);
/* The lower loss of an evaluation, of the weights and their average; NaN: none is finite. */
double dsc_runlog_loss(const dsc_runlog_table *evals, const double *row);
/* The number of the column with this key; -1: none. */
int64_t dsc_runlog_column(const dsc_runlog_table *table, const char *key);
/* A value of the run's configuration, by its place ("optimizer.name"); NULL: the run does not have it. */
const json_t *dsc_runlog_config(const dsc_runlog *log, const char *place);

#endif

/* Writes metrics.jsonl: one JSON object per line, each flushed as it is written. A failure is remembered and
 * reported later, at a point where all ranks can agree on it. */
#ifndef DSC_TRAIN_METRICS_H
#define DSC_TRAIN_METRICS_H

#include "descent/trainer.h"
#include "kfac/kfac_parts.h"
#include "train/train_state.h"

typedef struct dsc_metrics dsc_metrics;

/* The contents of a `run` line besides the options. */
typedef struct dsc_run_facts {
    int ranks;
    const char *device, *comm;  /* descriptions */
    const char *const *devices; /* one description per rank */
    int64_t parameters, samples, epoch_steps;
    int64_t positions, tokens; /* predictions and tokens of a sample; images have no tokens */
    double flops, peak;        /* a sample's forward pass; rank 0's device per second, 0: unknown */
    int64_t image_size;        /* height of the samples */
    const char *resumed;       /* the checkpoint, or NULL */
    int64_t step;              /* steps done before this run */
} dsc_run_facts;

/* How fast steps are: images, or sequences, per second, and the share of the peak (dsc_progress), 0: unknown. */
typedef struct dsc_rate {
    double images_per_s, mfu;
} dsc_rate;

/* How far ranks that gossip are apart, measured at a synchronisation point. */
typedef struct dsc_consensus_report {
    double distance, norm; /* dsc_consensus_distance's */
    double mass;           /* sum of the push-sum weights */
    double weight;         /* this rank's */
    int64_t rounds;        /* this rank's */
} dsc_consensus_report;

/* Top-1 of every rank's own model. */
typedef struct dsc_ranks_result {
    double rank0, mean, min, max, std;
} dsc_ranks_result;

/* The contents of an `eval` line. */
typedef struct dsc_evaluation {
    dsc_eval_result result;
    int has_ranks, has_consensus, has_ema;
    dsc_eval_result ema; /* of the average of the weights over the steps */
    dsc_ranks_result ranks;
    dsc_consensus_report consensus;
} dsc_evaluation;

/* Opens DIRECTORY/metrics.jsonl. append 0: the file starts empty; 1: lines go after its last whole line. */
dsc_status dsc_metrics_open(const char *directory, int append, dsc_metrics **out) DSC_MUST_CHECK;
/* From now on every line is also written to an event file in `directory` (tensorboard.h). */
dsc_status dsc_metrics_open_tensorboard(dsc_metrics *metrics, const char *directory) DSC_MUST_CHECK;
void dsc_metrics_close(dsc_metrics **metrics);
/* 1 when a line could not be written (0 for NULL); and DSC_E_IO with the reason. */
int dsc_metrics_failed(const dsc_metrics *metrics);
dsc_status dsc_metrics_status(const dsc_metrics *metrics) DSC_MUST_CHECK;

/* The options as the `config` of a `run` line; the caller gives it back with json_decref. */
struct json_t *dsc_metrics_config(const dsc_train_options *options);

/* The following functions accept metrics == NULL and do nothing then. */
void dsc_metrics_run(dsc_metrics *metrics, const dsc_train_options *options, const dsc_run_facts *facts);
/* report->nu is written unless it is NaN. */
void dsc_metrics_step(dsc_metrics *metrics, const dsc_step_report *report, dsc_rate rate);
void dsc_metrics_epoch(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch, double lr,
                       dsc_rate rate);
void dsc_metrics_eval(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                      const dsc_evaluation *evaluation);
void dsc_metrics_consensus(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                           const dsc_consensus_report *report);
/* What one rank did in the steps of an epoch. */
typedef struct dsc_load {
    double steps;
    double phase_ms[DSC_PHASE_COUNT];
    double bytes[DSC_TRAFFIC_OTHER]; /* sent */
} dsc_load;

/* At the end of an epoch: the means of every rank's steps; loads[ranks]. */
void dsc_metrics_load(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                      const dsc_load *loads, int ranks);
/* Ranks were lost: how many, how many are left, and the sum of their push-sum weights. */
void dsc_metrics_ranks(dsc_metrics *metrics, const dsc_train_state *state, int ranks, int lost, double mass);
/* After a step that decomposed. */
void dsc_metrics_kfac(dsc_metrics *metrics, const dsc_train_state *state, const dsc_step_report *step,
                      const dsc_kfac_report *report);
/* K-FAC's eigenvalues, for the event file only. */
void dsc_metrics_spectrum(dsc_metrics *metrics, const dsc_train_state *state,
                          const dsc_kfac_spectrum *spectrum);
/* The message of an alarm (dsc_kfac_health). */
void dsc_metrics_alarm(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                       const char *message);
/* file: its name in the directory; bytes: of all files together; seconds: the time that saving took. */
void dsc_metrics_checkpoint(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                            const char *file, int64_t bytes, double seconds);
/* status: "done", "interrupted", "failed" or "died"; error: its message or NULL. */
void dsc_metrics_end(dsc_metrics *metrics, const char *status, const char *error,
                     const dsc_train_result *result, double time_s);

#endif

/* The options of descent train: those of the library, and what the program adds. */
#ifndef DSC_CLI_TRAIN_OPTIONS_H
#define DSC_CLI_TRAIN_OPTIONS_H

#include "cli/cli.h"
#include "descent/train.h"

typedef struct dsc_cli_train_values {
    dsc_cli_common common;
    dsc_train_options o; /* its parts are the next three */
    dsc_optim_options optim;
    dsc_consensus_options consensus;
    dsc_kfac_options kfac;
    const char *device, *comm;
    int threads, tune, overwrite, plot;
    double progress_every;
    char default_out[256];
    char lines[1024]; /* the program's own options, for the run's configuration file */
} dsc_cli_train_values;

/* Filled in by dsc_cli_train_init. */
extern dsc_option dsc_cli_train_options[];

/* Sets the defaults. */
void dsc_cli_train_init(void *values);
/* After parsing: completes `o` and refuses what cannot work. `set`: what was given. */
dsc_status dsc_cli_train_finish(dsc_cli_train_values *values, const dsc_option_set *set) DSC_MUST_CHECK;
/* Opens the session that these options ask for (dsc_cli_open). Collective. */
dsc_status dsc_cli_train_open(dsc_cli_session *session, const dsc_cli_train_values *values) DSC_MUST_CHECK;

#endif

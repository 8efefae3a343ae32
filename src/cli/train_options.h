/* The options of descent train: their table, and how they become dsc_train_options. */
#ifndef DSC_CLI_TRAIN_OPTIONS_H
#define DSC_CLI_TRAIN_OPTIONS_H

#include "cli/cli.h"
#include "cli/gossip_options.h"
#include "cli/kfac_options.h"
#include "descent/train.h"

typedef struct dsc_cli_train_values {
    dsc_cli_common common;
    dsc_train_options o; /* its parts point to those below */
    struct {
        dsc_optim_options optim;
        dsc_consensus_options consensus;
        dsc_kfac_options kfac;
    } part;
    /* words that become enums of `o` */
    const char *optimizer, *lr_schedule, *lr_scaling, *allreduce_dtype;
    const char *device, *comm, *precision;
    const char *kfac_fisher, *kfac_scaling;
    dsc_cli_kfac_values kfac;
    dsc_cli_gossip_values gossip;
    int threads, tune, overwrite, plot;
    char default_out[256];
} dsc_cli_train_values;

extern const dsc_option dsc_cli_train_options[];

/* Sets the defaults: those of dsc_train_options_init. */
void dsc_cli_train_init(void *values);
/* After parsing: completes `o` and refuses what this build cannot do. `set`: what was given. */
dsc_status dsc_cli_train_finish(dsc_cli_train_values *values, const dsc_option_set *set) DSC_MUST_CHECK;

#endif

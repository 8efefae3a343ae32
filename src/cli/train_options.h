/* The options of descent train: those of the library, and what the program adds. */
#ifndef DSC_CLI_TRAIN_OPTIONS_H
#define DSC_CLI_TRAIN_OPTIONS_H

#include "cli/cli.h"
#include "descent/train.h"

enum { DSC_CLI_OUT_SIZE = 1024 };

typedef struct dsc_cli_train_values {
    dsc_cli_common common;
    dsc_train_options o; /* its parts are the next three */
    dsc_optim_options optim;
    dsc_consensus_options consensus;
    dsc_kfac_options kfac;
    const char *device, *comm;
    int threads, tune, overwrite, plot, print_config, dry_run;
    double progress_every;
    char out_name
        [DSC_CLI_OUT_SIZE]; /* the output directory where it is not given; without a counter at first */
    int out_is_default;     /* 1: `o.out` is that name */
    int out_made;           /* 1: this command made it; 2: also the directory above it */
    char resume_directory[DSC_CLI_OUT_SIZE]; /* of a run whose options were restored */
    char changes[1024]; /* options of that run that were given another value, as text; "" for none */
    char lines[1024];   /* the program's own options, for the run's configuration file */
} dsc_cli_train_values;

/* Filled in by dsc_cli_train_init. */
extern dsc_option dsc_cli_train_options[];

/* Sets the defaults. */
void dsc_cli_train_init(void *values);
/* After parsing, with --resume DIR or FILE: options that were not given become those of that run, and the output
 * directory is DIR. */
dsc_status dsc_cli_train_restore(void *values, dsc_option_set *set) DSC_MUST_CHECK;
/* After parsing: completes `o` and refuses options that cannot work. `set`: the options that were given. */
dsc_status dsc_cli_train_finish(dsc_cli_train_values *values, const dsc_option_set *set) DSC_MUST_CHECK;
/* Opens the session that these options ask for (dsc_cli_open). Collective. */
dsc_status dsc_cli_train_open(dsc_cli_session *session, const dsc_cli_train_values *values) DSC_MUST_CHECK;
/* Reads the configuration file of a run into `out`, which is then completed as a command line's is. *found is 0
 * when there is no such file. *set owns the strings; the caller destroys it. */
dsc_status dsc_cli_train_read(const char *directory, dsc_cli_train_values *out, dsc_option_set **set,
                              int *found) DSC_MUST_CHECK;

/* ---- train_out.c ---- */
/* Fills in out_name: "runs/MODEL-DATA", followed by the given options that differ from their defaults. */
void dsc_cli_train_name(dsc_cli_train_values *values, const dsc_option_set *set);
/* Rank 0, where no output directory is given: chooses one. A run that resumes takes the newest directory of that
 * name whose configuration is this one's; any other, and one that finds none, the next free number, whose
 * directory is made unless this is a dry run. */
dsc_status dsc_cli_train_choose_out(dsc_cli_train_values *values) DSC_MUST_CHECK;
/* Rank 0, after a failure: removes the directories that were made, if they are empty. */
void dsc_cli_train_discard_out(const dsc_cli_train_values *values);

#endif

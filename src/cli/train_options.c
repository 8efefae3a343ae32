/* The options of descent train. */
#include "cli/train_options.h"

#include "cli/support.h"
#include "descent/model.h"

#include <stdio.h>
#include <string.h>

enum { MAX_OPTIONS = 256 };

#define AT(member) offsetof(dsc_cli_train_values, member)

static const dsc_option own_options[] = {
    {DSC_CLI_DEVICE(AT(device)), .flags = DSC_OPTION_MAY_CHANGE,
     .help = "where to compute; auto: a GPU if there is one; ref: slow reference code",
     .group = "Where to run"},
    {DSC_CLI_THREADS(AT(threads)), .flags = DSC_OPTION_MAY_CHANGE},
    {.name = "comm",
     .kind = DSC_OPTION_WORD,
     .offset = AT(comm),
     .flags = DSC_OPTION_MAY_CHANGE,
     .value = "auto",
     .choices = DSC_CLI_CHOICES("auto", "mpi", "mpi:openmpi", "mpi:mpich", "nccl", "self"),
     .help = "how tensors of GPUs are sent between ranks; mpi copies them over the host; auto: nccl if "
             "every rank has a GPU of its own, mpi for adpsgd; mpi:openmpi and mpi:mpich: mpi with that "
             "library, not the launcher's; self: this process alone, whatever has started it"},
    {.name = "tune",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(tune),
     .flags = DSC_OPTION_MAY_CHANGE,
     .help = "on a GPU, time the algorithms for each convolution at the start and keep the fastest; a run "
             "that is resumed keeps its choices"},
    {.name = "overwrite",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(overwrite),
     .flags = DSC_OPTION_NOT_SAVED,
     .help = "remove a run that is in the output directory",
     .group = "Output"},
    {.name = "plot",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(plot),
     .flags = DSC_OPTION_NOT_SAVED,
     .help = "plot the accuracy over the epochs at the end"},
    {.name = "progress-every",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(progress_every),
     .flags = DSC_OPTION_MAY_CHANGE,
     .value = "10",
     .placeholder = "S",
     .range = "[0, 1e9]",
     .help = "without a terminal, seconds between lines about the steps; 0: none"},
    {.name = "print-config",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(print_config),
     .flags = DSC_OPTION_NOT_SAVED,
     .help = "print all options as {config} reads them, and end"},
    {.name = "dry-run",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(dry_run),
     .flags = DSC_OPTION_NOT_SAVED,
     .help = "check everything, print memory and time per step, and end; nothing is written"},
    DSC_CLI_COMMON_OPTIONS,
};

dsc_option dsc_cli_train_options[MAX_OPTIONS];

/* All options under the headings of dsc_train_option_table, in its order; under each heading, those of
 * optim, consensus and kfac come first. */
static dsc_status join_options(void) {
    dsc_option all[MAX_OPTIONS] = {{.name = NULL}}, train[MAX_OPTIONS] = {{.name = NULL}};
    int count = 0;
    DSC_CLI_TRY(dsc_option_join(all, MAX_OPTIONS, dsc_optim_option_table(), AT(optim),
                                sizeof(dsc_optim_options), NULL));
    DSC_CLI_TRY(dsc_option_join(all, MAX_OPTIONS, dsc_consensus_option_table(), AT(consensus),
                                sizeof(dsc_consensus_options), NULL));
    DSC_CLI_TRY(
        dsc_option_join(all, MAX_OPTIONS, dsc_kfac_option_table(), AT(kfac), sizeof(dsc_kfac_options), NULL));
    DSC_CLI_TRY(
        dsc_option_join(all, MAX_OPTIONS, dsc_train_option_table(), AT(o), sizeof(dsc_train_options), NULL));
    DSC_CLI_TRY(dsc_option_join(all, MAX_OPTIONS, own_options, 0, SIZE_MAX, NULL));
    DSC_CLI_TRY(
        dsc_option_join(train, MAX_OPTIONS, dsc_train_option_table(), 0, sizeof(dsc_train_options), NULL));
    DSC_CLI_TRY(dsc_option_join(train, MAX_OPTIONS, own_options, 0, SIZE_MAX, NULL));
    for (int t = 0; train[t].name; t++) {
        int seen = 0;
        for (int before = 0; before < t; before++)
            seen |= strcmp(train[before].group, train[t].group) == 0;
        for (int i = 0; !seen && all[i].name; i++)
            if (strcmp(all[i].group, train[t].group) == 0)
                dsc_cli_train_options[count++] = all[i];
    }
    dsc_cli_train_options[count].name = NULL;
    return DSC_OK;
}

void dsc_cli_train_init(void *values) {
    dsc_cli_train_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_train_options_init(&v->o);
    dsc_optim_options_init(&v->optim);
    dsc_consensus_options_init(&v->consensus);
    dsc_kfac_options_init(&v->kfac);
    if (join_options() == DSC_OK)
        dsc_option_defaults(dsc_cli_train_options, v);
    v->o.optim = &v->optim;
    v->o.consensus = &v->consensus;
    v->o.kfac = &v->kfac;
}

/* Refuses options that need a GPU if the device is a CPU. */
static dsc_status check_supported(const dsc_cli_train_values *v) {
    int host = strcmp(v->device, "cpu") == 0 || strcmp(v->device, "ref") == 0;
    const char *precision = dsc_dtype_name(v->o.activations);
    if (host && v->tune)
        return DSC_CLI_FAIL(
            DSC_E_UNSUPPORTED,
            "--tune: device %s has nothing to tune; use --device cuda or leave the option out", v->device);
    if (host && v->o.activations != DSC_F32)
        return DSC_CLI_FAIL(
            DSC_E_UNSUPPORTED,
            "--precision %s: device %s computes in fp32 only; use --device cuda or leave the option "
            "out (gradients alone can travel as %s: --allreduce-dtype %s)",
            precision, v->device, precision, precision);
    return DSC_OK;
}

/* Defaults that depend on other options. */
static void complete(dsc_cli_train_values *v, const dsc_option_set *set) {
    if (v->o.lr < 0)
        v->o.lr = dsc_optim_default_rate(v->optim.kind);
    if (v->o.out && strcmp(v->o.out, "none") == 0) {
        v->o.out = NULL;
    } else if (!v->o.out) {
        v->out_is_default = 1;
        v->o.out = v->out_name;
    }
    v->o.overwrite = v->overwrite;
    if (v->o.on_peer_loss == DSC_PEER_LOSS_CONTINUE && !dsc_option_given(set, "peer-timeout"))
        v->consensus.peer_timeout = 60; /* without a limit no rank would ever count as lost */
    if (!dsc_option_given(set, "kfac-bucket-mb"))
        v->kfac.bucket_bytes = v->consensus.bucket_bytes;
    FILE *lines = fmemopen(v->lines, sizeof v->lines, "w");
    if (lines) {
        dsc_option_write(own_options, v, lines);
        fclose(lines);
    }
    v->o.config_lines = v->lines;
}

dsc_status dsc_cli_train_finish(dsc_cli_train_values *v, const dsc_option_set *set) {
    int64_t side, channels, classes;
    DSC_CLI_TRY(check_supported(v));
    DSC_CLI_TRY(dsc_zoo_default_input(v->o.model, &side, &channels, &classes));
    if (v->overwrite && v->o.resume)
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "--overwrite and --resume %s exclude each other: a run is either started anew "
                            "or continued",
                            v->o.resume);
    DSC_CLI_TRY(dsc_option_check_given(set, v, "--"));
    dsc_cli_train_name(v, set);
    complete(v, set);
    return dsc_train_check(&v->o, "--");
}

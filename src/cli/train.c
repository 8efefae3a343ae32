/* descent train: checks the output directory, trains, prints a summary. */
#include "cli/cli.h"
#include "cli/dry_run.h"
#include "cli/progress_bar.h"
#include "cli/report_parts.h"
#include "cli/signals.h"
#include "cli/support.h"
#include "cli/terminal.h"
#include "cli/train_options.h"
#include "cli/watcher.h"
#include "descent/checkpoint.h"
#include "descent/version.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static dsc_status refuse_run(const char *out, const char *file) {
    return DSC_CLI_FAIL(
        DSC_E_INVALID,
        "--out %s: there is a run in it already (%s); go on with it (--resume auto), choose another "
        "directory (--out DIR) or remove it (--overwrite)",
        out, file);
}

/* Checks that the value of --resume exists: DIR, FILE or DIR:WHICH. */
static dsc_status check_resume(const char *resume) {
    char path[DSC_CLI_OUT_SIZE];
    struct stat info;
    if (!resume || strcmp(resume, "auto") == 0 || stat(resume, &info) == 0 || errno != ENOENT)
        return DSC_OK;
    DSC_CLI_TRY(dsc_checkpoint_directory(resume, path, sizeof path));
    if (strchr(resume, ':') && stat(path, &info) == 0)
        return DSC_OK;
    return DSC_CLI_FAIL(DSC_E_INVALID,
                        "--resume: cannot read '%s': no such file or directory; name the directory of a run, "
                        "or a checkpoint in it",
                        resume);
}

/* Rank 0: chooses the output directory and prints its name. Refuses one that holds a run, unless that run shall be
 * resumed or removed. */
static dsc_status prepare_out(dsc_cli_train_values *v) {
    char file[300] = "";
    DSC_CLI_TRY(check_resume(v->o.resume));
    if (!v->o.out)
        return DSC_OK;
    DSC_CLI_TRY(dsc_cli_train_choose_out(v));
    if (!v->out_is_default && !v->o.resume)
        DSC_CLI_TRY(dsc_train_find_run(v->o.out, file, sizeof file));
    if (file[0] && !v->overwrite)
        return refuse_run(v->o.out, file);
    printf("output: %s%s\n", v->o.out, v->dry_run ? " (nothing is written)" : "");
    if (v->resume_directory[0])
        printf("options: those of %s/config%s%s\n", v->resume_directory, v->changes[0] ? ", but " : "",
               v->changes);
    fflush(stdout);
    return DSC_OK;
}

/* Prints the configuration as the run would write it into its directory. */
static void print_config(dsc_cli_train_values *v) {
    if (v->out_is_default)
        v->o.out = NULL;
    printf("# The options of a run of descent %s; `descent train --config` reads them.\n", dsc_version());
    dsc_option_write(dsc_cli_train_options, v, stdout);
}

/* "validation loss 0.1234 (best 0.1200)", or words instead of a number that is not finite or does not exist. */
static const char *val_loss_text(const dsc_train_result *r, char *text, size_t size) {
    char last[32] = "not finite", best[32] = "none";
    if (isfinite(r->val_loss))
        snprintf(last, sizeof last, "%.4f", r->val_loss);
    if (r->best_loss >= 0)
        snprintf(best, sizeof best, "%.4f", r->best_loss);
    snprintf(text, size, "validation loss %s (best %s)", last, best);
    return text;
}

static void print_result(const dsc_train_result *r) {
    char loss[96], best[32] = "none";
    if (isfinite(r->train_loss))
        printf("result: training loss %.4g", r->train_loss);
    else
        printf("result: training loss not finite");
    if (r->best_top1 >= 0)
        snprintf(best, sizeof best, "%.2f %%", 100 * r->best_top1);
    if (r->top1 >= 0 && (r->positions > 1 || !isfinite(r->val_loss)))
        printf(", %s", val_loss_text(r, loss, sizeof loss));
    if (r->top1 < 0 || !isfinite(r->val_loss)) /* what such a model chooses says nothing */
        printf("\n");
    else if (r->tokens > 0)
        printf(", perplexity %.4g, top-1 %.2f %%\n", exp(r->val_loss), 100 * r->top1);
    else if (r->positions > 1)
        printf(", pixel error %.2f %%\n", 100 * (1 - r->top1));
    else
        printf(", top-1 %.2f %% (best %s), top-5 %.2f %%\n", 100 * r->top1, best, 100 * r->top5);
}

static void print_summary(const dsc_cli_train_values *v, const dsc_train_result *r) {
    char seconds[32], use[32];
    int length = printf(
        "done: %lld %s, %lld %s in %s, %.0f %s/s", (long long)r->epochs, r->epochs == 1 ? "epoch" : "epochs",
        (long long)r->steps, r->steps == 1 ? "step" : "steps",
        dsc_cli_duration(r->seconds, seconds, sizeof seconds),
        r->images_per_s * (double)(r->tokens > 0 ? r->tokens : 1), r->tokens > 0 ? "tokens" : "images");
    length += snprintf(use, sizeof use, ", mfu %.1f %%", 100 * r->mfu);
    printf("%s\n", r->mfu > 0 && length < dsc_terminal_width(stdout) ? use : "");
    print_result(r);
    if (r->stopped == DSC_STOP_TARGET)
        printf("reached: %s after %s\n", v->o.stop_at,
               dsc_cli_duration(r->target_s, seconds, sizeof seconds));
    else if (r->stopped == DSC_STOP_PATIENCE)
        printf("stopped: no %s in %lld evaluations\n", r->positions > 1 ? "lower loss" : "better top-1",
               (long long)v->o.patience);
    if (v->o.out)
        printf("written: %s\n", v->o.out);
}

/* Plots the run from its file of metrics, which also has the epochs before a resume. */
static dsc_status plot_run(const char *out) {
    dsc_runlog *log = NULL;
    DSC_CLI_TRY(dsc_runlog_read(out, &log));
    dsc_status status = dsc_report_plot(stdout, &log, 1, DSC_REPORT_AUTO, DSC_REPORT_EPOCH);
    dsc_runlog_destroy(&log);
    return status;
}

static dsc_status train(dsc_cli_session *session, dsc_cli_train_values *v) {
    dsc_cli_progress progress;
    dsc_train_result result = {.size = sizeof result};
    dsc_cli_progress_init(&progress, v->common.verbose, v->progress_every);
    v->o.progress = dsc_cli_progress_event;
    v->o.progress_context = &progress;
    dsc_status status = dsc_train_run(session->comm, session->device, &v->o, &result);
    dsc_cli_progress_end(&progress);
    DSC_CLI_TRY(status);
    if (result.rank != 0)
        return DSC_OK;
    print_summary(v, &result);
    if (v->o.out && v->plot)
        DSC_CLI_TRY(plot_run(v->o.out));
    return DSC_OK;
}

/* Chooses MPI where NCCL cannot be used: adpsgd communicates in no fixed order, and NCCL cannot continue after the loss
 * of a rank. */
static dsc_status find_comm(const dsc_cli_train_values *v, const char **comm) {
    int survive = v->o.on_peer_loss == DSC_PEER_LOSS_CONTINUE;
    int apart = v->consensus.kind == DSC_CONSENSUS_ADPSGD;
    *comm = v->comm;
    if (survive && strcmp(v->comm, "nccl") == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "--on-peer-loss continue does not go with --comm nccl, which cannot go on after "
                            "the loss of a rank: give --comm mpi, or --on-peer-loss stop");
    if ((survive || apart) && strcmp(v->comm, "auto") == 0)
        *comm = "mpi";
    return DSC_OK;
}

dsc_status dsc_cli_train_open(dsc_cli_session *session, const dsc_cli_train_values *v) {
    const char *comm;
    DSC_CLI_TRY(find_comm(v, &comm));
    session->several_threads = v->consensus.kind == DSC_CONSENSUS_ADPSGD; /* one of them averages */
    session->survive = v->o.on_peer_loss == DSC_PEER_LOSS_CONTINUE;
    session->timeout = v->consensus.peer_timeout;
    session->tune = v->tune;
    return dsc_cli_open(session, v->device, v->threads, comm);
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    dsc_cli_train_values *v = values;
    DSC_CLI_TRY(dsc_cli_train_finish(v, set));
    if (v->print_config) {
        if (dsc_cli_prints(session))
            print_config(v);
        return DSC_OK;
    }
    /* Where the other ranks continue without this one, they write the end. */
    int watched =
        v->o.out && !v->dry_run && dsc_cli_prints(session) && v->o.on_peer_loss == DSC_PEER_LOSS_STOP;
    int watcher = watched ? dsc_watcher_start() : -1;
    DSC_CLI_TRY(dsc_cli_catch_signals());
    DSC_CLI_TRY(dsc_cli_train_open(session, v));
    int prints = dsc_cli_prints(session);
    dsc_status status = dsc_cli_agree(session, prints ? prepare_out(v) : DSC_OK);
    if (status == DSC_OK && watched)
        dsc_watcher_watch(watcher, v->o.out);
    if (status == DSC_OK)
        status = v->dry_run ? dsc_cli_dry_run(session, v) : train(session, v);
    dsc_watcher_end(watcher);
    if (status != DSC_OK && prints)
        dsc_cli_train_discard_out(v);
    return status;
}

const dsc_cli_command dsc_cli_train = {
    .name = "train",
    .summary = "train a model",
    .description =
        "Trains a model of the zoo in one process or, under mpirun, on all ranks of a job. Without options "
        "it trains resnet20 on synthetic images, which need no files.\n\n"
        "Ranks average their gradients in every step or, with another --consensus, gossip: each rank has "
        "parameters of its own and mixes them with those of a few peers, so that no rank waits for all "
        "others. The average of all ranks is evaluated and saved.\n\n"
        "A run writes metrics.jsonl (one JSON object per line) and checkpoints into its output directory: "
        "checkpoint-STEP.safetensors holds the model under PyTorch's names, "
        "checkpoint-STEP.state.safetensors everything else. A run that is there already is only overwritten "
        "with --overwrite. Without --out every run gets a directory of its own, named after its options and "
        "numbered.\n\n"
        "The file `config` in that directory holds all options, as --config reads them. --resume DIR goes on "
        "with all options of the run in DIR; options that are given as well replace them, which is reported. "
        "Model, optimiser and image size cannot change.\n\n"
        "With --kfac-update-freq the gradient is preconditioned by K-FAC before the update, with any "
        "optimiser; the options below it say how, and how the work is divided among the ranks.\n\n"
        "SIGINT, SIGTERM and SIGUSR1 end it after the current step (gossip: within some steps) with a "
        "checkpoint and exit status 3; --resume continues from there with the same bits as a run that never "
        "stopped. A second SIGINT or SIGTERM, more than a second after the first, ends it at once.",
    .examples =
        "descent train --model lenet --epochs 3\n"
        "descent train --model resnet32 --data cifar10:data --epochs 100 --lr-decay 35 75 90\n"
        "mpirun -n 4 descent train --model resnet32 --data cifar10:data --kfac-update-freq 10 "
        "--lr-decay 35 75 90\n"
        "mpirun -n 4 descent train --model resnet20 --data cifar10:data --out out --resume auto\n"
        "descent train --resume out --epochs 120\n"
        "descent train --model resnet32 --data cifar10:data --kfac-update-freq 10 --dry-run\n"
        "mpirun -n 8 descent train --model resnet20 --data cifar10:data --consensus osgp --synch-freq 2\n"
        "descent train --config resnet32.conf --seed 7\n",
    .options = dsc_cli_train_options,
    .values_size = sizeof(dsc_cli_train_values),
    .computes = 1,
    .init = dsc_cli_train_init,
    .restore = dsc_cli_train_restore,
    .run = run,
};

/* A run that is only tried: everything is created as for training, and a few steps are timed. */
#include "cli/dry_run.h"

#include "cli/progress_bar.h"
#include "cli/support.h"
#include "descent/checkpoint.h"
#include "descent/trainer.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { STEPS = 6 }; /* the first one is not timed: it plans, and K-FAC decomposes in it */

typedef struct trial {
    const dsc_cli_train_values *v;
    dsc_cli_progress progress;
    const char *resume; /* rank 0: the checkpoint to continue from; NULL: none */
    char checkpoint[DSC_CLI_OUT_SIZE];
    int64_t epoch_steps;
    int64_t tokens;      /* of a sample; 0: images */
    double step_s;       /* mean of the timed steps; 0: there was none */
    double decompose_ms; /* of the longest decomposition */
} trial;

/* Shows how the run would begin, and keeps the number of steps of an epoch. */
static void note(void *context, const dsc_progress *p) {
    trial *t = context;
    t->tokens = p->tokens;
    if (p->kind == DSC_EVENT_STEP)
        t->epoch_steps = p->epoch_steps;
    else if (p->kind == DSC_EVENT_START || p->kind == DSC_EVENT_NOTE)
        dsc_cli_progress_event(&t->progress, p);
}

/* Rank 0: finds the checkpoint that --resume auto stands for and names it, because "auto" looks into the output
 * directory of a run, and this run has none. */
static dsc_status find_checkpoint(trial *t) {
    const dsc_cli_train_values *v = t->v;
    t->resume = v->o.resume;
    if (!v->o.resume || strcmp(v->o.resume, "auto") != 0)
        return DSC_OK;
    DSC_CLI_TRY(dsc_checkpoint_find_intact(v->o.out, t->checkpoint, sizeof t->checkpoint));
    t->resume = t->checkpoint[0] ? t->checkpoint : NULL;
    return DSC_OK;
}

static dsc_status take_steps(dsc_trainer *trainer, trial *t) {
    dsc_step_report report = {.size = sizeof report};
    double begun = 0;
    int timed = 0;
    for (int i = 0; i < STEPS && !dsc_trainer_is_done(trainer); i++) {
        if (i == 1)
            begun = dsc_cli_now();
        DSC_CLI_TRY(dsc_trainer_step(trainer, &report));
        if (i == 0)
            DSC_CLI_TRY(dsc_trainer_finish(trainer, &report));
        double ms = report.phase_ms[DSC_PHASE_DECOMPOSE];
        t->decompose_ms = ms > t->decompose_ms ? ms : t->decompose_ms;
        timed = i;
    }
    DSC_CLI_TRY(dsc_trainer_finish(trainer, &report));
    t->step_s = timed > 0 ? (dsc_cli_now() - begun) / timed : report.seconds;
    return DSC_OK;
}

static void print_time(const trial *t, int ranks) {
    const dsc_cli_train_values *v = t->v;
    if (t->epoch_steps == 0) {
        printf("steps: none is left\n");
        return;
    }
    int64_t every = v->kfac.update_freq, steps = t->epoch_steps * v->o.epochs;
    double step_s = t->step_s + (every > STEPS ? 1e-3 * t->decompose_ms / (double)every : 0);
    double samples = (double)(v->o.batch_size * v->o.batches_per_allreduce * ranks);
    char epoch[32], all[32];
    if (v->o.steps > 0 && v->o.steps < steps)
        steps = v->o.steps;
    printf("steps: %lld per epoch, %lld in all\n", (long long)t->epoch_steps, (long long)steps);
    const int of_text = t->tokens > 0, digits = step_s < 0.1 ? 1 : 0;
    const double rate = samples * (of_text ? (double)t->tokens : 1) / step_s;
    printf("time: %.*f ms per step, %.0f %s/s, %s per epoch, %s in all (without evaluations)\n", digits,
           1e3 * step_s, rate, of_text ? "tokens" : "images",
           dsc_cli_duration(step_s * (double)t->epoch_steps, epoch, sizeof epoch),
           dsc_cli_duration(step_s * (double)steps, all, sizeof all));
}

/* Prints the peak memory of this process, and how much of it K-FAC uses. */
static void print_memory(dsc_trainer *trainer, const dsc_device *device) {
    struct rusage use = {.ru_maxrss = 0};
    getrusage(RUSAGE_SELF, &use);
    printf("memory: %.0f MB per rank at the peak", (double)use.ru_maxrss * 1024e-6);
    if (!dsc_device_is_host(device))
        printf(", and %.0f MB of its GPU", (double)dsc_device_peak_bytes(device) * 1e-6);
    dsc_kfac_memory m = {.size = sizeof m};
    if (dsc_trainer_kfac(trainer) && dsc_kfac_get_memory(dsc_trainer_kfac(trainer), &m) == DSC_OK)
        printf(", %.0f MB of that for K-FAC",
               1e-6 *
                   (double)(m.factors[0] + m.factors[1] + m.batches[0] + m.batches[1] + m.decompositions[0] +
                            m.decompositions[1] + m.outer_products + m.moments + m.norms + m.work));
    printf("\n");
}

static dsc_status try_out(dsc_cli_session *session, trial *t) {
    dsc_train_options o = t->v->o;
    dsc_trainer *trainer = NULL;
    o.resume = t->resume;
    o.out = o.tensorboard = o.trace = NULL;
    o.progress = note;
    o.progress_context = t;
    DSC_CLI_TRY(dsc_trainer_create_named(session->comm, session->device, &o, &trainer));
    dsc_trainer_time_phases(trainer, 1);
    dsc_status status = take_steps(trainer, t);
    if (status == DSC_OK && dsc_cli_prints(session)) {
        print_time(t, dsc_comm_size(session->comm));
        print_memory(trainer, session->device);
    }
    dsc_trainer_destroy(&trainer);
    return status;
}

dsc_status dsc_cli_dry_run(dsc_cli_session *session, const dsc_cli_train_values *values) {
    trial t = {.v = values}; /* rank 0 chooses the checkpoint */
    dsc_status status = dsc_train_probe_files(&values->o, dsc_comm_rank(session->comm));
    if (status == DSC_OK && dsc_cli_prints(session))
        status = find_checkpoint(&t);
    DSC_CLI_TRY(dsc_cli_agree(session, status));
    dsc_cli_progress_init(&t.progress, values->common.verbose, 0);
    status = try_out(session, &t);
    dsc_cli_progress_end(&t.progress);
    return status;
}

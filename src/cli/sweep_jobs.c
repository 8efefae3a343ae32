/* Starts the trainings of a sweep, watches them, stops them.
 *
 * Signals are blocked and waited for in the loop. Every training is a process group of its own, so that Ctrl-C in a
 * terminal reaches the sweep alone, which asks each training once. A training gets SIGTERM when the sweep is killed. */
#include "cli/sweep_jobs.h"
#include "cli/cli.h"
#include "cli/files.h"
#include "cli/support.h"
#include "cli/sweep_places.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PATH = 4096, MAX_WORDS = 64 };

static const double impatience =
    30; /* seconds after which a launcher that was asked to stop is asked by SIGTERM */

const char *dsc_sweep_path(const dsc_sweep *sweep, int64_t run, const char *ending, char *path, size_t size) {
    snprintf(path, size, "%s/%s%s", sweep->out, sweep->plan->runs[run].name, ending);
    return path;
}

static void say(const dsc_sweep *sweep, const char *what, int64_t run, const char *text) {
    int64_t ended = 0;
    for (int64_t i = 0; i < sweep->plan->count; i++)
        ended += sweep->states[i] > DSC_SWEEP_RUNNING;
    printf("[%lld/%lld] %s: %s%s%s\n", (long long)ended, (long long)sweep->plan->count, what,
           sweep->plan->runs[run].name, *text ? ": " : "", text);
    fflush(stdout);
}

/* ---- starting ---- */

/* Lets the next process see only the GPUs of its place. */
static dsc_status choose_gpus(const dsc_sweep *sweep, int place) {
    char chosen[MAX_PATH];
    if (sweep->gpus == 0)
        return DSC_OK;
    dsc_sweep_gpus_of(place, sweep->jobs, sweep->gpus, sweep->gpu_names, chosen, sizeof chosen);
    if (setenv("CUDA_VISIBLE_DEVICES", chosen, 1) != 0)
        return DSC_CLI_FAIL(DSC_E_MEMORY, "no memory for the environment");
    return DSC_OK;
}

/* The texts that a command line is made of. */
typedef struct command {
    char launcher[MAX_PATH], program[MAX_PATH], config[MAX_PATH], out[MAX_PATH], threads[32];
    char *words[MAX_WORDS];
} command;

static dsc_status make_command(const dsc_sweep *sweep, int64_t run, command *c) {
    char *save = NULL;
    int count = 0;
    ssize_t length = readlink("/proc/self/exe", c->program, sizeof c->program - 1);
    if (length < 0)
        return DSC_CLI_FAIL(DSC_E_IO, "cannot find the program itself: /proc/self/exe: %s", strerror(errno));
    c->program[length] = '\0';
    snprintf(c->launcher, sizeof c->launcher, "%s", sweep->launcher);
    for (char *word = strtok_r(c->launcher, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
        if (count == MAX_WORDS - 11)
            return DSC_CLI_FAIL(DSC_E_INVALID, "--launcher: more than %d words", MAX_WORDS - 11);
        c->words[count++] = word;
    }
    dsc_sweep_path(sweep, run, ".conf", c->config, sizeof c->config);
    dsc_sweep_path(sweep, run, "", c->out, sizeof c->out);
    static char train[] = "train", config[] = "--config", out[] = "--out", resume[] = "--resume",
                automatic[] = "auto", threads[] = "--threads";
    char *const rest[] = {c->program, train, config, c->config, out, c->out, resume, automatic};
    memcpy(c->words + count, rest, sizeof rest);
    count += (int)(sizeof rest / sizeof rest[0]);
    if (sweep->threads > 0) {
        snprintf(c->threads, sizeof c->threads, "%d", sweep->threads);
        c->words[count++] = threads;
        c->words[count++] = c->threads;
    }
    c->words[count] = NULL;
    return DSC_OK;
}

/* In the new process: executes the training, or writes into its log why it cannot. */
static void become(const command *c, int log, pid_t parent) {
    sigset_t none;
    int in = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || in < 0 || dup2(in, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
        dup2(log, STDERR_FILENO) < 0)
        _exit(126);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    execvp(c->words[0], c->words);
    dprintf(STDERR_FILENO, "descent: cannot start '%s': %s\n", c->words[0], strerror(errno));
    _exit(127);
}

static dsc_status start(dsc_sweep *sweep, int place, int64_t run) {
    char path[MAX_PATH];
    command c;
    DSC_CLI_TRY(make_command(sweep, run, &c));
    DSC_CLI_TRY(choose_gpus(sweep, place));
    int log = open(dsc_sweep_path(sweep, run, ".log", path, sizeof path),
                   O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (log < 0)
        return DSC_CLI_FAIL(DSC_E_IO, "cannot write '%s': %s", path, strerror(errno));
    pid_t parent = getpid(), process = fork();
    if (process == 0)
        become(&c, log, parent);
    close(log);
    if (process < 0)
        return DSC_CLI_FAIL(DSC_E_IO, "cannot start a process: %s", strerror(errno));
    setpgid(process, process);
    double now = dsc_cli_now();
    sweep->places[place] =
        (dsc_sweep_job){.process = process, .run = run, .started = now, .next_read = now + 1, .median = NAN};
    sweep->states[run] = DSC_SWEEP_RUNNING;
    sweep->running++;
    say(sweep, "started", run, "");
    return DSC_OK;
}

static dsc_status start_waiting(dsc_sweep *sweep) {
    for (int place = 0; place < sweep->jobs; place++) {
        if (sweep->places[place].process != 0)
            continue;
        while (sweep->next < sweep->plan->count && sweep->states[sweep->next] != DSC_SWEEP_WAITING)
            sweep->next++;
        if (sweep->next < sweep->plan->count)
            DSC_CLI_TRY(start(sweep, place, sweep->next++));
    }
    return DSC_OK;
}

/* ---- ending ---- */

/* The last line in which a run's log reports an error, or its last line. */
static void find_message(const dsc_sweep *sweep, int64_t run, char *text, size_t size) {
    char path[MAX_PATH], *line = NULL;
    size_t capacity = 0;
    int found = 0;
    snprintf(text, size, "it left no message");
    FILE *log = fopen(dsc_sweep_path(sweep, run, ".log", path, sizeof path), "r");
    if (!log)
        return;
    for (ssize_t length; (length = getline(&line, &capacity, log)) > 0;) {
        int error = strncmp(line, "descent: ", 9) == 0 && strncmp(line, "descent: warning: ", 18) != 0;
        line[strcspn(line, "\n")] = '\0';
        if (error || (!found && *line))
            dsc_cli_clean(error ? line + 9 : line, text, size);
        found |= error;
    }
    free(line);
    fclose(log);
}

static dsc_status end_early(dsc_sweep *sweep, const dsc_sweep_job *job) {
    const dsc_sweep_curve *curve = &sweep->curves[job->run];
    char path[MAX_PATH], text[256], own[64], others[64];
    dsc_sweep_best_text(curve, curve->epochs > 0 ? curve->best[curve->epochs - 1] : NAN, own, sizeof own);
    dsc_sweep_best_text(curve, job->median, others, sizeof others);
    snprintf(text, sizeof text, "best %s after %lld epochs, the median of the others has %s", own,
             (long long)curve->epochs, others);
    sweep->states[job->run] = DSC_SWEEP_STOPPED;
    say(sweep, "stopped early", job->run, text);
    strcat(text, "\n");
    return dsc_cli_write_file(dsc_sweep_path(sweep, job->run, ".stopped", path, sizeof path), text);
}

static void end_done(dsc_sweep *sweep, const dsc_sweep_job *job) {
    const dsc_sweep_curve *curve = &sweep->curves[job->run];
    char text[128] = "", best[64], seconds[32];
    dsc_cli_duration(dsc_cli_now() - job->started, seconds, sizeof seconds);
    if (curve->epochs > 0)
        snprintf(text, sizeof text, "best %s, %s",
                 dsc_sweep_best_text(curve, curve->best[curve->epochs - 1], best, sizeof best), seconds);
    sweep->states[job->run] = DSC_SWEEP_DONE;
    say(sweep, "done", job->run, text);
}

/* Called when a process has ended. Launchers have exit statuses of their own, so the run's metrics decide its state. */
static dsc_status end_job(dsc_sweep *sweep, dsc_sweep_job *job, int code) {
    char path[MAX_PATH], state[16], text[DSC_CLI_TEXT];
    const dsc_sweep_job ended = *job;
    job->process = 0;
    sweep->running--;
    DSC_CLI_TRY(dsc_sweep_curve_read(dsc_sweep_path(sweep, ended.run, "", path, sizeof path),
                                     &sweep->curves[ended.run], state));
    if (code == 0) {
        end_done(sweep, &ended);
    } else if (strcmp(state, "stopped") == 0 && isfinite(ended.median)) {
        return end_early(sweep, &ended);
    } else if (sweep->stopping > 0 && strcmp(state, "failed") != 0 && strcmp(state, "diverged") != 0) {
        sweep->states[ended.run] = DSC_SWEEP_INTERRUPTED;
        say(sweep, "interrupted", ended.run, "");
    } else {
        find_message(sweep, ended.run, text, sizeof text);
        sweep->states[ended.run] = DSC_SWEEP_FAILED;
        say(sweep, "failed", ended.run, text);
    }
    return DSC_OK;
}

static dsc_status end_finished(dsc_sweep *sweep) {
    for (int place = 0; place < sweep->jobs; place++) {
        int status = 0;
        dsc_sweep_job *job = &sweep->places[place];
        if (job->process != 0 && waitpid(job->process, &status, WNOHANG) == job->process)
            DSC_CLI_TRY(end_job(sweep, job, WIFEXITED(status) ? WEXITSTATUS(status) : -1));
    }
    return DSC_OK;
}

/* ---- stopping ---- */

/* Asks a training to stop by SIGUSR1, which launchers pass on: some of them end their processes at once on SIGTERM. */
static void ask(const dsc_sweep *sweep, dsc_sweep_job *job) {
    if (job->process == 0 || job->asked > 0)
        return;
    job->asked = dsc_cli_now();
    kill(job->process, *sweep->launcher ? SIGUSR1 : SIGTERM);
}

/* Asks all trainings to stop; a second signal, more than a second later, ends them at once. */
static void stop_all(dsc_sweep *sweep) {
    double now = dsc_cli_now();
    int again = sweep->stopping > 0 && now - sweep->stopping > 1;
    if (sweep->stopping == 0) {
        sweep->stopping = now;
        printf("stopping: %d %s a checkpoint\n", sweep->running,
               sweep->running == 1 ? "run writes" : "runs write");
        fflush(stdout);
    }
    for (int place = 0; place < sweep->jobs; place++) {
        ask(sweep, &sweep->places[place]);
        if (again && sweep->places[place].process != 0)
            kill(sweep->places[place].process, SIGTERM);
    }
}

/* Sends SIGTERM to launchers that do not seem to pass SIGUSR1 on. */
static void ask_again(const dsc_sweep *sweep) {
    for (int place = 0; place < sweep->jobs && *sweep->launcher; place++) {
        dsc_sweep_job *job = &sweep->places[place];
        if (job->process != 0 && job->asked > 0 && dsc_cli_now() - job->asked > impatience) {
            job->asked = dsc_cli_now();
            kill(job->process, SIGTERM);
        }
    }
}

/* Stops runs by the median rule. Reading the metrics takes at most a twentieth of the time. */
static dsc_status watch(dsc_sweep *sweep) {
    for (int place = 0; place < sweep->jobs && sweep->early; place++) {
        dsc_sweep_job *job = &sweep->places[place];
        char path[MAX_PATH], state[16];
        double begun = dsc_cli_now(), median = NAN;
        if (job->process == 0 || job->asked > 0 || begun < job->next_read)
            continue;
        DSC_CLI_TRY(dsc_sweep_curve_read(dsc_sweep_path(sweep, job->run, "", path, sizeof path),
                                         &sweep->curves[job->run], state));
        double now = dsc_cli_now();
        job->next_read = now + fmax(0.5, 20 * (now - begun));
        if (strcmp(state, "running") != 0 ||
            !dsc_sweep_rule(sweep->curves, sweep->plan->count, job->run, sweep->grace, &median))
            continue;
        job->median = median;
        ask(sweep, job);
    }
    return DSC_OK;
}

/* ---- the loop ---- */

static dsc_status loop(dsc_sweep *sweep, const sigset_t *signals) {
    const struct timespec moment = {0, 200000000};
    for (;;) {
        DSC_CLI_TRY(end_finished(sweep));
        if (sweep->stopping == 0)
            DSC_CLI_TRY(start_waiting(sweep));
        if (sweep->running == 0)
            return DSC_OK;
        int number = sigtimedwait(signals, NULL, &moment);
        if (number > 0 && number != SIGCHLD)
            stop_all(sweep);
        ask_again(sweep);
        DSC_CLI_TRY(watch(sweep));
    }
}

/* After a failure of the sweep itself, a full disk for example: stops what runs and waits for it. */
static void abandon(dsc_sweep *sweep) {
    for (int place = 0; place < sweep->jobs; place++)
        ask(sweep, &sweep->places[place]);
    for (int place = 0; place < sweep->jobs; place++)
        while (sweep->places[place].process != 0 && waitpid(sweep->places[place].process, NULL, 0) < 0 &&
               errno == EINTR)
            ;
}

dsc_status dsc_sweep_run_all(dsc_sweep *sweep) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD};
    char message[DSC_CLI_TEXT];
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&signals, numbers[i]);
    if (sigprocmask(SIG_BLOCK, &signals, NULL) != 0)
        return DSC_CLI_FAIL(DSC_E_INTERNAL, "signals cannot be blocked: %s", strerror(errno));
    dsc_status status = loop(sweep, &signals);
    if (status != DSC_OK) {
        snprintf(message, sizeof message, "%s", dsc_error_message());
        abandon(sweep);
        return DSC_CLI_FAIL(status, "%s", message);
    }
    return DSC_OK;
}

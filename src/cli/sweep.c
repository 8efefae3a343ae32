/* descent sweep: trains with many sets of options, several at a time, and shows the runs side by side. */
#include "cli/cli.h"
#include "cli/files.h"
#include "cli/support.h"
#include "cli/sweep_jobs.h"
#include "cli/sweep_places.h"
#include "cli/train_options.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct sweep_values {
    dsc_cli_common common;
    const char *out, *launcher;
    int jobs, no_early_stop, dry_run;
    int64_t grace;
} sweep_values;

#define AT(member) offsetof(sweep_values, member)

enum { MAX_PATH = 4096, MAX_FILE_BYTES = 1 << 20, CPUS_OF_A_RUN = 4, PLOTTED_RUNS = 6 };

static const dsc_option options[] = {
    {.name = "jobs",
     .kind = DSC_OPTION_INT,
     .offset = AT(jobs),
     .placeholder = "N",
     .range = "[0, 256]",
     .default_text = "one per GPU, or per 4 CPUs",
     .help = "runs at a time, among which CPUs and GPUs are divided",
     .group = "Sweep"},
    {.name = "launcher",
     .kind = DSC_OPTION_STRING,
     .offset = AT(launcher),
     .placeholder = "TEXT",
     .help = "words that start every run, such as \"mpirun -n 2\""},
    {.name = "out",
     .kind = DSC_OPTION_STRING,
     .offset = AT(out),
     .placeholder = "DIR",
     .default_text = "runs/sweep-FILE",
     .help = "directory of the runs, each in a directory of its own"},
    {.name = "no-early-stop",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(no_early_stop),
     .help = "train all runs to their end, also those that were stopped early before"},
    {.name = "grace",
     .kind = DSC_OPTION_INT64,
     .offset = AT(grace),
     .value = "2",
     .placeholder = "N",
     .range = "[1, 1e9]",
     .help = "epochs after which a run may be stopped early"},
    {.name = "dry-run",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(dry_run),
     .help = "check the file and list the runs, start none"},
    DSC_CLI_COMMON_OPTIONS,
};

static void init(void *values) {
    memset(values, 0, sizeof(sweep_values));
    dsc_option_defaults(options, values);
}

/* ---- the options of the runs ---- */

/* What the runs' options mean for the sweep. */
typedef struct needs {
    int gpu;     /* 1: some run may use a GPU */
    int threads; /* 1: the runs say themselves how many threads they have */
} needs;

/* Reads a run's options as `descent train` does. */
static dsc_status check_run(const char *file, const dsc_sweep_run *run, needs *n, int64_t *epochs) {
    char message[DSC_CLI_TEXT];
    dsc_cli_train_values *v = NULL;
    dsc_option_set *set = NULL;
    DSC_CLI_TRY(dsc_cli_alloc(1, sizeof *v, &v));
    dsc_cli_train_init(v);
    dsc_status status =
        dsc_option_parse_text(dsc_cli_train_options, file, run->lined, strlen(run->lined), v, &set);
    if (status == DSC_OK) {
        v->o.out = "none"; /* so that the disk is not searched */
        *epochs = v->o.epochs;
        n->threads |= v->threads > 0;
        n->gpu |= strcmp(v->device, "cpu") != 0 && strcmp(v->device, "ref") != 0;
        status = dsc_cli_train_finish(v, set);
        snprintf(message, sizeof message, "%s", dsc_error_message());
        if (status != DSC_OK)
            status = DSC_CLI_FAIL(status, "%s: run %s: %s", file, run->name, message);
    }
    dsc_option_set_destroy(&set);
    dsc_cli_free(&v);
    return status;
}

static dsc_status read_plan(const char *file, dsc_sweep_plan *plan) {
    char *text = NULL;
    size_t length = 0;
    DSC_CLI_TRY(dsc_cli_read_file(file, "a sweep file", MAX_FILE_BYTES, &text, &length));
    dsc_status status = dsc_sweep_plan_parse(file, text, length, plan);
    dsc_cli_free(&text);
    return status;
}

/* ---- places ---- */

/* The CPUs that this process may use. */
static int count_cpus(void) {
    dsc_comm_options alone;
    dsc_comm *comm = NULL;
    dsc_comm_options_init(&alone);
    alone.kind = "self";
    int cpus = dsc_comm_create(&alone, &comm) == DSC_OK ? dsc_comm_threads(comm) : 1;
    dsc_comm_destroy(&comm);
    return cpus;
}

static void divide(const sweep_values *v, const needs *n, dsc_sweep *sweep) {
    int cpus = count_cpus();
    int ranks = dsc_sweep_ranks_of(sweep->launcher);
    const char *names = getenv("CUDA_VISIBLE_DEVICES");
    sweep->gpus = n->gpu ? dsc_device_count("cuda") : 0;
    sweep->gpu_names = names ? names : "";
    sweep->jobs = v->jobs;
    if (sweep->jobs == 0 && sweep->gpus > 0)
        sweep->jobs = sweep->gpus / ranks;
    else if (sweep->jobs == 0)
        sweep->jobs = cpus / (ranks > CPUS_OF_A_RUN ? ranks : CPUS_OF_A_RUN);
    if (sweep->jobs < 1)
        sweep->jobs = 1;
    if (sweep->jobs > sweep->plan->count)
        sweep->jobs = (int)sweep->plan->count;
    sweep->threads = n->threads ? 0 : cpus / (sweep->jobs * ranks);
    if (!n->threads && sweep->threads < 1)
        sweep->threads = 1;
}

/* ---- the directory ---- */

/* Locks the directory against a second sweep. The lock ends with the process. */
static dsc_status lock(const char *out, int *fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/sweep.lock", out);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0)
        return DSC_CLI_FAIL(DSC_E_IO, "cannot write '%s': %s", path, strerror(errno));
    if (fcntl(*fd, F_SETLK, &whole) != 0 && (errno == EACCES || errno == EAGAIN))
        return DSC_CLI_FAIL(
            DSC_E_INVALID,
            "--out %s: another sweep runs there; wait for its end, or choose another directory", out);
    return DSC_OK;
}

static void unlock(const char *out, int fd) {
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/sweep.lock", out);
    unlink(path);
    close(fd);
}

/* Compares the stored options of a run with those of now; *known becomes 1 when there are stored ones. */
static dsc_status check_stored(const dsc_sweep *sweep, int64_t run, int *known) {
    char path[MAX_PATH], *stored = NULL;
    size_t length = 0;
    const char *now = sweep->plan->runs[run].config;
    dsc_sweep_path(sweep, run, ".conf", path, sizeof path);
    dsc_status status = dsc_cli_read_file(path, "the options of a run", MAX_FILE_BYTES, &stored, &length);
    *known = status != DSC_E_NOT_FOUND;
    if (status == DSC_E_NOT_FOUND)
        return DSC_OK;
    DSC_CLI_TRY(status);
    const char *a = stored, *b = now;
    while (*a && strcspn(a, "\n") == strcspn(b, "\n") && strncmp(a, b, strcspn(a, "\n")) == 0) {
        a += strcspn(a, "\n") + (a[strcspn(a, "\n")] == '\n');
        b += strcspn(b, "\n") + (b[strcspn(b, "\n")] == '\n');
    }
    if (*a || *b)
        status = DSC_CLI_FAIL(
            DSC_E_INVALID,
            "%s: the run was started with other options ('%.*s', and now '%.*s'): choose another "
            "directory (--out DIR) or remove this one",
            path, (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b);
    dsc_cli_free(&stored);
    return status;
}

/* Finds the state of every run. Finished runs are only read. Writes nothing. */
static dsc_status find_states(dsc_sweep *sweep) {
    for (int64_t i = 0; i < sweep->plan->count; i++) {
        char path[MAX_PATH], state[16];
        int known = 0;
        DSC_CLI_TRY(check_stored(sweep, i, &known));
        if (!known)
            continue;
        DSC_CLI_TRY(
            dsc_sweep_curve_read(dsc_sweep_path(sweep, i, "", path, sizeof path), &sweep->curves[i], state));
        if (strcmp(state, "done") == 0)
            sweep->states[i] = DSC_SWEEP_DONE;
        else if (sweep->early && access(dsc_sweep_path(sweep, i, ".stopped", path, sizeof path), F_OK) == 0)
            sweep->states[i] = DSC_SWEEP_STOPPED;
    }
    return DSC_OK;
}

/* Writes the options of the runs that will start. */
static dsc_status write_options(const dsc_sweep *sweep) {
    for (int64_t i = 0; i < sweep->plan->count; i++) {
        char path[MAX_PATH];
        if (sweep->states[i] != DSC_SWEEP_WAITING)
            continue;
        DSC_CLI_TRY(dsc_cli_write_file(dsc_sweep_path(sweep, i, ".conf", path, sizeof path),
                                       sweep->plan->runs[i].config));
        unlink(dsc_sweep_path(sweep, i, ".stopped", path, sizeof path)); /* with --no-early-stop it goes on */
    }
    return DSC_OK;
}

/* ---- the result ---- */

static double best_of(const dsc_sweep *sweep, int64_t run) {
    const dsc_sweep_curve *c = &sweep->curves[run];
    return c->epochs > 0 && isfinite(c->best[c->epochs - 1]) ? c->best[c->epochs - 1] : -INFINITY;
}

/* The runs that have metrics, the best first. Returns their number. */
static int64_t rank_runs(const dsc_sweep *sweep, int64_t *order) {
    int64_t count = 0;
    for (int64_t i = 0; i < sweep->plan->count; i++) {
        char path[MAX_PATH];
        if (access(dsc_sweep_path(sweep, i, "/metrics.jsonl", path, sizeof path), R_OK) != 0)
            continue;
        int64_t at = count++;
        for (; at > 0 && best_of(sweep, order[at - 1]) < best_of(sweep, i); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return count;
}

/* Runs `descent report` with these words as its arguments. */
static dsc_status report(dsc_cli_session *session, char **words, int count) {
    void *values = NULL;
    dsc_option_set *set = NULL;
    DSC_CLI_TRY(dsc_cli_alloc(1, dsc_cli_report.values_size, &values));
    dsc_cli_report.init(values);
    dsc_status status = dsc_option_parse(dsc_cli_report.options, count, words, values, &set);
    if (status == DSC_OK)
        status = dsc_cli_report.run(session, values, set);
    dsc_option_set_destroy(&set);
    dsc_cli_free(&values);
    return status;
}

/* Prints the table of the runs, and writes a page if this build's report can. Called inside the sweep's directory, so
 * that runs have their short names. */
static dsc_status report_runs(dsc_cli_session *session, const dsc_sweep *sweep, const int64_t *order,
                              int64_t count) {
    static char no_plot[] = "--no-plot", html[] = "--html", end[] = "--";
    char page[MAX_PATH + 16], **words = NULL;
    DSC_CLI_TRY(dsc_cli_alloc(count + 3, sizeof *words, &words));
    for (int64_t i = 0; i < count; i++)
        words[3 + i] = sweep->plan->runs[order[i]].name;
    words[1] = no_plot;
    words[2] = end;
    printf("\n");
    int first = count > PLOTTED_RUNS ? 1 : 2; /* more curves than marks are hard to tell apart */
    dsc_status status = report(session, words + first, (int)count + 3 - first);
    if (status == DSC_OK && dsc_option_find(dsc_cli_report.options, "html") && getcwd(page, MAX_PATH)) {
        strcat(page, "/report.html"); /* the whole path, because it is printed */
        words[0] = html;
        words[1] = page;
        status = report(session, words, (int)count + 3);
    }
    dsc_cli_free(&words);
    return status;
}

static dsc_status show_runs(dsc_cli_session *session, const dsc_sweep *sweep, const int64_t *order,
                            int64_t count) {
    int back = open(".", O_RDONLY | O_CLOEXEC);
    if (back < 0 || chdir(sweep->out) != 0) {
        dsc_status status = DSC_CLI_FAIL(DSC_E_IO, "cannot enter '%s': %s", sweep->out, strerror(errno));
        if (back >= 0)
            close(back);
        return status;
    }
    dsc_status status = report_runs(session, sweep, order, count);
    if (fchdir(back) != 0 && status == DSC_OK)
        status = DSC_CLI_FAIL(DSC_E_IO, "cannot go back to the working directory: %s", strerror(errno));
    close(back);
    return status;
}

static dsc_status show(dsc_cli_session *session, const dsc_sweep *sweep) {
    int64_t *order = NULL, number[DSC_SWEEP_FAILED + 1] = {0};
    DSC_CLI_TRY(dsc_cli_alloc(sweep->plan->count, sizeof *order, &order));
    int64_t count = rank_runs(sweep, order);
    for (int64_t i = 0; i < sweep->plan->count; i++)
        number[sweep->states[i]]++;
    dsc_status status = count > 0 ? show_runs(session, sweep, order, count) : DSC_OK;
    if (count > 0 && isfinite(best_of(sweep, order[0]))) {
        char text[64];
        printf("\nbest: %s, %s\n", sweep->plan->runs[order[0]].name,
               dsc_sweep_best_text(&sweep->curves[order[0]], best_of(sweep, order[0]), text, sizeof text));
    }
    printf("%lld done, %lld stopped early, %lld failed, %lld not done; written: %s\n",
           (long long)number[DSC_SWEEP_DONE], (long long)number[DSC_SWEEP_STOPPED],
           (long long)number[DSC_SWEEP_FAILED],
           (long long)(number[DSC_SWEEP_INTERRUPTED] + number[DSC_SWEEP_WAITING]), sweep->out);
    dsc_cli_free(&order);
    if (sweep->stopping > 0)
        return DSC_CLI_FAIL(DSC_E_INTERRUPTED,
                            "stopped, as asked; the same command goes on with the runs that are not done");
    if (number[DSC_SWEEP_FAILED] > 0)
        return DSC_CLI_FAIL(
            DSC_E_IO, "%lld of %lld runs failed: %s/NAME.log says why; the same command tries them again",
            (long long)number[DSC_SWEEP_FAILED], (long long)sweep->plan->count, sweep->out);
    return status;
}

/* ---- the command ---- */

/* "runs/sweep-FILE", where FILE is the file's name without directories and ending. */
static const char *default_out(const char *file, char *out, size_t size) {
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file, *dot = strrchr(name, '.');
    snprintf(out, size, "runs/sweep-%.*s", (int)(dot && dot > name ? (size_t)(dot - name) : strlen(name)),
             name);
    return out;
}

static void list_runs(const dsc_sweep_plan *plan) {
    for (int64_t i = 0; i < plan->count; i++)
        printf("%s\n", plan->runs[i].name);
    printf("%lld %s%s\n", (long long)plan->count, plan->count == 1 ? "run" : "runs",
           plan->repeated > 0 ? " (values that were drawn twice count once)" : "");
}

static dsc_status run_sweep(dsc_cli_session *session, dsc_sweep *sweep) {
    int fd = -1;
    DSC_CLI_TRY(find_states(sweep));
    DSC_CLI_TRY(dsc_cli_make_directory(sweep->out));
    dsc_status status = lock(sweep->out, &fd);
    if (status != DSC_OK && fd >= 0)
        close(fd);
    DSC_CLI_TRY(status);
    char threads[48] = "";
    if (sweep->threads > 0)
        snprintf(threads, sizeof threads, ", %d %s each", sweep->threads,
                 sweep->threads == 1 ? "thread" : "threads");
    printf("sweep: %lld %s in %s, %d at a time%s\n", (long long)sweep->plan->count,
           sweep->plan->count == 1 ? "run" : "runs", sweep->out, sweep->jobs, threads);
    status = write_options(sweep);
    if (status == DSC_OK)
        status = dsc_sweep_run_all(sweep);
    unlock(sweep->out, fd);
    return status == DSC_OK ? show(session, sweep) : status;
}

static dsc_status plan_and_run(dsc_cli_session *session, const sweep_values *v, const char *file,
                               dsc_sweep *sweep) {
    const dsc_sweep_plan *plan = sweep->plan;
    needs n = {0};
    DSC_CLI_TRY(dsc_cli_alloc(plan->count, sizeof *sweep->curves, &sweep->curves));
    DSC_CLI_TRY(dsc_cli_alloc(plan->count, sizeof *sweep->states, &sweep->states));
    for (int64_t i = 0; i < plan->count; i++)
        DSC_CLI_TRY(check_run(file, &plan->runs[i], &n, &sweep->curves[i].planned));
    if (v->dry_run) {
        list_runs(plan);
        return DSC_OK;
    }
    divide(v, &n, sweep);
    DSC_CLI_TRY(dsc_cli_alloc(sweep->jobs, sizeof *sweep->places, &sweep->places));
    return run_sweep(session, sweep);
}

/* Fails under mpirun, where every rank would start all runs. */
static dsc_status refuse_ranks(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    for (int i = 0; names[i]; i++) {
        const char *size = getenv(names[i]);
        if (size && atoi(size) > 1)
            return DSC_CLI_FAIL(DSC_E_INVALID,
                                "sweep starts the trainings itself: run it without a launcher, and "
                                "give that as an option, --launcher \"mpirun -n %s\"",
                                size);
    }
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const sweep_values *v = values;
    const char *file = dsc_option_positional(set, 0);
    char out[MAX_PATH];
    dsc_sweep_plan plan = {0};
    if (dsc_option_positional_count(set) != 1)
        return DSC_CLI_FAIL(DSC_E_INVALID, "sweep needs one file: descent sweep FILE");
    DSC_CLI_TRY(refuse_ranks());
    dsc_sweep sweep = {.plan = &plan,
                       .out = v->out ? v->out : default_out(file, out, sizeof out),
                       .launcher = v->launcher ? v->launcher : "",
                       .early = !v->no_early_stop,
                       .grace = v->grace};
    if (strlen(sweep.out) > MAX_PATH - 256 || strlen(sweep.launcher) > MAX_PATH - 1)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--out or --launcher: longer than %d characters", MAX_PATH - 256);
    DSC_CLI_TRY(read_plan(file, &plan));
    dsc_status status = plan_and_run(session, v, file, &sweep);
    for (int64_t i = 0; i < plan.count && sweep.curves; i++)
        dsc_sweep_curve_free(&sweep.curves[i]);
    dsc_cli_free(&sweep.curves);
    dsc_cli_free(&sweep.states);
    dsc_cli_free(&sweep.places);
    dsc_sweep_plan_free(&plan);
    return status;
}

const dsc_cli_command dsc_cli_sweep = {
    .name = "sweep",
    .summary = "train with many sets of options and compare the runs",
    .arguments = "FILE",
    .description =
        "Trains once for every set of options that FILE describes, several at a time, and prints what "
        "descent report prints of the runs, the best first. FILE has lines key = value as --config reads "
        "them, for any option of train, where a value may also be one of\n\n"
        "grid A B C: every one of these, combined with all other grids (for repetitions: seed = grid 1 2 "
        "3);\n\n"
        "pick A B C: one of these, drawn; uniform LOW HIGH: a number drawn evenly; log LOW HIGH: a number "
        "whose logarithm is drawn evenly; int LOW HIGH: a whole number drawn evenly.\n\n"
        "Where values are drawn, samples = N says how often, at every point of the grids the same ones; "
        "draw-seed = N draws others. A larger N keeps the samples of a smaller one. A value with blanks in "
        "it stands in quotation marks. All runs are checked before the first one starts.\n\n"
        "A run named NAME, after what sets it apart, is trained by descent train in DIR/NAME with the "
        "options in DIR/NAME.conf, and prints to DIR/NAME.log. CPUs and GPUs are divided among the runs of "
        "a time (--threads and CUDA_VISIBLE_DEVICES are set for each). A run that fails is reported with "
        "its message, and the sweep goes on.\n\n"
        "Given again, the same command reads the runs that are done, goes on with interrupted ones and "
        "tries failed ones again. FILE may have got more values or samples; other values of the fixed "
        "options need another --out.\n\n"
        "The median rule stops bad runs early: after an evaluation, from --grace epochs on, a run ends "
        "(with a checkpoint, and DIR/NAME.stopped says why) when its best top-1 accuracy so far is below "
        "the median of what the other runs had after that epoch, and at least three others have come as "
        "far. Models of text and pixels are compared by their lowest loss.\n\n"
        "SIGINT, SIGTERM and SIGUSR1 stop all runs with a checkpoint and exit status 3; a second SIGINT or "
        "SIGTERM, more than a second later, ends them at once. The exit status is 1 when a run failed.",
    .examples = "descent sweep rates.sweep --jobs 2\n"
                "descent sweep kfac.sweep --launcher \"mpirun -n 2\" --out runs/kfac\n"
                "descent sweep rates.sweep --dry-run\n",
    .options = options,
    .values_size = sizeof(sweep_values),
    .init = init,
    .run = run,
};

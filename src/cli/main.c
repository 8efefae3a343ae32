/* The program `descent`: finds the command, runs it, prints an error if it fails and ends the job. */
#include "cli/cli.h"
#include "cli/help.h"
#include "cli/support.h"
#include "cli/terminal.h"
#include "descent/log.h"
#include "descent/version.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const dsc_cli_command *const dsc_cli_commands[] = {
    &dsc_cli_train, &dsc_cli_eval,     &dsc_cli_predict,  &dsc_cli_info,       &dsc_cli_list,
    &dsc_cli_bench, &dsc_cli_report,   &dsc_cli_average,  &dsc_cli_check_data, &dsc_cli_find_lr,
    &dsc_cli_sweep, &dsc_cli_tokenize, &dsc_cli_generate, &dsc_cli_completion, NULL};

/* The context of the log handler. */
typedef struct log_context {
    const dsc_cli_session *session;
    int verbose;
} log_context;

/* Prints a message on the standard error. On a terminal `start` has the colour `colour` (an ANSI number), words are not
 * cut in two, and a progress bar is erased, which is drawn again below the message. Elsewhere the message is written in
 * one piece, so that those of several ranks do not mix. */
static void print_message(const char *start, int colour, const char *text) {
    if (!dsc_terminal_is(stderr)) {
        fprintf(stderr, "descent: %s%s\n", start, text);
        return;
    }
    fputs("\r\033[Kdescent: ", stderr);
    if (dsc_terminal_colour(stderr) && *start)
        fprintf(stderr, "\033[1;%dm%s\033[0m", colour, start);
    else
        fputs(start, stderr);
    dsc_help_wrapped(stderr, text, (int)(strlen("descent: ") + strlen(start)), 2, dsc_terminal_width(stderr));
}

static void print_log(void *context, dsc_log_level level, const char *text) {
    const log_context *log = context;
    if (level == DSC_LOG_WARNING ? dsc_cli_prints(log->session) : log->verbose)
        print_message(level == DSC_LOG_WARNING ? "warning: " : "", 33, text);
}

static int exit_status(dsc_status status) {
    switch (status) {
    case DSC_OK:
        return DSC_EXIT_DONE;
    case DSC_E_INVALID:
    case DSC_E_NOT_FOUND:
    case DSC_E_FORMAT:
    case DSC_E_UNSUPPORTED:
        return DSC_EXIT_USAGE;
    case DSC_E_INTERRUPTED:
        return DSC_EXIT_INTERRUPTED;
    default:
        return DSC_EXIT_FAILED;
    }
}

/* A copy of the error, which communication between the ranks may overwrite. */
typedef struct failure {
    char message[DSC_CLI_TEXT], trace[DSC_CLI_TEXT];
} failure;

static void keep_failure(failure *f) {
    memset(f, 0, sizeof *f);
    snprintf(f->message, sizeof f->message, "%s", dsc_error_message());
    snprintf(f->trace, sizeof f->trace, "%s", dsc_error_trace());
}

static void print_failure(const failure *f, int verbose) {
    fflush(stdout);
    print_message("", 0, f->message);
    if (verbose)
        fprintf(stderr, "%s\n", f->trace);
    fflush(stderr);
}

static void print_error(int verbose) {
    failure f;
    keep_failure(&f);
    print_failure(&f, verbose);
}

/* The message after "rank R: ", and R (-1 when the message does not begin so). */
static const char *split_message(const char *message, int *rank) {
    int length = 0;
    *rank = -1;
    return sscanf(message, "rank %d: %n", rank, &length) == 1 && length > 0 ? message + length : message;
}

/* 1 when this rank's message only says that rank 0, whose message is `first`, has failed. The text may be cut off. */
static int is_stopped_by(const char *own, const char *first) {
    static const char stopped[] = "stopped by ";
    size_t length = sizeof stopped - 1;
    return strncmp(own, stopped, length) == 0 && strncmp(own + length, first, strlen(own + length)) == 0;
}

/* All ranks have failed: rank 0 prints its message, the others only a message that differs from it. */
static void print_together(dsc_cli_session *session, const failure *own, const char *first, int verbose) {
    int own_rank, first_rank;
    const char *own_text = split_message(own->message, &own_rank),
               *first_text = split_message(first, &first_rank);
    int mine = own_rank == dsc_comm_rank(session->comm) && !is_stopped_by(own_text, first);
    if (dsc_cli_prints(session) || (mine && strcmp(own_text, first_text) != 0))
        print_failure(own, verbose);
}

/* Prints the failure and ends the job. A failure that all ranks know of, such as a wrong option, is printed
 * once, and all ranks return. When only some ranks have failed, each of them prints its own and ends the
 * whole job. */
static int end_failed(dsc_cli_session *session, dsc_status status, int verbose) {
    int code = exit_status(status);
    char first[DSC_CLI_TEXT];
    failure own;
    keep_failure(&own);
    if (!session->comm || dsc_comm_size(session->comm) == 1 || session->agreed ||
        status == DSC_E_INTERRUPTED) {
        int alone = !session->comm && code != DSC_EXIT_USAGE; /* MPI did not start on this rank */
        if (dsc_cli_prints(session) || alone)
            print_failure(&own, verbose);
        return code;
    }
    memcpy(first, own.message, sizeof first);
    if (!dsc_cli_failed_together(session, first)) {
        print_failure(&own, verbose);
        dsc_comm_abort(session->comm, code);
    }
    print_together(session, &own, first, verbose);
    return code;
}

/* Output that cannot be written, on a full disk for example, is an error. A pipe whose reader has ended
 * (head, less) is not. */
static int end_output(int code) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    const int reason = errno; /* 0: an earlier write failed */
    const int closed = reason == EPIPE || (poll(&out, 1, 0) > 0 && out.revents & POLLERR);
    if (closed || code != DSC_EXIT_DONE)
        return code;
    fprintf(stderr, "descent: cannot write to the standard output: %s\n",
            reason ? strerror(reason) : "an earlier write failed");
    return DSC_EXIT_FAILED;
}

static int run_command(const dsc_cli_command *command, void *values, const dsc_option_set *set) {
    dsc_cli_session session = {0};
    const dsc_cli_common *common = values;
    log_context log = {&session, common->verbose};
    dsc_log_set_handler(print_log, &log);
    dsc_status status = command->run(&session, values, set);
    int code = status == DSC_OK ? DSC_EXIT_DONE : end_failed(&session, status, common->verbose);
    code = end_output(code);
    dsc_cli_close(&session);
    dsc_log_set_handler(NULL, NULL);
    return code;
}

/* For a wrong command line: every rank of a job finds the same error, so only rank 0 prints it. */
static int usage_error(const char *command) {
    const dsc_cli_session no_session = {0};
    if (dsc_cli_prints(&no_session)) {
        fprintf(stderr, "descent: %s\n", dsc_error_message());
        fprintf(stderr, "Try 'descent%s%s --help'.\n", *command ? " " : "", command);
    }
    return DSC_EXIT_USAGE;
}

static dsc_status parse_command(const dsc_cli_command *command, int argc, char *const *argv, void *values,
                                dsc_option_set **out) {
    dsc_option_set *set = NULL;
    command->init(values);
    DSC_CLI_TRY(dsc_option_parse(command->options, argc, argv, values, &set));
    if (!command->arguments && dsc_option_positional_count(set) > 0) {
        dsc_status status = DSC_CLI_FAIL(DSC_E_INVALID, "unexpected argument '%s': options start with --",
                                         dsc_option_positional(set, 0));
        dsc_option_set_destroy(&set);
        return status;
    }
    dsc_status status = DSC_OK;
    if (command->restore && !((const dsc_cli_common *)values)->help)
        status = command->restore(values, set);
    if (status != DSC_OK)
        dsc_option_set_destroy(&set);
    *out = set;
    return status;
}

static int start_command(const dsc_cli_command *command, int argc, char *const *argv) {
    const dsc_cli_session no_session = {0};
    void *values = NULL;
    dsc_option_set *set = NULL;
    int code;
    if (dsc_cli_alloc(1, command->values_size, &values) != DSC_OK) {
        print_error(0);
        return DSC_EXIT_FAILED;
    }
    if (parse_command(command, argc, argv, values, &set) != DSC_OK) {
        code = usage_error(command->name);
    } else if (((const dsc_cli_common *)values)->help) {
        command->init(values); /* the help prints defaults, not the values of this command line */
        if (dsc_cli_prints(&no_session))
            dsc_help_command(stdout, command, values, dsc_terminal_width(stdout));
        code = end_output(DSC_EXIT_DONE);
    } else {
        code = run_command(command, values, set);
    }
    dsc_option_set_destroy(&set);
    dsc_cli_free(&values);
    return code;
}

static const dsc_cli_command *find_command(const char *name) {
    for (int i = 0; dsc_cli_commands[i]; i++)
        if (strcmp(dsc_cli_commands[i]->name, name) == 0)
            return dsc_cli_commands[i];
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[32];
    char list[512] = "";
    int64_t count = 0;
    for (; dsc_cli_commands[count]; count++) {
        names[count] = dsc_cli_commands[count]->name;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", count ? ", " : "", names[count]);
    }
    const char *nearest = dsc_option_nearest(name, names, count);
    DSC_CLI_FAIL(DSC_E_INVALID, "unknown command '%s': known are %s%s%s%s", name, list,
                 nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
    return usage_error("");
}

/* `descent --man [COMMAND]`, for the build: writes a manual page. */
static int write_man(const char *name) {
    const dsc_cli_command *command = name ? find_command(name) : NULL;
    void *values = NULL;
    if (!name) {
        dsc_man_program(stdout);
        return end_output(DSC_EXIT_DONE);
    }
    if (!command)
        return unknown_command(name);
    if (dsc_cli_alloc(1, command->values_size, &values) != DSC_OK) {
        print_error(0);
        return DSC_EXIT_FAILED;
    }
    command->init(values);
    dsc_man_command(stdout, command, values);
    dsc_cli_free(&values);
    return end_output(DSC_EXIT_DONE);
}

/* Opens /dev/null in place of standard streams that are closed. Otherwise the next file to be opened would
 * get the lowest free descriptor, and what is printed would end up in that file. */
static void open_streams(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv) {
    const dsc_cli_session no_session = {0};
    open_streams();
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe fails instead of ending a training */
    if (argc < 2) {
        if (dsc_cli_prints(&no_session))
            dsc_help_program(stderr);
        return DSC_EXIT_USAGE;
    }
    const char *first = argv[1];
    if (strcmp(first, "--man") == 0)
        return write_man(argc > 2 ? argv[2] : NULL);
    if (strcmp(first, "help") == 0 && argc > 2) {
        const dsc_cli_command *wanted = find_command(argv[2]);
        char flag[] = "--help", *const help[] = {flag};
        return wanted ? start_command(wanted, 1, help) : unknown_command(argv[2]);
    }
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || strcmp(first, "help") == 0) {
        if (dsc_cli_prints(&no_session))
            dsc_help_program(stdout);
        return end_output(DSC_EXIT_DONE);
    }
    if (strcmp(first, "--version") == 0 || strcmp(first, "-V") == 0) {
        if (dsc_cli_prints(&no_session))
            printf("descent %s\n%s\n", dsc_version(), dsc_build_info());
        return end_output(DSC_EXIT_DONE);
    }
    const dsc_cli_command *command = find_command(first);
    if (command && command->computes)
        dsc_cli_settle_waiting(argv);
    return command ? start_command(command, argc - 2, argv + 2) : unknown_command(first);
}

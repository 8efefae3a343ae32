/* What the commands of the program share: how a command is described, the session it runs in, exit statuses.
 *
 * src/cli is the only code of the project that prints or exits. */
#ifndef DSC_CLI_CLI_H
#define DSC_CLI_CLI_H

#include "descent/comm.h"
#include "descent/options.h"

#include <stdio.h>

/* Exit statuses, part of the contract of the command line. */
enum { DSC_EXIT_DONE = 0, DSC_EXIT_FAILED = 1, DSC_EXIT_USAGE = 2, DSC_EXIT_INTERRUPTED = 3 };

/* First member of every command's values. */
typedef struct dsc_cli_common {
    int help, verbose;
    const char *config;
} dsc_cli_common;

/* The list of choices of an option, terminated by NULL. */
#define DSC_CLI_CHOICES(...)                                                                                 \
    (const char *const[]) {                                                                                  \
        __VA_ARGS__, NULL                                                                                    \
    }

/* Options that several commands have: the fields of their dsc_option. */
#define DSC_CLI_DEVICE(place)                                                                                \
    .name = "device", .kind = DSC_OPTION_WORD, .offset = (place), .value = "auto",                           \
    .choices = DSC_CLI_CHOICES("auto", "ref", "cpu", "cuda", "gpu")
#define DSC_CLI_THREADS(place)                                                                               \
    .name = "threads", .kind = DSC_OPTION_INT, .offset = (place), .placeholder = "N", .range = "[0, 4096]",  \
    .default_text = "the CPUs of this rank", .help = "CPU threads per rank"
#define DSC_CLI_BATCH_SIZE(place)                                                                            \
    .name = "batch-size", .kind = DSC_OPTION_INT64, .offset = (place), .value = "128", .placeholder = "N",   \
    .range = "[1, 1e9]"
#define DSC_CLI_FLOAT_TYPE(place)                                                                            \
    .kind = DSC_OPTION_CHOICE, .offset = (place), .value = "fp32",                                           \
    .choices = DSC_CLI_CHOICES("fp32", "bf16", "fp16"), .values = (const int[]) {                            \
        DSC_F32, DSC_BF16, DSC_F16                                                                           \
    }
#define DSC_CLI_JSON(place)                                                                                  \
    .name = "json", .kind = DSC_OPTION_FLAG, .offset = (place), .help = "print one JSON object"

/* The options of dsc_cli_common, for the end of every command's table. */
#define DSC_CLI_COMMON_OPTIONS                                                                               \
    {.name = "config",                                                                                       \
     .kind = DSC_OPTION_CONFIG,                                                                              \
     .offset = offsetof(dsc_cli_common, config),                                                             \
     .placeholder = "FILE",                                                                                  \
     .flags = DSC_OPTION_NOT_SAVED,                                                                          \
     .help = "read options from lines `key = value`; the command line overrides them",                       \
     .group = "General"},                                                                                    \
        {.name = "verbose",                                                                                  \
         .kind = DSC_OPTION_FLAG,                                                                            \
         .offset = offsetof(dsc_cli_common, verbose),                                                        \
         .flags = DSC_OPTION_NOT_SAVED,                                                                      \
         .help = "print more messages, and where in the source an error arose",                              \
         .letter = 'v'},                                                                                     \
        {.name = "help",                                                                                     \
         .kind = DSC_OPTION_FLAG,                                                                            \
         .offset = offsetof(dsc_cli_common, help),                                                           \
         .flags = DSC_OPTION_NOT_SAVED,                                                                      \
         .help = "print this text",                                                                          \
         .letter = 'h'},                                                                                     \
    {                                                                                                        \
        .name = NULL                                                                                         \
    }

/* The processes and the device a command runs on. main() owns it and ends it. */
typedef struct dsc_cli_session {
    dsc_comm *comm;
    dsc_device *device;
    dsc_device *host;    /* for `text`; NULL in a single process */
    int survive;         /* 1, before opening: the other ranks will continue when ranks are lost */
    int several_threads; /* 1, before opening: more than one thread will communicate */
    int tune;            /* 1, before opening: tune the device (dsc_device_options.tune) */
    double timeout;      /* seconds, before opening: how long the ranks wait for each other; 0: for ever */
    int agreed;          /* 1: all ranks know of the failure and end together */
    dsc_comm *failures;  /* the same ranks; used by dsc_cli_failed_together only */
    dsc_tensor text;     /* U8[DSC_CLI_TEXT], rank 0's message */
} dsc_cli_session;

enum { DSC_CLI_TEXT = 2048 };

typedef struct dsc_cli_command {
    const char *name;
    const char *summary;     /* one line */
    const char *arguments;   /* positional arguments for the synopsis; NULL: the command takes none */
    const char *description; /* paragraphs, an empty line between them */
    const char *examples;    /* one command a line */
    const dsc_option *options;
    size_t values_size;
    int computes;               /* 1: computes on many threads, see dsc_cli_settle_waiting */
    void (*init)(void *values); /* sets the defaults */
    /* Adds options that the command line refers to, before `run`; NULL: there are none. */
    dsc_status (*restore)(void *values, dsc_option_set *set);
    dsc_status (*run)(dsc_cli_session *session, void *values, const dsc_option_set *set);
} dsc_cli_command;

extern const dsc_cli_command dsc_cli_train, dsc_cli_eval, dsc_cli_predict, dsc_cli_info, dsc_cli_list,
    dsc_cli_bench, dsc_cli_report, dsc_cli_average, dsc_cli_check_data, dsc_cli_find_lr, dsc_cli_sweep,
    dsc_cli_tokenize, dsc_cli_generate, dsc_cli_completion;
/* Terminated by NULL. */
extern const dsc_cli_command *const dsc_cli_commands[];

/* Makes the communicator of all ranks and the device. `threads` 0: as many as this rank may use without
 * taking another's. Collective; a failure of one rank is a failure of all. */
dsc_status dsc_cli_open(dsc_cli_session *session, const char *device, int threads,
                        const char *comm) DSC_MUST_CHECK;
/* dsc_comm_agree; also sets session->agreed when it fails. Collective. */
dsc_status dsc_cli_agree(dsc_cli_session *session, dsc_status own) DSC_MUST_CHECK;
/* For a rank that has failed: waits two seconds for the others. `text` (DSC_CLI_TEXT bytes) holds this rank's
 * message. Returns 1 when all ranks have failed, with rank 0's message in `text`; 0 when some have not: these may
 * be waiting for this rank for ever. Leaves dsc_error_message() undefined. */
int dsc_cli_failed_together(dsc_cli_session *session, char *text);
/* Closes what is open. Collective. */
void dsc_cli_close(dsc_cli_session *session);

/* Makes OpenMP's threads wait without spinning for long, unless the environment says how they shall wait. It may
 * restart the program, so it must be called before anything else. */
void dsc_cli_settle_waiting(char *const *argv);

/* 1 on the rank that prints: rank 0 of the session or, before there is one, of the launcher. */
int dsc_cli_prints(const dsc_cli_session *session);

/* "1m05s", "2h03m", "4.2s"; returns `text`. */
const char *dsc_cli_duration(double seconds, char *text, size_t size);
/* 464154 as "464,154"; returns `text`. */
const char *dsc_cli_grouped(int64_t number, char *text, size_t size);
/* A field of CSV, in quotation marks where it needs them. */
void dsc_cli_print_csv(FILE *out, const char *text);
/* Copies as many whole characters of `text` as fit; a byte that is not UTF-8 becomes U+FFFD, and a control
 * character a question mark. Returns `out`. */
char *dsc_cli_clean(const char *text, char *out, size_t size);

#endif

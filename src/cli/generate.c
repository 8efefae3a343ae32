/* descent generate: text by a trained model of sequences. */
#include "descent/generate.h"
#include "cli/cli.h"
#include "cli/support.h"
#include "descent/log.h"

#include <stdio.h>
#include <string.h>

typedef struct generate_values {
    dsc_cli_common common;
    dsc_generate_options o;
    const char *device;
    int threads;
} generate_values;

#define AT(member) offsetof(generate_values, member)

static const dsc_option own_options[] = {
    {DSC_CLI_DEVICE(AT(device)), .help = "where to compute", .group = "How to run"},
    {DSC_CLI_THREADS(AT(threads))},
    DSC_CLI_COMMON_OPTIONS,
};

enum { MAX_OPTIONS = 24 };
static dsc_option options[MAX_OPTIONS]; /* filled in by init */

static void init(void *values) {
    generate_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_generate_options_init(&v->o);
    options[0].name = NULL;
    if (dsc_option_join(options, MAX_OPTIONS, dsc_generate_option_table(), AT(o),
                        sizeof(dsc_generate_options), NULL) == DSC_OK &&
        dsc_option_join(options, MAX_OPTIONS, own_options, 0, SIZE_MAX, NULL) == DSC_OK)
        dsc_option_defaults(options, v);
}

/* Prints text as it is generated, after the prompt. Stops when it cannot be written: the reader of a pipe may be
 * gone. */
static int print_text(void *context, const void *bytes, int64_t count) {
    const char **prompt = context;
    if (*prompt)
        fputs(*prompt, stdout);
    *prompt = NULL;
    return fwrite(bytes, 1, (size_t)count, stdout) != (size_t)count || fflush(stdout) != 0;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    generate_values *v = values;
    dsc_generate_result result = {.size = sizeof result};
    (void)set;
    if (!v->o.checkpoint)
        return DSC_CLI_FAIL(DSC_E_INVALID, "generate needs --checkpoint FILE (or the directory of a run)");
    DSC_CLI_TRY(dsc_cli_open(session, v->device, v->threads, "auto"));
    if (dsc_comm_size(session->comm) > 1)
        return DSC_CLI_FAIL(DSC_E_INVALID, "generate works on one rank; start it without mpirun");
    const char *prompt = v->o.prompt; /* until it is printed */
    DSC_CLI_TRY(dsc_generate_run(session->device, &v->o, print_text, &prompt, &result));
    printf("%s\n", prompt ? prompt : ""); /* no token followed it */
    int64_t all = result.prompt_tokens + result.tokens;
    dsc_log(DSC_LOG_INFO, "%lld tokens after %lld of the prompt in %.3f s: %.1f tokens/s",
            (long long)result.tokens, (long long)result.prompt_tokens, result.seconds,
            result.seconds > 0 ? (double)all / result.seconds : 0);
    return DSC_OK;
}

const dsc_cli_command dsc_cli_generate = {
    .name = "generate",
    .summary = "write text with a trained model of sequences",
    .description =
        "Continues a prompt: token after token is drawn from the distribution that the model gives, and "
        "printed at once. Checkpoints hold the tokenizer of the text they were trained on; with older "
        "ones, or to use another, --data names the data that it is read from. The same seed gives the "
        "same text.\n\n"
        "With --temperature 0 the most probable token is always taken. --top-k and --top-p leave out "
        "tokens that are hardly probable. A text may be longer than the context of the model: when that "
        "is full, its second half becomes the beginning.",
    .examples = "descent generate --checkpoint runs/shakespeare --prompt 'ROMEO:' --tokens 300\n"
                "descent generate --checkpoint runs/shakespeare:best --temperature 0.8 --top-k 40 --seed 7\n",
    .options = options,
    .values_size = sizeof(generate_values),
    .computes = 1,
    .init = init,
    .run = run,
};

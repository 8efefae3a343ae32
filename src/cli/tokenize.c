/* descent tokenize: text into files of tokens, and back. */
#include "cli/cli.h"
#include "cli/support.h"
#include "cli/terminal.h"
#include "descent/tokens.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct tokenize_values {
    dsc_cli_common common;
    const char *kind, *vocab, *merges, *out, *decode;
    dsc_token_format format;
    double val_split;
    int special_tokens, end_of_text, overwrite, threads;
} tokenize_values;

#define AT(member) offsetof(tokenize_values, member)

static const dsc_option options[] = {
    {.name = "kind",
     .kind = DSC_OPTION_WORD,
     .offset = AT(kind),
     .choices = DSC_CLI_CHOICES("bytes", "chars", "bpe"),
     .default_text = "bpe with {vocab}, else bytes",
     .help = "bytes: a token per byte; chars: a token per distinct byte of the text, in their order; "
             "bpe: GPT-2's byte-pair encoding",
     .group = "Tokens"},
    {.name = "vocab",
     .kind = DSC_OPTION_STRING,
     .offset = AT(vocab),
     .placeholder = "FILE",
     .default_text = "",
     .help = "the number of each token, as GPT-2's vocab.json"},
    {.name = "merges",
     .kind = DSC_OPTION_STRING,
     .offset = AT(merges),
     .placeholder = "FILE",
     .default_text = "",
     .help = "the pairs of tokens that are merged, as GPT-2's merges.txt"},
    {.name = "special-tokens",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(special_tokens),
     .help = "where the text has <|endoftext|>, it becomes this one token"},
    {.name = "end-of-text",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(end_of_text),
     .help = "put the token <|endoftext|> after every file"},
    {.name = "out",
     .kind = DSC_OPTION_STRING,
     .offset = AT(out),
     .placeholder = "DIR",
     .default_text = "",
     .help = "directory for train.bin, val.bin and tokens.json",
     .group = "Output"},
    {.name = "val-split",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(val_split),
     .value = "0.1",
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "the last part of the text, this fraction of it, becomes val.bin; 0: there is none"},
    {.name = "format",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(format),
     .choices = DSC_CLI_CHOICES("uint16", "uint32", "llm.c"),
     .default_text = "uint16, or uint32 for more than 65536 tokens",
     .help = "16 or 32 bits per token, as nanoGPT has them, or 16 bits after llm.c's header"},
    {.name = "overwrite",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(overwrite),
     .help = "replace the files that {out} has"},
    {.name = "decode",
     .kind = DSC_OPTION_STRING,
     .offset = AT(decode),
     .placeholder = "FILE",
     .default_text = "",
     .help = "print the text of a file of tokens instead"},
    {.name = "threads",
     .kind = DSC_OPTION_INT,
     .offset = AT(threads),
     .placeholder = "N",
     .range = "[0, 1024]",
     .default_text = "one per CPU",
     .help = "threads that encode; the result is the same for every number",
     .group = "How to run"},
    DSC_CLI_COMMON_OPTIONS,
};

enum { AT_ONCE = 1 << 16, LINE_SECONDS = 10 };

static void init(void *values) {
    memset(values, 0, sizeof(tokenize_values));
    dsc_option_defaults(options, values);
}

/* ---- tokenizers ---- */

static dsc_status make_tokenizer(const tokenize_values *v, const char *const *paths, int64_t count,
                                 dsc_tokenizer **out) {
    const char *kind = v->kind ? v->kind : v->vocab || v->merges ? "bpe" : "bytes";
    if (!v->vocab != !v->merges)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--%s needs --%s: a byte-pair encoding has two files",
                            v->vocab ? "vocab" : "merges", v->vocab ? "merges" : "vocab");
    if (strcmp(kind, "bpe") != 0 && v->vocab)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--vocab does not go with --kind %s: only bpe has such files",
                            kind);
    if (strcmp(kind, "bytes") == 0)
        return dsc_tokenizer_bytes(out);
    if (strcmp(kind, "chars") == 0)
        return dsc_tokenizer_chars_of_files(paths, count, out);
    if (!v->vocab)
        return DSC_CLI_FAIL(
            DSC_E_INVALID,
            "--kind bpe needs --vocab and --merges: GPT-2's vocab.json and merges.txt, for example");
    return dsc_tokenizer_bpe(v->vocab, v->merges, out);
}

/* ---- decoding ---- */

static dsc_status print_text(const dsc_tokenizer *tokenizer, const dsc_token_file *file) {
    int64_t count = dsc_token_file_count(file), room = 0, bytes;
    int32_t *tokens;
    char *text = NULL;
    DSC_CLI_TRY(dsc_cli_alloc(AT_ONCE, sizeof *tokens, &tokens));
    dsc_status status = DSC_OK;
    for (int64_t at = 0, n; at < count && status == DSC_OK && !ferror(stdout); at += n) {
        n = count - at < AT_ONCE ? count - at : AT_ONCE;
        status = dsc_token_file_read(file, at, n, tokens);
        if (status == DSC_OK)
            status = dsc_tokenizer_decode(tokenizer, tokens, n, NULL, 0, &bytes);
        if (status == DSC_OK && bytes > room) {
            dsc_cli_free(&text);
            status = dsc_cli_alloc(room = bytes, 1, &text);
        }
        if (status == DSC_OK)
            status = dsc_tokenizer_decode(tokenizer, tokens, n, text, room, &bytes);
        if (status == DSC_OK)
            fwrite(text, 1, (size_t)bytes, stdout);
    }
    dsc_cli_free(&text);
    dsc_cli_free(&tokens);
    return status;
}

static dsc_status decode(const tokenize_values *v) {
    dsc_token_file_options o;
    dsc_tokenizer *tokenizer = NULL;
    dsc_token_file *file = NULL;
    if (v->kind && strcmp(v->kind, "chars") == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "--decode: the characters are in tokens.json; leave out --kind chars");
    if (access(v->decode, F_OK) != 0)
        return DSC_CLI_FAIL(DSC_E_NOT_FOUND, "cannot read '%s': %s", v->decode, strerror(errno));
    dsc_status status = v->kind || v->vocab || v->merges ? make_tokenizer(v, NULL, 0, &tokenizer)
                                                         : dsc_tokenizer_of_file(v->decode, &tokenizer);
    if (status == DSC_E_NOT_FOUND && !v->kind && !v->vocab) {
        char message[DSC_CLI_TEXT];
        snprintf(message, sizeof message, "%s", dsc_error_message());
        status = DSC_CLI_FAIL(status, "%s; give --kind bytes, or --vocab and --merges", message);
    }
    DSC_CLI_TRY(status);
    dsc_token_file_options_init(&o);
    o.vocabulary = dsc_tokenizer_vocabulary(tokenizer);
    o.uint32 = v->format == DSC_TOKENS_UINT32 || o.vocabulary > UINT16_MAX + 1;
    status = dsc_token_file_open(v->decode, &o, &file);
    if (status == DSC_OK)
        status = print_text(tokenizer, file);
    dsc_token_file_close(&file);
    dsc_tokenizer_destroy(&tokenizer);
    return status;
}

/* ---- encoding ---- */

static volatile sig_atomic_t stopped;

static void stop(int number) {
    (void)number;
    stopped = 1;
}

/* Catches signals, which show_progress then notices, so that an interrupted command leaves no temporary files. */
static void catch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = stop;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

typedef struct shown {
    double began, said; /* clock, of the last line of progress */
} shown;

/* Shows progress: one line that is redrawn on a terminal, elsewhere a new line every ten seconds. */
static int show_progress(void *context, const dsc_tokenize_progress *p) {
    shown *s = context;
    const int terminal = dsc_terminal_is(stderr);
    const double now = dsc_cli_now(), seconds = now - s->began > 0.001 ? now - s->began : 0.001;
    if (stopped)
        return 1;
    if (!terminal && now - s->said < LINE_SECONDS)
        return 0;
    char count[32], left[32];
    s->said = now;
    const double rate = (double)p->bytes_done / seconds;
    fprintf(stderr, "%s%3.0f %% of %.1f MB read, %s tokens, %.1f MB/s, %s left%s", terminal ? "\r\033[K" : "",
            100.0 * (double)p->bytes_done / (double)p->bytes_total, (double)p->bytes_total / 1e6,
            dsc_cli_grouped(p->tokens, count, sizeof count), rate / 1e6,
            rate > 0 ? dsc_cli_duration((double)(p->bytes_total - p->bytes_done) / rate, left, sizeof left)
                     : "?",
            terminal ? "" : "\n");
    fflush(stderr);
    return 0;
}

static void print_part(const char *out, const char *name, int64_t tokens, int64_t bytes) {
    char a[32], b[32];
    if (tokens > 0)
        printf("%s/%s: %s token%s of %s byte%s, %.3f bytes per token\n", out, name,
               dsc_cli_grouped(tokens, a, sizeof a), tokens == 1 ? "" : "s",
               dsc_cli_grouped(bytes, b, sizeof b), bytes == 1 ? "" : "s", (double)bytes / (double)tokens);
}

static dsc_status encode(const tokenize_values *v, const char *const *paths, int64_t count) {
    dsc_tokenizer *tokenizer = NULL;
    dsc_tokenize_options o;
    dsc_tokenize_result result = {.size = sizeof(dsc_tokenize_result)};
    shown s = {dsc_cli_now(), dsc_cli_now()};
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    DSC_CLI_TRY(make_tokenizer(v, paths, count, &tokenizer));
    if (v->special_tokens && dsc_tokenizer_end_of_text(tokenizer) < 0) {
        dsc_status refused = DSC_CLI_FAIL(
            DSC_E_INVALID, "--special-tokens: the vocabulary (%s) has no token <|endoftext|>: leave it out",
            dsc_tokenizer_kind(tokenizer));
        dsc_tokenizer_destroy(&tokenizer);
        return refused;
    }
    dsc_tokenize_options_init(&o);
    o.val_split = v->val_split;
    o.format = v->format;
    o.flags = v->special_tokens ? DSC_ENCODE_SPECIAL : 0;
    o.end_of_text = v->end_of_text;
    o.overwrite = v->overwrite;
    o.threads = v->threads > 0 ? v->threads : cpus > 1 ? (int)(cpus < 1024 ? cpus : 1024) : 1;
    o.progress = show_progress;
    o.context = &s;
    catch_signals();
    dsc_status status = dsc_tokenize(tokenizer, paths, count, v->out, &o, &result);
    if (dsc_terminal_is(stderr))
        fprintf(stderr, "\r\033[K");
    if (status == DSC_OK) {
        char files[32], size[32], time[32];
        print_part(v->out, "train.bin", result.train_tokens, result.train_bytes);
        print_part(v->out, "val.bin", result.val_tokens, result.val_bytes);
        printf("%s, a vocabulary of %s tokens, %s file%s, %s\n", dsc_tokenizer_kind(tokenizer),
               dsc_cli_grouped(dsc_tokenizer_vocabulary(tokenizer), size, sizeof size),
               dsc_cli_grouped(result.files, files, sizeof files), result.files == 1 ? "" : "s",
               dsc_cli_duration(dsc_cli_now() - s.began, time, sizeof time));
    }
    dsc_tokenizer_destroy(&tokenizer);
    return status;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const tokenize_values *v = values;
    const int64_t count = dsc_option_positional_count(set);
    const char **paths;
    if (v->decode && (count > 0 || v->out))
        return DSC_CLI_FAIL(DSC_E_INVALID, "--decode prints text: it takes neither files of text nor --out");
    if (!v->decode && !v->out)
        return DSC_CLI_FAIL(DSC_E_INVALID, "tokenize needs --out DIR, for train.bin and val.bin");
    if (!v->decode && count == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID, "tokenize needs files of text, or folders of them");
    if (!dsc_cli_prints(session)) /* one process is enough */
        return DSC_OK;
    if (v->decode)
        return decode(v);
    DSC_CLI_TRY(dsc_cli_alloc(count, sizeof *paths, &paths));
    for (int64_t i = 0; i < count; i++)
        paths[i] = dsc_option_positional(set, i);
    dsc_status status = encode(v, paths, count);
    dsc_cli_free(&paths);
    return status;
}

const dsc_cli_command dsc_cli_tokenize = {
    .name = "tokenize",
    .summary = "turn text into files of tokens",
    .arguments = "FILE|DIR...",
    .description = "Encodes the text of files, and of all files in directories (sorted by name, without "
                   "hidden ones), in the order given, and writes DIR/train.bin, DIR/val.bin and "
                   "DIR/tokens.json, which says what the tokens mean. With bpe it copies vocab.json and "
                   "merges.txt there, too. The files appear when all is done; a signal ends the command "
                   "with exit status 3 and without files.\n\n"
                   "The first part of the text is for training, the last one for validation. With bpe "
                   "the text is divided where white space follows something else, so that no word is cut "
                   "unless that cannot be avoided.\n\n"
                   "--decode FILE prints the text of a file of tokens, with the tokenizer of the "
                   "tokens.json beside it, or with the one that --kind, --vocab and --merges say.",
    .examples = "descent tokenize --kind chars --out shakespeare input.txt\n"
                "descent tokenize --vocab vocab.json --merges merges.txt --out wiki --end-of-text articles\n"
                "descent tokenize --decode wiki/val.bin\n",
    .options = options,
    .values_size = sizeof(tokenize_values),
    .init = init,
    .run = run,
};

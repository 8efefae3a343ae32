/* descent check-data: reads a data set once and lists what is broken. */
#include "cli/cli.h"
#include "cli/json_out.h"
#include "cli/support.h"
#include "cli/terminal.h"
#include "descent/data.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct check_values {
    dsc_cli_common common;
    int64_t context, vocabulary;
    int threads, json;
} check_values;

#define AT(member) offsetof(check_values, member)

static const dsc_option options[] = {
    {.name = "context",
     .kind = DSC_OPTION_INT64,
     .offset = AT(context),
     .placeholder = "N",
     .range = "[0, 1e6]",
     .default_text = "256",
     .help = "tokens, text: tokens of a sequence",
     .group = "What to read"},
    {.name = "vocabulary",
     .kind = DSC_OPTION_INT64,
     .offset = AT(vocabulary),
     .placeholder = "N",
     .range = "[0, 16777215]",
     .default_text = "that of the data",
     .help = "tokens, text: tokens that there are"},
    {.name = "threads",
     .kind = DSC_OPTION_INT,
     .offset = AT(threads),
     .placeholder = "N",
     .range = "[0, 1024]",
     .default_text = "one per CPU",
     .help = "threads that read",
     .group = "How to run"},
    {DSC_CLI_JSON(AT(json)), .group = "Output"},
    DSC_CLI_COMMON_OPTIONS,
};

/* A small crop lets large JPEGs be decoded at a reduced size, which reads every byte of them, too. */
enum { IMAGE_SIZE = 32, LINE_SECONDS = 10 };

/* The check of one split. */
typedef struct checked {
    const char *split;
    dsc_dataset_info info;
    const char *unit;   /* what a sample is */
    json_t *list;       /* NULL: bad samples are printed */
    double began, said; /* clock, of the last line of progress */
} checked;

static void init(void *values) {
    memset(values, 0, sizeof(check_values));
    dsc_option_defaults(options, values);
}

/* Shows progress: one line that is redrawn on a terminal, elsewhere a new line every ten seconds. */
static void show_progress(void *context, int64_t done, int64_t bad) {
    checked *c = context;
    const int terminal = dsc_terminal_is(stderr);
    const double now = dsc_cli_now();
    char a[32], b[32];
    if (!terminal && now - c->said < LINE_SECONDS)
        return;
    c->said = now;
    fprintf(stderr, "%s%s: %s of %s %ss read, %lld broken, %.0f %ss/s%s", terminal ? "\r\033[K" : "",
            c->split, dsc_cli_grouped(done, a, sizeof a), dsc_cli_grouped(c->info.count, b, sizeof b),
            c->unit, (long long)bad, (double)done / (now - c->began > 0.001 ? now - c->began : 0.001),
            c->unit, terminal ? "" : "\n");
    fflush(stderr);
}

/* Removes the line of progress from a terminal. */
static void clear_progress(void) {
    if (dsc_terminal_is(stderr))
        fprintf(stderr, "\r\033[K");
    fflush(stderr);
}

static void show_bad(void *context, const dsc_bad_sample *bad) {
    const checked *c = context;
    if (c->list) {
        json_array_append_new(c->list, json_pack("{s:I, s:o}", "index", (json_int_t)bad->index, "message",
                                                 dsc_cli_json_text(bad->message)));
        return;
    }
    clear_progress();
    printf("%s\n", bad->message);
}

/* 1 when samples are sequences of tokens: a column of numbers with a label each. */
static int is_text(const dsc_dataset_info *info, int64_t labels) {
    return labels > 1 && info->w == 1 && info->c == 1 && labels == info->h;
}

static void print_split(const checked *c, const dsc_dataset *set, int64_t bad) {
    const int64_t labels = dsc_dataset_label_count(set), pictures = dsc_dataset_pictures(set),
                  samples = pictures > 0 ? pictures : c->info.count;
    const char *plural = samples == 1 ? "" : "s";
    char count[32], tokens[32];
    dsc_cli_grouped(samples, count, sizeof count);
    if (is_text(&c->info, labels))
        printf("%s: %s tokens in %s sequence%s of %lld, vocabulary %lld, %lld of them broken\n", c->split,
               dsc_cli_grouped(c->info.count * labels, tokens, sizeof tokens), count, plural,
               (long long)labels, (long long)c->info.classes, (long long)bad);
    else
        printf("%s: %s image%s in %lld classes, %lld of them broken\n", c->split, count, plural,
               (long long)c->info.classes, (long long)bad);
}

/* Checks one split: *bad is the number of broken samples, and *unit names what a sample is. A set may have no
 * validation split. */
static dsc_status check_split(const check_values *v, const char *spec, dsc_split split, json_t *splits,
                              int64_t *bad, const char **unit) {
    dsc_data_options data;
    dsc_check_options o;
    dsc_dataset *set = NULL;
    checked c = {.split = split == DSC_SPLIT_TRAIN ? "train" : "val",
                 .unit = "image",
                 .began = dsc_cli_now(),
                 .said = dsc_cli_now()};
    dsc_data_options_init(&data);
    data.image_size = IMAGE_SIZE;
    data.context = v->context;
    data.vocabulary = v->vocabulary;
    dsc_status status = dsc_dataset_open(spec, split, &data, &set);
    if (status == DSC_E_NOT_FOUND && split == DSC_SPLIT_VAL) {
        if (!v->json)
            printf("val: none (%s)\n", dsc_error_message());
        return DSC_OK;
    }
    DSC_CLI_TRY(status);
    c.info = dsc_dataset_get_info(set);
    if (is_text(&c.info, dsc_dataset_label_count(set)))
        c.unit = "sequence";
    else if (dsc_dataset_pictures(set) > 0)
        c.unit = "tile";
    *unit = c.unit;
    if ((v->context > 0 || v->vocabulary > 0) && strcmp(c.unit, "sequence") != 0) {
        dsc_dataset_close(&set);
        return DSC_CLI_FAIL(DSC_E_INVALID, "--%s: %s has no tokens; leave it out",
                            v->context > 0 ? "context" : "vocabulary", spec);
    }
    c.list = v->json ? json_array() : NULL;
    dsc_check_options_init(&o);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    o.threads = v->threads > 0 ? v->threads : cpus > 1 ? (int)(cpus < 1024 ? cpus : 1024) : 1;
    o.context = &c;
    o.progress = show_progress;
    o.bad = show_bad;
    status = dsc_dataset_check(set, &o, bad);
    clear_progress();
    if (v->json)
        json_array_append_new(splits, json_pack("{s:s, s:I, s:I, s:o}", "split", c.split, "images",
                                                (json_int_t)c.info.count, "classes",
                                                (json_int_t)c.info.classes, "bad", c.list));
    else if (status == DSC_OK)
        print_split(&c, set, *bad);
    dsc_dataset_close(&set);
    return status;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const check_values *v = values;
    if (dsc_option_positional_count(set) != 1)
        return DSC_CLI_FAIL(DSC_E_INVALID, "check-data needs one data set, as in imagefolder:DIR");
    if (!dsc_cli_prints(session)) /* one process is enough */
        return DSC_OK;
    const char *spec = dsc_option_positional(set, 0);
    int64_t bad[2] = {0, 0};
    const char *unit = "image";
    json_t *splits = json_array();
    dsc_status status = check_split(v, spec, DSC_SPLIT_TRAIN, splits, &bad[0], &unit);
    if (status == DSC_OK)
        status = check_split(v, spec, DSC_SPLIT_VAL, splits, &bad[1], &unit);
    json_t *object = json_pack("{s:o, s:I, s:o}", "data", dsc_cli_json_text(spec), "bad_images",
                               (json_int_t)(bad[0] + bad[1]), "splits", splits);
    if (v->json && status == DSC_OK && object)
        dsc_cli_print_json(object, stdout);
    json_decref(object);
    DSC_CLI_TRY(status);
    if (bad[0] + bad[1] > 0)
        return DSC_CLI_FAIL(DSC_E_FORMAT, "%lld %s%s of %s cannot be read", (long long)(bad[0] + bad[1]),
                            unit, bad[0] + bad[1] == 1 ? "" : "s", spec);
    return DSC_OK;
}

const dsc_cli_command dsc_cli_check_data = {
    .name = "check-data",
    .summary = "read a data set once and list the files that are broken",
    .arguments = "SPEC",
    .description =
        "Reads all images of the training and validation splits with several threads, and prints one "
        "line for each that cannot be read, in the order of the set. SPEC is what train takes as --data. "
        "The exit status is 0 when all can be read, and 2 when some cannot, or when the set cannot be "
        "opened.\n\n"
        "With --json the result is one object with the keys data, bad_images and splits; each split has "
        "the keys split (train or val), images, classes and bad, a list of objects with index and "
        "message.",
    .examples = "descent check-data imagefolder:/data/imagenet\n"
                "descent check-data cifar10:data --json\n",
    .options = options,
    .values_size = sizeof(check_values),
    .init = init,
    .run = run,
};

/* descent eval: accuracy of a checkpoint. */
#include "cli/cli.h"
#include "cli/eval_report.h"
#include "cli/json_out.h"
#include "cli/support.h"
#include "descent/train.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct eval_values {
    dsc_cli_common common;
    dsc_eval_options o;
    const char *device;
    int threads, json, per_class, confusion;
} eval_values;

#define AT(member) offsetof(eval_values, member)

static const dsc_option own_options[] = {
    {DSC_CLI_DEVICE(AT(device)), .help = "where to compute", .group = "How to run"},
    {DSC_CLI_THREADS(AT(threads))},
    {.name = "per-class",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(per_class),
     .help = "print accuracy and precision of every class",
     .group = "Output"},
    {.name = "confusion",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(confusion),
     .help = "print the confusion matrix"},
    {DSC_CLI_JSON(AT(json))},
    DSC_CLI_COMMON_OPTIONS,
};

enum { MAX_OPTIONS = 32 };
static dsc_option options[MAX_OPTIONS]; /* filled in by init */

static void init(void *values) {
    eval_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_eval_options_init(&v->o);
    options[0].name = NULL;
    if (dsc_option_join(options, MAX_OPTIONS, dsc_eval_option_table(), AT(o), sizeof(dsc_eval_options),
                        NULL) == DSC_OK &&
        dsc_option_join(options, MAX_OPTIONS, own_options, 0, SIZE_MAX, NULL) == DSC_OK)
        dsc_option_defaults(options, v);
}

static double bits_per_byte(const dsc_eval_result *r) {
    return r->loss / (log(2) * r->bytes_per_token);
}

static void print_tokens(const dsc_eval_result *r) {
    char tokens[32], masked[32], seconds[32];
    printf("%s, %s tokens", r->data, dsc_cli_grouped(r->images * r->tokens, tokens, sizeof tokens));
    if (r->mask > 0)
        printf(", %s of them to be predicted", dsc_cli_grouped(r->labels, masked, sizeof masked));
    printf(": loss %.4f, perplexity %.4g, ", r->loss, exp(r->loss));
    if (r->bytes_per_token > 0)
        printf("%.4f bits per byte, ", bits_per_byte(r));
    printf("top-1 %.2f %%, %s\n", 100 * r->top1, dsc_cli_duration(r->seconds, seconds, sizeof seconds));
}

static void print_masks(const dsc_eval_result *r, const dsc_eval_report *report) {
    char pictures[32], tiles[32], seconds[32];
    double dice, overlap;
    dsc_eval_report_masks(report, &dice, &overlap);
    dsc_cli_grouped(r->pictures, pictures, sizeof pictures);
    dsc_cli_grouped(r->images, tiles, sizeof tiles);
    if (r->pictures > 0)
        printf("%s, %s picture%s in %s tile%s: ", r->data, pictures, r->pictures == 1 ? "" : "s", tiles,
               r->images == 1 ? "" : "s");
    else
        printf("%s, %s images: ", r->data, tiles);
    printf("loss %.4f, pixel error %.2f %%, mean Dice %.4f, mean IoU %.4f, ", r->loss, 100 * (1 - r->top1),
           dice, overlap);
    if (report->v_rand >= 0)
        printf("V_rand %.4f at %.1f, ", report->v_rand, report->v_rand_threshold);
    printf("%s\n", dsc_cli_duration(r->seconds, seconds, sizeof seconds));
    dsc_eval_report_print_masks(report);
}

static void print_text(const dsc_eval_result *r) {
    char images[32], seconds[32];
    if (r->tokens > 0) {
        print_tokens(r);
        return;
    }
    printf("%s, %s images: loss %.4f, top-1 %.2f %%, top-5 %.2f %%, %s", r->data,
           dsc_cli_grouped(r->images, images, sizeof images), r->loss, 100 * r->top1, 100 * r->top5,
           dsc_cli_duration(r->seconds, seconds, sizeof seconds));
    if (r->bad_images > 0)
        printf("; %lld image%s cannot be read", (long long)r->bad_images, r->bad_images == 1 ? "" : "s");
    printf("\n");
}

static void print_report(const eval_values *v, const dsc_eval_result *r, const dsc_eval_report *report) {
    const char *what = r->tokens > 0 ? "token" : r->positions > 1 ? "pixel" : "image";
    if (r->positions == 1)
        dsc_eval_report_print(report);
    if (v->per_class)
        dsc_eval_report_print_classes(report, what);
    if (v->confusion)
        dsc_eval_report_print_confusion(report, what);
}

static dsc_status print_json(const eval_values *v, const dsc_eval_result *r, const dsc_eval_report *report,
                             int ranks) {
    json_t *object = json_pack(
        "{s:o, s:o, s:i, s:I, s:I, s:o, s:f, s:f, s:f}", "checkpoint", dsc_cli_json_text(v->o.checkpoint),
        "data", dsc_cli_json_text(r->data), "ranks", ranks, "images", (json_int_t)r->images, "bad_images",
        (json_int_t)r->bad_images, "loss", isfinite(r->loss) ? json_real(r->loss) : json_null(), "top1",
        r->top1, "top5", r->top5, "seconds", r->seconds);
    if (object && r->tokens > 0) {
        json_object_set_new(object, "tokens", json_integer((json_int_t)(r->images * r->tokens)));
        json_object_set_new(object, "perplexity", isfinite(r->loss) ? json_real(exp(r->loss)) : json_null());
    }
    if (object && r->mask > 0)
        json_object_set_new(object, "masked_tokens", json_integer((json_int_t)r->labels));
    if (object && r->pictures > 0)
        json_object_set_new(object, "pictures", json_integer((json_int_t)r->pictures));
    if (object && r->pictures > 0 && report->v_rand >= 0) {
        json_object_set_new(object, "v_rand", json_real(report->v_rand));
        json_object_set_new(object, "v_rand_threshold", json_real(report->v_rand_threshold));
    }
    if (object && r->bytes_per_token > 0 && isfinite(r->loss))
        json_object_set_new(object, "bits_per_byte", json_real(bits_per_byte(r)));
    json_t *more = dsc_eval_report_json(report);
    if (object && more)
        json_object_update(object, more);
    json_decref(more);
    if (!object)
        return DSC_CLI_FAIL(DSC_E_NUMERIC, "the result cannot be written as JSON (loss %g)", r->loss);
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(object);
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    eval_values *v = values;
    dsc_eval_result result = {.size = sizeof result};
    dsc_eval_report *report = NULL;
    (void)set;
    if (!v->o.checkpoint)
        return DSC_CLI_FAIL(DSC_E_INVALID, "eval needs --checkpoint FILE (or the directory of a run)");
    DSC_CLI_TRY(dsc_cli_open(session, v->device, v->threads, "auto"));
    v->o.report = &report;
    DSC_CLI_TRY(dsc_eval_run(session->comm, session->device, &v->o, &result));
    dsc_status status = DSC_OK;
    if (dsc_cli_prints(session) && v->json) {
        status = print_json(v, &result, report, dsc_comm_size(session->comm));
    } else if (dsc_cli_prints(session)) {
        if (result.positions > 1 && result.tokens == 0)
            print_masks(&result, report);
        else
            print_text(&result);
        print_report(v, &result, report);
    }
    dsc_eval_report_free(&report);
    return status;
}

const dsc_cli_command dsc_cli_eval = {
    .name = "eval",
    .summary = "measure a checkpoint on the validation set",
    .description =
        "Evaluates the model in a checkpoint on the validation split of a data set, over all ranks "
        "together, each image once. Loss and accuracies do not depend on the number of ranks. Without "
        "--data it is the data set that the checkpoint names (synthetic, if it names none).\n\n"
        "Beside loss and accuracies it prints the calibration error (15 bins of equal width by the "
        "probability of the predicted class; the mean over all images of the difference between accuracy "
        "and probability in their bin), the classes with the lowest accuracy and the most frequent "
        "confusions.\n\n"
        "With --json the result is one object with the keys checkpoint, data, ranks, images, bad_images, "
        "loss, top1, top5 (shares between 0 and 1), seconds, of models of sequences also tokens, perplexity "
        "and bits_per_byte, or masked_tokens where masked tokens are predicted, of masks also pictures (of "
        "which images are tiles), v_rand and v_rand_threshold, calibration_error, calibration_bins (images, "
        "accuracy, confidence), and up to 4096 classes also classes (class, of text the token in quotes, "
        "images, right, predicted, "
        "accuracy, precision, dice, iou), confusions (the ten most frequent ones) and confusion_matrix (a "
        "row for the images of each class, a column for each prediction).",
    .examples =
        "descent eval --checkpoint runs/lenet-synthetic-1\n"
        "descent eval --checkpoint runs/lenet-synthetic-1:best\n"
        "mpirun -n 4 descent eval --checkpoint out/checkpoint-3910.safetensors --data cifar10:data --json\n",
    .options = options,
    .values_size = sizeof(eval_values),
    .computes = 1,
    .init = init,
    .run = run,
};

/* descent predict: the classes of images, or of their pixels, by a trained model. */
#include "descent/predict.h"
#include "cli/cli.h"
#include "cli/json_out.h"
#include "cli/support.h"
#include "descent/log.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

typedef enum predict_format { FORMAT_TABLE, FORMAT_CSV, FORMAT_JSON } predict_format;

typedef struct predict_values {
    dsc_cli_common common;
    dsc_predict_options o;
    const char *device;
    int threads, csv, json;
} predict_values;

#define AT(member) offsetof(predict_values, member)

static const dsc_option own_options[] = {
    {DSC_CLI_DEVICE(AT(device)), .help = "where to compute", .group = "How to run"},
    {DSC_CLI_THREADS(AT(threads))},
    {.name = "csv",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(csv),
     .help =
         "print a line for each class of each image: file,place,index,class,probability, or file,mask,index,"
         "class,share",
     .group = "Output"},
    {.name = "json",
     .kind = DSC_OPTION_FLAG,
     .offset = AT(json),
     .help = "print one JSON object for each image"},
    DSC_CLI_COMMON_OPTIONS,
};

enum { MAX_OPTIONS = 24, NAME_SIZE = 64 };
static dsc_option options[MAX_OPTIONS]; /* filled in by init */

static void init(void *values) {
    predict_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_predict_options_init(&v->o);
    options[0].name = NULL;
    if (dsc_option_join(options, MAX_OPTIONS, dsc_predict_option_table(), AT(o), sizeof(dsc_predict_options),
                        NULL) == DSC_OK &&
        dsc_option_join(options, MAX_OPTIONS, own_options, 0, SIZE_MAX, NULL) == DSC_OK)
        dsc_option_defaults(options, v);
}

/* ---- one image ---- */

static const char *name_of(const dsc_prediction *p, int64_t place, char text[NAME_SIZE]) {
    if (p->names)
        return p->names[place];
    snprintf(text, NAME_SIZE, "class %lld", (long long)p->classes[place]);
    return text;
}

static void print_table(const dsc_prediction *p) {
    char text[NAME_SIZE];
    printf("%s%s%s\n", p->file, p->mask ? ": " : "", p->mask ? p->mask : "");
    for (int64_t i = 0; i < p->count; i++)
        printf("  %6.2f %%  %s\n", 100 * (p->mask ? p->shares : p->probabilities)[i], name_of(p, i, text));
}

static void print_csv(const dsc_prediction *p) {
    char text[NAME_SIZE];
    for (int64_t i = 0; i < p->count; i++) {
        dsc_cli_print_csv(stdout, p->file);
        printf(",");
        if (p->mask)
            dsc_cli_print_csv(stdout, p->mask);
        else
            printf("%lld", (long long)i + 1);
        printf(",%lld,", (long long)p->classes[i]);
        dsc_cli_print_csv(stdout, name_of(p, i, text));
        printf(",%.9g\n", (p->mask ? p->shares : p->probabilities)[i]);
    }
}

static void print_json(const dsc_prediction *p) {
    json_t *list = json_array();
    for (int64_t i = 0; i < p->count; i++)
        json_array_append_new(list, json_pack("{s:I, s:o, s:f}", "index", (json_int_t)p->classes[i], "class",
                                              p->names ? dsc_cli_json_text(p->names[i]) : json_null(),
                                              p->mask ? "share" : "probability",
                                              (p->mask ? p->shares : p->probabilities)[i]));
    json_t *object = json_pack("{s:o, s:o}", "file", dsc_cli_json_text(p->file), "classes", list);
    if (object && p->mask)
        json_object_set_new(object, "mask", dsc_cli_json_text(p->mask));
    if (object && p->error)
        json_object_set_new(object, "error", dsc_cli_json_text(p->error));
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(object);
}

/* How predictions are printed. */
typedef struct printer {
    predict_format format;
    const char *header; /* to be printed before the first one; NULL: none */
} printer;

static void show(void *context, const dsc_prediction *p) {
    static void (*const prints[])(const dsc_prediction *) = {
        [FORMAT_TABLE] = print_table, [FORMAT_CSV] = print_csv, [FORMAT_JSON] = print_json};
    printer *to = context;
    const predict_format format = to->format;
    if (to->header)
        printf("%s", to->header);
    to->header = NULL;
    if (p->error)
        fprintf(stderr, "descent: passed over: %s\n", p->error);
    if (!p->error || format == FORMAT_JSON)
        prints[format](p);
}

/* ---- the command ---- */

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    predict_values *v = values;
    printer to = {.format = v->csv ? FORMAT_CSV : v->json ? FORMAT_JSON : FORMAT_TABLE};
    dsc_predict_result result = {.size = sizeof result};
    const int count = (int)dsc_option_positional_count(set);
    const char **paths = NULL;
    if (!v->o.checkpoint)
        return DSC_CLI_FAIL(DSC_E_INVALID, "predict needs --checkpoint FILE (or the directory of a run)");
    if (v->csv && v->json)
        return DSC_CLI_FAIL(DSC_E_INVALID, "--csv and --json: choose one of them");
    if (count == 0)
        return DSC_CLI_FAIL(DSC_E_INVALID, "predict needs images: name files or folders");
    DSC_CLI_TRY(dsc_cli_alloc(count, sizeof *paths, &paths));
    for (int i = 0; i < count; i++)
        paths[i] = dsc_option_positional(set, i);
    dsc_status status = dsc_cli_open(session, v->device, v->threads, "auto");
    if (v->csv)
        to.header = v->o.masks ? "file,mask,index,class,share\n" : "file,place,index,class,probability\n";
    if (status == DSC_OK)
        status = dsc_predict_run(session->comm, session->device, &v->o, paths, count, show, &to, &result);
    dsc_cli_free(&paths);
    DSC_CLI_TRY(status);
    if (dsc_cli_prints(session))
        dsc_log(DSC_LOG_INFO, "%lld image%s in %.3f s: %.1f images/s", (long long)result.images,
                result.images == 1 ? "" : "s", result.seconds,
                (double)result.images / (result.seconds > 0 ? result.seconds : 1));
    if (result.bad_images > 0)
        status = DSC_CLI_FAIL(DSC_E_IO, "%lld of %lld image%s cannot be read", (long long)result.bad_images,
                              (long long)(result.images + result.bad_images),
                              result.images + result.bad_images == 1 ? "" : "s");
    return dsc_cli_agree(session, status);
}

const dsc_cli_command dsc_cli_predict = {
    .name = "predict",
    .summary = "tell which classes images show, or their pixels",
    .arguments = "FILE|DIR...",
    .description =
        "Predicts the classes of images with the model in a checkpoint, on all ranks together, and "
        "prints the most probable ones with their probabilities in the order of the images. Of a folder "
        "all images are taken (JPEG, PNG, WebP; with --masks also TIFF), also those of the folders in it, "
        "sorted "
        "by name. Names of classes, image "
        "size and normalisation are those of the checkpoint; a file of PyTorch's has none, and --model "
        "names its model.\n\n"
        "With a model that predicts every pixel, such as unet-bn, --masks DIR is needed: DIR/NAME.png "
        "becomes the mask of every image NAME.*, a grey image of its size that holds the values which "
        "the masks of the training had, as the names of the classes tell them, or the numbers of the "
        "classes. The pages of a TIFF are images of their own: DIR/NAME-001.png is the mask of the first "
        "one, "
        "with as many digits as the last one needs, and DIR/NAME.png that of a single one. Images are not "
        "scaled. Those larger than the model's input are cut into tiles, as in "
        "validation; smaller ones are passed over. The share of the pixels is printed for each class. "
        "Masks that exist are not replaced without --overwrite.\n\n"
        "An image that cannot be read is named on the standard error and passed over; the exit status is "
        "then 1. --csv prints a header and a line for each class of each image; --json prints one object "
        "a line, with the keys file and classes, a list of objects with index, class (null without "
        "names) and probability or share; with --masks there is the key mask, the file, and an image "
        "that cannot be read has the key error. With --verbose the number of images per second is told.",
    .examples = "descent predict --checkpoint runs/lenet-synthetic-1 photo.png\n"
                "mpirun -n 4 descent predict --checkpoint out:best --top 1 --csv photos\n"
                "descent predict --checkpoint runs/cells --masks masks slices test-volume.tif\n",
    .options = options,
    .values_size = sizeof(predict_values),
    .computes = 1,
    .init = init,
    .run = run,
};

/* descent info: version, build, devices; a model's size, its K-FAC layers, and how they would be spread over
 * ranks. */
#include "cli/cli.h"
#include "cli/info_checkpoint.h"
#include "cli/info_plan.h"
#include "cli/json_out.h"
#include "cli/model_facts.h"
#include "cli/support.h"
#include "descent/log.h"
#include "descent/version.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

typedef struct info_values {
    dsc_cli_common common;
    const char *model, *device, *checkpoint;
    int64_t batch;
    int ranks, json;
    dsc_kfac_options kfac;
} info_values;

/* What is printed about a model. */
typedef struct model_info {
    const char *name;
    int ranks;
    const dsc_model_facts *facts;
    const dsc_kfac_options *kfac;
    const dsc_kfac_plan *plan; /* NULL: not asked for */
} model_info;

#define AT(member) offsetof(info_values, member)

static const dsc_option own_options[] = {
    {.name = "model",
     .kind = DSC_OPTION_STRING,
     .offset = AT(model),
     .placeholder = "NAME",
     .default_text = "none: about the program only",
     .help = "describe this model of the zoo, at the input it is made for",
     .group = "Information"},
    {.name = "checkpoint",
     .kind = DSC_OPTION_STRING,
     .offset = AT(checkpoint),
     .placeholder = "FILE|DIR[:best|:latest|:STEP]",
     .default_text = "",
     .help = "describe this checkpoint instead, and compare its check sums"},
    {DSC_CLI_BATCH_SIZE(AT(batch)), .help = "batch per rank to compute memory for"},
    {.name = "ranks",
     .kind = DSC_OPTION_INT,
     .offset = AT(ranks),
     .placeholder = "N",
     .range = "[1, 1e6]",
     .default_text = "those of this job",
     .help = "number of ranks to compute traffic and the K-FAC plan for"},
    {DSC_CLI_DEVICE(AT(device)), .help = "device to compute memory for"},
    {DSC_CLI_JSON(AT(json))},
    DSC_CLI_COMMON_OPTIONS,
};

static int have_mpi(void) {
    return strstr(dsc_build_info(), "with MPI") != NULL;
}

enum { MAX_OPTIONS = 40 };
static dsc_option options[MAX_OPTIONS]; /* filled in by init */

/* The options of K-FAC that a plan depends on. */
static const char plan_options[] =
    "kfac-method kfac-strategy kfac-grad-worker-fraction kfac-placement kfac-colocate-factors kfac-symmetric "
    "kfac-outer-product kfac-diag-blocks kfac-skip-layers kfac-factor-dtype kfac-inverse-dtype";

static void init(void *values) {
    info_values *v = values;
    memset(v, 0, sizeof *v);
    dsc_kfac_options_init(&v->kfac);
    options[0].name = NULL;
    if (dsc_option_join(options, MAX_OPTIONS, own_options, 0, SIZE_MAX,
                        "model checkpoint batch-size ranks device json") == DSC_OK &&
        dsc_option_join(options, MAX_OPTIONS, dsc_kfac_option_table(), AT(kfac), sizeof(dsc_kfac_options),
                        plan_options) == DSC_OK &&
        dsc_option_join(options, MAX_OPTIONS, own_options, 0, SIZE_MAX, "config verbose help") == DSC_OK)
        dsc_option_defaults(options, v);
    for (dsc_option *o = options; o->name; o++)
        if (strncmp(o->name, "kfac-", 5) == 0)
            o->group = "K-FAC plan (printed when one of these is given)";
}

/* The description of a device, which starts with its name, or the reason why it cannot be used. */
static void device_text(const char *name, int threads, char *text, size_t size) {
    dsc_device *device = NULL;
    dsc_device_options o;
    dsc_device_options_init(&o);
    o.name = name;
    o.threads = threads;
    if (dsc_device_create(&o, &device) == DSC_OK)
        snprintf(text, size, "%s", dsc_device_description(device));
    else
        snprintf(text, size, "%s: cannot be used: %s", name, dsc_error_message());
    dsc_device_destroy(&device);
}

/* Bytes of gradients each rank sends in a step: an all-reduce of all parameters in float32. */
static double gradient_bytes(const dsc_model_facts *f, int ranks) {
    return 2.0 * (ranks - 1) / ranks * 4.0 * (double)f->parameters;
}

static double mega(double bytes) {
    return bytes / 1e6;
}

/* ---- text ---- */

static void print_program(const dsc_cli_session *session) {
    char text[256];
    printf("descent %s\n", dsc_version());
    printf("build    %s\n", dsc_build_info());
    for (const char *const *name = dsc_device_names(); *name; name++) {
        device_text(*name, dsc_device_threads(session->device), text, sizeof text);
        printf("device   %s\n", text);
    }
    printf("MPI      %s\n", have_mpi() ? "yes" : "not in this build");
    printf("comm     %s (%d %s)\n", dsc_comm_description(session->comm), dsc_comm_size(session->comm),
           dsc_comm_size(session->comm) == 1 ? "rank" : "ranks");
}

static void print_layers(const dsc_model_facts *f) {
    int width = 5, kind_width = 6;
    for (int64_t i = 0; i < f->layer_count; i++) {
        int kind = (int)strlen(dsc_kfac_kind_name(f->layers[i].kind));
        width = (int)strlen(f->layers[i].name) > width ? (int)strlen(f->layers[i].name) : width;
        kind_width = kind > kind_width ? kind : kind_width;
    }
    printf("\n%-*s  %-*s  %6s  %6s  %6s\n", width, "layer", kind_width, "kind", "A", "G", "groups");
    for (int64_t i = 0; i < f->layer_count; i++) {
        const dsc_kfac_layer *l = &f->layers[i];
        const dsc_layer_factors *factors = &f->factors[i];
        printf("%-*s  %-*s  %6lld  %6lld  %6lld\n", width, l->name, kind_width, dsc_kfac_kind_name(l->kind),
               (long long)factors->a_n, (long long)factors->g_n, (long long)factors->units);
    }
}

static void print_sizes(const dsc_model_facts *f) {
    printf("\n%6s  %6s  %10s\n", "size", "count", "MB");
    for (int64_t i = 0; i < f->size_count; i++) {
        double n = (double)f->sizes[i].size;
        printf("%6lld  %6lld  %10.3f\n", (long long)f->sizes[i].size, (long long)f->sizes[i].count,
               mega(4 * n * n * (double)f->sizes[i].count));
    }
}

static void print_model(const model_info *info) {
    const dsc_model_facts *f = info->facts;
    int ranks = info->ranks;
    char parameters[32], batch[32];
    printf("\nmodel         %s\n", info->name);
    if (dsc_zoo_takes_tokens(info->name))
        printf("input         %lld tokens, vocabulary %lld\n", (long long)f->shape[0], (long long)f->classes);
    else
        printf("input         %lld x %lld x %lld, %lld classes\n", (long long)f->shape[0],
               (long long)f->shape[1], (long long)f->shape[2], (long long)f->classes);
    printf("parameters    %s in %lld tensors, %.1f MB in float32\n",
           dsc_cli_grouped(f->parameters, parameters, sizeof parameters), (long long)f->tensors,
           mega(4.0 * (double)f->parameters));
    printf("operations    %.4g GFLOP for the forward pass of a sample, three times as many in training\n",
           f->flops * 1e-9);
    printf("memory        batch of %s: activations about %.0f MB in training, %.0f MB in evaluation\n",
           dsc_cli_grouped(f->batch, batch, sizeof batch), mega(f->train_bytes), mega(f->eval_bytes));
    printf("traffic       %d %s: %.1f MB of gradients sent by each rank in a step\n", ranks,
           ranks == 1 ? "rank" : "ranks", mega(gradient_bytes(f, ranks)));
    printf("K-FAC layers  %lld\n", (long long)f->layer_count);
    if (f->other_count > 0)
        printf("others        %s parameters in no such layer: %s (norms and embeddings: --kfac-norm, "
               "--kfac-embeddings)\n",
               dsc_cli_grouped(f->other_numbers, parameters, sizeof parameters), f->other_names);
    printf("factors       %lld: %.0f MB in float32, %.0f MB packed\n", (long long)f->factor_count,
           mega(f->factor_bytes), mega(f->packed_bytes));
    if (!info->plan) /* the plan lists the layers as well */
        print_layers(f);
    print_sizes(f);
    if (info->plan)
        dsc_info_plan_print(info->plan, info->kfac, f->layer_count);
}

/* ---- JSON ---- */

static json_t *program_json(const dsc_cli_session *session) {
    char text[256];
    json_t *devices = json_array();
    for (const char *const *name = dsc_device_names(); *name; name++) {
        device_text(*name, dsc_device_threads(session->device), text, sizeof text);
        json_array_append_new(devices, json_pack("{s:s, s:s}", "name", *name, "description", text));
    }
    return json_pack("{s:s, s:s, s:o, s:b, s:{s:s, s:s, s:i}}", "version", dsc_version(), "build",
                     dsc_build_info(), "devices", devices, "mpi", have_mpi(), "comm", "name",
                     dsc_comm_name(session->comm), "description", dsc_comm_description(session->comm),
                     "ranks", dsc_comm_size(session->comm));
}

static json_t *kfac_json(const dsc_model_facts *f) {
    json_t *layers = json_array(), *sizes = json_array();
    for (int64_t i = 0; i < f->layer_count; i++) {
        const dsc_kfac_layer *l = &f->layers[i];
        const dsc_layer_factors *factors = &f->factors[i];
        json_array_append_new(layers,
                              json_pack("{s:s, s:s, s:I, s:I, s:I}", "name", l->name, "kind",
                                        dsc_kfac_kind_name(l->kind), "a", (json_int_t)factors->a_n, "g",
                                        (json_int_t)factors->g_n, "groups", (json_int_t)factors->units));
    }
    for (int64_t i = 0; i < f->size_count; i++)
        json_array_append_new(sizes, json_pack("{s:I, s:I}", "size", (json_int_t)f->sizes[i].size, "count",
                                               (json_int_t)f->sizes[i].count));
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "layers", (json_int_t)f->layer_count, "factors",
                     (json_int_t)f->factor_count, "bytes", (json_int_t)f->factor_bytes, "packed_bytes",
                     (json_int_t)f->packed_bytes, "sizes", sizes, "layer_list", layers);
}

static json_t *model_json(const model_info *info) {
    const dsc_model_facts *f = info->facts;
    json_t *kfac = kfac_json(f);
    if (info->plan && kfac)
        json_object_set_new(kfac, "plan", dsc_info_plan_json(info->plan, info->kfac));
    return json_pack(
        "{s:s, s:[I, I, I], s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:i, s:I, s:o}", "name", info->name, "input",
        (json_int_t)f->shape[0], (json_int_t)f->shape[1], (json_int_t)f->shape[2], "classes",
        (json_int_t)f->classes, "parameters", (json_int_t)f->parameters, "flops_per_sample", f->flops,
        "tensors", (json_int_t)f->tensors, "batch_size", (json_int_t)f->batch, "train_bytes",
        (json_int_t)f->train_bytes, "eval_bytes", (json_int_t)f->eval_bytes, "ranks", info->ranks,
        "gradient_bytes_sent", (json_int_t)gradient_bytes(f, info->ranks), "kfac", kfac);
}

static dsc_status print_json(const dsc_cli_session *session, const model_info *info) {
    json_t *object = program_json(session);
    if (info->facts && object)
        json_object_set_new(object, "model", model_json(info));
    if (!object)
        return DSC_CLI_FAIL(DSC_E_MEMORY, "cannot build the JSON text");
    dsc_cli_print_json(object, stdout);
    json_decref(object);
    return DSC_OK;
}

static dsc_status show(const dsc_cli_session *session, const info_values *v, const model_info *info) {
    if (!dsc_cli_prints(session))
        return DSC_OK;
    if (v->json)
        return print_json(session, info);
    print_program(session);
    if (info->facts)
        print_model(info);
    return DSC_OK;
}

static dsc_status create_model(dsc_device *device, const char *name, dsc_model **out) {
    int64_t side, channels, classes;
    dsc_model_options o;
    dsc_model_options_init(&o);
    o.zeros = 1;
    DSC_CLI_TRY(dsc_zoo_default_input(name, &side, &channels, &classes));
    DSC_CLI_TRY(dsc_zoo_create(device, name, side, side, channels, classes, &o, out));
    return DSC_OK;
}

/* The first option of K-FAC that was given, NULL for none. */
static const char *kfac_option(const dsc_option_set *set) {
    for (const dsc_option *o = options; o->name; o++)
        if (strncmp(o->name, "kfac-", 5) == 0 && dsc_option_given(set, o->name))
            return o->name;
    return NULL;
}

/* Checks that need no model and no device. */
static dsc_status check(const info_values *v, const dsc_option_set *set) {
    int64_t side, channels, classes;
    if (v->model && v->checkpoint)
        return DSC_CLI_FAIL(
            DSC_E_INVALID,
            "--model and --checkpoint exclude each other: a checkpoint says which model it is of");
    if (v->model)
        return dsc_zoo_default_input(v->model, &side, &channels, &classes);
    if (kfac_option(set))
        return DSC_CLI_FAIL(DSC_E_INVALID,
                            "--%s is about the plan for a model's layers: name the model with --model",
                            kfac_option(set));
    return DSC_OK;
}

static dsc_status describe_model(const dsc_cli_session *session, const info_values *v, int with_plan,
                                 dsc_model *model) {
    dsc_model_facts *facts = NULL;
    dsc_kfac_plan *plan = NULL;
    dsc_kfac_options usual;
    dsc_kfac_options_init(&usual);
    if (v->kfac.strategy != DSC_KFAC_HYBRID_OPT && v->kfac.grad_worker_fraction != usual.grad_worker_fraction)
        dsc_log(DSC_LOG_WARNING,
                "--kfac-grad-worker-fraction %g has no effect: only --kfac-strategy hybrid-opt uses it",
                v->kfac.grad_worker_fraction);
    model_info info = {
        .name = v->model, .ranks = v->ranks > 0 ? v->ranks : dsc_comm_size(session->comm), .kfac = &v->kfac};
    dsc_status status = dsc_model_facts_create(model, v->batch, &facts);
    if (status == DSC_OK && with_plan)
        status = dsc_kfac_plan_create(facts->layers, facts->layer_count, info.ranks, &v->kfac,
                                      v->kfac.diag_blocks, &plan);
    info.facts = facts;
    info.plan = plan;
    if (status == DSC_OK)
        status = show(session, v, &info);
    dsc_kfac_plan_destroy(&plan);
    dsc_model_facts_destroy(&facts);
    return status;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const info_values *v = values;
    dsc_model *model = NULL;
    DSC_CLI_TRY(check(v, set));
    if (v->checkpoint)
        return dsc_cli_prints(session) ? dsc_info_checkpoint_print(v->checkpoint, v->json) : DSC_OK;
    DSC_CLI_TRY(dsc_cli_open(session, v->device, 0, "auto"));
    if (!v->model)
        return show(session, v, &(model_info){0});
    dsc_status status = create_model(session->device, v->model, &model);
    if (status == DSC_OK)
        status = describe_model(session, v, kfac_option(set) != NULL, model);
    dsc_model_destroy(&model);
    return status;
}

const dsc_cli_command dsc_cli_info = {
    .name = "info",
    .summary = "show version, build and devices, the size of a model and its K-FAC plan",
    .description =
        "Prints the version, the build and the devices of this machine. With --model also a model's input, "
        "parameters, memory for a batch, the gradients each rank sends in a step, and its layers with the "
        "sizes of their K-FAC factors: A has kh*kw*in rows (one more with a bias), G has out rows, per "
        "group of a grouped convolution. MB are 10^6 bytes.\n\n"
        "With an option of K-FAC it also prints the plan for --ranks ranks, without training: the grid of "
        "ranks; for each layer its column and the ranks that decompose its factors; and for each rank its "
        "share of the decomposition work (the sum of n^3), the bytes it holds, and the bytes it sends each "
        "time factors are updated, each time they are decomposed, and in every step.\n\n"
        "With --checkpoint it prints what a checkpoint says about itself (model, data, steps, image size, "
        "class names, normalisation, vocabulary, mask, loss), reads all of it and compares the check sums; "
        "damage gives exit status "
        "2.",
    .examples = "descent info\n"
                "descent info --checkpoint runs/lenet-synthetic-1:best\n"
                "descent info --model resnet50 --ranks 16\n"
                "descent info --model resnet32 --json\n"
                "descent info --model resnet50 --ranks 64 --kfac-strategy hybrid-opt "
                "--kfac-grad-worker-fraction 1/4\n",
    .options = options,
    .values_size = sizeof(info_values),
    .init = init,
    .run = run,
};

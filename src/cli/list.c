/* descent list: the names that options take. */
#include "cli/cli.h"
#include "cli/json_out.h"
#include "cli/support.h"
#include "descent/consensus.h"
#include "descent/data.h"
#include "descent/model.h"
#include "descent/optim.h"
#include "descent/topology.h"
#include "descent/train.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

typedef struct list_values {
    dsc_cli_common common;
    int json;
} list_values;

#define AT(member) offsetof(list_values, member)

static const dsc_option options[] = {{DSC_CLI_JSON(AT(json)), .group = "Output"}, DSC_CLI_COMMON_OPTIONS};

static void init(void *values) {
    memset(values, 0, sizeof(list_values));
    dsc_option_defaults(options, values);
}

static const char *const *optimiser_names(void) {
    return dsc_option_find(dsc_optim_option_table(), "optimizer")->choices;
}

static const char *const *consensus_names(void) {
    return dsc_option_find(dsc_consensus_option_table(), "consensus")->choices;
}

static const char *const *schedule_names(void) {
    return dsc_option_find(dsc_train_option_table(), "lr-schedule")->choices;
}

enum { TEXT = 256 }; /* of a description */

/* A kind of names to list, with the option that takes them. `describe` writes the text after a name, and `add` adds the
 * name's further members to its JSON object; NULL: there is nothing to add. */
typedef struct kind {
    const char *name, *option;
    const char *const *(*names)(void);
    void (*describe)(const char *name, char *text, size_t size);
    void (*add)(const char *name, json_t *object);
} kind;

static void describe_model(const char *name, char *text, size_t size) {
    int64_t side, channels, classes;
    const void *defaults;
    const dsc_option *keys = dsc_zoo_keys(name, &defaults);
    char value[64];
    if (dsc_zoo_default_input(name, &side, &channels, &classes) != DSC_OK)
        return;
    if (dsc_zoo_takes_tokens(name))
        snprintf(text, size, "made for %lld tokens, vocabulary %lld", (long long)side, (long long)classes);
    else
        snprintf(text, size, "made for %lldx%lldx%lld, %lld %s", (long long)side, (long long)side,
                 (long long)channels, (long long)classes, classes == 1 ? "class" : "classes");
    for (const dsc_option *key = keys; key && key->name; key++) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s %s=%s", key == keys ? "; keys" : ",", key->name,
                 dsc_option_get_value(key, defaults, value, sizeof value));
    }
}

/* The keys of the model's spec: all are numbers. */
static void add_keys(const char *name, json_t *object) {
    const void *defaults;
    const dsc_option *keys = dsc_zoo_keys(name, &defaults);
    json_t *list = json_array();
    for (const dsc_option *key = keys; key && key->name; key++) {
        char value[64], range[64];
        dsc_option_get_value(key, defaults, value, sizeof value);
        dsc_option_range_text(key->range, range, sizeof range);
        json_array_append_new(list, json_pack("{s:s, s:o, s:s, s:s}", "name", key->name, "default",
                                              json_loads(value, JSON_DECODE_ANY, NULL), "values", range,
                                              "description", key->help));
    }
    json_object_set_new(object, "keys", list);
}

static void describe_data(const char *name, char *text, size_t size) {
    snprintf(text, size, "%s", dsc_dataset_usage(name));
}

static const kind kinds[] = {{"models", "train --model", dsc_zoo_names, describe_model, add_keys},
                             {"data", "train --data", dsc_dataset_names, describe_data, NULL},
                             {"optimizers", "train --optimizer", optimiser_names, NULL, NULL},
                             {"schedules", "train --lr-schedule", schedule_names, NULL, NULL},
                             {"consensus", "train --consensus", consensus_names, NULL, NULL},
                             {"graphs", "train --graph", dsc_topology_names, NULL, NULL},
                             {"devices", "train --device", dsc_device_names, NULL, NULL}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void print_kind(const kind *k, int several) {
    if (several)
        printf("%s%s (%s)\n", k == kinds ? "" : "\n", k->name, k->option);
    for (const char *const *name = k->names(); *name; name++) {
        char text[TEXT] = "";
        if (k->describe)
            k->describe(*name, text, sizeof text);
        printf("%s%-*s%s%s\n", several ? "  " : "", *text ? 12 : 0, *name, *text ? "  " : "", text);
    }
}

static json_t *kind_json(const kind *k) {
    json_t *list = json_array();
    for (const char *const *name = k->names(); *name; name++) {
        char text[TEXT] = "";
        if (k->describe)
            k->describe(*name, text, sizeof text);
        json_t *entry =
            k->describe ? json_pack("{s:s, s:s}", "name", *name, "description", text) : json_string(*name);
        if (k->add)
            k->add(*name, entry);
        json_array_append_new(list, entry);
    }
    return list;
}

static dsc_status find_kind(const dsc_option_set *set, const kind **out) {
    const char *names[KINDS], *wanted = dsc_option_positional(set, 0);
    char known[128] = "";
    for (int i = 0; i < KINDS; i++) {
        size_t used = strlen(known);
        names[i] = kinds[i].name;
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
        if (strcmp(wanted, names[i]) == 0) {
            *out = &kinds[i];
            return DSC_OK;
        }
    }
    const char *nearest = dsc_option_nearest(wanted, names, KINDS);
    return DSC_CLI_FAIL(DSC_E_INVALID, "list '%s': known are %s%s%s%s", wanted, known,
                        nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const list_values *v = values;
    const kind *only = NULL;
    if (dsc_option_positional_count(set) > 1)
        return DSC_CLI_FAIL(DSC_E_INVALID, "unexpected argument '%s': one kind can be listed, or all",
                            dsc_option_positional(set, 1));
    if (dsc_option_positional_count(set) == 1)
        DSC_CLI_TRY(find_kind(set, &only));
    if (!dsc_cli_prints(session))
        return DSC_OK;
    json_t *object = json_object();
    for (const kind *k = kinds; k < kinds + KINDS; k++) {
        if (only && k != only)
            continue;
        if (v->json)
            json_object_set_new(object, k->name, kind_json(k));
        else
            print_kind(k, !only);
    }
    if (v->json)
        dsc_cli_print_json(object, stdout);
    json_decref(object);
    return DSC_OK;
}

const dsc_cli_command dsc_cli_list = {
    .name = "list",
    .summary = "list models, data sets, optimisers, schedules, graphs and devices",
    .arguments = "[models|data|optimizers|schedules|consensus|graphs|devices]",
    .description =
        "Prints the names that the options of train take, all of them or one kind. After a model's name come "
        "the keys that change its size, with their defaults; they are given as in "
        "gpt-mini:layers=4,width=128. "
        "With --json the result is one object with these kinds; models and data are lists of objects with "
        "name and description, of models also with keys (each with name, default, values and description), "
        "the others lists of names.",
    .examples = "descent list\n"
                "descent list graphs\n"
                "descent list models --json\n",
    .options = options,
    .values_size = sizeof(list_values),
    .init = init,
    .run = run,
};

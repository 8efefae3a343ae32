/* Options of rank 0 and of another, compared as the `config` of metrics.jsonl. */
#include "train/same_options.h"

#include "base/error.h"
#include "base/memory.h"
#include "train/metrics.h"
#include "train/share.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_SIZE = 80, VALUE_SIZE = 160 };

static void write_value(const json_t *value, char text[VALUE_SIZE]) {
    char *whole = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(text, VALUE_SIZE, "%s", whole ? whole : "(none)");
    free(whole);
}

/* `outer`: of the object that both are in, with a dot behind; "" for none. */
static dsc_status compare(const char *outer, json_t *first, json_t *own) {
    const char *key;
    json_t *expected;
    json_object_foreach(first, key, expected) {
        json_t *found = json_object_get(own, key);
        char name[KEY_SIZE], a[VALUE_SIZE], b[VALUE_SIZE];
        if (json_equal(expected, found))
            continue;
        if (json_is_object(expected) && json_is_object(found)) {
            snprintf(name, sizeof name, "%s%s.", outer, key);
            return compare(name, expected, found);
        }
        write_value(expected, a);
        write_value(found, b);
        return DSC_FAIL(DSC_E_INVALID,
                        "started with other options than rank 0: %s%s %s instead of %s; give every rank the "
                        "same (configuration files may differ between nodes)",
                        outer, key, b, a);
    }
    return DSC_OK;
}

/* The options without what may differ, and whether anything is written, which all ranks take part in. */
static json_t *describe(const dsc_train_options *o) {
    json_t *config = dsc_metrics_config(o);
    size_t kind = strcspn(o->data, ":");
    if (o->data[kind] == ':' && strncmp(o->data, "synthetic", kind) != 0)
        json_object_set_new(config, "data", json_stringn(o->data, kind));
    json_object_del(config, "data_threads");
    json_object_set_new(config, "out", json_boolean(o->out != NULL));
    return config;
}

static dsc_status write_first(json_t *own, char **first) {
    char *text = json_dumps(own, JSON_COMPACT);
    dsc_status status = text ? dsc_memory_strdup(text, first)
                             : DSC_FAIL(DSC_E_MEMORY, "no memory to compare the options of the ranks");
    free(text);
    return status;
}

static dsc_status compare_with(const char *text, json_t *own) {
    json_t *first = json_loads(text, 0, NULL);
    if (!first)
        return DSC_FAIL(DSC_E_MEMORY, "no memory to compare the options of the ranks");
    dsc_status status = compare("", first, own);
    json_decref(first);
    return status;
}

dsc_status dsc_same_options_check(dsc_trainer *t) {
    char *text = NULL;
    if (t->ranks == 1)
        return DSC_OK;
    json_t *own = describe(&t->options);
    dsc_status status = t->rank == 0 ? write_first(own, &text) : DSC_OK;
    status = dsc_share_text(t->comm, t->queue, status, &text);
    if (status == DSC_OK)
        status = dsc_comm_agree(t->comm, compare_with(text, own));
    json_decref(own);
    dsc_memory_free(&text);
    return status;
}

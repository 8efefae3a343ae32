#include "model/zoo/spec.h"

#include "base/error.h"
#include "model/graph.h"

#include <stdio.h>
#include <string.h>

enum { KEYS = 16, LIST = 512 }; /* the most keys of a model, and the size of a buffer for a list of them */

size_t dsc_zoo_spec_name_length(const char *spec) {
    return strcspn(spec, ":");
}

/* Writes "keys of unet and their defaults: width=64, dropout=0.5" to `out` and returns it. */
static const char *list_keys(const char *spec, const dsc_option *keys, const void *defaults, char *out) {
    int length = (int)dsc_zoo_spec_name_length(spec);
    char value[64];
    if (!keys) {
        snprintf(out, LIST, "%.*s has no keys", length, spec);
        return out;
    }
    size_t used = (size_t)snprintf(out, LIST, "keys of %.*s and their defaults:", length, spec);
    for (int i = 0; keys[i].name && used < LIST; i++)
        used += (size_t)snprintf(out + used, LIST - used, "%s %s=%s", i ? "," : "", keys[i].name,
                                 dsc_option_get_value(&keys[i], defaults, value, sizeof value));
    return out;
}

/* Reads one "key=value", whose text is changed. `given` has a flag for every key. */
static dsc_status read_pair(char *pair, const dsc_option *keys, int *given, void *design) {
    char *equals = strchr(pair, '=');
    if (!equals || equals == pair || !equals[1])
        return DSC_FAIL(DSC_E_INVALID, "'%s' is not of the form key=value", pair);
    *equals = '\0';
    const dsc_option *key = keys ? dsc_option_find(keys, pair) : NULL;
    if (!key)
        return DSC_FAIL(DSC_E_INVALID, "there is no key '%s'", pair);
    if (given[key - keys]++)
        return DSC_FAIL(DSC_E_INVALID, "%s is given twice", pair);
    return dsc_option_set_value(keys, design, pair, equals + 1);
}

dsc_status dsc_zoo_spec_read(const char *spec, const dsc_option *keys, void *design) {
    char text[DSC_MODEL_NAME_SIZE], list[LIST];
    int given[KEYS] = {0};
    size_t length = strlen(spec), name = dsc_zoo_spec_name_length(spec);
    if (length >= sizeof text)
        return DSC_FAIL(DSC_E_INVALID,
                        "model '%.80s': the name has %zu characters, but at most %zu are possible", spec,
                        length, sizeof text - 1);
    if (name == length)
        return DSC_OK;
    /* The list shows the defaults, which the design holds until a key changes them. */
    list_keys(spec, keys, design, list);
    memcpy(text, spec, length + 1);
    for (char *pair = text + name + 1, *next; pair; pair = next) {
        next = strchr(pair, ',');
        if (next)
            *next++ = '\0';
        dsc_status status = read_pair(pair, keys, given, design);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "model '%s' (%s)", spec, list);
    }
    return DSC_OK;
}

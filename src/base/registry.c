#include "base/registry.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

static void append(dsc_registry *r, const char *name, const void *entry) {
    r->entries[r->count] = entry;
    r->names[r->count++] = name;
}

/* Locks the table. The first time, adds the built-in entries. */
static void enter(dsc_registry *r) {
    const void *entry = NULL;
    const char *name;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i == r->count && (name = r->built_in(i, &entry)); i++)
        append(r, name, entry);
}

static const void *find(const dsc_registry *r, const char *name, size_t length) {
    for (int i = 0; i < r->count; i++)
        if (strlen(r->names[i]) == length && strncmp(r->names[i], name, length) == 0)
            return r->entries[i];
    return NULL;
}

static dsc_status check_name(const dsc_registry *r, const char *name) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (!name || !*name || name[strspn(name, allowed)])
        return DSC_FAIL(DSC_E_INVALID,
                        "%s '%s' cannot be registered: a name is made of letters, digits, '-', '_' and '.'",
                        r->what, name ? name : "");
    if (find(r, name, strlen(name)))
        return DSC_FAIL(DSC_E_INVALID, "%s '%s' cannot be registered: there is one of this name already",
                        r->what, name);
    if (r->count == DSC_REGISTRY_ROOM)
        return DSC_FAIL(DSC_E_INVALID, "%s '%s' cannot be registered: the table is full, it has room for %d",
                        r->what, name, DSC_REGISTRY_ROOM);
    return DSC_OK;
}

dsc_status dsc_registry_add(dsc_registry *registry, const char *name, const void *entry) {
    enter(registry);
    dsc_status status = check_name(registry, name);
    if (status == DSC_OK)
        append(registry, name, entry);
    pthread_mutex_unlock(&registry->lock);
    return status;
}

const void *dsc_registry_find(dsc_registry *registry, const char *name, size_t length) {
    enter(registry);
    const void *entry = find(registry, name, length);
    pthread_mutex_unlock(&registry->lock);
    return entry;
}

const char *const *dsc_registry_names(dsc_registry *registry) {
    enter(registry);
    pthread_mutex_unlock(&registry->lock);
    return registry->names;
}

const char *dsc_registry_list(const char *const *names, char *out, size_t size) {
    static const char more[] = ", ...";
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; names[i]; i++) {
        if (used + strlen(names[i]) + 2 + sizeof more > size) {
            snprintf(out + used, size - used, "%s", more);
            break;
        }
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", names[i]);
    }
    return out;
}

/* A table of named objects (models, data sets, graphs) to which more can be added while the program runs.
 *
 * Its capacity is fixed, so that neither an entry nor the list of names ever moves: pointers to them stay
 * valid while another thread registers something. Entries stay until the process ends. */
#ifndef DSC_BASE_REGISTRY_H
#define DSC_BASE_REGISTRY_H

#include "descent/status.h"

#include <pthread.h>
#include <stddef.h>

enum { DSC_REGISTRY_ROOM = 256 };

/* Statically initialised by DSC_REGISTRY. */
typedef struct dsc_registry {
    const char *what; /* what an entry is, for messages: "model" */
    /* Sets *entry to built-in entry i and returns its name; NULL after the last. They are added first. */
    const char *(*built_in)(int i, const void **entry);
    pthread_mutex_t lock;
    int count;
    const void *entries[DSC_REGISTRY_ROOM];
    const char *names[DSC_REGISTRY_ROOM + 1]; /* terminated by NULL */
} dsc_registry;

#define DSC_REGISTRY(noun, function)                                                                         \
    { .what = (noun), .built_in = (function), .lock = PTHREAD_MUTEX_INITIALIZER }

/* Adds `entry`, which like `name` must stay valid until the process ends. DSC_E_INVALID if the name is in use, is
 * empty or has characters other than letters, digits, '-', '_' and '.', or if the table is full. */
dsc_status dsc_registry_add(dsc_registry *registry, const char *name, const void *entry) DSC_MUST_CHECK;
/* Returns the entry whose name is the first `length` characters of `name`, or NULL if there is none. */
const void *dsc_registry_find(dsc_registry *registry, const char *name, size_t length);
/* Returns all names, in the order of registration, terminated by NULL. */
const char *const *dsc_registry_names(dsc_registry *registry);
/* Writes "a, b, c" to out[size]; names that do not fit are replaced by "...". Returns `out`. */
const char *dsc_registry_list(const char *const *names, char *out, size_t size);

#endif

/* Finds and loads modules. */
#define _GNU_SOURCE /* dladdr */
#include "base/module.h"

#include "base/config.h"
#include "base/error.h"
#include "descent/version.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODULES_MAX = 8, PATH_SIZE = 4096, SEARCHED_SIZE = 1200 };

static struct {
    pthread_mutex_t lock;
    int count;
    const dsc_module *modules[MODULES_MAX];
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The search for a module's file. */
typedef struct search {
    const char *name;             /* of the module */
    char path[PATH_SIZE];         /* the file that was found */
    char searched[SEARCHED_SIZE]; /* the files that do not exist, for the message */
} search;

/* ---- finding the file ---- */

/* Adds a file to the list for the message, or "..." if the list is full. */
static void note_searched(search *s, const char *path) {
    size_t used = strlen(s->searched);
    if (used >= 3 && strcmp(s->searched + used - 3, "...") == 0)
        return;
    int fits = used + strlen(path) + sizeof ", , ..." <= SEARCHED_SIZE;
    snprintf(s->searched + used, SEARCHED_SIZE - used, "%s%s", used > 0 ? ", " : "", fits ? path : "...");
}

/* Returns 1 if FOLDER[/BELOW]/libdescent-NAME.so exists, whose path is then in s->path. */
static int is_in(search *s, const char *folder, size_t length, const char *below) {
    int n = snprintf(s->path, sizeof s->path, "%.*s%s%s/libdescent-%s.so", (int)length, folder,
                     *below ? "/" : "", below, s->name);
    if (n < 0 || (size_t)n >= sizeof s->path)
        return 0;
    if (access(s->path, F_OK) == 0)
        return 1;
    note_searched(s, s->path);
    return 0;
}

/* Searches the folders of a colon-separated list. */
static int is_in_list(search *s, const char *list) {
    while (list && *list) {
        size_t length = strcspn(list, ":");
        if (length > 0 && is_in(s, list, length, ""))
            return 1;
        list += length;
        list += *list == ':';
    }
    return 0;
}

/* Searches the folder of modules beside the file `library`. */
static int is_beside(search *s, const char *library) {
    const char *slash = strrchr(library, '/');
    return slash ? is_in(s, library, (size_t)(slash - library), DSC_MODULE_FOLDER)
                 : is_in(s, ".", 1, DSC_MODULE_FOLDER);
}

/* Searches beside this library: beside the path from which it was loaded and, if that is a link, beside its target. */
static int is_beside_library(search *s) {
    Dl_info own;
    char real[PATH_SIZE];
    if (!dladdr((void *)&loaded, &own) || !own.dli_fname)
        return 0;
    if (is_beside(s, own.dli_fname))
        return 1;
    return realpath(own.dli_fname, real) && strcmp(real, own.dli_fname) != 0 && is_beside(s, real);
}

static dsc_status find_file(search *s) {
    if (is_in_list(s, getenv("DESCENT_MODULES")) || is_beside_library(s))
        return DSC_OK;
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "the module '%s' is not installed: searched for %s; install it there, or set "
                    "DESCENT_MODULES to the folder that it is in",
                    s->name, s->searched);
}

/* ---- loading ---- */

/* Loads the file. The symbols of a module and of all libraries that it needs stay local, because other parts of the
 * process may use other copies of them. A module is never closed: its libraries leave threads and exit handlers. */
static dsc_status open_file(const search *s, const char *function, const dsc_module **out) {
    void *handle = dlopen(s->path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *reason = dlerror();
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "the module '%s' cannot be loaded: %s; it is the file %s; a library that it needs "
                        "must be installed, or LD_LIBRARY_PATH must name its folder",
                        s->name, reason ? reason : "unknown reason", s->path);
    }
    dsc_module_function entry;
    void *symbol = dlsym(handle, function);
    if (!symbol)
        return DSC_FAIL(DSC_E_FORMAT, "%s is no module of descent: it has no function %s", s->path, function);
    memcpy(&entry, &symbol, sizeof entry); /* ISO C does not convert object pointers to function pointers */
    *out = entry();
    return DSC_OK;
}

static dsc_status check_module(const search *s, const dsc_module *module) {
    if (strcmp(module->version, DSC_VERSION_STRING) != 0)
        return DSC_FAIL(DSC_E_FORMAT,
                        "%s is a module of descent %s, but this library is version %s: install the two "
                        "together",
                        s->path, module->version, DSC_VERSION_STRING);
    if (strcmp(module->name, s->name) != 0)
        return DSC_FAIL(DSC_E_FORMAT, "%s is the module '%s' under another name", s->path, module->name);
    if (loaded.count == MODULES_MAX)
        return DSC_FAIL(DSC_E_INTERNAL, "more than %d modules", MODULES_MAX);
    return DSC_OK;
}

static const dsc_module *find_loaded(const char *name) {
    for (int i = 0; i < loaded.count; i++) {
        if (!name || strcmp(loaded.modules[i]->name, name) == 0)
            return loaded.modules[i];
    }
    return NULL;
}

/* Loads a module, unless that has been done. With the lock held. */
static dsc_status load(const char *name, const char *function, const dsc_module **out) {
    search s = {.name = name};
    *out = find_loaded(name);
    if (*out)
        return DSC_OK;
    DSC_TRY(find_file(&s));
    DSC_TRY(open_file(&s, function, out));
    DSC_TRY(check_module(&s, *out));
    loaded.modules[loaded.count++] = *out;
    return DSC_OK;
}

dsc_status dsc_module_load(const char *name, const char *function, const void **table) {
    const dsc_module *module = NULL;
    pthread_mutex_lock(&loaded.lock);
    dsc_status status = load(name, function, &module);
    pthread_mutex_unlock(&loaded.lock);
    DSC_TRY(status);
    *table = module->table;
    return DSC_OK;
}

int dsc_module_is_loaded(const char *name) {
    pthread_mutex_lock(&loaded.lock);
    int is = find_loaded(name) != NULL;
    pthread_mutex_unlock(&loaded.lock);
    return is;
}

/* Modules: backends that need third-party libraries (CUDA, NCCL, MPI) are separate files, loaded when they are
 * first used, so that libdescent.so itself works without these libraries.
 *
 * A module exports one function, which returns its table. Its file is searched for in the folders that the
 * environment variable DESCENT_MODULES lists (separated by colons), then in the folder DSC_MODULE_FOLDER beside
 * libdescent.so; the first one that exists is loaded. Modules stay loaded until the process ends. */
#ifndef DSC_BASE_MODULE_H
#define DSC_BASE_MODULE_H

#include "base/visible.h"
#include "descent/status.h"

/* What a module's exported function returns. */
typedef struct dsc_module {
    const char *version; /* DSC_VERSION_STRING when it was built: must equal the library's */
    const char *name;    /* "cuda", "nccl", "openmpi", "mpich" */
    const void *table;   /* functions, of a type that the module and its caller agree on */
} dsc_module;

typedef const dsc_module *(*dsc_module_function)(void);

/* Sets *table to that of the module `name`, loading its file libdescent-NAME.so if necessary; `function` is the
 * function that it exports. DSC_E_UNSUPPORTED if the file is not found (the message names the files searched for) or
 * a library that it needs is missing; DSC_E_FORMAT if the file is not a module, or one of another version. */
dsc_status dsc_module_load(const char *name, const char *function, const void **table) DSC_MUST_CHECK;
/* Returns 1 if the module `name` has been loaded, or, if `name` is NULL, any module. */
int dsc_module_is_loaded(const char *name);

#endif

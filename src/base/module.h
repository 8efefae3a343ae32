/* Modules: backends that need libraries of others (CUDA, NCCL, an MPI) are files beside libdescent.so, loaded
 * when they are used for the first time, so that the library starts without these libraries.
 *
 * A module exports one function, which returns its table. The file lies in one of the folders of the
 * environment variable DESCENT_MODULES (separated by colons), or in the folder DSC_MODULE_FOLDER beside
 * libdescent.so. The first file that exists is taken. Modules stay loaded until the process ends. */
#ifndef DSC_BASE_MODULE_H
#define DSC_BASE_MODULE_H

#include "base/visible.h"
#include "descent/status.h"

/* What the function of a module returns. */
typedef struct dsc_module {
    const char *version; /* DSC_VERSION_STRING of its build: must be the library's */
    const char *name;    /* "cuda", "nccl", "openmpi", "mpich" */
    const void *table;   /* functions, of a type that the module and its caller agree on */
} dsc_module;

typedef const dsc_module *(*dsc_module_function)(void);

/* *table = that of the module `name`, in the file libdescent-NAME.so, whose exported function is `function`.
 * DSC_E_UNSUPPORTED when it is not found or the libraries that it needs are missing; the message names the
 * files that were searched for. DSC_E_FORMAT when the file is no module or is one of another version. */
dsc_status dsc_module_load(const char *name, const char *function, const void **table) DSC_MUST_CHECK;
/* 1 when that has been done for `name`, or for any module when `name` is NULL. */
int dsc_module_is_loaded(const char *name);

#endif

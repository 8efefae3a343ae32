/* Plug-ins of Open MPI before version 5 use symbols of libmpi without being linked to it. They find them if
 * libmpi was loaded with the program, but not if it was loaded with a module, whose libraries are visible
 * to that module alone. So libmpi, and nothing else, is made visible globally. */
#define _GNU_SOURCE /* dladdr */
#include "comm/mpi/mpi.h"

#include <dlfcn.h>
#include <string.h>

void dsc_mpi_serve_plugins(void) {
    int (*function)(int *, char ***) = MPI_Init;
    void *address;
    Dl_info info;
    memcpy(&address, &function,
           sizeof address); /* ISO C does not convert function pointers to object pointers */
    if (dladdr(address, &info) && info.dli_fname)
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

/* Finds out which MPI library the process has loaded, without linking to one: a program that uses MPI itself, or
 * a Python process with mpi4py, needs the module that was built for the same library. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "comm/backends.h"

#include <dlfcn.h>
#include <string.h>

enum { VERSION_SIZE = 16384 }; /* more than MPI_MAX_LIBRARY_VERSION_STRING of any library */

/* The file names of MPI libraries: Open MPI, MPICH and others with its ABI (Intel MPI, MVAPICH, Cray MPICH), and
 * MPICH in Debian. */
static const char *const files[] = {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12"};

typedef int (*version_function)(char *text, int *length);
typedef int (*flag_function)(int *flag);

/* Looks up the function `name` in a library. ISO C does not convert object pointers to function pointers. */
static int find_function(void *handle, const char *name, void *out) {
    void *symbol = dlsym(handle, name);
    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Both functions may be called before MPI_Init and after MPI_Finalize. */
static int is_initialised(void *handle) {
    flag_function initialised, finalised;
    int is = 0, was = 0;
    if (!find_function(handle, "MPI_Initialized", &initialised) ||
        !find_function(handle, "MPI_Finalized", &finalised))
        return 0;
    initialised(&is);
    finalised(&was);
    return is && !was;
}

static const char *library_of(void *handle) {
    static const char *const of_mpich[] = {"MPICH", "Intel", "MVAPICH", "CRAY"};
    char text[VERSION_SIZE] = "";
    int length = 0;
    version_function version;
    if (!find_function(handle, "MPI_Get_library_version", &version))
        return NULL;
    version(text, &length);
    if (strstr(text, "Open MPI"))
        return "openmpi";
    for (size_t i = 0; i < sizeof of_mpich / sizeof *of_mpich; i++) {
        if (strstr(text, of_mpich[i]))
            return "mpich";
    }
    return "mpi";
}

static const char *look_into(void *handle, int *is_up) {
    const char *library = library_of(handle);
    if (library)
        *is_up = is_initialised(handle);
    return library;
}

const char *dsc_mpi_in_process(int *is_up) {
    const char *library = look_into(RTLD_DEFAULT, is_up);
    /* The libraries of a Python extension are not visible globally. */
    for (size_t i = 0; !library && i < sizeof files / sizeof *files; i++) {
        void *handle = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            library = look_into(handle, is_up);
            (void)dlclose(handle); /* only drops a reference: the library stays loaded */
        }
    }
    if (!library)
        *is_up = 0;
    return library;
}

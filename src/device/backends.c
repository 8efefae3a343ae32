/* Lists the device backends of this build, and finds the functions of cuda. Compiled twice: with
 * DSC_LOAD_MODULES for libdescent.so, and without it for everything that has the backend linked in. */
#include "device/backends.h"

#include "base/config.h"
#include "base/error.h"

#if defined(DSC_HAVE_CUDA) || defined(DSC_EMULATED)
#define WITH_CUDA 1
#else
#define WITH_CUDA 0
#endif

static const char *const names[] = {"ref", "cpu",
#if WITH_CUDA
                                    "cuda",
#endif
                                    NULL};

const char *const *dsc_device_names(void) {
    return names;
}

int dsc_cuda_is_fastest(void) {
#ifdef DSC_EMULATED
    return 0;
#else
    return WITH_CUDA;
#endif
}

dsc_status dsc_cuda_find(const dsc_cuda_functions **out) {
#if WITH_CUDA && defined(DSC_LOAD_MODULES)
    const void *table;
    DSC_TRY(dsc_module_load("cuda", "dsc_cuda_module", &table));
    *out = table;
    return DSC_OK;
#elif WITH_CUDA
    *out = dsc_cuda_module()->table;
    return DSC_OK;
#else
    (void)out;
    return DSC_FAIL(DSC_E_UNSUPPORTED, "this build has no CUDA; configure it with -DDESCENT_CUDA=ON, or use "
                                       "device cpu");
#endif
}

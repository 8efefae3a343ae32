/* The cuda backend as the rest of the library sees it: one table of functions. The backend is linked in, or it is the
 * module 'cuda' (base/module.h); backends.c is compiled once for each case. */
#ifndef DSC_DEVICE_BACKENDS_H
#define DSC_DEVICE_BACKENDS_H

#include "base/module.h"
#include "device/table.h"

typedef struct dsc_cuda_functions {
    /* Fills in a device. DSC_E_UNSUPPORTED if there is no GPU or the driver is too old. */
    dsc_status (*open)(dsc_device *device, const dsc_device_options *options);
    /* The number of GPUs; 0 without a driver. */
    int (*count)(void);
} dsc_cuda_functions;

/* The function that the module exports. Defined only in builds with CUDA. */
DSC_MODULE_API const dsc_module *dsc_cuda_module(void);

/* Finds the backend's functions; DSC_E_UNSUPPORTED if the build has no CUDA, or the module or its libraries are
 * missing. */
dsc_status dsc_cuda_find(const dsc_cuda_functions **out) DSC_MUST_CHECK;
/* Returns 1 if "auto" should try the GPU first; the emulator is slower than the CPU. */
int dsc_cuda_is_fastest(void);

#endif

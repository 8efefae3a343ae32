/* The cuda backend, as the rest of the library sees it: one table. It is linked in, or is the module 'cuda'
 * (base/module.h); backends.c is compiled for each of the two. */
#ifndef DSC_DEVICE_BACKENDS_H
#define DSC_DEVICE_BACKENDS_H

#include "base/module.h"
#include "device/table.h"

typedef struct dsc_cuda_functions {
    /* Fills in a device. DSC_E_UNSUPPORTED without a GPU or with too old a driver. */
    dsc_status (*open)(dsc_device *device, const dsc_device_options *options);
    /* The number of GPUs; 0 without a driver. */
    int (*count)(void);
} dsc_cuda_functions;

/* The function that the module exports. Defined only where CUDA was found. */
DSC_MODULE_API const dsc_module *dsc_cuda_module(void);

/* DSC_E_UNSUPPORTED when the build has no CUDA, or the module or its libraries are missing. */
dsc_status dsc_cuda_find(const dsc_cuda_functions **out) DSC_MUST_CHECK;
/* 1 when "auto" should try the GPU first; the emulator is slower than the CPU. */
int dsc_cuda_is_fastest(void);

#endif

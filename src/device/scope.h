/* Sets the thread's current GPU, for functions that call many operations and for the library's own threads. Every
 * operation makes its GPU current while it runs and then restores the caller's; inside a scope the GPU is
 * current already, so that a process with several GPUs does not switch at every operation. */
#ifndef DSC_DEVICE_SCOPE_H
#define DSC_DEVICE_SCOPE_H

#include "descent/device.h"

typedef struct dsc_device_scope {
    const dsc_device *device; /* NULL: nothing to restore */
    int state[4];             /* belongs to the backend */
} dsc_device_scope;

/* Makes the device the thread's current one; dsc_device_leave restores the previous one. */
dsc_status dsc_device_enter(const dsc_device *device, dsc_device_scope *scope) DSC_MUST_CHECK;
void dsc_device_leave(dsc_device_scope *scope);

/* Enters the device until the end of the block, however it is left; needs base/error.h. */
#define DSC_ON_DEVICE(device)                                                                                \
    dsc_device_scope dsc_scope_ __attribute__((cleanup(dsc_device_leave)));                                  \
    DSC_TRY(dsc_device_enter((device), &dsc_scope_))

#endif

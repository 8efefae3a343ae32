/* The thread's current GPU, for functions that put much work into a device and for threads of the library's
 * own. Every operation makes its GPU current while it runs and puts back what the caller had; in a scope it
 * finds it current already, so that a process with several GPUs does not switch at every operation. */
#ifndef DSC_DEVICE_SCOPE_H
#define DSC_DEVICE_SCOPE_H

#include "descent/device.h"

typedef struct dsc_device_scope {
    const dsc_device *device; /* NULL: nothing to put back */
    int state[4];             /* the backend's own */
} dsc_device_scope;

/* Makes the device the thread's current one, and puts back what was. */
dsc_status dsc_device_enter(const dsc_device *device, dsc_device_scope *scope) DSC_MUST_CHECK;
void dsc_device_leave(dsc_device_scope *scope);

/* Until the end of the block, by whichever return; needs base/error.h. */
#define DSC_ON_DEVICE(device)                                                                                \
    dsc_device_scope dsc_scope_ __attribute__((cleanup(dsc_device_leave)));                                  \
    DSC_TRY(dsc_device_enter((device), &dsc_scope_))

#endif

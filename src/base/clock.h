/* Monotonic time in seconds since an arbitrary moment. */
#ifndef DSC_BASE_CLOCK_H
#define DSC_BASE_CLOCK_H

#include "base/visible.h"

DSC_MODULE_API double dsc_clock_now(void);

#endif

/* The kernels for any machine of the architecture. */
#include "device/cpu/kernels.h"
#include "device/half.h"

#include <math.h>
#include <string.h>

#define KERNELS      dsc_cpu_kernels_base
#define KERNELS_NAME "base"
#define KERNELS_F16C 0
#include "device/cpu/kernels.inc"

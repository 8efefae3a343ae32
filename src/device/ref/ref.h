/* The operations of the reference device, from the list in device/ops.h. */
#ifndef DSC_DEVICE_REF_REF_H
#define DSC_DEVICE_REF_REF_H

#include "device/table.h"

#define DSC_REF_PROTOTYPE(name) __typeof__(dsc_op_##name) dsc_ref_##name;
#define DSC_REF_NONE(name)
DSC_OPERATIONS(DSC_REF_PROTOTYPE, DSC_REF_NONE)

#endif

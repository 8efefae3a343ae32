/* Front of the time stamp. */
#include "base/clock.h"
#include "base/error.h"
#include "device/checks.h"

dsc_status dsc_op_timestamp(dsc_queue *q, dsc_tensor *t) {
    dsc_check check;
    DSC_TRY(dsc_check_begin_any(&check, "timestamp", q));
    DSC_TRY(dsc_check_typed(&check, "t", t, DSC_I64));
    DSC_TRY(dsc_check_shape(&check, "t", t, DSC_SHAPE(1)));
    if (q->device->table->timestamp)
        DSC_TRY(q->device->table->timestamp(q, t));
    else
        *(int64_t *)t->data = (int64_t)(1e9 * dsc_clock_now());
    return DSC_OK;
}

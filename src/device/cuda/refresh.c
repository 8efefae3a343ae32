/* The refresh of an eigenbasis: not on the GPU so far. */
#include "device/cuda/entries.h"
#include "device/cuda/state.h"

static dsc_status refuse(const char *op) {
    return DSC_FAIL(DSC_E_UNSUPPORTED, "%s: device cuda does not have it", op);
}

dsc_status dsc_cuda_rotation_batch(dsc_queue *q, const dsc_rotation_item *items, int64_t count) {
    (void)q, (void)items, (void)count;
    return refuse("rotation_batch");
}

dsc_status dsc_cuda_orthonormal_batch(dsc_queue *q, dsc_orthonormal_item *items, int64_t count) {
    (void)q, (void)items, (void)count;
    return refuse("orthonormal_batch");
}

dsc_status dsc_cuda_rayleigh_batch(dsc_queue *q, const dsc_rayleigh_item *items, int64_t count) {
    (void)q, (void)items, (void)count;
    return refuse("rayleigh_batch");
}

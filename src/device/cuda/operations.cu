/* Wraps every operation of the table so that the device's GPU is the thread's current one while it runs (current.h).
 * The wrappers are generated from the list in device/ops.h, so that no operation can be forgotten. */
#include "device/cuda/current.h"
#include "device/cuda/entries.h"

/* Returns the device on which an operation runs; its first argument is a queue or a device. */
static const dsc_device *device_of(const dsc_queue *q) {
    return dsc_queue_device(q);
}

static const dsc_device *device_of(const dsc_device *device) {
    return device;
}

static dsc_status enter(const dsc_device *device, dsc_cuda_current *current) {
    DSC_CUDA_TRY(dsc_cuda_enter(dsc_cuda_ordinal(device), current));
    return DSC_OK;
}

/* Local to this file, because the names do not start with dsc_. */
namespace {

template <auto operation> struct on_gpu;

template <class Result, class First, class... Rest, Result (*operation)(First, Rest...)>
struct on_gpu<operation> {
    static Result call(First first, Rest... rest) {
        dsc_cuda_current current;
        dsc_status status = enter(device_of(first), &current);
        if (status != DSC_OK)
            return refuse(status, static_cast<Result *>(nullptr));
        Result result = operation(first, rest...);
        dsc_cuda_leave(&current);
        return result;
    }

    static dsc_status refuse(dsc_status status, dsc_status *) {
        return status;
    }

    /* The size of a workspace is 0 in this case: the operation that needs the workspace then fails. */
    static size_t refuse(dsc_status, size_t *) {
        return 0;
    }
};

} // namespace

const dsc_cuda_operations *dsc_cuda_operations_on_gpu(void) {
#define ENTRY(name) on_gpu<dsc_cuda_##name>::call,
    static const dsc_cuda_operations operations = {DSC_OPERATIONS(ENTRY, ENTRY)};
#undef ENTRY
    return &operations;
}

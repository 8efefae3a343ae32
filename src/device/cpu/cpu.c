/* The fast CPU device: opens it and fills in its table. */
#include "device/table.h"

#include <unistd.h>

dsc_status dsc_cpu_open(dsc_device *device, const dsc_device_options *options) {
    static dsc_device_table table;
    table = dsc_ref_table;
    device->table = &table;
    device->name = "cpu";
    device->is_host = 1;
    device->threads = options->threads > 0 ? options->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return DSC_OK;
}

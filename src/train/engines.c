/* Shares the choice of convolution engines between ranks, and keeps it when a run is resumed. */
#include "train/engines.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "train/checkpoint_directory.h"
#include "train/safetensors.h"
#include "train/share.h"

dsc_status dsc_engines_text(dsc_device *device, char **out) {
    size_t size = 0, needed = 0;
    dsc_status status = dsc_device_choices(device, NULL, 0, &needed);
    while (status == DSC_OK && needed > size) { /* another thread may have added some */
        dsc_memory_free(out);
        size = needed;
        status = dsc_memory_alloc((int64_t)size, 1, out);
        if (status == DSC_OK)
            status = dsc_device_choices(device, *out, size, &needed);
    }
    if (status != DSC_OK)
        dsc_memory_free(out);
    return status;
}

/* Rank 0: reads the engines of the checkpoint that the run continues from; "" when there are none. Errors in the
 * checkpoint are reported later, when it is loaded. */
static dsc_status read_stored(dsc_trainer *t, char **out) {
    dsc_origin from = {{0}};
    dsc_st_reader *reader = NULL;
    char *path = NULL;
    const char *text = NULL;
    if (dsc_origin_find(t, &from) == DSC_OK && from.path[0] &&
        dsc_checkpoint_state_path(from.path, &path) == DSC_OK && dsc_st_open(path, &reader) == DSC_OK)
        text = dsc_st_metadata(reader, DSC_ENGINES_KEY);
    dsc_status status = dsc_memory_strdup(text ? text : "", out);
    dsc_st_close(&reader);
    dsc_memory_free(&path);
    return status;
}

static dsc_status take_stored(dsc_trainer *t) {
    char *text = NULL;
    dsc_status status = t->rank == 0 ? read_stored(t, &text) : DSC_OK;
    status = dsc_share_text(t->comm, t->queue, status, &text);
    if (status == DSC_OK)
        status = dsc_device_preset(t->device, text);
    if (status == DSC_E_FORMAT)
        dsc_error_prefix(status, "metadata '%s' of the checkpoint's state file", DSC_ENGINES_KEY);
    dsc_memory_free(&text);
    return dsc_comm_agree(t->comm, status);
}

dsc_status dsc_engines_begin(dsc_trainer *t, int *rank0_first) {
    int64_t tunes = dsc_device_tunes(t->device);
    DSC_TRY(take_stored(t));
    DSC_TRY(dsc_share_bytes(t->comm, t->queue, &tunes, sizeof tunes));
    *rank0_first = tunes && t->ranks > 1;
    return DSC_OK;
}

dsc_status dsc_engines_share(dsc_trainer *t, dsc_status status) {
    const double longest =
        600; /* seconds that tuning may take beyond the time that ranks wait for each other */
    double timeout = t->comm->timeout;
    char *text = NULL;
    if (timeout > 0)
        DSC_TRY(dsc_comm_set_timeout(t->comm, timeout + longest));
    if (t->rank == 0 && status == DSC_OK)
        status = dsc_engines_text(t->device, &text);
    status = dsc_share_text(t->comm, t->queue, status, &text);
    dsc_status restored = dsc_comm_set_timeout(t->comm, timeout);
    status = status == DSC_OK ? restored : status;
    if (status == DSC_OK && t->rank != 0)
        status = dsc_device_preset(t->device, text);
    dsc_memory_free(&text);
    return status;
}

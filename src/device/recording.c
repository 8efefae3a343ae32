/* Recordings: the part that does not depend on the backend. */
#include "device/recording.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/table.h"

struct dsc_recording {
    dsc_device *device;
    void *state;
};

int dsc_device_records(const dsc_device *device) {
    return device->table->record_begin != NULL;
}

int dsc_queue_is_recording(const dsc_queue *queue) {
    return queue->recording;
}

dsc_status dsc_recording_begin(dsc_queue *queue) {
    if (!queue->device->table->record_begin)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "recording: device %s has none (dsc_device_records)",
                        queue->device->name);
    if (queue->recording)
        return DSC_FAIL(DSC_E_INVALID, "recording: the queue is recording already");
    DSC_TRY(queue->device->table->record_begin(queue));
    queue->recording = 1;
    return DSC_OK;
}

dsc_status dsc_recording_end(dsc_queue *queue, dsc_recording **out) {
    dsc_recording *recording;
    void *state;
    if (!queue->recording)
        return DSC_FAIL(DSC_E_INVALID, "recording: none was begun in this queue");
    DSC_TRY(queue->device->table->record_end(queue, &state));
    queue->recording = 0;
    dsc_status status = dsc_memory_alloc(1, sizeof *recording, &recording);
    if (status != DSC_OK) {
        queue->device->table->record_free(queue->device, state);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    recording->device = queue->device;
    recording->state = state;
    *out = recording;
    return DSC_OK;
}

dsc_status dsc_recording_replay(dsc_recording *recording, dsc_queue *queue) {
    if (recording->device != queue->device)
        return DSC_FAIL(DSC_E_INVALID,
                        "recording: made on device %s, replayed in a queue of another device %s",
                        recording->device->name, queue->device->name);
    if (queue->recording)
        return DSC_FAIL(DSC_E_INVALID, "recording: a replay cannot be recorded");
    DSC_TRY(queue->device->table->replay(queue, recording->state));
    return DSC_OK;
}

void dsc_recording_destroy(dsc_recording **recording) {
    if (!recording || !*recording)
        return;
    (*recording)->device->table->record_free((*recording)->device, (*recording)->state);
    dsc_memory_free(recording);
}

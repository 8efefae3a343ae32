/* Giving everybody what rank 0 has. */
#include "train/share.h"

#include "base/error.h"

static dsc_status share_through(dsc_comm *comm, dsc_queue *queue, dsc_tensor *block, void *data) {
    size_t bytes = dsc_tensor_bytes(block);
    DSC_TRY(dsc_tensor_upload(queue, data, bytes, block));
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, 0, block));
    DSC_TRY(dsc_tensor_download(queue, block, bytes, data));
    return dsc_queue_sync(queue);
}

dsc_status dsc_share_bytes(dsc_comm *comm, dsc_queue *queue, void *data, size_t bytes) {
    dsc_tensor block;
    int64_t count = (int64_t)bytes;
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(queue), DSC_U8, 1, &count, &block));
    dsc_status status = share_through(comm, queue, &block, data);
    dsc_tensor_free(&block);
    return status;
}

dsc_status dsc_share_buffers(dsc_comm *comm, dsc_queue *queue, dsc_model *model) {
    const dsc_param *buffers = dsc_model_buffers(model);
    DSC_TRY(dsc_queue_sync(queue));
    for (int64_t i = 0; i < dsc_model_buffer_count(model); i++) {
        dsc_tensor buffer = buffers[i].value;
        DSC_TRY(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, 0, &buffer));
    }
    return DSC_OK;
}

dsc_status dsc_share_model(dsc_comm *comm, dsc_queue *queue, dsc_model *model) {
    dsc_tensor values = dsc_model_values(model);
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_broadcast(comm, DSC_TRAFFIC_PARAMETERS, 0, &values));
    return dsc_share_buffers(comm, queue, model);
}

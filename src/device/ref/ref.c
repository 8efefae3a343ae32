/* The reference device: plain C, one thread, every operation in double whatever the type of its tensors.
 * Slow and obvious; it is the specification that other devices are tested against. */
#include "device/ref/ref.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* Host memory with its size in front, for the device's byte counters. */
enum { HEADER_BYTES = DSC_ALIGNMENT };

static dsc_status host_alloc(dsc_device *device, size_t bytes, void **out) {
    char *block;
    if (bytes > (size_t)INT64_MAX - HEADER_BYTES)
        return DSC_FAIL(DSC_E_MEMORY, "cannot allocate %zu bytes of device memory", bytes);
    DSC_TRY(dsc_memory_alloc((int64_t)(bytes + HEADER_BYTES), 1, &block));
    memcpy(block, &bytes, sizeof bytes);
    dsc_device_count_alloc(device, bytes);
    *out = block + HEADER_BYTES;
    return DSC_OK;
}

static void host_free(dsc_device *device, void *data) {
    char *block = (char *)data - HEADER_BYTES;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    dsc_device_count_free(device, bytes);
    dsc_memory_free(&block);
}

static dsc_status host_upload(dsc_queue *q, const void *host, size_t bytes, void *data) {
    (void)q;
    memcpy(data, host, bytes);
    return DSC_OK;
}

static dsc_status host_download(dsc_queue *q, const void *data, size_t bytes, void *host) {
    (void)q;
    memcpy(host, data, bytes);
    return DSC_OK;
}

const dsc_device_table dsc_ref_table = {
    .alloc = host_alloc,
    .free = host_free,
    .upload = host_upload,
    .download = host_download,
    .fill = dsc_ref_fill,
    .convert = dsc_ref_convert,
    .axpby = dsc_ref_axpby,
    .scale_by = dsc_ref_scale_by,
    .dot = dsc_ref_dot,
    .clip_factor = dsc_ref_clip_factor,
    .count_nonfinite = dsc_ref_count_nonfinite,
    .blend = dsc_ref_blend,
    .increment = dsc_ref_increment,
    .guard = dsc_ref_guard,
    .loss_scale = dsc_ref_loss_scale,
    .gemm = dsc_ref_gemm,
    .syrk = dsc_ref_syrk,
    .symmetrize = dsc_ref_symmetrize,
    .tri_pack = dsc_ref_tri_pack,
    .tri_unpack = dsc_ref_tri_unpack,
    .syev_workspace = dsc_ref_syev_workspace,
    .syev = dsc_ref_syev,
    .chol_inverse = dsc_ref_chol_inverse,
    .syev_careful = dsc_ref_syev_careful,
    .add_diagonal = dsc_ref_add_diagonal,
    .divide_batch = dsc_ref_divide_batch,
    .split_batch = dsc_ref_split_batch,
    .outer_inverse = dsc_ref_outer_inverse,
    .multiply = dsc_ref_multiply,
    .join = dsc_ref_join,
    .gather = dsc_ref_gather,
    .scatter = dsc_ref_scatter,
    .kl_clip = dsc_ref_kl_clip,
    .conv_forward = dsc_ref_conv_forward,
    .conv_backward_data = dsc_ref_conv_backward_data,
    .conv_backward_weight = dsc_ref_conv_backward_weight,
    .patches = dsc_ref_patches,
    .bias_add = dsc_ref_bias_add,
    .bias_grad = dsc_ref_bias_grad,
    .relu_forward = dsc_ref_relu_forward,
    .relu_backward = dsc_ref_relu_backward,
    .add = dsc_ref_add,
    .shortcut_forward = dsc_ref_shortcut_forward,
    .shortcut_backward = dsc_ref_shortcut_backward,
    .pool_forward = dsc_ref_pool_forward,
    .pool_backward = dsc_ref_pool_backward,
    .global_pool_forward = dsc_ref_global_pool_forward,
    .global_pool_backward = dsc_ref_global_pool_backward,
    .norm_forward_train = dsc_ref_norm_forward_train,
    .norm_forward_eval = dsc_ref_norm_forward_eval,
    .norm_backward = dsc_ref_norm_backward,
    .dropout = dsc_ref_dropout,
    .softmax_loss = dsc_ref_softmax_loss,
    .sample_labels = dsc_ref_sample_labels,
    .augment = dsc_ref_augment,
    .sgd = dsc_ref_sgd,
    .adam = dsc_ref_adam,
    .lars = dsc_ref_lars,
    .lamb_direction = dsc_ref_lamb_direction,
    .lamb_apply = dsc_ref_lamb_apply,
};

dsc_status dsc_ref_open(dsc_device *device, const dsc_device_options *options) {
    (void)options; /* always one thread */
    device->table = &dsc_ref_table;
    device->name = "ref";
    device->is_host = 1;
    device->threads = 1;
    snprintf(device->description, sizeof device->description, "ref: plain C in double precision, 1 thread");
    return DSC_OK;
}

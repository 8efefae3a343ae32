#include "data/stage.h"

#include "base/error.h"
#include "base/memory.h"

enum { PLACES = 2 };

/* A buffer for a batch that is being copied. */
typedef struct berth {
    dsc_tensor x, place, labels, others, shares;
    dsc_event *copied; /* the copy is complete */
    dsc_event *used;   /* the buffer has been read */
} berth;

struct dsc_stage {
    dsc_device *device;
    dsc_queue *queue;
    int bytes; /* 1: images are sent as bytes */
    dsc_augment_desc desc;
    dsc_tensor x, labels, others, shares; /* what the caller gets */
    berth berths[PLACES];
    int64_t sent;
};

static dsc_status make(dsc_stage *s, const dsc_dataset *dataset, int64_t batch, dsc_dtype dtype) {
    const int64_t image[4] = {batch, dataset->info.h, dataset->info.w, dataset->info.c};
    const int64_t place[2] = {batch, 3}, labels = batch * dataset->label_count;
    DSC_TRY(dsc_queue_create(s->device, &s->queue));
    DSC_TRY(dsc_tensor_alloc(s->device, dtype, 4, image, &s->x));
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_I32, 1, &labels, &s->labels));
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_I32, 1, &batch, &s->others));
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_F32, 1, &batch, &s->shares));
    for (int i = 0; i < PLACES; i++) {
        berth *b = &s->berths[i];
        DSC_TRY(dsc_tensor_alloc(s->device, s->bytes ? DSC_U8 : DSC_F32, 4, image, &b->x));
        DSC_TRY(dsc_tensor_alloc(s->device, DSC_I32, 2, place, &b->place));
        DSC_TRY(dsc_tensor_alloc(s->device, DSC_I32, 1, &labels, &b->labels));
        DSC_TRY(dsc_tensor_alloc(s->device, DSC_I32, 1, &batch, &b->others));
        DSC_TRY(dsc_tensor_alloc(s->device, DSC_F32, 1, &batch, &b->shares));
        DSC_TRY(dsc_event_create(s->device, &b->copied));
        DSC_TRY(dsc_event_create(s->device, &b->used));
    }
    return DSC_OK;
}

dsc_status dsc_stage_create(const dsc_dataset *dataset, dsc_device *device, int64_t batch, dsc_dtype dtype,
                            int bytes, dsc_stage **out) {
    dsc_stage *s;
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    s->device = device;
    s->bytes = bytes && dataset->type->raw;
    if (s->bytes)
        dataset->type->raw_desc(dataset, &s->desc);
    dsc_status status = make(s, dataset, batch, dtype);
    if (status != DSC_OK) {
        dsc_stage_destroy(&s);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = s;
    return DSC_OK;
}

void dsc_stage_destroy(dsc_stage **stage) {
    if (!stage || !*stage)
        return;
    dsc_stage *s = *stage;
    for (int i = 0; i < PLACES; i++) {
        berth *b = &s->berths[i];
        dsc_event_destroy(&b->copied);
        dsc_event_destroy(&b->used);
        dsc_tensor_free(&b->x);
        dsc_tensor_free(&b->place);
        dsc_tensor_free(&b->labels);
        dsc_tensor_free(&b->others);
        dsc_tensor_free(&b->shares);
    }
    dsc_tensor_free(&s->x);
    dsc_tensor_free(&s->labels);
    dsc_tensor_free(&s->others);
    dsc_tensor_free(&s->shares);
    dsc_queue_destroy(&s->queue);
    dsc_memory_free(stage);
}

dsc_status dsc_stage_alloc(dsc_stage *stage, dsc_staged *out) {
    const berth *b = &stage->berths[0];
    void *memory = NULL;
    DSC_TRY(dsc_host_alloc(stage->device, dsc_tensor_bytes(&b->x), &out->x));
    DSC_TRY(dsc_host_alloc(stage->device, dsc_tensor_bytes(&b->place), &memory));
    out->place = memory;
    DSC_TRY(dsc_host_alloc(stage->device, dsc_tensor_bytes(&b->labels), &memory));
    out->labels = memory;
    DSC_TRY(dsc_host_alloc(stage->device, dsc_tensor_bytes(&b->others), &memory));
    out->others = memory;
    DSC_TRY(dsc_host_alloc(stage->device, dsc_tensor_bytes(&b->shares), &memory));
    out->shares = memory;
    return DSC_OK;
}

void dsc_stage_free(dsc_stage *stage, dsc_staged *staged) {
    void *memory[] = {staged->x, staged->place, staged->labels, staged->others, staged->shares};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        dsc_host_free(stage->device, &memory[i]);
    *staged = (dsc_staged){.x = NULL};
}

static dsc_status copy(dsc_stage *s, berth *b, const dsc_staged *staged, int mixed) {
    DSC_TRY(dsc_queue_wait(s->queue, b->used));
    DSC_TRY(dsc_tensor_upload(s->queue, staged->x, dsc_tensor_bytes(&b->x), &b->x));
    if (s->bytes)
        DSC_TRY(dsc_tensor_upload(s->queue, staged->place, dsc_tensor_bytes(&b->place), &b->place));
    DSC_TRY(dsc_tensor_upload(s->queue, staged->labels, dsc_tensor_bytes(&b->labels), &b->labels));
    if (mixed) {
        DSC_TRY(dsc_tensor_upload(s->queue, staged->others, dsc_tensor_bytes(&b->others), &b->others));
        DSC_TRY(dsc_tensor_upload(s->queue, staged->shares, dsc_tensor_bytes(&b->shares), &b->shares));
    }
    return dsc_event_record(b->copied, s->queue);
}

static dsc_status take(dsc_stage *s, dsc_queue *queue, berth *b, int mixed) {
    DSC_TRY(dsc_queue_wait(queue, b->copied));
    if (s->bytes)
        DSC_TRY(dsc_op_augment(queue, &s->desc, &b->x, &b->place, &s->x));
    else
        DSC_TRY(dsc_op_convert(queue, &b->x, &s->x));
    DSC_TRY(dsc_op_convert(queue, &b->labels, &s->labels));
    if (mixed) {
        DSC_TRY(dsc_op_convert(queue, &b->others, &s->others));
        DSC_TRY(dsc_op_convert(queue, &b->shares, &s->shares));
    }
    return dsc_event_record(b->used, queue);
}

dsc_status dsc_stage_send(dsc_stage *stage, dsc_queue *queue, const dsc_staged *staged, int mixed,
                          dsc_tensor *x, dsc_tensor *labels) {
    berth *b = &stage->berths[stage->sent % PLACES];
    DSC_TRY(copy(stage, b, staged, mixed));
    DSC_TRY(take(stage, queue, b, mixed));
    stage->sent++;
    *x = stage->x;
    *labels = stage->labels;
    return DSC_OK;
}

void dsc_stage_mixed(const dsc_stage *stage, dsc_tensor *others, dsc_tensor *shares) {
    *others = stage->others;
    *shares = stage->shares;
}

dsc_status dsc_stage_settle(dsc_stage *stage) {
    return stage->sent > 0 ? dsc_event_sync(stage->berths[(stage->sent - 1) % PLACES].copied) : DSC_OK;
}

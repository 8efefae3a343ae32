/* The results of a step: one block of numbers and time stamps on the device, and two buffers on the host that
 * it is copied to in turn. */
#include "train/results.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { SLOTS = 2 };

/* What comes back from the device. */
typedef struct block {
    double numbers[DSC_NUMBER_COUNT];
    int64_t stamps[DSC_STAMP_COUNT];
} block;

typedef struct slot {
    void *host; /* a block */
    dsc_event *done;
    double began;
    int with_stamps;
    dsc_step_report report;
} slot;

struct dsc_results {
    dsc_device *device;
    dsc_tensor block;           /* U8 */
    dsc_tensor numbers, stamps; /* views of it */
    slot slots[SLOTS];
    int64_t ended, collected; /* steps */
    double collected_at;      /* host clock */
};

static dsc_status make(dsc_results *r, dsc_queue *queue) {
    const int64_t numbers = DSC_NUMBER_COUNT, stamps = DSC_STAMP_COUNT, bytes = sizeof(block);
    DSC_TRY(dsc_tensor_alloc(r->device, DSC_U8, 1, &bytes, &r->block));
    r->numbers = dsc_tensor_view(r->device, r->block.data, DSC_F64, 1, &numbers);
    r->stamps =
        dsc_tensor_view(r->device, (char *)r->block.data + offsetof(block, stamps), DSC_I64, 1, &stamps);
    for (int i = 0; i < SLOTS; i++) {
        DSC_TRY(dsc_host_alloc(r->device, (size_t)bytes, &r->slots[i].host));
        DSC_TRY(dsc_event_create(r->device, &r->slots[i].done));
    }
    dsc_tensor nu = dsc_results_numbers(r, DSC_NUMBER_NU, 1);
    dsc_tensor scale = dsc_results_numbers(r, DSC_NUMBER_SCALE, 1);
    DSC_TRY(dsc_op_fill(queue, NAN, &nu));
    return dsc_op_fill(queue, 1, &scale);
}

dsc_status dsc_results_create(dsc_queue *queue, dsc_results **out) {
    dsc_results *r;
    DSC_TRY(dsc_memory_alloc(1, sizeof *r, &r));
    r->device = dsc_queue_device(queue);
    dsc_status status = make(r, queue);
    if (status != DSC_OK) {
        dsc_results_destroy(&r);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = r;
    return DSC_OK;
}

void dsc_results_destroy(dsc_results **results) {
    if (!results || !*results)
        return;
    dsc_results *r = *results;
    for (int i = 0; i < SLOTS; i++) {
        dsc_event_destroy(&r->slots[i].done);
        dsc_host_free(r->device, &r->slots[i].host);
    }
    dsc_tensor_free(&r->block);
    dsc_memory_free(results);
}

dsc_tensor dsc_results_numbers(const dsc_results *r, dsc_number first, int64_t count) {
    return dsc_tensor_slice(&r->numbers, first, count);
}

dsc_tensor dsc_results_stamps(const dsc_results *r) {
    return r->stamps;
}

dsc_step_report *dsc_results_begin(dsc_results *r, int with_stamps) {
    slot *s = &r->slots[r->ended % SLOTS];
    s->began = dsc_clock_now();
    s->with_stamps = with_stamps;
    s->report = (dsc_step_report){.size = sizeof s->report};
    return &s->report;
}

dsc_status dsc_results_end(dsc_results *r, dsc_queue *queue) {
    slot *s = &r->slots[r->ended % SLOTS];
    DSC_TRY(dsc_tensor_download(queue, &r->block, dsc_tensor_bytes(&r->block), s->host));
    DSC_TRY(dsc_event_record(s->done, queue));
    r->ended++;
    return DSC_OK;
}

int dsc_results_pending(const dsc_results *r) {
    return (int)(r->ended - r->collected);
}

int dsc_results_lag(const dsc_results *r) {
    return dsc_device_is_host(r->device) ? 0 : 1;
}

dsc_status dsc_results_collect(dsc_results *r, int with_kfac, dsc_outcome *out) {
    slot *s = &r->slots[r->collected % SLOTS];
    if (r->collected == r->ended)
        return DSC_FAIL(DSC_E_INTERNAL, "there is no step to collect");
    DSC_TRY(dsc_event_sync(s->done));
    const block *b = s->host;
    const double *n = b->numbers, now = dsc_clock_now();
    *out = (dsc_outcome){.report = s->report,
                         .loss_sum = n[DSC_NUMBER_LOSS],
                         .rows = n[DSC_NUMBER_ROWS],
                         .bad = (int64_t)n[DSC_NUMBER_BAD],
                         .skip = (int)n[DSC_NUMBER_SKIP]};
    dsc_step_report *report = &out->report;
    /* No label at all, as may be the case of few masked tokens, is a loss of 0. */
    report->loss = n[DSC_NUMBER_LOSS] / fmax(n[DSC_NUMBER_ROWS], 1);
    report->stop_requested = n[DSC_NUMBER_STOP] > 0;
    report->metrics_failed = n[DSC_NUMBER_FAILED] > 0;
    report->nu = n[DSC_NUMBER_NU];
    report->loss_scale = n[DSC_NUMBER_SCALE];
    report->skipped = out->skip == 1;
    report->seconds = now - (s->began > r->collected_at ? s->began : r->collected_at);
    if (s->with_stamps)
        dsc_phases_read_stamps(b->stamps, with_kfac, report->phase_ms);
    out->with_stamps = s->with_stamps;
    memcpy(out->stamps, b->stamps, sizeof out->stamps);
    r->collected_at = now;
    r->collected++;
    return DSC_OK;
}

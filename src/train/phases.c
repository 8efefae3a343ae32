/* Host clock and time stamps of the phases of a step. */
#include "train/phases.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "device/ops.h"

static const char *const names[DSC_PHASE_COUNT] = {
    [DSC_PHASE_DATA] = "data",
    [DSC_PHASE_FORWARD] = "forward",
    [DSC_PHASE_BACKWARD] = "backward",
    [DSC_PHASE_EXCHANGE] = "exchange",
    [DSC_PHASE_FACTOR] = "factor",
    [DSC_PHASE_DECOMPOSE] = "decompose",
    [DSC_PHASE_PRECONDITION] = "precondition",
    [DSC_PHASE_UPDATE] = "update",
};

const char *dsc_phase_name(dsc_phase phase) {
    return (int)phase >= 0 && phase < DSC_PHASE_COUNT ? names[phase] : "unknown";
}

void dsc_phases_begin(dsc_phases *p, int64_t step, double *ms) {
    p->ms = ms;
    p->step = step;
    p->last = dsc_clock_now();
    p->in_kfac = 0;
}

static void add_span(const dsc_phases *p, dsc_phase phase, double begin, double end) {
    if (p->traced)
        dsc_trace_span(DSC_TRACK_STEPS, names[phase], begin, end, "step", p->step);
}

void dsc_phases_host_work(dsc_phases *p, dsc_phase phase) {
    double now = dsc_clock_now();
    p->ms[phase] += 1000 * (now - p->last - p->in_kfac);
    if (p->is_host)
        p->ms[DSC_PHASE_FACTOR] += 1000 * p->in_kfac;
    add_span(p, phase, p->last, now);
    p->last = now;
    p->in_kfac = 0;
}

void dsc_phases_in_kfac(dsc_phases *p, double began) {
    double now = dsc_clock_now();
    p->in_kfac += now - began;
    if (p->is_host)
        add_span(p, DSC_PHASE_FACTOR, began, now);
}

void dsc_phases_mark_host(dsc_phases *p, dsc_phase phase) {
    if (p->is_host)
        dsc_phases_host_work(p, phase);
}

static dsc_status stamp(dsc_phases *p, dsc_queue *queue, int which) {
    if (p->is_host || !p->timed)
        return DSC_OK;
    dsc_tensor place = dsc_tensor_slice(&p->stamps, which, 1);
    return dsc_op_timestamp(queue, &place);
}

dsc_status dsc_phases_start(dsc_phases *p, dsc_queue *queue) {
    return stamp(p, queue, DSC_STAMP_START);
}

dsc_status dsc_phases_mark(dsc_phases *p, dsc_queue *queue, dsc_phase phase) {
    dsc_phases_mark_host(p, phase);
    return stamp(p, queue, phase);
}

void dsc_phases_decomposed(dsc_phases *p, double began) {
    double now = dsc_clock_now();
    p->ms[DSC_PHASE_DECOMPOSE] += 1000 * (now - began);
    add_span(p, DSC_PHASE_DECOMPOSE, began, now);
}

/* ---- stamps ---- */

typedef struct interval {
    dsc_phase phase;
    int64_t begin, end;
} interval;

enum { MOST_INTERVALS = 6 };

/* The phases between the stamps, in the order in which the device passes them. The decomposition is timed by the
 * host, which waits for it; its stamp only says when preconditioning began. Returns how many there are. */
static int find_intervals(const int64_t *stamps, int with_kfac, int decomposed,
                          interval out[MOST_INTERVALS]) {
    static const dsc_phase order[MOST_INTERVALS] = {DSC_PHASE_FORWARD,      DSC_PHASE_BACKWARD,
                                                    DSC_PHASE_EXCHANGE,     DSC_PHASE_FACTOR,
                                                    DSC_PHASE_PRECONDITION, DSC_PHASE_UPDATE};
    int64_t before = stamps[DSC_STAMP_START];
    int count = 0;
    for (int i = 0; i < MOST_INTERVALS; i++) {
        dsc_phase phase = order[i];
        if (!with_kfac && (phase == DSC_PHASE_FACTOR || phase == DSC_PHASE_PRECONDITION))
            continue;
        if (phase == DSC_PHASE_PRECONDITION && decomposed)
            before = stamps[DSC_PHASE_DECOMPOSE];
        out[count++] = (interval){phase, before, stamps[phase]};
        before = stamps[phase];
    }
    return count;
}

void dsc_phases_read_stamps(const int64_t *stamps, int with_kfac, double *ms) {
    interval intervals[MOST_INTERVALS];
    int count = find_intervals(stamps, with_kfac, ms[DSC_PHASE_DECOMPOSE] > 0, intervals);
    for (int i = 0; i < count; i++)
        ms[intervals[i].phase] += 1e-6 * (double)(intervals[i].end - intervals[i].begin);
}

void dsc_phases_trace_stamps(dsc_phases *p, int64_t step, const int64_t *stamps, int with_kfac,
                             double noticed, const double *ms) {
    static const double drift = 1e-4; /* more than clocks differ in speed */
    interval intervals[MOST_INTERVALS];
    dsc_device_clock *clock = &p->device;
    int count = find_intervals(stamps, with_kfac, ms[DSC_PHASE_DECOMPOSE] > 0, intervals);
    double offset = noticed - 1e-9 * (double)stamps[DSC_PHASE_UPDATE];
    double most = clock->offset + drift * (noticed - clock->updated);
    clock->offset = clock->updated > 0 && most < offset ? most : offset;
    clock->updated = noticed;
    const double start = 1e-9 * (double)stamps[DSC_STAMP_START] + clock->offset;
    for (int i = 0; i < count; i++) {
        double begin = start + 1e-9 * (double)(intervals[i].begin - stamps[DSC_STAMP_START]);
        double end = start + 1e-9 * (double)(intervals[i].end - stamps[DSC_STAMP_START]);
        begin = begin > clock->end ? begin : clock->end;
        end = end > begin ? end : begin;
        dsc_trace_span(DSC_TRACK_DEVICE, names[intervals[i].phase], begin, end, "step", step);
        clock->end = end;
    }
}

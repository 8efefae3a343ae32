/* Host clock and time stamps of the phases of a step. */
#include "train/phases.h"

#include "base/clock.h"
#include "base/error.h"
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

void dsc_phases_begin(dsc_phases *p, double *ms) {
    p->ms = ms;
    p->last = dsc_clock_now();
    p->in_kfac = 0;
}

void dsc_phases_host_work(dsc_phases *p, dsc_phase phase) {
    double now = dsc_clock_now();
    p->ms[phase] += 1000 * (now - p->last - p->in_kfac);
    p->last = now;
    p->in_kfac = 0;
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

void dsc_phases_add_kfac(dsc_phases *p, const dsc_kfac *kfac) {
    if (!p->is_host)
        return;
    const dsc_kfac_times *times = dsc_kfac_get_times(kfac);
    p->ms[DSC_PHASE_FACTOR] += times->factor;
    p->ms[DSC_PHASE_DECOMPOSE] = times->decompose;
    p->ms[DSC_PHASE_PRECONDITION] = times->precondition;
}

/* Stamps in the order in which the device passes them. The decomposition is timed by the host, which waits
 * for it; its stamp only says when preconditioning began. */
void dsc_phases_read_stamps(const int64_t *stamps, int with_kfac, double *ms) {
    static const dsc_phase order[] = {DSC_PHASE_FORWARD, DSC_PHASE_BACKWARD,     DSC_PHASE_EXCHANGE,
                                      DSC_PHASE_FACTOR,  DSC_PHASE_PRECONDITION, DSC_PHASE_UPDATE};
    int64_t before = stamps[DSC_STAMP_START];
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        dsc_phase phase = order[i];
        if (!with_kfac && (phase == DSC_PHASE_FACTOR || phase == DSC_PHASE_PRECONDITION))
            continue;
        if (phase == DSC_PHASE_PRECONDITION && ms[DSC_PHASE_DECOMPOSE] > 0)
            before = stamps[DSC_PHASE_DECOMPOSE];
        ms[phase] += 1e-6 * (double)(stamps[phase] - before);
        before = stamps[phase];
    }
}

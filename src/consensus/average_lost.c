/* Averaging when a rank does not answer: time limits, the alarm that another rank has raised, and ending a
 * round without the missing messages. In a job whose ranks all answer, the checks here find nothing. */
#include "consensus/average.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"

#include <inttypes.h>

dsc_status dsc_average_check_alarm(const dsc_average *a) {
    int alarmed = 0;
    DSC_TRY(dsc_comm_is_alarmed(a->comm, &alarmed));
    if (alarmed)
        return DSC_FAIL(DSC_E_LOST,
                        "gossip: another rank has noticed that a rank was lost; round %" PRId64
                        " and those after it have to go on without it",
                        a->rounds);
    return DSC_OK;
}

dsc_status dsc_average_check_timeout(const dsc_average *a, int64_t request, double waited) {
    if (a->options.timeout == 0 || waited <= a->options.timeout)
        return DSC_OK;
    dsc_status status = a->comm->watch ? DSC_E_LOST : DSC_E_COMM;
    if (request < 0)
        return DSC_FAIL(
            status,
            "gossip: after round %" PRId64
            " not all ranks have come to the synchronisation point within %.3g s: one has ended, "
            "hangs, or is very slow; look at their messages, or wait longer (option peer-timeout)",
            a->rounds - 1, waited);
    int64_t send = request - dsc_average_receives(a);
    int peer = send < 0 ? a->in[request % a->in_count].rank : a->out[send % a->out_count].rank;
    return DSC_FAIL(status,
                    "gossip: rank %d has %s nothing in round %" PRId64
                    " for %.3g s: it has ended, hangs, or is very slow; look at its messages, or wait longer "
                    "(option peer-timeout)",
                    a->name_factor * peer + a->name_offset, send < 0 ? "sent" : "taken", a->rounds - 1,
                    waited);
}

/* Takes the message of peer i completely or not at all. Its requests are i, i + in_count, ... (header first, then the
 * buckets). If the message is complete, buckets that were not added yet are added now; if it is incomplete, buckets
 * that were added are subtracted again. */
static dsc_status take_whole_or_nothing(dsc_average *a, dsc_queue *queue, int i) {
    int64_t receives = dsc_average_receives(a), header_rows = a->options.pairwise ? 0 : 1;
    int whole = 1;
    for (int64_t r = i; r < receives && whole; r += a->in_count)
        if (a->requests[r])
            DSC_TRY(dsc_comm_poll(a->requests[r], &whole));
    for (int64_t r = i; r < receives; r += a->in_count) {
        int64_t b = r / a->in_count - header_rows;
        int added = r < a->taken;
        if (whole && !added)
            DSC_TRY(dsc_comm_wait(&a->requests[r]));
        if (b >= 0 && whole != added)
            DSC_TRY(dsc_plan_add(a, queue, whole ? 1 : -1, i, b));
    }
    if (whole) {
        dsc_tensor header = dsc_average_header(a, 1, i);
        a->weight += a->options.pairwise ? a->in[i].share : ((const double *)header.data)[DSC_HEADER_WEIGHT];
    }
    return DSC_OK;
}

dsc_status dsc_average_give_up(dsc_average *a, dsc_queue *queue) {
    for (int i = 0; a->under_way && i < a->in_count; i++)
        DSC_TRY(take_whole_or_nothing(a, queue, i));
    a->under_way = 0;
    return DSC_OK;
}

void dsc_average_keep(dsc_average *a) {
    if (a->settle_request) /* destroying the caller's communicator must not wait for it */
        a->settle_request->expired = 1;
    dsc_memory_keep(a);
}

/* Functions that the gossip algorithms share: a second copy of the values (the shadow), means over all ranks,
 * and values that are swapped in between steps.
 *
 * Between steps the parameters hold the numerators x. While other values are swapped in, x is in the
 * shadow; swapping out copies it back. */
#include "consensus/table.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"

#include <math.h>

/* ---- the shadow ---- */

dsc_status dsc_consensus_check_types(const dsc_consensus *c) {
    for (int64_t i = 0; i < c->count; i++) {
        if (c->params[i].value.dtype != DSC_F32)
            return DSC_FAIL(DSC_E_UNSUPPORTED, "%s: parameter '%s' is %s; fp32 can be averaged by gossip",
                            c->table->name, c->params[i].name, dsc_dtype_name(c->params[i].value.dtype));
    }
    return DSC_OK;
}

void dsc_consensus_slice(const dsc_consensus *c, const dsc_tensor *memory, dsc_tensor *pieces) {
    int64_t at = 0;
    for (int64_t i = 0; i < c->run_count; i++) {
        pieces[i] = dsc_tensor_slice(memory, at, c->runs[i].dim[0]);
        at += c->runs[i].dim[0];
    }
}

dsc_status dsc_consensus_make_shadow(dsc_consensus *c) {
    if (c->shadow)
        return DSC_OK;
    if (!c->shadow_memory.data)
        DSC_TRY(dsc_tensor_alloc(dsc_queue_device(c->queue), DSC_F32, 1, &c->total, &c->shadow_memory));
    if (!c->read)
        DSC_TRY(dsc_memory_alloc(c->count, sizeof *c->read, &c->read));
    DSC_TRY(dsc_memory_alloc(c->run_count, sizeof *c->shadow, &c->shadow));
    dsc_consensus_slice(c, &c->shadow_memory, c->shadow);
    int64_t at = 0; /* the runs hold the parameters in order */
    for (int64_t i = 0; i < c->count; i++) {
        const dsc_tensor *value = &c->params[i].value;
        c->read[i] = *value;
        c->read[i].data = (float *)c->shadow_memory.data + at;
        at += dsc_tensor_count(value);
    }
    return DSC_OK;
}

dsc_status dsc_consensus_scale(const dsc_consensus *c, dsc_queue *queue, double factor,
                               const dsc_tensor *from, dsc_tensor *to) {
    if (factor == 1 && from == to)
        return DSC_OK;
    for (int64_t i = 0; i < c->run_count; i++)
        DSC_TRY(factor == 1 ? dsc_op_convert(queue, &from[i], &to[i])
                            : dsc_op_axpby(queue, factor, &from[i], 0, &to[i]));
    return DSC_OK;
}

/* ---- sums and means over ranks ---- */

dsc_status dsc_consensus_sum(dsc_consensus *c, double *values, int n) {
    dsc_tensor part = dsc_tensor_slice(&c->sums, 0, n);
    size_t bytes = (size_t)n * sizeof *values;
    DSC_TRY(dsc_tensor_upload(c->queue, values, bytes, &part));
    DSC_TRY(dsc_queue_sync(c->queue));
    DSC_TRY(dsc_comm_allreduce(c->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &part));
    DSC_TRY(dsc_tensor_download(c->queue, &part, bytes, values));
    return dsc_queue_sync(c->queue);
}

dsc_status dsc_consensus_mean_in_place(dsc_consensus *c, dsc_queue *queue, dsc_traffic traffic) {
    double mass = dsc_consensus_weight(c);
    if (dsc_comm_size(c->comm) == 1 && mass == 1)
        return DSC_OK;
    DSC_TRY(dsc_consensus_sum(c, &mass, 1));
    DSC_TRY(dsc_queue_sync(queue));
    /* Each sum is divided at once, so that no parameter holds a sum if a rank is lost between two of them. */
    for (int64_t i = 0; i < c->run_count; i++) {
        DSC_TRY(dsc_comm_allreduce(c->comm, traffic, DSC_SUM, &c->runs[i]));
        DSC_TRY(dsc_op_axpby(queue, 1 / mass, &c->runs[i], 0, &c->runs[i]));
    }
    return DSC_OK;
}

/* ---- between steps ---- */

dsc_status dsc_consensus_check_settled(const dsc_consensus *c, const char *what) {
    if (c->table->is_busy && c->table->is_busy(c))
        return DSC_FAIL(DSC_E_INVALID, "%s: values are in flight: call dsc_consensus_settle first", what);
    if (c->swapped)
        return DSC_FAIL(DSC_E_INVALID, "%s: other values are swapped in: call dsc_consensus_swap_out first",
                        what);
    return DSC_OK;
}

dsc_status dsc_consensus_swap_in(dsc_consensus *consensus, dsc_queue *queue, dsc_values values) {
    dsc_consensus *c = consensus;
    double weight = dsc_consensus_weight(c);
    int mean = values == DSC_VALUES_MEAN && (dsc_comm_size(c->comm) > 1 || weight != 1);
    DSC_TRY(dsc_consensus_check_settled(c, "swap in"));
    if (c->table->keeps_equal || (!mean && weight == 1)) {
        c->swapped = DSC_SWAPPED_NOTHING;
        return DSC_OK;
    }
    DSC_TRY(dsc_consensus_make_shadow(c));
    DSC_TRY(dsc_consensus_scale(c, queue, 1, c->runs, c->shadow));
    c->swapped = DSC_SWAPPED_WITH_SHADOW;
    if (mean)
        DSC_TRY(dsc_consensus_mean_in_place(c, queue, DSC_TRAFFIC_OTHER));
    else
        DSC_TRY(dsc_consensus_scale(c, queue, 1 / weight, c->shadow, c->runs));
    return dsc_queue_sync(queue);
}

dsc_status dsc_consensus_swap_out(dsc_consensus *consensus, dsc_queue *queue) {
    dsc_consensus *c = consensus;
    if (!c->swapped)
        return DSC_FAIL(DSC_E_INVALID, "swap out: nothing is swapped in: call dsc_consensus_swap_in first");
    if (c->swapped == DSC_SWAPPED_WITH_SHADOW)
        DSC_TRY(dsc_consensus_scale(c, queue, 1, c->shadow, c->runs));
    c->swapped = 0;
    return DSC_OK;
}

/* Sets *out to the sum of squares of all parameters. */
static dsc_status sum_squares(dsc_consensus *c, dsc_queue *queue, double *out) {
    dsc_tensor sum = dsc_tensor_slice(&c->sums, 0, 1);
    DSC_TRY(dsc_op_fill(queue, 0, &sum));
    for (int64_t i = 0; i < c->run_count; i++)
        DSC_TRY(dsc_op_dot(queue, &c->runs[i], &c->runs[i], 1, &sum));
    DSC_TRY(dsc_tensor_download(queue, &sum, sizeof *out, out));
    return dsc_queue_sync(queue);
}

/* Computes the distance from the mean, as root mean square over the ranks, and the norm of the mean. Called while
 * the parameters hold the mean and the shadow the numerators; overwrites the mean. */
static dsc_status measure(dsc_consensus *c, dsc_queue *queue, double *distance, double *norm) {
    double squares[2];
    DSC_TRY(sum_squares(c, queue, &squares[0]));
    for (int64_t i = 0; i < c->run_count; i++)
        DSC_TRY(dsc_op_axpby(queue, 1 / dsc_consensus_weight(c), &c->shadow[i], -1, &c->runs[i]));
    DSC_TRY(sum_squares(c, queue, &squares[1]));
    *norm = sqrt(squares[0]);
    DSC_TRY(dsc_consensus_sum(c, &squares[1], 1));
    *distance = sqrt(squares[1] / dsc_comm_size(c->comm));
    return DSC_OK;
}

dsc_status dsc_consensus_distance(dsc_consensus *consensus, dsc_queue *queue, double *distance,
                                  double *norm) {
    dsc_consensus *c = consensus;
    DSC_TRY(dsc_consensus_swap_in(c, queue, DSC_VALUES_MEAN));
    dsc_status status = DSC_OK;
    if (c->swapped == DSC_SWAPPED_WITH_SHADOW) {
        status = measure(c, queue, distance, norm);
    } else {
        double squares = 0;
        status = sum_squares(c, queue, &squares);
        *distance = 0;
        *norm = sqrt(squares);
    }
    DSC_TRY(dsc_consensus_swap_out(c, queue));
    return status;
}

dsc_status dsc_consensus_mass(dsc_consensus *consensus, double *mass) {
    DSC_TRY(dsc_consensus_check_settled(consensus, "mass"));
    *mass = dsc_consensus_weight(consensus);
    return dsc_consensus_sum(consensus, mass, 1);
}

dsc_status dsc_consensus_rescue(dsc_consensus *c, dsc_queue *queue) {
    dsc_consensus_update_cancel(c);
    if (c->swapped)
        DSC_TRY(dsc_consensus_swap_out(c, queue));
    if (!c->table->rescue)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "%s cannot continue without a rank that was lost", c->table->name);
    return c->table->rescue(c, queue);
}

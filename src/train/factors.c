/* K-FAC's running factors averaged by gossip. Values F, numerators X = w F with the push-sum weight w. */
#include "train/factors.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"

#include <math.h>

struct dsc_factors {
    dsc_average *average;
    dsc_tensor values;     /* F: all running averages of K-FAC; lent */
    dsc_tensor numerators; /* X */
};

void dsc_factors_destroy(dsc_factors **factors) {
    if (!factors || !*factors)
        return;
    dsc_factors *f = *factors;
    dsc_average_destroy(&f->average);
    dsc_tensor_free(&f->numerators);
    dsc_memory_free(factors);
}

static dsc_average_options average_options(const dsc_consensus_options *like) {
    dsc_average_options o;
    dsc_average_options_init(&o);
    o.graph = like->graph;
    o.peers = like->peers;
    o.pairwise = like->kind == DSC_CONSENSUS_DPSGD || like->kind == DSC_CONSENSUS_ADPSGD;
    o.bucket_bytes = like->bucket_bytes;
    o.wire = like->wire == DSC_F16 ? DSC_F32 : like->wire; /* factors may be larger than fp16's largest */
    o.traffic = DSC_TRAFFIC_FACTORS;
    o.timeout = like->peer_timeout;
    return o;
}

static dsc_status make(dsc_factors *f, dsc_comm *comm, dsc_queue *queue, const dsc_consensus_options *like) {
    dsc_average_options options = average_options(like);
    dsc_status status =
        dsc_tensor_alloc(f->values.device, f->values.dtype, f->values.ndim, f->values.dim, &f->numerators);
    DSC_TRY(dsc_comm_agree(comm, status));
    status = dsc_average_create(comm, queue, &f->numerators, 1, &options, &f->average);
    return dsc_comm_agree(comm, status);
}

dsc_status dsc_factors_create(dsc_comm *comm, dsc_queue *queue, dsc_kfac *kfac,
                              const dsc_consensus_options *like, dsc_factors **out) {
    dsc_factors *f = NULL;
    dsc_status status = dsc_comm_agree(comm, dsc_memory_alloc(1, sizeof *f, &f));
    if (status == DSC_OK) {
        f->values = *dsc_kfac_averages(kfac);
        status = make(f, comm, queue, like);
    }
    if (status != DSC_OK) {
        dsc_factors_destroy(&f);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = f;
    return DSC_OK;
}

static dsc_status scale(dsc_queue *queue, double factor, const dsc_tensor *from, dsc_tensor *to) {
    return factor == 1 ? dsc_op_convert(queue, from, to) : dsc_op_axpby(queue, factor, from, 0, to);
}

dsc_status dsc_factors_take(dsc_factors *f, dsc_queue *queue) {
    if (!dsc_average_is_under_way(f->average))
        return DSC_OK;
    DSC_TRY(dsc_average_end(f->average, queue));
    return scale(queue, 1 / dsc_average_weight(f->average), &f->numerators, &f->values);
}

dsc_status dsc_factors_send(dsc_factors *f, dsc_queue *queue) {
    DSC_TRY(scale(queue, dsc_average_weight(f->average), &f->values, &f->numerators));
    return dsc_average_begin(f->average, queue);
}

dsc_status dsc_factors_settle(dsc_factors *f, dsc_queue *queue) {
    int under_way = dsc_average_is_under_way(f->average);
    DSC_TRY(dsc_average_settle(f->average, queue));
    if (!under_way)
        return DSC_OK;
    return scale(queue, 1 / dsc_average_weight(f->average), &f->numerators, &f->values);
}

dsc_status dsc_factors_set_peers(dsc_factors *f, int peers) {
    return dsc_average_set_peers(f->average, peers);
}

void dsc_factors_get(const dsc_factors *f, double numbers[2]) {
    numbers[0] = dsc_average_weight(f->average);
    numbers[1] = (double)dsc_average_rounds(f->average);
}

dsc_status dsc_factors_set(dsc_factors *f, const double numbers[2]) {
    if (!isfinite(numbers[0]) || numbers[0] <= 0 || !(numbers[1] >= 0 && numbers[1] < 0x1p53))
        return DSC_FAIL(DSC_E_FORMAT, "the factors' gossip: weight %g after %g rounds", numbers[0],
                        numbers[1]);
    return dsc_average_restore(f->average, numbers[0], (int64_t)numbers[1]);
}

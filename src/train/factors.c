/* K-FAC's running factors averaged by gossip. Values F, numerators X = w F with the push-sum weight w.
 *
 * A round that ends late: with F0 the values at its beginning and D the product of the decays of the updates
 * since, F = D F0 + rest. Had the mean M = X / w arrived in time, F would be D M + rest. Hence
 *
 *   F <- F + D (M - F0)
 *
 * which is positive semi-definite, as M and the rest are. */
#include "train/factors.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"

#include <math.h>

struct dsc_factors {
    dsc_kfac *kfac; /* stays the caller's */
    dsc_average *average;
    dsc_tensor values;     /* F: all running averages of K-FAC, which owns them */
    dsc_tensor numerators; /* X */
    int waits;             /* a step waits for messages; else they may arrive late */
    dsc_tensor first;      /* F0; not allocated where steps wait */
    double decayed;        /* D */
};

void dsc_factors_destroy(dsc_factors **factors) {
    if (!factors || !*factors)
        return;
    dsc_factors *f = *factors;
    dsc_average_destroy(&f->average);
    dsc_tensor_free(&f->numerators);
    dsc_tensor_free(&f->first);
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
    const dsc_tensor *v = &f->values;
    dsc_average_options options = average_options(like);
    dsc_status status = dsc_tensor_alloc(v->device, v->dtype, v->ndim, v->dim, &f->numerators);
    if (status == DSC_OK && !f->waits)
        status = dsc_tensor_alloc(v->device, v->dtype, v->ndim, v->dim, &f->first);
    DSC_TRY(dsc_comm_agree(comm, status));
    status = dsc_average_create(comm, queue, &f->numerators, 1, &options, &f->average);
    return dsc_comm_agree(comm, status);
}

dsc_status dsc_factors_create(dsc_comm *comm, dsc_queue *queue, dsc_kfac *kfac,
                              const dsc_consensus_options *like, dsc_factors **out) {
    dsc_factors *f = NULL;
    dsc_status status = dsc_comm_agree(comm, dsc_memory_alloc(1, sizeof *f, &f));
    if (status == DSC_OK) {
        f->kfac = kfac;
        f->values = *dsc_kfac_averages(kfac);
        f->waits = like->kind != DSC_CONSENSUS_ADPSGD && like->synch_freq == 0;
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

/* Turns the values into numerators. */
static dsc_status load(dsc_factors *f, dsc_queue *queue) {
    f->decayed = 1;
    if (!f->waits)
        DSC_TRY(dsc_op_convert(queue, &f->values, &f->first));
    return scale(queue, dsc_average_weight(f->average), &f->values, &f->numerators);
}

/* Turns the mixed numerators back into values. */
static dsc_status unload(dsc_factors *f, dsc_queue *queue) {
    double weight = dsc_average_weight(f->average);
    if (f->decayed == 1)
        return scale(queue, 1 / weight, &f->numerators, &f->values);
    DSC_TRY(dsc_op_axpby(queue, -f->decayed, &f->first, 1, &f->values));
    return dsc_op_axpby(queue, f->decayed / weight, &f->numerators, 1, &f->values);
}

dsc_status dsc_factors_take(dsc_factors *f, dsc_queue *queue, int moves) {
    int done = 1;
    if (!dsc_average_is_under_way(f->average))
        return DSC_OK;
    if (!f->waits)
        DSC_TRY(dsc_average_test(f->average, &done));
    if (!done) {
        f->decayed *= moves ? dsc_kfac_hyper_now(f->kfac)->stat_decay : 1;
        return DSC_OK;
    }
    DSC_TRY(dsc_average_end(f->average, queue));
    return unload(f, queue);
}

dsc_status dsc_factors_send(dsc_factors *f, dsc_queue *queue) {
    if (dsc_average_is_under_way(f->average))
        return DSC_OK;
    DSC_TRY(load(f, queue));
    return dsc_average_begin(f->average, queue);
}

/* A rank that has done fewer rounds than others makes up for them here. Values that took part in no round
 * keep their bits. */
dsc_status dsc_factors_settle(dsc_factors *f, dsc_queue *queue) {
    int under_way = dsc_average_is_under_way(f->average);
    int64_t rounds = dsc_average_rounds(f->average);
    if (!under_way)
        DSC_TRY(load(f, queue));
    DSC_TRY(dsc_average_settle(f->average, queue));
    return under_way || dsc_average_rounds(f->average) > rounds ? unload(f, queue) : DSC_OK;
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

/* How ranks agree: three moments in a training step, with one implementation per way.
 *
 *   before_forward   gossip absorbs what arrived and presents the parameters to compute at
 *   grad_ready       called during backward, per parameter: all-reduce starts its buckets
 *   after_backward   gradients are what the optimiser shall see
 *   update           runs the optimiser (a function handed in), then sends and mixes
 *
 * It knows parameters and communicators only, no model and no optimiser. */
#ifndef DSC_CONSENSUS_H
#define DSC_CONSENSUS_H

#include "descent/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_consensus dsc_consensus;

typedef enum dsc_consensus_kind { DSC_CONSENSUS_ALLREDUCE } dsc_consensus_kind;

typedef struct dsc_consensus_options {
    size_t size;
    dsc_consensus_kind kind;
    size_t bucket_bytes; /* 4 MiB */
    dsc_dtype wire;      /* DSC_F32 */
} dsc_consensus_options;

/* The optimiser: updates the parameters in place; `read` as in dsc_optim_step. */
typedef dsc_status (*dsc_update_function)(void *context, dsc_queue *queue, const dsc_tensor *read);

DSC_API void dsc_consensus_options_init(dsc_consensus_options *options);
/* "allreduce" -> kind; DSC_E_INVALID lists the known names. */
DSC_API dsc_status dsc_consensus_parse(const char *name, dsc_consensus_kind *out) DSC_MUST_CHECK;
DSC_API const char *dsc_consensus_name(dsc_consensus_kind kind);

/* params: copied; memory stays the caller's; gradients become ready in falling order. Collective. */
DSC_API dsc_status dsc_consensus_create(dsc_comm *comm, dsc_queue *queue, const dsc_param *params,
                                        int64_t count, const dsc_consensus_options *options,
                                        dsc_consensus **out) DSC_MUST_CHECK;
DSC_API void dsc_consensus_destroy(dsc_consensus **consensus);
/* Gives everybody rank 0's values of the parameters. Collective; blocks. */
DSC_API dsc_status dsc_consensus_start(dsc_consensus *consensus) DSC_MUST_CHECK;
/* The moments of a step, in this order. Collective in effect; asynchronous. */
DSC_API dsc_status dsc_consensus_before_forward(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_grad_ready(dsc_consensus *consensus, dsc_queue *queue,
                                            int64_t param) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_after_backward(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;
DSC_API dsc_status dsc_consensus_update(dsc_consensus *consensus, dsc_queue *queue,
                                        dsc_update_function update, void *context) DSC_MUST_CHECK;
/* Compares a hash of the parameters over all ranks. DSC_E_NUMERIC, with both hashes and ranks, when they
 * differ although this way of agreeing keeps them equal. Collective; blocks. */
DSC_API dsc_status dsc_consensus_check(dsc_consensus *consensus, dsc_queue *queue) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

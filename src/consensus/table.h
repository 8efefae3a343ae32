/* What a way of agreeing implements: one constant table of functions, called by the front in consensus.c
 * after its checks. An entry that is NULL has nothing to do at that moment. */
#ifndef DSC_CONSENSUS_TABLE_H
#define DSC_CONSENSUS_TABLE_H

#include "descent/consensus.h"

typedef struct dsc_consensus_table {
    const char *name;
    int keeps_equal; /* 1: all ranks hold the same parameters after every update, bit for bit */
    /* Sets consensus->state from the options; `close` frees it (state may be NULL there). */
    dsc_status (*open)(dsc_consensus *consensus, const dsc_consensus_options *options);
    void (*close)(dsc_consensus *consensus);
    dsc_status (*before_forward)(dsc_consensus *consensus, dsc_queue *queue);
    dsc_status (*grad_ready)(dsc_consensus *consensus, dsc_queue *queue, int64_t param);
    dsc_status (*after_backward)(dsc_consensus *consensus, dsc_queue *queue);
    /* NULL: runs `update` on the parameters and that is all. */
    dsc_status (*update)(dsc_consensus *consensus, dsc_queue *queue, dsc_update_function update,
                         void *context);
} dsc_consensus_table;

struct dsc_consensus {
    const dsc_consensus_table *table;
    dsc_comm *comm;
    dsc_queue *queue; /* the one given at creation, for what is outside the step */
    dsc_param *params;
    int64_t count;
    dsc_tensor *runs; /* values, neighbours in memory merged; the same pieces on every rank */
    int64_t run_count;
    dsc_tensor hashes; /* I64[2], for comparing */
    void *state;       /* the table's own */
};

extern const dsc_consensus_table dsc_consensus_allreduce;

#endif

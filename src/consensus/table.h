/* The interface of a consensus algorithm: one constant table of functions, which consensus.c calls after its
 * checks. A NULL entry means that the algorithm has nothing to do at that stage. */
#ifndef DSC_CONSENSUS_TABLE_H
#define DSC_CONSENSUS_TABLE_H

#include "descent/consensus.h"

typedef struct dsc_consensus_table {
    const char *name;
    int keeps_equal; /* 1: all ranks hold the same parameters after every update, bit for bit */
    /* `open` sets consensus->state from the options. It may fail halfway, and it may leave state NULL;
     * `close` frees what has been made, and is not called when state is NULL. */
    dsc_status (*open)(dsc_consensus *consensus, const dsc_consensus_options *options);
    void (*close)(dsc_consensus *consensus);
    /* Called after the parameters were overwritten: by rank 0's values, a checkpoint or an exact average.
     * Nothing is in flight, and the weight becomes 1 unless `restore` follows with another one. */
    dsc_status (*adopt)(dsc_consensus *consensus, dsc_queue *queue);
    dsc_status (*before_forward)(dsc_consensus *consensus, dsc_queue *queue);
    dsc_status (*grad_ready)(dsc_consensus *consensus, dsc_queue *queue, int64_t param);
    dsc_status (*after_backward)(dsc_consensus *consensus, dsc_queue *queue);
    /* Called around the caller's optimiser. *read is NULL before the call. If update_begin fails, neither of the
     * others is called. If consensus->average_due is 1, an exact average over all ranks follows right after
     * update_end, so that nothing needs to be sent. */
    dsc_status (*update_begin)(dsc_consensus *consensus, dsc_queue *queue, const dsc_tensor **read);
    dsc_status (*update_end)(dsc_consensus *consensus, dsc_queue *queue);
    void (*update_cancel)(dsc_consensus *consensus);
    /* Completes everything in flight and leaves the numerators in the parameters. Collective. */
    dsc_status (*settle)(dsc_consensus *consensus, dsc_queue *queue);
    /* See dsc_consensus_wait. NULL: dsc_comm_wait. */
    dsc_status (*wait)(dsc_consensus *consensus, dsc_queue *queue, dsc_request **request);
    /* Returns 1 while messages are in flight or the parameters do not hold the numerators. */
    int (*is_busy)(const dsc_consensus *consensus);
    double (*weight)(const dsc_consensus *consensus); /* NULL: always 1 */
    /* See dsc_consensus_rescue. NULL: refused. */
    dsc_status (*rescue)(dsc_consensus *consensus, dsc_queue *queue);
    /* NULL: refused. */
    dsc_status (*set_peers)(dsc_consensus *consensus, int peers);
    /* See dsc_consensus_topology. NULL: there is none. */
    const dsc_topology *(*topology)(const dsc_consensus *consensus);
    /* See dsc_consensus_rounds. NULL: always 0. */
    int64_t (*rounds)(const dsc_consensus *consensus);
    /* Called after `adopt`. NULL: there is nothing to restore. */
    dsc_status (*restore)(dsc_consensus *consensus, double weight, int64_t rounds);
} dsc_consensus_table;

/* The averaging of gradients (gradients.c). */
typedef struct dsc_gradients {
    dsc_buckets *buckets; /* NULL: nothing is averaged */
    dsc_comm *comm;       /* the ranks to average over; owned by the algorithm */
    size_t bucket_bytes;
    dsc_dtype wire;
    dsc_tensor *own;   /* [count], views of `memory`; NULL: the buckets work on the gradients themselves */
    dsc_tensor memory; /* U8 */
    int moving; /* 1: dsc_consensus_set_gradients was called, so that the caller need not announce them */
} dsc_gradients;

enum { DSC_SWAPPED_NOTHING = 1, DSC_SWAPPED_WITH_SHADOW };

struct dsc_consensus {
    const dsc_consensus_table *table;
    dsc_comm *comm;
    dsc_queue *queue; /* the one given at creation, used outside the step */
    dsc_param *params;
    int64_t count;
    dsc_tensor *runs; /* the values, with contiguous parameters merged; the same pieces on every rank */
    int64_t run_count;
    int64_t total;     /* elements of all runs */
    int hurried;       /* 1: this rank has failed, and destroying does not wait long for others */
    int abandoned;     /* 1: destroying does not wait for others at all */
    dsc_tensor hashes; /* I64[2], for comparing ranks */
    dsc_tensor sums;   /* F64[2], for sums over ranks */
    void *state;       /* the algorithm's own; set by table->open */
    dsc_gradients gradients;

    /* A second copy of the values (shared.c): the numerators while the parameters hold something else, or the
     * values z that the optimiser reads. Allocated when first needed. */
    dsc_tensor shadow_memory; /* F32[total] */
    dsc_tensor *shadow;       /* [run_count], views of it by run */
    dsc_tensor *read;         /* [count], views of it by parameter */
    int swapped;              /* DSC_SWAPPED_... between swap_in and swap_out, otherwise 0 */
    int updating;             /* 1 between update_begin and update_end or update_cancel */

    /* Exact averages over all ranks, and slow momentum (slow.c). */
    int64_t steps;         /* the number of updates so far */
    int64_t average_every; /* 0: never */
    int average_due;       /* 1 during an update that is followed by such an average */
    double rate;           /* from dsc_consensus_set_rate; -1: not set */
    double slow_momentum, slow_rate;
    dsc_tensor slow_memory; /* F32[2 total]: u, then y, the values after the previous average */
    dsc_tensor *slow;       /* [2 run_count], views of it by run */
    dsc_param *slow_state;  /* [2 count], views of it by parameter, with names in `names` */
    char *names;
};

extern const dsc_consensus_table dsc_consensus_allreduce;
extern const dsc_consensus_table dsc_consensus_sgp;
extern const dsc_consensus_table dsc_consensus_osgp;
extern const dsc_consensus_table dsc_consensus_dpsgd;
extern const dsc_consensus_table dsc_consensus_adpsgd;

/* Returns 1 if the calls of a step can be part of a recording (device/recording.h). */
int dsc_consensus_records(const dsc_consensus *consensus);

/* Weight, rounds and steps as checkpoints store them: {w, rounds, 0...} if the algorithm has weights, otherwise
 * {rounds, 0...} (with adpsgd rounds are exchanges), and the steps at index 6. */
enum { DSC_CONSENSUS_NUMBERS = 8 };
void dsc_consensus_get_numbers(const dsc_consensus *consensus, double numbers[DSC_CONSENSUS_NUMBERS]);
dsc_status dsc_consensus_set_numbers(dsc_consensus *consensus,
                                     const double numbers[DSC_CONSENSUS_NUMBERS]) DSC_MUST_CHECK;

/* ---- functions that the gossip algorithms share (shared.c) ---- */

/* DSC_E_UNSUPPORTED unless all parameters are F32. */
dsc_status dsc_consensus_check_types(const dsc_consensus *c) DSC_MUST_CHECK;
/* Sets pieces[i] to the part for run i of `memory` (F32[total]), which holds the runs one after the other. */
void dsc_consensus_slice(const dsc_consensus *c, const dsc_tensor *memory, dsc_tensor *pieces);
/* Allocates the shadow unless that was done before. */
dsc_status dsc_consensus_make_shadow(dsc_consensus *c) DSC_MUST_CHECK;
/* Destroys a communicator that was split from c->comm, or releases it if that must not wait for others. */
void dsc_consensus_close_comm(const dsc_consensus *c, dsc_comm **comm);
/* Computes to = factor * from for every run; both are [run_count]. */
dsc_status dsc_consensus_scale(const dsc_consensus *c, dsc_queue *queue, double factor,
                               const dsc_tensor *from, dsc_tensor *to) DSC_MUST_CHECK;
/* Sets *same to 1 if `value` is equal on all ranks, otherwise to 0 (consensus.c). Collective; blocks. */
dsc_status dsc_consensus_is_same(dsc_consensus *c, uint64_t value, int *same) DSC_MUST_CHECK;
/* Replaces values[0..n), n <= 2, by their sums over all ranks. Collective; blocks. */
dsc_status dsc_consensus_sum(dsc_consensus *c, double *values, int n) DSC_MUST_CHECK;
/* Replaces the numerators in the parameters by (sum of all x) / (sum of all w). Collective; blocks. */
dsc_status dsc_consensus_mean_in_place(dsc_consensus *c, dsc_queue *queue,
                                       dsc_traffic traffic) DSC_MUST_CHECK;
/* DSC_E_INVALID while values are in flight or swapped in; `what` names the caller. */
dsc_status dsc_consensus_check_settled(const dsc_consensus *c, const char *what) DSC_MUST_CHECK;

/* Between steps: like dsc_comm_wait, for an operation of all ranks that each rank begins when it gets there.
 * While this rank waits, it still sends the messages that ranks inside a step need from it. Blocks. */
dsc_status dsc_consensus_wait(dsc_consensus *c, dsc_queue *queue, dsc_request **request) DSC_MUST_CHECK;
/* After DSC_E_LOST, at any stage of a step: puts this rank's values z into the parameters, without the
 * messages that have not arrived. Afterwards the consensus can only be destroyed. A new one for the remaining
 * ranks starts with these values and weight 1. Not collective. */
dsc_status dsc_consensus_rescue(dsc_consensus *c, dsc_queue *queue) DSC_MUST_CHECK;

/* ---- gradients (gradients.c) ---- */

/* Makes buckets that average the gradients over the ranks of `comm`. Closing is not collective, but must happen
 * before `comm` is destroyed. */
dsc_status dsc_consensus_open_gradients(dsc_consensus *c, dsc_comm *comm,
                                        const dsc_consensus_options *options) DSC_MUST_CHECK;
void dsc_consensus_close_gradients(dsc_consensus *c);
/* Like dsc_consensus_grad_ready and dsc_consensus_after_backward; without buckets they do nothing. */
dsc_status dsc_consensus_gradient_ready(dsc_consensus *c, dsc_queue *queue, int64_t param) DSC_MUST_CHECK;
dsc_status dsc_consensus_wait_gradients(dsc_consensus *c, dsc_queue *queue) DSC_MUST_CHECK;

/* ---- exact averages and slow momentum (slow.c) ---- */

dsc_status dsc_slow_open(dsc_consensus *c, const dsc_consensus_options *options) DSC_MUST_CHECK;
void dsc_slow_close(dsc_consensus *c);
/* Takes the present values as y. */
dsc_status dsc_slow_start(dsc_consensus *c, dsc_queue *queue) DSC_MUST_CHECK;
/* Computes the exact average after an update, with slow momentum if that is enabled. Collective; blocks. */
dsc_status dsc_slow_average(dsc_consensus *c, dsc_queue *queue) DSC_MUST_CHECK;

#endif

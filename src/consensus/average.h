/* Averaging by gossip, internal: shared by average.c (rounds), message.c (the data of a round) and
 * average_lost.c (ranks that do not answer).
 *
 * A message is the concatenation of all tensors in the wire type, cut into buckets. The device holds one copy
 * to send for each different share of a step (peers with the same share get the same copy), and one to receive
 * for each peer. With push-sum, a header in host memory is sent along with the message and holds the weight.
 * The requests of a round are in one list, in the order in which the end of the round needs them: the receives
 * (headers first, then bucket by bucket), then the sends in the same order. */
#ifndef DSC_CONSENSUS_AVERAGE_H
#define DSC_CONSENSUS_AVERAGE_H

#include "descent/consensus.h"

enum { DSC_HEADER_WEIGHT, DSC_HEADER_ROUND, DSC_HEADER_COUNT };

/* The part of one tensor that lies in one bucket. */
typedef struct dsc_message_segment {
    dsc_tensor own;
    int64_t first; /* its offset in the message, in elements */
} dsc_message_segment;

/* A copy of the message that is sent, and the number of peers that get it. */
typedef struct dsc_message_copy {
    double share;
    int users;
} dsc_message_copy;

typedef struct dsc_message_plan {
    dsc_dtype wire;
    int64_t total;                 /* elements of a message */
    int64_t bucket;                /* elements of a bucket; the last one may have fewer */
    int64_t bucket_count;          /* 0 when there are no elements */
    dsc_message_segment *segments; /* in the order of the message */
    int64_t *first_segment;        /* [bucket_count + 1]: the first segment of each bucket */
    int most;                      /* the most peers to send to, or to receive from, in any step */
    int most_copies;               /* the most different shares in any step */
    dsc_tensor sent, got;          /* wire [most_copies * total], [most * total] */
    dsc_tensor wide;               /* F32 [bucket], if the wire type is a half type */
    dsc_tensor headers;            /* F64 [2 * most * DSC_HEADER_COUNT] in host memory: sent, then received */
} dsc_message_plan;

/* The stages of settling. After a failed call, the next call continues from the stage that was reached. */
typedef enum dsc_settling {
    DSC_SETTLING_NOT,
    DSC_SETTLING_GATHER,  /* wait until all ranks have called settle */
    DSC_SETTLING_COUNT,   /* find the largest number of rounds that any rank has begun */
    DSC_SETTLING_CATCH_UP /* complete rounds up to that number */
} dsc_settling;

struct dsc_average {
    dsc_comm *comm;        /* its own, so that its messages are not matched with others */
    dsc_comm *settle_comm; /* all ranks that settle together: comm, or with groups the caller's */
    int rank, ranks;
    dsc_queue *queue; /* the one given at creation */
    dsc_device *host; /* owns the headers */
    dsc_average_options options;
    char *graph;
    dsc_topology *topology;
    dsc_tensor *tensors;
    int64_t count;
    dsc_message_plan plan;
    int planned; /* 0: making the plan has failed, and no round can begin */
    double weight;
    int64_t rounds; /* the number of rounds begun so far */
    dsc_settling settling;
    dsc_request *settle_request; /* an all-reduce of `number` over settle_comm, while it is in flight */
    int64_t number;              /* its buffer, later the number of rounds to catch up to */
    /* Error messages give rank r of `comm` the number name_factor * r + name_offset, its rank in the job. */
    int name_factor, name_offset;

    /* The round under way. */
    int under_way;
    dsc_edge *out, *in;       /* [most] */
    int *copy_of;             /* [most]: the copy that out[i] gets */
    dsc_message_copy *copies; /* [most_copies] */
    int out_count, in_count, copy_count;
    double self; /* the share that this rank keeps */
    dsc_request **requests;
    int64_t request_count;
    int64_t complete; /* requests [0, complete) are known to be complete */
    int64_t taken;    /* requests [0, taken) have been waited for, and their data has been added */
};

/* For tests: called before every send, receive and test, unless it is NULL. */
extern void (*dsc_average_hook)(void);

/* ---- the data of a round (message.c) ---- */

/* Allocates the memory for the messages of a->topology; called again when the topology changes. */
dsc_status dsc_plan_create(dsc_average *a) DSC_MUST_CHECK;
void dsc_plan_destroy(dsc_message_plan *plan);
/* Lists the copies that the peers in `out` need; out[i] gets copy copy_of[i]. Returns their number. */
int dsc_plan_copies(const dsc_edge *out, int count, dsc_message_copy *copies, int *copy_of);
/* Return bucket b of copy c to send, and bucket b of the message received from peer c. */
dsc_tensor dsc_plan_sent(const dsc_message_plan *plan, int c, int64_t b);
dsc_tensor dsc_plan_got(const dsc_message_plan *plan, int c, int64_t b);
/* Writes bucket b of all copies and leaves this rank's own share in the tensors. */
dsc_status dsc_plan_pack(dsc_average *a, dsc_queue *queue, int64_t b) DSC_MUST_CHECK;
/* Adds `factor` times bucket b of peer c's message to the tensors. */
dsc_status dsc_plan_add(dsc_average *a, dsc_queue *queue, double factor, int c, int64_t b) DSC_MUST_CHECK;

/* ---- rounds (average.c) ---- */

/* The number of requests of the round that are receives; the others are sends. */
int64_t dsc_average_receives(const dsc_average *a);
/* Returns header i of those to send (got = 0) or of those received (got = 1). */
dsc_tensor dsc_average_header(const dsc_average *a, int got, int i);
/* Like dsc_comm_wait, for an operation of all ranks during which some rank may be waiting in a round that this rank
 * has not begun: while this rank waits, it begins rounds, until it has begun `most` in all. */
dsc_status dsc_average_wait_within(dsc_average *a, dsc_queue *queue, int64_t most,
                                   dsc_request **request) DSC_MUST_CHECK;
/* Like dsc_average_settle, for when a rank may be waiting in a round that ranks which are already settling have not
 * begun: until all ranks settle, they begin rounds, up to `most` in all. No rank may have begun more than `most`. */
dsc_status dsc_average_settle_within(dsc_average *a, dsc_queue *queue, int64_t most) DSC_MUST_CHECK;

/* ---- ranks that do not answer (average_lost.c) ---- */

/* Fails with DSC_E_LOST if another rank has raised the alarm. */
dsc_status dsc_average_check_alarm(const dsc_average *a) DSC_MUST_CHECK;
/* Fails if a wait has taken longer than the timeout. `request` is the request of the round that was waited for, or -1
 * for the wait until all ranks settle. */
dsc_status dsc_average_check_timeout(const dsc_average *a, int64_t request, double waited) DSC_MUST_CHECK;
/* After the loss of a rank: ends the round under way without waiting. Messages that have arrived
 * completely are added; the others are dropped, with their values and weights. Afterwards the average can only
 * be destroyed. */
dsc_status dsc_average_give_up(dsc_average *a, dsc_queue *queue) DSC_MUST_CHECK;
/* Called instead of freeing the average: memory that messages in flight may still use is never freed. */
void dsc_average_keep(dsc_average *a);

#endif

/* Averaging by gossip, inside: what average.c (rounds) and message.c (what travels in one) share.
 *
 * A message is all tensors one behind the other, in the wire type, cut into buckets. In memory of the device
 * there is one copy to send for each different share of a step, and one to receive for each peer; beside it a
 * header of the host travels with the weight. Requests stand in one list in the order in which the end of a
 * round needs them: of the receives first headers, then bucket by bucket; then the sends in the same way. */
#ifndef DSC_CONSENSUS_AVERAGE_H
#define DSC_CONSENSUS_AVERAGE_H

#include "descent/consensus.h"

enum { DSC_HEADER_WEIGHT, DSC_HEADER_ROUND, DSC_HEADER_COUNT };

/* A piece of one tensor that lies in one bucket. */
typedef struct dsc_segment {
    dsc_tensor own;
    int64_t first; /* its place in the message */
} dsc_segment;

/* One that is sent: to `users` peers. */
typedef struct dsc_copy {
    double share;
    int users;
} dsc_copy;

typedef struct dsc_plan {
    dsc_dtype wire;
    int64_t total;          /* elements of a message */
    int64_t bucket;         /* elements of a bucket, the last one may have fewer */
    int64_t bucket_count;   /* 0 when there are no elements */
    dsc_segment *segments;  /* in the order of the message */
    int64_t *first_segment; /* [bucket_count + 1] */
    int most;               /* peers in a step, either way */
    int most_copies;        /* different shares in a step */
    dsc_tensor sent, got;   /* wire [most_copies * total], [most * total] */
    dsc_tensor wide;        /* F32 [bucket], where the wire is a half type */
    dsc_tensor headers;     /* F64 [2 * most * DSC_HEADER_COUNT] of the host: sent, then got */
} dsc_plan;

/* How far ranks have come in settling. */
typedef enum dsc_settling {
    DSC_SETTLING_NOT,
    DSC_SETTLING_MEET,    /* waits until all ranks are there */
    DSC_SETTLING_COUNT,   /* finds the most rounds that a rank has begun */
    DSC_SETTLING_CATCH_UP /* ends, and begins, rounds up to these */
} dsc_settling;

struct dsc_average {
    dsc_comm *comm;    /* its own: messages of two averages never meet */
    dsc_comm *meeting; /* of all who settle together: comm, or the caller's */
    int rank, ranks;
    dsc_queue *queue; /* of creation */
    dsc_device *host; /* of the headers */
    dsc_average_options options;
    char *graph;
    dsc_topology *topology;
    dsc_tensor *tensors;
    int64_t count;
    dsc_plan plan;
    int planned; /* 0: a plan could not be made, and no round can begin */
    double weight;
    int64_t rounds;
    dsc_settling settling;
    dsc_request *met; /* an all-reduce of `number` in `meeting`, while it is under way */
    int64_t number;   /* what travels there; the rounds to catch up with */
    /* Ranks as messages name them: rank r is factor * r + offset. */
    int name_factor, name_offset;

    /* The round under way. */
    int under_way;
    dsc_edge *out, *in; /* [most] */
    int *copy_of;       /* [most], of out */
    dsc_copy *copies;   /* [most_copies] */
    int out_count, in_count, copy_count;
    double self;
    dsc_request **requests;
    int64_t request_count;
    int64_t complete; /* requests [0, complete) have been seen to be */
    int64_t taken;    /* requests [0, taken) are waited for, and what they brought is added */
};

/* For tests: called before every send, receive and test; NULL: nothing. */
extern void (*dsc_average_hook)(void);

/* Makes room for the messages of a->topology; again after another topology. */
dsc_status dsc_plan_create(dsc_average *a) DSC_MUST_CHECK;
void dsc_plan_destroy(dsc_plan *plan);
/* The copies that the peers `out` need; copy_of[i] is out[i]'s. Returns their number. */
int dsc_plan_copies(const dsc_edge *out, int count, dsc_copy *copies, int *copy_of);
/* Bucket b of copy c, of those to send, or of what peer c sent. */
dsc_tensor dsc_plan_sent(const dsc_plan *plan, int c, int64_t b);
dsc_tensor dsc_plan_got(const dsc_plan *plan, int c, int64_t b);
/* Writes bucket b of all copies and keeps the own share in the tensors. */
dsc_status dsc_plan_pack(dsc_average *a, dsc_queue *queue, int64_t b) DSC_MUST_CHECK;
/* Adds bucket b of what peer c sent, times factor, to the tensors. */
dsc_status dsc_plan_add(dsc_average *a, dsc_queue *queue, double factor, int c, int64_t b) DSC_MUST_CHECK;

/* As dsc_comm_wait for an operation that all ranks take part in, where one of them may wait in a round that
 * this one has not begun: it begins rounds meanwhile, up to `most` in all. */
dsc_status dsc_average_wait_within(dsc_average *a, dsc_queue *queue, int64_t most,
                                   dsc_request **request) DSC_MUST_CHECK;
/* As dsc_average_settle where a rank may wait in a round that others, already here, have not begun: while
 * somebody is missing, those here begin rounds, up to `most` in all, which no rank may have begun more of. */
dsc_status dsc_average_settle_within(dsc_average *a, dsc_queue *queue, int64_t most) DSC_MUST_CHECK;
/* After the loss of a rank: ends the round under way without waiting. What has come whole is taken in, the
 * rest is lost, of tensors and weight alike. Then the average can only be destroyed. */
dsc_status dsc_average_give_up(dsc_average *a, dsc_queue *queue) DSC_MUST_CHECK;

#endif

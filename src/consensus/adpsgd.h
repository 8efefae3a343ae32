/* AD-PSGD between its two threads: the training thread (adpsgd.c) and the averaging thread (adpsgd_thread.c).
 *
 *   training thread                              averaging thread
 *   before_forward   lock; params <- x; unlock   active (odd ranks), at most once per training step:
 *   update_begin     lock; params <- x             lock; s <- x; unlock
 *   (the caller's optimiser)                       send s to the peer, get the peer's x_p back
 *   update_end       x <- params; unlock           lock; x += share (x_p - s); unlock
 *                                                passive (even ranks), whenever an s arrives:
 *                                                  lock; x_p <- x; x += share (s - x_p); unlock
 *                                                  send x_p back
 *
 * What one side gains the other loses, whatever the training threads add meanwhile, so the sum over all ranks
 * stays. s and x_p are what travels: with a half type both sides work with the rounded values. Nobody holds
 * the lock while it waits for the network. Work on a GPU is put into one queue by each thread; two events
 * keep the order of the lock there. */
#ifndef DSC_CONSENSUS_ADPSGD_H
#define DSC_CONSENSUS_ADPSGD_H

#include "consensus/table.h"

#include <pthread.h>
#include <stdatomic.h>

/* What the training thread wants of the averaging thread. */
typedef enum dsc_adpsgd_wish { DSC_ADPSGD_REST, DSC_ADPSGD_AVERAGE, DSC_ADPSGD_END } dsc_adpsgd_wish;

enum { DSC_ADPSGD_HEADER = 2, DSC_ADPSGD_MESSAGE_SIZE = 1024 };
/* Seconds that the end waits for ranks that come later, beside the peer timeout; and after a failure. */
enum { DSC_ADPSGD_LONGEST_END = 60, DSC_ADPSGD_FAILED_END = 1 };

/* Another rank that this one exchanges with in some step of the graph. */
typedef struct dsc_adpsgd_partner {
    int rank;
    int gone;             /* 1: it has said that there is nothing to come */
    dsc_tensor header;    /* F64[DSC_ADPSGD_HEADER] of the host, to it or from it */
    dsc_request *request; /* of the header, while it is under way */
    dsc_tensor last;      /* the same of the last one to it, which goes out even when one before is stuck */
    dsc_request *last_request;
} dsc_adpsgd_partner;

typedef struct dsc_adpsgd {
    /* Never change while the thread runs. */
    int rank, active;
    dsc_topology *topology;
    double timeout; /* 0: none */
    int64_t total, bucket, bucket_count;
    dsc_dtype wire;

    /* The averaging thread's own while it runs. */
    dsc_comm *comm;
    dsc_queue *queue;
    dsc_device *host;             /* of the headers */
    dsc_tensor header_memory;     /* F64[2 partner_count DSC_ADPSGD_HEADER] */
    dsc_tensor sent, got;         /* wire[total] */
    dsc_tensor wide_a, wide_b;    /* F32[bucket], for half types */
    dsc_adpsgd_partner *partners; /* by rising rank */
    int partner_count, next;      /* next: whom a passive rank looks at first */
    dsc_request **requests;       /* [2 bucket_count], of the exchange under way */
    int64_t request_count;
    int64_t used; /* training steps when the last exchange was begun */

    /* Written under the lock by whoever has it. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    dsc_tensor x;               /* F32[total] */
    dsc_tensor *x_runs;         /* in it: the place of each run of the parameters */
    dsc_event *trained, *mixed; /* the last work on x of each thread */
    int64_t steps;              /* of training */
    int64_t exchanges;          /* ended; the place in the graph's schedule for an active rank */
    int resting;                /* 1: the averaging thread touches neither x nor the network */
    dsc_status failure;         /* of the averaging thread */
    char message[DSC_ADPSGD_MESSAGE_SIZE];
    /* Written under the lock, read without it. */
    atomic_int wish;
    atomic_int failed;
    _Atomic double end_by; /* on the clock: when the thread gives up ending tidily */

    /* The training thread's own. */
    pthread_t thread;
    int has_lock, has_changed, has_thread;
    int settled; /* 1: the parameters hold the values, not x */
} dsc_adpsgd;

/* The averaging thread, until DSC_ADPSGD_END; argument: the dsc_adpsgd. */
void *dsc_adpsgd_thread(void *argument);
/* 1 when messages are still under way: memory that they use must stay. Once the thread has ended. */
int dsc_adpsgd_is_stuck(const dsc_adpsgd *a);

/* For tests: called by every averaging thread before it sends, receives or tests. NULL: nothing. Set while no
 * such thread runs. */
typedef enum dsc_adpsgd_point { DSC_ADPSGD_AT_SEND, DSC_ADPSGD_AT_RECV, DSC_ADPSGD_AT_TEST } dsc_adpsgd_point;
void dsc_adpsgd_set_hook(void (*hook)(int rank, dsc_adpsgd_point point));

#endif

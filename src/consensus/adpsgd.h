/* What the two threads of AD-PSGD share: the training thread (adpsgd.c) and the averaging thread
 * (adpsgd_thread.c).
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
 * What one side gains the other loses, whatever the training threads add in the meantime, so the sum over all
 * ranks is conserved. s and x_p are the values as they are sent: with a half type both sides use the rounded
 * values. No thread holds the lock while it waits for the network. On a GPU each thread has its own queue;
 * two events make the queues follow the order of the lock. */
#ifndef DSC_CONSENSUS_ADPSGD_H
#define DSC_CONSENSUS_ADPSGD_H

#include "consensus/table.h"

#include <pthread.h>
#include <stdatomic.h>

/* What the training thread asks of the averaging thread. */
typedef enum dsc_adpsgd_wish { DSC_ADPSGD_REST, DSC_ADPSGD_AVERAGE, DSC_ADPSGD_END } dsc_adpsgd_wish;

enum { DSC_ADPSGD_HEADER = 2, DSC_ADPSGD_MESSAGE_SIZE = 1024 };
/* Seconds that ending waits for slower ranks: in addition to the peer timeout, and after a failure. */
enum { DSC_ADPSGD_LONGEST_END = 60, DSC_ADPSGD_FAILED_END = 1 };

/* Another rank that this one exchanges values with in some step of the graph. */
typedef struct dsc_adpsgd_partner {
    int rank;
    int gone;             /* 1: its last header has arrived, so it will not ask again */
    dsc_tensor header;    /* F64[DSC_ADPSGD_HEADER] in host memory: a header to or from this partner */
    dsc_request *request; /* of the header, while it is in flight */
    /* The same for the last header to the partner, which is sent even if an earlier one is stuck. */
    dsc_tensor last;
    dsc_request *last_request;
} dsc_adpsgd_partner;

typedef struct dsc_adpsgd {
    /* Do not change while the thread runs. */
    int rank, active;
    dsc_topology *topology;
    double timeout; /* 0: none */
    int64_t total, bucket, bucket_count;
    dsc_dtype wire;

    /* Used only by the averaging thread while it runs. */
    dsc_comm *comm;
    dsc_queue *queue;
    dsc_device *host;             /* owns the headers */
    dsc_tensor header_memory;     /* F64[2 partner_count DSC_ADPSGD_HEADER] */
    dsc_tensor sent, got;         /* wire[total] */
    dsc_tensor wide_a, wide_b;    /* F32[bucket], for half types */
    dsc_adpsgd_partner *partners; /* in ascending order of ranks */
    int partner_count, next;      /* next: the partner that a passive rank tests first */
    dsc_request **requests;       /* [2 bucket_count], of the exchange in progress */
    int64_t request_count;
    int peer;     /* the partner of that exchange */
    int64_t used; /* the value of `steps` when the last exchange began */

    /* Protected by the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    dsc_tensor x;               /* F32[total] */
    dsc_tensor *x_runs;         /* the part of x that belongs to each run of the parameters */
    dsc_event *trained, *mixed; /* after the last work on x of the training and of the averaging thread */
    int64_t steps;              /* training steps so far */
    int64_t exchanges;          /* completed exchanges; for an active rank also the step of the graph */
    int resting;                /* 1: the averaging thread uses neither x nor the network */
    dsc_status failure;         /* the averaging thread's first failure */
    char message[DSC_ADPSGD_MESSAGE_SIZE];
    /* Written under the lock, read without it. */
    atomic_int wish;
    atomic_int failed;
    _Atomic double end_by; /* dsc_clock_now() after which the thread stops waiting for its partners */

    /* Used only by the training thread. */
    pthread_t thread;
    int has_lock, has_changed, has_thread;
    int settled; /* 1: the current values are in the parameters, not in x */
} dsc_adpsgd;

/* The averaging thread; runs until DSC_ADPSGD_END. `argument` is the dsc_adpsgd. */
void *dsc_adpsgd_thread(void *argument);
/* After the thread has ended: is_stuck returns 1 if messages are still in flight, so that their memory must be kept;
 * values_are_stuck returns 1 if messages with values are, not only headers. */
int dsc_adpsgd_is_stuck(const dsc_adpsgd *a);
int dsc_adpsgd_values_are_stuck(const dsc_adpsgd *a);

/* For tests: sets a function that every averaging thread calls before it sends, receives or tests (NULL: none).
 * Must be called while no such thread runs. */
typedef enum dsc_adpsgd_point { DSC_ADPSGD_AT_SEND, DSC_ADPSGD_AT_RECV, DSC_ADPSGD_AT_TEST } dsc_adpsgd_point;
void dsc_adpsgd_set_hook(void (*hook)(int rank, dsc_adpsgd_point point));

#endif

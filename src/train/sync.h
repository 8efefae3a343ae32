/* Synchronisation of ranks that gossip and so do not wait for each other in a step.
 *
 *   synchronisation point   at evaluations, checkpoints and ends of epochs. Afterwards nothing is in flight,
 *                           and all ranks know the sums of the losses and whether a rank asks to stop.
 *   signals                 between these points, whether a rank asks to stop; in one of three modes:
 *
 * By steps: every DSC_SIGNAL_STEPS steps each rank starts an all-reduce of its flags, whose result it reads
 * as many steps later. A rank waits only if it is that many steps ahead of another.
 *
 * By rounds: for adpsgd, whose ranks may be any number of steps apart and never wait. A rank that finds,
 * after a step, that an all-reduce of flags (a round) is complete begins the next one. When a round reports a
 * request to stop, all ranks wait for one more round, which gives the step of the furthest rank, and train up
 * to that step; or, if a rank is at a synchronisation point already, up to that point. At a synchronisation
 * point rounds continue until all ranks are there.
 *
 * Only at synchronisation points: for groups whose messages may be late. The members of a group wait for each
 * other within a step, so all of them would have to learn of the request in the same step.
 *
 * adpsgd uses steps as well when all ranks wait in a step for another reason: K-FAC of scope global, or exact
 * averages. */
#ifndef DSC_TRAIN_SYNC_H
#define DSC_TRAIN_SYNC_H

#include "train/trainer_internal.h"

enum { DSC_SIGNAL_STEPS = 32 };

/* Makes trainer->gossip where steps are not collective. Collective: when one rank fails, all do. */
dsc_status dsc_sync_create(dsc_trainer *t) DSC_MUST_CHECK;
/* Collective. */
void dsc_sync_destroy(dsc_gossip **gossip);

/* After every step: sets t->agreed when the flags of an earlier step say so. */
dsc_status dsc_sync_signal(dsc_trainer *t) DSC_MUST_CHECK;
/* Settles everything, sums the ranks' losses into t->summed_loss and sets t->agreed. All steps must have been
 * collected. Collective; blocks. */
dsc_status dsc_sync_synchronise(dsc_trainer *t) DSC_MUST_CHECK;
/* After a run that was asked to stop, when all ranks know it: discards flags still in flight, which carry the same
 * request and must not stop the next run. Collective; blocks. */
dsc_status dsc_sync_forget_stop(dsc_trainer *t) DSC_MUST_CHECK;
/* At a synchronisation point: measures how far the ranks are apart. Collective; blocks. */
dsc_status dsc_sync_measure(dsc_trainer *t, dsc_consensus_report *report) DSC_MUST_CHECK;
/* At a synchronisation point: sets the number of peers that the schedule gives for the next epoch. */
dsc_status dsc_sync_set_peers(dsc_trainer *t) DSC_MUST_CHECK;
/* Before the first step: the same, and tries all entries of the schedule, so that one that cannot work fails
 * at the start. */
dsc_status dsc_sync_start_peers(dsc_trainer *t) DSC_MUST_CHECK;

#endif

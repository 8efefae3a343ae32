/* Ranks that gossip do not wait for each other in a step; here is where they come together.
 *
 *   meeting   at evaluations, checkpoints, ends of epochs: nothing is in flight afterwards, and everybody
 *             knows the sums of the losses, and who asks to stop
 *   signals   between meetings, who asks to stop; by steps, by rounds, or not at all
 *
 * By steps: every DSC_SIGNAL_STEPS steps the flags begin to travel, and are read as many steps later. Nobody
 * waits who is not that far ahead.
 *
 * By rounds, with adpsgd, whose ranks may be any number of steps apart and never wait: whoever finds, after a
 * step, that a round of flags is complete begins the next. Only when a round says that somebody asks, all
 * wait for one more that tells where the furthest of them is, and go on to that step; or to the meeting, when
 * one of them is there already. In a meeting rounds go on until all are there.
 *
 * Not at all, with groups whose messages may be late: their ranks wait for each other within a step, and
 * would have to find out in the same one.
 *
 * adpsgd goes by steps, too, where something else lets all ranks wait in a step: K-FAC of scope global, exact
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
/* After a meeting. Collective; blocks. */
dsc_status dsc_sync_measure(dsc_trainer *t, dsc_consensus_report *report) DSC_MUST_CHECK;
/* After a meeting: the number of peers that belongs to the epoch that comes. */
dsc_status dsc_sync_set_peers(dsc_trainer *t) DSC_MUST_CHECK;
/* Before the first step: the same, and tries all of the schedule, so that what cannot work fails at once. */
dsc_status dsc_sync_start_peers(dsc_trainer *t) DSC_MUST_CHECK;

#endif

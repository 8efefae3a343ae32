/* Ranks that gossip do not wait for each other in a step; here is where they come together.
 *
 *   meeting   at evaluations, checkpoints, ends of epochs: nothing is in flight afterwards, and everybody
 *             knows the sums of the losses, and who asks to stop
 *   signals   every DSC_SIGNAL_STEPS steps the flags begin to travel, and are read as many steps later;
 *             nobody waits who is not that far ahead
 *
 * There are no signals with adpsgd and with osgp of synch_freq > 0: their ranks may be any number of steps
 * apart, and one that waits could keep back what another needs to go on. */
#ifndef DSC_TRAIN_GOSSIP_H
#define DSC_TRAIN_GOSSIP_H

#include "train/trainer.h"

enum { DSC_SIGNAL_STEPS = 32 };

/* Makes trainer->gossip where steps are not collective. Collective: when one rank fails, all do. */
dsc_status dsc_gossip_create(dsc_trainer *t) DSC_MUST_CHECK;
/* Collective. */
void dsc_gossip_destroy(dsc_gossip **gossip);

/* After every step: sets t->agreed when the flags of an earlier step say so. */
dsc_status dsc_gossip_signal(dsc_trainer *t) DSC_MUST_CHECK;
/* Settles everything, sums the ranks' losses into t->met_loss and sets t->agreed. All steps must have been
 * collected. Collective; blocks. */
dsc_status dsc_gossip_meet(dsc_trainer *t) DSC_MUST_CHECK;
/* After a meeting. Collective; blocks. */
dsc_status dsc_gossip_measure(dsc_trainer *t, dsc_consensus_report *report) DSC_MUST_CHECK;
/* After a meeting: the number of peers that belongs to the epoch that comes. */
dsc_status dsc_gossip_set_peers(dsc_trainer *t) DSC_MUST_CHECK;
/* Before the first step: the same, and tries all of the schedule, so that what cannot work fails at once. */
dsc_status dsc_gossip_start_peers(dsc_trainer *t) DSC_MUST_CHECK;

#endif

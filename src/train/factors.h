/* K-FAC's running factors averaged by gossip, where every rank has a K-FAC of its own. A round begins after
 * the update of the factors in one step and ends before the next update or decomposition: its messages travel
 * while the steps in between compute, and what is decomposed does not depend on the synchronisation points of
 * the run.
 *
 * A copy of the factors is sent: a decomposition in the meantime reads the factors themselves, not the share
 * that a round keeps on this rank.
 *
 * Where ranks may be at different steps (osgp with synch_freq > 0, adpsgd) no rank waits: one that waited for
 * factors could hold back the parameters that the other waits for. A round whose messages have not arrived
 * stays under way, and is added later as if it had arrived in time. */
#ifndef DSC_TRAIN_FACTORS_H
#define DSC_TRAIN_FACTORS_H

#include "descent/consensus.h"
#include "descent/kfac.h"

typedef struct dsc_factors dsc_factors;

/* `kfac` was made with late_factors and outlives this object. Graph, peers, type of the messages and time-out
 * are those of `like`. Collective. */
dsc_status dsc_factors_create(dsc_comm *comm, dsc_queue *queue, dsc_kfac *kfac,
                              const dsc_consensus_options *like, dsc_factors **out) DSC_MUST_CHECK;
/* Collective. */
void dsc_factors_destroy(dsc_factors **factors);

/* dsc_factors_take comes before dsc_kfac_absorb in a step that updates the factors (`moves`) or decomposes
 * them: it adds the round under way, waiting for peers as said above. dsc_factors_send comes after it in a
 * step that updates them: it begins the next round, unless one is still under way. */
dsc_status dsc_factors_take(dsc_factors *f, dsc_queue *queue, int moves) DSC_MUST_CHECK;
dsc_status dsc_factors_send(dsc_factors *f, dsc_queue *queue) DSC_MUST_CHECK;
/* Between steps: ends the round under way. Collective; blocks. */
dsc_status dsc_factors_settle(dsc_factors *f, dsc_queue *queue) DSC_MUST_CHECK;
/* Sets the number of peers of later rounds. After settling. */
dsc_status dsc_factors_set_peers(dsc_factors *f, int peers) DSC_MUST_CHECK;
/* Push-sum weight and rounds, for checkpoints; after settling. */
void dsc_factors_get(const dsc_factors *f, double numbers[2]);
dsc_status dsc_factors_set(dsc_factors *f, const double numbers[2]) DSC_MUST_CHECK;

#endif

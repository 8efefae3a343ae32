/* K-FAC's running factors averaged by gossip, where every rank has a K-FAC of its own. A round begins behind
 * the factors' move in one step and ends before the next move or decomposition, so that its messages travel
 * while the steps between compute, and what is decomposed does not depend on whether ranks have met.
 *
 * What travels is a copy: a decomposition in the meantime finds the factors as they are, not the share that
 * a round leaves behind.
 *
 * Where ranks may be at different steps (osgp with synch_freq > 0, adpsgd) nobody waits: a rank that waited
 * for factors could keep back the parameters that the other waits for. A round that has not arrived is left
 * under way, and is taken in later as if it had come in time. */
#ifndef DSC_TRAIN_FACTORS_H
#define DSC_TRAIN_FACTORS_H

#include "descent/consensus.h"
#include "descent/kfac.h"

typedef struct dsc_factors dsc_factors;

/* `kfac` was made with late_factors and outlives it. Graph, peers, type of the messages and patience are
 * those of `like`. Collective. */
dsc_status dsc_factors_create(dsc_comm *comm, dsc_queue *queue, dsc_kfac *kfac,
                              const dsc_consensus_options *like, dsc_factors **out) DSC_MUST_CHECK;
/* Collective. */
void dsc_factors_destroy(dsc_factors **factors);

/* Before dsc_kfac_absorb of a step that moves the factors (`moves`) or decomposes them: takes in the round
 * under way, waiting for peers as said above. Behind that of one that moves them: sends what came out, unless
 * a round is still under way. */
dsc_status dsc_factors_take(dsc_factors *f, dsc_queue *queue, int moves) DSC_MUST_CHECK;
dsc_status dsc_factors_send(dsc_factors *f, dsc_queue *queue) DSC_MUST_CHECK;
/* Between steps: takes in what is under way. Collective; blocks. */
dsc_status dsc_factors_settle(dsc_factors *f, dsc_queue *queue) DSC_MUST_CHECK;
/* After settling. */
dsc_status dsc_factors_set_peers(dsc_factors *f, int peers) DSC_MUST_CHECK;
/* Push-sum weight and rounds, for checkpoints; after settling. */
void dsc_factors_get(const dsc_factors *f, double numbers[2]);
dsc_status dsc_factors_set(dsc_factors *f, const double numbers[2]) DSC_MUST_CHECK;

#endif

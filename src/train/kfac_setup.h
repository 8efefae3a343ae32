/* K-FAC of a run: made with the trainer; its schedules. */
#ifndef DSC_TRAIN_KFAC_SETUP_H
#define DSC_TRAIN_KFAC_SETUP_H

#include "train/trainer_internal.h"

/* Makes trainer->kfac when the options ask for it, and what averages its factors by gossip. Collective: when
 * one rank fails, all do. */
dsc_status dsc_kfac_setup_create(dsc_trainer *t) DSC_MUST_CHECK;
/* The last part of it alone, for a number of ranks that has changed. Collective: when one rank fails, all do.
 */
dsc_status dsc_kfac_setup_make_factors(dsc_trainer *t) DSC_MUST_CHECK;
/* Collective. */
void dsc_kfac_setup_destroy(dsc_trainer *t);

/* What the epoch schedules make of `base` at an epoch (a real number): a pure function, so nothing compounds.
 *   damping            base alpha^k, k the listed epochs that are not later
 *   both frequencies   the same with their own alpha and list, rounded to whole numbers, 1 at least
 *   diagonal blocks    1 before the end of their warm-up */
dsc_kfac_hyper dsc_kfac_setup_hyper(const dsc_train_options *options, dsc_kfac_hyper base, double epoch);

#endif

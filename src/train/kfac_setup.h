/* Creates the K-FAC preconditioner of a run, and computes its schedules. */
#ifndef DSC_TRAIN_KFAC_SETUP_H
#define DSC_TRAIN_KFAC_SETUP_H

#include "model/graph.h"
#include "train/trainer_internal.h"

/* Replaces the setting refresh = auto by the value it stands for: in a resumed run the value that the checkpoint's
 * run used, else the one that suits rank 0's device. All later parts, the metrics and the file `config` then see that
 * value. Collective. */
dsc_status dsc_kfac_setup_refresh(dsc_trainer *t) DSC_MUST_CHECK;
/* Makes trainer->kfac when the options ask for it, and trainer->factors, which averages its factors by gossip.
 * Collective: when one rank fails, all do. */
dsc_status dsc_kfac_setup_create(dsc_trainer *t) DSC_MUST_CHECK;
/* Makes trainer->factors alone, after the number of ranks has changed. Collective: when one rank fails, all do. */
dsc_status dsc_kfac_setup_make_factors(dsc_trainer *t) DSC_MUST_CHECK;
/* Collective. */
void dsc_kfac_setup_destroy(dsc_trainer *t);

/* The kinds of layers that come after those with a weight matrix in K-FAC's list, if the options ask for them: the
 * model's norms, the tables of its embeddings, its tied heads. */
typedef enum dsc_kfac_extra {
    DSC_KFAC_NORMS,
    DSC_KFAC_TABLES,
    DSC_KFAC_TIED_HEADS,
    DSC_KFAC_EXTRAS
} dsc_kfac_extra;
/* The layers of dsc_kfac_layers_of_model, followed by those of dsc_kfac_extra. Free with dsc_kfac_layers_free. */
dsc_status dsc_kfac_setup_layers(const dsc_model *model, const dsc_kfac_options *options,
                                 dsc_kfac_layer **out, int64_t *count) DSC_MUST_CHECK;
/* K-FAC's number of the first layer of a kind; DSC_KFAC_EXTRAS: the number of all layers. */
int64_t dsc_kfac_first_of(const dsc_model *model, const dsc_kfac_options *options, dsc_kfac_extra extra);
/* K-FAC's number for a node of one of these kinds; -1: it is of another kind, or is not preconditioned. */
int64_t dsc_kfac_number_of(const dsc_model *model, const dsc_kfac_options *options, const dsc_node *node);

/* Applies the schedules to `base` at an epoch (a real number). A pure function, so nothing accumulates.
 *   damping            base alpha^k, with k the number of listed epochs <= epoch
 *   both frequencies   the same with their own alpha and list, rounded to whole numbers and at least 1
 *   diagonal blocks    1 before the end of their warm-up */
dsc_kfac_hyper dsc_kfac_setup_hyper(const dsc_train_options *options, dsc_kfac_hyper base, double epoch);

#endif

/* How ranks agree, as options of descent train: what fits together, and words that become values. */
#ifndef DSC_CLI_GOSSIP_OPTIONS_H
#define DSC_CLI_GOSSIP_OPTIONS_H

#include "base/option.h"
#include "descent/train.h"

/* A member of a command's values. */
typedef struct dsc_cli_gossip_values {
    const char *consensus, *kfac_scope, *peers_schedule, *on_peer_loss;
} dsc_cli_gossip_values;

/* Sets the defaults: those in `o`, which must be initialised. */
void dsc_cli_gossip_init(dsc_cli_gossip_values *values, const dsc_train_options *o);
/* After parsing: completes `o` and its part `consensus`; DSC_E_INVALID for an option in `set` that the chosen way of agreeing does not
 * know. Whether graph and ranks go together is left to the library. */
dsc_status dsc_cli_gossip_finish(const dsc_cli_gossip_values *values, const dsc_option_set *set,
                                 dsc_train_options *o, dsc_consensus_options *consensus) DSC_MUST_CHECK;
/* "0:1 30:2", commas or blanks between the pairs: from which epoch on how many peers a step. */
dsc_status dsc_cli_gossip_schedule(const char *text, dsc_train_options *o) DSC_MUST_CHECK;

#endif

/* The table of the options of a consensus. */
#include "base/option.h"
#include "base/versioned.h"
#include "descent/consensus.h"

#define AT(member) offsetof(dsc_consensus_options, member)
#define GOSSIP     "consensus=sgp|osgp|dpsgd|adpsgd"
#define ROUNDS     "consensus=sgp|osgp|dpsgd"

/* In the order of dsc_consensus_kind. */
static const char *const kinds[] = {"allreduce", "sgp", "osgp", "dpsgd", "adpsgd", NULL};
static const char *const wire_names[] = {"fp32", "bf16", "fp16", NULL};
static const int wire_types[] = {DSC_F32, DSC_BF16, DSC_F16};

static const dsc_option table[] = {
    {.name = "consensus",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(kind),
     .value = "allreduce",
     .choices = kinds,
     .help = "how ranks stay together: gradients are averaged over all ranks (allreduce), or parameters are "
             "averaged "
             "with a few peers by gossip: stochastic gradient push (sgp), the same overlapped with computing "
             "(osgp), exchange in pairs (dpsgd), or pairs at any time (adpsgd)",
     .json = "consensus",
     .group = "Many ranks"},
    {.name = "allreduce-dtype",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(wire),
     .value = "fp32",
     .choices = wire_names,
     .values = wire_types,
     .help = "type in which gradients, or with gossip parameters, are sent",
     .json = "allreduce_dtype"},
    {.name = "bucket-mb",
     .kind = DSC_OPTION_MIB,
     .offset = AT(bucket_bytes),
     .value = "4",
     .placeholder = "X",
     .range = "(0, 1e6]",
     .help = "MiB of gradients or parameters that are sent in one message",
     .json = "bucket_bytes"},
    {.name = "peer-timeout",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(peer_timeout),
     .placeholder = "S",
     .range = "[0, 1e9]",
     .help = "seconds to wait for another rank before it counts as lost; 0: for ever",
     .json = "gossip.peer_timeout",
     .flags = DSC_OPTION_MAY_CHANGE},
    {.name = "graph",
     .kind = DSC_OPTION_STRING,
     .offset = AT(graph),
     .placeholder = "NAME|FILE",
     .default_text =
         "exponential; dpsgd, adpsgd: bipartite-exponential, dpsgd on an odd number of ranks: base-2",
     .help = "who sends to whom: exponential, exponential-pm, linear, ring, static-exponential, complete, "
             "bipartite-exponential, bipartite-linear, hypercube, base-2, or a file (with a / in its name or "
             "ending in .graph)",
     .json = "gossip.graph",
     .group = "Gossip",
     .rules = {{GOSSIP, "only gossip runs on a graph"}}},
    {.name = "peers-per-step",
     .kind = DSC_OPTION_INT,
     .offset = AT(peers),
     .value = "1",
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "peers that a rank sends to in a step",
     .json = "gossip.peers_per_step",
     .rules = {{ROUNDS, "only rounds of gossip have a number of peers"}}},
    {.name = "synch-freq",
     .kind = DSC_OPTION_INT64,
     .offset = AT(synch_freq),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "osgp: steps that messages may be late before a rank waits for them",
     .json = "gossip.synch_freq",
     .rules = {{"consensus=osgp", "only osgp lets messages be late by several steps"}}},
    {.name = "gossip-group",
     .kind = DSC_OPTION_INT,
     .offset = AT(group),
     .value = "1",
     .placeholder = "N",
     .range = "[0, 1e6]",
     .help =
         "ranks that average their gradients and gossip as one, neighbours in rank order; 0: the ranks of "
         "a node",
     .json = "gossip.group",
     .rules = {{ROUNDS, "only rounds of gossip run between groups, whose ranks wait for each other"}}},
    {.name = "average-every",
     .kind = DSC_OPTION_INT64,
     .offset = AT(average_every),
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "steps between exact averages over all ranks; 0: never",
     .json = "gossip.average_every",
     .rules = {{GOSSIP, "all-reduce keeps the ranks equal in every step"}}},
    {.name = "slow-momentum",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(slow_momentum),
     .placeholder = "X",
     .range = "[0, 1)",
     .help = "momentum of the change from one exact average to the next (SlowMo)",
     .json = "gossip.slow_momentum",
     .rules = {{GOSSIP, "it acts when ranks that gossip are averaged"},
               {"average-every>0", "it acts at exact averages, and there are none"}}},
    {.name = "slow-rate",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(slow_rate),
     .value = "1",
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "learning rate of the change from one exact average to the next (SlowMo)",
     .json = "gossip.slow_rate",
     .rules = {{GOSSIP, "it acts when ranks that gossip are averaged"},
               {"average-every>0", "it acts at exact averages, and there are none"}}},
    {.name = NULL},
};

const dsc_option *dsc_consensus_option_table(void) {
    return table;
}

void dsc_consensus_options_init_sized(dsc_consensus_options *options, size_t size) {
    dsc_consensus_options defaults = {0};
    dsc_option_defaults(table, &defaults);
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

dsc_status dsc_consensus_parse(const char *name, dsc_consensus_kind *out) {
    int kind = 0;
    dsc_status status = dsc_option_choice_parse("consensus", kinds, name, &kind);
    if (status == DSC_OK)
        *out = (dsc_consensus_kind)kind;
    return status;
}

const char *dsc_consensus_name(dsc_consensus_kind kind) {
    return dsc_option_choice_name(kinds, (int)kind);
}

/* Options of gossip: which fit which way of agreeing, and the schedule of peers. */
#include "cli/gossip_options.h"

#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT(kind) (1u << (kind))

enum {
    OSGP = BIT(DSC_CONSENSUS_OSGP),
    ROUNDS = BIT(DSC_CONSENSUS_SGP) | OSGP | BIT(DSC_CONSENSUS_DPSGD),
    GOSSIP = ROUNDS | BIT(DSC_CONSENSUS_ADPSGD)
};

/* Options that some ways of agreeing do not have. */
static const struct fit {
    const char *name;
    unsigned kinds;
    const char *why;
} fits[] = {
    {"graph", GOSSIP, "only gossip runs on a graph"},
    {"peers-per-step", ROUNDS, "only rounds of gossip have a number of peers"},
    {"peers-schedule", ROUNDS, "only rounds of gossip have a number of peers"},
    {"synch-freq", OSGP, "only osgp lets messages stay away for steps"},
    {"gossip-group", ROUNDS, "only rounds of gossip run between groups, whose ranks wait for each other"},
    {"average-every", GOSSIP, "all-reduce keeps the ranks equal in every step"},
    {"slow-momentum", GOSSIP, "it acts when ranks that gossip are averaged"},
    {"slow-rate", GOSSIP, "it acts when ranks that gossip are averaged"},
    {"eval-ranks", GOSSIP, "all-reduce keeps the ranks equal"},
    {"distance-every", GOSSIP, "all-reduce keeps the ranks equal"},
    {"check-every", BIT(DSC_CONSENSUS_ALLREDUCE), "ranks that gossip differ from each other"},
};

void dsc_cli_gossip_init(dsc_cli_gossip_values *values, const dsc_train_options *o) {
    *values = (dsc_cli_gossip_values){
        .consensus = dsc_consensus_name(o->consensus->kind),
        .kfac_scope = dsc_kfac_scope_name(o->kfac_scope),
        .on_peer_loss = "stop",
    };
}

/* "sgp, osgp, dpsgd" */
static const char *kinds_text(unsigned kinds, char *text, size_t size) {
    text[0] = '\0';
    for (int k = 0; k <= DSC_CONSENSUS_ADPSGD; k++)
        if (kinds & BIT(k)) {
            size_t used = strlen(text);
            snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                     dsc_consensus_name((dsc_consensus_kind)k));
        }
    return text;
}

static dsc_status check_fits(const dsc_option_set *set, dsc_consensus_kind kind) {
    char kinds[96];
    for (size_t i = 0; i < sizeof fits / sizeof *fits; i++)
        if (dsc_option_given(set, fits[i].name) && !(fits[i].kinds & BIT(kind)))
            return DSC_FAIL(
                DSC_E_INVALID, "--%s does not go with --consensus %s: %s; choose %s%s or leave it out",
                fits[i].name, dsc_consensus_name(kind), fits[i].why,
                strchr(kinds_text(fits[i].kinds, kinds, sizeof kinds), ',') ? "one of " : "", kinds);
    return DSC_OK;
}

/* Without all-reduce of the factors each rank decomposes all that it needs. */
static dsc_status check_scope(const dsc_option_set *set, const dsc_train_options *o) {
    static const char *const shared[] = {"kfac-strategy", "kfac-grad-worker-fraction", "kfac-placement"};
    for (size_t i = 0; i < sizeof shared / sizeof *shared && o->kfac_scope != DSC_SCOPE_GLOBAL; i++)
        if (dsc_option_given(set, shared[i]))
            return DSC_FAIL(DSC_E_INVALID,
                            "--%s does not go with --kfac-scope %s, where every rank decomposes all factors "
                            "itself: leave it out, or give --kfac-scope global",
                            shared[i], dsc_kfac_scope_name(o->kfac_scope));
    return DSC_OK;
}

/* What needs another option beside it. */
static dsc_status check_partners(const dsc_option_set *set, const dsc_train_options *o) {
    if (dsc_option_given(set, "eval-ranks") && o->eval_every == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "--eval-ranks with --eval-every 0: there are no evaluations; leave one "
                        "of them out");
    if (o->consensus->average_every > 0)
        return DSC_OK;
    if (dsc_option_given(set, "slow-momentum"))
        return DSC_FAIL(DSC_E_INVALID,
                        "--slow-momentum %g acts at exact averages, and there are none: give "
                        "--average-every N, too",
                        o->consensus->slow_momentum);
    if (dsc_option_given(set, "slow-rate"))
        return DSC_FAIL(
            DSC_E_INVALID,
            "--slow-rate %g acts at exact averages, and there are none: give --average-every N, too",
            o->consensus->slow_rate);
    return DSC_OK;
}

/* Without a time limit nobody would ever be missed: continue brings one. */
static dsc_status check_peer_loss(const char *word, const dsc_option_set *set, dsc_train_options *o,
                                  dsc_consensus_options *consensus) {
    static const double default_timeout = 60;
    if (strcmp(word, "continue") != 0)
        return DSC_OK;
    o->on_peer_loss = DSC_PEER_LOSS_CONTINUE;
    if (o->consensus->kind == DSC_CONSENSUS_ALLREDUCE)
        return DSC_FAIL(DSC_E_INVALID,
                        "--on-peer-loss continue does not go with --consensus allreduce, where every step "
                        "needs all ranks: choose one of sgp, osgp, dpsgd, adpsgd, or give stop");
    if (o->consensus->group != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "--on-peer-loss continue does not go with --gossip-group %d: the others of a lost "
                        "rank's group could not go on; give --gossip-group 1, or stop",
                        o->consensus->group);
    if (o->kfac->update_freq > 0 && o->kfac_scope == DSC_SCOPE_GLOBAL)
        return DSC_FAIL(
            DSC_E_INVALID,
            "--on-peer-loss continue does not go with --kfac-scope global, which averages factors "
            "over all ranks: give --kfac-scope gossip or local, or stop");
    if (o->consensus->peer_timeout == 0 && dsc_option_given(set, "peer-timeout"))
        return DSC_FAIL(DSC_E_INVALID,
                        "--on-peer-loss continue with --peer-timeout 0: nobody would ever count as lost; "
                        "give seconds, or leave it out (%g)",
                        default_timeout);
    if (o->consensus->peer_timeout == 0)
        consensus->peer_timeout = default_timeout;
    return DSC_OK;
}

/* A whole number at *text, digits only; moves *text behind it. */
static int read_count(const char **text, long high, long *out) {
    char *end;
    if (!isdigit((unsigned char)**text))
        return 0;
    errno = 0;
    *out = strtol(*text, &end, 10);
    *text = end;
    return errno == 0 && *out <= high;
}

dsc_status dsc_cli_gossip_schedule(const char *text, dsc_train_options *o) {
    static const char blanks[] = ", \t";
    o->peers_count = 0;
    for (const char *at = text + strspn(text, blanks); *at; at += strspn(at, blanks)) {
        long epoch = 0, peers = 0;
        int good = read_count(&at, 1000000000L, &epoch) && *at == ':';
        at += good;
        if (!good || !read_count(&at, INT_MAX, &peers) || peers < 1 || (*at && !strchr(blanks, *at)))
            return DSC_FAIL(
                DSC_E_INVALID,
                "--peers-schedule %s: must be pairs EPOCH:PEERS of whole numbers, as '0:1 30:2' or "
                "0:1,30:2, with 1 peer or more",
                text);
        if (o->peers_count > 0 && epoch <= o->peers_epochs[o->peers_count - 1])
            return DSC_FAIL(DSC_E_INVALID, "--peers-schedule %s: epoch %ld does not come after epoch %lld",
                            text, epoch, (long long)o->peers_epochs[o->peers_count - 1]);
        if (o->peers_count == DSC_MAX_DECAYS)
            return DSC_FAIL(DSC_E_INVALID, "--peers-schedule %s: more than %d pairs", text, DSC_MAX_DECAYS);
        o->peers_epochs[o->peers_count] = epoch;
        o->peers_values[o->peers_count++] = (int)peers;
    }
    if (o->peers_count == 0)
        return DSC_FAIL(DSC_E_INVALID, "--peers-schedule (empty): must be pairs EPOCH:PEERS, as '0:1 30:2'");
    return DSC_OK;
}

dsc_status dsc_cli_gossip_finish(const dsc_cli_gossip_values *values, const dsc_option_set *set,
                                 dsc_train_options *o, dsc_consensus_options *consensus) {
    DSC_TRY(dsc_consensus_parse(values->consensus, &consensus->kind));
    DSC_TRY(dsc_kfac_scope_parse(values->kfac_scope, &o->kfac_scope));
    DSC_TRY(check_fits(set, o->consensus->kind));
    DSC_TRY(check_peer_loss(values->on_peer_loss, set, o, consensus));
    DSC_TRY(check_scope(set, o));
    DSC_TRY(check_partners(set, o));
    if (o->consensus->kind == DSC_CONSENSUS_ALLREDUCE && o->kfac_scope != DSC_SCOPE_GLOBAL)
        return DSC_FAIL(DSC_E_INVALID,
                        "--kfac-scope %s does not go with --consensus allreduce, where all ranks share their "
                        "factors: give global, or choose one of sgp, osgp, dpsgd, adpsgd",
                        values->kfac_scope);
    return values->peers_schedule ? dsc_cli_gossip_schedule(values->peers_schedule, o) : DSC_OK;
}

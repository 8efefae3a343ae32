/* Options of the preconditioner: defaults, names, and which of them can be combined. */
#include "base/error.h"
#include "base/option.h"
#include "base/versioned.h"
#include "kfac/kfac_parts.h"
#include "kfac/placement.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(dsc_kfac_options, member)
#define K_ON                                                                                                 \
    { "kfac-update-freq", "K-FAC is off" }
#define GLOBAL_ONLY                                                                                          \
    { "kfac-scope=global", "in this scope every rank decomposes all factors itself" }

/* In the order of their enums. */
static const char *const methods[] = {"eigen", "inverse", NULL};
static const char *const strategies[] = {"comm-opt", "mem-opt", "hybrid-opt", "layer-wise", NULL};
static const char *const placements[] = {"round-robin", "compute", "memory", NULL};
static const char *const scalings[] = {"paper", "kfac-pytorch", NULL};
static const char *const splits[] = {"none", "pi", NULL};
static const char *const ekfacs[] = {"off", "batch", "samples", NULL};
static const char *const refreshes[] = {"exact", "warm", "auto", NULL};
static const char *const clip_scalings[] = {"none", "ranks", NULL};
static const char *const norms[] = {"off", "full", "diagonal", NULL};
static const char *const clips[] = {"global", "layer", NULL};
static const char *const sharings[] = {"expand", "reduce", NULL};
static const char *const tied[] = {"skip", "input", NULL};
static const char *const type_names[] = {"fp32", "bf16", "fp16", NULL};
static const int types[] = {DSC_F32, DSC_BF16, DSC_F16};

#define KIND_NAME(constant, name) " " #name
static const dsc_option table[] = {
    {.name = "kfac-update-freq",
     .kind = DSC_OPTION_INT64,
     .offset = AT(update_freq),
     .value = "0",
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "steps between decompositions; 0 turns K-FAC off",
     .json = "kfac.update_freq",
     .group = "Preconditioner (K-FAC)"},
    {.name = "kfac-cov-update-freq",
     .kind = DSC_OPTION_INT64,
     .offset = AT(factor_freq),
     .value = "1",
     .placeholder = "N",
     .range = "[0, 1e15]",
     .help = "steps between updates of the factors; 0: never",
     .json = "kfac.factor_freq",
     .rules = {K_ON}},
    {.name = "kfac-damping",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(damping),
     .value = "0.003",
     .placeholder = "X",
     .range = "(0, inf)",
     .help = "added to the products of eigenvalues (inverse: to both factors)",
     .json = "kfac.damping",
     .rules = {K_ON}},
    {.name = "kfac-stat-decay",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(stat_decay),
     .value = "0.95",
     .placeholder = "X",
     .range = "[0, 1]",
     .help = "decay of the running averages: the share of its old value that a factor keeps in an update",
     .json = "kfac.stat_decay",
     .rules = {K_ON}},
    {.name = "kfac-warmup-factors",
     .kind = DSC_OPTION_ON_OFF,
     .offset = AT(warmup_factors),
     .value = "off",
     .help =
         "start the running averages as plain means of the first batches, without a share of the identity",
     .json = "kfac.warmup_factors",
     .rules = {K_ON}},
    {.name = "kfac-factor-samples",
     .kind = DSC_OPTION_INT64,
     .offset = AT(factor_samples),
     .value = "0",
     .placeholder = "N",
     .range = "[0, 1e15]",
     .default_text = "all",
     .help =
         "images of a rank's batch that factors are computed from, the first N of them; norms, embeddings "
         "and tied heads use all",
     .json = "kfac.factor_samples",
     .rules = {K_ON}},
    {.name = "kfac-sharing",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(sharing),
     .value = "expand",
     .choices = sharings,
     .help = "linear layers on sequences: factors count every position, or every sequence as one",
     .json = "kfac.sharing",
     .rules = {K_ON}},
    {.name = "kfac-kl-clip",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(kl_clip),
     .value = "0.001",
     .placeholder = "X",
     .range = "[0, inf)",
     .help = "bound on the change of the model's output in a step (KL clip); 0: none",
     .json = "kfac.kl_clip",
     .rules = {K_ON}},
    {.name = "kfac-clip",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(clip),
     .value = "global",
     .choices = clips,
     .help =
         "the KL clip shortens all layers by one factor, or each layer by its own, with an equal share of "
         "the bound",
     .json = "kfac.clip",
     .rules = {K_ON}},
    {.name = "kfac-kl-clip-scaling",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(kl_clip_scaling),
     .value = "none",
     .choices = clip_scalings,
     .help = "the bound of the clip as it is given, or times the batches (of ranks, accumulated) of a step",
     .json = "kfac.kl_clip_scaling",
     .rules = {K_ON}},
    {.name = "kfac-scaling",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(scaling),
     .value = "paper",
     .choices = scalings,
     .help = "scale of a convolution's factors; with kfac-pytorch they are negligible beside common dampings",
     .json = "kfac.scaling",
     .rules = {K_ON}},
    {.name = "kfac-method",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(method),
     .value = "eigen",
     .choices = methods,
     .help = "eigenvectors of the factors, or their damped inverses",
     .json = "kfac.method",
     .rules = {K_ON}},
    {.name = "kfac-damping-split",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(damping_split),
     .value = "none",
     .choices = splits,
     .help = "inverse: the damping is added to both factors, or divided between them by the ratio of their "
             "mean traces",
     .json = "kfac.damping_split",
     .rules = {K_ON, {"kfac-method=inverse", "eigenvalues are damped as products, not by factor"}}},
    {.name = "kfac-refresh",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(refresh),
     .value = "auto",
     .choices = refreshes,
     .help = "eigen: solve every decomposition anew, or rotate the last eigenvectors while that is accurate; "
             "auto: warm on a GPU, where a rotation is much faster than a solve, and exact on a CPU",
     .json = "kfac.refresh",
     .rules = {K_ON}},
    {.name = "kfac-rank",
     .kind = DSC_OPTION_FRACTION,
     .offset = AT(rank),
     .value = "1",
     .placeholder = "X",
     .range = "(0, 1]",
     .help =
         "warm: the share of eigenvectors that is kept of factors of more than 128 rows, as 0.25 or 1/4; the "
         "mean of the other eigenvalues stands for the rest",
     .json = "kfac.rank",
     .rules = {K_ON, {"kfac-refresh=warm", "only rotated bases can be cut"}}},
    {.name = "kfac-async",
     .kind = DSC_OPTION_INT64,
     .offset = AT(async_steps),
     .value = "0",
     .placeholder = "K",
     .range = "[0, 1e15]",
     .help = "decompose beside the next steps, and use the result K steps later; 0: the step waits for it",
     .json = "kfac.async",
     .rules = {K_ON}},
    {.name = "kfac-strategy",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(strategy),
     .value = "comm-opt",
     .choices = strategies,
     .help = "who preconditions a layer: every rank, one rank (layer-wise is the same), or a fraction of the "
             "ranks",
     .json = "kfac.strategy",
     .rules = {K_ON, GLOBAL_ONLY}},
    {.name = "kfac-grad-worker-fraction",
     .kind = DSC_OPTION_FRACTION,
     .offset = AT(grad_worker_fraction),
     .value = "0.5",
     .placeholder = "X",
     .help = "hybrid-opt: the fraction of ranks that precondition a layer, as 0.25 or 1/4; the resulting "
             "number must "
             "divide the number of ranks",
     .json = "kfac.grad_worker_fraction",
     .rules = {K_ON, GLOBAL_ONLY}},
    {.name = "kfac-placement",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(placement),
     .value = "compute",
     .choices = placements,
     .help =
         "which rank decomposes what: in turns, or the largest first to the least loaded by work or by size",
     .json = "kfac.placement",
     .rules = {K_ON, GLOBAL_ONLY}},
    {.name = "kfac-colocate-factors",
     .kind = DSC_OPTION_ON_OFF,
     .offset = AT(colocate_factors),
     .value = "on",
     .help = "decompose both factors of a layer on one rank; mem-opt and layer-wise need that",
     .json = "kfac.colocate_factors",
     .rules = {K_ON}},
    {.name = "kfac-symmetric",
     .kind = DSC_OPTION_ON_OFF,
     .offset = AT(symmetric),
     .value = "on",
     .help = "send factors and inverses as triangles, with half the bytes",
     .json = "kfac.symmetric",
     .rules = {K_ON}},
    {.name = "kfac-outer-product",
     .kind = DSC_OPTION_ON_OFF,
     .offset = AT(outer_product),
     .value = "off",
     .help = "eigen: the rank that decomposes a layer computes 1/(vG vA' + damping) and sends that",
     .json = "kfac.outer_product",
     .rules = {K_ON}},
    {.name = "kfac-diag-blocks",
     .kind = DSC_OPTION_INT64,
     .offset = AT(diag_blocks),
     .value = "1",
     .placeholder = "N",
     .range = "[1, 1e6]",
     .help = "comm-opt: number of diagonal blocks that replace a convolution's factors; 1: whole factors",
     .json = "kfac.diag_blocks",
     .rules = {K_ON}},
    {.name = "kfac-skip-layers",
     .kind = DSC_OPTION_STRING,
     .offset = AT(skip_layers),
     .placeholder = "REGEX",
     .default_text = "none",
     .help = "extended regular expressions, separated by blanks: layers whose name or kind matches one keep "
             "their plain gradient; kinds:" DSC_KFAC_KINDS(KIND_NAME),
     .json = "kfac.skip_layers",
     .rules = {K_ON}},
    {.name = "kfac-factor-dtype",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(factor_dtype),
     .value = "fp32",
     .choices = type_names,
     .values = types,
     .help = "type in which factors are stored and sent; arithmetic is in fp32",
     .json = "kfac.factor_dtype",
     .rules = {K_ON}},
    {.name = "kfac-inverse-dtype",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(inverse_dtype),
     .value = "fp32",
     .choices = type_names,
     .values = types,
     .help = "type in which decompositions are stored and sent",
     .json = "kfac.inverse_dtype",
     .rules = {K_ON}},
    {.name = "kfac-bucket-mb",
     .kind = DSC_OPTION_MIB,
     .offset = AT(bucket_bytes),
     .value = "4",
     .placeholder = "X",
     .range = "(0, 1e6]",
     .default_text = "{bucket-mb}",
     .help = "MiB of factors or decompositions that are sent in one message",
     .json = "kfac.bucket_bytes",
     .rules = {K_ON}},
    {.name = "kfac-ekfac",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(ekfac),
     .value = "off",
     .choices = ekfacs,
     .help =
         "eigenvalues of a layer: products of the factors' eigenvalues, or second moments in their basis of "
         "batch gradients or of per-sample gradients",
     .json = "kfac.ekfac",
     .rules = {K_ON}},
    {.name = "kfac-norm",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(norm),
     .value = "off",
     .choices = norms,
     .help = "precondition scale and shift of batch, layer, RMS and group norms by the Fisher matrix of each "
             "channel: 2x2, or its diagonal",
     .json = "kfac.norm",
     .rules = {K_ON}},
    {.name = "kfac-embeddings",
     .kind = DSC_OPTION_ON_OFF,
     .offset = AT(embeddings),
     .value = "off",
     .help = "precondition the tables of embeddings, of tokens and of positions, whose factor A is diagonal; "
             "not those "
             "that a head shares",
     .json = "kfac.embeddings",
     .rules = {K_ON}},
    {.name = "kfac-tied-head",
     .kind = DSC_OPTION_CHOICE,
     .offset = AT(tied_head),
     .value = "skip",
     .choices = tied,
     .help =
         "a language model's head that shares its weight with the table of tokens: it keeps its gradient, or "
         "is preconditioned by the factor A of its input alone",
     .json = "kfac.tied_head",
     .rules = {K_ON}},
    {.name = NULL},
};

const dsc_option *dsc_kfac_option_table(void) {
    return table;
}

/* ---- names ---- */

dsc_status dsc_kfac_method_parse(const char *name, dsc_kfac_method *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-method", methods, name, &value));
    *out = (dsc_kfac_method)value;
    return DSC_OK;
}

const char *dsc_kfac_method_name(dsc_kfac_method method) {
    return dsc_option_choice_name(methods, (int)method);
}

dsc_status dsc_kfac_strategy_parse(const char *name, dsc_kfac_strategy *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-strategy", strategies, name, &value));
    *out = (dsc_kfac_strategy)value;
    return DSC_OK;
}

const char *dsc_kfac_strategy_name(dsc_kfac_strategy strategy) {
    return dsc_option_choice_name(strategies, (int)strategy);
}

dsc_status dsc_kfac_placement_parse(const char *name, dsc_kfac_placement *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-placement", placements, name, &value));
    *out = (dsc_kfac_placement)value;
    return DSC_OK;
}

const char *dsc_kfac_placement_name(dsc_kfac_placement placement) {
    return dsc_option_choice_name(placements, (int)placement);
}

dsc_status dsc_kfac_scaling_parse(const char *name, dsc_kfac_scaling *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-scaling", scalings, name, &value));
    *out = (dsc_kfac_scaling)value;
    return DSC_OK;
}

const char *dsc_kfac_scaling_name(dsc_kfac_scaling scaling) {
    return dsc_option_choice_name(scalings, (int)scaling);
}

dsc_status dsc_kfac_split_parse(const char *name, dsc_kfac_split *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-damping-split", splits, name, &value));
    *out = (dsc_kfac_split)value;
    return DSC_OK;
}

const char *dsc_kfac_split_name(dsc_kfac_split split) {
    return dsc_option_choice_name(splits, (int)split);
}

dsc_status dsc_kfac_ekfac_parse(const char *name, dsc_kfac_ekfac *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-ekfac", ekfacs, name, &value));
    *out = (dsc_kfac_ekfac)value;
    return DSC_OK;
}

const char *dsc_kfac_ekfac_name(dsc_kfac_ekfac ekfac) {
    return dsc_option_choice_name(ekfacs, (int)ekfac);
}

dsc_status dsc_kfac_refresh_parse(const char *name, dsc_kfac_refresh *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-refresh", refreshes, name, &value));
    *out = (dsc_kfac_refresh)value;
    return DSC_OK;
}

const char *dsc_kfac_refresh_name(dsc_kfac_refresh refresh) {
    return dsc_option_choice_name(refreshes, (int)refresh);
}

dsc_status dsc_kfac_clip_scaling_parse(const char *name, dsc_kfac_clip_scaling *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-kl-clip-scaling", clip_scalings, name, &value));
    *out = (dsc_kfac_clip_scaling)value;
    return DSC_OK;
}

const char *dsc_kfac_clip_scaling_name(dsc_kfac_clip_scaling scaling) {
    return dsc_option_choice_name(clip_scalings, (int)scaling);
}

dsc_status dsc_kfac_norm_parse(const char *name, dsc_kfac_norm_choice *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-norm", norms, name, &value));
    *out = (dsc_kfac_norm_choice)value;
    return DSC_OK;
}

const char *dsc_kfac_norm_name(dsc_kfac_norm_choice norm) {
    return dsc_option_choice_name(norms, (int)norm);
}

dsc_status dsc_kfac_clip_parse(const char *name, dsc_kfac_clip *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-clip", clips, name, &value));
    *out = (dsc_kfac_clip)value;
    return DSC_OK;
}

const char *dsc_kfac_clip_name(dsc_kfac_clip clip) {
    return dsc_option_choice_name(clips, (int)clip);
}

dsc_status dsc_kfac_sharing_parse(const char *name, dsc_kfac_sharing *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-sharing", sharings, name, &value));
    *out = (dsc_kfac_sharing)value;
    return DSC_OK;
}

const char *dsc_kfac_sharing_name(dsc_kfac_sharing sharing) {
    return dsc_option_choice_name(sharings, (int)sharing);
}

dsc_status dsc_kfac_tied_parse(const char *name, dsc_kfac_tied_choice *out) {
    int value = 0;
    DSC_TRY(dsc_option_choice_parse("kfac-tied-head", tied, name, &value));
    *out = (dsc_kfac_tied_choice)value;
    return DSC_OK;
}

const char *dsc_kfac_tied_name(dsc_kfac_tied_choice choice) {
    return dsc_option_choice_name(tied, (int)choice);
}

/* ---- defaults ---- */

/* A caller of the library that asks for these options wants K-FAC, so it is on, and its decompositions are exact on
 * every device. Runs that take their options from the table have other defaults: K-FAC off, refresh auto. */
void dsc_kfac_options_init_sized(dsc_kfac_options *options, size_t size) {
    dsc_kfac_options defaults = {.passes = 1, .health_steps = 100};
    dsc_option_defaults(table, &defaults);
    defaults.update_freq = 10;
    defaults.refresh = DSC_KFAC_EXACT;
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* ---- checks ---- */

/* A little above 1/65504. */
static const double LEAST_DAMPING_F16 = 1.6e-5;

dsc_kfac_hyper dsc_kfac_hyper_of(const dsc_kfac_options *o) {
    return (dsc_kfac_hyper){.damping = o->damping,
                            .stat_decay = o->stat_decay,
                            .kl_clip = o->kl_clip,
                            .factor_freq = o->factor_freq,
                            .update_freq = o->update_freq,
                            .diag_blocks = o->diag_blocks};
}

/* The comparisons are false for NaN, so a NaN is refused as well. */
dsc_status dsc_kfac_hyper_check(const dsc_kfac_options *options, const dsc_kfac_hyper *hyper) {
    if (!(hyper->damping >= (double)FLT_MIN && hyper->damping <= (double)FLT_MAX))
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC damping %g: must be positive in float32, %g to %g, also under a schedule",
                        hyper->damping, (double)FLT_MIN, (double)FLT_MAX);
    if (!(hyper->stat_decay >= 0 && hyper->stat_decay <= 1))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC stat decay %g: must be in [0, 1]", hyper->stat_decay);
    if (!(hyper->kl_clip >= 0 && isfinite(hyper->kl_clip)))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC KL clip %g: must be positive, or 0 for no clip",
                        hyper->kl_clip);
    if (hyper->factor_freq < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "%lld steps between updates of the K-FAC factors: must be 1 or more, or 0 for never",
                        (long long)hyper->factor_freq);
    if (hyper->update_freq < 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "%lld steps between K-FAC decompositions: must be 1 or more, or 0 for none",
                        (long long)hyper->update_freq);
    int bounded =
        options->method == DSC_KFAC_INVERSE || options->outer_product; /* elements up to 1/damping */
    if (options->inverse_dtype == DSC_F16 && bounded && hyper->damping < LEAST_DAMPING_F16)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC damping %g: 1/damping does not fit into fp16, in which decompositions are stored: must "
            "be %g at least, or use bf16 or fp32",
            hyper->damping, LEAST_DAMPING_F16);
    if (hyper->diag_blocks != 0 && hyper->diag_blocks != 1 && hyper->diag_blocks != options->diag_blocks) {
        if (options->diag_blocks == 1)
            return DSC_FAIL(DSC_E_INVALID,
                            "%lld K-FAC diagonal blocks in a step, planned for whole factors: "
                            "must be 1, or set the options' diag_blocks, too",
                            (long long)hyper->diag_blocks);
        return DSC_FAIL(
            DSC_E_INVALID, "%lld K-FAC diagonal blocks in a step, planned for %lld: must be 1 or %lld",
            (long long)hyper->diag_blocks, (long long)options->diag_blocks, (long long)options->diag_blocks);
    }
    return DSC_OK;
}

/* Checks the options that cannot be combined with cut bases. */
static dsc_status check_rank(const dsc_kfac_options *o) {
    if (o->rank == 1)
        return DSC_OK;
    if (!(o->rank > 0 && o->rank < 1))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC rank %g: must be in (0, 1]", o->rank);
    if (o->refresh != DSC_KFAC_WARM)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC rank %g: only rotated bases can be cut, but refresh is %s: choose refresh warm, "
            "or rank 1",
            o->rank, dsc_kfac_refresh_name(o->refresh));
    if (o->outer_product || o->ekfac != DSC_KFAC_EKFAC_OFF)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC rank %g: %s needs all eigenvectors: turn it off, or choose rank 1", o->rank,
                        o->outer_product ? "the outer product" : "EKFAC");
    if (o->diag_blocks > 1)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC rank %g: %lld diagonal blocks keep all eigenvectors: choose 1 block, or rank 1", o->rank,
            (long long)o->diag_blocks);
    if (o->inverse_dtype != DSC_F32)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC rank %g: in %s the kept eigenvectors are not orthogonal enough: store "
                        "decompositions in fp32, or choose rank 1",
                        o->rank, dsc_dtype_name(o->inverse_dtype));
    return DSC_OK;
}

/* Checks which options can be combined, given the number of rows of the grid. */
static dsc_status check_together(const dsc_kfac_options *o, int ranks, int rows) {
    if (!o->colocate_factors && (o->strategy == DSC_KFAC_MEM_OPT || o->strategy == DSC_KFAC_LAYER_WISE))
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC strategy %s keeps both factors of a layer on one rank, but they are not "
                        "co-located: turn co-location on, or choose comm-opt or hybrid-opt",
                        dsc_kfac_strategy_name(o->strategy));
    if (!o->colocate_factors && rows == 1 && ranks > 1)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC gradient-worker fraction %g of %d ranks is one worker a layer, but its factors "
            "are not co-located: turn co-location on, or choose a larger fraction",
            o->grad_worker_fraction, ranks);
    if (o->refresh == DSC_KFAC_WARM && o->method != DSC_KFAC_EIGEN)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC refresh warm rotates eigenvectors, which method %s has not: choose method eigen, "
            "or refresh exact",
            dsc_kfac_method_name(o->method));
    DSC_TRY(check_rank(o));
    if (o->outer_product && o->method != DSC_KFAC_EIGEN)
        return DSC_FAIL(DSC_E_INVALID,
                        "the K-FAC outer product is made of eigenvalues, which method %s has "
                        "not: choose method eigen, or turn the outer product off",
                        dsc_kfac_method_name(o->method));
    if (o->outer_product && !o->colocate_factors)
        return DSC_FAIL(DSC_E_INVALID,
                        "the K-FAC outer product is made where both factors of a layer are "
                        "decomposed, but they are not co-located: turn co-location on, or the outer product "
                        "off");
    if (o->outer_product && o->diag_blocks > 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "the K-FAC outer product is made of whole factors, but they are split "
                        "into %lld diagonal blocks: choose 1 block, or turn the outer product off",
                        (long long)o->diag_blocks);
    if (o->clip == DSC_KFAC_CLIP_LAYER && o->embeddings)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC clip layer with embeddings on: embeddings have no clip of their own; choose clip "
            "global, or embeddings off");
    if (o->clip == DSC_KFAC_CLIP_LAYER && o->tied_head != DSC_KFAC_TIED_SKIP)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC clip layer with tied head %s: a tied head has no clip of its own; choose clip "
                        "global, or tied head skip",
                        dsc_kfac_tied_name(o->tied_head));
    if (o->clip == DSC_KFAC_CLIP_LAYER && o->norm != DSC_KFAC_NORM_OFF)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC clip %s has a factor for each linear and convolution layer, but none for "
                        "norms, which are preconditioned (norm %s): choose clip global, or norm off",
                        dsc_kfac_clip_name(o->clip), dsc_kfac_norm_name(o->norm));
    if (o->damping_split != DSC_KFAC_SPLIT_NONE && o->method != DSC_KFAC_INVERSE)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC damping split %s divides the damping between two inverses, which method %s has "
            "not: choose method inverse, or split none",
            dsc_kfac_split_name(o->damping_split), dsc_kfac_method_name(o->method));
    if (o->damping_split != DSC_KFAC_SPLIT_NONE && o->inverse_dtype == DSC_F16)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC damping split %s with inverses stored in fp16: they may be too large for it, "
            "because the damping of a factor depends on its trace: use bf16 or fp32, or split none",
            dsc_kfac_split_name(o->damping_split));
    if (o->sharing == DSC_KFAC_REDUCE && o->scaling != DSC_KFAC_PAPER)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC sharing reduce with scaling %s: choose paper, or sharing expand",
                        dsc_kfac_scaling_name(o->scaling));
    if (o->sharing == DSC_KFAC_REDUCE && o->ekfac == DSC_KFAC_EKFAC_SAMPLES)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC sharing reduce with ekfac samples: the gradient of a sequence is no product "
                        "of its mean input and summed gradient; choose ekfac batch, or sharing expand");
    if (o->loss_terms < 0)
        return DSC_FAIL(DSC_E_INVALID, "%lld terms of the loss per sample for K-FAC: must be 0 or more",
                        (long long)o->loss_terms);
    if (o->outer_product && o->async_steps > 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC decompositions used %lld steps later, with the outer product, whose damping is that of "
            "the step that uses it: choose 0 steps, or turn the outer product off",
            (long long)o->async_steps);
    if (o->diag_blocks > 1 && o->strategy != DSC_KFAC_COMM_OPT)
        return DSC_FAIL(DSC_E_INVALID,
                        "%lld K-FAC diagonal blocks go to different ranks, which strategy %s "
                        "does not allow: choose comm-opt, or 1 block",
                        (long long)o->diag_blocks, dsc_kfac_strategy_name(o->strategy));
    return DSC_OK;
}

/* Checks the options that EKFAC can be combined with. */
static dsc_status check_ekfac(const dsc_kfac_options *o) {
    const char *name = dsc_kfac_ekfac_name(o->ekfac);
    if (o->ekfac == DSC_KFAC_EKFAC_OFF)
        return DSC_OK;
    if (o->method != DSC_KFAC_EIGEN)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC ekfac %s estimates eigenvalues, which method %s has not: choose method eigen, or "
            "turn ekfac off",
            name, dsc_kfac_method_name(o->method));
    if (o->scaling != DSC_KFAC_PAPER)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC ekfac %s has the scale of scaling paper, but scaling is %s: choose paper, or turn "
            "ekfac off",
            name, dsc_kfac_scaling_name(o->scaling));
    if (o->outer_product)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC ekfac %s replaces the products of eigenvalues, of which the outer product is made: "
            "turn one of them off",
            name);
    if (o->diag_blocks > 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC ekfac %s needs bases of whole factors, but they are split into %lld diagonal "
                        "blocks: choose 1 block, or turn ekfac off",
                        name, (long long)o->diag_blocks);
    return DSC_OK;
}

dsc_status dsc_kfac_options_read(const dsc_kfac_options *given, int ranks, dsc_kfac_options *out) {
    int rows = 0;
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    DSC_TRY(dsc_versioned_read("kfac", given, sizeof o, &o));
    if (ranks < 1)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC on %d ranks: must be 1 or more", ranks);
    DSC_TRY(dsc_option_check_values(table, &o, ""));
    if (o.passes < 1)
        return DSC_FAIL(DSC_E_INVALID, "%lld passes of a K-FAC step: must be 1 or more", (long long)o.passes);
    if (o.health_steps < 1)
        return DSC_FAIL(DSC_E_INVALID, "%lld steps before an alarm of K-FAC: must be 1 or more",
                        (long long)o.health_steps);
    dsc_kfac_hyper hyper = dsc_kfac_hyper_of(&o);
    DSC_TRY(dsc_kfac_hyper_check(&o, &hyper));
    DSC_TRY(dsc_kfac_grid_rows(&o, ranks, &rows));
    DSC_TRY(check_together(&o, ranks, rows));
    DSC_TRY(check_ekfac(&o));
    *out = o;
    return DSC_OK;
}

dsc_kfac_refresh dsc_kfac_resolve_refresh(const dsc_kfac_options *options, const dsc_device *device) {
    if (options->refresh != DSC_KFAC_AUTO)
        return options->refresh;
    return options->method == DSC_KFAC_EIGEN && !dsc_device_is_host(device) ? DSC_KFAC_WARM : DSC_KFAC_EXACT;
}

/* ---- the grid ---- */

/* Writes a list like "1/6 (1 worker), 1/3 (2 workers), 1/2 (3 workers), 1 (6 workers)", as long as there is room. */
static const char *valid_fractions(int ranks, char *text, size_t size) {
    enum { ENTRY = 48 };
    size_t used = 0;
    for (int workers = 1; workers <= ranks && used + ENTRY < size; workers++) {
        if (ranks % workers)
            continue;
        const char *before = used ? ", " : "", *plural = workers == 1 ? "" : "s";
        int parts = ranks / workers;
        if (parts == 1)
            used += (size_t)snprintf(text + used, size - used, "%s1 (%d worker%s)", before, workers, plural);
        else
            used += (size_t)snprintf(text + used, size - used, "%s1/%d (%d worker%s)", before, parts, workers,
                                     plural);
    }
    return text;
}

static dsc_status hybrid_rows(double fraction, int ranks, int *rows) {
    /* The tolerance for fractions written as decimals, plus rounding errors. */
    const double allowed = 0.01 + 1e-9;
    char valid[512];
    if (!(fraction >= 0 && fraction <= 1))
        return DSC_FAIL(DSC_E_INVALID, "K-FAC gradient-worker fraction %g: must be in [0, 1]; of %d ranks %s",
                        fraction, ranks, valid_fractions(ranks, valid, sizeof valid));
    double workers = fraction * ranks;
    double whole = round(workers);
    if (fabs(workers - whole) > allowed)
        return DSC_FAIL(
            DSC_E_INVALID,
            "K-FAC gradient-worker fraction %g of %d ranks is %g workers a layer: must be a whole "
            "number that divides %d; valid are %s",
            fraction, ranks, workers, ranks, valid_fractions(ranks, valid, sizeof valid));
    int count = whole < 1 ? 1 : (int)whole;
    if (ranks % count)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC gradient-worker fraction %g of %d ranks is %d workers a layer, which does not "
                        "divide %d; valid are %s",
                        fraction, ranks, count, ranks, valid_fractions(ranks, valid, sizeof valid));
    *rows = count;
    return DSC_OK;
}

dsc_status dsc_kfac_grid_rows(const dsc_kfac_options *options, int ranks, int *rows) {
    switch (options->strategy) {
    case DSC_KFAC_COMM_OPT:
        *rows = ranks;
        return DSC_OK;
    case DSC_KFAC_MEM_OPT:
    case DSC_KFAC_LAYER_WISE:
        *rows = 1;
        return DSC_OK;
    case DSC_KFAC_HYBRID_OPT:
        return hybrid_rows(options->grad_worker_fraction, ranks, rows);
    }
    return DSC_FAIL(DSC_E_INTERNAL, "K-FAC strategy %d", (int)options->strategy);
}

int64_t dsc_kfac_planned_rank(const dsc_kfac_options *options, int64_t n, int64_t exact_rows) {
    return n > exact_rows ? (int64_t)ceil((double)n * options->rank) : n;
}

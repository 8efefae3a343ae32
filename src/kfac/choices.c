/* Options of the preconditioner: defaults, names, and which of them go together. */
#include "base/error.h"
#include "base/versioned.h"
#include "kfac/placement.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const method_names[] = {[DSC_KFAC_EIGEN] = "eigen", [DSC_KFAC_INVERSE] = "inverse"};
static const char *const strategy_names[] = {
    [DSC_KFAC_COMM_OPT] = "comm-opt",
    [DSC_KFAC_MEM_OPT] = "mem-opt",
    [DSC_KFAC_HYBRID_OPT] = "hybrid-opt",
    [DSC_KFAC_LAYER_WISE] = "layer-wise",
};
static const char *const placement_names[] = {
    [DSC_KFAC_ROUND_ROBIN] = "round-robin",
    [DSC_KFAC_COMPUTE] = "compute",
    [DSC_KFAC_MEMORY] = "memory",
};
static const char *const scaling_names[] = {[DSC_KFAC_PAPER] = "paper", [DSC_KFAC_PYTORCH] = "kfac-pytorch"};

/* What an enum is called in messages, and the names of its values, 0 first. */
typedef struct word_list {
    const char *what;
    const char *const *names;
    int count;
} word_list;

#define WORDS(what, names)                                                                                   \
    { what, names, (int)(sizeof(names) / sizeof *(names)) }
static const word_list methods = WORDS("method", method_names);
static const word_list strategies = WORDS("strategy", strategy_names);
static const word_list placements = WORDS("placement", placement_names);
static const word_list scalings = WORDS("scaling", scaling_names);

/* ---- names ---- */

static dsc_status parse(const word_list *list, const char *name, int *out) {
    char known[128] = "";
    size_t used = 0;
    name = name ? name : "";
    for (int i = 0; i < list->count; i++) {
        if (strcmp(name, list->names[i]) == 0) {
            *out = i;
            return DSC_OK;
        }
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", list->names[i]);
    }
    return DSC_FAIL(DSC_E_INVALID, "K-FAC %s '%s': not known; known are %s", list->what, name, known);
}

static const char *name_of(const word_list *list, int value) {
    return value >= 0 && value < list->count ? list->names[value] : "unknown";
}

static dsc_status check_word(const word_list *list, int value) {
    if (value < 0 || value >= list->count)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC %s %d: must be in 0..%d", list->what, value, list->count - 1);
    return DSC_OK;
}

dsc_status dsc_kfac_method_parse(const char *name, dsc_kfac_method *out) {
    int value = 0;
    DSC_TRY(parse(&methods, name, &value));
    *out = (dsc_kfac_method)value;
    return DSC_OK;
}

dsc_status dsc_kfac_strategy_parse(const char *name, dsc_kfac_strategy *out) {
    int value = 0;
    DSC_TRY(parse(&strategies, name, &value));
    *out = (dsc_kfac_strategy)value;
    return DSC_OK;
}

dsc_status dsc_kfac_placement_parse(const char *name, dsc_kfac_placement *out) {
    int value = 0;
    DSC_TRY(parse(&placements, name, &value));
    *out = (dsc_kfac_placement)value;
    return DSC_OK;
}

dsc_status dsc_kfac_scaling_parse(const char *name, dsc_kfac_scaling *out) {
    int value = 0;
    DSC_TRY(parse(&scalings, name, &value));
    *out = (dsc_kfac_scaling)value;
    return DSC_OK;
}

const char *dsc_kfac_method_name(dsc_kfac_method method) {
    return name_of(&methods, (int)method);
}

const char *dsc_kfac_strategy_name(dsc_kfac_strategy strategy) {
    return name_of(&strategies, (int)strategy);
}

const char *dsc_kfac_placement_name(dsc_kfac_placement placement) {
    return name_of(&placements, (int)placement);
}

const char *dsc_kfac_scaling_name(dsc_kfac_scaling scaling) {
    return name_of(&scalings, (int)scaling);
}

/* ---- defaults ---- */

void dsc_kfac_options_init_sized(dsc_kfac_options *options, size_t size) {
    const dsc_kfac_options defaults = {
        .damping = 0.003,
        .stat_decay = 0.95,
        .kl_clip = 0.001,
        .factor_freq = 1,
        .update_freq = 10,
        .method = DSC_KFAC_EIGEN,
        .scaling = DSC_KFAC_PAPER,
        .strategy = DSC_KFAC_COMM_OPT,
        .grad_worker_fraction = 0.5,
        .placement = DSC_KFAC_COMPUTE,
        .colocate_factors = 1,
        .symmetric = 1,
        .diag_blocks = 1,
        .factor_dtype = DSC_F32,
        .inverse_dtype = DSC_F32,
        .passes = 1,
        .bucket_bytes = (size_t)4 << 20,
    };
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

/* The comparisons are false for NaN, so a NaN is refused, too. */
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

static dsc_status check_dtype(const char *what, dsc_dtype dtype) {
    if (dtype != DSC_F32 && dtype != DSC_BF16 && dtype != DSC_F16)
        return DSC_FAIL(DSC_E_INVALID,
                        "K-FAC %s stored as %s: must be fp32 (as the gradients are), bf16 or "
                        "fp16",
                        what, dsc_dtype_name(dtype));
    return DSC_OK;
}

static dsc_status check_values(const dsc_kfac_options *o) {
    DSC_TRY(check_word(&methods, (int)o->method));
    DSC_TRY(check_word(&strategies, (int)o->strategy));
    DSC_TRY(check_word(&placements, (int)o->placement));
    DSC_TRY(check_word(&scalings, (int)o->scaling));
    DSC_TRY(check_dtype("factors", o->factor_dtype));
    DSC_TRY(check_dtype("decompositions", o->inverse_dtype));
    if (o->diag_blocks < 1)
        return DSC_FAIL(DSC_E_INVALID, "%lld K-FAC diagonal blocks: must be 1 (whole factors) or more",
                        (long long)o->diag_blocks);
    if (o->passes < 1)
        return DSC_FAIL(DSC_E_INVALID, "%lld passes of a K-FAC step: must be 1 or more",
                        (long long)o->passes);
    if (o->bucket_bytes == 0)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC bucket size 0: must be positive");
    return DSC_OK;
}

/* What does not go together, given the rows of the grid. */
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
    if (o->diag_blocks > 1 && o->strategy != DSC_KFAC_COMM_OPT)
        return DSC_FAIL(DSC_E_INVALID,
                        "%lld K-FAC diagonal blocks go to different ranks, which strategy %s "
                        "does not allow: choose comm-opt, or 1 block",
                        (long long)o->diag_blocks, dsc_kfac_strategy_name(o->strategy));
    return DSC_OK;
}

dsc_status dsc_kfac_options_read(const dsc_kfac_options *given, int ranks, dsc_kfac_options *out) {
    int rows = 0;
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    DSC_TRY(dsc_versioned_read("kfac", given, sizeof o, &o));
    if (ranks < 1)
        return DSC_FAIL(DSC_E_INVALID, "K-FAC on %d ranks: must be 1 or more", ranks);
    DSC_TRY(check_values(&o));
    dsc_kfac_hyper hyper = dsc_kfac_hyper_of(&o);
    DSC_TRY(dsc_kfac_hyper_check(&o, &hyper));
    DSC_TRY(dsc_kfac_grid_rows(&o, ranks, &rows));
    DSC_TRY(check_together(&o, ranks, rows));
    *out = o;
    return DSC_OK;
}

/* ---- the grid ---- */

/* "1/6 (1 worker), 1/3 (2 workers), 1/2 (3 workers), 1 (6 workers)", as many as there is room for. */
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
    /* what a fraction written in decimal may be off, and what arithmetic adds to that */
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

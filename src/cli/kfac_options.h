/* The options of K-FAC that decide who does what and what it takes: those that a plan depends on. Shared by
 * the commands that train and that tell about a plan. */
#ifndef DSC_CLI_KFAC_OPTIONS_H
#define DSC_CLI_KFAC_OPTIONS_H

#include "base/option.h"
#include "descent/kfac.h"

/* A member of a command's values, at any place. */
typedef struct dsc_cli_kfac_values {
    const char *method, *strategy, *placement, *fraction, *factor_dtype, *inverse_dtype, *skip_layers;
    int colocate, symmetric, outer_product;
    int64_t diag_blocks;
    char default_fraction[32]; /* where `fraction` points before parsing: do not copy the struct */
} dsc_cli_kfac_values;

/* Entries of an option table for `member`, a dsc_cli_kfac_values in the struct `type`. `heading` starts a
 * group of the help; NULL goes on with the one before. */
#define DSC_CLI_KFAC_OPTIONS(type, member, heading)                                                          \
    {.name = "kfac-method",                                                                                  \
     .kind = DSC_OPTION_CHOICE,                                                                              \
     .offset = offsetof(type, member.method),                                                                \
     .choices = "eigen|inverse",                                                                             \
     .help = "eigenvectors of the factors, or their damped inverses",                                        \
     .group = (heading)},                                                                                    \
        {.name = "kfac-strategy",                                                                            \
         .kind = DSC_OPTION_CHOICE,                                                                          \
         .offset = offsetof(type, member.strategy),                                                          \
         .choices = "comm-opt|mem-opt|hybrid-opt|layer-wise",                                                \
         .help = "who preconditions a layer: every rank, one rank (layer-wise is the same), or a fraction "  \
                 "of the ranks"},                                                                            \
        {.name = "kfac-grad-worker-fraction",                                                                \
         .kind = DSC_OPTION_STRING,                                                                          \
         .offset = offsetof(type, member.fraction),                                                          \
         .placeholder = "X",                                                                                 \
         .help = "hybrid-opt: that fraction, as 0.25 or 1/4; it must give a number that divides the ranks"}, \
        {.name = "kfac-placement",                                                                           \
         .kind = DSC_OPTION_CHOICE,                                                                          \
         .offset = offsetof(type, member.placement),                                                         \
         .choices = "round-robin|compute|memory",                                                            \
         .help = "which rank decomposes what: in turns, or the largest first to the least loaded by work "   \
                 "or by size"},                                                                              \
        {.name = "kfac-colocate-factors",                                                                    \
         .kind = DSC_OPTION_ON_OFF,                                                                          \
         .offset = offsetof(type, member.colocate),                                                          \
         .help = "both factors of a layer on one rank; mem-opt and layer-wise need that"},                   \
        {.name = "kfac-symmetric",                                                                           \
         .kind = DSC_OPTION_ON_OFF,                                                                          \
         .offset = offsetof(type, member.symmetric),                                                         \
         .help = "factors and inverses travel as triangles, half the bytes"},                                \
        {.name = "kfac-outer-product",                                                                       \
         .kind = DSC_OPTION_ON_OFF,                                                                          \
         .offset = offsetof(type, member.outer_product),                                                     \
         .help = "eigen: 1/(vG vA' + damping) is formed once, where a layer is decomposed, and travels"},    \
        {.name = "kfac-diag-blocks",                                                                         \
         .kind = DSC_OPTION_INT64,                                                                           \
         .offset = offsetof(type, member.diag_blocks),                                                       \
         .placeholder = "N",                                                                                 \
         .range = "[1, 1e6]",                                                                                \
         .help = "comm-opt: diagonal blocks that stand for a convolution's factors; 1: whole factors"},      \
        {.name = "kfac-skip-layers",                                                                         \
         .kind = DSC_OPTION_STRING,                                                                          \
         .offset = offsetof(type, member.skip_layers),                                                       \
         .placeholder = "REGEX",                                                                             \
         .shown = "none",                                                                                    \
         .help = "extended regular expressions, blanks between them: layers whose name or kind (linear, "    \
                 "conv2d) they are found in keep their plain gradient"},                                     \
        {.name = "kfac-factor-dtype",                                                                        \
         .kind = DSC_OPTION_CHOICE,                                                                          \
         .offset = offsetof(type, member.factor_dtype),                                                      \
         .choices = "fp32|bf16|fp16",                                                                        \
         .help = "type in which factors are stored and travel; arithmetic is in fp32"},                      \
    {                                                                                                        \
        .name = "kfac-inverse-dtype", .kind = DSC_OPTION_CHOICE,                                             \
        .offset = offsetof(type, member.inverse_dtype), .choices = "fp32|bf16|fp16",                         \
        .help = "the same for decompositions"                                                                \
    }

/* The type that an option's word "fp32", "bf16" or "fp16" names. */
dsc_dtype dsc_cli_dtype(const char *name);
/* Sets the defaults: those of dsc_kfac_options_init. */
void dsc_cli_kfac_init(dsc_cli_kfac_values *values);
/* After parsing: writes the options above (diagonal blocks into `hyper`, too) over those in `out`, which must
 * be initialised. Whether they go together is left to the library. Strings stay the caller's. */
dsc_status dsc_cli_kfac_finish(const dsc_cli_kfac_values *values, dsc_kfac_options *out) DSC_MUST_CHECK;

#endif

/* Defaults of the K-FAC options that a plan depends on, and how their words become values. */
#include "cli/kfac_options.h"

#include "base/error.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dsc_cli_kfac_init(dsc_cli_kfac_values *values) {
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    *values = (dsc_cli_kfac_values){
        .method = dsc_kfac_method_name(o.method),
        .strategy = dsc_kfac_strategy_name(o.strategy),
        .placement = dsc_kfac_placement_name(o.placement),
        .fraction = values->default_fraction,
        .factor_dtype = dsc_dtype_name(o.factor_dtype),
        .inverse_dtype = dsc_dtype_name(o.inverse_dtype),
        .skip_layers = o.skip_layers,
        .colocate = o.colocate_factors,
        .symmetric = o.symmetric,
        .outer_product = o.outer_product,
        .diag_blocks = o.diag_blocks,
    };
    snprintf(values->default_fraction, sizeof values->default_fraction, "%g", o.grad_worker_fraction);
}

/* A number at the start of `text`, digits first: strtod would also take blanks, signs and words. */
static int read_number(const char *text, double *out, const char **end) {
    char *rest;
    if (!isdigit((unsigned char)*text) && *text != '.')
        return 0;
    *out = strtod(text, &rest);
    *end = rest;
    return rest != text && isfinite(*out);
}

/* "0.25", "1/4". */
static dsc_status parse_fraction(const char *text, double *out) {
    double above = 0, below = 1;
    const char *end = text;
    int good = read_number(text, &above, &end);
    if (good && *end == '/')
        good = read_number(end + 1, &below, &end);
    if (!good || *end || below == 0 || above > below)
        return DSC_FAIL(DSC_E_INVALID,
                        "--kfac-grad-worker-fraction %s: must be a number from 0 to 1, as 0.25 or 1/4",
                        *text ? text : "(empty)");
    *out = above / below;
    return DSC_OK;
}

dsc_dtype dsc_cli_dtype(const char *name) {
    return strcmp(name, "bf16") == 0 ? DSC_BF16 : strcmp(name, "fp16") == 0 ? DSC_F16 : DSC_F32;
}

dsc_status dsc_cli_kfac_finish(const dsc_cli_kfac_values *values, dsc_kfac_options *out) {
    DSC_TRY(dsc_kfac_method_parse(values->method, &out->method));
    DSC_TRY(dsc_kfac_strategy_parse(values->strategy, &out->strategy));
    DSC_TRY(dsc_kfac_placement_parse(values->placement, &out->placement));
    DSC_TRY(parse_fraction(values->fraction, &out->grad_worker_fraction));
    out->colocate_factors = values->colocate;
    out->symmetric = values->symmetric;
    out->outer_product = values->outer_product;
    out->diag_blocks = values->diag_blocks;
    out->skip_layers = values->skip_layers;
    out->factor_dtype = dsc_cli_dtype(values->factor_dtype);
    out->inverse_dtype = dsc_cli_dtype(values->inverse_dtype);
    return DSC_OK;
}

/* Sizes of a model: parameters, memory, and the Kronecker factors of its layers.
 *
 * A factor of size n takes 4 n^2 bytes in float32, 4 n (n + 1) / 2 as a packed triangle. */
#include "cli/model_facts.h"
#include "cli/support.h"

#include "descent/trainer.h"

#include <stdio.h>
#include <stdlib.h>

enum { NAMED = 3 }; /* tensors that are named in a line */

static int larger_first(const void *x, const void *y) {
    int64_t a = ((const dsc_factor_size *)x)->size, b = ((const dsc_factor_size *)y)->size;
    return (a < b) - (a > b);
}

/* How many factors A a layer has: one for each group; queries, keys and values have one for all three. */
static int64_t count_a(const dsc_kfac_layer *layer, int64_t units) {
    return layer->same_input > 0 ? 0 : layer->out_blocks > 1 ? 1 : units;
}

/* One entry for each distinct size among the factors of all layers. */
static dsc_status collect_sizes(dsc_model_facts *f) {
    int64_t used = 0;
    DSC_CLI_TRY(dsc_cli_alloc(2 * f->layer_count, sizeof *f->sizes, &f->sizes));
    DSC_CLI_TRY(dsc_cli_alloc(f->layer_count, sizeof *f->factors, &f->factors));
    for (int64_t i = 0; i < f->layer_count; i++) {
        dsc_layer_factors *l = &f->factors[i];
        DSC_CLI_TRY(dsc_kfac_layer_factors(&f->layers[i], &l->a_n, &l->g_n, &l->units));
        f->sizes[2 * i] = (dsc_factor_size){l->a_n, count_a(&f->layers[i], l->units)};
        f->sizes[2 * i + 1] = (dsc_factor_size){l->g_n, l->units};
    }
    qsort(f->sizes, (size_t)(2 * f->layer_count), sizeof *f->sizes, larger_first);
    for (int64_t i = 0; i < 2 * f->layer_count; i++) {
        double n = (double)f->sizes[i].size, count = (double)f->sizes[i].count;
        f->factor_count += f->sizes[i].count;
        f->factor_bytes += count * 4 * n * n;
        f->packed_bytes += count * 4 * n * (n + 1) / 2;
        if (used > 0 && f->sizes[used - 1].size == f->sizes[i].size)
            f->sizes[used - 1].count += f->sizes[i].count;
        else if (f->sizes[i].count > 0)
            f->sizes[used++] = f->sizes[i];
    }
    f->size_count = used;
    return DSC_OK;
}

/* The parameters that are in no layer with a weight matrix, such as those of norms and embeddings. */
static void find_others(dsc_model_facts *f, const dsc_model *model) {
    const dsc_layer_info *layers = dsc_model_layers(model);
    const dsc_param *params = dsc_model_params(model);
    size_t used = 0;
    for (int64_t i = 0; i < dsc_model_param_count(model); i++) {
        int found = 0;
        for (int64_t k = 0; k < dsc_model_layer_count(model) && !found; k++)
            found = layers[k].weight == i || layers[k].bias == i;
        if (found)
            continue;
        f->other_numbers += dsc_tensor_count(&params[i].value);
        if (f->other_count++ < NAMED && used < sizeof f->other_names)
            used += (size_t)snprintf(f->other_names + used, sizeof f->other_names - used, "%s%s",
                                     used ? ", " : "", params[i].name);
    }
    if (f->other_count > NAMED && used < sizeof f->other_names)
        snprintf(f->other_names + used, sizeof f->other_names - used, " and %lld more",
                 (long long)(f->other_count - NAMED));
}

static dsc_status plan_bytes(dsc_model *model, dsc_exec_mode mode, int64_t batch, double *out) {
    dsc_exec *exec = NULL;
    DSC_CLI_TRY(dsc_exec_create(model, mode, batch, &exec));
    *out = (double)dsc_exec_bytes(exec);
    dsc_exec_destroy(&exec);
    return DSC_OK;
}

/* The memory of activations is linear in the batch size. */
static dsc_status estimate_bytes(dsc_model *model, dsc_exec_mode mode, int64_t batch, double *out) {
    double one = 0, two = 0;
    DSC_CLI_TRY(plan_bytes(model, mode, 1, &one));
    DSC_CLI_TRY(plan_bytes(model, mode, 2, &two));
    *out = one + (two - one) * (double)(batch - 1);
    return DSC_OK;
}

static dsc_status fill(dsc_model_facts *f, dsc_model *model, int64_t batch) {
    dsc_model_input_shape(model, f->shape);
    f->classes = dsc_model_classes(model);
    f->parameters = dsc_model_parameter_total(model);
    f->tensors = dsc_model_param_count(model);
    f->flops = dsc_model_flops(model);
    f->batch = batch;
    DSC_CLI_TRY(dsc_kfac_layers_of_model(model, &f->layers, &f->layer_count));
    DSC_CLI_TRY(collect_sizes(f));
    find_others(f, model);
    DSC_CLI_TRY(estimate_bytes(model, DSC_EXEC_TRAIN_ONCE, batch, &f->train_bytes));
    DSC_CLI_TRY(estimate_bytes(model, DSC_EXEC_EVAL, batch, &f->eval_bytes));
    return DSC_OK;
}

dsc_status dsc_model_facts_create(dsc_model *model, int64_t batch, dsc_model_facts **out) {
    dsc_model_facts *facts;
    DSC_CLI_TRY(dsc_cli_alloc(1, sizeof *facts, &facts));
    dsc_status status = fill(facts, model, batch);
    if (status != DSC_OK) {
        dsc_model_facts_destroy(&facts);
        return status;
    }
    *out = facts;
    return DSC_OK;
}

void dsc_model_facts_destroy(dsc_model_facts **facts) {
    if (!facts || !*facts)
        return;
    dsc_kfac_layers_free(&(*facts)->layers);
    dsc_cli_free(&(*facts)->factors);
    dsc_cli_free(&(*facts)->sizes);
    dsc_cli_free(facts);
}

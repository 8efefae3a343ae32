/* The facts about a model that `descent info` prints. */
#ifndef DSC_CLI_MODEL_FACTS_H
#define DSC_CLI_MODEL_FACTS_H

#include "descent/kfac.h"
#include "descent/model.h"

/* Factors of one size. */
typedef struct dsc_factor_size {
    int64_t size, count;
} dsc_factor_size;

/* Sizes n of the n x n factors A and G of a layer, and the number of such pairs. */
typedef struct dsc_layer_factors {
    int64_t a_n, g_n, units;
} dsc_layer_factors;

typedef struct dsc_model_facts {
    int64_t shape[3]; /* h, w, c of the input */
    int64_t classes, parameters, tensors;
    double flops; /* of the forward pass of a sample */
    int64_t batch;
    double train_bytes, eval_bytes; /* activations and workspace for a batch */
    dsc_kfac_layer *layers;         /* names and gradients are the model's */
    dsc_layer_factors *factors;     /* [layer_count] */
    int64_t layer_count;
    dsc_factor_size *sizes; /* the largest first */
    int64_t size_count, factor_count;
    double factor_bytes, packed_bytes; /* float32: whole matrices, triangles with the diagonal */
    int64_t other_count,
        other_numbers;     /* parameters in no layer with a weight matrix: tensors, and elements in them */
    char other_names[512]; /* the first few names, and how many more there are */
} dsc_model_facts;

/* Collects the facts about a sealed model, which must outlive them. Memory for batches of `batch` is extrapolated from
 * the plans for one and for two samples, so nothing large is allocated. */
dsc_status dsc_model_facts_create(dsc_model *model, int64_t batch, dsc_model_facts **out) DSC_MUST_CHECK;
void dsc_model_facts_destroy(dsc_model_facts **facts);

#endif

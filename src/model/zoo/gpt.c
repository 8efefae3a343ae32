/* GPT-2 (Radford et al. 2019) and the models of nanoGPT: tokens and positions are embedded. Then come blocks of two
 * residual branches,
 *   x + c_proj(attention(c_attn(ln_1(x)))),   x + c_proj(GELU(c_fc(ln_2(x)))),
 * with a causal mask in the first and 4 width hidden features in the second, then a layer norm and a linear layer whose
 * weight is the table of the tokens. The initial weights are normal with standard deviation 0.02, and in both c_proj
 * 0.02 / sqrt(2 layers), so that the sum of all blocks' outputs does not grow with their number.
 *
 * GPT-2, with the names of Hugging Face's GPT2LMHeadModel, has the GELU with tanh and weights [in, out] in files;
 * nanoGPT has the same names, the exact GELU and weights [out, in]. Dropout is applied after the embeddings, to the
 * probabilities of attention and after both c_proj. */
#include "base/error.h"
#include "model/zoo/zoo.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#define EPSILON 1e-5 /* of the layer norms */
#define STD     0.02 /* of initial weights */

enum { NAME = 64 };

#define AT(member) offsetof(dsc_zoo_gpt_design, member)

const dsc_option dsc_zoo_gpt_keys[] = {
    {.name = "layers",
     .kind = DSC_OPTION_INT64,
     .offset = AT(layers),
     .help = "number of blocks",
     .range = "[1, 1000]"},
    {.name = "heads",
     .kind = DSC_OPTION_INT64,
     .offset = AT(heads),
     .help = "heads of attention in every block",
     .range = "[1, 1000]"},
    {.name = "width",
     .kind = DSC_OPTION_INT64,
     .offset = AT(width),
     .help = "channels; a multiple of the heads",
     .range = "[1, 65536]"},
    {.name = "dropout",
     .kind = DSC_OPTION_DOUBLE,
     .offset = AT(dropout),
     .help = "rate of dropout",
     .range = "[0, 1)"},
    {.name = "bias",
     .kind = DSC_OPTION_INT,
     .offset = AT(bias),
     .help = "1: linear layers and layer norms have biases",
     .range = "[0, 1]"},
    {.name = NULL},
};

/* The block that is being added; its layers are named "transformer.h.BLOCK.name". */
typedef struct place {
    dsc_model *m;
    const dsc_zoo_gpt_design *d;
    int64_t block;
    char name[NAME];
} place;

static const char *name_of(place *p, const char *name) {
    snprintf(p->name, sizeof p->name, "transformer.h.%lld.%s", (long long)p->block, name);
    return p->name;
}

static dsc_status add_norm(place *p, const char *name, dsc_value x, dsc_value *y) {
    return dsc_model_layer_norm(p->m, name_of(p, name), x, EPSILON, p->d->bias, y);
}

/* `blocks`: the number of parts that the features consist of, as in dsc_linear_options. */
static dsc_status add_linear(place *p, const char *name, double std, int64_t features, int64_t blocks,
                             dsc_value *x) {
    dsc_linear_options options;
    dsc_linear_options_init(&options);
    options.bias = p->d->bias;
    options.std = std;
    options.in_out = p->d->gpt2;
    options.blocks = blocks;
    return dsc_model_linear_with(p->m, name_of(p, name), *x, features, &options, x);
}

static dsc_status add_dropout(dsc_model *m, const dsc_zoo_gpt_design *d, dsc_value *x) {
    return d->dropout > 0 ? dsc_model_dropout(m, *x, d->dropout, x) : DSC_OK;
}

static dsc_status add_block(place *p, dsc_value *x) {
    const dsc_zoo_gpt_design *d = p->d;
    const double residual = STD / sqrt(2.0 * (double)d->layers);
    dsc_value y;
    dsc_attention_options attention;
    dsc_attention_options_init(&attention);
    attention.heads = d->heads;
    attention.causal = 1;
    attention.dropout = d->dropout;
    DSC_TRY(add_norm(p, "ln_1", *x, &y));
    DSC_TRY(add_linear(p, "attn.c_attn", STD, 3 * d->width, 3, &y));
    DSC_TRY(dsc_model_attention(p->m, y, &attention, &y));
    DSC_TRY(add_linear(p, "attn.c_proj", residual, d->width, 1, &y));
    DSC_TRY(add_dropout(p->m, d, &y));
    DSC_TRY(dsc_model_add(p->m, y, *x, x));
    DSC_TRY(add_norm(p, "ln_2", *x, &y));
    DSC_TRY(add_linear(p, "mlp.c_fc", STD, 4 * d->width, 1, &y));
    DSC_TRY(dsc_model_activation(p->m, y, d->gpt2 ? DSC_ACTIVATION_GELU_TANH : DSC_ACTIVATION_GELU, &y));
    DSC_TRY(add_linear(p, "mlp.c_proj", residual, d->width, 1, &y));
    DSC_TRY(add_dropout(p->m, d, &y));
    return dsc_model_add(p->m, y, *x, x);
}

dsc_status dsc_zoo_check_heads(int64_t width, int64_t heads) {
    if (width % heads != 0)
        return DSC_FAIL(DSC_E_INVALID, "width %lld cannot be divided into %lld heads: use a multiple",
                        (long long)width, (long long)heads);
    return DSC_OK;
}

dsc_status dsc_zoo_gpt(void *design, dsc_model *m, dsc_value tokens, int64_t classes, dsc_value *logits) {
    const dsc_zoo_gpt_design *d = design;
    dsc_value embedding, x;
    DSC_TRY(dsc_zoo_check_heads(d->width, d->heads));
    DSC_TRY(dsc_model_embedding(m, "transformer.wte", tokens, classes, d->width, STD, &embedding));
    DSC_TRY(dsc_model_position_embedding(m, "transformer.wpe", embedding, STD, &x));
    DSC_TRY(add_dropout(m, d, &x));
    for (int64_t i = 0; i < d->layers; i++)
        DSC_TRY(add_block(&(place){.m = m, .d = d, .block = i}, &x));
    DSC_TRY(dsc_model_layer_norm(m, "transformer.ln_f", x, EPSILON, d->bias, &x));
    dsc_linear_options head;
    dsc_linear_options_init(&head);
    head.bias = 0;
    head.tied = embedding;
    return dsc_model_linear_with(m, "lm_head", x, classes, &head, logits);
}

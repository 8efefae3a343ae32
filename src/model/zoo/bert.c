/* BERT (Devlin et al. 2019) with the head that predicts masked tokens, as Hugging Face's BertForMaskedLM names it:
 * the embeddings of tokens, positions and token types are added and normalised. Then come blocks of two parts,
 *   LayerNorm(x + dense(attention(query(x), key(x), value(x)))),   LayerNorm(x + dense(GELU(dense(x)))),
 * where the second has 4 width hidden features, and the head, LayerNorm(GELU(dense(x))) times the table of the tokens,
 * plus a bias. All tokens have type 0, and every position attends to all others except the padding at the end. The
 * initial weights are normal with standard deviation 0.02. Dropout is applied after the first layer norm, to the
 * probabilities of attention and before both sums. */
#include "base/error.h"
#include "model/exec.h"
#include "model/zoo/zoo.h"

#include <stddef.h>
#include <stdio.h>

#define EPSILON 1e-12 /* of the layer norms */
#define STD     0.02  /* of initial weights */

enum { NAME = 80, TYPES = 2 };

#define AT(member) offsetof(dsc_zoo_bert_design, member)

const dsc_option dsc_zoo_bert_keys[] = {
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
    {.name = NULL},
};

/* ---- a layer that adds the same vector to every position ----
 * y[n,t] = x[n,t] + v, where v is NAME.bias, or the first of the two rows of NAME.weight, that of token type 0. */

typedef struct vector_attributes {
    int types; /* 1: NAME.weight[TYPES, channels]; 0: NAME.bias[channels] */
} vector_attributes;

static dsc_status vector_declare(dsc_model *m, dsc_node *node) {
    const vector_attributes *own = node->attributes;
    int64_t c = node->shape.c;
    dsc_state_tensor types = {
        .trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 2, .dim = {TYPES, c}}, .std = STD};
    dsc_state_tensor bias = {.trained = 1, .tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {c}}};
    return dsc_graph_declare(m, node, own->types ? "weight" : "bias", own->types ? &types : &bias,
                             &node->weight);
}

/* Returns t as a matrix [rows, channels], or, if rows is 0, its first row as a vector. */
static dsc_tensor rows_of(const dsc_tensor *t, int64_t channels, int64_t rows) {
    const int64_t dim[2] = {rows, channels};
    return dsc_tensor_view(t->device, t->data, t->dtype, rows ? 2 : 1, rows ? dim : &channels);
}

/* Rows of logits may be longer than the bias; saved[0] then has room for a copy of the bias with their length. */
static dsc_status vector_plan(dsc_exec *exec, dsc_exec_op *op) {
    const int64_t width = exec->values[op->out].dim[3];
    if (width > op->node->shape.c)
        op->saved[0] = dsc_tensor_view(exec->model->device, NULL, exec->model->options.dtype, 1, &width);
    return DSC_OK;
}

static dsc_status vector_forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    int64_t c = op->node->shape.c, width = op->y->dim[3];
    dsc_tensor v = rows_of(dsc_exec_weight(exec, op), c, 0),
               y = rows_of(op->y, width, dsc_tensor_count(op->y) / width);
    if (width > c) {
        dsc_tensor all = op->saved[0], own = dsc_tensor_slice(&all, 0, c);
        DSC_TRY(dsc_op_fill(q, 0, &all));
        DSC_TRY(dsc_op_convert(q, &v, &own));
        v = all;
    }
    if (op->x[0]->data != op->y->data)
        DSC_TRY(dsc_op_convert(q, op->x[0], op->y));
    return dsc_op_bias_add(q, &v, &y);
}

/* Computes dv = beta dv + the sum of the rows of dy, of which only the part as long as dv is used. */
static dsc_status sum_rows(dsc_queue *q, const dsc_exec_op *op, double beta, dsc_tensor *dv) {
    const int64_t width = op->dy->dim[3];
    dsc_tensor dy = rows_of(op->dy, width, dsc_tensor_count(op->dy) / width), all = op->saved[0];
    if (width == dsc_tensor_count(dv))
        return dsc_op_bias_grad(q, &dy, beta, dv);
    dsc_tensor own = dsc_tensor_slice(&all, 0, dsc_tensor_count(dv));
    DSC_TRY(dsc_op_bias_grad(q, &dy, 0, &all));
    return dsc_op_axpby(q, 1, &own, beta, dv);
}

static dsc_status vector_backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                                  const dsc_backward_pass *pass) {
    int64_t c = op->node->shape.c;
    dsc_tensor *grad = dsc_exec_weight_grad(exec, op);
    dsc_tensor dv = rows_of(grad, c, 0);
    if (pass->param_grads) {
        if (pass->beta == 0) /* the row of the unused token type has gradient 0 */
            DSC_TRY(dsc_op_fill(q, 0, grad));
        DSC_TRY(sum_rows(q, op, pass->beta, &dv));
    }
    if (!op->dx[0] || op->dx[0]->data == op->dy->data)
        return DSC_OK;
    return dsc_op_axpby(q, 1, op->dy, op->beta[0], op->dx[0]);
}

static const dsc_layer_type vector = {.name = "vector",
                                      .attribute_bytes = sizeof(vector_attributes),
                                      .named = 1,
                                      .in_place = 1,
                                      .takes_long_rows = 1,
                                      .shape = dsc_graph_same_shape,
                                      .declare = vector_declare,
                                      .plan = vector_plan,
                                      .forward = vector_forward,
                                      .backward = vector_backward};

/* ---- the model ---- */

/* The model, and the prefix of the names of the layers that are being added. */
typedef struct place {
    dsc_model *m;
    const dsc_zoo_bert_design *d;
    char prefix[NAME], name[2 * NAME];
} place;

static const char *name_of(place *p, const char *name) {
    snprintf(p->name, sizeof p->name, "%s%s", p->prefix, name);
    return p->name;
}

static dsc_status add_linear(place *p, const char *name, dsc_value x, int64_t features, dsc_value *y) {
    dsc_linear_options options;
    dsc_linear_options_init(&options);
    options.std = STD;
    return dsc_model_linear_with(p->m, name_of(p, name), x, features, &options, y);
}

static dsc_status add_norm(place *p, const char *name, dsc_value *x) {
    return dsc_model_layer_norm(p->m, name_of(p, name), *x, EPSILON, 1, x);
}

static dsc_status add_dropout(place *p, dsc_value *x) {
    return p->d->dropout > 0 ? dsc_model_dropout(p->m, *x, p->d->dropout, x) : DSC_OK;
}

/* Computes x = LayerNorm(x + dense(y)). */
static dsc_status add_sum(place *p, const char *dense, const char *norm, dsc_value y, dsc_value *x) {
    DSC_TRY(add_linear(p, dense, y, p->d->width, &y));
    DSC_TRY(add_dropout(p, &y));
    DSC_TRY(dsc_model_add(p->m, y, *x, x));
    return add_norm(p, norm, x);
}

static dsc_status add_block(place *p, int64_t number, dsc_value *x) {
    dsc_value query, key, value, y;
    dsc_attention_options attention;
    dsc_attention_options_init(&attention);
    attention.heads = p->d->heads;
    attention.dropout = p->d->dropout;
    attention.padded = 1;
    snprintf(p->prefix, sizeof p->prefix, "bert.encoder.layer.%lld.", (long long)number);
    DSC_TRY(add_linear(p, "attention.self.query", *x, p->d->width, &query));
    DSC_TRY(add_linear(p, "attention.self.key", *x, p->d->width, &key));
    DSC_TRY(add_linear(p, "attention.self.value", *x, p->d->width, &value));
    DSC_TRY(dsc_model_concat(p->m, query, key, &y));
    DSC_TRY(dsc_model_concat(p->m, y, value, &y));
    DSC_TRY(dsc_model_attention(p->m, y, &attention, &y));
    DSC_TRY(add_sum(p, "attention.output.dense", "attention.output.LayerNorm", y, x));
    DSC_TRY(add_linear(p, "intermediate.dense", *x, 4 * p->d->width, &y));
    DSC_TRY(dsc_model_activation(p->m, y, DSC_ACTIVATION_GELU, &y));
    return add_sum(p, "output.dense", "output.LayerNorm", y, x);
}

/* Adds the head. Its bias has two names in files: that of the head and that of its linear layer. */
static dsc_status add_head(place *p, dsc_value x, dsc_value embedding, int64_t classes, dsc_value *logits) {
    dsc_value product;
    dsc_linear_options decoder;
    dsc_linear_options_init(&decoder);
    decoder.bias = 0;
    decoder.tied = embedding;
    snprintf(p->prefix, sizeof p->prefix, "cls.predictions.");
    DSC_TRY(add_linear(p, "transform.dense", x, p->d->width, &x));
    DSC_TRY(dsc_model_activation(p->m, x, DSC_ACTIVATION_GELU, &x));
    DSC_TRY(add_norm(p, "transform.LayerNorm", &x));
    DSC_TRY(dsc_model_linear_with(p->m, name_of(p, "decoder"), x, classes, &decoder, &product));
    DSC_TRY(dsc_graph_add(p->m, &vector, "cls.predictions", &product, 1, &(vector_attributes){.types = 0},
                          logits));
    return dsc_graph_declare_alias(p->m, &p->m->nodes[product], "bias", p->m->nodes[*logits].weight);
}

dsc_status dsc_zoo_bert(void *design, dsc_model *m, dsc_value tokens, int64_t classes, dsc_value *logits) {
    const dsc_zoo_bert_design *d = design;
    place p = {.m = m, .d = d, .prefix = "bert.embeddings."};
    dsc_value embedding, x;
    DSC_TRY(dsc_zoo_check_heads(d->width, d->heads));
    DSC_TRY(
        dsc_model_embedding(m, name_of(&p, "word_embeddings"), tokens, classes, d->width, STD, &embedding));
    DSC_TRY(dsc_model_position_embedding(m, name_of(&p, "position_embeddings"), embedding, STD, &x));
    DSC_TRY(dsc_graph_add(m, &vector, name_of(&p, "token_type_embeddings"), &x, 1,
                          &(vector_attributes){.types = 1}, &x));
    DSC_TRY(add_norm(&p, "LayerNorm", &x));
    DSC_TRY(add_dropout(&p, &x));
    for (int64_t i = 0; i < d->layers; i++)
        DSC_TRY(add_block(&p, i, &x));
    return add_head(&p, x, embedding, classes, logits);
}

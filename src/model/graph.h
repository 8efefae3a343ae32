/* The graph of a model while it is built: nodes, the tensors that they declare, and the table of functions that
 * every kind of layer fills in.
 *
 * Each layer is one node with one output value, so a dsc_value is the number of its node. Nodes are kept in the
 * order in which they were added, which is a valid order of execution. */
#ifndef DSC_MODEL_GRAPH_H
#define DSC_MODEL_GRAPH_H

#include "descent/layer.h"
#include "descent/model.h"
#include "device/ops.h"

typedef struct dsc_node dsc_node;
typedef struct dsc_exec_op dsc_exec_op;
typedef struct dsc_backward_pass dsc_backward_pass;

/* One kind of layer. A NULL function means that there is nothing to do. */
typedef struct dsc_layer_type {
    const char *name;
    size_t attribute_bytes; /* size of the kind's attributes; every node has a copy of them */
    int named;              /* 1: has parameters, whose names start with the layer's name */
    int in_place;      /* 1: y may overwrite x[0] if nothing reads that later, and dx[0] may overwrite dy */
    int grad_in_place; /* 1: dx[0] may overwrite dy, but y may not overwrite x[0] */
    int keeps_x;       /* backward reads the first keeps_x inputs */
    int keeps_y;       /* 1: backward reads y */
    int dx_always;     /* 1: backward writes dx[0] even when it is not needed */
    /* 1: each position of a sequence depends only on the same position of the input or, with a cache, on earlier ones,
     * so that a decoder can compute it by itself. */
    int by_position;
    int whole_samples; /* 1: K-FAC sees its input and output as [batch, features] (layers defined by a program) */
    int takes_long_rows; /* 1: rows of x[0] and y may be longer than shape.c, as those of logits (logit_width) */
    /* Checks the inputs and sets node->shape. */
    dsc_status (*shape)(const dsc_model *m, dsc_node *node);
    /* Declares parameters and buffers (dsc_graph_declare). */
    dsc_status (*declare)(dsc_model *m, dsc_node *node);
    /* For layers with a weight matrix: completes the description that K-FAC gets. */
    void (*describe)(const dsc_node *node, dsc_layer_info *info);
    /* Called once per executor, before memory is planned: sets descriptors, saved tensors and workspace. */
    dsc_status (*plan)(dsc_exec *exec, dsc_exec_op *op);
    dsc_status (*forward)(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op);
    dsc_status (*backward)(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass);
} dsc_layer_type;

struct dsc_node {
    const dsc_layer_type *type;
    const char *name; /* NULL for layers without parameters */
    int inputs;
    dsc_value in[DSC_LAYER_INPUTS];
    void *attributes; /* the kind's own struct; NULL for none */
    dsc_shape shape;  /* of its output value */
    int64_t first_param, param_count;
    int64_t weight, bias; /* parameter numbers; -1 for none */
    int64_t buffer;       /* number of a batch norm's first buffer; -1 for none */
    int64_t layer;        /* index among the layers with a weight matrix; -1 for other nodes */
    int64_t norm;         /* index among the norms; -1 for other nodes */
    int64_t table;        /* index among the tables of embeddings; -1 for other nodes */
    int64_t tied;   /* index among the tied heads (linear layers that use such a table); -1 for other nodes */
    int64_t blocks; /* linear: parts of the features, each with its own factor G; 0 and 1: one */
};

/* A tensor of the state dict: a parameter or a buffer. */
typedef struct dsc_state_tensor {
    char *name;
    int trained;           /* 1: parameter, 0: buffer */
    int64_t number;        /* index among the parameters, or among the buffers */
    int alias;             /* 1: another name, in files, for the parameter with this number */
    dsc_tensor tensor;     /* shape and type in this library; data is set by sealing */
    double std, start;     /* initial values: normal with deviation std, or all `start` when std is 0 */
    dsc_state_entry entry; /* shape and order in PyTorch; sealing copies it to dsc_model.state */
} dsc_state_tensor;

enum { DSC_MODEL_NAME_SIZE = 64 };

struct dsc_model {
    dsc_device *device;
    dsc_model_options options;
    char name[DSC_MODEL_NAME_SIZE];
    int sealed;
    dsc_node *nodes;
    int64_t node_count, node_capacity;
    int64_t norm_count;        /* norms of all kinds */
    int64_t table_count;       /* tables of embeddings */
    int64_t tied_count;        /* tied heads */
    dsc_state_tensor *tensors; /* in the order of the state dict */
    int64_t tensor_count, tensor_capacity;
    int64_t param_count, parameter_total, buffer_count, layer_count, dropout_count;
    dsc_value input, logits;
    int tokens; /* 1: the input is token numbers */
    /* Set by sealing. */
    dsc_param *params, *buffers;
    dsc_state_entry *state;
    dsc_layer_info *layers;
    dsc_conv2d_shape *layer_shapes; /* the shapes of layers that are not convolutions */
    void *values, *grads;           /* device memory, parameter_total numbers each */
    void *running;                  /* device memory of every running_mean and running_var */
    dsc_tensor batches;             /* I64: every num_batches_tracked, contiguous */
};

/* The type of the values between layers. */
static inline dsc_dtype dsc_model_value_dtype(const dsc_model *m) {
    return m->options.activations == DSC_F32 ? m->options.dtype : m->options.activations;
}

/* Adds a node with copies of the name and of the attributes (type->attribute_bytes bytes). Checks the inputs and
 * calls the type's `shape` and `declare`. A failure leaves the model as it was. */
dsc_status dsc_graph_add(dsc_model *m, const dsc_layer_type *type, const char *name, const dsc_value *inputs,
                         int count, const void *attributes, dsc_value *y) DSC_MUST_CHECK;
/* The shape of input i of the node. */
const dsc_shape *dsc_graph_input(const dsc_model *m, const dsc_node *node, int i);
/* The number of elements of one sample. */
int64_t dsc_shape_count(const dsc_shape *shape);
/* The number of channels of a map, or of elements of a vector. */
int64_t dsc_shape_features(const dsc_shape *shape);
/* The `shape` function of layer types whose output has the shape of the first input. */
dsc_status dsc_graph_same_shape(const dsc_model *m, dsc_node *node) DSC_MUST_CHECK;
/* DSC_E_INVALID unless the first input is a map, or a vector; the message names the layer and the input's shape. */
dsc_status dsc_graph_expect_map(const dsc_model *m, const dsc_node *node) DSC_MUST_CHECK;
dsc_status dsc_graph_expect_vector(const dsc_model *m, const dsc_node *node) DSC_MUST_CHECK;
/* Returns 1 for a map of width 1, that is, a sequence of positions. */
int dsc_shape_is_sequence(const dsc_shape *shape);
/* "conv2d 'layer1.0.conv1'" or "relu (value 7)". Valid until the thread's next call. */
const char *dsc_graph_describe(const dsc_model *m, const dsc_node *node);
/* "32x32x3" or "a vector of 64". The last four texts of a thread stay valid. */
const char *dsc_shape_text(const dsc_shape *shape);

/* Declares the tensor NODE.suffix; if tensor->entry has no dimensions, it gets those of the tensor.
 * *number is the tensor's index among the parameters, or among the buffers. */
dsc_status dsc_graph_declare(dsc_model *m, dsc_node *node, const char *suffix, const dsc_state_tensor *tensor,
                             int64_t *number) DSC_MUST_CHECK;

/* Declares NODE.suffix as another name, in files, for parameter `number`. */
dsc_status dsc_graph_declare_alias(dsc_model *m, dsc_node *node, const char *suffix,
                                   int64_t number) DSC_MUST_CHECK;

/* Finds the table of the embedding whose output is `value`, for another layer that is to use it: writes the number of
 * its parameter. DSC_E_INVALID when that is not an embedding with a table [vocabulary, features]. */
dsc_status dsc_embedding_find(const dsc_model *m, dsc_value value, int64_t vocabulary, int64_t features,
                              int64_t *param) DSC_MUST_CHECK;
/* Makes the embedding add its gradient to that of the other layer that uses its table. */
void dsc_embedding_share(dsc_model *m, dsc_value value);
/* Returns 1 if the node is an embedding whose table another layer also uses. */
int dsc_embedding_is_shared(const dsc_node *node);
/* Returns 1 if the node is an embedding of tokens, not of positions. */
int dsc_embedding_is_of_tokens(const dsc_node *node);
/* Returns 1 if the node is a position embedding. */
int dsc_embedding_is_of_positions(const dsc_node *node);

/* Frees everything that building has allocated. */
void dsc_graph_free(dsc_model *m);

/* The kinds of layers that can be fused. */
extern const dsc_layer_type dsc_layer_batch_norm, dsc_layer_relu, dsc_layer_add;
int dsc_layer_is_gelu_tanh(const dsc_layer_type *type);
/* The kind of attention, and its attributes, which tell whether a decoder can run it. */
extern const dsc_layer_type dsc_layer_attention;
typedef struct dsc_attention_attributes {
    dsc_attention_desc desc;
    int padded; /* 1: no position attends to the padding at the end of a sequence of tokens */
} dsc_attention_attributes;
/* Returns 1 if no position of a sequence depends on later ones. */
int dsc_graph_is_causal(const dsc_model *m);
/* Returns 1 if a position of a model of sequences may see later ones, so that it can only predict masked tokens. */
int dsc_graph_sees_ahead(const dsc_model *m);
/* The kinds whose floating-point operations are counted, besides attention. */
extern const dsc_layer_type dsc_layer_linear, dsc_layer_conv2d, dsc_layer_conv_transpose2d;

/* The tensors of a capture stay unchanged until this many more captures were called. */
enum { DSC_EXEC_CAPTURES = 2 };
/* Like dsc_exec_create, for training, but the tensors that a capture of dsc_backward_options gets stay unchanged until
 * the second next capture is called, or until the end of the pass, so that work on them may overlap with the pass. */
dsc_status dsc_exec_create_lasting(dsc_model *m, dsc_exec_mode mode, int64_t batch,
                                   dsc_exec **out) DSC_MUST_CHECK;

#endif

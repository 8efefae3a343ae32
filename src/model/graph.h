/* The graph of a model while it is built: nodes, the tensors they declare, and the table of functions that
 * every kind of layer fills in.
 *
 * Each layer is one node and gives one value, so a dsc_value is the number of its node. Nodes are kept in the
 * order in which they were added, which is an order of execution. */
#ifndef DSC_MODEL_GRAPH_H
#define DSC_MODEL_GRAPH_H

#include "descent/layer.h"
#include "descent/model.h"
#include "device/ops.h"

typedef struct dsc_node dsc_node;
typedef struct dsc_exec_op dsc_exec_op;
typedef struct dsc_backward_pass dsc_backward_pass;

/* One kind of layer. Empty entries: nothing to do. */
typedef struct dsc_layer_type {
    const char *name;
    size_t attribute_bytes; /* size of the kind's attributes, of which every node has a copy */
    int named;              /* 1: has parameters, whose names start with the layer's */
    int in_place;      /* y may share memory with x[0] when nothing reads that any more, and dx[0] with dy */
    int grad_in_place; /* only dx[0] may share memory with dy */
    int keeps_x;       /* backward reads the first keeps_x inputs */
    int keeps_y;       /* backward reads y */
    int dx_always;     /* backward writes dx[0] even where it is not needed */
    /* A position of a sequence depends on that position alone, or, with a cache, on those before it: a decoder can
     * compute it by itself. */
    int by_position;
    int whole_samples; /* K-FAC sees what it reads and writes as [batch, features]: layers of a program's own */
    int takes_long_rows; /* rows of x[0] and y may be longer than shape.c: those of logits (logit_width in exec.c) */
    /* Checks the inputs, sets node->shape. */
    dsc_status (*shape)(const dsc_model *m, dsc_node *node);
    /* Declares parameters and buffers (dsc_graph_declare). */
    dsc_status (*declare)(dsc_model *m, dsc_node *node);
    /* For layers with a weight matrix: completes the description that K-FAC gets. */
    void (*describe)(const dsc_node *node, dsc_layer_info *info);
    /* Once per executor, before memory is planned: descriptors, saved tensors, workspace. */
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
    dsc_shape shape;  /* of the value it gives */
    int64_t first_param, param_count;
    int64_t weight, bias; /* parameter numbers; -1 for none */
    int64_t buffer;       /* the first of a batch norm's buffers; -1 for none */
    int64_t layer;        /* number among the layers with a weight matrix; -1 for none */
    int64_t norm;         /* number among the norms; -1 for others */
    int64_t table;        /* number among the tables of embeddings; -1 for others */
    int64_t tied;   /* number among the tied heads, linear layers that use such a table; -1 for others */
    int64_t blocks; /* linear: parts of the features, each with a factor G of its own; 0 and 1: one */
};

/* A tensor of the state dict: a parameter or a buffer. */
typedef struct dsc_state_tensor {
    char *name;
    int trained;           /* 1: parameter, 0: buffer */
    int64_t number;        /* among the parameters, or the buffers */
    int alias;             /* 1: another name, in files, for the parameter of that number */
    dsc_tensor tensor;     /* shape and type here; data from sealing on */
    double std, start;     /* initial values: normal of deviation std, or all `start` when std is 0 */
    dsc_state_entry entry; /* shape and order in PyTorch; name and tensor from sealing on */
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
    /* from sealing on */
    dsc_param *params, *buffers;
    dsc_state_entry *state;
    dsc_layer_info *layers;
    dsc_conv2d_shape *layer_shapes; /* of the layers */
    void *values, *grads;           /* device memory, parameter_total numbers each */
    void *running;                  /* device memory of running_mean and running_var */
    dsc_tensor batches;             /* I64: every num_batches_tracked, without gaps */
};

/* The type of the values between layers. */
static inline dsc_dtype dsc_model_value_dtype(const dsc_model *m) {
    return m->options.activations == DSC_F32 ? m->options.dtype : m->options.activations;
}

/* Adds a node with copies of the name and of the attributes (type->attribute_bytes of them). Checks the
 * inputs, lets the type set the shape and declare. On failure the model is as it was. */
dsc_status dsc_graph_add(dsc_model *m, const dsc_layer_type *type, const char *name, const dsc_value *inputs,
                         int count, const void *attributes, dsc_value *y) DSC_MUST_CHECK;
/* The shape of input i of the node. */
const dsc_shape *dsc_graph_input(const dsc_model *m, const dsc_node *node, int i);
/* Numbers in one sample. */
int64_t dsc_shape_count(const dsc_shape *shape);
/* Channels of a map, or all numbers of a vector. */
int64_t dsc_shape_features(const dsc_shape *shape);
/* A layer type's `shape` where the output is like the first input. */
dsc_status dsc_graph_same_shape(const dsc_model *m, dsc_node *node) DSC_MUST_CHECK;
/* The first input must be a map, or a vector; DSC_E_INVALID names the layer and what it got. */
dsc_status dsc_graph_expect_map(const dsc_model *m, const dsc_node *node) DSC_MUST_CHECK;
dsc_status dsc_graph_expect_vector(const dsc_model *m, const dsc_node *node) DSC_MUST_CHECK;
/* A map of width 1: a sequence of positions. */
int dsc_shape_is_sequence(const dsc_shape *shape);
/* "conv2d 'layer1.0.conv1'", "relu (value 7)": valid until the thread's next call. */
const char *dsc_graph_describe(const dsc_model *m, const dsc_node *node);
/* "32x32x3", "vector of 64": four texts may be in use at once. */
const char *dsc_shape_text(const dsc_shape *shape);

/* Declares the tensor NODE.suffix; members of `tensor->entry` that are 0 are filled in from the tensor.
 * *number is its number among the parameters, or the buffers. */
dsc_status dsc_graph_declare(dsc_model *m, dsc_node *node, const char *suffix, const dsc_state_tensor *tensor,
                             int64_t *number) DSC_MUST_CHECK;

/* Declares NODE.suffix as another name, in files, for parameter `number`. */
dsc_status dsc_graph_declare_alias(dsc_model *m, dsc_node *node, const char *suffix,
                                   int64_t number) DSC_MUST_CHECK;

/* Lets a layer use the table of the embedding that gives `value`: writes its parameter's number. DSC_E_INVALID when
 * that is no embedding of a [vocabulary, features] table. */
dsc_status dsc_embedding_find(const dsc_model *m, dsc_value value, int64_t vocabulary, int64_t features,
                              int64_t *param) DSC_MUST_CHECK;
/* From now on the embedding adds its gradient to that of the layer that uses its table. */
void dsc_embedding_share(dsc_model *m, dsc_value value);
/* 1: the node is an embedding whose table another layer uses, too. */
int dsc_embedding_is_shared(const dsc_node *node);
/* 1: the node is an embedding of tokens, not of positions. */
int dsc_embedding_is_of_tokens(const dsc_node *node);
/* 1: the node has a table of the positions of a sequence. */
int dsc_embedding_is_of_positions(const dsc_node *node);

/* Frees what building has allocated. */
void dsc_graph_free(dsc_model *m);

/* The kinds that fusion looks for. */
extern const dsc_layer_type dsc_layer_batch_norm, dsc_layer_relu, dsc_layer_add;
int dsc_layer_is_gelu_tanh(const dsc_layer_type *type);
/* The kind that decoders look at, and its attributes. */
extern const dsc_layer_type dsc_layer_attention;
typedef struct dsc_attention_attributes {
    dsc_attention_desc desc;
    int padded; /* 1: the padding at the end of a sequence of tokens is not seen */
} dsc_attention_attributes;
/* 1 when no position of a sequence depends on later ones. */
int dsc_graph_is_causal(const dsc_model *m);
/* 1 when a model of sequences may see the next token, so that it can only predict masked ones. */
int dsc_graph_sees_ahead(const dsc_model *m);
/* With attention, the kinds whose operations are counted. */
extern const dsc_layer_type dsc_layer_linear, dsc_layer_conv2d, dsc_layer_conv_transpose2d;

/* Captures for which the tensors of an earlier one stay as they were. */
enum { DSC_EXEC_CAPTURES = 2 };
/* For training, as dsc_exec_create does it, but what a capture of dsc_backward_options gets stays as it is until the
 * second next capture is called, or until the end of the pass: work on it may go on beside the pass. */
dsc_status dsc_exec_create_lasting(dsc_model *m, dsc_exec_mode mode, int64_t batch,
                                   dsc_exec **out) DSC_MUST_CHECK;

#endif

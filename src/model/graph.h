/* The graph of a model while it is built: nodes, the tensors they declare, and the table of functions that
 * every kind of layer fills in.
 *
 * Each layer is one node and gives one value, so a dsc_value is the number of its node. Nodes stand in the
 * order in which they were added, which is an order of execution. */
#ifndef DSC_MODEL_GRAPH_H
#define DSC_MODEL_GRAPH_H

#include "descent/model.h"
#include "device/ops.h"

typedef struct dsc_node dsc_node;
typedef struct dsc_step dsc_step;
typedef struct dsc_pass dsc_pass;

/* A value of one sample: a map h x w x c, or (flat) a vector of h*w*c features. A vector remembers the map it
 * was flattened from, because PyTorch would have flattened it in the order c, h, w; where both orders agree
 * it is 1 x 1 x features. */
typedef struct dsc_shape {
    int flat;
    int64_t h, w, c;
} dsc_shape;

/* One kind of layer. Empty entries: nothing to do. */
typedef struct dsc_layer_type {
    const char *name;
    int in_place;  /* y may lie over x[0] when nothing else reads that, and dx[0] over dy */
    int keeps_x;   /* backward reads x[0] */
    int keeps_y;   /* backward reads y */
    int dx_always; /* backward writes dx[0] even where nobody asks for it */
    /* Checks the inputs, sets node->shape. */
    dsc_status (*shape)(const dsc_model *m, dsc_node *node);
    /* Declares parameters and buffers (dsc_graph_declare). */
    dsc_status (*declare)(dsc_model *m, dsc_node *node);
    /* Once per executor, before memory is planned: descriptors, saved tensors, workspace. */
    dsc_status (*plan)(dsc_exec *exec, dsc_step *step);
    dsc_status (*forward)(const dsc_exec *exec, dsc_queue *q, const dsc_step *step);
    dsc_status (*backward)(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass);
} dsc_layer_type;

struct dsc_node {
    const dsc_layer_type *type;
    const char *name; /* NULL for layers without parameters */
    int inputs;
    dsc_value in[2];
    dsc_shape shape;          /* of the value it gives */
    int64_t weight, bias;     /* parameter numbers; -1 for none */
    int64_t buffer;           /* the first of a batch norm's buffers; -1 for none */
    int64_t layer;            /* number among the layers with a weight matrix; -1 for none */
    int64_t channels;         /* conv2d, shortcut: of the output; linear: features */
    int with_bias;            /* linear */
    dsc_conv2d_options conv;  /* conv2d */
    dsc_pool_desc pool;       /* max and average pooling */
    int64_t stride;           /* shortcut */
    dsc_dropout_desc dropout; /* dropout */
};

/* A tensor of the state dict: a parameter or a buffer. */
typedef struct dsc_slot {
    char *name;
    int trained;           /* 1: parameter, 0: buffer */
    int64_t number;        /* among the parameters, or the buffers */
    dsc_tensor tensor;     /* shape and type here; data from sealing on */
    double std, start;     /* initial values: normal of deviation std, or all `start` when std is 0 */
    dsc_state_entry there; /* shape and order in PyTorch; name and tensor from sealing on */
} dsc_slot;

struct dsc_model {
    dsc_device *device;
    dsc_model_options options;
    int sealed;
    dsc_node *nodes;
    int64_t node_count, node_capacity;
    dsc_slot *slots; /* in the order of the state dict */
    int64_t slot_count, slot_capacity;
    int64_t param_count, parameter_total, buffer_count, layer_count, dropout_count;
    dsc_value input, logits;
    /* from sealing on */
    dsc_param *params, *buffers;
    dsc_state_entry *state;
    dsc_layer_info *layers;
    void *values, *grads; /* device memory, parameter_total numbers each */
    void *running;        /* device memory of running_mean and running_var */
    dsc_tensor batches;   /* I64: every num_batches_tracked, one behind the other */
};

/* The type of what flows between layers. */
static inline dsc_dtype dsc_model_flow_dtype(const dsc_model *m) {
    return m->options.activations == DSC_F32 ? m->options.dtype : m->options.activations;
}

/* Adds a copy of `node`, whose type, name, inputs and attributes are set; the name is duplicated. Checks the
 * inputs, lets the type set the shape and declare. On failure the model is as it was. */
dsc_status dsc_graph_add(dsc_model *m, const dsc_node *node, dsc_value *y) DSC_MUST_CHECK;
/* A node of this type with one input, to be completed and added. */
dsc_node dsc_graph_node(const dsc_layer_type *type, const char *name, dsc_value x);
/* The shape of input i of the node. */
const dsc_shape *dsc_graph_input(const dsc_model *m, const dsc_node *node, int i);
/* Numbers in one sample. */
int64_t dsc_shape_count(const dsc_shape *shape);
/* A layer type's `shape` where the output is like the first input. */
dsc_status dsc_graph_same_shape(const dsc_model *m, dsc_node *node) DSC_MUST_CHECK;
/* A map, or a vector; DSC_E_INVALID names the layer and what it got. */
dsc_status dsc_graph_expect_map(const dsc_model *m, const dsc_node *node) DSC_MUST_CHECK;
dsc_status dsc_graph_expect_vector(const dsc_model *m, const dsc_node *node) DSC_MUST_CHECK;
/* "conv2d 'layer1.0.conv1'", "relu (value 7)": valid until the thread's next call. */
const char *dsc_graph_describe(const dsc_model *m, const dsc_node *node);
/* "32x32x3", "vector of 64": four texts may be in use at once. */
const char *dsc_shape_text(const dsc_shape *shape);

/* Declares the tensor NODE.suffix; what the caller leaves 0 in `slot->there` is filled in from the tensor.
 * *number is its number among the parameters, or the buffers. */
dsc_status dsc_graph_declare(dsc_model *m, const dsc_node *node, const char *suffix, const dsc_slot *slot,
                             int64_t *number) DSC_MUST_CHECK;

/* Frees what building has allocated. */
void dsc_graph_free(dsc_model *m);

extern const dsc_layer_type dsc_layer_input, dsc_layer_conv2d, dsc_layer_linear, dsc_layer_batch_norm,
    dsc_layer_relu, dsc_layer_max_pool, dsc_layer_avg_pool, dsc_layer_global_pool, dsc_layer_add,
    dsc_layer_shortcut, dsc_layer_flatten, dsc_layer_dropout;

#endif

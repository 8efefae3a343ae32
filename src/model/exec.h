/* An executor: the list of operations that a graph was lowered to, and the memory that they work in.
 *
 * Times in the memory plan: operation i runs forward at time i, the loss at time N (the number of operations), and
 * operation i runs backward at time 2N - i. Everything that backward reads lives to the end, because loss and backward
 * may be repeated after one forward. Executors of DSC_EXEC_TRAIN_ONCE do not repeat them: there every value lives
 * until its last use in backward, and its memory is then reused for gradients.
 *
 * With recompute the operations are cut into segments (recompute.c). Values that one segment reads from another live to
 * the end, or, if nothing is repeated, until their last use.
 * The other values of a segment have memory in forward for as long as forward reads them, and once more from the time
 * at which the segment's forward operations run again, right before its backward. The last segment's values stay from
 * forward to backward; a second backward after one forward computes them again, too. */
#ifndef DSC_MODEL_EXEC_H
#define DSC_MODEL_EXEC_H

#include "model/graph.h"

/* One operation of an executor: a layer. A batch norm may be fused with the ReLU, or the addition and the ReLU, that
 * follow it, and a linear layer with the addition. */
struct dsc_exec_op {
    const dsc_node *node; /* parameters and attributes */
    const dsc_layer_type *type;
    int inputs;
    dsc_value in[DSC_LAYER_INPUTS]; /* in[1]: the second term of an addition, also of a fused one */
    dsc_value out;
    int relu;            /* batch norm: a ReLU is fused */
    int adds;            /* linear: an addition is fused */
    dsc_value activated; /* linear: the output of the GELU after it, which forward also writes; -1: none */
    dsc_value inner; /* linear: the input of the GELU before it, whose gradient backward writes; -1: none */
    int absorbed;    /* GELU: the linear layers around it do its work */
    int view;        /* y has the memory of x, perhaps with another shape: nothing is computed */
    int keeps_x, keeps_y;          /* backward reads the first keeps_x inputs, and y if keeps_y is not 0 */
    int backward;                  /* 0: nothing at or before this layer is trained */
    double beta[DSC_LAYER_INPUTS]; /* for dx: 0 for a value's first gradient, 1 for later ones */
    dsc_tensor matrix;             /* the weight matrix, if there is one, in the type of the values */
    dsc_conv *conv;
    /* Written by forward for backward: statistics of a norm, the argmax of a max pool, log-sum-exps of attention; in a
     * decoder the cached keys and values. */
    dsc_tensor saved[DSC_LAYER_TENSORS];
    int saves_always; /* `saved` has memory even when no backward follows */
    int again;        /* recompute: its forward runs again before the backward of its segment */
    dsc_tensor *x[DSC_LAYER_INPUTS], *y;
    dsc_tensor *dx[DSC_LAYER_INPUTS], *dy; /* dx[i] is NULL when it is not needed */
    dsc_tensor unused_dx;                  /* memory for a dx[0] that is computed but not needed */
};

/* The options of a backward pass that layers need. */
struct dsc_backward_pass {
    int param_grads;
    double beta; /* for gradients of parameters */
};

struct dsc_exec {
    dsc_model *model;
    dsc_exec_mode mode;
    int64_t batch;
    int once; /* 1: backward runs at most once after a forward (DSC_EXEC_TRAIN_ONCE); mode is DSC_EXEC_TRAIN */
    int lasting; /* 1: captured tensors stay valid for longer (dsc_exec_create_lasting) */
    int decodes; /* 1: one position of a sequence at a time (dsc_exec_create_decoder) */
    int64_t decoded_position;
    dsc_exec_op *ops;
    int64_t op_count;
    dsc_tensor *values, *grads; /* per value of the graph; data NULL: none */
    unsigned char *from_input;  /* per value: 1 if it is a view of the input */
    dsc_tensor converted;       /* memory for an input of another type; data NULL in models of F32 */
    dsc_tensor half;            /* all parameters in the half type of the values; data NULL: none */
    dsc_tensor logits, dlogits; /* the last value and its gradient: [batch * positions, classes or more] */
    dsc_tensor work, position, stats;
    int padded;         /* 1: an operation reads `lengths` */
    dsc_tensor lengths; /* I32[batch]: positions of each sample before its padding; data NULL: no padding */
    dsc_tensor unused_params[2]; /* memory for a batch norm's gradients that are computed but not needed */
    size_t work_bytes;
    int64_t widest_norm;
    void *arena;
    size_t bytes, bytes_without_reuse, bytes_without_recompute;
    int recompute;         /* 1: recomputation is wanted; mode is DSC_EXEC_TRAIN */
    int64_t *segments;     /* first operation of each segment, then op_count */
    int64_t segment_count; /* 0: nothing is computed again */
    int last_is_there;     /* 1: the values of the last segment are still in memory */
    int recomputing;       /* 1: forward operations are being run again */
    unsigned char *ready;  /* per parameter: 1 when its gradient is final */
    int has_forward, has_loss;
    int used_up;            /* once: backward has run and has overwritten values of the last forward */
    double label_smoothing; /* of the losses */
    int plain_labels;       /* 1: without smoothing, mixed labels and class weights */
    dsc_tensor others, shares, class_weights; /* as in dsc_targets; data NULL: none */
    dsc_tensor loss_scale;                    /* data NULL: none */
    dsc_loss loss;
    struct {
        dsc_tensor dlogits, stats;
    } second; /* for the second term of a loss that is a sum; data NULL: none */
};

/* Lowers the model's graph to operations, with fusion. Sets which values they keep, but not yet their tensors. */
dsc_status dsc_exec_lower(dsc_exec *exec) DSC_MUST_CHECK;
/* Recompute: cuts the operations into segments that each write about 1 / `parts` of all bytes, or less. exec->segments
 * must have room for op_count + 1 numbers. */
dsc_status dsc_exec_cut(dsc_exec *exec, int64_t parts) DSC_MUST_CHECK;
/* Plans and allocates the memory of all tensors. */
dsc_status dsc_exec_place(dsc_exec *exec) DSC_MUST_CHECK;

/* The names of all losses, terminated by NULL. */
extern const char *const dsc_loss_names[];
/* Refuses a missing executor or queue; `what` names the call in the message. */
dsc_status dsc_exec_check_call(const char *what, const dsc_exec *exec, const dsc_queue *q) DSC_MUST_CHECK;
/* dsc_exec_loss for labels drawn from the model's own output: computes the negative log-likelihood of the labels, so
 * binary cross-entropy instead of a loss that contains Dice. */
dsc_status dsc_exec_likelihood_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels,
                                    double grad_scale) DSC_MUST_CHECK;

/* Parameter `number` in the type of the values between layers. */
dsc_tensor dsc_exec_param(const dsc_exec *exec, int64_t number);
/* The layer's weight and bias and their gradients; NULL if it has no bias. */
const dsc_tensor *dsc_exec_weight(const dsc_exec *exec, const dsc_exec_op *op);
const dsc_tensor *dsc_exec_bias(const dsc_exec *exec, const dsc_exec_op *op);
dsc_tensor *dsc_exec_weight_grad(const dsc_exec *exec, const dsc_exec_op *op);
dsc_tensor *dsc_exec_bias_grad(const dsc_exec *exec, const dsc_exec_op *op);

#endif

/* An executor: the list of steps a graph was lowered to, and the memory they work in.
 *
 * Times, for the memory plan: step i runs forward at i, the loss at S (the number of steps), step i runs
 * backward at 2S - i. Everything backward reads lives to the end, because loss and backward may be repeated
 * after one forward. */
#ifndef DSC_MODEL_EXEC_H
#define DSC_MODEL_EXEC_H

#include "model/graph.h"

/* One layer at work; a batch norm may have taken in the ReLU, or the addition and the ReLU, behind it. */
struct dsc_step {
    const dsc_node *node; /* parameters and attributes */
    const dsc_layer_type *type;
    int inputs;
    dsc_value in[2]; /* in[1]: second term of an addition, also of a fused one */
    dsc_value out;
    int relu;             /* batch norm: a ReLU is fused */
    int view;             /* y is x, at most under another shape: nothing to compute */
    int keeps_x, keeps_y; /* read by backward */
    int backward;         /* 0: nothing at or before this layer is trained */
    double beta[2];       /* for dx: 0 for a value's first gradient, then 1 */
    dsc_tensor matrix;    /* conv2d, linear: the weights, in the type of the input */
    dsc_conv *conv;
    dsc_tensor saved[2]; /* from forward to backward: a batch norm's mean and 1/std, a max pool's places */
    dsc_tensor *x[2], *y;
    dsc_tensor *dx[2], *dy; /* dx[i] is NULL where nobody needs it */
    dsc_tensor unused_dx;   /* where dx[0] goes that is computed although nobody needs it */
};

/* What a backward pass asks of every layer. */
struct dsc_pass {
    int param_grads;
    double beta; /* for gradients of parameters */
};

struct dsc_exec {
    dsc_model *model;
    dsc_exec_mode mode;
    int64_t batch;
    dsc_step *steps;
    int64_t step_count;
    dsc_tensor *values, *grads; /* per value of the graph; data NULL: none */
    unsigned char *from_input;  /* per value: it is a view of the input */
    dsc_tensor converted;       /* room for an input of another type; data NULL in models of F32 */
    dsc_tensor half;            /* all parameters in a half type that flows between layers; data NULL: none */
    dsc_tensor work, position, stats;
    dsc_tensor unused_params[2]; /* where a batch norm's gradients go that were not asked for */
    size_t work_bytes;
    int64_t widest_norm;
    void *arena;
    size_t bytes, bytes_without_reuse;
    unsigned char *ready; /* per parameter: its gradient is final */
    int has_forward, has_loss;
    double label_smoothing; /* of the losses */
    dsc_tensor loss_scale;  /* data NULL: none */
};

/* Lowers the model's graph to steps, with fusion. Sets steps and what they keep, not yet their tensors. */
dsc_status dsc_exec_lower(dsc_exec *exec) DSC_MUST_CHECK;
/* Plans and allocates the memory of all tensors. */
dsc_status dsc_exec_place(dsc_exec *exec) DSC_MUST_CHECK;

/* The layer's parameter and its gradient; NULL where it has none. */
const dsc_tensor *dsc_step_weight(const dsc_exec *exec, const dsc_step *step);
const dsc_tensor *dsc_step_bias(const dsc_exec *exec, const dsc_step *step);
dsc_tensor *dsc_step_weight_grad(const dsc_exec *exec, const dsc_step *step);
dsc_tensor *dsc_step_bias_grad(const dsc_exec *exec, const dsc_step *step);

#endif

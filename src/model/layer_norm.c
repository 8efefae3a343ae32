/* Batch norm per channel (the last dimension), with the addition and the ReLU that lowering may have fused with it:
 *   y = [relu]( gamma (x - mean) / sqrt(var + eps) + shift [+ residual] ). */
#include "base/error.h"
#include "model/exec.h"

#include <string.h>

static const double norm_eps = 1e-5, norm_momentum = 0.1;

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    dsc_state_tensor t = {.tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {dsc_shape_features(x)}}};
    t.entry.permuted = x->flat && x->h * x->w > 1;
    memcpy(t.entry.ohwc, (int64_t[]){1, x->flat ? x->h : 1, x->flat ? x->w : 1, x->c}, sizeof t.entry.ohwc);
    int64_t later;
    node->norm = m->norm_count++;
    t.trained = 1;
    t.start = 1;
    DSC_TRY(dsc_graph_declare(m, node, "weight", &t, &node->weight));
    t.start = 0;
    DSC_TRY(dsc_graph_declare(m, node, "bias", &t, &node->bias));
    t.trained = 0;
    DSC_TRY(dsc_graph_declare(m, node, "running_mean", &t, &node->buffer));
    t.start = 1;
    DSC_TRY(dsc_graph_declare(m, node, "running_var", &t, &later));
    dsc_state_tensor counter = {.tensor = {.dtype = DSC_I64}};
    return dsc_graph_declare(m, node, "num_batches_tracked", &counter, &later);
}

static dsc_status plan(dsc_exec *exec, dsc_exec_op *op) {
    int64_t c = dsc_shape_features(&op->node->shape);
    op->keeps_y = op->relu;
    if (c > exec->widest_norm)
        exec->widest_norm = c;
    for (int i = 0; i < 2; i++) /* mean, 1 / std */
        op->saved[i] = dsc_tensor_view(exec->model->device, NULL, exec->model->options.dtype, 1, &c);
    if (op->relu && op->inputs == 1 && exec->mode == DSC_EXEC_TRAIN) /* dsc_norm_grads.applied */
        op->saved[2] =
            dsc_tensor_view(exec->model->device, NULL, exec->model->options.dtype, 2, (int64_t[]){2, c});
    return DSC_OK;
}

static dsc_norm_desc describe(const dsc_exec_op *op) {
    return (dsc_norm_desc){.eps = norm_eps, .momentum = norm_momentum, .relu = op->relu};
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op) {
    dsc_norm_desc desc = describe(op);
    if (exec->recomputing)
        desc.momentum = 0; /* the running statistics already include this batch */
    dsc_param *running = &exec->model->buffers[op->node->buffer];
    dsc_norm_params params = {.gamma = dsc_exec_weight(exec, op),
                              .shift = dsc_exec_bias(exec, op),
                              .running_mean = &running[0].value,
                              .running_var = &running[1].value};
    if (exec->mode == DSC_EXEC_EVAL)
        return dsc_op_norm_forward_eval(q, &desc, op->x[0], op->x[1], &params, op->y);
    dsc_tensor mean = op->saved[0], invstd = op->saved[1], applied = op->saved[2];
    params.applied = applied.data ? &applied : NULL;
    return dsc_op_norm_forward_train(q, &desc, op->x[0], op->x[1], &params, &mean, &invstd, op->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_exec_op *op,
                           const dsc_backward_pass *pass) {
    dsc_norm_desc desc = describe(op);
    dsc_tensor unused_dx = op->unused_dx, unused[2];
    dsc_norm_grads grads = {.dx = op->dx[0] ? op->dx[0] : &unused_dx,
                            .dresidual = op->dx[1],
                            .dgamma = dsc_exec_weight_grad(exec, op),
                            .dshift = dsc_exec_bias_grad(exec, op),
                            .beta_x = op->beta[0],
                            .beta_residual = op->beta[1],
                            .beta_p = pass->beta,
                            .applied = op->saved[2].data ? &op->saved[2] : NULL};
    if (!pass->param_grads) { /* the operation always computes them, so let it write them elsewhere */
        int64_t c = dsc_tensor_count(grads.dgamma);
        for (int i = 0; i < 2; i++)
            unused[i] = dsc_tensor_slice(&exec->unused_params[i], 0, c);
        grads.dgamma = &unused[0];
        grads.dshift = &unused[1];
        grads.beta_p = 0;
    }
    return dsc_op_norm_backward(q, &desc, op->x[0], op->relu ? op->y : NULL, op->dy,
                                dsc_exec_weight(exec, op), &op->saved[0], &op->saved[1], &grads);
}

const dsc_layer_type dsc_layer_batch_norm = {.name = "batch_norm",
                                             .named = 1,
                                             .grad_in_place = 1,
                                             .keeps_x = 1,
                                             .dx_always = 1,
                                             .shape = dsc_graph_same_shape,
                                             .declare = declare,
                                             .plan = plan,
                                             .forward = forward,
                                             .backward = backward};

dsc_status dsc_model_batch_norm(dsc_model *m, const char *name, dsc_value x, dsc_value *y) {
    return dsc_graph_add(m, &dsc_layer_batch_norm, name, &x, 1, NULL, y);
}

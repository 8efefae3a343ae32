/* Batch norm over the last dimension, with what lowering has fused behind it:
 *   y = [relu]( gamma (x - mean) / sqrt(var + eps) + shift [+ residual] ). */
#include "base/error.h"
#include "model/exec.h"

#include <string.h>

static const double norm_eps = 1e-5, norm_momentum = 0.1;

static int64_t features(const dsc_shape *shape) {
    return shape->flat ? dsc_shape_count(shape) : shape->c;
}

static dsc_status declare(dsc_model *m, dsc_node *node) {
    const dsc_shape *x = dsc_graph_input(m, node, 0);
    dsc_slot slot = {.tensor = {.dtype = m->options.dtype, .ndim = 1, .dim = {features(x)}}};
    slot.there.permuted = x->flat && x->h * x->w > 1;
    memcpy(slot.there.ohwc, (int64_t[]){1, x->flat ? x->h : 1, x->flat ? x->w : 1, x->c},
           sizeof slot.there.ohwc);
    int64_t later;
    slot.trained = 1;
    slot.start = 1;
    DSC_TRY(dsc_graph_declare(m, node, "weight", &slot, &node->weight));
    slot.start = 0;
    DSC_TRY(dsc_graph_declare(m, node, "bias", &slot, &node->bias));
    slot.trained = 0;
    DSC_TRY(dsc_graph_declare(m, node, "running_mean", &slot, &node->buffer));
    slot.start = 1;
    DSC_TRY(dsc_graph_declare(m, node, "running_var", &slot, &later));
    dsc_slot counter = {.tensor = {.dtype = DSC_I64}};
    return dsc_graph_declare(m, node, "num_batches_tracked", &counter, &later);
}

static dsc_status plan(dsc_exec *exec, dsc_step *step) {
    int64_t c = features(&step->node->shape);
    step->keeps_y = step->relu;
    if (c > exec->widest_norm)
        exec->widest_norm = c;
    for (int i = 0; i < 2; i++) /* mean, 1 / std */
        step->saved[i] = dsc_tensor_view(exec->model->device, NULL, exec->model->options.dtype, 1, &c);
    return DSC_OK;
}

static dsc_norm_desc describe(const dsc_step *step) {
    return (dsc_norm_desc){.eps = norm_eps, .momentum = norm_momentum, .relu = step->relu};
}

static dsc_status forward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step) {
    dsc_norm_desc desc = describe(step);
    dsc_param *running = &exec->model->buffers[step->node->buffer];
    dsc_norm_params params = {.gamma = dsc_step_weight(exec, step),
                              .shift = dsc_step_bias(exec, step),
                              .running_mean = &running[0].value,
                              .running_var = &running[1].value};
    if (exec->mode == DSC_EXEC_EVAL)
        return dsc_op_norm_forward_eval(q, &desc, step->x[0], step->x[1], &params, step->y);
    dsc_tensor mean = step->saved[0], invstd = step->saved[1];
    return dsc_op_norm_forward_train(q, &desc, step->x[0], step->x[1], &params, &mean, &invstd, step->y);
}

static dsc_status backward(const dsc_exec *exec, dsc_queue *q, const dsc_step *step, const dsc_pass *pass) {
    dsc_norm_desc desc = describe(step);
    dsc_tensor unused_dx = step->unused_dx, unused[2];
    dsc_norm_grads grads = {.dx = step->dx[0] ? step->dx[0] : &unused_dx,
                            .dresidual = step->dx[1],
                            .dgamma = dsc_step_weight_grad(exec, step),
                            .dshift = dsc_step_bias_grad(exec, step),
                            .beta_x = step->beta[0],
                            .beta_residual = step->beta[1],
                            .beta_p = pass->beta};
    if (!pass->param_grads) { /* the operation computes them in any case: let them go elsewhere */
        int64_t c = dsc_tensor_count(grads.dgamma);
        for (int i = 0; i < 2; i++)
            unused[i] = dsc_tensor_slice(&exec->unused_params[i], 0, c);
        grads.dgamma = &unused[0];
        grads.dshift = &unused[1];
        grads.beta_p = 0;
    }
    return dsc_op_norm_backward(q, &desc, step->x[0], step->relu ? step->y : NULL, step->dy,
                                dsc_step_weight(exec, step), &step->saved[0], &step->saved[1], &grads);
}

const dsc_layer_type dsc_layer_batch_norm = {.name = "batch_norm",
                                             .keeps_x = 1,
                                             .dx_always = 1,
                                             .shape = dsc_graph_same_shape,
                                             .declare = declare,
                                             .plan = plan,
                                             .forward = forward,
                                             .backward = backward};

dsc_status dsc_model_batch_norm(dsc_model *m, const char *name, dsc_value x, dsc_value *y) {
    dsc_node node = dsc_graph_node(&dsc_layer_batch_norm, name ? name : "", x);
    return dsc_graph_add(m, &node, y);
}

#include "model/own_layers.h"

#include "base/error.h"
#include "descent/ops.h"

#include <math.h>
#include <stdlib.h>

/* Element i of a tensor of F32 or F64 in memory of the host. */
static double get(const dsc_tensor *t, int64_t i) {
    return t->dtype == DSC_F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static void set(dsc_tensor *t, int64_t i, double beta, double value) {
    double old = beta == 0 ? 0 : beta * get(t, i);
    if (t->dtype == DSC_F64)
        ((double *)t->data)[i] = old + value;
    else
        ((float *)t->data)[i] = (float)(old + value);
}

/* ---- scale and shift ---- */

static dsc_status scale_declare(dsc_layer_declaration *d) {
    d->y = d->x[0];
    DSC_TRY(dsc_layer_declare_param(d, "scale", 1, &d->x[0].c, 0, 1));
    return dsc_layer_declare_param(d, "shift", 1, &d->x[0].c, 0, 0);
}

static dsc_status scale_forward(dsc_queue *q, const dsc_layer_call *call) {
    (void)q;
    int64_t n = dsc_tensor_count(call->y), c = dsc_tensor_count(call->param[0]);
    for (int64_t i = 0; i < n; i++)
        set(call->y, i, 0, get(call->param[0], i % c) * get(call->x[0], i) + get(call->param[1], i % c));
    return DSC_OK;
}

static dsc_status scale_backward(dsc_queue *q, const dsc_layer_call *call) {
    (void)q;
    int64_t n = dsc_tensor_count(call->dy), c = dsc_tensor_count(call->param[0]);
    if (call->y)
        return dsc_error_set(DSC_E_INTERNAL, "y was not asked for");
    for (int64_t k = 0; k < c && call->dparam[0]; k++) {
        double dscale = 0, dshift = 0;
        for (int64_t i = k; i < n; i += c) {
            dscale += get(call->dy, i) * get(call->x[0], i);
            dshift += get(call->dy, i);
        }
        set(call->dparam[0], k, call->dparam_beta, dscale);
        set(call->dparam[1], k, call->dparam_beta, dshift);
    }
    for (int64_t i = 0; i < n && call->dx[0]; i++)
        set(call->dx[0], i, call->dx_beta[0], get(call->param[0], i % c) * get(call->dy, i));
    return DSC_OK;
}

dsc_status own_scale_shift(dsc_model *m, const char *name, dsc_value x, dsc_value *y) {
    dsc_layer_def def;
    dsc_layer_def_init(&def);
    def.kind = "scale-shift";
    def.needs_y = 0;
    def.declare = scale_declare;
    def.forward = scale_forward;
    def.backward = scale_backward;
    return dsc_model_layer(m, name, &def, &x, 1, NULL, y);
}

/* ---- gate ---- */

static dsc_status gate_declare(dsc_layer_declaration *d) {
    int64_t numbers = d->x[0].h * d->x[0].w * d->x[0].c;
    if (d->inputs != 2 || numbers != d->x[1].h * d->x[1].w * d->x[1].c)
        return dsc_error_set(DSC_E_INVALID, "two inputs of equal size are needed");
    d->y = d->x[0];
    DSC_TRY(dsc_layer_declare_saved(d, d->value_dtype, 1, 1, &numbers));
    DSC_TRY(
        dsc_layer_declare_temporary(d, DSC_F64, 0, 1, (int64_t[]){3})); /* so that the next is not first */
    return dsc_layer_declare_temporary(d, d->value_dtype, 1, 1, &numbers);
}

static dsc_status gate_forward(dsc_queue *q, const dsc_layer_call *call) {
    (void)q;
    int64_t n = dsc_tensor_count(call->y);
    for (int64_t i = 0; i < n; i++)
        set(call->temporary[1], i, 0, tanh(get(call->x[1], i)));
    for (int64_t i = 0; i < n; i++) {
        set(call->saved[0], i, 0, get(call->temporary[1], i));
        set(call->y, i, 0, get(call->x[0], i) * get(call->temporary[1], i));
    }
    return DSC_OK;
}

static dsc_status gate_backward(dsc_queue *q, const dsc_layer_call *call) {
    (void)q;
    int64_t n = dsc_tensor_count(call->dy);
    for (int64_t i = 0; i < n; i++)
        set(call->temporary[1], i, 0, get(call->dy, i));
    for (int64_t i = 0; i < n && call->dx[0]; i++)
        set(call->dx[0], i, call->dx_beta[0], get(call->temporary[1], i) * get(call->saved[0], i));
    for (int64_t i = 0; i < n && call->dx[1]; i++) {
        double s = tanh(get(call->x[1], i)); /* saved, too, but this shows that x[1] is kept */
        set(call->dx[1], i, call->dx_beta[1], get(call->temporary[1], i) * get(call->x[0], i) * (1 - s * s));
    }
    return DSC_OK;
}

dsc_status own_gate(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) {
    dsc_layer_def def;
    dsc_layer_def_init(&def);
    def.kind = "gate";
    def.needs_y = 0;
    def.declare = gate_declare;
    def.forward = gate_forward;
    def.backward = gate_backward;
    return dsc_model_layer(m, NULL, &def, (dsc_value[]){a, b}, 2, NULL, y);
}

/* ---- negate ---- */

static dsc_status negate_declare(dsc_layer_declaration *d) {
    d->y = d->x[0];
    return DSC_OK;
}

static dsc_status negate_forward(dsc_queue *q, const dsc_layer_call *call) {
    return dsc_op_axpby(q, -1, call->x[0], 0, call->y);
}

static dsc_status negate_backward(dsc_queue *q, const dsc_layer_call *call) {
    return call->dx[0] ? dsc_op_axpby(q, -1, call->dy, call->dx_beta[0], call->dx[0]) : DSC_OK;
}

dsc_status own_negate(dsc_model *m, dsc_value x, dsc_value *y) {
    dsc_layer_def def;
    dsc_layer_def_init(&def);
    def.kind = "negate";
    def.needs_x = def.needs_y = 0;
    def.in_place = 1;
    def.declare = negate_declare;
    def.forward = negate_forward;
    def.backward = negate_backward;
    return dsc_model_layer(m, NULL, &def, &x, 1, NULL, y);
}

/* ---- dense ---- */

typedef struct dense {
    int64_t features;
    int bias;
} dense;

static dsc_status dense_declare(dsc_layer_declaration *d) {
    const dense *own = d->attributes;
    int64_t in = d->x[0].h * d->x[0].w * d->x[0].c;
    d->y = (dsc_shape){.flat = 1, .h = 1, .w = 1, .c = own->features};
    d->kfac = DSC_KFAC_AS_LINEAR;
    d->kfac_bias = own->bias ? 1 : -1;
    DSC_TRY(
        dsc_layer_declare_param(d, "weight", 2, (int64_t[]){own->features, in}, sqrt(2.0 / (double)in), 0));
    return own->bias ? dsc_layer_declare_param(d, "bias", 1, &own->features, 0, 0) : DSC_OK;
}

/* A map as a vector for each sample. */
static dsc_tensor as_rows(const dsc_layer_call *call, const dsc_tensor *t) {
    return dsc_tensor_view(t->device, t->data, t->dtype, 2,
                           (int64_t[]){call->batch, dsc_tensor_count(t) / call->batch});
}

static dsc_status dense_forward(dsc_queue *q, const dsc_layer_call *call) {
    const dense *own = call->attributes;
    const dsc_tensor x = as_rows(call, call->x[0]);
    DSC_TRY(dsc_op_gemm(q, 0, 1, 1, &x, call->param_as_value[0], 0, call->y));
    return own->bias ? dsc_op_bias_add(q, call->param[1], call->y) : DSC_OK;
}

static dsc_status dense_backward(dsc_queue *q, const dsc_layer_call *call) {
    const dsc_tensor x = as_rows(call, call->x[0]);
    if (call->dparam[0])
        DSC_TRY(dsc_op_gemm(q, 1, 0, 1, call->dy, &x, call->dparam_beta, call->dparam[0]));
    if (call->params > 1 && call->dparam[1])
        DSC_TRY(dsc_op_bias_grad(q, call->dy, call->dparam_beta, call->dparam[1]));
    if (!call->dx[0])
        return DSC_OK;
    dsc_tensor dx = as_rows(call, call->dx[0]);
    return dsc_op_gemm(q, 0, 0, 1, call->dy, call->param_as_value[0], call->dx_beta[0], &dx);
}

dsc_status own_dense(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias, dsc_value *y) {
    dsc_layer_def def;
    dsc_layer_def_init(&def);
    def.kind = "dense";
    def.attribute_bytes = sizeof(dense);
    def.needs_y = 0;
    def.declare = dense_declare;
    def.forward = dense_forward;
    def.backward = dense_backward;
    return dsc_model_layer(m, name, &def, &x, 1, &(dense){features, bias}, y);
}

/* ---- networks ---- */

/* Values with several readers, of which one reads a value twice; an in-place layer before and after
 * others. */
static dsc_status build_gates(dsc_model *m, dsc_value *logits) {
    dsc_value x, a, b, c;
    DSC_TRY(dsc_model_input(m, 3, 2, 4, &x));
    DSC_TRY(own_scale_shift(m, "in", x, &x));
    DSC_TRY(own_negate(m, x, &a));
    DSC_TRY(own_scale_shift(m, "left", x, &b));
    DSC_TRY(own_gate(m, a, b, &c));
    DSC_TRY(own_negate(m, c, &c));
    DSC_TRY(own_gate(m, c, c, &a));
    DSC_TRY(dsc_model_add(m, a, x, &a));
    DSC_TRY(dsc_model_relu(m, a, &a));
    DSC_TRY(dsc_model_flatten(m, a, &a));
    return dsc_model_linear(m, "fc", a, NET_CLASSES, 1, logits);
}

/* Between built-in layers, before a batch norm that fusion changes. */
static dsc_status build_mixed(dsc_model *m, dsc_value *logits) {
    dsc_value x, y;
    dsc_conv2d_shape conv = square_conv(4, 3);
    DSC_TRY(dsc_model_input(m, 5, 5, 2, &x));
    DSC_TRY(dsc_model_conv2d(m, "conv", x, &conv, 0, &x));
    DSC_TRY(own_scale_shift(m, "scale", x, &y));
    DSC_TRY(dsc_model_batch_norm(m, "bn", y, &y));
    DSC_TRY(dsc_model_add(m, y, x, &y));
    DSC_TRY(dsc_model_relu(m, y, &y));
    DSC_TRY(own_gate(m, y, x, &y));
    DSC_TRY(dsc_model_flatten(m, y, &y));
    DSC_TRY(own_dense(m, "fc1", y, 6, 0, &y));
    DSC_TRY(own_negate(m, y, &y));
    return own_dense(m, "fc2", y, NET_CLASSES, 1, logits);
}

const net own_nets[] = {
    {"own gates", build_gates, 3, 2, 4, 0, 0},
    {"own and built-in", build_mixed, 5, 5, 2, 1, 0},
    {NULL, NULL, 0, 0, 0, 0, 0},
};

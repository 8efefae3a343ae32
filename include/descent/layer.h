/* Custom layers: a kind of layer that a program defines and adds to a model beside the built-in ones.
 *
 * A definition is three functions. `declare` runs once, when the layer is added: it checks the shapes of the
 * inputs, sets the shape of the output and declares parameters and other tensors. `forward` and `backward`
 * run in every step: they put operations on tensors of the device into a queue (descent/ops.h declares the
 * library's operations; on a host device plain C code on tensor->data works, too). The library plans all
 * memory, keeps what backward needs, and saves and exchanges the parameters like those of built-in layers. A
 * layer that declares itself linear is preconditioned by K-FAC.
 *
 *     y = scale x + shift, with one scale and one shift per channel:
 *
 *     static dsc_status declare(dsc_layer_declaration *d) {
 *         d->y = d->x[0];
 *         dsc_status status = dsc_layer_declare_param(d, "scale", 1, &d->x[0].c, 0, 1);
 *         return status == DSC_OK ? dsc_layer_declare_param(d, "shift", 1, &d->x[0].c, 0, 0) : status;
 *     } */
#ifndef DSC_LAYER_H
#define DSC_LAYER_H

#include "descent/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of one layer: inputs, parameters, saved tensors, temporary tensors. */
enum { DSC_LAYER_INPUTS = 8, DSC_LAYER_PARAMS = 8, DSC_LAYER_TENSORS = 4 };

/* How K-FAC treats a layer. */
typedef enum dsc_kfac_as {
    DSC_KFAC_AS_NONE, /* its gradients are left as they are */
    /* As y = x W^T + b on rows: a is x[0] as [batch, in], g the gradient at y as [batch, out]; W is a
     * parameter [out, in], b one of [out]. */
    DSC_KFAC_AS_LINEAR,
} dsc_kfac_as;

/* What `declare` reads and fills in. Made by the library; the pointers are valid during the call only. */
typedef struct dsc_layer_declaration {
    size_t size;
    /* The layer's copy of its attributes, which `declare` may still change. */
    void *attributes;
    int inputs;
    /* Shapes of the inputs, [inputs], of one sample. */
    const dsc_shape *x;
    /* Types of the values between layers (x, y and their gradients) and of the parameters. */
    dsc_dtype value_dtype, param_dtype;
    /* To be set: the shape of the output, of one sample. */
    dsc_shape y;
    /* To be set if the layer is linear: numbers of weight and bias in the order in which they were declared;
     * kfac_bias -1: none. Default DSC_KFAC_AS_NONE, 0, -1. */
    dsc_kfac_as kfac;
    int kfac_weight, kfac_bias;
} dsc_layer_declaration;

/* Declares the parameter LAYER.name of the given shape. Its initial values are normal with deviation `std`,
 * or all `start` when std is 0. */
DSC_API dsc_status dsc_layer_declare_param(dsc_layer_declaration *declaration, const char *name, int ndim,
                                           const int64_t *dim, double std, double start) DSC_MUST_CHECK;
/* Declares a tensor [dim], or [batch, dim] if per_sample is 1, that forward writes and backward reads. */
DSC_API dsc_status dsc_layer_declare_saved(dsc_layer_declaration *declaration, dsc_dtype dtype,
                                           int per_sample, int ndim, const int64_t *dim) DSC_MUST_CHECK;
/* The same for a temporary tensor: it belongs to one call of forward or backward, and its contents are
 * undefined when the call begins. */
DSC_API dsc_status dsc_layer_declare_temporary(dsc_layer_declaration *declaration, dsc_dtype dtype,
                                               int per_sample, int ndim, const int64_t *dim) DSC_MUST_CHECK;

/* What `forward` and `backward` get. Made by the library; the pointers are valid during the call only, the
 * memory of the tensors until the work that is put into the queue is done. Tensors of values are
 * [batch, h, w, c], or [batch, features] for vectors. */
typedef struct dsc_layer_call {
    size_t size;
    const void *attributes;
    int training; /* 0: an executor for evaluation */
    int64_t batch;
    int inputs, params;
    /* [inputs]. In backward NULL when the definition says needs_x = 0. */
    const dsc_tensor *const *x;
    /* In forward to be written, in backward as it was; NULL in backward when needs_y is 0. */
    dsc_tensor *y;
    /* [params], as declared, in the type of the parameters; and the same numbers in the type of the values,
     * which matrix products need. The two types differ when activations have a half type. */
    const dsc_tensor *const *param;
    const dsc_tensor *const *param_as_value;
    /* As declared. */
    dsc_tensor *const *saved;
    dsc_tensor *const *temporary;
    /* Backward only. The gradient at y; and the gradients to compute:
     *     dx[i] = dx_beta[i] dx[i] + (gradient at x[i])         dparam[i] = dparam_beta dparam[i] + (...)
     * beta is 0 (the contents are undefined: overwrite them) or 1 (a gradient is there already: add to it),
     * just as the library's operations take it. dx[i] and dparam[i] are NULL where a gradient is not needed.
     * Compute dx[0] first, then dx[1] and so on: two inputs may be the same value. */
    const dsc_tensor *dy;
    dsc_tensor *const *dx;
    const double *dx_beta; /* [inputs] */
    dsc_tensor *const *dparam;
    double dparam_beta;
} dsc_layer_call;

typedef struct dsc_layer_def {
    size_t size;
    /* Name of the kind, for messages: "scale-shift". */
    const char *kind;
    /* Size in bytes of the attributes: a plain struct that the kind defines, and that every layer has a copy
     * of. 0: none. */
    size_t attribute_bytes;
    /* What backward reads besides dy: all inputs, the output. Default 1 and 1; 0 saves their memory. */
    int needs_x, needs_y;
    /* 1: y may share its memory with x[0], and dx[0] with dy. For element-wise layers with one input and
     * needs_x = 0. Default 0. */
    int in_place;
    /* All three are required. On a GPU a call may be recorded once and replayed in later steps, so forward
     * and backward must do nothing but put operations into the queue. They may be called by several threads
     * at once, for different executors. With dsc_model_options.recompute, forward may be called a second time in a step:
     * it must then give the same result. */
    dsc_status (*declare)(dsc_layer_declaration *declaration);
    dsc_status (*forward)(dsc_queue *q, const dsc_layer_call *call);
    dsc_status (*backward)(dsc_queue *q, const dsc_layer_call *call);
} dsc_layer_def;
DSC_API void dsc_layer_def_init_sized(dsc_layer_def *def, size_t size);
#define dsc_layer_def_init(def) dsc_layer_def_init_sized((def), sizeof *(def))

/* Adds a layer of this definition to the model, as dsc_model_linear and the others do. Definition and
 * attributes are copied; attributes may be NULL when the kind has none. `name` may be NULL for layers without
 * parameters. When a callback fails, its status is returned, with the message that it set by
 * dsc_error_set. */
DSC_API dsc_status dsc_model_layer(dsc_model *m, const char *name, const dsc_layer_def *def,
                                   const dsc_value *inputs, int count, const void *attributes,
                                   dsc_value *y) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

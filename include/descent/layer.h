/* Custom layers: kinds of layer that a program defines and adds to a model beside the built-in ones.
 *
 * A definition consists of three functions. `declare` runs once, when the layer is added: it checks the shapes
 * of the inputs, sets the shape of the output and declares parameters and other tensors. `forward` and
 * `backward` run in every step: they put operations on tensors of the device into a queue (descent/ops.h
 * declares the library's operations; on a host device plain C code on tensor->data works as well). The library
 * plans all memory, keeps what backward needs, and saves and exchanges the parameters like those of built-in
 * layers. A layer that declares itself linear is preconditioned by K-FAC.
 *
 * For example, the declaration of y = scale x + shift, with one scale and one shift per channel:
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

/* The most inputs and parameters of one layer, and the most saved and the most temporary tensors. */
enum { DSC_LAYER_INPUTS = 8, DSC_LAYER_PARAMS = 8, DSC_LAYER_TENSORS = 4 };

/* How K-FAC treats a layer. */
typedef enum dsc_kfac_as {
    DSC_KFAC_AS_NONE, /* its gradients are left as they are */
    /* As a linear layer y = x W^T + b: K-FAC's a is x[0] as [batch, in], its g is the gradient at y as
     * [batch, out]; W is a parameter [out, in], and b, if there is one, a parameter [out]. */
    DSC_KFAC_AS_LINEAR,
} dsc_kfac_as;

/* What `declare` reads and fills in. Created by the library; the pointers are valid during the call only. */
typedef struct dsc_layer_declaration {
    size_t size;
    /* The layer's own copy of its attributes, which `declare` may still change. */
    void *attributes;
    int inputs;
    /* The shape of one sample of each input: [inputs]. */
    const dsc_shape *x;
    /* Types of the values between layers (x, y and their gradients) and of the parameters. */
    dsc_dtype value_dtype, param_dtype;
    /* `declare` must set this: the shape of one sample of the output. */
    dsc_shape y;
    /* `declare` sets these if the layer is linear: the numbers of weight and bias, counted from 0 in the order in
     * which the parameters are declared; kfac_bias -1: no bias. Defaults: DSC_KFAC_AS_NONE, 0, -1. */
    dsc_kfac_as kfac;
    int kfac_weight, kfac_bias;
} dsc_layer_declaration;

/* Declares the parameter LAYER.name, where LAYER is the name of the layer, of shape dim[ndim]. Its initial values are
 * normally distributed around 0 with standard deviation `std`; if std is 0, all are `start`. */
DSC_API dsc_status dsc_layer_declare_param(dsc_layer_declaration *declaration, const char *name, int ndim,
                                           const int64_t *dim, double std, double start) DSC_MUST_CHECK;
/* Declares a tensor that forward writes and backward reads, of shape dim[ndim], or [batch, dim] if per_sample is 1. */
DSC_API dsc_status dsc_layer_declare_saved(dsc_layer_declaration *declaration, dsc_dtype dtype,
                                           int per_sample, int ndim, const int64_t *dim) DSC_MUST_CHECK;
/* Declares a temporary tensor in the same way: it belongs to one call of forward or backward, and its contents
 * are undefined when the call begins. */
DSC_API dsc_status dsc_layer_declare_temporary(dsc_layer_declaration *declaration, dsc_dtype dtype,
                                               int per_sample, int ndim, const int64_t *dim) DSC_MUST_CHECK;

/* The arguments of `forward` and `backward`. Created by the library; the pointers are valid during the call only, the
 * memory of the tensors until the work that the call puts into the queue is done. Inputs, outputs and their gradients
 * are [batch, h, w, c], or [batch, features] for vectors. */
typedef struct dsc_layer_call {
    size_t size;
    const void *attributes;
    int training; /* 1: the executor is one for training; 0: for evaluation */
    int64_t batch;
    int inputs, params;
    /* The inputs: [inputs]. NULL in backward if the definition has needs_x = 0. */
    const dsc_tensor *const *x;
    /* The output: forward writes it, backward may read it. NULL in backward if the definition has needs_y = 0. */
    dsc_tensor *y;
    /* The parameters in the order of their declaration: [params]. `param` has them in the type of the parameters,
     * `param_as_value` in the type of the values, which matrix products need. The types differ when activations
     * have a half type. */
    const dsc_tensor *const *param;
    const dsc_tensor *const *param_as_value;
    /* The saved and the temporary tensors, in the order of their declaration. */
    dsc_tensor *const *saved;
    dsc_tensor *const *temporary;
    /* Backward only: the gradient dy at y, and the gradients that backward computes,
     *     dx[i] = dx_beta[i] dx[i] + (gradient at x[i])         dparam[i] = dparam_beta dparam[i] + (...)
     * where a beta is 0 (the old contents are undefined: overwrite them) or 1 (add to the gradient that is there),
     * as the library's operations take it. dx[i] or dparam[i] is NULL if that gradient is not needed.
     * Compute dx[0] first, then dx[1] and so on, because two inputs may be the same value. */
    const dsc_tensor *dy;
    dsc_tensor *const *dx;
    const double *dx_beta; /* [inputs] */
    dsc_tensor *const *dparam;
    double dparam_beta;
} dsc_layer_call;

/* The definition of a kind of layer. */
typedef struct dsc_layer_def {
    size_t size;
    /* The name of the kind, used in messages, such as "scale-shift". */
    const char *kind;
    /* The size in bytes of the attributes, a plain struct that the kind defines; every layer has its own copy.
     * 0 (default): no attributes. */
    size_t attribute_bytes;
    /* Whether backward reads, besides dy, the inputs (needs_x) and the output (needs_y). Default 1; 0 saves their
     * memory. */
    int needs_x, needs_y;
    /* 1: y may share its memory with x[0], and dx[0] with dy. For element-wise layers with one input and
     * needs_x = 0. Default 0. */
    int in_place;
    /* All three functions are required. On a GPU a call may be recorded once and replayed in later steps, so forward
     * and backward must do nothing but put operations into the queue. Several threads may call them at once, for
     * different executors. With dsc_model_options.recompute, forward may be called a second time in a step, and must
     * then give the same result. */
    dsc_status (*declare)(dsc_layer_declaration *declaration);
    dsc_status (*forward)(dsc_queue *q, const dsc_layer_call *call);
    dsc_status (*backward)(dsc_queue *q, const dsc_layer_call *call);
} dsc_layer_def;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_layer_def_init_sized(dsc_layer_def *def, size_t size);
#define dsc_layer_def_init(def) dsc_layer_def_init_sized((def), sizeof *(def))

/* Adds a layer of this definition to the model, as dsc_model_linear and the others do for built-in layers: it takes
 * inputs[count] and writes its output to *y. Definition and attributes are copied; attributes may be NULL if the kind
 * has none. `name` may be NULL for layers without parameters. If a callback fails, its status is returned, with the
 * message that it set with dsc_error_set. */
DSC_API dsc_status dsc_model_layer(dsc_model *m, const char *name, const dsc_layer_def *def,
                                   const dsc_value *inputs, int count, const void *attributes,
                                   dsc_value *y) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

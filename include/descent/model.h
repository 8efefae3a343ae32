/* Models: a static graph of layers, its parameters, and executors that run it.
 *
 * To build a model, create it, add layers (each takes values and gives a value), and seal it. Shapes are checked as
 * layers are added. Sealing allocates and initialises the parameters, all values in one block of memory and all
 * gradients in another. Then any number of executors, each with its own batch size, plan their memory once and run
 * the model. Activations are NHWC, convolution weights OHWI, linear weights [out, in].
 *
 * Names and structs that are passed in are copied. Pointers that a function returns belong to the model or the
 * executor, and are valid until it is destroyed. Functions that return a status refuse a NULL object with
 * DSC_E_INVALID; all others must not be passed NULL. Only one thread at a time may use a model. */
#ifndef DSC_MODEL_H
#define DSC_MODEL_H

#include "descent/device.h"
#include "descent/options.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_model dsc_model;
typedef struct dsc_exec dsc_exec;
typedef int dsc_value; /* a value in the graph of one model */

/* The shape of one sample of a value: a map of h x w x c numbers, or, if flat is 1, a vector of h*w*c features. A
 * vector that was flattened from a map keeps the map's h, w and c, because PyTorch flattens in the order c, h, w;
 * every other vector is 1 x 1 x features. */
typedef struct dsc_shape {
    int flat;
    int64_t h, w, c;
} dsc_shape;

typedef struct dsc_model_options {
    size_t size;
    /* The seed of the initial weights and of dropout; default 42. */
    uint64_t seed;
    /* The type of the parameters: DSC_F32 (default); or DSC_F64 on `ref` and `cpu`, for checks. */
    dsc_dtype dtype;
    /* The label smoothing of the training loss; default 0. Evaluation uses none. */
    double label_smoothing;
    /* The type of the values between layers: DSC_F32 (default) stands for the type of the parameters; on a GPU also
     * DSC_BF16 and DSC_F16, where parameters, their gradients and statistics stay fp32. */
    dsc_dtype activations;
    /* The name of the model in metrics and checkpoints, at most 63 characters; copied. NULL (default): "custom",
     * or the name in the zoo. */
    const char *name;
    /* 1: activation checkpointing. Training executors keep only some of the values between layers for the backward
     * pass, and compute the others again from them, part by part. That takes less memory and up to a third more time.
     * Gradients are bitwise the same, except for half types on a GPU where a GELU (tanh) lies between two linear
     * layers: without recompute it is fused into their products and rounded once less. 0 (default): all are kept. */
    int recompute;
    /* 1: all parameters and statistics start as zeros instead of their initial values, for a model that is only
     * described, or read from a file. That saves the time for drawing them. 0 (default): they are drawn. */
    int zeros;
} dsc_model_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_model_options_init_sized(dsc_model_options *options, size_t size);
#define dsc_model_options_init(options) dsc_model_options_init_sized((options), sizeof *(options))

/* Creates an empty model, which the caller destroys with dsc_model_destroy. The device stays the caller's and must
 * outlive it. options may be NULL: the defaults. */
DSC_API dsc_status dsc_model_create(dsc_device *device, const dsc_model_options *options,
                                    dsc_model **out) DSC_MUST_CHECK;
/* Destroys a model and sets *model to NULL. Its executors must have been destroyed before. Accepts NULL and
 * *model == NULL. */
DSC_API void dsc_model_destroy(dsc_model **model);

/* ---- building ----
 * Every function adds one layer and writes its output value to *y (for custom layers see descent/layer.h).
 * If it fails, the message names the layer and the reason, and the model is unchanged. `name` becomes the
 * prefix of the layer's parameters (NAME.weight, NAME.bias). */

/* Adds the input, h x w x c numbers per sample. One input per model. */
DSC_API dsc_status dsc_model_input(dsc_model *m, int64_t h, int64_t w, int64_t c,
                                   dsc_value *y) DSC_MUST_CHECK;
/* Adds the input of a model of sequences: `positions` token numbers per sample, as floating-point numbers, which
 * represent them exactly up to 2^24. The output is a sequence, that is, a map of height `positions` and width 1, with
 * one channel, for dsc_model_embedding. One input per model. Shorter sequences are padded at the end with tokens of -1,
 * whose labels must be negative as well (dsc_attention_options.padded). */
DSC_API dsc_status dsc_model_tokens(dsc_model *m, int64_t positions, dsc_value *y) DSC_MUST_CHECK;
/* Adds an embedding: looks up the tokens' rows in the table NAME.weight[vocabulary, features], whose initial values are
 * normal with standard deviation std > 0 (GPT-2 and BERT: 0.02). A token outside the vocabulary gives zeros. */
DSC_API dsc_status dsc_model_embedding(dsc_model *m, const char *name, dsc_value tokens, int64_t vocabulary,
                                       int64_t features, double std, dsc_value *y) DSC_MUST_CHECK;
/* Adds a layer of learnt position embeddings: y = x + NAME.weight[position]; initial values as above. */
DSC_API dsc_status dsc_model_position_embedding(dsc_model *m, const char *name, dsc_value x, double std,
                                                dsc_value *y) DSC_MUST_CHECK;
/* Adds a linear layer: y = x weight^T + bias, weight [features, features of x]; bias 0: no bias. x is a vector, or a
 * sequence (width 1), to each position of which the layer is applied. */
DSC_API dsc_status dsc_model_linear(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias,
                                    dsc_value *y) DSC_MUST_CHECK;
typedef struct dsc_linear_options {
    size_t size;
    /* 1 (default): there is a bias. */
    int bias;
    /* The standard deviation of the initial weights; 0 (default): He normal, with the features of x as fan-in. */
    double std;
    /* 1: files store the weight as [features of x, features], as GPT-2's do; 0 (default): as [features, features of
     * x]. */
    int in_out;
    /* The output value of an embedding whose table this layer also uses as its weight: both share one parameter, whose
     * gradient is the sum of both gradients. Files may store it a second time as NAME.weight, which must then equal the
     * table. The layer is not one of dsc_model_layers. -1 (default): the layer has a weight of its own. */
    dsc_value tied;
    /* The number of parts of equal size that the features consist of, such as 3 for the queries, keys and values of
     * attention; K-FAC gives each part a factor G of its own. Default 1. */
    int64_t blocks;
} dsc_linear_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_linear_options_init_sized(dsc_linear_options *options, size_t size);
#define dsc_linear_options_init(options) dsc_linear_options_init_sized((options), sizeof *(options))
/* Adds a linear layer with options, which may be NULL: the defaults. */
DSC_API dsc_status dsc_model_linear_with(dsc_model *m, const char *name, dsc_value x, int64_t features,
                                         const dsc_linear_options *options, dsc_value *y) DSC_MUST_CHECK;
/* Adds a convolution. The caller sets shape->out_c, the kernel, and whatever else differs from what
 * dsc_conv2d_shape_init sets; in_h, in_w and in_c are taken from x. bias 0: no bias. */
DSC_API dsc_status dsc_model_conv2d(dsc_model *m, const char *name, dsc_value x,
                                    const dsc_conv2d_shape *shape, int bias, dsc_value *y) DSC_MUST_CHECK;
/* Adds a transposed convolution like PyTorch's ConvTranspose2d: every pixel of x adds its numbers times the kernel to
 * the output, `stride` pixels apart, and `pad` rows and columns are cut off at each side. In each direction
 *   out = (in - 1) stride - 2 pad + dilation (kernel - 1) + 1 + extra,
 * where extra, which is less than the stride, is PyTorch's output_padding. Shape and bias are given as for
 * dsc_model_conv2d. The weight is [in, out / groups, kernel_h, kernel_w] in PyTorch and in files, but
 * [in, kernel_h, kernel_w, out / groups] here. Initial weights are He normal, with the mean number of inputs per output
 * as fan-in. With several groups the layer is not among dsc_model_layers, and K-FAC leaves its gradients as they are;
 * the gradient of the bias is never preconditioned. */
DSC_API dsc_status dsc_model_conv_transpose2d(dsc_model *m, const char *name, dsc_value x,
                                              const dsc_conv2d_shape *shape, int bias,
                                              dsc_value *y) DSC_MUST_CHECK;
/* Adds a batch norm with eps 1e-5 and momentum 0.1. It has the parameters NAME.weight and NAME.bias and the buffers
 * NAME.running_mean, .running_var and .num_batches_tracked. */
DSC_API dsc_status dsc_model_batch_norm(dsc_model *m, const char *name, dsc_value x,
                                        dsc_value *y) DSC_MUST_CHECK;
/* This norm and the next two normalise each sample on its own, in training and evaluation alike, with eps > 0 added to
 * the variance. Adds a layer norm over the channels of each position (for a vector, over its features), with
 * NAME.weight, and NAME.bias unless bias is 0. GPT-2 uses eps 1e-5, BERT 1e-12. */
DSC_API dsc_status dsc_model_layer_norm(dsc_model *m, const char *name, dsc_value x, double eps, int bias,
                                        dsc_value *y) DSC_MUST_CHECK;
/* Adds an RMS norm, which does not subtract the mean: y = weight x / sqrt(mean of x^2 + eps), with NAME.weight. */
DSC_API dsc_status dsc_model_rms_norm(dsc_model *m, const char *name, dsc_value x, double eps,
                                      dsc_value *y) DSC_MUST_CHECK;
/* Adds a group norm over each of `groups` groups of neighbouring channels, at all positions of a sample, with
 * NAME.weight and NAME.bias. */
DSC_API dsc_status dsc_model_group_norm(dsc_model *m, const char *name, dsc_value x, int64_t groups,
                                        double eps, dsc_value *y) DSC_MUST_CHECK;
/* Adds a ReLU: y = max(x, 0). */
DSC_API dsc_status dsc_model_relu(dsc_model *m, dsc_value x, dsc_value *y) DSC_MUST_CHECK;
/* Element-wise activation functions. */
typedef enum dsc_activation {
    DSC_ACTIVATION_RELU,      /* max(x, 0), as dsc_model_relu */
    DSC_ACTIVATION_GELU,      /* x Phi(x), Phi the cumulative normal distribution */
    DSC_ACTIVATION_GELU_TANH, /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, as in GPT-2 */
    DSC_ACTIVATION_SILU,      /* x / (1 + e^-x) */
    DSC_ACTIVATION_TANH,
    DSC_ACTIVATION_SIGMOID /* 1 / (1 + e^-x) */
} dsc_activation;
/* Adds an activation function. */
DSC_API dsc_status dsc_model_activation(dsc_model *m, dsc_value x, dsc_activation activation,
                                        dsc_value *y) DSC_MUST_CHECK;
/* Add max or average pooling over windows of kernel x kernel pixels, `stride` pixels apart, with `pad` pixels of
 * padding on each side. */
DSC_API dsc_status dsc_model_max_pool(dsc_model *m, dsc_value x, int64_t kernel, int64_t stride, int64_t pad,
                                      dsc_value *y) DSC_MUST_CHECK;
DSC_API dsc_status dsc_model_avg_pool(dsc_model *m, dsc_value x, int64_t kernel, int64_t stride, int64_t pad,
                                      dsc_value *y) DSC_MUST_CHECK;
/* Adds a mean over height and width, which gives one vector per sample. */
DSC_API dsc_status dsc_model_global_pool(dsc_model *m, dsc_value x, dsc_value *y) DSC_MUST_CHECK;
/* Adds the sum y = a + b of two values of the same shape. */
DSC_API dsc_status dsc_model_add(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) DSC_MUST_CHECK;
/* Adds a concatenation: the channels of a, then those of b; both are maps of equal height and width. */
DSC_API dsc_status dsc_model_concat(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) DSC_MUST_CHECK;
/* Adds a crop to the h x w pixels in the middle of a map; if an odd number of rows or columns is cut off, one more at
 * the bottom or right. */
DSC_API dsc_status dsc_model_crop(dsc_model *m, dsc_value x, int64_t h, int64_t w,
                                  dsc_value *y) DSC_MUST_CHECK;
/* Adds an upsampling of a map to twice its height and width. */
DSC_API dsc_status dsc_model_upsample(dsc_model *m, dsc_value x, dsc_upsample_kind kind,
                                      dsc_value *y) DSC_MUST_CHECK;
/* Adds the parameter-free shortcut of the CIFAR ResNets: takes every stride-th pixel, and pads the channels with zeros
 * on both sides to `channels`. */
DSC_API dsc_status dsc_model_shortcut(dsc_model *m, dsc_value x, int64_t stride, int64_t channels,
                                      dsc_value *y) DSC_MUST_CHECK;
/* Adds a layer that turns a map into a vector of the same numbers. */
DSC_API dsc_status dsc_model_flatten(dsc_model *m, dsc_value x, dsc_value *y) DSC_MUST_CHECK;
/* Adds dropout. In training every number is set to 0 with probability `rate`, and otherwise multiplied by
 * 1 / (1 - rate); in evaluation y = x. */
DSC_API dsc_status dsc_model_dropout(dsc_model *m, dsc_value x, double rate, dsc_value *y) DSC_MUST_CHECK;

/* The options of multi-head self-attention. */
typedef struct dsc_attention_options {
    size_t size;
    /* The number of heads; default 1. */
    int64_t heads;
    /* 1: each position attends to itself and to earlier positions; 0 (default): to all positions. */
    int causal;
    /* The rate at which attention probabilities are dropped in training, at least 0 and below 1; default 0. */
    double dropout;
    /* 1: no position attends to the padding of a sequence, that is, to the negative token numbers after its last token.
     * For models of dsc_model_tokens; causal attention gives all tokens the same results without it. 0 (default): all
     * positions can be attended to. */
    int padded;
} dsc_attention_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_attention_options_init_sized(dsc_attention_options *options, size_t size);
#define dsc_attention_options_init(options) dsc_attention_options_init_sized((options), sizeof *(options))
/* Adds multi-head self-attention over a sequence, a value of height = positions and width 1. x has 3 d channels:
 * queries, keys and values side by side, d channels each, with the heads side by side within each, as the fused
 * projections of GPT-2 (c_attn) and of PyTorch (in_proj) give them. y has d channels: softmax(Q K' / sqrt(d / heads)) V
 * of every head. No parameters. A position that attends to nothing, not even itself, gives 0. Memory grows with the
 * number of positions, not with its square. On a GPU a head has at most 128 channels. options may be NULL: the
 * defaults. */
DSC_API dsc_status dsc_model_attention(dsc_model *m, dsc_value x, const dsc_attention_options *options,
                                       dsc_value *y) DSC_MUST_CHECK;
/* Writes the shape of a value; allowed before and after sealing. */
DSC_API dsc_status dsc_model_value_shape(const dsc_model *m, dsc_value value,
                                         dsc_shape *shape) DSC_MUST_CHECK;
/* Called before sealing: makes the initial values of the parameter with this name, such as "conv1.weight", normal
 * around 0 with standard deviation std >= 0, instead of those that its layer chooses. DSC_E_NOT_FOUND if there is no
 * such parameter. */
DSC_API dsc_status dsc_model_set_std(dsc_model *m, const char *name, double std) DSC_MUST_CHECK;
/* Seals the model, which ends building. `logits` is a vector per sample with one entry per class, or a map with one
 * channel per class, which predicts a class for every position (token or pixel). The loss is softmax cross-entropy, or
 * binary cross-entropy if there is only one entry or channel (see dsc_exec_set_loss).
 * Parameters get their memory and their initial values, which are a pure function of seed and parameter number: He
 * normal over the fan-in, biases 0, scale and shift of batch norms 1 and 0, or what dsc_model_set_std says. */
DSC_API dsc_status dsc_model_seal(dsc_model *m, dsc_value logits) DSC_MUST_CHECK;

/* ---- models by name ---- */

/* Builds and seals a model of the zoo, or one that was registered. `name` is a spec of at most 63 characters: a model's
 * name alone or "NAME:key=value,key=value", such as "unet:width=8"; the whole spec is the model's name in metrics and
 * checkpoints.
 *   mlp, lenet, resnet20/32/44/56/110, resnet18/34/50/101/152   no keys
 *   unet, unet-bn                                                keys width, depth, dropout
 *   gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt-mini             keys layers, heads, width, dropout, bias
 *   bert-base, bert-large                                        keys layers, heads, width, dropout
 * The logits of U-Nets are maps. GPTs and BERTs take h tokens (w is 1, or h; c is 1), and `classes` is the size of
 * their vocabulary. BERTs predict masked tokens; sequences may be padded with tokens of -1, and all tokens have token
 * type 0. The dropout of GPTs and BERTs applies to residual branches, embeddings and attention probabilities.
 * An unknown name, an unknown key or a bad value is DSC_E_INVALID, and the message lists the known ones. options may be
 * NULL: the defaults. The caller destroys *out with dsc_model_destroy. */
DSC_API dsc_status dsc_zoo_create(dsc_device *device, const char *name, int64_t h, int64_t w, int64_t c,
                                  int64_t classes, const dsc_model_options *options,
                                  dsc_model **out) DSC_MUST_CHECK;

/* The definition of a model that dsc_zoo_create, and so the option `model` of the trainer, finds by its name. */
typedef struct dsc_zoo_entry {
    size_t size;
    /* The name, of letters, digits, '-', '_' and '.'; copied. */
    const char *name;
    /* The input that the model is made for, side x side x channels, and the number of classes; used if the caller does
     * not ask for another size. */
    int64_t side, channels, classes;
    /* Passed to `build`. It stays the caller's and must live as long as the process. */
    void *context;
    /* Adds the layers between the input x and the logits, a vector of `classes` entries or a map of as many channels,
     * to the model m, and writes the logits' value to *logits; does not seal the model. Several threads may call it at
     * once, for different models. */
    dsc_status (*build)(void *context, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits);
    /* 1: a model of sequences: x is `side` x 1 token numbers (dsc_model_tokens), and `classes` is the size of the
     * vocabulary. 0 (default): a model of images. */
    int sequence;
    /* For models that predict pixels: the number of pixels by which the output is smaller than the input on each of the
     * four sides, as with convolutions without padding; default 0. */
    int64_t margin;
} dsc_zoo_entry;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_zoo_entry_init_sized(dsc_zoo_entry *entry, size_t size);
#define dsc_zoo_entry_init(entry) dsc_zoo_entry_init_sized((entry), sizeof *(entry))
/* Adds a model to the zoo for the rest of the process; a name that is in use is refused (DSC_E_INVALID).
 * Thread-safe. Every rank must register the model itself. */
DSC_API dsc_status dsc_zoo_register(const dsc_zoo_entry *entry) DSC_MUST_CHECK;
/* Returns the names of all models, terminated by NULL. The list belongs to the library; models that are registered
 * later appear in the same list. */
DSC_API const char *const *dsc_zoo_names(void);
/* Returns the keys that the model's spec may have, as a table of the members of a struct, and writes to *defaults the
 * address of the struct with their defaults; `defaults` may be NULL. Both belong to the library. Returns NULL if the
 * model has no keys or is unknown. */
DSC_API const dsc_option *dsc_zoo_keys(const char *name, const void **defaults);
/* Writes the input size and the number of classes that a model is made for; any of the pointers may be NULL. */
DSC_API dsc_status dsc_zoo_default_input(const char *name, int64_t *side, int64_t *channels,
                                         int64_t *classes) DSC_MUST_CHECK;
/* Returns 1 for a model of sequences, whose input is `side` token numbers and whose classes are its vocabulary; 0 for a
 * model of images, or for an unknown name. */
DSC_API int dsc_zoo_takes_tokens(const char *name);
/* Returns the margin of a model that predicts pixels (dsc_zoo_entry.margin): 92 for unet at its default depth. 0 for
 * other models, or for an unknown name. */
DSC_API int64_t dsc_zoo_margin(const char *name);

/* ---- what a sealed model holds ---- */

/* Returns the device that the model was created on. */
DSC_API dsc_device *dsc_model_device(const dsc_model *m);
/* Returns the name from the options or from the zoo, otherwise "custom". */
DSC_API const char *dsc_model_name(const dsc_model *m);
/* Returns the number of classes, that is, of logits per prediction. */
DSC_API int64_t dsc_model_classes(const dsc_model *m);
/* Returns the number of predictions, and so of labels, per sample: 1, or the number of positions of a map of logits. */
DSC_API int64_t dsc_model_positions(const dsc_model *m);
/* Returns 1 if the input is token numbers (dsc_model_tokens), otherwise 0. */
DSC_API int dsc_model_takes_tokens(const dsc_model *m);
/* Writes h, w and c of the input. */
DSC_API void dsc_model_input_shape(const dsc_model *m, int64_t shape[3]);
/* Returns the floating-point operations of the forward pass of one sample: those in the products of convolutions,
 * linear layers and attention. A training step takes three times as many. Custom layers (layer.h) count as 0. */
DSC_API double dsc_model_flops(const dsc_model *m);
DSC_API int64_t dsc_model_param_count(const dsc_model *m);     /* tensors */
DSC_API int64_t dsc_model_parameter_total(const dsc_model *m); /* numbers */
/* Returns the parameters in graph order. Their values lie in this order, without gaps, in one block of memory, and
 * their gradients in another. */
DSC_API const dsc_param *dsc_model_params(const dsc_model *m);
/* Return all values, or all gradients, as one vector. */
DSC_API dsc_tensor dsc_model_values(const dsc_model *m);
DSC_API dsc_tensor dsc_model_grads(const dsc_model *m);
/* Return the number of buffers and the buffers, which are state that is not trained: running_mean, running_var (of the
 * model's type) and num_batches_tracked (I64). */
DSC_API int64_t dsc_model_buffer_count(const dsc_model *m);
DSC_API const dsc_param *dsc_model_buffers(const dsc_model *m); /* grad.data is NULL */

/* An entry of the state dict, a parameter or a buffer, as in PyTorch. */
typedef struct dsc_state_entry {
    const char *name;
    const dsc_tensor *tensor;
    /* The shape in PyTorch (conv weights OIHW). */
    int ndim;
    int64_t dim[DSC_MAX_DIMS];
    /* 1: the order in memory differs: [outer, h, w, c], whose sizes are in ohwc, here; [outer, c, h, w] in PyTorch. */
    int permuted;
    int64_t ohwc[4];
} dsc_state_entry;
/* Return the number of entries of the state dict, and the entries in PyTorch's order. */
DSC_API int64_t dsc_model_state_count(const dsc_model *m);
DSC_API const dsc_state_entry *dsc_model_state(const dsc_model *m);
/* Returns 1 if entry `index` is another name for the tensor of an earlier entry (a tied weight), otherwise 0. Files may
 * lack it; if they have it, it must equal that tensor. */
DSC_API int dsc_model_state_is_alias(const dsc_model *m, int64_t index);

/* A layer with a weight matrix that K-FAC can precondition. */
typedef enum dsc_layer_kind { DSC_LAYER_LINEAR, DSC_LAYER_CONV2D, DSC_LAYER_CONV_TRANSPOSE2D } dsc_layer_kind;
typedef struct dsc_layer_info {
    const char *name;
    dsc_layer_kind kind;
    /* The geometry. For a linear layer in_c and out_c are its features, in_h and in_w are 1, and everything
     * else is as dsc_conv2d_shape_init sets it. */
    const dsc_conv2d_shape *shape;
    int64_t out_h, out_w; /* linear: 1, 1 */
    /* The indices of the parameters in dsc_model_params. bias is -1 if there is none, and for transposed convolutions,
     * whose bias is not preconditioned. */
    int64_t weight, bias;
} dsc_layer_info;
/* Return the number of these layers, and the layers. */
DSC_API int64_t dsc_model_layer_count(const dsc_model *m);
DSC_API const dsc_layer_info *dsc_model_layers(const dsc_model *m);
/* Returns dsc_linear_options.blocks of layer `layer`; 1 for convolutions. */
DSC_API int64_t dsc_model_layer_blocks(const dsc_model *m, int64_t layer);

/* ---- running it ---- */

/* What an executor is for: training, evaluation, or training with at most one backward pass after each forward pass.
 * TRAIN_ONCE computes the same bits as TRAIN in less memory, because gradients overwrite values that backward has used.
 * It refuses a loss after backward, and its logits are valid only until backward. */
typedef enum dsc_exec_mode { DSC_EXEC_TRAIN, DSC_EXEC_EVAL, DSC_EXEC_TRAIN_ONCE } dsc_exec_mode;

/* Creates an executor, which plans memory and descriptors for batches of `batch` samples. The caller destroys it with
 * dsc_exec_destroy. The model must be sealed and must outlive the executor. */
DSC_API dsc_status dsc_exec_create(dsc_model *m, dsc_exec_mode mode, int64_t batch,
                                   dsc_exec **out) DSC_MUST_CHECK;
/* Creates an executor that computes the logits of one position at a time, for generating text. Only for models of
 * sequences in which a position depends on itself and earlier positions only. Keys and values of attention are cached
 * for all positions. */
DSC_API dsc_status dsc_exec_create_decoder(dsc_model *m, int64_t batch, dsc_exec **out) DSC_MUST_CHECK;
/* Computes the logits [batch, classes] of a position; x[batch,1,1,1] are its tokens. Positions come in order, from 0
 * on. An earlier one may be computed again, after which the ones behind it are forgotten. Asynchronous. */
DSC_API dsc_status dsc_exec_decode(dsc_exec *exec, dsc_queue *q, const dsc_tensor *x,
                                   int64_t position) DSC_MUST_CHECK;
/* Destroys an executor and sets *exec to NULL. Accepts NULL and *exec == NULL. */
DSC_API void dsc_exec_destroy(dsc_exec **exec);
/* Returns the model that the executor runs. */
DSC_API dsc_model *dsc_exec_model(const dsc_exec *exec);
/* Return the bytes of activations, their gradients and workspace, and what they would be if no memory was reused. */
DSC_API size_t dsc_exec_bytes(const dsc_exec *exec);
DSC_API size_t dsc_exec_bytes_without_reuse(const dsc_exec *exec);
/* Returns what dsc_exec_bytes would be with dsc_model_options.recompute 0. */
DSC_API size_t dsc_exec_bytes_without_recompute(const dsc_exec *exec);

/* Sets what the random numbers of dropout depend on: the step, and the index of the batch's first sample among the
 * samples of all ranks in this step. */
DSC_API dsc_status dsc_exec_set_position(dsc_exec *exec, dsc_queue *q, int64_t step,
                                         int64_t first_sample) DSC_MUST_CHECK;
/* Computes the logits of x[batch,h,w,c], which must not change until backward is done. Asynchronous. */
DSC_API dsc_status dsc_exec_forward(dsc_exec *exec, dsc_queue *q, const dsc_tensor *x) DSC_MUST_CHECK;
/* The entries of dsc_exec_stats. */
typedef enum dsc_exec_stat {
    DSC_STAT_LOSS, /* sum of the losses */
    DSC_STAT_TOP1, /* rows whose label has the largest logit */
    DSC_STAT_TOP5, /* rows whose label is among the five largest */
    DSC_STAT_ROWS, /* rows with a label */
    DSC_STAT_COUNT
} dsc_exec_stat;

/* The loss functions. CROSS_ENTROPY is that of the softmax over one output per class. The others are for models with
 * one output z per position, the logit of label 1, and for labels 0 and 1, as in masks with two values. BCE, binary
 * cross-entropy, is -log p for label 1 and -log(1 - p) for label 0, where p = sigmoid(z). DICE is 1 - (2 sum p t + 1) /
 * (sum p + sum t + 1) over all labelled rows of the batch together, where t are the labels, and counts as the loss of
 * each of these rows. BCE_DICE is the sum of both. */
typedef enum dsc_loss { DSC_LOSS_CROSS_ENTROPY, DSC_LOSS_BCE, DSC_LOSS_DICE, DSC_LOSS_BCE_DICE } dsc_loss;
/* Converts a name, "cross-entropy", "bce", "dice" or "bce-dice", to its constant, and back. An unknown name is
 * DSC_E_INVALID, and the message lists the known ones. */
DSC_API dsc_status dsc_loss_parse(const char *name, dsc_loss *out) DSC_MUST_CHECK;
DSC_API const char *dsc_loss_name(dsc_loss loss);
/* Sets the loss that dsc_exec_loss computes; without this call it is BCE for models with one output, and CROSS_ENTROPY
 * for all others. BCE and the two losses with Dice support neither label smoothing nor mixed labels nor class weights.
 * May allocate memory. DSC_E_INVALID if the model's outputs are not those that the loss needs. */
DSC_API dsc_status dsc_exec_set_loss(dsc_exec *exec, dsc_loss loss) DSC_MUST_CHECK;

/* Computes the loss of the last forward pass against labels (I32[batch * positions]; a row with a negative label is
 * left out). Adds the results to dsc_exec_stats and, in training, prepares the backward pass of grad_scale * (sum of
 * losses); a grad_scale of 1/batch gives the mean. May be called again with other labels, each time followed by a
 * backward pass, except with DSC_EXEC_TRAIN_ONCE. Asynchronous. */
DSC_API dsc_status dsc_exec_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels,
                                 double grad_scale) DSC_MUST_CHECK;
/* The same with real numbers F32[batch * positions, classes] instead of labels: the loss of a row is the mean of the
 * squared differences between its outputs and the targets, and no row counts as correct. */
DSC_API dsc_status dsc_exec_mse_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *targets,
                                     double grad_scale) DSC_MUST_CHECK;

/* on 0: the next losses are computed from the labels alone, without label smoothing, mixed labels and class weights.
 * on 1 (the initial state): they use the model's label smoothing, and what the functions below have set. */
DSC_API void dsc_exec_smooth_labels(dsc_exec *exec, int on);
/* For training executors: mixes a second label into the next losses. Row i has the label others[i] (I32[batch]) with
 * weight shares[i] (F32[batch], 0 to 1), and the label passed to dsc_exec_loss with the rest; only the latter decides
 * whether a row counts as correct. Both tensors stay the caller's. NULL (the initial state): no second label. */
DSC_API void dsc_exec_mix_labels(dsc_exec *exec, const dsc_tensor *others, const dsc_tensor *shares);
/* For training executors: multiplies the next losses and their gradients by the weights (F32[classes]) of the rows'
 * classes. The tensor stays the caller's. NULL (the initial state): all weights are 1. */
DSC_API void dsc_exec_weigh_classes(dsc_exec *exec, const dsc_tensor *weights);
/* Multiplies the next losses by *scale, an F64 scalar on the device that stays the caller's. NULL (the initial state):
 * by 1. */
DSC_API void dsc_exec_scale_loss(dsc_exec *exec, const dsc_tensor *scale);
/* Returns the two numbers of dsc_exec_set_position: I64[2] on the device. */
DSC_API const dsc_tensor *dsc_exec_position(const dsc_exec *exec);

/* The tensors of a norm in a backward pass: input x, output y and gradient dy at the output, all [batch, positions,
 * channels], and the mean and 1/std that the input was normalised with: [channels] for a batch norm,
 * [batch * positions, 1] for a layer norm, [batch, groups] for a group norm; an RMS norm has no mean. y has memory only
 * if a ReLU is fused into the operation; dy is then the gradient after the ReLU. */
typedef struct dsc_norm_tensors {
    dsc_tensor x, y, dy, mean, invstd;
} dsc_norm_tensors;

typedef struct dsc_backward_options {
    size_t size;
    /* 0 (default): new gradients overwrite the old ones; 1: they are added to them. */
    int accumulate;
    /* 1 (default): all gradients are computed. 0: only the gradients of activations, which `capture` needs. */
    int param_grads;
    /* Passed to the functions below, each of which may be NULL (default) and may put work into the queue. */
    void *context;
    /* Called for each layer `layer` (its index in dsc_model_layers) with its input a[batch,h,w,c] (linear:
     * [batch,features], on sequences [batch,positions,features]) and the gradient g at its output, both valid until the
     * function's work in the queue is done. Called in backward order, before the layer's own gradients are computed. */
    dsc_status (*capture)(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g);
    /* Called when the gradient of parameter `param` is final: the work that computes it is in the queue. Parameters
     * come in decreasing order. */
    dsc_status (*grad_ready)(void *context, dsc_queue *q, int64_t param);
    /* Called like `capture` for each norm (batch, layer, RMS and group norms) with the tensors that its gradients are
     * computed from. `norm` counts them from 0 in the order in which they were added. */
    dsc_status (*capture_norm)(void *context, dsc_queue *q, int64_t norm, const dsc_norm_tensors *tensors);
    /* Called like `capture` for each table of an embedding, of tokens or of positions, with the tokens [batch,
     * positions], or NULL for positions, and the gradient dy[batch, positions, features] at its output. `table` counts
     * them from 0 in the order in which they were added. */
    dsc_status (*capture_table)(void *context, dsc_queue *q, int64_t table, const dsc_tensor *tokens,
                                const dsc_tensor *dy);
    /* Called like `capture` for each tied head, a linear layer with dsc_linear_options.tied, with its input a[batch,
     * positions, features], or [batch, features] for vectors. `head` counts them from 0 in the order in which they were
     * added. */
    dsc_status (*capture_tied)(void *context, dsc_queue *q, int64_t head, const dsc_tensor *a);
} dsc_backward_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_backward_options_init_sized(dsc_backward_options *options, size_t size);
#define dsc_backward_options_init(options) dsc_backward_options_init_sized((options), sizeof *(options))
/* Computes the gradients of the last loss. Training executors only. options may be NULL: the defaults. Asynchronous. */
DSC_API dsc_status dsc_exec_backward(dsc_exec *exec, dsc_queue *q,
                                     const dsc_backward_options *options) DSC_MUST_CHECK;

/* dsc_exec_stats returns the sums over all losses since dsc_exec_clear_stats, F64[DSC_STAT_COUNT] indexed by
 * dsc_exec_stat. dsc_exec_logits returns the logits of the last forward pass, [batch * positions, classes]; with
 * DSC_EXEC_TRAIN_ONCE they are valid until its backward pass begins. Both are on the device and owned by the executor.
 * In training executors of half types the rows of logits may be longer than `classes`, and the rest has no meaning. */
DSC_API const dsc_tensor *dsc_exec_stats(const dsc_exec *exec);
DSC_API const dsc_tensor *dsc_exec_logits(const dsc_exec *exec);
/* Sets the sums to 0. Asynchronous. */
DSC_API dsc_status dsc_exec_clear_stats(dsc_exec *exec, dsc_queue *q) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

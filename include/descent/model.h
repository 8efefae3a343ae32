/* Models: a static graph of layers, its parameters, and executors that run it.
 *
 * Build: create, add layers (each takes values and gives a value), seal with a loss. Shapes are checked as
 * layers are added. Sealing allocates and initialises the parameters, all values in one block and all
 * gradients in another. Then any number of executors, each with its batch size, plan their memory once and
 * run. Activations are NHWC, conv weights OHWI, linear weights [out, in].
 *
 * Names and structs that are passed in are copied. Pointers that a function returns belong to the model, or
 * to the executor, and are valid until it is destroyed. Functions that return a status refuse a NULL object
 * with DSC_E_INVALID; all others must not be passed NULL. A model is used by one thread at a time. */
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

/* One sample of a value: a map of h x w x c numbers, or (flat 1) a vector of h*w*c features. A vector that
 * was flattened from a map keeps the map's h, w and c, because PyTorch flattens in the order c, h, w; every
 * other vector is 1 x 1 x features. */
typedef struct dsc_shape {
    int flat;
    int64_t h, w, c;
} dsc_shape;

typedef struct dsc_model_options {
    size_t size;
    /* Seed of the initial weights and of dropout; default 42. */
    uint64_t seed;
    /* Type of the parameters: DSC_F32 (default); DSC_F64 on `ref` and `cpu`, for checks. */
    dsc_dtype dtype;
    /* Label smoothing of the training loss; default 0. Evaluation uses none. */
    double label_smoothing;
    /* Type of the values between layers: DSC_F32 (default: as the parameters), on a GPU also DSC_BF16 and
     * DSC_F16; parameters, their gradients and statistics stay fp32. */
    dsc_dtype activations;
    /* Name of the model in metrics and checkpoints, at most 63 characters; copied. NULL (default): "custom",
     * or the name in the zoo. */
    const char *name;
    /* 1: executors for training do not keep all values between layers for the backward pass, but compute them again from
     * some that they keep, part by part. That takes less memory and up to a third more time; gradients have the same
     * bits, except for half types on a GPU where a GELU (tanh) lies between two linear layers: without recompute it is
     * part of their products, and is rounded once less. 0 (default): they keep them. */
    int recompute;
} dsc_model_options;
DSC_API void dsc_model_options_init_sized(dsc_model_options *options, size_t size);
#define dsc_model_options_init(options) dsc_model_options_init_sized((options), sizeof *(options))

/* An empty model. The device stays the caller's and must outlive it. options may be NULL. */
DSC_API dsc_status dsc_model_create(dsc_device *device, const dsc_model_options *options,
                                    dsc_model **out) DSC_MUST_CHECK;
/* Accepts NULL and *model == NULL. Executors of the model must be gone. */
DSC_API void dsc_model_destroy(dsc_model **model);

/* ---- building ----
 * Every function adds one layer and writes its output value to *y (for custom layers see descent/layer.h).
 * When it fails, with the layer and the reason in the message, the model is as it was. `name` becomes the
 * prefix of the layer's parameters (NAME.weight, NAME.bias). */

/* The input, h x w x c per sample; one per model. */
DSC_API dsc_status dsc_model_input(dsc_model *m, int64_t h, int64_t w, int64_t c,
                                   dsc_value *y) DSC_MUST_CHECK;
/* The input of a model of sequences: `positions` token numbers per sample, as floating-point numbers, which hold
 * them exactly up to 2^24. Gives a sequence, that is a map of height `positions` and width 1, with one channel,
 * for dsc_model_embedding. One input per model. A shorter sequence is filled up at its end with -1, whose labels
 * are negative as well (dsc_attention_options.padded). */
DSC_API dsc_status dsc_model_tokens(dsc_model *m, int64_t positions, dsc_value *y) DSC_MUST_CHECK;
/* The rows of the table NAME.weight[vocabulary, features] that belong to the tokens; initial values are normal with
 * the standard deviation std > 0 (GPT-2 and BERT: 0.02). A token outside the vocabulary gives zeros. */
DSC_API dsc_status dsc_model_embedding(dsc_model *m, const char *name, dsc_value tokens, int64_t vocabulary,
                                       int64_t features, double std, dsc_value *y) DSC_MUST_CHECK;
/* Adds a learnt vector to every position of a sequence: y = x + NAME.weight[position]; initial values as above. */
DSC_API dsc_status dsc_model_position_embedding(dsc_model *m, const char *name, dsc_value x, double std,
                                                dsc_value *y) DSC_MUST_CHECK;
/* y = x weight^T + bias, weight [features, features of x]; bias 0: none. x is a vector, or a sequence (width 1), to
 * every position of which the layer is applied. */
DSC_API dsc_status dsc_model_linear(dsc_model *m, const char *name, dsc_value x, int64_t features, int bias,
                                    dsc_value *y) DSC_MUST_CHECK;
typedef struct dsc_linear_options {
    size_t size;
    /* 1 (default): there is a bias. */
    int bias;
    /* Standard deviation of the initial weights; 0 (default): He normal over the features of x. */
    double std;
    /* 1: files hold the weight as [features of x, features], as GPT-2's do; 0 (default): [features, features of x]. */
    int in_out;
    /* The value of an embedding whose table is the weight of this layer, too: both share one parameter, and its
     * gradient is the sum of theirs. Files may hold it a second time as NAME.weight, then equal to the table. The
     * layer is none of dsc_model_layers. -1 (default): the layer has a weight of its own. */
    dsc_value tied;
    /* Parts of equal size that the features consist of, like the queries, keys and values of attention (3); K-FAC gives
     * each a factor G of its own. 1 (default). */
    int64_t blocks;
} dsc_linear_options;
DSC_API void dsc_linear_options_init_sized(dsc_linear_options *options, size_t size);
#define dsc_linear_options_init(options) dsc_linear_options_init_sized((options), sizeof *(options))
/* A linear layer with options; NULL: the defaults. */
DSC_API dsc_status dsc_model_linear_with(dsc_model *m, const char *name, dsc_value x, int64_t features,
                                         const dsc_linear_options *options, dsc_value *y) DSC_MUST_CHECK;
/* The caller sets out_c, the kernel and what else differs from dsc_conv2d_shape_init; in_h, in_w and in_c are
 * taken from x. bias 0: none. */
DSC_API dsc_status dsc_model_conv2d(dsc_model *m, const char *name, dsc_value x,
                                    const dsc_conv2d_shape *shape, int bias, dsc_value *y) DSC_MUST_CHECK;
/* Transposed convolution, as PyTorch's ConvTranspose2d: every pixel of x adds its numbers times the kernel to the output,
 * `stride` pixels apart, and `pad` rows and columns are cut off at each side. In each direction
 *   out = (in - 1) stride - 2 pad + dilation (kernel - 1) + 1 + extra,
 * where extra, below the stride, is PyTorch's output_padding. Shape and bias as for dsc_model_conv2d; the weight is
 * [in, out / groups, kernel_h, kernel_w] in PyTorch and in files, [in, kernel_h, kernel_w, out / groups] here. Initial
 * weights: He normal over the mean number of inputs of an output. K-FAC leaves out those of several groups: they are not
 * among dsc_model_layers, and their gradients stay as they are; the bias always keeps its gradient. */
DSC_API dsc_status dsc_model_conv_transpose2d(dsc_model *m, const char *name, dsc_value x,
                                              const dsc_conv2d_shape *shape, int bias,
                                              dsc_value *y) DSC_MUST_CHECK;
/* eps 1e-5, momentum 0.1; NAME.weight, NAME.bias and the buffers NAME.running_mean, .running_var,
 * .num_batches_tracked. */
DSC_API dsc_status dsc_model_batch_norm(dsc_model *m, const char *name, dsc_value x,
                                        dsc_value *y) DSC_MUST_CHECK;
/* Norms of single samples, in training and evaluation alike, with eps > 0 added to the variance.
 * Layer norm over the channels of each position (of a vector: over its features); NAME.weight, and NAME.bias unless
 * bias is 0. GPT-2 has eps 1e-5, BERT 1e-12. */
DSC_API dsc_status dsc_model_layer_norm(dsc_model *m, const char *name, dsc_value x, double eps, int bias,
                                        dsc_value *y) DSC_MUST_CHECK;
/* The same without subtracting the mean, y = weight x / sqrt(mean of x^2 + eps); NAME.weight. */
DSC_API dsc_status dsc_model_rms_norm(dsc_model *m, const char *name, dsc_value x, double eps,
                                      dsc_value *y) DSC_MUST_CHECK;
/* Over each of `groups` groups of neighbouring channels, at all positions of a sample; NAME.weight, NAME.bias. */
DSC_API dsc_status dsc_model_group_norm(dsc_model *m, const char *name, dsc_value x, int64_t groups,
                                        double eps, dsc_value *y) DSC_MUST_CHECK;
DSC_API dsc_status dsc_model_relu(dsc_model *m, dsc_value x, dsc_value *y) DSC_MUST_CHECK;
/* Activations, number by number: */
typedef enum dsc_activation {
    DSC_ACTIVATION_RELU,      /* max(x, 0), as dsc_model_relu */
    DSC_ACTIVATION_GELU,      /* x Phi(x), Phi that of the normal distribution */
    DSC_ACTIVATION_GELU_TANH, /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, as GPT-2 has it */
    DSC_ACTIVATION_SILU,      /* x / (1 + e^-x) */
    DSC_ACTIVATION_TANH,
    DSC_ACTIVATION_SIGMOID /* 1 / (1 + e^-x) */
} dsc_activation;
DSC_API dsc_status dsc_model_activation(dsc_model *m, dsc_value x, dsc_activation activation,
                                        dsc_value *y) DSC_MUST_CHECK;
DSC_API dsc_status dsc_model_max_pool(dsc_model *m, dsc_value x, int64_t kernel, int64_t stride, int64_t pad,
                                      dsc_value *y) DSC_MUST_CHECK;
DSC_API dsc_status dsc_model_avg_pool(dsc_model *m, dsc_value x, int64_t kernel, int64_t stride, int64_t pad,
                                      dsc_value *y) DSC_MUST_CHECK;
/* Mean over height and width; gives a vector per sample. */
DSC_API dsc_status dsc_model_global_pool(dsc_model *m, dsc_value x, dsc_value *y) DSC_MUST_CHECK;
DSC_API dsc_status dsc_model_add(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) DSC_MUST_CHECK;
/* The channels of a, then those of b; both are maps of equal height and width. */
DSC_API dsc_status dsc_model_concat(dsc_model *m, dsc_value a, dsc_value b, dsc_value *y) DSC_MUST_CHECK;
/* The h x w pixels in the middle of a map; where an odd number is cut off, one pixel more at the bottom and right. */
DSC_API dsc_status dsc_model_crop(dsc_model *m, dsc_value x, int64_t h, int64_t w,
                                  dsc_value *y) DSC_MUST_CHECK;
/* A map of twice the height and width. */
DSC_API dsc_status dsc_model_upsample(dsc_model *m, dsc_value x, dsc_upsample_kind kind,
                                      dsc_value *y) DSC_MUST_CHECK;
/* The parameter-free shortcut of the CIFAR ResNets: every stride-th pixel, channels padded with zeros on both
 * sides. */
DSC_API dsc_status dsc_model_shortcut(dsc_model *m, dsc_value x, int64_t stride, int64_t channels,
                                      dsc_value *y) DSC_MUST_CHECK;
/* The same numbers as a vector. */
DSC_API dsc_status dsc_model_flatten(dsc_model *m, dsc_value x, dsc_value *y) DSC_MUST_CHECK;
/* Training: every number is 0 with probability `rate`, else multiplied by 1 / (1 - rate); evaluation: y =
 * x. */
DSC_API dsc_status dsc_model_dropout(dsc_model *m, dsc_value x, double rate, dsc_value *y) DSC_MUST_CHECK;

/* Multi-head self-attention. */
typedef struct dsc_attention_options {
    size_t size;
    /* Number of heads; default 1. */
    int64_t heads;
    /* 1: a position sees itself and what is before it; 0 (default): all positions. */
    int causal;
    /* Rate at which probabilities of attention are dropped in training, at least 0 and below 1; default 0. */
    double dropout;
    /* 1: no position sees the padding at the end of a sequence, that is the negative token numbers after its last token.
     * For models of dsc_model_tokens; causal attention gives the same results for all tokens without it. 0 (default):
     * all positions are seen. */
    int padded;
} dsc_attention_options;
DSC_API void dsc_attention_options_init_sized(dsc_attention_options *options, size_t size);
#define dsc_attention_options_init(options) dsc_attention_options_init_sized((options), sizeof *(options))
/* Multi-head self-attention over a sequence, a value of height = positions and width 1. x has 3 d channels: queries,
 * keys and values side by side, d channels each, heads side by side within each, as the fused projections of GPT-2
 * (c_attn) and of PyTorch (in_proj) give them. y has d channels: softmax(Q K' / sqrt(d / heads)) V of every head.
 * No parameters. A position that sees none, not even itself, gives 0. Memory grows with the number of positions, not
 * with its square. Heads on a GPU have at most 128 channels. options may be NULL. */
DSC_API dsc_status dsc_model_attention(dsc_model *m, dsc_value x, const dsc_attention_options *options,
                                       dsc_value *y) DSC_MUST_CHECK;
/* The shape of a value, also before sealing. */
DSC_API dsc_status dsc_model_value_shape(const dsc_model *m, dsc_value value,
                                         dsc_shape *shape) DSC_MUST_CHECK;
/* Before sealing: the initial values of the parameter with this name, such as "conv1.weight", are normal with standard
 * deviation std >= 0 around 0, instead of those that its layer gives it. DSC_E_NOT_FOUND: no such parameter. */
DSC_API dsc_status dsc_model_set_std(dsc_model *m, const char *name, double std) DSC_MUST_CHECK;
/* Ends building. The loss is softmax cross-entropy on `logits`, a vector per sample with one entry a class, or a map
 * with one channel a class, which predicts a class for every position (token or pixel); where there is one entry or
 * channel, it is binary cross-entropy (dsc_exec_set_loss).
 * Parameters get their memory and their initial values (He normal over the fan-in; biases 0, batch norm 1 and
 * 0; or what dsc_model_set_std says), which are a pure function of seed and parameter number. */
DSC_API dsc_status dsc_model_seal(dsc_model *m, dsc_value logits) DSC_MUST_CHECK;

/* ---- models by name ---- */

/* Builds and seals a model of the zoo, or one that was registered. `name` is a spec of at most 63 characters, a model's
 * name alone or "NAME:key=value,key=value", as "unet:width=8"; all of it is the model's name in metrics and checkpoints.
 *   mlp, lenet, resnet20/32/44/56/110, resnet18/34/50/101/152   no keys
 *   unet, unet-bn                                                keys width, depth, dropout
 *   gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt-mini             keys layers, heads, width, dropout, bias
 *   bert-base, bert-large                                        keys layers, heads, width, dropout
 * The logits of U-Nets are maps. GPTs and BERTs take h tokens (w is 1, or h; c is 1), and `classes` is their vocabulary.
 * BERTs predict masked tokens; sequences may be padded with tokens of -1, and there is no second type of tokens.
 * Dropout of GPTs and BERTs is that of their residual branches, of their embeddings and of attention's probabilities.
 * An unknown name, an unknown key or a bad value is DSC_E_INVALID and lists the known ones. options may be NULL. */
DSC_API dsc_status dsc_zoo_create(dsc_device *device, const char *name, int64_t h, int64_t w, int64_t c,
                                  int64_t classes, const dsc_model_options *options,
                                  dsc_model **out) DSC_MUST_CHECK;

/* A model that dsc_zoo_create, and with it `model` of the trainer, finds by its name. */
typedef struct dsc_zoo_entry {
    size_t size;
    /* Letters, digits, '-', '_' and '.'; copied. */
    const char *name;
    /* The input it is made for, side x side x channels, and the number of classes; used when the caller does
     * not ask for another size. */
    int64_t side, channels, classes;
    /* Passed to `build`; stays the caller's and must live as long as the process. */
    void *context;
    /* Adds the layers between the input x and the logits, a vector of `classes` or a map of as many channels, to the
     * model m; does not seal it. May be called by several threads at once, for different models. */
    dsc_status (*build)(void *context, dsc_model *m, dsc_value x, int64_t classes, dsc_value *logits);
    /* 1: a model of sequences. x is then `side` x 1 token numbers (dsc_model_tokens), and `classes` the size of the
     * vocabulary. 0 (default): a model of images. */
    int sequence;
    /* Models of pixels: by how many pixels their output is smaller than their input on each of its four sides, as without
     * padding; 0 by default. */
    int64_t margin;
} dsc_zoo_entry;
DSC_API void dsc_zoo_entry_init_sized(dsc_zoo_entry *entry, size_t size);
#define dsc_zoo_entry_init(entry) dsc_zoo_entry_init_sized((entry), sizeof *(entry))
/* Adds a model to the zoo for the rest of the process; a name that is in use is refused (DSC_E_INVALID).
 * Thread-safe. Every rank registers for itself. */
DSC_API dsc_status dsc_zoo_register(const dsc_zoo_entry *entry) DSC_MUST_CHECK;
/* The names of all models, terminated by NULL. Models that are registered later appear in the same list. */
DSC_API const char *const *dsc_zoo_names(void);
/* The keys that the model's spec may have: a table of the members of a struct, and in *defaults (which may be NULL) the
 * struct that holds their defaults. Both are the library's. NULL where the model has no keys or is unknown. */
DSC_API const dsc_option *dsc_zoo_keys(const char *name, const void **defaults);
/* Writes the input size that a model is made for; any of the pointers may be NULL. */
DSC_API dsc_status dsc_zoo_default_input(const char *name, int64_t *side, int64_t *channels,
                                         int64_t *classes) DSC_MUST_CHECK;
/* 1: a model of sequences, whose input is `side` token numbers and whose classes are its vocabulary; 0: a model of images,
 * or no model. */
DSC_API int dsc_zoo_takes_tokens(const char *name);
/* The margin of a model of pixels (dsc_zoo_entry), 92 for unet and another one at another depth; 0 for other models, or none. */
DSC_API int64_t dsc_zoo_margin(const char *name);

/* ---- what a sealed model holds ---- */

DSC_API dsc_device *dsc_model_device(const dsc_model *m);
/* The name from the options or from the zoo, otherwise "custom". */
DSC_API const char *dsc_model_name(const dsc_model *m);
DSC_API int64_t dsc_model_classes(const dsc_model *m);
/* Predictions, and so labels, per sample: 1, or the positions of a map of logits. */
DSC_API int64_t dsc_model_positions(const dsc_model *m);
/* 1: the input is token numbers (dsc_model_tokens). */
DSC_API int dsc_model_takes_tokens(const dsc_model *m);
/* h, w, c of the input. */
DSC_API void dsc_model_input_shape(const dsc_model *m, int64_t shape[3]);
/* Floating-point operations of the forward pass of one sample: the products of convolutions, linear layers and
 * attention. A training step takes three times as many. Layers of the caller's own count as 0. */
DSC_API double dsc_model_flops(const dsc_model *m);
DSC_API int64_t dsc_model_param_count(const dsc_model *m);     /* tensors */
DSC_API int64_t dsc_model_parameter_total(const dsc_model *m); /* numbers */
/* In graph order; values and gradients lie in this order, without gaps, in two blocks. */
DSC_API const dsc_param *dsc_model_params(const dsc_model *m);
/* All values, and all gradients, as one vector. */
DSC_API dsc_tensor dsc_model_values(const dsc_model *m);
DSC_API dsc_tensor dsc_model_grads(const dsc_model *m);
/* State that is not trained: running_mean, running_var (the model's type) and num_batches_tracked (I64). */
DSC_API int64_t dsc_model_buffer_count(const dsc_model *m);
DSC_API const dsc_param *dsc_model_buffers(const dsc_model *m); /* grad.data is NULL */

/* An entry of the state dict, a parameter or a buffer, as PyTorch has it. */
typedef struct dsc_state_entry {
    const char *name;
    const dsc_tensor *tensor;
    /* The shape in PyTorch (conv weights OIHW). */
    int ndim;
    int64_t dim[DSC_MAX_DIMS];
    /* 1: the inner order differs: [outer, h, w, c] = ohwc here, [outer, c, h, w] in PyTorch. */
    int permuted;
    int64_t ohwc[4];
} dsc_state_entry;
DSC_API int64_t dsc_model_state_count(const dsc_model *m);
/* In PyTorch's order. */
DSC_API const dsc_state_entry *dsc_model_state(const dsc_model *m);
/* 1: entry `index` is another name for the tensor of an earlier entry, a tied weight. Files may lack it; where they have
 * it, it must be equal. */
DSC_API int dsc_model_state_is_alias(const dsc_model *m, int64_t index);

/* A layer with a weight matrix, as a preconditioner sees it. */
typedef enum dsc_layer_kind { DSC_LAYER_LINEAR, DSC_LAYER_CONV2D, DSC_LAYER_CONV_TRANSPOSE2D } dsc_layer_kind;
typedef struct dsc_layer_info {
    const char *name;
    dsc_layer_kind kind;
    /* The geometry. For a linear layer in_c and out_c are its features, in_h and in_w are 1, and everything
     * else is as dsc_conv2d_shape_init sets it. */
    const dsc_conv2d_shape *shape;
    int64_t out_h, out_w; /* linear: 1, 1 */
    /* Parameter numbers; bias -1 for none, and of transposed convolutions, whose bias is not preconditioned. */
    int64_t weight, bias;
} dsc_layer_info;
DSC_API int64_t dsc_model_layer_count(const dsc_model *m);
DSC_API const dsc_layer_info *dsc_model_layers(const dsc_model *m);
/* dsc_linear_options.blocks of layer `layer`; 1 of convolutions. */
DSC_API int64_t dsc_model_layer_blocks(const dsc_model *m, int64_t layer);

/* ---- running it ---- */

/* TRAIN_ONCE: for training with at most one backward pass after each forward pass. It computes the same bits as TRAIN in
 * less memory, because gradients take the place of values that backward has used. A loss after backward is then refused,
 * and logits are valid until backward only. */
typedef enum dsc_exec_mode { DSC_EXEC_TRAIN, DSC_EXEC_EVAL, DSC_EXEC_TRAIN_ONCE } dsc_exec_mode;

/* Plans memory and descriptors for batches of `batch` samples. The model must be sealed and outlive the
 * executor. */
DSC_API dsc_status dsc_exec_create(dsc_model *m, dsc_exec_mode mode, int64_t batch,
                                   dsc_exec **out) DSC_MUST_CHECK;
/* An executor that computes the logits of one position at a time, for generating text: of models of sequences in which a
 * position depends on itself and those before it only. Keys and values of attention are kept for all positions. */
DSC_API dsc_status dsc_exec_create_decoder(dsc_model *m, int64_t batch, dsc_exec **out) DSC_MUST_CHECK;
/* Computes the logits [batch, classes] of a position; x[batch,1,1,1] are its tokens. Positions come in order, from 0 on;
 * an earlier one may be computed again, after which those behind it are forgotten. Asynchronous. */
DSC_API dsc_status dsc_exec_decode(dsc_exec *exec, dsc_queue *q, const dsc_tensor *x,
                                   int64_t position) DSC_MUST_CHECK;
/* Accepts NULL and *exec == NULL. */
DSC_API void dsc_exec_destroy(dsc_exec **exec);
/* The model that it runs. */
DSC_API dsc_model *dsc_exec_model(const dsc_exec *exec);
/* Bytes of activations and activation gradients, workspace included; and what they would be without reuse. */
DSC_API size_t dsc_exec_bytes(const dsc_exec *exec);
DSC_API size_t dsc_exec_bytes_without_reuse(const dsc_exec *exec);
/* What dsc_exec_bytes would be with dsc_model_options.recompute 0. */
DSC_API size_t dsc_exec_bytes_without_recompute(const dsc_exec *exec);

/* Sets the keys of dropout's random numbers: the step, and the number of the batch's first sample among the
 * samples of all ranks in this step. */
DSC_API dsc_status dsc_exec_set_position(dsc_exec *exec, dsc_queue *q, int64_t step,
                                         int64_t first_sample) DSC_MUST_CHECK;
/* Computes the logits of x[batch,h,w,c], which must stay as it is until backward is done. Asynchronous. */
DSC_API dsc_status dsc_exec_forward(dsc_exec *exec, dsc_queue *q, const dsc_tensor *x) DSC_MUST_CHECK;
/* What dsc_exec_stats counts. */
typedef enum dsc_exec_stat {
    DSC_STAT_LOSS, /* sum of the losses */
    DSC_STAT_TOP1, /* rows whose label has the largest logit */
    DSC_STAT_TOP5, /* rows whose label is among the five largest */
    DSC_STAT_ROWS, /* rows with a label */
    DSC_STAT_COUNT
} dsc_exec_stat;

/* What labels are compared with. CROSS_ENTROPY: the softmax of one output per class. The others are of models with one
 * output z per position, the logit of label 1, and labels 0 and 1, as of masks with two values. BCE, binary
 * cross-entropy: -log p for label 1 and -log(1 - p) for label 0, with p = sigmoid(z). DICE:
 * 1 - (2 sum p t + 1) / (sum p + sum t + 1) over all labelled rows of the batch together, which counts as the loss of
 * each of them. BCE_DICE: the sum of both. */
typedef enum dsc_loss { DSC_LOSS_CROSS_ENTROPY, DSC_LOSS_BCE, DSC_LOSS_DICE, DSC_LOSS_BCE_DICE } dsc_loss;
/* "cross-entropy", "bce", "dice", "bce-dice", and back; DSC_E_INVALID lists the known names. */
DSC_API dsc_status dsc_loss_parse(const char *name, dsc_loss *out) DSC_MUST_CHECK;
DSC_API const char *dsc_loss_name(dsc_loss loss);
/* The loss that dsc_exec_loss computes; at the start BCE for models with one output, and else CROSS_ENTROPY. BCE and the
 * two with Dice have neither label smoothing, mixed labels nor weights of classes. May allocate memory. DSC_E_INVALID when
 * the model has other outputs than the loss needs. */
DSC_API dsc_status dsc_exec_set_loss(dsc_exec *exec, dsc_loss loss) DSC_MUST_CHECK;

/* Computes the loss of the last forward pass against labels (I32[batch * positions]; a row with a negative label is
 * left out). Adds to dsc_exec_stats and, in training, prepares the backward pass of grad_scale * (sum of losses);
 * 1/batch gives the mean. May be called again with other labels, each time followed by a backward pass, unless the
 * executor is one of DSC_EXEC_TRAIN_ONCE. Asynchronous. */
DSC_API dsc_status dsc_exec_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *labels,
                                 double grad_scale) DSC_MUST_CHECK;
/* The same for real numbers instead of labels, F32[batch * positions, classes]: the loss of a row is the mean of the
 * squared differences from its outputs, and no row counts as correct. */
DSC_API dsc_status dsc_exec_mse_loss(dsc_exec *exec, dsc_queue *q, const dsc_tensor *targets,
                                     double grad_scale) DSC_MUST_CHECK;

/* 0: the next losses are computed with the labels alone, without label smoothing, mixed labels and weights of
 * classes; 1: with those of the model and of the functions below again, as at the start. */
DSC_API void dsc_exec_smooth_labels(dsc_exec *exec, int on);
/* Training executors: in the next losses row i has the label others[i] (I32[batch]) with the share shares[i]
 * (F32[batch], 0 to 1), and the label that dsc_exec_loss is given with the rest; that one alone decides whether a row
 * counts as correct. Both stay the caller's; NULL: only that label, as at the start. */
DSC_API void dsc_exec_mix_labels(dsc_exec *exec, const dsc_tensor *others, const dsc_tensor *shares);
/* Training executors: the next losses and their gradients are multiplied by the weights (F32[classes]) of the rows'
 * classes, which stay the caller's; NULL: by 1, as at the start. */
DSC_API void dsc_exec_weigh_classes(dsc_exec *exec, const dsc_tensor *weights);
/* The next losses are multiplied by *scale, an F64 scalar on the device that stays the caller's; NULL: by 1,
 * as at the start. */
DSC_API void dsc_exec_scale_loss(dsc_exec *exec, const dsc_tensor *scale);
/* The two numbers of dsc_exec_set_position: I64[2] on the device. */
DSC_API const dsc_tensor *dsc_exec_position(const dsc_exec *exec);

/* The tensors of a norm in a backward pass, x, y and dy as [batch, positions, channels]: input, output, gradient at
 * the output, and mean and 1/std that the input was normalised with: [channels] of a batch norm, [batch * positions, 1] of
 * a layer norm, [batch, groups] of a group norm; an RMS norm has no mean. y has memory only where a ReLU is part of the
 * operation: dy is then the gradient after it. */
typedef struct dsc_norm_tensors {
    dsc_tensor x, y, dy, mean, invstd;
} dsc_norm_tensors;

typedef struct dsc_backward_options {
    size_t size;
    /* 0 (default): new gradients overwrite the old ones; 1: they are added to them. */
    int accumulate;
    /* 1 (default): all gradients. 0: only the gradients of activations, which `capture` needs. */
    int param_grads;
    /* Passed to the functions below, each of which may be NULL and may put work into the queue. */
    void *context;
    /* Layer `layer` (number in dsc_model_layers): its input a[batch,h,w,c] (linear: [batch,features], on sequences
     * [batch,positions,features]) and the gradient g at its output, both valid until the function's work in the queue is
     * done. Called in backward order, before the layer's own gradients are computed. */
    dsc_status (*capture)(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g);
    /* The gradient of parameter `param` is final (the work is in the queue). Parameters come in falling
     * order. */
    dsc_status (*grad_ready)(void *context, dsc_queue *q, int64_t param);
    /* Norm number `norm` (batch, layer, RMS and group norms), counted in the order in which they were added: what its
     * gradients are computed from. Called like `capture`, with the same context; may be NULL. */
    dsc_status (*capture_norm)(void *context, dsc_queue *q, int64_t norm, const dsc_norm_tensors *tensors);
    /* The table of embedding number `table`, of tokens or of positions, counted in the order in which they were added: the
     * tokens [batch, positions], or NULL for positions, and the gradient dy[batch, positions, features] at its output.
     * Called like `capture`, with the same context; may be NULL. */
    dsc_status (*capture_table)(void *context, dsc_queue *q, int64_t table, const dsc_tensor *tokens,
                                const dsc_tensor *dy);
    /* Tied head number `head`, a linear layer with `tied` of dsc_linear_options, counted in the order in which they were
     * added: its input a[batch, positions, features], of vectors [batch, features]. Called like `capture`, with the same
     * context; may be NULL. */
    dsc_status (*capture_tied)(void *context, dsc_queue *q, int64_t head, const dsc_tensor *a);
} dsc_backward_options;
DSC_API void dsc_backward_options_init_sized(dsc_backward_options *options, size_t size);
#define dsc_backward_options_init(options) dsc_backward_options_init_sized((options), sizeof *(options))
/* Computes the gradients of the last loss. Training executors only. Asynchronous. options may be NULL. */
DSC_API dsc_status dsc_exec_backward(dsc_exec *exec, dsc_queue *q,
                                     const dsc_backward_options *options) DSC_MUST_CHECK;

/* The sums over all losses since dsc_exec_clear_stats, F64[DSC_STAT_COUNT]; and the logits of the last
 * forward pass, [batch * positions, classes], with DSC_EXEC_TRAIN_ONCE until its backward pass begins. Both are on the
 * device. In training executors of half types rows of logits may be longer, and what follows the classes means nothing. */
DSC_API const dsc_tensor *dsc_exec_stats(const dsc_exec *exec);
DSC_API const dsc_tensor *dsc_exec_logits(const dsc_exec *exec);
/* Sets the sums to 0. Asynchronous. */
DSC_API dsc_status dsc_exec_clear_stats(dsc_exec *exec, dsc_queue *q) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

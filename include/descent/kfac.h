/* Distributed K-FAC: a preconditioner for the gradients of linear, convolution and transposed convolution layers, and
 * optionally of norms, embeddings and tied heads.
 *
 * A layer is described by its name, its shape and the memory of its gradients. In every step the caller
 * passes each layer's input a and the gradient g at its output, and K-FAC overwrites the gradients with the
 * preconditioned ones. It works in any training loop, with any optimiser:
 *
 *   dsc_kfac_begin(kfac, 1)                       at the start of a step
 *   dsc_kfac_capture(kfac, queue, layer, a, g)    for every layer in backward order, as soon as a and g exist
 *   ... the caller averages the gradients over the ranks ...
 *   dsc_kfac_step(kfac, queue, lr)                the gradients are now the preconditioned ones
 *
 * Frameworks whose gradients change their addresses from step to step describe layers with late_gradients, and
 * say before dsc_kfac_step where the gradients are (dsc_kfac_set_gradients).
 *
 * For each layer, let D[out, columns] be its gradient (the bias is the last column), A and G the running averages
 * of the second moments of its input patches and output gradients, and P the preconditioned gradient:
 *
 *   eigen      A = QA diag(vA) QA', G = QG diag(vG) QG',  P = QG [(QG' D QA) / (vG vA' + damping)] QA'
 *   inverse    P = (G + damping I)^-1 D (A + damping I)^-1; damping_split divides the damping between the two
 *   KL clip    D <- nu P,  nu = min(1, sqrt(kl_clip / |lr^2 sum <P, D>|)) over all layers, or layer by layer
 *
 * Step k (from 0) updates the averages if k % factor_freq == 0 and decomposes if k % update_freq == 0.
 * Each group of a grouped convolution counts as a layer of its own.
 *
 * Ownership: arguments are copied, including strings and what structs point to, unless a comment says that a
 * pointer is kept. The memory of tensors is never copied and must outlive the object. Returned pointers belong to
 * the object and stay valid until it is destroyed, unless a comment names an earlier end. Except for the destroy
 * functions, no function accepts NULL for an object or a result. */
#ifndef DSC_KFAC_H
#define DSC_KFAC_H

#include "descent/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_kfac dsc_kfac;

/* The kinds of layers: X(constant, name). */
#define DSC_KFAC_KINDS(X)                                                                                    \
    X(DSC_KFAC_LINEAR, linear)                                                                               \
    X(DSC_KFAC_CONV2D, conv2d)                                                                               \
    X(DSC_KFAC_BATCH_NORM, batch_norm)                                                                       \
    X(DSC_KFAC_CONV_TRANSPOSE2D, conv_transpose2d)                                                           \
    X(DSC_KFAC_LAYER_NORM, layer_norm)                                                                       \
    X(DSC_KFAC_EMBEDDING, embedding)                                                                         \
    X(DSC_KFAC_TIED_HEAD, tied_head)

typedef enum dsc_kfac_kind {
#define DSC_KFAC_KIND_ENUM(constant, name) constant,
    DSC_KFAC_KINDS(DSC_KFAC_KIND_ENUM)
#undef DSC_KFAC_KIND_ENUM
} dsc_kfac_kind;

/* Returns the name of a kind, a static string: "linear", "conv2d", "batch_norm", "conv_transpose2d", "layer_norm",
 * "embedding", "tied_head"; "unknown" for any other number. */
DSC_API const char *dsc_kfac_kind_name(dsc_kfac_kind kind);

/* A layer: the tensors a and g that dsc_kfac_capture will be given, and the memory of its gradients.
 *
 *   linear   a[rows, in_c], g[rows, out_c], with any number of leading dimensions (sequences: the loss is averaged
 *            over all rows); weights are [out_c, in_c]
 *   conv2d   a[n, in_h, in_w, in_c], g[n, out_h, out_w, out_c] of `conv`; weights are OHWI. If in_h and in_w are
 *            0, images may have any size, which may change from capture to capture
 *   batch_norm   scale (weight_grad) and shift (bias_grad) of in_c channels; keeps its gradients unless
 *            options.norm says otherwise. Captured with dsc_kfac_capture_sample. Other normalisations can be
 *            described in the same way if their normalised input is captured (a without mean and invstd)
 *   conv_transpose2d   a[n, in_h, in_w, in_c], g[n, out_h, out_w, out_c] of dsc_model_conv_transpose2d with geometry
 *            `conv`, with one group; weights are [in_c, kernel_h, kernel_w, out_c]. A is made of the in_c numbers of a
 *            pixel, G of the kernel_h kernel_w out_c output gradients that the pixel contributed to. The bias keeps its
 *            gradient: bias_grad is not used. in_h and in_w may be 0 as for conv2d; late_gradients is refused
 *   layer_norm   like batch_norm, for norms with statistics of single samples: layer, RMS and group norms. No memory
 *            in bias_grad: the norm has no shift
 *   embedding   a table of in_c rows of out_c numbers: weights are [in_c, out_c], no bias. a holds a row number (F32 or
 *            F64, -1 for none) for every row of g[n, ..., out_c]; without a, the rows of g belong to positions
 *            0 .. in_c - 1, repeated. Keeps its gradient unless options.embeddings says otherwise. A is diagonal: the
 *            relative frequencies of the rows. late_gradients is refused
 *   tied_head   the last linear layer of a language model, whose weights [out_c, in_c] are also the table of an
 *            embedding: weight_grad is the sum of both gradients; no bias. a[rows, in_c], with any number of leading
 *            dimensions, is its input; g is not used. Keeps its gradient unless options.tied_head says otherwise; then
 *            P = D (A + damping I)^-1 with A = sum a a' / rows, by eigenvectors with either method, and without G.
 *            late_gradients is refused */
typedef struct dsc_kfac_layer {
    size_t size;
    const char *name; /* not empty, and different for every layer */
    dsc_kfac_kind kind;
    int64_t in_c, out_c;          /* linear, tied_head: features; ignored for conv2d and conv_transpose2d */
    const dsc_conv2d_shape *conv; /* conv2d, conv_transpose2d: its geometry; ignored for linear */
    /* The gradients of the weights, in the order given above, and of the bias, out_c numbers; both F32 or F64.
     * No memory in bias_grad: the layer has no bias. */
    dsc_tensor weight_grad, bias_grad;
    /* 1: the gradients move. Before every dsc_kfac_step, dsc_kfac_set_gradients must say where they are. Of weight_grad
     * only the type and the device are used; bias_grad only tells whether there is a bias: there is one if it has
     * dimensions or memory. Default 0. */
    int late_gradients;
    /* 1: the layer keeps its plain gradient, like those that options.skip_layers names. Default 0. */
    int leave_out;
    /* linear: 0 (default) or 1: one G. b > 1: the outputs consist of b parts of equal size, like the queries, keys and
     * values of attention, which have a G each and share one A. b divides out_c. */
    int64_t out_blocks;
    /* linear: 0 (default): the layer has an A of its own. l + 1: it shares the A of layer l of the array, an earlier
     * layer whose same_input is 0. It must read the same input and run whenever layer l runs. A is made of the inputs
     * of layer l (or of the first of the layers that is not left out). The layers must have equal numbers of inputs,
     * and either both or neither must have a bias. */
    int64_t same_input;
} dsc_kfac_layer;

/* Sets `size`, and everything else to 0. In an array of layers every element must be initialised with it: functions
 * take the distance between elements from the size of the first, so that the struct can grow. The macro passes the size
 * of the struct that the caller was compiled with. */
DSC_API void dsc_kfac_layer_init_sized(dsc_kfac_layer *layer, size_t size);
#define dsc_kfac_layer_init(layer) dsc_kfac_layer_init_sized((layer), sizeof *(layer))
/* Writes the number of units of a layer (the groups of a convolution, the out_blocks of a linear layer, otherwise 1)
 * and the sizes of a unit's factors: a_n rows of A (including the bias) and g_n rows of G. DSC_E_INVALID, with the
 * reason, if the description is impossible. */
DSC_API dsc_status dsc_kfac_layer_factors(const dsc_kfac_layer *layer, int64_t *a_n, int64_t *g_n,
                                          int64_t *units) DSC_MUST_CHECK;

typedef enum dsc_kfac_method { DSC_KFAC_EIGEN, DSC_KFAC_INVERSE } dsc_kfac_method;

/* How N ranks divide the work. With m gradient workers per layer, the ranks form a grid of m rows and N/m
 * columns, filled row by row. A layer belongs to a column: its ranks hold the decomposition, and in every step
 * they send the preconditioned gradient along the rows. */
typedef enum dsc_kfac_strategy {
    /* m = N: every rank holds all decompositions and preconditions all layers. Between updates of the factors ranks
     * communicate only to compare which layers ran. */
    DSC_KFAC_COMM_OPT,
    DSC_KFAC_MEM_OPT,    /* m = 1: one rank holds a layer's decomposition */
    DSC_KFAC_HYBRID_OPT, /* m = N * grad_worker_fraction */
    DSC_KFAC_LAYER_WISE  /* the same as mem-opt, under the name that older programs use */
} dsc_kfac_strategy;

/* How matrices to decompose are assigned to columns and ranks. */
typedef enum dsc_kfac_placement {
    DSC_KFAC_ROUND_ROBIN,
    DSC_KFAC_COMPUTE, /* the most expensive layer first, to the least loaded column and rank; cost n^3 */
    DSC_KFAC_MEMORY   /* the same with cost n^2 */
} dsc_kfac_placement;

/* The scale of the factors, for N samples and S output positions of a convolution (input positions of a transposed one;
 * for linear layers S = 1, and N is the number of rows):
 *   paper          A = sum a a' / (N S^2),  G = N S sum g g'
 *   kfac-pytorch   A = sum a a' / (N S^3),  G = sum g g' / (N S^3)   (negligible against common dampings)
 * options.loss_terms changes G of the paper's scaling, for a loss that is the mean of several terms per sample. */
typedef enum dsc_kfac_scaling { DSC_KFAC_PAPER, DSC_KFAC_PYTORCH } dsc_kfac_scaling;

/* How the inverse method divides the damping d between the factors of a layer, A of a_n and G of g_n rows:
 *   none   A + d I and G + d I: the products of eigenvalues are damped by d (vA + vG) + d^2, not by d
 *   pi     A + pi sqrt(d) I and G + sqrt(d) / pi I, pi^2 = (tr A / a_n) / (tr G / g_n): both are damped in
 *          proportion to their mean eigenvalue, and the result is close to that of the eigen method. pi is 1 if
 *          a trace is 0 */
typedef enum dsc_kfac_split { DSC_KFAC_SPLIT_NONE, DSC_KFAC_SPLIT_PI } dsc_kfac_split;

/* EKFAC: where the eigenvalues of a layer come from. With EKFAC, P = QG [(QG' D QA) / (s + damping)] QA', where
 * s[out, columns] is a running average (stat_decay) of second moments of gradients in the basis of QG and QA. It
 * starts as vG vA' and is carried over from the basis of one decomposition to that of the next. */
typedef enum dsc_kfac_ekfac {
    DSC_KFAC_EKFAC_OFF, /* s = vG vA': products of the factors' eigenvalues */
    /* Moments N (QG' D QA)^2 of the gradient D of every step, for a step of N samples: almost free, but only one
     * observation of each number per step. */
    DSC_KFAC_EKFAC_BATCH,
    DSC_KFAC_EKFAC_SAMPLES /* means over the captured samples of (QG' D_n QA)^2, D_n the gradient of one */
} dsc_kfac_ekfac;

/* How a decomposition is computed when there is an earlier one of the same factors.
 *   exact   from scratch
 *   warm    the earlier eigenvectors are rotated towards the new ones by matrix products, which takes a fraction of
 *           the time; an estimate of the error decides whether the result is used. Factors of up to 128 rows,
 *           and those whose rotation was rejected, are solved from scratch. Method eigen only.
 *   auto    warm on a GPU with method eigen, otherwise exact */
typedef enum dsc_kfac_refresh { DSC_KFAC_EXACT, DSC_KFAC_WARM, DSC_KFAC_AUTO } dsc_kfac_refresh;

/* How the bound of the KL clip scales with the batch:
 *   none    the bound is kl_clip
 *   ranks   the bound is kl_clip times the number of local batches that the gradient is the mean of (ranks times
 *           passes), so that kl_clip is the bound for one batch on one rank */
typedef enum dsc_kfac_clip_scaling { DSC_KFAC_CLIP_NONE, DSC_KFAC_CLIP_RANKS } dsc_kfac_clip_scaling;

/* How scale and shift of batch, layer, RMS and group norms are preconditioned: P = (F + damping I)^-1 D for every
 * channel, where D = (dscale, dshift), and F is a running average of the 2x2 second moments of the gradients of single
 * samples. For norms without a shift F is one number: P = D / (F + damping). */
typedef enum dsc_kfac_norm_choice {
    DSC_KFAC_NORM_OFF, /* they keep their gradients */
    DSC_KFAC_NORM_FULL,
    DSC_KFAC_NORM_DIAGONAL /* without the element of F that couples scale and shift */
} dsc_kfac_norm_choice;

/* How to treat the head of a language model whose weight is also the table of its tokens. Its gradient also has rows
 * for tokens that are not in the batch, which the diagonal factor of an embedding would divide by the damping alone. */
typedef enum dsc_kfac_tied_choice {
    DSC_KFAC_TIED_SKIP, /* it keeps its gradient */
    DSC_KFAC_TIED_INPUT /* P = D (A + damping I)^-1 with A of the head's input; there is no G */
} dsc_kfac_tied_choice;

/* How the KL clip shortens a step, over L layers:
 *   global   one factor for all layers: nu = min(1, sqrt(kl_clip / |lr^2 sum <P, D>|))
 *   layer    a factor for each layer, which gets an equal share of the bound:
 *            nu_l = min(1, sqrt(kl_clip / (L |lr^2 <P_l, D_l>|))). The sum over layers has the same bound, but a layer
 *            with a long step does not shorten the steps of the others. nu is then the mean of all nu_l */
typedef enum dsc_kfac_clip { DSC_KFAC_CLIP_GLOBAL, DSC_KFAC_CLIP_LAYER } dsc_kfac_clip;

/* The factors of a linear layer that is applied to every position of a sequence, a[n,t,in], g[n,t,out], for a loss that
 * is the mean of M terms:
 *   expand   every position is a row: A = sum a a' / (n t), G = M sum g g'
 *   reduce   every sequence is a row: A = sum b b' / n, b the mean of its a, and G = M sum h h', h the sum of its g */
typedef enum dsc_kfac_sharing { DSC_KFAC_EXPAND, DSC_KFAC_REDUCE } dsc_kfac_sharing;

/* Convert a name as written on the command line ("comm-opt", "round-robin", ...) to its constant, and back. An
 * unknown name is DSC_E_INVALID, and the message lists the known ones; an unknown constant gives "unknown". */
DSC_API dsc_status dsc_kfac_method_parse(const char *name, dsc_kfac_method *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_strategy_parse(const char *name, dsc_kfac_strategy *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_placement_parse(const char *name, dsc_kfac_placement *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_scaling_parse(const char *name, dsc_kfac_scaling *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_split_parse(const char *name, dsc_kfac_split *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_ekfac_parse(const char *name, dsc_kfac_ekfac *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_refresh_parse(const char *name, dsc_kfac_refresh *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_clip_scaling_parse(const char *name, dsc_kfac_clip_scaling *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_norm_parse(const char *name, dsc_kfac_norm_choice *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_clip_parse(const char *name, dsc_kfac_clip *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_sharing_parse(const char *name, dsc_kfac_sharing *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_tied_parse(const char *name, dsc_kfac_tied_choice *out) DSC_MUST_CHECK;
DSC_API const char *dsc_kfac_method_name(dsc_kfac_method method);
DSC_API const char *dsc_kfac_strategy_name(dsc_kfac_strategy strategy);
DSC_API const char *dsc_kfac_placement_name(dsc_kfac_placement placement);
DSC_API const char *dsc_kfac_scaling_name(dsc_kfac_scaling scaling);
DSC_API const char *dsc_kfac_split_name(dsc_kfac_split split);
DSC_API const char *dsc_kfac_ekfac_name(dsc_kfac_ekfac ekfac);
DSC_API const char *dsc_kfac_norm_name(dsc_kfac_norm_choice norm);
DSC_API const char *dsc_kfac_refresh_name(dsc_kfac_refresh refresh);
DSC_API const char *dsc_kfac_clip_name(dsc_kfac_clip clip);
DSC_API const char *dsc_kfac_sharing_name(dsc_kfac_sharing sharing);
DSC_API const char *dsc_kfac_tied_name(dsc_kfac_tied_choice tied);
DSC_API const char *dsc_kfac_clip_scaling_name(dsc_kfac_clip_scaling scaling);

/* The hyper-parameters of one step, which a schedule may change. They mean the same as in dsc_kfac_options. */
typedef struct dsc_kfac_hyper {
    double damping, stat_decay, kl_clip;
    int64_t factor_freq, update_freq;
    /* The number of diagonal blocks per factor: 1 for whole factors, or the value of dsc_kfac_options.diag_blocks, for
     * which 0 also stands. A change takes effect at the next decomposition. */
    int64_t diag_blocks;
} dsc_kfac_hyper;

/* Each comment begins with the default value, followed by what the member or other values mean. */
typedef struct dsc_kfac_options {
    size_t size;
    double damping;      /* 0.003; a normal positive float32 */
    double stat_decay;   /* 0.95: F <- decay F + (1 - decay) F_batch */
    double kl_clip;      /* 0.001; 0: no clip */
    int64_t factor_freq; /* 1: steps between updates of the factors; 0: never */
    int64_t update_freq; /* 10: steps between decompositions; 0: gradients are not preconditioned */
    /* NULL: the values above are constants. Otherwise it is called at the start of every step with these values, and
     * may change any of them, in the same way on every rank. The pointer to the context is kept. */
    dsc_status (*schedule)(void *context, int64_t step, dsc_kfac_hyper *hyper);
    void *context;
    dsc_kfac_method method;       /* eigen */
    dsc_kfac_scaling scaling;     /* paper */
    dsc_kfac_strategy strategy;   /* comm-opt */
    double grad_worker_fraction;  /* 0.5; hybrid-opt only */
    dsc_kfac_placement placement; /* compute */
    int colocate_factors;         /* 1: A and G of a layer are decomposed by the same rank */
    int symmetric;                /* 1: factors and inverses are sent as packed triangles */
    /* 0. 1: the decomposing rank computes 1/(vG vA' + damping), which is sent instead of vA and vG. Only for method
     * eigen with co-located factors. */
    int outer_product;
    /* 1. b > 1: the factors of convolutions are split into b blocks on the diagonal, and each is decomposed on its
     * own. Only with comm-opt and without outer_product. Memory for decompositions of whole factors is held as well,
     * because a schedule may ask for them. */
    int64_t diag_blocks;
    /* NULL. POSIX extended regular expressions, separated by spaces: a layer keeps its plain gradient if one of them
     * matches a part of its name or kind ("linear", "conv2d", "conv_transpose2d", "batch_norm", "layer_norm",
     * "embedding", "tied_head"). */
    const char *skip_layers;
    /* DSC_F32: factors have the type of the gradients. DSC_BF16, DSC_F16: they are stored and sent in this type and
     * computed in float32. An average in a half type stops changing once a batch moves it by less than half a unit in
     * its last place: with a decay of 0.95 it may stay 1/13 (bf16) or 1/102 (fp16) off. */
    dsc_dtype factor_dtype;
    dsc_dtype inverse_dtype; /* DSC_F32; the same for decompositions */
    int64_t passes;          /* 1: forward and backward passes per step (gradient accumulation) */
    size_t bucket_bytes;     /* 4 MiB: size of messages that are made of several tensors */
    /* 0. 1: running averages change in dsc_kfac_step only, never during captures. For callers that write to
     * dsc_kfac_averages. */
    int late_factors;
    /* none: how the damping is divided between A and G. Other values only for method inverse, and not with fp16
     * decompositions, because inverses have no bound that is known beforehand. */
    dsc_kfac_split damping_split;
    /* 0: averages start as the identity, of which decay^n is left after n updates. 1: the n-th update has the
     * decay min(stat_decay, 1 - 1/n): the first batch factor replaces the identity, and an average is the plain
     * mean of all batches until 1/n is below 1 - stat_decay. */
    int warmup_factors;
    /* off. Other values need method eigen, scaling paper, whole factors and no outer_product. With samples every rank
     * holds the eigenvectors of all layers, whatever the strategy. */
    dsc_kfac_ekfac ekfac;
    dsc_kfac_refresh refresh; /* exact */
    /* none: how the bound of the clip scales. For gradients that are the mean over all ranks of `comm`. */
    dsc_kfac_clip_scaling kl_clip_scaling;
    /* 100: how many steps a condition must hold before dsc_kfac_health raises an alarm; at least 1. The trainer uses an
     * epoch if that is more. */
    int64_t health_steps;
    /* 0: factors are computed from all samples. n: from the first n samples of every capture (entries of the first
     * dimension of a and g, if both have the same number of them), scaled so that their expectation is the same. The
     * order of samples must be random. Norms, embeddings and tied heads always use all samples. */
    int64_t factor_samples;
    dsc_kfac_norm_choice norm; /* off */
    /* 1: bases keep all eigenvectors. Below 1: for factors of more than 128 rows they keep the leading ones, this
     * fraction of them, and the mean of the other eigenvalues: A = Q v Q' + mean (I - Q Q'). The fraction of a factor
     * doubles at a refresh as long as the dropped eigenvalues are neither nearly equal nor negligible compared with the
     * damping. Needs refresh warm, whole factors, decompositions in F32, no outer_product and no EKFAC. */
    double rank;
    dsc_kfac_clip clip; /* global; layer: not together with norm */
    /* 0: a step that decomposes waits for the decomposition. n: the decomposition runs concurrently with the next
     * steps, in a thread and a queue of low priority, and is used from the n-th of them on, or from the next step that
     * decomposes if that comes first. Averages, decompositions and solves then need their memory twice. The first
     * decomposition is always waited for. Not with outer_product. */
    int64_t async_steps;
    /* 0: one term for convolutions, and one for each row of a linear layer. t: the number of terms of the loss per
     * entry of the first dimension n of a and g, if the loss is the mean of all terms: the positions of a language
     * model, the pixels of a segmentation. Scaling paper then has G = n t S sum g g', with S = 1 for linear layers,
     * whatever their number of rows. */
    int64_t loss_terms;
    /* expand. reduce needs scaling paper, and excludes EKFAC from samples. */
    dsc_kfac_sharing sharing;
    /* 0: tables of embeddings keep their gradients. 1: they are preconditioned; not together with clip layer. */
    int embeddings;
    dsc_kfac_tied_choice tied_head; /* skip; input: not together with clip layer */
} dsc_kfac_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_kfac_options_init_sized(dsc_kfac_options *options, size_t size);
#define dsc_kfac_options_init(options) dsc_kfac_options_init_sized((options), sizeof *(options))

/* Creates a preconditioner of layers[count]; plans and allocates everything. Every rank must pass the same layers, in
 * the same order, and the same options. options may be NULL: the defaults. comm and queue must outlive the object, and
 * all steps must use this queue. Collective: if one rank fails, all do. DSC_E_INVALID for combinations that cannot
 * work, with the reason and the valid values. */
DSC_API dsc_status dsc_kfac_create(dsc_comm *comm, dsc_queue *queue, const dsc_kfac_layer *layers,
                                   int64_t count, const dsc_kfac_options *options,
                                   dsc_kfac **out) DSC_MUST_CHECK;
/* Frees the object and sets *kfac to NULL. Accepts NULL and *kfac == NULL. Collective. */
DSC_API void dsc_kfac_destroy(dsc_kfac **kfac);
/* Frees the object without waiting for other ranks, for garbage collectors and after errors: its communicators are
 * abandoned (dsc_comm_abandon). If messages are in flight in the middle of a step, the memory that they use stays
 * allocated. Sets *kfac to NULL; accepts NULL and *kfac == NULL. Not collective. */
DSC_API void dsc_kfac_abandon(dsc_kfac **kfac);

/* Starts a step and calls the schedule. loss_scale: the number that the loss was multiplied by, apart from taking the
 * mean over the local batch of one pass: the loss scale of mixed precision, or 1/passes if the gradients of several
 * passes are summed. A step that was begun may be begun again instead of being finished, for example after an overflow:
 * its finite captures have then entered the averages, and nothing else has happened. Collective in that case. */
DSC_API dsc_status dsc_kfac_begin(dsc_kfac *kfac, double loss_scale) DSC_MUST_CHECK;
/* Returns 1 if captures of this step need a and g, 0 if they only record that the layer ran. */
DSC_API int dsc_kfac_wants_factors(const dsc_kfac *kfac);
/* Reports that layer number `layer` (from 0) ran, with its input a and the gradient g at its output. Work in the queue
 * reads them; work that is put into the queue later may change them. Call it once per pass for each layer, in the same
 * order on every rank. A layer that did not run must not be captured, on any rank, and is left out of the step. a and g
 * may be NULL if dsc_kfac_wants_factors returns 0; g of a tied head may always be. In the last pass this starts the
 * averaging over ranks, so every rank must make the call. Collective; asynchronous. */
DSC_API dsc_status dsc_kfac_capture(dsc_kfac *kfac, dsc_queue *queue, int64_t layer, const dsc_tensor *a,
                                    const dsc_tensor *g) DSC_MUST_CHECK;
/* The tensors of one capture. */
typedef struct dsc_kfac_sample {
    size_t size;
    dsc_tensor a, g;                     /* as for dsc_kfac_capture; with DSC_NCHW [n, channels, h, w] */
    dsc_image_layout a_layout, g_layout; /* of conv2d layers; default DSC_NHWC */
    /* Norms: a[n, ..., channels] is the input, mean and invstd [channels] are the statistics that it was normalised
     * with (no memory: a is already normalised). For a layer_norm they are [rows, groups], with one row for every
     * position or for every sample, and there may be an invstd alone. g is the gradient at the output. If a ReLU is
     * fused into the operation and g is the gradient after it, y is the output; otherwise y has no memory. */
    dsc_tensor mean, invstd, y;
    /* Linear layers on sequences, tied heads, and tables of positions: one number for each row, F32 or F64, such as the
     * tokens [n, positions] of a model. Rows with a negative number are padding and enter neither A nor G. No memory:
     * there is no padding. Linear layers: not with sharing reduce, nor with EKFAC from samples without loss_terms. */
    dsc_tensor tokens;
} dsc_kfac_sample;
/* Sets `size`, and everything else to 0. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_kfac_sample_init_sized(dsc_kfac_sample *sample, size_t size);
#define dsc_kfac_sample_init(sample) dsc_kfac_sample_init_sized((sample), sizeof *(sample))
/* Does the same as dsc_kfac_capture, also for images in the order NCHW, norms, and sequences with padding. Collective;
 * asynchronous. */
DSC_API dsc_status dsc_kfac_capture_sample(dsc_kfac *kfac, dsc_queue *queue, int64_t layer,
                                           const dsc_kfac_sample *sample) DSC_MUST_CHECK;

/* Where the gradients of a layer with late_gradients are in this step. */
typedef struct dsc_kfac_gradients {
    size_t size;
    void *weight; /* NULL: the layer has no gradient in this step and is left out of it, on all ranks */
    void *bias;   /* out_c contiguous numbers; NULL: no bias */
    /* The strides, in numbers, between output channels, between input channels (of a group), and between kernel
     * positions (row by row: the next row of a kernel is kernel_w positions further; 0 for linear layers). */
    int64_t out_stride, in_stride, position_stride;
} dsc_kfac_gradients;
/* Sets `size`, and everything else to 0. In an array every element must be initialised with it. */
DSC_API void dsc_kfac_gradients_init_sized(dsc_kfac_gradients *gradients, size_t size);
#define dsc_kfac_gradients_init(gradients) dsc_kfac_gradients_init_sized((gradients), sizeof *(gradients))
/* Says where the gradients of layers first .. first + count - 1 are, which must all have late_gradients. The memory
 * must be on the layers' device; it is read and written by work in the queue, and must stay allocated until the work of
 * the next dsc_kfac_step is done. Such a layer takes part in a step if it has a gradient, whether it was captured or
 * not; its gradient is left as it is until the layer has been captured in a step that decomposed (a batch norm: until
 * it has been captured; its numbers must be contiguous: out_stride 1). Weights that are OHWI and have no bias are used
 * in place; others are gathered and written back by one operation for all layers. Not collective. */
DSC_API dsc_status dsc_kfac_set_gradients(dsc_kfac *kfac, int64_t first, int64_t count,
                                          const dsc_kfac_gradients *gradients) DSC_MUST_CHECK;

/* Sets how often a layer is captured in one pass, from the next capture on; 1 if it was never called. 0: any number,
 * which may differ from pass to pass and from rank to rank. If a layer is used several times, A is the mean over its
 * uses and G the sum, because there is one loss. DSC_E_INVALID if the number changes after captures of this step. Not
 * collective, but all ranks must make the same call. */
DSC_API dsc_status dsc_kfac_set_uses(dsc_kfac *kfac, int64_t layer, int64_t uses) DSC_MUST_CHECK;
/* Replaces options.passes from the next dsc_kfac_begin on. Not collective, but all ranks must make the same call. */
DSC_API dsc_status dsc_kfac_set_passes(dsc_kfac *kfac, int64_t passes) DSC_MUST_CHECK;
/* Replaces damping, stat_decay, kl_clip, factor_freq and update_freq of the options, and the number of diagonal blocks
 * in use (0: unchanged), from the next dsc_kfac_begin on. Not collective, but all ranks must make the same call. */
DSC_API dsc_status dsc_kfac_set_hyper(dsc_kfac *kfac, const dsc_kfac_hyper *hyper) DSC_MUST_CHECK;
/* Multiplies all G from now on by an F64 scalar on the device, in addition to the correction for dsc_kfac_begin's
 * loss_scale: by 1 / scale^2 for a loss scale that only the device knows. NULL: no such factor. The pointer to the
 * tensor is kept. */
DSC_API void dsc_kfac_scale_g(dsc_kfac *kfac, const dsc_tensor *scale);
/* Returns the number of steps done. */
DSC_API int64_t dsc_kfac_steps(const dsc_kfac *kfac);

/* Updates the running averages and the decompositions if they are due in this step, and preconditions the
 * gradients. These must have been averaged and be equal on all ranks (with comm-opt they may differ: every rank
 * preconditions and clips its own). lr: the learning rate of the coming update, which the KL clip needs.
 * Collective. DSC_E_INVALID if layers ran on some ranks only, DSC_E_NUMERIC if a factor cannot be decomposed and
 * has no earlier decomposition, or if a gradient is not finite. On a GPU the call does not wait for the result: a
 * gradient that is not finite makes nu NaN, and the gradients stay as they were. */
DSC_API dsc_status dsc_kfac_step(dsc_kfac *kfac, dsc_queue *queue, double lr) DSC_MUST_CHECK;

/* Returns all running averages that this rank keeps, one after the other, as they are stored; no memory if there
 * are none. They may be read and overwritten between steps, and with options.late_factors until dsc_kfac_step. */
DSC_API const dsc_tensor *dsc_kfac_averages(const dsc_kfac *kfac);
/* Returns the hyper-parameters of this step, or between steps of the last one, with schedules applied. */
DSC_API const dsc_kfac_hyper *dsc_kfac_hyper_now(const dsc_kfac *kfac);

/* ---- timings and reports ---- */

/* Milliseconds that this rank spent in a step. */
typedef struct dsc_kfac_times {
    double factor; /* updating the factors, including captures */
    double decompose;
    double precondition;
} dsc_kfac_times;

typedef struct dsc_kfac_layer_report {
    const char *name;    /* with "[g]" appended for group g of a grouped convolution */
    double cosine;       /* between D and P; NaN if one of them is 0 or the layer was left out */
    double a_min, a_max; /* eigenvalues of A; NaN with the inverse method */
    double g_min, g_max; /* eigenvalues of G; NaN with the inverse method */
    double condition;    /* (a_max g_max + damping) / (a_min g_min + damping); NaN as above */
} dsc_kfac_layer_report;

/* A report on the preconditioner. Everything that it points to is valid until the next report. */
typedef struct dsc_kfac_report {
    int64_t step;                /* steps done */
    int updated, decomposed;     /* 1: the last step updated the averages; 1: it decomposed */
    const dsc_kfac_hyper *hyper; /* of the last step */
    const dsc_kfac_times *times; /* of the last step, this rank */
    double nu;                   /* of the last step; 1 before the first */
    /* Since the start, over all ranks: failed solves, after which the earlier decomposition stayed in use; solves
     * that needed a second or third method; batch factors left out because they were not finite. */
    int64_t failed_solves, retried_solves, rejected_factors;
    size_t factor_bytes, decomposition_bytes, exchange_bytes, work_bytes; /* held by this rank */
    int ranks;
    const double *work;     /* [ranks] sum of n^3 over the matrices that each rank decomposes */
    const double *solve_ms; /* [ranks] milliseconds of each rank's solves in the last decomposition */
    int64_t layer_count;
    const dsc_kfac_layer_report *layers; /* [layer_count] */
    /* With warm refresh, since the start, over all ranks: factors whose eigenvectors were rotated; iterations that
     * were added after a rejected rotation; exact solves because rotations did not succeed. */
    int64_t refreshed_factors, extra_iterations, exact_fallbacks;
    /* With clip layer: [layer_count] the nu_l of the last step; 1 before the first. NULL with one nu for all
     * layers. */
    const double *layer_nus;
} dsc_kfac_report;

/* Writes the clip factor nu of the last step; waits for the queue. */
DSC_API dsc_status dsc_kfac_nu(dsc_kfac *kfac, dsc_queue *queue, double *nu) DSC_MUST_CHECK;
/* Returns the times of the last step; valid until the next step. */
DSC_API const dsc_kfac_times *dsc_kfac_get_times(const dsc_kfac *kfac);
/* Returns 1 if the last step decomposed, otherwise 0. */
DSC_API int dsc_kfac_decomposed(const dsc_kfac *kfac);
/* Gathers a report from all ranks; *out is valid until the next report. Cosines and eigenvalues are those of the last
 * step that decomposed. Collective; blocks. */
DSC_API dsc_status dsc_kfac_get_report(dsc_kfac *kfac, dsc_queue *queue,
                                       const dsc_kfac_report **out) DSC_MUST_CHECK;

/* The bytes of device memory that this rank holds now, by purpose; [2]: for A and for G. The caller sets `size` to
 * sizeof(dsc_kfac_memory). */
typedef struct dsc_kfac_memory {
    size_t size;
    size_t factors[2];        /* running averages */
    size_t batches[2];        /* batch factors that wait to be averaged */
    size_t decompositions[2]; /* eigenvectors and eigenvalues that are kept, or inverses */
    size_t outer_products;    /* those of options.outer_product */
    size_t moments;           /* EKFAC: second moments, running averages and those of a step */
    size_t norms;             /* Fisher matrices of norms, running averages and those of a step */
    /* Everything else: gathered and preconditioned gradients, scratch memory, and with options.async_steps the
     * second set of factors and decompositions. */
    size_t work;
} dsc_kfac_memory;
/* Writes the memory in use. Waits for a decomposition that runs concurrently (options.async_steps). Not collective. */
DSC_API dsc_status dsc_kfac_get_memory(dsc_kfac *kfac, dsc_kfac_memory *out) DSC_MUST_CHECK;

/* What may be wrong with a run. An alarm is raised if its condition held in all steps that decomposed, over at
 * least options.health_steps steps; if several apply, the first one in this list. */
typedef enum dsc_kfac_alarm {
    DSC_KFAC_ALARM_NONE,
    /* All convolutions (or all layers if there are no convolutions) had cosines between D and P above 0.999: K-FAC
     * has changed nothing but the length of their gradients. */
    DSC_KFAC_ALARM_PARALLEL,
    DSC_KFAC_ALARM_REFUSED, /* at least half of the refreshed decompositions were refused */
    DSC_KFAC_ALARM_CLIPPED, /* nu was below 0.05 */
    DSC_KFAC_ALARM_COUNT
} dsc_kfac_alarm;

/* Whether K-FAC has the effect that it is meant to have. The caller sets `size` to
 * sizeof(dsc_kfac_health_report). */
typedef struct dsc_kfac_health_report {
    size_t size;
    int degenerate;         /* 1: the condition of DSC_KFAC_ALARM_PARALLEL has held for that long */
    double smallest_cosine; /* between D and P over those layers in the last decomposition; NaN: unknown */
    int64_t since;          /* if degenerate, the first step of that condition; otherwise -1 */
    dsc_kfac_alarm alarm;
    /* What is wrong, since when, and what to do, in one or two sentences; NULL without an alarm. Owned by the
     * preconditioner, and valid until the next call. */
    const char *message;
    double nu; /* of the last step that decomposed; NaN: unknown */
} dsc_kfac_health_report;
/* Writes a health report. Waits for the queue if the last step decomposed. Not collective. */
DSC_API dsc_status dsc_kfac_health(dsc_kfac *kfac, dsc_queue *queue,
                                   dsc_kfac_health_report *out) DSC_MUST_CHECK;

/* ---- state, for checkpoints ----
 *
 * The state is a list of named numbers and tensors, the same on every rank and for every strategy, placement and number
 * of ranks: "step" and other numbers, "NAME.A", "NAME.G" (packed lower triangles), and the decompositions
 * ("NAME.A.vectors", "NAME.A.values", "NAME.A.inverse", ..., with ".B" appended for diagonal block B). Which
 * decompositions there are depends on a required entry ("blocks"): after setting the required entries, get the list
 * again. */
typedef struct dsc_kfac_entry {
    const char *name;
    dsc_dtype dtype;
    int ndim; /* 0: a number */
    int64_t dim[2];
    /* 0: required. 1: a decomposition; a state that lacks some of them is loaded without any, and the next step
     * decomposes. 2: to be set together with the required entries; if a state lacks it, as those of earlier versions
     * do, pass zeros. */
    int optional;
} dsc_kfac_entry;

/* Return the number of entries, and the entries. */
DSC_API int64_t dsc_kfac_state_count(const dsc_kfac *kfac);
DSC_API const dsc_kfac_entry *dsc_kfac_state_entries(const dsc_kfac *kfac);
/* Copies entry `index` to host memory of rank 0, which must be large enough; `host` is ignored on other ranks.
 * Collective; blocks. */
DSC_API dsc_status dsc_kfac_state_get(dsc_kfac *kfac, dsc_queue *queue, int64_t index,
                                      void *host) DSC_MUST_CHECK;
/* Copies entry `index` as this rank holds it to its host memory, and sets *held = 1; if this rank does not hold it,
 * sets *held = 0 and copies nothing. With comm-opt every rank holds all entries, so that one rank can save the state
 * alone; counters are then those of this rank. Not collective; blocks. */
DSC_API dsc_status dsc_kfac_state_get_own(dsc_kfac *kfac, dsc_queue *queue, int64_t index, void *host,
                                          int *held) DSC_MUST_CHECK;
/* Copies entry `index` from host memory of rank 0 to the ranks that hold it. Set all required entries first, then all
 * optional ones or none, and then call dsc_kfac_state_done. Collective; blocks. */
DSC_API dsc_status dsc_kfac_state_set(dsc_kfac *kfac, dsc_queue *queue, int64_t index,
                                      const void *host) DSC_MUST_CHECK;
/* Ends loading. with_decompositions: 1 if the optional entries were set; 0 if they were not, so that the next step
 * decomposes. Collective. */
DSC_API dsc_status dsc_kfac_state_done(dsc_kfac *kfac, dsc_queue *queue,
                                       int with_decompositions) DSC_MUST_CHECK;

/* ---- the plan, without training ---- */

typedef struct dsc_kfac_plan dsc_kfac_plan;

typedef enum dsc_kfac_side { DSC_KFAC_A, DSC_KFAC_G } dsc_kfac_side;

/* One matrix to decompose. */
typedef struct dsc_kfac_item {
    int64_t unit; /* index in dsc_kfac_plan_units */
    dsc_kfac_side side;
    int64_t block; /* index of the diagonal block; 0 for whole factors */
    /* Its first row in the factor; with diagonal blocks, rows of A are ordered by input channel. */
    int64_t first;
    int64_t n; /* rows */
    int owner; /* the rank that decomposes it */
} dsc_kfac_item;

/* A layer, a group of a grouped convolution, or a part of a layer with out_blocks. */
typedef struct dsc_kfac_unit {
    const char *name;     /* "NAME[g]" for groups and parts */
    int64_t layer, group; /* the index of the layer, and of the group or part in it */
    dsc_kfac_kind kind;
    int64_t a_n, g_n; /* rows of A (including the bias) and G: D is [g_n, a_n] */
    /* The number of diagonal blocks, 1 for a whole factor. a_blocks 0: the unit uses the A of an earlier unit, which
     * has the same inputs. */
    int64_t a_blocks, g_blocks;
    int64_t first_item; /* the first of its items: the blocks of A, then those of G */
    int column;         /* of the grid */
} dsc_kfac_unit;

/* What one rank computes, holds and sends. */
typedef struct dsc_kfac_load {
    double work;                /* sum of n^3 over its items */
    size_t factor_bytes;        /* running averages that it keeps */
    size_t decomposition_bytes; /* decompositions that it keeps */
    size_t exchange_bytes;      /* batch factors that wait to be averaged */
    /* Bytes sent, by the formulas of dsc_comm_bytes: per update of the factors, per decomposition, per step. */
    double factors_sent, decompositions_sent, preconditioned_sent;
} dsc_kfac_load;

/* Creates the plan for `ranks` ranks, which the caller destroys with dsc_kfac_plan_destroy. The gradients of the layers
 * need no memory: only their type (F32 if it was not set) and whether there is a bias are used. Skipped layers are
 * left out. blocks: 1 for whole factors, or options.diag_blocks. options may be NULL: the defaults. Not collective. */
DSC_API dsc_status dsc_kfac_plan_create(const dsc_kfac_layer *layers, int64_t count, int ranks,
                                        const dsc_kfac_options *options, int64_t blocks,
                                        dsc_kfac_plan **out) DSC_MUST_CHECK;
/* Frees a plan and sets *plan to NULL. Accepts NULL and *plan == NULL. */
DSC_API void dsc_kfac_plan_destroy(dsc_kfac_plan **plan);
/* Return the units and the items of the plan, and their numbers. */
DSC_API int64_t dsc_kfac_plan_unit_count(const dsc_kfac_plan *plan);
DSC_API const dsc_kfac_unit *dsc_kfac_plan_units(const dsc_kfac_plan *plan);
DSC_API int64_t dsc_kfac_plan_item_count(const dsc_kfac_plan *plan);
DSC_API const dsc_kfac_item *dsc_kfac_plan_items(const dsc_kfac_plan *plan);
/* Return the numbers of rows (gradient workers of a layer) and columns of the grid; rank r is in row r / columns,
 * column r % columns. */
DSC_API int dsc_kfac_plan_rows(const dsc_kfac_plan *plan);
DSC_API int dsc_kfac_plan_columns(const dsc_kfac_plan *plan);
/* Returns the load of each rank: [ranks]. */
DSC_API const dsc_kfac_load *dsc_kfac_plan_loads(const dsc_kfac_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

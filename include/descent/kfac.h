/* Distributed K-FAC: a preconditioner for the gradients of linear and convolution layers.
 *
 * It knows layers as names, shapes and places of gradients, is handed a layer's input a and the gradient g at
 * its output, and rewrites gradients in place; it works in any training loop with any optimiser:
 *
 *   dsc_kfac_begin(kfac, 1)                       once a step
 *   dsc_kfac_capture(kfac, queue, layer, a, g)    for every layer, in backward order, as soon as a and g are
 * there
 *   ... gradients are averaged over the ranks ...
 *   dsc_kfac_step(kfac, queue, lr)                gradients are now the preconditioned ones
 *
 * Per layer, D[out, columns] the gradient with the bias as last column, A and G running averages of the
 * second moments of the layer's input patches and output gradients:
 *
 *   eigen      A = QA diag(vA) QA', G = QG diag(vG) QG',  P = QG [(QG' D QA) / (vG vA' + damping)] QA'
 *   inverse    P = (G + damping I)^-1 D (A + damping I)^-1
 *   KL clip    D <- nu P,  nu = min(1, sqrt(kl_clip / |lr^2 sum <P, D>|)) over all layers
 *
 * Step k (from 0) moves the averages when k % factor_freq == 0 and decomposes when k % update_freq == 0.
 * A grouped convolution counts as one layer per group. */
#ifndef DSC_KFAC_H
#define DSC_KFAC_H

#include "descent/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_kfac dsc_kfac;

typedef enum dsc_kfac_kind { DSC_KFAC_LINEAR, DSC_KFAC_CONV2D } dsc_kfac_kind;

/* A layer. Linear: a[rows, in_c] and g[rows, out_c], any number of leading dimensions (sequences: the loss is
 * averaged over all rows). Conv2d: a[n, in_h, in_w, in_c], g[n, out_h, out_w, out_c]; weights OHWI. */
typedef struct dsc_kfac_layer {
    const char *name; /* copied */
    dsc_kfac_kind kind;
    int64_t in_c, out_c; /* features or channels */
    /* conv2d only: */
    int64_t in_h, in_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
    dsc_tensor weight_grad; /* out_c * kernel_h * kernel_w * in_c / groups numbers, rows of output channels */
    dsc_tensor bias_grad;   /* out_c numbers; data NULL: no bias */
} dsc_kfac_layer;

/* Zeroes everything, then sets strides, dilations, kernel and groups to 1. */
DSC_API void dsc_kfac_layer_init(dsc_kfac_layer *layer);

typedef enum dsc_kfac_method { DSC_KFAC_EIGEN, DSC_KFAC_INVERSE } dsc_kfac_method;

/* Who does what, over N ranks. With m gradient workers a layer, ranks fill a grid of m rows and N/m columns
 * row by row; a layer belongs to a column: its decomposition lives there, and every step its preconditioned
 * gradient travels along the rows. */
typedef enum dsc_kfac_strategy {
    DSC_KFAC_COMM_OPT, /* m = N: everybody holds all and preconditions all; between updates ranks only compare
which layers ran */
    DSC_KFAC_MEM_OPT,  /* m = 1: a layer lives on one rank */
    DSC_KFAC_HYBRID_OPT, /* m = N * fraction */
    DSC_KFAC_LAYER_WISE  /* one rank does all of a layer: mem-opt under the name older programs use */
} dsc_kfac_strategy;

typedef enum dsc_kfac_placement {
    DSC_KFAC_ROUND_ROBIN,
    DSC_KFAC_COMPUTE, /* the costliest layer first to the least loaded column, then rank; cost n^3 */
    DSC_KFAC_MEMORY   /* the same with n^2 */
} dsc_kfac_placement;

/* Scale of the factors, N samples, S output positions of a convolution (1 for linear):
 *   paper          A = sum a a' / (N S^2),  G = N S sum g g'
 *   kfac-pytorch   A = sum a a' / (N S^3),  G = sum g g' / (N S^3)   (vanishes against common dampings) */
typedef enum dsc_kfac_scaling { DSC_KFAC_PAPER, DSC_KFAC_PYTORCH } dsc_kfac_scaling;

/* Names as on the command line ("comm-opt", "round-robin", ...), and back; DSC_E_INVALID lists the known
 * ones. */
DSC_API dsc_status dsc_kfac_method_parse(const char *name, dsc_kfac_method *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_strategy_parse(const char *name, dsc_kfac_strategy *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_placement_parse(const char *name, dsc_kfac_placement *out) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_scaling_parse(const char *name, dsc_kfac_scaling *out) DSC_MUST_CHECK;
DSC_API const char *dsc_kfac_method_name(dsc_kfac_method method);
DSC_API const char *dsc_kfac_strategy_name(dsc_kfac_strategy strategy);
DSC_API const char *dsc_kfac_placement_name(dsc_kfac_placement placement);
DSC_API const char *dsc_kfac_scaling_name(dsc_kfac_scaling scaling);

/* The hyper-parameters of one step. A schedule may change them; the members are those of dsc_kfac_options. */
typedef struct dsc_kfac_hyper {
    double damping, stat_decay, kl_clip;
    int64_t factor_freq, update_freq;
    /* 1: whole factors; otherwise dsc_kfac_options.diag_blocks, which 0 stands for, too. Used from the next
     * decomposition on. */
    int64_t diag_blocks;
} dsc_kfac_hyper;

typedef struct dsc_kfac_options {
    size_t size;
    double damping;      /* 0.003; a normal positive float32 */
    double stat_decay;   /* 0.95: F <- decay F + (1 - decay) F_batch */
    double kl_clip;      /* 0.001; 0: no clip */
    int64_t factor_freq; /* 1: steps between updates of the factors; 0: never */
    int64_t update_freq; /* 10: steps between decompositions; 0: the gradient stays as it is */
    /* Called at the start of a step with the values above; may change any of them, in the same way on every
     * rank. NULL: they are constants. */
    dsc_status (*schedule)(void *context, int64_t step, dsc_kfac_hyper *hyper);
    void *context;
    dsc_kfac_method method;
    dsc_kfac_scaling scaling;
    dsc_kfac_strategy strategy;
    double grad_worker_fraction;  /* hybrid-opt: 0.5 */
    dsc_kfac_placement placement; /* compute */
    int colocate_factors;         /* 1: A and G of a layer on one rank */
    int symmetric;                /* 1: factors and inverses travel as packed triangles */
    int outer_product;   /* 0; 1: the decomposing rank forms 1/(vG vA' + damping), which travels instead of
                            vA and vG. Eigen with co-located factors only. */
    int64_t diag_blocks; /* 1; b > 1: blocks on the diagonal of a convolution's factors, each decomposed by
                            itself. comm-opt only, without the outer product. Memory for whole factors'
                            decompositions is held, too: a schedule may ask for them. */
    /* NULL; POSIX extended regular expressions, separated by spaces, searched for in a layer's name and kind
     * ("linear", "conv2d"): what matches keeps its plain gradient. Copied. */
    const char *skip_layers;
    dsc_dtype factor_dtype;  /* DSC_F32: "as the gradients are"; DSC_BF16, DSC_F16: stored and sent as such,
                                computed in float32. An average stored so stands still once a batch moves it by
                                less than  half a unit in its last place: with a decay of 0.95 it may stay 1/13
                                (bf16) or 1/102 (fp16) off. */
    dsc_dtype inverse_dtype; /* the same for decompositions */
    int64_t passes;          /* 1: forward and backward passes of a step (gradient accumulation) */
    size_t bucket_bytes;     /* 4 MiB: what travels together */
    int late_factors; /* 0; 1: running averages change in dsc_kfac_absorb (or dsc_kfac_step) only, never
                         during captures: for callers that write to dsc_kfac_averages */
} dsc_kfac_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_kfac_options_init_sized(dsc_kfac_options *options, size_t size);
#define dsc_kfac_options_init(options) dsc_kfac_options_init_sized((options), sizeof *(options))

/* Plans and allocates everything; layers are copied, gradients' memory stays the caller's. Layers, options
 * and their order must be the same on every rank. Collective: when one rank fails, all do. DSC_E_INVALID for
 * combinations that cannot work, with the reason and the valid values. */
DSC_API dsc_status dsc_kfac_create(dsc_comm *comm, dsc_queue *queue, const dsc_kfac_layer *layers,
                                   int64_t count, const dsc_kfac_options *options,
                                   dsc_kfac **out) DSC_MUST_CHECK;
/* Collective. */
DSC_API void dsc_kfac_destroy(dsc_kfac **kfac);

/* Starts step k: asks the schedule. loss_scale: what the loss was multiplied by beyond the mean over the
 * local batch of one pass (mixed precision's scale; 1/passes when gradients of several passes are added up).
 * A step that was begun may be begun again instead of being finished (say, after an overflow): what was
 * captured in it has then entered the averages, as far as it was finite, and nothing else happened.
 * Collective in that case. */
DSC_API dsc_status dsc_kfac_begin(dsc_kfac *kfac, double loss_scale) DSC_MUST_CHECK;
/* 1 when this step wants inputs and gradients, 0 when captures only note that the layer ran. */
DSC_API int dsc_kfac_wants_factors(const dsc_kfac *kfac);
/* Layer `layer` (its number at creation) ran: its input and the gradient at its output, read by work in the
 * queue and free to change after it. Once per pass, in the same order on every rank; not called for a layer
 * that did not run: it is left out of the step, on all ranks alike. a and g may be NULL where none are
 * wanted. On the last pass the averaging over ranks starts at once. Collective in effect; asynchronous. */
DSC_API dsc_status dsc_kfac_capture(dsc_kfac *kfac, dsc_queue *queue, int64_t layer, const dsc_tensor *a,
                                    const dsc_tensor *g) DSC_MUST_CHECK;
/* Averages, decomposes and preconditions what is due; gradients must be the averaged ones, equal on all
 * ranks (with comm-opt they may differ: every rank preconditions its own, and clips it by itself). lr: the
 * rate of the coming update, for the clip. Collective. DSC_E_INVALID when layers ran on some ranks only,
 * DSC_E_NUMERIC when a factor cannot be decomposed and has no earlier decomposition, or when a gradient is
 * not finite. */
DSC_API dsc_status dsc_kfac_step(dsc_kfac *kfac, dsc_queue *queue, double lr) DSC_MUST_CHECK;

/* A step in parts, for callers that record their work (dsc_recording_begin) and replay it:
 *
 *   dsc_kfac_begin, dsc_kfac_prepare    what differs from step to step goes to the device
 *   captures, dsc_kfac_absorb           may be recorded, and replayed in steps that want factors alike
 *   dsc_kfac_decompose                  waits for the device; does nothing unless it is due
 *   dsc_kfac_apply                      may be recorded
 *   dsc_kfac_finish
 *
 * dsc_kfac_step is all of it from dsc_kfac_prepare on. On a GPU nothing but dsc_kfac_decompose waits: a
 * gradient that is not finite is then told by nu (dsc_kfac_nu_tensor, dsc_kfac_nu), which is NaN, and the
 * gradients are left alone. */
DSC_API dsc_status dsc_kfac_prepare(dsc_kfac *kfac, dsc_queue *queue, double lr) DSC_MUST_CHECK;
/* 0, 1 or 2: what dsc_kfac_apply would do now (with whole factors, with diagonal blocks, nothing). A
 * recording of it is good only where this is the same. */
DSC_API int dsc_kfac_recipe(const dsc_kfac *kfac);
/* 1 when dsc_kfac_decompose of the step that was begun has something to do. */
DSC_API int dsc_kfac_wants_decomposition(const dsc_kfac *kfac);
DSC_API dsc_status dsc_kfac_absorb(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
/* Instead of captures after a replay of them, so many passes by now, of every layer; and instead of
 * dsc_kfac_absorb. */
DSC_API void dsc_kfac_captured(dsc_kfac *kfac, int64_t passes);
DSC_API void dsc_kfac_absorbed(dsc_kfac *kfac);
DSC_API dsc_status dsc_kfac_decompose(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_apply(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
DSC_API dsc_status dsc_kfac_finish(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;

/* All running averages that this rank keeps, one behind the other, as they are stored; no memory when there
 * are none. May be read and overwritten between steps, and before dsc_kfac_absorb with late_factors. Lent. */
DSC_API const dsc_tensor *dsc_kfac_averages(const dsc_kfac *kfac);
/* What is in force in this step, or was in the last one, schedules applied. Lent. */
DSC_API const dsc_kfac_hyper *dsc_kfac_hyper_now(const dsc_kfac *kfac);
/* nu of the last step, an F64 scalar on the device; lent. */
DSC_API const dsc_tensor *dsc_kfac_nu_tensor(const dsc_kfac *kfac);
/* A factor of all G from now on, an F64 scalar on the device, beside the loss scale that dsc_kfac_begin is
 * given: 1 / scale^2 for a loss scale that the device alone knows. NULL: none. Lent. */
DSC_API void dsc_kfac_scale_g(dsc_kfac *kfac, const dsc_tensor *scale);

/* ---- insight ---- */
typedef struct dsc_kfac_layer_report {
    const char *name;    /* lent; with "[g]" behind it for group g of a grouped convolution */
    double cosine;       /* between D and P; NaN when one of them is 0 or it was left out */
    double a_min, a_max; /* eigenvalues of A, and of G; NaN with the inverse method */
    double g_min, g_max;
    double condition; /* (a_max g_max + damping) / (a_min g_min + damping); NaN as above */
} dsc_kfac_layer_report;

typedef struct dsc_kfac_report {
    int64_t step;                /* steps done */
    int updated, decomposed;     /* what the last step did */
    const dsc_kfac_hyper *hyper; /* of the last step */
    double nu;                   /* of the last step; 1 before the first */
    int64_t failed_solves;    /* decompositions kept from earlier because a solve failed, since the start, all
                                 ranks */
    int64_t retried_solves;   /* that needed a second or third method, all ranks */
    int64_t rejected_factors; /* batch factors left out because they were not finite, all ranks */
    double factor_ms, decompose_ms, precondition_ms;                      /* of the last step, this rank */
    size_t factor_bytes, decomposition_bytes, exchange_bytes, work_bytes; /* held by this rank */
    int ranks;
    const double *work;     /* [ranks] sum of n^3 each rank decomposes; lent */
    const double *solve_ms; /* [ranks] time each rank solved in the last decomposition; lent */
    int64_t layer_count;
    const dsc_kfac_layer_report *layers; /* lent */
} dsc_kfac_report;

/* nu of the last step; waits for the queue. */
DSC_API dsc_status dsc_kfac_nu(dsc_kfac *kfac, dsc_queue *queue, double *nu) DSC_MUST_CHECK;
/* Milliseconds of the last step, captures included: factors, decompositions, preconditioning. */
DSC_API void dsc_kfac_times(const dsc_kfac *kfac, double ms[3]);
/* 1 when the last step decomposed. */
DSC_API int dsc_kfac_decomposed(const dsc_kfac *kfac);
/* Everything, gathered from all ranks; lent until the next call. Cosines and eigenvalues are those of the
 * last step that decomposed. Collective; blocks. */
DSC_API dsc_status dsc_kfac_get_report(dsc_kfac *kfac, dsc_queue *queue,
                                       const dsc_kfac_report **out) DSC_MUST_CHECK;

/* ---- state, for checkpoints ----
 * A list of named tensors, the same on every rank and for every strategy, placement and number of ranks:
 * "step", counters, "NAME.A", "NAME.G" (packed lower triangles), and the decompositions ("NAME.A.vectors",
 * "NAME.A.values", "NAME.A.inverse", ..., with ".B" behind them for block B). Which decompositions
 * there are depends on the required entries (whole factors or blocks): ask for the list again after setting
 * those. */
typedef struct dsc_kfac_entry {
    const char *name; /* lent */
    dsc_dtype dtype;
    int ndim;
    int64_t dim[2];
    int optional; /* 1: a decomposition. A state without all of them is loaded without any: the next step
                     decomposes. */
} dsc_kfac_entry;

DSC_API int64_t dsc_kfac_state_count(const dsc_kfac *kfac);
DSC_API const dsc_kfac_entry *dsc_kfac_state_entries(const dsc_kfac *kfac);
/* Entry `index` into rank 0's host memory (dim product * type bytes; other ranks pass NULL). Collective;
 * blocks. */
DSC_API dsc_status dsc_kfac_state_get(dsc_kfac *kfac, dsc_queue *queue, int64_t index,
                                      void *host) DSC_MUST_CHECK;
/* Entry `index` from rank 0's host memory to whoever holds it. Collective; blocks. Required entries all, then
 * the optional ones all or none, then dsc_kfac_state_done. */
DSC_API dsc_status dsc_kfac_state_set(dsc_kfac *kfac, dsc_queue *queue, int64_t index,
                                      const void *host) DSC_MUST_CHECK;
/* Ends loading; with_decompositions 0: the next step makes them anew. Collective. */
DSC_API dsc_status dsc_kfac_state_done(dsc_kfac *kfac, dsc_queue *queue,
                                       int with_decompositions) DSC_MUST_CHECK;

/* ---- the plan, without training ---- */
typedef struct dsc_kfac_plan dsc_kfac_plan;

typedef enum dsc_kfac_side { DSC_KFAC_A, DSC_KFAC_G } dsc_kfac_side;

/* One matrix to decompose. */
typedef struct dsc_kfac_item {
    int64_t unit; /* of the plan: a layer, or a group of one */
    dsc_kfac_side side;
    int64_t block; /* number of the diagonal block; 0 for whole factors */
    int64_t
        first; /* its first row in the factor (columns of A ordered by input channel when there are blocks) */
    int64_t n; /* rows */
    int owner; /* the rank that decomposes it */
} dsc_kfac_item;

/* A layer, or a group of a grouped convolution. */
typedef struct dsc_kfac_unit {
    const char *name;     /* lent; "NAME[g]" for groups */
    int64_t layer, group; /* of those given */
    dsc_kfac_kind kind;
    int64_t a_n, g_n; /* rows of A (bias included) and G: D is [g_n, a_n] */
    int64_t a_blocks, g_blocks;
    int64_t first_item; /* its items: the blocks of A, then those of G */
    int column;         /* of the grid */
} dsc_kfac_unit;

/* What one rank does and holds. Bytes sent are means over its steps where they depend on nothing else: per
 * update of the factors, per decomposition, per step. */
typedef struct dsc_kfac_load {
    double work;         /* sum of n^3 over its items */
    size_t factor_bytes; /* running averages it keeps */
    size_t decomposition_bytes;
    size_t exchange_bytes; /* batch factors, waiting to be averaged */
    double factors_sent, decompositions_sent,
        preconditioned_sent; /* bytes by the formulas of dsc_comm_bytes */
} dsc_kfac_load;

/* The assignment for `ranks` ranks; gradients' memory in `layers` is not looked at (but their type counts,
 * F32 when there is none). Skipped layers are left out. Not collective. blocks: 1 for whole factors, or
 * options.diag_blocks. */
DSC_API dsc_status dsc_kfac_plan_create(const dsc_kfac_layer *layers, int64_t count, int ranks,
                                        const dsc_kfac_options *options, int64_t blocks,
                                        dsc_kfac_plan **out) DSC_MUST_CHECK;
DSC_API void dsc_kfac_plan_destroy(dsc_kfac_plan **plan);
DSC_API int64_t dsc_kfac_plan_unit_count(const dsc_kfac_plan *plan);
DSC_API const dsc_kfac_unit *dsc_kfac_plan_units(const dsc_kfac_plan *plan);
DSC_API int64_t dsc_kfac_plan_item_count(const dsc_kfac_plan *plan);
DSC_API const dsc_kfac_item *dsc_kfac_plan_items(const dsc_kfac_plan *plan);
/* Rows (gradient workers of a layer) and columns of the grid; rank r sits in row r / columns, column r %
 * columns. */
DSC_API int dsc_kfac_plan_rows(const dsc_kfac_plan *plan);
DSC_API int dsc_kfac_plan_columns(const dsc_kfac_plan *plan);
DSC_API const dsc_kfac_load *dsc_kfac_plan_loads(const dsc_kfac_plan *plan); /* [ranks] */

#ifdef __cplusplus
}
#endif
#endif

/* The preconditioner's internals.
 *
 *   kinds.c, kind_*.c  layer kinds: their geometry, the sizes of their factors, what captures contribute
 *   placement.c        units and items, and which rank does what;  choices.c: options and the grid
 *   kfac.c             creation; the stages of a step
 *   buffers.c          device memory, and where factors and gradients are stored in it
 *   layout.c           where decompositions are stored, what is sent together, the products of a step
 *   capture.c          computes batch factors from captured tensors
 *   padding.c          leaves the padding rows out of a capture
 *   factor.c           exchange of batch factors, running averages
 *   late.c             gradients whose memory is known only during the step
 *   decompose.c        solves a rank's own items, broadcasts the results in the column;  retry.c: failed solves
 *   clip.c             the KL clip: its bound; one factor for all layers or one for each
 *   split.c            divides the damping between the factors of a unit
 *   refresh.c          rotates a rank's own items instead of solving them;  rotate.c: how;  eta.c: how accurately
 *   cut.c              bases that keep only the leading eigenvectors;  products.c: products with bases
 *   upkeep.c           what refreshes have learnt about each item, on all ranks of a column and in checkpoints
 *   async.c            decompositions that run concurrently with the steps
 *   apply.c            computes P from D in the rank's column, broadcasts it along the rows, and clips it
 *   ekfac.c            eigenvalues of a layer from gradients, instead of products of the factors' eigenvalues
 *   norm.c             scale and shift of norms;  embedding.c: embedding tables, tied heads
 *   compare.c          checks that the same layers ran on all ranks
 *   memory_use.c       bytes held, by purpose
 *   kfac_report.c      reports;  state.c: checkpoints;  health.c: whether K-FAC still has an effect
 *
 * A unit is a layer (or one of its groups) with factors A and G; units that read the same input share one A, which
 * belongs to the first of them. An item is a matrix to decompose: a factor, or a block on its diagonal. With diagonal
 * blocks there are two layouts, one of whole factors and one of blocks; the last decomposition decides which is in
 * use. */
#ifndef DSC_KFAC_INTERNAL_H
#define DSC_KFAC_INTERNAL_H

#include "device/ops.h"
#include "kfac/kfac_parts.h"
#include "kfac/placement.h"
#include "kfac/retry.h"

/* One factor, A or G of a unit. */
typedef struct dsc_kfac_factor {
    int64_t n, packed; /* the number of rows; the number of elements of the lower triangle */
    int shared;    /* 1: an A that belongs to another unit (plan->a_unit): no slot, owner or memory here */
    int64_t layer; /* the layer of its unit */
    int64_t slot;  /* its position in the order of the exchange */
    int owner;     /* the rank that decomposes it where factors are whole */
    int held;      /* 1: this rank keeps the running average */
    int announced; /* 1: the exchange of this step has been told that it is ready */
    dsc_tensor average; /* [packed], of type factor_dtype */
    /* This rank's batch factor while it waits to be averaged: [packed] or [n, n]; no memory where nothing has
     * to wait. */
    dsc_tensor batch;
} dsc_kfac_factor;

/* The tensors of a unit. */
typedef struct dsc_kfac_member {
    dsc_kfac_factor factor[DSC_KFAC_SIDES];
    /* w and b: the gradients of this group (b has no memory if there is no bias). d: D[g_n, a_n], which is either
     * the gradient of the weights itself or memory into which both are gathered. Strides as in dsc_join_item. */
    dsc_join_item gradient;
    int gathered;  /* 1: D has its own memory */
    dsc_tensor p;  /* [g_n, a_n] preconditioned gradient */
    int64_t place; /* the offset of p in the message of its batch */
} dsc_kfac_member;

/* What K-FAC knows about a layer during a step, and from step to step. */
typedef struct dsc_kfac_progress {
    int64_t uses;     /* captures per pass; 0: any number */
    int64_t captures; /* in this step */
    int64_t updates;  /* the number of updates of its averages; read only with options.warmup_factors */
    /* contributed: 1 if its averages contain a batch. ready: 1 if those that the decompositions in use were made
     * from did. */
    int contributed, ready;
    int next_ready;  /* `ready` of the decompositions that are about to be used */
    int64_t samples; /* terms of the loss in its last capture that had tensors */
    int by_sample;   /* 1: a linear layer whose input has one row per sample */
    /* Late gradients. set: 1 if they were set since the last step. present: 1 if there is one in this step. */
    int set, present;
    dsc_tensor joined; /* memory for D of all its units, once needed and unless batches share it */
    dsc_tensor batch;  /* memory for its waiting batch factors where `batches` has none */
} dsc_kfac_progress;

/* The decomposition of an item; it has memory only in the item's column. */
typedef struct dsc_kfac_basis {
    /* [n, rank], of type inverse_dtype: eigenvectors as columns, or the inverse; rank = n unless cut. */
    dsc_tensor vectors;
    dsc_tensor values; /* [rank] eigenvalues; no memory with the inverse, or if the outer product is used */
    dsc_tensor rest;   /* stored after them: the mean of the other eigenvalues; no memory if there are none */
    dsc_tensor stored; /* values and rest together */
} dsc_kfac_basis;

/* One of the products of dsc_kfac_multiply: x[g, a] times the inverse of a damped Kronecker product. */
typedef struct dsc_kfac_product {
    dsc_tensor qa, qg;         /* [a, rank], [g, rank] */
    dsc_tensor va, vg;         /* their eigenvalues */
    dsc_tensor rest_a, rest_g; /* means of the other eigenvalues; no memory if there are none */
    dsc_tensor x, out;         /* [g, a]; may be the same tensor */
    dsc_tensor u, t, s;        /* scratch */
} dsc_kfac_product;

/* Host memory for the batched operations of up to n products. */
typedef struct dsc_kfac_lists {
    dsc_gemm_item *gemms;     /* [2 n] */
    dsc_divide_item *divides; /* [n] */
    dsc_weigh_item *weights;  /* [4 n] */
} dsc_kfac_lists;

/* What refreshes have learnt about an item; the same on all ranks of its column, and part of checkpoints. */
typedef struct dsc_kfac_upkeep {
    int64_t extra; /* iterations that a rotation takes beyond the usual number */
    int64_t rank;  /* the number of eigenvectors that are kept */
    int whole;     /* 1: all of them are kept from now on */
} dsc_kfac_upkeep;
enum {
    DSC_KFAC_UPKEEP_NUMBERS = 4, /* in messages and checkpoints: extra, by_sample of the layer, rank, whole */
    DSC_KFAC_MOST_ITERATIONS = 8 /* in one refresh, not counting those after a refusal */
};

/* When a message is sent: first the first message of every root, then the second of every root, and so on. */
typedef struct dsc_kfac_turn {
    int64_t round;
    int root; /* the sending rank: in the column for parcels, in the row for batches */
} dsc_kfac_turn;

enum { DSC_KFAC_PARCEL_MESSAGES = 3 };

/* Items of one owner that are solved together and sent together in the column. */
typedef struct dsc_kfac_parcel {
    dsc_kfac_turn turn;         /* must be the first field */
    int64_t first, count;       /* a range of layout->order */
    dsc_tensor vectors, values; /* messages: all vectors (and outer products); all eigenvalues */
    dsc_tensor packed; /* the message sent instead of `vectors` where inverses are sent as triangles */
    dsc_tensor notes;  /* message: F64, the upkeep of its items; no memory where none is sent */
    dsc_request *request[DSC_KFAC_PARCEL_MESSAGES];
} dsc_kfac_parcel;

/* A part of a gradient that is preconditioned on its own: the rows of a G item, the columns of an A item. */
typedef struct dsc_kfac_cell {
    int64_t unit;
    dsc_tensor d, p;          /* [g rows, a rows]: the member's own if its factors are whole, else pieces */
    dsc_tensor rows, columns; /* I32: positions of the pieces in the member's d and p; no memory if whole */
} dsc_kfac_cell;

/* Units of one column that are preconditioned together and sent together along the rows. */
typedef struct dsc_kfac_batch {
    dsc_kfac_turn turn;             /* must be the first field; root: the column */
    int64_t first, count;           /* a range of layout->units */
    int64_t first_cell, cell_count; /* a range of layout->cells; empty in other columns */
    int64_t first_copy, copy_count; /* a range of layout->copies */
    dsc_tensor message;             /* P of all units of the batch */
    dsc_request *request;
} dsc_kfac_batch;

/* Everything that depends on whether factors are whole or split into diagonal blocks. */
typedef struct dsc_kfac_layout {
    dsc_kfac_plan *plan;
    dsc_kfac_basis *bases; /* [items] */
    dsc_tensor *outer; /* [units] 1/(vG vA' + damping), of inverse_dtype; only with options.outer_product */
    int64_t *order;    /* [items of this rank's column], parcel by parcel */
    int64_t parcel_count;
    dsc_kfac_parcel *parcels;
    dsc_tensor vectors, values, packed; /* the parcels' memory */
    dsc_kfac_upkeep *upkeep;            /* [items] */
    dsc_kfac_basis *grown;              /* [items] results that do not fit into `bases` yet; mostly empty */
    dsc_tensor notes;                   /* F64: the upkeep of the items of `order`, where it is sent */
    double *notes_host;                 /* the same on the host */
    dsc_tensor index;     /* I32: the rows of its factor that each item consists of; blocks only */
    int64_t *index_first; /* [items] where the rows of an item start in `index` */

    int64_t *units;   /* [units], batch by batch */
    int64_t *cell_of; /* [units] the cell of a unit with whole factors in this rank's column; -1: none */
    int64_t batch_count, cell_count, copy_count;
    dsc_kfac_batch *batches;
    dsc_kfac_cell *cells;
    dsc_gemm_item *gemms[4]; /* [cells] in the order they run */
    dsc_divide_item *divides;
    dsc_convert_item *copies; /* vectors that are not stored in the type of arithmetic, and their copies */
    dsc_tensor loads, first;  /* memory for converted vectors, and for results between products */
    dsc_tensor pieces;        /* memory for d and p of the cells */
} dsc_kfac_layout;

/* The entries of a checkpoint, and the strings of their names. */
typedef struct dsc_kfac_state_list {
    int64_t count;
    dsc_kfac_entry *entries;
    struct dsc_kfac_source *sources; /* where the value of each entry is kept */
} dsc_kfac_state_list;

enum { DSC_KFAC_MOST_USES = 1 << 20 };

enum { DSC_KFAC_MESSAGE_SIZE = 400 };

/* What the last decompositions tell about the health of the run. */
typedef struct dsc_kfac_health_state {
    /* [3 units + 1] host memory to which <P, D>, <P, P>, <D, D> and nu of a step that decomposed are copied */
    double *products;
    dsc_event *copied;       /* recorded after the copy */
    int pending;             /* 1: copied, but not read yet */
    int64_t step;            /* the step they belong to */
    double smallest;         /* the smallest cosine at the last decomposition that was read; NaN: none */
    double nu;               /* of the same step; NaN: none */
    double damping, kl_clip; /* of the same step */
    /* How many decompositions this rank tried to refresh in that step, and how many of them it solved exactly
     * because the result was refused. before: the counters of accepted and of refused ones up to that step. */
    int64_t refreshed, refused, before[2];
    /* For each alarm, the step since which its condition has held at every decomposition; -1: it does not hold. */
    int64_t since[DSC_KFAC_ALARM_COUNT];
    char message[DSC_KFAC_MESSAGE_SIZE];
} dsc_kfac_health_state;

/* The damping divided between the factors of a unit; it has memory only with options.damping_split. The factor of
 * unit u on side s is at index 2 u + s. */
typedef struct dsc_kfac_split_state {
    dsc_tensor diagonal; /* [largest packed] the packed identity; dot products with it are traces */
    dsc_tensor traces, rows, dampings; /* F64[2 units] */
} dsc_kfac_split_state;

/* The clip with a factor for each layer; it has memory only if options.clip asks for that. */
typedef struct dsc_kfac_clip_state {
    dsc_tensor nus;    /* F64[units] */
    dsc_tensor finite; /* F64 scalar: 1, or NaN if a product is not finite */
    dsc_tensor zeros;  /* F64[2] */
} dsc_kfac_clip_state;

/* A comparison among the ranks whose result has not been read yet. Ranks that are connected by NCCL do not wait for
 * the result: it arrives in host memory, and a later step reads it. */
enum { DSC_KFAC_COMPARISONS = 8 };
typedef struct dsc_kfac_comparison {
    int32_t *notes; /* [2 layers] the minimum over all ranks of the notes, then of the negated notes */
    int pending;
    int64_t step;
} dsc_kfac_comparison;

/* The second moments of EKFAC; everything is empty without it. */
typedef struct dsc_kfac_moments {
    dsc_tensor *s;     /* [units] [g_n, a_n] running averages; no memory outside the unit's column */
    dsc_tensor *batch; /* [units] [g_n, a_n] moments of this step's samples; only if they come from samples */
    dsc_tensor *samples; /* [units] F64 scalars: N of a step, over all ranks and passes; 0: not known yet */
    double *samples_host;
    dsc_tensor memory, batches, all_samples; /* the memory of s, batch and samples */
    dsc_tensor old;                          /* the vectors before a decomposition */
    /* If moments come from samples: the bases of the other columns, and their memory. */
    dsc_tensor *foreign; /* [items] [n, n], of type inverse_dtype; no memory in the item's own column */
    dsc_tensor foreign_memory;
    dsc_request **requests; /* [items] while they are sent */
    dsc_tensor bad;        /* F64[2 units]: the number of elements that are not finite; of rejected moments */
    dsc_tensor ones, work; /* ones; scratch */
    dsc_buckets *buckets;
    dsc_moment_item *divides; /* [units] */
    dsc_gemm_item *products;
} dsc_kfac_moments;

/* The counters: solves that failed; solves that needed another method; rejected batch factors (counted on the
 * device); items that were rotated; iterations after a refusal; exact solves after a refused or failed rotation. */
typedef enum dsc_kfac_counter {
    DSC_KFAC_FAILED,
    DSC_KFAC_RETRIED,
    DSC_KFAC_REJECTED,
    DSC_KFAC_REFRESHED,
    DSC_KFAC_EXTRA_ITERATIONS,
    DSC_KFAC_FALLBACKS,
    DSC_KFAC_COUNTERS
} dsc_kfac_counter;

/* A norm that is preconditioned. */
typedef struct dsc_kfac_norm {
    int64_t layer, channels;
    /* [channels] the gradients of scale and shift. Late ones: where the step says they are. No memory if there is
     * no shift. */
    dsc_tensor gamma, shift;
    dsc_tensor f, batch; /* [3, channels] Fisher matrices: running average; of this step */
    dsc_tensor p;        /* [2, channels] preconditioned gradients of scale and shift */
} dsc_kfac_norm;

/* All preconditioned norms; everything is empty without options.norm. */
typedef struct dsc_kfac_norms {
    int64_t count, widest; /* widest: the largest number of channels */
    dsc_kfac_norm *list;
    int64_t *of;                          /* [layers] index in the list; -1: none */
    int64_t active;                       /* the number of scales and shifts that this step preconditions */
    dsc_tensor averages, batches, solved; /* the memory of all f, batch and p */
    dsc_tensor bad;                       /* F64[2 count]: elements that are not finite; rejected batches */
    dsc_tensor products, ones;            /* F64[2 count]: <P, D> of scales and shifts; ones */
    dsc_tensor work, sample_ones, zeros;  /* matrices of single samples; ones; zeros in place of a shift */
    dsc_buckets *buckets;
    dsc_absorb_item *absorbs;
    dsc_norm_solve_item *solves;
    dsc_dot_item *dots;
    dsc_join_item *joins;
} dsc_kfac_norms;

/* An embedding table or a tied head that is preconditioned. */
typedef struct dsc_kfac_table {
    int64_t layer, rows, width;
    int is_head;  /* 1: a tied head */
    dsc_tensor d; /* [rows, width] its gradient */
    /* [rows] the diagonal of A: running average; of this step. No memory for a head. */
    dsc_tensor a, a_batch;
    dsc_tensor g, g_batch;      /* [width (width + 1) / 2] G, likewise; for a head its A */
    dsc_tensor vectors, values; /* [width, width], [width] of G at the last decomposition */
    dsc_tensor shares;          /* [rows] A at that decomposition; ones for a head */
    dsc_tensor p;               /* [rows, width] preconditioned gradient */
    int decomposed;             /* 1: there is a decomposition */
} dsc_kfac_table;

/* All preconditioned tables; everything is empty without options.embeddings and options.tied_head. */
typedef struct dsc_kfac_tables {
    int64_t count, longest, widest, largest; /* the largest number of rows, width and size of a table */
    dsc_kfac_table *list;
    int64_t *of;                                 /* [layers] index in the list; -1: none */
    int64_t active;                              /* the number of tables that this step preconditions */
    dsc_tensor averages, batches, bases, solved; /* the memory of the tables' tensors */
    dsc_tensor bad; /* F64[4 count]: elements that are not finite; rejected batches; of A, then of G */
    dsc_tensor between, full, packed, counts; /* scratch: a table; a square; a triangle; a diagonal */
    dsc_tensor ones, work, wide;              /* ones; workspaces */
    dsc_tensor numbers; /* F64: 1; a very small number; tokens of a capture; 1 / tokens */
    dsc_buckets *buckets;
    dsc_join_item *joins;
} dsc_kfac_tables;

/* Scratch memory for captures with padding, allocated by the first of them. */
typedef struct dsc_kfac_padding {
    dsc_tensor vectors, scalars, kept;
} dsc_kfac_padding;

/* Indices into the small device vector of numbers that a step reads. */
enum { DSC_KFAC_DAMPING, DSC_KFAC_DECAY, DSC_KFAC_RATE, DSC_KFAC_CLIP, DSC_KFAC_NUMBERS };

typedef struct dsc_kfac_async dsc_kfac_async;

/* Captures that run concurrently with the caller's work (dsc_kfac_capture_beside). */
enum { DSC_KFAC_BESIDE = 2 }; /* the number of captures that may be under way */
typedef struct dsc_kfac_beside {
    dsc_queue *queue; /* NULL: captures run in the caller's queue */
    dsc_event *ready, *done[DSC_KFAC_BESIDE];
    int64_t count; /* captures since the last dsc_kfac_join_captures */
} dsc_kfac_beside;

struct dsc_kfac {
    int is_twin; /* 1: only makes decompositions, for another preconditioner (async.c) */
    dsc_kfac_async *async;
    int64_t started; /* the step that started the decomposition under way; -1: none */
    dsc_kfac_options options;
    dsc_comm *exchange, *control; /* all ranks: for factors; for agreements and checkpoints */
    dsc_comm *column, *row;       /* this rank's column and row of the grid; NULL if it has one rank */
    int rank, ranks, rows, columns, my_row, my_column;
    dsc_device *device;
    dsc_queue *queue;
    dsc_kfac_beside beside;
    dsc_dtype dtype, factor_dtype, inverse_dtype; /* types of arithmetic, averages, decompositions */
    const dsc_solver *solver;
    struct dsc_refresh_wave *wave; /* NULL: decompositions are exact */
    int64_t generation; /* changes when memory that dsc_kfac_apply uses moves or changes its size */

    int64_t layer_count;
    dsc_kfac_layer *layers;      /* made by dsc_kfac_layers_copy */
    int64_t *first_unit;         /* [layers + 1] */
    dsc_kfac_progress *progress; /* [layers] */
    int any_late, any_ready;     /* 1: a layer has late gradients; 1: a layer is ready */
    int64_t next_passes;         /* options.passes from the next step on */
    int64_t base_blocks;         /* diagonal blocks that dsc_kfac_set_hyper set; 0: those of the options */
    int64_t unit_count, factor_count; /* factor_count: an A that units share counts once */
    dsc_kfac_member *members;
    int layout_count;
    dsc_kfac_layout layouts[2]; /* whole factors; diagonal blocks */

    dsc_buckets *buckets;
    dsc_tensor averages, batches;  /* the memory of the factors */
    dsc_tensor joined, messages;   /* the memory of all D that are gathered, and of all P */
    dsc_tensor shared_d;           /* memory for the late D of one batch, where batches share it */
    int64_t largest_batch;         /* elements of the largest message of preconditioned gradients */
    dsc_tensor gram, packed, half; /* scratch: [largest n, largest n], a triangle, a triangle as stored */
    dsc_tensor spare;              /* two more triangles, where averages are stored in a half type */
    dsc_tensor solve, solve_values, work; /* matrices being solved, their eigenvalues, workspace */
    dsc_tensor images;                    /* captured tensors, copied to the order or type that is needed */
    dsc_tensor means;                     /* captured tensors, averaged over the positions of a sequence */
    int64_t largest_n, largest_packed;
    /* Elements of `solve`, which with late gradients has memory only during decompositions. */
    int64_t solve_numbers;
    dsc_tensor bad;     /* F64[2 per factor]: elements that are not finite; rejected batch factors */
    dsc_tensor numbers; /* F64[DSC_KFAC_NUMBERS] */
    dsc_tensor decays;  /* F64[layers]: the decay of each layer; memory only with options.warmup_factors */
    double *decays_host;
    dsc_tensor products; /* F64[4 units]: <P, D>; then <P, D>, <P, P>, <D, D> at the last decomposition */
    dsc_tensor partial;  /* F64[3 units]: products of one batch */
    dsc_tensor ones, sum, nu_tensor; /* F64: ones has [units], the others are scalars */
    dsc_tensor ran;                  /* I32[2 layers]: to compare among ranks which layers ran */
    dsc_solve_item *solving;         /* [items] */
    dsc_unpack_item *unpacks;        /* [items] matrices that are loaded together */
    dsc_convert_item *converts;      /* [3 items] tensors that are copied together */
    dsc_join_item *joins;            /* [units] the copies from gradients to D and back in this step */
    dsc_dot_item *dots;              /* [3 units] */
    dsc_absorb_item *absorbs;        /* [2 units] */
    const dsc_tensor *g_scale;       /* a scalar by which all G are multiplied; NULL: none */
    int32_t *ran_host;
    int compares_late; /* 1: a step does not wait for the comparison among the ranks */
    dsc_kfac_comparison comparisons[DSC_KFAC_COMPARISONS];
    dsc_kfac_health_state health;
    dsc_kfac_split_state split;
    dsc_kfac_clip_state clip;
    dsc_kfac_moments moments;
    dsc_kfac_norms norms;
    dsc_kfac_padding padding;
    dsc_kfac_tables tables;

    int64_t step;
    dsc_kfac_hyper hyper;
    double loss_scale;
    int begun, updating; /* 1: between begin and finish; 1: this step updates the averages */
    int absorbed;        /* 1: it has updated them */
    int broken;          /* 1: an exchange of factors has failed, and may still be under way */
    int deciding;        /* 1: this step decomposes */
    int decomposed;      /* 1: there are decompositions */
    int active;          /* the index of the layout they belong to */
    int decomposed_now;  /* 1: they were put into use in the last step */
    double used_damping; /* the damping at the last decomposition */
    double nu;
    dsc_kfac_times times;
    double solve_ms;
    int64_t counters[DSC_KFAC_COUNTERS]; /* of this rank */
    int64_t counted[DSC_KFAC_COUNTERS];  /* as in the checkpoint that was loaded; 0 except on rank 0 */

    dsc_kfac_report report;
    dsc_kfac_hyper report_hyper;
    dsc_kfac_times report_times;
    dsc_kfac_layer_report *layer_reports;
    double *report_work, *report_solve_ms, *report_products, *report_extremes, *report_nus;
    dsc_tensor gathered; /* F64, for reports */
    double *gathered_host;
    dsc_kfac_state_list state[2]; /* what a checkpoint holds, for each layout */
};

/* layout.c */
/* Carves the vectors, values and triangles of all parcels out of the layout's three blocks and adds the elements
 * they take to used[3]. While the blocks have no memory yet, it only counts. */
void dsc_kfac_place_parcels(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t used[3]);
dsc_status dsc_kfac_layout_create(dsc_kfac *k, dsc_kfac_layout *layout) DSC_MUST_CHECK;
void dsc_kfac_layout_destroy(dsc_kfac_layout *layout);
/* Waits for messages that a failed step left under way, because they still use the memory. */
void dsc_kfac_layout_settle(dsc_kfac_layout *layout);
int dsc_kfac_layout_has_messages(const dsc_kfac_layout *layout);

/* capture.c */
void dsc_kfac_beside_destroy(dsc_kfac *k);

/* padding.c */
/* Leaves the rows whose tokens are negative out of a capture. */
dsc_status dsc_kfac_padding_apply(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layer *l,
                                  const dsc_tensor *tokens, dsc_kfac_pass *pass) DSC_MUST_CHECK;
/* Sets keeps[rows], of any type, to 1 for the rows of the last dsc_kfac_padding_apply that have a token, and to 0 for
 * the others. Asynchronous. */
dsc_status dsc_kfac_padding_keeps(dsc_kfac *k, dsc_queue *q, dsc_tensor *keeps) DSC_MUST_CHECK;
void dsc_kfac_padding_destroy(dsc_kfac *k);

/* buffers.c */
dsc_status dsc_kfac_memory_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_memory_destroy(dsc_kfac *k);
/* Allocates a block of `count` elements; count 0: no memory. */
dsc_status dsc_kfac_alloc(const dsc_kfac *k, dsc_dtype dtype, int64_t count, dsc_tensor *out) DSC_MUST_CHECK;
/* Makes a workspace hold at least `bytes` bytes; its contents may be lost. It grows during the first captures; later
 * batches mostly have the same size. */
dsc_status dsc_kfac_reserve(const dsc_kfac *k, size_t bytes, dsc_tensor *work) DSC_MUST_CHECK;
/* The first allocates the memory for the matrices being solved unless it exists already; the second frees it unless
 * it is kept between decompositions. */
dsc_status dsc_kfac_take_solve_space(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_return_solve_space(dsc_kfac *k);
/* Returns the tensor at element *used of a block, and advances *used past it. */
dsc_tensor dsc_kfac_carve(const dsc_tensor *block, int64_t *used, int ndim, const int64_t *dim);
/* Allocates memory in which the batch factors of a layer can wait, unless they have it. */
dsc_status dsc_kfac_wait_memory(dsc_kfac *k, int64_t layer) DSC_MUST_CHECK;
/* Uses `d` as D of the unit from now on. */
void dsc_kfac_use_gradient(dsc_kfac *k, int64_t unit, dsc_tensor d);

/* late.c */
/* Returns DSC_E_INVALID unless all late gradients were set since the last step. */
dsc_status dsc_kfac_late_check(const dsc_kfac *k) DSC_MUST_CHECK;
/* Makes layers with late gradients read their own P in place of D until they have one: P is valid memory. */
void dsc_kfac_late_start(dsc_kfac *k);
void dsc_kfac_late_finish(dsc_kfac *k);

/* factor.c */
dsc_status dsc_kfac_factors_create(dsc_kfac *k) DSC_MUST_CHECK;
/* Checks that the same layers ran everywhere, averages the batch factors over the ranks, and updates the running
 * averages. Collective. */
dsc_status dsc_kfac_factors_finish(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Moves the average of a factor towards the batch factor x[packed], unless x is not finite. With averages in a half
 * type, x must not be in `packed` or in the first half of `spare`. */
dsc_status dsc_kfac_factor_absorb(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f,
                                  const dsc_tensor *x) DSC_MUST_CHECK;
/* Copies each layer's decay in this step to the device; does nothing without options.warmup_factors. */
dsc_status dsc_kfac_decays_upload(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Sets the numbers of updates for a state that does not hold them: averages that contain a batch are assumed to
 * contain many. */
void dsc_kfac_updates_guess(dsc_kfac *k);
/* Returns the decay of a layer's averages in this step, on the device. */
dsc_tensor dsc_kfac_decay_of(const dsc_kfac *k, int64_t layer);
/* compare.c */
dsc_status dsc_kfac_compare_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_compare_destroy(dsc_kfac *k);
/* Compares among the ranks which layers ran in this step. Sets *differs to the lowest layer that did not run equally
 * often everywhere, or to -1 if there is none or the result arrives later. Collective. */
dsc_status dsc_kfac_compare(dsc_kfac *k, dsc_queue *q, int64_t *differs) DSC_MUST_CHECK;
/* Fails because of such a layer; notes: the result of the comparison in step `step`. */
dsc_status dsc_kfac_refuse_difference(const dsc_kfac *k, const int32_t *notes, int64_t step,
                                      int64_t layer) DSC_MUST_CHECK;
/* Fails if the ranks differed in an earlier step whose comparison has arrived by now. */
dsc_status dsc_kfac_compare_arrived(dsc_kfac *k) DSC_MUST_CHECK;

/* health.c */
dsc_status dsc_kfac_health_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_health_destroy(dsc_kfac *k);
void dsc_kfac_health_forget(dsc_kfac *k);
/* Starts copying the products of a step that decomposed to the host. Asynchronous. */
dsc_status dsc_kfac_health_copy(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Waits for the copy and reads it. */
dsc_status dsc_kfac_health_read(dsc_kfac *k) DSC_MUST_CHECK;

/* Records which layers' averages were updated in this step. */
void dsc_kfac_factors_note(dsc_kfac *k);
/* Sets *out to the running average of a factor as a packed triangle in the arithmetic type: the average itself, or a
 * copy in `packed`. */
dsc_status dsc_kfac_factor_read(dsc_kfac *k, dsc_queue *q, const dsc_kfac_factor *f,
                                dsc_tensor *out) DSC_MUST_CHECK;

/* decompose.c */
/* Solves items of this rank (indices into the plan) exactly and stores the results. */
dsc_status dsc_kfac_solve_items(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const int64_t *items,
                                int64_t count) DSC_MUST_CHECK;
/* Writes the matrix of each item, a factor or one of its blocks, into k->unpacks[i].a[n, n]; for the inverse method,
 * with the damping added to the diagonal. */
dsc_status dsc_kfac_load_items(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout, const int64_t *items,
                               int64_t count) DSC_MUST_CHECK;
dsc_status dsc_kfac_decompose_layout(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* Decomposes the items of this rank without sending the results. The inverse method uses the dampings of the last
 * dsc_kfac_split_damping. */
dsc_status dsc_kfac_decompose_own(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* Starts to use the new decompositions, once all ranks of the column have them. Collective. */
dsc_status dsc_kfac_put_into_use(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* Forms outer products from the eigenvalues and broadcasts the decompositions in the column, after loading a state or
 * an asynchronous decomposition. */
dsc_status dsc_kfac_share_decompositions(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;

/* clip.c */
/* Returns the bound in this step; that of one layer, if each has its own. */
double dsc_kfac_clip_bound(const dsc_kfac *k);
dsc_status dsc_kfac_clip_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_clip_destroy(dsc_kfac *k);
/* Computes nu, and that of every layer, from <P, D> of all units and their sum. */
dsc_status dsc_kfac_clip_find(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Overwrites the gradients of all units that take part with nu P, unless nu is not finite. */
dsc_status dsc_kfac_clip_write(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* split.c */
dsc_status dsc_kfac_split_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_split_destroy(dsc_kfac *k);
/* Divides the damping of this step between the factors, according to the present traces of the averages. `status`: the
 * outcome on this rank so far; after a failure the rank still takes part in the communication, and the failure is
 * returned. Collective in the column where its ranks hold different averages. */
dsc_status dsc_kfac_split_damping(dsc_kfac *k, dsc_queue *q, dsc_status status) DSC_MUST_CHECK;
/* Returns the damping of a factor for the inverse method, an F64 scalar on the device. */
dsc_tensor dsc_kfac_damping_of(const dsc_kfac *k, const dsc_kfac_item *item);

/* ekfac.c; all of these do nothing without EKFAC. _create is collective. */
dsc_status dsc_kfac_ekfac_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_ekfac_destroy(dsc_kfac *k);
/* Adds the moments of a unit's captured samples to those of the step. */
dsc_status dsc_kfac_ekfac_capture(dsc_kfac *k, dsc_queue *q, int64_t unit,
                                  const dsc_kfac_pass *pass) DSC_MUST_CHECK;
/* Averages the step's moments over the ranks. Collective. */
dsc_status dsc_kfac_ekfac_exchange(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Updates the running averages with the step's moments. */
dsc_status dsc_kfac_ekfac_absorb(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Keeps the bases that the next decomposition will overwrite. */
dsc_status dsc_kfac_ekfac_keep(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Sends bases that were decomposed or loaded to the other columns, if these need them. Collective; blocks. */
dsc_status dsc_kfac_ekfac_share(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Transforms the moments to the new bases, once a decomposition has reached the whole column. Collective; blocks. */
dsc_status dsc_kfac_ekfac_decomposed(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Divides the projected gradients of a batch by moments plus damping; with EKFAC from batch gradients they update the
 * moments first. */
dsc_status dsc_kfac_ekfac_divide(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                 const dsc_kfac_batch *b) DSC_MUST_CHECK;

/* refresh.c */
dsc_status dsc_kfac_refresh_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_refresh_destroy(dsc_kfac *k);
/* Returns 1 if the next decomposition of this layout starts from the last one. */
int dsc_kfac_is_warm(const dsc_kfac *k, int layout);
/* To be called before and after the parcels of a warm decomposition. */
dsc_status dsc_kfac_refresh_begin(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
void dsc_kfac_refresh_end(dsc_kfac *k);
/* Refreshes the items of a parcel of this rank and stores the results. Waits for the device. */
dsc_status dsc_kfac_refresh_parcel(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                   const dsc_kfac_parcel *p) DSC_MUST_CHECK;
size_t dsc_kfac_refresh_bytes(const dsc_kfac *k); /* device memory for refreshes */
/* Makes items of up to `rows` rows always be solved exactly. The default is 128; tests change it before the first
 * step. */
dsc_status dsc_kfac_refresh_exact_rows(dsc_kfac *k, int64_t rows) DSC_MUST_CHECK;

/* products.c */
/* Carves the scratch memory of a product whose other members are set; cut_a, cut_g: 1 if that basis is cut. */
void dsc_kfac_product_carve(dsc_kfac_product *p, int cut_a, int cut_g, const dsc_tensor *block,
                            int64_t *used);
/* Multiplies each x by the inverse of (G (x) A + damping I). Asynchronous. */
dsc_status dsc_kfac_multiply(dsc_queue *q, const dsc_tensor *damping, const dsc_kfac_product *products,
                             int64_t count, dsc_kfac_lists *lists) DSC_MUST_CHECK;

/* cut.c */
/* Returns 1 if the bases of large factors keep only the leading vectors. */
static inline int dsc_kfac_is_cut(const dsc_kfac *k) {
    return k->options.rank < 1;
}
dsc_status dsc_kfac_cut_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_cut_destroy(dsc_kfac *k);
/* Sets the initial ranks of the bases; items of up to exact_rows rows keep all vectors. */
void dsc_kfac_cut_plan(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t exact_rows);
/* Returns the last result of an item of this rank, wherever it is kept. */
dsc_kfac_basis *dsc_kfac_cut_basis(dsc_kfac_layout *layout, int64_t item);
/* Stores an exact solution, cut to the rank in the item's upkeep or a larger one. If all of it is kept, the copies are
 * only added to k->converts, of which *listed are in use; otherwise this waits for the device. */
dsc_status dsc_kfac_cut_store(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, int64_t item,
                              const dsc_solve_item *s, int64_t *listed) DSC_MUST_CHECK;
/* Tells all ranks the ranks of all bases and allocates memory for these, once this rank's items were decomposed or
 * have failed with `status`. Collective; fails on all ranks alike. */
dsc_status dsc_kfac_cut_share(dsc_kfac *k, dsc_queue *q, dsc_status status) DSC_MUST_CHECK;
/* Moves the bases to memory for the ranks in the upkeep, if these have changed. */
dsc_status dsc_kfac_cut_resize(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Computes P of the units of a batch. */
dsc_status dsc_kfac_cut_precondition(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                     const dsc_kfac_batch *b) DSC_MUST_CHECK;

/* upkeep.c */
/* Copies the upkeep of all items from their owners to every rank. Collective. */
dsc_status dsc_kfac_upkeep_gather(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
dsc_status dsc_kfac_upkeep_create(dsc_kfac *k, dsc_kfac_layout *layout) DSC_MUST_CHECK;
/* Starts sending the upkeep of a parcel in the column; collective there. */
dsc_status dsc_kfac_upkeep_send(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                dsc_kfac_parcel *p) DSC_MUST_CHECK;
/* Reads the upkeep that was sent, once all of it has arrived. */
dsc_status dsc_kfac_upkeep_receive(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout) DSC_MUST_CHECK;
/* For checkpoints. _get copies the upkeep of all items to `host` on rank 0, or with `own` as this rank knows it; _set
 * copies it from rank 0 to all ranks. Collective unless `own`. */
dsc_status dsc_kfac_upkeep_get(dsc_kfac *k, dsc_queue *q, int own, double *host) DSC_MUST_CHECK;
dsc_status dsc_kfac_upkeep_set(dsc_kfac *k, dsc_queue *q, const double *host) DSC_MUST_CHECK;

/* norm.c. Checks that the name of a norm, an embedding or a tied head, which checkpoints use, differs from those of the
 * layers before it, and that its gradient is on the device. */
dsc_status dsc_kfac_check_extra(const dsc_kfac *k, int64_t layer) DSC_MUST_CHECK;
/* norm.c; all of these do nothing without options.norm. _find must be called before options.skip_layers is cleared.
 * _create is collective. */
dsc_status dsc_kfac_norm_find(dsc_kfac *k) DSC_MUST_CHECK;
dsc_status dsc_kfac_norm_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_norm_destroy(dsc_kfac *k);
/* Sets where the gradients of a norm with late gradients are in this step. Does nothing for other layers. */
dsc_status dsc_kfac_norm_set_gradients(dsc_kfac *k, int64_t layer,
                                       const dsc_kfac_gradients *gradients) DSC_MUST_CHECK;
/* Adds the matrices of a norm's captured samples to those of the step. */
dsc_status dsc_kfac_norm_capture(dsc_kfac *k, dsc_queue *q, int64_t layer,
                                 const dsc_kfac_sample *sample) DSC_MUST_CHECK;
/* Averages the step's matrices over the ranks. Collective. */
dsc_status dsc_kfac_norm_exchange(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
dsc_status dsc_kfac_norm_absorb(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* _solve computes P of the norms that take part and adds their <P, D> to `sum`; _write, once nu is known, overwrites
 * their gradients with nu P. */
dsc_status dsc_kfac_norm_solve(dsc_kfac *k, dsc_queue *q, dsc_tensor *sum) DSC_MUST_CHECK;
dsc_status dsc_kfac_norm_write(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* embedding.c; all of these do nothing without options.embeddings and options.tied_head. _find must be called before
 * options.skip_layers is cleared. _create is collective. The others are like those of norm.c. */
dsc_status dsc_kfac_tables_find(dsc_kfac *k) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_tables_destroy(dsc_kfac *k);
dsc_status dsc_kfac_tables_capture(dsc_kfac *k, dsc_queue *q, int64_t layer,
                                   const dsc_kfac_sample *sample) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_exchange(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_absorb(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Decomposes all G. Waits for the device. */
dsc_status dsc_kfac_tables_decompose(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Marks the tables whose layers are ready as decomposed, after a state was loaded. */
void dsc_kfac_tables_loaded(dsc_kfac *k);
dsc_status dsc_kfac_tables_solve(dsc_kfac *k, dsc_queue *q, dsc_tensor *sum) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_write(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* async.c */
dsc_status dsc_kfac_async_create(dsc_kfac *k) DSC_MUST_CHECK;
/* Waits for the thread. */
void dsc_kfac_async_destroy(dsc_kfac *k);
/* Starts the decomposition of this step's averages. Collective. */
dsc_status dsc_kfac_async_start(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* Returns 1 if the decomposition that was started is put into use in the current step. */
int dsc_kfac_async_is_due(const dsc_kfac *k);
/* Waits for that decomposition and puts it into use. Collective. */
dsc_status dsc_kfac_async_finish(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Restarts the decomposition that was under way when a state was saved, after loading it. Collective. */
dsc_status dsc_kfac_async_resume(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Waits for the thread; its result is still put into use only when it is due. */
void dsc_kfac_async_wait(dsc_kfac *k);
/* Returns the object that makes asynchronous decompositions; NULL without options.async_steps. */
dsc_kfac *dsc_kfac_async_twin(const dsc_kfac *k);

/* apply.c */
dsc_status dsc_kfac_precondition(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* kfac_report.c */
dsc_status dsc_kfac_report_create(dsc_kfac *k) DSC_MUST_CHECK;
/* Sums the counters over all ranks, since the start of the run. Collective; blocks. */
dsc_status dsc_kfac_totals(dsc_kfac *k, dsc_queue *q, int64_t totals[DSC_KFAC_COUNTERS]) DSC_MUST_CHECK;

/* state.c */
dsc_status dsc_kfac_state_create(dsc_kfac *k) DSC_MUST_CHECK;
/* Updates the shapes of the entries after the ranks of bases have changed. */
void dsc_kfac_state_resize(dsc_kfac *k);
void dsc_kfac_state_destroy(dsc_kfac *k);

static inline dsc_kfac_factor *dsc_kfac_factor_of(dsc_kfac *k, const dsc_kfac_item *item) {
    return &k->members[item->unit].factor[item->side];
}

static inline int64_t dsc_kfac_layer_of(const dsc_kfac *k, int64_t unit) {
    return k->layouts[0].plan->units[unit].layer;
}

/* Returns 1 if the unit's layer was captured in this step. */
static inline int dsc_kfac_was_captured(const dsc_kfac *k, int64_t unit) {
    return k->progress[dsc_kfac_layer_of(k, unit)].captures > 0;
}

/* Returns 1 if the unit has a gradient that can be read in this step. */
static inline int dsc_kfac_has_gradient(const dsc_kfac *k, int64_t unit) {
    int64_t l = dsc_kfac_layer_of(k, unit);
    return !k->layers[l].late_gradients || k->progress[l].present;
}

/* Returns 1 if the unit's gradient is preconditioned in this step: its layer ran, and the decompositions were made
 * from at least one of its batches. As long as that holds for no layer, layers whose gradients are not late are
 * preconditioned with the identity. */
static inline int dsc_kfac_takes_part(const dsc_kfac *k, int64_t unit) {
    int64_t l = dsc_kfac_layer_of(k, unit);
    int late = k->layers[l].late_gradients;
    int ran = late ? k->progress[l].present : k->progress[l].captures > 0;
    return ran && (k->progress[l].ready || (!late && !k->any_ready));
}

/* Returns 1 if batches of units use the same memory for D, one after the other: D of a unit is then available only
 * while its batch is preconditioned. Never done where P of some units comes from another column. */
static inline int dsc_kfac_shares_d(const dsc_kfac *k) {
    return k->any_late && k->columns == 1 && k->layouts[0].batch_count > 1;
}

/* Returns 1 if all factors of units that share an A are decomposed together, so that a refresh can judge them
 * together. */
static inline int dsc_kfac_pairs(const dsc_kfac *k, const dsc_kfac_layout *layout) {
    return k->options.refresh == DSC_KFAC_WARM && k->options.colocate_factors && layout == &k->layouts[0];
}

/* Returns 1 if the layer is a norm that is preconditioned. */
static inline int dsc_kfac_is_norm(const dsc_kfac *k, int64_t layer) {
    return k->norms.count > 0 && k->norms.of[layer] >= 0;
}

/* Returns 1 if the layer is an embedding or a tied head that is preconditioned. */
static inline int dsc_kfac_is_table(const dsc_kfac *k, int64_t layer) {
    return k->tables.count > 0 && k->tables.of[layer] >= 0;
}

static inline int dsc_kfac_keeps_everywhere(const dsc_kfac *k) {
    return k->rows == k->ranks;
}

#endif

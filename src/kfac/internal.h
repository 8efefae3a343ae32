/* The preconditioner's internals.
 *
 *   kinds.c, kind_*.c  layer kinds: geometry, sizes of factors, what captures contribute
 *   placement.c        units and items, which rank does what;  choices.c: options and the grid
 *   kfac.c             creation; the stages of a step
 *   buffers.c          device memory, and where factors and gradients lie in it
 *   layout.c           where decompositions lie, what travels together, the products of a step
 *   capture.c          captured tensors to batch factors
 *   padding.c          rows of a capture that do not count
 *   factor.c           exchange of batch factors, running averages
 *   late.c             gradients whose memory is known in the step only
 *   decompose.c        own items solved, results broadcast in the column;  retry.c: after a solve failed
 *   clip.c             the KL clip: its bound, one factor for all layers or one for each
 *   split.c            the damping divided between the factors of a unit
 *   refresh.c          own items rotated instead of solved;  rotate.c, eta.c: how, and how well
 *   cut.c              bases that keep only the leading eigenvectors;  products.c: products with bases
 *   upkeep.c           what is noted about that, on all ranks of a column and in checkpoints
 *   async.c            decompositions beside the steps
 *   apply.c            D -> P in the own column, broadcast along the row, clip
 *   ekfac.c            eigenvalues of a layer from gradients, instead of products of the factors' eigenvalues
 *   norm.c             scale and shift of norms;  embedding.c: tables of embeddings, tied heads
 *   compare.c          whether the same layers ran on all ranks
 *   memory_use.c       bytes held, by purpose
 *   kfac_report.c      reports;  state.c: checkpoints;  health.c: whether K-FAC still has an effect
 *
 * A unit is a layer (or a group of one) with factors A and G; units that read the same input have one A, which is a
 * factor of the first of them. An item is a matrix to decompose: a factor, or a block on its diagonal. With diagonal blocks there are two layouts, whole factors and blocks, and the last
 * decomposition decides which one is in force. */
#ifndef DSC_KFAC_INTERNAL_H
#define DSC_KFAC_INTERNAL_H

#include "device/ops.h"
#include "kfac/kfac_parts.h"
#include "kfac/placement.h"
#include "kfac/retry.h"

/* One factor, A or G of a unit. */
typedef struct dsc_kfac_factor {
    int64_t n, packed;  /* rows; numbers of the lower triangle */
    int shared;         /* 1: an A that another unit has (plan->a_unit): nothing of what follows is here */
    int64_t layer;      /* of its unit */
    int64_t slot;       /* place in the order of the exchange */
    int owner;          /* the rank that decomposes it (of the whole factor) */
    int held;           /* 1: this rank keeps the running average */
    int announced;      /* 1: the exchange of this step knows that it is ready */
    dsc_tensor average; /* [packed], as stored */
    /* This rank's batch factor while it waits to be averaged: [packed] or [n, n]; no memory where nothing has
     * to wait. */
    dsc_tensor batch;
} dsc_kfac_factor;

/* A unit's tensors. */
typedef struct dsc_kfac_member {
    dsc_kfac_factor factor[DSC_KFAC_SIDES];
    /* Where the gradients of this group are (bias without memory: none), and D, [g_n, a_n], made of them: the
     * weights themselves, or memory of its own that they are gathered into. Strides as in dsc_join_item. */
    dsc_join_item gradient;
    int gathered;  /* 1: D has memory of its own */
    dsc_tensor p;  /* [g_n, a_n] preconditioned gradient */
    int64_t place; /* of p in the message of its batch */
} dsc_kfac_member;

/* What K-FAC knows about a layer during a step, and from step to step. */
typedef struct dsc_kfac_progress {
    int64_t uses;     /* captures in a pass; 0: any number */
    int64_t captures; /* in this step */
    int64_t updates;  /* of its averages, if options.warmup_factors asks for their number */
    /* 1: its averages hold something of a batch; so did those that the decompositions in use were made of. */
    int contributed, ready;
    int next_ready;  /* the same of decompositions that are about to be used */
    int64_t samples; /* of its last capture that had tensors */
    int by_sample;   /* 1: a linear layer whose input has one row per sample */
    /* Late gradients: 1: set since the last step; 1: it has one. */
    int set, present;
    dsc_tensor joined; /* memory of D of all its units, once it is needed and where batches do not share it */
    dsc_tensor batch;  /* memory of its waiting batch factors where `batches` has none */
} dsc_kfac_progress;

/* A decomposed item: no memory outside its column. */
typedef struct dsc_kfac_basis {
    dsc_tensor
        vectors; /* [n, rank], as stored: eigenvectors as columns, or the inverse; rank = n unless cut */
    dsc_tensor values; /* [rank] eigenvalues; no memory with the inverse, or where the outer product serves */
    dsc_tensor rest;   /* after them: the mean of the other eigenvalues; no memory when there are none */
    dsc_tensor stored; /* values and rest */
} dsc_kfac_basis;

/* One of many products of dsc_kfac_multiply: x[g, a] by the inverse of a damped Kronecker product. */
typedef struct dsc_kfac_product {
    dsc_tensor qa, qg;         /* [a, rank], [g, rank] */
    dsc_tensor va, vg;         /* their eigenvalues */
    dsc_tensor rest_a, rest_g; /* means of the other eigenvalues; no memory: there are none */
    dsc_tensor x, out;         /* [g, a]; may be the same */
    dsc_tensor u, t, s;        /* scratch */
} dsc_kfac_product;

/* Host memory for the batched operations of up to n products. */
typedef struct dsc_kfac_lists {
    dsc_gemm_item *gemms;     /* [2 n] */
    dsc_divide_item *divides; /* [n] */
    dsc_weigh_item *weights;  /* [4 n] */
} dsc_kfac_lists;

/* How an item is refreshed: the same numbers on all ranks of its column, and in checkpoints. */
typedef struct dsc_kfac_upkeep {
    int64_t extra; /* iterations of a rotation beyond those of the rule */
    int64_t rank;  /* eigenvectors that are kept */
    int whole;     /* 1: all of them from now on */
} dsc_kfac_upkeep;
enum {
    DSC_KFAC_UPKEEP_NUMBERS = 4, /* in messages and checkpoints: extra, rank, whole; by_sample of its layer */
    DSC_KFAC_MOST_ITERATIONS = 8 /* in one refresh, not counting those after a refusal */
};

/* When a message is sent: the first of every root, then the second of every root, and so on. */
typedef struct dsc_kfac_turn {
    int64_t round;
    int root; /* sending rank: of the column for parcels, of the row for batches */
} dsc_kfac_turn;

enum { DSC_KFAC_PARCEL_MESSAGES = 3 };

/* Items of one owner that are solved together and travel together in the column. */
typedef struct dsc_kfac_parcel {
    dsc_kfac_turn turn;         /* must be first */
    int64_t first, count;       /* of layout->order */
    dsc_tensor vectors, values; /* messages: all vectors (and outer products) of the parcel; all values */
    dsc_tensor packed;          /* message instead of `vectors` where inverses travel as triangles */
    dsc_tensor notes;           /* message: F64, upkeep of its items; no memory unless they are refreshed */
    dsc_request *request[DSC_KFAC_PARCEL_MESSAGES];
} dsc_kfac_parcel;

/* A product of preconditioning: rows of a G item, columns of an A item. */
typedef struct dsc_kfac_cell {
    int64_t unit;
    dsc_tensor d, p;          /* [g rows, a rows]: the member's own when the factors are whole, else pieces */
    dsc_tensor rows, columns; /* I32: where the pieces lie in the member's d and p; no memory when whole */
} dsc_kfac_cell;

/* Units of one column that are preconditioned together and travel together along the rows. */
typedef struct dsc_kfac_batch {
    dsc_kfac_turn turn;             /* must be first; root: the column */
    int64_t first, count;           /* of layout->units */
    int64_t first_cell, cell_count; /* none in other columns */
    int64_t first_copy, copy_count; /* of layout->copies */
    dsc_tensor message;             /* all p of the batch */
    dsc_request *request;
} dsc_kfac_batch;

/* Everything that depends on how factors are cut. */
typedef struct dsc_kfac_layout {
    dsc_kfac_plan *plan;
    dsc_kfac_basis *bases; /* [items] */
    dsc_tensor *outer;     /* [units] 1/(vG vA' + damping), as stored; only with options.outer_product */
    int64_t *order;        /* [items of this rank's column], parcel by parcel */
    int64_t parcel_count;
    dsc_kfac_parcel *parcels;
    dsc_tensor vectors, values, packed; /* the parcels' memory */
    dsc_kfac_upkeep *upkeep;            /* [items] */
    dsc_kfac_basis *grown;              /* [items] results for which there is no room yet; mostly none */
    dsc_tensor notes;                   /* F64: upkeep of the items of `order`, where it travels */
    double *notes_host;                 /* the same on the host */
    dsc_tensor index;                   /* I32: rows and columns of pieces */
    int64_t *index_first;               /* [items] where an item's rows start in it; blocks only */

    int64_t *units;   /* [units], batch by batch */
    int64_t *cell_of; /* [units] the cell of a unit with whole factors in this rank's column; -1: none */
    int64_t batch_count, cell_count, copy_count;
    dsc_kfac_batch *batches;
    dsc_kfac_cell *cells;
    dsc_gemm_item *gemms[4]; /* [cells] in the order they run */
    dsc_divide_item *divides;
    dsc_convert_item
        *copies; /* vectors that are stored in another type than that of products, and their copies */
    dsc_tensor loads, first; /* memory of converted vectors, and of results between products */
    dsc_tensor pieces;       /* memory of cells' d and p */
} dsc_kfac_layout;

/* The entries of a checkpoint; names are owned. */
typedef struct dsc_kfac_state_list {
    int64_t count;
    dsc_kfac_entry *entries;
    struct dsc_kfac_source *sources; /* where each lives */
} dsc_kfac_state_list;

enum { DSC_KFAC_MOST_USES = 1 << 20 };

enum { DSC_KFAC_MESSAGE_SIZE = 400 };

/* What the last decompositions say about the run. */
typedef struct dsc_kfac_health_state {
    /* [3 units + 1] host memory that a decomposition's <P, D>, <P, P>, <D, D> and nu are copied to */
    double *products;
    dsc_event *copied;       /* after the copy */
    int pending;             /* 1: copied, but not read yet */
    int64_t step;            /* that they are of */
    double smallest;         /* cosine of the last decomposition that was read; NaN: none */
    double nu;               /* of the same step; NaN: none */
    double damping, kl_clip; /* of the same step */
    /* Decompositions that this rank tried to refresh in that step, and how many of them were solved exactly
     * because the result was refused; and the counters of both before it. */
    int64_t refreshed, refused, before[2];
    /* By alarm, the first of the decompositions in a row for which its condition held; -1: none. */
    int64_t since[DSC_KFAC_ALARM_COUNT];
    char message[DSC_KFAC_MESSAGE_SIZE];
} dsc_kfac_health_state;

/* The damping divided between the factors of a unit; without memory unless options.damping_split says so.
 * Places 2 u + side. */
typedef struct dsc_kfac_split_state {
    dsc_tensor diagonal; /* [largest packed] 1 on the diagonal of a packed triangle: for traces */
    dsc_tensor traces, rows, dampings; /* F64[2 units] */
} dsc_kfac_split_state;

/* The clip of every layer by itself; without memory unless options.clip says so. */
typedef struct dsc_kfac_clip_state {
    dsc_tensor nus;    /* F64[units] */
    dsc_tensor finite; /* F64 scalar: 1, or NaN when a product is not finite */
    dsc_tensor zeros;  /* F64[2] */
} dsc_kfac_clip_state;

/* One comparison among the ranks whose result has not been looked at. Ranks that are connected by NCCL do not
 * wait for it: it arrives in host memory, and a later step looks. */
enum { DSC_KFAC_COMPARISONS = 8 };
typedef struct dsc_kfac_comparison {
    int32_t *notes; /* [2 layers] smallest of all ranks' notes, and of the negative notes */
    int pending;
    int64_t step;
} dsc_kfac_comparison;

/* The second moments of EKFAC; everything is empty without it. */
typedef struct dsc_kfac_moments {
    dsc_tensor *s;       /* [units] [g_n, a_n] running averages; no memory outside the unit's column */
    dsc_tensor *batch;   /* [units] [g_n, a_n] of this step's samples; only where they come from samples */
    dsc_tensor *samples; /* [units] F64 scalars: N of a step, over all ranks and passes; 0: not known yet */
    double *samples_host;
    dsc_tensor memory, batches, all_samples; /* the memory of these */
    dsc_tensor old;                          /* the vectors before a decomposition */
    /* Where moments come from samples: bases of the other columns, and their memory. */
    dsc_tensor *foreign; /* [items] [n, n], as stored; no memory in the item's own column */
    dsc_tensor foreign_memory;
    dsc_request **requests; /* [items] while they are sent */
    dsc_tensor bad;         /* F64[2 units]: elements not finite, times rejected */
    dsc_tensor ones, work;  /* ones; scratch */
    dsc_buckets *buckets;
    dsc_moment_item *divides; /* [units] */
    dsc_gemm_item *products;
} dsc_kfac_moments;

/* What is counted: solves that failed, and that needed another method; batch factors that were rejected
 * (counted on the device); items that were rotated, iterations after a refusal, exact solves after one. */
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
    dsc_tensor gamma,
        shift; /* [channels] gradients of scale and shift; late ones are where the step says; no shift: without memory */
    dsc_tensor f, batch; /* [3, channels] Fisher matrices: running average; of this step */
    dsc_tensor p;        /* [2, channels] preconditioned gradients of scale and shift */
} dsc_kfac_norm;

/* All of them; everything is empty without options.norm. */
typedef struct dsc_kfac_norms {
    int64_t count, widest; /* widest: most channels */
    dsc_kfac_norm *list;
    int64_t *of;                          /* [layers] number in the list; -1: none */
    int64_t active;                       /* gradients, of scales and shifts, that this step preconditions */
    dsc_tensor averages, batches, solved; /* memory of these */
    dsc_tensor bad;                       /* F64[2 count]: elements not finite, times rejected */
    dsc_tensor products, ones;            /* F64[2 count]: <P, D> of scales and shifts; ones */
    dsc_tensor work, sample_ones, zeros;  /* matrices of single samples; ones; zeros instead of a shift */
    dsc_buckets *buckets;
    dsc_absorb_item *absorbs;
    dsc_norm_solve_item *solves;
    dsc_dot_item *dots;
    dsc_join_item *joins;
} dsc_kfac_norms;

/* The table of an embedding, or a tied head, that is preconditioned. */
typedef struct dsc_kfac_table {
    int64_t layer, rows, width;
    int is_head;  /* 1: a tied head */
    dsc_tensor d; /* [rows, width] its gradient */
    dsc_tensor a,
        a_batch; /* [rows] diagonal of A: running average; of this step; without memory for a head */
    dsc_tensor g, g_batch;      /* [width (width + 1) / 2] G, likewise; of a head its A */
    dsc_tensor vectors, values; /* [width, width], [width] of G at the last decomposition */
    dsc_tensor shares;          /* [rows] A at that time; of a head ones */
    dsc_tensor p;               /* [rows, width] preconditioned gradient */
    int decomposed;             /* 1: vectors and values are there */
} dsc_kfac_table;

/* All of them; everything is empty without options.embeddings and options.tied_head. */
typedef struct dsc_kfac_tables {
    int64_t count, longest, widest, largest; /* most rows, width and numbers of a table */
    dsc_kfac_table *list;
    int64_t *of;                                 /* [layers] number in the list; -1: none */
    int64_t active;                              /* those that this step preconditions */
    dsc_tensor averages, batches, bases, solved; /* memory of these */
    dsc_tensor bad; /* F64[4 count]: elements not finite, times rejected, of A and G */
    dsc_tensor between, full, packed, counts; /* scratch: a table; a square; a triangle; a diagonal */
    dsc_tensor ones, work, wide;              /* ones; workspaces */
    dsc_tensor numbers; /* F64: 1; a very small number; tokens of a capture; 1 / tokens */
    dsc_buckets *buckets;
    dsc_join_item *joins;
} dsc_kfac_tables;

/* Scratch memory for captures with padding; nothing before the first. */
typedef struct dsc_kfac_padding {
    dsc_tensor vectors, scalars, kept;
} dsc_kfac_padding;

/* Positions in the small device vector of numbers that a step reads. */
enum { DSC_KFAC_DAMPING, DSC_KFAC_DECAY, DSC_KFAC_RATE, DSC_KFAC_CLIP, DSC_KFAC_NUMBERS };

typedef struct dsc_kfac_async dsc_kfac_async;

/* Captures beside the caller's work (dsc_kfac_capture_beside). */
enum { DSC_KFAC_BESIDE = 2 }; /* that may be under way */
typedef struct dsc_kfac_beside {
    dsc_queue *queue; /* NULL: captures are in the caller's */
    dsc_event *ready, *done[DSC_KFAC_BESIDE];
    int64_t count; /* captures since the last dsc_kfac_join_captures */
} dsc_kfac_beside;

struct dsc_kfac {
    int is_twin; /* 1: only decomposes, for another preconditioner (async.c) */
    dsc_kfac_async *async;
    int64_t started; /* the step of the decomposition that is under way; -1: none */
    dsc_kfac_options options;
    dsc_comm *exchange, *control; /* all ranks: for factors; for agreements and checkpoints */
    dsc_comm *column, *row;       /* of the grid; NULL where it has one rank */
    int rank, ranks, rows, columns, my_row, my_column;
    dsc_device *device;
    dsc_queue *queue;
    dsc_kfac_beside beside;
    dsc_dtype dtype, factor_dtype, inverse_dtype; /* of arithmetic, of averages, of decompositions */
    const dsc_solver *solver;
    struct dsc_refresh_wave *wave; /* NULL: decompositions are exact */
    int64_t generation;            /* changes when memory or sizes of what dsc_kfac_apply uses do */

    int64_t layer_count;
    dsc_kfac_layer *layers;           /* of dsc_kfac_layers_copy */
    int64_t *first_unit;              /* [layers + 1] */
    dsc_kfac_progress *progress;      /* [layers] */
    int any_late, any_ready;          /* 1: a layer has late gradients; some layer is ready */
    int64_t next_passes;              /* options.passes from the next step on */
    int64_t base_blocks;              /* diagonal blocks of dsc_kfac_set_hyper; 0: those of the options */
    int64_t unit_count, factor_count; /* factor_count: an A of several units counts once */
    dsc_kfac_member *members;
    int layout_count;
    dsc_kfac_layout layouts[2]; /* whole factors; diagonal blocks */

    dsc_buckets *buckets;
    dsc_tensor averages, batches;  /* memory of the factors */
    dsc_tensor joined, messages;   /* memory of d with a bias, and of p */
    dsc_tensor shared_d;           /* of late d of one batch, where batches share it */
    int64_t largest_batch;         /* numbers of the largest message of preconditioned gradients */
    dsc_tensor gram, packed, half; /* scratch: [largest n, largest n], a triangle, a triangle as stored */
    dsc_tensor spare;              /* two more triangles, where averages are stored in a half type */
    dsc_tensor solve, solve_values, work; /* matrices being solved, their values, workspace */
    dsc_tensor images;                    /* captured tensors in the order or type that is needed */
    dsc_tensor means;                     /* captured tensors, averaged over the positions of a sequence */
    int64_t largest_n, largest_packed;
    int64_t
        solve_numbers; /* elements of `solve`, which with late gradients has memory during decompositions only */
    dsc_tensor bad;    /* F64[2 per factor]: elements not finite, times rejected */
    dsc_tensor numbers; /* F64[DSC_KFAC_NUMBERS] */
    dsc_tensor decays;  /* F64[layers]: decay of each; no memory unless options.warmup_factors is set */
    double *decays_host;
    dsc_tensor products; /* F64[4 units]: <P, D>; of the last decomposition <P, D>, <P, P>, <D, D> */
    dsc_tensor partial;  /* F64[3 units]: products of one batch */
    dsc_tensor ones, sum, nu_tensor; /* F64: [units], scalars */
    dsc_tensor ran;                  /* I32[2 layers]: to compare among ranks which layers ran */
    dsc_solve_item *solving;         /* [items] */
    dsc_unpack_item *unpacks;        /* [items] matrices that are loaded together */
    dsc_convert_item *converts;      /* [3 items] tensors that are copied together */
    dsc_join_item *joins;            /* [units] gradients to D and back; those of this step */
    dsc_dot_item *dots;              /* [3 units] */
    dsc_absorb_item *absorbs;        /* [2 units] */
    const dsc_tensor *g_scale;       /* a factor of all G; NULL: none */
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
    int begun, updating; /* 1: between begin and finish; this step moves the averages */
    int absorbed;        /* 1: and has moved them */
    int broken;          /* 1: an exchange of factors has failed, and may still be under way */
    int deciding;        /* 1: this step decomposes */
    int decomposed;      /* 1: there are decompositions */
    int active;          /* layout they belong to */
    int decomposed_now;  /* 1: the last step made them */
    double used_damping; /* damping at the last decomposition */
    double nu;
    dsc_kfac_times times;
    double solve_ms;
    int64_t counters[DSC_KFAC_COUNTERS]; /* of this rank */
    int64_t counted[DSC_KFAC_COUNTERS];  /* before the checkpoint that was loaded; rank 0 */

    dsc_kfac_report report;
    dsc_kfac_hyper report_hyper;
    dsc_kfac_times report_times;
    dsc_kfac_layer_report *layer_reports;
    double *report_work, *report_solve_ms, *report_products, *report_extremes, *report_nus;
    dsc_tensor gathered; /* F64, for reports */
    double *gathered_host;
    dsc_kfac_state_list state[2]; /* what a checkpoint holds, by layout */
};

/* layout.c */
/* Carves the vectors, values and triangles of all parcels out of the layout's three blocks; used[3] counts
 * their numbers. While the blocks have no memory yet this only counts. */
void dsc_kfac_place_parcels(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t used[3]);
dsc_status dsc_kfac_layout_create(dsc_kfac *k, dsc_kfac_layout *layout) DSC_MUST_CHECK;
void dsc_kfac_layout_destroy(dsc_kfac_layout *layout);
/* Waits for messages that a failed step left under way, which still use the memory. */
void dsc_kfac_layout_settle(dsc_kfac_layout *layout);
int dsc_kfac_layout_has_messages(const dsc_kfac_layout *layout);

/* capture.c */
void dsc_kfac_beside_destroy(dsc_kfac *k);

/* padding.c */
/* Leaves the rows out of a capture whose tokens are negative. */
dsc_status dsc_kfac_padding_apply(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layer *l,
                                  const dsc_tensor *tokens, dsc_kfac_pass *pass) DSC_MUST_CHECK;
/* keeps[rows], of any type: 1 for the rows of the last dsc_kfac_padding_apply that have a token, else 0. Asynchronous. */
dsc_status dsc_kfac_padding_keeps(dsc_kfac *k, dsc_queue *q, dsc_tensor *keeps) DSC_MUST_CHECK;
void dsc_kfac_padding_destroy(dsc_kfac *k);

/* buffers.c */
dsc_status dsc_kfac_memory_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_memory_destroy(dsc_kfac *k);
/* A block of `count` numbers; count 0: no memory. */
dsc_status dsc_kfac_alloc(const dsc_kfac *k, dsc_dtype dtype, int64_t count, dsc_tensor *out) DSC_MUST_CHECK;
/* Makes a workspace large enough. It grows during the first captures; later batches mostly have the same size. */
dsc_status dsc_kfac_reserve(const dsc_kfac *k, size_t bytes, dsc_tensor *work) DSC_MUST_CHECK;
/* Allocate the memory of the matrices being solved unless it is there, and free it where it is not kept. */
dsc_status dsc_kfac_take_solve_space(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_return_solve_space(dsc_kfac *k);
/* The next tensor of a block: moves *used by its elements. */
dsc_tensor dsc_kfac_carve(const dsc_tensor *block, int64_t *used, int ndim, const int64_t *dim);
/* Gives the batch factors of a layer memory to wait in, unless they have it. */
dsc_status dsc_kfac_wait_memory(dsc_kfac *k, int64_t layer) DSC_MUST_CHECK;
/* D of a unit is at `d` from now on. */
void dsc_kfac_use_gradient(dsc_kfac *k, int64_t unit, dsc_tensor d);

/* late.c */
/* DSC_E_INVALID unless all late gradients were set since the last step. */
dsc_status dsc_kfac_late_check(const dsc_kfac *k) DSC_MUST_CHECK;
/* Layers without a gradient read their own P instead of D, which is memory that exists. */
void dsc_kfac_late_start(dsc_kfac *k);
void dsc_kfac_late_finish(dsc_kfac *k);

/* factor.c */
dsc_status dsc_kfac_factors_create(dsc_kfac *k) DSC_MUST_CHECK;
/* Checks that the same layers ran everywhere, averages the batch factors over the ranks, and moves the
 * running averages. Collective. */
dsc_status dsc_kfac_factors_finish(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* The average takes in a batch factor x[packed], unless x is not finite. For averages in a half type x may lie
 * neither in `packed` nor in the first half of `spare`. */
dsc_status dsc_kfac_factor_absorb(dsc_kfac *k, dsc_queue *q, dsc_kfac_factor *f,
                                  const dsc_tensor *x) DSC_MUST_CHECK;
/* Copies the layers' own decays of this step to the device; nothing without options.warmup_factors. */
dsc_status dsc_kfac_decays_upload(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* For a state that has no numbers of updates: averages that hold something have seen many batches. */
void dsc_kfac_updates_guess(dsc_kfac *k);
/* The decay of a layer's averages in this step, on the device. */
dsc_tensor dsc_kfac_decay_of(const dsc_kfac *k, int64_t layer);
/* compare.c */
dsc_status dsc_kfac_compare_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_compare_destroy(dsc_kfac *k);
/* Compares among the ranks which layers ran in this step. *differs: the lowest layer that did not run equally
 * often everywhere, -1 when there is none or when the result arrives later. Collective. */
dsc_status dsc_kfac_compare(dsc_kfac *k, dsc_queue *q, int64_t *differs) DSC_MUST_CHECK;
/* The failure for such a layer; notes: the result of the comparison in step `step`. */
dsc_status dsc_kfac_refuse_difference(const dsc_kfac *k, const int32_t *notes, int64_t step,
                                      int64_t layer) DSC_MUST_CHECK;
/* Fails with the difference in an earlier step whose comparison has arrived since. */
dsc_status dsc_kfac_compare_arrived(dsc_kfac *k) DSC_MUST_CHECK;

/* health.c */
dsc_status dsc_kfac_health_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_health_destroy(dsc_kfac *k);
void dsc_kfac_health_forget(dsc_kfac *k);
/* Starts copying the products of a step that decomposed. Asynchronous. */
dsc_status dsc_kfac_health_copy(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Reads what was copied; waits for the copy. */
dsc_status dsc_kfac_health_read(dsc_kfac *k) DSC_MUST_CHECK;

/* Notes which layers' averages have taken in something in this step. */
void dsc_kfac_factors_note(dsc_kfac *k);
/* The running average of a factor as packed triangle in the arithmetic type: itself, or a copy in
 * `packed`. */
dsc_status dsc_kfac_factor_read(dsc_kfac *k, dsc_queue *q, const dsc_kfac_factor *f,
                                dsc_tensor *out) DSC_MUST_CHECK;

/* decompose.c */
/* Solves items of this rank (numbers of the plan) exactly and stores the results. */
dsc_status dsc_kfac_solve_items(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const int64_t *items,
                                int64_t count) DSC_MUST_CHECK;
/* Writes the matrix of each item into k->unpacks[i].a[n, n]: the factor or one of its blocks; for the inverse
 * with the damping on the diagonal. */
dsc_status dsc_kfac_load_items(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout, const int64_t *items,
                               int64_t count) DSC_MUST_CHECK;
dsc_status dsc_kfac_decompose_layout(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* Decomposes the items of this rank, without sending. For the inverse with the dampings of the last
 * dsc_kfac_split_damping. */
dsc_status dsc_kfac_decompose_own(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* After all ranks of the column have the new decompositions. Collective. */
dsc_status dsc_kfac_put_into_use(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* After loading a state: forms outer products from the loaded values and broadcasts decompositions in the
 * column. */
dsc_status dsc_kfac_share_decompositions(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;

/* clip.c */
/* The bound in this step; of one layer where each has its own. */
double dsc_kfac_clip_bound(const dsc_kfac *k);
dsc_status dsc_kfac_clip_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_clip_destroy(dsc_kfac *k);
/* nu (and those of the layers) from <P, D> of all units and their sum. */
dsc_status dsc_kfac_clip_find(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* The gradients of all units that take part become their P times nu; unless that is not finite. */
dsc_status dsc_kfac_clip_write(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* split.c */
dsc_status dsc_kfac_split_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_split_destroy(dsc_kfac *k);
/* Divides the damping of this step by the traces of the averages as they are now. `status`: a failure of this
 * rank so far; it takes part in the communication all the same, and the failure is returned. Collective in the
 * column where its ranks hold different averages. */
dsc_status dsc_kfac_split_damping(dsc_kfac *k, dsc_queue *q, dsc_status status) DSC_MUST_CHECK;
/* The damping of a factor for the inverse method, an F64 scalar on the device. */
dsc_tensor dsc_kfac_damping_of(const dsc_kfac *k, const dsc_kfac_item *item);

/* ekfac.c; all of them do nothing without EKFAC. _create is collective. */
dsc_status dsc_kfac_ekfac_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_ekfac_destroy(dsc_kfac *k);
/* Adds the moments of a unit's captured samples to those of the step. */
dsc_status dsc_kfac_ekfac_capture(dsc_kfac *k, dsc_queue *q, int64_t unit,
                                  const dsc_kfac_pass *pass) DSC_MUST_CHECK;
/* Averages the step's moments over the ranks. Collective. */
dsc_status dsc_kfac_ekfac_exchange(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* The running averages take in the step's moments. */
dsc_status dsc_kfac_ekfac_absorb(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Before a decomposition: keeps the bases that it will overwrite. */
dsc_status dsc_kfac_ekfac_keep(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Sends bases that were decomposed or loaded to the other columns, if these need them. Collective; blocks. */
dsc_status dsc_kfac_ekfac_share(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* After a decomposition that has reached the whole column: the moments follow the bases. Collective; blocks. */
dsc_status dsc_kfac_ekfac_decomposed(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Divides the projected gradients of a batch by moments and damping; the moments may take them in before. */
dsc_status dsc_kfac_ekfac_divide(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                 const dsc_kfac_batch *b) DSC_MUST_CHECK;

/* refresh.c */
dsc_status dsc_kfac_refresh_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_refresh_destroy(dsc_kfac *k);
/* 1 when the next decomposition of this layout starts from the last one. */
int dsc_kfac_is_warm(const dsc_kfac *k, int layout);
/* Before and after the parcels of a warm decomposition. */
dsc_status dsc_kfac_refresh_begin(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
void dsc_kfac_refresh_end(dsc_kfac *k);
/* Refreshes the items of a parcel of this rank and stores the results. Waits for the device. */
dsc_status dsc_kfac_refresh_parcel(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                   const dsc_kfac_parcel *p) DSC_MUST_CHECK;
size_t dsc_kfac_refresh_bytes(const dsc_kfac *k); /* memory of a refresh */
/* Items of up to `rows` rows are always solved exactly: 128 unless a test says otherwise, before the first step. */
dsc_status dsc_kfac_refresh_exact_rows(dsc_kfac *k, int64_t rows) DSC_MUST_CHECK;

/* products.c */
/* Carves the scratch memory of a product whose other members are set; cut: 1: the basis is not whole. */
void dsc_kfac_product_carve(dsc_kfac_product *p, int cut_a, int cut_g, const dsc_tensor *block,
                            int64_t *used);
/* Multiplies each x by 1/(G x A + damping). Asynchronous. */
dsc_status dsc_kfac_multiply(dsc_queue *q, const dsc_tensor *damping, const dsc_kfac_product *products,
                             int64_t count, dsc_kfac_lists *lists) DSC_MUST_CHECK;

/* cut.c */
/* 1 when bases keep only the leading vectors of large factors. */
static inline int dsc_kfac_is_cut(const dsc_kfac *k) {
    return k->options.rank < 1;
}
dsc_status dsc_kfac_cut_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_cut_destroy(dsc_kfac *k);
/* Sets the ranks with which items of more than exact_rows rows begin. */
void dsc_kfac_cut_plan(const dsc_kfac *k, dsc_kfac_layout *layout, int64_t exact_rows);
/* Where the last result of an item of this rank is. */
dsc_kfac_basis *dsc_kfac_cut_basis(dsc_kfac_layout *layout, int64_t item);
/* Stores an exact solution, of which the rank of the upkeep is kept. Where that is all of it the copies are only
 * added to k->converts, of which *listed are in use. Otherwise this waits for the device. */
dsc_status dsc_kfac_cut_store(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, int64_t item,
                              const dsc_solve_item *s, int64_t *listed) DSC_MUST_CHECK;
/* After this rank's items were decomposed, or failed with `status`: all ranks learn the ranks of all bases, and
 * give them room. Collective; fails on all ranks alike. */
dsc_status dsc_kfac_cut_share(dsc_kfac *k, dsc_queue *q, dsc_status status) DSC_MUST_CHECK;
/* Memory for bases of the ranks that the upkeep says. */
dsc_status dsc_kfac_cut_resize(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* P of the units of a batch. */
dsc_status dsc_kfac_cut_precondition(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                     const dsc_kfac_batch *b) DSC_MUST_CHECK;

/* upkeep.c */
/* The upkeep of all items as their owners have it, on every rank. Collective. */
dsc_status dsc_kfac_upkeep_gather(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
dsc_status dsc_kfac_upkeep_create(dsc_kfac *k, dsc_kfac_layout *layout) DSC_MUST_CHECK;
/* Starts sending the upkeep of a parcel in the column; collective there. */
dsc_status dsc_kfac_upkeep_send(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout,
                                dsc_kfac_parcel *p) DSC_MUST_CHECK;
/* After all of them have arrived. */
dsc_status dsc_kfac_upkeep_receive(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout) DSC_MUST_CHECK;
/* For checkpoints: copies the upkeep of all items to rank 0, or (own 1) that which this rank knows; and from
 * rank 0 to all ranks. Collective unless `own`. */
dsc_status dsc_kfac_upkeep_get(dsc_kfac *k, dsc_queue *q, int own, double *host) DSC_MUST_CHECK;
dsc_status dsc_kfac_upkeep_set(dsc_kfac *k, dsc_queue *q, const double *host) DSC_MUST_CHECK;

/* norm.c. The name of a norm, an embedding or a tied head, which a state uses, differs from those of the layers before it,
 * and its gradient is on the device. */
dsc_status dsc_kfac_check_extra(const dsc_kfac *k, int64_t layer) DSC_MUST_CHECK;
/* norm.c; all of them do nothing without options.norm. _find: before options.skip_layers is forgotten. _create is
 * collective. */
dsc_status dsc_kfac_norm_find(dsc_kfac *k) DSC_MUST_CHECK;
dsc_status dsc_kfac_norm_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_norm_destroy(dsc_kfac *k);
/* The gradients of a norm with late gradients are there in this step. Does nothing for other layers. */
dsc_status dsc_kfac_norm_set_gradients(dsc_kfac *k, int64_t layer,
                                       const dsc_kfac_gradients *gradients) DSC_MUST_CHECK;
/* Adds the matrices of a norm's captured samples to those of the step. */
dsc_status dsc_kfac_norm_capture(dsc_kfac *k, dsc_queue *q, int64_t layer,
                                 const dsc_kfac_sample *sample) DSC_MUST_CHECK;
/* Averages the step's matrices over the ranks. Collective. */
dsc_status dsc_kfac_norm_exchange(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
dsc_status dsc_kfac_norm_absorb(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* P of the norms that ran; adds their <P, D> to `sum`. Then, once nu is known, writes nu P. */
dsc_status dsc_kfac_norm_solve(dsc_kfac *k, dsc_queue *q, dsc_tensor *sum) DSC_MUST_CHECK;
dsc_status dsc_kfac_norm_write(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* embedding.c; all of them do nothing without options.embeddings and options.tied_head. _find: before options.skip_layers
 * is forgotten. _create is collective. The others are as those of norm.c. */
dsc_status dsc_kfac_tables_find(dsc_kfac *k) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_create(dsc_kfac *k) DSC_MUST_CHECK;
void dsc_kfac_tables_destroy(dsc_kfac *k);
dsc_status dsc_kfac_tables_capture(dsc_kfac *k, dsc_queue *q, int64_t layer,
                                   const dsc_kfac_sample *sample) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_exchange(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_absorb(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Decomposes all G. Waits for the device. */
dsc_status dsc_kfac_tables_decompose(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* After a state was loaded: a table is decomposed where its layer is ready. */
void dsc_kfac_tables_loaded(dsc_kfac *k);
dsc_status dsc_kfac_tables_solve(dsc_kfac *k, dsc_queue *q, dsc_tensor *sum) DSC_MUST_CHECK;
dsc_status dsc_kfac_tables_write(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* async.c */
dsc_status dsc_kfac_async_create(dsc_kfac *k) DSC_MUST_CHECK;
/* Waits for the thread. */
void dsc_kfac_async_destroy(dsc_kfac *k);
/* Starts the decomposition of this step's averages. Collective. */
dsc_status dsc_kfac_async_start(dsc_kfac *k, dsc_queue *q, int layout) DSC_MUST_CHECK;
/* 1 when the decomposition that was started is put into use in the step that was begun. */
int dsc_kfac_async_is_due(const dsc_kfac *k);
/* Waits for it, and puts it into use. Collective. */
dsc_status dsc_kfac_async_finish(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* After a state was loaded: starts again what was under way. Collective. */
dsc_status dsc_kfac_async_resume(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;
/* Waits for the thread; what it has computed is still put into use when it is due. */
void dsc_kfac_async_wait(dsc_kfac *k);
/* The object that computes; NULL without options.async_steps. */
dsc_kfac *dsc_kfac_async_twin(const dsc_kfac *k);

/* apply.c */
dsc_status dsc_kfac_precondition(dsc_kfac *k, dsc_queue *q) DSC_MUST_CHECK;

/* report.c */
dsc_status dsc_kfac_report_create(dsc_kfac *k) DSC_MUST_CHECK;
/* The counters of all ranks since the start. Collective; blocks. */
dsc_status dsc_kfac_totals(dsc_kfac *k, dsc_queue *q, int64_t totals[DSC_KFAC_COUNTERS]) DSC_MUST_CHECK;

/* state.c */
dsc_status dsc_kfac_state_create(dsc_kfac *k) DSC_MUST_CHECK;
/* After the ranks of bases have changed. */
void dsc_kfac_state_resize(dsc_kfac *k);
void dsc_kfac_state_destroy(dsc_kfac *k);

static inline dsc_kfac_factor *dsc_kfac_factor_of(dsc_kfac *k, const dsc_kfac_item *item) {
    return &k->members[item->unit].factor[item->side];
}

static inline int64_t dsc_kfac_layer_of(const dsc_kfac *k, int64_t unit) {
    return k->layouts[0].plan->units[unit].layer;
}

/* 1 when the unit's layer was captured in this step. */
static inline int dsc_kfac_was_captured(const dsc_kfac *k, int64_t unit) {
    return k->progress[dsc_kfac_layer_of(k, unit)].captures > 0;
}

/* 1 when the unit has a gradient that can be read in this step. */
static inline int dsc_kfac_has_gradient(const dsc_kfac *k, int64_t unit) {
    int64_t l = dsc_kfac_layer_of(k, unit);
    return !k->layers[l].late_gradients || k->progress[l].present;
}

/* 1 when the unit's gradient is preconditioned in this step: its layer ran, and the decompositions hold
 * something of it. As long as they hold nothing of any layer, layers whose gradients are not late are
 * preconditioned with the identity. */
static inline int dsc_kfac_takes_part(const dsc_kfac *k, int64_t unit) {
    int64_t l = dsc_kfac_layer_of(k, unit);
    int late = k->layers[l].late_gradients;
    int ran = late ? k->progress[l].present : k->progress[l].captures > 0;
    return ran && (k->progress[l].ready || (!late && !k->any_ready));
}

/* 1 when batches of units use the same memory for D, one after the other: then D of a unit is there only while its
 * batch is preconditioned. Not where P of a unit comes from another column. */
static inline int dsc_kfac_shares_d(const dsc_kfac *k) {
    return k->any_late && k->columns == 1 && k->layouts[0].batch_count > 1;
}

/* 1 when all factors of units with one A are decomposed together, so that a refresh can judge them together. */
static inline int dsc_kfac_pairs(const dsc_kfac *k, const dsc_kfac_layout *layout) {
    return k->options.refresh == DSC_KFAC_WARM && k->options.colocate_factors && layout == &k->layouts[0];
}

/* 1 when the layer is a norm that is preconditioned. */
static inline int dsc_kfac_is_norm(const dsc_kfac *k, int64_t layer) {
    return k->norms.count > 0 && k->norms.of[layer] >= 0;
}

/* 1 when the layer is an embedding or a tied head that is preconditioned. */
static inline int dsc_kfac_is_table(const dsc_kfac *k, int64_t layer) {
    return k->tables.count > 0 && k->tables.of[layer] >= 0;
}

static inline int dsc_kfac_keeps_everywhere(const dsc_kfac *k) {
    return k->rows == k->ranks;
}

#endif

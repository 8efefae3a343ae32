/* Warm refresh: the eigenvectors of a factor that has changed a little are obtained from the last ones by rotating
 * these, with matrix products and a Cholesky factorisation, instead of a new solve. refresh.c decides what is rotated,
 * solved and accepted; rotate.c rotates a wave of factors; eta.c estimates the error that this leaves in preconditioned
 * gradients. */
#ifndef DSC_KFAC_REFRESH_H
#define DSC_KFAC_REFRESH_H

#include "kfac/internal.h"

enum { DSC_KFAC_RESULTS = 3 }; /* elements of a result of dsc_op_rayleigh_batch */

/* One item of a wave: A[n, n] and `rank` vectors. */
typedef struct dsc_refresh_item {
    int64_t item; /* its index in the plan */
    int64_t n, rank;
    int warm;           /* 1: rotated; 0: solved exactly */
    int pending;        /* 1: to be rotated, and then judged, in this round */
    int stored;         /* 1: its result has been stored already, with another rank */
    int refused;        /* 1: its result is not accurate enough */
    int failed;         /* 1: the rotation gave no basis, or values that are not finite */
    int precise;        /* 1: products in float32, not in TF32 */
    int64_t iterations; /* the number of iterations left to do */
    double delta;       /* damping / largest eigenvalue of the other factor */
    double residual;    /* rms over j of |A q_j - v_j q_j| / (v_j + delta) */
    double sum, trace;  /* the sum of the eigenvalues; the trace of A */
    dsc_tensor a, q;    /* the factor; the current vectors: as stored, or in one of the two places */
    dsc_tensor place[2];
    dsc_tensor y, b, x; /* scratch memory between products */
    dsc_tensor v, result;
    dsc_tensor rest; /* the mean of the other eigenvalues; no memory if there are none */
} dsc_refresh_item;

/* A unit whose factors are both in the wave. */
typedef struct dsc_refresh_unit {
    int64_t a, g; /* indices of its factors in the wave */
    int64_t unit; /* its index in the plan */
    int active;   /* 1: still to be judged */
    dsc_tensor d; /* its gradient: the gradient itself, or `joined` */
    dsc_tensor joined;
    dsc_tensor p, r;  /* P; first D - G P A - damping P, then its preconditioned form */
    dsc_tensor space; /* scratch memory for three matrices like D */
    int judged;       /* 1: eta is known; 0: it was not needed, D is 0, or D or a factor is not finite */
    double eta;       /* NaN if the bases do not give a finite P */
} dsc_refresh_unit;

/* Items that are refreshed together, and their memory; the waves of a preconditioner use one struct in turn. */
typedef struct dsc_refresh_wave {
    dsc_kfac *k;
    dsc_kfac_layout *layout;
    dsc_queue *queue;
    int64_t first; /* the index of its first item in layout->order; the others follow */
    int64_t count, unit_count;
    dsc_refresh_item *items;    /* [items of a layout] */
    dsc_refresh_unit *units;    /* [units] */
    int64_t *chosen;            /* [items] those that are solved exactly next */
    int64_t exact_rows;         /* items of up to this many rows are always solved exactly */
    double *largest, *smallest; /* [items of the plan] eigenvalues of the last decomposition */
    void *stored;               /* host memory for all stored eigenvalues of a layout */
    void *values_host;          /* a copy of `values` after the last rotations; only for cut bases */
    dsc_tensor index;           /* I32[2 largest n]: 0, 1, ... n - 1; n - 1, ... 0; only for cut bases */
    /* Elements of `memory`, which with late gradients exists only during decompositions. */
    int64_t numbers;
    dsc_tensor memory, value_memory;
    dsc_tensor values;  /* v of all items */
    dsc_tensor rests;   /* stored after `values`: the means of the other eigenvalues of cut bases */
    dsc_tensor results; /* F64: results of all items, or three dot products of each unit */
    double *host;       /* a copy of `results` on the host */
    dsc_tensor ps, rs;  /* all p, all r of the wave */
    /* Lists for the batched operations. */
    dsc_gemm_item *gemms;
    dsc_rotation_item *rotations;
    dsc_orthonormal_item *orthonormals;
    dsc_rayleigh_item *rayleighs;
    dsc_dot_item *dots;
    dsc_kfac_product *products;
    dsc_kfac_lists lists;
} dsc_refresh_wave;

/* Finds the largest and smallest eigenvalue, at the last decomposition, of every item of this rank's column (with the
 * outer product, of the rank's own items). Waits for the device. */
dsc_status dsc_kfac_refresh_extremes(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout) DSC_MUST_CHECK;
/* Returns damping / largest eigenvalue of the other factor of the item's unit at the last decomposition; 0 before the
 * first. */
double dsc_kfac_refresh_delta(const dsc_kfac *k, const dsc_kfac_layout *layout, int64_t item);
/* Returns 1, after doubling the rank in its upkeep, if the basis of a rotated item drops too much. values: the
 * eigenvalues of its basis, on the host; mean: that of the other eigenvalues. */
int dsc_kfac_cut_grows(const dsc_kfac *k, dsc_kfac_layout *layout, const dsc_refresh_item *t,
                       const void *values, double mean);
/* Stores half of the vectors and sets *shrunk to 1 if half of them are enough, else to 0. */
dsc_status dsc_kfac_cut_shrink(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const dsc_refresh_item *t,
                               const void *values, double mean, int *shrunk) DSC_MUST_CHECK;
/* Rotates the items of the wave that have iterations left, computes their eigenvalues and residuals, and marks those
 * that failed. Waits for the device. */
dsc_status dsc_refresh_rotate(dsc_refresh_wave *w) DSC_MUST_CHECK;
/* Computes eta of the active units. Waits for the device. */
dsc_status dsc_refresh_judge(dsc_refresh_wave *w) DSC_MUST_CHECK;

#endif

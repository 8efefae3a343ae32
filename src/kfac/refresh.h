/* Warm refresh: eigenvectors of a factor that has changed a little, rotated from the last ones by products and
 * one Cholesky factorisation instead of a new solve. refresh.c decides what is rotated, solved and accepted;
 * rotate.c rotates a wave of factors; eta.c estimates the error that it leaves in preconditioned gradients. */
#ifndef DSC_KFAC_REFRESH_H
#define DSC_KFAC_REFRESH_H

#include "kfac/internal.h"

enum { DSC_KFAC_RESULTS = 3 }; /* numbers of dsc_op_rayleigh_batch */

/* One item of a wave: A[n, n] and `rank` vectors. */
typedef struct dsc_refresh_item {
    int64_t item; /* of the plan */
    int64_t n, rank;
    int warm;           /* 1: rotated; 0: solved exactly */
    int pending;        /* 1: rotated in this round */
    int stored;         /* 1: its result was stored with another rank */
    int refused;        /* 1: its result is not accurate enough */
    int failed;         /* 1: the rotation gave no basis, or numbers that are not finite */
    int precise;        /* 1: products in float32, not in TF32 */
    int64_t iterations; /* still to be done */
    double delta;       /* damping / largest eigenvalue of the other factor */
    double residual;    /* rms over j of |A q_j - v_j q_j| / (v_j + delta) */
    double sum, trace;  /* of the eigenvalues; of A */
    dsc_tensor a, q;    /* the factor; the current vectors: as stored, or in one of the two places */
    dsc_tensor place[2];
    dsc_tensor y, b, x; /* between products */
    dsc_tensor v, result;
    dsc_tensor rest; /* the mean of the other eigenvalues; no memory: there are none */
} dsc_refresh_item;

/* A unit both of whose factors are in the wave. */
typedef struct dsc_refresh_unit {
    int64_t a, g; /* places of its factors in the wave */
    int64_t unit; /* of the plan */
    int active;   /* 1: to be judged */
    dsc_tensor d; /* its gradient: where it is, or `joined` */
    dsc_tensor joined;
    dsc_tensor p, r;  /* P; D - G P A - damping P, and then its preconditioned form */
    dsc_tensor space; /* for three matrices like D */
    int judged;       /* 1: eta is known; 0: D is 0, or D or a factor is not finite */
    double eta;       /* NaN where the bases do not give a finite P */
} dsc_refresh_unit;

/* Items that are refreshed together, and their memory; one for all waves of a preconditioner. */
typedef struct dsc_refresh_wave {
    dsc_kfac *k;
    dsc_kfac_layout *layout;
    dsc_queue *queue;
    int64_t first; /* place of its first item in layout->order; the others follow */
    int64_t count, unit_count;
    dsc_refresh_item *items;    /* [items of a layout] */
    dsc_refresh_unit *units;    /* [units] */
    int64_t *chosen;            /* [items] those that are solved exactly next */
    int64_t exact_rows;         /* items of up to so many rows are always solved exactly */
    double *largest, *smallest; /* [items of the plan] eigenvalues of the last decomposition */
    void *stored;               /* host memory for all stored eigenvalues of a layout */
    void *values_host;          /* `values` as the last rotations left them, where bases are cut */
    dsc_tensor index;           /* I32[2 largest n]: 0, 1, ... n - 1; n - 1, ... 0; only for cut bases */
    int64_t numbers; /* of `memory`, which with late gradients is there during decompositions only */
    dsc_tensor memory, value_memory;
    dsc_tensor values;  /* v of all items */
    dsc_tensor rests;   /* after them: the means of the other eigenvalues of cut bases */
    dsc_tensor results; /* F64: of all items; three dot products of each unit */
    double *host;       /* the same on the host */
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

/* The largest and smallest eigenvalue of every item of this rank's column in its last decomposition; with the
 * outer product of its own items. Waits for the device. */
dsc_status dsc_kfac_refresh_extremes(dsc_kfac *k, dsc_queue *q, const dsc_kfac_layout *layout) DSC_MUST_CHECK;
/* damping / largest eigenvalue of the other factor of the item's unit in its last decomposition; 0 before the
 * first. */
double dsc_kfac_refresh_delta(const dsc_kfac *k, const dsc_kfac_layout *layout, int64_t item);
/* 1, and the rank of the upkeep is doubled, when the basis of a rotated item drops too much; values: of its
 * basis, on the host; mean: of the other eigenvalues. */
int dsc_kfac_cut_grows(const dsc_kfac *k, dsc_kfac_layout *layout, const dsc_refresh_item *t,
                       const void *values, double mean);
/* *shrunk = 1, and half of the vectors are stored, when that is enough. */
dsc_status dsc_kfac_cut_shrink(dsc_kfac *k, dsc_queue *q, dsc_kfac_layout *layout, const dsc_refresh_item *t,
                               const void *values, double mean, int *shrunk) DSC_MUST_CHECK;
/* Rotates the items of the wave that have iterations to be done, computes their eigenvalues and residuals, and
 * notes which of them failed. Waits for the device. */
dsc_status dsc_refresh_rotate(dsc_refresh_wave *w) DSC_MUST_CHECK;
/* eta of the active units. Waits for the device. */
dsc_status dsc_refresh_judge(dsc_refresh_wave *w) DSC_MUST_CHECK;

#endif

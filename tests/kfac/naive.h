/* A plain implementation of K-FAC, in double, for the whole batch at once: factors as sums over
 * rows, and the preconditioned gradient as the solution of the dense system
 *
 *   eigen     (G (x) A + damping I) vec(P) = vec(D)
 *   inverse   ((G + damping I) (x) (A + damping I)) vec(P) = vec(D)
 *
 * (split pi: with dampings sqrt(damping) pi for A and sqrt(damping) / pi for G, pi^2 = ratio of mean traces)
 * with explicit Kronecker products and vec row by row, by Gaussian elimination in long double. The eigen form
 * uses the damping of the step; the inverse and the precomputed outer product use that of the decomposition.
 * With diagonal blocks, the elements outside them are 0. */
#ifndef DSC_TESTS_KFAC_NAIVE_H
#define DSC_TESTS_KFAC_NAIVE_H

#include "kfac/net.h"
#include "kfac/placement.h"

enum { NAIVE_UNITS = 16 };

/* The hyper-parameters of a step without a schedule, for the functions below. */
#define HYPER(options)                                                                                       \
    (const dsc_kfac_hyper[]) {                                                                               \
        dsc_kfac_hyper_of(options)                                                                           \
    }

/* A layer, or a group of one. D is [g_n, a_n]. */
typedef struct naive_unit {
    int layer;
    int64_t group, a_n, g_n;
    double *a, *g;               /* running averages, the identity at first */
    double *a_batch, *g_batch;   /* of this step, summed over its passes */
    double *a_solved, *g_solved; /* the averages at the last decomposition */
    double solved_damping;       /* of that step */
    double solved_split[2];      /* inverse: the dampings that step added to A and to G */
    int ran;                     /* number of passes of this step in which it ran */
    int updates;                 /* number of updates of its averages */
    int solved;                  /* 1: it was decomposed at least once */
    double cosine;               /* between D and P in the last step; NaN when left out */
    double nu;                   /* of the KL clip in the last step */
    double *p;                   /* [g_n, a_n] of the last step, before the clip */
} naive_unit;

typedef struct naive {
    const net *n;
    dsc_kfac_method method;
    dsc_kfac_scaling scaling;
    dsc_kfac_split split;
    int64_t part; /* samples of every rank's share that factors come from; 0: all */
    dsc_kfac_clip clip;
    int warmup;         /* 1: averages start as plain means of the batches */
    int frozen_damping; /* 1: the outer product was formed at the decomposition */
    double g_factor;    /* the whole batch's g is multiplied by it before G is formed; usually 1 */
    int count;
    naive_unit units[NAIVE_UNITS];
} naive;

void naive_open(naive *v, const net *n, const dsc_kfac_options *options);
void naive_close(naive *v);
/* Adds the factors of the net's present data, for layers that run. */
void naive_capture(naive *v, unsigned absent);
/* Ends a step: averages when `update`, takes over the factors when `decompose`, and solves. d[l]: D of every
 * layer, replaced by nu P where a layer ran. Returns nu. */
double naive_step(naive *v, const dsc_kfac_hyper *hyper, int update, int decompose, double lr, double **d);
/* Does what net_run does in step k = step->number, on the data the net draws; d as above. */
double naive_run(naive *v, net *n, const net_step *step, const dsc_kfac_hyper *hyper, double **d);

/* The largest relative error that P of a layer may have when it is computed with rounding error eps: that of the
 * factors (number of summed rows) and of the solves (rows of the matrices), times the condition of the system. */
double naive_bound(const naive *v, int layer, double damping, double eps);
/* Compares the device's gradients with `want`: the largest distance of a layer, in units of its bound; infinite when
 * something is not a number. */
double naive_excess(const naive *v, double *const *want, double damping, double eps);
/* |x - y| / |y|, Frobenius. */
double naive_distance(const double *x, const double *y, int64_t count);

/* Smallest and largest eigenvalue of a symmetric matrix, by Jacobi's rotations. */
void naive_extremes(const double *a, int64_t n, double *smallest, double *largest);

/* Allocates memory for D of all layers, and frees it. */
void naive_gradients_open(const net *n, double **d);
void naive_gradients_close(const net *n, double **d);

#endif

/* Solving one factor after the fast way has failed: other methods in turn.
 *
 * A method gets the matrix anew each time; DSC_E_NUMERIC means "try the next", any other failure ends it. */
#ifndef DSC_KFAC_SOLVE_H
#define DSC_KFAC_SOLVE_H

#include "device/ops.h"

/* The fast way: all items of a batch at once (dsc_op_syev_batch, dsc_op_chol_inverse_batch). */
typedef dsc_status (*dsc_solve_batch)(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work);
/* One matrix a[n,n], overwritten by eigenvectors (and v[n]) or by the inverse. floor: what its eigenvalues
 * are at least, but for rounding. */
typedef dsc_status (*dsc_solve_one)(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v);
/* Writes the matrix to be solved into a. */
typedef dsc_status (*dsc_solve_load)(void *context, dsc_queue *q, dsc_tensor *a);

/* How factors are solved. */
typedef struct dsc_solver {
    dsc_solve_batch batch;
    const dsc_solve_one *rungs; /* then, for what failed: double precision, another algorithm */
    int rung_count;
} dsc_solver;

extern const dsc_solver dsc_solver_eigen, dsc_solver_inverse;

/* Tries the rungs in turn. *solved = 1 when one of them succeeded with finite values, 0 when all failed. */
dsc_status dsc_solve_retry(const dsc_solver *solver, dsc_queue *q, dsc_solve_load load, void *context,
                           double floor, dsc_tensor *a, dsc_tensor *v, int *solved) DSC_MUST_CHECK;
/* *finite = 1 when neither a nor v holds a NaN or an infinity. Blocks. */
dsc_status dsc_solve_check(dsc_queue *q, const dsc_tensor *a, const dsc_tensor *v,
                           int *finite) DSC_MUST_CHECK;

#endif

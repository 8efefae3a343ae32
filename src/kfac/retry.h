/* Solvers for factors: a fast one for many matrices at once, and slower ones for a matrix on which it failed.
 *
 * Each of them is given a fresh copy of the matrix. DSC_E_NUMERIC means "try the next"; any other failure ends the
 * attempts. */
#ifndef DSC_KFAC_RETRY_H
#define DSC_KFAC_RETRY_H

#include "device/ops.h"

/* Solves all items of a batch at once (dsc_op_syev_batch, dsc_op_chol_inverse_batch). */
typedef dsc_status (*dsc_solve_batch)(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work);
/* Solves one matrix: overwrites a[n,n] with its eigenvectors (and v[n] with its eigenvalues) or with its inverse.
 * floor: a lower bound on its eigenvalues, apart from rounding. */
typedef dsc_status (*dsc_solve_one)(dsc_queue *q, double floor, dsc_tensor *a, dsc_tensor *v);
/* Writes the matrix to be solved into a. */
typedef dsc_status (*dsc_solve_load)(void *context, dsc_queue *q, dsc_tensor *a);

/* How factors are solved. */
typedef struct dsc_solver {
    dsc_solve_batch batch;
    const dsc_solve_one *retries; /* tried in this order for a matrix on which `batch` failed */
    int retry_count;
} dsc_solver;

extern const dsc_solver dsc_solver_eigen, dsc_solver_inverse;

/* Tries the retries in turn. Sets *solved to 1 if one of them succeeded with finite values, to 0 if all failed. */
dsc_status dsc_solve_retry(const dsc_solver *solver, dsc_queue *q, dsc_solve_load load, void *context,
                           double floor, dsc_tensor *a, dsc_tensor *v, int *solved) DSC_MUST_CHECK;
/* Sets *finite to 1 if neither a nor v holds a NaN or an infinity, else to 0. Blocks. */
dsc_status dsc_solve_check(dsc_queue *q, const dsc_tensor *a, const dsc_tensor *v,
                           int *finite) DSC_MUST_CHECK;

#endif

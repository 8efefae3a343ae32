/* Matrices that have broken symmetric eigen solvers, and what a solution must be. With Frobenius norms it is
 * accepted when
 *   |A - Q diag(v) Q'| <= 64 n eps |A|,   |Q'Q - I| <= 25 n eps,   v rising. */
#ifndef DSC_TESTS_DEVICE_EIGEN_H
#define DSC_TESTS_DEVICE_EIGEN_H

#include "device/rig.h"

/* Element (i, j), j <= i, of a test matrix of size n. */
typedef double (*matrix_function)(int64_t n, int64_t i, int64_t j);

typedef struct matrix_kind {
    const char *name;
    matrix_function element;
} matrix_kind;

enum { MATRICES = 14 };
extern const matrix_kind matrices[MATRICES];

/* The kinds that tests name. */
enum { DENSE = 2, TRIDIAGONAL = 7 };

/* A[n,n] as the device sees it, rounded to its type, with both triangles filled. The caller frees it. */
double *make_matrix(matrix_function element, dsc_dtype type, int64_t n);
/* Fails the test unless Q[n,n] and v[n] solve A[n,n]. */
void check_solution(const char *what, const double *a, const double *q, const double *v, int64_t n,
                    double eps);

#endif

#include "device/eigen.h"

#include <math.h>
#include <stdlib.h>

static double noise(int64_t i, int64_t j) {
    double value;
    random_values((uint64_t)(i * 1000 + j), 1, &value);
    return value;
}

static double zero(int64_t n, int64_t i, int64_t j) {
    (void)n;
    (void)i;
    (void)j;
    return 0;
}

static double identity(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i == j;
}

static double dense(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return noise(i, j);
}

/* Already diagonal, falling, with equal neighbours. */
static double falling(int64_t n, int64_t i, int64_t j) {
    return i == j ? (double)((n - i) / 2) : 0;
}

static double rank_one(int64_t n, int64_t i, int64_t j) {
    return (double)((i + 1) * (j + 1)) / (double)(n * n);
}

/* I - 2 u u'/u'u with u = (1, 2, 3, ...): eigenvalue -1 once, 1 otherwise. */
static double reflection(int64_t n, int64_t i, int64_t j) {
    double square = (double)n * (double)(n + 1) * (double)(2 * n + 1) / 6;
    return (i == j) - 2 * (double)(i + 1) * (double)(j + 1) / square;
}

/* Eigenvalues within 1e-6 of each other. */
static double clustered(int64_t n, int64_t i, int64_t j) {
    return (i == j) + 1e-6 * noise(i, j) / (double)n;
}

/* Second difference; eigenvalues 2 - 2 cos(k pi / (n + 1)). */
static double tridiagonal(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i == j ? 2 : (i - j == 1 ? -1 : 0);
}

static double banded(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return i - j <= 5 ? noise(i, j) : 0;
}

/* Wilkinson's W: pairs of eigenvalues that agree in many digits. */
static double wilkinson(int64_t n, int64_t i, int64_t j) {
    return i == j ? fabs((double)i - (double)(n - 1) / 2) : (i - j == 1 ? 1 : 0);
}

/* Rows and columns from 1 to 1e-12: graded, as the factors of dead channels are. */
static double graded(int64_t n, int64_t i, int64_t j) {
    return noise(i, j) * pow(10, -6 * (double)(i + j) / (double)n);
}

/* Hilbert's matrix: eigenvalues fall to nothing. */
static double hilbert(int64_t n, int64_t i, int64_t j) {
    (void)n;
    return 1 / (double)(i + j + 1);
}

static double huge(int64_t n, int64_t i, int64_t j) {
    return 1e30 * dense(n, i, j);
}

static double tiny(int64_t n, int64_t i, int64_t j) {
    return 1e-30 * dense(n, i, j);
}

const matrix_kind matrices[MATRICES] = {
    {"zero", zero},           {"identity", identity},
    {"dense", dense},         {"falling", falling},
    {"rank one", rank_one},   {"reflection", reflection},
    {"clustered", clustered}, {"tridiagonal", tridiagonal},
    {"banded", banded},       {"wilkinson", wilkinson},
    {"graded", graded},       {"hilbert", hilbert},
    {"huge", huge},           {"tiny", tiny},
};

double *make_matrix(matrix_function element, dsc_dtype type, int64_t n) {
    double *a = test_array(n * n, sizeof *a);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double value = element(n, i, j);
            a[i * n + j] = a[j * n + i] = type == DSC_F32 ? (double)(float)value : value;
        }
    return a;
}

/* |X|_F over n*n entries. */
static double norm_of(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

void check_solution(const char *what, const double *a, const double *q, const double *v, int64_t n,
                    double eps) {
    double *rest = test_array(n * n, sizeof *rest), *gram = test_array(n * n, sizeof *gram);
    double *qt = test_array(n * n, sizeof *qt);
    for (int64_t i = 0; i < n * n; i++) {
        rest[i] = a[i];
        qt[i % n * n + i / n] = q[i];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            for (int64_t l = 0; l < n; l++) {
                rest[i * n + j] -= q[i * n + l] * v[l] * q[j * n + l];
                gram[i * n + j] += qt[i * n + l] * qt[j * n + l];
            }
            gram[i * n + j] -= i == j;
        }
    double residual = norm_of(rest, n * n), size = norm_of(a, n * n), skew = norm_of(gram, n * n);
    if (!(residual <= 64 * (double)n * eps * size))
        fail_msg("%s: |A - QVQ'| is %g of |A|", what, residual / size);
    if (!(skew <= 25 * (double)n * eps))
        fail_msg("%s: |Q'Q - I| is %g", what, skew);
    for (int64_t i = 1; i < n; i++)
        if (!(v[i - 1] <= v[i]))
            fail_msg("%s: eigenvalue %lld is %g, the next %g", what, (long long)(i - 1), v[i - 1], v[i]);
    free(rest);
    free(gram);
    free(qt);
}

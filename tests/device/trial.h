/* Conformance: one call of an operation, on every device and in both types, against ref in double.
 *
 * All inputs are values that a float32 holds, so every run starts from the same numbers. An element of an output is
 * right when
 *   |got - want| <= 2 (terms + 4) eps scale,
 * terms: number of additions in one element; scale: the size of what was added. For a linear operation the scale of
 * each element is what ref makes of the inputs' absolute values; else the trial says it, per output.
 *
 * Each run is done twice and must give the same bits; inputs must be unchanged; guard words must be intact; outputs
 * that are only written hold NaN before.
 *
 * That limit covers the worst case, and where many terms cancel it may be larger than the result. Operations on
 * halves may therefore also be held to a typical error (`parts` of a trial): the last dimension of an output is
 * divided into so many parts, its rows into blocks of 64, and in each block of a part the root mean square of the
 * errors is at most `typical` roundings of the root mean square of the values, which counts as at least a quarter of
 * that of the whole part. */
#ifndef DSC_TESTS_DEVICE_TRIAL_H
#define DSC_TESTS_DEVICE_TRIAL_H

#include "device/rig.h"

enum { MAX_OPERANDS = 12 };

typedef enum operand_role {
    ROLE_IN,    /* read only */
    ROLE_OUT,   /* written only */
    ROLE_INOUT, /* read and written */
} operand_role;

typedef struct operand {
    const char *name;
    operand_role role;
    int real; /* 1: of the type under test; 0: `dtype` */
    dsc_dtype dtype;
    int ndim;
    int64_t dim[DSC_MAX_DIMS];
    int64_t count;
    double *values; /* at the start; owned */
    double scale;   /* of an output, unless linear */
    int param;      /* float32 where the type under test is a half */
    int coarse;     /* fixed type, but computed in the type under test */
} operand;

/* t: the operands in the order they were added. */
typedef dsc_status (*trial_function)(dsc_queue *q, dsc_tensor *t, const void *params);

typedef struct trial {
    const char *name; /* of operation and case, for messages */
    trial_function run;
    const void *params;
    int linear;
    int conv;    /* a convolution: not everywhere in float64, less exact on a loose rig */
    int rounded; /* how often results may have been rounded to the half type under test, whatever their own is */
    int parts;      /* of the outputs of a half type; 0: only the worst case is checked */
    double typical; /* error, in roundings to the half type */
    double terms;
    operand operands[MAX_OPERANDS];
    int count;
    uint64_t stream; /* of random numbers; counts operands */
} trial;

void trial_start(trial *tr, const char *name, trial_function run, const void *params);
/* Adds an operand of the type under test with random values in [-1, 1] and returns these, to be changed at
 * will (values that float32 holds). */
double *trial_in(trial *tr, const char *name, int ndim, const int64_t *dim);
double *trial_inout(trial *tr, const char *name, double scale, int ndim, const int64_t *dim);
void trial_out(trial *tr, const char *name, double scale, int ndim, const int64_t *dim);
/* in-out with beta != 0, else out. */
void trial_beta(trial *tr, const char *name, double scale, double beta, int ndim, const int64_t *dim);
/* Of a fixed type; values start at 0. */
double *trial_typed(trial *tr, const char *name, operand_role role, dsc_dtype dtype, double scale, int ndim,
                    const int64_t *dim);
/* Marks the operand that was added last as a parameter, a statistic or a sum. */
void trial_param(trial *tr);
/* Runs it everywhere, checks, and frees the trial's values. */
void trial_check(trial *tr);
/* The same in bf16 and fp16, on devices that have these. Inputs are rounded to the type first; arithmetic is
 * that of float32, and an output of the type under test may be off by one rounding more. */
void trial_check_halves(trial *tr);

#endif

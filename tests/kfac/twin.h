/* A net with K-FAC on one rank, and the naive implementation next to it. */
#ifndef DSC_TESTS_KFAC_TWIN_H
#define DSC_TESTS_KFAC_TWIN_H

#include "chosen.h"
#include "kfac/naive.h"

enum { TWIN_SAMPLES = 3, TWIN_MIXED = 4 };

/* A device and a type: ref in float64, cpu in float32; or the environment's device in both (chosen.h).
 * Opened and closed with the group of tests. */
typedef struct place {
    const char *device;
    dsc_dtype dtype;
    double eps;
    int threads;
    dsc_device *handle;
    dsc_queue *queue;
} place;

enum { REF, CPU, PLACES };
extern place places[PLACES];
extern dsc_comm *alone;
/* For tensors in the test's own memory. */
extern dsc_device *host_device;
extern dsc_queue *host_queue;
int places_open(void **state);
int places_close(void **state); /* fails when memory is left */

/* A convolution with bias, a grouped one, a linear layer on sequences, one with bias. */
extern const net_shape twin_mixed[TWIN_MIXED];

typedef struct twin {
    net n;
    naive v;
    dsc_kfac *kfac;
    dsc_kfac_options options;
    double *want[NET_LAYERS];
    double eps;
} twin;

/* Damping 1/8, decay 1/2, F = T = 1, no clip: the batch's factors have a large weight, and the system has a moderate
 * condition. */
dsc_kfac_options twin_options(void);
void twin_open(twin *t, const place *p, const net_shape *list, int count, const dsc_kfac_options *options);
void twin_close(twin *t);
/* Runs one step of both under `hyper` and checks that gradients and nu agree to rounding. kfac must get the same
 * hyper-parameters from its own options or schedule. */
void twin_step_under(twin *t, const net_step *step, const dsc_kfac_hyper *hyper, const char *what);
/* The same with the constants of the options. */
void twin_step(twin *t, const net_step *step, const char *what);

/* The report; fails the test when it cannot be made. */
const dsc_kfac_report *twin_report(twin *t);
/* The number of the state's entry of that name; fails the test when it is missing. */
int64_t twin_entry(const dsc_kfac *kfac, const char *name);
/* Element i of that entry (packed triangles of factors: i = row (row + 1) / 2 + column). */
double twin_state(twin *t, const char *name, int64_t i);

#endif

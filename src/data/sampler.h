/* The order of samples: one permutation per epoch, cut into global batches. */
#ifndef DSC_DATA_SAMPLER_H
#define DSC_DATA_SAMPLER_H

#include "descent/status.h"

#include <stdint.h>

typedef struct dsc_sampler_options {
    int64_t count; /* samples of the data set, below 2^32 */
    int64_t batch; /* per rank */
    int rank, ranks;
    uint64_t seed;
    int shuffle, keep_last;
    /* Shuffling that keeps neighbours together: groups of samples are shuffled, and then the samples among every
     * `buffer` of them. group_start[groups + 1]: the first sample of each group, and `count`; copied. 0: all
     * samples are shuffled at once. */
    int64_t buffer, groups;
    const int64_t *group_start;
} dsc_sampler_options;

/* Where the next global batch starts. */
typedef struct dsc_sampler {
    dsc_sampler_options options;
    int64_t epoch, position;
    uint32_t *order;     /* [count], of epoch `order_epoch` */
    int64_t order_epoch; /* negative: none yet */
    int64_t *start;      /* copy of options.group_start */
    uint32_t *groups;    /* [options.groups], their order in that epoch */
} dsc_sampler;

/* order[count] = the permutation of one epoch; a pure function of (seed, epoch, count). */
void dsc_sampler_permute(uint64_t seed, int64_t epoch, int64_t count, uint32_t *order);

/* The same for groups: a pure function of (seed, epoch, groups, buffer). order[group_start[groups]], and `shuffled`
 * is memory for the order of the groups. */
void dsc_sampler_permute_groups(const dsc_sampler_options *options, int64_t epoch, uint32_t *shuffled,
                                uint32_t *order);

dsc_status dsc_sampler_init(const dsc_sampler_options *options, dsc_sampler *sampler) DSC_MUST_CHECK;
void dsc_sampler_free(dsc_sampler *sampler);
/* Global batches of an epoch. */
int64_t dsc_sampler_batches(const dsc_sampler *sampler);
/* How many samples these hold: all, or all but the last few. */
int64_t dsc_sampler_places(const dsc_sampler *sampler);
/* The sample at a place of the epoch of the last dsc_sampler_next. */
int64_t dsc_sampler_at(const dsc_sampler *sampler, int64_t place);
dsc_status dsc_sampler_seek(dsc_sampler *sampler, int64_t epoch, int64_t position) DSC_MUST_CHECK;
/* This rank's part of the next global batch: index[batch], -1 after the end of the epoch; and where
 * the batch starts. Allocates nothing. */
void dsc_sampler_next(dsc_sampler *sampler, int64_t *index, int64_t *epoch, int64_t *position);

#endif

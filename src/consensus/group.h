/* Ranks that gossip as one. The members of a group hold the same values: they average their gradients by
 * all-reduce, and each gossips a slice of the parameters with the members of equal place in other groups,
 * which everybody in the group gets afterwards. */
#ifndef DSC_CONSENSUS_GROUP_H
#define DSC_CONSENSUS_GROUP_H

#include "consensus/table.h"

typedef struct dsc_group {
    int size;               /* members; 1: no groups, and nothing of what follows */
    int place;              /* of this rank in its group */
    dsc_comm *inside;       /* its members, by place */
    dsc_comm *between;      /* the members of equal place, by group */
    dsc_buckets *gradients; /* averaged inside */
    dsc_tensor flag;        /* I64[1] */
    dsc_tensor *slices;     /* pieces of the runs; those of place p are [first[p], first[p + 1]) */
    int64_t *first;         /* [size + 1] */
    dsc_request **requests; /* of each slice */
} dsc_group;

/* Collective. */
dsc_status dsc_group_open(dsc_group *group, dsc_consensus *c,
                          const dsc_consensus_options *options) DSC_MUST_CHECK;
void dsc_group_close(dsc_group *group);
/* The moments of gradients. Nothing without groups. */
dsc_status dsc_group_grad_ready(dsc_group *group, const dsc_consensus *c, int64_t param) DSC_MUST_CHECK;
dsc_status dsc_group_after_backward(dsc_group *group) DSC_MUST_CHECK;
/* *flag = 1 when it is on all members. Collective in the group; blocks. */
dsc_status dsc_group_agree(dsc_group *group, dsc_queue *queue, int *flag) DSC_MUST_CHECK;
/* Every member gets everybody's slice. Collective in the group. */
dsc_status dsc_group_spread(dsc_group *group, dsc_queue *queue) DSC_MUST_CHECK;
/* The others' slices *= factor. */
dsc_status dsc_group_scale_others(dsc_group *group, dsc_queue *queue, double factor) DSC_MUST_CHECK;

#endif

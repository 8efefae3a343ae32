/* Groups of ranks that gossip as one. The members of a group hold the same values: they average their gradients
 * by all-reduce. Each member gossips one slice of the parameters with the members at the same place in other
 * groups, and then broadcasts its slice inside its group. */
#ifndef DSC_CONSENSUS_GROUP_H
#define DSC_CONSENSUS_GROUP_H

#include "consensus/table.h"

typedef struct dsc_group {
    int size;               /* members per group; 1: no groups, and the other fields are unused */
    int place;              /* the index of this rank in its group */
    dsc_comm *inside;       /* the members of this group, ordered by place */
    dsc_comm *between;      /* the members at the same place in all groups, ordered by group */
    dsc_tensor flag;        /* I64[1] */
    dsc_tensor *slices;     /* pieces of the runs; those of place p are [first[p], first[p + 1]) */
    int64_t *first;         /* [size + 1] */
    dsc_request **requests; /* one for each piece in `slices` */
} dsc_group;

/* Makes the groups, with their communicators and slices. Collective. */
dsc_status dsc_group_open(dsc_group *group, dsc_consensus *c,
                          const dsc_consensus_options *options) DSC_MUST_CHECK;
void dsc_group_close(dsc_group *group, dsc_consensus *c);
/* Sets *flag to 1 if it is nonzero on all members, otherwise to 0. Collective in the group; blocks. */
dsc_status dsc_group_agree(dsc_group *group, dsc_queue *queue, int *flag) DSC_MUST_CHECK;
/* Broadcasts every member's slice to the group. Collective in the group; blocks. */
dsc_status dsc_group_spread(dsc_group *group, dsc_queue *queue) DSC_MUST_CHECK;
/* Multiplies the slices of the other members by `factor`. */
dsc_status dsc_group_scale_others(dsc_group *group, dsc_queue *queue, double factor) DSC_MUST_CHECK;

#endif

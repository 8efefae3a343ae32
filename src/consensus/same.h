/* Compares the lists of tensors that the ranks are about to average. */
#ifndef DSC_CONSENSUS_SAME_H
#define DSC_CONSENSUS_SAME_H

#include "descent/comm.h"

typedef struct dsc_same_list {
    const char *what;   /* "parameter" */
    const char *remedy; /* the end of the message */
    int64_t count;
    const dsc_tensor *tensors;  /* NULL if `params` is given */
    const dsc_param *params;    /* NULL: `tensors` is given, and they have no names */
    const char *const *layouts; /* NULL: none */
} dsc_same_list;

/* DSC_E_INVALID, on all ranks and with the same message, if numbers, names, types, shapes or layouts differ: the
 * message names the first tensor that differs, and two ranks with what they have. Collective; blocks. */
dsc_status dsc_same_check(dsc_comm *comm, const dsc_same_list *list) DSC_MUST_CHECK;

#endif

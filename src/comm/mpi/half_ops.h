/* Reductions of bf16 and fp16, which MPI does not know: they are sent as 16-bit integers, and these operations
 * combine them in float32 and round each partial result to nearest. */
#ifndef DSC_COMM_MPI_HALF_OPS_H
#define DSC_COMM_MPI_HALF_OPS_H

#include <mpi.h>

/* Indexed by dsc_reduction. */
typedef struct dsc_half_ops {
    MPI_Op bf16[3], f16[3];
} dsc_half_ops;

/* Returns MPI's error code. */
int dsc_half_ops_create(dsc_half_ops *ops);
void dsc_half_ops_free(dsc_half_ops *ops);

#endif

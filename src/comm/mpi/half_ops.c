#include "comm/mpi/half_ops.h"

#include "comm/reduce.h"

/* The functions that MPI calls: one for each type and reduction, since it passes nothing but the data. */

static void bf16_sum(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    dsc_reduce_bf16(in, inout, *n, DSC_SUM);
}

static void bf16_max(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    dsc_reduce_bf16(in, inout, *n, DSC_MAX);
}

static void bf16_min(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    dsc_reduce_bf16(in, inout, *n, DSC_MIN);
}

static void f16_sum(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    dsc_reduce_f16(in, inout, *n, DSC_SUM);
}

static void f16_max(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    dsc_reduce_f16(in, inout, *n, DSC_MAX);
}

static void f16_min(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    dsc_reduce_f16(in, inout, *n, DSC_MIN);
}

int dsc_half_ops_create(dsc_half_ops *ops) {
    const struct {
        MPI_User_function *function;
        MPI_Op *op;
    } all[] = {
        {bf16_sum, &ops->bf16[DSC_SUM]}, {bf16_max, &ops->bf16[DSC_MAX]}, {bf16_min, &ops->bf16[DSC_MIN]},
        {f16_sum, &ops->f16[DSC_SUM]},   {f16_max, &ops->f16[DSC_MAX]},   {f16_min, &ops->f16[DSC_MIN]},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int code = MPI_Op_create(all[i].function, 1, all[i].op); /* 1: commutative */
        if (code != MPI_SUCCESS)
            return code;
    }
    return MPI_SUCCESS;
}

void dsc_half_ops_free(dsc_half_ops *ops) {
    for (int i = 0; i < 3; i++) {
        MPI_Op_free(&ops->bf16[i]);
        MPI_Op_free(&ops->f16[i]);
    }
}

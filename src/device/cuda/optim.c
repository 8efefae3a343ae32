/* The optimisers' updates: entries. Kernels in optim.cu. */
#include "device/cuda/entries.h"
#include "device/cuda/optim_kernels.h"
#include "device/cuda/state.h"

static dsc_cuda_update update_of(const dsc_tensor *hyper, const dsc_tensor *z, const dsc_tensor *g,
                                 dsc_tensor *m, dsc_tensor *x) {
    return (dsc_cuda_update){.dtype = x->dtype,
                             .count = dsc_tensor_count(x),
                             .hyper = hyper->data,
                             .z = z->data,
                             .g = g->data,
                             .m = m->data,
                             .x = x->data};
}

dsc_status dsc_cuda_sgd(dsc_queue *q, int nesterov, const dsc_tensor *hyper, const dsc_tensor *z,
                        const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    dsc_cuda_update u = update_of(hyper, z, g, m, x);
    DSC_CUDA_TRY(dsc_cuda_launch_sgd(dsc_cuda_at(q), &u, nesterov));
    return DSC_OK;
}

dsc_status dsc_cuda_adam(dsc_queue *q, int decoupled, const dsc_tensor *hyper, const dsc_tensor *z,
                         const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *x) {
    dsc_cuda_update u = update_of(hyper, z, g, m, x);
    u.v = v->data;
    DSC_CUDA_TRY(dsc_cuda_launch_adam(dsc_cuda_at(q), &u, decoupled));
    return DSC_OK;
}

dsc_status dsc_cuda_lars(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms, const dsc_tensor *z,
                         const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x) {
    dsc_cuda_update u = update_of(hyper, z, g, m, x);
    u.norms = norms->data;
    DSC_CUDA_TRY(dsc_cuda_launch_lars(dsc_cuda_at(q), &u));
    return DSC_OK;
}

dsc_status dsc_cuda_lamb_direction(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *z,
                                   const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *direction) {
    dsc_cuda_update u = update_of(hyper, z, g, m, direction);
    u.v = v->data;
    DSC_CUDA_TRY(dsc_cuda_launch_lamb_direction(dsc_cuda_at(q), &u));
    return DSC_OK;
}

dsc_status dsc_cuda_lamb_apply(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                               const dsc_tensor *direction, dsc_tensor *x) {
    dsc_cuda_update u = {.dtype = x->dtype,
                         .count = dsc_tensor_count(x),
                         .hyper = hyper->data,
                         .norms = norms->data,
                         .g = direction->data,
                         .x = x->data};
    DSC_CUDA_TRY(dsc_cuda_launch_lamb_apply(dsc_cuda_at(q), &u));
    return DSC_OK;
}

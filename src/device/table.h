/* What a backend implements: one constant table of functions, called by the fronts in ops_*.c and device.c
 * after all checks. A backend copies ref's table and overrides what it does better (dsc_ref_table). Arguments
 * are as in ops.h.
 *
 * A host backend's entries are called for F32 only; other real types go to ref's table
 * (dsc_device_table_for). These get every type that ops.h allows: `fill`, `convert`, `softmax_loss`,
 * `sample_labels`, and the solvers `syev`, `chol_inverse`, `syev_careful` with their batches and workspaces.
 */
#ifndef DSC_DEVICE_TABLE_H
#define DSC_DEVICE_TABLE_H

#include "device/ops.h"

#include <stdatomic.h>

typedef struct dsc_device_table {
    /* life cycle and memory */
    void (*destroy)(dsc_device *device); /* frees device->state; may be NULL */
    /* Zeroed memory, aligned to 64 bytes at least. Both report the size (dsc_device_count_alloc, _free). */
    dsc_status (*alloc)(dsc_device *device, size_t bytes, void **out);
    void (*free)(dsc_device *device, void *data);
    dsc_status (*upload)(dsc_queue *q, const void *host, size_t bytes, void *data);
    dsc_status (*download)(dsc_queue *q, const void *data, size_t bytes, void *host);
    /* memory of the host that copies to and from the device are fast with; NULL: any is */
    dsc_status (*host_alloc)(dsc_device *device, size_t bytes, void **out);
    void (*host_free)(dsc_device *device, void *data);
    /* queues and events; NULL on devices that run everything at once */
    dsc_status (*queue_open)(dsc_queue *q);
    void (*queue_close)(dsc_queue *q);
    dsc_status (*queue_sync)(dsc_queue *q);
    dsc_status (*queue_wait)(dsc_queue *q, dsc_event *event);
    dsc_status (*event_open)(dsc_event *event);
    void (*event_close)(dsc_event *event);
    dsc_status (*event_record)(dsc_event *event, dsc_queue *q);
    dsc_status (*event_sync)(dsc_event *event);
    dsc_status (*event_elapsed)(dsc_event *from, dsc_event *to, double *ms);
    /* recordings; NULL on devices that have none */
    dsc_status (*record_begin)(dsc_queue *q);
    dsc_status (*record_end)(dsc_queue *q, void **recording);
    dsc_status (*replay)(dsc_queue *q, void *recording);
    void (*record_free)(dsc_device *device, void *recording);

    dsc_status (*fill)(dsc_queue *q, double value, dsc_tensor *t);
    dsc_status (*convert)(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst);
    dsc_status (*axpby)(dsc_queue *q, double alpha, const dsc_tensor *x, double beta, dsc_tensor *y);
    dsc_status (*scale_by)(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t);
    dsc_status (*dot)(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, double beta, dsc_tensor *out);
    dsc_status (*clip_factor)(dsc_queue *q, const dsc_tensor *sumsq, double limit, dsc_tensor *out);
    dsc_status (*count_nonfinite)(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out);
    dsc_status (*blend)(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                        dsc_tensor *y);

    dsc_status (*increment)(dsc_queue *q, dsc_tensor *t);
    dsc_status (*guard)(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag);
    dsc_status (*timestamp)(dsc_queue *q, dsc_tensor *t); /* NULL: the host's clock */
    dsc_status (*loss_scale)(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale, dsc_tensor *skip);

    dsc_status (*gemm)(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                       const dsc_tensor *b, double beta, dsc_tensor *c);
    dsc_status (*syrk)(dsc_queue *q, double alpha, const dsc_tensor *a, double beta, dsc_tensor *c);
    dsc_status (*symmetrize)(dsc_queue *q, dsc_tensor *a);
    dsc_status (*tri_pack)(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p);
    dsc_status (*tri_unpack)(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a);
    size_t (*syev_workspace)(dsc_device *device, dsc_dtype dtype, int64_t n);
    dsc_status (*syev)(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v);
    dsc_status (*chol_inverse)(dsc_queue *q, dsc_tensor *a);
    dsc_status (*syev_careful)(dsc_queue *q, dsc_tensor *a, dsc_tensor *v);
    dsc_status (*add_diagonal)(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a);
    /* batches, never with empty matrices; NULL: one item after the other, by the front (divide_batch is in
     * every table) */
    dsc_status (*gemm_batch)(dsc_queue *q, const dsc_gemm_item *items, int64_t count);
    size_t (*syev_batch_workspace)(dsc_device *device, dsc_dtype dtype, int64_t n, int64_t count);
    dsc_status (*syev_batch)(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work);
    dsc_status (*chol_inverse_batch)(dsc_queue *q, dsc_solve_item *items, int64_t count);
    dsc_status (*divide_batch)(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                               int64_t count);
    dsc_status (*dot_batch)(dsc_queue *q, const dsc_dot_item *items, int64_t count, dsc_tensor *out);
    dsc_status (*join_batch)(dsc_queue *q, const dsc_join_item *items, int64_t count);
    dsc_status (*split_batch)(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                              int64_t count);
    dsc_status (*absorb_batch)(dsc_queue *q, const dsc_tensor *decay, const dsc_absorb_item *items,
                               int64_t count);
    dsc_status (*outer_inverse)(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                const dsc_tensor *columns, dsc_tensor *out);
    dsc_status (*multiply)(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y);
    dsc_status (*join)(dsc_queue *q, const dsc_tensor *w, const dsc_tensor *b, dsc_tensor *d);
    dsc_status (*gather)(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                         const dsc_tensor *columns, dsc_tensor *dst);
    dsc_status (*scatter)(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                          const dsc_tensor *columns, dsc_tensor *dst);
    dsc_status (*kl_clip)(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits, dsc_tensor *out);

    /* of engines of convolutions; NULL: there are none to choose from */
    dsc_status (*choices)(dsc_device *device, char *text, size_t size, size_t *needed);
    dsc_status (*preset)(dsc_device *device, const char *text);
    dsc_status (*conv_open)(
        dsc_conv *conv); /* sets workspace and state; may be NULL (no state, no workspace) */
    void (*conv_close)(dsc_conv *conv);
    dsc_status (*conv_forward)(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                               const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y);
    dsc_status (*conv_backward_data)(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                     double beta, dsc_tensor *work, dsc_tensor *dx);
    dsc_status (*conv_backward_weight)(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                       const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw);
    dsc_status (*patches)(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                          int64_t first, dsc_tensor *out);

    /* NULL: slabs of patches and syrk, by the front */
    size_t (*patch_gram_workspace)(dsc_device *device, const dsc_conv_desc *desc, int ones);
    dsc_status (*patch_gram)(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                             double alpha, double beta, dsc_tensor *work, dsc_tensor *c);

    /* NULL: patch_gram and tri_pack, by the front */
    dsc_status (*patch_gram_packed)(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x,
                                    int64_t group, double alpha, dsc_tensor *work, dsc_tensor *p);

    dsc_status (*bias_add)(dsc_queue *q, const dsc_tensor *b, dsc_tensor *y);
    dsc_status (*bias_grad)(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *db);
    dsc_status (*relu_forward)(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y);
    dsc_status (*relu_backward)(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *dy, double beta,
                                dsc_tensor *dx);
    dsc_status (*add)(dsc_queue *q, const dsc_tensor *a, const dsc_tensor *b, dsc_tensor *y);
    dsc_status (*shortcut_forward)(dsc_queue *q, int64_t stride, const dsc_tensor *x, dsc_tensor *y);
    dsc_status (*shortcut_backward)(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                    dsc_tensor *dx);
    dsc_status (*pool_forward)(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                               dsc_tensor *index, dsc_tensor *y);
    dsc_status (*pool_backward)(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                const dsc_tensor *dy, double beta, dsc_tensor *dx);
    dsc_status (*global_pool_forward)(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y);
    dsc_status (*global_pool_backward)(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *dx);
    dsc_status (*norm_forward_train)(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *residual, const dsc_norm_params *params,
                                     dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y);
    dsc_status (*norm_forward_eval)(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                    const dsc_tensor *residual, const dsc_norm_params *params, dsc_tensor *y);
    dsc_status (*norm_backward)(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                const dsc_tensor *mean, const dsc_tensor *invstd,
                                const dsc_norm_grads *grads);
    dsc_status (*dropout)(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                          const dsc_tensor *x, double beta, dsc_tensor *y);
    dsc_status (*softmax_loss)(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                               double smoothing, double grad_scale, const dsc_tensor *loss_scale,
                               dsc_tensor *dlogits, dsc_tensor *stats);
    dsc_status (*sample_labels)(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                const dsc_tensor *logits, dsc_tensor *labels);

    dsc_status (*augment)(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                          const dsc_tensor *place, dsc_tensor *x);

    dsc_status (*sgd)(dsc_queue *q, int nesterov, const dsc_tensor *hyper, const dsc_tensor *z,
                      const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x);
    dsc_status (*adam)(dsc_queue *q, int decoupled, const dsc_tensor *hyper, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *x);
    dsc_status (*lars)(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x);
    dsc_status (*lamb_direction)(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *z,
                                 const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *u);
    dsc_status (*lamb_apply)(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                             const dsc_tensor *u, dsc_tensor *x);
} dsc_device_table;

struct dsc_device {
    const dsc_device_table *table;
    const char *name;
    char description[160];
    int is_host;
    int has_halves; /* operations take half types */
    int threads;
    int tunes;         /* chooses by timing */
    uint64_t identity; /* 0 for hosts */
    void *state;       /* the backend's own */
    atomic_size_t bytes, peak_bytes;
};

struct dsc_queue {
    dsc_device *device;
    int recording;
    void *state;
};

struct dsc_event {
    dsc_device *device;
    void *state;
};

struct dsc_recording {
    dsc_device *device;
    void *state;
};

struct dsc_conv {
    dsc_device *device;
    const dsc_device_table *table; /* the one that opened it: the device's, or ref's for another type */
    dsc_conv_desc desc;
    int forward_only; /* the other passes need not be planned */
    int64_t oh, ow;
    size_t workspace;
    void *state;
};

/* The table that serves operations on this type: the device's, or ref's on a host device unless it is F32. */
const dsc_device_table *dsc_device_table_for(const dsc_device *device, dsc_dtype dtype);

/* Called by a backend's alloc and free: keep the device's byte counters. */
void dsc_device_count_alloc(dsc_device *device, size_t bytes);
void dsc_device_count_free(dsc_device *device, size_t bytes);

/* The reference table, complete. */
extern const dsc_device_table dsc_ref_table;

/* Fills in table, name, description, threads, state of a device of this kind. */
dsc_status dsc_ref_open(dsc_device *device, const dsc_device_options *options) DSC_MUST_CHECK;
dsc_status dsc_cpu_open(dsc_device *device, const dsc_device_options *options) DSC_MUST_CHECK;
/* There only where DSC_HAVE_CUDA is defined. DSC_E_UNSUPPORTED without a GPU or with too old a driver. */
dsc_status dsc_cuda_open(dsc_device *device, const dsc_device_options *options) DSC_MUST_CHECK;
int dsc_cuda_count(void);

#endif

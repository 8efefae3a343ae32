/* The operations of the reference device, listed in its table (ref.c). Arguments are as in device/ops.h. */
#ifndef DSC_DEVICE_REF_REF_H
#define DSC_DEVICE_REF_REF_H

#include "device/table.h"

/* ref_elementwise.c */
dsc_status dsc_ref_fill(dsc_queue *q, double value, dsc_tensor *t);
dsc_status dsc_ref_convert(dsc_queue *q, const dsc_tensor *src, dsc_tensor *dst);
dsc_status dsc_ref_axpby(dsc_queue *q, double alpha, const dsc_tensor *x, double beta, dsc_tensor *y);
dsc_status dsc_ref_scale_by(dsc_queue *q, const dsc_tensor *s, dsc_tensor *t);
dsc_status dsc_ref_dot(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *y, double beta, dsc_tensor *out);
dsc_status dsc_ref_clip_factor(dsc_queue *q, const dsc_tensor *sumsq, double limit, dsc_tensor *out);
dsc_status dsc_ref_count_nonfinite(dsc_queue *q, const dsc_tensor *t, dsc_tensor *out);
dsc_status dsc_ref_blend(dsc_queue *q, const dsc_tensor *decay, const dsc_tensor *x, dsc_tensor *bad,
                         dsc_tensor *y);
dsc_status dsc_ref_increment(dsc_queue *q, dsc_tensor *t);
dsc_status dsc_ref_guard(dsc_queue *q, const dsc_tensor *value, int firm, dsc_tensor *flag);
dsc_status dsc_ref_loss_scale(dsc_queue *q, const dsc_tensor *bad, dsc_tensor *scale, dsc_tensor *skip);
dsc_status dsc_ref_bias_add(dsc_queue *q, const dsc_tensor *b, dsc_tensor *y);
dsc_status dsc_ref_bias_grad(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *db);
dsc_status dsc_ref_relu_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y);
dsc_status dsc_ref_relu_backward(dsc_queue *q, const dsc_tensor *y, const dsc_tensor *dy, double beta,
                                 dsc_tensor *dx);
dsc_status dsc_ref_add(dsc_queue *q, const dsc_tensor *a, const dsc_tensor *b, dsc_tensor *y);
dsc_status dsc_ref_dropout(dsc_queue *q, const dsc_dropout_desc *desc, const dsc_tensor *position,
                           const dsc_tensor *x, double beta, dsc_tensor *y);
dsc_status dsc_ref_augment(dsc_queue *q, const dsc_augment_desc *desc, const dsc_tensor *raw,
                           const dsc_tensor *place, dsc_tensor *x);

/* ref_linalg.c */
dsc_status dsc_ref_gemm(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                        const dsc_tensor *b, double beta, dsc_tensor *c);
dsc_status dsc_ref_syrk(dsc_queue *q, double alpha, const dsc_tensor *a, double beta, dsc_tensor *c);
dsc_status dsc_ref_symmetrize(dsc_queue *q, dsc_tensor *a);
dsc_status dsc_ref_tri_pack(dsc_queue *q, const dsc_tensor *a, dsc_tensor *p);
dsc_status dsc_ref_tri_unpack(dsc_queue *q, const dsc_tensor *p, dsc_tensor *a);
size_t dsc_ref_syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n);
dsc_status dsc_ref_syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v);
dsc_status dsc_ref_chol_inverse(dsc_queue *q, dsc_tensor *a);
dsc_status dsc_ref_syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v);
dsc_status dsc_ref_add_diagonal(dsc_queue *q, const dsc_tensor *value, dsc_tensor *a);

/* ref_second.c */
dsc_status dsc_ref_divide_batch(dsc_queue *q, const dsc_tensor *damping, const dsc_divide_item *items,
                                int64_t count);
dsc_status dsc_ref_split_batch(dsc_queue *q, const dsc_tensor *scale, const dsc_join_item *items,
                               int64_t count);
dsc_status dsc_ref_outer_inverse(dsc_queue *q, const dsc_tensor *damping, const dsc_tensor *rows,
                                 const dsc_tensor *columns, dsc_tensor *out);
dsc_status dsc_ref_multiply(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y);
dsc_status dsc_ref_join(dsc_queue *q, const dsc_tensor *w, const dsc_tensor *b, dsc_tensor *d);
dsc_status dsc_ref_gather(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                          const dsc_tensor *columns, dsc_tensor *dst);
dsc_status dsc_ref_scatter(dsc_queue *q, const dsc_tensor *src, const dsc_tensor *rows,
                           const dsc_tensor *columns, dsc_tensor *dst);
dsc_status dsc_ref_kl_clip(dsc_queue *q, const dsc_tensor *sum, const dsc_tensor *limits, dsc_tensor *out);

/* ref_conv.c */
dsc_status dsc_ref_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y);
dsc_status dsc_ref_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                      double beta, dsc_tensor *work, dsc_tensor *dx);
dsc_status dsc_ref_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                        const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw);
dsc_status dsc_ref_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                           int64_t first, dsc_tensor *out);

/* ref_norm.c */
dsc_status dsc_ref_norm_forward_train(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                      const dsc_tensor *residual, const dsc_norm_params *params,
                                      dsc_tensor *mean, dsc_tensor *invstd, dsc_tensor *y);
dsc_status dsc_ref_norm_forward_eval(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                     const dsc_tensor *residual, const dsc_norm_params *params,
                                     dsc_tensor *y);
dsc_status dsc_ref_norm_backward(dsc_queue *q, const dsc_norm_desc *desc, const dsc_tensor *x,
                                 const dsc_tensor *y, const dsc_tensor *dy, const dsc_tensor *gamma,
                                 const dsc_tensor *mean, const dsc_tensor *invstd,
                                 const dsc_norm_grads *grads);

/* ref_pool.c */
dsc_status dsc_ref_shortcut_forward(dsc_queue *q, int64_t stride, const dsc_tensor *x, dsc_tensor *y);
dsc_status dsc_ref_shortcut_backward(dsc_queue *q, int64_t stride, const dsc_tensor *dy, double beta,
                                     dsc_tensor *dx);
dsc_status dsc_ref_pool_forward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *x,
                                dsc_tensor *index, dsc_tensor *y);
dsc_status dsc_ref_pool_backward(dsc_queue *q, const dsc_pool_desc *desc, const dsc_tensor *index,
                                 const dsc_tensor *dy, double beta, dsc_tensor *dx);
dsc_status dsc_ref_global_pool_forward(dsc_queue *q, const dsc_tensor *x, dsc_tensor *y);
dsc_status dsc_ref_global_pool_backward(dsc_queue *q, const dsc_tensor *dy, double beta, dsc_tensor *dx);

/* ref_loss.c */
dsc_status dsc_ref_softmax_loss(dsc_queue *q, const dsc_tensor *logits, const dsc_tensor *labels,
                                double smoothing, double grad_scale, const dsc_tensor *loss_scale,
                                dsc_tensor *dlogits, dsc_tensor *stats);
dsc_status dsc_ref_sample_labels(dsc_queue *q, uint64_t seed, const dsc_tensor *position,
                                 const dsc_tensor *logits, dsc_tensor *labels);

/* ref_optim.c */
dsc_status dsc_ref_sgd(dsc_queue *q, int nesterov, const dsc_tensor *hyper, const dsc_tensor *z,
                       const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x);
dsc_status dsc_ref_adam(dsc_queue *q, int decoupled, const dsc_tensor *hyper, const dsc_tensor *z,
                        const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *x);
dsc_status dsc_ref_lars(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms, const dsc_tensor *z,
                        const dsc_tensor *g, dsc_tensor *m, dsc_tensor *x);
dsc_status dsc_ref_lamb_direction(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *z,
                                  const dsc_tensor *g, dsc_tensor *m, dsc_tensor *v, dsc_tensor *u);
dsc_status dsc_ref_lamb_apply(dsc_queue *q, const dsc_tensor *hyper, const dsc_tensor *norms,
                              const dsc_tensor *u, dsc_tensor *x);

#endif

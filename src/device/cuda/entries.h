/* Entries of the cuda backend's table, by file. Arguments as in ops.h, checks done by the fronts. */
#ifndef DSC_DEVICE_CUDA_ENTRIES_H
#define DSC_DEVICE_CUDA_ENTRIES_H

#include "device/table.h"

/* An entry has the type of its place in the table. */
#define DSC_CUDA_ENTRY(name) extern __typeof__(*((dsc_device_table *)0)->name) dsc_cuda_##name

/* elementwise.c */
DSC_CUDA_ENTRY(fill);
DSC_CUDA_ENTRY(convert);
DSC_CUDA_ENTRY(axpby);
DSC_CUDA_ENTRY(scale_by);
DSC_CUDA_ENTRY(dot);
DSC_CUDA_ENTRY(clip_factor);
DSC_CUDA_ENTRY(count_nonfinite);
DSC_CUDA_ENTRY(blend);
DSC_CUDA_ENTRY(increment);
DSC_CUDA_ENTRY(guard);
DSC_CUDA_ENTRY(loss_scale);
DSC_CUDA_ENTRY(multiply);

/* clock.c */
DSC_CUDA_ENTRY(timestamp);

/* second.c: triangles and pieces of a second-order step */
DSC_CUDA_ENTRY(symmetrize);
DSC_CUDA_ENTRY(tri_pack);
DSC_CUDA_ENTRY(tri_unpack);
DSC_CUDA_ENTRY(add_diagonal);
DSC_CUDA_ENTRY(divide_batch);
DSC_CUDA_ENTRY(dot_batch);
DSC_CUDA_ENTRY(join_batch);
DSC_CUDA_ENTRY(split_batch);
DSC_CUDA_ENTRY(absorb_batch);
DSC_CUDA_ENTRY(outer_inverse);
DSC_CUDA_ENTRY(join);
DSC_CUDA_ENTRY(gather);
DSC_CUDA_ENTRY(scatter);
DSC_CUDA_ENTRY(kl_clip);

/* optim.c */
DSC_CUDA_ENTRY(sgd);
DSC_CUDA_ENTRY(adam);
DSC_CUDA_ENTRY(lars);
DSC_CUDA_ENTRY(lamb_direction);
DSC_CUDA_ENTRY(lamb_apply);

/* layer.c */
DSC_CUDA_ENTRY(bias_add);
DSC_CUDA_ENTRY(bias_grad);
DSC_CUDA_ENTRY(relu_forward);
DSC_CUDA_ENTRY(relu_backward);
DSC_CUDA_ENTRY(add);
DSC_CUDA_ENTRY(shortcut_forward);
DSC_CUDA_ENTRY(shortcut_backward);
DSC_CUDA_ENTRY(dropout);
DSC_CUDA_ENTRY(augment);

/* pool.c */
DSC_CUDA_ENTRY(pool_forward);
DSC_CUDA_ENTRY(pool_backward);
DSC_CUDA_ENTRY(global_pool_forward);
DSC_CUDA_ENTRY(global_pool_backward);

/* norm.c */
DSC_CUDA_ENTRY(norm_forward_train);
DSC_CUDA_ENTRY(norm_forward_eval);
DSC_CUDA_ENTRY(norm_backward);

/* loss.c */
DSC_CUDA_ENTRY(softmax_loss);
DSC_CUDA_ENTRY(sample_labels);

/* grouped.c */
DSC_CUDA_ENTRY(gemm_batch);

/* gram.c */
DSC_CUDA_ENTRY(syrk);
DSC_CUDA_ENTRY(patches);
DSC_CUDA_ENTRY(patch_gram_workspace);
DSC_CUDA_ENTRY(patch_gram);
DSC_CUDA_ENTRY(patch_gram_packed);

/* products.c */
DSC_CUDA_ENTRY(gemm);

/* solve.c; dsc_cuda_solver_close frees device state */
DSC_CUDA_ENTRY(syev_workspace);
DSC_CUDA_ENTRY(syev);
DSC_CUDA_ENTRY(chol_inverse);
DSC_CUDA_ENTRY(syev_careful);
DSC_CUDA_ENTRY(syev_batch_workspace);
DSC_CUDA_ENTRY(syev_batch);
DSC_CUDA_ENTRY(chol_inverse_batch);
void dsc_cuda_solver_close(dsc_device *device);

/* conv_choices.c */
DSC_CUDA_ENTRY(choices);
DSC_CUDA_ENTRY(preset);

/* conv.c */
DSC_CUDA_ENTRY(conv_open);
DSC_CUDA_ENTRY(conv_close);
DSC_CUDA_ENTRY(conv_forward);
DSC_CUDA_ENTRY(conv_backward_data);
DSC_CUDA_ENTRY(conv_backward_weight);

#endif

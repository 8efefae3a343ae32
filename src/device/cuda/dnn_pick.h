/* Picks the engine of a pass. */
#ifndef DSC_DEVICE_CUDA_DNN_PICK_H
#define DSC_DEVICE_CUDA_DNN_PICK_H

#include "device/cuda/dnn_plan.h"

/* The first that cuDNN proposes and that can be planned within DSC_DNN_WORKSPACE, or else in any workspace.
 */
cudnnStatus_t dsc_dnn_pick_first(const dsc_dnn_graph *graph, dsc_dnn_choice *choice, dsc_dnn_plan *plan);

/* The fastest of those that cuDNN proposes first, timed in memory and a stream of its own; the first where
 * there is no memory for that. */
cudnnStatus_t dsc_dnn_pick_fastest(const dsc_dnn_graph *graph, const dsc_dnn_problem *problem,
                                   dsc_dnn_kind kind, dsc_dnn_choice *choice, dsc_dnn_plan *plan);

#endif

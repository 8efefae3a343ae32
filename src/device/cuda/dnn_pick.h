/* Picks the engine of a pass. */
#ifndef DSC_DEVICE_CUDA_DNN_PICK_H
#define DSC_DEVICE_CUDA_DNN_PICK_H

#include "device/cuda/dnn_plan.h"

/* Picks the first engine that cuDNN proposes and that can be planned within DSC_DNN_WORKSPACE, or else with any
 * workspace. */
cudnnStatus_t dsc_dnn_pick_first(const dsc_dnn_graph *graph, dsc_dnn_choice *choice, dsc_dnn_plan *plan);

/* Picks the fastest of the first engines that cuDNN proposes. They are timed in memory and a stream allocated for that;
 * falls back on dsc_dnn_pick_first if there is no memory for it. */
cudnnStatus_t dsc_dnn_pick_fastest(const dsc_dnn_graph *graph, const dsc_dnn_problem *problem,
                                   dsc_dnn_kind kind, dsc_dnn_choice *choice, dsc_dnn_plan *plan);

#endif

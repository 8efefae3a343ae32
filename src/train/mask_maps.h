/* Collects the predictions of an evaluation for whole pictures, whose tiles are the samples, and computes V_rand. */
#ifndef DSC_TRAIN_MASK_MAPS_H
#define DSC_TRAIN_MASK_MAPS_H

#include "descent/comm.h"
#include "descent/data.h"

typedef struct dsc_mask_maps dsc_mask_maps;

/* *out is NULL for data that is not masks:DIR with two values, or has too many pixels. */
dsc_status dsc_mask_maps_create(const dsc_dataset *data, dsc_mask_maps **out) DSC_MUST_CHECK;
/* Accepts *maps == NULL. */
void dsc_mask_maps_destroy(dsc_mask_maps **maps);
/* Adds one position of a sample: the probability that its pixel is of the second class. Not collective. */
void dsc_mask_maps_add(dsc_mask_maps *maps, int64_t sample, int64_t position, double probability);
/* The highest mean of V_rand over the pictures, and its threshold; both negative when no picture has an object. maps
 * NULL: the same. Collective; blocks. */
dsc_status dsc_mask_maps_score(dsc_mask_maps *maps, dsc_comm *comm, dsc_queue *queue, double *score,
                               double *threshold) DSC_MUST_CHECK;

#endif

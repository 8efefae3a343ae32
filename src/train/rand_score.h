/* How well the objects of a picture are told apart: the foreground-restricted Rand score.
 *
 * Segments are sets of pixels that are connected by their four neighbours: true ones, of pixels that are part of an
 * object, and predicted ones, of pixels that are taken for one. With p_ij the number of pixels that predicted segment
 * i and true segment j have in common, s_i the number of pixels of i that are part of any object, and t_j that of j,
 *
 *   V_rand = 2 sum p_ij^2 / (sum s_i^2 + sum t_j^2).
 *
 * It is 1 when all objects are found and told apart. Joining two objects lowers it, and so does cutting one, or
 * missing a part of it. */
#ifndef DSC_TRAIN_RAND_SCORE_H
#define DSC_TRAIN_RAND_SCORE_H

#include "descent/status.h"

#include <stdint.h>

/* Scores of a picture of h x w pixels at several thresholds. object[h*w]: 1 where a pixel is part of an object.
 * level[h*w]: how many thresholds the predicted probability of an object exceeds; with threshold k, counted from 0, a
 * pixel whose level is above k is taken for part of an object. score[thresholds] is negative when there is no
 * object. */
dsc_status dsc_rand_score(const uint8_t *object, const uint8_t *level, int64_t h, int64_t w, int thresholds,
                          double *score) DSC_MUST_CHECK;

#endif

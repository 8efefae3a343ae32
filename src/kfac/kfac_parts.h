/* A K-FAC step in parts, for the trainer, which records the work of a step (dsc_recording_begin) and replays
 * it.
 *
 *   dsc_kfac_begin, dsc_kfac_prepare    numbers that differ from step to step go to the device
 *   dsc_kfac_capture, dsc_kfac_absorb   may be recorded; replayed in steps for which dsc_kfac_wants_factors
 *                                       returns the same
 *   dsc_kfac_decompose                  waits for the device; does nothing unless a decomposition is due
 *   dsc_kfac_apply                      may be recorded; replayed while dsc_kfac_recipe returns the same
 *   dsc_kfac_finish
 *
 * dsc_kfac_step does all of it from dsc_kfac_prepare on. On a GPU only dsc_kfac_decompose waits: a gradient
 * that is not finite then makes nu (dsc_kfac_nu_tensor, dsc_kfac_nu) NaN, and the gradients are left alone.
 */
#ifndef DSC_KFAC_KFAC_PARTS_H
#define DSC_KFAC_KFAC_PARTS_H

#include "descent/kfac.h"

/* What refresh auto stands for on this device: rotations pay there (docs/performance.md). Any other value stays. */
dsc_kfac_refresh dsc_kfac_resolve_refresh(const dsc_kfac_options *options, const dsc_device *device);

/* Captures in a queue of their own, of low priority, beside the work of the caller's queue. What is given to a capture
 * must then stay as it is until the second next capture has begun, or dsc_kfac_join_captures. On a GPU, for one rank,
 * without norms and without EKFAC from samples (not tried yet); elsewhere captures stay in the caller's queue.
 * To be called before the first step. */
dsc_status dsc_kfac_capture_beside(dsc_kfac *kfac) DSC_MUST_CHECK;
/* 1 where captures can run beside the caller's work. */
int dsc_kfac_can_capture_beside(const dsc_kfac_options *options, const dsc_device *device, int ranks);
/* The work of `queue` after this waits for all captures. Does nothing where there are none beside it. */
dsc_status dsc_kfac_join_captures(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;

/* lr: the rate of the coming update, for the clip. */
dsc_status dsc_kfac_prepare(dsc_kfac *kfac, dsc_queue *queue, double lr) DSC_MUST_CHECK;
/* Ends the captures: averages the batch factors over the ranks and moves the running averages. Collective. */
dsc_status dsc_kfac_absorb(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
/* Collective. */
dsc_status dsc_kfac_decompose(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
/* Preconditions the gradients in place and clips them. Collective. */
dsc_status dsc_kfac_apply(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
dsc_status dsc_kfac_finish(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;

/* After a replay of captures, instead of them: every layer has run in `passes` passes of this step. */
void dsc_kfac_captured(dsc_kfac *kfac, int64_t passes);
/* After a replay of dsc_kfac_absorb, instead of it. */
void dsc_kfac_absorbed(dsc_kfac *kfac);

/* What dsc_kfac_apply would do now: 0 work with whole factors, 1 work with diagonal blocks, 2 nothing. */
int dsc_kfac_recipe(const dsc_kfac *kfac);
/* A number that changes when dsc_kfac_apply has to be recorded anew, because memory that it uses has moved. */
int64_t dsc_kfac_generation(const dsc_kfac *kfac);
/* 1 when dsc_kfac_decompose of the step that was begun has something to do. */
int dsc_kfac_wants_decomposition(const dsc_kfac *kfac);
/* The alarm of dsc_kfac_health and its message (NULL: none). Does not wait: the last decomposition counts from
 * the next one on. */
dsc_kfac_alarm dsc_kfac_alarm_now(dsc_kfac *kfac, const char **message);
/* What K-FAC's quadratic model says about the step that dsc_kfac_apply has made. The gradients have become nu P,
 * and P solves (F + damping) P = D, with F the layer's approximated Fisher matrix. So a step of -r nu P changes
 * the model M(x) = D'x + x'(F + damping)x / 2 by -r terms[0] + r^2 terms[1] / 2:
 *   terms[0] = sum nu <P, D>,  terms[1] = sum nu^2 <P, D>
 * Waits for the queue. */
dsc_status dsc_kfac_step_terms(dsc_kfac *kfac, dsc_queue *queue, double terms[2]) DSC_MUST_CHECK;
/* 1 when K-FAC preconditions the layer, 0 when the options skip it. */
int dsc_kfac_covers(const dsc_kfac *kfac, int64_t layer);
/* The logarithms (base 10) of the eigenvalues of all factors A, or of all factors G, in buckets of equal width.
 * Eigenvalues that are too small or too large are counted at the ends. */
enum {
    DSC_KFAC_SPECTRUM_LEAST = -12,
    DSC_KFAC_SPECTRUM_MOST = 8,
    DSC_KFAC_SPECTRUM_PER_DECADE = 4,
    DSC_KFAC_SPECTRUM_BUCKETS =
        (DSC_KFAC_SPECTRUM_MOST - DSC_KFAC_SPECTRUM_LEAST) * DSC_KFAC_SPECTRUM_PER_DECADE
};
typedef struct dsc_kfac_spectrum {
    double least, most; /* of the logarithms */
    double count, sum, squares;
    double buckets[DSC_KFAC_SPECTRUM_BUCKETS];
} dsc_kfac_spectrum;
/* Of all ranks together: [0] of A, [1] of G; count is 0 where there are no eigenvalues (the inverse method, or no
 * decomposition yet). Collective; waits for the queue. */
dsc_status dsc_kfac_get_spectrum(dsc_kfac *kfac, dsc_queue *queue,
                                 dsc_kfac_spectrum spectrum[2]) DSC_MUST_CHECK;
/* nu of the last step, an F64 scalar on the device. Borrowed. */
const dsc_tensor *dsc_kfac_nu_tensor(const dsc_kfac *kfac);

#endif

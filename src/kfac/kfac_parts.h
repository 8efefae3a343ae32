/* A K-FAC step in parts, for the trainer, which records the work of a step (dsc_recording_begin) and replays it.
 *
 *   dsc_kfac_begin, dsc_kfac_prepare    copy the numbers that differ from step to step to the device
 *   dsc_kfac_capture, dsc_kfac_absorb   may be recorded; a recording is valid for steps in which
 *                                       dsc_kfac_wants_factors returns the same
 *   dsc_kfac_decompose                  waits for the device; does nothing unless a decomposition is due
 *   dsc_kfac_apply                      may be recorded; a recording is valid while dsc_kfac_recipe returns the same
 *   dsc_kfac_finish
 *
 * dsc_kfac_step does everything from dsc_kfac_prepare on. On a GPU only dsc_kfac_decompose waits; a gradient that is
 * not finite therefore makes nu (dsc_kfac_nu_tensor, dsc_kfac_nu) NaN, and the gradients are left unchanged.
 */
#ifndef DSC_KFAC_KFAC_PARTS_H
#define DSC_KFAC_KFAC_PARTS_H

#include "descent/kfac.h"

/* Returns what refresh auto stands for on this device: warm where rotations pay off (docs/performance.md). Any other
 * value is returned unchanged. */
dsc_kfac_refresh dsc_kfac_resolve_refresh(const dsc_kfac_options *options, const dsc_device *device);

/* Makes captures run in a low-priority queue of their own, concurrently with the caller's queue. The tensors given to a
 * capture must then stay unchanged until the next but one capture has begun, or until dsc_kfac_join_captures. Only on a
 * GPU, for one rank, without norms, embeddings, tied heads and EKFAC from samples (not tried yet); otherwise captures
 * stay in the caller's queue. Must be called before the first step. */
dsc_status dsc_kfac_capture_beside(dsc_kfac *kfac) DSC_MUST_CHECK;
/* Returns 1 if captures can run concurrently with the caller's work. */
int dsc_kfac_can_capture_beside(const dsc_kfac_options *options, const dsc_device *device, int ranks);
/* Makes later work in `queue` wait for all captures. Does nothing if captures run in the caller's queue. */
dsc_status dsc_kfac_join_captures(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;

/* lr: the rate of the coming update, for the clip. */
dsc_status dsc_kfac_prepare(dsc_kfac *kfac, dsc_queue *queue, double lr) DSC_MUST_CHECK;
/* Ends the captures: averages the batch factors over the ranks and updates the running averages. Collective. */
dsc_status dsc_kfac_absorb(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
/* Makes the decompositions that are due. Collective. */
dsc_status dsc_kfac_decompose(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
/* Preconditions the gradients in place and clips them. Collective. */
dsc_status dsc_kfac_apply(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;
dsc_status dsc_kfac_finish(dsc_kfac *kfac, dsc_queue *queue) DSC_MUST_CHECK;

/* To be called after a replay of captures, in their place: every layer has run in `passes` passes of this step. */
void dsc_kfac_captured(dsc_kfac *kfac, int64_t passes);
/* To be called after a replay of dsc_kfac_absorb, in its place. */
void dsc_kfac_absorbed(dsc_kfac *kfac);

/* Returns what dsc_kfac_apply would do now: 0 work with whole factors, 1 work with diagonal blocks, 2 nothing. */
int dsc_kfac_recipe(const dsc_kfac *kfac);
/* Returns a number that changes when dsc_kfac_apply must be recorded again because memory that it uses has moved. */
int64_t dsc_kfac_generation(const dsc_kfac *kfac);
/* Returns 1 if dsc_kfac_decompose has something to do in the current step. */
int dsc_kfac_wants_decomposition(const dsc_kfac *kfac);
/* Returns the alarm of dsc_kfac_health, and its message (NULL: none). Does not wait: a decomposition is taken into
 * account only once the next one is made. */
dsc_kfac_alarm dsc_kfac_alarm_now(dsc_kfac *kfac, const char **message);
/* Computes what K-FAC's quadratic model predicts for the gradients that dsc_kfac_apply has written. They are nu P,
 * where P solves (F + damping) P = D, with F the layer's approximate Fisher matrix. So a step of -r nu P changes
 * the model M(x) = D'x + x'(F + damping)x / 2 by -r terms[0] + r^2 terms[1] / 2:
 *   terms[0] = sum nu <P, D>,  terms[1] = sum nu^2 <P, D>
 * Waits for the queue. */
dsc_status dsc_kfac_step_terms(dsc_kfac *kfac, dsc_queue *queue, double terms[2]) DSC_MUST_CHECK;
/* Returns 1 if K-FAC preconditions the layer, 0 if the options skip it. */
int dsc_kfac_covers(const dsc_kfac *kfac, int64_t layer);
/* A histogram of the base-10 logarithms of the eigenvalues of all factors A, or of all factors G, with buckets of equal
 * width. Eigenvalues that are too small or too large are counted in the first or last bucket. */
enum {
    DSC_KFAC_SPECTRUM_LEAST = -12,
    DSC_KFAC_SPECTRUM_MOST = 8,
    DSC_KFAC_SPECTRUM_PER_DECADE = 4,
    DSC_KFAC_SPECTRUM_BUCKETS =
        (DSC_KFAC_SPECTRUM_MOST - DSC_KFAC_SPECTRUM_LEAST) * DSC_KFAC_SPECTRUM_PER_DECADE
};
typedef struct dsc_kfac_spectrum {
    double least, most; /* the smallest and largest logarithm */
    double count, sum, squares;
    double buckets[DSC_KFAC_SPECTRUM_BUCKETS];
} dsc_kfac_spectrum;
/* Computes the spectra over all ranks: [0] of A, [1] of G; count is 0 if there are no eigenvalues (the inverse method,
 * or no decomposition yet). Collective; waits for the queue. */
dsc_status dsc_kfac_get_spectrum(dsc_kfac *kfac, dsc_queue *queue,
                                 dsc_kfac_spectrum spectrum[2]) DSC_MUST_CHECK;
/* Returns nu of the last step, an F64 scalar on the device. Borrowed. */
const dsc_tensor *dsc_kfac_nu_tensor(const dsc_kfac *kfac);

#endif

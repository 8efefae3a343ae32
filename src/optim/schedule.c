/* Learning rates as a pure function of the step.
 *
 * With s = steps_per_epoch, e = step / s (a real number), W = warmup_epochs, E = epochs, and
 * p = (e - W) / (E - W), the completed part of the epochs after warm-up:
 *
 *   warm-up      e < W: warmup_start + (target - warmup_start) e / W, so that step 0 has warmup_start and
 *                step W s has the target; one-cycle has no warm-up
 *   step         the rate of the warm-up, then the target, times decay_rate for every decay[i] <= e; this
 *                includes decay epochs inside the warm-up
 *   cosine       target (1 + cos(pi p)) / 2, and 0 from E on
 *   linear       target (1 - p), and 0 from E on
 *   polynomial   target (1 - p)^decay_rate, and 0 from E on
 *   one-cycle    with R = decay_rate E: along half a cosine from target / 25 at e = 0 to the target at e = R,
 *                and along another half to target / 250000 at e = E
 *   restarts     cycle i starts at T_i = W + T (1 + m + ... + m^(i-1)) and lasts L_i = T m^i epochs, with
 *                T = decay[0] and m = decay_rate: target (1 + cos(pi (e - T_i) / L_i)) / 2 */
#include "descent/optim.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static double warm_up(const dsc_schedule *schedule, double epoch) {
    if (epoch >= schedule->warmup_epochs)
        return schedule->target;
    double share = epoch / schedule->warmup_epochs;
    return schedule->warmup_start + (schedule->target - schedule->warmup_start) * share;
}

static double step_decay(const dsc_schedule *schedule, double epoch) {
    double rate = warm_up(schedule, epoch);
    for (int i = 0; i < schedule->decay_count; i++)
        if (epoch >= schedule->decay[i])
            rate *= schedule->decay_rate;
    return rate;
}

/* Half a cosine, from `from` at part 0 to `to` at part 1. */
static double half_cosine(double from, double to, double part) {
    return to + (from - to) * 0.5 * (1 + cos(pi * part));
}

/* The rate at `epoch` of a cosine with restarts: cycle i lasts period factor^i epochs. */
static double restart(const dsc_schedule *schedule, double epoch) {
    const double factor = schedule->decay_rate, period = schedule->decay[0];
    if (factor == 1)
        return half_cosine(schedule->target, 0, fmod(epoch, period) / period);
    /* Cycle i starts at period (factor^i - 1) / (factor - 1). The logarithm gives i or, after rounding, i - 1 or i + 1,
     * so the search begins one cycle earlier. */
    double i = floor(log1p(epoch / period * (factor - 1)) / log(factor)) - 1;
    double start, length;
    i = i > 0 ? i : 0;
    for (int tries = 0; tries < 3; tries++, i++) {
        length = period * pow(factor, i);
        start = period * (pow(factor, i) - 1) / (factor - 1);
        if (epoch < start + length)
            break;
    }
    return half_cosine(schedule->target, 0, (epoch - start) / length);
}

static double one_cycle(const dsc_schedule *schedule, double epoch) {
    const double top = schedule->target, first = top / 25, last = first / 10000;
    const double rise = schedule->decay_rate * schedule->epochs;
    if (epoch < rise)
        return half_cosine(first, top, epoch / rise);
    if (epoch >= schedule->epochs)
        return last;
    return half_cosine(top, last, (epoch - rise) / (schedule->epochs - rise));
}

double dsc_schedule_rate(const dsc_schedule *schedule, int64_t step) {
    /* Steps are divided, epochs are not multiplied: step 3 of 30 gives exactly the double of a decay epoch 0.1. */
    double epoch = (double)step / (double)schedule->steps_per_epoch;
    double start = schedule->warmup_epochs > 0 ? schedule->warmup_epochs : 0;
    if (schedule->kind == DSC_SCHEDULE_STEP)
        return step_decay(schedule, epoch);
    if (schedule->kind == DSC_SCHEDULE_ONE_CYCLE)
        return one_cycle(schedule, epoch);
    if (epoch >= schedule->epochs && schedule->kind != DSC_SCHEDULE_RESTARTS)
        return 0;
    if (epoch < start)
        return warm_up(schedule, epoch);
    if (schedule->kind == DSC_SCHEDULE_RESTARTS)
        return restart(schedule, epoch - start);
    double part = (epoch - start) / (schedule->epochs - start);
    if (schedule->kind == DSC_SCHEDULE_COSINE)
        return schedule->target * 0.5 * (1 + cos(pi * part));
    return schedule->target *
           (schedule->kind == DSC_SCHEDULE_LINEAR ? 1 - part : pow(1 - part, schedule->decay_rate));
}

/* Learning rates as a pure function of the step.
 *
 * With s = steps_per_epoch, e = step / s (a real number) and W = warmup_epochs:
 *
 *   warm-up   e < W: warmup_start + (target - warmup_start) e / W, so step 0 has warmup_start and step W s
 * has the target step      the rate above, times decay_rate once for every decay[i] <= e; a decay epoch that
 * lies inside the warm-up counts from that epoch on, too cosine    e >= W: target (1 + cos(pi p)) / 2 with p
 * = (e - W) / (epochs - W), and 0 from `epochs` on */
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

static double cosine(const dsc_schedule *schedule, double epoch) {
    double start = schedule->warmup_epochs > 0 ? schedule->warmup_epochs : 0;
    if (epoch >= schedule->epochs)
        return 0;
    if (epoch < start)
        return warm_up(schedule, epoch);
    return schedule->target * 0.5 * (1 + cos(pi * (epoch - start) / (schedule->epochs - start)));
}

double dsc_schedule_rate(const dsc_schedule *schedule, int64_t step) {
    /* Divided, not multiplied: step 3 of 30 is epoch 0.1 exactly as a decay at 0.1 is written. */
    double epoch = (double)step / (double)schedule->steps_per_epoch;
    return schedule->kind == DSC_SCHEDULE_COSINE ? cosine(schedule, epoch) : step_decay(schedule, epoch);
}

/* How evenly placement spreads the decompositions of ResNet-50, -101 and -152 over 16, 32 and 64 workers
 * (comm-opt).
 *
 * Prints, for each placement, the work (sum of n^3) of the slowest and the fastest worker; the ratio of the slowest
 * to the mean, and to the lower bound of any placement (the mean, or the largest factor); and how much less work the
 * slowest and the fastest have than those of 16 workers. "spread": A and G of a layer are placed
 * independently; "together": both to one worker; "as published": together until there are more workers than
 * layers, as the program of the SC'20 paper does, whose measured speed-ups (Table VI) are printed next to it.
 * Pure arithmetic: nothing is decomposed. */
#include "base/memory.h"
#include "descent/kfac.h"
#include "descent/model.h"
#include "descent/trainer.h"

#include <stdio.h>
#include <stdlib.h>

enum { SCALES = 3, MODELS = 3 };
static const int scales[SCALES] = {16, 32, 64};
static const char *const models[MODELS] = {"resnet50", "resnet101", "resnet152"};

/* Table VI: speed-up of the slowest and the fastest worker over those of 16 workers. */
static const double published[MODELS][SCALES][2] = {
    {{1.00, 1.00}, {1.34, 2.88}, {1.55, 6.61}},
    {{1.00, 1.00}, {1.41, 3.33}, {1.26, 6.18}},
    {{1.00, 1.00}, {1.51, 2.03}, {1.85, 8.27}},
};

typedef enum colocation { SPREAD, TOGETHER, AS_PUBLISHED } colocation;

typedef struct variant {
    const char *name;
    dsc_kfac_placement placement;
    colocation colocate;
} variant;

static const variant variants[] = {
    {"round-robin, as published", DSC_KFAC_ROUND_ROBIN, AS_PUBLISHED},
    {"round-robin, together", DSC_KFAC_ROUND_ROBIN, TOGETHER},
    {"round-robin, spread", DSC_KFAC_ROUND_ROBIN, SPREAD},
    {"compute, together", DSC_KFAC_COMPUTE, TOGETHER},
    {"compute, spread", DSC_KFAC_COMPUTE, SPREAD},
};

/* The extremes over the workers of one plan: sums of n^3, and of n^2. */
typedef struct outcome {
    double slowest, fastest, mean, largest, most_numbers, least_numbers;
} outcome;

static dsc_status measure(const dsc_kfac_layer *layers, int64_t count, int ranks, const variant *v,
                          outcome *out) {
    dsc_kfac_plan *plan = NULL;
    dsc_kfac_options o;
    dsc_kfac_options_init(&o);
    o.placement = v->placement;
    o.colocate_factors = v->colocate == TOGETHER || (v->colocate == AS_PUBLISHED && ranks <= count);
    dsc_status status = dsc_kfac_plan_create(layers, count, ranks, &o, 1, &plan);
    if (status != DSC_OK)
        return status;
    *out = (outcome){0};
    for (int64_t i = 0; i < dsc_kfac_plan_item_count(plan); i++) {
        double n = (double)dsc_kfac_plan_items(plan)[i].n;
        out->largest = n * n * n > out->largest ? n * n * n : out->largest;
    }
    for (int r = 0; r < ranks; r++) {
        double work = dsc_kfac_plan_loads(plan)[r].work, numbers = 0;
        for (int64_t i = 0; i < dsc_kfac_plan_item_count(plan); i++) {
            const dsc_kfac_item *item = &dsc_kfac_plan_items(plan)[i];
            numbers += item->owner == r ? (double)(item->n * item->n) : 0;
        }
        out->mean += work / ranks;
        out->slowest = work > out->slowest ? work : out->slowest;
        out->fastest = r == 0 || work < out->fastest ? work : out->fastest;
        out->most_numbers = numbers > out->most_numbers ? numbers : out->most_numbers;
        out->least_numbers = r == 0 || numbers < out->least_numbers ? numbers : out->least_numbers;
    }
    dsc_kfac_plan_destroy(&plan);
    return DSC_OK;
}

/* "4.4", or "idle" when there is nothing left to do. */
static const char *speedup(double before, double now, char *text, size_t size) {
    if (now > 0)
        snprintf(text, size, "%.2f", before / now);
    else
        snprintf(text, size, "idle");
    return text;
}

static dsc_status print_variant(int model, const dsc_kfac_layer *layers, int64_t count, const variant *v) {
    outcome first = {0}, now;
    char slowest[32], fastest[32];
    for (int i = 0; i < SCALES; i++) {
        dsc_status status = measure(layers, count, scales[i], v, &now);
        if (status != DSC_OK)
            return status;
        first = i == 0 ? now : first;
        printf("%-10s %-26s %7d  %9.3g %9.3g  %9.2f %7.2f  %8s %8s", models[model], v->name, scales[i],
               now.slowest, now.fastest, now.slowest / now.mean,
               now.slowest / (now.mean > now.largest ? now.mean : now.largest),
               speedup(first.slowest, now.slowest, slowest, sizeof slowest),
               speedup(first.fastest, now.fastest, fastest, sizeof fastest));
        if (v->colocate == AS_PUBLISHED)
            printf("   %5.2f %5.2f", published[model][i][0], published[model][i][1]);
        else
            printf("   %5s %5s", "", "");
        printf("   %8.3g .. %.3g\n", now.least_numbers, now.most_numbers);
    }
    return DSC_OK;
}

static dsc_status print_model(dsc_device *device, int number) {
    dsc_model_options o;
    dsc_model *model = NULL;
    dsc_kfac_layer *layers = NULL;
    int64_t side, channels, classes, count = 0;
    dsc_model_options_init(&o);
    dsc_status status = dsc_zoo_default_input(models[number], &side, &channels, &classes);
    if (status == DSC_OK)
        status = dsc_zoo_create(device, models[number], side, side, channels, classes, &o, &model);
    if (status == DSC_OK)
        status = dsc_kfac_layers_of_model(model, &layers, &count);
    for (size_t v = 0; v < sizeof variants / sizeof *variants && status == DSC_OK; v++)
        status = print_variant(number, layers, count, &variants[v]);
    dsc_memory_free(&layers);
    dsc_model_destroy(&model);
    return status;
}

int main(void) {
    dsc_device *device = NULL;
    dsc_device_options o;
    dsc_device_options_init(&o);
    o.name = "ref";
    dsc_status status = dsc_device_create(&o, &device);
    printf("%-10s %-26s %7s  %9s %9s  %17s  %17s   %11s   %s\n", "", "", "", "work, sum", "of n^3",
           "slowest over", "speed-up over 16", "published", "numbers, sum of n^2");
    printf("%-10s %-26s %7s  %9s %9s  %9s %7s  %8s %8s   %5s %5s   %8s .. %s\n", "model", "placement",
           "workers", "slowest", "fastest", "mean", "floor", "slowest", "fastest", "slow", "fast", "least",
           "most");
    for (int m = 0; m < MODELS && status == DSC_OK; m++)
        status = print_model(device, m);
    dsc_device_destroy(&device);
    if (status != DSC_OK)
        fprintf(stderr, "bench_placement: %s\n", dsc_error_message());
    return status == DSC_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

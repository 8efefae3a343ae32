/* Schedules against tables worked out by hand. */
#include "test.h"

#include "descent/optim.h"

#include <float.h>
#include <math.h>

typedef struct entry {
    int64_t step;
    double rate;
} entry;

/* A handful of products and one sum of numbers up to 1: a few units in the last place. */
static void check(const dsc_schedule *schedule, const entry *table, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double rate = dsc_schedule_rate(schedule, table[i].step);
        if (!(fabs(rate - table[i].rate) <= 8 * DBL_EPSILON))
            fail_msg("step %lld: rate %.17g instead of %.17g", (long long)table[i].step, rate, table[i].rate);
    }
}

#define CHECK(schedule, table) check((schedule), (table), sizeof(table) / sizeof *(table))

static void test_constant(void **state) {
    (void)state;
    const dsc_schedule schedule = {.target = 0.25, .warmup_start = 9, .steps_per_epoch = 7};
    const entry table[] = {{0, 0.25}, {1, 0.25}, {6, 0.25}, {7, 0.25}, {1000000, 0.25}};
    CHECK(&schedule, table);
}

/* 4 ranks, lr 0.1: from 0.1 to 0.4 over 2 epochs of 5 steps, then a tenth at epochs 3 and 5. */
static void test_step_decay(void **state) {
    (void)state;
    const dsc_schedule schedule = {.target = 0.4,
                                   .warmup_start = 0.1,
                                   .warmup_epochs = 2,
                                   .decay_rate = 0.1,
                                   .decay = {3, 5},
                                   .decay_count = 2,
                                   .steps_per_epoch = 5};
    const entry table[] = {{0, 0.1},   {1, 0.13},   {2, 0.16},   {5, 0.25},   {9, 0.37},
                           {10, 0.4},  {11, 0.4},   {14, 0.4},   {15, 0.04},  {16, 0.04},
                           {24, 0.04}, {25, 0.004}, {26, 0.004}, {500, 0.004}};
    CHECK(&schedule, table);
}

/* Decays in any order; one inside the warm-up holds from its epoch on. */
static void test_decay_in_warm_up(void **state) {
    (void)state;
    const dsc_schedule schedule = {.target = 1,
                                   .warmup_start = 0,
                                   .warmup_epochs = 2,
                                   .decay_rate = 0.5,
                                   .decay = {4, 1},
                                   .decay_count = 2,
                                   .steps_per_epoch = 4};
    const entry table[] = {{0, 0}, {3, 0.375}, {4, 0.25}, {6, 0.375}, {8, 0.5}, {15, 0.5}, {16, 0.25}};
    CHECK(&schedule, table);
}

/* Parts of epochs: 0.1 of 30 steps is step 3, half of 5 steps ends inside step 3. */
static void test_fractions(void **state) {
    (void)state;
    dsc_schedule schedule = {
        .target = 1, .decay_rate = 0.5, .decay = {0.1}, .decay_count = 1, .steps_per_epoch = 30};
    const entry decay[] = {{2, 1}, {3, 0.5}};
    CHECK(&schedule, decay);
    schedule = (dsc_schedule){.target = 1, .warmup_start = 0, .warmup_epochs = 0.5, .steps_per_epoch = 5};
    const entry warm_up[] = {{0, 0}, {1, 0.4}, {2, 0.8}, {3, 1}, {4, 1}};
    CHECK(&schedule, warm_up);
}

/* One epoch of warm-up, then half a cosine over 6 epochs: (1 + cos(pi k / 6)) / 2 after k of them. */
static void test_cosine(void **state) {
    (void)state;
    const double root3 = 1.7320508075688772;
    const dsc_schedule schedule = {.kind = DSC_SCHEDULE_COSINE,
                                   .target = 0.2,
                                   .warmup_start = 0.1,
                                   .warmup_epochs = 1,
                                   .decay_rate = 0.1,
                                   .decay = {2},
                                   .decay_count = 1,
                                   .epochs = 7,
                                   .steps_per_epoch = 10};
    const entry table[] = {{0, 0.1},
                           {5, 0.15},
                           {9, 0.19},
                           {10, 0.2},
                           {20, 0.2 * (1 + root3 / 2) / 2},
                           {30, 0.15},
                           {40, 0.1},
                           {50, 0.05},
                           {60, 0.2 * (1 - root3 / 2) / 2},
                           {70, 0},
                           {71, 0},
                           {700, 0}};
    CHECK(&schedule, table);
    assert_true(dsc_schedule_rate(&schedule, 69) > 0);
    for (int64_t step = 10; step < 70; step++)
        assert_true(dsc_schedule_rate(&schedule, step) > dsc_schedule_rate(&schedule, step + 1));
}

static void test_cosine_without_warm_up(void **state) {
    (void)state;
    const dsc_schedule schedule = {
        .kind = DSC_SCHEDULE_COSINE, .target = 1, .warmup_start = 0.1, .epochs = 2, .steps_per_epoch = 3};
    const entry table[] = {{0, 1}, {2, 0.75}, {3, 0.5}, {4, 0.25}, {6, 0}};
    CHECK(&schedule, table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),  cmocka_unit_test(test_step_decay),
        cmocka_unit_test(test_fractions), cmocka_unit_test(test_decay_in_warm_up),
        cmocka_unit_test(test_cosine),    cmocka_unit_test(test_cosine_without_warm_up),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}

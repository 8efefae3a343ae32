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

/* A straight line over the 4 epochs after one of warm-up; a polynomial with power 2 is its square. */
static void test_lines(void **state) {
    (void)state;
    dsc_schedule schedule = {.kind = DSC_SCHEDULE_LINEAR,
                             .target = 0.5,
                             .warmup_start = 0.25,
                             .warmup_epochs = 1,
                             .epochs = 5,
                             .steps_per_epoch = 2};
    const entry line[] = {{0, 0.25}, {1, 0.375},  {2, 0.5}, {3, 0.4375}, {4, 0.375},
                          {6, 0.25}, {9, 0.0625}, {10, 0},  {11, 0},     {1000, 0}};
    CHECK(&schedule, line);
    schedule.kind = DSC_SCHEDULE_POLYNOMIAL;
    schedule.decay_rate = 2;
    const entry square[] = {{0, 0.25},  {1, 0.375},     {2, 0.5}, {3, 0.3828125}, {4, 0.28125},
                            {6, 0.125}, {9, 0.0078125}, {10, 0},  {1000, 0}};
    CHECK(&schedule, square);
    schedule.decay_rate = 0.5;
    const entry root[] = {{2, 0.5}, {8, 0.25}, {10, 0}};
    CHECK(&schedule, root);
}

/* 10 epochs of 6 steps: 3 of them, 18 steps, up from 1/25, where a third of the way is a quarter of the height;
 * then 7 down to 1/250000. Warm-up does not count. */
static void test_one_cycle(void **state) {
    (void)state;
    const double low = 0.04, last = 4e-6;
    const dsc_schedule schedule = {.kind = DSC_SCHEDULE_ONE_CYCLE,
                                   .target = 1,
                                   .warmup_start = 9,
                                   .warmup_epochs = 4,
                                   .decay_rate = 0.3,
                                   .epochs = 10,
                                   .steps_per_epoch = 6};
    const entry table[] = {{0, low},
                           {6, low + 0.25 * (1 - low)},
                           {9, low + 0.5 * (1 - low)},
                           {12, low + 0.75 * (1 - low)},
                           {18, 1},
                           {32, last + 0.75 * (1 - last)},
                           {39, last + 0.5 * (1 - last)},
                           {46, last + 0.25 * (1 - last)},
                           {60, last},
                           {600, last}};
    CHECK(&schedule, table);
}

/* Without a rise the rate falls from the first step on; with nothing else it rises to the end. */
static void test_one_cycle_borders(void **state) {
    (void)state;
    dsc_schedule schedule = {.kind = DSC_SCHEDULE_ONE_CYCLE, .target = 1, .epochs = 2, .steps_per_epoch = 2};
    assert_true(dsc_schedule_rate(&schedule, 0) == 1);
    schedule.decay_rate = 1;
    assert_true(dsc_schedule_rate(&schedule, 0) < 0.05 && dsc_schedule_rate(&schedule, 3) > 0.8);
    assert_true(dsc_schedule_rate(&schedule, 4) < 1e-5);
}

/* Periods of 2, 4, 8 epochs after one epoch of warm-up: restarts at epochs 3, 7 and 15. */
static void test_restarts(void **state) {
    (void)state;
    dsc_schedule schedule = {.kind = DSC_SCHEDULE_RESTARTS,
                             .target = 0.8,
                             .warmup_start = 0.4,
                             .warmup_epochs = 1,
                             .decay_rate = 2,
                             .decay = {2},
                             .epochs = 4,
                             .steps_per_epoch = 3};
    const entry doubled[] = {{0, 0.4},  {3, 0.8},  {5, 0.6},  {6, 0.4},  {7, 0.2},  {9, 0.8}, {13, 0.6},
                             {15, 0.4}, {17, 0.2}, {21, 0.8}, {29, 0.6}, {33, 0.4}, {45, 0.8}};
    CHECK(&schedule, doubled);
    schedule.decay_rate = 1;
    const entry equal[] = {{3, 0.8}, {6, 0.4}, {9, 0.8}, {12, 0.4}, {15, 0.8}, {3003, 0.8}, {3006, 0.4}};
    CHECK(&schedule, equal);
}

/* Every restart has the target, however the start of its cycle is rounded, and no rate is out of bounds. */
static void test_many_restarts(void **state) {
    (void)state;
    const double factors[] = {1, 1.0000001, 1.1, 1.5, 2, 3, 10, 1000};
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        dsc_schedule schedule = {.kind = DSC_SCHEDULE_RESTARTS,
                                 .target = 1,
                                 .decay_rate = factors[f],
                                 .decay = {factors[f] == 1.5 ? 8 : 3},
                                 .steps_per_epoch = 1};
        double start = 0, length = schedule.decay[0];
        for (int i = 0; i < 20 && start < 1e9; i++, start += length, length *= factors[f])
            if (factors[f] == floor(factors[f]))
                assert_true(dsc_schedule_rate(&schedule, (int64_t)start) == 1);
        for (int64_t step = 0; step < 2000; step++) {
            double rate = dsc_schedule_rate(&schedule, step * step * 131);
            assert_true(rate >= 0 && rate <= 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),      cmocka_unit_test(test_step_decay),
        cmocka_unit_test(test_fractions),     cmocka_unit_test(test_decay_in_warm_up),
        cmocka_unit_test(test_cosine),        cmocka_unit_test(test_cosine_without_warm_up),
        cmocka_unit_test(test_lines),         cmocka_unit_test(test_one_cycle),
        cmocka_unit_test(test_restarts),      cmocka_unit_test(test_one_cycle_borders),
        cmocka_unit_test(test_many_restarts),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}

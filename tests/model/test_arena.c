/* The memory planner: no overlap on random intervals, and optimal or nearly so where the optimum is known. */
#include "test.h"

#include "base/memory.h"
#include "base/rng.h"
#include "model/arena.h"

enum { LATEST = 120 }; /* times are below this */

static size_t rounded(size_t bytes) {
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

static dsc_interval block(size_t bytes, int64_t first, int64_t last) {
    return (dsc_interval){.bytes = bytes, .first = first, .last = last};
}

static int is_needed(const dsc_interval *b, int64_t time) {
    return (b->first <= time && time <= b->last) ||
           (b->again_last > 0 && b->again_first <= time && time <= b->again_last);
}

/* The most bytes that are needed at one time: no plan can be smaller. */
static size_t lower_bound(const dsc_interval *list, int n) {
    size_t most = 0;
    for (int i = 0; i < 2 * n; i++) {
        const dsc_interval *one = &list[i / 2];
        int64_t time = i % 2 ? one->again_first : one->first; /* when a use begins, the first or the second */
        size_t sum = 0;
        for (int k = 0; k < n; k++)
            if (is_needed(&list[k], time))
                sum += rounded(list[k].bytes);
        most = sum > most ? sum : most;
    }
    return most;
}

static void assert_valid(const dsc_interval *list, int n, size_t total) {
    for (int i = 0; i < n; i++) {
        assert_int_equal(list[i].offset % DSC_ALIGNMENT, 0);
        assert_true(list[i].offset + list[i].bytes <= total);
        for (int k = 0; k < i; k++) {
            int in_time = 0;
            for (int64_t time = 0; time < LATEST; time++)
                in_time |= is_needed(&list[i], time) && is_needed(&list[k], time);
            int in_space = list[i].offset < list[k].offset + list[k].bytes &&
                           list[k].offset < list[i].offset + list[i].bytes;
            assert_false(in_time && in_space);
        }
    }
}

static void test_random(void **state) {
    (void)state;
    enum { MOST = 120 };
    dsc_interval list[MOST];
    for (uint32_t round = 0; round < 300; round++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, round, 0);
        int n = (int)dsc_rng_below(&rng, MOST + 1);
        for (int i = 0; i < n; i++) {
            int64_t first = dsc_rng_below(&rng, 40), length = dsc_rng_below(&rng, 12);
            list[i] = block(dsc_rng_below(&rng, 5000), first, first + length);
            if (round % 2 && dsc_rng_below(&rng, 2)) { /* needed again */
                list[i].again_first = list[i].last + 1 + dsc_rng_below(&rng, 40);
                list[i].again_last = list[i].again_first + dsc_rng_below(&rng, 12);
            }
        }
        size_t total = 1, bound = lower_bound(list, n);
        assert_ok(dsc_arena_place(list, n, &total));
        assert_valid(list, n, total);
        assert_true(total >= bound);
        assert_true(total <= 2 * bound);
    }
}

/* A chain, as in evaluation: each value is needed by the next layer only. */
static void test_chain(void **state) {
    (void)state;
    dsc_interval list[10];
    for (int i = 0; i < 10; i++)
        list[i] = block(1000, i, i + 1);
    size_t total;
    assert_ok(dsc_arena_place(list, 10, &total));
    assert_valid(list, 10, total);
    assert_int_equal(total, 2 * rounded(1000));
}

/* Nested lives, as in training: value i is needed until 20 - i; nothing can be shared among them, but ten
 * gradients that live for one time each fit into the space of one. */
static void test_nested(void **state) {
    (void)state;
    dsc_interval list[20];
    for (int i = 0; i < 10; i++) {
        list[i] = block((size_t)(100 * (i + 1)), i, 40 - i);
        list[10 + i] = block(500, 20 + i, 20 + i);
    }
    size_t total;
    assert_ok(dsc_arena_place(list, 20, &total));
    assert_valid(list, 20, total);
    assert_int_equal(total, lower_bound(list, 20));
}

/* Blocks that are needed twice, with others in between: only blocks of the same time need separate memory. */
static void test_again(void **state) {
    (void)state;
    dsc_interval list[6];
    for (int i = 0; i < 6; i++) {
        list[i] = block(1000, i, i);
        list[i].again_first = list[i].again_last = 100 - 10 * i;
    }
    size_t total;
    assert_ok(dsc_arena_place(list, 6, &total));
    assert_int_equal(total, rounded(1000));
    list[3].last = 100 - 10 * 4; /* as long as the fourth is needed again */
    assert_ok(dsc_arena_place(list, 6, &total));
    assert_valid(list, 6, total);
    assert_int_equal(total, 2 * rounded(1000));
}

static void test_edges(void **state) {
    (void)state;
    size_t total = 1;
    assert_ok(dsc_arena_place(NULL, 0, &total));
    assert_int_equal(total, 0);
    dsc_interval one = {.bytes = 1, .first = 5, .last = 5, .offset = 99};
    assert_ok(dsc_arena_place(&one, 1, &total));
    assert_int_equal(total, DSC_ALIGNMENT);
    assert_int_equal(one.offset, 0);
    dsc_interval huge[3] = {block(SIZE_MAX / 5, 0, 1), block(SIZE_MAX / 2, 0, 1), block(10, 0, 1)};
    assert_fails(DSC_E_MEMORY, "too large", dsc_arena_place(huge, 3, &total));
    for (int nth = 1; nth <= 2; nth++) {
        dsc_memory_fail_at(nth);
        assert_fails(DSC_E_MEMORY, "cannot allocate", dsc_arena_place(&one, 1, &total));
    }
    dsc_memory_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_chain), cmocka_unit_test(test_nested),
        cmocka_unit_test(test_again),  cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests_name("model_arena", tests, NULL, NULL);
}

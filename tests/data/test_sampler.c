/* The order of samples: permutations, their parts for each rank, seeking. */
#include "test.h"

#include "base/memory.h"
#include "data/sampler.h"

#include <stdlib.h>

enum { COUNT = 103, BATCH = 4 };

static dsc_sampler make(int rank, int ranks, int64_t batch, int keep_last) {
    dsc_sampler_options o = {.count = COUNT,
                             .batch = batch,
                             .rank = rank,
                             .ranks = ranks,
                             .seed = 7,
                             .shuffle = 1,
                             .keep_last = keep_last};
    dsc_sampler sampler;
    assert_ok(dsc_sampler_init(&o, &sampler));
    return sampler;
}

static void test_permutation(void **state) {
    (void)state;
    uint32_t a[1000], b[1000];
    int seen[1000] = {0};
    dsc_sampler_permute(1, 2, 1000, a);
    for (int i = 0; i < 1000; i++) {
        assert_true(a[i] < 1000);
        seen[a[i]]++;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(seen[i], 1);
    dsc_sampler_permute(1, 2, 1000, b);
    assert_memory_equal(a, b, sizeof a);
    dsc_sampler_permute(1, 3, 1000, b);
    assert_memory_not_equal(a, b, sizeof a);
    dsc_sampler_permute(2, 2, 1000, b);
    assert_memory_not_equal(a, b, sizeof a);
    dsc_sampler_permute(1, 2, 1, b);
    assert_int_equal(b[0], 0);
}

/* Each of the 24 orders of four comes up n/24 times, to within five standard deviations. */
static void test_permutation_is_even(void **state) {
    (void)state;
    enum { N = 24000 };
    int counts[256] = {0}, kinds = 0;
    for (int epoch = 0; epoch < N; epoch++) {
        uint32_t p[4];
        dsc_sampler_permute(9, epoch, 4, p);
        counts[p[0] * 64 + p[1] * 16 + p[2] * 4 + p[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        if (counts[i] == 0)
            continue;
        kinds++;
        assert_true(abs(counts[i] - N / 24) < 5 * 32); /* sqrt(1000) < 32 */
    }
    assert_int_equal(kinds, 24);
}

/* All ranks' parts of step t together are the slice [t p b, (t + 1) p b) of the permutation; p = 1..5, both
 * ways of ending an epoch, over three epochs. */
static void test_ranks_share_each_batch(void **state) {
    (void)state;
    for (int keep_last = 0; keep_last < 2; keep_last++) {
        for (int p = 1; p <= 5; p++) {
            dsc_sampler ranks[5];
            for (int r = 0; r < p; r++)
                ranks[r] = make(r, p, BATCH, keep_last);
            int64_t global = p * BATCH;
            int64_t batches = keep_last ? (COUNT + global - 1) / global : COUNT / global;
            assert_int_equal(dsc_sampler_batches(&ranks[0]), batches);
            for (int64_t step = 0; step < 3 * batches; step++) {
                uint32_t order[COUNT];
                dsc_sampler_permute(7, step / batches, COUNT, order);
                for (int r = 0; r < p; r++) {
                    int64_t index[BATCH], epoch, position;
                    dsc_sampler_next(&ranks[r], index, &epoch, &position);
                    assert_int_equal(epoch, step / batches);
                    assert_int_equal(position, step % batches * global);
                    for (int i = 0; i < BATCH; i++) {
                        int64_t place = position + r * BATCH + i;
                        assert_int_equal(index[i], place < COUNT ? (int64_t)order[place] : -1);
                    }
                }
            }
            for (int r = 0; r < p; r++)
                dsc_sampler_free(&ranks[r]);
        }
    }
}

static void test_seek_equals_skipping(void **state) {
    (void)state;
    for (int keep_last = 0; keep_last < 2; keep_last++) {
        dsc_sampler walking = make(1, 3, BATCH, keep_last), jumping = make(1, 3, BATCH, keep_last);
        for (int step = 0; step < 40; step++) {
            int64_t a[BATCH], b[BATCH], epoch_a, epoch_b, position_a, position_b;
            dsc_sampler_next(&walking, a, &epoch_a, &position_a);
            assert_ok(dsc_sampler_seek(&jumping, epoch_a, position_a));
            dsc_sampler_next(&jumping, b, &epoch_b, &position_b);
            assert_int_equal(epoch_a, epoch_b);
            assert_int_equal(position_a, position_b);
            assert_memory_equal(a, b, sizeof a);
            assert_int_equal(walking.epoch, jumping.epoch);
            assert_int_equal(walking.position, jumping.position);
        }
        dsc_sampler_free(&walking);
        dsc_sampler_free(&jumping);
    }
}

/* Two ranks stop in mid-epoch; three ranks go on with exactly the samples that were left. */
static void test_resume_on_other_ranks(void **state) {
    (void)state;
    int seen[COUNT] = {0};
    int64_t index[BATCH], epoch, position = 0, stop = 0;
    for (int r = 0; r < 2; r++) {
        dsc_sampler s = make(r, 2, BATCH, 0);
        for (int step = 0; step < 5; step++) {
            dsc_sampler_next(&s, index, &epoch, &position);
            for (int i = 0; i < BATCH; i++)
                seen[index[i]]++;
        }
        stop = s.position;
        dsc_sampler_free(&s);
    }
    assert_int_equal(stop, 5 * 2 * BATCH);
    for (int r = 0; r < 3; r++) {
        dsc_sampler s = make(r, 3, BATCH, 1);
        assert_ok(dsc_sampler_seek(&s, 0, stop));
        for (;;) {
            dsc_sampler_next(&s, index, &epoch, &position);
            if (epoch > 0)
                break;
            for (int i = 0; i < BATCH; i++)
                if (index[i] >= 0)
                    seen[index[i]]++;
        }
        dsc_sampler_free(&s);
    }
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(seen[i], 1);
}

static void test_ends_of_epochs(void **state) {
    (void)state;
    int64_t index[BATCH], epoch, position;
    dsc_sampler s = make(0, 1, BATCH, 0);
    assert_ok(dsc_sampler_seek(&s, 3, COUNT - BATCH)); /* exactly one batch left */
    dsc_sampler_next(&s, index, &epoch, &position);
    assert_int_equal(epoch, 3);
    assert_ok(dsc_sampler_seek(&s, 3, COUNT - BATCH + 1)); /* too few left */
    dsc_sampler_next(&s, index, &epoch, &position);
    assert_int_equal(epoch, 4);
    assert_int_equal(position, 0);
    assert_ok(dsc_sampler_seek(&s, 0, COUNT));
    dsc_sampler_next(&s, index, &epoch, &position);
    assert_int_equal(epoch, 1);
    assert_fails(DSC_E_INVALID, "position 104 of an epoch of 103", dsc_sampler_seek(&s, 0, COUNT + 1));
    assert_fails(DSC_E_INVALID, "position -1", dsc_sampler_seek(&s, 0, -1));
    assert_fails(DSC_E_INVALID, "epoch -2", dsc_sampler_seek(&s, -2, 0));
    dsc_sampler_free(&s);
}

static void test_in_order(void **state) {
    (void)state;
    dsc_sampler_options o = {.count = 10, .batch = 3, .rank = 1, .ranks = 2, .seed = 7, .keep_last = 1};
    dsc_sampler s;
    int64_t index[3], epoch, position;
    assert_ok(dsc_sampler_init(&o, &s));
    dsc_sampler_next(&s, index, &epoch, &position);
    assert_memory_equal(index, ((int64_t[]){3, 4, 5}), sizeof index);
    dsc_sampler_next(&s, index, &epoch, &position);
    assert_memory_equal(index, ((int64_t[]){9, -1, -1}), sizeof index);
    assert_int_equal(epoch, 0);
    dsc_sampler_next(&s, index, &epoch, &position);
    assert_int_equal(epoch, 1);
    dsc_sampler_free(&s);
}

/* Groups of 30, 1, 40 and 32 samples, shuffled within buffers of 20: every sample occurs once; neighbours in the order
 * come from groups that follow each other in the order of the groups; nearly all samples move; and ranks and seeks see
 * the same order. */
static void test_groups(void **state) {
    (void)state;
    static const int64_t start[] = {0, 30, 31, 71, COUNT};
    dsc_sampler_options o = {.count = COUNT,
                             .batch = COUNT,
                             .ranks = 1,
                             .seed = 7,
                             .shuffle = 1,
                             .buffer = 20,
                             .groups = 4,
                             .group_start = start};
    int64_t whole[3][COUNT], epoch, position;
    dsc_sampler s;
    assert_ok(dsc_sampler_init(&o, &s));
    for (int e = 0; e < 3; e++) {
        int seen[COUNT] = {0}, moved = 0;
        uint32_t groups[4], order[COUNT];
        dsc_sampler_next(&s, whole[e], &epoch, &position);
        assert_int_equal(epoch, e);
        dsc_sampler_permute_groups(&o, e, groups, order);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(whole[e][i], order[i]);
            seen[order[i]]++;
        }
        int64_t at = 0; /* where the samples would be without the second shuffle: at most a buffer away */
        for (int g = 0; g < 4; g++)
            for (int64_t i = start[groups[g]]; i < start[groups[g] + 1]; i++, at++) {
                int64_t found = 0;
                while (order[found] != i)
                    found++;
                assert_int_equal(found / 20, at / 20);
                moved += found != at;
            }
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(seen[i], 1);
        assert_true(moved > COUNT * 3 / 4);
    }
    assert_true(memcmp(whole[0], whole[1], sizeof whole[0]) != 0);
    dsc_sampler_free(&s);
    for (int rank = 0; rank < 2; rank++) {
        int64_t index[5];
        o.batch = 5;
        o.ranks = 2;
        o.rank = rank;
        assert_ok(dsc_sampler_init(&o, &s));
        assert_ok(dsc_sampler_seek(&s, 2, 40));
        dsc_sampler_next(&s, index, &epoch, &position);
        assert_memory_equal(index, whole[2] + 40 + 5 * rank, sizeof index);
        dsc_sampler_free(&s);
    }
}

static void test_refusals(void **state) {
    (void)state;
    dsc_sampler s;
    dsc_sampler_options good = {.count = 10, .batch = 4, .ranks = 2, .seed = 7, .shuffle = 1}, o;
    assert_ok(dsc_sampler_init(&good, &s));
    dsc_sampler_free(&s);
    o = good, o.batch = 0;
    assert_fails(DSC_E_INVALID, "batch size 0: must be 1", dsc_sampler_init(&o, &s));
    o = good, o.rank = 2;
    assert_fails(DSC_E_INVALID, "rank 2 of 2", dsc_sampler_init(&o, &s));
    o = good, o.count = 0;
    assert_fails(DSC_E_INVALID, "0 samples", dsc_sampler_init(&o, &s));
    o = good, o.batch = 6;
    assert_fails(DSC_E_INVALID, "10 samples are fewer than one global batch of 12 (2 ranks of 6)",
                 dsc_sampler_init(&o, &s));
    o.keep_last = 1;
    assert_ok(dsc_sampler_init(&o, &s));
    assert_int_equal(dsc_sampler_batches(&s), 1);
    dsc_sampler_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_permutation_is_even),
        cmocka_unit_test(test_ranks_share_each_batch),
        cmocka_unit_test(test_seek_equals_skipping),
        cmocka_unit_test(test_resume_on_other_ranks),
        cmocka_unit_test(test_ends_of_epochs),
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("data-sampler", tests, NULL, NULL);
}

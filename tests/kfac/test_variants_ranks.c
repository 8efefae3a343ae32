/* Variants of the algorithm that are off by default, on several ranks: all strategies give the gradient of one
 * rank, with the same bits on every rank. */
#include "kfac/crew.h"

#include <stdlib.h>

/* Grids of every shape that the ranks allow, with factors of one layer on one rank or on several. */
static int all_grids(config *list) {
    int count = 0;
    for (int rows = 1; rows <= ranks; rows++)
        for (int colocate = 0; colocate < 2 && ranks % rows == 0; colocate++) {
            if (!colocate && rows == 1 && ranks > 1)
                continue;
            list[count++] = (config){.strategy = DSC_KFAC_HYBRID_OPT,
                                     .placement = DSC_KFAC_ROUND_ROBIN,
                                     .rows = rows,
                                     .colocate = colocate,
                                     .symmetric = colocate,
                                     .method = 2,
                                     .bucket_bytes = 700};
        }
    return count;
}

/* Compares four steps on every grid with a naive run, with options changed by `change`. */
static void run_changed(void (*change)(dsc_kfac_options *options)) {
    config list[16];
    int count = all_grids(list);
    net_step steps[4];
    for (int k = 0; k < 4; k++)
        steps[k] = step_of(k);
    for (int i = 0; i < count; i++) {
        dsc_kfac_options options = options_of(&list[i]);
        change(&options);
        run_beside(&list[i], &options, steps, 4, 1);
    }
    all_fine(comm);
}

static void split(dsc_kfac_options *options) {
    options->damping_split = DSC_KFAC_SPLIT_PI;
}

static void test_split(void **state) {
    (void)state;
    run_changed(split);
}

static void test_warmup(void **state) {
    (void)state;
    config list[16];
    int count = all_grids(list);
    for (int i = 0; i < count; i++) {
        list[i].method = i % 3;
        if (!list[i].colocate && list[i].method == 1)
            list[i].method = 0;
        dsc_kfac_options options = options_of(&list[i]);
        net_step steps[6];
        options.warmup_factors = 1;
        options.stat_decay = 0.75;
        options.factor_freq = 1;
        for (int k = 0; k < 6; k++) {
            steps[k] = step_of(k);
            steps[k].absent = k == 1 ? 6 : 0;
        }
        run_beside(&list[i], &options, steps, 6, 1);
    }
    all_fine(comm);
}

static void clip_by_layer(dsc_kfac_options *options) {
    options->clip = DSC_KFAC_CLIP_LAYER;
}

static void test_clip_by_layer(void **state) {
    (void)state;
    run_changed(clip_by_layer);
}

static void use_two_samples(dsc_kfac_options *options) {
    options->factor_samples = 2;
}

static void test_factor_samples(void **state) {
    (void)state;
    run_changed(use_two_samples);
}

/* A clip scaled with the ranks is one that is as many times as large. */
static void test_clip_scaling(void **state) {
    (void)state;
    config list[16];
    int count = all_grids(list);
    for (int i = 0; i < count; i++) {
        double nu[2];
        net *n = &nets[REF];
        for (int scaled = 0; scaled < 2; scaled++) {
            dsc_kfac_options options = options_of(&list[i]);
            options.kl_clip = scaled ? 1e-5 : 1e-5 * ranks;
            options.kl_clip_scaling = scaled ? DSC_KFAC_CLIP_RANKS : DSC_KFAC_CLIP_NONE;
            dsc_kfac *kfac = create(&list[i], &options);
            EXPECT_OK(net_run(n, kfac, &(net_step){.number = 0, .lr = 0.5}));
            EXPECT_OK(dsc_kfac_nu(kfac, n->queue, &nu[scaled]));
            dsc_kfac_destroy(&kfac);
        }
        expect(nu[0] < 1 && nu[0] == nu[1], &list[i], 0, "another clip");
    }
    all_fine(comm);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),          cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_clip_scaling),   cmocka_unit_test(test_clip_by_layer),
        cmocka_unit_test(test_factor_samples),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("kfac variants on ranks", tests, open_crew, close_crew);
}

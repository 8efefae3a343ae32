/* Decompositions that run concurrently with the steps: every rank uses them exactly async_steps later; a resumed run
 * has the same bits as one that was not interrupted, also when a decomposition was under way. */
#include "kfac/internal.h"
#include "kfac/states.h"

enum { STEPS = 14, EVERY = 4, EXACT_ROWS = 2, NEVER = 1 << 30 };

/* Kinds of decompositions: eigenvectors anew, inverses, inverses with divided damping, bases of EKFAC with moments of
 * batches and of samples, rotated eigenvectors, all of them and the leading half. */
enum { EIGEN, INVERSE, DIVIDED, BATCHES, OF_SAMPLES, WARM, CUT, KINDS };

/* Factors change together with decompositions, so that those of a few steps later find the same averages. */
static dsc_kfac_options async_options(const config *c, int kind, int64_t later) {
    dsc_kfac_options options = options_of(c);
    options.factor_freq = options.update_freq = EVERY;
    options.outer_product = 0;
    options.method = kind == INVERSE || kind == DIVIDED ? DSC_KFAC_INVERSE : DSC_KFAC_EIGEN;
    options.damping_split = kind == DIVIDED ? DSC_KFAC_SPLIT_PI : DSC_KFAC_SPLIT_NONE;
    options.refresh = kind >= WARM ? DSC_KFAC_WARM : DSC_KFAC_EXACT;
    options.rank = kind == CUT ? 0.5 : 1;
    options.ekfac = kind == BATCHES      ? DSC_KFAC_EKFAC_BATCH
                    : kind == OF_SAMPLES ? DSC_KFAC_EKFAC_SAMPLES
                                         : DSC_KFAC_EKFAC_OFF;
    options.async_steps = later;
    return options;
}

static dsc_kfac *create_kind(const config *c, const dsc_kfac_options *options) {
    dsc_kfac *kfac = create(c, options);
    if (kfac && options->refresh == DSC_KFAC_WARM) {
        EXPECT_OK(dsc_kfac_refresh_exact_rows(kfac, EXACT_ROWS));
        if (dsc_kfac_async_twin(kfac))
            EXPECT_OK(dsc_kfac_refresh_exact_rows(dsc_kfac_async_twin(kfac), EXACT_ROWS));
    }
    return kfac;
}

/* A schedule that decomposes without delay: in step 0, and a fixed number of steps after the multiples of EVERY. */
static dsc_status decompose_later(void *context, int64_t step, dsc_kfac_hyper *hyper) {
    const int64_t *later = context;
    int now = step == 0 || (step - *later >= EVERY && (step - *later) % EVERY == 0);
    hyper->update_freq = now ? 1 : NEVER;
    return DSC_OK;
}

/* Runs two preconditioners on the same steps; both must give the same bits. */
static void run_both(const config *c, dsc_kfac *one, dsc_kfac *other, int64_t first, const char *what) {
    net *n = &nets[c->place];
    double want[MAX_NUMBERS], have[MAX_NUMBERS];
    for (int64_t k = first; one && other && k < STEPS; k++) {
        net_step step = step_of(k);
        EXPECT_OK(net_run(n, one, &step));
        int64_t count = read_all(n, want);
        EXPECT_OK(net_run(n, other, &step));
        read_all(n, have);
        expect(memcmp(have, want, (size_t)count * sizeof *have) == 0, c, k, what);
        expect(ranks_agree(n), c, k, "ranks differ");
    }
}

typedef void (*config_function)(const config *c, int kind);

static void for_each_config(config_function f) {
    int count;
    const config *list = some_configs(&count);
    for (int i = 0; i < count; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            config c = list[i];
            c.place = i % PLACES;
            f(&c, kind);
        }
}

/* ---- when a result is used ---- */

static void compare_with_later(const config *c, int kind) {
    if (kind >= WARM && c->colocate) /* there the gradient of a step decides about its rotations */
        return;
    for (int64_t later = 1; later < EVERY; later++) {
        dsc_kfac_options options = async_options(c, kind, later), at_once = async_options(c, kind, 0);
        at_once.schedule = decompose_later;
        at_once.context = &later;
        dsc_kfac *one = create_kind(c, &at_once), *other = create_kind(c, &options);
        run_both(c, one, other, 0, "other bits than decompositions of the same averages some steps later");
        dsc_kfac_destroy(&one);
        dsc_kfac_destroy(&other);
    }
}

static void test_later(void **state) {
    (void)state;
    for_each_config(compare_with_later);
    all_fine(comm);
}

/* A decomposition that is not due yet when the next one begins is used at that moment. */
static void test_no_later_than_the_next(void **state) {
    (void)state;
    config c = *some_configs(&(int){0});
    dsc_kfac_options options = async_options(&c, EIGEN, EVERY), longer = async_options(&c, EIGEN, 3 * EVERY);
    options.factor_freq = longer.factor_freq = 1;
    dsc_kfac *one = create_kind(&c, &options), *other = create_kind(&c, &longer);
    run_both(&c, one, other, 0, "another delay than the distance of decompositions");
    dsc_kfac_destroy(&one);
    dsc_kfac_destroy(&other);
    all_fine(comm);
}

/* dsc_kfac_decomposed is 1 after steps that begin to use a decomposition, not after those that only start one. */
static void test_reports(void **state) {
    (void)state;
    config c = *some_configs(&(int){0});
    dsc_kfac_options options = async_options(&c, EIGEN, 2);
    dsc_kfac *kfac = create_kind(&c, &options);
    net *n = &nets[c.place];
    for (int64_t k = 0; kfac && k < STEPS; k++) {
        net_step step = step_of(k);
        EXPECT_OK(net_run(n, kfac, &step));
        int used = k == 0 || (k > EVERY && k % EVERY == 2);
        expect(dsc_kfac_decomposed(kfac) == used, &c, k, "decomposed in another step");
    }
    dsc_kfac_destroy(&kfac);
    all_fine(comm);
}

/* ---- states ---- */

/* With factor_freq EVERY, decompositions are used before the next capture after the resumption. */
static void resume_updating(const config *c, int kind, int64_t factor_freq) {
    for (int64_t at = 1; at < 2 * EVERY + 2; at += kind == EIGEN ? 1 : 3) {
        net *n = &nets[c->place];
        dsc_kfac_options options = async_options(c, kind, 3);
        options.factor_freq = factor_freq;
        options.warmup_factors = 1;
        dsc_kfac *first = create_kind(c, &options), *second = create_kind(c, &options);
        for (int64_t k = 0; first && second && k < at; k++) {
            net_step step = step_of(k);
            EXPECT_OK(net_run(n, first, &step));
        }
        if (first && second)
            copy_state(first, second, n->queue);
        run_both(c, first, second, at, "a resumed run has other bits");
        dsc_kfac_destroy(&first);
        dsc_kfac_destroy(&second);
    }
}

static void resume(const config *c, int kind) {
    resume_updating(c, kind, 1);
    resume_updating(c, kind, EVERY);
}

static void test_resumes_with_the_same_bits(void **state) {
    (void)state;
    for_each_config(resume);
    all_fine(comm);
}

/* States exchanged between runs with and without concurrent decompositions: one that is under way is dropped. A state
 * is loaded while a thread works. */
static void test_states_of_other_runs(void **state) {
    (void)state;
    for (int with = 0; with < 2; with++) {
        config c = *some_configs(&(int){0});
        net *n = &nets[c.place];
        dsc_kfac_options options = async_options(&c, EIGEN, with ? 3 : 0),
                         others = async_options(&c, EIGEN, with ? 0 : 3);
        dsc_kfac *one = create_kind(&c, &options), *other = create_kind(&c, &others);
        double want[MAX_NUMBERS], have[MAX_NUMBERS];
        for (int64_t k = 0; one && other && k < EVERY + 2; k++) {
            net_step step = step_of(k);
            EXPECT_OK(net_run(n, one, &step));
            EXPECT_OK(net_run(n, other, &step));
        }
        if (one && other) {
            net_step step = step_of(EVERY + 2);
            copy_state(one, other, n->queue);
            EXPECT_OK(net_run(n, one, &step));
            int64_t count = read_all(n, want);
            EXPECT_OK(net_run(n, other, &step));
            read_all(n, have);
            expect(with || memcmp(have, want, (size_t)count * sizeof *have) == 0, &c, with, "other bits");
        }
        dsc_kfac_destroy(&one);
        dsc_kfac_destroy(&other);
    }
    all_fine(comm);
}

/* ---- ends ---- */

/* Abandoning and destroying while a thread works. */
static void test_ends(void **state) {
    (void)state;
    for (int abandon = 0; abandon < 2; abandon++) {
        config c = *some_configs(&(int){0});
        dsc_kfac_options options = async_options(&c, EIGEN, 3);
        dsc_kfac *kfac = create_kind(&c, &options);
        for (int64_t k = 0; kfac && k <= EVERY; k++) {
            net_step step = step_of(k);
            EXPECT_OK(net_run(&nets[c.place], kfac, &step));
        }
        if (abandon)
            dsc_kfac_abandon(&kfac);
        else
            dsc_kfac_destroy(&kfac);
    }
    all_fine(comm);
}

/* Options that do not go together. */
static void test_refusals(void **state) {
    (void)state;
    config c = *some_configs(&(int){0});
    dsc_kfac_layer layers[NET_LAYERS];
    dsc_kfac *kfac = NULL;
    dsc_kfac_options options = async_options(&c, EIGEN, 2);
    c.colocate = options.colocate_factors = options.outer_product = 1;
    net_describe(&nets[c.place], layers);
    EXPECT_FAILS(DSC_E_INVALID, "used 2 steps later, with the outer product",
                 dsc_kfac_create(comm, places[c.place].queue, layers, LAYERS, &options, &kfac));
    options.outer_product = 0;
    options.async_steps = -1;
    EXPECT_FAILS(DSC_E_INVALID, "kfac-async -1",
                 dsc_kfac_create(comm, places[c.place].queue, layers, LAYERS, &options, &kfac));
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_later),
        cmocka_unit_test(test_no_later_than_the_next),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_resumes_with_the_same_bits),
        cmocka_unit_test(test_states_of_other_runs),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_crew, close_crew);
}

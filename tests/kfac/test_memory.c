/* The bytes that dsc_kfac_get_memory reports are those that the device has allocated, for every option that needs
 * memory, before and after steps. */
#include "kfac/crew.h"
#include "kfac/internal.h"

enum { STEPS = 8, EXACT_ROWS = 4 };

/* An option that takes memory: what it changes. */
typedef struct variant {
    const char *name;
    void (*change)(dsc_kfac_options *options);
} variant;

static void leave(dsc_kfac_options *o) {
    (void)o;
}

static void use_warm(dsc_kfac_options *o) {
    o->refresh = DSC_KFAC_WARM;
}

static void use_rank(dsc_kfac_options *o) {
    o->refresh = DSC_KFAC_WARM;
    o->rank = 0.25;
}

static void use_rank_async(dsc_kfac_options *o) {
    use_rank(o);
    o->async_steps = 2;
}

static void use_inverse(dsc_kfac_options *o) {
    o->method = DSC_KFAC_INVERSE;
    o->damping_split = DSC_KFAC_SPLIT_PI;
}

static void use_outer(dsc_kfac_options *o) {
    o->outer_product = 1;
}

static void use_half(dsc_kfac_options *o) {
    o->factor_dtype = o->inverse_dtype = DSC_BF16;
}

static void use_ekfac_batch(dsc_kfac_options *o) {
    o->ekfac = DSC_KFAC_EKFAC_BATCH;
}

static void use_ekfac_samples(dsc_kfac_options *o) {
    o->ekfac = DSC_KFAC_EKFAC_SAMPLES;
}

static void use_blocks(dsc_kfac_options *o) {
    o->strategy = DSC_KFAC_COMM_OPT;
    o->diag_blocks = 2;
}

static void use_others(dsc_kfac_options *o) {
    o->clip = DSC_KFAC_CLIP_LAYER;
    o->warmup_factors = 1;
    o->late_factors = 1;
    o->symmetric = 0;
}

static const variant variants[] = {
    {"default", leave},
    {"warm", use_warm},
    {"rank", use_rank},
    {"rank, async", use_rank_async},
    {"inverse", use_inverse},
    {"outer product", use_outer},
    {"half types", use_half},
    {"ekfac batch", use_ekfac_batch},
    {"ekfac samples", use_ekfac_samples},
    {"blocks", use_blocks},
    {"others", use_others},
};

static dsc_kfac_memory memory_of(dsc_kfac *kfac) {
    dsc_kfac_memory m = {.size = sizeof m};
    EXPECT_OK(dsc_kfac_get_memory(kfac, &m));
    return m;
}

static size_t both(const size_t sides[2]) {
    return sides[0] + sides[1];
}

static size_t total_of(const dsc_kfac_memory *m) {
    return both(m->factors) + both(m->batches) + both(m->decompositions) + m->outer_products + m->moments +
           m->norms + m->work;
}

/* Bytes of the decompositions of this rank that a checkpoint would hold. */
static size_t saved_bytes(dsc_kfac *kfac, const place *at) {
    static char memory[1 << 16];
    const dsc_kfac_entry *entries = dsc_kfac_state_entries(kfac);
    size_t sum = 0;
    for (int64_t i = 0; i < dsc_kfac_state_count(kfac); i++) {
        int held = 0;
        if (!strstr(entries[i].name, ".vectors") && !strstr(entries[i].name, ".values"))
            continue;
        size_t bytes = dsc_dtype_size(entries[i].dtype) * (size_t)entries[i].dim[0] *
                       (size_t)(entries[i].ndim == 2 ? entries[i].dim[1] : 1);
        assert_in_range(bytes, 0, sizeof memory);
        EXPECT_OK(dsc_kfac_state_get_own(kfac, at->queue, i, memory, &held));
        sum += held ? bytes : 0;
    }
    return sum;
}

static void check_now(const config *c, dsc_kfac *kfac, size_t before, int64_t step, const char *name) {
    const place *at = &places[c->place];
    const dsc_kfac_report *report = NULL;
    dsc_kfac_memory m = memory_of(kfac); /* waits for a decomposition that is under way */
    size_t device = dsc_device_bytes(at->device) - before;
    /* With several ranks the exchange of factors has memory of its own. */
    expect(ranks > 1 ? total_of(&m) <= device : total_of(&m) == device, c, step, name);
    EXPECT_OK(dsc_kfac_get_report(kfac, at->queue, &report));
    if (!report)
        return;
    expect(both(m.factors) == report->factor_bytes, c, step, name);
    expect(both(m.decompositions) + m.outer_products + m.moments >= report->decomposition_bytes, c, step,
           name);
    if (m.moments == 0)
        expect(both(m.decompositions) + m.outer_products == report->decomposition_bytes, c, step, name);
    if (strncmp(name, "rank", 4) == 0)
        expect(both(m.decompositions) == saved_bytes(kfac, at), c, step, name);
}

/* The bytes that whole bases would take on this rank. */
static size_t whole_bytes(const config *c) {
    dsc_kfac_options options = options_of(c);
    options.refresh = DSC_KFAC_WARM;
    dsc_kfac *kfac = create(c, &options);
    dsc_kfac_memory m = memory_of(kfac);
    dsc_kfac_destroy(&kfac);
    return both(m.decompositions);
}

static void check_variant(const config *c, const variant *v) {
    dsc_kfac_options options = options_of(c);
    net *n = &nets[c->place];
    size_t before = dsc_device_bytes(places[c->place].device);
    v->change(&options);
    int cut = options.rank < 1;
    dsc_kfac *kfac = create(c, &options);
    if (kfac && cut)
        EXPECT_OK(dsc_kfac_refresh_exact_rows(kfac, EXACT_ROWS));
    for (int64_t k = 0; kfac && k < STEPS; k++) {
        net_step step = step_of(k);
        check_now(c, kfac, before, k, v->name);
        if (k == 4) /* from now on this layer keeps batch factors between passes */
            EXPECT_OK(dsc_kfac_set_uses(kfac, 1, 0));
        EXPECT_OK(net_run(n, kfac, &step));
    }
    if (kfac) {
        check_now(c, kfac, before, STEPS, v->name);
        if (cut && ranks == 1) {
            dsc_kfac_memory m = memory_of(kfac);
            expect(both(m.decompositions) < whole_bytes(c), c, STEPS, "a cut takes as much as whole bases");
        }
    }
    dsc_kfac_destroy(&kfac);
    expect(dsc_device_bytes(places[c->place].device) == before, c, STEPS, "memory is left");
}

static void test_memory(void **state) {
    (void)state;
    int count;
    const config *configs = some_configs(&count);
    for (int i = 0; i < 2; i++) /* comm-opt, mem-opt */
        for (int p = 0; p < PLACES; p++)
            for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
                config c = configs[i];
                c.place = p;
                c.colocate = 1;
                check_variant(&c, &variants[v]);
            }
    all_fine(comm);
}

static void test_refusals(void **state) {
    (void)state;
    int count;
    const config *c = some_configs(&count);
    dsc_kfac_options options = options_of(c);
    dsc_kfac *kfac = create(c, &options);
    dsc_kfac_memory m = {0};
    EXPECT_FAILS(DSC_E_INVALID, "dsc_kfac_memory", dsc_kfac_get_memory(kfac, &m));
    dsc_kfac_destroy(&kfac);
    all_fine(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests_name("kfac memory", tests, open_crew, close_crew);
}

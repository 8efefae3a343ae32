/* K-FAC in runs on several ranks: the same result with every strategy, equal to one rank with the whole batch; resumed
 * with the same bits, and on other numbers of ranks and under other strategies. */
#include "chosen.h"
#include "comm/parallel.h"

#include "train/runs.h"
#include "train/scratch.h"
#include "train/share.h"
#include "train/trainer_internal.h"

#include <math.h>

enum { WATCHDOG_S = 240, STEPS = 4, BATCH = 4 };

static dsc_comm *comm, *alone; /* all ranks; this process by itself */
static dsc_device *device;
static dsc_queue *queue;
static int rank, ranks;
static char directory[SCRATCH_SIZE]; /* the same on every rank */

static const char *folder(const char *name, char path[SCRATCH_SIZE]) {
    snprintf(path, SCRATCH_SIZE, "%s", scratch_path(directory, name));
    return path;
}

/* lenet has no batch norm, whose statistics would be those of a rank's own batch. The damping keeps small the
 * differences that rounding makes: see limit(). */
static void kfac_options(dsc_train_options *o, const char *out) {
    static char data[32];
    snprintf(data, sizeof data, "synthetic:%d", ranks * 2 * BATCH * 4 + 1); /* 8 steps an epoch */
    runs_options(o, out);
    o->model = "lenet";
    o->data = data;
    o->eval_every = 0;
    o->batch_size = BATCH;
    o->epochs = 1;
    kfac_of(o)->update_freq = 3;
    kfac_of(o)->damping = 1;
    kfac_of(o)->bucket_bytes = 65536;
}

static dsc_trainer *stepped(dsc_comm *with, const dsc_train_options *o, int steps) {
    dsc_trainer *t = NULL;
    EXPECT_OK(dsc_trainer_create_named(with, device, o, &t));
    for (int i = 0; t && i < steps; i++)
        EXPECT_OK(dsc_trainer_step(t, NULL));
    if (t)
        EXPECT_OK(dsc_trainer_collect(t));
    return t;
}

/* |a - b| / |b - start|, over all parameters. */
static double distance(const dsc_trainer *a, const dsc_trainer *b, const dsc_trainer *start) {
    dsc_tensor ta = dsc_model_values(a->model), tb = dsc_model_values(b->model),
               t0 = dsc_model_values(start->model);
    float *x = runs_read(a->queue, &ta), *y = runs_read(b->queue, &tb), *z = runs_read(start->queue, &t0);
    double apart = 0, travelled = 0;
    for (int64_t i = 0; i < dsc_tensor_count(&ta); i++) {
        apart += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        travelled += ((double)y[i] - z[i]) * ((double)y[i] - z[i]);
    }
    free(x);
    free(y);
    free(z);
    return sqrt(apart / travelled);
}

/* The limit for a difference: a sum of gradients that is added in another order has an error of sqrt(terms) eps; that
 * of the factors is as large and reaches P multiplied by the condition of vG vA' + damping, which `condition` bounds;
 * 8 for constants. */
static double limit(const dsc_trainer *t, double condition) {
    double terms = (double)(t->step_images * 1024);
    return 8 * STEPS * sqrt(terms) * 0x1p-24 * condition;
}

/* The largest condition of a layer. Collective. */
static double condition_of(dsc_trainer *t) {
    const dsc_kfac_report *report = NULL;
    double largest = 1;
    EXPECT_OK(dsc_kfac_get_report(t->kfac, t->queue, &report));
    for (int64_t i = 0; report && i < report->layer_count; i++)
        largest = fmax(largest, report->layers[i].condition);
    return largest;
}

/* ---- strategies ---- */

typedef struct recipe {
    const char *name;
    dsc_kfac_strategy strategy;
    double fraction;
    int ranks; /* that must divide those there are */
    dsc_kfac_placement placement;
    int colocate, symmetric, outer;
} recipe;

static const recipe recipes[] = {
    {"comm-opt", DSC_KFAC_COMM_OPT, 0.5, 1, DSC_KFAC_COMPUTE, 1, 1, 0},
    {"apart", DSC_KFAC_COMM_OPT, 0.5, 1, DSC_KFAC_ROUND_ROBIN, 0, 0, 0},
    {"mem-opt", DSC_KFAC_MEM_OPT, 0.5, 1, DSC_KFAC_MEMORY, 1, 1, 0},
    {"layer-wise", DSC_KFAC_LAYER_WISE, 0.5, 1, DSC_KFAC_ROUND_ROBIN, 1, 0, 1},
    {"hybrid-opt", DSC_KFAC_HYBRID_OPT, 0.5, 2, DSC_KFAC_COMPUTE, 1, 1, 1},
};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

static void follow(const recipe *r, dsc_train_options *o) {
    kfac_of(o)->strategy = r->strategy;
    kfac_of(o)->grad_worker_fraction = r->fraction;
    kfac_of(o)->placement = r->placement;
    kfac_of(o)->colocate_factors = r->colocate;
    kfac_of(o)->symmetric = r->symmetric;
    kfac_of(o)->outer_product = r->outer;
}

/* p ranks of m micro-batches of b, under every `stride`-th recipe, are one rank of batch p m b. */
static void check_equal(int64_t micro, dsc_fisher fisher, int stride) {
    dsc_train_options o;
    kfac_options(&o, NULL);
    o.kfac_fisher = fisher;
    o.batch_size = BATCH * ranks * micro;
    dsc_trainer *start = stepped(alone, &o, 0), *one = stepped(alone, &o, STEPS);
    double most = limit(one, condition_of(one));
    o.batch_size = BATCH;
    o.batches_per_allreduce = micro;
    for (int i = 0; i < RECIPES; i += stride) {
        if (ranks % recipes[i].ranks)
            continue;
        follow(&recipes[i], &o);
        dsc_trainer *many = stepped(comm, &o, STEPS);
        double apart = distance(many, one, start);
        if (!(apart <= most))
            fprintf(stderr, "%s: distance %g, limit %g\n", recipes[i].name, apart, most);
        EXPECT(apart <= most);
        EXPECT(fabs(many->report.loss - one->report.loss) <= most * one->report.loss);
        EXPECT_OK(dsc_trainer_check(many)); /* the same bits on all ranks */
        dsc_trainer_destroy(&many);
    }
    dsc_trainer_destroy(&one);
    dsc_trainer_destroy(&start);
}

static void test_equal(void **state) {
    (void)state;
    check_equal(1, DSC_FISHER_EMPIRICAL, 1);
    check_equal(2, DSC_FISHER_EMPIRICAL, 2);
    check_equal(1, DSC_FISHER_SAMPLED, 4); /* labels depend on sample and step alone */
    all_fine(comm);
}

static int ends_in(const char *name, const char *end) {
    size_t a = strlen(name), b = strlen(end);
    return a >= b && strcmp(name + a - b, end) == 0;
}

/* The sum of all eigenvalues of the factors G of a trainer on one rank. */
static double trace_of(dsc_trainer *t) {
    double sum = 0;
    for (int64_t i = 0; i < dsc_kfac_state_count(t->kfac); i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(t->kfac)[i];
        float values[256];
        if (!ends_in(e->name, ".G.values"))
            continue;
        EXPECT(e->ndim == 1 && e->dtype == DSC_F32 && e->dim[0] <= 256);
        EXPECT_OK(dsc_kfac_state_get(t->kfac, t->queue, i, values));
        for (int64_t k = 0; k < e->dim[0]; k++)
            sum += values[k];
    }
    return sum;
}

/* Masked tokens: rows without a label have no gradient, also where labels are drawn, and a token's label does not
 * depend on the rank that draws it. Returns the sum of the eigenvalues of all G. */
static double check_masked(dsc_fisher fisher) {
    enum { TEXT = 4000, CONTEXT = 8 };
    dsc_train_options o;
    char data[SCRATCH_SIZE + 32], name[32], text[TEXT];
    for (int i = 0; i < TEXT; i++)
        text[i] = (char)('a' + i * i / 7 % 11);
    snprintf(name, sizeof name, "text-%d", rank);
    scratch_write(scratch_path(directory, name), text, TEXT);
    snprintf(data, sizeof data, "text:%s", scratch_path(directory, name));
    kfac_options(&o, NULL);
    o.model = "bert-base:layers=1,heads=2,width=8,dropout=0";
    o.data = data;
    o.context = CONTEXT;
    o.mask = 0.3;
    o.kfac_fisher = fisher;
    kfac_of(&o)->stat_decay = 0.01; /* hardly anything is left of the identity that averages begin with */
    dsc_trainer *many = stepped(comm, &o, STEPS);
    o.batch_size = BATCH * ranks;
    dsc_trainer *start = stepped(alone, &o, 0), *one = stepped(alone, &o, STEPS);
    double most = limit(one, condition_of(one)), apart = distance(many, one, start);
    if (!(apart <= most))
        fprintf(stderr, "masked, %s: distance %g, limit %g\n", dsc_fisher_name(fisher), apart, most);
    EXPECT(apart <= most);
    EXPECT_OK(dsc_trainer_check(many));
    double trace = trace_of(one);
    dsc_trainer_destroy(&one);
    dsc_trainer_destroy(&start);
    dsc_trainer_destroy(&many);
    return trace;
}

static void test_masked(void **state) {
    (void)state;
    const double given = check_masked(DSC_FISHER_EMPIRICAL), drawn = check_masked(DSC_FISHER_SAMPLED);
    if (!(drawn > given / 1.8 && drawn < given * 1.8))
        fprintf(stderr, "traces of G: %g of labels that are given, %g of drawn ones\n", given, drawn);
    /* Gradients of an untrained model hardly depend on the label; with labels in all rows G would be several times as
     * large. */
    EXPECT(drawn > given / 1.8 && drawn < given * 1.8);
    all_fine(comm);
}

/* ---- factors ---- */

/* |a - scale b| / |a| of an entry of the state; rank 0 compares. Collective. */
static double entry_distance(dsc_trainer *a, dsc_trainer *b, int64_t index, double scale) {
    static float x[200000], y[200000];
    double apart = 0, size = 0;
    const dsc_kfac_entry *e = &dsc_kfac_state_entries(a->kfac)[index];
    int64_t count = e->dim[0];
    EXPECT(e->ndim == 1 && e->dtype == DSC_F32 && count <= 200000);
    EXPECT_OK(dsc_kfac_state_get(a->kfac, a->queue, index, rank == 0 ? x : NULL));
    EXPECT_OK(dsc_kfac_state_get(b->kfac, b->queue, index, y));
    for (int64_t i = 0; rank == 0 && i < count; i++) {
        apart += pow(x[i] - scale * y[i], 2);
        size += pow(x[i], 2);
    }
    return rank == 0 ? sqrt(apart / size) : 0;
}

/* With a decay of 0 the average is the batch factor. In the paper's scaling A and G of p ranks are those of
 * the whole batch. In kfac-pytorch's G is not: it lacks the correction for the mean that g is taken of, so
 * the ranks' is p^2 times as large. */
static void check_factors(dsc_kfac_scaling scaling, double g_scale) {
    dsc_train_options o;
    kfac_options(&o, NULL);
    kfac_of(&o)->stat_decay = 0;
    kfac_of(&o)->scaling = scaling;
    dsc_trainer *many = stepped(comm, &o, 1);
    o.batch_size = BATCH * ranks;
    dsc_trainer *one = stepped(alone, &o, 1);
    int compared = 0;
    double most = limit(one, 1);
    for (int64_t i = 0; i < dsc_kfac_state_count(one->kfac); i++) {
        const char *name = dsc_kfac_state_entries(one->kfac)[i].name;
        if (!ends_in(name, ".A") && !ends_in(name, ".G"))
            continue;
        EXPECT(entry_distance(many, one, i, ends_in(name, ".G") ? g_scale : 1) <= most);
        compared++;
    }
    EXPECT(compared == 10);
    dsc_trainer_destroy(&one);
    dsc_trainer_destroy(&many);
}

static void test_factors(void **state) {
    (void)state;
    check_factors(DSC_KFAC_PAPER, 1);
    check_factors(DSC_KFAC_PYTORCH, (double)ranks * ranks);
    all_fine(comm);
}

/* ---- stop and resume ---- */

static void check_resume(const recipe *r) {
    char whole[SCRATCH_SIZE], parts[SCRATCH_SIZE], name[64];
    dsc_train_options o;
    snprintf(name, sizeof name, "%s-whole", r->name);
    kfac_options(&o, folder(name, whole));
    follow(r, &o);
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    snprintf(name, sizeof name, "%s-parts", r->name);
    o.out = folder(name, parts);
    o.steps = 2; /* decompositions are made in steps 1, 4, 7 */
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    o.resume = "auto";
    o.steps = 5;
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    o.steps = 0;
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    EXPECT_OK(dsc_comm_barrier(comm));
    EXPECT(runs_differences(whole, parts, 8) == 0);
}

static void test_resume(void **state) {
    (void)state;
    for (int i = 0; i < RECIPES; i += 2) /* comm-opt, mem-opt, hybrid-opt */
        if (ranks % recipes[i].ranks == 0)
            check_resume(&recipes[i]);
    all_fine(comm);
}

/* Continues from the checkpoint of step 2, which another strategy wrote, to the step of `whole`. */
static void go_on(dsc_comm *with, dsc_train_options *o, const recipe *r, const dsc_trainer *start,
                  const dsc_trainer *whole, double most) {
    dsc_trainer *t = NULL;
    follow(r, o);
    EXPECT_OK(dsc_trainer_create_named(with, device, o, &t));
    EXPECT_OK(dsc_trainer_begin(t));
    EXPECT(t->state.step == 2);
    for (int i = 2; i < STEPS; i++)
        EXPECT_OK(dsc_trainer_step(t, NULL));
    double apart = distance(t, whole, start);
    if (!(apart <= most))
        fprintf(stderr, "%s: distance %g, limit %g\n", r->name, apart, most);
    EXPECT(apart <= most);
    dsc_trainer_destroy(&t);
}

static void test_other_ranks(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], file[SCRATCH_SIZE];
    dsc_train_options o;
    kfac_options(&o, NULL);
    dsc_trainer *start = stepped(comm, &o, 0), *whole = stepped(comm, &o, STEPS);
    double most = limit(whole, condition_of(whole));
    o.out = folder("others", out);
    o.steps = 2;
    follow(&recipes[2], &o); /* mem-opt */
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    EXPECT_OK(dsc_comm_barrier(comm));
    snprintf(file, sizeof file, "%s", scratch_path(out, "checkpoint-2.safetensors"));
    o.out = NULL;
    o.resume = file;
    o.steps = 0;
    for (int i = 0; i < RECIPES; i++)
        if (ranks % recipes[i].ranks == 0)
            go_on(comm, &o, &recipes[i], start, whole, most);
    o.batch_size = BATCH * ranks;
    go_on(alone, &o, &recipes[0], start, whole, most);
    dsc_trainer_destroy(&whole);
    dsc_trainer_destroy(&start);
    EXPECT_OK(dsc_comm_barrier(comm));
    all_fine(comm);
}

/* ---- failures ---- */

/* The loss is found not to be finite while factors are under way. */
static void test_not_finite(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    kfac_options(&o, NULL);
    o.lr = 1e30;
    kfac_of(&o)->kl_clip = 0;
    EXPECT_FAILS(DSC_E_NUMERIC, "step", dsc_train_run(comm, device, &o, &result));
    EXPECT(result.steps >= 1);
    all_fine(comm);
}

static void test_refused(void **state) {
    (void)state;
    dsc_train_options o;
    kfac_options(&o, NULL);
    kfac_of(&o)->strategy = DSC_KFAC_HYBRID_OPT;
    kfac_of(&o)->grad_worker_fraction = 0.4;
    EXPECT_FAILS(DSC_E_INVALID, "0.4", dsc_train_run(comm, device, &o, NULL));
    kfac_options(&o, NULL);
    kfac_of(&o)->strategy = DSC_KFAC_MEM_OPT;
    kfac_of(&o)->colocate_factors = 0;
    EXPECT_FAILS(DSC_E_INVALID, "mem-opt", dsc_train_run(comm, device, &o, NULL));
    kfac_options(&o, NULL);
    if (rank == ranks - 1) /* on one rank alone */
        kfac_of(&o)->damping = 0;
    EXPECT_FAILS(DSC_E_INVALID, "damping 0", dsc_train_run(comm, device, &o, NULL));
    all_fine(comm);
}

static void open_all(void) {
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    assert_ok(dsc_comm_create(&options, &comm));
    runs_open_exact(&alone, &device);
    assert_ok(dsc_queue_create(device, &queue));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    if (rank == 0)
        scratch_make(directory);
    assert_ok(dsc_comm_use_queue(comm, queue));
    assert_ok(dsc_share_bytes(comm, queue, directory, sizeof directory));
}

/* The damping is adapted alike on all ranks, under every strategy as on one rank of the whole batch. */
static void test_adapted_damping(void **state) {
    (void)state;
    dsc_train_options o;
    kfac_options(&o, NULL);
    o.kfac_damping_adapt = 2;
    o.batch_size = BATCH * ranks;
    dsc_trainer *one = stepped(alone, &o, STEPS);
    EXPECT(one && one->state.damping_factor != 1);
    o.batch_size = BATCH;
    for (int i = 0; i < RECIPES; i++) {
        if (ranks % recipes[i].ranks)
            continue;
        follow(&recipes[i], &o);
        dsc_trainer *many = stepped(comm, &o, STEPS);
        EXPECT(many && fabs(many->state.damping_factor - one->state.damping_factor) <= 1e-12);
        EXPECT_OK(dsc_trainer_check(many));
        dsc_trainer_destroy(&many);
    }
    dsc_trainer_destroy(&one);
    all_fine(comm);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapted_damping), cmocka_unit_test(test_equal),
        cmocka_unit_test(test_masked),          cmocka_unit_test(test_factors),
        cmocka_unit_test(test_resume),          cmocka_unit_test(test_other_ranks),
        cmocka_unit_test(test_not_finite),      cmocka_unit_test(test_refused),
    };
    if (argc > 1) /* only tests whose names are like this */
        cmocka_set_test_filter(argv[1]);
    chosen_or_skip();
    start_watchdog(WATCHDOG_S);
    open_all();
    silence_other_ranks(comm);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (rank == 0)
        scratch_remove(directory);
    dsc_comm_destroy(&alone);
    dsc_comm_destroy(&comm);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return failed;
}

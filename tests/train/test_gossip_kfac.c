/* Gossip and K-FAC: factors of all ranks, of peers, of each rank alone; resuming with the same bits, and from files of
 * other algorithms, numbers of ranks and scopes; damaged files; refused options. */
#include "train/test_gossip.h"

#include "base/rng.h"
#include "device/ops.h"
#include "train/checkpoint.h"

static const dsc_kfac_scope scopes[] = {DSC_SCOPE_GLOBAL, DSC_SCOPE_GOSSIP, DSC_SCOPE_LOCAL};
static const way plain = {"allreduce", DSC_CONSENSUS_ALLREDUCE, 0, 1, NULL};

/* lenet, 8 steps. */
static void kfac_options(dsc_train_options *o, const way *w, dsc_kfac_scope scope, const char *out) {
    gossip_options(o, w, out);
    kfac_of(o)->update_freq = 3;
    kfac_of(o)->damping = 0.1;
    o->kfac_scope = scope;
}

/* ---- training ---- */

typedef struct heard {
    int waits;
} heard;

static void listen(void *context, const dsc_progress *progress) {
    heard *h = context;
    if (progress->kind == DSC_EVENT_NOTE && strstr(progress->text, "every step waits for everybody"))
        h->waits++;
}

/* Losses fall; a note reports steps that wait; bytes of the factors are those of the scope. */
static void check_learns(const way *w, dsc_kfac_scope scope) {
    char out[SCRATCH_SIZE], name[64];
    dsc_train_options o;
    heard notes = {0};
    snprintf(name, sizeof name, "learn-%s-%s", w->name, dsc_kfac_scope_name(scope));
    kfac_options(&o, w, scope, folder(name, out));
    o.epochs = 6; /* 24 steps */
    o.lr = 0.1;
    o.augment = 0;
    kfac_of(&o)->kl_clip = 0.02;
    o.checkpoint_every = -1;
    o.progress = listen;
    o.progress_context = &notes;
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    if (rank != 0)
        return;
    EXPECT(notes.waits == (scope == DSC_SCOPE_GLOBAL && ranks > 1));
    json_t *lines = runs_lines(out);
    double first = number(runs_line(lines, "epoch", 0), "loss"),
           last = number(runs_line(lines, "epoch", 5), "loss");
    if (!(last < 0.5 * first))
        fprintf(stderr, "%s: loss %g, then %g\n", name, first, last);
    EXPECT(last < 0.5 * first);
    EXPECT(runs_count(lines, "kfac") == 8);
    double sent = 0;
    for (int i = 0; i < 24; i++)
        sent += number(runs_line(lines, "step", i), "factors");
    EXPECT((sent > 0) == (ranks > 1 && scope != DSC_SCOPE_LOCAL));
    EXPECT(scope == DSC_SCOPE_GLOBAL || number(runs_line(lines, "step", 3), "decompositions") == 0);
    json_decref(lines);
}

static void test_learns(void **state) {
    (void)state;
    for (int i = 0; i < WAYS; i++)
        for (int j = 0; j < 3; j++)
            if (possible(&ways[i]) && (i == 0 || (i >= 3 && j == 1)))
                check_learns(&ways[i], scopes[j]);
    all_fine(comm);
}

/* When all ranks are peers, running factors that are mixed before every update are those of a common K-FAC, except for
 * the batch that is still under way. With a decay of 1 updates change nothing: the factors stay exactly the average of
 * the ranks' initial ones. */
static void test_factors_mix(void **state) {
    (void)state;
    dsc_train_options o;
    kfac_options(&o, &ways[0], DSC_SCOPE_GOSSIP, NULL);
    consensus_of(&o)->graph = "complete";
    kfac_of(&o)->stat_decay = 1;
    dsc_trainer *t = stepped(comm, &o, 0);
    dsc_tensor averages = *dsc_kfac_averages(t->kfac);
    int64_t count = dsc_tensor_count(&averages);
    float *values = runs_read(t->queue, &averages);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(rank + 1) * (float)(i % 8 == 0); /* on the diagonal or not: never decomposed */
    EXPECT_OK(dsc_tensor_upload(t->queue, values, dsc_tensor_bytes(&averages), &averages));
    EXPECT_OK(dsc_queue_sync(t->queue));
    if (t->factors) {
        EXPECT_OK(dsc_factors_take(t->factors, t->queue, 1)); /* nothing is under way */
        EXPECT_OK(dsc_factors_send(t->factors, t->queue));
        EXPECT_OK(dsc_factors_settle(t->factors, t->queue));
    }
    float *mixed = runs_read(t->queue, &averages);
    double mean = (ranks + 1) / 2.0, worst = 0;
    for (int64_t i = 0; i < count; i++)
        worst = fmax(worst, fabs(mixed[i] - mean * (i % 8 == 0)));
    EXPECT(worst <= ranks * ranks * 0x1p-23); /* shares of 1/3 are rounded */
    free(mixed);
    free(values);
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

static void set_factors(dsc_trainer *t, float value) {
    dsc_tensor averages = *dsc_kfac_averages(t->kfac);
    EXPECT_OK(dsc_op_fill(t->queue, value, &averages));
    EXPECT_OK(dsc_queue_sync(t->queue));
}

/* Rank 0 sends long before the others, and its factors change from 1 to 2 in the meantime, by an update with a decay of
 * 1/2. So the mean M counts half, too: 2 + (M - 1) / 2. The messages of the other ranks are not late. */
static void test_late(void **state) {
    (void)state;
    dsc_train_options o;
    kfac_options(&o, &ways[3], DSC_SCOPE_GOSSIP, NULL);
    consensus_of(&o)->graph = "complete";
    kfac_of(&o)->stat_decay = 0.5;
    if (ranks == 1)
        return;
    dsc_trainer *t = stepped(comm, &o, 1);
    dsc_tensor averages = *dsc_kfac_averages(t->kfac);
    set_factors(t, (float)(rank + 1));
    if (rank == 0) {
        EXPECT_OK(dsc_factors_send(t->factors, t->queue));
        EXPECT_OK(dsc_factors_take(t->factors, t->queue, 1)); /* nothing is there */
        EXPECT_OK(dsc_factors_take(t->factors, t->queue, 0)); /* nor here; no move, so no decay */
        set_factors(t, 2);
        EXPECT_OK(dsc_factors_send(t->factors, t->queue)); /* the first is under way: none */
    }
    EXPECT_OK(dsc_comm_barrier(comm));
    if (rank > 0)
        EXPECT_OK(dsc_factors_send(t->factors, t->queue));
    EXPECT_OK(dsc_factors_settle(t->factors, t->queue));
    float *mixed = runs_read(t->queue, &averages);
    double mean = (ranks + 1) / 2.0, wanted = rank == 0 ? 2 + (mean - 1) / 2 : mean, worst = 0;
    for (int64_t i = 0; i < dsc_tensor_count(&averages); i++)
        worst = fmax(worst, fabs(mixed[i] - wanted));
    EXPECT(worst <= (ranks == 3 ? 9 * 0x1p-23 : 0)); /* shares of 1/3 are rounded */
    free(mixed);
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

/* Rank 0 has begun a round, the others have not: settling makes them take part with their present factors. Afterwards
 * nothing is under way, and settling again changes no bit. */
static void test_settle(void **state) {
    (void)state;
    dsc_train_options o;
    kfac_options(&o, &ways[0], DSC_SCOPE_GOSSIP, NULL);
    consensus_of(&o)->graph = "complete";
    if (ranks == 1)
        return;
    dsc_trainer *t = stepped(comm, &o, 0);
    dsc_tensor averages = *dsc_kfac_averages(t->kfac);
    set_factors(t, (float)(rank + 1));
    if (rank == 0)
        EXPECT_OK(dsc_factors_send(t->factors, t->queue));
    EXPECT_OK(dsc_factors_settle(t->factors, t->queue));
    float *mixed = runs_read(t->queue, &averages);
    double mean = (ranks + 1) / 2.0, worst = 0;
    for (int64_t i = 0; i < dsc_tensor_count(&averages); i++)
        worst = fmax(worst, fabs(mixed[i] - mean));
    EXPECT(worst <= (ranks == 3 ? 9 * 0x1p-23 : 0)); /* shares of 1/3 are rounded */
    EXPECT_OK(dsc_factors_settle(t->factors, t->queue));
    float *again = runs_read(t->queue, &averages);
    EXPECT(memcmp(mixed, again, dsc_tensor_bytes(&averages)) == 0);
    free(again);
    free(mixed);
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

/* No collective in a step: parameters, factors and the headers of their messages leave the rank, and nothing
 * else. */
static void test_bytes(void **state) {
    (void)state;
    dsc_train_options o;
    for (int i = 1; i < 3 && ranks > 1; i++) {
        kfac_options(&o, &ways[0], scopes[i], NULL);
        dsc_trainer *t = stepped(comm, &o, 4); /* the last decomposes */
        const uint64_t *bytes = t->report.bytes;
        uint64_t factors = dsc_tensor_bytes(dsc_kfac_averages(t->kfac));
        EXPECT(bytes[DSC_TRAFFIC_PARAMETERS] == (uint64_t)(4 * dsc_model_parameter_total(t->model)));
        EXPECT(bytes[DSC_TRAFFIC_FACTORS] == (scopes[i] == DSC_SCOPE_GOSSIP ? factors : 0));
        EXPECT(bytes[DSC_TRAFFIC_OTHER] <= 128);
        EXPECT(bytes[DSC_TRAFFIC_DECOMPOSITIONS] == 0 && bytes[DSC_TRAFFIC_PRECONDITIONED] == 0);
        dsc_trainer_destroy(&t);
    }
    all_fine(comm);
}

/* ---- resuming ---- */

/* A run stopped after `steps` of 8 steps and resumed gives the bits of a run that was never stopped. */
static void check_stopped(dsc_train_options *o, int64_t steps, const char *label) {
    char whole[SCRATCH_SIZE], parts[SCRATCH_SIZE], name[96];
    o->out = folder(label, whole);
    EXPECT_OK(dsc_train_run(comm, device, o, NULL));
    snprintf(name, sizeof name, "%s-parts", label);
    o->out = folder(name, parts);
    o->steps = steps;
    EXPECT_OK(dsc_train_run(comm, device, o, NULL));
    o->resume = "auto";
    o->steps = 0;
    EXPECT_OK(dsc_train_run(comm, device, o, NULL));
    EXPECT_OK(dsc_comm_barrier(comm));
    EXPECT(runs_differences(whole, parts, 8) == 0);
}

static void check_resume(const way *w, dsc_kfac_scope scope) {
    char name[64];
    dsc_train_options o;
    snprintf(name, sizeof name, "%s-%s", w->name, dsc_kfac_scope_name(scope));
    kfac_options(&o, w, scope, NULL);
    check_stopped(&o, 3, name);
}

static void test_resume(void **state) {
    (void)state;
    for (int j = 0; j < 3; j++)
        check_resume(&ways[0], scopes[j]);
    check_resume(&ways[2], DSC_SCOPE_GOSSIP);
    all_fine(comm);
}

/* Factors are cut into blocks from epoch 1 (step 4) on. Before, the file's list of entries differs from that of a new
 * K-FAC. Decompositions are in steps 0, 3, 6. */
static void test_resume_blocks(void **state) {
    (void)state;
    static const int64_t stops[] = {1, 7};
    for (int i = 0; i < 2; i++) {
        for (int j = 1; j < 3; j++) {
            char name[64];
            dsc_train_options o;
            snprintf(name, sizeof name, "blocks-%d-%s", (int)stops[i], dsc_kfac_scope_name(scopes[j]));
            kfac_options(&o, &ways[0], scopes[j], NULL);
            kfac_of(&o)->diag_blocks = 2;
            o.kfac_diag_warmup = 1;
            check_stopped(&o, stops[i], name);
        }
    }
    all_fine(comm);
}

/* Factors are updated in steps 0, 2, 4, 6; step 3 decomposes the result of the update before it, whether or not there
 * was a synchronisation point in between. */
static void test_resume_between(void **state) {
    (void)state;
    dsc_train_options o;
    kfac_options(&o, &ways[0], DSC_SCOPE_GOSSIP, NULL);
    kfac_of(&o)->factor_freq = 2;
    check_stopped(&o, 3, "between");
    all_fine(comm);
}

/* Continues from the file of a different run: all ranks start from the model file, with weights of 1. */
static void check_other(dsc_comm *with, const char *file, const way *w, dsc_kfac_scope scope) {
    dsc_train_options o;
    dsc_trainer *t = NULL;
    kfac_options(&o, w, scope, NULL);
    o.resume = file;
    EXPECT_OK(dsc_trainer_create_named(with, device, &o, &t));
    EXPECT_OK(dsc_trainer_begin(t));
    EXPECT(t->state.step == 3);
    dsc_st_reader *reader = NULL;
    EXPECT_OK(dsc_st_open(file, &reader));
    const dsc_param *last = &dsc_model_params(t->model)[dsc_model_param_count(t->model) - 1];
    const dsc_st_tensor *saved = reader ? dsc_st_find(reader, last->name) : NULL; /* a bias: never turned */
    EXPECT(saved && saved->bytes == dsc_tensor_bytes(&last->value));
    if (saved) {
        char *there = malloc(saved->bytes), *here = runs_read(t->queue, &last->value);
        EXPECT_OK(dsc_st_read(reader, saved, there, saved->bytes));
        EXPECT(memcmp(there, here, saved->bytes) == 0);
        free(there);
        free(here);
    }
    dsc_st_close(&reader);
    EXPECT(t->state.loss_rows == (dsc_comm_rank(with) == 0 || t->collective ? 3 * 4 * ranks : 0));
    EXPECT_OK(dsc_trainer_step(t, NULL));
    EXPECT_OK(dsc_trainer_collect(t));
    EXPECT(isfinite(t->report.loss));
    if (!t->collective) {
        double mass = 0;
        EXPECT_OK(dsc_sync_synchronise(t));
        EXPECT_OK(dsc_consensus_mass(t->consensus, &mass));
        EXPECT(mass == dsc_comm_size(with));
    }
    dsc_trainer_destroy(&t);
}

static void test_other(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], file[SCRATCH_SIZE], name[64];
    dsc_train_options o;
    const struct {
        const way *w;
        dsc_kfac_scope scope;
    } writers[] = {{&ways[0], DSC_SCOPE_LOCAL}, {&ways[1], DSC_SCOPE_GOSSIP}, {&plain, DSC_SCOPE_GLOBAL}};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "other-%s", writers[i].w->name);
        kfac_options(&o, writers[i].w, writers[i].scope, folder(name, out));
        o.steps = 3;
        EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
        EXPECT_OK(dsc_comm_barrier(comm));
        snprintf(file, sizeof file, "%s", scratch_path(out, "checkpoint-3.safetensors"));
        check_other(comm, file, &plain, DSC_SCOPE_GLOBAL);
        check_other(comm, file, &ways[2], DSC_SCOPE_GOSSIP);
        check_other(comm, file, &ways[2], DSC_SCOPE_GLOBAL);
        if (ranks > 1) { /* else the first writer goes on exactly */
            check_other(alone, file, &ways[0], DSC_SCOPE_LOCAL);
            check_other(alone, file, &plain, DSC_SCOPE_GLOBAL);
        }
        EXPECT_OK(dsc_comm_barrier(comm));
    }
    all_fine(comm);
}

/* ---- damaged files ---- */

static dsc_status load(dsc_trainer *t, const char *file) {
    dsc_train_state fresh;
    dsc_train_state_init(&fresh);
    t->state = fresh;
    dsc_snapshot s = {.comm = t->comm,
                      .queue = t->queue,
                      .model = t->model,
                      .optim = t->optim,
                      .kfac = t->kfac,
                      .options = &t->options,
                      .samples = t->info.count,
                      .state = &t->state,
                      .gossip = t->consensus,
                      .kfac_alone = 1};
    return dsc_checkpoint_load(&s, file, NULL);
}

/* One rank, a model of a few numbers: flips hit headers, names and numbers of all parts. */
static void test_fuzz(void **state) {
    (void)state;
    enum { TRIES = 300 };
    char out[SCRATCH_SIZE], name[32], file[SCRATCH_SIZE], victim[SCRATCH_SIZE];
    dsc_train_options o;
    snprintf(name, sizeof name, "fuzz-%d", rank);
    kfac_options(&o, &ways[0], DSC_SCOPE_LOCAL, folder(name, out));
    kfac_of(&o)->skip_layers = "conv fc1 fc2"; /* small factors only */
    o.steps = 2;
    assert_ok(dsc_train_run(alone, device, &o, NULL));
    snprintf(file, sizeof file, "%s", scratch_path(out, "checkpoint-2.safetensors"));
    snprintf(victim, sizeof victim, "%s", scratch_path(out, "checkpoint-2.state.safetensors"));
    size_t size;
    char *good = scratch_read(victim, &size), *bad = malloc(size);
    o.out = NULL;
    dsc_trainer *t = NULL;
    EXPECT_OK(dsc_trainer_create_named(alone, device, &o, &t));
    EXPECT_OK(load(t, file));
    int refused = 0;
    uint64_t header = 0;
    memcpy(&header, good, 8);
    for (uint64_t i = 0; i < TRIES && rank == 0; i++) {
        dsc_rng rng = dsc_rng_start(3, DSC_RNG_TEST, 0, i);
        size_t length = i % 4 == 0 ? dsc_rng_below(&rng, (uint32_t)size) : size;
        uint32_t within = (uint32_t)(i % 2 ? header + 1024 : size); /* the numbers of 8 bytes come first */
        memcpy(bad, good, size);
        for (uint32_t flips = 1 + dsc_rng_below(&rng, 4); flips > 0; flips--)
            bad[dsc_rng_below(&rng, within)] ^= (char)(1 << dsc_rng_below(&rng, 8));
        scratch_write(victim, bad, length);
        dsc_status status = load(t, file);
        EXPECT(status == DSC_OK || status == DSC_E_FORMAT || status == DSC_E_INVALID);
        refused += status != DSC_OK;
    }
    EXPECT(rank > 0 || refused > TRIES / 4);
    free(good);
    free(bad);
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

/* Rewrites one tensor of a state file in place, and removes the check sums, which would reveal the change. */
static void overwrite(const char *file, const char *name, size_t index, double value) {
    dsc_st_reader *reader = NULL;
    size_t size;
    uint64_t header;
    assert_ok(dsc_st_open(file, &reader));
    const dsc_st_tensor *t = dsc_st_find(reader, name);
    assert_non_null(t);
    char *all = scratch_read(file, &size);
    memcpy(&header, all, sizeof header);
    memcpy(all + 8 + header + t->offset + index * sizeof value, &value, sizeof value);
    scratch_write(file, all, size);
    free(all);
    dsc_st_close(&reader);
    scratch_forget_sums(file);
}

/* Invalid values are refused with the name of their file, on all ranks. */
static void test_damaged(void **state) {
    (void)state;
    static const struct {
        const char *tensor;
        size_t index;
        double value;
        const char *message;
        int ranks; /* at least */
    } cases[] = {
        {"rank.0.train", 0, NAN, "is damaged", 1},
        {"rank.0.train", 2, 0.5, "is damaged: number 2 of 'rank.0.train' is 0.5: it must be", 1},
        {"rank.0.consensus", 0, NAN, "is damaged", 1},
        {"rank.0.consensus", 0, -1, "is damaged", 1},
        {"rank.0.consensus", 0, 0, "is damaged", 1},
        {"rank.1.consensus", 1, 5, "is damaged: rank 1 has 5 rounds of gossip, rank 0 has 2", 2},
    };
    char out[SCRATCH_SIZE], file[SCRATCH_SIZE];
    dsc_train_options o;
    size_t size = 0;
    char *good = NULL;
    gossip_options(&o, &ways[0], folder("damaged", out));
    o.steps = 2;
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    snprintf(file, sizeof file, "%s", scratch_path(out, "checkpoint-2.state.safetensors"));
    if (rank == 0)
        good = scratch_read(file, &size);
    o.resume = "auto";
    o.steps = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (ranks < cases[i].ranks)
            continue;
        if (rank == 0)
            overwrite(file, cases[i].tensor, cases[i].index, cases[i].value);
        EXPECT_OK(dsc_comm_barrier(comm));
        dsc_status status = dsc_train_run(comm, device, &o, NULL);
        EXPECT(status == DSC_E_FORMAT || status == DSC_E_INVALID);
        if (rank == 0) {
            EXPECT(strstr(dsc_error_message(), cases[i].message) != NULL);
            scratch_write(file, good, size);
        }
        EXPECT_OK(dsc_comm_barrier(comm));
    }
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    free(good);
    all_fine(comm);
}

/* ---- refusals ---- */

static void test_refused(void **state) {
    (void)state;
    dsc_train_options o;
    kfac_options(&o, &plain, DSC_SCOPE_LOCAL, NULL);
    EXPECT_FAILS(DSC_E_INVALID, "kfac-scope local does not go with consensus allreduce",
                 dsc_train_run(comm, device, &o, NULL));
    if (ranks > 1) {
        kfac_options(&o, &ways[0], DSC_SCOPE_GLOBAL, NULL);
        kfac_of(&o)->strategy = DSC_KFAC_MEM_OPT;
        EXPECT_FAILS(DSC_E_INVALID, "use comm-opt, or scope gossip or local",
                     dsc_train_run(comm, device, &o, NULL));
        kfac_options(&o, &ways[3], DSC_SCOPE_GLOBAL, NULL);
        EXPECT_FAILS(DSC_E_INVALID, "scope global with synch_freq 2", dsc_train_run(comm, device, &o, NULL));
        kfac_options(&o, &ways[0], DSC_SCOPE_GOSSIP, NULL);
        consensus_of(&o)->group = ranks;
        EXPECT_FAILS(DSC_E_INVALID, "groups of 1", dsc_train_run(comm, device, &o, NULL));
    }
    kfac_options(&o, &ways[0], DSC_SCOPE_GOSSIP, NULL);
    kfac_of(&o)->factor_dtype = DSC_BF16;
    EXPECT_FAILS(DSC_E_INVALID, "use fp32", dsc_train_run(comm, device, &o, NULL));
    o.kfac_scope = (dsc_kfac_scope)3;
    EXPECT_FAILS(DSC_E_INVALID, "kfac-scope 3 is unknown: choose one of global, gossip, local",
                 dsc_train_run(comm, device, &o, NULL));
    gossip_options(&o, &ways[0], NULL);
    o.peers_count = 2;
    o.peers_values[0] = o.peers_values[1] = 1;
    EXPECT_FAILS(DSC_E_INVALID, "peers-schedule 0:1: epochs must rise",
                 dsc_train_run(comm, device, &o, NULL));
    o.peers_epochs[1] = 1;
    o.peers_values[1] = 0;
    EXPECT_FAILS(DSC_E_INVALID,
                 "peers-schedule 1:0: epochs must rise, from 0 on, and the numbers be 1 at least",
                 dsc_train_run(comm, device, &o, NULL));
    o.peers_epochs[1] = 1000; /* found at once all the same */
    o.peers_values[1] = ranks;
    if (ranks > 1)
        EXPECT_FAILS(DSC_E_INVALID, "peers", dsc_train_run(comm, device, &o, NULL));
    consensus_of(&o)->kind = DSC_CONSENSUS_ALLREDUCE;
    EXPECT_FAILS(DSC_E_INVALID, "peers-schedule does not go with consensus allreduce",
                 dsc_train_run(comm, device, &o, NULL));
    gossip_options(&o, &ways[0], NULL);
    o.distance_every = -1;
    EXPECT_FAILS(DSC_E_INVALID, "distance-every -1: must be at least 0",
                 dsc_train_run(comm, device, &o, NULL));
    dsc_kfac_scope scope = DSC_SCOPE_GLOBAL;
    EXPECT_OK(dsc_kfac_scope_parse("gossip", &scope));
    EXPECT(scope == DSC_SCOPE_GOSSIP && strcmp(dsc_kfac_scope_name(DSC_SCOPE_LOCAL), "local") == 0);
    EXPECT_FAILS(DSC_E_INVALID, "choose one of global, gossip, local", dsc_kfac_scope_parse("all", &scope));
    if (ranks == 3) {
        gossip_options(&o, &ways[4], NULL);
        EXPECT_FAILS(DSC_E_INVALID, "", dsc_train_run(comm, device, &o, NULL));
    }
    all_fine(comm);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),        cmocka_unit_test(test_factors_mix),
        cmocka_unit_test(test_resume),        cmocka_unit_test(test_other),
        cmocka_unit_test(test_fuzz),          cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_late),          cmocka_unit_test(test_settle),
        cmocka_unit_test(test_resume_blocks), cmocka_unit_test(test_resume_between),
    };
    if (argc > 1) /* only tests whose names are like this */
        cmocka_set_test_filter(argv[1]);
    chosen_or_skip();
    start_watchdog(WATCHDOG_S);
    open_all();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_all();
    return failed;
}

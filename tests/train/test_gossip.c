/* Training by gossip: every algorithm learns, with one rank it is plain SGD, with all ranks as peers it is
 * all-reduce; synchronisation points, stopping, resuming, evaluations of the average and of every rank,
 * schedules of peers. */
#include "train/test_gossip.h"

#include <time.h>

/* ---- training ---- */

static void check_learns(const way *w) {
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    gossip_options(&o, w, folder(w->name, out));
    o.epochs = 16;
    o.lr = 0.01;
    o.augment = 0;
    o.eval_every = 16;
    o.distance_every = 20;
    o.checkpoint_every = -1;
    EXPECT_OK(dsc_train_run(comm, device, &o, &result));
    EXPECT(result.steps == 64 && result.epochs == 16);
    if (rank == 0) {
        json_t *lines = runs_lines(out);
        double first = number(runs_line(lines, "epoch", 0), "loss"),
               last = number(runs_line(lines, "epoch", 15), "loss");
        double share = w->exact ? 0.6 : 0.85; /* on a busy machine pairs meet seldom */
        if (!(last < share * first))
            fprintf(stderr, "%s: loss %g, then %g\n", w->name, first, last);
        EXPECT(last < share * first);
        EXPECT(last == result.train_loss);
        EXPECT(runs_count(lines, "consensus") == 3);
        for (int i = 0; i < 3; i++) {
            json_t *line = runs_line(lines, "consensus", i);
            EXPECT(number(line, "step") == 20 * (i + 1) && number(line, "epoch") == (20 * (i + 1) - 1) / 4);
            EXPECT(fabs(number(line, "mass") - ranks) < 1e-9);
            EXPECT(number(line, "distance") <= 0.2 * number(line, "norm"));
            /* Two ranks are equal after one round, and four after two: a synchronisation may make two rounds
             * without a step in between where messages may be late. */
            if (ranks != 2 && w->exact) {
                int as_expected = (ranks > 1) == (number(line, "distance") > 0);
                if (!as_expected)
                    fprintf(stderr, "%s: distance %g at step %g\n", w->name, number(line, "distance"),
                            number(line, "step"));
                EXPECT(as_expected);
            }
        }
        json_t *eval = runs_line(lines, "eval", 0);
        EXPECT(number(eval, "distance") >= 0 && number(eval, "norm") > 0);
        EXPECT(!json_object_get(eval, "ranks_top1_mean"));
        json_decref(lines);
    }
}

static void test_learns(void **state) {
    (void)state;
    for (int i = 0; i < WAYS; i++)
        if (possible(&ways[i]))
            check_learns(&ways[i]);
    all_fine(comm);
}

/* A single rank, which has no peers, gives the same bits as all-reduce. */
static void test_alone(void **state) {
    (void)state;
    dsc_train_options o;
    gossip_options(&o, &ways[0], NULL);
    consensus_of(&o)->kind = DSC_CONSENSUS_ALLREDUCE;
    dsc_trainer *plain = stepped(alone, &o, 7);
    dsc_tensor values = dsc_model_values(plain->model);
    float *wanted = runs_read(plain->queue, &values);
    for (int i = 0; i < WAYS; i++) {
        follow(&ways[i], &o);
        dsc_trainer *t = stepped(alone, &o, 7);
        values = dsc_model_values(t->model);
        float *got = runs_read(t->queue, &values);
        EXPECT(memcmp(wanted, got, dsc_tensor_bytes(&values)) == 0);
        EXPECT(t->state.loss_sum == plain->state.loss_sum);
        EXPECT(t->report.bytes[DSC_TRAFFIC_PARAMETERS] == 0);
        free(got);
        dsc_trainer_destroy(&t);
    }
    free(wanted);
    dsc_trainer_destroy(&plain);
    all_fine(comm);
}

/* When all ranks are peers they hold the average after every step, and a step of the average is one with the average
 * gradient, momentum and decay included: all-reduce up to rounding. The limit is that of p ranks compared with one. */
static void test_complete(void **state) {
    (void)state;
    enum { STEPS = 9 };
    dsc_train_options o;
    gossip_options(&o, &ways[0], NULL);
    consensus_of(&o)->kind = DSC_CONSENSUS_ALLREDUCE;
    dsc_trainer *start = stepped(comm, &o, 0), *all = stepped(comm, &o, STEPS);
    follow(&ways[0], &o);
    consensus_of(&o)->graph = "complete";
    dsc_trainer *t = stepped(comm, &o, STEPS);
    double limit = 8 * STEPS * sqrt((double)(4 * ranks * 1024)) * 0x1p-24, distance = 0, norm = 0;
    EXPECT(apart(t, all, start) <= limit);
    EXPECT_OK(dsc_consensus_distance(t->consensus, t->queue, &distance, &norm));
    EXPECT(distance <= limit * norm);
    EXPECT(fabs(t->summed_loss[0] - all->state.loss_sum) <= limit * all->state.loss_sum);
    EXPECT(t->summed_loss[1] == all->state.loss_rows);
    dsc_trainer_destroy(&t);
    dsc_trainer_destroy(&all);
    dsc_trainer_destroy(&start);
    all_fine(comm);
}

/* No collective in a step: nothing but k messages of parameters, and their headers, leaves the rank. */
static void test_bytes(void **state) {
    (void)state;
    dsc_train_options o;
    for (int k = 1; k <= 2 && k < ranks; k++) {
        gossip_options(&o, &ways[0], NULL);
        consensus_of(&o)->peers = k;
        dsc_trainer *t = stepped(comm, &o, 2);
        EXPECT(t->report.bytes[DSC_TRAFFIC_PARAMETERS] ==
               (uint64_t)(4 * k * dsc_model_parameter_total(t->model)));
        EXPECT(t->report.bytes[DSC_TRAFFIC_GRADIENTS] == 0);
        EXPECT(t->report.bytes[DSC_TRAFFIC_OTHER] <= (uint64_t)(64 * k));
        dsc_trainer_destroy(&t);
    }
    all_fine(comm);
}

/* ---- stop and resume ---- */

/* Rank 0 writes a graph on which weights are not 1: all ranks send to rank 0, which sends half of its own values to
 * all. */
static const char *star(char path[SCRATCH_SIZE]) {
    char text[1024];
    int used = snprintf(text, sizeof text, "ranks %d\nstep\n", ranks);
    for (int r = 1; r < ranks; r++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%d 0\n", r);
    used += snprintf(text + used, sizeof text - (size_t)used, "step\n");
    for (int r = 1; r < ranks; r++)
        used += snprintf(text + used, sizeof text - (size_t)used, "0 %d %.6f\n", r, 0.5 / (ranks - 1));
    folder("star.graph", path);
    if (rank == 0)
        scratch_write(path, text, (size_t)used);
    EXPECT_OK(dsc_comm_barrier(comm));
    return path;
}

/* A request of the last rank ends all of them at the next synchronisation point, which is step 3, in the
 * middle of an epoch. The resumed run gives the same bits as one that was never stopped. */
static void check_resume(const way *w, dsc_train_options *o) {
    char whole[SCRATCH_SIZE], parts[SCRATCH_SIZE], name[64];
    dsc_train_result result = {.size = sizeof result};
    snprintf(name, sizeof name, "%s-whole", w->name);
    o->out = folder(name, whole);
    if (w->exact)
        EXPECT_OK(dsc_train_run(comm, device, o, NULL));
    o->checkpoint_every = 3;
    snprintf(name, sizeof name, "%s-parts", w->name);
    o->out = folder(name, parts);
    if (rank == ranks - 1)
        dsc_train_request_stop();
    EXPECT_FAILS(DSC_E_INTERRUPTED, "checkpoint-", dsc_train_run(comm, device, o, &result));
    int sooner = w->kind == DSC_CONSENSUS_ADPSGD; /* than at the first synchronisation */
    EXPECT(sooner ? result.steps >= 1 && result.steps <= 3 : result.steps == 3);
    o->resume = "auto";
    EXPECT_OK(dsc_train_run(comm, device, o, &result));
    EXPECT(result.steps == 8);
    EXPECT_OK(dsc_comm_barrier(comm));
    if (!w->exact)
        return;
    EXPECT(runs_differences(whole, parts, 8) == 0);
    if (rank == 0) { /* losses of all ranks before and after the stop */
        json_t *a = runs_lines(whole), *b = runs_lines(parts);
        EXPECT(number(runs_line(a, "epoch", 0), "loss") == number(runs_line(b, "epoch", 0), "loss"));
        json_decref(a);
        json_decref(b);
    }
    EXPECT_OK(dsc_comm_barrier(comm));
}

static void test_resume(void **state) {
    (void)state;
    char path[SCRATCH_SIZE];
    dsc_train_options o;
    for (int i = 0; i < WAYS; i++) {
        gossip_options(&o, &ways[i], NULL);
        if (possible(&ways[i]))
            check_resume(&ways[i], &o);
    }
    way irregular = {"star", DSC_CONSENSUS_SGP, 0, 1, ranks > 1 ? star(path) : NULL};
    gossip_options(&o, &irregular, NULL);
    o.eval_every = 1;
    o.eval_ranks = 1;
    check_resume(&irregular, &o);
    static const way groups = {"groups", DSC_CONSENSUS_SGP, 0, 1, NULL};
    gossip_options(&o, &groups, NULL);
    consensus_of(&o)->group = ranks % 2 ? 1 : 2;
    check_resume(&groups, &o);
    static const way slow = {"slow", DSC_CONSENSUS_SGP, 0, 1, NULL};
    gossip_options(&o, &slow, NULL);
    consensus_of(&o)->average_every = 2;
    consensus_of(&o)->slow_momentum = 0.5;
    check_resume(&slow, &o);
    all_fine(comm);
}

/* Running statistics, which differ between ranks, and their average in the model file. */
static void test_resume_statistics(void **state) {
    (void)state;
    static const way statistics = {"statistics", DSC_CONSENSUS_SGP, 0, 1, NULL};
    dsc_train_options o;
    gossip_options(&o, &statistics, NULL);
    o.model = "resnet20";
    o.batch_size = 2;
    char data[32];
    snprintf(data, sizeof data, "synthetic:%d", ranks * 2 * 4);
    o.data = data;
    o.bn_average = 1;
    check_resume(&statistics, &o);
    all_fine(comm);
}

static void check_same_steps(int64_t steps) {
    int64_t first = steps;
    EXPECT_OK(dsc_share_bytes(comm, queue, &first, sizeof first));
    EXPECT(steps == first);
}

/* Between synchronisation points: flags are sent after step 32 and read after step 64. With adpsgd the ranks agree
 * after any step, in an epoch that is long enough for all of them to be scheduled meanwhile. */
static void test_signal(void **state) {
    (void)state;
    char data[32];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    for (int i = 0; i < WAYS; i++) {
        if (!possible(&ways[i]) || i == 1 || i == 2) /* only sgp, osgp-2, adpsgd */
            continue;
        const int apart = ways[i].kind == DSC_CONSENSUS_ADPSGD, epoch_steps = apart ? 3000 : 80;
        snprintf(data, sizeof data, "synthetic:%d", ranks * epoch_steps);
        gossip_options(&o, &ways[i], NULL);
        o.data = data;
        o.batch_size = 1;
        o.lr = 0.001;
        if (rank == ranks - 1)
            dsc_train_request_stop();
        EXPECT_FAILS(DSC_E_INTERRUPTED, "as asked", dsc_train_run(comm, device, &o, &result));
        EXPECT(apart ? result.steps < epoch_steps : result.steps == 2 * DSC_SIGNAL_STEPS);
        check_same_steps(result.steps);
        EXPECT(result.train_loss > 0);
    }
    all_fine(comm);
}

/* Groups of two ranks, or (0) of all ranks of a node, whose messages may be late: they learn of a request at the end of
 * the epoch. */
static void test_signal_groups(void **state) {
    (void)state;
    enum { EPOCH_STEPS = 80 };
    char data[32];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    snprintf(data, sizeof data, "synthetic:%d", ranks * EPOCH_STEPS);
    for (int group = 0; group <= 2; group += 2) {
        static const way late = {"groups", DSC_CONSENSUS_OSGP, 2, 0, NULL};
        if (group > 0 && ranks % group)
            continue;
        gossip_options(&o, &late, NULL);
        consensus_of(&o)->group = group;
        o.data = data;
        o.batch_size = 1;
        o.lr = 0.001;
        if (rank == ranks - 1)
            dsc_train_request_stop();
        EXPECT_FAILS(DSC_E_INTERRUPTED, "as asked", dsc_train_run(comm, device, &o, &result));
        EXPECT(result.steps == EPOCH_STEPS);
    }
    all_fine(comm);
}

/* Rank 0, which alone gets progress reports, is slower than the others and asks to stop after some steps. */
typedef struct straggler {
    int64_t stop;
    double seconds; /* of a nap in every step before */
} straggler;

static void straggle(void *context, const dsc_progress *progress) {
    const straggler *s = context;
    struct timespec nap = {.tv_nsec = (long)(1e9 * s->seconds)};
    if (progress->kind != DSC_EVENT_STEP || progress->step > s->stop)
        return;
    nanosleep(&nap, NULL);
    if (progress->step == s->stop)
        dsc_train_request_stop();
}

static void check_apart(straggler s, int64_t epoch_steps, int64_t least, int64_t most) {
    char data[32];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    snprintf(data, sizeof data, "synthetic:%lld", (long long)(ranks * epoch_steps));
    for (int i = 0; i < WAYS; i++) {
        if (!possible(&ways[i]) || ways[i].exact) /* adpsgd, osgp with late messages */
            continue;
        gossip_options(&o, &ways[i], NULL);
        o.data = data;
        o.batch_size = 1;
        o.lr = 0.001;
        o.eval_every = 1; /* a synchronisation that ranks which stop before it do not reach */
        o.progress = straggle;
        o.progress_context = &s;
        EXPECT_FAILS(DSC_E_INTERRUPTED, "as asked", dsc_train_run(comm, device, &o, &result));
        EXPECT(result.steps >= least && result.steps <= most);
        check_same_steps(result.steps);
    }
    all_fine(comm);
}

/* Ranks that are many steps apart end after the same step, or at the synchronisation point that some of them
 * have reached already. */
static void test_signal_apart(void **state) {
    (void)state;
    check_apart((straggler){.stop = 10, .seconds = 0.001}, 3000, 10, 2999);
    check_apart((straggler){.stop = 5, .seconds = 0.04}, 12, 5, 12);
}

/* ---- evaluation ---- */

/* The eval line is about the model that the model file holds, with the statistics of rank 0 or the average;
 * the ranks' own models are evaluated on the whole set. */
static void check_eval(int bn_average) {
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result trained = {.size = sizeof trained};
    dsc_eval_options e;
    dsc_eval_result one = {.size = sizeof one};
    gossip_options(&o, &ways[0], folder(bn_average ? "eval-average" : "eval", out));
    o.model = "resnet20";
    o.data = "synthetic:115"; /* 23 validation images */
    o.batch_size = 2;
    o.steps = 3;
    o.eval_every = 1;
    o.eval_ranks = 1;
    o.bn_average = bn_average;
    EXPECT_OK(dsc_train_run(comm, device, &o, &trained));
    EXPECT_OK(dsc_comm_barrier(comm));
    dsc_eval_options_init(&e);
    e.checkpoint = out;
    e.data = o.data;
    e.batch_size = 4;
    EXPECT_OK(dsc_eval_run(alone, device, &e, &one));
    double limit = 8 * 20 * sqrt(576) * 0x1p-24;
    EXPECT(fabs(trained.val_loss - one.loss) <= limit * one.loss);
    EXPECT(trained.top1 == one.top1 && one.images == 23);
    if (rank == 0) {
        json_t *lines = runs_lines(out), *line = runs_line(lines, "eval", 0);
        double mean = number(line, "ranks_top1_mean"), min = number(line, "ranks_top1_min"),
               max = number(line, "ranks_top1_max"), std = number(line, "ranks_top1_std"),
               first = number(line, "rank0_top1");
        EXPECT(min >= 0 && min <= mean && mean <= max && max <= 1 && min <= first && first <= max);
        EXPECT(std >= 0 && std <= max - min + 1e-12);
        EXPECT(fabs(first * 23 - round(first * 23)) < 1e-9); /* of all images */
        EXPECT((number(line, "distance") > 0) == (ranks > 2));
        json_decref(lines);
    }
    EXPECT_OK(dsc_comm_barrier(comm));
}

static void test_eval(void **state) {
    (void)state;
    check_eval(0);
    check_eval(1);
    all_fine(comm);
}

/* Numerators and statistics are restored, bit for bit, after the average was swapped in. */
static void test_eval_gives_back(void **state) {
    (void)state;
    char path[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_eval_result result = {.size = sizeof result};
    dsc_ranks_result all;
    way irregular = {"star", DSC_CONSENSUS_SGP, 0, 1, ranks > 1 ? star(path) : NULL};
    gossip_options(&o, &irregular, NULL);
    o.model = "resnet20";
    o.batch_size = 2;
    o.eval_every = 1;
    o.eval_ranks = 1;
    o.bn_average = 1;
    dsc_trainer *t = stepped(comm, &o, 3);
    dsc_tensor values = dsc_model_values(t->model), mean = dsc_model_buffers(t->model)[0].value;
    float *x = runs_read(t->queue, &values), *m = runs_read(t->queue, &mean);
    EXPECT_OK(dsc_trainer_evaluate_mean(t, &result));
    EXPECT_OK(dsc_trainer_evaluate_ranks(t, &all));
    float *x_after = runs_read(t->queue, &values), *m_after = runs_read(t->queue, &mean);
    EXPECT(memcmp(x, x_after, dsc_tensor_bytes(&values)) == 0);
    EXPECT(memcmp(m, m_after, dsc_tensor_bytes(&mean)) == 0);
    EXPECT_OK(dsc_trainer_swap_in(t));
    float *x_shown = runs_read(t->queue, &values), *m_shown = runs_read(t->queue, &mean);
    EXPECT((memcmp(x, x_shown, dsc_tensor_bytes(&values)) != 0) == (ranks > 1));
    EXPECT((memcmp(m, m_shown, dsc_tensor_bytes(&mean)) != 0) == (ranks > 1));
    EXPECT_OK(dsc_trainer_swap_out(t));
    float *const blocks[] = {x, m, x_after, m_after, x_shown, m_shown};
    for (int i = 0; i < 6; i++)
        free(blocks[i]);
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

/* ---- peers ---- */

/* From epoch 1 on two peers, also after resuming in epoch 1. */
static void test_peers(void **state) {
    (void)state;
    static const way scheduled = {"scheduled", DSC_CONSENSUS_SGP, 0, 1, NULL};
    char whole[SCRATCH_SIZE], parts[SCRATCH_SIZE];
    dsc_train_options o;
    gossip_options(&o, &scheduled, folder("peers-whole", whole));
    o.peers_count = 2;
    o.peers_epochs[1] = 1;
    o.peers_values[0] = 1;
    o.peers_values[1] = ranks > 2 ? 2 : 1;
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    if (rank == 0) {
        json_t *lines = runs_lines(whole);
        double first = number(runs_line(lines, "step", 1), "parameters"),
               second = number(runs_line(lines, "step", 5), "parameters");
        EXPECT(second == first * o.peers_values[1]);
        json_decref(lines);
    }
    o.out = folder("peers-parts", parts);
    o.steps = 6;
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    o.steps = 0;
    o.resume = "auto";
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    EXPECT_OK(dsc_comm_barrier(comm));
    EXPECT(runs_differences(whole, parts, 8) == 0);
    all_fine(comm);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),       cmocka_unit_test(test_alone),
        cmocka_unit_test(test_complete),     cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_resume),       cmocka_unit_test(test_resume_statistics),
        cmocka_unit_test(test_signal),       cmocka_unit_test(test_signal_groups),
        cmocka_unit_test(test_signal_apart), cmocka_unit_test(test_eval),
        cmocka_unit_test(test_peers),        cmocka_unit_test(test_eval_gives_back),
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

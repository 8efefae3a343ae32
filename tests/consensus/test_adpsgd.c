/* AD-PSGD: under a launcher on its ranks, over MPI; started by itself on 1 to 8 ranks that are threads of
 * this process, where ThreadSanitizer sees everything. */
#include "chosen.h"
#include "comm/parallel.h"
#include "consensus/thread_ranks.h"

#include "base/rng.h"
#include "consensus/adpsgd.h"
#include "device/ops.h"

#include <math.h>
#include <sched.h>
#include <time.h>

enum { PARAMS = 3, GAP = 1, TOTAL = 5 + 64 + 3, WATCHDOG_S = 280 };
static const int64_t counts[PARAMS] = {5, 64, 3};

/* One rank. The same everywhere between two barriers of `comm`: what the ranks do. */
typedef struct seat {
    dsc_comm *comm;
    dsc_device *device;
    dsc_queue *queue;
    int rank, ranks;
    dsc_tensor values, grads; /* with a gap after the first parameter, so that there are two pieces */
    dsc_param params[PARAMS];
    dsc_consensus *consensus;
    float host[TOTAL + GAP];
} seat;

/* ---- a seat ---- */

static void nap_us(long us) {
    struct timespec time = {.tv_nsec = us * 1000};
    nanosleep(&time, NULL);
}

static void push(seat *s, dsc_tensor *t) {
    EXPECT_OK(dsc_tensor_upload(s->queue, s->host, sizeof s->host, t));
    EXPECT_OK(dsc_queue_sync(s->queue));
}

static void pull(seat *s) {
    EXPECT_OK(dsc_tensor_download(s->queue, &s->values, sizeof s->host, s->host));
    EXPECT_OK(dsc_queue_sync(s->queue));
}

static void fill(seat *s, dsc_tensor *t, float value) {
    for (int i = 0; i < TOTAL + GAP; i++)
        s->host[i] = value;
    push(s, t);
}

/* A parameter's value i, without the gap. */
static float value_at(const seat *s, int64_t i) {
    return s->host[i < counts[0] ? i : i + GAP];
}

static void make_params(seat *s) {
    static const char *const names[PARAMS] = {"a", "b", "c"};
    const int64_t room = TOTAL + GAP;
    EXPECT_OK(dsc_tensor_alloc(s->device, DSC_F32, 1, &room, &s->values));
    EXPECT_OK(dsc_tensor_alloc(s->device, DSC_F32, 1, &room, &s->grads));
    int64_t at = 0;
    for (int p = 0; p < PARAMS; p++) {
        s->params[p] = (dsc_param){.name = names[p],
                                   .value = dsc_tensor_slice(&s->values, at, counts[p]),
                                   .grad = dsc_tensor_slice(&s->grads, at, counts[p])};
        at += counts[p] + (p == 0 ? GAP : 0);
    }
}

static void free_params(seat *s) {
    dsc_tensor_free(&s->values);
    dsc_tensor_free(&s->grads);
}

static dsc_consensus_options usual_options(void) {
    dsc_consensus_options options;
    dsc_consensus_options_init(&options);
    options.kind = DSC_CONSENSUS_ADPSGD;
    options.bucket_bytes = 100; /* 3 of fp32 */
    return options;
}

static void sit_down(seat *s, const dsc_consensus_options *options) {
    make_params(s);
    EXPECT_OK(dsc_consensus_create(s->comm, s->queue, s->params, PARAMS, options, &s->consensus));
}

static void stand_up(seat *s) {
    dsc_consensus_destroy(&s->consensus);
    free_params(s);
}

/* value -= grad */
static dsc_status descend(seat *s) {
    const dsc_tensor *read;
    DSC_TRY(dsc_consensus_update_begin(s->consensus, s->queue, &read));
    EXPECT(read == NULL);
    for (int p = 0; p < PARAMS; p++)
        DSC_TRY(dsc_op_axpby(s->queue, -1, &s->params[p].grad, 1, &s->params[p].value));
    return dsc_consensus_update_end(s->consensus, s->queue);
}

static dsc_status try_step(seat *s) {
    DSC_TRY(dsc_consensus_before_forward(s->consensus, s->queue));
    for (int p = PARAMS - 1; p >= 0; p--)
        DSC_TRY(dsc_consensus_grad_ready(s->consensus, s->queue, p));
    DSC_TRY(dsc_consensus_after_backward(s->consensus, s->queue));
    return descend(s);
}

static void step(seat *s) {
    EXPECT_OK(try_step(s));
}

static int64_t exchanges(const seat *s) {
    return dsc_consensus_rounds(s->consensus);
}

static int is_active(const seat *s) {
    return s->rank % 2;
}

/* Steps until this rank has made `more` exchanges; passive ranks take some steps and leave it to the others.
 */
static void keep_busy(seat *s, int64_t more) {
    int64_t goal = exchanges(s) + more;
    for (int i = 0; is_active(s) ? exchanges(s) < goal : i < 20; i++) {
        step(s);
        nap_us(50);
    }
}

static void settle(seat *s) {
    EXPECT_OK(dsc_consensus_settle(s->consensus, s->queue));
}

/* After settling: sum over ranks, and largest value of any, of value i. Collective. */
static void look_at_all(seat *s, double sums[TOTAL], double *largest) {
    const int64_t room = TOTAL + 1;
    double own[TOTAL + 1];
    dsc_tensor all = {0};
    pull(s);
    own[TOTAL] = 0;
    for (int i = 0; i < TOTAL; i++)
        own[i] = (double)value_at(s, i);
    EXPECT_OK(dsc_tensor_alloc(s->device, DSC_F64, 1, &room, &all));
    EXPECT_OK(dsc_tensor_upload(s->queue, own, sizeof own, &all));
    EXPECT_OK(dsc_queue_sync(s->queue));
    EXPECT_OK(dsc_comm_allreduce(s->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &all));
    EXPECT_OK(dsc_tensor_download(s->queue, &all, sizeof own, own));
    EXPECT_OK(dsc_queue_sync(s->queue));
    memcpy(sums, own, TOTAL * sizeof *sums);
    for (int i = 0; i < TOTAL; i++)
        own[TOTAL] = fmax(own[TOTAL], fabs((double)value_at(s, i)));
    EXPECT_OK(dsc_tensor_upload(s->queue, own, sizeof own, &all));
    EXPECT_OK(dsc_queue_sync(s->queue));
    EXPECT_OK(dsc_comm_allreduce(s->comm, DSC_TRAFFIC_OTHER, DSC_MAX, &all));
    EXPECT_OK(dsc_tensor_download(s->queue, &all, sizeof own, own));
    EXPECT_OK(dsc_queue_sync(s->queue));
    *largest = own[TOTAL];
    dsc_tensor_free(&all);
}

static double distance(seat *s) {
    double far = -1, norm = -1;
    EXPECT_OK(dsc_consensus_distance(s->consensus, s->queue, &far, &norm));
    return far;
}

/* Collective. */
static double sum_over_ranks(seat *s, double value) {
    const int64_t one = 1;
    dsc_tensor t = {0};
    EXPECT_OK(dsc_tensor_alloc(s->device, DSC_F64, 1, &one, &t));
    EXPECT_OK(dsc_tensor_upload(s->queue, &value, sizeof value, &t));
    EXPECT_OK(dsc_queue_sync(s->queue));
    EXPECT_OK(dsc_comm_allreduce(s->comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    EXPECT_OK(dsc_tensor_download(s->queue, &t, sizeof value, &value));
    EXPECT_OK(dsc_queue_sync(s->queue));
    dsc_tensor_free(&t);
    return value;
}

/* ---- cases, run by every rank ---- */

/* Whole numbers below 8, and at most 4 exchanges of each of at most 4 active ranks: no value needs more than
 * 20 bits, so that nothing is rounded. */
static void case_exact_mass(seat *s) {
    dsc_consensus_options options = usual_options();
    sit_down(s, &options);
    fill(s, &s->values, (float)(s->rank % 4));
    fill(s, &s->grads, (float)(s->rank % 2));
    int from = 0, active = s->ranks / 2;
    for (int r = 0; r < s->ranks; r++)
        from += r % 4;
    for (int t = 0; t < 4; t++) {
        step(s);
        nap_us(300);
    }
    settle(s);
    double sums[TOTAL], largest, mass = 0;
    look_at_all(s, sums, &largest);
    for (int i = 0; i < TOTAL; i++)
        EXPECT(sums[i] == from - 4 * active);
    EXPECT(exchanges(s) <= (is_active(s) ? 4 : 4 * active));
    EXPECT_OK(dsc_consensus_mass(s->consensus, &mass));
    EXPECT(mass == s->ranks);
    stand_up(s);
}

/* What one rank gives in one step ends as a part of it everywhere, and exchanges are counted in bytes. */
static void spread(seat *s, dsc_dtype wire, double tolerance) {
    dsc_consensus_options options = usual_options();
    options.wire = wire;
    sit_down(s, &options);
    uint64_t before = dsc_comm_bytes(s->comm, DSC_TRAFFIC_PARAMETERS);
    int giver = 1 % s->ranks;
    fill(s, &s->values, 0);
    fill(s, &s->grads, s->rank == giver);
    step(s);
    fill(s, &s->grads, 0);
    double far = INFINITY, sums[TOTAL], largest;
    for (int round = 0; round < 100 && far > tolerance; round++) {
        keep_busy(s, 10);
        settle(s);
        far = distance(s);
    }
    EXPECT(far <= tolerance);
    look_at_all(s, sums, &largest);
    double total = sum_over_ranks(s, (double)exchanges(s));
    for (int i = 0; i < TOTAL; i++) {
        EXPECT(fabs(sums[i] + 1) <= total * 0x1p-24);
        EXPECT(fabs((double)value_at(s, i) + 1.0 / s->ranks) <= tolerance * s->ranks);
    }
    uint64_t each = TOTAL * dsc_dtype_size(wire);
    EXPECT(dsc_comm_bytes(s->comm, DSC_TRAFFIC_PARAMETERS) - before == (uint64_t)exchanges(s) * each);
    stand_up(s);
}

static void case_spread(seat *s) {
    spread(s, DSC_F32, 1e-5);
}

static void case_spread_halves(seat *s) {
    spread(s, DSC_BF16, 0.02);
    spread(s, DSC_F16, 0.01);
}

/* Delays everywhere, settled and gone on with again and again. Each exchange rounds 4 times, by half a unit
 * in the last place of no more than the largest value so far; each step rounds once. */
static void case_delays(seat *s) {
    enum { ROUNDS = 10, EACH = 40 };
    dsc_consensus_options options = usual_options();
    sit_down(s, &options);
    fill(s, &s->values, (float)s->rank);
    double expected = 0, largest_so_far = s->ranks, steps = 0;
    for (int r = 0; r < s->ranks; r++)
        expected += r;
    for (int round = 0; round < ROUNDS; round++) {
        fill(s, &s->grads, 0.125f * (float)(s->rank - 1));
        int64_t goal = exchanges(s) + EACH;
        double taken = 0;
        for (; is_active(s) ? exchanges(s) < goal : taken < 30; taken++) {
            step(s);
            nap_us(50);
        }
        settle(s);
        steps += sum_over_ranks(s, taken);
        expected -= sum_over_ranks(s, taken * 0.125 * (s->rank - 1));
        double sums[TOTAL], largest;
        look_at_all(s, sums, &largest);
        largest_so_far = fmax(largest_so_far, largest + 0.125 * s->ranks * steps);
        double rounded = (4 * sum_over_ranks(s, (double)exchanges(s)) + steps) * 0x1p-24 * largest_so_far;
        for (int i = 0; i < TOTAL; i++)
            EXPECT(fabs(sums[i] - expected) <= rounded);
        if (!is_active(s))
            nap_us(3000); /* others go on and ask: what they get must not come from before */
    }
    EXPECT(sum_over_ranks(s, is_active(s) ? (double)exchanges(s) : 0) >=
           (double)ROUNDS * EACH * s->ranks / 2);
    EXPECT(sum_over_ranks(s, is_active(s) ? (double)exchanges(s) : -(double)exchanges(s)) == 0);
    stand_up(s);
}

/* One rank stays in its step until all others have taken theirs, and with a passive one, until the active
 * ones have had its answers: this ends only where nobody waits for a rank that trains. */
static void case_straggler(seat *s) {
    for (int straggler = 0; straggler < 2; straggler++) {
        const int64_t one = 1;
        dsc_consensus_options options = usual_options();
        dsc_tensor word = {0};
        sit_down(s, &options);
        EXPECT_OK(dsc_tensor_alloc(s->device, DSC_F32, 1, &one, &word));
        EXPECT_OK(dsc_consensus_start(s->consensus));
        step(s);
        if (s->rank == straggler) {
            EXPECT_OK(dsc_consensus_before_forward(s->consensus, s->queue));
            for (int r = 0; r < s->ranks; r++) {
                dsc_request *request = NULL;
                if (r != s->rank) {
                    EXPECT_OK(dsc_comm_recv_begin(s->comm, r, 7, &word, &request));
                    EXPECT_OK(dsc_comm_wait(&request));
                }
            }
            EXPECT_OK(descend(s));
        } else {
            dsc_request *request = NULL;
            for (int t = 0; t < 100; t++)
                step(s);
            keep_busy(s, 12);
            EXPECT_OK(dsc_comm_send_begin(s->comm, DSC_TRAFFIC_OTHER, straggler, 7, &word, &request));
            EXPECT_OK(dsc_comm_wait(&request));
        }
        settle(s);
        dsc_tensor_free(&word);
        stand_up(s);
    }
}

/* After settling, whatever stands in the parameters is gone on with; what is swapped in is not. */
static void case_taking_over(seat *s) {
    dsc_consensus_options options = usual_options();
    sit_down(s, &options);
    fill(s, &s->values, (float)s->rank);
    fill(s, &s->grads, 0);
    keep_busy(s, 3);
    settle(s);
    fill(s, &s->values, 4 + (float)s->rank);
    settle(s); /* twice is as once */
    EXPECT_OK(dsc_consensus_swap_in(s->consensus, s->queue, DSC_VALUES_MEAN));
    pull(s);
    for (int i = 0; i < TOTAL; i++)
        EXPECT(fabs((double)value_at(s, i) - 4 - (s->ranks - 1) / 2.0) < 1e-5);
    EXPECT_FAILS(DSC_E_INVALID, "swapped in", dsc_consensus_before_forward(s->consensus, s->queue));
    EXPECT_OK(dsc_consensus_swap_out(s->consensus, s->queue));
    pull(s);
    for (int i = 0; i < TOTAL; i++)
        EXPECT(value_at(s, i) == 4 + (float)s->rank);
    keep_busy(s, 3);
    settle(s);
    double sums[TOTAL], largest;
    look_at_all(s, sums, &largest);
    for (int i = 0; i < TOTAL; i++)
        EXPECT(fabs(sums[i] - s->ranks * (4 + (s->ranks - 1) / 2.0)) < 1e-4);
    stand_up(s);
}

/* A cancelled update is forgotten and holds nobody up, and neither does one that destroying cancels. */
static void case_cancel(seat *s) {
    const dsc_tensor *read;
    dsc_consensus_options options = usual_options();
    sit_down(s, &options);
    fill(s, &s->values, (float)s->rank);
    fill(s, &s->grads, 0);
    keep_busy(s, 3);
    EXPECT_OK(dsc_consensus_before_forward(s->consensus, s->queue));
    EXPECT_OK(dsc_consensus_update_begin(s->consensus, s->queue, &read));
    fill(s, &s->values, 100);
    dsc_consensus_update_cancel(s->consensus);
    keep_busy(s, 3);
    settle(s);
    double sums[TOTAL], largest;
    look_at_all(s, sums, &largest);
    for (int i = 0; i < TOTAL; i++)
        EXPECT(fabs(sums[i] - s->ranks * (s->ranks - 1) / 2.0) < 1e-4);
    EXPECT_OK(dsc_consensus_before_forward(s->consensus, s->queue));
    EXPECT_OK(dsc_consensus_update_begin(s->consensus, s->queue, &read));
    stand_up(s);
}

/* Every fifth step an exact average: afterwards all are as close as rounding lets them. */
static void case_exact_averages(seat *s) {
    dsc_consensus_options options = usual_options();
    options.average_every = 5;
    sit_down(s, &options);
    fill(s, &s->values, (float)s->rank);
    fill(s, &s->grads, 1);
    for (int t = 0; t < 10; t++)
        step(s);
    EXPECT(distance(s) < 1e-5);
    pull(s);
    for (int i = 0; i < TOTAL; i++)
        EXPECT(fabs((double)value_at(s, i) - ((s->ranks - 1) / 2.0 - 10)) < 1e-5);
    stand_up(s);
}

static void case_numbers(seat *s) {
    dsc_consensus_options options = usual_options();
    double numbers[DSC_CONSENSUS_NUMBERS] = {0}, bad[DSC_CONSENSUS_NUMBERS] = {0.5};
    sit_down(s, &options);
    fill(s, &s->values, 0);
    fill(s, &s->grads, 0);
    numbers[0] = 41;
    EXPECT_OK(dsc_consensus_set_numbers(s->consensus, numbers));
    EXPECT(exchanges(s) == 41);
    EXPECT_FAILS(DSC_E_INVALID, "0.5 rounds", dsc_consensus_set_numbers(s->consensus, bad));
    keep_busy(s, 1);
    EXPECT_FAILS(DSC_E_INVALID, "settle", dsc_consensus_set_numbers(s->consensus, numbers));
    settle(s);
    EXPECT(!is_active(s) || exchanges(s) > 41);
    EXPECT_OK(dsc_consensus_set_peers(s->consensus, 1));
    EXPECT_FAILS(DSC_E_INVALID, "must be 1", dsc_consensus_set_peers(s->consensus, 2));
    EXPECT(!dsc_consensus_is_collective(s->consensus));
    EXPECT(!dsc_consensus_records(s->consensus));
    stand_up(s);
}

static void refuse(seat *s, const dsc_consensus_options *options, dsc_status status, const char *text) {
    dsc_consensus *none = NULL;
    EXPECT_FAILS(status, text, dsc_consensus_create(s->comm, s->queue, s->params, PARAMS, options, &none));
    EXPECT(none == NULL);
}

static void case_refusals(seat *s) {
    dsc_consensus_options usual = usual_options(), options = usual;
    make_params(s);
    options.peers = 2;
    refuse(s, &options, DSC_E_INVALID, "2 peers");
    options = usual;
    options.group = 2;
    refuse(s, &options, DSC_E_UNSUPPORTED, "groups of 2");
    options = usual;
    options.wire = DSC_I32;
    refuse(s, &options, DSC_E_INVALID, "fp32, bf16, fp16");
    options = usual;
    options.synch_freq = 2;
    refuse(s, &options, DSC_E_INVALID, "synch_freq 2");
    options = usual;
    options.graph = "no-such";
    refuse(s, &options, DSC_E_INVALID, "no-such");
    options.graph = "complete";
    if (s->ranks > 2)
        refuse(s, &options, DSC_E_INVALID, "must exchange in pairs");
    options.graph = "base-2";
    if (s->ranks == 4 || s->ranks == 8)
        refuse(s, &options, DSC_E_INVALID, "only an odd and an even one");
    /* What ranks differ in. */
    dsc_consensus_options bucket = usual, wire = usual, graph = usual, lone = usual;
    bucket.bucket_bytes = s->rank ? 64 : 32;
    refuse(s, &bucket, DSC_E_INVALID, "differ from another rank's");
    wire.wire = s->rank ? DSC_F32 : DSC_BF16;
    refuse(s, &wire, DSC_E_INVALID, "differ from another rank's");
    graph.graph = s->rank ? "bipartite-linear" : "bipartite-exponential";
    if (s->ranks == 8) /* with fewer they are the same */
        refuse(s, &graph, DSC_E_INVALID, "differ from another rank's");
    lone.graph = s->rank ? NULL : "no-such"; /* one fails, and all hear of it */
    refuse(s, &lone, DSC_E_INVALID, "no-such");
    s->comm->thread_multiple = 0;
    refuse(s, &usual, DSC_E_INVALID, "thread_multiple = 1");
    s->comm->thread_multiple = 1;
    free_params(s);
}

static void case_odd(seat *s) {
    dsc_consensus_options options = usual_options();
    make_params(s);
    refuse(s, &options, DSC_E_INVALID, "base-2");
    free_params(s);
}

/* One rank is plain SGD, by whatever communicator. */
static void case_alone(seat *s) {
    dsc_consensus_options options = usual_options();
    s->comm->thread_multiple = 0;
    sit_down(s, &options);
    s->comm->thread_multiple = 1;
    fill(s, &s->values, 3);
    fill(s, &s->grads, 0.5f);
    EXPECT_OK(dsc_consensus_start(s->consensus));
    for (int t = 0; t < 4; t++)
        step(s);
    settle(s);
    EXPECT(exchanges(s) == 0);
    EXPECT(distance(s) == 0);
    pull(s);
    for (int i = 0; i < TOTAL; i++)
        EXPECT(value_at(s, i) == 1);
    stand_up(s);
}

/* ---- hooks ---- */

static void delay_at_random(int rank, dsc_adpsgd_point point) {
    static _Thread_local uint64_t state;
    state = state * 6364136223846793005u + (uint64_t)rank * 2 + (uint64_t)point + 1442695040888963407u;
    uint64_t draw = state >> 40;
    if (draw % 8 == 0)
        nap_us((long)(draw / 8 % 300));
}

static atomic_int stop_rank_0;

/* As if rank 0 had died or hung. */
static void block_rank_0(int rank, dsc_adpsgd_point point) {
    (void)point;
    while (rank == 0 && atomic_load(&stop_rank_0))
        nap_us(1000);
}

static dsc_status step_until_failure(seat *s) {
    dsc_status status = DSC_OK;
    for (int t = 0; t < 20000 && status == DSC_OK; t++) {
        status = try_step(s);
        nap_us(200);
    }
    return status;
}

/* Rank 0's thread hangs; active ranks notice and name it, and settling fails on all ranks. Then it goes
 * on, and all end tidily. */
static void case_timeout(seat *s) {
    dsc_consensus_options options = usual_options();
    options.peer_timeout = 0.3;
    /* Of several, one that has no core for so long may be named as well. */
    const char *culprit = s->ranks == 2 ? "rank 0 has not answered for" : "has not answered for";
    sit_down(s, &options);
    fill(s, &s->grads, 0);
    if (is_active(s)) {
        EXPECT_FAILS(DSC_E_COMM, culprit, step_until_failure(s));
        EXPECT_FAILS(DSC_E_COMM, "peer-timeout", try_step(s));
        EXPECT(!strstr(dsc_error_message(), "rank 1: rank 1: ")); /* raised twice, said once */
    } else {
        step(s);
    }
    EXPECT_FAILS(DSC_E_COMM, culprit, dsc_consensus_settle(s->consensus, s->queue));
    EXPECT_OK(dsc_comm_barrier(s->comm));
    atomic_store(&stop_rank_0, 0);
    for (int i = 0; s->rank == 0 && i < 60000 && exchanges(s) == 0; i++)
        nap_us(1000); /* until it has answered: shutting down allows only a second for it */
    EXPECT_OK(dsc_comm_barrier(s->comm));
    stand_up(s);
}

/* It stays away: the others end all the same, and keep the memory of messages that cannot be cancelled. */
static void case_lost(seat *s) {
    dsc_consensus_options options = usual_options();
    options.peer_timeout = 0.1;
    sit_down(s, &options);
    fill(s, &s->grads, 0);
    if (is_active(s))
        EXPECT_FAILS(DSC_E_COMM, "has not answered", step_until_failure(s));
    else
        step(s);
    if (s->rank > 0)
        stand_up(s);
    EXPECT_OK(dsc_comm_barrier(s->comm));
    atomic_store(&stop_rank_0, 0);
    if (s->rank == 0)
        stand_up(s);
}

/* The same where the ranks that are left go on: they keep their own values. */
static void case_rescue(seat *s) {
    dsc_consensus_options options = usual_options();
    options.peer_timeout = 0.1;
    EXPECT_OK(dsc_memory_alloc(1, sizeof *s->comm->watch, &s->comm->watch));
    atomic_init(&s->comm->watch->users, 1);
    sit_down(s, &options);
    fill(s, &s->grads, 0);
    fill(s, &s->values, 3);
    if (is_active(s)) {
        EXPECT_FAILS(DSC_E_LOST, "has not answered", step_until_failure(s));
    } else {
        step(s);
        atomic_store(&s->comm->watch->alarmed, 1);
    }
    if (s->rank > 0) {
        EXPECT_FAILS(DSC_E_LOST, "adpsgd", step_until_failure(s));
        fill(s, &s->values, 99);
        EXPECT_OK(dsc_consensus_rescue(s->consensus, s->queue));
        pull(s);
        for (int i = 0; i < TOTAL; i++)
            EXPECT(value_at(s, i) == 3);
        stand_up(s);
    }
    EXPECT_OK(dsc_comm_barrier(s->comm));
    atomic_store(&stop_rank_0, 0);
    if (s->rank == 0)
        stand_up(s);
}

/* Steps allocate nothing once they have run: the messages' requests are used again. */
static void case_no_allocation(seat *s) {
    dsc_consensus_options options = usual_options();
    sit_down(s, &options);
    fill(s, &s->values, 1);
    fill(s, &s->grads, 0);
    keep_busy(s, 20);
    settle(s);
    int64_t before = dsc_memory_allocations();
    keep_busy(s, 20);
    settle(s);
    EXPECT(dsc_memory_allocations() == before);
    stand_up(s);
}

/* ---- running them ---- */

typedef void (*seat_case)(seat *s);

static dsc_comm *mpi; /* NULL: ranks are threads */

static void open_seat(seat *s, dsc_comm *comm) {
    s->comm = comm;
    s->rank = dsc_comm_rank(comm);
    s->ranks = dsc_comm_size(comm);
    s->device = chosen_open(chosen_or("cpu"), 1);
    assert_ok(dsc_queue_create(s->device, &s->queue));
    assert_ok(dsc_comm_use_queue(comm, s->queue));
}

static void close_seat(seat *s) {
    assert_ok(dsc_comm_use_queue(s->comm, NULL));
    dsc_queue_destroy(&s->queue);
    dsc_device_destroy(&s->device);
}

typedef struct thread_run {
    seat seat;
    seat_case run;
    pthread_t thread;
} thread_run;

static void *run_in_thread(void *argument) {
    thread_run *r = argument;
    r->run(&r->seat);
    return NULL;
}

/* left: communicators that cannot be given back. */
static void run_in_threads(seat_case run, int ranks, int left) {
    static thread_run runs[THREAD_RANKS];
    int before = atomic_load(&thread_groups);
    thread_group *group = thread_group_create(ranks);
    for (int r = 0; r < ranks; r++) {
        dsc_comm *comm = NULL;
        runs[r] = (thread_run){.run = run};
        assert_ok(thread_comm_create(group, r, &comm));
        open_seat(&runs[r].seat, comm);
    }
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&runs[r].thread, NULL, run_in_thread, &runs[r]), 0);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pthread_join(runs[r].thread, NULL), 0);
    for (int r = 0; r < ranks; r++) {
        close_seat(&runs[r].seat);
        dsc_comm_destroy(&runs[r].seat.comm);
    }
    assert_int_equal(atomic_load(&thread_groups) - before, left);
    int failures = parallel_failures;
    parallel_failures = 0;
    if (failures)
        fail_msg("%d checks failed on %d ranks", failures, ranks);
}

static void run_on_mpi(seat_case run) {
    seat s = {0};
    open_seat(&s, mpi);
    run(&s);
    all_fine(mpi);
    close_seat(&s);
}

typedef enum numbers { ALONE, ODD, EVEN } numbers;

static int fits(numbers which, int ranks) {
    return which == ALONE ? ranks == 1 : ranks > 1 && ranks % 2 == (which == ODD);
}

static void run_case(seat_case run, numbers which) {
    static const int all[] = {1, 2, 3, 4, 6, 8};
    size_t most = chosen() ? 4 : sizeof all / sizeof *all;
    if (mpi && !fits(which, dsc_comm_size(mpi)))
        skip();
    if (mpi)
        run_on_mpi(run);
    for (size_t i = 0; !mpi && i < most; i++)
        if (fits(which, all[i]))
            run_in_threads(run, all[i], 0);
}

static void test_alone(void **state) {
    (void)state;
    run_case(case_alone, ALONE);
}

static void test_odd(void **state) {
    (void)state;
    run_case(case_odd, ODD);
}

static void test_refusals(void **state) {
    (void)state;
    run_case(case_refusals, EVEN);
}

static void test_exact_mass(void **state) {
    (void)state;
    run_case(case_exact_mass, EVEN);
}

static void test_spread(void **state) {
    (void)state;
    run_case(case_spread, EVEN);
}

static void test_spread_halves(void **state) {
    (void)state;
    run_case(case_spread_halves, EVEN);
}

static void test_taking_over(void **state) {
    (void)state;
    run_case(case_taking_over, EVEN);
}

static void test_cancel(void **state) {
    (void)state;
    run_case(case_cancel, EVEN);
}

static void test_exact_averages(void **state) {
    (void)state;
    run_case(case_exact_averages, EVEN);
}

static void test_numbers(void **state) {
    (void)state;
    run_case(case_numbers, EVEN);
}

static void test_straggler(void **state) {
    (void)state;
    run_case(case_straggler, EVEN);
}

static void test_delays(void **state) {
    (void)state;
    dsc_adpsgd_set_hook(delay_at_random);
    run_case(case_delays, EVEN);
}

static void test_timeout(void **state) {
    (void)state;
    dsc_adpsgd_set_hook(block_rank_0);
    static const int some[] = {2, 4};
    if (mpi && (dsc_comm_size(mpi) % 2 || dsc_comm_size(mpi) > 4))
        skip();
    atomic_store(&stop_rank_0, 1);
    if (mpi)
        run_on_mpi(case_timeout);
    for (size_t i = 0; !mpi && i < sizeof some / sizeof *some; i++) {
        atomic_store(&stop_rank_0, 1);
        run_in_threads(case_timeout, some[i], 0);
    }
}

static void test_lost(void **state) {
    (void)state;
    if (mpi)
        skip(); /* messages in flight would keep MPI from ending */
    dsc_adpsgd_set_hook(block_rank_0);
    atomic_store(&stop_rank_0, 1);
    run_in_threads(case_lost, 4, 1);
}

static void test_rescue(void **state) {
    (void)state;
    if (mpi)
        skip();
    dsc_adpsgd_set_hook(block_rank_0);
    atomic_store(&stop_rank_0, 1);
    run_in_threads(case_rescue, 4, 2);
}

static void test_no_allocation(void **state) {
    (void)state;
    if (!mpi)
        skip(); /* threads would count each other's */
    run_case(case_no_allocation, EVEN);
}

static int no_hook(void **state) {
    (void)state;
    dsc_adpsgd_set_hook(NULL);
    return 0;
}

static dsc_comm *open_mpi(void) {
    dsc_comm_options options;
    dsc_comm *comm = NULL;
    dsc_comm_options_init(&options);
    options.kind = "mpi";
    options.thread_multiple = 1;
    assert_ok(dsc_comm_create(&options, &comm));
    silence_other_ranks(comm);
    return comm;
}

int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    chosen_or_skip();
    start_watchdog(WATCHDOG_S);
    if (dsc_launcher_size() > 0)
        mpi = open_mpi();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_odd),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_exact_mass),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_spread_halves),
        cmocka_unit_test(test_taking_over),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_exact_averages),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_straggler),
        cmocka_unit_test_teardown(test_delays, no_hook),
        cmocka_unit_test_teardown(test_timeout, no_hook),
        cmocka_unit_test_teardown(test_lost, no_hook),
        cmocka_unit_test_teardown(test_rescue, no_hook),
        cmocka_unit_test(test_no_allocation),
    };
    int failures = cmocka_run_group_tests_name("adpsgd", tests, NULL, NULL);
    dsc_comm_destroy(&mpi);
    return failures > 0;
}

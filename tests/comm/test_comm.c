/* Conformance of communicators: one program for every backend and any number of ranks. Its argument is the
 * name of the backend that "auto" has to choose; with a second one all waits are limited in time. Values are
 * integers or quarters, so that results are compared exactly. */
#include "comm/buffer.h"

#include "base/config.h"
#include "base/memory.h"
#include "comm/backends.h"

#include <math.h>

enum { SHORT_LIMIT = 7 };

static const char *expected_name = "self";
static dsc_device *device;
static dsc_comm *world;   /* messages of any length */
static dsc_comm *chopped; /* messages of SHORT_LIMIT elements at most */
static int rank, size;
static int limited; /* 1: waits of both are limited in time, and lost ranks could be survived */

static const dsc_dtype dtypes[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16, DSC_I32, DSC_I64, DSC_U8};
static const dsc_reduction reductions[] = {DSC_SUM, DSC_MAX, DSC_MIN};
static const int64_t counts[] = {0, 1, 7,
                                 23}; /* with SHORT_LIMIT: none, one short, one full, several pieces */

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* Both communicators, every type, every count. */
typedef void (*case_function)(dsc_comm *comm, dsc_dtype dtype, int64_t count);

static void for_all_cases(case_function run) {
    for (int d = 0; d < LENGTH(dtypes); d++) {
        for (int c = 0; c < LENGTH(counts); c++) {
            run(world, dtypes[d], counts[c]);
            run(chopped, dtypes[d], counts[c]);
        }
        run(world, dtypes[d], 1000);
    }
    all_fine(world);
}

/* ---- operations ---- */

static void case_allreduce(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    for (int o = 0; o < LENGTH(reductions); o++) {
        buffer b = buffer_make(device, dtype, count);
        dsc_request *request = NULL;
        fill(&b.t, rank, 3);
        EXPECT_OK(dsc_comm_allreduce_begin(comm, DSC_TRAFFIC_OTHER, reductions[o], &b.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        EXPECT(request == NULL);
        EXPECT(holds_reduced(&b.t, reductions[o], size, 3));
        buffer_drop(&b);
    }
}

static void case_reduce(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    for (int root = 0; root < size; root++) {
        dsc_reduction op = reductions[root % 3];
        buffer b = buffer_make(device, dtype, count);
        dsc_request *request = NULL;
        fill(&b.t, rank, 1);
        EXPECT_OK(dsc_comm_reduce_begin(comm, DSC_TRAFFIC_OTHER, op, root, &b.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        EXPECT(rank == root ? holds_reduced(&b.t, op, size, 1) : holds(&b.t, rank, 1));
        buffer_drop(&b);
    }
}

static void case_broadcast(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    for (int root = 0; root < size; root++) {
        buffer b = buffer_make(device, dtype, count);
        fill(&b.t, rank, root);
        EXPECT_OK(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, root, &b.t));
        EXPECT(holds(&b.t, root, root));
        buffer_drop(&b);
    }
}

static void case_allgather(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    for (int in_place = 0; in_place < 2; in_place++) {
        buffer part = buffer_make(device, dtype, count);
        buffer all = buffer_make(device, dtype, count * size);
        dsc_request *request = NULL;
        dsc_tensor own = in_place ? dsc_tensor_slice(&all.t, rank * count, count) : part.t;
        fill(&own, rank, 2);
        EXPECT_OK(dsc_comm_allgather_begin(comm, DSC_TRAFFIC_OTHER, &own, &all.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        for (int r = 0; r < size; r++) {
            dsc_tensor place = dsc_tensor_slice(&all.t, r * count, count);
            EXPECT(holds(&place, r, 2));
        }
        EXPECT(holds(&own, rank, 2));
        buffer_drop(&part);
        buffer_drop(&all);
    }
}

static void case_reduce_scatter(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    for (int o = 0; o < LENGTH(reductions); o++) {
        buffer part = buffer_make(device, dtype, count);
        buffer all = buffer_make(device, dtype, count * size);
        dsc_request *request = NULL;
        fill(&all.t, rank, 0);
        EXPECT_OK(
            dsc_comm_reduce_scatter_begin(comm, DSC_TRAFFIC_OTHER, reductions[o], &all.t, &part.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        EXPECT(holds_reduced(&part.t, reductions[o], size, rank * count));
        EXPECT(holds(&all.t, rank, 0)); /* an input stays as it was */
        buffer_drop(&part);
        buffer_drop(&all);
    }
}

/* Everybody sends two messages with tag 5 and one with the largest tag to the right; receives are begun in
 * another order of tags. With one rank the ring is the rank itself. */
static void case_ring(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    static const int send_tag[3] = {5, 32767, 5}, recv_tag[3] = {32767, 5, 5}, message_of[3] = {1, 0, 2};
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    buffer out[3], in[3];
    dsc_request *requests[6] = {NULL};
    for (int i = 0; i < 3; i++) {
        out[i] = buffer_make(device, dtype, count);
        in[i] = buffer_make(device, dtype, count);
        fill(&out[i].t, rank, 10 * i);
        EXPECT_OK(dsc_comm_send_begin(comm, DSC_TRAFFIC_OTHER, right, send_tag[i], &out[i].t, &requests[i]));
    }
    for (int i = 0; i < 3; i++)
        EXPECT_OK(dsc_comm_recv_begin(comm, left, recv_tag[i], &in[i].t, &requests[3 + i]));
    for (int i = 5; i >= 0; i--)
        EXPECT_OK(dsc_comm_wait(&requests[i]));
    for (int i = 0; i < 3; i++) {
        EXPECT(holds(&in[i].t, left, 10 * message_of[i]));
        buffer_drop(&out[i]);
        buffer_drop(&in[i]);
    }
}

static void test_allreduce(void **state) {
    (void)state;
    for_all_cases(case_allreduce);
}

static void test_reduce(void **state) {
    (void)state;
    for_all_cases(case_reduce);
}

static void test_broadcast(void **state) {
    (void)state;
    for_all_cases(case_broadcast);
}

static void test_allgather(void **state) {
    (void)state;
    for_all_cases(case_allgather);
}

static void test_reduce_scatter(void **state) {
    (void)state;
    for_all_cases(case_reduce_scatter);
}

static void test_ring(void **state) {
    (void)state;
    for_all_cases(case_ring);
}

/* Sums of halves are rounded as sums in float32 are, to nearest, ties to even: 257 is a tie in bf16 between
 * 256 and 258, 2051 in fp16 between 2050 and 2052. The second element of each keeps its last bit. */
static void test_half_rounding(void **state) {
    (void)state;
    buffer b = buffer_make(device, DSC_BF16, 2), f = buffer_make(device, DSC_F16, 2);
    set(&b.t, 0, rank == 0 ? 256 : rank == 1 ? 1 : 0);
    set(&b.t, 1, rank == 0 ? 128 : rank == 1 ? 1 : 0);
    set(&f.t, 0, rank == 0 ? 2048 : rank == 1 ? 3 : 0);
    set(&f.t, 1, rank == 0 ? 1024 : rank == 1 ? 1 : 0);
    EXPECT_OK(dsc_comm_allreduce(world, DSC_TRAFFIC_OTHER, DSC_SUM, &b.t));
    EXPECT_OK(dsc_comm_allreduce(world, DSC_TRAFFIC_OTHER, DSC_SUM, &f.t));
    EXPECT(get(&b.t, 0) == 256 && get(&b.t, 1) == (size > 1 ? 129 : 128));
    EXPECT(get(&f.t, 0) == (size > 1 ? 2052 : 2048) && get(&f.t, 1) == (size > 1 ? 1025 : 1024));
    buffer_drop(&b);
    buffer_drop(&f);
    all_fine(world);
}

/* ---- requests ---- */

/* Begins operations of all kinds, `n` of each, then completes them in an order of its own, by test and by
 * wait. */
static void storm(dsc_comm *comm, int n) {
    enum { MOST = 24 };
    buffer sum[MOST], cast[MOST], out[MOST], in[MOST];
    dsc_request *requests[4 * MOST];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int i = 0; i < n; i++) {
        sum[i] = buffer_make(device, DSC_F32, 10 + i);
        cast[i] = buffer_make(device, DSC_I64, 1 + i);
        out[i] = buffer_make(device, DSC_BF16, 20);
        in[i] = buffer_make(device, DSC_BF16, 20);
        fill(&sum[i].t, rank, i);
        fill(&cast[i].t, rank, i);
        fill(&out[i].t, rank, i);
        EXPECT_OK(dsc_comm_allreduce_begin(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &sum[i].t, &requests[4 * i]));
        EXPECT_OK(dsc_comm_recv_begin(comm, left, i, &in[i].t, &requests[4 * i + 1]));
        EXPECT_OK(
            dsc_comm_broadcast_begin(comm, DSC_TRAFFIC_OTHER, i % size, &cast[i].t, &requests[4 * i + 2]));
        EXPECT_OK(dsc_comm_send_begin(comm, DSC_TRAFFIC_OTHER, right, i, &out[i].t, &requests[4 * i + 3]));
    }
    for (int i = 4 * n - 1; i >= 0; i -= 2) /* the odd half is waited for, last first */
        EXPECT_OK(dsc_comm_wait(&requests[i]));
    int open = 2 * n;
    for (int k = 3 * rank; open > 0; k++) { /* the even half is tested, round and round */
        dsc_request **request = &requests[2 * (k % (2 * n))];
        int done = 0;
        if (!*request)
            continue;
        EXPECT_OK(dsc_comm_test(request, &done));
        EXPECT(done == (*request == NULL));
        open -= *request == NULL;
    }
    for (int i = 0; i < n; i++) {
        EXPECT(holds_reduced(&sum[i].t, DSC_SUM, size, i));
        EXPECT(holds(&cast[i].t, i % size, i));
        EXPECT(holds(&in[i].t, left, i));
        buffer_drop(&sum[i]);
        buffer_drop(&cast[i]);
        buffer_drop(&out[i]);
        buffer_drop(&in[i]);
    }
}

static void test_many_in_flight(void **state) {
    (void)state;
    storm(world, 24);
    storm(chopped, 24);
    all_fine(world);
}

/* Long operations really travel in pieces: 23 elements are four of SHORT_LIMIT. */
static void test_pieces(void **state) {
    (void)state;
    buffer part = buffer_make(device, DSC_F32, 23), all = buffer_make(device, DSC_F32, 23 * size);
    dsc_request *requests[4] = {NULL};
    int64_t expected[4] = {size > 1 ? 4 : 0, size > 1 ? 4 * size : 0, 4,
                           4}; /* one rank sends to itself only */
    fill(&part.t, rank, 0);
    EXPECT_OK(dsc_comm_allreduce_begin(chopped, DSC_TRAFFIC_OTHER, DSC_SUM, &part.t, &requests[0]));
    EXPECT(requests[0]->count == expected[0]);
    EXPECT_OK(dsc_comm_wait(&requests[0]));
    EXPECT_OK(dsc_comm_allgather_begin(chopped, DSC_TRAFFIC_OTHER, &part.t, &all.t, &requests[1]));
    EXPECT(requests[1]->count == expected[1]);
    EXPECT_OK(dsc_comm_wait(&requests[1]));
    dsc_tensor in = dsc_tensor_slice(&all.t, 0, 23);
    EXPECT_OK(dsc_comm_recv_begin(chopped, (rank + size - 1) % size, 9, &in, &requests[2]));
    EXPECT_OK(dsc_comm_send_begin(chopped, DSC_TRAFFIC_OTHER, (rank + 1) % size, 9, &part.t, &requests[3]));
    for (int i = 2; i < 4; i++) {
        EXPECT(requests[i]->count == expected[i]);
        EXPECT_OK(dsc_comm_wait(&requests[i]));
    }
    buffer_drop(&part);
    buffer_drop(&all);
    all_fine(world);
}

static void test_no_allocation_after_warm_up(void **state) {
    (void)state;
    storm(world, 6);
    storm(chopped, 6);
    int64_t before = dsc_memory_allocations();
    for (int i = 0; i < 5; i++) {
        storm(world, 6);
        storm(chopped, 6);
        EXPECT_OK(dsc_comm_agree(world, DSC_OK));
    }
    EXPECT(dsc_memory_allocations() == before);
    all_fine(world);
}

static void test_null_requests(void **state) {
    (void)state;
    dsc_request *request = NULL;
    int done = 0;
    EXPECT_OK(dsc_comm_wait(&request));
    EXPECT_OK(dsc_comm_wait(NULL));
    EXPECT_OK(dsc_comm_test(&request, &done));
    EXPECT(done == 1);
    dsc_comm *none = NULL;
    dsc_comm_destroy(&none);
    dsc_comm_destroy(NULL);
    EXPECT_OK(dsc_comm_barrier(world));
    all_fine(world);
}

/* ---- bytes ---- */

typedef enum counted { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, SEND } counted;

/* What comm.h promises, on its own words: n ranks, b bytes. */
static uint64_t promised(counted op, int root, uint64_t b) {
    uint64_t n = (uint64_t)size;
    switch (op) {
    case ALLREDUCE:
        return 2 * (n - 1) * b / n;
    case ALLGATHER:
    case REDUCE_SCATTER:
        return (n - 1) * (b * n) / n;
    case BROADCAST:
        return rank == root ? (n - 1) * b : 0;
    case REDUCE:
        return rank == root ? 0 : b;
    case SEND:
        return b;
    }
    return 0;
}

static void run_counted(dsc_comm *comm, dsc_traffic kind, counted op, int root, dsc_tensor *part,
                        dsc_tensor *all) {
    dsc_request *request = NULL, *receive = NULL;
    if (op == ALLREDUCE)
        EXPECT_OK(dsc_comm_allreduce_begin(comm, kind, DSC_SUM, part, &request));
    else if (op == REDUCE)
        EXPECT_OK(dsc_comm_reduce_begin(comm, kind, DSC_SUM, root, part, &request));
    else if (op == BROADCAST)
        EXPECT_OK(dsc_comm_broadcast_begin(comm, kind, root, part, &request));
    else if (op == ALLGATHER)
        EXPECT_OK(dsc_comm_allgather_begin(comm, kind, part, all, &request));
    else if (op == REDUCE_SCATTER)
        EXPECT_OK(dsc_comm_reduce_scatter_begin(comm, kind, DSC_SUM, all, part, &request));
    else {
        dsc_tensor in = dsc_tensor_slice(all, 0, dsc_tensor_count(part));
        EXPECT_OK(dsc_comm_send_begin(comm, kind, (rank + 1) % size, 0, part, &request));
        EXPECT_OK(dsc_comm_recv_begin(comm, (rank + size - 1) % size, 0, &in, &receive));
    }
    EXPECT_OK(dsc_comm_wait(&request));
    EXPECT_OK(dsc_comm_wait(&receive));
}

static void test_bytes(void **state) {
    (void)state;
    dsc_comm *comms[2] = {world, chopped};
    for (int i = 0; i < 2 * 6 * size; i++) {
        dsc_comm *comm = comms[i % 2];
        counted op = (counted)(i / 2 % 6);
        dsc_traffic kind =
            (dsc_traffic)(i % (DSC_TRAFFIC_COUNT - 1)); /* not OTHER: agreeing is counted there */
        int root = i / 12;
        buffer part = buffer_make(device, DSC_F32, 37), all = buffer_make(device, DSC_F32, 37 * size);
        fill(&part.t, rank, 0);
        fill(&all.t, rank, 0);
        uint64_t before[DSC_TRAFFIC_COUNT];
        for (int k = 0; k < DSC_TRAFFIC_COUNT; k++)
            before[k] = dsc_comm_bytes(comm, (dsc_traffic)k);
        run_counted(comm, kind, op, root, &part.t, &all.t);
        for (int k = 0; k < DSC_TRAFFIC_COUNT; k++) {
            uint64_t sent = dsc_comm_bytes(comm, (dsc_traffic)k) - before[k];
            EXPECT(sent == ((int)kind == k ? promised(op, root, 37 * 4) : 0));
        }
        buffer_drop(&part);
        buffer_drop(&all);
    }
    all_fine(world);
}

static void test_traffic_names(void **state) {
    (void)state;
    static const char *const names[] = {"gradients",      "factors",    "decompositions",
                                        "preconditioned", "parameters", "other"};
    for (int k = 0; k < DSC_TRAFFIC_COUNT; k++)
        EXPECT(strcmp(dsc_traffic_name((dsc_traffic)k), names[k]) == 0);
    all_fine(world);
}

/* ---- groups ---- */

/* All ranks of `group` pass their rank in world; everyone must find `expected` ranks in this order. */
static void expect_members(dsc_comm *group, const int *expected, int count) {
    buffer own = buffer_make(device, DSC_I32, 1), all = buffer_make(device, DSC_I32, count);
    dsc_request *request = NULL;
    EXPECT(dsc_comm_size(group) == count);
    set(&own.t, 0, rank);
    EXPECT_OK(dsc_comm_allgather_begin(group, DSC_TRAFFIC_FACTORS, &own.t, &all.t, &request));
    EXPECT_OK(dsc_comm_wait(&request));
    for (int i = 0; i < count; i++) {
        EXPECT(get(&all.t, i) == expected[i]);
        EXPECT((expected[i] == rank) == (dsc_comm_rank(group) == i));
    }
    EXPECT(dsc_comm_local_rank(group) < dsc_comm_local_size(group));
    EXPECT(dsc_comm_local_size(group) <= count);
    EXPECT(dsc_comm_threads(group) == dsc_comm_threads(world));
    EXPECT(strcmp(dsc_comm_name(group), expected_name) == 0);
    buffer_drop(&own);
    buffer_drop(&all);
}

/* Rows and columns of a grid two wide; columns ordered backwards by their keys. */
static void test_grid(void **state) {
    (void)state;
    dsc_comm *row = NULL, *column = NULL, *inner = NULL;
    int members[16], count = 0;
    EXPECT_OK(dsc_comm_split(world, rank / 2, 0, &row));
    for (int r = rank / 2 * 2; r < size && r < rank / 2 * 2 + 2; r++)
        members[count++] = r;
    uint64_t before = dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS);
    expect_members(row, members, count);
    EXPECT(dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS) - before == 4 * (uint64_t)(count - 1));

    EXPECT_OK(dsc_comm_split(world, rank % 2, -rank, &column));
    count = 0;
    for (int r = size - 1; r >= 0; r--) {
        if (r % 2 == rank % 2)
            members[count++] = r;
    }
    expect_members(column, members, count);

    /* A group of a group counts in the first communicator, too, and outlives the one it came from. */
    EXPECT_OK(dsc_comm_split(column, 0, rank, &inner));
    dsc_comm_destroy(&column);
    EXPECT(column == NULL);
    for (int i = 0; i < count / 2; i++) {
        int swap = members[i];
        members[i] = members[count - 1 - i];
        members[count - 1 - i] = swap;
    }
    before = dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS);
    expect_members(inner, members, count);
    EXPECT(dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS) - before == 4 * (uint64_t)(count - 1));
    dsc_comm_destroy(&inner);
    dsc_comm_destroy(&row);
    all_fine(world);
}

static void test_left_out(void **state) {
    (void)state;
    dsc_comm *group = world;
    EXPECT_OK(dsc_comm_split(world, rank == 0 ? -1 : 7, 0, &group));
    EXPECT((group == NULL) == (rank == 0));
    if (group) {
        EXPECT(dsc_comm_size(group) == size - 1 && dsc_comm_rank(group) == rank - 1);
        EXPECT_OK(dsc_comm_barrier(group));
    }
    dsc_comm_destroy(&group);
    all_fine(world);
}

/* A group keeps the message limit: a long sum and a long gather inside it come out right. */
static void test_group_is_chopped(void **state) {
    (void)state;
    dsc_comm *group = NULL;
    EXPECT_OK(dsc_comm_split(chopped, 0, 0, &group));
    case_allreduce(group, DSC_F32, 50);
    case_allgather(group, DSC_I32, 50);
    case_reduce_scatter(group, DSC_BF16, 50);
    dsc_comm_destroy(&group);
    all_fine(world);
}

/* ---- errors ---- */

static void test_agree(void **state) {
    (void)state;
    EXPECT_OK(dsc_comm_agree(world, DSC_OK));
    for (int failing = 0; failing < size; failing++) {
        dsc_status own = rank == failing ? DSC_FAIL(DSC_E_IO, "disk %d is full", failing) : DSC_OK;
        char text[64];
        snprintf(text, sizeof text, "disk %d is full", failing);
        EXPECT_FAILS(DSC_E_IO, text, dsc_comm_agree(world, own));
    }
    if (size > 2) { /* two fail: each keeps its own, the others hear the lower one */
        dsc_status own = rank > 0 && rank < 3 ? DSC_FAIL(DSC_E_NUMERIC, "loss %d", rank) : DSC_OK;
        EXPECT_FAILS(DSC_E_NUMERIC, rank == 2 ? "loss 2" : "rank 1: loss 1", dsc_comm_agree(chopped, own));
    }
    EXPECT_OK(dsc_comm_agree(chopped, DSC_OK));
    all_fine(world);
}

static void test_bad_arguments(void **state) {
    (void)state;
    dsc_request *request = NULL;
    buffer b = buffer_make(device, DSC_F32, 4), longer = buffer_make(device, DSC_F32, 4 * size + 1);
    dsc_tensor all = dsc_tensor_slice(&longer.t, 0, 4 * size);
    dsc_tensor no_device = b.t, no_memory = b.t, odd_type = b.t, doubles = all;
    no_device.device = NULL;
    no_memory.data = NULL;
    odd_type.dtype = (dsc_dtype)99;
    doubles.dtype = DSC_F64;
    EXPECT_FAILS(DSC_E_INVALID, "no device",
                 dsc_comm_allreduce(world, DSC_TRAFFIC_OTHER, DSC_SUM, &no_device));
    EXPECT_FAILS(DSC_E_INVALID, "without memory",
                 dsc_comm_allreduce(world, DSC_TRAFFIC_OTHER, DSC_SUM, &no_memory));
    EXPECT_FAILS(DSC_E_INVALID, "type 99", dsc_comm_allreduce(world, DSC_TRAFFIC_OTHER, DSC_SUM, &odd_type));
    EXPECT_FAILS(DSC_E_INVALID, "traffic kind 6",
                 dsc_comm_allreduce(world, DSC_TRAFFIC_COUNT, DSC_SUM, &b.t));
    EXPECT_FAILS(DSC_E_INVALID, "reduction 3",
                 dsc_comm_allreduce(world, DSC_TRAFFIC_OTHER, (dsc_reduction)3, &b.t));
    EXPECT_FAILS(DSC_E_INVALID, "rank -1", dsc_comm_broadcast(world, DSC_TRAFFIC_OTHER, -1, &b.t));
    EXPECT_FAILS(DSC_E_INVALID, "the communicator has ranks 0 to",
                 dsc_comm_reduce_begin(world, DSC_TRAFFIC_OTHER, DSC_SUM, size, &b.t, &request));
    EXPECT_FAILS(DSC_E_INVALID, "tag 32768",
                 dsc_comm_send_begin(world, DSC_TRAFFIC_OTHER, 0, 32768, &b.t, &request));
    EXPECT_FAILS(DSC_E_INVALID, "tag -1", dsc_comm_recv_begin(world, 0, -1, &b.t, &request));
    dsc_tensor three = dsc_tensor_slice(&b.t, 0, 3);
    EXPECT_FAILS(DSC_E_INVALID, "need",
                 dsc_comm_allgather_begin(world, DSC_TRAFFIC_OTHER, &three, &b.t, &request));
    EXPECT_FAILS(DSC_E_INVALID, "one type",
                 dsc_comm_allgather_begin(world, DSC_TRAFFIC_OTHER, &b.t, &doubles, &request));
    dsc_tensor inside = dsc_tensor_slice(&longer.t, rank * 4 + 1, 4);
    EXPECT_FAILS(DSC_E_INVALID, "share memory",
                 dsc_comm_allgather_begin(world, DSC_TRAFFIC_OTHER, &inside, &all, &request));
    inside = dsc_tensor_slice(&all, rank * 4, 4);
    EXPECT_FAILS(DSC_E_INVALID, "share memory",
                 dsc_comm_reduce_scatter_begin(world, DSC_TRAFFIC_OTHER, DSC_SUM, &all, &inside, &request));
    EXPECT(request == NULL);
    buffer_drop(&b);
    buffer_drop(&longer);
    all_fine(world);
}

static void test_bad_options(void **state) {
    (void)state;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "carrier pigeon";
    EXPECT_FAILS(DSC_E_INVALID, "carrier pigeon", dsc_comm_create(&options, &comm));
    dsc_comm_options_init(&options);
    options.message_limit = -1;
    EXPECT_FAILS(DSC_E_INVALID, "message_limit -1", dsc_comm_create(&options, &comm));
    options.message_limit = (int64_t)1 << 31;
    EXPECT_FAILS(DSC_E_INVALID, "message_limit 2147483648", dsc_comm_create(&options, &comm));
    options.size = 0;
    EXPECT_FAILS(DSC_E_INVALID, "dsc_comm_options_init", dsc_comm_create(&options, &comm));
    dsc_comm_options_init(&options);
    options.kind = "nccl";
    options.survive = 1;
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "survive", dsc_comm_create(&options, &comm));
    EXPECT(comm == NULL);
#ifndef DSC_HAVE_NCCL
    dsc_comm_options_init(&options);
    options.kind = "nccl";
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "no NCCL", dsc_comm_create(&options, &comm));
#endif
#ifndef DSC_HAVE_MPI
    dsc_comm_options_init(&options);
    options.kind = "mpi";
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "no MPI", dsc_comm_create(&options, &comm));
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "no MPI", dsc_comm_check_kind("mpi"));
#else
    dsc_comm_options_init(&options);
    options.kind = "mpi:lam"; /* one MPI is linked in */
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "communicator kind 'mpi:lam'", dsc_comm_create(&options, &comm));
    EXPECT_OK(dsc_comm_check_kind("mpi"));
    EXPECT_OK(dsc_comm_check_kind("mpi:" DSC_MPI_LIBRARY));
#endif
    EXPECT_OK(dsc_comm_check_kind("self"));
    EXPECT_FAILS(DSC_E_INVALID, "carrier pigeon", dsc_comm_check_kind("carrier pigeon"));
    EXPECT_FAILS(DSC_E_INVALID, "no communicator kind", dsc_comm_check_kind(NULL));
    all_fine(world);
}

/* A wait that timed out names its operation and leaves it in flight: it can be waited for again. */
static void test_timeout(void **state) {
    (void)state;
    dsc_comm *group = NULL, *part = NULL;
    dsc_request *request = NULL;
    int alarmed = 1;
    int32_t value = 40 + rank;
    buffer b = buffer_make(device, DSC_I32, 1);
    write_tensor(&b.t, &value);
    EXPECT_OK(dsc_comm_split(world, 0, rank, &group));
    EXPECT_FAILS(DSC_E_INVALID, "timeout -1 s", dsc_comm_set_timeout(group, -1));
    EXPECT_FAILS(DSC_E_INVALID, "must be 0 (none) or more", dsc_comm_set_timeout(group, (double)NAN));
    EXPECT_OK(dsc_comm_is_alarmed(group, &alarmed));
    EXPECT(alarmed == 0);
    EXPECT_OK(dsc_comm_set_timeout(group, 0.02));
    EXPECT_OK(dsc_comm_split(group, 0, rank, &part)); /* has it, too */
    EXPECT_FAILS(DSC_E_INVALID, "dsc_comm_options.survive", dsc_comm_survivors(part, 1, &part));
    if (rank == 1) {
        EXPECT_OK(dsc_comm_recv_begin(part, 0, 5, &b.t, &request));
        if (!limited)
            EXPECT_FAILS(
                DSC_E_COMM,
                "recv with tag 5 from rank 0: not complete after 0.02 s: a rank has ended, hangs or is slow",
                dsc_comm_wait(&request));
        EXPECT(request != NULL);
    }
    EXPECT_OK(dsc_comm_barrier(world));
    EXPECT_OK(dsc_comm_set_timeout(part, 100));
    if (rank == 0 && size > 1)
        EXPECT_OK(dsc_comm_send_begin(part, DSC_TRAFFIC_OTHER, 1, 5, &b.t, &request));
    EXPECT_OK(dsc_comm_wait(&request));
    EXPECT(request == NULL);
    read_tensor(&b.t, &value);
    EXPECT(rank != 1 || value == 40);
    buffer_drop(&b);
    EXPECT_OK(dsc_comm_barrier(part));
    dsc_comm_destroy(&part);
    dsc_comm_destroy(&group);
    all_fine(world);
}

/* A message of another length than the receive expects is reported by the receiver. */
static void test_wrong_length(void **state) {
    (void)state;
    for (int longer = 0; longer < 2; longer++) {
        buffer out = buffer_make(device, DSC_F32, longer ? 6 : 3),
               in = buffer_make(device, DSC_F32, longer ? 3 : 6);
        dsc_request *send = NULL, *receive = NULL;
        fill(&out.t, rank, 0);
        EXPECT_OK(dsc_comm_send_begin(world, DSC_TRAFFIC_OTHER, (rank + 1) % size, 3, &out.t, &send));
        dsc_status status = dsc_comm_recv_begin(world, (rank + size - 1) % size, 3, &in.t, &receive);
        if (status == DSC_OK)
            status = dsc_comm_wait(&receive);
        const char *text =
            longer && strcmp(expected_name, "mpi") == 0 ? "runcat" : "expected"; /* MPI's own */
        EXPECT_FAILS(DSC_E_COMM, text, status);
        EXPECT(receive == NULL);
        EXPECT_OK(dsc_comm_wait(&send));
        buffer_drop(&out);
        buffer_drop(&in);
    }
    all_fine(world);
}

/* ---- memory that the host cannot reach ---- */

/* Without a queue to order copies by, or with one of another device, nothing is touched; with one rank only
 * what copies needs it. */
static void test_far_needs_a_queue(void **state) {
    (void)state;
    dsc_device *far = far_create();
    dsc_comm *group = NULL;
    dsc_request *request = NULL;
    dsc_queue *far_queue = NULL;
    float x[2] = {1, 2};
    int64_t two = 2;
    dsc_tensor t = dsc_tensor_view(far, far_inside(x), DSC_F32, 1, &two);
    dsc_tensor near = dsc_tensor_view(device, x, DSC_F32, 1, &two);
    EXPECT_OK(dsc_comm_split(world, 0, rank, &group));
    EXPECT_OK(dsc_comm_use_queue(group, NULL));
    EXPECT_FAILS(DSC_E_INVALID, "dsc_comm_use_queue first", dsc_comm_recv_begin(group, 0, 1, &t, &request));
    if (size > 1)
        EXPECT_FAILS(DSC_E_INVALID, "'far'", dsc_comm_allreduce(group, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    else
        EXPECT_OK(dsc_comm_allreduce(group, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    EXPECT_OK(dsc_comm_use_queue(group, place_queue));
    EXPECT_FAILS(DSC_E_INVALID, "another device", dsc_comm_recv_begin(group, 0, 1, &t, &request));
    if (size == 1) {
        EXPECT_FAILS(DSC_E_INVALID, "all in that of 'far'",
                     dsc_comm_allgather_begin(group, DSC_TRAFFIC_OTHER, &near, &t, &request));
        EXPECT_OK(dsc_queue_create(far, &far_queue));
        EXPECT_OK(dsc_comm_use_queue(group, far_queue));
        EXPECT(dsc_comm_records(group));
    }
    EXPECT(dsc_comm_records(group) == (size == 1) && request == NULL);
    EXPECT_OK(dsc_comm_agree(group, DSC_OK));
    dsc_comm_destroy(&group);
    dsc_queue_destroy(&far_queue);
    free(far);
    all_fine(world);
}

/* Copies are made where they are needed and nowhere else; host memory for them is taken once. */
static void test_far_copies(void **state) {
    (void)state;
    dsc_device *far = far_create();
    dsc_queue *q = NULL;
    dsc_comm *group = NULL;
    int64_t n = 100;
    dsc_tensor t;
    int copies = size > 1;
    EXPECT_OK(dsc_queue_create(far, &q));
    EXPECT_OK(dsc_comm_split(world, 0, rank, &group));
    EXPECT_OK(dsc_comm_use_queue(group, q));
    assert_ok(dsc_tensor_alloc(far, DSC_F32, 1, &n, &t));
    far_work.downloads = far_work.uploads = far_work.syncs = far_work.host_allocations = 0;
    for (int round = 0; round < 3; round++) {
        dsc_request *first = NULL, *second = NULL;
        dsc_tensor half = dsc_tensor_slice(&t, 50, 50), other = dsc_tensor_slice(&t, 0, 20);
        EXPECT_OK(dsc_comm_allreduce_begin(group, DSC_TRAFFIC_OTHER, DSC_SUM, &half, &first));
        EXPECT_OK(dsc_comm_broadcast_begin(group, DSC_TRAFFIC_OTHER, 0, &other, &second));
        EXPECT_OK(dsc_comm_wait(&second));
        EXPECT_OK(dsc_comm_wait(&first));
        EXPECT(far_work.host_allocations == (copies ? 2 : 0));
        EXPECT(far_work.downloads == (copies ? (rank == 0 ? 2 : 1) * (round + 1) : 0));
        EXPECT(far_work.uploads == (copies ? (rank == 0 ? 1 : 2) * (round + 1) : 0));
        EXPECT((far_work.syncs > 0) == copies);
    }
    dsc_tensor_free(&t);
    dsc_queue_destroy(&q);
    free(far); /* a communicator may live longer than the device */
    dsc_comm_destroy(&group);
    all_fine(world);
}

/* What has arrived is on its way to the device while the next message is received: none ends up in the
 * other's place. */
static void test_far_reuse(void **state) {
    (void)state;
    enum { MESSAGES = 4 };
    buffer b[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        b[i] = buffer_make(device, DSC_F32, 500);
        fill(&b[i].t, rank, i);
    }
    for (int i = 0; i < MESSAGES; i++)
        EXPECT_OK(dsc_comm_broadcast(world, DSC_TRAFFIC_OTHER, 0, &b[i].t));
    for (int i = 0; i < MESSAGES; i++) {
        EXPECT(holds(&b[i].t, 0, i));
        buffer_drop(&b[i]);
    }
    all_fine(world);
}

/* ---- self, and the choice of the backend ---- */

static dsc_status create_self(dsc_comm **comm) {
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "self";
    return dsc_comm_create(&options, comm);
}

/* Waiting for a message that nobody can send any more is an error, not a hang. */
static void test_self_never_hangs(void **state) {
    (void)state;
    dsc_comm *self = NULL;
    dsc_request *request = NULL;
    int done = 1;
    buffer b = buffer_make(device, DSC_F32, 4);
    assert_ok(create_self(&self));
    EXPECT_OK(dsc_comm_use_queue(self, place_queue));
    EXPECT(dsc_comm_size(self) == 1 && dsc_comm_threads(self) >= 1);
    EXPECT(strcmp(dsc_comm_name(self), "self") == 0);
    EXPECT_OK(dsc_comm_recv_begin(self, 0, 1, &b.t, &request));
    EXPECT_OK(dsc_comm_test(&request, &done));
    EXPECT(!done && request);
    EXPECT_FAILS(DSC_E_COMM, "recv with tag 1", dsc_comm_wait(&request));
    EXPECT_OK(dsc_comm_send_begin(self, DSC_TRAFFIC_OTHER, 0, 2, &b.t, &request));
    EXPECT_FAILS(DSC_E_COMM, "send with tag 2", dsc_comm_wait(&request));
    EXPECT_OK(dsc_comm_recv_begin(self, 0, 1, &b.t, &request)); /* left in flight: destroying takes care */
    dsc_comm_destroy(&self);
    buffer_drop(&b);
    all_fine(world);
}

/* Every allocation fails once; nothing leaks (the sanitizers watch) and nothing is returned. */
static void test_allocation_failures(void **state) {
    (void)state;
    dsc_status status = DSC_E_MEMORY;
    for (int nth = 1; status != DSC_OK && nth < 100; nth++) {
        dsc_comm *self = NULL, *group = NULL;
        dsc_request *request = NULL;
        buffer b = buffer_make(device, DSC_F32, 4);
        dsc_memory_fail_at(nth);
        status = create_self(&self);
        EXPECT((status == DSC_OK) == (self != NULL));
        if (status == DSC_OK)
            status = dsc_comm_use_queue(self, place_queue);
        if (status == DSC_OK)
            status = dsc_comm_split(self, 0, 0, &group);
        EXPECT((status == DSC_OK) == (group != NULL));
        if (status == DSC_OK)
            status = dsc_comm_recv_begin(group, 0, 0, &b.t, &request);
        EXPECT((status == DSC_OK) == (request != NULL));
        dsc_memory_fail_at(0);
        EXPECT(status == DSC_OK || status == DSC_E_MEMORY);
        dsc_comm_destroy(&group);
        dsc_comm_destroy(&self);
        buffer_drop(&b);
    }
    EXPECT(status == DSC_OK);
    all_fine(world);
}

static void test_properties(void **state) {
    (void)state;
    EXPECT(strcmp(dsc_comm_name(world), expected_name) == 0);
    EXPECT(strncmp(dsc_comm_description(world), expected_name, strlen(expected_name)) == 0);
    EXPECT(strlen(dsc_comm_description(world)) > strlen(expected_name) + 5);
    EXPECT(strchr(dsc_comm_description(world), '\n') == NULL);
    EXPECT(rank >= 0 && rank < size);
    EXPECT(dsc_comm_local_rank(world) >= 0 && dsc_comm_local_rank(world) < dsc_comm_local_size(world));
    EXPECT(dsc_comm_local_size(world) <= size);
    int cpus = 0;
    uint64_t hash = 0;
    dsc_affinity(&cpus, &hash);
    int threads = dsc_comm_threads(world);
    EXPECT(threads >= 1 && threads <= cpus);
    EXPECT(size > 1 || threads == cpus);
    const dsc_mpi_functions *mpi = NULL;
    EXPECT_OK(dsc_mpi_find_running(&mpi));
    EXPECT((mpi != NULL) == (strcmp(expected_name, "self") != 0)); /* self does not even initialise MPI */
    all_fine(world);
}

/* `library`: of the launcher; NULL: not known. */
static void expect_launcher(const char *name, const char *value, int expected, const char *library) {
    assert_int_equal(setenv(name, value, 1), 0);
    EXPECT(dsc_launcher_size() == expected);
    const char *found = dsc_launcher_library();
    EXPECT(library ? found && strcmp(found, library) == 0 : !found);
    assert_int_equal(unsetenv(name), 0);
}

/* Only without a launcher, whose environment variables would change the result. */
static void test_launcher(void **state) {
    (void)state;
    if (strcmp(expected_name, "self") != 0) {
        EXPECT(dsc_launcher_size() == size);
        all_fine(world);
        return;
    }
    EXPECT(dsc_launcher_size() == 0 && !dsc_launcher_library());
    expect_launcher("OMPI_COMM_WORLD_SIZE", "4", 4, "openmpi");
    expect_launcher("PMI_SIZE", "3", 3, "mpich");
    expect_launcher("PMIX_RANK", "0", 1, "openmpi");
    expect_launcher("MV2_COMM_WORLD_SIZE", "2", 2, "mpich");
    expect_launcher("PALS_RANKID", "2", 1, "mpich");
    expect_launcher("PMI_RANK", "2", 1, "mpich");
    expect_launcher("SLURM_NTASKS", "8", 0, NULL); /* a batch script, not a step */
    assert_int_equal(setenv("SLURM_PROCID", "0", 1), 0);
    expect_launcher("SLURM_STEP_NUM_TASKS", "8", 8, NULL);
    expect_launcher("SLURM_STEP_NUM_TASKS", "1", 0, NULL);
    assert_int_equal(unsetenv("SLURM_PROCID"), 0);
    expect_launcher("PMI_SIZE", "many", 0, "mpich");
    all_fine(world);
}

/* ---- */

static int setup(void **state) {
    (void)state;
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.survive = limited;
    assert_ok(dsc_comm_create(&options, &world));
    place_open(&world);
    device = place_device;
    options.message_limit = SHORT_LIMIT;
    assert_ok(dsc_comm_create(&options, &chopped));
    if (limited) {
        assert_ok(dsc_comm_set_timeout(world, 100));
        assert_ok(dsc_comm_set_timeout(chopped, 100));
    }
    assert_ok(dsc_comm_use_queue(chopped, place_queue));
    rank = dsc_comm_rank(world);
    size = dsc_comm_size(world);
    silence_other_ranks(world);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_comm_destroy(&chopped);
    dsc_comm_destroy(&world);
    place_close();
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_launcher),
        cmocka_unit_test(test_allreduce),
        cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_allgather),
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_half_rounding),
        cmocka_unit_test(test_many_in_flight),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_no_allocation_after_warm_up),
        cmocka_unit_test(test_null_requests),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_traffic_names),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_group_is_chopped),
        cmocka_unit_test(test_agree),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_wrong_length),
        cmocka_unit_test(test_far_needs_a_queue),
        cmocka_unit_test(test_far_copies),
        cmocka_unit_test(test_far_reuse),
        cmocka_unit_test(test_self_never_hangs),
        cmocka_unit_test(test_allocation_failures),
    };
    if (argc > 1)
        expected_name = argv[1];
    limited = argc > 2;
    start_watchdog(120);
    return cmocka_run_group_tests_name("comm", tests, setup, teardown);
}

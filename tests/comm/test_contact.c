/* Communicators that an exchange function has brought together, without NCCL: host memory on the first one
 * by exchange (implemented with MPI), and on communicators split from it through a device whose memory the
 * host cannot touch (far.h). Between such devices memory is moved by a table that stands in for NCCL's. */
#include "comm/buffer.h"

#include "comm/contact/contact.h"

#include <mpi.h>

static dsc_comm *truth; /* by MPI: all tests agree by it */
static dsc_comm *world; /* by contact */
static dsc_device *device, *far;
static dsc_queue *far_queue;
static int rank, size;
static int exchanges, closed, broken;

static const dsc_dtype dtypes[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16, DSC_I32, DSC_I64, DSC_U8};
static const dsc_reduction reductions[] = {DSC_SUM, DSC_MAX, DSC_MIN};

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static dsc_status exchange(void *context, const void *own, size_t bytes, void *all) {
    exchanges++;
    if (broken)
        return broken == 1 ? dsc_error_set(DSC_E_IO, "no route") : DSC_E_IO;
    int code = MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)context);
    return code == MPI_SUCCESS ? DSC_OK : dsc_error_set(DSC_E_COMM, "MPI_Allgather failed");
}

static void close_contact(void *context) {
    (void)context;
    closed++;
}

static dsc_comm_contact contact_of_all(void) {
    static MPI_Comm all = MPI_COMM_WORLD;
    dsc_comm_contact c;
    dsc_comm_contact_init(&c);
    c.context = &all;
    c.rank = rank;
    c.ranks = size;
    c.local_rank = dsc_comm_local_rank(truth);
    c.local_ranks = dsc_comm_local_size(truth);
    c.exchange = exchange;
    c.close = close_contact;
    return c;
}

/* ---- a stand-in for NCCL: between devices of far.h ---- */

/* Blocks, in the order of the queue. The memory is that of the communicator of the same ranks by MPI. */
static dsc_status stand_in_start(dsc_comm *comm, const dsc_transfer *transfer, dsc_piece *piece) {
    dsc_transfer inside = *transfer;
    piece->handle.number = 2; /* polls until it is done */
    far_catch_up(comm->queue->state);
    inside.send = far_inside(transfer->send);
    inside.recv = far_inside(transfer->recv);
    return dsc_comm_run(comm->device_state, &inside);
}

static dsc_status stand_in_test(dsc_comm *comm, dsc_piece *piece, int *done) {
    (void)comm;
    *done = piece->handle.number-- == 0;
    return DSC_OK;
}

static dsc_status stand_in_wait(dsc_comm *comm, dsc_piece *piece) {
    (void)comm, (void)piece;
    return DSC_OK;
}

static void stand_in_close(dsc_comm *comm) {
    dsc_comm *by_mpi = comm->device_state;
    dsc_comm_destroy(&by_mpi);
}

static const dsc_comm_table stand_in = {.name = "stand-in",
                                        .close = stand_in_close,
                                        .start = stand_in_start,
                                        .test = stand_in_test,
                                        .wait = stand_in_wait};

/* ---- collective operations, on any of the communicators, whose rank r has the elements of rank r ---- */

static void expect_reductions(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    int me = dsc_comm_rank(comm), ranks = dsc_comm_size(comm);
    for (int o = 0; o < LENGTH(reductions); o++) {
        buffer b = buffer_make(device, dtype, count), all = buffer_make(device, dtype, count * ranks);
        dsc_request *request = NULL;
        int root = o % ranks;
        fill(&b.t, me, 3);
        EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, reductions[o], &b.t));
        EXPECT(holds_reduced(&b.t, reductions[o], ranks, 3));
        fill(&b.t, me, 1);
        EXPECT_OK(dsc_comm_reduce_begin(comm, DSC_TRAFFIC_OTHER, reductions[o], root, &b.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        EXPECT(me == root ? holds_reduced(&b.t, reductions[o], ranks, 1) : holds(&b.t, me, 1));
        fill(&all.t, me, 0);
        EXPECT_OK(
            dsc_comm_reduce_scatter_begin(comm, DSC_TRAFFIC_OTHER, reductions[o], &all.t, &b.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        EXPECT(holds_reduced(&b.t, reductions[o], ranks, me * count) && holds(&all.t, me, 0));
        buffer_drop(&b);
        buffer_drop(&all);
    }
}

static void expect_copies(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    int me = dsc_comm_rank(comm), ranks = dsc_comm_size(comm);
    for (int round = 0; round < 2 * ranks; round++) {
        int root = round / 2, done = 0;
        buffer b = buffer_make(device, dtype, count), all = buffer_make(device, dtype, count * ranks);
        dsc_tensor own = round % 2 ? dsc_tensor_slice(&all.t, me * count, count) : b.t;
        dsc_request *request = NULL;
        fill(&own, me, 2);
        EXPECT_OK(dsc_comm_allgather_begin(comm, DSC_TRAFFIC_OTHER, &own, &all.t, &request));
        while (!done)
            EXPECT_OK(dsc_comm_test(&request, &done));
        for (int r = 0; r < ranks; r++) {
            dsc_tensor place = dsc_tensor_slice(&all.t, r * count, count);
            EXPECT(holds(&place, r, 2));
        }
        fill(&b.t, me, root);
        EXPECT_OK(dsc_comm_broadcast(comm, DSC_TRAFFIC_OTHER, root, &b.t));
        EXPECT(holds(&b.t, root, root));
        buffer_drop(&b);
        buffer_drop(&all);
    }
}

static void test_collectives(void **state) {
    static const int64_t counts[] = {0, 1, 7, 1000};
    (void)state;
    for (int d = 0; d < LENGTH(dtypes); d++) {
        for (int c = 0; c < LENGTH(counts); c++) {
            expect_reductions(world, dtypes[d], counts[c]);
            expect_copies(world, dtypes[d], counts[c]);
        }
    }
    EXPECT_OK(dsc_comm_barrier(world));
    all_fine(truth);
}

/* Long vectors are exchanged in pieces. */
static void test_long(void **state) {
    (void)state;
    enum { COUNT = 5000003 };
    int before = exchanges;
    expect_copies(world, DSC_U8, COUNT);
    int pieces = (exchanges - before) / (4 * size);
    EXPECT(size == 1 || pieces == (COUNT * size + (1 << 24) - 1) / (1 << 24));
    all_fine(truth);
}

static void test_agree(void **state) {
    (void)state;
    EXPECT_OK(dsc_comm_agree(world, DSC_OK));
    dsc_status own = rank == size - 1 ? DSC_FAIL(DSC_E_IO, "disk full") : DSC_OK;
    EXPECT_FAILS(DSC_E_IO, "disk full", dsc_comm_agree(world, own));
    all_fine(truth);
}

/* ---- groups ---- */

/* Gives a communicator that was split from `world` the transport between devices. */
static void give_transport(dsc_comm *group, int colour, int key) {
    dsc_comm *by_mpi = NULL;
    EXPECT_OK(dsc_comm_split(truth, colour, key, &by_mpi));
    group->device_state = by_mpi;
    group->device_table = &stand_in;
    group->queue = far_queue;
}

static void test_groups(void **state) {
    (void)state;
    dsc_comm *alone = NULL, *group = NULL, *left = NULL;
    EXPECT_OK(dsc_comm_split(world, rank, 0, &alone));
    EXPECT(dsc_comm_size(alone) == 1 && dsc_comm_rank(alone) == 0);
    EXPECT_OK(dsc_comm_agree(alone, DSC_OK));
    EXPECT_OK(dsc_comm_barrier(alone));
    dsc_comm_destroy(&alone);
    EXPECT_OK(dsc_comm_split(world, rank == 0 ? -1 : 5, 0, &left));
    EXPECT((left == NULL) == (rank == 0));
    EXPECT(!left || (dsc_comm_size(left) == size - 1 && dsc_comm_rank(left) == rank - 1));
    dsc_comm_destroy(&left);
    EXPECT_OK(dsc_comm_split(world, rank % 2, -rank, &group));
    int members = 0, after = 0;
    for (int r = rank % 2; r < size; r += 2) {
        members++;
        after += r > rank;
    }
    EXPECT(dsc_comm_size(group) == members && dsc_comm_rank(group) == after);
    EXPECT(dsc_comm_local_size(group) == members && dsc_comm_local_rank(group) == after);
    if (members > 1)
        EXPECT_FAILS(DSC_E_UNSUPPORTED, "dsc_comm_use_queue", dsc_comm_agree(group, DSC_OK));
    dsc_comm_destroy(&group);
    EXPECT(closed == 0);
    all_fine(truth);
}

static void test_through_the_device(void **state) {
    (void)state;
    dsc_comm *group = NULL, *inner = NULL;
    EXPECT_OK(dsc_comm_split(world, rank % 2, -rank, &group));
    give_transport(group, rank % 2, -rank);
    int before = exchanges;
    for (int d = 0; d < LENGTH(dtypes); d++) {
        expect_reductions(group, dtypes[d], 37);
        expect_copies(group, dtypes[d], 37);
    }
    EXPECT_OK(dsc_comm_barrier(group));
    EXPECT_OK(dsc_comm_agree(group, DSC_OK));
    EXPECT_OK(dsc_comm_set_timeout(group, 100)); /* limited waits poll */
    expect_reductions(group, DSC_F32, 5);
    EXPECT(exchanges == before);
    int downloads = (int)far_work.downloads;
    EXPECT_OK(dsc_comm_agree(group, DSC_OK));
    EXPECT(dsc_comm_size(group) == 1 || far_work.downloads == downloads + 1);
    group->device_table = NULL; /* parts of a part get no transport of NCCL here */
    EXPECT(dsc_comm_size(group) > 1 || dsc_comm_split(group, 0, 0, &inner) == DSC_OK);
    dsc_comm_destroy(&inner);
    group->device_table = &stand_in;
    dsc_comm_destroy(&group);
    all_fine(truth);
}

/* Messages go through the device on every communicator that has one. */
static void test_messages(void **state) {
    (void)state;
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    buffer out = buffer_make(device, DSC_I32, 9), in = buffer_make(device, DSC_I32, 9);
    dsc_request *send = NULL, *receive = NULL;
    fill(&out.t, rank, 4);
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "send of host memory",
                 dsc_comm_send_begin(world, DSC_TRAFFIC_OTHER, right, 1, &out.t, &send));
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "recv of host memory",
                 dsc_comm_recv_begin(world, left, 1, &in.t, &receive));
    give_transport(world, 0, rank);
    if (size > 1) {
        EXPECT_OK(dsc_comm_send_begin(world, DSC_TRAFFIC_OTHER, right, 1, &out.t, &send));
        EXPECT_OK(dsc_comm_recv_begin(world, left, 1, &in.t, &receive));
        EXPECT_OK(dsc_comm_wait(&receive));
        EXPECT_OK(dsc_comm_wait(&send));
        EXPECT(holds(&in.t, left, 4) && holds(&out.t, rank, 4));
    }
    stand_in_close(world);
    world->device_table = NULL;
    buffer_drop(&out);
    buffer_drop(&in);
    all_fine(truth);
}

/* ---- errors ---- */

static void test_refused(void **state) {
    (void)state;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    dsc_comm_contact c = contact_of_all(), bad = c;
    bad.size = 0;
    EXPECT_FAILS(DSC_E_INVALID, "dsc_comm_contact_init", dsc_contact_create(&bad, NULL, 0, &comm));
    bad = c;
    bad.exchange = NULL;
    EXPECT_FAILS(DSC_E_INVALID, "`exchange` is missing", dsc_contact_create(&bad, NULL, 0, &comm));
    bad = c;
    bad.ranks = 0;
    EXPECT_FAILS(DSC_E_INVALID, "of 0", dsc_contact_create(&bad, NULL, 0, &comm));
    dsc_comm_options_init(&options);
    options.survive = 1;
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "survive", dsc_contact_create(&c, &options, 0, &comm));
    if (dsc_comm_check_kind("nccl") != DSC_OK)
        EXPECT_FAILS(DSC_E_UNSUPPORTED, "no NCCL", dsc_comm_create_from_contact(&c, NULL, &comm));
    if (size > 1) {
        broken = 1;
        EXPECT_FAILS(DSC_E_IO, "no route", dsc_contact_create(&c, NULL, 0, &comm));
        EXPECT_FAILS(DSC_E_IO, "`exchange`", dsc_comm_agree(world, DSC_OK));
        broken = 2;
        (void)dsc_error_set(DSC_E_IO, "an older message");
        EXPECT_FAILS(DSC_E_IO, "`exchange`", dsc_comm_barrier(world));
        EXPECT(!strstr(dsc_error_message(), "older"));
        broken = 0;
    }
    EXPECT(comm == NULL && closed == 0); /* the context is still the caller's */
    all_fine(truth);
}

static void test_close(void **state) {
    (void)state;
    dsc_comm *comm = NULL;
    dsc_comm_contact c = contact_of_all();
    EXPECT_OK(dsc_contact_create(&c, NULL, 0, &comm));
    EXPECT(dsc_comm_threads(comm) == dsc_comm_threads(truth));
    EXPECT(strncmp(dsc_comm_description(comm), "contact:", 8) == 0);
    dsc_comm_destroy(&comm);
    EXPECT(closed == 1);
    EXPECT_OK(dsc_contact_create(&c, NULL, 0, &comm));
    dsc_comm_abandon(&comm);
    EXPECT(closed == 2 && comm == NULL);
    closed = 0;
    all_fine(truth);
}

static int setup(void **state) {
    (void)state;
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "mpi";
    assert_ok(dsc_comm_create(&options, &truth));
    place_open(&truth);
    device = place_device;
    rank = dsc_comm_rank(truth);
    size = dsc_comm_size(truth);
    silence_other_ranks(truth);
    far = far_create();
    assert_ok(dsc_queue_create(far, &far_queue));
    dsc_comm_contact c = contact_of_all();
    assert_ok(dsc_contact_create(&c, NULL, 0, &world));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_comm_destroy(&world);
    dsc_queue_destroy(&far_queue);
    free(far);
    dsc_comm_destroy(&truth);
    place_close();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives), cmocka_unit_test(test_long),
        cmocka_unit_test(test_agree),       cmocka_unit_test(test_groups),
        cmocka_unit_test(test_messages),    cmocka_unit_test(test_through_the_device),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_close),
    };
    start_watchdog(120);
    return cmocka_run_group_tests_name("contact", tests, setup, teardown);
}

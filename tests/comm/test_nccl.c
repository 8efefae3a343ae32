/* NCCL on tensors of GPUs, each rank with its own; one rank by itself goes through NCCL, too. With fewer GPUs
 * than ranks only the refusal to share one is tested, and the rest is skipped. Values are integers or
 * quarters, so that results are compared exactly. */
#include "comm/buffer.h"

#include "comm/table.h"
#include "device/ops.h"
#include "device/recording.h"

#include <cuda_runtime_api.h>

static dsc_comm *world;
static dsc_device *device;
static dsc_queue *queue;
static int rank, size;

static const dsc_dtype dtypes[] = {DSC_F32, DSC_F64, DSC_BF16, DSC_F16, DSC_I32, DSC_I64, DSC_U8};
static const dsc_reduction reductions[] = {DSC_SUM, DSC_MAX, DSC_MIN};
static const int64_t counts[] = {0, 1, 7, 1000, 300001};

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

typedef void (*case_function)(dsc_comm *comm, dsc_dtype dtype, int64_t count);

static void for_all_cases(case_function run) {
    for (int d = 0; d < LENGTH(dtypes); d++) {
        for (int c = 0; c < LENGTH(counts); c++)
            run(world, dtypes[d], counts[c]);
    }
    all_fine(world);
}

/* ---- operations; the ranks of `comm` are the first ones of world, in order ---- */

static void case_allreduce(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    for (int o = 0; o < LENGTH(reductions); o++) {
        buffer b = buffer_make(device, dtype, count);
        fill(&b.t, rank, 3);
        EXPECT_OK(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, reductions[o], &b.t));
        EXPECT(holds_reduced(&b.t, reductions[o], dsc_comm_size(comm), 3));
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
        buffer part = buffer_make(device, dtype, count), all = buffer_make(device, dtype, count * size);
        dsc_tensor own = in_place ? dsc_tensor_slice(&all.t, rank * count, count) : part.t;
        dsc_request *request = NULL;
        fill(&own, rank, 2);
        EXPECT_OK(dsc_comm_allgather_begin(comm, DSC_TRAFFIC_OTHER, &own, &all.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        for (int r = 0; r < size; r++) {
            dsc_tensor place = dsc_tensor_slice(&all.t, r * count, count);
            EXPECT(holds(&place, r, 2));
        }
        buffer_drop(&part);
        buffer_drop(&all);
    }
}

static void case_reduce_scatter(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    for (int o = 0; o < LENGTH(reductions); o++) {
        buffer part = buffer_make(device, dtype, count), all = buffer_make(device, dtype, count * size);
        dsc_request *request = NULL;
        fill(&all.t, rank, 0);
        EXPECT_OK(
            dsc_comm_reduce_scatter_begin(comm, DSC_TRAFFIC_OTHER, reductions[o], &all.t, &part.t, &request));
        EXPECT_OK(dsc_comm_wait(&request));
        EXPECT(holds_reduced(&part.t, reductions[o], size, rank * count));
        EXPECT(holds(&all.t, rank, 0));
        buffer_drop(&part);
        buffer_drop(&all);
    }
}

/* Two messages to the right and two from the left, the sends begun first: they leave together. Tags do not
 * matter, their order does. */
static void case_ring(dsc_comm *comm, dsc_dtype dtype, int64_t count) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    buffer out[2], in[2];
    dsc_request *requests[4] = {NULL};
    for (int i = 0; i < 2; i++) {
        out[i] = buffer_make(device, dtype, count);
        in[i] = buffer_make(device, dtype, count);
        fill(&out[i].t, rank, 10 * i);
        EXPECT_OK(dsc_comm_send_begin(comm, DSC_TRAFFIC_OTHER, right, i, &out[i].t, &requests[i]));
    }
    for (int i = 0; i < 2; i++)
        EXPECT_OK(dsc_comm_recv_begin(comm, left, i, &in[i].t, &requests[2 + i]));
    for (int i = 3; i >= 0; i--)
        EXPECT_OK(dsc_comm_wait(&requests[i]));
    for (int i = 0; i < 2; i++) {
        EXPECT(holds(&in[i].t, left, 10 * i));
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

/* Many operations in flight, completed by test and by wait, in another order than begun. */
static void test_many_in_flight(void **state) {
    (void)state;
    enum { MOST = 20 };
    buffer b[MOST];
    dsc_request *requests[MOST] = {NULL};
    for (int i = 0; i < MOST; i++) {
        b[i] = buffer_make(device, DSC_F32, 1000 + i);
        fill(&b[i].t, rank, i);
    }
    for (int i = 0; i < MOST; i++)
        EXPECT_OK(dsc_comm_allreduce_begin(world, DSC_TRAFFIC_OTHER, DSC_SUM, &b[i].t, &requests[i]));
    for (int i = MOST - 1; i >= 0; i -= 2)
        EXPECT_OK(dsc_comm_wait(&requests[i]));
    for (int i = 0; i < MOST; i += 2) {
        int done = 0;
        while (!done) {
            dsc_status status = dsc_comm_test(&requests[i], &done);
            EXPECT_OK(status);
            done |= status != DSC_OK;
        }
    }
    for (int i = 0; i < MOST; i++) {
        EXPECT(requests[i] == NULL && holds_reduced(&b[i].t, DSC_SUM, size, i));
        buffer_drop(&b[i]);
    }
    all_fine(world);
}

/* Groups have NCCL as well, whatever becomes of their parent; those of one rank need none. */
static void test_groups(void **state) {
    (void)state;
    dsc_comm *pair = NULL, *inner = NULL, *alone = NULL;
    EXPECT_OK(dsc_comm_split(world, rank < 2 ? 0 : -1, 0, &pair));
    if (pair) {
        EXPECT(strcmp(dsc_comm_name(pair), "nccl") == 0 && dsc_comm_records(pair));
        EXPECT_OK(dsc_comm_split(pair, 0, 0, &inner));
        dsc_comm_destroy(&pair);
        case_allreduce(inner, DSC_F32, 1000);
        dsc_comm_destroy(&inner);
    }
    EXPECT_OK(dsc_comm_split(world, rank, 0, &alone));
    EXPECT(dsc_comm_records(alone) && (size == 1 || !alone->device_table));
    dsc_comm_destroy(&alone);
    all_fine(world);
}

/* ---- without MPI: the ranks are brought together by a function ---- */

static int exchanges;

static dsc_status exchange(void *context, const void *own, size_t bytes, void *all) {
    (void)context;
    memmove((char *)all + (size_t)rank * bytes, own, bytes);
    dsc_transfer transfer = {.op = DSC_COMM_ALLGATHER,
                             .dtype = DSC_U8,
                             .send = (char *)all + (size_t)rank * bytes,
                             .recv = all,
                             .count = (int64_t)bytes};
    exchanges++;
    return dsc_comm_run(world, &transfer);
}

/* Host memory of a communicator of all ranks: sums, parts, and a message to oneself or the next rank. */
static void expect_host_memory(dsc_comm *comm) {
    int32_t sum = rank, own = 7 * rank, *all = calloc((size_t)size, sizeof *all);
    const dsc_transfer reduction = {
        .op = DSC_COMM_ALLREDUCE, .dtype = DSC_I32, .send = &sum, .recv = &sum, .count = 1};
    const dsc_transfer gather = {
        .op = DSC_COMM_ALLGATHER, .dtype = DSC_I32, .send = &own, .recv = all, .count = 1};
    assert_non_null(all);
    EXPECT_OK(dsc_comm_run(comm, &reduction));
    EXPECT(sum == size * (size - 1) / 2);
    EXPECT_OK(dsc_comm_run(comm, &gather));
    for (int r = 0; r < size; r++)
        EXPECT(all[r] == 7 * r);
    EXPECT_OK(dsc_comm_agree(comm, DSC_OK));
    EXPECT_OK(dsc_comm_barrier(comm));
    free(all);
}

static void test_contact(void **state) {
    (void)state;
    dsc_comm *first = NULL, *part = NULL, *inner = NULL;
    dsc_comm_contact contact;
    dsc_comm_contact_init(&contact);
    contact.rank = rank;
    contact.ranks = size;
    contact.local_rank = dsc_comm_local_rank(world);
    contact.local_ranks = dsc_comm_local_size(world);
    contact.exchange = exchange;
    assert_ok(dsc_comm_create_from_contact(&contact, NULL, &first));
    first->alone_too = size == 1;
    EXPECT(strcmp(dsc_comm_name(first), "nccl") == 0 && strstr(dsc_comm_description(first), "NCCL"));
    EXPECT_OK(dsc_comm_use_queue(first, queue));
    EXPECT(dsc_comm_records(first) && first->device_table);
    case_allreduce(first, DSC_F32, 1000);
    case_ring(first, DSC_BF16, 33);
    expect_host_memory(first);
    EXPECT_OK(dsc_comm_split(first, 0, rank, &part));
    EXPECT_OK(dsc_comm_split(part, 0, rank, &inner));
    int before = exchanges;
    case_allreduce(part, DSC_F64, 10);
    case_reduce_scatter(inner, DSC_F32, 10);
    expect_host_memory(part);
    expect_host_memory(inner);
    EXPECT(exchanges == before); /* the GPU carries host memory of parts */
    dsc_comm_destroy(&inner);
    dsc_comm_destroy(&part);
    dsc_comm_destroy(&first);
    all_fine(world);
}

/* ---- recordings ---- */

/* t = ranks * (t + 1), in place: each replay does it again. */
static dsc_status record_sum(dsc_tensor *one, dsc_tensor *t) {
    dsc_request *request = NULL;
    int done = 1;
    DSC_TRY(dsc_op_axpby(queue, 1, one, 1, t));
    DSC_TRY(dsc_comm_allreduce_begin(world, DSC_TRAFFIC_OTHER, DSC_SUM, t, &request));
    DSC_TRY(dsc_comm_test(&request, &done));
    EXPECT(!done && request);
    return dsc_comm_wait(&request);
}

static void test_recorded_allreduce(void **state) {
    (void)state;
    dsc_recording *recording = NULL;
    buffer one = buffer_make(device, DSC_F32, 5000), t = buffer_make(device, DSC_F32, 5000);
    assert_ok(dsc_op_fill(queue, 1, &one.t));
    assert_ok(dsc_op_fill(queue, 2, &t.t));
    EXPECT(dsc_comm_records(world));
    assert_ok(dsc_recording_begin(queue));
    EXPECT_OK(record_sum(&one.t, &t.t));
    assert_ok(dsc_recording_end(queue, &recording));
    EXPECT(get(&t.t, 4999) == 2); /* nothing ran */
    double expected = 2;
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(dsc_recording_replay(recording, queue));
        expected = size * (expected + 1);
    }
    EXPECT(get(&t.t, 0) == expected && get(&t.t, 4999) == expected);
    EXPECT_OK(dsc_comm_allreduce(world, DSC_TRAFFIC_OTHER, DSC_MAX, &t.t)); /* and between the replays */
    EXPECT_OK(dsc_recording_replay(recording, queue));
    EXPECT(get(&t.t, 77) == size * (expected + 1));
    dsc_recording_destroy(&recording); /* before the communicator */
    buffer_drop(&one);
    buffer_drop(&t);
    all_fine(world);
}

static void record_ring(const dsc_tensor *out, dsc_tensor *in) {
    dsc_request *send = NULL, *receive = NULL;
    EXPECT_OK(dsc_comm_send_begin(world, DSC_TRAFFIC_OTHER, (rank + 1) % size, 0, out, &send));
    EXPECT_OK(dsc_comm_recv_begin(world, (rank + size - 1) % size, 0, in, &receive));
    EXPECT_OK(dsc_comm_wait(&receive));
    EXPECT_OK(dsc_comm_wait(&send));
}

static void test_recorded_ring(void **state) {
    (void)state;
    dsc_recording *recording = NULL;
    buffer out = buffer_make(device, DSC_BF16, 700), in = buffer_make(device, DSC_BF16, 700);
    record_ring(&out.t, &in.t); /* the connections are made outside */
    assert_ok(dsc_recording_begin(queue));
    record_ring(&out.t, &in.t);
    assert_ok(dsc_recording_end(queue, &recording));
    for (int i = 0; i < 3; i++) {
        fill(&out.t, rank, i);
        EXPECT_OK(dsc_recording_replay(recording, queue));
        EXPECT(holds(&in.t, (rank + size - 1) % size, i));
    }
    dsc_recording_destroy(&recording);
    buffer_drop(&out);
    buffer_drop(&in);
    all_fine(world);
}

/* Buckets, packed and in place, begun and waited for in a recording: means over the ranks. */
static void test_recorded_buckets(void **state) {
    (void)state;
    static const dsc_dtype wires[] = {DSC_F32, DSC_BF16};
    for (int w = 0; w < LENGTH(wires); w++) {
        dsc_recording *recording = NULL;
        dsc_buckets *buckets = NULL;
        buffer a = buffer_make(device, DSC_F32, 900), b = buffer_make(device, DSC_F32, 33);
        dsc_tensor tensors[2] = {a.t, b.t};
        dsc_bucket_options options;
        dsc_bucket_options_init(&options);
        options.wire = wires[w];
        assert_ok(dsc_buckets_create(world, queue, tensors, 2, &options, &buckets));
        assert_ok(dsc_recording_begin(queue));
        EXPECT_OK(dsc_buckets_ready(buckets, 0));
        EXPECT_OK(dsc_buckets_ready(buckets, 1));
        EXPECT_OK(dsc_buckets_wait(buckets));
        assert_ok(dsc_recording_end(queue, &recording));
        for (int i = 0; i < 3; i++) {
            EXPECT_OK(dsc_op_fill(queue, rank == 0 ? size : 0, &a.t));
            EXPECT_OK(dsc_op_fill(queue, size * (rank + i == 0), &b.t));
            EXPECT_OK(dsc_recording_replay(recording, queue));
            EXPECT(get(&a.t, 899) > 0.99 && get(&a.t, 899) < 1.01);
            EXPECT(i == 0 ? get(&b.t, 32) > 0.99 : get(&b.t, 32) == 0);
        }
        dsc_recording_destroy(&recording);
        dsc_buckets_destroy(&buckets);
        buffer_drop(&a);
        buffer_drop(&b);
    }
    all_fine(world);
}

/* ---- refusals ---- */

/* Everybody on the first GPU: all ranks hear who shares it. */
static void test_sharing_is_refused(void **state) {
    (void)state;
    dsc_comm *other = NULL;
    dsc_comm_options options;
    dsc_device_options device_options;
    dsc_device *first = NULL;
    dsc_queue *q = NULL;
    if (size == 1)
        return;
    dsc_comm_options_init(&options);
    options.kind = "nccl";
    dsc_device_options_init(&device_options);
    device_options.name = "cuda";
    EXPECT_OK(dsc_comm_create(&options, &other));
    assert_ok(dsc_device_create(&device_options, &first));
    assert_ok(dsc_queue_create(first, &q));
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "ranks 0, 1", dsc_comm_use_queue(other, q));
    EXPECT_FAILS(DSC_E_UNSUPPORTED, "use mpi (option comm)", dsc_comm_use_queue(other, q));
    dsc_comm_destroy(&other);
    dsc_queue_destroy(&q);
    dsc_device_destroy(&first);
    all_fine(world);
}

static void test_mixed_recording(void **state) {
    (void)state;
    dsc_recording *recording = NULL;
    dsc_request *request = NULL;
    buffer b = buffer_make(device, DSC_F32, 4);
    EXPECT_OK(dsc_comm_allreduce_begin(world, DSC_TRAFFIC_OTHER, DSC_SUM, &b.t, &request));
    assert_ok(dsc_recording_begin(queue));
    EXPECT_FAILS(DSC_E_INVALID, "same side", dsc_comm_wait(&request));
    assert_ok(dsc_recording_end(queue, &recording));
    dsc_recording_destroy(&recording);
    assert_ok(dsc_queue_sync(queue));
    EXPECT(cudaDeviceSynchronize() == cudaSuccess); /* the sum that nobody waited for */
    buffer_drop(&b);
    all_fine(world);
}

/* ---- */

static int setup(void **state) {
    (void)state;
    assert_int_equal(setenv("DESCENT_TEST_DEVICE", "cuda", 1), 0);
    world->alone_too = size == 1;
    place_open(&world);
    device = place_device;
    queue = place_queue;
    EXPECT(strcmp(dsc_comm_name(world), "nccl") == 0 && strstr(dsc_comm_description(world), "NCCL"));
    EXPECT(world->device_table != NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    dsc_comm_destroy(&world);
    place_close();
    return 0;
}

static int run_all(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allreduce),
        cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_allgather),
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_many_in_flight),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_contact),
        cmocka_unit_test(test_recorded_allreduce),
        cmocka_unit_test(test_recorded_ring),
        cmocka_unit_test(test_recorded_buckets),
        cmocka_unit_test(test_sharing_is_refused),
        cmocka_unit_test(test_mixed_recording),
    };
    return cmocka_run_group_tests_name("nccl", tests, setup, teardown);
}

/* GPUs that every rank of the node sees, over all nodes the least; 0 without a driver. */
static int count_gpus(void) {
    int own = 0;
    if (cudaGetDeviceCount(&own) != cudaSuccess)
        own = 0;
    int32_t gpus = own;
    dsc_transfer transfer = {.op = DSC_COMM_ALLREDUCE,
                             .reduction = DSC_MIN,
                             .dtype = DSC_I32,
                             .send = &gpus,
                             .recv = &gpus,
                             .count = 1};
    return dsc_comm_run(world, &transfer) == DSC_OK ? gpus : 0;
}

int main(void) {
    const struct CMUnitTest refusal[] = {cmocka_unit_test(test_sharing_is_refused)};
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "nccl";
    start_watchdog(240);
    if (dsc_comm_create(&options, &world) != DSC_OK) {
        fprintf(stderr, "%s\n", dsc_error_message());
        return 1;
    }
    rank = dsc_comm_rank(world);
    size = dsc_comm_size(world);
    silence_other_ranks(world);
    int gpus = count_gpus();
    if (gpus >= dsc_comm_local_size(world))
        return run_all();
    int failures = gpus > 0 ? cmocka_run_group_tests_name("nccl", refusal, NULL, NULL) : 0;
    fprintf(stderr, "skipped: comm-nccl: %d ranks on this node, %d GPUs\n", dsc_comm_local_size(world), gpus);
    dsc_comm_destroy(&world);
    return failures ? failures : 77;
}

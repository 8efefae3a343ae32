/* A program that initialises MPI itself: "auto" uses it, without a launcher, too, and leaves it up. */
#include "comm/parallel.h"

#include <mpi.h>

static int is_finalised(void) {
    int flag = 1;
    MPI_Finalized(&flag);
    return flag;
}

/* The program's own messages never match the library's, and its error handler stays in force. */
static void test_foreign(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) {
        dsc_comm *world = NULL;
        int rank = -1, size = 0, sum = 1;
        MPI_Errhandler before, after;
        MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
        assert_ok(dsc_comm_create(NULL, &world));
        MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
        EXPECT(before == after);
        MPI_Errhandler_free(&before);
        MPI_Errhandler_free(&after);
        silence_other_ranks(world);
        EXPECT(strcmp(dsc_comm_name(world), "mpi") == 0);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        EXPECT(dsc_comm_rank(world) == rank && dsc_comm_size(world) == size);
        MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        EXPECT(sum == size);
        EXPECT_OK(dsc_comm_barrier(world));
        all_fine(world);
        dsc_comm_destroy(&world);
        assert_false(is_finalised());
    }
}

/* A communicator of the program's is duplicated: it stays the program's, and only its ranks take part. */
static void test_adopted(void **state) {
    (void)state;
    int rank, size, sum = 1;
    MPI_Comm half, alone = MPI_COMM_SELF;
    dsc_comm *comm = NULL, *self = NULL;
    dsc_comm_options options;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    dsc_comm_options_init(&options);
    options.mpi_comm = &half;
    assert_ok(dsc_comm_create(&options, &comm));
    int half_rank, half_size;
    MPI_Comm_rank(half, &half_rank);
    MPI_Comm_size(half, &half_size);
    assert_int_equal(dsc_comm_rank(comm), half_rank);
    assert_int_equal(dsc_comm_size(comm), half_size);
    assert_ok(dsc_comm_barrier(comm));
    options.mpi_comm = &alone; /* one of several ranks, on purpose */
    options.kind = "mpi";
    assert_ok(dsc_comm_create(&options, &self));
    assert_int_equal(dsc_comm_size(self), 1);
    dsc_comm_destroy(&self);
    dsc_comm_destroy(&comm);
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, half);
    assert_int_equal(sum, half_size);
    MPI_Comm_free(&half);
}

static void test_not_adopted(void **state) {
    (void)state;
    MPI_Comm none = MPI_COMM_NULL, between = MPI_COMM_NULL, half, world = MPI_COMM_WORLD;
    dsc_comm *comm = NULL;
    dsc_comm_options options;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    dsc_comm_options_init(&options);
    options.mpi_comm = &none;
    assert_fails(DSC_E_INVALID, "MPI_COMM_NULL", dsc_comm_create(&options, &comm));
    options.kind = "self";
    options.mpi_comm = &world;
    assert_fails(DSC_E_INVALID, "kind 'self' with an MPI communicator", dsc_comm_create(&options, &comm));
    if (size > 1) {
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 ? 0 : 1, 7, &between);
        options.kind = "auto";
        options.mpi_comm = &between;
        assert_fails(DSC_E_INVALID, "inter-communicator", dsc_comm_create(&options, &comm));
        MPI_Comm_free(&between);
        MPI_Comm_free(&half);
    }
    assert_null(comm);
}

/* Asking for more threads than the program's MPI was set up for is refused. */
static void test_thread_level(void **state) {
    (void)state;
    int level = MPI_THREAD_MULTIPLE;
    dsc_comm *world = NULL;
    dsc_comm_options options;
    MPI_Query_thread(&level);
    dsc_comm_options_init(&options);
    options.thread_multiple = 1;
    if (level < MPI_THREAD_MULTIPLE) {
        assert_fails(DSC_E_UNSUPPORTED, "MPI_THREAD_MULTIPLE", dsc_comm_create(&options, &world));
        assert_null(world);
    }
}

/* MPI cannot be started twice: the error says so. */
static void test_after_the_end(void **state) {
    (void)state;
    dsc_comm *world = NULL, *late = NULL;
    dsc_comm_options options;
    MPI_Comm handle = MPI_COMM_WORLD;
    int64_t three = 3;
    float x[3] = {0};
    dsc_device *device;
    dsc_comm_options_init(&options);
    options.kind = "mpi";
    assert_ok(dsc_comm_create(&options, &late));
    assert_ok(dsc_device_create(NULL, &device));
    dsc_tensor t = dsc_tensor_view(device, x, DSC_F32, 1, &three);
    MPI_Finalize();
    if (dsc_comm_size(late) > 1)
        assert_fails(DSC_E_COMM, "finalised while", dsc_comm_allreduce(late, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    dsc_comm_destroy(&late);
    assert_fails(DSC_E_INVALID, "no communicator", dsc_comm_barrier(late));
    assert_fails(DSC_E_INVALID, "no communicator", dsc_comm_allreduce(late, DSC_TRAFFIC_OTHER, DSC_SUM, &t));
    dsc_device_destroy(&device);
    options.mpi_comm = &handle;
    assert_fails(DSC_E_INVALID, "not initialised", dsc_comm_create(&options, &world));
    options.mpi_comm = NULL;
    assert_fails(DSC_E_UNSUPPORTED, "finalised", dsc_comm_create(&options, &world));
    assert_null(world);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign),       cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_not_adopted),   cmocka_unit_test(test_thread_level),
        cmocka_unit_test(test_after_the_end),
    };
    start_watchdog(120);
    MPI_Init(&argc, &argv);
    return cmocka_run_group_tests_name("foreign", tests, NULL, NULL);
}

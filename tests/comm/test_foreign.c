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
    dsc_comm *world = NULL;
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    options.kind = "mpi";
    MPI_Finalize();
    assert_fails(DSC_E_UNSUPPORTED, "finalised", dsc_comm_create(&options, &world));
    assert_null(world);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_thread_level),
        cmocka_unit_test(test_after_the_end),
    };
    start_watchdog(120);
    MPI_Init(&argc, &argv);
    return cmocka_run_group_tests_name("foreign", tests, NULL, NULL);
}

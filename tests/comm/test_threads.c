/* Several threads communicate at once, each in a group of its own, when the communicator was created for
 * that. */
#include "comm/buffer.h"

#include <pthread.h>

enum { THREADS = 3, ROUNDS = 100, COUNT = 50 };

typedef struct task {
    dsc_comm *group;
    dsc_device *device;
    int rank, size, wrong;
} task;

static void *work(void *argument) {
    task *t = argument;
    float *data = malloc(COUNT * sizeof *data);
    int64_t count = COUNT;
    t->wrong = data == NULL;
    for (int round = 0; round < ROUNDS && !t->wrong; round++) {
        dsc_tensor x = dsc_tensor_view(t->device, data, DSC_F32, 1, &count);
        fill(&x, t->rank, round);
        t->wrong += dsc_comm_allreduce(t->group, DSC_TRAFFIC_FACTORS, DSC_SUM, &x) != DSC_OK;
        t->wrong += !holds_reduced(&x, DSC_SUM, t->size, round);
    }
    free(data);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    dsc_device_options device_options;
    dsc_comm_options options;
    dsc_device *device;
    dsc_comm *world;
    task tasks[THREADS];
    pthread_t threads[THREADS];
    dsc_device_options_init(&device_options);
    device_options.name = "ref";
    assert_ok(dsc_device_create(&device_options, &device));
    dsc_comm_options_init(&options);
    options.thread_multiple = 1;
    assert_ok(dsc_comm_create(&options, &world));
    silence_other_ranks(world);
    for (int i = 0; i < THREADS; i++) {
        tasks[i] = (task){.device = device, .rank = dsc_comm_rank(world), .size = dsc_comm_size(world)};
        EXPECT_OK(dsc_comm_split(world, 0, 0, &tasks[i].group));
    }
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, work, &tasks[i]) == 0);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
        EXPECT(tasks[i].wrong == 0);
    }
    uint64_t n = (uint64_t)dsc_comm_size(world);
    EXPECT(dsc_comm_bytes(world, DSC_TRAFFIC_FACTORS) == THREADS * ROUNDS * (2 * (n - 1) * COUNT * 4 / n));
    all_fine(world);
    for (int i = 0; i < THREADS; i++)
        dsc_comm_destroy(&tasks[i].group);
    dsc_comm_destroy(&world);
    dsc_device_destroy(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    start_watchdog(120);
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}

/* Averages an array over all ranks by gossip: without a server and without collectives; in each step every rank
 * exchanges messages with a few peers only.
 *
 *   mpirun -n 4 average [GRAPH [STEPS]]       GRAPH: exponential, ring, base-2 ... or a file (docs/gossip.md)
 *
 * descent provides communication and averaging; the array belongs to the program. */
#include <descent/consensus.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000 };

static dsc_comm *comm;

/* If a call has failed, prints why and ends the whole job, so that no other rank waits for this one. */
static void check(dsc_status status) {
    if (status == DSC_OK)
        return;
    fprintf(stderr, "average: %s\n", dsc_error_message());
    dsc_comm_abort(comm, 1);
}

/* Element i of rank r is i + r^2, so the mean over n ranks is i + (n - 1) (2 n - 1) / 6. */
static float measured(int rank, int i) {
    return (float)(i + rank * rank);
}

/* Returns the largest error on this rank. With push-sum the array holds x = z w, and its values are z = x / w. The
 * weight w is 1 on graphs where every rank receives as much as it sends; dividing by it is right on all graphs. */
static double error(const float *x, double weight) {
    double n = dsc_comm_size(comm), offset = (n - 1) * (2 * n - 1) / 6, worst = 0;
    for (int i = 0; i < COUNT; i++)
        worst = fmax(worst, fabs(x[i] / weight - (i + offset)));
    return worst;
}

/* Reads a whole number from 1 to 1000000; returns 0 for anything else. */
static int read_count(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value > 0 && value <= 1000000 ? (int)value : 0;
}

int main(int argc, char **argv) {
    static float x[COUNT];
    int steps = argc > 2 ? read_count(argv[2]) : 6;
    if (argc > 3 || steps == 0) {
        fprintf(stderr, "usage: average [GRAPH [STEPS]], STEPS from 1 to 1000000\n");
        return 2;
    }

    /* The ranks: MPI under a launcher, a single process without one. The device says in which memory the arrays are:
     * "cpu" is the program's own. A queue keeps the work on a device in order. */
    check(dsc_comm_create(NULL, &comm));
    dsc_device *device;
    dsc_queue *queue;
    dsc_device_options device_options;
    dsc_device_options_init(&device_options);
    device_options.name = "cpu";
    device_options.threads = 1;
    check(dsc_device_create(&device_options, &device));
    check(dsc_queue_create(device, &queue));

    for (int i = 0; i < COUNT; i++)
        x[i] = measured(dsc_comm_rank(comm), i);

    /* The arrays to average are passed once, as tensors that point to them; there may be any number of them. */
    dsc_tensor tensor = dsc_tensor_view(device, x, DSC_F32, 1, (int64_t[]){COUNT});
    dsc_average_options options;
    dsc_average_options_init(&options);
    options.graph = argc > 1 ? argv[1] : "exponential";
    options.timeout = 60; /* seconds: if a peer is silent for longer, the job ends */
    dsc_average *average;
    check(dsc_average_create(comm, queue, &tensor, 1, &options, &average));

    for (int step = 1; step <= steps; step++) {
        check(dsc_average_begin(average, queue));
        /* Messages are in flight now. The program could compute here, and even change x: what it adds to x (times the
         * weight) is averaged along with the rest. */
        check(dsc_average_end(average, queue));
        check(dsc_queue_sync(queue)); /* because the host reads x next */
        if (dsc_comm_rank(comm) == 0)
            printf("step %d  error of rank 0: %g\n", step, error(x, dsc_average_weight(average)));
    }

    dsc_average_destroy(&average);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return 0;
}

/* Jobs that lose ranks, for lost.sh: lost MODE. Every rank that comes to its end says so on stdout.
 *
 * losses   rank 2 is killed, then 0; the others go on, twice.
 * pause    rank 2 stops for less than the timeout: nobody is lost.
 * late     rank 2 stops for so long that the others go on without it.
 * alone    everybody but rank 1 is killed.
 * false    rank 1 raises the alarm for nothing: all go on.
 * killed   rank 2 is killed and `survive` was not asked for: the others end with an error.
 * hang     rank 2 stops for good: the others abort the job.
 * leave    the same, but the others destroy their communicators, with operations in flight, and exit.
 * agreed   rank 2 is killed, and rank 3 just after the others have agreed with it to go on.
 * parts    rank 2 stops for good where all make a communicator of a part of them.
 * farewell rank 2 stops for good before the end, where nobody waits for it but MPI's. */
#include "comm/mpi/mpi.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FAILED = 9, LEFT = 5, LATE = 3, ABORTED = 4 };

static const double timeout = 2, patience = 2;
static dsc_device *device;
static int first_rank; /* at the start */
static int waker;      /* seconds written here: a helper process then wakes this one */

static void quit(const char *what) {
    fprintf(stderr, "rank %d: not so: %s: %s\n", first_rank, what, dsc_error_message());
    fflush(stderr);
    _exit(FAILED);
}

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            quit(#condition);                                                                                \
    } while (0)

/* ---- signals ---- */

static void nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* Ends the process with a status that makes the launcher end the job, which may lose what was printed last. */
static _Noreturn void exit_left(void) {
    nap(0.3);
    exit(LEFT);
}

/* Before MPI is up. */
static void make_waker(void) {
    int ends[2];
    double seconds;
    pid_t parent = getpid();
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[1]);
        while (read(ends[0], &seconds, sizeof seconds) == (ssize_t)sizeof seconds) {
            nap(seconds);
            kill(parent, SIGCONT);
        }
        _exit(0);
    }
    close(ends[0]);
    waker = ends[1];
}

static void stop_for(double seconds) {
    CHECK(write(waker, &seconds, sizeof seconds) == (ssize_t)sizeof seconds);
    raise(SIGSTOP);
}

/* ---- parts ---- */

static dsc_tensor view(int32_t *data, int64_t count) {
    return dsc_tensor_view(device, data, DSC_I32, 1, &count);
}

static dsc_status sum(dsc_comm *comm, int32_t own, int32_t *result) {
    dsc_tensor t = view(result, 1);
    *result = own;
    return dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &t);
}

/* The communicator of those who answer, which works; the old one is given up. */
static void go_on(dsc_comm **comm, int size, int32_t ranks) {
    dsc_comm *next = NULL, *part = NULL;
    int32_t result = 0;
    uint64_t before = dsc_comm_bytes(*comm, DSC_TRAFFIC_OTHER);
    CHECK(dsc_comm_survivors(*comm, patience, &next) == DSC_OK);
    CHECK(dsc_comm_bytes(next, DSC_TRAFFIC_OTHER) == before);
    CHECK(sum(*comm, 1, &result) == DSC_E_LOST && strstr(dsc_error_message(), "given up"));
    dsc_comm_abandon(comm);
    CHECK(*comm == NULL);
    CHECK(dsc_comm_size(next) == size && strcmp(dsc_comm_name(next), "mpi") == 0);
    CHECK(sum(next, 1 << first_rank, &result) == DSC_OK && result == ranks);
    int32_t smaller = ranks & ((1 << first_rank) - 1), place = 0;
    for (; smaller; smaller &= smaller - 1)
        place++;
    CHECK(dsc_comm_rank(next) == place);
    CHECK(dsc_comm_split(next, 0, dsc_comm_rank(next), &part) == DSC_OK);
    CHECK(dsc_comm_barrier(part) == DSC_OK);
    dsc_comm_destroy(&part);
    CHECK(dsc_comm_barrier(next) == DSC_OK);
    *comm = next;
}

/* Loops that wait by themselves look for the alarm. */
static void wait_for_alarm(dsc_comm *comm) {
    int alarmed = 0;
    while (!alarmed) {
        CHECK(dsc_comm_is_alarmed(comm, &alarmed) == DSC_OK);
        nap(0.001);
    }
}

static void end(dsc_comm **comm, const char *what) {
    dsc_comm_destroy(comm);
    CHECK(*comm == NULL);
    printf("rank %d %s\n", first_rank, what);
    fflush(stdout);
}

/* ---- modes ---- */

static void lose(dsc_comm *world) {
    enum { MANY = 200000 };
    static int32_t many[2][MANY];
    dsc_request *requests[2] = {NULL, NULL};
    dsc_tensor in = view(many[0], MANY), out = view(many[1], MANY);
    int32_t result = 0;
    int size = dsc_comm_size(world);
    int32_t all = (1 << size) - 1;
    if (first_rank == 2)
        raise(SIGKILL);
    CHECK(dsc_comm_recv_begin(world, 2, 7, &in, &requests[0]) == DSC_OK);
    CHECK(dsc_comm_send_begin(world, DSC_TRAFFIC_OTHER, 2, 8, &out, &requests[1]) == DSC_OK);
    if (first_rank == 0)
        wait_for_alarm(world);
    else if (first_rank == 1)
        CHECK(dsc_comm_wait(&requests[0]) == DSC_E_LOST && requests[0]);
    else
        CHECK(sum(world, 1, &result) == DSC_E_LOST && dsc_comm_agree(world, DSC_OK) == DSC_E_LOST);
    go_on(&world, size - 1, all - 4);
    if (first_rank == 0)
        raise(SIGKILL);
    if (first_rank == 1)
        wait_for_alarm(world);
    else
        CHECK(dsc_comm_barrier(world) == DSC_E_LOST);
    go_on(&world, size - 2, all - 4 - 1);
    end(&world, "survived");
}

static void lose_all_others(dsc_comm *world) {
    int32_t result;
    if (first_rank != 1)
        raise(SIGKILL);
    CHECK(dsc_comm_barrier(world) == DSC_E_LOST);
    dsc_comm *next = NULL;
    CHECK(dsc_comm_survivors(world, patience, &next) == DSC_OK);
    dsc_comm_destroy(&world); /* as abandon, here */
    CHECK(dsc_comm_size(next) == 1 && sum(next, 6, &result) == DSC_OK && result == 6);
    end(&next, "survived");
}

static void pause_or_be_late(dsc_comm *world, int late) {
    int32_t result = 0;
    dsc_comm *next = NULL;
    if (first_rank == 2)
        stop_for(late ? timeout + 5 * patience : 0.2 * timeout);
    dsc_status status = sum(world, 1, &result);
    if (!late) {
        CHECK(status == DSC_OK && result == 4);
        end(&world, "complete");
        return;
    }
    CHECK(status == DSC_E_LOST);
    if (first_rank != 2) {
        go_on(&world, 3, 1 + 2 + 8);
        end(&world, "survived");
        return;
    }
    CHECK(dsc_comm_survivors(world, patience, &next) == DSC_E_COMM && !next);
    fprintf(stderr, "%s\n", dsc_error_message());
    dsc_comm_abandon(&world);
    exit(LATE);
}

/* Not before all others have left the barrier: the alarm would end it. */
static void alarm_for_nothing(dsc_comm *world) {
    for (int other = 0; other < 4; other++) {
        int32_t word = 0;
        dsc_tensor t = view(&word, 1);
        dsc_request *request = NULL;
        if (other == 1 || (first_rank != 1 && first_rank != other))
            continue;
        if (first_rank == 1)
            CHECK(dsc_comm_recv_begin(world, other, 9, &t, &request) == DSC_OK);
        else
            CHECK(dsc_comm_send_begin(world, DSC_TRAFFIC_OTHER, 1, 9, &t, &request) == DSC_OK);
        CHECK(dsc_comm_wait(&request) == DSC_OK);
    }
    if (first_rank != 1)
        wait_for_alarm(world);
    go_on(&world, 4, 15);
    end(&world, "survived");
}

static void leave(dsc_comm *world) {
    int32_t one = 1, result;
    dsc_tensor t = view(&one, 1);
    dsc_request *request = NULL;
    dsc_comm *group = NULL;
    CHECK(dsc_comm_split(world, 0, first_rank, &group) == DSC_OK);
    if (first_rank == 2)
        raise(SIGSTOP);
    CHECK(dsc_comm_recv_begin(group, 2, 7, &t, &request) == DSC_OK);
    CHECK(sum(world, 1, &result) == DSC_E_COMM);
    dsc_comm_destroy(&group);
    end(&world, "left");
    exit_left();
}

static void say_farewell(dsc_comm *world) {
    if (first_rank == 2)
        raise(SIGSTOP);
    end(&world, "left");
    exit_left();
}

/* What is left after a failure while a communicator is made: it can be destroyed, and nothing else. */
static void end_stuck(dsc_comm *world) {
    int32_t result;
    fprintf(stderr, "%s\n", dsc_error_message());
    CHECK(sum(world, 1, &result) == DSC_E_COMM && strstr(dsc_error_message(), "still waits"));
    dsc_comm_destroy(&world);
    printf("rank %d left\n", first_rank);
    exit_left();
}

static void die_if_last(void) {
    if (first_rank == 3)
        raise(SIGKILL);
}

static void lose_when_agreed(dsc_comm *world) {
    dsc_comm *next = NULL;
    if (first_rank == 2)
        raise(SIGKILL);
    CHECK(dsc_comm_barrier(world) == DSC_E_LOST);
    dsc_mpi_set_agreed_hook(die_if_last);
    CHECK(dsc_comm_survivors(world, patience, &next) == DSC_E_COMM && !next);
    end_stuck(world);
}

static void stop_in_parts(dsc_comm *world) {
    dsc_comm *part = NULL;
    if (first_rank == 2)
        raise(SIGSTOP);
    CHECK(dsc_comm_split(world, first_rank / 2, 0, &part) == DSC_E_COMM && !part);
    end_stuck(world);
}

static void be_stuck(dsc_comm *world, int signal_number) {
    int32_t one = 1;
    dsc_tensor t = view(&one, 1);
    dsc_request *request = NULL;
    if (first_rank == 2)
        raise(signal_number);
    CHECK(dsc_comm_recv_begin(world, 2, 7, &t, &request) == DSC_OK);
    dsc_status status = dsc_comm_wait(&request);
    fprintf(stderr, "%s: %s\n", dsc_status_text(status), dsc_error_message());
    dsc_comm_abort(world, ABORTED);
}

static const char *const surviving[] = {"losses", "pause", "late", "alone", "false", "agreed"};

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    dsc_comm *world = NULL;
    dsc_comm_options options;
    alarm(180);
    make_waker();
    dsc_comm_options_init(&options);
    options.kind = "mpi";
    for (size_t i = 0; i < sizeof surviving / sizeof *surviving; i++)
        options.survive |= strcmp(mode, surviving[i]) == 0;
    CHECK(dsc_device_create(NULL, &device) == DSC_OK);
    CHECK(dsc_comm_create(&options, &world) == DSC_OK);
    first_rank = dsc_comm_rank(world);
    CHECK(dsc_comm_set_timeout(world, timeout) == DSC_OK);
    CHECK(dsc_comm_barrier(world) == DSC_OK);
    if (strcmp(mode, "losses") == 0)
        lose(world);
    else if (strcmp(mode, "alone") == 0)
        lose_all_others(world);
    else if (strcmp(mode, "pause") == 0 || strcmp(mode, "late") == 0)
        pause_or_be_late(world, mode[0] == 'l');
    else if (strcmp(mode, "false") == 0)
        alarm_for_nothing(world);
    else if (strcmp(mode, "leave") == 0)
        leave(world);
    else if (strcmp(mode, "agreed") == 0)
        lose_when_agreed(world);
    else if (strcmp(mode, "parts") == 0)
        stop_in_parts(world);
    else if (strcmp(mode, "farewell") == 0)
        say_farewell(world);
    else
        be_stuck(world, strcmp(mode, "hang") == 0 ? SIGSTOP : SIGKILL);
    return 0;
}

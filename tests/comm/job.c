/* A job that comes to a bad or an unusual end, for abort.sh: job abort|kill|start|self|again|forget|quit|fork.
 * abort: rank 1 (the only one of one) fails, prints its message and calls dsc_comm_abort while the others
 * wait for it. kill: rank 1 is killed while the others wait for it. start: only says how it was started.
 * self: the same for a communicator of kind "self". again: destroys the last communicator and makes another
 * one. forget: ends without destroying the communicator. quit: rank 1 does that with status 5, while the others
 * wait for it. fork: a child process ends before its parent. */
#include "descent/comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void end_child(void) {
    pid_t child = fork();
    if (child == 0)
        exit(0);
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        dsc_comm_abort(NULL, 6);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "start";
    dsc_comm *world = NULL;
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    if (strcmp(mode, "self") == 0)
        options.kind = "self";
    dsc_status made = dsc_comm_create(&options, &world);
    if (made == DSC_OK && strcmp(mode, "again") == 0) {
        dsc_comm_destroy(&world);
        made = dsc_comm_create(NULL, &world);
    }
    if (made != DSC_OK) {
        fprintf(stderr, "%s\n", dsc_error_message());
        dsc_comm_abort(NULL, 2);
    }
    int victim = dsc_comm_size(world) > 1 ? 1 : 0;
    if (strcmp(mode, "quit") == 0 && dsc_comm_rank(world) == victim)
        exit(5);
    if (strcmp(mode, "fork") == 0)
        end_child();
    if (strcmp(mode, "start") == 0 || strcmp(mode, "self") == 0)
        printf("%s\n", dsc_comm_description(world));
    if (strcmp(mode, "kill") == 0 && dsc_comm_rank(world) == victim)
        raise(SIGKILL);
    if (strcmp(mode, "abort") == 0 && dsc_comm_rank(world) == victim) {
        dsc_status status =
            dsc_comm_broadcast(world, DSC_TRAFFIC_OTHER, -5, NULL); /* refused before it begins */
        fprintf(stderr, "%s: %s\n", dsc_status_text(status), dsc_error_message());
        dsc_comm_abort(world, 3);
    }
    dsc_status status = dsc_comm_barrier(world); /* of the bad ones, only the victim never gets here */
    if (status != DSC_OK) {
        fprintf(stderr, "%s\n", dsc_error_message());
        dsc_comm_abort(world, 4);
    }
    if (strcmp(mode, "forget") != 0)
        dsc_comm_destroy(&world);
    return 0;
}

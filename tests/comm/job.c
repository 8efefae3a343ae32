/* A job that comes to a bad end, for abort.sh: job abort|kill|start.
 * abort: rank 1 (the only one of one) fails, prints its message and calls dsc_comm_abort while the others
 * wait for it. kill: rank 1 is killed while the others wait for it. start: only says how it was started. */
#include "descent/comm.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "start";
    dsc_comm *world = NULL;
    if (dsc_comm_create(NULL, &world) != DSC_OK) {
        fprintf(stderr, "%s\n", dsc_error_message());
        dsc_comm_abort(NULL, 2);
    }
    int victim = dsc_comm_size(world) > 1 ? 1 : 0;
    if (strcmp(mode, "start") == 0)
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
    dsc_comm_destroy(&world);
    return 0;
}

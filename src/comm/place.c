/* Finds out where the ranks of a communicator are, for backends without a library such as MPI that tells them. */
#include "comm/table.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"

#include <stdio.h>
#include <unistd.h>

dsc_status dsc_comm_check(const char *what, const dsc_comm *comm) {
    if (!comm || !comm->table)
        return DSC_FAIL(DSC_E_INVALID, "%s: no communicator: it was never created, or was destroyed", what);
    return DSC_OK;
}

dsc_status dsc_comm_check_ranks(const char *name, int rank, int ranks, int local_rank, int local_ranks) {
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return DSC_FAIL(DSC_E_INVALID, "communicator '%s': rank %d of %d: must be 0 to ranks - 1", name, rank,
                        ranks);
    if (local_ranks < 1 || local_ranks > ranks || local_rank < 0 || local_rank >= local_ranks)
        return DSC_FAIL(DSC_E_INVALID,
                        "communicator '%s': rank %d of %d on its node: must be 0 to local_ranks - 1, and at "
                        "most %d ranks",
                        name, local_rank, local_ranks, ranks);
    return DSC_OK;
}

uint64_t dsc_comm_node(void) {
    char name[256] = "", boot[64] = "";
    if (gethostname(name, sizeof name - 1) != 0)
        name[0] = '\0';
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(boot, sizeof boot, file))
            boot[0] = '\0';
        fclose(file);
    }
    return dsc_hash_bytes(dsc_hash_bytes(0, name, sizeof name), boot, sizeof boot);
}

/* Divides the CPUs among the ranks of a node that are bound to the same ones. */
dsc_status dsc_comm_share_cpus(dsc_comm *comm) {
    struct place {
        uint64_t node, cpus;
    } *places = NULL;
    int cpus = 1, sharers = 0;
    DSC_TRY(dsc_memory_alloc(comm->size, sizeof *places, &places));
    struct place *own = &places[comm->rank];
    own->node = dsc_comm_node();
    dsc_affinity(&cpus, &own->cpus);
    const dsc_transfer transfer = {
        .op = DSC_COMM_ALLGATHER, .dtype = DSC_U8, .send = own, .recv = places, .count = sizeof *own};
    dsc_status status = dsc_comm_run(comm, &transfer);
    for (int r = 0; r < comm->size; r++)
        sharers += places[r].node == own->node && places[r].cpus == own->cpus;
    dsc_memory_free(&places);
    DSC_TRY(status);
    comm->threads = cpus / sharers > 1 ? cpus / sharers : 1;
    return DSC_OK;
}

/* The CPUs on which this process may run. The only file that needs an interface of Linux (sched_getaffinity). */
#define _GNU_SOURCE
#include "comm/table.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

enum { MASK_BYTES = 4096 }; /* 32768 CPUs; the kernel refuses a mask that is too short for the machine */

void dsc_affinity(int *cpus, uint64_t *hash) {
    union {
        cpu_set_t set;
        unsigned char byte[MASK_BYTES];
    } mask;
    memset(&mask, 0, sizeof mask);
    *hash = 0;
    if (sched_getaffinity(0, MASK_BYTES, &mask.set) != 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        *cpus = online > 0 ? (int)online : 1;
        return;
    }
    *cpus = CPU_COUNT_S(MASK_BYTES, &mask.set);
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (int i = 0; i < MASK_BYTES; i++)
        h = (h ^ mask.byte[i]) * 1099511628211u;
    *hash = h;
}

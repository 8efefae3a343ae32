/* States of preconditioners in tests over ranks: copies by name, and all gradients as one list. */
#ifndef DSC_TESTS_KFAC_STATES_H
#define DSC_TESTS_KFAC_STATES_H

#include "kfac/crew.h"

#include <stdlib.h>

enum { MAX_NUMBERS = 400 };

/* Reads all gradients, one after the other; returns the number of elements. */
static inline int64_t read_all(const net *n, double *out) {
    int64_t count = 0;
    for (int l = 0; l < n->count; l++) {
        assert_true(count + net_gradient_count(n, l) <= MAX_NUMBERS);
        net_read(n, l, out + count);
        count += net_gradient_count(n, l);
    }
    return count;
}

static inline size_t entry_bytes(const dsc_kfac_entry *e) {
    size_t count = 1;
    for (int d = 0; d < e->ndim; d++)
        count *= (size_t)e->dim[d];
    return count * dsc_dtype_size(e->dtype);
}

/* Copies all entries of `to` from the entries of `from` with the same name, with or without decompositions. Optional
 * entries that `from` lacks become zero. */
static inline void copy_parts(dsc_kfac *from, dsc_kfac *to, dsc_queue *queue, int decompositions) {
    for (int late = 0; late < 1 + decompositions; late++) {
        for (int64_t i = 0; i < dsc_kfac_state_count(to); i++) {
            const dsc_kfac_entry *e = &dsc_kfac_state_entries(to)[i];
            size_t bytes = entry_bytes(e);
            void *host = net_array((int64_t)bytes, 1);
            int found = 0;
            for (int64_t j = 0; j < dsc_kfac_state_count(from) && (e->optional == 1) == late; j++)
                if (strcmp(dsc_kfac_state_entries(from)[j].name, e->name) == 0) {
                    EXPECT_OK(dsc_kfac_state_get(from, queue, j, rank == 0 ? host : NULL));
                    found = 1;
                }
            if ((e->optional == 1) == late) {
                EXPECT(found || e->optional == 2);
                EXPECT_OK(dsc_kfac_state_set(to, queue, i, rank == 0 ? host : NULL));
            }
            free(host);
        }
    }
    EXPECT_OK(dsc_kfac_state_done(to, queue, decompositions));
}

static inline void copy_state(dsc_kfac *from, dsc_kfac *to, dsc_queue *queue) {
    copy_parts(from, to, queue, 1);
}

static inline void copy_averages(dsc_kfac *from, dsc_kfac *to, dsc_queue *queue) {
    copy_parts(from, to, queue, 0);
}

#endif

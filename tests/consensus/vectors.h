/* Vectors to be averaged in tests: three tensors apart from each other. */
#ifndef DSC_TESTS_CONSENSUS_VECTORS_H
#define DSC_TESTS_CONSENSUS_VECTORS_H

#include "consensus/ranks.h"

enum { PIECES = 3, LENGTH = 40 };

static const int64_t lengths[PIECES] = {7, 32, 1};

typedef struct vectors {
    dsc_tensor memory;
    dsc_tensor piece[PIECES];
} vectors;

static inline void make_vectors(vectors *v) {
    const int64_t room = LENGTH + 4 * PIECES;
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, &room, &v->memory));
    int64_t at = 0;
    for (int p = 0; p < PIECES; p++) {
        v->piece[p] = dsc_tensor_slice(&v->memory, at, lengths[p]);
        at += lengths[p] + 4;
    }
}

static inline void write_vectors(vectors *v, const float *host) {
    for (int p = 0, at = 0; p < PIECES; at += (int)lengths[p++])
        push(&v->piece[p], host + at);
}

static inline void read_vectors(const vectors *v, float *host) {
    for (int p = 0, at = 0; p < PIECES; at += (int)lengths[p++])
        pull(&v->piece[p], host + at);
}

static inline void write_first_values(vectors *v) {
    float host[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        host[i] = (float)first_value(rank, i);
    write_vectors(v, host);
}

/* The values of a rank against the model's: exact with tolerance 0. */
static inline void check_values(const vectors *v, const model *m, double tolerance) {
    float host[LENGTH];
    read_vectors(v, host);
    EXPECT(differing(m, rank, host, 0, tolerance) == 0);
}

static inline dsc_average *make_average(vectors *v, const dsc_average_options *options) {
    dsc_average *average = NULL;
    assert_ok(dsc_average_create(comm, queue, v->piece, PIECES, options, &average));
    return average;
}

static inline dsc_average_options usual_options(const char *graph, int peers) {
    dsc_average_options options;
    dsc_average_options_init(&options);
    options.graph = graph;
    options.peers = peers;
    return options;
}

static inline void run_rounds(dsc_average *average, int count) {
    for (int i = 0; i < count; i++) {
        EXPECT_OK(dsc_average_begin(average, queue));
        EXPECT_OK(dsc_average_end(average, queue));
    }
}

#endif

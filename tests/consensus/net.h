/* A net for tests of gossip: the loss of rank r pulls every value z_i to a target of its own, g = (z_i -
 * target(r, i)) / 2; numbers are dyadic, so that a few steps are exact where shares are powers of two. And
 * the same steps on the naive model. */
#ifndef DSC_TESTS_CONSENSUS_NET_H
#define DSC_TESTS_CONSENSUS_NET_H

#include "consensus/ranks.h"

#include "device/ops.h"

enum { PARAMS = 3, LENGTH = 24 };

static const int64_t counts[PARAMS] = {10, 5, 9};
static const char *const names[PARAMS] = {"a.weight", "a.bias", "b.weight"};

/* Parameters 0 and 1 are neighbours in memory. */
typedef struct net {
    dsc_tensor values, grads;
    dsc_param params[PARAMS];
    double lr, decay;
    int saw_read; /* updates with another place to read */
} net;

static inline void make_net(net *n) {
    const int64_t room = LENGTH + 8;
    *n = (net){.lr = 1};
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, &room, &n->values));
    assert_ok(dsc_tensor_alloc(device, DSC_F32, 1, &room, &n->grads));
    int64_t at = 0;
    for (int p = 0; p < PARAMS; p++) {
        n->params[p] = (dsc_param){.name = names[p],
                                   .value = dsc_tensor_slice(&n->values, at, counts[p]),
                                   .grad = dsc_tensor_slice(&n->grads, at, counts[p])};
        at += counts[p] + (p == 1 ? 8 : 0);
    }
}

static inline void free_net(net *n) {
    dsc_tensor_free(&n->values);
    dsc_tensor_free(&n->grads);
}

static inline void write_values(net *n, const float *host) {
    for (int p = 0, at = 0; p < PARAMS; at += (int)counts[p++])
        push(&n->params[p].value, host + at);
}

static inline void read_values(const net *n, float *host) {
    for (int p = 0, at = 0; p < PARAMS; at += (int)counts[p++])
        pull(&n->params[p].value, host + at);
}

static inline double target(int r, int i) {
    return (double)((5 * r + i) % 8);
}

static inline double gradient(double z, int r, int i) {
    return 0.5 * (z - target(r, i));
}

/* x -= lr (g + decay z). */
static inline dsc_status descend(net *n, dsc_queue *q, const dsc_tensor *read) {
    n->saw_read += read != NULL;
    for (int p = 0; p < PARAMS; p++) {
        dsc_tensor *value = &n->params[p].value;
        if (read)
            DSC_TRY(dsc_op_axpby(q, -n->lr * n->decay, &read[p], 1, value));
        else
            DSC_TRY(dsc_op_axpby(q, 1 - n->lr * n->decay, value, 0, value));
        DSC_TRY(dsc_op_axpby(q, -n->lr, &n->params[p].grad, 1, value));
    }
    return DSC_OK;
}

static inline dsc_status update(dsc_consensus *c, dsc_queue *q, net *n) {
    const dsc_tensor *read;
    DSC_TRY(dsc_consensus_update_begin(c, q, &read));
    DSC_TRY(descend(n, q, read));
    return dsc_consensus_update_end(c, q);
}

static inline dsc_consensus_options usual_options(dsc_consensus_kind kind, const char *graph) {
    dsc_consensus_options options;
    dsc_consensus_options_init(&options);
    options.kind = kind;
    options.graph = graph;
    options.bucket_bytes = 32;
    return options;
}

static inline dsc_consensus *make_consensus(net *n, const dsc_consensus_options *options) {
    dsc_consensus *c = NULL;
    assert_ok(dsc_consensus_create(comm, queue, n->params, PARAMS, options, &c));
    return c;
}

/* Forward and backward: `z` gets the parameters, the gradients follow from them. */
static inline void compute(net *n, float *z) {
    float g[LENGTH];
    read_values(n, z);
    for (int i = 0; i < LENGTH; i++)
        g[i] = (float)gradient(z[i], rank, i);
    for (int p = 0, at = 0; p < PARAMS; at += (int)counts[p++])
        push(&n->params[p].grad, g + at);
}

static inline void step(dsc_consensus *c, net *n, float *z) {
    EXPECT_OK(dsc_consensus_before_forward(c, queue));
    compute(n, z);
    for (int p = PARAMS - 1; p >= 0; p--)
        EXPECT_OK(dsc_consensus_grad_ready(c, queue, p));
    EXPECT_OK(dsc_consensus_after_backward(c, queue));
    dsc_consensus_set_rate(c, n->lr);
    EXPECT_OK(update(c, queue, n));
}

static inline void write_first_values(net *n, int r) {
    float host[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        host[i] = (float)first_value(r, i);
    write_values(n, host);
}

/* ---- the model's steps ---- */

/* The optimiser on all ranks of the model; z holds where gradients and decay are taken. Each rank of the
 * model stands for `group` neighbouring ranks. */
static inline void model_update(model *m, const net *n, double (*z)[MOST_LENGTH], int group) {
    for (int r = 0; r < m->ranks; r++)
        for (int i = 0; i < m->length; i++) {
            double g = 0;
            for (int k = 0; k < group; k++)
                g += gradient(z[r][i], group * r + k, i) / group;
            m->x[r][i] -= n->lr * (g + n->decay * z[r][i]);
        }
}

static inline void model_debias(const model *m, double (*z)[MOST_LENGTH]) {
    for (int r = 0; r < m->ranks; r++)
        for (int i = 0; i < m->length; i++)
            z[r][i] = m->x[r][i] / m->w[r];
}

static inline void model_step(model *m, const net *n, const dsc_topology *topology, int64_t t, int overlapped,
                              int group) {
    double z[MOST_RANKS][MOST_LENGTH];
    model_debias(m, z);
    if (overlapped)
        model_mix(m, topology, t);
    model_update(m, n, z, group);
    if (!overlapped)
        model_mix(m, topology, t);
}

static inline dsc_topology *make_topology(const char *graph, int n, int peers) {
    dsc_topology_options options;
    dsc_topology *topology = NULL;
    dsc_topology_options_init(&options);
    options.peers = peers;
    assert_ok(dsc_topology_create(graph, n, &options, &topology));
    return topology;
}

static inline void random_values(net *n) {
    float host[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        dsc_rng rng = dsc_rng_start((uint64_t)rank, DSC_RNG_TEST, 3, (uint64_t)i);
        host[i] = (float)dsc_rng_normal(&rng);
    }
    write_values(n, host);
}

#endif

/* What the tests of graphs share: making them, and all that a graph must hold. */
#ifndef DSC_TESTS_CONSENSUS_GRAPHS_H
#define DSC_TESTS_CONSENSUS_GRAPHS_H

#include "test.h"

#include "descent/topology.h"

enum { GRAPH_MOST = 64 };

dsc_status graph_try(const char *name, int n, int k, dsc_topology **out);
dsc_topology *graph_create(const char *name, int n, int k);
/* `list` ends with NULL. */
int graph_is_one_of(const char *name, const char *const *list);
/* Which ranks n > 1 and peers k a named graph takes. */
int graph_is_possible(const char *name, int n, int k);

/* W of a step, [receiver][sender], from both sides: what ranks send and what ranks expect is the same, bit
 * for bit. *most rises to the most peers seen. */
extern double graph_matrix[GRAPH_MOST][GRAPH_MOST];
void graph_fill_matrix(const dsc_topology *t, int64_t step, int *most);
/* Columns sum to 1, rows too on regular graphs, matchings are symmetric; over the whole period. */
void graph_check(const dsc_topology *t);
/* Step `step` of a is step `other` of b, bit for bit. */
void graph_assert_same_step(const dsc_topology *a, const dsc_topology *b, int64_t step, int64_t other);

#endif

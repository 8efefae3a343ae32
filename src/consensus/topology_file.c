/* Graphs from a text file. A '#' starts a comment; the lines are
 *
 *   ranks N            must come first
 *   step               starts a step; after the last step the first one follows again
 *   FROM TO [SHARE]    FROM sends TO this share of its mass, by default 1 / (1 + peers of FROM in this step);
 *                      what is not sent is kept
 *
 * Graphs need not be regular, because push-sum weights travel. But every rank must keep something, or its
 * weight would vanish, and over all steps there must be a path from every rank to every other, or ranks
 * would never average. */
#include "consensus/topology_table.h"

#include "base/error.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20, MAX_WORDS = 4, MAX_WORD = 40 };
/* Smaller shares, sent or kept, would be lost in the rounding of float32. */
static const double least_share = 1e-6;

typedef struct line_edge {
    int64_t step, line;
    int from, to;
    double share; /* 0: not given */
} line_edge;

typedef struct parser {
    const char *file;
    int ranks;
    int64_t line, steps;
    int has_ranks;
    line_edge *edges;
    int64_t count, capacity;
} parser;

/* Text between blanks, with '?' for characters that cannot be printed, and "..." at the end when it is longer
 * than any valid word. Neither parses as a number then. */
typedef struct word {
    char text[MAX_WORD + 1];
} word;

/* ---- lines ---- */

/* Up to MAX_WORDS words of a line that ends before `end`; returns their number. */
static int split(const char *at, const char *end, word *words) {
    int count = 0;
    while (at < end && count < MAX_WORDS) {
        while (at < end && (*at == ' ' || *at == '\t' || *at == '\r'))
            at++;
        if (at == end || *at == '#')
            break;
        char *to = words[count++].text;
        int used = 0;
        for (; at < end && *at != ' ' && *at != '\t' && *at != '\r' && *at != '#'; at++)
            if (used < MAX_WORD)
                to[used++] = *at >= ' ' && *at <= '~' ? *at : '?';
        to[used] = '\0';
        if (used == MAX_WORD)
            memcpy(to + MAX_WORD - 3, "...", 3);
    }
    return count;
}

/* A whole number in plain digits. */
static int read_number(const word *w, int *out) {
    int64_t value = 0;
    for (const char *c = w->text; *c; c++) {
        if (*c < '0' || *c > '9' || value > INT32_MAX)
            return 0;
        value = 10 * value + (*c - '0');
    }
    *out = (int)value;
    return value <= INT32_MAX && *w->text;
}

static dsc_status read_ranks(parser *p, const word *words, int count) {
    int ranks;
    if (p->has_ranks)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": a second 'ranks' line: there is one, the first line",
                        p->file, p->line);
    if (count != 2 || !read_number(&words[1], &ranks))
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": 'ranks %s': one whole number must follow 'ranks'",
                        p->file, p->line, count > 1 ? words[1].text : "");
    if (ranks != p->ranks)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s:%" PRId64
                        ": the graph is made for %d ranks and there are %d: start %d, or write a graph for "
                        "%d",
                        p->file, p->line, ranks, p->ranks, ranks, p->ranks);
    p->has_ranks = 1;
    return DSC_OK;
}

static dsc_status read_rank(const parser *p, const word *w, int *out) {
    if (!read_number(w, out))
        return DSC_FAIL(DSC_E_FORMAT,
                        "%s:%" PRId64 ": '%s' is no rank: lines are 'ranks N', 'step' or 'FROM TO [SHARE]'",
                        p->file, p->line, w->text);
    if (*out >= p->ranks)
        return DSC_FAIL(DSC_E_INVALID, "%s:%" PRId64 ": rank %d: with %d ranks they go from 0 to %d", p->file,
                        p->line, *out, p->ranks, p->ranks - 1);
    return DSC_OK;
}

static dsc_status read_share(const parser *p, const word *w, double *out) {
    char *end;
    double share = strtod(w->text, &end);
    if (end == w->text || *end || !isdigit((unsigned char)w->text[strspn(w->text, "+-.")]))
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": share '%s' is no number: write one between 0 and 1",
                        p->file, p->line, w->text);
    if (!(share >= least_share && share < 1))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s:%" PRId64 ": share %s: must be at least %g and less than 1, so that something is "
                        "sent and something kept",
                        p->file, p->line, w->text, least_share);
    *out = share;
    return DSC_OK;
}

static dsc_status read_edge(parser *p, const word *words, int count) {
    line_edge e = {.step = p->steps - 1, .line = p->line};
    DSC_TRY(read_rank(p, &words[0], &e.from));
    if (count < 2 || count > 3)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": %s: a line of a step is 'FROM TO [SHARE]'", p->file,
                        p->line, count < 2 ? "one number alone" : "too many words");
    DSC_TRY(read_rank(p, &words[1], &e.to));
    if (e.from == e.to)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s:%" PRId64 ": rank %d sends to itself: leave the line out, what is not sent is "
                        "kept",
                        p->file, p->line, e.from);
    if (count == 3)
        DSC_TRY(read_share(p, &words[2], &e.share));
    if (!p->steps)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": an edge before the first 'step': put 'step' above it",
                        p->file, p->line);
    DSC_TRY(dsc_memory_grow(&p->edges, &p->capacity, p->count + 1, sizeof *p->edges));
    p->edges[p->count++] = e;
    return DSC_OK;
}

static dsc_status read_line(parser *p, const char *at, const char *end) {
    word words[MAX_WORDS] = {{{0}}};
    int count = split(at, end, words);
    if (count == 0)
        return DSC_OK;
    if (strcmp(words[0].text, "ranks") == 0)
        return read_ranks(p, words, count);
    if (!p->has_ranks)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": '%s' where 'ranks N' is due: a graph file starts so",
                        p->file, p->line, words[0].text);
    if (strcmp(words[0].text, "step") != 0)
        return read_edge(p, words, count);
    if (count > 1)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": '%s' after 'step': it stands alone on its line",
                        p->file, p->line, words[1].text);
    p->steps++;
    return DSC_OK;
}

static dsc_status read_lines(parser *p, const char *text, size_t length) {
    const char *end = text + length;
    for (const char *line = text; line < end;) {
        p->line++;
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        DSC_TRY(read_line(p, line, newline ? newline : end));
        line = newline ? newline + 1 : end;
    }
    if (!p->has_ranks)
        return DSC_FAIL(DSC_E_FORMAT, "%s: empty: a graph file starts with 'ranks N'", p->file);
    if (!p->steps)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": no 'step' in the file: write at least one", p->file,
                        p->line);
    return DSC_OK;
}

/* ---- the graph ---- */

static int64_t cell_of(const line_edge *e, int ranks, int receiver) {
    return e->step * ranks + (receiver ? e->to : e->from);
}

/* Sorts edges by their cell (step and rank, of the sender or of the receiver) into `order`, stably: edges
 * of one cell stay in the order of `before` (NULL: that of the file). starts[c] = where cell c begins in
 * `order`. */
static void sort_edges(const parser *p, int receiver, const int64_t *before, int64_t *starts,
                       int64_t *order) {
    int64_t cells = p->steps * p->ranks;
    for (int64_t i = 0; i < p->count; i++)
        starts[cell_of(&p->edges[i], p->ranks, receiver) + 1]++;
    for (int64_t c = 0; c < cells; c++)
        starts[c + 1] += starts[c];
    for (int64_t i = 0; i < p->count; i++) {
        int64_t edge = before ? before[i] : i;
        order[starts[cell_of(&p->edges[edge], p->ranks, receiver)]++] = edge;
    }
    for (int64_t c = cells; c > 0; c--)
        starts[c] = starts[c - 1];
    starts[0] = 0;
}

/* `order` is by receiver, then sender, so that a repeated edge follows at once. */
static dsc_status check_repeats(const parser *p, const int64_t *order) {
    for (int64_t i = 1; i < p->count; i++) {
        const line_edge *a = &p->edges[order[i - 1]], *b = &p->edges[order[i]];
        if (a->step == b->step && a->to == b->to && a->from == b->from)
            return DSC_FAIL(DSC_E_INVALID,
                            "%s:%" PRId64 ": '%d %d' again, as in line %" PRId64
                            " of this step: keep one of them",
                            p->file, b->line, b->from, b->to, a->line);
    }
    return DSC_OK;
}

/* Fills in default shares, and the share that the sender of this cell keeps. */
static dsc_status share_out(parser *p, const int64_t *order, int64_t count, double *kept) {
    double sum = 0, uniform = 1.0 / (double)(1 + count);
    int64_t given = 0;
    for (int64_t i = 0; i < count; i++) {
        line_edge *e = &p->edges[order[i]];
        given += e->share > 0;
        e->share = e->share > 0 ? e->share : uniform;
        sum += e->share;
    }
    *kept = given ? 1 - sum : uniform;
    if (*kept >= least_share)
        return DSC_OK;
    const line_edge *last = &p->edges[order[count - 1]];
    return DSC_FAIL(DSC_E_INVALID,
                    "%s:%" PRId64 ": with this line rank %d sends %.9g of its mass in step %" PRId64
                    ": all shares together must leave it at least %g; make them smaller",
                    p->file, last->line, last->from, sum, last->step, least_share);
}

static dsc_status fill_list(const parser *p, int receiver, const int64_t *order, dsc_edge_list *list) {
    DSC_TRY(dsc_memory_alloc(p->count, sizeof *list->edges, &list->edges));
    for (int64_t i = 0; i < p->count; i++) {
        const line_edge *e = &p->edges[order[i]];
        list->edges[i] = (dsc_edge){receiver ? e->from : e->to, e->share};
    }
    return DSC_OK;
}

/* `order` has 2 p->count elements. */
static dsc_status build(dsc_topology *t, parser *p, int64_t *order) {
    int64_t cells = p->steps * p->ranks, *by_receiver = order + p->count;
    DSC_TRY(dsc_memory_alloc(cells + 1, sizeof *t->sent.starts, &t->sent.starts));
    DSC_TRY(dsc_memory_alloc(cells + 1, sizeof *t->got.starts, &t->got.starts));
    DSC_TRY(dsc_memory_alloc(cells, sizeof *t->kept, &t->kept));
    sort_edges(p, 0, NULL, t->sent.starts, order);
    sort_edges(p, 1, order, t->got.starts, by_receiver);
    DSC_TRY(check_repeats(p, by_receiver));
    for (int64_t c = 0; c < cells; c++) {
        int64_t begin = t->sent.starts[c];
        DSC_TRY(share_out(p, order + begin, t->sent.starts[c + 1] - begin, &t->kept[c]));
    }
    DSC_TRY(fill_list(p, 0, order, &t->sent));
    return fill_list(p, 1, by_receiver, &t->got);
}

/* Finds the largest number of messages of a rank, and whether the graph is regular and a matching. */
static void find_properties(dsc_topology *t) {
    const double rounding = 1e-12;
    int64_t cells = t->period * t->ranks;
    t->most_peers = 0;
    t->regular = t->matching = 1;
    for (int64_t c = 0; c < cells; c++) {
        int64_t sent = t->sent.starts[c + 1] - t->sent.starts[c],
                got = t->got.starts[c + 1] - t->got.starts[c];
        int most = (int)(sent > got ? sent : got);
        t->most_peers = most > t->most_peers ? most : t->most_peers;
        double row = t->kept[c];
        for (int64_t i = t->got.starts[c]; i < t->got.starts[c + 1]; i++)
            row += t->got.edges[i].share;
        if (fabs(row - 1) > rounding)
            t->regular = 0;
        const dsc_edge *out = &t->sent.edges[t->sent.starts[c]], *in = &t->got.edges[t->got.starts[c]];
        if (sent > 1 || sent != got || (sent && (out->rank != in->rank || out->share != in->share)))
            t->matching = 0;
    }
}

/* Follows the edges of all steps from rank 0. Returns a rank that cannot be reached, or -1. `reached` and
 * `todo` have one element per rank. */
static int find_unreached(const dsc_topology *t, const dsc_edge_list *list, int *reached, int *todo) {
    int count = 1;
    memset(reached, 0, (size_t)t->ranks * sizeof *reached);
    reached[0] = 1;
    todo[0] = 0;
    while (count > 0) {
        int rank = todo[--count];
        for (int64_t c = rank; c < t->period * t->ranks; c += t->ranks)
            for (int64_t i = list->starts[c]; i < list->starts[c + 1]; i++) {
                int other = list->edges[i].rank;
                if (!reached[other])
                    todo[count++] = other;
                reached[other] = 1;
            }
    }
    for (int r = 0; r < t->ranks; r++)
        if (!reached[r])
            return r;
    return -1;
}

static dsc_status check_connected(const dsc_topology *t, int64_t lines) {
    int *memory;
    DSC_TRY(dsc_memory_alloc(2 * (int64_t)t->ranks, sizeof *memory, &memory));
    int unheard = find_unreached(t, &t->got, memory, memory + t->ranks);
    int unreached = find_unreached(t, &t->sent, memory, memory + t->ranks);
    dsc_memory_free(&memory);
    if (unreached < 0 && unheard < 0)
        return DSC_OK;
    int from = unreached < 0 ? unheard : 0, to = unreached < 0 ? 0 : unreached;
    return DSC_FAIL(DSC_E_INVALID,
                    "%s:%" PRId64
                    ": in all of the file's steps there is no path from rank %d to rank %d: add "
                    "edges until everybody's share can reach everybody",
                    t->name, lines, from, to);
}

dsc_status dsc_topology_file_parse(dsc_topology *topology, const char *text, size_t length) {
    parser p = {.file = topology->name, .ranks = topology->ranks};
    int64_t *order = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, read_lines(&p, text, length), out);
    DSC_TRY_GOTO(status, dsc_memory_alloc(2 * p.count, sizeof *order, &order), out);
    DSC_TRY_GOTO(status, build(topology, &p, order), out);
    topology->period = p.steps;
    find_properties(topology);
    DSC_TRY_GOTO(status, check_connected(topology, p.line), out);
out:
    dsc_memory_free(&order);
    dsc_memory_free(&p.edges);
    return status;
}

/* ---- the kind ---- */

/* All of the file in new memory. */
static dsc_status read_file(const char *path, char **out, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return DSC_FAIL(errno == ENOENT ? DSC_E_NOT_FOUND : DSC_E_IO, "graph file '%s': %s", path,
                        strerror(errno));
    char *text = NULL;
    int64_t capacity = 0;
    size_t used = 0, got = 1;
    dsc_status status = DSC_OK;
    while (status == DSC_OK && got > 0 && used <= MAX_FILE_BYTES) {
        status = dsc_memory_grow(&text, &capacity, (int64_t)used + (1 << 14), 1);
        if (status != DSC_OK)
            break;
        got = fread(text + used, 1, (size_t)capacity - used, file);
        used += got;
    }
    if (status == DSC_OK && ferror(file))
        status = DSC_FAIL(DSC_E_IO, "graph file '%s': %s", path, strerror(errno));
    else if (status == DSC_OK && used > MAX_FILE_BYTES)
        status = DSC_FAIL(DSC_E_FORMAT, "graph file '%s' is longer than %d bytes: not a graph file", path,
                          (int)MAX_FILE_BYTES);
    fclose(file);
    if (status != DSC_OK)
        dsc_memory_free(&text);
    *out = text;
    *length = used;
    return status;
}

static dsc_status open_file(dsc_topology *t) {
    char *text = NULL;
    size_t length = 0;
    DSC_TRY(read_file(t->name, &text, &length));
    dsc_status status = dsc_topology_file_parse(t, text, length);
    dsc_memory_free(&text);
    return status;
}

static int copy_cell(const dsc_edge_list *list, int64_t cell, dsc_edge *edges) {
    int64_t count = list->starts[cell + 1] - list->starts[cell];
    if (count)
        memcpy(edges, list->edges + list->starts[cell], (size_t)count * sizeof *edges);
    return (int)count;
}

static int file_out(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges, double *self) {
    int64_t cell = step * t->ranks + rank;
    *self = t->kept[cell];
    return copy_cell(&t->sent, cell, edges);
}

static int file_in(const dsc_topology *t, int rank, int64_t step, dsc_edge *edges) {
    return copy_cell(&t->got, step * t->ranks + rank, edges);
}

const dsc_topology_kind dsc_topology_file = {
    .fixed_peers = 1,
    .open = open_file,
    .out = file_out,
    .in = file_in,
};

/* Graphs from a text file. A '#' starts a comment; the lines are
 *
 *   ranks N            must come first
 *   step               starts a step; after the last step the first one follows again
 *   FROM TO [SHARE]    FROM sends TO this share of its mass, by default 1 / (1 + peers of FROM in this step);
 *                      the rest is kept
 *
 * topology_list.c checks that the graph is usable. */
#include "consensus/topology_table.h"

#include "base/error.h"
#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20, MAX_WORDS = 4, MAX_WORD = 40 };

typedef struct parser {
    dsc_listed_graph list;
    int64_t line;
    int has_ranks;
} parser;

/* Text between blanks, with '?' for characters that cannot be printed, and "..." at the end if it is longer than
 * any valid word. In both cases it does not parse as a number. */
typedef struct word {
    char text[MAX_WORD + 1];
} word;

/* ---- lines ---- */

/* Splits a line that ends before `end` into up to MAX_WORDS words; returns their number. */
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

/* Reads a number that consists only of digits. Returns 0 for other words and for numbers above INT32_MAX. */
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
                        p->list.name, p->line);
    if (count != 2 || !read_number(&words[1], &ranks))
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": 'ranks %s': one whole number must follow 'ranks'",
                        p->list.name, p->line, count > 1 ? words[1].text : "");
    if (ranks != p->list.ranks)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s:%" PRId64
                        ": the graph is made for %d ranks and there are %d: start %d, or write a graph for "
                        "%d",
                        p->list.name, p->line, ranks, p->list.ranks, ranks, p->list.ranks);
    p->has_ranks = 1;
    return DSC_OK;
}

static dsc_status read_rank(const parser *p, const word *w, int *out) {
    if (!read_number(w, out))
        return DSC_FAIL(DSC_E_FORMAT,
                        "%s:%" PRId64 ": '%s' is no rank: lines are 'ranks N', 'step' or 'FROM TO [SHARE]'",
                        p->list.name, p->line, w->text);
    if (*out >= p->list.ranks)
        return DSC_FAIL(DSC_E_INVALID, "%s:%" PRId64 ": rank %d: with %d ranks they go from 0 to %d",
                        p->list.name, p->line, *out, p->list.ranks, p->list.ranks - 1);
    return DSC_OK;
}

static dsc_status read_share(const parser *p, const word *w, double *out) {
    char *end;
    double share = strtod(w->text, &end);
    if (end == w->text || *end || !isdigit((unsigned char)w->text[strspn(w->text, "+-.")]))
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": share '%s' is no number: write one between 0 and 1",
                        p->list.name, p->line, w->text);
    if (!(share >= dsc_least_share && share < 1))
        return DSC_FAIL(DSC_E_INVALID,
                        "%s:%" PRId64 ": share %s: must be at least %g and less than 1, so that something is "
                        "sent and something kept",
                        p->list.name, p->line, w->text, dsc_least_share);
    *out = share;
    return DSC_OK;
}

static dsc_status read_edge(parser *p, const word *words, int count) {
    dsc_listed_edge e = {.step = p->list.steps - 1, .line = p->line};
    DSC_TRY(read_rank(p, &words[0], &e.from));
    if (count < 2 || count > 3)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": %s: a line of a step is 'FROM TO [SHARE]'",
                        p->list.name, p->line, count < 2 ? "one number alone" : "too many words");
    DSC_TRY(read_rank(p, &words[1], &e.to));
    if (e.from == e.to)
        return DSC_FAIL(DSC_E_INVALID,
                        "%s:%" PRId64 ": rank %d sends to itself: leave the line out, what is not sent is "
                        "kept",
                        p->list.name, p->line, e.from);
    if (count == 3)
        DSC_TRY(read_share(p, &words[2], &e.share));
    if (!p->list.steps)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": an edge before the first 'step': put 'step' above it",
                        p->list.name, p->line);
    DSC_TRY(dsc_memory_grow(&p->list.edges, &p->list.capacity, p->list.count + 1, sizeof *p->list.edges));
    p->list.edges[p->list.count++] = e;
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
                        p->list.name, p->line, words[0].text);
    if (strcmp(words[0].text, "step") != 0)
        return read_edge(p, words, count);
    if (count > 1)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": '%s' after 'step', which must be alone on its line",
                        p->list.name, p->line, words[1].text);
    p->list.steps++;
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
        return DSC_FAIL(DSC_E_FORMAT, "%s: empty: a graph file starts with 'ranks N'", p->list.name);
    if (!p->list.steps)
        return DSC_FAIL(DSC_E_FORMAT, "%s:%" PRId64 ": no 'step' in the file: write at least one",
                        p->list.name, p->line);
    return DSC_OK;
}

dsc_status dsc_topology_file_parse(dsc_topology *topology, const char *text, size_t length) {
    parser p = {.list = {.name = topology->name, .is_file = 1, .ranks = topology->ranks}};
    dsc_status status = read_lines(&p, text, length);
    p.list.lines = p.line;
    if (status == DSC_OK)
        status = dsc_topology_from_list(topology, &p.list);
    dsc_memory_free(&p.list.edges);
    return status;
}

/* ---- the kind ---- */

/* Reads the whole file into new memory. */
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

const dsc_topology_kind dsc_topology_file = {
    .fixed_peers = 1,
    .open = open_file,
    .out = dsc_topology_list_out,
    .in = dsc_topology_list_in,
};

/* Images that cannot be read. */
#include "train/bad_images.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "train/share.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SHARE = 1000, AT_ONCE = 16 }; /* one image in 1000 may be bad; reports fetched at a time */

/* Sets *limit to the number of bad images that `rule` allows; -1: one in DEFAULT_SHARE. Returns 0 for a wrong rule. */
static int read_rule(const char *rule, int64_t *limit) {
    *limit = -1;
    if (!rule || strcmp(rule, "skip") == 0)
        return 1;
    *limit = 0;
    if (strcmp(rule, "stop") == 0)
        return 1;
    if (strncmp(rule, "skip:", 5) != 0 || rule[5] < '0' || rule[5] > '9')
        return 0;
    char *end;
    errno = 0;
    long long number = strtoll(rule + 5, &end, 10);
    *limit = number;
    return errno == 0 && *end == '\0';
}

dsc_status dsc_bad_images_check_rule(const char *rule, const char *prefix) {
    int64_t limit;
    if (read_rule(rule, &limit))
        return DSC_OK;
    return DSC_FAIL(DSC_E_INVALID,
                    "%sbad-images '%s': must be stop, skip (up to 0.1 %% of the images) or skip:N, as in "
                    "skip:100",
                    prefix, rule);
}

void dsc_bad_images_init(dsc_bad_images *bad, const char *what, int64_t count, const char *rule) {
    *bad = (dsc_bad_images){.what = what, .count = count};
    read_rule(rule, &bad->limit);
    if (bad->limit < 0)
        bad->limit = (count + DEFAULT_SHARE - 1) / DEFAULT_SHARE;
}

void dsc_bad_images_free(dsc_bad_images *bad) {
    dsc_memory_free(&bad->pending);
    dsc_memory_free(&bad->known);
    bad->pending_count = bad->pending_capacity = bad->known_count = bad->known_capacity = 0;
}

dsc_status dsc_bad_images_take(dsc_bad_images *bad, dsc_loader *loader, int64_t *found) {
    *found = 0;
    for (;;) {
        dsc_bad_sample some[AT_ONCE];
        int64_t count = dsc_loader_take_bad(loader, some, AT_ONCE);
        if (count == 0)
            return DSC_OK;
        *found += count;
        DSC_TRY(dsc_memory_grow(&bad->pending, &bad->pending_capacity, bad->pending_count + count,
                                sizeof *bad->pending));
        memcpy(bad->pending + bad->pending_count, some, (size_t)count * sizeof *some);
        bad->pending_count += count;
    }
}

static int is_known(const dsc_bad_images *bad, int64_t index) {
    for (int64_t i = 0; i < bad->known_count; i++)
        if (bad->known[i] == index)
            return 1;
    return 0;
}

static dsc_status name(dsc_bad_images *bad, const dsc_bad_sample *sample, int prints) {
    if (is_known(bad, sample->index))
        return DSC_OK;
    DSC_TRY(dsc_memory_grow(&bad->known, &bad->known_capacity, bad->known_count + 1, sizeof *bad->known));
    bad->known[bad->known_count++] = sample->index;
    if (!bad->first[0])
        memcpy(bad->first, sample->message, sizeof bad->first);
    if (prints)
        dsc_log(DSC_LOG_WARNING, "skipped an image that cannot be read: %s", sample->message);
    return DSC_OK;
}

dsc_status dsc_bad_images_name(dsc_bad_images *bad, dsc_comm *comm, dsc_queue *queue) {
    const int ranks = dsc_comm_size(comm), prints = dsc_comm_rank(comm) == 0;
    void *all = NULL;
    int64_t most = 0;
    DSC_TRY(dsc_share_gather(comm, queue, DSC_OK, &bad->pending_count, sizeof bad->pending_count, &all));
    int64_t *counts = all;
    for (int r = 0; r < ranks; r++)
        most = counts[r] > most ? counts[r] : most;
    dsc_status status = DSC_OK;
    void *samples = NULL;
    if (most > 0) {
        status = dsc_memory_grow(&bad->pending, &bad->pending_capacity, most, sizeof *bad->pending);
        status = dsc_share_gather(comm, queue, status, bad->pending, (size_t)most * sizeof *bad->pending,
                                  &samples);
    }
    for (int64_t i = 0; status == DSC_OK && i < most; i++) /* roughly in the order of the batches */
        for (int r = 0; status == DSC_OK && r < ranks; r++)
            if (i < counts[r])
                status = name(bad, (const dsc_bad_sample *)samples + r * most + i, prints);
    bad->pending_count = 0;
    dsc_memory_free(&samples);
    dsc_memory_free(&counts);
    return dsc_comm_agree(comm, status);
}

dsc_status dsc_bad_images_check(const dsc_bad_images *bad, int64_t found, const char *more) {
    if (found <= bad->limit)
        return DSC_OK;
    return DSC_FAIL(DSC_E_FORMAT,
                    "%lld of the %lld %s images cannot be read, and bad-images allows %lld; the first: %s. "
                    "Repair or remove them (descent check-data lists all), or allow more%s%s",
                    (long long)found, (long long)bad->count, bad->what, (long long)bad->limit, bad->first,
                    *more ? "; " : "", more);
}

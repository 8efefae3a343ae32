/* K-FAC's part of the state file. */
#include "train/checkpoint_kfac.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "train/checkpoint_parts.h"
#include "train/share.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PREFIX_SIZE = 48 };

static int64_t entry_numbers(const dsc_kfac_entry *e) {
    int64_t count = 1;
    for (int i = 0; i < e->ndim; i++)
        count *= e->dim[i];
    return count;
}

size_t dsc_checkpoint_kfac_bytes(const dsc_kfac_entry *entry) {
    return (size_t)entry_numbers(entry) * dsc_dtype_size(entry->dtype);
}

int64_t dsc_checkpoint_kfac_count(const dsc_snapshot *s) {
    return s->kfac ? dsc_kfac_state_count(s->kfac) : 0;
}

size_t dsc_checkpoint_kfac_largest(const dsc_snapshot *s) {
    size_t largest = 0;
    for (int64_t i = 0; i < dsc_checkpoint_kfac_count(s); i++) {
        size_t bytes = dsc_checkpoint_kfac_bytes(&dsc_kfac_state_entries(s->kfac)[i]);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* Room for the largest entry, on rank 0. Collective; fails on all ranks or on none. */
static dsc_status make_room(const dsc_snapshot *s, void **host) {
    int64_t largest = (int64_t)dsc_checkpoint_kfac_largest(s);
    int first = dsc_comm_rank(s->comm) == 0;
    return dsc_comm_agree(s->comm, first ? dsc_memory_alloc(largest, 1, host) : DSC_OK);
}

static void print_prefix(int alone, int64_t rank, char prefix[PREFIX_SIZE]) {
    if (alone)
        snprintf(prefix, PREFIX_SIZE, DSC_RANK_PREFIX DSC_KFAC_PREFIX, (int)rank);
    else
        snprintf(prefix, PREFIX_SIZE, DSC_KFAC_PREFIX);
}

/* ---- saving ---- */

static dsc_status describe(const dsc_snapshot *s, dsc_st_writer *w) {
    const dsc_kfac_options *o = s->options->kfac;
    char blocks[32];
    snprintf(blocks, sizeof blocks, "%" PRId64, o->diag_blocks);
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_method", dsc_kfac_method_name(o->method)));
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_scaling", dsc_kfac_scaling_name(o->scaling)));
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_strategy", dsc_kfac_strategy_name(o->strategy)));
    DSC_TRY(dsc_st_writer_metadata(w, "kfac_outer_product", o->outer_product ? "on" : "off"));
    if (s->kfac_alone)
        DSC_TRY(dsc_st_writer_metadata(w, "kfac_scope", dsc_kfac_scope_name(s->options->kfac_scope)));
    return dsc_st_writer_metadata(w, "kfac_diag_blocks", blocks);
}

dsc_status dsc_checkpoint_kfac_declare(const dsc_snapshot *s, dsc_st_writer *writer) {
    if (!s->kfac)
        return DSC_OK;
    DSC_TRY(describe(s, writer));
    int64_t count = dsc_checkpoint_kfac_count(s), ranks = s->kfac_alone ? dsc_comm_size(s->comm) : 1;
    for (int64_t i = 0; i < ranks * count; i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(s->kfac)[i % count];
        char *name, prefix[PREFIX_SIZE];
        print_prefix(s->kfac_alone, i / count, prefix);
        DSC_TRY(dsc_checkpoint_name(prefix, e->name, &name));
        dsc_status status = dsc_st_writer_declare(writer, name, e->dtype, e->ndim, e->dim);
        dsc_memory_free(&name);
        DSC_TRY(status);
    }
    return DSC_OK;
}

static dsc_status save_entries(const dsc_snapshot *s, dsc_st_writer *writer, int64_t first, void *host) {
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < dsc_checkpoint_kfac_count(s); i++) {
        DSC_TRY(dsc_kfac_state_get(s->kfac, s->queue, i, host));
        if (host && status == DSC_OK)
            status = dsc_st_writer_write(writer, first + i, host,
                                         dsc_checkpoint_kfac_bytes(&dsc_kfac_state_entries(s->kfac)[i]));
    }
    return status;
}

dsc_status dsc_checkpoint_kfac_save(const dsc_snapshot *s, dsc_st_writer *writer, int64_t first) {
    void *host = NULL;
    if (!s->kfac)
        return DSC_OK;
    if (s->kfac_alone)
        return dsc_checkpoint_kfac_save_ranks(s, writer, first);
    dsc_status status = make_room(s, &host);
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, save_entries(s, writer, first, host));
    dsc_memory_free(&host);
    return status;
}

/* ---- looking ---- */

/* NULL when there is none. */
dsc_status dsc_checkpoint_kfac_find(const dsc_st_reader *reader, const dsc_kfac_source_file *file, int64_t r,
                                    const dsc_kfac_entry *entry, const dsc_st_tensor **out) {
    char *name, prefix[PREFIX_SIZE];
    print_prefix(file->alone, r % file->ranks, prefix);
    DSC_TRY(dsc_checkpoint_name(prefix, entry->name, &name));
    *out = dsc_st_find(reader, name);
    dsc_memory_free(&name);
    return DSC_OK;
}

static int fits(const dsc_st_tensor *t, const dsc_kfac_entry *e) {
    return t && t->dtype == e->dtype && t->bytes == dsc_checkpoint_kfac_bytes(e);
}

static int has_state(const dsc_st_reader *reader, int alone) {
    char prefix[PREFIX_SIZE];
    print_prefix(alone, 0, prefix);
    for (int64_t i = 0; i < dsc_st_count(reader); i++)
        if (strncmp(dsc_st_tensors(reader)[i].name, prefix, strlen(prefix)) == 0)
            return 1;
    return 0;
}

static dsc_status refuse(const dsc_st_reader *reader, const dsc_kfac_entry *e, const dsc_st_tensor *t) {
    if (!t)
        return DSC_FAIL(DSC_E_FORMAT,
                        "'%s' has K-FAC's state, but lacks '" DSC_KFAC_PREFIX
                        "%s': it was written with other layers left out, or is damaged",
                        dsc_st_path(reader), e->name);
    return DSC_FAIL(DSC_E_FORMAT,
                    "'%s': '%s' holds %lld numbers of type %s, this run has %lld of %s: factors must be "
                    "stored as they were",
                    dsc_st_path(reader), t->name, (long long)(t->bytes / dsc_dtype_size(t->dtype)),
                    dsc_dtype_name(t->dtype), (long long)entry_numbers(e), dsc_dtype_name(e->dtype));
}

/* Those of the ranks that wrote a file of its own each, or the common ones. */
static int64_t copies(const dsc_kfac_source_file *file) {
    return file->alone ? file->ranks : 1;
}

dsc_status dsc_checkpoint_kfac_check(const dsc_snapshot *s, const dsc_st_reader *reader, int64_t ranks,
                                     dsc_kfac_source_file *file) {
    int alone = has_state(reader, 1);
    *file = (dsc_kfac_source_file){s->kfac && (alone || has_state(reader, 0)), alone, ranks};
    if (s->kfac && !file->found)
        dsc_log(DSC_LOG_WARNING, "'%s' was written without K-FAC: its factors start anew",
                dsc_st_path(reader));
    int64_t count = dsc_checkpoint_kfac_count(s);
    for (int64_t i = 0; file->found && i < copies(file) * count; i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(s->kfac)[i % count];
        const dsc_st_tensor *t = NULL;
        DSC_TRY(dsc_checkpoint_kfac_find(reader, file, i / count, e, &t));
        if (!e->optional && !fits(t, e))
            return refuse(reader, e, t);
    }
    return DSC_OK;
}

dsc_status dsc_checkpoint_kfac_optional(const dsc_snapshot *s, const dsc_st_reader *reader,
                                        const dsc_kfac_source_file *file, int *found) {
    int64_t count = dsc_checkpoint_kfac_count(s);
    *found = 1;
    for (int64_t i = 0; i < copies(file) * count; i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(s->kfac)[i % count];
        const dsc_st_tensor *t = NULL;
        DSC_TRY(dsc_checkpoint_kfac_find(reader, file, i / count, e, &t));
        *found = *found && (!e->optional || fits(t, e));
    }
    if (!*found)
        dsc_log(DSC_LOG_WARNING,
                "'%s' was written with other decompositions than this run makes: they are made anew from the "
                "factors",
                dsc_st_path(reader));
    return DSC_OK;
}

dsc_status dsc_checkpoint_kfac_read(const dsc_st_reader *reader, const dsc_kfac_source_file *file, int64_t r,
                                    const dsc_kfac_entry *entry, void *host) {
    const dsc_st_tensor *t = NULL;
    DSC_TRY(dsc_checkpoint_kfac_find(reader, file, r, entry, &t));
    return dsc_st_read(reader, t, host, dsc_checkpoint_kfac_bytes(entry));
}

/* ---- loading a common one ---- */

/* The entries that are optional, or those that are not; all of them, even when one cannot be read. reader and
 * host are NULL but on rank 0. Which optional ones there are may depend on the others. */
static dsc_status set_entries(const dsc_snapshot *s, const dsc_st_reader *reader,
                              const dsc_kfac_source_file *file, int optional, void *host) {
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < dsc_checkpoint_kfac_count(s); i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(s->kfac)[i];
        if (e->optional != optional)
            continue;
        if (reader && status == DSC_OK)
            status = dsc_checkpoint_kfac_read(reader, file, 0, e, host);
        if (reader && status != DSC_OK) /* nothing that is refused in its place */
            memset(host, 0, dsc_checkpoint_kfac_bytes(e));
        dsc_status set = dsc_kfac_state_set(s->kfac, s->queue, i, host);
        if (set == DSC_E_FORMAT && reader)
            dsc_error_prefix(set, "'%s' is damaged", dsc_st_path(reader));
        DSC_TRY(set);
    }
    return dsc_comm_agree(s->comm, status);
}

static dsc_status load_part(const dsc_snapshot *s, const dsc_st_reader *reader,
                            const dsc_kfac_source_file *file, int optional) {
    void *host = NULL;
    dsc_status status = make_room(s, &host);
    if (status == DSC_OK)
        status = set_entries(s, reader, file, optional, host);
    dsc_memory_free(&host);
    return status;
}

static dsc_status load_common(const dsc_snapshot *s, const dsc_st_reader *reader,
                              const dsc_kfac_source_file *file) {
    int decompositions = 0;
    DSC_TRY(load_part(s, reader, file, 0));
    dsc_status status = DSC_OK;
    if (reader)
        status = dsc_checkpoint_kfac_optional(s, reader, file, &decompositions);
    DSC_TRY(dsc_comm_agree(s->comm, status));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &decompositions, sizeof decompositions));
    if (decompositions)
        DSC_TRY(load_part(s, reader, file, 1));
    return dsc_kfac_state_done(s->kfac, s->queue, decompositions);
}

dsc_status dsc_checkpoint_kfac_load(const dsc_snapshot *s, const dsc_st_reader *reader,
                                    dsc_kfac_source_file *file) {
    if (!s->kfac)
        return DSC_OK;
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, file, sizeof *file));
    if (!file->found)
        return DSC_OK;
    return s->kfac_alone ? dsc_checkpoint_kfac_load_ranks(s, reader, file) : load_common(s, reader, file);
}

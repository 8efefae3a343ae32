/* K-FAC's part of the state file where every rank has a K-FAC of its own. Entries travel as bytes; rank 0 is
 * the only one that reads and writes. */
#include "base/error.h"
#include "base/memory.h"
#include "train/checkpoint_kfac.h"
#include "train/checkpoint_parts.h"
#include "train/share.h"

#include <string.h>

/* Room for the largest entry. Collective; fails on all ranks or on none. */
static dsc_status open_carrier(const dsc_snapshot *s, dsc_carrier *c) {
    return dsc_comm_agree(s->comm, dsc_carrier_open(s->comm, s->queue, dsc_checkpoint_kfac_largest(s), c));
}

static const dsc_kfac_entry *entry_at(const dsc_snapshot *s, int64_t i) {
    return &dsc_kfac_state_entries(s->kfac)[i];
}

/* ---- saving ---- */

/* Rank r's entry into rank 0's host memory. */
static dsc_status collect(const dsc_snapshot *s, dsc_carrier *c, int r, int64_t i) {
    if (dsc_comm_rank(s->comm) == r)
        DSC_TRY(dsc_kfac_state_get(s->kfac, s->queue, i, c->host));
    return dsc_carrier_move(c, r, 0, dsc_checkpoint_kfac_bytes(entry_at(s, i)));
}

static dsc_status save_all(const dsc_snapshot *s, dsc_st_writer *writer, int64_t first, dsc_carrier *c) {
    int64_t count = dsc_checkpoint_kfac_count(s);
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < dsc_comm_size(s->comm) * count; i++) {
        DSC_TRY(collect(s, c, (int)(i / count), i % count));
        if (dsc_comm_rank(s->comm) == 0 && status == DSC_OK)
            status = dsc_st_writer_write(writer, first + i, c->host,
                                         dsc_checkpoint_kfac_bytes(entry_at(s, i % count)));
    }
    return status;
}

dsc_status dsc_checkpoint_kfac_save_ranks(const dsc_snapshot *s, dsc_st_writer *writer, int64_t first) {
    dsc_carrier c;
    dsc_status status = open_carrier(s, &c);
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, save_all(s, writer, first, &c));
    dsc_carrier_close(&c);
    return status;
}

/* ---- loading ---- */

/* One entry for rank r, which takes it even when it could not be read, so that nobody waits. */
static dsc_status hand_out(const dsc_snapshot *s, const dsc_st_reader *reader,
                           const dsc_kfac_source_file *file, dsc_carrier *c, int r, int64_t i) {
    const dsc_kfac_entry *e = entry_at(s, i);
    dsc_status status = reader ? dsc_checkpoint_kfac_read(reader, file, r, e, c->host) : DSC_OK;
    DSC_TRY(dsc_carrier_move(c, 0, r, dsc_checkpoint_kfac_bytes(e)));
    if (dsc_comm_rank(s->comm) == r && status == DSC_OK)
        status = dsc_kfac_state_set(s->kfac, s->queue, i, c->host);
    if (status == DSC_E_FORMAT && reader)
        dsc_error_prefix(status, "'%s' is damaged", dsc_st_path(reader));
    return status;
}

/* The number of blocks, once it is set, decides which entries follow: their list is looked at anew each time.
 * Those that are not optional stand at the same places in every list. */
static dsc_status set_entries(const dsc_snapshot *s, const dsc_st_reader *reader,
                              const dsc_kfac_source_file *file, int optional, dsc_carrier *c) {
    dsc_status first = DSC_OK;
    for (int r = 0; r < dsc_comm_size(s->comm); r++) {
        for (int64_t i = 0; i < dsc_checkpoint_kfac_count(s); i++) {
            if (entry_at(s, i)->optional != optional)
                continue;
            dsc_status status = hand_out(s, reader, file, c, r, i);
            if (first == DSC_OK)
                first = status;
            if (c->request) /* nothing more can travel */
                return first;
        }
    }
    return first;
}

static dsc_status load_part(const dsc_snapshot *s, const dsc_st_reader *reader,
                            const dsc_kfac_source_file *file, int optional) {
    dsc_carrier c;
    dsc_status status = open_carrier(s, &c);
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, set_entries(s, reader, file, optional, &c));
    dsc_carrier_close(&c);
    return status;
}

/* Rank 0: ranks whose factors are cut differently would expect different lists. */
static dsc_status check_blocks(const dsc_snapshot *s, const dsc_st_reader *reader,
                               const dsc_kfac_source_file *file) {
    for (int64_t i = 0; i < dsc_checkpoint_kfac_count(s); i++) {
        const dsc_kfac_entry *e = entry_at(s, i);
        int64_t first = 0, other = 0;
        if (strcmp(e->name, "blocks") != 0)
            continue;
        DSC_TRY(dsc_checkpoint_kfac_read(reader, file, 0, e, &first));
        for (int64_t r = 1; r < file->ranks; r++) {
            DSC_TRY(dsc_checkpoint_kfac_read(reader, file, r, e, &other));
            if (other != first)
                return DSC_FAIL(DSC_E_FORMAT,
                                "'%s' is damaged: K-FAC's factors are cut into %lld blocks on one rank and "
                                "%lld on another",
                                dsc_st_path(reader), (long long)first, (long long)other);
        }
    }
    return DSC_OK;
}

dsc_status dsc_checkpoint_kfac_load_ranks(const dsc_snapshot *s, const dsc_st_reader *reader,
                                          const dsc_kfac_source_file *file) {
    int decompositions = 0;
    DSC_TRY(dsc_comm_agree(s->comm, reader ? check_blocks(s, reader, file) : DSC_OK));
    DSC_TRY(load_part(s, reader, file, 0));
    dsc_status status = DSC_OK;
    if (reader)
        status = dsc_checkpoint_kfac_optional(s, reader, file, &decompositions);
    DSC_TRY(dsc_comm_agree(s->comm, status));
    DSC_TRY(dsc_share_bytes(s->comm, s->queue, &decompositions, sizeof decompositions));
    if (decompositions)
        DSC_TRY(load_part(s, reader, file, 1));
    return dsc_comm_agree(s->comm, dsc_kfac_state_done(s->kfac, s->queue, decompositions));
}

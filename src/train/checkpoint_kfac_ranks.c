/* K-FAC's part of the state file where every rank has a K-FAC of its own. Entries travel as bytes; rank 0 is
 * the only one that reads and writes. */
#include "base/error.h"
#include "base/memory.h"
#include "train/checkpoint_kfac.h"
#include "train/checkpoint_parts.h"
#include "train/share.h"

#include <string.h>

/* An entry on its way. */
typedef struct carrier {
    void *host;
    dsc_tensor block; /* U8, as large */
} carrier;

static void close_carrier(carrier *c) {
    dsc_tensor_free(&c->block);
    dsc_memory_free(&c->host);
}

/* Collective; fails on all ranks or on none. */
static dsc_status open_carrier(const dsc_snapshot *s, carrier *c) {
    int64_t largest = (int64_t)dsc_checkpoint_kfac_largest(s);
    *c = (carrier){0};
    dsc_status status = dsc_memory_alloc(largest, 1, &c->host);
    if (status == DSC_OK)
        status = dsc_tensor_alloc(dsc_model_device(s->model), DSC_U8, 1, &largest, &c->block);
    return dsc_comm_agree(s->comm, status);
}

/* c->host to another rank, or from it. */
static dsc_status send(const dsc_snapshot *s, carrier *c, int to, size_t bytes) {
    dsc_request *request;
    dsc_tensor t = dsc_tensor_slice(&c->block, 0, (int64_t)bytes);
    DSC_TRY(dsc_tensor_upload(s->queue, c->host, bytes, &t));
    DSC_TRY(dsc_queue_sync(s->queue));
    DSC_TRY(dsc_comm_send_begin(s->comm, DSC_TRAFFIC_OTHER, to, DSC_CHECKPOINT_TAG, &t, &request));
    return dsc_comm_wait(&request);
}

static dsc_status receive(const dsc_snapshot *s, carrier *c, int from, size_t bytes) {
    dsc_request *request;
    dsc_tensor t = dsc_tensor_slice(&c->block, 0, (int64_t)bytes);
    DSC_TRY(dsc_comm_recv_begin(s->comm, from, DSC_CHECKPOINT_TAG, &t, &request));
    DSC_TRY(dsc_comm_wait(&request));
    DSC_TRY(dsc_tensor_download(s->queue, &t, bytes, c->host));
    return dsc_queue_sync(s->queue);
}

/* ---- saving ---- */

/* Rank r's entry into rank 0's host memory. */
static dsc_status collect(const dsc_snapshot *s, carrier *c, int r, int64_t i) {
    int rank = dsc_comm_rank(s->comm);
    size_t bytes = dsc_checkpoint_kfac_bytes(&dsc_kfac_state_entries(s->kfac)[i]);
    if (rank == r)
        DSC_TRY(dsc_kfac_state_get(s->kfac, s->queue, i, c->host));
    if (r > 0 && rank == r)
        DSC_TRY(send(s, c, 0, bytes));
    if (r > 0 && rank == 0)
        DSC_TRY(receive(s, c, r, bytes));
    return DSC_OK;
}

static dsc_status save_all(const dsc_snapshot *s, dsc_st_writer *writer, int64_t first, carrier *c) {
    int64_t count = dsc_checkpoint_kfac_count(s);
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < dsc_comm_size(s->comm) * count; i++) {
        DSC_TRY(collect(s, c, (int)(i / count), i % count));
        if (dsc_comm_rank(s->comm) == 0 && status == DSC_OK)
            status =
                dsc_st_writer_write(writer, first + i, c->host,
                                    dsc_checkpoint_kfac_bytes(&dsc_kfac_state_entries(s->kfac)[i % count]));
    }
    return status;
}

dsc_status dsc_checkpoint_kfac_save_ranks(const dsc_snapshot *s, dsc_st_writer *writer, int64_t first) {
    carrier c;
    dsc_status status = open_carrier(s, &c);
    if (status == DSC_OK)
        status = dsc_comm_agree(s->comm, save_all(s, writer, first, &c));
    close_carrier(&c);
    return status;
}

/* ---- loading ---- */

/* One entry for rank r, which takes it even when it could not be read, so that nobody waits. */
static dsc_status hand_out(const dsc_snapshot *s, const dsc_st_reader *reader,
                           const dsc_kfac_source_file *file, carrier *c, int r, int64_t i) {
    const dsc_kfac_entry *e = &dsc_kfac_state_entries(s->kfac)[i];
    int rank = dsc_comm_rank(s->comm);
    size_t bytes = dsc_checkpoint_kfac_bytes(e);
    dsc_status status = reader ? dsc_checkpoint_kfac_read(reader, file, r, e, c->host) : DSC_OK;
    if (r > 0 && rank == 0)
        DSC_TRY(send(s, c, r, bytes));
    if (r > 0 && rank == r)
        DSC_TRY(receive(s, c, 0, bytes));
    if (rank == r && status == DSC_OK)
        status = dsc_kfac_state_set(s->kfac, s->queue, i, c->host);
    return status;
}

static dsc_status set_entries(const dsc_snapshot *s, const dsc_st_reader *reader,
                              const dsc_kfac_source_file *file, int optional, carrier *c) {
    int64_t count = dsc_checkpoint_kfac_count(s);
    dsc_status first = DSC_OK;
    for (int64_t i = 0; i < dsc_comm_size(s->comm) * count; i++) {
        if (dsc_kfac_state_entries(s->kfac)[i % count].optional != optional)
            continue;
        dsc_status status = hand_out(s, reader, file, c, (int)(i / count), i % count);
        if (status == DSC_E_FORMAT && reader)
            dsc_error_prefix(status, "'%s' is damaged", dsc_st_path(reader));
        if (first == DSC_OK)
            first = status;
    }
    return dsc_comm_agree(s->comm, first);
}

static dsc_status load_part(const dsc_snapshot *s, const dsc_st_reader *reader,
                            const dsc_kfac_source_file *file, int optional) {
    carrier c;
    dsc_status status = open_carrier(s, &c);
    if (status == DSC_OK)
        status = set_entries(s, reader, file, optional, &c);
    close_carrier(&c);
    return status;
}

/* Rank 0: ranks whose factors are cut differently would expect different lists. */
static dsc_status check_blocks(const dsc_snapshot *s, const dsc_st_reader *reader,
                               const dsc_kfac_source_file *file) {
    for (int64_t i = 0; i < dsc_checkpoint_kfac_count(s); i++) {
        const dsc_kfac_entry *e = &dsc_kfac_state_entries(s->kfac)[i];
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

/* The list of segments that have occurred so far, with their recordings. */
#include "train/recorder.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "device/recording.h"

#include <string.h>

/* All combinations of a segment's start, factors, decomposes, recipe, tries and timed. */
enum { CAPACITY = 4 * 2 * 2 * 3 * 2 * 2 };

typedef struct entry {
    dsc_segment segment;
    dsc_recording *recording;          /* NULL: it ran, but was not recorded */
    uint64_t bytes[DSC_TRAFFIC_COUNT]; /* what this rank sends in it */
} entry;

typedef enum segment_mode { CLOSED, RUNNING, RECORDING, REPLAYING } segment_mode;

struct dsc_recorder {
    dsc_comm *comm;
    dsc_queue *queue;
    int records, with_exchange;
    entry entries[CAPACITY];
    int count;
    segment_mode mode; /* of the segment that is open */
    entry *open;       /* NULL while it only runs */
};

dsc_status dsc_recorder_create(dsc_comm *comm, dsc_queue *queue, int with_exchange, dsc_recorder **out) {
    DSC_TRY(dsc_memory_alloc(1, sizeof **out, out));
    (*out)->comm = comm;
    (*out)->queue = queue;
    (*out)->records = dsc_device_records(dsc_queue_device(queue));
    (*out)->with_exchange = with_exchange;
    return DSC_OK;
}

void dsc_recorder_destroy(dsc_recorder **recorder) {
    if (!recorder || !*recorder)
        return;
    for (int i = 0; i < (*recorder)->count; i++)
        dsc_recording_destroy(&(*recorder)->entries[i].recording);
    dsc_memory_free(recorder);
}

int dsc_recorder_takes_whole_step(const dsc_recorder *recorder) {
    return recorder->records && recorder->with_exchange;
}

static int can_record(const dsc_recorder *r, dsc_segment_start start) {
    return r->records &&
           (r->with_exchange || start == DSC_SEGMENT_FIRST_BATCH || start == DSC_SEGMENT_NEXT_BATCH);
}

/* The entry of this kind of segment, NULL when it has not occurred yet. The batch may lie elsewhere. */
static entry *find(dsc_recorder *r, const dsc_segment *s) {
    for (int i = 0; i < r->count; i++) {
        const dsc_segment *e = &r->entries[i].segment;
        if (e->start == s->start && e->factors == s->factors && e->decomposes == s->decomposes &&
            e->recipe == s->recipe && e->tries == s->tries && e->timed == s->timed)
            return &r->entries[i];
    }
    return NULL;
}

/* Adds the bytes sent so far to `bytes` with a sign. */
static void count_bytes(const dsc_recorder *r, int sign, uint64_t bytes[DSC_TRAFFIC_COUNT]) {
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++) {
        uint64_t sent = dsc_comm_bytes(r->comm, (dsc_traffic)i);
        bytes[i] += sign > 0 ? sent : (uint64_t)0 - sent;
    }
}

dsc_status dsc_recorder_begin(dsc_recorder *r, const dsc_segment *segment, int *run) {
    if (r->mode != CLOSED) {
        *run = r->mode != REPLAYING;
        return DSC_OK;
    }
    entry *e = can_record(r, segment->start) ? find(r, segment) : NULL;
    *run = 1;
    if (!e) {
        if (can_record(r, segment->start) && r->count < CAPACITY)
            r->entries[r->count++] = (entry){.segment = *segment};
        r->mode = RUNNING;
        return DSC_OK;
    }
    if (e->recording && (e->segment.x != segment->x || e->segment.labels != segment->labels ||
                         e->segment.generation != segment->generation))
        dsc_recording_destroy(&e->recording);
    r->open = e;
    *run = e->recording == NULL;
    r->mode = *run ? RECORDING : REPLAYING;
    if (r->mode == REPLAYING)
        return DSC_OK;
    e->segment = *segment;
    memset(e->bytes, 0, sizeof e->bytes);
    if (r->with_exchange) /* otherwise nothing is sent in a recording, but other threads may be sending */
        count_bytes(r, -1, e->bytes);
    return dsc_recording_begin(r->queue);
}

dsc_status dsc_recorder_end(dsc_recorder *r) {
    segment_mode mode = r->mode;
    entry *e = r->open;
    r->mode = CLOSED;
    r->open = NULL;
    if (mode == CLOSED || mode == RUNNING)
        return DSC_OK;
    if (mode == RECORDING) {
        DSC_TRY(dsc_recording_end(r->queue, &e->recording));
        if (r->with_exchange)
            count_bytes(r, 1, e->bytes);
    } else {
        /* The communicator counted these bytes while they were recorded; a replay sends them again. */
        for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
            dsc_comm_add_bytes(r->comm, (dsc_traffic)i, e->bytes[i]);
    }
    return dsc_recording_replay(e->recording, r->queue);
}

void dsc_recorder_cancel(dsc_recorder *r) {
    dsc_recording *dropped = NULL;
    if (r->mode == RECORDING && dsc_recording_end(r->queue, &dropped) == DSC_OK)
        dsc_recording_destroy(&dropped);
    r->mode = CLOSED;
    r->open = NULL;
}

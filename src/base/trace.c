/* The buffer of spans, and the thread that writes them. */
#include "base/trace.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    AT_ONCE = 256,                         /* spans that are taken from the buffer at a time */
    LINE_SIZE = 512,                       /* bytes for one event */
    FIRST_OWN_TRACK = DSC_TRACK_DATA + 1,  /* the track of the first thread that has its own */
    TEXT_SIZE = (AT_ONCE + 1) * LINE_SIZE, /* bytes for the events that are written together */
};
static const double period = 0.2; /* seconds between two writes, unless the buffer is half full before that */

typedef struct span {
    double begin, end;
    const char *name, *key;
    int64_t number;
    int track; /* -1: a message */
} span;

static const char *const track_names[] = {
    [DSC_TRACK_STEPS] = "steps",
    [DSC_TRACK_DEVICE] = "device",
    [DSC_TRACK_DECOMPOSITIONS] = "decompositions beside the steps",
    [DSC_TRACK_AVERAGING] = "averaging",
    [DSC_TRACK_DATA] = "data",
};

atomic_int dsc_trace_running;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    /* Protected by the lock. */
    span *spans; /* [DSC_TRACE_BUFFER], a ring buffer; NULL: there is no trace */
    int64_t first, count, dropped;
    int stopping;
    int own_tracks; /* number of tracks given to threads so far */
    int generation; /* counts the traces of this process */
    pthread_cond_t more;
    /* Used by the writing thread only. */
    pthread_t thread;
    int file, rank, error;
    double origin;
    int64_t limit, written, messages;
    int is_named[FIRST_OWN_TRACK];
    int named_threads;
    char *text; /* [TEXT_SIZE] */
    size_t length;
} trace;

/* The track that this thread has in the trace number `generation`. */
static _Thread_local struct { int generation, track; } own;

/* ---- adding ---- */

/* Returns the track number for a span. A thread that prepares batches gets its own. With the lock held. */
static int find_track(dsc_track track) {
    if (track != DSC_TRACK_DATA)
        return (int)track;
    if (own.generation != trace.generation) {
        own.generation = trace.generation;
        own.track = FIRST_OWN_TRACK + trace.own_tracks++;
    }
    return own.track;
}

static void add(const span *s, int track) {
    pthread_mutex_lock(&lock);
    if (trace.spans && trace.count == DSC_TRACE_BUFFER) {
        trace.dropped++;
    } else if (trace.spans && !trace.stopping) {
        span *to = &trace.spans[(trace.first + trace.count++) % DSC_TRACE_BUFFER];
        *to = *s;
        to->track = track < 0 ? track : find_track((dsc_track)track);
        if (trace.count == DSC_TRACE_BUFFER / 2)
            pthread_cond_signal(&trace.more);
    }
    pthread_mutex_unlock(&lock);
}

void dsc_trace_span(dsc_track track, const char *name, double begin, double end, const char *key,
                    int64_t number) {
    const span s = {.begin = begin, .end = end, .name = name, .key = key, .number = number};
    if (dsc_trace_is_on())
        add(&s, (int)track);
}

void dsc_trace_message(const char *kind, const char *op, double begin, double end, int64_t bytes) {
    const span s = {.begin = begin, .end = end, .name = kind, .key = op, .number = bytes};
    if (dsc_trace_is_on())
        add(&s, -1);
}

/* ---- writing ---- */

static void flush(void) {
    const char *from = trace.text;
    while (trace.length > 0 && !trace.error) {
        ssize_t done = write(trace.file, from, trace.length);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            trace.error = done < 0 ? errno : ENOSPC;
            break;
        }
        from += done;
        trace.length -= (size_t)done;
        trace.written += done;
    }
    trace.length = 0;
}

/* Adds an event, which `format` gives without its braces, process and comma. Processes and tracks are numbered from 1:
 * for Perfetto, 0 is the idle process, which it does not show. */
__attribute__((format(printf, 1, 2))) static void put(const char *format, ...) {
    va_list arguments;
    char *to = trace.text + trace.length;
    int head = snprintf(to, LINE_SIZE, "%s\n{\"pid\":%d,",
                        trace.written + (int64_t)trace.length > 1 ? "," : "", trace.rank + 1);
    va_start(arguments, format);
    int body = vsnprintf(to + head, (size_t)(LINE_SIZE - head - 2), format, arguments);
    va_end(arguments);
    if (body >= LINE_SIZE - head - 2) /* does not happen with the names in this program */
        return;
    to[head + body] = '}';
    trace.length += (size_t)(head + body) + 1;
    if (trace.length > TEXT_SIZE - 2 * LINE_SIZE)
        flush();
}

/* Writes the name of a track, before its first span. */
static void name_track(int track) {
    if (track < DSC_TRACK_DATA) {
        if (!trace.is_named[track])
            put("\"ph\":\"M\",\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}", track + 1,
                track_names[track]);
        trace.is_named[track] = 1;
        return;
    }
    for (; trace.named_threads <= track - FIRST_OWN_TRACK; trace.named_threads++)
        put("\"ph\":\"M\",\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s %d\"}",
            FIRST_OWN_TRACK + trace.named_threads + 1, track_names[DSC_TRACK_DATA], trace.named_threads);
}

/* Returns nanoseconds since the start, so that spans that touch each other still do after rounding. */
static int64_t nanoseconds(double time) {
    return time > trace.origin ? (int64_t)llround(1e9 * (time - trace.origin)) : 0;
}

static void write_message(const span *s, int64_t begin, int64_t end) {
    int64_t id = trace.messages++;
    put("\"ph\":\"b\",\"tid\":1,\"cat\":\"message\",\"id2\":{\"local\":\"0x%llx\"},\"ts\":%lld.%03d,\"name\":"
        "\"%s\","
        "\"args\":{\"op\":\"%s\",\"bytes\":%lld}",
        (unsigned long long)id, (long long)(begin / 1000), (int)(begin % 1000), s->name, s->key,
        (long long)s->number);
    put("\"ph\":\"e\",\"tid\":1,\"cat\":\"message\",\"id2\":{\"local\":\"0x%llx\"},\"ts\":%lld.%03d,\"name\":"
        "\"%s\"",
        (unsigned long long)id, (long long)(end / 1000), (int)(end % 1000), s->name);
}

static void write_span(const span *s) {
    int64_t begin = nanoseconds(s->begin), end = nanoseconds(s->end), length = end > begin ? end - begin : 0;
    if (trace.written > trace.limit || trace.error) {
        pthread_mutex_lock(&lock);
        trace.dropped++;
        pthread_mutex_unlock(&lock);
        return;
    }
    if (s->end < trace.origin) /* it ended before the trace began */
        return;
    if (s->track < 0) {
        write_message(s, begin, end);
        return;
    }
    name_track(s->track);
    char number[64] = "";
    if (s->key)
        snprintf(number, sizeof number, ",\"args\":{\"%s\":%lld}", s->key, (long long)s->number);
    put("\"ph\":\"X\",\"tid\":%d,\"ts\":%lld.%03d,\"dur\":%lld.%03d,\"name\":\"%s\"%s", s->track + 1,
        (long long)(begin / 1000), (int)(begin % 1000), (long long)(length / 1000), (int)(length % 1000),
        s->name, number);
}

static void *work(void *argument) {
    span batch[AT_ONCE];
    int stopping = 0;
    (void)argument;
    for (int64_t count = 0; !stopping || count > 0;) {
        pthread_mutex_lock(&lock);
        double deadline = dsc_clock_now() + period;
        while (!trace.stopping && trace.count < DSC_TRACE_BUFFER / 2 &&
               dsc_condition_wait(&trace.more, &lock, deadline))
            ;
        stopping = trace.stopping;
        do {
            for (count = 0; count < AT_ONCE && trace.count > 0; count++, trace.count--) {
                batch[count] = trace.spans[trace.first];
                trace.first = (trace.first + 1) % DSC_TRACE_BUFFER;
            }
            pthread_mutex_unlock(&lock);
            for (int64_t i = 0; i < count; i++)
                write_span(&batch[i]);
            flush();
            pthread_mutex_lock(&lock);
        } while (count == AT_ONCE);
        pthread_mutex_unlock(&lock);
    }
    if (trace.written > 0)
        trace.length = (size_t)snprintf(trace.text, TEXT_SIZE, "\n]\n");
    flush();
    return NULL;
}

/* ---- starting and stopping ---- */

static void free_trace(void) {
    if (trace.file >= 0 && close(trace.file) != 0 && !trace.error)
        trace.error = errno;
    pthread_mutex_lock(&lock);
    dsc_memory_free(&trace.spans);
    pthread_mutex_unlock(&lock);
    dsc_memory_free(&trace.text);
    trace.file = -1;
}

/* Writes the head of the file and starts the writing thread. */
static dsc_status begin(const char *process) {
    if (!dsc_condition_init(&trace.more))
        return DSC_FAIL(DSC_E_MEMORY, "no memory for a trace");
    trace.origin = dsc_clock_now();
    trace.length = (size_t)snprintf(trace.text, TEXT_SIZE, "[");
    put("\"ph\":\"M\",\"name\":\"process_name\",\"args\":{\"name\":\"rank %d%s%.200s\"}", trace.rank,
        *process ? ", " : "", process);
    put("\"ph\":\"M\",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}", trace.rank);
    flush();
    pthread_mutex_lock(&lock);
    trace.stopping = 0;
    pthread_mutex_unlock(&lock);
    dsc_status status = trace.error ? DSC_FAIL(DSC_E_IO, "cannot write a trace: %s", strerror(trace.error))
                                    : dsc_thread_start(&trace.thread, work, NULL, "the thread of a trace");
    if (status != DSC_OK)
        pthread_cond_destroy(&trace.more);
    return status;
}

dsc_status dsc_trace_start(int file, int rank, const char *process, int64_t limit) {
    span *spans = NULL;
    char *text = NULL;
    dsc_status status = dsc_memory_alloc(DSC_TRACE_BUFFER, sizeof *spans, &spans);
    if (status == DSC_OK)
        status = dsc_memory_alloc(TEXT_SIZE, 1, &text);
    pthread_mutex_lock(&lock);
    int taken = trace.spans != NULL;
    if (!taken && status == DSC_OK) {
        int generation = trace.generation + 1;
        memset(&trace, 0, sizeof trace);
        trace.generation = generation;
        trace.spans = spans;
        trace.text = text;
        trace.file = file;
        trace.rank = rank;
        trace.limit = limit;
        trace.stopping = 1; /* until the writing thread is about to start */
    }
    pthread_mutex_unlock(&lock);
    if (taken || status != DSC_OK) {
        dsc_memory_free(&spans);
        dsc_memory_free(&text);
        close(file);
        DSC_TRY(status);
        return DSC_FAIL(DSC_E_INVALID, "this process writes a trace already: it can write one at a time");
    }
    status = begin(process);
    if (status != DSC_OK) {
        free_trace();
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    atomic_store(&dsc_trace_running, 1);
    return DSC_OK;
}

dsc_status dsc_trace_stop(int64_t *dropped) {
    atomic_store(&dsc_trace_running, 0);
    pthread_mutex_lock(&lock);
    trace.stopping = 1;
    pthread_cond_signal(&trace.more);
    pthread_mutex_unlock(&lock);
    pthread_join(trace.thread, NULL);
    pthread_cond_destroy(&trace.more);
    free_trace();
    *dropped = trace.dropped;
    if (trace.error)
        return DSC_FAIL(DSC_E_IO, "%s", strerror(trace.error));
    return DSC_OK;
}

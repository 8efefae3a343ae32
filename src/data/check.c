/* Reads every sample of a data set with several threads, and collects those that cannot be read. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread.h"
#include "base/versioned.h"
#include "data/dataset.h"

#include <stdio.h>
#include <stdlib.h>

enum { AT_ONCE = 16, MAX_THREADS = 1024, MESSAGE_SIZE = 2048 };
static const double report_seconds = 0.1;

typedef struct checking {
    const dsc_dataset *dataset;
    pthread_mutex_t mutex;
    pthread_cond_t done; /* signalled when a thread ends */
    /* under the mutex: */
    int64_t next, finished; /* samples handed out; of these, read */
    dsc_bad_sample *bad;
    int64_t bad_count, bad_capacity;
    int running;       /* threads */
    dsc_status status; /* of a failure that is not the sample's */
    char message[MESSAGE_SIZE];
} checking;

void dsc_check_options_init_sized(dsc_check_options *options, size_t size) {
    const dsc_check_options defaults = {.threads = 1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* Adds a broken sample to the list, or remembers a failure that is not the sample's. Under the mutex. */
static void keep_failure(checking *c, int64_t index, dsc_status status) {
    if (status != DSC_E_MEMORY)
        status = dsc_memory_grow(&c->bad, &c->bad_capacity, c->bad_count + 1, sizeof *c->bad);
    if (status == DSC_OK) {
        dsc_bad_sample *b = &c->bad[c->bad_count++];
        b->index = index;
        snprintf(b->message, sizeof b->message, "%s", dsc_error_message());
    } else if (c->status == DSC_OK) {
        c->status = status;
        snprintf(c->message, sizeof c->message, "%s", dsc_error_message());
    }
}

/* Reads samples [first, end), each on its own. */
static void read_some(checking *c, int64_t first, int64_t end, dsc_scratch *scratch, float *x,
                      int32_t *labels) {
    for (int64_t i = first; i < end; i++) {
        dsc_status status = dsc_dataset_sample_with(c->dataset, i, 0, 0, scratch, x, labels);
        if (status == DSC_OK)
            continue;
        pthread_mutex_lock(&c->mutex);
        keep_failure(c, i, status);
        pthread_mutex_unlock(&c->mutex);
    }
}

static void *work(void *argument) {
    checking *c = argument;
    const dsc_dataset_info info = c->dataset->info;
    dsc_scratch scratch = {{0}, {0}, {0}};
    float *x = NULL;
    int32_t *labels = NULL;
    dsc_status status = dsc_memory_alloc(info.h * info.w * info.c, sizeof *x, &x);
    if (status == DSC_OK)
        status = dsc_memory_alloc(c->dataset->label_count, sizeof *labels, &labels);
    pthread_mutex_lock(&c->mutex);
    if (status != DSC_OK)
        keep_failure(c, 0, status);
    while (c->next < info.count && c->status == DSC_OK) {
        int64_t first = c->next, end = first + AT_ONCE < info.count ? first + AT_ONCE : info.count;
        c->next = end;
        pthread_mutex_unlock(&c->mutex);
        read_some(c, first, end, &scratch, x, labels);
        pthread_mutex_lock(&c->mutex);
        c->finished += end - first;
    }
    c->running--;
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->mutex);
    dsc_memory_free(&x);
    dsc_memory_free(&labels);
    dsc_scratch_free(&scratch);
    return NULL;
}

static int by_index(const void *a, const void *b) {
    const dsc_bad_sample *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

/* Waits for the threads, and reports how far they are, the last time when all have ended. The caller's function
 * runs without the lock. */
static void wait_for_threads(checking *c, const dsc_check_options *o) {
    int ended = 0;
    while (!ended) {
        pthread_mutex_lock(&c->mutex);
        if (c->running > 0)
            dsc_condition_wait(&c->done, &c->mutex, dsc_clock_now() + report_seconds);
        const int64_t finished = c->finished, bad = c->bad_count;
        ended = c->running == 0;
        pthread_mutex_unlock(&c->mutex);
        if (o->progress)
            o->progress(o->context, finished, bad);
    }
}

static dsc_status check_all(checking *c, const dsc_check_options *o) {
    pthread_t *threads;
    int started = 0;
    dsc_status status = dsc_memory_alloc(o->threads, sizeof *threads, &threads);
    if (status != DSC_OK)
        return status;
    c->running = o->threads;
    for (; started < o->threads && status == DSC_OK; started += status == DSC_OK)
        status = dsc_thread_start(&threads[started], work, c, "a thread that checks data");
    pthread_mutex_lock(&c->mutex);
    c->running -= o->threads - started;
    if (status != DSC_OK)
        c->next = c->dataset->info.count; /* the others end */
    pthread_mutex_unlock(&c->mutex);
    wait_for_threads(c, o);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    dsc_memory_free(&threads);
    if (status == DSC_OK && c->status != DSC_OK)
        status = dsc_error_adopt(c->status, c->message);
    if (status != DSC_OK)
        return status;
    if (c->bad_count > 0)
        qsort(c->bad, (size_t)c->bad_count, sizeof *c->bad, by_index);
    for (int64_t i = 0; o->bad && i < c->bad_count; i++)
        o->bad(o->context, &c->bad[i]);
    return DSC_OK;
}

dsc_status dsc_dataset_check(const dsc_dataset *dataset, const dsc_check_options *options, int64_t *bad) {
    dsc_check_options o;
    checking c = {.dataset = dataset, .status = DSC_OK};
    dsc_check_options_init(&o);
    DSC_TRY(dsc_versioned_read("check", options, sizeof o, &o));
    if (!dataset)
        return DSC_FAIL(DSC_E_INVALID, "check: no data set");
    if (o.threads < 1 || o.threads > MAX_THREADS)
        return DSC_FAIL(DSC_E_INVALID, "%d threads that check data: must be 1 to %d", o.threads, MAX_THREADS);
    if (pthread_mutex_init(&c.mutex, NULL) != 0)
        return DSC_FAIL(DSC_E_MEMORY, "cannot create a lock");
    dsc_status status = DSC_OK;
    if (!dsc_condition_init(&c.done)) {
        status = DSC_FAIL(DSC_E_MEMORY, "cannot create a lock");
    } else {
        status = check_all(&c, &o);
        pthread_cond_destroy(&c.done);
    }
    pthread_mutex_destroy(&c.mutex);
    dsc_memory_free(&c.bad);
    if (status == DSC_OK && bad)
        *bad = c.bad_count;
    return status;
}

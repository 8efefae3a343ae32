/* Batches prepared ahead by threads.
 *
 * Batches have numbers 0, 1, 2, ... and live in a ring of depth + 1 slots: one that the caller uses,
 * the others ready or in preparation. Threads take rows in order, a few at a time, always from the oldest
 * batch that has any left, so that all of them work on what is needed next. A new batch is opened when its
 * slot is free: batch n may be open once batch n - slots is no longer in use. The indices of a batch are
 * drawn when it is opened, under the lock and in order, hence one sampler serves all threads; which thread
 * prepares a row makes no difference to it. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/thread.h"
#include "base/trace.h"
#include "base/versioned.h"
#include "data/dataset.h"
#include "data/mix.h"
#include "data/sampler.h"
#include "data/stage.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { ROWS_AT_ONCE = 8, MESSAGE_SIZE = 2048, MAX_THREADS = 1024, MAX_DEPTH = 1024, MAX_DRAWS = 64 };

/* A sample that could not be read, and where it was needed. */
typedef struct bad_row {
    int64_t batch, row;
    dsc_bad_sample sample;
} bad_row;

typedef struct slot {
    dsc_tensor x, labels, others, shares; /* on a host device */
    dsc_staged
        staged;     /* where a batch is prepared: the memory of x and labels, or what is sent to the device */
    int64_t *index; /* [batch] */
    int64_t *other; /* [batch]: the samples that these are mixed with; NULL when they are not */
    int64_t epoch, position;
    int64_t rows_taken, rows_done;
    dsc_status status;  /* of the first row that failed ... */
    int64_t failed_row; /* ... which is this one */
    char message[MESSAGE_SIZE];
} slot;

struct dsc_loader {
    const dsc_dataset *dataset;
    dsc_loader_options options;
    dsc_sampler sampler;
    dsc_stage *stage; /* NULL on a host device */
    slot *slots;
    int slot_count;
    pthread_t *threads;
    int thread_count; /* running */
    pthread_mutex_t mutex;
    pthread_cond_t work; /* signalled when there may be rows to take */
    pthread_cond_t done; /* signalled when a batch is ready, or no row is in preparation */
    int has_mutex, has_work, has_done;
    /* under the mutex: */
    int64_t opened;    /* batches opened so far */
    int64_t delivered; /* batches handed out so far */
    int64_t released;  /* of these, no longer in use */
    bad_row *bad;      /* sorted by batch and row */
    int64_t bad_count, bad_capacity;
    int busy;        /* threads that prepare rows */
    int paused;      /* no new rows are handed out */
    atomic_int stop; /* also read without it, between two rows */
};

/* Memory that a thread uses for one sample after the other. */
typedef struct workspace {
    dsc_scratch scratch;
    dsc_bytes other; /* a sample that another one is mixed with */
    dsc_bytes image; /* for RandAugment */
} workspace;

/* Rows [first, first + count) of a batch, for one thread. */
typedef struct task {
    slot *slot;
    int64_t batch; /* its number */
    int64_t first, count;
} task;

void dsc_loader_options_init_sized(dsc_loader_options *options, size_t size) {
    const dsc_loader_options defaults = {.batch = 128,
                                         .rank = 0,
                                         .ranks = 1,
                                         .threads = 1,
                                         .depth = 3,
                                         .seed = 42,
                                         .shuffle = 1,
                                         .augment = 1,
                                         .keep_last = 0,
                                         .dtype = DSC_F32,
                                         .skip_bad = 0,
                                         .randaugment_ops = 2,
                                         .shuffle_buffer = 0};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* ---- in the threads ---- */
static slot *slot_of(dsc_loader *loader, int64_t batch) {
    return &loader->slots[batch % loader->slot_count];
}

static dsc_mix_choice draw_mix(const dsc_loader *loader, const slot *s, int64_t row) {
    return dsc_mix_draw(&loader->options, &loader->dataset->info, dsc_sampler_places(&loader->sampler),
                        s->epoch, s->index[row]);
}

static void open_batch(dsc_loader *loader) {
    slot *s = slot_of(loader, loader->opened++);
    s->rows_taken = s->rows_done = 0;
    s->status = DSC_OK;
    dsc_sampler_next(&loader->sampler, s->index, &s->epoch, &s->position);
    for (int64_t i = 0; s->other && i < loader->options.batch; i++)
        s->other[i] = s->index[i] < 0 ? -1 : dsc_sampler_at(&loader->sampler, draw_mix(loader, s, i).other);
}

/* Takes the next rows if there are any. Under the mutex. */
static int take_rows(dsc_loader *loader, task *t) {
    int64_t batch = loader->options.batch;
    if (loader->paused)
        return 0;
    if (loader->opened == loader->delivered || slot_of(loader, loader->opened - 1)->rows_taken == batch) {
        if (loader->opened >= loader->released + loader->slot_count)
            return 0;
        open_batch(loader);
    }
    slot *s = slot_of(loader, loader->opened - 1);
    t->slot = s;
    t->batch = loader->opened - 1;
    t->first = s->rows_taken;
    t->count = batch - t->first < ROWS_AT_ONCE ? batch - t->first : ROWS_AT_ONCE;
    s->rows_taken += t->count;
    return 1;
}

/* Sets all labels of a row that holds no sample to -1. */
static void clear_labels(const dsc_loader *loader, int32_t *labels) {
    for (int64_t i = 0; i < loader->dataset->label_count; i++)
        labels[i] = -1;
}

/* Prepares one row of a batch as bytes; a row whose index is -1 is zero and has labels -1. */
static void prepare_bytes(dsc_loader *loader, const slot *s, int64_t row, int64_t size) {
    int64_t index = s->index[row];
    dsc_raw_sample raw = {(uint8_t *)s->staged.x + row * size, s->staged.place + 3 * row,
                          s->staged.labels + row * loader->dataset->label_count};
    if (index >= 0) {
        loader->dataset->type->raw(loader->dataset, index, loader->options.augment, s->epoch, &raw);
        return;
    }
    memset(raw.image, 0, (size_t)size);
    memset(raw.place, 0, 3 * sizeof *raw.place);
    clear_labels(loader, raw.label);
}

/* ---- samples that cannot be read ---- */

static int is_bad(dsc_status status) {
    return status == DSC_E_FORMAT || status == DSC_E_IO || status == DSC_E_NOT_FOUND;
}

/* Adds the failure of sample `index` to the list. */
static dsc_status keep_bad(dsc_loader *loader, int64_t batch, int64_t row, int64_t index) {
    pthread_mutex_lock(&loader->mutex);
    dsc_status status =
        dsc_memory_grow(&loader->bad, &loader->bad_capacity, loader->bad_count + 1, sizeof *loader->bad);
    if (status == DSC_OK) {
        int64_t place = loader->bad_count++;
        for (; place > 0; place--) {
            const bad_row *before = &loader->bad[place - 1];
            if (before->batch < batch || (before->batch == batch && before->row < row))
                break;
            loader->bad[place] = *before;
        }
        bad_row *b = &loader->bad[place];
        *b = (bad_row){.batch = batch, .row = row, .sample.index = index};
        snprintf(b->sample.message, sizeof b->sample.message, "%s", dsc_error_message_without_rank());
    }
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

/* The number of listed samples of batches before `batch`. Under the mutex. */
static int64_t bad_before(const dsc_loader *loader, int64_t batch) {
    int64_t count = 0;
    while (count < loader->bad_count && loader->bad[count].batch < batch)
        count++;
    return count;
}

/* A sample with all augmentation but mixing. */
static dsc_status present(const dsc_loader *loader, int64_t index, int64_t epoch, workspace *w, float *x,
                          int32_t *label) {
    const dsc_loader_options *o = &loader->options;
    DSC_TRY(dsc_dataset_sample_with(loader->dataset, index, o->augment, epoch, &w->scratch, x, label));
    return dsc_mix_is_on(o) ? dsc_mix_vary(o, loader->dataset, epoch, index, &w->image, x) : DSC_OK;
}

/* Fills a row with another sample of the set. Which one depends on (seed, epoch, index) only. */
static dsc_status replace(const dsc_loader *loader, int64_t index, int64_t epoch, workspace *w, float *x,
                          int32_t *label) {
    const dsc_loader_options *o = &loader->options;
    uint32_t count = (uint32_t)dsc_dataset_get_info(loader->dataset).count;
    dsc_rng rng = dsc_rng_start(o->seed, DSC_RNG_REPLACE, (uint32_t)epoch, (uint64_t)index);
    dsc_status status = DSC_E_FORMAT;
    for (int i = 0; i < MAX_DRAWS && is_bad(status); i++) {
        int64_t other = dsc_rng_below(&rng, count);
        status = present(loader, other, epoch, w, x, label);
    }
    if (is_bad(status))
        dsc_error_prefix(status, "%d samples drawn in a row cannot be read, of which the last", MAX_DRAWS);
    return status;
}

static int skips(const dsc_loader *loader, dsc_status status) {
    return is_bad(status) && loader->options.skip_bad && loader->dataset->type->reads_files;
}

/* Mixes a row with another sample of the same epoch. One that cannot be read is left out. It is reported once, for
 * the row of the epoch that is its own, so that the number of reports depends neither on the number of ranks nor on
 * how often it is drawn. */
static dsc_status mix_row(const dsc_loader *loader, const slot *s, int64_t row, workspace *w, float *x) {
    const dsc_dataset_info *info = &loader->dataset->info;
    dsc_mix_choice choice = draw_mix(loader, s, row);
    int32_t label = 0;
    s->staged.others[row] = 0;
    s->staged.shares[row] = 0;
    if (!((float)choice.share > 0))
        return DSC_OK;
    DSC_TRY(dsc_bytes_reserve(&w->other, info->h * info->w * info->c * (int64_t)sizeof *x));
    float *other = (float *)(void *)w->other.data;
    dsc_status status = present(loader, s->other[row], s->epoch, w, other, &label);
    if (skips(loader, status))
        return DSC_OK;
    DSC_TRY(status);
    dsc_mix_apply(&choice, info, other, x);
    s->staged.others[row] = label;
    s->staged.shares[row] = (float)choice.share;
    return DSC_OK;
}

/* Prepares one row of a batch as floats; a row whose index is -1 is zero and has labels -1. */
static dsc_status prepare_floats(dsc_loader *loader, const task *t, int64_t row, int64_t size, workspace *w) {
    const dsc_loader_options *o = &loader->options;
    const slot *s = t->slot;
    float *x = (float *)s->staged.x + row * size;
    int32_t *label = s->staged.labels + row * loader->dataset->label_count;
    int64_t index = s->index[row];
    const int mixes = dsc_mix_mixes(o);
    dsc_status status = index < 0 ? DSC_OK : present(loader, index, s->epoch, w, x, label);
    int skipped = skips(loader, status);
    if (skipped)
        DSC_TRY(keep_bad(loader, t->batch, row, index));
    if (skipped && !o->keep_last)
        status = replace(loader, index, s->epoch, w, x, label);
    else if (index < 0 || skipped) {
        memset(x, 0, (size_t)size * sizeof *x);
        clear_labels(loader, label);
        if (mixes)
            s->staged.shares[row] = 0;
        return DSC_OK;
    }
    DSC_TRY(status);
    return mixes ? mix_row(loader, s, row, w, x) : DSC_OK;
}

/* Prepares the rows of a task; *row is the one that failed. Outside the mutex. */
static dsc_status prepare(dsc_loader *loader, const task *t, workspace *w, int64_t *row) {
    dsc_dataset_info info = dsc_dataset_get_info(loader->dataset);
    int64_t size = info.h * info.w * info.c;
    int bytes = loader->stage && loader->dataset->type->raw && !dsc_mix_is_on(&loader->options);
    for (*row = t->first; *row < t->first + t->count; (*row)++) {
        if (atomic_load(&loader->stop))
            return DSC_OK;
        if (bytes)
            prepare_bytes(loader, t->slot, *row, size);
        else
            DSC_TRY(prepare_floats(loader, t, *row, size, w));
    }
    return DSC_OK;
}

/* Of several rows that fail, the one of the lowest number is reported, whichever thread is first. Under the
 * mutex. */
static void finish_rows(dsc_loader *loader, const task *t, dsc_status status, int64_t row) {
    slot *s = t->slot;
    if (status != DSC_OK && (s->status == DSC_OK || row < s->failed_row)) {
        s->status = status;
        s->failed_row = row;
        snprintf(s->message, sizeof s->message, "%s", dsc_error_message());
    }
    s->rows_done += t->count;
    if (s->rows_done == loader->options.batch || loader->busy == 0)
        pthread_cond_signal(&loader->done);
}

static void *work(void *argument) {
    dsc_loader *loader = argument;
    workspace w = {.other = {0}};
    pthread_mutex_lock(&loader->mutex);
    while (!atomic_load(&loader->stop)) {
        task t;
        if (!take_rows(loader, &t)) {
            pthread_cond_wait(&loader->work, &loader->mutex);
            continue;
        }
        loader->busy++;
        pthread_mutex_unlock(&loader->mutex);
        int64_t row = 0;
        double began = dsc_trace_is_on() ? dsc_clock_now() : 0;
        dsc_status status = prepare(loader, &t, &w, &row);
        if (began > 0)
            dsc_trace_span(DSC_TRACK_DATA, "prepare", began, dsc_clock_now(), "rows", t.count);
        pthread_mutex_lock(&loader->mutex);
        loader->busy--;
        finish_rows(loader, &t, status, row);
    }
    pthread_mutex_unlock(&loader->mutex);
    dsc_scratch_free(&w.scratch);
    dsc_bytes_free(&w.other);
    dsc_bytes_free(&w.image);
    return NULL;
}

/* ---- creating and destroying ---- */
static dsc_status check_options(const dsc_dataset *dataset, const dsc_loader_options *options,
                                const dsc_device *device) {
    if (dataset->whole_numbers && options->dtype != DSC_F32)
        return DSC_FAIL(DSC_E_INVALID, "batches of %s: the tokens of %s need fp32, %s would round them",
                        dsc_dtype_name(options->dtype), dataset->info.name, dsc_dtype_name(options->dtype));
    if (dsc_device_is_host(device) && options->dtype != DSC_F32)
        return DSC_FAIL(DSC_E_INVALID, "batches of %s: on device '%s' they are fp32",
                        dsc_dtype_name(options->dtype), dsc_device_name(device));
    if (options->threads < 1 || options->threads > MAX_THREADS)
        return DSC_FAIL(DSC_E_INVALID, "%d data threads: must be 1 to %d", options->threads, MAX_THREADS);
    if (options->depth < 1 || options->depth > MAX_DEPTH)
        return DSC_FAIL(DSC_E_INVALID, "%d batches ahead: must be 1 to %d", options->depth, MAX_DEPTH);
    return DSC_OK;
}

static dsc_status make_slots(dsc_loader *loader, dsc_device *device) {
    dsc_dataset_info info = dsc_dataset_get_info(loader->dataset);
    int64_t batch = loader->options.batch, labels = batch * loader->dataset->label_count;
    loader->slot_count = loader->options.depth + 1;
    DSC_TRY(dsc_memory_alloc(loader->slot_count, sizeof *loader->slots, &loader->slots));
    for (int i = 0; i < loader->slot_count; i++) {
        slot *s = &loader->slots[i];
        DSC_TRY(dsc_memory_alloc(batch, sizeof *s->index, &s->index));
        if (dsc_mix_mixes(&loader->options))
            DSC_TRY(dsc_memory_alloc(batch, sizeof *s->other, &s->other));
        if (loader->stage) {
            DSC_TRY(dsc_stage_alloc(loader->stage, &s->staged));
            continue;
        }
        DSC_TRY(dsc_tensor_alloc(device, DSC_F32, 4, (int64_t[]){batch, info.h, info.w, info.c}, &s->x));
        DSC_TRY(dsc_tensor_alloc(device, DSC_I32, 1, &labels, &s->labels));
        DSC_TRY(dsc_tensor_alloc(device, DSC_I32, 1, &batch, &s->others));
        DSC_TRY(dsc_tensor_alloc(device, DSC_F32, 1, &batch, &s->shares));
        s->staged = (dsc_staged){
            .x = s->x.data, .labels = s->labels.data, .others = s->others.data, .shares = s->shares.data};
    }
    return DSC_OK;
}

static dsc_status make_locks(dsc_loader *loader) {
    loader->has_mutex = pthread_mutex_init(&loader->mutex, NULL) == 0;
    loader->has_work = pthread_cond_init(&loader->work, NULL) == 0;
    loader->has_done = pthread_cond_init(&loader->done, NULL) == 0;
    if (!loader->has_mutex || !loader->has_work || !loader->has_done)
        return DSC_FAIL(DSC_E_MEMORY, "cannot create the loader's locks");
    return DSC_OK;
}

static dsc_status start_threads(dsc_loader *loader) {
    DSC_TRY(dsc_memory_alloc(loader->options.threads, sizeof *loader->threads, &loader->threads));
    while (loader->thread_count < loader->options.threads) {
        DSC_TRY(dsc_thread_start(&loader->threads[loader->thread_count], work, loader, "a thread for data"));
        loader->thread_count++;
    }
    return DSC_OK;
}

/* The order of the samples. With a shuffle buffer, samples of one file are a group. */
static dsc_status make_sampler(const dsc_dataset *dataset, const dsc_loader_options *o,
                               dsc_sampler *sampler) {
    dsc_sampler_options order = {.count = dsc_dataset_get_info(dataset).count,
                                 .batch = o->batch,
                                 .rank = o->rank,
                                 .ranks = o->ranks,
                                 .seed = o->seed,
                                 .shuffle = o->shuffle,
                                 .keep_last = o->keep_last};
    if (o->shuffle_buffer == 0 || !o->shuffle)
        return dsc_sampler_init(&order, sampler);
    if (o->shuffle_buffer < 0 || !dataset->type->group)
        return DSC_FAIL(
            DSC_E_INVALID,
            o->shuffle_buffer < 0
                ? "shuffle-buffer %lld: must not be negative"
                : "shuffle-buffer %lld: only webdataset has files of many images to read in order",
            (long long)o->shuffle_buffer);
    int64_t *start, last = -1;
    DSC_TRY(dsc_memory_alloc(order.count + 1, sizeof *start, &start));
    for (int64_t i = 0; i < order.count; i++) {
        int64_t group = dataset->type->group(dataset, i);
        if (group != last)
            start[order.groups++] = i;
        last = group;
    }
    start[order.groups] = order.count;
    order.group_start = start;
    order.buffer = o->shuffle_buffer;
    dsc_status status = dsc_sampler_init(&order, sampler);
    dsc_memory_free(&start);
    return status;
}

dsc_status dsc_loader_create(const dsc_dataset *dataset, dsc_device *device,
                             const dsc_loader_options *options, dsc_loader **out) {
    dsc_loader *loader;
    dsc_status status;
    if (!dataset || !device)
        return DSC_FAIL(DSC_E_INVALID, "loader: no %s", dataset ? "device" : "data set");
    DSC_TRY(dsc_memory_alloc(1, sizeof *loader, &loader));
    loader->dataset = dataset;
    atomic_init(&loader->stop, 0);
    dsc_loader_options_init(&loader->options);
    const dsc_loader_options *o = &loader->options;
    DSC_TRY_GOTO(status, dsc_versioned_read("loader", options, sizeof *o, &loader->options), fail);
    DSC_TRY_GOTO(status, check_options(dataset, o, device), fail);
    DSC_TRY_GOTO(status, dsc_mix_check(o, dataset), fail);
    DSC_TRY_GOTO(status, make_sampler(dataset, o, &loader->sampler), fail);
    if (!dsc_device_is_host(device))
        DSC_TRY_GOTO(status,
                     dsc_stage_create(dataset, device, o->batch, o->dtype, !dsc_mix_is_on(o), &loader->stage),
                     fail);
    DSC_TRY_GOTO(status, make_slots(loader, device), fail);
    DSC_TRY_GOTO(status, make_locks(loader), fail);
    DSC_TRY_GOTO(status, start_threads(loader), fail);
    *out = loader;
    return DSC_OK;
fail:
    dsc_loader_destroy(&loader);
    return status;
}

static void stop_threads(dsc_loader *loader) {
    if (loader->thread_count == 0)
        return;
    pthread_mutex_lock(&loader->mutex);
    atomic_store(&loader->stop, 1);
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    for (int i = 0; i < loader->thread_count; i++)
        pthread_join(loader->threads[i], NULL);
}

void dsc_loader_destroy(dsc_loader **loader) {
    if (!loader || !*loader)
        return;
    dsc_loader *l = *loader;
    stop_threads(l);
    if (l->has_mutex)
        pthread_mutex_destroy(&l->mutex);
    if (l->has_work)
        pthread_cond_destroy(&l->work);
    if (l->has_done)
        pthread_cond_destroy(&l->done);
    for (int i = 0; l->slots && i < l->slot_count; i++) {
        if (l->stage)
            dsc_stage_free(l->stage, &l->slots[i].staged);
        dsc_tensor_free(&l->slots[i].x);
        dsc_tensor_free(&l->slots[i].labels);
        dsc_tensor_free(&l->slots[i].others);
        dsc_tensor_free(&l->slots[i].shares);
        dsc_memory_free(&l->slots[i].index);
        dsc_memory_free(&l->slots[i].other);
    }
    dsc_stage_destroy(&l->stage);
    dsc_memory_free(&l->slots);
    dsc_memory_free(&l->threads);
    dsc_memory_free(&l->bad);
    dsc_sampler_free(&l->sampler);
    dsc_memory_free(loader);
}

/* ---- use ---- */
int64_t dsc_loader_batches(const dsc_loader *loader) {
    return dsc_sampler_batches(&loader->sampler);
}

/* Batches that were prepared ahead are dropped; the one that the caller uses stays. */
dsc_status dsc_loader_seek(dsc_loader *loader, int64_t epoch, int64_t position) {
    if (!loader)
        return DSC_FAIL(DSC_E_INVALID, "seek: no loader");
    pthread_mutex_lock(&loader->mutex);
    loader->paused = 1;
    while (loader->busy > 0)
        pthread_cond_wait(&loader->done, &loader->mutex);
    dsc_status status = dsc_sampler_seek(&loader->sampler, epoch, position);
    if (status == DSC_OK) {
        loader->opened = loader->delivered;
        loader->bad_count = bad_before(loader, loader->delivered);
    }
    loader->paused = 0;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

int64_t dsc_loader_take_bad(dsc_loader *loader, dsc_bad_sample *out, int64_t room) {
    pthread_mutex_lock(&loader->mutex);
    int64_t count = bad_before(loader, loader->delivered);
    if (out && room < count)
        count = room;
    for (int64_t i = 0; out && i < count; i++)
        out[i] = loader->bad[i].sample;
    loader->bad_count -= count;
    if (count > 0 && loader->bad_count > 0)
        memmove(loader->bad, loader->bad + count, (size_t)loader->bad_count * sizeof *loader->bad);
    pthread_mutex_unlock(&loader->mutex);
    return count;
}

/* The memory of the previous batch is free again once it has been copied to the device. */
dsc_status dsc_loader_next(dsc_loader *loader, dsc_queue *queue, dsc_batch *batch) {
    if (!loader || !queue || !batch)
        return DSC_FAIL(DSC_E_INVALID, "next batch: no %s",
                        !loader ? "loader"
                        : queue ? "room for the batch"
                                : "queue");
    if (loader->stage)
        DSC_TRY(dsc_stage_settle(loader->stage));
    pthread_mutex_lock(&loader->mutex);
    loader->released = loader->delivered;
    pthread_cond_broadcast(&loader->work);
    const slot *s = slot_of(loader, loader->delivered);
    while (loader->opened == loader->delivered || s->rows_done < loader->options.batch)
        pthread_cond_wait(&loader->done, &loader->mutex);
    dsc_status status = DSC_OK;
    if (s->status == DSC_OK) {
        *batch = (dsc_batch){s->x, s->labels, s->epoch, s->position};
        loader->delivered++;
    } else {
        status = dsc_error_adopt(s->status, s->message);
    }
    pthread_mutex_unlock(&loader->mutex);
    if (status == DSC_OK && loader->stage)
        status = dsc_stage_send(loader->stage, queue, &s->staged, dsc_mix_mixes(&loader->options), &batch->x,
                                &batch->labels);
    return status;
}

int dsc_loader_mixed_labels(const dsc_loader *loader, dsc_tensor *others, dsc_tensor *shares) {
    if (!loader || !dsc_mix_mixes(&loader->options) || loader->delivered == 0)
        return 0;
    if (loader->stage) {
        dsc_stage_mixed(loader->stage, others, shares);
        return 1;
    }
    const slot *s = &loader->slots[(loader->delivered - 1) % loader->slot_count];
    *others = s->others;
    *shares = s->shares;
    return 1;
}

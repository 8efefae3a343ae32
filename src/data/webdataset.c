/* WebDataset: images and classes in shards, which are tar files (shards.h).
 *
 * A class is a number from 0 on, or a name; names are numbered in the order of their bytes. Classes are those of
 * the training shards. Crops and normalisation are those of image folders (image_view.h). */
#include "base/error.h"
#include "base/memory.h"
#include "base/thread.h"
#include "data/image_view.h"
#include "data/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, MAX_CLASSES = 1 << 24, MESSAGE_SIZE = 2048, NAME_SIZE = 4096 + 1024 };

/* The list of all samples of both splits. Data sets of the same argument share it. */
typedef struct listing {
    struct listing *next;
    int users;
    char *argument;
    dsc_shard_list files;
    dsc_shard *shards; /* [files.count] */
    int32_t **labels;  /* of the samples of each shard */
    char **names;      /* of the classes; NULL: they are numbers */
    int64_t classes;
    /* while shards are read, under the mutex: */
    pthread_mutex_t mutex;
    int64_t next_shard;
    int64_t failed_shard; /* the first one that failed; -1: none */
    dsc_status status;
    char message[MESSAGE_SIZE];
} listing;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static listing *listings; /* those in use */

/* One split. */
typedef struct part {
    listing *l;
    int64_t shard_count;
    int64_t *shard, *start; /* numbers of its shards; their first samples, and the number of all at the end */
} part;

static void free_listing(listing *l) {
    for (int64_t i = 0; i < l->files.count; i++) {
        if (l->shards)
            dsc_shard_free(&l->shards[i]);
        if (l->labels)
            dsc_memory_free(&l->labels[i]);
    }
    dsc_shards_free(&l->files);
    dsc_memory_free(&l->shards);
    dsc_memory_free(&l->labels);
    dsc_memory_free(&l->names);
    dsc_memory_free(&l->argument);
    pthread_mutex_destroy(&l->mutex);
    dsc_memory_free(&l);
}

/* ---- reading the shards ---- */

static void *read_shards(void *argument) {
    listing *l = argument;
    pthread_mutex_lock(&l->mutex);
    while (l->next_shard < l->files.count && l->failed_shard < 0) {
        int64_t i = l->next_shard++;
        pthread_mutex_unlock(&l->mutex);
        dsc_status status = dsc_shard_read(l->files.path[i], &l->shards[i]);
        pthread_mutex_lock(&l->mutex);
        if (status != DSC_OK && (l->failed_shard < 0 || i < l->failed_shard)) {
            l->failed_shard = i;
            l->status = status;
            snprintf(l->message, sizeof l->message, "%s", dsc_error_message());
        }
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static dsc_status read_all(listing *l) {
    pthread_t threads[THREADS];
    int count = 0;
    dsc_status status = DSC_OK;
    while (count < THREADS - 1 && count + 1 < l->files.count && status == DSC_OK) {
        status = dsc_thread_start(&threads[count], read_shards, l, "a thread that lists shards");
        count += status == DSC_OK;
    }
    if (status == DSC_OK)
        read_shards(l);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (status == DSC_OK && l->failed_shard >= 0)
        status = dsc_error_adopt(l->status, l->message);
    return status;
}

/* ---- classes ---- */

/* The number that the text consists of; -1 when it is not a number. */
static int64_t number_of(const char *text) {
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits < 16 && !text[digits] ? strtoll(text, NULL, 10) : -1;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Collects the class names of all training samples, sorted, each once. */
static dsc_status collect_names(listing *l, int64_t samples) {
    int64_t used = 0;
    DSC_TRY(dsc_memory_alloc(samples, sizeof *l->names, &l->names));
    for (int64_t s = 0; s < l->files.count; s++)
        for (int64_t i = 0; !l->files.is_val[s] && i < l->shards[s].count; i++)
            l->names[used++] = l->shards[s].text + l->shards[s].samples[i].class;
    qsort(l->names, (size_t)used, sizeof *l->names, compare_names);
    for (int64_t i = 0; i < used; i++)
        if (l->classes == 0 || strcmp(l->names[l->classes - 1], l->names[i]) != 0)
            l->names[l->classes++] = l->names[i];
    return DSC_OK;
}

/* Finds out whether classes are numbers or names, and how many there are. */
static dsc_status count_classes(listing *l) {
    int64_t samples = 0, largest = -1;
    int numbers = 1;
    for (int64_t s = 0; s < l->files.count; s++)
        for (int64_t i = 0; !l->files.is_val[s] && i < l->shards[s].count; i++, samples++) {
            int64_t n = number_of(l->shards[s].text + l->shards[s].samples[i].class);
            numbers &= n >= 0;
            largest = n > largest ? n : largest;
        }
    if (samples == 0)
        return DSC_FAIL(
            DSC_E_NOT_FOUND,
            "webdataset: '%s' has no training samples: shards with the word val, valid, validation or "
            "test in their names are for validation",
            l->argument);
    if (numbers)
        l->classes = largest + 1;
    else
        DSC_TRY(collect_names(l, samples));
    if (l->classes < 2 || l->classes > MAX_CLASSES)
        return DSC_FAIL(DSC_E_FORMAT, "webdataset: '%s' has %lld classes: must be 2 to %d", l->argument,
                        (long long)l->classes, MAX_CLASSES);
    return DSC_OK;
}

static dsc_status label_shard(listing *l, int64_t s) {
    const dsc_shard *shard = &l->shards[s];
    DSC_TRY(dsc_memory_alloc(shard->count, sizeof *l->labels[s], &l->labels[s]));
    for (int64_t i = 0; i < shard->count; i++) {
        const char *text = shard->text + shard->samples[i].class;
        int64_t label = l->names ? -1 : number_of(text);
        char **found =
            l->names ? bsearch(&text, l->names, (size_t)l->classes, sizeof *l->names, compare_names) : NULL;
        if (found)
            label = found - l->names;
        if (label < 0 || label >= l->classes)
            return DSC_FAIL(DSC_E_FORMAT,
                            "webdataset: '%s': sample '%s' has class '%s', which no training sample has%s",
                            l->files.path[s], shard->text + shard->samples[i].key, text,
                            l->names ? "" : " (nor a higher one)");
        l->labels[s][i] = (int32_t)label;
    }
    return DSC_OK;
}

/* ---- listings in use ---- */

static dsc_status make_listing(const char *argument, listing **out) {
    listing *l;
    dsc_status status;
    DSC_TRY(dsc_memory_alloc(1, sizeof *l, &l));
    l->failed_shard = -1;
    if (pthread_mutex_init(&l->mutex, NULL) != 0) {
        dsc_memory_free(&l);
        return DSC_FAIL(DSC_E_MEMORY, "cannot create a lock");
    }
    DSC_TRY_GOTO(status, dsc_memory_strdup(argument, &l->argument), fail);
    DSC_TRY_GOTO(status, dsc_shards_find(argument, &l->files), fail);
    DSC_TRY_GOTO(status, dsc_memory_alloc(l->files.count, sizeof *l->shards, &l->shards), fail);
    DSC_TRY_GOTO(status, dsc_memory_alloc(l->files.count, sizeof *l->labels, &l->labels), fail);
    DSC_TRY_GOTO(status, read_all(l), fail);
    DSC_TRY_GOTO(status, count_classes(l), fail);
    for (int64_t s = 0; s < l->files.count; s++)
        DSC_TRY_GOTO(status, label_shard(l, s), fail);
    *out = l;
    return DSC_OK;
fail:
    free_listing(l);
    return status;
}

static dsc_status take_listing(const char *argument, listing **out) {
    dsc_status status = DSC_OK;
    pthread_mutex_lock(&lock);
    listing *l = listings;
    while (l && strcmp(l->argument, argument) != 0)
        l = l->next;
    if (!l && (status = make_listing(argument, &l)) == DSC_OK) {
        l->next = listings;
        listings = l;
    }
    if (status == DSC_OK) {
        l->users++;
        *out = l;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static void return_listing(listing *l) {
    pthread_mutex_lock(&lock);
    listing **place = &listings;
    while (*place != l)
        place = &(*place)->next;
    if (--l->users == 0) {
        *place = l->next;
        free_listing(l);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the data set ---- */

static void free_part(part *p) {
    if (p->l)
        return_listing(p->l);
    dsc_memory_free(&p->shard);
    dsc_memory_free(&p->start);
    dsc_memory_free(&p);
}

static void close_set(dsc_dataset *dataset) {
    free_part(dataset->state);
}

/* The place in p->shard of the shard that holds sample `index`. */
static int64_t shard_of(const part *p, int64_t index) {
    int64_t low = 0, high = p->shard_count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (p->start[middle] <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label) {
    const part *p = dataset->state;
    const int64_t place = shard_of(p, index), s = p->shard[place], i = index - p->start[place];
    const dsc_shard *shard = &p->l->shards[s];
    const dsc_shard_sample *entry = &shard->samples[i];
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%s: %s", p->l->files.path[s], shard->text + entry->key);
    if (entry->size > DSC_IMAGE_BYTES)
        return DSC_FAIL(DSC_E_FORMAT, "webdataset: '%s' has %lld bytes: at most %d are accepted", name,
                        (long long)entry->size, DSC_IMAGE_BYTES);
    DSC_TRY(dsc_bytes_reserve(&scratch->file, entry->size));
    DSC_TRY(dsc_file_read_at(p->l->files.path[s], entry->offset, entry->size, scratch->file.data));
    dsc_encoded encoded = {name, scratch->file.data, entry->size};
    dsc_status status =
        dsc_image_present(dataset, &encoded, (dsc_sample_key){index, epoch, augment}, scratch, x);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "webdataset");
    *label = p->l->labels[s][i];
    return DSC_OK;
}

static int32_t label_of(const dsc_dataset *dataset, int64_t index) {
    const part *p = dataset->state;
    int64_t place = shard_of(p, index);
    return p->l->labels[p->shard[place]][index - p->start[place]];
}

static int64_t group_of(const dsc_dataset *dataset, int64_t index) {
    return shard_of(dataset->state, index);
}

static const dsc_dataset_type shards_type = {
    .close = close_set, .sample = sample, .label = label_of, .group = group_of, .reads_files = 1};

/* The shards of one split that hold samples. */
static dsc_status choose_shards(part *p, dsc_split split) {
    const listing *l = p->l;
    DSC_TRY(dsc_memory_alloc(l->files.count, sizeof *p->shard, &p->shard));
    DSC_TRY(dsc_memory_alloc(l->files.count + 1, sizeof *p->start, &p->start));
    for (int64_t s = 0; s < l->files.count; s++)
        if (l->files.is_val[s] == (split == DSC_SPLIT_VAL) && l->shards[s].count > 0) {
            p->shard[p->shard_count++] = s;
            p->start[p->shard_count] = p->start[p->shard_count - 1] + l->shards[s].count;
        }
    if (p->shard_count == 0)
        return DSC_FAIL(DSC_E_NOT_FOUND,
                        "webdataset: '%s' has no validation shards: put the word val into their names, as in "
                        "val-000.tar, or take validation images from the training images (val-split 0.1)",
                        l->argument);
    return DSC_OK;
}

static dsc_status open_set(void *context, const char *argument, dsc_split split,
                           const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    int64_t size = 0;
    part *p;
    dsc_status status;
    DSC_TRY(dsc_image_side(dsc_kind_webdataset.name, options, &size));
    DSC_TRY(dsc_memory_alloc(1, sizeof *p, &p));
    DSC_TRY_GOTO(status, take_listing(argument, &p->l), fail);
    DSC_TRY_GOTO(status, choose_shards(p, split), fail);
    DSC_TRY_GOTO(status, dsc_dataset_create(&shards_type, dsc_kind_webdataset.name, split, options, out),
                 fail);
    dsc_dataset_info *info = &(*out)->info;
    info->count = p->start[p->shard_count];
    info->classes = p->l->classes;
    (*out)->class_names = (const char *const *)p->l->names;
    dsc_image_form_samples(*out, options, size);
    (*out)->state = p;
    return DSC_OK;
fail:
    free_part(p);
    return status;
}

const dsc_dataset_kind dsc_kind_webdataset = {
    sizeof(dsc_dataset_kind), "webdataset", "webdataset:DIR|PATTERN", 1, NULL, open_set, 0};

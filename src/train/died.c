/* Completes metrics that have no `end` line because the process was killed or the machine went down. The contents of
 * the added line come from the lines before it. */
#include "train/died.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "descent/train.h"
#include "train/lock.h"
#include "train/metrics.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TAIL_SIZE = 16384 }; /* bytes; longer than any `end` line */

typedef struct summary {
    int open; /* 1: a run has begun and not ended */
    dsc_train_result result;
    double time_s;
    long size; /* of the file, in bytes */
} summary;

static void take_count(const json_t *line, const char *key, int64_t *value) {
    const json_t *found = json_object_get(line, key);
    if (json_is_integer(found))
        *value = (int64_t)json_integer_value(found);
}

static void take_number(const json_t *line, const char *key, double *value) {
    const json_t *found = json_object_get(line, key);
    if (json_is_number(found))
        *value = json_number_value(found);
}

static void note_loss(dsc_train_result *r, double loss) {
    if (loss >= 0 && (r->best_loss < 0 || loss < r->best_loss))
        r->best_loss = loss;
}

static void take_line(summary *s, const json_t *line) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    dsc_train_result *r = &s->result;
    double ema_top1 = -1, ema_loss = -1;
    if (!kind)
        return;
    take_number(line, "time_s", &s->time_s);
    take_count(line, "step", &r->steps);
    if (strcmp(kind, "run") == 0) {
        s->open = 1;
    } else if (strcmp(kind, "end") == 0) {
        s->open = 0;
    } else if (strcmp(kind, "eval") == 0) {
        take_number(line, "loss", &r->val_loss);
        take_number(line, "top1", &r->top1);
        take_number(line, "top5", &r->top5);
        r->best_top1 = r->top1 > r->best_top1 ? r->top1 : r->best_top1;
        take_number(line, "ema_top1", &ema_top1);
        r->best_top1 = ema_top1 > r->best_top1 ? ema_top1 : r->best_top1;
        take_number(line, "ema_loss", &ema_loss);
        note_loss(r, json_is_number(json_object_get(line, "loss")) ? r->val_loss : -1);
        note_loss(r, ema_loss);
    } else if (strcmp(kind, "epoch") == 0) {
        take_count(line, "epoch", &r->epochs);
        r->epochs++;
        take_number(line, "images_per_s", &r->images_per_s);
        take_number(line, "mfu", &r->mfu);
        take_number(line, "loss", &r->train_loss);
    }
}

/* Skips damaged lines, and so an unfinished last line. */
static void read_lines(FILE *file, summary *s) {
    char *text = NULL;
    size_t capacity = 0;
    for (ssize_t length; (length = getline(&text, &capacity, file)) > 0;) {
        json_t *line = json_loadb(text, (size_t)length, 0, NULL);
        if (json_is_object(line))
            take_line(s, line);
        json_decref(line);
    }
    free(text);
}

/* 1 when the last line is an `end` line: then a long file need not be read. */
static int has_end(FILE *file) {
    static const char start[] = "{\"kind\":\"end\",";
    char tail[TAIL_SIZE + 1];
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
    long from = size > TAIL_SIZE ? size - TAIL_SIZE : 0;
    if (size <= 0 || fseek(file, from, SEEK_SET) != 0)
        return 0;
    size_t length = fread(tail, 1, TAIL_SIZE, file);
    rewind(file);
    if (length < 2 || tail[length - 1] != '\n')
        return 0;
    tail[length - 1] = '\0';
    const char *last = strrchr(tail, '\n');
    return strncmp(last ? last + 1 : tail, start, sizeof start - 1) == 0;
}

static dsc_status write_end(const char *directory, const summary *s) {
    dsc_metrics *metrics = NULL;
    DSC_TRY(dsc_metrics_open(directory, 1, &metrics));
    dsc_metrics_end(metrics, "died",
                    "the process ended without a word: it was killed, or the machine went down", &s->result,
                    s->time_s);
    dsc_status status = dsc_metrics_status(metrics);
    dsc_metrics_close(&metrics);
    return status;
}

/* Reads the metrics, if there are any. */
static dsc_status summarise(const char *directory, summary *s) {
    char *path = NULL;
    *s = (summary){.result = {.size = sizeof s->result,
                              .train_loss = -1,
                              .val_loss = -1,
                              .top1 = -1,
                              .top5 = -1,
                              .best_top1 = -1,
                              .best_loss = -1,
                              .target_s = -1}};
    DSC_TRY(dsc_output_path(directory, "metrics.jsonl", &path));
    FILE *file = fopen(path, "r");
    dsc_memory_free(&path);
    if (!file)
        return DSC_OK;
    if (!has_end(file))
        read_lines(file, s);
    s->size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    fclose(file);
    return DSC_OK;
}

dsc_status dsc_died_complete(const char *directory) {
    summary s;
    DSC_TRY(summarise(directory, &s));
    return s.open ? write_end(directory, &s) : DSC_OK;
}

/* Writes the end, unless another run has come in between. The caller holds the lock. */
static dsc_status complete(const char *directory, const summary *s) {
    struct stat info = {0};
    char *path = NULL;
    DSC_TRY(dsc_output_path(directory, "metrics.jsonl", &path));
    int same = stat(path, &info) == 0 && info.st_size == s->size;
    dsc_memory_free(&path);
    return same ? write_end(directory, s) : DSC_OK;
}

dsc_status dsc_train_complete_died(const char *directory) {
    struct stat info;
    summary s;
    dsc_lock *lock = NULL;
    if (!directory)
        return DSC_FAIL(DSC_E_INVALID, "no directory of a run: directory is NULL");
    if (stat(directory, &info) != 0)
        return DSC_OK;
    DSC_TRY(
        summarise(directory, &s)); /* before the lock is taken, which a run that starts at once may need */
    DSC_TRY(dsc_lock_take(directory, &lock));
    dsc_status status = s.open ? complete(directory, &s) : DSC_OK;
    dsc_lock_release(&lock);
    return status;
}

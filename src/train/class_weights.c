/* Weights of classes: balanced, or from a file. */
#include "train/class_weights.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "train/share.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 20, WORD_SIZE = 40 };

dsc_status dsc_class_weights_read(const char *file, const char *text, size_t length, double *weights,
                                  int64_t count) {
    int64_t found = 0, line = 1;
    for (const char *p = text; p < text + length;) {
        char word[WORD_SIZE], *end = NULL;
        if (*p == '\n')
            line++;
        if (*p == '#')
            p += strcspn(p, "\n");
        if (*p == '#' || isspace((unsigned char)*p) || p >= text + length) {
            p++;
            continue;
        }
        size_t size = strcspn(p, " \t\r\n\v\f#");
        snprintf(word, sizeof word, "%.*s", (int)(size < WORD_SIZE - 1 ? size : WORD_SIZE - 1), p);
        double value = strtod(word, &end);
        if ((!isdigit((unsigned char)word[0]) && word[0] != '.') || *end || !isfinite(value) || size == 0)
            return DSC_FAIL(DSC_E_FORMAT, "class-weights '%s', line %lld: '%s' is not a number of 0 or more",
                            file, (long long)line, word);
        if (found < count)
            weights[found] = value;
        found++;
        p += size;
    }
    if (found != count)
        return DSC_FAIL(DSC_E_INVALID,
                        "class-weights '%s' holds %lld numbers, the data has %lld classes: give one for each",
                        file, (long long)found, (long long)count);
    return DSC_OK;
}

static dsc_status read_file(const char *path, double *weights, int64_t count) {
    char *text = NULL;
    FILE *file = fopen(path, "rb");
    if (!file)
        return DSC_FAIL(DSC_E_NOT_FOUND,
                        "class-weights '%s': %s; give 'balanced' or a file with one number per class", path,
                        strerror(errno));
    dsc_status status = dsc_memory_alloc(FILE_LIMIT + 1, 1, &text);
    if (status == DSC_OK) {
        errno = 0;
        size_t length = fread(text, 1, FILE_LIMIT, file);
        if (ferror(file))
            status = DSC_FAIL(DSC_E_INVALID, "class-weights '%s': %s; give a file with one number per class",
                              path, strerror(errno));
        else if (length == FILE_LIMIT)
            status =
                DSC_FAIL(DSC_E_FORMAT, "class-weights '%s' is longer than %d bytes", path, (int)FILE_LIMIT);
        else
            status = dsc_class_weights_read(path, text, length, weights, count);
    }
    dsc_memory_free(&text);
    fclose(file);
    return status;
}

/* counts[c]: training samples of class c. */
static dsc_status count_samples(const dsc_dataset *data, double *counts) {
    dsc_dataset_info info = dsc_dataset_get_info(data);
    int32_t *labels = NULL;
    DSC_TRY(dsc_memory_alloc(info.count, sizeof *labels, &labels));
    dsc_status status = dsc_dataset_read_labels(data, labels);
    for (int64_t i = 0; status == DSC_OK && i < info.count; i++)
        if (labels[i] >= 0 && labels[i] < info.classes)
            counts[labels[i]]++;
    dsc_memory_free(&labels);
    return status;
}

/* Rank 0: weights of the data's classes, scaled. */
static dsc_status find_weights(const dsc_trainer *t, double *weights, double *counts) {
    const char *asked = t->options.class_weights;
    const int64_t classes = t->info.classes;
    double sum = 0, samples = 0;
    if (!t->train_set)
        return DSC_FAIL(DSC_E_INVALID, "class-weights %s: this trainer has no training data to count", asked);
    DSC_TRY(count_samples(t->train_set, counts));
    if (strcmp(asked, "balanced") == 0)
        for (int64_t c = 0; c < classes; c++)
            weights[c] = counts[c] > 0 ? 1 / counts[c] : 0;
    else
        DSC_TRY(read_file(asked, weights, classes));
    for (int64_t c = 0; c < classes; c++) {
        sum += counts[c] * weights[c];
        samples += counts[c];
    }
    if (!(sum > 0 && isfinite(sum)))
        return DSC_FAIL(DSC_E_INVALID,
                        "class-weights '%s': the classes of the training data have weights that add up to %g",
                        asked, sum);
    for (int64_t c = 0; c < classes; c++)
        weights[c] *= samples / sum;
    return DSC_OK;
}

static dsc_status upload(dsc_trainer *t, const double *weights, float *host) {
    const int64_t all = dsc_model_classes(t->model);
    for (int64_t c = 0; c < all; c++)
        host[c] = c < t->info.classes ? (float)weights[c] : 1;
    DSC_TRY(dsc_tensor_alloc(t->device, DSC_F32, 1, &all, &t->class_weights));
    DSC_TRY(dsc_tensor_upload(t->queue, host, (size_t)all * sizeof *host, &t->class_weights));
    DSC_TRY(dsc_queue_sync(t->queue));
    dsc_exec_weigh_classes(t->exec, &t->class_weights);
    return DSC_OK;
}

dsc_status dsc_class_weights_set(dsc_trainer *t) {
    double *numbers = NULL;
    float *host = NULL;
    const int64_t classes = t->info.classes;
    if (!t->options.class_weights)
        return DSC_OK;
    dsc_status status = dsc_memory_alloc(2 * classes + 1, sizeof *numbers, &numbers);
    if (status == DSC_OK)
        status = dsc_memory_alloc(dsc_model_classes(t->model), sizeof *host, &host);
    if (status == DSC_OK && t->rank == 0)
        status = find_weights(t, numbers, numbers + classes);
    status = dsc_comm_agree(t->comm, status);
    if (status == DSC_OK)
        status = dsc_share_bytes(t->comm, t->queue, numbers, (size_t)classes * sizeof *numbers);
    if (status == DSC_OK)
        status = dsc_comm_agree(t->comm, upload(t, numbers, host));
    dsc_memory_free(&host);
    dsc_memory_free(&numbers);
    return status;
}

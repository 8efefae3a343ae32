/* Confusions and calibration of an evaluation. */
#include "train/tally.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/tokens.h"
#include "train/mask_maps.h"
#include "train/model_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BINS = 15, MOST_CLASSES = 4096 };

struct dsc_tally {
    const dsc_dataset *data;
    int64_t outputs, classes, positions;
    int64_t rows, pairs; /* rows of a batch; pairs: classes * classes, or 0 with too many classes */
    dsc_mask_maps *maps; /* of data whose samples are tiles of pictures; NULL: others */
    float *logits;       /* of a batch, and its labels */
    int32_t *labels;
    double *row;  /* probabilities of one image */
    double *sums; /* [pairs] images by label and prediction; [BINS] images, right ones, confidence */
};

/* Confidences count in these units, so that the sum of up to 2^23 rows is exact and does not depend on the number of
 * ranks; with more rows the last digits may. */
static const double unit = 0x1p30;

dsc_status dsc_tally_create(const dsc_dataset *data, int64_t outputs, int64_t positions, int64_t batch,
                            dsc_tally **out) {
    const int64_t classes = dsc_output_classes(outputs), rows = batch * positions;
    dsc_tally *t;
    dsc_status status;
    DSC_TRY(dsc_memory_alloc(1, sizeof *t, &t));
    t->data = data;
    t->outputs = outputs;
    t->classes = classes;
    t->positions = positions;
    t->rows = rows;
    t->pairs = classes <= MOST_CLASSES ? classes * classes : 0;
    DSC_TRY_GOTO(status, dsc_mask_maps_create(data, &t->maps), failed);
    DSC_TRY_GOTO(status, dsc_memory_alloc(rows * outputs, sizeof *t->logits, &t->logits), failed);
    DSC_TRY_GOTO(status, dsc_memory_alloc(rows, sizeof *t->labels, &t->labels), failed);
    DSC_TRY_GOTO(status, dsc_memory_alloc(classes, sizeof *t->row, &t->row), failed);
    DSC_TRY_GOTO(status, dsc_memory_alloc(t->pairs + 3 * BINS, sizeof *t->sums, &t->sums), failed);
    *out = t;
    return DSC_OK;
failed:
    dsc_tally_destroy(&t);
    return status;
}

void dsc_tally_destroy(dsc_tally **tally) {
    if (!*tally)
        return;
    dsc_mask_maps_destroy(&(*tally)->maps);
    dsc_memory_free(&(*tally)->logits);
    dsc_memory_free(&(*tally)->labels);
    dsc_memory_free(&(*tally)->row);
    dsc_memory_free(&(*tally)->sums);
    dsc_memory_free(tally);
}

int64_t dsc_softmax(const float *from, int64_t count, double *to) {
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < count; i++)
        if (from[i] > from[best])
            best = i;
    for (int64_t i = 0; i < count; i++)
        sum += to[i] = exp((double)from[i] - (double)from[best]);
    for (int64_t i = 0; i < count; i++)
        to[i] /= sum;
    return best;
}

static void add_row(dsc_tally *t, const float *logits, int32_t label) {
    const float pair[2] = {0, logits[0]}; /* the softmax of this pair is the sigmoid */
    int64_t best = dsc_softmax(t->outputs == 1 ? pair : logits, t->classes, t->row);
    double sure = isfinite(t->row[best]) ? t->row[best] : 0;
    int bin = (int)(sure * BINS);
    double *bins = t->sums + t->pairs + (bin < BINS ? bin : BINS - 1);
    if (t->pairs > 0)
        t->sums[label * t->classes + best]++;
    bins[0]++;
    bins[BINS] += best == label;
    bins[2 * BINS] += rint(sure * unit);
}

dsc_status dsc_tally_add(dsc_tally *tally, dsc_queue *queue, int64_t first, const dsc_tensor *logits,
                         const dsc_tensor *labels) {
    int64_t rows = dsc_tensor_count(labels);
    if (rows > tally->rows || logits->dtype != DSC_F32 || dsc_tensor_count(logits) != rows * tally->outputs)
        return DSC_FAIL(DSC_E_INTERNAL, "a batch of %lld rows does not fit the tally", (long long)rows);
    DSC_TRY(dsc_tensor_download(queue, logits, dsc_tensor_bytes(logits), tally->logits));
    DSC_TRY(dsc_tensor_download(queue, labels, dsc_tensor_bytes(labels), tally->labels));
    DSC_TRY(dsc_queue_sync(queue));
    for (int64_t i = 0; i < rows; i++)
        if (tally->labels[i] >= 0 && tally->labels[i] < tally->classes) {
            add_row(tally, tally->logits + i * tally->outputs, tally->labels[i]);
            if (tally->maps)
                dsc_mask_maps_add(tally->maps, first + i / tally->positions, i % tally->positions,
                                  tally->row[1]);
        }
    return DSC_OK;
}

/* ---- the report ---- */

/* A report while it is built; the public struct `shown` points into the other members. */
typedef struct full_report {
    dsc_eval_report shown; /* must be the first member: callers hold its address */
    int64_t *confusion, bin_images[BINS];
    double bin_accuracy[BINS], bin_confidence[BINS];
    const char **names;
    char *text; /* memory of the names */
} full_report;

void dsc_eval_report_free(dsc_eval_report **report) {
    if (!report || !*report)
        return;
    full_report *r = (full_report *)(void *)*report;
    dsc_memory_free(&r->confusion);
    dsc_memory_free(&r->names);
    dsc_memory_free(&r->text);
    dsc_memory_free(report);
}

enum { NAME = 64 };

/* The text of a token in quotes, cut off where it is long; what cannot be seen is written as in C. */
static const char *quote(const uint8_t *bytes, int64_t count, char text[NAME]) {
    size_t used = 0;
    text[used++] = '\'';
    for (int64_t i = 0; i < count && used + 6 < NAME; i++) {
        const char c = (char)bytes[i];
        if (c == '\n')
            used += (size_t)snprintf(text + used, NAME - used, "\\n");
        else if (c >= ' ' && c < 0x7f)
            text[used++] = c;
        else
            used += (size_t)snprintf(text + used, NAME - used, "\\x%02x", bytes[i]);
    }
    snprintf(text + used, NAME - used, "'");
    return text;
}

/* The name of a class, or the token that it stands for; NULL: it has none. */
static const char *name_class(const dsc_dataset *data, int64_t index, char text[NAME]) {
    const dsc_tokenizer *tokenizer = dsc_dataset_tokenizer(data);
    int64_t bytes = 0;
    if (!tokenizer)
        return dsc_dataset_class_name(data, index);
    const uint8_t *token = dsc_tokenizer_token(tokenizer, (int32_t)index, &bytes);
    if (token)
        return quote(token, bytes, text);
    snprintf(text, NAME, "token %lld", (long long)index); /* the vocabulary is larger than the tokenizer's */
    return text;
}

static dsc_status copy_names(full_report *r, const dsc_dataset *data) {
    int64_t classes = r->shown.classes, bytes = 0;
    char text[NAME];
    for (int64_t i = 0; i < classes; i++) {
        const char *name = name_class(data, i, text);
        if (!name)
            return DSC_OK;
        bytes += (int64_t)strlen(name) + 1;
    }
    DSC_TRY(dsc_memory_alloc(classes, sizeof *r->names, &r->names));
    DSC_TRY(dsc_memory_alloc(bytes, 1, &r->text));
    char *next = r->text;
    for (int64_t i = 0; i < classes; i++) {
        const char *name = name_class(data, i, text);
        size_t size = strlen(name) + 1;
        r->names[i] = memcpy(next, name, size);
        next += size;
    }
    r->shown.class_names = r->names;
    return DSC_OK;
}

static void fill_bins(const dsc_tally *t, full_report *r) {
    const double *bins = t->sums + t->pairs;
    double all = 0;
    for (int i = 0; i < BINS; i++) {
        double images = bins[i];
        all += images;
        r->bin_images[i] = (int64_t)images;
        r->bin_accuracy[i] = images > 0 ? bins[BINS + i] / images : 0;
        r->bin_confidence[i] = images > 0 ? bins[2 * BINS + i] / unit / images : 0;
        r->shown.calibration_error += images * fabs(r->bin_accuracy[i] - r->bin_confidence[i]);
    }
    if (all > 0)
        r->shown.calibration_error /= all;
    r->shown.bins = BINS;
    r->shown.bin_images = r->bin_images;
    r->shown.bin_accuracy = r->bin_accuracy;
    r->shown.bin_confidence = r->bin_confidence;
}

static dsc_status make_report(const dsc_tally *t, const dsc_dataset *data, dsc_eval_report **out) {
    full_report *r;
    dsc_status status;
    DSC_TRY(dsc_memory_alloc(1, sizeof *r, &r));
    *out = &r->shown;
    r->shown.classes = t->classes;
    DSC_TRY_GOTO(status, copy_names(r, data), failed);
    if (t->pairs > 0) {
        DSC_TRY_GOTO(status, dsc_memory_alloc(t->pairs, sizeof *r->confusion, &r->confusion), failed);
        for (int64_t i = 0; i < t->pairs; i++)
            r->confusion[i] = (int64_t)t->sums[i];
        r->shown.confusion = r->confusion;
    }
    fill_bins(t, r);
    return DSC_OK;
failed:
    dsc_eval_report_free(out);
    return status;
}

static dsc_status add_ranks(dsc_tally *t, dsc_comm *comm, dsc_queue *queue, dsc_tensor *sums) {
    DSC_TRY(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, sums));
    DSC_TRY(dsc_tensor_download(queue, sums, dsc_tensor_bytes(sums), t->sums));
    return dsc_queue_sync(queue);
}

dsc_status dsc_tally_report(dsc_tally *tally, dsc_comm *comm, dsc_queue *queue, dsc_eval_report **out) {
    double score, threshold;
    const int64_t count = tally->pairs + 3 * BINS;
    dsc_tensor sums = {0};
    dsc_status status = dsc_tensor_alloc(dsc_queue_device(queue), DSC_F64, 1, &count, &sums);
    if (status == DSC_OK)
        status = dsc_tensor_upload(queue, tally->sums, dsc_tensor_bytes(&sums), &sums);
    if (status == DSC_OK)
        status = dsc_queue_sync(queue);
    status = dsc_comm_agree(comm, status);
    if (status == DSC_OK)
        status = add_ranks(tally, comm, queue, &sums);
    if (status == DSC_E_LOST || status == DSC_E_COMM)
        dsc_memory_keep(sums.data); /* messages may still arrive there */
    else if (sums.data)
        dsc_tensor_free(&sums);
    DSC_TRY(status);
    DSC_TRY(dsc_comm_agree(comm, dsc_mask_maps_score(tally->maps, comm, queue, &score, &threshold)));
    DSC_TRY(dsc_comm_agree(comm, make_report(tally, tally->data, out)));
    (*out)->v_rand = score;
    (*out)->v_rand_threshold = threshold;
    return DSC_OK;
}

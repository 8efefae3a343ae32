#include "train/mask_maps.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "data/dataset.h"
#include "data/masks.h"
#include "train/rand_score.h"

#include <math.h>

enum { THRESHOLDS = 9 }; /* 0.1, 0.2, ... 0.9 */
static const int64_t most_pixels = 1 << 28;

struct dsc_mask_maps {
    const dsc_dataset *data;
    int64_t pictures, largest; /* largest: pixels of the largest picture */
    int64_t *first;            /* index in `level` of each picture's first pixel */
    /* One number per pixel: how many thresholds its probability exceeds. 0 for pixels of other ranks. */
    uint8_t *level;
    int64_t last; /* the sample that was added to last, and its tile */
    dsc_mask_tile tile;
};

static int64_t pixels_of(const dsc_dataset *data, int64_t picture) {
    const dsc_mask_item *item = dsc_masks_picture(data, picture);
    return item->h * item->w;
}

dsc_status dsc_mask_maps_create(const dsc_dataset *data, dsc_mask_maps **out) {
    dsc_mask_maps *m;
    int64_t all = 0;
    *out = NULL;
    if (!dsc_masks_has_tiles(data) || data->info.classes != 2)
        return DSC_OK;
    for (int64_t i = 0; i < data->pictures; i++)
        all += pixels_of(data, i);
    if (all > most_pixels)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(1, sizeof *m, &m));
    *out = m;
    m->data = data;
    m->pictures = data->pictures;
    m->last = -1;
    dsc_status status = dsc_memory_alloc(m->pictures, sizeof *m->first, &m->first);
    if (status == DSC_OK)
        status = dsc_memory_alloc(all, 1, &m->level);
    if (status != DSC_OK) {
        dsc_mask_maps_destroy(out);
        return status;
    }
    for (int64_t i = 0; i < m->pictures; i++) {
        const int64_t pixels = pixels_of(data, i);
        m->first[i] = i > 0 ? m->first[i - 1] + pixels_of(data, i - 1) : 0;
        m->largest = pixels > m->largest ? pixels : m->largest;
    }
    return DSC_OK;
}

void dsc_mask_maps_destroy(dsc_mask_maps **maps) {
    if (!*maps)
        return;
    dsc_memory_free(&(*maps)->first);
    dsc_memory_free(&(*maps)->level);
    dsc_memory_free(maps);
}

void dsc_mask_maps_add(dsc_mask_maps *m, int64_t sample, int64_t position, double probability) {
    if (sample != m->last)
        m->tile = dsc_masks_tile(m->data, sample);
    m->last = sample;
    const dsc_mask_view *view = &m->tile.view;
    const int64_t row = view->top + position / view->w, column = view->left + position % view->w;
    int level = 0;
    while (level < THRESHOLDS && probability > (level + 1) / (THRESHOLDS + 1.0))
        level++;
    m->level[m->first[m->tile.picture] + row * m->tile.item->w + column] = (uint8_t)level;
}

/* ---- the score ---- */

/* Adds the ranks' parts of a picture, of which each has the pixels of its own tiles. */
static dsc_status join(dsc_comm *comm, dsc_queue *queue, uint8_t *level, int64_t pixels, float *host,
                       dsc_tensor *numbers) {
    dsc_tensor part = dsc_tensor_view(numbers->device, numbers->data, DSC_F32, 1, &pixels);
    for (int64_t i = 0; i < pixels; i++)
        host[i] = level[i];
    DSC_TRY(dsc_tensor_upload(queue, host, dsc_tensor_bytes(&part), &part));
    DSC_TRY(dsc_queue_sync(queue));
    DSC_TRY(dsc_comm_allreduce(comm, DSC_TRAFFIC_OTHER, DSC_SUM, &part));
    DSC_TRY(dsc_tensor_download(queue, &part, dsc_tensor_bytes(&part), host));
    DSC_TRY(dsc_queue_sync(queue));
    for (int64_t i = 0; i < pixels; i++)
        level[i] = (uint8_t)host[i];
    return DSC_OK;
}

static dsc_status score_all(dsc_mask_maps *m, uint8_t *object, double *score, double *threshold) {
    double sums[THRESHOLDS] = {0};
    int64_t scored = 0;
    for (int64_t i = 0; i < m->pictures; i++) {
        const dsc_mask_item *item = dsc_masks_picture(m->data, i);
        double own[THRESHOLDS];
        for (int64_t p = 0; p < item->h * item->w; p++)
            object[p] = dsc_masks_class(m->data, item->label[p]) == 1;
        DSC_TRY(dsc_rand_score(object, m->level + m->first[i], item->h, item->w, THRESHOLDS, own));
        scored += own[0] >= 0;
        for (int t = 0; t < THRESHOLDS && own[0] >= 0; t++)
            sums[t] += own[t];
    }
    for (int t = 0; scored > 0 && t < THRESHOLDS; t++)
        if (sums[t] / (double)scored > *score) {
            *score = sums[t] / (double)scored;
            *threshold = (t + 1) / (THRESHOLDS + 1.0);
        }
    return DSC_OK;
}

dsc_status dsc_mask_maps_score(dsc_mask_maps *m, dsc_comm *comm, dsc_queue *queue, double *score,
                               double *threshold) {
    *score = *threshold = -1;
    if (!m)
        return DSC_OK;
    float *host = NULL;
    uint8_t *object = NULL;
    dsc_tensor numbers = {0};
    dsc_status status = dsc_memory_alloc(m->largest, sizeof *host, &host);
    if (status == DSC_OK)
        status = dsc_memory_alloc(m->largest, 1, &object);
    if (status == DSC_OK)
        status = dsc_tensor_alloc(dsc_queue_device(queue), DSC_F32, 1, &m->largest, &numbers);
    status = dsc_comm_agree(comm, status);
    for (int64_t i = 0; status == DSC_OK && dsc_comm_size(comm) > 1 && i < m->pictures; i++)
        status = join(comm, queue, m->level + m->first[i], pixels_of(m->data, i), host, &numbers);
    if (status == DSC_E_LOST || status == DSC_E_COMM)
        dsc_memory_keep(numbers.data); /* messages may still arrive there */
    else if (numbers.data)
        dsc_tensor_free(&numbers);
    if (status == DSC_OK)
        status = score_all(m, object, score, threshold);
    dsc_memory_free(&host);
    dsc_memory_free(&object);
    return status;
}

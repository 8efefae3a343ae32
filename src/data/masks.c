/* The data set "masks": images with the class of every pixel, for segmentation.
 *
 * Images and masks are in memory. The values of all masks, of both splits and in their order, are the classes; mean
 * and standard deviation are those of the training images. A training sample is a crop. Validation images are cut into
 * tiles of the same size, of which the last ones of a row or column overlap those before them: the pixels that an
 * earlier tile has get the label -1, so that every pixel counts once. With a margin, all of this applies to the
 * labelled middle of a sample. */
#include "data/masks.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "descent/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SIZE = 16384, MAX_ELASTIC = 1000, VALUES = 256, USUAL_VALUES = 32, LABEL_TEXT = 512 };
/* Without images of their own, this part of them is for validation. */
static const double default_val_split = 0.2;

typedef struct masks {
    dsc_mask_list list;
    int64_t margin, h, w; /* h, w: of the labelled part of a sample */
    dsc_normalise normalise;
    int32_t class_of[VALUES];
    char names[VALUES][4]; /* the values, by class */
    const char *class_names[VALUES];
} masks;

static void close_set(dsc_dataset *dataset) {
    masks *m = dataset->state;
    dsc_mask_list_free(&m->list);
    dsc_memory_free(&m);
}

static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label);
static const dsc_dataset_type masks_type = {.close = close_set, .sample = sample};

/* ---- tiles ---- */

dsc_mask_tile dsc_masks_tile(const dsc_dataset *dataset, int64_t index) {
    const masks *m = dataset->state;
    dsc_mask_tile tile = {.item = m->list.items};
    int64_t tiles;
    for (; index >= (tiles = dsc_mask_tiles(tile.item->h, tile.item->w, m->h, m->w)); tile.item++)
        index -= tiles;
    tile.picture = tile.item - m->list.items;
    tile.view = dsc_mask_view_tile(tile.item->h, tile.item->w, m->h, m->w, index, &tile.done_h, &tile.done_w);
    return tile;
}

int dsc_masks_has_tiles(const dsc_dataset *dataset) {
    return dataset->type == &masks_type && dataset->split != DSC_SPLIT_TRAIN;
}

const dsc_mask_item *dsc_masks_picture(const dsc_dataset *dataset, int64_t picture) {
    const masks *m = dataset->state;
    return &m->list.items[picture];
}

int32_t dsc_masks_class(const dsc_dataset *dataset, uint8_t value) {
    const masks *m = dataset->state;
    return m->class_of[value];
}

static dsc_status tile_sample(const dsc_dataset *dataset, int64_t index, dsc_scratch *scratch, float *x,
                              int32_t *label) {
    const masks *m = dataset->state;
    const int64_t h = m->h, w = m->w;
    const dsc_mask_tile tile = dsc_masks_tile(dataset, index);
    const dsc_mask_view view = dsc_mask_view_widen(tile.view, m->margin);
    DSC_TRY(dsc_mask_view_apply(&view, tile.item, dataset->info.c, &m->normalise, m->class_of,
                                &scratch->resample, x, label));
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < w; j++)
            if (i < tile.done_h || j < tile.done_w)
                label[i * w + j] = -1;
    return DSC_OK;
}

static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label) {
    const masks *m = dataset->state;
    if (dataset->split != DSC_SPLIT_TRAIN)
        return tile_sample(dataset, index, scratch, x, label);
    const dsc_mask_item *item = &m->list.items[index];
    dsc_mask_view view = dsc_mask_view_middle(item->h, item->w, m->h, m->w);
    if (augment) {
        dsc_rng rng = dsc_augment_rng(dataset->options.seed, (dsc_sample_key){index, epoch, augment});
        view = dsc_mask_view_draw(&rng, item->h, item->w, m->h, m->w, dataset->options.elastic);
    }
    view = dsc_mask_view_widen(view, m->margin);
    return dsc_mask_view_apply(&view, item, dataset->info.c, &m->normalise, m->class_of, &scratch->resample,
                               x, label);
}

/* ---- what all images have in common ---- */

/* Marks the values of a mask. Returns how many different ones it has. */
static int mark_values(const dsc_mask_item *item, uint8_t marked[VALUES]) {
    uint8_t own[VALUES] = {0};
    int count = 0;
    for (int64_t p = 0; p < item->h * item->w; p++)
        own[item->label[p]] = 1;
    for (int v = 0; v < VALUES; v++) {
        count += own[v];
        marked[v] |= own[v];
    }
    return count;
}

/* Marks the values of all masks. Returns the number of the mask with the most of them. */
static int64_t mark_list(const dsc_mask_list *list, uint8_t marked[VALUES], int *most) {
    int64_t which = 0;
    *most = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const int count = mark_values(&list->items[i], marked);
        which = count > *most ? i : which;
        *most = count > *most ? count : *most;
    }
    return which;
}

/* "'FILE'", or "page N of 'FILE'". */
static const char *name_label(const dsc_mask_item *item, char text[LABEL_TEXT]) {
    int used = 0;
    if (item->page > 0)
        used = snprintf(text, LABEL_TEXT, "page %lld of ", (long long)item->page);
    snprintf(text + used, (size_t)(LABEL_TEXT - used), "'%s'", item->label_name);
    return text;
}

/* Numbers the values from 0 on. Returns how many there are. */
static int64_t number_classes(masks *m, const dsc_mask_list *other) {
    uint8_t marked[VALUES] = {0};
    int64_t classes = 0;
    int most;
    mark_list(&m->list, marked, &most);
    mark_list(other, marked, &most);
    for (int v = 0; v < VALUES; v++) {
        m->class_of[v] = marked[v] ? (int32_t)classes : -1;
        if (!marked[v])
            continue;
        snprintf(m->names[classes], sizeof m->names[0], "%u", (unsigned)v & 255);
        m->class_names[classes] = m->names[classes];
        classes++;
    }
    return classes;
}

/* Values that are classes by mistake: very many of them, or some that training never has. */
static void warn_of_values(const dsc_mask_list *train, const dsc_mask_list *val, int64_t classes) {
    uint8_t known[VALUES] = {0}, all[VALUES];
    char name[LABEL_TEXT];
    int most[2];
    const int64_t first = mark_list(train, known, &most[0]);
    memcpy(all, known, sizeof all);
    const int64_t second = mark_list(val, all, &most[1]);
    if (classes > USUAL_VALUES) {
        const dsc_mask_item *item = most[1] > most[0] ? &val->items[second] : &train->items[first];
        dsc_log(
            DSC_LOG_WARNING,
            "masks: the labels have %lld different values, each of which is a class; %s has %d of them: a "
            "label image has one value for each class, with sharp borders (not scaled or smoothed, not saved "
            "as JPEG)",
            (long long)classes, name_label(item, name), most[most[1] > most[0]]);
        return; /* with so many values, new ones in validation are no surprise */
    }
    int value = -1, others = -1; /* the lowest value that is new, and how many more there are */
    for (int v = VALUES - 1; v >= 0; v--)
        if (all[v] && !known[v]) {
            value = v;
            others++;
        }
    for (int64_t i = 0; value >= 0 && i < val->count; i++) {
        const dsc_mask_item *item = &val->items[i];
        char also[64] = "";
        if (!memchr(item->label, value, (size_t)(item->h * item->w)))
            continue;
        if (others > 0)
            snprintf(also, sizeof also, " (nor are %d other values)", others);
        dsc_log(
            DSC_LOG_WARNING,
            "masks: the value %d of %s, for validation, is in no label for training%s: its class cannot be "
            "learnt; correct the label, or move such an image to the training images",
            value, name_label(item, name), also);
        return;
    }
}

static int64_t count_channels(const dsc_mask_list *list) {
    for (int64_t i = 0; i < list->count; i++)
        if (list->items[i].c == 3)
            return 3;
    return 1;
}

/* Mean and standard deviation of the values / 255, by channel. */
static void measure(const dsc_mask_list *list, int64_t channels, double *mean, double *std) {
    for (int64_t k = 0; k < channels; k++) {
        uint64_t sum = 0, squares = 0, count = 0;
        for (int64_t i = 0; i < list->count; i++) {
            const dsc_mask_item *item = &list->items[i];
            const uint8_t *p = item->image + (item->c == 1 ? 0 : k);
            for (int64_t n = item->h * item->w; n > 0; n--, p += item->c, count++) {
                sum += *p;
                squares += (uint64_t)*p * *p;
            }
        }
        const double m = (double)sum / (double)count, square = (double)squares / (double)count;
        mean[k] = m / 255;
        std[k] = square > m * m ? sqrt(square - m * m) / 255 : 1; /* 1: all pixels are alike */
    }
}

/* ---- opening ---- */

static dsc_status check_options(const dsc_data_options *o) {
    if (o->image_size < 0 || o->image_size > MAX_SIZE)
        return DSC_FAIL(DSC_E_INVALID, "masks: image size %lld: must be 1 to %d, or 0 for whole images",
                        (long long)o->image_size, MAX_SIZE);
    if (o->margin < 0 || (o->image_size > 0 && 2 * o->margin >= o->image_size))
        return DSC_FAIL(
            DSC_E_INVALID,
            "masks: a margin of %lld pixels leaves nothing of an image size of %lld: the image size must be "
            "above %lld",
            (long long)o->margin, (long long)o->image_size, 2 * (long long)o->margin);
    if (!(o->elastic >= 0 && o->elastic <= MAX_ELASTIC))
        return DSC_FAIL(DSC_E_INVALID, "masks: elastic deformation of %g pixels: must be 0 to %d", o->elastic,
                        MAX_ELASTIC);
    if (!o->mean != !o->std)
        return DSC_FAIL(DSC_E_INVALID, "masks: mean without std, or std without mean: give both or none");
    for (int c = 0; o->std && c < 3; c++)
        if (!(o->std[c] > 0) || !isfinite(o->std[c]) || !isfinite(o->mean[c]))
            return DSC_FAIL(DSC_E_INVALID, "masks: mean %g, std %g: must be finite, and std above 0",
                            o->mean[c], o->std[c]);
    return DSC_OK;
}

/* Moves the last images of `train` to `val`, in one piece: neighbours in a volume are alike. */
static dsc_status divide(const char *dir, double share, dsc_mask_list *train, dsc_mask_list *val) {
    int64_t count = llround((double)train->count * share);
    if (train->count < 2)
        return DSC_FAIL(DSC_E_FORMAT,
                        "masks: '%s' has %lld image, which cannot be divided: put images into train and val",
                        dir, (long long)train->count);
    count = count < 1 ? 1 : count > train->count - 1 ? train->count - 1 : count;
    DSC_TRY(dsc_memory_grow(&val->items, &val->capacity, count, sizeof *val->items));
    memcpy(val->items, train->items + train->count - count, (size_t)count * sizeof *val->items);
    val->count = count;
    train->count -= count;
    return DSC_OK;
}

/* Reads DIR/train and DIR/val; without these, DIR or DIR/train alone, and divides it. */
static dsc_status read_lists(const char *dir, double val_split, dsc_mask_list *train, dsc_mask_list *val) {
    char *inner = NULL, *other = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_path_join(dir, "train", &inner), done);
    DSC_TRY_GOTO(status, dsc_path_join(dir, "val", &other), done);
    const int nested = dsc_file_is_directory(inner);
    DSC_TRY_GOTO(status, dsc_mask_list_read(nested ? inner : dir, train), done);
    if (nested && val_split == 0 && dsc_file_is_directory(other))
        status = dsc_mask_list_read(other, val);
    else
        status = divide(nested ? inner : dir, val_split > 0 ? val_split : default_val_split, train, val);
done:
    dsc_memory_free(&inner);
    dsc_memory_free(&other);
    return status;
}

static dsc_status fail_small(const masks *m, const dsc_mask_list *other, const dsc_mask_item *item,
                             int64_t side) {
    int64_t least = side;
    char margin[128] = "";
    for (int l = 0; l < 2; l++) {
        const dsc_mask_list *list = l ? other : &m->list;
        for (int64_t i = 0; i < list->count; i++) {
            least = list->items[i].h < least ? list->items[i].h : least;
            least = list->items[i].w < least ? list->items[i].w : least;
        }
    }
    if (m->margin > 0)
        snprintf(margin, sizeof margin, " (an image size of %lld less a margin of %lld pixels on each side)",
                 (long long)(side + 2 * m->margin), (long long)m->margin);
    return DSC_FAIL(
        DSC_E_FORMAT,
        "masks: '%s' has %lld x %lld pixels, too few for crops of %lld x %lld%s: choose an image size "
        "of at most %lld (image-size)",
        item->name, (long long)item->w, (long long)item->h, (long long)side, (long long)side, margin,
        (long long)(least + 2 * m->margin));
}

/* The labelled size of the samples, which must be the same for all. side 0: whole images. */
static dsc_status size_samples(masks *m, const dsc_mask_list *other, int64_t side) {
    const dsc_mask_list *list = &m->list;
    const dsc_mask_item *first = &list->items[0];
    m->h = side > 0 ? side : first->h;
    m->w = side > 0 ? side : first->w;
    for (int64_t i = 0; i < list->count; i++) {
        const dsc_mask_item *item = &list->items[i];
        if (side > 0 && (item->h < side || item->w < side))
            return fail_small(m, other, item, side);
        if (side == 0 && (item->h != first->h || item->w != first->w))
            return DSC_FAIL(
                DSC_E_FORMAT,
                "masks: '%s' has %lld x %lld pixels, but '%s' has %lld x %lld: whole images must be of one "
                "size; scale or cut them, or train on crops (image size)",
                item->name, (long long)item->w, (long long)item->h, first->name, (long long)first->w,
                (long long)first->h);
    }
    return DSC_OK;
}

/* Fills in m and info for the split whose images are m->list; the other split's are `other`. */
static dsc_status describe(masks *m, const dsc_mask_list *other, const char *dir, dsc_split split,
                           const dsc_data_options *options, dsc_dataset_info *info) {
    double mean[3], std[3];
    info->c = count_channels(&m->list) == 3 ? 3 : count_channels(other);
    info->classes = number_classes(m, other);
    if (info->classes < 2)
        return DSC_FAIL(
            DSC_E_FORMAT,
            "masks: all pixels of the labels in '%s' have the value %s: there is nothing to learn", dir,
            m->names[0]);
    measure(split == DSC_SPLIT_TRAIN ? &m->list : other, info->c, mean, std);
    dsc_normalise_init(&m->normalise, (int)info->c, options->mean ? options->mean : mean,
                       options->std ? options->std : std);
    const int64_t size = options->image_size;
    m->margin = options->margin;
    DSC_TRY(size_samples(m, other, size > 0 ? size - 2 * m->margin : 0));
    if (split == DSC_SPLIT_TRAIN) /* once, where both splits are opened */
        warn_of_values(&m->list, other, info->classes);
    info->h = m->h + 2 * m->margin;
    info->w = m->w + 2 * m->margin;
    info->count = split == DSC_SPLIT_TRAIN ? m->list.count : 0;
    for (int64_t i = 0; split != DSC_SPLIT_TRAIN && i < m->list.count; i++)
        info->count += dsc_mask_tiles(m->list.items[i].h, m->list.items[i].w, m->h, m->w);
    return DSC_OK;
}

static dsc_status open_set(void *context, const char *argument, dsc_split split,
                           const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    masks *m;
    dsc_mask_list other = {0};
    dsc_dataset_info info = {.name = NULL};
    dsc_dataset *dataset = NULL;
    dsc_status status;
    const int train = split == DSC_SPLIT_TRAIN;
    DSC_TRY(check_options(options));
    DSC_TRY(dsc_memory_alloc(1, sizeof *m, &m));
    DSC_TRY_GOTO(
        status,
        read_lists(argument, options->val_split, train ? &m->list : &other, train ? &other : &m->list), done);
    DSC_TRY_GOTO(status, describe(m, &other, argument, split, options, &info), done);
    DSC_TRY_GOTO(status, dsc_dataset_create(&masks_type, "masks", split, options, &dataset), done);
    info.name = dataset->info.name;
    dataset->info = info;
    dataset->label_count = m->h * m->w;
    dataset->pictures = train ? 0 : m->list.count;
    dataset->class_names = m->class_names;
    dsc_dataset_note_normalisation(dataset, m->normalise.mean, m->normalise.std);
    dataset->state = m;
    m = NULL;
    *out = dataset;
done:
    dsc_mask_list_free(&other);
    if (m)
        dsc_mask_list_free(&m->list);
    dsc_memory_free(&m);
    return status;
}

const dsc_dataset_kind dsc_kind_masks = {
    sizeof(dsc_dataset_kind), "masks", "masks:DIR", 1, NULL, open_set, 1};

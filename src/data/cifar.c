/* CIFAR-10 and CIFAR-100 in their binary form.
 *
 * A file is a sequence of records: one label byte (CIFAR-100: a coarse one, then the fine one that is used),
 * then 32 x 32 red bytes, as many green, as many blue. Held in memory as [count, 32, 32, 3]. Augmentation: 4
 * black pixels around it, a random 32 x 32 crop, a flip. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "descent/log.h"

#include <stdio.h>

enum { SIDE = 32, PLANE = SIDE * SIDE, CHANNELS = 3, MAX_FILES = 5 };

typedef struct cifar_layout {
    const char *name, *folder, *archive;
    const char *train[MAX_FILES + 1], *val[MAX_FILES + 1]; /* terminated by NULL */
    int64_t train_records, val_records;                    /* number in a file as published */
    int64_t label_bytes;                                   /* the last of them is the label */
    int64_t classes;
    double mean[CHANNELS], std[CHANNELS];
    const char *const *class_names;
} cifar_layout;

static const char *const names10[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                      "dog",      "frog",       "horse", "ship", "truck"};

static const char *const names100[] = {
    "apple",      "aquarium_fish", "baby",         "bear",       "beaver",      "bed",         "bee",
    "beetle",     "bicycle",       "bottle",       "bowl",       "boy",         "bridge",      "bus",
    "butterfly",  "camel",         "can",          "castle",     "caterpillar", "cattle",      "chair",
    "chimpanzee", "clock",         "cloud",        "cockroach",  "couch",       "crab",        "crocodile",
    "cup",        "dinosaur",      "dolphin",      "elephant",   "flatfish",    "forest",      "fox",
    "girl",       "hamster",       "house",        "kangaroo",   "keyboard",    "lamp",        "lawn_mower",
    "leopard",    "lion",          "lizard",       "lobster",    "man",         "maple_tree",  "motorcycle",
    "mountain",   "mouse",         "mushroom",     "oak_tree",   "orange",      "orchid",      "otter",
    "palm_tree",  "pear",          "pickup_truck", "pine_tree",  "plain",       "plate",       "poppy",
    "porcupine",  "possum",        "rabbit",       "raccoon",    "ray",         "road",        "rocket",
    "rose",       "sea",           "seal",         "shark",      "shrew",       "skunk",       "skyscraper",
    "snail",      "snake",         "spider",       "squirrel",   "streetcar",   "sunflower",   "sweet_pepper",
    "table",      "tank",          "telephone",    "television", "tiger",       "tractor",     "train",
    "trout",      "tulip",         "turtle",       "wardrobe",   "whale",       "willow_tree", "wolf",
    "woman",      "worm"};
_Static_assert(sizeof names10 / sizeof *names10 == 10 && sizeof names100 / sizeof *names100 == 100,
               "classes");

static const cifar_layout cifar10 = {
    .name = "cifar10",
    .folder = "cifar-10-batches-bin",
    .archive = "cifar-10-binary.tar.gz",
    .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
              "data_batch_5.bin"},
    .val = {"test_batch.bin"},
    .train_records = 10000,
    .val_records = 10000,
    .label_bytes = 1,
    .classes = 10,
    .mean = {0.4914, 0.4822, 0.4465},
    .std = {0.2470, 0.2435, 0.2616},
    .class_names = names10,
};

static const cifar_layout cifar100 = {
    .name = "cifar100",
    .folder = "cifar-100-binary",
    .archive = "cifar-100-binary.tar.gz",
    .train = {"train.bin"},
    .val = {"test.bin"},
    .train_records = 50000,
    .val_records = 10000,
    .label_bytes = 2,
    .classes = 100,
    .mean = {0.5071, 0.4865, 0.4409},
    .std = {0.2673, 0.2564, 0.2762},
    .class_names = names100,
};

static int64_t record_size(const cifar_layout *layout) {
    return layout->label_bytes + CHANNELS * PLANE;
}

/* The path of one file: in `folder`, or in the archive's own folder inside it. */
static dsc_status file_path(const cifar_layout *layout, const char *folder, const char *file, char **out) {
    char *inner;
    DSC_TRY(dsc_path_join(folder, layout->folder, &inner));
    dsc_status status = dsc_path_join(dsc_file_is_directory(inner) ? inner : folder, file, out);
    dsc_memory_free(&inner);
    return status;
}

static dsc_status count_records(const cifar_layout *layout, dsc_split split, const char *folder,
                                const char *path, int64_t *records) {
    int64_t size = 0, record = record_size(layout);
    dsc_status status = dsc_file_size(path, &size);
    if (status == DSC_E_NOT_FOUND)
        return DSC_FAIL(status,
                        "%s: '%s' is missing: download http://www.cs.toronto.edu/~kriz/%s and unpack it in "
                        "'%s', which gives '%s/%s'",
                        layout->name, path, layout->archive, folder, folder, layout->folder);
    DSC_TRY(status);
    if (size == 0 || size % record)
        return DSC_FAIL(DSC_E_FORMAT,
                        "%s: '%s' has %lld bytes, which is not a whole number of %lld-byte records: unpack "
                        "%s again",
                        layout->name, path, (long long)size, (long long)record, layout->archive);
    *records = size / record;
    int64_t published = split == DSC_SPLIT_TRAIN ? layout->train_records : layout->val_records;
    if (*records != published)
        dsc_log(DSC_LOG_WARNING, "%s: '%s' has %lld images, the published file %lld", layout->name, path,
                (long long)*records, (long long)published);
    return DSC_OK;
}

/* Checks the labels, and turns planes into pixels. */
static dsc_status unpack(const cifar_layout *layout, const char *path, const uint8_t *records, int64_t count,
                         int64_t first, dsc_pixels *pixels) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *record = records + i * record_size(layout);
        int label = record[layout->label_bytes - 1];
        if (label >= layout->classes)
            return DSC_FAIL(DSC_E_FORMAT, "%s: '%s' image %lld has label %d, the largest is %lld",
                            layout->name, path, (long long)i, label, (long long)layout->classes - 1);
        pixels->labels[first + i] = label;
        const uint8_t *planes = record + layout->label_bytes;
        uint8_t *image = pixels->data + (first + i) * CHANNELS * PLANE;
        for (int p = 0; p < PLANE; p++)
            for (int c = 0; c < CHANNELS; c++)
                image[p * CHANNELS + c] = planes[c * PLANE + p];
    }
    return DSC_OK;
}

static dsc_status read_file(const cifar_layout *layout, const char *path, int64_t count, int64_t first,
                            dsc_pixels *pixels) {
    uint8_t *records;
    dsc_status status;
    DSC_TRY(dsc_memory_alloc(count, (size_t)record_size(layout), &records));
    DSC_TRY_GOTO(status, dsc_file_read(path, count * record_size(layout), records), done);
    DSC_TRY_GOTO(status, unpack(layout, path, records, count, first, pixels), done);
done:
    dsc_memory_free(&records);
    return status;
}

static dsc_status open_set(void *context, const char *folder, dsc_split split,
                           const dsc_data_options *options, dsc_dataset **out) {
    const cifar_layout *layout = context;
    const char *const *files = split == DSC_SPLIT_TRAIN ? layout->train : layout->val;
    char *paths[MAX_FILES] = {NULL};
    int64_t counts[MAX_FILES], total = 0;
    dsc_pixels *pixels = NULL;
    dsc_status status = DSC_OK;
    for (int i = 0; files[i]; i++) {
        DSC_TRY_GOTO(status, file_path(layout, folder, files[i], &paths[i]), done);
        DSC_TRY_GOTO(status, count_records(layout, split, folder, paths[i], &counts[i]), done);
        total += counts[i];
    }
    DSC_TRY_GOTO(status, dsc_pixels_create(total, SIDE, SIDE, CHANNELS, &pixels), done);
    total = 0;
    for (int i = 0; files[i]; i++) {
        DSC_TRY_GOTO(status, read_file(layout, paths[i], counts[i], total, pixels), done);
        total += counts[i];
    }
    pixels->pad = 4;
    pixels->flip = 1;
    dsc_normalise_init(&pixels->normalise, CHANNELS, layout->mean, layout->std);
    DSC_TRY_GOTO(status, dsc_pixels_dataset(&pixels, layout->name, split, layout->classes, options, out),
                 done);
    (*out)->class_names = layout->class_names;
done:
    for (int i = 0; i < MAX_FILES; i++)
        dsc_memory_free(&paths[i]);
    dsc_pixels_destroy(&pixels);
    return status;
}

const dsc_dataset_kind dsc_kind_cifar10 = {
    sizeof(dsc_dataset_kind), "cifar10", "cifar10:DIR", 1, (void *)&cifar10, open_set, 0};
const dsc_dataset_kind dsc_kind_cifar100 = {
    sizeof(dsc_dataset_kind), "cifar100", "cifar100:DIR", 1, (void *)&cifar100, open_set, 0};

/* IDX files: MNIST, Fashion-MNIST, EMNIST and whatever else comes as four such files, raw or gzipped.
 *
 * A file is a magic number (0, 0, type, dimensions), the dimensions as big-endian 32-bit numbers, the
 * elements. Images are bytes in three dimensions (count, rows, columns) or in four, with at most 4 channels in
 * the last or in the second place; labels are bytes in one. The number of classes is the largest training
 * label + 1. Every channel is normalised by the mean and the standard deviation of all training pixels, computed
 * when the set is opened (so the validation split reads the training files, too). There is no augmentation: a
 * mirrored digit is another character.
 *
 * The argument is a folder; or FOLDER/NAME, where the names of the files start with NAME- as those of EMNIST
 * do. If a folder contains one such set, NAME is found automatically. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

enum {
    MAX_DIMS = 4,
    MAX_SIDE = 4096,
    MAX_CHANNELS = 4,
    MAX_NAME = 256,
    PIECE = 1 << 20,
    UNSIGNED_BYTES = 0x08
};

/* Which four files: their folder, and what their names start with: "" or "emnist-letters-". */
typedef struct idx_set {
    const char *argument;
    char *folder;
    char prefix[MAX_NAME];
} idx_set;

/* One file's contents. */
typedef struct idx_array {
    int ndim;
    int64_t dim[MAX_DIMS];
    uint8_t *data;
} idx_array;

/* The endings of image and label files; the first is MNIST's. */
static const char *const image_endings[] = {"images-idx3-ubyte", "images.idx3-ubyte", "images-idx4-ubyte",
                                            "images.idx4-ubyte", NULL};
static const char *const label_endings[] = {"labels-idx1-ubyte", "labels.idx1-ubyte", NULL};
/* The names of the splits in the file names. */
static const char *const train_names[] = {"train", NULL};
static const char *const val_names[] = {"t10k", "test", NULL};

/* The path of the file with one of the names, one of the endings and with or without .gz that is there; *out
 * NULL: none is. */
static dsc_status find_any(const idx_set *set, const char *const *names, const char *const *endings,
                           char **out) {
    static const char *const suffixes[] = {"", ".gz"};
    *out = NULL;
    for (int n = 0; names[n]; n++)
        for (int e = 0; endings[e]; e++)
            for (int z = 0; z < 2; z++) {
                char file[MAX_NAME + 64];
                int64_t size = 0;
                char *path;
                snprintf(file, sizeof file, "%s%s-%s%s", set->prefix, names[n], endings[e], suffixes[z]);
                DSC_TRY(dsc_path_join(set->folder, file, &path));
                dsc_status status = dsc_file_size(path, &size);
                if (status == DSC_OK) {
                    *out = path;
                    return DSC_OK;
                }
                dsc_memory_free(&path);
                if (status != DSC_E_NOT_FOUND)
                    return dsc_error_prefix(status, "mnist");
            }
    return DSC_OK;
}

static dsc_status find_file(const idx_set *set, const char *const *names, const char *const *endings,
                            char **out) {
    DSC_TRY(find_any(set, names, endings, out));
    if (*out)
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_NOT_FOUND,
        "mnist: '%s/%s%s-%s' is missing, with and without .gz: put the four files of an IDX set there, "
        "for instance Fashion-MNIST's (train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
        "t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz) from "
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        set->folder, set->prefix, names[0], endings[0]);
}

/* ---- names like EMNIST's ---- */

/* The length of NAME- when the file is called NAME-train-images-..., else 0. */
static size_t prefix_length(const char *file) {
    const char *rest = strstr(file, "-train-images");
    return rest ? (size_t)(rest - file) + 1 : 0;
}

/* Finds the prefix of the only set in the folder; fails when there are several. None: it stays "". */
static dsc_status find_prefix(idx_set *set) {
    char several[512] = "";
    DIR *directory = opendir(set->folder);
    if (!directory)
        return DSC_OK; /* the missing file is reported */
    for (const struct dirent *entry; (entry = readdir(directory));) {
        size_t length = prefix_length(entry->d_name), used = strlen(several);
        if (length == 0 || length >= sizeof set->prefix ||
            (strlen(set->prefix) == length && strncmp(set->prefix, entry->d_name, length) == 0))
            continue;
        if (set->prefix[0])
            snprintf(several + used, sizeof several - used, ", %.*s", (int)length - 1, entry->d_name);
        else
            snprintf(set->prefix, sizeof set->prefix, "%.*s", (int)length, entry->d_name);
    }
    closedir(directory);
    if (!several[0])
        return DSC_OK;
    set->prefix[strlen(set->prefix) - 1] = '\0';
    return DSC_FAIL(DSC_E_INVALID, "mnist: '%s' holds several sets (%s%s): name one, as in 'mnist:%s/%s'",
                    set->folder, set->prefix, several, set->folder, set->prefix);
}

/* Fills in folder and prefix, which dsc_memory_free of the folder frees. */
static dsc_status find_set(const char *argument, idx_set *set) {
    char *images = NULL;
    *set = (idx_set){.argument = argument};
    DSC_TRY(dsc_memory_strdup(argument, &set->folder));
    char *slash = strrchr(set->folder, '/');
    if (!dsc_file_is_directory(argument) && slash && slash > set->folder && slash[1] &&
        strlen(slash + 1) < MAX_NAME - 2) {
        *slash = '\0';
        if (dsc_file_is_directory(set->folder)) {
            snprintf(set->prefix, sizeof set->prefix, "%s-", slash + 1);
            return DSC_OK;
        }
        *slash = '/';
    }
    DSC_TRY(find_any(set, train_names, image_endings, &images));
    if (!images)
        return find_prefix(set);
    dsc_memory_free(&images);
    return DSC_OK;
}

/* ---- one file ---- */

/* Reads exactly `size` bytes of the (unpacked) file; *got is how many there were. */
static dsc_status read_bytes(gzFile file, const char *path, unsigned size, uint8_t *data, unsigned *got) {
    *got = 0;
    while (*got < size) {
        int n = gzread(file, data + *got, size - *got);
        if (n < 0) {
            int code;
            return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' cannot be unpacked: %s", path, gzerror(file, &code));
        }
        if (n == 0)
            return DSC_OK;
        *got += (unsigned)n;
    }
    return DSC_OK;
}

/* Fails unless the number of dimensions is between `least` and `most`. */
static dsc_status read_header(gzFile file, const char *path, int least, int most, idx_array *array) {
    uint8_t head[4 + 4 * MAX_DIMS] = {0};
    unsigned got, more = 0;
    DSC_TRY(read_bytes(file, path, 4, head, &got));
    const int ndim = head[3] >= least && head[3] <= most ? head[3] : least;
    const unsigned wanted = 4 + 4 * (unsigned)ndim;
    if (got == 4)
        DSC_TRY(read_bytes(file, path, wanted - 4, head + 4, &more));
    if (got + more < wanted)
        return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' ends after %u bytes, inside its header", path, got + more);
    if (head[0] || head[1] || head[2] != UNSIGNED_BYTES || head[3] != ndim)
        return DSC_FAIL(DSC_E_FORMAT,
                        "mnist: '%s' starts %02x %02x %02x %02x; bytes in %d dimensions start "
                        "00 00 08 %02x",
                        path, head[0], head[1], head[2], head[3], ndim, ndim);
    array->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        const uint8_t *b = head + 4 + 4 * i;
        array->dim[i] = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | b[3];
        if (array->dim[i] < 1 || (i > 0 && array->dim[i] > MAX_SIDE))
            return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has dimension %lld in place %d: must be 1 to %lld",
                            path, (long long)array->dim[i], i,
                            i ? (long long)MAX_SIDE : (long long)UINT32_MAX);
    }
    if (ndim == 4 && array->dim[3] > MAX_CHANNELS && array->dim[1] > MAX_CHANNELS)
        return DSC_FAIL(DSC_E_FORMAT,
                        "mnist: '%s' has images of %lld x %lld x %lld: the last of four dimensions, or the "
                        "second, must be at most %d channels",
                        path, (long long)array->dim[1], (long long)array->dim[2], (long long)array->dim[3],
                        MAX_CHANNELS);
    return DSC_OK;
}

/* Reads the elements. Memory grows with the data that arrive, so that a header cannot claim it all at
 * once. */
static dsc_status read_elements(gzFile file, const char *path, int64_t size, uint8_t **out) {
    uint8_t *data = NULL;
    int64_t capacity = 0, have = 0;
    unsigned got = 1;
    dsc_status status = DSC_OK;
    while (have < size && got > 0) {
        int64_t piece = size - have < PIECE ? size - have : PIECE;
        DSC_TRY_GOTO(status, dsc_memory_grow(&data, &capacity, have + piece, 1), fail);
        DSC_TRY_GOTO(status, read_bytes(file, path, (unsigned)piece, data + have, &got), fail);
        have += got;
    }
    uint8_t more;
    unsigned extra = 0;
    if (have == size)
        DSC_TRY_GOTO(status, read_bytes(file, path, 1, &more, &extra), fail);
    if (have < size || extra) {
        status = DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has %s than the %lld bytes its header announces", path,
                          extra ? "more" : "fewer", (long long)size);
        goto fail;
    }
    *out = data;
    return DSC_OK;
fail:
    dsc_memory_free(&data);
    return status;
}

static dsc_status read_array(const char *path, int least, int most, idx_array *array) {
    gzFile file = gzopen(path, "rb");
    dsc_status status;
    if (!file)
        return DSC_FAIL(DSC_E_IO, "mnist: cannot read '%s'", path);
    gzbuffer(file, 1 << 17);
    DSC_TRY_GOTO(status, read_header(file, path, least, most, array), done);
    int64_t size = array->dim[0];
    for (int i = 1; i < array->ndim; i++)
        size *= array->dim[i];
    DSC_TRY_GOTO(status, read_elements(file, path, size, &array->data), done);
done:
    gzclose_r(file);
    return status;
}

/* ---- a pair of files ---- */

/* Converts images from [c, h, w] to [h, w, c] in place, one by one through `image`. */
static void interleave(uint8_t *data, int64_t count, const int64_t chw[3], uint8_t *image) {
    const int64_t c = chw[0], area = chw[1] * chw[2];
    for (int64_t i = 0; i < count; i++, data += c * area) {
        for (int64_t p = 0; p < area; p++)
            for (int64_t k = 0; k < c; k++)
                image[p * c + k] = data[k * area + p];
        memcpy(data, image, (size_t)(c * area));
    }
}

/* Takes the data of `images`; the labels are still missing. */
static dsc_status take_images(idx_array *images, dsc_pixels **out) {
    const int64_t *dim = images->dim;
    const int last = images->ndim == 3 || dim[3] <= MAX_CHANNELS; /* channels are in the last place */
    uint8_t *image = NULL;
    DSC_TRY(dsc_memory_alloc(1, sizeof **out, out));
    **out = (dsc_pixels){.count = dim[0],
                         .h = last ? dim[1] : dim[2],
                         .w = last ? dim[2] : dim[3],
                         .c = images->ndim == 3 ? 1
                              : last            ? dim[3]
                                                : dim[1],
                         .data = images->data};
    images->data = NULL;
    if (last)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(dim[1] * dim[2] * dim[3], 1, &image));
    interleave((*out)->data, dim[0], dim + 1, image);
    dsc_memory_free(&image);
    return DSC_OK;
}

/* Images and labels of one split. labels_path: for messages, the caller frees it. */
static dsc_status read_pair(const idx_set *set, const char *const *names, char **labels_path,
                            dsc_pixels **out) {
    idx_array images = {0, {0}, NULL}, labels = {0, {0}, NULL};
    dsc_pixels *pixels = NULL;
    char *path = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, find_file(set, names, image_endings, &path), done);
    DSC_TRY_GOTO(status, read_array(path, 3, 4, &images), done);
    DSC_TRY_GOTO(status, find_file(set, names, label_endings, labels_path), done);
    DSC_TRY_GOTO(status, read_array(*labels_path, 1, 1, &labels), done);
    if (images.dim[0] != labels.dim[0]) {
        status = DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has %lld %s images, but %lld labels", set->argument,
                          (long long)images.dim[0], names[0], (long long)labels.dim[0]);
        goto done;
    }
    DSC_TRY_GOTO(status, take_images(&images, &pixels), done);
    DSC_TRY_GOTO(status, dsc_memory_alloc(pixels->count, sizeof *pixels->labels, &pixels->labels), done);
    for (int64_t i = 0; i < pixels->count; i++)
        pixels->labels[i] = labels.data[i];
    *out = pixels;
    pixels = NULL;
done:
    dsc_pixels_destroy(&pixels);
    dsc_memory_free(&path);
    dsc_memory_free(&images.data);
    dsc_memory_free(&labels.data);
    return status;
}

static int largest_label(const dsc_pixels *pixels) {
    int largest = 0;
    for (int64_t i = 0; i < pixels->count; i++)
        largest = pixels->labels[i] > largest ? pixels->labels[i] : largest;
    return largest;
}

/* Exact sums in integers, so that the same files give the same bits everywhere. Constant images get std 1. */
static void statistics(const dsc_pixels *pixels, double *mean, double *std) {
    const int64_t n = pixels->count * pixels->h * pixels->w;
    for (int64_t c = 0; c < pixels->c; c++) {
        uint64_t sum = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) {
            uint64_t value = pixels->data[i * pixels->c + c];
            sum += value;
            squares += value * value;
        }
        double m = (double)sum / (double)n;
        double variance = (double)squares / (double)n - m * m;
        mean[c] = m / 255;
        std[c] = variance > 0 ? sqrt(variance) / 255 : 1;
    }
}

static dsc_status check_against_training(const idx_set *set, const dsc_pixels *train, int64_t classes,
                                         const char *labels_path, const dsc_pixels *val) {
    if (val->h != train->h || val->w != train->w)
        return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has training images of %lld x %lld, others of %lld x %lld",
                        set->argument, (long long)train->h, (long long)train->w, (long long)val->h,
                        (long long)val->w);
    if (val->c != train->c)
        return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has training images of %lld channels, others of %lld",
                        set->argument, (long long)train->c, (long long)val->c);
    if (largest_label(val) >= classes)
        return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has label %d, the largest of the training labels is %lld",
                        labels_path, largest_label(val), (long long)classes - 1);
    return DSC_OK;
}

static dsc_status open_set(void *context, const char *argument, dsc_split split,
                           const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    idx_set set = {0};
    dsc_pixels *train = NULL, *val = NULL;
    char *train_labels = NULL, *val_labels = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, find_set(argument, &set), done);
    DSC_TRY_GOTO(status, read_pair(&set, train_names, &train_labels, &train), done);
    double mean[MAX_CHANNELS], std[MAX_CHANNELS];
    statistics(train, mean, std);
    int64_t classes = largest_label(train) + 1 > 2 ? largest_label(train) + 1 : 2;
    if (split == DSC_SPLIT_VAL) {
        DSC_TRY_GOTO(status, read_pair(&set, val_names, &val_labels, &val), done);
        DSC_TRY_GOTO(status, check_against_training(&set, train, classes, val_labels, val), done);
    }
    dsc_pixels **wanted = split == DSC_SPLIT_VAL ? &val : &train;
    dsc_normalise_init(&(*wanted)->normalise, (int)(*wanted)->c, mean, std);
    DSC_TRY_GOTO(status, dsc_pixels_dataset(wanted, dsc_kind_idx.name, split, classes, options, out), done);
done:
    dsc_pixels_destroy(&train);
    dsc_pixels_destroy(&val);
    dsc_memory_free(&train_labels);
    dsc_memory_free(&val_labels);
    dsc_memory_free(&set.folder);
    return status;
}

const dsc_dataset_kind dsc_kind_idx = {
    sizeof(dsc_dataset_kind), "mnist", "mnist:DIR[/NAME]", 1, NULL, open_set, 0};

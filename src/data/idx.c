/* IDX files: MNIST, Fashion-MNIST and whatever else comes as four such files, raw or gzipped.
 *
 * A file is a magic number (0, 0, type, dimensions), the dimensions as big-endian 32-bit numbers, the
 * elements. Images are bytes in three dimensions (count, rows, columns), labels bytes in one. The number of
 * classes is the largest training label + 1. Pixels are normalised by the mean and the standard deviation of
 * all training pixels, computed when the set is opened (so the validation split reads the training files,
 * too). There is no augmentation: a mirrored digit is another character. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"

#include <math.h>
#include <stdio.h>
#include <zlib.h>

enum { MAX_DIMS = 3, MAX_SIDE = 4096, PIECE = 1 << 20, UNSIGNED_BYTES = 0x08 };

/* One file's contents. */
typedef struct idx_array {
    int64_t dim[MAX_DIMS];
    uint8_t *data;
} idx_array;

/* The path of FOLDER/NAME or FOLDER/NAME.gz, whichever is there. */
static dsc_status find_file(const char *folder, const char *name, char **out) {
    static const char *const suffixes[] = {"", ".gz"};
    for (int i = 0; i < 2; i++) {
        char file[64];
        int64_t size = 0;
        char *path;
        snprintf(file, sizeof file, "%s%s", name, suffixes[i]);
        DSC_TRY(dsc_path_join(folder, file, &path));
        dsc_status status = dsc_file_size(path, &size);
        if (status == DSC_OK) {
            *out = path;
            return DSC_OK;
        }
        dsc_memory_free(&path);
        if (status != DSC_E_NOT_FOUND)
            return dsc_error_prefix(status, "mnist");
    }
    return DSC_FAIL(
        DSC_E_NOT_FOUND,
        "mnist: '%s/%s' is missing, with and without .gz: put the four files of an IDX set there, "
        "for instance Fashion-MNIST's (train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
        "t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz) from "
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        folder, name);
}

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

static dsc_status read_header(gzFile file, const char *path, int ndim, int64_t dim[MAX_DIMS]) {
    uint8_t head[4 + 4 * MAX_DIMS] = {0};
    unsigned wanted = 4 + 4 * (unsigned)ndim, got;
    DSC_TRY(read_bytes(file, path, wanted, head, &got));
    if (got < wanted)
        return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' ends after %u bytes, inside its header", path, got);
    if (head[0] || head[1] || head[2] != UNSIGNED_BYTES || head[3] != ndim)
        return DSC_FAIL(DSC_E_FORMAT,
                        "mnist: '%s' starts %02x %02x %02x %02x; bytes in %d dimensions start "
                        "00 00 08 %02x",
                        path, head[0], head[1], head[2], head[3], ndim, ndim);
    for (int i = 0; i < ndim; i++) {
        const uint8_t *b = head + 4 + 4 * i;
        dim[i] = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | b[3];
        if (dim[i] < 1 || (i > 0 && dim[i] > MAX_SIDE))
            return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has dimension %lld in place %d: must be 1 to %lld",
                            path, (long long)dim[i], i, i ? (long long)MAX_SIDE : (long long)UINT32_MAX);
    }
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

static dsc_status read_array(const char *folder, const char *name, int ndim, idx_array *array) {
    char *path = NULL;
    DSC_TRY(find_file(folder, name, &path));
    gzFile file = gzopen(path, "rb");
    dsc_status status;
    if (!file) {
        status = DSC_FAIL(DSC_E_IO, "mnist: cannot read '%s'", path);
        goto done;
    }
    gzbuffer(file, 1 << 17);
    DSC_TRY_GOTO(status, read_header(file, path, ndim, array->dim), done);
    int64_t size = array->dim[0];
    for (int i = 1; i < ndim; i++)
        size *= array->dim[i];
    DSC_TRY_GOTO(status, read_elements(file, path, size, &array->data), done);
done:
    if (file)
        gzclose_r(file);
    dsc_memory_free(&path);
    return status;
}

/* Images and labels of one split ("train" or "t10k"). */
static dsc_status read_pair(const char *folder, const char *split, dsc_pixels **out) {
    idx_array images = {{0}, NULL}, labels = {{0}, NULL};
    dsc_pixels *pixels = NULL;
    dsc_status status;
    char name[32];
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", split);
    DSC_TRY_GOTO(status, read_array(folder, name, 3, &images), done);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", split);
    DSC_TRY_GOTO(status, read_array(folder, name, 1, &labels), done);
    if (images.dim[0] != labels.dim[0]) {
        status = DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has %lld %s images, but %lld labels", folder,
                          (long long)images.dim[0], split, (long long)labels.dim[0]);
        goto done;
    }
    DSC_TRY_GOTO(status, dsc_memory_alloc(1, sizeof *pixels, &pixels), done);
    *pixels = (dsc_pixels){
        .count = images.dim[0], .h = images.dim[1], .w = images.dim[2], .c = 1, .data = images.data};
    images.data = NULL;
    DSC_TRY_GOTO(status, dsc_memory_alloc(pixels->count, sizeof *pixels->labels, &pixels->labels), done);
    for (int64_t i = 0; i < pixels->count; i++)
        pixels->labels[i] = labels.data[i];
    *out = pixels;
    pixels = NULL;
done:
    dsc_pixels_destroy(&pixels);
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
    int64_t n = pixels->count * pixels->h * pixels->w;
    uint64_t sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += pixels->data[i];
        squares += (uint64_t)pixels->data[i] * pixels->data[i];
    }
    double m = (double)sum / (double)n;
    double variance = (double)squares / (double)n - m * m;
    *mean = m / 255;
    *std = variance > 0 ? sqrt(variance) / 255 : 1;
}

static dsc_status check_against_training(const char *folder, const dsc_pixels *train, int64_t classes,
                                         const dsc_pixels *val) {
    if (val->h != train->h || val->w != train->w)
        return DSC_FAIL(DSC_E_FORMAT, "mnist: '%s' has training images of %lld x %lld, others of %lld x %lld",
                        folder, (long long)train->h, (long long)train->w, (long long)val->h,
                        (long long)val->w);
    if (largest_label(val) >= classes)
        return DSC_FAIL(DSC_E_FORMAT,
                        "mnist: '%s/t10k-labels-idx1-ubyte' has label %d, the largest of the "
                        "training labels is %lld",
                        folder, largest_label(val), (long long)classes - 1);
    return DSC_OK;
}

static dsc_status open_set(void *context, const char *argument, dsc_split split,
                           const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    dsc_pixels *train = NULL, *val = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, read_pair(argument, "train", &train), done);
    double mean, std;
    statistics(train, &mean, &std);
    int64_t classes = largest_label(train) + 1 > 2 ? largest_label(train) + 1 : 2;
    if (split == DSC_SPLIT_VAL) {
        DSC_TRY_GOTO(status, read_pair(argument, "t10k", &val), done);
        DSC_TRY_GOTO(status, check_against_training(argument, train, classes, val), done);
    }
    dsc_pixels **wanted = split == DSC_SPLIT_VAL ? &val : &train;
    dsc_normalise_init(&(*wanted)->normalise, 1, &mean, &std);
    DSC_TRY_GOTO(status, dsc_pixels_dataset(wanted, dsc_kind_idx.name, split, classes, options, out), done);
done:
    dsc_pixels_destroy(&train);
    dsc_pixels_destroy(&val);
    return status;
}

const dsc_dataset_kind dsc_kind_idx = {sizeof(dsc_dataset_kind), "mnist", "mnist:DIR", 1, NULL, open_set};

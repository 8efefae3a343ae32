/* Internals of data sets: the functions that a type of data set implements, and what the types share. */
#ifndef DSC_DATA_DATASET_H
#define DSC_DATA_DATASET_H

#include "data/augment.h"
#include "data/files.h"
#include "descent/data.h"
#include "device/ops.h"

/* Buffers that a thread uses for one sample after the other and that grow as needed. Starts as {0}. */
typedef struct dsc_scratch {
    dsc_bytes file;     /* an encoded image */
    dsc_bytes image;    /* decoded: h * w * 3 bytes */
    dsc_bytes resample; /* weights and rows of the resampler */
} dsc_scratch;

void dsc_scratch_free(dsc_scratch *scratch);

/* A sample before its augmentation: h * w * c bytes, and the numbers that dsc_op_augment takes. */
typedef struct dsc_raw_sample {
    uint8_t *image;
    int32_t *place; /* [3] */
    int32_t *label; /* [label_count] */
} dsc_raw_sample;

/* How the samples of a data set are made. */
typedef struct dsc_dataset_type {
    void (*close)(dsc_dataset *dataset);
    /* x[h, w, c] and label[label_count] of a sample. */
    dsc_status (*sample)(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label);
    /* For devices that normalise and augment by themselves: the sample as bytes, and how to process them.
     * Both NULL for data sets that are not stored as bytes. */
    void (*raw)(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch, dsc_raw_sample *out);
    void (*raw_desc)(const dsc_dataset *dataset, dsc_augment_desc *desc);
    /* The label of a sample without reading it; NULL: only `sample` knows it. For sets with one label per sample. */
    int32_t (*label)(const dsc_dataset *dataset, int64_t index);
    /* The number of the file that holds a sample, which must not decrease from one sample to the next; NULL: each
     * sample is read on its own. */
    int64_t (*group)(const dsc_dataset *dataset, int64_t index);
    int reads_files; /* 1: a sample is read when it is requested, and may turn out to be broken */
} dsc_dataset_type;

struct dsc_dataset {
    const dsc_dataset_type *type;
    dsc_split split;
    dsc_data_options options;
    dsc_dataset_info info; /* its name is a copy */
    int64_t label_count;   /* labels of a sample: 1, or one for each of its positions */
    void *state;           /* the type's own */
    char passed_over[384]; /* which files were not taken for samples, and why; "" for none */
    /* The names of the classes, which belong to `state` or to the program; NULL: they have none. */
    const char *const *class_names;
    /* How bytes become numbers, by channel; std 0: the samples are not made of bytes. */
    double mean[DSC_PIXEL_CHANNELS], std[DSC_PIXEL_CHANNELS];
    /* The shorter side of an image in pixels before the middle is cut out; 0: images have the size of a sample. */
    int64_t resize;
    /* 1: samples are whole numbers, such as tokens, which a 16-bit floating-point type would round. */
    int whole_numbers;
    /* For sequences of tokens: their tokenizer, which belongs to `state` (NULL: unknown), and how many bytes of text a
     * token stands for on average (0: unknown). */
    const struct dsc_tokenizer *tokenizer;
    double bytes_per_token;
    /* The expected share of labels that are not -1; 0: all have a label. */
    double labelled;
    /* The share of tokens that are to be predicted in masked language modelling; 0: no tokens are masked. */
    double mask;
    /* Images that the samples are tiles of (masks, validation); 0: samples are no tiles. */
    int64_t pictures;
};

/* A data set without samples yet: `info` and `state` are for the caller to fill in. */
dsc_status dsc_dataset_create(const dsc_dataset_type *type, const char *name, dsc_split split,
                              const dsc_data_options *options, dsc_dataset **out) DSC_MUST_CHECK;

/* The part of *base, a training split, that options->val_split assigns to `split`. On success it owns the base,
 * and *base becomes NULL. */
dsc_status dsc_subset_open(dsc_dataset **base, dsc_split split, const dsc_data_options *options,
                           dsc_dataset **out) DSC_MUST_CHECK;

/* Notes the mean and standard deviation of info.c channels; at most DSC_PIXEL_CHANNELS. */
void dsc_dataset_note_normalisation(dsc_dataset *dataset, const double *mean, const double *std);

/* The built-in kinds of data sets, which dsc_dataset_open knows without registration. */
extern const dsc_dataset_kind dsc_kind_synthetic, dsc_kind_cifar10, dsc_kind_cifar100, dsc_kind_idx,
    dsc_kind_imagefolder, dsc_kind_webdataset, dsc_kind_tokens, dsc_kind_text, dsc_kind_masks;

/* dsc_dataset_sample with the caller's buffers. */
dsc_status dsc_dataset_sample_with(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                                   dsc_scratch *scratch, float *x, int32_t *label) DSC_MUST_CHECK;

/* label[count] of all samples, for sets with one label per sample; others are refused (DSC_E_INVALID). Sets that do
 * not know their labels have to make each sample. */
dsc_status dsc_dataset_read_labels(const dsc_dataset *base, int32_t *label) DSC_MUST_CHECK;

/* Images held in memory as bytes: the state of every set of small images. */
typedef struct dsc_pixels {
    int64_t count, h, w, c;
    int64_t pad;     /* augmentation: border of zeros before a random crop ... */
    int flip;        /* ... and whether half of the images are mirrored; 0 and 0: none */
    int borrowed;    /* data and labels belong to somebody else */
    uint8_t *data;   /* [count, h, w, c] */
    int32_t *labels; /* [count, label_count] */
    dsc_normalise normalise;
} dsc_pixels;

/* Allocates space for `count` images, zeroed. */
dsc_status dsc_pixels_create(int64_t count, int64_t h, int64_t w, int64_t c, dsc_pixels **out) DSC_MUST_CHECK;
void dsc_pixels_destroy(dsc_pixels **pixels);
/* A data set around *pixels. On success it owns the pixels, and *pixels becomes NULL. */
dsc_status dsc_pixels_dataset(dsc_pixels **pixels, const char *name, dsc_split split, int64_t classes,
                              const dsc_data_options *options, dsc_dataset **out) DSC_MUST_CHECK;
/* For types that draw their images: where the crop of a sample lies, and the numbers that normalise it. */
void dsc_pixels_place(const dsc_dataset *dataset, const dsc_pixels *pixels, dsc_sample_key key,
                      int32_t place[3]);
void dsc_pixels_desc(const dsc_pixels *pixels, dsc_augment_desc *desc);
/* Image `image` of the set's shape, augmented for sample (index, epoch) if asked to, as floats. */
void dsc_pixels_present(const dsc_dataset *dataset, const dsc_pixels *pixels, const uint8_t *image,
                        dsc_sample_key key, float *x);

/* Draws image `index` of the built-in set: 32 x 32 x 3 bytes; returns its class. */
int dsc_synthetic_draw(uint64_t seed, dsc_split split, int64_t index, uint8_t *pixels);

#endif

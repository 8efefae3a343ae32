/* Data sets, and loaders that turn them into batches.
 *
 * A sample is a pure function of (data set, index, seed, epoch), whatever the number of ranks and threads. */
#ifndef DSC_DATA_H
#define DSC_DATA_H

#include "descent/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_dataset dsc_dataset;
typedef struct dsc_loader dsc_loader;

typedef enum dsc_split { DSC_SPLIT_TRAIN, DSC_SPLIT_VAL } dsc_split;

typedef struct dsc_data_options {
    size_t size;
    uint64_t seed;      /* of drawn images (synthetic) and of augmentation, default 42 */
    int64_t image_size; /* imagefolder: side of the crop; 0: 224 */
} dsc_data_options;

typedef struct dsc_dataset_info {
    int64_t count, h, w, c, classes;
    const char *name; /* lent */
} dsc_dataset_info;

DSC_API void dsc_data_options_init(dsc_data_options *options);
/* spec: "synthetic", "synthetic:N" (N training samples), "cifar10:DIR", "cifar100:DIR", "mnist:DIR" (any IDX
 * set, raw or .gz), "imagefolder:DIR" (DIR/train/CLASS/FILE, DIR/val/CLASS/FILE). DSC_E_NOT_FOUND says what
 * to download and where to put it; DSC_E_FORMAT names file and offending value. */
DSC_API dsc_status dsc_dataset_open(const char *spec, dsc_split split, const dsc_data_options *options,
                                    dsc_dataset **out) DSC_MUST_CHECK;
DSC_API void dsc_dataset_close(dsc_dataset **dataset);
DSC_API dsc_dataset_info dsc_dataset_get_info(const dsc_dataset *dataset);
/* Sample `index` as h*w*c normalised floats, and its label. augment 0: as for evaluation. Thread-safe. */
DSC_API dsc_status dsc_dataset_sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                                      float *x, int32_t *label) DSC_MUST_CHECK;

typedef struct dsc_loader_options {
    size_t size;
    int64_t batch;   /* samples per rank and batch */
    int rank, ranks; /* default 0 of 1 */
    int threads;     /* that prepare batches ahead; default 1, at least 1 */
    int depth;       /* batches prepared ahead; default 3 */
    uint64_t seed;   /* of the permutation, default 42 */
    int shuffle;     /* 1 (default): a seeded permutation per epoch; 0: in order */
    int augment;     /* 1 (default) */
    int keep_last;   /* 1: the incomplete last global batch is given, missing rows have label -1; 0 (default):
                        dropped */
    dsc_dtype dtype; /* of x: fp32 (default); on a GPU also a half type */
} dsc_loader_options;

/* One rank's part of a global batch; lent until the next dsc_loader_next. */
typedef struct dsc_batch {
    dsc_tensor x;      /* [batch, h, w, c] */
    dsc_tensor labels; /* I32 [batch] */
    int64_t epoch;
    int64_t position; /* global samples of this epoch before this batch */
} dsc_batch;

DSC_API void dsc_loader_options_init(dsc_loader_options *options);
/* Batches in memory of `device`; on a GPU x and labels lie at the same place for every batch. With p ranks of
 * batch b, batch t of an epoch is samples [t p b, (t + 1) p b) of its permutation, rank r the r-th b of them.
 * Epoch follows epoch without end. The data set must outlive the loader. Not collective. DSC_E_INVALID when
 * an epoch has no whole global batch (keep_last 0). */
DSC_API dsc_status dsc_loader_create(const dsc_dataset *dataset, dsc_device *device,
                                     const dsc_loader_options *options, dsc_loader **out) DSC_MUST_CHECK;
DSC_API void dsc_loader_destroy(dsc_loader **loader);
/* Batches per epoch at this number of ranks. */
DSC_API int64_t dsc_loader_batches(const dsc_loader *loader);
/* Goes to (epoch, position): the next batch starts with that sample of that epoch's permutation; when fewer
 * than a global batch are left there (and the last is dropped), with the next epoch. */
DSC_API dsc_status dsc_loader_seek(dsc_loader *loader, int64_t epoch, int64_t position) DSC_MUST_CHECK;
/* The next batch, for what is put into `queue` from now on; blocks until it is ready, but not until it has
 * been copied to the device. Reports what failed in a preparing thread. */
DSC_API dsc_status dsc_loader_next(dsc_loader *loader, dsc_queue *queue, dsc_batch *batch) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

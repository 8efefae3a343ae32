/* Using a model: predicting the classes of image files, or of their pixels. */
#ifndef DSC_PREDICT_H
#define DSC_PREDICT_H

#include "descent/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A number or NULL by itself in a comment is the default. */
typedef struct dsc_predict_options {
    size_t size;
    const char *checkpoint; /* a model file, or DIR[:best|:latest|:STEP] (dsc_checkpoint_read_info) */
    const char *model;      /* the name of the model; NULL: as the checkpoint says */
    int64_t image_size;     /* 0: as the checkpoint says, or else what the model is made for */
    int64_t batch_size;     /* per rank, 64 */
    int data_threads;       /* threads that read and decode, 1 */
    int64_t top;            /* the number of classes reported for each image, 5; not used with masks */
    const char *masks;      /* NULL; for a model that predicts every pixel, the folder that masks go to */
    int overwrite;          /* 0; 1: existing masks are replaced */
} dsc_predict_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_predict_options_init_sized(dsc_predict_options *options, size_t size);
#define dsc_predict_options_init(options) dsc_predict_options_init_sized((options), sizeof *(options))

/* The prediction for one image. Valid during the call only. Later versions may append members. */
typedef struct dsc_prediction {
    const char *file;
    const char *error; /* NULL, or why the image cannot be read; count is then 0 */
    int64_t count;     /* `top`, or the number of classes if that is less; with masks all, in their order */
    const int64_t *classes;
    const char *const *names;    /* of these classes; NULL: they have none */
    const double *probabilities; /* of these classes, in decreasing order; NULL with masks */
    const char *mask;            /* the mask file that was written; NULL: none */
    const double *shares;        /* with a mask, the fraction of the pixels that each of these classes has */
} dsc_prediction;

/* Receives the prediction for one image. */
typedef void (*dsc_prediction_function)(void *context, const dsc_prediction *prediction);

/* The caller sets `size` to sizeof(dsc_predict_result). */
typedef struct dsc_predict_result {
    size_t size;
    int64_t images;     /* images that were read, on all ranks */
    int64_t bad_images; /* images that could not be read */
    double seconds;     /* for all images, without loading the model */
} dsc_predict_result;

/* Predicts the classes of images, all ranks together. paths[count] are files, and folders, whose images are taken in
 * the order of their names, including those in subfolders. The list of rank 0 is used; all ranks must be able to read
 * the files. `function` is called on rank 0 with `context`, once for each image, in the order of the list; it may be
 * NULL. An image that cannot be read is reported to it and skipped.
 *
 * Images are preprocessed as in the evaluation of the data that the model was trained on: the shorter side is scaled
 * to 256/224 of the model's size, or, for sets of small images (cifar, mnist, synthetic), to the size itself, and the
 * middle is cropped; then the image is normalised as the checkpoint says, or else with ImageNet's usual numbers.
 *
 * A model that predicts every pixel needs `masks`, and writes MASKS/NAME.png for an image NAME.*: 8-bit grey, of the
 * image's size. TIFF files are read as well: each page is an image, and the masks of several pages are
 * MASKS/NAME-001.png and so on, with as many digits as the last one needs. If the names of all classes are numbers from
 * 0 to 255, as with masks:DIR, these are the values in the mask, otherwise the class numbers are. Images are not
 * scaled, but cut into tiles of the model's size; the last tiles of a row or column overlap those before them, and in
 * the overlap the earlier tile counts. An image smaller than the model's size counts as one that cannot be read. Files
 * appear complete or not at all. DSC_E_INVALID if a mask exists and `overwrite` is 0, if it would replace its image, or
 * if two images would have the same mask; nothing is written then.
 *
 * DSC_E_NOT_FOUND if a path or the checkpoint does not exist; DSC_E_INVALID if there are no images. `result` may be
 * NULL. Collective; blocks. */
DSC_API dsc_status dsc_predict_run(dsc_comm *comm, dsc_device *device, const dsc_predict_options *options,
                                   const char *const *paths, int64_t count, dsc_prediction_function function,
                                   void *context, dsc_predict_result *result) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

/* Using a model: which classes the images in files, or their pixels, show. */
#ifndef DSC_PREDICT_H
#define DSC_PREDICT_H

#include "descent/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number or word by itself in a comment is the default. */
typedef struct dsc_predict_options {
    size_t size;
    const char *checkpoint; /* a model file, or DIR[:best|:latest|:STEP] (dsc_checkpoint_read_info) */
    const char *model;      /* NULL: as the checkpoint says */
    int64_t image_size;     /* 0: as the checkpoint says, or else what the model is made for */
    int64_t batch_size;     /* per rank, 64 */
    int data_threads;       /* that read and decode, 1 */
    int64_t top;            /* classes that are told of each image, 5; without masks */
    const char *masks;      /* NULL; folder for masks, for a model that predicts every pixel */
    int overwrite;          /* 0; 1: masks that are there already are replaced */
} dsc_predict_options;
/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_predict_options_init_sized(dsc_predict_options *options, size_t size);
#define dsc_predict_options_init(options) dsc_predict_options_init_sized((options), sizeof *(options))

/* What is told of one image. Valid during the call. Later versions may append members. */
typedef struct dsc_prediction {
    const char *file;
    const char *error; /* NULL, or why the image cannot be read; count is then 0 */
    int64_t count;     /* `top`, or as many classes as there are; with masks all, in their order */
    const int64_t *classes;
    const char *const *names;    /* of these classes; NULL: they have none */
    const double *probabilities; /* of these classes, falling; NULL with masks */
    const char *mask;            /* the file that was written; NULL: none */
    const double *shares;        /* with a mask, the part of the pixels that are of these classes */
} dsc_prediction;

typedef void (*dsc_prediction_function)(void *context, const dsc_prediction *prediction);

/* The caller sets `size` to sizeof(dsc_predict_result). */
typedef struct dsc_predict_result {
    size_t size;
    int64_t images;     /* that were read, on all ranks */
    int64_t bad_images; /* that could not be read */
    double seconds;     /* for all images, without loading the model */
} dsc_predict_result;

/* Predicts the classes of images, all ranks together. `paths` are files, and folders, whose images are taken in
 * the order of their names, with those of the folders in them. The list of rank 0 is used; all ranks must be
 * able to read the files. The function is called on rank 0, once for each image, in the order of the list. An
 * image that cannot be read is told of and passed over.
 *
 * Images are treated as in the evaluation of the data that the model was trained on: the shorter side is scaled
 * to 256/224 of the model's size and the middle is taken, or, for sets of small images (cifar, mnist, synthetic),
 * to the size itself; then normalised as the checkpoint says, or else by ImageNet's usual numbers.
 *
 * A model that predicts every pixel needs `masks`, and writes MASKS/NAME.png for an image NAME.*: 8-bit grey, of the
 * image's size. A TIFF is read, too: each of its pages is an image, and where there are several their masks are
 * MASKS/NAME-001.png and so on, with as many digits as the last one needs. Where the names of all classes are numbers from 0 to 255, as those of masks:DIR are, these are the values
 * in it, otherwise the numbers of the classes are. Images are not scaled, but cut into tiles of the model's size, of which
 * the last ones of a row or column overlap those before them; those before them count. An image that is smaller than the
 * model's size counts as one that cannot be read. Files appear whole or not at all. DSC_E_INVALID when a mask exists and
 * `overwrite` is 0, when it would replace its image, or when two images would have the same mask; nothing is written then.
 *
 * DSC_E_NOT_FOUND when a path or the checkpoint is not there; DSC_E_INVALID when there are no images. `result` may
 * be NULL. Collective; blocks. */
DSC_API dsc_status dsc_predict_run(dsc_comm *comm, dsc_device *device, const dsc_predict_options *options,
                                   const char *const *paths, int64_t count, dsc_prediction_function function,
                                   void *context, dsc_predict_result *result) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

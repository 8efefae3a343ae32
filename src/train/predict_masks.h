/* Prediction by a model that classifies pixels: it writes a mask for every image. */
#ifndef DSC_TRAIN_PREDICT_MASKS_H
#define DSC_TRAIN_PREDICT_MASKS_H

#include "data/augment.h"
#include "data/image_tiff.h"
#include "data/image_view.h"
#include "data/path_list.h"
#include "descent/model.h"
#include "descent/predict.h"

/* The inputs of a prediction of masks. Everything stays the caller's. */
typedef struct dsc_mask_job {
    dsc_comm *comm;
    dsc_queue *queue;
    dsc_model *model;          /* the same on all ranks */
    const dsc_path_list *list; /* the files, the same on all ranks */
    const int64_t *pages;      /* number of pages of each file; 0: not a TIFF */
    const char *folder;        /* where the masks are written */
    int overwrite;             /* 1: masks that are there already are replaced */
    int64_t batch;             /* tiles that are computed together, at most */
    int64_t margin;            /* pixels by which the model's output is smaller than its input on each side */
    dsc_normalise normalise;
    /* Rank 0: the names of all classes; NULL: they have none. If all names are numbers from 0 to 255, the masks contain
     * these values, otherwise the class indices. */
    const char *const *names;
    dsc_prediction_function function;
    void *context;
} dsc_mask_job;

/* 1 when a file of this name is an image or a TIFF with images. */
int dsc_mask_job_takes(const char *name);
#define DSC_MASK_JOB_ENDINGS DSC_IMAGE_ENDINGS ", " DSC_TIFF_ENDINGS
/* Counts the pages of TIFF files, as dsc_mask_job.pages has them; the caller frees *pages. */
dsc_status dsc_mask_job_count_pages(const dsc_path_list *list, int64_t **pages) DSC_MUST_CHECK;

/* Writes FOLDER/NAME.png for every image, FOLDER/NAME-001.png and so on for the pages of a TIFF, and reports on rank 0.
 * The images are distributed over the ranks. An image that cannot be read, or is smaller than the model's input, is
 * skipped. DSC_E_INVALID when a mask exists, would replace its image, or belongs to two images. Collective; blocks. */
dsc_status dsc_predict_masks(const dsc_mask_job *job, dsc_predict_result *result) DSC_MUST_CHECK;

#endif

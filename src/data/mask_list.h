/* Images with a mask each, for segmentation, read into memory. */
#ifndef DSC_DATA_MASK_LIST_H
#define DSC_DATA_MASK_LIST_H

#include "data/files.h"

typedef struct dsc_mask_item {
    char *name;       /* the file of the image, for messages */
    char *label_name; /* the file of the mask */
    int64_t page;     /* of both files, from 1 on; 0: they have no pages */
    int64_t h, w;
    int64_t c;      /* 1: a grey image, 3: colours */
    uint8_t *image; /* [h, w, c] */
    uint8_t *label; /* [h, w], the values of the mask */
} dsc_mask_item;

/* Starts as {0}. */
typedef struct dsc_mask_list {
    dsc_mask_item *items;
    int64_t count, capacity;
} dsc_mask_list;

/* Adds the images of a folder: FOLDER/image/NAME.png (or another image) with FOLDER/label/NAME.png, in the natural
 * order of their names; or the pages of image.tif and label.tif, or of train-volume.tif and train-labels.tif.
 * DSC_E_NOT_FOUND when there is none of these. */
dsc_status dsc_mask_list_read(const char *folder, dsc_mask_list *list) DSC_MUST_CHECK;
void dsc_mask_list_free(dsc_mask_list *list);

/* Compares names for sorting; consecutive digits count as one number, so that "2.png" comes before "10.png". */
int dsc_natural_order(const char *a, const char *b);

#endif

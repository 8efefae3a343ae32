/* What evaluation needs to know about masks:DIR: which part of which image a validation sample is. */
#ifndef DSC_DATA_MASKS_H
#define DSC_DATA_MASKS_H

#include "data/mask_view.h"
#include "descent/data.h"

/* A validation sample. */
typedef struct dsc_mask_tile {
    int64_t picture; /* the index of its image */
    const dsc_mask_item *item;
    dsc_mask_view view;     /* its labelled part */
    int64_t done_h, done_w; /* numbers of its first rows and columns that earlier tiles have already */
} dsc_mask_tile;

/* 1 when the data set is the validation split of masks:DIR, which the other functions require. */
int dsc_masks_has_tiles(const dsc_dataset *dataset);
dsc_mask_tile dsc_masks_tile(const dsc_dataset *dataset, int64_t index);
/* Image `picture`, which stays the data set's. */
const dsc_mask_item *dsc_masks_picture(const dsc_dataset *dataset, int64_t picture);
/* The class of a value of the masks. */
int32_t dsc_masks_class(const dsc_dataset *dataset, uint8_t value);

#endif

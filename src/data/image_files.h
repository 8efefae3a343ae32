/* Images in files of any place, without labels. */
#ifndef DSC_DATA_IMAGE_FILES_H
#define DSC_DATA_IMAGE_FILES_H

#include "data/image_view.h"

/* Paths, each ending with a zero byte. Starts as {0}. */
typedef struct dsc_path_list {
    char *text;
    int64_t used, capacity;
    int64_t count;
} dsc_path_list;

/* Adds a file, or the images in a folder and in the folders in it, sorted by name. DSC_E_NOT_FOUND when it is not
 * there. */
dsc_status dsc_path_list_add(dsc_path_list *list, const char *path) DSC_MUST_CHECK;
void dsc_path_list_free(dsc_path_list *list);

/* A data set of these images, all with label 0. It takes over the list, which becomes empty. */
dsc_status dsc_image_files_open(dsc_path_list *list, const dsc_image_form *form,
                                dsc_dataset **out) DSC_MUST_CHECK;
/* The path of an image of such a data set. */
const char *dsc_image_files_path(const dsc_dataset *dataset, int64_t index);

#endif

/* Images in any files, without labels. */
#ifndef DSC_DATA_IMAGE_FILES_H
#define DSC_DATA_IMAGE_FILES_H

#include "data/image_view.h"
#include "data/path_list.h"

/* Reads an encoded image into `file`. *out points to the memory of `file` and to `path`. */
dsc_status dsc_image_file_read(const char *path, dsc_bytes *file, dsc_encoded *out) DSC_MUST_CHECK;

/* A data set of these images, all with label 0. It takes over the list, which becomes empty. */
dsc_status dsc_image_files_open(dsc_path_list *list, const dsc_image_form *form,
                                dsc_dataset **out) DSC_MUST_CHECK;
/* The path of an image of such a data set. */
const char *dsc_image_files_path(const dsc_dataset *dataset, int64_t index);

#endif

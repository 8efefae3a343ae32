/* Lists of files: those that were named, and those in folders that were named. */
#ifndef DSC_DATA_PATH_LIST_H
#define DSC_DATA_PATH_LIST_H

#include "descent/status.h"

#include <stdint.h>

/* Paths, each ending with a zero byte. Starts as {0}. */
typedef struct dsc_path_list {
    char *text;
    int64_t used, capacity;
    int64_t count;
} dsc_path_list;

/* Adds a file, or the files in a folder and in the folders in it whose names `accepts` (NULL: all) accepts, sorted by
 * name, without hidden ones. `what` names such files in the message when a folder has none: "images (.png)".
 * DSC_E_NOT_FOUND when the path is not there. */
dsc_status dsc_path_list_add(dsc_path_list *list, const char *path, int (*accepts)(const char *name),
                             const char *what) DSC_MUST_CHECK;
void dsc_path_list_free(dsc_path_list *list);

#endif

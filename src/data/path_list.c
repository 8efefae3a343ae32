/* Lists of files. */
#include "data/path_list.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A folder, and the folders that it lies in. */
typedef struct place {
    dev_t device;
    ino_t number;
    const struct place *above;
} place;

void dsc_path_list_free(dsc_path_list *list) {
    dsc_memory_free(&list->text);
    *list = (dsc_path_list){0};
}

static dsc_status append(dsc_path_list *list, const char *path) {
    int64_t size = (int64_t)strlen(path) + 1;
    DSC_TRY(dsc_memory_grow(&list->text, &list->capacity, list->used + size, 1));
    memcpy(list->text + list->used, path, (size_t)size);
    list->used += size;
    list->count++;
    return DSC_OK;
}

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static dsc_status add_folder(dsc_path_list *list, const char *folder, int (*accepts)(const char *name),
                             const place *above);

/* Adds a name in a folder. Accepted names are not checked for being folders, which spares a system call each. */
static dsc_status add_name(dsc_path_list *list, const char *folder, const char *name,
                           int (*accepts)(const char *name), const place *at) {
    char *path;
    DSC_TRY(dsc_path_join(folder, name, &path));
    dsc_status status = DSC_OK;
    if (accepts && accepts(name))
        status = append(list, path);
    else if (dsc_file_is_directory(path))
        status = add_folder(list, path, accepts, at);
    else if (!accepts)
        status = append(list, path);
    dsc_memory_free(&path);
    return status;
}

/* Folders may be links, but not to one that they lie in: that would never end. */
static dsc_status add_folder(dsc_path_list *list, const char *folder, int (*accepts)(const char *name),
                             const place *above) {
    struct dirent **entries = NULL;
    struct stat info;
    dsc_status status = DSC_OK;
    if (stat(folder, &info) != 0)
        return DSC_FAIL(DSC_E_IO, "cannot list '%s': %s", folder, strerror(errno));
    const place at = {info.st_dev, info.st_ino, above};
    for (const place *p = above; p; p = p->above)
        if (p->device == at.device && p->number == at.number)
            return DSC_FAIL(DSC_E_INVALID, "'%s' leads back to a folder that it lies in: remove the link",
                            folder);
    int count = scandir(folder, &entries, is_shown, by_bytes);
    if (count < 0)
        return DSC_FAIL(DSC_E_IO, "cannot list '%s': %s", folder, strerror(errno));
    for (int i = 0; i < count; i++) {
        if (status == DSC_OK)
            status = add_name(list, folder, entries[i]->d_name, accepts, &at);
        free(entries[i]);
    }
    free(entries);
    return status;
}

dsc_status dsc_path_list_add(dsc_path_list *list, const char *path, int (*accepts)(const char *name),
                             const char *what) {
    struct stat info;
    int64_t before = list->count;
    if (stat(path, &info) != 0)
        return DSC_FAIL(DSC_E_NOT_FOUND, "cannot read '%s': %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return append(list, path);
    DSC_TRY(add_folder(list, path, accepts, NULL));
    if (list->count == before)
        return DSC_FAIL(DSC_E_INVALID, "'%s' holds no %s", path, what);
    return DSC_OK;
}

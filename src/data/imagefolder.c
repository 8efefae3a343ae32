/* Image folders, as ImageNet is unpacked: DIR/train/CLASS/FILE and DIR/val/CLASS/FILE, where val may also be
 * called validation, valid or test; one more folder below CLASS, as in Tiny-ImageNet, is accepted, and so are
 * links to folders and files. FILE ends in .jpg, .jpeg, .png or .webp, in
 * either case; all else is passed over. Classes are the folders of DIR/train in the order of their bytes. */
#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "data/image_view.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATH = 4096, PASSED_KINDS = 6 };

/* Names in a folder, sorted. */
typedef struct name_list {
    char **name;
    int64_t count, capacity;
} name_list;

typedef struct folder {
    char *root;        /* DIR/train or DIR/val */
    name_list classes; /* of the training split */
    char *names;       /* paths below root, each ending with a zero byte */
    int64_t names_used, names_capacity;
    int64_t *offset; /* of each image's path in `names` */
    int64_t offset_capacity;
    int32_t *label;
    int64_t label_capacity;
    int64_t count;
    struct {
        char ending[16]; /* ".txt", in small letters; "" for names without one */
        int64_t count;
    } passed[PASSED_KINDS]; /* files that are not taken for images; the last entry counts all others */
} folder;

/* ---- listing ---- */
static void free_names(name_list *list) {
    for (int64_t i = 0; i < list->count; i++)
        dsc_memory_free(&list->name[i]);
    dsc_memory_free(&list->name);
    list->count = list->capacity = 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All names in `path` but hidden ones, sorted. */
static dsc_status list_names(const char *path, name_list *list) {
    DIR *directory = opendir(path);
    if (!directory)
        return DSC_FAIL(errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? DSC_E_NOT_FOUND : DSC_E_IO,
                        "imagefolder: cannot list '%s': %s", path, strerror(errno));
    dsc_status status = DSC_OK;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (!entry) {
            if (errno)
                status = DSC_FAIL(DSC_E_IO, "imagefolder: cannot list '%s': %s", path, strerror(errno));
            break;
        }
        if (entry->d_name[0] == '.')
            continue;
        DSC_TRY_GOTO(status, dsc_memory_grow(&list->name, &list->capacity, list->count + 1, sizeof(char *)),
                     done);
        DSC_TRY_GOTO(status, dsc_memory_strdup(entry->d_name, &list->name[list->count]), done);
        list->count++;
    }
done:
    closedir(directory);
    if (status != DSC_OK)
        free_names(list);
    else if (list->count > 0)
        qsort(list->name, (size_t)list->count, sizeof(char *), compare_names);
    return status;
}

/* Counts a file that is not taken for an image. */
static void pass_over(folder *f, const char *name) {
    const char *dot = strrchr(name, '.');
    char ending[sizeof f->passed[0].ending] = "";
    int kind = 0;
    for (size_t i = 0; dot && strlen(dot) < sizeof ending && dot[i]; i++)
        ending[i] = (char)tolower((unsigned char)dot[i]);
    while (kind < PASSED_KINDS - 1 && f->passed[kind].count > 0 &&
           strcmp(f->passed[kind].ending, ending) != 0)
        kind++;
    if (f->passed[kind].count++ == 0)
        snprintf(f->passed[kind].ending, sizeof ending, "%s", ending);
}

/* The folders in `path`, sorted. Other names are counted in `f`, unless that is NULL. */
static dsc_status list_classes(const char *path, folder *f, name_list *list) {
    DSC_TRY(list_names(path, list));
    int64_t kept = 0;
    for (int64_t i = 0; i < list->count; i++) {
        char *inner;
        dsc_status status = dsc_path_join(path, list->name[i], &inner);
        if (status != DSC_OK) {
            free_names(list);
            return status;
        }
        if (dsc_file_is_directory(inner)) {
            char *swap = list->name[kept];
            list->name[kept++] = list->name[i];
            list->name[i] = swap;
        } else if (f) {
            pass_over(f, list->name[i]);
        }
        dsc_memory_free(&inner);
    }
    for (int64_t i = kept; i < list->count; i++)
        dsc_memory_free(&list->name[i]);
    list->count = kept;
    return DSC_OK;
}

/* "12 files in 'DIR/train' were passed over: 10 .gif, 2 without an ending; ...", or "" where none were. */
static void describe_passed(const folder *f, char *text, size_t size) {
    char kinds[160] = "";
    int64_t all = 0;
    for (int i = 0; i < PASSED_KINDS && f->passed[i].count > 0; i++) {
        size_t used = strlen(kinds);
        const char *ending = i == PASSED_KINDS - 1 ? "others" : f->passed[i].ending;
        snprintf(kinds + used, sizeof kinds - used, "%s%lld %s", i ? ", " : "", (long long)f->passed[i].count,
                 *ending ? ending : "without an ending");
        all += f->passed[i].count;
    }
    text[0] = '\0';
    if (all > 0)
        snprintf(text, size,
                 "%lld file%s in '%.100s' %s passed over: %s; images are .jpg, .jpeg, .png or .webp",
                 (long long)all, all == 1 ? "" : "s", f->root, all == 1 ? "was" : "were", kinds);
}

/* Adds an image: `below`/`name` under the root. */
static dsc_status add_image(folder *f, const char *below, const char *name, int32_t label) {
    size_t length = strlen(below) + strlen(name) + 2;
    if (strlen(f->root) + 1 + length > MAX_PATH)
        return DSC_FAIL(DSC_E_FORMAT, "imagefolder: the path '%s/%s/%s' is longer than %d bytes", f->root,
                        below, name, MAX_PATH - 1);
    DSC_TRY(dsc_memory_grow(&f->offset, &f->offset_capacity, f->count + 1, sizeof *f->offset));
    DSC_TRY(dsc_memory_grow(&f->label, &f->label_capacity, f->count + 1, sizeof *f->label));
    DSC_TRY(dsc_memory_grow(&f->names, &f->names_capacity, f->names_used + (int64_t)length, 1));
    snprintf(f->names + f->names_used, length, "%s/%s", below, name);
    f->offset[f->count] = f->names_used;
    f->label[f->count] = label;
    f->names_used += (int64_t)length;
    f->count++;
    return DSC_OK;
}

/* Adds the images of root/below and, if `nested`, of the folders in it. Only names that do not look like an image's are
 * checked for being folders: that spares a million system calls. */
static dsc_status add_images(folder *f, const char *below, int nested, int32_t label) {
    name_list list = {NULL, 0, 0};
    char *path = NULL, *inner = NULL, *inner_below = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status, dsc_path_join(f->root, below, &path), done);
    DSC_TRY_GOTO(status, list_names(path, &list), done);
    for (int64_t i = 0; i < list.count; i++) {
        if (dsc_image_has_name(list.name[i])) {
            DSC_TRY_GOTO(status, add_image(f, below, list.name[i], label), done);
        } else if (nested) {
            DSC_TRY_GOTO(status, dsc_path_join(path, list.name[i], &inner), done);
            DSC_TRY_GOTO(status, dsc_path_join(below, list.name[i], &inner_below), done);
            if (dsc_file_is_same(inner, path) || dsc_file_is_same(inner, f->root))
                DSC_TRY_GOTO(
                    status,
                    DSC_FAIL(DSC_E_FORMAT,
                             "imagefolder: '%s' leads back to a folder that it lies in: remove the link",
                             inner),
                    done);
            if (dsc_file_is_directory(inner))
                DSC_TRY_GOTO(status, add_images(f, inner_below, 0, label), done);
            else
                pass_over(f, list.name[i]);
            dsc_memory_free(&inner);
            dsc_memory_free(&inner_below);
        } else {
            pass_over(f, list.name[i]);
        }
    }
done:
    dsc_memory_free(&inner);
    dsc_memory_free(&inner_below);
    dsc_memory_free(&path);
    free_names(&list);
    return status;
}

/* ---- opening ---- */
static void close_folder(folder **f) {
    if (!*f)
        return;
    dsc_memory_free(&(*f)->root);
    free_names(&(*f)->classes);
    dsc_memory_free(&(*f)->names);
    dsc_memory_free(&(*f)->offset);
    dsc_memory_free(&(*f)->label);
    dsc_memory_free(f);
}

static dsc_status read_classes(const char *dir, name_list *classes) {
    char *train;
    DSC_TRY(dsc_path_join(dir, "train", &train));
    dsc_status status = list_classes(train, NULL, classes);
    if (status == DSC_E_NOT_FOUND)
        status = DSC_FAIL(status,
                          "imagefolder: '%s' is missing: put the images into '%s/train/CLASS/' and "
                          "'%s/val/CLASS/', as ImageNet (https://image-net.org) is laid out",
                          train, dir, dir);
    else if (status == DSC_OK && classes->count < 2)
        status = DSC_FAIL(DSC_E_FORMAT,
                          "imagefolder: '%s' holds %lld class folders: at least 2 are needed, each with the "
                          "images of one class",
                          train, (long long)classes->count);
    dsc_memory_free(&train);
    return status;
}

static dsc_status add_class(folder *f, const char *dir, const char *name, dsc_split split) {
    char **found = bsearch(&name, f->classes.name, (size_t)f->classes.count, sizeof(char *), compare_names);
    if (!found)
        return DSC_FAIL(DSC_E_FORMAT, "imagefolder: '%s/%s' is not a class: there is no '%s/train/%s'",
                        f->root, name, dir, name);
    int64_t before = f->count;
    DSC_TRY(add_images(f, name, 1, (int32_t)(found - f->classes.name)));
    if (f->count == before && split == DSC_SPLIT_TRAIN)
        return DSC_FAIL(DSC_E_FORMAT, "imagefolder: '%s/%s' holds no images (.jpg, .jpeg, .png, .webp)",
                        f->root, name);
    return DSC_OK;
}

/* The folder of a split: the first of its names that is there, or else the first. */
static dsc_status find_root(const char *dir, dsc_split split, char **root) {
    static const char *const train[] = {"train", NULL};
    static const char *const val[] = {"val", "validation", "valid", "test", NULL};
    const char *const *names = split == DSC_SPLIT_TRAIN ? train : val;
    for (int i = 0; names[i]; i++) {
        DSC_TRY(dsc_path_join(dir, names[i], root));
        if (dsc_file_is_directory(*root))
            return DSC_OK;
        dsc_memory_free(root);
    }
    return dsc_path_join(dir, names[0], root);
}

static dsc_status read_split(folder *f, const char *dir, dsc_split split) {
    name_list present = {NULL, 0, 0};
    dsc_status status;
    DSC_TRY(find_root(dir, split, &f->root));
    status = list_classes(f->root, f, &present);
    if (status == DSC_E_NOT_FOUND)
        return DSC_FAIL(
            status,
            "imagefolder: '%s' is missing: put the validation images into '%s/CLASS/' (validation, "
            "valid and test are found, too), or take them from the training images (val-split 0.1)",
            f->root, f->root);
    DSC_TRY(status);
    for (int64_t i = 0; i < present.count; i++)
        DSC_TRY_GOTO(status, add_class(f, dir, present.name[i], split), done);
    if (f->count == 0)
        status =
            DSC_FAIL(DSC_E_FORMAT, "imagefolder: '%s' holds no images (.jpg, .jpeg, .png, .webp)", f->root);
done:
    free_names(&present);
    return status;
}

static void close_set(dsc_dataset *dataset) {
    folder *f = dataset->state;
    close_folder(&f);
}

/* ---- sampling ---- */
static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label) {
    const folder *f = dataset->state;
    char path[MAX_PATH];
    int64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", f->root, f->names + f->offset[index]);
    DSC_TRY(dsc_file_size(path, &bytes));
    if (bytes > DSC_IMAGE_BYTES)
        return DSC_FAIL(DSC_E_FORMAT, "imagefolder: '%s' has %lld bytes: at most %d are accepted", path,
                        (long long)bytes, DSC_IMAGE_BYTES);
    DSC_TRY(dsc_bytes_reserve(&scratch->file, bytes));
    DSC_TRY(dsc_file_read(path, bytes, scratch->file.data));
    dsc_encoded encoded = {path, scratch->file.data, bytes};
    dsc_status status =
        dsc_image_present(dataset, &encoded, (dsc_sample_key){index, epoch, augment}, scratch, x);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "imagefolder");
    *label = f->label[index];
    return DSC_OK;
}

static int32_t label_of(const dsc_dataset *dataset, int64_t index) {
    const folder *f = dataset->state;
    return f->label[index];
}

static const dsc_dataset_type folder_type = {
    .close = close_set, .sample = sample, .label = label_of, .reads_files = 1};

static dsc_status open_set(void *context, const char *argument, dsc_split split,
                           const dsc_data_options *options, dsc_dataset **out) {
    (void)context;
    int64_t size = 0;
    DSC_TRY(dsc_image_side(dsc_kind_imagefolder.name, options, &size));
    folder *f;
    dsc_status status;
    DSC_TRY(dsc_memory_alloc(1, sizeof *f, &f));
    DSC_TRY_GOTO(status, read_classes(argument, &f->classes), fail);
    DSC_TRY_GOTO(status, read_split(f, argument, split), fail);
    DSC_TRY_GOTO(status, dsc_dataset_create(&folder_type, dsc_kind_imagefolder.name, split, options, out),
                 fail);
    dsc_dataset_info *info = &(*out)->info;
    info->count = f->count;
    info->classes = f->classes.count;
    describe_passed(f, (*out)->passed_over, sizeof(*out)->passed_over);
    (*out)->class_names = (const char *const *)f->classes.name;
    dsc_image_form_samples(*out, options, size);
    (*out)->state = f;
    return DSC_OK;
fail:
    close_folder(&f);
    return status;
}

const dsc_dataset_kind dsc_kind_imagefolder = {
    sizeof(dsc_dataset_kind), "imagefolder", "imagefolder:DIR", 1, NULL, open_set, 0};

/* Images in any files, without labels. */
#include "data/image_files.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

typedef struct image_files {
    dsc_path_list list;
    int64_t *offset; /* [count], of the paths in the list's text */
    dsc_image_form form;
} image_files;

static void close_files(image_files **files) {
    if (!*files)
        return;
    dsc_path_list_free(&(*files)->list);
    dsc_memory_free(&(*files)->offset);
    dsc_memory_free(files);
}

static void close_set(dsc_dataset *dataset) {
    image_files *files = dataset->state;
    close_files(&files);
}

const char *dsc_image_files_path(const dsc_dataset *dataset, int64_t index) {
    const image_files *files = dataset->state;
    return files->list.text + files->offset[index];
}

dsc_status dsc_image_file_read(const char *path, dsc_bytes *file, dsc_encoded *out) {
    int64_t bytes;
    DSC_TRY(dsc_file_size(path, &bytes));
    if (bytes > DSC_IMAGE_BYTES)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' has %lld bytes: at most %d are accepted", path, (long long)bytes,
                        DSC_IMAGE_BYTES);
    DSC_TRY(dsc_bytes_reserve(file, bytes));
    DSC_TRY(dsc_file_read(path, bytes, file->data));
    *out = (dsc_encoded){path, file->data, bytes};
    return DSC_OK;
}

static dsc_status sample(const dsc_dataset *dataset, int64_t index, int augment, int64_t epoch,
                         dsc_scratch *scratch, float *x, int32_t *label) {
    const image_files *files = dataset->state;
    const char *path = dsc_image_files_path(dataset, index);
    dsc_encoded encoded;
    (void)augment;
    (void)epoch;
    DSC_TRY(dsc_image_file_read(path, &scratch->file, &encoded));
    DSC_TRY(dsc_image_evaluate(&encoded, &files->form, scratch, x));
    *label = 0;
    return DSC_OK;
}

static const dsc_dataset_type files_type = {.close = close_set, .sample = sample, .reads_files = 1};

dsc_status dsc_image_files_open(dsc_path_list *list, const dsc_image_form *form, dsc_dataset **out) {
    dsc_data_options options;
    image_files *files;
    dsc_status status;
    dsc_data_options_init(&options);
    DSC_TRY(dsc_memory_alloc(1, sizeof *files, &files));
    DSC_TRY_GOTO(status, dsc_memory_alloc(list->count, sizeof *files->offset, &files->offset), failed);
    DSC_TRY_GOTO(status, dsc_dataset_create(&files_type, "files", DSC_SPLIT_VAL, &options, out), failed);
    const char *next = list->text;
    for (int64_t i = 0; i < list->count; i++) {
        files->offset[i] = next - list->text;
        next += strlen(next) + 1;
    }
    files->list = *list;
    *list = (dsc_path_list){0};
    files->form = *form;
    dsc_dataset_info *info = &(*out)->info;
    info->count = files->list.count;
    info->h = info->w = form->size;
    info->c = form->channels;
    info->classes = 1;
    (*out)->state = files;
    return DSC_OK;
failed:
    close_files(&files);
    return status;
}

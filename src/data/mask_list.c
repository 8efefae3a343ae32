#include "data/mask_list.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/image_files.h"
#include "data/image_tiff.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Decoded pixels, [h, w, 3]. */
typedef struct picture {
    const char *path;
    int64_t h, w;
    const uint8_t *rgb;
} picture;

void dsc_mask_list_free(dsc_mask_list *list) {
    for (int64_t i = 0; i < list->count; i++) {
        dsc_memory_free(&list->items[i].name);
        dsc_memory_free(&list->items[i].label_name);
        dsc_memory_free(&list->items[i].image);
        dsc_memory_free(&list->items[i].label);
    }
    dsc_memory_free(&list->items);
    *list = (dsc_mask_list){0};
}

/* ---- one image ---- */

/* The first pixel that is not grey; h w: all are. */
static int64_t first_colour(const picture *p) {
    int64_t i = 0;
    while (i < p->h * p->w && p->rgb[3 * i] == p->rgb[3 * i + 1] && p->rgb[3 * i] == p->rgb[3 * i + 2])
        i++;
    return i;
}

static dsc_status check_pair(const picture *image, const picture *label) {
    if (image->h != label->h || image->w != label->w)
        return DSC_FAIL(
            DSC_E_FORMAT,
            "masks: '%s' has %lld x %lld pixels, but its label '%s' has %lld x %lld: they must be alike",
            image->path, (long long)image->w, (long long)image->h, label->path, (long long)label->w,
            (long long)label->h);
    int64_t at = first_colour(label);
    if (at < label->h * label->w)
        return DSC_FAIL(
            DSC_E_FORMAT,
            "masks: the label '%s' has a coloured pixel (column %lld, row %lld): save it as a grey image, a "
            "value for each class",
            label->path, (long long)(at % label->w), (long long)(at / label->w));
    return DSC_OK;
}

/* The item belongs to the list before it is complete, so that the list frees it. */
static dsc_status add_pair(dsc_mask_list *list, const picture *image, const picture *label, int64_t page) {
    DSC_TRY(check_pair(image, label));
    DSC_TRY(dsc_memory_grow(&list->items, &list->capacity, list->count + 1, sizeof *list->items));
    dsc_mask_item *item = &list->items[list->count++];
    const int64_t pixels = image->h * image->w;
    *item = (dsc_mask_item){.h = image->h, .w = image->w, .page = page};
    item->c = first_colour(image) == pixels ? 1 : 3;
    DSC_TRY(dsc_memory_strdup(image->path, &item->name));
    DSC_TRY(dsc_memory_strdup(label->path, &item->label_name));
    DSC_TRY(dsc_memory_alloc(pixels, (size_t)item->c, &item->image));
    DSC_TRY(dsc_memory_alloc(pixels, 1, &item->label));
    for (int64_t i = 0; i < pixels; i++) {
        memcpy(item->image + i * item->c, image->rgb + 3 * i, (size_t)item->c);
        item->label[i] = label->rgb[3 * i];
    }
    return DSC_OK;
}

/* ---- folders ---- */

int dsc_natural_order(const char *a, const char *b) {
    const char *p = a, *q = b;
    while (*p && *q) {
        if (isdigit((unsigned char)*p) && isdigit((unsigned char)*q)) {
            p += strspn(p, "0");
            q += strspn(q, "0");
            const size_t m = strspn(p, "0123456789"), n = strspn(q, "0123456789");
            const int order = m != n ? (m < n ? -1 : 1) : memcmp(p, q, m);
            if (order != 0)
                return order;
            p += m;
            q += n;
        } else if (*p != *q) {
            break;
        } else {
            p++;
            q++;
        }
    }
    const int order = (unsigned char)*p - (unsigned char)*q;
    return order != 0 ? order : strcmp(a, b); /* names that differ only in leading zeros */
}

static int compare_paths(const void *a, const void *b) {
    return dsc_natural_order(*(const char *const *)a, *(const char *const *)b);
}

/* Decodes a file to out. */
static dsc_status read_picture(const char *path, int is_label, dsc_bytes *file, dsc_bytes *out, picture *p) {
    dsc_encoded encoded;
    DSC_TRY(dsc_image_file_read(path, file, &encoded));
    if (is_label && dsc_image_bits(&encoded) > 8) /* decoding would merge 256 values into one */
        return DSC_FAIL(
            DSC_E_FORMAT,
            "the label '%s' has %d bits a pixel, but classes are values of 8 bits: save it with 8", path,
            dsc_image_bits(&encoded));
    *p = (picture){.path = path};
    DSC_TRY(dsc_image_decode(&encoded, 1, out, &p->h, &p->w));
    p->rgb = out->data;
    return DSC_OK;
}

/* FOLDER/label/NAME.png for FOLDER/image/NAME.jpg. */
static dsc_status label_path(const char *folder, const char *image, char **out) {
    const char *name = image + strlen(folder) + strlen("/image/");
    const size_t stem = (size_t)(strrchr(name, '.') - name),
                 size = strlen(folder) + stem + sizeof "/label/.png";
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, out));
    snprintf(*out, size, "%s/label/%.*s.png", folder, (int)stem, name);
    return DSC_OK;
}

static dsc_status add_file(dsc_mask_list *list, const char *folder, const char *path, dsc_scratch *scratch) {
    picture image, label;
    char *other;
    DSC_TRY(label_path(folder, path, &other));
    dsc_status status = read_picture(path, 0, &scratch->file, &scratch->image, &image);
    if (status == DSC_OK) {
        status = read_picture(other, 1, &scratch->file, &scratch->resample, &label);
        if (status == DSC_E_NOT_FOUND)
            status = DSC_FAIL(status, "'%s' has no label: put it into '%s'", path, other);
    }
    status = status == DSC_OK ? add_pair(list, &image, &label, 0) : dsc_error_prefix(status, "masks");
    dsc_memory_free(&other);
    return status;
}

static dsc_status read_files(const char *folder, const char *images, dsc_mask_list *list) {
    dsc_path_list paths = {0};
    dsc_scratch scratch = {{0}, {0}, {0}};
    const char **sorted = NULL;
    dsc_status status;
    DSC_TRY_GOTO(status,
                 dsc_path_list_add(&paths, images, dsc_image_has_name, "images (" DSC_IMAGE_ENDINGS ")"),
                 done);
    DSC_TRY_GOTO(status, dsc_memory_alloc(paths.count, sizeof *sorted, &sorted), done);
    const char *path = paths.text;
    for (int64_t i = 0; i < paths.count; i++, path += strlen(path) + 1)
        sorted[i] = path;
    qsort(sorted, (size_t)paths.count, sizeof *sorted, compare_paths);
    for (int64_t i = 0; i < paths.count; i++)
        DSC_TRY_GOTO(status, add_file(list, folder, sorted[i], &scratch), done);
done:
    dsc_path_list_free(&paths);
    dsc_memory_free(&sorted);
    dsc_scratch_free(&scratch);
    return status;
}

/* ---- volumes ---- */

/* Adds the pages that both files are at. scratch has the memory for them. */
static dsc_status add_page(dsc_mask_list *list, const char *const paths[2], dsc_tiff *const files[2],
                           dsc_scratch *scratch) {
    picture image = {.path = paths[0]}, label = {.path = paths[1]};
    const int64_t page = dsc_tiff_at(files[0]) + 1;
    int bits;
    dsc_status status = dsc_tiff_decode(files[0], &scratch->image, &image.h, &image.w, &bits);
    if (status == DSC_OK)
        status = dsc_tiff_decode(files[1], &scratch->resample, &label.h, &label.w, &bits);
    if (status != DSC_OK)
        return dsc_error_prefix(status, "masks");
    if (bits > 8)
        return DSC_FAIL(DSC_E_FORMAT,
                        "masks: page %lld of the label '%s' has %d bits a pixel, but classes are values of 8 "
                        "bits: save it with 8",
                        (long long)page, paths[1], bits);
    image.rgb = scratch->image.data;
    label.rgb = scratch->resample.data;
    status = add_pair(list, &image, &label, page);
    return status == DSC_OK ? DSC_OK : dsc_error_prefix(status, "page %lld", (long long)page);
}

/* The number of pages of a file that has been read up to the one that it is at. */
static dsc_status count_pages(dsc_tiff *file, int more, int64_t *count) {
    *count = dsc_tiff_at(file) + 1;
    for (; more; *count += more)
        DSC_TRY(dsc_tiff_next(file, &more));
    return DSC_OK;
}

static dsc_status add_pages(dsc_mask_list *list, const char *const paths[2], dsc_tiff *const files[2],
                            dsc_scratch *scratch) {
    int more[2] = {1, 1};
    int64_t counts[2];
    while (more[0] && more[1]) {
        DSC_TRY(add_page(list, paths, files, scratch));
        for (int f = 0; f < 2; f++) {
            dsc_status status = dsc_tiff_next(files[f], &more[f]);
            if (status != DSC_OK)
                return dsc_error_prefix(status, "masks");
        }
    }
    for (int f = 0; f < 2; f++) {
        dsc_status status = count_pages(files[f], more[f], &counts[f]);
        if (status != DSC_OK)
            return dsc_error_prefix(status, "masks");
    }
    if (counts[0] == counts[1])
        return DSC_OK;
    return DSC_FAIL(DSC_E_FORMAT, "masks: '%s' has %lld pages, but '%s' has %lld: every image needs a label",
                    paths[0], (long long)counts[0], paths[1], (long long)counts[1]);
}

static dsc_status read_volumes(const char *images, const char *labels, dsc_mask_list *list) {
    const char *const paths[2] = {images, labels};
    dsc_tiff *files[2] = {NULL, NULL};
    dsc_scratch scratch = {{0}, {0}, {0}};
    dsc_status status = dsc_tiff_open(images, &files[0]);
    if (status == DSC_OK)
        status = dsc_tiff_open(labels, &files[1]);
    status = status == DSC_OK ? add_pages(list, paths, files, &scratch) : dsc_error_prefix(status, "masks");
    dsc_tiff_close(&files[0]);
    dsc_tiff_close(&files[1]);
    dsc_scratch_free(&scratch);
    return status;
}

static int is_file(const char *path) {
    int64_t size;
    return dsc_file_size(path, &size) == DSC_OK;
}

static dsc_status no_images(const char *folder) {
    return DSC_FAIL(
        DSC_E_NOT_FOUND,
        "masks: '%s' has no images: put them into '%s/image' and their labels, under the same names, into "
        "'%s/label', or give image.tif and label.tif",
        folder, folder, folder);
}

dsc_status dsc_mask_list_read(const char *folder, dsc_mask_list *list) {
    static const char *const volumes[][2] = {
        {"image.tif", "label.tif"}, {"image.tiff", "label.tiff"}, {"train-volume.tif", "train-labels.tif"}};
    char *images, *labels = NULL;
    DSC_TRY(dsc_path_join(folder, "image", &images));
    if (dsc_file_is_directory(images)) {
        dsc_status status = read_files(folder, images, list);
        dsc_memory_free(&images);
        return status;
    }
    dsc_memory_free(&images);
    for (size_t i = 0; i < sizeof volumes / sizeof *volumes; i++) {
        DSC_TRY(dsc_path_join(folder, volumes[i][0], &images));
        const int found = is_file(images);
        dsc_status status = found ? dsc_path_join(folder, volumes[i][1], &labels) : DSC_OK;
        if (found && status == DSC_OK)
            status = read_volumes(images, labels, list);
        dsc_memory_free(&images);
        dsc_memory_free(&labels);
        if (found || status != DSC_OK)
            return status;
    }
    return no_images(folder);
}

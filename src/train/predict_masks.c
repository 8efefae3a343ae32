/* Masks: an image is cut into tiles of the model's input size, as in the validation of masks:DIR. Where tiles
 * overlap, the first one counts. Where the model's output is smaller than its input, tiles of the output cover the
 * image, and their input reaches beyond its borders, where it is mirrored. Every page of a TIFF is an image. Image i
 * belongs to rank i mod ranks. */
#include "train/predict_masks.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "comm/table.h"
#include "data/dataset.h"
#include "data/image_files.h"
#include "data/image_write.h"
#include "data/mask_view.h"
#include "train/model_file.h"
#include "train/share.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 256 };
/* Tiles of one batch have this many pixels together, unless it is a single one: activations of a U-Net are as large as
 * its input, times the channels. */
static const int64_t batch_pixels = 512 * 512;

typedef enum record_state { RECORD_NONE, RECORD_WRITTEN, RECORD_BAD } record_state;

/* The result of one image, as ranks exchange it. */
typedef struct record {
    record_state state;
    int64_t pixels[VALUES]; /* by class */
    char message[DSC_BAD_MESSAGE];
} record;

/* A file, or a page of one. */
typedef struct mask_image {
    const char *path;    /* in the list's text */
    int64_t page, pages; /* page: from 0 on; pages: of the file, 0: it has none */
} mask_image;

typedef struct session {
    const dsc_mask_job *job;
    int rank, ranks;
    int64_t h, w, c;          /* of the model's input; c is 1 or 3 */
    int64_t out_h, out_w;     /* of its output */
    int64_t outputs, classes; /* outputs: 1 for two classes, or classes */
    uint8_t values[VALUES];   /* by class */
    mask_image *images;       /* [count] */
    int64_t count;
    dsc_tiff *tiff;        /* the file that was read last; NULL: there is none yet */
    const char *tiff_path; /* its place in the list's text */
    int64_t batch;         /* of the executor, 0: there is none yet */
    dsc_exec *exec;
    dsc_tensor x;  /* [batch, h, w, c] */
    float *tiles;  /* the same on the host */
    float *logits; /* [batch out_h out_w, outputs] */
    dsc_scratch scratch;
    dsc_bytes mask;
    record own;
} session;

static void close_exec(session *s) {
    s->batch = 0;
    dsc_exec_destroy(&s->exec);
    dsc_tensor_free(&s->x);
    dsc_memory_free(&s->tiles);
    dsc_memory_free(&s->logits);
}

static void close_session(session *s) {
    close_exec(s);
    dsc_tiff_close(&s->tiff);
    dsc_memory_free(&s->images);
    dsc_scratch_free(&s->scratch);
    dsc_bytes_free(&s->mask);
}

/* ---- names ---- */

int dsc_mask_job_takes(const char *name) {
    return dsc_image_has_name(name) || dsc_tiff_has_name(name);
}

dsc_status dsc_mask_job_count_pages(const dsc_path_list *list, int64_t **pages) {
    const char *path = list->text;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_memory_alloc(list->count, sizeof **pages, pages));
    for (int64_t i = 0; i < list->count && status == DSC_OK; i++, path += strlen(path) + 1)
        if (dsc_tiff_has_name(path))
            status = dsc_tiff_count(path, &(*pages)[i]);
    return status;
}

/* FOLDER/NAME.png for .../NAME.jpg, and FOLDER/NAME-001.png for the first of several pages of .../NAME.tif, with as
 * many digits as the last one needs. */
static dsc_status mask_path(const session *s, const mask_image *image, char **out) {
    const char *slash = strrchr(image->path, '/'), *name = slash ? slash + 1 : image->path,
               *dot = strrchr(name, '.');
    char *file, page[32] = "";
    if (image->pages > 1) /* libtiff counts 65535 pages at most */
        snprintf(page, sizeof page,
                 image->pages > 9999  ? "-%05lld"
                 : image->pages > 999 ? "-%04lld"
                                      : "-%03lld",
                 (long long)image->page + 1);
    const size_t stem = dot ? (size_t)(dot - name) : strlen(name), size = stem + strlen(page) + sizeof ".png";
    DSC_TRY(dsc_memory_alloc((int64_t)size, 1, &file));
    snprintf(file, size, "%.*s%s.png", (int)stem, name, page);
    dsc_status status = dsc_output_path(s->job->folder, file, out);
    dsc_memory_free(&file);
    return status;
}

typedef struct mask_name {
    char *path;
    const char *image;
} mask_name;

static int compare_names(const void *a, const void *b) {
    return strcmp(((const mask_name *)a)->path, ((const mask_name *)b)->path);
}

static dsc_status check_names(const session *s, const mask_name *names) {
    for (int64_t i = 0; i < s->count; i++) {
        const char *path = names[i].path, *image = names[i].image;
        if (i > 0 && strcmp(path, names[i - 1].path) == 0)
            return DSC_FAIL(
                DSC_E_INVALID,
                "a mask of '%s' and one of '%s' would both be '%s': predict them one by one, into different "
                "folders",
                names[i - 1].image, image, path);
        if (dsc_file_is_same(path, image))
            return DSC_FAIL(DSC_E_INVALID,
                            "the mask of '%s' would replace it: choose another folder for masks", image);
        int64_t size;
        if (!s->job->overwrite && (dsc_file_is_directory(path) || dsc_file_size(path, &size) == DSC_OK))
            return DSC_FAIL(
                DSC_E_INVALID,
                "'%s' exists already: choose another folder for masks, or allow it with --overwrite", path);
    }
    return DSC_OK;
}

/* Rank 0: checks that no file would be overwritten by mistake, and makes the folder. */
static dsc_status prepare_folder(const session *s) {
    const int64_t count = s->count;
    mask_name *names;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_png_can_write());
    DSC_TRY(dsc_memory_alloc(count, sizeof *names, &names));
    for (int64_t i = 0; i < count && status == DSC_OK; i++) {
        names[i].image = s->images[i].path;
        status = mask_path(s, &s->images[i], &names[i].path);
    }
    if (status == DSC_OK) {
        qsort(names, (size_t)count, sizeof *names, compare_names);
        status = check_names(s, names);
    }
    if (status == DSC_OK)
        status = dsc_directory_make(s->job->folder);
    for (int64_t i = 0; i < count; i++)
        dsc_memory_free(&names[i].path);
    dsc_memory_free(&names);
    return status;
}

/* The value that a class name stands for; -1: none. */
static int value_of(const char *name) {
    const size_t length = strlen(name);
    const int digits = length > 0 && length <= 3 && strspn(name, "0123456789") == length;
    const int value = digits ? atoi(name) : -1;
    return value < VALUES ? value : -1;
}

/* Chooses the value of each class in the masks, from the names that rank 0 has. Collective. */
static dsc_status choose_values(session *s) {
    int named = s->job->names != NULL;
    for (int64_t c = 0; named && c < s->classes; c++)
        named = value_of(s->job->names[c]) >= 0;
    for (int64_t c = 0; c < s->classes; c++)
        s->values[c] = (uint8_t)(named ? value_of(s->job->names[c]) : c);
    return dsc_share_bytes(s->job->comm, s->job->queue, s->values, sizeof s->values);
}

/* ---- one image ---- */

static dsc_status check_size(const session *s, const char *path, int64_t h, int64_t w) {
    if (h >= s->out_h && w >= s->out_w)
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_FORMAT,
        "'%s' has %lld x %lld pixels, but the model %s %lld x %lld: enlarge it, or choose a smaller "
        "image size",
        path, (long long)w, (long long)h, s->job->margin > 0 ? "predicts" : "takes", (long long)s->out_w,
        (long long)s->out_h);
}

/* Decodes a file to scratch.image, [*h, *w, 3]. */
static dsc_status read_file(session *s, const char *path, int64_t *h, int64_t *w) {
    dsc_encoded encoded;
    int64_t own_h, own_w;
    DSC_TRY(dsc_image_file_read(path, &s->scratch.file, &encoded));
    DSC_TRY(dsc_image_size(&encoded, &own_h, &own_w));
    DSC_TRY(check_size(s, path, own_h, own_w));
    DSC_TRY(dsc_image_decode(&encoded, 1, &s->scratch.image, h, w));
    if (*h != own_h || *w != own_w) /* a very large JPEG, which is decoded at a smaller size */
        return DSC_FAIL(DSC_E_FORMAT, "'%s' has %lld x %lld pixels, too many: cut it into smaller images",
                        path, (long long)own_w, (long long)own_h);
    return DSC_OK;
}

/* Goes to a page of a TIFF, which stays open for the pages that follow. */
static dsc_status find_page(session *s, const mask_image *image) {
    int found = 1;
    if (s->tiff_path != image->path || !s->tiff || dsc_tiff_at(s->tiff) > image->page) {
        dsc_tiff_close(&s->tiff);
        s->tiff_path = image->path;
        DSC_TRY(dsc_tiff_open(image->path, &s->tiff));
    }
    while (dsc_tiff_at(s->tiff) < image->page && found)
        DSC_TRY(dsc_tiff_next(s->tiff, &found));
    if (!found)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' has no page %lld any more: it changed while it was read",
                        image->path, (long long)image->page + 1);
    return DSC_OK;
}

static dsc_status read_page(session *s, const mask_image *image, int64_t *h, int64_t *w) {
    int bits;
    DSC_TRY(find_page(s, image));
    DSC_TRY(dsc_tiff_decode(s->tiff, &s->scratch.image, h, w, &bits));
    dsc_status status = check_size(s, image->path, *h, *w);
    return status == DSC_OK ? DSC_OK : dsc_error_prefix(status, "page %lld", (long long)image->page + 1);
}

/* Decodes an image to scratch.image, [*h, *w, c]. */
static dsc_status read_image(session *s, const mask_image *image, int64_t *h, int64_t *w) {
    DSC_TRY(image->pages > 0 ? read_page(s, image, h, w) : read_file(s, image->path, h, w));
    uint8_t *grey = s->scratch.image.data;
    const uint8_t *p = grey;
    for (int64_t i = 0; s->c == 1 && i < *h * *w; i++, p += 3) /* exact where the colours are equal */
        grey[i] = (uint8_t)lround(p[1] + 0.299 * (p[0] - p[1]) + 0.114 * (p[2] - p[1]));
    return DSC_OK;
}

/* Makes an executor for `tiles` tiles, or for as many as are allowed. An existing larger one is kept. */
static dsc_status size_exec(session *s, int64_t tiles) {
    const int64_t pixels = s->h * s->w, fit = batch_pixels / pixels > 1 ? batch_pixels / pixels : 1;
    const int64_t limit = s->job->batch < fit ? s->job->batch : fit, batch = tiles < limit ? tiles : limit;
    if (s->batch >= batch)
        return DSC_OK;
    const int64_t dim[4] = {batch, s->h, s->w, s->c};
    close_exec(s);
    DSC_TRY(dsc_exec_create(s->job->model, DSC_EXEC_EVAL, batch, &s->exec));
    DSC_TRY(dsc_tensor_alloc(dsc_model_device(s->job->model), DSC_F32, 4, dim, &s->x));
    DSC_TRY(dsc_memory_alloc(batch * pixels * s->c, sizeof *s->tiles, &s->tiles));
    DSC_TRY(dsc_memory_alloc(batch * s->out_h * s->out_w * s->outputs, sizeof *s->logits, &s->logits));
    s->batch = batch;
    return DSC_OK;
}

static void cut_tile(const session *s, const dsc_mask_view *tile, int64_t image_h, int64_t image_w,
                     float *x) {
    const dsc_mask_view view = dsc_mask_view_widen(*tile, s->job->margin);
    for (int64_t i = 0; i < s->h; i++) {
        const uint8_t *row = s->scratch.image.data + dsc_mask_mirror(view.top + i, image_h) * image_w * s->c;
        for (int64_t j = 0; j < s->w; j++) {
            const uint8_t *pixel = row + dsc_mask_mirror(view.left + j, image_w) * s->c;
            for (int64_t k = 0; k < s->c; k++)
                *x++ = s->job->normalise.value[k][pixel[k]];
        }
    }
}

/* The class with the largest logit. A single output is the logit of class 1: the class is 1 when it is above 0. */
static int64_t class_of(const session *s, const float *logits) {
    int64_t best = s->outputs == 1 && logits[0] > 0;
    for (int64_t c = 1; c < s->outputs; c++)
        best = logits[c] > logits[best] ? c : best;
    return best;
}

/* Writes the classes of the pixels that no earlier tile covers, by their largest logit. */
static void paste_tile(session *s, const dsc_mask_view *view, int64_t done_h, int64_t done_w, int64_t image_w,
                       const float *logits) {
    for (int64_t i = done_h; i < s->out_h; i++)
        for (int64_t j = done_w; j < s->out_w; j++) {
            const int64_t best = class_of(s, logits + (i * s->out_w + j) * s->outputs);
            s->mask.data[(view->top + i) * image_w + view->left + j] = s->values[best];
            s->own.pixels[best]++;
        }
}

/* Fills in the mask of the decoded image, and counts its pixels. */
static dsc_status predict_pixels(session *s, int64_t image_h, int64_t image_w) {
    const int64_t tiles = dsc_mask_tiles(image_h, image_w, s->out_h, s->out_w);
    const dsc_mask_job *job = s->job;
    int64_t done_h, done_w;
    DSC_TRY(dsc_bytes_reserve(&s->mask, image_h * image_w));
    DSC_TRY(size_exec(s, tiles));
    for (int64_t first = 0; first < tiles; first += s->batch) {
        for (int64_t i = 0; i < s->batch && first + i < tiles; i++) {
            const dsc_mask_view view =
                dsc_mask_view_tile(image_h, image_w, s->out_h, s->out_w, first + i, &done_h, &done_w);
            cut_tile(s, &view, image_h, image_w, s->tiles + i * s->h * s->w * s->c);
        }
        const dsc_tensor *logits = dsc_exec_logits(s->exec);
        DSC_TRY(dsc_tensor_upload(job->queue, s->tiles, dsc_tensor_bytes(&s->x), &s->x));
        DSC_TRY(dsc_exec_forward(s->exec, job->queue, &s->x));
        DSC_TRY(dsc_tensor_download(job->queue, logits, dsc_tensor_bytes(logits), s->logits));
        DSC_TRY(dsc_queue_sync(job->queue));
        for (int64_t i = 0; i < s->batch && first + i < tiles; i++) {
            const dsc_mask_view view =
                dsc_mask_view_tile(image_h, image_w, s->out_h, s->out_w, first + i, &done_h, &done_w);
            paste_tile(s, &view, done_h, done_w, image_w, s->logits + i * s->out_h * s->out_w * s->outputs);
        }
    }
    return DSC_OK;
}

/* Image `index`, if there is one. A failure to read it becomes part of the record. */
static dsc_status predict_image(session *s, int64_t index) {
    int64_t h, w;
    char *path;
    memset(&s->own, 0, sizeof s->own);
    if (index >= s->count)
        return DSC_OK;
    dsc_status status = read_image(s, &s->images[index], &h, &w);
    if (status == DSC_E_FORMAT || status == DSC_E_IO || status == DSC_E_NOT_FOUND ||
        status == DSC_E_UNSUPPORTED) { /* a TIFF where there is no libtiff */
        s->own.state = RECORD_BAD;
        snprintf(s->own.message, sizeof s->own.message, "%s", dsc_error_message_without_rank());
        return DSC_OK;
    }
    DSC_TRY(status);
    DSC_TRY(predict_pixels(s, h, w));
    DSC_TRY(mask_path(s, &s->images[index], &path));
    status = dsc_png_write_grey(path, s->mask.data, h, w);
    dsc_memory_free(&path);
    s->own.state = RECORD_WRITTEN;
    return status;
}

/* ---- all images ---- */

/* Rank 0: reports one image to the caller. */
static dsc_status report(const session *s, const mask_image *image, const record *r) {
    dsc_prediction p = {.file = image->path};
    int64_t classes[VALUES], pixels = 0;
    double shares[VALUES];
    char *path = NULL;
    if (r->state == RECORD_BAD) {
        p.error = r->message;
        s->job->function(s->job->context, &p);
        return DSC_OK;
    }
    for (int64_t c = 0; c < s->classes; c++)
        pixels += r->pixels[c];
    for (int64_t c = 0; c < s->classes; c++) {
        classes[c] = c;
        shares[c] = (double)r->pixels[c] / (double)pixels;
    }
    DSC_TRY(mask_path(s, image, &path));
    p.mask = path;
    p.count = s->classes;
    p.classes = classes;
    p.names = s->job->names;
    p.shares = shares;
    s->job->function(s->job->context, &p);
    dsc_memory_free(&path);
    return DSC_OK;
}

/* Predicts one image on every rank. Collective. */
static dsc_status predict_round(session *s, int64_t first, dsc_predict_result *result) {
    const dsc_mask_job *job = s->job;
    void *gathered;
    dsc_status status = predict_image(s, first + s->rank);
    DSC_TRY(dsc_share_gather(job->comm, job->queue, status, &s->own, sizeof s->own, &gathered));
    const record *all = gathered;
    for (int r = 0; r < s->ranks; r++) {
        result->images += all[r].state == RECORD_WRITTEN;
        result->bad_images += all[r].state == RECORD_BAD;
        if (s->rank == 0 && job->function && all[r].state != RECORD_NONE && status == DSC_OK)
            status = report(s, &s->images[first + r], &all[r]);
    }
    dsc_memory_free(&gathered);
    return dsc_comm_agree(job->comm, status);
}

static dsc_status open_session(session *s) {
    const dsc_mask_job *job = s->job;
    const char *path = job->list->text;
    for (int64_t i = 0; i < job->list->count; i++)
        s->count += job->pages[i] > 0 ? job->pages[i] : 1;
    DSC_TRY(dsc_memory_alloc(s->count, sizeof *s->images, &s->images));
    mask_image *next = s->images;
    for (int64_t i = 0; i < job->list->count; i++, path += strlen(path) + 1)
        for (int64_t p = 0; p == 0 || p < job->pages[i]; p++)
            *next++ = (mask_image){path, p, job->pages[i]};
    if (s->classes > VALUES)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "the model has %lld classes: masks hold values of at most %d",
                        (long long)s->classes, VALUES);
    return s->rank == 0 ? prepare_folder(s) : DSC_OK;
}

static dsc_status run_session(session *s, dsc_predict_result *result) {
    DSC_TRY(dsc_comm_agree(s->job->comm, open_session(s)));
    DSC_TRY(choose_values(s));
    const double began = dsc_clock_now();
    for (int64_t first = 0; first < s->count; first += s->ranks)
        DSC_TRY(predict_round(s, first, result));
    result->seconds = dsc_clock_now() - began;
    return DSC_OK;
}

dsc_status dsc_predict_masks(const dsc_mask_job *job, dsc_predict_result *result) {
    int64_t shape[3];
    dsc_model_input_shape(job->model, shape);
    session s = {.job = job,
                 .rank = dsc_comm_rank(job->comm),
                 .ranks = dsc_comm_size(job->comm),
                 .h = shape[0],
                 .w = shape[1],
                 .c = shape[2],
                 .out_h = shape[0] - 2 * job->margin,
                 .out_w = shape[1] - 2 * job->margin,
                 .outputs = dsc_model_classes(job->model)};
    s.classes = dsc_output_classes(s.outputs);
    dsc_status status = run_session(&s, result);
    close_session(&s);
    return status;
}

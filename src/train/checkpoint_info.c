/* What a checkpoint says about itself, for programs. */
#include "base/error.h"
#include "base/memory.h"
#include "descent/checkpoint.h"
#include "train/checkpoint_directory.h"
#include "train/checkpoint_find.h"
#include "train/model_file.h"

#include <string.h>
#include <sys/stat.h>

/* The public struct `shown` points into the other members. */
typedef struct full_info {
    dsc_checkpoint_info shown; /* must be the first member: callers hold its address */
    dsc_model_facts facts;
    char *path, *state_path;
    const char *const *class_names;
    dsc_tokenizer *tokenizer;
    dsc_st_reader *model, *state; /* own the texts of the metadata */
} full_info;

void dsc_checkpoint_info_free(dsc_checkpoint_info **info) {
    if (!info || !*info)
        return;
    full_info *i = (full_info *)(void *)*info;
    dsc_st_close(&i->model);
    dsc_st_close(&i->state);
    dsc_memory_free(&i->class_names);
    dsc_tokenizer_destroy(&i->tokenizer);
    dsc_memory_free(&i->state_path);
    dsc_memory_free(&i->path);
    dsc_memory_free(info);
}

static const char *text_of(const dsc_st_reader *reader, const char *key) {
    const char *text = reader ? dsc_st_metadata(reader, key) : NULL;
    return text ? text : "";
}

/* Opens the state file beside the model file, if there is one. */
static dsc_status read_state(full_info *i) {
    dsc_checkpoint_info *s = &i->shown;
    struct stat info;
    if (dsc_checkpoint_state_path(i->path, &i->state_path) != DSC_OK || stat(i->state_path, &info) != 0) {
        dsc_memory_free(&i->state_path);
        return DSC_OK;
    }
    DSC_TRY(dsc_st_open(i->state_path, &i->state));
    s->state_path = i->state_path;
    return dsc_st_metadata_number(i->state, "ranks", &s->ranks);
}

static void count_tensors(const dsc_st_reader *reader, dsc_checkpoint_info *s) {
    s->tensors = dsc_st_count(reader);
    for (int64_t i = 0; i < s->tensors; i++) {
        const dsc_st_tensor *t = &dsc_st_tensors(reader)[i];
        s->bytes += (int64_t)t->bytes;
        if (t->dtype != DSC_I64 && t->dtype != DSC_I32 && t->dtype != DSC_U8)
            s->numbers += (int64_t)(t->bytes / dsc_dtype_size(t->dtype));
    }
}

static dsc_status fill(const char *checkpoint, full_info *i) {
    dsc_checkpoint_info *s = &i->shown;
    const dsc_model_facts *f = &i->facts;
    s->ranks = -1;
    DSC_TRY(dsc_checkpoint_find(checkpoint, &i->path));
    DSC_TRY(dsc_st_open(i->path, &i->model));
    DSC_TRY(dsc_model_facts_read(i->model, &i->facts));
    DSC_TRY(dsc_model_file_class_names(i->model, &i->class_names, &s->class_name_count));
    DSC_TRY(dsc_model_file_tokenizer(i->model, &i->tokenizer));
    DSC_TRY(dsc_st_metadata_number(i->model, "step", &s->step));
    DSC_TRY(dsc_st_metadata_number(i->model, "epoch", &s->epoch));
    DSC_TRY(read_state(i));
    count_tensors(i->model, s);
    s->path = i->path;
    s->version = text_of(i->model, "descent");
    s->model = f->model;
    s->data = f->data;
    s->classes = f->classes;
    s->height = f->height;
    s->width = f->width;
    s->channels = f->channels;
    s->has_seed = f->has_seed;
    s->seed = f->seed;
    s->class_names = i->class_names;
    s->mean = f->has_normalisation ? f->mean : NULL;
    s->std = f->has_normalisation ? f->std : NULL;
    s->has_sums = dsc_st_has_sums(i->model);
    s->optimizer = text_of(i->state, "optimizer");
    s->consensus = text_of(i->state, "consensus");
    s->resize = f->resize;
    s->tokenizer = i->tokenizer;
    s->mask = f->mask;
    s->mask_token = f->mask > 0 ? f->mask_token : -1;
    s->vocabulary = f->vocabulary;
    s->loss = dsc_loss_name(f->loss);
    return DSC_OK;
}

dsc_status dsc_checkpoint_read_info(const char *checkpoint, dsc_checkpoint_info **out) {
    full_info *i;
    if (!checkpoint || !out)
        return DSC_FAIL(DSC_E_INVALID,
                        "neither the checkpoint nor the place for its description may be NULL");
    DSC_TRY(dsc_memory_alloc(1, sizeof *i, &i));
    *out = &i->shown;
    dsc_status status = fill(checkpoint, i);
    if (status != DSC_OK) {
        dsc_checkpoint_info_free(out);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    return DSC_OK;
}

dsc_status dsc_checkpoint_verify(const char *checkpoint) {
    char *path = NULL;
    if (!checkpoint)
        return DSC_FAIL(DSC_E_INVALID, "no checkpoint to verify: checkpoint is NULL");
    DSC_TRY(dsc_checkpoint_find(checkpoint, &path));
    dsc_status status = dsc_checkpoint_check(path, 1);
    dsc_memory_free(&path);
    return status;
}

/* Copies the first `length` characters of a path that the caller asked for. */
static dsc_status hand_out(const char *path, size_t length, char *out, size_t size) {
    if (length >= size)
        return DSC_FAIL(DSC_E_INVALID, "'%.60s...': the name may have %zu characters at most", path,
                        size > 0 ? size - 1 : 0);
    memcpy(out, path, length);
    out[length] = '\0';
    return DSC_OK;
}

dsc_status dsc_checkpoint_directory(const char *checkpoint, char *directory, size_t size) {
    size_t length;
    if (!checkpoint || !directory)
        return DSC_FAIL(DSC_E_INVALID, "neither the checkpoint nor the place for its directory may be NULL");
    if (!dsc_checkpoint_spec_is_directory(checkpoint, &length)) {
        const char *slash = strrchr(checkpoint, '/');
        if (!slash)
            return hand_out(".", 1, directory, size);
        length = slash == checkpoint ? 1 : (size_t)(slash - checkpoint);
    }
    while (length > 1 && checkpoint[length - 1] == '/')
        length--;
    return hand_out(checkpoint, length, directory, size);
}

dsc_status dsc_checkpoint_find_intact(const char *directory, char *path, size_t size) {
    char *found = NULL;
    if (!directory || !path)
        return DSC_FAIL(DSC_E_INVALID, "neither the directory nor the place for the path may be NULL");
    DSC_TRY(dsc_checkpoint_newest_intact(directory, &found));
    dsc_status status = hand_out(found ? found : "", found ? strlen(found) : 0, path, size);
    dsc_memory_free(&found);
    return status;
}

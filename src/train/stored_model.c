/* Opening the file of a model. */
#include "train/stored_model.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "train/checkpoint_directory.h"
#include "train/checkpoint_find.h"

#include <stdio.h>
#include <string.h>

/* Refuses the state file, which is easily given instead of the model file beside it. */
static dsc_status refuse_state(const char *path) {
    static const char end[] = ".state.safetensors";
    size_t length = strlen(path), tail = strlen(end);
    char *none = NULL;
    if (length < tail || strcmp(path + length - tail, end) != 0)
        return DSC_OK;
    return dsc_checkpoint_state_path(path, &none); /* fails, and the message names the model file */
}

/* Says what a file of another program, or of an older version, lacks. */
static void note_missing(const dsc_st_reader *reader, const dsc_model_facts *facts) {
    int sums = dsc_st_has_sums(reader), size = facts->height > 0;
    if (!sums || !size)
        dsc_log(DSC_LOG_WARNING, "'%s' has no %s in its metadata%s%s", dsc_st_path(reader),
                sums   ? "image size"
                : size ? "check sums"
                       : "check sums and no image size",
                sums ? "" : ": damage in its numbers would go unnoticed",
                size ? "" : "; images have the size that the model is made for");
}

static dsc_status read_facts(const dsc_st_reader *reader, const char *model, dsc_model_facts *facts) {
    const char *path = dsc_st_path(reader);
    DSC_TRY(dsc_model_facts_read(reader, facts));
    note_missing(reader, facts);
    if (!model && !facts->model[0])
        return DSC_FAIL(DSC_E_INVALID, "'%s' does not say which model it holds: name it", path);
    if (model && facts->model[0] && strcmp(model, facts->model) != 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s' is a checkpoint of model %s, not of %s", path, facts->model,
                        model);
    if (model)
        snprintf(facts->model, sizeof facts->model, "%s", model);
    return DSC_OK;
}

dsc_status dsc_stored_model_open(const char *checkpoint, const char *model, dsc_st_reader **reader,
                                 dsc_model_facts *facts) {
    char *path = NULL;
    DSC_TRY(dsc_checkpoint_find(checkpoint, &path));
    dsc_status status = refuse_state(path);
    if (status == DSC_OK)
        status = dsc_st_open(path, reader);
    if (status == DSC_OK)
        status = read_facts(*reader, model, facts);
    dsc_memory_free(&path);
    return status;
}

void dsc_stored_model_note_form(const dsc_model_facts *facts, const char *like) {
    if (facts->resize < 0)
        dsc_log(DSC_LOG_WARNING, "the checkpoint does not say how images are scaled: they are as those of %s",
                like);
}

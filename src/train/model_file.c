/* A model's file: metadata, saving, loading. */
#include "train/model_file.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "descent/log.h"
#include "descent/version.h"
#include "train/statedict.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The name written for a model that has none; it says nothing about the model. */
#define CUSTOM "custom"

/* ---- metadata ---- */

static dsc_status describe_number(dsc_st_writer *w, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return dsc_st_writer_metadata(w, key, text);
}

dsc_status dsc_model_file_describe(const dsc_model *model, const dsc_save_options *facts,
                                   dsc_st_writer *writer) {
    int64_t shape[3];
    char number[32];
    dsc_model_input_shape(model, shape);
    DSC_TRY(dsc_st_writer_metadata(writer, "format", "pt"));
    DSC_TRY(dsc_st_writer_metadata(writer, "descent", dsc_version()));
    DSC_TRY(dsc_st_writer_metadata(writer, "model", facts->model ? facts->model : CUSTOM));
    DSC_TRY(describe_number(writer, "classes", dsc_model_classes(model)));
    DSC_TRY(describe_number(writer, "height", shape[0]));
    DSC_TRY(describe_number(writer, "width", shape[1]));
    DSC_TRY(describe_number(writer, "channels", shape[2]));
    if (facts->step >= 0)
        DSC_TRY(describe_number(writer, "step", facts->step));
    if (facts->epoch >= 0)
        DSC_TRY(describe_number(writer, "epoch", facts->epoch));
    /* A path that is not UTF-8 cannot be stored, and a very long one would not be read. */
    if (facts->data && strlen(facts->data) < DSC_DATA_SIZE &&
        dsc_st_writer_metadata(writer, "data", facts->data) != DSC_OK)
        dsc_log(DSC_LOG_WARNING, "the checkpoint does not name its data: %s", dsc_error_message());
    if (facts->val_split > 0) {
        snprintf(number, sizeof number, "%.17g", facts->val_split);
        DSC_TRY(dsc_st_writer_metadata(writer, "val_split", number));
    }
    if (facts->mask > 0) {
        snprintf(number, sizeof number, "%.17g", facts->mask);
        DSC_TRY(dsc_st_writer_metadata(writer, "mask", number));
    }
    if (facts->mask > 0 && facts->mask_token >= 0)
        DSC_TRY(describe_number(writer, "mask_token", facts->mask_token));
    if (facts->vocabulary > 0)
        DSC_TRY(describe_number(writer, "vocabulary", facts->vocabulary));
    if (facts->loss)
        DSC_TRY(dsc_st_writer_metadata(writer, "loss", facts->loss));
    if (!facts->has_seed)
        return DSC_OK;
    snprintf(number, sizeof number, "%" PRIu64, facts->seed);
    return dsc_st_writer_metadata(writer, "seed", number);
}

static dsc_status read_text(const dsc_st_reader *r, const char *key, char *out, size_t size) {
    const char *text = dsc_st_metadata(r, key);
    if (text && strlen(text) >= size)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': the name of its %s has %zu characters: %zu at most",
                        dsc_st_path(r), key, strlen(text), size - 1);
    snprintf(out, size, "%s", text ? text : "");
    return DSC_OK;
}

/* Reads the seed. A negative number, in older files, stands for one of 2^63 or more. */
static dsc_status read_seed(const dsc_st_reader *r, dsc_model_facts *facts) {
    const char *text = dsc_st_metadata(r, "seed");
    char *end;
    if (!text)
        return DSC_OK;
    errno = 0;
    facts->seed = strtoull(text, &end, 10);
    facts->has_seed = 1;
    if (errno || end == text || *end != '\0')
        return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata 'seed' is '%s', not a number", dsc_st_path(r), text);
    return DSC_OK;
}

/* Reads a share; 0 when the file does not have it. */
static dsc_status read_share(const dsc_st_reader *r, const char *key, double *out) {
    const char *text = dsc_st_metadata(r, key);
    char *end;
    if (!text)
        return DSC_OK;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !(*out >= 0 && *out <= 1))
        return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata '%s' is '%s', not a part of 1", dsc_st_path(r), key,
                        text);
    return DSC_OK;
}

/* Reads the loss. Without an entry it is BCE for a model with one output, else cross-entropy. */
static dsc_status read_loss(const dsc_st_reader *r, dsc_model_facts *facts) {
    const char *text = dsc_st_metadata(r, "loss");
    facts->loss = facts->classes == 1 ? DSC_LOSS_BCE : DSC_LOSS_CROSS_ENTROPY;
    if (!text)
        return DSC_OK;
    if (dsc_loss_parse(text, &facts->loss) != DSC_OK)
        return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata 'loss' is '%s', which is no loss", dsc_st_path(r),
                        text);
    return DSC_OK;
}

int64_t dsc_output_classes(int64_t outputs) {
    return outputs == 1 ? 2 : outputs;
}

const char *dsc_form_text(int64_t h, int64_t w, int64_t c, int64_t outputs, int tokens,
                          char text[DSC_FORM_TEXT]) {
    if (tokens)
        snprintf(text, DSC_FORM_TEXT, "sequences of %lld tokens and a vocabulary of %lld", (long long)h,
                 (long long)outputs);
    else
        snprintf(text, DSC_FORM_TEXT, "%lldx%lldx%lld images and %lld classes", (long long)h, (long long)w,
                 (long long)c, (long long)dsc_output_classes(outputs));
    return text;
}

dsc_status dsc_model_facts_read(const dsc_st_reader *reader, dsc_model_facts *facts) {
    memset(facts, 0, sizeof *facts);
    DSC_TRY(read_text(reader, "model", facts->model, sizeof facts->model));
    if (strcmp(facts->model, CUSTOM) == 0)
        facts->model[0] = '\0';
    DSC_TRY(read_text(reader, "data", facts->data, sizeof facts->data));
    DSC_TRY(read_seed(reader, facts));
    DSC_TRY(read_share(reader, "val_split", &facts->val_split));
    DSC_TRY(read_share(reader, "mask", &facts->mask));
    DSC_TRY(dsc_st_metadata_number(reader, "mask_token", &facts->mask_token));
    DSC_TRY(dsc_st_metadata_number(reader, "vocabulary", &facts->vocabulary));
    DSC_TRY(dsc_st_metadata_number(reader, "classes", &facts->classes));
    DSC_TRY(read_loss(reader, facts));
    DSC_TRY(dsc_st_metadata_number(reader, "height", &facts->height));
    DSC_TRY(dsc_st_metadata_number(reader, "width", &facts->width));
    DSC_TRY(dsc_st_metadata_number(reader, "channels", &facts->channels));
    return dsc_model_file_read_form(reader, facts);
}

dsc_status dsc_model_file_check(const dsc_model *model, const char *name, const dsc_st_reader *reader) {
    const char *path = dsc_st_path(reader);
    dsc_model_facts facts;
    char here[DSC_FORM_TEXT], there[DSC_FORM_TEXT];
    const int tokens = dsc_model_takes_tokens(model);
    int64_t shape[3], classes = dsc_model_classes(model);
    DSC_TRY(dsc_model_facts_read(reader, &facts));
    dsc_model_input_shape(model, shape);
    if (name && strcmp(name, CUSTOM) == 0)
        name = NULL;
    if (name && facts.model[0] && strcmp(facts.model, name) != 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s' is a checkpoint of model %s, this run trains %s", path,
                        facts.model, name);
    if (facts.classes >= 0 && (facts.classes != classes || facts.height != shape[0] ||
                               facts.width != shape[1] || facts.channels != shape[2]))
        return DSC_FAIL(
            DSC_E_INVALID,
            "'%s' is a checkpoint of %s for %s, this run has %s: resume it with data like those "
            "of its training, or start another run from its weights (init)",
            path, facts.model[0] ? facts.model : "a model",
            dsc_form_text(facts.height, facts.width, facts.channels, facts.classes, tokens, there),
            dsc_form_text(shape[0], shape[1], shape[2], classes, tokens, here));
    return dsc_statedict_check(model, name, reader);
}

/* ---- saving ---- */

void dsc_save_options_init_sized(dsc_save_options *options, size_t size) {
    const dsc_save_options defaults = {.step = -1, .epoch = -1, .mask_token = -1};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

dsc_status dsc_model_file_write(const dsc_model *model, dsc_queue *queue, const char *path,
                                const dsc_save_options *facts, dsc_st_writer **out) {
    dsc_st_writer *writer = NULL;
    DSC_TRY(dsc_st_writer_create(path, &writer));
    dsc_status status = dsc_model_file_describe(model, facts, writer);
    if (status == DSC_OK)
        status = dsc_model_file_describe_data(model, facts, writer);
    if (status == DSC_OK)
        status = dsc_statedict_write(model, queue, writer);
    if (status != DSC_OK) {
        dsc_st_writer_destroy(&writer);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = writer;
    return DSC_OK;
}

static dsc_status check_arguments(const dsc_model *model, const char *path) {
    if (!model || !path)
        return DSC_FAIL(DSC_E_INVALID, "the model and the file's path may not be NULL");
    if (dsc_model_state_count(model) == 0)
        return DSC_FAIL(DSC_E_INVALID, "'%s': the model has no parameters: seal it first", path);
    return DSC_OK;
}

dsc_status dsc_model_save(const dsc_model *model, const char *path, const dsc_save_options *options) {
    dsc_save_options facts;
    dsc_queue *queue = NULL;
    dsc_st_writer *writer = NULL;
    dsc_save_options_init(&facts);
    DSC_TRY(dsc_versioned_read("save", options, sizeof facts, &facts));
    DSC_TRY(check_arguments(model, path));
    DSC_TRY(dsc_queue_create(dsc_model_device(model), &queue));
    dsc_status status = dsc_model_file_write(model, queue, path, &facts, &writer);
    if (status == DSC_OK)
        status = dsc_st_writer_sync(writer);
    if (status == DSC_OK)
        status = dsc_st_writer_commit(writer);
    dsc_st_writer_destroy(&writer);
    dsc_queue_destroy(&queue);
    return status;
}

/* ---- loading ---- */

void dsc_load_options_init_sized(dsc_load_options *options, size_t size) {
    const dsc_load_options defaults = {0};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* Fails because no tensor of the file fits; names the first one that has at least the name of one of the model's. */
static dsc_status refuse_all(const dsc_model *model, const dsc_st_reader *reader) {
    dsc_status status = dsc_statedict_check_named(model, reader);
    if (status == DSC_OK)
        return DSC_FAIL(DSC_E_INVALID, "'%s' holds no tensor that has the name of one of the model's",
                        dsc_st_path(reader));
    return dsc_error_prefix(status,
                            "the file holds no tensor that has the name and shape of one of the model's");
}

static dsc_status load(dsc_model *model, const dsc_st_reader *reader, int partial, dsc_load_report *report) {
    dsc_queue *queue = NULL;
    if (!partial) {
        dsc_status status = dsc_statedict_check(model, NULL, reader);
        if (status == DSC_E_INVALID)
            dsc_error_prefix(status, "strict loading (a partial one takes what fits)");
        DSC_TRY(status);
    }
    if (report->loaded_count == 0)
        return refuse_all(model, reader);
    DSC_TRY(dsc_queue_create(dsc_model_device(model), &queue));
    dsc_status status = dsc_statedict_read(model, queue, reader);
    dsc_queue_destroy(&queue);
    return status;
}

dsc_status dsc_model_load(dsc_model *model, const char *path, const dsc_load_options *options,
                          dsc_load_report **report) {
    dsc_load_options o;
    dsc_st_reader *reader = NULL;
    dsc_load_report *found = NULL;
    if (report)
        *report = NULL;
    dsc_load_options_init(&o);
    DSC_TRY(dsc_versioned_read("load", options, sizeof o, &o));
    DSC_TRY(check_arguments(model, path));
    DSC_TRY(dsc_st_open(path, &reader));
    dsc_status status = dsc_statedict_compare(model, reader, &found);
    if (status == DSC_OK)
        status = load(model, reader, o.partial, found);
    dsc_st_close(&reader);
    if (status == DSC_E_INVALID)
        found->loaded_count = 0;
    if (report && (status == DSC_OK || status == DSC_E_INVALID))
        *report = found;
    else
        dsc_load_report_free(&found);
    return status;
}

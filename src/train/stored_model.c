/* Opening the file of a model. */
#include "train/stored_model.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/tokenizer.h"
#include "descent/log.h"
#include "model/graph.h"
#include "model/zoo/zoo.h"
#include "train/checkpoint_directory.h"
#include "train/checkpoint_find.h"
#include "train/hub_names.h"

#include <stdio.h>
#include <string.h>

/* Refuses a state file, which is easily given by mistake for the model file beside it. */
static dsc_status refuse_state(const char *path) {
    static const char end[] = ".state.safetensors";
    size_t length = strlen(path), tail = strlen(end);
    char *none = NULL;
    if (length < tail || strcmp(path + length - tail, end) != 0)
        return DSC_OK;
    return dsc_checkpoint_state_path(path, &none); /* fails, and the message names the model file */
}

/* Says what a file of another program, or of an older version, lacks. Sequences have no image size. */
static void note_missing(const dsc_st_reader *reader, const dsc_model_facts *facts, const char *model) {
    int sums = dsc_st_has_sums(reader), size = facts->height > 0 || dsc_zoo_takes_tokens(model);
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
    note_missing(reader, facts, model ? model : facts->model);
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

/* The file's table of a node; NULL when it has none, under none of its names. */
static const dsc_st_tensor *find_table(const dsc_model *model, const dsc_node *node,
                                       const dsc_st_reader *reader) {
    for (int64_t i = 0; i < model->tensor_count; i++) {
        const dsc_state_tensor *own = &model->tensors[i];
        if (!own->trained || own->number != node->weight)
            continue;
        const dsc_st_tensor *t = dsc_hub_find(reader, own->name);
        if (t && t->ndim == 2)
            return t;
    }
    return NULL;
}

static void read_tables(const dsc_model *model, const dsc_st_reader *reader, dsc_model_facts *facts) {
    for (int64_t i = 0; i < model->node_count; i++) {
        const dsc_node *node = &model->nodes[i];
        const dsc_st_tensor *table = node->table >= 0 ? find_table(model, node, reader) : NULL;
        if (!table)
            continue;
        if (dsc_embedding_is_of_positions(node)) {
            facts->height = table->dim[0];
            facts->width = facts->channels = 1;
        } else if (dsc_embedding_is_of_tokens(node)) {
            facts->classes = facts->vocabulary = table->dim[0];
            facts->of_tables = 1;
        }
    }
}

dsc_status dsc_stored_model_read_tables(dsc_device *device, const dsc_st_reader *reader,
                                        dsc_model_facts *facts) {
    dsc_model *model = NULL;
    dsc_value logits;
    int64_t shape[3] = {0, 1, 1}, classes;
    if (facts->height > 0 || facts->classes > 0 || !dsc_zoo_takes_tokens(facts->model))
        return DSC_OK;
    DSC_TRY(dsc_zoo_default_input(facts->model, &shape[0], NULL, &classes));
    DSC_TRY(dsc_model_create(device, NULL, &model)); /* never sealed, so that it has names but no numbers */
    dsc_status status = dsc_zoo_build(model, facts->model, shape, classes, &logits);
    if (status == DSC_OK)
        read_tables(model, reader, facts);
    dsc_model_destroy(&model);
    return status;
}

dsc_status dsc_stored_model_create(dsc_device *device, const dsc_model_facts *facts, int64_t h, int64_t w,
                                   int64_t c, int64_t outputs, dsc_model **out) {
    dsc_model_options options;
    dsc_model_options_init(&options);
    options.zeros = 1;
    return dsc_zoo_create(device, facts->model, h, w, c, outputs, &options, out);
}

dsc_status dsc_stored_model_check_vocabulary(const dsc_model_facts *facts, const dsc_tokenizer *tokenizer,
                                             const char *data) {
    enum { PADDED_TO = 128 }; /* rows of a table are usually padded to a multiple of 64 or 128 */
    const int64_t rows = facts->classes, tokens = tokenizer ? dsc_tokenizer_vocabulary(tokenizer) : rows;
    if (!facts->of_tables || (rows >= tokens && rows - tokens < PADDED_TO))
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_INVALID,
        "the model's table has %lld tokens, the tokenizer of %s has %lld: use text that is tokenized "
        "with the model's own vocabulary (descent tokenize with its " DSC_VOCAB_JSON " and " DSC_MERGES_TXT
        ")",
        (long long)rows, data, (long long)tokens);
}

void dsc_stored_model_note_form(const dsc_model_facts *facts, const char *like) {
    if (facts->resize < 0)
        dsc_log(DSC_LOG_WARNING, "the checkpoint does not say how images are scaled: they are as those of %s",
                like);
}

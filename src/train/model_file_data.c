/* What a model's file says about the data: class names, the tokenizer of text, and how an image becomes the model's
 * input. Values of the metadata are text, so they are stored as JSON:
 *
 *   class_names    ["cat", "dog"]
 *   resize         256                       the shorter side of an image before the middle is cut out
 *   mean, std      [0.485, 0.456, 0.406]     a byte b of channel c becomes (b / 255 - mean[c]) / std[c]
 *   tokenizer      {"kind": "chars", "vocabulary": 2, "characters": [10, 97]}
 *   vocab.json, merges.txt                   what these files hold, with a tokenizer of kind bpe */
#include "train/model_file.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/tokenizer.h"
#include "descent/log.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER "tokenizer"

enum { MAX_RESIZE = 1 << 16 };

/* ---- writing ---- */

/* Stores the text of `value`, and frees both. */
static dsc_status describe_json(dsc_st_writer *w, const char *key, json_t *value) {
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    dsc_status status = text ? dsc_st_writer_metadata(w, key, text)
                             : DSC_FAIL(DSC_E_INVALID, "'%s' cannot be stored: is it UTF-8?", key);
    free(text);
    return status;
}

static dsc_status describe_numbers(dsc_st_writer *w, const char *key, const double *numbers, int64_t count) {
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++) {
        if (json_array_append_new(array, json_real(numbers[i])) == 0)
            continue;
        json_decref(array);
        return DSC_FAIL(DSC_E_INVALID, "'%s' of channel %lld is %g, which cannot be stored", key,
                        (long long)i, numbers[i]);
    }
    return describe_json(w, key, array);
}

static dsc_status describe_names(dsc_st_writer *w, const char *const *names, int64_t count) {
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++) {
        if (json_array_append_new(array, json_string(names[i])) == 0)
            continue;
        json_decref(array);
        return DSC_FAIL(DSC_E_INVALID, "the name of class %lld cannot be stored: is '%s' UTF-8?",
                        (long long)i, names[i] ? names[i] : "");
    }
    return describe_json(w, "class_names", array);
}

static dsc_status describe_tokenizer(dsc_st_writer *w, const dsc_tokenizer *t) {
    if (t->bpe) {
        DSC_TRY(dsc_st_writer_metadata(w, DSC_VOCAB_JSON, t->bpe->vocab_text));
        DSC_TRY(dsc_st_writer_metadata(w, DSC_MERGES_TXT, t->bpe->merges_text));
    }
    return describe_json(w, TOKENIZER, dsc_tokenizer_json(t));
}

dsc_status dsc_model_file_describe_data(const dsc_model *model, const dsc_save_options *facts,
                                        dsc_st_writer *writer) {
    int64_t shape[3], classes = dsc_output_classes(dsc_model_classes(model));
    int64_t names = facts->class_name_count < classes ? facts->class_name_count : classes;
    dsc_model_input_shape(model, shape);
    if (facts->mean && facts->std && shape[2] <= DSC_FACTS_CHANNELS) {
        DSC_TRY(describe_numbers(writer, "mean", facts->mean, shape[2]));
        DSC_TRY(describe_numbers(writer, "std", facts->std, shape[2]));
    }
    /* A comment in merges.txt may be in any encoding, which is no reason to lose the checkpoint. */
    if (facts->tokenizer && describe_tokenizer(writer, facts->tokenizer) != DSC_OK)
        dsc_log(DSC_LOG_WARNING, "the checkpoint does not hold its tokenizer: %s", dsc_error_message());
    if (facts->resize != 0) {
        char number[32];
        if (facts->resize < shape[0] || facts->resize < shape[1])
            return DSC_FAIL(DSC_E_INVALID,
                            "images scaled to %lld pixels are smaller than the input of %lldx%lld",
                            (long long)facts->resize, (long long)shape[0], (long long)shape[1]);
        snprintf(number, sizeof number, "%" PRId64, facts->resize);
        DSC_TRY(dsc_st_writer_metadata(writer, "resize", number));
    }
    /* Folders may have names that are not UTF-8, which does not make the checkpoint worthless. */
    if (facts->class_names && names > 0 && describe_names(writer, facts->class_names, names) != DSC_OK)
        dsc_log(DSC_LOG_WARNING, "the checkpoint does not name its classes: %s", dsc_error_message());
    return DSC_OK;
}

/* ---- reading ---- */

static dsc_status refuse(const dsc_st_reader *r, const char *key, const char *wanted) {
    return DSC_FAIL(DSC_E_FORMAT, "'%s': metadata '%s' is not %s", dsc_st_path(r), key, wanted);
}

/* Reads an array of numbers, which must be finite and above `above`; *found is 0 when the file does not have it. */
static dsc_status read_numbers(const dsc_st_reader *r, const char *key, double above, int64_t count,
                               double *out, int *found) {
    const char *text = dsc_st_metadata(r, key);
    json_error_t error;
    *found = text != NULL;
    if (!text)
        return DSC_OK;
    json_t *array = json_loads(text, 0, &error);
    int good = json_is_array(array) && (int64_t)json_array_size(array) == count;
    for (int64_t i = 0; i < count && good; i++) {
        json_t *number = json_array_get(array, (size_t)i);
        out[i] = json_number_value(number);
        good = json_is_number(number) && isfinite(out[i]) && out[i] > above;
    }
    json_decref(array);
    return good ? DSC_OK : refuse(r, key, "a JSON array of one number per channel");
}

dsc_status dsc_model_file_read_form(const dsc_st_reader *reader, dsc_model_facts *facts) {
    int has_mean = 0, has_std = 0;
    DSC_TRY(dsc_st_metadata_number(reader, "resize", &facts->resize));
    if (facts->height < 1 || facts->width < 1)
        facts->resize = -1;
    if (facts->resize >= 0 &&
        (facts->resize < facts->height || facts->resize < facts->width || facts->resize > MAX_RESIZE))
        return refuse(reader, "resize", "a number of pixels, at least the image size and at most 65536");
    if (facts->channels < 1 || facts->channels > DSC_FACTS_CHANNELS)
        return DSC_OK;
    DSC_TRY(read_numbers(reader, "mean", -HUGE_VAL, facts->channels, facts->mean, &has_mean));
    DSC_TRY(read_numbers(reader, "std", 0, facts->channels, facts->std, &has_std));
    facts->has_normalisation = has_mean && has_std;
    return DSC_OK;
}

/* Copies the array and its strings into one block of memory. */
static dsc_status copy_names(const dsc_st_reader *r, json_t *array, const char *const **out, int64_t *count) {
    size_t names = json_array_size(array), bytes = names * sizeof(char *), i;
    const char **copy;
    json_t *name;
    json_array_foreach(array, i, name) {
        if (!json_is_string(name))
            return refuse(r, "class_names", "a JSON array of names");
        bytes += json_string_length(name) + 1;
    }
    DSC_TRY(dsc_memory_alloc((int64_t)bytes, 1, &copy));
    char *next = (char *)(copy + names);
    json_array_foreach(array, i, name) {
        size_t size = json_string_length(name) + 1;
        memcpy(next, json_string_value(name), size);
        copy[i] = next;
        next += size;
    }
    *out = copy;
    *count = (int64_t)names;
    return DSC_OK;
}

dsc_status dsc_model_file_class_names(const dsc_st_reader *reader, const char *const **out, int64_t *count) {
    const char *text = dsc_st_metadata(reader, "class_names");
    json_error_t error;
    int64_t classes = -1;
    *out = NULL;
    *count = 0;
    if (!text)
        return DSC_OK;
    DSC_TRY(dsc_st_metadata_number(reader, "classes", &classes));
    json_t *array = json_loads(text, 0, &error);
    dsc_status status = DSC_OK;
    if (!json_is_array(array) || (int64_t)json_array_size(array) > dsc_output_classes(classes))
        status = refuse(reader, "class_names", "a JSON array of names, one per class at most");
    else if (json_array_size(array) > 0)
        status = copy_names(reader, array, out, count);
    json_decref(array);
    return status;
}

dsc_status dsc_model_file_tokenizer(const dsc_st_reader *reader, dsc_tokenizer **out) {
    const char *text = dsc_st_metadata(reader, TOKENIZER);
    *out = NULL;
    if (!text)
        return DSC_OK;
    dsc_status status = dsc_tokenizer_of_text(text, dsc_st_metadata(reader, DSC_VOCAB_JSON),
                                              dsc_st_metadata(reader, DSC_MERGES_TXT), out);
    return status == DSC_OK ? DSC_OK : dsc_error_prefix(status, "the tokenizer in '%s'", dsc_st_path(reader));
}

dsc_status dsc_model_file_check_tokenizer(const dsc_st_reader *reader, const dsc_tokenizer *tokenizer,
                                          const char *data) {
    dsc_tokenizer *own = NULL;
    if (!tokenizer)
        return DSC_OK;
    DSC_TRY(dsc_model_file_tokenizer(reader, &own));
    const int same = !own || dsc_tokenizer_is_same(own, tokenizer);
    dsc_tokenizer_destroy(&own);
    if (same)
        return DSC_OK;
    return DSC_FAIL(
        DSC_E_INVALID,
        "the tokens of %s stand for other text than those that '%s' was trained on: use text with the "
        "same characters, or tokenize it with the same vocabulary",
        data, dsc_st_path(reader));
}

/* Fine-tuning: see finetune.h. */
#include "train/finetune.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/checkpoint.h"
#include "descent/log.h"
#include "model/graph.h"
#include "train/checkpoint_find.h"
#include "train/kfac_setup.h"
#include "train/model_file.h"
#include "train/share.h"
#include "train/trainer_internal.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

static dsc_status compile(const char *expression, const char *prefix, regex_t *regex) {
    int code = regcomp(regex, expression, REG_EXTENDED | REG_NOSUB);
    char why[128];
    if (code == 0)
        return DSC_OK;
    regerror(code, regex, why, sizeof why);
    return DSC_FAIL(DSC_E_INVALID, "%sfreeze '%s' is not a POSIX extended regular expression: %s", prefix,
                    expression, why);
}

dsc_status dsc_finetune_check(const dsc_settings *settings, const char *prefix) {
    const dsc_train_options *o = &settings->train;
    regex_t regex;
    if (o->head_lr != 1 && settings->kfac.update_freq > 0 && o->kfac_damping_adapt > 0)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%shead-lr %g does not go with %skfac-damping-adapt %lld, which predicts a step in which "
            "all parameters have the same rate: leave out one of them",
            prefix, o->head_lr, prefix, (long long)o->kfac_damping_adapt);
    if (!o->freeze)
        return DSC_OK;
    DSC_TRY(compile(o->freeze, prefix, &regex));
    regfree(&regex);
    return DSC_OK;
}

/* ---- rates ---- */

/* The last layer with parameters on the way to the logits; NULL when there is none. */
static const dsc_node *find_head(const dsc_model *model) {
    const dsc_node *node = &model->nodes[model->logits];
    while (node->param_count == 0 && node->inputs > 0)
        node = &model->nodes[node->in[0]];
    return node->param_count > 0 ? node : NULL;
}

static dsc_status set_head_rate(const dsc_trainer *t) {
    const dsc_node *head = find_head(t->model);
    for (int64_t i = 0; i < t->model->node_count; i++)
        if (dsc_embedding_is_shared(&t->model->nodes[i]))
            return DSC_FAIL(
                DSC_E_INVALID,
                "head-lr %g: the model's last layer shares its weight with an embedding, so it has no "
                "rate of its own: leave head-lr out",
                t->options.head_lr);
    if (!head)
        return DSC_FAIL(DSC_E_INVALID, "head-lr %g: no layer on the way to the model's output has parameters",
                        t->options.head_lr);
    for (int64_t i = 0; i < head->param_count; i++)
        t->rates[head->first_param + i] = t->options.head_lr;
    return DSC_OK;
}

static dsc_status freeze(const dsc_trainer *t) {
    const dsc_param *params = dsc_model_params(t->model);
    const int64_t count = dsc_model_param_count(t->model);
    int64_t frozen = 0;
    regex_t regex;
    DSC_TRY(compile(t->options.freeze, "", &regex));
    for (int64_t i = 0; i < count; i++) {
        if (regexec(&regex, params[i].name, 0, NULL, 0) != 0)
            continue;
        t->rates[i] = 0;
        frozen++;
    }
    regfree(&regex);
    if (frozen == 0)
        return DSC_FAIL(
            DSC_E_INVALID, "freeze '%s' is found in no parameter's name: they go from '%s' to '%s'",
            t->options.freeze, count > 0 ? params[0].name : "", count > 0 ? params[count - 1].name : "");
    if (frozen == count)
        return DSC_FAIL(DSC_E_INVALID,
                        "freeze '%s' is found in the names of all %lld parameters: nothing is left "
                        "to train",
                        t->options.freeze, (long long)count);
    return DSC_OK;
}

dsc_status dsc_finetune_rates(dsc_trainer *t) {
    const int64_t count = dsc_model_param_count(t->model);
    if (t->options.head_lr == 1 && !t->options.freeze)
        return DSC_OK;
    DSC_TRY(dsc_memory_alloc(count, sizeof *t->rates, &t->rates));
    for (int64_t i = 0; i < count; i++)
        t->rates[i] = 1;
    if (t->options.head_lr != 1)
        DSC_TRY(set_head_rate(t));
    return t->options.freeze ? freeze(t) : DSC_OK;
}

static int is_frozen(const dsc_trainer *t, int64_t param) {
    return param >= 0 && t->rates[param] == 0;
}

void dsc_finetune_leave_out(const dsc_trainer *t, dsc_kfac_layer *layers, int64_t count) {
    const dsc_layer_info *infos = dsc_model_layers(t->model);
    const int64_t with_weights = dsc_model_layer_count(t->model);
    if (!t->rates)
        return;
    for (int64_t i = 0; i < count && i < with_weights; i++)
        layers[i].leave_out |= is_frozen(t, infos[i].weight) || is_frozen(t, infos[i].bias);
    for (int64_t i = 0; i < t->model->node_count; i++) {
        const dsc_node *node = &t->model->nodes[i];
        const int64_t number = dsc_kfac_number_of(t->model, t->options.kfac, node);
        if (number >= 0 && number < count)
            layers[number].leave_out |=
                is_frozen(t, node->weight) || (node->tied < 0 && is_frozen(t, node->bias));
    }
}

/* ---- weights to start from ---- */

enum { NAMED = 4 }; /* tensors that are named in a line; the others are counted */

static void put_number(FILE *to, int64_t number) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)number);
    fputs(text, to);
}

/* "10x512" */
static void put_dims(FILE *to, int ndim, const int64_t *dim) {
    for (int i = 0; i < ndim; i++) {
        fputs(i ? "x" : "", to);
        put_number(to, dim[i]);
    }
    if (ndim == 0)
        fputs("one number", to);
}

static void end_list(FILE *to, int64_t count) {
    if (count > NAMED) {
        fputs(" and ", to);
        put_number(to, count - NAMED);
        fputs(" more", to);
    }
    if (count > 0)
        fputc('\n', to);
}

/* Tensors of the file that are not used: those of another shape, or those that the model does not have. */
static void put_skipped(FILE *to, const dsc_load_report *r, int in_model) {
    int64_t count = 0;
    for (int64_t i = 0; i < r->skipped_count; i++) {
        const dsc_load_skipped *s = &r->skipped[i];
        if (s->in_model != in_model)
            continue;
        if (count == 0)
            fputs(in_model ? "made anew: " : "passed over, because the model has no such tensor: ", to);
        if (count < NAMED) {
            fputs(count > 0 ? ", " : "", to);
            fputs(s->name, to);
            if (in_model) {
                fputs(" (", to);
                put_dims(to, s->model_ndim, s->model_dim);
                fputs(", in the file ", to);
                put_dims(to, s->file_ndim, s->file_dim);
                fputs(")", to);
            }
        }
        count++;
    }
    end_list(to, count);
}

/* Tables of positions whose first rows are used. */
static void put_resized(FILE *to, const dsc_load_report *r) {
    for (int64_t i = 0; i < r->resized_count && i < NAMED; i++) {
        const dsc_load_skipped *s = &r->resized[i];
        const int64_t file = s->file_dim[0], model = s->model_dim[0];
        fputs(i ? ", " : "positions: ", to);
        fputs(file > model ? "the first " : "all ", to);
        put_number(to, file > model ? model : file);
        if (file > model) {
            fputs(" of ", to);
            put_number(to, file);
        }
        fputs(" rows of ", to);
        fputs(s->name, to);
        if (file < model) {
            fputs(", and ", to);
            put_number(to, model - file);
            fputs(" made anew", to);
        }
    }
    end_list(to, r->resized_count);
}

static void put_report(FILE *to, const char *path, const dsc_load_report *r, int64_t tensors) {
    fputs("started from '", to);
    fputs(path, to);
    fputs("': ", to);
    put_number(to, r->loaded_count);
    fputs(" of ", to);
    put_number(to, tensors);
    fputs(" tensors loaded\n", to);
    put_resized(to, r);
    put_skipped(to, r, 1);
    for (int64_t i = 0; i < r->missing_count && i < NAMED; i++) {
        fputs(i ? ", " : "not in the file and made anew: ", to);
        fputs(r->missing[i], to);
    }
    end_list(to, r->missing_count);
    put_skipped(to, r, 0);
}

static int is_loaded(const dsc_load_report *r, const char *name) {
    for (int64_t i = 0; i < r->loaded_count; i++)
        if (strcmp(r->loaded[i], name) == 0)
            return 1;
    return 0;
}

/* Warns when the rows of a loaded table stand for other text than in the run that wrote the file. */
static dsc_status compare_tokens(const dsc_trainer *t, const char *path, const dsc_load_report *r) {
    dsc_st_reader *reader = NULL;
    int loaded = 0;
    for (int64_t i = 0; i < t->model->node_count; i++)
        if (dsc_embedding_is_of_tokens(&t->model->nodes[i]))
            loaded |= is_loaded(r, dsc_model_params(t->model)[t->model->nodes[i].weight].name);
    if (!loaded || !t->train_set)
        return DSC_OK;
    DSC_TRY(dsc_st_open(path, &reader));
    dsc_status status =
        dsc_model_file_check_tokenizer(reader, dsc_dataset_tokenizer(t->train_set), t->options.data);
    dsc_st_close(&reader);
    if (status != DSC_E_INVALID)
        return status;
    dsc_log(DSC_LOG_WARNING, "the run starts with a table of other tokens: %s", dsc_error_message());
    return DSC_OK;
}

/* Rank 0: loads the tensors of a file that fit, and keeps a report in t->finetune_note. */
static dsc_status load(dsc_trainer *t, const char *path) {
    dsc_load_options partial;
    dsc_load_report *report = NULL;
    size_t length = 0;
    dsc_load_options_init(&partial);
    partial.partial = 1;
    dsc_status status = dsc_model_load(t->model, path, &partial, &report);
    if (status == DSC_OK) {
        FILE *to = open_memstream(&t->finetune_note, &length);
        if (to)
            put_report(to, path, report, dsc_model_state_count(t->model));
        if (!to || fclose(to) != 0)
            status = DSC_FAIL(DSC_E_MEMORY, "no memory to say what was loaded");
    }
    if (status == DSC_OK)
        status = compare_tokens(t, path, report);
    dsc_load_report_free(&report);
    return status;
}

static dsc_status find_and_load(dsc_trainer *t) {
    char *path = NULL;
    dsc_status status = dsc_checkpoint_find(t->options.init, &path);
    if (status == DSC_OK)
        status = load(t, path);
    if (status != DSC_OK)
        dsc_error_prefix(status, "cannot start from '%s'", t->options.init);
    dsc_memory_free(&path);
    return status;
}

dsc_status dsc_finetune_start(dsc_trainer *t) {
    if (!t->options.init)
        return DSC_OK;
    DSC_TRY(dsc_comm_agree(t->comm, t->rank == 0 ? find_and_load(t) : DSC_OK));
    return dsc_share_model(t->comm, t->queue, t->model);
}

/* ---- reports ---- */

static void report_frozen(const dsc_trainer *t) {
    const dsc_param *params = dsc_model_params(t->model);
    const int64_t count = dsc_model_param_count(t->model);
    int64_t frozen = 0, numbers = 0;
    char text[256];
    for (int64_t i = 0; i < count; i++) {
        frozen += is_frozen(t, i);
        numbers += is_frozen(t, i) ? dsc_tensor_count(&params[i].value) : 0;
    }
    snprintf(text, sizeof text, "frozen: %lld of %lld tensors of parameters (%lld of %lld numbers)",
             (long long)frozen, (long long)count, (long long)numbers,
             (long long)dsc_model_parameter_total(t->model));
    if (frozen > 0)
        dsc_trainer_emit_text(t, DSC_EVENT_NOTE, text);
}

void dsc_finetune_report(const dsc_trainer *t) {
    char *copy = t->finetune_note ? strdup(t->finetune_note) : NULL, *rest = NULL;
    for (const char *line = copy ? strtok_r(copy, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        dsc_trainer_emit_text(t, DSC_EVENT_NOTE, line);
    free(copy);
    if (t->rates)
        report_frozen(t);
}

/* The description of a run. Its options come from the option tables: of each group, first a few that are always
 * listed, then those that apply and differ from their default. */
#include "train/announce.h"

#include "base/error.h"
#include "base/option.h"
#include "train/model_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct line {
    const dsc_trainer *t;
    dsc_option table[DSC_SETTINGS_OPTIONS]; /* of t->settings */
    dsc_settings defaults;
    char text[2048];
    size_t used;
} line;

static void __attribute__((format(printf, 2, 3))) add(line *l, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(l->text + l->used, sizeof l->text - l->used, format, arguments);
    va_end(arguments);
    if (length > 0)
        l->used += (size_t)length;
    if (l->used >= sizeof l->text)
        l->used = sizeof l->text - 1;
}

static void begin(line *l, const char *label) {
    l->used = 0;
    add(l, "%s: ", label);
}

static void end(line *l) {
    dsc_trainer_emit_text(l->t, DSC_EVENT_START, l->text);
}

/* 1 when `words`, a list separated by blanks, contains `word`. */
static int holds(const char *words, const char *word) {
    size_t length = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return 1;
    return 0;
}

/* Adds ", name value", without the prefix "kfac-" of K-FAC's options. */
static void add_option(line *l, const dsc_option *o, const char *value) {
    const char *name = strncmp(o->name, "kfac-", 5) == 0 ? o->name + 5 : o->name;
    int flag = o->kind == DSC_OPTION_FLAG || o->kind == DSC_OPTION_NO_FLAG;
    add(l, flag ? ", %s" : ", %s %s", name, value);
}

/* Adds the options of a group that apply: those in `always`, and those that neither have their default value
 * nor are in `never`. */
static void add_group(line *l, const char *group, const char *always, const char *never) {
    const dsc_settings *s = &l->t->settings;
    char value[512], usual[512];
    for (const dsc_option *o = l->table; o->name; o++) {
        if (strcmp(o->group, group) != 0 || !o->json || holds(never, o->name))
            continue;
        dsc_option_get_value(o, s, value, sizeof value);
        dsc_option_get_value(o, &l->defaults, usual, sizeof usual);
        int shown = *value && (holds(always, o->name) || strcmp(value, usual) != 0);
        if (shown && dsc_option_applies(l->table, o, s))
            add_option(l, o, value);
    }
}

static void describe_data(line *l) {
    const dsc_trainer *t = l->t;
    const long long val = t->val_set ? (long long)dsc_dataset_get_info(t->val_set).count : 0;
    int64_t shape[3];
    dsc_model_input_shape(t->model, shape);
    begin(l, "model");
    add(l, "%s, %lld parameters, %s", t->options.model, (long long)dsc_model_parameter_total(t->model),
        dsc_dtype_name(t->options.activations));
    end(l);
    if (t->options.recompute) {
        begin(l, "recompute");
        add(l, "activations take %.1f MB instead of %.1f MB", 1e-6 * (double)dsc_exec_bytes(t->exec),
            1e-6 * (double)dsc_exec_bytes_without_recompute(t->exec));
        end(l);
    }
    begin(l, "data");
    add(l, "%s, %lld ", t->options.data, (long long)t->info.count);
    if (dsc_model_takes_tokens(t->model))
        add(l, "sequences of %lld tokens, vocabulary %lld", (long long)shape[0],
            (long long)dsc_model_classes(t->model));
    else
        add(l, "images of %lldx%lldx%lld, %lld classes", (long long)shape[0], (long long)shape[1],
            (long long)shape[2], (long long)dsc_output_classes(dsc_model_classes(t->model)));
    const long long pictures = t->val_set ? (long long)dsc_dataset_pictures(t->val_set) : 0;
    if (pictures > 0)
        add(l, ", %lld more in %lld tiles for validation", pictures, val);
    else if (val > 0)
        add(l, ", %lld for validation", val);
    else
        add(l, ", not evaluated");
    add_group(l, "What to train", "", "model data image-size context epochs steps batch-size seed");
    end(l);
}

static void describe_ranks(line *l) {
    const dsc_trainer *t = l->t;
    const dsc_train_options *o = &t->options;
    begin(l, "ranks");
    add(l, "%d of batch %lld", t->ranks, (long long)o->batch_size);
    if (o->batches_per_allreduce > 1)
        add(l, " x %lld", (long long)o->batches_per_allreduce);
    if (t->step_images != o->batch_size)
        add(l, ", %lld %s a step", (long long)t->step_images,
            dsc_model_takes_tokens(t->model) ? "sequences" : "images");
    if (t->ranks > 1)
        add(l, ", %s", dsc_comm_description(t->comm));
    end(l);
    begin(l, "device");
    add(l, "%s", dsc_device_description(t->device));
    end(l);
    begin(l, "length");
    add(l, "%lld epoch%s of %lld step%s", (long long)o->epochs, o->epochs == 1 ? "" : "s",
        (long long)t->epoch_steps, t->epoch_steps == 1 ? "" : "s");
    if (o->steps > 0)
        add(l, ", at most %lld steps", (long long)o->steps);
    add(l, ", seed %llu", (unsigned long long)o->seed);
    end(l);
}

static void describe_rate(line *l) {
    const dsc_trainer *t = l->t;
    const dsc_train_options *o = &t->options;
    const dsc_schedule *s = &t->schedule;
    begin(l, "rate");
    add(l, "%g", s->target);
    if (s->target != o->lr)
        add(l, " (%g x %lld)", o->lr, (long long)t->ranks * (long long)o->batches_per_allreduce);
    if (s->warmup_epochs > 0 && s->warmup_start != s->target)
        add(l, ", from %g in %g epoch%s", s->warmup_start, s->warmup_epochs,
            s->warmup_epochs == 1 ? "" : "s");
    add_group(l, "Learning rate", "lr-schedule", "lr lr-scaling warmup-epochs warmup-start");
    if (o->lr_schedule == DSC_SCHEDULE_STEP && o->lr_decay_count == 0)
        add(l, ", never decayed");
    end(l);
}

static void describe_method(line *l) {
    const dsc_settings *s = &l->t->settings;
    begin(l, "optimizer");
    add(l, "%s", dsc_optim_name(s->optim.kind));
    add_group(l, "Optimiser", "momentum weight-decay", "optimizer");
    end(l);
    describe_rate(l);
    begin(l, "consensus");
    add(l, "%s", dsc_consensus_name(s->consensus.kind));
    const dsc_topology *topology = dsc_consensus_topology(l->t->consensus);
    if (topology && !s->consensus.graph)
        add(l, ", graph %s", dsc_topology_name(topology));
    add_group(l, "Gossip", "peers-per-step", "");
    add_group(l, "Many ranks", "", "consensus batches-per-allreduce");
    end(l);
    begin(l, "K-FAC");
    if (l->t->kfac) {
        add(l, "%s", dsc_kfac_method_name(s->kfac.method));
        add_group(l, "Preconditioner (K-FAC)",
                  "kfac-update-freq kfac-cov-update-freq kfac-damping kfac-stat-decay kfac-kl-clip "
                  "kfac-strategy",
                  "kfac-method");
    } else {
        add(l, "off");
    }
    end(l);
}

static void add_notes(line *l, const char *resumed) {
    const dsc_trainer *t = l->t;
    if (!t->collective && t->ranks > 1 && t->kfac && !t->kfac_comm)
        dsc_trainer_emit_text(
            t, DSC_EVENT_NOTE,
            "K-FAC averages its factors over all ranks: every step waits for everybody, although "
            "parameters gossip; with scope gossip or local no step does");
    l->used = 0;
    if (resumed[0])
        add(l, "resumed from '%s': step %lld, epoch %lld, sample %lld of it", resumed,
            (long long)t->state.step, (long long)t->state.epoch, (long long)t->state.position);
    else if (t->options.resume)
        add(l, "no checkpoint in '%s': starts anew", t->options.out);
    if (l->used > 0)
        dsc_trainer_emit_text(t, DSC_EVENT_NOTE, l->text);
}

void dsc_announce(const dsc_trainer *t, const char *resumed) {
    line l = {.t = t};
    if (t->rank != 0 || !t->options.progress)
        return;
    if (dsc_settings_table(l.table) != DSC_OK)
        l.table[0].name = NULL;
    dsc_option_defaults(l.table, &l.defaults);
    describe_data(&l);
    describe_ranks(&l);
    describe_method(&l);
    begin(&l, "output");
    add(&l, "%s", t->options.out ? t->options.out : "none");
    end(&l);
    add_notes(&l, resumed);
}

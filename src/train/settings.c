/* Options of a run: copied, checked, written to a file. The table of each part says what is valid; what
 * depends on several options at once is checked here. */
#include "train/settings.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/versioned.h"
#include "descent/model.h"
#include "descent/version.h"
#include "train/bad_images.h"
#include "train/finetune.h"
#include "train/tensorboard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dsc_settings_parts(const dsc_train_options *options, dsc_settings_part parts[DSC_SETTINGS_PARTS]) {
    parts[0] = (dsc_settings_part){dsc_train_option_table(), options};
    parts[1] = (dsc_settings_part){dsc_optim_option_table(), options->optim};
    parts[2] = (dsc_settings_part){dsc_consensus_option_table(), options->consensus};
    parts[3] = (dsc_settings_part){dsc_kfac_option_table(), options->kfac};
    parts[4] = (dsc_settings_part){NULL, NULL};
}

dsc_status dsc_settings_table(dsc_option table[DSC_SETTINGS_OPTIONS]) {
    table[0].name = NULL;
    DSC_TRY(dsc_option_join(table, DSC_SETTINGS_OPTIONS, dsc_train_option_table(),
                            offsetof(dsc_settings, train), sizeof(dsc_train_options), NULL));
    DSC_TRY(dsc_option_join(table, DSC_SETTINGS_OPTIONS, dsc_optim_option_table(),
                            offsetof(dsc_settings, optim), sizeof(dsc_optim_options), NULL));
    DSC_TRY(dsc_option_join(table, DSC_SETTINGS_OPTIONS, dsc_kfac_option_table(),
                            offsetof(dsc_settings, kfac), sizeof(dsc_kfac_options), NULL));
    return dsc_option_join(table, DSC_SETTINGS_OPTIONS, dsc_consensus_option_table(),
                           offsetof(dsc_settings, consensus), sizeof(dsc_consensus_options), NULL);
}

const char *dsc_settings_shared_value(const dsc_option *o, const void *values, char *text, size_t size) {
    dsc_option_get_value(o, values, text, size);
    if (o->flags & DSC_OPTION_OWN_TEXT)
        snprintf(text, size, "%s", *text ? "given" : "");
    if (o->flags & DSC_OPTION_OWN_PLACE && strncmp(text, "synthetic", strcspn(text, ":")) != 0)
        text[strcspn(text, ":")] = '\0';
    return text;
}

/* ---- checks ---- */

static dsc_status check_peer_loss(const dsc_settings *s, const char *prefix) {
    const dsc_consensus_options *c = &s->consensus;
    if (s->train.on_peer_loss == DSC_PEER_LOSS_STOP)
        return DSC_OK;
    if (c->kind == DSC_CONSENSUS_ALLREDUCE)
        return DSC_FAIL(DSC_E_INVALID,
                        "%son-peer-loss continue does not go with %sconsensus allreduce, where every step "
                        "needs all ranks: choose one of sgp, osgp, dpsgd, adpsgd, or stop",
                        prefix, prefix);
    if (!(c->peer_timeout > 0))
        return DSC_FAIL(DSC_E_INVALID,
                        "%son-peer-loss continue with %speer-timeout 0: a rank counts as lost when it was "
                        "silent for that many seconds, so nobody ever would; give seconds",
                        prefix, prefix);
    if (c->group != 1)
        return DSC_FAIL(DSC_E_INVALID,
                        "%son-peer-loss continue does not go with %sgossip-group %d: the others of a lost "
                        "rank's group could not go on; give %sgossip-group 1, or stop",
                        prefix, prefix, c->group, prefix);
    if (s->kfac.update_freq > 0 && s->train.kfac_scope == DSC_SCOPE_GLOBAL)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%son-peer-loss continue does not go with %skfac-scope global, which averages factors "
            "over all ranks: give %skfac-scope gossip or local, or stop",
            prefix, prefix, prefix);
    return DSC_OK;
}

static dsc_status check_tensorboard(const dsc_train_options *o, const char *prefix) {
    if (!o->tensorboard)
        return DSC_OK;
    if (!o->out)
        return DSC_FAIL(DSC_E_INVALID,
                        "%stensorboard %s: a run without an output directory writes no event files; name one "
                        "(%sout)",
                        prefix, o->tensorboard, prefix);
    return dsc_tensorboard_check(prefix);
}

static dsc_status check(const dsc_settings *s, const char *prefix) {
    dsc_option table[DSC_SETTINGS_OPTIONS];
    dsc_target target;
    const dsc_train_options *o = &s->train;
    DSC_TRY(dsc_settings_table(table));
    if (!o->model || !o->data)
        return DSC_FAIL(DSC_E_INVALID, "neither %smodel nor %sdata may be NULL", prefix, prefix);
    DSC_TRY(dsc_option_check(table, s, prefix));
    DSC_TRY(dsc_target_parse(o->stop_at, prefix, &target));
    if (o->patience > 0 && o->eval_every == 0)
        return DSC_FAIL(DSC_E_INVALID,
                        "%spatience %lld with %seval-every 0: there are no evaluations; evaluate, or leave "
                        "%spatience out",
                        prefix, (long long)o->patience, prefix, prefix);
    DSC_TRY(dsc_bad_images_check_rule(o->bad_images, prefix));
    if (o->epoch_steps < 1)
        return DSC_FAIL(DSC_E_INVALID, "epoch_steps %lld: must be at least 1", (long long)o->epoch_steps);
    if (o->resume && strcmp(o->resume, "auto") == 0 && !o->out)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%sresume auto looks into the output directory, and there is none: name the directory "
            "(%sout) or a checkpoint file",
            prefix, prefix);
    DSC_TRY(check_tensorboard(o, prefix));
    DSC_TRY(dsc_finetune_check(s, prefix));
    if (s->kfac.update_freq > 0 && s->consensus.kind == DSC_CONSENSUS_ALLREDUCE &&
        o->kfac_scope != DSC_SCOPE_GLOBAL)
        return DSC_FAIL(DSC_E_INVALID,
                        "%skfac-scope %s does not go with %sconsensus allreduce, where all ranks share one "
                        "gradient and its factors: give global, or choose one of sgp, osgp, dpsgd, adpsgd",
                        prefix, dsc_kfac_scope_name(o->kfac_scope), prefix);
    return check_peer_loss(s, prefix);
}

/* ---- reading ---- */

static dsc_status copy_strings(dsc_settings *s) {
    const char **const strings[DSC_SETTINGS_STRINGS] = {
        &s->train.model,      &s->train.data,          &s->train.out,          &s->train.resume,
        &s->consensus.graph,  &s->kfac.skip_layers,    &s->train.config_lines, &s->train.stop_at,
        &s->train.bad_images, &s->train.tensorboard,   &s->train.trace,        &s->train.init,
        &s->train.freeze,     &s->train.class_weights,
    };
    for (int i = 0; i < DSC_SETTINGS_STRINGS; i++) {
        if (!*strings[i])
            continue;
        DSC_TRY(dsc_memory_strdup(*strings[i], &s->strings[i]));
        *strings[i] = s->strings[i];
    }
    return DSC_OK;
}

static dsc_status take(const dsc_train_options *given, dsc_settings *out) {
    memset(out, 0, sizeof *out);
    dsc_train_options_init(&out->train);
    dsc_optim_options_init(&out->optim);
    dsc_consensus_options_init(&out->consensus);
    dsc_kfac_options_init(&out->kfac);
    DSC_TRY(dsc_versioned_read("train", given, sizeof out->train, &out->train));
    DSC_TRY(dsc_versioned_read("optim", out->train.optim, sizeof out->optim, &out->optim));
    DSC_TRY(dsc_versioned_read("consensus", out->train.consensus, sizeof out->consensus, &out->consensus));
    DSC_TRY(dsc_versioned_read("kfac", out->train.kfac, sizeof out->kfac, &out->kfac));
    if (!out->train.kfac)
        out->kfac.update_freq = 0;
    out->train.optim = &out->optim;
    out->train.consensus = &out->consensus;
    out->train.kfac = &out->kfac;
    return DSC_OK;
}

dsc_status dsc_train_check(const dsc_train_options *options, const char *prefix) {
    dsc_settings s;
    DSC_TRY(take(options, &s));
    return check(&s, prefix ? prefix : "");
}

dsc_status dsc_settings_read(const dsc_train_options *given, dsc_settings *out) {
    DSC_TRY(take(given, out));
    DSC_TRY(copy_strings(out));
    DSC_TRY(check(out, ""));
    if (out->train.lr < 0)
        out->train.lr = dsc_optim_default_rate(out->optim.kind);
    if (out->train.context > 0) /* the side of a sample, in tokens */
        out->train.image_size = out->train.context;
    if (out->train.image_size > 0)
        return DSC_OK;
    int64_t channels, classes;
    return dsc_zoo_default_input(out->train.model, &out->train.image_size, &channels, &classes);
}

void dsc_settings_clear(dsc_settings *settings) {
    for (int i = 0; i < DSC_SETTINGS_STRINGS; i++)
        dsc_memory_free(&settings->strings[i]);
}

/* ---- writing ---- */

static dsc_status write_text(const char *path, const char *text, size_t length) {
    dsc_output file = {.fd = -1};
    dsc_status status = dsc_output_open(path, &file);
    if (status == DSC_OK)
        status = dsc_output_write(&file, text, length, 0);
    if (status == DSC_OK)
        status = dsc_output_sync(&file);
    if (status == DSC_OK)
        status = dsc_output_commit(&file);
    dsc_output_close(&file);
    return status;
}

dsc_status dsc_settings_write(const dsc_settings *settings, const char *directory) {
    dsc_option table[DSC_SETTINGS_OPTIONS];
    char *text = NULL, *path = NULL;
    size_t length = 0;
    DSC_TRY(dsc_settings_table(table));
    DSC_TRY(dsc_output_path(directory, "config", &path));
    FILE *stream = open_memstream(&text, &length);
    if (stream) {
        fputs("# The options of this run, written by descent ", stream);
        fputs(dsc_version(), stream);
        fputs("; `descent train --config` reads them.\n", stream);
        dsc_option_write(table, settings, stream);
        if (settings->train.config_lines)
            fputs(settings->train.config_lines, stream);
    }
    dsc_status status = stream && fclose(stream) == 0
                            ? write_text(path, text, length)
                            : DSC_FAIL(DSC_E_MEMORY, "no memory to write '%s'", path);
    free(text);
    dsc_memory_free(&path);
    return status;
}

/* metrics.jsonl */
#include "train/metrics.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/version.h"
#include "train/file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct dsc_metrics {
    FILE *file;
    char *path;
    int error; /* errno of the first line that failed, 0: none */
};

void dsc_metrics_close(dsc_metrics **metrics) {
    if (!metrics || !*metrics)
        return;
    if ((*metrics)->file)
        fclose((*metrics)->file);
    dsc_memory_free(&(*metrics)->path);
    dsc_memory_free(metrics);
}

/* A process that was killed may have left half a line; the file goes on behind the last whole one. */
static int drop_half_line(FILE *file) {
    long end;
    if (fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0)
        return errno;
    long whole = end;
    while (whole > 0) {
        if (fseek(file, whole - 1, SEEK_SET) != 0)
            return errno;
        if (fgetc(file) == '\n')
            break;
        whole--;
    }
    if (whole < end && ftruncate(fileno(file), whole) != 0)
        return errno;
    return fseek(file, 0, SEEK_END) == 0 ? 0 : errno;
}

static dsc_status open_metrics(dsc_metrics *m, const char *directory, int append) {
    DSC_TRY(dsc_output_path(directory, "metrics.jsonl", &m->path));
    m->file = fopen(m->path, append ? "a+" : "w");
    if (m->file && !append) /* a rank that comes back when it was given up may add lines, but harm none */
        m->file = freopen(m->path, "a", m->file);
    int error = m->file ? 0 : errno;
    if (m->file && append)
        error = drop_half_line(m->file);
    if (error)
        return dsc_output_refused("open", m->path, error);
    return DSC_OK;
}

dsc_status dsc_metrics_open(const char *directory, int append, dsc_metrics **out) {
    dsc_metrics *m;
    DSC_TRY(dsc_memory_alloc(1, sizeof *m, &m));
    dsc_status status = open_metrics(m, directory, append);
    if (status != DSC_OK) {
        dsc_metrics_close(&m);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = m;
    return DSC_OK;
}

int dsc_metrics_failed(const dsc_metrics *metrics) {
    return metrics && metrics->error;
}

dsc_status dsc_metrics_status(const dsc_metrics *metrics) {
    if (metrics && metrics->error)
        return DSC_FAIL(DSC_E_IO, "cannot write '%s': %s; free some space or choose another output directory",
                        metrics->path, strerror(metrics->error));
    return DSC_OK;
}

/* JSON knows no NaN and no infinity. */
static json_t *real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* Of what is negative when there is none. */
static json_t *real_or_none(double value) {
    return value >= 0 ? real(value) : json_null();
}

static void set(json_t *line, const char *key, json_t *value) {
    json_object_set_new(line, key, value);
}

/* null for no text, and for one that is not UTF-8, as a file's name may be. */
static void set_text(json_t *line, const char *key, const char *text) {
    json_t *value = text ? json_string(text) : NULL;
    set(line, key, value ? value : json_null());
}

static void set_int(json_t *line, const char *key, int64_t value) {
    set(line, key, json_integer((json_int_t)value));
}

/* Seeds that JSON's readers do not hold as whole numbers are texts. */
static json_t *seed_value(uint64_t seed) {
    char text[32];
    if (seed <= INT64_MAX)
        return json_integer((json_int_t)seed);
    snprintf(text, sizeof text, "%" PRIu64, seed);
    return json_string(text);
}

static json_t *start_line(const char *kind) {
    json_t *line = json_object();
    set_text(line, "kind", kind);
    return line;
}

static void finish_line(dsc_metrics *m, json_t *line) {
    errno = 0;
    int bad = json_dumpf(line, m->file, JSON_COMPACT) != 0;
    bad |= fputc('\n', m->file) == EOF;
    bad |= fflush(m->file) != 0;
    if (bad && !m->error)
        m->error = errno ? errno : EIO;
    json_decref(line);
}

static json_t *list(const double *values, int64_t count) {
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(array, real(values[i]));
    return array;
}

static json_t *describe_optimiser(const dsc_train_options *o) {
    json_t *config = json_object();
    set_text(config, "name", dsc_optim_name(o->optim->kind));
    set(config, "momentum", real(o->optim->momentum));
    set(config, "nesterov", json_boolean(o->optim->nesterov));
    set(config, "weight_decay", real(o->optim->weight_decay));
    set(config, "beta1", real(o->optim->beta1));
    set(config, "beta2", real(o->optim->beta2));
    set(config, "eps", real_or_none(o->optim->eps)); /* null: the optimiser's own */
    set(config, "trust", real(o->optim->trust));
    set(config, "clip_norm", real(o->optim->clip_norm));
    return config;
}

static void describe_rate(json_t *config, const dsc_train_options *o) {
    set(config, "lr", real(o->lr));
    set_text(config, "lr_schedule", o->lr_schedule == DSC_SCHEDULE_COSINE ? "cosine" : "step");
    set(config, "warmup_epochs", real(o->warmup_epochs));
    set(config, "warmup_start", real(o->warmup_start < 0 ? o->lr : o->warmup_start));
    set_text(config, "lr_scaling", o->lr_scaling ? "ranks" : "none");
    set(config, "lr_decay", list(o->lr_decay, o->lr_decay_count));
    set(config, "lr_decay_rate", real(o->lr_decay_rate));
}

static json_t *describe_kfac(const dsc_train_options *o) {
    json_t *config = json_object();
    const dsc_kfac_options *k = o->kfac;
    set(config, "damping", real(k->damping));
    set(config, "stat_decay", real(k->stat_decay));
    set(config, "kl_clip", real(k->kl_clip));
    set_int(config, "factor_freq", k->factor_freq);
    set_int(config, "update_freq", k->update_freq);
    set_text(config, "method", dsc_kfac_method_name(k->method));
    set_text(config, "scaling", dsc_kfac_scaling_name(k->scaling));
    set_text(config, "scope", dsc_kfac_scope_name(o->kfac_scope));
    set_text(config, "fisher", dsc_fisher_name(o->kfac_fisher));
    set_text(config, "strategy", dsc_kfac_strategy_name(k->strategy));
    set(config, "grad_worker_fraction", real(k->grad_worker_fraction));
    set_text(config, "placement", dsc_kfac_placement_name(k->placement));
    set(config, "colocate_factors", json_boolean(k->colocate_factors));
    set(config, "symmetric", json_boolean(k->symmetric));
    set(config, "outer_product", json_boolean(k->outer_product));
    set_int(config, "diag_blocks", k->diag_blocks);
    set(config, "diag_warmup", real(o->kfac_diag_warmup));
    set_text(config, "skip_layers", k->skip_layers);
    set_text(config, "factor_dtype", dsc_dtype_name(k->factor_dtype));
    set_text(config, "inverse_dtype", dsc_dtype_name(k->inverse_dtype));
    set_int(config, "bucket_bytes", (int64_t)k->bucket_bytes);
    set(config, "damping_alpha", real(o->kfac_damping_alpha));
    set(config, "damping_decay", list(o->kfac_damping_decay, o->kfac_damping_decay_count));
    set(config, "update_freq_alpha", real(o->kfac_update_freq_alpha));
    set(config, "update_freq_decay", list(o->kfac_update_freq_decay, o->kfac_update_freq_decay_count));
    return config;
}

static json_t *describe_peers(const dsc_train_options *o) {
    json_t *schedule = json_array();
    for (int i = 0; i < o->peers_count; i++) {
        json_t *entry = json_array();
        json_array_append_new(entry, json_integer((json_int_t)o->peers_epochs[i]));
        json_array_append_new(entry, json_integer(o->peers_values[i]));
        json_array_append_new(schedule, entry);
    }
    return schedule;
}

static json_t *describe_gossip(const dsc_train_options *o) {
    json_t *config = json_object();
    const dsc_consensus_options *c = o->consensus;
    set_text(config, "graph", c->graph);
    set_int(config, "peers_per_step", c->peers);
    set(config, "peers_schedule", describe_peers(o));
    set_int(config, "synch_freq", c->synch_freq);
    set_int(config, "group", c->group);
    set_int(config, "average_every", c->average_every);
    set(config, "slow_momentum", real(c->slow_momentum));
    set(config, "slow_rate", real(c->slow_rate));
    set(config, "peer_timeout", real(c->peer_timeout));
    set_text(config, "on_peer_loss", o->on_peer_loss == DSC_PEER_LOSS_CONTINUE ? "continue" : "stop");
    set_int(config, "distance_every", o->distance_every);
    return config;
}

json_t *dsc_metrics_config(const dsc_train_options *o) {
    json_t *config = json_object();
    set_text(config, "model", o->model);
    set_text(config, "data", o->data);
    set_int(config, "epochs", o->epochs);
    set_int(config, "steps", o->steps);
    set_int(config, "batch_size", o->batch_size);
    set_int(config, "val_batch_size", o->val_batch_size);
    set(config, "seed", seed_value(o->seed));
    set_int(config, "image_size", o->image_size);
    set_int(config, "data_threads", o->data_threads);
    set(config, "augment", json_boolean(o->augment));
    set_text(config, "precision", dsc_dtype_name(o->activations));
    set(config, "optimizer", describe_optimiser(o));
    describe_rate(config, o);
    set(config, "label_smoothing", real(o->label_smoothing));
    set_int(config, "batches_per_allreduce", o->batches_per_allreduce);
    set_text(config, "consensus", dsc_consensus_name(o->consensus->kind));
    set_int(config, "bucket_bytes", (int64_t)o->consensus->bucket_bytes);
    set_text(config, "allreduce_dtype", dsc_dtype_name(o->consensus->wire));
    set(config, "gossip", describe_gossip(o));
    set(config, "bn_average", json_boolean(o->bn_average));
    set(config, "eval_ranks", json_boolean(o->eval_ranks));
    set_int(config, "checkpoint_every", o->checkpoint_every);
    set_int(config, "keep", o->keep);
    set_int(config, "eval_every", o->eval_every);
    set_int(config, "log_every", o->log_every);
    set_int(config, "check_every", o->check_every);
    set(config, "kfac", describe_kfac(o));
    return config;
}

void dsc_metrics_run(dsc_metrics *metrics, const dsc_train_options *options, const dsc_run_facts *facts) {
    if (!metrics)
        return;
    json_t *line = start_line("run");
    set_text(line, "version", dsc_version());
    set_text(line, "build", dsc_build_info());
    set_text(line, "comm", facts->comm);
    set_int(line, "ranks", facts->ranks);
    set_text(line, "device", facts->device);
    json_t *devices = json_array();
    for (int i = 0; i < facts->ranks; i++)
        json_array_append_new(devices, json_string(facts->devices[i]));
    set(line, "devices", devices);
    set_int(line, "parameters", facts->parameters);
    set_int(line, "samples", facts->samples);
    set_int(line, "steps_per_epoch", facts->epoch_steps);
    set_text(line, "resumed", facts->resumed);
    set_int(line, "step", facts->step);
    json_t *config = dsc_metrics_config(options);
    set_int(config, "image_size", facts->image_size);
    set(line, "config", config);
    finish_line(metrics, line);
}

/* Milliseconds of the phases first .. last. */
static void set_phases(json_t *line, const dsc_step_report *report, int first, int last) {
    for (int i = first; i <= last; i++)
        set(line, dsc_phase_name((dsc_phase)i), real(report->phase_ms[i]));
}

static void set_sent(json_t *line, const dsc_step_report *report) {
    for (int i = 0; i < DSC_TRAFFIC_OTHER; i++)
        set_int(line, dsc_traffic_name((dsc_traffic)i), (int64_t)report->bytes[i]);
}

void dsc_metrics_step(dsc_metrics *metrics, const dsc_step_report *report, double images_per_s) {
    if (!metrics)
        return;
    json_t *line = start_line("step");
    set_int(line, "step", report->step);
    set_int(line, "epoch", report->epoch);
    set(line, "time_s", real(report->time_s));
    set(line, "loss", real(report->loss));
    set(line, "lr", real(report->lr));
    set(line, "images_per_s", real(images_per_s));
    if (!isnan(report->nu))
        set(line, "nu", real(report->nu));
    if (report->loss_scale != 1) {
        set(line, "loss_scale", real(report->loss_scale));
        set(line, "skipped", json_boolean(report->skipped));
    }
    set_phases(line, report, 0, DSC_PHASE_COUNT - 1);
    set_sent(line, report);
    finish_line(metrics, line);
}

static json_t *describe_loads(const dsc_kfac_report *r) {
    json_t *loads = json_array();
    double all = 0;
    for (int i = 0; i < r->ranks; i++)
        all += r->work[i];
    for (int i = 0; i < r->ranks; i++) {
        json_t *load = json_object();
        set_int(load, "rank", i);
        set(load, "work", real(r->work[i]));
        set(load, "share", real(all > 0 ? r->work[i] / all : 0));
        set(load, "solve_ms", real(r->solve_ms[i]));
        json_array_append_new(loads, load);
    }
    return loads;
}

static json_t *describe_layers(const dsc_kfac_report *r) {
    json_t *layers = json_array();
    for (int64_t i = 0; i < r->layer_count; i++) {
        const dsc_kfac_layer_report *l = &r->layers[i];
        json_t *layer = json_object();
        set_text(layer, "name", l->name);
        set(layer, "cosine", real(l->cosine));
        set(layer, "a_min", real(l->a_min));
        set(layer, "a_max", real(l->a_max));
        set(layer, "g_min", real(l->g_min));
        set(layer, "g_max", real(l->g_max));
        set(layer, "condition", real(l->condition));
        json_array_append_new(layers, layer);
    }
    return layers;
}

static json_t *describe_held(const dsc_kfac_report *r) {
    json_t *held = json_object();
    set_int(held, "factors", (int64_t)r->factor_bytes);
    set_int(held, "decompositions", (int64_t)r->decomposition_bytes);
    set_int(held, "exchange", (int64_t)r->exchange_bytes);
    set_int(held, "work", (int64_t)r->work_bytes);
    return held;
}

void dsc_metrics_kfac(dsc_metrics *metrics, const dsc_train_state *state, const dsc_step_report *step,
                      const dsc_kfac_report *report) {
    if (!metrics)
        return;
    json_t *line = start_line("kfac"), *ms = json_object(), *sent = json_object();
    const dsc_kfac_hyper *hyper = report->hyper;
    set_int(line, "step", state->step);
    set_int(line, "epoch", state->epoch);
    set(line, "time_s", real(state->seconds));
    set(line, "nu", real(report->nu));
    set(line, "damping", real(hyper->damping));
    set(line, "stat_decay", real(hyper->stat_decay));
    set(line, "kl_clip", real(hyper->kl_clip));
    set_int(line, "factor_freq", hyper->factor_freq);
    set_int(line, "update_freq", hyper->update_freq);
    set_int(line, "diag_blocks", hyper->diag_blocks);
    set_int(line, "failed_solves", report->failed_solves);
    set_int(line, "retried_solves", report->retried_solves);
    set_int(line, "rejected_factors", report->rejected_factors);
    set(line, "held", describe_held(report));
    set_phases(ms, step, DSC_PHASE_FACTOR, DSC_PHASE_PRECONDITION);
    set(line, "ms", ms);
    set_sent(sent, step);
    set(line, "sent", sent);
    set(line, "loads", describe_loads(report));
    set(line, "layers", describe_layers(report));
    finish_line(metrics, line);
}

void dsc_metrics_epoch(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch, double lr,
                       double images_per_s) {
    if (!metrics)
        return;
    json_t *line = start_line("epoch");
    set_int(line, "epoch", epoch);
    set_int(line, "step", state->step);
    set(line, "time_s", real(state->seconds));
    set(line, "loss", real(state->epoch_loss));
    set(line, "lr", real(lr));
    set(line, "images_per_s", real(images_per_s));
    finish_line(metrics, line);
}

void dsc_metrics_consensus(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                           const dsc_consensus_report *report) {
    if (!metrics)
        return;
    json_t *line = start_line("consensus");
    set_int(line, "step", state->step);
    set_int(line, "epoch", epoch);
    set(line, "time_s", real(state->seconds));
    set(line, "distance", real(report->distance));
    set(line, "norm", real(report->norm));
    set(line, "mass", real(report->mass));
    set_int(line, "rounds", report->rounds);
    set(line, "weight", real(report->weight));
    finish_line(metrics, line);
}

void dsc_metrics_ranks(dsc_metrics *metrics, const dsc_train_state *state, int ranks, int lost, double mass) {
    if (!metrics)
        return;
    json_t *line = start_line("ranks");
    set_int(line, "step", state->step);
    set_int(line, "epoch", state->epoch);
    set(line, "time_s", real(state->seconds));
    set_int(line, "ranks", ranks);
    set_int(line, "lost", lost);
    set(line, "mass", real(mass));
    finish_line(metrics, line);
}

static void set_ranks(json_t *line, const dsc_ranks_result *ranks) {
    set(line, "rank0_top1", real(ranks->rank0));
    set(line, "ranks_top1_mean", real(ranks->mean));
    set(line, "ranks_top1_min", real(ranks->min));
    set(line, "ranks_top1_max", real(ranks->max));
    set(line, "ranks_top1_std", real(ranks->std));
}

void dsc_metrics_eval(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                      const dsc_evaluation *evaluation) {
    const dsc_eval_result *result = &evaluation->result;
    if (!metrics)
        return;
    json_t *line = start_line("eval");
    set_int(line, "epoch", epoch);
    set_int(line, "step", state->step);
    set(line, "time_s", real(state->seconds));
    set(line, "loss", real(result->loss));
    set(line, "top1", real(result->top1));
    set(line, "top5", real(result->top5));
    set_int(line, "images", result->images);
    if (evaluation->has_consensus) {
        set(line, "distance", real(evaluation->consensus.distance));
        set(line, "norm", real(evaluation->consensus.norm));
        set_int(line, "rounds", evaluation->consensus.rounds);
    }
    if (evaluation->has_ranks)
        set_ranks(line, &evaluation->ranks);
    finish_line(metrics, line);
}

void dsc_metrics_checkpoint(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                            const char *file, int64_t bytes, double seconds) {
    if (!metrics)
        return;
    json_t *line = start_line("checkpoint");
    set_int(line, "step", state->step);
    set_int(line, "epoch", epoch);
    set(line, "time_s", real(state->seconds));
    set_text(line, "file", file);
    set_int(line, "bytes", bytes);
    set(line, "seconds", real(seconds));
    set_int(line, "best_step", state->best_step);
    finish_line(metrics, line);
}

void dsc_metrics_end(dsc_metrics *metrics, const char *status, const char *error,
                     const dsc_train_result *result, double time_s) {
    if (!metrics)
        return;
    json_t *line = start_line("end");
    set_text(line, "status", status);
    set_text(line, "error", error);
    set_int(line, "steps", result->steps);
    set_int(line, "epochs", result->epochs);
    set(line, "time_s", real(time_s));
    set(line, "loss", real_or_none(result->train_loss));
    set(line, "val_loss", real_or_none(result->val_loss));
    set(line, "top1", real_or_none(result->top1));
    set(line, "top5", real_or_none(result->top5));
    set(line, "best_top1", real_or_none(result->best_top1));
    set(line, "images_per_s", real(result->images_per_s));
    finish_line(metrics, line);
}

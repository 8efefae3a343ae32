/* Writes metrics.jsonl. */
#include "train/metrics.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "descent/version.h"
#include "train/json_text.h"
#include "train/settings.h"
#include "train/tensorboard.h"

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
    dsc_tensorboard *tensorboard;
};

void dsc_metrics_close(dsc_metrics **metrics) {
    if (!metrics || !*metrics)
        return;
    if ((*metrics)->file)
        fclose((*metrics)->file);
    dsc_tensorboard_close(&(*metrics)->tensorboard);
    dsc_memory_free(&(*metrics)->path);
    dsc_memory_free(metrics);
}

/* A process that was killed may have left half a line: new lines go after the last whole one. */
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
    if (m->file && !append) /* a rank that was given up as lost and comes back may append, not overwrite */
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

dsc_status dsc_metrics_open_tensorboard(dsc_metrics *metrics, const char *directory) {
    return dsc_tensorboard_open(directory, &metrics->tensorboard);
}

/* errno of the first failure, and the file; 0: there was none. */
static int find_error(const dsc_metrics *m, const char **path) {
    *path = m->path;
    return m->error ? m->error : dsc_tensorboard_error(m->tensorboard, path);
}

int dsc_metrics_failed(const dsc_metrics *metrics) {
    const char *path;
    return metrics && find_error(metrics, &path);
}

dsc_status dsc_metrics_status(const dsc_metrics *metrics) {
    const char *path = NULL;
    int error = metrics ? find_error(metrics, &path) : 0;
    if (error)
        return DSC_FAIL(DSC_E_IO, "cannot write '%s': %s; free some space or choose another output directory",
                        path, strerror(error));
    return DSC_OK;
}

/* JSON knows no NaN and no infinity. */
static json_t *real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* A time in milliseconds, or a rate: four digits after the point are more than clocks have. */
static json_t *measured(double value) {
    return real(fabs(value) < 1e9 ? round(value * 1e4) / 1e4 : value);
}

/* Writes null for a negative value, which means "none". */
static json_t *real_or_none(double value) {
    return value >= 0 ? real(value) : json_null();
}

static void set(json_t *line, const char *key, json_t *value) {
    json_object_set_new(line, key, value);
}

/* Writes null for no text, and for text that is not UTF-8, as a file's name may be. */
static void set_text(json_t *line, const char *key, const char *text) {
    json_t *value = text ? json_string(text) : NULL;
    set(line, key, value ? value : json_null());
}

static void set_int(json_t *line, const char *key, int64_t value) {
    set(line, key, json_integer((json_int_t)value));
}

/* Seeds above the whole numbers that readers of JSON can represent are written as text. */
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
    int bad = dsc_json_write(line, m->file) != 0;
    bad |= fputc('\n', m->file) == EOF;
    bad |= fflush(m->file) != 0;
    if (bad && !m->error)
        m->error = errno ? errno : EIO;
    dsc_tensorboard_line(m->tensorboard, line);
    json_decref(line);
}

static json_t *list(const double *values, int64_t count) {
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(array, real(values[i]));
    return array;
}

static json_t *pairs(const int64_t *first, const int *second, int count) {
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_pack("[I, i]", (json_int_t)first[i], second[i]));
    return array;
}

/* An option's value by its kind. A negative number is a default that depends on other options: null. */
static json_t *option_value(const dsc_option *o, const void *values) {
    const void *value = (const char *)values + o->offset;
    const int *count = (const void *)((const char *)values + o->count_offset);
    const int *second = (const void *)((const char *)values + o->second_offset);
    char text[4096];
    json_t *string;
    switch (o->kind) {
    case DSC_OPTION_FLAG:
    case DSC_OPTION_NO_FLAG:
    case DSC_OPTION_ON_OFF:
        return json_boolean(*(const int *)value);
    case DSC_OPTION_INT:
        return json_integer(*(const int *)value);
    case DSC_OPTION_INT64:
        return json_integer((json_int_t) * (const int64_t *)value);
    case DSC_OPTION_UINT64:
        return seed_value(*(const uint64_t *)value);
    case DSC_OPTION_DOUBLE:
    case DSC_OPTION_FRACTION:
        return real_or_none(*(const double *)value);
    case DSC_OPTION_MIB:
        return json_integer((json_int_t) * (const size_t *)value);
    case DSC_OPTION_LIST:
        return list(value, *count);
    case DSC_OPTION_PAIRS:
        return pairs(value, second, *count);
    default:
        dsc_option_get_value(o, values, text, sizeof text);
        string = *text ? json_string(text) : NULL; /* NULL for text that is not UTF-8, too */
        return string ? string : json_null();
    }
}

json_t *dsc_metrics_config(const dsc_train_options *options) {
    dsc_settings_part parts[DSC_SETTINGS_PARTS];
    json_t *config = json_object();
    dsc_settings_parts(options, parts);
    for (const dsc_settings_part *part = parts; part->table; part++)
        for (const dsc_option *o = part->table; o->name; o++) {
            const char *dot = o->json ? strchr(o->json, '.') : NULL;
            char object[32];
            if (!o->json)
                continue;
            snprintf(object, sizeof object, "%.*s", dot ? (int)(dot - o->json) : 0, o->json);
            if (dot && !json_object_get(config, object))
                set(config, object, json_object());
            set(dot ? json_object_get(config, object) : config, dot ? dot + 1 : o->json,
                option_value(o, part->values));
        }
    if (options->warmup_start < 0)
        set(config, "warmup_start", real(options->lr));
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
    set(line, "flops_per_sample", real(facts->flops));
    set(line, "peak_flops_per_s", facts->peak > 0 ? real(facts->peak) : json_null());
    set_int(line, "samples", facts->samples);
    set_int(line, "steps_per_epoch", facts->epoch_steps);
    set_int(line, "positions", facts->positions);
    set_int(line, "tokens", facts->tokens);
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
        set(line, dsc_phase_name((dsc_phase)i), measured(report->phase_ms[i]));
}

static void set_sent(json_t *line, const dsc_step_report *report) {
    for (int i = 0; i < DSC_TRAFFIC_OTHER; i++)
        set_int(line, dsc_traffic_name((dsc_traffic)i), (int64_t)report->bytes[i]);
}

/* Writes the utilisation with four digits, unless it is unknown (0). */
static void set_utilisation(json_t *line, double mfu) {
    if (mfu > 0)
        set(line, "mfu", measured(mfu));
}

void dsc_metrics_step(dsc_metrics *metrics, const dsc_step_report *report, dsc_rate rate) {
    if (!metrics)
        return;
    json_t *line = start_line("step");
    set_int(line, "step", report->step);
    set_int(line, "epoch", report->epoch);
    set(line, "time_s", measured(report->time_s));
    set(line, "loss", real(report->loss));
    set(line, "lr", real(report->lr));
    set(line, "images_per_s", measured(rate.images_per_s));
    set_utilisation(line, rate.mfu);
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
        if (r->layer_nus)
            set(layer, "nu", real(r->layer_nus[i]));
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
    set_int(line, "refreshed_factors", report->refreshed_factors);
    set_int(line, "extra_iterations", report->extra_iterations);
    set_int(line, "exact_fallbacks", report->exact_fallbacks);
    set(line, "held", describe_held(report));
    set_phases(ms, step, DSC_PHASE_FACTOR, DSC_PHASE_PRECONDITION);
    set(line, "ms", ms);
    set_sent(sent, step);
    set(line, "sent", sent);
    set(line, "loads", describe_loads(report));
    set(line, "layers", describe_layers(report));
    finish_line(metrics, line);
}

void dsc_metrics_spectrum(dsc_metrics *metrics, const dsc_train_state *state,
                          const dsc_kfac_spectrum *spectrum) {
    if (metrics)
        dsc_tensorboard_spectrum(metrics->tensorboard, state->step, spectrum);
}

void dsc_metrics_epoch(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch, double lr,
                       dsc_rate rate) {
    if (!metrics)
        return;
    json_t *line = start_line("epoch");
    set_int(line, "epoch", epoch);
    set_int(line, "step", state->step);
    set(line, "time_s", real(state->seconds));
    set(line, "loss", real(state->epoch_loss));
    set(line, "lr", real(lr));
    set(line, "images_per_s", real(rate.images_per_s));
    set_utilisation(line, rate.mfu);
    set_int(line, "bad_images", state->bad_images);
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

/* Leaves out zeros: with many ranks the line is long. */
static void set_mean(json_t *line, const char *key, double sum, double count) {
    if (sum != 0)
        set(line, key, measured(sum / count));
}

void dsc_metrics_load(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                      const dsc_load *loads, int ranks) {
    if (!metrics)
        return;
    json_t *line = start_line("load"), *list_of_ranks = json_array();
    set_int(line, "step", state->step);
    set_int(line, "epoch", epoch);
    set(line, "time_s", real(state->seconds));
    for (int r = 0; r < ranks; r++) {
        json_t *rank = json_object();
        for (int i = 0; i < DSC_PHASE_COUNT; i++)
            set_mean(rank, dsc_phase_name((dsc_phase)i), loads[r].phase_ms[i], loads[r].steps);
        for (int i = 0; i < DSC_TRAFFIC_OTHER; i++)
            set_mean(rank, dsc_traffic_name((dsc_traffic)i), loads[r].bytes[i], loads[r].steps);
        json_array_append_new(list_of_ranks, rank);
    }
    set(line, "ranks", list_of_ranks);
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
    set_int(line, "bad_images", result->bad_images);
    if (result->tokens > 0)
        set(line, "perplexity", real(exp(result->loss)));
    if (result->bytes_per_token > 0)
        set(line, "bits_per_byte", real(result->loss / (log(2) * result->bytes_per_token)));
    if (evaluation->has_consensus) {
        set(line, "distance", real(evaluation->consensus.distance));
        set(line, "norm", real(evaluation->consensus.norm));
        set_int(line, "rounds", evaluation->consensus.rounds);
    }
    if (evaluation->has_ema) {
        set(line, "ema_loss", real(evaluation->ema.loss));
        set(line, "ema_top1", real(evaluation->ema.top1));
        set(line, "ema_top5", real(evaluation->ema.top5));
    }
    if (evaluation->has_ranks)
        set_ranks(line, &evaluation->ranks);
    finish_line(metrics, line);
}

void dsc_metrics_alarm(dsc_metrics *metrics, const dsc_train_state *state, int64_t epoch,
                       const char *message) {
    if (!metrics)
        return;
    json_t *line = start_line("alarm");
    set_int(line, "step", state->step);
    set_int(line, "epoch", epoch);
    set(line, "time_s", real(state->seconds));
    set_text(line, "message", message);
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
    static const char *const reasons[] = {
        [DSC_STOP_NONE] = NULL, [DSC_STOP_TARGET] = "target", [DSC_STOP_PATIENCE] = "patience"};
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
    set(line, "best_loss", real_or_none(result->best_loss));
    set(line, "images_per_s", real(result->images_per_s));
    set_utilisation(line, result->mfu);
    set_text(line, "stopped", reasons[result->stopped]);
    set(line, "target_s", real_or_none(result->target_s));
    finish_line(metrics, line);
}

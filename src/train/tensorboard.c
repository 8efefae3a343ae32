/* Lines of metrics.jsonl as events of TensorBoard. The messages are in tensorboard.proto. */
#include "train/tensorboard.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"
#include "descent/comm.h"
#include "descent/trainer.h"
#include "train/event_file.h"
#include "train/tensorboard.pb-c.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_VALUES = 64, TAG_SIZE = 96, MOST_HPARAMS = 256, TEXT_SIZE = 256, LAYER_BUCKETS = 40 };

struct dsc_tensorboard {
    dsc_event_file *file;
    unsigned char *packed; /* a message in its encoded form */
    int64_t packed_size;
    int error; /* errno of what failed before the file did */
    /* The scalars of a line. */
    DscTb__SummaryValue values[MOST_VALUES], *listed[MOST_VALUES];
    char tags[MOST_VALUES][TAG_SIZE];
    size_t count;
    /* The hyper-parameters of a run. */
    struct {
        DscTb__HparamInfo info;
        DscTb__HparamEntry entry;
        DscTb__HparamValue value;
        char name[TAG_SIZE], text[TEXT_SIZE];
    } hparams[MOST_HPARAMS];
    size_t hparam_count;
};

dsc_status dsc_tensorboard_check(const char *prefix) {
    (void)prefix;
    return DSC_OK;
}

static double wall_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- records ---- */

/* Encodes a message into `packed`. Returns its length, 0 when there is no memory. */
static size_t encode(dsc_tensorboard *t, const ProtobufCMessage *message) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (dsc_memory_grow(&t->packed, &t->packed_size, (int64_t)bytes, 1) != DSC_OK) {
        t->error = t->error ? t->error : ENOMEM;
        return 0;
    }
    return protobuf_c_message_pack(message, t->packed);
}

static void write_event(dsc_tensorboard *t, int64_t step, DscTb__Event *event) {
    event->wall_time = wall_time();
    event->step = step;
    size_t bytes = encode(t, &event->base);
    if (bytes > 0)
        dsc_event_file_write(t->file, t->packed, bytes);
}

static void write_values(dsc_tensorboard *t, int64_t step, DscTb__SummaryValue **values, size_t count) {
    DscTb__Summary summary = DSC_TB__SUMMARY__INIT;
    DscTb__Event event = DSC_TB__EVENT__INIT;
    summary.value = values;
    summary.n_value = count;
    event.what_case = DSC_TB__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    if (count > 0)
        write_event(t, step, &event);
}

static void write_version(dsc_tensorboard *t) {
    DscTb__Event event = DSC_TB__EVENT__INIT;
    char version[] = "brain.Event:2"; /* the only one that readers know */
    event.what_case = DSC_TB__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    write_event(t, 0, &event);
}

dsc_status dsc_tensorboard_open(const char *directory, dsc_tensorboard **out) {
    dsc_tensorboard *t;
    DSC_TRY(dsc_directory_make(directory));
    DSC_TRY(dsc_memory_alloc(1, sizeof *t, &t));
    dsc_status status = dsc_event_file_open(directory, &t->file);
    if (status != DSC_OK) {
        dsc_tensorboard_close(&t);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    write_version(t);
    *out = t;
    return DSC_OK;
}

void dsc_tensorboard_close(dsc_tensorboard **tensorboard) {
    if (!tensorboard || !*tensorboard)
        return;
    dsc_event_file_close(&(*tensorboard)->file);
    dsc_memory_free(&(*tensorboard)->packed);
    dsc_memory_free(tensorboard);
}

int dsc_tensorboard_error(const dsc_tensorboard *t, const char **path) {
    if (!t)
        return 0;
    *path = dsc_event_file_path(t->file);
    return t->error ? t->error : dsc_event_file_error(t->file);
}

/* ---- scalars ---- */

static void add_scalar(dsc_tensorboard *t, const char *group, const char *key, double number) {
    if (t->count == MOST_VALUES)
        return;
    DscTb__SummaryValue *value = &t->values[t->count];
    dsc_tb__summary_value__init(value);
    snprintf(t->tags[t->count], TAG_SIZE, "%s/%s", group, key);
    value->tag = t->tags[t->count];
    value->value_case = DSC_TB__SUMMARY_VALUE__VALUE_SIMPLE_VALUE;
    value->simple_value = (float)number;
    t->listed[t->count++] = value;
}

static int is_phase(const char *key) {
    int found = 0;
    for (int i = 0; i < DSC_PHASE_COUNT; i++)
        found |= strcmp(key, dsc_phase_name((dsc_phase)i)) == 0;
    return found;
}

static int is_traffic(const char *key) {
    int found = 0;
    for (int i = 0; i < DSC_TRAFFIC_OTHER; i++)
        found |= strcmp(key, dsc_traffic_name((dsc_traffic)i)) == 0;
    return found;
}

static const char *group_of(const char *kind, const char *key) {
    if (strcmp(kind, "step") != 0)
        return kind;
    return is_phase(key) ? "phase_ms" : is_traffic(key) ? "sent_bytes" : strcmp(key, "nu") ? "train" : "kfac";
}

/* 1 for keys that get no scalar: `step` is the position on the axis, epoch and time repeat it, and nu is in the `step`
 * lines. */
static int is_left_out(const char *kind, const char *key) {
    return strcmp(key, "step") == 0 || strcmp(key, "epoch") == 0 || strcmp(key, "time_s") == 0 ||
           (strcmp(kind, "kfac") == 0 && strcmp(key, "nu") == 0);
}

static void write_scalars(dsc_tensorboard *t, const char *kind, int64_t step, const json_t *line) {
    const char *key;
    json_t *value;
    t->count = 0;
    json_object_foreach((json_t *)line, key, value) {
        if ((json_is_number(value) || json_is_boolean(value)) && !is_left_out(kind, key))
            add_scalar(t, group_of(kind, key), key,
                       json_is_number(value) ? json_number_value(value) : json_is_true(value));
    }
    write_values(t, step, t->listed, t->count);
}

/* ---- histograms ---- */

static void write_histogram(dsc_tensorboard *t, int64_t step, const char *name, DscTb__Histogram *h) {
    DscTb__SummaryValue value = DSC_TB__SUMMARY_VALUE__INIT, *values[1] = {&value};
    char tag[TAG_SIZE];
    snprintf(tag, sizeof tag, "%s", name);
    value.tag = tag;
    value.value_case = DSC_TB__SUMMARY_VALUE__VALUE_HISTO;
    value.histo = h;
    write_values(t, step, values, 1);
}

void dsc_tensorboard_spectrum(dsc_tensorboard *t, int64_t step, const dsc_kfac_spectrum *spectrum) {
    static const char *const names[] = {"kfac/log10_eigenvalues_a", "kfac/log10_eigenvalues_g"};
    double limits[DSC_KFAC_SPECTRUM_BUCKETS], counts[DSC_KFAC_SPECTRUM_BUCKETS];
    for (int side = 0; t && side < 2; side++) {
        const dsc_kfac_spectrum *s = &spectrum[side];
        DscTb__Histogram h = DSC_TB__HISTOGRAM__INIT;
        int first = 0, end = DSC_KFAC_SPECTRUM_BUCKETS; /* without empty buckets at both ends */
        if (!(s->count > 0))
            continue;
        for (int i = 0; i < DSC_KFAC_SPECTRUM_BUCKETS; i++) {
            limits[i] = DSC_KFAC_SPECTRUM_LEAST + (i + 1.0) / DSC_KFAC_SPECTRUM_PER_DECADE;
            counts[i] = s->buckets[i];
        }
        while (counts[first] == 0)
            first++;
        while (counts[end - 1] == 0)
            end--;
        h.num = s->count;
        h.min = s->least;
        h.max = s->most;
        h.sum = s->sum;
        h.sum_squares = s->squares;
        h.bucket_limit = limits + first;
        h.bucket = counts + first;
        h.n_bucket_limit = h.n_bucket = (size_t)(end - first);
        write_histogram(t, step, names[side], &h);
    }
}

/* The cosines of the layers, in buckets from -1 to 1. */
static void write_cosines(dsc_tensorboard *t, int64_t step, const json_t *line) {
    double limits[LAYER_BUCKETS], counts[LAYER_BUCKETS] = {0};
    DscTb__Histogram h = DSC_TB__HISTOGRAM__INIT;
    json_t *layers = json_object_get(line, "layers"), *layer;
    size_t i;
    h.min = 1;
    h.max = -1;
    json_array_foreach(layers, i, layer) {
        json_t *cosine = json_object_get(layer, "cosine");
        double value = json_number_value(cosine);
        if (!json_is_number(cosine))
            continue;
        int bucket = (int)((value + 1) / 2 * LAYER_BUCKETS);
        counts[bucket < 0 ? 0 : bucket >= LAYER_BUCKETS ? LAYER_BUCKETS - 1 : bucket]++;
        h.num++;
        h.sum += value;
        h.sum_squares += value * value;
        h.min = fmin(h.min, value);
        h.max = fmax(h.max, value);
    }
    for (int b = 0; b < LAYER_BUCKETS; b++)
        limits[b] = 2 * (b + 1.0) / LAYER_BUCKETS - 1;
    h.bucket_limit = limits;
    h.bucket = counts;
    h.n_bucket_limit = h.n_bucket = LAYER_BUCKETS;
    if (h.num > 0)
        write_histogram(t, step, "kfac/cosine", &h);
}

/* ---- hyper-parameters ---- */

/* A value of the plug-in `hparams`, which is all metadata; the tensor is there because one must be. */
static void write_hparams(dsc_tensorboard *t, const char *name, const DscTb__Hparams *content) {
    DscTb__PluginData plugin = DSC_TB__PLUGIN_DATA__INIT;
    DscTb__Metadata metadata = DSC_TB__METADATA__INIT;
    DscTb__TensorSize size = DSC_TB__TENSOR_SIZE__INIT, *sizes[1] = {&size};
    DscTb__TensorShape shape = DSC_TB__TENSOR_SHAPE__INIT;
    DscTb__Tensor tensor = DSC_TB__TENSOR__INIT;
    DscTb__SummaryValue value = DSC_TB__SUMMARY_VALUE__INIT, *values[1] = {&value};
    char plugin_name[] = "hparams", tag[TAG_SIZE];
    float zero = 0;
    size_t bytes = encode(t, &content->base);
    unsigned char *copy = malloc(bytes + 1);
    if (!copy || bytes == 0) {
        t->error = t->error ? t->error : ENOMEM;
        free(copy);
        return;
    }
    memcpy(copy, t->packed, bytes);
    snprintf(tag, sizeof tag, "_hparams_/%s", name);
    plugin.plugin_name = plugin_name;
    plugin.content.data = copy;
    plugin.content.len = bytes;
    metadata.plugin_data = &plugin;
    size.size = 1;
    shape.n_dim = 1;
    shape.dim = sizes;
    tensor.dtype = 1;
    tensor.tensor_shape = &shape;
    tensor.n_float_val = 1;
    tensor.float_val = &zero;
    value.tag = tag;
    value.metadata = &metadata;
    value.value_case = DSC_TB__SUMMARY_VALUE__VALUE_TENSOR;
    value.tensor = &tensor;
    write_values(t, 0, values, 1);
    free(copy);
}

/* Copies a text and cuts it when it is too long, but never inside a character. */
static void copy_text(const char *from, char *to, size_t size) {
    size_t length = strlen(from);
    if (length >= size) {
        length = size - 1;
        while (length > 0 && (from[length] & 0xc0) == 0x80)
            length--;
    }
    memcpy(to, from, length);
    to[length] = '\0';
}

/* Adds what may be a column of a table: numbers, flags, text; lists as text. */
static void add_hparam(dsc_tensorboard *t, const char *object, const char *key, const json_t *value) {
    if (t->hparam_count == MOST_HPARAMS || json_is_null(value) || json_is_object(value))
        return;
    char *text = json_is_array(value) ? json_dumps(value, JSON_COMPACT) : NULL;
    size_t at = t->hparam_count++;
    DscTb__HparamInfo *info = &t->hparams[at].info;
    DscTb__HparamEntry *entry = &t->hparams[at].entry;
    DscTb__HparamValue *to = &t->hparams[at].value;
    dsc_tb__hparam_info__init(info);
    dsc_tb__hparam_entry__init(entry);
    dsc_tb__hparam_value__init(to);
    snprintf(t->hparams[at].name, TAG_SIZE, "%s%s%s", object, *object ? "." : "", key);
    info->name = entry->key = t->hparams[at].name;
    entry->value = to;
    if (json_is_number(value)) {
        info->type = DSC_TB__HPARAM_TYPE__TYPE_FLOAT64;
        to->kind_case = DSC_TB__HPARAM_VALUE__KIND_NUMBER_VALUE;
        to->number_value = json_number_value(value);
    } else if (json_is_boolean(value)) {
        info->type = DSC_TB__HPARAM_TYPE__TYPE_BOOL;
        to->kind_case = DSC_TB__HPARAM_VALUE__KIND_BOOL_VALUE;
        to->bool_value = json_is_true(value);
    } else {
        const char *from = text ? text : json_string_value(value);
        copy_text(from ? from : "", t->hparams[at].text, TEXT_SIZE);
        info->type = DSC_TB__HPARAM_TYPE__TYPE_STRING;
        to->kind_case = DSC_TB__HPARAM_VALUE__KIND_STRING_VALUE;
        to->string_value = t->hparams[at].text;
    }
    free(text);
}

static void collect_hparams(dsc_tensorboard *t, const json_t *line) {
    const char *key, *inner;
    json_t *value, *member, *config = json_object_get(line, "config");
    t->hparam_count = 0;
    add_hparam(t, "", "ranks", json_object_get(line, "ranks"));
    add_hparam(t, "", "device", json_object_get(line, "device"));
    json_object_foreach(config, key, value) {
        add_hparam(t, "", key, value);
        json_object_foreach(value, inner, member) { /* nothing when it is no object */
            add_hparam(t, key, inner, member);
        }
    }
}

/* The columns of the table of runs: hyper-parameters and results. */
static void write_experiment(dsc_tensorboard *t) {
    static const char *const metrics[][2] = {{"eval/top1", "top-1"},
                                             {"eval/top5", "top-5"},
                                             {"eval/loss", "validation loss"},
                                             {"epoch/loss", "training loss"},
                                             {"epoch/images_per_s", "images/s"}};
    enum { METRICS = sizeof metrics / sizeof metrics[0] };
    DscTb__Hparams content = DSC_TB__HPARAMS__INIT;
    DscTb__Experiment experiment = DSC_TB__EXPERIMENT__INIT;
    DscTb__HparamInfo *infos[MOST_HPARAMS];
    DscTb__MetricInfo metric[METRICS], *listed[METRICS];
    DscTb__MetricName name[METRICS];
    for (size_t i = 0; i < t->hparam_count; i++)
        infos[i] = &t->hparams[i].info;
    for (size_t i = 0; i < METRICS; i++) {
        dsc_tb__metric_info__init(&metric[i]);
        dsc_tb__metric_name__init(&name[i]);
        name[i].tag = (char *)metrics[i][0];
        metric[i].name = &name[i];
        metric[i].display_name = (char *)metrics[i][1];
        listed[i] = &metric[i];
    }
    experiment.time_created_secs = wall_time();
    experiment.n_hparam_infos = t->hparam_count;
    experiment.hparam_infos = infos;
    experiment.n_metric_infos = METRICS;
    experiment.metric_infos = listed;
    content.data_case = DSC_TB__HPARAMS__DATA_EXPERIMENT;
    content.experiment = &experiment;
    write_hparams(t, "experiment", &content);
}

static void write_start(dsc_tensorboard *t) {
    DscTb__Hparams content = DSC_TB__HPARAMS__INIT;
    DscTb__SessionStart start = DSC_TB__SESSION_START__INIT;
    DscTb__HparamEntry *entries[MOST_HPARAMS];
    for (size_t i = 0; i < t->hparam_count; i++)
        entries[i] = &t->hparams[i].entry;
    start.n_hparams = t->hparam_count;
    start.hparams = entries;
    start.start_time_secs = wall_time();
    content.data_case = DSC_TB__HPARAMS__DATA_SESSION_START_INFO;
    content.session_start_info = &start;
    write_hparams(t, "session_start_info", &content);
}

/* Writes the end of a run, unless it was interrupted: such a run may be continued. */
static void write_end(dsc_tensorboard *t, const json_t *line) {
    DscTb__Hparams content = DSC_TB__HPARAMS__INIT;
    DscTb__SessionEnd end = DSC_TB__SESSION_END__INIT;
    const char *status = json_string_value(json_object_get(line, "status"));
    if (!status || strcmp(status, "interrupted") == 0)
        return;
    end.status =
        strcmp(status, "done") == 0 ? DSC_TB__SESSION_STATUS__SUCCESS : DSC_TB__SESSION_STATUS__FAILURE;
    end.end_time_secs = wall_time();
    content.data_case = DSC_TB__HPARAMS__DATA_SESSION_END_INFO;
    content.session_end_info = &end;
    write_hparams(t, "session_end_info", &content);
}

/* After a resumption: makes readers drop the events of steps after `step` that earlier files hold. */
static void write_restart(dsc_tensorboard *t, int64_t step) {
    DscTb__SessionLog log = DSC_TB__SESSION_LOG__INIT;
    DscTb__Event event = DSC_TB__EVENT__INIT;
    log.status = DSC_TB__SESSION_LOG__STATUS__START;
    event.what_case = DSC_TB__EVENT__WHAT_SESSION_LOG;
    event.session_log = &log;
    write_event(t, step + 1, &event);
}

/* ---- lines ---- */

void dsc_tensorboard_line(dsc_tensorboard *t, const json_t *line) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    int64_t step = (int64_t)json_integer_value(json_object_get(line, "step"));
    if (!t || !kind)
        return;
    if (strcmp(kind, "run") == 0) {
        if (json_is_string(json_object_get(line, "resumed")))
            write_restart(t, step);
        collect_hparams(t, line);
        write_experiment(t);
        write_start(t);
    } else if (strcmp(kind, "end") == 0) {
        write_end(t, line);
    } else {
        write_scalars(t, kind, step, line);
        if (strcmp(kind, "kfac") == 0)
            write_cosines(t, step, line);
    }
}

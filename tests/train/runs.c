/* Small training runs, and looking at what they leave behind. */
#include "train/runs.h"

#include "chosen.h"
#include "descent/log.h"
#include "train/safetensors.h"
#include "train/scratch.h"

#include <stdlib.h>

enum { NOTES_SIZE = 1024 };

static void open_alone(const char *name, dsc_comm **comm, dsc_device **device) {
    dsc_comm_options self;
    dsc_comm_options_init(&self);
    self.kind = "self";
    assert_ok(dsc_comm_create(&self, comm));
    *device = chosen_open(name, 1);
}

void runs_open(dsc_comm **comm, dsc_device **device) {
    open_alone(chosen_or("cpu"), comm, device);
}

void runs_open_exact(dsc_comm **comm, dsc_device **device) {
    open_alone(chosen_exact_or("cpu"), comm, device);
}

int runs_lag(const dsc_device *device) {
    return dsc_device_is_host(device) ? 0 : 2;
}

void *runs_read(dsc_queue *queue, const dsc_tensor *t) {
    size_t bytes = dsc_tensor_bytes(t);
    void *host = malloc(bytes + 1);
    assert_non_null(host);
    assert_ok(dsc_tensor_download(queue, t, bytes, host));
    assert_ok(dsc_queue_sync(queue));
    return host;
}

enum { PARTS = 64 };
static struct {
    dsc_optim_options optim;
    dsc_consensus_options consensus;
    dsc_kfac_options kfac;
} parts[PARTS];
static int parts_taken;

dsc_optim_options *optim_of(const dsc_train_options *options) {
    for (int i = 0; i < PARTS; i++)
        if (options->optim == &parts[i].optim)
            return &parts[i].optim;
    fail();
    return NULL;
}

dsc_consensus_options *consensus_of(const dsc_train_options *options) {
    for (int i = 0; i < PARTS; i++)
        if (options->consensus == &parts[i].consensus)
            return &parts[i].consensus;
    fail();
    return NULL;
}

dsc_kfac_options *kfac_of(const dsc_train_options *options) {
    for (int i = 0; i < PARTS; i++)
        if (options->kfac == &parts[i].kfac)
            return &parts[i].kfac;
    fail();
    return NULL;
}

void runs_options(dsc_train_options *options, const char *out) {
    int i = parts_taken++ % PARTS;
    dsc_train_options_init(options);
    dsc_optim_options_init(&parts[i].optim);
    dsc_consensus_options_init(&parts[i].consensus);
    dsc_kfac_options_init(&parts[i].kfac);
    parts[i].kfac.update_freq = 0;
    options->optim = &parts[i].optim;
    options->consensus = &parts[i].consensus;
    options->kfac = &parts[i].kfac;
    options->model = "mlp";
    options->data = "synthetic:64";
    options->epochs = 2;
    options->batch_size = 16;
    options->lr = 0.02;
    options->warmup_epochs = 0;
    options->lr_scaling = 0;
    options->out = out;
}

void runs_stop_at(void *context, const dsc_progress *progress) {
    if (progress->kind == DSC_EVENT_STEP && progress->step + 1 == *(const int64_t *)context)
        dsc_train_request_stop();
}

static void note_warning(void *context, dsc_log_level level, const char *text) {
    char *notes = context;
    size_t used = strlen(notes);
    if (level == DSC_LOG_WARNING)
        snprintf(notes + used, NOTES_SIZE - used, "%s\n", text);
}

dsc_status runs_noting(dsc_comm *comm, dsc_device *device, const dsc_train_options *options,
                       const char **warnings) {
    static char notes[NOTES_SIZE];
    notes[0] = '\0';
    *warnings = notes;
    dsc_log_set_handler(note_warning, notes);
    dsc_status status = dsc_train_run(comm, device, options, NULL);
    dsc_log_set_handler(NULL, NULL);
    return status;
}

static int tensor_differs(const dsc_st_reader *a, const dsc_st_reader *b, const dsc_st_tensor *t) {
    const dsc_st_tensor *u = dsc_st_find(b, t->name);
    if (strcmp(t->name, "train.seconds") == 0)
        return 0;
    if (!u || u->bytes != t->bytes)
        return 1;
    char *x = malloc(t->bytes + 1), *y = malloc(t->bytes + 1);
    assert_true(x && y);
    assert_ok(dsc_st_read(a, t, x, t->bytes));
    assert_ok(dsc_st_read(b, u, y, t->bytes));
    int differs = memcmp(x, y, t->bytes) != 0;
    if (differs)
        fprintf(stderr, "'%s' and '%s' differ in '%s'\n", dsc_st_path(a), dsc_st_path(b), t->name);
    free(x);
    free(y);
    return differs;
}

static int file_differences(const char *directory, const char *other, const char *name) {
    dsc_st_reader *a = NULL, *b = NULL;
    assert_ok(dsc_st_open(scratch_path(directory, name), &a));
    assert_ok(dsc_st_open(scratch_path(other, name), &b));
    int count = dsc_st_count(a) != dsc_st_count(b);
    for (int64_t i = 0; i < dsc_st_count(a); i++)
        count += tensor_differs(a, b, &dsc_st_tensors(a)[i]);
    dsc_st_close(&a);
    dsc_st_close(&b);
    return count;
}

int runs_differences(const char *directory, const char *other, int64_t step) {
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld.safetensors", (long long)step);
    int count = file_differences(directory, other, name);
    snprintf(name, sizeof name, "checkpoint-%lld.ema.safetensors", (long long)step);
    if (scratch_exists(directory, name) || scratch_exists(other, name))
        count += file_differences(directory, other, name);
    snprintf(name, sizeof name, "checkpoint-%lld.state.safetensors", (long long)step);
    return count + file_differences(directory, other, name);
}

json_t *runs_lines(const char *directory) {
    size_t bytes;
    char *text = scratch_read(scratch_path(directory, "metrics.jsonl"), &bytes);
    json_t *lines = json_array();
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        json_t *object = json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_is_object(object));
        json_array_append_new(lines, object);
        line = end + 1;
    }
    free(text);
    return lines;
}

static int is_kind(json_t *line, const char *kind) {
    return strcmp(json_string_value(json_object_get(line, "kind")), kind) == 0;
}

int runs_count(json_t *lines, const char *kind) {
    int count = 0;
    for (size_t i = 0; i < json_array_size(lines); i++)
        count += is_kind(json_array_get(lines, i), kind);
    return count;
}

json_t *runs_line(json_t *lines, const char *kind, int n) {
    for (size_t i = 0; i < json_array_size(lines); i++)
        if (is_kind(json_array_get(lines, i), kind) && n-- == 0)
            return json_array_get(lines, i);
    fail_msg("no such line of kind %s", kind);
    return NULL;
}

/* The choices of engines in this process, and their text form. */
#include "device/cuda/conv_choices.h"

#include "base/error.h"
#include "base/memory.h"
#include "descent/log.h"
#include "device/cuda/entries.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct entry {
    int ordinal, strict;
    int used;  /* 0: preset and not asked for so far */
    int timed; /* 1: timed or preset, so another process might choose otherwise */
    dsc_conv_desc desc;
    dsc_dnn_kind kind;
    dsc_dnn_choice choice;
} entry;

/* Lives as long as the process. */
static struct {
    pthread_mutex_t mutex;
    entry *entries;
    int64_t count, capacity;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static const char *const kind_names[DSC_DNN_KINDS] = {
    [DSC_DNN_FORWARD] = "forward",       [DSC_DNN_DATA] = "data",
    [DSC_DNN_DATA_ADD] = "data_add",     [DSC_DNN_WEIGHT] = "weight",
    [DSC_DNN_WEIGHT_ADD] = "weight_add", [DSC_DNN_WEIGHT_HALF] = "weight_half",
};
static const dsc_dtype types[] = {DSC_F32, DSC_BF16, DSC_F16};

enum { TYPES = sizeof types / sizeof types[0] };

static int same_desc(const dsc_conv_desc *a, const dsc_conv_desc *b) {
    const size_t first = offsetof(dsc_conv2d_shape, in_h); /* int64_t from here on, without gaps */
    return a->dtype == b->dtype && a->n == b->n &&
           memcmp((const char *)&a->shape + first, (const char *)&b->shape + first,
                  sizeof a->shape - first) == 0;
}

static entry *find(int ordinal, int strict, const dsc_conv_desc *desc, dsc_dnn_kind kind) {
    for (int64_t i = 0; i < kept.count; i++) {
        entry *e = &kept.entries[i];
        if (e->ordinal == ordinal && e->strict == strict && e->kind == kind && same_desc(&e->desc, desc))
            return e;
    }
    return NULL;
}

/* Stores an entry in place of an older one. */
static dsc_status put(const entry *new) {
    entry *e = find(new->ordinal, new->strict, &new->desc, new->kind);
    if (!e) {
        DSC_TRY(dsc_memory_grow(&kept.entries, &kept.capacity, kept.count + 1, sizeof *kept.entries));
        e = &kept.entries[kept.count++];
    }
    *e = *new;
    return DSC_OK;
}

int dsc_cuda_choice_find(const dsc_cuda *gpu, const dsc_dnn_problem *problem, dsc_dnn_kind kind, int timed,
                         dsc_dnn_choice *out) {
    pthread_mutex_lock(&kept.mutex);
    entry *e = find(gpu->ordinal, problem->strict, &problem->desc, kind);
    if (e && timed && !e->timed)
        e = NULL;
    if (e) {
        e->used = 1;
        *out = e->choice;
    }
    pthread_mutex_unlock(&kept.mutex);
    return e != NULL;
}

dsc_status dsc_cuda_choice_keep(const dsc_cuda *gpu, const dsc_dnn_problem *problem, dsc_dnn_kind kind,
                                int timed, const dsc_dnn_choice *choice) {
    const entry new = {.ordinal = gpu->ordinal,
                       .strict = problem->strict,
                       .used = 1,
                       .timed = timed,
                       .desc = problem->desc,
                       .kind = kind,
                       .choice = *choice};
    pthread_mutex_lock(&kept.mutex);
    dsc_status status = put(&new);
    pthread_mutex_unlock(&kept.mutex);
    return status;
}

/* ---- text ---- */

#define HEAD "cudnn %zu capability %d"
enum { LONGEST_TEXT = 1 << 20 }; /* about 5000 choices */

typedef struct writer {
    char *text;
    size_t size, length;
} writer;

static void __attribute__((format(printf, 2, 3))) write_text(writer *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t room = w->length < w->size ? w->size - w->length : 0;
    int n = vsnprintf(room ? w->text + w->length : NULL, room, format, arguments);
    va_end(arguments);
    w->length += n > 0 ? (size_t)n : 0;
}

static void write_entry(writer *w, const entry *e) {
    const dsc_conv_desc *d = &e->desc;
    const dsc_conv2d_shape *shape = &d->shape;
    write_text(w, "%s strict %d x %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " k %" PRId64,
               dsc_dtype_name(d->dtype), e->strict, d->n, shape->in_h, shape->in_w, shape->in_c,
               shape->out_c);
    write_text(w, " kernel %" PRId64 " %" PRId64 " stride %" PRId64 " %" PRId64, shape->kernel_h,
               shape->kernel_w, shape->stride_h, shape->stride_w);
    write_text(w, " pad %" PRId64 " %" PRId64 " dilation %" PRId64 " %" PRId64 " groups %" PRId64,
               shape->pad_h, shape->pad_w, shape->dilation_h, shape->dilation_w, shape->groups);
    write_text(w, " %s engine %" PRId64 " knobs %" PRId64, kind_names[e->kind], e->choice.engine,
               e->choice.count);
    for (int64_t i = 0; i < e->choice.count; i++)
        write_text(w, " %" PRId64 "=%" PRId64, e->choice.knob[i].type, e->choice.knob[i].value);
    write_text(w, "\n");
}

static int is_in_use(const entry *e, const dsc_cuda *gpu) {
    return e->used && e->ordinal == gpu->ordinal && e->strict == gpu->strict;
}

static int any_timed(const dsc_cuda *gpu) {
    for (int64_t i = 0; i < kept.count; i++)
        if (kept.entries[i].timed && is_in_use(&kept.entries[i], gpu))
            return 1;
    return 0;
}

dsc_status dsc_cuda_choices(dsc_device *device, char *text, size_t size, size_t *needed) {
    const dsc_cuda *gpu = dsc_cuda_of(device);
    writer w = {.text = text, .size = size};
    pthread_mutex_lock(&kept.mutex);
    int any = any_timed(gpu);
    write_text(&w, "%s", "");
    if (any)
        write_text(&w, HEAD "\n", cudnnGetVersion(), gpu->capability);
    for (int64_t i = 0; any && i < kept.count; i++)
        if (is_in_use(&kept.entries[i], gpu))
            write_entry(&w, &kept.entries[i]);
    pthread_mutex_unlock(&kept.mutex);
    *needed = w.length + 1;
    return DSC_OK;
}

static int read_kind(const char *name, dsc_dnn_kind *out) {
    for (int i = 0; i < DSC_DNN_KINDS; i++)
        if (strcmp(name, kind_names[i]) == 0) {
            *out = (dsc_dnn_kind)i;
            return 1;
        }
    return 0;
}

static int read_type(const char *name, dsc_dtype *out) {
    for (int i = 0; i < TYPES; i++)
        if (strcmp(name, dsc_dtype_name(types[i])) == 0) {
            *out = types[i];
            return 1;
        }
    return 0;
}

/* This function and the next read from *at on and advance it; they return 0 if the text is malformed. */
static int read_sizes(const char **at, entry *e) {
    dsc_conv_desc *d = &e->desc;
    dsc_conv2d_shape *s = &d->shape;
    char name[16];
    int length = -1;
    int got = sscanf(*at,
                     "%15s strict %d x %" SCNd64 "%" SCNd64 "%" SCNd64 "%" SCNd64 " k %" SCNd64
                     " kernel %" SCNd64 "%" SCNd64 " stride %" SCNd64 "%" SCNd64 " pad %" SCNd64 "%" SCNd64
                     " dilation %" SCNd64 "%" SCNd64 " groups %" SCNd64 "%n",
                     name, &e->strict, &d->n, &s->in_h, &s->in_w, &s->in_c, &s->out_c, &s->kernel_h,
                     &s->kernel_w, &s->stride_h, &s->stride_w, &s->pad_h, &s->pad_w, &s->dilation_h,
                     &s->dilation_w, &s->groups, &length);
    if (got != 16 || length < 0 || !read_type(name, &d->dtype))
        return 0;
    *at += length;
    return 1;
}

static int read_choice(const char **at, entry *e) {
    dsc_dnn_choice *c = &e->choice;
    char name[16];
    int length = -1;
    if (sscanf(*at, "%15s engine %" SCNd64 " knobs %" SCNd64 "%n", name, &c->engine, &c->count, &length) !=
            3 ||
        length < 0 || !read_kind(name, &e->kind) || c->count < 0 || c->count > DSC_DNN_KNOBS)
        return 0;
    *at += length;
    for (int64_t i = 0; i < c->count; i++) {
        length = -1;
        if (sscanf(*at, "%" SCNd64 "=%" SCNd64 "%n", &c->knob[i].type, &c->knob[i].value, &length) != 2 ||
            length < 0)
            return 0;
        *at += length;
    }
    return **at == '\n';
}

/* Reads all entries, and stores them if `keep` is 1; otherwise only checks that all of them can be read. */
static dsc_status read_entries(const char *at, int ordinal, int keep) {
    for (int line = 2; *at; line++) {
        entry e = {.ordinal = ordinal, .timed = 1};
        if (!read_sizes(&at, &e) || !read_choice(&at, &e))
            return DSC_FAIL(DSC_E_FORMAT, "choices of convolutions: line %d is no such choice", line);
        at++; /* the newline */
        if (keep)
            DSC_TRY(put(&e));
    }
    return DSC_OK;
}

dsc_status dsc_cuda_preset(dsc_device *device, const char *text) {
    const dsc_cuda *gpu = dsc_cuda_of(device);
    size_t version = 0;
    int capability = 0, length = -1;
    if (strlen(text) > LONGEST_TEXT)
        return DSC_FAIL(DSC_E_FORMAT, "choices of convolutions: more than %d bytes", LONGEST_TEXT);
    if (sscanf(text, HEAD "%n", &version, &capability, &length) != 2 || length < 0 || text[length] != '\n')
        return DSC_FAIL(DSC_E_FORMAT, "choices of convolutions: the first line names no version of cuDNN");
    if (version != cudnnGetVersion() || capability != gpu->capability) {
        dsc_log(DSC_LOG_WARNING,
                "choices of convolutions are for cuDNN %zu and capability %d, here are %zu and %d: engines "
                "are chosen anew",
                version, capability, cudnnGetVersion(), gpu->capability);
        return DSC_OK;
    }
    pthread_mutex_lock(&kept.mutex);
    dsc_status status = read_entries(text + length + 1, gpu->ordinal, 0);
    if (status == DSC_OK)
        status = read_entries(text + length + 1, gpu->ordinal, 1);
    pthread_mutex_unlock(&kept.mutex);
    return status;
}

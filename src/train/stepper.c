/* Order of a step with one micro-batch, where everything can be recorded:
 *
 *   plain step        [ micro, exchange, absorb, apply ]                one recording
 *   it decomposes     [ micro, exchange, absorb ] decompose [ apply ]   two
 *
 * With several micro-batches each is a piece of its own; an exchange that goes over the host is none, and
 * gossip, where the host decides what is due and waits for messages, leaves the micro-batches alone. */
#include "train/stepper.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/table.h"
#include "consensus/table.h"
#include "device/ops.h"
#include "kfac/parts.h"
#include "optim/parts.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Places in the block of numbers that come back from the device. */
enum { LOSS, TOP1, TOP5, ROWS, STOP, FAILED, SUMMED, NU = SUMMED, SKIP, SCALE, NUMBERS };
enum { STATS = 4, START_MARK = DSC_PHASE_COUNT, MARKS, SLOTS = 2, SCALE_INTERVAL = 2000 };
static const double first_scale = 65536;

/* Pieces that can be recorded; with factors moving or not, after a decomposition or not, and by K-FAC's
 * recipe. */
typedef enum piece { WHOLE, MICRO_FIRST, MICRO_NEXT, HEAD, REST, JOIN, TAIL, PIECES } piece;
enum { FACTORS = 1, DECOMPOSED = 2, RECIPE = 4, VARIANTS = 12 };

typedef struct recorded {
    int seen;                          /* it ran before: libraries have made their plans */
    const void *x, *labels;            /* what it was recorded with */
    dsc_recording *recording;          /* NULL: not yet */
    uint64_t bytes[DSC_TRAFFIC_COUNT]; /* that it sends; without the exchange none */
} recorded;

/* What comes back from the device. */
typedef struct told {
    double numbers[NUMBERS];
    int64_t marks[MARKS];
} told;

typedef struct slot {
    void *host; /* told */
    dsc_event *done;
    double began;
    double ms[DSC_PHASE_COUNT]; /* what the host measures */
} slot;

struct dsc_stepper {
    dsc_stepper_parts p;
    dsc_device *device;
    int is_host, lag;
    int collective, records;   /* what the consensus says of its steps */
    dsc_tensor block;          /* U8: numbers, then marks */
    dsc_tensor numbers, marks; /* F64[NUMBERS], I64[MARKS], in it */
    dsc_tensor fisher_labels, fisher_stats;
    dsc_tensor scale, bad; /* of fp16: F64[DSC_SCALE_COUNT], F64 scalar; no memory otherwise */
    dsc_tensor inverse, inverse_square;
    recorded pieces[PIECES][VARIANTS];

    dsc_tensor x, labels; /* of the micro-batch under way */
    int64_t micro;
    int variant;
    int lost;    /* a host sees at once that the loss is not finite, and leaves out the rest */
    double mark; /* host clock */
    double capture_seconds;
    slot slots[SLOTS];
    int64_t ended, collected; /* steps */
    double collected_at;
};

/* ---- life ---- */

static dsc_status make_block(dsc_stepper *s) {
    const int64_t numbers = NUMBERS, marks = MARKS;
    int64_t bytes = sizeof(told);
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_U8, 1, &bytes, &s->block));
    s->numbers = dsc_tensor_view(s->device, s->block.data, DSC_F64, 1, &numbers);
    s->marks = dsc_tensor_view(s->device, (char *)s->block.data + offsetof(told, marks), DSC_I64, 1, &marks);
    for (int i = 0; i < SLOTS; i++) {
        DSC_TRY(dsc_host_alloc(s->device, (size_t)bytes, &s->slots[i].host));
        DSC_TRY(dsc_event_create(s->device, &s->slots[i].done));
    }
    dsc_tensor nu = dsc_tensor_slice(&s->numbers, NU, 1), scale = dsc_tensor_slice(&s->numbers, SCALE, 1);
    DSC_TRY(dsc_op_fill(s->p.queue, NAN, &nu));
    return dsc_op_fill(s->p.queue, 1, &scale);
}

/* bf16 has the range of fp32 and needs no scale. */
static dsc_status make_scale(dsc_stepper *s) {
    const int64_t count = DSC_SCALE_COUNT, one = 1;
    if (dsc_exec_logits(s->p.exec)->dtype != DSC_F16)
        return DSC_OK;
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_F64, 1, &count, &s->scale));
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_F64, 1, &one, &s->bad));
    s->inverse = dsc_tensor_slice(&s->scale, DSC_SCALE_INVERSE, 1);
    s->inverse_square = dsc_tensor_slice(&s->scale, DSC_SCALE_INVERSE_SQUARE, 1);
    dsc_tensor value = dsc_tensor_slice(&s->scale, DSC_SCALE_VALUE, 1);
    dsc_exec_scale_loss(s->p.exec, &value);
    if (s->p.kfac)
        dsc_kfac_scale_g(s->p.kfac, &s->inverse_square);
    return dsc_stepper_set_scale(s, (const double[]){first_scale, 0});
}

static dsc_status make(dsc_stepper *s) {
    const int64_t four = STATS;
    DSC_TRY(make_block(s));
    DSC_TRY(make_scale(s));
    if (!s->p.sampled)
        return DSC_OK;
    DSC_TRY(dsc_tensor_alloc(s->device, DSC_I32, 1, &s->p.batch, &s->fisher_labels));
    return dsc_tensor_alloc(s->device, DSC_F64, 1, &four, &s->fisher_stats);
}

dsc_status dsc_stepper_create(const dsc_stepper_parts *parts, dsc_stepper **out) {
    dsc_stepper *s;
    DSC_TRY(dsc_memory_alloc(1, sizeof *s, &s));
    s->p = *parts;
    s->device = dsc_queue_device(parts->queue);
    s->is_host = dsc_device_is_host(s->device);
    s->lag = s->is_host ? 0 : 1;
    s->collective = dsc_consensus_is_collective(parts->consensus);
    s->records = dsc_consensus_records(parts->consensus) && dsc_comm_records(parts->comm);
    dsc_status status = make(s);
    if (status != DSC_OK) {
        dsc_stepper_destroy(&s);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = s;
    return DSC_OK;
}

void dsc_stepper_destroy(dsc_stepper **stepper) {
    if (!stepper || !*stepper)
        return;
    dsc_stepper *s = *stepper;
    for (int i = 0; i < PIECES * VARIANTS; i++)
        dsc_recording_destroy(&s->pieces[i / VARIANTS][i % VARIANTS].recording);
    for (int i = 0; i < SLOTS; i++) {
        dsc_event_destroy(&s->slots[i].done);
        dsc_host_free(s->device, &s->slots[i].host);
    }
    dsc_tensor_free(&s->scale);
    dsc_tensor_free(&s->bad);
    dsc_tensor_free(&s->fisher_labels);
    dsc_tensor_free(&s->fisher_stats);
    dsc_tensor_free(&s->block);
    dsc_memory_free(stepper);
}

/* ---- phases ----
 * On a host device by its clock, less what layers spend in K-FAC during a backward pass, which K-FAC tells
 * itself. On others by marks that the device leaves in passing; there the factors' products belong to the
 * pass that they run in. */

static slot *slot_of(dsc_stepper *s, int64_t step) {
    return &s->slots[step % SLOTS];
}

static void lap(dsc_stepper *s, dsc_phase phase) {
    double now = dsc_clock_now();
    slot_of(s, s->ended)->ms[phase] += 1000 * (now - s->mark - s->capture_seconds);
    s->mark = now;
    s->capture_seconds = 0;
}

static void host_lap(dsc_stepper *s, dsc_phase phase) {
    if (s->is_host)
        lap(s, phase);
}

/* What was put into the queue since the last mark belongs to `phase`. */
static dsc_status mark(dsc_stepper *s, int phase) {
    if (phase != START_MARK)
        host_lap(s, (dsc_phase)phase);
    if (s->is_host)
        return DSC_OK;
    if (!s->p.timed)
        return DSC_OK;
    dsc_tensor place = dsc_tensor_slice(&s->marks, phase, 1);
    return dsc_op_timestamp(s->p.queue, &place);
}

/* ---- the work ---- */

static int samples_now(const dsc_stepper *s) {
    return s->p.sampled && (s->variant & FACTORS);
}

static double grad_scale(const dsc_stepper *s) {
    return 1.0 / (double)(s->p.batch * s->p.micro_batches);
}

static dsc_status grad_ready(void *context, dsc_queue *q, int64_t param) {
    dsc_stepper *s = context;
    return dsc_consensus_grad_ready(s->p.consensus, q, param);
}

static dsc_status capture(void *context, dsc_queue *q, int64_t layer, const dsc_tensor *a,
                          const dsc_tensor *g) {
    dsc_stepper *s = context;
    double began = dsc_clock_now();
    DSC_TRY(dsc_kfac_capture(s->p.kfac, q, layer, a, g));
    s->capture_seconds += dsc_clock_now() - began;
    return DSC_OK;
}

/* Sampled Fisher, on steps that move the factors: a backward pass for labels drawn from softmax(logits), a
 * pure function of (seed, step, sample), which hands layers to K-FAC and computes no parameters' gradients.
 * Statistics of the loss stay as they were. */
static dsc_status sample(dsc_stepper *s) {
    dsc_exec *exec = s->p.exec;
    dsc_queue *q = s->p.queue;
    dsc_backward_options backward;
    if (!samples_now(s))
        return DSC_OK;
    dsc_tensor stats = *dsc_exec_stats(exec);
    DSC_TRY(dsc_op_sample_labels(q, s->p.seed, dsc_exec_position(exec), dsc_exec_logits(exec),
                                 &s->fisher_labels));
    DSC_TRY(dsc_op_convert(q, &stats, &s->fisher_stats));
    dsc_exec_smooth_labels(exec, 0); /* the Fisher matrix is that of the model's own distribution */
    dsc_status status = dsc_exec_loss(exec, q, &s->fisher_labels, grad_scale(s));
    dsc_exec_smooth_labels(exec, 1);
    DSC_TRY(status);
    dsc_backward_options_init(&backward);
    backward.param_grads = 0;
    backward.context = s;
    backward.capture = capture;
    DSC_TRY(dsc_exec_backward(exec, q, &backward));
    return dsc_op_convert(q, &s->fisher_stats, &stats);
}

/* 1 when gradients leave during backward: not where backward is recorded without the exchange. */
static int leaves_early(const dsc_stepper *s) {
    return s->is_host || (s->records && s->p.micro_batches == 1);
}

static dsc_status micro(dsc_stepper *s) {
    dsc_backward_options backward;
    if (s->micro == 0) {
        DSC_TRY(mark(s, START_MARK));
        DSC_TRY(dsc_exec_clear_stats(s->p.exec, s->p.queue));
        if (s->collective)
            DSC_TRY(dsc_consensus_before_forward(s->p.consensus, s->p.queue));
        host_lap(s, DSC_PHASE_EXCHANGE);
    }
    DSC_TRY(dsc_exec_forward(s->p.exec, s->p.queue, &s->x));
    if (s->is_host || s->micro == 0) /* a device has one mark: what follows is counted as backward */
        DSC_TRY(mark(s, DSC_PHASE_FORWARD));
    DSC_TRY(sample(s));
    host_lap(s, DSC_PHASE_FACTOR);
    DSC_TRY(dsc_exec_loss(s->p.exec, s->p.queue, &s->labels, grad_scale(s)));
    dsc_backward_options_init(&backward);
    backward.accumulate = s->micro > 0;
    backward.context = s;
    if (s->micro == s->p.micro_batches - 1 && leaves_early(s))
        backward.grad_ready = grad_ready;
    if (s->p.kfac && !samples_now(s))
        backward.capture = capture;
    DSC_TRY(dsc_exec_backward(s->p.exec, s->p.queue, &backward));
    return mark(s, DSC_PHASE_BACKWARD);
}

/* fp16: gradients as they would be without the scale; one that overflowed leaves out the update. */
static dsc_status unscale(dsc_stepper *s) {
    dsc_tensor grads = dsc_model_grads(s->p.model), skip = *dsc_optim_skip(s->p.optim);
    if (!s->scale.data)
        return DSC_OK;
    DSC_TRY(dsc_op_fill(s->p.queue, 0, &s->bad));
    DSC_TRY(dsc_op_count_nonfinite(s->p.queue, &grads, &s->bad));
    DSC_TRY(dsc_op_loss_scale(s->p.queue, &s->bad, &s->scale, &skip));
    return dsc_op_scale_by(s->p.queue, &s->inverse, &grads);
}

/* Gradients, and loss and flags of all ranks in one small message beside them; with gossip there is none. */
static dsc_status exchange(dsc_stepper *s) {
    dsc_tensor stats = dsc_tensor_slice(&s->numbers, LOSS, STATS);
    dsc_tensor sums = dsc_tensor_slice(&s->numbers, LOSS, SUMMED);
    dsc_request *request = NULL;
    DSC_TRY(dsc_op_convert(s->p.queue, dsc_exec_stats(s->p.exec), &stats));
    if (s->collective)
        DSC_TRY(dsc_comm_allreduce_begin(s->p.comm, DSC_TRAFFIC_OTHER, DSC_SUM, &sums, &request));
    for (int64_t i = dsc_model_param_count(s->p.model) - 1; i >= 0 && !leaves_early(s); i--)
        DSC_TRY(dsc_consensus_grad_ready(s->p.consensus, s->p.queue, i));
    DSC_TRY(dsc_consensus_after_backward(s->p.consensus, s->p.queue));
    DSC_TRY(dsc_comm_wait(&request));
    DSC_TRY(unscale(s));
    s->lost = s->is_host && !isfinite(((const double *)s->numbers.data)[LOSS]);
    return mark(s, DSC_PHASE_EXCHANGE);
}

static dsc_status absorb(dsc_stepper *s) {
    if (!s->p.kfac)
        return DSC_OK;
    int moves = dsc_kfac_wants_factors(s->p.kfac);
    if (s->p.factors && (moves || dsc_kfac_wants_decomposition(s->p.kfac)))
        DSC_TRY(dsc_factors_take(s->p.factors, s->p.queue, moves));
    DSC_TRY(dsc_kfac_absorb(s->p.kfac, s->p.queue));
    if (s->p.factors && moves)
        DSC_TRY(dsc_factors_send(s->p.factors, s->p.queue));
    return mark(s, DSC_PHASE_FACTOR);
}

static dsc_status update(dsc_stepper *s) {
    const dsc_tensor *read;
    dsc_status status;
    DSC_TRY(dsc_consensus_update_begin(s->p.consensus, s->p.queue, &read));
    DSC_TRY_GOTO(status, dsc_optim_apply(s->p.optim, s->p.queue, read), failed);
    return dsc_consensus_update_end(s->p.consensus, s->p.queue);
failed:
    dsc_consensus_update_cancel(s->p.consensus);
    return status;
}

static dsc_status apply(dsc_stepper *s) {
    dsc_tensor loss = dsc_tensor_slice(&s->numbers, LOSS, 1), nu = dsc_tensor_slice(&s->numbers, NU, 1);
    dsc_tensor skipped = dsc_tensor_slice(&s->numbers, SKIP, 1), skip = *dsc_optim_skip(s->p.optim);
    DSC_TRY(dsc_op_guard(s->p.queue, &loss, 1, &skip));
    if (s->p.kfac) {
        DSC_TRY(dsc_kfac_apply(s->p.kfac, s->p.queue));
        DSC_TRY(dsc_op_convert(s->p.queue, dsc_kfac_nu_tensor(s->p.kfac), &nu));
        DSC_TRY(dsc_op_guard(s->p.queue, &nu, 0, &skip));
        DSC_TRY(mark(s, DSC_PHASE_PRECONDITION));
    }
    DSC_TRY(update(s));
    DSC_TRY(dsc_op_convert(s->p.queue, &skip, &skipped));
    if (s->scale.data) {
        dsc_tensor value = dsc_tensor_slice(&s->scale, DSC_SCALE_VALUE, 1);
        dsc_tensor shown = dsc_tensor_slice(&s->numbers, SCALE, 1);
        DSC_TRY(dsc_op_convert(s->p.queue, &value, &shown));
    }
    return mark(s, DSC_PHASE_UPDATE);
}

/* ---- pieces ---- */

static int has(piece which, int part) {
    static const unsigned parts[PIECES] = {
        [WHOLE] = 15, [MICRO_FIRST] = 1, [MICRO_NEXT] = 1, [HEAD] = 7, [REST] = 14, [JOIN] = 6, [TAIL] = 8};
    return parts[which] >> part & 1;
}

static dsc_status run(dsc_stepper *s, piece which) {
    if (has(which, 0))
        DSC_TRY(micro(s));
    if (has(which, 1))
        DSC_TRY(exchange(s));
    if (has(which, 2) && !s->lost)
        DSC_TRY(absorb(s));
    if (has(which, 3) && !s->lost)
        DSC_TRY(apply(s));
    return DSC_OK;
}

static dsc_status record(dsc_stepper *s, piece which, recorded *r) {
    uint64_t before[DSC_TRAFFIC_COUNT];
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        before[i] = dsc_comm_bytes(s->p.comm, (dsc_traffic)i);
    DSC_TRY(dsc_recording_begin(s->p.queue));
    dsc_status status = run(s, which);
    dsc_recording *recording = NULL;
    if (status != DSC_OK) {
        if (dsc_recording_end(s->p.queue, &recording) == DSC_OK)
            dsc_recording_destroy(&recording);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    DSC_TRY(dsc_recording_end(s->p.queue, &r->recording));
    for (int i = 0; i < DSC_TRAFFIC_COUNT; i++)
        r->bytes[i] = s->records ? dsc_comm_bytes(s->p.comm, (dsc_traffic)i) - before[i] : 0;
    r->x = s->x.data;
    r->labels = s->labels.data;
    return DSC_OK;
}

static int can_record(const dsc_stepper *s, piece which) {
    if (!dsc_device_records(s->device))
        return 0;
    return s->records || which == MICRO_FIRST || which == MICRO_NEXT;
}

/* Runs a piece, or replays it: the first time it runs as it is, the second time it is recorded. */
static dsc_status perform(dsc_stepper *s, piece which) {
    recorded *r = &s->pieces[which][s->variant];
    if (!r->seen || !can_record(s, which)) {
        r->seen = 1;
        return run(s, which);
    }
    if (r->recording && has(which, 0) && (r->x != s->x.data || r->labels != s->labels.data))
        dsc_recording_destroy(&r->recording);
    if (!r->recording) {
        DSC_TRY(record(s, which, r)); /* which counts its bytes, */
    } else {
        for (int i = 0; i < DSC_TRAFFIC_COUNT; i++) /* as nobody does later */
            dsc_comm_add_bytes(s->p.comm, (dsc_traffic)i, r->bytes[i]);
    }
    DSC_TRY(dsc_recording_replay(r->recording, s->p.queue));
    if (s->p.kfac && has(which, 0))
        dsc_kfac_captured(s->p.kfac, s->micro + 1);
    if (s->p.kfac && has(which, 2))
        dsc_kfac_absorbed(s->p.kfac);
    return DSC_OK;
}

/* ---- a step ---- */

dsc_status dsc_stepper_begin(dsc_stepper *s, double lr, int stop, int failed) {
    const double flags[2] = {stop, failed};
    dsc_tensor to = dsc_tensor_slice(&s->numbers, STOP, 2);
    slot *own = slot_of(s, s->ended);
    s->mark = own->began = dsc_clock_now();
    memset(own->ms, 0, sizeof own->ms);
    s->capture_seconds = 0;
    s->micro = 0;
    s->variant = 0;
    s->lost = 0;
    DSC_TRY(dsc_tensor_upload(s->p.queue, flags, sizeof flags, &to));
    DSC_TRY(dsc_optim_prepare(s->p.optim, s->p.queue, lr));
    dsc_consensus_set_rate(s->p.consensus, lr);
    if (!s->p.kfac)
        return DSC_OK;
    DSC_TRY(dsc_kfac_begin(s->p.kfac, 1.0 / (double)s->p.micro_batches));
    DSC_TRY(dsc_kfac_prepare(s->p.kfac, s->p.queue, lr));
    s->variant = RECIPE * dsc_kfac_recipe(s->p.kfac) + (dsc_kfac_wants_factors(s->p.kfac) ? FACTORS : 0);
    return DSC_OK;
}

dsc_status dsc_stepper_micro(dsc_stepper *s, int64_t step, int64_t first_sample, const dsc_tensor *x,
                             const dsc_tensor *labels) {
    s->x = *x;
    s->labels = *labels;
    lap(s, DSC_PHASE_DATA);
    DSC_TRY(dsc_exec_set_position(s->p.exec, s->p.queue, step, first_sample));
    if (s->micro == 0 && !s->collective) {
        /* The host has a part in it, which no recording would repeat. */
        DSC_TRY(dsc_consensus_before_forward(s->p.consensus, s->p.queue));
        lap(s, DSC_PHASE_EXCHANGE);
    }
    if (s->p.micro_batches == 1 && can_record(s, WHOLE))
        return DSC_OK; /* with what follows */
    DSC_TRY(perform(s, s->micro == 0 ? MICRO_FIRST : MICRO_NEXT));
    s->micro++;
    return DSC_OK;
}

/* The decomposition is timed by the host, which waits for it. */
static dsc_status decompose(dsc_stepper *s) {
    double began = dsc_clock_now();
    if (!s->is_host)
        DSC_TRY(dsc_queue_sync(s->p.queue));
    DSC_TRY(dsc_kfac_decompose(s->p.kfac, s->p.queue));
    slot_of(s, s->ended)->ms[DSC_PHASE_DECOMPOSE] = 1000 * (dsc_clock_now() - began);
    s->variant = (s->variant & FACTORS) + DECOMPOSED + RECIPE * dsc_kfac_recipe(s->p.kfac);
    return mark(s, DSC_PHASE_DECOMPOSE);
}

static dsc_status finish(dsc_stepper *s) {
    slot *own = slot_of(s, s->ended);
    if (s->p.kfac && !s->lost) {
        const dsc_kfac_times *times = dsc_kfac_get_times(s->p.kfac);
        DSC_TRY(dsc_kfac_finish(s->p.kfac, s->p.queue));
        if (s->is_host) {
            own->ms[DSC_PHASE_FACTOR] += times->factor;
            own->ms[DSC_PHASE_DECOMPOSE] = times->decompose;
            own->ms[DSC_PHASE_PRECONDITION] = times->precondition;
        }
    }
    DSC_TRY(dsc_tensor_download(s->p.queue, &s->block, dsc_tensor_bytes(&s->block), own->host));
    DSC_TRY(dsc_event_record(own->done, s->p.queue));
    s->ended++;
    return DSC_OK;
}

dsc_status dsc_stepper_end(dsc_stepper *s) {
    int with_micro = s->micro == 0; /* it is still to do */
    if (s->p.kfac && dsc_kfac_wants_decomposition(s->p.kfac)) {
        DSC_TRY(perform(s, with_micro ? HEAD : JOIN));
        if (!s->lost)
            DSC_TRY(decompose(s));
        DSC_TRY(perform(s, TAIL));
    } else {
        DSC_TRY(perform(s, with_micro ? WHOLE : REST));
    }
    return finish(s);
}

/* ---- results ---- */

int dsc_stepper_pending(const dsc_stepper *s) {
    return (int)(s->ended - s->collected);
}

int dsc_stepper_lag(const dsc_stepper *s) {
    return s->lag;
}

/* Marks in the order in which the device passed them: a phase that was not marked has none. */
static void read_marks(const int64_t *marks, int kfac, double ms[DSC_PHASE_COUNT]) {
    static const int order[] = {DSC_PHASE_FORWARD, DSC_PHASE_BACKWARD,     DSC_PHASE_EXCHANGE,
                                DSC_PHASE_FACTOR,  DSC_PHASE_PRECONDITION, DSC_PHASE_UPDATE};
    int64_t before = marks[START_MARK];
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        int is_kfac = order[i] == DSC_PHASE_FACTOR || order[i] == DSC_PHASE_PRECONDITION;
        if (is_kfac && !kfac)
            continue;
        if (order[i] == DSC_PHASE_PRECONDITION && ms[DSC_PHASE_DECOMPOSE] > 0)
            before = marks[DSC_PHASE_DECOMPOSE];
        ms[order[i]] += 1e-6 * (double)(marks[order[i]] - before);
        before = marks[order[i]];
    }
}

dsc_status dsc_stepper_collect(dsc_stepper *s, dsc_step_results *results) {
    slot *own = slot_of(s, s->collected);
    if (s->collected == s->ended)
        return DSC_FAIL(DSC_E_INTERNAL, "there is no step to collect");
    DSC_TRY(dsc_event_sync(own->done));
    double now = dsc_clock_now(), began = own->began > s->collected_at ? own->began : s->collected_at;
    const told *result = own->host;
    const double *n = result->numbers;
    *results = (dsc_step_results){.loss_sum = n[LOSS],
                                  .top1 = n[TOP1],
                                  .top5 = n[TOP5],
                                  .rows = n[ROWS],
                                  .stop = n[STOP],
                                  .failed = n[FAILED],
                                  .nu = n[NU],
                                  .skip = n[SKIP],
                                  .loss_scale = n[SCALE],
                                  .seconds = now - began};
    memcpy(results->ms, own->ms, sizeof results->ms);
    if (!s->is_host && s->p.timed)
        read_marks(result->marks, s->p.kfac != NULL, results->ms);
    s->collected_at = now;
    s->collected++;
    return DSC_OK;
}

/* ---- the loss scale ---- */

dsc_status dsc_stepper_get_scale(dsc_stepper *s, double scale[2]) {
    double all[DSC_SCALE_COUNT] = {1};
    if (s->scale.data) {
        DSC_TRY(dsc_tensor_download(s->p.queue, &s->scale, sizeof all, all));
        DSC_TRY(dsc_queue_sync(s->p.queue));
    }
    scale[0] = all[DSC_SCALE_VALUE];
    scale[1] = all[DSC_SCALE_GOOD];
    return DSC_OK;
}

dsc_status dsc_stepper_set_scale(dsc_stepper *s, const double scale[2]) {
    const double all[DSC_SCALE_COUNT] = {[DSC_SCALE_VALUE] = scale[0],
                                         [DSC_SCALE_INVERSE] = 1 / scale[0],
                                         [DSC_SCALE_INVERSE_SQUARE] = 1 / (scale[0] * scale[0]),
                                         [DSC_SCALE_GOOD] = scale[1],
                                         [DSC_SCALE_INTERVAL] = SCALE_INTERVAL};
    return s->scale.data ? dsc_tensor_upload(s->p.queue, all, sizeof all, &s->scale) : DSC_OK;
}

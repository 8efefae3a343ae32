/* Runs on several ranks: equal to one rank of the whole batch, stopped by any rank, resumed with the same and
 * another number of ranks, drift noticed, failures agreed on. */
#include "chosen.h"
#include "comm/parallel.h"

#include "base/hash.h"
#include "base/memory.h"
#include "comm/table.h"
#include "train/engines.h"
#include "train/runs.h"
#include "train/safetensors.h"
#include "train/scratch.h"
#include "train/share.h"
#include "train/trainer_internal.h"

#include <math.h>

enum { WATCHDOG_S = 240, STEPS = 20 };

static dsc_comm *comm, *alone; /* all ranks; this process by itself */
static dsc_device *device;
static dsc_queue *queue;
static int rank, ranks;
static char directory[SCRATCH_SIZE]; /* the same on every rank */

static const char *folder(const char *name, char path[SCRATCH_SIZE]) {
    snprintf(path, SCRATCH_SIZE, "%s", scratch_path(directory, name));
    return path;
}

/* ---- p ranks of batch b are one rank of batch p b ---- */

static dsc_trainer *stepped(dsc_comm *with, const dsc_train_options *o, int steps) {
    dsc_trainer *t = NULL;
    EXPECT_OK(dsc_trainer_create_named(with, device, o, &t));
    for (int i = 0; t && i < steps; i++) {
        EXPECT_OK(dsc_trainer_step(t, NULL));
        if (dsc_trainer_epoch_done(t)) {
            t->state.epoch++;
            t->state.position = 0;
        }
    }
    if (t)
        EXPECT_OK(dsc_trainer_collect(t));
    return t;
}

static double distance(const dsc_trainer *a, const dsc_trainer *b, const dsc_trainer *start) {
    dsc_tensor ta = dsc_model_values(a->model), tb = dsc_model_values(b->model),
               t0 = dsc_model_values(start->model);
    float *x = runs_read(a->queue, &ta), *y = runs_read(b->queue, &tb), *z = runs_read(start->queue, &t0);
    double apart = 0, travelled = 0;
    for (int64_t i = 0; i < dsc_tensor_count(&ta); i++) {
        apart += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        travelled += ((double)y[i] - z[i]) * ((double)y[i] - z[i]);
    }
    free(x);
    free(y);
    free(z);
    return sqrt(apart / travelled);
}

/* The limit is that of the test of accumulation: 8 * steps * sqrt(terms) * eps, relative to the distance from the
 * start. */
static void check_equal(const char *model, int64_t micro) {
    dsc_train_options o;
    char data[32];
    snprintf(data, sizeof data, "synthetic:%d", ranks * 4 * (int)micro * 7 + 3);
    runs_options(&o, NULL);
    o.model = model;
    o.data = data;
    o.eval_every = 0;
    o.batch_size = 4;
    o.batches_per_allreduce = micro;
    dsc_trainer *many = stepped(comm, &o, STEPS);
    o.batch_size = 4 * ranks * micro;
    o.batches_per_allreduce = 1;
    dsc_trainer *one = stepped(alone, &o, STEPS), *start = stepped(alone, &o, 0);
    double limit = 8 * STEPS * sqrt((double)(o.batch_size * 1024)) * 0x1p-24;
    double apart = distance(many, one, start);
    EXPECT(apart <= limit);
    EXPECT(fabs(many->report.loss - one->report.loss) <= limit * one->report.loss);
    EXPECT(many->state.loss_rows == one->state.loss_rows);
    EXPECT_OK(dsc_trainer_check(many));
    dsc_trainer_destroy(&start);
    dsc_trainer_destroy(&one);
    dsc_trainer_destroy(&many);
}

static void test_equal(void **state) {
    (void)state;
    check_equal("mlp", 1);
    check_equal("lenet", 1);
    check_equal("mlp", 2);
    all_fine(comm);
}

/* Masked tokens: how many labels a batch has differs, but the sum over them is divided by their expected number, so
 * that every token counts the same, whichever rank and micro-batch it is in. */
static void check_equal_masked(int64_t micro) {
    enum { TEXT = 4000, CONTEXT = 8 };
    dsc_train_options o;
    char data[SCRATCH_SIZE + 32], name[32], text[TEXT];
    for (int i = 0; i < TEXT; i++)
        text[i] = (char)('a' + i * i / 7 % 11);
    snprintf(name, sizeof name, "text-%d", rank);
    scratch_write(scratch_path(directory, name), text, TEXT);
    snprintf(data, sizeof data, "text:%s", scratch_path(directory, name));
    runs_options(&o, NULL);
    o.model = "bert-base:layers=1,heads=2,width=8,dropout=0";
    o.data = data;
    o.context = CONTEXT;
    o.mask = 0.3;
    o.eval_every = 0;
    o.batch_size = 4;
    o.batches_per_allreduce = micro;
    dsc_trainer *many = stepped(comm, &o, STEPS);
    o.batch_size = 4 * ranks * micro;
    o.batches_per_allreduce = 1;
    dsc_trainer *one = stepped(alone, &o, STEPS), *start = stepped(alone, &o, 0);
    double limit = 8 * STEPS * sqrt((double)(o.batch_size * 1024)) * 0x1p-24;
    EXPECT(distance(many, one, start) <= limit);
    EXPECT(fabs(many->report.loss - one->report.loss) <= limit * one->report.loss);
    EXPECT(many->state.loss_rows == one->state.loss_rows);
    EXPECT(fabs(one->labels - 0.3 * CONTEXT) < 1e-12 && many->labels == one->labels);
    /* About a third of the positions, and not exactly as many as expected. */
    double all = (double)(o.batch_size * CONTEXT * STEPS), rows = one->state.loss_rows;
    EXPECT(rows != 0.3 * all && fabs(rows - 0.3 * all) < 6 * sqrt(0.21 * all));
    dsc_trainer_destroy(&start);
    dsc_trainer_destroy(&one);
    dsc_trainer_destroy(&many);
}

static void test_equal_masked(void **state) {
    (void)state;
    check_equal_masked(1);
    check_equal_masked(2);
    all_fine(comm);
}

/* Bytes of a step's gradients by the formula of all-reduce, and the scaling of the rate. */
static void test_report(void **state) {
    (void)state;
    dsc_train_options o;
    runs_options(&o, NULL);
    o.eval_every = 0;
    o.batch_size = 4;
    o.lr_scaling = 1;
    dsc_trainer *t = stepped(comm, &o, 1);
    double bytes = 4.0 * (double)dsc_model_parameter_total(t->model) * 2 * (ranks - 1) / ranks;
    EXPECT(fabs((double)t->report.bytes[DSC_TRAFFIC_GRADIENTS] - bytes) <= 8 * 8);
    EXPECT(t->report.bytes[DSC_TRAFFIC_PARAMETERS] == 0);
    EXPECT(fabs(t->report.lr - 0.02 * ranks) < 1e-15);
    dsc_trainer_destroy(&t);
    EXPECT(dsc_comm_queue(comm) == queue); /* the trainer's own is gone */
    all_fine(comm);
}

/* An option that only one rank has is refused by all ranks, unless it may differ between ranks. */
static void test_other_options(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    int odd = rank == ranks - 1 && ranks > 1;
    runs_options(&o, NULL);
    o.batch_size = 4;
    o.steps = 1;
    o.data_threads = odd ? 2 : 1;
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));
    if (ranks > 1) {
        optim_of(&o)->momentum = odd ? 0.5 : 0.9;
        EXPECT_FAILS(DSC_E_INVALID, "momentum 0.5 instead of 0.9", dsc_train_run(comm, device, &o, NULL));
        optim_of(&o)->momentum = 0.9;
        o.out = odd ? folder("odd", out) : NULL;
        EXPECT_FAILS(DSC_E_INVALID, "out given instead of (none)", dsc_train_run(comm, device, &o, NULL));
    }
    all_fine(comm);
}

/* Epochs of different lengths on the ranks are refused by all, when options do not name the data. */
static void test_other_epochs(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_model *model = NULL;
    dsc_trainer *t = NULL;
    runs_options(&o, NULL);
    o.epoch_steps = rank == ranks - 1 && ranks > 1 ? 7 : 8;
    EXPECT_OK(dsc_zoo_create(device, "mlp", 32, 32, 3, 10, NULL, &model));
    if (ranks > 1)
        EXPECT_FAILS(DSC_E_INVALID, "steps-of-an-epoch 7 instead of 8",
                     dsc_trainer_create(comm, device, model, NULL, NULL, &o, &t));
    dsc_model_destroy(&model);
    all_fine(comm);
}

/* Two trainers on one communicator each work in their own queue. */
static void test_two_trainers(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_queue *before = dsc_comm_queue(comm);
    runs_options(&o, NULL);
    o.batch_size = 4;
    dsc_trainer *first = stepped(comm, &o, 1), *second = stepped(comm, &o, 1);
    EXPECT_OK(dsc_trainer_step(first, NULL));
    EXPECT(dsc_comm_queue(comm) == dsc_trainer_queue(first));
    EXPECT_OK(dsc_trainer_step(second, NULL));
    EXPECT(dsc_comm_queue(comm) == dsc_trainer_queue(second));
    dsc_trainer_destroy(&second);
    dsc_trainer_destroy(&first);
    EXPECT(dsc_comm_queue(comm) == before);
    all_fine(comm);
}

/* After an evaluation that was refused every rank has its own values back. */
static void test_refused_evaluation(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_dataset *other = NULL;
    float image[4] = {0};
    int32_t label = 0;
    dsc_memory_data d;
    dsc_memory_data_init(&d);
    d.count = d.h = d.w = 1;
    d.c = 4;
    d.classes = 2;
    d.images = image;
    d.labels = &label;
    EXPECT_OK(dsc_dataset_from_memory(&d, &other));
    runs_options(&o, NULL);
    o.batch_size = 4;
    consensus_of(&o)->kind = DSC_CONSENSUS_SGP;
    dsc_trainer *t = stepped(comm, &o, 2);
    EXPECT_FAILS(DSC_E_INVALID, "[1,1,1,4]", dsc_trainer_evaluate(t, other, NULL));
    EXPECT_OK(dsc_trainer_step(t, NULL));
    EXPECT_OK(dsc_trainer_finish(t, NULL));
    dsc_trainer_destroy(&t);
    dsc_dataset_close(&other);
    all_fine(comm);
}

/* ---- stop and resume ---- */

static void stop_at_63(void *context, const dsc_progress *progress) {
    (void)context;
    if (progress->kind == DSC_EVENT_STEP && progress->step == 63)
        dsc_train_request_stop();
}

/* Ranks that gossip learn of a stop at the end of the epoch, while the flags of step 64 are in flight, which
 * must not stop the run that continues. */
static void test_run_again(void **state) {
    (void)state;
    char data[32];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    dsc_trainer *t = NULL;
    snprintf(data, sizeof data, "synthetic:%d", ranks * 70);
    runs_options(&o, NULL);
    o.data = data;
    o.batch_size = 1;
    o.lr = 0.001;
    o.eval_every = 0;
    o.progress = stop_at_63;
    consensus_of(&o)->kind = DSC_CONSENSUS_SGP;
    EXPECT_OK(dsc_trainer_create_named(comm, device, &o, &t));
    EXPECT_FAILS(DSC_E_INTERRUPTED, "stopped after step 70", dsc_trainer_run(t, NULL));
    EXPECT_OK(dsc_trainer_run(t, &result));
    EXPECT(result.steps == 140);
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

static void resume_options(dsc_train_options *o, const char *out) {
    static char data[32];
    snprintf(data, sizeof data, "synthetic:%d", ranks * 2 * 4);
    runs_options(o, out);
    o->model = "resnet20"; /* running statistics differ between the ranks */
    o->data = data;        /* 4 steps an epoch */
    o->batch_size = 2;
    o->epochs = 2;
}

static void go_on(const char *whole, const char *out, dsc_train_options *o) {
    dsc_train_result result = {.size = sizeof result};
    o->progress = NULL;
    o->resume = "auto";
    EXPECT_OK(dsc_train_run(comm, device, o, &result));
    EXPECT(result.steps == 8);
    EXPECT_OK(dsc_comm_barrier(comm));
    EXPECT(runs_differences(whole, out, 8) == 0);
}

/* The request of one rank, not rank 0, ends all at the same step. */
static void test_resume(void **state) {
    (void)state;
    char whole[SCRATCH_SIZE], early[SCRATCH_SIZE], late[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    resume_options(&o, folder("whole", whole));
    EXPECT_OK(dsc_train_run(comm, device, &o, NULL));

    o.out = folder("early", early);
    if (rank == ranks - 1)
        dsc_train_request_stop();
    EXPECT_FAILS(DSC_E_INTERRUPTED, "checkpoint-", dsc_train_run(comm, device, &o, &result));
    EXPECT(result.steps >= 1 && result.steps <= 1 + runs_lag(device));
    go_on(whole, early, &o);

    int64_t stop = 6 - runs_lag(device) / 2; /* not at the end, which has a checkpoint of its own */
    resume_options(&o, folder("late", late));
    o.progress = runs_stop_at; /* called on rank 0 only */
    o.progress_context = &stop;
    EXPECT_FAILS(DSC_E_INTERRUPTED, "checkpoint-", dsc_train_run(comm, device, &o, &result));
    EXPECT(result.steps >= stop && result.steps <= stop + runs_lag(device));
    go_on(whole, late, &o);
    all_fine(comm);
}

/* p ranks stop in the middle of an epoch; one rank of the whole batch goes on at the same sample. */
static void test_other_ranks(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], data[32], file[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result}, resumed = {.size = sizeof resumed},
                     whole = {.size = sizeof whole};
    snprintf(data, sizeof data, "synthetic:%d", ranks * 4 * 5);
    runs_options(&o, folder("others", out));
    o.data = data;
    o.batch_size = 4;
    o.steps = 7; /* of 5 an epoch */
    EXPECT_OK(dsc_train_run(comm, device, &o, &result));
    EXPECT_OK(dsc_comm_barrier(comm));
    snprintf(file, sizeof file, "%s", scratch_path(out, "checkpoint-7.safetensors"));
    o.out = NULL;
    o.steps = 0;
    o.batch_size = 4 * ranks;
    EXPECT_OK(dsc_train_run(alone, device, &o, &whole));
    o.resume = file;
    EXPECT_OK(dsc_train_run(alone, device, &o, &resumed));
    double limit = 8 * STEPS * sqrt((double)(o.batch_size * 1024)) * 0x1p-24;
    EXPECT(resumed.steps == 10 && resumed.epochs == 2);
    EXPECT(fabs(resumed.train_loss - whole.train_loss) <= limit * whole.train_loss);
    EXPECT(fabs(resumed.val_loss - whole.val_loss) <= limit * whole.val_loss);

    /* Another size of step: 3 steps of p * 4 samples are left, so 3 p of 4. */
    o.batch_size = 4;
    EXPECT_OK(dsc_train_run(alone, device, &o, &resumed));
    EXPECT(resumed.steps == 7 + 3 * ranks);
    EXPECT_OK(dsc_comm_barrier(comm));
    all_fine(comm);
}

/* ---- evaluation ---- */

/* All ranks together get the same evaluation of the checkpoint as one rank. */
static void test_eval(void **state) {
    (void)state;
    char out[SCRATCH_SIZE];
    dsc_train_options o;
    dsc_train_result trained = {.size = sizeof trained};
    dsc_eval_options e;
    dsc_eval_result all = {.size = sizeof all}, one = {.size = sizeof one};
    runs_options(&o, folder("eval", out));
    o.model = "resnet20";
    o.data = "synthetic:115"; /* 23 validation images: no number of ranks divides them */
    o.batch_size = 4;
    o.steps = 3;
    EXPECT_OK(dsc_train_run(comm, device, &o, &trained));
    EXPECT_OK(dsc_comm_barrier(comm));
    dsc_eval_options_init(&e);
    e.checkpoint = rank == 0 ? out : "only rank 0 looks";
    e.data = o.data;
    e.batch_size = 4;
    EXPECT_OK(dsc_eval_run(comm, device, &e, &all));
    e.checkpoint = out;
    EXPECT_OK(dsc_eval_run(alone, device, &e, &one));
    EXPECT(all.images == 23 && one.images == 23);
    /* Sums of 23 losses that are equal up to rounding of a forward pass of 20 layers. */
    double limit = 8 * 20 * sqrt(576) * 0x1p-24;
    EXPECT(fabs(all.loss - one.loss) <= limit * one.loss);
    EXPECT(fabs(trained.val_loss - one.loss) <= limit * one.loss);
    EXPECT(all.top1 == one.top1 && all.top5 == one.top5 && trained.top1 == one.top1);
    EXPECT_OK(dsc_comm_barrier(comm));
    all_fine(comm);
}

/* The statistics of rank 0 are used for an evaluation only; afterwards every rank has its own again. */
static void test_eval_gives_back(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_eval_result result = {.size = sizeof result};
    float own[16], after[16];
    runs_options(&o, NULL);
    o.model = "resnet20";
    o.batch_size = 2;
    dsc_trainer *t = stepped(comm, &o, 2);
    const dsc_tensor *mean = &dsc_model_buffers(t->model)[0].value; /* of the first layer's 16 channels */
    EXPECT(dsc_tensor_bytes(mean) == sizeof own);
    EXPECT_OK(dsc_tensor_download(t->queue, mean, sizeof own, own));
    EXPECT_OK(dsc_queue_sync(t->queue));
    EXPECT_OK(dsc_trainer_evaluate_mean(t, &result));
    EXPECT_OK(dsc_tensor_download(t->queue, mean, sizeof after, after));
    EXPECT_OK(dsc_queue_sync(t->queue));
    EXPECT(memcmp(own, after, sizeof own) == 0);
    EXPECT_OK(dsc_share_buffers(comm, t->queue, t->model));
    EXPECT_OK(dsc_tensor_download(t->queue, mean, sizeof after, after));
    EXPECT_OK(dsc_queue_sync(t->queue));
    EXPECT(rank == 0 || memcmp(own, after, sizeof own) != 0); /* they do differ */
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

/* ---- failures ---- */

static void test_drift(void **state) {
    (void)state;
    dsc_train_options o;
    runs_options(&o, NULL);
    o.eval_every = 0;
    o.batch_size = 4;
    dsc_trainer *t = stepped(comm, &o, 2);
    EXPECT_OK(dsc_trainer_check(t));
    if (rank == ranks - 1) {
        dsc_tensor values = dsc_model_values(t->model), one = dsc_tensor_slice(&values, 5, 1);
        float *host = runs_read(t->queue, &one);
        *host += 1;
        EXPECT_OK(dsc_tensor_upload(t->queue, host, sizeof *host, &one));
        EXPECT_OK(dsc_queue_sync(t->queue));
        free(host);
    }
    if (ranks > 1)
        EXPECT_FAILS(DSC_E_NUMERIC, "after step 2", dsc_trainer_check(t));
    dsc_trainer_destroy(&t);
    all_fine(comm);
}

static void test_not_finite(void **state) {
    (void)state;
    dsc_train_options o;
    dsc_train_result result = {.size = sizeof result};
    runs_options(&o, NULL);
    o.eval_every = 0;
    o.batch_size = 4;
    o.lr = 1e30;
    EXPECT_FAILS(DSC_E_NUMERIC, "the loss of step", dsc_train_run(comm, device, &o, &result));
    EXPECT(result.steps >= 1);
    all_fine(comm);
}

/* Moves bytes from one rank to another. A block whose message has not arrived in time stays allocated, because a later
 * message is written there. */
static void test_carrier(void **state) {
    (void)state;
    enum { BYTES = 1000 };
    dsc_comm *part = NULL;
    dsc_carrier c;
    EXPECT_OK(dsc_comm_split(comm, 0, rank, &part));
    EXPECT_OK(dsc_carrier_open(part, queue, BYTES, BYTES, &c));
    for (int to = 0; to < ranks; to++) {
        memset(c.host, rank, BYTES);
        EXPECT_OK(dsc_carrier_move(&c, ranks - 1, to, BYTES - 1));
        const char *host = c.host;
        EXPECT(host[0] == (rank == to ? ranks - 1 : rank) && host[BYTES - 2] == host[0]);
        EXPECT(host[BYTES - 1] == rank);
    }
    if (ranks > 1) {
        dsc_carrier in_flight = {0};
        EXPECT_OK(dsc_comm_set_timeout(part, 0.02));
        if (rank == 0) {
            EXPECT_FAILS(DSC_E_COMM, "from rank 1", dsc_carrier_move(&c, 1, 0, BYTES));
            in_flight = c;
            dsc_carrier_close(&c);
        }
        EXPECT_OK(dsc_comm_barrier(comm));
        EXPECT_OK(dsc_comm_set_timeout(part, 100));
        if (rank == 1)
            EXPECT_OK(dsc_carrier_move(&c, 1, 0, BYTES));
        if (rank == 0) {
            EXPECT_OK(dsc_comm_wait(&in_flight.request));
            char *came = runs_read(queue, &in_flight.block);
            EXPECT(came[0] == 1 && came[BYTES - 1] == 1);
            free(came);
            dsc_tensor_free(&in_flight.block);
        }
        EXPECT_OK(dsc_comm_barrier(part));
    }
    dsc_carrier_close(&c);
    dsc_comm_destroy(&part);
    all_fine(comm);
}

/* ---- engines of convolutions ---- */

static dsc_device *open_tuned(int tune) {
    dsc_device_options o;
    dsc_device *made = NULL;
    dsc_device_options_init(&o);
    o.name = chosen_or("cpu");
    o.threads = 1;
    o.tune = tune;
    assert_ok(dsc_device_create(&o, &made));
    return made;
}

/* Rank 0: that a checkpoint holds this text, or nothing where it is empty. */
static void check_stored(const char *out, const char *file, const char *text) {
    dsc_st_reader *reader = NULL;
    EXPECT_OK(dsc_st_open(scratch_path(out, file), &reader));
    const char *stored = reader ? dsc_st_metadata(reader, DSC_ENGINES_KEY) : NULL;
    EXPECT(text[0] ? stored && strcmp(stored, text) == 0 : !stored);
    dsc_st_close(&reader);
}

static void check_same_text(const char *text) {
    uint64_t own = dsc_hash_bytes(0, text, strlen(text)), first = own;
    EXPECT_OK(dsc_share_bytes(comm, queue, &first, sizeof first));
    EXPECT(own == first);
}

/* All ranks use the engines that rank 0 has chosen, and so does a run that continues, whether it tunes or not. */
static void test_engines(void **state) {
    (void)state;
    char out[SCRATCH_SIZE], *text = NULL, *later = NULL;
    dsc_train_options o;
    dsc_device *tuned = open_tuned(1);
    runs_options(&o, folder("engines", out));
    o.model = "lenet";
    o.data = "synthetic:32";
    o.batch_size = 2;
    o.steps = 2;
    EXPECT_OK(dsc_train_run(comm, tuned, &o, NULL));
    EXPECT_OK(dsc_engines_text(tuned, &text));
    EXPECT((text[0] != '\0') == !dsc_device_is_host(tuned));
    check_same_text(text);
    if (rank == 0)
        check_stored(out, "checkpoint-2.state.safetensors", text);
    dsc_device_destroy(&tuned);
    dsc_device *plain = open_tuned(0);
    o.resume = "auto";
    o.steps = 4;
    EXPECT_OK(dsc_train_run(comm, plain, &o, NULL));
    EXPECT_OK(dsc_engines_text(plain, &later));
    EXPECT(strcmp(text, later) == 0);
    if (rank == 0)
        check_stored(out, "checkpoint-4.state.safetensors", text);
    dsc_device_destroy(&plain);
    dsc_memory_free(&text);
    dsc_memory_free(&later);
    all_fine(comm);
}

/* An error that only rank 0 finds ends all ranks. */
static void test_agreed(void **state) {
    (void)state;
    dsc_train_options o;
    char file[SCRATCH_SIZE];
    snprintf(file, sizeof file, "%s", scratch_path(directory, "file"));
    if (rank == 0)
        scratch_write(file, "x", 1);
    runs_options(&o, file);
    o.batch_size = 4;
    EXPECT_FAILS(DSC_E_INVALID, "is a file, not a directory", dsc_train_run(comm, device, &o, NULL));
    o.out = NULL;
    o.resume = "nowhere/checkpoint-1.safetensors";
    EXPECT_FAILS(DSC_E_NOT_FOUND, "nowhere", dsc_train_run(comm, device, &o, NULL));
    o.resume = NULL;
    o.batch_size = rank == ranks - 1 ? 0 : 4; /* one rank's options are wrong */
    EXPECT_FAILS(DSC_E_INVALID, "batch-size 0: must be at least 1", dsc_train_run(comm, device, &o, NULL));
    all_fine(comm);
}

static void open_all(void) {
    dsc_comm_options options;
    dsc_comm_options_init(&options);
    assert_ok(dsc_comm_create(&options, &comm));
    runs_open_exact(&alone, &device);
    assert_ok(dsc_queue_create(device, &queue));
    rank = dsc_comm_rank(comm);
    ranks = dsc_comm_size(comm);
    if (rank == 0)
        scratch_make(directory);
    assert_ok(dsc_comm_use_queue(comm, queue));
    assert_ok(dsc_share_bytes(comm, queue, directory, sizeof directory));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_equal_masked),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_other_ranks),
        cmocka_unit_test(test_eval),
        cmocka_unit_test(test_eval_gives_back),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_agreed),
        cmocka_unit_test(test_carrier),
        cmocka_unit_test(test_engines),
        cmocka_unit_test(test_other_options),
        cmocka_unit_test(test_other_epochs),
        cmocka_unit_test(test_refused_evaluation),
        cmocka_unit_test(test_run_again),
        cmocka_unit_test(test_two_trainers),
    };
    if (argc > 1) /* only tests whose names are like this */
        cmocka_set_test_filter(argv[1]);
    chosen_or_skip();
    start_watchdog(WATCHDOG_S);
    open_all();
    silence_other_ranks(comm);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (rank == 0)
        scratch_remove(directory);
    dsc_comm_destroy(&alone);
    dsc_comm_destroy(&comm);
    dsc_queue_destroy(&queue);
    dsc_device_destroy(&device);
    return failed;
}

/* train_export MODEL DIRECTORY: trains MODEL for three steps on built-in data, leaves the checkpoint in
 * DIRECTORY and beside it io.safetensors: a batch x [n, h, w, c] and the logits that the checkpoint gives. */
#include "base/error.h"
#include "descent/checkpoint.h"
#include "descent/data.h"
#include "descent/model.h"
#include "descent/train.h"
#include "train/safetensors.h"

#include <stdio.h>

enum { BATCH = 4 };

static dsc_status train(dsc_comm *comm, dsc_device *device, const char *model, const char *directory) {
    dsc_train_options o;
    dsc_train_options_init(&o);
    o.model = model;
    o.data = "synthetic:40";
    o.batch_size = 8;
    o.steps = 3;
    o.lr = 0.01;
    o.eval_every = 0;
    o.out = directory;
    return dsc_train_run(comm, device, &o, NULL);
}

static dsc_status load(dsc_device *device, const char *name, const char *path, dsc_model **out) {
    dsc_model_options options;
    dsc_model_options_init(&options);
    options.seed = 7; /* other weights than the run's, until they are overwritten */
    DSC_TRY(dsc_zoo_create(device, name, 32, 32, 3, 10, &options, out));
    return dsc_model_load(*out, path, NULL, NULL);
}

static dsc_status fill_batch(dsc_tensor *x) {
    dsc_dataset *set = NULL;
    dsc_data_options options;
    int32_t label;
    dsc_data_options_init(&options);
    DSC_TRY(dsc_dataset_open("synthetic:40", DSC_SPLIT_VAL, &options, &set));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < BATCH && status == DSC_OK; i++)
        status = dsc_dataset_sample(set, i, 0, 0, (float *)x->data + i * 32 * 32 * 3, &label);
    dsc_dataset_close(&set);
    return status;
}

static dsc_status write_batch(const char *path, const dsc_tensor *x, const dsc_tensor *logits) {
    dsc_st_writer *w = NULL;
    dsc_status status = dsc_st_writer_create(path, &w);
    if (status == DSC_OK)
        status = dsc_st_writer_declare(w, "x", x->dtype, x->ndim, x->dim);
    if (status == DSC_OK)
        status = dsc_st_writer_declare(w, "logits", logits->dtype, logits->ndim, logits->dim);
    if (status == DSC_OK)
        status = dsc_st_writer_begin(w);
    if (status == DSC_OK)
        status = dsc_st_writer_write(w, 0, x->data, dsc_tensor_bytes(x));
    if (status == DSC_OK)
        status = dsc_st_writer_write(w, 1, logits->data, dsc_tensor_bytes(logits));
    if (status == DSC_OK)
        status = dsc_st_writer_commit(w);
    dsc_st_writer_destroy(&w);
    return status;
}

static dsc_status export_all(dsc_comm *comm, dsc_device *device, const char *name, const char *directory) {
    static const int64_t shape[] = {BATCH, 32, 32, 3};
    char path[1024];
    dsc_queue *q = NULL;
    dsc_model *model = NULL;
    dsc_exec *exec = NULL;
    dsc_tensor x = {0};
    dsc_status status;
    DSC_TRY(train(comm, device, name, directory));
    snprintf(path, sizeof path, "%s/checkpoint-3.safetensors", directory);
    DSC_TRY_GOTO(status, dsc_queue_create(device, &q), end);
    DSC_TRY_GOTO(status, load(device, name, path, &model), end);
    DSC_TRY_GOTO(status, dsc_exec_create(model, DSC_EXEC_EVAL, BATCH, &exec), end);
    DSC_TRY_GOTO(status, dsc_tensor_alloc(device, DSC_F32, 4, shape, &x), end);
    DSC_TRY_GOTO(status, fill_batch(&x), end);
    DSC_TRY_GOTO(status, dsc_exec_forward(exec, q, &x), end);
    DSC_TRY_GOTO(status, dsc_queue_sync(q), end);
    snprintf(path, sizeof path, "%s/io.safetensors", directory);
    DSC_TRY_GOTO(status, write_batch(path, &x, dsc_exec_logits(exec)), end);
end:
    if (x.data)
        dsc_tensor_free(&x);
    dsc_exec_destroy(&exec);
    dsc_model_destroy(&model);
    dsc_queue_destroy(&q);
    return status;
}

int main(int argc, char **argv) {
    dsc_comm_options self;
    dsc_device_options cpu;
    dsc_comm *comm = NULL;
    dsc_device *device = NULL;
    if (argc != 3)
        return 2;
    dsc_comm_options_init(&self);
    self.kind = "self";
    dsc_device_options_init(&cpu);
    cpu.name = "cpu";
    cpu.threads = 1;
    dsc_status status = dsc_comm_create(&self, &comm);
    if (status == DSC_OK)
        status = dsc_device_create(&cpu, &device);
    if (status == DSC_OK)
        status = export_all(comm, device, argv[1], argv[2]);
    if (status != DSC_OK)
        fprintf(stderr, "%s\n%s\n", dsc_error_message(), dsc_error_trace());
    dsc_device_destroy(&device);
    dsc_comm_destroy(&comm);
    return status == DSC_OK ? 0 : 1;
}

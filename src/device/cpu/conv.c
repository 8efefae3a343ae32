/* Chooses the implementation of a convolution: oneDNN if the build and the device have it and it has more than its
 * reference code for it, otherwise our own. This is a fixed rule, so that results are reproducible. */
#include "device/cpu/conv.h"

#include "base/error.h"

#ifdef DSC_HAVE_ONEDNN
#include <omp.h>

static dsc_onednn_conv *plan_of(const dsc_conv *conv, dsc_conv_pass pass) {
    dsc_onednn_conv *plan = conv->state;
    return plan && dsc_onednn_conv_implementation(plan, pass) ? plan : NULL;
}

/* The threads of a plan wait for each other, but inside a parallel region of the caller OpenMP would not start
 * them. */
static dsc_status check_caller(const dsc_conv *conv, const dsc_onednn_conv *plan) {
    if (plan && omp_in_parallel() && conv->device->threads > 1)
        return DSC_FAIL(DSC_E_UNSUPPORTED,
                        "conv: on %d threads, inside of an OpenMP parallel region; call it from outside",
                        conv->device->threads);
    return DSC_OK;
}

static dsc_status plan_onednn(dsc_conv *conv) {
    const dsc_cpu *cpu = conv->device->state;
    dsc_onednn_conv *plan = NULL;
    if (!cpu->onednn)
        return DSC_OK;
    dsc_cpu_threads before = dsc_cpu_use_threads(conv->device->threads);
    dsc_status status = dsc_onednn_conv_open(conv, &plan);
    dsc_cpu_leave_threads(before);
    conv->state = plan;
    return status;
}

static size_t workspace_of(const dsc_conv *conv, dsc_conv_pass pass) {
    dsc_onednn_conv *plan = plan_of(conv, pass);
    return plan ? dsc_onednn_conv_workspace(plan, pass) : dsc_own_conv_workspace(conv, pass);
}

static void conv_close(dsc_conv *conv) {
    dsc_onednn_conv *plan = conv->state;
    dsc_onednn_conv_close(&plan);
}

const char *dsc_cpu_conv_implementation(const dsc_conv *conv, dsc_conv_pass pass) {
    return plan_of(conv, pass) ? dsc_onednn_conv_implementation(conv->state, pass) : "own";
}

static dsc_status conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                               const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    dsc_onednn_conv *plan = plan_of(conv, DSC_CONV_FORWARD);
    DSC_TRY(check_caller(conv, plan));
    dsc_cpu_threads before = dsc_cpu_use_threads(q->device->threads);
    dsc_status status = plan ? dsc_onednn_conv_forward(plan, x, w, bias, work, y)
                             : dsc_own_conv_forward(q, conv, x, w, bias, work, y);
    dsc_cpu_leave_threads(before);
    return status;
}

static dsc_status conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                     double beta, dsc_tensor *work, dsc_tensor *dx) {
    dsc_onednn_conv *plan = plan_of(conv, DSC_CONV_BACKWARD_DATA);
    DSC_TRY(check_caller(conv, plan));
    dsc_cpu_threads before = dsc_cpu_use_threads(q->device->threads);
    dsc_status status = plan ? dsc_onednn_conv_backward_data(q, plan, w, dy, beta, work, dx)
                             : dsc_own_conv_backward_data(q, conv, w, dy, beta, work, dx);
    dsc_cpu_leave_threads(before);
    return status;
}

static dsc_status conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                       const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw) {
    dsc_onednn_conv *plan = plan_of(conv, DSC_CONV_BACKWARD_WEIGHT);
    DSC_TRY(check_caller(conv, plan));
    dsc_cpu_threads before = dsc_cpu_use_threads(q->device->threads);
    dsc_status status = plan ? dsc_onednn_conv_backward_weight(q, plan, x, dy, beta, work, dw)
                             : dsc_own_conv_backward_weight(q, conv, x, dy, beta, work, dw);
    dsc_cpu_leave_threads(before);
    return status;
}

#else

static dsc_status plan_onednn(dsc_conv *conv) {
    (void)conv;
    return DSC_OK;
}

static size_t workspace_of(const dsc_conv *conv, dsc_conv_pass pass) {
    return dsc_own_conv_workspace(conv, pass);
}

const char *dsc_cpu_conv_implementation(const dsc_conv *conv, dsc_conv_pass pass) {
    (void)conv;
    (void)pass;
    return "own";
}
#endif

static dsc_status conv_open(dsc_conv *conv) {
    DSC_TRY(plan_onednn(conv));
    conv->workspace = 0;
    for (int pass = 0; pass < DSC_CONV_PASSES; pass++) {
        size_t bytes = workspace_of(conv, (dsc_conv_pass)pass);
        if (bytes > conv->workspace)
            conv->workspace = bytes;
    }
    return DSC_OK;
}

void dsc_cpu_table_conv(dsc_device_table *table) {
    table->conv_open = conv_open;
#ifdef DSC_HAVE_ONEDNN
    table->conv_close = conv_close;
    table->conv_forward = conv_forward;
    table->conv_backward_data = conv_backward_data;
    table->conv_backward_weight = conv_backward_weight;
#else
    table->conv_forward = dsc_own_conv_forward;
    table->conv_backward_data = dsc_own_conv_backward_data;
    table->conv_backward_weight = dsc_own_conv_backward_weight;
#endif
    table->patches = dsc_own_patches;
}

/* What the cuda backend takes from cuBLAS, cuSOLVER and cuDNN: here from ref, and solvers from cpu (LAPACK),
 * which see device memory while they work. Operations can be recorded, except those that wait for their
 * outcome. Convolutions that the backend has kernels for are done by these. */
#include "device/cuda/entries.h"
#include "device/cuda/halves.h"
#include "device/cuda/jacobi_kernels.h"
#include "device/cuda/narrow_conv.h"
#include "device/cuda/small_conv.h"
#include "device/half.h"

#include "emulator/engine.h"

#include <stdio.h>
#include <unistd.h>

/* An operation with copies of its tensors: a recording outlives the caller's. */
typedef struct operation {
    dsc_status (*run)(struct operation *o);
    dsc_queue *q;
    dsc_conv *conv;
    dsc_tensor in[3], work, out;
    int has_bias, has_work;
    int trans_a, trans_b;
    double alpha, beta;
} operation;

static int run_operation(void *state) {
    operation *o = state;
    return (int)o->run(o);
}

static dsc_status submit(dsc_status (*run)(operation *o), operation o) {
    o.run = run;
    if (!dsc_emulated_is_current(dsc_cuda_at(o.q)->stream))
        return dsc_cuda_fail(cudaErrorInvalidResourceHandle, "a call of a library", __FILE__, __LINE__);
    return (dsc_status)dsc_emulated_submit(dsc_cuda_at(o.q)->stream, run_operation, &o, sizeof o);
}

static dsc_tensor *work_of(operation *o) {
    return o->has_work ? &o->work : NULL;
}

/* ---- cuBLAS ---- */

static dsc_status run_gemm(operation *o) {
    return dsc_ref_table.gemm(o->q, o->trans_a, o->trans_b, o->alpha, &o->in[0], &o->in[1], o->beta, &o->out);
}

dsc_status dsc_cuda_gemm(dsc_queue *q, int trans_a, int trans_b, double alpha, const dsc_tensor *a,
                         const dsc_tensor *b, double beta, dsc_tensor *c) {
    DSC_TRY(submit(run_gemm, (operation){.q = q,
                                         .trans_a = trans_a,
                                         .trans_b = trans_b,
                                         .alpha = alpha,
                                         .beta = beta,
                                         .in = {*a, *b},
                                         .out = *c}));
    return DSC_OK;
}

/* Composed of others. */
dsc_status dsc_cuda_linear(dsc_queue *q, const dsc_tensor *x, const dsc_tensor *w,
                           const dsc_linear_epilogue *e, dsc_tensor *y) {
    (void)q, (void)x, (void)w, (void)e, (void)y;
    return DSC_E_UNSUPPORTED;
}

dsc_status dsc_cuda_gelu_gradient(dsc_queue *q, const dsc_tensor *dy, const dsc_tensor *w,
                                  const dsc_tensor *inner, dsc_tensor *dx) {
    (void)q, (void)dy, (void)w, (void)inner, (void)dx;
    return DSC_E_UNSUPPORTED;
}

static float half_value(dsc_dtype dtype, uint16_t bits) {
    return dtype == DSC_BF16 ? dsc_bf16_to_float(bits) : dsc_f16_to_float(bits);
}

static float product_of_halves(const dsc_half_products *p, int64_t i, int64_t row, int64_t column) {
    const uint16_t *a = p->a + i * p->step_a, *b = p->b + i * p->step_b;
    float sum = 0;
    for (int64_t k = 0; k < p->k; k++)
        sum += half_value(p->dtype, a[p->trans_a ? k * p->lda + row : row * p->lda + k]) *
               half_value(p->dtype, b[p->trans_b ? column * p->ldb + k : k * p->ldb + column]);
    return sum;
}

static int run_half_products(void *state) {
    const dsc_half_products *p = state;
    for (int64_t i = 0; i < p->count; i++)
        for (int64_t row = 0; row < p->m; row++)
            for (int64_t column = 0; column < p->n; column++) {
                float *c = p->c + i * p->step_c + row * p->ldc + column;
                float sum = p->alpha * product_of_halves(p, i, row, column);
                *c = p->beta == 0 ? sum : sum + p->beta * *c;
            }
    return DSC_OK;
}

dsc_status dsc_cuda_half_products(dsc_queue *q, const dsc_half_products *p) {
    dsc_half_products copy = *p;
    return (dsc_status)dsc_emulated_submit(dsc_cuda_at(q)->stream, run_half_products, &copy, sizeof copy);
}

static int run_tf32_product(void *state) {
    const dsc_tf32_product *p = state;
    for (int64_t row = 0; row < p->m; row++)
        for (int64_t column = 0; column < p->n; column++) {
            const float *a = p->a + row * p->width, *b = p->b + column * p->width;
            float *c = p->c + row * p->width + column, sum = 0;
            for (int64_t k = 0; k < p->k; k++)
                sum += a[k] * b[k];
            *c = p->alpha * sum + p->beta * *c;
        }
    return DSC_OK;
}

dsc_status dsc_cuda_multiply_tf32(dsc_queue *q, const dsc_tf32_product *p) {
    dsc_tf32_product copy = *p;
    return (dsc_status)dsc_emulated_submit(dsc_cuda_at(q)->stream, run_tf32_product, &copy, sizeof copy);
}

/* ---- cuSOLVER ---- */

/* Made at the first solve, and gone with the emulated device. */
static struct {
    dsc_device *device;
    dsc_queue *q;
} host;

static dsc_status open_host(void) {
    dsc_device_options options;
    if (host.q)
        return DSC_OK;
    dsc_device_options_init(&options);
    options.name = "cpu";
    options.threads = 1;
    if (!host.device)
        DSC_TRY(dsc_device_create(&options, &host.device));
    DSC_TRY(dsc_queue_create(host.device, &host.q));
    return DSC_OK;
}

static dsc_tensor on_host(const dsc_tensor *t) {
    dsc_tensor view = *t;
    view.device = host.device;
    return view;
}

size_t dsc_cuda_syev_workspace(dsc_device *device, dsc_dtype dtype, int64_t n) {
    (void)device;
    return open_host() == DSC_OK ? dsc_op_syev_workspace(host.device, dtype, n) : 0;
}

dsc_status dsc_cuda_syev(dsc_queue *q, dsc_tensor *a, dsc_tensor *work, dsc_tensor *v) {
    DSC_TRY(dsc_cuda_refuse_recording(q, "syev"));
    DSC_TRY(open_host());
    dsc_tensor matrix = on_host(a), space = on_host(work), values = on_host(v);
    dsc_emulated_open();
    dsc_status status = dsc_op_syev(host.q, &matrix, &space, &values);
    dsc_emulated_close();
    DSC_TRY(status);
    return DSC_OK;
}

dsc_status dsc_cuda_syev_careful(dsc_queue *q, dsc_tensor *a, dsc_tensor *v) {
    DSC_TRY(dsc_cuda_refuse_recording(q, "syev_careful"));
    dsc_emulated_open();
    dsc_status status = dsc_ref_table.syev_careful(q, a, v);
    dsc_emulated_close();
    DSC_TRY(status);
    return DSC_OK;
}

/* One item after the other in the same space. */
size_t dsc_cuda_syev_batch_workspace(dsc_device *device, dsc_dtype dtype, int64_t n, int64_t count) {
    (void)count;
    return dsc_cuda_syev_workspace(device, dtype, n);
}

/* A failure of the mathematics is the item's, any other is the call's. */
static dsc_status note_outcome(dsc_status status, dsc_solve_item *item) {
    item->failed = status == DSC_E_NUMERIC;
    return item->failed ? DSC_OK : status;
}

dsc_status dsc_cuda_syev_batch(dsc_queue *q, dsc_solve_item *items, int64_t count, dsc_tensor *work) {
    DSC_TRY(dsc_cuda_jacobi_batch(q, items, count));
    for (int64_t i = 0; i < count; i++)
        if (!dsc_cuda_is_quick(q, &items[i]))
            DSC_TRY(note_outcome(dsc_cuda_syev(q, &items[i].a, work, &items[i].v), &items[i]));
    return DSC_OK;
}

/* A number stands for the engines that the last convolution was opened with: another one for every device
 * that tunes, unless it was preset before. */
static struct {
    const dsc_device *device;
    long next, opened; /* 0: none */
} engines;

/* With the device. */
void dsc_cuda_solver_close(dsc_device *device) {
    if (engines.device == device) /* another one may get its address */
        engines.device = NULL;
    dsc_queue_destroy(&host.q);
    dsc_device_destroy(&host.device);
}

/* ---- cuDNN ---- */

static void use_engines(const dsc_device *device) {
    if (engines.device == device)
        return;
    engines.device = device;
    engines.next = engines.opened = 0;
}

static void open_engine(const dsc_device *device) {
    static long devices;
    use_engines(device);
    if (engines.next == 0 && device->tunes)
        engines.next = 1000 * (long)getpid() + ++devices;
    engines.opened = engines.next;
}

dsc_status dsc_cuda_choices(dsc_device *device, char *text, size_t size, size_t *needed) {
    use_engines(device);
    int length = engines.opened ? snprintf(text, size, "emulated %ld\n", engines.opened)
                                : snprintf(text, size, "%s", "");
    *needed = (size_t)length + 1;
    return DSC_OK;
}

dsc_status dsc_cuda_preset(dsc_device *device, const char *text) {
    long number;
    if (sscanf(text, "emulated %ld", &number) != 1)
        return DSC_FAIL(DSC_E_FORMAT, "engines: '%.40s' is no such choice", text);
    use_engines(device);
    engines.next = number;
    return DSC_OK;
}

dsc_status dsc_cuda_conv_open(dsc_conv *conv) {
    open_engine(conv->device);
    if (dsc_ref_table.conv_open)
        DSC_TRY(dsc_ref_table.conv_open(conv));
    size_t small = dsc_cuda_small_conv_workspace(dsc_cuda_of(conv->device), &conv->desc);
    conv->workspace = small > conv->workspace ? small : conv->workspace;
    return DSC_OK;
}

void dsc_cuda_conv_close(dsc_conv *conv) {
    if (dsc_ref_table.conv_close)
        dsc_ref_table.conv_close(conv);
}

static int has_kernel(const dsc_conv *conv, unsigned pass) {
    return (dsc_cuda_small_conv_passes(dsc_cuda_of(conv->device), &conv->desc) & pass) != 0;
}

static void set_work(operation *o, const dsc_tensor *work) {
    o->has_work = work != NULL;
    if (work)
        o->work = *work;
}

static dsc_status run_forward(operation *o) {
    return dsc_ref_table.conv_forward(o->q, o->conv, &o->in[0], &o->in[1], o->has_bias ? &o->in[2] : NULL,
                                      work_of(o), &o->out);
}

dsc_status dsc_cuda_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                 const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y) {
    if (dsc_cuda_is_narrow_conv(&conv->desc))
        return dsc_cuda_narrow_conv_forward(q, x, w, bias, y);
    if (has_kernel(conv, DSC_SMALL_FORWARD))
        return dsc_cuda_small_conv_forward(q, conv, x, w, bias, work, y);
    operation o = {.q = q, .conv = conv, .in = {*x, *w}, .out = *y};
    o.has_bias = bias != NULL;
    if (bias)
        o.in[2] = *bias;
    set_work(&o, work);
    DSC_TRY(submit(run_forward, o));
    return DSC_OK;
}

static dsc_status run_backward_data(operation *o) {
    return dsc_ref_table.conv_backward_data(o->q, o->conv, &o->in[0], &o->in[1], o->beta, work_of(o),
                                            &o->out);
}

dsc_status dsc_cuda_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w,
                                       const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dx) {
    if (dsc_cuda_is_narrow_conv(&conv->desc))
        return dsc_cuda_narrow_conv_backward_data(q, w, dy, beta, dx);
    if (has_kernel(conv, DSC_SMALL_BACKWARD_DATA))
        return dsc_cuda_small_conv_backward_data(q, conv, w, dy, beta, work, dx);
    operation o = {.q = q, .conv = conv, .beta = beta, .in = {*w, *dy}, .out = *dx};
    set_work(&o, work);
    DSC_TRY(submit(run_backward_data, o));
    return DSC_OK;
}

static dsc_status run_backward_weight(operation *o) {
    return dsc_ref_table.conv_backward_weight(o->q, o->conv, &o->in[0], &o->in[1], o->beta, work_of(o),
                                              &o->out);
}

dsc_status dsc_cuda_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                         const dsc_tensor *dy, double beta, dsc_tensor *work,
                                         dsc_tensor *dw) {
    if (dsc_cuda_is_narrow_conv(&conv->desc))
        return dsc_cuda_narrow_conv_backward_weight(q, x, dy, beta, dw);
    if (has_kernel(conv, DSC_SMALL_BACKWARD_WEIGHT))
        return dsc_cuda_small_conv_backward_weight(q, conv, x, dy, beta, work, dw);
    operation o = {.q = q, .conv = conv, .beta = beta, .in = {*x, *dy}, .out = *dw};
    set_work(&o, work);
    DSC_TRY(submit(run_backward_weight, o));
    return DSC_OK;
}

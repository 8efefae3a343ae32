/* Convolutions of the cpu device: our own implementation, and oneDNN in builds that have it. */
#ifndef DSC_DEVICE_CPU_CONV_H
#define DSC_DEVICE_CPU_CONV_H

#include "base/config.h"
#include "device/cpu/cpu.h"

typedef enum dsc_conv_pass {
    DSC_CONV_FORWARD,
    DSC_CONV_BACKWARD_DATA,
    DSC_CONV_BACKWARD_WEIGHT
} dsc_conv_pass;
enum { DSC_CONV_PASSES = 3 };

/* Returns the name of the implementation of a pass of this convolution: "own", or oneDNN's name for it. The string
 * belongs to the library. */
const char *dsc_cpu_conv_implementation(const dsc_conv *conv, dsc_conv_pass pass);

/* ---- own_conv.c; the arguments are those of table.h ---- */
size_t dsc_own_conv_workspace(const dsc_conv *conv, dsc_conv_pass pass);
dsc_status dsc_own_conv_forward(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x, const dsc_tensor *w,
                                const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y);
dsc_status dsc_own_conv_backward_data(dsc_queue *q, dsc_conv *conv, const dsc_tensor *w, const dsc_tensor *dy,
                                      double beta, dsc_tensor *work, dsc_tensor *dx);
dsc_status dsc_own_conv_backward_weight(dsc_queue *q, dsc_conv *conv, const dsc_tensor *x,
                                        const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dw);
dsc_status dsc_own_patches(dsc_queue *q, const dsc_conv_desc *desc, const dsc_tensor *x, int64_t group,
                           int64_t first, dsc_tensor *out);
/* The same on the calling thread, with `stride` floats per row; one more than a patch has means a column of ones. */
void dsc_own_patch_rows(const dsc_conv_desc *desc, int64_t oh, int64_t ow, const float *x, int64_t group,
                        dsc_cpu_range rows, int64_t stride, float *out);

#ifdef DSC_HAVE_ONEDNN
/* ---- onednn_conv.c ---- */
/* oneDNN's plan of one convolution. */
typedef struct dsc_onednn_conv dsc_onednn_conv;

/* Writes oneDNN's version, such as "2.6.3". */
void dsc_onednn_version(char *text, size_t size);
dsc_status dsc_onednn_conv_open(const dsc_conv *conv, dsc_onednn_conv **out) DSC_MUST_CHECK;
void dsc_onednn_conv_close(dsc_onednn_conv **plan);
/* Returns the name of the implementation that oneDNN would run; NULL if it has only its reference code. */
const char *dsc_onednn_conv_implementation(const dsc_onednn_conv *plan, dsc_conv_pass pass);
size_t dsc_onednn_conv_workspace(const dsc_onednn_conv *plan, dsc_conv_pass pass);
dsc_status dsc_onednn_conv_forward(dsc_onednn_conv *plan, const dsc_tensor *x, const dsc_tensor *w,
                                   const dsc_tensor *bias, dsc_tensor *work, dsc_tensor *y);
dsc_status dsc_onednn_conv_backward_data(dsc_queue *q, dsc_onednn_conv *plan, const dsc_tensor *w,
                                         const dsc_tensor *dy, double beta, dsc_tensor *work, dsc_tensor *dx);
dsc_status dsc_onednn_conv_backward_weight(dsc_queue *q, dsc_onednn_conv *plan, const dsc_tensor *x,
                                           const dsc_tensor *dy, double beta, dsc_tensor *work,
                                           dsc_tensor *dw);
#endif

#endif

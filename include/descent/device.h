/* Compute devices, their memory and queues; tensors and parameters.
 *
 * A device is where memory lives and where work runs; a queue is an ordered sequence of work on it; an event
 * marks a point in a queue. `ref` and `cpu` run every operation before the call returns; a GPU runs them
 * later, in queue order.
 *
 * Every public function of the library leaves the calling thread's current GPU (cudaSetDevice) as it was. */
#ifndef DSC_DEVICE_H
#define DSC_DEVICE_H

#include "descent/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_device dsc_device;
typedef struct dsc_queue dsc_queue;
typedef struct dsc_event dsc_event;

/* ---- tensors ---- */

typedef enum dsc_dtype { DSC_F32, DSC_F64, DSC_BF16, DSC_F16, DSC_I32, DSC_I64, DSC_U8 } dsc_dtype;

enum { DSC_MAX_DIMS = 6 };

/* Dense elements in row-major order. A tensor is a view: it never owns its memory, and the struct may be
 * copied freely. */
typedef struct dsc_tensor {
    void *data;
    dsc_device *device;
    dsc_dtype dtype;
    int ndim;
    int64_t dim[DSC_MAX_DIMS];
} dsc_tensor;

/* A trainable parameter: name, value and gradient, of equal shape. */
typedef struct dsc_param {
    const char *name;
    dsc_tensor value;
    dsc_tensor grad;
} dsc_param;

/* Bytes of one element, and the name of the type ("fp32", "bf16", ...). */
DSC_API size_t dsc_dtype_size(dsc_dtype dtype);
DSC_API const char *dsc_dtype_name(dsc_dtype dtype);

/* Returns a view of `data` (memory of `device`) with the given shape. */
DSC_API dsc_tensor dsc_tensor_view(dsc_device *device, void *data, dsc_dtype dtype, int ndim,
                                   const int64_t *dim);
/* Number of elements, and of bytes. */
DSC_API int64_t dsc_tensor_count(const dsc_tensor *t);
DSC_API size_t dsc_tensor_bytes(const dsc_tensor *t);
/* Returns `count` elements of t, from element `first` on, as a vector. */
DSC_API dsc_tensor dsc_tensor_slice(const dsc_tensor *t, int64_t first, int64_t count);

/* Allocates zeroed memory for a tensor; dsc_tensor_free frees it. */
DSC_API dsc_status dsc_tensor_alloc(dsc_device *device, dsc_dtype dtype, int ndim, const int64_t *dim,
                                    dsc_tensor *out) DSC_MUST_CHECK;
/* Frees the memory of a tensor made by dsc_tensor_alloc (t->data may be NULL) and sets t->data to NULL. */
DSC_API void dsc_tensor_free(dsc_tensor *t);

/* DSC_E_INVALID, with the reason, unless t's memory is memory of t's device. On a GPU its first and last byte
 * are looked up: memory of the host, of another GPU, and addresses that were freed or never allocated are
 * refused; managed memory is accepted. On a host device only NULL with elements is refused. Meant for memory
 * of a caller's, when it is handed over; takes some microseconds. Not collective. */
DSC_API dsc_status dsc_tensor_check(const dsc_tensor *t) DSC_MUST_CHECK;

/* Copy between host memory and a tensor; `bytes` must be dsc_tensor_bytes(t). Asynchronous on a GPU: the host
 * memory may not be touched before dsc_queue_sync. An upload of at most 64 KiB is the exception: the library
 * copies the host memory, which may be reused at once. */
DSC_API dsc_status dsc_tensor_upload(dsc_queue *queue, const void *host, size_t bytes,
                                     dsc_tensor *t) DSC_MUST_CHECK;
DSC_API dsc_status dsc_tensor_download(dsc_queue *queue, const dsc_tensor *t, size_t bytes,
                                       void *host) DSC_MUST_CHECK;

/* ---- the geometry of a convolution ---- */

/* The order of a batch of images in memory: [n, h, w, channels] or [n, channels, h, w]. The library's own is
 * DSC_NHWC; where a function takes images of a caller's, it says which orders it accepts. */
typedef enum dsc_image_layout { DSC_NHWC, DSC_NCHW } dsc_image_layout;

/* The geometry of a two-dimensional convolution of images x[n, in_h, in_w, in_c] with weights
 * w[out_c, kernel_h, kernel_w, in_c / groups]; in each direction
 *   out = (in + 2 pad + extra - dilation (kernel - 1) - 1) / stride + 1   (rounded down). */
typedef struct dsc_conv2d_shape {
    size_t size; /* of this struct; set by dsc_conv2d_shape_init */
    int64_t in_h, in_w, in_c;
    int64_t out_c;
    int64_t kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w; /* zeros added on each of the two sides */
    int64_t dilation_h, dilation_w;
    int64_t groups; /* divides in_c and out_c; each group of outputs sees its own group of inputs */
    /* Zeros added at the bottom and at the right besides the padding, as "same" padding of even kernels needs
     * them. K-FAC layers only: models refuse them, except that for a transposed convolution they are rows and columns
     * added to its output (dsc_model_conv_transpose2d). */
    int64_t extra_h, extra_w;
} dsc_conv2d_shape;

/* Sets the size; kernel, strides, dilations and groups become 1, everything else 0. */
DSC_API void dsc_conv2d_shape_init_sized(dsc_conv2d_shape *shape, size_t size);
#define dsc_conv2d_shape_init(shape) dsc_conv2d_shape_init_sized((shape), sizeof *(shape))
/* Writes the height and width of the output. DSC_E_INVALID, with the reason, when no such convolution
 * exists. */
DSC_API dsc_status dsc_conv2d_output(const dsc_conv2d_shape *shape, int64_t *out_h,
                                     int64_t *out_w) DSC_MUST_CHECK;

/* How a map of twice the height and width is made from a smaller one: every pixel four times, or each new pixel from
 * the nearest four by their distances (1/4 and 3/4 in each direction; PyTorch's bilinear without aligned corners). */
typedef enum dsc_upsample_kind { DSC_UPSAMPLE_NEAREST, DSC_UPSAMPLE_BILINEAR } dsc_upsample_kind;

/* ---- devices ---- */

typedef struct dsc_device_options {
    size_t size; /* of this struct; set by dsc_device_options_init */
    /* "auto" (the default: the fastest device of this machine), "ref", "cpu" or "cuda". Read during
     * dsc_device_create only. */
    const char *name;
    /* CPU threads. 0: one for each CPU that the process may use, or fewer when OpenMP is set to that
     * (OMP_NUM_THREADS). OpenMP's own setting is not changed. */
    int threads;
    /* Which of several GPUs, modulo their number: rank 5 on a node of four gets GPU 1. */
    int ordinal;
    /* 1: when a convolution is planned, a GPU times the candidates and keeps the fastest (see "tuning"
     * below). 0, the default: it takes what its library advises. */
    int tune;
} dsc_device_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_device_options_init_sized(dsc_device_options *options, size_t size);
#define dsc_device_options_init(options) dsc_device_options_init_sized((options), sizeof *(options))
/* Creates a device; options NULL: the defaults. Not collective. DSC_E_INVALID for an unknown name,
 * DSC_E_UNSUPPORTED for a device that this build or machine lacks. */
DSC_API dsc_status dsc_device_create(const dsc_device_options *options, dsc_device **out) DSC_MUST_CHECK;
/* Accepts NULL and *device == NULL. All queues, events and memory of the device must be gone. */
DSC_API void dsc_device_destroy(dsc_device **device);

/* "ref", "cpu" or "cuda". The string stays the device's. */
DSC_API const char *dsc_device_name(const dsc_device *device);
/* One line for people: libraries, versions, threads. The string stays the device's. */
DSC_API const char *dsc_device_description(const dsc_device *device);
DSC_API int dsc_device_threads(const dsc_device *device);
/* 1 when the host may read and write the device's memory directly. */
DSC_API int dsc_device_is_host(const dsc_device *device);
/* A number that identifies a GPU in all processes; 0 for a host device. */
DSC_API uint64_t dsc_device_identity(const dsc_device *device);
/* Number of devices of this kind in the machine: GPUs for "cuda" (0 where they cannot be used, or where the
 * module or a library of CUDA is missing; dsc_device_create says why), 1 for CPUs. */
DSC_API int dsc_device_count(const char *name);
/* The names of the devices in this build, terminated by NULL. */
DSC_API const char *const *dsc_device_names(void);

/* Allocates zeroed memory of the device, aligned to 64 bytes at least. */
DSC_API dsc_status dsc_device_alloc(dsc_device *device, size_t bytes, void **out) DSC_MUST_CHECK;
/* Frees *data (may be NULL) and sets it to NULL. */
DSC_API void dsc_device_free(dsc_device *device, void **data);
/* Bytes allocated through dsc_device_alloc: at present, and the largest number so far. */
DSC_API size_t dsc_device_bytes(const dsc_device *device);
DSC_API size_t dsc_device_peak_bytes(const dsc_device *device);

/* Allocates zeroed memory of the host for copies from and to the device: page-locked where that makes the
 * copies fast. dsc_host_free frees *data (may be NULL) and sets it to NULL. */
DSC_API dsc_status dsc_host_alloc(dsc_device *device, size_t bytes, void **out) DSC_MUST_CHECK;
DSC_API void dsc_host_free(dsc_device *device, void **data);

/* ---- queues and events ---- */

DSC_API dsc_status dsc_queue_create(dsc_device *device, dsc_queue **out) DSC_MUST_CHECK;
/* Makes a queue of a stream that the caller owns: a cudaStream_t for "cuda" (NULL: the default stream;
 * cudaStreamPerThread then means that of each thread that uses the queue); ignored on host devices. Work of the
 * library and of the caller runs in the order of that stream. The queue has scratch memory and handles of its
 * own and never destroys the stream, which must exist as long as the queue is used. dsc_queue_destroy does
 * not touch it: the stream may be gone then, but all of the queue's work must have been put in before.
 *
 * The library does not record in such a queue. While the caller captures the stream into a CUDA graph,
 * operations become part of the graph, and those that wait or copy from or to the host fail with
 * DSC_E_INVALID. */
DSC_API dsc_status dsc_queue_wrap(dsc_device *device, void *stream, dsc_queue **out) DSC_MUST_CHECK;
/* Continues a queue made by dsc_queue_wrap in another stream of the same device: work that is put into the
 * queue from now on goes there, and runs after all work put into the queue so far. Both streams must exist
 * during the call. Does nothing when the stream is the same, or on host devices. Asynchronous. A stream that is
 * being captured into a CUDA graph can be entered only when no earlier work of the queue is under way, and left
 * only when the capture has ended. */
DSC_API dsc_status dsc_queue_rewrap(dsc_queue *queue, void *stream) DSC_MUST_CHECK;
/* The native stream of a queue, for work of the caller's own in its order: a cudaStream_t, or NULL on host
 * devices. It stays the queue's, or the caller's who wrapped it. */
DSC_API void *dsc_queue_stream(const dsc_queue *queue);
/* Accepts NULL and *queue == NULL. */
DSC_API void dsc_queue_destroy(dsc_queue **queue);
DSC_API dsc_device *dsc_queue_device(const dsc_queue *queue);
/* Blocks until all work put into the queue so far is done; returns the status of work that failed. */
DSC_API dsc_status dsc_queue_sync(dsc_queue *queue) DSC_MUST_CHECK;

DSC_API dsc_status dsc_event_create(dsc_device *device, dsc_event **out) DSC_MUST_CHECK;
/* Accepts NULL and *event == NULL. */
DSC_API void dsc_event_destroy(dsc_event **event);
/* Marks the work put into `queue` so far. Asynchronous. */
DSC_API dsc_status dsc_event_record(dsc_event *event, dsc_queue *queue) DSC_MUST_CHECK;
/* Makes all later work in `queue` wait for the event. Asynchronous. */
DSC_API dsc_status dsc_queue_wait(dsc_queue *queue, dsc_event *event) DSC_MUST_CHECK;
/* Blocks the caller until the event has happened. */
DSC_API dsc_status dsc_event_sync(dsc_event *event) DSC_MUST_CHECK;
/* Milliseconds between two events that have happened; 0 on devices whose operations run during the call. */
DSC_API dsc_status dsc_event_elapsed(dsc_event *from, dsc_event *to, double *ms) DSC_MUST_CHECK;

/* ---- tuning ----
 *
 * Only for GPUs created with dsc_device_options.tune. Choices made by timing differ from process to process,
 * and with them the last bits of results; a program that wants to continue a run exactly keeps them. */

/* 1 when the device was created with dsc_device_options.tune and has something to tune. */
DSC_API int dsc_device_tunes(const dsc_device *device);
/* Writes the choices that the device has made by timing so far, or was preset to, as lines of text; "" when
 * there are none. *needed is the size of the whole text in bytes, with the final zero; if `size` is smaller,
 * the text is cut off. Not collective. */
DSC_API dsc_status dsc_device_choices(dsc_device *device, char *text, size_t size,
                                      size_t *needed) DSC_MUST_CHECK;
/* Makes convolutions that are planned from now on use the choices in `text`, which dsc_device_choices has
 * written; convolutions that it does not contain are timed. A text from another kind of device, or from
 * another version of its library, is ignored with a warning. DSC_E_FORMAT when the text is not from
 * dsc_device_choices. */
DSC_API dsc_status dsc_device_preset(dsc_device *device, const char *text) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

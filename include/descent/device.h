/* Compute devices, their memory and queues; tensors and parameters.
 *
 * A device is where memory lives and where work runs; a queue is an ordered sequence of work on a device; an
 * event marks a point in a queue. The devices `ref` and `cpu`, the host devices, complete every operation before
 * the call returns; a GPU runs operations later, in the order of the queue.
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

/* An array of dense elements in row-major order. A tensor is a view: it never owns its memory, and the struct
 * may be copied freely. */
typedef struct dsc_tensor {
    void *data;
    dsc_device *device;
    dsc_dtype dtype;
    int ndim;
    int64_t dim[DSC_MAX_DIMS];
} dsc_tensor;

/* A trainable parameter: its name, its value, and its gradient of the same shape. */
typedef struct dsc_param {
    const char *name;
    dsc_tensor value;
    dsc_tensor grad;
} dsc_param;

/* Returns the size of one element in bytes; 0 for an unknown type. */
DSC_API size_t dsc_dtype_size(dsc_dtype dtype);
/* Returns the name of the type, a static string: "fp32", "bf16", ...; "unknown type" for an unknown type. */
DSC_API const char *dsc_dtype_name(dsc_dtype dtype);

/* Returns a view of `data`, which is memory of `device`, with the shape dim[ndim]. Unless ndim is 0 to DSC_MAX_DIMS,
 * the view has no device, and every operation refuses it. */
DSC_API dsc_tensor dsc_tensor_view(dsc_device *device, void *data, dsc_dtype dtype, int ndim,
                                   const int64_t *dim);
/* Returns the number of elements. */
DSC_API int64_t dsc_tensor_count(const dsc_tensor *t);
/* Returns the number of bytes of all elements. */
DSC_API size_t dsc_tensor_bytes(const dsc_tensor *t);
/* Returns a view of elements first .. first + count - 1 of t, as a vector. If t does not have them all, the view has no
 * device, and every operation refuses it. */
DSC_API dsc_tensor dsc_tensor_slice(const dsc_tensor *t, int64_t first, int64_t count);

/* Allocates zeroed memory on `device` and writes a tensor that refers to it to *out. The caller frees it with
 * dsc_tensor_free. */
DSC_API dsc_status dsc_tensor_alloc(dsc_device *device, dsc_dtype dtype, int ndim, const int64_t *dim,
                                    dsc_tensor *out) DSC_MUST_CHECK;
/* Frees the memory of a tensor made by dsc_tensor_alloc and sets t->data to NULL. t and t->data may be NULL. */
DSC_API void dsc_tensor_free(dsc_tensor *t);

/* Returns DSC_E_INVALID, with the reason, unless t's memory is memory of t's device. On a GPU its first and last
 * byte are looked up: host memory, memory of another GPU, and addresses that were freed or never allocated are
 * refused; managed memory is accepted. On a host device only a NULL address of a tensor with elements is refused.
 * Meant for checking memory that a caller hands over; takes a few microseconds. Not collective. */
DSC_API dsc_status dsc_tensor_check(const dsc_tensor *t) DSC_MUST_CHECK;

/* Copies from host memory to a tensor, or from a tensor to host memory; `bytes` must be dsc_tensor_bytes(t).
 * Asynchronous on a GPU: the host memory must not be touched before dsc_queue_sync. The exception is an upload of
 * at most 64 KiB: the library copies the host memory at once, and the caller may reuse it. */
DSC_API dsc_status dsc_tensor_upload(dsc_queue *queue, const void *host, size_t bytes,
                                     dsc_tensor *t) DSC_MUST_CHECK;
DSC_API dsc_status dsc_tensor_download(dsc_queue *queue, const dsc_tensor *t, size_t bytes,
                                       void *host) DSC_MUST_CHECK;

/* ---- the geometry of a convolution ---- */

/* The order of a batch of images in memory: [n, h, w, channels] or [n, channels, h, w]. The library itself uses
 * DSC_NHWC; a function that takes the caller's images says which orders it accepts. */
typedef enum dsc_image_layout { DSC_NHWC, DSC_NCHW } dsc_image_layout;

/* The geometry of a two-dimensional convolution of images x[n, in_h, in_w, in_c] with weights
 * w[out_c, kernel_h, kernel_w, in_c / groups]; in each direction
 *   out = (in + 2 pad + extra - dilation (kernel - 1) - 1) / stride + 1   (rounded down). */
typedef struct dsc_conv2d_shape {
    size_t size; /* of this struct in bytes; set by dsc_conv2d_shape_init */
    int64_t in_h, in_w, in_c;
    int64_t out_c;
    int64_t kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w; /* zeros added on each of the two sides */
    int64_t dilation_h, dilation_w;
    int64_t groups; /* divides in_c and out_c; each group of outputs reads its own group of inputs */
    /* Further zeros at the bottom and at the right, in addition to the padding, as "same" padding needs with even
     * kernels. Only for layers of K-FAC. Models refuse them, except in a transposed convolution, where they are the
     * number of rows and columns added to its output (dsc_model_conv_transpose2d). */
    int64_t extra_h, extra_w;
} dsc_conv2d_shape;

/* Sets `size`; sets kernel, strides, dilations and groups to 1 and everything else to 0. The macro passes the size of
 * the struct that the caller was compiled with. */
DSC_API void dsc_conv2d_shape_init_sized(dsc_conv2d_shape *shape, size_t size);
#define dsc_conv2d_shape_init(shape) dsc_conv2d_shape_init_sized((shape), sizeof *(shape))
/* Writes the height and the width of the output. Returns DSC_E_INVALID, with the reason, if the geometry is
 * impossible. */
DSC_API dsc_status dsc_conv2d_output(const dsc_conv2d_shape *shape, int64_t *out_h,
                                     int64_t *out_w) DSC_MUST_CHECK;

/* How a map is upsampled to twice its height and width. NEAREST: each pixel is repeated four times. BILINEAR: each new
 * pixel is interpolated from the nearest four, with weights 1/4 and 3/4 in each direction (PyTorch's bilinear with
 * align_corners=False). */
typedef enum dsc_upsample_kind { DSC_UPSAMPLE_NEAREST, DSC_UPSAMPLE_BILINEAR } dsc_upsample_kind;

/* ---- devices ---- */

typedef struct dsc_device_options {
    size_t size; /* of this struct in bytes; set by dsc_device_options_init */
    /* "auto" (the default: the fastest device of this machine), "ref", "cpu" or "cuda". Read only during
     * dsc_device_create. */
    const char *name;
    /* The number of CPU threads. 0 (default): one for each CPU that the process may use, or fewer if OpenMP is
     * limited to fewer (OMP_NUM_THREADS). OpenMP's own setting is not changed. */
    int threads;
    /* Which of several GPUs, counted from 0, modulo their number: on a node with four GPUs, 5 is GPU 1. Default 0. */
    int ordinal;
    /* 1: when a convolution is planned, a GPU times the candidate algorithms and keeps the fastest (see "tuning"
     * below). 0 (default): it takes the one that its library recommends. */
    int tune;
} dsc_device_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_device_options_init_sized(dsc_device_options *options, size_t size);
#define dsc_device_options_init(options) dsc_device_options_init_sized((options), sizeof *(options))
/* Creates a device, which the caller destroys with dsc_device_destroy. options may be NULL: the defaults. Returns
 * DSC_E_INVALID for an unknown name, DSC_E_UNSUPPORTED for a device that this build or machine lacks. Not
 * collective. */
DSC_API dsc_status dsc_device_create(const dsc_device_options *options, dsc_device **out) DSC_MUST_CHECK;
/* Destroys a device and sets *device to NULL. All its queues, events and memory must have been freed before. Accepts
 * NULL and *device == NULL. */
DSC_API void dsc_device_destroy(dsc_device **device);

/* Returns "ref", "cpu" or "cuda". The string belongs to the device. */
DSC_API const char *dsc_device_name(const dsc_device *device);
/* Returns one line for people to read: libraries, versions, threads. The string belongs to the device. */
DSC_API const char *dsc_device_description(const dsc_device *device);
/* Returns the number of CPU threads that the device uses. */
DSC_API int dsc_device_threads(const dsc_device *device);
/* Returns 1 if the host may read and write the device's memory directly, otherwise 0. */
DSC_API int dsc_device_is_host(const dsc_device *device);
/* Returns a number that identifies the GPU, the same in all processes; 0 for a host device. */
DSC_API uint64_t dsc_device_identity(const dsc_device *device);
/* Returns the number of devices of this kind in the machine. For "cuda" the number of GPUs: 0 if they cannot be used,
 * or if the module or a library of CUDA is missing (dsc_device_create then says why). 1 for every other name. */
DSC_API int dsc_device_count(const char *name);
/* Returns the names of the devices in this build, a static array terminated by NULL. */
DSC_API const char *const *dsc_device_names(void);

/* Allocates zeroed memory on the device, aligned to at least 64 bytes. The caller frees it with dsc_device_free. */
DSC_API dsc_status dsc_device_alloc(dsc_device *device, size_t bytes, void **out) DSC_MUST_CHECK;
/* Frees *data and sets it to NULL. Accepts NULL and *data == NULL. */
DSC_API void dsc_device_free(dsc_device *device, void **data);
/* Returns the number of bytes allocated through dsc_device_alloc: now, and at the highest point so far. */
DSC_API size_t dsc_device_bytes(const dsc_device *device);
DSC_API size_t dsc_device_peak_bytes(const dsc_device *device);

/* Allocates zeroed host memory for copies from and to the device, page-locked where that makes the copies fast.
 * dsc_host_free frees *data (which may be NULL) and sets it to NULL. */
DSC_API dsc_status dsc_host_alloc(dsc_device *device, size_t bytes, void **out) DSC_MUST_CHECK;
DSC_API void dsc_host_free(dsc_device *device, void **data);

/* ---- queues and events ---- */

/* Creates a queue on the device, which the caller destroys with dsc_queue_destroy. */
DSC_API dsc_status dsc_queue_create(dsc_device *device, dsc_queue **out) DSC_MUST_CHECK;
/* Creates a queue around a stream that the caller owns: for "cuda" a cudaStream_t (NULL: the default stream;
 * cudaStreamPerThread means the stream of whichever thread uses the queue); ignored on host devices. Work of the
 * library and of the caller runs in the order of that stream. The queue has its own scratch memory and handles, and
 * never destroys the stream, which must exist as long as the queue is used. dsc_queue_destroy does not touch the
 * stream: it may be gone by then, but all of the queue's work must have been put in before.
 *
 * The library never records CUDA graphs in such a queue itself. While the caller captures the stream into a CUDA
 * graph, operations become part of the graph, and those that wait, or copy from or to the host, fail with
 * DSC_E_INVALID. */
DSC_API dsc_status dsc_queue_wrap(dsc_device *device, void *stream, dsc_queue **out) DSC_MUST_CHECK;
/* Moves a queue made by dsc_queue_wrap to another stream of the same device: work that is put into the queue from
 * now on goes there, and runs after all work put into the queue so far. Both streams must exist during the call.
 * Does nothing if the stream is the same, or on host devices. Asynchronous. The queue can move to a stream that is
 * being captured into a CUDA graph only when none of its earlier work is under way, and can leave it only when the
 * capture has ended. */
DSC_API dsc_status dsc_queue_rewrap(dsc_queue *queue, void *stream) DSC_MUST_CHECK;
/* Returns the queue's native stream, so that the caller can add work of its own in the queue's order: a cudaStream_t,
 * or NULL on host devices. The stream belongs to the queue, or to the caller if it was wrapped. */
DSC_API void *dsc_queue_stream(const dsc_queue *queue);
/* Destroys a queue and sets *queue to NULL. Accepts NULL and *queue == NULL. */
DSC_API void dsc_queue_destroy(dsc_queue **queue);
/* Returns the device that the queue was created on. */
DSC_API dsc_device *dsc_queue_device(const dsc_queue *queue);
/* Blocks until all work put into the queue so far is done. If some of it failed, returns its status. */
DSC_API dsc_status dsc_queue_sync(dsc_queue *queue) DSC_MUST_CHECK;

/* Creates an event, which the caller destroys with dsc_event_destroy. */
DSC_API dsc_status dsc_event_create(dsc_device *device, dsc_event **out) DSC_MUST_CHECK;
/* Destroys an event and sets *event to NULL. Accepts NULL and *event == NULL. */
DSC_API void dsc_event_destroy(dsc_event **event);
/* Makes the event mark the end of the work put into `queue` so far. Asynchronous. */
DSC_API dsc_status dsc_event_record(dsc_event *event, dsc_queue *queue) DSC_MUST_CHECK;
/* Makes all later work in `queue` wait for the event. Asynchronous. */
DSC_API dsc_status dsc_queue_wait(dsc_queue *queue, dsc_event *event) DSC_MUST_CHECK;
/* Blocks the caller until the work that the event marks is done. */
DSC_API dsc_status dsc_event_sync(dsc_event *event) DSC_MUST_CHECK;
/* Writes the milliseconds between two events of one device whose work is done; 0 on host devices. */
DSC_API dsc_status dsc_event_elapsed(dsc_event *from, dsc_event *to, double *ms) DSC_MUST_CHECK;

/* ---- tuning ----
 *
 * Only for GPUs created with dsc_device_options.tune. The choices that timing leads to differ from process to
 * process, and the last bits of results with them; a program that must continue a run exactly saves the choices. */

/* Returns 1 if the device was created with dsc_device_options.tune and has something to tune, otherwise 0. */
DSC_API int dsc_device_tunes(const dsc_device *device);
/* Writes the choices that the device has made by timing so far, or was given by dsc_device_preset, to text[size] as
 * lines of text; "" if there are none. *needed becomes the size of the whole text in bytes, including the final zero;
 * if `size` is smaller, the text is cut off. Not collective. */
DSC_API dsc_status dsc_device_choices(dsc_device *device, char *text, size_t size,
                                      size_t *needed) DSC_MUST_CHECK;
/* Makes convolutions that are planned from now on use the choices in `text`, which dsc_device_choices wrote;
 * convolutions that it does not contain are timed. A text from another kind of device, or from another version of
 * the device's library, is ignored with a warning. Returns DSC_E_FORMAT if the text was not written by
 * dsc_device_choices. */
DSC_API dsc_status dsc_device_preset(dsc_device *device, const char *text) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

/* Compute devices, their memory and queues; tensors and parameters.
 *
 * A device is where memory lives and where work runs; a queue is an ordered sequence of work on it; an event
 * marks a point in a queue. `ref` and `cpu` run every operation before the call returns; a GPU runs them
 * later, in queue order. */
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
typedef struct dsc_recording dsc_recording;

typedef enum dsc_dtype { DSC_F32, DSC_F64, DSC_BF16, DSC_F16, DSC_I32, DSC_I64, DSC_U8 } dsc_dtype;

enum { DSC_MAX_DIMS = 6 };

/* Dense elements in row-major order. A tensor is a view: it never owns its memory; copy the struct freely. */
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

/* The geometry of a two-dimensional convolution of images x[n, in_h, in_w, in_c] with weights
 * w[out_c, kernel_h, kernel_w, in_c / groups]; in each direction
 *   out = (in + 2 pad - dilation (kernel - 1) - 1) / stride + 1   (rounded down). */
typedef struct dsc_conv2d_shape {
    size_t size; /* of this struct; set by dsc_conv2d_shape_init */
    int64_t in_h, in_w, in_c;
    int64_t out_c;
    int64_t kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w; /* zeros added on each of the two sides */
    int64_t dilation_h, dilation_w;
    int64_t groups; /* divides in_c and out_c; each group of outputs sees its own group of inputs */
} dsc_conv2d_shape;

/* Sets the size; kernel, strides, dilations and groups become 1, everything else 0. */
DSC_API void dsc_conv2d_shape_init_sized(dsc_conv2d_shape *shape, size_t size);
#define dsc_conv2d_shape_init(shape) dsc_conv2d_shape_init_sized((shape), sizeof *(shape))
/* Writes the height and width of the output. DSC_E_INVALID, with the reason, when no such convolution
 * exists. */
DSC_API dsc_status dsc_conv2d_output(const dsc_conv2d_shape *shape, int64_t *out_h,
                                     int64_t *out_w) DSC_MUST_CHECK;

/* Bytes of one element; its name ("fp32", "bf16", ...). */
DSC_API size_t dsc_dtype_size(dsc_dtype dtype);
DSC_API const char *dsc_dtype_name(dsc_dtype dtype);

/* A view of `data` (memory of `device`) with the given shape. */
DSC_API dsc_tensor dsc_tensor_view(dsc_device *device, void *data, dsc_dtype dtype, int ndim,
                                   const int64_t *dim);
DSC_API int64_t dsc_tensor_count(const dsc_tensor *t);
DSC_API size_t dsc_tensor_bytes(const dsc_tensor *t);
/* `count` elements of t from element `first` on, as a vector. */
DSC_API dsc_tensor dsc_tensor_slice(const dsc_tensor *t, int64_t first, int64_t count);

/* Allocates zeroed memory for a tensor; dsc_tensor_free gives it back (data may be NULL) and nulls it. Only a
 * tensor made by dsc_tensor_alloc may be freed. */
DSC_API dsc_status dsc_tensor_alloc(dsc_device *device, dsc_dtype dtype, int ndim, const int64_t *dim,
                                    dsc_tensor *out) DSC_MUST_CHECK;
DSC_API void dsc_tensor_free(dsc_tensor *t);

typedef struct dsc_device_options {
    size_t size;      /* of this struct; set by dsc_device_options_init */
    const char *name; /* "auto" (the default: the fastest that is there), "ref", "cpu", "cuda"; the string
                         stays the caller's */
    int threads; /* CPU threads; 0: one for each CPU that the process may use, or fewer when OpenMP is set
                    to that (OMP_NUM_THREADS); OpenMP's setting stays as it is */
    int ordinal; /* which of several GPUs, counted around: rank 5 on a node of four gets GPU 1 */
    int tune;    /* 1: a GPU times what could run a convolution when one is opened and keeps the fastest;
                    0 (the default): it takes what its library advises */
} dsc_device_options;

/* Sets the defaults. The macro passes the size of the struct that the caller was compiled with. */
DSC_API void dsc_device_options_init_sized(dsc_device_options *options, size_t size);
#define dsc_device_options_init(options) dsc_device_options_init_sized((options), sizeof *(options))
/* Creates a device. Not collective. DSC_E_INVALID for an unknown name, DSC_E_UNSUPPORTED for one that this
 * build or machine lacks. */
DSC_API dsc_status dsc_device_create(const dsc_device_options *options, dsc_device **out) DSC_MUST_CHECK;
/* Accepts NULL and *device == NULL. All queues and memory of the device must be gone. */
DSC_API void dsc_device_destroy(dsc_device **device);
/* "ref", "cpu", ...; lent. */
DSC_API const char *dsc_device_name(const dsc_device *device);
/* One line for people: libraries, versions, threads; lent. */
DSC_API const char *dsc_device_description(const dsc_device *device);
DSC_API int dsc_device_threads(const dsc_device *device);
/* 1 when the host may read and write the device's memory directly. */
DSC_API int dsc_device_is_host(const dsc_device *device);
/* A number that a GPU has in all processes and that no other has; 0 for a host. */
DSC_API uint64_t dsc_device_identity(const dsc_device *device);
/* What a device has chosen by timing so far, or was preset to, as lines of text; "" where nothing was.
 * Choices made by timing differ from process to process, and results with them in their last bits: who wants
 * to continue exactly keeps the text. *needed: its bytes with the final zero; where `size` is smaller, the
 * text is cut off. Not collective. */
DSC_API dsc_status dsc_device_choices(dsc_device *device, char *text, size_t size,
                                      size_t *needed) DSC_MUST_CHECK;
/* Convolutions opened from now on take the choices of such a text, where it has one for them. A text from
 * another kind of device, or another version of its library, is passed over with a warning. DSC_E_FORMAT when
 * it is no such text. */
DSC_API dsc_status dsc_device_preset(dsc_device *device, const char *text) DSC_MUST_CHECK;
/* 1 when the device was created with dsc_device_options.tune and has something to tune. */
DSC_API int dsc_device_tunes(const dsc_device *device);
/* How many devices of this kind the machine has: GPUs for "cuda" (0 where they cannot be used), 1 for CPUs.
 */
DSC_API int dsc_device_count(const char *name);
/* The names of the devices in this build, NULL behind the last. */
DSC_API const char *const *dsc_device_names(void);

/* Zeroed memory of the device, aligned to 64 bytes at least. */
DSC_API dsc_status dsc_device_alloc(dsc_device *device, size_t bytes, void **out) DSC_MUST_CHECK;
/* Frees *data (may be NULL) and nulls it. */
DSC_API void dsc_device_free(dsc_device *device, void **data);
/* Bytes allocated through dsc_device_alloc now, and at most so far. */
DSC_API size_t dsc_device_bytes(const dsc_device *device);
DSC_API size_t dsc_device_peak_bytes(const dsc_device *device);

DSC_API dsc_status dsc_queue_create(dsc_device *device, dsc_queue **out) DSC_MUST_CHECK;
DSC_API void dsc_queue_destroy(dsc_queue **queue);
DSC_API dsc_device *dsc_queue_device(const dsc_queue *queue);
/* Waits until all work put into the queue so far is done; reports what failed in it. */
DSC_API dsc_status dsc_queue_sync(dsc_queue *queue) DSC_MUST_CHECK;

DSC_API dsc_status dsc_event_create(dsc_device *device, dsc_event **out) DSC_MUST_CHECK;
DSC_API void dsc_event_destroy(dsc_event **event);
/* Marks the work put into `queue` so far. Asynchronous. */
DSC_API dsc_status dsc_event_record(dsc_event *event, dsc_queue *queue) DSC_MUST_CHECK;
/* Lets what comes next in `queue` start only after the event. Asynchronous. */
DSC_API dsc_status dsc_queue_wait(dsc_queue *queue, dsc_event *event) DSC_MUST_CHECK;
/* Blocks the caller until the event has happened. */
DSC_API dsc_status dsc_event_sync(dsc_event *event) DSC_MUST_CHECK;

/* Milliseconds between two events that have happened (0 on devices that run everything at once). */
DSC_API dsc_status dsc_event_elapsed(dsc_event *from, dsc_event *to, double *ms) DSC_MUST_CHECK;

/* ---- recorded work ----
 * A sequence of operations that is put into a queue again and again can be recorded once and replayed as one.
 * Operations between begin and end do not run, they are noted down with their arguments: memory and numbers
 * stay those of the recording, contents of the memory are read anew in every replay. Nothing that waits, and
 * no copy from or to the host, may be recorded. */
/* 1 when the device can record. */
DSC_API int dsc_device_records(const dsc_device *device);
DSC_API dsc_status dsc_recording_begin(dsc_queue *queue) DSC_MUST_CHECK;
/* After a failure nothing is recorded, and the queue can be used as before. */
DSC_API dsc_status dsc_recording_end(dsc_queue *queue, dsc_recording **out) DSC_MUST_CHECK;
/* 1 between the two. */
DSC_API int dsc_queue_is_recording(const dsc_queue *queue);
/* Puts what was recorded into the queue. Asynchronous. */
DSC_API dsc_status dsc_recording_replay(dsc_recording *recording, dsc_queue *queue) DSC_MUST_CHECK;
DSC_API void dsc_recording_destroy(dsc_recording **recording);

/* Memory of the host for copies from and to the device: page-locked where that makes them fast. Zeroed. */
DSC_API dsc_status dsc_host_alloc(dsc_device *device, size_t bytes, void **out) DSC_MUST_CHECK;
DSC_API void dsc_host_free(dsc_device *device, void **data);

/* Copies between host memory and a tensor; `bytes` must be dsc_tensor_bytes(). Asynchronous where the device
 * is: the host memory may not be touched before dsc_queue_sync(), but an upload of at most 64 KiB takes a
 * copy: its host memory is free at once. */
DSC_API dsc_status dsc_tensor_upload(dsc_queue *queue, const void *host, size_t bytes,
                                     dsc_tensor *t) DSC_MUST_CHECK;
DSC_API dsc_status dsc_tensor_download(dsc_queue *queue, const dsc_tensor *t, size_t bytes,
                                       void *host) DSC_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif

/* Fusion buckets: a list of tensors is averaged over all ranks in a few large messages.
 *
 * The plan is made at creation. Tensors are taken in the order in which they become ready, separately for
 * each root (as one list if all ranks get the means). A bucket is closed when the next tensor would make
 * it larger than options.bytes, measured in the wire type, or when that tensor is sent as another type; a
 * tensor larger than options.bytes gets a bucket of its own. The wire type is options.wire, except that
 * DSC_F32 leaves float64 as it is. A bucket whose tensors need no conversion and fill one contiguous range of memory,
 * in any order, is reduced in place: parameters become ready from last to first, so gradients that are
 * laid out one after the other form such a range. Any other bucket gets a part of one staging buffer.
 * Buckets are numbered by their last tensor in the ready order: the buckets of several roots fill at the same
 * time, and with these numbers none has to wait for a tensor of another bucket.
 *
 * In a round, bucket i starts once all its tensors are ready and bucket i - 1 has started, so that all
 * ranks start them in the same order, whatever the order of the tensors. Waiting sets t = (sum over the
 * ranks) / ranks, at the bucket's root or on all ranks. With one rank nothing is copied, sent or scaled. */
#include "comm/table.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/versioned.h"
#include "device/ops.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BYTES = 4 << 20, EVERYBODY = -1 };

typedef struct bucket {
    int root;            /* the rank that gets the means, or EVERYBODY */
    int64_t first, last; /* the ends of the list of its tensors, which `next` links */
    int64_t count;       /* the number of its tensors */
    int64_t missing;     /* the number of tensors that are not ready yet in this round */
    int in_place;        /* 1: `message` is the tensors' own memory */
    dsc_tensor message;  /* the buffer that is reduced */
    dsc_request *request;
} bucket;

struct dsc_buckets {
    dsc_comm *comm;
    dsc_queue *queue;
    dsc_bucket_options options; /* without `roots`, which are kept in the buckets */
    int64_t count;              /* number of tensors */
    dsc_tensor *tensors;
    int64_t *next;        /* [count] the next tensor of the same bucket; -1: none */
    int64_t *bucket_of;   /* [count] */
    unsigned char *ready; /* [count] */
    int64_t bucket_count;
    bucket *buckets;
    int64_t started, complete; /* buckets [0, started) were started, [0, complete) are known to be complete */
    dsc_tensor staging;        /* U8; holds the buckets that are not reduced in place */
    dsc_tensor scale;          /* F64 scalar: 1 / ranks */
    dsc_buckets *next_kept;
};

void dsc_bucket_options_init_sized(dsc_bucket_options *options, size_t size) {
    const dsc_bucket_options defaults = {
        .bytes = DEFAULT_BYTES, .wire = DSC_F32, .traffic = DSC_TRAFFIC_GRADIENTS};
    dsc_versioned_init(options, size, &defaults, sizeof defaults);
}

/* ---- plan ---- */

static dsc_status read_options(const dsc_bucket_options *given, dsc_bucket_options *out) {
    dsc_bucket_options_init(out);
    DSC_TRY(dsc_versioned_read("bucket", given, sizeof *out, out));
    if (out->bytes == 0)
        return DSC_FAIL(DSC_E_INVALID, "bucket options: buckets of 0 bytes; give 1 at least");
    if (out->wire != DSC_F32 && out->wire != DSC_BF16 && out->wire != DSC_F16)
        return DSC_FAIL(DSC_E_INVALID, "bucket options: '%s' cannot be sent; use fp32, bf16 or fp16",
                        dsc_dtype_name(out->wire));
    if ((unsigned)out->traffic >= DSC_TRAFFIC_COUNT)
        return DSC_FAIL(DSC_E_INVALID, "bucket options: traffic kind %d is unknown", (int)out->traffic);
    return DSC_OK;
}

static dsc_status check_tensors(const dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors,
                                int64_t count) {
    dsc_device *device = dsc_queue_device(queue);
    if (count < 0)
        return DSC_FAIL(DSC_E_INVALID, "buckets: %lld tensors", (long long)count);
    if (!dsc_device_is_host(device) && comm->size > 1)
        DSC_TRY(dsc_comm_check_queue(comm, "buckets", device));
    for (int64_t i = 0; i < count; i++) {
        const dsc_tensor *t = &tensors[i];
        if (t->device != device)
            return DSC_FAIL(DSC_E_INVALID, "buckets: tensor %lld is not on the device of the queue",
                            (long long)i);
        if (t->dtype != DSC_F32 && t->dtype != DSC_F64)
            return DSC_FAIL(DSC_E_UNSUPPORTED, "buckets: tensor %lld is %s; fp32 and fp64 can be averaged",
                            (long long)i, dsc_dtype_name(t->dtype));
        if (!t->data && dsc_tensor_count(t) > 0)
            return DSC_FAIL(DSC_E_INVALID, "buckets: tensor %lld has no memory", (long long)i);
    }
    return DSC_OK;
}

static dsc_status check_roots(const dsc_comm *comm, const int *roots, int64_t count) {
    for (int64_t i = 0; roots && i < count; i++) {
        if (roots[i] < 0 || roots[i] >= comm->size)
            return DSC_FAIL(DSC_E_INVALID,
                            "buckets: tensor %lld goes to rank %d; the communicator has ranks 0 to %d",
                            (long long)i, roots[i], comm->size - 1);
    }
    return DSC_OK;
}

/* Returns the type as which a tensor is sent. */
static dsc_dtype wire_type(const dsc_buckets *b, const dsc_tensor *t) {
    return b->options.wire == DSC_F32 ? t->dtype : b->options.wire;
}

static size_t wire_bytes(const dsc_buckets *b, const dsc_tensor *t) {
    return (size_t)dsc_tensor_count(t) * dsc_dtype_size(wire_type(b, t));
}

/* Opens a bucket for tensor i. Its message has a type, but no elements and no memory yet. */
static bucket *open_bucket(dsc_buckets *b, int root, int64_t i) {
    const dsc_tensor *t = &b->tensors[i];
    int64_t none = 0;
    bucket *k = &b->buckets[b->bucket_count++];
    k->root = root;
    k->first = i;
    k->message = dsc_tensor_view(t->device, NULL, wire_type(b, t), 1, &none);
    return k;
}

static int by_last(const void *a, const void *b) {
    int64_t x = ((const bucket *)a)->last, y = ((const bucket *)b)->last;
    return (x > y) - (x < y);
}

/* Divides the list of tensors into buckets, and numbers them. */
static dsc_status cut(dsc_buckets *b, const int *roots) {
    bucket **open; /* the open bucket of each root; only [0] if there are no roots */
    DSC_TRY(dsc_memory_alloc(roots ? b->comm->size : 1, sizeof *open, &open));
    for (int64_t i = 0; i < b->count; i++) {
        const dsc_tensor *t = &b->tensors[i];
        bucket **k = roots ? &open[roots[i]] : &open[0];
        if (!*k || (*k)->message.dtype != wire_type(b, t) ||
            dsc_tensor_bytes(&(*k)->message) + wire_bytes(b, t) > b->options.bytes)
            *k = open_bucket(b, roots ? roots[i] : EVERYBODY, i);
        else
            b->next[(*k)->last] = i;
        b->next[i] = -1;
        (*k)->last = i;
        (*k)->count++;
        (*k)->message.dim[0] += dsc_tensor_count(t);
    }
    dsc_memory_free(&open);
    qsort(b->buckets, (size_t)b->bucket_count, sizeof *b->buckets, by_last);
    for (int64_t n = 0; n < b->bucket_count; n++) {
        for (int64_t i = b->buckets[n].first; i >= 0; i = b->next[i])
            b->bucket_of[i] = n;
    }
    return DSC_OK;
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const dsc_tensor *)a)->data, y = (uintptr_t)((const dsc_tensor *)b)->data;
    return (x > y) - (x < y);
}

/* Returns the start of the range of memory that the tensors of a bucket fill without a gap, or NULL if they do not, or
 * need a conversion. `sorted` has space for all of them. */
static void *find_range(const dsc_buckets *b, const bucket *k, dsc_tensor *sorted) {
    int64_t n = 0;
    for (int64_t i = k->first; i >= 0; i = b->next[i]) {
        const dsc_tensor *t = &b->tensors[i];
        if (t->dtype != k->message.dtype)
            return NULL;
        if (dsc_tensor_count(t) > 0)
            sorted[n++] = *t;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_address);
    for (int64_t i = 1; i < n; i++) {
        if ((char *)sorted[i - 1].data + dsc_tensor_bytes(&sorted[i - 1]) != (char *)sorted[i].data)
            return NULL;
    }
    return n > 0 ? sorted[0].data : NULL;
}

static size_t align(size_t bytes) {
    return (bytes + DSC_ALIGNMENT - 1) / DSC_ALIGNMENT * DSC_ALIGNMENT;
}

/* Gives each bucket its memory: that of its tensors, or a part of the staging buffer. */
static dsc_status place(dsc_buckets *b) {
    dsc_tensor *sorted;
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *sorted, &sorted));
    int64_t staged = 0;
    for (int64_t i = 0; i < b->bucket_count; i++) {
        bucket *k = &b->buckets[i];
        k->message.data = find_range(b, k, sorted);
        k->in_place = k->message.data != NULL;
        if (!k->in_place)
            staged += (int64_t)align(dsc_tensor_bytes(&k->message));
    }
    dsc_memory_free(&sorted);
    if (staged == 0)
        return DSC_OK;
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(b->queue), DSC_U8, 1, &staged, &b->staging));
    char *next = b->staging.data;
    for (int64_t i = 0; i < b->bucket_count; i++) {
        bucket *k = &b->buckets[i];
        if (!k->in_place) {
            k->message.data = next;
            next += align(dsc_tensor_bytes(&k->message));
        }
    }
    return DSC_OK;
}

static dsc_status make_scale(dsc_buckets *b) {
    int64_t one = 1;
    double scale = 1.0 / b->comm->size;
    DSC_TRY(dsc_tensor_alloc(dsc_queue_device(b->queue), DSC_F64, 1, &one, &b->scale));
    DSC_TRY(dsc_tensor_upload(b->queue, &scale, sizeof scale, &b->scale));
    return dsc_queue_sync(b->queue);
}

static void begin_round(dsc_buckets *b) {
    memset(b->ready, 0, (size_t)b->count);
    for (int64_t i = 0; i < b->bucket_count; i++)
        b->buckets[i].missing = b->buckets[i].count;
    b->started = b->complete = 0;
}

static dsc_status plan(dsc_buckets *b, const dsc_tensor *tensors, const int *roots) {
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *b->tensors, &b->tensors));
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *b->next, &b->next));
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *b->bucket_of, &b->bucket_of));
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *b->ready, &b->ready));
    DSC_TRY(dsc_memory_alloc(b->count, sizeof *b->buckets, &b->buckets));
    if (b->count > 0)
        memcpy(b->tensors, tensors, (size_t)b->count * sizeof *tensors);
    DSC_TRY(cut(b, roots));
    begin_round(b);
    if (b->comm->size == 1)
        return DSC_OK;
    DSC_TRY(make_scale(b));
    return place(b);
}

dsc_status dsc_buckets_create(dsc_comm *comm, dsc_queue *queue, const dsc_tensor *tensors, int64_t count,
                              const dsc_bucket_options *options, dsc_buckets **out) {
    dsc_bucket_options o;
    DSC_TRY(read_options(options, &o));
    DSC_TRY(check_tensors(comm, queue, tensors, count));
    DSC_TRY(check_roots(comm, o.roots, count));
    dsc_buckets *b;
    DSC_TRY(dsc_memory_alloc(1, sizeof *b, &b));
    b->comm = comm;
    b->queue = queue;
    b->options = o;
    b->options.roots = NULL; /* the caller's memory, which may be freed */
    b->count = count;
    dsc_status status = plan(b, tensors, o.roots);
    if (status != DSC_OK) {
        dsc_buckets_destroy(&b);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = b;
    return DSC_OK;
}

void dsc_buckets_destroy(dsc_buckets **buckets) {
    if (!buckets || !*buckets)
        return;
    dsc_buckets *b = *buckets;
    for (int64_t i = 0; i < b->started; i++) {
        dsc_status status = dsc_comm_wait(&b->buckets[i].request);
        if (b->buckets[i].request) { /* timed out: MPI may still use the memory */
            b->next_kept = b->comm->kept;
            b->comm->kept = b;
            *buckets = NULL;
            return;
        }
        if (status != DSC_OK)
            break; /* later buckets may never complete */
    }
    dsc_tensor_free(&b->staging);
    dsc_tensor_free(&b->scale);
    dsc_memory_free(&b->buckets);
    dsc_memory_free(&b->ready);
    dsc_memory_free(&b->bucket_of);
    dsc_memory_free(&b->next);
    dsc_memory_free(&b->tensors);
    dsc_memory_free(buckets);
}

/* Marks operations that are not complete as expired, so that destroying the communicator does not wait for
 * them. */
int dsc_buckets_abandon(dsc_buckets **buckets) {
    dsc_buckets *b = buckets ? *buckets : NULL;
    int in_flight = 0;
    for (int64_t i = 0; b && i < b->started; i++) {
        dsc_request *request = b->buckets[i].request;
        int done = 0;
        if (!request || (dsc_comm_poll(request, &done) == DSC_OK && done))
            continue;
        request->expired = 1;
        in_flight = 1;
    }
    if (in_flight) {
        dsc_memory_keep(b);
        *buckets = NULL;
        return 1;
    }
    dsc_buckets_destroy(buckets);
    return 0;
}

int dsc_buckets_is_ready(const dsc_buckets *buckets, int64_t index) {
    return buckets->ready[index];
}

int dsc_buckets_is_under_way(const dsc_buckets *buckets) {
    for (int64_t i = 0; i < buckets->bucket_count; i++)
        if (buckets->buckets[i].missing != buckets->buckets[i].count)
            return 1;
    return 0;
}

int64_t dsc_buckets_count(const dsc_buckets *buckets) {
    return buckets->bucket_count;
}

/* ---- round ---- */

/* Copies the tensors of a bucket into its message (pack 1), or back (0), and converts them. */
static dsc_status move(const dsc_buckets *b, bucket *k, int pack) {
    int64_t first = 0;
    for (int64_t i = k->first; i >= 0; i = b->next[i]) {
        dsc_tensor *t = &b->tensors[i];
        int64_t count = dsc_tensor_count(t);
        dsc_tensor own = dsc_tensor_slice(t, 0, count);
        dsc_tensor packed = dsc_tensor_slice(&k->message, first, count);
        DSC_TRY(pack ? dsc_op_convert(b->queue, &own, &packed) : dsc_op_convert(b->queue, &packed, &own));
        first += count;
    }
    return DSC_OK;
}

/* Divides the tensors of a bucket by the number of ranks, all at once if the message is their memory. */
static dsc_status divide(dsc_buckets *b, bucket *k) {
    if (k->in_place)
        return dsc_op_scale_by(b->queue, &b->scale, &k->message);
    for (int64_t i = k->first; i >= 0; i = b->next[i])
        DSC_TRY(dsc_op_scale_by(b->queue, &b->scale, &b->tensors[i]));
    return DSC_OK;
}

/* Tensors in GPU memory are communicated in the order of the communicator's queue. If that is not the buckets'
 * queue, the host waits for the buckets' queue before an operation, and for the communicator's after it. */
static dsc_status hand_over(const dsc_buckets *b) {
    int far = !dsc_device_is_host(dsc_queue_device(b->queue));
    return far && b->comm->queue == b->queue ? DSC_OK : dsc_queue_sync(b->queue);
}

static dsc_status take_over(const dsc_buckets *b) {
    int far = !dsc_device_is_host(dsc_queue_device(b->queue));
    return far && b->comm->queue != b->queue ? dsc_queue_sync(b->comm->queue) : DSC_OK;
}

static dsc_status start(dsc_buckets *b, bucket *k) {
    if (b->comm->size == 1)
        return DSC_OK;
    if (b->options.divide_first)
        DSC_TRY(divide(b, k));
    if (!k->in_place)
        DSC_TRY(move(b, k, 1));
    DSC_TRY(hand_over(b)); /* once the gradients are computed and packed */
    if (k->root == EVERYBODY)
        return dsc_comm_allreduce_begin(b->comm, b->options.traffic, DSC_SUM, &k->message, &k->request);
    return dsc_comm_reduce_begin(b->comm, b->options.traffic, DSC_SUM, k->root, &k->message, &k->request);
}

/* After a bucket's operation: copies the sums back to the tensors and divides them, if this rank gets them. */
static dsc_status take_back(dsc_buckets *b, bucket *k) {
    if (b->comm->size == 1 || (k->root != EVERYBODY && k->root != b->comm->rank))
        return DSC_OK;
    DSC_TRY(take_over(b));
    if (!k->in_place)
        DSC_TRY(move(b, k, 0));
    return b->options.divide_first ? DSC_OK : divide(b, k);
}

/* Tests the oldest buckets in flight, which lets MPI make progress with all of them. The requests are kept
 * until the end of the round, so that the number of requests does not depend on timing. */
static dsc_status progress(dsc_buckets *b) {
    int done = 1;
    if (b->comm->size == 1)
        return DSC_OK;
    while (done && b->complete < b->started) {
        DSC_TRY(dsc_comm_poll(b->buckets[b->complete].request, &done));
        b->complete += done;
    }
    return DSC_OK;
}

dsc_status dsc_buckets_ready(dsc_buckets *buckets, int64_t index) {
    dsc_buckets *b = buckets;
    if (index < 0 || index >= b->count)
        return DSC_FAIL(DSC_E_INVALID, "buckets: tensor %lld is ready; there are 0 to %lld", (long long)index,
                        (long long)b->count - 1);
    if (b->ready[index])
        return DSC_FAIL(DSC_E_INVALID,
                        "buckets: tensor %lld is ready for the second time; wait for the round first",
                        (long long)index);
    b->ready[index] = 1;
    b->buckets[b->bucket_of[index]].missing--;
    while (b->started < b->bucket_count && b->buckets[b->started].missing == 0) {
        DSC_TRY(start(b, &b->buckets[b->started]));
        b->started++;
    }
    return progress(b);
}

dsc_status dsc_buckets_wait(dsc_buckets *buckets) {
    dsc_buckets *b = buckets;
    for (int64_t i = 0; i < b->count; i++) {
        if (!b->ready[i])
            return DSC_FAIL(
                DSC_E_INVALID,
                "buckets: tensor %lld of %lld was never ready in this round; announce each before "
                "waiting",
                (long long)i, (long long)b->count);
    }
    for (int64_t i = 0; i < b->bucket_count; i++) {
        DSC_TRY(dsc_comm_wait(&b->buckets[i].request));
        DSC_TRY(take_back(b, &b->buckets[i]));
    }
    begin_round(b);
    return DSC_OK;
}

/* The data of a round of averaging: allocates memory for the messages, writes them, and adds those received. */
#include "consensus/average.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/ops.h"

#include <math.h>

/* ---- memory ---- */

int dsc_plan_copies(const dsc_edge *out, int count, dsc_message_copy *copies, int *copy_of) {
    int used = 0;
    for (int i = 0; i < count; i++) {
        int c = 0;
        while (c < used && copies[c].share != out[i].share)
            c++;
        if (c == used)
            copies[used++] = (dsc_message_copy){.share = out[i].share};
        copies[c].users++;
        copy_of[i] = c;
    }
    return used;
}

/* Allocates the lists for the peers of a step, and finds the most copies that any step needs. */
static dsc_status size_steps(dsc_average *a) {
    dsc_message_plan *p = &a->plan;
    p->most = dsc_topology_most_peers(a->topology);
    dsc_memory_free(&a->out);
    dsc_memory_free(&a->in);
    dsc_memory_free(&a->copy_of);
    dsc_memory_free(&a->copies);
    DSC_TRY(dsc_memory_alloc(p->most, sizeof *a->out, &a->out));
    DSC_TRY(dsc_memory_alloc(p->most, sizeof *a->in, &a->in));
    DSC_TRY(dsc_memory_alloc(p->most, sizeof *a->copy_of, &a->copy_of));
    DSC_TRY(dsc_memory_alloc(p->most, sizeof *a->copies, &a->copies));
    int64_t period = dsc_topology_period(a->topology);
    for (int64_t step = 0; step < period; step++) {
        int count = dsc_topology_out(a->topology, a->rank, step, a->out, NULL);
        int copies = dsc_plan_copies(a->out, count, a->copies, a->copy_of);
        p->most_copies = copies > p->most_copies ? copies : p->most_copies;
    }
    return DSC_OK;
}

/* Cuts the concatenated tensors into buckets, and each tensor into segments that lie in one bucket. */
static dsc_status cut(dsc_average *a) {
    dsc_message_plan *p = &a->plan;
    for (int64_t i = 0; i < a->count; i++)
        p->total += dsc_tensor_count(&a->tensors[i]);
    int64_t fit = (int64_t)(a->options.bucket_bytes / dsc_dtype_size(p->wire));
    p->bucket = fit < 1 ? 1 : fit > p->total ? p->total : fit;
    p->bucket_count = p->total == 0 ? 0 : (p->total + p->bucket - 1) / p->bucket;
    DSC_TRY(dsc_memory_alloc(a->count + p->bucket_count, sizeof *p->segments, &p->segments));
    DSC_TRY(dsc_memory_alloc(p->bucket_count + 1, sizeof *p->first_segment, &p->first_segment));
    int64_t at = 0, segments = 0, bucket = 0;
    for (int64_t i = 0; i < a->count; i++) {
        int64_t length = dsc_tensor_count(&a->tensors[i]);
        for (int64_t done = 0; done < length;) {
            int64_t space = p->bucket - at % p->bucket;
            int64_t part = length - done < space ? length - done : space;
            if (at % p->bucket == 0)
                p->first_segment[bucket++] = segments;
            p->segments[segments++] =
                (dsc_message_segment){.own = dsc_tensor_slice(&a->tensors[i], done, part), .first = at};
            done += part;
            at += part;
        }
    }
    p->first_segment[bucket] = segments;
    return DSC_OK;
}

static dsc_status allocate(dsc_average *a) {
    dsc_message_plan *p = &a->plan;
    dsc_device *device = dsc_queue_device(a->queue);
    int64_t sent = p->most_copies * p->total, got = p->most * p->total, wide = p->bucket;
    int64_t headers = 2 * (int64_t)p->most * DSC_HEADER_COUNT;
    DSC_TRY(dsc_tensor_alloc(device, p->wire, 1, &sent, &p->sent));
    DSC_TRY(dsc_tensor_alloc(device, p->wire, 1, &got, &p->got));
    if (p->wire != DSC_F32)
        DSC_TRY(dsc_tensor_alloc(device, DSC_F32, 1, &wide, &p->wide));
    DSC_TRY(dsc_tensor_alloc(a->host, DSC_F64, 1, &headers, &p->headers));
    dsc_memory_free(&a->requests);
    return dsc_memory_alloc(2 * p->most * (p->bucket_count + 1), sizeof *a->requests, &a->requests);
}

dsc_status dsc_plan_create(dsc_average *a) {
    dsc_plan_destroy(&a->plan);
    a->plan.wire = a->options.wire;
    DSC_TRY(size_steps(a));
    DSC_TRY(cut(a));
    return allocate(a);
}

void dsc_plan_destroy(dsc_message_plan *plan) {
    dsc_tensor *const memory[] = {&plan->sent, &plan->got, &plan->wide, &plan->headers};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i]->data)
            dsc_tensor_free(memory[i]);
    dsc_memory_free(&plan->segments);
    dsc_memory_free(&plan->first_segment);
    *plan = (dsc_message_plan){0};
}

/* ---- buckets ---- */

static int64_t bucket_length(const dsc_message_plan *p, int64_t b) {
    int64_t left = p->total - b * p->bucket;
    return left < p->bucket ? left : p->bucket;
}

dsc_tensor dsc_plan_sent(const dsc_message_plan *plan, int c, int64_t b) {
    return dsc_tensor_slice(&plan->sent, c * plan->total + b * plan->bucket, bucket_length(plan, b));
}

dsc_tensor dsc_plan_got(const dsc_message_plan *plan, int c, int64_t b) {
    return dsc_tensor_slice(&plan->got, c * plan->total + b * plan->bucket, bucket_length(plan, b));
}

/* Returns the part of a bucket that belongs to a segment. */
static dsc_tensor place_of(const dsc_message_plan *p, const dsc_message_segment *s,
                           const dsc_tensor *bucket) {
    return dsc_tensor_slice(bucket, s->first % p->bucket, dsc_tensor_count(&s->own));
}

static dsc_status write_copy(dsc_average *a, dsc_queue *queue, int c, int64_t b) {
    dsc_message_plan *p = &a->plan;
    dsc_tensor bucket = dsc_plan_sent(p, c, b), wide = bucket;
    if (p->wire != DSC_F32)
        wide = dsc_tensor_slice(&p->wide, 0, dsc_tensor_count(&bucket));
    for (int64_t i = p->first_segment[b]; i < p->first_segment[b + 1]; i++) {
        dsc_tensor place = place_of(p, &p->segments[i], &wide);
        DSC_TRY(dsc_op_axpby(queue, a->copies[c].share, &p->segments[i].own, 0, &place));
    }
    return p->wire == DSC_F32 ? DSC_OK : dsc_op_convert(queue, &wide, &bucket);
}

/* Adds `factor` times the bucket to this rank's tensors. */
static dsc_status add_bucket(dsc_average *a, dsc_queue *queue, double factor, const dsc_tensor *bucket,
                             int64_t b) {
    dsc_message_plan *p = &a->plan;
    dsc_tensor wide = *bucket;
    if (p->wire != DSC_F32) {
        wide = dsc_tensor_slice(&p->wide, 0, dsc_tensor_count(bucket));
        DSC_TRY(dsc_op_convert(queue, bucket, &wide));
    }
    for (int64_t i = p->first_segment[b]; i < p->first_segment[b + 1]; i++) {
        dsc_tensor place = place_of(p, &p->segments[i], &wide);
        DSC_TRY(dsc_op_axpby(queue, factor, &place, 1, &p->segments[i].own));
    }
    return DSC_OK;
}

static int is_power_of_two(double share) {
    int exponent;
    return share == 0 || frexp(share, &exponent) == 0.5;
}

/* Returns 1 if the products with all shares are exact, so that the parts kept and sent add up to the old values. */
static int splits_exactly(const dsc_average *a) {
    int exact = a->plan.wire == DSC_F32 && is_power_of_two(a->self);
    for (int c = 0; c < a->copy_count; c++)
        exact = exact && is_power_of_two(a->copies[c].share);
    return exact;
}

/* Leaves this rank's own share in the tensors. If products are rounded (shares like 1/3, half types), that is x minus
 * the rounded values that are sent: the product self x would lose or add a little mass in every round, always in the
 * same direction. */
static dsc_status keep_own(dsc_average *a, dsc_queue *queue, int64_t b) {
    dsc_message_plan *p = &a->plan;
    if (!splits_exactly(a)) {
        for (int c = 0; c < a->copy_count; c++) {
            dsc_tensor bucket = dsc_plan_sent(p, c, b);
            DSC_TRY(add_bucket(a, queue, -a->copies[c].users, &bucket, b));
        }
        return DSC_OK;
    }
    for (int64_t i = p->first_segment[b]; i < p->first_segment[b + 1] && a->self != 1; i++)
        DSC_TRY(dsc_op_axpby(queue, a->self, &p->segments[i].own, 0, &p->segments[i].own));
    return DSC_OK;
}

dsc_status dsc_plan_pack(dsc_average *a, dsc_queue *queue, int64_t b) {
    for (int c = 0; c < a->copy_count; c++)
        DSC_TRY(write_copy(a, queue, c, b));
    return keep_own(a, queue, b);
}

dsc_status dsc_plan_add(dsc_average *a, dsc_queue *queue, double factor, int c, int64_t b) {
    dsc_tensor bucket = dsc_plan_got(&a->plan, c, b);
    return add_bucket(a, queue, factor, &bucket, b);
}

#include "device/rig.h"

#include "base/rng.h"
#include "device/half.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

rig rigs[MAX_RIGS];
int rig_count;

enum { GUARD_PATTERN = 0xA5, OWN_THREADS = 5 };

int rig_open(const char *name, int threads) {
    rig *r = &rigs[rig_count];
    *r = (rig){.device = chosen_open(name, threads), .loose = strcmp(name, "cuda") == 0};
    if (dsc_queue_create(r->device, &r->q) != DSC_OK) {
        fprintf(stderr, "%s: %s\n", name, dsc_error_message());
        return -1;
    }
    snprintf(r->label, sizeof r->label, "%s, %d threads", name, threads);
    rig_count++;
    return 0;
}

/* A GPU is tested where it is asked for only. */
static int open_host_devices(void) {
    static const struct {
        const char *name;
        int threads;
    } devices[] = {{"ref", 1},
                   {"cpu", 1},
                   {"cpu", 2},
                   /* without oneDNN, and on fewer instructions */
                   {"cpu:plain", 1},
                   {"cpu:plain", 2},
                   {"cpu:avx2", 2},
                   {"cpu:base", 2}};
    int failed = 0;
    for (size_t i = 0; !failed && i < sizeof devices / sizeof devices[0]; i++)
        failed = rig_open(devices[i].name, devices[i].threads);
    return failed;
}

int rigs_open(void **state) {
    (void)state;
    rig_count = 0;
    omp_set_num_threads(OWN_THREADS);
    if (!chosen())
        return open_host_devices();
    return rig_open("ref", 1) || rig_open(chosen_exact_or(NULL), 1);
}

int rigs_open_loose(void **state) {
    int failed = rigs_open(state);
    if (!failed && chosen() && strcmp(chosen(), chosen_exact_or(NULL)) != 0)
        failed = rig_open(chosen(), 1);
    return failed;
}

int rig_convolves(const rig *r, dsc_dtype dtype) {
    return dsc_device_is_host(r->device) || dtype != DSC_F64;
}

int rigs_close(void **state) {
    (void)state;
    size_t left = 0;
    for (int i = 0; i < rig_count; i++) {
        dsc_queue_destroy(&rigs[i].q); /* with memory of its own */
        left += dsc_device_bytes(rigs[i].device);
        dsc_device_destroy(&rigs[i].device);
    }
    rig_count = 0;
    int threads = omp_get_max_threads();
    if (threads != OWN_THREADS)
        fprintf(stderr, "OpenMP is set to %d threads instead of %d\n", threads, OWN_THREADS);
    return left != 0 || threads != OWN_THREADS; /* a test that passed has freed its memory */
}

void *test_array(int64_t count, size_t size) {
    void *p = calloc((size_t)(count > 0 ? count : 1), size);
    assert_non_null(p);
    return p;
}

/* Everything in the block as bytes: guard, contents, guard. */
static dsc_tensor whole_block(const place *p) {
    int64_t bytes = (int64_t)dsc_tensor_bytes(&p->t) + 2 * GUARD_BYTES;
    return dsc_tensor_view(p->t.device, p->block, DSC_U8, 1, &bytes);
}

place place_make(const rig *r, dsc_dtype dtype, int ndim, const int64_t *dim) {
    place p = {.t = dsc_tensor_view(r->device, NULL, dtype, ndim, dim)};
    size_t bytes = dsc_tensor_bytes(&p.t);
    assert_ok(dsc_device_alloc(r->device, bytes + 2 * GUARD_BYTES, &p.block));
    p.t.data = (char *)p.block + GUARD_BYTES;
    dsc_tensor all = whole_block(&p);
    assert_ok(dsc_op_fill(r->q, GUARD_PATTERN, &all));
    return p;
}

place place_of(const rig *r, dsc_dtype dtype, int ndim, const int64_t *dim, const double *values) {
    place p = place_make(r, dtype, ndim, dim);
    place_write(r, &p, values);
    return p;
}

void place_free(place *p) {
    dsc_device_free(p->t.device, &p->block);
}

static void encode(dsc_dtype dtype, double value, void *out) {
    switch (dtype) {
    case DSC_F32:
        *(float *)out = (float)value;
        break;
    case DSC_F64:
        *(double *)out = value;
        break;
    case DSC_BF16:
        *(uint16_t *)out = dsc_bf16_from_double(value);
        break;
    case DSC_F16:
        *(uint16_t *)out = dsc_f16_from_double(value);
        break;
    case DSC_I32:
        *(int32_t *)out = (int32_t)value;
        break;
    case DSC_I64:
        *(int64_t *)out = (int64_t)value;
        break;
    case DSC_U8:
        *(uint8_t *)out = (uint8_t)value;
        break;
    }
}

static double decode(dsc_dtype dtype, const void *in) {
    switch (dtype) {
    case DSC_F32:
        return *(const float *)in;
    case DSC_F64:
        return *(const double *)in;
    case DSC_BF16:
        return dsc_bf16_to_float(*(const uint16_t *)in);
    case DSC_F16:
        return dsc_f16_to_float(*(const uint16_t *)in);
    case DSC_I32:
        return *(const int32_t *)in;
    case DSC_I64:
        return (double)*(const int64_t *)in;
    case DSC_U8:
        return *(const uint8_t *)in;
    }
    return NAN;
}

void place_write(const rig *r, place *p, const double *values) {
    size_t size = dsc_dtype_size(p->t.dtype), bytes = dsc_tensor_bytes(&p->t);
    char *host = test_array((int64_t)bytes, 1);
    for (int64_t i = 0; i < dsc_tensor_count(&p->t); i++)
        encode(p->t.dtype, values[i], host + (size_t)i * size);
    assert_ok(dsc_tensor_upload(r->q, host, bytes, &p->t));
    assert_ok(dsc_queue_sync(r->q));
    free(host);
}

void place_fill(const rig *r, place *p, double value) {
    assert_ok(dsc_op_fill(r->q, value, &p->t));
}

void place_read(const rig *r, const place *p, double *values) {
    size_t size = dsc_dtype_size(p->t.dtype), bytes = dsc_tensor_bytes(&p->t);
    char *host = test_array((int64_t)bytes, 1);
    assert_ok(dsc_tensor_download(r->q, &p->t, bytes, host));
    assert_ok(dsc_queue_sync(r->q));
    for (int64_t i = 0; i < dsc_tensor_count(&p->t); i++)
        values[i] = decode(p->t.dtype, host + (size_t)i * size);
    free(host);
}

double place_get(const rig *r, const place *p, int64_t i) {
    double *values = test_array(dsc_tensor_count(&p->t), sizeof *values);
    place_read(r, p, values);
    double value = values[i];
    free(values);
    return value;
}

void place_check_guards(const rig *r, const place *p, const char *what) {
    dsc_tensor all = whole_block(p);
    size_t bytes = dsc_tensor_bytes(&all), inside = dsc_tensor_bytes(&p->t);
    uint8_t *host = test_array((int64_t)bytes, 1);
    assert_ok(dsc_tensor_download(r->q, &all, bytes, host));
    assert_ok(dsc_queue_sync(r->q));
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (host[i] != GUARD_PATTERN)
            fail_msg("%s: %s: written %zu bytes in front of it", r->label, what, GUARD_BYTES - i);
        if (host[GUARD_BYTES + inside + i] != GUARD_PATTERN)
            fail_msg("%s: %s: written %zu bytes behind it", r->label, what, i);
    }
    free(host);
}

void place_expect(const rig *r, const place *p, const double *values, const char *what) {
    int64_t count = dsc_tensor_count(&p->t);
    double *got = test_array(count, sizeof *got);
    place_read(r, p, got);
    for (int64_t i = 0; i < count; i++)
        if (got[i] != values[i] && !(isnan(got[i]) && isnan(values[i])))
            fail_msg("%s: %s[%lld] is %.17g instead of %.17g", r->label, what, (long long)i, got[i],
                     values[i]);
    free(got);
    place_check_guards(r, p, what);
}

void random_values(uint64_t stream, int64_t count, double *values) {
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, stream);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(2 * dsc_rng_uniform(&rng) - 1);
}

void random_integers(uint64_t stream, int limit, int64_t count, double *values) {
    dsc_rng rng = dsc_rng_start(2, DSC_RNG_TEST, 0, stream);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)dsc_rng_below(&rng, (uint32_t)(2 * limit + 1)) - limit;
}

double dtype_eps(dsc_dtype dtype) {
    return dtype == DSC_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
}

void place_expect_near(const rig *r, const place *p, const double *want, const double *limit,
                       const char *what) {
    int64_t count = dsc_tensor_count(&p->t);
    double *got = test_array(count, sizeof *got);
    place_read(r, p, got);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= limit[i]))
            fail_msg("%s, %s: %s[%lld] is %.9g instead of %.9g (limit %.3g)", r->label,
                     dsc_dtype_name(p->t.dtype), what, (long long)i, got[i], want[i], limit[i]);
    free(got);
    place_check_guards(r, p, what);
}

/* base: errors, memory, random numbers. */
#include "test.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/registry.h"
#include "base/rng.h"
#include "base/versioned.h"
#include "descent/log.h"
#include "descent/random.h"
#include "descent/version.h"

#include <math.h>
#include <stdlib.h>

static dsc_status inner(int value) {
    if (value > 3)
        return DSC_FAIL(DSC_E_INVALID, "value %d: must be at most 3", value);
    return DSC_OK;
}

static dsc_status outer(int value) {
    DSC_TRY(inner(value));
    return DSC_OK;
}

static void test_error(void **state) {
    (void)state;
    assert_ok(outer(3));
    assert_fails(DSC_E_INVALID, "value 4: must be at most 3", outer(4));
    const char *newline = strchr(dsc_error_trace(), '\n');
    assert_non_null(newline); /* two places: where it was raised and where it was passed on */
    dsc_error_set_rank(7);
    dsc_status status = dsc_error_prefix(outer(5), "config line %d", 2);
    assert_int_equal(status, DSC_E_INVALID);
    assert_string_equal(dsc_error_message(), "rank 7: config line 2: value 5: must be at most 3");
    dsc_error_set_rank(-1);
    assert_string_equal(dsc_status_text(DSC_E_MEMORY), "out of memory");
}

static void test_error_is_bounded(void **state) {
    (void)state;
    static char huge[10000];
    memset(huge, 'x', sizeof huge - 1);
    assert_int_equal(DSC_FAIL(DSC_E_IO, "%s", huge), DSC_E_IO);
    assert_true(strlen(dsc_error_message()) < 4096);
    for (int i = 0; i < 1000; i++)
        dsc_error_pass(DSC_E_IO, __FILE__, __LINE__);
    assert_true(strlen(dsc_error_trace()) < 4096);
    assert_int_equal(dsc_error_prefix(DSC_E_IO, "%s", huge), DSC_E_IO);
}

static void test_memory(void **state) {
    (void)state;
    double *p;
    assert_ok(dsc_memory_alloc(5, sizeof *p, &p));
    assert_int_equal((uintptr_t)p % DSC_ALIGNMENT, 0);
    for (int i = 0; i < 5; i++)
        assert_true(p[i] == 0);
    dsc_memory_free(&p);
    assert_null(p);
    dsc_memory_free(&p);
    assert_fails(DSC_E_MEMORY, "cannot allocate", dsc_memory_alloc(INT64_MAX, 16, &p));
    assert_fails(DSC_E_MEMORY, "cannot allocate", dsc_memory_alloc(-1, 1, &p));
    dsc_memory_fail_at(2);
    char *a, *b;
    assert_ok(dsc_memory_strdup("one", &a));
    assert_fails(DSC_E_MEMORY, "cannot allocate", dsc_memory_strdup("two", &b));
    assert_string_equal(a, "one");
    dsc_memory_free(&a);
    int *list = NULL;
    int64_t capacity = 0;
    for (int i = 0; i < 100; i++) {
        assert_ok(dsc_memory_grow(&list, &capacity, i + 1, sizeof *list));
        list[i] = i;
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(list[i], i);
    dsc_memory_free(&list);
}

/* Known answers published with the generator (Random123's kat_vectors). */
static void test_philox(void **state) {
    (void)state;
    const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    const uint32_t pi[6] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0};
    uint32_t out[4];
    dsc_rng_philox(zero, zero, out);
    assert_memory_equal(out, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), 16);
    dsc_rng_philox(ones, ones, out);
    assert_memory_equal(out, ((uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}), 16);
    dsc_rng_philox(pi, pi + 4, out);
    assert_memory_equal(out, ((uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), 16);
}

static void test_rng_streams(void **state) {
    (void)state;
    dsc_rng a = dsc_rng_start(42, DSC_RNG_TEST, 1, 2), b = dsc_rng_start(42, DSC_RNG_TEST, 1, 2);
    for (int i = 0; i < 9; i++)
        assert_int_equal(dsc_rng_u32(&a), dsc_rng_u32(&b));
    dsc_rng others[] = {dsc_rng_start(43, DSC_RNG_TEST, 1, 2),
                        dsc_rng_start(42 + (1ull << 32), DSC_RNG_TEST, 1, 2),
                        dsc_rng_start(42, DSC_RNG_INIT, 1, 2), dsc_rng_start(42, DSC_RNG_TEST, 2, 2),
                        dsc_rng_start(42, DSC_RNG_TEST, 1, 2 + (1ull << 32))};
    a = dsc_rng_start(42, DSC_RNG_TEST, 1, 2);
    uint32_t first = dsc_rng_u32(&a);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_not_equal(dsc_rng_u32(&others[i]), first);
}

static void test_random_words(void **state) {
    (void)state;
    uint32_t words[9];
    dsc_rng rng = dsc_rng_start(7, DSC_RNG_TEST, 1, 1ull << 33);
    dsc_random_words(7, DSC_RNG_TEST, 1, 1ull << 33, 9, words);
    for (int i = 0; i < 9; i++)
        assert_int_equal(words[i], dsc_rng_u32(&rng));
}

/* Mean and variance of n draws lie within 5 standard errors. */
static void test_rng_distributions(void **state) {
    (void)state;
    enum { N = 20000 };
    double sum = 0, square = 0, uniform = 0;
    int counts[7] = {0};
    for (int i = 0; i < N; i++) {
        dsc_rng r = dsc_rng_start(1, DSC_RNG_TEST, 0, (uint64_t)i);
        double x = dsc_rng_normal(&r);
        float u = dsc_rng_uniform(&r);
        assert_true(u >= 0 && u < 1);
        sum += x;
        square += x * x;
        uniform += u;
        counts[dsc_rng_below(&r, 7)]++;
    }
    assert_true(fabs(sum / N) < 5 / sqrt(N));
    assert_true(fabs(square / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(uniform / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    for (int i = 0; i < 7; i++)
        assert_true(abs(counts[i] - N / 7) < 5 * sqrt(N / 7.0));
}

typedef struct sample_options {
    size_t size;
    int a, b;
} sample_options;

/* A caller of an older header knows only `a`; one of a newer header more than the library. */
static void test_versioned(void **state) {
    (void)state;
    sample_options out = {sizeof out, 1, 2}, given = {offsetof(sample_options, b), 7, 8};
    assert_ok(dsc_versioned_read("sample", NULL, sizeof out, &out));
    assert_true(out.a == 1 && out.b == 2);
    assert_ok(dsc_versioned_read("sample", &given, sizeof out, &out));
    assert_true(out.size == sizeof out && out.a == 7 && out.b == 2);
    given.size = 0;
    assert_fails(DSC_E_INVALID, "dsc_sample_options_init",
                 dsc_versioned_read("sample", &given, sizeof out, &out));
    given.size = sizeof given + 8;
    assert_fails(DSC_E_INVALID, "this library knows", dsc_versioned_read("sample", &given, sizeof out, &out));
}

/* What a callback of the caller's reports: with a message of its own, or without any. */
static void test_error_of_callback(void **state) {
    (void)state;
    dsc_error_set_rank(2);
    unsigned before = dsc_error_count();
    dsc_status status = dsc_error_set(DSC_E_IO, "no %s", "disk");
    assert_int_equal(dsc_error_callback(status, before, "sample", "sample %d", 4), DSC_E_IO);
    assert_string_equal(dsc_error_message(), "rank 2: sample 4: no disk");
    before = dsc_error_count();
    assert_int_equal(dsc_error_callback(DSC_E_IO, before, "sample", "sample %d", 5), DSC_E_IO);
    dsc_error_set_rank(-1);
    assert_string_equal(dsc_error_message(),
                        "rank 2: sample 5: the caller's function `sample` returned DSC_E_IO (input or output "
                        "failed) without a message");
    before = dsc_error_count();
    assert_int_equal(dsc_error_callback((dsc_status)77, before, "out", NULL), 77);
    assert_string_equal(dsc_error_message(),
                        "the caller's function `out` returned a number (unknown status) without a message");
}

static const char *fruit(int i, const void **entry) {
    static const char *const names[] = {"apple", "pear", NULL};
    *entry = names[i];
    return names[i];
}

static void test_registry(void **state) {
    (void)state;
    static dsc_registry fruits = DSC_REGISTRY("fruit", fruit);
    static char names[DSC_REGISTRY_ROOM][16];
    char text[64];
    assert_fails(DSC_E_INVALID, "fruit 'pear' cannot be registered: there is one", /* before anything else */
                 dsc_registry_add(&fruits, "pear", names));
    assert_string_equal(dsc_registry_list(dsc_registry_names(&fruits), text, sizeof text), "apple, pear");
    assert_string_equal(dsc_registry_find(&fruits, "apples", 5), "apple");
    assert_null(dsc_registry_find(&fruits, "apples", 6));
    for (int i = 2; i < DSC_REGISTRY_ROOM; i++) {
        snprintf(names[i], sizeof names[i], "f%d", i);
        assert_ok(dsc_registry_add(&fruits, names[i], names[i]));
        assert_ptr_equal(dsc_registry_find(&fruits, names[i], strlen(names[i])), names[i]);
    }
    assert_fails(DSC_E_INVALID, "the table is full", dsc_registry_add(&fruits, "last", names));
    assert_string_equal(dsc_registry_list(dsc_registry_names(&fruits), text, 32),
                        "apple, pear, f2, f3, f4, ...");
}

static void keep_line(void *context, dsc_log_level level, const char *text) {
    snprintf(context, 64, "%d %s", (int)level, text);
}

static void test_log_and_version(void **state) {
    (void)state;
    char line[64] = "";
    dsc_log(DSC_LOG_INFO, "dropped");
    dsc_log_set_handler(keep_line, line);
    dsc_log(DSC_LOG_WARNING, "n = %d", 3);
    assert_string_equal(line, "2 n = 3");
    dsc_log_set_handler(NULL, NULL);
    assert_string_equal(dsc_version(), DSC_VERSION_STRING);
    assert_true(strlen(dsc_build_info()) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_error_is_bounded),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_rng_streams),
        cmocka_unit_test(test_random_words),
        cmocka_unit_test(test_rng_distributions),
        cmocka_unit_test(test_log_and_version),
        cmocka_unit_test(test_versioned),
        cmocka_unit_test(test_error_of_callback),
        cmocka_unit_test(test_registry),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}

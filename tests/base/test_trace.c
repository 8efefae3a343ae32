/* A trace: its file is JSON, spans of many threads are all there, and limits are kept. */
#include "base/trace.h"

#include "base/clock.h"
#include "base/error.h"
#include "test.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, SPANS = 1000, LIMIT = 1 << 30 };

static char path[] = "/tmp/descent-trace-XXXXXX";

static int new_file(void) {
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    return fd;
}

/* Reads the file, removes it and returns the number of spans and messages in it. */
static int64_t count_events(void) {
    json_error_t error;
    json_t *events = json_load_file(path, 0, &error), *event;
    int64_t count = 0;
    size_t i;
    if (!events)
        fail_msg("line %d: %s", error.line, error.text);
    json_array_foreach(events, i, event) {
        const char *kind = json_string_value(json_object_get(event, "ph"));
        count += strcmp(kind, "X") == 0 || strcmp(kind, "b") == 0;
        assert_int_equal(json_integer_value(json_object_get(event, "pid")), 4); /* rank 3 */
    }
    json_decref(events);
    unlink(path);
    memcpy(path + strlen(path) - 6, "XXXXXX", 6);
    return count;
}

static void *add_spans(void *argument) {
    for (int i = 0; i < SPANS; i++) {
        double now = dsc_clock_now();
        dsc_trace_span(DSC_TRACK_DATA, "prepare", now, now, i % 2 ? "rows" : NULL, i);
    }
    return argument;
}

static void test_threads(void **state) {
    pthread_t threads[THREADS];
    int64_t dropped = -1;
    (void)state;
    dsc_trace_span(DSC_TRACK_STEPS, "nobody listens", 0, 1, NULL, 0);
    assert_int_equal(dsc_trace_start(new_file(), 3, "a host", LIMIT), DSC_OK);
    assert_true(dsc_trace_is_on());
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_spans, NULL), 0);
    dsc_trace_message("gradients", "allreduce", dsc_clock_now(), dsc_clock_now(), 12);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(dsc_trace_stop(&dropped), DSC_OK);
    assert_false(dsc_trace_is_on());
    assert_int_equal(dropped, 0);
    assert_int_equal(count_events(), THREADS * SPANS + 1);
    dsc_trace_span(DSC_TRACK_STEPS, "nobody listens", 0, 1, NULL, 0);
}

static void test_one_at_a_time(void **state) {
    int64_t dropped;
    (void)state;
    assert_int_equal(dsc_trace_start(new_file(), 3, "", LIMIT), DSC_OK);
    assert_int_equal(dsc_trace_start(dup(2), 3, "", LIMIT), DSC_E_INVALID);
    assert_non_null(strstr(dsc_error_message(), "one at a time"));
    assert_int_equal(dsc_trace_stop(&dropped), DSC_OK);
    assert_int_equal(count_events(), 0);
}

/* What does not fit is dropped and counted, and the file is still whole. */
static void test_limit(void **state) {
    int64_t dropped = 0;
    const int all = 2 * DSC_TRACE_BUFFER;
    (void)state;
    assert_int_equal(dsc_trace_start(new_file(), 3, "", 10000), DSC_OK);
    for (int i = 0; i < all; i++)
        dsc_trace_span(DSC_TRACK_STEPS, "forward", dsc_clock_now(), dsc_clock_now(), "step", i);
    assert_int_equal(dsc_trace_stop(&dropped), DSC_OK);
    assert_true(dropped > 0);
    assert_int_equal(count_events() + dropped, all);
}

static void test_full_disk(void **state) {
    int64_t dropped;
    FILE *full = fopen("/dev/full", "w");
    (void)state;
    if (!full)
        skip();
    assert_int_equal(dsc_trace_start(dup(fileno(full)), 3, "", LIMIT), DSC_E_IO);
    fclose(full);
    assert_false(dsc_trace_is_on());
    assert_int_equal(dsc_trace_start(new_file(), 3, "", LIMIT), DSC_OK); /* another one can begin */
    assert_int_equal(dsc_trace_stop(&dropped), DSC_OK);
    assert_int_equal(count_events(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

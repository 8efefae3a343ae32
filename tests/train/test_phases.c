/* Time stamps of a device as phases: their times, and their spans in a trace. And CRC-32C of event files. */
#include "base/clock.h"
#include "base/trace.h"
#include "test.h"
#include "train/event_file.h"
#include "train/phases.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A step of 10 ms on a device whose clock is at `start`, in nanoseconds. */
static void fill(int64_t start, int64_t stamps[DSC_STAMP_COUNT]) {
    static const int ms[DSC_STAMP_COUNT] = {
        [DSC_STAMP_START] = 0,        [DSC_PHASE_FORWARD] = 2, [DSC_PHASE_BACKWARD] = 5,
        [DSC_PHASE_EXCHANGE] = 6,     [DSC_PHASE_FACTOR] = 7,  [DSC_PHASE_DECOMPOSE] = 8,
        [DSC_PHASE_PRECONDITION] = 9, [DSC_PHASE_UPDATE] = 10,
    };
    for (int i = 0; i < DSC_STAMP_COUNT; i++)
        stamps[i] = start + (int64_t)1000000 * ms[i];
}

static void test_times(void **state) {
    int64_t stamps[DSC_STAMP_COUNT];
    double ms[DSC_PHASE_COUNT] = {0}, decomposed[DSC_PHASE_COUNT] = {[DSC_PHASE_DECOMPOSE] = 50};
    (void)state;
    fill((int64_t)1 << 60, stamps);
    dsc_phases_read_stamps(stamps, 1, ms);
    assert_true(fabs(ms[DSC_PHASE_FORWARD] - 2) < 1e-9 && fabs(ms[DSC_PHASE_BACKWARD] - 3) < 1e-9);
    assert_true(fabs(ms[DSC_PHASE_PRECONDITION] - 2) < 1e-9 && fabs(ms[DSC_PHASE_UPDATE] - 1) < 1e-9);
    dsc_phases_read_stamps(stamps, 1, decomposed);
    assert_true(fabs(decomposed[DSC_PHASE_PRECONDITION] - 1) < 1e-9);
}

/* Steps are noticed late now and then, and the device's clock runs at another speed: spans of the device still follow
 * each other, as long as they are, and end before the host notices them. */
static void test_spans(void **state) {
    char path[] = "/tmp/descent-phases-XXXXXX";
    int64_t stamps[DSC_STAMP_COUNT], dropped;
    enum { STEPS = 50, PHASES = 6 };
    double ms[DSC_PHASE_COUNT] = {0}, noticed[STEPS], last = 0;
    dsc_phases phases = {.timed = 1, .traced = 1};
    (void)state;
    double before = dsc_clock_now(); /* the trace's own time begins after it */
    assert_int_equal(dsc_trace_start(mkstemp(path), 0, "", 1 << 30), DSC_OK);
    double origin = dsc_clock_now();
    for (int i = 0; i < STEPS; i++) {
        double end = 0.01 * (i + 1);
        noticed[i] = origin + end + (i % 7 == 3 ? 5e-3 : 1e-5);
        fill((int64_t)(1e15 + 1e9 * (end - 0.01) * 1.00002), stamps);
        dsc_phases_trace_stamps(&phases, i + 1, stamps, 1, noticed[i], ms);
    }
    assert_int_equal(dsc_trace_stop(&dropped), DSC_OK);
    json_t *events = json_load_file(path, 0, NULL), *event;
    size_t i, count = 0;
    assert_non_null(events);
    unlink(path);
    json_array_foreach(events, i, event) {
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        double begin = 1e-6 * json_number_value(json_object_get(event, "ts"));
        double length = 1e-6 * json_number_value(json_object_get(event, "dur"));
        const char *name = json_string_value(json_object_get(event, "name"));
        int64_t step = json_integer_value(json_object_get(json_object_get(event, "args"), "step"));
        assert_int_equal(step, (int64_t)(count / PHASES) + 1);
        assert_true(begin >= last - 1e-8);
        last = begin + length;
        assert_true(before + last <= noticed[step - 1] + 1e-3);
        if (strcmp(name, "backward") == 0)
            assert_true(fabs(length - 3e-3) < 1e-5);
        count++;
    }
    assert_int_equal(count, STEPS * PHASES);
    json_decref(events);
}

static void test_check_sum(void **state) {
    (void)state;
    assert_int_equal(dsc_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(dsc_crc32c("", 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_check_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The device that test programs run on: the one that each names, or that of the environment variable
 * DESCENT_TEST_DEVICE, say cuda; with DESCENT_TEST_TUNE=1 it times what it can choose from, and
 * DESCENT_TEST_GPU is the number of the GPU. A program whose device the machine lacks ends as skipped (exit
 * code 77).
 * What is about the CPU is left out then, by skip_on_chosen(). */
#ifndef DSC_TESTS_CHOSEN_H
#define DSC_TESTS_CHOSEN_H

#include "test.h"

#include "descent/device.h"

#include <stdlib.h>

/* The environment's device; NULL: none. */
static inline const char *chosen(void) {
    const char *name = getenv("DESCENT_TEST_DEVICE");
    return name && *name ? name : NULL;
}

static inline const char *chosen_or(const char *usual) {
    return chosen() ? chosen() : usual;
}

/* The same without TF32, for comparisons that expect float32's rounding. */
static inline const char *chosen_exact_or(const char *usual) {
    const char *name = chosen_or(usual);
    return strcmp(name, "cuda") == 0 ? "cuda:fp32" : name;
}

/* Creates a device of this name. */
static inline dsc_device *chosen_open(const char *name, int threads) {
    dsc_device_options options;
    dsc_device *device = NULL;
    dsc_device_options_init(&options);
    options.name = name;
    options.threads = threads;
    options.tune = getenv("DESCENT_TEST_TUNE") != NULL;
    if (getenv("DESCENT_TEST_GPU"))
        options.ordinal = atoi(getenv("DESCENT_TEST_GPU"));
    dsc_status status = dsc_device_create(&options, &device);
    if (status == DSC_E_UNSUPPORTED) {
        fprintf(stderr, "skipped: %s\n", dsc_error_message());
        exit(77);
    }
    assert_ok(status);
    return device;
}

/* 1: a GPU that tests/emulator plays, for which a lot of work is too much. */
static inline int chosen_is_emulated(const dsc_device *device) {
    return strstr(dsc_device_description(device), "emulated") != NULL;
}

/* Ends the program as skipped unless the environment's device is there. For programs of several ranks, before
 * they start to talk. */
static inline void chosen_or_skip(void) {
    if (!chosen())
        return;
    dsc_device *device = chosen_open(chosen(), 1);
    dsc_device_destroy(&device);
}

/* In a test: leaves it out when the environment has chosen a device. */
#define skip_on_chosen(why)                                                                                  \
    do {                                                                                                     \
        if (chosen()) {                                                                                      \
            print_message("left out on %s: %s\n", chosen(), why);                                            \
            skip();                                                                                          \
        }                                                                                                    \
    } while (0)

#endif

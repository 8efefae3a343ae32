/* What every test program includes: cmocka with the headers it needs, and a check of statuses that prints the
 * error. */
#ifndef DSC_TESTS_TEST_H
#define DSC_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "descent/status.h"

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        dsc_status assert_status_ = (call);                                                                  \
        if (assert_status_ != DSC_OK)                                                                        \
            fail_msg("%s: %s: %s\n%s", #call, dsc_status_text(assert_status_), dsc_error_message(),          \
                     dsc_error_trace());                                                                     \
    } while (0)

/* The call fails with this status, and its message contains `text`. */
#define assert_fails(status, text, call)                                                                     \
    do {                                                                                                     \
        dsc_status assert_status_ = (call);                                                                  \
        if (assert_status_ != (status))                                                                      \
            fail_msg("%s: status '%s' instead of '%s'", #call, dsc_status_text(assert_status_),              \
                     dsc_status_text(status));                                                               \
        if (!strstr(dsc_error_message(), (text)))                                                            \
            fail_msg("%s: message '%s' lacks '%s'", #call, dsc_error_message(), (text));                     \
    } while (0)

#endif

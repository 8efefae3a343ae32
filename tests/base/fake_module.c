/* Modules for test_module.c: what they return depends on how they are compiled. */
#include "base/module.h"

#include "descent/version.h"

#include <stddef.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION DSC_VERSION_STRING
#endif

DSC_MODULE_API const dsc_module *FAKE_FUNCTION(void);

const dsc_module *FAKE_FUNCTION(void) {
    static const int table = 42;
    static const dsc_module module = {.version = FAKE_VERSION, .name = FAKE_NAME, .table = &table};
#ifdef FAKE_NEEDS
    extern int dsc_fake_missing(void);
    return dsc_fake_missing() ? NULL : &module;
#else
    return &module;
#endif
}

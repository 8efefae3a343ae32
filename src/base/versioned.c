#include "base/versioned.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

static size_t size_of(const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

void dsc_versioned_init(void *options, size_t size, const void *defaults, size_t known) {
    if (size < sizeof size)
        return;
    memset(options, 0, size);
    memcpy(options, defaults, size < known ? size : known);
    memcpy(options, &size, sizeof size);
}

dsc_status dsc_versioned_read(const char *name, const void *given, size_t known, void *out) {
    if (!given)
        return DSC_OK;
    char type[64];
    snprintf(type, sizeof type, "%s_options", name);
    return dsc_versioned_define(type, given, known, out);
}

dsc_status dsc_versioned_define(const char *type, const void *given, size_t known, void *out) {
    size_t size = given ? size_of(given) : 0;
    if (size < sizeof size || size > known)
        return DSC_FAIL(
            DSC_E_INVALID,
            "dsc_%s of %zu bytes, this library knows %zu: start with dsc_%s_init, from the headers "
            "of the library that is linked",
            type, size, known, type);
    memcpy((char *)out + sizeof size, (const char *)given + sizeof size, size - sizeof size);
    return DSC_OK;
}

dsc_status dsc_versioned_check(const char *type, const void *result, size_t known) {
    size_t size = result ? size_of(result) : known;
    if (size < sizeof size || size > known)
        return DSC_FAIL(DSC_E_INVALID,
                        "a %s of %zu bytes, this library knows %zu: set its size to sizeof(%s), from the "
                        "headers of the library that is linked",
                        type, size, known, type);
    return DSC_OK;
}

void dsc_versioned_write(const void *own, void *result) {
    if (result)
        memcpy((char *)result + sizeof(size_t), (const char *)own + sizeof(size_t),
               size_of(result) - sizeof(size_t));
}

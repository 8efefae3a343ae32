#include "base/versioned.h"

#include "base/error.h"

#include <string.h>

dsc_status dsc_versioned_read(const char *name, const void *given, size_t known, void *out) {
    if (!given)
        return DSC_OK;
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > known)
        return DSC_FAIL(
            DSC_E_INVALID,
            "%s options of %zu bytes, this library knows %zu: fill them in with dsc_%s_options_init, "
            "from the headers of the library that is linked",
            name, size, known, name);
    memcpy((char *)out + sizeof size, (const char *)given + sizeof size, size - sizeof size);
    return DSC_OK;
}

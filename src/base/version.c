#include "descent/version.h"

#include "base/config.h"

const char *dsc_version(void) {
    return DSC_VERSION_STRING;
}

const char *dsc_build_info(void) {
    return DSC_BUILD_INFO;
}

/* The version of the library. */
#ifndef DSC_VERSION_H
#define DSC_VERSION_H

#include "descent/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_VERSION_MAJOR  0
#define DSC_VERSION_MINOR  2
#define DSC_VERSION_PATCH  0
#define DSC_VERSION_STRING "0.2.0"

/* The version of the library that was linked; DSC_VERSION_STRING is that of the headers. Both this string and
 * the next one are static. */
DSC_API const char *dsc_version(void);
/* One line with compiler, build type and libraries of the build. */
DSC_API const char *dsc_build_info(void);

#ifdef __cplusplus
}
#endif
#endif

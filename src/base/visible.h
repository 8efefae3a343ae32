/* Marks internal functions that the modules (base/module.h) call, so that libdescent.so exports them.
 *
 * They are not part of the library's interface: they may change in any version, and a module works only with
 * the library of the same version. */
#ifndef DSC_BASE_VISIBLE_H
#define DSC_BASE_VISIBLE_H

#define DSC_MODULE_API __attribute__((visibility("default")))

#endif

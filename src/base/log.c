#include "descent/log.h"

#include <stdarg.h>
#include <stdio.h>

static dsc_log_handler current_handler;
static void *current_context;

void dsc_log_set_handler(dsc_log_handler handler, void *context) {
    current_handler = handler;
    current_context = context;
}

void dsc_log(dsc_log_level level, const char *format, ...) {
    if (!current_handler)
        return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    current_handler(current_context, level, text);
}

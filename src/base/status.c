#include "base/context.h"

#include <stdarg.h>
#include <stdio.h>

shoal_status sh_fail(shoal_context *context, shoal_status status, const char *format,
                     ...) {
    if (context) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(context->message, sizeof context->message, format, arguments);
        va_end(arguments);
    }
    return status;
}

const char *shoal_version(void) {
    return SHOAL_VERSION;
}

const char *shoal_status_text(shoal_status status) {
    switch (status) {
    case SHOAL_OK: return "ok";
    case SHOAL_INVALID: return "invalid argument";
    case SHOAL_BAD_FILE: return "bad file";
    case SHOAL_IO: return "input or output failed";
    case SHOAL_NO_MEMORY: return "out of memory";
    }
    return "unknown status";
}

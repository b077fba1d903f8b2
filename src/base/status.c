#include "base/context.h"

#include <stdarg.h>
#include <stdio.h>

/* Messages quote file names and what stands in files of unknown origin: no character in
   them may command a terminal. In UTF-8 the controls from 0x80 on begin with 0xc2. */
static void mask_controls(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < ' ' || *c == 0x7f) {
            *c = '?';
        } else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) {
            *c++ = '?';
            *c = '?';
        }
}

shoal_status sh_fail(shoal_context *context, shoal_status status, const char *format,
                     ...) {
    if (context) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(context->message, sizeof context->message, format, arguments);
        va_end(arguments);
        mask_controls(context->message);
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
    case SHOAL_CANCELLED: return "cancelled";
    }
    return "unknown status";
}

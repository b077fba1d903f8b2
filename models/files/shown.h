/* Names from a file of unknown origin, made fit for a message. */
#ifndef SHOAL_MODELS_FILES_SHOWN_H
#define SHOAL_MODELS_FILES_SHOWN_H

#include "base/export.h"
typedef struct {
    char text[84];
} shown_name;

/* Printable ASCII; anything else is '?', and long names are cut with "...". Use it inside
   a call: sh_fail(context, status, "'%s'", sh_shown(name).text). */
SHOAL_PRIVATE shown_name sh_shown(const char *name);

#endif

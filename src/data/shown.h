/* Names from a file of unknown origin, made fit for a message. */
#ifndef SHOAL_DATA_SHOWN_H
#define SHOAL_DATA_SHOWN_H

typedef struct {
    char text[84];
} shown_name;

/* Printable ASCII; anything else is '?', and long names are cut with "...". Use it inside
   a call: fail(context, status, "'%s'", shown(name).text). */
shown_name shown(const char *name);

#endif

/* A whole JSON file of a model folder, with a limit on its size. */
#ifndef SHOAL_DATA_JSON_FILE_H
#define SHOAL_DATA_JSON_FILE_H

#include <jansson.h>

#include "data/tensors.h"

/* An object, duplicates refused; the caller gives it back with json_decref. */
shoal_status json_object_parse(shoal_context *context, const char *label,
                               const char *text, size_t size, json_t **root);
shoal_status json_object_read(shoal_context *context, const char *path, size_t largest,
                              json_t **root);

#endif

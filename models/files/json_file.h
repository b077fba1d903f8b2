/* A whole JSON file of a model folder, with a limit on its size. */
#ifndef SHOAL_MODELS_FILES_JSON_FILE_H
#define SHOAL_MODELS_FILES_JSON_FILE_H

#include <jansson.h>

#include "base/export.h"
#include "models/files/tensors.h"

/* An object, duplicates refused; the caller gives it back with json_decref. */
SHOAL_PRIVATE shoal_status sh_json_object_parse(shoal_context *context, const char *label,
                                                const char *text, size_t size,
                                                json_t **root);
SHOAL_PRIVATE shoal_status sh_json_object_read(shoal_context *context, const char *path,
                                               size_t largest, json_t **root);

#endif

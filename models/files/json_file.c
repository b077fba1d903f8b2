#include "models/files/json_file.h"

#include "models/files/shown.h"

shoal_status sh_json_object_parse(shoal_context *context, const char *label,
                                  const char *text, size_t size, json_t **root) {
    json_error_t error;
    *root = json_loadb(size ? text : "", size, JSON_REJECT_DUPLICATES, &error);
    if (!*root)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: is not JSON: line %d: %s", label,
                       error.line, sh_shown(error.text).text);
    if (json_is_object(*root))
        return SHOAL_OK;
    json_decref(*root);
    *root = NULL;
    return sh_fail(context, SHOAL_BAD_FILE, "%s: is not a JSON object", label);
}

shoal_status sh_json_object_read(shoal_context *context, const char *path, size_t largest,
                                 json_t **root) {
    file_map map;
    *root = NULL;
    shoal_status status = sh_file_map_open(context, path, &map);
    if (status != SHOAL_OK)
        return status;
    if (map.size > largest)
        status = sh_fail(context, SHOAL_BAD_FILE,
                         "%s: has %zu bytes, more than any such file (%zu)", path,
                         map.size, largest);
    else
        status =
            sh_json_object_parse(context, path, (const char *)map.bytes, map.size, root);
    sh_file_map_close(&map);
    return status;
}

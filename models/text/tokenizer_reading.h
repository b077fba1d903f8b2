/* Shared by the readers of tokenizer files: tokenizer_file.c (words, merges, added
   tokens, templates, folders) and tokenizer_rules.c (normalizers, pre-tokenizers, the
   pieces of Unigram). */
#ifndef SHOAL_MODELS_TEXT_TOKENIZER_READING_H
#define SHOAL_MODELS_TEXT_TOKENIZER_READING_H

#include <string.h>

#include "models/files/files.h"
#include "models/text/tokenizer.h"

/* A tokenizer whose file is being read. */
typedef struct {
    shoal_context *context;
    const char *label;
    shoal_tokenizer *to;
} reading;

static inline shoal_status refuse(const reading *r, const char *what, const char *name) {
    return sh_fail(r->context, SHOAL_BAD_FILE, "%s: %s '%s'", r->label, what,
                   sh_shown(name ? name : "?").text);
}

static inline const char *type_of(const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "(none)";
}

static inline bool is_type(const json_t *part, const char *type) {
    return strcmp(type_of(part), type) == 0;
}

/* A boolean setting; `otherwise` is its value if it is absent or null. */
static inline shoal_status read_flag(const reading *r, const json_t *part,
                                     const char *key, bool otherwise, bool *flag) {
    const json_t *value = json_object_get(part, key);
    *flag = otherwise;
    if (!value || json_is_null(value))
        return SHOAL_OK;
    if (!json_is_boolean(value))
        return refuse(r, "true or false is required for", key);
    *flag = json_is_true(value);
    return SHOAL_OK;
}

static inline bool read_id(const json_t *value, int32_t *id) {
    const json_int_t number = json_integer_value(value);
    *id = json_is_integer(value) && number >= 0 && number < INT32_MAX ? (int32_t)number
                                                                      : -1;
    return *id >= 0;
}

/* The parts "normalizer", "pre_tokenizer" (after the model) and "model" of a
   tokenizer.json. */
shoal_status sh_read_normalizer(const reading *r, const json_t *part);
shoal_status sh_read_pre(const reading *r, const json_t *part);
shoal_status sh_read_unigram(const reading *r, const json_t *model);

#endif

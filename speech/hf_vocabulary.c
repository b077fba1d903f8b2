/* Tokens of a Hugging Face folder. A vocabulary spells every byte as one character: bytes
   that print in Latin-1 are themselves, the other 68 are U+0100 and up in their order. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/files/json_file.h"
#include "models/files/shown.h"
#include "speech/hf_parts.h"

/* ---- Special tokens --------------------------------------------------------------- */

static shoal_status check_special(shoal_context *context, const char *label,
                                  const tokens *t, const char *name,
                                  const json_t *value) {
    const struct {
        const char *name;
        int32_t id;
    } specials[] = {
        {"<|endoftext|>", t->end_of_text}, {"<|startoftranscript|>", t->start},
        {"<|en|>", t->first_language},     {"<|translate|>", t->translate},
        {"<|transcribe|>", t->transcribe}, {"<|startoflm|>", t->start_lm},
        {"<|startofprev|>", t->previous},  {"<|nospeech|>", t->no_speech},
        {"<|nocaptions|>", t->no_speech},  {"<|notimestamps|>", t->no_timestamps},
        {"<|0.00|>", t->first_timestamp},
    };
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        if (strcmp(name, specials[i].name) == 0 &&
            !(json_is_integer(value) && json_integer_value(value) == specials[i].id))
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: token %s should be number %d in a model of %d tokens",
                           label, name, (int)specials[i].id, (int)t->count);
    return SHOAL_OK;
}

shoal_status sh_hf_check_added(shoal_context *context, const char *label,
                               const json_t *root, tokens *t) {
    shoal_status status = SHOAL_OK;
    json_t *object = (json_t *)(uintptr_t)root; /* jansson iterates over non-const only */
    void *i = json_object_iter(object);
    for (; i && status == SHOAL_OK; i = json_object_iter_next(object, i))
        status = check_special(context, label, t, json_object_iter_key(i),
                               json_object_iter_value(i));
    return status;
}

shoal_status sh_hf_check_tokenizer(shoal_context *context, const char *label,
                                   const json_t *root, tokens *t) {
    const json_t *added = json_object_get(root, "added_tokens");
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < json_array_size(added) && status == SHOAL_OK; i++) {
        const json_t *token = json_array_get(added, i);
        const char *name = json_string_value(json_object_get(token, "content"));
        if (name)
            status = check_special(context, label, t, name, json_object_get(token, "id"));
    }
    return status;
}

/* ---- Suppressed tokens ------------------------------------------------------------ */

typedef bool list_setter(tokens *t, const int32_t *ids, int64_t count);

static shoal_status read_ids(shoal_context *context, const char *label,
                             const json_t *root, const char *key, tokens *t,
                             list_setter *set) {
    const json_t *list = json_object_get(root, key);
    int32_t ids[TOKEN_SUPPRESS_MOST];
    size_t count = json_array_size(list);
    if (!list || json_is_null(list))
        return SHOAL_OK;
    bool good = json_is_array(list) && count <= TOKEN_SUPPRESS_MOST;
    for (size_t i = 0; i < count && good; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t id = json_integer_value(value);
        good = json_is_integer(value) && id >= 0 && id < t->count;
        ids[i] = (int32_t)(good ? id : 0);
    }
    if (!good || !set(t, ids, (int64_t)count))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: '%s' should be a short list of tokens", label, key);
    return SHOAL_OK;
}

shoal_status sh_hf_read_suppressed(shoal_context *context, const char *label,
                                   const json_t *root, tokens *t) {
    shoal_status status =
        read_ids(context, label, root, "suppress_tokens", t, sh_tokens_set_suppressed);
    return status == SHOAL_OK ? read_ids(context, label, root, "begin_suppress_tokens", t,
                                         sh_tokens_set_suppressed_first)
                              : status;
}

/* ---- Vocabulary ------------------------------------------------------------------- */

static bool prints_in_latin1(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

enum { SPELLINGS = 256 + 68 };

/* byte_of[c]: the byte that the character c spells, or -1. */
static void list_spellings(int16_t byte_of[SPELLINGS]) {
    int next = 256;
    for (int i = 0; i < SPELLINGS; i++)
        byte_of[i] = -1;
    for (int byte = 0; byte < 256; byte++)
        byte_of[prints_in_latin1(byte) ? byte : next++] = (int16_t)byte;
}

/* Characters up to U+07FF of well-formed UTF-8; anything longer spells no byte. */
static bool spelled_bytes(const int16_t byte_of[SPELLINGS], const char *text,
                          unsigned char *bytes, uint32_t *filled) {
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        int character = *c;
        if (*c >= 0xc0 && *c < 0xe0) {
            character = (*c & 0x1f) << 6 | (c[1] & 0x3f);
            c++;
        } else if (*c >= 0x80) {
            return false;
        }
        if (character >= SPELLINGS || byte_of[character] < 0)
            return false;
        bytes[(*filled)++] = (unsigned char)byte_of[character];
    }
    return true;
}

/* spellings: [end_of_text], by id. */
static shoal_status list_tokens(shoal_context *context, const char *label,
                                json_t *vocabulary, const tokens *t,
                                const char **spellings) {
    void *i = json_object_iter(vocabulary);
    for (; i; i = json_object_iter_next(vocabulary, i)) {
        const char *text = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= t->count)
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: token '%s' should have a number below %d", label,
                           sh_shown(text).text, (int)t->count);
        if (id >= t->end_of_text)
            continue;
        if (spellings[id])
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: tokens '%s' and '%s' are both %d", label,
                           sh_shown(spellings[id]).text, sh_shown(text).text, (int)id);
        spellings[id] = text;
    }
    return SHOAL_OK;
}

static shoal_status spell_tokens(shoal_context *context, const char *label,
                                 const char **spellings, unsigned char *bytes,
                                 uint32_t *begin, tokens *t) {
    int16_t byte_of[SPELLINGS];
    uint32_t filled = 0;
    list_spellings(byte_of);
    for (int32_t id = 0; id < t->end_of_text; id++) {
        begin[id] = filled;
        if (!spellings[id])
            return sh_fail(context, SHOAL_BAD_FILE, "%s: token %d is missing", label,
                           (int)id);
        if (!spelled_bytes(byte_of, spellings[id], bytes, &filled))
            return sh_fail(context, SHOAL_BAD_FILE, "%s: token %d ('%s') spells no bytes",
                           label, (int)id, sh_shown(spellings[id]).text);
    }
    for (int32_t id = t->end_of_text; id <= t->count; id++)
        begin[id] = filled;
    t->bytes = bytes;
    t->begin = begin;
    return SHOAL_OK;
}

shoal_status sh_hf_parse_vocabulary(shoal_context *context, const char *label,
                                    const char *text, size_t size, unsigned char *bytes,
                                    uint32_t *begin, tokens *t) {
    json_t *root;
    shoal_status status = sh_json_object_parse(context, label, text, size, &root);
    if (status != SHOAL_OK)
        return status;
    json_t *inner = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *vocabulary = json_is_object(inner) ? inner : root;
    size_t room = (size_t)t->end_of_text * sizeof(char *);
    const char **spellings = sh_allocate(context, room);
    if (spellings) {
        memset(spellings, 0, room);
        status = list_tokens(context, label, vocabulary, t, spellings);
        if (status == SHOAL_OK)
            status = spell_tokens(context, label, spellings, bytes, begin, t);
        sh_release(context, spellings);
    } else {
        status = SHOAL_NO_MEMORY;
    }
    json_decref(root);
    return status;
}

/* Hugging Face folders of a Whisper model: configuration, weights and lists of tokens. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "speech/audio/mel.h"
#include "speech/whisper/whisper_file.h"

/* ---- config.json ------------------------------------------------------------------ */

static shoal_status read_config(shoal_context *context, const char *label,
                                const json_t *root, whisper_sizes *sizes) {
    int32_t feed_forward[2];
    const struct {
        const char *key;
        int32_t *size;
    } fields[] = {{"vocab_size", &sizes->vocabulary},
                  {"max_source_positions", &sizes->audio_positions},
                  {"d_model", &sizes->audio_width},
                  {"encoder_attention_heads", &sizes->audio_heads},
                  {"encoder_layers", &sizes->audio_layers},
                  {"max_target_positions", &sizes->text_positions},
                  {"d_model", &sizes->text_width},
                  {"decoder_attention_heads", &sizes->text_heads},
                  {"decoder_layers", &sizes->text_layers},
                  {"num_mel_bins", &sizes->mels},
                  {"encoder_ffn_dim", &feed_forward[0]},
                  {"decoder_ffn_dim", &feed_forward[1]}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = json_object_get(root, fields[i].key);
        const json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || number > INT32_MAX)
            return sh_fail(context, SHOAL_BAD_FILE, "%s: the integer '%s' is missing",
                           label, fields[i].key);
        *fields[i].size = (int32_t)number;
    }
    TRY(sh_whisper_sizes_check(context, label, sizes));
    /* Refuses settings that need other arithmetic than this code has. */
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const json_t *activation = json_object_get(root, "activation_function");
    const char *name = json_string_value(activation);
    if (!type || strcmp(type, "whisper") != 0)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: its model_type is not 'whisper'",
                       label);
    if (activation && (!name || strcmp(name, "gelu") != 0))
        return sh_fail(context, SHOAL_BAD_FILE, "%s: its activation is not 'gelu'",
                       label);
    if (json_is_true(json_object_get(root, "scale_embedding")))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: scale_embedding is true, which is not supported", label);
    const int64_t wide = 4 * (int64_t)sizes->audio_width;
    if (feed_forward[0] != wide || feed_forward[1] != wide)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: its feed-forward width is not 4 times d_model", label);
    return SHOAL_OK;
}

shoal_status sh_hf_parse_config(shoal_context *context, const char *label,
                                const char *text, size_t size, whisper_sizes *sizes) {
    json_t *root;
    TRY(sh_json_object_parse(context, label, text, size, &root));
    const shoal_status status = read_config(context, label, root, sizes);
    json_decref(root);
    return status;
}

/* ---- Names of weights ------------------------------------------------------------- */

typedef struct {
    const char *theirs, *ours;
} renaming;

static const renaming outside_layers[] =
    {{"encoder.embed_positions.weight", "encoder.positional_embedding"},
     {"encoder.layer_norm.", "encoder.ln_post."},
     {"encoder.conv", "encoder.conv"},
     {"decoder.embed_tokens.weight", "decoder.token_embedding.weight"},
     {"decoder.embed_positions.weight", "decoder.positional_embedding"},
     {"decoder.layer_norm.", "decoder.ln."}};

static const renaming inside_layers[] = {{"self_attn.q_proj.", "attn.query."},
                                         {"self_attn.k_proj.", "attn.key."},
                                         {"self_attn.v_proj.", "attn.value."},
                                         {"self_attn.out_proj.", "attn.out."},
                                         {"self_attn_layer_norm.", "attn_ln."},
                                         {"encoder_attn.q_proj.", "cross_attn.query."},
                                         {"encoder_attn.k_proj.", "cross_attn.key."},
                                         {"encoder_attn.v_proj.", "cross_attn.value."},
                                         {"encoder_attn.out_proj.", "cross_attn.out."},
                                         {"encoder_attn_layer_norm.", "cross_attn_ln."},
                                         {"fc1.", "mlp.0."},
                                         {"fc2.", "mlp.2."},
                                         {"final_layer_norm.", "mlp_ln."}};

/* Replaces the beginning of `name` by the table's row that fits, after `prefix`. */
static bool rename_start(const renaming *rows, size_t count, const char *prefix,
                         const char *name, char *canonical, size_t size) {
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(rows[i].theirs);
        if (strncmp(name, rows[i].theirs, length) == 0) {
            int printed =
                snprintf(canonical, size, "%s%s%s", prefix, rows[i].ours, name + length);
            return printed > 0 && (size_t)printed < size;
        }
    }
    return false;
}

static const char *after(const char *text, const char *prefix) {
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

bool sh_hf_canonical_name(const char *name, char *canonical, size_t size) {
    enum { SIDE = 8 }; /* "encoder." and "decoder." */
    const char *inner = after(name, "model.");
    inner = inner ? inner : name; /* a model saved without its head has no "model." */
    bool known_side = after(inner, "encoder.") || after(inner, "decoder.");
    const char *number = known_side ? after(inner + SIDE, "layers.") : NULL;
    if (!number)
        return rename_start(outside_layers, sizeof outside_layers / sizeof(renaming), "",
                            inner, canonical, size);
    size_t digits = strspn(number, "0123456789");
    char prefix[WEIGHT_NAME];
    if (digits == 0 || digits > 3 || number[digits] != '.')
        return false;
    snprintf(prefix, sizeof prefix, "%.*sblocks.%.*s.", SIDE, inner, (int)digits, number);
    return rename_start(inside_layers, sizeof inside_layers / sizeof(renaming), prefix,
                        number + digits + 1, canonical, size);
}

static shoal_status take_weights(shoal_context *context, const char *label,
                                 whisper_file *file) {
    struct whisper_source *source = file->source;
    int64_t most = sh_whisper_tensor_count(&file->sizes);
    for (int64_t i = 0; i < sh_safetensors_count(source->weights); i++) {
        const file_tensor *tensor = sh_safetensors_at(source->weights, i);
        char name[WEIGHT_NAME];
        if (!sh_hf_canonical_name(tensor->name, name, sizeof name))
            continue;
        if (file->tensor_count == most)
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: has more tensors than a model of its size ('%s')", label,
                           sh_shown(tensor->name).text);
        int64_t index = file->tensor_count++;
        source->tensors[index] = *tensor;
        source->tensors[index].name = strcpy(source->names[index], name);
    }
    sh_file_tensors_sort(source->tensors, file->tensor_count);
    return sh_whisper_tensors_check(context, label, &file->sizes, source->tensors,
                                    file->tensor_count);
}

/* ---- Special tokens --------------------------------------------------------------- */

static shoal_status check_special(shoal_context *context, const char *label,
                                  const tokens *t, const char *name,
                                  const json_t *value) {
    const struct {
        const char *name;
        int32_t id;
    } specials[] =
        {{"<|endoftext|>", t->end_of_text}, {"<|startoftranscript|>", t->start},
         {"<|en|>", t->first_language},     {"<|translate|>", t->translate},
         {"<|transcribe|>", t->transcribe}, {"<|startoflm|>", t->start_lm},
         {"<|startofprev|>", t->previous},  {"<|nospeech|>", t->no_speech},
         {"<|nocaptions|>", t->no_speech},  {"<|notimestamps|>", t->no_timestamps},
         {"<|0.00|>", t->first_timestamp}};
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        if (strcmp(name, specials[i].name) == 0 &&
            !(json_is_integer(value) && json_integer_value(value) == specials[i].id))
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: token %s must have number %d in a model of %d tokens",
                           label, name, (int)specials[i].id, (int)t->count);
    return SHOAL_OK;
}

shoal_status sh_hf_check_added(shoal_context *context, const char *label,
                               const json_t *root, tokens *t) {
    json_t *object = (json_t *)(uintptr_t)root; /* jansson iterates over non-const only */
    void *i = json_object_iter(object);
    for (; i; i = json_object_iter_next(object, i))
        TRY(check_special(context, label, t, json_object_iter_key(i),
                          json_object_iter_value(i)));
    return SHOAL_OK;
}

shoal_status sh_hf_check_tokenizer(shoal_context *context, const char *label,
                                   const json_t *root, tokens *t) {
    const json_t *added = json_object_get(root, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        const char *name = json_string_value(json_object_get(token, "content"));
        if (name)
            TRY(check_special(context, label, t, name, json_object_get(token, "id")));
    }
    return SHOAL_OK;
}

/* ---- Suppressed tokens ------------------------------------------------------------ */

static shoal_status read_ids(shoal_context *context, const char *label,
                             const json_t *root, const char *key, tokens *t,
                             bool set(tokens *t, const int32_t *ids, int64_t count)) {
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
        return sh_fail(context, SHOAL_BAD_FILE, "%s: '%s' must be a short list of tokens",
                       label, key);
    return SHOAL_OK;
}

shoal_status sh_hf_read_suppressed(shoal_context *context, const char *label,
                                   const json_t *root, tokens *t) {
    TRY(read_ids(context, label, root, "suppress_tokens", t, sh_tokens_set_suppressed));
    return read_ids(context, label, root, "begin_suppress_tokens", t,
                    sh_tokens_set_suppressed_first);
}

/* ---- Vocabulary ------------------------------------------------------------------- */

/* A vocabulary spells every byte as one character: bytes that print in Latin-1 are
   themselves, the other 68 are U+0100 and up in their order. */

enum { SPELLINGS = 256 + 68 };

/* spellings: [end_of_text], zeros, for the tokens by id. */
static shoal_status spell_tokens(shoal_context *context, const char *label,
                                 json_t *vocabulary, const char **spellings,
                                 unsigned char *bytes, uint32_t *begin, tokens *t) {
    int16_t byte_of[SPELLINGS]; /* the byte that a character spells, or -1 */
    uint32_t filled = 0;
    void *i = json_object_iter(vocabulary);
    for (; i; i = json_object_iter_next(vocabulary, i)) {
        const char *text = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= t->count)
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: token '%s' must have a number below %d", label,
                           sh_shown(text).text, (int)t->count);
        if (id < t->end_of_text && spellings[id])
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: tokens '%s' and '%s' both have number %d", label,
                           sh_shown(spellings[id]).text, sh_shown(text).text, (int)id);
        if (id < t->end_of_text)
            spellings[id] = text;
    }
    memset(byte_of, -1, sizeof byte_of);
    for (int byte = 0, next = 256; byte < 256; byte++) {
        const bool prints = (byte >= '!' && byte <= '~') ||
                            (byte >= 0xa1 && byte != 0xad);
        byte_of[prints ? byte : next++] = (int16_t)byte;
    }
    for (int32_t id = 0; id < t->end_of_text; id++) {
        const unsigned char *c = (const unsigned char *)spellings[id];
        begin[id] = filled;
        if (!c)
            return sh_fail(context, SHOAL_BAD_FILE, "%s: token %d is missing", label,
                           (int)id);
        /* Characters up to U+07FF of well-formed UTF-8; anything longer spells no
           byte. */
        for (int character; *c; c++) {
            character = *c < 0x80 ? *c : SPELLINGS;
            if (*c >= 0xc0 && *c < 0xe0) {
                character = (*c & 0x1f) << 6 | (c[1] & 0x3f);
                c++;
            }
            if (character >= SPELLINGS || byte_of[character] < 0)
                return sh_fail(context, SHOAL_BAD_FILE,
                               "%s: token %d ('%s') is not a valid spelling of bytes",
                               label, (int)id, sh_shown(spellings[id]).text);
            bytes[filled++] = (unsigned char)byte_of[character];
        }
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
    TRY(sh_json_object_parse(context, label, text, size, &root));
    json_t *inner = json_object_get(json_object_get(root, "model"), "vocab");
    const size_t room = (size_t)t->end_of_text * sizeof(char *);
    const char **spellings = sh_allocate(context, room);
    shoal_status status = SHOAL_NO_MEMORY;
    if (spellings) {
        memset(spellings, 0, room);
        status = spell_tokens(context, label, json_is_object(inner) ? inner : root,
                              spellings, bytes, begin, t);
        sh_release(context, spellings);
    }
    json_decref(root);
    return status;
}

/* ---- The folder ------------------------------------------------------------------- */

enum {
    LARGEST_CONFIG = 1 << 20,
    LARGEST_VOCABULARY = 1 << 26 /* of a tokenizer.json, merges included */
};

typedef struct {
    shoal_context *context;
    const char *path;
    char name[PATH_MAX]; /* path of the file that is being read */
} folder;

/* Makes f->name the path of a file in the folder; true when it is there. */
static bool there(folder *f, const char *name) {
    int length = snprintf(f->name, sizeof f->name, "%s/%s", f->path, name);
    return length > 0 && (size_t)length < sizeof f->name && access(f->name, F_OK) == 0;
}

/* Pairs [layer, head]: as many as the decoder has heads at most. */
static shoal_status take_heads(folder *f, const json_t *root, whisper_file *file) {
    const whisper_sizes *sizes = &file->sizes;
    const json_t *list = json_object_get(root, "alignment_heads");
    const size_t count = json_array_size(list);
    const int64_t all = (int64_t)sizes->text_layers * sizes->text_heads;
    if (!list || json_is_null(list))
        return SHOAL_OK;
    bool good = json_is_array(list) && count <= FILE_HEADS_MOST && (int64_t)count <= all;
    for (size_t i = 0; i < count && good; i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *layer = json_array_get(pair, 0), *head = json_array_get(pair, 1);
        const json_int_t l = json_integer_value(layer), h = json_integer_value(head);
        good = json_array_size(pair) == 2 && json_is_integer(layer) &&
               json_is_integer(head) && l >= 0 && l < sizes->text_layers && h >= 0 &&
               h < sizes->text_heads;
        file->alignment[i] = (decoder_head){(int32_t)l, (int32_t)h};
    }
    if (!good)
        return sh_fail(
            f->context, SHOAL_BAD_FILE,
            "%s: 'alignment_heads' must be a short list of [layer, head] of the decoder",
            f->name);
    file->alignment_count = (int)count;
    return SHOAL_OK;
}

static shoal_status read_vocabulary(folder *f, const file_map *map, whisper_file *file) {
    /* Optional files of special tokens or lists; read NULL: of heads. */
    static const struct {
        const char *name;
        shoal_status (*read)(shoal_context *, const char *, const json_t *, tokens *);
    } files[] = {{"added_tokens.json", sh_hf_check_added},
                 {"tokenizer.json", sh_hf_check_tokenizer},
                 {"generation_config.json", sh_hf_read_suppressed},
                 {"generation_config.json", NULL}};
    TRY(sh_hf_parse_vocabulary(f->context, f->name, (const char *)map->bytes, map->size,
                               file->source->bytes, file->source->begin, &file->tokens));
    sh_whisper_file_finish_tokens(file);
    for (int i = 0; i < 4; i++) {
        json_t *root;
        if (!there(f, files[i].name))
            continue;
        TRY(sh_json_object_read(f->context, f->name, LARGEST_VOCABULARY, &root));
        const shoal_status status =
            files[i].read ? files[i].read(f->context, f->name, root, &file->tokens)
                          : take_heads(f, root, file);
        json_decref(root);
        TRY(status);
    }
    return SHOAL_OK;
}

shoal_status sh_hf_open(shoal_context *context, const char *path, whisper_file **file) {
    folder f = {.context = context, .path = path};
    whisper_sizes sizes;
    json_t *root;
    file_map map;
    *file = NULL;
    if (!there(&f, "config.json"))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is not a model folder: it has no config.json", path);
    TRY(sh_json_object_read(context, f.name, LARGEST_CONFIG, &root));
    shoal_status status = read_config(context, f.name, root, &sizes);
    json_decref(root);
    TRY(status);
    if (!there(&f, "vocab.json") && !there(&f, "tokenizer.json"))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has neither vocab.json nor tokenizer.json", path);
    TRY(sh_file_map_open(context, f.name, &map));
    /* Tokens have no more bytes than the vocabulary's text: its size is that of their
       room. */
    status = map.size > LARGEST_VOCABULARY
                 ? sh_fail(context, SHOAL_BAD_FILE, "%s: is too large for a vocabulary",
                           f.name)
                 : sh_whisper_file_allocate(context, &sizes, map.size, file);
    if (status == SHOAL_OK)
        status = read_vocabulary(&f, &map, *file);
    if (status == SHOAL_OK)
        status = there(&f, "model.safetensors") ||
                         there(&f, "model.safetensors.index.json")
                     ? sh_safetensors_open(f.context, f.name, &(*file)->source->weights)
                     : sh_fail(f.context, SHOAL_BAD_FILE,
                               "%s: has neither model.safetensors nor "
                               "model.safetensors.index.json",
                               f.path);
    if (status == SHOAL_OK)
        status = take_weights(f.context, f.name, *file);
    if (status == SHOAL_OK)
        sh_mel_filters((*file)->sizes.mels, (*file)->source->mel_filters);
    if (status != SHOAL_OK) {
        sh_whisper_file_close(*file);
        *file = NULL;
    }
    sh_file_map_close(&map);
    return status;
}

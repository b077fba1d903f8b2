/* The folder: configuration, weights and lists of tokens. The vocabulary's spelling of
   bytes is in hf_vocabulary.c. */
#define _GNU_SOURCE
#include "speech/hf.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/files/json_file.h"
#include "models/files/shown.h"
#include "speech/hf_parts.h"
#include "speech/mel.h"
#include "speech/speech_parts.h"

/* ---- config.json ------------------------------------------------------------------ */

static shoal_status read_size(shoal_context *context, const char *label,
                              const json_t *root, const char *key, int32_t *size) {
    const json_t *value = json_object_get(root, key);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number > INT32_MAX)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: '%s' should be there, as a whole number", label, key);
    *size = (int32_t)number;
    return SHOAL_OK;
}

/* What would make the arithmetic another one. */
static shoal_status check_variant(shoal_context *context, const char *label,
                                  const json_t *root, const speech_sizes *sizes,
                                  const int32_t feed_forward[2]) {
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
                       "%s: scale_embedding is true, which no published model has",
                       label);
    for (int i = 0; i < 2; i++)
        if (feed_forward[i] != 4 * (int64_t)sizes->audio_width)
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: its feed-forward layers are not 4 times d_model", label);
    return SHOAL_OK;
}

static shoal_status read_config(shoal_context *context, const char *label,
                                const json_t *root, speech_sizes *sizes) {
    int32_t feed_forward[2];
    const struct {
        const char *key;
        int32_t *size;
    } fields[] = {
        {"vocab_size", &sizes->vocabulary},
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
        {"decoder_ffn_dim", &feed_forward[1]},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        shoal_status status =
            read_size(context, label, root, fields[i].key, fields[i].size);
        if (status != SHOAL_OK)
            return status;
    }
    shoal_status status = sh_speech_sizes_check(context, label, sizes);
    return status == SHOAL_OK ? check_variant(context, label, root, sizes, feed_forward)
                              : status;
}

shoal_status sh_hf_parse_config(shoal_context *context, const char *label,
                                const char *text, size_t size, speech_sizes *sizes) {
    json_t *root;
    shoal_status status = sh_json_object_parse(context, label, text, size, &root);
    if (status != SHOAL_OK)
        return status;
    status = read_config(context, label, root, sizes);
    json_decref(root);
    return status;
}

/* ---- Names of weights ------------------------------------------------------------- */

typedef struct {
    const char *theirs, *ours;
} renaming;

static const renaming outside_layers[] = {
    {"encoder.embed_positions.weight", "encoder.positional_embedding"},
    {"encoder.layer_norm.", "encoder.ln_post."},
    {"encoder.conv", "encoder.conv"},
    {"decoder.embed_tokens.weight", "decoder.token_embedding.weight"},
    {"decoder.embed_positions.weight", "decoder.positional_embedding"},
    {"decoder.layer_norm.", "decoder.ln."},
};

static const renaming inside_layers[] = {
    {"self_attn.q_proj.", "attn.query."},
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
    {"final_layer_norm.", "mlp_ln."},
};

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
    char prefix[SPEECH_NAME];
    if (digits == 0 || digits > 3 || number[digits] != '.')
        return false;
    snprintf(prefix, sizeof prefix, "%.*sblocks.%.*s.", SIDE, inner, (int)digits, number);
    return rename_start(inside_layers, sizeof inside_layers / sizeof(renaming), prefix,
                        number + digits + 1, canonical, size);
}

static shoal_status take_weights(shoal_context *context, const char *label,
                                 speech_file *file) {
    struct speech_parts *source = file->source;
    int64_t most = sh_speech_tensor_count(&file->sizes);
    for (int64_t i = 0; i < sh_safetensors_count(source->weights); i++) {
        const file_tensor *tensor = sh_safetensors_at(source->weights, i);
        char name[SPEECH_NAME];
        if (!sh_hf_canonical_name(tensor->name, name, sizeof name))
            continue;
        if (file->tensor_count == most)
            return sh_fail(context, SHOAL_BAD_FILE,
                           "%s: has more tensors than a model of its sizes ('%s')", label,
                           sh_shown(tensor->name).text);
        int64_t index = file->tensor_count++;
        source->tensors[index] = *tensor;
        source->tensors[index].name = strcpy(source->names[index], name);
    }
    sh_file_tensors_sort(source->tensors, file->tensor_count);
    return sh_speech_tensors_check(context, label, &file->sizes, source->tensors,
                                   file->tensor_count);
}

/* ---- The folder ------------------------------------------------------------------- */

enum {
    LARGEST_CONFIG = 1 << 20,
    LARGEST_VOCABULARY = 1 << 26 /* of a tokenizer.json, merges included */
};

typedef struct {
    shoal_context *context;
    const char *path;
    char name[PATH_MAX]; /* of the file that was last spoken of */
} folder;

/* The path of a file in the folder; is it there? */
static bool there(folder *f, const char *name) {
    int length = snprintf(f->name, sizeof f->name, "%s/%s", f->path, name);
    return length > 0 && (size_t)length < sizeof f->name && access(f->name, F_OK) == 0;
}

static shoal_status open_weights(folder *f, safetensors **weights) {
    if (there(f, "model.safetensors") || there(f, "model.safetensors.index.json"))
        return sh_safetensors_open(f->context, f->name, weights);
    return sh_fail(f->context, SHOAL_BAD_FILE,
                   "%s: has neither model.safetensors nor model.safetensors.index.json",
                   f->path);
}

/* Reads an optional file of special tokens or lists. */
typedef shoal_status list_reader(shoal_context *context, const char *label,
                                 const json_t *root, tokens *t);

static shoal_status read_if_there(folder *f, const char *name, list_reader *read,
                                  tokens *t) {
    json_t *root;
    if (!there(f, name))
        return SHOAL_OK;
    shoal_status status =
        sh_json_object_read(f->context, f->name, LARGEST_VOCABULARY, &root);
    if (status != SHOAL_OK)
        return status;
    status = read(f->context, f->name, root, t);
    json_decref(root);
    return status;
}

static shoal_status read_vocabulary(folder *f, const file_map *map, speech_file *file) {
    struct speech_parts *source = file->source;
    shoal_status status =
        sh_hf_parse_vocabulary(f->context, f->name, (const char *)map->bytes, map->size,
                               source->bytes, source->begin, &file->tokens);
    if (status != SHOAL_OK)
        return status;
    sh_speech_file_finish_tokens(file);
    status = read_if_there(f, "added_tokens.json", sh_hf_check_added, &file->tokens);
    if (status == SHOAL_OK)
        status = read_if_there(f, "tokenizer.json", sh_hf_check_tokenizer, &file->tokens);
    if (status == SHOAL_OK)
        status = read_if_there(f, "generation_config.json", sh_hf_read_suppressed,
                               &file->tokens);
    return status;
}

/* The vocabulary's text bounds its tokens' bytes, so it is mapped before the block is
   allocated. */
static shoal_status read_folder(folder *f, const speech_sizes *sizes, const file_map *map,
                                speech_file **file) {
    shoal_status status = sh_speech_file_allocate(f->context, sizes, map->size, file);
    if (status == SHOAL_OK)
        status = read_vocabulary(f, map, *file);
    if (status == SHOAL_OK)
        status = open_weights(f, &(*file)->source->weights);
    if (status == SHOAL_OK)
        status = take_weights(f->context, f->name, *file);
    if (status == SHOAL_OK)
        sh_mel_filters((*file)->sizes.mels, (*file)->source->mel_filters);
    if (status != SHOAL_OK) {
        sh_speech_file_close(*file);
        *file = NULL;
    }
    return status;
}

static shoal_status open_vocabulary(folder *f, file_map *map) {
    if (!there(f, "vocab.json") && !there(f, "tokenizer.json"))
        return sh_fail(f->context, SHOAL_BAD_FILE,
                       "%s: has neither vocab.json nor tokenizer.json", f->path);
    shoal_status status = sh_file_map_open(f->context, f->name, map);
    if (status == SHOAL_OK && map->size > LARGEST_VOCABULARY) {
        sh_file_map_close(map);
        return sh_fail(f->context, SHOAL_BAD_FILE, "%s: is too large for a vocabulary",
                       f->name);
    }
    return status;
}

shoal_status sh_hf_open(shoal_context *context, const char *path, speech_file **file) {
    folder f = {.context = context, .path = path};
    speech_sizes sizes;
    json_t *root;
    file_map map;
    *file = NULL;
    if (!there(&f, "config.json"))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is no model folder: it has no config.json", path);
    shoal_status status = sh_json_object_read(context, f.name, LARGEST_CONFIG, &root);
    if (status != SHOAL_OK)
        return status;
    status = read_config(context, f.name, root, &sizes);
    json_decref(root);
    if (status == SHOAL_OK)
        status = open_vocabulary(&f, &map);
    if (status != SHOAL_OK)
        return status;
    status = read_folder(&f, &sizes, &map, file);
    sh_file_map_close(&map);
    return status;
}

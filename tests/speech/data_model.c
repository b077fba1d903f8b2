#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data_model.h"
#include "models/files/safetensors.h"
#include "speech/mel.h"

#include <cmocka.h>

/* ---- ggml ------------------------------------------------------------------------- */

enum { WIDTH = 4, TEXT_POSITIONS = 16, MELS = 80 };

whisper_sizes made_sizes(int32_t vocabulary) {
    return (whisper_sizes){.vocabulary = vocabulary,
                           .audio_positions = 1500,
                           .audio_width = WIDTH,
                           .audio_heads = 2,
                           .audio_layers = 1,
                           .text_positions = TEXT_POSITIONS,
                           .text_width = WIDTH,
                           .text_heads = 2,
                           .text_layers = 1,
                           .mels = MELS};
}

/* The block doubles when it is full; make_ggml cuts it to its size in the end. */
static void put(made_model *m, const void *bytes, size_t size) {
    size_t room = 1;
    while (room < m->size)
        room *= 2;
    if (m->size == 0 || m->size + size > room) {
        while (room < m->size + size)
            room *= 2;
        m->bytes = realloc(m->bytes, room);
        assert_non_null(m->bytes);
    }
    memcpy(m->bytes + m->size, bytes, size);
    m->size += size;
}

static void put_int(made_model *m, int32_t value) {
    put(m, &value, sizeof value);
}

/* Any values do; halves of these bits are ordinary numbers. */
static void put_tensor(made_model *m, const char *name, int type, int rank,
                       const int32_t *inner_first) {
    int64_t elements = 1;
    put_int(m, rank);
    put_int(m, (int32_t)strlen(name));
    put_int(m, type);
    for (int i = 0; i < rank; i++) {
        put_int(m, inner_first[i]);
        elements *= inner_first[i];
    }
    put(m, name, strlen(name));
    char *data = malloc((size_t)elements * 4);
    for (int64_t i = 0; i < elements; i++) {
        float value = (float)((i * 7 + (int64_t)strlen(name)) % 31 - 15) / 64.0f;
        uint16_t half = (uint16_t)(0x3000 + (i * 37 + (int64_t)strlen(name)) % 1024);
        memcpy(data + i * (type ? 2 : 4), type ? (void *)&half : (void *)&value,
               type ? 2 : 4);
    }
    put(m, data, (size_t)elements * (type ? 2 : 4));
    free(data);
}

typedef struct {
    char text[128];
} joined;

static joined join(const char *first, const char *second) {
    joined name;
    size_t length = strlen(first);
    assert_true(length + strlen(second) < sizeof name.text);
    memcpy(name.text, first, length);
    strcpy(name.text + length, second);
    return name;
}

static void put_vector(made_model *m, const char *prefix, const char *name,
                       int32_t size) {
    put_tensor(m, join(prefix, name).text, 0, 1, &size);
}

static void put_matrix(made_model *m, const char *prefix, const char *name, int32_t inner,
                       int32_t outer) {
    put_tensor(m, join(prefix, name).text, 1, 2, (int32_t[]){inner, outer});
}

static void put_norm(made_model *m, const char *prefix, const char *name) {
    joined full = join(prefix, name);
    put_vector(m, full.text, ".weight", WIDTH);
    put_vector(m, full.text, ".bias", WIDTH);
}

static void put_attention(made_model *m, const char *prefix, const char *name) {
    static const char *const parts[] = {".query", ".key", ".value", ".out"};
    for (int i = 0; i < 4; i++) {
        joined full = join(join(prefix, name).text, parts[i]);
        put_matrix(m, full.text, ".weight", WIDTH, WIDTH);
        if (i != 1)
            put_vector(m, full.text, ".bias", WIDTH);
    }
}

static void put_block(made_model *m, const char *prefix, bool decoder) {
    put_norm(m, prefix, "mlp_ln");
    put_matrix(m, prefix, "mlp.0.weight", WIDTH, 4 * WIDTH);
    put_vector(m, prefix, "mlp.0.bias", 4 * WIDTH);
    put_matrix(m, prefix, "mlp.2.weight", 4 * WIDTH, WIDTH);
    put_vector(m, prefix, "mlp.2.bias", WIDTH);
    put_norm(m, prefix, "attn_ln");
    put_attention(m, prefix, "attn");
    if (decoder) {
        put_norm(m, prefix, "cross_attn_ln");
        put_attention(m, prefix, "cross_attn");
    }
}

/* Every byte, then words "t256", "t257", ... */
static void put_tokens(made_model *m, int32_t count) {
    put_int(m, count);
    for (int32_t id = 0; id < count; id++) {
        char text[16] = {(char)id};
        int32_t length = id < 256 ? 1 : snprintf(text, sizeof text, " t%d", (int)id);
        put_int(m, length);
        put(m, text, (size_t)length);
    }
}

made_model make_ggml(int32_t vocabulary) {
    whisper_sizes s = made_sizes(vocabulary);
    const int32_t header[] = {0x67676d6c,       s.vocabulary,  s.audio_positions,
                              s.audio_width,    s.audio_heads, s.audio_layers,
                              s.text_positions, s.text_width,  s.text_heads,
                              s.text_layers,    s.mels,        1,
                              s.mels,           MEL_BINS};
    static float filters[MELS * MEL_BINS];
    made_model m = {0};
    put(&m, header, sizeof header);
    sh_mel_filters(MELS, filters);
    put(&m, filters, sizeof filters);
    m.tokens_begin = m.size;
    put_tokens(&m, vocabulary == 51864 ? 50256 : 50257);
    m.tensors_begin = m.size;
    put_tensor(&m, "decoder.positional_embedding", 0, 2,
               (int32_t[]){WIDTH, TEXT_POSITIONS});
    put_tensor(&m, "encoder.positional_embedding", 0, 2, (int32_t[]){WIDTH, 1500});
    put_matrix(&m, "decoder.", "token_embedding.weight", WIDTH, vocabulary);
    put_block(&m, "decoder.blocks.0.", true);
    put_norm(&m, "decoder.", "ln");
    put_tensor(&m, "encoder.conv1.weight", 1, 3, (int32_t[]){3, MELS, WIDTH});
    put_tensor(&m, "encoder.conv1.bias", 0, 2, (int32_t[]){1, WIDTH});
    put_tensor(&m, "encoder.conv2.weight", 1, 3, (int32_t[]){3, WIDTH, WIDTH});
    put_tensor(&m, "encoder.conv2.bias", 0, 2, (int32_t[]){1, WIDTH});
    put_block(&m, "encoder.blocks.0.", false);
    put_norm(&m, "encoder.", "ln_post");
    m.bytes = realloc(m.bytes, m.size);
    return m;
}

/* ---- Hugging Face ----------------------------------------------------------------- */

static const char *const renamed[][2] = {
    {"cross_attn_ln.", "encoder_attn_layer_norm."},
    {"cross_attn.query.", "encoder_attn.q_proj."},
    {"cross_attn.key.", "encoder_attn.k_proj."},
    {"cross_attn.value.", "encoder_attn.v_proj."},
    {"cross_attn.out.", "encoder_attn.out_proj."},
    {"attn_ln.", "self_attn_layer_norm."},
    {"attn.query.", "self_attn.q_proj."},
    {"attn.key.", "self_attn.k_proj."},
    {"attn.value.", "self_attn.v_proj."},
    {"attn.out.", "self_attn.out_proj."},
    {"mlp_ln.", "final_layer_norm."},
    {"mlp.0.", "fc1."},
    {"mlp.2.", "fc2."},
    {"blocks.", "layers."},
    {"ln_post.", "layer_norm."},
    {"ln.", "layer_norm."},
    {"token_embedding.", "embed_tokens."},
    {"positional_embedding", "embed_positions.weight"},
};

/* Replaces the first part that a row names, and only where a name's part begins. */
static void rename_part(char *name, const char *from, const char *to) {
    char *at = strstr(name, from);
    if (!at || (at > name && at[-1] != '.'))
        return;
    char rest[128];
    strcpy(rest, at + strlen(from));
    strcpy(at, to);
    strcat(name, rest);
}

static char *hf_name(const char *canonical) {
    char *name = calloc(1, 160);
    strcpy(name, "model.");
    strcat(name, canonical);
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        rename_part(name, renamed[i][0], renamed[i][1]);
    return name;
}

static void write_vocabulary(const whisper_file *model, const char *path) {
    FILE *file = fopen(path, "wb");
    const tokens *t = &model->tokens;
    assert_non_null(file);
    fprintf(file, "{");
    for (int32_t id = 0; id < t->end_of_text; id++) {
        fprintf(file, "%s\"", id ? ", " : "");
        for (uint32_t b = t->begin[id]; b < t->begin[id + 1]; b++) {
            int byte = t->bytes[b];
            bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
            int code = byte < 33 ? 256 + byte : byte < 161 ? 256 + byte - 94 : 256 + 67;
            fprintf(file, "\\u%04x", prints ? byte : code);
        }
        fprintf(file, "\": %d", (int)id);
    }
    fprintf(file, ", \"<|endoftext|>\": %d}\n", (int)t->end_of_text);
    fclose(file);
}

static void write_config(const whisper_file *model, const char *path) {
    const whisper_sizes *s = &model->sizes;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(file,
            "{\"model_type\": \"whisper\", \"activation_function\": \"gelu\",\n"
            " \"vocab_size\": %d, \"max_source_positions\": %d, \"d_model\": %d,\n"
            " \"encoder_attention_heads\": %d, \"encoder_layers\": %d,\n"
            " \"max_target_positions\": %d, \"decoder_attention_heads\": %d,\n"
            " \"decoder_layers\": %d, \"num_mel_bins\": %d, \"encoder_ffn_dim\": %d,\n"
            " \"decoder_ffn_dim\": %d, \"scale_embedding\": false}\n",
            (int)s->vocabulary, (int)s->audio_positions, (int)s->audio_width,
            (int)s->audio_heads, (int)s->audio_layers, (int)s->text_positions,
            (int)s->text_heads, (int)s->text_layers, (int)s->mels,
            4 * (int)s->audio_width, 4 * (int)s->audio_width);
    fclose(file);
}

static void write_weights(shoal_context *context, const file_tensor *tensors,
                          int64_t count, const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(sh_safetensors_write(context, path, tensors, count, NULL, 0, 0),
                     SHOAL_OK);
}

static void write_index(const file_tensor *tensors, int64_t count, int64_t first,
                        const char *folder) {
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(file, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int64_t i = 0; i < count; i++)
        fprintf(file, "%s\"%s\": \"part-%d.safetensors\"", i ? ", " : "", tensors[i].name,
                i < first ? 1 : 2);
    fprintf(file, "}}\n");
    fclose(file);
}

void make_hf_folder(shoal_context *context, const whisper_file *model, const char *folder,
                    bool shards) {
    char path[512];
    int64_t count = model->tensor_count, first = count / 3;
    file_tensor *tensors = malloc((size_t)count * sizeof *tensors);
    for (int64_t i = 0; i < count; i++) {
        tensors[i] = model->tensors[i];
        tensors[i].name = hf_name(model->tensors[i].name);
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_config(model, path);
    snprintf(path, sizeof path, "%s/vocab.json", folder);
    write_vocabulary(model, path);
    if (shards) {
        write_weights(context, tensors, first, folder, "part-1.safetensors");
        write_weights(context, tensors + first, count - first, folder,
                      "part-2.safetensors");
        write_index(tensors, count, first, folder);
    } else {
        write_weights(context, tensors, count, folder, "model.safetensors");
    }
    for (int64_t i = 0; i < count; i++)
        free((void *)(uintptr_t)tensors[i].name);
    free(tensors);
}

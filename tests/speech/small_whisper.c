#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "models/files/safetensors.h"
#include "small_whisper.h"
#include "speech/audio/mel.h"
#include "support.h"

#include "shoal_speech.h"
enum { MELS = 80 };

/* ---- A ggml file ---------------------------------------------------------------- */

whisper_sizes small_sizes(const small_whisper *model) {
    const bool tiny = model->tiny;
    const int32_t width = model->quantised ? 32 : tiny ? 4 : SMALL_WIDTH;
    const int32_t heads = model->quantised ? 4 : tiny ? 2 : SMALL_HEADS;
    const int32_t layers = tiny ? 1 : SMALL_LAYERS;
    return (whisper_sizes){.vocabulary = model->vocabulary,
                           .audio_positions = 1500,
                           .audio_width = width,
                           .audio_heads = heads,
                           .audio_layers = layers,
                           .text_positions = tiny ? 16 : SMALL_TEXT,
                           .text_width = width,
                           .text_heads = heads,
                           .text_layers = layers,
                           .mels = MELS};
}

typedef struct {
    FILE *file;
    const small_whisper *model;
    int32_t width;
    uint64_t written; /* number of tensors so far, which distinguishes their values */
} writer;

static void put_int(writer *w, int32_t value) {
    assert_int_equal(fwrite(&value, sizeof value, 1, w->file), 1);
}

/* Truncates, which is sufficient here; small numbers become 0. */
static uint16_t to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const int32_t exponent = (int32_t)(bits >> 23 & 255) - 127 + 15;
    assert_true(exponent < 31);
    const uint32_t sign = bits >> 16 & 0x8000;
    return (uint16_t)(exponent <= 0
                          ? sign
                          : sign | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

/* A block of 32 values in ggml's quantisation. */
static void put_block(writer *w, const float values[32]) {
    const int32_t type = w->model->quantised;
    const bool shifted = type == 3 || type == 7, five = type == 6 || type == 7;
    const int levels = five ? 31 : 15, centre = five ? 16 : 8;
    unsigned char bytes[34] = {0};
    float least = values[0], most = values[0], largest = 0;
    size_t at = 0;
    for (int i = 0; i < 32; i++) {
        least = fminf(least, values[i]);
        most = fmaxf(most, values[i]);
        largest = fmaxf(largest, fabsf(values[i]));
    }
    const float step = type == 8 ? largest / 127
                       : shifted ? (most - least) / (float)levels
                                 : largest / (float)(centre - 1);
    const uint16_t scale = to_half(step), shift = to_half(least);
    memcpy(bytes, &scale, 2);
    memcpy(bytes + 2, &shift, shifted ? 2 : 0);
    at = shifted ? 4 : 2;
    for (int i = 0; i < 32; i++) {
        const float from = shifted ? values[i] - least : values[i];
        const int number = (int)lrintf(from / step) + (shifted || type == 8 ? 0 : centre);
        if (type == 8) {
            bytes[at + (size_t)i] = (unsigned char)(int8_t)number;
            continue;
        }
        const int kept = number < 0 ? 0 : number > levels ? levels : number;
        unsigned char *low = bytes + at + (five ? 4 : 0) + i % 16;
        *low = (unsigned char)(*low | (kept & 15) << (i < 16 ? 0 : 4));
        if (five)
            bytes[at + (size_t)i / 8] =
                (unsigned char)(bytes[at + (size_t)i / 8] | kept >> 4 << i % 8);
    }
    at += type == 8 ? 32 : five ? 20 : 16;
    assert_int_equal(fwrite(bytes, at, 1, w->file), 1);
}

/* Normal values times `spread`, plus `centre`; shape outermost first. */
static void put_tensor(writer *w, const char *name, bool is_matrix, double spread,
                       double centre, int rank, const int32_t *shape) {
    const bool half = is_matrix && w->model->half;
    const bool quantised = is_matrix && rank == 2 && w->model->quantised;
    int64_t count = 1;
    float block[32];
    put_int(w, rank);
    put_int(w, (int32_t)strlen(name));
    put_int(w, quantised ? w->model->quantised : half);
    for (int i = rank - 1; i >= 0; i--) {
        put_int(w, shape[i]);
        count *= shape[i];
    }
    assert_int_equal(fwrite(name, strlen(name), 1, w->file), 1);
    const uint64_t stream = w->written++;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = test_hash(w->model->seed, stream, (uint64_t)i);
        const float value = (float)(centre + spread * test_normal(bits));
        const uint16_t small = to_half(value);
        block[i % 32] = value;
        if (quantised && i % 32 == 31)
            put_block(w, block);
        else if (!quantised)
            assert_int_equal(half ? fwrite(&small, sizeof small, 1, w->file)
                                  : fwrite(&value, sizeof value, 1, w->file),
                             1);
    }
}

static void put_linear(writer *w, const char *prefix, const char *name, int32_t inputs,
                       int32_t outputs, bool bias) {
    char full[160];
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    put_tensor(w, full, true, 1 / sqrt(inputs), 0, 2, (int32_t[]){outputs, inputs});
    snprintf(full, sizeof full, "%s%s.bias", prefix, name);
    if (bias)
        put_tensor(w, full, false, 0.1, 0, 1, &outputs);
}

static void put_norm(writer *w, const char *prefix, const char *name) {
    char full[160];
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    put_tensor(w, full, false, 0.2, 1, 1, &w->width);
    snprintf(full, sizeof full, "%s%s.bias", prefix, name);
    put_tensor(w, full, false, 0.1, 0, 1, &w->width);
}

static void put_attention(writer *w, const char *prefix, const char *name) {
    static const char *const parts[] = {"query", "key", "value", "out"};
    for (int i = 0; i < 4; i++) {
        char full[64];
        snprintf(full, sizeof full, "%s.%s", name, parts[i]);
        put_linear(w, prefix, full, w->width, w->width, i != 1);
    }
}

static void put_blocks(writer *w, const char *side, int layers, bool of_decoder) {
    for (int i = 0; i < layers; i++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "%s.blocks.%d.", side, i);
        put_norm(w, prefix, "attn_ln");
        put_attention(w, prefix, "attn");
        if (of_decoder) {
            put_norm(w, prefix, "cross_attn_ln");
            put_attention(w, prefix, "cross_attn");
        }
        put_norm(w, prefix, "mlp_ln");
        put_linear(w, prefix, "mlp.0", w->width, 4 * w->width, true);
        put_linear(w, prefix, "mlp.2", 4 * w->width, w->width, true);
    }
}

static void put_conv(writer *w, const char *name, int32_t inputs) {
    char full[64];
    snprintf(full, sizeof full, "encoder.%s.weight", name);
    put_tensor(w, full, true, 1 / sqrt(3.0 * inputs), 0, 3,
               (int32_t[]){w->width, inputs, 3});
    snprintf(full, sizeof full, "encoder.%s.bias", name);
    put_tensor(w, full, false, 0.1, 0, 2, (int32_t[]){w->width, 1});
}

/* Single bytes, then words. */
static void put_tokens(writer *w) {
    const int32_t count = w->model->vocabulary == 51864 ? 50256 : 50257;
    put_int(w, count);
    for (int32_t id = 0; id < count; id++) {
        char text[16] = {(char)id};
        const int32_t length = id < 256 ? 1
                                        : snprintf(text, sizeof text, " w%d", (int)id);
        put_int(w, length);
        assert_int_equal(fwrite(text, (size_t)length, 1, w->file), 1);
    }
}

static void put_head(writer *w, const whisper_sizes *s) {
    const int32_t head[] =
        {0x67676d6c,        s->vocabulary,  s->audio_positions,
         s->audio_width,    s->audio_heads, s->audio_layers,
         s->text_positions, s->text_width,  s->text_heads,
         s->text_layers,    s->mels,        w->model->quantised ? 2008 : w->model->half,
         s->mels,           MEL_BINS};
    static float filters[MELS * MEL_BINS];
    sh_mel_filters(MELS, filters);
    assert_int_equal(fwrite(head, sizeof head, 1, w->file), 1);
    assert_int_equal(fwrite(filters, sizeof filters, 1, w->file), 1);
}

static void put_weights(writer *w, const whisper_sizes *s) {
    put_conv(w, "conv1", MELS);
    put_conv(w, "conv2", w->width);
    put_tensor(w, "encoder.positional_embedding", false, 0.3, 0, 2,
               (int32_t[]){s->audio_positions, w->width});
    put_blocks(w, "encoder", s->audio_layers, false);
    put_norm(w, "encoder.", "ln_post");
    put_tensor(w, "decoder.token_embedding.weight", true, 0.5, 0, 2,
               (int32_t[]){s->vocabulary, w->width});
    put_tensor(w, "decoder.positional_embedding", false, 0.3, 0, 2,
               (int32_t[]){s->text_positions, w->width});
    put_blocks(w, "decoder", s->text_layers, true);
    put_norm(w, "decoder.", "ln");
}

made_model make_ggml(const small_whisper *model) {
    const whisper_sizes sizes = small_sizes(model);
    made_model made = {0};
    char *bytes = NULL;
    writer w = {.file = open_memstream(&bytes, &made.size),
                .model = model,
                .width = sizes.audio_width};
    assert_non_null(w.file);
    put_head(&w, &sizes);
    made.tokens_begin = (size_t)ftell(w.file);
    put_tokens(&w);
    made.tensors_begin = (size_t)ftell(w.file);
    put_weights(&w, &sizes);
    assert_int_equal(fclose(w.file), 0);
    made.bytes = realloc(bytes, made.size); /* exact size for the address sanitizer */
    return made;
}

char *write_whisper(const small_whisper *model) {
    char *path = strdup("/tmp/shoal-whisper-XXXXXX");
    made_model made = make_ggml(model);
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(close(descriptor), 0);
    write_bytes_to(path, made.bytes, made.size);
    free(made.bytes);
    return path;
}

void drop_whisper(char *path) {
    unlink(path);
    free(path);
}

/* ---- A Hugging Face folder ------------------------------------------------------ */

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

/* Replaces the first part that a row names, only at the start of a part. */
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

/* ---- An open model ---------------------------------------------------------------- */

opened open_small(const small_whisper *model, const char *kind, int threads) {
    opened o = {.context = test_context(NULL, threads), .path = write_whisper(model)};
    const shoal_speech_options options = {.size = sizeof(shoal_speech_options),
                                          .attention = kind};
    assert_int_equal(shoal_speech_open(o.context, o.path, &options, &o.speech), SHOAL_OK);
    return o;
}

void close_small(opened *o) {
    shoal_speech_destroy(o->speech);
    shoal_context_destroy(o->context);
    drop_whisper(o->path);
}

float *floats(int64_t count) {
    float *made = malloc((size_t)count * sizeof *made);
    assert_non_null(made);
    return made;
}

void make_samples(uint64_t seed, int64_t count, float *samples) {
    for (int64_t i = 0; i < count; i++) {
        const double t = (double)i / 16000;
        const double loud = 0.5 + 0.5 * sin(2 * 3.14159 * 2.3 * t + (double)seed);
        const double noise = test_normal(test_hash(seed, 7, (uint64_t)i));
        samples[i] =
            (float)(loud * (0.2 * sin(1000 * t + 40 * sin(3 * t)) + 0.05 * noise));
    }
}

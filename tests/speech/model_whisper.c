#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_whisper.h"
#include "speech/mel.h"
#include "support.h"

#include "shoal_speech.h"
#include <cmocka.h>

/* ---- A file --------------------------------------------------------------------- */

typedef struct {
    FILE *file;
    const small_whisper *model;
    uint64_t written; /* tensors so far, which keeps their values apart */
} writer;

static void put_int(writer *w, int32_t value) {
    assert_int_equal(fwrite(&value, sizeof value, 1, w->file), 1);
}

/* Cut off, which is as good a half as any; too small ones are 0. */
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

/* Normal values times `spread`, plus `centre`; shape outermost first. */
static void put_tensor(writer *w, const char *name, bool is_matrix, double spread,
                       double centre, int rank, const int32_t *shape) {
    const bool half = is_matrix && w->model->half;
    int64_t count = 1;
    put_int(w, rank);
    put_int(w, (int32_t)strlen(name));
    put_int(w, half);
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
    const int32_t width = SMALL_WIDTH;
    char full[160];
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    put_tensor(w, full, false, 0.2, 1, 1, &width);
    snprintf(full, sizeof full, "%s%s.bias", prefix, name);
    put_tensor(w, full, false, 0.1, 0, 1, &width);
}

static void put_attention(writer *w, const char *prefix, const char *name) {
    static const char *const parts[] = {"query", "key", "value", "out"};
    for (int i = 0; i < 4; i++) {
        char full[64];
        snprintf(full, sizeof full, "%s.%s", name, parts[i]);
        put_linear(w, prefix, full, SMALL_WIDTH, SMALL_WIDTH, i != 1);
    }
}

static void put_blocks(writer *w, const char *side, bool of_decoder) {
    for (int i = 0; i < SMALL_LAYERS; i++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "%s.blocks.%d.", side, i);
        put_norm(w, prefix, "attn_ln");
        put_attention(w, prefix, "attn");
        if (of_decoder) {
            put_norm(w, prefix, "cross_attn_ln");
            put_attention(w, prefix, "cross_attn");
        }
        put_norm(w, prefix, "mlp_ln");
        put_linear(w, prefix, "mlp.0", SMALL_WIDTH, 4 * SMALL_WIDTH, true);
        put_linear(w, prefix, "mlp.2", 4 * SMALL_WIDTH, SMALL_WIDTH, true);
    }
}

static void put_conv(writer *w, const char *name, int32_t inputs) {
    const int32_t width = SMALL_WIDTH;
    char full[64];
    snprintf(full, sizeof full, "encoder.%s.weight", name);
    put_tensor(w, full, true, 1 / sqrt(3.0 * inputs), 0, 3,
               (int32_t[]){width, inputs, 3});
    snprintf(full, sizeof full, "encoder.%s.bias", name);
    put_tensor(w, full, false, 0.1, 0, 2, (int32_t[]){width, 1});
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

static void put_head(writer *w) {
    enum { MELS = 80 };
    const int32_t width = SMALL_WIDTH;
    const int32_t head[] = {0x67676d6c,  w->model->vocabulary,
                            1500,        width,
                            SMALL_HEADS, SMALL_LAYERS,
                            SMALL_TEXT,  width,
                            SMALL_HEADS, SMALL_LAYERS,
                            MELS,        w->model->half,
                            MELS,        MEL_BINS};
    static float filters[MELS * MEL_BINS];
    sh_mel_filters(MELS, filters);
    assert_int_equal(fwrite(head, sizeof head, 1, w->file), 1);
    assert_int_equal(fwrite(filters, sizeof filters, 1, w->file), 1);
    put_tokens(w);
    put_conv(w, "conv1", MELS);
    put_conv(w, "conv2", width);
}

char *write_whisper(const small_whisper *model) {
    char *path = strdup("/tmp/shoal-whisper-XXXXXX");
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    writer w = {.file = fdopen(descriptor, "wb"), .model = model};
    assert_non_null(w.file);
    put_head(&w);
    put_tensor(&w, "encoder.positional_embedding", false, 0.3, 0, 2,
               (int32_t[]){1500, SMALL_WIDTH});
    put_blocks(&w, "encoder", false);
    put_norm(&w, "encoder.", "ln_post");
    put_tensor(&w, "decoder.token_embedding.weight", true, 0.5, 0, 2,
               (int32_t[]){model->vocabulary, SMALL_WIDTH});
    put_tensor(&w, "decoder.positional_embedding", false, 0.3, 0, 2,
               (int32_t[]){SMALL_TEXT, SMALL_WIDTH});
    put_blocks(&w, "decoder", true);
    put_norm(&w, "decoder.", "ln");
    assert_int_equal(fclose(w.file), 0);
    return path;
}

void drop_whisper(char *path) {
    unlink(path);
    free(path);
}

/* ---- An open one ---------------------------------------------------------------- */

opened open_small(const small_whisper *model, const char *kind, int threads) {
    opened o = {.context = test_context(NULL, threads), .path = write_whisper(model)};
    const shoal_speech_options options = {.attention = kind};
    assert_int_equal(shoal_speech_open(o.context, o.path, &options, &o.speech), SHOAL_OK);
    return o;
}

void close_small(opened *o) {
    shoal_speech_close(o->speech);
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

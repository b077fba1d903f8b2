/* Whisper in double precision, from its definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exact/exact.h"
#include "model_whisper.h"

#include <cmocka.h>

static double *values_of(const whisper_file *file, const char *prefix, const char *name) {
    const file_tensor *found = sh_whisper_file_tensor(file, "%s%s", prefix, name);
    if (!found)
        return NULL;
    const int64_t count = sh_file_tensor_elements(found);
    float *floats = malloc((size_t)count * sizeof *floats);
    double *values = malloc((size_t)count * sizeof *values);
    assert_int_equal(sh_file_tensor_to_f32(NULL, found, floats), SHOAL_OK);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)floats[i];
    free(floats);
    return values;
}

/* The weight and bias of a part, which part_free gives back. */
static exact_part part_of(const whisper_file *file, const char *prefix, const char *name,
                          int64_t inputs, int64_t outputs) {
    char weight[160], bias[160];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return (exact_part){.inputs = inputs,
                        .outputs = outputs,
                        .weight = values_of(file, prefix, weight),
                        .bias = values_of(file, prefix, bias)};
}

static void part_free(exact_part *part) {
    free((void *)part->weight);
    free((void *)part->bias);
}

/* y [rows][outputs] = x [rows][inputs] W' + b. */
static double *apply_linear(const whisper_file *file, const char *prefix,
                            const char *name, const double *x, int64_t rows,
                            int64_t inputs, int64_t outputs) {
    exact_part part = part_of(file, prefix, name, inputs, outputs);
    double *y = malloc((size_t)(rows * outputs) * sizeof *y);
    exact_linear(&part, rows, x, y);
    part_free(&part);
    return y;
}

static double *apply_norm(const whisper_file *file, const char *prefix, const char *name,
                          const double *x, int64_t rows, int64_t width) {
    exact_part part = part_of(file, prefix, name, width, width);
    double *y = malloc((size_t)(rows * width) * sizeof *y);
    exact_norm(&part, 1e-5, rows, x, y);
    part_free(&part);
    return y;
}

/* One head over all keys, or for query r over the first r + 1. q, k, v and out: the head's
   features in rows of `width`. */
static void attend(const double *q, const double *k, const double *v, int64_t rows,
                   int64_t keys, int64_t width, int64_t dim, bool causal, double *out) {
    const shoal_attention full = {.kind = SHOAL_FULL};
    exact_head *head = exact_create(&full, rows, keys, dim, dim);
    assert_non_null(head);
    for (int64_t d = 0; d < dim; d++) {
        for (int64_t r = 0; r < rows; r++)
            head->q[r * dim + d] = q[r * width + d];
        for (int64_t l = 0; l < keys; l++) {
            head->k[l * dim + d] = k[l * width + d];
            head->v[l * dim + d] = v[l * width + d];
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        head->keys = causal ? r + 1 : keys;
        exact_output(head, r, out + r * width);
    }
    exact_destroy(head);
}

/* x += attention(norm(x), other or norm(x)). */
static void add_attention(const whisper_file *file, const char *prefix, const char *kind,
                          double *x, int64_t rows, const double *other,
                          int64_t other_rows, int64_t heads, int64_t width, bool causal) {
    char norm[32], part[4][48];
    static const char *const parts[] = {"query", "key", "value", "out"};
    snprintf(norm, sizeof norm, "%s_ln", kind);
    for (int i = 0; i < 4; i++)
        snprintf(part[i], sizeof part[i], "%s.%s", kind, parts[i]);
    double *normed = apply_norm(file, prefix, norm, x, rows, width);
    const double *source = other ? other : normed;
    const int64_t keys = other ? other_rows : rows, dim = width / heads;
    double *q = apply_linear(file, prefix, part[0], normed, rows, width, width);
    double *k = apply_linear(file, prefix, part[1], source, keys, width, width);
    double *v = apply_linear(file, prefix, part[2], source, keys, width, width);
    double *mixed = malloc((size_t)(rows * width) * sizeof *mixed);
    for (int64_t at = 0; at < width; at += dim)
        attend(q + at, k + at, v + at, rows, keys, width, dim, causal, mixed + at);
    double *out = apply_linear(file, prefix, part[3], mixed, rows, width, width);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] += out[i];
    double *const all[] = {normed, q, k, v, mixed, out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void add_forward(const whisper_file *file, const char *prefix, double *x,
                        int64_t rows, int64_t width) {
    double *normed = apply_norm(file, prefix, "mlp_ln", x, rows, width);
    double *wide = apply_linear(file, prefix, "mlp.0", normed, rows, width, 4 * width);
    for (int64_t i = 0; i < rows * 4 * width; i++)
        wide[i] = exact_activation(SHOAL_GELU, wide[i]);
    double *out = apply_linear(file, prefix, "mlp.2", wide, rows, 4 * width, width);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] += out[i];
    free(normed);
    free(wide);
    free(out);
}

/* x [inputs][length] to [outputs][length / stride], as the definition has it. */
static double *apply_conv(const whisper_file *file, const char *name, const double *x,
                          int64_t inputs, int64_t length, int64_t stride,
                          int64_t outputs) {
    exact_part part = part_of(file, "encoder.", name, inputs, outputs);
    const int64_t made = length / stride;
    double *y = malloc((size_t)(outputs * made) * sizeof *y);
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t t = 0; t < made; t++) {
            double sum = part.bias[o];
            for (int64_t i = 0; i < inputs; i++)
                for (int64_t j = 0; j < 3; j++) {
                    const int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < length)
                        sum += part.weight[(o * inputs + i) * 3 + j] * x[i * length + at];
                }
            y[o * made + t] = exact_activation(SHOAL_GELU, sum);
        }
    part_free(&part);
    return y;
}

void reference_encode(const whisper_file *file, const float *features, double *out) {
    const whisper_sizes *s = &file->sizes;
    const int64_t width = s->audio_width, rows = s->audio_positions, frames = 2 * rows;
    double *x = malloc((size_t)(s->mels * frames) * sizeof *x);
    for (int64_t i = 0; i < s->mels * frames; i++)
        x[i] = (double)features[i];
    double *first = apply_conv(file, "conv1", x, s->mels, frames, 1, width);
    double *second = apply_conv(file, "conv2", first, width, frames, 2, width);
    double *positions = values_of(file, "encoder.", "positional_embedding");
    double *rows_of = malloc((size_t)(rows * width) * sizeof *rows_of);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            rows_of[r * width + i] = second[i * rows + r] + positions[r * width + i];
    for (int layer = 0; layer < s->audio_layers; layer++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "encoder.blocks.%d.", layer);
        add_attention(file, prefix, "attn", rows_of, rows, NULL, 0, s->audio_heads, width,
                      false);
        add_forward(file, prefix, rows_of, rows, width);
    }
    double *made = apply_norm(file, "encoder.", "ln_post", rows_of, rows, width);
    memcpy(out, made, (size_t)(rows * width) * sizeof *out);
    double *const all[] = {x, first, second, positions, rows_of, made};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

void reference_logits(const whisper_file *file, const double *encoded,
                      const int32_t *text, int count, double *logits) {
    const whisper_sizes *s = &file->sizes;
    const int64_t width = s->text_width;
    double *embedding = values_of(file, "decoder.", "token_embedding.weight");
    double *positions = values_of(file, "decoder.", "positional_embedding");
    double *x = calloc((size_t)(count * width), sizeof *x);
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < width; i++)
            x[r * width + i] = embedding[text[r] * width + i] + positions[r * width + i];
    for (int layer = 0; layer < s->text_layers; layer++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "decoder.blocks.%d.", layer);
        add_attention(file, prefix, "attn", x, count, NULL, 0, s->text_heads, width,
                      true);
        add_attention(file, prefix, "cross_attn", x, count, encoded, s->audio_positions,
                      s->text_heads, width, false);
        add_forward(file, prefix, x, count, width);
    }
    double *last = apply_norm(file, "decoder.", "ln", x, count, width);
    const exact_part words = {.inputs = width,
                              .outputs = s->vocabulary,
                              .weight = embedding};
    exact_linear(&words, count, last, logits);
    double *const all[] = {embedding, positions, x, last};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

double relative_difference(const float *a, const double *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Whisper in double precision, from its definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_whisper.h"

#include <cmocka.h> /* last: it has a macro fail() */

static double *values_of(const speech_file *file, const char *prefix, const char *name) {
    const file_tensor *found = sh_speech_file_tensor(file, "%s%s", prefix, name);
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

static double gelu(double x) {
    return x * 0.5 * (1 + erf(x / sqrt(2)));
}

/* y [rows][outputs] = x [rows][inputs] W' + b. */
static double *apply_linear(const speech_file *file, const char *prefix, const char *name,
                            const double *x, int64_t rows, int64_t inputs,
                            int64_t outputs) {
    char full[160];
    snprintf(full, sizeof full, "%s.weight", name);
    double *weight = values_of(file, prefix, full);
    snprintf(full, sizeof full, "%s.bias", name);
    double *bias = values_of(file, prefix, full);
    double *y = malloc((size_t)(rows * outputs) * sizeof *y);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outputs; o++) {
            double sum = bias ? bias[o] : 0;
            for (int64_t i = 0; i < inputs; i++)
                sum += x[r * inputs + i] * weight[o * inputs + i];
            y[r * outputs + o] = sum;
        }
    free(weight);
    free(bias);
    return y;
}

static double *apply_norm(const speech_file *file, const char *prefix, const char *name,
                          const double *x, int64_t rows, int64_t width) {
    char full[160];
    snprintf(full, sizeof full, "%s.weight", name);
    double *scale = values_of(file, prefix, full);
    snprintf(full, sizeof full, "%s.bias", name);
    double *shift = values_of(file, prefix, full);
    double *y = malloc((size_t)(rows * width) * sizeof *y);
    for (int64_t r = 0; r < rows; r++) {
        const double *row = x + r * width;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < width; i++)
            mean += row[i] / (double)width;
        for (int64_t i = 0; i < width; i++)
            variance += (row[i] - mean) * (row[i] - mean) / (double)width;
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = (row[i] - mean) / sqrt(variance + 1e-5) * scale[i] +
                               shift[i];
    }
    free(scale);
    free(shift);
    return y;
}

/* One head of one query over the first `keys` keys. */
static void attend(const double *q, const double *k, const double *v, int64_t keys,
                   int64_t stride, int64_t dim, double *weights, double *out) {
    double largest = -INFINITY, sum = 0;
    for (int64_t s = 0; s < keys; s++) {
        weights[s] = 0;
        for (int64_t d = 0; d < dim; d++)
            weights[s] += q[d] * k[s * stride + d] / sqrt((double)dim);
        largest = fmax(largest, weights[s]);
    }
    for (int64_t s = 0; s < keys; s++)
        sum += weights[s] = exp(weights[s] - largest);
    for (int64_t d = 0; d < dim; d++)
        out[d] = 0;
    for (int64_t s = 0; s < keys; s++)
        for (int64_t d = 0; d < dim; d++)
            out[d] += weights[s] / sum * v[s * stride + d];
}

/* x += attention(norm(x), other or norm(x)). */
static void add_attention(const speech_file *file, const char *prefix, const char *kind,
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
    double *weights = malloc((size_t)keys * sizeof *weights);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            attend(q + r * width + h * dim, k + h * dim, v + h * dim,
                   causal ? r + 1 : keys, width, dim, weights,
                   mixed + r * width + h * dim);
    double *out = apply_linear(file, prefix, part[3], mixed, rows, width, width);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] += out[i];
    double *const all[] = {normed, q, k, v, mixed, weights, out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void add_forward(const speech_file *file, const char *prefix, double *x,
                        int64_t rows, int64_t width) {
    double *normed = apply_norm(file, prefix, "mlp_ln", x, rows, width);
    double *wide = apply_linear(file, prefix, "mlp.0", normed, rows, width, 4 * width);
    for (int64_t i = 0; i < rows * 4 * width; i++)
        wide[i] = gelu(wide[i]);
    double *out = apply_linear(file, prefix, "mlp.2", wide, rows, 4 * width, width);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] += out[i];
    free(normed);
    free(wide);
    free(out);
}

/* x [inputs][length] to [outputs][length / stride], as the definition has it. */
static double *apply_conv(const speech_file *file, const char *name, const double *x,
                          int64_t inputs, int64_t length, int64_t stride,
                          int64_t outputs) {
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    double *weight = values_of(file, "encoder.", full);
    snprintf(full, sizeof full, "%s.bias", name);
    double *bias = values_of(file, "encoder.", full);
    const int64_t made = length / stride;
    double *y = malloc((size_t)(outputs * made) * sizeof *y);
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t t = 0; t < made; t++) {
            double sum = bias[o];
            for (int64_t i = 0; i < inputs; i++)
                for (int64_t j = 0; j < 3; j++) {
                    const int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < length)
                        sum += weight[(o * inputs + i) * 3 + j] * x[i * length + at];
                }
            y[o * made + t] = gelu(sum);
        }
    free(weight);
    free(bias);
    return y;
}

void reference_encode(const speech_file *file, const float *features, double *out) {
    const speech_sizes *s = &file->sizes;
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

void reference_logits(const speech_file *file, const double *encoded, const int32_t *text,
                      int count, double *logits) {
    const speech_sizes *s = &file->sizes;
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
    for (int64_t r = 0; r < count; r++)
        for (int64_t v = 0; v < s->vocabulary; v++) {
            double sum = 0;
            for (int64_t i = 0; i < width; i++)
                sum += last[r * width + i] * embedding[v * width + i];
            logits[r * s->vocabulary + v] = sum;
        }
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

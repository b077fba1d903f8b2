/* Whisper by its definition: convolutions, encoder and decoder. E: width of both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exact/exact.h"

enum { TAPS = 3, NAME = 96 };

/* Buffers of a pass through the layers. R: maximum number of rows, those of the audio
   included. */
typedef struct {
    const exact_whisper *model;
    int64_t width;
    double *memory;
    double *normed, *q, *k, *v, *mixed, *out; /* [R][E] */
    double *wide;                             /* [R][4 E] */
    bool failed; /* a weight is missing or memory ran out: results are invalid */
} pass;

static pass pass_begin(const exact_whisper *model, int64_t rows) {
    const int64_t each = rows * model->width;
    pass p = {.model = model, .width = model->width};
    p.memory = calloc((size_t)(10 * each), sizeof *p.memory);
    p.failed = !p.memory;
    if (p.failed)
        return p;
    double **const parts[] = {&p.normed, &p.q, &p.k, &p.v, &p.mixed, &p.out, &p.wide};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] = p.memory + (int64_t)i * each;
    return p;
}

/* ---- Weights ----------------------------------------------------------------------- */

static const double *find(const pass *p, const char *prefix, const char *name,
                          const char *ending) {
    char full[NAME];
    snprintf(full, sizeof full, "%s%s%s", prefix, name, ending);
    for (int64_t i = 0; i < p->model->weight_count; i++)
        if (strcmp(p->model->weights[i].name, full) == 0)
            return p->model->weights[i].values;
    return NULL;
}

static const double *require(pass *p, const char *prefix, const char *name,
                             const char *ending) {
    const double *values = find(p, prefix, name, ending);
    p->failed |= !values;
    return values;
}

static exact_part part_of(pass *p, const char *prefix, const char *name, int64_t inputs,
                          int64_t outputs) {
    return (exact_part){.inputs = inputs,
                        .outputs = outputs,
                        .weight = require(p, prefix, name, ".weight"),
                        .bias = find(p, prefix, name, ".bias")};
}

static void linear(pass *p, const char *prefix, const char *name, int64_t rows,
                   int64_t inputs, int64_t outputs, const double *x, double *y) {
    const exact_part part = part_of(p, prefix, name, inputs, outputs);
    if (!p->failed)
        exact_linear(&part, rows, x, y);
}

static void norm(pass *p, const char *prefix, const char *name, int64_t rows,
                 const double *x, double *y) {
    const exact_part part = part_of(p, prefix, name, p->width, p->width);
    if (!p->failed)
        exact_norm(&part, 1e-5, rows, x, y);
}

/* ---- Layers ------------------------------------------------------------------------ */

/* One head, whose features begin at `at`: over all keys, or causal, where query r sees
   the first r + 1. */
static void attend(pass *p, int64_t rows, int64_t keys, int64_t at, int64_t dim,
                   bool causal) {
    const shoal_attention full = {.kind = SHOAL_KIND_FULL};
    exact_head *head = p->failed ? NULL : exact_create(&full, rows, keys, dim, dim);
    p->failed |= !head;
    for (int64_t d = 0; d < dim && head; d++) {
        for (int64_t r = 0; r < rows; r++)
            head->q[r * dim + d] = p->q[r * p->width + at + d];
        for (int64_t l = 0; l < keys; l++) {
            head->k[l * dim + d] = p->k[l * p->width + at + d];
            head->v[l * dim + d] = p->v[l * p->width + at + d];
        }
    }
    for (int64_t r = 0; r < rows && head; r++) {
        head->keys = causal ? r + 1 : keys;
        exact_output(head, r, p->mixed + r * p->width + at);
    }
    exact_destroy(head);
}

typedef struct {
    const char *norm, *query, *key, *value, *out;
} attention_names;

static const attention_names self_attention = {"attn_ln", "attn.query", "attn.key",
                                               "attn.value", "attn.out"};
static const attention_names cross_attention = {"cross_attn_ln", "cross_attn.query",
                                                "cross_attn.key", "cross_attn.value",
                                                "cross_attn.out"};

/* x [rows][E] += attention of norm(x) over the audio [keys][E], or over itself. */
static void add_attention(pass *p, const char *prefix, const attention_names *names,
                          double *x, int64_t rows, const double *audio, int64_t keys,
                          int64_t heads, bool causal) {
    const int64_t width = p->width, dim = width / heads;
    const double *source = audio ? audio : p->normed;
    norm(p, prefix, names->norm, rows, x, p->normed);
    linear(p, prefix, names->query, rows, width, width, p->normed, p->q);
    linear(p, prefix, names->key, keys, width, width, source, p->k);
    linear(p, prefix, names->value, keys, width, width, source, p->v);
    for (int64_t at = 0; at < width; at += dim)
        attend(p, rows, keys, at, dim, causal);
    linear(p, prefix, names->out, rows, width, width, p->mixed, p->out);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] += p->out[i];
}

static void add_forward(pass *p, const char *prefix, double *x, int64_t rows) {
    const int64_t width = p->width;
    norm(p, prefix, "mlp_ln", rows, x, p->normed);
    linear(p, prefix, "mlp.0", rows, width, 4 * width, p->normed, p->wide);
    for (int64_t i = 0; i < rows * 4 * width; i++)
        p->wide[i] = exact_activation(SHOAL_ACTIVATION_GELU, p->wide[i]);
    linear(p, prefix, "mlp.2", rows, 4 * width, width, p->wide, p->out);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] += p->out[i];
}

/* y [outputs][length / stride] = GELU(convolution of x [inputs][length] by 3 taps). */
static void convolve(pass *p, const char *name, const double *x, int64_t inputs,
                     int64_t length, int64_t stride, double *y) {
    const exact_part part = part_of(p, "encoder.", name, inputs, p->width);
    const int64_t made = length / stride;
    for (int64_t o = 0; o < p->width && !p->failed; o++)
        for (int64_t t = 0; t < made; t++) {
            double sum = part.bias ? part.bias[o] : 0;
            for (int64_t i = 0; i < inputs; i++)
                for (int64_t j = 0; j < TAPS; j++) {
                    const int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < length)
                        sum += part.weight[(o * inputs + i) * TAPS + j] *
                               x[i * length + at];
                }
            y[o * made + t] = exact_activation(SHOAL_ACTIVATION_GELU, sum);
        }
}

/* ---- Encoder and decoder ---------------------------------------------------------- */

bool exact_whisper_encode(const exact_whisper *model, const double *features,
                          double *out) {
    const int64_t width = model->width, rows = model->positions, frames = 2 * rows;
    pass p = pass_begin(model, frames); /* the first convolution has this many columns */
    const double *positions = require(&p, "encoder.", "positional_embedding", "");
    convolve(&p, "conv1", features, model->mels, frames, 1, p.q);
    convolve(&p, "conv2", p.q, width, frames, 2, p.k);
    for (int64_t r = 0; r < rows && !p.failed; r++)
        for (int64_t i = 0; i < width; i++)
            out[r * width + i] = p.k[i * rows + r] + positions[r * width + i];
    for (int layer = 0; layer < model->layers && !p.failed; layer++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "encoder.blocks.%d.", layer);
        add_attention(&p, prefix, &self_attention, out, rows, NULL, rows, model->heads,
                      false);
        add_forward(&p, prefix, out, rows);
    }
    norm(&p, "encoder.", "ln_post", rows, out, out);
    free(p.memory);
    return !p.failed;
}

bool exact_whisper_logits(const exact_whisper *model, const double *encoded,
                          const int32_t *tokens, int64_t count, double *logits) {
    const int64_t width = model->width, audio = model->positions;
    pass p = pass_begin(model, count > audio ? count : audio);
    const double *embedding = require(&p, "decoder.", "token_embedding", ".weight");
    const double *positions = require(&p, "decoder.", "positional_embedding", "");
    double *x = calloc((size_t)(count * width), sizeof *x);
    p.failed |= !x;
    for (int64_t r = 0; r < count && !p.failed; r++)
        for (int64_t i = 0; i < width; i++)
            x[r * width + i] = embedding[tokens[r] * width + i] +
                               positions[r * width + i];
    for (int layer = 0; layer < model->text_layers && !p.failed; layer++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "decoder.blocks.%d.", layer);
        add_attention(&p, prefix, &self_attention, x, count, NULL, count,
                      model->text_heads, true);
        add_attention(&p, prefix, &cross_attention, x, count, encoded, audio,
                      model->text_heads, false);
        add_forward(&p, prefix, x, count);
    }
    norm(&p, "decoder.", "ln", count, x, x);
    linear(&p, "decoder.", "token_embedding", count, width, model->vocabulary, x, logits);
    free(x);
    free(p.memory);
    return !p.failed;
}

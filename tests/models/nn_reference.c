#include "nn_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/nn/dropout.h"
#include "support.h"

static const double *find(const model_reference *model, const double *values,
                          const char *prefix, const char *name) {
    char full[PARAMETER_NAME];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const parameter *entry = sh_parameters_find(model->arena, full);
    return entry ? values + entry->offset : NULL;
}

/* y [rows][outputs] = x W' + b. */
static void apply_linear(int64_t rows, int64_t inputs, int64_t outputs, const double *x,
                         const double *weight, const double *bias, double *y) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outputs; o++) {
            double sum = bias ? bias[o] : 0;
            for (int64_t i = 0; i < inputs; i++)
                sum += x[r * inputs + i] * weight[o * inputs + i];
            y[r * outputs + o] = sum;
        }
}

static void apply_norm(int64_t rows, int64_t size, double epsilon, const double *scale,
                       const double *shift, double *x) {
    for (int64_t r = 0; r < rows; r++, x += size) {
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < size; i++)
            mean += x[i] / (double)size;
        for (int64_t i = 0; i < size; i++)
            variance += (x[i] - mean) * (x[i] - mean) / (double)size;
        for (int64_t i = 0; i < size; i++)
            x[i] = (x[i] - mean) / sqrt(variance + epsilon) * scale[i] + shift[i];
    }
}

static void apply_dropout(const model_reference *model, uint64_t site, int64_t rows,
                          int64_t size, double *x) {
    const encoder_moment *moment = &model->batch->moment;
    dropout mask = {.rate = moment->dropout ? model->shape->encoder.dropout : 0,
                    .seed = moment->seed,
                    .step = moment->step,
                    .site = site};
    float *factors = test_memory(size, sizeof *factors);
    for (int64_t r = 0; mask.rate > 0 && r < rows; r++) {
        sh_dropout_factors(&mask, r, 0, size, factors);
        for (int64_t i = 0; i < size; i++)
            x[r * size + i] *= (double)factors[i];
    }
    free(factors);
}

static void attend(const model_reference *model, int64_t layer, const double *q,
                   const double *k, const double *v, double *out) {
    const encoder_shape *shape = &model->shape->encoder;
    const int64_t dim = shape->head_dim, size = shape->heads * dim;
    const encoder *stack = sh_network_encoder(model->source);
    const void *state = sh_encoder_state(stack, layer);
    const int32_t *groups = shoal_plan_groups(sh_encoder_plan(stack), state);
    const int32_t *top_keys = shoal_plan_top_keys(sh_encoder_plan(stack), state);
    const int64_t *offsets = model->batch->sequences.offsets;
    for (int64_t b = 0; b < model->batch->sequences.batch; b++)
        for (int64_t h = 0; h < shape->heads; h++) {
            int64_t first = offsets[b], length = offsets[b + 1] - first;
            int64_t at = b * shape->heads + h;
            exact_head *head = exact_create(&shape->attention, length, length, dim, dim);
            const double *const from[3] = {q, k, v};
            double *const to[3] = {head->q, head->k, head->v};
            for (int64_t i = 0; i < 3 * length; i++)
                memcpy(to[i % 3] + i / 3 * dim,
                       from[i % 3] + (first + i / 3) * size + h * dim,
                       sizeof(double) * (size_t)dim);
            if (groups)
                head->groups = groups + at * model->longest;
            if (top_keys)
                head->top_keys = top_keys +
                                 at * shape->attention.clusters * shape->attention.topk;
            for (int64_t i = 0; i < length; i++)
                exact_output(head, i, out + (first + i) * size + h * dim);
            exact_destroy(head);
        }
}

static double activate(activation kind, double x) {
    if (kind == ACTIVATION_RELU)
        return x > 0 ? x : 0;
    return x * 0.5 * erfc(-x / sqrt(2));
}

/* branch [rows][size] = attention of x, or of norm(x), behind the output projection. */
static void attention_branch(const model_reference *model, const double *values,
                             const char *prefix, int64_t layer, int64_t rows,
                             const double *x, double *branch) {
    const int64_t size = sh_encoder_model(&model->shape->encoder);
    double *q = test_memory(4 * rows * size, sizeof *q);
    double *k = q + rows * size, *v = k + rows * size, *out = v + rows * size;
    const double *key = find(model, values, prefix, "attention.key.weight");
    apply_linear(rows, size, size, x,
                 find(model, values, prefix, "attention.query.weight"),
                 find(model, values, prefix, "attention.query.bias"), q);
    apply_linear(rows, size, size, x,
                 find(model, values, prefix, "attention.value.weight"),
                 find(model, values, prefix, "attention.value.bias"), v);
    if (key)
        apply_linear(rows, size, size, x, key,
                     find(model, values, prefix, "attention.key.bias"), k);
    else
        memcpy(k, q, sizeof(double) * (size_t)(rows * size));
    attend(model, layer, q, k, v, out);
    apply_linear(rows, size, size, out,
                 find(model, values, prefix, "attention.output.weight"),
                 find(model, values, prefix, "attention.output.bias"), branch);
    apply_dropout(model, 1 + 3 * (uint64_t)layer, rows, size, branch);
    free(q);
}

static void forward_branch(const model_reference *model, const double *values,
                           const char *prefix, int64_t layer, int64_t rows,
                           const double *x, double *branch) {
    const encoder_shape *shape = &model->shape->encoder;
    const int64_t size = sh_encoder_model(shape), wide = shape->feed_forward;
    double *hidden = test_memory(rows * wide, sizeof *hidden);
    apply_linear(rows, size, wide, x,
                 find(model, values, prefix, "feed_forward.widen.weight"),
                 find(model, values, prefix, "feed_forward.widen.bias"), hidden);
    for (int64_t i = 0; i < rows * wide; i++)
        hidden[i] = activate(shape->activation, hidden[i]);
    apply_dropout(model, 2 + 3 * (uint64_t)layer, rows, wide, hidden);
    apply_linear(rows, wide, size, hidden,
                 find(model, values, prefix, "feed_forward.narrow.weight"),
                 find(model, values, prefix, "feed_forward.narrow.bias"), branch);
    apply_dropout(model, 3 + 3 * (uint64_t)layer, rows, size, branch);
    free(hidden);
}

static void run_layer(const model_reference *model, const double *values, int64_t layer,
                      int64_t rows, double *x) {
    const encoder_shape *shape = &model->shape->encoder;
    const int64_t size = sh_encoder_model(shape), floats = rows * size;
    const double epsilon = shape->epsilon > 0 ? (double)shape->epsilon : (double)1e-5f;
    char prefix[40];
    snprintf(prefix, sizeof prefix, "encoder.layers.%lld.", (long long)layer);
    double *in = test_memory(2 * floats, sizeof *in), *branch = in + floats;
    for (int half = 0; half < 2; half++) {
        const double *scale = find(model, values, prefix,
                                   half ? "forward_norm.scale" : "attention_norm.scale");
        const double *shift = find(model, values, prefix,
                                   half ? "forward_norm.shift" : "attention_norm.shift");
        memcpy(in, x, sizeof(double) * (size_t)floats);
        if (!shape->post_norm)
            apply_norm(rows, size, epsilon, scale, shift, in);
        if (half)
            forward_branch(model, values, prefix, layer, rows, in, branch);
        else
            attention_branch(model, values, prefix, layer, rows, in, branch);
        for (int64_t i = 0; i < floats; i++)
            x[i] += branch[i];
        if (shape->post_norm)
            apply_norm(rows, size, epsilon, scale, shift, x);
    }
    free(in);
}

static void take_input(const model_reference *model, const double *values, int64_t rows,
                       double *x) {
    const network_shape *shape = model->shape;
    const int64_t size = sh_encoder_model(&shape->encoder);
    const int64_t *offsets = model->batch->sequences.offsets;
    const double *table = find(model, values, "embedding.weight", "");
    const double *learned = find(model, values, "positions.weight", "");
    const double scale = shape->embedding_scale != 0 ? (double)shape->embedding_scale
                                                     : sqrt((double)size);
    for (int64_t r = 0, b = 0; r < rows; r++) {
        while (offsets[b + 1] <= r)
            b++;
        double position = (double)(r - offsets[b]);
        for (int64_t i = 0; i < size; i++) {
            double angle = position / pow(10000, (double)(i - i % 2) / (double)size);
            double value = 0;
            if (table)
                value = scale * table[model->batch->tokens[r] * size + i];
            for (int64_t f = 0; !table && f < shape->features; f++)
                value +=
                    find(model, values, "input.weight", "")[i * shape->features + f] *
                    (double)model->batch->features[r * shape->features + f];
            if (!table)
                value += find(model, values, "input.bias", "")[i];
            if (shape->positions == POSITIONS_LEARNED)
                value += learned[(r - offsets[b]) * size + i];
            else if (shape->positions == POSITIONS_SINUSOIDAL)
                value += i % 2 ? cos(angle) : sin(angle);
            x[r * size + i] = value;
        }
    }
    apply_dropout(model, 0, rows, size, x);
}

/* pooled: [batch][size]. Returns the number of sequences. */
static int64_t pool(const model_reference *model, const double *x, double *pooled) {
    const packing *sequences = &model->batch->sequences;
    const int64_t size = sh_encoder_model(&model->shape->encoder);
    for (int64_t b = 0; b < sequences->batch; b++) {
        int64_t first = sequences->offsets[b], last = sequences->offsets[b + 1];
        int64_t used = model->shape->head == HEAD_FIRST && last > first ? 1
                                                                        : last - first;
        for (int64_t i = 0; i < size; i++) {
            double sum = 0;
            for (int64_t r = first; r < first + used; r++)
                sum += x[r * size + i];
            pooled[b * size + i] = used ? sum / (double)used : 0;
        }
    }
    return sequences->batch;
}

static double entropy(int64_t rows, int64_t classes, const double *logits,
                      const int32_t *targets) {
    double loss = 0;
    int64_t counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (targets[r] < 0)
            continue;
        const double *row = logits + r * classes;
        double top = row[0], total = 0;
        for (int64_t j = 1; j < classes; j++)
            top = fmax(top, row[j]);
        for (int64_t j = 0; j < classes; j++)
            total += exp(row[j] - top);
        loss += log(total) + top - row[targets[r]];
        counted++;
    }
    return counted ? loss / (double)counted : 0;
}

double model_reference_loss(const model_reference *model, const double *values,
                            double *logits) {
    const network_shape *shape = model->shape;
    const int64_t size = sh_encoder_model(&shape->encoder);
    int64_t rows = packing_rows(&model->batch->sequences);
    double *x = test_memory(rows * size + 1, sizeof *x);
    double *pooled =
        test_memory(model->batch->sequences.batch * size + 1, sizeof *pooled);
    const double *read_out = x;
    take_input(model, values, rows, x);
    for (int64_t l = 0; l < shape->encoder.layers; l++)
        run_layer(model, values, l, rows, x);
    const double *scale = find(model, values, "encoder.final_norm.scale", "");
    if (scale)
        apply_norm(rows, size,
                   shape->encoder.epsilon > 0 ? (double)shape->encoder.epsilon
                                              : (double)1e-5f,
                   scale, find(model, values, "encoder.final_norm.shift", ""), x);
    if (shape->head != HEAD_POSITIONS) {
        rows = pool(model, x, pooled);
        read_out = pooled;
    }
    double *own = test_memory(rows * shape->outputs + 1, sizeof *own);
    apply_linear(rows, size, shape->outputs, read_out,
                 find(model, values, "output.weight", ""),
                 find(model, values, "output.bias", ""), own);
    double loss = entropy(rows, shape->outputs, own, model->targets);
    if (logits)
        memcpy(logits, own, sizeof(double) * (size_t)(rows * shape->outputs));
    free(own);
    free(pooled);
    free(x);
    return loss;
}

double model_reference_slope(const model_reference *model, double *values,
                             int64_t element) {
    const double step = 1e-5, kept = values[element];
    values[element] = kept + step;
    double above = model_reference_loss(model, values, NULL);
    values[element] = kept - step;
    double below = model_reference_loss(model, values, NULL);
    values[element] = kept;
    return (above - below) / (2 * step);
}

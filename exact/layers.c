/* Parts of a transformer, and an encoder layer around its attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact/exact.h"

/* ---- Products ---------------------------------------------------------------------- */

void exact_linear(const exact_part *w, int64_t rows, const double *x, double *y) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < w->outputs; o++) {
            double sum = w->bias ? w->bias[o] : 0;
            for (int64_t i = 0; i < w->inputs; i++)
                sum += w->weight[o * w->inputs + i] * x[r * w->inputs + i];
            y[r * w->outputs + o] = sum;
        }
}

/* dx += W' dy, dW += dy x', db += dy. */
void exact_linear_gradient(const exact_part *w, int64_t rows, const double *x,
                           const double *dy, double *dx) {
    for (int64_t r = 0; r < rows; r++, x += w->inputs, dx += w->inputs)
        for (int64_t o = 0; o < w->outputs; o++, dy++) {
            if (w->dbias)
                w->dbias[o] += *dy;
            for (int64_t i = 0; i < w->inputs; i++) {
                dx[i] += w->weight[o * w->inputs + i] * *dy;
                if (w->dweight)
                    w->dweight[o * w->inputs + i] += *dy * x[i];
            }
        }
}

/* ---- Norms ------------------------------------------------------------------------- */

/* Mean of a row, and the reciprocal of its deviation. */
static double moments(const double *x, int64_t size, double epsilon, double *inverse) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < size; i++)
        mean += x[i] / (double)size;
    for (int64_t i = 0; i < size; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)size;
    *inverse = 1 / sqrt(variance + epsilon);
    return mean;
}

void exact_norm(const exact_part *n, double epsilon, int64_t rows, const double *x,
                double *y) {
    for (int64_t r = 0; r < rows; r++, x += n->outputs, y += n->outputs) {
        double inverse;
        const double mean = moments(x, n->outputs, epsilon, &inverse);
        for (int64_t i = 0; i < n->outputs; i++)
            y[i] = (x[i] - mean) * inverse * n->weight[i] + n->bias[i];
    }
}

/* With h = (x - mean) / deviation and g = dy x scale: dx += (g - mean(g) - h mean(g h))
   / deviation, dscale += dy h, dshift += dy. */
void exact_norm_gradient(const exact_part *n, double epsilon, int64_t rows,
                         const double *x, const double *dy, double *dx) {
    const int64_t size = n->outputs;
    for (int64_t r = 0; r < rows; r++, x += size, dy += size, dx += size) {
        double inverse, mean_g = 0, mean_gh = 0;
        const double mean = moments(x, size, epsilon, &inverse);
        for (int64_t i = 0; i < size; i++) {
            const double h = (x[i] - mean) * inverse;
            mean_g += dy[i] * n->weight[i] / (double)size;
            mean_gh += dy[i] * n->weight[i] * h / (double)size;
            if (n->dweight)
                n->dweight[i] += dy[i] * h;
            if (n->dbias)
                n->dbias[i] += dy[i];
        }
        for (int64_t i = 0; i < size; i++)
            dx[i] += inverse *
                     (dy[i] * n->weight[i] - mean_g - (x[i] - mean) * inverse * mean_gh);
    }
}

/* ---- Activations ------------------------------------------------------------------- */

/* The normal distribution function; erfc keeps the small tail accurate. */
static double normal_share(double x) {
    return 0.5 * erfc(-x * sqrt(0.5));
}

double exact_activation(shoal_activation kind, double x) {
    return kind == SHOAL_ACTIVATION_RELU ? fmax(x, 0) : x * normal_share(x);
}

double exact_activation_slope(shoal_activation kind, double x) {
    if (kind == SHOAL_ACTIVATION_RELU)
        return x > 0;
    return normal_share(x) + x * exp(-x * x / 2) / sqrt(2 * acos(-1.0));
}

/* ---- Positions and loss ------------------------------------------------------------ */

double exact_sinusoid(int64_t position, int64_t feature, int64_t size) {
    const double pair = (double)(feature - feature % 2);
    const double angle = (double)position / pow(10000, pair / (double)size);
    return feature % 2 ? cos(angle) : sin(angle);
}

double exact_cross_entropy(int64_t rows, int64_t classes, const double *logits,
                           const int32_t *targets, double *dlogits) {
    double loss = 0, counted = 0;
    for (int64_t r = 0; r < rows; r++)
        counted += targets[r] >= 0;
    for (int64_t r = 0; r < rows; r++, logits += classes) {
        double largest = -INFINITY, sum = 0;
        for (int64_t j = 0; j < classes; j++)
            largest = fmax(largest, logits[j]);
        for (int64_t j = 0; j < classes; j++)
            sum += exp(logits[j] - largest);
        if (targets[r] >= 0)
            loss += log(sum) + largest - logits[targets[r]];
        for (int64_t j = 0; j < classes && dlogits; j++)
            *dlogits++ = targets[r] < 0
                             ? 0
                             : (exp(logits[j] - largest) / sum - (j == targets[r])) /
                                   counted;
    }
    return counted > 0 ? loss / counted : 0;
}

/* ---- An encoder layer -------------------------------------------------------------- */

const char *const exact_part_names[EXACT_PARTS][2] =
    {[EXACT_QUERY] = {"attention.query.weight", "attention.query.bias"},
     [EXACT_KEY] = {"attention.key.weight", "attention.key.bias"},
     [EXACT_VALUE] = {"attention.value.weight", "attention.value.bias"},
     [EXACT_OUTPUT] = {"attention.output.weight", "attention.output.bias"},
     [EXACT_WIDEN] = {"feed_forward.widen.weight", "feed_forward.widen.bias"},
     [EXACT_NARROW] = {"feed_forward.narrow.weight", "feed_forward.narrow.bias"},
     [EXACT_ATTENTION_NORM] = {"attention_norm.scale", "attention_norm.shift"},
     [EXACT_FORWARD_NORM] = {"forward_norm.scale", "forward_norm.shift"}};

exact_layer *exact_layer_create(int64_t model, int64_t wide) {
    exact_layer *layer = calloc(1, sizeof *layer);
    double *memory = calloc((size_t)(8 * model + 3 * wide), sizeof *memory);
    if (!layer || !memory) {
        free(layer), free(memory);
        return NULL;
    }
    *layer = (exact_layer){.model = model, .wide = wide, .epsilon = 1e-5};
    double **const rows[] = {&layer->sum,    &layer->inner, &layer->end,    &layer->out,
                             &layer->branch, &layer->dend,  &layer->dinner, &layer->dsum};
    double **const wide_rows[] = {&layer->hidden, &layer->active, &layer->dhidden};
    layer->memory = memory;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = memory + (int64_t)i * model;
    for (size_t i = 0; i < sizeof wide_rows / sizeof *wide_rows; i++)
        *wide_rows[i] = memory + 8 * model + (int64_t)i * wide;
    for (int part = 0; part < EXACT_PARTS; part++)
        layer->parts[part] = (exact_part){.inputs = part == EXACT_NARROW ? wide : model,
                                          .outputs = part == EXACT_WIDEN ? wide : model};
    return layer;
}

void exact_layer_destroy(exact_layer *layer) {
    if (layer)
        free(layer->memory);
    free(layer);
}

/* Multiplies a row [size] by the dropout factors of a place. */
static void drop(const exact_layer *layer, exact_dropout place, int64_t size,
                 double *row) {
    for (int64_t i = 0; i < size && layer->dropout[place]; i++)
        row[i] *= (double)layer->dropout[place][i];
}

void exact_layer_project(exact_layer *layer, const double *x, double *q, double *k,
                         double *v) {
    const exact_part *norm = &layer->parts[EXACT_ATTENTION_NORM];
    if (!layer->post_norm) {
        exact_norm(norm, layer->epsilon, 1, x, layer->inner);
        x = layer->inner;
    }
    exact_linear(&layer->parts[EXACT_QUERY], 1, x, q);
    exact_linear(&layer->parts[EXACT_VALUE], 1, x, v);
    if (layer->parts[EXACT_KEY].weight)
        exact_linear(&layer->parts[EXACT_KEY], 1, x, k);
    else
        memcpy(k, q, (size_t)layer->model * sizeof *k);
}

const double *exact_layer_row(exact_layer *layer, const double *x,
                              const double *attended) {
    const exact_part *parts = layer->parts;
    const int64_t model = layer->model;
    exact_linear(&parts[EXACT_OUTPUT], 1, attended, layer->branch);
    drop(layer, EXACT_DROP_ATTENTION, model, layer->branch);
    for (int64_t i = 0; i < model; i++)
        layer->sum[i] = x[i] + layer->branch[i];
    exact_norm(&parts[layer->post_norm ? EXACT_ATTENTION_NORM : EXACT_FORWARD_NORM],
               layer->epsilon, 1, layer->sum, layer->inner);
    /* hidden = W1 inner + b1, active = activation(hidden), branch = W2 active + b2. */
    exact_linear(&layer->parts[EXACT_WIDEN], 1, layer->inner, layer->hidden);
    for (int64_t f = 0; f < layer->wide; f++)
        layer->active[f] = exact_activation(layer->activation, layer->hidden[f]);
    drop(layer, EXACT_DROP_HIDDEN, layer->wide, layer->active);
    exact_linear(&layer->parts[EXACT_NARROW], 1, layer->active, layer->branch);
    drop(layer, EXACT_DROP_FORWARD, layer->model, layer->branch);
    const double *past = layer->post_norm ? layer->inner : layer->sum;
    for (int64_t i = 0; i < model; i++)
        layer->end[i] = past[i] + layer->branch[i];
    if (!layer->post_norm)
        return layer->end;
    exact_norm(&parts[EXACT_FORWARD_NORM], layer->epsilon, 1, layer->end, layer->out);
    return layer->out;
}

void exact_layer_row_gradient(exact_layer *layer, const double *x, const double *attended,
                              const double *dout, double *dx, double *dattended) {
    const exact_part *parts = layer->parts;
    const size_t bytes = (size_t)layer->model * sizeof(double);
    exact_layer_row(layer, x, attended);
    memset(layer->dend, 0, bytes);
    memset(layer->dsum, 0, bytes);
    if (layer->post_norm) {
        exact_norm_gradient(&parts[EXACT_FORWARD_NORM], layer->epsilon, 1, layer->end,
                            dout, layer->dend);
        memcpy(layer->dinner, layer->dend, bytes);
    } else {
        memcpy(layer->dend, dout, bytes);
        memcpy(layer->dsum, dout, bytes);
        memset(layer->dinner, 0, bytes);
    }
    /* dinner += gradient through the feed-forward network. */
    memcpy(layer->branch, layer->dend, (size_t)layer->model * sizeof(double));
    drop(layer, EXACT_DROP_FORWARD, layer->model, layer->branch);
    memset(layer->dhidden, 0, (size_t)layer->wide * sizeof(double));
    exact_linear_gradient(&layer->parts[EXACT_NARROW], 1, layer->active, layer->branch,
                          layer->dhidden);
    drop(layer, EXACT_DROP_HIDDEN, layer->wide, layer->dhidden);
    for (int64_t f = 0; f < layer->wide; f++)
        layer->dhidden[f] *= exact_activation_slope(layer->activation, layer->hidden[f]);
    exact_linear_gradient(&layer->parts[EXACT_WIDEN], 1, layer->inner, layer->dhidden,
                          layer->dinner);
    exact_norm_gradient(
        &parts[layer->post_norm ? EXACT_ATTENTION_NORM : EXACT_FORWARD_NORM],
        layer->epsilon, 1, layer->sum, layer->dinner, layer->dsum);
    memcpy(dx, layer->dsum, bytes);
    drop(layer, EXACT_DROP_ATTENTION, layer->model, layer->dsum);
    memset(dattended, 0, bytes);
    exact_linear_gradient(&parts[EXACT_OUTPUT], 1, attended, layer->dsum, dattended);
}

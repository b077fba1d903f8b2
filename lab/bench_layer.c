/* --scope layer: the paper's layer as a model of one layer over features, and its
   verification.

   Weights are drawn as for training, except those of the three projections, which are
   signed permutation matrices. The time of a product does not depend on its numbers,
   and queries, keys and values are known exactly. The attention alone, given the same
   inputs, makes the same choices and reports them.

   Therefore the attention is run alone and verified as in --scope attention, and
   sampled rows of the layer are computed exactly around its output. Gradients are
   checked twice. For the timed gradients: parameters behind the attention do not affect
   its choices, so the loss along their gradient has the slope |gradient|^2, which is
   compared with a central difference of two forward passes. The norm behind the
   attention is invariant to scaling of its rows, so the gradient there is orthogonal to
   them:

       <dx, x> = <dWq, Wq> + <dWk, Wk> + <dWv, Wv> - <dWo, Wo> - <dbo, bo>.

   Then all gradients for another gradient of the output that is nonzero on a few rows
   only. For those rows the backward pass down to the attention is computed exactly; the
   attention's own gradients come from its plan; and because the projections are
   permutations, the gradients of the features follow for all rows, and those of the
   projections row by row. */
#include "bench.h"

enum {
    ROWS = 64, /* rows compared with the exact layer */
    FEW = 16,  /* rows with a nonzero gradient */
    SAMPLED_OUTPUTS = 4,
    BEHIND = 2 * EXACT_OUTPUT, /* first parameter behind the attention */
    PARTS = 2 * EXACT_PARTS    /* number of parameters */
};

static const double tolerance = 1e-5, gradient_tolerance = 5e-5;

/* Step size relative to the norm of the parameters. */
static const double step_share = 1e-3;

/* ---- Creation --------------------------------------------------------------------- */

/* Vectors behind the attention get noise, since weights of 0 or 1 could hide an error.
   Biases of the projections stay 0. */
static void set_weights(const bench_layer *layer, const bench_data *data, uint64_t seed) {
    const int64_t model = data->heads * data->dim;
    for (int p = BEHIND; p < PARTS; p++)
        for (int64_t i = 0; layer->parts[p].dimensions == 1 && i < layer->counts[p]; i++)
            layer->parts[p].values[i] +=
                0.1f * bench_noise(seed, (uint64_t)(32 + p - BEHIND), i);
    for (int p = 0; p < BENCH_PROJECTIONS; p++) {
        float *weight = layer->parts[2 * p].values;
        if (!weight)
            continue;
        memset(weight, 0, (size_t)(model * model) * sizeof *weight);
        for (int64_t a = 0; a < model; a++) {
            const int32_t source = data->sources[p * model + a];
            weight[a * model + (source >= 0 ? source : ~source)] = source >= 0 ? 1 : -1;
        }
    }
}

void bench_layer_create(const bench_job *job, const bench_data *data, int kind,
                        shoal_transport *over, bench_layer *layer) {
    const shoal_model_config config = {.size = sizeof(shoal_model_config),
                                       .max_length = data->length,
                                       .layers = 1,
                                       .heads = data->heads,
                                       .head_dim = data->dim,
                                       .feed_forward = job->feed_forward,
                                       .attention = job->kinds.attention[kind],
                                       .norm = SHOAL_NORM_POST,
                                       .activation = SHOAL_ACTIVATION_GELU,
                                       .positions = SHOAL_POSITIONS_NONE};
    const unsigned flags = job->train ? SHOAL_WITH_BACKWARD : 0;
    const int64_t rows = data->batch * data->length;
    shoal_parameter found;
    *layer = (bench_layer){0};
    demand(over ? shoal_model_create_over(over, job->context, &config, job->seed,
                                          data->batch, rows, flags, &layer->model)
                : shoal_model_create(job->context, &config, job->seed, data->batch, rows,
                                     flags, &layer->model),
           EXIT_USAGE);
    for (int i = 0; shoal_model_parameter(layer->model, i, &found); i++)
        for (int p = 0; p < PARTS; p++)
            if (strstr(found.name, exact_part_names[p / 2][p % 2])) {
                layer->parts[p] = found;
                layer->counts[p] = found.shape[0] *
                                   (found.dimensions > 1 ? found.shape[1] : 1);
            }
    set_weights(layer, data, job->seed);
}

/* ---- Calls ------------------------------------------------------------------------ */

static void forward(bench_layer *layer, const bench_data *data, bool backward) {
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = data->batch,
                                       .offsets = data->offsets,
                                       .features = data->features};
    demand(shoal_model_forward(layer->model, &inputs, &layer->out), EXIT_USAGE);
    if (backward)
        demand(shoal_model_backward(layer->model, &inputs, data->slope, data->dfeatures),
               EXIT_USAGE);
}

double bench_layer_call(bench_layer *layer, const bench_data *data) {
    if (data->train)
        memcpy(data->slope, data->noise, (size_t)data->query_count * sizeof(float));
    const double begun = seconds_now();
    forward(layer, data, data->train);
    return seconds_now() - begun;
}

uint64_t bench_layer_digest(const bench_layer *layer, const bench_data *data) {
    uint64_t digest = fold_floats(1, layer->out, data->query_count);
    if (!data->train)
        return digest;
    digest = fold_floats(digest, data->dfeatures, data->query_count);
    for (int p = 0; p < PARTS; p++)
        digest = fold_floats(digest, layer->parts[p].gradients, layer->counts[p]);
    return digest;
}

/* ---- The layer in exact arithmetic ------------------------------------------------- */

/* Values of the parameters behind the attention, and accumulators for their
   gradients. */
typedef struct {
    exact_layer *layer;
    double *memory;
    double *x, *attended, *dout, *dattended; /* [M], one row */
} layer_copy;

static void layer_copy_destroy(layer_copy *copy) {
    exact_layer_destroy(copy->layer);
    free(copy->memory);
}

static layer_copy layer_copy_create(const bench_job *job, const bench_layer *from) {
    const int64_t model = job->heads * job->dim;
    int64_t count = 4 * model;
    layer_copy copy = {.layer = exact_layer_create(model, job->feed_forward)};
    for (int p = BEHIND; p < PARTS; p++)
        count += 2 * from->counts[p];
    double *next = copy.memory = reserve_zeros((size_t)count, sizeof *next);
    if (!copy.layer)
        die_of_memory();
    copy.layer->post_norm = true;
    for (int p = BEHIND; p < PARTS; p++) {
        const int64_t size = from->counts[p];
        exact_part *to = &copy.layer->parts[p / 2];
        for (int64_t i = 0; i < size; i++)
            next[i] = (double)from->parts[p].values[i];
        *(p % 2 ? &to->bias : &to->weight) = next;
        *(p % 2 ? &to->dbias : &to->dweight) = next + size;
        next += 2 * size;
    }
    copy.x = next;
    copy.attended = next + model;
    copy.dout = next + 2 * model;
    copy.dattended = next + 3 * model;
    return copy;
}

/* Loads x and attended of a row; `out` of the data is the output of the attention. */
static void load_row(layer_copy *copy, const bench_data *data, int64_t row) {
    const int64_t model = copy->layer->model;
    for (int64_t a = 0; a < model; a++) {
        copy->x[a] = (double)data->features[row * model + a];
        copy->attended[a] = (double)data->out[bench_place(data, row, a)];
    }
}

static void check_rows(const bench_job *job, const bench_layer *layer,
                       const bench_data *data, bench_row *row) {
    const int64_t rows = data->batch * data->length, model = job->heads * job->dim;
    squares sums = {0};
    layer_copy copy = layer_copy_create(job, layer);
    for (uint64_t s = 0; s < ROWS; s++) {
        const uint64_t draw = bench_random(job->seed, (uint64_t)10 << 56 | s);
        const int64_t at = (int64_t)(draw % (uint64_t)rows);
        load_row(&copy, data, at);
        const double *exact = exact_layer_row(copy.layer, copy.x, copy.attended);
        for (int64_t a = 0; a < model; a++)
            squares_add(&sums, (double)layer->out[at * model + a], exact[a]);
    }
    layer_copy_destroy(&copy);
    bench_note(row, "layer around its attention, 64 sampled rows", squares_relative(sums),
               tolerance);
}

/* ---- The timed gradients of the layer --------------------------------------------- */

typedef struct {
    const bench_job *job;
    bench_layer *layer;
    shoal_plan *plan;
    bench_data *data;
    const shoal_attention *attention;
    bench_row *row;
    int64_t model, rows;
} gradient_check;

static void check_lengths(const gradient_check *check) {
    const bench_data *data = check->data;
    double left = dot_floats(data->dfeatures, data->features, data->query_count);
    double size = fabs(left);
    for (int p = 0; p < BEHIND + 2; p++) {
        const shoal_parameter *found = &check->layer->parts[p];
        const double one =
            dot_floats(found->gradients, found->values, check->layer->counts[p]);
        if (p < BEHIND && p % 2)
            continue;
        left -= p >= BEHIND ? -one : one;
        size += fabs(one);
    }
    bench_note(check->row, "<dx, x> = sum over the weights' gradients",
               left == 0 ? 0 : fabs(left) / size, 1e-4);
}

/* Sets the parameters behind the attention to saved + step x gradient; returns the
   change of the loss that the gradient predicts for the rounded step. */
static double move_parts(const bench_layer *layer, const float *saved, double step) {
    double predicted = 0;
    for (int p = BEHIND; p < PARTS; saved += layer->counts[p++]) {
        const shoal_parameter *found = &layer->parts[p];
        for (int64_t i = 0; i < layer->counts[p]; i++) {
            const double slope = (double)found->gradients[i];
            found->values[i] = (float)((double)saved[i] + step * slope);
            predicted += slope * ((double)found->values[i] - (double)saved[i]);
        }
    }
    return predicted;
}

/* `length` is the norm of those parameters, `slope` that of their gradient. */
static void check_slope(const gradient_check *check) {
    const bench_layer *layer = check->layer;
    double length = 0, slope = 0, loss[2] = {0}, predicted[2] = {0};
    int64_t all = 0;
    for (int p = BEHIND; p < PARTS; p++)
        all += layer->counts[p];
    float *saved = reserve((size_t)all, sizeof *saved), *next = saved;
    for (int p = BEHIND; p < PARTS; next += layer->counts[p++]) {
        const shoal_parameter *found = &layer->parts[p];
        memcpy(next, found->values, (size_t)layer->counts[p] * sizeof *next);
        length += dot_floats(found->values, found->values, layer->counts[p]);
        slope += dot_floats(found->gradients, found->gradients, layer->counts[p]);
    }
    length = sqrt(length);
    slope = sqrt(slope);
    const double step = slope > 0 ? step_share * length / slope : 0;
    for (int side = 0; side < 2; side++) {
        predicted[side] = move_parts(check->layer, saved, side ? step : -step);
        forward(check->layer, check->data, false);
        loss[side] =
            dot_floats(check->data->noise, check->layer->out, check->data->query_count);
    }
    move_parts(check->layer, saved, 0);
    free(saved);
    const double expected = predicted[1] - predicted[0];
    const double difference = fabs(loss[1] - loss[0] - expected);
    const double rounding = 5e-5 * fabs(loss[0]);
    bench_note(check->row, "directional difference of the weights",
               difference == 0 ? 0 : difference / (fabs(expected) + rounding), 2e-3);
}

/* ---- A gradient of a few rows ----------------------------------------------------- */

/* The s-th of the few rows: one from each part, so that they are distinct. */
static int64_t sampled_row(const gradient_check *check, int64_t s, int64_t few) {
    const int64_t first = s * check->rows / few, next = (s + 1) * check->rows / few;
    const uint64_t draw =
        bench_random(check->job->seed, (uint64_t)11 << 56 | (uint64_t)s);
    return first + (int64_t)(draw % (uint64_t)(next - first));
}

/* Fills slope, and dout of the attention; dx [few][M] is the gradient that bypasses the
   attention through the residual connection. */
static void way_back(const gradient_check *check, layer_copy *copy, int64_t few,
                     double *dx) {
    bench_data *data = check->data;
    const int64_t model = check->model;
    memset(data->slope, 0, (size_t)data->query_count * sizeof(float));
    memset(data->dout, 0, (size_t)data->value_count * sizeof(float));
    for (int64_t s = 0; s < few; s++) {
        const int64_t row = sampled_row(check, s, few);
        load_row(copy, data, row);
        for (int64_t a = 0; a < model; a++) {
            data->slope[row * model + a] = data->noise[row * model + a];
            copy->dout[a] = (double)data->noise[row * model + a];
        }
        exact_layer_row_gradient(copy->layer, copy->x, copy->attended, copy->dout,
                                 dx + s * model, copy->dattended);
        for (int64_t a = 0; a < model; a++)
            data->dout[bench_place(data, row, a)] = (float)copy->dattended[a];
    }
}

/* Feature `a` of the gradient of a projection at a row. */
static double projected(const gradient_check *check, int projection, int64_t row,
                        int64_t a) {
    const bench_data *data = check->data;
    const float *const gradients[] = {data->dq, data->dk, data->dv};
    return (double)gradients[projection][bench_place(data, row, a)];
}

static bool has_projection(const gradient_check *check, int projection) {
    return check->layer->parts[2 * projection].values != NULL;
}

static void check_features(const gradient_check *check, int64_t few, const double *dx,
                           double *expected) {
    const int64_t model = check->model;
    squares sums = {0};
    for (int64_t row = 0, s = 0; row < check->rows; row++) {
        memset(expected, 0, (size_t)model * sizeof *expected);
        if (s < few && row == sampled_row(check, s, few))
            memcpy(expected, dx + s++ * model, (size_t)model * sizeof *expected);
        for (int p = 0; p < BENCH_PROJECTIONS; p++)
            for (int64_t a = 0; a < model && has_projection(check, p); a++) {
                const int32_t source = check->data->sources[p * model + a];
                const double slope = projected(check, p, row, a);
                expected[source >= 0 ? source : ~source] += source >= 0 ? slope : -slope;
            }
        for (int64_t a = 0; a < model; a++)
            squares_add(&sums, (double)check->data->dfeatures[row * model + a],
                        expected[a]);
    }
    bench_note(check->row, "gradient of the features, all rows", squares_relative(sums),
               gradient_tolerance);
}

/* Compares some rows of a projection's weight, each with its bias. */
static squares projection_error(const gradient_check *check, int p, double *expected) {
    const int64_t model = check->model;
    const shoal_parameter *weight = &check->layer->parts[2 * p], *bias = weight + 1;
    squares sums = {0};
    for (uint64_t s = 0; s < SAMPLED_OUTPUTS; s++) {
        const uint64_t draw = bench_random(check->job->seed, (uint64_t)12 << 56 | s);
        const int64_t a = (int64_t)(draw % (uint64_t)model);
        double along = 0;
        memset(expected, 0, (size_t)model * sizeof *expected);
        for (int64_t row = 0; row < check->rows; row++) {
            const double slope = projected(check, p, row, a);
            along += slope;
            for (int64_t i = 0; i < model; i++)
                expected[i] += slope * (double)check->data->features[row * model + i];
        }
        squares_add(&sums, (double)bias->gradients[a], along);
        for (int64_t i = 0; i < model; i++)
            squares_add(&sums, (double)weight->gradients[a * model + i], expected[i]);
    }
    return sums;
}

static void check_weights(const gradient_check *check, const layer_copy *copy,
                          double *expected) {
    double worst = 0;
    for (int p = BEHIND; p < PARTS; p++) {
        const exact_part *exact = &copy->layer->parts[p / 2];
        const double *slopes = p % 2 ? exact->dbias : exact->dweight;
        squares sums = {0};
        for (int64_t i = 0; i < check->layer->counts[p]; i++)
            squares_add(&sums, (double)check->layer->parts[p].gradients[i], slopes[i]);
        worst = worse(worst, squares_relative(sums));
    }
    bench_note(check->row, "gradients of the weights behind the attention", worst,
               gradient_tolerance);
    squares sums[BENCH_PROJECTIONS] = {0};
    for (int p = 0; p < BENCH_PROJECTIONS; p++)
        if (has_projection(check, p))
            sums[p] = projection_error(check, p, expected);
    bench_note(check->row, "gradients of the projections, sampled",
               bench_worst(sums, 1e-4), gradient_tolerance);
}

static void check_few(const gradient_check *check) {
    const int64_t few = check->rows < FEW ? check->rows : FEW;
    bench_data *data = check->data;
    const shoal_inputs inputs = bench_inputs(data, check->attention);
    const shoal_gradients gradients = bench_gradients(data);
    layer_copy copy = layer_copy_create(check->job, check->layer);
    double *dx = reserve((size_t)((few + 1) * check->model), sizeof *dx);
    double *expected = dx + few * check->model;
    way_back(check, &copy, few, dx);
    forward(check->layer, data, true);
    demand(shoal_backward(check->plan, &inputs, &gradients), EXIT_USAGE);
    check_features(check, few, dx, expected);
    check_weights(check, &copy, expected);
    layer_copy_destroy(&copy);
    free(dx);
}

/* ---- The layer -------------------------------------------------------------------- */

void bench_verify_layer(bench_job *job, bench_layer *layer, bench_data *data, int kind,
                        bench_row *row) {
    const shoal_attention *attention = &job->kinds.attention[kind];
    const shoal_inputs inputs = bench_inputs(data, attention);
    shoal_plan *plan =
        bench_plan(job, data, attention, job->train ? SHOAL_WITH_BACKWARD : 0);
    const gradient_check check = {.job = job,
                                  .layer = layer,
                                  .plan = plan,
                                  .data = data,
                                  .attention = attention,
                                  .row = row,
                                  .model = job->heads * job->dim,
                                  .rows = data->batch * data->length};
    demand(shoal_forward(plan, &inputs, data->out), EXIT_USAGE);
    check_rows(job, layer, data, row);
    if (job->train) {
        check_lengths(&check);
        check_slope(&check);
        check_few(&check);
    }
    bench_call(plan, data, attention);
    bench_verify(job, plan, data, kind, row);
    shoal_plan_destroy(plan);
}

#include "speech/decoder.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

/* Where a row of one run stands. */
typedef struct {
    int32_t text, position;
} row_place;

/* B texts, P text positions, R rows of one run at most, T width, A audio positions. */
struct decoder {
    const whisper_model *model;
    size_t bytes;
    int64_t texts, positions, longest;   /* B, P, R */
    int64_t heads, dim, width;           /* T = heads * dim */
    shoal_plan *prompt_plan, *step_plan; /* attention over the audio: R and B queries */
    float *audio;                        /* [layers][A][2 T]: keys and values */

    float *keys, *values;         /* [layers][P][B][T] */
    int32_t *origin, *new_origin; /* [B][P]: which text wrote that position of its past */
    int32_t *length, *new_length; /* [B]; new_*: room for a new order */

    row_place *rows;   /* [R] */
    float *x, *normed; /* [R][T] */
    float *wide;       /* [R][4 T], or [R][3 T] */
    float *mixed;      /* [R][T] */
    float *weights;    /* [threads][P] */
    float *widened;    /* a half matrix as floats, for many rows */
};

/* ---- Memory --------------------------------------------------------------------- */

static int64_t scratch_of(const decoder *d) {
    const decoder_layer *layer = d->model->decoder;
    const int64_t rows = d->longest;
    const int64_t audio = sizes_of(d->model)->audio_positions;
    int64_t most = sh_linear_scratch(&layer->cross_in, audio);
    const linear *const all[] = {&layer->self_in,   &layer->self_out, &layer->cross_query,
                                 &layer->cross_out, &layer->widen,    &layer->narrow};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        most = max(most, max(sh_linear_scratch(all[i], rows),
                             sh_linear_scratch(all[i], d->texts)));
    return most;
}

static void place_cache(decoder *d, block_layout *block) {
    const int64_t layers = sizes_of(d->model)->text_layers;
    const int64_t places = sh_mul_checked(d->positions, d->texts);
    const int64_t all = sh_mul_checked(layers, sh_mul_checked(places, d->width));
    d->keys = sh_reserve(block, all, sizeof *d->keys);
    d->values = sh_reserve(block, all, sizeof *d->values);
    d->origin = sh_reserve(block, places, sizeof *d->origin);
    d->new_origin = sh_reserve(block, places, sizeof *d->new_origin);
    d->length = sh_reserve(block, d->texts, sizeof *d->length);
    d->new_length = sh_reserve(block, d->texts, sizeof *d->new_length);
}

static void place(void *argument, block_layout *block) {
    decoder *d = argument;
    const whisper_sizes *sizes = sizes_of(d->model);
    const int64_t rows = d->longest, width = d->width;
    const int64_t audio = sh_mul_checked(sizes->text_layers, sizes->audio_positions);
    sh_reserve(block, 1, sizeof *d);
    d->audio = reserve_floats(block, audio, 2 * width);
    place_cache(d, block);
    d->rows = sh_reserve(block, rows, sizeof *d->rows);
    d->x = reserve_floats(block, rows, width);
    d->normed = reserve_floats(block, rows, width);
    d->wide = reserve_floats(block, rows, 4 * width);
    d->mixed = reserve_floats(block, rows, width);
    d->weights = reserve_floats(block, d->model->context->threads, d->positions);
    d->widened = sh_reserve(block, scratch_of(d), sizeof *d->widened);
}

/* Queries of the text over keys and values of the audio, which lie side by side. */
static shoal_status plan_cross(decoder *d, int64_t queries, shoal_plan **plan) {
    const whisper_sizes *sizes = sizes_of(d->model);
    const int64_t width = sizes->text_width, dim = width / sizes->text_heads;
    const shoal_strides of_text = {width * queries, dim, width};
    const shoal_strides of_audio = {2 * width * sizes->audio_positions, dim, 2 * width};
    const shoal_problem problem = {.batch = 1,
                                   .heads = sizes->text_heads,
                                   .queries = queries,
                                   .keys = sizes->audio_positions,
                                   .dim = dim,
                                   .value_dim = dim,
                                   .q = of_text,
                                   .k = of_audio,
                                   .v = of_audio,
                                   .out = of_text};
    const shoal_attention full = {.kind = SHOAL_FULL};
    return shoal_plan_create(d->model->context, &problem, &full, 0, plan);
}

shoal_status sh_decoder_create(shoal_context *context, const whisper_model *model,
                               int texts, decoder **made) {
    const whisper_sizes *sizes = sizes_of(model);
    decoder sized = {.model = model,
                     .texts = texts,
                     .positions = sizes->text_positions,
                     .longest = max(sizes->text_positions, texts),
                     .heads = sizes->text_heads,
                     .dim = sizes->text_width / sizes->text_heads,
                     .width = sizes->text_width};
    *made = NULL;
    sh_blas_use_one_thread();
    decoder *d = sh_allocate_parts(context, place, &sized, &sized.bytes);
    if (!d)
        return SHOAL_NO_MEMORY;
    *d = sized;
    shoal_status status = plan_cross(d, d->longest, &d->prompt_plan);
    if (status == SHOAL_OK)
        status = plan_cross(d, d->texts, &d->step_plan);
    if (status != SHOAL_OK) {
        sh_decoder_destroy(d);
        return status;
    }
    *made = d;
    return SHOAL_OK;
}

void sh_decoder_destroy(decoder *d) {
    if (!d)
        return;
    shoal_plan_destroy(d->prompt_plan);
    shoal_plan_destroy(d->step_plan);
    sh_release(d->model->context, d);
}

int sh_decoder_texts(const decoder *d) {
    return (int)d->texts;
}

size_t sh_decoder_memory(const decoder *d) {
    return d->bytes + shoal_plan_workspace(d->prompt_plan) +
           shoal_plan_workspace(d->step_plan);
}

const whisper_sizes *sh_decoder_sizes(const decoder *d) {
    return sizes_of(d->model);
}

int sh_decoder_room(const decoder *d, int text) {
    return (int)d->positions - d->length[text];
}

/* ---- Attention over the past ---------------------------------------------------- */

/* Where (layer, position, text) lies in keys and values. */
static int64_t place_of(const decoder *d, int64_t layer, int64_t position, int64_t text) {
    return ((layer * d->positions + position) * d->texts + text) * d->width;
}

/* Keys and values of the rows, which lie in `wide` beside the queries. */
static void keep_rows(decoder *d, int64_t layer, int64_t rows) {
    const size_t bytes = (size_t)d->width * sizeof(float);
    for (int64_t r = 0; r < rows; r++) {
        const float *in = d->wide + r * 3 * d->width;
        const int64_t place = place_of(d, layer, d->rows[r].position, d->rows[r].text);
        memcpy(d->keys + place, in + d->width, bytes);
        memcpy(d->values + place, in + 2 * d->width, bytes);
    }
}

/* exp(score - largest) in place; returns the sum. */
static float exponentiate(float *scores, int64_t count) {
    float largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        largest = scores[i] > largest ? scores[i] : largest;
    for (int64_t i = 0; i < count; i++) {
        scores[i] = expf(scores[i] - largest);
        sum += scores[i];
    }
    return sum;
}

typedef struct {
    const decoder *d;
    int64_t layer;
} attending;

/* One head of one row, over the positions up to its own. */
static void attend_one(void *shared, int64_t task, int thread) {
    const attending *job = shared;
    const decoder *d = job->d;
    const int64_t row = task / d->heads, skip = task % d->heads * d->dim;
    const row_place at = d->rows[row];
    const int64_t count = at.position + 1;
    const int32_t *origin = d->origin + at.text * d->positions;
    const float *query = d->wide + row * 3 * d->width + skip;
    const float scale = 1 / sqrtf((float)d->dim);
    float *weights = d->weights + thread * d->positions;
    float *out = d->mixed + row * d->width + skip;
    for (int64_t p = 0; p < count; p++) {
        const float *key = d->keys + skip + place_of(d, job->layer, p, origin[p]);
        weights[p] = scale * ordered_dot(query, key, (int)d->dim);
    }
    const float factor = 1 / exponentiate(weights, count);
    memset(out, 0, (size_t)d->dim * sizeof *out);
    for (int64_t p = 0; p < count; p++) {
        const float *value = d->values + skip + place_of(d, job->layer, p, origin[p]);
        const float weight = weights[p] * factor;
        for (int64_t i = 0; i < d->dim; i++)
            out[i] += weight * value[i];
    }
}

/* mixed [rows][T] = attention of the queries, keys and values in wide [rows][3 T]. */
static void attend_to_past(decoder *d, int64_t layer, int64_t rows) {
    attending job = {d, layer};
    keep_rows(d, layer, rows);
    sh_team_run(sh_team_of(d->model->context), rows * d->heads, attend_one, &job);
}

/* ---- Attention over the audio --------------------------------------------------- */

static float *audio_of(const decoder *d, int64_t layer) {
    return d->audio + layer * sizes_of(d->model)->audio_positions * 2 * d->width;
}

void sh_decoder_set_audio(decoder *d, const float *encoded) {
    const whisper_sizes *sizes = sizes_of(d->model);
    const const_matrix from = {encoded, sizes->audio_width};
    for (int64_t layer = 0; layer < sizes->text_layers; layer++)
        sh_linear_forward(d->model->context, &d->model->decoder[layer].cross_in,
                          sizes->audio_positions, from,
                          (matrix){audio_of(d, layer), 2 * d->width}, d->widened);
}

/* mixed [rows][T] = attention of the queries in wide [rows][T]. */
static void attend_to_audio(decoder *d, int64_t layer, int64_t rows, shoal_plan *plan) {
    const float *audio = audio_of(d, layer);
    const shoal_inputs inputs = {.q = d->wide,
                                 .k = audio,
                                 .v = audio + d->width,
                                 .query_lengths = &rows};
    /* The plan was made for these sizes, so it refuses nothing. */
    shoal_forward(plan, &inputs, d->mixed);
}

/* ---- The network ---------------------------------------------------------------- */

/* x[row] = the token's embedding + its position's. */
static void embed(decoder *d, row_place at, int64_t row, int32_t token) {
    const int64_t width = d->width;
    const float *position = d->model->text_positions + at.position * width;
    const nn_tensor table = d->model->embedding.weight;
    float *x = d->x + row * width;
    d->rows[row] = at;
    if (table.half) {
        const uint16_t *halves = (const uint16_t *)table.data + token * width;
        for (int64_t i = 0; i < width; i++)
            x[i] = half_to_float(halves[i]) + position[i];
    } else {
        const float *values = (const float *)table.data + token * width;
        for (int64_t i = 0; i < width; i++)
            x[i] = values[i] + position[i];
    }
}

/* y [rows][outputs] = layer(x [rows][inputs]), both without gaps. */
static void project(decoder *d, const linear *layer, int64_t rows, const float *x,
                    float *y) {
    sh_linear_forward(d->model->context, layer, rows, (const_matrix){x, layer->inputs},
                      (matrix){y, layer->outputs}, d->widened);
}

static void add_to(float *x, const float *more, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] += more[i];
}

static void run_layer(decoder *d, int64_t index, int64_t rows, shoal_plan *plan) {
    const decoder_layer *layer = &d->model->decoder[index];
    const int64_t width = d->width;
    sh_norm_forward(d->model->context, &layer->self_norm, rows, d->x, d->normed, NULL);
    project(d, &layer->self_in, rows, d->normed, d->wide);
    attend_to_past(d, index, rows);
    project(d, &layer->self_out, rows, d->mixed, d->normed);
    add_to(d->x, d->normed, rows * width);

    sh_norm_forward(d->model->context, &layer->cross_norm, rows, d->x, d->normed, NULL);
    project(d, &layer->cross_query, rows, d->normed, d->wide);
    attend_to_audio(d, index, rows, plan);
    project(d, &layer->cross_out, rows, d->mixed, d->normed);
    add_to(d->x, d->normed, rows * width);

    sh_norm_forward(d->model->context, &layer->forward_norm, rows, d->x, d->normed, NULL);
    project(d, &layer->widen, rows, d->normed, d->wide);
    sh_activation_forward(d->model->context, ACTIVATION_GELU, rows * 4 * width, d->wide,
                          d->wide);
    project(d, &layer->narrow, rows, d->wide, d->normed);
    add_to(d->x, d->normed, rows * width);
}

/* The rows are embedded; afterwards `normed` holds what logits come from. */
static void run(decoder *d, int64_t rows, shoal_plan *plan) {
    for (int64_t layer = 0; layer < sizes_of(d->model)->text_layers; layer++)
        run_layer(d, layer, rows, plan);
    sh_norm_forward(d->model->context, &d->model->last_norm, rows, d->x, d->normed, NULL);
}

/* The prompt is written by text 0, and is every text's past. */
void sh_decoder_begin(decoder *d, const int32_t *prompt, int count) {
    memset(d->origin, 0, (size_t)(d->texts * d->positions) * sizeof *d->origin);
    for (int64_t text = 0; text < d->texts; text++)
        d->length[text] = count;
    for (int row = 0; row < count; row++)
        embed(d, (row_place){0, row}, row, prompt[row]);
    run(d, count, d->prompt_plan);
}

void sh_decoder_step(decoder *d, const int32_t *next, int texts) {
    for (int text = 0; text < texts; text++) {
        const row_place at = {text, d->length[text]++};
        d->origin[text * d->positions + at.position] = text;
        embed(d, at, text, next[text]);
    }
    run(d, texts, d->step_plan);
}

static void swap(int32_t **a, int32_t **b) {
    int32_t *before = *a;
    *a = *b;
    *b = before;
}

void sh_decoder_reorder(decoder *d, const int32_t *parents, int texts) {
    for (int text = 0; text < texts; text++) {
        const int32_t length = d->length[parents[text]];
        d->new_length[text] = length;
        memcpy(d->new_origin + text * d->positions,
               d->origin + parents[text] * d->positions,
               (size_t)length * sizeof *d->new_origin);
    }
    swap(&d->length, &d->new_length);
    swap(&d->origin, &d->new_origin);
}

void sh_decoder_logits(decoder *d, int first, int count, float *logits) {
    const linear *table = &d->model->embedding;
    const int64_t width = table->inputs, vocabulary = table->outputs;
    for (int row = 0; row < count; row += FEW_ROWS) {
        const int64_t rows = min(count - row, FEW_ROWS);
        sh_matmul_few(d->model->context, rows, width, vocabulary,
                      (const_matrix){d->normed + (first + row) * width, width},
                      table->weight.data, table->weight.half, NULL,
                      (matrix){logits + row * vocabulary, vocabulary});
    }
}

#include "speech/decode_network.h"

#include <string.h>

#include "speech/decode_cache.h"

/* B beams, R rows of the longest text, T width, E the encoder's, A audio positions. */
struct decoder {
    const whisper_model *model;
    crew crew;
    size_t bytes;
    int beams, longest;
    int length; /* positions used */
    decode_cache cache;
    shoal_plan *text_plan, *step_plan; /* attention over the audio: R and B queries */
    float *audio;                      /* [layers][A][2 T]: keys and values */
    float *x, *normed;                 /* [R][T] */
    float *wide;                       /* [R][4 T], or [R][3 T] */
    float *mixed;                      /* [R][T] */
    float *widened;                    /* a half matrix as floats, for many rows */
};

/* ---- Memory --------------------------------------------------------------------- */

static int64_t scratch_of(const decoder *d) {
    const decoder_layer *layer = d->model->decoder;
    const int64_t rows = d->longest;
    const int64_t audio = whisper_sizes(d->model)->audio_positions;
    int64_t most = sh_linear_scratch(&layer->cross_in, audio);
    const linear *const all[] = {&layer->self_in,   &layer->self_out, &layer->cross_query,
                                 &layer->cross_out, &layer->widen,    &layer->narrow};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        most = max(most, max(sh_linear_scratch(all[i], rows),
                             sh_linear_scratch(all[i], d->beams)));
    return most;
}

static void place(void *argument, block_layout *block) {
    decoder *d = argument;
    const speech_sizes *sizes = whisper_sizes(d->model);
    const int64_t rows = d->longest, width = sizes->text_width;
    sh_reserve(block, 1, sizeof *d);
    sh_cache_place(&d->cache, block);
    d->audio = sh_reserve(block,
                          sh_mul_checked(sh_mul_checked(sizes->text_layers,
                                                        sizes->audio_positions),
                                         sh_mul_checked(2, width)),
                          sizeof *d->audio);
    d->x = sh_reserve(block, sh_mul_checked(rows, width), sizeof *d->x);
    d->normed = sh_reserve(block, sh_mul_checked(rows, width), sizeof *d->normed);
    d->wide = sh_reserve(block, sh_mul_checked(rows, sh_mul_checked(4, width)),
                         sizeof *d->wide);
    d->mixed = sh_reserve(block, sh_mul_checked(rows, width), sizeof *d->mixed);
    d->widened = sh_reserve(block, scratch_of(d), sizeof *d->widened);
}

/* Queries of the text over keys and values of the audio, which lie side by side. */
static shoal_status plan_cross(decoder *d, int64_t queries, shoal_plan **plan) {
    const speech_sizes *sizes = whisper_sizes(d->model);
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
                               int beams, decoder **made) {
    const speech_sizes *sizes = whisper_sizes(model);
    decoder sized = {.model = model,
                     .crew = sh_crew_of(context),
                     .beams = beams,
                     .longest = (int)max(sizes->text_positions, beams)};
    sized.cache = (decode_cache){.layers = sizes->text_layers,
                                 .positions = sizes->text_positions,
                                 .beams = beams,
                                 .heads = sizes->text_heads,
                                 .dim = sizes->text_width / sizes->text_heads,
                                 .threads = sized.crew.workers.threads};
    *made = NULL;
    decoder *d = sh_allocate_parts(context, place, &sized, &sized.bytes);
    if (!d)
        return SHOAL_NO_MEMORY;
    *d = sized;
    shoal_status status = plan_cross(d, d->longest, &d->text_plan);
    if (status == SHOAL_OK)
        status = plan_cross(d, beams, &d->step_plan);
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
    shoal_plan_destroy(d->text_plan);
    shoal_plan_destroy(d->step_plan);
    sh_release(d->model->context, d);
}

int sh_decoder_beams(const decoder *d) {
    return d->beams;
}

size_t sh_decoder_memory(const decoder *d) {
    return d->bytes + shoal_plan_workspace(d->text_plan) +
           shoal_plan_workspace(d->step_plan);
}

const speech_sizes *sh_decoder_sizes(const decoder *d) {
    return whisper_sizes(d->model);
}

int sh_decoder_room(const decoder *d) {
    return whisper_sizes(d->model)->text_positions - d->length;
}

/* ---- The network ---------------------------------------------------------------- */

static float *audio_of(const decoder *d, int64_t layer) {
    const speech_sizes *sizes = whisper_sizes(d->model);
    return d->audio + layer * sizes->audio_positions * 2 * sizes->text_width;
}

void sh_decoder_hear(decoder *d, const float *encoded) {
    const speech_sizes *sizes = whisper_sizes(d->model);
    const const_matrix from = {encoded, sizes->audio_width};
    for (int64_t layer = 0; layer < sizes->text_layers; layer++)
        sh_linear_forward(&d->crew, &d->model->decoder[layer].cross_in,
                          sizes->audio_positions, from,
                          (matrix){audio_of(d, layer), 2 * (int64_t)sizes->text_width},
                          d->widened);
}

/* x[row] = the token's embedding + its position's. */
static void embed(decoder *d, int64_t row, int32_t token, int position) {
    const int64_t width = whisper_sizes(d->model)->text_width;
    const float *place = d->model->text_positions + position * width;
    const nn_tensor table = d->model->embedding.weight;
    float *x = d->x + row * width;
    if (table.half) {
        const uint16_t *halves = (const uint16_t *)table.data + token * width;
        for (int64_t i = 0; i < width; i++)
            x[i] = sh_half_to_float(halves[i]) + place[i];
    } else {
        const float *values = (const float *)table.data + token * width;
        for (int64_t i = 0; i < width; i++)
            x[i] = values[i] + place[i];
    }
}

/* y [rows][outputs] = layer(x [rows][inputs]), both without gaps. */
static void project(decoder *d, const linear *layer, int64_t rows, const float *x,
                    float *y) {
    sh_linear_forward(&d->crew, layer, rows, (const_matrix){x, layer->inputs},
                      (matrix){y, layer->outputs}, d->widened);
}

static void add_to(float *x, const float *more, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] += more[i];
}

static void attend_to_audio(decoder *d, int64_t layer, int64_t rows, bool step) {
    const int64_t width = whisper_sizes(d->model)->text_width;
    const float *audio = audio_of(d, layer);
    const shoal_inputs inputs = {.q = d->wide,
                                 .k = audio,
                                 .v = audio + width,
                                 .query_lengths = &rows};
    /* The plan was made for these sizes, so it refuses nothing. */
    shoal_forward(step ? d->step_plan : d->text_plan, &inputs, d->mixed);
}

static void run_layer(decoder *d, int64_t index, const cache_rows *now) {
    const decoder_layer *layer = &d->model->decoder[index];
    const int64_t rows = now->rows, width = whisper_sizes(d->model)->text_width;
    sh_norm_forward(&d->crew, &layer->self_norm, rows, d->x, d->normed, NULL);
    project(d, &layer->self_in, rows, d->normed, d->wide);
    sh_cache_attend(&d->crew, &d->cache, index, now);
    project(d, &layer->self_out, rows, d->mixed, d->normed);
    add_to(d->x, d->normed, rows * width);

    sh_norm_forward(&d->crew, &layer->cross_norm, rows, d->x, d->normed, NULL);
    project(d, &layer->cross_query, rows, d->normed, d->wide);
    attend_to_audio(d, index, rows, now->step);
    project(d, &layer->cross_out, rows, d->mixed, d->normed);
    add_to(d->x, d->normed, rows * width);

    sh_norm_forward(&d->crew, &layer->forward_norm, rows, d->x, d->normed, NULL);
    project(d, &layer->widen, rows, d->normed, d->wide);
    sh_activation_forward(&d->crew, ACTIVATION_GELU, rows * 4 * width, d->wide, d->wide);
    project(d, &layer->narrow, rows, d->wide, d->normed);
    add_to(d->x, d->normed, rows * width);
}

/* x is embedded; afterwards `normed` holds the rows that logits come from. */
static void run(decoder *d, int rows, int first, bool step) {
    const cache_rows now = {.rows = rows,
                            .first = first,
                            .step = step,
                            .in = d->wide,
                            .out = d->mixed};
    for (int64_t layer = 0; layer < whisper_sizes(d->model)->text_layers; layer++)
        run_layer(d, layer, &now);
    sh_norm_forward(&d->crew, &d->model->last_norm, rows, d->x, d->normed, NULL);
}

void sh_decoder_begin(decoder *d, const int32_t *text, int count) {
    sh_cache_clear(&d->cache);
    for (int row = 0; row < count; row++)
        embed(d, row, text[row], row);
    run(d, count, 0, false);
    d->length = count;
}

void sh_decoder_step(decoder *d, const int32_t *next, int beams) {
    for (int beam = 0; beam < beams; beam++)
        embed(d, beam, next[beam], d->length);
    sh_cache_own(&d->cache, beams, d->length);
    run(d, beams, d->length, true);
    d->length++;
}

void sh_decoder_reorder(decoder *d, const int32_t *parents, int beams) {
    sh_cache_reorder(&d->cache, parents, beams, d->length);
}

void sh_decoder_logits(decoder *d, int first, int count, float *logits) {
    const linear *table = &d->model->embedding;
    const int64_t width = table->inputs, vocabulary = table->outputs;
    for (int row = 0; row < count; row += FEW_ROWS) {
        const int64_t rows = min(count - row, FEW_ROWS);
        sh_matmul_few(&d->crew, rows, width, vocabulary,
                      (const_matrix){d->normed + (first + row) * width, width},
                      table->weight.data, table->weight.half, NULL,
                      (matrix){logits + row * vocabulary, vocabulary});
    }
}

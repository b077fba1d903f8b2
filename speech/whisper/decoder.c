#include "speech/whisper/decoder.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "models/kernels/kernels.h"

/* Where a row of one run stands. */
typedef struct {
    int32_t text, position, token;
} row_place;

/* Rows of one run that hear the same window: `count` from `first` on. */
typedef struct {
    int32_t first, count;
} row_group;

/* W windows, B texts, P text positions, R rows of one run at most, T width, A audio
   positions, AB = ceil(A / PACKED_OUTPUTS) blocks of them, D dim. */
struct decoder {
    const whisper_model *model;
    decoder_limits limits;
    size_t bytes;
    int64_t texts;              /* B: the limit, and one for sh_decoder_weights */
    int64_t positions, longest; /* P, R */
    int64_t heads, dim, width;  /* T = heads * dim */
    packed_form form;           /* of the audio's keys and values */
    /* Per window, layer and head two packed matrices: keys, of which the positions are
       the outputs [AB][D][PACKED_OUTPUTS], and values, of which they are the inputs. */
    char *audio;
    int64_t key_bytes, value_bytes; /* of one head */

    float *keys, *values; /* [layers][B][P][T] */
    int32_t *origin;      /* [B][P]: which text wrote that position of its past */
    int32_t *new_origin;  /* [B][P]: room for a new order */
    int32_t *length;      /* [B] */
    int32_t *new_length;  /* [B] */
    int32_t *window;      /* [B] */

    int64_t queued;    /* rows that wait */
    row_place *queue;  /* [R] */
    row_place *rows;   /* [R]: of the last run */
    row_group *groups; /* [R] */
    float *x, *normed; /* [R][T] */
    float *wide;       /* [R][4 T], or [R][3 T] */
    float *mixed;      /* [R][T] */
    float *audio_rows; /* [A][2 T]: before they are packed */
    float *panels;     /* of a product */
    float *scratch;    /* [threads][scratch_each] */
    int64_t scratch_each;
    /* Heads whose weights are wanted, if any. */
    const decoder_head *watched;
    int watched_count;
    int64_t watched_rows;
    float *seen; /* [watched_count][watched_rows][A] */
};

/* ---- Memory --------------------------------------------------------------------- */

static int64_t round_up(int64_t count, int64_t unit) {
    return ceil_divide(count, unit) * unit;
}

static packed_form form_of(bool exact) {
    return exact ? PACKED_FLOATS : PACKED_HALVES;
}

int64_t sh_decoder_window_bytes(const whisper_sizes *sizes, bool exact) {
    const int64_t dim = sizes->text_width / sizes->text_heads;
    const int64_t positions = sizes->audio_positions;
    const int64_t one = sh_packed_bytes(form_of(exact), dim, positions) +
                        sh_packed_bytes(form_of(exact), positions, dim);
    return one * sizes->text_heads * sizes->text_layers;
}

static void place(void *argument, block_layout *block) {
    decoder *d = argument;
    const whisper_sizes *sizes = &d->model->file->sizes;
    const int64_t audio = sizes->audio_positions, texts = d->texts;
    const int64_t rows = d->longest, width = d->width;
    sh_reserve(block, 1, sizeof *d);
    const int64_t places = sh_mul_checked(d->positions, texts);
    const int64_t all =
        sh_mul_checked(sizes->text_layers, sh_mul_checked(places, d->width));
    d->audio = sh_reserve(block,
                          sh_mul_checked(d->limits.windows,
                                         sh_decoder_window_bytes(sizes, d->limits.exact)),
                          1);
    d->keys = sh_reserve(block, all, sizeof *d->keys);
    d->values = sh_reserve(block, all, sizeof *d->values);
    d->origin = sh_reserve(block, places, sizeof *d->origin);
    d->new_origin = sh_reserve(block, places, sizeof *d->new_origin);
    d->length = sh_reserve(block, texts, sizeof *d->length);
    d->new_length = sh_reserve(block, texts, sizeof *d->new_length);
    d->window = sh_reserve(block, texts, sizeof *d->window);
    d->queue = sh_reserve(block, rows, sizeof *d->queue);
    d->rows = sh_reserve(block, rows, sizeof *d->rows);
    d->groups = sh_reserve(block, rows, sizeof *d->groups);
    d->x = reserve_floats(block, rows, width);
    d->normed = reserve_floats(block, rows, width);
    d->wide = reserve_floats(block, rows, 4 * width);
    d->mixed = reserve_floats(block, rows, width);
    d->audio_rows = reserve_floats(block, audio, 2 * width);
    d->panels = sh_reserve(block,
                           max(sh_packed_scratch(rows, 4 * width),
                               sh_packed_scratch(audio, width)),
                           sizeof *d->panels);
    d->scratch = reserve_floats(block, d->model->context->threads, d->scratch_each);
}

shoal_status sh_decoder_create(shoal_context *context, const whisper_model *model,
                               const decoder_limits *limits, decoder **made) {
    const whisper_sizes *sizes = &model->file->sizes;
    const int64_t dim = sizes->text_width / sizes->text_heads;
    const packed_form form = form_of(limits->exact);
    decoder sized = {.model = model,
                     .limits = *limits,
                     .texts = limits->texts + 1,
                     .positions = sizes->text_positions,
                     .longest = max(sizes->text_positions, limits->texts),
                     .heads = sizes->text_heads,
                     .dim = dim,
                     .width = sizes->text_width,
                     .form = form,
                     .key_bytes = sh_packed_bytes(form, dim, sizes->audio_positions),
                     .value_bytes = sh_packed_bytes(form, sizes->audio_positions, dim)};
    /* A thread's: scores and weights of a group over the audio, or of a row over its
       past. */
    const int64_t audio = round_up(sizes->audio_positions, PACKED_OUTPUTS);
    const int64_t wide = round_up(dim, PACKED_OUTPUTS);
    sized.scratch_each =
        round_up(max(2 * (audio + wide) * PACKED_ROWS, sized.positions + wide),
                 CACHE_LINE);
    decoder *d = sh_allocate_parts(context, place, &sized, &sized.bytes);
    *made = d;
    if (!d)
        return SHOAL_NO_MEMORY;
    *d = sized;
    return SHOAL_OK;
}

void sh_decoder_destroy(decoder *d) {
    if (d)
        sh_release(d->model->context, d);
}

const decoder_limits *sh_decoder_limits(const decoder *d) {
    return &d->limits;
}

size_t sh_decoder_memory(const decoder *d) {
    return d->bytes;
}

const whisper_sizes *sh_decoder_sizes(const decoder *d) {
    return &d->model->file->sizes;
}

int sh_decoder_room(const decoder *d, int text) {
    return (int)d->positions - d->length[text];
}

int sh_decoder_free_rows(const decoder *d) {
    return (int)(d->longest - d->queued);
}

/* ---- Attention over the past ---------------------------------------------------- */

/* Where (layer, text, position) lies in keys and values. */
static int64_t place_of(const decoder *d, int64_t layer, int64_t text, int64_t position) {
    return ((layer * d->texts + text) * d->positions + position) * d->width;
}

typedef struct {
    const decoder *d;
    int64_t layer;
} attending;

/* Positions from `first` on, up to `count`, that one text wrote: their end. */
static int64_t end_of_stretch(const int32_t *origin, int64_t first, int64_t count) {
    int64_t end = first + 1;
    while (end < count && origin[end] == origin[first])
        end++;
    return end;
}

/* All heads of one row: a stretch of its past after another. */
static void past_task(void *shared, int64_t row, int thread) {
    const attending *job = shared;
    const decoder *d = job->d;
    const kernel_table *kernels = d->model->context->kernels;
    const model_kernels *of_models = sh_model_kernels(d->model->context);
    const row_place at = d->rows[row];
    const int64_t count = at.position + 1;
    const int32_t *origin = d->origin + at.text * d->positions;
    const float scale = 1 / sqrtf((float)d->dim);
    float *weights = d->scratch + thread * d->scratch_each; /* [P] */
    float *part = weights + d->positions, total;            /* [D] */
    for (int64_t skip = 0; skip < d->width; skip += d->dim) {
        const float *query = d->wide + row * 3 * d->width + skip;
        float *out = d->mixed + row * d->width + skip;
        for (int64_t p = 0, end; p < count; p = end) {
            end = end_of_stretch(origin, p, count);
            kernels->dots(d->dim, end - p,
                          d->keys + skip + place_of(d, job->layer, origin[p], p),
                          d->width, query, false, weights + p);
        }
        of_models->scale_by(count, scale, weights);
        of_models->soften(count, weights, &total);
        of_models->scale_by(count, 1 / total, weights);
        memset(out, 0, (size_t)d->dim * sizeof *out);
        for (int64_t p = 0, end; p < count; p = end) {
            end = end_of_stretch(origin, p, count);
            kernels->sum_rows(d->values + skip + place_of(d, job->layer, origin[p], p),
                              d->width, NULL, weights + p, end - p, (int)d->dim, part);
            kernels->add(d->dim, part, out);
        }
    }
}

/* ---- Attention over the audio --------------------------------------------------- */

/* Keys of one head; its values follow. */
static char *audio_of(const decoder *d, int64_t window, int64_t layer, int64_t head) {
    const int64_t layers = d->model->file->sizes.text_layers;
    const int64_t index = (window * layers + layer) * d->heads + head;
    return d->audio + index * (d->key_bytes + d->value_bytes);
}

typedef struct {
    decoder *d;
    int64_t window, layer;
} packing_audio;

static void put_numbers(const decoder *d, const float *from, int64_t count, char *to,
                        int64_t at) {
    if (d->form == PACKED_HALVES)
        sh_model_kernels(d->model->context)
            ->narrow(count, from, (uint16_t *)(void *)to + at);
    else
        memcpy((float *)(void *)to + at, from, (size_t)count * sizeof *from);
}

static void pack_task(void *shared, int64_t head, int thread) {
    const packing_audio *job = shared;
    const decoder *d = job->d;
    const float *keys = d->audio_rows + head * d->dim, *values = keys + d->width;
    const int64_t all = d->model->file->sizes.audio_positions;
    char *to = audio_of(d, job->window, job->layer, head);
    (void)thread;
    for (int64_t first = 0; first < all; first += PACKED_OUTPUTS) {
        /* PACKED_OUTPUTS positions of the keys. */
        const int64_t count = min(PACKED_OUTPUTS, all - first);
        float turned[PACKED_OUTPUTS] = {0};
        for (int64_t i = 0; i < d->dim; i++) {
            for (int64_t p = 0; p < count; p++)
                turned[p] = keys[(first + p) * 2 * d->width + i];
            put_numbers(d, turned, PACKED_OUTPUTS, to,
                        first * d->dim + i * PACKED_OUTPUTS);
        }
    }
    to += d->key_bytes;
    for (int64_t first = 0; first < d->dim; first += PACKED_OUTPUTS) {
        /* PACKED_OUTPUTS dims of the values, position after position. */
        const int64_t count = min(PACKED_OUTPUTS, d->dim - first);
        float some[PACKED_OUTPUTS] = {0};
        for (int64_t p = 0; p < all; p++) {
            memcpy(some, values + p * 2 * d->width + first, (size_t)count * sizeof *some);
            put_numbers(d, some, PACKED_OUTPUTS, to, first * all + p * PACKED_OUTPUTS);
        }
    }
}

void sh_decoder_hear(decoder *d, int window, const float *encoded) {
    const whisper_sizes *sizes = &d->model->file->sizes;
    const const_matrix from = {encoded, sizes->audio_width};
    for (int64_t layer = 0; layer < sizes->text_layers; layer++) {
        packing_audio job = {d, window, layer};
        sh_packed_forward(d->model->context, &d->model->decoder[layer].cross_in,
                          sizes->audio_positions, from,
                          (matrix){d->audio_rows, 2 * d->width}, PACKED_SET, d->panels);
        sh_team_run(sh_team_of(d->model->context), d->heads, pack_task, &job);
    }
}

/* y [rows][outputs, rounded up] = x times a packed matrix without bias; panel is of x. */
static void multiply_panel(const decoder *d, const packed_linear *w, const float *panel,
                           int rows, float *y, int64_t stride) {
    const int64_t block = sh_packed_block(w->form, w->inputs);
    for (int64_t left = 0; left < w->outputs; left += PACKED_OUTPUTS)
        sh_model_kernels(d->model->context)
            ->packed(w->inputs, (const char *)w->blocks + left / PACKED_OUTPUTS * block,
                     (int)w->form, panel, sh_packed_width(rows), rows, y + left, stride);
}

/* One head of one group. */
static void audio_task(void *shared, int64_t task, int thread) {
    const attending *job = shared;
    const decoder *d = job->d;
    const int64_t head = task % d->heads, dim = d->dim;
    const int64_t audio = d->model->file->sizes.audio_positions;
    const int64_t stride = round_up(audio, PACKED_OUTPUTS);
    const int64_t wide = round_up(dim, PACKED_OUTPUTS);
    const row_group group = d->groups[task / d->heads];
    const int width = sh_packed_width(group.count);
    const char *keys =
        audio_of(d, d->window[d->rows[group.first].text], job->layer, head);
    const packed_linear key = {dim, audio, d->form, keys, NULL, NULL};
    const packed_linear value = {audio, dim, d->form, keys + d->key_bytes, NULL, NULL};
    float *weights = d->scratch + thread * d->scratch_each;
    float *panel = weights + stride * PACKED_ROWS;
    float *mixed = panel + stride * PACKED_ROWS;
    sh_packed_panel(dim, group.count, width,
                    d->wide + group.first * d->width + head * dim, d->width,
                    1 / sqrtf((float)dim), panel);
    multiply_panel(d, &key, panel, group.count, weights, stride);
    for (int r = 0; r < group.count; r++) { /* scores to softmax */
        float total, *row = weights + r * stride;
        sh_model_kernels(d->model->context)->soften(audio, row, &total);
        sh_model_kernels(d->model->context)->scale_by(audio, 1 / total, row);
        for (int i = 0; i < d->watched_count; i++)
            if (d->watched[i].layer == job->layer && d->watched[i].head == head)
                memcpy(d->seen + (i * d->watched_rows + group.first + r) * audio, row,
                       (size_t)audio * sizeof *row);
    }
    sh_packed_panel(audio, group.count, width, weights, stride, 1, panel);
    multiply_panel(d, &value, panel, group.count, mixed, wide);
    for (int r = 0; r < group.count; r++)
        memcpy(d->mixed + (group.first + r) * d->width + head * dim, mixed + r * wide,
               (size_t)dim * sizeof *mixed);
}

/* ---- The network ---------------------------------------------------------------- */

/* y [rows][outputs] = layer(x [rows][inputs]), both without gaps. */
static void project(decoder *d, const packed_linear *layer, int64_t rows, const float *x,
                    float *y, packed_then then) {
    sh_packed_forward(d->model->context, layer, rows, (const_matrix){x, layer->inputs},
                      (matrix){y, layer->outputs}, then, d->panels);
}

/* So few rows are not worth a second thread. */
static void norm(decoder *d, const layer_norm *layer, int64_t rows) {
    sh_model_kernels(d->model->context)
        ->norm_rows(rows, layer->size, d->x, layer->scale.data, layer->shift.data,
                    layer->epsilon, d->normed, NULL);
}

void sh_decoder_begin(decoder *d, int text, int window) {
    d->length[text] = 0;
    d->window[text] = window;
}

int sh_decoder_queue(decoder *d, int text, int32_t token) {
    const row_place at = {text, d->length[text]++, token};
    d->origin[text * d->positions + at.position] = text;
    d->queue[d->queued] = at;
    return (int)d->queued++;
}

void sh_decoder_forget(decoder *d) {
    d->queued = 0;
}

/* The rows are there; afterwards `normed` holds what logits come from. */
static void run(decoder *d, int64_t rows) {
    /* Rows one after another that hear one window; as many as a panel holds. */
    int64_t groups = 0;
    for (int64_t r = 0; r < rows; r++) {
        row_group *last = &d->groups[groups - 1];
        if (groups > 0 && last->count < PACKED_ROWS &&
            d->window[d->rows[r].text] == d->window[d->rows[last->first].text])
            last->count++;
        else
            d->groups[groups++] = (row_group){(int32_t)r, 1};
    }
    /* The token's embedding + its position's. */
    for (int64_t row = 0; row < rows; row++) {
        const row_place at = d->rows[row];
        const float *position = d->model->text_positions + at.position * d->width;
        float *x = d->x + row * d->width;
        sh_packed_get(&d->model->embedding, at.token, x);
        for (int64_t i = 0; i < d->width; i++)
            x[i] += position[i];
    }
    const team all = sh_team_of(d->model->context);
    for (int64_t index = 0; index < d->model->file->sizes.text_layers; index++) {
        const decoder_layer *layer = &d->model->decoder[index];
        attending job = {d, index};
        norm(d, &layer->self_norm, rows);
        project(d, &layer->self_in, rows, d->normed, d->wide, PACKED_SET);
        for (int64_t r = 0; r < rows; r++) { /* keys and values lie beside the queries */
            const float *in = d->wide + r * 3 * d->width;
            const int64_t place =
                place_of(d, index, d->rows[r].text, d->rows[r].position);
            memcpy(d->keys + place, in + d->width, (size_t)d->width * sizeof *in);
            memcpy(d->values + place, in + 2 * d->width, (size_t)d->width * sizeof *in);
        }
        sh_team_run(all, rows, past_task, &job);
        project(d, &layer->self_out, rows, d->mixed, d->x, PACKED_ADD);

        norm(d, &layer->cross_norm, rows);
        project(d, &layer->cross_query, rows, d->normed, d->wide, PACKED_SET);
        sh_team_run(all, groups * d->heads, audio_task, &job);
        project(d, &layer->cross_out, rows, d->mixed, d->x, PACKED_ADD);

        norm(d, &layer->forward_norm, rows);
        project(d, &layer->widen, rows, d->normed, d->wide, PACKED_GELU);
        project(d, &layer->narrow, rows, d->wide, d->x, PACKED_ADD);
    }
    norm(d, &d->model->last_norm, rows);
}

void sh_decoder_run(decoder *d) {
    const int64_t rows = d->queued;
    memcpy(d->rows, d->queue, (size_t)rows * sizeof *d->rows);
    d->queued = 0;
    run(d, rows);
}

void sh_decoder_reorder(decoder *d, const int32_t *texts, const int32_t *parents,
                        int count) {
    for (int i = 0; i < count; i++) {
        const int64_t to = texts[i] * d->positions, from = parents[i] * d->positions;
        d->new_length[texts[i]] = d->length[parents[i]];
        memcpy(d->new_origin + to, d->origin + from,
               (size_t)d->length[parents[i]] * sizeof *d->origin);
    }
    for (int i = 0; i < count; i++) {
        const int64_t at = texts[i] * d->positions;
        d->length[texts[i]] = d->new_length[texts[i]];
        memcpy(d->origin + at, d->new_origin + at,
               (size_t)d->length[texts[i]] * sizeof *d->origin);
        d->window[texts[i]] = d->window[parents[i]];
    }
}

void sh_decoder_logits(decoder *d, const int32_t *rows, int count, float *logits) {
    const packed_linear *table = &d->model->embedding;
    for (int i = 0; i < count; i++)
        memcpy(d->mixed + i * d->width, d->normed + rows[i] * d->width,
               (size_t)d->width * sizeof *d->mixed);
    sh_packed_forward(d->model->context, table, count, (const_matrix){d->mixed, d->width},
                      (matrix){logits, table->outputs}, PACKED_SET, d->panels);
}

void sh_decoder_weights(decoder *d, int window, const int32_t *ids, int count,
                        const decoder_head *heads, int head_count, float *weights) {
    const int32_t text = (int32_t)d->texts - 1;
    d->window[text] = window;
    for (int32_t i = 0; i < count; i++) {
        d->rows[i] = (row_place){text, i, ids[i]};
        d->origin[text * d->positions + i] = text;
    }
    d->watched = heads;
    d->watched_count = head_count;
    d->watched_rows = count;
    d->seen = weights;
    run(d, count);
    d->watched_count = 0;
}

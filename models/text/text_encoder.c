/* Text encoders: from tokens to hidden states, and from texts to vectors. */
#define _GNU_SOURCE
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/text/text_model.h"
#include "models/text/tokenizer.h"

enum {
    USUAL_ROWS = 2048,
    STRETCHED_ROWS = 4096,
    SEQUENCES_MOST = 512, /* per call */
    ROW_BLOCK = 64
};

/* A text or a window of one, as tokens without special tokens. */
typedef struct {
    int64_t text, first, count;
} text_piece;

struct shoal_text_encoder {
    shoal_context *context;
    char folder[PATH_MAX];
    text_config config;
    shoal_text_encoder_info info;
    int64_t stride;
    shoal_long_texts long_texts;
    bool normalize;
    text_weights weights;
    text_limits limits;
    encoder *stack;             /* BERT, RoBERTa */
    modern_stack *modern;       /* ModernBERT */
    shoal_tokenizer *tokenizer; /* NULL before the first text */

    float *x;         /* [rows][size] */
    float *places;    /* [rows]: position of each row */
    int32_t *ids;     /* [rows] of the current batch */
    int32_t *types;   /* [rows] */
    int64_t *offsets; /* [SEQUENCES_MOST + 1] */
    int32_t *firsts;  /* [SEQUENCES_MOST]: first row of each sequence */
    float *pooled;    /* [size] */
    void *block;

    int32_t *tokens; /* of all texts of a call */
    int64_t token_count, token_room;
    text_piece *pieces;
    int64_t piece_count, piece_room;
};

/* ---- Opening ---------------------------------------------------------------------- */

shoal_status sh_text_config_open(shoal_context *context, const char *folder,
                                 text_config *config) {
    char path[PATH_MAX];
    json_t *root;
    const int length = snprintf(path, sizeof path, "%s/config.json", folder);
    if (length < 0 || length >= PATH_MAX || access(path, F_OK) != 0)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has no config.json; give a Hugging Face folder", folder);
    TRY(sh_json_object_read(context, path, TEXT_CONFIG_LARGEST, &root));
    shoal_status status = sh_text_config_read(context, path, root, config);
    json_decref(root);
    return status;
}

static shoal_status check_options(shoal_text_encoder *e,
                                  const shoal_text_encoder_options *o) {
    const int64_t positions = e->config.positions;
    if (o->rows < 0 || o->rows > INT32_MAX / 4 || o->window < 0 || o->stride < 0 ||
        o->long_texts < SHOAL_LONG_TEXTS_WINDOWS ||
        o->long_texts > SHOAL_LONG_TEXTS_STRETCH || o->pooling < SHOAL_TEXT_POOLING_OWN ||
        o->pooling > SHOAL_TEXT_POOLING_MAX ||
        o->precision < SHOAL_PRECISION_AUTO || o->precision > SHOAL_PRECISION_INT8)
        return sh_fail(e->context, SHOAL_INVALID,
                       "text encoder: an option is negative or has an invalid value");
    if (o->window > positions)
        return sh_fail(e->context, SHOAL_INVALID,
                       "a window of %lld tokens exceeds the %lld positions of this model",
                       (long long)o->window, (long long)positions);
    const bool stretch = o->long_texts == SHOAL_LONG_TEXTS_STRETCH;
    const int64_t window = o->window ? o->window : positions;
    if (stretch && (o->window || o->stride))
        return sh_fail(e->context, SHOAL_INVALID,
                       "stretched texts have no window and no stride; their maximum "
                       "length is the number of rows per batch");
    if (o->stride > window)
        return sh_fail(
            e->context, SHOAL_INVALID,
            "a stride of %lld tokens would leave gaps between windows of %lld tokens",
            (long long)o->stride, (long long)window);
    const int64_t usual = stretch ? STRETCHED_ROWS : USUAL_ROWS;
    const text_config *c = &e->config;
    e->info =
        (shoal_text_encoder_info){.type = c->type,
                                  .layers = c->layers,
                                  .heads = c->heads,
                                  .width = c->size,
                                  .feed_forward = c->feed_forward,
                                  .vocabulary = c->vocabulary,
                                  .positions = positions,
                                  .window = window,
                                  .rows = o->rows && stretch
                                              ? o->rows
                                              : max(o->rows ? o->rows : usual, window),
                                  .pooling = o->pooling ? o->pooling : c->pooling};
    e->stride = o->stride ? o->stride : (window + 1) / 2;
    e->long_texts = o->long_texts;
    e->normalize = o->normalize || e->config.normalize;
    e->limits = (text_limits){.batch = min(SEQUENCES_MOST, e->info.rows),
                              .rows = e->info.rows,
                              .length = stretch ? e->info.rows : window};
    return SHOAL_OK;
}

static shoal_status make_stack(shoal_text_encoder *e, const shoal_attention *attention) {
    const text_config *config = &e->config;
    e->limits.packed_weights = text_weights_have(&e->weights, MATRIX_PACKED);
    e->limits.bf16_weights = text_weights_have(&e->weights, MATRIX_BF16);
    e->limits.int8_weights = text_weights_have(&e->weights, MATRIX_INT8);
    e->limits.other_weights = e->weights.outliers;
    if (config->family == FAMILY_MODERN)
        return sh_modern_create(e->context, config, attention, &e->limits, &e->modern);
    const encoder_shape shape = {.layers = config->layers,
                                 .heads = config->heads,
                                 .head_dim = config->size / config->heads,
                                 .feed_forward = config->feed_forward,
                                 .attention = *attention,
                                 .post_norm = true,
                                 .activation = config->activation,
                                 .epsilon = config->epsilon};
    const encoder_limits limits = {.batch = e->limits.batch,
                                   .rows = e->limits.rows,
                                   .length = e->limits.length,
                                   .packed_weights = e->limits.packed_weights,
                                   .bf16_weights = e->limits.bf16_weights,
                                   .int8_weights = e->limits.int8_weights,
                                   .other_weights = e->limits.other_weights};
    return sh_encoder_create(e->context, &shape, &limits, &e->stack);
}

static void place(void *argument, block_layout *block) {
    shoal_text_encoder *e = argument;
    const int64_t rows = e->limits.rows;
    e->x = reserve_floats(block, rows, e->config.size);
    e->places = reserve_floats(block, rows, 1);
    e->ids = sh_reserve(block, rows, sizeof *e->ids);
    e->types = sh_reserve(block, rows, sizeof *e->types);
    e->offsets = sh_reserve(block, SEQUENCES_MOST + 1, sizeof *e->offsets);
    e->firsts = sh_reserve(block, SEQUENCES_MOST, sizeof *e->firsts);
    e->pooled = reserve_floats(block, e->config.size, 1);
}

static shoal_status make_parts(shoal_text_encoder *e,
                               const shoal_text_encoder_options *options) {
    const char *spelling = options->attention ? options->attention : "full";
    shoal_attention attention;
    size_t bytes;
    TRY(sh_text_config_open(e->context, e->folder, &e->config));
    if (options->pooling == SHOAL_TEXT_POOLING_OWN)
        TRY(sh_text_modules_open(e->context, e->folder, &e->config));
    TRY(check_options(e, options));
    TRY(shoal_attention_parse(e->context, spelling, &attention));
    if (shoal_kind_describe((int)attention.kind)->keys_are_queries) {
        char kind[64];
        shoal_attention_print(&attention, kind, sizeof kind);
        return sh_fail(e->context, SHOAL_INVALID,
                       "%s uses the queries as keys, but this model has separate keys; "
                       "choose another kind",
                       kind);
    }
    TRY(sh_text_weights_open(e->context, e->folder, &e->config,
                             (shoal_precision)options->precision, &e->weights));
    e->info.precision = e->weights.form == MATRIX_INT8   ? SHOAL_PRECISION_INT8
                        : e->weights.form == MATRIX_BF16 ? SHOAL_PRECISION_BFLOAT16
                                                         : SHOAL_PRECISION_FLOAT32;
    TRY(make_stack(e, &attention));
    e->block = sh_allocate_parts(e->context, place, e, &bytes);
    if (!e->block)
        return SHOAL_NO_MEMORY;
    e->info.workspace =
        bytes + (e->modern ? sh_modern_memory(e->modern) : sh_encoder_memory(e->stack));
    return SHOAL_OK;
}

shoal_status shoal_text_encoder_open(shoal_context *context, const char *folder,
                                     const shoal_text_encoder_options *options,
                                     shoal_text_encoder **made) {
    shoal_text_encoder_options own = shoal_text_encoder_options_defaults();
    if (!context)
        return SHOAL_INVALID;
    if (!folder || !made)
        return sh_fail(context, SHOAL_INVALID,
                       "text_encoder_open: folder or encoder is NULL");
    *made = NULL;
    TRY(READ_STRUCT(context, shoal_text_encoder_options, options, &own));
    if (strlen(folder) >= PATH_MAX)
        return sh_fail(context, SHOAL_INVALID, "text_encoder_open: the path is too long");
    shoal_text_encoder *e = sh_allocate(context, sizeof *e);
    if (!e)
        return SHOAL_NO_MEMORY;
    *e = (shoal_text_encoder){.context = context};
    strcpy(e->folder, folder);
    shoal_status status = make_parts(e, &own);
    if (status == SHOAL_OK)
        *made = e;
    else
        shoal_text_encoder_destroy(e);
    return status;
}

void shoal_text_encoder_destroy(shoal_text_encoder *e) {
    if (!e)
        return;
    shoal_tokenizer_destroy(e->tokenizer);
    sh_encoder_destroy(e->stack);
    sh_modern_destroy(e->modern);
    sh_text_weights_close(e->context, &e->weights);
    sh_release(e->context, e->block);
    sh_release(e->context, e->tokens);
    sh_release(e->context, e->pieces);
    sh_release(e->context, e);
}

const shoal_text_encoder_info *shoal_text_encoder_describe(const shoal_text_encoder *e) {
    return e ? &e->info : NULL;
}

/* ---- From tokens to hidden states ------------------------------------------------- */

typedef struct {
    const shoal_text_encoder *e;
    int64_t rows;
    const int32_t *ids, *types;
} embedding;

/* Interpolates between two rows of the table for stretched texts. */
static void add_position(const shoal_text_encoder *e, float place, float *x) {
    const int64_t size = e->config.size, whole = (int64_t)place;
    const float *row = (const float *)e->weights.positions.data + whole * size;
    const float share = place - (float)whole;
    if (share == 0)
        e->context->kernels->add(size, row, x);
    for (int64_t i = 0; i < size && share != 0; i++)
        x[i] += row[i] + share * (row[size + i] - row[i]);
}

static void embed_task(void *shared, int64_t task, int thread UNUSED) {
    const embedding *m = shared;
    const shoal_text_encoder *e = m->e;
    const text_weights *w = &e->weights;
    const int64_t size = e->config.size, first = task * ROW_BLOCK;
    const int64_t last = min(first + ROW_BLOCK, m->rows);
    file_tensor word = {.name = "words",
                        .dtype = w->words.dtype,
                        .rank = 1,
                        .shape = {size}};
    word.bytes = w->words.bytes / (size_t)e->config.vocabulary;
    for (int64_t row = first; row < last; row++) {
        float *x = e->x + row * size;
        word.data = (const char *)w->words.data + (size_t)m->ids[row] * word.bytes;
        sh_file_tensor_to_f32(NULL, &word, x); /* the type was checked before */
        if (w->types.data)
            e->context->kernels->add(size,
                                     (const float *)w->types.data +
                                         (m->types ? m->types[row] : 0) * size,
                                     x);
        if (w->positions.data)
            add_position(e, e->places[row], x);
    }
    sh_model_kernels(e->context)
        ->norm_rows(last - first, size, e->x + first * size, w->scale.data,
                    w->shift.data ? w->shift.data : w->zeros, e->config.epsilon,
                    e->x + first * size, NULL);
}

/* Runs a checked batch. firsts: hidden has only the first row of each sequence. */
static shoal_status run(shoal_text_encoder *e, int64_t batch, const int64_t *offsets,
                        const int32_t *ids, const int32_t *types, bool firsts,
                        const float **hidden) {
    const packing sequences = {batch, offsets};
    embedding m = {e, packing_rows(&sequences), ids, types};
    for (int64_t b = 0; b < batch; b++) {
        /* Positions of one sequence. Sequences longer than the model's maximum are
           stretched over its positions by an integer product and one division, so that
           no position exceeds the last. */
        const int64_t count = offsets[b + 1] - offsets[b];
        const text_config *config = &e->config;
        const bool roberta = config->family == FAMILY_ROBERTA;
        const bool stretch = count > config->positions;
        const double base = roberta ? config->padding + 1 : 0;
        const int64_t over = stretch ? config->positions - 1 : 1;
        const int64_t under = stretch ? count - 1 : 1;
        int64_t next = 0; /* RoBERTa's padding inside a text has no position of its own */
        for (int64_t i = 0; i < count; i++) {
            const bool padding = roberta && ids[offsets[b] + i] == config->padding;
            const double place = base + (double)(next * over) / (double)under;
            e->places[offsets[b] + i] = (float)(padding ? config->padding : place);
            next += !padding;
        }
    }
    sh_run_tasks(e->context, ceil_divide(m.rows, ROW_BLOCK), embed_task, &m);
    if (e->modern)
        return sh_modern_forward(e->modern, &e->weights, &sequences, e->places, e->x,
                                 hidden);
    for (int64_t b = 0; b < batch; b++)
        e->firsts[b] = (int32_t)offsets[b];
    const encoder_weights weights = {.layers = e->weights.layers};
    const row_subset wanted = {firsts ? e->firsts : NULL, batch};
    return sh_encoder_forward(e->stack, &weights, &sequences, wanted, (dropout_key){0},
                              e->x, hidden);
}

shoal_status shoal_text_encoder_forward(shoal_text_encoder *e, int64_t batch,
                                        const int64_t *offsets, const int32_t *ids,
                                        const int32_t *types, const float **hidden) {
    if (!e)
        return SHOAL_INVALID;
    if (!ids || !hidden)
        return sh_fail(e->context, SHOAL_INVALID,
                       "text_encoder_forward: ids or the result is NULL");
    const text_config *config = &e->config;
    if (batch < 0 || batch > e->limits.batch || !offsets || offsets[0] != 0)
        return sh_fail(
            e->context, SHOAL_INVALID,
            "text encoder: a batch must have 0 to %lld sequences and begin at row 0",
            (long long)e->limits.batch);
    for (int64_t b = 0; b < batch; b++) {
        const int64_t length = offsets[b + 1] - offsets[b];
        if (length < 0 || length > e->limits.length || offsets[b + 1] > e->limits.rows)
            return sh_fail(e->context, SHOAL_INVALID,
                           "text encoder: sequence %lld has %lld tokens; the maximum is "
                           "%lld per sequence and %lld per call",
                           (long long)b, (long long)length, (long long)e->limits.length,
                           (long long)e->limits.rows);
    }
    for (int64_t row = 0; row < offsets[batch]; row++)
        if (ids[row] < 0 || ids[row] >= config->vocabulary ||
            (types && (types[row] < 0 || types[row] >= max(config->types, 1))))
            return sh_fail(e->context, SHOAL_INVALID,
                           "text encoder: row %lld has id %d and type %d; this model has "
                           "%lld words and %lld types",
                           (long long)row, (int)ids[row], types ? (int)types[row] : 0,
                           (long long)config->vocabulary, (long long)config->types);
    return run(e, batch, offsets, ids, types, false, hidden);
}

/* ---- Pooling ---------------------------------------------------------------------- */

/* Pools rows [count][size] into e->pooled [size]. */
static void pool(const shoal_text_encoder *e, int64_t count, const float *rows) {
    const int64_t size = e->config.size;
    float *to = e->pooled;
    memcpy(to, rows, (size_t)size * sizeof(float));
    for (int64_t row = 1; row < count && e->info.pooling != SHOAL_TEXT_POOLING_FIRST;
         row++) {
        const float *x = rows + row * size;
        if (e->info.pooling == SHOAL_TEXT_POOLING_MEAN)
            e->context->kernels->add(size, x, to);
        else
            for (int64_t i = 0; i < size; i++)
                to[i] = x[i] > to[i] ? x[i] : to[i];
    }
}

/* Divides a vector by the number of rows summed in it, if needed. */
static void finish_vector(const shoal_text_encoder *e, int64_t sums, float *vector) {
    const int64_t size = e->config.size;
    double scale = 1, square = 0;
    if (sums == 0) { /* no tokens */
        memset(vector, 0, (size_t)size * sizeof(float));
        return;
    }
    if (e->info.pooling != SHOAL_TEXT_POOLING_MAX)
        scale = 1 / (double)sums;
    for (int64_t i = 0; i < size; i++)
        square += (double)vector[i] * vector[i];
    if (e->normalize && square > 0)
        scale = 1 / sqrt(square);
    for (int64_t i = 0; i < size; i++)
        vector[i] = (float)(scale * vector[i]);
}

/* ---- From texts to vectors -------------------------------------------------------- */

/* Opened for the first text, because hidden states of tokens do not need it. */
static shoal_status open_tokenizer(shoal_text_encoder *e) {
    if (e->tokenizer)
        return SHOAL_OK;
    TRY(shoal_tokenizer_open(e->context, e->folder, &e->tokenizer));
    const int64_t ids = shoal_tokenizer_size(e->tokenizer);
    const int64_t specials = e->tokenizer->single.count - 1;
    if (ids > e->config.vocabulary || specials >= e->info.window) {
        shoal_tokenizer_destroy(e->tokenizer);
        e->tokenizer = NULL;
        return ids > e->config.vocabulary
                   ? sh_fail(e->context, SHOAL_BAD_FILE,
                             "%s: its tokenizer has %lld ids, but its model %lld words; "
                             "they belong to different models",
                             e->folder, (long long)ids, (long long)e->config.vocabulary)
                   : sh_fail(e->context, SHOAL_INVALID,
                             "a window of %lld tokens has no room besides %lld special "
                             "tokens",
                             (long long)e->info.window, (long long)specials);
    }
    return SHOAL_OK;
}

/* Cuts a text whose tokens were appended into windows. */
static shoal_status cut_text(shoal_text_encoder *e, int64_t text, int64_t count) {
    const int64_t specials = e->tokenizer->single.count - 1;
    const bool stretch = e->long_texts == SHOAL_LONG_TEXTS_STRETCH;
    const int64_t room = (stretch ? e->limits.length : e->info.window) - specials;
    const int64_t step = max(1, min(e->stride, room));
    if (stretch && count > room)
        return sh_fail(e->context, SHOAL_INVALID,
                       "it has %lld tokens, more than the %lld rows per batch",
                       (long long)(count + specials), (long long)e->limits.rows);
    for (int64_t at = 0;; at += step) {
        const int64_t some = min(room, count - at);
        void *pieces = e->pieces;
        if (!sh_list_grow(e->context, &pieces, e->piece_count, &e->piece_room, 1,
                          sizeof *e->pieces))
            return SHOAL_NO_MEMORY;
        e->pieces = pieces;
        e->pieces[e->piece_count++] = (text_piece){text, e->token_count + at, some};
        if (at + some == count || e->long_texts == SHOAL_LONG_TEXTS_CUT)
            break;
    }
    e->token_count += count;
    return SHOAL_OK;
}

static shoal_status take_text(shoal_text_encoder *e, int64_t text, const char *bytes,
                              int64_t size) {
    const shoal_text given = {.size = sizeof(shoal_text),
                              .text = bytes,
                              .bytes = size,
                              .bare = 1};
    shoal_tokens tokens;
    if (!bytes)
        return sh_fail(e->context, SHOAL_INVALID, "the text is NULL");
    TRY(shoal_tokenizer_encode(e->tokenizer, &given, &tokens));
    void *at = e->tokens;
    const bool grown = sh_list_grow(e->context, &at, e->token_count, &e->token_room,
                                    tokens.count, sizeof *e->tokens);
    e->tokens = at;
    if (!grown)
        return SHOAL_NO_MEMORY;
    if (tokens.count > 0)
        memcpy(e->tokens + e->token_count, tokens.ids,
               (size_t)tokens.count * sizeof *e->tokens);
    return cut_text(e, text, tokens.count);
}

static int longer_first(const void *a, const void *b) {
    const text_piece *left = a, *right = b;
    if (left->count != right->count)
        return left->count > right->count ? -1 : 1;
    return left->first < right->first ? -1 : left->first > right->first;
}

/* Writes a piece with its special tokens to the batch from `row` on; returns the next
   row. */
static int64_t put_piece(shoal_text_encoder *e, const text_piece *piece, int64_t row) {
    const token_template *around = &e->tokenizer->single;
    for (int i = 0; i < around->count; i++) {
        const bool special = around->parts[i].text < 0;
        const int64_t type = min(around->parts[i].type, max(e->config.types, 1) - 1);
        for (int64_t j = 0; j < (special ? 1 : piece->count); j++) {
            e->ids[row] = special ? around->parts[i].id : e->tokens[piece->first + j];
            e->types[row++] = (int32_t)type;
        }
    }
    return row;
}

/* Runs as many pieces from `first` on as fit; *done is their number. sums [texts]:
   number of rows summed for each. */
static shoal_status run_batch(shoal_text_encoder *e, int64_t first, float *vectors,
                              int64_t *sums, int64_t *done) {
    const int64_t specials = e->tokenizer->single.count - 1;
    const bool firsts = e->info.pooling == SHOAL_TEXT_POOLING_FIRST && !e->modern;
    const float *hidden;
    int64_t batch = 0;
    e->offsets[0] = 0;
    for (int64_t i = first; i < e->piece_count && batch < e->limits.batch; i++) {
        const text_piece *piece = &e->pieces[i];
        if (e->offsets[batch] + piece->count + specials > e->limits.rows)
            break;
        e->offsets[batch + 1] = put_piece(e, piece, e->offsets[batch]);
        batch++;
    }
    *done = batch;
    TRY(run(e, batch, e->offsets, e->ids, e->types, firsts, &hidden));
    for (int64_t b = 0; b < batch; b++) {
        const text_piece *piece = &e->pieces[first + b];
        const int64_t rows = e->offsets[b + 1] - e->offsets[b];
        const int64_t from = firsts ? b : e->offsets[b];
        if (rows == 0)
            continue;
        /* Adds a piece's rows to its text's vector, which starts as 0, or as -inf for
           the maximum. */
        const int64_t size = e->config.size;
        float *to = vectors + piece->text * size;
        pool(e, rows, hidden + from * size);
        if (e->info.pooling != SHOAL_TEXT_POOLING_MAX)
            e->context->kernels->add(size, e->pooled, to);
        else
            for (int64_t i = 0; i < size; i++)
                to[i] = e->pooled[i] > to[i] ? e->pooled[i] : to[i];
        sums[piece->text] += e->info.pooling == SHOAL_TEXT_POOLING_MEAN ? rows : 1;
    }
    return SHOAL_OK;
}

shoal_status shoal_text_encoder_embed(shoal_text_encoder *e, int64_t count,
                                      const char *const *texts, const int64_t *sizes,
                                      float *vectors) {
    if (!e)
        return SHOAL_INVALID;
    if (count < 0 || (count > 0 && (!texts || !vectors)))
        return sh_fail(e->context, SHOAL_INVALID,
                       "text_encoder_embed: texts or vectors is NULL");
    TRY(open_tokenizer(e));
    shoal_status status = SHOAL_OK;
    e->token_count = e->piece_count = 0;
    for (int64_t i = 0; i < count; i++) {
        status = take_text(e, i, texts[i], sizes ? sizes[i] : -1);
        if (status == SHOAL_INVALID) {
            char why[256];
            snprintf(why, sizeof why, "%s", shoal_context_message(e->context));
            sh_fail(e->context, status, "text %lld: %s", (long long)i + 1, why);
        }
        TRY(status);
    }
    const int64_t size = e->config.size;
    int64_t *sums = sh_allocate(e->context, (size_t)count * sizeof *sums);
    if (!sums)
        return SHOAL_NO_MEMORY;
    const float start = e->info.pooling == SHOAL_TEXT_POOLING_MAX ? -INFINITY : 0;
    for (int64_t i = 0; i < count * size; i++)
        vectors[i] = start;
    memset(sums, 0, (size_t)count * sizeof *sums);
    if (e->piece_count > 0)
        qsort(e->pieces, (size_t)e->piece_count, sizeof *e->pieces, longer_first);
    for (int64_t at = 0, done; at < e->piece_count && status == SHOAL_OK; at += done)
        status = run_batch(e, at, vectors, sums, &done);
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++)
        finish_vector(e, sums[i], vectors + i * size);
    sh_release(e->context, sums);
    return status;
}

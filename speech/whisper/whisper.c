/* From a model file to layers: one list of weights, walked twice, once to add up the
   memory and once to copy. */
#include "speech/whisper/whisper.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "models/nn/quantised.h"
#include "speech/audio/mel.h"

typedef struct {
    whisper_model *model;
    block_layout *memory;
    shoal_status status; /* of the first weight that could not be read */
    bool placing;        /* the memory is allocated: copy the weights */
    float *widened;      /* [4 max(E, T)]: a row of a matrix as floats */
    double *squares;     /* the same, of a matrix that becomes bytes */
    int matrices;        /* so far, and which of them are bytes */
    bool *bytes;
} loader;

static const file_tensor *find(const loader *load, const char *block, const char *name) {
    return sh_whisper_file_tensor(load->model->file, "%s%s", block, name);
}

static void copy_floats(loader *load, const file_tensor *tensor, float *to) {
    if (load->status == SHOAL_OK && tensor)
        load->status = sh_file_tensor_to_f32(load->model->context, tensor, to);
}

/* One row of a matrix as floats. */
static void copy_row(loader *load, const file_tensor *tensor, int64_t row, float *to) {
    const size_t bytes = tensor->bytes / (size_t)tensor->shape[0];
    const file_tensor alone = {.name = tensor->name,
                               .dtype = tensor->dtype,
                               .rank = 1,
                               .shape = {tensor->shape[1]},
                               .data = (const char *)tensor->data + (size_t)row * bytes,
                               .bytes = bytes};
    copy_floats(load, &alone, to);
}

/* ---- Vectors and norms ---------------------------------------------------------- */

static const float *load_floats(loader *load, const char *block, const char *name) {
    const file_tensor *tensor = find(load, block, name);
    float *values = sh_reserve(load->memory, tensor ? sh_file_tensor_elements(tensor) : 0,
                               sizeof *values);
    if (load->placing)
        copy_floats(load, tensor, values);
    return values;
}

static layer_norm load_norm(loader *load, int64_t size, const char *block,
                            const char *name) {
    char weight[48], bias[48];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return (layer_norm){.size = size,
                        .scale.data = load_floats(load, block, weight),
                        .shift.data = load_floats(load, block, bias),
                        .epsilon = 1e-5f};
}

/* ---- Matrices ------------------------------------------------------------------- */

enum { JOINED_MOST = 3 };

/* Matrices of the same input, below each other. */
typedef struct {
    const char *names[JOINED_MOST]; /* "attn.query"; NULL ends */
    int64_t inputs, outputs;        /* of each */
} joined;

static int joined_count(const joined *parts) {
    int count = 0;
    while (count < JOINED_MOST && parts->names[count])
        count++;
    return count;
}

static const file_tensor *part_tensor(const loader *load, const char *block,
                                      const char *part, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", part, what);
    return find(load, block, name);
}

/* Whether all parts are of a type, or quantised, whatever type has that. */
static bool all_are(const loader *load, const char *block, const joined *parts,
                    bool quantised) {
    for (int i = 0; i < joined_count(parts); i++) {
        const file_tensor *tensor = part_tensor(load, block, parts->names[i], "weight");
        if (!tensor ||
            (quantised ? !dtype_is_quantised(tensor->dtype) : tensor->dtype != DTYPE_F16))
            return false;
    }
    return true;
}

/* A part without a bias has zeros. */
static nn_tensor load_biases(loader *load, const char *block, const joined *parts) {
    const int count = joined_count(parts);
    float *values =
        sh_reserve(load->memory, sh_mul_checked(count, parts->outputs), sizeof *values);
    for (int i = 0; i < count && load->placing; i++) {
        const file_tensor *tensor = part_tensor(load, block, parts->names[i], "bias");
        float *to = values + i * parts->outputs;
        if (tensor)
            copy_floats(load, tensor, to);
        else
            memset(to, 0, (size_t)parts->outputs * sizeof *to);
    }
    return (nn_tensor){.data = values};
}

/* ---- Bytes ------------------------------------------------------------------------ */

typedef struct {
    loader *load;
    const char *block;
    const joined *parts;
} byte_rows;

static const float *byte_row(void *shared, int64_t output) {
    const byte_rows *from = shared;
    const int64_t each = from->parts->outputs;
    copy_row(from->load,
             part_tensor(from->load, from->block, from->parts->names[output / each],
                         "weight"),
             output % each, from->load->widened);
    return from->load->status == SHOAL_OK ? from->load->widened : NULL;
}

/* Whether the next matrix becomes bytes; decided while measuring, when the file's numbers
   are looked at once. */
static bool becomes_bytes(loader *load, const int8_source *from) {
    bool *bytes = &load->bytes[load->matrices++];
    if (load->placing || load->status != SHOAL_OK)
        return *bytes;
    const bool fits = from->inputs >= INT8_INPUTS_LEAST &&
                      from->inputs <= INT8_INPUTS_MOST;
    const int8_verdict verdict = fits ? sh_int8_judge(from) : INT8_OUTLIER;
    const byte_rows *rows = from->shared;
    *bytes = verdict == INT8_FINE;
    if (verdict == INT8_OUTLIER)
        load->model->outliers = true;
    if (verdict == INT8_NOT_FINITE)
        load->status = sh_fail(load->model->context, SHOAL_BAD_FILE,
                               "%s%s.weight has a weight that is NaN or infinite, which "
                               "int8 cannot represent; use precision float32",
                               rows->block, rows->parts->names[0]);
    return *bytes;
}

/* The blocks, and the factors. */
static void *load_bytes(loader *load, const int8_source *from, const float **factors) {
    float *found = sh_reserve(load->memory, from->inputs, sizeof *found);
    void *blocks =
        sh_reserve(load->memory, sh_int8_bytes(from->inputs, from->outputs), 1);
    if (load->placing && load->status == SHOAL_OK)
        sh_int8_convert(from, load->squares, found, blocks);
    *factors = found;
    return blocks;
}

/* ---- Linear layers ---------------------------------------------------------------- */

/* A matrix of floats, halves or bfloat16. */
static nn_tensor load_wide(loader *load, const char *block, const joined *parts) {
    const int count = joined_count(parts);
    const int64_t each = parts->inputs * parts->outputs;
    const bool bf16 = load->model->bf16_encoder;
    const bool in_file = all_are(load, block, parts, false);
    const bool half = !bf16 && load->model->half_encoder &&
                      (in_file || all_are(load, block, parts, true));
    const size_t size = half || bf16 ? sizeof(uint16_t) : sizeof(float);
    char *data =
        bf16 ? sh_reserve(load->memory, sh_mul_checked(count, each / 2), sizeof(uint32_t))
             : sh_reserve(load->memory, sh_mul_checked(count, each), size);
    for (int i = 0; i < count && load->placing; i++) {
        const file_tensor *tensor = part_tensor(load, block, parts->names[i], "weight");
        char *to = data + (size_t)i * (size_t)each * size;
        if (half && in_file)
            memcpy(to, tensor->data, (size_t)each * size);
        else if (!half && !bf16)
            copy_floats(load, tensor, (float *)(void *)to);
        else
            for (int64_t row = 0; row < parts->outputs; row++) {
                copy_row(load, tensor, row, load->widened);
                if (bf16)
                    sh_bf16_put(parts->inputs, i * parts->outputs + row, load->widened,
                                (uint32_t *)(void *)data);
                else /* a quantised matrix */
                    sh_model_kernels(load->model->context)
                        ->narrow(parts->inputs, load->widened,
                                 (uint16_t *)(void *)to + row * parts->inputs);
            }
    }
    return (nn_tensor){.data = data, .half = half, .bf16 = bf16};
}

/* What was read need not stay in memory as a part of the mapped file. */
static void give_back(const loader *load, const char *block, const joined *parts) {
    for (int i = 0; i < joined_count(parts); i++)
        sh_file_tensor_release(part_tensor(load, block, parts->names[i], "weight"));
}

static linear load_linear(loader *load, const char *block, joined parts) {
    const int count = joined_count(&parts);
    byte_rows rows = {load, block, &parts};
    const int8_source from = {parts.inputs, count * parts.outputs, byte_row, &rows};
    linear made = {.inputs = parts.inputs, .outputs = parts.outputs * count};
    if (load->model->int8_encoder && becomes_bytes(load, &from)) {
        made.weight.data = load_bytes(load, &from, &made.weight.factors);
        made.weight.int8 = true;
    } else {
        made.weight = load_wide(load, block, &parts);
    }
    give_back(load, block, &parts);
    made.bias = load_biases(load, block, &parts);
    return made;
}

/* ---- Packed matrices, of the decoder --------------------------------------------- */

/* bytes: it may become bytes, where the precision is that. */
static packed_linear load_packed(loader *load, const char *block, joined parts,
                                 bool biased, bool bytes) {
    const int count = joined_count(&parts);
    const int64_t inputs = parts.inputs, outputs = parts.outputs * count;
    byte_rows rows = {load, block, &parts};
    const int8_source from = {inputs, outputs, byte_row, &rows};
    packed_linear made = {.inputs = inputs, .outputs = outputs, .form = PACKED_INT8};
    made.bias = biased ? load_biases(load, block, &parts).data : NULL;
    if (bytes && load->model->int8_encoder && becomes_bytes(load, &from)) {
        made.blocks = load_bytes(load, &from, &made.factors);
        give_back(load, block, &parts);
        return made;
    }
    const packed_form form = all_are(load, block, &parts, false)  ? PACKED_HALVES
                             : all_are(load, block, &parts, true) ? PACKED_BYTES
                                                                  : PACKED_FLOATS;
    const int64_t size = sh_packed_bytes(form, inputs, outputs);
    void *blocks = sh_reserve(load->memory, size, 1);
    if (load->placing)
        memset(blocks, 0, (size_t)size);
    for (int i = 0; i < count && load->placing; i++) {
        const file_tensor *tensor = part_tensor(load, block, parts.names[i], "weight");
        const size_t row_bytes = tensor->bytes / (size_t)tensor->shape[0];
        for (int64_t row = 0; row < parts.outputs; row++) {
            const char *data = (const char *)tensor->data + (size_t)row * row_bytes;
            const int64_t output = i * parts.outputs + row;
            const int64_t groups = form == PACKED_BYTES ? inputs / DTYPE_BLOCK : 0;
            if (form == PACKED_FLOATS)
                copy_row(load, tensor, row, load->widened);
            if (form != PACKED_BYTES)
                sh_packed_put(form, inputs, output,
                              form == PACKED_FLOATS ? (const void *)load->widened : data,
                              blocks);
            for (int64_t group = 0; group < groups; group++) {
                int8_t values[DTYPE_BLOCK];
                uint16_t scale, shift;
                sh_quantised_block(tensor->dtype, data, values, &scale, &shift);
                sh_packed_put_group(inputs, output, group, values, scale, shift, blocks);
                data += row_bytes / (size_t)groups;
            }
        }
    }
    give_back(load, block, &parts);
    made.form = form;
    made.blocks = blocks;
    return made;
}

/* The part at `index` of a joined weight. */
static nn_tensor slice(const linear *whole, int64_t outputs, int index) {
    const bool small = whole->weight.half || whole->weight.bf16;
    const size_t size = small ? sizeof(uint16_t) : sizeof(float);
    const size_t skip = whole->weight.int8
                            ? (size_t)sh_int8_bytes(whole->inputs, index * outputs)
                            : (size_t)(index * outputs * whole->inputs) * size;
    nn_tensor part = whole->weight;
    if (part.data)
        part.data = (const char *)part.data + skip;
    return part;
}

static nn_tensor bias_slice(const linear *whole, int64_t outputs, int index) {
    const float *data = whole->bias.data;
    return (nn_tensor){.data = data ? data + index * outputs : NULL};
}

/* ---- The encoder ---------------------------------------------------------------- */

static conv1d load_conv(loader *load, int64_t inputs, int stride, const char *name) {
    const int64_t outputs = load->model->file->sizes.audio_width;
    const file_tensor *tensor = part_tensor(load, "encoder.", name, "weight");
    const int64_t count = sh_mul_checked(sh_mul_checked(inputs, outputs), CONV_TAPS);
    char bias[32];
    snprintf(bias, sizeof bias, "%s.bias", name);
    /* In the file the taps are innermost, so its weights are widened into a copy
       first. */
    float *arranged = sh_reserve(load->memory, count, sizeof *arranged);
    float *as_in_file = sh_reserve(load->memory, count, sizeof *as_in_file);
    if (load->placing) {
        copy_floats(load, tensor, as_in_file);
        sh_conv_arrange(inputs, outputs, as_in_file, false, arranged);
    }
    return (conv1d){.inputs = inputs,
                    .outputs = outputs,
                    .stride = stride,
                    .weight = {.data = arranged},
                    .bias.data = load_floats(load, "encoder.", bias),
                    .active = true,
                    .kind = ACTIVATION_GELU};
}

static void load_encoder(loader *load) {
    whisper_model *model = load->model;
    const whisper_sizes *sizes = &model->file->sizes;
    const int64_t width = sizes->audio_width, wide = 4 * width;
    const joined all = {{"attn.query", "attn.key", "attn.value"}, width, width};
    model->first_conv = load_conv(load, sizes->mels, 1, "conv1");
    model->second_conv = load_conv(load, width, 2, "conv2");
    model->audio_positions = load_floats(load, "encoder.", "positional_embedding");
    encoder_layer *layers = sh_reserve(load->memory, sizes->audio_layers, sizeof *layers);
    for (int i = 0; i < sizes->audio_layers; i++) {
        char block[32];
        snprintf(block, sizeof block, "encoder.blocks.%d.", i);
        const linear in = load_linear(load, block, all);
        const linear out = load_linear(load, block, (joined){{"attn.out"}, width, width});
        const linear widen = load_linear(load, block, (joined){{"mlp.0"}, width, wide});
        const linear narrow = load_linear(load, block, (joined){{"mlp.2"}, wide, width});
        const layer_norm before = load_norm(load, width, block, "attn_ln");
        const layer_norm middle = load_norm(load, width, block, "mlp_ln");
        if (load->placing)
            layers[i] = (encoder_layer){.query = slice(&in, width, 0),
                                        .key = slice(&in, width, 1),
                                        .value = slice(&in, width, 2),
                                        .output = out.weight,
                                        .query_bias = bias_slice(&in, width, 0),
                                        .key_bias = bias_slice(&in, width, 1),
                                        .value_bias = bias_slice(&in, width, 2),
                                        .output_bias = out.bias,
                                        .widen = widen.weight,
                                        .narrow = narrow.weight,
                                        .widen_bias = widen.bias,
                                        .narrow_bias = narrow.bias,
                                        .attention_scale = before.scale,
                                        .attention_shift = before.shift,
                                        .forward_scale = middle.scale,
                                        .forward_shift = middle.shift};
    }
    const layer_norm last = load_norm(load, width, "encoder.", "ln_post");
    model->encoder = (encoder_weights){.layers = layers,
                                       .final_scale = last.scale,
                                       .final_shift = last.shift};
}

/* ---- The decoder ---------------------------------------------------------------- */

static void load_decoder(loader *load) {
    whisper_model *model = load->model;
    const whisper_sizes *sizes = &model->file->sizes;
    const int64_t width = sizes->text_width, wide = 4 * width;
    const joined table = {{"token_embedding"}, width, sizes->vocabulary};
    const joined self = {{"attn.query", "attn.key", "attn.value"}, width, width};
    const joined self_out = {{"attn.out"}, width, width};
    const joined query = {{"cross_attn.query"}, width, width};
    const joined cross = {{"cross_attn.key", "cross_attn.value"},
                          sizes->audio_width,
                          width};
    const joined cross_out = {{"cross_attn.out"}, width, width};
    model->embedding = load_packed(load, "decoder.", table, false, false);
    model->text_positions = load_floats(load, "decoder.", "positional_embedding");
    model->decoder = sh_reserve(load->memory, sizes->text_layers, sizeof *model->decoder);
    for (int i = 0; i < sizes->text_layers; i++) {
        char block[32];
        decoder_layer layer;
        snprintf(block, sizeof block, "decoder.blocks.%d.", i);
        layer.self_norm = load_norm(load, width, block, "attn_ln");
        layer.cross_norm = load_norm(load, width, block, "cross_attn_ln");
        layer.forward_norm = load_norm(load, width, block, "mlp_ln");
        layer.self_in = load_packed(load, block, self, true, true);
        layer.self_out = load_packed(load, block, self_out, true, true);
        layer.cross_query = load_packed(load, block, query, true, true);
        layer.cross_in = load_packed(load, block, cross, true, true);
        layer.cross_out = load_packed(load, block, cross_out, true, true);
        layer.widen =
            load_packed(load, block, (joined){{"mlp.0"}, width, wide}, true, true);
        layer.narrow =
            load_packed(load, block, (joined){{"mlp.2"}, wide, width}, true, true);
        if (load->placing)
            model->decoder[i] = layer;
    }
    model->last_norm = load_norm(load, width, "decoder.", "ln");
}

/* ---- The whole ------------------------------------------------------------------ */

static void load_all(void *argument, block_layout *memory) {
    loader *load = argument;
    load->memory = memory;
    load->placing = memory->base != NULL;
    sh_reserve(memory, 1, sizeof *load->model);
    load->matrices = 0;
    load_encoder(load);
    load_decoder(load);
}

enum { SHORTEST_TEXT = 16 };

/* What the encoder's matrices become. */
static void choose_precision(shoal_context *context, shoal_precision precision,
                             whisper_model *model) {
    const whisper_sizes *sizes = &model->file->sizes;
    const int64_t width = sizes->audio_width;
    const int64_t weights = sh_mul_checked(sh_mul_checked(12, sizes->audio_layers),
                                           sh_mul_checked(width, width)); /* of blocks */
    const bool whole = width % PACKED_OUTPUTS == 0;
    model->int8_encoder = precision == SHOAL_PRECISION_INT8 && whole;
    model->bf16_encoder =
        whole && (precision == SHOAL_PRECISION_BFLOAT16 ||
                  (precision != SHOAL_PRECISION_FLOAT32 && sh_multiplies_bf16(context)));
    model->half_encoder =
        !model->bf16_encoder &&
        (weights < 0 || weights > WIDENED_MOST / (int64_t)sizeof(float));
    model->precision = model->int8_encoder   ? SHOAL_PRECISION_INT8
                       : model->bf16_encoder ? SHOAL_PRECISION_BFLOAT16
                                             : SHOAL_PRECISION_FLOAT32;
}

enum { ENCODER_MATRICES = 4, DECODER_MATRICES = 7 }; /* of a layer */

/* The model's block. */
static shoal_status load_model(shoal_context *context, whisper_model *sized,
                               whisper_model **model) {
    const whisper_sizes *sizes = &sized->file->sizes;
    const size_t row = 4 * (size_t)max(sizes->audio_width, sizes->text_width);
    const size_t matrices = ENCODER_MATRICES * (size_t)sizes->audio_layers +
                            DECODER_MATRICES * (size_t)sizes->text_layers;
    loader load = {.model = sized,
                   .widened = sh_allocate(context, row * sizeof(float)),
                   .squares = sh_allocate(context, row * sizeof(double)),
                   .bytes = sh_allocate(context, matrices + 1)};
    if (load.widened && load.squares && load.bytes) {
        memset(load.bytes, 0, matrices + 1);
        *model = sh_allocate_parts(context, load_all, &load, &sized->bytes);
    }
    sh_release(context, load.widened);
    sh_release(context, load.squares);
    sh_release(context, load.bytes);
    return *model ? load.status : SHOAL_NO_MEMORY;
}

shoal_status sh_whisper_open(shoal_context *context, const char *path,
                             shoal_precision precision, whisper_model **made) {
    whisper_model sized = {.context = context}, *model = NULL;
    *made = NULL;
    TRY(sh_whisper_file_open(context, path, &sized.file));
    shoal_status status = SHOAL_OK;
    if (sized.file->sizes.text_positions < SHORTEST_TEXT)
        status = sh_fail(context, SHOAL_BAD_FILE,
                         "%s: the decoder has %d positions; prompt and text need %d",
                         path, (int)sized.file->sizes.text_positions, SHORTEST_TEXT);
    choose_precision(context, precision, &sized);
    if (status == SHOAL_OK)
        status = load_model(context, &sized, &model);
    if (status == SHOAL_OK) {
        sh_whisper_file_unmap(sized.file);
        *model = sized;
        *made = model;
    } else {
        if (model)
            sh_release(context, model);
        sh_whisper_file_close(sized.file);
    }
    return status;
}

void sh_whisper_close(whisper_model *model) {
    if (!model)
        return;
    sh_whisper_file_close(model->file);
    sh_release(model->context, model);
}

/* ---- Running the encoder -------------------------------------------------------- */

/* E width, P positions, F = 2 P frames. */
struct whisper_encoder {
    const whisper_model *model;
    encoder *stack;
    size_t bytes;
    bool measuring;     /* the attention's error, in the next window */
    double error;       /* the largest of the layers'; NaN: not known */
    double *errors;     /* [layers] */
    int64_t offsets[2]; /* one sequence of P rows */
    float *frames;      /* [F][mels] */
    float *narrow;      /* [F][E], after the first convolution */
    float *rows;        /* [P][E], what the stack begins with */
};

static void place_encoder(void *argument, block_layout *block) {
    whisper_encoder *e = argument;
    const whisper_sizes *sizes = &e->model->file->sizes;
    const int64_t frames = MEL_FRAMES, width = sizes->audio_width;
    sh_reserve(block, 1, sizeof *e);
    e->errors = sh_reserve(block, sizes->audio_layers, sizeof *e->errors);
    e->frames = reserve_floats(block, frames, sizes->mels);
    e->narrow = reserve_floats(block, frames, width);
    e->rows = reserve_floats(block, sizes->audio_positions, width);
}

shoal_status sh_whisper_encoder_create(const whisper_model *model,
                                       const shoal_attention *attention,
                                       whisper_encoder **made) {
    const int kind = (int)attention->kind;
    whisper_encoder sized = {.model = model,
                             .measuring = kind != SHOAL_KIND_FULL &&
                                          kind != SHOAL_KIND_SHOAL &&
                                          kind != SHOAL_KIND_AUTO,
                             .error = NAN,
                             .offsets = {0, model->file->sizes.audio_positions}};
    *made = NULL;
    whisper_encoder *e =
        sh_allocate_parts(model->context, place_encoder, &sized, &sized.bytes);
    if (!e)
        return SHOAL_NO_MEMORY;
    *e = sized;
    const whisper_sizes *sizes = &e->model->file->sizes;
    const encoder_shape shape = {.layers = sizes->audio_layers,
                                 .heads = sizes->audio_heads,
                                 .head_dim = sizes->audio_width / sizes->audio_heads,
                                 .feed_forward = 4 * (int64_t)sizes->audio_width,
                                 .attention = *attention,
                                 .activation = ACTIVATION_GELU,
                                 .epsilon = 1e-5f};
    const encoder_limits limits = {.batch = 1,
                                   .rows = sizes->audio_positions,
                                   .length = sizes->audio_positions,
                                   .half_weights = e->model->half_encoder,
                                   .bf16_weights = e->model->bf16_encoder,
                                   .int8_weights = e->model->int8_encoder,
                                   .other_weights = e->model->outliers};
    const shoal_status status =
        sh_encoder_create(e->model->context, &shape, &limits, &e->stack);
    if (status != SHOAL_OK) {
        sh_release(model->context, e);
        return status;
    }
    *made = e;
    return SHOAL_OK;
}

void sh_whisper_encoder_destroy(whisper_encoder *e) {
    if (!e)
        return;
    sh_encoder_destroy(e->stack);
    sh_release(e->model->context, e);
}

size_t sh_whisper_encoder_memory(const whisper_encoder *e) {
    return e->bytes + sh_encoder_memory(e->stack);
}

double sh_whisper_attention_error(const whisper_encoder *e) {
    return e->error;
}

enum {
    FRAME_BLOCK = 64,
    ERROR_SAMPLES = 64 /* queries of a layer, for the estimate of its attention's error */
};

typedef struct {
    const float *features; /* [mels][F] */
    float *frames;         /* [F][mels] */
    int64_t mels;
} transposition;

static void transpose_block(void *shared, int64_t task, int thread) {
    const transposition *t = shared;
    const int64_t first = task * FRAME_BLOCK;
    const int64_t end = min(first + FRAME_BLOCK, MEL_FRAMES);
    (void)thread;
    for (int64_t band = 0; band < t->mels; band++)
        for (int64_t frame = first; frame < end; frame++)
            t->frames[frame * t->mels + band] = t->features[band * MEL_FRAMES + frame];
}

shoal_status sh_whisper_encode(whisper_encoder *e, const float *features,
                               const float **encoded) {
    const whisper_sizes *sizes = &e->model->file->sizes;
    const packing sequence = {.batch = 1, .offsets = e->offsets};
    transposition t = {features, e->frames, sizes->mels};
    sh_team_run(sh_team_of(e->model->context), ceil_divide(MEL_FRAMES, FRAME_BLOCK),
                transpose_block, &t);
    sh_conv_forward(e->model->context, &e->model->first_conv, MEL_FRAMES, e->frames, NULL,
                    e->narrow);
    sh_conv_forward(e->model->context, &e->model->second_conv, MEL_FRAMES, e->narrow,
                    NULL, e->rows);
    sh_positions_forward(e->model->context, &sequence, sizes->audio_width,
                         e->model->audio_positions, e->rows);
    if (e->measuring)
        sh_encoder_measure(e->stack, ERROR_SAMPLES, e->errors);
    const shoal_status status = sh_encoder_forward(e->stack, &e->model->encoder,
                                                   &sequence, (row_subset){0},
                                                   (dropout_key){0}, e->rows, encoded);
    for (int i = 0; e->measuring && status == SHOAL_OK && i < sizes->audio_layers; i++)
        e->error = fmax(e->error, e->errors[i]);
    e->measuring = false;
    sh_encoder_measure(e->stack, 0, NULL);
    return status;
}

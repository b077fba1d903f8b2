/* Weights of an encoder from a Hugging Face folder. A first pass finds every tensor and
   checks its shape, so that no more is allocated than the file contains. */
#define _GNU_SOURCE
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "models/nn/packed.h"
#include "models/nn/quantised.h"
#include "models/text/text_model.h"

/* A pass over all tensors: without an arena it checks and counts, with one it fills. */
typedef struct {
    shoal_context *context;
    const char *folder;
    const text_config *config;
    text_weights *to;
    const char *prefix; /* of every name: "", "bert.", ... */
    int64_t floats;     /* so far */
    float *row;         /* [M or F]: of a matrix */
    double *squares;    /* the same: of a matrix that becomes bytes */
    int matrices;       /* so far, and what becomes of each */
    matrix_form forms[TEXT_LAYERS_MOST * TEXT_MATRICES_MOST];
} loading;

enum { NAME_MOST = 160, JOINED_MOST = 3 };

const file_tensor *sh_text_tensor_find(const safetensors *file, const char *prefix,
                                       const char *name) {
    static const struct {
        const char *name, *first;
    } norms[] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                 {"LayerNorm.bias", "LayerNorm.beta"}};
    char whole[2 * NAME_MOST];
    const int length = snprintf(whole, sizeof whole, "%s%s", prefix, name);
    const file_tensor *found = sh_safetensors_find(file, whole);
    for (int i = 0; i < 2 && !found; i++) {
        const int end = (int)strlen(norms[i].name);
        if (length < end || strcmp(whole + length - end, norms[i].name) != 0)
            continue;
        strcpy(whole + length - end, norms[i].first); /* not longer */
        return sh_safetensors_find(file, whole);
    }
    return found;
}

static shoal_status find(const loading *l, const char *name, int64_t rows,
                         int64_t columns, const file_tensor **tensor) {
    const int64_t shape[2] = {rows, columns};
    char whole[NAME_MOST];
    snprintf(whole, sizeof whole, "%s%s", l->prefix, name);
    *tensor = sh_text_tensor_find(l->to->file, l->prefix, name);
    if (!*tensor)
        return sh_fail(l->context, SHOAL_BAD_FILE, "%s: its weights have no tensor '%s'",
                       l->folder, whole);
    if (sh_file_tensor_has_shape(*tensor, columns ? 2 : 1, shape))
        return SHOAL_OK;
    return sh_fail(l->context, SHOAL_BAD_FILE,
                   "%s: tensor '%s' does not have the shape of config.json (%lld x %lld)",
                   l->folder, whole, (long long)rows, (long long)(columns ? columns : 1));
}

/* columns is 0 for a vector. */
static shoal_status take(loading *l, const char *name, int64_t rows, int64_t columns,
                         nn_tensor *to) {
    const file_tensor *tensor;
    TRY(find(l, name, rows, columns, &tensor));
    float *place = l->to->arena ? l->to->arena + l->floats : NULL;
    l->floats += sh_file_tensor_elements(tensor);
    if (!place)
        return SHOAL_OK;
    *to = (nn_tensor){.data = place};
    TRY(sh_file_tensor_to_f32(l->context, tensor, place));
    sh_file_tensor_release(tensor);
    return SHOAL_OK;
}

/* ---- Matrices of the layers -------------------------------------------------------- */

/* Matrices below each other, which multiply the same rows. */
typedef struct {
    loading *l;
    const file_tensor *tensors[JOINED_MOST];
    int64_t each; /* outputs of one */
    shoal_status status;
} joined;

static const float *joined_row(void *shared, int64_t output) {
    joined *j = shared;
    const file_tensor *tensor = j->tensors[output / j->each];
    const size_t bytes = tensor->bytes / (size_t)tensor->shape[0];
    const file_tensor row = {.name = tensor->name,
                             .dtype = tensor->dtype,
                             .rank = 1,
                             .shape = {tensor->shape[1]},
                             .data = (const char *)tensor->data +
                                     (size_t)(output % j->each) * bytes,
                             .bytes = bytes};
    j->status = sh_file_tensor_to_f32(j->l->context, &row, j->l->row);
    return j->status == SHOAL_OK ? j->l->row : NULL;
}

/* What a matrix becomes: as the precision says, but for outliers, which bytes cannot
   hold beside the others. */
static shoal_status choose_form(loading *l, joined *j, const int8_source *from,
                                matrix_form *form) {
    *form = l->to->form;
    if (*form != MATRIX_INT8)
        return SHOAL_OK;
    switch (sh_int8_judge(from)) {
    case INT8_FINE: return SHOAL_OK;
    case INT8_UNREADABLE: return j->status;
    case INT8_OUTLIER:
        *form = l->to->instead;
        l->to->outliers = true;
        return SHOAL_OK;
    case INT8_NOT_FINITE: break;
    }
    return sh_fail(
        l->context, SHOAL_BAD_FILE,
        "%s: tensor '%s' has a weight that is NaN or infinite, which int8 cannot "
        "represent; use precision float32",
        l->folder, j->tensors[0]->name);
}

/* Bytes of a matrix, and floats with the factors that bytes have. */
static int64_t matrix_bytes(matrix_form form, int64_t inputs, int64_t outputs) {
    return form == MATRIX_INT8   ? sh_int8_bytes(inputs, outputs)
           : form == MATRIX_BF16 ? inputs * outputs * (int64_t)sizeof(uint16_t)
                                 : inputs * outputs * (int64_t)sizeof(float);
}

static int64_t form_floats(matrix_form form, int64_t inputs, int64_t outputs) {
    return matrix_bytes(form, inputs, outputs) / (int64_t)sizeof(float) +
           (form == MATRIX_INT8 ? inputs : 0);
}

/* The matrix's nn_tensor, from its place on. */
static shoal_status convert(const loading *l, joined *j, const int8_source *from,
                            matrix_form form, float *place, nn_tensor *to) {
    const int64_t inputs = from->inputs;
    *to = (nn_tensor){.data = place,
                      .packed = form == MATRIX_PACKED,
                      .bf16 = form == MATRIX_BF16,
                      .int8 = form == MATRIX_INT8};
    if (form == MATRIX_INT8) {
        float *factors = place +
                         sh_int8_bytes(inputs, from->outputs) / (int64_t)sizeof(float);
        to->factors = factors;
        return sh_int8_convert(from, l->squares, factors, place) ? SHOAL_OK : j->status;
    }
    for (int64_t output = 0; output < from->outputs; output++) {
        const float *row = joined_row(j, output);
        if (!row)
            return j->status;
        if (form == MATRIX_BF16)
            sh_bf16_put(inputs, output, row, (uint32_t *)(void *)place);
        else if (form == MATRIX_PACKED)
            sh_packed_put(PACKED_FLOATS, inputs, output, row, place);
        else
            memcpy(place + output * inputs, row, (size_t)inputs * sizeof *row);
    }
    return SHOAL_OK;
}

/* `count` matrices [outputs][inputs]; to[i]: the nn_tensor of each. */
static shoal_status take_matrices(loading *l, int count, char (*names)[NAME_MOST],
                                  int64_t outputs, int64_t inputs, nn_tensor **to) {
    joined j = {.l = l, .each = outputs};
    for (int i = 0; i < count; i++)
        TRY(find(l, names[i], outputs, inputs, &j.tensors[i]));
    const int8_source from = {inputs, count * outputs, joined_row, &j};
    matrix_form *form = &l->forms[l->matrices++];
    float *place = l->to->arena ? l->to->arena + l->floats : NULL;
    nn_tensor whole;
    shoal_status status = place ? convert(l, &j, &from, *form, place, &whole)
                                : choose_form(l, &j, &from, form);
    l->floats += form_floats(*form, inputs, count * outputs);
    for (int i = 0; i < count; i++) {
        if (place) {
            *to[i] = whole;
            to[i]->data = (const char *)whole.data +
                          i * matrix_bytes(*form, inputs, outputs);
        }
        sh_file_tensor_release(j.tensors[i]);
    }
    return status;
}

/* ---- BERT and RoBERTa ------------------------------------------------------------- */

typedef enum { ONE, MODEL, WIDE, TRIPLE, TWICE_WIDE } extent;

static int64_t extent_of(const text_config *config, extent which) {
    switch (which) {
    case MODEL: return config->size;
    case WIDE: return config->feed_forward;
    case TRIPLE: return 3 * config->size;
    case TWICE_WIDE: return 2 * config->feed_forward;
    default: return 0;
    }
}

typedef struct {
    const char *name;
    size_t field; /* offset of its nn_tensor in a layer */
    extent rows, columns;
} layer_row;

/* Queries, keys and values are adjacent, so that they are one product. */
static const layer_row bert_rows[] = {
    {"attention.self.query.weight", offsetof(encoder_layer, query), MODEL, MODEL},
    {"attention.self.key.weight", offsetof(encoder_layer, key), MODEL, MODEL},
    {"attention.self.value.weight", offsetof(encoder_layer, value), MODEL, MODEL},
    {"attention.self.query.bias", offsetof(encoder_layer, query_bias), MODEL, ONE},
    {"attention.self.key.bias", offsetof(encoder_layer, key_bias), MODEL, ONE},
    {"attention.self.value.bias", offsetof(encoder_layer, value_bias), MODEL, ONE},
    {"attention.output.dense.weight", offsetof(encoder_layer, output), MODEL, MODEL},
    {"attention.output.dense.bias", offsetof(encoder_layer, output_bias), MODEL, ONE},
    {"attention.output.LayerNorm.weight", offsetof(encoder_layer, attention_scale), MODEL,
     ONE},
    {"attention.output.LayerNorm.bias", offsetof(encoder_layer, attention_shift), MODEL,
     ONE},
    {"intermediate.dense.weight", offsetof(encoder_layer, widen), WIDE, MODEL},
    {"intermediate.dense.bias", offsetof(encoder_layer, widen_bias), WIDE, ONE},
    {"output.dense.weight", offsetof(encoder_layer, narrow), MODEL, WIDE},
    {"output.dense.bias", offsetof(encoder_layer, narrow_bias), MODEL, ONE},
    {"output.LayerNorm.weight", offsetof(encoder_layer, forward_scale), MODEL, ONE},
    {"output.LayerNorm.bias", offsetof(encoder_layer, forward_shift), MODEL, ONE},
};

static const layer_row modern_rows[] = {
    {"attn.Wqkv.weight", offsetof(modern_layer, projections), TRIPLE, MODEL},
    {"attn.Wo.weight", offsetof(modern_layer, output), MODEL, MODEL},
    {"mlp_norm.weight", offsetof(modern_layer, forward_scale), MODEL, ONE},
    {"mlp.Wi.weight", offsetof(modern_layer, widen), TWICE_WIDE, MODEL},
    {"mlp.Wo.weight", offsetof(modern_layer, narrow), MODEL, WIDE},
    {"attn_norm.weight", offsetof(modern_layer, attention_scale), MODEL, ONE},
};

static shoal_status take_layer(loading *l, const char *folder, int64_t layer,
                               const layer_row *rows, size_t count, void *to) {
    for (size_t i = 0; i < count; i++) {
        char names[JOINED_MOST][NAME_MOST];
        nn_tensor *places[JOINED_MOST];
        const int64_t outputs = extent_of(l->config, rows[i].rows);
        const int64_t inputs = extent_of(l->config, rows[i].columns);
        /* Matrices of one shape that follow each other multiply the same rows. */
        int more = 0;
        while (inputs && more + 1 < JOINED_MOST && i + (size_t)more + 1 < count &&
               rows[i + (size_t)more + 1].rows == rows[i].rows &&
               rows[i + (size_t)more + 1].columns == rows[i].columns)
            more++;
        for (int part = 0; part <= more; part++) {
            const layer_row *row = &rows[i + (size_t)part];
            snprintf(names[part], NAME_MOST, "%s.%lld.%s", folder, (long long)layer,
                     row->name);
            places[part] = (nn_tensor *)(void *)((char *)to + row->field);
        }
        if (inputs)
            TRY(take_matrices(l, 1 + more, names, outputs, inputs, places));
        else
            TRY(take(l, names[0], outputs, 0, places[0]));
        i += (size_t)more;
    }
    return SHOAL_OK;
}

static shoal_status take_bert(loading *l) {
    const text_config *config = l->config;
    text_weights *to = l->to;
    const int64_t size = config->size;
    TRY(take(l, "embeddings.position_embeddings.weight", config->table_positions, size,
             &to->positions));
    TRY(take(l, "embeddings.token_type_embeddings.weight", config->types, size,
             &to->types));
    TRY(take(l, "embeddings.LayerNorm.weight", size, 0, &to->scale));
    TRY(take(l, "embeddings.LayerNorm.bias", size, 0, &to->shift));
    for (int64_t i = 0; i < config->layers; i++)
        TRY(take_layer(l, "encoder.layer", i, bert_rows,
                       sizeof bert_rows / sizeof *bert_rows, &to->layers[i]));
    return SHOAL_OK;
}

static shoal_status take_modern(loading *l) {
    text_weights *to = l->to;
    const int64_t size = l->config->size;
    const size_t rows = sizeof modern_rows / sizeof *modern_rows;
    TRY(take(l, "embeddings.norm.weight", size, 0, &to->scale));
    TRY(take(l, "final_norm.weight", size, 0, &to->final_scale));
    /* The first layer has no norm before its attention, because the words are
       normalised. */
    for (int64_t i = 0; i < l->config->layers; i++)
        TRY(take_layer(l, "layers", i, modern_rows, i ? rows : rows - 1, &to->modern[i]));
    return SHOAL_OK;
}

/* ---- The file --------------------------------------------------------------------- */

shoal_status sh_text_file_open(shoal_context *context, const char *folder,
                               safetensors **file) {
    static const char *const names[] = {"model.safetensors",
                                        "model.safetensors.index.json"};
    char path[PATH_MAX];
    for (int i = 0; i < 2; i++) {
        const int length = snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (length > 0 && length < PATH_MAX && access(path, F_OK) == 0)
            return sh_safetensors_open(context, path, file);
    }
    return sh_fail(context, SHOAL_BAD_FILE,
                   "%s: has neither model.safetensors nor model.safetensors.index.json",
                   folder);
}

/* Models saved with a head have a prefix. */
static shoal_status take_words(loading *l) {
    static const char *const prefixes[] = {"", "bert.", "roberta.", "model."};
    const char *name = l->config->family == FAMILY_MODERN
                           ? "embeddings.tok_embeddings.weight"
                           : "embeddings.word_embeddings.weight";
    const file_tensor *tensor;
    char whole[NAME_MOST];
    l->prefix = "";
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(whole, sizeof whole, "%s%s", prefixes[i], name);
        if (sh_safetensors_find(l->to->file, whole))
            l->prefix = prefixes[i];
    }
    TRY(find(l, name, l->config->vocabulary, l->config->size, &tensor));
    l->to->words = *tensor;
    if (tensor->dtype == DTYPE_F32 || tensor->dtype == DTYPE_F16 ||
        tensor->dtype == DTYPE_BF16)
        return SHOAL_OK;
    return sh_fail(l->context, SHOAL_BAD_FILE,
                   "%s: '%s' has type %s; F32, F16 and BF16 are supported", l->folder,
                   name, sh_dtype_name(tensor->dtype));
}

static void place(void *argument, block_layout *block) {
    loading *l = argument;
    text_weights *to = l->to;
    const bool modern = l->config->family == FAMILY_MODERN;
    to->layers = sh_reserve(block, modern ? 0 : l->config->layers, sizeof *to->layers);
    to->modern = sh_reserve(block, modern ? l->config->layers : 0, sizeof *to->modern);
    to->zeros = reserve_floats(block, l->config->size, 1);
    to->arena = reserve_floats(block, l->floats, 1);
}

static shoal_status load(loading *l) {
    shoal_status (*take_all)(loading *) = l->config->family == FAMILY_MODERN ? take_modern
                                                                             : take_bert;
    encoder_layer one[TEXT_LAYERS_MOST]; /* not written by the first pass */
    modern_layer other[TEXT_LAYERS_MOST];
    l->to->layers = one;
    l->to->modern = other;
    shoal_status status = take_words(l);
    if (status == SHOAL_OK)
        status = take_all(l);
    l->to->layers = NULL;
    l->to->modern = NULL;
    TRY(status);
    l->to->block = sh_allocate_parts(l->context, place, l, NULL);
    if (!l->to->block)
        return SHOAL_NO_MEMORY;
    memset(l->to->zeros, 0, (size_t)l->config->size * sizeof(float));
    for (int64_t i = 0; i < l->config->layers; i++)
        if (l->config->family == FAMILY_MODERN)
            l->to->modern[i] = (modern_layer){0};
        else
            l->to->layers[i] = (encoder_layer){0};
    l->floats = 0;
    l->matrices = 0;
    return take_all(l);
}

/* The form of all matrices. */
static void choose_forms(shoal_context *context, const text_config *config,
                         shoal_precision precision, text_weights *to) {
    const bool whole = config->size % PACKED_OUTPUTS == 0 &&
                       config->feed_forward % PACKED_OUTPUTS == 0;
    const bool bytes = whole && config->size >= INT8_INPUTS_LEAST &&
                       config->feed_forward <= INT8_INPUTS_MOST &&
                       config->feed_forward >= INT8_INPUTS_LEAST;
    const bool bf16 =
        whole && (precision == SHOAL_PRECISION_BFLOAT16 ||
                  (precision != SHOAL_PRECISION_FLOAT32 && sh_multiplies_bf16(context)));
    const matrix_form floats = whole && context->kernels->lanes > 1 ? MATRIX_PACKED
                                                                    : MATRIX_FLOATS;
    to->instead = bf16 ? MATRIX_BF16 : floats;
    to->form = bytes && precision == SHOAL_PRECISION_INT8 ? MATRIX_INT8 : to->instead;
}

shoal_status sh_text_weights_open(shoal_context *context, const char *folder,
                                  const text_config *config, shoal_precision precision,
                                  text_weights *weights) {
    const int64_t widest = max(config->size, config->feed_forward);
    *weights = (text_weights){0};
    choose_forms(context, config, precision, weights);
    loading *l = sh_allocate(context, sizeof *l);
    if (!l)
        return SHOAL_NO_MEMORY;
    *l = (loading){.context = context,
                   .folder = folder,
                   .config = config,
                   .to = weights,
                   .row = sh_allocate(context, (size_t)widest * sizeof *l->row),
                   .squares = sh_allocate(context, (size_t)widest * sizeof *l->squares)};
    shoal_status status = l->row && l->squares ? SHOAL_OK : SHOAL_NO_MEMORY;
    if (status == SHOAL_OK)
        status = sh_text_file_open(context, folder, &weights->file);
    if (status == SHOAL_OK)
        status = load(l);
    sh_release(context, l->row);
    sh_release(context, l->squares);
    sh_release(context, l);
    if (status != SHOAL_OK)
        sh_text_weights_close(context, weights);
    return status;
}

void sh_text_weights_close(shoal_context *context, text_weights *weights) {
    sh_release(context, weights->block);
    sh_safetensors_close(weights->file);
    *weights = (text_weights){0};
}

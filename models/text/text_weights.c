/* Weights of an encoder from a Hugging Face folder. A first pass finds every tensor and
   checks its shape, so that no more is allocated than the file contains. */
#define _GNU_SOURCE
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "models/nn/packed.h"
#include "models/text/text_model.h"

/* A pass over all tensors: without an arena it checks and counts, with one it fills. */
typedef struct {
    shoal_context *context;
    const char *folder;
    const text_config *config;
    text_weights *to;
    const char *prefix; /* of every name: "", "bert.", ... */
    int64_t floats;     /* so far */
    float *rows;        /* [PACKED_OUTPUTS][M or F]: rows of a matrix to be packed */
} loading;

enum { NAME_MOST = 160 };

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
    /* Releases pages of the mapped file that were copied. */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)tensor->data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)tensor->data + tensor->bytes) / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    return SHOAL_OK;
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
        char name[NAME_MOST];
        snprintf(name, sizeof name, "%s.%lld.%s", folder, (long long)layer, rows[i].name);
        const int64_t outputs = extent_of(l->config, rows[i].rows);
        const int64_t inputs = extent_of(l->config, rows[i].columns);
        nn_tensor *one = (nn_tensor *)(void *)((char *)to + rows[i].field);
        float *at = l->to->arena ? l->to->arena + l->floats : NULL;
        TRY(take(l, name, outputs, inputs, one));
        if (at && inputs && l->to->packed) {
            /* Packs a matrix in place: a block has the size of its rows. */
            for (int64_t first = 0; first < outputs; first += PACKED_OUTPUTS) {
                float *block = at + first * inputs;
                memcpy(l->rows, block, (size_t)(PACKED_OUTPUTS * inputs) * sizeof *block);
                for (int64_t row = 0; row < PACKED_OUTPUTS; row++)
                    sh_packed_put(PACKED_FLOATS, inputs, row, l->rows + row * inputs,
                                  block);
            }
            one->packed = true;
        }
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
    l->rows =
        sh_allocate(l->context, (size_t)(PACKED_OUTPUTS *
                                         max(l->config->size, l->config->feed_forward)) *
                                    sizeof(float));
    if (!l->rows)
        return SHOAL_NO_MEMORY;
    status = take_all(l);
    sh_release(l->context, l->rows);
    return status;
}

shoal_status sh_text_weights_open(shoal_context *context, const char *folder,
                                  const text_config *config, text_weights *weights) {
    const bool whole = config->size % PACKED_OUTPUTS == 0 &&
                       config->feed_forward % PACKED_OUTPUTS == 0;
    *weights = (text_weights){.packed = whole && context->kernels->lanes > 1};
    loading l = {.context = context, .folder = folder, .config = config, .to = weights};
    shoal_status status = sh_text_file_open(context, folder, &weights->file);
    if (status == SHOAL_OK)
        status = load(&l);
    if (status != SHOAL_OK)
        sh_text_weights_close(context, weights);
    return status;
}

void sh_text_weights_close(shoal_context *context, text_weights *weights) {
    sh_release(context, weights->block);
    sh_safetensors_close(weights->file);
    *weights = (text_weights){0};
}

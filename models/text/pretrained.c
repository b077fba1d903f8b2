/* Conversion of a BERT or RoBERTa folder to a trainable model and back: the same
   tensors under the names of transformers. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/text/text_model.h"

enum { NAME_MOST = 160 };

/* ---- The configuration ------------------------------------------------------------ */

shoal_status shoal_text_model_config(shoal_context *context, const char *folder,
                                     shoal_model_config *config) {
    text_config read;
    if (!context || !folder || !config)
        return sh_fail(context, SHOAL_INVALID, "context, folder or config is NULL");
    TRY(sh_text_config_open(context, folder, &read));
    if (read.family == FAMILY_MODERN)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: a model of type '%s' can embed but not be trained; bert, "
                       "roberta, xlm-roberta and camembert can be trained",
                       folder, read.type);
    config->vocabulary = read.vocabulary;
    config->features = 0;
    config->max_length = read.positions;
    config->layers = read.layers;
    config->heads = read.heads;
    config->head_dim = read.size / read.heads;
    config->feed_forward = read.feed_forward;
    config->shared_qk = 0;
    config->norm = SHOAL_NORM_POST;
    config->activation = read.activation == ACTIVATION_RELU ? SHOAL_ACTIVATION_RELU
                                                            : SHOAL_ACTIVATION_GELU;
    config->positions = SHOAL_POSITIONS_LEARNED;
    config->dropout = read.dropout;
    config->form = read.family == FAMILY_BERT ? SHOAL_FORM_BERT : SHOAL_FORM_ROBERTA;
    config->types = read.types;
    config->epsilon = read.epsilon;
    return SHOAL_OK;
}

/* ---- Names ------------------------------------------------------------------------ */

typedef struct {
    const char *own, *theirs;
} name_row;

static const name_row layer_names[] = {
    {"attention.query.", "attention.self.query."},
    {"attention.key.", "attention.self.key."},
    {"attention.value.", "attention.self.value."},
    {"attention.output.", "attention.output.dense."},
    {"attention_norm.", "attention.output.LayerNorm."},
    {"feed_forward.widen.", "intermediate.dense."},
    {"feed_forward.narrow.", "output.dense."},
    {"forward_norm.", "output.LayerNorm."},
};
static const name_row input_names[] = {
    {"embedding.", "embeddings.word_embeddings."},
    {"positions.", "embeddings.position_embeddings."},
    {"types.", "embeddings.token_type_embeddings."},
    {"input_norm.", "embeddings.LayerNorm."},
};

/* The row whose own name is a prefix of `name`, or NULL. */
static const name_row *find_row(const name_row *rows, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strncmp(rows[i].own, name, strlen(rows[i].own)) == 0)
            return &rows[i];
    return NULL;
}

static const char *prefix_of(const shoal_model_config *config) {
    return config->form == SHOAL_FORM_BERT ? "bert." : "roberta.";
}

/* Names of a head and of an output have no prefix, except for BERT's pooler. */
static const char *part_behind(const shoal_model_config *config, bool head,
                               const char **prefix) {
    const bool bert = config->form == SHOAL_FORM_BERT;
    *prefix = bert && head ? prefix_of(config) : "";
    if (config->pooling == SHOAL_POOLING_NONE)
        return "qa_outputs.";
    if (head)
        return bert ? "pooler.dense." : "classifier.dense.";
    return bert ? "classifier." : "classifier.out_proj.";
}

/* Name of a parameter in transformers: prefix and name. */
static void their_name(const shoal_model_config *config, const char *own,
                       const char **prefix, char name[NAME_MOST]) {
    static const char layers[] = "encoder.layers.";
    const char *end = strrchr(own, '.') + 1;
    const char *last = strcmp(end, "scale") == 0   ? "weight"
                       : strcmp(end, "shift") == 0 ? "bias"
                                                   : end;
    *prefix = prefix_of(config);
    if (strncmp(own, layers, strlen(layers)) == 0) {
        char *rest;
        const long layer = strtol(own + strlen(layers), &rest, 10);
        const name_row *row =
            find_row(layer_names, sizeof layer_names / sizeof *layer_names, rest + 1);
        snprintf(name, NAME_MOST, "encoder.layer.%ld.%s%s", layer,
                 row ? row->theirs : rest + 1, last);
        return;
    }
    const name_row *row =
        find_row(input_names, sizeof input_names / sizeof *input_names, own);
    const char *part = row ? row->theirs
                           : part_behind(config, strncmp(own, "head.", 5) == 0, prefix);
    snprintf(name, NAME_MOST, "%s%s", part, last);
}

/* ---- Reading a folder ------------------------------------------------------------- */

static shoal_status check_model(shoal_context *context, const char *folder,
                                shoal_model *model) {
    if (!context || !folder || !model)
        return sh_fail(context, SHOAL_INVALID, "context, folder or model is NULL");
    const shoal_model_config *config = shoal_model_settings(model);
    if (config->form == SHOAL_FORM_BERT || config->form == SHOAL_FORM_ROBERTA)
        return SHOAL_OK;
    return sh_fail(context, SHOAL_INVALID,
                   "the model has neither BERT's nor RoBERTa's form; create it with the "
                   "configuration of the folder");
}

/* Unused rows at the start of RoBERTa's table of positions. */
static int64_t rows_before(const text_config *config) {
    return config->table_positions - config->positions;
}

static shoal_status load_one(shoal_context *context, const char *folder,
                             const safetensors *file, const text_config *config,
                             const shoal_model_config *settings,
                             const shoal_parameter *to) {
    char name[NAME_MOST];
    const char *prefix;
    their_name(settings, to->name, &prefix, name);
    const file_tensor *found = sh_text_tensor_find(file, prefix, name);
    if (!found) /* encoders without a head are saved without the prefix */
        found = sh_text_tensor_find(file, "", name);
    int64_t shape[SHOAL_MAX_DIMENSIONS];
    memcpy(shape, to->shape, sizeof shape);
    const int64_t before = strcmp(to->name, "positions.weight") == 0 ? rows_before(config)
                                                                     : 0;
    shape[0] += before;
    const bool fits = found && sh_file_tensor_has_shape(found, to->dimensions, shape);
    if (!fits &&
        (strncmp(to->name, "head.", 5) == 0 || strncmp(to->name, "output.", 7) == 0))
        return SHOAL_OK;
    if (!fits)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: its weights have %s tensor '%s%s'",
                       folder, found ? "a wrong shape of the" : "no", prefix, name);
    file_tensor rows = *found; /* without the unused rows, in the file's type */
    const size_t skipped = before ? found->bytes / (size_t)shape[0] * (size_t)before : 0;
    rows.shape[0] -= before;
    rows.bytes -= skipped;
    rows.data = (const char *)found->data + skipped;
    return sh_file_tensor_to_f32(context, &rows, to->values);
}

shoal_status shoal_text_model_load(shoal_context *context, const char *folder,
                                   shoal_model *model) {
    text_config config;
    safetensors *file;
    shoal_parameter one;
    TRY(check_model(context, folder, model));
    TRY(sh_text_config_open(context, folder, &config));
    TRY(sh_text_file_open(context, folder, &file));
    shoal_status status = SHOAL_OK;
    for (int i = 0; status == SHOAL_OK && shoal_model_parameter(model, i, &one); i++)
        status =
            load_one(context, folder, file, &config, shoal_model_settings(model), &one);
    sh_safetensors_close(file);
    return status;
}

/* ---- Writing a folder ------------------------------------------------------------- */

typedef struct {
    int64_t count, padded; /* number of tensors; floats of the padded table of
                              positions */
    file_tensor *tensors;
    char (*names)[2 * NAME_MOST];
    float *positions; /* [table_positions][M] */
} saving;

static void place(void *argument, block_layout *block) {
    saving *s = argument;
    s->tensors = sh_reserve(block, s->count, sizeof *s->tensors);
    s->names = sh_reserve(block, s->count, sizeof *s->names);
    s->positions = reserve_floats(block, s->padded, 1);
}

static void list_one(saving *s, int64_t at, const shoal_model_config *settings,
                     int64_t before, const shoal_parameter *one) {
    char name[NAME_MOST];
    const char *prefix;
    file_tensor *to = &s->tensors[at];
    their_name(settings, one->name, &prefix, name);
    snprintf(s->names[at], sizeof s->names[at], "%s%s", prefix, name);
    *to = (file_tensor){.name = s->names[at],
                        .dtype = DTYPE_F32,
                        .rank = one->dimensions,
                        .data = one->values};
    memcpy(to->shape, one->shape, sizeof to->shape);
    if (strcmp(one->name, "positions.weight") != 0)
        return;
    const size_t used = (size_t)(one->shape[0] * one->shape[1]);
    memset(s->positions, 0, (size_t)s->padded * sizeof(float));
    memcpy(s->positions + before * one->shape[1], one->values, used * sizeof(float));
    to->shape[0] += before;
    to->data = s->positions;
}

shoal_status shoal_text_model_save(shoal_context *context, const char *folder,
                                   shoal_model *model) {
    const shoal_note notes[] = {{"format", "pt"}};
    char path[PATH_MAX];
    text_config config;
    shoal_parameter one;
    saving s = {0};
    TRY(check_model(context, folder, model));
    TRY(sh_text_config_open(context, folder, &config));
    if (snprintf(path, sizeof path, "%s/model.safetensors", folder) >= PATH_MAX)
        return sh_fail(context, SHOAL_INVALID, "%s: the path is too long", folder);
    while (shoal_model_parameter(model, (int)s.count, &one))
        s.count++;
    s.padded = config.table_positions * config.size;
    void *block = sh_allocate_parts(context, place, &s, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++)
        list_one(&s, i, shoal_model_settings(model), rows_before(&config), &one);
    const shoal_status status =
        sh_safetensors_write(context, path, s.tensors, s.count, notes, 1, false);
    sh_release(context, block);
    return status;
}

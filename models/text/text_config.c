/* config.json of an encoder. */
#include <math.h>
#include <string.h>

#include "models/text/text_model.h"

typedef struct {
    shoal_context *context;
    const char *label;
    const json_t *root;
} config_file;

static shoal_status refuse(const config_file *f, const char *key, const char *what) {
    return sh_fail(f->context, SHOAL_BAD_FILE, "%s: '%s' %s", f->label, key, what);
}

static shoal_status read_size(const config_file *f, const char *key, int64_t least,
                              int64_t most, int64_t *size) {
    const json_t *value = json_object_get(f->root, key);
    *size = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    if (*size >= least && *size <= most)
        return SHOAL_OK;
    return sh_fail(f->context, SHOAL_BAD_FILE,
                   "%s: '%s' must be an integer from %lld to %lld", f->label, key,
                   (long long)least, (long long)most);
}

/* An optional number. */
static shoal_status read_number(const config_file *f, const json_t *from, const char *key,
                                double *number) {
    const json_t *value = json_object_get(from, key);
    if (!value || json_is_null(value))
        return SHOAL_OK;
    *number = json_number_value(value);
    if (json_is_number(value) && *number > 0 && isfinite(*number))
        return SHOAL_OK;
    return refuse(f, key, "must be a number above 0");
}

/* ---- Families --------------------------------------------------------------------- */

static shoal_status read_family(const config_file *f, text_config *config) {
    static const struct {
        const char *type;
        text_family family;
    } rows[] = {{"bert", FAMILY_BERT},
                {"roberta", FAMILY_ROBERTA},
                {"xlm-roberta", FAMILY_ROBERTA},
                {"camembert", FAMILY_ROBERTA},
                {"modernbert", FAMILY_MODERN}};
    const char *type = json_string_value(json_object_get(f->root, "model_type"));
    for (size_t i = 0; type && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(type, rows[i].type) == 0) {
            strcpy(config->type, type);
            config->family = rows[i].family;
            return SHOAL_OK;
        }
    return sh_fail(f->context, SHOAL_BAD_FILE,
                   "%s: a model of type '%s' is not supported; supported are bert, "
                   "roberta, xlm-roberta, camembert and modernbert",
                   f->label, sh_shown(type ? type : "").text);
}

static shoal_status read_activation(const config_file *f, const char *key,
                                    text_config *config) {
    const char *name = json_string_value(json_object_get(f->root, key));
    config->activation = name && strcmp(name, "relu") == 0 ? ACTIVATION_RELU
                                                           : ACTIVATION_GELU;
    if (!name || strcmp(name, "gelu") == 0 || strcmp(name, "relu") == 0)
        return SHOAL_OK;
    return sh_fail(f->context, SHOAL_BAD_FILE,
                   "%s: '%s' is '%s'; supported are gelu (exact) and relu", f->label, key,
                   sh_shown(name).text);
}

/* Flags that change the computation; only false is supported. */
static shoal_status refuse_flags(const config_file *f, const char *const *flags) {
    for (; *flags; flags++)
        if (json_is_true(json_object_get(f->root, *flags)))
            return refuse(f, *flags, "is true, which is not supported");
    return SHOAL_OK;
}

/* ---- BERT and RoBERTa ------------------------------------------------------------- */

static shoal_status read_bert(const config_file *f, text_config *config) {
    static const char *const flags[] = {"is_decoder", "add_cross_attention", NULL};
    const char *kind =
        json_string_value(json_object_get(f->root, "position_embedding_type"));
    double epsilon = 1e-12;
    int64_t padding = 0;
    const json_t *dropout = json_object_get(f->root, "hidden_dropout_prob");
    TRY(refuse_flags(f, flags));
    if (kind && strcmp(kind, "absolute") != 0)
        return refuse(f, "position_embedding_type", "must be 'absolute'");
    TRY(read_activation(f, "hidden_act", config));
    TRY(read_size(f, "type_vocab_size", 1, 65536, &config->types));
    TRY(read_number(f, f->root, "layer_norm_eps", &epsilon));
    config->epsilon = (float)epsilon;
    config->dropout = dropout ? (float)json_number_value(dropout) : 0.1f;
    if (dropout &&
        !(json_is_number(dropout) && config->dropout >= 0 && config->dropout < 1))
        return refuse(f, "hidden_dropout_prob", "must be a number from 0 to below 1");
    config->positions = config->table_positions;
    if (config->family == FAMILY_BERT)
        return SHOAL_OK;
    TRY(read_size(f, "pad_token_id", 0, config->vocabulary - 1, &padding));
    config->padding = (int32_t)padding;
    config->positions = config->table_positions - padding - 1;
    if (config->positions < 1)
        return refuse(f, "max_position_embeddings", "must be above pad_token_id + 1");
    return SHOAL_OK;
}

/* ---- ModernBERT ------------------------------------------------------------------- */

/* Local layers: a list, or all but every n-th, starting with the first. */
static shoal_status read_layer_types(const config_file *f, text_config *config) {
    const json_t *types = json_object_get(f->root, "layer_types");
    int64_t every = 3;
    if (types && !json_is_null(types)) {
        if ((int64_t)json_array_size(types) != config->layers)
            return refuse(f, "layer_types", "must name the type of every layer");
        for (int64_t l = 0; l < config->layers; l++) {
            const char *type = json_string_value(json_array_get(types, (size_t)l));
            config->local[l] = type && strcmp(type, "sliding_attention") == 0;
            if (!config->local[l] && (!type || strcmp(type, "full_attention") != 0))
                return refuse(f, "layer_types",
                              "must contain only full_attention and sliding_attention");
        }
        return SHOAL_OK;
    }
    if (json_object_get(f->root, "global_attn_every_n_layers"))
        TRY(read_size(f, "global_attn_every_n_layers", 1, TEXT_LAYERS_MOST, &every));
    for (int64_t l = 0; l < config->layers; l++)
        config->local[l] = l % every != 0;
    return SHOAL_OK;
}

static shoal_status read_modern(const config_file *f, text_config *config) {
    static const char *const flags[] = {"attention_bias", "mlp_bias", "norm_bias", NULL};
    double epsilon = 1e-5;
    int64_t window = 128;
    config->positions = config->table_positions;
    config->table_positions = 0;
    TRY(refuse_flags(f, flags));
    if (config->size / config->heads % 2 != 0)
        return refuse(f, "hidden_size", "must give heads of an even dimension");
    TRY(read_activation(f, "hidden_activation", config));
    TRY(read_number(f, f->root, "norm_eps", &epsilon));
    if (json_object_get(f->root, "local_attention"))
        TRY(read_size(f, "local_attention", 2, 65535, &window));
    config->epsilon = (float)epsilon;
    config->window = window;
    TRY(read_layer_types(f, config));
    /* Bases of the rotations, in the spelling of the published folder or of newer
       ones. */
    static const char *const old_keys[] = {"global_rope_theta", "local_rope_theta"};
    static const char *const kinds[] = {"full_attention", "sliding_attention"};
    const json_t *newer = json_object_get(f->root, "rope_parameters");
    const json_t *scaling = json_object_get(f->root, "rope_scaling");
    config->theta[0] = 160000;
    config->theta[1] = 10000;
    if (scaling && !json_is_null(scaling))
        return refuse(f, "rope_scaling", "is not supported");
    for (int i = 0; i < 2; i++) {
        const json_t *one = json_object_get(newer, kinds[i]);
        const char *type = json_string_value(json_object_get(one, "rope_type"));
        if (type && strcmp(type, "default") != 0)
            return refuse(f, "rope_type", "must be 'default'");
        TRY(read_number(f, f->root, old_keys[i], &config->theta[i]));
        TRY(read_number(f, one, "rope_theta", &config->theta[i]));
    }
    return SHOAL_OK;
}

shoal_status sh_text_config_read(shoal_context *context, const char *label,
                                 const json_t *root, text_config *config) {
    const config_file f = {context, label, root};
    *config = (text_config){.pooling = SHOAL_TEXT_POOLING_MEAN};
    TRY(read_family(&f, config));
    const struct {
        const char *key;
        int64_t most, *size;
    } rows[] = {{"vocab_size", INT32_MAX / 2, &config->vocabulary},
                {"num_hidden_layers", TEXT_LAYERS_MOST, &config->layers},
                {"num_attention_heads", 4096, &config->heads},
                {"hidden_size", 65536, &config->size},
                {"intermediate_size", 1 << 20, &config->feed_forward},
                {"max_position_embeddings", 1 << 24, &config->table_positions}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TRY(read_size(&f, rows[i].key, 1, rows[i].most, rows[i].size));
    if (config->size % config->heads != 0)
        return refuse(&f, "hidden_size", "must be a multiple of num_attention_heads");
    return (config->family == FAMILY_MODERN ? read_modern : read_bert)(&f, config);
}

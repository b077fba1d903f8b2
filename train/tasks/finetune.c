/* The tasks glue and squad: fine-tune the model of a BERT or RoBERTa folder and write
   such a folder. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "train/tasks/text.h"

/* ---- Configurations --------------------------------------------------------------- */

#define DATA_FIELD(config)                                                               \
    {                                                                                    \
        .name = "data", .type = SHOAL_FIELD_TYPE_TEXT,                                   \
        .offset = offsetof(config, train.data),                                          \
        .about = "fingerprint of the data, computed when it is opened"                   \
    }
#define LENGTH_FIELD(config)                                                             \
    {                                                                                    \
        .name = "max_length", .type = SHOAL_FIELD_TYPE_INTEGER,                          \
        .offset = offsetof(config, max_length), .min = 8, .max = 1 << 20,                \
        .about = "maximum tokens per sequence"                                           \
    }

static const shoal_field glue_fields[] = {DATA_FIELD(shoal_glue_config),
                                          {.name = "dataset",
                                           .type = SHOAL_FIELD_TYPE_TEXT,
                                           .offset = offsetof(shoal_glue_config, dataset),
                                           .about = "task of GLUE"},
                                          LENGTH_FIELD(shoal_glue_config),
                                          {0}};

static const shoal_field squad_fields[] =
    {DATA_FIELD(shoal_squad_config),
     LENGTH_FIELD(shoal_squad_config),
     {.name = "stride",
      .type = SHOAL_FIELD_TYPE_INTEGER,
      .offset = offsetof(shoal_squad_config, stride),
      .min = 1,
      .max = 1 << 20,
      .about = "tokens of the context from one window to the next"},
     {.name = "max_answer",
      .type = SHOAL_FIELD_TYPE_INTEGER,
      .offset = offsetof(shoal_squad_config, max_answer),
      .min = 1,
      .max = 1 << 20,
      .about = "maximum tokens of an answer"},
     {0}};

/* The usual settings for fine-tuning: AdamW, warm-up, linear decay to 0. */
static int defaults(void *user, const char *preset, void *whole) {
    shoal_train_config *train = whole;
    const bool squad = user != NULL;
    train->model = (shoal_model_config){.size = sizeof(shoal_model_config)};
    train->optimizer.kind = SHOAL_OPTIMIZER_KIND_ADAM;
    train->learning_rate = 1e-4f;
    train->clip = 1;
    train->plateau_patience = 0;
    train->batch = squad ? 16 : 32;
    train->steps = 0;
    train->epochs = squad ? 2 : 4;
    train->decay = 1;
    train->warmup_share = 0.1f;
    if (squad) {
        shoal_squad_config *config = whole;
        config->max_length = 384;
        config->stride = 128;
        config->max_answer = 30;
    } else {
        ((shoal_glue_config *)whole)->max_length = 128;
    }
    return preset != NULL;
}

/* ---- Opening ----------------------------------------------------------------------- */

/* Fields of both configurations. */
typedef struct {
    const char *folder, *dev, *model_folder;
    int64_t max_length, stride, max_answer;
    bool skip_bad;
} text_settings;

typedef struct {
    shoal_context *context;
    pool memory; /* owns this structure and the order */
    shoal_train_config *config;
    text_settings settings;
    const glue_task *glue; /* NULL for squad */
    shoal_tokenizer *tokenizer;
    text_set train; /* for glue */
    squad_set answers;
    text_dev dev;
    text_result result; /* of the validation in progress */
    text_batch batch;
    bool training;  /* purpose of the last batch */
    int64_t *order; /* [training sequences], of this epoch */
    int64_t epoch;
    char *paths; /* paths of the data as a JSON object */
} text_data;

static const text_set *training_set(const text_data *data) {
    return data->glue ? &data->train : &data->answers.windows;
}

static shoal_status open_model(text_data *data) {
    shoal_model_config *model = &data->config->model;
    const char *folder = data->settings.model_folder, *dev = data->settings.dev;
    shoal_context *context = data->context;
    char kind[SHOAL_VALUE_SIZE];
    if (!data->settings.folder || (!data->glue && !dev))
        return sh_fail(context, SHOAL_INVALID,
                       data->glue ? "glue needs --data, the folder of the tasks"
                                  : "squad needs --data TRAIN.json and --dev DEV.json");
    if (!folder)
        return sh_fail(context, SHOAL_INVALID,
                       "%s needs --model, the folder of a BERT or RoBERTa",
                       data->glue ? "glue" : "squad");
    shoal_attention_print(&model->attention, kind, sizeof kind);
    if (shoal_kind_describe((int)model->attention.kind)->keys_are_queries)
        return sh_fail(context, SHOAL_INVALID,
                       "%s uses the queries as keys, but these models have separate "
                       "keys; choose another kind",
                       kind);
    model->outputs = data->glue ? data->glue->classes : 2;
    model->pooling = data->glue ? SHOAL_POOLING_FIRST : SHOAL_POOLING_NONE;
    TRY(shoal_text_model_config(context, folder, model));
    if (data->settings.max_length > model->max_length)
        return sh_fail(context, SHOAL_INVALID,
                       "max_length is %" PRId64
                       ", but the maximum of the model is %" PRId64 " positions",
                       data->settings.max_length, model->max_length);
    TRY(shoal_tokenizer_open(context, folder, &data->tokenizer));
    if (shoal_tokenizer_size(data->tokenizer) > model->vocabulary)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: the tokenizer has %" PRId64 " tokens, but the model %" PRId64,
                       folder, shoal_tokenizer_size(data->tokenizer), model->vocabulary);
    return SHOAL_OK;
}

static char *note_paths(shoal_context *context, const text_settings *settings) {
    char path[PATH_MAX];
    json_t *object = json_object();
    const char *const names[] = {settings->folder, settings->dev};
    for (int i = 0; i < 2; i++)
        if (names[i])
            json_object_set_new(object, i ? "dev" : "data",
                                sh_json_text(context,
                                             realpath(names[i], path) ? path : names[i]));
    char *text = sh_json_dump(context, object, JSON_COMPACT);
    json_decref(object);
    return text;
}

/* Sets the sizes that depend on model and data. */
static void set_sizes(text_data *data, shoal_task_sizes *sizes) {
    shoal_train_config *config = data->config;
    const text_set *set = training_set(data), *dev = sh_text_dev_set(&data->dev);
    const int64_t in_epoch = (set->count + config->batch - 1) / config->batch;
    snprintf(config->data, sizeof config->data, "%016" PRIx64,
             sh_text_set_fingerprint(set) ^ (sh_text_set_fingerprint(dev) << 1));
    config->validate_every = in_epoch;
    if (config->steps == 0)
        config->steps = config->epochs * in_epoch;
    const int64_t rows = sh_text_set_most_rows(set, config->batch);
    const int64_t dev_rows = sh_text_set_most_rows(dev, config->batch);
    sizes->max_batch = config->batch;
    sizes->max_rows = rows > dev_rows ? rows : dev_rows;
    sizes->validation_batches = (dev->count + config->batch - 1) / config->batch;
}

/* Sets the fields of one task. */
static shoal_status take_config(text_data *data, bool squad, void *whole) {
    if (squad) {
        const shoal_squad_config *config = whole;
        data->settings = (text_settings){.folder = config->folder,
                                         .dev = config->dev,
                                         .model_folder = config->model_folder,
                                         .max_length = config->max_length,
                                         .stride = config->stride,
                                         .max_answer = config->max_answer,
                                         .skip_bad = config->skip_bad};
        return SHOAL_OK;
    }
    shoal_glue_config *config = whole;
    data->settings = (text_settings){.folder = config->folder,
                                     .model_folder = config->model_folder,
                                     .max_length = config->max_length,
                                     .skip_bad = config->skip_bad};
    data->glue = data->dev.glue = sh_glue_find(config->dataset);
    if (!data->glue)
        return sh_fail(data->context, SHOAL_INVALID,
                       "GLUE has no task \"%s\"; tasks: " GLUE_NAMES, config->dataset);
    snprintf(config->dataset, sizeof config->dataset, "%s", data->glue->name);
    return SHOAL_OK;
}

static shoal_status open_text(void *user, const shoal_task_opening *opening, void *whole,
                              void **place, shoal_task_sizes *sizes) {
    pool memory = {.context = opening->context};
    text_data *data = *place = sh_pool_take(&memory, 1, sizeof *data);
    if (!data)
        return SHOAL_NO_MEMORY;
    data->context = opening->context;
    data->memory = memory;
    data->config = whole;
    data->epoch = -1;
    TRY(take_config(data, user != NULL, whole));
    data->dev.max_answer = data->settings.max_answer;
    if (opening->resumed)
        data->settings.model_folder = opening->resumed;
    TRY(open_model(data));
    const text_settings *from = &data->settings;
    const text_reader reader = {data->context, data->tokenizer, from->max_length,
                                from->skip_bad, opening->callbacks};
    shoal_status status = data->glue ? sh_glue_read(&reader, data->glue, from->folder,
                                                    &data->train, &data->dev.set)
                                     : sh_squad_read(&reader, from->folder, from->stride,
                                                     true, &data->answers);
    if (status == SHOAL_OK && !data->glue)
        status = sh_squad_read(&reader, from->dev, from->stride, false, &data->dev.squad);
    if (status != SHOAL_OK)
        return status == SHOAL_NO_MEMORY ? status : SHOAL_BAD_FILE;
    set_sizes(data, sizes);
    data->order =
        sh_pool_take(&data->memory, training_set(data)->count, sizeof *data->order);
    data->paths = note_paths(data->context, &data->settings);
    return data->order && data->paths
               ? SHOAL_OK
               : sh_fail(data->context, SHOAL_NO_MEMORY, "out of memory");
}

static void close_text(void *place) {
    text_data *data = place;
    if (!data)
        return;
    shoal_tokenizer_destroy(data->tokenizer);
    sh_text_set_free(&data->train);
    sh_squad_free(&data->answers);
    sh_text_dev_free(&data->dev);
    sh_text_batch_free(&data->batch);
    sh_free(data->paths);
    sh_pool_free(&(pool){data->context, data->memory.last});
}

static shoal_status start_text(void *place, shoal_model *model) {
    const text_data *data = place;
    return shoal_text_model_load(data->context, data->settings.model_folder, model);
}

/* ---- Steps ------------------------------------------------------------------------- */

/* The order of an epoch is a function of the seed and its number. */
static void plan_epoch(text_data *data, int64_t epoch) {
    const int64_t count = training_set(data)->count;
    const uint64_t key = shoal_random(data->config->seed, 1, (uint64_t)epoch);
    if (data->epoch == epoch)
        return;
    for (int64_t i = 0; i < count; i++)
        data->order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t other =
            (int64_t)shoal_random_below(key, 2, (uint64_t)i, (uint64_t)i + 1);
        const int64_t kept = data->order[i];
        data->order[i] = data->order[other];
        data->order[other] = kept;
    }
    data->epoch = epoch;
}

static shoal_status make_batch(void *place, shoal_part part, int64_t number,
                               shoal_share share, shoal_model_inputs *inputs) {
    text_data *data = place;
    const int64_t batch = data->config->batch;
    data->training = part == SHOAL_PART_TRAIN;
    const text_set *set = data->training ? training_set(data)
                                         : sh_text_dev_set(&data->dev);
    const int64_t in_epoch = data->config->validate_every;
    const int64_t first = (data->training ? number % in_epoch : number) * batch;
    const int64_t left = set->count - first;
    int64_t before, own, rows = 0;
    if (data->training)
        plan_epoch(data, number / in_epoch);
    else if (number == 0)
        TRY(sh_text_dev_begin(&data->dev, &data->result));
    const int64_t *order = data->training ? data->order : NULL;
    shoal_share_split(share, left < batch ? left : batch, &before, &own);
    for (int64_t i = first; i < first + before; i++)
        rows += set->offsets[order ? order[i] + 1 : i + 1] -
                set->offsets[order ? order[i] : i];
    TRY(sh_text_batch_fill(set, order, first + before, own, &data->batch));
    *inputs = sh_text_batch_inputs(&data->batch);
    inputs->first_row = rows;
    inputs->first_sequence = before;
    return SHOAL_OK;
}

static shoal_status step(void *place, const float *out, float *gradient,
                         shoal_train_counts *counts) {
    text_data *data = place;
    const text_batch *batch = &data->batch;
    text_loss loss = {0};
    if (!data->training)
        return sh_text_dev_take(&data->dev, batch, out, &data->result);
    const shoal_status status =
        sh_text_loss(data->glue, training_set(data), batch, out, gradient, &loss);
    *counts = (shoal_train_counts){.loss = loss.mean,
                                   .weight = (double)batch->count,
                                   .correct = loss.correct,
                                   .counted = loss.counted};
    return status;
}

static shoal_status score_text(void *place, shoal_train_score *score) {
    text_data *data = place;
    text_result *result = &data->result;
    const shoal_status status = sh_text_dev_end(&data->dev, result);
    *score = (shoal_train_score){.loss = result->loss,
                                 .correct = result->correct,
                                 .counted = result->counted,
                                 .accuracy = result->first,
                                 .metric = sh_text_dev_first(&data->dev),
                                 .second = sh_text_dev_second(&data->dev),
                                 .second_value = result->second};
    return status;
}

/* ---- The folder -------------------------------------------------------------------- */

/* Describes the classification head for transformers in config.json. The labels differ
   from those of the original model, and model.safetensors is in single precision. */
static void describe_head(const text_data *data, json_t *root) {
    static const char *const labels[] = {"id2label", "label2id", "problem_type",
                                         "num_labels", "_num_labels"};
    const bool bert = data->config->model.form == SHOAL_FORM_BERT;
    const int classes = data->glue ? data->glue->classes : 2;
    char name[64];
    snprintf(name, sizeof name, "%sFor%s", bert ? "Bert" : "Roberta",
             data->glue ? "SequenceClassification" : "QuestionAnswering");
    json_object_set_new(root, "architectures", json_pack("[s]", name));
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        json_object_del(root, labels[i]);
    json_object_set_new(root, "dtype", json_string("float32"));
    if (json_object_get(root, "torch_dtype"))
        json_object_set_new(root, "torch_dtype", json_string("float32"));
    if (!data->glue)
        return;
    json_t *names = json_object(), *numbers = json_object();
    for (int i = 0; i < classes; i++) {
        char number[16], label[32];
        snprintf(number, sizeof number, "%d", i);
        snprintf(label, sizeof label, "LABEL_%d", i);
        const char *word = data->glue->words[0] ? data->glue->words[i] : label;
        json_object_set_new(names, number, json_string(word));
        json_object_set_new(numbers, word, json_integer(i));
    }
    json_object_set_new(root, "id2label", names);
    json_object_set_new(root, "label2id", numbers);
    json_object_set_new(root, "problem_type",
                        json_string(classes == 1 ? "regression"
                                                 : "single_label_classification"));
}

static shoal_status write_config(const text_data *data, const char *folder) {
    char from[SH_PATH], to[SH_PATH];
    json_t *root;
    TRY(sh_path(data->context, from, data->settings.model_folder, "config.json"));
    TRY(sh_path(data->context, to, folder, "config.json"));
    TRY(sh_json_object_read(data->context, from, 1 << 24, &root));
    describe_head(data, root);
    char *text = sh_json_dump(data->context, root, JSON_INDENT(2));
    const file_part parts[] = {{text, text ? strlen(text) : 0}, {"\n", 1}};
    const shoal_status status =
        text ? sh_file_replace(data->context, to, parts, 2, SHOAL_SYNC_NONE)
             : sh_fail(data->context, SHOAL_NO_MEMORY, "out of memory");
    sh_free(text);
    json_decref(root);
    return status;
}

/* Copies the tokenizer and the pooling configuration; files may be missing. */
static shoal_status prepare_folder(void *place, const char *folder) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "vocab.txt",
                                        "vocab.json",
                                        "merges.txt",
                                        "modules.json",
                                        "1_Pooling/config.json"};
    const text_data *data = place;
    shoal_context *context = data->context;
    char from[SH_PATH], to[SH_PATH];
    TRY(write_config(data, folder));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        file_map map;
        TRY(sh_path(context, from, data->settings.model_folder, names[i]));
        if (access(from, R_OK) != 0)
            continue;
        if (strchr(names[i], '/')) {
            TRY(sh_path(context, to, folder, "1_Pooling"));
            TRY(sh_make_folder(context, to));
        }
        TRY(sh_path(context, to, folder, names[i]));
        TRY(sh_file_map_open(context, from, &map));
        const file_part part = {map.bytes, map.size};
        const shoal_status status =
            sh_file_replace(context, to, &part, 1, SHOAL_SYNC_NONE);
        sh_file_map_close(&map);
        TRY(status);
    }
    return SHOAL_OK;
}

static shoal_status publish_weights(void *place, shoal_model *model, const char *folder) {
    return shoal_text_model_save(((const text_data *)place)->context, folder, model);
}

static const char *paths_note(void *place) {
    return ((const text_data *)place)->paths;
}

#define TEXT_TASK                                                                        \
    .flags = SHOAL_TASK_EPOCHS | SHOAL_TASK_WARMUP_SHARE | SHOAL_TASK_BEST |             \
             SHOAL_TASK_COLLECTS,                                                        \
    .defaults = defaults, .open = open_text, .close = close_text, .batch = make_batch,   \
    .step = step, .score = score_text, .start = start_text, .prepare = prepare_folder,   \
    .publish = publish_weights, .note_key = TEXT_PATHS_NOTE, .note = paths_note

const shoal_train_task sh_glue_task = {.name = "glue",
                                       .config_size = sizeof(shoal_glue_config),
                                       .fields = glue_fields,
                                       TEXT_TASK};
/* not NULL */
const shoal_train_task sh_squad_task = {.name = "squad",
                                        .config_size = sizeof(shoal_squad_config),
                                        .fields = squad_fields,
                                        .user = (void *)squad_fields,
                                        TEXT_TASK};

/* The tasks glue and squad: a BERT or RoBERTa folder is trained further, and what comes
   out is such a folder again. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "train.h"
#include "train/tasks/text.h"

typedef struct {
    const glue_task *glue; /* NULL: squad */
    shoal_tokenizer *tokenizer;
    text_set train; /* glue */
    squad_set answers;
    text_dev dev;
    text_batch batch;
    int64_t *order; /* [sequences of training], of this epoch: */
    int64_t epoch;
    char *paths; /* where the data is, as a JSON object */
} text_data;

static const text_set *training_set(const text_data *data) {
    return data->glue ? &data->train : &data->answers.windows;
}

/* ---- Opening ----------------------------------------------------------------------- */

/* What was left out, as the program says it. */
static void say(void *user, const char *text) {
    tell("shoal %s: %s", (const char *)user, text);
}

/* The dev part, and for training the other one. */
static shoal_status read_parts(trainer *self, text_data *data) {
    const train_config *config = &self->config;
    const text_reader reader = {self->context,
                                data->tokenizer,
                                config->text.max_length,
                                config->skip_bad,
                                say,
                                (char[]){"train"}};
    if (data->glue)
        return sh_glue_read(&reader, data->glue, config->folder, &data->train,
                            &data->dev.set);
    const shoal_status status =
        sh_squad_read(&reader, config->folder, config->text.stride, true, &data->answers);
    return status == SHOAL_OK ? sh_squad_read(&reader, config->dev, config->text.stride,
                                              false, &data->dev.squad)
                              : status;
}

static char *note_paths(const train_config *config) {
    char path[2][PATH_MAX];
    json_t *object = json_object();
    const char *const names[] = {config->folder, config->dev};
    for (int i = 0; i < 2; i++)
        if (names[i])
            json_object_set_new(object, i ? "dev" : "data",
                                json_text(realpath(names[i], path[i]) ? path[i]
                                                                      : names[i]));
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

static shoal_status check_paths(trainer *self, text_data *data) {
    const train_config *config = &self->config;
    const bool squad = strcmp(config->task, "squad") == 0;
    if (!squad)
        data->glue = sh_glue_find(config->text.dataset);
    if (!squad && !data->glue)
        return trainer_refuse(self, SHOAL_INVALID,
                              "there is no task \"%s\" of GLUE; there are %s",
                              config->text.dataset, sh_glue_names());
    if (!config->folder || (squad && !config->dev))
        return trainer_refuse(self, SHOAL_INVALID,
                              squad ? "squad needs --data TRAIN.json and --dev DEV.json"
                                    : "glue needs --data, the folder of its tasks");
    if (!config->model_folder)
        return trainer_refuse(self, SHOAL_INVALID,
                              "%s needs --model, the folder of a BERT or RoBERTa",
                              config->task);
    return SHOAL_OK;
}

/* Sizes that follow from the model and the data. */
static void set_sizes(trainer *self, const text_data *data) {
    train_config *config = &self->config;
    const text_set *set = training_set(data);
    const int64_t in_epoch = (set->count + config->batch - 1) / config->batch;
    const uint64_t dev = sh_text_set_fingerprint(sh_text_dev_set(&data->dev));
    snprintf(config->speech.data, sizeof config->speech.data, "%016" PRIx64,
             sh_text_set_fingerprint(set) ^ (dev << 1));
    config->validate_every = in_epoch;
    if (config->steps == 0)
        config->steps = config->speech.epochs * in_epoch;
    if (config->speech.decay && config->decay_steps == 0)
        config->decay_steps = config->steps;
    if (config->warmup == 0)
        config->warmup =
            llround((double)config->text.warmup_share * (double)config->steps);
}

static shoal_status open_model(trainer *self, const text_data *data) {
    train_config *config = &self->config;
    char kind[TRAIN_VALUE];
    shoal_attention_print(&config->model.attention, kind, sizeof kind);
    if (shoal_kind_describe((int)config->model.attention.kind)->keys_are_queries)
        return trainer_refuse(self, SHOAL_INVALID,
                              "%s takes the queries as keys, and these models have keys "
                              "of their own",
                              kind);
    config->model.outputs = data->glue ? data->glue->classes : 2;
    config->model.pooling = data->glue ? SHOAL_FIRST_ROW : SHOAL_EVERY_ROW;
    const shoal_status status =
        trainer_keep_message(self,
                             shoal_text_model_config(self->context, config->model_folder,
                                                     &config->model));
    if (status == SHOAL_OK && config->text.max_length > config->model.max_length)
        return trainer_refuse(self, SHOAL_INVALID,
                              "max_length is %" PRId64 ", and the model has %" PRId64
                              " positions",
                              config->text.max_length, config->model.max_length);
    return status;
}

static shoal_status open_text(trainer *self, int64_t *max_batch, int64_t *max_rows) {
    text_data *data = self->data = calloc(1, sizeof *data);
    if (!data)
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory");
    data->epoch = -1;
    shoal_status status = check_paths(self, data);
    data->dev.glue = data->glue;
    data->dev.max_answer = self->config.text.max_answer;
    if (status == SHOAL_OK)
        status = open_model(self, data);
    if (status == SHOAL_OK)
        status =
            trainer_keep_message(self, shoal_tokenizer_open(self->context,
                                                            self->config.model_folder,
                                                            &data->tokenizer));
    if (status != SHOAL_OK)
        return status;
    if (shoal_tokenizer_size(data->tokenizer) > self->config.model.vocabulary)
        return trainer_refuse(self, SHOAL_BAD_FILE,
                              "%s: its tokenizer has %" PRId64 " tokens, and its model "
                              "%" PRId64,
                              self->config.model_folder,
                              shoal_tokenizer_size(data->tokenizer),
                              self->config.model.vocabulary);
    status = read_parts(self, data);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    set_sizes(self, data);
    const text_set *set = training_set(data);
    data->order = calloc((size_t)set->count, sizeof *data->order);
    data->paths = note_paths(&self->config);
    if (!data->order || !data->paths)
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory");
    const int64_t train = sh_text_set_most_rows(set, self->config.batch);
    const int64_t dev =
        sh_text_set_most_rows(sh_text_dev_set(&data->dev), self->config.batch);
    *max_batch = self->config.batch;
    *max_rows = train > dev ? train : dev;
    return SHOAL_OK;
}

static void close_text(trainer *self) {
    text_data *data = self->data;
    if (!data)
        return;
    shoal_tokenizer_close(data->tokenizer);
    sh_text_set_free(&data->train);
    sh_squad_free(&data->answers);
    sh_text_dev_free(&data->dev);
    sh_text_batch_free(&data->batch);
    free(data->order);
    free(data->paths);
    free(data);
}

static shoal_status start_text(trainer *self) {
    return trainer_keep_message(self, shoal_text_model_load(self->context,
                                                            self->config.model_folder,
                                                            self->model));
}

/* ---- Steps ------------------------------------------------------------------------- */

/* The order of an epoch: a function of the seed and its number. */
static void plan_epoch(text_data *data, uint64_t seed, int64_t epoch) {
    const int64_t count = training_set(data)->count;
    const uint64_t key = shoal_random(seed, 1, (uint64_t)epoch);
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

/* This rank's share of the batch that begins at `first` of the epoch's order. */
static bool fill_share(trainer *self, int64_t first, shoal_model_inputs *inputs) {
    text_data *data = self->data;
    const text_set *set = training_set(data);
    const int64_t left = set->count - first, batch = self->config.batch;
    int64_t before, own, rows = 0;
    trainer_share(self, left < batch ? left : batch, &before, &own);
    for (int64_t i = first; i < first + before; i++)
        rows += set->offsets[data->order[i] + 1] - set->offsets[data->order[i]];
    if (!sh_text_batch_fill(set, data->order, first + before, own, &data->batch))
        return false;
    *inputs = sh_text_batch_inputs(&data->batch);
    inputs->training = 1;
    inputs->step = self->state.step;
    inputs->first_row = rows;
    inputs->first_sequence = before;
    return true;
}

static shoal_status step_text(trainer *self, train_step *step) {
    text_data *data = self->data;
    const int64_t in_epoch = self->config.validate_every;
    const text_batch *batch = &data->batch;
    const int64_t outputs = self->config.model.outputs;
    text_loss loss = {0};
    shoal_model_inputs inputs;
    float *out;
    plan_epoch(data, self->config.seed, self->state.step / in_epoch);
    if (!fill_share(self, self->state.step % in_epoch * self->config.batch, &inputs))
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory for a batch");
    shoal_status status = shoal_model_forward(self->model, &inputs, &out);
    if (status == SHOAL_OK)
        status = sh_text_loss(self->context, data->glue, training_set(data), batch, out,
                              out, &loss);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    const int64_t rows = data->glue ? batch->count : batch->offsets[batch->count];
    train_part part = {.loss = loss.mean,
                       .weight = (double)batch->count,
                       .divisor = (double)batch->count,
                       .correct = loss.correct,
                       .counted = loss.counted,
                       .sequences = batch->count};
    status = trainer_backward(self, &inputs, out, rows * outputs, &part);
    step->score = train_score_of(&part);
    step->sequences = part.sequences;
    return status;
}

/* On the first rank, which tells the others. */
static shoal_status run_dev(trainer *self, text_result *result) {
    text_data *data = self->data;
    shoal_transport *ranks = self->config.ranks;
    shoal_status status = SHOAL_OK;
    if (ranks_first(ranks))
        status = sh_text_dev_run(&data->dev, self->context, self->model,
                                 self->config.batch, NULL, NULL, result);
    if (status != SHOAL_OK || !ranks)
        return trainer_keep_message(self, status);
    status = ranks->broadcast(ranks, 0, sizeof *result, result);
    return status == SHOAL_OK ? status
                              : trainer_refuse(self, status, "%s", ranks->message);
}

static shoal_status validate_text(trainer *self, int64_t number, train_score *score) {
    text_data *data = self->data;
    text_result result = {0};
    (void)number;
    shoal_optimizer_use_average(self->optimizer, 1);
    const shoal_status status = run_dev(self, &result);
    shoal_optimizer_use_average(self->optimizer, 0);
    *score = (train_score){.loss = result.loss,
                           .correct = result.correct,
                           .counted = result.counted,
                           .accuracy = result.first,
                           .metric = sh_text_dev_first(&data->dev),
                           .second_value = result.second};
    if (sh_text_dev_second(&data->dev))
        score->second = sh_text_dev_second(&data->dev);
    return status;
}

/* ---- The folder -------------------------------------------------------------------- */

/* Copies a file of the model's folder; one that is not there is no mistake. */
static int copy_file(const char *command, const char *from, const char *to,
                     const char *name) {
    char source[TRAIN_PATH], target[TRAIN_PATH], bytes[1 << 16];
    replacement file;
    size_t count;
    if (!train_path(command, source, from, name) ||
        !train_path(command, target, to, name))
        return EXIT_USAGE;
    FILE *input = fopen(source, "rb");
    if (!input)
        return EXIT_OK;
    FILE *output = replace_begin(&file, target);
    bool good = output != NULL;
    while (good && (count = fread(bytes, 1, sizeof bytes, input)) > 0)
        good = fwrite(bytes, 1, count, output) == count;
    good = good && !ferror(input);
    if (output)
        good = replace_end(&file, good);
    fclose(input);
    return good ? EXIT_OK
                : complain(EXIT_RESOURCES, command, "%s cannot be written: %s", target,
                           strerror(errno));
}

/* The labels are not the source's, and model.safetensors is in single precision. */
static void describe_weights(json_t *root) {
    static const char *const labels[] = {"id2label", "label2id", "problem_type",
                                         "num_labels", "_num_labels"};
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        json_object_del(root, labels[i]);
    json_object_set_new(root, "dtype", json_string("float32"));
    if (json_object_get(root, "torch_dtype"))
        json_object_set_new(root, "torch_dtype", json_string("float32"));
}

/* config.json says what transformers would make of the weights. */
static void describe_head(const trainer *self, json_t *root) {
    const text_data *data = self->data;
    const bool bert = self->config.model.form == SHOAL_BERT;
    const int classes = data->glue ? data->glue->classes : 2;
    char name[64];
    snprintf(name, sizeof name, "%sFor%s", bert ? "Bert" : "Roberta",
             data->glue ? "SequenceClassification" : "QuestionAnswering");
    json_object_set_new(root, "architectures", json_pack("[s]", name));
    describe_weights(root);
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

static int write_config(trainer *self, const char *command, const char *folder) {
    char from[TRAIN_PATH], to[TRAIN_PATH];
    replacement file;
    if (!train_path(command, from, self->config.model_folder, "config.json") ||
        !train_path(command, to, folder, "config.json"))
        return EXIT_USAGE;
    json_t *root = load_json(command, from);
    if (!root)
        return EXIT_BAD_INPUT;
    describe_head(self, root);
    FILE *output = replace_begin(&file, to);
    bool good = output && json_dumpf(root, output, JSON_INDENT(2)) == 0 &&
                fputc('\n', output) != EOF;
    if (output)
        good = replace_end(&file, good);
    json_decref(root);
    return good ? EXIT_OK
                : complain(EXIT_RESOURCES, command, "%s cannot be written: %s", to,
                           strerror(errno));
}

/* Where the model's says how it pools, the run says it too. */
static int make_pooling_folder(trainer *self, const char *command, const char *folder) {
    char from[TRAIN_PATH], to[TRAIN_PATH];
    if (!train_path(command, from, self->config.model_folder, "1_Pooling/config.json") ||
        !train_path(command, to, folder, "1_Pooling"))
        return EXIT_USAGE;
    return access(from, F_OK) == 0 ? train_make_folder(command, to) : EXIT_OK;
}

static int prepare_folder(trainer *self, const char *command, const char *folder) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "vocab.txt",
                                        "vocab.json",
                                        "merges.txt",
                                        "modules.json",
                                        "1_Pooling/config.json"};
    int code = write_config(self, command, folder);
    if (code == EXIT_OK)
        code = make_pooling_folder(self, command, folder);
    for (size_t i = 0; i < sizeof names / sizeof *names && code == EXIT_OK; i++)
        code = copy_file(command, self->config.model_folder, folder, names[i]);
    return code;
}

static shoal_status publish_weights(trainer *self, const char *folder) {
    shoal_optimizer_use_average(self->optimizer, 1);
    const shoal_status status = shoal_text_model_save(self->context, folder, self->model);
    shoal_optimizer_use_average(self->optimizer, 0);
    return trainer_keep_message(self, status);
}

static const char *paths_note(const trainer *self) {
    return ((const text_data *)self->data)->paths;
}

#define TEXT_TASK                                                                        \
    .keeps_best = true, .open = open_text, .close = close_text, .step = step_text,       \
    .validate = validate_text, .start = start_text, .prepare = prepare_folder,           \
    .publish = publish_weights, .key = TEXT_PATHS_NOTE, .note = paths_note

const train_task glue_train_task = {.name = "glue", TEXT_TASK};
const train_task squad_train_task = {.name = "squad", TEXT_TASK};

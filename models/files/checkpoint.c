/* Models and checkpoints: one safetensors file.

   Tensors, float32, each in its parameter's shape:
       NAME                    weights
       optimizer.first.NAME    mean of the gradient
       optimizer.second.NAME   mean of its square
       average.NAME            averaged weights, if the optimizer keeps them
   Notes (the file's metadata): "format", those of the library under "shoal.", and the
   caller's. Counts are decimal and real numbers hexadecimal, so that they are exact.
   "shoal.checksum" covers all notes and tensors; older files without it are accepted.

   Files of the first format, which held the training of one task, are read as
   checkpoints: the tensors are the same, the state has other names, and there is no
   configuration of a model. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/plain.h"
#include "models/files/checksum.h"
#include "models/files/files.h"
#include "models/files/safetensors.h"
#include "models/nn/model.h"

#define FORMAT "shoal-model-1"
#define FIRST_FORMAT "shoal-checkpoint-1"
#define OWN_NOTES "shoal."
#define CONFIG_NOTE OWN_NOTES "config"
#define SEED_NOTE OWN_NOTES "seed"
#define CHECKSUM_NOTE OWN_NOTES "checksum"

enum { TEXT = 64, KEY = 64, SPELLING = 240, TENSOR_NAME = PARAMETER_NAME + 32 };

struct shoal_checkpoint {
    shoal_context *context;
    safetensors *file;
    bool first_format;
    char path[]; /* for messages */
};

/* ---- Contents of a checkpoint ----------------------------------------------------- */

/* Counts and numbers besides the tensors; one table serves reading and writing. */
typedef struct {
    int64_t steps, averages, waiting;
    double best, scale;
} saved_state;

typedef enum { OF_OPTIMIZER, OF_SCHEDULE } state_owner;
/* A loss is a real that may be infinite: not yet known. */
typedef enum { COUNT, REAL, LOSS } state_type;

typedef struct {
    const char *key, *first_key; /* first_key: in files of the first format */
    size_t offset;               /* in saved_state */
    state_type type;
    state_owner owner;
} state_row;

static const state_row state_rows[] = {
    {OWN_NOTES "steps", "state.step", offsetof(saved_state, steps), COUNT, OF_OPTIMIZER},
    {OWN_NOTES "averages", "state.averaged", offsetof(saved_state, averages), COUNT,
     OF_OPTIMIZER},
    {OWN_NOTES "schedule_best", "state.schedule_best", offsetof(saved_state, best), LOSS,
     OF_SCHEDULE},
    {OWN_NOTES "schedule_waiting", "state.schedule_waiting",
     offsetof(saved_state, waiting), COUNT, OF_SCHEDULE},
    {OWN_NOTES "schedule_scale", "state.schedule_scale", offsetof(saved_state, scale),
     REAL, OF_SCHEDULE},
};
enum { STATE_ROWS = sizeof state_rows / sizeof *state_rows, OWN = STATE_ROWS + 4 };

/* Arrays of the arena's size, by prefix of their tensors' names. */
typedef struct {
    const char *prefix;
    float *values; /* [arena size]; NULL if not kept */
} array_row;
enum { ARRAYS = 4 };

static const char optimizer_prefix[] = "optimizer.", average_prefix[] = "average.";

static void list_arrays(const shoal_model *model, const shoal_optimizer *optimizer,
                        array_row arrays[ARRAYS]) {
    arrays[0] = (array_row){"", model->arena->values};
    arrays[1] = (array_row){"optimizer.first.", optimizer ? optimizer->first : NULL};
    arrays[2] = (array_row){"optimizer.second.", optimizer ? optimizer->second : NULL};
    arrays[3] = (array_row){average_prefix, optimizer ? optimizer->averaged : NULL};
}

/* ---- The configuration as text --------------------------------------------------- */

static const char *const norms[] = {"pre", "post", NULL};
static const char *const activations[] = {"gelu", "relu", NULL};
static const char *const position_kinds[] = {"sinusoidal", "learned", "none", NULL};
static const char *const poolings[] = {"none", "mean", "first", NULL};
static const char *const forms[] = {"plain", "bert", "roberta", NULL};

/* A JSON object of the fields in the context's memory; NULL if out of memory. The
   attention has all options, so that the file keeps its meaning if defaults change. */
static char *print_config(shoal_context *context, const shoal_model_config *config) {
    char attention[SPELLING];
    shoal_attention_print_all(&config->attention, attention, sizeof attention);
    json_t *object = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:s, s:s, s:s, s:s, s:f}",
        "vocabulary", (json_int_t)config->vocabulary, "features",
        (json_int_t)config->features, "outputs", (json_int_t)config->outputs,
        "max_length", (json_int_t)config->max_length, "layers",
        (json_int_t)config->layers, "heads", (json_int_t)config->heads, "head_dim",
        (json_int_t)config->head_dim, "feed_forward", (json_int_t)config->feed_forward,
        "attention", attention, "shared_qk", config->shared_qk != 0, "norm",
        norms[config->norm], "activation", activations[config->activation], "positions",
        position_kinds[config->positions], "pooling", poolings[config->pooling],
        "dropout", (double)config->dropout);
    if (config->form != SHOAL_FORM_PLAIN) { /* omitted for plain models, so that older
                                          readers accept them */
        json_object_set_new(object, "form", json_string(forms[config->form]));
        json_object_set_new(object, "types", json_integer(config->types));
    }
    if (config->convolutions > 0)
        json_object_set_new(object, "convolutions", json_integer(config->convolutions));
    if (config->epsilon > 0)
        json_object_set_new(object, "epsilon", json_real((double)config->epsilon));
    char *text = sh_json_dump(context, object, JSON_COMPACT);
    json_decref(object);
    return text;
}

static bool find_choice(const char *const *choices, const char *text, int *value) {
    for (*value = 0; choices[*value]; ++*value)
        if (strcmp(choices[*value], text) == 0)
            return true;
    return false;
}

static shoal_status unpack_config(shoal_context *context, json_t *object,
                                  shoal_model_config *config) {
    json_int_t sizes[8], types = 0, convolutions = 0;
    const char *attention, *norm, *function, *positions, *pooling, *form = forms[0];
    int shared;
    double dropout, epsilon = 0;
    json_error_t error;
    if (json_unpack_ex(object, &error, 0,
                       "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:s, s:s, "
                       "s:s, s:s, s:F, s?s, s?I, s?F, s?I !}",
                       "vocabulary", &sizes[0], "features", &sizes[1], "outputs",
                       &sizes[2], "max_length", &sizes[3], "layers", &sizes[4], "heads",
                       &sizes[5], "head_dim", &sizes[6], "feed_forward", &sizes[7],
                       "attention", &attention, "shared_qk", &shared, "norm", &norm,
                       "activation", &function, "positions", &positions, "pooling",
                       &pooling, "dropout", &dropout, "form", &form, "types", &types,
                       "epsilon", &epsilon, "convolutions", &convolutions) != 0)
        return sh_fail(context, SHOAL_BAD_FILE, "%s", error.text);
    *config = (shoal_model_config){.size = sizeof(shoal_model_config),
                                   .vocabulary = sizes[0],
                                   .features = sizes[1],
                                   .outputs = sizes[2],
                                   .max_length = sizes[3],
                                   .layers = sizes[4],
                                   .heads = sizes[5],
                                   .head_dim = sizes[6],
                                   .feed_forward = sizes[7],
                                   .shared_qk = shared,
                                   .dropout = (float)dropout,
                                   .types = types,
                                   .epsilon = (float)epsilon,
                                   .convolutions = convolutions};
    int found[5];
    if (!find_choice(norms, norm, &found[0]) ||
        !find_choice(activations, function, &found[1]) ||
        !find_choice(position_kinds, positions, &found[2]) ||
        !find_choice(poolings, pooling, &found[3]) ||
        !find_choice(forms, form, &found[4]))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "unknown norm, activation, positions, pooling or form");
    config->norm = (shoal_norm)found[0];
    config->activation = (shoal_activation)found[1];
    config->positions = (shoal_positions)found[2];
    config->pooling = (shoal_pooling)found[3];
    config->form = (shoal_form)found[4];
    return shoal_attention_parse_stored(context, attention, 1, &config->attention);
}

/* ---- The checksum ---------------------------------------------------------------- */

static uint64_t hash_text(const char *text, uint64_t seed) {
    return sh_checksum(text, strlen(text), seed);
}

static uint64_t hash_tensor(const file_tensor *tensor) {
    uint64_t hash = hash_text(sh_dtype_name(tensor->dtype), hash_text(tensor->name, 0));
    hash = sh_checksum(tensor->shape, (size_t)tensor->rank * sizeof(int64_t), hash);
    return sh_checksum(tensor->data, tensor->bytes, hash);
}

static uint64_t hash_note(const char *key, const char *value) {
    return strcmp(key, CHECKSUM_NOTE) == 0 ? 0 : hash_text(value, hash_text(key, 1));
}

static void print_checksum(char text[TEXT], uint64_t sum) {
    snprintf(text, TEXT, "%016" PRIx64, sum);
}

/* Over all tensors and notes except itself. A commutative sum, independent of the order
   and layout of the header. */
static shoal_status compare_checksum(const shoal_checkpoint *checkpoint) {
    char text[TEXT];
    const safetensors *file = checkpoint->file;
    const char *key, *noted = sh_safetensors_note_of(file, CHECKSUM_NOTE);
    json_t *value;
    uint64_t sum = 0;
    if (!noted)
        return SHOAL_OK;
    json_object_foreach(sh_safetensors_notes(file), key, value) {
        sum += hash_note(key, json_string_value(value));
    }
    for (int64_t i = 0; i < sh_safetensors_count(file); i++)
        sum += hash_tensor(sh_safetensors_at(file, i));
    print_checksum(text, sum);
    if (strcmp(noted, text) == 0)
        return SHOAL_OK;
    return sh_fail(checkpoint->context, SHOAL_BAD_FILE,
                   "%s: the file is damaged: its checksum is %s, but that of its "
                   "contents %s; use another copy or an earlier checkpoint",
                   checkpoint->path, sh_shown(noted).text, text);
}

/* ---- Writing --------------------------------------------------------------------- */

/* Contents of a file to be written, and its text. */
typedef struct {
    const shoal_model *model;
    const shoal_optimizer *optimizer;
    const shoal_schedule *schedule;
    const shoal_note *callers; /* [callers_count] */
    int64_t callers_count;
    shoal_note *notes; /* [OWN + callers_count] */
    int64_t note_count;
    char (*values)[TEXT]; /* [OWN] */
    file_tensor *tensors; /* [ARRAYS x parameters] */
    char (*names)[TENSOR_NAME];
    int64_t tensor_count;
} contents;

static void place(void *argument, block_layout *block) {
    contents *file = argument;
    const int64_t tensors = sh_mul_checked(ARRAYS, file->model->arena->count);
    file->notes = sh_reserve(block, OWN + file->callers_count, sizeof *file->notes);
    file->values = sh_reserve(block, OWN, sizeof *file->values);
    file->tensors = sh_reserve(block, tensors, sizeof *file->tensors);
    file->names = sh_reserve(block, tensors, sizeof *file->names);
}

static void list_state(contents *file) {
    const shoal_optimizer *optimizer = file->optimizer;
    const shoal_schedule *schedule = file->schedule;
    saved_state state = {0};
    if (optimizer) {
        state.steps = optimizer->steps;
        state.averages = optimizer->averages;
    }
    if (schedule) {
        state.best = schedule->best;
        state.waiting = schedule->waiting;
        state.scale = schedule->scale;
    }
    for (int i = 0; i < STATE_ROWS; i++) {
        const state_row *row = &state_rows[i];
        const void *number = (const char *)&state + row->offset;
        char *text = file->values[file->note_count];
        if (row->owner == OF_OPTIMIZER ? !optimizer : !schedule)
            continue;
        if (row->type == COUNT)
            snprintf(text, TEXT, "%" PRId64, *(const int64_t *)number);
        else
            sh_print_c(text, TEXT, "%a", *(const double *)number);
        file->notes[file->note_count++] = (shoal_note){row->key, text};
    }
}

static void list_tensors(contents *file) {
    const parameters *arena = file->model->arena;
    array_row arrays[ARRAYS];
    list_arrays(file->model, file->optimizer, arrays);
    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; arrays[a].values && i < arena->count; i++) {
            const parameter *one = &arena->list[i];
            file_tensor *tensor = &file->tensors[file->tensor_count];
            char *name = file->names[file->tensor_count++];
            snprintf(name, TENSOR_NAME, "%s%s", arrays[a].prefix, one->name);
            *tensor = (file_tensor){.name = name,
                                    .dtype = DTYPE_F32,
                                    .rank = one->rank,
                                    .data = arrays[a].values + one->offset,
                                    .bytes = (size_t)one->count * sizeof(float)};
            memcpy(tensor->shape, one->shape, (size_t)one->rank * sizeof(int64_t));
        }
}

static shoal_status save(const char *path, contents *file) {
    shoal_context *context = file->model->context;
    char *config = print_config(context, &file->model->config);
    void *block = sh_allocate_parts(context, place, file, NULL);
    shoal_status status = sh_fail(context, SHOAL_NO_MEMORY, "%s: out of memory", path);
    if (config && block) {
        snprintf(file->values[0], TEXT, "%" PRIu64, file->model->seed);
        file->notes[file->note_count++] = (shoal_note){SEED_NOTE, file->values[0]};
        file->notes[file->note_count++] = (shoal_note){"format", FORMAT};
        file->notes[file->note_count++] = (shoal_note){CONFIG_NOTE, config};
        list_state(file);
        for (int64_t i = 0; i < file->callers_count; i++)
            file->notes[file->note_count++] = file->callers[i];
        list_tensors(file);
        /* After everything else is listed. */
        uint64_t sum = 0;
        for (int64_t i = 0; i < file->note_count; i++)
            sum += hash_note(file->notes[i].key, file->notes[i].value);
        for (int64_t i = 0; i < file->tensor_count; i++)
            sum += hash_tensor(&file->tensors[i]);
        print_checksum(file->values[OWN - 1], sum);
        file->notes[file->note_count++] =
            (shoal_note){CHECKSUM_NOTE, file->values[OWN - 1]};
        status = sh_safetensors_write(context, path, file->tensors, file->tensor_count,
                                      file->notes, file->note_count, true);
    }
    sh_release(context, block);
    sh_free(config);
    return status;
}

shoal_status shoal_checkpoint_save(const char *path, const shoal_model *model,
                                   const shoal_optimizer *optimizer,
                                   const shoal_schedule *schedule,
                                   const shoal_note *notes, int64_t note_count) {
    shoal_context *context = model ? model->context : NULL;
    if (!path || !model || note_count < 0 || (note_count > 0 && !notes) ||
        (optimizer && optimizer->model != model))
        return sh_fail(context, SHOAL_INVALID,
                       "path, model or notes is NULL, note_count is negative, or the "
                       "optimizer belongs to another model");
    if (optimizer && optimizer->using_average)
        return sh_fail(context, SHOAL_INVALID,
                       "the averaged weights are in use; swap them back first");
    for (int64_t i = 0; i < note_count; i++)
        if (!notes[i].key || !notes[i].value || !notes[i].key[0] ||
            strlen(notes[i].key) >= KEY ||
            strncmp(notes[i].key, OWN_NOTES, strlen(OWN_NOTES)) == 0)
            return sh_fail(context, SHOAL_INVALID,
                           "note %lld has no value, or its key is NULL, empty, longer "
                           "than %d bytes or reserved by the library",
                           (long long)i, KEY - 1);
    contents file = {.model = model,
                     .optimizer = optimizer,
                     .schedule = schedule,
                     .callers = notes,
                     .callers_count = note_count};
    return save(path, &file);
}

shoal_status shoal_model_save(const shoal_model *model, const char *path) {
    return shoal_checkpoint_save(path, model, NULL, NULL, NULL, 0);
}

/* ---- Opening --------------------------------------------------------------------- */

shoal_status shoal_checkpoint_open(shoal_context *context, const char *path,
                                   shoal_checkpoint **checkpoint) {
    if (checkpoint)
        *checkpoint = NULL;
    if (!context || !path || !checkpoint)
        return sh_fail(context, SHOAL_INVALID, "context, path or checkpoint is NULL");
    shoal_checkpoint *made = sh_allocate(context, sizeof *made + strlen(path) + 1);
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = (shoal_checkpoint){.context = context};
    strcpy(made->path, path);
    shoal_status status = sh_safetensors_open(context, path, &made->file);
    const char *format = status == SHOAL_OK ? sh_safetensors_note_of(made->file, "format")
                                            : NULL;
    made->first_format = format && strcmp(format, FIRST_FORMAT) == 0;
    if (status == SHOAL_OK && !made->first_format && strcmp(format ? format : "", FORMAT))
        status = sh_fail(context, SHOAL_BAD_FILE,
                         "%s: not a Shoal checkpoint: its format is \"%s\", not \"%s\"",
                         path, sh_shown(format ? format : "").text, FORMAT);
    if (status == SHOAL_OK)
        *checkpoint = made;
    else
        shoal_checkpoint_destroy(made);
    return status;
}

void shoal_checkpoint_destroy(shoal_checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    sh_safetensors_close(checkpoint->file);
    sh_release(checkpoint->context, checkpoint);
}

const char *shoal_checkpoint_note(const shoal_checkpoint *checkpoint, const char *key) {
    return checkpoint && key ? sh_safetensors_note_of(checkpoint->file, key) : NULL;
}

/* ---- Reading the notes ----------------------------------------------------------- */

static shoal_status read_config(const shoal_checkpoint *checkpoint,
                                shoal_model_config *config) {
    json_t *object;
    const char *text = sh_safetensors_note_of(checkpoint->file, CONFIG_NOTE);
    if (!text)
        return sh_fail(checkpoint->context, SHOAL_BAD_FILE,
                       "%s: it has no model configuration%s", checkpoint->path,
                       checkpoint->first_format ? ", as in all files of the first format"
                                                : "");
    TRY(sh_json_object_parse(checkpoint->context, checkpoint->path, text, strlen(text),
                             &object));
    const shoal_status status = unpack_config(checkpoint->context, object, config);
    json_decref(object);
    if (status == SHOAL_OK)
        return SHOAL_OK;
    /* The path precedes the message, which may quote the file. */
    char reason[sizeof checkpoint->context->message];
    snprintf(reason, sizeof reason, "%s", shoal_context_message(checkpoint->context));
    return sh_fail(checkpoint->context, SHOAL_BAD_FILE, "%s: %s", checkpoint->path,
                   reason);
}

shoal_status shoal_checkpoint_config(const shoal_checkpoint *checkpoint,
                                     shoal_model_config *config, uint64_t *seed) {
    if (!checkpoint || !config || !seed)
        return sh_fail(checkpoint ? checkpoint->context : NULL, SHOAL_INVALID,
                       "checkpoint, config or seed is NULL");
    const char *text = sh_safetensors_note_of(checkpoint->file, SEED_NOTE);
    *seed = text ? strtoull(text, NULL, 10) : 0;
    return read_config(checkpoint, config);
}

/* Compares fields that change the meaning of weights of the same shapes. */
static shoal_status compare_config(const shoal_checkpoint *checkpoint,
                                   const shoal_model_config *mine) {
    shoal_model_config theirs;
    if (checkpoint->first_format)
        return SHOAL_OK;
    TRY(read_config(checkpoint, &theirs));
    const char *other = mine->heads != theirs.heads             ? "heads"
                        : mine->norm != theirs.norm             ? "norm"
                        : mine->activation != theirs.activation ? "activation"
                        : mine->positions != theirs.positions   ? "positions"
                        : mine->pooling != theirs.pooling       ? "pooling"
                        : mine->form != theirs.form             ? "form"
                                                                : NULL;
    if (!other)
        return SHOAL_OK;
    return sh_fail(checkpoint->context, SHOAL_INVALID,
                   "%s: its model was created with another %s", checkpoint->path, other);
}

/* At most 10^12, more than any training reaches, so that products with batch sizes fit
   an int64_t. */
static bool read_count(const char *text, int64_t *value) {
    char *rest;
    *value = strtoll(text, &rest, 10);
    return rest != text && !*rest && *value >= 0 && *value <= INT64_C(1000000000000);
}

static bool read_real(const char *text, state_type type, double *value) {
    return sh_read_c(text, value) && *value >= 0 && (type == LOSS || isfinite(*value));
}

static shoal_status read_state(const shoal_checkpoint *checkpoint, bool optimizer,
                               bool schedule, saved_state *state) {
    for (int i = 0; i < STATE_ROWS; i++) {
        const state_row *row = &state_rows[i];
        const char *key = checkpoint->first_format ? row->first_key : row->key;
        const char *text = sh_safetensors_note_of(checkpoint->file, key);
        void *place = (char *)state + row->offset;
        if (row->owner == OF_OPTIMIZER ? !optimizer : !schedule)
            continue;
        if (!text || !(row->type == COUNT ? read_count(text, place)
                                          : read_real(text, row->type, place)))
            return sh_fail(checkpoint->context, SHOAL_BAD_FILE,
                           "%s: %s is %s; it must be a non-negative number",
                           checkpoint->path, key, text ? sh_shown(text).text : "missing");
    }
    return SHOAL_OK;
}

/* ---- Reading the tensors --------------------------------------------------------- */

static shoal_status require(const shoal_checkpoint *checkpoint, const char *prefix,
                            const parameter *one, const file_tensor **found) {
    char name[TENSOR_NAME];
    snprintf(name, sizeof name, "%s%s", prefix, one->name);
    return sh_safetensors_require(checkpoint->context, checkpoint->file, name, DTYPE_F32,
                                  one->rank, one->shape, found);
}

/* A step spreads NaN and infinities from one weight to all. The mean of squares may be
   infinite: its weight then stays unchanged. */
static shoal_status check_values(const shoal_checkpoint *checkpoint,
                                 const file_tensor *tensor) {
    const char *bytes = tensor->data;
    const bool moment =
        strncmp(tensor->name, optimizer_prefix, strlen(optimizer_prefix)) == 0;
    for (size_t at = 0; at < tensor->bytes; at += sizeof(float)) {
        float value;
        memcpy(&value, bytes + at, sizeof value);
        if (isnan(value) || (isinf(value) && !moment))
            return sh_fail(checkpoint->context, SHOAL_BAD_FILE,
                           "%s: tensor '%s' has a NaN or an infinity (element %zu)",
                           checkpoint->path, sh_shown(tensor->name).text,
                           at / sizeof value);
    }
    return SHOAL_OK;
}

/* Checks that every tensor exists with its shape and finite values; then reads it if
   `copying` is set. */
static shoal_status visit_tensors(const shoal_checkpoint *checkpoint,
                                  const parameters *arena, const array_row *arrays,
                                  int count, bool copying) {
    for (int a = 0; a < count; a++)
        for (int64_t i = 0; arrays[a].values && i < arena->count; i++) {
            const parameter *one = &arena->list[i];
            const file_tensor *found;
            TRY(require(checkpoint, arrays[a].prefix, one, &found));
            TRY(copying ? sh_file_tensor_to_f32(checkpoint->context, found,
                                                arrays[a].values + one->offset)
                        : check_values(checkpoint, found));
        }
    return SHOAL_OK;
}

/* Weights of layers that this model does not have are an error. */
static shoal_status check_count(const shoal_checkpoint *checkpoint, int64_t wanted) {
    int64_t weights = 0;
    for (int64_t i = 0; i < sh_safetensors_count(checkpoint->file); i++) {
        const char *name = sh_safetensors_at(checkpoint->file, i)->name;
        weights += strncmp(name, optimizer_prefix, strlen(optimizer_prefix)) != 0 &&
                   strncmp(name, average_prefix, strlen(average_prefix)) != 0;
    }
    if (weights == wanted)
        return SHOAL_OK;
    return sh_fail(checkpoint->context, SHOAL_BAD_FILE,
                   "%s: it has %lld parameters, but this model has %lld",
                   checkpoint->path, (long long)weights, (long long)wanted);
}

shoal_status shoal_checkpoint_fits(const shoal_checkpoint *checkpoint,
                                   const shoal_model_config *config) {
    parameters *list;
    const file_tensor *found;
    if (!checkpoint || !config)
        return sh_fail(checkpoint ? checkpoint->context : NULL, SHOAL_INVALID,
                       "checkpoint or config is NULL");
    shoal_model_config own = shoal_model_config_defaults();
    TRY(READ_STRUCT(checkpoint->context, shoal_model_config, config, &own));
    shoal_status status = sh_model_list(checkpoint->context, &own, &list);
    for (int64_t i = 0; status == SHOAL_OK && i < list->count; i++)
        status = require(checkpoint, "", &list->list[i], &found);
    if (status == SHOAL_OK)
        status = check_count(checkpoint, list->count);
    sh_parameters_destroy(list);
    return status;
}

shoal_status shoal_checkpoint_load(const shoal_checkpoint *checkpoint, shoal_model *model,
                                   shoal_optimizer *optimizer, shoal_schedule *schedule) {
    saved_state state;
    array_row arrays[ARRAYS];
    if (!checkpoint || !model || (optimizer && optimizer->model != model) ||
        (optimizer && optimizer->using_average))
        return sh_fail(checkpoint ? checkpoint->context : NULL, SHOAL_INVALID,
                       "checkpoint or model is NULL, the optimizer belongs to another "
                       "model, or its averaged weights are in use");
    TRY(compare_config(checkpoint, &model->config));
    TRY(read_state(checkpoint, optimizer != NULL, schedule != NULL, &state));
    list_arrays(model, optimizer, arrays);
    TRY(visit_tensors(checkpoint, model->arena, arrays, ARRAYS, false));
    TRY(check_count(checkpoint, model->arena->count));
    TRY(compare_checksum(checkpoint));
    TRY(visit_tensors(checkpoint, model->arena, arrays, ARRAYS, true));
    if (optimizer) {
        optimizer->steps = state.steps;
        optimizer->averages = optimizer->averaged ? state.averages : 0;
    }
    if (schedule) {
        schedule->best = state.best;
        schedule->waiting = state.waiting;
        schedule->scale = state.scale;
    }
    return SHOAL_OK;
}

/* The average before the first step is 0, and is not loaded. */
shoal_status shoal_checkpoint_load_average(const shoal_checkpoint *checkpoint,
                                           shoal_model *model) {
    saved_state state = {0};
    TRY(shoal_checkpoint_load(checkpoint, model, NULL, NULL));
    const bool first = checkpoint->first_format;
    const char *key = first ? state_rows[0].first_key : state_rows[0].key;
    if (!sh_safetensors_note_of(checkpoint->file, key))
        return SHOAL_OK; /* a file without an optimizer */
    TRY(read_state(checkpoint, true, false, &state));
    const array_row average = {average_prefix, model->arena->values};
    for (int pass = 0; pass < 2 && state.averages > 0; pass++)
        TRY(visit_tensors(checkpoint, model->arena, &average, 1, pass > 0));
    return SHOAL_OK;
}

shoal_status shoal_model_open(shoal_context *context, const char *path, int64_t max_batch,
                              int64_t max_rows, unsigned flags, shoal_model **model) {
    shoal_checkpoint *checkpoint;
    shoal_model_config config;
    uint64_t seed = 0;
    if (model)
        *model = NULL;
    if (!model)
        return sh_fail(context, SHOAL_INVALID, "model is NULL");
    shoal_status status = shoal_checkpoint_open(context, path, &checkpoint);
    if (status == SHOAL_OK)
        status = shoal_checkpoint_config(checkpoint, &config, &seed);
    if (status == SHOAL_OK)
        status = shoal_checkpoint_fits(checkpoint, &config);
    if (status == SHOAL_OK)
        status =
            shoal_model_create(context, &config, seed, max_batch, max_rows, flags, model);
    if (status == SHOAL_OK)
        status = shoal_checkpoint_load(checkpoint, *model, NULL, NULL);
    shoal_checkpoint_destroy(checkpoint);
    if (status != SHOAL_OK) {
        shoal_model_destroy(*model);
        *model = NULL;
    }
    return status;
}

#include "models/training/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/plain.h"
#include "models/files/safetensors.h"
#include "models/files/shown.h"
#include "models/training/train_config.h"
#include "shoal_models.h"

/* Far beyond what any training counts to, and its products with batches fit. */
static const int64_t most_count = INT64_C(1000000000000);

enum { NOTES = 64, KEY = 48, TENSOR_NAME = PARAMETER_NAME + 32 };

/* ---- What a checkpoint holds ----------------------------------------------------- */

/* The counts and numbers of the state, in one table for both ways. A loss is a real that
   may be infinite: none was seen yet. */
typedef enum { COUNT, REAL, LOSS } state_type;
typedef struct {
    const char *key;
    size_t offset; /* in train_state */
    state_type type;
} state_row;

static const state_row state_rows[] = {
    {"state.step", offsetof(train_state, step), COUNT},
    {"state.validations", offsetof(train_state, validations), COUNT},
    {"state.validated_at", offsetof(train_state, validated_at), COUNT},
    {"state.perfect", offsetof(train_state, perfect), COUNT},
    {"state.averaged", offsetof(train_state, averaged), COUNT},
    {"state.schedule_best", offsetof(train_state, schedule.best), LOSS},
    {"state.schedule_waiting", offsetof(train_state, schedule.waiting), COUNT},
    {"state.schedule_scale", offsetof(train_state, schedule.scale), REAL},
    {"state.seconds", offsetof(train_state, seconds), REAL},
};
enum { STATE_ROWS = sizeof state_rows / sizeof *state_rows };

/* Arrays of the arena's size, by the prefix of their tensors' names. */
typedef struct {
    const char *prefix;
    float *values; /* [arena size]; NULL: not kept */
} array_row;
enum { ARRAYS = 4 };

static void arrays_of(const shoal_trainer *trainer, array_row arrays[ARRAYS]) {
    arrays[0] = (array_row){"", trainer->model->arena->values};
    arrays[1] = (array_row){"optimizer.first.", trainer->optimizer.first};
    arrays[2] = (array_row){"optimizer.second.", trainer->optimizer.second};
    arrays[3] = (array_row){"average.", trainer->averaged};
}

/* ---- Writing --------------------------------------------------------------------- */

typedef struct {
    safetensors_note notes[NOTES];
    char keys[NOTES][KEY], values[NOTES][TRAIN_TEXT];
    int count;
} note_list;

static void add_note(note_list *list, const char *prefix, const char *key,
                     const char *value) {
    const int at = list->count++;
    snprintf(list->keys[at], KEY, "%s%s", prefix, key);
    snprintf(list->values[at], TRAIN_TEXT, "%s", value);
    list->notes[at] = (safetensors_note){list->keys[at], list->values[at]};
}

static void list_notes(const shoal_trainer *trainer, note_list *list) {
    char text[TRAIN_TEXT];
    list->count = 0;
    add_note(list, "", "format", CHECKPOINT_FORMAT);
    for (int i = 0; shoal_train_describe(i); i++) {
        shoal_train_get(&trainer->config, i, text, sizeof text);
        add_note(list, "config.", shoal_train_describe(i)->name, text);
    }
    for (int i = 0; i < STATE_ROWS; i++) {
        const char *place = (const char *)&trainer->state + state_rows[i].offset;
        if (state_rows[i].type != COUNT)
            sh_print_c(text, sizeof text, "%a", *(const double *)(const void *)place);
        else
            snprintf(text, sizeof text, "%" PRId64,
                     *(const int64_t *)(const void *)place);
        add_note(list, "", state_rows[i].key, text);
    }
}

static int64_t list_tensors(const shoal_trainer *trainer, file_tensor *tensors,
                            char (*names)[TENSOR_NAME]) {
    const parameters *arena = trainer->model->arena;
    array_row arrays[ARRAYS];
    int64_t count = 0;
    arrays_of(trainer, arrays);
    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; arrays[a].values && i < arena->count; i++) {
            const parameter *one = &arena->list[i];
            snprintf(names[count], TENSOR_NAME, "%s%s", arrays[a].prefix, one->name);
            tensors[count] = (file_tensor){.name = names[count],
                                           .dtype = DTYPE_F32,
                                           .rank = one->rank,
                                           .data = arrays[a].values + one->offset,
                                           .bytes = (size_t)one->count * sizeof(float)};
            memcpy(tensors[count].shape, one->shape, (size_t)one->rank * sizeof(int64_t));
            count++;
        }
    return count;
}

/* What describes a checkpoint while it is written. */
typedef struct {
    int64_t most; /* tensors */
    note_list *notes;
    file_tensor *tensors;       /* [most] */
    char (*names)[TENSOR_NAME]; /* [most] */
} description;

static void place(void *argument, block_layout *block) {
    description *d = argument;
    d->notes = sh_reserve(block, 1, sizeof *d->notes);
    d->tensors = sh_reserve(block, d->most, sizeof *d->tensors);
    d->names = sh_reserve(block, d->most, sizeof *d->names);
}

shoal_status shoal_trainer_save(shoal_trainer *trainer, const char *path) {
    if (!trainer || !path)
        return sh_fail(trainer ? trainer->context : NULL, SHOAL_INVALID,
                       "trainer or path is NULL");
    description d = {.most = sh_mul_checked(ARRAYS, trainer->model->arena->count)};
    void *block = sh_allocate_parts(trainer->context, place, &d, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    list_notes(trainer, d.notes);
    const int64_t count = list_tensors(trainer, d.tensors, d.names);
    const shoal_status status = sh_safetensors_write(trainer->context, path, d.tensors,
                                                     count, d.notes->notes,
                                                     d.notes->count, SAFETENSORS_DURABLE);
    sh_release(trainer->context, block);
    return status;
}

/* ---- Reading the notes ----------------------------------------------------------- */

static shoal_status open_checkpoint(shoal_context *context, const char *path,
                                    safetensors **file) {
    shoal_status status = sh_safetensors_open(context, path, file);
    if (status != SHOAL_OK)
        return status;
    const char *format = sh_safetensors_note_of(*file, "format");
    if (format && strcmp(format, CHECKPOINT_FORMAT) == 0)
        return SHOAL_OK;
    status = sh_fail(context, SHOAL_BAD_FILE,
                     "%s: not a checkpoint of Shoal's: its format is \"%s\", not \"%s\"",
                     path, sh_shown(format ? format : "").text, CHECKPOINT_FORMAT);
    sh_safetensors_close(*file);
    *file = NULL;
    return status;
}

/* The text of a field in the notes. */
static shoal_status field_note(shoal_context *context, const char *path,
                               const safetensors *file, int index, const char **text) {
    char key[KEY];
    snprintf(key, sizeof key, "config.%s", shoal_train_describe(index)->name);
    *text = sh_safetensors_note_of(file, key);
    if (*text)
        return SHOAL_OK;
    return sh_fail(context, SHOAL_BAD_FILE, "%s: the checkpoint has no %s", path, key);
}

static shoal_status read_config(shoal_context *context, const char *path,
                                const safetensors *file, shoal_train_config *config) {
    const char *text, *task = sh_safetensors_note_of(file, "config.task");
    shoal_status status = shoal_train_defaults(context, task ? task : "", config);
    for (int i = 0; shoal_train_describe(i) && status == SHOAL_OK; i++) {
        status = field_note(context, path, file, i, &text);
        if (status == SHOAL_OK)
            status =
                shoal_train_set(context, config, shoal_train_describe(i)->name, text);
    }
    if (status != SHOAL_INVALID)
        return status;
    char reason[sizeof context->message];
    snprintf(reason, sizeof reason, "%s", shoal_context_message(context));
    for (char *c = reason; *c; c++) /* it quotes the file */
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    return sh_fail(context, SHOAL_BAD_FILE, "%s: %s", path, reason);
}

shoal_status shoal_train_read(shoal_context *context, const char *path,
                              shoal_train_config *config) {
    safetensors *file;
    if (!context || !path || !config)
        return sh_fail(context, SHOAL_INVALID, "context, path or config is NULL");
    shoal_status status = open_checkpoint(context, path, &file);
    if (status != SHOAL_OK)
        return status;
    status = read_config(context, path, file, config);
    sh_safetensors_close(file);
    return status;
}

/* The first field that differs is named. */
static shoal_status compare_config(const shoal_trainer *trainer, const char *path,
                                   const safetensors *file) {
    char mine[TRAIN_TEXT], theirs[TRAIN_TEXT];
    shoal_train_config config;
    const shoal_status status = read_config(trainer->context, path, file, &config);
    for (int i = 0; status == SHOAL_OK && shoal_train_describe(i); i++) {
        shoal_train_get(&trainer->config, i, mine, sizeof mine);
        shoal_train_get(&config, i, theirs, sizeof theirs);
        if (strcmp(mine, theirs) != 0 && !sh_train_field_may_differ(i))
            return sh_fail(trainer->context, SHOAL_INVALID,
                           "%s: the checkpoint has %s = %s, and this training has %s",
                           path, shoal_train_describe(i)->name, theirs, mine);
    }
    return status;
}

static int read_whole(const char *text, int64_t *value) {
    char *rest;
    *value = strtoll(text, &rest, 10);
    return rest != text && !*rest && *value >= 0 && *value <= most_count;
}

static int read_real(const char *text, state_type type, double *value) {
    return sh_read_c(text, value) && *value >= 0 && (type == LOSS || isfinite(*value));
}

static shoal_status read_state(const shoal_trainer *trainer, const char *path,
                               const safetensors *file, train_state *state) {
    for (int i = 0; i < STATE_ROWS; i++) {
        const char *text = sh_safetensors_note_of(file, state_rows[i].key);
        void *place = (char *)state + state_rows[i].offset;
        const state_type type = state_rows[i].type;
        if (!text ||
            !(type == COUNT ? read_whole(text, place) : read_real(text, type, place)))
            return sh_fail(trainer->context, SHOAL_BAD_FILE,
                           "%s: %s is %s; it must be a number from 0 up", path,
                           state_rows[i].key, text ? sh_shown(text).text : "missing");
    }
    return SHOAL_OK;
}

/* ---- Reading the tensors --------------------------------------------------------- */

typedef shoal_status tensor_function(const shoal_trainer *trainer,
                                     const file_tensor *tensor, float *values);

static shoal_status leave(const shoal_trainer *trainer, const file_tensor *tensor,
                          float *values) {
    (void)trainer;
    (void)tensor;
    (void)values;
    return SHOAL_OK;
}

static shoal_status copy(const shoal_trainer *trainer, const file_tensor *tensor,
                         float *values) {
    return sh_file_tensor_to_f32(trainer->context, tensor, values);
}

/* Every tensor must be there in its shape; `use` sees each. *count: how many. */
static shoal_status visit_tensors(const shoal_trainer *trainer, const safetensors *file,
                                  tensor_function *use, int64_t *count) {
    const parameters *arena = trainer->model->arena;
    array_row arrays[ARRAYS];
    shoal_status status = SHOAL_OK;
    *count = 0;
    arrays_of(trainer, arrays);
    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; arrays[a].values && i < arena->count; i++, ++*count) {
            char name[TENSOR_NAME];
            const parameter *one = &arena->list[i];
            const file_tensor *found;
            snprintf(name, sizeof name, "%s%s", arrays[a].prefix, one->name);
            status = sh_safetensors_require(trainer->context, file, name, DTYPE_F32,
                                            one->rank, one->shape, &found);
            if (status == SHOAL_OK)
                status = use(trainer, found, arrays[a].values + one->offset);
            if (status != SHOAL_OK)
                return status;
        }
    return SHOAL_OK;
}

/* Nothing of the trainer changes before everything has been looked at. */
static shoal_status load(shoal_trainer *trainer, const char *path,
                         const safetensors *file) {
    train_state state = trainer->state;
    int64_t tensors = 0;
    shoal_status status = compare_config(trainer, path, file);
    if (status == SHOAL_OK)
        status = read_state(trainer, path, file, &state);
    if (status == SHOAL_OK)
        status = visit_tensors(trainer, file, leave, &tensors);
    if (status == SHOAL_OK && tensors != sh_safetensors_count(file))
        status = sh_fail(trainer->context, SHOAL_BAD_FILE,
                         "%s: it has %lld tensors; this training has %lld", path,
                         (long long)sh_safetensors_count(file), (long long)tensors);
    if (status == SHOAL_OK)
        status = visit_tensors(trainer, file, copy, &tensors);
    if (status != SHOAL_OK)
        return status;
    trainer->state = state;
    trainer->optimizer.step = state.step;
    return SHOAL_OK;
}

shoal_status shoal_trainer_resume(shoal_trainer *trainer, const char *path) {
    safetensors *file;
    if (!trainer || !path)
        return sh_fail(trainer ? trainer->context : NULL, SHOAL_INVALID,
                       "trainer or path is NULL");
    shoal_status status = open_checkpoint(trainer->context, path, &file);
    if (status != SHOAL_OK)
        return status;
    status = load(trainer, path, file);
    sh_safetensors_close(file);
    return status;
}

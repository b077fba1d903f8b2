/* Checkpoints of a training: weights and optimizer state, with notes that hold the
   configuration ("config.FIELD" as text) and the state ("state.NAME": counts in
   decimal, seconds in hexadecimal, which is exact). */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/train.h"

typedef enum { COUNT, SECONDS } number_type;

static const struct {
    const char *key;
    number_type type;
    size_t offset; /* in shoal_train_state */
    bool of_best;  /* only for tasks that keep the best weights */
} numbers[] = {{"state.step", COUNT, offsetof(shoal_train_state, step), false},
               {"state.validations", COUNT, offsetof(shoal_train_state, validations),
                false},
               {"state.validated_at", COUNT, offsetof(shoal_train_state, validated_at),
                false},
               {"state.perfect", COUNT, offsetof(shoal_train_state, perfect), false},
               {"state.seconds", SECONDS, offsetof(shoal_train_state, seconds), false},
               {"state.best", SECONDS, offsetof(shoal_train_state, best), true},
               {"state.best_step", COUNT, offsetof(shoal_train_state, best_step), true}};
enum { NUMBERS = sizeof numbers / sizeof *numbers, NOTES = 96, KEY = 48 };

static bool has_number(const shoal_trainer *self, int i) {
    return !numbers[i].of_best || (self->task->flags & SHOAL_TASK_BEST);
}

/* ---- Saving ------------------------------------------------------------------------ */

typedef struct {
    shoal_note notes[NOTES];
    char keys[NOTES][KEY], values[NOTES][SHOAL_VALUE_SIZE];
    int64_t count;
} note_list;

static char *add_note(note_list *list, const char *prefix, const char *key) {
    const int64_t at = list->count++;
    snprintf(list->keys[at], KEY, "%s%s", prefix, key);
    list->notes[at] = (shoal_note){list->keys[at], list->values[at]};
    return list->values[at];
}

shoal_status shoal_trainer_save(shoal_trainer *self, const char *path) {
    note_list list = {.count = 0};
    const shoal_field *field;
    if (!self)
        return SHOAL_INVALID;
    for (int i = 0; (field = shoal_task_field(self->task, i)); i++) {
        if (list.count == NOTES - NUMBERS - 1)
            return sh_fail(self->context, SHOAL_INVALID, "%s has more than %d fields",
                           self->task->name, NOTES - NUMBERS - 1);
        sh_field_store(self->task, self->config, field,
                       add_note(&list, "config.", field->name), SHOAL_VALUE_SIZE);
    }
    for (int i = 0; i < NUMBERS; i++) {
        const void *place = (const char *)&self->state + numbers[i].offset;
        if (!has_number(self, i))
            continue;
        char *text = add_note(&list, "", numbers[i].key);
        if (numbers[i].type == COUNT)
            snprintf(text, SHOAL_VALUE_SIZE, "%" PRId64, *(const int64_t *)place);
        else
            snprintf(text, SHOAL_VALUE_SIZE, "%a", *(const double *)place);
    }
    if (self->task->note)
        list.notes[list.count++] =
            (shoal_note){self->task->note_key, self->task->note(self->data)};
    return shoal_checkpoint_save(path, self->model, self->optimizer, &self->schedule,
                                 list.notes, list.count);
}

/* ---- The configuration in a file -------------------------------------------------- */

static shoal_status read_config(shoal_context *context, const shoal_train_task *task,
                                const char *path, const shoal_checkpoint *file,
                                void *config) {
    const shoal_field *field;
    for (int i = 0; (field = shoal_task_field(task, i)); i++) {
        char key[KEY], wrong[sizeof context->message];
        snprintf(key, sizeof key, "config.%s", field->name);
        if (sh_field_restore(context, task, config, field,
                             shoal_checkpoint_note(file, key)) == SHOAL_OK)
            continue;
        memcpy(wrong, context->message, sizeof wrong);
        return sh_fail(context, SHOAL_BAD_FILE, "%.200s: %.300s", path, wrong);
    }
    return SHOAL_OK;
}

shoal_status shoal_run_task(shoal_context *context, const char *path,
                            char name[SHOAL_TEXT_SIZE]) {
    char found[SH_PATH];
    shoal_checkpoint *file;
    shoal_status status = SHOAL_OK;
    TRY(sh_find_weights(context, path, found));
    TRY(shoal_checkpoint_open(context, found, &file));
    const char *task = shoal_checkpoint_note(file, "config.task");
    if (!task || strlen(task) >= SHOAL_TEXT_SIZE)
        status = sh_fail(context, SHOAL_BAD_FILE, "%s: the checkpoint has no config.task",
                         found);
    else
        snprintf(name, SHOAL_TEXT_SIZE, "%s", task);
    shoal_checkpoint_destroy(file);
    return status;
}

/* Reads the configuration and checks that the weights in the file match it, before a
   model of that size is created. Sizes that depend on absent data are taken from the
   file. */
static shoal_status open_config(shoal_context *context, const shoal_train_task *task,
                                const char *path, const shoal_checkpoint *file,
                                shoal_train_config *whole) {
    shoal_model_config own, model;
    uint64_t seed;
    TRY(read_config(context, task, path, file, whole));
    TRY(shoal_checkpoint_config(file, &own, &seed));
    model = own.form == SHOAL_FORM_PLAIN ? whole->model : own;
    model.attention = whole->model.attention;
    model.vocabulary = own.vocabulary;
    model.features = own.features;
    model.outputs = own.outputs;
    model.max_length = own.max_length;
    return shoal_checkpoint_fits(file, &model);
}

shoal_status shoal_run_config(shoal_context *context, const shoal_train_task *task,
                              const char *path, void *config) {
    char found[SH_PATH];
    shoal_checkpoint *file;
    shoal_train_config *given = config, *whole;
    TRY(sh_find_weights(context, path, found));
    TRY(sh_config_copy(context, task, config, &whole));
    shoal_status status = shoal_checkpoint_open(context, found, &file);
    if (status == SHOAL_OK) {
        status = open_config(context, task, found, file, whole);
        shoal_checkpoint_destroy(file);
    }
    if (status == SHOAL_OK) {
        whole->size = given->size < whole->size ? given->size : whole->size;
        memcpy(given, whole, whole->size);
    }
    sh_release(context, whole);
    return status;
}

/* ---- Resuming --------------------------------------------------------------------- */

/* Counts are at most 10^12, more than any training reaches, so that products with batch
   sizes fit an int64_t. */
static shoal_status read_state(const shoal_trainer *self, const char *path,
                               const shoal_checkpoint *file, shoal_train_state *state) {
    for (int i = 0; i < NUMBERS; i++) {
        const char *text = shoal_checkpoint_note(file, numbers[i].key);
        char *rest = NULL, *place = (char *)state + numbers[i].offset;
        const bool count = numbers[i].type == COUNT;
        if (!has_number(self, i))
            continue;
        const int64_t whole = text && count ? strtoll(text, &rest, 10) : 0;
        const double real = text && !count ? strtod(text, &rest) : 0;
        if (!text || rest == text || *rest || whole < 0 || whole > 1000000000000 ||
            !(real >= 0 && isfinite(real)))
            return sh_fail(self->context, SHOAL_BAD_FILE,
                           "%s: %s is %.80s; it must be a non-negative number", path,
                           numbers[i].key, text ? text : "missing");
        memcpy(place, count ? (const void *)&whole : &real, sizeof whole);
    }
    return SHOAL_OK;
}

/* Names the first field in which the configurations differ. */
static shoal_status resume(shoal_trainer *self, const char *path,
                           const shoal_checkpoint *file, shoal_train_config *before) {
    char mine[SHOAL_VALUE_SIZE], theirs[SHOAL_VALUE_SIZE];
    const int64_t steps = self->config->steps;
    shoal_train_state state = {0};
    const shoal_field *field;
    TRY(read_config(self->context, self->task, path, file, before));
    for (int i = 0; (field = shoal_task_field(self->task, i)); i++) {
        sh_field_print(self->task, self->config, field, mine, sizeof mine);
        sh_field_print(self->task, before, field, theirs, sizeof theirs);
        if (strcmp(mine, theirs) != 0 && strcmp(field->name, "steps") != 0)
            return sh_fail(self->context, SHOAL_INVALID,
                           "%s: the checkpoint has %s = %s, but this training has %s",
                           path, field->name, theirs, mine);
    }
    /* Steps beyond the end of the decay would have a learning rate of 0. */
    if (before->decay_steps && steps > before->decay_steps && steps > before->steps)
        return sh_fail(self->context, SHOAL_INVALID,
                       "%s: the learning rate decays to 0 at step %" PRId64
                       ", so further steps have no effect; start another training with "
                       "--from and this file, or one with more steps from the beginning",
                       path, before->decay_steps);
    TRY(read_state(self, path, file, &state));
    TRY(shoal_checkpoint_load(file, self->model, self->optimizer, &self->schedule));
    self->state = state;
    return SHOAL_OK;
}

shoal_status shoal_trainer_resume(shoal_trainer *self, const char *path) {
    shoal_checkpoint *file;
    shoal_train_config *before;
    if (!self)
        return SHOAL_INVALID;
    TRY(shoal_checkpoint_open(self->context, path, &file));
    shoal_status status =
        sh_config_copy(self->context, self->task, self->config, &before);
    if (status == SHOAL_OK)
        status = resume(self, path, file, before);
    sh_release(self->context, before);
    shoal_checkpoint_destroy(file);
    return status;
}

/* ---- Weights of another run -------------------------------------------------------- */

shoal_status sh_find_weights(shoal_context *context, const char *path,
                             char found[SH_PATH]) {
    struct stat information;
    if (stat(path, &information) != 0 || !S_ISDIR(information.st_mode))
        return snprintf(found, SH_PATH, "%s", path) < SH_PATH
                   ? SHOAL_OK
                   : sh_fail(context, SHOAL_INVALID, "%.80s...: the path is too long",
                             path);
    TRY(sh_path(context, found, path, SHOAL_RUN_BEST));
    return access(found, F_OK) == 0 ? SHOAL_OK
                                    : sh_path(context, found, path, SHOAL_RUN_CHECKPOINT);
}

shoal_status shoal_trainer_start(shoal_trainer *self, const char *path) {
    char found[SH_PATH];
    shoal_checkpoint *file;
    if (!self)
        return SHOAL_INVALID;
    const shoal_train_task *task = self->task;
    if (!path)
        return task->start ? task->start(self->data, self->model) : SHOAL_OK;
    shoal_status status;
    TRY(sh_find_weights(self->context, path, found));
    TRY(shoal_checkpoint_open(self->context, found, &file));
    const char *note = task->note ? shoal_checkpoint_note(file, task->note_key) : NULL;
    if (task->note && (!note || strcmp(note, task->note(self->data)) != 0))
        status = sh_fail(self->context, SHOAL_BAD_FILE,
                         "%s: its %s differ from those of this training", found,
                         task->note_key);
    else
        status = shoal_checkpoint_load_average(file, self->model);
    shoal_checkpoint_destroy(file);
    return status;
}

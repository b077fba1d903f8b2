/* The trainer: steps, validations and checkpoints of any task, on the parts of
   shoal_models.h. Batches, dropout and validation data are functions of the seed and of
   counts, so the counts in train_state are also the position in the data and the state of
   the random numbers. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "train.h"

/* ---- Creation --------------------------------------------------------------------- */

static shoal_status refuse(train_reason *reason, shoal_status status, const char *format,
                           ...) __attribute__((format(printf, 3, 4)));

static shoal_status refuse(train_reason *reason, shoal_status status, const char *format,
                           ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason->text, sizeof reason->text, format, arguments);
    va_end(arguments);
    mask_controls(reason->text);
    return status;
}

/* Copies the library's message to the reason. */
shoal_status trainer_keep_message(trainer *self, shoal_status status) {
    if (status == SHOAL_OK)
        return status;
    const char *message = shoal_context_message(self->context);
    return refuse(&self->reason, status, "%s",
                  *message ? message : shoal_status_text(status));
}

shoal_status trainer_refuse(trainer *self, shoal_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->reason.text, sizeof self->reason.text, format, arguments);
    va_end(arguments);
    mask_controls(self->reason.text);
    return status;
}

static shoal_schedule schedule_of(const train_config *config) {
    shoal_schedule schedule = shoal_schedule_start(config->learning_rate);
    schedule.warmup = config->warmup;
    schedule.patience = config->plateau_patience;
    schedule.factor = config->plateau_patience > 0 ? (double)config->plateau_factor : 0;
    schedule.minimum = 1e-3 * config->learning_rate;
    return schedule;
}

/* The schedule's rate, times the fall, which would come to 0 one step after the last. */
static double rate_of(const trainer *self, int64_t step) {
    const int64_t last = self->config.decay_steps, warmup = self->config.warmup;
    const double rate = shoal_schedule_rate(&self->schedule, step);
    if (last <= warmup || step <= warmup)
        return rate;
    return step <= last ? rate * (double)(last + 1 - step) / (double)(last + 1 - warmup)
                        : 0;
}

static const train_task *task_of(const train_config *config) {
    static const train_task *const tasks[] = {&copy_task, &speech_task, &glue_train_task,
                                              &squad_train_task};
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (strcmp(config->task, tasks[i]->name) == 0)
            return tasks[i];
    return &copy_task;
}

shoal_status trainer_begin(trainer *self, shoal_context *context,
                           const train_config *config) {
    int64_t max_batch = 0, max_rows = 0;
    *self = (trainer){.context = context, .config = *config, .task = task_of(config)};
    shoal_status status = trainer_open(self, &max_batch, &max_rows);
    if (status != SHOAL_OK)
        return status;
    self->schedule = schedule_of(&self->config);
    status = shoal_model_create(context, &self->config.model, config->seed, max_batch,
                                max_rows, SHOAL_WITH_BACKWARD, &self->model);
    if (status == SHOAL_OK)
        status =
            shoal_optimizer_create(self->model, &config->optimizer, &self->optimizer);
    if (status == SHOAL_OK)
        status = trainer_watch(self);
    return trainer_keep_message(self, status);
}

void trainer_end(trainer *self) {
    shoal_optimizer_destroy(self->optimizer);
    shoal_model_destroy(self->model);
    if (self->task)
        self->task->close(self);
    *self = (trainer){0};
}

/* ---- Steps and validations --------------------------------------------------------- */

static shoal_status run_step(trainer *self, train_step *step) {
    const train_config *config = &self->config;
    shoal_status status = self->task->step(self, step);
    if (status != SHOAL_OK)
        return status;
    status = shoal_gradients_clip(self->model, config->clip, &step->gradient_norm);
    if (status != SHOAL_OK && !isfinite(step->gradient_norm))
        return refuse(&self->reason, status,
                      "the gradient of step %" PRId64 " is not finite: the training has "
                      "diverged; a smaller learning_rate, a warmup or a smaller clip may "
                      "help",
                      self->state.step + 1);
    step->learning_rate = rate_of(self, self->state.step + 1);
    if (status == SHOAL_OK)
        status = shoal_optimizer_step(self->optimizer, step->learning_rate);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    self->state.step++;
    return trainer_average(self);
}

shoal_status trainer_step(trainer *self, train_step *step) {
    const double begun = seconds_now();
    const shoal_status status = run_step(self, step);
    step->seconds = seconds_now() - begun;
    self->state.seconds += step->seconds;
    return status;
}

/* Only a validation after a multiple of validate_every steps may change the rate or end
   the training. One after the last step that is not such a multiple reports its score,
   and its weights may be the best so far; it changes nothing else, so that a run that is
   continued with more steps takes the steps of the run that had them from the beginning.
 */
static bool decides(const trainer *self) {
    return self->state.step % self->config.validate_every == 0;
}

shoal_status trainer_validate(trainer *self, train_score *score) {
    const double begun = seconds_now();
    train_state *state = &self->state;
    const int64_t intervals =
        state->step > 0 ? (state->step - 1) / self->config.validate_every : 0;
    const shoal_status status = self->task->validate(self, intervals, score);
    state->seconds += seconds_now() - begun;
    if (status != SHOAL_OK)
        return status;
    state->validated_at = state->step;
    if (self->task->keeps_best &&
        (state->best_step == 0 || 1 - score->accuracy < state->best)) {
        state->best = 1 - score->accuracy;
        state->best_step = state->step;
    }
    if (!decides(self))
        return SHOAL_OK;
    shoal_schedule_observe(&self->schedule, score->loss);
    state->perfect = score->correct == score->counted ? state->perfect + 1 : 0;
    state->validations++;
    return SHOAL_OK;
}

bool trainer_must_validate(const trainer *self) {
    const train_state *state = &self->state;
    return state->step > 0 && state->validated_at != state->step &&
           (state->step >= self->config.steps || decides(self));
}

bool trainer_finished(const trainer *self) {
    const bool stopped = self->config.stop_after > 0 &&
                         self->state.perfect >= self->config.stop_after;
    return !trainer_must_validate(self) &&
           (self->state.step >= self->config.steps || stopped);
}

/* ---- Checkpoints ------------------------------------------------------------------ */

/* Notes of a checkpoint: "config.FIELD" as text; "state.NAME", counts in decimal and
   seconds in hexadecimal, which is exact. */
static const struct {
    const char *key;
    size_t offset; /* of an int64_t in train_state */
} counts[] = {{"state.step", offsetof(train_state, step)},
              {"state.validations", offsetof(train_state, validations)},
              {"state.validated_at", offsetof(train_state, validated_at)},
              {"state.perfect", offsetof(train_state, perfect)}};
enum { COUNTS = sizeof counts / sizeof *counts, NOTES = 80, KEY = 48 };
static const char seconds_key[] = "state.seconds", attention_field[] = "attention";
/* Of tasks that keep the best weights. */
static const char best_key[] = "state.best", best_step_key[] = "state.best_step";

typedef struct {
    shoal_note notes[NOTES];
    char keys[NOTES][KEY], values[NOTES][TRAIN_VALUE];
    int64_t count;
} note_list;

static char *add_note(note_list *list, const char *prefix, const char *key) {
    const int64_t at = list->count++;
    snprintf(list->keys[at], KEY, "%s%s", prefix, key);
    list->notes[at] = (shoal_note){list->keys[at], list->values[at]};
    return list->values[at];
}

/* The attention with every option, so that defaults may change and a file keeps its
   meaning. */
static void note_field(note_list *list, const train_config *config, int index) {
    char *text = add_note(list, "config.", train_field(index));
    if (strcmp(train_field(index), attention_field) == 0)
        shoal_attention_print_all(&config->model.attention, text, TRAIN_VALUE);
    else
        train_get(config, index, text, TRAIN_VALUE);
}

/* The attention keeps the meaning that it had when the file was written. */
static bool set_field(shoal_context *context, train_config *config, int index,
                      const char *text, train_reason *reason) {
    char today[TRAIN_VALUE];
    shoal_attention attention;
    if (strcmp(train_field(index), attention_field) == 0 &&
        shoal_attention_parse_stored(NULL, text, 1, &attention) == SHOAL_OK &&
        shoal_attention_print(&attention, today, sizeof today) < sizeof today)
        text = today;
    return train_set(context, config, train_field(index), text, reason);
}

shoal_status trainer_save(trainer *self, const char *path) {
    note_list list = {.count = 0};
    for (int i = 0; train_field(i); i++)
        if (train_has_field(&self->config, i))
            note_field(&list, &self->config, i);
    for (int i = 0; i < COUNTS; i++) {
        const char *place = (const char *)&self->state + counts[i].offset;
        snprintf(add_note(&list, "", counts[i].key), TRAIN_VALUE, "%" PRId64,
                 *(const int64_t *)(const void *)place);
    }
    snprintf(add_note(&list, "", seconds_key), TRAIN_VALUE, "%a", self->state.seconds);
    if (self->task->keeps_best) {
        snprintf(add_note(&list, "", best_key), TRAIN_VALUE, "%a", self->state.best);
        snprintf(add_note(&list, "", best_step_key), TRAIN_VALUE, "%" PRId64,
                 self->state.best_step);
    }
    if (self->task->note)
        list.notes[list.count++] = (shoal_note){self->task->key, self->task->note(self)};
    return trainer_keep_message(self,
                                shoal_checkpoint_save(path, self->model, self->optimizer,
                                                      &self->schedule, list.notes,
                                                      list.count));
}

/* What fields were before there were such fields; NULL: they always were there. */
static const char *value_before(const char *field) {
    static const char *const values[][2] =
        {{"rate", "16000"},    {"join_after", "0"},    {"average_every", "0"},
         {"loss", "ctc"},      {"every", "1"},         {"topology", "chain"},
         {"order", "4"},       {"extra", "2000"},      {"whole", "false"},
         {"leak", "0.1"},      {"output_l2", "5e-05"}, {"output_range", "0.01"},
         {"convolutions", "0"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(values[i][0], field) == 0)
            return values[i][1];
    return NULL;
}

static shoal_status read_config(shoal_context *context, const char *path,
                                const shoal_checkpoint *file, train_config *config,
                                train_reason *reason) {
    train_reason wrong;
    const char *task = shoal_checkpoint_note(file, "config.task");
    bool good = train_defaults(task ? task : "", config, &wrong);
    for (int i = 0; train_field(i) && good; i++) {
        char key[KEY];
        if (!train_has_field(config, i))
            continue;
        snprintf(key, sizeof key, "config.%s", train_field(i));
        const char *text = shoal_checkpoint_note(file, key);
        if (!text)
            text = value_before(train_field(i));
        if (!text)
            return refuse(reason, SHOAL_BAD_FILE, "%s: the checkpoint has no %s", path,
                          key);
        good = set_field(context, config, i, text, &wrong);
    }
    if (good)
        return SHOAL_OK;
    return refuse(reason, SHOAL_BAD_FILE, "%.200s: %.300s", path, wrong.text);
}

/* The sizes that follow from data which is not here. */
static shoal_status complete_from_file(const shoal_checkpoint *file,
                                       shoal_model_config *model) {
    shoal_model_config own;
    uint64_t seed;
    const shoal_status status = shoal_checkpoint_config(file, &own, &seed);
    if (status != SHOAL_OK)
        return status;
    if (own.form != SHOAL_PLAIN) {
        own.attention = model->attention;
        *model = own;
        return SHOAL_OK;
    }
    model->vocabulary = own.vocabulary;
    model->features = own.features;
    model->outputs = own.outputs;
    model->max_length = own.max_length;
    return SHOAL_OK;
}

shoal_status train_read(shoal_context *context, const char *path, train_config *config,
                        train_reason *reason) {
    shoal_checkpoint *file;
    shoal_status status = shoal_checkpoint_open(context, path, &file);
    if (status != SHOAL_OK)
        return refuse(reason, status, "%s", shoal_context_message(context));
    status = read_config(context, path, file, config, reason);
    if (status == SHOAL_OK) { /* before a model of that size is made */
        train_config whole = *config;
        if (task_of(config)->complete)
            task_of(config)->complete(&whole);
        else
            status = complete_from_file(file, &whole.model);
        if (status == SHOAL_OK)
            status = shoal_checkpoint_fits(file, &whole.model);
        if (status != SHOAL_OK)
            refuse(reason, status, "%s", shoal_context_message(context));
    }
    shoal_checkpoint_close(file);
    return status;
}

/* More steps than the fall of the rate was planned for would be taken at a rate of 0. */
static shoal_status check_fall(trainer *self, const char *path,
                               const train_config *before) {
    const int64_t last = before->decay_steps;
    if (last == 0 || self->config.steps <= last || self->config.steps <= before->steps)
        return SHOAL_OK;
    return refuse(&self->reason, SHOAL_INVALID,
                  "%s: its learning rate falls to nothing at step %" PRId64
                  ", and steps beyond would teach nothing; begin another training with "
                  "--from and this file, or one that has more steps from the beginning",
                  path, last);
}

/* The first field that differs is named. */
static shoal_status compare_config(trainer *self, const char *path,
                                   const shoal_checkpoint *file) {
    char mine[TRAIN_VALUE], theirs[TRAIN_VALUE];
    train_config config;
    const shoal_status status =
        read_config(self->context, path, file, &config, &self->reason);
    for (int i = 0; status == SHOAL_OK && train_field(i); i++) {
        if (!train_has_field(&config, i) || !train_has_field(&self->config, i))
            continue;
        train_get(&self->config, i, mine, sizeof mine);
        train_get(&config, i, theirs, sizeof theirs);
        if (strcmp(mine, theirs) != 0 && strcmp(train_field(i), "steps") != 0)
            return refuse(&self->reason, SHOAL_INVALID,
                          "%s: the checkpoint has %s = %s, and this training has %s",
                          path, train_field(i), theirs, mine);
    }
    return status == SHOAL_OK ? check_fall(self, path, &config) : status;
}

/* At most 10^12: more than any training counts to, and products with sizes of batches fit
   an int64_t. */
static bool read_count(const char *text, void *place) {
    char *rest;
    const long long value = strtoll(text, &rest, 10);
    memcpy(place, &(int64_t){value}, sizeof(int64_t));
    return rest != text && !*rest && value >= 0 && value <= 1000000000000;
}

static bool read_seconds(const char *text, double *value) {
    char *rest;
    *value = strtod(text, &rest);
    return rest != text && !*rest && *value >= 0 && isfinite(*value);
}

/* A number of the state from its note. */
static bool read_number(const char *key, const char *text, train_state *state) {
    for (int i = 0; i < COUNTS; i++)
        if (strcmp(counts[i].key, key) == 0)
            return read_count(text, (char *)state + counts[i].offset);
    if (strcmp(key, best_step_key) == 0)
        return read_count(text, &state->best_step);
    return read_seconds(text,
                        strcmp(key, best_key) == 0 ? &state->best : &state->seconds);
}

static shoal_status read_state(trainer *self, const char *path,
                               const shoal_checkpoint *file, train_state *state) {
    const char *keys[COUNTS + 3] = {seconds_key, best_key, best_step_key};
    const int others = self->task->keeps_best ? 3 : 1;
    for (int i = 0; i < COUNTS; i++)
        keys[others + i] = counts[i].key;
    for (int i = 0; i < COUNTS + others; i++) {
        const char *text = shoal_checkpoint_note(file, keys[i]);
        char shown[80] = "missing";
        if (text && read_number(keys[i], text, state))
            continue;
        if (text)
            snprintf(shown, sizeof shown, "%s", text);
        return refuse(&self->reason, SHOAL_BAD_FILE,
                      "%s: %s is %s; it must be a number from 0 up", path, keys[i],
                      shown);
    }
    return SHOAL_OK;
}

bool train_is_averaged(const shoal_checkpoint *file) {
    const char *text = shoal_checkpoint_note(file, "config.average");
    return text && strtod(text, NULL) > 0;
}

shoal_status train_load_weights(const shoal_checkpoint *file, shoal_model *model) {
    shoal_optimizer_config config = shoal_optimizer_defaults();
    shoal_optimizer *optimizer;
    if (!train_is_averaged(file))
        return shoal_checkpoint_load(file, model, NULL, NULL);
    config.average = 0.5f; /* any: it only makes room */
    shoal_status status = shoal_optimizer_create(model, &config, &optimizer);
    if (status == SHOAL_OK)
        status = shoal_checkpoint_load(file, model, optimizer, NULL);
    if (status == SHOAL_OK)
        status = shoal_optimizer_use_average(optimizer, 1);
    shoal_optimizer_destroy(optimizer);
    return status;
}

shoal_status trainer_take_weights(trainer *self, const char *path) {
    shoal_checkpoint *file;
    shoal_status status = shoal_checkpoint_open(self->context, path, &file);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    const char *note = self->task->note ? shoal_checkpoint_note(file, self->task->key)
                                        : NULL;
    if (self->task->note && (!note || strcmp(note, self->task->note(self)) != 0))
        status = trainer_refuse(self, SHOAL_BAD_FILE,
                                "%s: its %s are not those of this training", path,
                                self->task->key);
    else
        status = trainer_keep_message(self, train_load_weights(file, self->model));
    shoal_checkpoint_close(file);
    return status;
}

shoal_status trainer_resume(trainer *self, const char *path) {
    shoal_checkpoint *file;
    train_state state = {0};
    shoal_status status = shoal_checkpoint_open(self->context, path, &file);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    status = compare_config(self, path, file);
    if (status == SHOAL_OK)
        status = read_state(self, path, file, &state);
    if (status == SHOAL_OK)
        status = trainer_keep_message(self, shoal_checkpoint_load(file, self->model,
                                                                  self->optimizer,
                                                                  &self->schedule));
    if (status == SHOAL_OK)
        self->state = state;
    shoal_checkpoint_close(file);
    return status;
}

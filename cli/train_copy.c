/* The masked copy task and its training, on the parts of shoal_models.h.

   A sequence is 0w0w with w of `length` symbols from 1 to 10. A fifth of all symbols
   (rounded, at least one) is masked, never both copies of the same one, so that every
   masked symbol can be read in the other half and nowhere else: of the 2 L symbols 0.4 L
   are masked, each at another place of w, and a coin says in which copy.

   Batches, dropout and validation data are functions of the seed and of counts, so the
   counts in train_state are also the position in the data and the state of the random
   numbers. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "train.h"

enum { SYMBOLS = 10, MASK = SYMBOLS + 1 };

/* ---- The data --------------------------------------------------------------------- */

int64_t copy_positions(int64_t length) {
    return 2 * (length + 1);
}

static int64_t masked_symbols(int64_t length) {
    const int64_t fifth = (2 * length * 2 + 5) / 10;
    return fifth > 0 ? fifth : 1;
}

/* One sequence at row `first`, from a key of its own. Draws: 3 i + 0, 1, 2 for symbol i
   of w. */
static void make_sequence(uint64_t key, int64_t length, int loss, int64_t first,
                          copy_batch *batch) {
    int32_t *tokens = batch->tokens + first, *targets = batch->targets + first,
            *answers = batch->answers + first;
    int64_t wanted = masked_symbols(length);
    tokens[0] = tokens[length + 1] = 0;
    targets[0] = targets[length + 1] = loss == LOSS_ALL ? 0 : SHOAL_IGNORED;
    answers[0] = answers[length + 1] = SHOAL_IGNORED;
    for (int64_t i = 0; i < length; i++) {
        const uint64_t draw = 3 * (uint64_t)i;
        const int32_t symbol = 1 + (int32_t)shoal_random_below(key, 0, draw, SYMBOLS);
        /* Selection sampling: `wanted` of the places that are left. */
        const bool masked = shoal_random_below(key, 0, draw + 1, (uint64_t)(length - i)) <
                            (uint64_t)wanted;
        const int copy = (int)shoal_random_below(key, 0, draw + 2, 2);
        wanted -= masked;
        for (int which = 0; which < 2; which++) {
            const int64_t place = 1 + i + which * (length + 1);
            const bool hidden = masked && which == copy;
            tokens[place] = hidden ? MASK : symbol;
            answers[place] = hidden ? symbol : SHOAL_IGNORED;
            targets[place] = hidden || loss == LOSS_ALL ? symbol : SHOAL_IGNORED;
        }
    }
}

void copy_make(const train_config *config, copy_split split, int64_t number,
               copy_batch *batch) {
    const int64_t length = copy_positions(config->length), rows = config->batch * length;
    const uint64_t of_split = shoal_random(config->seed, 0, (uint64_t)split);
    const uint64_t of_batch = shoal_random(of_split, 0, (uint64_t)number);
    for (int64_t b = 0; b < config->batch; b++) {
        batch->offsets[b] = b * length;
        make_sequence(shoal_random(of_batch, 0, (uint64_t)b), config->length,
                      config->loss, b * length, batch);
    }
    batch->offsets[config->batch] = rows;
    batch->masked_count = 0;
    for (int64_t row = 0; row < rows; row++)
        if (batch->answers[row] != SHOAL_IGNORED) {
            batch->masked[batch->masked_count] = (int32_t)row;
            batch->masked_answers[batch->masked_count++] = batch->answers[row];
        }
}

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
static shoal_status keep_message(trainer *self, shoal_status status) {
    if (status == SHOAL_OK)
        return status;
    const char *message = shoal_context_message(self->context);
    return refuse(&self->reason, status, "%s",
                  *message ? message : shoal_status_text(status));
}

static bool allocate_batch(const train_config *config, copy_batch *batch) {
    const size_t sequences = (size_t)config->batch;
    const size_t rows = sequences * (size_t)copy_positions(config->length);
    batch->offsets = calloc(sequences + 1, sizeof *batch->offsets);
    batch->tokens = calloc(5 * rows, sizeof *batch->tokens);
    if (!batch->offsets || !batch->tokens)
        return false;
    batch->targets = batch->tokens + rows;
    batch->answers = batch->targets + rows;
    batch->masked = batch->answers + rows;
    batch->masked_answers = batch->masked + rows;
    return true;
}

static shoal_schedule schedule_of(const train_config *config) {
    shoal_schedule schedule = shoal_schedule_start(config->learning_rate);
    schedule.warmup = config->warmup;
    schedule.patience = config->plateau_patience;
    schedule.factor = config->plateau_patience > 0 ? (double)config->plateau_factor : 0;
    schedule.minimum = 1e-3 * config->learning_rate;
    return schedule;
}

/* What the task says about the model. */
static void complete_model(train_config *config) {
    config->model.vocabulary = MASK + 1;
    config->model.outputs = SYMBOLS + 1;
    config->model.max_length = copy_positions(config->length);
}

shoal_status trainer_begin(trainer *self, shoal_context *context,
                           const train_config *config) {
    const int64_t length = copy_positions(config->length);
    *self =
        (trainer){.context = context, .config = *config, .schedule = schedule_of(config)};
    complete_model(&self->config);
    shoal_status status = shoal_model_create(context, &self->config.model, config->seed,
                                             config->batch, config->batch * length,
                                             SHOAL_WITH_BACKWARD, &self->model);
    if (status == SHOAL_OK)
        status =
            shoal_optimizer_create(self->model, &config->optimizer, &self->optimizer);
    if (status == SHOAL_OK && !allocate_batch(config, &self->batch))
        return refuse(&self->reason, SHOAL_NO_MEMORY,
                      "out of memory: a batch of %" PRId64, config->batch);
    return keep_message(self, status);
}

void trainer_end(trainer *self) {
    shoal_optimizer_destroy(self->optimizer);
    shoal_model_destroy(self->model);
    free(self->batch.offsets);
    free(self->batch.tokens);
    *self = (trainer){0};
}

/* ---- One batch -------------------------------------------------------------------- */

/* Forward and the score of the trainer's batch, and while training backward too. Loss
   from the targets, accuracy from the answers; where the loss is over the masked rows
   alone both are the same, and without dropout only those rows are computed. */
static shoal_status run_batch(trainer *self, shoal_model *model, bool training,
                              train_score *score) {
    const train_config *config = &self->config;
    const copy_batch *batch = &self->batch;
    const bool all = config->loss == LOSS_ALL;
    const bool some = !all && !(training && config->model.dropout > 0);
    const int64_t rows = some ? batch->masked_count : batch->offsets[config->batch];
    const int32_t *targets = some ? batch->masked_answers : batch->targets;
    const int64_t outputs = config->model.outputs;
    const shoal_model_inputs inputs = {.batch = config->batch,
                                       .offsets = batch->offsets,
                                       .tokens = batch->tokens,
                                       .wanted = some ? batch->masked : NULL,
                                       .wanted_count = batch->masked_count,
                                       .training = training,
                                       .step = self->state.step};
    shoal_loss loss = {0}, right = {0};
    float *out;
    shoal_status status = shoal_model_forward(model, &inputs, &out);
    if (status == SHOAL_OK && all) /* before the gradient overwrites the logits */
        status = shoal_cross_entropy(self->context, rows, outputs, out, batch->answers,
                                     NULL, &right);
    if (status == SHOAL_OK)
        status = shoal_cross_entropy(self->context, rows, outputs, out, targets,
                                     training ? out : NULL, &loss);
    if (status == SHOAL_OK && training)
        status = shoal_model_backward(model, &inputs, out, NULL);
    right = all ? right : loss;
    *score = (train_score){.loss = loss.mean,
                           .correct = right.correct,
                           .counted = right.counted,
                           .accuracy = right.counted
                                           ? (double)right.correct / (double)right.counted
                                           : 0};
    return keep_message(self, status);
}

static shoal_status run_step(trainer *self, train_step *step) {
    const train_config *config = &self->config;
    copy_make(config, SPLIT_TRAIN, self->state.step, &self->batch);
    shoal_status status = run_batch(self, self->model, true, &step->score);
    if (status != SHOAL_OK)
        return status;
    status = shoal_gradients_clip(self->model, config->clip, &step->gradient_norm);
    if (status != SHOAL_OK && !isfinite(step->gradient_norm))
        return refuse(&self->reason, status,
                      "the gradient of step %" PRId64 " is not finite: the training has "
                      "diverged; a smaller learning_rate, a warmup or a smaller clip may "
                      "help",
                      self->state.step + 1);
    step->learning_rate = shoal_schedule_rate(&self->schedule, self->state.step + 1);
    if (status == SHOAL_OK)
        status = shoal_optimizer_step(self->optimizer, step->learning_rate);
    if (status == SHOAL_OK)
        self->state.step++;
    return keep_message(self, status);
}

shoal_status trainer_step(trainer *self, train_step *step) {
    const double begun = seconds_now();
    const shoal_status status = run_step(self, step);
    self->state.seconds += seconds_now() - begun;
    return status;
}

/* ---- Scores ----------------------------------------------------------------------- */

/* Batches `first` .. first + count - 1 of a split, with the averaged weights where there
   are some: the mean loss, and all positions. */
static shoal_status score_split(trainer *self, shoal_model *model, copy_split split,
                                int64_t first, int64_t count, train_score *score) {
    train_score sum = {0}, one = {0};
    shoal_status status = SHOAL_OK;
    shoal_optimizer_use_average(self->optimizer, 1);
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++) {
        copy_make(&self->config, split, first + i, &self->batch);
        status = run_batch(self, model, false, &one);
        sum.loss += one.loss / (double)count;
        sum.correct += one.correct;
        sum.counted += one.counted;
    }
    shoal_optimizer_use_average(self->optimizer, 0);
    sum.accuracy = sum.counted ? (double)sum.correct / (double)sum.counted : 0;
    *score = sum;
    return status;
}

/* Only a validation after a multiple of validate_every steps may change the rate or end
   the training. One after the last step that is not such a multiple reports its score and
   changes no state, so that a run that is continued with more steps is the run that had
   them from the beginning. */
static bool decides(const trainer *self) {
    return self->state.step % self->config.validate_every == 0;
}

shoal_status trainer_validate(trainer *self, train_score *score) {
    const double begun = seconds_now();
    train_state *state = &self->state;
    const int64_t batches = self->config.validate_batches;
    const int64_t intervals =
        state->step > 0 ? (state->step - 1) / self->config.validate_every : 0;
    const shoal_status status = score_split(self, self->model, SPLIT_VALIDATE,
                                            intervals * batches, batches, score);
    state->seconds += seconds_now() - begun;
    if (status != SHOAL_OK)
        return status;
    state->validated_at = state->step;
    if (!decides(self))
        return SHOAL_OK;
    shoal_schedule_observe(&self->schedule, score->loss);
    state->perfect = score->correct == score->counted ? state->perfect + 1 : 0;
    state->validations++;
    return SHOAL_OK;
}

shoal_status trainer_evaluate(trainer *self, const shoal_attention *attention,
                              int64_t batches, train_score *score) {
    shoal_model *view;
    const int64_t rows = self->config.batch * self->config.model.max_length;
    shoal_status status =
        shoal_model_view(self->model, attention, self->config.batch, rows, &view);
    if (status != SHOAL_OK)
        return keep_message(self, status);
    status = score_split(self, view, SPLIT_TEST, 0, batches, score);
    shoal_model_destroy(view);
    return status;
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
enum { COUNTS = sizeof counts / sizeof *counts, NOTES = 64, KEY = 48 };
static const char seconds_key[] = "state.seconds";

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

shoal_status trainer_save(trainer *self, const char *path) {
    note_list list = {.count = 0};
    for (int i = 0; train_field(i); i++)
        train_get(&self->config, i, add_note(&list, "config.", train_field(i)),
                  TRAIN_VALUE);
    for (int i = 0; i < COUNTS; i++) {
        const char *place = (const char *)&self->state + counts[i].offset;
        snprintf(add_note(&list, "", counts[i].key), TRAIN_VALUE, "%" PRId64,
                 *(const int64_t *)(const void *)place);
    }
    snprintf(add_note(&list, "", seconds_key), TRAIN_VALUE, "%a", self->state.seconds);
    return keep_message(self,
                        shoal_checkpoint_save(path, self->model, self->optimizer,
                                              &self->schedule, list.notes, list.count));
}

static shoal_status read_config(shoal_context *context, const char *path,
                                const shoal_checkpoint *file, train_config *config,
                                train_reason *reason) {
    train_reason wrong;
    const char *task = shoal_checkpoint_note(file, "config.task");
    bool good = train_defaults(task ? task : "", config, &wrong);
    for (int i = 0; train_field(i) && good; i++) {
        char key[KEY];
        snprintf(key, sizeof key, "config.%s", train_field(i));
        const char *text = shoal_checkpoint_note(file, key);
        if (!text)
            return refuse(reason, SHOAL_BAD_FILE, "%s: the checkpoint has no %s", path,
                          key);
        good = train_set(context, config, train_field(i), text, &wrong);
    }
    if (good)
        return SHOAL_OK;
    return refuse(reason, SHOAL_BAD_FILE, "%.200s: %.300s", path, wrong.text);
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
        complete_model(&whole);
        status = shoal_checkpoint_fits(file, &whole.model);
        if (status != SHOAL_OK)
            refuse(reason, status, "%s", shoal_context_message(context));
    }
    shoal_checkpoint_close(file);
    return status;
}

/* The first field that differs is named. */
static shoal_status compare_config(trainer *self, const char *path,
                                   const shoal_checkpoint *file) {
    char mine[TRAIN_VALUE], theirs[TRAIN_VALUE];
    train_config config;
    const shoal_status status =
        read_config(self->context, path, file, &config, &self->reason);
    for (int i = 0; status == SHOAL_OK && train_field(i); i++) {
        train_get(&self->config, i, mine, sizeof mine);
        train_get(&config, i, theirs, sizeof theirs);
        if (strcmp(mine, theirs) != 0 && strcmp(train_field(i), "steps") != 0)
            return refuse(&self->reason, SHOAL_INVALID,
                          "%s: the checkpoint has %s = %s, and this training has %s",
                          path, train_field(i), theirs, mine);
    }
    return status;
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

static shoal_status read_state(trainer *self, const char *path,
                               const shoal_checkpoint *file, train_state *state) {
    for (int i = 0; i <= COUNTS; i++) {
        const char *key = i < COUNTS ? counts[i].key : seconds_key;
        const char *text = shoal_checkpoint_note(file, key);
        char shown[80] = "missing";
        if (text && (i < COUNTS ? read_count(text, (char *)state + counts[i].offset)
                                : read_seconds(text, &state->seconds)))
            continue;
        if (text)
            snprintf(shown, sizeof shown, "%s", text);
        return refuse(&self->reason, SHOAL_BAD_FILE,
                      "%s: %s is %s; it must be a number from 0 up", path, key, shown);
    }
    return SHOAL_OK;
}

shoal_status trainer_resume(trainer *self, const char *path) {
    shoal_checkpoint *file;
    train_state state = {0};
    shoal_status status = shoal_checkpoint_open(self->context, path, &file);
    if (status != SHOAL_OK)
        return keep_message(self, status);
    status = compare_config(self, path, file);
    if (status == SHOAL_OK)
        status = read_state(self, path, file, &state);
    if (status == SHOAL_OK)
        status =
            keep_message(self, shoal_checkpoint_load(file, self->model, self->optimizer,
                                                     &self->schedule));
    if (status == SHOAL_OK)
        self->state = state;
    shoal_checkpoint_close(file);
    return status;
}

/* The trainer: steps, validations and evaluations of any task, built on shoal_models.h.
   Batches, dropout and validation data are functions of the seed and of counts, so the
   counts in shoal_train_state are also the position in the data and the state of the
   random numbers. */
#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/memory.h"
#include "train/train.h"

/* ---- Creation ---------------------------------------------------------------------- */

/* The schedule's rate times the linear decay, which reaches 0 one step after the
   last. */
static double rate_of(const shoal_trainer *self, int64_t step) {
    const int64_t last = self->config->decay_steps, warmup = self->config->warmup;
    const double rate = shoal_schedule_rate(&self->schedule, step);
    if (last <= warmup || step <= warmup)
        return rate;
    return step <= last ? rate * (double)(last + 1 - step) / (double)(last + 1 - warmup)
                        : 0;
}

static shoal_status begin(shoal_trainer *self, const void *given) {
    TRY(sh_config_copy(self->context, self->task, given, &self->config));
    TRY(sh_trainer_open(self));
    shoal_train_config *config = self->config;
    /* Settings that depend on the number of steps, which may come from the data: */
    if ((self->task->flags & SHOAL_TASK_EPOCHS) && config->decay &&
        config->decay_steps == 0)
        config->decay_steps = config->steps;
    if ((self->task->flags & SHOAL_TASK_WARMUP_SHARE) && config->warmup == 0)
        config->warmup = llround((double)config->warmup_share * (double)config->steps);
    self->schedule = shoal_schedule_start(config->learning_rate);
    self->schedule.warmup = config->warmup;
    self->schedule.patience = config->plateau_patience;
    self->schedule.factor = config->plateau_patience > 0 ? (double)config->plateau_factor
                                                         : 0;
    self->schedule.minimum = 1e-3 * config->learning_rate;
    TRY(shoal_model_create(self->context, &config->model, config->seed,
                           self->sizes.max_batch, self->sizes.max_rows,
                           SHOAL_WITH_BACKWARD, &self->model));
    TRY(shoal_optimizer_create(self->model, &config->optimizer, &self->optimizer));
    return sh_trainer_watch(self);
}

shoal_status sh_trainer_create(shoal_context *context, const shoal_train_task *task,
                               const void *config, const shoal_train_callbacks *callbacks,
                               shoal_transport *transport, const char *resumed,
                               shoal_trainer **trainer) {
    if (!context || !task || !config || !trainer)
        return sh_fail(context, SHOAL_INVALID, "task, config or trainer is NULL");
    shoal_trainer *self = *trainer = sh_allocate(context, sizeof *self);
    if (!self)
        return SHOAL_NO_MEMORY;
    *self = (shoal_trainer){.context = context,
                            .task = task,
                            .transport = transport,
                            .resumed = resumed};
    if (callbacks)
        self->callbacks = *callbacks;
    const shoal_status status = begin(self, config);
    if (status != SHOAL_OK) {
        shoal_trainer_destroy(self);
        *trainer = NULL;
    }
    return status;
}

shoal_status shoal_trainer_create(shoal_context *context, const shoal_train_task *task,
                                  const void *config,
                                  const shoal_train_callbacks *callbacks,
                                  shoal_transport *transport, shoal_trainer **trainer) {
    return sh_trainer_create(context, task, config, callbacks, transport, NULL, trainer);
}

void shoal_trainer_destroy(shoal_trainer *self) {
    if (!self)
        return;
    shoal_optimizer_destroy(self->optimizer);
    shoal_model_destroy(self->model);
    if (self->config) /* data may be open */
        self->task->close(self->data);
    sh_release(self->context, self->config);
    sh_release(self->context, self);
}

shoal_model *shoal_trainer_model(shoal_trainer *self) {
    return self->model;
}

const void *shoal_trainer_config(const shoal_trainer *self) {
    return self->config;
}

const shoal_train_state *shoal_trainer_state(const shoal_trainer *self) {
    return &self->state;
}

/* ---- Steps ------------------------------------------------------------------------- */

static shoal_train_score score_of(const shoal_train_counts *counts) {
    return (shoal_train_score){.loss = counts->loss,
                               .correct = counts->correct,
                               .counted = counts->counted,
                               .impossible = counts->impossible,
                               .broken = counts->broken,
                               .accuracy = counts->counted ? (double)counts->correct /
                                                                 (double)counts->counted
                                                           : (double)NAN};
}

/* Forward, loss and backward of the next batch, and the update. */
static shoal_status take_step(shoal_trainer *self, shoal_train_step *step) {
    const shoal_train_task *task = self->task;
    const shoal_model_config *model = &self->config->model;
    shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs)};
    shoal_train_counts counts = {0};
    float *out;
    TRY(task->batch(self->data, SHOAL_PART_TRAIN, self->state.step,
                    sh_share(self->transport), &inputs));
    inputs.size = sizeof inputs; /* a task may have replaced the whole */
    inputs.training = 1;
    inputs.step = self->state.step;
    TRY(shoal_model_forward(self->model, &inputs, &out));
    const double heard = sh_seconds();
    TRY(task->step(self->data, out, out, &counts));
    if (task->flags & SHOAL_TASK_TIMES_LOSS)
        step->loss_seconds = sh_seconds() - heard;
    step->sequences = inputs.batch;
    const int64_t rows = inputs.wanted ? inputs.wanted_count
                         : model->pooling != SHOAL_POOLING_NONE
                             ? inputs.batch
                             : inputs.offsets[inputs.batch];
    TRY(self->transport ? sh_trainer_backward(self, &inputs, out, rows * model->outputs,
                                              &counts, &step->sequences)
                        : shoal_model_backward(self->model, &inputs, out, NULL));
    step->score = score_of(&counts);
    const shoal_status status =
        shoal_gradients_clip(self->model, self->config->clip, &step->gradient_norm);
    if (status != SHOAL_OK && !isfinite(step->gradient_norm))
        return sh_fail(self->context, status,
                       "the gradient of step %" PRId64
                       " is not finite: the training has diverged; try a smaller "
                       "learning_rate, a warmup or a smaller clip",
                       self->state.step + 1);
    TRY(status);
    step->learning_rate = rate_of(self, self->state.step + 1);
    TRY(shoal_optimizer_step(self->optimizer, step->learning_rate));
    self->state.step++;
    return self->transport ? sh_trainer_average(self) : SHOAL_OK;
}

shoal_status shoal_trainer_step(shoal_trainer *self, shoal_train_step *step) {
    shoal_train_step own = {0};
    if (!self)
        return SHOAL_INVALID;
    const double begun = sh_seconds();
    const shoal_status status = take_step(self, &own);
    own.seconds = sh_seconds() - begun;
    self->state.seconds += own.seconds;
    if (step)
        *step = own;
    return status;
}

/* ---- Validations ------------------------------------------------------------------- */

/* Batches `first` .. first + count - 1 of a part. */
static shoal_status score_batches(shoal_trainer *self, shoal_model *model,
                                  shoal_part part, int64_t first, int64_t count,
                                  shoal_share share, shoal_train_score *score) {
    const shoal_train_task *task = self->task;
    const bool endless = task->flags & SHOAL_TASK_ENDLESS;
    const bool together = !(task->flags & SHOAL_TASK_COLLECTS);
    shoal_train_counts sum = {0};
    double mean = 0; /* of the batches' losses */
    int64_t sequences = 0;
    for (int64_t i = 0; i < count; i++) {
        shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs)};
        shoal_train_counts counts = {0};
        float *out;
        TRY(task->batch(self->data, part, first + i, share, &inputs));
        inputs.size = sizeof inputs;
        TRY(shoal_model_forward(model, &inputs, &out));
        TRY(task->step(self->data, out, NULL, &counts));
        if (endless && self->transport)
            TRY(sh_trainer_sum(self, &counts, &sequences));
        mean += counts.loss / (double)count;
        sum.sum += counts.sum != 0 ? counts.sum : counts.loss * counts.weight;
        sum.weight += counts.weight;
        sum.correct += counts.correct;
        sum.counted += counts.counted;
        sum.impossible += counts.impossible;
        sum.broken += counts.broken;
    }
    sum.loss = sum.weight > 0 ? sum.sum / sum.weight : 0;
    if (!endless && together && self->transport)
        TRY(sh_trainer_sum(self, &sum, &sequences));
    if (endless)
        sum.loss = mean;
    *score = score_of(&sum);
    return task->score ? task->score(self->data, score) : SHOAL_OK;
}

/* Uses the averaged weights if there are any. */
static shoal_status score_part(shoal_trainer *self, shoal_model *model, shoal_part part,
                               int64_t first, int64_t count, shoal_train_score *score) {
    const bool collects = self->task->flags & SHOAL_TASK_COLLECTS;
    const shoal_share share = collects ? (shoal_share){0, 1} : sh_share(self->transport);
    shoal_status status = SHOAL_OK;
    shoal_optimizer_use_average(self->optimizer, 1);
    if (!collects || sh_is_first(self->transport))
        status = score_batches(self, model, part, first, count, share, score);
    shoal_optimizer_use_average(self->optimizer, 0);
    if (status != SHOAL_OK || !collects || !self->transport)
        return status;
    status = sh_tell_others(self->context, self->transport, sizeof *score, score);
    if (!sh_is_first(self->transport)) /* pointers to names are not valid in other
                                          processes */
        score->metric = score->second = NULL;
    return status;
}

/* Only a validation after a multiple of validate_every steps may change the rate or end
   the training. One after a last step that is not such a multiple reports its score,
   and its weights may be the best so far; it changes nothing else, so that a continued
   run takes the same steps as a run that was longer from the beginning. */
static bool decides(const shoal_trainer *self) {
    return self->state.step % self->config->validate_every == 0;
}

shoal_status shoal_trainer_validate(shoal_trainer *self, shoal_train_score *score) {
    if (!self)
        return SHOAL_INVALID;
    const double begun = sh_seconds();
    shoal_train_state *state = &self->state;
    shoal_train_score own = {0};
    const int64_t intervals =
        state->step > 0 ? (state->step - 1) / self->config->validate_every : 0;
    const int64_t fixed = self->sizes.validation_batches;
    const int64_t batches = fixed ? fixed : self->config->validate_batches;
    const shoal_status status = score_part(self, self->model, SHOAL_PART_VALIDATION,
                                           fixed ? 0 : intervals * batches, batches,
                                           &own);
    state->seconds += sh_seconds() - begun;
    if (score)
        *score = own;
    if (status != SHOAL_OK)
        return status;
    state->validated_at = state->step;
    if ((self->task->flags & SHOAL_TASK_BEST) &&
        (state->best_step == 0 || 1 - own.accuracy < state->best)) {
        state->best = 1 - own.accuracy;
        state->best_step = state->step;
    }
    if (!decides(self))
        return SHOAL_OK;
    shoal_schedule_observe(&self->schedule, own.loss);
    state->perfect = own.correct == own.counted ? state->perfect + 1 : 0;
    state->validations++;
    return SHOAL_OK;
}

int shoal_trainer_must_validate(const shoal_trainer *self) {
    const shoal_train_state *state = &self->state;
    return state->step > 0 && state->validated_at != state->step &&
           (state->step >= self->config->steps || decides(self));
}

int shoal_trainer_finished(const shoal_trainer *self) {
    const bool stopped = self->config->stop_after > 0 &&
                         self->state.perfect >= self->config->stop_after;
    return !shoal_trainer_must_validate(self) &&
           (self->state.step >= self->config->steps || stopped);
}

shoal_status shoal_trainer_evaluate(shoal_trainer *self, const shoal_attention *attention,
                                    shoal_part part, int64_t batches,
                                    shoal_train_score *score) {
    shoal_model *view;
    if (!self)
        return SHOAL_INVALID;
    const int64_t fixed = self->sizes.validation_batches;
    if (!score || part == SHOAL_PART_TRAIN ||
        (part == SHOAL_PART_TEST && !(self->task->flags & SHOAL_TASK_ENDLESS)))
        return sh_fail(self->context, SHOAL_INVALID, "%s has no such set to evaluate",
                       self->task->name);
    TRY(shoal_model_create_view(self->model, attention, self->sizes.max_batch,
                                self->sizes.max_rows, &view));
    if (part == SHOAL_PART_VALIDATION && fixed && batches > 0)
        batches = fixed;
    const shoal_status status = score_part(self, view, part, 0, batches, score);
    shoal_model_destroy(view);
    return status;
}

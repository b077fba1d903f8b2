#define _GNU_SOURCE
#include "models/training/train.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "models/training/train_config.h"
#include "shoal_models.h"

/* ---- Creation -------------------------------------------------------------------- */

static void place(void *argument, block_layout *block) {
    shoal_trainer *trainer = argument;
    const int64_t sequences = trainer->config.batch;
    const int64_t weights = trainer->model->arena->size;
    const int64_t rows = sh_mul_checked(trainer->config.model.max_length, sequences);
    const bool averages = trainer->config.average > 0;
    sh_reserve(block, 1, sizeof *trainer);
    trainer->optimizer.first = sh_reserve(block, weights, sizeof(float));
    trainer->optimizer.second = sh_reserve(block, weights, sizeof(float));
    trainer->averaged = averages ? sh_reserve(block, weights, sizeof(float)) : NULL;
    trainer->batch.offsets = sh_reserve(block, sequences + 1, sizeof(int64_t));
    trainer->batch.tokens = sh_reserve(block, rows, sizeof(int32_t));
    trainer->batch.targets = sh_reserve(block, rows, sizeof(int32_t));
    trainer->batch.answers = sh_reserve(block, rows, sizeof(int32_t));
}

/* `draft` has everything but the arrays. */
static shoal_status allocate_trainer(shoal_trainer *draft, shoal_trainer **trainer) {
    shoal_trainer *made =
        sh_allocate_parts(draft->context, place, draft, &draft->own_bytes);
    if (!made)
        return SHOAL_NO_MEMORY;
    memset(made, 0, draft->own_bytes);
    *made = *draft;
    *trainer = made;
    return SHOAL_OK;
}

shoal_status shoal_trainer_create(shoal_context *context,
                                  const shoal_train_config *config,
                                  shoal_trainer **trainer) {
    if (trainer)
        *trainer = NULL;
    if (!context || !config || !trainer)
        return sh_fail(context, SHOAL_INVALID, "context, config or trainer is NULL");
    shoal_status status = sh_train_config_check(context, config);
    if (status != SHOAL_OK)
        return status;
    shoal_trainer draft = {.context = context, .config = *config};
    status = sh_task_find(context, config->task, &draft.task);
    if (status != SHOAL_OK)
        return status;
    const task_shape shape = draft.task->shape(config);
    const int64_t rows = sh_mul_checked(shape.max_length, config->batch);
    draft.config.model.vocabulary = shape.vocabulary;
    draft.config.model.outputs = shape.outputs;
    draft.config.model.max_length = shape.max_length;
    draft.state.schedule = sh_schedule_begin();
    status = shoal_model_create(context, &draft.config.model, config->seed, config->batch,
                                rows, SHOAL_WITH_BACKWARD, &draft.model);
    if (status == SHOAL_OK)
        status = allocate_trainer(&draft, trainer);
    if (status != SHOAL_OK)
        shoal_model_destroy(draft.model);
    return status;
}

void shoal_trainer_destroy(shoal_trainer *trainer) {
    if (!trainer)
        return;
    shoal_model_destroy(trainer->model);
    sh_release(trainer->context, trainer);
}

/* ---- One batch ------------------------------------------------------------------- */

static network_batch batch_of(const shoal_trainer *trainer, bool training) {
    const bool masked = trainer->config.loss == SHOAL_LOSS_MASKED;
    return (network_batch){.sequences = {trainer->batch.batch, trainer->batch.offsets},
                           .tokens = trainer->batch.tokens,
                           .targets = masked ? trainer->batch.targets : NULL,
                           .moment = {.seed = trainer->config.seed,
                                      .step = (uint64_t)trainer->state.step,
                                      .dropout = training}};
}

/* Loss from the targets, accuracy from the answers, which are the same thing when the
   loss is over the masked positions alone. */
static shoal_status score_batch(const shoal_trainer *trainer, network *net,
                                const network_batch *batch, bool only_look,
                                shoal_score *score) {
    const task_batch *made = &trainer->batch;
    loss_result right = {0}, loss = {0};
    shoal_status status = SHOAL_OK;
    const bool differ = trainer->config.loss == SHOAL_LOSS_ALL;
    if (differ) /* before the gradient overwrites the logits */
        status = sh_network_loss(net, batch, made->answers, true, &right);
    if (status == SHOAL_OK)
        status = sh_network_loss(net, batch, made->targets, only_look, &loss);
    if (status != SHOAL_OK)
        return status;
    right = differ ? right : loss;
    *score = (shoal_score){.loss = loss.loss,
                           .correct = right.correct,
                           .counted = right.counted,
                           .accuracy = right.counted
                                           ? (double)right.correct / (double)right.counted
                                           : 0};
    return SHOAL_OK;
}

/* ---- A step ---------------------------------------------------------------------- */

static schedule_settings schedule_of(const shoal_train_config *config) {
    return (schedule_settings){.rate = config->learning_rate,
                               .warmup_steps = config->warmup,
                               .factor = config->plateau_patience > 0
                                             ? (double)config->plateau_factor
                                             : 0,
                               .patience = config->plateau_patience,
                               .threshold = 1e-4,
                               .minimum = 1e-3 * config->learning_rate};
}

static void update_weights(shoal_trainer *trainer, const crew *by, double rate) {
    const shoal_train_config *config = &trainer->config;
    const int32_t optimizer = config->optimizer;
    const optimizer_settings settings =
        {.kind = optimizer == SHOAL_RADAM || optimizer == SHOAL_RADAM_L2 ? OPTIMIZER_RADAM
                                                                         : OPTIMIZER_ADAM,
         .beta1 = config->beta1,
         .beta2 = config->beta2,
         .epsilon = config->epsilon,
         .weight_decay = config->weight_decay,
         .decay_in_gradient = optimizer == SHOAL_RADAM_L2 || optimizer == SHOAL_ADAM_L2};
    sh_optimizer_step(by, &settings, rate, trainer->model->arena, &trainer->optimizer);
    if (trainer->averaged)
        sh_weights_average(by, trainer->model->arena, config->average,
                           trainer->state.averaged++, trainer->averaged);
}

static shoal_status run_step(shoal_trainer *trainer, shoal_train_step *step) {
    const shoal_train_config *config = &trainer->config;
    const crew by = sh_crew_of(trainer->context);
    network *net = trainer->model->net;
    trainer->task->make(config, SPLIT_TRAIN, trainer->state.step, &trainer->batch);
    const network_batch batch = batch_of(trainer, true);
    sh_parameters_clear_gradients(&by, trainer->model->arena);
    shoal_status status = sh_network_forward(net, &batch);
    if (status == SHOAL_OK)
        status = score_batch(trainer, net, &batch, false, &step->score);
    if (status == SHOAL_OK)
        status = sh_network_backward(net, &batch);
    if (status != SHOAL_OK)
        return status;
    step->gradient_norm =
        sh_gradients_clip(&by, trainer->model->arena, (double)config->clip);
    if (!isfinite(step->gradient_norm))
        return sh_fail(
            trainer->context, SHOAL_INVALID,
            "the gradient of step %lld is not finite: the training has diverged; "
            "a smaller learning_rate, a warmup or a smaller clip may help",
            (long long)trainer->state.step + 1);
    const schedule_settings settings = schedule_of(config);
    step->learning_rate =
        sh_schedule_rate(&settings, &trainer->state.schedule, trainer->state.step + 1);
    update_weights(trainer, &by, step->learning_rate);
    trainer->state.step++;
    return SHOAL_OK;
}

shoal_status shoal_trainer_step(shoal_trainer *trainer, shoal_train_step *step) {
    if (!trainer || !step)
        return sh_fail(trainer ? trainer->context : NULL, SHOAL_INVALID,
                       "trainer or step is NULL");
    const double begun = sh_seconds();
    const shoal_status status = run_step(trainer, step);
    trainer->state.seconds += sh_seconds() - begun;
    return status;
}

/* ---- Scores ---------------------------------------------------------------------- */

/* The averaged weights take the model's place, or give it back. */
static void exchange_average(shoal_trainer *trainer) {
    float *values = trainer->model->arena->values;
    if (!trainer->averaged || trainer->state.averaged == 0)
        return;
    for (int64_t i = 0; i < trainer->model->arena->size; i++) {
        const float value = values[i];
        values[i] = trainer->averaged[i];
        trainer->averaged[i] = value;
    }
}

/* Batches `first` .. first + count - 1 of a split: the mean loss, and all positions. */
static shoal_status score_split(shoal_trainer *trainer, network *net, task_split split,
                                int64_t first, int64_t count, shoal_score *score) {
    shoal_score sum = {0}, one = {0};
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++) {
        trainer->task->make(&trainer->config, split, first + i, &trainer->batch);
        const network_batch batch = batch_of(trainer, false);
        status = sh_network_forward(net, &batch);
        if (status == SHOAL_OK)
            status = score_batch(trainer, net, &batch, true, &one);
        sum.loss += one.loss / (double)count;
        sum.correct += one.correct;
        sum.counted += one.counted;
    }
    sum.accuracy = sum.counted ? (double)sum.correct / (double)sum.counted : 0;
    *score = sum;
    return status;
}

/* Where a run ends is no part of what it computed until then: a closing validation, off
   the beat, leaves no trace but that it was done, and has the data of the next one. */
static bool decides(const shoal_trainer *trainer) {
    return trainer->state.step % trainer->config.validate_every == 0;
}

shoal_status shoal_trainer_validate(shoal_trainer *trainer, shoal_score *score) {
    if (!trainer || !score)
        return sh_fail(trainer ? trainer->context : NULL, SHOAL_INVALID,
                       "trainer or score is NULL");
    const double begun = sh_seconds();
    train_state *state = &trainer->state;
    const int64_t batches = trainer->config.validate_batches;
    const int64_t beats =
        state->step > 0 ? (state->step - 1) / trainer->config.validate_every : 0;
    exchange_average(trainer);
    const shoal_status status = score_split(trainer, trainer->model->net, SPLIT_VALIDATE,
                                            beats * batches, batches, score);
    exchange_average(trainer);
    state->seconds += sh_seconds() - begun;
    if (status != SHOAL_OK)
        return status;
    state->validated_at = state->step;
    if (!decides(trainer))
        return SHOAL_OK;
    const schedule_settings settings = schedule_of(&trainer->config);
    sh_schedule_observe(&settings, &state->schedule, score->loss);
    state->perfect = score->correct == score->counted ? state->perfect + 1 : 0;
    state->validations++;
    return SHOAL_OK;
}

shoal_status shoal_trainer_evaluate(shoal_trainer *trainer,
                                    const shoal_attention *attention, int64_t batches,
                                    shoal_score *score) {
    if (!trainer || !score || batches < 0)
        return sh_fail(trainer ? trainer->context : NULL, SHOAL_INVALID,
                       "trainer or score is NULL, or batches is negative");
    shoal_model *model = trainer->model;
    network_shape shape;
    network *net = NULL;
    encoder_limits limits = model->limits;
    limits.training = false;
    if (!attention)
        attention = &trainer->config.model.attention;
    shoal_status status = sh_model_other_kind(model, attention, &shape);
    if (status == SHOAL_OK)
        status = sh_network_create(trainer->context, &shape, &limits, model->arena, &net);
    if (status == SHOAL_OK) {
        exchange_average(trainer);
        status = score_split(trainer, net, SPLIT_TEST, 0, batches, score);
        exchange_average(trainer);
    }
    sh_network_destroy(net);
    return status;
}

/* ---- Looking --------------------------------------------------------------------- */

shoal_train_progress shoal_trainer_progress(const shoal_trainer *trainer) {
    if (!trainer)
        return (shoal_train_progress){0};
    const train_state *state = &trainer->state;
    const shoal_train_config *config = &trainer->config;
    const bool all_steps = state->step >= config->steps;
    const bool due = state->step > 0 && state->validated_at != state->step &&
                     (all_steps || decides(trainer));
    const bool stopped = config->stop_after > 0 && state->perfect >= config->stop_after;
    return (shoal_train_progress){.step = state->step,
                                  .validations = state->validations,
                                  .perfect = state->perfect,
                                  .validate = due,
                                  .finished = !due && (all_steps || stopped),
                                  .seconds = state->seconds};
}

const shoal_train_config *shoal_trainer_config(const shoal_trainer *trainer) {
    return trainer ? &trainer->config : NULL;
}

shoal_model *shoal_trainer_model(shoal_trainer *trainer) {
    return trainer ? trainer->model : NULL;
}

size_t shoal_trainer_workspace(const shoal_trainer *trainer) {
    return trainer ? trainer->own_bytes + shoal_model_workspace(trainer->model) : 0;
}

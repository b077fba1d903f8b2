/* The masked copy task.

   A sequence is 0w0w with w of `length` symbols from 1 to 10. A fifth of all symbols
   (rounded, at least one) is masked, never both copies of the same one, so that every
   masked symbol can be read in the other half and nowhere else: of the 2 L symbols 0.4 L
   are masked, each at another place of w, and a coin says in which copy.

   Batches, dropout and validation data are functions of the seed and of counts, so the
   counts in train_state are also the position in the data and the state of the random
   numbers. */
#include <inttypes.h>
#include <stdlib.h>

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

void copy_make_share(const train_config *config, copy_split split, int64_t number,
                     int64_t first, int64_t count, copy_batch *batch) {
    const int64_t length = copy_positions(config->length), rows = count * length;
    const uint64_t of_split = shoal_random(config->seed, 0, (uint64_t)split);
    const uint64_t of_batch = shoal_random(of_split, 0, (uint64_t)number);
    batch->first = first;
    batch->count = count;
    for (int64_t b = 0; b < count; b++) {
        batch->offsets[b] = b * length;
        make_sequence(shoal_random(of_batch, 0, (uint64_t)(first + b)), config->length,
                      config->loss, b * length, batch);
    }
    batch->offsets[count] = rows;
    batch->masked_count = 0;
    for (int64_t row = 0; row < rows; row++)
        if (batch->answers[row] != SHOAL_IGNORED) {
            batch->masked[batch->masked_count] = (int32_t)row;
            batch->masked_answers[batch->masked_count++] = batch->answers[row];
        }
}

void copy_make(const train_config *config, copy_split split, int64_t number,
               copy_batch *batch) {
    copy_make_share(config, split, number, 0, config->batch, batch);
}

/* ---- The task --------------------------------------------------------------------- */

static bool allocate_batch(const train_config *config, size_t sequences,
                           copy_batch *batch) {
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

static void copy_complete(train_config *config) {
    config->model.vocabulary = MASK + 1;
    config->model.outputs = SYMBOLS + 1;
    config->model.max_length = copy_positions(config->length);
}

static shoal_status copy_open(trainer *self, int64_t *max_batch, int64_t *max_rows) {
    train_config *config = &self->config;
    const int64_t ranks = config->ranks ? config->ranks->ranks : 1;
    copy_complete(config);
    *max_batch = (config->batch + ranks - 1) / ranks;
    *max_rows = *max_batch * config->model.max_length;
    return allocate_batch(config, (size_t)*max_batch, &self->batch)
               ? SHOAL_OK
               : trainer_refuse(self, SHOAL_NO_MEMORY,
                                "out of memory: a batch of %" PRId64, config->batch);
}

static void copy_close(trainer *self) {
    free(self->batch.offsets);
    free(self->batch.tokens);
}

/* This rank's share of a batch. */
static void make_share(trainer *self, copy_split split, int64_t number) {
    int64_t first, own;
    trainer_share(self, self->config.batch, &first, &own);
    copy_make_share(&self->config, split, number, first, own, &self->batch);
}

/* Forward and the score of the trainer's batch, and while training backward too. Loss
   from the targets, accuracy from the answers; where the loss is over the masked rows
   alone both are the same, and without dropout only those rows are computed. */
static shoal_status run_batch(trainer *self, shoal_model *model, bool training,
                              train_score *score) {
    const train_config *config = &self->config;
    const copy_batch *batch = &self->batch;
    const bool all = config->loss == LOSS_ALL;
    const bool some = !all && !(training && config->model.dropout > 0);
    const int64_t rows = some ? batch->masked_count : batch->offsets[batch->count];
    const int32_t *targets = some ? batch->masked_answers : batch->targets;
    const int64_t outputs = config->model.outputs;
    const shoal_model_inputs inputs = {.batch = batch->count,
                                       .offsets = batch->offsets,
                                       .tokens = batch->tokens,
                                       .wanted = some ? batch->masked : NULL,
                                       .wanted_count = batch->masked_count,
                                       .training = training,
                                       .step = self->state.step,
                                       .first_row = batch->first *
                                                    config->model.max_length,
                                       .first_sequence = batch->first};
    shoal_loss loss = {0}, right = {0};
    float *out;
    shoal_status status = shoal_model_forward(model, &inputs, &out);
    if (status == SHOAL_OK && all) /* before the gradient overwrites the logits */
        status = shoal_cross_entropy(self->context, rows, outputs, out, batch->answers,
                                     NULL, &right);
    if (status == SHOAL_OK)
        status = shoal_cross_entropy(self->context, rows, outputs, out, targets,
                                     training ? out : NULL, &loss);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    right = all ? right : loss;
    train_part part = {.loss = loss.mean,
                       .weight = (double)loss.counted,
                       .divisor = (double)loss.counted,
                       .correct = right.correct,
                       .counted = right.counted};
    status = training ? trainer_backward(self, &inputs, out, rows * outputs, &part)
                      : trainer_sum(self, &part);
    *score = train_score_of(&part);
    return status;
}

static shoal_status copy_step(trainer *self, train_step *step) {
    make_share(self, SPLIT_TRAIN, self->state.step);
    step->sequences = self->config.batch;
    return run_batch(self, self->model, true, &step->score);
}

/* Batches `first` .. first + count - 1 of a split, with the averaged weights where there
   are some: the mean loss, and all positions. */
static shoal_status score_split(trainer *self, shoal_model *model, copy_split split,
                                int64_t first, int64_t count, train_score *score) {
    train_score sum = {0}, one = {0};
    shoal_status status = SHOAL_OK;
    shoal_optimizer_use_average(self->optimizer, 1);
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++) {
        make_share(self, split, first + i);
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

static shoal_status copy_validate(trainer *self, int64_t number, train_score *score) {
    const int64_t batches = self->config.validate_batches;
    return score_split(self, self->model, SPLIT_VALIDATE, number * batches, batches,
                       score);
}

shoal_status trainer_evaluate(trainer *self, const shoal_attention *attention,
                              int64_t batches, train_score *score) {
    shoal_model *view;
    const int64_t rows = self->config.batch * self->config.model.max_length;
    shoal_status status =
        shoal_model_view(self->model, attention, self->config.batch, rows, &view);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    status = score_split(self, view, SPLIT_TEST, 0, batches, score);
    shoal_model_destroy(view);
    return status;
}

const train_task copy_task = {.name = "copy",
                              .complete = copy_complete,
                              .open = copy_open,
                              .close = copy_close,
                              .step = copy_step,
                              .validate = copy_validate};

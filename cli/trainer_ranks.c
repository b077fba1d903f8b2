/* The trainer on several ranks. Each has its share of every batch. Either their gradients
   are summed, layer by layer while backward goes on, so that all take the same step; or
   each goes on alone, and from time to time weights and the optimizer's means are
   averaged. Scores are summed in every step: all decide the same. */
#include <math.h>
#include <string.h>

#include "common.h"
#include "train.h"

static bool sums_gradients(const trainer *self) {
    return self->config.ranks && self->config.average_every == 0;
}

static shoal_status keep_reason(trainer *self, shoal_status status) {
    return status == SHOAL_OK
               ? status
               : trainer_refuse(self, status, "%s", self->config.ranks->message);
}

/* Everybody comes here before anybody goes on. */
static shoal_status wait_for_all(trainer *self) {
    shoal_transport *ranks = self->config.ranks;
    int32_t all = 1;
    return keep_reason(self, ranks->sum(ranks, SHOAL_SUM_INT32, 1, &all));
}

shoal_status trainer_open(trainer *self, int64_t *max_batch, int64_t *max_rows) {
    const shoal_transport *ranks = self->config.ranks;
    const bool first = !ranks || ranks->local_rank == 0;
    shoal_status status = first ? SHOAL_OK : wait_for_all(self);
    if (status == SHOAL_OK)
        status = self->task->open(self, max_batch, max_rows);
    return status == SHOAL_OK && ranks && first ? wait_for_all(self) : status;
}

/* ---- Shares and scores ------------------------------------------------------------- */

void trainer_share(const trainer *self, int64_t count, int64_t *first, int64_t *own) {
    const shoal_transport *ranks = self->config.ranks;
    *first = ranks ? count * ranks->rank / ranks->ranks : 0;
    *own = ranks ? count * (ranks->rank + 1) / ranks->ranks - *first : count;
}

/* Counts are exact in double precision. */
shoal_status trainer_sum(trainer *self, train_part *part) {
    shoal_transport *ranks = self->config.ranks;
    if (!ranks)
        return SHOAL_OK;
    double all[] = {part->weight > 0 ? part->loss * part->weight : 0,
                    part->weight,
                    part->divisor,
                    (double)part->correct,
                    (double)part->counted,
                    (double)part->impossible,
                    (double)part->sequences,
                    (double)self->wants_stop,
                    (double)part->broken};
    const shoal_status status =
        ranks->sum(ranks, SHOAL_SUM_DOUBLE, sizeof all / sizeof *all, all);
    *part = (train_part){.loss = all[1] > 0 ? all[0] / all[1] : 0,
                         .weight = all[1],
                         .divisor = all[2],
                         .correct = (int64_t)all[3],
                         .counted = (int64_t)all[4],
                         .impossible = (int64_t)all[5],
                         .sequences = (int64_t)all[6],
                         .broken = (int64_t)all[8]};
    self->stopped = all[7] > 0;
    return keep_reason(self, status);
}

train_score train_score_of(const train_part *part) {
    return (train_score){.loss = part->loss,
                         .correct = part->correct,
                         .counted = part->counted,
                         .impossible = part->impossible,
                         .broken = part->broken,
                         .accuracy = part->counted
                                         ? (double)part->correct / (double)part->counted
                                         : (double)NAN};
}

/* ---- Gradients --------------------------------------------------------------------- */

/* A shoal_gradient_callback. */
static void begin_sum(void *shared, int64_t first, int64_t count) {
    trainer *self = shared;
    shoal_transport *ranks = self->config.ranks;
    float *gradients;
    shoal_model_vectors(self->model, NULL, &gradients);
    if (self->summed == SHOAL_OK)
        self->summed = ranks->sum_begin(ranks, SHOAL_SUM_FLOAT, count, gradients + first);
}

shoal_status trainer_watch(trainer *self) {
    return sums_gradients(self) ? shoal_model_watch(self->model, begin_sum, self)
                                : SHOAL_OK;
}

shoal_status trainer_backward(trainer *self, const shoal_model_inputs *inputs,
                              float *dout, int64_t count, train_part *part) {
    shoal_transport *ranks = self->config.ranks;
    const double own = part->divisor;
    shoal_status status = trainer_sum(self, part);
    if (status != SHOAL_OK)
        return status;
    if (sums_gradients(self)) {
        const float share = (float)(part->divisor > 0 ? own / part->divisor : 0);
        for (int64_t i = 0; i < count; i++)
            dout[i] *= share;
    }
    self->summed = SHOAL_OK;
    status = shoal_model_backward(self->model, inputs, dout, NULL);
    if (status != SHOAL_OK || !sums_gradients(self))
        return trainer_keep_message(self, status);
    return keep_reason(self,
                       self->summed == SHOAL_OK ? ranks->sum_end(ranks) : self->summed);
}

/* ---- Averages ---------------------------------------------------------------------- */

static shoal_status begin_vector(trainer *self, int64_t count, float *vector) {
    shoal_transport *ranks = self->config.ranks;
    return vector ? ranks->sum_begin(ranks, SHOAL_SUM_FLOAT, count, vector) : SHOAL_OK;
}

static shoal_status average(trainer *self) {
    shoal_transport *ranks = self->config.ranks;
    float *vectors[4];
    const int64_t count = shoal_model_vectors(self->model, &vectors[0], NULL);
    const float share = 1.0f / (float)ranks->ranks;
    shoal_status status = SHOAL_OK;
    shoal_optimizer_vectors(self->optimizer, &vectors[1], &vectors[2], &vectors[3]);
    for (int i = 0; i < 4 && status == SHOAL_OK; i++)
        status = begin_vector(self, count, vectors[i]);
    if (status == SHOAL_OK)
        status = ranks->sum_end(ranks);
    for (int v = 0; v < 4 && status == SHOAL_OK; v++)
        for (int64_t i = 0; vectors[v] && i < count; i++)
            vectors[v][i] *= share;
    self->averaged_at = self->state.step;
    return keep_reason(self, status);
}

/* What is validated or saved is everybody's. */
shoal_status trainer_average(trainer *self) {
    const int64_t every = self->config.average_every;
    if (!self->config.ranks || every == 0)
        return SHOAL_OK;
    return self->state.step % every == 0 || trainer_must_validate(self) || self->stopped
               ? average(self)
               : SHOAL_OK;
}

bool trainer_may_save(const trainer *self) {
    return !self->config.ranks || self->config.average_every == 0 ||
           self->averaged_at == self->state.step;
}

/* ---- Before the first step --------------------------------------------------------- */

static uint64_t digest_text(const char *text) {
    return ranks_digest(0, text, strlen(text));
}

static uint64_t digest_weights(trainer *self) {
    float *values;
    const int64_t count = shoal_model_vectors(self->model, &values, NULL);
    const uint64_t step = ranks_digest(0, &self->state.step, sizeof self->state.step);
    return ranks_digest(step, values, sizeof *values * (size_t)count);
}

int trainer_compare(trainer *self, const char *command) {
    ranks_things things = {.count = 0};
    char text[TRAIN_VALUE];
    self->averaged_at = self->state.step;
    if (!self->config.ranks)
        return EXIT_OK;
    ranks_thing(&things, "the build of Shoal", ranks_build());
    ranks_thing(&things, "the instruction set (--isa chooses one)",
                digest_text(shoal_context_isa(self->context)));
    for (int i = 0; train_field(i); i++)
        if (train_has_field(&self->config, i)) {
            train_get(&self->config, i, text, sizeof text);
            ranks_thing(&things, train_field(i), digest_text(text));
        }
    ranks_thing(&things, "the step or the weights (do both see the same files?)",
                digest_weights(self));
    return ranks_compare(self->config.ranks, command, &things);
}

/* The masked copy task.

   A sequence is 0w0w, where w has `length` symbols from 1 to 10. A fifth of all symbols
   (rounded, at least one) are masked, never both copies of the same one, so that every
   masked symbol can be read in the other half and nowhere else: 0.4 L of the 2 L
   symbols are masked, each at a different place of w, in a randomly chosen copy.

   Batches, dropout and validation data are functions of the seed and of counts, so the
   counts in shoal_train_state are also the position in the data and the state of the
   random numbers. */
#include <inttypes.h>
#include <stddef.h>

#include "base/memory.h"
#include "train/tasks/task.h"

enum { SYMBOLS = 10, MASK = SYMBOLS + 1 };

/* ---- The data --------------------------------------------------------------------- */

static int64_t positions_of(int64_t length) {
    return 2 * (length + 1);
}

/* Generates one sequence at row `first` from its own key. Draws: 3 i + 0, 1, 2 for
   symbol i of w. */
static void make_sequence(uint64_t key, int64_t length, int32_t loss, int64_t first,
                          copy_batch *batch) {
    int32_t *tokens = batch->tokens + first, *targets = batch->targets + first,
            *answers = batch->answers + first;
    int64_t wanted = (2 * length * 2 + 5) / 10;
    wanted = wanted > 0 ? wanted : 1;
    tokens[0] = tokens[length + 1] = 0;
    targets[0] = targets[length + 1] = loss == SHOAL_COPY_LOSS_ALL ? 0 : SHOAL_IGNORED;
    answers[0] = answers[length + 1] = SHOAL_IGNORED;
    for (int64_t i = 0; i < length; i++) {
        const uint64_t draw = 3 * (uint64_t)i;
        const int32_t symbol = 1 + (int32_t)shoal_random_below(key, 0, draw, SYMBOLS);
        /* Selection sampling: `wanted` of the remaining places. */
        const bool masked = shoal_random_below(key, 0, draw + 1, (uint64_t)(length - i)) <
                            (uint64_t)wanted;
        const int copy = (int)shoal_random_below(key, 0, draw + 2, 2);
        wanted -= masked;
        for (int which = 0; which < 2; which++) {
            const int64_t place = 1 + i + which * (length + 1);
            const bool hidden = masked && which == copy;
            tokens[place] = hidden ? MASK : symbol;
            answers[place] = hidden ? symbol : SHOAL_IGNORED;
            targets[place] = hidden || loss == SHOAL_COPY_LOSS_ALL ? symbol
                                                                   : SHOAL_IGNORED;
        }
    }
}

static void place_batch(void *argument, block_layout *block) {
    copy_batch *batch = argument;
    const int64_t rows = sh_mul_checked(batch->count, batch->length);
    batch->offsets = sh_reserve(block, batch->count + 1, sizeof *batch->offsets);
    batch->tokens = sh_reserve(block, rows, sizeof *batch->tokens);
    batch->targets = sh_reserve(block, rows, sizeof *batch->targets);
    batch->answers = sh_reserve(block, rows, sizeof *batch->answers);
    batch->masked = sh_reserve(block, rows, sizeof *batch->masked);
    batch->masked_answers = sh_reserve(block, rows, sizeof *batch->masked_answers);
}

void *sh_copy_allocate(shoal_context *context, const shoal_copy_config *config,
                       int64_t sequences, copy_batch *batch) {
    *batch = (copy_batch){.count = sequences, .length = positions_of(config->length)};
    return sh_allocate_parts(context, place_batch, batch, NULL);
}

void sh_copy_make(const shoal_copy_config *config, shoal_part part, int64_t number,
                  int64_t first, int64_t count, copy_batch *batch) {
    const int64_t length = positions_of(config->length), rows = count * length;
    const uint64_t of_part = shoal_random(config->train.seed, 0, (uint64_t)part);
    const uint64_t of_batch = shoal_random(of_part, 0, (uint64_t)number);
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

/* ---- The task ---------------------------------------------------------------------- */

static const char *const losses[] = {"masked", "all", NULL};

static const shoal_field fields[] = {{.name = "length",
                                      .type = SHOAL_FIELD_TYPE_INTEGER,
                                      .offset = offsetof(shoal_copy_config, length),
                                      .min = 1,
                                      .max = 1 << 24,
                                      .about = "symbols of w in 0w0w"},
                                     {.name = "loss",
                                      .type = SHOAL_FIELD_TYPE_CHOICE,
                                      .offset = offsetof(shoal_copy_config, loss),
                                      .choices = losses,
                                      .about = "loss over masked positions, or over all"},
                                     {0}};

static int defaults(void *user, const char *preset, void *whole) {
    shoal_copy_config *config = whole;
    (void)user;
    config->length = 31;
    return preset != NULL;
}

typedef struct {
    shoal_context *context;
    const shoal_copy_config *config;
    copy_batch batch;
    void *block; /* storage of its arrays */
    bool some;   /* of the last batch: outputs exist for masked rows only */
} copy_data;

static shoal_status open_copy(void *user, const shoal_task_opening *opening, void *whole,
                              void **place, shoal_task_sizes *sizes) {
    shoal_copy_config *config = whole;
    const int64_t processes = opening->share.count;
    const int64_t length = positions_of(config->length);
    (void)user;
    config->train.model.vocabulary = MASK + 1;
    config->train.model.outputs = SYMBOLS + 1;
    config->train.model.max_length = length;
    sizes->max_batch = (config->train.batch + processes - 1) / processes;
    sizes->max_rows = sizes->max_batch * length;
    copy_data *data = *place = sh_allocate(opening->context, sizeof *data);
    if (data) {
        *data = (copy_data){.context = opening->context, .config = config};
        data->block =
            sh_copy_allocate(opening->context, config, sizes->max_batch, &data->batch);
    }
    if (data && data->block)
        return SHOAL_OK;
    return sh_fail(opening->context, SHOAL_NO_MEMORY,
                   "out of memory: a batch of %" PRId64, config->train.batch);
}

static void close_copy(void *place) {
    copy_data *data = place;
    if (!data)
        return;
    sh_release(data->context, data->block);
    sh_release(data->context, data);
}

/* If the loss uses only masked rows and there is no dropout, only those rows are
   computed. */
static shoal_status make_batch(void *place, shoal_part part, int64_t number,
                               shoal_share share, shoal_model_inputs *inputs) {
    copy_data *data = place;
    const shoal_copy_config *config = data->config;
    copy_batch *batch = &data->batch;
    int64_t first, own;
    shoal_share_split(share, config->train.batch, &first, &own);
    sh_copy_make(config, part, number, first, own, batch);
    data->some = config->loss != SHOAL_COPY_LOSS_ALL &&
                 !(part == SHOAL_PART_TRAIN && config->train.model.dropout > 0);
    *inputs = (shoal_model_inputs){.size = sizeof(shoal_model_inputs),
                                   .batch = own,
                                   .offsets = batch->offsets,
                                   .tokens = batch->tokens,
                                   .wanted = data->some ? batch->masked : NULL,
                                   .wanted_count = batch->masked_count,
                                   .first_row = first * config->train.model.max_length,
                                   .first_sequence = first};
    return SHOAL_OK;
}

/* Loss from the targets, accuracy from the answers; both are the same if the loss uses
   only masked rows. */
static shoal_status step(void *place, const float *out, float *gradient,
                         shoal_train_counts *counts) {
    copy_data *data = place;
    const copy_batch *batch = &data->batch;
    const bool all = data->config->loss == SHOAL_COPY_LOSS_ALL;
    const int64_t rows = data->some ? batch->masked_count : batch->offsets[batch->count];
    const int32_t *targets = data->some ? batch->masked_answers : batch->targets;
    const int64_t outputs = data->config->train.model.outputs;
    shoal_loss loss = {0}, right = {0};
    shoal_status status = SHOAL_OK;
    if (all) /* before the gradient overwrites the logits */
        status = shoal_cross_entropy(data->context, rows, outputs, out, batch->answers,
                                     NULL, &right);
    if (status == SHOAL_OK)
        status = shoal_cross_entropy(data->context, rows, outputs, out, targets, gradient,
                                     &loss);
    right = all ? right : loss;
    *counts = (shoal_train_counts){.loss = loss.mean,
                                   .weight = (double)loss.counted,
                                   .correct = right.correct,
                                   .counted = right.counted};
    return status;
}

const shoal_train_task sh_copy_task = {.name = "copy",
                                       .config_size = sizeof(shoal_copy_config),
                                       .fields = fields,
                                       .flags = SHOAL_TASK_MODEL |
                                                SHOAL_TASK_VALIDATE_EVERY |
                                                SHOAL_TASK_ENDLESS,
                                       .defaults = defaults,
                                       .open = open_copy,
                                       .close = close_copy,
                                       .batch = make_batch,
                                       .step = step};

/* Masked copy: 0w0w with w of `length` symbols from 1 to 10. A fifth of the symbols is
   masked, never both copies of the same one, so that every masked symbol can be read in
   the other half and nowhere else.

   Of the 2 L symbols 0.4 L are masked (rounded, at least one), each at another place of
   w; a coin says in which copy. */
#include "base/random.h"
#include "models/training/task.h"
#include "shoal_models.h"

enum { SYMBOLS = 10, MASK = SYMBOLS + 1 };

static task_shape copy_shape(const shoal_train_config *config) {
    return (task_shape){.vocabulary = MASK + 1,
                        .outputs = SYMBOLS + 1,
                        .max_length = 2 * (config->length + 1)};
}

static int64_t masked_symbols(int64_t length) {
    const int64_t fifth = (2 * length * 2 + 5) / 10;
    return fifth > 0 ? fifth : 1;
}

/* One sequence, from a key of its own. Draws: 3 i + 0, 1, 2 for symbol i of w. */
static void make_sequence(uint64_t key, int64_t length, int loss, int32_t *tokens,
                          int32_t *targets, int32_t *answers) {
    int64_t wanted = masked_symbols(length);
    tokens[0] = tokens[length + 1] = 0;
    targets[0] = targets[length + 1] = loss == SHOAL_LOSS_ALL ? 0 : TASK_IGNORED;
    answers[0] = answers[length + 1] = TASK_IGNORED;
    for (int64_t i = 0; i < length; i++) {
        const uint64_t draw = 3 * (uint64_t)i;
        const int32_t symbol = 1 +
                               (int32_t)sh_random_below(key, STREAM_COPY, draw, SYMBOLS);
        /* Selection sampling: `wanted` of the places that are left. */
        const uint64_t left = (uint64_t)(length - i);
        const int masked = sh_random_below(key, STREAM_COPY, draw + 1, left) <
                           (uint64_t)wanted;
        const int copy = (int)sh_random_below(key, STREAM_COPY, draw + 2, 2);
        wanted -= masked;
        for (int which = 0; which < 2; which++) {
            const int64_t place = 1 + i + which * (length + 1);
            const int hidden = masked && which == copy;
            tokens[place] = hidden ? MASK : symbol;
            answers[place] = hidden ? symbol : TASK_IGNORED;
            targets[place] = hidden || loss == SHOAL_LOSS_ALL ? symbol : TASK_IGNORED;
        }
    }
}

static void copy_make(const shoal_train_config *config, task_split split, int64_t number,
                      task_batch *batch) {
    const int64_t rows = 2 * (config->length + 1);
    const uint64_t of_split = sh_random_bits(config->seed, STREAM_COPY, (uint64_t)split);
    const uint64_t of_batch = sh_random_bits(of_split, STREAM_COPY, (uint64_t)number);
    batch->batch = config->batch;
    for (int64_t b = 0; b < config->batch; b++) {
        batch->offsets[b] = b * rows;
        make_sequence(sh_random_bits(of_batch, STREAM_COPY, (uint64_t)b), config->length,
                      config->loss, batch->tokens + b * rows, batch->targets + b * rows,
                      batch->answers + b * rows);
    }
    batch->offsets[config->batch] = config->batch * rows;
}

const task_kind sh_task_copy = {.name = "copy",
                                .defaults = {.task = "copy",
                                             .length = 31,
                                             .loss = SHOAL_LOSS_MASKED,
                                             .model = {.layers = 4,
                                                       .heads = 6,
                                                       .head_dim = 32,
                                                       .feed_forward = 768,
                                                       .norm = SHOAL_NORM_PRE,
                                                       .activation = SHOAL_GELU,
                                                       .positions = SHOAL_SINUSOIDAL},
                                             .optimizer = SHOAL_RADAM,
                                             .learning_rate = 2e-4f,
                                             .beta1 = 0.9f,
                                             .beta2 = 0.999f,
                                             .epsilon = 1e-8f,
                                             .weight_decay = 0.01f,
                                             .clip = 10,
                                             .plateau_patience = 30,
                                             .plateau_factor = 0.5f,
                                             .batch = 32,
                                             .steps = 5000,
                                             .validate_every = 100,
                                             .validate_batches = 5,
                                             .seed = 1},
                                .shape = copy_shape,
                                .make = copy_make};

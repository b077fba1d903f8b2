/* A custom task for libshoal-train: a classifier of long sequences.

   A sequence is noise with a sign somewhere in it, which is its class. Replace
   make_sequence to use your own data.

       train_task FOLDER     trains or continues in the folder of the run */
#include <shoal_train.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { NOISE = 8, SIGNS = 4, MOST_ROWS = 1 << 14, MOST_BATCH = 64 };

/* The configuration begins with the fields of all trainings, followed by the task's;
   the table defines how its fields are spelled in checkpoints and on command lines. */
typedef struct {
    shoal_train_config train;
    int64_t length; /* of a sequence */
} signs_config;

static const shoal_field fields[] = {{.name = "length",
                                      .type = SHOAL_FIELD_TYPE_INTEGER,
                                      .offset = offsetof(signs_config, length),
                                      .min = 2,
                                      .max = MOST_ROWS,
                                      .about = "tokens per sequence"},
                                     {0}};

static int defaults(void *user, const char *preset, void *whole) {
    signs_config *config = whole;
    shoal_model_config *model = &config->train.model;
    (void)user;
    config->length = 200;
    model->layers = 1;
    model->heads = 2;
    model->feed_forward = 64;
    model->pooling = SHOAL_POOLING_MEAN; /* one row of logits per sequence */
    config->train.learning_rate = 3e-3f;
    config->train.batch = 16;
    config->train.steps = 300;
    return preset != NULL; /* there are no others */
}

/* Created by `open` and passed to all later calls. */
typedef struct {
    shoal_context *context;
    const signs_config *config;
    int64_t count; /* number of sequences in the last batch */
    int64_t offsets[MOST_BATCH + 1];
    int32_t tokens[MOST_ROWS], classes[MOST_BATCH];
} sign_data;

static shoal_status open_signs(void *user, const shoal_task_opening *opening, void *whole,
                               void **place, shoal_task_sizes *sizes) {
    signs_config *config = whole;
    sign_data *data = *place = calloc(1, sizeof *data);
    (void)user;
    sizes->max_batch = config->train.batch;
    sizes->max_rows = config->train.batch * config->length;
    if (!data || sizes->max_batch > MOST_BATCH || sizes->max_rows > MOST_ROWS)
        return shoal_context_fail(opening->context, SHOAL_INVALID, "batch is too large");
    data->context = opening->context;
    data->config = config;
    config->train.model.vocabulary = NOISE + SIGNS;
    config->train.model.outputs = SIGNS;
    config->train.model.max_length = config->length;
    return SHOAL_OK;
}

/* A pure function of its key, so that training can be resumed. */
static int32_t make_sequence(uint64_t key, int64_t length, int32_t *tokens) {
    const int32_t sign = (int32_t)shoal_random_below(key, 1, 0, SIGNS);
    for (int64_t i = 0; i < length; i++)
        tokens[i] = (int32_t)shoal_random_below(key, 0, (uint64_t)i, NOISE);
    tokens[shoal_random_below(key, 1, 1, (uint64_t)length)] = NOISE + sign;
    return sign;
}

/* This process's share of a batch: with several processes each generates some
   sequences. */
static shoal_status make_batch(void *place, shoal_part part, int64_t number,
                               shoal_share share, shoal_model_inputs *inputs) {
    sign_data *data = place;
    const signs_config *config = data->config;
    const uint64_t key =
        shoal_random(config->train.seed, (uint32_t)part, (uint64_t)number);
    int64_t first;
    shoal_share_split(share, config->train.batch, &first, &data->count);
    for (int64_t b = 0; b < data->count; b++) {
        data->offsets[b + 1] = (b + 1) * config->length;
        data->classes[b] = make_sequence(shoal_random(key, 0, (uint64_t)(first + b)),
                                         config->length,
                                         data->tokens + b * config->length);
    }
    *inputs = (shoal_model_inputs){.size = sizeof(shoal_model_inputs),
                                   .batch = data->count,
                                   .offsets = data->offsets,
                                   .tokens = data->tokens,
                                   .first_row = first * config->length,
                                   .first_sequence = first};
    return SHOAL_OK;
}

/* Loss, gradient and accuracy from the model's outputs for that batch. */
static shoal_status step(void *place, const float *out, float *gradient,
                         shoal_train_counts *counts) {
    const sign_data *data = place;
    shoal_loss loss = {0};
    const shoal_status status = shoal_cross_entropy(data->context, data->count, SIGNS,
                                                    out, data->classes, gradient, &loss);
    *counts = (shoal_train_counts){.loss = loss.mean,
                                   .weight = (double)loss.counted,
                                   .correct = loss.correct,
                                   .counted = loss.counted};
    return status;
}

static const shoal_train_task signs = {.name = "signs",
                                       .config_size = sizeof(signs_config),
                                       .fields = fields,
                                       .flags = SHOAL_TASK_MODEL |
                                                SHOAL_TASK_VALIDATE_EVERY |
                                                SHOAL_TASK_ENDLESS,
                                       .defaults = defaults,
                                       .open = open_signs,
                                       .close = free,
                                       .batch = make_batch,
                                       .step = step};

static void show(void *user, const shoal_train_progress *at) {
    (void)user;
    if (at->event == SHOAL_TRAIN_EVENT_VALIDATION)
        printf("step %4d  loss %.4f  right %3.0f %%\n", (int)at->done,
               at->validation->loss, 100 * at->validation->accuracy);
}

int main(int count, char **arguments) {
    shoal_context *context;
    signs_config config;
    shoal_run_options options = shoal_run_options_defaults();
    shoal_run_result result;
    if (count < 2 || shoal_context_create(NULL, &context) != SHOAL_OK)
        return 2;
    options.folder = arguments[1];
    options.resume = 1;
    options.callbacks.progress = show;
    if (shoal_config_init(context, &signs, NULL, &config, sizeof config) ||
        shoal_config_set(context, &signs, &config, "attention", "shoal") ||
        shoal_train_run(context, &signs, &config, &options, &result)) {
        fprintf(stderr, "%s\n", shoal_context_message(context));
        return 1;
    }
    printf("test  right %3.0f %%\n", 100 * result.test.accuracy);
    shoal_context_destroy(context);
}

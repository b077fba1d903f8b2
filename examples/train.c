/* Trains a transformer on arrays, saves it, and loads it again.

   The data are sequences of symbols, and the target at every position is the symbol
   before it: the model has to learn where to look. Replace make_batch to use your own
   arrays.

       train [FILE]      saves the model to FILE, or to previous.safetensors */
#include <shoal_models.h>
#include <stdio.h>

enum {
    SYMBOLS = 12,
    LENGTH = 24,
    BATCH = 16,
    ROWS = BATCH * LENGTH, /* sequences are concatenated */
    STEPS = 300,
    SEED = 1
};

typedef struct {
    int64_t offsets[BATCH + 1]; /* sequence b is rows offsets[b] .. [b + 1] - 1 */
    int32_t tokens[ROWS], targets[ROWS]; /* SHOAL_IGNORED if a position does not count */
} batch;

/* The batch of a step is a function of its number, so that training can be resumed. */
static void make_batch(int64_t number, batch *data) {
    for (int b = 0; b <= BATCH; b++)
        data->offsets[b] = (int64_t)b * LENGTH;
    for (int row = 0; row < ROWS; row++) {
        const uint64_t counter = (uint64_t)(number * ROWS + row);
        data->tokens[row] = (int32_t)shoal_random_below(SEED, 0, counter, SYMBOLS);
        data->targets[row] = row % LENGTH ? data->tokens[row - 1] : SHOAL_IGNORED;
    }
}

/* Forward and loss; with an optimizer also backward and its step. */
static shoal_status run(shoal_context *context, shoal_model *model, const batch *data,
                        shoal_optimizer *optimizer, double rate, shoal_loss *loss) {
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = BATCH,
                                       .offsets = data->offsets,
                                       .tokens = data->tokens};
    float *out; /* [ROWS][SYMBOLS]: logits, replaced by the gradient of the loss */
    shoal_status status = shoal_model_forward(model, &inputs, &out);
    if (status == SHOAL_OK)
        status = shoal_cross_entropy(context, ROWS, SYMBOLS, out, data->targets,
                                     optimizer ? out : NULL, loss);
    if (status != SHOAL_OK || !optimizer)
        return status;
    status = shoal_model_backward(model, &inputs, out, NULL);
    if (status == SHOAL_OK)
        status = shoal_gradients_clip(model, 1, NULL);
    return status == SHOAL_OK ? shoal_optimizer_step(optimizer, rate) : status;
}

static shoal_status train(shoal_context *context, shoal_model *model) {
    static batch data;
    shoal_optimizer *optimizer;
    shoal_schedule schedule = shoal_schedule_start(0.003);
    shoal_loss loss;
    shoal_status status = shoal_optimizer_create(model, NULL, &optimizer);
    schedule.warmup = 20;
    for (int64_t step = 1; step <= STEPS && status == SHOAL_OK; step++) {
        make_batch(step, &data);
        status = run(context, model, &data, optimizer,
                     shoal_schedule_rate(&schedule, step), &loss);
        if (status == SHOAL_OK && (step == 1 || step % 50 == 0))
            printf("step %3d  loss %.4f  right %3.0f %%\n", (int)step, loss.mean,
                   100.0 * (double)loss.correct / (double)loss.counted);
    }
    shoal_optimizer_destroy(optimizer);
    return status;
}

/* Tests the saved model on a batch that was not used in training. */
static shoal_status test(shoal_context *context, const char *path) {
    static batch data;
    shoal_model *model;
    shoal_loss loss;
    shoal_status status = shoal_model_open(context, path, BATCH, ROWS, 0, &model);
    make_batch(STEPS + 1, &data);
    if (status == SHOAL_OK)
        status = run(context, model, &data, NULL, 0, &loss);
    if (status == SHOAL_OK)
        printf("loaded    loss %.4f  right %3.0f %%\n", loss.mean,
               100.0 * (double)loss.correct / (double)loss.counted);
    shoal_model_destroy(model);
    return status;
}

int main(int count, char **arguments) {
    const char *path = count > 1 ? arguments[1] : "previous.safetensors";
    shoal_context *context;
    shoal_model *model = NULL;
    shoal_model_config config = {.size = sizeof(shoal_model_config),
                                 .vocabulary = SYMBOLS,
                                 .outputs = SYMBOLS,
                                 .max_length = LENGTH,
                                 .layers = 2,
                                 .heads = 4,
                                 .head_dim = 16,
                                 .feed_forward = 128};
    shoal_status status = shoal_context_create(NULL, &context);
    if (status == SHOAL_OK)
        status = shoal_attention_parse(context, "auto", &config.attention);
    if (status == SHOAL_OK)
        status = shoal_model_create(context, &config, SEED, BATCH, ROWS,
                                    SHOAL_WITH_BACKWARD, &model);
    if (status == SHOAL_OK)
        status = train(context, model);
    if (status == SHOAL_OK)
        status = shoal_model_save(model, path);
    if (status == SHOAL_OK)
        status = test(context, path);
    if (status != SHOAL_OK)
        fprintf(stderr, "train: %s\n", shoal_context_message(context));
    shoal_model_destroy(model);
    shoal_context_destroy(context);
    return status != SHOAL_OK;
}

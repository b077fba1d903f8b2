/* The task speech: a data folder's train and dev parts, CTC, error rate by the likeliest
   class of each position. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "speech_data.h"
#include "speech_score.h"
#include "train.h"

/* Sound that the model can take at once, however short that of the training is. */
enum { LEAST_SECONDS = 180 };

typedef struct {
    speech_set train, dev;
    speech_batch batch;
    speech_scorer scorer;
    int64_t epoch, epoch_begin; /* of the next step, and the epoch's first step */
    char *units;                /* one per line */
} speech_data;

/* ---- Opening ----------------------------------------------------------------------- */

static char *list_units(const shoal_corpus *corpus) {
    const char *unit;
    size_t bytes = 1;
    for (int64_t i = 1; (unit = shoal_corpus_unit(corpus, i)); i++)
        bytes += strlen(unit) + 1;
    char *text = calloc(bytes, 1), *at = text;
    for (int64_t i = 1; text && (unit = shoal_corpus_unit(corpus, i)); i++)
        at += sprintf(at, "%s\n", unit);
    return text;
}

/* Steps of so many epochs: batches differ from epoch to epoch. */
static int64_t steps_of(speech_set *set, int64_t epochs) {
    int64_t steps = 0;
    for (int64_t epoch = 0; epoch < epochs && speech_plan(set, epoch, true); epoch++)
        steps += set->batch_count;
    return steps;
}

/* The dev part has the units of the train part. */
static int open_parts(trainer *self, speech_data *data) {
    char path[TRAIN_PATH];
    train_config *config = &self->config;
    if (!config->folder || !speech_path(path, config->folder, "train"))
        return complain(EXIT_USAGE, "train",
                        "speech needs a data folder with the parts "
                        "train and dev: shoal train speech DATA");
    int code =
        speech_open("train", self->context, path, config, true, NULL, 0, &data->train);
    const int64_t count = data->train.info.units;
    config->speech.rate = data->train.info.rate;
    const char **units = calloc((size_t)count + 1, sizeof *units);
    for (int64_t i = 0; units && i < count; i++)
        units[i] = shoal_corpus_unit(data->train.corpora[0], i + 1);
    if (code == EXIT_OK && speech_path(path, config->folder, "dev"))
        code = speech_open("train", self->context, path, config, false, units, count,
                           &data->dev);
    free(units);
    return code;
}

static void set_sizes(trainer *self, speech_data *data) {
    train_config *config = &self->config;
    const int64_t least = speech_positions(config, 100 * LEAST_SECONDS);
    const int64_t longest = speech_longest(&data->train);
    const int64_t dev = speech_longest(&data->dev);
    config->model.features = speech_features(config);
    config->model.outputs = data->train.info.units + 1;
    config->model.max_length = longest > dev ? longest : dev;
    if (config->model.max_length < least)
        config->model.max_length = least;
    snprintf(config->speech.data, sizeof config->speech.data, "%016" PRIx64,
             data->train.info.fingerprint ^ (data->dev.info.fingerprint << 1));
    if (config->steps == 0)
        config->steps = steps_of(&data->train, config->speech.epochs);
    if (config->speech.decay && config->decay_steps == 0)
        config->decay_steps = config->steps;
}

static shoal_status open_speech(trainer *self, int64_t *max_batch, int64_t *max_rows) {
    speech_data *data = self->data = calloc(1, sizeof *data);
    if (!data)
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory");
    if (open_parts(self, data) != EXIT_OK)
        return trainer_refuse(self, SHOAL_BAD_FILE, "the data cannot be used");
    data->units = list_units(data->train.corpora[0]);
    if (!data->units)
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory");
    set_sizes(self, data);
    data->scorer = (speech_scorer){.context = self->context};
    const int64_t train = speech_most_rows(&data->train);
    const int64_t dev = speech_most_rows(&data->dev);
    *max_batch = self->config.batch;
    *max_rows = train > dev ? train : dev;
    if (self->config.ranks) { /* a share has its part, and half a sequence at each end */
        const int64_t longest = self->config.model.max_length;
        const int64_t share = *max_rows / self->config.ranks->ranks + longest + 1;
        *max_rows = share < *max_rows ? share : *max_rows;
    }
    return SHOAL_OK;
}

static void close_speech(trainer *self) {
    speech_data *data = self->data;
    if (!data)
        return;
    speech_close(&data->train);
    speech_close(&data->dev);
    speech_batch_free(&data->batch);
    speech_scorer_free(&data->scorer);
    free(data->units);
    free(data);
}

/* ---- Steps ------------------------------------------------------------------------- */

/* Goes to the epoch of a step, from the first: a plan is a matter of a millisecond. */
static void find_epoch(speech_data *data, int64_t step) {
    if (step < data->epoch_begin)
        data->epoch = data->epoch_begin = 0;
    speech_plan(&data->train, data->epoch, true);
    while (step - data->epoch_begin >= data->train.batch_count) {
        data->epoch_begin += data->train.batch_count;
        speech_plan(&data->train, ++data->epoch, true);
    }
}

static shoal_model_inputs inputs_of(const speech_batch *batch) {
    return (shoal_model_inputs){.batch = batch->count,
                                .offsets = batch->offsets,
                                .features = batch->features,
                                .first_row = batch->first_row,
                                .first_sequence = batch->first_sequence};
}

static train_part part_of(const speech_result *result) {
    const shoal_edits *edits = &result->edits;
    const int64_t wrong = edits->substitutions + edits->insertions + edits->deletions;
    return (train_part){.loss = result->labels ? result->loss / (double)result->labels
                                               : 0,
                        .weight = (double)result->labels,
                        .counted = edits->length,
                        .correct = edits->length - wrong,
                        .impossible = result->impossible};
}

static shoal_status step_speech(trainer *self, train_step *step) {
    speech_data *data = self->data;
    speech_batch *batch = &data->batch;
    const int64_t classes = self->config.model.outputs;
    find_epoch(data, self->state.step);
    if (!speech_fill_share(&data->train, self->state.step - data->epoch_begin, true,
                           self->config.ranks, batch))
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory for a batch");
    shoal_model_inputs inputs = inputs_of(batch);
    inputs.training = 1;
    inputs.step = self->state.step;
    float *out;
    speech_result result = {0};
    shoal_status status = shoal_model_forward(self->model, &inputs, &out);
    if (status == SHOAL_OK)
        status = speech_score(&data->scorer, batch, classes, out, out, &result, NULL);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    train_part part = part_of(&result);
    part.divisor = (double)batch->label_offsets[batch->count];
    part.sequences = batch->count;
    status = trainer_backward(self, &inputs, out, batch->offsets[batch->count] * classes,
                              &part);
    step->score = train_score_of(&part);
    step->sequences = part.sequences;
    return status;
}

static shoal_status validate_speech(trainer *self, int64_t number, train_score *score) {
    speech_data *data = self->data;
    speech_result result = {0};
    shoal_status status = SHOAL_OK;
    (void)number;
    speech_plan(&data->dev, 0, false);
    shoal_optimizer_use_average(self->optimizer, 1);
    for (int64_t i = 0; i < data->dev.batch_count && status == SHOAL_OK; i++) {
        float *out;
        if (!speech_fill_share(&data->dev, i, false, self->config.ranks, &data->batch)) {
            status = SHOAL_NO_MEMORY;
            break;
        }
        const shoal_model_inputs inputs = inputs_of(&data->batch);
        status = shoal_model_forward(self->model, &inputs, &out);
        if (status == SHOAL_OK)
            status = speech_score(&data->scorer, &data->batch, self->config.model.outputs,
                                  out, NULL, &result, NULL);
    }
    shoal_optimizer_use_average(self->optimizer, 0);
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    train_part part = part_of(&result);
    status = trainer_sum(self, &part);
    *score = train_score_of(&part);
    return status;
}

static const char *units_note(const trainer *self) {
    return ((const speech_data *)self->data)->units;
}

const train_task speech_task = {.name = "speech",
                                .keeps_best = true,
                                .open = open_speech,
                                .close = close_speech,
                                .step = step_speech,
                                .validate = validate_speech,
                                .key = "speech.units",
                                .note = units_note};

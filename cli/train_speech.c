/* The task speech: a data folder's train and dev parts; CTC, with the error rate by the
   likeliest class of each position, or LF-MMI, with that of the likeliest phones. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "speech_data.h"
#include "speech_lfmmi.h"
#include "speech_score.h"
#include "train.h"

/* Sound that the model can take at once, however short that of the training is. */
enum { LEAST_SECONDS = 180 };

typedef struct {
    speech_set train, dev;
    speech_batch batch;
    speech_scorer scorer;
    shoal_lexicon *lexicon; /* of LF-MMI */
    shoal_lfmmi *lfmmi;
    int64_t epoch, epoch_begin; /* of the next step, and the epoch's first step */
    char *units;                /* one per line */
} speech_data;

/* ---- Opening ----------------------------------------------------------------------- */

/* What outputs are of: the phones, or the units of the transcripts. */
static const char *unit_of(const speech_data *data, int64_t index) {
    return data->lexicon ? shoal_lexicon_phone(data->lexicon, index)
                         : shoal_corpus_unit(data->train.corpora[0], index + 1);
}

static char *list_units(const speech_data *data) {
    const char *unit;
    size_t bytes = 1;
    for (int64_t i = 0; (unit = unit_of(data, i)); i++)
        bytes += strlen(unit) + 1;
    char *text = calloc(bytes, 1), *at = text;
    for (int64_t i = 0; text && (unit = unit_of(data, i)); i++)
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

/* Words of both parts that have no pronunciation are named before either is refused. */
static int open_words(trainer *self, speech_data *data, const char *path) {
    char dev[TRAIN_PATH];
    train_config *config = &self->config;
    if (!config->lexicon || config->speech.units != 0)
        return complain(EXIT_USAGE, "train",
                        "lf-mmi needs transcripts of words, and --lexicon FILE with "
                        "their phones");
    int code = lfmmi_open_lexicon("train", self->context, config->lexicon, NULL, 0,
                                  &data->lexicon);
    if (code != EXIT_OK)
        return code;
    code = lfmmi_open_set("train", self->context, path, config, true, data->lexicon,
                          &data->train);
    if (!data->train.words)
        return code;
    config->speech.rate = data->train.info.rate;
    const int dev_code = speech_path(dev, config->folder, "dev")
                             ? lfmmi_open_set("train", self->context, dev, config, false,
                                              data->lexicon, &data->dev)
                             : EXIT_USAGE;
    return code == EXIT_OK ? dev_code : code;
}

/* The dev part has the units of the train part. */
static int open_parts(trainer *self, speech_data *data) {
    char path[TRAIN_PATH];
    train_config *config = &self->config;
    if (!config->folder || !speech_path(path, config->folder, "train"))
        return complain(EXIT_USAGE, "train",
                        "speech needs a data folder with the parts "
                        "train and dev: shoal train speech DATA");
    if (config->speech.loss == SPEECH_LFMMI)
        return open_words(self, data, path);
    int code =
        speech_open("train", self->context, path, config, true, NULL, 0, &data->train);
    config->speech.rate = data->train.info.rate;
    if (code == EXIT_OK && speech_path(path, config->folder, "dev"))
        code = speech_open_alike("train", self->context, path, config, &data->train,
                                 &data->dev);
    return code;
}

static shoal_status open_graphs(trainer *self, speech_data *data) {
    train_config *config = &self->config;
    const shoal_status status =
        lfmmi_create(self->context, config, data->lexicon, &data->train, &data->lfmmi);
    data->scorer.lfmmi = data->lfmmi;
    data->scorer.lexicon = data->lexicon;
    data->scorer.every = config->speech.every;
    return trainer_keep_message(self, status);
}

/* The graphs, which the run keeps for decoding. */
static int keep_graphs(trainer *self, const char *command, const char *folder) {
    char path[TRAIN_PATH];
    const speech_data *data = self->data;
    if (!data->lfmmi)
        return EXIT_OK;
    if (!train_path(command, path, folder, TRAIN_GRAPH))
        return EXIT_USAGE;
    const shoal_status status = shoal_lfmmi_save(data->lfmmi, path);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_RESOURCES, command, self->context);
}

static uint64_t fingerprint(const speech_data *data) {
    const uint64_t both = data->train.info.fingerprint ^
                          (data->dev.info.fingerprint << 1);
    return data->lexicon ? both ^ (lfmmi_fingerprint(&data->train, data->lexicon) << 2)
                         : both;
}

static void set_sizes(trainer *self, speech_data *data) {
    train_config *config = &self->config;
    const int64_t least = speech_positions(config, 100 * LEAST_SECONDS);
    const int64_t longest = speech_longest(&data->train);
    const int64_t dev = speech_longest(&data->dev);
    config->model.features = speech_features(config);
    config->model.outputs = data->lfmmi ? shoal_lfmmi_describe(data->lfmmi).outputs
                                        : data->train.info.units + 1;
    config->model.max_length = longest > dev ? longest : dev;
    if (config->model.max_length < least)
        config->model.max_length = least;
    snprintf(config->speech.data, sizeof config->speech.data, "%016" PRIx64,
             fingerprint(data));
    if (config->steps == 0)
        config->steps = steps_of(&data->train, config->speech.epochs);
    if (config->speech.decay && config->decay_steps == 0)
        config->decay_steps = config->steps;
}

/* CTC has one position at least for each label, and one between two of the same unit. */
static int64_t least_positions(const shoal_utterance *one) {
    int64_t count = one->label_count;
    for (int64_t i = 1; i < one->label_count; i++)
        count += one->labels[i] == one->labels[i - 1];
    return count;
}

/* What has too few positions teaches nothing: said before the first step, and refused
   where it is everything. */
static shoal_status check_positions(trainer *self, const speech_data *data) {
    const speech_set *set = &data->train;
    const int64_t all = set->info.utterances;
    int64_t lost = 0;
    for (int64_t i = 0; i < all; i++) {
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[set->plain], i, &one);
        lost += speech_positions(&self->config, one.frames) < least_positions(&one);
    }
    if (lost == all)
        return trainer_refuse(self, SHOAL_BAD_FILE,
                              "every utterance has more labels than positions; a smaller "
                              "hop gives them more");
    if (lost > 0 && ranks_first(self->config.ranks))
        tell("shoal train: %" PRId64 " of %" PRId64 " utterances have more labels than "
             "positions and teach nothing by themselves; a smaller hop gives them more",
             lost, all);
    return SHOAL_OK;
}

static shoal_status open_speech(trainer *self, int64_t *max_batch, int64_t *max_rows) {
    speech_data *data = self->data = calloc(1, sizeof *data);
    if (!data)
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory");
    if (open_parts(self, data) != EXIT_OK)
        return trainer_refuse(self, SHOAL_BAD_FILE, "the data cannot be used");
    data->units = list_units(data);
    data->scorer = (speech_scorer){.context = self->context};
    if (!data->units)
        return trainer_refuse(self, SHOAL_NO_MEMORY, "out of memory");
    const shoal_status status = data->lexicon ? open_graphs(self, data)
                                              : check_positions(self, data);
    if (status != SHOAL_OK)
        return status;
    set_sizes(self, data);
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
    shoal_lfmmi_destroy(data->lfmmi);
    shoal_lexicon_close(data->lexicon);
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
                        .impossible = result->impossible,
                        .broken = result->broken};
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
    const double heard = seconds_now();
    if (status == SHOAL_OK)
        status = speech_score(&data->scorer, batch, classes, out, out, &result, NULL);
    step->loss_seconds = seconds_now() - heard;
    if (status != SHOAL_OK)
        return trainer_keep_message(self, status);
    train_part part = part_of(&result);
    part.divisor = result.divisor;
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
                                .prepare = keep_graphs,
                                .key = "speech.units",
                                .note = units_note};

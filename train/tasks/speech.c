/* The task speech: train and dev sets of a data folder; CTC, with the error rate of
   greedy decoding, or LF-MMI, with that of the best phone sequence. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "train/tasks/speech.h"

/* ---- The configuration ------------------------------------------------------------- */

static const char *const losses[] = {"ctc", "lf-mmi", NULL};
static const char *const topologies[] = {"chain", "one", "blank", NULL};
static const char *const units[] = {"words", "characters", "subwords", "auto", NULL};
static const char *const normalisations[] = {"speaker", "utterance", "none", NULL};
static const char *const truths[] = {"false", "true", NULL};

static int speeds_are_valid(void *user, const char *text) {
    (void)user;
    double speed[MOST_SPEEDS];
    int plain;
    return sh_speech_speeds(text, speed, &plain) > 0;
}

#define PLACE(member) .offset = offsetof(shoal_speech_train_config, member)
#define INTEGER(field, low, high, text)                                                  \
    {                                                                                    \
        .name = #field, .type = SHOAL_FIELD_TYPE_INTEGER, PLACE(field), .min = low,      \
        .max = high, .about = text                                                       \
    }
#define REAL(field, low, high, text)                                                     \
    {                                                                                    \
        .name = #field, .type = SHOAL_FIELD_TYPE_REAL, PLACE(field), .min = low,         \
        .max = high, .about = text                                                       \
    }
#define CHOICE(field, words, text)                                                       \
    {                                                                                    \
        .name = #field, .type = SHOAL_FIELD_TYPE_CHOICE, PLACE(field), .choices = words, \
        .about = text                                                                    \
    }

static const shoal_field fields[] =
    {CHOICE(loss, losses, "connectionist temporal classification, or lattice-free MMI"),
     {.name = "labels",
      .type = SHOAL_FIELD_TYPE_TEXT,
      PLACE(labels),
      .about = "file of transcripts in the data folders"},
     CHOICE(units, units,
            "units of the transcripts; auto: characters of text, else words"),
     INTEGER(pieces, 2, 1 << 20, "subwords: maximum number, letters included"),
     {.name = "data",
      .type = SHOAL_FIELD_TYPE_TEXT,
      PLACE(train.data),
      .about = "fingerprint of the data, computed when it is opened"},
     INTEGER(bands, 1, 200, "number of filter banks"),
     INTEGER(rate, 0, 16000, "samples per second; 0: as in the train set"),
     CHOICE(normalise, normalisations,
            "scope over which features are normalised to mean 0 and variance 1"),
     INTEGER(hop, 1, 64, "frames between positions"),
     INTEGER(context, 1, 256, "frames per position"),
     INTEGER(every, 1, 64, "lf-mmi: positions per output"),
     CHOICE(topology, topologies, "lf-mmi: outputs per phone"),
     INTEGER(order, 2, 5, "lf-mmi: order of the phone n-gram"),
     INTEGER(extra, 0, 1e9, "lf-mmi: number of longest histories; 0: all"),
     CHOICE(whole, truths, "lf-mmi: utterances begin and end like transcripts"),
     REAL(leak, 1e-8, 1, "lf-mmi: leak probability of the HMM"),
     REAL(output_l2, 0, 10, "lf-mmi: L2 regularisation of outputs"),
     REAL(output_range, 0, 10, "lf-mmi: penalty of large outputs"),
     {.name = "speeds",
      .type = SHOAL_FIELD_TYPE_TEXT,
      PLACE(speeds),
      .valid = speeds_are_valid,
      .rule = "up to 8 numbers from 0.5 to 2 separated by commas, one of them 1",
      .about = "speeds; one is drawn for each utterance"},
     INTEGER(band_masks, 0, 100, "frequency masks per sequence"),
     INTEGER(band_mask, 0, 200, "maximum bands per mask"),
     INTEGER(time_masks, 0, 1000, "time masks per sequence"),
     INTEGER(time_mask, 0, 10000, "maximum frames per mask"),
     INTEGER(mask_after, 0, 1e9, "epochs without masks"),
     REAL(join, 0, 3600, "seconds up to which utterances of a speaker are joined"),
     INTEGER(join_after, 0, 1e9, "epochs without joining"),
     INTEGER(batch_frames, 1, 1 << 24, "maximum frames per batch"),
     {0}};

/* The paper's settings, instead of those for hours of speech on two cores. */
static void paper_defaults(shoal_speech_train_config *config) {
    shoal_train_config *train = &config->train;
    train->model.layers = 9;
    train->model.convolutions = 0;
    train->model.activation = SHOAL_ACTIVATION_GELU;
    train->model.dropout = 0;
    train->optimizer = shoal_optimizer_config_defaults();
    train->learning_rate = 1e-4f;
    train->warmup = 0;
    train->plateau_patience = 5;
    train->epochs = 100;
    train->decay = 0;
    config->hop = config->context = 1;
    snprintf(config->speeds, sizeof config->speeds, "1");
    config->band_masks = config->time_masks = 0;
    config->normalise = SHOAL_NORMALISE_UTTERANCE;
    config->batch_frames = 12000;
}

/* Settings that converge from a flat start (docs/notebook/SPEECH.md): an output every
   30 ms; or as in the paper, at every third frame of a full-rate encoder. */
static void lfmmi_defaults(shoal_speech_train_config *config, bool paper) {
    config->loss = SHOAL_RECOGNISER_LOSS_LFMMI;
    config->train.clip = 1;
    if (paper) {
        config->bands = 80;
        config->every = 3;
        config->train.model.layers = 12;
        config->train.learning_rate = 2e-4f;
        return;
    }
    config->order = 3;
    config->extra = 0;
    config->hop = 3;
    config->context = 9;
    config->train.learning_rate = 1e-3f;
}

/* Settings for hours of speech on two cores (docs/train.md). */
static int defaults(void *user, const char *preset, void *whole) {
    shoal_speech_train_config *config = whole;
    (void)user;
    shoal_train_config train = config->train;
    train.model.activation = SHOAL_ACTIVATION_RELU;
    train.model.convolutions = 4;
    train.model.dropout = 0.1f;
    train.optimizer.kind = SHOAL_OPTIMIZER_KIND_ADAM;
    train.optimizer.beta2 = 0.98f;
    train.learning_rate = 1.5e-3f;
    train.warmup = 150;
    train.plateau_patience = 0;
    train.batch = 64;
    train.steps = 0;
    train.epochs = 25;
    train.decay = 1;
    train.validate_every = 400;
    *config = (shoal_speech_train_config){.train = train,
                                          .labels = "text",
                                          .units = SHOAL_UNITS_AUTO,
                                          .pieces = 500,
                                          .bands = 40,
                                          .hop = 4,
                                          .context = 12,
                                          .speeds = "0.9,1,1.1",
                                          .band_masks = 2,
                                          .band_mask = 8,
                                          .time_masks = 2,
                                          .time_mask = 40,
                                          .mask_after = 6,
                                          .batch_frames = 4000,
                                          .every = 1,
                                          .order = 4,
                                          .extra = 2000,
                                          .leak = 0.1f,
                                          .output_l2 = 5e-5f,
                                          .output_range = 0.01f};
    if (!preset)
        return 0;
    const bool paper = strncmp(preset, "paper", 5) == 0;
    const bool lfmmi = strcmp(preset, paper ? "paper-lf-mmi" : "lf-mmi") == 0;
    if (paper)
        paper_defaults(config);
    if (lfmmi)
        lfmmi_defaults(config, paper);
    return !lfmmi && strcmp(preset, "paper") != 0;
}

/* ---- Opening ----------------------------------------------------------------------- */

/* Seconds of audio that the model can process at once, even if all training utterances
   are shorter. */
enum { LEAST_SECONDS = 180 };

typedef struct {
    pool memory; /* owns this structure and the units */
    const shoal_speech_train_config *config;
    speech_set train, dev;
    speech_batch batch;
    speech_scorer scorer;
    shoal_lexicon *lexicon; /* for LF-MMI */
    shoal_lfmmi *lfmmi;
    int64_t epoch, epoch_begin; /* of the next step, and the first step of that epoch */
    char *units;                /* one per line */
} speech_data;

/* Name of an output: a phone, or a unit of the transcripts. */
static const char *unit_of(const speech_data *data, int64_t index) {
    return data->lexicon ? shoal_lexicon_phone(data->lexicon, index)
                         : shoal_corpus_unit(data->train.corpora[0], index + 1);
}

/* Words of both parts that have no pronunciation are named before either is refused, and
   before any recording is read. The rate is that of the train part. */
static shoal_status open_words(const shoal_task_opening *opening,
                               shoal_speech_train_config *config, speech_data *data,
                               const char *train, const char *dev) {
    shoal_context *context = opening->context;
    if (!config->lexicon || config->units != SHOAL_UNITS_WORDS)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "lf-mmi needs transcripts of words, and --lexicon FILE with their "
                       "pronunciations");
    TRY(sh_lexicon_open(context, config->lexicon, NULL, 0, &data->lexicon));
    const shoal_status status =
        sh_lfmmi_check_words(opening, train, config, data->lexicon);
    char message[sizeof context->message];
    memcpy(message, context->message, sizeof message);
    const shoal_status of_dev = sh_lfmmi_check_words(opening, dev, config, data->lexicon);
    if (status != SHOAL_OK)
        return sh_fail(context, status, "%s", message);
    TRY(of_dev);
    TRY(sh_lfmmi_open_set(opening, train, config, true, data->lexicon, &data->train));
    config->rate = data->train.info.rate;
    return sh_lfmmi_open_set(opening, dev, config, false, data->lexicon, &data->dev);
}

/* Chooses units if none are given: `text` contains words, most of which a dev set has
   for the first time; another file contains units. */
static void choose_units(shoal_speech_train_config *config) {
    if (config->units == SHOAL_UNITS_AUTO)
        config->units = config->loss == SHOAL_RECOGNISER_LOSS_CTC &&
                                strcmp(config->labels, "text") == 0
                            ? SHOAL_UNITS_CHARACTERS
                            : SHOAL_UNITS_WORDS;
}

/* The dev set has the units of the train set. */
static shoal_status open_parts(const shoal_task_opening *opening,
                               shoal_speech_train_config *config, speech_data *data) {
    char train[SH_PATH], dev[SH_PATH];
    if (!config->folder || sh_path(opening->context, train, config->folder, "train") ||
        sh_path(opening->context, dev, config->folder, "dev"))
        return sh_fail(
            opening->context, SHOAL_BAD_FILE,
            "speech needs a data folder with train and dev: shoal train speech DATA");
    choose_units(config);
    if (config->loss == SHOAL_RECOGNISER_LOSS_LFMMI)
        return open_words(opening, config, data, train, dev);
    TRY(sh_speech_check_units(opening, train, dev, config));
    TRY(sh_speech_open(opening, train, config, true, NULL, 0, &data->train));
    config->rate = data->train.info.rate;
    return sh_speech_open_alike(opening, dev, config, &data->train, &data->dev);
}

/* Sets the sizes that depend on the data. */
static void set_sizes(shoal_speech_train_config *config, speech_data *data,
                      shoal_share share, shoal_task_sizes *sizes) {
    const int64_t longest[] = {sh_speech_longest(&data->train),
                               sh_speech_longest(&data->dev),
                               shoal_features_positions(&data->train.features,
                                                        100 * LEAST_SECONDS)};
    shoal_model_config *model = &config->train.model;
    model->features = shoal_features_width(&data->train.features);
    model->outputs = data->lfmmi ? shoal_lfmmi_describe(data->lfmmi)->outputs
                                 : data->train.info.units + 1;
    model->max_length = 0;
    for (int i = 0; i < 3; i++)
        model->max_length = longest[i] > model->max_length ? longest[i]
                                                           : model->max_length;
    uint64_t fingerprint = data->train.info.fingerprint ^
                           (data->dev.info.fingerprint << 1);
    if (data->lexicon)
        fingerprint ^= sh_lfmmi_fingerprint(&data->train, data->lexicon) << 2;
    snprintf(config->train.data, sizeof config->train.data, "%016" PRIx64, fingerprint);
    if (config->train.steps == 0)
        for (int64_t epoch = 0;
             epoch < config->train.epochs && sh_speech_plan(&data->train, epoch, true);
             epoch++) /* batches differ between epochs */
            config->train.steps += data->train.batch_count;
    const int64_t train = sh_speech_most_rows(&data->train);
    const int64_t dev = sh_speech_most_rows(&data->dev);
    sizes->max_batch = config->train.batch;
    sizes->max_rows = train > dev ? train : dev;
    if (share.count > 1) { /* its share, and half a sequence at each end */
        const int64_t own = sizes->max_rows / share.count + model->max_length + 1;
        sizes->max_rows = own < sizes->max_rows ? own : sizes->max_rows;
    }
    sh_speech_plan(&data->dev, 0, false);
    sizes->validation_batches = data->dev.batch_count;
}

/* Sequences with too few positions have no gradient: warns before the first step, and
   fails if all have too few. CTC needs one position per label, and one between two
   equal labels. */
static shoal_status check_positions(const shoal_task_opening *opening,
                                    const speech_set *set) {
    const int64_t all = set->info.utterances;
    int64_t lost = 0;
    for (int64_t i = 0; i < all; i++) {
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[set->plain], i, &one);
        int64_t least = one.label_count;
        for (int64_t k = 1; k < one.label_count; k++)
            least += one.labels[k] == one.labels[k - 1];
        lost += shoal_features_positions(&set->features, one.frames) < least;
    }
    if (lost == all)
        return sh_fail(
            opening->context, SHOAL_BAD_FILE,
            "every utterance has more labels than positions; use a smaller hop");
    if (lost > 0)
        sh_note(opening,
                "%" PRId64 " of %" PRId64 " utterances have more labels than positions "
                "and do not contribute; use a smaller hop",
                lost, all);
    return SHOAL_OK;
}

static shoal_status open_speech(void *user, const shoal_task_opening *opening,
                                void *whole, void **place, shoal_task_sizes *sizes) {
    shoal_speech_train_config *config = whole;
    pool memory = {.context = opening->context};
    speech_data *data = *place = sh_pool_take(&memory, 1, sizeof *data);
    const char *unit;
    int64_t bytes = 1;
    (void)user;
    if (!data)
        return SHOAL_NO_MEMORY;
    data->memory = memory;
    data->config = config;
    TRY(open_parts(opening, config, data));
    TRY(data->lexicon ? sh_lfmmi_create(opening->context, config, data->lexicon,
                                        &data->train, &data->lfmmi)
                      : check_positions(opening, &data->train));
    data->scorer = (speech_scorer){.memory = {.context = opening->context},
                                   .lfmmi = data->lfmmi,
                                   .lexicon = data->lexicon,
                                   .every = config->every};
    for (int64_t i = 0; (unit = unit_of(data, i)); i++)
        bytes += (int64_t)strlen(unit) + 1;
    data->units = sh_pool_take(&data->memory, bytes, 1);
    if (!data->units)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0, at = 0; (unit = unit_of(data, i)); i++)
        at += sprintf(data->units + at, "%s\n", unit);
    set_sizes(config, data, opening->share, sizes);
    return SHOAL_OK;
}

static void close_speech(void *place) {
    speech_data *data = place;
    if (!data)
        return;
    sh_speech_close(&data->train);
    sh_speech_close(&data->dev);
    sh_speech_batch_free(&data->batch);
    sh_speech_scorer_free(&data->scorer);
    shoal_lfmmi_destroy(data->lfmmi);
    shoal_lexicon_destroy(data->lexicon);
    sh_pool_free(&(pool){data->memory.context, data->memory.last});
}

shoal_status shoal_speech_check(shoal_context *context,
                                const shoal_speech_train_config *config, const char *part,
                                const shoal_train_callbacks *callbacks) {
    const shoal_train_callbacks none = {0};
    const shoal_task_opening opening = {.context = context,
                                        .share = {0, 1},
                                        .callbacks = callbacks ? callbacks : &none};
    char train[SH_PATH], path[SH_PATH];
    shoal_speech_train_config own = *config;
    speech_set first = {0}, set = {0};
    choose_units(&own);
    TRY(sh_path(context, train, config->folder, "train"));
    TRY(sh_path(context, path, config->folder, part));
    shoal_status status = sh_speech_open(&opening, train, &own, false, NULL, 0, &first);
    own.rate = first.info.rate;
    if (status == SHOAL_OK)
        status = config->loss == SHOAL_RECOGNISER_LOSS_CTC
                     ? sh_speech_open_alike(&opening, path, &own, &first, &set)
                     : sh_speech_open(&opening, path, &own, false, NULL, 0, &set);
    sh_speech_close(&first);
    sh_speech_close(&set);
    return status;
}

/* ---- Scores ------------------------------------------------------------------------ */

void sh_add_edits(const shoal_edits *edits, shoal_edits *sum) {
    sum->length += edits->length;
    sum->substitutions += edits->substitutions;
    sum->insertions += edits->insertions;
    sum->deletions += edits->deletions;
}

void sh_speech_scorer_free(speech_scorer *scorer) {
    shoal_ctc_destroy(scorer->ctc);
    sh_pool_free(&scorer->memory);
    *scorer = (speech_scorer){0};
}

static int64_t grown(int64_t have, int64_t want) {
    return want <= have ? have : want + want / 4;
}

static shoal_status make_room(speech_scorer *s, const speech_batch *batch,
                              int64_t classes) {
    TRY(sh_pool_grow(&s->memory, &s->spelled, &s->spelled_room, batch->longest,
                     sizeof *s->spelled));
    if (s->ctc && classes == s->classes && batch->count <= s->batch &&
        batch->longest <= s->rows && batch->most_labels <= s->labels)
        return SHOAL_OK;
    shoal_ctc_destroy(s->ctc);
    s->ctc = NULL;
    s->classes = classes;
    s->batch = grown(s->batch, batch->count);
    s->rows = grown(s->rows, batch->longest);
    s->labels = grown(s->labels, batch->most_labels);
    return shoal_ctc_create(s->memory.context, classes, s->batch, s->rows, s->labels,
                            &s->ctc);
}

shoal_status sh_speech_score(speech_scorer *s, const speech_batch *batch, int64_t classes,
                             const float *logits, float *gradient, speech_result *result,
                             shoal_edits *each) {
    const shoal_ctc_batch labels = {sizeof labels, batch->count, batch->offsets,
                                    batch->labels, batch->label_offsets};
    const int64_t all = batch->label_offsets[batch->count];
    shoal_context *context = s->memory.context;
    shoal_ctc_result loss;
    if (s->lfmmi)
        return sh_lfmmi_score(s, batch, classes, logits, gradient, result, each);
    TRY(make_room(s, batch, classes));
    for (int64_t b = 0; b < batch->count; b++) {
        const int64_t first = batch->offsets[b], rows = batch->offsets[b + 1] - first;
        const int64_t label = batch->label_offsets[b];
        const float *own = logits + first * classes;
        shoal_edits edits = {0};
        int64_t count = 0;
        TRY(s->beams ? shoal_ctc_search(context, rows, classes, own, s->beams, s->spelled,
                                        NULL, &count, NULL)
                     : shoal_ctc_greedy(context, rows, classes, own, s->spelled, NULL,
                                        &count));
        TRY(shoal_count_edits(context, batch->labels + label,
                              batch->label_offsets[b + 1] - label, s->spelled, count,
                              &edits));
        sh_add_edits(&edits, &result->edits);
        if (each)
            each[b] = edits;
    }
    TRY(shoal_ctc_loss(s->ctc, &labels, logits, all ? 1 / (double)all : 0, gradient, NULL,
                       &loss));
    result->divisor = (double)all;
    result->loss += loss.sum;
    result->labels += loss.labels;
    result->impossible += loss.impossible;
    return SHOAL_OK;
}

/* ---- Steps ------------------------------------------------------------------------- */

static shoal_status make_batch(void *place, shoal_part part, int64_t number,
                               shoal_share share, shoal_model_inputs *inputs) {
    speech_data *data = place;
    const bool training = part == SHOAL_PART_TRAIN;
    speech_set *set = training ? &data->train : &data->dev;
    if (training) { /* advance to the epoch of the step; a plan takes a millisecond */
        if (number < data->epoch_begin)
            data->epoch = data->epoch_begin = 0;
        sh_speech_plan(set, data->epoch, true);
        while (number - data->epoch_begin >= set->batch_count) {
            data->epoch_begin += set->batch_count;
            sh_speech_plan(set, ++data->epoch, true);
        }
        number -= data->epoch_begin;
    }
    TRY(sh_speech_fill(set, data->memory.context, number, training, share, &data->batch));
    *inputs = sh_speech_inputs(&data->batch);
    return SHOAL_OK;
}

static shoal_status step(void *place, const float *out, float *gradient,
                         shoal_train_counts *counts) {
    speech_data *data = place;
    speech_result result = {0};
    const shoal_status status = sh_speech_score(&data->scorer, &data->batch,
                                                data->config->train.model.outputs, out,
                                                gradient, &result, NULL);
    const shoal_edits *edits = &result.edits;
    const int64_t wrong = edits->substitutions + edits->insertions + edits->deletions;
    *counts = (shoal_train_counts){.loss = result.labels
                                               ? result.loss / (double)result.labels
                                               : 0,
                                   .sum = result.loss,
                                   .weight = (double)result.labels,
                                   .divisor = result.divisor,
                                   .counted = edits->length,
                                   .correct = edits->length - wrong,
                                   .impossible = result.impossible,
                                   .broken = result.broken};
    return status;
}

/* Saves the graphs, which decoding needs, in the run. */
static shoal_status keep_graphs(void *place, const char *folder) {
    const speech_data *data = place;
    char path[SH_PATH];
    if (!data->lfmmi)
        return SHOAL_OK;
    TRY(sh_path(data->memory.context, path, folder, SHOAL_RUN_GRAPH));
    return shoal_lfmmi_save(data->lfmmi, path);
}

static const char *units_note(void *place) {
    return ((const speech_data *)place)->units;
}

const shoal_train_task sh_speech_task = {.name = "speech",
                                         .config_size = sizeof(shoal_speech_train_config),
                                         .fields = fields,
                                         .flags = SHOAL_TASK_MODEL |
                                                  SHOAL_TASK_CONVOLUTIONS |
                                                  SHOAL_TASK_EPOCHS |
                                                  SHOAL_TASK_VALIDATE_EVERY |
                                                  SHOAL_TASK_BEST | SHOAL_TASK_TIMES_LOSS,
                                         .defaults = defaults,
                                         .open = open_speech,
                                         .close = close_speech,
                                         .batch = make_batch,
                                         .step = step,
                                         .prepare = keep_graphs,
                                         .note_key = "speech.units",
                                         .note = units_note};

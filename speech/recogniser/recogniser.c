/* A trained recogniser: its checkpoint with the notes of its training, the model, the
   search for units or words in its outputs, and processing of recordings in pieces. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/context.h"
#include "base/memory.h"
#include "base/plain.h"
#include "shoal_models.h"
#include "shoal_speech.h"
#include "speech/words/wordsearch.h"

enum { PATH = 4096, MOST_BEAMS = 10000 };

/* The notes "config.FIELD" of a checkpoint that recognition needs. */
typedef struct {
    shoal_features_config features;
    int32_t loss, characters;
    float join; /* seconds to which the training joined utterances */
    /* LF-MMI: */
    int32_t topology, whole; /* topology: a shoal_topology */
    float leak, l2, range;
} recogniser_config;

struct shoal_recogniser {
    shoal_context *context;
    char path[PATH]; /* of the weights */
    recogniser_config config;
    shoal_recogniser_info info;
    char *text;         /* storage of the units */
    const char **units; /* [info.units] */
    shoal_model *model, *view;
    shoal_fbank_options fbank;
    int64_t piece, margin; /* maximum positions per piece, and positions around it */
    int64_t beams;
    shoal_lfmmi *lfmmi;           /* NULL for CTC, or if no phones are needed */
    shoal_recogniser_parts words; /* decoder is NULL if there is no word search */
    void *found;                  /* storage of the last recognition's units */
};

/* ---- The notes --------------------------------------------------------------------- */

typedef enum { WHOLE, REAL, CHOICE } field_type;

typedef struct {
    const char *key, *before; /* before: value for files older than the field */
    field_type type;          /* int64_t, float, or int32_t index of a choice */
    size_t offset;            /* in recogniser_config */
    double min, max;
    const char *choices[4];
} field_row;

#define NUMBER(name, before, type, member, min, max)                                     \
    {                                                                                    \
        "config." name, before, type, offsetof(recogniser_config, member), min, max, {   \
            0                                                                            \
        }                                                                                \
    }
#define CHOICES(name, before, member, ...)                                               \
    {                                                                                    \
        "config." name, before, CHOICE, offsetof(recogniser_config, member), 0, 0, {     \
            __VA_ARGS__                                                                  \
        }                                                                                \
    }
static const field_row fields[] = {
    CHOICES("loss", "ctc", loss, "ctc", "lf-mmi"),
    CHOICES("units", NULL, characters, "words", "characters", "subwords"),
    NUMBER("bands", NULL, WHOLE, features.bands, 1, 200),
    NUMBER("rate", "16000", WHOLE, features.rate, 0, 16000),
    CHOICES("normalise", NULL, features.normalise, "speaker", "utterance", "none"),
    NUMBER("hop", NULL, WHOLE, features.hop, 1, 64),
    NUMBER("context", NULL, WHOLE, features.context, 1, 256),
    NUMBER("every", "1", WHOLE, features.every, 1, 64),
    NUMBER("join", NULL, REAL, join, 0, 3600),
    CHOICES("topology", "chain", topology, "chain", "one", "blank"),
    CHOICES("whole", "false", whole, "false", "true"),
    NUMBER("leak", "0.1", REAL, leak, 1e-8, 1),
    NUMBER("output_l2", "5e-05", REAL, l2, 0, 10),
    NUMBER("output_range", "0.01", REAL, range, 0, 10),
};

static shoal_status read_notes(shoal_recogniser *made, const shoal_checkpoint *file) {
    static const char units_key[] = "speech.units";
    const char *task = shoal_checkpoint_note(file, "config.task");
    const char *units = shoal_checkpoint_note(file, units_key);
    const char *step = shoal_checkpoint_note(file, "state.step");
    if (task && strcmp(task, "speech") != 0)
        return sh_fail(made->context, SHOAL_BAD_FILE,
                       "%s: is not a recogniser, but a model of %.40s", made->path, task);
    if (!task || !units)
        return sh_fail(made->context, SHOAL_BAD_FILE,
                       "%s: is not a recogniser: it has no %s", made->path,
                       task ? units_key : "config.task");
    made->info.step = step ? strtoll(step, NULL, 10) : 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field_row *row = &fields[i];
        const char *text = shoal_checkpoint_note(file, row->key);
        char *place = (char *)&made->config + row->offset;
        bool good = false;
        double value = 0;
        text = text ? text : row->before;
        if (!text)
            return sh_fail(made->context, SHOAL_BAD_FILE, "%s: the checkpoint has no %s",
                           made->path, row->key);
        if (row->type == CHOICE) {
            for (int32_t k = 0; k < 4 && row->choices[k] && !good; k++)
                if ((good = strcmp(row->choices[k], text) == 0))
                    memcpy(place, &k, sizeof k);
        } else if (!sh_read_c(text, &value)) {
            good = false;
        } else if (row->type == WHOLE) {
            memcpy(place, &(int64_t){(int64_t)value}, sizeof(int64_t));
            good = value >= row->min && value <= row->max && value == floor(value);
        } else {
            memcpy(place, &(float){(float)value}, sizeof(float));
            good = (float)value >= (float)row->min && (float)value <= (float)row->max;
        }
        if (!good)
            return sh_fail(made->context, SHOAL_BAD_FILE,
                           "%s: %s is \"%.40s\", which is not a valid value", made->path,
                           row->key, text);
    }
    /* One unit per line. They are printed, and must not contain control characters. */
    for (const char *c = units; *c; c++) {
        const unsigned char byte = (unsigned char)*c, next = (unsigned char)c[1];
        made->info.units += byte == '\n';
        if ((byte < ' ' && byte != '\n') || byte == 0x7f ||
            (byte == 0xc2 && next >= 0x80 && next < 0xa0))
            return sh_fail(made->context, SHOAL_BAD_FILE,
                           "%s: its units have control characters", made->path);
    }
    made->text = sh_allocate(made->context, strlen(units) + 1);
    made->units =
        sh_allocate(made->context, sizeof *made->units * ((size_t)made->info.units + 1));
    if (!made->text || !made->units)
        return SHOAL_NO_MEMORY;
    char *at = strcpy(made->text, units);
    for (int64_t i = 0; i < made->info.units; i++) {
        made->units[i] = at;
        at += strcspn(at, "\n");
        *at++ = 0;
    }
    return SHOAL_OK;
}

/* ---- Opening ----------------------------------------------------------------------- */

static shoal_status load_model(shoal_recogniser *made, const shoal_checkpoint *file) {
    shoal_model_config config;
    uint64_t seed;
    TRY(shoal_checkpoint_config(file, &config, &seed));
    TRY(shoal_checkpoint_fits(file, &config));
    TRY(shoal_model_create(made->context, &config, seed, 0, 0, 0, &made->model));
    made->words.model = made->model;
    TRY(shoal_checkpoint_load_average(file, made->model));
    shoal_recogniser_info *info = &made->info;
    const bool ctc = made->config.loss == SHOAL_RECOGNISER_LOSS_CTC;
    info->path = made->path;
    info->loss = (shoal_recogniser_loss)made->config.loss;
    info->topology = ctc ? SHOAL_TOPOLOGY_CTC : (shoal_topology)made->config.topology;
    info->unit_type = (shoal_units)made->config.characters;
    /* CTC has a blank instead of the silence. */
    info->outputs = sh_topology_outputs((int32_t)info->topology, info->units + ctc);
    info->features = made->config.features;
    info->step_seconds = (double)(info->features.hop * info->features.every) / 100;
    info->attention = config.attention;
    made->fbank = (shoal_fbank_options){.size = sizeof(shoal_fbank_options),
                                        .bands = (int32_t)info->features.bands,
                                        .rate = (int32_t)info->features.rate};
    if (config.outputs != info->outputs)
        return sh_fail(made->context, SHOAL_BAD_FILE,
                       "%s: its number of units does not match its outputs", made->path);
    if (config.features != shoal_features_width(&info->features))
        return sh_fail(made->context, SHOAL_BAD_FILE,
                       "%s: its features do not match its configuration", made->path);
    return SHOAL_OK;
}

/* Limits pieces to the maximum of a model with learned positions. */
static shoal_status make_view(shoal_recogniser *made,
                              const shoal_recogniser_options *options) {
    const shoal_features_config *features = &made->info.features;
    const shoal_model_config *model = shoal_model_settings(made->model);
    const int64_t most = model->positions == SHOAL_POSITIONS_LEARNED ? model->max_length
                                                                     : INT32_MAX;
    const double joined = (double)made->config.join;
    const double seconds = options->piece > 0 ? options->piece
                           : joined > 30      ? joined
                                              : 30;
    shoal_attention kind = made->info.attention;
    if (!(options->piece >= 0 && options->piece <= 3600) || options->beams < 0 ||
        options->beams > MOST_BEAMS)
        return sh_fail(made->context, SHOAL_INVALID,
                       "piece must be at most 3600 s, and beams from 0 to %d",
                       MOST_BEAMS);
    made->beams = options->beams;
    made->margin = shoal_features_positions(features, 200);
    made->piece = shoal_features_positions(features, (int64_t)(100 * seconds));
    made->piece = made->piece > 1 ? made->piece : 1;
    if (made->piece + 2 * made->margin > most) {
        made->margin = made->margin < most / 4 ? made->margin : most / 4;
        made->piece = most - 2 * made->margin;
    }
    if (options->attention)
        TRY(shoal_attention_parse(made->context, options->attention, &kind));
    return shoal_model_create_view(made->model, &kind, 1, made->piece + 2 * made->margin,
                                   &made->view);
}

void shoal_recogniser_options_init(shoal_recogniser_options *options, size_t size) {
    shoal_recogniser_options known = {.size = sizeof known};
    known.words = shoal_word_settings_defaults(SHOAL_TOPOLOGY_CTC);
    known.words.lm_weight = known.words.insertion = (double)NAN;
    sh_write_struct(options, size, &known, sizeof known);
}

static shoal_status open_parts(shoal_recogniser *made, const char *path,
                               const shoal_recogniser_options *options) {
    /* The best model of a run, else its checkpoint; or a file. */
    static const char *const names[] = {"/best.safetensors", "/checkpoint.safetensors"};
    struct stat information;
    const bool folder = stat(path, &information) == 0 && S_ISDIR(information.st_mode);
    if (strlen(path) + 32 > sizeof made->path)
        return sh_fail(made->context, SHOAL_INVALID, "%.80s...: the path is too long",
                       path);
    for (int i = 0; i < 2; i++) {
        snprintf(made->path, sizeof made->path, "%s%s", path, folder ? names[i] : "");
        if (!folder || stat(made->path, &information) == 0)
            break;
    }
    shoal_checkpoint *file = NULL;
    TRY(shoal_checkpoint_open(made->context, made->path, &file));
    shoal_status status = read_notes(made, file);
    if (status == SHOAL_OK)
        status = load_model(made, file);
    shoal_checkpoint_destroy(file);
    TRY(status);
    TRY(make_view(made, options));
    if (options->lexicon || options->lm)
        TRY(shoal_recogniser_set_words(made, options));
    /* Opened now, so that a missing file is reported before recordings are
       processed. */
    if (made->info.loss == SHOAL_RECOGNISER_LOSS_LFMMI && !made->words.decoder)
        TRY(shoal_recogniser_open_graphs(made, NULL, &made->lfmmi));
    return SHOAL_OK;
}

shoal_status shoal_recogniser_open(shoal_context *context, const char *path,
                                   const shoal_recogniser_options *options,
                                   shoal_recogniser **recogniser) {
    if (recogniser)
        *recogniser = NULL;
    if (!context || !context->kernels || !path || !recogniser)
        return sh_fail(context, SHOAL_INVALID, "context, path or recogniser is NULL");
    shoal_recogniser_options all = shoal_recogniser_options_defaults();
    TRY(READ_STRUCT(context, shoal_recogniser_options, options, &all));
    all.words.size = sizeof all.words;
    shoal_recogniser *made = sh_allocate(context, sizeof *made);
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = (shoal_recogniser){.context = context};
    const shoal_status status = open_parts(made, path, &all);
    if (status == SHOAL_OK)
        *recogniser = made;
    else
        shoal_recogniser_destroy(made);
    return status;
}

static void close_words(shoal_recogniser_parts *words) {
    shoal_word_decoder_destroy(words->decoder);
    shoal_ngram_destroy(words->ngram);
    shoal_lexicon_destroy(words->lexicon);
    *words = (shoal_recogniser_parts){.model = words->model};
}

void shoal_recogniser_destroy(shoal_recogniser *recogniser) {
    if (!recogniser)
        return;
    close_words(&recogniser->words);
    shoal_lfmmi_destroy(recogniser->lfmmi);
    shoal_model_destroy(recogniser->view);
    shoal_model_destroy(recogniser->model);
    sh_release(recogniser->context, recogniser->text);
    sh_release(recogniser->context, recogniser->units);
    sh_release(recogniser->context, recogniser->found);
    sh_release(recogniser->context, recogniser);
}

/* ---- Words and phones -------------------------------------------------------------- */

shoal_status shoal_recogniser_set_words(shoal_recogniser *recogniser,
                                        const shoal_recogniser_options *options) {
    shoal_recogniser_options all = shoal_recogniser_options_defaults();
    TRY(READ_STRUCT(recogniser ? recogniser->context : NULL, shoal_recogniser_options,
                    options, &all));
    all.words.size = sizeof all.words;
    if (!recogniser || !all.lexicon != !all.lm)
        return sh_fail(recogniser ? recogniser->context : NULL, SHOAL_INVALID,
                       "words need both a lexicon and a language model");
    shoal_recogniser_parts made = {.model = recogniser->model, .words = all.words};
    const shoal_recogniser_info *info = &recogniser->info;
    const shoal_word_settings usual = shoal_word_settings_defaults(info->topology);
    if (isnan(made.words.lm_weight))
        made.words.lm_weight = usual.lm_weight;
    if (isnan(made.words.insertion))
        made.words.insertion = usual.insertion;
    const shoal_lexicon_options phones = {.size = sizeof(shoal_lexicon_options),
                                          .phones = recogniser->units,
                                          .phone_count = info->units};
    shoal_status status = SHOAL_OK;
    if (all.lexicon)
        status = shoal_lexicon_open_list(recogniser->context, all.lexicon, &phones,
                                         &made.lexicon);
    if (status == SHOAL_OK && all.lm)
        status = shoal_ngram_open(recogniser->context, all.lm, &made.ngram);
    if (status == SHOAL_OK && all.lm)
        status = shoal_word_decoder_create(recogniser->context, made.lexicon, made.ngram,
                                           info->topology, all.unknown, &made.decoder);
    if (status == SHOAL_OK && all.lm &&
        shoal_word_decoder_describe(made.decoder)->outputs != info->outputs)
        status = sh_fail(recogniser->context, SHOAL_BAD_FILE,
                         "%s: its units differ from the phones of %s", recogniser->path,
                         all.lexicon);
    if (status != SHOAL_OK) {
        close_words(&made);
        return status;
    }
    close_words(&recogniser->words);
    recogniser->words = made;
    return SHOAL_OK;
}

shoal_status shoal_recogniser_open_graphs(const shoal_recogniser *recogniser,
                                          const shoal_lexicon *lexicon,
                                          shoal_lfmmi **lfmmi) {
    if (!recogniser || !lfmmi)
        return sh_fail(NULL, SHOAL_INVALID, "recogniser or lfmmi is NULL");
    const recogniser_config *config = &recogniser->config;
    shoal_lfmmi_options options = shoal_lfmmi_options_defaults();
    options.topology = recogniser->info.topology;
    options.whole = config->whole;
    options.leak = config->leak;
    options.l2 = config->l2;
    options.range = config->range;
    char path[PATH + 32];
    const char *slash = strrchr(recogniser->path, '/');
    snprintf(path, sizeof path, "%.*s/phones.graph",
             slash ? (int)(slash - recogniser->path) : 1, slash ? recogniser->path : ".");
    const shoal_status status =
        shoal_lfmmi_open(recogniser->context, &options, lexicon, path, lfmmi);
    if (status != SHOAL_OK ||
        shoal_lfmmi_describe(*lfmmi)->outputs == recogniser->info.outputs)
        return status;
    shoal_lfmmi_destroy(*lfmmi);
    *lfmmi = NULL;
    return sh_fail(recogniser->context, SHOAL_BAD_FILE,
                   "%s: belongs to another model than %s", path, recogniser->path);
}

/* ---- A recording ------------------------------------------------------------------- */

typedef struct {
    int64_t rows;            /* total positions */
    float *stacked;          /* [piece and margins][width] */
    float *outputs;          /* [rows][outputs], then only those of the steps */
    int32_t *units, *begins; /* [rows] */
} heard_sound;

static void place_sound(void *argument, block_layout *block) {
    heard_sound *sound = ((void **)argument)[0];
    const shoal_recogniser *r = ((void **)argument)[1];
    const shoal_features_config *config = &r->info.features;
    const int64_t longest = r->piece + 2 * r->margin + 2 * config->context + 2;
    sound->stacked = reserve_floats(block, longest, shoal_features_width(config));
    sound->outputs = reserve_floats(block, sound->rows, r->info.outputs);
    sound->units = sh_reserve(block, sound->rows, sizeof *sound->units);
    sound->begins = sh_reserve(block, sound->rows, sizeof *sound->begins);
}

/* Finds words, or units from 0 on, and the steps at which they begin. */
static shoal_status decode(shoal_recogniser *r, heard_sound *sound,
                           shoal_recognition *found) {
    const int64_t every = r->info.features.every, outputs = r->info.outputs;
    const int64_t steps = (sound->rows + every - 1) / every, offsets[] = {0, steps};
    const bool ctc = r->info.loss != SHOAL_RECOGNISER_LOSS_LFMMI;
    for (int64_t i = 1; i < steps && every > 1; i++)
        memcpy(sound->outputs + i * outputs, sound->outputs + i * every * outputs,
               sizeof *sound->outputs * (size_t)outputs);
    found->steps = steps;
    found->seconds = r->info.step_seconds * (double)steps;
    if (r->words.decoder)
        return shoal_word_decoder_run(r->words.decoder, &r->words.words, 1, offsets,
                                      sound->outputs, &found->spoken);
    if (!ctc && !r->lfmmi)
        TRY(shoal_recogniser_open_graphs(r, NULL, &r->lfmmi));
    if (!ctc)
        TRY(shoal_lfmmi_decode(r->lfmmi, 1, offsets, sound->outputs, sound->units,
                               sound->begins, &found->count));
    else if (r->beams == 0)
        TRY(shoal_ctc_greedy(r->context, steps, outputs, sound->outputs, sound->units,
                             sound->begins, &found->count));
    else
        TRY(shoal_ctc_search(r->context, steps, outputs, sound->outputs, r->beams,
                             sound->units, sound->begins, &found->count,
                             &found->log_probability));
    shoal_recognised_unit *units =
        sh_allocate(r->context, sizeof *units * (size_t)found->count);
    for (int64_t i = 0; i < found->count && units; i++) /* output 0 of CTC is the blank */
        units[i] =
            (shoal_recognised_unit){r->units[sound->units[i] - ctc], sound->begins[i]};
    found->units = r->found = units;
    return units ? SHOAL_OK : SHOAL_NO_MEMORY;
}

/* Processes a recording in the fewest pieces of about equal length. frames
   [count][bands] are normalised in place. */
static shoal_status recognise(shoal_recogniser *r, float *frames, int64_t count,
                              shoal_recognition *found) {
    heard_sound sound = {.rows = shoal_features_positions(&r->info.features, count)};
    void *block = sh_allocate_parts(r->context, place_sound, (void *[]){&sound, r}, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    sh_release(r->context, r->found);
    r->found = NULL;
    shoal_features_normalise(&r->info.features, count, frames);
    const int64_t pieces = (sound.rows + r->piece - 1) / r->piece;
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < pieces && status == SHOAL_OK; i++) {
        const int64_t at = i * sound.rows / pieces;
        /* Outputs of positions at .. next - 1; the margins are computed too. The frames
           of a position reach beyond it by less than `context`. */
        const shoal_features_config *config = &r->info.features;
        const int64_t next = (i + 1) * sound.rows / pieces;
        const size_t row = (size_t)r->info.outputs;
        const int64_t start = at > r->margin ? at - r->margin : 0;
        const int64_t after = next + r->margin;
        const int64_t end = after < sound.rows ? after : sound.rows;
        const int64_t beyond = (config->context + config->hop - 1) / config->hop;
        const int64_t first = start > beyond ? start - beyond : 0;
        const int64_t from = first * config->hop, to = (end + beyond) * config->hop;
        shoal_features_stack(config, (to < count ? to : count) - from,
                             frames + from * config->bands, sound.stacked);
        const int64_t offsets[2] = {0, end - start};
        const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                           .batch = 1,
                                           .offsets = offsets,
                                           .features = sound.stacked +
                                                       (start - first) *
                                                           shoal_features_width(config)};
        float *out;
        status = shoal_model_forward(r->view, &inputs, &out);
        if (status == SHOAL_OK)
            memcpy(sound.outputs + (size_t)at * row, out + (size_t)(at - start) * row,
                   sizeof *out * row * (size_t)(next - at));
    }
    if (status == SHOAL_OK)
        status = decode(r, &sound, found);
    sh_release(r->context, block);
    return status;
}

shoal_status shoal_recogniser_recognise_file(shoal_recogniser *recogniser,
                                             const char *path,
                                             shoal_recognition *recognition) {
    float *frames;
    int64_t count;
    if (!recogniser || !path || !recognition)
        return sh_fail(recogniser ? recogniser->context : NULL, SHOAL_INVALID,
                       "recogniser, path or recognition is NULL");
    shoal_context *context = recogniser->context;
    *recognition = (shoal_recognition){0};
    shoal_status status =
        shoal_fbank_file(context, &recogniser->fbank, path, &frames, &count);
    if (status == SHOAL_OK && count == 0)
        status = sh_fail(context, SHOAL_BAD_FILE, "%s: is shorter than a frame, 0.025 s",
                         path);
    if (status == SHOAL_OK)
        status = recognise(recogniser, frames, count, recognition);
    shoal_fbank_release(context, frames);
    return status;
}

shoal_status shoal_recogniser_recognise(shoal_recogniser *recogniser,
                                        const float *samples, int64_t count,
                                        shoal_recognition *recognition) {
    if (!recogniser || !samples || !recognition)
        return sh_fail(recogniser ? recogniser->context : NULL, SHOAL_INVALID,
                       "recogniser, samples or recognition is NULL");
    shoal_context *context = recogniser->context;
    const int64_t frames = shoal_fbank_frames(&recogniser->fbank, count);
    *recognition = (shoal_recognition){0};
    if (frames <= 0)
        return sh_fail(context, SHOAL_INVALID,
                       "the samples are shorter than a frame, 0.025 s");
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(samples[i]) <= 1e9f))
            return sh_fail(context, SHOAL_INVALID,
                           "sample %lld is not finite, or beyond 1e9", (long long)i);
    float *features = sh_allocate(context, sizeof *features * (size_t)frames *
                                               (size_t)recogniser->fbank.bands);
    if (!features)
        return SHOAL_NO_MEMORY;
    shoal_status status =
        shoal_fbank(context, &recogniser->fbank, samples, count, features);
    if (status == SHOAL_OK)
        status = recognise(recogniser, features, frames, recognition);
    sh_release(context, features);
    return status;
}

/* ---- Accessors -------------------------------------------------------------------- */

const shoal_recogniser_info *
shoal_recogniser_describe(const shoal_recogniser *recogniser) {
    return recogniser ? &recogniser->info : NULL;
}

const char *shoal_recogniser_unit(const shoal_recogniser *recogniser, int64_t unit) {
    return recogniser && unit >= 0 && unit < recogniser->info.units
               ? recogniser->units[unit]
               : NULL;
}

const shoal_recogniser_parts *
shoal_recogniser_describe_parts(const shoal_recogniser *recogniser) {
    return recogniser ? &recogniser->words : NULL;
}

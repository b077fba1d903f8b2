/* shoal recognise: the units that a recogniser hears in recordings. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "speech_data.h"
#include "speech_model.h"
#include "speech_words.h"

typedef struct {
    int64_t threads, beams, seconds; /* seconds: of a piece; 0: by the training */
    int64_t nbest;
    const char *isa, *attention;
    bool json;
    words_options words;

    shoal_context *context;
    speech_model recogniser;
    shoal_model *view;
    shoal_lfmmi *lfmmi;    /* where phones are wanted of a model by LF-MMI */
    int64_t piece, margin; /* positions of a piece at most, and around it */
    bool wants_words;
    words_search search;
    json_t *files; /* the results, where JSON is wanted */
} recognise_job;

static const option_row rows[] =
    {{"attention", 0, "KIND",
      "as shoal kinds spells them (default: the one that was trained)",
      SETS_TEXT(recognise_job, attention)},
     {"beams", 0, "N",
      "prefix beam search with so many beams (default: 0, the likeliest\n"
      "unit of each position)",
      SETS_INTEGER(recognise_job, beams, 0, 10000)},
     {"piece", 0, "SECONDS",
      "longer recordings are heard in pieces of up to so many seconds, each\n"
      "with 2 s around it (default: 30, or what the training joined to)",
      SETS_INTEGER(recognise_job, seconds, 1, 3600)},
     WORDS_ROWS(recognise_job, words, ""),
     {"nbest", 0, "N", "words: print so many strings, the best first (default: 1)",
      SETS_INTEGER(recognise_job, nbest, 1, 10000)},
     THREADS_ROW(recognise_job),
     ISA_ROW(recognise_job),
     {"json", 0, NULL,
      "print one JSON object, with the time at which each unit begins, or\n"
      "the times of words and how far they can be trusted",
      SETS_FLAG(recognise_job, json)},
     HELP_ROW,
     {0}};

const command_help recognise_help =
    {"recognise",
     "recognise RUN FILE... [options]",
     "Prints what a model of shoal train speech hears in recordings: its units, a line\n"
     "for each file. RUN is the folder of a training, or one of its models. Recordings\n"
     "have 16 kHz or more (8 where those of the training had less than 16); each is\n"
     "taken for one speaker, whose mean and variance are those of the whole file. With\n"
     "a lexicon and a language model its words are searched for and printed instead.\n",
     rows,
     NULL,
     "FILE"};

/* ---- One file ---------------------------------------------------------------------- */

/* In place: mean 0 and variance 1 of each band, unless the training did not. */
static void normalise(const train_config *config, int64_t frames, float *features) {
    const int64_t bands = config->speech.bands;
    if (config->speech.normalise == SHOAL_NORMALISE_NOTHING)
        return;
    for (int64_t band = 0; band < bands; band++) {
        double sum = 0, squares = 0;
        for (int64_t t = 0; t < frames; t++) {
            const double value = (double)features[t * bands + band];
            sum += value;
            squares += value * value;
        }
        const double mean = sum / (double)frames;
        const double variance = squares / (double)frames - mean * mean;
        const float scale = (float)(1 / sqrt(variance > 1e-6 ? variance : 1e-6));
        for (int64_t t = 0; t < frames; t++)
            features[t * bands + band] = (features[t * bands + band] - (float)mean) *
                                         scale;
    }
}

/* What was heard: units[i] from frames[i] positions on. */
typedef struct {
    int32_t *units, *positions; /* [rows] */
    int64_t count, rows;
    double log_probability;
    shoal_spoken spoken; /* where words are wanted */
} heard;

static shoal_status decode_phones(const recognise_job *job, const int64_t *offsets,
                                  const float *outputs, heard *h) {
    const shoal_status status = shoal_lfmmi_decode(job->lfmmi, 1, offsets, outputs,
                                                   h->units, h->positions, &h->count);
    for (int64_t i = 0; i < h->count && status == SHOAL_OK; i++)
        h->units[i]++; /* units are counted from 1 */
    return status;
}

static shoal_status decode(const recognise_job *job, const float *logits, heard *h) {
    const int64_t classes = speech_model_classes(&job->recogniser);
    const int64_t offsets[] = {0, h->rows};
    if (job->wants_words)
        return shoal_word_decoder_run(job->search.decoder, &job->search.settings, 1,
                                      offsets, logits, &h->spoken);
    if (job->lfmmi)
        return decode_phones(job, offsets, logits, h);
    if (job->beams == 0)
        return shoal_ctc_greedy(job->context, h->rows, classes, logits, h->units,
                                h->positions, &h->count);
    return shoal_ctc_search(job->context, h->rows, classes, logits, job->beams, h->units,
                            h->positions, &h->count, &h->log_probability);
}

/* ---- One file, in pieces ----------------------------------------------------------- */

typedef struct {
    const float *features; /* [frames][bands], normalised */
    int64_t frames, rows;  /* rows: positions of the whole */
    float *stacked;        /* of a piece */
    float *logits;         /* [rows][classes] */
} sound_pieces;

/* Positions begin .. end - 1 of the whole; returns where they are. A position's frames
   reach beyond it by less than `context`. */
static const float *stack_piece(const train_config *config, const sound_pieces *sound,
                                int64_t begin, int64_t end) {
    const int64_t hop = config->speech.hop;
    const int64_t beyond = (config->speech.context + hop - 1) / hop;
    const int64_t first = begin > beyond ? begin - beyond : 0;
    const int64_t from = first * hop, to = (end + beyond) * hop;
    speech_stack(config, sound->features + from * config->speech.bands,
                 (to < sound->frames ? to : sound->frames) - from, sound->stacked);
    return sound->stacked + (begin - first) * speech_features(config);
}

/* The logits of `count` positions; the model hears the margins too. */
static shoal_status hear_piece(recognise_job *job, sound_pieces *sound, int64_t at,
                               int64_t count) {
    const size_t classes = (size_t)speech_model_classes(&job->recogniser);
    const int64_t begin = at > job->margin ? at - job->margin : 0;
    const int64_t after = at + count + job->margin;
    const int64_t end = after < sound->rows ? after : sound->rows;
    const int64_t offsets[2] = {0, end - begin};
    const shoal_model_inputs inputs = {.batch = 1,
                                       .offsets = offsets,
                                       .features = stack_piece(&job->recogniser.config,
                                                               sound, begin, end)};
    float *out;
    const shoal_status status = shoal_model_forward(job->view, &inputs, &out);
    if (status == SHOAL_OK)
        memcpy(sound->logits + (size_t)at * classes, out + (size_t)(at - begin) * classes,
               sizeof *out * classes * (size_t)count);
    return status;
}

/* Of about the same length, as few as the longest allows. */
static shoal_status hear_pieces(recognise_job *job, sound_pieces *sound) {
    const int64_t pieces = (sound->rows + job->piece - 1) / job->piece;
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < pieces && status == SHOAL_OK; i++) {
        const int64_t begin = i * sound->rows / pieces;
        status = hear_piece(job, sound, begin, (i + 1) * sound->rows / pieces - begin);
    }
    return status;
}

/* Keeps the rows that have an output; returns how many. */
static int64_t thin(int64_t every, int64_t count, int64_t classes, float *out) {
    const int64_t kept = (count + every - 1) / every;
    for (int64_t i = 1; i < kept && every > 1; i++)
        memcpy(out + i * classes, out + i * every * classes,
               sizeof *out * (size_t)classes);
    return kept;
}

static shoal_status hear_all(recognise_job *job, const float *features, int64_t frames,
                             heard *h) {
    const train_config *config = &job->recogniser.config;
    const int64_t longest = job->piece + 2 * job->margin + 2 * config->speech.context + 2;
    const int64_t classes = speech_model_classes(&job->recogniser);
    const size_t count = (size_t)h->rows;
    sound_pieces sound = {.features = features, .frames = frames, .rows = h->rows};
    sound.stacked = malloc(sizeof(float) * (size_t)(longest * speech_features(config)));
    sound.logits = malloc(sizeof(float) * count * (size_t)classes);
    h->units = malloc(sizeof *h->units * count);
    h->positions = malloc(sizeof *h->positions * count);
    const bool room = sound.stacked && sound.logits && h->units && h->positions;
    shoal_status status = room ? hear_pieces(job, &sound) : SHOAL_NO_MEMORY;
    if (status == SHOAL_OK) {
        h->rows = thin(config->speech.every, h->rows, classes, sound.logits);
        status = decode(job, sound.logits, h);
    }
    free(sound.stacked);
    free(sound.logits);
    return status;
}

static int hear(recognise_job *job, const char *path, heard *h) {
    const train_config *config = &job->recogniser.config;
    const shoal_fbank_options options = {.bands = (int32_t)config->speech.bands,
                                         .rate = (int32_t)config->speech.rate};
    float *features;
    int64_t frames;
    shoal_status status =
        shoal_fbank_file(job->context, &options, path, &features, &frames);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "recognise", job->context);
    if (frames == 0) {
        shoal_fbank_release(job->context, features);
        return complain(EXIT_BAD_INPUT, "recognise",
                        "%s: is shorter than the 0.025 s of a frame", path);
    }
    h->rows = speech_positions(config, frames);
    normalise(config, frames, features);
    status = hear_all(job, features, frames, h);
    shoal_fbank_release(job->context, features);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "recognise", job->context);
}

static double step_seconds(const recognise_job *job) {
    const speech_config *speech = &job->recogniser.config.speech;
    return (double)(speech->hop * speech->every) / 100;
}

/* ---- Output ------------------------------------------------------------------------ */

static void print_units(const recognise_job *job, const char *path, const heard *h) {
    const bool letters = job->recogniser.config.speech.units == 1;
    printf("%s:%s", path, letters ? " " : "");
    for (int64_t i = 0; i < h->count; i++) {
        const char *unit = job->recogniser.units[h->units[i] - 1];
        if (letters)
            fputs(strcmp(unit, "_") == 0 ? " " : unit, stdout);
        else
            printf(" %s", unit);
    }
    putchar('\n');
    fflush(stdout);
}

static void add_units(recognise_job *job, const char *path, const heard *h) {
    const double second = step_seconds(job);
    json_t *units = json_array();
    for (int64_t i = 0; i < h->count; i++)
        json_array_append_new(units,
                              json_pack("{s:o, s:o}", "unit",
                                        json_text(job->recogniser.units[h->units[i] - 1]),
                                        "begin",
                                        json_number(second * (double)h->positions[i])));
    json_t *file = json_pack("{s:o, s:o, s:o}", "file", json_text(path), "seconds",
                             json_number(second * (double)h->rows), "units", units);
    if (job->beams > 0)
        json_object_set_new(file, "log_probability", json_number(h->log_probability));
    json_array_append_new(job->files, file);
}

static void print_words(const char *path, const heard *h) {
    for (int64_t i = 0; i < h->spoken.count; i++) {
        printf("%s:", path);
        for (int64_t k = 0; k < h->spoken.strings[i].count; k++)
            printf(" %s", h->spoken.strings[i].words[k].text);
        putchar('\n');
    }
    fflush(stdout);
}

static json_t *string_json(const recognise_job *job, const shoal_word_string *string) {
    const double second = step_seconds(job);
    json_t *words = json_array();
    for (int64_t i = 0; i < string->count; i++) {
        const shoal_spoken_word *word = &string->words[i];
        json_array_append_new(words,
                              json_pack("{s:o, s:o, s:o, s:o}", "word",
                                        json_text(word->text), "begin",
                                        json_number(second * (double)word->begin), "end",
                                        json_number(second * (double)word->end),
                                        "confidence", json_number(word->confidence)));
    }
    return json_pack("{s:o, s:o}", "score", json_number(string->score), "words", words);
}

static void add_words(recognise_job *job, const char *path, const heard *h) {
    const double second = step_seconds(job);
    json_t *strings = json_array();
    for (int64_t i = 0; i < h->spoken.count; i++)
        json_array_append_new(strings, string_json(job, &h->spoken.strings[i]));
    json_array_append_new(job->files,
                          json_pack("{s:o, s:o, s:b, s:o}", "file", json_text(path),
                                    "seconds", json_number(second * (double)h->rows),
                                    "whole", h->spoken.whole, "strings", strings));
}

static void show(recognise_job *job, const char *path, const heard *h) {
    if (job->json)
        (job->wants_words ? add_words : add_units)(job, path, h);
    else if (job->wants_words)
        print_words(path, h);
    else
        print_units(job, path, h);
}

/* ---- The command ------------------------------------------------------------------- */

/* Positions of a piece, within what the model can take where it has learnt positions;
   returns those with margins. */
static int64_t set_piece(recognise_job *job) {
    const train_config *config = &job->recogniser.config;
    const shoal_model_config *model = shoal_model_settings(job->recogniser.model);
    const int64_t most = model->positions == SHOAL_LEARNED ? model->max_length
                                                           : INT32_MAX;
    const double joined = (double)config->speech.join;
    const double seconds = job->seconds  ? (double)job->seconds
                           : joined > 30 ? joined
                                         : 30;
    job->margin = speech_positions(config, 200);
    job->piece = speech_positions(config, (int64_t)(100 * seconds));
    if (job->piece + 2 * job->margin > most) {
        job->margin = job->margin < most / 4 ? job->margin : most / 4;
        job->piece = most - 2 * job->margin;
    }
    return job->piece + 2 * job->margin;
}

static int open_model(recognise_job *job, const char *path) {
    int code = speech_model_open("recognise", job->context, path, &job->recogniser);
    if (code == EXIT_OK)
        code = speech_model_load("recognise", job->context, 0, 0, &job->recogniser);
    if (code != EXIT_OK)
        return code;
    shoal_attention kind = job->recogniser.config.model.attention;
    shoal_status status = SHOAL_OK;
    if (job->attention)
        status = shoal_attention_parse(job->context, job->attention, &kind);
    const int64_t most = set_piece(job);
    if (status == SHOAL_OK)
        status = shoal_model_view(job->recogniser.model, &kind, 1, most, &job->view);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_USAGE, "recognise", job->context);
}

static int open_words(recognise_job *job) {
    int code;
    job->wants_words = words_wanted("recognise", &job->words, &code);
    if (!job->wants_words)
        return code;
    code = words_open("recognise", job->context, &job->words, &job->recogniser,
                      &job->search);
    job->search.settings.nbest = job->nbest;
    job->search.settings.confidence = job->json;
    return code;
}

/* A file that cannot be heard is named, and the others are heard. */
static int hear_files(recognise_job *job, int count, char **paths) {
    int worst = EXIT_OK;
    for (int i = 0; i < count; i++) {
        heard h = {0};
        const int code = hear(job, paths[i], &h);
        if (code == EXIT_OK)
            show(job, paths[i], &h);
        worst = code > worst ? code : worst;
        free(h.units);
        free(h.positions);
    }
    if (!job->json)
        return worst;
    const int code =
        print_json(json_pack("{s:o, s:O}", "model", json_text(job->recogniser.path),
                             "files", job->files));
    return worst == EXIT_OK ? code : worst;
}

static int run(recognise_job *job, int count, char **words) {
    if (count < 2)
        return complain(EXIT_USAGE, "recognise", "%s; usage: shoal %s",
                        count ? "no file was given" : "no model was given",
                        recognise_help.usage);
    int code = open_context("recognise", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    job->files = json_array();
    code = open_model(job, words[0]);
    if (code == EXIT_OK)
        code = open_words(job);
    if (code == EXIT_OK && !job->wants_words &&
        job->recogniser.config.speech.loss == SPEECH_LFMMI)
        code = speech_model_graphs("recognise", job->context, &job->recogniser, NULL,
                                   &job->lfmmi);
    if (code == EXIT_OK)
        code = hear_files(job, count - 1, words + 1);
    json_decref(job->files);
    words_close(&job->search);
    shoal_model_destroy(job->view);
    shoal_lfmmi_destroy(job->lfmmi);
    speech_model_close(&job->recogniser);
    shoal_context_destroy(job->context);
    return code;
}

int recognise_command(int count, char **arguments) {
    static recognise_job job = {.nbest = 1};
    const int ended = take_options(&recognise_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    return run(&job, count - optind, arguments + optind);
}

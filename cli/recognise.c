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

typedef struct {
    int64_t threads, beams;
    const char *isa, *attention;
    bool json;

    shoal_context *context;
    speech_model recogniser;
    shoal_model *view;
    int64_t max_rows;
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
     THREADS_ROW(recognise_job),
     ISA_ROW(recognise_job),
     {"json", 0, NULL, "print one JSON object, with the time at which each unit begins",
      SETS_FLAG(recognise_job, json)},
     HELP_ROW,
     {0}};

const command_help recognise_help =
    {"recognise",
     "recognise RUN FILE... [options]",
     "Prints what a model of shoal train speech hears in recordings: its units, a line\n"
     "for each file. RUN is the folder of a training, or one of its models. Recordings\n"
     "have 16 kHz or more; each is taken for one speaker, whose mean and variance are\n"
     "those of the whole file.\n",
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
} heard;

static shoal_status decode(const recognise_job *job, const float *logits, heard *h) {
    const int64_t classes = job->recogniser.unit_count + 1;
    if (job->beams == 0)
        return shoal_ctc_greedy(job->context, h->rows, classes, logits, h->units,
                                h->positions, &h->count);
    return shoal_ctc_search(job->context, h->rows, classes, logits, job->beams, h->units,
                            h->positions, &h->count, &h->log_probability);
}

static int hear(recognise_job *job, const char *path, heard *h) {
    const train_config *config = &job->recogniser.config;
    const shoal_fbank_options options = {.bands = (int32_t)config->speech.bands};
    float *features, *out;
    int64_t frames;
    shoal_status status =
        shoal_fbank_file(job->context, &options, path, &features, &frames);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "recognise", job->context);
    h->rows = speech_positions(config, frames);
    if (frames == 0 || h->rows > job->max_rows) {
        shoal_fbank_release(job->context, features);
        return complain(EXIT_BAD_INPUT, "recognise",
                        "%s: has %.2f s; this model takes up to %.0f s and no less than "
                        "0.03 s: cut it first",
                        path, (double)frames / 100,
                        (double)(job->max_rows * config->speech.hop) / 100);
    }
    normalise(config, frames, features);
    float *stacked =
        malloc(sizeof *stacked * (size_t)(h->rows * speech_features(config)));
    h->units = malloc(sizeof *h->units * (size_t)h->rows);
    h->positions = malloc(sizeof *h->positions * (size_t)h->rows);
    const int64_t offsets[2] = {0, h->rows};
    const shoal_model_inputs inputs = {.batch = 1,
                                       .offsets = offsets,
                                       .features = stacked};
    status = stacked && h->units && h->positions ? SHOAL_OK : SHOAL_NO_MEMORY;
    if (status == SHOAL_OK) {
        speech_stack(config, features, frames, stacked);
        status = shoal_model_forward(job->view, &inputs, &out);
    }
    if (status == SHOAL_OK)
        status = decode(job, out, h);
    free(stacked);
    shoal_fbank_release(job->context, features);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "recognise", job->context);
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
    const double second = (double)job->recogniser.config.speech.hop / 100;
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

/* ---- The command ------------------------------------------------------------------- */

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
    job->max_rows = shoal_model_settings(job->recogniser.model)->max_length;
    if (status == SHOAL_OK)
        status =
            shoal_model_view(job->recogniser.model, &kind, 1, job->max_rows, &job->view);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_USAGE, "recognise", job->context);
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
    for (int i = 1; i < count && code == EXIT_OK; i++) {
        heard h = {0};
        code = hear(job, words[i], &h);
        if (code == EXIT_OK && job->json)
            add_units(job, words[i], &h);
        else if (code == EXIT_OK)
            print_units(job, words[i], &h);
        free(h.units);
        free(h.positions);
    }
    if (code == EXIT_OK && job->json)
        code =
            print_json(json_pack("{s:o, s:O}", "model", json_text(job->recogniser.path),
                                 "files", job->files));
    json_decref(job->files);
    shoal_model_destroy(job->view);
    speech_model_close(&job->recogniser);
    shoal_context_destroy(job->context);
    return code;
}

int recognise_command(int count, char **arguments) {
    static recognise_job job;
    const int ended = take_options(&recognise_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    return run(&job, count - optind, arguments + optind);
}

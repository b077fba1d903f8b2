/* shoal recognise: transcripts of recordings by a trained recogniser, as units or
   words. */
#define _GNU_SOURCE
#include <getopt.h>
#include <string.h>

#include "command.h"

typedef struct {
    int64_t threads, beams, seconds; /* seconds per piece; 0 selects the default */
    int64_t nbest;
    const char *isa, *attention;
    bool json;
    words_options words;

    shoal_context *context;
    shoal_recogniser *recogniser;
    shoal_recogniser_info info;
    bool wants_words;
    json_t *files; /* results for --json, otherwise NULL */
} recognise_job;

static const option_row rows[] =
    {{"attention", 0, "KIND",
      "attention kind, as in shoal kinds (default: the one used in training)",
      SETS_TEXT(recognise_job, attention)},
     {"beams", 0, "N",
      "number of beams for prefix beam search (default: 0, the most\n"
      "probable unit at each position)",
      SETS_INTEGER(recognise_job, beams, 0, 10000)},
     {"piece", 0, "SECONDS",
      "process longer recordings in pieces of at most this length, each\n"
      "with 2 s of context on both sides (default: 30, or the length to\n"
      "which the training joined utterances)",
      SETS_INTEGER(recognise_job, seconds, 1, 3600)},
     WORDS_ROWS(recognise_job, words, ""),
     {"nbest", 0, "N",
      "number of alternatives to print with words, best first (default: 1)",
      SETS_INTEGER(recognise_job, nbest, 1, 10000)},
     THREADS_ROW(recognise_job),
     ISA_ROW(recognise_job),
     {"json", 0, NULL,
      "print one JSON object, with the start time of each unit, or the\n"
      "times and confidences of words",
      SETS_FLAG(recognise_job, json)},
     HELP_ROW,
     {0}};

const command_help recognise_help =
    {"recognise",
     "recognise RUN FILE... [options]",
     "Prints the units that a model of shoal train speech recognises in recordings, one\n"
     "line per file. RUN is the folder of a training, or one of its models. Recordings\n"
     "must have 16 kHz or more (8 kHz if the training data had less than 16). Each file "
     "is\n"
     "normalised as one speaker. With a lexicon and a language model, words are printed\n"
     "instead.\n",
     rows,
     NULL,
     "FILE"};

/* ---- Output ------------------------------------------------------------------------ */

static json_t *units_json(const recognise_job *job, const char *path,
                          const shoal_recognition *heard) {
    json_t *units = json_array();
    for (int64_t i = 0; i < heard->count; i++) {
        const double begin = job->info.step_seconds * (double)heard->units[i].begin;
        json_array_append_new(units, json_pack("{s:o, s:o}", "unit",
                                               json_text(heard->units[i].text), "begin",
                                               json_number(begin)));
    }
    json_t *file = json_pack("{s:o, s:o, s:o}", "file", json_text(path), "seconds",
                             json_number(heard->seconds), "units", units);
    if (job->beams > 0)
        json_object_set_new(file, "log_probability", json_number(heard->log_probability));
    return file;
}

static json_t *words_json(const recognise_job *job, const char *path,
                          const shoal_recognition *heard) {
    const double second = job->info.step_seconds;
    json_t *strings = json_array();
    for (int64_t i = 0; i < heard->spoken.count; i++) {
        const shoal_word_string *string = &heard->spoken.strings[i];
        json_t *words = json_array();
        for (int64_t k = 0; k < string->count; k++) {
            const shoal_spoken_word *word = &string->words[k];
            json_array_append_new(words,
                                  json_pack("{s:o, s:o, s:o, s:o}", "word",
                                            json_text(word->text), "begin",
                                            json_number(second * (double)word->begin),
                                            "end",
                                            json_number(second * (double)word->end),
                                            "confidence", json_number(word->confidence)));
        }
        json_array_append_new(strings,
                              json_pack("{s:o, s:o}", "score", json_number(string->score),
                                        "words", words));
    }
    return json_pack("{s:o, s:o, s:b, s:o}", "file", json_text(path), "seconds",
                     json_number(heard->seconds), "whole", heard->spoken.whole, "strings",
                     strings);
}

static void show(recognise_job *job, const char *path, const shoal_recognition *heard) {
    if (job->json)
        json_array_append_new(job->files,
                              (job->wants_words ? words_json : units_json)(job, path,
                                                                           heard));
    else if (job->wants_words) {
        for (int64_t i = 0; i < heard->spoken.count; i++) {
            printf("%s:", path);
            for (int64_t k = 0; k < heard->spoken.strings[i].count; k++)
                printf(" %s", heard->spoken.strings[i].words[k].text);
            putchar('\n');
        }
        fflush(stdout);
    } else {
        const bool letters = job->info.unit_type != 0;
        printf("%s:%s", path, letters ? " " : "");
        for (int64_t i = 0; i < heard->count; i++) {
            const char *unit = heard->units[i].text;
            const bool begins = *unit == '_'; /* start of a word */
            if (letters)
                printf("%s%s", begins && (i > 0 || !unit[1]) ? " " : "", unit + begins);
            else
                printf(" %s", unit);
        }
        putchar('\n');
        fflush(stdout);
    }
}

/* ---- The command ------------------------------------------------------------------- */

static int open_recogniser(recognise_job *job, const char *path) {
    shoal_recogniser_options options;
    int code;
    job->wants_words = words_wanted("recognise", &job->words, &code);
    if (code != EXIT_OK || !words_take("recognise", &job->words, &options))
        return EXIT_USAGE;
    options.attention = job->attention;
    options.beams = job->beams;
    options.piece = (double)job->seconds;
    options.words.nbest = job->nbest;
    options.words.confidence = job->json;
    const shoal_status status =
        shoal_recogniser_open(job->context, path, &options, &job->recogniser);
    if (status == SHOAL_OK)
        job->info = *shoal_recogniser_describe(job->recogniser);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status,
                                 status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT,
                                 "recognise", job->context);
}

/* A file that cannot be read is reported, and the others are processed. */
static int hear_files(recognise_job *job, int count, char **paths) {
    int worst = EXIT_OK;
    for (int i = 0; i < count; i++) {
        shoal_recognition heard;
        const shoal_status status =
            shoal_recogniser_recognise_file(job->recogniser, paths[i], &heard);
        if (status == SHOAL_OK) {
            show(job, paths[i], &heard);
            continue;
        }
        const int code =
            complain_status(status, EXIT_BAD_INPUT, "recognise", job->context);
        worst = code > worst ? code : worst;
    }
    if (!job->json)
        return worst;
    const int code = print_json(
        json_pack("{s:o, s:O}", "model", json_text(job->info.path), "files", job->files));
    return worst == EXIT_OK ? code : worst;
}

static int run(recognise_job *job, int count, char **words) {
    if (count < 2)
        return complain(EXIT_USAGE, "recognise", "%s; usage: shoal %s",
                        count ? "no file was given" : "no run was given",
                        recognise_help.usage);
    int code = open_context("recognise", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    job->files = json_array();
    code = open_recogniser(job, words[0]);
    if (code == EXIT_OK)
        code = hear_files(job, count - 1, words + 1);
    json_decref(job->files);
    shoal_recogniser_destroy(job->recogniser);
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

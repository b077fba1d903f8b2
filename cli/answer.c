/* shoal answer: a question's answer in a context, by a model of shoal train squad. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "text_run.h"
#include "texts.h"

typedef struct {
    const char *question, *context_path, *attention, *isa;
    int64_t threads;
    bool json;
    shoal_context *context;
    text_run run;
    text_set windows;
    text_batch batch;
    squad_answer best;
} answer_job;

static const option_row rows[] =
    {{"question", 'q', "TEXT", "the question", SETS_TEXT(answer_job, question)},
     {"context", 'c', "FILE", "a text that has the answer; - is standard input",
      SETS_TEXT(answer_job, context_path)},
     {"attention", 'a', "KIND",
      "attention, as shoal kinds spells it (default: the one that was\ntrained)",
      SETS_TEXT(answer_job, attention)},
     THREADS_ROW(answer_job),
     ISA_ROW(answer_job),
     {"json", 0, NULL, "print one JSON object instead", SETS_FLAG(answer_job, json)},
     HELP_ROW,
     {0}};

const command_help answer_help = {
    "answer",
    "answer RUN --question TEXT --context FILE [options]",
    "Prints the part of the context that answers the question, by the best weights of a\n"
    "run of shoal train squad. Longer contexts than the model takes at once are read in\n"
    "windows that overlap.\n",
    rows,
    "The answer is the likeliest part of at most max_answer tokens (30 by default); its\n"
    "score, the sum of two logits, is to be compared with others of the same run\n"
    "alone. begin and end of the JSON object count the context's bytes (UTF-8).\n",
    "DIR"};

static int open_view(answer_job *job, shoal_model **view) {
    shoal_attention kind = job->run.config.model.attention;
    shoal_status status = job->attention
                              ? shoal_attention_parse(job->context, job->attention, &kind)
                              : SHOAL_OK;
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_USAGE, "answer", job->context);
    status = shoal_model_view(job->run.model, &kind, 1,
                              sh_text_set_longest(&job->windows), view);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "answer", job->context);
}

static int look(answer_job *job) {
    shoal_model *view;
    const int code = open_view(job, &view);
    if (code != EXIT_OK)
        return code;
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < job->windows.count && status == SHOAL_OK; i++) {
        float *out;
        if (!sh_text_batch_fill(&job->windows, NULL, i, 1, &job->batch)) {
            status = SHOAL_NO_MEMORY;
            break;
        }
        const shoal_model_inputs inputs = sh_text_batch_inputs(&job->batch);
        status = shoal_model_forward(view, &inputs, &out);
        if (status == SHOAL_OK)
            sh_squad_look(&job->windows, i, out, job->run.config.text.max_answer,
                          &job->best);
    }
    shoal_model_destroy(view);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "answer", job->context);
}

static int report(answer_job *job, const squad_question *question) {
    sh_squad_trim(question, &job->best);
    char *text = sh_squad_text(question, &job->best);
    if (!text)
        return complain(EXIT_RESOURCES, "answer", "out of memory");
    int code = EXIT_OK;
    if (job->json)
        code = print_json(
            json_pack("{s:o, s:o, s:I, s:I, s:I}", "answer", json_text(text), "score",
                      json_number(job->best.score), "begin", (json_int_t)job->best.begin,
                      "end", (json_int_t)job->best.end, "windows",
                      (json_int_t)job->windows.count));
    else
        printf("%s\n", text);
    free(text);
    return code;
}

static int answer(answer_job *job, const char *context) {
    const text_reader reader = {.context = job->context,
                                .tokenizer = job->run.tokenizer,
                                .max_length = job->run.config.text.max_length};
    const squad_question question = {"asked", job->question, context, NULL};
    const shoal_status status = sh_squad_windows(&reader, &question, 0,
                                                 job->run.config.text.stride, NULL,
                                                 &job->windows);
    const int code = status == SHOAL_OK ? look(job)
                                        : complain_status(status, EXIT_BAD_INPUT,
                                                          "answer", job->context);
    return code == EXIT_OK ? report(job, &question) : code;
}

static int run(answer_job *job, int count, char **words) {
    if (count != 1 || !job->question || !job->context_path)
        return complain(EXIT_USAGE, "answer", "%s; usage: shoal %s",
                        count != 1       ? "one run at a time"
                        : !job->question ? "no --question was given"
                                         : "no --context was given",
                        answer_help.usage);
    char *path = (char *)(uintptr_t)job->context_path;
    text_source source = {.command = "answer", .paths = &path, .files = 1, .whole = true};
    int code = open_context("answer", (int)job->threads, job->isa, &job->context);
    if (code == EXIT_OK)
        code = texts_next(&source);
    if (code == EXIT_OK)
        code = text_run_open("answer", job->context, words[0], &job->run);
    if (code == EXIT_OK && job->run.not_best)
        tell("shoal answer: %s: it has no %s; these are the weights of step %" PRId64
             ", %s",
             words[0], TRAIN_BEST, job->run.step, TRAIN_CHECKPOINT);
    if (code == EXIT_OK && job->run.glue)
        code = complain(EXIT_BAD_INPUT, "answer",
                        "%s: was trained on %s; shoal train squad makes models that "
                        "answer",
                        words[0], job->run.glue->name);
    if (code == EXIT_OK)
        code = answer(job, source.count ? source.texts[0] : "");
    texts_close(&source);
    sh_text_batch_free(&job->batch);
    sh_text_set_free(&job->windows);
    text_run_close(&job->run);
    shoal_context_destroy(job->context);
    return code;
}

int answer_command(int count, char **arguments) {
    static answer_job job = {.best = {.score = -INFINITY}};
    const int ended = take_options(&answer_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    return run(&job, count - optind, arguments + optind);
}

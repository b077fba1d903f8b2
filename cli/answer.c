/* shoal answer: a question's answer in a context, by a model of shoal train squad. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <shoal_train.h>

#include "command.h"
#include "texts.h"

typedef struct {
    const char *question, *context_path, *attention, *isa;
    int64_t threads;
    bool json;
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

static int report(const answer_job *job, const shoal_answer *answer) {
    if (job->json)
        return print_json(
            json_pack("{s:o, s:o, s:I, s:I, s:I}", "answer", json_text(answer->text),
                      "score", json_number(answer->score), "begin",
                      (json_int_t)answer->begin, "end", (json_int_t)answer->end,
                      "windows", (json_int_t)answer->windows));
    printf("%s\n", answer->text);
    return EXIT_OK;
}

static int answer(const answer_job *job, shoal_context *context, const char *path,
                  const char *text) {
    shoal_attention kind;
    shoal_finetuned *model = NULL;
    shoal_answer found;
    shoal_status status =
        job->attention ? shoal_attention_parse(context, job->attention, &kind) : SHOAL_OK;
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_USAGE, "answer", context);
    status = shoal_finetuned_open(context, path, job->attention ? &kind : NULL, &model);
    if (status == SHOAL_OK) {
        const shoal_finetuned_info info = shoal_finetuned_describe(model);
        if (info.not_best)
            tell("shoal answer: %s: it has no %s; these are the weights of step %" PRId64
                 ", %s",
                 path, SHOAL_RUN_BEST, info.step, SHOAL_RUN_CHECKPOINT);
        status = shoal_finetuned_answer(model, job->question, text, &found);
    }
    const int code = status == SHOAL_OK
                         ? report(job, &found)
                         : complain_status(status, EXIT_BAD_INPUT, "answer", context);
    shoal_finetuned_close(model);
    return code;
}

int answer_command(int count, char **arguments) {
    static answer_job job;
    shoal_context *context = NULL;
    const int ended = take_options(&answer_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    if (count - optind != 1 || !job.question || !job.context_path)
        return complain(EXIT_USAGE, "answer", "%s; usage: shoal %s",
                        count - optind != 1 ? "one run at a time"
                        : !job.question     ? "no --question was given"
                                            : "no --context was given",
                        answer_help.usage);
    char *path = (char *)(uintptr_t)job.context_path;
    text_source source = {.command = "answer", .paths = &path, .files = 1, .whole = true};
    int code = open_context("answer", (int)job.threads, job.isa, &context);
    if (code == EXIT_OK)
        code = texts_next(&source);
    if (code == EXIT_OK)
        code =
            answer(&job, context, arguments[optind], source.count ? source.texts[0] : "");
    texts_close(&source);
    shoal_context_destroy(context);
    return code;
}

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
     {"context", 'c', "FILE", "text that contains the answer; - is standard input",
      SETS_TEXT(answer_job, context_path)},
     {"attention", 'a', "KIND",
      "attention kind, as in shoal kinds (default: the one used in\n"
      "training)",
      SETS_TEXT(answer_job, attention)},
     THREADS_ROW(answer_job),
     ISA_ROW(answer_job),
     {"json", 0, NULL, "print one JSON object", SETS_FLAG(answer_job, json)},
     HELP_ROW,
     {0}};

const command_help answer_help = {
    "answer",
    "answer RUN --question TEXT --context FILE [options]",
    "Prints the part of the context that answers the question, using the best weights "
    "of\n"
    "a run of shoal train squad. A context longer than the model's maximum is processed\n"
    "in overlapping windows.\n",
    rows,
    "The answer is the most probable span of at most max_answer tokens (30 by default).\n"
    "Its score, the sum of two logits, is only comparable with scores of the same run.\n"
    "begin and end in the JSON object are byte offsets in the context (UTF-8).\n",
    "DIR"};

int answer_command(int count, char **arguments) {
    static answer_job job;
    static shoal_finetuned *model;
    shoal_attention kind;
    shoal_answer found;
    const int ended = take_options(&answer_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    if (count - optind != 1 || !job.question || !job.context_path)
        die(EXIT_USAGE, "%s; usage: shoal %s",
            count - optind != 1 ? "give one run"
            : !job.question     ? "--question is missing"
                                : "--context is missing",
            answer_help.usage);
    char *path = (char *)(uintptr_t)job.context_path;
    text_source source = {.paths = &path, .files = 1, .whole = true};
    shoal_context *context = begin_context(job.threads, job.isa);
    texts_next(&source);
    if (job.attention)
        demand(shoal_attention_parse(context, job.attention, &kind), EXIT_USAGE);
    demand(shoal_finetuned_open(context, arguments[optind], job.attention ? &kind : NULL,
                                &model),
           EXIT_BAD_INPUT);
    const shoal_finetuned_info info = *shoal_finetuned_describe(model);
    if (info.not_best)
        tell("shoal answer: %s: there is no %s; using the weights of step %" PRId64
             ", %s",
             arguments[optind], SHOAL_RUN_BEST, info.step, SHOAL_RUN_CHECKPOINT);
    demand(shoal_finetuned_answer(model, job.question,
                                  source.count ? source.texts[0] : "", &found),
           EXIT_BAD_INPUT);
    texts_close(&source);
    if (job.json)
        return print_json(json_pack("{s:o, s:o, s:I, s:I, s:I}", "answer",
                                    json_text(found.text), "score",
                                    json_number(found.score), "begin",
                                    (json_int_t)found.begin, "end", (json_int_t)found.end,
                                    "windows", (json_int_t)found.windows));
    printf("%s\n", found.text);
    return EXIT_OK;
}

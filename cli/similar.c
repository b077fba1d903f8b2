/* shoal similar: the texts of a file that are nearest to one. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "texts.h"

enum { MOST_FOUND = 10000 };

/* A text that may be among the nearest. */
typedef struct {
    double score;
    int64_t line;
    char *text;
} found_text;

typedef struct {
    text_model model;
    text_source source;
    char *path; /* of the texts; only read */
    const char *question_prefix;
    int64_t most;
    bool json;
    float *question;   /* [size] */
    float *vectors;    /* [TEXT_BLOCK][size] */
    found_text *found; /* [most], best first */
    int64_t count;
} similar_job;

static const option_row rows[] =
    {{"in", 'i', "FILE", "texts to look in, one per line; - is standard input",
      SETS_TEXT(similar_job, path)},
     {"count", 'n', "N", "how many of the nearest, 1 to 10000 (default: 10)",
      SETS_INTEGER(similar_job, most, 1, MOST_FOUND)},
     {"question-prefix", 0, "TEXT",
      "put before the question, where that is another than the texts'\n"
      "(default: that of --prefix)",
      SETS_TEXT(similar_job, question_prefix)},
     TEXT_MODEL_ROWS(similar_job),
     {"json", 0, NULL, "a JSON object instead of lines", SETS_FLAG(similar_job, json)},
     HELP_ROW,
     {0}};

const command_help similar_help =
    {"similar",
     "similar TEXT --in FILE --model DIR [options]",
     "The texts of FILE that are nearest to TEXT by the cosine of their vectors: score,\n"
     "line and text, the nearest first.\n",
     rows,
     NULL,
     "TEXT"};

/* ---- The nearest ------------------------------------------------------------------- */

static double cosine(int64_t size, const float *a, const float *b) {
    double both = 0, left = 0, right = 0;
    for (int64_t i = 0; i < size; i++) {
        both += (double)a[i] * b[i];
        left += (double)a[i] * a[i];
        right += (double)b[i] * b[i];
    }
    return left > 0 && right > 0 ? both / sqrt(left * right) : 0;
}

/* Among equals the earlier text is the nearer. */
static void keep(similar_job *job, double score, int64_t line, const char *text) {
    int64_t at = job->count;
    while (at > 0 && score > job->found[at - 1].score)
        at--;
    if (at == job->most)
        return;
    char *copy = strdup(text);
    if (!copy)
        die_of_memory();
    if (job->count == job->most)
        free(job->found[--job->count].text);
    memmove(&job->found[at + 1], &job->found[at],
            (size_t)(job->count - at) * sizeof *job->found);
    job->found[at] = (found_text){score, line, copy};
    job->count++;
}

/* ---- The command ------------------------------------------------------------------- */

static void embed_question(similar_job *job, const char *text) {
    const char *prefix = job->question_prefix ? job->question_prefix : job->source.prefix;
    char *whole = NULL;
    if (asprintf(&whole, "%s%s", prefix ? prefix : "", text) < 0)
        die_of_memory();
    const char *const texts[] = {whole};
    demand(shoal_text_encoder_embed(job->model.encoder, 1, texts, NULL, job->question),
           EXIT_BAD_INPUT);
    free(whole);
}

/* Controls are spelled: they would break the line, or talk to the terminal. */
static void print_line(const found_text *one) {
    printf("%.4f\t%" PRId64 "\t", one->score, one->line);
    for (const char *at = one->text; *at; at++) {
        const unsigned char c = (unsigned char)*at, next = (unsigned char)at[1];
        const bool pair = c == 0xc2 && next >= 0x80 && next < 0xa0; /* U+0080 and on */
        if (c == '\n' || c == '\t')
            printf("\\%c", c == '\n' ? 'n' : 't');
        else if (c < ' ' || c == 0x7f || pair)
            printf("\\x%02x", pair ? next : c);
        else
            putchar(c);
        at += pair;
    }
    putchar('\n');
}

static int print_found(const similar_job *job, const char *question) {
    json_t *list = job->json ? json_array() : NULL;
    for (int64_t i = 0; i < job->count; i++) {
        const found_text *one = &job->found[i];
        if (job->json)
            json_array_append_new(list, json_pack("{s:f, s:I, s:o}", "score", one->score,
                                                  "line", (json_int_t)one->line, "text",
                                                  json_text(one->text)));
        else
            print_line(one);
    }
    return job->json ? print_json(json_pack("{s:o, s:o}", "question", json_text(question),
                                            "nearest", list))
                     : EXIT_OK;
}

int similar_command(int count, char **arguments) {
    static similar_job job = {.source = {.paths = &job.path, .files = 1}, .most = 10};
    job.model.folder = getenv("SHOAL_MODEL");
    const int ended = take_options(&similar_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    if (count - optind != 1)
        die(EXIT_USAGE, "one text should be given; usage: shoal %s", similar_help.usage);
    if (!job.path)
        die(EXIT_USAGE, "no texts to look in; give --in FILE");
    open_text_model(&job.model);
    job.question = reserve((size_t)job.model.size, sizeof(float));
    job.vectors = reserve(TEXT_BLOCK * (size_t)job.model.size, sizeof(float));
    job.found = reserve((size_t)(job.most + 1), sizeof *job.found);
    embed_question(&job, arguments[optind]);
    progress_begin(1);
    progress_say("the first texts");
    const text_source *source = &job.source;
    const size_t prefix = source->prefix ? strlen(source->prefix) : 0;
    for (texts_next(&job.source); source->count > 0; texts_next(&job.source)) {
        embed_block(&job.model, source, job.vectors);
        for (int64_t i = 0; i < source->count; i++)
            keep(&job,
                 cosine(job.model.size, job.question, job.vectors + i * job.model.size),
                 source->places[i].line, source->texts[i] + prefix);
        progress_say("%" PRId64 " texts", source->first + source->count);
    }
    progress_end();
    return print_found(&job, arguments[optind]);
}

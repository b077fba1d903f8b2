/* shoal similar: the texts of a file that are nearest to one. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
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
static int keep(similar_job *job, double score, int64_t line, const char *text) {
    int64_t at = job->count;
    while (at > 0 && score > job->found[at - 1].score)
        at--;
    if (at == job->most)
        return EXIT_OK;
    char *copy = strdup(text);
    if (!copy)
        return complain(EXIT_RESOURCES, "similar", "out of memory");
    if (job->count == job->most)
        free(job->found[--job->count].text);
    memmove(&job->found[at + 1], &job->found[at],
            (size_t)(job->count - at) * sizeof *job->found);
    job->found[at] = (found_text){score, line, copy};
    job->count++;
    return EXIT_OK;
}

static int look_in_block(similar_job *job) {
    const text_source *source = &job->source;
    const size_t prefix = source->prefix ? strlen(source->prefix) : 0;
    int code = embed_block("similar", &job->model, source, job->vectors);
    for (int64_t i = 0; i < source->count && code == EXIT_OK; i++)
        code = keep(job,
                    cosine(job->model.size, job->question,
                           job->vectors + i * job->model.size),
                    source->places[i].line, source->texts[i] + prefix);
    return code;
}

static int look_everywhere(similar_job *job) {
    int code = texts_next(&job->source);
    while (code == EXIT_OK && job->source.count > 0) {
        code = look_in_block(job);
        progress_say("%" PRId64 " texts", job->source.first + job->source.count);
        if (code == EXIT_OK)
            code = texts_next(&job->source);
    }
    return code;
}

/* ---- The command ------------------------------------------------------------------- */

static int embed_question(similar_job *job, const char *text) {
    const char *prefix = job->question_prefix ? job->question_prefix : job->source.prefix;
    char *whole = NULL;
    if (asprintf(&whole, "%s%s", prefix ? prefix : "", text) < 0)
        return complain(EXIT_RESOURCES, "similar", "out of memory");
    const char *const texts[] = {whole};
    const shoal_status status =
        shoal_text_encoder_embed(job->model.encoder, 1, texts, NULL, job->question);
    free(whole);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "similar", job->model.context);
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

static int run(similar_job *job, const char *question) {
    int code = open_text_model("similar", &job->model);
    if (code != EXIT_OK)
        return code;
    const size_t vector = (size_t)job->model.size * sizeof(float);
    job->question = malloc(vector);
    job->vectors = malloc(TEXT_BLOCK * vector);
    job->found = malloc((size_t)(job->most + 1) * sizeof *job->found);
    if (!job->question || !job->vectors || !job->found)
        return complain(EXIT_RESOURCES, "similar", "out of memory");
    code = embed_question(job, question);
    progress_begin(1);
    progress_say("the first texts");
    if (code == EXIT_OK)
        code = look_everywhere(job);
    progress_end();
    return code == EXIT_OK ? print_found(job, question) : code;
}

int similar_command(int count, char **arguments) {
    similar_job job = {.model = {.folder = getenv("SHOAL_MODEL")},
                       .source = {.command = "similar"},
                       .most = 10};
    int code = take_options(&similar_help, count, arguments, &job);
    if (code < 0 && count - optind != 1)
        code = complain(EXIT_USAGE, "similar",
                        "one text should be given; usage: shoal %s", similar_help.usage);
    else if (code < 0 && !job.path)
        code = complain(EXIT_USAGE, "similar", "no texts to look in; give --in FILE");
    job.source.paths = &job.path;
    job.source.files = 1;
    if (code < 0)
        code = run(&job, arguments[optind]);
    texts_close(&job.source);
    close_text_model(&job.model);
    for (int64_t i = 0; i < job.count; i++)
        free(job.found[i].text);
    free(job.question);
    free(job.vectors);
    free(job.found);
    return code;
}

/* shoal similar: the texts of a file that are most similar to given texts. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "texts.h"

enum { MOST_FOUND = 10000 };

/* A candidate among the nearest texts. */
typedef struct {
    double score;
    int64_t line;
    char *text;
} found_text;

typedef struct {
    const char *text;
    float *vector;     /* [size] */
    found_text *found; /* [most + 1], best first */
    int64_t count;
} question;

typedef struct {
    text_model model;
    text_source source;
    char *path; /* of the texts; only read */
    const char *question_prefix, *vectors_path;
    int64_t most;
    bool json;
    question *questions; /* [asked] */
    int asked;
} similar_job;

static const option_row rows[] =
    {{"in", 'i', "FILE", "texts to search, one per line; - is standard input",
      SETS_TEXT(similar_job, path)},
     {"vectors", 0, "FILE",
      "vectors of these texts, written by shoal embed -o with the same\n"
      "options, so that the texts are not embedded again; without --in\n"
      "only line numbers are printed",
      SETS_TEXT(similar_job, vectors_path)},
     {"count", 'n', "N", "number of texts to print, 1 to 10000 (default: 10)",
      SETS_INTEGER(similar_job, most, 1, MOST_FOUND)},
     {"question-prefix", 0, "TEXT",
      "prefix of the question, if it differs from that of the texts\n"
      "(default: that of --prefix)",
      SETS_TEXT(similar_job, question_prefix)},
     TEXT_MODEL_ROWS(similar_job),
     {"json", 0, NULL, "print a JSON object instead of lines",
      SETS_FLAG(similar_job, json)},
     HELP_ROW,
     {0}};

const command_help similar_help =
    {"similar",
     "similar TEXT... --in FILE --model DIR [options]",
     "Prints the texts of FILE whose vectors have the largest cosine with that of TEXT:\n"
     "score, line number and text, best first. With several TEXT arguments, which are\n"
     "searched for together, each line begins with the number of its TEXT.\n",
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

/* On ties the earlier text is first. */
static void keep(question *asked, int64_t most, double score, int64_t line,
                 const char *text) {
    int64_t at = asked->count;
    while (at > 0 && score > asked->found[at - 1].score)
        at--;
    if (at == most)
        return;
    char *copy = strdup(text);
    if (!copy)
        die_of_memory();
    if (asked->count == most)
        free(asked->found[--asked->count].text);
    memmove(&asked->found[at + 1], &asked->found[at],
            (size_t)(asked->count - at) * sizeof *asked->found);
    asked->found[at] = (found_text){score, line, copy};
    asked->count++;
}

/* Compares one text with all questions. */
static void compare(similar_job *job, const float *vector, int64_t line,
                    const char *text) {
    for (int i = 0; i < job->asked; i++)
        keep(&job->questions[i], job->most,
             cosine(job->model.size, job->questions[i].vector, vector), line, text);
}

static void look_everywhere(similar_job *job) {
    const int64_t size = job->model.size;
    text_source *source = &job->source;
    shoal_array known = {0}; /* [texts][size] */
    const size_t prefix = source->prefix ? strlen(source->prefix) : 0;
    if (job->vectors_path) {
        demand(shoal_array_read(job->model.context, job->vectors_path, &known),
               EXIT_BAD_INPUT);
        if (known.dtype != SHOAL_DTYPE_FLOAT32 || known.dimensions != 2 ||
            known.shape[1] != size)
            die(EXIT_BAD_INPUT,
                "%s must be float32 [texts, %" PRId64 "], as shoal embed writes it with "
                "this model",
                job->vectors_path, size);
    }
    const float *vectors = known.data;
    for (int64_t i = 0; i < known.shape[0] && !job->path; i++)
        compare(job, vectors + i * size, i + 1, "");
    float *block = reserve(known.data ? 1 : TEXT_BLOCK * (size_t)size, sizeof(float));
    while (job->path) {
        texts_next(source);
        if (source->count == 0 ||
            (known.data && source->first + source->count > known.shape[0]))
            break;
        if (known.data)
            vectors = (const float *)known.data + source->first * size;
        else
            embed_block(&job->model, source, block);
        for (int64_t i = 0; i < source->count; i++)
            compare(job, (known.data ? vectors : block) + i * size,
                    source->places[i].line, source->texts[i] + prefix);
        progress_say("%" PRId64 " texts", source->first + source->count);
    }
    if (known.data && job->path && source->first + source->count != known.shape[0])
        die(EXIT_BAD_INPUT,
            "%s has %" PRId64
            " vectors, and %s %s texts: they must be made from the same file",
            job->vectors_path, known.shape[0], job->path,
            source->count ? "more" : "fewer");
    free(block);
    shoal_array_release(&known);
}

/* ---- The command ------------------------------------------------------------------- */

/* Prints control characters as escapes, so that they neither break the line nor reach
   the terminal. */
static void print_line(const found_text *one) {
    printf("%.4f\t%" PRId64 "\t", one->score, one->line);
    for (const char *at = one->text; *at; at++) {
        const unsigned char c = (unsigned char)*at, next = (unsigned char)at[1];
        const bool pair = c == 0xc2 && next >= 0x80 && next < 0xa0; /* U+0080 to U+009F */
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

static int print_found(const similar_job *job) {
    json_t *all = json_array();
    for (int i = 0; i < job->asked; i++) {
        const question *asked = &job->questions[i];
        json_t *list = json_array();
        for (int64_t k = 0; k < asked->count; k++) {
            const found_text *one = &asked->found[k];
            if (job->json)
                json_array_append_new(list,
                                      json_pack("{s:f, s:I, s:o}", "score", one->score,
                                                "line", (json_int_t)one->line, "text",
                                                json_text(one->text)));
            else if (job->asked > 1)
                printf("%d\t", i + 1);
            if (!job->json)
                print_line(one);
        }
        json_array_append_new(all, json_pack("{s:o, s:o}", "question",
                                             json_text(asked->text), "nearest", list));
    }
    json_t *shown = job->asked == 1 ? json_incref(json_array_get(all, 0))
                                    : json_pack("{s:O}", "questions", all);
    json_decref(all);
    if (job->json)
        return print_json(shown);
    json_decref(shown);
    return EXIT_OK;
}

int similar_command(int count, char **arguments) {
    static similar_job job = {.source = {.paths = &job.path, .files = 1}, .most = 10};
    job.model.folder = default_model("SHOAL_TEXT_MODEL");
    begin_command(&similar_help, count, arguments, &job);
    job.asked = count - optind;
    if (job.asked == 0)
        die_of_usage("no text was given");
    if (!job.path && !job.vectors_path)
        die(EXIT_USAGE, "no texts to search; give --in FILE");
    open_text_model(&job.model);
    const char *prefix = job.question_prefix ? job.question_prefix : job.source.prefix;
    job.questions = reserve_zeros((size_t)job.asked, sizeof *job.questions);
    for (int i = 0; i < job.asked; i++) {
        question *asked = &job.questions[i];
        char *whole = NULL;
        asked->text = arguments[optind + i];
        asked->vector = reserve((size_t)job.model.size, sizeof(float));
        asked->found = reserve((size_t)(job.most + 1), sizeof *asked->found);
        if (asprintf(&whole, "%s%s", prefix ? prefix : "", asked->text) < 0)
            die_of_memory();
        const char *const texts[] = {whole};
        demand(shoal_text_encoder_embed(job.model.encoder, 1, texts, NULL, asked->vector),
               EXIT_BAD_INPUT);
        free(whole);
    }
    progress_begin(1);
    progress_say("the first texts");
    look_everywhere(&job);
    progress_end();
    return print_found(&job);
}

/* SQuAD: its files, windows over contexts, answers and their scores. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "train/tasks/text.h"

/* ---- Windows ---------------------------------------------------------------------- */

/* Adds a window: tokens before the context, `count` of its `inside` tokens from `first`
   on, and the tokens after it. The targets are the rows of the first and last token
   that overlap bytes answer[0] .. answer[1] - 1; 0, 0 if the window does not contain
   all of them. */
static shoal_status add_window(shoal_context *context, const shoal_tokens *tokens,
                               int64_t before, int64_t inside, int64_t first,
                               int64_t count, const int64_t answer[2], int64_t number,
                               text_set *windows) {
    const int64_t rows = tokens->count - inside + count;
    pool memory = {.context = context};
    int32_t *ids = sh_pool_take(&memory, 4 * rows, sizeof *ids), *types = ids + rows;
    int32_t(*bytes)[2] = (int32_t(*)[2])(types + rows), wanted[2] = {0};
    int64_t top = -1, last = -1, begin = -1, end = -1;
    if (!ids)
        return SHOAL_NO_MEMORY;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t from = r < before           ? r
                             : r < before + count ? first + r
                                                  : inside - count + r;
        const bool is_context = tokens->texts[from] == 1;
        ids[r] = tokens->ids[from];
        types[r] = tokens->types[from];
        bytes[r][0] = is_context ? (int32_t)tokens->spans[2 * from] : -1;
        bytes[r][1] = is_context ? (int32_t)tokens->spans[2 * from + 1] : -1;
        if (!answer || bytes[r][0] < 0)
            continue;
        begin = begin < 0 ? bytes[r][0] : begin;
        end = bytes[r][1];
        if (bytes[r][1] > answer[0] && bytes[r][0] < answer[1]) {
            top = top < 0 ? r : top;
            last = r;
        }
    }
    if (top >= 0 && begin <= answer[0] && end >= answer[1]) {
        wanted[0] = (int32_t)top;
        wanted[1] = (int32_t)last;
    }
    const shoal_status status = sh_text_set_add(context, windows, rows, ids, types,
                                                (const int32_t(*)[2])bytes, 0, wanted,
                                                number);
    sh_pool_free(&memory);
    return status;
}

/* SHOAL_OK with a text means that the question cannot be used. */
typedef struct {
    char text[200];
} squad_reason;

static shoal_status make_windows(const text_reader *reader,
                                 const squad_question *question, int64_t number,
                                 int64_t stride, const int64_t answer[2],
                                 text_set *windows, squad_reason *reason) {
    const shoal_text text = {.size = sizeof(shoal_text),
                             .text = question->text,
                             .bytes = SHOAL_TERMINATED,
                             .pair = question->context,
                             .pair_bytes = SHOAL_TERMINATED};
    shoal_tokens tokens;
    const shoal_status status = shoal_tokenizer_encode(reader->tokenizer, &text, &tokens);
    if (status == SHOAL_NO_MEMORY)
        return status;
    snprintf(reason->text, sizeof reason->text, "%s",
             status == SHOAL_OK ? "" : shoal_context_message(reader->context));
    if (status != SHOAL_OK)
        return SHOAL_OK;
    int64_t before = 0, inside = 0; /* special tokens count as before or after */
    while (before < tokens.count && tokens.texts[before] != 1)
        before++;
    while (before + inside < tokens.count && tokens.texts[before + inside] == 1)
        inside++;
    const int64_t room = reader->max_length - (tokens.count - inside);
    if (room < 1) {
        snprintf(reason->text, sizeof reason->text,
                 "the question's %" PRId64
                 " tokens leave no room for the context in windows of %" PRId64
                 "; increase max_length",
                 before, reader->max_length);
        return SHOAL_OK;
    }
    if (stride > room) /* no gap between two windows */
        stride = room;
    for (int64_t first = 0;; first += stride) {
        const int64_t left = inside - first, count = left < room ? left : room;
        TRY(add_window(reader->context, &tokens, before, inside, first, count, answer,
                       number, windows));
        if (left <= room)
            return SHOAL_OK;
    }
}

shoal_status sh_squad_windows(const text_reader *reader, const squad_question *question,
                              int64_t number, int64_t stride, const int64_t answer[2],
                              text_set *windows) {
    squad_reason reason;
    TRY(make_windows(reader, question, number, stride, answer, windows, &reason));
    return reason.text[0] ? sh_fail(reader->context, SHOAL_INVALID, "question %s: %s",
                                    question->id, reason.text)
                          : SHOAL_OK;
}

enum { LARGEST_SQUAD = 1 << 30 };

/* ---- Files ------------------------------------------------------------------------ */

/* Byte range of the first answer, which must be at the character position given by the
   file. */
static bool look_up(const squad_question *question, int64_t answer[2]) {
    const json_t *first = json_array_get(question->answers, 0);
    const char *text = json_string_value(json_object_get(first, "text"));
    const json_t *start = json_object_get(first, "answer_start");
    const char *context = question->context;
    int64_t at = json_is_integer(start) ? (int64_t)json_integer_value(start) : -1;
    int64_t byte = 0;
    for (; at > 0 && context[byte]; at--)
        do
            byte++;
        while (((unsigned char)context[byte] & 0xc0) == 0x80);
    if (!text || at != 0 || strncmp(context + byte, text, strlen(text)) != 0)
        return false;
    answer[0] = byte;
    answer[1] = byte + (int64_t)strlen(text);
    return true;
}

typedef struct {
    const text_reader *reader;
    const char *path;
    squad_set *set;
    int64_t room, stride;
    bool training;
} squad_file;

static shoal_status malformed(const squad_file *f, const char *what) {
    return sh_fail(f->reader->context, SHOAL_BAD_FILE,
                   "%s: not a SQuAD file: %s (after question %" PRId64 ")", f->path, what,
                   f->set->count);
}

static shoal_status take_question(squad_file *f, const json_t *one, const char *context) {
    squad_set *set = f->set;
    squad_question question = {json_string_value(json_object_get(one, "id")),
                               json_string_value(json_object_get(one, "question")),
                               context, json_object_get(one, "answers")};
    if (!question.id || !question.text || !json_is_array(question.answers))
        return malformed(f, "a question has no id, question or answers");
    for (size_t i = 0; i < json_array_size(question.answers); i++)
        if (!json_string_value(
                json_object_get(json_array_get(question.answers, i), "text")))
            return malformed(f, "an answer has no text");
    if (json_is_true(json_object_get(one, "is_impossible"))) /* SQuAD 2 */
        question.answers = NULL;
    if (set->count == f->room)
        TRY(sh_pool_grow(&set->windows.memory, &set->questions, &f->room,
                         2 * f->room + 256, sizeof *set->questions));
    set->questions[set->count++] = question;
    return SHOAL_OK;
}

static shoal_status take_articles(squad_file *f) {
    const json_t *articles = json_object_get(f->set->root, "data"), *article, *paragraph,
                 *one;
    size_t i, j, k;
    if (!json_is_array(articles))
        return malformed(f, "it has no data");
    json_array_foreach(articles, i, article) {
        const json_t *paragraphs = json_object_get(article, "paragraphs");
        if (!json_is_array(paragraphs))
            return malformed(f, "an article has no paragraphs");
        json_array_foreach(paragraphs, j, paragraph) {
            const char *context =
                json_string_value(json_object_get(paragraph, "context"));
            const json_t *questions = json_object_get(paragraph, "qas");
            if (!context || !json_is_array(questions))
                return malformed(f, "a paragraph has no context or no qas");
            json_array_foreach(questions, k, one) TRY(take_question(f, one, context));
        }
    }
    return f->set->count == 0 ? malformed(f, "it has no questions") : SHOAL_OK;
}

static shoal_status use_questions(squad_file *f) {
    const text_reader *reader = f->reader;
    squad_set *set = f->set;
    const int64_t all = set->count;
    int64_t left_out = 0;
    char first[300] = ""; /* the first of these, and the reason */
    set->count = 0;
    for (int64_t i = 0; i < all; i++) {
        const squad_question question = set->questions[i];
        squad_reason reason;
        int64_t answer[2];
        if (json_array_size(question.answers) == 0)
            strcpy(reason.text, "it has no answer; only SQuAD 1.1 is supported, in which "
                                "every question has one");
        else if (f->training && !look_up(&question, answer))
            strcpy(reason.text, "its answer is not at answer_start");
        else /* its index in the set */
            TRY(make_windows(reader, &question, set->count, f->stride,
                             f->training ? answer : NULL, &set->windows, &reason));
        if (!reason.text[0]) {
            set->questions[set->count++] = question;
            continue;
        }
        if (!reader->skip_bad)
            return sh_fail(reader->context, SHOAL_BAD_FILE,
                           "%s: question %s: %s; --skip-bad skips such questions",
                           f->path, question.id, reason.text);
        if (left_out++ == 0)
            snprintf(first, sizeof first, "question %.64s: %s", question.id, reason.text);
    }
    if (left_out)
        sh_warn(reader->callbacks, "%s: %" PRId64 " %s skipped; the first: %s", f->path,
                left_out, left_out == 1 ? "question was" : "questions were", first);
    if (set->count == 0)
        return sh_fail(reader->context, SHOAL_BAD_FILE,
                       "%s: none of its questions can be used", f->path);
    return SHOAL_OK;
}

shoal_status sh_squad_read(const text_reader *reader, const char *path, int64_t stride,
                           bool training, squad_set *set) {
    squad_file f = {reader, path, set, 0, stride, training};
    *set = (squad_set){.windows.memory = {.context = reader->context}};
    TRY(sh_json_object_read(reader->context, path, LARGEST_SQUAD, &set->root));
    TRY(take_articles(&f));
    return use_questions(&f);
}

void sh_squad_free(squad_set *set) {
    json_decref(set->root);
    sh_text_set_free(&set->windows);
    *set = (squad_set){0};
}

/* ---- Answers ---------------------------------------------------------------------- */

void sh_squad_look(const text_set *windows, int64_t at, const float *logits,
                   int64_t max_answer, squad_answer *best) {
    const int64_t begin = windows->offsets[at], rows = windows->offsets[at + 1] - begin;
    const int32_t(*bytes)[2] = (const int32_t(*)[2])(windows->bytes + begin);
    for (int64_t first = 0; first < rows; first++) {
        if (bytes[first][0] < 0)
            continue;
        for (int64_t last = first; last < rows && last < first + max_answer; last++) {
            if (bytes[last][0] < 0)
                break;
            const double score = (double)logits[2 * first] + (double)logits[2 * last + 1];
            if (score > best->score)
                *best = (squad_answer){score, bytes[first][0], bytes[last][1]};
        }
    }
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

void sh_squad_trim(const squad_question *question, squad_answer *answer) {
    while (answer->begin < answer->end && is_space(question->context[answer->begin]))
        answer->begin++;
    while (answer->begin < answer->end && is_space(question->context[answer->end - 1]))
        answer->end--;
}

char *sh_squad_text(shoal_context *context, const squad_question *question,
                    const squad_answer *answer) {
    squad_answer trimmed = *answer;
    if (!(answer->score > -INFINITY) || answer->end <= answer->begin)
        return sh_copy_text(context, "");
    sh_squad_trim(question, &trimmed);
    return sh_print_text(context, "%.*s", trimmed.end - trimmed.begin,
                         question->context + trimmed.begin);
}

bool sh_squad_scores(shoal_context *context, const squad_set *set,
                     const squad_answer *answers, double *exact, double *f1) {
    bool good = true;
    *exact = *f1 = 0;
    for (int64_t i = 0; i < set->count && good; i++) {
        const squad_question *question = &set->questions[i];
        char *text = sh_squad_text(context, question, &answers[i]);
        char *normal = text ? sh_squad_normalise(context, text) : NULL;
        double best[2] = {0}; /* maximum over the reference answers */
        good = normal != NULL;
        for (size_t k = 0; k < json_array_size(question->answers) && good; k++) {
            const json_t *one = json_array_get(question->answers, k);
            char *wanted = sh_squad_normalise(context, json_string_value(
                                                           json_object_get(one, "text")));
            good = wanted != NULL;
            if (good && strcmp(wanted, normal) == 0)
                best[0] = 1;
            if (good)
                best[1] = fmax(best[1], sh_squad_f1(normal, wanted));
            sh_free(wanted);
        }
        sh_free(normal);
        sh_free(text);
        *exact += best[0];
        *f1 += best[1];
    }
    *exact /= set->count > 0 ? (double)set->count : 1;
    *f1 /= set->count > 0 ? (double)set->count : 1;
    return good;
}

#include "speech/whisper/align.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"

/* ---- Words ---------------------------------------------------------------------- */

static const unsigned char *bytes_of(const tokens *t, int32_t id, size_t *size) {
    *size = t->begin[id + 1] - t->begin[id];
    return t->bytes + t->begin[id];
}

/* Text of tokens without the spaces around it, cut at the size; its length. */
static size_t stripped(const tokens *t, const int32_t *ids, int count, char *text,
                       size_t size) {
    char all[64];
    sh_tokens_decode(t, ids, count, all, sizeof all);
    const char *begin = all + strspn(all, " ");
    size_t length = strlen(begin);
    while (length > 0 && begin[length - 1] == ' ')
        length--;
    length = length < size ? length : size - 1;
    memcpy(text, begin, length);
    text[length] = 0;
    return length;
}

/* Tokens that are whole characters only together. */
static int character_end(const tokens *t, const int32_t *ids, int count, int first) {
    char text[64];
    for (int end = first + 1; end <= count; end++) {
        size_t length = 0;
        for (int i = first; i < end; i++) {
            size_t size;
            const unsigned char *bytes = bytes_of(t, ids[i], &size);
            size = size < sizeof text - length ? size : sizeof text - length;
            memcpy(text + length, bytes, size);
            length += size;
        }
        if (sh_utf8_unfinished(text, length) == 0 || length == sizeof text)
            return end;
    }
    return count;
}

static bool begins_with_space(const tokens *t, int32_t id) {
    size_t size;
    const unsigned char *bytes = bytes_of(t, id, &size);
    return size > 0 && bytes[0] == ' ';
}

int sh_words_split(const tokens *t, const int32_t *ids, int count, bool spaces,
                   aligned_word *words) {
    int made = 0;
    for (int first = 0, end; first < count; first = end) {
        end = character_end(t, ids, count, first);
        char text[64];
        const size_t length = stripped(t, ids + first, end - first, text, sizeof text);
        if (made == 0 || !spaces || begins_with_space(t, ids[first]) || length == 0 ||
            (length == 1 && ispunct((unsigned char)text[0])))
            words[made++] = (aligned_word){.first = first};
        words[made - 1].end = end;
    }
    return made;
}

bool sh_language_has_spaces(const char *code) {
    static const char *const without[] = {"zh", "ja", "th", "lo", "my", "yue"};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        if (strcmp(code, without[i]) == 0)
            return false;
    return true;
}

/* Whether a word is one of these marks, which are separated by spaces. */
static bool is_one_of(const tokens *t, const int32_t *ids, const aligned_word *word,
                      const char *marks) {
    char text[64];
    const size_t length =
        stripped(t, ids + word->first, word->end - word->first, text, sizeof text);
    for (const char *at = marks; length > 0 && *at; at += strspn(at, " ")) {
        const size_t mark = strcspn(at, " ");
        if (mark == length && memcmp(at, text, mark) == 0)
            return true;
        at += mark;
    }
    return false;
}

#define OPENING "\" ' \xe2\x80\x9c \xc2\xbf ( [ { -"
#define CLOSING                                                                          \
    "\" ' . \xe3\x80\x82 , \xef\xbc\x8c ! \xef\xbc\x81 ? \xef\xbc\x9f : \xef\xbc\x9a "   \
    "\xe2\x80\x9d ) ] } \xe3\x80\x81"
#define SENTENCE_END ". \xe3\x80\x82 ! \xef\xbc\x81 ? \xef\xbc\x9f"

int sh_words_merge(const tokens *t, const int32_t *ids, aligned_word *words, int count) {
    int made = 0, next = count - 1; /* the word after this one, opening marks aside */
    for (int i = count - 2; i >= 0; i--)
        if (begins_with_space(t, ids[words[i].first]) &&
            is_one_of(t, ids, &words[i], OPENING)) {
            words[next].first = words[i].first;
            words[i].end = words[i].first; /* nothing is left of it */
        } else {
            next = i;
        }
    for (int i = 0; i < count; i++) {
        if (words[i].first == words[i].end)
            continue;
        if (made > 0 && !begins_with_space(t, ids[words[i].first]) &&
            is_one_of(t, ids, &words[i], CLOSING))
            words[made - 1].end = words[i].end;
        else
            words[made++] = words[i];
    }
    return made;
}

/* ---- Warping -------------------------------------------------------------------- */

enum { BOTH, NEXT_ROW, NEXT_COLUMN }; /* what the path does on its way to a place */

void sh_warp(const float *scores, int64_t rows, int64_t columns, unsigned char *steps,
             double *sums, int32_t *first) {
    double *above = sums, *here = sums + columns + 1;
    for (int64_t column = 0; column <= columns; column++)
        above[column] = column == 0 ? 0 : -INFINITY;
    for (int64_t row = 0; row < rows; row++) {
        here[0] = -INFINITY;
        for (int64_t column = 0; column < columns; column++) {
            const double both = above[column], down = above[column + 1],
                         right = here[column];
            const int step = both > down && both > right   ? BOTH
                             : down > both && down > right ? NEXT_ROW
                                                           : NEXT_COLUMN;
            steps[row * columns + column] = (unsigned char)step;
            here[column + 1] = (double)scores[row * columns + column] +
                               (step == BOTH       ? both
                                : step == NEXT_ROW ? down
                                                   : right);
        }
        double *swapped = above;
        above = here;
        here = swapped;
    }
    for (int64_t row = rows - 1, column = columns - 1; row >= 0;) {
        const int step = row == 0      ? NEXT_COLUMN
                         : column == 0 ? NEXT_ROW
                                       : steps[row * columns + column];
        first[row] = (int32_t)column;
        if (row == 0 && column == 0)
            break;
        row -= step != NEXT_COLUMN;
        column -= step != NEXT_ROW;
    }
}

/* ---- Heads ---------------------------------------------------------------------- */

/* Layer and head, as published with the models; large stands for its second version,
   which the first cannot be told from. */
static const struct {
    int layers, heads;
    int32_t vocabulary; /* the smallest and */
    int32_t below;      /* beyond the largest */
    const char *pairs;
} published[] = {
    {4, 6, 0, 51865, "1 0, 2 0, 2 5, 3 0, 3 1, 3 2, 3 3, 3 4"},
    {4, 6, 51865, 51866, "2 2, 3 0, 3 2, 3 3, 3 4, 3 5"},
    {6, 8, 0, 51865, "3 3, 4 7, 5 1, 5 5, 5 7"},
    {6, 8, 51865, 51866, "3 1, 4 2, 4 3, 4 7, 5 1, 5 2, 5 4, 5 6"},
    {12, 12, 0, 51865,
     "6 6, 7 0, 7 3, 7 8, 8 2, 8 5, 8 7, 9 0, 9 4, 9 8, 9 10, 10 0, "
     "10 1, 10 2, 10 3, 10 6, 10 11, 11 2, 11 4"},
    {12, 12, 51865, 51866, "5 3, 5 9, 8 0, 8 4, 8 7, 8 8, 9 0, 9 7, 9 9, 10 5"},
    {24, 16, 0, 51865,
     "11 4, 14 1, 14 12, 14 14, 15 4, 16 0, 16 4, 16 9, 17 12, 17 14, "
     "18 7, 18 10, 18 15, 20 0, 20 3, 20 9, 20 14, 21 12"},
    {24, 16, 51865, 51866, "13 15, 15 4, 15 15, 16 1, 20 0, 23 4"},
    {32, 20, 51865, 51866,
     "10 12, 13 17, 16 11, 16 12, 16 13, 17 15, 17 16, 18 4, 18 11, "
     "18 19, 19 11, 21 2, 21 3, 22 3, 22 9, 22 12, 23 5, 23 7, 23 13, "
     "25 5, 26 1, 26 12, 27 15"},
    {32, 20, 51866, 51867,
     "7 0, 10 17, 12 18, 13 12, 16 1, 17 14, 19 11, 21 4, 24 1, 25 6"},
    {4, 20, 51866, 51867, "2 4, 2 11, 3 3, 3 6, 3 11, 3 14"},
};

int sh_alignment_heads(const whisper_sizes *sizes, decoder_head *heads) {
    int count = 0;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (sizes->text_layers == published[i].layers &&
            sizes->text_heads == published[i].heads &&
            sizes->vocabulary >= published[i].vocabulary &&
            sizes->vocabulary < published[i].below) {
            for (const char *at = published[i].pairs; at; at = strchr(at, ',')) {
                char *rest;
                at += *at == ',';
                const int32_t layer = (int32_t)strtol(at, &rest, 10);
                heads[count++] = (decoder_head){layer, (int32_t)strtol(rest, NULL, 10)};
            }
            return count;
        }
    for (int32_t layer = sizes->text_layers / 2; layer < sizes->text_layers; layer++)
        for (int32_t head = 0; head < sizes->text_heads; head++)
            heads[count++] = (decoder_head){layer, head};
    return count;
}

/* ---- Memory --------------------------------------------------------------------- */

enum { HEADS_AT_ONCE = 8, MEDIAN = 7, TEXT = 64 << 10 };

/* T text positions, A audio positions. */
struct aligner {
    shoal_context *context;
    decoder *network;
    size_t bytes;
    int64_t positions, columns; /* T, A */
    int head_count;
    decoder_head *heads;  /* [head_count] */
    float *weights;       /* [HEADS_AT_ONCE][T][A] */
    float *mean;          /* [T][A]: of the heads */
    unsigned char *steps; /* [T][A] */
    double *sums;         /* [2 (A + 1)] */
    int32_t *first;       /* [T] */
    int32_t *ids;         /* [T]: prompt, text and end */
    int *place;           /* [T]: where a token of the text stands in the task's ids */
    aligned_word *words;  /* [word_count], of T */
    int word_count;
    double *lengths; /* [T] */
    shoal_word *out; /* [T] */
    char *text;      /* [TEXT]: of the words of one segment */
};

static void place(void *argument, block_layout *block) {
    aligner *a = argument;
    const int64_t places = sh_mul_checked(a->positions, a->columns);
    const whisper_sizes *sizes = sh_decoder_sizes(a->network);
    sh_reserve(block, 1, sizeof *a);
    a->heads = sh_reserve(block, sh_mul_checked(sizes->text_layers, sizes->text_heads),
                          sizeof *a->heads);
    a->weights =
        sh_reserve(block, sh_mul_checked(HEADS_AT_ONCE, places), sizeof *a->weights);
    a->mean = sh_reserve(block, places, sizeof *a->mean);
    a->steps = sh_reserve(block, places, sizeof *a->steps);
    a->sums = sh_reserve(block, 2 * (a->columns + 1), sizeof *a->sums);
    a->first = sh_reserve(block, a->positions, sizeof *a->first);
    a->ids = sh_reserve(block, a->positions, sizeof *a->ids);
    a->place = sh_reserve(block, a->positions, sizeof *a->place);
    a->words = sh_reserve(block, a->positions, sizeof *a->words);
    a->lengths = sh_reserve(block, a->positions, sizeof *a->lengths);
    a->out = sh_reserve(block, a->positions, sizeof *a->out);
    a->text = sh_reserve(block, TEXT, sizeof *a->text);
}

shoal_status sh_aligner_create(shoal_context *context, decoder *network,
                               const whisper_file *file, aligner **made) {
    const whisper_sizes *sizes = sh_decoder_sizes(network);
    aligner sized = {.context = context,
                     .network = network,
                     .positions = sizes->text_positions,
                     .columns = sizes->audio_positions};
    aligner *a = sh_allocate_parts(context, place, &sized, &sized.bytes);
    *made = a;
    if (!a)
        return SHOAL_NO_MEMORY;
    *a = sized;
    a->head_count = file->alignment_count;
    if (a->head_count > 0)
        memcpy(a->heads, file->alignment, (size_t)a->head_count * sizeof *a->heads);
    else
        a->head_count = sh_alignment_heads(sizes, a->heads);
    return SHOAL_OK;
}

void sh_aligner_destroy(aligner *a) {
    if (a)
        sh_release(a->context, a);
}

size_t sh_aligner_memory(const aligner *a) {
    return a ? a->bytes : 0;
}

/* ---- What the heads look at ------------------------------------------------------ */

/* Weights of a head over the columns that are sound, compared with what the other tokens
   look at there: minus the mean over the tokens, over the standard deviation. */
typedef struct {
    aligner *a;
    int64_t rows, columns; /* columns: those that are sound */
    int heads;
    bool anew; /* the mean begins here */
} comparing;

static void compare_head(void *shared, int64_t head, int thread) {
    const comparing *c = shared;
    const int64_t stride = c->a->columns;
    float *weights = c->a->weights + head * c->rows * stride;
    (void)thread;
    for (int64_t row = 0; row < c->rows; row++) {
        double sum = 0;
        for (int64_t column = 0; column < c->columns; column++)
            sum += (double)weights[row * stride + column];
        for (int64_t column = 0; column < c->columns; column++)
            weights[row * stride + column] /= (float)(sum > 0 ? sum : 1);
    }
    for (int64_t column = 0; column < c->columns; column++) {
        double sum = 0, squares = 0;
        for (int64_t row = 0; row < c->rows; row++)
            sum += (double)weights[row * stride + column];
        const double mean = sum / (double)c->rows;
        for (int64_t row = 0; row < c->rows; row++) {
            const double off = (double)weights[row * stride + column] - mean;
            squares += off * off;
        }
        const double scale = squares > 0 ? 1 / sqrt(squares / (double)c->rows) : 0;
        for (int64_t row = 0; row < c->rows; row++) {
            float *at = &weights[row * stride + column];
            *at = (float)(((double)*at - mean) * scale);
        }
    }
}

static float median_at(const float *row, int64_t columns, int64_t column) {
    float sorted[MEDIAN];
    for (int i = 0; i < MEDIAN; i++) {
        int64_t at = column + i - MEDIAN / 2; /* reflected at the ends */
        at = at < 0 ? -at : at >= columns ? 2 * columns - 2 - at : at;
        const float value = row[at];
        int to = i;
        for (; to > 0 && sorted[to - 1] > value; to--)
            sorted[to] = sorted[to - 1];
        sorted[to] = value;
    }
    return sorted[MEDIAN / 2];
}

/* Adds the heads' medians to the mean of a row. */
static void add_row(void *shared, int64_t row, int thread) {
    const comparing *c = shared;
    const aligner *a = c->a;
    float *mean = a->mean + row * c->columns;
    (void)thread;
    for (int64_t column = 0; column < c->columns; column++) {
        float sum = c->anew ? 0 : mean[column];
        for (int64_t head = 0; head < c->heads; head++) {
            const float *from = a->weights + (head * c->rows + row) * a->columns;
            const float seen = c->columns > MEDIAN / 2
                                   ? median_at(from, c->columns, column)
                                   : from[column];
            sum += seen / (float)a->head_count;
        }
        mean[column] = sum;
    }
}

/* ---- One window ------------------------------------------------------------------ */

/* Start, language and task, <no timestamps>, the text and its end. Returns the tokens
   before <no timestamps>; *count: those of the text. */
static int write_ids(aligner *a, const align_task *task, int *count) {
    const tokens *t = task->tokens;
    int made = 0, kept = 0;
    a->ids[made++] = t->start;
    if (task->language >= 0) {
        a->ids[made++] = task->language;
        a->ids[made++] = task->translate ? t->translate : t->transcribe;
    }
    const int before = made;
    a->ids[made++] = t->no_timestamps;
    for (int i = 0; i < task->count && made < a->positions - 1; i++)
        if (task->ids[i] >= 0 && task->ids[i] < t->end_of_text) {
            a->place[kept++] = i;
            a->ids[made++] = task->ids[i];
        }
    a->ids[made] = t->end_of_text;
    *count = kept;
    return before;
}

/* The median length of a word, at most 0.7 s. */
static double usual_length(aligner *a, int count) {
    int made = 0;
    for (int i = 0; i < count; i++) {
        const double length = a->words[i].ends - a->words[i].begins;
        int to = made;
        if (length <= 0)
            continue;
        for (; to > 0 && a->lengths[to - 1] > length; to--)
            a->lengths[to] = a->lengths[to - 1];
        a->lengths[to] = length;
        made++;
    }
    if (made == 0)
        return 0;
    const double median = (a->lengths[(made - 1) / 2] + a->lengths[made / 2]) / 2;
    return median < 0.7 ? median : 0.7;
}

/* The path waits somewhere while nobody speaks: at the marks that end sentences and the
   words behind them, which are no longer than twice the usual length. */
static void shorten(aligner *a, const int32_t *ids, const tokens *t, int count) {
    const double most = 2 * usual_length(a, count);
    for (int i = 0; i < count && most > 0; i++) {
        aligned_word *word = &a->words[i];
        if (word->ends - word->begins <= most)
            continue;
        if (i > 0 && is_one_of(t, ids, word, SENTENCE_END))
            word->ends = word->begins + most;
        else if (i == 0 || is_one_of(t, ids, word - 1, SENTENCE_END))
            word->begins = word->ends - most;
    }
}

int sh_align(aligner *a, const align_task *task, const aligned_word **words) {
    int count;
    const int before = write_ids(a, task, &count);
    const int32_t *ids = a->ids + before + 1;
    int64_t columns = task->frames / 2;
    columns = columns > a->columns ? a->columns : columns < 1 ? 1 : columns;
    *words = a->words;
    a->word_count = 0;
    if (count == 0)
        return 0;
    /* mean [rows][columns]: the heads' together. */
    const int64_t rows = before + count + 2;
    const team workers = sh_team_of(a->context);
    for (int head = 0; head < a->head_count; head += HEADS_AT_ONCE) {
        const int left = a->head_count - head;
        comparing c = {a, rows, columns, left < HEADS_AT_ONCE ? left : HEADS_AT_ONCE,
                       head == 0};
        sh_decoder_weights(a->network, task->window, a->ids, (int)rows, a->heads + head,
                           c.heads, a->weights);
        sh_team_run(workers, c.heads, compare_head, &c);
        sh_team_run(workers, rows, add_row, &c);
    }
    sh_warp(a->mean + before * columns, count + 1, columns, a->steps, a->sums, a->first);
    int made = sh_words_split(task->tokens, ids, count, task->spaces, a->words);
    for (int i = 0; i < made; i++) {
        aligned_word *word = &a->words[i];
        double sum = 0;
        for (int k = word->first; k < word->end; k++)
            sum += exp((double)task->logprobs[a->place[k]]);
        word->probability = sum / (word->end - word->first);
        word->begins = a->first[word->first] / 50.0;
        word->ends = a->first[word->end] / 50.0;
    }
    shorten(a, ids, task->tokens, made);
    made = sh_words_merge(task->tokens, ids, a->words, made);
    for (int i = 0; i < made; i++) {
        a->words[i].end = a->place[a->words[i].end - 1] + 1;
        a->words[i].first = a->place[a->words[i].first];
    }
    a->word_count = made;
    return made;
}

int sh_aligned_words(aligner *a, const align_task *task, const packed_window *sound,
                     int first, int end, const shoal_word **words) {
    size_t used = 0;
    int made = 0;
    *words = a->out;
    for (int i = 0; i < a->word_count; i++) {
        const aligned_word *word = &a->words[i];
        if (word->first < first || word->first >= end)
            continue;
        const size_t size = sh_tokens_decode(task->tokens, task->ids + word->first,
                                             word->end - word->first, a->text + used,
                                             TEXT - used) +
                            1;
        if (size > TEXT - used)
            break;
        const double begin = sh_packed_begin(sound, word->begins);
        a->out[made++] =
            (shoal_word){.begin = begin,
                         .end = fmax(begin, sh_packed_end(sound, word->ends)),
                         .text = a->text + used,
                         .probability = word->probability};
        used += size;
    }
    return made;
}

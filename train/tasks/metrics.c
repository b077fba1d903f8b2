/* Metrics of GLUE and SQuAD. */
#include "base/memory.h"
#include "train/tasks/text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Classes and numbers --------------------------------------------------------- */

const char *const sh_text_metric_names[METRICS] = {"",           "accuracy", "f1",
                                                   "matthews",   "pearson",  "spearman",
                                                   "exact_match"};

typedef struct {
    double value;
    int64_t at;
} ranked;

static int compare_ranked(const void *a, const void *b) {
    const double x = ((const ranked *)a)->value, y = ((const ranked *)b)->value;
    return (x > y) - (x < y);
}

/* ranks[i]: mean rank of all values equal to values[i]. */
static void find_ranks(int64_t count, const float *values, ranked *sorted,
                       double *ranks) {
    for (int64_t i = 0; i < count; i++)
        sorted[i] = (ranked){(double)values[i], i};
    qsort(sorted, (size_t)count, sizeof *sorted, compare_ranked);
    for (int64_t first = 0, last; first < count; first = last) {
        for (last = first; last < count && sorted[last].value == sorted[first].value;)
            last++;
        for (int64_t i = first; i < last; i++)
            ranks[sorted[i].at] = (double)(first + last - 1) / 2;
    }
}

static double correlate(shoal_context *context, int64_t count, const float *predicted,
                        const float *wanted, bool by_rank) {
    double *x = sh_allocate_zeros(context, 2 * (size_t)count + 1, sizeof *x);
    double *y = x ? x + count : NULL;
    ranked *sorted = sh_allocate_zeros(context, (size_t)count + 1, sizeof *sorted);
    double mean_x = 0, mean_y = 0, xx = 0, yy = 0, xy = 0;
    const bool there = x && sorted;
    for (int64_t i = 0; there && i < count; i++) {
        x[i] = (double)predicted[i];
        y[i] = (double)wanted[i];
    }
    if (there && by_rank) {
        find_ranks(count, predicted, sorted, x);
        find_ranks(count, wanted, sorted, y);
    }
    for (int64_t i = 0; there && i < count; i++) {
        mean_x += x[i] / (double)count;
        mean_y += y[i] / (double)count;
    }
    for (int64_t i = 0; there && i < count; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        yy += (y[i] - mean_y) * (y[i] - mean_y);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    sh_free(sorted);
    sh_free(x);
    return !there ? (double)NAN : xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

double sh_text_metric(shoal_context *context, text_metric metric, int64_t count,
                      const float *predicted, const float *wanted) {
    double counts[2][2] = {{0}}; /* [predicted class 1][true class 1] */
    int64_t right = 0;
    for (int64_t i = 0; i < count; i++) {
        counts[predicted[i] == 1][wanted[i] == 1]++;
        right += predicted[i] == wanted[i];
    }
    const double tn = counts[0][0], fn = counts[0][1], fp = counts[1][0],
                 tp = counts[1][1];
    const double below = sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn));
    switch (metric) {
    case METRIC_ACCURACY: return count ? (double)right / (double)count : 0;
    case METRIC_F1: return 2 * tp + fp + fn > 0 ? 2 * tp / (2 * tp + fp + fn) : 0;
    case METRIC_MATTHEWS: return below > 0 ? (tp * tn - fp * fn) / below : 0;
    case METRIC_PEARSON: return correlate(context, count, predicted, wanted, false);
    case METRIC_SPEARMAN: return correlate(context, count, predicted, wanted, true);
    default: return NAN;
    }
}

/* ---- SQuAD ------------------------------------------------------------------------ */

static bool is_space(int32_t code) {
    static const int32_t spaces[] = {' ',    0x85,   0xa0,   0x1680, 0x2028,
                                     0x2029, 0x202f, 0x205f, 0x3000};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (code == spaces[i])
            return true;
    return (code >= 9 && code <= 13) || (code >= 28 && code <= 31) ||
           (code >= 0x2000 && code <= 0x200a);
}

/* Letters, digits and '_'; an article must not be adjacent to one. */
static bool is_word(int32_t code) {
    const utf8proc_category_t category = utf8proc_category(code);
    return code == '_' ||
           (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
           (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

/* An invalid UTF-8 byte gets a code beyond all characters. */
enum { RAW_BYTE = 0x110000 };

/* Length of the article that begins here, or 0. */
static int64_t article_at(const int32_t *letters, int64_t count, int64_t at) {
    static const char *const articles[] = {"the", "an", "a"};
    if (at > 0 && letters[at - 1] < RAW_BYTE && is_word(letters[at - 1]))
        return 0;
    for (int i = 0; i < 3; i++) {
        int64_t n = 0;
        while (articles[i][n] && at + n < count && letters[at + n] == articles[i][n])
            n++;
        if (!articles[i][n] &&
            (at + n == count || letters[at + n] >= RAW_BYTE || !is_word(letters[at + n])))
            return n;
    }
    return 0;
}

char *sh_squad_normalise(shoal_context *context, const char *text) {
    const size_t size = strlen(text);
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text;
    int32_t *letters = sh_allocate_zeros(context, size + 1, sizeof *letters);
    char *made = sh_allocate(context, 4 * size + 1);
    char *to = made;
    int64_t count = 0;
    if (!letters || !made) {
        sh_free(letters);
        sh_free(made);
        return NULL;
    }
    for (size_t left = size; left > 0;) { /* lower case, without punctuation */
        utf8proc_int32_t code;
        utf8proc_ssize_t used = utf8proc_iterate(at, (utf8proc_ssize_t)left, &code);
        code = used > 0 ? utf8proc_tolower(code) : RAW_BYTE + *at;
        used = used > 0 ? used : 1;
        at += used;
        left -= (size_t)used;
        if (code >= 128 || !ispunct((int)code))
            letters[count++] = code;
    }
    for (int64_t i = 0, gap = 0; i < count;) {
        const int64_t article = article_at(letters, count, i);
        if (article || is_space(letters[i])) {
            gap = 1;
            i += article ? article : 1;
            continue;
        }
        if (gap && to > made)
            *to++ = ' ';
        gap = 0;
        const int32_t code = letters[i++];
        if (code < RAW_BYTE)
            to += utf8proc_encode_char(code, (utf8proc_uint8_t *)to);
        else
            *to++ = (char)(code - RAW_BYTE);
    }
    *to = 0;
    sh_free(letters);
    return made;
}

/* Number of occurrences of a word [size] in a text before `end`. */
static int64_t count_word(const char *text, const char *end, const char *word,
                          size_t size) {
    int64_t count = 0;
    for (const char *at = text; at < end; at += strcspn(at, " "), at += *at == ' ')
        count += strncmp(at, word, size) == 0 && (at[size] == ' ' || at[size] == 0);
    return count;
}

static int64_t count_words(const char *text) {
    int64_t count = *text != 0;
    for (; *text; text++)
        count += *text == ' ';
    return count;
}

double sh_squad_f1(const char *predicted, const char *wanted) {
    const char *end = wanted + strlen(wanted);
    int64_t common = 0;
    for (const char *at = predicted; *at; at += strcspn(at, " "), at += *at == ' ') {
        const size_t size = strcspn(at, " ");
        /* The n-th occurrence of a word counts if the other text has at least n. */
        common += count_word(predicted, at, at, size) < count_word(wanted, end, at, size);
    }
    const int64_t sum = count_words(predicted) + count_words(wanted);
    return common ? 2 * (double)common / (double)sum : 0;
}

#include "speech/wer.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

typedef struct {
    const char *begin;
    size_t length;
} word;

/* Words of a text; with list NULL they are counted only. */
static int64_t split(const char *text, word *list) {
    int64_t count = 0;
    while (*(text += strspn(text, " "))) {
        size_t length = strcspn(text, " ");
        if (list)
            list[count] = (word){text, length};
        count++;
        text += length;
    }
    return count;
}

static bool same(word a, word b) {
    return a.length == b.length && memcmp(a.begin, b.begin, a.length) == 0;
}

/* The shortest way to one corner of the table: fewest edits, then most
   substitutions. */
typedef struct {
    int64_t substitutions, insertions, deletions;
} path;

static int64_t edits(path p) {
    return p.substitutions + p.insertions + p.deletions;
}

static path better(path a, path b) {
    if (edits(a) != edits(b))
        return edits(a) < edits(b) ? a : b;
    return a.substitutions >= b.substitutions ? a : b;
}

/* One row of the table per reference word; row[j]: for the first j of the hypothesis. */
static path align(const word *reference, int64_t words, const word *hypothesis,
                  int64_t heard, path *row) {
    for (int64_t j = 0; j <= heard; j++)
        row[j] = (path){.insertions = j};
    for (int64_t i = 1; i <= words; i++) {
        path diagonal = row[0];
        row[0] = (path){.deletions = i};
        for (int64_t j = 1; j <= heard; j++) {
            path above = row[j], left = row[j - 1];
            diagonal.substitutions += !same(reference[i - 1], hypothesis[j - 1]);
            above.deletions++;
            left.insertions++;
            path best = better(diagonal, better(above, left));
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[heard];
}

typedef struct {
    int64_t words, heard;
    word *reference;  /* [words] */
    word *hypothesis; /* [heard] */
    path *row;        /* [heard + 1] */
} alignment;

static void place(void *argument, block_layout *block) {
    alignment *a = argument;
    a->reference = sh_reserve(block, a->words, sizeof(word));
    a->hypothesis = sh_reserve(block, a->heard, sizeof(word));
    a->row = sh_reserve(block, a->heard + 1, sizeof(path));
}

shoal_status sh_wer_count(shoal_context *context, const char *reference,
                          const char *hypothesis, word_errors *errors) {
    alignment a = {.words = split(reference, NULL), .heard = split(hypothesis, NULL)};
    void *block = sh_allocate_parts(context, place, &a, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    split(reference, a.reference);
    split(hypothesis, a.hypothesis);
    path best = align(a.reference, a.words, a.hypothesis, a.heard, a.row);
    errors->words += a.words;
    errors->substitutions += best.substitutions;
    errors->insertions += best.insertions;
    errors->deletions += best.deletions;
    sh_release(context, block);
    return SHOAL_OK;
}

shoal_status sh_wer_add(shoal_context *context, const char *reference,
                        const char *hypothesis, word_errors *errors) {
    size_t first = sh_wer_normalise(reference, NULL, 0) + 1;
    size_t second = sh_wer_normalise(hypothesis, NULL, 0) + 1;
    char *block = sh_allocate(context, first + second);
    if (!block)
        return SHOAL_NO_MEMORY;
    sh_wer_normalise(reference, block, first);
    sh_wer_normalise(hypothesis, block + first, second);
    shoal_status status = sh_wer_count(context, block, block + first, errors);
    sh_release(context, block);
    return status;
}

double sh_wer_rate(const word_errors *errors) {
    int64_t wrong = errors->substitutions + errors->insertions + errors->deletions;
    if (errors->words == 0)
        return wrong == 0 ? 0.0 : HUGE_VAL;
    return (double)wrong / (double)errors->words;
}

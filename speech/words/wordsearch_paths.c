/* Word strings from the records of a search: the n best, and the posterior probability
   of each of their words among all paths that were kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "speech/words/grow.h"
#include "speech/words/wordsearch.h"

enum { MOST_ITEMS = 400000, LONGEST_WORD = 200 };

/* ---- Removing records ------------------------------------------------------------- */

/* wanted [count]: requested groups; on return also all that lead to them. kept [count]:
   their records. */
static void follow_back(const word_paths *paths, char *wanted, char *kept) {
    for (int32_t i = paths->count - 1; i >= 0; i--)
        for (int32_t m = wanted[i] ? i : -1; m >= 0; m = paths->records[m].other) {
            kept[m] = 1;
            if (paths->records[m].before >= 0)
                wanted[paths->records[m].before] = 1;
        }
}

bool sh_paths_shrink(word_paths *paths, int32_t *const *groups, int64_t count) {
    const size_t size = (size_t)paths->count + 1;
    char *marks = sh_allocate_zeros(paths->context, 2, size);
    int32_t *numbers = sh_allocate(paths->context, sizeof *numbers * size);
    if (!marks || !numbers) {
        FREE_ALL(marks, numbers);
        return false;
    }
    for (int64_t i = 0; i < count; i++)
        if (*groups[i] >= 0)
            marks[*groups[i]] = 1;
    follow_back(paths, marks, marks + size);
    int32_t kept = 0;
    for (int32_t i = 0; i < paths->count; i++)
        numbers[i] = marks[size + (size_t)i] ? kept++ : -1;
    for (int32_t i = 0; i < paths->count; i++) {
        if (numbers[i] < 0)
            continue;
        word_record record = paths->records[i];
        record.before = record.before < 0 ? -1 : numbers[record.before];
        record.other = record.other < 0 ? -1 : numbers[record.other];
        paths->records[numbers[i]] = record;
    }
    paths->count = kept;
    for (int64_t i = 0; i < count; i++)
        if (*groups[i] >= 0)
            *groups[i] = numbers[*groups[i]];
    FREE_ALL(marks, numbers);
    return true;
}

/* ---- N best strings --------------------------------------------------------------- */

/* A path from the end backwards to `group`. */
typedef struct {
    double lost;                  /* score difference from the best */
    int32_t group, member, after; /* member: the last record, after: item */
} path_item;

typedef struct {
    shoal_context *context;
    path_item *items;
    int32_t *heap; /* [heap_count] items, the best on top */
    int32_t item_count, heap_count;
    int64_t item_room, heap_room;
} path_queue;

typedef struct {
    int32_t *members; /* [count] records, first to last */
    int32_t count;
    double lost;
    uint64_t hash; /* of the words */
} found_path;

static bool less(const path_queue *q, int32_t a, int32_t b) {
    const double x = q->items[a].lost, y = q->items[b].lost;
    return x < y || (x <= y && a < b);
}

static int32_t pop(path_queue *q) {
    const int32_t top = q->heap[0];
    q->heap[0] = q->heap[--q->heap_count];
    for (int32_t at = 0;;) {
        int32_t low = at;
        for (int32_t k = 2 * at + 1; k <= 2 * at + 2 && k < q->heap_count; k++)
            if (less(q, q->heap[k], q->heap[low]))
                low = k;
        if (low == at)
            return top;
        const int32_t moved = q->heap[at];
        q->heap[at] = q->heap[low];
        q->heap[low] = moved;
        at = low;
    }
}

static bool push(path_queue *q, path_item item) {
    if (!grow(q->context, &q->items, &q->item_room, q->item_count + 1,
              sizeof *q->items) ||
        !grow(q->context, &q->heap, &q->heap_room, q->heap_count + 1, sizeof *q->heap))
        return false;
    q->items[q->item_count] = item;
    q->heap[q->heap_count++] = q->item_count++;
    for (int32_t at = q->heap_count - 1, up; at > 0; at = up) {
        up = (at - 1) / 2;
        if (!less(q, q->heap[at], q->heap[up]))
            break;
        const int32_t moved = q->heap[at];
        q->heap[at] = q->heap[up];
        q->heap[up] = moved;
    }
    return true;
}

/* Up to `most` distinct strings; -1 if out of memory. */
static int64_t find_paths(const word_paths *paths, path_queue *q, int64_t most,
                          found_path *found) {
    int64_t count = 0;
    float best = -INFINITY;
    for (int32_t i = 0; i < paths->end_count; i++)
        best = paths->ends[i].score > best ? paths->ends[i].score : best;
    for (int32_t i = 0; i < paths->end_count; i++)
        if (!push(q, (path_item){(double)best - (double)paths->ends[i].score,
                                 paths->ends[i].group, -1, -1}))
            return -1;
    while (q->heap_count > 0 && count < most &&
           (count == 0 || q->item_count < MOST_ITEMS)) {
        const int32_t top = pop(q);
        const path_item item = q->items[top];
        for (int32_t m = item.group; m >= 0; m = paths->records[m].other) {
            const word_record *record = &paths->records[m];
            const double lost = item.lost + (double)paths->records[item.group].score -
                                (double)record->score;
            if (!push(q, (path_item){lost, record->before, m, top}))
                return -1;
        }
        if (item.group >= 0)
            continue;
        found_path *made = &found[count];
        *made = (found_path){.lost = q->items[top].lost, .hash = 1469598103934665603u};
        for (int32_t i = top; q->items[i].member >= 0; i = q->items[i].after)
            made->count++;
        made->members = sh_allocate(paths->context,
                                    sizeof *made->members * ((size_t)made->count + 1));
        if (!made->members)
            return -1;
        made->count = 0;
        for (int32_t i = top; q->items[i].member >= 0; i = q->items[i].after) {
            const int32_t member = q->items[i].member;
            made->members[made->count++] = member;
            made->hash = (made->hash ^ (uint64_t)paths->records[member].spelled) *
                         1099511628211u;
        }
        bool same = false; /* whether a path with the same words exists */
        for (int64_t i = 0; i < count && !same; i++) {
            same = found[i].hash == made->hash && found[i].count == made->count;
            for (int32_t k = 0; k < made->count && same; k++)
                same = paths->records[found[i].members[k]].spelled ==
                       paths->records[made->members[k]].spelled;
        }
        if (same)
            sh_free(made->members), made->members = NULL;
        else
            count++;
    }
    return count;
}

/* ---- Confidence -------------------------------------------------------------------- */

typedef struct {
    char *wanted, *kept;    /* [count] groups and records that lead to an end */
    double *before, *after; /* [count] per group: log-sums of paths to and from it */
    double all;
} path_sums;

static double add_logs(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    return low <= -INFINITY ? high : high + log1p(exp(low - high));
}

static double score_of(const word_paths *paths, int32_t record) {
    return record < 0 ? 0
                      : paths->bases[paths->records[record].end] +
                            (double)paths->records[record].score;
}

/* Score that a record adds to the best path of the previous group. */
static double own_score(const word_paths *paths, int32_t record) {
    return (double)paths->scale *
           (score_of(paths, record) - score_of(paths, paths->records[record].before));
}

static bool make_sums(const word_paths *paths, path_sums *sums) {
    const size_t size = (size_t)paths->count + 1;
    sums->wanted = sh_allocate_zeros(paths->context, 2, size);
    sums->kept = sums->wanted ? sums->wanted + size : NULL;
    sums->before = sh_allocate(paths->context, sizeof(double) * size);
    sums->after = sh_allocate(paths->context, sizeof(double) * size);
    if (!sums->wanted || !sums->before || !sums->after)
        return false;
    for (int32_t i = 0; i < paths->end_count; i++)
        if (paths->ends[i].group >= 0)
            sums->wanted[paths->ends[i].group] = 1;
    follow_back(paths, sums->wanted, sums->kept);
    for (int32_t i = 0; i < paths->count; i++) {
        sums->before[i] = -INFINITY;
        for (int32_t m = sums->wanted[i] ? i : -1; m >= 0; m = paths->records[m].other) {
            const int32_t before = paths->records[m].before;
            sums->before[i] =
                add_logs(sums->before[i],
                         (before < 0 ? 0 : sums->before[before]) + own_score(paths, m));
        }
    }
    const double base = paths->bases[paths->steps];
    sums->all = -INFINITY;
    for (int32_t i = 0; i < paths->count; i++)
        sums->after[i] = -INFINITY;
    for (int32_t i = 0; i < paths->end_count; i++) {
        const int32_t group = paths->ends[i].group;
        const double own = (double)paths->scale *
                           (base + (double)paths->ends[i].score - score_of(paths, group));
        sums->all = add_logs(sums->all, own + (group < 0 ? 0 : sums->before[group]));
        if (group >= 0)
            sums->after[group] = add_logs(sums->after[group], own);
    }
    for (int32_t i = paths->count - 1; i >= 0; i--)
        for (int32_t m = sums->wanted[i] ? i : -1; m >= 0; m = paths->records[m].other) {
            const int32_t before = paths->records[m].before;
            if (before >= 0)
                sums->after[before] =
                    add_logs(sums->after[before], sums->after[i] + own_score(paths, m));
        }
    return true;
}

/* Share of all paths that contain this word at the middle of the record's time. */
static double confidence(const word_paths *paths, const path_sums *sums, int32_t record) {
    const word_record *own = &paths->records[record];
    const int32_t middle = own->begin + (own->end - own->begin) / 2;
    int32_t low = 0, high = paths->count; /* first record that ends after `middle` */
    while (low < high) {
        const int32_t half = low + (high - low) / 2;
        if (paths->records[half].end <= middle)
            low = half + 1;
        else
            high = half;
    }
    double sum = 0;
    for (int32_t i = low;
         i < paths->count && paths->records[i].end < middle + LONGEST_WORD; i++)
        for (int32_t m = sums->wanted[i] ? i : -1; m >= 0; m = paths->records[m].other) {
            const word_record *one = &paths->records[m];
            if (one->spelled != own->spelled || one->begin > middle)
                continue;
            sum += exp((one->before < 0 ? 0 : sums->before[one->before]) +
                       own_score(paths, m) + sums->after[i] - sums->all);
        }
    return sum < 1 ? sum : 1;
}

/* ---- Results ---------------------------------------------------------------------- */

bool sh_paths_read(const word_paths *paths, const shoal_word_settings *settings,
                   shoal_spoken *spoken, void **block) {
    path_queue q = {.context = paths->context};
    path_sums sums = {0};
    found_path *found =
        sh_allocate_zeros(paths->context, (size_t)settings->nbest + 1, sizeof *found);
    int64_t count = found ? find_paths(paths, &q, settings->nbest, found) : -1;
    bool good = count >= 0 && (!settings->confidence || make_sums(paths, &sums));
    size_t words = 0;
    for (int64_t i = 0; i < count; i++)
        words += (size_t)found[i].count;
    if (good)
        *block = sh_allocate(paths->context, sizeof(shoal_word_string) * (size_t)count +
                                                 sizeof(shoal_spoken_word) * words + 1);
    good = good && *block;
    if (good) {
        shoal_word_string *strings = *block;
        shoal_spoken_word *at = (shoal_spoken_word *)(void *)(strings + count);
        float best = -INFINITY;
        for (int32_t i = 0; i < paths->end_count; i++)
            best = paths->ends[i].score > best ? paths->ends[i].score : best;
        for (int64_t i = 0; i < count; i++) {
            strings[i] = (shoal_word_string){at, found[i].count,
                                             paths->bases[paths->steps] + (double)best -
                                                 found[i].lost};
            for (int32_t k = 0; k < found[i].count; k++) {
                const int32_t member = found[i].members[k];
                const word_record *record = &paths->records[member];
                *at++ = (shoal_spoken_word){shoal_lexicon_word(paths->lexicon,
                                                               record->spelled),
                                            record->begin, record->end,
                                            settings->confidence
                                                ? confidence(paths, &sums, member)
                                                : 0};
            }
        }
        spoken->strings = strings;
        spoken->count = count;
    }
    for (int64_t i = 0; found && i < settings->nbest; i++)
        sh_free(found[i].members);
    FREE_ALL(found, q.items, q.heap, sums.wanted, sums.before, sums.after);
    return good;
}

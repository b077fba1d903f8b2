/* Sequences of tokens, and batches of them. */
#include "train/tasks/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- Sets ------------------------------------------------------------------------- */

void sh_text_set_free(text_set *set) {
    free(set->offsets);
    free(set->labels);
    free(set->wanted);
    free(set->questions);
    free(set->ids);
    free(set->types);
    free(set->bytes);
    *set = (text_set){0};
}

static bool grow(void *place, int64_t count, size_t size) {
    void *old, *made;
    memcpy(&old, place, sizeof old);
    made = realloc(old, (size_t)count * size);
    if (made)
        memcpy(place, &made, sizeof made);
    return made != NULL;
}

bool sh_text_set_add(text_set *set, int64_t count, const int32_t *ids,
                     const int32_t *types, const int32_t (*bytes)[2], float label,
                     const int32_t wanted[2], int64_t question) {
    if (set->count + 1 > set->room) {
        const int64_t room = 2 * set->room + 64;
        if (!grow(&set->offsets, room + 1, sizeof *set->offsets) ||
            !grow(&set->labels, room, sizeof *set->labels) ||
            !grow(&set->wanted, room, sizeof *set->wanted) ||
            !grow(&set->questions, room, sizeof *set->questions))
            return false;
        set->offsets[0] = 0;
        set->room = room;
    }
    if (set->token_count + count > set->token_room) {
        const int64_t room = 2 * (set->token_room + count) + 1024;
        if (!grow(&set->ids, room, sizeof *set->ids) ||
            !grow(&set->types, room, sizeof *set->types) ||
            !grow(&set->bytes, room, sizeof *set->bytes))
            return false;
        set->token_room = room;
    }
    const int64_t at = set->token_count;
    memcpy(set->ids + at, ids, sizeof *ids * (size_t)count);
    memcpy(set->types + at, types, sizeof *types * (size_t)count);
    if (bytes)
        memcpy(set->bytes + at, bytes, sizeof *bytes * (size_t)count);
    else
        memset(set->bytes + at, 0xff, sizeof *bytes * (size_t)count);
    set->labels[set->count] = label;
    set->wanted[set->count][0] = wanted ? wanted[0] : 0;
    set->wanted[set->count][1] = wanted ? wanted[1] : 0;
    set->questions[set->count] = question;
    set->token_count += count;
    set->offsets[++set->count] = set->token_count;
    return true;
}

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

uint64_t sh_text_set_fingerprint(const text_set *set) {
    uint64_t hash = UINT64_C(14695981039346656037);
    const size_t count = (size_t)set->count;
    hash = hash_bytes(hash, set->offsets, count * sizeof *set->offsets);
    hash = hash_bytes(hash, set->ids, (size_t)set->token_count * sizeof *set->ids);
    hash = hash_bytes(hash, set->types, (size_t)set->token_count * sizeof *set->types);
    hash = hash_bytes(hash, set->labels, count * sizeof *set->labels);
    return hash_bytes(hash, set->wanted, count * sizeof *set->wanted);
}

int64_t sh_text_set_longest(const text_set *set) {
    int64_t longest = 0;
    for (int64_t i = 0; i < set->count; i++)
        if (set->offsets[i + 1] - set->offsets[i] > longest)
            longest = set->offsets[i + 1] - set->offsets[i];
    return longest;
}

static int compare_lengths(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (y > x) - (y < x); /* the longest first */
}

int64_t sh_text_set_most_rows(const text_set *set, int64_t batch) {
    int64_t *lengths = calloc((size_t)set->count + 1, sizeof *lengths), rows = 0;
    if (!lengths) /* then a little more than needed */
        return batch * sh_text_set_longest(set);
    for (int64_t i = 0; i < set->count; i++)
        lengths[i] = set->offsets[i + 1] - set->offsets[i];
    qsort(lengths, (size_t)set->count, sizeof *lengths, compare_lengths);
    for (int64_t i = 0; i < batch && i < set->count; i++)
        rows += lengths[i];
    free(lengths);
    return rows;
}

/* ---- Batches ---------------------------------------------------------------------- */

bool sh_text_batch_fill(const text_set *set, const int64_t *order, int64_t first,
                        int64_t count, text_batch *batch) {
    int64_t rows = 0;
    if (first + count > set->count)
        count = set->count - first;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = order ? order[first + i] : first + i;
        rows += set->offsets[at + 1] - set->offsets[at];
    }
    if (count > batch->room) {
        if (!grow(&batch->offsets, count + 1, sizeof *batch->offsets) ||
            !grow(&batch->at, count, sizeof *batch->at))
            return false;
        batch->room = count;
    }
    if (rows > batch->row_room) {
        if (!grow(&batch->ids, rows, sizeof *batch->ids) ||
            !grow(&batch->types, rows, sizeof *batch->types))
            return false;
        batch->row_room = rows;
    }
    batch->count = count;
    batch->offsets[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = order ? order[first + i] : first + i;
        const int64_t begin = set->offsets[at], length = set->offsets[at + 1] - begin;
        batch->at[i] = at;
        memcpy(batch->ids + batch->offsets[i], set->ids + begin,
               sizeof *set->ids * (size_t)length);
        memcpy(batch->types + batch->offsets[i], set->types + begin,
               sizeof *set->types * (size_t)length);
        batch->offsets[i + 1] = batch->offsets[i] + length;
    }
    return true;
}

void sh_text_batch_free(text_batch *batch) {
    free(batch->offsets);
    free(batch->at);
    free(batch->ids);
    free(batch->types);
    *batch = (text_batch){0};
}

shoal_model_inputs sh_text_batch_inputs(const text_batch *batch) {
    return (shoal_model_inputs){.batch = batch->count,
                                .offsets = batch->offsets,
                                .tokens = batch->ids,
                                .types = batch->types};
}
